"""Repair as users call it: by path, with what the index remembers, in every mode."""

from __future__ import annotations

import os

from treering.engine import home
from treering.engine.errors import Invalid
from treering.engine.journal.disk import LOCAL_DISK, Disk, File
from treering.engine.journal.repair import RepairResult
from treering.engine.journal.repair import repair as repair_journal
from treering.engine.journal.repair_modes import REPAIR_MODES, RepairMode
from treering.engine.session.filling import peek_hint, stated_id
from treering.engine.session.session import Session


def repair(
    path: str | os.PathLike[str],
    *,
    mode: RepairMode | None = None,
    keep_unknown: bool = False,
    dry_run: bool = False,
    known_ids: tuple[bytes, ...] = (),
    disk: Disk = LOCAL_DISK,
) -> RepairResult:
    """Make a damaged session usable again; the bytes that it had are kept in quarantine.

    Modes: ``"strict"`` only refuses. ``"tail"`` does what opening does: a torn tail goes to
    quarantine and is cut off. ``"prefix"`` keeps what comes before the first damage, ``"salvage"``
    everything that verifies, each in a new journal in the place of the old one. Without a mode: a
    torn tail is cut, cases B, C and F are salvaged, and case D is refused, since what to give up is
    a decision. Repairing again changes nothing.

    Args:
        path: the journal.
        mode: see above.
        keep_unknown: show staged frames whose activation may lie in a gap (when salvaging).
        dry_run: only say what would be done.
        known_ids: journal ids (16 bytes) to try when the file header is damaged.
        disk: the file system.

    Raises:
        Owned: the session is in use.
        Conflict: case D without a mode: repairing would forget acknowledged data.
        NotAJournal, Damaged, AcknowledgedDataLost: nothing can be brought back, or the mode
            refuses; nothing was changed.
        Invalid, Unsupported: such a mode, or the place or journal must not be written to.
    """
    if mode is not None and mode not in REPAIR_MODES:
        raise Invalid(f"a repair has the modes {', '.join(REPAIR_MODES)}, not {mode!r}")
    if keep_unknown and mode not in (None, "salvage"):
        raise Invalid(f"keep_unknown is for salvaging: mode {mode!r} keeps nothing of the kind")
    real = home.journal_file(path)
    home.check_writable_place(real)
    store, session_id = home.Store.of_journal(real), home.session_id_of(real)

    def remembered(file: File) -> tuple[bytes | None, list[bytes]]:
        hint = peek_hint(store.index, session_id, stated_id(file, real))
        return (None, []) if hint is None else (hint.watermark, [hint.journal_id])

    result = repair_journal(
        disk,
        real,
        store=store,
        mode=mode,
        keep_unknown=keep_unknown,
        dry_run=dry_run,
        hint=remembered,
        known_ids=known_ids,
    )
    if result.action == "cut" and not dry_run:
        # A torn tail is no damage of the journal: opening it for writing is what cuts it.
        with Session.open(real, disk=disk) as session:
            report = session.report
        assert report is not None
        result.report, result.kept_aside = report, report.quarantine
        result.done = report.quarantine is not None
    return result
