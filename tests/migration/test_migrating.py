"""Imports of whole roots: all of it under its name, or nothing, whatever happens on the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from migration_helpers import (
    SECRET,
    WHOLE,
    corpus_root,
    file_of,
    names_below,
    needs_corpus,
    session_lines,
    small_root,
)
from support.stores import picture
from tools_helpers import fine, process, run

from treering.engine import (
    Conflict,
    InvalidSource,
    OutcomeUnknown,
    Owned,
    Session,
    SourceChanged,
    StorageFull,
    TreeringError,
    export_jsonl,
)
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.migration import migrating
from treering.engine.migration.migrating import MANIFEST, migrate_root, staging_path
from treering.engine.migration.plan import plan_migration
from treering.fuzz.faulty_disk import SYNCS, WRITES, FaultyDisk, Op


def manifest(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / MANIFEST).read_text().splitlines()]


def provenance_of(session: Session) -> dict[str, Any]:
    found = session.provenance()
    assert found is not None
    facts: dict[str, Any] = json.loads(found[0])
    return facts


def check_home(root: Path, home: Path) -> dict[str, str]:
    """The new home holds what the manifest says, and nothing else; old ids to new ones."""
    lines = manifest(home)
    sessions = {line["file"]: line for line in lines if line["record"] == "session"}
    assert sorted(os.listdir(home / "sessions")) == sorted(
        f"{line['newId']}.jsonl" for line in sessions.values()
    )
    for line in sessions.values():
        path = home / "sessions" / f"{line['newId']}.jsonl"
        with Session.open(path) as session:
            assert session.header.id == line["newId"]
            entries = list(session.iter_entries())
            assert len(entries) == line["entries"]
            assert all(session.retention(entry.id) == "retained-import" for entry in entries[:3])
            assert provenance_of(session)["digest"] == line["xxh3_128"]
    jobs = {line["newId"]: line for line in lines if line["record"] == "schedule"}
    found = {}
    for path in home.glob("session-artifacts/*/scheduled-jobs.json"):
        for one in json.loads(path.read_bytes())["jobs"]:
            found[one["id"]] = one
            assert one["sessionId"] == path.parent.name == jobs[one["id"]]["sessionId"]
            assert one["sessionFile"] == str(home / "sessions" / f"{path.parent.name}.jsonl")
    assert found.keys() == jobs.keys()
    return {line["oldId"]: line["newId"] for line in sessions.values()}


def test_a_root_becomes_a_home(tmp_path: Path) -> None:
    """Sessions with their own directories, preferences, paused jobs with final paths; private."""
    root, home = small_root(tmp_path), tmp_path / "new"
    before = picture(root)
    result = migrate_root(root, home)
    assert picture(root) == before
    assert names_below(tmp_path / "new") == sorted(
        [
            MANIFEST,
            "settings.json",
            "sessions",
            "session-artifacts",
            *(f"sessions/{session.new_id}.jsonl" for session in result.plan.sessions),
            *(f"session-artifacts/{job.session_id}" for job in result.plan.jobs),
            *(
                f"session-artifacts/{job.session_id}/scheduled-jobs.json"
                for job in result.plan.jobs
            ),
        ]
    )
    for path in [home, *home.rglob("*")]:
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600)
    ids = check_home(root, home)
    with Session.open(home / "sessions" / f"{ids['two']}.jsonl") as session:
        assert session.header.cwd == "/elsewhere"
        assert session.header.parent_session == str(root / "sessions" / file_of("two"))
        export_jsonl(session, str(tmp_path / "again.jsonl"))
    again = (tmp_path / "again.jsonl").read_bytes()
    assert again == (root / "sessions" / file_of("two")).read_bytes()
    assert json.loads((home / "settings.json").read_bytes()) == {
        "theme": "dark",
        "terminal": {"showImages": True},
        "inactivePackages": ["npm:@scope/tool@1.2.3"],
    }
    assert not os.path.lexists(staging_path(str(home)))


def test_a_job_comes_along_paused_and_without_its_past(tmp_path: Path) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    migrate_root(root, home)
    ids = check_home(root, home)
    path = home / "session-artifacts" / ids["one"] / "scheduled-jobs.json"
    value = json.loads(path.read_bytes())
    (made,) = value["jobs"]
    assert value["dispatches"] == []
    assert made["createdAt"] == made["updatedAt"] > "2026-11-01"
    del made["createdAt"], made["updatedAt"]
    assert made.pop("id") != "c1"
    assert made == {
        "status": "paused",
        "source": "cron",
        "runtimeKind": "top-level",
        "activeSessionId": ids["one"],
        "sessionId": ids["one"],
        "sessionFile": str(home / "sessions" / f"{ids['one']}.jsonl"),
        "cwd": "/job/cwd",
        "label": f"label {SECRET}",
        "prompt": f"prompt {SECRET}",
        "schedule": {"kind": "cron", "expression": "*/5 * * * *"},
        "runCount": 0,
    }


def test_dry_run_and_import_agree(tmp_path: Path) -> None:
    """Every number, name and skip of the report, but for the mode and what was done."""
    root = small_root(tmp_path)
    dry = plan_migration(root, tmp_path / "new").as_json("dry-run")
    done = migrate_root(root, tmp_path / "new").as_json()
    assert done["activated"] is True
    assert done["importedSessions"] == dry["preparedSessions"]
    assert done["manifest"] == str(tmp_path / "new" / MANIFEST)
    assert {name: done[name] for name in dry} == dry | {"mode": "import"}
    skipped = [line for line in manifest(tmp_path / "new") if line["record"] == "skipped"]
    assert [{key: line[key] for key in ("kind", "item", "reason")} for line in skipped] == dry[
        "skipped"
    ]
    assert SECRET not in (tmp_path / "new" / MANIFEST).read_text()


@needs_corpus
def test_real_files_become_sessions(tmp_path: Path) -> None:
    """Versions absent, 1, 2 and 3, with all their oddities: each opens, version 3 byte for byte."""
    root, home = corpus_root(tmp_path), tmp_path / "new"
    result = migrate_root(root, home)
    assert len(result.plan.sessions) == len(WHOLE)
    check_home(root, home)
    exact = 0
    for one in result.plan.sessions:
        with Session.open(home / "sessions" / f"{one.new_id}.jsonl") as session:
            assert session.report is not None
            assert session.report.case == "A"
            if provenance_of(session)["byte_exact"]:
                exact += 1
                again = tmp_path / f"{one.new_id}.again"
                export_jsonl(session, str(again))
                assert again.read_bytes() == Path(one.path).read_bytes()
    assert exact >= 8


# Failures


def test_an_error_at_every_disk_call_leaves_nothing_or_all(tmp_path: Path) -> None:
    """Whichever operation fails, and however: no destination and no staging folder, and the next
    run makes it; or it is there, whole, and the error says so."""
    root = small_root(tmp_path)
    counting = FaultyDisk()
    migrate_root(root, tmp_path / "count", disk=counting)
    operations = counting.take()
    assert counting.open_files == 0
    assert len(operations) > 60
    nothing = everything = 0
    for number in range(1, len(operations) + 1):
        home = tmp_path / f"new{number}"
        disk = FaultyDisk()
        rule = disk.fail(at=number, error=(errno.EIO, errno.ENOSPC)[number % 2])
        try:
            migrate_root(root, home, disk=disk)
        except OutcomeUnknown as error:
            assert operations[number - 1].name == "sync_folder"
            assert "is in its place" in str(error)
            assert str(home) in str(error)
            check_home(root, home)
            everything += 1
        except TreeringError as error:
            assert rule.fired
            assert SECRET not in str(error)
            assert "no destination was activated" in str(error), number
            assert not os.path.lexists(home)
            if os.path.lexists(staging_path(str(home))):  # it could not even be opened
                assert os.listdir(staging_path(str(home))) == [], operations[number - 1]
                assert number <= 6
                migrate_root(root, home)
                check_home(root, home)
            nothing += 1
        else:  # an operation that may fail: a note for people, or something to be swept
            check_home(root, home)
        assert disk.open_files == 0
    assert everything == 1
    assert nothing > 50


class KilledError(BaseException):
    """The process is gone: nothing of it runs any more."""


class DyingDisk(FaultyDisk):
    """A disk whose process dies before one of its changes; of a write it has done the first half."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at
        self.before = self._count

    def _count(self, op: Op) -> None:
        if self.left <= 0:
            raise KilledError
        if op.name in WRITES or op.name in SYNCS:
            self.left -= 1
            if self.left == 0:
                raise KilledError


def test_a_kill_at_any_change_leaves_nothing_or_all(tmp_path: Path) -> None:
    """The destination is not there, or whole. What was staged is replaced by the next run, and
    never stands beside a second one."""
    root = small_root(tmp_path)
    at = killed = whole = 0
    while True:
        at += 1
        folder = tmp_path / f"at{at}"
        folder.mkdir()
        home = folder / "new"
        try:
            migrate_root(root, home, disk=DyingDisk(at))
        except KilledError:
            killed += 1
        else:
            break
        if home.exists():
            whole += 1
            check_home(root, home)
            assert os.listdir(folder) == ["new"]
            with pytest.raises(Conflict):
                migrate_root(root, home)
            continue
        assert os.listdir(folder) in ([], [".new.import-staging"])
        if at % 3 == 0:  # and a second one, killed in its turn, over what the first one left
            with pytest.raises(KilledError):
                migrate_root(root, home, disk=DyingDisk(at // 2 + 1))
        if not home.exists():
            migrate_root(root, home)
        check_home(root, home)
        assert os.listdir(folder) == ["new"]
    assert killed > 30
    assert whole == 1


CHILD = """
import sys
from treering.engine.migration.migrating import migrate_root
print("begun", flush=True)
migrate_root(sys.argv[1], sys.argv[2])
"""


def test_real_kills(tmp_path: Path) -> None:
    """SIGKILL at moments spread over an import: nothing or all, and the next run makes it."""
    root = small_root(tmp_path)
    for number in range(8):
        path = root / "sessions" / file_of(f"more{number}")
        path.write_bytes(session_lines(f"more{number}", "x"))
    left = 0
    for number in range(4):
        home = tmp_path / f"new{number}"
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, root, home], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            deadline = time.monotonic() + 30
            staging = Path(staging_path(str(home)), "sessions")
            while child.poll() is None and time.monotonic() < deadline:
                if staging.is_dir() and len(os.listdir(staging)) >= 2 * number:
                    break
                time.sleep(0.001)
            child.send_signal(signal.SIGKILL)
        if home.exists():
            check_home(root, home)
            continue
        left += staging.parent.exists()
        migrate_root(root, home)
        check_home(root, home)
        assert not staging.parent.exists()
    assert left > 0


def test_two_at_once(tmp_path: Path) -> None:
    """The second is refused while the first is at it, and after it: never two destinations."""
    root, home = small_root(tmp_path), tmp_path / "new"
    disk = FaultyDisk()
    said: list[BaseException] = []

    def rival(op: Op) -> None:
        if op.name in ("pwrite", "rename") and len(said) < 8:
            try:
                migrate_root(root, home)
            except TreeringError as error:
                said.append(error)

    disk.before = rival
    migrate_root(root, home, disk=disk)
    assert len(said) > 3
    assert {type(error) for error in said} == {Owned}
    check_home(root, home)
    with pytest.raises(Conflict, match="exists"):
        migrate_root(root, home)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_who_makes_the_destination_meanwhile_keeps_it(tmp_path: Path, kind: str) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    disk = FaultyDisk()

    def intrude(op: Op) -> None:
        if op.name == "rename":
            if kind == "file":
                home.write_text("mine")
            elif kind == "folder":
                home.mkdir()
                (home / "mine").write_text("mine")
            else:
                home.symlink_to("nowhere")

    disk.before = intrude
    with pytest.raises(Conflict, match="meanwhile"):
        migrate_root(root, home, disk=disk)
    assert not os.path.lexists(staging_path(str(home)))
    if kind == "file":
        assert home.read_text() == "mine"
    elif kind == "folder":
        assert os.listdir(home) == ["mine"]
    else:
        assert home.readlink() == Path("nowhere")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_else_has_the_name_of_the_staging_folder_stays(tmp_path: Path, kind: str) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    staging = Path(staging_path(str(home)))
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        staging.write_text("mine")
    elif kind == "folder":
        staging.mkdir()
        (staging / "mine").write_text("mine")
    else:
        staging.symlink_to("elsewhere")
    before = picture(tmp_path)
    with pytest.raises(Conflict, match="staging folder"):
        migrate_root(root, home)
    assert picture(tmp_path) == before


def test_a_rename_that_was_done_and_reported_as_failed(tmp_path: Path) -> None:
    """The folder tells: it has the name of the destination, so it is the new home."""
    root, home = small_root(tmp_path), tmp_path / "new"

    class Lying(FaultyDisk):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if target == str(home):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    migrate_root(root, home, disk=Lying())
    check_home(root, home)


def test_when_nobody_can_tell_nothing_is_removed(tmp_path: Path) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    disk = FaultyDisk()
    disk.fail("rename", path=str(home), error=errno.EIO)

    def blind(op: Op) -> None:
        if op.name == "stat" and any(one.name == "rename" for one in disk.log):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.before = blind
    with pytest.raises(OutcomeUnknown, match="nobody can tell") as unknown:
        migrate_root(root, home, disk=disk)
    assert "do not run it again before" in str(unknown.value)
    assert (Path(staging_path(str(home))) / MANIFEST).exists()
    migrate_root(root, home)  # after a look
    check_home(root, home)


@pytest.mark.parametrize("change", ["other text", "longer", "gone", "broken"])
def test_a_source_that_changes_between_the_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    path = root / "sessions" / file_of("two")
    real = migrating.plan_migration

    def planned(*arguments: Any, **more: Any) -> Any:
        plan = real(*arguments, **more)
        data = path.read_bytes()
        if change == "gone":
            path.unlink()
        elif change == "longer":
            path.write_bytes(data + b'{"type":"custom","id":"x","parentId":null}\n')
        else:
            path.write_bytes(data.replace(b"other", b"OTHER" if change == "other text" else b'"'))
        return plan

    monkeypatch.setattr(migrating, "plan_migration", planned)
    kinds = (SourceChanged, InvalidSource, TreeringError)
    with pytest.raises(kinds, match="no destination was activated"):
        migrate_root(root, home)
    assert not os.path.lexists(home)
    assert not os.path.lexists(staging_path(str(home)))


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    disk = FaultyDisk()
    disk.quota = 3000
    with pytest.raises(StorageFull, match="free some space"):
        migrate_root(root, home, disk=disk)
    assert not os.path.lexists(home)
    assert not os.path.lexists(staging_path(str(home)))


def test_everything_is_durable_before_the_rename(tmp_path: Path) -> None:
    """Every file is synced after its last write, and every folder after its last name."""
    root, home = small_root(tmp_path), tmp_path / "new"
    disk = FaultyDisk()
    migrate_root(root, home, disk=disk)
    log = disk.take()
    (renamed,) = (at for at, op in enumerate(log) if op.path == str(home) and op.name == "rename")
    assert log[renamed + 1 :][0] == Op("sync_folder", str(tmp_path))
    names, data = set(), set()
    for op in log[:renamed]:
        if op.name == "pwrite":
            data.add(op.path)
        elif op.name in ("fsync", "fdatasync"):
            data.discard(op.path)
        elif op.name in ("create", "link", "unlink", "make_folder", "rename"):
            names.add(os.path.dirname(op.path))
        elif op.name == "sync_folder":
            names.discard(op.path)
    assert not data
    assert not names - {str(tmp_path)}


# The command


def test_the_command(tmp_path: Path) -> None:
    """Text for people, JSON for programs; a dry run first, the import, and a second one refused."""
    root, home = small_root(tmp_path), tmp_path / "new"
    words = ("migrate", "--from-prime-agent", root, "--destination", home)
    dry = fine(*words, "--dry-run", "--json").json
    assert dry == plan_migration(root, home).as_json("dry-run")
    assert "would import: 2 sessions with 3 entries" in fine(*words, "--dry-run").lines
    assert fine("migrate", "--from-prime-agent", root, "--dry-run", "--json").json == dry | {
        "destination": None
    }
    assert not home.exists()
    done = fine(*words)
    assert done.lines[0] == "imported: 2 sessions with 3 entries"
    assert f"manifest: {home / MANIFEST}" in done.lines
    assert "skipped: 1 schedule: not active or paused" in done.lines
    assert SECRET not in done.out
    again = run(*words)
    assert again.code == 1
    assert "the destination exists" in again.stderr
    ids = check_home(root, home)
    assert ids["one"] in fine("session", "list", home=home).out


def test_success_and_a_failed_report_are_two_facts(tmp_path: Path) -> None:
    root, home = small_root(tmp_path), tmp_path / "new"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "treering.tools", "migrate", "--from-prime-agent", root,
             "--destination", home],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"the root was imported to {home}".encode() in done.stderr
    check_home(root, home)


def test_exit_codes(tmp_path: Path) -> None:
    """1 for refusals, 3 for what could not run; one line, no traceback."""
    root = small_root(tmp_path)
    (root / "settings.json").write_text("{")
    refused = process("migrate", "--from-prime-agent", root, "--dry-run")
    assert refused.returncode == 1
    assert refused.stderr.count(b"\n") == 1
    LOCAL_DISK.make_folder(staging_path(str(tmp_path / "new")))
    file = LOCAL_DISK.open(staging_path(str(tmp_path / "new")))
    assert file.try_lock()
    (root / "settings.json").write_text("{}")
    owned = process("migrate", "--from-prime-agent", root, "--destination", tmp_path / "new")
    assert owned.returncode == 3
    assert b"is running" in owned.stderr
    file.close()
