"""An error at every call of a flow, once and for good, and every room that a full disk can leave.

After each the error must be a typed one, and what the ledger expects must hold: at once (only the
process ended) and after a power failure on top.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_args

from treering.engine.errors import TreeringError
from treering.fuzz.explorer import Flow, Recording, images_of, judge, record
from treering.fuzz.faulty_disk import FOREVER, SYNCS, FaultyDisk, Op
from treering.fuzz.ledger import Expectation
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import SyncFailure

ERRORS: Final = ("EIO", "ENOSPC")
MORE_ERRORS: Final = ("EDQUOT", "EINTR", "EROFS", "EMFILE", "EACCES")
STATES_AFTER: Final = 24
"""Power failures that are tried after each failed call."""


class Injection(NamedTuple):
    """One way to make a flow fail."""

    at: int
    """The call, from 1; with ``room`` the bytes that find space."""
    error: str
    how: str
    """``once``, ``for good``, or ``room``."""
    model: SyncFailure = "dropped"

    def plant(self, disk: SimDisk) -> FaultyDisk:
        """The disk that fails."""
        disk.sync_failure = self.model
        faulty = FaultyDisk(disk)
        number = getattr(errno, self.error)
        if self.how == "room":
            faulty.quota, faulty.quota_error = self.at, number
        else:
            times = 1 if self.how == "once" else FOREVER
            faulty.fail(None, at=self.at, error=number, times=times)
        return faulty


@dataclass
class BadEnd:
    """An injection after which a promise is broken."""

    flow: str
    seed: int
    injection: Injection
    call: str
    why: str

    def __str__(self) -> str:
        way = self.injection
        return (
            f"{self.flow}: {way.error} {way.how} at {way.at} ({self.call}, {way.model}): {self.why}"
            f"\n    again: python -m treering.fuzz errors {self.flow} --seed {self.seed}"
            f" --only {way.at}/{way.error}/{way.how.replace(' ', '-')}/{way.model}"
        )


@dataclass
class Injected:
    """Figures of one flow."""

    flow: str
    calls: int = 0
    injections: int = 0
    refused: int = 0
    """How many ended in a typed error; the others were got over."""
    states: int = 0
    findings: list[BadEnd] = field(default_factory=list)


def calls_of(flow: Flow, seed: int) -> list[Op]:
    """Every call of a flow when nothing fails."""
    made: list[FaultyDisk] = []
    recording = record(flow, seed, wrap=_keeping(made, FaultyDisk))
    if recording.error is not None:
        raise recording.error
    return made[0].log


def injections(calls: Sequence[Op], errors: Sequence[str]) -> Iterator[Injection]:
    """Every call with every error, and every room for the bytes that are written."""
    models: tuple[SyncFailure, ...] = get_args(SyncFailure)
    for at, op in enumerate(calls, 1):
        for error in errors:
            for how in ("once", "for good"):
                for model in models if op.name in SYNCS else models[:1]:
                    yield Injection(at, error, how, model)
    for room in range(sum(op.second for op in calls if op.name == "pwrite")):
        yield Injection(room, "ENOSPC", "room")


def inject(flow: Flow, injection: Injection, seed: int, result: Injected) -> None:
    """Run the flow once with one injection, and judge what it left."""
    made: list[FaultyDisk] = []
    result.injections += 1
    with flow.stage():
        recording = record(flow, seed, wrap=_keeping(made, injection.plant))
        why = _why(recording.error)
        if recording.error is not None:
            result.refused += 1
        if why is None:
            why = _judge_end(flow, recording, injection, seed, result)
    if why is not None:
        log = made[0].log
        op = log[injection.at - 1] if 0 < injection.at <= len(log) else None
        call = "" if op is None else f"{op.name} {op.path}"
        result.findings.append(BadEnd(flow.name, seed, injection, call, why))


def _why(error: BaseException | None) -> str | None:
    if error is None or isinstance(error, TreeringError):
        return None
    return f"not a typed error: {type(error).__name__}: {error}"


def _judge_end(
    flow: Flow, recording: Recording, injection: Injection, seed: int, result: Injected
) -> str | None:
    last = recording.points[-1]
    assert isinstance(last.expectation, Expectation)
    cached = recording.disk.volume.cached()
    died = last.expectation.after_death()
    if injection.model == "reverted":  # the cache lost what no sync covered, as in a power failure
        died = last.expectation
    ends = [("the process ended", cached, died)]
    ends += [
        (f"state {number} of the end", image, last.expectation)
        for number, image in images_of(last, seed, STATES_AFTER)
    ]
    with SeededEnvironment(seed + 1) as environment:
        for what, image, expectation in ends:
            result.states += 1
            environment.restart(seed + 1)
            why = judge(flow, image, expectation)
            if why is not None:
                return f"{what}: {why} (the flow ended with {recording.error!r})"
    return None


def _keeping(
    made: list[FaultyDisk], make: Callable[[SimDisk], FaultyDisk]
) -> Callable[[SimDisk], Any]:
    def wrap(disk: SimDisk) -> FaultyDisk:
        made.append(make(disk))
        return made[-1]

    return wrap
