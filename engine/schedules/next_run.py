"""When a recurring job runs next.

Five fields of digits, lists, ranges and steps, in local time, as the frontend writes them: a day
must fit the day of the month *and* the day of the week (many other programs take either). An hour
that does not exist on a day is an hour later; one that occurs twice runs once.
"""

from __future__ import annotations

import re
from typing import Final

from treering.engine import environment
from treering.engine.errors import Invalid, Unsupported
from treering.engine.schedules.job import ScheduledJob

INTERVAL_MS_MIN: Final = 10_000
"""Shorter intervals are refused."""

SEARCH_DAYS_MAX: Final = 366
"""A schedule without a run in so many days has none."""

_FIELD: Final = r"[0-9*][0-9*,/-]*"
_FIVE_FIELDS: Final = re.compile(rf"{_FIELD}(?:[ \t]+{_FIELD}){{4}}", re.ASCII)
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
_DAY_MS: Final = 86_400_000


def next_run_ms(job: ScheduledJob, after_ms: int) -> int:
    """The first run after a moment, Unix ms. Runs that were missed do not count.

    Raises:
        Invalid: the job runs once, or its schedule cannot be understood; the text of it is not
            repeated.
        Unsupported: the library for cron expressions is not installed.
    """
    if job.schedule_kind == "once":
        raise Invalid(
            f"job {job.id!r} runs once",
            next_step="a recurring schedule is needed: schedule it again with a new time",
        )
    if job.schedule_kind == "interval":
        pause_ms = job.interval_ms or 0
        if pause_ms < INTERVAL_MS_MIN:
            raise Invalid(f"the interval of job {job.id!r} is under {INTERVAL_MS_MIN // 1000} s")
        return after_ms + pause_ms
    text = job.expression.strip()
    found = next_cron_ms(_NAMED.get(text, text), after_ms)
    if found is None:
        raise Invalid(
            f"the schedule of job {job.id!r} is no cron expression, or has no run within"
            f" {SEARCH_DAYS_MAX} days"
        )
    return found


def next_cron_ms(expression: str, after_ms: int) -> int | None:
    """The first run of a cron expression after a moment; None when there is none.

    Raises:
        Unsupported: the library is not installed.
    """
    try:
        import cronsim  # noqa: PLC0415 (an extra: who resumes nothing does not need it)
    except ImportError as error:
        raise Unsupported(
            "cron expressions need the package cronsim",
            next_step="install treering[schedules]",
        ) from error
    if not _FIVE_FIELDS.fullmatch(expression):
        return None
    try:
        runs = cronsim.CronSim(expression, environment.local_time(after_ms))
    except cronsim.CronSimError:
        return None
    runs.day_and = True
    for local in runs:
        found = environment.moment_of(local)
        if found > after_ms + SEARCH_DAYS_MAX * _DAY_MS:
            return None
        if found > after_ms:
            return found
    return None
