"""A journal as the source of a copy: verified, captured up to one end, and read once more.

It may be in use by another owner. What verifies up to the end is taken, also the last frames that
nothing proves durable yet: the newest acknowledged entry is among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treering.engine.errors import (
    InvalidSource,
    LimitExceeded,
    SourceChanged,
    Unsupported,
    from_os_error,
)
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import File
from treering.engine.journal.format import (
    ENVELOPE_BYTES,
    FLAG_QUALIFICATION_MASK,
    FLAG_RETAINED,
    Frame,
    Kind,
)
from treering.engine.journal.history import Walk
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import Examination
from treering.engine.json_text import BadRecordError, check
from treering.engine.session.context_epochs import session_names
from treering.engine.session.entry import is_context_epoch
from treering.engine.session.filling import remembered_watermark
from treering.engine.session.view import examine_again
from treering.engine.transfer.context_epoch_copy import EpochSource
from treering.engine.transfer.legacy_model import Analysis, CopyLimits
from treering.engine.transfer.legacy_read import FrameFacts, Whole
from treering.engine.transfer.legacy_scan import Scan

KEPT_FLAGS: Final = FLAG_RETAINED | FLAG_QUALIFICATION_MASK
"""Retention and qualification stay with their entry; STAGED does not."""

NO_LIMIT_STEP: Final = "--no-limit lifts it"

_VERSION: Final = 3
"""Of every header that a journal of ours was made with."""


class JournalSource:
    """See :meth:`captured`. Memory does not grow with the journal."""

    def __init__(self, source: FileBytes, found: Examination) -> None:
        refuse_unfit(found)
        assert found.walk is not None
        assert found.journal_id is not None
        history = found.walk.history
        assert history.session is not None
        assert history.last is not None
        self.path = source.path
        self.size = found.place.offset
        self.ignored_bytes = source.size - self.size
        self.entries = 0
        """Entries that the last complete pass over :meth:`records` has given."""
        self.unproven = 0
        self._source = source.captured(self.size)
        self._journal_id = found.journal_id
        self._session: Frame = history.session
        self._last: Frame = history.last
        self._proven_below = found.proven_below
        self._shared = history.shared
        self._gaps = len(history.gaps)
        self._skipped = len(history.skipped)
        self.header = self._shared.payload_of(history.session)
        """The session header as stored."""
        self.has_context_epochs = False
        """Whether a look at every frame has found one that the engine wrote itself."""
        self._ambiguous = False
        if history.provenance is not None:
            facts = self._shared.payload_of(history.provenance).partition(b"\0")[0]
            self._ambiguous = b'"ambiguous_ids":false' not in facts

    @classmethod
    def captured(cls, file: File, path: str) -> JournalSource | None:
        """The journal in an open file as it is now; None when the file is no journal.

        Raises:
            Damaged, AcknowledgedDataLost: it is damaged.
            Unsupported: a newer version, or frames that are not understood.
        """
        # The watermark first, then the size: what an owner appends in between must not look lost.
        watermark = remembered_watermark(path, file)
        try:
            size = file.stat().size
        except OSError as error:
            raise from_os_error(error, "look at the source", path) from error
        source = FileBytes(file, path, size)
        found = examine_again(source, watermark)
        return None if found.case == "G" else cls(source, found)

    def check_limits(self, limits: CopyLimits | None) -> None:
        """Raise LimitExceeded when a copy of it would hold more; stops counting there."""
        limits = limits or CopyLimits(None, None)
        entries, size = 0, len(self.header)
        check_limit(limits.json_bytes, size, "bytes of JSON", self.path)
        for frame, _ in Walk(self._source, self._journal_id, shared=self._shared).visible():
            if frame.kind != Kind.LEAF:
                self.has_context_epochs |= is_context_epoch(frame.flags)
                entries, size = entries + 1, size + frame.raw
                check_limit(limits.entries, entries, "entries", self.path)
                check_limit(limits.json_bytes, size, "bytes of JSON", self.path)

    def analyse(self, limits: CopyLimits | None) -> Analysis:
        """What an import would take, and what is odd about it.

        Raises:
            InvalidSource, Unsupported: a record that no import takes.
            LimitExceeded: it is beyond a limit.
            SourceChanged, Undecodable: as :meth:`records`.
        """
        analysis = Analysis("treering", False, self.size, False)  # noqa: FBT003 (of one file)
        scan = Scan(self.path, analysis, limits or CopyLimits(None, None))
        scan.take(self._item(self._session, self.header))
        for frame, payload in self._visible():
            if frame.kind != Kind.LEAF:
                self.has_context_epochs |= is_context_epoch(frame.flags)
                scan.take(self._item(frame, payload))
        scan.finish()
        if analysis.version != _VERSION:
            raise Unsupported(
                f"session version {analysis.version} in a journal (supported: {_VERSION})",
                path=self.path,
                offset=self._session.offset,
            )
        analysis.digest = self._last.revision.hex()
        return analysis

    def _item(self, frame: Frame, payload: bytes) -> Whole:
        facts = frame_facts(frame)
        try:
            fields = check(payload)
        except BadRecordError as error:
            raise InvalidSource(
                f"frame {frame.sequence} holds a record that {error.reason}",
                path=self.path,
                offset=frame.offset,
            ) from None
        return Whole(frame.sequence, frame.offset, payload, fields, frame=facts)

    def records(self) -> Iterator[Record]:
        """Everything that it shows, in order: entries, requests, moves of the position.

        Raises:
            SourceChanged: it does not read as it did a moment ago.
            Undecodable: a payload cannot be produced.
        """
        entries = unproven = 0
        for frame, payload in self._visible():
            if frame.kind != Kind.LEAF:
                entries += 1
                unproven += frame.sequence >= self._proven_below
            yield Record(frame.kind, payload, frame.flags & KEPT_FLAGS)
        self.entries, self.unproven = entries, unproven

    def epochs(self, *, lowered: bool) -> EpochSource | None:
        """What a copy needs for its context epoch; None when there is none to look for."""
        if not self.has_context_epochs:
            return None
        names = session_names(self.path, self.header)
        return EpochSource(names, self.path, lowered, salvage=False, again=self._records_again)

    def _records_again(self) -> Iterator[tuple[Record, FrameFacts | None]]:
        for frame, payload in self._visible():
            facts = None if frame.kind == Kind.LEAF else frame_facts(frame)
            yield Record(frame.kind, payload, frame.flags & KEPT_FLAGS), facts

    def samples(self) -> Iterator[bytes]:
        """The entries, to train a dictionary on."""
        return (payload for frame, payload in self._visible() if frame.kind != Kind.LEAF)

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes of the captured file."""
        return self._source.read_at(offset, length)

    def _visible(self) -> Iterator[tuple[Frame, bytes]]:
        walk = Walk(self._source, self._journal_id, shared=self._shared)
        decode = self._shared.decoder.decode
        for frame, stored in walk.visible():
            yield frame, decode(frame, stored)
        last = walk.history.last
        if last is None or last.revision != self._last.revision:
            stop = walk.scan.stop
            raise SourceChanged(
                "the source does not read as it did a moment ago",
                path=self.path,
                offset=None if stop is None else stop.place.offset,
                next_step="copy it again",
            )

    def provenance(self) -> dict[str, object]:
        """Where the copy comes from. The digest is that of the last frame, and so of all."""
        facts: dict[str, object] = {
            "format": "treering",
            "journal": self._journal_id.hex(),
            "captured_bytes": self.size,
            "last_sequence": self._last.sequence,
            "digest": self._last.revision.hex(),
            "byte_exact": False,
            "ambiguous_ids": self._ambiguous,
        }
        if self._gaps:
            facts["gaps"] = self._gaps
        if self._skipped:
            facts["optional_frames_left_out"] = self._skipped
        return facts


def refuse_unfit(found: Examination) -> None:
    """Refuse a source that is damaged or not understood: its copy would hide that.

    Raises:
        Damaged, AcknowledgedDataLost, Unsupported: it is.
    """
    refuse_not_whole(found, "a copy would leave it out", "copy it with a newer release")
    if found.place.sequence < 2:
        raise Unsupported("the journal has no session header", path=found.source.path)


def refuse_not_whole(found: Examination, consequence: str, next_step: str) -> None:
    """Refuse a journal that may hold more than it shows; says what would come of it.

    Raises:
        Damaged, AcknowledgedDataLost, NotAJournal, Unsupported: it is damaged, or not understood.
    """
    if found.case not in ("A", "E"):
        raise found.refusal()
    assert found.walk is not None
    history = found.walk.history
    if history.problem_count:
        first = history.problems[0]
        raise Unsupported(
            f"frame {first.sequence} is not understood: {first.why}; {consequence}",
            path=found.source.path,
            offset=first.offset,
            next_step=next_step,
        )


def check_limit(limit: int | None, need: int, what: str, path: str) -> None:
    """Raise LimitExceeded when a copy needs more than its limit."""
    if limit is not None and need > limit:
        raise LimitExceeded(
            f"a copy would be beyond the limit of {limit} {what}",
            limit=limit,
            need=need,
            path=path,
            next_step=NO_LIMIT_STEP,
        )


def frame_facts(frame: Frame) -> FrameFacts:
    """What a frame of ours says beside its payload."""
    return FrameFacts(
        frame.sequence,
        frame.revision.hex(),
        frame.flags & KEPT_FLAGS,
        frame.offset,
        ENVELOPE_BYTES + frame.stored,
    )
