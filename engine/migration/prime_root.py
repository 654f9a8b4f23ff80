"""The exported root of an older system: what may be read of it, and what refuses the whole.

Only the documented places of a root are looked at. Links are never followed, anywhere: an export is
plain files in plain folders, and a link in it could lead to a live root or to somebody's secrets.
Nothing here writes. (The disk of the engine follows links, so this module looks by itself.)
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from treering.engine import home
from treering.engine.errors import Conflict, Invalid, NotFound, from_os_error
from treering.engine.home import JOURNAL_SUFFIX
from treering.engine.schedules.json_file import JSON_FILE_BYTES_MAX, decode_json

SETTINGS: Final = "settings.json"
SESSIONS: Final = "sessions"
ARTIFACTS: Final = "session-artifacts"
ROOT_SCHEDULES: Final = "cron-jobs.json"
SCHEDULES: Final = "scheduled-jobs.json"

_LIVE_ROOTS: Final = ((".prime", "agent"), (".pi", "agent"), (".prime-context",))
"""Where the older systems keep what they are using, below the user's home."""

_READ: Final = frozenset((SETTINGS, SESSIONS, ARTIFACTS, ROOT_SCHEDULES))


class Skip(NamedTuple):
    """One thing that is not taken along. It is named by its place: never by what stands in it."""

    kind: str
    """``setting``, ``package``, ``session-entry``, ``schedule``, ``schedule-file``,
    ``root-entry``."""
    item: str
    reason: str


@dataclass(frozen=True)
class PrimeRoot:
    """What stands at the documented places of a root."""

    path: str
    settings: dict[str, Any] | None
    journals: tuple[str, ...]
    """Names of the journals in the sessions folder, sorted."""
    skipped: tuple[Skip, ...]

    def journal_path(self, name: str) -> str:
        """Where a journal of that name is."""
        return os.path.join(self.path, SESSIONS, name)


def open_root(source: str | os.PathLike[str]) -> PrimeRoot:
    """Look at a root.

    Raises:
        NotFound, Invalid: it is no folder, is a live root, or holds something of a wrong kind.
        StorageError: it cannot be read.
    """
    path = os.path.abspath(home.check_path(source))
    _require_folder(path, "the exported root")
    refuse_live(path)
    settings = None
    if is_there(os.path.join(path, SETTINGS)):
        settings = read_json(os.path.join(path, SETTINGS))
        if not isinstance(settings, dict):
            raise Invalid("the settings are not a JSON object", path=os.path.join(path, SETTINGS))
    skipped = [Skip("root-entry", name, "not-copied") for name in listed(path) if name not in _READ]
    journals, passed_over = _sessions(os.path.join(path, SESSIONS))
    return PrimeRoot(path, settings, tuple(journals), (*skipped, *passed_over))


def check_destination(destination: str | os.PathLike[str], source: str) -> str:
    """The absolute path of a destination that can be made.

    Raises:
        Conflict: something is there already.
        NotFound, Invalid: the folder above is missing, or the place is not allowed.
    """
    path = os.path.abspath(home.check_path(destination))
    if is_there(path):
        raise Conflict(
            "the destination exists; nothing is merged or overwritten",
            path=path,
            next_step="name a path where nothing is",
        )
    above = os.path.dirname(path)
    try:
        if not stat.S_ISDIR(os.stat(above).st_mode):
            raise Invalid("the destination's folder is no folder", path=above)
    except OSError as error:
        raise from_os_error(error, "find the destination's folder", above) from error
    real = os.path.join(os.path.realpath(above), os.path.basename(path))
    if _is_at_or_below(real, source):
        raise Invalid("the destination lies inside the exported root", path=path)
    home.check_writable_place(path)
    return path


def refuse_live(path: str) -> None:
    """Refuse a root that is, holds or lies in one that an older system is using.

    Raises:
        Invalid: it does.
    """
    for parts in _LIVE_ROOTS:
        live = os.path.join(os.path.expanduser("~"), *parts)
        if _is_at_or_below(path, live) or _is_at_or_below(live, path):
            raise Invalid(
                "a standard root, which may be in use, is refused",
                path=path,
                next_step="make an export of it while nothing runs, and name that",
            )


def _sessions(folder: str) -> tuple[list[str], list[Skip]]:
    """Journals of the flat folder, and what else is in it. A link refuses the whole."""
    if not is_there(folder):
        return [], []
    _require_folder(folder, "the sessions folder")
    journals, skipped = [], []
    for name in listed(folder):
        path = os.path.join(folder, name)
        mode = mode_of(path)
        if stat.S_ISLNK(mode):
            raise Invalid("a symbolic link among the sessions is refused", path=path)
        if stat.S_ISDIR(mode):
            skipped.append(Skip("session-entry", name, "folder-not-followed"))
        elif not name.endswith(JOURNAL_SUFFIX):
            skipped.append(Skip("session-entry", name, "not-named-as-a-session"))
        elif not stat.S_ISREG(mode):
            skipped.append(Skip("session-entry", name, "not-a-plain-file"))
        else:
            journals.append(name)
    return journals, skipped


def artifact_folders(root: PrimeRoot) -> list[str]:
    """Names in the artifacts folder.

    Raises:
        Invalid: it is no plain folder, or a link is in it.
    """
    folder = os.path.join(root.path, ARTIFACTS)
    if not is_there(folder):
        return []
    _require_folder(folder, "the artifacts folder")
    names = listed(folder)
    for name in names:
        if stat.S_ISLNK(mode_of(os.path.join(folder, name))):
            path = os.path.join(folder, name)
            raise Invalid("a symbolic link among the artifacts is refused", path=path)
    return names


def artifact_schedules(root: PrimeRoot, name: str) -> str | None:
    """The path of the schedule file of one artifact folder, None when it has none.

    Raises:
        Invalid: what has the name of the folder is none.
    """
    folder = os.path.join(root.path, ARTIFACTS, name)
    _require_folder(folder, "an artifact folder")
    path = os.path.join(folder, SCHEDULES)
    return path if is_there(path) else None


def read_json(path: str) -> Any:
    """The value in a plain file; nothing of it is in any error.

    Raises:
        Invalid, LimitExceeded: it is no plain file, or no JSON.
        StorageError: it cannot be read.
    """
    if not stat.S_ISREG(mode_of(path)):
        raise Invalid("it is not a plain file", path=path)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        with open(os.open(path, flags), "rb") as file:
            data = file.read(JSON_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise from_os_error(error, "read the file", path) from error
    return decode_json(data, path)


def listed(folder: str) -> list[str]:
    """Names in a folder, sorted.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise from_os_error(error, "list the folder", folder) from error


def is_there(path: str) -> bool:
    """Whether the name is taken, by whatever kind of thing; raises as :func:`mode_of`."""
    try:
        mode_of(path)
    except NotFound:
        return False
    return True


def mode_of(path: str) -> int:
    """The mode of what has the name; a link is not followed.

    Raises:
        NotFound: nothing has.
        StorageError: nobody can tell.
    """
    try:
        return os.lstat(path).st_mode
    except OSError as error:
        raise from_os_error(error, "look at it", path) from error


def _require_folder(path: str, what: str) -> None:
    mode = mode_of(path)
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "something else"
        raise Invalid(f"{what} must be a plain folder, and is {kind}", path=path)


def _is_at_or_below(path: str, top: str) -> bool:
    """Whether ``top`` or something in it is meant, by name or, whatever its name, by identity."""
    path, top = os.path.realpath(path), os.path.realpath(top)
    wanted = _identity(top)
    while True:
        if path == top or (wanted is not None and _identity(path) == wanted):
            return True
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # not there, or not for us to see: its name has to do
    return found.st_dev, found.st_ino
