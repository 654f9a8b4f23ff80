"""Flows in which one call fails, and the owner goes on as the documentation tells it to."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any, Final, get_args

from treering.engine.errors import OutcomeUnknown, Poisoned, StorageFull
from treering.engine.journal.format import ENVELOPE_BYTES
from treering.fuzz.explorer import Flow
from treering.fuzz.faulty_disk import FaultyDisk
from treering.fuzz.flows.whole import ground
from treering.fuzz.flows.world import (
    ADVISORY,
    PATH,
    VERBS,
    SessionCheck,
    World,
    entry,
    make_session,
)
from treering.fuzz.ledger import Ledger
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import SECTOR_BYTES, SyncFailure

ROOMS: Final = (0, 1, 43, 300, 453, 500, 700, 1000)
"""Bytes that find space before the disk is full."""

SYNC_VERBS: Final = ("append", "many", "batch", "branch")


def no_space_flow(verb: str, room: int, *, unsynced: bool = False) -> Flow:
    """A full disk in the middle of a write; then there is space again."""

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        faulty = FaultyDisk(disk)
        world = World(faulty, ledger)
        if unsynced:
            world.make("os")
            world.append()  # acknowledged, and not yet synced: nothing of it may go
        else:
            world.own()
        # A file system that copies what is overwritten would not show old blocks, as the disk does.
        faulty.overwriting_needs_room = False
        faulty.quota = room
        try:
            VERBS[verb](world)
        except StorageFull:
            pass  # the ledger knows: nothing of it may be there
        faulty.heal()
        world.append()
        world.close()

    name = f"no-space:{verb}:{room}{':unsynced' if unsynced else ''}"
    return Flow(name, ground if unsynced else make_session, run, SessionCheck(), ADVISORY)


def session_on(model: SyncFailure) -> Callable[[SimDisk, Ledger], None]:
    """Sets the stage: a session on a disk whose syncs fail in that way, once one does."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        make_session(disk, ledger)
        disk.sync_failure = model

    return prepare


def failed_sync_flow(verb: str, model: SyncFailure, evicted: bool) -> Flow:
    """A sync that fails; recovery, with what the cache still shows or without; an append."""

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        faulty = FaultyDisk(disk)
        world = World(faulty, ledger)
        world.own()
        faulty.fail("fdatasync", path=PATH, error=errno.EIO)
        for _ in range(2):
            try:
                VERBS[verb](world)
            except (OutcomeUnknown, Poisoned):
                pass  # the ledger knows: it may be there or not; then, nothing was written
        if evicted:
            disk.volume.file(PATH).evict()
        world.recover()
        world.append()
        world.close()

    name = f"failed-sync:{verb}:{model}{':evicted' if evicted else ''}"
    return Flow(name, session_on(model), run, SessionCheck(), ADVISORY)


def retried_flow(second: int, last: int) -> Flow:
    """A full disk behind two of three entries; the first is tried again, then a larger one.

    The first ends where a sector does, so that nothing is written over the second before the last
    append: where the device shows again what was cut off, a whole frame stands at its place.
    """

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        faulty = FaultyDisk(disk)
        world = World(faulty, ledger)
        world.append()
        session = world.owned()
        bare = session._writer.size + len(entry("r1")) + ENVELOPE_BYTES
        raws = [
            entry("r1", "t" * (-bare % SECTOR_BYTES)),
            entry("r2", "t" * second),
            entry("r3"),
        ]
        faulty.overwriting_needs_room = False
        faulty.quota = sum(map(len, raws)) + 2 * ENVELOPE_BYTES + 1
        with contextlib.suppress(StorageFull), world.attempting(*raws):
            session.append_many(raws)
        faulty.heal()
        for raw in (raws[0], entry("r4", "u" * last)):
            with world.attempting(raw):
                session.append(raw)
        world.close()

    return Flow(f"retried:{second}:{last}", make_session, run, SessionCheck(), ADVISORY)


def failing_flows() -> Iterator[Flow]:
    """All of them."""
    for verb in ("append", "many", "batch"):
        for room in ROOMS:
            yield no_space_flow(verb, room)
            yield no_space_flow(verb, room, unsynced=True)
    for verb in SYNC_VERBS:
        for model in get_args(SyncFailure):
            yield failed_sync_flow(verb, model, evicted=False)
        yield failed_sync_flow(verb, "dropped", evicted=True)
    yield retried_flow(10, 900)
    yield retried_flow(600, 1900)
