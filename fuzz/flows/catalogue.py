"""The flows by name. A new one is declared in a module of this package and yielded here."""

from __future__ import annotations

from collections.abc import Iterator

from treering.fuzz.explorer import Flow
from treering.fuzz.flows.copying import copying_flows
from treering.fuzz.flows.deleting import (
    deleting_flows,
    killed_deletion_flow,
    killed_deletion_flows,
)
from treering.fuzz.flows.epochs import epoch_flows
from treering.fuzz.flows.failing import failing_flows
from treering.fuzz.flows.grouped import grouped_flows
from treering.fuzz.flows.handmade import handmade_flows
from treering.fuzz.flows.indexed import indexed_flows
from treering.fuzz.flows.interrupted import interrupted_flow, interrupted_flows
from treering.fuzz.flows.migrating import migrating_flows
from treering.fuzz.flows.recovering import recover_flow, recover_flows, straddling_flow
from treering.fuzz.flows.sequences import sequence_flow, sequences
from treering.fuzz.flows.whole import whole_flows
from treering.fuzz.flows.world import VERBS


def single_flows() -> Iterator[Flow]:
    """Everything but the longer sequences and the recoveries."""
    yield from sequences(length_max=1)
    yield from whole_flows()
    yield from copying_flows()
    yield from epoch_flows()
    yield from deleting_flows()
    yield from migrating_flows()
    yield from handmade_flows()
    yield from failing_flows()
    yield from grouped_flows()
    yield from indexed_flows()


def all_flows() -> Iterator[Flow]:
    """Every flow, the short ones first."""
    yield from single_flows()
    yield from recover_flows()
    yield from interrupted_flows()
    yield from killed_deletion_flows()
    for flow in sequences():
        if "+" in flow.name:
            yield flow


def flow_named(name: str) -> Flow:
    """The flow of that name: ``create``, ``append+kill+batch``, ``recover:append:3``.

    Raises:
        KeyError: there is none.
    """
    if name == "recover-straddling":
        return straddling_flow()
    if name.startswith("recover:"):
        _, base, number = name.split(":")
        return recover_flow(base, int(number))
    if name.startswith(("killed:", "failed-opening:")):
        return interrupted_flow(name)
    if name.startswith("killed-"):
        return killed_deletion_flow(name)
    if all(verb in VERBS for verb in name.split("+")):
        return sequence_flow(name.split("+"))
    return {flow.name: flow for flow in single_flows()}[name]
