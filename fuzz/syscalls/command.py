"""``python -m treering.fuzz syscalls``: errors and kills at system calls of commands."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Final

import click

from treering.fuzz.syscalls import limits, mounts, tracing
from treering.fuzz.syscalls.flows import FLOWS, Flow
from treering.fuzz.syscalls.plants import PLANTS
from treering.fuzz.syscalls.runs import (
    Bench,
    Failure,
    Figures,
    Profile,
    UnavailableError,
    inject,
    profile,
)
from treering.fuzz.syscalls.tracing import Fault
from treering.tools.options import json_option
from treering.tools.output import say, say_json, warn

SHOWN: Final = 20
"""Failures of a flow that are printed; all are counted, and --json has all."""


class Search:
    """One run of the command."""

    def __init__(self, bench: Bench, *, every: int, seed: int, say: Callable[[str], None]) -> None:
        self.bench, self.every, self.seed, self.say = bench, every, seed, say
        self.figures: dict[str, Figures] = {}
        self.skipped: list[str] = []

    def sample(self, name: str, faults: list[tuple[Fault, int]]) -> list[tuple[Fault, int]]:
        """Every N-th, from an offset that the seed chooses."""
        return faults[random.Random(f"{self.seed}-{name}").randrange(self.every) :: self.every]

    def errors(self, flow: Flow, wanted: Wanted) -> None:
        """An error (or SIGKILL) at the calls of one flow."""
        figures = self.figures.setdefault(flow.name, Figures())
        found = profile(self.bench, flow)
        figures.calls = len(found.points)
        if found.wrong:
            self.failed(figures, Failure(flow.name, [], found.wrong))
        for fault, when in self.sample(flow.name, list(wanted.faults(found))):
            self.one(flow, found, fault, when, figures)

    def one(self, flow: Flow, found: Profile, fault: Fault, when: int, figures: Figures) -> None:
        """One run."""
        count = len(figures.failures)
        inject(self.bench, flow, found, fault, when, figures)
        for failure in figures.failures[count:]:
            self.tell(figures, failure)

    def limits(self, flow: Flow) -> None:
        """Limits on the size of files and on descriptors."""
        figures = self.figures.setdefault(flow.name, Figures())
        for fault in self.sample(flow.name, [(f, 0) for f in limits.faults(self.bench, flow)]):
            count = len(figures.failures)
            limits.run(self.bench, flow, fault[0], figures)
            for failure in figures.failures[count:]:
                self.tell(figures, failure)

    def mounts(self) -> None:
        """File systems that are full or read-only."""
        for check, kind in itertools.product(mounts.CHECKS, mounts.FILE_SYSTEMS):
            name = f"{check} on {kind}"
            figures = self.figures.setdefault(name, Figures())
            try:
                folder = os.path.join(self.bench.folder, f"{check}-{kind}")
                wrong = mounts.check(check, folder, kind)
            except UnavailableError as error:
                self.skip(f"{name}: {error}")
                continue
            figures.runs += 1
            if wrong:
                self.failed(figures, Failure(name, ["--mounts"], wrong))

    def failed(self, figures: Figures, failure: Failure) -> None:
        """Note and tell."""
        figures.failures.append(failure)
        self.tell(figures, failure)

    def tell(self, figures: Figures, failure: Failure) -> None:
        """Print what broke, and the command that shows it again."""
        if len(figures.failures) > SHOWN:
            return
        for line in failure.wrong:
            self.say(f"  {line}")
        self.say(f"  again: {self.again(failure)}")

    def again(self, failure: Failure) -> str:
        """The command line of one failure."""
        words = ["python -m treering.fuzz syscalls"]
        if failure.fault != ["--mounts"]:
            words += ["--flow", failure.flow]
        words += failure.fault
        if self.bench.cold:
            words.append("--cold")
        if self.bench.plant is not None:
            words += ["--plant", self.bench.plant]
        return " ".join(words)

    def skip(self, why: str) -> None:
        """Something cannot be done here."""
        self.skipped.append(why)
        self.say(f"skipped: {why}")


class Wanted:
    """Which faults were asked for."""

    def __init__(
        self,
        *,
        errors: tuple[str, ...],
        kill: bool,
        call: str | None,
        at: int | None,
        on: str,
        how_long: tuple[bool, ...],
    ) -> None:
        self.errors, self.kill, self.call, self.at, self.on = errors, kill, call, at, on
        self.how_long = how_long

    def faults(self, found: Profile) -> Iterator[tuple[Fault, int]]:
        """All of a flow."""
        for point, when, path in found.points:
            if self.call not in (None, point.call) or self.at not in (None, point.at):
                continue
            if self.on not in path:
                continue
            if self.kill:
                yield point._replace(error="KILL"), when
                continue
            for error in tracing.FAULTS[point.call]:
                if error in self.errors:
                    for persistent in self.how_long:
                        yield point._replace(error=error, persistent=persistent), when


def _errors(
    context: click.Context,  # noqa: ARG001 (click's interface)
    parameter: click.Parameter,  # noqa: ARG001
    value: str,
) -> tuple[str, ...]:
    named = tuple(word.strip().upper() for word in value.split(",") if word.strip())
    for name in named:
        if name not in (*tracing.ERRORS, "KILL", "EFBIG"):
            raise click.BadParameter(f"{name} is none of {', '.join(tracing.ERRORS)}")
    return named


@click.command()
@click.option("--flow", "names", multiple=True, type=click.Choice(list(FLOWS)), help="Only these.")
@click.option(
    "--error",
    "errors",
    default=",".join(tracing.ERRORS),
    show_default=True,
    callback=_errors,
    help="Errors to inject, each where the manual of the call names it.",
)
@click.option("--every", default=1, type=click.IntRange(1), help="Only every N-th fault.")
@click.option("--kill", is_flag=True, help="SIGKILL at the calls, instead of errors.")
@click.option("--limits", "limited", is_flag=True, help="File size and descriptor limits instead.")
@click.option("--mounts", "mounted", is_flag=True, help="Full and read-only file systems instead.")
@click.option("--call", help="Only at calls of this name (or limit: fsize, nofile).")
@click.option("--at", type=int, help="Only at the N-th such call (or at this limit).")
@click.option("--on", default="", help="Only calls on a path with this in it.")
@click.option("--once", is_flag=True, help="Only errors that come once.")
@click.option("--persistent", is_flag=True, help="Only errors that stay.")
@click.option("--cold", is_flag=True, help="Start an interpreter for each run, as users do.")
@click.option("--plant", type=click.Choice(list(PLANTS)), help="Put this known fault in first.")
@click.option("--seed", default=1, show_default=True, help="Chooses what --every leaves out.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    *,
    names: tuple[str, ...],
    errors: tuple[str, ...],
    every: int,
    kill: bool,
    limited: bool,
    mounted: bool,
    call: str | None,
    at: int | None,
    on: str,
    once: bool,
    persistent: bool,
    cold: bool,
    plant: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Make system calls of real commands fail, one after the other, and check what is left.

    Each flow (a command, or a small program that owns a session) runs once to see which calls
    touch its store; then once for every call and error, once and persistently. What failed must be
    told as documented, what was acknowledged must be there, the store must open and go on.
    """
    if cold and (plant is not None or limited):
        raise click.UsageError("--plant and --limits work on prepared processes, not with --cold")
    at_once = {(True, False): (False,), (False, True): (True,)}.get((once, persistent))
    if "KILL" in errors:
        kill = True
    elif at is not None and at_once is None:
        at_once = (False,)  # what a reproduction without --persistent means
    wanted = Wanted(
        errors=errors, kill=kill, call=call, at=at, on=on, how_long=at_once or (False, True)
    )
    flows = [FLOWS[name] for name in names or FLOWS]
    with Bench(cold=cold, plant=plant) as bench:
        search = Search(bench, every=every, seed=seed, say=warn if as_json else say)
        limited = limited or call in limits.NAMES
        if limited:
            flows = [flow for flow in flows if flow.name in limits.FLOWS]
        if mounted:
            search.mounts()
            flows = []
        for flow in flows:
            try:
                if not limited:
                    search.errors(flow, wanted)
                elif call in limits.NAMES and at is not None:
                    figures = search.figures.setdefault(flow.name, Figures())
                    limits.run(bench, flow, Fault(str(call), at, "limit"), figures)
                    for failure in figures.failures:
                        search.tell(figures, failure)
                else:
                    search.limits(flow)
            except UnavailableError as error:
                search.skip(f"{flow.name}: {error}")
                continue
            _say_flow(search, flow.name)
        _finish(context, search, as_json=as_json)


def _say_flow(search: Search, name: str) -> None:
    figures = search.figures[name]
    codes = ", ".join(f"{count} x {code}" for code, count in sorted(figures.codes.items()))
    search.say(
        f"{name}: {figures.calls} calls, {figures.runs} runs (exit codes: {codes or 'none'}),"
        f" {figures.missed} missed, {figures.healed} with an index to replace,"
        f" {len(figures.failures)} failures"
    )


def _finish(context: click.Context, search: Search, *, as_json: bool) -> None:
    every = search.figures.values()
    runs = sum(figures.runs for figures in every)
    failures = [failure for figures in every for failure in figures.failures]
    if as_json:
        say_json(
            {
                "runs": runs,
                "calls": sum(figures.calls for figures in every),
                "missed": sum(figures.missed for figures in every),
                "seed": search.seed,
                "every": search.every,
                "skipped": search.skipped,
                "failures": [
                    {"flow": f.flow, "again": search.again(f), "wrong": f.wrong} for f in failures
                ],
                "flows": {
                    name: {k: v for k, v in asdict(figures).items() if k != "failures"}
                    for name, figures in search.figures.items()
                },
            }
        )
    else:
        say(f"{runs} runs, {len(failures)} failures, {len(search.skipped)} skipped")
    if failures:
        context.exit(1)
    if runs == sum(figures.missed for figures in every):
        context.exit(3)  # not one fault came: nothing was tried
