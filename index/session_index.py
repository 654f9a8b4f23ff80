# ruff: noqa: S608 (statements are made of our own constants; values are always bound)
"""The index of one session: entries by id, path, kind and time, leaf, labels and totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

import apsw

from treering.index import ancestry, compare, handle, lookups, schema
from treering.index.faults import IndexFault
from treering.index.handle import guarded
from treering.index.loading import Loader, find_holder
from treering.index.lookups import EntryReader
from treering.index.rows import (
    INT_MAX,
    OUTSIDE,
    STATE,
    Counts,
    Entry,
    Identity,
    Label,
    Leaf,
    LeafMove,
    Position,
    Row,
    Usage,
    usable_id,
)

IDS_PER_QUERY: Final = 10_000


class SessionIndex(handle.Handle):
    """One SQLite database about one journal: derived from it and disposable.

    Promised: ``apply`` is one transaction, so the process may be killed at any moment and the
    rows always match the position; rows applied in any chunks give the same tables; no exception
    but IndexFault (set the file aside, build another) and IndexBusy (try again) comes out of a
    method because of the file. Not promised: that content is right. Every frame read through an
    index must be verified, and its revision compared with the entry's.

    Entries are named by sequence (integers) once looked up. Lists are in journal order unless
    said otherwise, and are complete up to ``limit``: page on with ``after``.

    One thread at a time may use an index; the caller serialises. After a fork it refuses.
    """

    def __init__(
        self, db: apsw.Connection, path: str, *, readonly: bool, building: bool, registered: bool
    ) -> None:
        super().__init__(db, path, readonly=readonly, registered=registered)
        self._building = building
        self._loader = Loader(db, path, building=building)
        self._reader = EntryReader(db, path)

    # Opening

    @classmethod
    def open(
        cls,
        path: str,
        *,
        readonly: bool = False,
        create: bool = False,
        busy_timeout_ms: int = 5_000,
        cache_kib: int = 16_384,
    ) -> Self:
        """Open an index file; with ``create``, make an empty one when there is none.

        Raises IndexFault if the file is missing, damaged, unfinished, of another version, or
        (unless ``readonly``) cannot be written; IndexBusy if it is locked for too long. Reading
        needs a folder that can be written, as SQLite keeps a ``-shm`` there: a read-only medium
        is a fault too.
        """
        db, path = handle.open_file(
            path,
            readonly=readonly,
            create=create,
            busy_timeout_ms=busy_timeout_ms,
            cache_kib=cache_kib,
        )
        return cls(db, path, readonly=readonly, building=False, registered=True)

    @classmethod
    def memory(cls) -> Self:
        """An empty index in memory, as large as its rows."""
        db = handle.open_memory()
        return cls(db, ":memory:", readonly=False, building=False, registered=False)

    @classmethod
    def build_into(
        cls, path: str, *, busy_timeout_ms: int = 5_000, cache_kib: int = 28_672
    ) -> Self:
        """Create a file and fill it fast: no journal, no sync, one transaction to the end.

        Nothing of it can be used after a kill or an exception; :meth:`finish_build` makes it
        whole. Lookups by id and sequence work meanwhile; children, kinds and depths below healed
        parents are right only afterwards.
        """
        db, path = handle.open_build(path, busy_timeout_ms=busy_timeout_ms, cache_kib=cache_kib)
        return cls(db, path, readonly=False, building=True, registered=True)

    @guarded
    def finish_build(self) -> None:
        """Make the remaining indexes, mark the file complete and commit. Close it, then publish."""
        if not self._building:
            raise IndexFault(self._path, "not a build")
        try:
            self._db.execute(f"PRAGMA cache_size=-{schema.SORT_CACHE_KIB}")
            for statement in schema.SECONDARY_INDEXES:
                self._db.execute(statement)
            self._loader.settle()
            self._db.execute("UPDATE state SET complete = 1")
            self._db.execute("COMMIT")
            self._building = False
            self._db.execute("PRAGMA locking_mode=NORMAL")
            schema.write_settings(self._db)
        except BaseException:
            self._broken = "its build failed"
            raise

    @guarded
    def self_check(self) -> None:
        """Raise IndexFault unless the file is what it was at open. Costs microseconds, proves
        little: the proof is :meth:`differences` against a rebuild.
        """
        if not self._building:
            schema.check(self._db, self._path, file_inode=None)

    # State

    def _state(self, columns: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._db.execute(f"SELECT {columns} FROM state").fetchone()
        if row is None:
            raise IndexFault(self._path, "its state row is gone")
        return row

    def _must_be(self, row: tuple[Any, ...], types: tuple[Any, ...]) -> None:
        """Types are checked when rows are stored, never when they are read."""
        if not all(map(isinstance, row, types)):
            raise IndexFault(self._path, f"values of a wrong type: {row!r}")

    @guarded
    def bind(self, journal_id: bytes, device: int, inode: int) -> None:
        """Say which journal this index belongs to."""
        self._db.execute(
            "UPDATE state SET journal_id=?, device=?, inode=?",
            (journal_id, handle.signed(device), handle.signed(inode)),
        )

    @guarded
    def identity(self) -> Identity | None:
        """The journal it belongs to; None before :meth:`bind`."""
        journal_id, device, inode = self._state("journal_id, device, inode")
        if not (
            isinstance(journal_id, bytes) and isinstance(device, int) and isinstance(inode, int)
        ):
            return None
        return Identity(journal_id, handle.unsigned(device), handle.unsigned(inode))

    @guarded
    def position(self) -> Position | None:
        """The last indexed frame; None in an empty index."""
        row = self._state("sequence, offset, revision")
        if None in row:
            return None
        self._must_be(row, (int, int, bytes))
        return Position(*row)

    @guarded
    def watermark(self) -> bytes | None:
        """The engine's watermark, as it was set."""
        row: tuple[bytes | None] = self._state("watermark")
        self._must_be(row, (bytes | None,))
        return row[0]

    @guarded
    def set_watermark(self, watermark: bytes) -> None:
        """Keep a watermark (64 bytes). Not synced for its own sake."""
        self._db.execute("UPDATE state SET watermark=?", (watermark,))

    @guarded
    def apply(
        self,
        rows: Iterable[Row | LeafMove],
        position: Position,
        watermark: bytes | None = None,
    ) -> None:
        """Add rows and move the position, in one transaction.

        ``rows`` may be a generator; it is read to its end, so the caller bounds it (20,000 rows
        hold the write lock for about 0.2 s). All must come after the stored position, in order.
        An exception from ``rows`` itself passes through and nothing is added.
        """
        if self._building:
            self._apply_to_build(rows, position, watermark)
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._loader.apply(rows, position, watermark)
            self._db.execute("COMMIT")
        except BaseException:
            self._loader.forget()
            if self._db.in_transaction:  # a full disk may have ended it already
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._reader.forget()

    def _apply_to_build(
        self, rows: Iterable[Row | LeafMove], position: Position, watermark: bytes | None
    ) -> None:
        try:
            self._loader.apply(rows, position, watermark)
        except BaseException:
            self._broken = "its build failed"  # without a journal there is no way back
            raise

    # Entries

    @guarded
    def by_id(self, entry_id: str) -> Entry | None:
        """The entry that an id addresses."""
        if not usable_id(entry_id):
            return None
        return self._reader.one("SELECT {} FROM entry WHERE id=?", (entry_id,))

    @guarded
    def by_ids(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """The entries that ids address; unknown ids are left out."""
        usable = tuple(entry_id for entry_id in entry_ids if usable_id(entry_id))
        found: dict[str, Entry] = {}
        for start in range(0, len(usable), IDS_PER_QUERY):
            keys = apsw.carray(usable, start=start, stop=min(len(usable), start + IDS_PER_QUERY))
            sql = "SELECT {} FROM carray(?) AS c CROSS JOIN entry ON id = c.value"
            found.update((entry.id, entry) for entry in self._reader.many(sql, (keys,)))
        return found

    @guarded
    def by_sequence(self, sequence: int) -> Entry | None:
        """The entry of a sequence."""
        return self._reader.one("SELECT {} FROM entry WHERE seq=?", (sequence,))

    @guarded
    def has_id(self, entry_id: str) -> bool:
        """Whether any entry is addressed by this id, or has it as its own."""
        if not usable_id(entry_id):
            return False
        sql = "SELECT EXISTS(SELECT 1 FROM entry WHERE id=?1)"
        sql += " OR EXISTS(SELECT 1 FROM entry WHERE own=?1)"
        return bool(self._db.execute(sql, (entry_id,)).get)

    @guarded
    def holder(self, own_id: str) -> int | None:
        """Sequence of the newest entry whose own id this is: what a new child would hang below."""
        return find_holder(self._db, own_id) if usable_id(own_id) else None

    @guarded
    def entries(self, *, after: int = 0, limit: int) -> list[Entry]:
        """Entries behind a sequence."""
        sql = "SELECT {} FROM entry WHERE seq > ? ORDER BY seq LIMIT ?"
        return self._reader.many(sql, (after, limit))

    # Tree

    @guarded
    def leaf(self) -> Leaf:
        """The current leaf."""
        row = self._state("leaf_moved, leaf")
        self._must_be(row, (int, int | None))
        return Leaf(bool(row[0]), row[1])

    @guarded
    def path(self, leaf: int, *, from_depth: int = 0, limit: int | None = None) -> list[Entry]:
        """Entries from the root to a leaf (a sequence), root first; a page of it by depth.

        Empty for an unknown leaf and for depths below it. Costs grow with the page, and with the
        logarithm of its distance from the leaf.
        """
        with self.snapshot():
            return lookups.path(self._reader, leaf, from_depth, limit)

    @guarded
    def ancestor_at_depth(self, sequence: int, depth: int) -> int | None:
        """The entry at a depth on the path to ``sequence``; None if it is not that deep."""
        with self.snapshot():
            return lookups.ancestor_at_depth(self._reader, sequence, depth)

    @guarded
    def is_ancestor(self, ancestor: int, sequence: int) -> bool:
        """Whether ``ancestor`` is on the path to ``sequence`` (an entry is on its own path)."""
        with self.snapshot():
            depth = self._reader.number("SELECT depth FROM entry WHERE seq=?", ancestor)
            if depth is None:
                return False
            return lookups.ancestor_at_depth(self._reader, sequence, depth) == ancestor

    @guarded
    def children(self, parent: int | None, *, after: int = 0, limit: int) -> list[Entry]:
        """Children of an entry; of None the roots, including unresolved entries."""
        with self.snapshot():
            return lookups.children(self._reader, parent, after, limit)

    @guarded
    def child_count(self, parent: int | None) -> int:
        """Number of children, or of roots. Costs grow with the answer."""
        if parent is None:
            sql = "SELECT count(*) FROM entry WHERE parent IS NULL AND parent IS NOT seq - 1"
            return int(self._db.execute(f"{sql} AND mark & {STATE} <> {OUTSIDE}").get)
        return int(self._db.execute(f"SELECT count(*) FROM ({ancestry.CHILDREN})", (parent,)).get)

    @guarded
    def unresolved(self, *, after: int = 0, limit: int) -> list[Entry]:
        """Entries whose parent is missing, or would close a cycle."""
        sql = "SELECT {} FROM loose CROSS JOIN entry USING(seq) WHERE seq > ? ORDER BY seq LIMIT ?"
        return self._reader.many(sql, (after, limit))

    # Labels, kinds, time

    @guarded
    def label(self, target: int) -> Label | None:
        """The label that holds for an entry."""
        sql = "SELECT target, label, entry, time FROM label LEFT JOIN entry ON seq = entry"
        row = self._db.execute(f"{sql} WHERE target=?", (target,)).get
        return None if row is None else Label(*row)

    @guarded
    def labels(self, *, after: int = 0, limit: int) -> list[Label]:
        """All labels, ordered by the sequence of their target; ``after`` is such a sequence."""
        sql = "SELECT target, label, entry, time FROM label LEFT JOIN entry ON seq = entry"
        rows = self._db.execute(f"{sql} WHERE target > ? ORDER BY target LIMIT ?", (after, limit))
        return [Label(*row) for row in rows]

    @guarded
    def by_kind(
        self,
        kind: str,
        *,
        role: str | None = None,
        after: int | None = None,
        before: int | None = None,
        newest_first: bool = False,
        limit: int,
    ) -> list[Entry]:
        """Entries of a kind (and role) strictly between two sequences.

        Goes through an index, except for the bulk (messages of assistant and toolResult, and so
        "message" without a role): that is a scan in journal order which stops at ``limit``.
        """
        with self.snapshot():
            return lookups.by_kind(
                self._reader, kind, role, after, before, limit, newest_first=newest_first
            )

    @guarded
    def latest_on_path(self, kind: str, leaf: int, *, role: str | None = None) -> Entry | None:
        """The entry of a kind that is nearest to a leaf on its path (the leaf included)."""
        with self.snapshot():
            return lookups.latest_on_path(self._reader, kind, role, leaf)

    @guarded
    def about(self, target_id: str, *, before: int | None = None, limit: int) -> list[Entry]:
        """Attributions that name an id as their target, before a sequence, newest first."""
        if not usable_id(target_id):
            return []
        with self.snapshot():
            return self._reader.many(
                "SELECT {} FROM about CROSS JOIN entry ON seq = about.entry"
                " WHERE about.target=? AND about.entry<? ORDER BY about.entry DESC LIMIT ?",
                (target_id, INT_MAX if before is None else before, limit),
            )

    @guarded
    def by_time(self, start_ms: int, end_ms: int, *, after: int = 0, limit: int) -> list[Entry]:
        """Entries with start <= timestamp < end (Unix ms), in journal order.

        There is no index on time (it would cost 10 bytes an entry, and times need not follow
        the order of the journal): a scan from ``after`` that stops at ``limit`` hits, about
        0.1 s a million entries. Entries without a timestamp are left out.
        """
        sql = "SELECT {} FROM entry WHERE seq > ? AND time >= ? AND time < ? ORDER BY seq LIMIT ?"
        bounds = (max(-(2**63), min(ms, 2**63 - 1)) for ms in (start_ms, end_ms))
        return self._reader.many(sql, (after, *bounds, limit))

    # Totals

    @guarded
    def counts(self) -> Counts:
        """Numbers of rows. ``kinds`` counts by kind, ``unresolved`` is missing plus cycles."""
        kinds: dict[str, int] = {}
        for row in self._db.execute("SELECT kind, entries FROM name ORDER BY id"):
            self._must_be(row, (str, int))
            kinds[row[0]] = kinds.get(row[0], 0) + row[1]
        row = self._state("entries, missing, cycles, derived, outside, unknown_leaf_moves")
        self._must_be(row, (int,) * 6)
        entries, missing, cycles, derived, outside, unknown_leaf_moves = row
        return Counts(
            entries=entries,
            kinds=kinds,
            messages=kinds.get("message", 0),
            unresolved=missing + cycles,
            missing=missing,
            cycles=cycles,
            derived=derived,
            outside=outside,
            unknown_leaf_moves=unknown_leaf_moves,
        )

    @guarded
    def usage(self) -> dict[str, Usage]:
        """Totals per category. Token totals stop at 2**63 - 1."""
        rows: list[tuple[Any, ...]] = self._db.execute(
            "SELECT * FROM usage ORDER BY category"
        ).fetchall()
        for row in rows:
            self._must_be(row, (str, int, int, int, int, int, float))
        return {category: Usage(*figures) for category, *figures in rows}

    # Proof

    def differences(self, other: SessionIndex, *, limit: int = 100) -> list[str]:
        """How two indexes differ, row by row over every table; empty means they are equal.

        Streams: memory does not grow with the indexes. What belongs to the file and not to the
        rows (its inode, the watermark) is left out; identities are compared if both are bound.
        Whether the indexes of our tables are those of their rows, SQLite says.
        """
        for index in (self, other):
            index.require_usable()
        with self.snapshot(), other.snapshot():
            try:
                found = compare.differences(self._rows, other._rows, limit)
            except TypeError as error:  # keys that cannot be compared
                raise IndexFault(self._path, f"values of a wrong type: {error}") from error
            # A stale page of an index passes its checksum, and no row of a table shows it.
            checked = self._rows("PRAGMA integrity_check")
            return (found + [line for (line,) in checked if line != "ok"])[:limit]

    @guarded
    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._db.execute(sql).fetchall()
