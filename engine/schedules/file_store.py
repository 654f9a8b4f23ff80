"""Schedule files as a store: read whole, changed under their lock, replaced by a rename.

A frontend changes the same files by the same rules: whoever creates ``<file>.lock`` may write, for
a moment; a lock of 30 seconds is left over from a process that died. Ours are also locked inodes
and say so, so that one left behind by us is known at once, and one in use is never taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from treering.engine import environment
from treering.engine.errors import (
    Conflict,
    Invalid,
    InvalidId,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Owned,
    TreeringError,
    from_os_error,
)
from treering.engine.home import Store, check_session_id
from treering.engine.journal.disk import LOCAL_DISK, Disk, File, put_whole, write_all
from treering.engine.schedules.job import ScheduledJob, jobs_of
from treering.engine.schedules.json_file import JSON_FILE_BYTES_MAX, decode_json, encode_json

SESSION_SCHEDULES: Final = "scheduled-jobs.json"
"""In the artifact folder of a session."""

STORE_SCHEDULES: Final = "cron-jobs.json"
"""In the home: one file for all sessions, as older frontends kept it."""

_LOCK_TRIES: Final = 100
_LOCK_WAIT_S: Final = 0.01
_STALE_AFTER_MS: Final = 30_000
_MARK: Final = b"treering\n"
_TEMPORARY: Final = ".new"


class Placed(NamedTuple):
    """A job and the file that it stands in."""

    job: ScheduledJob
    path: str


@dataclass
class Schedules:
    """What the schedule files of a store hold."""

    jobs: list[Placed] = field(default_factory=list)
    """By next run, those without one last."""
    faults: list[TreeringError] = field(default_factory=list)
    """Files and jobs that cannot be understood; they stop no others."""


def read_schedules(store: Store, *, disk: Disk = LOCAL_DISK) -> Schedules:
    """Every job of a store. Changes nothing.

    Raises:
        Invalid: a symbolic link among the artifacts, or in the place of a schedule file.
        StorageError: the artifacts cannot be listed.
    """
    found = Schedules()
    for path in schedule_files(store, disk=disk):
        try:
            jobs = jobs_of(read_value(disk, path), path)
        except NotFound:
            continue
        except TreeringError as error:
            found.faults.append(error)
            continue
        for number, raw in enumerate(jobs, 1):
            job = ScheduledJob.of(raw)
            if job is None:
                found.faults.append(Invalid(f"job {number} is not one", path=path))
            else:
                found.jobs.append(Placed(job, path))
    found.jobs.sort(key=lambda placed: (placed.job.next_run_at is None, placed.job.next_run_at))
    return found


def schedule_files(store: Store, *, disk: Disk = LOCAL_DISK) -> list[str]:
    """Where schedules of a store can be; raises as :func:`read_schedules`."""
    paths = [os.path.join(store.top, STORE_SCHEDULES)]
    try:
        names = disk.list_folder(store.artifacts)
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise from_os_error(error, "list the artifacts", store.artifacts) from error
    for name in names:
        path = os.path.join(store.artifacts, name)
        if os.path.islink(path):
            raise Invalid("a symbolic link among the artifacts is refused", path=path)
        try:
            check_session_id(name)
        except InvalidId:
            continue  # nothing of a session
        paths.append(session_schedules(store, name))
    for path in paths:
        if os.path.islink(path):
            raise Invalid("a symbolic link in the place of a schedule file is refused", path=path)
    return paths


def session_schedules(store: Store, session_id: str) -> str:
    """The schedule file of one session."""
    return os.path.join(store.artifact_folder(session_id), SESSION_SCHEDULES)


def find_job(store: Store, job_id: str, *, disk: Disk = LOCAL_DISK) -> Placed:
    """The job of that id.

    Raises:
        NotFound: there is none.
        Conflict: there are several.
        Others, as :func:`read_schedules`.
    """
    found = [placed for placed in read_schedules(store, disk=disk).jobs if placed.job.id == job_id]
    if not found:
        raise NotFound(
            f"no scheduled job {job_id!r}",
            path=store.top,
            next_step="`treering schedule list --offline --all` lists them",
        )
    if len(found) > 1:
        raise Conflict(f"{len(found)} scheduled jobs have the id {job_id!r}", path=found[1].path)
    return found[0]


def read_value(disk: Disk, path: str) -> Any:
    """What a schedule file holds.

    Raises:
        NotFound: there is none.
        Invalid, LimitExceeded: it is no plain file of JSON.
        StorageError: it cannot be read.
    """
    try:
        if os.path.islink(path):
            raise Invalid("a symbolic link in the place of a schedule file is refused", path=path)
        file = disk.open(path)
        try:
            status = file.stat()
            if not status.is_regular:
                raise Invalid("it is not a plain file", path=path)
            if status.size > JSON_FILE_BYTES_MAX:
                raise LimitExceeded(
                    "the file is too large", limit=JSON_FILE_BYTES_MAX, need=status.size, path=path
                )
            data = file.pread(status.size, 0)
        finally:
            file.close()
    except OSError as error:
        raise from_os_error(error, "read the schedules", path) from error
    return decode_json(data, path)


def change_jobs(disk: Disk, path: str, change: Callable[[list[Any]], bool]) -> bool:
    """Change a schedule file under its lock; whether ``change`` said that it did.

    ``change`` gets the list of jobs as they stand there and changes it in place. Members that are
    not known here, and the dispatches, stay.

    Raises:
        NotFound, Invalid, LimitExceeded: there is none, or it is none; nothing was written.
        Owned: another process is changing it.
        OutcomeUnknown: it is changed, and may not survive a power failure.
        StorageFull, StorageError: it is as it was.
    """
    try:
        disk.stat(path)  # where there is nothing to change, no lock is made
        with _locked(disk, path):
            value = read_value(disk, path)
            if not change(jobs_of(value, path)):
                return False
            _replace(disk, path, encode_json(value))
    except OSError as error:
        raise from_os_error(error, "write the schedules", path) from error
    return True


def _replace(disk: Disk, path: str, data: bytes) -> None:
    """Put a new file in the place of the old one, durably; the lock is held."""
    folder, name = os.path.split(path)
    start = f".{name}."
    for left in disk.list_folder(folder):
        if left.startswith(start) and left.endswith(_TEMPORARY):
            disk.unlink(os.path.join(folder, left))  # of a process that died: we have the lock
    temporary = os.path.join(folder, f"{start}{environment.random_bytes(4).hex()}{_TEMPORARY}")
    put_whole(disk, temporary, path, data)
    try:
        disk.sync_folder(folder)
    except OSError as error:
        raise OutcomeUnknown(
            f"the schedules are changed, but not known to survive a power failure:"
            f" {error.strerror}",
            path=path,
            next_step="look at them before changing them again",
        ) from error


@contextmanager
def _locked(disk: Disk, path: str) -> Iterator[None]:
    name = f"{path}.lock"
    file = _take(disk, name)
    try:
        yield
    finally:
        try:
            if disk.stat(name).identity == file.stat().identity:
                disk.unlink(name)
        except OSError:
            pass  # it says that it is ours, and nobody holds it: the next one takes it
        file.close()


def _take(disk: Disk, name: str) -> File:
    for _ in range(_LOCK_TRIES):
        try:
            file = disk.create(name)
        except FileExistsError:
            if not _removed_stale(disk, name):
                environment.sleep(_LOCK_WAIT_S)
            continue
        try:
            # Who looks at a new lock holds it for an instant, and leaves it as long as it has no
            # mark. Marked without being held it would be taken for one that was left behind.
            while not file.try_lock():
                environment.sleep(_LOCK_WAIT_S)
            write_all(file, _MARK, 0)
        except OSError:
            file.close()
            disk.unlink(name)
            raise
        return file
    raise Owned(
        "another process is changing the schedules",
        path=name,
        next_step="try again; the lock of a process that died counts for 30 seconds",
    )


def _removed_stale(disk: Disk, name: str) -> bool:
    """Remove a lock that nobody holds any more; whether to try again at once."""
    try:
        file = disk.open(name, write=True)
    except FileNotFoundError:
        return True
    try:
        status = file.stat()
        if not file.try_lock():
            return False
        age_ms = environment.now_ms() - status.mtime_ns // 1_000_000
        if file.pread(len(_MARK), 0) != _MARK and age_ms < _STALE_AFTER_MS:
            return False
        # Whoever removes the name holds the lock of its inode: nobody else does it for this one.
        if disk.stat(name).identity == status.identity:
            disk.unlink(name)
    except FileNotFoundError:
        pass  # somebody else did
    finally:
        file.close()
    return True
