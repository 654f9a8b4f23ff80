"""``plant``: plant each known fault and see whether the explorer finds it."""

from __future__ import annotations

import fnmatch
import json
import time
from dataclasses import dataclass

import click

from treering.fuzz.explorer import Explored, Finding, explore
from treering.fuzz.flows.catalogue import all_flows, flow_named
from treering.fuzz.planted import Fault
from treering.fuzz.planted_more import KNOWN_FAULTS


@dataclass
class Hunt:
    """How a planted fault was found, if it was."""

    fault: str
    found_in: str | None
    states: int
    seconds: float
    why: str


def hunt(fault: Fault, *, seed: int = 0, most: int = 512) -> Hunt:
    """Explore the flows of a fault, one after the other, until a state shows it."""
    started = time.monotonic()
    states = 0
    for name in [flow.name for flow in all_flows() if _concerns(fault, flow.name)]:
        result = _explore_with(fault, name, seed, most)
        states += result.checked
        if result.findings:
            why = result.findings[0].why
            return Hunt(fault.name, name, states, time.monotonic() - started, why)
    return Hunt(fault.name, None, states, time.monotonic() - started, "")


def _concerns(fault: Fault, flow: str) -> bool:
    # Recoveries start from what a sound engine left behind.
    return any(fnmatch.fnmatch(flow, pattern) for pattern in fault.flows)


def _explore_with(fault: Fault, name: str, seed: int, most: int) -> Explored:
    flow = flow_named(name)
    if name.startswith("recover:"):
        explore(flow, seed=seed, most=1)  # finds and keeps its torn journals before the fault is in
    with fault.plant():
        try:
            return explore(flow, seed=seed, most=most, findings_max=1)
        except Exception as error:
            return Explored(name, seed, findings=[_as_finding(name, seed, error)])


def _as_finding(name: str, seed: int, error: Exception) -> Finding:
    return Finding(name, seed, 0, "the flow itself", 0, f"{type(error).__name__}: {error}")


@click.command()
@click.argument("names", nargs=-1, metavar="[FAULT]...")
@click.option("--seed", default=0, show_default=True, help="Of the exploration.")
@click.option("--most", default=512, show_default=True, help="States of one moment that are tried.")
@click.option("--json", "as_json", is_flag=True, help="One object with all figures.")
def command(names: tuple[str, ...], seed: int, most: int, as_json: bool) -> None:
    """Plant the faults of these names (all when none is given), one at a time.

    Exit code 1 when one is not found.
    """
    unknown = [name for name in names if name not in KNOWN_FAULTS]
    if unknown:
        raise click.UsageError(f"no fault is called {unknown[0]!r}: {', '.join(KNOWN_FAULTS)}")
    hunts = []
    for name in names or KNOWN_FAULTS:
        done = hunt(KNOWN_FAULTS[name], seed=seed, most=most)
        hunts.append(done)
        if not as_json:
            where = "NOT FOUND" if done.found_in is None else f"found in {done.found_in}"
            click.echo(f"{name}: {where} after {done.states} states, {done.seconds:.1f} s")
            if done.why:
                click.echo(f"    {done.why[:160]}")
    missed = [done.fault for done in hunts if done.found_in is None]
    if as_json:
        click.echo(json.dumps({"hunts": [vars(done) for done in hunts], "missed": missed}))
    else:
        click.echo(f"{len(hunts) - len(missed)} of {len(hunts)} faults found")
    if missed:
        raise click.exceptions.Exit(1)
