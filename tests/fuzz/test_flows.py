"""Every flow survives every crash that is tried here, and every call that fails.

The long runs of the same: ``python -m treering.fuzz explore`` and ``errors``, without arguments.
"""

from __future__ import annotations

import itertools

import pytest
from click.testing import CliRunner

from treering.fuzz.error_injection import Injected, Injection, calls_of, inject, injections
from treering.fuzz.errors_command import command, default_flows, inject_into
from treering.fuzz.explorer import explore, record
from treering.fuzz.faulty_disk import SYNCS, WRITES
from treering.fuzz.flows.catalogue import flow_named, single_flows
from treering.fuzz.flows.indexed import indexed_flows
from treering.fuzz.flows.interrupted import (
    FILE_SYNCS_MAX,
    SCENES,
    DyingDisk,
    Killed,
    changes_of,
    interrupted_flows,
)
from treering.fuzz.flows.recovering import BASES, EACH, torn_images
from treering.fuzz.flows.sequences import sequences
from treering.fuzz.flows.world import World
from treering.fuzz.ledger import Ledger
from treering.fuzz.planted_more import KNOWN_FAULTS
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk

SINGLE = [flow.name for flow in single_flows()]
FEW = {flow.name: 4 for flow in indexed_flows()} | {"import-dictionary": 12}
"""SQLite's real files, and a large journal: some 50 states a second."""

LONGER = [flow.name for flow in sequences() if "+" in flow.name]


@pytest.mark.parametrize("name", SINGLE)
def test_no_crash_breaks_a_promise(name: str) -> None:
    flow = flow_named(name)
    explored = explore(flow, most=FEW.get(name, 256))
    assert not explored.findings, explored.findings[0]
    assert explored.checked > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_crash_breaks_a_promise_in_longer_sequences(part: int) -> None:
    """A part of the sequences of two and three verbs; the long run takes all of them."""
    states = 0
    for name in itertools.islice(LONGER, part, None, 64):
        explored = explore(flow_named(name), most=128)
        assert not explored.findings, explored.findings[0]
        states += explored.checked
    assert states > 200


@pytest.mark.parametrize("base", BASES)
def test_no_second_crash_breaks_a_recovery(base: str) -> None:
    torn = torn_images(base)
    assert len({one.tail for one in torn}) == len(torn) > 3
    for number in range(0, EACH, 3):
        explored = explore(flow_named(f"recover:{base}:{number}"), most=128)
        assert not explored.findings, explored.findings[0]


@pytest.mark.parametrize("part", range(4))
def test_no_crash_breaks_a_promise_after_an_owner_was_interrupted(part: int) -> None:
    """A part of those flows; the long run takes all of them."""
    for flow in itertools.islice(interrupted_flows(), part, None, 20):
        explored = explore(flow, most=48)
        assert not explored.findings, explored.findings[0]
        assert explored.checked > 10


@pytest.mark.parametrize("scene", SCENES)
def test_a_process_dies_at_each_of_its_changes_and_no_later(scene: str) -> None:
    changes = changes_of(scene)
    assert changes > 10
    lengths = set()
    for at in (1, changes // 2, changes, changes + 1):
        disk, ledger = SimDisk(), Ledger()
        with SeededEnvironment(0):
            SCENES[scene].prepare(disk, ledger)
            dying = DyingDisk(disk, at)
            if at <= changes:
                with pytest.raises(Killed):
                    SCENES[scene].act(World(dying, ledger))
            else:
                SCENES[scene].act(World(dying, ledger))
            disk.drop_all_locks()
        done = [op for op in dying.log if op.name in WRITES or op.name in SYNCS]
        lengths.add(len(done))
    assert len(lengths) > 2


@pytest.mark.parametrize("at", range(1, FILE_SYNCS_MAX + 1))
def test_an_opening_has_the_syncs_that_are_made_to_fail(at: int) -> None:
    flow = flow_named(f"failed-opening:{at}:dropped")
    operations = [point.what for point in record(flow, 0).points]
    assert sum(what.startswith("failed sync") for what in operations) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", default_flows())
def test_no_failing_call_breaks_a_promise(name: str) -> None:
    errors = ("EIO", "ENOSPC")
    flow = flow_named(name)
    with flow.stage():
        ways = len(list(injections(calls_of(flow, 5), errors)))
    wanted = 6 if name in FEW else 30
    result = inject_into(name, 5, errors, every=ways // wanted)
    assert not result.findings, result.findings[0]
    assert result.injections >= wanted
    assert result.refused >= wanted // 3


def test_a_sync_that_fails_may_take_what_was_acknowledged_without_one() -> None:
    """Durability "os" promises what the page cache holds; a file system that goes back to the old
    bytes when a sync fails takes it from there, without any crash."""
    flow = flow_named("relaxed")
    syncs = [at for at, op in enumerate(calls_of(flow, 0), 1) if op.name in SYNCS]
    result = Injected("relaxed")
    for at in syncs:
        inject(flow, Injection(at, "EIO", "once", "reverted"), 0, result)
    assert result.findings == []
    assert result.refused > 0


def test_every_call_with_every_error_is_in_the_list() -> None:
    calls = calls_of(flow_named("append"), 0)
    listed = list(injections(calls, ("EIO",)))
    assert {way.at for way in listed if way.how == "once"} == set(range(1, len(calls) + 1))
    assert {way.model for way in listed} == {"dropped", "kept", "reverted"}
    written = sum(op.second for op in calls if op.name == "pwrite")
    assert [way.at for way in listed if way.how == "room"] == list(range(written))


@pytest.mark.parametrize("name", ["failed-sync-repeated", "failed-sync-ignored"])
def test_a_planted_fault_shows_under_failing_calls(name: str) -> None:
    flow = flow_named("append+append")
    calls = calls_of(flow, 0)
    result = Injected(flow.name)
    with KNOWN_FAULTS[name].plant():
        for way in injections(calls, ("EIO",)):
            inject(flow, way, 0, result)
            if result.findings:
                break
    assert result.findings, result.injections
    assert "--only" in str(result.findings[0])


def test_an_error_that_is_not_typed_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from treering.engine.journal import publish

    monkeypatch.setattr(publish, "from_os_error", lambda error, *_: error)
    result, flow = Injected("create"), flow_named("create")
    names = [op.name for op in calls_of(flow, 0)]
    inject(flow, Injection(names.index("make_folder") + 1, "EIO", "once"), 0, result)
    assert "not a typed error" in str(result.findings[0])


@pytest.mark.parametrize("name", ["failed-sync:append:kept", "killed:append:3", "no-space:batch:0"])
def test_what_fails_by_itself_takes_no_more_errors(name: str) -> None:
    found = CliRunner().invoke(command, [name])
    assert found.exit_code == 2
    assert "by itself" in found.output


@pytest.mark.parametrize("name", ["blobs", "dictionary"])
def test_flows_made_by_hand_end_in_typed_errors(name: str) -> None:
    """An error at every look at a file."""
    looks = [at for at, op in enumerate(calls_of(flow_named(name), 0), 1) if op.name == "fstat"]
    result = Injected(name)
    for at in looks:
        inject(flow_named(name), Injection(at, "EIO", "once"), 0, result)
    assert result.findings == []
