"""Power failures at every moment of a migration, and of a change of schedules."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from migration_helpers import job, schedules, small_root

from treering.engine import SessionView, Store
from treering.engine.errors import NotFound
from treering.engine.journal.disk import Disk
from treering.engine.migration import migrating
from treering.engine.migration.migrating import MANIFEST, migrate_root, staging_path
from treering.engine.schedules import file_store
from treering.engine.schedules.controls import cancel_session_jobs
from treering.engine.schedules.file_store import change_jobs
from treering.fuzz.explorer import Broken, Explored, Flow, explore
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

DONE = "done"


def make_all(disk: Disk, path: str) -> None:
    """The folders of a path, in a simulated disk."""
    parts = path.split("/")
    for count in range(2, len(parts) + 1):
        try:
            disk.make_folder("/".join(parts[:count]))
        except FileExistsError:
            continue


def check_home(disk: SimDisk, home: str) -> None:
    """All that the manifest names is there and whole."""
    lines = [json.loads(line) for line in disk.read_file(f"{home}/{MANIFEST}").splitlines()]
    sessions = [line for line in lines if line["record"] == "session"]
    if len(sessions) != 2 or lines[-1]["record"] != "skipped":
        raise Broken("the manifest is not whole")
    json.loads(disk.read_file(f"{home}/settings.json"))
    for line in sessions:
        with SessionView.open(f"{home}/sessions/{line['newId']}.jsonl", disk=disk) as view:
            if sum(1 for _ in view.iter_entries()) != line["entries"]:
                raise Broken("entries of a session are missing")
    for line in lines:
        if line["record"] == "schedule":
            path = f"{home}/session-artifacts/{line['sessionId']}/scheduled-jobs.json"
            (one,) = json.loads(disk.read_file(path))["jobs"]
            if (one["id"], one["status"]) != (line["newId"], "paused"):
                raise Broken("a job is another one")


def migration(root: Path, home: str) -> Flow:
    """A migration; a run after the crash makes what is not there."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        make_all(disk, os.path.dirname(home))

    def run(disk: SimDisk, ledger: Ledger, prepared: Any) -> None:
        migrate_root(root, home, disk=disk)
        ledger.remember(DONE, True)

    def check(disk: SimDisk, expectation: Expectation) -> None:
        done = bool(expectation.fact(DONE))
        if disk.exists(home):
            check_home(disk, home)
            if disk.exists(staging_path(home)):
                raise Broken("the staging folder is there, too")
            return
        if done:
            raise Broken("an activated home is gone")
        migrate_root(root, home, disk=disk)
        check_home(disk, home)
        if disk.exists(staging_path(home)):
            raise Broken("the staging folder is left")

    return Flow("migrate", prepare, run, check)


def explored(tmp_path: Path, most: int = 24) -> Explored:
    return explore(migration(small_root(tmp_path), str(tmp_path / "new")), most=most)


def test_a_power_failure_at_any_moment_leaves_nothing_or_all(tmp_path: Path) -> None:
    """Whatever of the unsynced writes and names survives: no destination, or a whole one; and the
    next run makes it out of whatever is left."""
    found = explored(tmp_path, most=256)
    assert not found.findings, found.findings[0]
    assert found.checked > 100


@pytest.mark.parametrize("fault", ["no sync of files", "no sync of folders", "manifest last"])
def test_planted_faults_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
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
    assert explored(tmp_path, most=12).findings


HOME = Store("/sim/home", "/sim/home/sessions")
PATH = f"{HOME.artifact_folder('s')}/scheduled-jobs.json"


def change_flow() -> Flow:
    """Cancelling the jobs of a session."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        make_all(disk, os.path.dirname(PATH))
        disk.create(PATH).pwrite(schedules(job("a", "s"), job("b", "t"), 7), 0)

    def run(disk: SimDisk, ledger: Ledger, prepared: Any) -> None:
        cancel_session_jobs(HOME, "s", disk=disk)
        ledger.remember(DONE, True)

    def check(disk: SimDisk, expectation: Expectation) -> None:
        jobs = json.loads(disk.read_file(PATH))["jobs"]
        states = [jobs[0]["status"], jobs[1]["status"], jobs[2]]
        if states[1:] != ["active", 7] or states[0] not in ("active", "cancelled"):
            raise Broken(f"other jobs: {states}")
        if expectation.fact(DONE) and states[0] != "cancelled":
            raise Broken("a change that was acknowledged is gone")
        lock = f"{PATH}.lock"
        if disk.exists(lock):
            disk.unlink(lock)  # 30 seconds later
        change_jobs(disk, PATH, lambda jobs: True)
        if disk.list_folder(os.path.dirname(PATH)) != ["scheduled-jobs.json"]:
            raise Broken("something is left")
        try:
            change_jobs(disk, f"{HOME.top}/cron-jobs.json", lambda jobs: True)
        except NotFound:
            return
        raise Broken("a file was made of nothing")

    return Flow("cancel-jobs", prepare, run, check)


def test_a_power_failure_while_schedules_change() -> None:
    found = explore(change_flow(), most=200)
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
    assert explore(change_flow(), most=200).findings
