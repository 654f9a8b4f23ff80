"""A disk in memory behind the file operations of the engine, which can lose power.

It implements :class:`treering.engine.journal.disk.Disk`. What it is told is in a
:class:`~treering.fuzz.volume.Volume`; an observer hears of every operation that changes something.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from treering.engine.journal.disk import FileStat
from treering.fuzz.volume import FileNode, FolderNode, Image, SyncFailure, Volume

Node = FileNode | FolderNode

Observer = Callable[[str], None]
"""Hears of an operation that was done, in words."""


class SimStat(FileStat):
    """What a file or folder of a simulated disk is."""

    __slots__ = ("_node", "_size")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._size = len(node.data) if isinstance(node, FileNode) else 0

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def mtime_ns(self) -> int:
        """Time of the last change of its content, Unix ns."""
        return self._node.mtime_ns

    @property
    def is_regular(self) -> bool:
        """Whether this is a plain file."""
        return isinstance(self._node, FileNode)

    @property
    def is_folder(self) -> bool:
        """Whether this is a directory."""
        return isinstance(self._node, FolderNode)

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode)."""
        return (1, self._node.number)


class SimDisk:
    """A file system in memory. Absolute paths only; everything below ``/`` is its own."""

    def __init__(self, image: Image | None = None) -> None:
        self.volume = Volume() if image is None else Volume.of(image)
        self.observer: Observer | None = None
        self.sync_failure: SyncFailure = "dropped"
        self._locks: dict[int, SimFile] = {}
        self.now_ns = 1_700_000_000_000_000_000

    def done(self, what: str) -> None:
        """Tell the observer that something was changed or synced."""
        if self.observer is not None:
            self.observer(what)

    def open(self, path: str, *, write: bool = False) -> SimFile:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        node = self.volume.find(path)
        if write and isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return SimFile(self, path, node, writable=write)

    def create(self, path: str) -> SimFile:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        node = self.volume.add_file(path)
        node.mtime_ns = self.now_ns
        self.done(f"create {path}")
        return SimFile(self, path, node, writable=True)

    def stat(self, path: str) -> FileStat:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        return SimStat(self.volume.find(path))

    def link(self, source: str, target: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        node = self.volume.find(source)
        self.volume.place_of_new(target)
        if isinstance(node, FolderNode):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source)
        self.volume.add_name(target, node)
        self.done(f"link {source} {target}")

    def rename(self, source: str, target: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        self.volume.rename(source, target)
        self.done(f"rename {source} {target}")

    def unlink(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        self.volume.remove_name(path)
        self.done(f"unlink {path}")

    def make_folder(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        self.volume.add_folder(path)
        self.done(f"mkdir {path}")

    def remove_folder(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        self.volume.remove_folder(path)
        self.done(f"rmdir {path}")

    def list_folder(self, path: str) -> list[str]:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        return sorted(self.volume.folder(path).names)

    def sync_folder(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        self.volume.sync_folder(path)
        self.done(f"sync {path}/")

    def read_file(self, path: str) -> bytes:
        """All bytes of a file, as any process would read them now."""
        return bytes(self.volume.file(path).data)

    def exists(self, path: str) -> bool:
        """Whether the path leads to something."""
        try:
            self.volume.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def take_lock(self, node: Node, holder: SimFile) -> bool:
        """Give the lock of a file to one open descriptor."""
        return self._locks.setdefault(node.number, holder) is holder

    def drop_all_locks(self) -> None:
        """Every process has ended: nobody holds a lock any more."""
        self._locks.clear()

    def drop_lock(self, node: Node, holder: SimFile) -> None:
        """What closing a descriptor does to its lock."""
        if self._locks.get(node.number) is holder:
            del self._locks[node.number]


class SimFile:
    """An open descriptor of a simulated disk. Opened for reading it may be one of a folder."""

    def __init__(self, disk: SimDisk, path: str, node: Node, *, writable: bool) -> None:
        self._disk, self._path, self._node, self._writable = disk, path, node, writable
        self._open = True

    def _check(self) -> Node:
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._node

    def _file(self) -> FileNode:
        node = self._check()
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
        return node

    def _writable_file(self, number: int) -> FileNode:
        if not self._writable:
            raise OSError(number, os.strerror(number), self._path)
        return self._file()

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`~treering.engine.journal.disk.File`."""
        return bytes(self._file().data[offset : offset + length])

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """See :class:`~treering.engine.journal.disk.File`."""
        node = self._writable_file(errno.EBADF)
        node.write(bytes(data), offset)
        node.mtime_ns = self._disk.now_ns
        self._disk.done(f"write {self._path} {offset}+{len(data)}")
        return len(data)

    def fdatasync(self) -> None:
        """See :class:`~treering.engine.journal.disk.File`."""
        node = self._check()
        if isinstance(node, FolderNode):
            self._disk.sync_folder(self._path)
            return
        node.sync()
        self._disk.done(f"sync {self._path}")

    def fsync(self) -> None:
        """See :class:`~treering.engine.journal.disk.File`. The name is not part of it."""
        self.fdatasync()

    def fail_sync(self) -> None:
        """What a sync of this file that fails does to it."""
        self._file().fail_sync(self._disk.sync_failure)
        self._disk.done(f"failed sync {self._path}")

    def truncate(self, size: int) -> None:
        """See :class:`~treering.engine.journal.disk.File`."""
        node = self._writable_file(errno.EINVAL)
        node.truncate(size)
        node.mtime_ns = self._disk.now_ns
        self._disk.done(f"truncate {self._path} {size}")

    def stat(self) -> FileStat:
        """See :class:`~treering.engine.journal.disk.File`."""
        return SimStat(self._check())

    def try_lock(self) -> bool:
        """See :class:`~treering.engine.journal.disk.File`."""
        return self._disk.take_lock(self._check(), self)

    def close(self) -> None:
        """See :class:`~treering.engine.journal.disk.File`."""
        if self._open:
            self._open = False
            self._disk.drop_lock(self._node, self)
