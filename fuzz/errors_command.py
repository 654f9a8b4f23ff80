"""``errors``: an error at every call of every flow."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial

import click

from treering.fuzz.error_injection import (
    ERRORS,
    MORE_ERRORS,
    Injected,
    Injection,
    calls_of,
    inject,
    injections,
)
from treering.fuzz.explore_command import choose
from treering.fuzz.flows.catalogue import flow_named, single_flows
from treering.tools.pool import run_all

FINDINGS_MAX = 10

_FAIL_BY_THEMSELVES = (
    "no-space:",
    "failed-",
    "killed",
    "group-no-space",
    "group-failed-sync",
)
"""How the names of flows begin in which the disk or the process fails already."""


def default_flows() -> list[str]:
    """Flows in which nothing fails by itself, and some recoveries."""
    names = [flow.name for flow in single_flows() if ":" not in flow.name]
    return [
        *names,
        "recover:append:3",
        "recover:batch:5",
        "append+kill+batch",
        "many+reopen+append",
    ]


@click.command()
@click.argument("names", nargs=-1, metavar="[FLOW]...")
@click.option("--seed", default=0, show_default=True, help="Of the flows.")
@click.option("--error", "more", multiple=True, type=click.Choice(MORE_ERRORS), help="As well.")
@click.option("--every", default=1, show_default=True, help="Take each N-th injection only.")
@click.option("--only", help="One injection, as a finding prints it.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="One object with all figures.")
def command(
    names: tuple[str, ...],
    seed: int,
    more: tuple[str, ...],
    every: int,
    only: str | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Make every call of the flows fail, and look at what is left.

    Exit code 1 when a promise is broken; each prints how to see it again.
    """
    started = time.monotonic()
    chosen = choose(names) if names else default_flows()
    for name in chosen:
        if name.startswith(_FAIL_BY_THEMSELVES):
            raise click.UsageError(f"something fails in {name!r} by itself: it is for `explore`")
    one = None if only is None else _parse(only)
    results = []
    work = partial(inject_into, seed=seed, errors=(*ERRORS, *more), every=every, only=one)
    for result in run_all(work, chosen, jobs=jobs):
        results.append(result)
        for finding in result.findings:
            click.echo(str(finding), err=as_json)
    figures = {
        "flows": len(results),
        "calls": sum(result.calls for result in results),
        "injections": sum(result.injections for result in results),
        "refused": sum(result.refused for result in results),
        "states_checked": sum(result.states for result in results),
        "findings": sum(len(result.findings) for result in results),
        "seconds": round(time.monotonic() - started, 1),
    }
    if as_json:
        click.echo(json.dumps({**figures, "results": [asdict(result) for result in results]}))
    else:
        click.echo(
            f"{figures['flows']} flows of {figures['calls']} calls, {figures['injections']}"
            f" injections ({figures['refused']} ended in a typed error),"
            f" {figures['states_checked']} states checked; {figures['findings']} findings"
            f" in {figures['seconds']} s"
        )
    if figures["findings"]:
        raise click.exceptions.Exit(1)


def _parse(only: str) -> Injection:
    try:
        at, error, how, model = only.split("/")
        return Injection(int(at), error, how.replace("-", " "), model)  # type: ignore[arg-type]
    except ValueError as error_:
        raise click.UsageError(f"{only!r} is no injection: CALL/ERROR/HOW/MODEL") from error_


def inject_into(
    name: str, seed: int, errors: tuple[str, ...], every: int = 1, only: Injection | None = None
) -> Injected:
    """All injections of one flow (each N-th, beginning with one that the seed chooses)."""
    flow = flow_named(name)
    with flow.stage():
        calls = calls_of(flow, seed)
        result = Injected(name, len(calls))
        ways = list(injections(calls, errors))[seed % every :: every] if only is None else [only]
        for way in ways:
            inject(flow, way, seed, result)
            if len(result.findings) >= FINDINGS_MAX:
                break
    return result
