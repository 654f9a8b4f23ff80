"""Keeping the search index of a store up with its journals.

Each session is fed behind what was fed of it; one whose journal is another one now (repaired,
replaced, brought back) is fed anew. Several processes may feed: each part goes in under the lock,
and only if nobody else has fed it meanwhile. Damage of one session stops no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from treering.engine.errors import TreeringError
from treering.engine.home import Store
from treering.engine.search import opening
from treering.engine.search.journals import SLICE_CHARS, SLICE_TEXTS, Slice, slices
from treering.engine.session.listing import path_in, session_names
from treering.engine.session.listing_cache import stamp_of
from treering.engine.session.trash import hidden_ids
from treering.index import IndexBusy, IndexFault, files
from treering.index.search import SearchIndex
from treering.index.search_rows import FILE_NAME, Fed

LOCK_TIMEOUT_S: Final = 5.0

ROUNDS: Final = 20
"""How often a feeder begins again when others were faster."""

DEAD_SHARE_MAX: Final = 0.5
DEAD_ROWS_KEPT: Final = 1_000
"""Words of replaced journals that are kept at least; beyond it and the share all is fed anew."""

Troubles = dict[str, str]
"""Session id to why it, or a part of it, could not be fed."""


def feed_store(store: Store) -> tuple[bytes | None, Troubles]:
    """Bring the search index up to the journals: which file that is, and what could not be read.

    Raises:
        IndexBusy: others are changing it all the time; what it holds can be searched.
        IndexFault: it cannot be used, nor made anew.
        StorageError: the sessions cannot be listed.
    """
    for _ in range(ROUNDS):
        born, known = _fed(store)
        names = session_names(store)
        _retire_missing(store, known, set(names))
        troubles: Troubles = {}
        batch: list[Slice] = []
        texts = chars = 0
        for part in _changed(store, names, known, troubles):
            batch.append(part)
            texts += len(part.feed.texts) + 1  # a session without texts is a row, too
            chars += part.chars
            if texts >= SLICE_TEXTS or chars >= SLICE_CHARS:
                born = _put(store, batch, born)
                if born is None:
                    break
                batch, texts, chars = [], 0, 0
        else:
            if not batch:
                return born, troubles
            born = _put(store, batch, born)
            if born is not None:
                return born, troubles
    raise IndexBusy(store.index, "other processes are feeding it")


def feed_memory(store: Store) -> tuple[SearchIndex, Troubles]:
    """A search index in memory, for a store whose own cannot be used."""
    index, troubles = SearchIndex.memory(), Troubles()
    for part in _changed(store, session_names(store), {}, troubles):
        index.feed([part.feed])
    return index, troubles


def _changed(
    store: Store, names: list[str], known: dict[str, Fed], troubles: Troubles
) -> Iterator[Slice]:
    """Parts of all sessions that are not as they were fed; fills ``troubles``."""
    for name in names:
        path = path_in(store, name)
        stamp = stamp_of(path, None)
        fed = known.pop(name, None)
        if stamp is None:
            continue  # it has gone
        mark = repr(stamp.journal).encode() if stamp.settled else b"moving"
        if fed is not None and fed.stamp == mark != b"moving":
            if fed.trouble is not None:
                troubles[name] = fed.trouble
            continue
        try:
            for part in slices(path, name, fed, mark):
                if part.feed.trouble is not None:
                    troubles[name] = part.feed.trouble
                yield part
        except TreeringError as error:
            troubles[name] = error.what


def _fed(store: Store) -> tuple[bytes | None, dict[str, Fed]]:
    with opening.gate:
        try:
            index = opening.open_to_read(store)
            if index is None:
                return None, {}
            with index:
                return index.born(), index.sessions()
        except IndexFault as fault:
            if fault.full or fault.library:
                raise
    with opening.locked(store, timeout_s=LOCK_TIMEOUT_S), opening.open_to_change(store) as index:
        return index.born(), index.sessions()  # of the one that was made in its place


def _put(store: Store, batch: list[Slice], born: bytes | None) -> bytes | None:
    """Feed parts, but those whose journal was moved away; the file that they are in now.

    None, and not all went in, when somebody else has fed meanwhile, or made another file.
    """
    with opening.locked(store, timeout_s=LOCK_TIMEOUT_S), opening.open_to_change(store) as index:
        known = index.sessions()
        is_same = born in (None, index.born()) and (born is not None or not known)
        at = {name: fed.position for name, fed in known.items()}
        wanted: list[Slice] = []
        for part in batch:
            name = part.feed.session_id
            if at.get(name) != part.expected:
                is_same = False
            elif _is_there(store, part):
                at[name] = part.feed.position
                wanted.append(part)
        anew = {part.feed.session_id for part in wanted if part.anew} & set(known)
        index.feed([part.feed for part in wanted], anew=sorted(anew))
        live, dead = index.counts() if anew else (0, 0)
        now = index.born()
    if dead > DEAD_ROWS_KEPT and dead > (live + dead) * DEAD_SHARE_MAX:
        with opening.locked(store, timeout_s=LOCK_TIMEOUT_S):
            files.remove_all(store.index, FILE_NAME)
        return None
    return now if is_same else None


def _is_there(store: Store, part: Slice) -> bool:
    # A deletion moves the journal first and removes the words then: what is fed before is removed,
    # and nothing is fed behind it.
    try:
        return os.stat(path_in(store, part.feed.session_id)).st_ino == part.inode
    except OSError:
        return False


def _retire_missing(store: Store, known: dict[str, Fed], names: set[str]) -> None:
    """Hide what was fed of journals that somebody took away. (A deletion removes it itself.)"""
    missing = set(known) - names - hidden_ids(store)
    gone = [name for name in missing if known[name].position is not None]
    for name in missing:
        del known[name]
    if not gone:
        return
    with opening.locked(store, timeout_s=LOCK_TIMEOUT_S), opening.open_to_change(store) as index:
        for name in gone:
            if not os.path.lexists(path_in(store, name)):
                index.retire(name)
