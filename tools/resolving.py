"""From what a person types at a shell to one session, or one entry of it."""

from __future__ import annotations

import os

from treering.engine.errors import Ambiguous, NotFound, TreeringError, from_os_error
from treering.engine.home import Store
from treering.engine.session.reads import Reads
from treering.engine.session.resolving import resolve_session, some
from treering.tools.viewing import all_rows


def resolve(store: Store, selector: str) -> str:
    """The path of the session that a selector names, those of the current folder first.

    Raises:
        Invalid, NotFound, Ambiguous, StorageError: as :func:`resolve_session`.
    """
    try:
        here = this_folder()
    except TreeringError:
        return resolve_session(store, selector)  # it was removed: no session comes first
    return resolve_session(store, selector, cwd=here)


def this_folder() -> str:
    """The current working directory.

    Raises:
        NotFound, StorageError: it was removed, or cannot be told.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise from_os_error(error, "tell the current folder", os.curdir) from error


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
            f"{text!r} fits {len(fitting)} entries: {some(fitting)}",
            candidates=tuple(fitting),
            next_step="type more of the id",
        )
    raise NotFound(
        f"no entry {text!r}",
        path=session.path,
        next_step="`treering session tree SEL --filter all` shows all ids",
    )
