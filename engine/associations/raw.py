"""The reports of one file as it is: plain JSONL, Base Context's JSON frames, or a journal of ours.

Nothing is skipped on the way: what cannot be read might speak against a match, so it ends the
report. Only a torn end is left out, as every reader leaves it out.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from msgspec import UNSET

from treering.engine import home
from treering.engine.associations.matching import Matcher
from treering.engine.associations.members import Line, entry_of, line_of
from treering.engine.errors import InvalidSource, from_os_error
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Frame,
    Kind,
    decode_file_header,
    salt_of,
)
from treering.engine.journal.history import History, Walk
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import Bytes, FileBytes, frame_at
from treering.engine.journal.recovery import Examination, examine
from treering.engine.json_text import BadRecordError
from treering.engine.limits import SCAN_CHUNK_BYTES
from treering.engine.session.entry import CONTEXT_EPOCH, CONTEXT_EPOCH_FLAGS
from treering.engine.session.filling import remembered_watermark
from treering.engine.session.view import examine_again
from treering.engine.transfer.journal_source import KEPT_FLAGS, refuse_not_whole
from treering.engine.transfer.legacy_read import detect
from treering.engine.transfer.native_jsonl import FRAME_BYTES_MAX, native_items
from treering.engine.transfer.records import (
    BOM,
    LocalSource,
    Source,
    is_blank,
    line_too_long,
    numbered_lines,
)


def read_file(path: str | os.PathLike[str], *, verify: bool = False) -> Matcher:
    """Everything that the reports of a file need. Memory is one line or frame besides.

    ``verify``: frames of JSON too; frames of ours always are.

    Raises:
        InvalidSource: a line is no JSON, or the file is none at all; says how far it was read.
        LimitExceeded: a line is longer than a record can be.
        Damaged, AcknowledgedDataLost, Unsupported: a journal of ours that is not whole.
        NotFound, StorageError: the system refused.
    """
    with LocalSource(path) as source:
        found = detect(source)
        if found in ("treering", "unknown"):
            matcher = _read_journal(home.journal_file(path), certain=found == "treering")
            if matcher is not None:
                return matcher
        if verify and found == "native-frames":
            verify_frames(source)
        return read_lines(source)


def verify_frames(source: Source) -> None:
    """Verify the whole frames of a file, one by one, and that each follows the one before it.

    Raises:
        InvalidSource, Unsupported, LimitExceeded: the first line that is not the next frame.
    """
    deque(native_items(_WholeLines(source), salvage=False), maxlen=0)


class _WholeLines:
    """A source without what stands behind its last newline: that is torn, or being written."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.path = source.path
        self.size = source.size
        while self.size:
            start = max(0, self.size - SCAN_CHUNK_BYTES)
            newline = source.read_at(start, self.size - start).rfind(b"\n")
            self.size = start + newline + 1
            if newline >= 0:
                return

    def read_at(self, offset: int, length: int) -> bytes:
        """See :class:`Source`."""
        return self._source.read_at(offset, min(length, max(0, self.size - offset)))


def read_lines(source: Source) -> Matcher:
    """Everything that the reports of lines need, framed or not."""
    matcher = Matcher()
    for line in _lines(source):
        if line.entry is not None:
            matcher.take(
                line.entry,
                original=line.bare and line.qualification is UNSET,
                compaction_original=line.bare and line.qualification in (UNSET, CONTEXT_EPOCH),
                native=line.framed,
            )
    return matcher


def _lines(source: Source) -> Iterator[Line]:
    for line in numbered_lines(source, bytes_max=FRAME_BYTES_MAX):
        if line.length != len(line.raw):
            raise line_too_long(source, line)
        if is_blank(line.raw):
            continue
        try:
            found = line_of(line.raw)
        except BadRecordError as error:
            if not line.terminated:
                return  # torn, or being written
            reason = "begins with a byte order mark" if line.raw[:3] == BOM else error.reason
            raise InvalidSource(
                f"line {line.number} {reason}; what is before it says too little for a report",
                path=source.path,
                offset=line.offset,
            ) from None
        # A frame without its newline is not whole.
        yield found if line.terminated else found._replace(bare=False)


def _read_journal(path: str, *, certain: bool) -> Matcher | None:
    """A journal of ours; None when the file is none."""
    file = open_regular(LOCAL_DISK, path, write=False)
    try:
        # The watermark first, then the size: what an owner appends in between must not look lost.
        watermark = remembered_watermark(path, file)
        try:
            size = file.stat().size
        except OSError as error:
            raise from_os_error(error, "look at the session", path) from error
        source = FileBytes(file, path, size)
        matcher = _read_at_once(source, watermark)
        if matcher is None:
            found = examine_again(source, watermark)
            if found.case == "G" and not certain:
                return None
            refuse_doubtful(found)
            assert found.journal_id is not None
            matcher, _ = _read_frames(source.captured(found.place.offset), found.journal_id)
        return matcher
    finally:
        file.close()


def _read_at_once(source: FileBytes, watermark: bytes | None) -> Matcher | None:
    """In one pass what is plainly whole; None for what must be judged first."""
    header = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), source.path)
    if header is None:
        return None
    matcher, history = _read_frames(source, header.journal_id)
    if history.last is None or history.problem_count:
        return None
    end = examine(source, watermark=watermark, from_frame=history.last)
    return matcher if end.case == "A" and not end.from_header else None


def refuse_doubtful(found: Examination) -> None:
    """Refuse a journal that may hold more than it shows; raises as :func:`refuse_not_whole`."""
    refuse_not_whole(found, "it may speak against a match", "report it with a newer release")


def _read_frames(source: FileBytes, journal_id: bytes) -> tuple[Matcher, History]:
    matcher, walk = Matcher(), Walk(source, journal_id)
    decode = walk.history.shared.decoder.decode
    header = session_frame(source, salt_of(journal_id))
    if header is not None:
        take_stored(matcher, decode(*header), header[0].flags)
    for frame, stored in walk.visible():
        if frame.kind != Kind.LEAF:
            take_stored(matcher, decode(frame, stored) if frame.codec else stored, frame.flags)
    return matcher, walk.history


def session_frame(source: Bytes, salt: int) -> tuple[Frame, bytes] | None:
    """The frame of the session header with its payload as stored; None when it is lost."""
    first = frame_at(source, salt, FILE_HEADER_BYTES)
    found = None if first is None else frame_at(source, salt, first[0].end)
    if found is None or found[0].kind != Kind.SESSION:
        return None
    return found[0], found[1][FRAME_HEADER_BYTES:]


def take_stored(matcher: Matcher, payload: bytes, flags: int) -> None:
    """Give what a frame of ours holds to a matcher."""
    entry = entry_of(payload)
    if entry is not None:
        matcher.take(
            entry,
            original=not flags & KEPT_FLAGS,
            compaction_original=flags & KEPT_FLAGS in (0, CONTEXT_EPOCH_FLAGS),
        )
