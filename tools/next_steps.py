"""The command that helps with a file which is not simply a damaged journal."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

import xxhash

from treering.engine import commands
from treering.engine.errors import (
    LimitExceeded,
    NotAJournal,
    NotFound,
    TreeringError,
    Unsupported,
)
from treering.engine.home import JOURNAL_SUFFIX, Store, check_session_id, check_writable_place
from treering.engine.limits import SESSION_ID_CHARS_MAX

_NO_PERMISSION: Final = (errno.EACCES, errno.EPERM)


def for_stranger(path: str, reason: str | None) -> str:
    """For a file that is no journal: import what can be imported, and make room for a session."""
    importable = reason is not None and "session import" in reason
    if not _is_in_a_store(path):
        # What lies elsewhere may belong to another program: it is not ours to move.
        if importable:
            return commands.command("session", "import", path)
        return commands.command("session", "list")
    if importable:
        importing = commands.command("session", "import", *_home_option(path), path)
        return f"{importing} && {commands.aside(path)}"
    return commands.aside(path)


def for_name(path: str, name: str) -> str:
    """For a file whose name is no session id: a name that is one, and free."""
    folder = os.path.dirname(path)
    made = _id_like(name)
    target, number = made, 1
    while os.path.lexists(os.path.join(folder, target + JOURNAL_SUFFIX)):
        number += 1
        target = f"{made}-{number}"
    new = os.path.join(folder, target + JOURNAL_SUFFIX)
    return f"mv -n -- {commands.quoted(path)} {commands.quoted(new)}"


def for_export(path: str, name: str) -> str:
    """For a session that reads well and cannot be written: its entries, as JSONL."""
    target = f"{name}.export{JOURNAL_SUFFIX}"
    return commands.command("session", "export", commands.selector(path), "-o", target)


def for_failure(path: str, error: BaseException) -> tuple[str, str]:
    """The kind of finding that an error makes, and the command that helps."""
    if isinstance(error, NotAJournal):
        return "foreign", for_stranger(path, None)
    if isinstance(error, Unsupported):
        return "unsupported", commands.command("--version")
    if isinstance(error, LimitExceeded):
        return "limit", commands.aside(path)
    if isinstance(error, NotFound):
        if os.path.lexists(path):  # a link that leads nowhere
            return "missing", commands.aside(path)
        return "missing", commands.command("session", "list", *_home_option(path))
    return "unreadable", _for_unreadable(path, error)


def _for_unreadable(path: str, error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, TreeringError) else error
    if not isinstance(cause, OSError) or cause.errno not in _NO_PERMISSION:
        return commands.checking(path)
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return f"chmod u+rwx -- {commands.quoted(os.path.dirname(path))}"
    if owner == os.geteuid():
        return f"chmod u+rw -- {commands.quoted(path)}"
    return f'sudo chown -- "$(id -un)" {commands.quoted(path)}'


def _is_in_a_store(path: str) -> bool:
    """Whether the file lies where sessions of ours lie, as far as its place tells."""
    folder = os.path.dirname(path)
    if folder != _default_sessions() and os.path.basename(folder) != "sessions":
        return False
    try:
        check_writable_place(path)
    except TreeringError:
        return False
    return path.endswith(JOURNAL_SUFFIX)


def _home_option(path: str) -> tuple[str, ...]:
    """``--home DIR`` for commands that take no path of a session."""
    store = Store.of_journal(path)
    return () if store.sessions == _default_sessions() else ("--home", store.top)


def _default_sessions() -> str | None:
    try:
        return Store.at().sessions
    except TreeringError:
        return None


def _id_like(name: str) -> str:
    made = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("._-")
    for candidate in (made[: SESSION_ID_CHARS_MAX - 16].rstrip("._-"), f"session-{made}"):
        try:
            return check_session_id(candidate)
        except TreeringError:
            continue
    return f"session-{xxhash.xxh32_hexdigest(os.fsencode(name))}"
