"""A disk for a folder that is published as a whole: its names are made durable once, at the end.

A journal syncs its folder and every folder above it four times, so that it can be used at once.
In a staging folder nothing is used before the rename, and a crash throws all of it away.
"""

from __future__ import annotations

from treering.engine.journal.disk import Disk, File, FileStat


class StagedDisk:
    """Implements the Disk protocol over another disk; folders are synced when told to."""

    def __init__(self, inner: Disk) -> None:
        self._inner = inner
        self._folders: set[str] = set()

    def sync_names(self, top: str) -> None:
        """Make the names in every folder durable that was to be synced and lies in ``top``.

        Raises:
            OSError: they are not known to be.
        """
        below = {path for path in self._folders if path == top or path.startswith(f"{top}/")}
        for path in sorted(below | {top}, reverse=True):
            self._inner.sync_folder(path)
        self._folders.clear()

    def open(self, path: str, *, write: bool = False) -> File:
        """See Disk."""
        return self._inner.open(path, write=write)

    def create(self, path: str) -> File:
        """See Disk."""
        return self._inner.create(path)

    def stat(self, path: str) -> FileStat:
        """See Disk."""
        return self._inner.stat(path)

    def link(self, source: str, target: str) -> None:
        """See Disk."""
        self._inner.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """See Disk."""
        self._inner.rename(source, target)

    def unlink(self, path: str) -> None:
        """See Disk."""
        self._inner.unlink(path)

    def make_folder(self, path: str) -> None:
        """See Disk."""
        self._inner.make_folder(path)

    def remove_folder(self, path: str) -> None:
        """See Disk."""
        self._inner.remove_folder(path)

    def list_folder(self, path: str) -> list[str]:
        """See Disk."""
        return self._inner.list_folder(path)

    def sync_folder(self, path: str) -> None:
        """Remember to, see :meth:`sync_names`."""
        self._folders.add(path)
