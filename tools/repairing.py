"""What `repair` does, and how it tells."""

from __future__ import annotations

from typing import Any

from treering.engine import commands
from treering.engine.home import Store
from treering.engine.journal.repair import RepairResult
from treering.engine.journal.repair_modes import RepairMode
from treering.engine.session.repairing import repair
from treering.tools.findings import SCHEMA
from treering.tools.output import counted, escape, say, say_json, warn
from treering.tools.readmit import Readmission, plan, readmit
from treering.tools.reindex import reindex_session
from treering.tools.viewing import looking_at, owning


def repair_session(
    path: str,
    *,
    mode: RepairMode | None,
    dry_run: bool,
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
        mode=mode,
        keep_unknown=keep_unknown,
        dry_run=dry_run,
        known_ids=() if journal_id is None else (journal_id,),
    )
    if result.done and result.action == "rebuild":
        # The index is that of the old journal: of no use, and the next fsck would stumble over it.
        indexed = reindex_session(path)
        if indexed.error is not None:
            warn(f"the journal is repaired; its index is not built: {indexed.error}")
    if as_json:
        say_json(_json(result))
        return
    if result.action == "nothing":
        say("nothing to repair")
    elif result.action == "cut":
        _say_cut(result, dry_run=dry_run)
    else:
        _say_rebuilt(result)


def _say_cut(result: RepairResult, *, dry_run: bool) -> None:
    """Case E is no damage: any open for writing moves the tail to quarantine and goes on."""
    report = result.report
    assert report is not None
    tail = f"a torn tail of {counted(sum(gap.bytes for gap in result.gaps), 'byte')}"
    if dry_run:
        say(f"{tail} would be moved to quarantine and cut off")
    elif not result.done:
        say("nothing to repair: somebody else has just opened the session")
    else:
        say(escape(f"{tail} was moved to {result.kept_aside} and cut off"))
    if report.frames_beyond or report.quarantined_frames:
        frames = counted(report.frames_beyond or report.quarantined_frames, "whole frame")
        then = commands.repairing(result.path, "--readmit")
        say(escape(f"it holds {frames}; `{then}` appends them again"))


def _json(result: RepairResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": result.path,
        "case": result.case,
        "verdict": result.verdict,
        "mode": result.mode,
        "action": result.action,
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


def _say_rebuilt(result: RepairResult) -> None:
    for line in _rebuilt_lines(result):
        say(escape(line))


def _rebuilt_lines(result: RepairResult) -> list[str]:
    kept = counted(result.kept, "entry or move", "entries and moves")
    lines = [f"case {result.case}, {result.verdict}"]
    done = f"kept {kept} in a new journal: {result.path}"
    lines.append(done if result.done else f"would keep {kept}")
    for gap in result.gaps:
        frames = f"frames from {gap.first}"
        if gap.last is not None:
            frames += f" to {gap.last}"
        what = f"{counted(gap.bytes, 'byte')} at {gap.offset}"
        if not gap.bytes and gap.last is None:
            what = f"what had followed the first {gap.offset} bytes"
        lines.append(f"lost: {what} ({frames})")
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
                "schema": SCHEMA,
                "path": path,
                "done": bool(result.readmitted) and not dry_run,
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
        return ["no cut-off tail is in quarantine: nothing to append"]
    verb = "would append" if dry_run else "appended"
    entries = counted(len(result.readmitted), "entry", "entries")
    files = counted(len(result.files), "quarantined tail")
    lines = [f"{verb} {entries} of {files}: {', '.join(result.readmitted)}".rstrip(": ")]
    if result.present:
        lines.append(f"{counted(result.present, 'entry', 'entries')} there already")
    if result.leaf_kept:
        lines.append("the current position stays: the session had gone on elsewhere")
    return lines
