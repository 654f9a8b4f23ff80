"""Generations of index files in a folder: naming, publishing, setting aside.

An index is never changed in place by a rebuild and never renamed over: another process may have
it open. A rebuild is a new file with the next number; current is the highest number. A number is
not used again while anything of it is left, so a stale ``-wal`` is never adopted.

Nothing here opens a database file that may be in use: closing a descriptor would drop all POSIX
locks of this process on it. The caller owns the session, so nobody else publishes for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Final

from treering.index.faults import IndexFault, translate
from treering.index.handle import is_open
from treering.index.schema import resolved

SUFFIX: Final = ".sqlite3"
SIDECARS: Final = ("-wal", "-shm", "-journal")

_TAIL = re.compile(r"\.([1-9][0-9]*)\.sqlite3(\.bad-[0-9]+)?(-wal|-shm|-journal)?\Z")
_BUILD = re.compile(r"\.build-([0-9]+)\.tmp(-wal|-shm|-journal)?\Z")


def ensure_folder(folder: str) -> None:
    """Make the folder (0700 whatever the umask) if it is not there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o700)


def current(folder: str, session_id: str) -> str | None:
    """Path of the highest generation of a session's index; None if there is none.

    Whatever has the name counts, also a directory: opening it tells, and it is set aside.
    """
    numbers = [n for n, kind, _ in _members(folder, session_id) if kind == "live"]
    return os.path.join(folder, f"{session_id}.{max(numbers)}{SUFFIX}") if numbers else None


def all_current(folder: str) -> dict[str, str]:
    """Session id to path of the highest generation, for every session that has an index.

    One look at the folder: asking :func:`current` for each of many sessions reads it each time.
    """
    highest: dict[str, int] = {}
    for name in _listed(folder):
        match = _TAIL.search(name)
        if match is not None and match[2] is None and match[3] is None:
            session_id = name[: match.start()]
            highest[session_id] = max(highest.get(session_id, 0), int(match[1]))
    return {
        session_id: os.path.join(folder, f"{session_id}.{number}{SUFFIX}")
        for session_id, number in highest.items()
    }


def next_path(folder: str, session_id: str) -> str:
    """A free path for the next generation, for ``SessionIndex.open(..., create=True)``."""
    return os.path.join(folder, f"{session_id}.{_next_number(folder, session_id)}{SUFFIX}")


def new_build_path(folder: str, session_id: str) -> str:
    """A free path for a build. Removes what earlier builds of the session left behind."""
    try:
        ensure_folder(folder)
        taken = -1
        for name in os.listdir(folder):
            match = _matches(_BUILD, name, session_id)
            path = os.path.join(folder, name)
            if match is None:
                continue
            if is_open(resolved(path)) or not _unlink(path):
                taken = max(taken, int(match[1]))
    except OSError as error:
        raise translate(folder, error) from error
    return os.path.join(folder, f"{session_id}.build-{taken + 1}.tmp")


def publish_build(built: str, folder: str, session_id: str, *, only: str | None = None) -> str:
    """Give a finished and closed build its generation name; returns the path.

    Syncs the file, links it under the next free number (never over anything), removes the build
    name, syncs the folder. A kill leaves either no new generation or a whole one. With ``only`` it
    gets that name or none: whoever had it before keeps it, and the build is given up.
    """
    if is_open(resolved(built)):
        raise IndexFault(built, "still open: close the build before publishing it")
    for sidecar in SIDECARS:
        if os.path.lexists(built + sidecar):
            raise IndexFault(built, f"has a {sidecar}: the build was not closed cleanly")
    try:
        _sync(built, os.O_RDONLY)
        while True:
            path = next_path(folder, session_id) if only is None else only
            try:
                os.link(built, path, follow_symlinks=False)
                break
            except FileExistsError:
                if only is not None:
                    break
        os.unlink(built)
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise translate(built, error) from error
    return path


def set_aside(path: str) -> str | None:
    """Move a bad index, then its ``-wal`` and ``-shm``, to ``<name>.bad-<k>``; returns the path.

    Only the last bad copy of a session is kept. Works for anything that has the name (file,
    directory, FIFO, link). None if there was nothing. Raises IndexFault while a connection of
    this process is open on it.
    """
    if is_open(resolved(path)):
        raise IndexFault(path, "still open in this process: close it before setting it aside")
    folder, name = os.path.split(os.path.abspath(path))
    session_id = re.sub(_TAIL, "", name)
    try:
        older = [(m[1], m[2]) for m in _members(folder, session_id) if m[1] != "live"]
        numbers = [int(kind) for kind, _ in older if kind.isdigit()]
        bad = f"{path}.bad-{max(numbers, default=0) + 1}"
        moved = [_move(path + tail, bad + tail) for tail in ("", *SIDECARS)]
        if not any(moved):
            return None
        for kind, member in older:
            if kind.isdigit():
                _unlink(os.path.join(folder, member))
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise translate(path, error) from error
    return bad


def remove_older(folder: str, session_id: str, keep: str) -> None:
    """Remove all generations below that of the path ``keep``, unless they are open here.

    Another process that has one open goes on reading it: its names are gone, not its files.
    """
    match = _TAIL.search(os.path.basename(keep))
    if match is None:
        raise IndexFault(keep, "not the path of a generation")
    _remove(folder, session_id, below=int(match[1]))


def remove_all(folder: str, session_id: str) -> None:
    """Remove everything of a session's index: generations, bad copies, builds.

    Raises IndexFault if one of them is open in this process, or cannot be removed.
    """
    _remove(folder, session_id, below=None)


def _remove(folder: str, session_id: str, *, below: int | None) -> None:
    try:
        members = _members(folder, session_id)
        names = [m for n, kind, m in members if below is None or (n < below and kind == "live")]
        if below is None:
            listed = os.listdir(folder) if os.path.isdir(folder) else []
            names += [name for name in listed if _matches(_BUILD, name, session_id)]
        for name in sorted(names):  # the database before its sidecars
            path = os.path.join(folder, name)
            database = re.sub(r"(-wal|-shm|-journal)\Z", "", path)
            if is_open(resolved(database)):
                if below is None:
                    raise IndexFault(path, "still open in this process")
                continue
            if not _unlink(path) and below is None:
                raise IndexFault(path, "a directory that is not empty: remove it by hand")
    except OSError as error:
        raise translate(folder, error) from error


def _matches(pattern: re.Pattern[str], name: str, session_id: str) -> re.Match[str] | None:
    return pattern.fullmatch(name, len(session_id)) if name.startswith(session_id) else None


def _members(folder: str, session_id: str) -> list[tuple[int, str, str]]:
    """(generation, "live" | "sidecar" | number of the bad set, name) of all files of a session."""
    members = []
    for name in _listed(folder):
        match = _matches(_TAIL, name, session_id)
        if match is not None:
            kind = match[2][5:] if match[2] else "sidecar" if match[3] else "live"
            members.append((int(match[1]), kind, name))
    return members


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):  # no folder, no index
        return []
    except OSError as error:
        raise translate(folder, error) from error


def _next_number(folder: str, session_id: str) -> int:
    return max((number for number, _, _ in _members(folder, session_id)), default=0) + 1


def _move(source: str, target: str) -> bool:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        return False
    return True


def _unlink(path: str) -> bool:
    """Remove a file or an empty directory; False for a directory with something in it."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):  # the latter is what some systems say of those
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
    return True


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
