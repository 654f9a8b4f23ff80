"""``explore``: every state that a power failure can leave, flow by flow."""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from treering.fuzz.crash_states import EXHAUSTIVE_MAX
from treering.fuzz.explorer import Explored, again, explore, judge, record
from treering.fuzz.flows.catalogue import all_flows, flow_named
from treering.fuzz.ledger import Expectation
from treering.fuzz.seeded import SeededEnvironment
from treering.tools.pool import run_all


@click.command()
@click.argument("names", nargs=-1, metavar="[FLOW]...")
@click.option("--seed", default=0, show_default=True, help="Of ids, torn places and drawn states.")
@click.option(
    "--most",
    default=EXHAUSTIVE_MAX,
    show_default=True,
    help="States of one moment up to which all are tried; so many are drawn beyond.",
)
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--every", default=1, show_default=True, help="Take each N-th flow only.")
@click.option("--at", type=int, help="One moment of one flow.")
@click.option("--state", type=int, help="One state of that moment: check it and say what is wrong.")
@click.option("--list", "listing", is_flag=True, help="Only the names of the flows.")
@click.option("--json", "as_json", is_flag=True, help="One object with all figures.")
def command(
    names: tuple[str, ...],
    seed: int,
    most: int,
    jobs: int,
    every: int,
    at: int | None,
    state: int | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Explore the flows of these names (shell patterns; all when none is given).

    Exit code 1 when a state breaks a promise; each prints how to see it again.
    """
    chosen = choose(names)[:: max(1, every)]
    if listing:
        for name in chosen:
            click.echo(name)
        return
    if at is not None:
        _show(chosen, seed, at, state)
        return
    started = time.monotonic()
    results = []
    for result in run_all(partial(explore_named, seed=seed, most=most), chosen, jobs=jobs):
        results.append(result)
        for finding in result.findings:
            click.echo(str(finding), err=as_json)
    _sum_up(results, time.monotonic() - started, as_json)
    if any(result.findings for result in results):
        raise click.exceptions.Exit(1)


def choose(names: tuple[str, ...]) -> list[str]:
    """Names of the flows that fit any of the patterns, all of them for none."""
    known = [flow.name for flow in all_flows()]
    if not names:
        return known
    chosen: dict[str, None] = {}
    for name in names:
        hits = fnmatch.filter(known, name)
        if not hits:
            raise click.UsageError(f"no flow is called {name!r}; --list names them")
        chosen |= dict.fromkeys(hits)
    return list(chosen)


def explore_named(name: str, seed: int, most: int) -> Explored:
    """Explore one flow, in whatever process."""
    return explore(flow_named(name), seed=seed, most=most)


def _sum_up(results: Iterable[Explored], seconds: float, as_json: bool) -> None:
    results = list(results)
    total: dict[str, Any] = {
        "flows": len(results),
        "moments": sum(result.moments for result in results),
        "states_built": sum(result.built for result in results),
        "states_checked": sum(result.checked for result in results),
        "exhaustive_flows": sum(result.exhaustive for result in results),
        "findings": sum(len(result.findings) for result in results),
        "seconds": round(seconds, 1),
    }
    if as_json:
        click.echo(json.dumps({**total, "results": [asdict(result) for result in results]}))
        return
    click.echo(
        f"{total['flows']} flows, {total['moments']} moments, {total['states_built']} states built,"
        f" {total['states_checked']} different ones checked,"
        f" {total['exhaustive_flows']} flows exhaustively; {total['findings']} findings"
        f" in {total['seconds']} s"
    )


def _show(names: list[str], seed: int, at: int, state: int | None) -> None:
    if len(names) != 1:
        raise click.UsageError("--at needs one flow")
    flow = flow_named(names[0])
    with flow.stage():  # recording and check share it, as in a whole exploration
        recording = record(flow, seed)
        try:
            point = recording.points[at]
            if state is None:
                click.echo(f"{point.what}: {point.expectation}")
                for unit in point.units():
                    click.echo(f"  {unit.node} {unit.key}: {unit.options} options")
                return
            image = again(flow, seed, at, state, recording)
        except (ValueError, IndexError) as error:
            raise click.UsageError(str(error)) from error
        for path, content in image.contents():
            click.echo(f"{path}{'/' if content is None else f': {len(content)} bytes'}")
        assert isinstance(point.expectation, Expectation)
        with SeededEnvironment(seed + 1):
            why = judge(flow, image, point.expectation)
    if why is None:
        click.echo("nothing is wrong with it")
        return
    click.echo(why)
    raise click.exceptions.Exit(1)
