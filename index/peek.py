"""A look at what an index file remembers, without a lock and without one byte changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw

from treering.index import schema
from treering.index.faults import IndexFault, translate
from treering.index.handle import is_open, unsigned
from treering.index.rows import Identity, Position

_CHUNK_BYTES: Final = 1024 * 1024


def peek(path: str) -> tuple[Identity, Position | None, bytes | None] | None:
    """(journal, last indexed frame, watermark) of the main file; None when it holds none.

    The file is opened as if nobody could change it: no ``-shm`` or ``-wal`` is made or read. If an
    owner is writing at the same time the answer can be old or garbage, so it is a hint only:
    watermark and frame verify themselves.

    Raises:
        IndexFault: not an index, or unreadable.
    """
    try:
        path = schema.resolved(path)
        schema.require_file(path)  # SQLite would wait for ever on a FIFO
        db = schema.connect_unlocked(path)
        try:
            application = db.pragma("application_id")
            rows: list[tuple[Any, ...]] = []
            if application == schema.APPLICATION_ID:
                rows = db.execute(
                    "SELECT journal_id, device, inode, sequence, offset, revision, watermark"
                    " FROM state LIMIT 2"
                ).fetchall()
        finally:
            db.close()
        if application != schema.APPLICATION_ID:
            raise IndexFault(path, "not an index of ours")
    except (apsw.Error, UnicodeDecodeError, OSError, ValueError) as error:
        raise translate(path, error) from error
    if len(rows) > 1:  # a page of another table in its place verifies too
        raise IndexFault(path, "several state rows instead of one")
    if not rows or rows[0][0] is None:
        return None
    journal_id, device, inode, sequence, offset, revision, watermark = rows[0]
    position = None if sequence is None else Position(sequence, offset, revision)
    numbers = (device, inode, 0 if sequence is None else sequence, 0 if offset is None else offset)
    blobs = (
        journal_id,
        b"" if position is None else revision,
        b"" if watermark is None else watermark,
    )
    if not all(map(isinstance, numbers + blobs, (int,) * 4 + (bytes,) * 3)):
        raise IndexFault(path, "its state row is damaged")
    return Identity(journal_id, unsigned(device), unsigned(inode)), position, watermark


def in_wal(path: str, start: bytes, length: int) -> Iterator[bytes]:
    """Every ``length`` bytes in the ``-wal`` of an index that begin with ``start``.

    What a crashed owner said last is there until the next one opens the index, and :func:`peek`
    does not see it. Whether such bytes mean anything is for the caller to verify. This is a hint,
    too: nothing at all when there is no ``-wal``, it cannot be read, or this process has the index
    open (only SQLite may touch its files then).
    """
    try:
        if is_open(schema.resolved(path)):
            return
        wal = path + "-wal"
        schema.require_file(wal)
        with open(wal, "rb") as file:
            data = b""
            while piece := file.read(_CHUNK_BYTES):
                data += piece
                at = data.find(start)
                while 0 <= at <= len(data) - length:
                    yield data[at : at + length]
                    at = data.find(start, at + 1)
                data = data[1 - length :]
    except (OSError, IndexFault):
        return
