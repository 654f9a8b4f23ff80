"""From frames to index rows: what a walk over a journal puts into an index."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter

import xxhash

from treering.engine import home
from treering.engine.errors import Damaged, InvalidId, Undecodable, from_os_error
from treering.engine.journal.control import decode_leaf
from treering.engine.journal.disk import File
from treering.engine.journal.format import (
    JOURNAL_ID_BYTES,
    JOURNAL_ID_OFFSET,
    WATERMARK_BYTES,
    Frame,
    Kind,
    Watermark,
    decode_watermark,
)
from treering.engine.journal.history import Walk
from treering.engine.journal.opening import Hint
from treering.engine.journal.reader import Bytes
from treering.engine.journal.salvage import Lost, Salvage
from treering.engine.journal.shared import SharedFrames
from treering.engine.limits import INDEX_SLICE_ROWS, INDEX_TRANSACTION_ROWS
from treering.engine.session.facts import UNREADABLE, facts_of
from treering.index import IndexBusy, IndexFault, LeafMove, Position, Row, SessionIndex, files
from treering.index.peek import in_wal, peek

_content_hash = xxhash.xxh3_128_digest


def row_of(frame: Frame, payload: bytes | None) -> Row:
    """The index row of a visible ENTRY or REQUEST frame; None is a payload that is lost."""
    facts = UNREADABLE if payload is None else facts_of(payload)
    request = frame.kind == Kind.REQUEST
    return Row(
        frame.sequence,
        facts.id,
        facts.parent_id,
        "request" if request and not facts.kind else facts.kind,
        facts.role,
        facts.timestamp_ms,
        frame.offset,
        frame.stored,
        frame.raw,
        frame.revision,
        frame.flags & 0x0F,
        _content_hash(frame.revision if payload is None else payload),
        facts.tree,
        facts.moves_leaf and not request,
        facts.label,
        facts.usage,
        facts.about,
    )


def rows_of(walk: Walk) -> Iterator[tuple[Row | LeafMove, bool]]:
    """Every row of a walk, each with whether the walk may be interrupted behind it."""
    decode = walk.history.shared.decoder.decode
    history = walk.history
    for frame, stored in walk.visible():
        row: Row | LeafMove
        if frame.kind == Kind.LEAF:
            moved = decode_leaf(decode(frame, stored))
            assert moved is not None
            row = LeafMove(frame.sequence, moved.leaf)
        else:
            try:
                payload = decode(frame, stored) if frame.codec else stored
            except (Undecodable, Damaged):
                payload = None
            row = row_of(frame, payload)
        yield row, history.settled is frame


def position_of(frame: Frame) -> Position:
    """A position that catch-up can resume behind. Its offset is where the frame *starts*."""
    return Position(frame.sequence, frame.offset, frame.revision)


def fill(
    index: SessionIndex,
    walk: Walk,
    *,
    stop: threading.Event | None = None,
    watermark: bytes | None = None,
    rest: Callable[[], None] | None = None,
) -> bool:
    """Apply a walk to an index in bounded transactions; False when ``stop`` interrupted it.

    ``watermark`` goes in first: a position without one that covers it is no use at opening.
    ``rest`` is called after every few rows.
    """
    if watermark is not None:
        index.set_watermark(watermark)
    pending: list[Row | LeafMove] = []
    for row, settled in rows_of(walk):
        pending.append(row)
        if rest is not None and not len(pending) % INDEX_SLICE_ROWS:
            rest()
        if settled and len(pending) >= INDEX_TRANSACTION_ROWS:
            assert walk.history.settled is not None
            index.apply(pending, position_of(walk.history.settled))
            pending = []
            if stop is not None and stop.is_set():
                return False
    if walk.history.settled is not None:
        # Staged frames at the very end are read again next time: they may yet be activated.
        index.apply(pending, position_of(walk.history.settled))
    return True


def memory_index(
    source: Bytes, journal_id: bytes, shared: SharedFrames
) -> tuple[SessionIndex, Walk]:
    """A full index in memory, for views that write nothing."""
    index = SessionIndex.memory()
    walk = Walk(source, journal_id, shared=shared)
    fill(index, walk)
    walk.history.finish()
    return index, walk


def fill_salvaged(salvage: Salvage) -> SessionIndex:
    """An index in memory over everything that a salvage shows."""
    index = SessionIndex.memory()
    pending: list[Row | LeafMove] = []
    last: Frame | None = None
    for item in salvage.items():
        if isinstance(item, Lost):
            continue
        last, payload = item
        if last.kind == Kind.LEAF:
            moved = decode_leaf(payload)
            if moved is not None:
                pending.append(LeafMove(last.sequence, moved.leaf))
        else:
            pending.append(row_of(last, payload))
        if len(pending) >= INDEX_TRANSACTION_ROWS:
            index.apply(pending, position_of(last))
            pending = []
    if pending and last is not None:
        index.apply(pending, position_of(last))
    return index


def peek_hint(folder: str, session_id: str, journal_id: bytes | None = None) -> Hint | None:
    """What the current index file remembers of the journal, read without owning or writing.

    For fsck, repair and read-only views: its position may be older than that of the owner's index
    (only the main file is looked at), never newer. The watermark is the newest there is, in the
    ``-wal`` too, of the journal of that id or of the one that the index names. None when there is
    nothing usable.
    """
    try:
        path = files.current(folder, session_id)
    except (IndexFault, IndexBusy):
        return None  # whatever state the index is in, it stops no look at a journal
    return None if path is None else hint_of(path, journal_id)


def hint_of(path: str, journal_id: bytes | None = None) -> Hint | None:
    """:func:`peek_hint` of an index file that is known."""
    hint = _hint_of_main_file(path)
    named = None if hint is None else hint.journal_id
    for known in dict.fromkeys((journal_id, named)):
        newest = None if known is None else _newest_in_wal(path, known)
        if known is None or newest is None:
            continue
        if hint is None or hint.journal_id != known:
            return Hint(known, 0, 0, b"", newest.encode())
        mark = decode_watermark(hint.watermark, known)
        if mark is None or mark.sequence < newest.sequence:
            return replace(hint, watermark=newest.encode())
    return hint


def remembered_watermark(path: str, file: File) -> bytes | None:
    """The watermark that an index beside an open journal remembers, untrusted; None without one."""
    try:
        session_id = home.session_id_of(path)
    except InvalidId:
        return None
    hint = peek_hint(home.Store.of_journal(path).index, session_id, stated_id(file, path))
    return None if hint is None else hint.watermark


def _newest_in_wal(path: str, journal_id: bytes) -> Watermark | None:
    found = (
        decode_watermark(data, journal_id) for data in in_wal(path, journal_id, WATERMARK_BYTES)
    )
    return max(
        (mark for mark in found if mark is not None), default=None, key=attrgetter("sequence")
    )


def _hint_of_main_file(path: str) -> Hint | None:
    try:
        state = peek(path)
    except (IndexFault, IndexBusy):
        return None
    if state is None:
        return None
    identity, position, watermark = state
    if position is None:  # a watermark alone still tells what was acknowledged
        return Hint(identity.journal_id, 0, 0, b"", watermark)
    return Hint(
        identity.journal_id, position.sequence, position.offset, position.revision, watermark
    )


def stated_id(file: File, path: str) -> bytes | None:
    """The journal id in the header of an open file, not verified, for :func:`peek_hint`.

    None for what would be found everywhere: no bytes, and zero bytes.

    Raises:
        StorageError: the read failed.
    """
    try:
        found = file.pread(JOURNAL_ID_BYTES, JOURNAL_ID_OFFSET)
    except OSError as error:
        raise from_os_error(error, "read the file header", path) from error
    return found if len(found) == JOURNAL_ID_BYTES and any(found) else None
