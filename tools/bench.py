"""``treering bench``: this machine, side by side with peers where they are installed.

It measures; it does not judge: a row that misses its ``must`` says so, and the exit code is 0 all
the same. Ratios come first, because absolute figures of a shared machine are noise.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import click

from treering.engine import environment
from treering.engine.errors import TreeringError
from treering.tools import bench_append, bench_manager, bench_process, bench_reads, bench_scan
from treering.tools.bench_data import Bench
from treering.tools.bench_measure import Figure

FULL_ENTRIES: Final = 1_000_000
QUICK_ENTRIES: Final = 100_000
SCALE_ENTRIES: Final = (10_000, 100_000, 1_000_000)

NOT_YET: Final = (
    "list page and catalogue",
    "search",
)
"""What has targets and no row here yet."""


class _CannotRunError(click.ClickException):
    exit_code = 3


class Plan(NamedTuple):
    """How much a run does."""

    entries: int
    rounds: int
    appends: int
    calls: int
    starts: int
    corpus: str | None


_Group = Callable[[Bench, Plan], Iterator[Figure]]

GROUPS: Final[dict[str, tuple[tuple[str, ...], _Group]]] = {
    "append": (
        ("append-writer", "append-session"),
        lambda bench, plan: bench_append.append_one(bench, plan.rounds, plan.appends),
    ),
    "append-manager": (
        ("append-manager",),
        lambda bench, plan: bench_manager.append_one(bench, plan.rounds, plan.appends),
    ),
    "tasks": (
        ("tasks-64",),
        lambda bench, plan: bench_manager.tasks(bench, plan.rounds, plan.appends),
    ),
    "append-os": (
        ("append-os",),
        lambda bench, plan: bench_append.append_os(bench, plan.rounds, plan.appends),
    ),
    "append-many": (
        ("append-many-sqlite", "append-many-jsonl", "append-many-indexed"),
        lambda bench, plan: bench_append.append_many(bench, plan.rounds, plan.calls),
    ),
    "verify": (
        ("verify", "verify-parse"),
        lambda bench, plan: bench_scan.verify(bench, _few(plan), plan.entries),
    ),
    "index-build": (
        ("index-build", "index-build-imported"),
        lambda bench, plan: bench_scan.index_build(bench, _few(plan), plan.entries),
    ),
    "index-size": (
        ("index-size-1300", "index-size-630"),
        lambda bench, plan: bench_scan.index_size(bench, plan.entries),
    ),
    "open": (
        ("open-warm", "open-cold"),
        lambda bench, plan: bench_scan.opening(bench, _few(plan), plan.entries),
    ),
    "by-id": (
        ("by-id-p50", "by-id-p95"),
        lambda bench, plan: bench_reads.by_id(bench, plan.rounds, plan.entries),
    ),
    "path": (
        ("path-raw", "path-decoded", "path-raw-imported", "path-decoded-imported"),
        lambda bench, plan: bench_reads.path(bench, plan.rounds, plan.entries),
    ),
    "pages": (
        ("last-100", "children", "label"),
        lambda bench, plan: bench_reads.pages(bench, plan.rounds, plan.entries),
    ),
    "manager-reads": (
        ("path-manager", "last-100-manager", "children-manager", "label-manager"),
        lambda bench, plan: bench_manager.reads(bench, plan.rounds, plan.entries),
    ),
    "pause": (
        ("pause-p999", "pause-max", "pause-tasks", "pause-read"),
        lambda bench, plan: bench_manager.pauses(bench, _few(plan), plan.entries, plan.appends),
    ),
    "memory": (
        ("memory", "memory-random", "memory-manager"),
        lambda bench, plan: bench_process.memory(bench.fresh("memory"), plan.entries),
    ),
    "journal-size": (
        ("journal-size", "journal-size-corpus"),
        lambda bench, plan: bench_scan.journal_size(bench, plan.corpus),
    ),
    "start": (
        ("start-version", "start-help"),
        lambda _, plan: bench_process.start(plan.starts),
    ),
}
"""What is measured together, with the names of its rows; either name selects it."""


def _few(plan: Plan) -> int:
    """Rounds of what takes seconds each."""
    return min(plan.rounds, 3)


@click.command("bench")
@click.option("--json", "as_json", is_flag=True, help="One JSON array of rows.")
@click.option("--quick", is_flag=True, help="Fewer rounds and 100,000 entries.")
@click.option("--scale", is_flag=True, help="The curve at 10,000, 100,000 and 1,000,000 entries.")
@click.option("--rows", metavar="NAME,...", help="Only these rows.")
@click.option("--dir", "folder", metavar="DIR", help="Where the temporary folder is made.")
@click.option("--entries", type=click.IntRange(min=100), help="Entries of the large sessions.")
def command(
    as_json: bool,
    quick: bool,
    scale: bool,
    rows: str | None,
    folder: str | None,
    entries: int | None,
) -> None:
    """Measure this machine, beside its peers.

    Works in a temporary folder below DIR (the current folder), which is removed. A full run takes
    some minutes and about 6 GB there. Exit code 0 whatever the figures are.
    """
    wanted = _wanted(rows)
    plan = _plan(entries, quick=quick)
    sizes = [size for size in SCALE_ENTRIES if entries is None or size <= entries]
    found: list[Figure] = []
    if not as_json:
        _print_head(plan)
    try:
        below = folder or os.getcwd()
        with tempfile.TemporaryDirectory(prefix=".treering-bench-", dir=below) as top:
            bench = Bench(os.path.abspath(top))
            figures = (
                bench_reads.scale(bench, plan.rounds, sizes or [plan.entries])
                if scale
                else _measure(bench, plan, wanted)
            )
            for figure in figures:
                found.append(figure)
                if not as_json:
                    _print_figure(figure)
    except (OSError, TreeringError) as error:
        raise _CannotRunError(f"bench could not run: {error}") from error
    if as_json:
        click.echo(json.dumps([figure.as_json() for figure in found], indent=1))
    elif not scale:
        click.echo("not measured here yet: " + ", ".join(NOT_YET))


def _wanted(rows: str | None) -> set[str] | None:
    if rows is None:
        return None
    known = {name for group, (names, _) in GROUPS.items() for name in (group, *names)}
    wanted = {name.strip() for name in rows.split(",") if name.strip()}
    unknown = sorted(wanted - known)
    if unknown or not wanted:
        what = ", ".join(unknown) or "nothing"
        raise click.UsageError(f"no such row: {what}; there are {', '.join(sorted(known))}")
    return wanted


def _plan(entries: int | None, *, quick: bool) -> Plan:
    corpus = environment.variable("TREERING_CORPUS")
    size = entries or (QUICK_ENTRIES if quick else FULL_ENTRIES)
    if quick:
        return Plan(size, 3, min(200, size), max(1, min(20, size // 100)), 5, corpus)
    return Plan(size, 9, 400, 20, bench_process.STARTS, corpus)


def _measure(bench: Bench, plan: Plan, wanted: set[str] | None) -> Iterator[Figure]:
    for group, (names, measure) in GROUPS.items():
        asked = wanted is None or group in wanted
        if not asked and wanted is not None and wanted.isdisjoint(names):
            continue
        for figure in measure(bench, plan):
            if asked or (wanted is not None and figure.row in wanted):
                yield figure


def _print_head(plan: Plan) -> None:
    click.echo(
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores;"
        f" {plan.entries:,} entries, {plan.rounds} rounds in turns. Ratios are medians of the"
        " ratios within rounds; the machine may be busy: believe ratios, not absolute figures."
    )


def _print_figure(figure: Figure) -> None:
    target = figure.target
    verdict, limits = "", ""
    if target is not None:
        verdict = "ok" if figure.met else "MISSED"
        sign = "<=" if target.better == "low" else ">="
        unit = "x" if target.of == "ratio" else f" {figure.unit}"
        limits = f"must {sign} {_number(target.must)}{unit}, goal {_number(target.goal)}{unit}"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
    value = f"{_number(figure.value)} {figure.unit}"
    peer = figure.peer
    beside = "" if peer is None else f" | {peer.name}: {_number(peer.value)} {figure.unit}"
    click.echo(f"{figure.row:20} {verdict:6} {ratio:>7}  {value:18} {limits}{beside}")
    click.echo(f"{'':20} {figure.what}; rounds: {figure.rounds}")


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
