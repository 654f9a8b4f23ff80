"""The flows of deletions find what they are made for, and find nothing in the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from treering.engine.session import deleting, trash
from treering.fuzz.explorer import explore
from treering.fuzz.flows.catalogue import flow_named
from treering.fuzz.flows.deleting import FIRST, changes_of, killed_deletion_flows
from treering.index import files


@pytest.mark.parametrize("part", range(3))
def test_no_crash_breaks_a_promise_after_a_deletion_was_interrupted(part: int) -> None:
    """A part of those flows; the long run takes all of them."""
    states = 0
    for flow in itertools.islice(killed_deletion_flows(), part, None, 24):
        explored = explore(flow, most=48)
        assert not explored.findings, explored.findings[0]
        states += explored.checked
    assert states > 50


def test_every_change_of_every_step_is_tried() -> None:
    names = [flow.name for flow in killed_deletion_flows()]
    assert len(set(names)) == len(names)
    for first in FIRST:
        assert changes_of(first) > 15
        assert {f"killed-{first}:{at}:finish" for at in range(1, changes_of(first) + 1)} < {*names}


def test_a_flow_that_is_not_there() -> None:
    for name in ("killed-delete:1:sleep", "killed-sleep:1:finish"):
        with pytest.raises(KeyError):
            flow_named(name)


def _unsynced_tombstone(disk: Any, store: Any, path: str, tombstone: Any) -> None:
    del store, tombstone
    file = disk.create(path)
    file.pwrite(b"{}", 0)
    file.close()


def _unsynced_move(disk: Any, sources: Any, targets: Any) -> None:
    for source in sources:
        if trash.exists(disk, source):
            trash._link(disk, source, tuple(targets))
            disk.unlink(source)


def _index_without_sync(disk: Any, places: Any) -> None:
    del disk
    files.remove_all(places.store.index, places.session_id)


def _nothing(*_: object) -> None:
    """What a fault leaves out."""


FAULTS: dict[str, tuple[Any, str, Callable[..., object], str]] = {
    "names of tombstones not synced": (deleting, "_settle", _nothing, "delete"),
    "tombstone not written whole": (deleting, "write_tombstone", _unsynced_tombstone, "delete"),
    "journal moved without a sync": (deleting, "move_journal", _unsynced_move, "delete"),
    "no folder synced": (trash, "sync_those_there", _nothing, "undelete"),
    "artifacts left behind": (deleting, "move_artifacts", _nothing, "delete"),
    "two names of a tombstone": (
        deleting,
        "rename_tombstone",
        lambda disk, source, target: disk.rename(source, target),
        "delete-undelete",
    ),
    "nothing finished": (deleting, "ids_under_way", lambda *_: {}, "delete"),
    "artifacts not purged": (deleting, "remove_tree", _nothing, "purge"),
    "index names not synced": (deleting, "_remove_index", _index_without_sync, "index-delete"),
    "index left behind": (deleting, "_remove_index", _nothing, "index-delete"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    module, name, planted, flow = FAULTS[fault]
    with mock.patch.object(module, name, planted):
        explored = explore(flow_named(flow), findings_max=1)
    assert explored.findings, explored
