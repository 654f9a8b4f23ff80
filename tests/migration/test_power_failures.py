"""Power failures at every moment of a migration, and of a change of schedules; planted faults."""

from __future__ import annotations

import os
from typing import Any

import pytest

from treering.engine.journal.disk import Disk
from treering.engine.migration import migrating
from treering.engine.migration.migrating import MANIFEST
from treering.engine.schedules import file_store
from treering.fuzz.explorer import Explored, explore
from treering.fuzz.flows.catalogue import flow_named
from treering.fuzz.simdisk import SimDisk


def explored(most: int) -> Explored:
    return explore(flow_named("migrate"), most=most)


def test_a_power_failure_at_any_moment_leaves_nothing_or_all() -> None:
    """Whatever of the unsynced writes and names survives: no destination, or a whole one; and the
    next run makes it out of whatever is left."""
    found = explored(256)
    assert not found.findings, found.findings[0]
    assert found.checked > 100


@pytest.mark.parametrize("fault", ["no sync of files", "no sync of folders", "manifest last"])
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "no sync of files":

        def unsynced(self: Any, disk: Disk, folder: str, name: str, data: bytes) -> None:
            disk.create(os.path.join(folder, name)).pwrite(data, 0)
            disk.sync_folder(folder)

        monkeypatch.setattr(migrating._Staging, "_write", unsynced)
    elif fault == "no sync of folders":
        real = SimDisk.sync_folder

        def keep(self: SimDisk, path: str) -> None:
            if not path.endswith((".import-staging", "new")):
                real(self, path)

        monkeypatch.setattr(SimDisk, "sync_folder", keep)
    else:
        real_write = migrating._Staging._write

        def late(self: Any, disk: Disk, folder: str, name: str, data: bytes) -> None:
            if name == MANIFEST:
                self.kept = data
                return
            real_write(self, self._disk, folder, name, data)
            if name == "settings.json":
                real_write(self, self._disk, folder, MANIFEST, self.kept)

        monkeypatch.setattr(migrating._Staging, "_write", late)
    assert explored(12).findings


def test_a_power_failure_while_schedules_change() -> None:
    found = explore(flow_named("cancel-jobs"), most=200)
    assert not found.findings, found.findings[0]
    assert found.checked > 10


def test_an_unsynced_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsynced(disk: Disk, path: str, data: bytes) -> None:
        file = disk.create(f"{path}.new")
        file.pwrite(data, 0)
        file.close()
        disk.rename(f"{path}.new", path)
        disk.sync_folder(os.path.dirname(path))

    monkeypatch.setattr(file_store, "_replace", unsynced)
    assert explore(flow_named("cancel-jobs"), most=200).findings
