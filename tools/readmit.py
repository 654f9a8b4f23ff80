"""`repair --readmit`: whole frames among quarantined bytes, appended again as one batch.

A torn tail may have held entries that were acknowledged, as far as anyone can know. Frames there
that verify under this journal's salt are what was written; those that show entries which the
session lacks are appended again with new sequences. A batch comes back whole or not at all: all
of its STAGED frames, with their EPOCH_ACTIVATE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from treering.engine.errors import (
    Conflict,
    StorageError,
    TreeringError,
    Undecodable,
    from_os_error,
)
from treering.engine.home import Store, session_id_of
from treering.engine.journal.admissible import Record
from treering.engine.journal.control import decode_activate
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import (
    FLAG_QUALIFICATION_MASK,
    FLAG_RETAINED,
    FRAME_HEADER_BYTES,
    Frame,
    Kind,
    misunderstood,
    salt_of,
)
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.payload import PayloadDecoder, dictionary_id
from treering.engine.journal.reader import FileBytes, Scan, frame_at, search
from treering.engine.journal.shared import SharedFrames
from treering.engine.session.admission import admit
from treering.engine.session.facts import facts_of
from treering.engine.session.readmission import readmit as append_again
from treering.engine.session.reads import Reads
from treering.engine.session.session import Session

_NAME: Final = re.compile(r"(\d+)-[0-9a-f]{16}(?:\.\d+)?\.tail\Z")
_SHOWN: Final = frozenset((Kind.ENTRY, Kind.REQUEST))


class Candidate(NamedTuple):
    """An entry among quarantined bytes."""

    frame: Frame
    payload: bytes
    batch: tuple[str, int] | None
    """The tail and sequence of the EPOCH_ACTIVATE that made it visible."""
    why: str | None = None
    """Why its payload cannot be had."""


@dataclass
class Readmission:
    """What was found, and what came of it."""

    files: list[str] = field(default_factory=list)
    frames: int = 0
    readmitted: list[str] = field(default_factory=list)
    """Ids of entries that were (or would be) appended again."""
    present: int = 0
    left: list[str] = field(default_factory=list)
    """Why something stays in quarantine, one line each."""
    leaf_kept: bool = False
    """Whether the position stayed where it was, since the session had gone on elsewhere."""


class _References(msgspec.Struct, rename="camel"):
    target_id: str | None = None


def plan(session: Reads, store: Store) -> tuple[Readmission, list[Record]]:
    """What a readmission would do, and what it would append. Writes nothing."""
    result = Readmission()
    wanted: list[Candidate] = []
    for path in _tails(store, session_id_of(session.path)):
        result.files.append(path)
        wanted += _candidates(session, path, result)
    wanted.sort(key=lambda candidate: (candidate.frame.epoch, candidate.frame.sequence))
    return result, _choose(session, wanted, result)


def readmit(session: Session) -> Readmission:
    """Append again what quarantined bytes hold and the session lacks; all of it or nothing.

    Raises:
        TreeringError: as for a batch; then nothing was appended, unless the error says so.
    """
    result, records = plan(session, session.store)
    if not records:
        return result
    before = session.leaf_id
    append_again(session, records)
    try:
        if before is not None and before != session.leaf_id and not _is_above(session, before):
            session.branch_to(before)
            result.leaf_kept = True
    except TreeringError as error:
        # Two facts: whoever reads of a failure alone would believe that nothing was appended.
        error.what = f"the entries are appended again, but not the position kept: {error.what}"
        raise
    return result


def _tails(store: Store, session_id: str) -> list[str]:
    folder = store.quarantine_folder(session_id)
    try:
        names = sorted(name for name in os.listdir(folder) if _NAME.match(name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, "look into the quarantine", folder) from error
    return [os.path.join(folder, name) for name in names]


def _candidates(session: Reads, path: str, result: Readmission) -> list[Candidate]:
    file = open_regular(LOCAL_DISK, path, write=False)
    try:
        source = FileBytes(file, path, file.stat().size)
        tail = _Tail(session, source)
        result.frames += len(tail.frames)
        found = []
        for frame, batch in tail.shown(result):
            named = None if batch is None else (path, batch)
            try:
                found.append(Candidate(frame, tail.payload_of(frame), named))
            except StorageError:
                raise  # a refused read says nothing about the entry: nothing is left out for it
            except TreeringError as error:
                found.append(Candidate(frame, b"", named, error.what))
        return found
    finally:
        file.close()


class _Tail:
    """The frames of one quarantined tail, and what they need of the journal they were cut from."""

    def __init__(self, session: Reads, source: FileBytes) -> None:
        match = _NAME.match(os.path.basename(source.path))
        assert match is not None
        self._cut_at = int(match[1])
        """Where the tail began in the journal: what lies below is common to both."""
        self._session = session
        self._source = source
        self._salt = salt_of(session.journal_id)
        self._shared = SharedFrames(session.source, session.journal_id)
        self.frames = list(search(source, self._salt, 0, 0))
        self._by_sequence = {frame.sequence: frame for frame in self.frames}
        self._decoder = PayloadDecoder(self._dictionary, self._blob)
        self._from_journal: set[int] = set()

    def shown(self, result: Readmission) -> Iterator[tuple[Frame, int | None]]:
        """Entries that were visible, each with the EPOCH_ACTIVATE that made it so, if one did."""
        staged = {frame.sequence for frame in self.frames if frame.staged}
        for frame in self.frames:
            why = misunderstood(frame)
            if why is not None:
                result.left.append(f"frame {frame.sequence}: not understood: {why}")
                staged.discard(frame.sequence)
            elif frame.kind == Kind.EPOCH_ACTIVATE:
                batch = self._batch(frame, result)
                staged.difference_update(member.sequence for member in batch)
                yield from ((each, frame.sequence) for each in batch if each.kind in _SHOWN)
            elif frame.kind in _SHOWN and not frame.staged:
                yield frame, None
        if staged:
            result.left.append(
                f"{len(staged)} staged frames whose batch is not whole, or was never activated"
            )

    def _batch(self, activate: Frame, result: Readmission) -> list[Frame]:
        """The staged frames that an EPOCH_ACTIVATE names: all of them, or none."""
        try:
            named = decode_activate(self.payload_of(activate))
        except StorageError:
            raise
        except TreeringError:
            return []
        if named is None or not named.first <= named.last == activate.sequence - 1:
            return []
        count = named.last - named.first + 1
        below = self._staged_below(named.first) if named.first not in self._by_sequence else {}
        here = {
            frame.sequence: frame
            for frame in self.frames
            if frame.staged and named.first <= frame.sequence <= named.last
        }
        members = below | here
        if len(members) < count or members[named.last].revision.hex() != named.revision:
            lost = count - len(members)
            result.left.append(f"a batch of {count} frames, of which {lost} are lost")
            return []
        self._from_journal.update(below)
        return [members[sequence] for sequence in sorted(members)]

    def _staged_below(self, first: int) -> dict[int, Frame]:
        """Frames of a batch that stayed in the journal when the rest of it was cut off."""
        found: dict[int, Frame] = {}
        for frame, _ in Scan(self._session.source, self._salt).frames():
            if frame.offset >= self._cut_at:
                break
            if frame.staged and frame.sequence >= first:
                found[frame.sequence] = frame
        return found

    def payload_of(self, frame: Frame) -> bytes:
        """The decoded payload.

        Raises:
            Undecodable: it cannot be produced.
        """
        source = self._session.source if frame.sequence in self._from_journal else self._source
        found = frame_at(source, self._salt, frame.offset)
        if found is None:
            raise Undecodable(f"frame {frame.sequence} does not verify any more")
        return self._decoder.decode(frame, found[1][FRAME_HEADER_BYTES:])

    def _blob(self, sequence: int, before: int) -> bytes:
        own = self._by_sequence.get(sequence)
        if own is not None and own.kind == Kind.BLOB and sequence < before:
            return self.payload_of(own)
        return self._common(Kind.BLOB, sequence)

    def _dictionary(self, number: int) -> bytes:
        for frame in self.frames:
            if frame.kind == Kind.DICTIONARY:
                payload = self.payload_of(frame)
                if dictionary_id(payload) == number:
                    return payload
        return self._common(Kind.DICTIONARY, number)

    def _common(self, kind: Kind, number: int) -> bytes:
        """A BLOB (by sequence) or DICTIONARY (by id) of the part that was not cut."""
        for frame, _ in Scan(self._session.source, self._salt).frames():
            if frame.offset >= self._cut_at:
                break
            if frame.kind != kind or (kind == Kind.BLOB and frame.sequence != number):
                continue
            payload = self._shared.payload_of(frame)
            if kind == Kind.BLOB or dictionary_id(payload) == number:
                return payload
        raise Undecodable(f"{kind.name} {number} is not there")


def _choose(session: Reads, wanted: list[Candidate], result: Readmission) -> list[Record]:
    """Those that the session lacks and that can be appended, in order; batches whole or not."""
    chosen: dict[str, Record] = {}
    # Not only neighbours: of a batch that lies in two tails the entries alternate.
    groups: dict[tuple[str, int] | int, list[Candidate]] = {}
    for number, candidate in enumerate(wanted):
        groups.setdefault(candidate.batch or number, []).append(candidate)
    for group in groups.values():
        together: dict[str, Record] = {}
        hindered = False
        for candidate in group:
            entry_id = facts_of(candidate.payload).id
            why = _hindrance(session, candidate, chosen.keys() | together.keys())
            if why is not None:
                result.left.append(f"frame {candidate.frame.sequence} ({entry_id}): {why}")
                hindered = True
                continue
            assert entry_id is not None
            if session.has(entry_id):
                result.present += 1
            elif entry_id not in chosen:  # else it lies in two quarantined tails
                flags = candidate.frame.flags & (FLAG_RETAINED | FLAG_QUALIFICATION_MASK)
                together[entry_id] = Record(candidate.frame.kind, candidate.payload, flags)
        if not hindered:
            chosen |= together
        elif together:
            result.left.append(f"{len(together)} entries of the same batch")
    result.readmitted = list(chosen)
    return list(chosen.values())


def _hindrance(session: Reads, candidate: Candidate, chosen: Container[str]) -> str | None:
    """Why an entry cannot be appended again; None when it can, or is there already."""
    if candidate.why is not None:
        return candidate.why
    try:
        admitted = admit(candidate.payload, verified=True)
    except TreeringError as error:
        return error.what
    if admitted.id is not None and session.has(admitted.id):
        same = session.read(admitted.id).raw == candidate.payload
        return None if same else "its id is taken by another entry"
    if admitted.is_request != (candidate.frame.kind == Kind.REQUEST):
        return "its kind of frame would change"
    needed = [admitted.parent]
    if admitted.references is not None:
        needed.append(admitted.references.target_id)
    for entry_id in needed:
        if entry_id is not None and entry_id not in chosen and not session.has(entry_id):
            return f"it names the entry {entry_id!r}, which is not there"
    return None


def _is_above(session: Session, entry_id: str) -> bool:
    leaf_id = session.leaf_id
    if leaf_id is None:
        return False
    upper = session.ask(lambda index: index.by_id(entry_id))
    lower = session.ask(lambda index: index.by_id(leaf_id))
    if upper is None or lower is None:
        raise Conflict("the position of the session cannot be found", path=session.path)
    return session.ask(lambda index: index.is_ancestor(upper.sequence, lower.sequence))
