"""How a session comes into an owner's hands: created and published, or locked and recovered."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import msgspec

from treering.engine import environment, home
from treering.engine.errors import Invalid, NotFound
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK, Disk, make_folders
from treering.engine.journal.format import Kind
from treering.engine.journal.framing import Durability
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.journal.opening import OPEN_MODES, Opened, OpenMode, Tail, open_for_writing
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.publish import NewJournal
from treering.engine.json_text import clean
from treering.engine.session.deleting import bring_back_missing, refuse_deleted
from treering.engine.session.indexing import Indexer
from treering.engine.session.trash import check_not_deleted
from treering.engine.transfer.depth import depth_of_new

HEADER_VERSION: Final = 3


@dataclass(frozen=True)
class Parts:
    """An owned journal and what goes with it."""

    disk: Disk
    store: home.Store
    owner: Ownership
    tail: Tail
    indexer: Indexer
    durability: Durability
    compression: bool
    opened: Opened | None
    """None for a journal that was just created."""


def create_parts(
    store: home.Store,
    disk: Disk,
    *,
    session_id: str | None,
    cwd: str | None,
    parent_session: str | None,
    rlm_depth: int | None = None,
    durability: Durability,
    compression: bool,
) -> Parts:
    """Publish a new journal that holds only its header: see :meth:`Session.create`."""
    _check_durability(durability)
    fresh = session_id is None
    session_id = home.check_session_id(
        environment.new_session_id() if session_id is None else session_id
    )
    for text in (cwd, parent_session):
        if text is not None and not isinstance(text, str):
            raise Invalid(f"cwd and parent_session are strings, not {type(text).__name__}")
    header: dict[str, object] = {
        "type": "session",
        "version": HEADER_VERSION,
        "id": session_id,
        "timestamp": environment.iso_time(environment.now_ms()),
        "cwd": clean(cwd if cwd is not None else os.getcwd()),
    }
    if parent_session is not None:
        header["parentSession"] = clean(parent_session)
    in_memory = isinstance(disk, MemoryDisk)
    depth = depth_of_new(parent_session, explicit=rlm_depth, disk=LOCAL_DISK if in_memory else disk)
    if depth is not None:
        header["rlmDepth"] = depth
    path = store.journal_path(session_id)
    if not in_memory:
        home.check_writable_place(path)
    if not fresh:
        check_not_deleted(disk, store, session_id)
    new = NewJournal(
        disk, store.sessions, session_id, purpose="create", top=store.top, compression=compression
    )
    try:
        new.add([Record(Kind.SESSION, msgspec.json.encode(header))])
        owner, tail = new.publish(path, store.owner_note(session_id))
    except BaseException:
        new.abandon()
        raise
    _leave_note(disk, store, owner)
    indexer = Indexer(None if in_memory else store.index, session_id)
    return Parts(disk, store, owner, tail, indexer, durability, compression, None)


def open_parts(
    path: str,
    disk: Disk,
    *,
    durability: Durability,
    compression: bool,
    mode: OpenMode = "tail",
) -> Parts:
    """Lock, decide, recover: see :func:`open_for_writing` for what it raises."""
    _check_durability(durability)
    if mode not in OPEN_MODES:
        raise Invalid(
            f"a session is opened in mode 'strict' or 'tail', not {mode!r}",
            path=path,
            next_step="`repair` has the modes that make a new journal",
        )
    in_memory = isinstance(disk, MemoryDisk)
    if not in_memory:
        home.check_writable_place(path)
    store = home.Store.of_journal(path)
    session_id = home.session_id_of(path)
    indexer = Indexer(None if in_memory else store.index, session_id)

    def own() -> Opened:
        return open_for_writing(
            disk,
            path,
            top=store.top,
            quarantine_folder=store.quarantine_folder(session_id),
            note_path=store.owner_note(session_id),
            hint=indexer.hint,
            mode=mode,
        )

    try:
        try:
            opened = own()
        except NotFound:
            if in_memory or not bring_back_missing(store, session_id, disk=disk):
                raise
            opened = own()
        try:
            refuse_deleted(store, session_id, lambda: _let_go(indexer, opened.owner), disk=disk)
        except BaseException:
            opened.owner.release()
            raise
    except BaseException:
        indexer.close()
        raise
    _leave_note(disk, store, opened.owner)
    return Parts(disk, store, opened.owner, opened.tail, indexer, durability, compression, opened)


def _let_go(indexer: Indexer, owner: Ownership) -> None:
    indexer.close()
    owner.release()


def _check_durability(durability: str) -> None:
    if durability not in ("full", "os"):
        raise Invalid(f"durability is 'full' or 'os', not {durability!r}")


def _leave_note(disk: Disk, store: home.Store, owner: Ownership) -> None:
    """Say who owns the session, in a folder that is made only beside a real journal."""
    try:
        disk.stat(store.index)
    except FileNotFoundError:
        try:
            make_folders(disk, store.index, store.top)
        except OSError:
            return  # the note is advisory
    except OSError:
        return
    owner.leave_note()
