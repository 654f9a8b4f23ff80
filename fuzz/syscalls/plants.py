"""Known faults, put into the engine on purpose: a search that cannot find them finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from treering.engine.errors import StorageError, TreeringError
from treering.engine.journal import disk, writer
from treering.engine.journal.publish import NewJournal


def _swallowing(call: Callable[..., Any]) -> Callable[..., Any]:
    def quiet(*arguments: Any, **more: Any) -> Any:
        try:
            return call(*arguments, **more)
        except OSError as error:
            return error.errno

    return quiet


def _ignore_sync_errors() -> None:
    disk._fdatasync = _swallowing(disk._fdatasync)
    disk._fsync = _swallowing(disk._fsync)


def _ignore_folder_sync_errors() -> None:
    disk.LocalDisk.sync_folder = _swallowing(disk.LocalDisk.sync_folder)  # type: ignore[method-assign]


def _ignore_write_errors() -> None:
    disk.LocalFile.pwrite = _counting(disk.LocalFile.pwrite)  # type: ignore[method-assign]


def _counting(call: Callable[..., int]) -> Callable[..., int]:
    def optimistic(file: Any, data: bytes, offset: int) -> int:
        try:
            return call(file, data, offset)
        except OSError:
            return len(data)

    return optimistic


def _skip_syncs() -> None:
    writer.JournalWriter._sync = lambda self: self._note_synced()  # type: ignore[method-assign]


def _leave_failed_writes() -> None:
    writer.JournalWriter._cut_back = lambda self, cause: self._note_synced()  # type: ignore[method-assign]  # noqa: ARG005


def _cut_without_sync() -> None:
    def cut(self: Any, cause: OSError) -> None:  # noqa: ARG001 (the writer's interface)
        self._file.truncate(self._state.offset)
        self._note_synced()

    writer.JournalWriter._cut_back = cut  # type: ignore[method-assign]


def _tell_unknown_as_refused() -> None:
    real = writer.JournalWriter._sync

    def sync(self: Any) -> None:
        try:
            real(self)
        except TreeringError as error:
            raise StorageError("nothing was stored", path=self._path) from error

    writer.JournalWriter._sync = sync  # type: ignore[method-assign]


def _leave_temporary_files() -> None:
    NewJournal.abandon = lambda self: self._file.close()  # type: ignore[method-assign]


def _cut_before_quarantine_is_durable() -> None:
    from treering.engine.journal import opening

    opening.sync_folders = lambda *_: None
    opening.make_folders = _make_without_sync


def _make_without_sync(on: disk.Disk, path: str, top: str) -> None:
    real = disk.LocalDisk.sync_folder
    disk.LocalDisk.sync_folder = lambda *_: None  # type: ignore[method-assign]
    try:
        disk.make_folders(on, path, top)
    finally:
        disk.LocalDisk.sync_folder = real  # type: ignore[method-assign]


PLANTS: Final[dict[str, Callable[[], None]]] = {
    "sync-errors-ignored": _ignore_sync_errors,
    "folder-sync-errors-ignored": _ignore_folder_sync_errors,
    "write-errors-ignored": _ignore_write_errors,
    "no-sync": _skip_syncs,
    "failed-write-left": _leave_failed_writes,
    "cut-not-synced": _cut_without_sync,
    "unknown-told-as-refused": _tell_unknown_as_refused,
    "temporary-files-left": _leave_temporary_files,
    "quarantine-not-synced": _cut_before_quarantine_is_durable,
}
"""Name -> what puts the fault into this process, for good."""
