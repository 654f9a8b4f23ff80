"""Base Context's journals: one JSON frame on each line, chained by SHA-256, verified one by one.

``{"journalFrame":1,"sequence":N,"previousChecksum":…[,"retention":…][,"qualification":…],
"payload":…,"checksum":"…"}`` and LF. Only the payload is free: everything else has one spelling,
so a frame is taken when it is, byte for byte, what its writer would have written at this place.
The payload stays as it stands there. Memory is one line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

from treering.engine.errors import InvalidSource, LimitExceeded, TreeringError, Unsupported
from treering.engine.journal.format import (
    FLAG_QUALIFICATION_SHIFT,
    FLAG_RETAINED,
    QUALIFICATIONS,
)
from treering.engine.json_text import BadRecordError, Fields, check, members
from treering.engine.limits import JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX
from treering.engine.transfer.legacy_read import SALVAGE, Blank, FrameFacts, LeftOut, Whole
from treering.engine.transfer.records import BOM, Line, Source, is_blank, numbered_lines

FRAME_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 320
"""Longest line: a payload of the largest size and what a frame can put around it (292 bytes)."""

SEQUENCE_END: Final = 2**53 - 1
"""No frame has this sequence or a later one."""

_SUFFIX_BYTES: Final = 79
_SUFFIX: Final = re.compile(rb',"checksum":"([0-9a-f]{64})"\}')
_PREFIX: Final = re.compile(
    rb'\{"journalFrame":1,"sequence":(0|[1-9][0-9]{0,15})'
    rb',"previousChecksum":(?:null|"([0-9a-f]{64})")'
    rb'(?:,"retention":"([^"\\]*)")?(?:,"qualification":"([^"\\]*)")?,"payload":'
)
_RETENTION: Final = b"retained-import"
_QUALIFICATION_FLAGS: Final = {
    name.encode(): number << FLAG_QUALIFICATION_SHIFT
    for number, name in enumerate(QUALIFICATIONS)
    if name is not None
}
_SHOWN_BYTES_MAX: Final = 40


class _BadFrameError(Exception):
    """A line that is not the next frame: why, and which error says so."""

    def __init__(
        self,
        reason: str,
        *,
        unsupported: bool = False,
        limit: int | None = None,
        need: int | None = None,
        next_step: str | None = f"{SALVAGE} takes the frames that verify",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self._unsupported = unsupported
        self._limit = limit
        self._need = need
        self._next_step = next_step

    def refusal(self, source: Source, line: Line) -> TreeringError:
        """The error for who imports strictly."""
        what = f"line {line.number} {self.reason}"
        path, at = source.path, line.offset
        if self._limit is not None:
            return LimitExceeded(what, limit=self._limit, need=self._need, path=path, offset=at)
        if self._unsupported:
            step = "import it with a newer release"
            return Unsupported(what, path=path, offset=at, next_step=step)
        return InvalidSource(what, path=path, offset=at, next_step=self._next_step)


def native_items(source: Source, *, salvage: bool) -> Iterator[Whole | Blank | LeftOut]:
    """Every frame in order. Strict refuses the first line that is not the next one of the chain.

    A salvage takes every frame that verifies by itself, whether or not it follows the one before
    it, and says which lines it left out.
    """
    chain = _Chain(loose=salvage)
    lines = numbered_lines(source, skip_long=salvage, bytes_max=FRAME_BYTES_MAX)
    for line in lines:
        try:
            yield chain.take(line)
        except _BadFrameError as bad:
            if not salvage:
                raise bad.refusal(source, line) from None
            if line.length == len(line.raw) and is_blank(line.raw):
                yield Blank(line.raw.decode(), line.terminated)
            else:
                yield LeftOut(line.number, line.offset, line.length, bad.reason)


class _Chain:
    """What the next frame must state; a loose one lets every frame say where it stands."""

    def __init__(self, *, loose: bool) -> None:
        self._loose = loose
        self._sequence = 0
        self._previous: bytes | None = None

    def take(self, line: Line) -> Whole:
        raw = line.raw
        if line.length != len(raw):
            raise _too_long(line.length, FRAME_BYTES_MAX)
        if not line.terminated:
            raise _BadFrameError(
                "is an incomplete last frame: no newline ends it",
                next_step=f"wait for its writer; a fork and {SALVAGE} leave it out",
            )
        end = len(raw) - _SUFFIX_BYTES
        prefix = _PREFIX.match(raw)
        suffix = _SUFFIX.fullmatch(raw, end) if end > 0 else None
        if prefix is None or suffix is None:
            raise _BadFrameError(_why_no_frame(line))
        digest = hashlib.sha256(memoryview(raw)[:end])
        digest.update(b"}")
        if digest.hexdigest().encode() != suffix[1]:
            raise _BadFrameError("does not verify: its checksum is that of other bytes")
        flags = _flags(prefix[3], prefix[4])
        sequence = int(prefix[1])
        self._check_place(sequence, prefix[2])
        payload = raw[prefix.end() : end]
        fields = _checked(payload)
        self._sequence, self._previous = sequence + 1, suffix[1]
        facts = FrameFacts(sequence, suffix[1].decode(), flags, line.offset, len(raw) + 1)
        return Whole(line.number, line.offset, payload, fields, frame=facts)

    def _check_place(self, sequence: int, previous: bytes | None) -> None:
        if (sequence == 0) != (previous is None) or sequence >= SEQUENCE_END:
            raise _BadFrameError(f"states sequence {sequence} and a predecessor that cannot be")
        if self._loose:
            return
        if sequence != self._sequence:
            raise _BadFrameError(
                f"states sequence {sequence} where {self._sequence} comes:"
                " frames are missing, repeated or exchanged"
            )
        if previous != self._previous:
            raise _BadFrameError("does not follow the frame before it: it names another checksum")


def _flags(retention: bytes | None, qualification: bytes | None) -> int:
    """The marks as frame flags. The frame is whole: what is not known is of a newer writer."""
    if retention not in (None, _RETENTION):
        raise _BadFrameError(f"has an unknown retention {_shown(retention)}", unsupported=True)
    flags = 0 if retention is None else FLAG_RETAINED
    if qualification is not None:
        if qualification not in _QUALIFICATION_FLAGS:
            raise _BadFrameError(
                f"has an unknown qualification {_shown(qualification)}", unsupported=True
            )
        flags |= _QUALIFICATION_FLAGS[qualification]
    return flags


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN_BYTES_MAX].decode("utf-8", "replace"))


def _checked(payload: bytes) -> Fields:
    """The facts of a payload; a frame of what is no entry at all is refused like no frame."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise _too_long(len(payload), PAYLOAD_BYTES_MAX)
    try:
        return check(payload)
    except BadRecordError as error:
        reason = f"has a payload that {error.reason}"
        limit = None if error.depth is None else JSON_DEPTH_MAX
        raise _BadFrameError(reason, limit=limit, need=error.depth) from None


def _too_long(need: int, limit: int) -> _BadFrameError:
    return _BadFrameError(
        f"is longer than a record can be ({PAYLOAD_BYTES_MAX} bytes)", limit=limit, need=need
    )


def _why_no_frame(line: Line) -> str:
    """What is wrong with a line that is not spelled as a frame is."""
    raw = line.raw
    if is_blank(raw):
        return "is blank: a journal of frames has no such line"
    if line.offset == 0 and raw.startswith(BOM):
        return "begins with a byte order mark, which no frame does"
    try:
        fields = check(raw)
    except BadRecordError as error:
        if error.depth is None:
            return error.reason
    else:
        if fields.journalFrame != 1:
            return "is no frame, in a journal of frames"
        names = [segment.name for segment in members(raw)[1]]
        missing = {"sequence", "previousChecksum", "payload", "checksum"}.difference(names)
        if missing:
            return f"is a frame without {', '.join(sorted(missing))}"
    return "is not spelled as a frame is: order, numbers and white space of its members are fixed"
