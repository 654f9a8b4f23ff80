"""`schedule list` and `schedule resume`: scheduled prompts of a store, without their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.schedules.job import ScheduledJob


@click.command("list")
@click.option("--offline", is_flag=True, help="Read the store; no frontend is asked.")
@click.option("--all", "-a", "every", is_flag=True, help="Completed and cancelled ones too.")
@home_option
@json_option
@click.pass_context
def list_jobs(
    context: click.Context, *, offline: bool, every: bool, home: str | None, as_json: bool
) -> None:
    """List scheduled prompts, next run first; only active and paused ones without `--all`.

    The prompts, their labels and the texts of their schedules are kept and not displayed.
    """
    from treering.engine.schedules.file_store import read_schedules
    from treering.engine.schedules.job import OPEN_STATUSES
    from treering.tools.output import say, say_json, warn

    if not offline:
        raise click.UsageError("only a frontend knows what is running; --offline reads the store")
    found = read_schedules(store_at(home))
    jobs = [placed.job for placed in found.jobs if every or placed.job.status in OPEN_STATUSES]
    if as_json:
        say_json({"jobs": [job.shown() for job in jobs]})
    else:
        for job in jobs:
            say(_line(job))
        if not jobs:
            say("No scheduled prompts.")
    for fault in found.faults:
        warn(f"error: {fault}")
    context.exit(1 if found.faults else 0)


def _line(job: ScheduledJob) -> str:
    from treering.tools.output import escape

    shown = job.shown()
    words = [
        job.id,
        job.status,
        job.source,
        job.schedule_kind,
        f"session={job.session_id}",
        f"next={job.next_run_at or '-'}",
        f"runs={shown.get('runCount', 0)}",
    ]
    return escape("  ".join(words))


@click.command()
@click.argument("job_id", metavar="ID")
@home_option
@json_option
def resume(job_id: str, home: str | None, as_json: bool) -> None:
    """Make a paused, recurring cron job active again; it runs next from now on.

    Its session is opened for that moment, so nobody else may have it open: a frontend that has
    resumes it itself. Heartbeats are resumed by their own control.
    """
    from treering.engine.errors import Owned
    from treering.engine.schedules.controls import SessionSchedules
    from treering.engine.schedules.file_store import find_job
    from treering.engine.session.session import Session
    from treering.tools.output import escape, reporting, say, say_json

    store = store_at(home)
    job = find_job(store, job_id).job
    try:
        session = Session.open(store.journal_path(job.session_id))
    except Owned as error:
        error.next_step = "resume the job in the frontend that has its session open"
        raise
    with session:
        schedules = SessionSchedules.of(session)
        schedules.bind()
        job = schedules.resume(job_id)
    with reporting(f"the job {job.id} was resumed, next run {job.next_run_at}"):
        if as_json:
            found: dict[str, Any] = job.shown()
            say_json(found)
        else:
            say(escape(f"Resumed {job.id} next={job.next_run_at}"))
