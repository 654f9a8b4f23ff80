"""The kill harness: its scenes hold, and it finds the faults that it is there for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from treering.engine import Session
from treering.fuzz.kills.blows import CALLS, why_no_strace
from treering.fuzz.kills.command import command
from treering.fuzz.kills.crew import BrokenPromise, Crew
from treering.fuzz.kills.oracle import Book
from treering.fuzz.kills.owners import ONLOOKERS, Stage
from treering.fuzz.kills.planted import PLANTS
from treering.fuzz.kills.run import ACTORS, EXACT_PAIRS, SCENES, Run, Settings, Summary, walk
from treering.fuzz.kills.story import ALL_HOWS, Story, item_of, items_of
from treering.tools import fsck

NO_STRACE = why_no_strace()

ROUNDS_TO_FIND = 150
"""A planted fault is found within so many; most take under ten."""


def run(tmp_path: Path, rounds: int, *actors: str, plant: str | None = None) -> Summary:
    settings = Settings(rounds, 11, actors, folder=str(tmp_path), plant=plant)
    return Run(settings, lambda line: None).play()


@pytest.mark.parametrize("actor", ["creator", "importer", "recoverer", "repairer", "reindexer"])
def test_kills_at_random_moments(tmp_path: Path, actor: str) -> None:
    """What makes or replaces a journal, or builds an index, leaves all of it or none."""
    summary = run(tmp_path, 6, actor)
    assert summary.failure is None
    assert summary.kills > 0  # a command that has ended before its moment is not killed


def test_races_for_a_session_have_one_winner(tmp_path: Path) -> None:
    """Six processes open one session at one moment, also while its owner dies."""
    summary = run(tmp_path, 8, "rivals")
    assert summary.failure is None
    assert summary.kills >= 8


@pytest.mark.parametrize(("actor", "rounds"), [("copier", 3), ("deleter", 10), ("captures", 4)])
def test_copies_and_deletions_beside_others(tmp_path: Path, actor: str, rounds: int) -> None:
    """Copies of a session in use are whole; what is deleted is whole in one place."""
    summary = run(tmp_path, rounds, actor)
    assert summary.failure is None
    assert summary.kills >= rounds
    assert summary.figures.acknowledged > 0


@pytest.mark.skipif(NO_STRACE is not None, reason=f"no kills at chosen calls: {NO_STRACE}")
@pytest.mark.parametrize(
    "pair",
    [
        ("creator", "link"),
        ("creator", "fsync"),
        ("importer", "pwrite64"),
        ("recoverer", "ftruncate"),
        ("repairer", "rename"),
        ("repairer", "link"),
        ("reindexer", "unlink"),
        ("writer", "flock"),
        ("writer", "write"),
        ("copier", "link"),
        ("deleter", "rename"),
        ("deleter", "rmdir"),
    ],
    ids="@".join,
)
def test_kills_at_every_call_of_a_kind(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Killed at the first such call, the second, and so on to the last."""
    assert pair in EXACT_PAIRS
    actor, call = pair
    with Crew(errors_path=str(tmp_path / "stderr.txt")) as crew:
        scene = SCENES[actor][0](Stage(crew, str(tmp_path / "home"), "ci"))
        calls, to_the_end = walk(scene, call, 30)
        assert to_the_end
        assert crew.killed.total() == calls
    assert calls > 0, "no such call is made: nothing was tested"


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_faults_are_found(tmp_path: Path, plant: str) -> None:
    """Each fault that is put into the processes under test breaks a promise soon."""
    summary = run(tmp_path, ROUNDS_TO_FIND, *PLANTS[plant][1], plant=plant)
    failure = summary.failure
    assert failure is not None, f"{plant} was not found in {ROUNDS_TO_FIND} rounds"
    assert failure.what.startswith("BrokenPromise: "), failure.what
    assert os.path.isdir(failure.folder)
    assert f"--first-store {failure.store} --rounds {failure.round}" in failure.command


def test_a_story_is_the_same_for_who_writes_and_who_judges() -> None:
    """Same seed, round and position: same calls, same bytes; another round is another story."""

    def calls(number: int) -> list[object]:
        story = Story("seed", number, None, hows=ALL_HOWS, large=100)
        found = []
        for at in range(60):
            op = story.next()
            found.append((op, items_of(op, story.leaf)))
            story.done(op, f"label-{at}" if op.how == "label" else None)
        return found

    assert calls(1) == calls(1)
    assert calls(1) != calls(2)
    assert {op.how for op, _ in calls(1)} == set(ALL_HOWS)  # type: ignore[misc]


def test_labels_are_compared_by_what_their_writer_chose() -> None:
    label = {"type": "label", "id": "x", "parentId": "p", "timestamp": "t", "targetId": "e"}
    assert item_of(json.dumps(label).encode()) == ("label", "p", "e", None)
    more = json.dumps(label | {"label": "a", "more": 1}).encode()
    assert item_of(more) == more


def test_an_entry_that_nobody_appended_is_found(tmp_path: Path) -> None:
    """The judge believes no more than it was told."""
    with Session.create("/work", home_dir=str(tmp_path / "home")) as session:
        session.append({"type": "custom", "customType": "of nobody"})
    with pytest.raises(BrokenPromise, match="nobody appended"):
        Book(session.path).judge(None, delete_index=False, append=False)


# The command


def test_command_plays_and_sums_up(tmp_path: Path) -> None:
    arguments = ["--rounds", "3", "--seed", "5", "--actors", "writer,reader", "--json"]
    done = CliRunner().invoke(command, [*arguments, "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["seed"], found["rounds"], found["failure"]) == (5, 3, None)
    assert found["kills"] >= 3
    assert list(tmp_path.iterdir()) == []


def test_command_says_how_to_see_it_again(tmp_path: Path) -> None:
    arguments = ["--rounds", "40", "--seed", "5", "--actors", "rivals", "--plant", "lock-ignored"]
    done = CliRunner().invoke(command, [*arguments, "--folder", str(tmp_path)])
    assert done.exit_code == 1
    assert "BROKEN" in done.output
    assert "python -m treering.fuzz kill --seed 5 --first-store" in done.output
    assert len(list(tmp_path.iterdir())) == 1


def test_seconds_end_a_run(tmp_path: Path) -> None:
    arguments = ["--rounds", "100000", "--seconds", "1", "--actors", "creator"]
    done = CliRunner().invoke(command, [*arguments, "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--actors", "nobody"],
        ["--actors", "reader"],
        ["--rounds", "0"],
        ["--plant", "no-such-fault"],
        ["--folder", "/no/such/folder"],
    ],
)
def test_wrong_command_lines(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_what_cannot_be_traced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without strace the exact kills are skipped visibly, and nothing else is."""
    from treering.fuzz.kills import run as running

    monkeypatch.setattr(running, "why_no_strace", lambda: "strace is not installed")
    arguments = ["--rounds", "2", "--actors", "exact,creator", "--folder", str(tmp_path)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "SKIPPED exact: strace is not installed" in done.output
    alone = CliRunner().invoke(command, ["--actors", "exact", "--folder", str(tmp_path)])
    assert alone.exit_code == 3


def test_every_name_is_a_scene_or_an_onlooker() -> None:
    assert set(ACTORS) == {*SCENES, *ONLOOKERS, "exact"}
    assert {call for _, call in EXACT_PAIRS} == set(CALLS)


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "has closed again"])
def test_fsck_while_an_owner_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """An index that covers what was appended after fsck had captured the journal is no finding
    (found by a check beside a writer)."""
    with Session.create("/work", home_dir=str(tmp_path / "home")) as session:
        path = session.path
    owners = []
    examine = fsck.examine

    def examined(*args: Any, **more: Any) -> Any:
        found = examine(*args, **more)
        owners.append(Session.open(path))
        owners[0].append({"type": "custom", "customType": "meanwhile"})
        assert owners[0].counts()["entries"] == 1  # by an index that covers it
        if not stays:
            owners[0].close()
        return found

    monkeypatch.setattr(fsck, "examine", examined)
    checked = fsck.check_session(path, with_index=True)
    owners[0].close()
    assert checked.ok, checked.findings
    assert checked.index.state == "in use, not compared"


def test_nothing_outlives_a_harness_that_was_killed(tmp_path: Path) -> None:
    """Not the server, not a writer, not a stopped one."""
    with Session.create("/work", home_dir=str(tmp_path / "home")) as session:
        path = session.path
    crew = Crew()
    story = {"seed": "s", "round": 0, "hows": ALL_HOWS, "large": 100}
    actors = [crew.start("writer", path=path, patient=True, **story) for _ in range(2)]
    crew.until(lambda: any(actor.has_said("ACK") for actor in actors), "a writer")
    for actor in actors:
        crew.signal(actor, "SIGSTOP")
    crew.close()
    for actor in actors:
        with pytest.raises(ProcessLookupError):
            os.kill(actor.pid, 0)
