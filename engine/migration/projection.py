"""Scheduled prompts of an older root, as paused jobs of the new one.

A job comes along when it is plain who owns it: a top-level job, active or paused, whose session was
imported once, from the file that the job names. Everything else is skipped, one by one, with the
first of these reasons:

| reason | the job |
|---|---|
| ``invalid-shape`` | has a member of a wrong type, or lacks one |
| ``empty-id`` | has the id "" |
| ``duplicate-id`` | has an id that occurs twice in all files |
| ``not-active-or-paused`` | is completed or cancelled, or something unknown |
| ``one-shot-rlm-heartbeat`` | cannot be resumed by its own control |
| ``subagent`` | belongs to a session that another one made for itself |
| ``unsafe-session-id`` | names a session whose id could leave its folder |
| ``no-unique-session`` | is for a session that no journal, or more than one, holds |
| ``session-below-another`` | is for a session of a depth other than 0 |
| ``other-artifact-folder`` | lies in the artifacts of another session |
| ``other-session-file`` | names another journal file |
| ``several-user-heartbeats`` | is one of several user heartbeats of its session |

What comes along has a new id, the new session's id and file, and nothing of when it ran or was to
run. It stays paused until somebody resumes it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from treering.engine import environment
from treering.engine.migration.prime_root import (
    ARTIFACTS,
    ROOT_SCHEDULES,
    SCHEDULES,
    PrimeRoot,
    Skip,
    artifact_folders,
    artifact_schedules,
    is_there,
    read_json,
)
from treering.engine.schedules.job import OPEN_STATUSES, ScheduledJob, jobs_of

_UNSAFE: Final = ("", ".", "..")


class Owner(Protocol):
    """What is to be known of an imported session."""

    @property
    def file(self) -> str:
        """Name of its journal in the root."""

    @property
    def old_id(self) -> str:
        """Its id there."""

    @property
    def new_id(self) -> str:
        """Its id here."""

    @property
    def cwd(self) -> str:
        """Its working directory."""

    @property
    def depth(self) -> int:
        """How deep it lies below a first session."""


class Candidate(NamedTuple):
    """A job as it stands in a file. ``folder`` is the artifact folder's name, None for the root."""

    item: str
    raw: Any
    folder: str | None


@dataclass(frozen=True)
class PlannedJob:
    """A job of the new root; the path of its session's journal is still to be filled in."""

    item: str
    """Where it stood."""
    old_id: str
    session_id: str
    """The new session."""
    raw: dict[str, Any]

    @property
    def id(self) -> str:
        """Its new id."""
        return str(self.raw["id"])

    def written(self, session_file: str) -> dict[str, Any]:
        """The job with the final path of its journal."""
        return self.raw | {"sessionFile": session_file}


def read_candidates(root: PrimeRoot, owners: Iterable[Owner]) -> tuple[list[Candidate], list[Skip]]:
    """Every job of the root's file and of the artifacts of its sessions.

    Schedules in other artifact folders are not read, and named.

    Raises:
        Invalid, LimitExceeded: a link, a file of a wrong kind, or no schedule file: nothing of
            such a root is taken.
        StorageError: a file cannot be read.
    """
    known = {owner.old_id for owner in owners}
    found: list[Candidate] = []
    skipped: list[Skip] = []
    whole = os.path.join(root.path, ROOT_SCHEDULES)
    if is_there(whole):
        found += _jobs(whole, ROOT_SCHEDULES, None)
    for name in artifact_folders(root):
        if name not in known:
            skipped.append(Skip("schedule-file", f"{ARTIFACTS}/{name}", "no-session-of-that-id"))
            continue
        path = artifact_schedules(root, name)
        if path is not None:
            found += _jobs(path, f"{ARTIFACTS}/{name}/{SCHEDULES}", name)
    return found, skipped


def _jobs(path: str, item: str, folder: str | None) -> list[Candidate]:
    return [
        Candidate(f"{item}#{number}", raw, folder)
        for number, raw in enumerate(jobs_of(read_json(path), path), 1)
    ]


def project(
    candidates: list[Candidate], owners: Iterable[Owner]
) -> tuple[list[PlannedJob], list[Skip]]:
    """The jobs that come along, and why the others do not."""
    by_id: dict[str, list[Owner]] = defaultdict(list)
    for owner in owners:
        by_id[owner.old_id].append(owner)
    times = Counter(
        one.raw["id"]
        for one in candidates
        if isinstance(one.raw, dict) and isinstance(one.raw.get("id"), str)
    )
    fitting: list[tuple[Candidate, ScheduledJob, Owner]] = []
    skipped: list[Skip] = []
    for one in candidates:
        job = ScheduledJob.of(one.raw)
        reason = "invalid-shape" if job is None else _why_not(one, job, times, by_id)
        if job is None or reason is not None:
            skipped.append(Skip("schedule", one.item, reason or "invalid-shape"))
        else:
            fitting.append((one, job, by_id[job.session_id][0]))
    beats = Counter(job.session_id for _, job, _ in fitting if job.source == "heartbeat")
    planned = []
    for one, job, owner in fitting:
        if job.source == "heartbeat" and beats[job.session_id] > 1:
            skipped.append(Skip("schedule", one.item, "several-user-heartbeats"))
        else:
            planned.append(PlannedJob(one.item, job.id, owner.new_id, _paused(job, owner)))
    return planned, skipped


def _why_not(
    one: Candidate, job: ScheduledJob, times: Counter[str], owners: Mapping[str, list[Owner]]
) -> str | None:
    """The first rule that keeps a job from coming along."""
    if not job.id:
        return "empty-id"
    if times[job.id] > 1:
        return "duplicate-id"
    if job.status not in OPEN_STATUSES:
        return "not-active-or-paused"
    if job.source == "rlm_heartbeat" and job.schedule_kind == "once":
        return "one-shot-rlm-heartbeat"
    if job.runtime_kind == "subagent":
        return "subagent"
    if job.session_id in _UNSAFE or any(char in job.session_id for char in "/\\\0"):
        return "unsafe-session-id"
    matched = owners.get(job.session_id, [])
    if len(matched) != 1:
        return "no-unique-session"
    if matched[0].depth != 0:
        return "session-below-another"
    if one.folder is not None and one.folder != job.session_id:
        return "other-artifact-folder"
    if os.path.basename(job.session_file) != matched[0].file:
        return "other-session-file"
    return None


def _paused(job: ScheduledJob, owner: Owner) -> dict[str, Any]:
    """The new job. Of the old one only what says what to do, and when, comes along."""
    now = environment.iso_time(environment.now_ms())
    schedule: dict[str, Any] = {"kind": job.schedule_kind, "expression": job.expression}
    if job.interval_ms is not None:
        schedule["intervalMs"] = job.interval_ms
    made: dict[str, Any] = {
        "id": environment.long_entry_id(),
        "status": "paused",
        "source": job.source,
        "runtimeKind": "top-level",
        "activeSessionId": owner.new_id,
        "sessionId": owner.new_id,
        "cwd": job.cwd or owner.cwd,
        "prompt": job.raw["prompt"],
        "schedule": schedule,
        "createdAt": now,
        "updatedAt": now,
        "runCount": 0,
    }
    for name in ("label", "deliveryMode"):
        if name in job.raw:
            made[name] = job.raw[name]
    return made
