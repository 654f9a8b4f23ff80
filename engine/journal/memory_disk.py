"""A disk in memory, for sessions without a file: nothing of it outlives the process."""

from __future__ import annotations

import errno
import os
import threading

from treering.engine.journal.disk import File, FileStat


class _MemoryStat(FileStat):
    """What a file or folder in memory is, as it was when it was asked."""

    __slots__ = ("_is_folder", "_number", "_size")

    def __init__(self, number: int, size: int, *, is_folder: bool) -> None:
        self._number, self._size, self._is_folder = number, size, is_folder

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def mtime_ns(self) -> int:
        """Nobody looks at times here."""
        return 0

    @property
    def is_regular(self) -> bool:
        """Whether this is a file."""
        return not self._is_folder

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder."""
        return self._is_folder

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode); no real device has number -1."""
        return (-1, self._number)


class _Content:
    """The bytes of one file, whatever its names are."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.holder: MemoryFile | None = None


class MemoryFile:
    """An open descriptor; see :class:`~treering.engine.journal.disk.File`."""

    def __init__(self, content: _Content, lock: threading.Lock) -> None:
        self._content = content
        self._lock = lock

    def pread(self, length: int, offset: int) -> bytes:
        """See :class:`~treering.engine.journal.disk.File`."""
        with self._lock:
            return bytes(self._content.data[offset : offset + length])

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """See :class:`~treering.engine.journal.disk.File`."""
        with self._lock:
            held = self._content.data
            if offset > len(held):
                held += bytes(offset - len(held))
            held[offset : offset + len(data)] = data
            return len(data)

    def fdatasync(self) -> None:
        """Nothing to do: memory is as durable as it will be."""

    def fsync(self) -> None:
        """Nothing to do."""

    def truncate(self, size: int) -> None:
        """See :class:`~treering.engine.journal.disk.File`."""
        with self._lock:
            held = self._content.data
            if size < len(held):
                del held[size:]
            else:
                held += bytes(size - len(held))

    def stat(self) -> FileStat:
        """See :class:`~treering.engine.journal.disk.File`."""
        return _MemoryStat(self._content.number, len(self._content.data), is_folder=False)

    def try_lock(self) -> bool:
        """See :class:`~treering.engine.journal.disk.File`."""
        with self._lock:
            if self._content.holder is None:
                self._content.holder = self
            return self._content.holder is self

    def close(self) -> None:
        """See :class:`~treering.engine.journal.disk.File`."""
        with self._lock:
            if self._content.holder is self:
                self._content.holder = None


class MemoryDisk:
    """A file system in memory; see :class:`~treering.engine.journal.disk.Disk`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, _Content | None] = {"/": None}
        """None stands for a folder."""
        self._count = 0

    def _find(self, path: str) -> _Content | None:
        try:
            return self._names[os.path.normpath(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _free(self, path: str) -> str:
        name = os.path.normpath(path)
        if self._find(os.path.dirname(name)) is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return name

    def _file(self, path: str) -> _Content:
        found = self._find(path)
        if found is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found

    def open(self, path: str, *, write: bool = False) -> File:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        del write
        with self._lock:
            return MemoryFile(self._file(path), self._lock)

    def create(self, path: str) -> File:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            name = self._free(path)
            self._count += 1
            content = self._names[name] = _Content(self._count)
            return MemoryFile(content, self._lock)

    def stat(self, path: str) -> FileStat:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            found = self._find(path)
            if found is None:
                return _MemoryStat(0, 0, is_folder=True)
            return _MemoryStat(found.number, len(found.data), is_folder=False)

    def link(self, source: str, target: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            self._names[self._free(target)] = self._file(source)

    def rename(self, source: str, target: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        old, new = os.path.normpath(source), os.path.normpath(target)
        with self._lock:
            content = self._find(old)
            if old == new:
                return
            if new in self._names:
                if content is None:
                    self._check_empty(new)
                else:
                    self._file(new)
            else:
                self._free(new)
            if content is None:
                if new.startswith(old + "/"):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), target)
                for name in [name for name in self._names if name.startswith(old + "/")]:
                    self._names[new + name[len(old) :]] = self._names.pop(name)
            del self._names[old]
            self._names[new] = content

    def _check_empty(self, path: str) -> None:
        if self._find(path) is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if any(name.startswith(os.path.normpath(path) + "/") for name in self._names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def unlink(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            self._file(path)
            del self._names[os.path.normpath(path)]

    def make_folder(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            self._names[self._free(path)] = None

    def remove_folder(self, path: str) -> None:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            self._check_empty(path)
            del self._names[os.path.normpath(path)]

    def list_folder(self, path: str) -> list[str]:
        """See :class:`~treering.engine.journal.disk.Disk`."""
        with self._lock:
            self._find(path)
            top = os.path.normpath(path).rstrip("/") + "/"
            found = [name[len(top) :] for name in self._names if name.startswith(top)]
            return sorted(name for name in found if name and "/" not in name)

    def sync_folder(self, path: str) -> None:
        """Nothing to do."""
