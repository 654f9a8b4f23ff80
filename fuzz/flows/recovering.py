"""Recovery as a flow: what other flows left at a crash is opened, and the power fails once more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from treering.fuzz.explorer import Flow, images_of, record
from treering.fuzz.flows.sequences import sequence_flow
from treering.fuzz.flows.world import ADVISORY, PATH, SessionCheck, World, open_journal
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import Image, Volume

BASES: Final = ("append", "many", "batch", "reopen", "relaxed+append+branch", "relaxed+kill+batch")
EACH: Final = 12
"""Torn tails that are taken of each base."""

_DRAWN_AT_A_MOMENT: Final = 64


@cache
def torn_images(base: str) -> list[tuple[Image, Expectation]]:
    """Different crashes of a flow after which opening has something to cut, of all sizes."""
    found: dict[bytes, tuple[int, Image, Expectation]] = {}
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
                found[before] = (cut, image, point.expectation)
    chosen = sorted(found.values(), key=lambda one: one[0])
    step = max(1, len(chosen) // EACH)
    return [(image, expectation) for _, image, expectation in chosen[::step][:EACH]]


def recover_flow(base: str, number: int) -> Flow:
    """The flow that opens one torn journal, appends, and closes."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        images = torn_images(base)
        image, expectation = images[number % len(images)]
        disk.volume = Volume.of(image)
        ledger.resume(expectation)

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        world = World(disk, ledger, prefix="later")
        world.own()
        world.append()
        world.close()

    return Flow(f"recover:{base}:{number}", prepare, run, SessionCheck(), ADVISORY)


def recover_flows() -> Iterator[Flow]:
    """Every base, several torn tails each."""
    for base in BASES:
        for number in range(EACH):
            yield recover_flow(base, number)
