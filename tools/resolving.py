"""From what a person types to one session, or one entry.

A selector is a path (it contains a separator, or ends in ``.jsonl``), an exact id, the beginning or
the end of one id, or where no id fits, the name of one session. Of several that fit, the one of the
current working directory is meant. A file name is only ever taken from the folder's own listing, so
no selector can lead out of the store by accident.
"""

from __future__ import annotations

import os
from typing import Final

from treering.engine.errors import Ambiguous, Invalid, NotFound, TreeringError, from_os_error
from treering.engine.home import JOURNAL_SUFFIX, Store
from treering.engine.session.listing import Folder, is_of, iter_sessions, path_in, session_names
from treering.engine.session.reads import Reads
from treering.tools.viewing import all_rows

CANDIDATES_SHOWN: Final = 8

MISTYPED_CHARS_MIN: Final = 4
"""Shorter selectors are near to too much."""


def resolve(store: Store, selector: str) -> str:
    """The path of the session that a selector names.

    Raises:
        Invalid: nothing can be named like this.
        NotFound: there is none; says how to list them, or which id may be meant.
        Ambiguous: several; lists them.
    """
    if not selector or "\0" in selector:
        raise Invalid("an empty selector, or one with a NUL, names no session")
    if os.sep in selector or selector.endswith(JOURNAL_SUFFIX):
        return _existing(store, selector)
    names = session_names(store)
    if selector in names:
        return path_in(store, selector)
    fitting = [name for name in names if name.startswith(selector) or name.endswith(selector)]
    if not fitting:
        # Reading all sessions takes longer than their names do, so it comes last.
        fitting = [info.id for info in iter_sessions(store) if info.name == selector]
    if len(fitting) > 1:
        fitting = _of_this_folder(store, fitting) or fitting
    if len(fitting) == 1:
        return path_in(store, fitting[0])
    if fitting:
        raise Ambiguous(
            f"{selector!r} fits {len(fitting)} sessions: {_some(fitting)}",
            candidates=tuple(fitting),
            next_step="type more of the id",
        )
    closest = closest_id(selector, names)
    meant = "" if closest is None else f"did you mean {closest!r}? "
    raise NotFound(
        f"no session {selector!r} in {store.sessions}",
        next_step=f"{meant}`treering session list` shows what is there",
    )


def this_folder() -> str:
    """The current working directory.

    Raises:
        NotFound, StorageError: it was removed, or cannot be told.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise from_os_error(error, "tell the current folder", os.curdir) from error


def _of_this_folder(store: Store, names: list[str]) -> list[str]:
    try:
        here = Folder(this_folder())
    except TreeringError:
        return []
    return [name for name in names if is_of(path_in(store, name), here)]


def closest_id(selector: str, names: list[str]) -> str | None:
    """The id that a mistyped one is meant to be; None when none is near, or several are."""
    if len(selector) < MISTYPED_CHARS_MIN:
        return None
    most = max(1, len(selector) // 5)
    distances = [
        (distance, name)
        for name in names
        if abs(len(name) - len(selector)) <= most and (distance := _edits(selector, name)) <= most
    ]
    least = min(distances, default=(0, ""))[0]
    nearest = [name for distance, name in distances if distance == least]
    return nearest[0] if len(nearest) == 1 else None


def _edits(one: str, other: str) -> int:
    """How many characters must be inserted, removed or replaced (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def _existing(store: Store, selector: str) -> str:
    path = os.path.abspath(os.path.expanduser(selector))
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # perhaps a name of the store, see below
    except OSError as error:
        raise from_os_error(error, "look at the session", path) from error
    else:
        return path
    if os.sep not in selector and selector.removesuffix(JOURNAL_SUFFIX) in session_names(store):
        return os.path.join(store.sessions, selector)
    raise NotFound(
        "no such file", path=selector, next_step="`treering session list` shows sessions"
    )


def resolve_entry(session: Reads, text: str) -> str:
    """The id of the entry that an id, or the beginning of exactly one, names.

    Raises:
        NotFound, Ambiguous: none, or several.
    """
    if session.has(text):
        return text
    fitting: list[str] = []
    for rows in all_rows(session) if text else ():
        fitting += (row.id for row in rows if row.id.startswith(text))
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise Ambiguous(
            f"{text!r} fits {len(fitting)} entries: {_some(fitting)}",
            candidates=tuple(fitting),
            next_step="type more of the id",
        )
    raise NotFound(
        f"no entry {text!r}",
        path=session.path,
        next_step="`treering session tree SEL --filter all` shows all ids",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:CANDIDATES_SHOWN])
    more = len(names) - CANDIDATES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
