"""What a run of verified frames means: epochs, staged runs, what is visible, what is proven.

A frame that verifies and continues the history is never damage. What is not understood in it, or
breaks a rule of the format page, is a :class:`Problem`: the frame is named, not shown, moves no
leaf and activates nothing; reading goes on, writing is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from treering.engine.errors import SourceChanged, Undecodable
from treering.engine.journal import control
from treering.engine.journal.format import (
    CODEC_RAW,
    CODEC_ZSTD_DICTIONARY,
    FLAG_QUALIFICATION_SHIFT,
    FLAG_STAGED,
    FRAME_HEADER_BYTES,
    KNOWN_KINDS,
    QUALIFICATIONS,
    STAGEABLE_KINDS,
    Frame,
    Kind,
    misunderstood,
    salt_of,
)
from treering.engine.journal.reader import Bytes, Place, Scan
from treering.engine.journal.shared import SharedFrames
from treering.engine.limits import PAYLOAD_BYTES_MAX

PROBLEMS_KEPT: Final = 1_000
"""Problems and abandoned runs that are listed one by one; beyond it they are only counted."""

LEAF_CANDIDATES_KEPT: Final = 16

_FLAGS_NOT_UNDERSTOOD_FROM: Final = len(QUALIFICATIONS) << FLAG_QUALIFICATION_SHIFT
"""Below it: retained or not, and a known qualification; not STAGED, no unknown flag."""

_VISIBLE_KINDS: Final = frozenset((Kind.ENTRY, Kind.LEAF, Kind.REQUEST))


class Problem(NamedTuple):
    """A verified frame that is not understood or breaks a rule."""

    sequence: int
    offset: int
    why: str


class Activated(NamedTuple):
    """A staged run that became visible: frames ``first..last``, found by a scan from ``place``."""

    place: Place
    first: int
    last: int


class History:
    """Feed it every verified frame in order."""

    def __init__(self, shared: SharedFrames, journal_id: bytes, place: Place | None = None) -> None:
        self.shared = shared
        self.journal_id = journal_id
        self._hex_id = journal_id.hex()
        self._start = place or Place.start()
        self._closed = False
        self._epoch_frames: int | None = 0 if place is None else None
        self._run: Place | None = None
        self._run_last: Frame | None = None
        self._run_count = 0
        self.frames = 0
        self.last: Frame | None = None
        self.proven_below = 0
        """Frames below this sequence are proven durable by later ones."""
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.skipped: list[int] = []
        """Sequences of frames of unknown optional kinds, the first ones."""
        self.abandoned: list[int] = []
        self.abandoned_count = 0
        self.session: Frame | None = None
        self.provenance: Frame | None = None
        self.gaps: list[tuple[Frame, control.Gap]] = []
        self.leaf_candidates: deque[Frame] = deque(maxlen=LEAF_CANDIDATES_KEPT)
        self.settled: Frame | None = None

    def resume_behind(self, frame: Frame) -> None:
        """Start after a frame that was verified before (its own meaning is already known)."""
        self._closed = frame.kind == Kind.EPOCH_CLOSE
        self.proven_below = max(frame.proves_below, 0)
        self.last = self.settled = frame

    def feed(self, frame: Frame, body: bytes) -> Frame | Activated | None:
        """Take the next frame; what became visible by it, if anything."""
        before, self.last = self.last, frame
        self.frames += 1
        if frame.sequence - frame.unsynced > self.proven_below:  # noqa: PLR1730 (max costs more)
            self.proven_below = frame.sequence - frame.unsynced
        # The common case, entries one after another, must not pay for the rules of the others.
        if (
            frame.kind == Kind.ENTRY
            and frame.flags < _FLAGS_NOT_UNDERSTOOD_FROM
            and self._run is None
            and not self._closed
            and frame.sequence > 1
            and (
                frame.stored == frame.raw
                if frame.codec == CODEC_RAW
                else frame.codec <= CODEC_ZSTD_DICTIONARY
                and frame.stored < frame.raw <= PAYLOAD_BYTES_MAX
            )
        ):
            if self._epoch_frames is not None:
                self._epoch_frames += 1
            self.leaf_candidates.append(frame)
            self.settled = frame
            return frame
        return self._feed_other(
            frame, body, self._start if before is None else Place.behind(before)
        )

    @property
    def open_run(self) -> range:
        """Sequences of the staged frames at the end that nothing has activated."""
        run = self._run
        return range(0) if run is None else range(run.sequence, run.sequence + self._run_count)

    def finish(self) -> None:
        """The history ends here: a staged run at the end is abandoned unless an owner goes on."""
        self._abandon()

    def _feed_other(self, frame: Frame, body: bytes, place: Place) -> Frame | Activated | None:
        why = misunderstood(frame) or _breaks_order(frame, place)
        if frame.kind == Kind.EPOCH_OPEN:
            self._epoch_frames = 0
        was_closed, self._closed = self._closed, False
        if why is None and was_closed and frame.kind != Kind.EPOCH_OPEN:
            why = f"{_name(frame.kind)} after EPOCH_CLOSE"
        staged = bool(frame.flags & FLAG_STAGED) and frame.kind in STAGEABLE_KINDS
        result: Frame | Activated | None = None
        if why is None:
            why, result = self._apply(frame, body)
        if self._epoch_frames is not None:
            self._epoch_frames += 1
        if why is not None:
            self._problem(frame, why)
        if staged:
            self._stage(frame, place)
        elif self._run is not None:
            self._abandon(None if not isinstance(result, Activated) else result.first)
        if self._run is None:
            self.settled = frame
        return None if staged else result

    def _apply(self, frame: Frame, body: bytes) -> tuple[str | None, Frame | Activated | None]:
        kind = frame.kind
        if kind not in KNOWN_KINDS:
            if len(self.skipped) < PROBLEMS_KEPT:
                self.skipped.append(frame.sequence)
            return None, None  # optional: skipped, whatever codec and flags it has
        if kind in _VISIBLE_KINDS:
            return self._apply_visible(frame, body)
        if kind == Kind.BLOB:
            self.shared.note_blob(frame)
            return None, None
        try:
            payload = self.shared.decoder.decode(frame, body[FRAME_HEADER_BYTES:])
        except Undecodable as error:
            return error.what, None
        if kind == Kind.EPOCH_OPEN:
            return self._apply_open(frame, payload), None
        if kind == Kind.EPOCH_ACTIVATE:
            return self._apply_activate(frame, payload)
        if kind == Kind.EPOCH_CLOSE:
            return self._apply_close(frame, payload), None
        if kind == Kind.DICTIONARY:
            return self.shared.note_dictionary(frame, payload), None
        if kind == Kind.SESSION:
            self.session = frame
        elif kind == Kind.PROVENANCE:
            self.provenance = frame
        elif kind == Kind.GAP:
            gap = control.decode_gap(payload)
            if gap is None:
                return "GAP payload", None
            self.gaps.append((frame, gap))
        return None, None

    def _apply_visible(
        self, frame: Frame, body: bytes
    ) -> tuple[str | None, Frame | Activated | None]:
        if frame.kind == Kind.LEAF:
            try:
                payload = self.shared.decoder.decode(frame, body[FRAME_HEADER_BYTES:])
            except Undecodable as error:
                return error.what, None
            if control.decode_leaf(payload) is None:
                return "LEAF payload", None
        if not frame.staged and frame.kind != Kind.REQUEST:
            self.leaf_candidates.append(frame)
        return None, frame

    def is_shown(self, frame: Frame, body: bytes) -> bool:
        """Whether an activated frame is understood (said before, when it was staged)."""
        if frame.kind not in _VISIBLE_KINDS or misunderstood(frame) is not None:
            return False
        return self._apply_visible(frame, body)[0] is None

    def _apply_open(self, frame: Frame, payload: bytes) -> str | None:
        opened = control.decode_open(payload)
        if opened is None:
            return "EPOCH_OPEN payload"
        if opened.journal != self._hex_id or opened.epoch != frame.epoch:
            return "EPOCH_OPEN of another journal or epoch"
        unknown = [name for name in opened.requires if name not in control.REQUIRES_KNOWN]
        return f"EPOCH_OPEN requires {', '.join(unknown)}" if unknown else None

    def _apply_activate(self, frame: Frame, payload: bytes) -> tuple[str | None, Activated | None]:
        named = control.decode_activate(payload)
        if named is None:
            return "EPOCH_ACTIVATE payload", None
        run, last = self._run, self._run_last
        if (
            run is None
            or last is None
            or not run.sequence <= named.first <= named.last
            or named.last != frame.sequence - 1
            or named.revision != last.revision.hex()
        ):
            return "EPOCH_ACTIVATE names frames that are not staged before it", None
        return None, Activated(run, named.first, named.last)

    def _apply_close(self, frame: Frame, payload: bytes) -> str | None:
        closed = control.decode_close(payload)
        self._closed = True
        if closed is None:
            return "EPOCH_CLOSE payload"
        if closed.journal != self._hex_id or closed.epoch != frame.epoch:
            return "EPOCH_CLOSE of another journal or epoch"
        if self._epoch_frames is not None and closed.frames != self._epoch_frames:
            return f"EPOCH_CLOSE counts {closed.frames} frames of {self._epoch_frames}"
        return None

    def _stage(self, frame: Frame, place: Place) -> None:
        if self._run is None:
            self._run, self._run_count = place, 0
        self._run_count += 1
        self._run_last = frame

    def _abandon(self, up_to: int | None = None) -> None:
        """Forget the staged run; those before ``up_to`` (all, if None) stay invisible for ever."""
        run = self._run
        if run is None:
            return
        count = self._run_count if up_to is None else up_to - run.sequence
        self.abandoned_count += count
        room = PROBLEMS_KEPT - len(self.abandoned)
        self.abandoned += range(run.sequence, run.sequence + min(count, max(room, 0)))
        self._run = self._run_last = None

    def _problem(self, frame: Frame, why: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(Problem(frame.sequence, frame.offset, why))


def _breaks_order(frame: Frame, place: Place) -> str | None:
    """The rules about which kind may stand where."""
    if frame.sequence == 0 and frame.kind != Kind.EPOCH_OPEN:
        return f"{_name(frame.kind)} as the first frame"
    if (frame.sequence == 1) != (frame.kind == Kind.SESSION):
        return f"{_name(frame.kind)} at sequence {frame.sequence}"
    if frame.kind == Kind.PROVENANCE and frame.sequence != 2:
        return f"PROVENANCE at sequence {frame.sequence}"
    if frame.kind == Kind.EPOCH_OPEN and frame.epoch == place.epoch:
        return f"EPOCH_OPEN inside epoch {frame.epoch}"
    if frame.sequence == 0 and frame.epoch != 1:
        return f"the first epoch is {frame.epoch}"
    return None


def _name(kind: int) -> str:
    return Kind(kind).name if kind in KNOWN_KINDS else f"kind {kind}"


class Walk:
    """A scan and its history in one: the visible frames of a journal in the order they appeared.

    After iterating, :attr:`stop` and :attr:`history` tell the rest.
    """

    def __init__(
        self,
        source: Bytes,
        journal_id: bytes,
        *,
        behind: Frame | None = None,
        shared: SharedFrames | None = None,
    ) -> None:
        self._source = source
        place = None if behind is None else Place.behind(behind)
        self.history = History(shared or SharedFrames(source, journal_id), journal_id, place)
        if behind is not None:
            self.history.resume_behind(behind)
        self._salt = salt_of(journal_id)
        self.scan = Scan(source, self._salt, place)

    def visible(self) -> Iterator[tuple[Frame, bytes]]:
        """Each visible ENTRY, LEAF and REQUEST frame with its payload as stored."""
        feed = self.history.feed
        for frame, body in self.scan.frames():
            shown = feed(frame, body)
            if shown is None:
                continue
            if shown is frame:
                yield frame, body[FRAME_HEADER_BYTES:]
            elif isinstance(shown, Activated):
                yield from self._activated(shown)

    def run(self, see: Callable[[Frame], None]) -> None:
        """Only verify; ``see`` is called with every frame."""
        feed = self.history.feed
        for frame, body in self.scan.frames():
            see(frame)
            shown = feed(frame, body)
            if isinstance(shown, Activated):
                deque(self._activated(shown), maxlen=0)

    def _activated(self, shown: Activated) -> Iterator[tuple[Frame, bytes]]:
        # Staged frames are read again instead of being kept: a run can be as long as the file.
        scan = Scan(self._source, self._salt, shown.place)
        for frame, body in scan.frames():
            if frame.sequence >= shown.first and self.history.is_shown(frame, body):
                if frame.kind != Kind.REQUEST:
                    self.history.leaf_candidates.append(frame)
                yield frame, body[FRAME_HEADER_BYTES:]
            if frame.sequence == shown.last:
                return
        raise SourceChanged(
            "a batch does not read as it did a moment ago",
            path=self._source.path,
            offset=shown.place.offset,
        )
