"""What a migration of a whole root would do: everything is read and judged, nothing is written.

One journal that cannot be prepared, one link, one schedule file that is none refuses the whole: an
import of a part would look like all of it. What is left out by rule is named, each with its reason
and by its place; no text, value or path from inside the root is in a report or an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from treering.engine import environment
from treering.engine.commands import command
from treering.engine.errors import (
    InvalidSource,
    LimitExceeded,
    NotFound,
    SourceChanged,
    StorageError,
    TreeringError,
    Unsupported,
)
from treering.engine.migration.preferences import Preferences, read_preferences
from treering.engine.migration.prime_root import PrimeRoot, Skip, check_destination, open_root
from treering.engine.migration.projection import PlannedJob, project, read_candidates
from treering.engine.transfer.legacy import Analysis, analyse, detect
from treering.engine.transfer.legacy_model import CopyLimits, Header
from treering.engine.transfer.records import LocalSource

Mode = Literal["dry-run", "import"]

COVERAGE: Final = (
    "Flat legacy JSONL sessions only; no native journals, nested folders or artifact trees.",
    "Credentials, models, extensions, skills, daemon state and processes are not read.",
    "Packages stay inactive until they are installed explicitly.",
    "Schedules come along paused; pending dispatches and run times do not.",
    "Session text is retained as it is: nothing is scrubbed from it.",
    "The export is read as it stands; it is not checked for being one moment of a live root.",
)

_REASONS: Final[tuple[tuple[type[TreeringError], str], ...]] = (
    (LimitExceeded, "it is over a limit of copies"),
    (Unsupported, "its version or format is not supported"),
    (SourceChanged, "it changed while it was read"),
    (InvalidSource, "it is not whole legacy JSONL"),
)


@dataclass(frozen=True)
class PreparedSession:
    """A journal that was read to its end and can be imported."""

    file: str
    """Its name in the root's sessions folder."""
    path: str
    old_id: str
    new_id: str
    cwd: str
    depth: int
    """Below a first session, as the files of the root tell it."""
    recorded_depth: int | None
    """As its own header records it."""
    entries: int
    source_bytes: int
    digest: str
    """XXH3-128 of the file."""


@dataclass(frozen=True)
class MigrationPlan:
    """A root that was accepted, and what becomes of everything in it."""

    source: str
    destination: str | None
    limits: CopyLimits | None
    sessions: tuple[PreparedSession, ...]
    preferences: Preferences
    jobs: tuple[PlannedJob, ...]
    skipped: tuple[Skip, ...]
    """Everything that does not come along, by place."""

    def count(self, *kinds: str) -> int:
        """How many things of these kinds are skipped."""
        return sum(skip.kind in kinds for skip in self.skipped)

    def as_json(self, mode: Mode) -> dict[str, Any]:
        """The documented report, and every skip with its reason."""
        return {
            "pausedSchedules": len(self.jobs),
            "skippedSchedules": self.count("schedule"),
            "mode": mode,
            "destination": self.destination,
            "preparedSessions": len(self.sessions),
            "preparedEntries": sum(session.entries for session in self.sessions),
            "settings": list(self.preferences.names),
            "inactivePackages": self.preferences.shown_packages(),
            "skippedPackages": self.count("package"),
            "skippedSettings": self.count("setting"),
            "skippedSessionEntries": self.count("session-entry"),
            "coverage": list(COVERAGE),
            "skipped": [skip._asdict() for skip in self.skipped],
        }


def plan_migration(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None = None,
    *,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
) -> MigrationPlan:
    """Read a whole exported root and say what a migration makes of it. Writes nothing.

    Args:
        source: the folder of the export; a root that is in use is refused.
        destination: where the new home is to be. None only looks at the source.
        limits: entries and JSON bytes of each session; None lifts them.

    Raises:
        NotFound, Invalid, Conflict: source or destination cannot be what they are to be.
        InvalidSource, SourceChanged, LimitExceeded: a session or a file cannot be taken.
        StorageError: something cannot be read.
    """
    root = open_root(source)
    target = None if destination is None else check_destination(destination, root.path)
    sessions = _prepare_all(root, limits)
    preferences = read_preferences(root.settings)
    candidates, unread = read_candidates(root, sessions)
    jobs, left = project(candidates, sessions)
    skipped = (*root.skipped, *preferences.skipped, *unread, *left)
    return MigrationPlan(root.path, target, limits, sessions, preferences, tuple(jobs), skipped)


def _prepare_all(root: PrimeRoot, limits: CopyLimits | None) -> tuple[PreparedSession, ...]:
    headers: dict[str, Header] = {}
    facts: dict[str, tuple[int, int, str]] = {}
    for name in root.journals:
        with legacy_source(root.journal_path(name)) as source:
            analysis = analyse_legacy(source, limits)
        headers[name] = header_of(analysis, source.path)
        facts[name] = (analysis.entry_count, analysis.captured_bytes, analysis.digest)
    given: set[str] = set()
    return tuple(
        PreparedSession(
            name,
            root.journal_path(name),
            header.id,
            _new_id(given),
            header.cwd or "",
            depth_of(name, headers),
            header.rlm_depth,
            *facts[name],
        )
        for name, header in headers.items()
    )


@contextmanager
def legacy_source(path: str) -> Iterator[LocalSource]:
    """A journal of a root, open.

    Raises:
        InvalidSource, NotFound, StorageError: it cannot be.
    """
    try:
        source = LocalSource(path)
    except TreeringError as error:
        raise not_prepared(path, error) from None
    with source:
        yield source


def analyse_legacy(source: LocalSource, limits: CopyLimits | None) -> Analysis:
    """The analysis of a source that is whole legacy JSONL.

    Raises:
        InvalidSource, SourceChanged, LimitExceeded, StorageError: it is not; nothing that stands
            in it is repeated.
    """
    try:
        if detect(source) != "jsonl":
            raise Unsupported("no legacy JSONL", path=source.path)
        return analyse(source, limits=limits)
    except TreeringError as error:
        raise not_prepared(source.path, error) from None


def header_of(analysis: Analysis, path: str) -> Header:
    """The header of a source.

    Raises:
        InvalidSource: it has none, or one without a working directory.
    """
    header = analysis.header
    if header is None or not header.cwd:
        raise InvalidSource(
            "offline journal preparation failed; no destination was created: its header names no"
            " working directory",
            path=path,
        )
    return header


def not_prepared(path: str, error: TreeringError) -> TreeringError:
    """The same refusal in words of our own: messages about lines of a journal may quote them."""
    why = next((why for kind, why in _REASONS if isinstance(error, kind)), "it could not be read")
    what = f"offline journal preparation failed; no destination was created: {why}"
    looking = f"`{command('session', 'import', '--preview', path)}` says more"
    if isinstance(error, LimitExceeded):
        return LimitExceeded(
            what,
            limit=error.limit,
            need=error.need,
            path=path,
            offset=error.offset,
            next_step=f"--no-limit lifts those of a whole session; {looking}",
        )
    kind: type[TreeringError] = InvalidSource
    if isinstance(error, (SourceChanged, StorageError, NotFound)):
        kind = type(error)
    return kind(what, path=path, offset=error.offset, next_step=looking)


def _new_id(given: set[str]) -> str:
    while (found := environment.new_session_id()) in given:
        pass
    given.add(found)
    return found


def depth_of(name: str, headers: Mapping[str, Header]) -> int:
    """How deep a session lies, as the files of this root tell it.

    What its header records; where that is silent, what its parent is, if the root holds a file of
    the parent's name. No other file is read: the parents of an export lie in a live root.
    """
    seen: set[str] = set()
    while name in headers and name not in seen:
        seen.add(name)
        header = headers[name]
        if header.rlm_depth is not None:
            return header.rlm_depth
        if header.parent_session is None:
            return 0
        name = re.split(r"[/\\]", header.parent_session)[-1]
    return 0
