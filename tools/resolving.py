"""From what a person types to one session, or one entry.

A selector is a path (it contains a separator, or ends in ``.jsonl``), an exact id, or the
beginning of exactly one id. A file name is only ever taken from the folder's own listing, so no
selector can lead out of the store by accident.
"""

from __future__ import annotations

import os
from typing import Final

from treering.engine.errors import Ambiguous, Invalid, NotFound, from_os_error
from treering.engine.home import JOURNAL_SUFFIX, Store
from treering.engine.session.reads import Reads
from treering.tools.viewing import all_rows

CANDIDATES_SHOWN: Final = 8


def session_names(store: Store) -> list[str]:
    """Ids that files of the store state by their names, sorted; whatever those files are.

    Raises:
        StorageError: the folder is there and cannot be listed.
    """
    try:
        names = os.listdir(store.sessions)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, "list the sessions", store.sessions) from error
    return sorted(
        name.removesuffix(JOURNAL_SUFFIX)
        for name in names
        if name.endswith(JOURNAL_SUFFIX) and not name.startswith(".")
    )


def path_in(store: Store, name: str) -> str:
    """The path of a listed name (it need not be an id that we would give)."""
    return os.path.join(store.sessions, name + JOURNAL_SUFFIX)


def resolve(store: Store, selector: str) -> str:
    """The path of the session that a selector names.

    Raises:
        Invalid: nothing can be named like this.
        NotFound: there is none; says how to list them.
        Ambiguous: several; lists them.
    """
    if not selector or "\0" in selector:
        raise Invalid("an empty selector, or one with a NUL, names no session")
    if os.sep in selector or selector.endswith(JOURNAL_SUFFIX):
        return _existing(store, selector)
    names = session_names(store)
    if selector in names:
        return path_in(store, selector)
    fitting = [name for name in names if name.startswith(selector)]
    if len(fitting) == 1:
        return path_in(store, fitting[0])
    if fitting:
        raise Ambiguous(
            f"{selector!r} fits {len(fitting)} sessions: {_some(fitting)}",
            candidates=tuple(fitting),
            next_step="type more of the id",
        )
    raise NotFound(
        f"no session {selector!r} in {store.sessions}",
        next_step="`treering session list` shows what is there",
    )


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
