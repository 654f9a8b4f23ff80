"""Proof that an index says what its journal says: a rebuild, compared row by row.

Opening a WAL database read-only still leaves ``-wal`` and ``-shm`` files behind, so the index is
opened without locks when its owner closed it cleanly, and copied into a temporary folder when a
``-wal`` lies beside it. An index in use is not compared: its rows move while we look.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import apsw

from treering.engine.errors import TreeringError
from treering.engine.home import Store
from treering.engine.journal.format import salt_of
from treering.engine.journal.reader import FileBytes, frame_at
from treering.engine.journal.recovery import Examination
from treering.engine.journal.repair_modes import is_for_newer_release
from treering.engine.journal.shared import SharedFrames
from treering.engine.session.filling import memory_index
from treering.index import IndexBusy, IndexFault, Position, SessionIndex, files, handle, schema

DIFFERENCES_SHOWN: Final = 100


@dataclass
class IndexCheck:
    """What is known of an index.

    ``state``: not checked, absent, equal, behind (equal as far as it goes), differs, unusable; or
    not compared, with the reason.
    """

    state: str = "not checked"
    differences: list[str] = field(default_factory=list)


def check_index(store: Store, session_id: str, found: Examination, *, in_use: bool) -> IndexCheck:
    """Compare the index with a rebuild of what it covers. Changes nothing."""
    try:
        path = files.current(store.index, session_id)
        if path is None:
            return IndexCheck("absent")
        if in_use:
            return IndexCheck("in use, not compared")
        if found.case in ("A", "E") and is_for_newer_release(found):
            # Only an owner builds an index, and nobody may own this journal.
            return IndexCheck("not compared: the journal has frames of a newer release")
        with opened_without_a_trace(path) as index:
            return _compare(index, found)
    except (IndexFault, IndexBusy) as error:
        return IndexCheck("unusable", [str(error)])
    except (TreeringError, OSError, apsw.Error, UnicodeError) as error:
        return IndexCheck("unusable", [f"{type(error).__name__}: {error}"])


def _compare(index: SessionIndex, found: Examination) -> IndexCheck:
    assert found.journal_id is not None
    identity, position = index.identity(), index.position()
    if identity is not None and identity.journal_id != found.journal_id:
        return IndexCheck("differs", ["it belongs to another journal"])
    if position is None:
        return IndexCheck("behind")  # made and not yet filled
    end = _end_of(position, found)
    if end is None:
        return IndexCheck("differs", ["its position is not a frame of this journal"])
    if end > found.place.offset:
        return IndexCheck("not compared: it covers more than the damaged journal shows")
    assert isinstance(found.source, FileBytes)
    covered = found.source.captured(end)
    rebuilt, _ = memory_index(covered, found.journal_id, SharedFrames(covered, found.journal_id))
    with rebuilt:
        differences = index.differences(rebuilt, limit=DIFFERENCES_SHOWN)
    if differences:
        return IndexCheck("differs", differences)
    return IndexCheck("equal" if end == found.place.offset else "behind")


def _end_of(position: Position, found: Examination) -> int | None:
    """Where the last indexed frame ends; None when it is not there."""
    assert found.journal_id is not None
    at = frame_at(found.source, salt_of(found.journal_id), position.offset)
    if at is None or (at[0].sequence, at[0].revision) != (position.sequence, position.revision):
        return None
    return at[0].end


@contextmanager
def opened_without_a_trace(path: str) -> Iterator[SessionIndex]:
    """The index as it is now, opened so that nothing in its folder changes.

    Raises:
        IndexFault, IndexBusy: it cannot be used.
    """
    schema.require_file(path)
    inode = handle.signed(os.lstat(path).st_ino)
    if not _has_rows(path + "-wal"):
        with _checked(schema.connect_unlocked(path), path, inode) as index:
            yield index
        return
    with tempfile.TemporaryDirectory(prefix="treering-fsck-") as folder:
        copy = os.path.join(folder, "index.sqlite3")
        shutil.copyfile(path, copy)
        shutil.copyfile(path + "-wal", copy + "-wal")
        with _checked(schema.connect(copy, readonly=False), path, inode) as index:
            yield index


def _has_rows(wal: str) -> bool:
    try:
        return os.stat(wal).st_size > 0
    except FileNotFoundError:
        return False


def _checked(db: apsw.Connection, path: str, inode: int) -> SessionIndex:
    index = SessionIndex(db, path, readonly=True, building=False, registered=False)
    try:
        schema.check(db, path, file_inode=inode)
    except BaseException:
        index.close()
        raise
    return index
