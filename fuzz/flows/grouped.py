"""Appends of several tasks that share one sync, as the writer of a SessionManager makes them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, get_args

from treering.engine.errors import NotFound, OutcomeUnknown, StorageFull, TreeringError
from treering.engine.session.admission import admit
from treering.engine.session.plan import Appended, append_group
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.faulty_disk import FaultyDisk
from treering.fuzz.flows.failing import session_on
from treering.fuzz.flows.world import ADVISORY, PATH, SessionCheck, World, make_session
from treering.fuzz.ledger import Ledger
from treering.fuzz.volume import SyncFailure


def _group(world: World) -> None:
    """Three entries and one that is refused alone; an error that all share is raised."""
    session, raws = world.owned(), [world.fresh("g" * 120) for _ in range(3)]
    session.has("nobody")  # the index is up: what fails from here on fails for all of them
    stray: dict[str, Any] = {"type": "label", "targetId": "nobody", "label": "L"}
    with world.attempting(*raws):
        answers = append_group(session, [*map(admit, raws[:2]), admit(stray), admit(raws[2])])
        refused = answers.pop(2)
        if not isinstance(refused, (NotFound, StorageFull, OutcomeUnknown)):
            raise Broken(f"a label of nobody got the answer {refused!r}")
        for answer in answers:
            if isinstance(answer, TreeringError):
                raise answer
        if not all(isinstance(answer, Appended) and answer.raw for answer in answers):
            raise Broken(f"entries were not new: {answers}")


def _plain(disk: Any, ledger: Ledger, _: object) -> None:
    world = World(disk, ledger)
    for _turn in range(2):
        _group(world)
    world.close()


def _full(room: int) -> Flow:
    def run(disk: Any, ledger: Ledger, _: object) -> None:
        faulty = FaultyDisk(disk)
        world = World(faulty, ledger)
        world.own()
        faulty.overwriting_needs_room = False
        faulty.quota = room
        try:
            _group(world)
        except StorageFull:
            pass  # the ledger knows: nothing of any of them may be there
        faulty.heal()
        _group(world)
        world.close()

    return Flow(f"group-no-space:{room}", make_session, run, SessionCheck(), ADVISORY)


def _failed_sync(model: SyncFailure) -> Flow:
    def run(disk: Any, ledger: Ledger, _: object) -> None:
        faulty = FaultyDisk(disk)
        world = World(faulty, ledger)
        world.own()
        faulty.fail("fdatasync", path=PATH, error=errno.EIO)
        try:
            _group(world)
        except OutcomeUnknown:
            world.recover()
        _group(world)
        world.close()

    return Flow(f"group-failed-sync:{model}", session_on(model), run, SessionCheck(), ADVISORY)


def grouped_flows() -> Iterator[Flow]:
    """All of them."""
    yield Flow("group", make_session, _plain, SessionCheck(), ADVISORY)
    for room in (0, 300, 600, 900):
        yield _full(room)
    for model in get_args(SyncFailure):
        yield _failed_sync(model)
