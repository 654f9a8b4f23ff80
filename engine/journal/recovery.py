"""Deciding what a journal's bytes mean, and what may be done about it.

======  =================================================  ========================  ============
case    finding                                            verdict                   for writing
======  =================================================  ========================  ============
A       end of file exactly after a frame                  clean                     go on
B       bad frame or end below ``published length``        interior damage           refuse
C       a later frame proves that the bad one was durable  interior damage           refuse
D       a watermark knows of more, or of other bytes       acknowledged data lost    refuse
E       none of these                                      torn tail                 cut, go on
F       no usable file header, but an id (or the magic)    damaged header            refuse
G       nothing of a journal                               not a journal             refuse
======  =================================================  ========================  ============

Tested in the order G, F, B, C, D, A, E. Only case E is ever cut, after its bytes are in
quarantine. This module decides; :mod:`~treering.engine.journal.opening` acts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from treering.engine import commands
from treering.engine.errors import AcknowledgedDataLost, Damaged, NotAJournal, TreeringError
from treering.engine.journal.control import journal_id_in
from treering.engine.journal.format import (
    ENVELOPE_BYTES,
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FRAME_HEADER_BYTES,
    FileHeader,
    Frame,
    Kind,
    Watermark,
    decode_file_header,
    decode_watermark,
    salt_of,
    unpack_frame_header,
)
from treering.engine.journal.history import Problem, Walk
from treering.engine.journal.reader import (
    Bytes,
    HashBudget,
    Place,
    Stop,
    magic_offsets,
    search,
    whole_frame,
)
from treering.engine.limits import CONTROL_PAYLOAD_BYTES_MAX

Case = Literal["A", "B", "C", "D", "E", "F", "G"]

BEYOND_KEPT: Final = 10_000
"""Frames behind damage that are listed one by one; beyond it they are only counted."""

_CANDIDATE_IDS_MAX: Final = 16

VERDICTS: Final[dict[str, str]] = {
    "A": "clean",
    "B": "interior damage: bytes that were durable when the journal was published do not verify",
    "C": "interior damage: a later frame proves that the bad bytes were durable",
    "D": "acknowledged data lost: a watermark knows more than the journal holds",
    "E": "torn tail: bytes that nothing proves to have been acknowledged",
    "F": "damaged file header",
    "G": "not a journal",
}


@dataclass
class Report:
    """What an opener or fsck found, for people and programs."""

    path: str
    case: Case
    size: int
    verdict: str
    reason: str | None = None
    journal_id: str | None = None
    bad_offset: int | None = None
    expected_sequence: int | None = None
    frames: int = 0
    proven_below: int = 0
    frames_beyond: int = 0
    abandoned: list[int] = field(default_factory=list)
    abandoned_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    quarantine: str | None = None
    quarantined_bytes: int = 0
    quarantined_frames: int = 0

    @property
    def next_step(self) -> str | None:
        """The next command, ready for a shell; None for a clean journal and what is none."""
        if self.case in ("A", "G"):
            return None
        if self.journal_id is None:
            return commands.aside(self.path)
        if self.case == "E" and (self.problem_count or self.frames < 2):
            # A newer release knows what they are: no repair may cut this, but it can be looked at.
            return commands.command("dump", commands.selector(self.path))
        if self.case == "E":
            return commands.repairing(self.path, "--mode", "tail")
        if self.case != "D":
            return commands.repairing(self.path)
        if self.frames_beyond:
            return commands.repairing(self.path, "--mode", "salvage")
        return commands.repairing(self.path, "--accept-loss")


class Examination:
    """The verdict about the captured bytes of one journal, and what was learnt on the way."""

    def __init__(self, source: Bytes, header: FileHeader | None, journal_id: bytes | None) -> None:
        self.source = source
        self.header = header
        self.journal_id = journal_id
        self.case: Case = "G"
        self.reason: str | None = None
        self.walk: Walk | None = None
        self.stop: Stop | None = None
        self.beyond: list[Frame] = []
        self.beyond_count = 0
        self.proven_by_beyond = 0
        """Every sequence below is proven durable by a frame behind the damage."""
        self.watermark: Watermark | None = None
        self.watermark_broken = False
        self.from_header = True
        self.proven: Frame | None = None
        """The last frame that something proves durable; what follows is written again."""
        self.proven_below = 0
        self.epoch_max = 0

    @property
    def published_length(self) -> int:
        """From the header; 0 when it is damaged."""
        return self.header.published_length if self.header else 0

    @property
    def end_is_lost(self) -> bool:
        """Whether frames were durable that would follow the end of the file, as far as is known."""
        mark_end = self.watermark.end_offset if self.watermark else 0
        if self.source.size < max(self.published_length, mark_end):
            return True
        return self.watermark_broken and self.stop is not None and self.stop.reason is None

    @property
    def place(self) -> Place:
        """Behind the last verified frame."""
        assert self.stop is not None
        return self.stop.place

    def report(self) -> Report:
        """The findings as plain data."""
        report = Report(
            path=self.source.path,
            case=self.case,
            size=self.source.size,
            verdict=VERDICTS[self.case],
            reason=self.reason,
            journal_id=self.journal_id.hex() if self.journal_id else None,
            proven_below=self.proven_below,
            frames_beyond=self.beyond_count,
        )
        if self.stop is not None:
            report.expected_sequence = self.stop.place.sequence
            report.frames = self.stop.place.sequence
            if self.case not in ("A", "G"):
                report.bad_offset = self.stop.place.offset
        if self.walk is not None:
            history = self.walk.history
            report.abandoned = list(history.abandoned)
            report.abandoned_count = history.abandoned_count
            report.problems = list(history.problems)
            report.problem_count = history.problem_count
        return report

    def refusal(self) -> TreeringError:
        """The typed error with which this case refuses an open for writing (not A; E if strict)."""
        report = self.report()
        step = report.next_step
        what = report.verdict + (f" ({self.reason})" if self.reason else "")
        if self.case == "G":
            return NotAJournal(what, path=self.source.path)
        if self.beyond_count:
            what += f"; {self.beyond_count} good frames beyond"
        kind = AcknowledgedDataLost if self.case == "D" else Damaged
        return kind(
            what,
            report=report,
            path=self.source.path,
            offset=report.bad_offset,
            next_step=f"next: {step}" if step else None,
        )


def examine(
    source: Bytes,
    *,
    watermark: bytes | None = None,
    known_ids: Iterable[bytes] = (),
    from_frame: Frame | None = None,
) -> Examination:
    """Scan the journal and decide its case. Changes nothing.

    Args:
        source: the captured bytes.
        watermark: what the index or catalogue remembers, 64 bytes, untrusted.
        known_ids: journal ids that index, catalogue or caller name, for a damaged header.
        from_frame: a frame of this journal that the watermark proves durable; when given the scan
            starts behind it, and any verdict but A is decided again from the header.

    Raises:
        Unsupported: a newer format version or an unknown required feature.
        LimitExceeded: the search behind damage would hash more than 8 times the file.
        StorageError: a read failed (this is never taken for damage).
    """
    header = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), source.path)
    if header is not None and header.published_length == 0:
        found = Examination(source, header, header.journal_id)
        found.reason = "it was never published"
        return found
    if header is None:
        return _examine_without_header(source, None, watermark, known_ids)
    found = Examination(source, header, header.journal_id)
    found.watermark = decode_watermark(watermark, header.journal_id)
    _scan(found, from_frame)
    if found.stop is not None and found.stop.place.sequence == 0:
        if next(search(source, header.salt, FILE_HEADER_BYTES, 0), None) is None:
            return _examine_without_header(source, header, watermark, known_ids)
    _judge(found)
    assert found.walk is not None
    if from_frame is not None and (found.case != "A" or found.walk.history.problem_count):
        # A hint decides nothing: whatever is not plainly clean is looked at from the start.
        return examine(source, watermark=watermark, known_ids=known_ids)
    return found


def _scan(found: Examination, from_frame: Frame | None) -> None:
    assert found.journal_id is not None
    walk = Walk(found.source, found.journal_id, behind=from_frame)
    found.from_header = from_frame is None
    watch = _Watch(found, from_frame)
    walk.run(watch.see)
    walk.history.finish()
    found.walk, found.stop = walk, walk.scan.stop
    assert found.stop is not None
    found.reason = found.stop.reason
    found.epoch_max = found.stop.place.epoch
    found.proven = watch.proven
    found.proven_below = max(walk.history.proven_below, watch.proven_below)
    if found.watermark is not None and not watch.mark_holds:
        found.reason = found.reason or "the frame at the watermark is gone or has other bytes"
        found.watermark_broken = True


class _Watch:
    """Follows a scan: which frames are proven durable, and whether the watermark's is there."""

    def __init__(self, found: Examination, from_frame: Frame | None) -> None:
        self._published = found.published_length
        mark = found.watermark
        self._mark_end = -1 if mark is None else mark.end_offset
        self._mark_revision = b"" if mark is None else mark.revision
        self.mark_holds = mark is None
        self.proven = from_frame
        self._last: Frame | None = from_frame
        if from_frame is not None and from_frame.end == self._mark_end:
            self.mark_holds = from_frame.revision == self._mark_revision

    @property
    def proven_below(self) -> int:
        """Every sequence below is proven durable by the header, a watermark or a later frame."""
        return 0 if self.proven is None else self.proven.sequence + 1

    def see(self, frame: Frame) -> None:
        """Take the next verified frame."""
        if frame.unsynced == 0:
            self.proven = self._last
        end = frame.end
        if end <= self._published:
            self.proven = frame
        if end == self._mark_end:
            self.mark_holds = frame.revision == self._mark_revision
            if self.mark_holds:
                self.proven = frame
        self._last = frame


def _judge(found: Examination) -> None:
    assert found.stop is not None
    assert found.journal_id is not None
    offset, sequence = found.stop.place.offset, found.stop.place.sequence
    reason = found.stop.reason
    if reason is not None:
        _search_beyond(found, salt_of(found.journal_id), offset, sequence)
    if offset < found.published_length or found.source.size < found.published_length:
        found.case = "B"
        found.reason = (
            reason or f"the file ends below its published length {found.published_length}"
        )
    elif found.proven_by_beyond > sequence:
        found.case = "C"
    elif found.watermark_broken:
        found.case = "D"
    else:
        found.case = "A" if reason is None else "E"


def _search_beyond(found: Examination, salt: int, start: int, sequence_min: int) -> None:
    for frame in search(found.source, salt, start, sequence_min):
        found.beyond_count += 1
        found.epoch_max = max(found.epoch_max, frame.epoch)
        found.proven_by_beyond = max(found.proven_by_beyond, frame.proves_below)
        if len(found.beyond) < BEYOND_KEPT:
            found.beyond.append(frame)


def _examine_without_header(
    source: Bytes,
    header: FileHeader | None,
    watermark: bytes | None,
    known_ids: Iterable[bytes],
) -> Examination:
    """Cases F and G: find the journal id elsewhere."""
    budget = HashBudget(source)
    journal_id, any_magic = _find_journal_id(source, header, watermark, known_ids, budget)
    found = Examination(source, header, journal_id)
    if source.size == 0:
        found.reason = "the file is empty"
        return found
    if journal_id is None:
        if any_magic or source.read_at(0, 8) == FILE_MAGIC:
            found.case = "F"
            found.reason = "no frame verifies and no journal id is found: restore a copy"
        else:
            found.reason = _describe_foreign(source.read_at(0, 64))
        return found
    found.case = "F"
    found.watermark = decode_watermark(watermark, journal_id)
    _scan(found, None)
    assert found.stop is not None
    place = found.stop.place
    if found.stop.reason is not None:
        # With bytes missing in the header every frame stands below its place: search from 0.
        start = place.offset if place.sequence else 0
        _search_beyond(found, salt_of(journal_id), start, place.sequence)
    found.reason = "the file header does not verify"
    return found


def _find_journal_id(
    source: Bytes,
    header: FileHeader | None,
    watermark: bytes | None,
    known_ids: Iterable[bytes],
    budget: HashBudget,
) -> tuple[bytes | None, bool]:
    """The id whose frames cover most bytes, and whether the frame magic occurs at all."""
    votes: Counter[bytes] = Counter()
    named = set(known_ids)
    if watermark is not None and (mark := decode_watermark(watermark, watermark[:16])) is not None:
        named.add(mark.journal_id)
    if header is not None:
        named.add(header.journal_id)
    any_magic = False
    for offset in magic_offsets(source, 0):
        any_magic = True
        journal_id = _self_proven_id(source, offset, budget)
        if journal_id is not None:
            votes[journal_id] += 1
    candidates = [journal_id for journal_id, _ in votes.most_common(_CANDIDATE_IDS_MAX)]
    candidates += sorted(named.difference(candidates))
    if len(candidates) == 1 and candidates[0] in votes:
        return candidates[0], any_magic
    best, best_cover = None, 0
    for journal_id in candidates:
        cover = sum(
            ENVELOPE_BYTES + frame.stored
            for frame in search(source, salt_of(journal_id), 0, 0, budget=budget)
        )
        if cover > best_cover:
            best, best_cover = journal_id, cover
    return best, any_magic


def _self_proven_id(source: Bytes, offset: int, budget: HashBudget) -> bytes | None:
    """The id in an EPOCH payload at ``offset`` when that frame verifies under this very id."""
    head = source.read_at(offset, FRAME_HEADER_BYTES)
    if len(head) < FRAME_HEADER_BYTES:
        return None
    fields = unpack_frame_header(head)
    kind, codec, stored = fields[1], fields[2], fields[4]
    if kind not in (Kind.EPOCH_OPEN, Kind.EPOCH_CLOSE) or codec != 0:
        return None
    if stored > CONTROL_PAYLOAD_BYTES_MAX or offset + ENVELOPE_BYTES + stored > source.size:
        return None
    budget.spend(ENVELOPE_BYTES + stored, offset)
    data = source.read_at(offset, ENVELOPE_BYTES + stored)
    journal_id = journal_id_in(data[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + stored])
    if journal_id is None or whole_frame(data, offset, salt_of(journal_id)) is None:
        return None
    return journal_id


def _describe_foreign(start: bytes) -> str:
    if not start.strip(b"\0"):
        return "it begins with zero bytes"
    if start.startswith(b'{"journalFrame":'):
        return "it is a journal of JSON frames; `treering session import` takes that"
    if start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
        return "it looks like plain JSONL; `treering session import` takes that"
    if start.startswith(b"SQLite format 3"):
        return "it is a SQLite database"
    return "no frame of a journal"
