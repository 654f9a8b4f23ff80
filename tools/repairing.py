"""What `repair` does, and how it tells."""

from __future__ import annotations

from typing import Any

from treering.engine.home import Store, session_id_of
from treering.engine.journal.repair import RepairResult
from treering.engine.session.repairing import repair
from treering.engine.session.session import Session
from treering.tools.output import counted, escape, say, say_json, warn
from treering.tools.readmit import Readmission, plan, readmit
from treering.tools.reindex import reindex_session
from treering.tools.viewing import looking_at, owning


def repair_session(
    path: str,
    *,
    dry_run: bool,
    accept_loss: bool,
    keep_unknown: bool,
    journal_id: bytes | None,
    as_json: bool,
) -> None:
    """Repair one journal and say what was kept, what is missing and where the old file is.

    Raises:
        TreeringError: see :func:`treering.engine.session.repairing.repair`; nothing was changed.
    """
    result = repair(
        path,
        accept_loss=accept_loss,
        keep_unknown=keep_unknown,
        dry_run=dry_run,
        known_ids=() if journal_id is None else (journal_id,),
    )
    if result.done:
        # The index is that of the old journal: of no use, and the next fsck would stumble over it.
        indexed = reindex_session(path)
        if indexed.error is not None:
            warn(f"the journal is repaired; its index is not built: {indexed.error}")
    if result.case == "E":
        _cut_torn_tail(path, result, dry_run=dry_run, as_json=as_json)
    elif as_json:
        say_json(_json(result))
    else:
        for line in _lines(result, dry_run=dry_run):
            say(escape(line))


def _cut_torn_tail(path: str, result: RepairResult, *, dry_run: bool, as_json: bool) -> None:
    """Case E is no damage: any open for writing moves the tail to quarantine and goes on."""
    report = result.report
    if not dry_run:
        with Session.open(path) as session:
            report = session.report
    assert report is not None
    where = report.quarantine
    if as_json:
        found = _json(result)
        say_json(found | {"done": not dry_run, "keptAside": where})
        return
    count = report.size - (report.bad_offset or report.size)
    if where is None:
        tail = f"a torn tail of {counted(count, 'byte')}"
        would = f"{tail} would be moved to quarantine and cut off"
        say(would if dry_run else "nothing to repair: somebody else has just opened the session")
        return
    say(escape(f"a torn tail of {counted(count, 'byte')} was moved to {where} and cut off"))
    if report.quarantined_frames:
        frames = counted(report.quarantined_frames, "whole frame")
        command = f"treering repair {session_id_of(path)} --readmit"
        say(f"it holds {frames}; `{command}` appends them again")


def _json(result: RepairResult) -> dict[str, Any]:
    return {
        "path": result.path,
        "case": result.case,
        "verdict": result.verdict,
        "done": result.done,
        "kept": result.kept,
        "gaps": [
            {"offset": gap.offset, "bytes": gap.bytes, "first": gap.first, "last": gap.last}
            for gap in result.gaps
        ],
        "activationUnknown": result.activation_unknown,
        "batchSurvivors": result.batch_survivors,
        "undecodable": result.undecodable,
        "misunderstood": result.misunderstood,
        "headerMade": result.header_made,
        "keptAside": result.kept_aside,
    }


def _lines(result: RepairResult, *, dry_run: bool) -> list[str]:
    if result.case == "A":
        return ["nothing to repair"]
    kept = counted(result.kept, "entry or move", "entries and moves")
    lines = [f"case {result.case}, {result.verdict}"]
    done = f"kept {kept} in a new journal: {result.path}"
    lines.append(f"would keep {kept}" if dry_run else done)
    for gap in result.gaps:
        frames = f"frames from {gap.first}"
        if gap.last is not None:
            frames += f" to {gap.last}"
        lines.append(f"lost: {counted(gap.bytes, 'byte')} at {gap.offset} ({frames})")
    if result.activation_unknown:
        count = counted(len(result.activation_unknown), "staged entry", "staged entries")
        lines.append(f"{count} whose activation may be lost; --keep-unknown keeps them")
    if result.batch_survivors:
        count = counted(len(result.batch_survivors), "entry", "entries")
        lines.append(f"{count} of a batch of which others are lost")
    for name, sequences in (
        ("could not be decoded", result.undecodable),
        ("are not understood", result.misunderstood),
    ):
        if sequences:
            lines.append(f"left out: {counted(len(sequences), 'frame')} that {name}")
    if result.header_made:
        lines.append("the session header was lost; one was made from the file name")
    if result.kept_aside is not None:
        lines.append(f"the damaged file is kept: {result.kept_aside}")
    return lines


def readmit_session(path: str, *, dry_run: bool, as_json: bool) -> None:
    """Append again what cut-off tails hold and the session lacks."""
    if dry_run:
        with looking_at(path) as view:
            result, _ = plan(view, Store.of_journal(view.path))
    else:
        with owning(path) as session:
            result = readmit(session)
    if as_json:
        say_json(
            {
                "path": path,
                "done": not dry_run,
                "files": result.files,
                "frames": result.frames,
                "readmitted": result.readmitted,
                "present": result.present,
                "left": result.left,
                "leafKept": result.leaf_kept,
            }
        )
        return
    for line in _readmit_lines(result, dry_run=dry_run):
        say(escape(line))
    for why in result.left:
        warn(f"left in quarantine: {why}")


def _readmit_lines(result: Readmission, *, dry_run: bool) -> list[str]:
    if not result.files:
        return ["no cut-off tail is in quarantine"]
    verb = "would append" if dry_run else "appended"
    entries = counted(len(result.readmitted), "entry", "entries")
    files = counted(len(result.files), "quarantined tail")
    lines = [f"{verb} {entries} of {files}: {', '.join(result.readmitted)}".rstrip(": ")]
    if result.present:
        lines.append(f"{counted(result.present, 'entry', 'entries')} there already")
    if result.leaf_kept:
        lines.append("the current position stays: the session had gone on elsewhere")
    return lines
