# ruff: noqa: S608 (statements are made of our own constants; values are always bound)
"""Adding rows: ids, parents, labels, leaf, totals.

Every rule here depends only on the rows before it, and everything it depends on is in the
database: so rows added in any chunks, with a kill between any two, end in the same tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

import apsw
from xxhash import xxh3_128_hexdigest

from treering.index import ancestry
from treering.index.faults import IndexFault
from treering.index.rows import (
    DERIVED,
    FLAGS,
    INT_MAX,
    MISSING,
    OUTSIDE,
    STATE,
    LeafMove,
    Position,
    Row,
    usable_id,
)
from treering.index.totals import Names, UsageTotals

BATCH_ROWS: Final = 2048
"""Rows looked up and inserted together: one query instead of one a row."""

RECENT_ROWS: Final = 8192
"""Recent entries kept in memory (twice that at most): parents are mostly among them."""

Node = tuple[int, int, int]
"""Sequence, depth, jump."""

_INSERT = "INSERT INTO entry VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)"

# What an id means to a child or label that comes now: the newest entry with it as own id (the
# newest twin if there is one), else the entry that it addresses as a derived id.
_HOLDERS = f"""SELECT c.value, e.seq, e.depth, e.jump, e.mark & {STATE} <> {OUTSIDE}
  FROM carray(?) AS c CROSS JOIN entry AS e ON e.id = c.value"""
_TWINS = f"""SELECT c.value, e.seq, e.depth, e.jump
  FROM carray(?) AS c CROSS JOIN entry AS e ON e.own = c.value
  WHERE e.mark & {STATE} <> {OUTSIDE} ORDER BY e.seq"""
_AWAITED = """SELECT c.value FROM carray(?1) AS c
  WHERE EXISTS (SELECT 1 FROM loose WHERE parent_id = c.value)
  OR EXISTS (SELECT 1 FROM label_wait WHERE target = c.value)"""


class Loader:
    """Adds rows to one database. Keeps only caches of bounded size between calls.

    Everything runs inside a transaction of the caller's. After any exception the caller rolls
    back and calls :meth:`forget`.
    """

    def __init__(self, db: apsw.Connection, path: str, *, building: bool) -> None:
        self._db = db
        self._path = path
        self._building = building
        self._names = Names(db)
        self.forget()

    def forget(self) -> None:
        """Drop everything remembered: the database may not be what it was."""
        self._holders: dict[str, Node] = {}
        self._old_holders: dict[str, Node] = {}
        self._jumps: dict[int, int] = {}
        self._old_jumps: dict[int, int] = {}
        self._pending: list[tuple[Any, ...]] = []
        self._pending_about: list[tuple[int, str]] = []
        self._pending_loose: list[tuple[int, int, str | None]] = []
        self._fresh: dict[str, int] = {}
        self._taken: set[str] = set()
        self._awaited: set[str] = set()
        self._names.forget()
        self._seen: int | None = None

    def apply(
        self, rows: Iterable[Row | LeafMove], position: Position, watermark: bytes | None
    ) -> None:
        """Add rows and set the position. Raises IndexFault for rows out of order."""
        self._load_state()
        source = iter(rows)
        while batch := list(itertools.islice(source, BATCH_ROWS)):
            self._rotate()
            owns = self._probe(batch)
            self._add(batch, owns)
            self._flush()
        if position.sequence < self._last:
            raise IndexFault(self._path, f"position {position.sequence} is before row {self._last}")
        if self._dirty and not self._building:
            self.settle()
        self._save_state(position, watermark)

    def settle(self) -> None:
        """Recompute depths and jumps below everything healed since the last time."""
        if ancestry.settle(self._db):
            for cache in (self._holders, self._old_holders, self._jumps, self._old_jumps):
                cache.clear()
        self._dirty = False

    # State

    def _load_state(self) -> None:
        row = self._db.execute(
            "SELECT sequence, newest, leaf_moved, leaf, entries, missing, cycles, derived,"
            " outside, twins, healed, label_waits, unknown_leaf_moves FROM state"
        ).get
        if row is None or not all(isinstance(value, int | None) for value in row):
            raise IndexFault(self._path, "its state row is gone or damaged")
        if row[0] != self._seen:  # another connection has written since
            self.forget()
        self._last: int = row[0] or 0
        self._newest, self._leaf_moved, self._leaf = row[1:4]
        (
            self._entries,
            self._missing,
            self._cycles,
            self._derived,
            self._outside,
            self._twins,
            self._healed,
            self._label_waits,
            self._unknown_leaf_moves,
        ) = row[4:]
        self._usage = UsageTotals(self._db)
        self._dirty = False
        self._moves = 0

    def _save_state(self, position: Position, watermark: bytes | None) -> None:
        self._names.save()
        self._usage.save()
        self._db.execute(
            "UPDATE state SET sequence=?, offset=?, revision=?, watermark=coalesce(?, watermark),"
            " newest=?, leaf_moved=?, leaf=?, entries=?, missing=?, cycles=?, derived=?,"
            " outside=?, twins=?, healed=?, label_waits=?, unknown_leaf_moves=?",
            (
                *position,
                watermark,
                self._newest,
                self._leaf_moved,
                self._leaf,
                self._entries,
                self._missing,
                self._cycles,
                self._derived,
                self._outside,
                self._twins,
                self._healed,
                self._label_waits,
                self._unknown_leaf_moves,
            ),
        )
        self._seen = position.sequence

    # One batch

    def _rotate(self) -> None:
        if len(self._holders) > RECENT_ROWS:
            self._old_holders, self._holders = self._holders, {}
        if len(self._jumps) > RECENT_ROWS:
            self._old_jumps, self._jumps = self._jumps, {}
        self._fresh.clear()

    def _probe(self, batch: list[Row | LeafMove]) -> list[str | None]:
        """Look up all ids of a batch in one query; return the usable own id of each row.

        Afterwards every earlier holder that the batch can name is in the caches.
        """
        owns = [
            row[1] if len(row) > 2 and row[1] is not None and usable_id(row[1]) else None
            for row in batch
        ]
        holders, older = self._holders, self._old_holders
        own_ids: set[str] = {own for own in owns if own is not None}
        parents = {row[2] for row in batch if len(row) > 2 and row[2]} - own_ids
        wanted = own_ids.union(parent for parent in parents if parent and usable_id(parent))
        for key in older.keys() & wanted:
            holders.setdefault(key, older[key])
        known = holders.keys() & wanted
        taken, awaited = self._taken, self._awaited
        taken.clear()
        taken.update(known)
        awaited.clear()
        wanted -= known
        if wanted:
            keys = apsw.carray(tuple(sorted(wanted)))  # sorted: neighbours share pages
            for key, seq, depth, jump, holds in self._db.execute(_HOLDERS, (keys,)):
                taken.add(key)
                if holds:
                    self._remember(key, seq, depth, jump)
            if self._twins:
                for key, seq, depth, jump in self._db.execute(_TWINS, (keys,)):
                    self._remember(key, seq, depth, jump)
        if own_ids and (self._missing or self._label_waits):
            keys = apsw.carray(tuple(own_ids))
            awaited.update(key for (key,) in self._db.execute(_AWAITED, (keys,)))
        return owns

    def _remember(self, own: str, seq: int, depth: int, jump: int) -> None:
        self._holders[own] = (seq, depth, jump)
        self._jumps[seq] = jump

    def _add(self, batch: list[Row | LeafMove], owns: list[str | None]) -> None:
        """The hot loop: what is rare is in methods, what every entry needs is here."""
        holders, jumps, awaited, pending = self._holders, self._jumps, self._awaited, self._pending
        taken, fresh = self._taken, self._fresh
        name_of, add_name, counts = self._names.ids, self._names.add, self._names.counts
        skips, skips_size = ancestry.SKIPS, len(ancestry.SKIPS)
        last, newest, moves_before = self._last, self._newest, self._moves
        for row, own in zip(batch, owns, strict=True):
            if not last < row[0] <= INT_MAX:
                raise IndexFault(self._path, f"row {row[0]} after {last}: rows out of order")
            last = row[0]
            if len(row) == 2:
                self._move_leaf(row)
                continue
            # fmt: off
            (seq, _, parent_id, kind, role, time, offset, stored, raw, revision, flags, _,
             tree, moves, label, usage, about) = row
            # fmt: on
            mark = flags & FLAGS
            address, shown, parent, depth, jump = own, None, None, 0, seq
            if own is None or own in taken or own in fresh or not tree:
                address, shown, mark = self._derive(row, own), own, mark | DERIVED
            fresh[address] = seq  # type: ignore[index]
            if not tree:
                mark |= OUTSIDE
                self._outside += 1
            elif parent_id:
                holder = holders.get(parent_id)
                if holder is None:
                    mark |= self._unresolved(seq, parent_id)
                else:
                    parent, depth, jump = holder
                    depth += 1
                    if skips[depth] if depth < skips_size else ancestry.skips(depth):
                        jump = jumps.get(jump) or self._jump_of(jump)
                    else:
                        jump = parent
            if label is not None:
                labelled = self._holder(label[0])
            if time is not None and not -INT_MAX <= time <= INT_MAX:
                time = None
            name = name_of.get((kind, role))
            if name is None:
                name = add_name(kind, role)
            counts[name] += 1
            # fmt: off
            pending.append(
                (seq, address, shown, parent, depth, jump, name, time, offset, stored,
                 None if raw == stored else raw, revision, mark)
            )
            # fmt: on
            jumps[seq] = jump
            if tree:
                if address is not own:
                    holders.setdefault(address, (seq, depth, jump))  # type: ignore[arg-type]
                if own is not None:
                    holders[own] = (seq, depth, jump)
                    if own in awaited:
                        self._arrived(own, seq)
                if moves:
                    self._leaf_moved, self._leaf = 1, seq
            if label is not None:
                self._label(label, labelled, seq)
            if usage is not None:
                self._usage.add(*usage)
            if about is not None and usable_id(about):
                self._pending_about.append((seq, about))
            newest = seq
        self._entries += len(batch) - (self._moves - moves_before)
        self._last, self._newest = last, newest

    def _flush(self) -> None:
        if self._pending:
            self._db.executemany(_INSERT, self._pending)
            self._pending.clear()
        if self._pending_loose:
            self._db.executemany("INSERT INTO loose VALUES(?,?,?)", self._pending_loose)
            self._pending_loose.clear()
        if self._pending_about:
            self._db.executemany("INSERT INTO about VALUES(?,?)", self._pending_about)
            self._pending_about.clear()

    # Rare cases

    def _derive(self, row: Row, own: str | None) -> str:
        """The id of an entry that has none, or one that is taken.

        Hash of the content and the count of identical records before it: the same file gives
        the same ids, also after a fork or a repack.
        """
        self._derived += 1
        if own is not None and row.tree:
            self._twins += 1
        content = row.content_hash
        count = self._db.execute("SELECT count FROM derived WHERE hash=?", (content,)).get or 0
        while True:
            address = xxh3_128_hexdigest(content + (count & 0xFFFFFFFF).to_bytes(4, "little"))
            count += 1
            if address not in self._fresh and not self._exists(address):
                break
        self._db.execute("INSERT OR REPLACE INTO derived VALUES(?,?)", (content, count))
        return address

    def _exists(self, address: str) -> bool:
        found = self._db.execute("SELECT 1 FROM entry WHERE id=?", (address,)).get
        return found is not None

    def _unresolved(self, seq: int, parent_id: str) -> int:
        """Note an entry whose parent is not there; returns the state for its mark.

        Its own parent is no special case: the entry arrives, and is the root above itself.
        """
        self._missing += 1
        usable = usable_id(parent_id)  # an id that nobody can have is not waited for
        self._pending_loose.append((seq, MISSING, parent_id if usable else None))
        if usable:
            self._awaited.add(parent_id)
        return MISSING

    def _jump_of(self, seq: int) -> int:
        jump = self._old_jumps.get(seq)
        if jump is None:
            jump = self._db.execute("SELECT jump FROM entry WHERE seq=?", (seq,)).get
            if jump is None:
                raise IndexFault(self._path, f"a jump pointer names row {seq}, which is gone")
        self._jumps[seq] = jump
        return jump

    def _holder(self, own: str) -> int | None:
        """Sequence of the newest entry so far that has this own id."""
        known = self._holders.get(own) or self._old_holders.get(own)
        if known is not None:
            return known[0]
        return find_holder(self._db, own) if usable_id(own) else None

    def _arrived(self, own: str, seq: int) -> None:
        """An id that was waited for is there: parents and labels that name it take effect."""
        self._awaited.discard(own)
        self._flush()
        healed, cycles = ancestry.adopt(self._db, own, seq)
        self._missing -= healed + cycles
        self._healed += healed
        self._cycles += cycles
        self._dirty = self._dirty or healed > 0
        if self._label_waits:
            self._db.execute(
                "INSERT INTO label SELECT ?, label, entry FROM label_wait WHERE target=?",
                (seq, own),
            )
            self._db.execute("DELETE FROM label_wait WHERE target=?", (own,))
            self._label_waits -= self._db.changes()

    def _label(self, label: tuple[str, str | None], labelled: int | None, seq: int) -> None:
        target, text = label
        if text:
            text = text.encode("utf-8", "backslashreplace").decode()
        if labelled is not None:
            if text:
                self._db.execute(
                    "INSERT OR REPLACE INTO label VALUES(?,?,?)", (labelled, text, seq)
                )
            else:
                self._db.execute("DELETE FROM label WHERE target=?", (labelled,))
        elif usable_id(target):
            self._db.execute("DELETE FROM label_wait WHERE target=?", (target,))
            self._label_waits -= self._db.changes()
            if text:
                self._db.execute("INSERT INTO label_wait VALUES(?,?,?)", (target, text, seq))
                self._label_waits += 1
                self._awaited.add(target)

    def _move_leaf(self, move: LeafMove) -> None:
        self._moves += 1
        if move.leaf is None:
            self._leaf_moved, self._leaf = 1, None
            return
        if usable_id(move.leaf):
            self._flush()
            row = self._db.execute("SELECT seq, mark FROM entry WHERE id=?", (move.leaf,)).get
            if row is not None and row[1] & STATE != OUTSIDE:
                self._leaf_moved, self._leaf = 1, row[0]
                return
        self._unknown_leaf_moves += 1


def find_holder(db: apsw.Connection, own: str) -> int | None:
    """Sequence of the entry in the tree that a usable id means to a child that comes now.

    The newest one with it as own id, else the one that it addresses as a derived id.
    """
    twin = db.execute(
        f"SELECT seq FROM entry WHERE own=? AND mark & {STATE} <> {OUTSIDE}"
        " ORDER BY seq DESC LIMIT 1",
        (own,),
    ).get
    if twin is None:
        sql = f"SELECT seq FROM entry WHERE id=? AND mark & {STATE} <> {OUTSIDE}"
        twin = db.execute(sql, (own,)).get
    found: int | None = twin
    return found
