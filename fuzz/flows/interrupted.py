"""Flows that a process does not finish: it dies at an operation, or a sync fails in its hands.

The machine goes on. The next owner meets what the page cache shows, durable or not, builds on it,
and only then the power fails. What the first one left unsynced must not be taken for durable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, get_args

from treering.engine.errors import Damaged, TreeringError
from treering.engine.session.repairing import repair
from treering.engine.session.session import Session
from treering.fuzz.explorer import Flow
from treering.fuzz.faulty_disk import SYNCS, WRITES, FaultyDisk, Op
from treering.fuzz.flows.recovering import TAIL, RecoverCheck
from treering.fuzz.flows.whole import REPAIRED, Repairing, ground
from treering.fuzz.flows.world import (
    ADVISORY,
    EXISTS,
    PATH,
    SessionCheck,
    World,
    create_session,
    make_session,
)
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import SyncFailure

LONG: Final = "l" * 1500
"""Text over several sectors: a part of an entry can be lost, whatever is written behind it."""

FILE_SYNCS_MAX: Final = 4
"""Syncs of files in an opening that has something to cut: journal, copy, rewrite, cut."""


class Killed(BaseException):
    """The process is gone. Nothing of it runs any more, no handler either."""


class DyingDisk(FaultyDisk):
    """A disk whose process dies at one of its changes; of a write it has done the first half."""

    def __init__(self, inner: SimDisk, at: int) -> None:
        super().__init__(inner)
        self._left = at
        self.before = self._count

    def _count(self, op: Op) -> None:
        if self._left <= 0:
            raise Killed
        if op.name in WRITES or op.name in SYNCS:
            self._left -= 1
            if self._left == 0:
                if op.name != "pwrite" or op.second < 2:
                    raise Killed
                self.write_at_most = op.second // 2


class Scene(NamedTuple):
    """What the first process does."""

    prepare: Callable[[SimDisk, Ledger], None]
    act: Callable[[World], None]
    check: Callable[[], Callable[[SimDisk, Expectation], None]] = SessionCheck


def _create(world: World) -> None:
    world.make()
    world.append(LONG)
    world.close()


def _append(world: World) -> None:
    world.own()
    world.append(LONG)
    world.append()
    world.close()


def _many(world: World) -> None:
    world.own()
    world.many(LONG)
    world.close()


def _batch(world: World) -> None:
    world.own()
    world.batch(LONG)
    world.close()


def _relaxed(world: World) -> None:
    world.make("os")
    world.append(LONG)
    world.append(LONG)
    world.sync()
    world.append(LONG)
    world.close()


def _recover(world: World) -> None:
    world.own()
    world.append()
    world.close()


def _repair(world: World) -> None:
    repair(PATH, mode="salvage", disk=world.disk)
    world.ledger.remember(REPAIRED, True)


def _torn_in_cache(disk: SimDisk, ledger: Ledger) -> None:
    """A process died in the middle of a write: whole frames and a half one, none of them synced."""
    world = World(DyingDisk(disk, 1 << 30), ledger, prefix="t")
    world.own()
    dying = DyingDisk(disk, 1)
    session = world.owned()
    file: Any = session._writer.owner.file
    file.disk = dying
    try:
        world.many(LONG)
    except Killed:
        pass  # what it wrote stays in the cache
    disk.drop_all_locks()


def _torn(disk: SimDisk, ledger: Ledger) -> None:
    """A session with a torn tail, which the power left as it is."""
    make_session(disk, ledger)
    _torn_in_cache(disk, ledger)
    _note_tail(disk, ledger)


def _note_tail(disk: SimDisk, ledger: Ledger) -> None:
    """Remember what opening will cut off."""
    before = disk.read_file(PATH)
    copy = SimDisk(disk.volume.cached())
    Session.open(PATH, disk=copy).close()
    after = copy.read_file(PATH)
    assert before.startswith(after)
    assert len(after) < len(before), "nothing was cut"
    ledger.remember(TAIL, (len(after), before[len(after) :]))


SCENES: Final[dict[str, Scene]] = {
    "create": Scene(ground, _create),
    "append": Scene(make_session, _append),
    "many": Scene(make_session, _many),
    "batch": Scene(make_session, _batch),
    "relaxed": Scene(ground, _relaxed),
    "recover": Scene(_torn, _recover, RecoverCheck),
    "repair": Scene(Repairing("salvage").prepare, _repair, lambda: Repairing("salvage").check),
}


@cache
def changes_of(scene: str) -> int:
    """How many operations of a scene change something or sync it."""
    disk, ledger = SimDisk(), Ledger()
    with SeededEnvironment(0):
        SCENES[scene].prepare(disk, ledger)
        counted = FaultyDisk(disk)
        SCENES[scene].act(World(counted, ledger))
    return sum(op.name in WRITES or op.name in SYNCS for op in counted.log)


def killed_flow(name: str, at: int) -> Flow:
    """A process that dies at its ``at``-th change; another one goes on."""
    scene = SCENES[name]

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        try:
            scene.act(World(DyingDisk(disk, at), ledger))
        except Killed:
            disk.drop_all_locks()
        _go_on(disk, ledger)

    return Flow(f"killed:{name}:{at}", scene.prepare, run, scene.check(), ADVISORY)


def _go_on(disk: SimDisk, ledger: Ledger) -> None:
    """What the next process does: everything that it acknowledges must stay."""
    if not disk.exists(PATH):
        create_session(disk)
        ledger.remember(EXISTS, True)
    world = World(disk, ledger, prefix="later")
    try:
        world.own()
    except Damaged:
        repair(PATH, mode="salvage", disk=disk)
        ledger.remember(REPAIRED, True)
        world.own()
    ledger.remember(EXISTS, True)  # whoever made it: opening makes its name durable
    world.append()
    world.close()


def failed_opening_flow(at: int, model: SyncFailure, *, evicted: bool) -> Flow:
    """A process dies in a write; the next one's ``at``-th sync fails; a third one goes on."""

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        disk.sync_failure = model
        _torn_in_cache(disk, ledger)
        faulty = FaultyDisk(disk)
        faulty.fail(("fsync", "fdatasync"), at=at, error=errno.EIO)
        try:
            Session.open(PATH, disk=faulty).close()
        except TreeringError:
            pass  # it says so, and opening once more must be safe
        if evicted:
            disk.volume.file(PATH).evict()
        _go_on(disk, ledger)

    name = f"failed-opening:{at}:{model}{':evicted' if evicted else ''}"
    return Flow(name, make_session, run, SessionCheck(), ADVISORY)


def interrupted_flows() -> Iterator[Flow]:
    """All of them."""
    for name in SCENES:
        for at in range(1, changes_of(name) + 1):
            yield killed_flow(name, at)
    for at in range(1, FILE_SYNCS_MAX + 1):
        for model in get_args(SyncFailure):
            yield failed_opening_flow(at, model, evicted=False)
        yield failed_opening_flow(at, "dropped", evicted=True)


def interrupted_flow(name: str) -> Flow:
    """The flow of that name.

    Raises:
        KeyError: there is none.
    """
    kind, *rest = name.split(":")
    if kind == "killed":
        return killed_flow(rest[0], int(rest[1]))
    model: Any = rest[1]
    return failed_opening_flow(int(rest[0]), model, evicted="evicted" in rest)
