"""The explorer: it finds the mistakes of a small log, says nothing wrong of a right one, and brings
every state back by its number."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from treering.fuzz.explorer import Broken, Flow, again, explore, judge, record
from treering.fuzz.flows.catalogue import all_flows, flow_named
from treering.fuzz.ledger import Attempt, Expectation, Ledger
from treering.fuzz.plant_command import hunt
from treering.fuzz.planted_more import KNOWN_FAULTS
from treering.fuzz.toylog import MISTAKES, toy_flow


def test_a_right_log_has_no_findings_and_every_state_was_tried() -> None:
    explored = explore(toy_flow())
    assert explored.findings == []
    assert explored.exhaustive
    assert explored.built > explored.checked > 40


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_of_a_log_is_found(mistake: str) -> None:
    explored = explore(toy_flow(mistake), findings_max=1)
    assert len(explored.findings) == 1


def test_a_finding_comes_back_by_its_number() -> None:
    flow = toy_flow("no checksum")
    (found,) = explore(flow, seed=3, findings_max=1).findings
    expectation = record(flow, 3).points[found.at].expectation
    assert isinstance(expectation, Expectation)
    why = judge(flow, again(flow, 3, found.at, found.state), expectation)
    assert why == found.why
    assert "--seed 3" in str(found)


def test_a_moment_or_state_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="moments"):
        again(toy_flow(), 0, 1000, 0)
    with pytest.raises(ValueError, match="states"):
        again(toy_flow(), 0, 1, 1 << 40)


def test_the_same_seed_gives_the_same_states() -> None:
    flow = flow_named("append+batch")
    for seed in (0, 1):
        first, second = record(flow, seed), record(flow, seed)
        assert [point.files for point in first.points] == [point.files for point in second.points]
    assert record(flow, 0).points[-1].files != record(flow, 1).points[-1].files


def test_an_error_of_the_flow_is_not_hidden() -> None:
    def run(*_: object) -> None:
        raise Broken("the flow itself")

    flow = Flow("broken", lambda *_: None, run, lambda *_: None)
    with pytest.raises(Broken, match="the flow itself"):
        explore(flow)


def test_what_a_ledger_allows() -> None:
    ledger = Ledger()
    with ledger.attempt("a"):
        pass
    with pytest.raises(OSError, match="x"), ledger.attempt("b", "c"):
        raise OSError("x")
    assert ledger.expectation.allowed() == {("a",), ("a", "b"), ("a", "b", "c")}
    with (
        pytest.raises(ValueError, match="no"),
        ledger.attempt("d", unknown=(OSError,), refusals=(ValueError,)),
    ):
        raise ValueError("no")
    assert ledger.expectation.pending == (Attempt(("b", "c"), atomic=False),)
    with pytest.raises(AssertionError, match="may not be there"):
        ledger.observe(["a", "c"])
    ledger.observe(["a", "b"])
    with ledger.attempt("e", "f", atomic=True, durable=False):
        pass
    assert ledger.expectation.allowed() == {("a", "b"), ("a", "b", "e", "f")}
    ledger.settle()
    assert ledger.expectation.allowed() == {("a", "b", "e", "f")}


def test_the_end_of_a_process_takes_nothing_that_was_acknowledged() -> None:
    ledger = Ledger()
    with ledger.attempt("a", durable=False):
        pass
    with pytest.raises(OSError, match="x"), ledger.attempt("b", "c", durable=False):
        raise OSError("x")
    after_power = {(), ("a",), ("a", "b"), ("a", "b", "c")}
    assert ledger.expectation.allowed() == after_power
    assert ledger.expectation.after_death().allowed() == after_power - {()}
    with pytest.raises(AssertionError, match="may not be there"):
        ledger.observe([], power_failed=False)
    resumed = Ledger()
    resumed.resume(ledger.expectation)
    assert resumed.expectation.after_death().allowed() == after_power
    ledger.observe(["a", "b"], power_failed=False)
    assert ledger.expectation.allowed() == {("a", "b")}


@pytest.mark.parametrize("name", ["index-first", "import-salvage", "noted"])
def test_every_byte_of_a_state_comes_from_the_seed(name: str) -> None:
    """Also what SQLite draws, where a source lies for a moment, and who leaves a note."""
    first, second = record(flow_named(name), 0), record(flow_named(name), 0)
    assert [point.files for point in first.points] == [point.files for point in second.points]


SLOW = {"index-never-synced", "index-watermark-ahead"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in KNOWN_FAULTS]
)
def test_each_planted_fault_is_found(name: str) -> None:
    found = hunt(KNOWN_FAULTS[name], most=16 if name.startswith("index") else 256)
    assert found.found_in is not None


def test_there_are_enough_planted_faults_and_all_flows_have_names_of_their_own() -> None:
    assert len(KNOWN_FAULTS) >= 36
    names = [flow.name for flow in all_flows()]
    assert len(set(names)) == len(names) > 600
    for name in (
        "create",
        "batch",
        "append+kill+batch",
        "recover:many:3",
        "no-space:many:300",
        "no-space:many:300:unsynced",
        "killed:repair:7",
        "failed-opening:2:dropped:evicted",
    ):
        assert flow_named(name).name == name


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treering.fuzz", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_explores_and_sums_up() -> None:
    done = command("explore", "append", "create", "--most", "32", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["flows"] == 2
    assert figures["findings"] == 0
    assert figures["states_checked"] == sum(one["checked"] for one in figures["results"]) > 50
    shown = command("explore", "append", "--most", "32")
    assert re.fullmatch(r"1 flows, \d+ moments, .* 0 findings in [\d.]+ s\n", shown.stdout)


def test_the_command_shows_a_moment_and_a_state() -> None:
    points = record(flow_named("append"), 0).points
    at = next(point.at for point in points if len(point.units()) > 2)
    moment = command("explore", "append", "--at", str(at))
    assert moment.stdout.count("options") == len(points[at].units())
    state = command(*shlex.split(f"explore append --at {at} --state 0"))
    assert state.returncode == 0
    assert "s1.jsonl" in state.stdout
    assert "nothing is wrong" in state.stdout


def test_the_command_brings_a_state_of_an_index_back() -> None:
    """Its check needs the same stage as the recording."""
    state = command(*shlex.split("explore index-relaxed --at 3 --state 0"))
    assert state.returncode == 0, state.stdout + state.stderr
    assert "nothing is wrong" in state.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("explore", "nothing-like-it"),
        ("explore", "append", "--at", "9999"),
        ("explore", "append", "--at", "1", "--state", "99999999"),
        ("explore", "--at", "1"),
        ("errors", "append", "--only", "1"),
        ("errors", "nothing-like-it"),
        ("plant", "nothing-like-it"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr
