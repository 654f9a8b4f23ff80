"""A look at what an index file remembers, without a lock and without one byte changed."""

from __future__ import annotations

import urllib.parse

import apsw

from treering.index.faults import IndexFault
from treering.index.rows import Identity, Position
from treering.index.schema import APPLICATION_ID


def peek(path: str) -> tuple[Identity, Position, bytes | None] | None:
    """(journal, last indexed frame, watermark) of the main file; None when it holds none.

    The file is opened as if nobody could change it: no ``-shm`` or ``-wal`` is made or read. If an
    owner is writing at the same time the answer can be old or garbage, so it is a hint only:
    watermark and frame verify themselves.

    Raises:
        IndexFault: not an index, or unreadable.
    """
    uri = f"file:{urllib.parse.quote(path)}?immutable=1&mode=ro"
    try:
        db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            if db.pragma("application_id") != APPLICATION_ID:
                raise IndexFault(path, "not an index of ours")
            row = db.execute(
                "SELECT journal_id, device, inode, sequence, offset, revision, watermark FROM state"
            ).get
        finally:
            db.close()
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise IndexFault(path, f"{type(error).__name__}: {error}") from error
    if row is None or row[0] is None or row[3] is None:
        return None
    return Identity(*row[:3]), Position(*row[3:6]), row[6]
