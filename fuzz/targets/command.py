"""``python -m treering.fuzz target``: list the fuzz targets, search with them, replay inputs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from treering.fuzz.targets.registry import TARGETS, load
from treering.fuzz.targets.running import (
    Outcome,
    Search,
    can_search,
    committed,
    replay,
    search,
)
from treering.tools.output import escape

_NAME = click.Choice(list(TARGETS))
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="A summary for programs.")


@click.group("target")
def command() -> None:
    """Fuzz what takes bytes from outside."""


@command.command("list")
@_json
def list_targets(as_json: bool) -> None:
    """List the targets and their committed inputs."""
    rows = []
    for name, lazy in TARGETS.items():
        sizes = [path.stat().st_size for path in committed(name)]
        rows.append({"name": name, "what": lazy.help, "inputs": len(sizes), "bytes": sum(sizes)})
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['name']:<14}{row['inputs']:>4} inputs {row['bytes']:>7} B  {row['what']}")


@command.command("replay")
@click.argument("names", nargs=-1, type=_NAME)
@click.option(
    "--input", "inputs", multiple=True, type=_FILE, help="This file instead of the committed ones."
)
@_json
def replay_inputs(names: tuple[str, ...], inputs: tuple[Path, ...], as_json: bool) -> None:
    """Check every committed input of the targets NAMES (all of them) once."""
    if inputs and len(names) != 1:
        raise click.UsageError("--input needs the name of one target")
    done = 0
    findings: list[dict[str, str]] = []
    for name in names or TARGETS:
        target = load(name)
        for path in inputs or committed(name):
            done += 1
            wrong = replay(target, path.read_bytes())
            if wrong is not None:
                findings.append({"target": name, "input": str(path), "what": wrong})
    if as_json:
        click.echo(json.dumps({"inputs": done, "findings": findings}))
    else:
        for one in findings:
            click.echo(f"{one['target']}: {escape(one['what'])}")
            _say_how(one["target"], one["input"])
        click.echo(f"{done} inputs, {len(findings)} findings")
    if findings:
        raise click.exceptions.Exit(1)


@command.command("run")
@click.argument("name", type=_NAME)
@click.option("--seconds", type=click.FloatRange(min=1), help="Search that long (60, if neither).")
@click.option("--executions", type=click.IntRange(min=1), help="Search until so many were made.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes beside each other.")
@click.option("--seed", type=click.IntRange(min=1), help="The first process's (its number so far).")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keeps what is learnt, counted and found [treering-fuzz/NAME].",
)
@_json
def run(
    name: str,
    seconds: float | None,
    executions: int | None,
    jobs: int,
    seed: int | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Search for an input that breaks a promise of the target NAME."""
    if not can_search():
        raise _could_not_run("searching needs atheris: install treering[fuzz]")
    if seconds is None and executions is None:
        seconds = 60
    folder = (folder or Path("treering-fuzz") / name).absolute()
    outcome = search(
        Search(name, TARGETS[name].place, folder, seconds, executions, jobs, seed), load(name)
    )
    if as_json:
        click.echo(json.dumps({"target": name, "folder": str(folder), **vars(outcome)}))
    else:
        _show(name, outcome)
    if outcome.findings:
        raise click.exceptions.Exit(1)
    if outcome.failed:
        raise _could_not_run(f"a process failed; see {outcome.failed[0]}")


def _show(name: str, outcome: Outcome) -> None:
    for path in outcome.findings:
        click.echo(f"{name}: finding {escape(path)}")
        _say_how(name, path)
    rate = outcome.executions / max(outcome.seconds, 0.001)
    click.echo(
        f"{name}: {outcome.executions} executions in {outcome.seconds:.0f} s ({rate:.0f}/s),"
        f" {outcome.executions_so_far} so far in this folder, seeds"
        f" {', '.join(map(str, outcome.seeds))}, {len(outcome.findings)} findings"
    )


def _say_how(name: str, path: str) -> None:
    click.echo(f"  python -m treering.fuzz target replay {name} --input {shlex.quote(path)}")


def _could_not_run(message: str) -> click.ClickException:
    error: Any = click.ClickException(message)
    error.exit_code = 3
    stop: click.ClickException = error
    return stop
