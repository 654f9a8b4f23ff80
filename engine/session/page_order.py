"""The order of sessions in the agents view: a hierarchy, with what runs before what rests.

On each level come running sessions, then idle ones, then those that nobody has open. In each of
these sections empty sessions are last (but for the anchor); among those that nobody has open an
active heartbeat comes first; outside the running ones those with busy descendants come first, then
the newest activity; then the newest creation, the title, the id.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

from treering.index.catalogue import Catalogue, Place, SessionRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRoster:
    """What is known of sessions beside what is stored: ids."""

    running: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    """Open somewhere, and not running."""
    heartbeats: frozenset[str] = frozenset()
    """With an active heartbeat."""
    busy: frozenset[str] = frozenset()
    """With descendants that are busy."""
    anchor: str | None = None
    """The one that the reader came from: it counts as not empty."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """What spawned a child: those of one program stand together."""


def ordered(catalogue: Catalogue, live: LiveRoster) -> list[int]:
    """The numbers of all sessions, each once, parents before their children.

    Sessions whose parents lead in a circle stand where the first of them would without a parent.
    """
    places = catalogue.order()
    levels: dict[int | None, list[Place]] = {}
    for place in places:
        levels.setdefault(place.parent, []).append(place)
    arranged = _Arranged(catalogue, live, levels)
    if len(levels) <= 1 and None in levels:
        return [place.number for place in arranged.level(None)]
    found: dict[int, None] = {}
    _descend(arranged, arranged.level(None), found)
    for place in places:
        if place.number not in found:
            _descend(arranged, [place], found)
    return list(found)


def _descend(arranged: _Arranged, top: list[Place], found: dict[int, None]) -> None:
    stack = [place.number for place in reversed(top)]
    while stack:
        number = stack.pop()
        if number not in found:
            found[number] = None
            stack += [place.number for place in reversed(arranged.level(number))]


class _Arranged:
    """Levels of the hierarchy, which the catalogue gives in the order without a roster."""

    def __init__(
        self, catalogue: Catalogue, live: LiveRoster, levels: dict[int | None, list[Place]]
    ) -> None:
        self._catalogue = catalogue
        self._levels = levels
        named = {*live.running, *live.idle, *live.heartbeats, *live.busy, *live.groups}
        if live.anchor is not None:
            named.add(live.anchor)
        numbers = catalogue.numbers(named)
        self._running = {numbers[one] for one in live.running if one in numbers}
        self._idle = {numbers[one] for one in live.idle if one in numbers}
        self._heartbeats = {numbers[one] for one in live.heartbeats if one in numbers}
        self._busy = {numbers[one] for one in live.busy if one in numbers}
        self._anchor = None if live.anchor is None else numbers.get(live.anchor)
        self._groups = {numbers[one]: name for one, name in live.groups.items() if one in numbers}
        self._is_plain = not numbers

    def level(self, parent: int | None) -> list[Place]:
        """The sessions below one, or at the top, in order."""
        level = self._levels.get(parent, [])
        if self._is_plain or not level:
            return level
        level = self._sorted(level)
        if parent is None or not self._groups:
            return level
        groups: dict[str | None, list[Place]] = {}
        for place in level:
            groups.setdefault(self._groups.get(place.number), []).append(place)
        return [place for group in groups.values() for place in group]

    def _sorted(self, level: list[Place]) -> list[Place]:
        running = [place for place in level if place.number in self._running]
        rows = self._catalogue.rows_of(place.number for place in running)
        running.sort(key=lambda p: (self._is_empty(p), _by_creation(rows[p.number])))
        rest = [place for place in level if place.number not in self._running]
        rest.sort(key=self._rank)  # stable: the rest of the order is there already
        anchor = next((p for p in rest if p.number == self._anchor and p.empty), None)
        if anchor is not None:  # it stood among the empty ones
            rest.remove(anchor)
            self._put_in(rest, anchor)
        return running + rest

    def _put_in(self, level: list[Place], place: Place) -> None:
        rank = self._rank(place)
        low = bisect.bisect_left(level, rank, key=self._rank)
        high = bisect.bisect_right(level, rank, key=self._rank)
        key = self._activity(place)
        level.insert(bisect.bisect_left(level, key, low, high, key=self._activity), place)

    def _activity(self, place: Place) -> tuple[bool, int, tuple[bool, int, str, str]]:
        row = self._catalogue.rows_of([place.number])[place.number]
        return row.active is None, -(row.active or 0), _by_creation(row)

    def _is_empty(self, place: Place) -> bool:
        return bool(place.empty) and place.number != self._anchor

    def _rank(self, place: Place) -> tuple[bool, bool, bool, bool]:
        number = place.number
        inactive = number not in self._idle
        heartbeat = inactive and number in self._heartbeats
        return inactive, self._is_empty(place), not heartbeat, number not in self._busy


def _by_creation(row: SessionRow) -> tuple[bool, int, str, str]:
    return row.created is None, -(row.created or 0), row.title, row.id
