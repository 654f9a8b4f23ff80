"""Dry runs: every refusal, what comes along of the settings, and nothing written or told."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from migration_helpers import (
    CORPUS,
    REFUSED,
    SECRET,
    WHOLE,
    corpus_root,
    file_of,
    job,
    needs_corpus,
    schedules,
    session_lines,
    small_root,
)
from support.stores import picture

from treering.engine import (
    Conflict,
    Invalid,
    InvalidSource,
    LimitExceeded,
    NotFound,
    StorageError,
    TreeringError,
)
from treering.engine.migration.migrating import migrate_root
from treering.engine.migration.plan import MigrationPlan, plan_migration
from treering.engine.migration.preferences import read_preferences
from treering.engine.transfer.legacy_model import CopyLimits

_CHANGING = frozenset(
    ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate",
     "os.chmod", "os.utime", "shutil.copyfile")
)  # fmt: skip
_watching: list[list[str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    seen = _watching[-1]
    if event == "open" and isinstance(arguments[2], int):
        if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            seen.append(f"open {arguments[0]!r}")
    elif event in _CHANGING:
        seen.append(f"{event} {arguments!r}")


sys.addaudithook(_watch)


@contextmanager
def nothing_written() -> Iterator[None]:
    """No call of this process, inside, changes a file system."""
    found: list[str] = []
    _watching.append(found)
    try:
        yield
    finally:
        _watching.pop()
    assert found == []


def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    for change in (
        lambda: (tmp_path / "x").write_text("x"),
        lambda: (tmp_path / "y").mkdir(),
        lambda: os.rename(tmp_path / "x", tmp_path / "z"),
    ):
        with pytest.raises(AssertionError):
            with nothing_written():
                change()


def test_a_dry_run_says_what_is_in_a_root_and_writes_nothing(tmp_path: Path) -> None:
    """No system call of it changes anything, and every file and time is as before."""
    root = small_root(tmp_path)
    before = picture(tmp_path)
    with nothing_written():
        plan = plan_migration(root, tmp_path / "new")
    assert picture(tmp_path) == before
    found = plan.as_json("dry-run")
    coverage, skipped = found.pop("coverage"), found.pop("skipped")
    assert found == {
        "pausedSchedules": 2,
        "skippedSchedules": 1,
        "mode": "dry-run",
        "destination": str(tmp_path / "new"),
        "preparedSessions": 2,
        "preparedEntries": 3,
        "settings": ["theme", "terminal.showImages"],
        "inactivePackages": ["npm:@scope/tool@1.2.3"],
        "skippedPackages": 1,
        "skippedSettings": 2,
        "skippedSessionEntries": 2,
    }
    assert all(isinstance(text, str) for text in coverage)
    assert [tuple(skip.values()) for skip in skipped] == [
        ("root-entry", "auth.json", "not-copied"),
        ("session-entry", "--old-project--", "folder-not-followed"),
        ("session-entry", "notes.txt", "not-named-as-a-session"),
        ("setting", "terminal#2", "not-supported"),
        ("setting", "settings.json#3", "not-supported"),
        ("package", "packages#2", "source-not-supported"),
        ("schedule", "cron-jobs.json#2", "not-active-or-paused"),
    ]


def test_nothing_secret_is_reported(tmp_path: Path) -> None:
    """The report, as JSON and as text, holds no value, prompt, label, name of a setting."""
    assert SECRET not in json.dumps(plan_migration(small_root(tmp_path)).as_json("dry-run"))


def test_an_empty_root_is_one(tmp_path: Path) -> None:
    root = tmp_path / "export"
    root.mkdir()
    plan = plan_migration(root)
    assert plan == MigrationPlan(str(root), None, CopyLimits(), (), read_preferences(None), (), ())


@needs_corpus
def test_real_files_as_a_root(tmp_path: Path) -> None:
    """Each whole file of the corpus is a session, with its own header's directory."""
    plan = plan_migration(corpus_root(tmp_path))
    assert [session.file for session in plan.sessions] == sorted(WHOLE)
    assert len({session.new_id for session in plan.sessions}) == len(WHOLE)
    by_file = {session.file: session for session in plan.sessions}
    assert by_file["07-fixture-child-usage-no-version.jsonl"].cwd == "C:/PRIVATE"
    assert by_file["04-real-v1-large-1019.jsonl"].entries == 1018
    assert all(len(session.digest) == 32 for session in plan.sessions)


@needs_corpus
@pytest.mark.parametrize("name", REFUSED)
def test_one_bad_journal_refuses_the_whole_root(tmp_path: Path, name: str) -> None:
    """Torn, fused, headerless, native: the file is named, and nothing that stands in it."""
    root = small_root(tmp_path)
    shutil.copy(CORPUS / name, root / "sessions" / name)
    with pytest.raises(InvalidSource, match="offline journal preparation failed") as refused:
        plan_migration(root)
    assert refused.value.path == str(root / "sessions" / name)
    assert refused.value.__cause__ is None


JOURNALS: dict[str, bytes] = {
    "no JSON": b'{"type":"session",' + SECRET.encode() + b"\n",
    "empty": b"",
    "version 4": session_lines("x", version=4),
    "version as a secret": session_lines("x", version=SECRET),
    "no cwd": session_lines("x", cwd=""),
    "cwd of another type": session_lines("x", cwd=[SECRET]),
    "cut": session_lines("x", SECRET)[:-3],
    "no line end": session_lines("x", SECRET)[:-1],
    "broken in the middle": session_lines("x") + SECRET.encode() + b"\n" + b'{"type":"custom"}\n',
    "an array": b'[{"type":"session"}]',
    "not an object": session_lines("x") + b"[1]\n",
}


@pytest.mark.parametrize("data", JOURNALS.values(), ids=JOURNALS)
def test_journals_that_cannot_be_prepared(tmp_path: Path, data: bytes) -> None:
    root = small_root(tmp_path)
    (root / "sessions" / "x.jsonl").write_bytes(data)
    with pytest.raises(InvalidSource, match="no destination was created") as refused:
        plan_migration(root)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_limits_are_those_of_a_copy(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    plan_migration(root, limits=CopyLimits(entries=2))
    with pytest.raises(LimitExceeded, match="limit of copies"):
        plan_migration(root, limits=CopyLimits(entries=1))
    plan_migration(root, limits=None)


# Places


def _link_instead(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    return write


def _folder(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).mkdir()

    return make


def _file(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        shutil.rmtree(root / name)
        (root / name).write_text(SECRET)

    return make


REFUSALS: dict[str, Callable[[Path], None]] = {
    "settings: a link": lambda root: _link_instead(root / "settings.json"),
    "settings: a folder": _folder("settings.json"),
    "settings: a FIFO": lambda root: (
        (root / "settings.json").unlink(),
        os.mkfifo(root / "settings.json"),
    )[1],
    "settings: no JSON": _write("settings.json", SECRET.encode()),
    "settings: no object": _write("settings.json", b'["' + SECRET.encode() + b'"]'),
    "settings: NaN": _write("settings.json", b'{"theme": NaN}'),
    "settings: too deep": _write("settings.json", b"[" * 5000 + b"]" * 5000),
    "settings: no UTF-8": _write("settings.json", b'{"theme": "\xff"}'),
    "sessions: a link": lambda root: _link_instead(root / "sessions"),
    "sessions: a file": _file("sessions"),
    "sessions: a link in it": lambda root: (root / "sessions" / "l.jsonl").symlink_to("x"),
    "sessions: a dangling link of another name": lambda root: (root / "sessions" / "l").symlink_to(
        "nowhere"
    ),
    "cron-jobs: a link": lambda root: _link_instead(root / "cron-jobs.json"),
    "cron-jobs: a folder": _folder("cron-jobs.json"),
    "cron-jobs: no JSON": _write("cron-jobs.json", b'{"jobs": [' + SECRET.encode()),
    "cron-jobs: no jobs": _write("cron-jobs.json", b'{"job": []}'),
    "cron-jobs: jobs no array": _write("cron-jobs.json", b'{"jobs": {}}'),
    "cron-jobs: an array": _write("cron-jobs.json", b"[]"),
    "artifacts: a link": lambda root: _link_instead(root / "session-artifacts"),
    "artifacts: a file": _file("session-artifacts"),
    "artifacts: a link in it": lambda root: (root / "session-artifacts" / "l").symlink_to("two"),
    "artifact folder: a file": _file("session-artifacts/two"),
    "artifact folder: a link": lambda root: _link_instead(root / "session-artifacts" / "two"),
    "schedules: a link": lambda root: _link_instead(
        root / "session-artifacts" / "two" / "scheduled-jobs.json"
    ),
    "schedules: a folder": _folder("session-artifacts/two/scheduled-jobs.json"),
    "schedules: no JSON": _write("session-artifacts/two/scheduled-jobs.json", SECRET.encode()),
    "schedules: no jobs": _write("session-artifacts/two/scheduled-jobs.json", b"{}"),
}


@pytest.mark.parametrize("spoil", REFUSALS.values(), ids=REFUSALS)
def test_one_wrong_thing_refuses_the_whole_root(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """For a dry run and an import alike; nothing is written, and nothing quoted."""
    root = small_root(tmp_path)
    spoil(root)
    before = picture(tmp_path)
    said = []
    for run in (plan_migration, migrate_root):
        with pytest.raises(Invalid) as refused:
            with nothing_written():
                run(root, tmp_path / "new")
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert SECRET not in said[0]
    assert picture(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_refuses_the_whole_root(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    (root / "sessions" / file_of("one")).chmod(0)
    with pytest.raises(StorageError):
        plan_migration(root)


@pytest.mark.parametrize("place", [".prime/agent", ".pi/agent", ".prime-context"])
def test_roots_that_are_in_use_are_refused(tmp_path: Path, place: str) -> None:
    """Itself, what it lies in, what lies in it, by whatever name; whether it is there or not."""
    user = tmp_path / "user"
    live = user / place
    (live / "inner").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(live.parent)
    for source in (live, live / "inner", live.parent, user, tmp_path / "alias" / live.name):
        with pytest.raises(Invalid, match=r"in use|symbolic"):
            plan_migration(source)
    beside = user / "export"
    beside.mkdir()
    plan_migration(beside)
    shutil.rmtree(live)
    with pytest.raises(Invalid, match="in use"):
        plan_migration(user)


def test_the_source_is_a_plain_folder(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "file").write_text("x")
    for name in ("link", "file"):
        with pytest.raises(Invalid, match="plain folder"):
            plan_migration(tmp_path / name)
    with pytest.raises(NotFound):
        plan_migration(tmp_path / "nowhere")


def test_places_that_a_destination_cannot_have(tmp_path: Path) -> None:
    """It exists, in whatever way; is, holds or lies in the source; or is an older product's."""
    root = small_root(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "into").symlink_to(root)
    (tmp_path / "user" / ".pi").mkdir(parents=True)
    before = picture(tmp_path)
    wrong: dict[Path, type[TreeringError]] = {
        tmp_path / "empty": Conflict,
        tmp_path / "file": Conflict,
        tmp_path / "dangling": Conflict,
        root: Conflict,
        tmp_path: Conflict,
        root / "new": Invalid,
        root / "sessions" / "new": Invalid,
        tmp_path / "into" / "new": Invalid,
        tmp_path / "user" / ".pi" / "new": Invalid,
        tmp_path / "nowhere" / "new": NotFound,
        tmp_path / "file" / "new": TreeringError,
    }
    for run in (plan_migration, migrate_root):
        for place, kind in wrong.items():
            with pytest.raises(kind):
                with nothing_written():
                    run(root, place)
    assert picture(tmp_path) == before


# Settings


def test_which_settings_come_along() -> None:
    taken = {
        "defaultProvider": "an-thropic/x",
        "defaultModel": "a.b_c/d:e+f-1",
        "theme": "so_la-rized",
        "quietStartup": False,
        "defaultThinkingLevel": "xhigh",
    }
    terminal = {"showImages": False, "showTerminalProgress": True}
    found = read_preferences(taken | {"terminal": terminal})
    assert found.written() == taken | {"terminal": terminal}
    assert found.names == [*taken, "terminal.showImages", "terminal.showTerminalProgress"]
    assert not found.skipped


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("defaultProvider", "with space"),
        ("defaultProvider", ""),
        ("defaultModel", "é"),
        ("defaultModel", "line\n"),
        ("defaultModel", 1),
        ("theme", "a/b"),
        ("theme", None),
        ("quietStartup", 1),
        ("quietStartup", "true"),
        ("defaultThinkingLevel", "most"),
        ("defaultThinkingLevel", ["off"]),
        ("terminal", []),
        ("terminal", {"showImages": "yes"}),
        ("terminal", {"other": True}),
        ("apiKey", SECRET),
    ],
)
def test_settings_that_stay_behind(name: str, value: Any) -> None:
    found = read_preferences({name: value})
    assert found.written() == {}
    assert len(found.skipped) == 1


@pytest.mark.parametrize(
    ("package", "shown"),
    [
        ("npm:tool", "npm:tool"),
        ("npm:@scope/tool.x@^1.2.3-rc+1", "npm:@scope/tool.x@^1.2.3-rc+1"),
        ("https://example.org/a/b.git", "https://example.org/[path not displayed]"),
        ("git+https://example.org:8443/a", "git+https://example.org/[path not displayed]"),
        ({"source": "npm:t", "skills": ["a"], "themes": []}, "npm:t"),
    ],
)
def test_packages_that_come_along_stay_inactive(package: Any, shown: str) -> None:
    found = read_preferences({"packages": [package]})
    assert found.written() == {"inactivePackages": [package]}
    assert found.shown_packages() == [shown]


@pytest.mark.parametrize(
    "package",
    [
        "tool",
        "npm:",
        "npm:Tool Box",
        "npm:../x",
        "npm:tool@",
        "npm:tool@https://x",
        "http://example.org/x",
        "git:example.org/x",
        "git+ssh://git@example.org/x",
        "https://user@example.org/x",
        f"https://user:{SECRET}@example.org/x",
        f"https://example.org/x?token={SECRET}",
        f"https://example.org/x#{SECRET}",
        "https:///x",
        "https://",
        "https://example.org:port/x",
        "https://example.org/a b",
        "https://example.org/\n",
        "./local",
        "/absolute",
        {"source": "npm:t", "env": {"K": SECRET}},
        {"source": "npm:t", "skills": "a"},
        {"source": "npm:t", "skills": [1]},
        {"skills": ["a"]},
        1,
        None,
        ["npm:t"],
    ],
)
def test_packages_that_stay_behind(package: Any) -> None:
    found = read_preferences({"packages": [package]})
    assert found.written() == {}
    assert [skip.kind for skip in found.skipped] == ["package"]
    assert SECRET not in repr(found.skipped)


# Schedules


def planned(root: Path) -> dict[str, str]:
    """Where each job stood, and why it is skipped; an empty reason means that it comes along."""
    plan = plan_migration(root)
    found = {skip.item: skip.reason for skip in plan.skipped if skip.kind == "schedule"}
    assert not found.keys() & {planned.item for planned in plan.jobs}
    return found | {planned.item: "" for planned in plan.jobs}


EVERY = {"kind": "interval", "expression": "every 5 m", "intervalMs": 300_000}
ONCE = {"kind": "once", "expression": "in 5 m"}
JOBS: list[tuple[str, Any]] = [
    ("", job("a", "one")),
    ("", job("b", "one", source=None, runtimeKind=None, status="paused", label=None)),
    ("", job("c", "one", source="rlm_heartbeat", schedule=EVERY, deliveryMode="steer")),
    ("", job("d", "one", schedule=ONCE, cwd=None)),
    ("", job("e", "one", source="heartbeat", runtimeKind="top-level")),
    ("", job("f", "one", status="paused", prompt="")),
    ("invalid-shape", 1),
    ("invalid-shape", None),
    ("invalid-shape", job("g", "one", prompt=None)),
    ("invalid-shape", job("h", "one", prompt=["x"])),
    ("invalid-shape", job("i", "one", schedule={"kind": "cron"})),
    ("invalid-shape", job("j", "one", schedule={"kind": "yearly", "expression": "x"})),
    ("invalid-shape", job("k", "one", schedule=EVERY | {"intervalMs": 0})),
    ("invalid-shape", job("l", "one", schedule=EVERY | {"intervalMs": True})),
    ("invalid-shape", job("m", "one", schedule={"kind": "interval", "expression": "x"})),
    ("invalid-shape", job("n", "one", source="other")),
    ("invalid-shape", job("o", "one", source=["cron"])),
    ("invalid-shape", job("p", "one", runtimeKind="other")),
    ("invalid-shape", job("q", "one", deliveryMode="other")),
    ("invalid-shape", job("r", "one", label=1)),
    ("invalid-shape", job("s", "one", sessionFile=None)),
    ("invalid-shape", job("t", "one", id=7)),
    ("empty-id", job("", "one")),
    ("not-active-or-paused", job("u", "one", status="completed")),
    ("not-active-or-paused", job("v", "one", status="cancelled")),
    ("not-active-or-paused", job("w", "one", status="sleeping")),
    ("one-shot-rlm-heartbeat", job("x", "one", source="rlm_heartbeat", schedule=ONCE)),
    ("subagent", job("y", "one", runtimeKind="subagent")),
    ("unsafe-session-id", job("z", "..")),
    ("unsafe-session-id", job("A", "a/one")),
    ("unsafe-session-id", job("B", "")),
    ("no-unique-session", job("C", "nobody")),
    ("no-unique-session", job("D", "twice")),
    ("session-below-another", job("E", "deep")),
    ("session-below-another", job("F", "deep-by-parent")),
    ("other-session-file", job("G", "one", sessionFile="/x/other.jsonl")),
    ("several-user-heartbeats", job("H", "two", source="heartbeat")),
    ("several-user-heartbeats", job("I", "two", source="heartbeat", status="paused")),
    ("not-active-or-paused", job("J", "one", source="heartbeat", status="cancelled")),
    ("duplicate-id", job("twice", "one")),
    ("duplicate-id", job("twice", "one", status="completed")),
    ("duplicate-id", job("in two files", "one")),
]  # fmt: skip
"""Each rule of the facts, and why a job is skipped; "" for those that come along."""


def schedules_root(tmp_path: Path) -> Path:
    """Every kind of job in the root's file, and those of artifacts in theirs."""
    root = small_root(tmp_path)
    sessions = root / "sessions"
    (sessions / file_of("twice")).write_bytes(session_lines("twice", "x"))
    (sessions / "copy.jsonl").write_bytes(session_lines("twice", "x"))
    (sessions / file_of("deep")).write_bytes(session_lines("deep", "x", rlmDepth=1))
    below = session_lines("deep-by-parent", "x", parentSession=f"/old/{file_of('deep')}")
    (sessions / file_of("deep-by-parent")).write_bytes(below)
    (root / "cron-jobs.json").write_bytes(schedules(*(value for _, value in JOBS)))
    for name, *jobs in (
        ("two", job("K", "two"), job("L", "one"), job("in two files", "two")),
        ("stranger", job("M", "one")),
    ):
        folder = root / "session-artifacts" / name
        folder.mkdir(exist_ok=True)
        (folder / "scheduled-jobs.json").write_bytes(schedules(*jobs))
    return root


def test_every_rule_of_the_schedules(tmp_path: Path) -> None:
    """Each job comes along or is skipped with its reason; each reason of the page occurs."""
    from treering.engine.migration import projection

    root = schedules_root(tmp_path)
    expected = {f"cron-jobs.json#{n}": reason for n, (reason, _) in enumerate(JOBS, 1)}
    inner = "session-artifacts/two/scheduled-jobs.json"
    expected |= {
        f"{inner}#1": "", f"{inner}#2": "other-artifact-folder", f"{inner}#3": "duplicate-id"
    }  # fmt: skip
    assert planned(root) == expected
    documented = set(re.findall(r"^\| ``([a-z-]+)``", projection.__doc__ or "", re.MULTILINE))
    assert documented == set(expected.values()) - {""}
    plan = plan_migration(root)
    unread = [skip for skip in plan.skipped if skip.kind == "schedule-file"]
    assert [tuple(skip) for skip in unread] == [
        ("schedule-file", "session-artifacts/stranger", "no-session-of-that-id")
    ]
    assert SECRET not in json.dumps(plan.as_json("dry-run"))


def test_one_user_heartbeat_is_enough_when_the_others_do_not_count(tmp_path: Path) -> None:
    """A cancelled heartbeat is skipped for that, and does not make the other one ambiguous."""
    root = small_root(tmp_path)
    (root / "cron-jobs.json").write_bytes(
        schedules(job("H", "two", source="heartbeat", status="cancelled"))
    )
    reasons = planned(root)
    assert reasons["cron-jobs.json#1"] == "not-active-or-paused"
    assert reasons["session-artifacts/two/scheduled-jobs.json#1"] == ""
