"""Ids for new entries: short, and checked against everything the session has."""

from __future__ import annotations

from typing import Final

from treering.engine import environment
from treering.engine.session.indexing import Indexer
from treering.engine.session.pending import Pending

_TRIES: Final = 100
_POOL: Final = 256
"""Fresh ids that are checked in one query: one query an append would be its largest cost."""


class FreshIds:
    """A pool of ids that nobody has. The session's lock guards it."""

    def __init__(self, pending: Pending, indexer: Indexer) -> None:
        self._pending = pending
        self._indexer = indexer
        self._pool: list[str] = []

    def take(self, count: int) -> list[str]:
        """8 hex digits each, or UUIDs when nobody can say at once what is taken."""
        if len(self._pool) < count:
            self._refill(max(count, _POOL))
        start = max(len(self._pool) - count, 0)
        taken = self._pool[start:]
        del self._pool[start:]
        return taken + [environment.long_entry_id() for _ in range(count - len(taken))]

    def give_up(self, entry_id: str) -> None:
        """A caller has brought this id itself: it is not fresh any more."""
        if entry_id in self._pool:
            self._pool.remove(entry_id)

    def _refill(self, size: int) -> None:
        for _ in range(_TRIES):
            tried = environment.short_entry_ids(size - len(self._pool))
            taken, complete = self._pending.among(tried)
            indexed = set() if complete else self._indexer.any_known(tried)
            if indexed is None:
                return
            seen = taken.union(indexed, self._pool)
            for entry_id in tried:
                if entry_id not in seen:
                    seen.add(entry_id)
                    self._pool.append(entry_id)
            if len(self._pool) >= size:
                return
