"""`migrate`: a whole exported root of an older system becomes a new home, or nothing does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from treering.tools.options import json_option


def _once(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
    """The one value of an option. Two of them mean two different things, and one would be lost."""
    del context
    if len(value) > 1:
        raise click.BadParameter("given more than once", param=parameter)
    if not value:
        return None
    if not value[0] or "\0" in value[0]:
        raise click.BadParameter("a folder is needed", param=parameter)
    return value[0]


@click.command()
@click.option(
    "--from-prime-agent",
    "source",
    multiple=True,
    callback=_once,
    metavar="ROOT",
    help="The exported root; never one that is in use.",
)
@click.option(
    "--destination",
    multiple=True,
    callback=_once,
    metavar="DIR",
    help="The new home: a path where nothing is.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done; writes nothing.")
@click.option("--no-limit", is_flag=True, help="Lift the limits on entries and bytes of a session.")
@json_option
def migrate(
    source: str | None, destination: str | None, dry_run: bool, no_limit: bool, as_json: bool
) -> None:
    """Import an exported root of Prime into a new home; `--dry-run` only looks.

    Sessions, a few preferences and schedules (paused) come along. The new home is there whole or
    not at all; it is not selected, and nothing is started. Its manifest names everything.
    """
    from treering.engine.migration.migrating import migrate_root
    from treering.engine.migration.plan import plan_migration
    from treering.engine.transfer.legacy_model import CopyLimits
    from treering.tools.output import reporting

    if source is None:
        raise click.UsageError("--from-prime-agent ROOT is missing")
    limits = None if no_limit else CopyLimits()
    if dry_run:
        _report(plan_migration(source, destination, limits=limits).as_json("dry-run"), as_json)
        return
    if destination is None:
        raise click.UsageError("--destination DIR is missing; --dry-run needs none")
    result = migrate_root(source, destination, limits=limits)
    with reporting(f"the root was imported to {result.destination}; do not import it again"):
        _report(result.as_json(), as_json)


def _report(found: dict[str, Any], as_json: bool) -> None:
    from treering.tools.output import counted, escape, say, say_json

    if as_json:
        say_json(found)
        return
    done = found["mode"] == "import"
    sessions = counted(found["preparedSessions"], "session")
    entries = counted(found["preparedEntries"], "entry", "entries")
    say(f"{'imported' if done else 'would import'}: {sessions} with {entries}")
    say(f"paused schedules: {found['pausedSchedules']}")
    say(f"settings: {escape(', '.join(found['settings'])) or 'none'}")
    say(f"inactive packages: {escape(', '.join(found['inactivePackages'])) or 'none'}")
    reasons = Counter((skip["kind"], skip["reason"]) for skip in found["skipped"])
    for (kind, reason), number in sorted(reasons.items()):
        say(f"skipped: {counted(number, kind.replace('-', ' '))}: {reason.replace('-', ' ')}")
    if done:
        say(f"destination: {escape(found['destination'])}")
        say(f"manifest: {escape(found['manifest'])}")
