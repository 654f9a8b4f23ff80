"""What the owner of a session may do with its schedules; and what a deletion does with them.

Importing, listing and opening a session resume nothing. Whoever has bound a session, the runtime
that has it open, resumes its jobs one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from treering.engine import environment
from treering.engine.errors import Conflict, Invalid, LimitExceeded, NotFound
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.schedules.file_store import (
    STORE_SCHEDULES,
    change_jobs,
    find_job,
    read_schedules,
    session_schedules,
)
from treering.engine.schedules.job import OPEN_STATUSES, ScheduledJob
from treering.engine.schedules.next_run import next_run_ms

if TYPE_CHECKING:
    from treering.engine.session.session import Session

HeartbeatSource = Literal["heartbeat", "rlm_heartbeat"]

_TO_STATUS: Final = {"resume": "active", "pause": "paused", "cancel": "cancelled"}
_FROM_STATUSES: Final = {"resume": ("paused",), "pause": ("active",), "cancel": OPEN_STATUSES}


@dataclass(frozen=True)
class SessionSchedules:
    """The schedules of a session that the caller has bound.

    ``active_session_id`` names the runtime's binding; the session's own id where it has no other.
    """

    store: Store
    session_id: str
    session_file: str
    active_session_id: str
    disk: Disk = LOCAL_DISK

    @classmethod
    def of(cls, session: Session, *, active_session_id: str | None = None) -> SessionSchedules:
        """Those of a session that is open, and so owned."""
        return cls.at(session.path, session.header.id, active_session_id=active_session_id)

    @classmethod
    def at(
        cls,
        session_file: str,
        session_id: str,
        *,
        active_session_id: str | None = None,
        disk: Disk = LOCAL_DISK,
    ) -> SessionSchedules:
        """Those of a session that a manager, or another process of the runtime, has open."""
        store = Store.of_journal(os.path.abspath(session_file))
        return cls(store, session_id, session_file, active_session_id or session_id, disk)

    def jobs(self) -> list[ScheduledJob]:
        """All jobs of the session, whatever their status; raises as ``read_schedules``."""
        found = read_schedules(self.store, disk=self.disk).jobs
        return [placed.job for placed in found if placed.job.session_id == self.session_id]

    def bind(self) -> int:
        """Take over the session's jobs for this runtime; how many belonged to another one.

        Only ``activeSessionId`` is written: no job becomes active by it.

        Raises:
            Invalid, Owned, OutcomeUnknown, StorageError: see ``change_jobs``.
        """
        count = 0

        def take(jobs: list[Any]) -> bool:
            nonlocal count
            before = count
            for raw in jobs:
                job = ScheduledJob.of(raw)
                if job is not None and self._is_ours(job):
                    if job.active_session_id != self.active_session_id:
                        raw["activeSessionId"] = self.active_session_id
                        raw["updatedAt"] = later_than(raw.get("updatedAt"))
                        count += 1
            return count > before

        for path in self._files():
            try:
                change_jobs(self.disk, path, take)
            except NotFound:
                continue
        return count

    def resume(self, job_id: str, *, now_ms: int | None = None) -> ScheduledJob:
        """Make a paused cron job active, with its next run from now on.

        Raises:
            NotFound: there is no such job.
            Conflict: it belongs to another session or binding, or is not a paused top-level one.
            Invalid: it does not recur, or its schedule cannot be understood.
            Unsupported: the library for cron expressions is not installed.
            Others, as ``change_jobs``.
        """

        def check(job: ScheduledJob) -> None:
            if (job.status, job.source, job.runtime_kind) != ("paused", "cron", "top-level"):
                raise Conflict(f"only paused top-level cron jobs can be resumed, not {job_id!r}")

        return self._change(job_id, "resume", check, now_ms)

    def heartbeats(self, source: HeartbeatSource = "rlm_heartbeat") -> Heartbeats:
        """The control of the session's own heartbeats, or of its user's."""
        return Heartbeats(self, source)

    def _change(
        self, job_id: str, to: str, check: Callable[[ScheduledJob], None], now_ms: int | None
    ) -> ScheduledJob:
        path = find_job(self.store, job_id, disk=self.disk).path
        now = environment.now_ms() if now_ms is None else now_ms
        changed: list[ScheduledJob] = []

        def change(jobs: list[Any]) -> bool:
            # Under the lock, and so from the start: it may have been changed a moment ago.
            found = [
                job
                for raw in jobs
                if (job := ScheduledJob.of(raw)) is not None and job.id == job_id
            ]
            if len(found) != 1:
                raise NotFound(f"no scheduled job {job_id!r}", path=path)
            (job,) = found
            if not self._is_ours(job) or job.active_session_id != self.active_session_id:
                raise Conflict(f"the job {job_id!r} does not belong to the bound session")
            check(job)
            job.raw.pop("nextRunAt", None)
            if to == "resume":
                job.raw["nextRunAt"] = environment.iso_time(next_run_ms(job, now))
            job.raw["status"] = _TO_STATUS[to]
            job.raw["updatedAt"] = later_than(job.raw.get("updatedAt"), now)
            changed.append(job)
            return True

        change_jobs(self.disk, path, change)
        return changed[0]

    def _is_ours(self, job: ScheduledJob) -> bool:
        return job.session_id == self.session_id and _same_file(job.session_file, self.session_file)

    def _files(self) -> tuple[str, str]:
        return _files_of(self.store, self.session_id)


@dataclass(frozen=True)
class Heartbeats:
    """Prompts that a session gives itself again and again (or its user does)."""

    schedules: SessionSchedules
    source: HeartbeatSource

    def list(self) -> list[ScheduledJob]:
        """The heartbeats of the session, whatever their status; raises as ``read_schedules``."""
        return [job for job in self.schedules.jobs() if job.source == self.source]

    def update(
        self,
        job_id: str,
        *,
        status: Literal["resume", "pause", "cancel"],
        now_ms: int | None = None,
    ) -> ScheduledJob:
        """Resume, pause or cancel one; a resumed one runs next from now on.

        Raises as :meth:`SessionSchedules.resume`; Invalid too for another word.
        """
        if status not in _TO_STATUS:
            raise Invalid(f"a heartbeat can resume, pause or cancel, not {status!r}")

        def check(job: ScheduledJob) -> None:
            if job.source != self.source or job.runtime_kind != "top-level":
                raise Conflict(f"the job {job_id!r} is no {self.source} of a top-level session")
            if job.status not in _FROM_STATUSES[status]:
                raise Conflict(f"the heartbeat {job_id!r} is {job.status}: it cannot {status}")

        return self.schedules._change(job_id, status, check, now_ms)


def cancel_session_jobs(store: Store, session_id: str, *, disk: Disk = LOCAL_DISK) -> int:
    """Cancel what is active or paused for a session that is being deleted; how many jobs.

    A file that cannot be understood is left as it is: nothing in it is known to be a job.

    Raises:
        Owned: another process is changing them.
        OutcomeUnknown, StorageFull, StorageError: they could not be written, or not durably.
    """
    journal = store.journal_path(session_id)
    count = 0

    def cancel(jobs: list[Any]) -> bool:
        nonlocal count
        before = count
        for raw in jobs:
            job = ScheduledJob.of(raw)
            if job is None or job.status not in OPEN_STATUSES:
                continue
            if job.session_id == session_id or _same_file(job.session_file, journal):
                raw["status"] = "cancelled"
                raw["updatedAt"] = later_than(raw.get("updatedAt"))
                raw.pop("nextRunAt", None)
                count += 1
        return count > before

    for path in _files_of(store, session_id):
        if os.path.islink(os.path.dirname(path)):
            continue  # what an artifact link leads to is not ours to change
        try:
            change_jobs(disk, path, cancel)
        except (NotFound, Invalid, LimitExceeded):
            continue
    return count


def later_than(old: Any, now_ms: int | None = None) -> str:
    """Now, or just after the last change: where two files are merged, the later one counts."""
    now = environment.iso_time(environment.now_ms() if now_ms is None else now_ms)
    if not isinstance(old, str) or old < now:
        return now
    try:
        last = datetime.fromisoformat(old)
        moment = last + timedelta(milliseconds=1)
        return environment.iso_time(int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        return now


def _files_of(store: Store, session_id: str) -> tuple[str, str]:
    return session_schedules(store, session_id), os.path.join(store.top, STORE_SCHEDULES)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):
        return False  # no system takes such a path
