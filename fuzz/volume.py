"""A volume as a power failure sees it: what is durable, what is only cached, what may survive.

Every sector of 512 bytes, every size and every name has a durable state and, since the last
completed sync of its file or folder, later ones. A crash may keep any of them, each independently
of the others: writes are lost, kept, torn inside a sector or reordered; names likewise. Three rules
only are granted: a write changes no byte outside its own range; a rename never loses the file
(its old name is gone only where the new one is there); a renamed folder has one of its two names,
never both or none (no file system that is mounted again shows a folder twice).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple

SECTOR_BYTES: Final = 512
ROOT: Final = 1
"""Number of the root folder."""

SIZES_BETWEEN_MAX: Final = 4
"""Sector boundaries that are tried as the size of a file whose growth was under way."""

SyncFailure = Literal["dropped", "kept", "reverted"]
"""What a failed sync does to the cache. ``dropped``: the pages count as clean, and nobody writes
them again (ext4). ``kept``: they stay dirty, a later sync writes them. ``reverted``: they are
forgotten, and the old bytes show again (Btrfs)."""


@dataclass
class FileNode:
    """One file: its cached bytes, its durable bytes, and what may have reached the device."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    """Later states of a sector, oldest first; shorter than a sector at the end of the file."""
    dirty: set[int] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)
    size_dirty: bool = False
    former: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """What the device may still hold of a sector from before the file was cut, oldest first."""
    mtime_ns: int = 0

    def sector(self, index: int) -> bytes:
        """The cached bytes of a sector."""
        return bytes(self.data[index * SECTOR_BYTES : (index + 1) * SECTOR_BYTES])

    def durable_sector(self, index: int) -> bytes:
        """The durable bytes of a sector."""
        return self.durable[index * SECTOR_BYTES : (index + 1) * SECTOR_BYTES]

    def former_sectors(self, index: int) -> list[bytes]:
        """The durable bytes of a sector and, behind them, what may be left from before a cut."""
        durable = self.durable_sector(index)
        return [durable + former[len(durable) :] for former in self.former.get(index, ())]

    def write(self, data: bytes, offset: int) -> None:
        """Change the cached bytes; a gap before them reads as zeros."""
        if not data:
            return
        old_size, end = len(self.data), offset + len(data)
        if end > old_size:
            self.data += bytes(end - old_size)
        self.data[offset:end] = data
        first = min(offset, old_size) // SECTOR_BYTES if end > old_size else offset // SECTOR_BYTES
        self._touch(first, (end - 1) // SECTOR_BYTES)
        if end > old_size:
            self._resize(old_size, end)

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        old_size = len(self.data)
        if size == old_size:
            return
        if size < old_size:
            del self.data[size:]
        else:
            self.data += bytes(size - old_size)
        low, high = sorted((old_size, size))
        self._touch(low // SECTOR_BYTES, (high - 1) // SECTOR_BYTES)
        self._resize(old_size, size)

    def _touch(self, first: int, last: int) -> None:
        for index in range(first, last + 1):
            content = self.sector(index)
            known = self.versions.setdefault(index, [])
            if (known[-1] if known else self.durable_sector(index)) != content:
                known.append(content)
            self.dirty.add(index)

    def _resize(self, old: int, new: int) -> None:
        low, high = sorted((old, new))
        inner = range((low // SECTOR_BYTES + 1) * SECTOR_BYTES, high, SECTOR_BYTES)
        step = max(1, -(-len(inner) // SIZES_BETWEEN_MAX))
        self.sizes += [*inner[::step], new]
        self.size_dirty = True

    def sync(self) -> None:
        """A completed sync: what is dirty is durable. Pages that a failed sync dropped are not."""
        end = len(self.data)
        reached = max((min((index + 1) * SECTOR_BYTES, end) for index in self.dirty), default=0)
        size = end if self.size_dirty or not self.sizes else max(len(self.durable), reached)
        if size == end:
            self.sizes.clear()
        content = bytearray(self.durable[:size].ljust(size, b"\0"))
        for index in self.dirty:
            start = index * SECTOR_BYTES
            piece = self.sector(index)[: max(0, size - start)]
            content[start : start + len(piece)] = piece
            self._leave_behind(index, piece)
            self.versions.pop(index, None)
        self.durable = bytes(content)
        self.dirty.clear()
        self.size_dirty = False
        for index in [index for index, known in self.versions.items() if not known]:
            del self.versions[index]

    def _leave_behind(self, index: int, piece: bytes) -> None:
        """A cut frees what the device holds and does not wipe it; a write does."""
        durable = self.durable_sector(index)
        former = () if len(piece) > len(durable) else self.former.get(index, ())
        reached = (*former, durable, *self.versions.get(index, ()))
        longer = tuple(dict.fromkeys(data for data in reached if len(data) > len(piece)))
        if longer:
            self.former[index] = longer
        else:
            self.former.pop(index, None)

    def fail_sync(self, model: SyncFailure) -> None:
        """A sync that failed."""
        if model == "kept":
            return
        self.dirty.clear()
        self.size_dirty = False
        if model == "reverted":
            self.data = bytearray(self.durable)
            self.versions.clear()
            self.sizes.clear()

    def evict(self) -> None:
        """Memory pressure: clean pages are dropped, and the bytes of the device show again."""
        for index in [index for index in self.versions if index not in self.dirty]:
            start = index * SECTOR_BYTES
            piece = self.durable_sector(index).ljust(SECTOR_BYTES, b"\0")
            room = min(SECTOR_BYTES, max(0, len(self.data) - start))
            self.data[start : start + room] = piece[:room]
            del self.versions[index]


@dataclass
class Rename:
    """A rename that is not durable yet: where the source is gone, the target is there."""

    source: tuple[int, str]
    source_version: int
    target: tuple[int, str]
    target_version: int
    of_folder: bool = False
    """Then, too: where the target is there, the source is gone."""


@dataclass
class FolderNode:
    """One folder: its names now, the durable ones, and the later states of each name."""

    number: int
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    versions: dict[str, list[int | None]] = field(default_factory=dict)
    mtime_ns: int = 0

    def set(self, name: str, number: int | None) -> int:
        """Give the name to another node, or to none; which version of the name that makes."""
        if number is None:
            del self.names[name]
        else:
            self.names[name] = number
        known = self.versions.setdefault(name, [])
        known.append(number)
        return len(known)


class Volume:
    """Files and folders of one device."""

    def __init__(self) -> None:
        self.files: dict[int, FileNode] = {}
        self.folders: dict[int, FolderNode] = {ROOT: FolderNode(ROOT)}
        self.renames: list[Rename] = []
        self._next = ROOT + 1

    @classmethod
    def of(cls, image: Image) -> Volume:
        """A volume on which exactly this is durable, and nothing is under way."""
        volume = cls()
        volume.folders = {n: FolderNode(n, dict(e), dict(e)) for n, e in image.folders.items()}
        volume.files = {n: FileNode(n, bytearray(d), d) for n, d in image.files.items()}
        volume._next = max([*image.folders, *image.files]) + 1
        return volume

    def find(self, path: str) -> FileNode | FolderNode:
        """The node of a path.

        Raises:
            FileNotFoundError, NotADirectoryError: as the system would.
        """
        node: FileNode | FolderNode = self.folders[ROOT]
        for name in _parts(path):
            if not isinstance(node, FolderNode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            number = node.names.get(name)
            if number is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = self.folders.get(number) or self.files[number]
        return node

    def file(self, path: str) -> FileNode:
        """The file of a path.

        Raises:
            IsADirectoryError and what :meth:`find` raises.
        """
        node = self.find(path)
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def folder(self, path: str) -> FolderNode:
        """The folder of a path; raises as the system would."""
        node = self.find(path)
        if isinstance(node, FileNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def place(self, path: str) -> tuple[FolderNode, str]:
        """The folder that a path lies in, and its last name."""
        return self.folder(os.path.dirname(path)), os.path.basename(path)

    def place_of_new(self, path: str) -> tuple[FolderNode, str]:
        """:meth:`place` of a name that is free.

        Raises:
            FileExistsError and what :meth:`find` raises.
        """
        folder, name = self.place(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return folder, name

    def add_file(self, path: str) -> FileNode:
        """A new, empty file under a free name."""
        folder, name = self.place_of_new(path)
        node = FileNode(self._take())
        self.files[node.number] = node
        folder.set(name, node.number)
        return node

    def add_folder(self, path: str) -> FolderNode:
        """A new, empty folder under a free name."""
        folder, name = self.place_of_new(path)
        node = FolderNode(self._take())
        self.folders[node.number] = node
        folder.set(name, node.number)
        return node

    def add_name(self, path: str, node: FileNode) -> None:
        """A further name of a file."""
        folder, name = self.place_of_new(path)
        folder.set(name, node.number)

    def remove_name(self, path: str) -> None:
        """Take a file's name away."""
        self.file(path)
        folder, name = self.place(path)
        folder.set(name, None)

    def remove_folder(self, path: str) -> None:
        """Take an empty folder's name away."""
        self._check_empty(path)
        folder, name = self.place(path)
        folder.set(name, None)

    def _check_empty(self, path: str) -> None:
        if self.folder(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def rename(self, source: str, target: str) -> None:
        """Move a file over whatever file has the target name, a folder over an empty one."""
        from_folder, from_name = self.place(source)
        to_folder, to_name = self.place(target)
        node = self.find(source)
        if to_folder.names.get(to_name) == node.number:
            return  # two names of one file: nothing happens, as the system has it
        of_folder = isinstance(node, FolderNode)
        if of_folder and f"{target}/".startswith(f"{source}/"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), target)
        if to_name in to_folder.names:
            if of_folder:
                self._check_empty(target)
            else:
                self.file(target)
        target_version = to_folder.set(to_name, node.number)
        source_version = from_folder.set(from_name, None)
        self.renames.append(
            Rename(
                (from_folder.number, from_name),
                source_version,
                (to_folder.number, to_name),
                target_version,
                of_folder,
            )
        )

    def sync_folder(self, path: str) -> None:
        """A completed sync of a folder: its names are durable."""
        folder = self.folder(path)
        for rename in self.renames:
            here, there = rename.source[0], rename.target[0]
            if here == there:
                continue
            if folder.number == here:
                self._settle_name(rename.target, rename.target_version)
            elif folder.number == there and rename.of_folder:
                self._settle_name(rename.source, rename.source_version)
        self.renames = [r for r in self.renames if folder.number not in (r.source[0], r.target[0])]
        folder.durable = dict(folder.names)
        folder.versions.clear()

    def _settle_name(self, place: tuple[int, str], version: int) -> None:
        """One side of a rename is durable, so the other one is: the old name gone, the new there,
        or (of a folder) the other way round.
        """
        number, name = place
        folder = self.folders[number]
        known = folder.versions[name]
        settled = known[version - 1]
        if settled is None:
            folder.durable.pop(name, None)
        else:
            folder.durable[name] = settled
        # Later versions keep their numbers: the settled one stands in for all before it.
        known[: version - 1] = [settled] * (version - 1)

    def lost(self) -> Image:
        """What the worst crash leaves now: only what is durable."""
        files = {number: file.durable for number, file in self.files.items()}
        return Image(files, {number: dict(f.durable) for number, f in self.folders.items()})

    def cached(self) -> Image:
        """What every process sees now: what is left when only processes die."""
        files = {number: bytes(file.data) for number, file in self.files.items()}
        return Image(files, {number: dict(f.names) for number, f in self.folders.items()})

    def settle(self) -> None:
        """Make everything durable, as a clean shutdown does."""
        for file in self.files.values():
            file.dirty.update(file.versions)
            file.size_dirty = True
            file.sync()
        for folder in self.folders.values():
            folder.durable = dict(folder.names)
            folder.versions.clear()
        self.renames.clear()

    def _take(self) -> int:
        number, self._next = self._next, self._next + 1
        return number


class Image(NamedTuple):
    """What one crash left: durable files and folders by number."""

    files: dict[int, bytes]
    folders: dict[int, dict[str, int]]

    def paths(self) -> Iterator[tuple[str, int]]:
        """Every path that can be reached, in order, and its number."""
        yield from self._below("", ROOT)

    def _below(self, prefix: str, number: int) -> Iterator[tuple[str, int]]:
        for name, child in sorted(self.folders[number].items()):
            path = f"{prefix}/{name}"
            yield path, child
            if child in self.folders:
                yield from self._below(path, child)

    def contents(self) -> tuple[tuple[str, bytes | None], ...]:
        """Every path with its bytes (None for a folder): equal images are equal to any program."""
        return tuple((path, self.files.get(number)) for path, number in self.paths())


@lru_cache(maxsize=4096)
def stale_sector(number: int, index: int) -> bytes:
    """What a sector may hold that was given to the file and never written: anything."""
    return random.Random(f"{number}-{index}").randbytes(SECTOR_BYTES)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
