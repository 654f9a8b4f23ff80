"""Known faults for the processes whose calls fail: a search that cannot find them finds nothing.

Those of :mod:`treering.fuzz.planted`, and more that swallow or misname an error of the system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

from treering.engine.errors import StorageError, TreeringError
from treering.engine.journal import disk, publish, writer
from treering.engine.session import deleting
from treering.fuzz import planted


def _folder_sync_ignored() -> contextlib.AbstractContextManager[Any]:
    real = disk.LocalDisk.sync_folder

    def quiet(self: disk.LocalDisk, path: str) -> None:
        with contextlib.suppress(OSError):
            real(self, path)

    return mock.patch.object(disk.LocalDisk, "sync_folder", quiet)


def _write_error_ignored() -> contextlib.AbstractContextManager[Any]:
    real = disk.LocalFile.pwrite

    def optimistic(self: disk.LocalFile, data: bytes | memoryview, offset: int) -> int:
        try:
            return real(self, data, offset)
        except OSError:
            return len(data)

    return mock.patch.object(disk.LocalFile, "pwrite", optimistic)


def _unknown_told_as_refused() -> contextlib.AbstractContextManager[Any]:
    real = writer.JournalWriter._sync

    def sync(self: Any) -> None:
        try:
            real(self)
        except TreeringError as error:
            raise StorageError("nothing was stored", path=self._path) from error

    return mock.patch.object(writer.JournalWriter, "_sync", sync)


def _temporary_file_left() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(publish.NewJournal, "abandon", lambda self: self._file.close())


def _close_error_told() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(disk, "_close", os.close)


def _tombstone_not_synced() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(deleting, "_settle", return_value=None)


PLANTS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    **{name: fault.plant for name, fault in planted.FAULTS.items()},
    "folder-sync-ignored": _folder_sync_ignored,
    "write-error-ignored": _write_error_ignored,
    "unknown-told-as-refused": _unknown_told_as_refused,
    "temporary-file-left": _temporary_file_left,
    "close-error-told": _close_error_told,
    "tombstone-not-synced": _tombstone_not_synced,
}
"""Name -> what puts the fault into this process as long as its context lasts."""
