# ruff: noqa: S608 (statements are made of our own constants; values are always bound)
"""Lookups that take more than one statement, and the making of entries."""

from __future__ import annotations

from typing import Any, Final, Literal

import apsw

from treering.index import ancestry
from treering.index.faults import IndexFault
from treering.index.rows import CYCLE, FLAGS, MISSING, OUTSIDE, STATE, Entry
from treering.index.totals import name_text

COLUMNS: Final = (
    "seq, entry.id, own, parent, depth, name, time, offset, stored, raw, revision, mark"
)

_REASONS: Final[dict[int, Literal["missing", "cycle"]]] = {MISSING: "missing", CYCLE: "cycle"}

_PATH = f"""WITH RECURSIVE up(at, n) AS (
    VALUES(?1, ?2)
    UNION ALL SELECT parent, n - 1 FROM up CROSS JOIN entry ON seq = at
    WHERE n > 1 AND parent IS NOT NULL
  ) SELECT {COLUMNS} FROM up CROSS JOIN entry ON seq = at"""

_NAMES_UP = """WITH RECURSIVE up(at, n) AS (
    VALUES(?1, ?2)
    UNION ALL SELECT parent, n - 1 FROM up CROSS JOIN entry ON seq = at
    WHERE n > 1 AND parent IS NOT NULL
  ) SELECT seq, name, parent FROM up CROSS JOIN entry ON seq = at"""

_CANDIDATES = """SELECT seq, depth FROM entry
  WHERE name > 0 AND name = ? AND seq < ? ORDER BY seq DESC LIMIT ?"""


class EntryReader:
    """Turns rows of the entry table into entries."""

    def __init__(self, db: apsw.Connection, path: str) -> None:
        self.db = db
        self.file = path
        self._names: dict[int, tuple[str, str | None]] = {}

    def forget(self) -> None:
        """Drop remembered names: a transaction that made them may have been rolled back."""
        self._names.clear()

    def one(self, sql: str, bindings: tuple[Any, ...]) -> Entry | None:
        """The only entry of a query; ``{}`` in it stands for the columns."""
        found = self.many(sql, bindings)
        return found[0] if found else None

    def many(self, sql: str, bindings: tuple[Any, ...]) -> list[Entry]:
        """All entries of a query, in its order."""
        return self.entries(self.db.execute(sql.format(COLUMNS), bindings).fetchall())

    def entries(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        """Entries of rows with the columns ``COLUMNS``."""
        try:
            return self._entries(rows)
        except TypeError as error:  # only a damaged row holds another type than its column
            raise IndexFault(self.file, f"a row holds values of a wrong type: {error}") from error

    def _entries(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        names = self._names
        make, cls = tuple.__new__, Entry
        found = []
        for seq, key, own, parent, depth, name, time, offset, stored, raw, revision, mark in rows:
            if key.__class__ is not str:
                raise TypeError(f"{key!r} as an id")
            pair = names.get(name) or self._name(name)
            state = mark & STATE
            found.append(
                make(
                    cls,
                    (seq, key, own, parent, depth, pair[0], pair[1], time, offset, stored)
                    + (stored if raw is None else raw, revision, mark & FLAGS)
                    + ((None, True) if not state else (_REASONS.get(state), state != OUTSIDE)),
                )
            )
        return found

    def number(self, sql: str, *bindings: int) -> int | None:
        """The only value of a query: an integer, or None."""
        value = self.db.execute(sql, bindings).get
        if not isinstance(value, int | None):
            raise IndexFault(self.file, f"{value!r} where an integer belongs")
        return value

    def _name(self, number: int) -> tuple[str, str | None]:
        pair = self.db.execute("SELECT kind, role FROM name WHERE id=?", (number,)).get
        if pair is None:
            raise IndexFault(self.file, f"kind {number} has no name")
        if not isinstance(pair, tuple) or not isinstance(pair[0], str):
            raise IndexFault(self.file, f"kind {number} has the name {pair!r}")
        if len(self._names) > 4096:
            self._names.clear()
        known: tuple[str, str | None] = pair
        self._names[number] = known
        return known


def path(reader: EntryReader, leaf: int, from_depth: int, limit: int | None) -> list[Entry]:
    """See SessionIndex.path."""
    leaf_depth = reader.number("SELECT depth FROM entry WHERE seq=?", leaf)
    from_depth = max(0, from_depth)
    if leaf_depth is None or from_depth > leaf_depth:
        return []
    count = leaf_depth - from_depth + 1
    if limit is not None and limit < count:
        if limit <= 0:
            return []
        count = limit
    end: int | None = leaf
    if from_depth + count - 1 < leaf_depth:
        end = ancestor_at_depth(reader, leaf, from_depth + count - 1)
    found = reader.entries(reader.db.execute(_PATH, (end, count)).fetchall())
    found.reverse()
    if len(found) != count or found[0].depth != from_depth:
        raise IndexFault(reader.file, f"the path to row {leaf} does not lead to its root")
    return found


def ancestor_at_depth(reader: EntryReader, sequence: int, depth: int) -> int | None:
    """See SessionIndex.ancestor_at_depth."""
    execute = reader.db.execute
    at = reader.number("SELECT depth FROM entry WHERE seq=?", sequence)
    if at is None or not 0 <= depth <= at:
        return None
    while at > depth:
        row: Any = execute("SELECT parent, jump, depth FROM entry WHERE seq=?", (sequence,)).get
        if row is None or row[2] != at or row[0] is None:
            raise IndexFault(reader.file, f"row {sequence} is not at depth {at}")
        jump = ancestry.jump_depth(at)
        if jump >= depth:
            sequence, at = row[1], jump
        else:
            sequence, at = row[0], at - 1
    return sequence


def children(reader: EntryReader, parent: int | None, after: int, limit: int) -> list[Entry]:
    """See SessionIndex.children. The child that follows its parent directly is in no index."""
    if parent is None:
        sql = (
            "SELECT {} FROM entry WHERE parent IS NULL AND parent IS NOT seq - 1 AND seq > ?"
            f" AND mark & {STATE} <> {OUTSIDE} ORDER BY seq LIMIT ?"
        )
        return reader.many(sql, (after, limit))
    sql = (
        "SELECT {} FROM entry WHERE parent = ? AND parent IS NOT seq - 1 AND seq > ?"
        " ORDER BY seq LIMIT ?"
    )
    found = reader.many(sql, (parent, after, limit))
    if after <= parent:
        found += reader.many("SELECT {} FROM entry WHERE seq = ?1 + 1 AND parent = ?1", (parent,))
        found.sort()
    return found[:limit]


def by_kind(
    reader: EntryReader,
    kind: str,
    role: str | None,
    after: int | None,
    before: int | None,
    limit: int,
    *,
    newest_first: bool,
) -> list[Entry]:
    """See SessionIndex.by_kind."""
    names = _numbers(reader, kind, role)
    if not names:
        return []
    where = "seq > ? AND seq < ? ORDER BY seq " + ("DESC" if newest_first else "ASC")
    low, high = -1 if after is None else after, 2**63 - 1 if before is None else before
    if len(names) == 1 and names[0] > 0:
        sql = f"SELECT {{}} FROM entry WHERE name > 0 AND name = ? AND {where} LIMIT ?"
        return reader.many(sql, (names[0], low, high, limit))
    wanted = ",".join(map(str, names))
    sql = f"SELECT {{}} FROM entry WHERE +name IN ({wanted}) AND {where} LIMIT ?"
    return reader.many(sql, (low, high, limit))


def latest_on_path(reader: EntryReader, kind: str, role: str | None, leaf: int) -> Entry | None:
    """See SessionIndex.latest_on_path.

    Two ways, taken in turns with growing steps, so that the worst case is twice the better one:
    candidates of the kind, newest first, until one is an ancestor (long paths, few candidates);
    or up the path (many candidates on other branches). Newest is nearest only while no parent
    ever came after its child; otherwise candidates can only prove that there is none.
    """
    numbers = _numbers(reader, kind, role)
    leaf_depth = reader.number("SELECT depth FROM entry WHERE seq=?", leaf)
    healed = reader.number("SELECT healed FROM state")
    if not numbers or leaf_depth is None:
        return None
    indexed = len(numbers) == 1 and numbers[0] > 0
    wanted, at, left = set(numbers), leaf, leaf_depth + 1
    before, step = 2**63 - 1 if healed else leaf + 1, 64
    while left > 0:
        if indexed:
            tried: list[Any] = reader.db.execute(_CANDIDATES, (numbers[0], before, step)).fetchall()
            for seq, depth in tried:
                before = seq
                if ancestor_at_depth(reader, leaf, depth) != seq:
                    continue
                if not healed:
                    return reader.one("SELECT {} FROM entry WHERE seq=?", (seq,))
                indexed = False
                break
            else:
                if len(tried) < step:
                    return None
        above: list[Any] = reader.db.execute(_NAMES_UP, (at, min(4 * step, left))).fetchall()
        for seq, name, parent in above:
            if name in wanted:
                return reader.one("SELECT {} FROM entry WHERE seq=?", (seq,))
            at = parent
        left -= len(above)
        if left > 0 and (at is None or not above):
            raise IndexFault(reader.file, f"the path to row {leaf} does not lead to its root")
        step = min(2 * step, 8192)
    return None


def _numbers(reader: EntryReader, kind: str, role: str | None) -> list[int]:
    sql, bindings = "SELECT id FROM name WHERE kind=?", [name_text(kind)]
    if role is not None:
        sql += " AND role=?"
        bindings.append(name_text(role))
    return [number for (number,) in reader.db.execute(sql, bindings)]
