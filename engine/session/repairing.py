"""Repair as users call it: by path, with what the index remembers."""

from __future__ import annotations

import os

from treering.engine import home
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.repair import RepairResult
from treering.engine.journal.repair import repair as repair_journal
from treering.engine.session.filling import peek_hint


def repair(
    path: str | os.PathLike[str],
    *,
    accept_loss: bool = False,
    keep_unknown: bool = False,
    dry_run: bool = False,
    known_ids: tuple[bytes, ...] = (),
    disk: Disk = LOCAL_DISK,
) -> RepairResult:
    """Build a new journal out of what a damaged one still holds; the old file is kept.

    Args:
        path: the journal.
        accept_loss: keep only the frames before the damage (needed for case D).
        keep_unknown: show staged frames whose activation may lie in a gap.
        dry_run: only say what would be done.
        known_ids: journal ids (16 bytes) to try when the file header is damaged.
        disk: the file system.

    Raises:
        Owned: the session is in use.
        Conflict: case D without ``accept_loss``: repairing would forget acknowledged data.
        NotAJournal, Damaged: nothing can be brought back.
        Invalid, Unsupported: the place must not be written to.
    """
    real = home.journal_file(path)
    home.check_writable_place(real)
    store, session_id = home.Store.of_journal(real), home.session_id_of(real)

    def remembered() -> tuple[bytes | None, list[bytes]]:
        hint = peek_hint(store.index, session_id)
        return (None, []) if hint is None else (hint.watermark, [hint.journal_id])

    return repair_journal(
        disk,
        real,
        store=store,
        accept_loss=accept_loss,
        keep_unknown=keep_unknown,
        dry_run=dry_run,
        hint=remembered,
        known_ids=known_ids,
    )
