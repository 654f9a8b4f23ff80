"""Checking one session: its journal, every payload in it, what lies beside it, and its index.

Read-only through and through: no lock is taken, no byte and no time stamp of the store changes.
Findings say where, what and what next; some are notes that need no action. Each session is
checked by itself and the result is plain data, so that sessions can be checked in processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from treering.engine.environment import iso_time
from treering.engine.errors import (
    LimitExceeded,
    NotAJournal,
    NotFound,
    TreeringError,
    Unsupported,
)
from treering.engine.home import Store, check_session_id
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import (
    FRAME_HEADER_BYTES,
    KNOWN_KINDS,
    Frame,
    Kind,
    misunderstood,
    salt_of,
)
from treering.engine.journal.opening import Hint
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.publish import TEMPORARY_SUFFIX
from treering.engine.journal.reader import FileBytes, Scan
from treering.engine.journal.recovery import Examination, examine
from treering.engine.journal.salvage import Salvage
from treering.engine.journal.shared import SharedFrames
from treering.engine.json_text import BadRecordError, check
from treering.engine.session.entries import decode_header
from treering.tools.fsck_index import IndexCheck, check_index
from treering.tools.output import size_text
from treering.tools.viewing import hint_of, is_alive, name_of, owner_note

FINDINGS_KEPT: Final = 1_000
"""Findings of one kind that are listed one by one; beyond it they are counted."""

_KINDS_OF_CASES: Final = {
    "B": "interior",
    "C": "interior",
    "D": "lost",
    "E": "torn",
    "F": "header",
    "G": "foreign",
}
_NOTES: Final = frozenset(("abandoned", "unproven", "owner", "leftover", "gap", "unfinished"))
"""Kinds that need no action."""

_JSON_KINDS: Final = frozenset((Kind.ENTRY, Kind.REQUEST))


@dataclass
class Finding:
    """One thing that was found."""

    kind: str
    what: str
    offset: int | None = None
    length: int | None = None
    next: str | None = None

    @property
    def needs_action(self) -> bool:
        """Whether it makes the check fail."""
        return self.kind not in _NOTES

    def as_json(self) -> dict[str, Any]:
        """Members in the documented order."""
        return {
            "kind": self.kind,
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
            "session": self.session,
            "path": self.path,
            "case": self.case,
            "ok": self.ok,
            "findings": [finding.as_json() for finding in self.findings],
            "index": asdict(self.index),
        }

    def summary(self) -> str:
        """One line for people."""
        state = "clean" if self.ok else "needs action"
        case = "" if self.case is None else f"case {self.case}, "
        return (
            f"{self.session}: {state} ({case}{self.frames} frames, {self.entries} entries,"
            f" {size_text(self.size)}, index {self.index.state})"
        )


def check_session(path: str, *, with_index: bool) -> Checked:
    """Check one session. Never raises for anything that a file can hold."""
    name = name_of(path)
    store = Store.of_journal(path)
    result = Checked(name, path)
    try:
        _check(result, path, store, with_index=with_index)
    except (TreeringError, OSError) as error:
        _note_failure(result, error)
    except (MemoryError, RecursionError) as error:
        result.could_not_run = True
        result.findings.append(Finding("unreadable", type(error).__name__))
    result.findings += _beside(store, path, name)
    return result


def _check(result: Checked, path: str, store: Store, *, with_index: bool) -> None:
    try:
        check_session_id(result.session)
    except TreeringError as error:
        result.findings.append(Finding("name", error.what, next="rename the file to a session id"))
    # The watermark is taken before the size, so that it cannot know of more than we look at.
    hint = hint_of(store, result.session)
    file = open_regular(LOCAL_DISK, path, write=False)
    try:
        source = FileBytes(file, path, file.stat().size)
        result.size = source.size
        in_use = _in_use(store, path)
        found = _examine(source, hint)
        result.case = found.case
        _take_verdict(result, found, in_use=in_use)
        if found.case == "G" or found.journal_id is None:
            return
        shared = SharedFrames(source, found.journal_id)
        _check_payloads(result, found, shared)
        _take_history(result, found, hint)
        if with_index:
            result.index = check_index(store, result.session, found, in_use=in_use)
            _take_index(result)
    finally:
        file.close()


def _examine(source: FileBytes, hint: Hint | None) -> Examination:
    """Examine without owning: damage is believed only when a second look sees it too."""
    watermark = None if hint is None else hint.watermark
    ids = () if hint is None else (hint.journal_id,)
    found = examine(source, watermark=watermark, known_ids=ids)
    if found.case in ("B", "C", "D"):
        return examine(source, watermark=watermark, known_ids=ids)
    return found


def _note_failure(result: Checked, error: TreeringError | OSError) -> None:
    what = error.what if isinstance(error, TreeringError) else (error.strerror or str(error))
    then = error.next_step if isinstance(error, TreeringError) else None
    kind = "unreadable"
    if isinstance(error, NotAJournal):
        kind, result.case = "foreign", "G"
    elif isinstance(error, Unsupported):
        kind = "unsupported"
    elif isinstance(error, LimitExceeded):
        kind = "limit"
    elif isinstance(error, NotFound):
        kind = "missing"
    result.could_not_run = kind == "unreadable"
    offset = error.offset if isinstance(error, TreeringError) else None
    result.findings.append(Finding(kind, what, offset, None, then))


def _in_use(store: Store, path: str) -> bool:
    note = owner_note(store, path)
    return note is not None and is_alive(note)


def _take_verdict(result: Checked, found: Examination, *, in_use: bool) -> None:
    """The findings that the case itself makes, one for every run of bytes that is lost."""
    report = found.report()
    result.frames = report.frames
    if found.case == "A":
        return
    what = report.verdict + (f" ({report.reason})" if report.reason else "")
    then = report.next_step
    if found.case == "G" or found.journal_id is None:
        if found.case == "G" and report.reason and "JSONL" in report.reason:
            then = f"treering session import {result.path}"
        kind = _KINDS_OF_CASES[found.case]
        result.findings.append(Finding(kind, what, 0, found.source.size, then))
        return
    if found.case == "E" and in_use:
        what = "unfinished or torn: the session is in use"
        result.findings.append(_verdict(found, "unfinished", what, None))
        return
    result.findings.append(_verdict(found, _KINDS_OF_CASES[found.case], what, then))


def _verdict(found: Examination, kind: str, what: str, then: str | None) -> Finding:
    offset = found.place.offset
    beyond = found.beyond[0].offset if found.beyond else found.source.size
    length = max(0, beyond - offset)
    if found.case == "B" and length == 0:
        length = max(0, found.published_length - offset)
    if found.case == "D" and length == 0 and found.watermark is not None:
        length = max(0, found.watermark.end_offset - offset)
    if found.beyond_count:
        what += f"; {found.beyond_count} good frames beyond"
    if found.case == "F" and found.place.sequence and length == 0:
        offset, length = 0, 128
    return Finding(kind, what, offset, length, then)


def _check_payloads(result: Checked, found: Examination, shared: SharedFrames) -> None:
    """Decode every payload, also those that nothing shows yet, and look into each entry."""
    assert found.journal_id is not None
    counter = _Counter(result)
    for frame, body in Scan(found.source, salt_of(found.journal_id)).frames():
        if misunderstood(frame) is not None or frame.kind not in KNOWN_KINDS:
            continue
        try:
            payload = shared.decoder.decode(frame, body[FRAME_HEADER_BYTES:])
            if frame.kind == Kind.DICTIONARY:
                shared.note_dictionary(frame, payload)
        except TreeringError as error:
            counter.add(_at(frame, "undecodable", error.what))
            continue
        if frame.kind == Kind.BLOB:
            shared.note_blob(frame)
        _look_into(frame, payload, result, counter)
    if found.case in ("B", "C", "D", "F"):
        _check_beyond(result, found, counter)
    counter.finish()


def _look_into(frame: Frame, payload: bytes, result: Checked, counter: _Counter) -> None:
    if frame.kind in _JSON_KINDS:
        result.entries += 1
        try:
            check(payload)
        except BadRecordError as error:
            what = f"the entry at sequence {frame.sequence} {error.reason}"
            counter.add(_at(frame, "not-json", what))
    elif frame.kind == Kind.SESSION and decode_header(payload) is None:
        counter.add(_at(frame, "session-header", "the session header is not as documented"))


def _check_beyond(result: Checked, found: Examination, counter: _Counter) -> None:
    """The gaps behind the first one, and what cannot be decoded between them."""
    assert found.journal_id is not None
    salvage = Salvage(found, SharedFrames(found.source, found.journal_id))
    for _ in salvage.items():
        pass
    for gap in salvage.gaps[1:]:
        lost = f"frame {gap.first}" if gap.last == gap.first else f"frames from {gap.first}"
        if gap.last is not None and gap.last > gap.first:
            lost += f" to {gap.last}"
        what = f"more bytes that do not verify ({lost})"
        counter.add(Finding("interior", what, gap.offset, gap.bytes))
    for sequence in salvage.undecodable:
        if sequence >= found.place.sequence:
            what = f"frame {sequence} behind the damage cannot be decoded"
            counter.add(Finding("undecodable", what))
    if salvage.unknown:
        counter.add(
            Finding(
                "activation-unknown",
                f"{len(salvage.unknown)} staged frames whose activation may be lost",
                next=f"treering repair {result.session} --keep-unknown shows them",
            )
        )


def _at(frame: Frame, kind: str, what: str) -> Finding:
    return Finding(kind, what, frame.offset, frame.end - frame.offset)


class _Counter:
    """Adds findings, each kind up to a bound, and says how many more there were."""

    def __init__(self, result: Checked) -> None:
        self._result = result
        self._counts: dict[str, int] = {}

    def add(self, finding: Finding) -> None:
        count = self._counts[finding.kind] = self._counts.get(finding.kind, 0) + 1
        if count <= FINDINGS_KEPT:
            self._result.findings.append(finding)

    def finish(self) -> None:
        for kind, count in self._counts.items():
            if count > FINDINGS_KEPT:
                more = count - FINDINGS_KEPT
                self._result.findings.append(Finding(kind, f"{more} more of this kind"))


def _take_history(result: Checked, found: Examination, hint: Hint | None) -> None:
    """What the history of verified frames holds besides entries."""
    assert found.walk is not None
    history = found.walk.history
    for problem in history.problems:
        why = f"frame {problem.sequence} is not understood: {problem.why}; writing is refused"
        then = "open it with a newer release, or read-only"
        result.findings.append(Finding("not-understood", why, problem.offset, None, then))
    if history.problem_count > len(history.problems):
        more = history.problem_count - len(history.problems)
        result.findings.append(Finding("not-understood", f"{more} more of this kind"))
    if history.abandoned_count:
        first = history.abandoned[0]
        result.entries = max(0, result.entries - history.abandoned_count)
        count = history.abandoned_count
        what = f"{count} staged frames that were never activated, from frame {first}"
        result.findings.append(Finding("abandoned", what))
    for frame, gap in history.gaps:
        what = f"an earlier repair could not keep {gap.bytes} bytes at {gap.offset} of the old file"
        result.findings.append(_at(frame, "gap", what))
    last = history.last
    if found.case == "A" and last is not None and last.kind != Kind.EPOCH_CLOSE:
        unproven = last.sequence + 1 - found.proven_below
        if unproven > 0:
            what = f"the last {unproven} frames are not proven durable (no clean close followed)"
            start = None if found.proven is None else found.proven.end
            result.findings.append(Finding("unproven", what, start))
    ours = hint is not None and hint.journal_id == found.journal_id
    if ours and hint is not None and hint.watermark is not None and found.watermark is None:
        result.findings.append(Finding("leftover", "a watermark that does not verify; ignored"))


def _take_index(result: Checked) -> None:
    if result.index.state in ("differs", "unusable"):
        shown = "; ".join(result.index.differences[:3])
        more = len(result.index.differences) - 3
        what = f"the index {result.index.state}: {shown}"
        if more > 0:
            what += f" and {more} more"
        result.findings.append(Finding("index", what, next=f"treering reindex {result.session}"))


def _beside(store: Store, path: str, name: str) -> Iterator[Finding]:
    """The owner's note, and temporary files of the session."""
    note = owner_note(store, path)
    if note is not None:
        who = f"process {note.pid} on {note.host} since {_time(note.since)}"
        gone = f"a note says {who}; it is not running here"
        yield Finding("owner", f"in use by {who}" if is_alive(note) else gone)
    for temporary in temporaries(store):
        if temporary[0] == name:
            yield leftover(temporary[1])


def _time(ms: int) -> str:
    try:
        return iso_time(ms)
    except (ValueError, OverflowError, OSError):
        return str(ms)


def leftover(path: str) -> Finding:
    """The finding about a temporary journal."""
    what = f"{os.path.basename(path)}: an unfinished journal, of now or of an interrupted command"
    return Finding("leftover", what, next="nothing: it is swept an hour later")


def temporaries(store: Store) -> list[tuple[str, str]]:
    """(session, path) of every temporary journal in the store."""
    try:
        names = os.listdir(store.sessions)
    except OSError:
        return []
    found = []
    for name in sorted(names):
        if name.startswith(".") and name.endswith(TEMPORARY_SUFFIX):
            session = name[1 : -len(TEMPORARY_SUFFIX)].rpartition(".")[0]
            found.append((session, os.path.join(store.sessions, name)))
    return found
