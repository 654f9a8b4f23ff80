"""Recovery as a flow: what other flows left at a crash is opened, and the power fails once more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from treering.engine.journal.format import ENVELOPE_BYTES
from treering.engine.session.session import Session
from treering.fuzz.explorer import Broken, Flow, images_of, record
from treering.fuzz.flows.sequences import sequence_flow
from treering.fuzz.flows.world import (
    ADVISORY,
    PATH,
    SessionCheck,
    World,
    entry,
    items_of,
    make_session,
    open_journal,
    quarantined,
)
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import SECTOR_BYTES, Image, Volume

BASES: Final = (
    "append",
    "many",
    "batch",
    "append+reopen",
    "relaxed+append+branch",
    "relaxed+kill+batch",
)
EACH: Final = 12
"""Torn tails that are taken of each base."""

TAIL: Final = "tail"

_DRAWN_AT_A_MOMENT: Final = 64


class Torn(NamedTuple):
    """A crash after which opening cuts something."""

    image: Image
    expectation: Expectation
    offset: int
    """Where the tail begins."""
    tail: bytes


@cache
def torn_images(base: str) -> list[Torn]:
    """Different crashes of a flow after which opening has something to cut, of all sizes."""
    found: dict[bytes, Torn] = {}
    flow = sequence_flow(base.split("+"))
    for point in record(flow, 0).points:
        assert isinstance(point.expectation, Expectation)
        for _, image in images_of(point, 0, _DRAWN_AT_A_MOMENT):
            disk = SimDisk(image)
            before = disk.read_file(PATH)
            if before in found:
                continue
            with SeededEnvironment(0):
                opened, _items = open_journal(disk)
            cut = opened.report.quarantined_bytes
            if cut:
                offset = len(before) - cut
                found[before] = Torn(image, point.expectation, offset, before[offset:])
    chosen = sorted(found.values(), key=lambda torn: len(torn.tail))
    return chosen[:: max(1, len(chosen) // EACH)][:EACH]


def recover_flow(base: str, number: int) -> Flow:
    """The flow that opens one torn journal, appends, and closes."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        images = torn_images(base)
        torn = images[number % len(images)]
        disk.volume = Volume.of(torn.image)
        ledger.resume(torn.expectation)
        ledger.remember(TAIL, (torn.offset, torn.tail))

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        world = World(disk, ledger, prefix="later")
        world.own(power_failed=True)
        world.append()
        world.close()

    return Flow(f"recover:{base}:{number}", prepare, run, RecoverCheck(), ADVISORY)


def straddling_flow() -> Flow:
    """The torn tail lacks the two bytes that it has in the sector before: every frame begins so.

    Whatever is written over its beginning makes it whole again, where the device shows the rest.
    """

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        make_session(disk, ledger)
        with Session.open(PATH, disk=disk) as session:
            session.append(entry("opens-the-epoch"))
            bare = session._writer.size + ENVELOPE_BYTES + len(entry("pad"))
            session.append(entry("pad", "p" * (-(bare + 2) % SECTOR_BYTES)))
            acknowledged = items_of(session.source, session.journal_id)
            offset = session._writer.size
            session.branch_to("first")
            data = bytearray(disk.read_file(PATH))
        assert offset % SECTOR_BYTES == SECTOR_BYTES - 2
        tail = bytes(2) + bytes(data[offset + 2 :])
        data[offset:] = tail
        image = disk.volume.cached()
        image.files[disk.volume.file(PATH).number] = bytes(data)
        disk.volume = Volume.of(image)
        ledger.begin(acknowledged)
        ledger.remember(TAIL, (offset, tail))

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        world = World(disk, ledger, prefix="later")
        world.own(power_failed=True)
        world.append()
        world.close()

    return Flow("recover-straddling", prepare, run, RecoverCheck(), ADVISORY)


class RecoverCheck:
    """What a session promises, and at every moment the torn bytes are somewhere."""

    def __init__(self) -> None:
        self._session = SessionCheck()

    def __call__(self, disk: SimDisk, expectation: Expectation) -> None:
        """Raise when a promise is broken."""
        fact = expectation.fact(TAIL)
        assert isinstance(fact, tuple)
        offset, tail = fact
        there = disk.read_file(PATH)[offset : offset + len(tail)] == tail
        if not there and tail not in map(disk.read_file, quarantined(disk)):
            raise Broken(f"{len(tail)} torn bytes are neither in the journal nor in quarantine")
        self._session(disk, expectation)
        if tail not in map(disk.read_file, quarantined(disk)):
            raise Broken(f"{len(tail)} torn bytes were in quarantine, and the next opening lost it")


def recover_flows() -> Iterator[Flow]:
    """Every base, several torn tails each."""
    yield straddling_flow()
    for base in BASES:
        for number in range(EACH):
            yield recover_flow(base, number)
