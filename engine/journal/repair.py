"""Building a new journal out of what a damaged one still holds. The old file is kept.

The new journal has a new id, GAP frames where something is missing, and no staged frames. It is
built and synced under a temporary name while the old file is owned; then the old one gets a
second name in quarantine, that is synced, and only then the new one takes its place. A crash at
any point leaves the old journal or the new one under the name, and the old bytes in both cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from treering.engine import environment, home
from treering.engine.errors import Conflict, Undecodable, from_os_error
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import Disk, File
from treering.engine.journal.format import (
    FLAG_QUALIFICATION_MASK,
    FLAG_RETAINED,
    Frame,
    Kind,
)
from treering.engine.journal.history import Walk
from treering.engine.journal.opening import refuse_misunderstood
from treering.engine.journal.ownership import Ownership, open_regular
from treering.engine.journal.publish import NewJournal
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import Examination, Report, examine
from treering.engine.journal.repair_modes import (
    REPAIR_MODES,
    Action,
    Outcome,
    RepairMode,
    action_of,
    chosen,
)
from treering.engine.journal.salvage import Lost, Salvage
from treering.engine.journal.shared import SharedFrames
from treering.engine.json_text import decode_or_none

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass
class RepairResult:
    """What a repair did, or would do."""

    path: str
    case: str
    verdict: str
    mode: RepairMode
    action: Action
    """What the mode does here: nothing, cut (a torn tail) or rebuild."""
    done: bool
    kept: int = 0
    """Entries, requests and leaf moves that it holds afterwards; 0 when it stays as it is."""
    gaps: list[Lost] = field(default_factory=list)
    """Bytes of the old file that were not carried over."""
    activation_unknown: list[int] = field(default_factory=list)
    batch_survivors: list[int] = field(default_factory=list)
    undecodable: list[int] = field(default_factory=list)
    misunderstood: list[int] = field(default_factory=list)
    header_made: bool = False
    kept_aside: str | None = None
    """Where the old journal, or the tail that was cut off, is now."""
    report: Report | None = None

    @property
    def left_out(self) -> int:
        """Frames that verify and are not carried over."""
        return len(self.undecodable) + len(self.misunderstood) + len(self.activation_unknown)


def repair(
    disk: Disk,
    path: str,
    *,
    store: home.Store,
    mode: RepairMode | None = None,
    keep_unknown: bool = False,
    dry_run: bool = False,
    hint: Callable[[File], tuple[bytes | None, list[bytes]]] | None = None,
    known_ids: tuple[bytes, ...] = (),
) -> RepairResult:
    """Repair a damaged journal; cutting a torn tail is left to an open for writing.

    Args:
        disk: the file system.
        path: the journal.
        store: where it lies.
        mode: see :mod:`~treering.engine.journal.repair_modes`; None does what needs no decision.
        keep_unknown: show staged frames whose activation may lie in a gap.
        dry_run: only say what would be done.
        hint: (watermark, journal ids) that an index remembers, asked once the journal is owned.
            It is given the journal.
        known_ids: journal ids that the caller names, for a damaged header.

    Raises:
        Owned: the session is in use.
        Conflict: case D without a mode: repairing would forget acknowledged data.
        NotAJournal, Damaged, AcknowledgedDataLost: nothing can be brought back, or the mode
            refuses this case.
        Unsupported: it holds frames of a newer release.
    """
    session_id = home.session_id_of(path)
    # A dry run only looks: no lock, no note, and a session in use may be looked at.
    owner = None if dry_run else Ownership.acquire(disk, path, store.owner_note(session_id))
    file = open_regular(disk, path, write=False) if owner is None else owner.file
    try:
        # Before the size: a dry run may stand beside an owner, who appends in between.
        watermark, ids = hint(file) if hint is not None else (None, [])
        try:
            size = file.stat().size
        except OSError as error:
            raise from_os_error(error, "look at the journal", path) from error
        source = FileBytes(file, path, size)
        found = examine(source, watermark=watermark, known_ids=[*ids, *known_ids])
        action = _decide(found, mode)
        contents = _Contents(found, chosen(found, mode), action, keep_unknown=keep_unknown)
        if action == "rebuild" and owner is not None:
            _rebuild(owner, store, contents)
        elif action != "nothing":
            contents.look_through()
        return contents.result
    finally:
        if owner is None:
            file.close()
        else:
            owner.release()


def outcomes(found: Examination) -> list[Outcome]:
    """What each mode would do to an examined journal. Changes nothing."""
    made = []
    for mode in REPAIR_MODES:
        action = action_of(found, mode)
        if action in ("nothing", "refuse"):
            made.append(Outcome(mode, action))
            continue
        contents = _Contents(found, mode, action)
        contents.look_through()
        result = contents.result
        lost = sum(gap.bytes for gap in result.gaps)
        made.append(Outcome(mode, action, result.kept, lost, result.left_out))
    return made


def _decide(found: Examination, mode: RepairMode | None) -> Action:
    """What is to be done.

    Raises:
        TreeringError: nothing, although something is wrong.
    """
    action = action_of(found, chosen(found, mode))
    if action == "refuse" and found.case in ("A", "E") and mode != "strict":
        refuse_misunderstood(found)
    if action == "refuse":
        raise found.refusal()
    if found.case == "D" and mode is None:
        raise Conflict(
            "acknowledged data is gone: look for a newer copy first; a new journal from what is"
            " left here is made only when it is asked for",
            path=found.source.path,
            next_step=f"next: {found.report().next_step}",
        )
    return action


def _rebuild(owner: Ownership, store: home.Store, contents: _Contents) -> None:
    disk, path = owner.disk, owner.path
    session_id = home.session_id_of(path)
    try:
        owner.file.fsync()  # what is kept aside may never have been synced: a writer had died
    except OSError as error:
        raise from_os_error(error, "sync the journal", path) from error
    # Two passes: SESSION and PROVENANCE come first in a new journal, wherever they were found.
    contents.look_through()
    head = contents.head(session_id)
    new = NewJournal(disk, os.path.dirname(path), session_id, purpose="repair", top=store.top)
    try:
        new.add(head)
        new.add(contents.records())
        aside = _free_name(disk, store.quarantine_folder(session_id))
        owner.check_name()
        taken, _, aside = new.replace(path, aside)
    except BaseException:
        new.abandon()
        raise
    contents.result.kept_aside = aside
    contents.result.done = True
    taken.release()


def _free_name(disk: Disk, folder: str) -> str:
    number = 0
    while True:
        name = os.path.join(folder, f"before-repair-{environment.now_ms()}-{number}.jsonl")
        try:
            disk.stat(name)
        except FileNotFoundError:
            return name
        except OSError as error:
            raise from_os_error(error, "look into the quarantine", folder) from error
        number += 1


class _Contents:
    """The records of the new journal, in order. Every pass finds the same."""

    def __init__(
        self, found: Examination, mode: RepairMode, action: Action, *, keep_unknown: bool = False
    ) -> None:
        assert found.journal_id is not None
        report = found.report()
        self.result = RepairResult(
            report.path, found.case, report.verdict, mode, action, done=False
        )
        self.result.report = report
        self._found = found
        self._shared = SharedFrames(found.source, found.journal_id)
        self._keep_unknown = keep_unknown
        self._salvage: Salvage | None = None
        self._session: bytes | None = None
        self._provenance: bytes | None = None
        self._retained = False

    def look_through(self) -> None:
        """Pass over everything and note in the result what is there."""
        for _ in self.records():
            pass
        self.result.header_made = self._session is None and self.result.action == "rebuild"

    def head(self, session_id: str) -> list[Record]:
        """SESSION, made from the file name when it is lost, and PROVENANCE."""
        session = self._session
        if session is None:
            session = msgspec.json.encode(
                {
                    "type": "session",
                    "version": 3,
                    "id": session_id,
                    "timestamp": environment.iso_time(environment.now_ms()),
                    "cwd": "",
                    "madeByRepair": True,
                }
            )
        head = [Record(Kind.SESSION, session)]
        provenance = self._provenance_now()
        if provenance is not None:
            head.append(Record(Kind.PROVENANCE, provenance))
        return head

    def _provenance_now(self) -> bytes | None:
        """The source's facts, without claims that no longer hold when entries are lost."""
        if self._provenance is None:
            return None if not self._retained else b'{"format":"lost","byte_exact":false}\0'
        if not self._anything_lost():
            return self._provenance
        facts, separator, header = self._provenance.partition(b"\0")
        members = decode_or_none(_members, facts) or {}
        members.pop("blank_lines", None)
        members["byte_exact"] = msgspec.Raw(b"false")
        members["repaired"] = msgspec.Raw(b"true")
        return msgspec.json.encode(members) + separator + header

    def _anything_lost(self) -> bool:
        if self._salvage is None or self.result.gaps or self.result.left_out:
            return True
        return bool(self.result.batch_survivors)

    def records(self) -> Iterator[Record]:
        """Everything behind the head; afterwards the result says what it was."""
        result = self.result
        result.kept, result.gaps, result.undecodable = 0, [], []
        yield from self._all() if result.mode == "salvage" else self._prefix()

    def _all(self) -> Iterator[Record]:
        salvage = Salvage(self._found, self._shared, keep_unknown=self._keep_unknown)
        self._salvage = salvage
        for item in salvage.items():
            yield from self._without_payload(salvage.undecodable)
            if isinstance(item, Lost):
                yield self._gap(item)
            else:
                frame, payload = item
                yield self._keep(frame, payload)
        yield from self._without_payload(salvage.undecodable)
        self._session, self._provenance = salvage.session, salvage.provenance
        result = self.result
        result.activation_unknown = [frame.sequence for frame in salvage.unknown]
        result.batch_survivors = salvage.survivors
        result.misunderstood = salvage.misunderstood

    def _without_payload(self, frames: list[Frame]) -> Iterator[Record]:
        """A GAP for each frame whose payload is lost, the first time that it is seen."""
        for frame in frames[len(self.result.undecodable) :]:
            self.result.undecodable.append(frame.sequence)
            length = frame.end - frame.offset
            yield _gap_record(Lost(frame.offset, length, frame.sequence, frame.sequence))

    def _prefix(self) -> Iterator[Record]:
        found = self._found
        assert found.journal_id is not None
        walk = Walk(found.source, found.journal_id, shared=self._shared)
        undecodable: list[Frame] = []
        for frame, stored in walk.visible():
            try:
                payload = self._shared.decoder.decode(frame, stored)
            except Undecodable:
                undecodable.append(frame)
                yield from self._without_payload(undecodable)
                continue
            yield self._keep(frame, payload)
        history = walk.history
        self.result.misunderstood = sorted(
            [*(problem.sequence for problem in history.problems), *history.skipped]
        )
        self._session = self._payload_or_none(history.session)
        self._provenance = self._payload_or_none(history.provenance)
        place = found.place
        self.result.activation_unknown = list(history.open_run)
        lost = max(found.source.size - place.offset, 0)
        yield self._gap(Lost(place.offset, lost, place.sequence, None))

    def _keep(self, frame: Frame, payload: bytes) -> Record:
        self.result.kept += 1
        self._retained = self._retained or frame.retained
        return Record(frame.kind, payload, _kept_flags(frame.flags))

    def _payload_or_none(self, frame: Frame | None) -> bytes | None:
        try:
            return None if frame is None else self._shared.payload_of(frame)
        except Undecodable:
            return None

    def _gap(self, lost: Lost) -> Record:
        self.result.gaps.append(lost)
        return _gap_record(lost)


def _gap_record(lost: Lost) -> Record:
    payload = control.encode(control.Gap(lost.offset, lost.bytes, lost.first, lost.last))
    return Record(Kind.GAP, payload)


def _kept_flags(flags: int) -> int:
    """Retention and qualification stay with their entry; STAGED does not."""
    return flags & (FLAG_RETAINED | FLAG_QUALIFICATION_MASK)
