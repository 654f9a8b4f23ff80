"""The files of an index in a simulated volume: SQLite writes real files, and each call is mirrored.

SQLite cannot run on a simulated disk (its shared memory is real), so its files are real ones in a
folder of their own, in memory where the system has such a place. A VFS below SQLite's checksums
mirrors every write, size, sync and name into the volume of a :class:`SimDisk`, where it can be
lost like everything else; a crash is put back by writing the files of an image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import apsw

from treering.engine import environment
from treering.fuzz.adversary.faulty_vfs import forget_checksums
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import FileNode
from treering.index import files, handle, schema

NAME: Final = "treering-mirror"
MEMORY: Final = "/dev/shm"


class Mirror:
    """The real folder of index files, and the disk that it is mirrored into at the moment."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.index = os.path.join(top, "session-index")
        self.disk = SimDisk()

    def attach(self, disk: SimDisk) -> None:
        """From now on mirror into this disk; the real files become what it holds."""
        self.disk = disk
        apsw.randomness(0)  # SQLite asks the VFS for a new seed
        shutil.rmtree(self.index, ignore_errors=True)
        if not disk.exists(self.index):
            return
        os.mkdir(self.index, 0o700)
        for name in disk.list_folder(self.index):
            node = disk.volume.find(f"{self.index}/{name}")
            if isinstance(node, FileNode) and not name.endswith((".owner.json", "-shm")):
                with open(f"{self.index}/{name}", "wb") as file:
                    file.write(node.data)

    def node(self, path: str) -> FileNode | None:
        """The mirrored file of a path, None where there is none (shared memory, other folders)."""
        if not path.startswith(self.index + "/") or not self.disk.exists(path):
            return None
        node = self.disk.volume.find(path)
        return node if isinstance(node, FileNode) else None

    def created(self, path: str) -> bool:
        """A file was created; whether it is one that is mirrored."""
        if not path.startswith(self.index + "/") or self.disk.exists(path):
            return False
        self.disk.volume.add_file(path)
        self.disk.done(f"create {path}")
        return True


class _MirrorVFS(apsw.VFS):
    def __init__(self, below: str, mirror: Mirror) -> None:
        self._below, self._mirror = below, mirror
        super().__init__(NAME, below)

    def xRandomness(self, count: int) -> bytes:  # noqa: N802
        """The salts of a log are bytes of a state: the same in every run."""
        return environment.random_bytes(count)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's name)
        """A file whose calls are mirrored."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        opened = _MirrorFile(self._below, name, flags, self._mirror, path)
        if path is not None and flags[0] & apsw.SQLITE_OPEN_CREATE and self._mirror.created(path):
            # As the unix VFS: a log that SQLite makes is synced with its name, the first time.
            opened.name_is_due = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        return opened

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802 (SQLite's interface)
        """A name that goes."""
        super().xDelete(name, sync)
        if self._mirror.node(name) is not None:
            self._mirror.disk.unlink(name)
            if sync:
                self._mirror.disk.sync_folder(self._mirror.index)


class _MirrorFile(apsw.VFSFile):
    def __init__(
        self, below: str, name: Any, flags: list[int], mirror: Mirror, path: str | None
    ) -> None:
        self._mirror, self._path = mirror, path or ""
        self.name_is_due = False
        super().__init__(below, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """Mirrored."""
        super().xWrite(data, offset)
        node = self._mirror.node(self._path)
        if node is not None:
            node.write(bytes(data), offset)
            self._mirror.disk.done(f"write {self._path} {offset}+{len(data)}")

    def xTruncate(self, size: int) -> None:  # noqa: N802
        """Mirrored."""
        super().xTruncate(size)
        node = self._mirror.node(self._path)
        if node is not None:
            node.truncate(size)
            self._mirror.disk.done(f"truncate {self._path} {size}")

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Mirrored."""
        super().xSync(flags)
        node = self._mirror.node(self._path)
        if node is not None:
            node.sync()
            self._mirror.disk.done(f"sync {self._path}")
            if self.name_is_due:
                self.name_is_due = False
                self._mirror.disk.sync_folder(self._mirror.index)


class _MirrorOs:
    """The module ``os`` for the files of an index: names are mirrored, inodes are the volume's."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Mirrored where it creates."""
        descriptor = os.open(path, flags, mode)
        self._paths[descriptor] = path
        if flags & os.O_CREAT:
            self._mirror.created(path)
        return descriptor

    def close(self, descriptor: int) -> None:
        """As ever."""
        self._paths.pop(descriptor, None)
        os.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        """Mirrored."""
        path = self._paths[descriptor]
        node = self._mirror.node(path)
        if node is not None:
            node.sync()
            self._mirror.disk.done(f"sync {path}")
        elif self._mirror.disk.exists(path):
            self._mirror.disk.sync_folder(path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """The folder may be in the volume already, made for the owner's note."""
        os.mkdir(path, mode)
        if not self._mirror.disk.exists(path):
            self._mirror.disk.make_folder(path)

    def link(self, source: str, target: str, **more: Any) -> None:
        """Mirrored."""
        os.link(source, target, **more)
        self._mirror.disk.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Mirrored."""
        os.rename(source, target)
        if self._mirror.node(source) is not None:
            self._mirror.disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Mirrored."""
        os.unlink(path)
        if self._mirror.node(path) is not None:
            self._mirror.disk.unlink(path)

    def lstat(self, path: str) -> os.stat_result:
        """With the inode of the volume: a file that a crash left is still the same file."""
        found = os.lstat(path)
        node = self._mirror.node(path)
        if node is None:
            return found
        return os.stat_result((found.st_mode, node.number, *found[2:]))


@contextlib.contextmanager
def mirrored() -> Iterator[Mirror]:
    """Inside, every index of a store below the mirror's top is mirrored into its disk."""
    parent = MEMORY if os.path.isdir(MEMORY) else None
    top = tempfile.mkdtemp(prefix="treering-", dir=parent)
    mirror = Mirror(top)
    modules: tuple[Any, ...] = (files, handle, schema)
    below = apsw.vfs_names()[0]
    forget_checksums()
    vfs = _MirrorVFS(below, mirror)
    apsw.set_default_vfs(NAME)
    proxy = _MirrorOs(mirror)
    try:
        schema.checksum_vfs()
        for module in modules:
            module.os = proxy
        yield mirror
    finally:
        for module in modules:
            module.os = os
        apsw.set_default_vfs(below)
        forget_checksums()
        vfs.unregister()
        schema.checksum_vfs()
        shutil.rmtree(top, ignore_errors=True)


def folders_of(path: str) -> Iterator[str]:
    """A path's folders from the top down, itself included."""
    parts = [part for part in path.split("/") if part]
    for count in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:count])
