"""``python -m treering.fuzz kill``."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import click

from treering.tools.options import json_option
from treering.tools.output import say, say_json, warn


def _actors(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    from treering.fuzz.kills.run import ACTORS, schedule_of

    del context
    chosen = list(ACTORS) if value == "all" else [name.strip() for name in value.split(",")]
    unknown = [name for name in chosen if name not in ACTORS]
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: choose from {', '.join(ACTORS)}", param=parameter
        )
    if not schedule_of(chosen):
        raise click.BadParameter("readers, listings and checks need a writer", param=parameter)
    return chosen


def _plant(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from treering.fuzz.kills.planted import PLANTS

    del context
    if value is not None and value not in PLANTS:
        raise click.BadParameter(f"choose from {', '.join(PLANTS)}", param=parameter)
    return value


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, metavar="N")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="[default: drawn, and told]")
@click.option(
    "--actors", callback=_actors, default="all", metavar="A,B", help="Who takes part [default: all]"
)
@click.option("--seconds", type=click.FloatRange(min=0), metavar="S", help="End after so long.")
@click.option("--first-store", type=click.IntRange(min=0), default=0, metavar="N",
              help="Begin with that store: plays a failure again.")  # fmt: skip
@click.option("--per-store", type=click.IntRange(min=1), default=12, show_default=True, metavar="N",
              help="Rounds in one store.")  # fmt: skip
@click.option("--folder", type=click.Path(file_okay=False, exists=True), metavar="DIR",
              help="Where the stores are made [default: a new temporary folder].")  # fmt: skip
@click.option("--plant", callback=_plant, metavar="NAME", help="Plant a fault, to see it found.")
@json_option
def command(
    rounds: int,
    seed: int | None,
    actors: list[str],
    seconds: float | None,
    first_store: int,
    per_store: int,
    folder: str | None,
    plant: str | None,
    as_json: bool,
) -> None:
    """Kill real processes over a real store, round after round, and judge what they leave.

    Random moments are drawn from the seed; when exactly a signal arrives is up to the machine, so
    a failure may need its command several times. The store of a failure is kept.
    """
    from treering.fuzz.kills.crew import CouldNotRunError
    from treering.fuzz.kills.run import Run, Settings, new_seed

    root = tempfile.mkdtemp(prefix="treering-kill-", dir=folder)
    settings = Settings(
        rounds=rounds,
        seed=new_seed() if seed is None else seed,
        actors=actors,
        seconds=seconds,
        per_store=per_store,
        first_store=first_store,
        folder=root,
        plant=plant,
    )
    run = Run(settings, (lambda line: None) if as_json else say)
    try:
        summary = run.play()
    except CouldNotRunError as error:
        warn(f"{error}; the stores are kept: {root}")
        sys.exit(3)
    found = summary.as_json()
    if as_json:
        say_json(found)
    else:
        _tell(found)
    if summary.failure is not None:
        sys.exit(1)
    if not summary.figures.rounds:
        warn("nothing could be run")
        sys.exit(3)
    _remove(root)


def _remove(root: str) -> None:
    for name in os.listdir(root):
        os.unlink(os.path.join(root, name))
    os.rmdir(root)


def _tell(found: dict[str, Any]) -> None:
    for what, why in found["skipped"].items():
        say(f"SKIPPED {what}: {why}")
    say(
        f"seed {found['seed']}: {found['rounds']} rounds in {found['stores']} stores,"
        f" {found['kills']} kills ({found['killsAtExactCalls']} at chosen system calls),"
        f" {found['acknowledged']} acknowledged calls, {found['looks']} looks beside an owner,"
        f" {found['seconds']} s"
    )
    failure = found["failure"]
    if failure is None:
        say("nothing acknowledged was lost, and nothing else was found")
        return
    say(f"BROKEN in round {failure['round']} of store {failure['store']} ({failure['scene']}):")
    say(f"  {failure['what']}")
    say(f"  the store is kept: {failure['folder']}")
    say(f"  again: {failure['command']}")
