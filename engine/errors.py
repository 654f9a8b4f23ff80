"""Every error of the engine, one small tree.

An error is written for the person who reads it: what happened, where (file, offset or id), and
what to do next. The fields carry the same facts for programs. ``exit_code`` is what the command
line returns for it: 1 damage or refusal found and reported, 2 usage, 3 could not run.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from treering.engine.journal.recovery import Report

FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What a system call says that finds no room."""


class TreeringError(Exception):
    """Base of all errors that the engine raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        next_step: str | None = None,
    ) -> None:
        self.what = what
        self.path = None if path is None else os.fspath(path)
        self.offset = offset
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        where = "" if self.path is None else f"{_one_line(self.path)}: "
        at = "" if self.offset is None else f" (offset {self.offset})"
        then = "" if self.next_step is None else f"; {self.next_step}"
        return f"{where}{_one_line(self.what)}{at}{then}"


def _one_line(text: str) -> str:
    """The text with control characters escaped, so that no file name can forge a second line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class NotFound(TreeringError):
    """No session, entry or file of that name."""


class Invalid(TreeringError):
    """The caller's input cannot be used; nothing was written."""


class InvalidId(Invalid):
    """A session or entry id that is not allowed: it could leave the store or confuse two files."""


class InvalidEntry(Invalid):
    """An entry that cannot be admitted: not JSON, NaN, a lone surrogate, a forged member."""


class InvalidSource(Invalid):
    """An import source that is refused; no destination was created."""


class InvalidContextEpoch(TreeringError):
    """A compaction says that it is a context epoch and cannot be used as one: it is refused, not
    passed over, because what the model saw is not known without it."""


class LimitExceeded(TreeringError):
    """A documented limit would be exceeded. A limit refuses whole; it never clips."""

    def __init__(
        self,
        what: str,
        *,
        limit: int,
        need: int | None = None,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(what, path=path, offset=offset, next_step=next_step)
        self.limit = limit
        self.need = need


class Owned(TreeringError):
    """Another process (or another handle of this one) owns the session."""

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str] | None = None,
        holder_pid: int | None = None,
        since_ms: int | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(what, path=path, next_step=next_step)
        self.holder_pid = holder_pid
        self.since_ms = since_ms


class ReadOnly(TreeringError):
    """The handle is a read-only view, or the file system does not allow writing."""

    exit_code = 3


class Unsupported(TreeringError):
    """A version, feature, kind or file system that this release does not handle."""


class NotAJournal(TreeringError):
    """Case G: zero bytes, no frame at all, a directory, a FIFO, or another format."""


class Damaged(TreeringError):
    """Cases B, C and F (E for a strict opener): bytes do not verify. Nothing was changed."""

    def __init__(
        self,
        what: str,
        *,
        report: Report | None = None,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(what, path=path, offset=offset, next_step=next_step)
        self.report = report


class AcknowledgedDataLost(Damaged):
    """Case D: a watermark proves that acknowledged frames are gone."""


class Undecodable(Damaged):
    """A frame verifies but its payload cannot be produced (lost BLOB or DICTIONARY, bad zstd)."""


class OutcomeUnknown(TreeringError):
    """A write or sync failed half way: the entries may or may not be durable.

    ``entry_ids`` says what to look up after :meth:`Session.recover`.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        entry_ids: tuple[str, ...] = (),
        path: str | os.PathLike[str] | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(what, path=path, next_step=next_step)
        self.entry_ids = entry_ids


class Poisoned(OutcomeUnknown):
    """The writer refuses everything since an earlier failure whose outcome is unknown."""


class StorageFull(TreeringError):
    """No space, quota or file-size limit. The write was cut off and nothing was acknowledged."""

    exit_code = 3


class StorageError(TreeringError):
    """The operating system refused a file operation (permission, I/O error, too many files)."""

    exit_code = 3


class SourceChanged(TreeringError):
    """A file changed under us: the import source shrank, the journal was replaced or grew."""


class Conflict(TreeringError):
    """The same id with other bytes, or a compare-and-swap that lost."""


class Ambiguous(TreeringError):
    """A selector that fits more than one session."""

    def __init__(
        self, what: str, *, candidates: tuple[str, ...] = (), next_step: str | None = None
    ) -> None:
        super().__init__(what, next_step=next_step)
        self.candidates = candidates


class Closed(TreeringError):
    """The handle was closed, or belongs to the process before a fork."""


def from_os_error(error: OSError, doing: str, path: str | os.PathLike[str]) -> TreeringError:
    """The typed error for a failed system call; the caller raises it ``from`` the original."""
    reason = error.strerror or str(error)
    what = f"cannot {doing}: {reason}"
    if error.errno == errno.ENOENT:
        return NotFound(what, path=path)
    if error.errno in FULL_ERRNOS:
        return StorageFull(what, path=path, next_step="free some space and try again")
    if error.errno == errno.EROFS:
        return ReadOnly(what, path=path)
    if error.errno in (errno.EACCES, errno.EPERM):
        return StorageError(what, path=path, next_step="check owner and mode of file and folder")
    return StorageError(what, path=path)
