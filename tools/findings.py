"""What a check finds, as plain data: for people, for programs, and with the next command.

Every finding that needs action names a command that can be pasted into a shell and helps; notes
name none. The JSON form is documented in docs/operations.md and has a version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from treering.engine.journal.publish import TEMPORARY_SUFFIX
from treering.engine.journal.repair_modes import Outcome
from treering.tools.fsck_index import IndexCheck
from treering.tools.output import counted, size_text

SCHEMA: Final = 1
"""Version of the JSON reports of `fsck`, `repair` and `reindex`."""

FINDINGS_KEPT: Final = 1_000
"""Findings of one kind that are listed one by one; beyond it they are counted."""

NOTES: Final = frozenset(("abandoned", "gap", "leftover", "owner", "unfinished", "unproven"))
"""Kinds that need no action."""

ACTIONS: Final = frozenset(
    (
        "activation-unknown",
        "foreign",
        "header",
        "index",
        "interior",
        "limit",
        "lost",
        "missing",
        "name",
        "not-json",
        "not-understood",
        "session-header",
        "torn",
        "undecodable",
        "unreadable",
        "unsupported",
    )
)
"""Kinds that make a check fail."""


@dataclass
class Finding:
    """One thing that was found."""

    kind: str
    file: str
    """The journal, or the file beside it that this is about."""
    what: str
    offset: int | None = None
    length: int | None = None
    next: str | None = None

    def __post_init__(self) -> None:
        assert self.kind in NOTES | ACTIONS, self.kind
        assert (self.next is None) == (self.kind in NOTES), self

    @property
    def needs_action(self) -> bool:
        """Whether it makes the check fail."""
        return self.kind not in NOTES

    def as_json(self) -> dict[str, Any]:
        """Members in the documented order."""
        return {
            "kind": self.kind,
            "file": self.file,
            "offset": self.offset,
            "length": self.length,
            "what": self.what,
            "next": self.next,
        }


@dataclass
class Checked:
    """The result for one session."""

    session: str
    path: str
    case: str | None = None
    findings: list[Finding] = field(default_factory=list)
    index: IndexCheck = field(default_factory=IndexCheck)
    modes: list[Outcome] = field(default_factory=list)
    """What each mode of repair would do; empty when there is nothing to repair."""
    frames: int = 0
    entries: int = 0
    size: int = 0
    could_not_run: bool = False
    """The system refused; nothing is known about the session."""

    @property
    def is_leftover(self) -> bool:
        """Whether this is about a temporary file alone: there is no session to sum up."""
        return self.path.endswith(TEMPORARY_SUFFIX)

    @property
    def ok(self) -> bool:
        """Whether nothing needs action."""
        return not any(finding.needs_action for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return {
            "schema": SCHEMA,
            "session": self.session,
            "path": self.path,
            "case": self.case,
            "ok": self.ok,
            "findings": [finding.as_json() for finding in self.findings],
            "index": asdict(self.index),
            "modes": [_outcome_json(outcome) for outcome in self.modes],
        }

    def lines(self) -> list[str]:
        """For people: each finding, what each mode would do, and the sum; not yet escaped."""
        made = [f"{self.session}: {self._finding_text(finding)}" for finding in self.findings]
        if self.modes:
            made.append(f"{self.session}: repair --mode {_modes_text(self.modes)}")
        if not self.is_leftover:
            made.append(self.summary())
        return made

    def _finding_text(self, finding: Finding) -> str:
        place = ""
        if finding.offset is not None and finding.file == self.path:
            place = f" at {finding.offset}"
            if finding.length is not None:
                place += f", {finding.length} bytes"
        where = "" if finding.file == self.path else f"{finding.file}: "
        then = "" if finding.next is None else f"; next: {finding.next}"
        return f"{finding.kind}{place}: {where}{finding.what}{then}"

    def summary(self) -> str:
        """One line for people."""
        state = "clean" if self.ok else "needs action"
        case = "" if self.case is None else f"case {self.case}, "
        return (
            f"{self.session}: {state} ({case}{self.frames} frames, {self.entries} entries,"
            f" {size_text(self.size)}, index {self.index.state})"
        )


class Counter:
    """Adds findings, each kind up to a bound, and says how many more there were."""

    def __init__(self, result: Checked) -> None:
        self._result = result
        self._unlisted: dict[str, int] = {}
        self._listed: dict[str, list[Finding]] = {}

    def add(self, finding: Finding) -> None:
        """Take one finding."""
        listed = self._listed.setdefault(finding.kind, [])
        if len(listed) < FINDINGS_KEPT:
            listed.append(finding)
            self._result.findings.append(finding)
        else:
            self.add_unlisted(finding.kind, 1)

    def add_unlisted(self, kind: str, count: int) -> None:
        """Take findings of which only the number is known, of a kind that has been listed."""
        self._unlisted[kind] = self._unlisted.get(kind, 0) + count

    def finish(self) -> None:
        """Say how many were not listed."""
        for kind, count in self._unlisted.items():
            if count > 0:
                last = self._listed[kind][-1]
                what = f"{count} more of this kind"
                self._result.findings.append(Finding(kind, last.file, what, next=last.next))


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "mode": outcome.mode,
        "action": outcome.action,
        "kept": outcome.kept,
        "lostBytes": outcome.lost_bytes,
        "leftOut": outcome.left_out,
    }


def _modes_text(modes: Iterable[Outcome]) -> str:
    return "; ".join(f"{outcome.mode} {_does(outcome)}" for outcome in modes)


def _does(outcome: Outcome) -> str:
    if outcome.action == "nothing":
        return "does nothing"
    if outcome.action == "refuse":
        return "refuses"
    assert outcome.kept is not None
    assert outcome.lost_bytes is not None
    how = "cuts the tail and " if outcome.action == "cut" else ""
    kept = counted(outcome.kept, "entry or move", "entries and moves")
    text = f"{how}keeps {kept} without {counted(outcome.lost_bytes, 'byte')}"
    if outcome.left_out:
        text += f" and {counted(outcome.left_out, 'frame')} that cannot be used"
    return text
