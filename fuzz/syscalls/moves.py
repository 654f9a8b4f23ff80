"""What must hold of a session that a command deletes or brings back."""

from __future__ import annotations

import os
from collections.abc import Iterator

from treering.engine import TreeringError, finish_deletions, list_deleted, undelete_session
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.session.trash import ids_under_way
from treering.fuzz.syscalls import stores
from treering.fuzz.syscalls.flows import Ran
from treering.fuzz.syscalls.stores import Before, Place, content_of

_SAID_BEGUN = (b"what has begun goes on", b"finish_deletions, goes on")
"""Words of the messages that say that it may have begun."""


def check_bytes(place: Place, before: Before) -> Iterator[str]:
    """The journal has its bytes, under each of the names that it has; it has one at least."""
    found = [path for path in (place.journal, place.deleted_journal) if os.path.exists(path)]
    if not found:
        yield "the journal is gone"
    for path in found:
        if content_of(path) != before.journal:
            yield f"{os.path.relpath(path, place.home)} has other bytes"


def settle(place: Place, end: str, ran: Ran) -> Iterator[str]:
    """It is whole in one place once what was begun is finished; afterwards it is back."""
    store = Store.at(place.home)
    try:
        begun = stores.SESSION_ID in ids_under_way(LOCAL_DISK, store)
        if begun and ran.status == 0:
            yield "it said that it was done, and it is still under way"
        if not begun and where(place) is None:
            yield "the session is in two places, and nothing is under way"
        if ran.status in (1, 3) and (begun or where(place) == end):
            if not any(words in ran.err for words in _SAID_BEGUN):
                yield f"it said that it failed, and something is done: {ran.err!r}"
        for name, error in finish_deletions(store).left:
            yield f"what was begun with {name} cannot be finished: {error}"
        found = where(place)
        if found is None:
            yield "the session is in two places"
        elif ran.status == 0 and found != end:
            yield f"it said that it was done, and the session is {found}"
        if found != "there":
            (listed,) = list_deleted(store)
            if listed.deleted_ms is None or listed.purged_ms is not None:
                yield f"the trash lists {listed}"
            undelete_session(store, stores.SESSION_ID)
            if where(place) != "there":
                yield "it was brought back, and is not there"
    except TreeringError as error:
        yield f"the deletion does not go on: {type(error).__name__}: {error}"


def where(place: Place) -> str | None:
    """``there`` or ``deleted``, whole; None when neither is true."""
    here, away = (
        [os.path.exists(path) for path in paths]
        for paths in (
            (place.journal, place.artifact),
            (
                place.deleted_journal,
                place.deleted_artifact,
                os.path.join(place.trash, stores.SESSION_ID, "tombstone.json"),
            ),
        )
    )
    if all(here) and not any(away):
        return "there"
    return "deleted" if all(away) and not any(here) else None
