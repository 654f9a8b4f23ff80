"""Everything that still verifies in a damaged journal, in order, with the gaps between.

Salvage never guesses: a frame is taken when it verifies and its sequence goes on rising. Where not
all fit together, as when a block was written to a wrong place, the most that do are taken. What a
staged run needs to be shown is its EPOCH_ACTIVATE; a run whose activation may lie in a gap is
listed as *unknown* and shown only on request.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress, pairwise
from typing import NamedTuple

from treering.engine.errors import Damaged, Undecodable
from treering.engine.journal import control
from treering.engine.journal.format import (
    FRAME_HEADER_BYTES,
    KNOWN_KINDS,
    Frame,
    Kind,
    misunderstood,
    salt_of,
)
from treering.engine.journal.reader import Bytes, Scan, frame_at, search
from treering.engine.journal.recovery import Examination
from treering.engine.journal.shared import SharedFrames

_SHOWN = frozenset((Kind.ENTRY, Kind.LEAF, Kind.REQUEST))


class Lost(NamedTuple):
    """Bytes between two good frames, or at the end, that do not verify.

    None of them when frames are gone that would follow the end of the file.
    """

    offset: int
    bytes: int
    first: int
    last: int | None


def decoded(
    source: Bytes, salt: int, shared: SharedFrames
) -> Iterator[tuple[Frame, bytes | Damaged | None]]:
    """Every frame before the first damage, with its payload, also those that nothing shows.

    In its place there is the error when it cannot be produced, and None when it need not be
    understood. ``shared`` learns the dictionaries and BLOBs on the way. A read that fails says
    nothing about a frame, and is raised.
    """
    for frame, body in Scan(source, salt).frames():
        if misunderstood(frame) is not None or frame.kind not in KNOWN_KINDS:
            yield frame, None
            continue
        try:
            payload = shared.decoder.decode(frame, body[FRAME_HEADER_BYTES:])
            if frame.kind == Kind.DICTIONARY:
                shared.note_dictionary(frame, payload)
        except Damaged as error:
            yield frame, error
            continue
        if frame.kind == Kind.BLOB:
            shared.note_blob(frame)
        yield frame, payload


class Salvage:
    """Iterate :meth:`items` once; afterwards the attributes tell what happened to staged runs."""

    def __init__(
        self, found: Examination, shared: SharedFrames, *, keep_unknown: bool = False
    ) -> None:
        assert found.journal_id is not None
        self._source: Bytes = found.source
        self._salt = salt_of(found.journal_id)
        self._shared = shared
        self._end_is_lost = found.end_is_lost
        self._keep_unknown = keep_unknown
        self._run: list[Frame] = []
        self._gap_in_run = False
        self._fitting = bytearray()
        """For each frame behind the damage, whether it is taken."""
        self.gaps: list[Lost] = []
        self.unknown: list[Frame] = []
        """Staged frames whose activation may lie in a gap."""
        self.survivors: list[int] = []
        """Sequences shown although other frames of their batch are lost."""
        self.abandoned: list[int] = []
        self.undecodable: list[Frame] = []
        self.misunderstood: list[int] = []
        """Frames of a newer release, those that readers may skip included: what they mean may
        depend on where they stand, so they are not carried over."""
        self.session: bytes | None = None
        self.provenance: bytes | None = None
        self.frames = 0

    def items(self) -> Iterator[tuple[Frame, bytes] | Lost]:
        """Shown ENTRY, LEAF and REQUEST frames with their decoded payloads, and the gaps."""
        after_gap = False
        self._look_ahead()
        for item in self._frames():
            if isinstance(item, Lost):
                self.gaps.append(item)
                after_gap = True
                yield item
                continue
            self.frames += 1
            yield from self._take(item, after_gap=after_gap)
            after_gap = False
        yield from self._end_run(after_gap=after_gap)

    def _look_ahead(self) -> None:
        """Find every copy of a dictionary first: entries before the damage may need the one behind
        it. And which frames behind the damage go together.
        """
        scan = Scan(self._source, self._salt)
        for frame, _ in scan.frames():
            self._note_dictionary(frame)
        sequences = array("Q")
        for frame in self._behind(scan):
            self._note_dictionary(frame)
            sequences.append(frame.sequence)
        self._fitting = _longest_rise(sequences)

    def _note_dictionary(self, frame: Frame) -> None:
        if frame.kind != Kind.DICTIONARY:
            return
        try:
            self._shared.note_dictionary(frame, self._shared.payload_of(frame))
        except Undecodable:
            return  # another copy may do

    def _behind(self, scan: Scan) -> Iterator[Frame]:
        """Frames behind the damage at which a scan stopped."""
        assert scan.stop is not None
        if scan.stop.reason is None:
            return
        place = scan.stop.place
        # With bytes missing at the front every frame stands below its place: search from 0.
        start = place.offset if place.sequence else 0
        yield from search(self._source, self._salt, start, place.sequence)

    def _frames(self) -> Iterator[Frame | Lost]:
        scan = Scan(self._source, self._salt)
        for frame, _ in scan.frames():
            yield frame
        assert scan.stop is not None
        offset, sequence = scan.stop.place.offset, scan.stop.place.sequence
        for frame in compress(self._behind(scan), self._fitting):
            if frame.offset > offset or frame.sequence > sequence:
                lost = max(frame.offset - offset, 0)
                yield Lost(offset, lost, sequence, max(frame.sequence - 1, sequence))
            yield frame
            offset, sequence = frame.end, frame.sequence + 1
        if offset < self._source.size or self._end_is_lost:
            yield Lost(offset, max(self._source.size - offset, 0), sequence, None)

    def _take(self, frame: Frame, *, after_gap: bool) -> Iterator[tuple[Frame, bytes]]:
        if self._run and after_gap:
            self._gap_in_run = True
        if misunderstood(frame) is not None or (frame.sequence < 2 and frame.kind in _SHOWN):
            self.misunderstood.append(frame.sequence)
            return
        if frame.staged:
            if self._run and self._run[-1].epoch != frame.epoch:
                yield from self._end_run(after_gap=after_gap)
            self._run.append(frame)
            return
        if frame.kind == Kind.EPOCH_ACTIVATE:
            yield from self._activate(frame)
            return
        yield from self._end_run(after_gap=after_gap)
        yield from self._show(frame)

    def _show(self, frame: Frame) -> Iterator[tuple[Frame, bytes]]:
        if frame.kind == Kind.BLOB:
            self._shared.note_blob(frame)
            return
        if frame.kind not in KNOWN_KINDS:
            self.misunderstood.append(frame.sequence)
            return
        if frame.kind not in _SHOWN and frame.kind not in (Kind.SESSION, Kind.PROVENANCE):
            return
        try:
            payload = self._shared.payload_of(frame)
        except Undecodable:
            self.undecodable.append(frame)
            return
        if frame.kind == Kind.LEAF and control.decode_leaf(payload) is None:
            self.misunderstood.append(frame.sequence)
        elif frame.kind == Kind.SESSION:
            self.session = self.session or payload
        elif frame.kind == Kind.PROVENANCE:
            self.provenance = self.provenance or payload
        else:
            yield frame, payload

    def _activate(self, frame: Frame) -> Iterator[tuple[Frame, bytes]]:
        found = frame_at(self._source, self._salt, frame.offset)
        payload = b"" if found is None else found[1][FRAME_HEADER_BYTES:]
        named = control.decode_activate(payload)
        run, self._run = self._run, []
        self._gap_in_run = False
        if named is None or named.last != frame.sequence - 1:
            self.abandoned += [staged.sequence for staged in run]
            return
        shown = [
            staged
            for staged in run
            if named.first <= staged.sequence <= named.last and staged.epoch == frame.epoch
        ]
        if len(shown) < named.last - named.first + 1:
            self.survivors += [staged.sequence for staged in shown]
        self.abandoned += [staged.sequence for staged in run if staged.sequence < named.first]
        for staged in shown:
            yield from self._show(staged)

    def _end_run(self, *, after_gap: bool) -> Iterator[tuple[Frame, bytes]]:
        """A run that no EPOCH_ACTIVATE follows: abandoned, or unknown when a gap follows it."""
        run, self._run = self._run, []
        unknown = after_gap or self._gap_in_run
        self._gap_in_run = False
        if not run:
            return
        if not unknown:
            self.abandoned += [staged.sequence for staged in run]
            return
        self.unknown += run
        if self._keep_unknown:
            for staged in run:
                yield from self._show(staged)


def _longest_rise(sequences: Sequence[int]) -> bytearray:
    """Flags of a longest run of numbers, not necessarily neighbours, of which each is larger than
    the one before; of equal ones the first.
    """
    if all(before < after for before, after in pairwise(sequences)):
        return bytearray(b"\1") * len(sequences)
    ends: list[int] = []  # the least number in which a run of 1, 2, ... numbers can end
    ends_at: list[int] = []
    before_it = array("q")
    for at, number in enumerate(sequences):
        length = bisect_left(ends, number)
        before_it.append(ends_at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(number)
            ends_at.append(at)
        elif number < ends[length]:
            ends[length], ends_at[length] = number, at
    flags = bytearray(len(sequences))
    at = ends_at[-1]
    while at >= 0:
        flags[at] = 1
        at = before_it[at]
    return flags
