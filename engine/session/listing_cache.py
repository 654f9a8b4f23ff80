"""What a process remembers of files that do not change: bounded, and safe for threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from treering.engine import environment
from treering.engine.limits import MIB

ENTRIES_MAX: Final = 256
CHARS_MAX: Final = 4 * MIB
"""Characters of texts in all that is remembered."""

SETTLED_AFTER_MS: Final = 100
"""A change sooner after another one may leave the same times: file systems tick."""

_Info = TypeVar("_Info")


class Stamp(NamedTuple):
    """What tells two states of a journal, and of what an index remembers of it, apart."""

    journal: tuple[int, ...]
    index_file: tuple[int, ...] | None
    wal: tuple[int, ...] | None

    @property
    def settled(self) -> bool:
        """Whether the next change would show; to be asked at once, before the file is read."""
        now = environment.now_ms()
        stats = (self.journal, self.index_file, self.wal)
        return all(max(stat[-2:]) // 1_000_000 + SETTLED_AFTER_MS < now for stat in stats if stat)


def stamp_of(path: str, index: str | None) -> Stamp | None:
    """The stamp of a journal (a link is followed) and its index file; None when it has gone."""
    journal = _stat(path)
    if journal is None:
        return None
    if index is None:
        return Stamp(journal, None, None)
    return Stamp(journal, _stat(index), _stat(index + "-wal"))


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    # The change time shows what put the modification time back.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(slots=True)
class _Known(Generic[_Info]):
    stamp: Stamp
    info: _Info
    texts: bool
    chars: int
    used_in: int


class InfoCache(Generic[_Info]):
    """Path to row. What this or a later listing used goes last, and never for another of it: a
    listing of more files than there is room for finds a part of them the next time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known[_Info]] = OrderedDict()
        self._chars = 0
        self._listing = 0

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, folder: str, paths: Iterable[str]) -> None:
        """A listing begins: forget files of its folder that are not there any more."""
        there = set(paths)
        with self._lock:
            self._listing += 1
            gone = [p for p in self._known if os.path.dirname(p) == folder and p not in there]
            for path in gone:
                self._forget(path)

    def get(self, path: str, stamp: Stamp, *, texts: bool) -> _Info | None:
        """What is known of a file in this state."""
        with self._lock:
            known = self._known.get(path)
            if known is None or known.stamp != stamp or (texts and not known.texts):
                return None
            known.used_in = self._listing
            self._known.move_to_end(path)
            return known.info

    def put(self, path: str, stamp: Stamp, info: _Info, *, texts: bool, chars: int) -> None:
        """Remember it, if there is room."""
        with self._lock:
            self._forget(path)
            while self._known and not self._has_room(chars):
                oldest = next(iter(self._known))
                if self._known[oldest].used_in == self._listing:
                    return
                self._forget(oldest)
            if self._has_room(chars):
                self._known[path] = _Known(stamp, info, texts, chars, self._listing)
                self._chars += chars

    def _has_room(self, chars: int) -> bool:
        return len(self._known) < ENTRIES_MAX and self._chars + chars <= CHARS_MAX

    def _forget(self, path: str) -> None:
        known = self._known.pop(path, None)
        if known is not None:
            self._chars -= known.chars
