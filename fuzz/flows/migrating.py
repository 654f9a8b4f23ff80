"""Flows that make a new home of a whole exported root, and that change schedules.

The root that is read lies in real files; what is written goes to the simulated disk. A home is
there whole or not at all, whatever a crash leaves, and the next run makes what is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from treering.engine.errors import NotFound
from treering.engine.home import Store
from treering.engine.journal.disk import Disk
from treering.engine.migration.migrating import MANIFEST, migrate_root, staging_path
from treering.engine.schedules.controls import cancel_session_jobs
from treering.engine.schedules.file_store import change_jobs
from treering.engine.session.view import SessionView
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.flows.world import STORE
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

DONE: Final = "done"
"""The fact that the flow came to its end."""

_SCHEDULES: Final = f"{STORE.artifact_folder('s')}/scheduled-jobs.json"


class RootStage:
    """An exported root in a folder of its own, as long as a flow is recorded and checked."""

    def __init__(self) -> None:
        self._folder: str | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Where the root is there."""
        if self._folder is not None:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="treering-migrate-") as folder:
            self._folder = folder
            make_root(self.root)
            try:
                yield
            finally:
                self._folder = None

    @property
    def root(self) -> str:
        """The exported root."""
        assert self._folder is not None, "the stage was not entered"
        return os.path.join(self._folder, "export")

    @property
    def home(self) -> str:
        """The new home, in the simulated disk only."""
        assert self._folder is not None, "the stage was not entered"
        return os.path.join(self._folder, "new")


def make_root(root: str) -> None:
    """Two sessions, of which one has a schedule in the root and one in its artifacts."""
    for name, count in (("one", 3), ("two", 1)):
        lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": name, "cwd": "/w"}]
        lines += [
            {"type": "custom", "id": f"e{at}", "parentId": None, "data": "d" * 300}
            for at in range(count)
        ]
        _write(f"{root}/sessions/{name}.jsonl", "".join(json.dumps(one) + "\n" for one in lines))
    _write(f"{root}/settings.json", '{"theme": "dark", "unknown": 1}')
    _write(f"{root}/cron-jobs.json", json.dumps({"jobs": [job("a", "one"), job("b", "none")]}))
    inner = f"{root}/session-artifacts/two/scheduled-jobs.json"
    _write(inner, json.dumps({"jobs": [job("c", "two")]}))


def job(job_id: str, session_id: str) -> dict[str, Any]:
    """An active job of a session."""
    return {
        "id": job_id,
        "status": "active",
        "sessionId": session_id,
        "sessionFile": f"/old/{session_id}.jsonl",
        "prompt": "look",
        "schedule": {"kind": "cron", "expression": "0 9 * * *"},
    }


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_all(disk: Disk, path: str) -> None:
    """The folders of a path, in a simulated disk."""
    parts = path.split("/")
    for count in range(2, len(parts) + 1):
        try:
            disk.make_folder("/".join(parts[:count]))
        except FileExistsError:
            continue


def check_home(disk: SimDisk, home: str) -> None:
    """All that the manifest names is there and whole.

    Raises:
        Broken: it is not.
    """
    lines = [json.loads(line) for line in disk.read_file(f"{home}/{MANIFEST}").splitlines()]
    sessions = [line for line in lines if line["record"] == "session"]
    if len(sessions) != 2 or lines[-1]["record"] != "skipped":
        raise Broken("the manifest is not whole")
    json.loads(disk.read_file(f"{home}/settings.json"))
    store = Store.at(home)
    for line in sessions:
        with SessionView.open(store.journal_path(line["newId"]), disk=disk) as view:
            if sum(1 for _ in view.iter_entries()) != line["entries"]:
                raise Broken("entries of a session are missing")
    for line in lines:
        if line["record"] == "schedule":
            path = f"{store.artifact_folder(line['sessionId'])}/scheduled-jobs.json"
            (one,) = json.loads(disk.read_file(path))["jobs"]
            if (one["id"], one["status"]) != (line["newId"], "paused"):
                raise Broken("a job is another one")


def _migration() -> Flow:
    stage = RootStage()

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        del ledger
        make_all(disk, os.path.dirname(stage.home))

    def run(disk: SimDisk, ledger: Ledger, prepared: Any) -> None:
        del prepared
        migrate_root(stage.root, stage.home, disk=disk)
        ledger.remember(DONE, True)

    def check(disk: SimDisk, expectation: Expectation) -> None:
        if not disk.exists(stage.home):
            if expectation.fact(DONE):
                raise Broken("an activated home is gone")
            migrate_root(stage.root, stage.home, disk=disk)
        check_home(disk, stage.home)
        if disk.exists(staging_path(stage.home)):
            raise Broken("the staging folder stands beside the home")

    return Flow("migrate", prepare, run, check, stage=stage.entered)


def _cancelling() -> Flow:
    """Other jobs, and what is no job, stay as they are."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        del ledger
        make_all(disk, os.path.dirname(_SCHEDULES))
        data = json.dumps({"jobs": [job("a", "s"), job("b", "t"), 7], "dispatches": []})
        disk.create(_SCHEDULES).pwrite(data.encode(), 0)

    def run(disk: SimDisk, ledger: Ledger, prepared: Any) -> None:
        del prepared
        cancel_session_jobs(STORE, "s", disk=disk)
        ledger.remember(DONE, True)

    def check(disk: SimDisk, expectation: Expectation) -> None:
        jobs = json.loads(disk.read_file(_SCHEDULES))["jobs"]
        states = [jobs[0]["status"], jobs[1]["status"], jobs[2]]
        if states[1:] != ["active", 7] or states[0] not in ("active", "cancelled"):
            raise Broken(f"other jobs: {states}")
        if expectation.fact(DONE) and states[0] != "cancelled":
            raise Broken("a change that was acknowledged is gone")
        if disk.exists(f"{_SCHEDULES}.lock"):
            disk.unlink(f"{_SCHEDULES}.lock")  # 30 seconds later
        change_jobs(disk, _SCHEDULES, lambda jobs: True)
        if disk.list_folder(os.path.dirname(_SCHEDULES)) != [os.path.basename(_SCHEDULES)]:
            raise Broken("something is left")
        try:
            change_jobs(disk, f"{STORE.top}/cron-jobs.json", lambda jobs: True)
        except NotFound:
            return
        raise Broken("a file was made of nothing")

    return Flow("cancel-jobs", prepare, run, check)


def migrating_flows() -> Iterator[Flow]:
    """A home out of an exported root, and a change of a schedule file."""
    yield _migration()
    yield _cancelling()
