"""The crash explorer: run a flow once, then try every state that a crash at any moment can leave.

A :class:`Flow` is a declaration: how to prepare the disk, what to do, what must hold afterwards.
:func:`record` runs it on a simulated disk and freezes the moment after every operation;
:func:`explore` builds the states of those moments and checks each on a disk of its own. Equal
states with equal expectations are checked once.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from treering.fuzz.crash_states import EXHAUSTIVE_MAX, CrashPoint, choice_of, choices, total
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import Image

FINDINGS_MAX: Final = 10
"""Findings after which an exploration of one flow ends: they are one fault, mostly."""


class Broken(AssertionError):
    """A promise does not hold."""


@dataclass(frozen=True)
class Flow:
    """What a program does to a disk, and what must hold whenever the power fails meanwhile."""

    name: str
    prepare: Callable[[SimDisk, Ledger], Any]
    """Sets the stage and tells the ledger what is there; all of it is durable before the flow
    starts. Its result is handed on."""
    run: Callable[[SimDisk, Ledger, Any], None]
    """Does it, telling the ledger."""
    check: Callable[[SimDisk, Expectation], None]
    """Looks at what a crash left, as the program would when it starts again; raises if a promise
    is broken. Any exception counts."""
    advisory: tuple[str, ...] = ()
    """Ends of names of files that decide nothing: no state differs by them."""
    stage: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Entered around a recording and around all checks, for what they need outside of the disk."""


@dataclass
class Finding:
    """A state that breaks a promise."""

    flow: str
    seed: int
    at: int
    what: str
    state: int
    why: str

    @property
    def command(self) -> str:
        """Brings the state back."""
        return (
            f"python -m treering.fuzz explore {self.flow} --seed {self.seed}"
            f" --at {self.at} --state {self.state}"
        )

    def __str__(self) -> str:
        return (
            f"{self.flow}: crash after operation {self.at} ({self.what}), state {self.state}:"
            f" {self.why}\n    again: {self.command}"
        )


@dataclass
class Explored:
    """Figures of one flow."""

    flow: str
    seed: int
    moments: int = 0
    possible: int = 0
    """States that the moments can leave, all in all."""
    built: int = 0
    """States that were built (all of them, or those drawn)."""
    checked: int = 0
    """Different ones among them, each recovered and checked."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def exhaustive(self) -> bool:
        """Whether no state was left out."""
        return self.built == self.possible


@dataclass
class Recording:
    """The moments of one run."""

    points: list[CrashPoint]
    disk: SimDisk
    error: BaseException | None = None


def record(
    flow: Flow,
    seed: int,
    *,
    disk: SimDisk | None = None,
    wrap: Callable[[SimDisk], Any] = lambda d: d,
) -> Recording:
    """Run a flow, freezing every moment. An error of the flow ends it and is kept.

    ``wrap`` puts something between the flow and the disk, to make operations fail.
    """
    disk = SimDisk() if disk is None else disk
    ledger = Ledger()
    points: list[CrashPoint] = []

    def freeze(what: str) -> None:
        points.append(
            CrashPoint.of(
                disk.volume,
                len(points),
                what,
                ledger.expectation,
                torn=seed,
                advisory=flow.advisory,
            )
        )

    with flow.stage(), SeededEnvironment(seed):
        prepared = flow.prepare(disk, ledger)
        disk.volume.settle()
        freeze("before the first operation")
        disk.observer = freeze
        recording = Recording(points, disk)
        try:
            flow.run(wrap(disk), ledger, prepared)
        except Exception as error:
            recording.error = error
        finally:
            disk.observer = None
        freeze("the end")
    return recording


def images_of(point: CrashPoint, seed: int, most: int) -> Iterator[tuple[int, Image]]:
    """Legal states of a moment with their numbers."""
    units = point.units()
    for number in choices(units, random.Random(f"{seed}-{point.at}"), most):
        image = point.build(units, choice_of(units, number))
        if image is not None:
            yield number, image


def explore(
    flow: Flow,
    *,
    seed: int = 0,
    most: int = EXHAUSTIVE_MAX,
    recording: Recording | None = None,
    findings_max: int = FINDINGS_MAX,
) -> Explored:
    """Try the states of every moment of a flow.

    Args:
        flow: what to run.
        seed: decides journal ids, torn places and, beyond ``most``, which states are drawn.
        most: states of one moment up to which all are tried.
        recording: moments that were recorded before; the flow must not have failed.
        findings_max: findings after which to stop.
    """
    explored = Explored(flow.name, seed)
    seen: set[int] = set()
    with flow.stage(), SeededEnvironment(seed) as environment:
        if recording is None:
            recording = record(flow, seed)
            if recording.error is not None:
                raise recording.error
        for point in recording.points:
            explored.moments += 1
            explored.possible += total(point.units())
            assert isinstance(point.expectation, Expectation)
            for number, image in images_of(point, seed, most):
                explored.built += 1
                key = hash((image.contents(), point.expectation))
                if key in seen:
                    continue
                seen.add(key)
                explored.checked += 1
                environment.restart(seed + 1)
                why = judge(flow, image, point.expectation)
                if why is not None:
                    found = Finding(flow.name, seed, point.at, point.what, number, why)
                    explored.findings.append(found)
                    if len(explored.findings) >= findings_max:
                        return explored
    return explored


def judge(flow: Flow, image: Image, expectation: Expectation) -> str | None:
    """Check one state; what is wrong with it, if anything is."""
    try:
        flow.check(SimDisk(image), expectation)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def again(flow: Flow, seed: int, at: int, state: int, recording: Recording | None = None) -> Image:
    """The image of one finding.

    Raises:
        ValueError: the flow has no such moment, or the moment no such state.
    """
    points = (recording or record(flow, seed)).points
    if not 0 <= at < len(points):
        raise ValueError(f"{flow.name} has {len(points)} moments, from 0")
    units = points[at].units()
    if not 0 <= state < total(units):
        raise ValueError(f"moment {at} of {flow.name} has {total(units)} states, from 0")
    image = points[at].build(units, choice_of(units, state))
    if image is None:
        raise ValueError("that state would lose a file by a rename: no crash leaves it")
    return image
