"""A disk that counts and records what is done to it, and fails where a test wants it to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from treering.engine.journal.disk import LOCAL_DISK, Disk, File, FileStat


class Op(NamedTuple):
    """One operation: its name, the path it was asked for, and two numbers that depend on it."""

    name: str
    path: str
    first: int = 0
    second: int = 0


FOREVER = 1 << 60
FAILURES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WRITES = frozenset(
    ("pwrite", "truncate", "create", "link", "rename", "unlink", "make_folder", "remove_folder")
)
SYNCS = frozenset(("fsync", "fdatasync", "sync_folder"))


class Rule:
    """Fail the ``at``-th matching operation (from 1), ``times`` times."""

    def __init__(
        self, names: Iterable[str] | None, at: int, error: int, times: int, path: str | None
    ) -> None:
        self.names = None if names is None else frozenset(names)
        self.at, self.error, self.times, self.path = at, error, times, path
        self.seen = 0
        self.fired = 0

    def fires(self, op: Op) -> bool:
        """Count the operation; whether it fails."""
        if self.names is not None and op.name not in self.names:
            return False
        if self.path is not None and self.path not in op.path:
            return False
        self.seen += 1
        if self.at <= self.seen < self.at + self.times:
            self.fired += 1
            return True
        return False


class FaultyDisk:
    """Implements the Disk protocol over another disk."""

    def __init__(self, inner: Disk = LOCAL_DISK) -> None:
        self.inner = inner
        self.log: list[Op] = []
        self.rules: list[Rule] = []
        self.write_at_most: int | None = None
        self.quota: int | None = None
        self.quota_error = errno.ENOSPC
        self.overwriting_needs_room = True
        self.zero_progress = False
        self.on_pread: Callable[[str, bytes, int], bytes] | None = None
        self.before: Callable[[Op], None] | None = None
        self.after: Callable[[Op], None] | None = None
        self.open_files = 0
        self.skip_syncs = False

    def fail(
        self,
        names: str | Iterable[str] | None = None,
        *,
        at: int = 1,
        error: int = errno.EIO,
        times: int = 1,
        path: str | None = None,
    ) -> Rule:
        """From now on, the ``at``-th operation of these names fails."""
        rule = Rule((names,) if isinstance(names, str) else names, at, error, times, path)
        self.rules.append(rule)
        return rule

    def heal(self) -> None:
        """No more faults."""
        self.rules.clear()
        self.write_at_most = self.quota = self.on_pread = None
        self.zero_progress = False

    def note(self, op: Op) -> None:
        """Record the operation and raise when a rule says so."""
        self.log.append(op)
        if self.before is not None:
            self.before(op)
        for rule in self.rules:
            if rule.fires(op):
                raise OSError(rule.error, os.strerror(rule.error))

    def done(self, op: Op) -> None:
        """After an operation that succeeded."""
        if self.after is not None:
            self.after(op)

    def take(self) -> list[Op]:
        """The log so far; it starts anew."""
        log, self.log = self.log, []
        return log

    def open(self, path: str, *, write: bool = False) -> FaultyFile:
        """See Disk."""
        self.note(Op("open", path, int(write)))
        return FaultyFile(self, path, self.inner.open(path, write=write))

    def create(self, path: str) -> FaultyFile:
        """See Disk."""
        self.note(Op("create", path))
        return FaultyFile(self, path, self.inner.create(path))

    def stat(self, path: str) -> FileStat:
        """See Disk."""
        self.note(Op("stat", path))
        return self.inner.stat(path)

    def link(self, source: str, target: str) -> None:
        """See Disk."""
        self.note(Op("link", target))
        self.inner.link(source, target)
        self.done(Op("link", target))

    def rename(self, source: str, target: str) -> None:
        """See Disk."""
        self.note(Op("rename", target))
        self.inner.rename(source, target)

    def unlink(self, path: str) -> None:
        """See Disk."""
        self.note(Op("unlink", path))
        self.inner.unlink(path)

    def make_folder(self, path: str) -> None:
        """See Disk."""
        self.note(Op("make_folder", path))
        self.inner.make_folder(path)

    def remove_folder(self, path: str) -> None:
        """See Disk."""
        self.note(Op("remove_folder", path))
        self.inner.remove_folder(path)

    def list_folder(self, path: str) -> list[str]:
        """See Disk."""
        self.note(Op("list_folder", path))
        return self.inner.list_folder(path)

    def sync_folder(self, path: str) -> None:
        """See Disk."""
        self.note(Op("sync_folder", path))
        if self.skip_syncs:
            return
        self.inner.sync_folder(path)


def quick_disk() -> FaultyDisk:
    """A disk whose syncs do nothing: for tests of what bytes mean, thousands of times."""
    disk = FaultyDisk()
    disk.skip_syncs = True
    return disk


class FaultyFile:
    """Implements the File protocol over another file."""

    def __init__(self, disk: FaultyDisk, path: str, inner: File) -> None:
        self.disk, self.path, self.inner = disk, path, inner
        self.is_open = True
        disk.open_files += 1

    def pread(self, length: int, offset: int) -> bytes:
        """See File."""
        self.disk.note(Op("pread", self.path, offset, length))
        data = self.inner.pread(length, offset)
        return data if self.disk.on_pread is None else self.disk.on_pread(self.path, data, offset)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """See File."""
        self.disk.note(Op("pwrite", self.path, offset, len(data)))
        if self.disk.zero_progress:
            return 0
        length = len(data)
        if self.disk.write_at_most is not None:
            length = min(length, self.disk.write_at_most)
        if self.disk.quota is not None:
            free = 0
            if not self.disk.overwriting_needs_room:
                free = min(length, max(0, self.inner.stat().size - offset))
            if length and not free + self.disk.quota:
                raise OSError(self.disk.quota_error, os.strerror(self.disk.quota_error))
            length = min(length, free + self.disk.quota)
            self.disk.quota -= length - free
        written = self.inner.pwrite(memoryview(data)[:length], offset)
        self.disk.done(Op("pwrite", self.path, offset, written))
        return written

    def _note_sync(self, name: str) -> None:
        try:
            self.disk.note(Op(name, self.path))
        except OSError:
            # A simulated disk has to know: a failed sync does something to its cache.
            fail_sync = getattr(self.inner, "fail_sync", None)
            if fail_sync is not None:
                fail_sync()
            raise

    def fdatasync(self) -> None:
        """See File."""
        self._note_sync("fdatasync")
        if not self.disk.skip_syncs:
            self.inner.fdatasync()
        self.disk.done(Op("fdatasync", self.path))

    def fsync(self) -> None:
        """See File."""
        self._note_sync("fsync")
        if not self.disk.skip_syncs:
            self.inner.fsync()

    def truncate(self, size: int) -> None:
        """See File."""
        self.disk.note(Op("truncate", self.path, size))
        self.inner.truncate(size)

    def stat(self) -> FileStat:
        """See File."""
        self.disk.note(Op("fstat", self.path))
        return self.inner.stat()

    def try_lock(self) -> bool:
        """See File."""
        self.disk.note(Op("try_lock", self.path))
        return self.inner.try_lock()

    def close(self) -> None:
        """See File. Never fails here: the descriptor is gone either way."""
        if self.is_open:
            self.is_open = False
            self.disk.open_files -= 1
        self.inner.close()
