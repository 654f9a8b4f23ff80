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
from treering.engine.journal.disk import Disk
from treering.engine.journal.format import (
    FLAG_QUALIFICATION_MASK,
    FLAG_RETAINED,
    Kind,
)
from treering.engine.journal.history import Walk
from treering.engine.journal.ownership import Ownership, open_regular
from treering.engine.journal.publish import NewJournal
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import Examination, Report, examine
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
    done: bool
    kept: int = 0
    """Entries, requests and leaf moves that the new journal holds."""
    gaps: list[Lost] = field(default_factory=list)
    activation_unknown: list[int] = field(default_factory=list)
    batch_survivors: list[int] = field(default_factory=list)
    undecodable: list[int] = field(default_factory=list)
    misunderstood: list[int] = field(default_factory=list)
    header_made: bool = False
    kept_aside: str | None = None
    """Where the old journal is now."""
    report: Report | None = None


def repair(
    disk: Disk,
    path: str,
    *,
    store: home.Store,
    accept_loss: bool = False,
    keep_unknown: bool = False,
    dry_run: bool = False,
    hint: Callable[[], tuple[bytes | None, list[bytes]]] | None = None,
    known_ids: tuple[bytes, ...] = (),
) -> RepairResult:
    """Repair a damaged journal (cases B, C, D, F); the others need none.

    Args:
        disk: the file system.
        path: the journal.
        store: where it lies.
        accept_loss: keep only the frames before the damage (needed for case D).
        keep_unknown: show staged frames whose activation may lie in a gap.
        dry_run: only say what would be done.
        hint: (watermark, journal ids) that an index remembers, asked once the journal is owned.
        known_ids: journal ids that the caller names, for a damaged header.

    Raises:
        Owned: the session is in use.
        Conflict: case D without ``accept_loss``: repairing would forget acknowledged data.
        NotAJournal, Damaged: nothing can be brought back.
    """
    session_id = home.session_id_of(path)
    # A dry run only looks: no lock, no note, and a session in use may be looked at.
    owner = None if dry_run else Ownership.acquire(disk, path, store.owner_note(session_id))
    file = open_regular(disk, path, write=False) if owner is None else owner.file
    try:
        try:
            size = file.stat().size
        except OSError as error:
            raise from_os_error(error, "look at the journal", path) from error
        source = FileBytes(file, path, size)
        watermark, ids = hint() if hint is not None else (None, [])
        found = examine(source, watermark=watermark, known_ids=[*ids, *known_ids])
        result = RepairResult(path, found.case, found.report().verdict, done=False)
        result.report = found.report()
        if found.case in ("A", "E"):
            return result
        if found.case == "G" or found.journal_id is None:
            raise found.refusal()
        if found.case == "D" and not accept_loss:
            raise Conflict(
                "acknowledged data is gone; a new journal from what is left must be asked for",
                path=path,
                next_step=f"treering repair {session_id} --accept-loss",
            )
        shared = SharedFrames(source, found.journal_id)
        contents = _Contents(
            found, shared, result, accept_loss=accept_loss, keep_unknown=keep_unknown
        )
        if owner is None:
            for _ in contents.records():
                pass
            contents.finish()
            return result
        _rebuild(owner, store, contents, result)
        return result
    finally:
        if owner is None:
            file.close()
        else:
            owner.release()


def _rebuild(
    owner: Ownership, store: home.Store, contents: _Contents, result: RepairResult
) -> None:
    disk, path = owner.disk, owner.path
    session_id = home.session_id_of(path)
    # Two passes: SESSION and PROVENANCE come first in a new journal, wherever they were found.
    for _ in contents.records():
        pass
    head = contents.head(session_id)
    again = contents.again()
    new = NewJournal(disk, os.path.dirname(path), session_id, purpose="repair", top=store.top)
    try:
        new.add(head)
        new.add(again.records())
        again.finish()
        aside = _free_name(disk, store.quarantine_folder(session_id))
        owner.check_name()
        taken, _, aside = new.replace(path, aside)
    except BaseException:
        new.abandon()
        raise
    result.kept_aside = aside
    result.done = True
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
    """The records of the new journal, in order."""

    def __init__(
        self,
        found: Examination,
        shared: SharedFrames,
        result: RepairResult,
        *,
        accept_loss: bool,
        keep_unknown: bool,
    ) -> None:
        self._found = found
        self._shared = shared
        self._result = result
        self._accept_loss = accept_loss
        self._keep_unknown = keep_unknown
        self._salvage: Salvage | None = None
        self._session: bytes | None = None
        self._provenance: bytes | None = None
        self._kept = 0
        self._retained = False
        self._gaps: list[Lost] = []

    def again(self) -> _Contents:
        """The same for a second pass."""
        return _Contents(
            self._found,
            self._shared,
            self._result,
            accept_loss=self._accept_loss,
            keep_unknown=self._keep_unknown,
        )

    def head(self, session_id: str) -> list[Record]:
        """SESSION, made from the file name when it is lost, and PROVENANCE."""
        session = self._session
        if session is None:
            self._result.header_made = True
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
        salvage = self._salvage
        if self._gaps or self._result.undecodable or salvage is None:
            return True
        lost = (salvage.unknown, salvage.survivors, salvage.misunderstood, salvage.undecodable)
        return any(lost)

    def records(self) -> Iterator[Record]:
        """Everything behind the head."""
        yield from self._prefix() if self._accept_loss else self._all()

    def finish(self) -> None:
        """Note in the result what the pass found."""
        result = self._result
        result.kept, result.gaps = self._kept, self._gaps
        if self._salvage is not None:
            result.activation_unknown = self._salvage.unknown
            result.batch_survivors = self._salvage.survivors
            result.undecodable = self._salvage.undecodable
            result.misunderstood = self._salvage.misunderstood

    def _all(self) -> Iterator[Record]:
        salvage = Salvage(self._found, self._shared, keep_unknown=self._keep_unknown)
        self._salvage = salvage
        for item in salvage.items():
            if isinstance(item, Lost):
                yield self._gap(item)
            else:
                frame, payload = item
                self._kept += 1
                self._retained = self._retained or frame.retained
                yield Record(frame.kind, payload, _kept_flags(frame.flags))
        self._session, self._provenance = salvage.session, salvage.provenance

    def _prefix(self) -> Iterator[Record]:
        found = self._found
        assert found.journal_id is not None
        walk = Walk(found.source, found.journal_id, shared=self._shared)
        for frame, stored in walk.visible():
            try:
                payload = self._shared.decoder.decode(frame, stored)
            except Undecodable:
                self._result.undecodable.append(frame.sequence)
                continue
            self._kept += 1
            self._retained = self._retained or frame.retained
            yield Record(frame.kind, payload, _kept_flags(frame.flags))
        history = walk.history
        if history.session is not None:
            self._session = self._shared.payload_of(history.session)
        if history.provenance is not None:
            self._provenance = self._shared.payload_of(history.provenance)
        place = found.place
        lost = found.source.size - place.offset
        yield self._gap(Lost(place.offset, max(lost, 0), place.sequence, None))

    def _gap(self, lost: Lost) -> Record:
        self._gaps.append(lost)
        payload = control.encode(control.Gap(lost.offset, lost.bytes, lost.first, lost.last))
        return Record(Kind.GAP, payload)


def _kept_flags(flags: int) -> int:
    """Retention and qualification stay with their entry; STAGED does not."""
    return flags & (FLAG_RETAINED | FLAG_QUALIFICATION_MASK)
