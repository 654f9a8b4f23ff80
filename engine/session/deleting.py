"""Deleting sessions, and bringing them back: one operation each, whatever interrupts it.

Promises. At every moment a session is there, whole, or deleted, whole: journal and artifacts stay
together. A deletion, restoration or purge that a crash or an error interrupted goes on with the
next one of that session, with :func:`finish_deletions` and with the next opening; lists show a
session neither half. Bytes are moved, never read (but for the name, as far as that goes), so a
damaged session can be deleted and comes back as damaged as it was. Nothing is ever overwritten.

Everything happens under the lock of the journal, which goes with the file wherever it is moved:
who owns the session keeps it, and two deletions never meet. See :mod:`.trash` for the order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from treering.engine import environment, home
from treering.engine.errors import (
    Conflict,
    Invalid,
    NotFound,
    StorageError,
    TreeringError,
    Unsupported,
    from_os_error,
)
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK, Disk, make_folders
from treering.engine.journal.format import FILE_HEADER_BYTES, decode_file_header
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.publish import sweep_stale
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import examine
from treering.engine.json_text import clean
from treering.engine.limits import COMPLETE_READ_BYTES
from treering.engine.schedules.controls import cancel_session_jobs
from treering.engine.search.forgetting import forget_session
from treering.engine.session.catalogue import forget_row
from treering.engine.session.filling import peek_hint
from treering.engine.session.trash import (
    Places,
    State,
    Tombstone,
    Verb,
    exists,
    first_existing,
    ids_under_way,
    move_artifacts,
    move_journal,
    read_tombstone,
    remove_name,
    remove_tree,
    rename_tombstone,
    state_of,
    sync_those_there,
    trashed_ids,
    undeleting,
    write_tombstone,
)
from treering.engine.session.view import SessionView
from treering.index import IndexFault, files

NAME_CHARS_MAX: Final = 200
"""Of a display name so much is remembered: a tombstone is small."""

_GOES_ON = "`session delete` or `session undelete` of it, or finish_deletions, goes on"


@dataclass(frozen=True)
class DeletedSession:
    """A session in the trash, or what is remembered of one that was purged. Times are Unix ms."""

    id: str
    folder: str
    """Where it lies."""
    deleted_ms: int | None = None
    """None where its tombstone cannot be read."""
    name: str | None = None
    """Its display name, as far as it could be read."""
    purged_ms: int | None = None
    """When its bytes were removed; None while it can be brought back."""
    under_way: Verb | None = None
    """What was begun and is not done."""


@dataclass(frozen=True)
class FinishedDeletions:
    """What :func:`finish_deletions` did."""

    done: tuple[str, ...]
    """Ids of sessions."""
    left: tuple[tuple[str, TreeringError], ...]
    """Those that could not be finished now, and why (for one: another process is at it)."""


def delete_session(path: str | os.PathLike[str], *, disk: Disk = LOCAL_DISK) -> DeletedSession:
    """Move a session, its artifacts with it, into the trash of its store; its index goes away.

    Deleting one whose deletion, or restoration, was interrupted finishes that first.
    :func:`undelete_session` brings it back; until then no session of its id can be made.

    Raises:
        Owned: somebody has it open.
        NotFound: there is none.
        NotAJournal: a file of another system, or none of a session.
        Conflict: another session of that id lies in the trash already.
        Invalid, InvalidId: the path is a link, or no name that a session has.
        StorageFull, StorageError, ReadOnly: the system refused. Either nothing was done, or the
            error says that the deletion has begun: then it is not undone but goes on.
    """
    places = _places_of(path)
    with _errors(places, "delete the session"):
        try:
            owner = _own(disk, places, places.journal)
        except NotFound as error:
            state = state_of(disk, places)
            if state == "deleted":
                raise _was_deleted(disk, places) from error
            if state not in ("deleting", "restoring"):
                raise
            finish_deletion(places.store, places.session_id, disk=disk)
            if state == "restoring":  # it is there now
                return delete_session(places.journal, disk=disk)
            return _deleted(disk, places)
        with _owning(owner):
            state = state_of(disk, places)
            if state == "restoring":
                rename_tombstone(disk, places.under_way("restoring"), places.under_way("deleting"))
            elif state != "deleting":
                if state == "purging":
                    _complete(disk, places, "purging")
                _begin_deletion(disk, places, owner)
            _complete(disk, places, "deleting")
    return _deleted(disk, places)


def undelete_session(store: Store, session_id: str, *, disk: Disk = LOCAL_DISK) -> str:
    """Bring a deleted session back, as it was; returns its path. Its index is built by itself.

    Raises:
        NotFound: no such session was deleted, or its bytes were purged.
        Conflict: a session, or artifacts, of that id are there.
        Owned: another process is at it.
        StorageFull, StorageError, ReadOnly: the system refused. Either nothing was done, or the
            error says that it has begun: then it goes on.
    """
    places = Places(store, home.check_session_id(session_id))
    home.check_writable_place(places.journal)
    with _errors(places, "bring the session back"), _owning(_own_anywhere(disk, places)):
        state = state_of(disk, places)
        if state == "deleting":
            rename_tombstone(disk, places.under_way("deleting"), places.under_way("restoring"))
        elif state != "restoring":
            if state == "purging":
                _complete(disk, places, "purging")
            _check_restorable(disk, places, state)
            _settle(disk, places)
            rename_tombstone(disk, places.tombstone, places.under_way("restoring"))
        _complete(disk, places, "restoring")
    return places.journal


def purge_deleted(store: Store, session_id: str, *, disk: Disk = LOCAL_DISK) -> None:
    """Remove the bytes of a deleted session for good. Its tombstone stays, without the name.

    Purging again does nothing.

    Raises:
        NotFound: no such session was deleted.
        Owned: another process is at it.
        StorageError: some of it is left; purge again.
    """
    places = Places(store, home.check_session_id(session_id))
    with _errors(places, "purge the session"), _owning(_own_anywhere(disk, places)):
        state = state_of(disk, places)
        if state in ("deleting", "restoring"):
            _complete(disk, places, state)
            state = state_of(disk, places)
        if state is None and not _bytes_in_trash(disk, places):
            raise _not_deleted(places)
        if state == "deleted":
            if not _bytes_in_trash(disk, places) and _deleted(disk, places).purged_ms is not None:
                return
            _settle(disk, places)
            rename_tombstone(disk, places.tombstone, places.under_way("purging"))
        _complete(disk, places, "purging")


def list_deleted(store: Store, *, disk: Disk = LOCAL_DISK) -> list[DeletedSession]:
    """What was deleted in a store, newest first, purged ones too. Changes nothing.

    Raises:
        StorageError: the trash is there and cannot be listed.
    """
    under_way = ids_under_way(disk, store)
    found = []
    for session_id in sorted({*trashed_ids(disk, store), *under_way}):
        places, verb = Places(store, session_id), under_way.get(session_id)
        with _errors(places, "look into the trash"):
            one = _deleted(disk, places, verb)
            if verb is not None or one.deleted_ms is not None or _bytes_in_trash(disk, places):
                found.append(one)
    return sorted(found, key=lambda one: (-(one.deleted_ms or 0), one.id))


def finish_deletions(store: Store, *, disk: Disk = LOCAL_DISK) -> FinishedDeletions:
    """Finish whatever was begun in the trash of a store and interrupted. One never stops another.

    Raises:
        StorageError: the trash is there and cannot be listed.
    """
    done, left = [], []
    for session_id in sorted(ids_under_way(disk, store)):
        try:
            finish_deletion(store, session_id, disk=disk)
            done.append(session_id)
        except TreeringError as error:
            left.append((session_id, error))
    return FinishedDeletions(tuple(done), tuple(left))


def finish_deletion(store: Store, session_id: str, *, disk: Disk = LOCAL_DISK) -> None:
    """Finish what was begun with one session, if anything was.

    Raises:
        Owned: another process is at it.
        Conflict, StorageError: it cannot be finished now; says why.
    """
    places = Places(store, home.check_session_id(session_id))
    with _errors(places, "finish what was begun"), _owning(_own_anywhere(disk, places)):
        state = state_of(disk, places)
        if state is not None and state != "deleted":
            _complete(disk, places, state)


def refuse_deleted(
    store: Store, session_id: str, let_go: Callable[[], None], *, disk: Disk = LOCAL_DISK
) -> None:
    """For who has just opened a journal: a deletion that was begun is finished, not ignored.

    ``let_go`` closes journal and index, before.

    Raises:
        NotFound: it was to be deleted, and is now.
    """
    places = Places(store, session_id)
    with _errors(places, "look into the trash"):
        if not exists(disk, places.under_way("deleting")):
            return  # every opening comes here: one look
        if state_of(disk, places) != "deleting":
            return
        let_go()
        finish_deletion(store, session_id, disk=disk)
        raise _was_deleted(disk, places)


def bring_back_missing(store: Store, session_id: str, *, disk: Disk = LOCAL_DISK) -> bool:
    """For who found no journal: finish what was begun; whether there is one now.

    Raises:
        NotFound: the session was deleted; says how to bring it back.
    """
    places = Places(store, session_id)
    with _errors(places, "look into the trash"):
        state = state_of(disk, places)
        if state is None:
            return False
        if state != "deleted":
            finish_deletion(store, session_id, disk=disk)
        if exists(disk, places.journal):
            return True
        raise _was_deleted(disk, places)


# Under the lock


def _begin_deletion(disk: Disk, places: Places, owner: Ownership) -> None:
    """From the moment that the tombstone has its name, the session is to be deleted."""
    name = _check_journal(disk, places, owner)
    if _bytes_in_trash(disk, places):
        raise Conflict(
            "a deleted session of the same id lies in the trash",
            path=places.folder,
            next_step="purge it first, or give this one another id",
        )
    made = not exists(disk, places.folder)
    try:
        make_folders(disk, places.folder, places.store.top)
        sweep_stale(disk, places.store.trash)
        owner.check_name()
        tombstone = Tombstone(places.session_id, environment.now_ms(), name)
        write_tombstone(disk, places.store, places.under_way("deleting"), tombstone)
    except (OSError, TreeringError):
        if made:
            _remove_if_empty(disk, places.folder)
        raise


def _check_journal(disk: Disk, places: Places, owner: Ownership) -> str | None:
    """Make sure that the file is a journal, damaged or not; the session's name, if that reads."""
    source = FileBytes(owner.file, owner.path, owner.file.stat().size)
    try:
        header = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), owner.path)
    except Unsupported:
        return None  # of a newer release: whatever is in it, it is a journal
    if header is None:
        hint = peek_hint(places.store.index, places.session_id)
        known = () if hint is None else (hint.journal_id,)
        found = examine(source, known_ids=known)
        if found.case == "G":
            raise found.refusal()
    if source.size > COMPLETE_READ_BYTES:
        return None  # a name is not worth reading that much
    try:
        with SessionView.open(owner.path, disk=disk) as view:
            return None if view.name is None else clean(view.name)[:NAME_CHARS_MAX]
    except TreeringError:
        return None  # damaged: it is moved as it is


def _check_restorable(disk: Disk, places: Places, state: State | None) -> None:
    if state is None and not _bytes_in_trash(disk, places):
        raise _not_deleted(places)
    if first_existing(disk, places.trashed_journals) is None:
        raise NotFound(
            f"the bytes of session {places.session_id} were removed for good", path=places.folder
        )
    if exists(disk, places.journal):
        raise Conflict("a session of that id is there", path=places.journal)
    if first_existing(disk, places.trashed_artifacts) and exists(disk, places.artifacts):
        raise Conflict("artifacts of that id are there", path=places.artifacts)
    if state is None:  # somebody removed it; the bytes are there all the same
        write_tombstone(disk, places.store, places.tombstone, Tombstone(places.session_id))


def _complete(disk: Disk, places: Places, verb: Verb) -> None:
    """Do what is left of it, each step durable before the next; all of them can be done again."""
    make_folders(disk, places.folder, places.store.top)
    _settle(disk, places)
    if verb == "deleting":
        move_journal(disk, (places.journal,), places.trashed_journals)
        cancel_session_jobs(places.store, places.session_id, disk=disk)  # and undelete keeps it so
        move_artifacts(disk, (places.artifacts,), places.trashed_artifacts)
        _remove_index(disk, places)
        rename_tombstone(disk, places.under_way("deleting"), places.tombstone)
    elif verb == "restoring":
        if _artifacts_in_trash(disk, places):
            make_folders(disk, places.store.artifacts, places.store.top)
        move_artifacts(disk, places.trashed_artifacts, (places.artifacts,))
        make_folders(disk, places.store.sessions, places.store.top)
        move_journal(disk, places.trashed_journals, (places.journal,))
        remove_name(disk, places.under_way("deleting"))
        remove_name(disk, places.tombstone)
        _settle(disk, places)
        _remove_if_empty(disk, places.folder)
        remove_name(disk, places.under_way("restoring"))
    else:
        for path in places.trashed_artifacts:
            remove_tree(disk, path)
        _forget(disk, places)
        # Last: this is the file whose lock keeps others away.
        for path in places.trashed_journals:
            remove_name(disk, path)
        sync_those_there(disk, (*places.trashed_journals, *places.trashed_artifacts))
        remove_name(disk, places.under_way("purging"))
    _settle(disk, places)


def _forget(disk: Disk, places: Places) -> None:
    """Write the tombstone anew: when the bytes went, and nothing of what was in them."""
    begun = places.under_way("purging")
    if exists(disk, begun):
        old = read_tombstone(disk, begun, places.session_id)
        bare = Tombstone(old.id, old.deleted_ms, None, environment.now_ms())
        write_tombstone(disk, places.store, places.tombstone, bare)


def _settle(disk: Disk, places: Places) -> None:
    """Make the names of tombstones durable: the next step must not outlive the last one."""
    sync_those_there(disk, (places.tombstone, places.under_way("deleting")))


def _remove_index(disk: Disk, places: Places) -> None:
    """Remove what is derived from the session, words and all, and the note of its last owner."""
    store, session_id = places.store, places.session_id
    try:
        files.remove_all(store.index, session_id)
    except IndexFault as fault:
        raise StorageError(
            f"the index could not be removed: {fault.reason}", path=store.index, next_step=_GOES_ON
        ) from fault
    forget_row(store, session_id)
    forget_session(store, session_id, places.trashed_journals)
    remove_name(disk, store.owner_note(session_id))
    sync_those_there(disk, (store.owner_note(session_id),))


def _remove_if_empty(disk: Disk, folder: str) -> None:
    try:
        disk.remove_folder(folder)
    except OSError:
        pass  # somebody keeps something in it; an empty folder means nothing


# Names and locks


def _places_of(path: str | os.PathLike[str]) -> Places:
    text = os.path.abspath(home.check_path(path))
    if os.path.islink(text):
        raise Invalid(
            "it is a symbolic link, which is not deleted with what it leads to",
            path=text,
            next_step="name the file itself, or remove the link",
        )
    store, session_id = Store.of_journal(text), home.session_id_of(text)
    if store.journal_path(session_id) != text:
        raise Invalid("a session is a file with the ending .jsonl", path=text)
    home.check_writable_place(text)
    home.check_writable_place(store.trash)
    return Places(store, session_id)


def _own(disk: Disk, places: Places, path: str) -> Ownership:
    return Ownership.acquire(disk, path, places.store.owner_note(places.session_id))


def _own_anywhere(disk: Disk, places: Places) -> Ownership | None:
    """Lock the journal wherever it is; None where there is none any more (a purge was under way).

    It may be moved while we look: it has its new name before it loses the old one, so who looks
    once more at the first names finds it.
    """
    for path in (*places.trashed_journals, places.journal, *places.trashed_journals):
        try:
            return _own(disk, places, path)
        except NotFound:
            continue
    return None


@contextmanager
def _owning(owner: Ownership | None) -> Iterator[None]:
    try:
        yield
    finally:
        if owner is not None:
            owner.release()


@contextmanager
def _errors(places: Places, doing: str) -> Iterator[None]:
    """Typed errors. From the tombstone on they say that what was begun goes on."""
    try:
        yield
    except OSError as error:
        typed = from_os_error(error, doing, places.journal)
        typed.next_step = f"{typed.next_step or 'try again'}; what has begun goes on then"
        raise typed from error


def _bytes_in_trash(disk: Disk, places: Places) -> bool:
    return first_existing(disk, (*places.trashed_journals, *places.trashed_artifacts)) is not None


def _artifacts_in_trash(disk: Disk, places: Places) -> bool:
    """Also where they are a link that leads nowhere."""
    inside, aside = places.trashed_artifacts
    return os.path.basename(inside) in disk.list_folder(places.folder) or exists(disk, aside)


def _not_deleted(places: Places) -> NotFound:
    return NotFound(
        f"no deleted session {places.session_id}",
        path=places.store.trash,
        next_step="`treering session undelete` lists what was deleted",
    )


def _was_deleted(disk: Disk, places: Places) -> NotFound:
    if _bytes_in_trash(disk, places):
        step = f"`{undeleting(places.store, places.session_id)}` brings it back"
        return NotFound("the session was deleted", path=places.journal, next_step=step)
    return NotFound("the session was deleted and purged", path=places.journal)


def _deleted(disk: Disk, places: Places, verb: Verb | None = None) -> DeletedSession:
    path = places.tombstone if verb is None else places.under_way(verb)
    said = read_tombstone(disk, path, places.session_id)
    return DeletedSession(
        places.session_id, places.folder, said.deleted_ms, said.name, said.purged_ms, verb
    )
