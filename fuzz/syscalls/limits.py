"""Real short writes by RLIMIT_FSIZE, and no descriptors left by RLIMIT_NOFILE."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from treering.fuzz.syscalls.flows import FLOWS as ALL
from treering.fuzz.syscalls.flows import Flow
from treering.fuzz.syscalls.runs import Bench, Figures, Limits, settle
from treering.fuzz.syscalls.stores import prepare
from treering.fuzz.syscalls.tracing import Fault

NAMES: Final = ("fsize", "nofile")
FLOWS: Final = frozenset(
    name
    for name, flow in ALL.items()
    if not flow.reads_only and name not in ("recovers", "background", "opens-uncertain")
)
"""Flows for which a limit can make a difference."""

_MAKING: Final = frozenset(
    ("new", "import", "repair", "creates", "fork", "clone", "delete", "undelete")
)
"""Those that write files from their beginning."""

_MARGIN_BYTES: Final = 8
DESCRIPTORS_MAX: Final = 14
"""More than any flow has open at once."""


def faults(bench: Bench, flow: Flow) -> Iterator[Fault]:
    """Every size that the journals of the flow pass through, and every number of descriptors.

    ``fsize`` counts from the size before the run: at every byte of what the flow appends.
    """
    with bench.place() as place:
        before = prepare(place, flow.store)
        bench.run(flow, place, limits=Limits())
        sizes = [0]
        for name in os.listdir(place.sessions):
            size = os.path.getsize(os.path.join(place.sessions, name))
            sizes.append(size - len(before.journal) if name == "good.jsonl" else size)
    start = -len(before.journal) if flow.name in _MAKING else 0
    for more in range(start, max(sizes) + _MARGIN_BYTES):
        yield Fault("fsize", more, "limit")
    for count in range(DESCRIPTORS_MAX + 1):
        yield Fault("nofile", count, "limit")


def run(bench: Bench, flow: Flow, fault: Fault, figures: Figures) -> list[str]:
    """One run under a limit; what it broke."""
    with bench.place() as place:
        before = prepare(place, flow.store)
        if fault.call == "fsize":
            limits = Limits(size_max=max(0, len(before.journal) + fault.at))
        else:
            limits = Limits(descriptors=fault.at)
        ran = bench.run(flow, place, limits=limits)
        figures.runs += 1
        figures.codes[str(ran.status)] = figures.codes.get(str(ran.status), 0) + 1
        return settle(flow, place, before, ran, fault, [], b"", figures)
