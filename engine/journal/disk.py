"""The few file operations that journals need, as a protocol, and the local implementation.

Everything the engine does to a file of a session goes through here: a test can put a disk that
fails, lies or loses power in its place. Methods raise ``OSError`` as the system call would;
callers turn that into a typed error where they know the path and the purpose.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Protocol

from treering.engine.errors import FULL_ERRNOS
from treering.engine.limits import WRITE_BYTES_MAX

FILE_MODE = 0o600
FOLDER_MODE = 0o700


class FileStat:
    """What identifies a file and tells that it changed.

    A thin view of the system's answer: two are made for every append.
    """

    __slots__ = ("_found",)

    def __init__(self, found: os.stat_result) -> None:
        self._found = found

    @property
    def size(self) -> int:
        """Bytes."""
        return self._found.st_size

    @property
    def mtime_ns(self) -> int:
        """Time of the last change of its content, Unix ns."""
        return self._found.st_mtime_ns

    @property
    def is_regular(self) -> bool:
        """Whether this is a plain file."""
        return stat.S_ISREG(self._found.st_mode)

    @property
    def is_folder(self) -> bool:
        """Whether this is a directory."""
        return stat.S_ISDIR(self._found.st_mode)

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode)."""
        return (self._found.st_dev, self._found.st_ino)


class File(Protocol):
    """One open descriptor."""

    def pread(self, length: int, offset: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Write some of ``data`` and say how many bytes."""
        ...

    def fdatasync(self) -> None:
        """Make the data (and the size) durable."""
        ...

    def fsync(self) -> None:
        """Make data and metadata durable."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file at ``size``."""
        ...

    def stat(self) -> FileStat:
        """The open file, whatever its name is now."""
        ...

    def try_lock(self) -> bool:
        """Take the exclusive lock of the inode; False when somebody else has it."""
        ...

    def close(self) -> None:
        """Close the descriptor (and so drop its lock). Idempotent."""
        ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: str, *, write: bool = False) -> File:
        """Open an existing file; never blocks on a FIFO, never creates."""
        ...

    def create(self, path: str) -> File:
        """Create a new file, mode 0600; FileExistsError when the name is taken."""
        ...

    def stat(self, path: str) -> FileStat:
        """What the name leads to, links followed."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give the file a second name; FileExistsError when it is taken."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder over ``target``, which may be a file or an empty folder.

        A link is renamed itself, wherever it leads.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove the name of a file, or a link; IsADirectoryError for a folder."""
        ...

    def make_folder(self, path: str) -> None:
        """Create one folder, mode 0700; FileExistsError when the name is taken."""
        ...

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...


class LocalFile:
    """A descriptor of the local file system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._locked_by = 0
        """Process that took the lock."""

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`File`."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._descriptor, length - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """See :class:`File`."""
        return os.pwrite(self._descriptor, data, offset)

    def fdatasync(self) -> None:
        """See :class:`File`."""
        _fdatasync(self._descriptor)

    def fsync(self) -> None:
        """See :class:`File`."""
        _fsync(self._descriptor)

    def truncate(self, size: int) -> None:
        """See :class:`File`."""
        os.ftruncate(self._descriptor, size)

    def stat(self) -> FileStat:
        """See :class:`File`."""
        return FileStat(os.fstat(self._descriptor))

    def try_lock(self) -> bool:
        """See :class:`File`."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                return False
            raise
        self._locked_by = os.getpid()
        return True

    def close(self) -> None:
        """See :class:`File`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self._locked_by == os.getpid():
            # A process that was forked a moment ago still has a copy of the descriptor, which
            # would keep the lock. The child itself must not do this: the lock is its parent's.
            with contextlib.suppress(OSError):  # closing drops it as well
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        _close(descriptor)

    def __del__(self) -> None:
        # A forgotten descriptor would keep its lock for the life of the process.
        self.close()


class LocalDisk:
    """The local POSIX file system."""

    def open(self, path: str, *, write: bool = False) -> LocalFile:
        """See :class:`Disk`."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        return LocalFile(os.open(path, flags))

    def create(self, path: str) -> LocalFile:
        """See :class:`Disk`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return LocalFile(os.open(path, flags, FILE_MODE))

    def stat(self, path: str) -> FileStat:
        """See :class:`Disk`."""
        return FileStat(os.stat(path))

    def link(self, source: str, target: str) -> None:
        """See :class:`Disk`."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """See :class:`Disk`."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """See :class:`Disk`."""
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        """See :class:`Disk`."""
        os.mkdir(path, FOLDER_MODE)

    def remove_folder(self, path: str) -> None:
        """See :class:`Disk`."""
        os.rmdir(path)

    def list_folder(self, path: str) -> list[str]:
        """See :class:`Disk`."""
        return sorted(os.listdir(path))

    def sync_folder(self, path: str) -> None:
        """See :class:`Disk`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(descriptor)
        finally:
            _close(descriptor)


LOCAL_DISK = LocalDisk()


def write_all(file: File, data: bytes, offset: int) -> None:
    """Write every byte; a short write is continued, a write without progress is an error."""
    view = memoryview(data)
    while view:
        written = file.pwrite(view, offset)
        if written <= 0 or written > len(view):
            raise OSError(errno.EIO, f"a write of {len(view)} bytes stored {written}")
        view = view[written:]
        offset += written


def put_whole(disk: Disk, temporary: str, path: str, data: bytes) -> None:
    """Put a small file under a name, whole or not at all, in the place of what has it; the caller
    makes the name durable. Both names are in one folder.

    Raises:
        OSError: it has not got the name. (What is left under the temporary one, if anything, is
            for the caller's next sweep: the error that led here is the one to report.)
    """
    file = disk.create(temporary)
    try:
        try:
            write_all(file, data, 0)
            file.fsync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise


def cut_off(file: File, size: int) -> None:
    """Cut a file to ``size`` bytes, durably, and wipe what is cut off before.

    Whole frames may be among it. Where a file system shows what freed blocks held (FAT, ext2, ext4
    with ``data=writeback``), a later append that a power cut loses could leave them at their place
    in the history, and nothing in them would tell. Where overwriting needs free space and there
    is none, no such blocks show: the cut is enough then.

    Raises:
        OSError: it is not known to be cut.
    """
    at, end = size, file.stat().size
    try:
        while at < end:
            write_all(file, bytes(min(end - at, WRITE_BYTES_MAX)), at)
            at = min(end, at + WRITE_BYTES_MAX)
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
    if at > size:
        file.fdatasync()
    file.truncate(size)
    file.fdatasync()


def make_folders(disk: Disk, path: str, top: str) -> None:
    """Create ``path`` and what is missing above it, mode 0700, and sync every folder up to ``top``.

    Folders are synced whoever made them: another process may have created one a moment ago and
    died before its own sync.
    """
    path, top = os.path.abspath(path), os.path.abspath(top)
    missing: list[str] = []
    folder = path
    while not _folder_exists(disk, folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        # Another process may be making the same folder; whoever wins, it is there.
        with contextlib.suppress(FileExistsError):
            disk.make_folder(folder)
    sync_folders(disk, path, top)
    for folder in missing:
        if not _is_below(folder, top):
            disk.sync_folder(os.path.dirname(folder))


def sync_folders(disk: Disk, path: str, top: str) -> None:
    """Sync ``path`` and every folder above it up to ``top``, and the one that ``top`` lies in.

    The name of ``top`` is in that last one: whoever made it may have died before syncing it. It
    need not be ours: where it cannot be opened, its owner's care has to do.
    """
    disk.sync_folder(path)
    while _is_below(path, top):
        path = os.path.dirname(path)
        disk.sync_folder(path)
    if path == top and os.path.dirname(top) != top:
        try:
            disk.sync_folder(os.path.dirname(top))
        except PermissionError:
            pass


def _folder_exists(disk: Disk, path: str) -> bool:
    try:
        found = disk.stat(path)
    except FileNotFoundError:
        return False
    if not found.is_folder:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return True


def _is_below(path: str, top: str) -> bool:
    return path != top and path.startswith(top.rstrip("/") + "/")


def _close(descriptor: int) -> None:
    """Close; what the system says about it changes nothing.

    Whatever has to be durable was synced before, with that sync's own answer, and the descriptor
    is gone in any case. An error from here would call something failed that is done.
    """
    with contextlib.suppress(OSError):
        os.close(descriptor)


_FULL_FSYNC = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: a plain fsync leaves the data in the drive's cache."""


def _fsync(descriptor: int) -> None:
    if _FULL_FSYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_FSYNC)


def _fdatasync(descriptor: int) -> None:
    if _FULL_FSYNC is None:
        os.fdatasync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_FSYNC)
