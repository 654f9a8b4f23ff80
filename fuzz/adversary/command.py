"""``index``: wrong files in the place of an index, and the same answers as without any."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from treering.engine.errors import Invalid
from treering.fuzz.adversary.attacks import ATTACKS
from treering.fuzz.adversary.runs import (
    Bench,
    Job,
    Summary,
    fault_trials,
    flip_jobs,
    make_bench,
    named_trials,
    place_trials,
    run_jobs,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])

PROGRESS_EVERY_S = 60.0


def _count_or_all(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    """The number; -1 for all, None when nothing was asked for."""
    del context
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    if value != "all":
        raise click.BadParameter(f"{value!r} is neither a number nor 'all'", param=parameter)
    return -1


def _count_option(name: str, help_text: str) -> Callable[[_Command], _Command]:
    """An option that takes a number, or "all"."""
    return click.option(name, metavar="all|N", callback=_count_or_all, help=help_text)


@click.command()
@click.option(
    "--attack",
    "patterns",
    multiple=True,
    metavar="NAME",
    help="Only this attack: its name, a pattern, or a trial as a finding prints it.",
)
@_count_option("--flips", "Bits to flip one by one.  [default: 1000]")
@_count_option("--places", "Sectors, pages and cuts.  [default: 150]")
@_count_option("--faults", "Calls of SQLite that fail.  [default: 150]")
@click.option("--seed", default=0, show_default=True, help="Of every choice.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option(
    "--scratch",
    type=click.Path(file_okay=False),
    help="Folder for the stores that are attacked; in memory is fastest.",
)
@click.option("--list", "only_list", is_flag=True, help="List the attacks and run none.")
@click.option("--json", "as_json", is_flag=True, help="One object with all figures.")
@click.pass_context
def command(
    context: click.Context,
    *,
    patterns: tuple[str, ...],
    flips: int | None,
    places: int | None,
    faults: int | None,
    seed: int,
    jobs: int,
    scratch: str | None,
    only_list: bool,
    as_json: bool,
) -> None:
    """Put something wrong in the place of an index, and see that no answer changes.

    Every attack is made before a session is opened and while its owner has it open. With --attack
    nothing else is run unless it is asked for. Exit code 1 when a promise is broken; each finding
    prints how to see it again.
    """
    if only_list:
        _list()
        return
    if scratch is not None:
        os.makedirs(scratch, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="treering-index-", dir=scratch) as folder:
        bench = make_bench(folder, seed)
        summary = Summary(seed)
        work = _plan(bench, summary, patterns, (flips, places, faults))
        _run(bench, summary, work, jobs=jobs, as_json=as_json)
    _report(summary, as_json=as_json)
    if summary.broken:
        context.exit(1)


def _list() -> None:
    for attack in ATTACKS.values():
        limit = f" (rows may be believed: {', '.join(attack.believed)})" if attack.believed else ""
        click.echo(f"{attack.name:30}{attack.about}{limit}")


def _plan(
    bench: Bench,
    summary: Summary,
    patterns: tuple[str, ...],
    asked: tuple[int | None, int | None, int | None],
) -> list[Job]:
    """The jobs. What is not asked for is left out when an attack is named."""
    try:
        named = named_trials(patterns, list(bench.samples))
    except Invalid as error:
        raise click.BadParameter(str(error), param_hint="--attack") from error
    usual = (0, 0, 0) if patterns else (1_000, 150, 150)
    flips, places, faults = (
        default if count is None else count for count, default in zip(asked, usual, strict=True)
    )
    seed = summary.seed
    if places:
        named += place_trials(bench, None if places < 0 else places, seed)
    if faults:
        named += fault_trials(bench, None if faults < 0 else faults, seed)
    work = [Job(trial) for trial in dict.fromkeys(named)]
    if flips:
        summary.flips_of = bench.flip_bench().bits
        work += flip_jobs(summary.flips_of, None if flips < 0 else flips, seed)
    return work


def _run(bench: Bench, summary: Summary, work: list[Job], *, jobs: int, as_json: bool) -> None:
    started = told = time.monotonic()
    for done, (results, flipped) in enumerate(run_jobs(bench, work, processes=jobs), 1):
        if flipped:
            summary.add_flips(flipped, results)
        else:
            summary.add(results)
        for result in results:
            if result.broken is not None:
                click.echo(f"{result.trial}: {result.broken}", err=as_json)
                click.echo(f"  {summary.reproduce(result)}", err=as_json)
        if time.monotonic() - told >= PROGRESS_EVERY_S:
            told = time.monotonic()
            click.echo(
                f"{told - started:.0f} s: {done} of {len(work)} jobs, {summary.trials} trials"
                f" {dict(summary.outcomes)}, {summary.flips} of {summary.flips_of} flips"
                f" {dict(summary.flip_outcomes)}, {len(summary.broken)} broken",
                err=True,
            )


def _report(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(summary.as_json(), indent=2))
        return
    for name, counts in sorted(summary.attacks.items()):
        shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        click.echo(f"{name:30}{shown}")
    if summary.flips:
        shown = ", ".join(f"{n} {outcome}" for outcome, n in sorted(summary.flip_outcomes.items()))
        click.echo(f"{'flips':30}{summary.flips} of {summary.flips_of}: {shown}")
    click.echo(f"{summary.trials} trials, {summary.flips} flips, {len(summary.broken)} broken")
