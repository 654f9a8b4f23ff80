"""Migrating a whole root: everything is staged beside the destination and published by one rename.

    <parent>/.<name>.import-staging/     everything, durable, with its final paths inside
    <parent>/<name>/                     the same folder, after the rename

Promises. Until the rename there is no destination; after it there is all of it. A failure before it
removes the staging folder, a killed process leaves it: the next run recognises it by its manifest,
the first file that was written, and replaces it. There is never more than one, and whoever works in
it holds its lock, which follows the folder through the rename and ends with the process. What has
the name of the destination is never replaced (an empty folder made in the last instant holds
nothing). Nothing is written into the exported root.

Three ways to fail are told apart: no destination was activated; it is in its place but not known to
survive a power failure; nobody can tell.
"""

from __future__ import annotations

import errno
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from treering.engine import environment
from treering.engine.commands import quoted
from treering.engine.errors import (
    Conflict,
    InvalidSource,
    LimitExceeded,
    OutcomeUnknown,
    Owned,
    SourceChanged,
    TreeringError,
    Unsupported,
    from_os_error,
)
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK, Disk, File, make_folders, write_all
from treering.engine.migration.plan import (
    MigrationPlan,
    PreparedSession,
    analyse_legacy,
    legacy_source,
    not_prepared,
    plan_migration,
)
from treering.engine.migration.prime_root import SCHEDULES, SETTINGS, is_there
from treering.engine.migration.staged_disk import StagedDisk
from treering.engine.schedules.json_file import encode_json
from treering.engine.session.trash import remove_tree
from treering.engine.transfer.importing import Destination, line_contents, publish_contents
from treering.engine.transfer.legacy_model import CopyLimits

MANIFEST: Final = "migration-manifest.jsonl"
"""What became of everything, one JSON object a line; it stays in the new home."""

_STAGING_SUFFIX: Final = ".import-staging"
_TRIES: Final = 16
_TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True)
class MigrationResult:
    """A root that was imported and is in its place."""

    plan: MigrationPlan
    destination: str
    manifest: str
    """Path of the manifest: old ids and new ones, digests, and every skip with its reason."""

    def as_json(self) -> dict[str, Any]:
        """The report of the plan, and that it was done."""
        return self.plan.as_json("import") | {
            "activated": True,
            "importedSessions": len(self.plan.sessions),
            "manifest": self.manifest,
        }


def migrate_root(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    compression: bool = True,
    disk: Disk = LOCAL_DISK,
) -> MigrationResult:
    """Import a whole exported root into a new home. It is not selected, and nothing is started.

    Raises:
        OutcomeUnknown: the home is in its place and may not survive a power failure, or nobody can
            tell whether it is: look before doing anything again.
        Owned: another migration to this destination is running.
        Others, as :func:`plan_migration` and as imports of sessions: there is no destination, and
            running it again starts anew.
    """
    plan = plan_migration(source, destination, limits=limits)
    assert plan.destination is not None
    staging = _Staging(disk, plan.destination)
    with staging:
        staging.fill(plan, compression=compression)
        staging.activate()
    return MigrationResult(plan, plan.destination, os.path.join(plan.destination, MANIFEST))


class _Staging:
    """The folder in which the new home is made, locked as long as this is open."""

    def __init__(self, disk: Disk, destination: str) -> None:
        self._disk = disk
        self._destination = destination
        self.path = staging_path(destination)
        self._file: File | None = None

    def __enter__(self) -> None:
        try:
            for _ in range(_TRIES):
                self._file = self._taken()
                if self._file is not None:
                    break
            else:
                raise Owned("another migration to this destination is running", path=self.path)
            self._clear()
        except OSError as error:
            failed = from_os_error(error, "prepare the staging folder", self.path)
            self._give_up(failed)
            self._close()
            raise failed from error
        except BaseException:
            self._close()
            raise

    def _taken(self) -> File | None:
        """The folder, made or found, and locked; None when it went away meanwhile."""
        if os.path.islink(self.path):
            raise self._in_the_way()
        try:
            self._disk.make_folder(self.path)
        except FileExistsError:
            pass  # left by a run that was killed, or that of somebody else: its lock tells
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return None
        try:
            if not file.stat().is_folder:
                raise self._in_the_way()
            if not file.try_lock():
                raise Owned(
                    "another migration to this destination is running",
                    path=self.path,
                    next_step="wait for it",
                )
            if self._is_ours(file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        return None

    def _is_ours(self, file: File) -> bool:
        """Whether the name still leads to the folder that we hold."""
        try:
            return self._disk.stat(self.path).identity == file.stat().identity
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise

    def _in_the_way(self) -> Conflict:
        return Conflict(
            "what has the name of the staging folder is not that of a migration",
            path=self.path,
            next_step="move it out of the way",
        )

    def _clear(self) -> None:
        """Remove what is in the folder; the manifest last: it is what the folder is known by."""
        names = self._disk.list_folder(self.path)
        if names and MANIFEST not in names:
            raise self._in_the_way()
        for name in names:
            if name != MANIFEST:
                remove_tree(self._disk, os.path.join(self.path, name))
        if names:
            self._disk.sync_folder(self.path)
            remove_tree(self._disk, os.path.join(self.path, MANIFEST))

    def fill(self, plan: MigrationPlan, *, compression: bool) -> None:
        """Write everything, durably."""
        store = Store(self.path, os.path.join(self.path, "sessions"))
        staged = StagedDisk(self._disk)
        try:
            # Durable before anything else has a name here: the folder is known by it.
            self._write(self._disk, self.path, MANIFEST, b"".join(_manifest(plan)))
            make_folders(staged, store.sessions, self.path)
            self._write(staged, self.path, SETTINGS, encode_json(plan.preferences.written()))
            for session in plan.sessions:
                to = Destination(
                    store,
                    session.cwd,
                    session.path,
                    session.recorded_depth,
                    session.new_id,
                    compression,
                    staged,
                )
                _import(session, to, plan.limits)
            self._write_schedules(staged, plan, store)
            staged.sync_names(self.path)
        except OSError as error:
            raise from_os_error(error, "stage the new home", self.path) from error

    def _write_schedules(self, disk: Disk, plan: MigrationPlan, store: Store) -> None:
        """The jobs of each session, with the paths that they will have."""
        final = Store(self._destination, os.path.join(self._destination, "sessions"))
        jobs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for job in plan.jobs:
            path = final.journal_path(job.session_id)
            jobs[job.session_id].append(job.written(path))
        for session_id, written in jobs.items():
            folder = store.artifact_folder(session_id)
            make_folders(disk, folder, self.path)
            self._write(disk, folder, SCHEDULES, encode_json({"jobs": written, "dispatches": []}))

    def _write(self, disk: Disk, folder: str, name: str, data: bytes) -> None:
        file = disk.create(os.path.join(folder, name))
        try:
            write_all(file, data, 0)
            file.fsync()
        finally:
            file.close()
        disk.sync_folder(folder)

    def activate(self) -> None:
        """Give the folder its name; from then on it is the new home.

        Raises:
            Conflict: the name was taken meanwhile.
            OutcomeUnknown: see :func:`migrate_root`.
        """
        assert self._file is not None
        if is_there(self._destination):
            raise self._made_meanwhile()
        try:
            self._disk.rename(self.path, self._destination)
        except OSError as error:
            self._check_activated(error)
        try:
            self._disk.sync_folder(os.path.dirname(self._destination))
        except OSError as error:
            raise OutcomeUnknown(
                "the root was imported and is in its place, but it is not known to survive a power"
                f" failure: {error.strerror}",
                path=self._destination,
                next_step="do not import it again; `sync` makes it durable, where it does not fail",
            ) from error

    def _check_activated(self, error: OSError) -> None:
        """A rename that failed: was it done all the same?"""
        assert self._file is not None
        try:
            staged = self._is_ours(self._file)
            if not staged and (
                self._disk.stat(self._destination).identity == self._file.stat().identity
            ):
                return
        except OSError:
            staged = False
        if staged:
            if error.errno in _TAKEN:
                raise self._made_meanwhile() from error
            raise from_os_error(error, "activate the new home", self._destination) from error
        raise OutcomeUnknown(
            f"nobody can tell whether the new home was activated: {error.strerror}",
            path=self._destination,
            next_step=f"look whether it is there, or still {quoted(self.path)}; do not run it"
            " again before",
        ) from error

    def _made_meanwhile(self) -> Conflict:
        return Conflict(
            "the destination was made by somebody else meanwhile",
            path=self._destination,
            next_step="name a path where nothing is",
        )

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None and not isinstance(error, OutcomeUnknown):
                self._give_up(error)
        finally:
            self._close()

    def _give_up(self, error: BaseException) -> None:
        """Remove the staging folder, if it is still there, and say that nothing was activated."""
        left = ""
        try:
            if self._file is not None and self._is_ours(self._file):
                self._clear()
                self._disk.remove_folder(self.path)
        except (OSError, Conflict):
            left = f" (what is left in {quoted(self.path)} is replaced then)"
        if isinstance(error, TreeringError):
            step = "" if error.next_step is None else f"{error.next_step}; "
            error.next_step = f"{step}no destination was activated, running it again is safe{left}"

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def staging_path(destination: str) -> str:
    """Where a migration to that destination is staged."""
    above, name = os.path.split(destination)
    return os.path.join(above, f".{name}{_STAGING_SUFFIX}")


def _import(session: PreparedSession, to: Destination, limits: CopyLimits | None) -> None:
    """The second pass over one journal: it must be the one that was planned."""
    with legacy_source(session.path) as source:
        analysis = analyse_legacy(source, limits)
        if analysis.digest != session.digest:
            raise not_prepared(session.path, SourceChanged(""))
        contents = line_contents(source, analysis, lowered=True)
        try:
            publish_contents(contents, to, "import")
        except (InvalidSource, LimitExceeded, SourceChanged, Unsupported) as error:
            raise not_prepared(session.path, error) from None


def _manifest(plan: MigrationPlan) -> Iterator[bytes]:
    """The lines of the manifest. It holds places, ids and digests: no text, value or setting."""
    now = environment.iso_time(environment.now_ms())
    yield _line("migration", version=1, source=plan.source, createdAt=now)
    for session in plan.sessions:
        yield _line(
            "session",
            file=session.file,
            oldId=session.old_id,
            newId=session.new_id,
            entries=session.entries,
            bytes=session.source_bytes,
            xxh3_128=session.digest,
        )
    for job in plan.jobs:
        yield _line(
            "schedule", item=job.item, oldId=job.old_id, newId=job.id, sessionId=job.session_id
        )
    for name in plan.preferences.names:
        yield _line("setting", name=name)
    for package in plan.preferences.shown_packages():
        yield _line("inactive-package", source=package)
    for skip in plan.skipped:
        yield _line("skipped", **skip._asdict())


def _line(record: str, **facts: Any) -> bytes:
    return json.dumps({"record": record, **facts}).encode() + b"\n"
