# ruff: noqa: S608 (statements are made of our own constants; values are always bound)
"""Depths and jump pointers, and the healing of parents that arrive after their children.

Each entry has one skew-binary jump pointer: to its parent, or much further up, so that any
ancestor is O(log n) steps away. How far depends on the depth alone.

An entry that waited for its parent is the root of an island. When the parent arrives, the
island hangs below it, but its depths and jumps still count from the old root: the root is DIRTY
until :func:`settle` walks all dirty islands once, top down. Until then the old pointers stay
valid inside the island, and :func:`_root` steps from island to island over the dirty roots.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

import apsw

from treering.index.rows import CYCLE, DIRTY, MISSING, STATE

SKIPS_BITS: Final = 17
UPDATE_ROWS: Final = 2048
CACHED_NODES: Final = 32_768
STEPS_MAX: Final = 1 << 24
"""More steps than this from one entry towards its root: the pointers are damaged."""


def _skip_table(bits: int) -> bytes:
    # Depths 1..2w+1 repeat 1..w twice and end with a full jump over all of them.
    table = b"\0"
    while len(table) < (1 << bits) - 1:
        table = table + table + b"\1"
    return b"\0" + table


SKIPS: Final = _skip_table(SKIPS_BITS)
"""Per depth: 1 if the entry jumps where its parent's jump jumps, 0 if it jumps to its parent."""


def skips(depth: int) -> bool:
    """The same for any depth."""
    while depth >= len(SKIPS):
        depth -= (1 << ((depth + 1).bit_length() - 1)) - 1
        if depth == 0:
            return True
    return SKIPS[depth] == 1


def jump_depth(depth: int) -> int:
    """Depth of the entry that an entry at this depth jumps to."""
    rest = depth
    while rest:
        width = (1 << ((rest + 1).bit_length() - 1)) - 1
        rest -= width
        if not rest:
            return depth - width
    return 0


def adopt(db: apsw.Connection, own: str, seq: int) -> tuple[int, int]:
    """Hang everything that waits for ``own`` below its first holder ``seq``.

    Returns how many were healed, and how many would close a cycle (at most one: the root above
    ``seq`` itself) and stay roots for ever.
    """
    waiting = f"SELECT seq FROM loose WHERE parent_id=?1 AND state={MISSING}"
    if not db.execute(f"{waiting} LIMIT 1", (own,)).fetchall():
        return 0, 0
    root = _root(db, seq)
    cycles = 0
    if db.execute(f"{waiting} AND seq=?2", (own, root)).fetchall():
        cycles = 1
        db.execute("UPDATE loose SET state=?, parent_id=NULL WHERE seq=?", (CYCLE, root))
        db.execute("UPDATE entry SET mark = mark & ? | ? WHERE seq=?", (~STATE, CYCLE, root))
    db.execute(
        f"UPDATE entry SET parent=?2, mark = mark & {~STATE} | {DIRTY} WHERE seq IN ({waiting})",
        (own, seq),
    )
    healed = db.changes()
    db.execute(
        f"UPDATE loose SET state={DIRTY}, parent_id=NULL WHERE parent_id=?1 AND state={MISSING}",
        (own,),
    )
    return healed, cycles


def _root(db: apsw.Connection, seq: int) -> int:
    """The root above an entry, across islands that are not settled yet.

    Dirty roots on the way get the answer as their jump pointer (they are recomputed anyway):
    without this path compression a reversed file would cost the square of its length.
    """
    trail: list[int] = []
    for _ in range(STEPS_MAX):
        jump, parent, mark = _get(db, "SELECT jump, parent, mark FROM entry WHERE seq=?", seq)
        if mark & STATE == DIRTY:
            trail.append(seq)
        if jump != seq:
            seq = jump
        elif parent is not None:
            seq = parent
        else:
            break
    else:
        raise apsw.CorruptError("jump pointers run in a circle")
    db.executemany("UPDATE entry SET jump=? WHERE seq=?", [(seq, dirty) for dirty in trail])
    return seq


def _get(db: apsw.Connection, sql: str, seq: int) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = db.execute(sql, (seq,)).fetchone()
    if row is None:
        raise apsw.CorruptError(f"row {seq} is named but not there")
    return row


def settle(db: apsw.Connection) -> bool:
    """Recompute all dirty islands, each once, and clear their marks; False if there are none."""
    if not db.execute(f"SELECT 1 FROM loose WHERE state={DIRTY} LIMIT 1").fetchall():
        return False
    _Settling(db).run()
    db.execute(
        f"UPDATE entry SET mark = mark & {~STATE}"
        f" WHERE seq IN (SELECT seq FROM loose WHERE state={DIRTY})"
    )
    db.execute(f"DELETE FROM loose WHERE state={DIRTY}")
    return True


class _Settling:
    """One walk over the dirty islands. Iterative; memory is one integer per entry waiting."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._updates: dict[int, tuple[int, int]] = {}
        self._cache: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        stack = array("q", self._tops())
        left = self._db.execute("SELECT max(seq) FROM entry").get or 0
        while stack:
            seq = stack.pop()
            self._place(seq)
            stack.extend(child for (child,) in self._db.execute(CHILDREN, (seq,)))
            left -= 1
            if left < 0:
                raise apsw.CorruptError("children run in a circle")
        self._flush()

    def _tops(self) -> Iterator[int]:
        """Dirty roots that hang below settled entries: nothing above them will move."""
        for (seq,) in self._db.execute(f"SELECT seq FROM loose WHERE state={DIRTY}"):
            (above,) = _get(self._db, "SELECT parent FROM entry WHERE seq=?", seq)
            for _ in range(STEPS_MAX):
                jump, mark = _get(self._db, "SELECT jump, mark FROM entry WHERE seq=?", above)
                if mark & STATE == DIRTY:
                    break
                if jump == above:
                    yield seq
                    break
                above = jump

    def _place(self, seq: int) -> None:
        (parent,) = _get(self._db, "SELECT parent FROM entry WHERE seq=?", seq)
        depth, jump = self._node(parent)
        depth += 1
        jump = self._node(jump)[1] if skips(depth) else parent
        self._updates[seq] = (depth, jump)
        if len(self._updates) >= UPDATE_ROWS:
            self._flush()

    def _node(self, seq: int) -> tuple[int, int]:
        node = self._updates.get(seq) or self._cache.get(seq)
        if node is None:
            depth, jump = _get(self._db, "SELECT depth, jump FROM entry WHERE seq=?", seq)
            self._cache[seq] = node = (depth, jump)
        return node

    def _flush(self) -> None:
        self._db.executemany(
            "UPDATE entry SET depth=?, jump=? WHERE seq=?",
            [(depth, jump, seq) for seq, (depth, jump) in self._updates.items()],
        )
        if len(self._cache) > CACHED_NODES:
            self._cache.clear()
        self._cache.update(self._updates)
        self._updates.clear()


CHILDREN: Final = """SELECT seq FROM entry WHERE seq = ?1 + 1 AND parent = ?1
  UNION ALL SELECT seq FROM entry WHERE parent = ?1 AND parent IS NOT seq - 1"""
"""Children in no order; see the index entry_child."""
