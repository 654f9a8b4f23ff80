"""Who may write: one exclusive ``flock`` on the journal's own inode.

The lock is on the inode, so every name of the file collides, and any death frees it. The note
beside the index only tells people who holds it; nothing is ever decided by the note.
"""

from __future__ import annotations

import errno
import os
import weakref
from typing import Final

import msgspec

from treering.engine import environment
from treering.engine.errors import (
    Closed,
    NotAJournal,
    Owned,
    SourceChanged,
    TreeringError,
    from_os_error,
)
from treering.engine.journal.disk import Disk, File, FileStat

_REOPEN_TRIES: Final = 16
_NOTE_BYTES_MAX: Final = 4096
_NOTE_TRIES: Final = 5
_NOTE_WAIT_S: Final = 0.002

_NO_JOURNAL_ERRNOS: Final = {
    errno.EISDIR: "it is a directory",
    errno.ENXIO: "it is a FIFO or a socket",
    errno.ELOOP: "it is a loop of symbolic links",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.ENAMETOOLONG: "the name is too long",
}


class OwnerNote(msgspec.Struct, frozen=True):
    """Who took the lock, for the person who is refused."""

    pid: int
    host: str
    boot: str
    started: int
    since: int


_PID_MAX: Final = 2**31 - 1
_SINCE_MAX_MS: Final = 253_402_300_799_999
"""The end of year 9999, the last moment that can be written as a date."""

_locked: weakref.WeakSet[File] = weakref.WeakSet()
"""Every file of this process that holds, or will hold, the lock of a journal."""


def close_in_child(file: File) -> File:
    """Have the file closed in a forked child, which would keep its lock alive otherwise."""
    _locked.add(file)
    return file


class Ownership:
    """The exclusive right to write one journal, as long as this object is open."""

    def __init__(
        self, disk: Disk, path: str, file: File, identity: tuple[int, int], note_path: str | None
    ) -> None:
        self.disk = disk
        self.path = path
        self.file = file
        self.identity = identity
        self._note_path = note_path
        self._noted = False
        self._pid = os.getpid()
        self._open = True
        close_in_child(file)

    @classmethod
    def acquire(cls, disk: Disk, path: str, note_path: str | None = None) -> Ownership:
        """Open the journal for writing and lock it.

        Raises:
            Owned: somebody else holds the lock; says who, since when.
            NotFound, NotAJournal, StorageError, ReadOnly: the file cannot be opened for writing.
        """
        for _ in range(_REOPEN_TRIES):
            file = close_in_child(open_regular(disk, path, write=True))
            try:
                if not file.try_lock():
                    raise _owned(disk, path, note_path)
                # The name may have been given to another file between opening and locking.
                opened = file.stat()
                same = _same_file(disk, path, opened)
            except OSError as error:
                file.close()
                raise from_os_error(error, "lock the journal", path) from error
            except TreeringError:
                file.close()
                raise
            if same:
                owner = cls(disk, path, file, opened.identity, note_path)
                owner.leave_note()
                return owner
            file.close()
        raise SourceChanged("the file is being replaced again and again", path=path)

    @classmethod
    def of_new(
        cls,
        disk: Disk,
        path: str,
        file: File,
        identity: tuple[int, int],
        note_path: str | None = None,
    ) -> Ownership:
        """Own a file that this process has just created and locked."""
        owner = cls(disk, path, file, identity, note_path)
        owner.leave_note()
        return owner

    @property
    def is_open(self) -> bool:
        """Whether the right is still held by this process."""
        return self._open and self._pid == os.getpid()

    def check(self) -> None:
        """Refuse use after close and in a forked child.

        Raises:
            Closed: always a programming error of the caller.
        """
        self.check_process()
        if not self._open:
            raise Closed("the session is closed", path=self.path)

    def check_process(self) -> None:
        """Refuse use in a forked child (before taking any lock: its holder may not exist here).

        Raises:
            Closed: always a programming error of the caller.
        """
        if self._pid != os.getpid():
            raise Closed("the session was opened before a fork; open it again here", path=self.path)

    def check_name(self) -> FileStat:
        """Make sure that the path still leads to the owned file; what it is now.

        Raises:
            SourceChanged: it was replaced, moved or deleted.
        """
        try:
            found = self.disk.stat(self.path)
        except FileNotFoundError:
            raise SourceChanged(
                "the journal was moved or deleted by somebody else; nothing was written",
                path=self.path,
            ) from None
        except OSError as error:
            raise from_os_error(error, "look at the journal", self.path) from error
        if found.identity != self.identity:
            raise SourceChanged(
                "the journal was replaced by another file; nothing was written", path=self.path
            )
        return found

    def release(self) -> None:
        """Give the right back. Idempotent."""
        if not self._open:
            return
        self._open = False
        if self._pid == os.getpid() and self._note_path is not None and self._noted:
            try:
                self.disk.unlink(self._note_path)
            except OSError:
                pass  # the note is advisory; the next owner replaces it
        self.file.close()

    def leave_note(self) -> None:
        """Say beside the index who owns the session; without effect when that is not possible."""
        if self._note_path is None or self._noted:
            return
        note = OwnerNote(
            pid=os.getpid(),
            host=environment.host_name(),
            boot=environment.boot_id(),
            started=environment.process_started_ms(),
            since=environment.now_ms(),
        )
        try:
            try:
                self.disk.unlink(self._note_path)
            except FileNotFoundError:
                pass
            file = self.disk.create(self._note_path)
            try:
                file.pwrite(msgspec.json.encode(note), 0)
            finally:
                file.close()
            self._noted = True
        except OSError:
            pass  # advisory: a missing, full or read-only index folder stops nothing


def open_regular(disk: Disk, path: str, *, write: bool) -> File:
    """Open a plain file, with typed errors for everything else.

    Raises:
        NotAJournal: a directory, FIFO, socket or device.
        NotFound, StorageError, ReadOnly: the system refused.
    """
    try:
        file = disk.open(path, write=write)
    except OSError as error:
        if error.errno in _NO_JOURNAL_ERRNOS:
            raise NotAJournal(_NO_JOURNAL_ERRNOS[error.errno], path=path) from error
        raise from_os_error(error, "open the journal", path) from error
    try:
        found = file.stat()
    except OSError as error:
        file.close()
        raise from_os_error(error, "look at the journal", path) from error
    if not found.is_regular:
        file.close()
        what = "it is a directory" if found.is_folder else "it is not a plain file"
        raise NotAJournal(what, path=path)
    return file


def read_note(disk: Disk, note_path: str) -> OwnerNote | None:
    """The note, or None when there is none that can be read."""
    try:
        file = disk.open(note_path)
        try:
            note = msgspec.json.decode(file.pread(_NOTE_BYTES_MAX, 0), type=OwnerNote)
            plausible = 0 < note.pid <= _PID_MAX and 0 <= note.since <= _SINCE_MAX_MS
            return note if plausible else None
        finally:
            file.close()
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _owned(disk: Disk, path: str, note_path: str | None) -> Owned:
    note = _living_note(disk, note_path) if note_path is not None else None
    if note is None:
        return Owned(
            "another process owns the session", path=path, next_step="close it there first"
        )
    where = "" if _is_here(note) else f" on {note.host}"
    return Owned(
        f"process {note.pid}{where} owns the session since {environment.iso_time(note.since)}",
        path=path,
        holder_pid=note.pid,
        since_ms=note.since,
        next_step="close it there first",
    )


def _living_note(disk: Disk, note_path: str) -> OwnerNote | None:
    """The note, unless its process is dead: the new holder may be about to leave its own."""
    for _ in range(_NOTE_TRIES):
        note = read_note(disk, note_path)
        if note is None or not _is_here(note) or environment.process_exists(note.pid):
            return note
        environment.sleep(_NOTE_WAIT_S)
    return None


def _is_here(note: OwnerNote) -> bool:
    return note.host == environment.host_name() and note.boot == environment.boot_id()


def _same_file(disk: Disk, path: str, opened: FileStat) -> bool:
    try:
        return disk.stat(path).identity == opened.identity
    except FileNotFoundError:
        return False


def _drop_in_child() -> None:
    # Closing the child's descriptor leaves the parent's lock alone (one open file description,
    # two descriptors); LOCK_UN here would release it for both.
    for file in list(_locked):
        file.close()
    _locked.clear()


os.register_at_fork(after_in_child=_drop_in_child)
