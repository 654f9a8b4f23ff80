"""One scheduled prompt, as it stands in a schedule file.

    {"jobs": [{"id", "status", "source", "runtimeKind", "deliveryMode", "activeSessionId",
               "sessionId", "sessionFile", "cwd", "label", "prompt",
               "schedule": {"kind", "expression", "intervalMs"},
               "createdAt", "updatedAt", "nextRunAt", "lastRunAt", "lastSkippedAt", "lastError",
               "runCount"}],
     "dispatches": [...]}

The frontend writes these files too: members that are not known here stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from treering.engine.errors import Invalid

STATUSES: Final = ("active", "paused", "completed", "cancelled")
SOURCES: Final = ("cron", "heartbeat", "rlm_heartbeat")
RUNTIME_KINDS: Final = ("top-level", "subagent")
DELIVERY_MODES: Final = ("steer", "follow_up")
SCHEDULE_KINDS: Final = ("once", "cron", "interval")

OPEN_STATUSES: Final = ("active", "paused")
"""What may still run, and what is listed by default."""

PROMPT_NOT_SHOWN: Final = "[retained instruction not displayed]"

_SHOWN: Final = (
    "id", "status", "source", "runtimeKind", "deliveryMode", "activeSessionId", "sessionId",
    "sessionFile", "cwd", "createdAt", "updatedAt", "nextRunAt", "lastRunAt", "lastSkippedAt",
    "runCount",
)  # fmt: skip
"""Members that a list shows, in its order: all but the texts."""


@dataclass(frozen=True)
class ScheduledJob:
    """A scheduled prompt whose members have the documented types.

    ``raw`` is what stands in the file. The prompt, the label, the last error and the text of the
    schedule are somebody's words: they are kept and not displayed.
    """

    raw: dict[str, Any]

    @classmethod
    def of(cls, raw: Any) -> ScheduledJob | None:
        """The job, or None for a value that is none."""
        return cls(raw) if _is_job(raw) else None

    @property
    def id(self) -> str:
        """Its id; empty ones occur."""
        return str(self.raw["id"])

    @property
    def status(self) -> str:
        """One of ``STATUSES``, or a word that is not known here."""
        return str(self.raw["status"])

    @property
    def source(self) -> str:
        """Who made it: one of ``SOURCES``."""
        return str(self.raw.get("source") or "cron")

    @property
    def runtime_kind(self) -> str:
        """``top-level`` or ``subagent``."""
        return str(self.raw.get("runtimeKind") or "top-level")

    @property
    def session_id(self) -> str:
        """The session that it is for."""
        return str(self.raw["sessionId"])

    @property
    def session_file(self) -> str:
        """Path of that session's journal."""
        return str(self.raw["sessionFile"])

    @property
    def active_session_id(self) -> str | None:
        """The running session that it was bound to last."""
        found = self.raw.get("activeSessionId")
        return found if isinstance(found, str) else None

    @property
    def cwd(self) -> str | None:
        """Working directory, where it says one."""
        return self.raw.get("cwd") or None

    @property
    def schedule_kind(self) -> str:
        """``once``, ``cron`` or ``interval``."""
        return str(self.raw["schedule"]["kind"])

    @property
    def expression(self) -> str:
        """When it runs, as it was written; not for display."""
        return str(self.raw["schedule"]["expression"])

    @property
    def interval_ms(self) -> int | None:
        """The pause of an interval."""
        found = self.raw["schedule"].get("intervalMs")
        return None if found is None else int(found)

    @property
    def next_run_at(self) -> str | None:
        """When it runs next, ISO 8601."""
        found = self.raw.get("nextRunAt")
        return found if isinstance(found, str) else None

    def shown(self) -> dict[str, Any]:
        """What a list says of it: no prompt, no label, no error, no text of the schedule."""
        known = {**self.raw, "source": self.source, "runtimeKind": self.runtime_kind}
        found = {name: known[name] for name in _SHOWN if known.get(name) is not None}
        found["prompt"] = PROMPT_NOT_SHOWN
        kind = self.schedule_kind
        schedule: dict[str, Any] = {
            "kind": kind,
            "expression": f"[{kind}; retained expression not displayed]",
        }
        if self.interval_ms is not None:
            schedule["intervalMs"] = self.interval_ms
        found["schedule"] = schedule
        return found


def jobs_of(value: Any, path: str) -> list[Any]:
    """The jobs of a schedule file, as they stand there.

    Raises:
        Invalid: it is not an object with an array of jobs.
    """
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list):
        raise Invalid("the schedule file holds no array of jobs", path=path)
    return jobs


def _is_job(raw: Any) -> bool:
    return (
        isinstance(raw, dict)
        and all(
            isinstance(raw.get(name), str)
            for name in ("id", "status", "sessionId", "sessionFile", "prompt")
        )
        and all(isinstance(raw.get(name, ""), str) for name in ("label", "cwd"))
        and raw.get("source", "cron") in SOURCES
        and raw.get("runtimeKind", "top-level") in RUNTIME_KINDS
        and raw.get("deliveryMode", "steer") in DELIVERY_MODES
        and _is_schedule(raw.get("schedule"))
    )


def _is_schedule(schedule: Any) -> bool:
    if not isinstance(schedule, dict) or schedule.get("kind") not in SCHEDULE_KINDS:
        return False
    pause = schedule.get("intervalMs")
    if pause is not None:
        whole = isinstance(pause, int) or (isinstance(pause, float) and pause.is_integer())
        if isinstance(pause, bool) or not whole or pause <= 0:
            return False
    elif schedule["kind"] == "interval":
        return False
    return isinstance(schedule.get("expression"), str)
