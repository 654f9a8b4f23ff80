"""What each mode of repair does about each case.

==========  =========  =====================  ==================  ===================  ========
mode        A          B, C, F                D                   E                    G
==========  =========  =====================  ==================  ===================  ========
strict      nothing    refuse                 refuse              refuse               refuse
tail        nothing    refuse                 refuse              cut                  refuse
prefix      nothing    rebuild from before    rebuild from before cut                  refuse
salvage     rebuild*   rebuild from all       rebuild from all    rebuild from all     refuse
(none)      nothing    as salvage             refuse: a decision  as tail              refuse
==========  =========  =====================  ==================  ===================  ========

``cut`` is what opening for writing does; ``rebuild`` makes a new journal and keeps the old file.
(*) Only when payloads cannot be decoded. Cases A and E with frames that are not understood are
never rebuilt or cut: a newer release knows what they are. Case F without an id is like G.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from treering.engine.journal.format import salt_of
from treering.engine.journal.recovery import Examination
from treering.engine.journal.salvage import decoded
from treering.engine.journal.shared import SharedFrames

RepairMode = Literal["strict", "tail", "prefix", "salvage"]

REPAIR_MODES: Final[tuple[RepairMode, ...]] = ("strict", "tail", "prefix", "salvage")

Action = Literal["nothing", "refuse", "cut", "rebuild"]


class Outcome(NamedTuple):
    """What a mode would do to a journal."""

    mode: RepairMode
    action: Action
    kept: int | None = None
    """Entries, requests and moves that the journal holds afterwards; None if nothing is done."""
    lost_bytes: int | None = None
    """Bytes of the file that are not carried over since they do not verify or stand behind."""
    left_out: int | None = None
    """Frames that verify and are left out all the same: no payload, no activation, no meaning."""


def chosen(found: Examination, mode: RepairMode | None) -> RepairMode:
    """The mode that a repair works in when none (or one) was named."""
    if mode is not None:
        return mode
    return "tail" if found.case in ("A", "E") else "salvage"


def action_of(found: Examination, mode: RepairMode) -> Action:
    """The table above."""
    if found.case == "G" or found.journal_id is None:
        return "refuse"
    if found.case == "A" and (mode != "salvage" or not _has_undecodable(found)):
        return "nothing"
    if mode == "strict" or (found.case in ("A", "E") and is_for_newer_release(found)):
        return "refuse"
    if found.case == "E":
        return "rebuild" if mode == "salvage" else "cut"
    return "refuse" if mode == "tail" else "rebuild"


def is_for_newer_release(found: Examination) -> bool:
    """Whether a whole history (case A or E) has frames that this release does not understand."""
    return found.walk is not None and (
        found.walk.history.problem_count > 0 or found.place.sequence < 2
    )


def _has_undecodable(found: Examination) -> bool:
    assert found.journal_id is not None
    frames = decoded(
        found.source, salt_of(found.journal_id), SharedFrames(found.source, found.journal_id)
    )
    return any(isinstance(payload, Exception) for _, payload in frames)
