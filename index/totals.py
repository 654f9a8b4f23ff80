"""Names of kinds and roles as small integers, and the running totals."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import apsw
from xxhash import xxh3_128_hexdigest

from treering.index.rows import INT_MAX, Usage, storable

NAME_CHARS_MAX: Final = 200
"""Longer kinds and roles are kept as this much of them and a hash of the whole."""

NAMES_CACHED: Final = 4096

BULK: Final = {("message", "assistant"): -1, ("message", "toolResult"): 0}
"""Left out of the kind index: nearly every entry is one of these, nobody looks for them by kind.
User messages are in it: they are few, and are what a person goes back to."""

COST_MAX: Final = 1.7976931348623157e308


def name_text(text: str) -> str:
    """A kind or role as it is stored and answered."""
    if len(text) > NAME_CHARS_MAX:
        whole = text.encode("utf-8", "surrogatepass")
        text = f"{text[:NAME_CHARS_MAX]}#{xxh3_128_hexdigest(whole)}"
    return storable(text)


class Names:
    """Pairs of kind and role, numbered in order of appearance."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.forget()

    def forget(self) -> None:
        """Drop what is remembered, and the counts not yet saved."""
        self.ids: dict[tuple[str, str | None], int] = {}
        self.counts: Counter[int] = Counter()

    def add(self, kind: str, role: str | None) -> int:
        """The number of a pair that is not in ``ids``; a new pair is stored at once."""
        if len(self.ids) >= NAMES_CACHED:
            self.ids.clear()
            self.save()
        stored = (name_text(kind), None if role is None else name_text(role))
        number: int | None = self._db.execute(
            "SELECT id FROM name WHERE kind=? AND role IS ?", stored
        ).get
        if number is None:
            number = BULK.get((kind, role)) if role is not None else None
            if number is None:
                number = self._db.execute("SELECT max(0, coalesce(max(id), 0)) + 1 FROM name").get
            self._db.execute("INSERT INTO name VALUES(?,?,?,0)", (number, *stored))
        if not isinstance(number, int):
            raise apsw.CorruptError(f"{number!r} as the number of a kind")
        self.ids[(kind, role)] = number
        return number

    def save(self) -> None:
        """Add the counts since the last save."""
        self._db.executemany(
            "UPDATE name SET entries = entries + ? WHERE id = ?",
            [(count, number) for number, count in self.counts.items()],
        )
        self.counts.clear()


class UsageTotals:
    """Running totals, added in journal order, so that floats come out the same every time."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._tokens: dict[str, list[int]] = {}
        self._costs: dict[str, float] = {}

    def add(self, category: str, figures: Usage) -> None:
        """Add one entry's figures. What is no number below 2**63 counts as 0."""
        total = self._tokens.get(category)
        if total is None:
            category = name_text(category)
            total = self._tokens.get(category) or self._load(category)
        for place in range(5):
            more = figures[place]
            if isinstance(more, int) and 0 <= more <= INT_MAX:
                total[place] += more
        self._costs[category] = _add_cost(self._costs[category], figures[5])

    def _load(self, category: str) -> list[int]:
        row = self._db.execute(
            "SELECT input, output, cache_read, cache_write, total_tokens, cost"
            " FROM usage WHERE category=?",
            (category,),
        ).get
        *tokens, cost = (0, 0, 0, 0, 0, 0.0) if row is None else row
        self._tokens[category], self._costs[category] = tokens, cost
        return tokens

    def save(self) -> None:
        """Store the totals. Figures are never negative, so stopping at the end is enough."""
        self._db.executemany(
            "INSERT OR REPLACE INTO usage VALUES(?,?,?,?,?,?,?)",
            [
                (category, *(min(tokens, INT_MAX) for tokens in total), self._costs[category])
                for category, total in self._tokens.items()
            ],
        )


def _add_cost(total: float, more: float) -> float:
    try:
        more = float(more)
    except OverflowError:  # an integer beyond all floats
        return total
    if not math.isfinite(more):
        return total
    return max(-COST_MAX, min(total + more, COST_MAX))
