"""Removing the words of a deleted session from the search index, for good."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from treering.engine.errors import StorageError, TreeringError
from treering.engine.home import Store
from treering.engine.search import opening
from treering.engine.search.journals import Journal
from treering.index import IndexBusy, IndexFault, files
from treering.index.search import SearchIndex
from treering.index.search_rows import FILE_NAME, Hit

LOCK_TIMEOUT_S: Final = 60.0

READER_TIMEOUT_MS: Final = 1_000
"""How long a deletion waits for readers that keep the ``-wal``; then the files go."""

_FILES: Final = re.compile(re.escape(FILE_NAME) + r"\.(?:[0-9]+\.sqlite3|build-[0-9]+\.tmp).*")


def forget_session(store: Store, session_id: str, journals: Sequence[str]) -> None:
    """Remove every word of a session; ``journals`` are the places where its journal may be now.

    Where the texts cannot be had any more, or bad copies of the index are about, all files of the
    search index go: the next search builds it anew. The journal has been moved from its place.

    Raises:
        StorageError: some of it is left; again.
    """
    try:
        if not _files_of(store):
            return
        with opening.locked(store, timeout_s=LOCK_TIMEOUT_S):
            if not _forget(store, session_id, journals):
                files.remove_all(store.index, FILE_NAME)
    except (IndexFault, IndexBusy, OSError) as error:
        raise StorageError(
            f"its words could not be removed from the search index: {error}",
            path=store.index,
            next_step="`session delete` of it again, or finish_deletions, goes on",
        ) from error


def _forget(store: Store, session_id: str, journals: Sequence[str]) -> bool:
    path = files.current(store.index, FILE_NAME)
    mine = () if path is None else tuple(path + tail for tail in ("", *files.SIDECARS))
    if path is None or not _files_of(store) <= set(mine):
        return False
    try:
        with SearchIndex.open(path, busy_timeout_ms=READER_TIMEOUT_MS) as index:
            if session_id not in index.sessions():
                return True
            return _forget_in(index, session_id, journals)
    except IndexFault:
        return False


def _forget_in(index: SearchIndex, session_id: str, journals: Sequence[str]) -> bool:
    there = next((path for path in journals if os.path.lexists(path)), None)
    if there is None:
        return index.forget(session_id, lambda _: None)
    try:
        journal = Journal(there)
    except TreeringError:
        return index.forget(session_id, lambda _: None)

    def text_of(hit: Hit) -> str | None:
        what = journal.said_at(hit)
        return None if what is None else what.text

    try:
        return index.forget(session_id, text_of)
    except TreeringError:  # the file was cut while it was read
        return False
    finally:
        journal.close()


def _files_of(store: Store) -> set[str]:
    try:
        names = os.listdir(store.index)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {os.path.join(store.index, name) for name in names if _FILES.fullmatch(name)}
