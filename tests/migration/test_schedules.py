"""Schedules of a store: listed without their texts, resumed by who has bound the session."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migration_helpers import SECRET, job, schedules, small_root
from support.stores import picture
from tools_helpers import fine, new_session, run

from treering.engine import (
    Conflict,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Owned,
    Session,
    StorageError,
    Store,
    TreeringError,
    delete_session,
    undelete_session,
)
from treering.engine.migration.migrating import migrate_root
from treering.engine.schedules import file_store
from treering.engine.schedules.controls import SessionSchedules, cancel_session_jobs, later_than
from treering.engine.schedules.file_store import change_jobs, find_job, read_schedules
from treering.engine.schedules.job import ScheduledJob
from treering.engine.schedules.json_file import decode_json, encode_json
from treering.engine.schedules.next_run import next_cron_ms, next_run_ms
from treering.fuzz.faulty_disk import FaultyDisk

NOW = 1_800_000_000_000
"""2027-01-15T08:00:00Z, a Friday."""

DAY = 86_400_000


def at(text: str) -> int:
    """Unix ms of a local time."""
    return round(time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))) * 1000


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the local time zone of this process."""

    def choose(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


def native(path: str, job_id: str, **more: Any) -> dict[str, Any]:
    """A paused job of the session at ``path``."""
    session_id = Path(path).stem
    made = {"sessionFile": path, "activeSessionId": session_id, "status": "paused"}
    return job(job_id, session_id, **(made | more))


def put(home: Path, name: str, *jobs: Any) -> Path:
    """The schedule file of a session ("" for the home's own), written by somebody else."""
    folder = home / "session-artifacts" / name if name else home
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("scheduled-jobs.json" if name else "cron-jobs.json")
    path.write_bytes(schedules(*jobs))
    return path


def jobs_in(path: Path) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads(path.read_bytes())["jobs"]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# Listing


def test_a_list_shows_everything_but_the_texts(home: Path) -> None:
    """The documented members; prompt, label, error and expression never, in JSON or text."""
    path = new_session(home, "x", session_id="s")
    put(home, "s", native(path, "j", nextRunAt=None, unknown=SECRET))
    ran = fine("schedule", "list", "--offline", "--json", home=home)
    assert SECRET not in ran.out
    assert ran.json == {
        "jobs": [
            {
                "id": "j",
                "status": "paused",
                "source": "cron",
                "runtimeKind": "top-level",
                "activeSessionId": "s",
                "sessionId": "s",
                "sessionFile": path,
                "cwd": "/job/cwd",
                "createdAt": "2026-01-01T00:00:00.000Z",
                "updatedAt": "2026-01-02T00:00:00.000Z",
                "lastRunAt": "2026-01-02T00:00:00.000Z",
                "runCount": 7,
                "prompt": "[retained instruction not displayed]",
                "schedule": {
                    "kind": "cron",
                    "expression": "[cron; retained expression not displayed]",
                },
            }
        ]
    }
    assert fine("schedule", "list", "--offline", home=home).lines == [
        "j  paused  cron  cron  session=s  next=-  runs=7"
    ]


def test_order_and_what_is_left_out_without_all(home: Path) -> None:
    """Both kinds of file; next run first, those without one last; only open ones by default."""
    path = new_session(home, "x", session_id="s")
    put(
        home,
        "s",
        native(path, "none", nextRunAt=None),
        native(path, "late", nextRunAt="2027-01-02T00:00:00.000Z", status="active"),
        native(path, "done", nextRunAt=None, status="completed"),
    )
    put(home, "", native(path, "early", nextRunAt="2027-01-01T00:00:00.000Z"),
        native(path, "off", status="cancelled"))  # fmt: skip
    before = picture(home)

    def ids(*options: str) -> list[str]:
        listed = fine("schedule", "list", "--offline", "--json", *options, home=home).json
        return [one["id"] for one in listed["jobs"]]

    assert ids() == ["early", "late", "none"]
    assert ids("--all") == ids("-a") == ["early", "off", "late", "none", "done"] or set(
        ids("--all")
    ) == {"early", "late", "none", "done", "off"}
    assert picture(home) == before
    assert fine("schedule", "list", "--offline", home=home / "elsewhere").lines == [
        "No scheduled prompts."
    ]


def test_one_bad_file_or_job_stops_no_other(home: Path) -> None:
    """They are told, with the file and nothing that stands in it, and the exit code says so."""
    path = new_session(home, "x", session_id="s")
    put(home, "s", native(path, "j"), {"id": SECRET}, 7)
    for name, data in (("bad", SECRET.encode()), ("none", b"{}"), ("deep", b"[" * 9999)):
        put(home, name).write_bytes(data)
    ran = run("schedule", "list", "--offline", "--json", home=home)
    assert ran.code == 1
    assert [one["id"] for one in ran.json["jobs"]] == ["j"]
    assert ran.stderr.count("\n") == 5
    assert SECRET not in ran.stderr + ran.out


@pytest.mark.parametrize("place", ["folder", "file", "root"])
def test_links_among_the_artifacts_are_refused(home: Path, place: str) -> None:
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j"))
    if place == "folder":
        (home / "session-artifacts" / "linked").symlink_to("s")
    elif place == "file":
        file.rename(file.with_name("moved"))
        file.symlink_to("moved")
    else:
        (home / "cron-jobs.json").symlink_to("nowhere")
    ran = run("schedule", "list", "--offline", home=home)
    assert ran.code == 1
    assert "symbolic link" in ran.stderr
    assert not ran.stdout


# Resuming


def test_a_migrated_job_is_resumed_by_its_new_id(tmp_path: Path) -> None:
    """Import, listing and opening resume nothing; `schedule resume` of the new id does."""
    home = tmp_path / "new"
    result = migrate_root(small_root(tmp_path), home)
    (cron,) = (one for one in result.plan.jobs if one.raw["source"] == "cron")
    store = Store(str(home), str(home / "sessions"))
    with Session.open(store.journal_path(cron.session_id)) as session:
        assert find_job(store, cron.id).job.status == "paused"
        ran = run("schedule", "resume", cron.id, home=home)
        assert ran.code == 3
        assert "in the frontend that has its session open" in ran.stderr
        assert [one.id for one in SessionSchedules.of(session).jobs()] == [cron.id]
    assert find_job(store, cron.id).job.status == "paused"
    assert run("schedule", "resume", "c1", home=home).code == 1  # the old id
    ran = fine("schedule", "resume", cron.id, home=home)
    found = find_job(store, cron.id).job
    assert ran.lines == [f"Resumed {cron.id} next={found.next_run_at}"]
    assert found.status == "active"
    assert found.raw["updatedAt"] < found.next_run_at  # type: ignore[operator]
    assert found.raw["prompt"] == cron.raw["prompt"]
    again = run("schedule", "resume", cron.id, home=home)
    assert again.code == 1
    assert "only paused top-level cron jobs" in again.stderr


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"status": "active"}, Conflict, "only paused"),
        ({"status": "completed"}, Conflict, "only paused"),
        ({"source": "heartbeat"}, Conflict, "only paused"),
        ({"source": "rlm_heartbeat"}, Conflict, "only paused"),
        ({"runtimeKind": "subagent"}, Conflict, "only paused"),
        ({"sessionId": "other"}, Conflict, "does not belong"),
        ({"sessionFile": "/elsewhere/s.jsonl"}, Conflict, "does not belong"),
        ({"sessionFile": "\0"}, Conflict, "does not belong"),
        ({"activeSessionId": "another runtime"}, Conflict, "does not belong"),
        ({"activeSessionId": None}, Conflict, "does not belong"),
        ({"schedule": {"kind": "once", "expression": SECRET}}, Invalid, "recurring"),
        ({"schedule": {"kind": "cron", "expression": SECRET}}, Invalid, "no cron expression"),
        (
            {"schedule": {"kind": "interval", "expression": "x", "intervalMs": 9_999}},
            Invalid,
            "under 10 s",
        ),
    ],
)
def test_what_cannot_be_resumed(
    home: Path, change: dict[str, Any], kind: type[TreeringError], says: str
) -> None:
    """Refused with the reason; the file is as it was, and no text of it is repeated."""
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j", **change))
    before = file.read_bytes()
    with Session.open(path) as session:
        with pytest.raises(kind, match=says) as refused:
            SessionSchedules.of(session).resume("j")
    assert SECRET not in str(refused.value)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_ids_that_name_no_job_or_several(home: Path) -> None:
    path = new_session(home, "x", session_id="s")
    put(home, "s", native(path, "twice"))
    put(home, "", native(path, "twice"))
    with Session.open(path) as session:
        bound = SessionSchedules.of(session)
        with pytest.raises(NotFound, match="schedule list"):
            bound.resume("nothing")
        with pytest.raises(Conflict, match="2 scheduled jobs"):
            bound.resume("twice")


def test_resuming_changes_three_members_and_nothing_else(home: Path) -> None:
    """Members that nobody knows here, other jobs and dispatches stay; the session's link counts."""
    path = new_session(home, "x", session_id="s")
    (home / "link").symlink_to(home / "sessions")
    linked = str(home / "link" / "s.jsonl")
    schedule = {"kind": "interval", "expression": "every 1 m", "intervalMs": 60000, "more": 1.5}
    file = put(home, "s", native(path, "j", schedule=schedule, sessionFile=linked), 7,
               native(path, "other"))  # fmt: skip
    before = json.loads(file.read_bytes())
    with Session.open(path) as session:
        SessionSchedules.of(session).resume("j", now_ms=NOW)
    after = json.loads(file.read_bytes())
    assert after["dispatches"] == before["dispatches"]
    assert after["jobs"][1:] == before["jobs"][1:]
    assert after["jobs"][0] == before["jobs"][0] | {
        "status": "active",
        "nextRunAt": "2027-01-15T08:01:00.000Z",
        "updatedAt": "2027-01-15T08:00:00.000Z",
    }
    assert file.stat().st_mode & 0o777 == 0o600


def test_binding_takes_jobs_over_and_resumes_none(home: Path) -> None:
    """Only the binding of jobs of this very file is rewritten."""
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j"), native(path, "k", sessionFile="/else/s.jsonl"))
    whole = put(home, "", native(path, "m", status="active"), job("n", "t"))
    with Session.open(path) as session:
        bound = SessionSchedules.of(session, active_session_id="runtime-2")
        with pytest.raises(Conflict, match="does not belong"):
            bound.resume("j")
        assert bound.bind() == 2
        assert bound.bind() == 0
        assert jobs_in(file)["j"]["activeSessionId"] == "runtime-2"
        assert jobs_in(file)["j"]["status"] == "paused"
        assert jobs_in(file)["k"]["activeSessionId"] == "s"
        assert jobs_in(whole)["m"]["status"] == "active"
        assert jobs_in(whole)["n"]["activeSessionId"] == "old-runtime"
        assert bound.resume("j").status == "active"


def test_heartbeats_have_a_control_of_their_own(home: Path) -> None:
    """Listed by source; resumed, paused and cancelled by their ids."""
    path = new_session(home, "x", session_id="s")
    every = {"kind": "interval", "expression": "every 30 s", "intervalMs": 30_000}
    once = {"kind": "once", "expression": "in 5 m"}
    file = put(
        home,
        "s",
        native(path, "r", source="rlm_heartbeat", schedule=every),
        native(path, "u", source="heartbeat", schedule=every),
        native(path, "o", source="rlm_heartbeat", schedule=once),
        native(path, "c"),
        native(path, "x", source="rlm_heartbeat", sessionId="t"),
    )
    with Session.open(path) as session:
        beats = SessionSchedules.of(session).heartbeats()
        assert [one.id for one in beats.list()] == ["r", "o"]
        assert beats.update("r", status="resume", now_ms=NOW).status == "active"
        assert jobs_in(file)["r"]["nextRunAt"] == "2027-01-15T08:00:30.000Z"
        with pytest.raises(Conflict, match="is active"):
            beats.update("r", status="resume")
        assert beats.update("r", status="pause").next_run_at is None
        with pytest.raises(Conflict, match="is paused"):
            beats.update("r", status="pause")
        for name, kind in (("u", Conflict), ("c", Conflict), ("x", Conflict), ("o", Invalid)):
            with pytest.raises(kind):
                beats.update(name, status="resume")
        with pytest.raises(Invalid, match="resume, pause or cancel"):
            beats.update("r", status="stop")  # type: ignore[arg-type]
        beats.update("r", status="cancel")
        with pytest.raises(Conflict, match="is cancelled"):
            beats.update("r", status="resume")
        assert jobs_in(file)["r"]["status"] == "cancelled"
        users = SessionSchedules.of(session).heartbeats("heartbeat")
        assert [one.id for one in users.list()] == ["u"]
        assert users.update("u", status="resume").status == "active"


# Files


def test_an_error_at_every_disk_call_changes_all_or_nothing(home: Path) -> None:
    """The file is the old one or the new one, whole; nothing else is left but a lock that says
    whose it was, and the next change works."""
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j"))
    old = file.read_bytes()
    count = FaultyDisk()
    change = lambda jobs: jobs[0].update(status="active") or True  # noqa: E731
    change_jobs(count, str(file), change)
    new, operations = file.read_bytes(), count.take()
    assert len(operations) > 15
    changed = 0
    for number in range(1, len(operations) + 1):
        file.write_bytes(old)
        disk = FaultyDisk()
        disk.fail(at=number, error=(errno.EIO, errno.ENOSPC)[number % 2])
        try:
            change_jobs(disk, str(file), change)
            assert file.read_bytes() == new
        except OutcomeUnknown:
            assert file.read_bytes() == new
            changed += 1
        except TreeringError:
            assert file.read_bytes() == old
        assert disk.open_files == 0
        assert change_jobs(FaultyDisk(), str(file), change)
        assert os.listdir(file.parent) == [file.name]
    assert changed == 1


def test_a_kill_at_any_change(home: Path) -> None:
    """The file is the old one or the new one, and the next change needs no 30 seconds."""

    class KilledError(BaseException):
        pass

    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j"))
    old = file.read_bytes()
    change = lambda jobs: jobs[0].update(status="active") or True  # noqa: E731
    for number in range(1, 100):
        file.write_bytes(old)
        disk = FaultyDisk()
        seen = 0

        def die(op: object, number: int = number) -> None:
            nonlocal seen
            seen += 1
            if seen >= number:
                raise KilledError

        disk.before = die
        try:
            change_jobs(disk, str(file), change)
        except KilledError:
            assert jobs_in(file)["j"]["status"] in ("paused", "active")
        else:
            break
        lock = file.with_name(file.name + ".lock")
        if lock.exists() and not lock.read_bytes():  # it had not even said whose it is
            os.utime(lock, (0, 0))
        assert change_jobs(FaultyDisk(), str(file), change)
        assert os.listdir(file.parent) == [file.name]
    assert number > 15


def test_two_writers_lose_nothing(home: Path) -> None:
    """Eight threads, twenty changes each, one file: every change is in it."""
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j", runCount=0))
    disk = FaultyDisk()
    disk.skip_syncs = True

    def count() -> None:
        for _ in range(20):
            while True:
                try:
                    change_jobs(
                        disk,
                        str(file),
                        lambda jobs: jobs[0].update(runCount=jobs[0]["runCount"] + 1) or True,
                    )
                    break
                except Owned:
                    continue

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs_in(file)["j"]["runCount"] == 160
    assert os.listdir(file.parent) == [file.name]


def test_the_lock_of_another_program_counts_for_thirty_seconds(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "j"))
    lock = file.with_name(file.name + ".lock")
    lock.write_text("")
    monkeypatch.setattr(file_store, "_LOCK_WAIT_S", 0.0)
    before = file.read_bytes()
    with pytest.raises(Owned, match="30 seconds"):
        change_jobs(FaultyDisk(), str(file), lambda jobs: True)
    assert lock.exists()
    assert file.read_bytes() == before
    old = time.time() - 31
    os.utime(lock, (old, old))
    assert change_jobs(FaultyDisk(), str(file), lambda jobs: True)
    assert not lock.exists()


def test_a_file_that_is_none_is_not_written(home: Path) -> None:
    path = put(home, "s")
    for data in (b"", b"{}", SECRET.encode(), b'{"jobs":[1e999]}', b"\xff"):
        path.write_bytes(data)
        with pytest.raises(Invalid):
            change_jobs(FaultyDisk(), str(path), lambda jobs: True)
        assert path.read_bytes() == data
    path.unlink()
    path.mkdir()
    with pytest.raises((Invalid, StorageError)):
        change_jobs(FaultyDisk(), str(path), lambda jobs: True)
    with pytest.raises(NotFound):
        change_jobs(FaultyDisk(), str(home / "nowhere" / "x.json"), lambda jobs: True)
    assert os.listdir(path.parent) == ["scheduled-jobs.json"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_what_is_written_reads_the_same(value: Any) -> None:
    assert decode_json(encode_json(value), "x") == value


def test_lone_surrogates_survive() -> None:
    data = rb'{"jobs": [{"prompt": "\ud800"}]}'
    assert decode_json(encode_json(decode_json(data, "x")), "x") == decode_json(data, "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2027-01-15T07:59:59.999Z", "2027-01-15T08:00:00.000Z"),
        ("2027-01-15T08:00:00.000Z", "2027-01-15T08:00:00.001Z"),
        ("2027-01-15T09:00:00.000Z", "2027-01-15T09:00:00.001Z"),
        ("tomorrow", "2027-01-15T08:00:00.000Z"),
        (None, "2027-01-15T08:00:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "2027-01-15T08:00:00.000Z"),
    ],
)
def test_a_change_is_later_than_the_last_one(old: Any, new: str) -> None:
    """A frontend merges two snapshots by the newest ``updatedAt``: ours must be newer."""
    assert later_than(old, NOW) == new


# Next runs


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2027-01-15 08:00:00", "2027-01-15 08:01:00"),
        ("* * * * *", "2027-01-15 08:00:30", "2027-01-15 08:01:00"),
        ("*/5 * * * *", "2027-01-15 08:04:59", "2027-01-15 08:05:00"),
        ("0 9 * * 1-5", "2027-01-15 09:00:00", "2027-01-18 09:00:00"),
        ("0 9 * * 0", "2027-01-15 09:00:00", "2027-01-17 09:00:00"),
        ("0 9 * * 7", "2027-01-15 09:00:00", "2027-01-17 09:00:00"),
        ("15,45 8-10/2 * * *", "2027-01-15 08:20:00", "2027-01-15 08:45:00"),
        ("15,45 8-10/2 * * *", "2027-01-15 08:45:00", "2027-01-15 10:15:00"),
        ("0 0 13 * 5", "2027-01-15 00:00:00", "2027-08-13 00:00:00"),
        ("0 0 1 1 *", "2027-01-15 00:00:00", "2028-01-01 00:00:00"),
        ("@hourly", "2027-01-15 08:00:00", "2027-01-15 09:00:00"),
        ("@daily", "2027-01-15 08:00:00", "2027-01-16 00:00:00"),
        ("@weekly", "2027-01-15 08:00:00", "2027-01-17 00:00:00"),
        ("@monthly", "2027-01-15 08:00:00", "2027-02-01 00:00:00"),
        (" 0 9 * * * ", "2027-01-15 08:00:00", "2027-01-15 09:00:00"),
    ],
)
def test_cron_expressions(
    zone: Callable[[str], None], expression: str, after: str, expected: str
) -> None:
    """In local time; a day must fit both of its fields."""
    zone("Europe/Berlin")
    one = ScheduledJob(job("j", "s", schedule={"kind": "cron", "expression": expression}))
    assert next_run_ms(one, at(after)) == at(expected)


@pytest.mark.parametrize(
    "expression",
    [
        "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *",
        "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "0 9 * * MON", "0 0 L * *",
        "0 0 * * 1#2", "@yearly", "@reboot", "0 0 31 2 *", "0 0 30 2 1", "0 0 29 2 *",
        "* * * * *\n* * * * *", "- * * * *", ", * * * *", "\u0665 * * * *",
    ],
)  # fmt: skip
def test_expressions_that_have_no_next_run(zone: Callable[[str], None], expression: str) -> None:
    """Not of the documented grammar, or no run within 366 days."""
    zone("UTC")
    assert next_cron_ms(expression, NOW) is None


def test_clocks_that_are_put_forward_and_back(zone: Callable[[str], None]) -> None:
    """Berlin: 02:30 is not there on 28 March 2027, and 02:30 comes twice on 31 October."""
    zone("Europe/Berlin")
    gap = next_cron_ms("30 2 * * *", at("2027-03-28 00:00:00"))
    assert gap is not None
    assert time.strftime("%d %H:%M", time.localtime(gap / 1000)) == "28 03:30"
    after = next_cron_ms("30 2 * * *", gap)
    assert after == at("2027-03-29 02:30:00")
    first = next_cron_ms("30 2 * * *", at("2027-10-31 00:00:00"))
    assert first is not None
    assert next_cron_ms("30 2 * * *", first) == at("2027-11-01 02:30:00")
    second = first + 3_600_000  # the same on the clock: the hour has run
    assert next_cron_ms("*/10 * * * *", second) == second + 1_800_000


@given(
    st.integers(0, 40 * 365 * 24 * 60),
    st.sampled_from(["*", "0", "*/7", "3,33", "10-20"]),
    st.sampled_from(["*", "5", "*/6", "9-17"]),
    st.sampled_from(["*", "13", "1-7"]),
    st.sampled_from(["*", "0", "5", "1-5", "6,7"]),
)
def test_next_runs_are_those_of_a_plain_search(
    minutes: int, minute: str, hour: str, day: str, weekday: str
) -> None:
    """Against trying every minute of the next ten days, field by field."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    after = NOW // 60_000 * 60_000 + minutes * 60_000
    found = next_cron_ms(f"{minute} {hour} {day} * {weekday}", after)
    allowed = [
        _numbers(field, low, high)
        for field, low, high in ((minute, 0, 59), (hour, 0, 23), (day, 1, 31), (weekday, 0, 7))
    ]
    expected = None
    for step in range(1, 10 * 24 * 60 + 1):
        moment = time.gmtime(after // 1000 + step * 60)
        weekdays = {number % 7 for number in allowed[3]}
        if (
            moment.tm_min in allowed[0]
            and moment.tm_hour in allowed[1]
            and moment.tm_mday in allowed[2]
            and (moment.tm_wday + 1) % 7 in weekdays
        ):
            expected = after + step * 60_000
            break
    if expected is not None:
        assert found == expected
    else:
        assert found is None or found > after + 10 * DAY


def _numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            begin, end = low, high
        else:
            first, _, last = span.partition("-")
            begin, end = int(first), int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


# Deletion


def test_deleting_a_session_cancels_its_jobs(home: Path) -> None:
    """Active and paused ones, in both kinds of file, before the artifacts go; undelete brings them
    back cancelled. Jobs of others stay."""
    path = new_session(home, "x", session_id="s")
    other = new_session(home, "y", session_id="t")
    put(home, "s", native(path, "a", status="active"), native(path, "p"),
        native(path, "d", status="completed"), 7)  # fmt: skip
    kept = put(home, "t", native(other, "o", status="active"))
    whole = put(home, "", native(path, "g", status="active"), native(other, "h"),
                native(path, "f", sessionId="odd", status="active"))  # fmt: skip
    before = kept.read_bytes()
    delete_session(path)
    assert kept.read_bytes() == before
    states = {name: one["status"] for name, one in jobs_in(whole).items()}
    assert states == {"g": "cancelled", "h": "paused", "f": "cancelled"}
    store = Store(str(home), str(home / "sessions"))
    assert {one.job.id for one in read_schedules(store).jobs} == {"o", "g", "h", "f"}
    undelete_session(store, "s")
    states = {one.job.id: one.job.status for one in read_schedules(store).jobs}
    assert states == {"a": "cancelled", "p": "cancelled", "d": "completed", "o": "active",
                      "g": "cancelled", "h": "paused", "f": "cancelled"}  # fmt: skip
    assert all(one.job.next_run_at is None for one in read_schedules(store).jobs
               if one.job.status == "cancelled")  # fmt: skip


def test_a_schedule_file_that_is_none_does_not_stop_a_deletion(home: Path) -> None:
    """It goes into the trash as it is, and comes back as it was."""
    path = new_session(home, "x", session_id="s")
    file = put(home, "s")
    file.write_bytes(b"garbage")
    delete_session(path)
    undelete_session(Store(str(home), str(home / "sessions")), "s")
    assert file.read_bytes() == b"garbage"


def test_a_failing_disk_while_cancelling(home: Path) -> None:
    """Whatever fails on the way: in the end the session is deleted and no job of it is open."""
    store = Store(str(home), str(home / "sessions"))
    at = 0
    while True:
        at += 1
        session_id = f"s{at}"
        path = new_session(home, "x", session_id=session_id)
        put(home, session_id, native(path, "a", status="active"))
        disk = FaultyDisk()
        rule = disk.fail(at=at, path="scheduled-jobs.json")
        try:
            delete_session(path, disk=disk)
        except TreeringError:
            delete_session(path)
        undelete_session(store, session_id)
        (found,) = (one for one in read_schedules(store).jobs if one.job.session_id == session_id)
        assert found.job.status == "cancelled", at
        if not rule.fired:
            break
    assert at > 8


def test_cancelling_again_changes_nothing(home: Path) -> None:
    path = new_session(home, "x", session_id="s")
    file = put(home, "s", native(path, "a", status="active"))
    store = Store(str(home), str(home / "sessions"))
    assert cancel_session_jobs(store, "s") == 1
    before = picture(home)
    assert cancel_session_jobs(store, "s") == 0
    assert re.sub(r"\s", "", file.read_text())
    assert picture(home, folder_times=False) == {
        name: (*value[:3], value[3] if value[0] & 0o100000 else 0, value[4])
        for name, value in before.items()
    }
