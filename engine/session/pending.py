"""Ids that were appended by this owner and are not in the index yet."""

from __future__ import annotations

from collections.abc import Iterable

from treering.engine.journal.format import Frame


class Pending:
    """The not-yet-indexed ids, oldest first; bounded by the background catch-up.

    ``complete`` is True while these are all ids of the session: then a miss is an answer.
    """

    def __init__(self, *, complete: bool) -> None:
        self.complete = complete
        self._offsets: dict[str, int] = {}

    def has(self, entry_id: str) -> bool:
        """Whether the id is among them."""
        return entry_id in self._offsets

    def knows(self, entry_id: str) -> bool | None:
        """Whether the session has that id; None when the index must be asked."""
        if entry_id in self._offsets:
            return True
        return False if self.complete else None

    def any_known(self, ids: list[str]) -> set[str] | None:
        """Which of the ids the session has; None when the index must be asked as well."""
        if not self.complete:
            return None
        return {entry_id for entry_id in ids if entry_id in self._offsets}

    def note(self, ids: Iterable[str], frames: Iterable[Frame]) -> None:
        """These were acknowledged."""
        for entry_id, frame in zip(ids, frames, strict=True):
            self._offsets[entry_id] = frame.offset

    def drop_below(self, size: int) -> None:
        """The index covers the journal's first ``size`` bytes now."""
        drop = []
        for entry_id, offset in self._offsets.items():
            if offset >= size:
                break
            drop.append(entry_id)
        for entry_id in drop:
            del self._offsets[entry_id]
        if drop:
            self.complete = False
