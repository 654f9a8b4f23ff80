"""The two things that can go wrong with an index."""

from __future__ import annotations

import errno

import apsw


class IndexFault(Exception):
    """The index at ``path`` cannot be used: set it aside and build another one from the journal.

    ``full`` is True when the only thing wrong is a full disk or quota: the rows that are there
    are good, but nothing can be added. ``missing`` is True when there is no file at all.
    ``library`` is True when no file is to blame, but the SQLite that would read it.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        full: bool = False,
        missing: bool = False,
        library: bool = False,
    ) -> None:
        self.path = path
        self.reason = reason
        self.full = full
        self.missing = missing
        self.library = library
        super().__init__(f"index {path}: {reason}")


class IndexBusy(Exception):
    """Another connection held a lock on the index at ``path`` for longer than the busy timeout."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"index {path}: {reason}")


def translate(path: str, error: Exception) -> IndexFault | IndexBusy:
    """The fault that an exception of SQLite, APSW or the operating system stands for."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return IndexBusy(path, reason)
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return IndexFault(path, reason, full=full, missing=error.errno == errno.ENOENT)
    return IndexFault(path, reason, full=isinstance(error, apsw.FullError))
