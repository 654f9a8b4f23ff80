"""How the bench measures: interleaved rounds, medians, ratios per round, targets.

The machine is shared and noisy by a factor of two. So whatever is compared runs in turns (A B A
B ...), each round gives one figure per side, and the ratio is the median of the ratios *within*
rounds: what slows one round slows both sides of it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

TURN_CALLS: Final = 20
"""Calls of one side before it is the next one's turn. Shorter than the phases of a busy disk (a
second), and long enough that a side finds its own code and data in the processor's caches."""

now_ns = time.perf_counter_ns


class Target(NamedTuple):
    """What ``performance.md`` asks of a row. ``of`` says which figure is held against it."""

    must: float
    goal: float
    better: Literal["low", "high"]
    of: Literal["value", "ratio"] = "value"


TARGETS: Final[dict[str, Target]] = {
    "append-writer": Target(1.25, 1.10, "low", "ratio"),
    "append-session": Target(1.35, 1.20, "low", "ratio"),
    "append-manager": Target(2.3, 1.8, "low", "ratio"),
    "tasks-64": Target(10, 18, "high", "ratio"),
    "append-os": Target(40, 25, "low"),
    "append-many-sqlite": Target(1.3, 1.6, "high", "ratio"),
    "append-many-jsonl": Target(0.6, 0.8, "high", "ratio"),
    "verify": Target(250_000, 450_000, "high"),
    "verify-parse": Target(0.8, 1.2, "high", "ratio"),
    "index-build": Target(60_000, 120_000, "high"),
    "index-size-1300": Target(0.12, 0.08, "low", "ratio"),
    "index-size-630": Target(0.25, 0.16, "low", "ratio"),
    "open-warm": Target(5, 2, "low"),
    "open-cold": Target(5_000, 2_000, "low"),
    "by-id-p50": Target(40, 25, "low"),
    "by-id-p95": Target(150, 75, "low"),
    "path-raw": Target(150_000, 300_000, "high"),
    "path-decoded": Target(70_000, 130_000, "high"),
    "last-100": Target(2_000, 1_000, "low"),
    "children": Target(500, 250, "low"),
    "label": Target(100, 50, "low"),
    "path-manager": Target(150_000, 300_000, "high"),
    "last-100-manager": Target(2_000, 1_000, "low"),
    "children-manager": Target(500, 250, "low"),
    "label-manager": Target(100, 50, "low"),
    "pause-p999": Target(20, 10, "low"),
    "pause-max": Target(100, 20, "low"),
    "pause-tasks": Target(100, 20, "low"),
    "pause-read": Target(100, 20, "low"),
    "memory": Target(100, 80, "low"),
    "memory-random": Target(100, 80, "low"),
    "memory-manager": Target(100, 80, "low"),
    "journal-size": Target(0.40, 0.25, "low", "ratio"),
    "journal-size-corpus": Target(0.40, 0.25, "low", "ratio"),
    "start-version": Target(110, 60, "low"),
    "start-help": Target(110, 60, "low"),
}
"""By the name of the figure. A target without a goal of its own in the table has half its must."""


class Peer(NamedTuple):
    """What a row was compared with, in the unit of the row."""

    name: str
    value: float


class Figure(NamedTuple):
    """One measured row."""

    row: str
    what: str
    value: float
    unit: str
    ratio: float | None
    peer: Peer | None
    rounds: int

    @property
    def target(self) -> Target | None:
        """What is asked of it; None for rows that only inform (the curve of ``--scale``)."""
        return TARGETS.get(self.row)

    @property
    def met(self) -> bool | None:
        """Whether its ``must`` is met."""
        target = self.target
        if target is None:
            return None
        found = self.ratio if target.of == "ratio" else self.value
        assert found is not None, f"{self.row} is held against a ratio and has none"
        return found <= target.must if target.better == "low" else found >= target.must

    def as_json(self) -> dict[str, Any]:
        """The stable keys of ``--json``."""
        target = self.target
        return {
            "row": self.row,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "ratio": self.ratio,
            "peer": None if self.peer is None else self.peer._asdict(),
            "must": None if target is None else target.must,
            "goal": None if target is None else target.goal,
            "met": self.met,
            "rounds": self.rounds,
        }


def interleaved(rounds: int, *sides: Callable[[], float]) -> tuple[list[list[float]], list[float]]:
    """Run the sides in turns; the figures of each side by round, and each side's median."""
    assert rounds > 0
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, figures in zip(sides, found, strict=True):
            gc.collect()  # no side pays for what the other left behind
            figures.append(side())
    return found, [statistics.median(figures) for figures in found]


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours / theirs, round by round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def compared(
    row: str,
    what: str,
    unit: str,
    *,
    rounds: int,
    ours: Callable[[], float],
    peer_name: str,
    theirs: Callable[[], float],
) -> Figure:
    """A row with a peer, interleaved."""
    (a, b), (value, peer) = interleaved(rounds, ours, theirs)
    return Figure(row, what, value, unit, median_ratio(a, b), Peer(peer_name, peer), rounds)


def alone(row: str, what: str, unit: str, rounds: int, ours: Callable[[], float]) -> Figure:
    """A row without a peer."""
    _, (value,) = interleaved(rounds, ours)
    return Figure(row, what, value, unit, None, None, rounds)


def times_us(calls: Iterable[Callable[[], object]]) -> list[float]:
    """How long each call took, microseconds."""
    found: list[float] = []
    for call in calls:
        start = now_ns()
        call()
        found.append((now_ns() - start) / 1000)
    return found


def in_turns(
    sides: Sequence[Sequence[Callable[[], object]]], *, turn: int = TURN_CALLS
) -> list[list[float]]:
    """The times of each side's calls, ``turn`` calls at a time, microseconds."""
    gc.collect()
    found: list[list[float]] = [[] for _ in sides]
    for start in range(0, max(map(len, sides)), turn):
        for times, calls in zip(found, sides, strict=True):
            times.extend(times_us(calls[start : start + turn]))
    return found


def percentile(figures: Sequence[float], percent: float) -> float:
    """The figure below which so many percent lie (nearest rank)."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def seconds(work: Callable[[], object]) -> float:
    """How long the work takes, seconds."""
    start = now_ns()
    work()
    return (now_ns() - start) / 1e9
