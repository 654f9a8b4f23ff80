"""Ids that were appended by this owner and are not in the index yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from treering.engine.journal.format import Frame


class Pending:
    """The not-yet-indexed ids, oldest first; bounded by the background catch-up.

    While they are all ids that the session has, a miss is an answer. Appends add and the
    background thread drops, so a lock of its own guards them; nothing waits while it is held.
    """

    def __init__(self, *, complete: bool) -> None:
        self._complete = complete
        self._offsets: dict[str, int] = {}
        self._lock = threading.Lock()

    def has(self, entry_id: str) -> bool:
        """Whether the id is among them."""
        return entry_id in self._offsets

    def knows(self, entry_id: str) -> bool | None:
        """Whether the session has that id; None when the index must be asked."""
        with self._lock:
            if entry_id in self._offsets:
                return True
            return False if self._complete else None

    def among(self, ids: list[str]) -> tuple[set[str], bool]:
        """Which of the ids are among them, and whether that is the whole answer."""
        with self._lock:
            return {entry_id for entry_id in ids if entry_id in self._offsets}, self._complete

    def note(self, ids: Iterable[str], frames: Iterable[Frame]) -> None:
        """These were acknowledged."""
        with self._lock:
            for entry_id, frame in zip(ids, frames, strict=True):
                self._offsets[entry_id] = frame.offset

    def drop_below(self, size: int) -> None:
        """The index covers the journal's first ``size`` bytes now."""
        with self._lock:
            drop = []
            for entry_id, offset in self._offsets.items():
                if offset >= size:
                    break
                drop.append(entry_id)
            for entry_id in drop:
                self._complete = False
                del self._offsets[entry_id]
