"""From a source to its records: what the file is, and the strict and the salvaging reading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from treering.engine.errors import InvalidSource, LimitExceeded, TreeringError, Unsupported
from treering.engine.json_text import BadRecordError, Fields, check
from treering.engine.limits import JSON_DEPTH_MAX, KIB
from treering.engine.transfer.legacy_salvage import ArrayReader, take_apart
from treering.engine.transfer.records import (
    BOM,
    LINE_BYTES_MAX,
    Line,
    Source,
    is_blank,
    line_too_long,
    numbered_lines,
)

Format = Literal[
    "jsonl", "native-frames", "treering", "json-array", "zstd", "gzip", "bzip2", "empty", "unknown"
]

JOURNALS: Final[frozenset[Format]] = frozenset(("native-frames", "treering"))
"""Formats whose records stand in frames: no export gives their bytes back."""

_TREERING_MAGIC: Final = b"\x89TRNG\r\n\x1a"
_COMPRESSED: Final[dict[bytes, Format]] = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
}
"""By the first bytes; no JSON begins with them."""
_ZSTD_SKIPPABLE: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_FRAME: Final = re.compile(rb'[ \t\r]*\{[ \t\r]*"journalFrame"[ \t\r]*:[ \t\r]*1[ \t\r]*[,}]')
_PROBE_BYTES: Final = 64 * KIB
SALVAGE: Final = "--salvage"


class FrameFacts(NamedTuple):
    """What the frame of a record says: its place in its journal, its digest, and its marks."""

    sequence: int
    revision: str
    """The frame's checksum in hexadecimal, as its own format has it."""
    flags: int
    """Retention and qualification, as the flags of a frame."""
    offset: int
    """Of the frame in its file, in bytes."""
    length: int
    """Of the whole frame, in bytes."""


class Whole(NamedTuple):
    """A whole record. ``shared`` when its line holds more than this record.

    ``number`` is its line, or in a journal of ours its frame; ``frame`` is set for journals.
    """

    number: int
    offset: int
    raw: bytes
    fields: Fields
    shared: bool = False
    frame: FrameFacts | None = None


class LeftOut(NamedTuple):
    """Bytes of the source that no record was made of, and why; the source still has them."""

    line: int
    offset: int
    length: int
    reason: str


class Blank(NamedTuple):
    """A line without a record."""

    text: str
    terminated: bool


def detect(source: Source) -> Format:
    """What the file is, by its first bytes and first record. A BOM and blank lines do not count."""
    head = source.read_at(0, 8)
    if head == _TREERING_MAGIC:
        return "treering"
    for magic, compressed in _COMPRESSED.items():
        if head.startswith(magic):
            return compressed
    if _ZSTD_SKIPPABLE.match(head):
        return "zstd"
    offset = bom_length(source)
    while chunk := source.read_at(offset, _PROBE_BYTES):
        rest = chunk.lstrip(b" \t\r\n")
        offset += len(chunk) - len(rest)
        if rest:
            break
    else:
        return "empty"
    if rest[:1] == b"[":
        return "json-array"
    if rest[:1] != b"{":
        return "unknown"
    return "native-frames" if _begins_with_frame(source, offset) else "jsonl"


def _begins_with_frame(source: Source, offset: int) -> bool:
    """Whether ``journalFrame`` is the integer 1 in the first record, wherever it stands there."""
    if _FRAME.match(source.read_at(offset, KIB)):
        return True
    line = next(numbered_lines(source, start=offset), None)
    if line is None or b"journalFrame" not in line.raw:
        return False
    try:
        return check(line.raw).journalFrame == 1
    except BadRecordError:
        return False


def bom_length(source: Source) -> int:
    """Bytes of the BOM at the start of the file: 3 or 0."""
    return len(BOM) if source.read_at(0, len(BOM)) == BOM else 0


def refuse_format(source: Source, found: Format, *, salvage: bool) -> None:
    """Raise for a file that holds no records; in salvage an array and garbage are read."""
    if found == "empty":
        raise InvalidSource("the file is empty: it has no session header", path=source.path)
    if found == "treering":
        raise InvalidSource(
            "it begins like a Treering journal, but is not whole or was never published",
            path=source.path,
            next_step="treering session fsck says what is left of it",
        )
    if found in _COMPRESSED.values():
        raise Unsupported(
            f"compressed with {found}",
            path=source.path,
            next_step=f"decompress it first ({found} -d)",
        )
    if found == "json-array" and not salvage:
        raise Unsupported(
            "a JSON array, not one record per line",
            path=source.path,
            next_step=f"{SALVAGE} takes its complete elements",
        )


def strict_items(source: Source) -> Iterator[Whole | Blank]:
    """Every record and blank line, or the refusal of the first that is not whole."""
    first = True
    for line in numbered_lines(source, start=bom_length(source)):
        if line.length != len(line.raw):
            raise line_too_long(source, line)
        raw = line.raw
        if is_blank(raw):
            yield Blank(raw.decode(), line.terminated)
            continue
        try:
            if not line.terminated:
                raise _incomplete(source, line)
            fields = check(raw)
        except BadRecordError as error:
            raise _refusal(source, line, error, first=first) from None
        if fields.journalFrame == 1 and not isinstance(fields.type, str):
            raise InvalidSource(
                f"line {line.number} is a JSON-framed journal record in a plain file",
                path=source.path,
                offset=line.offset,
            )
        first = False
        yield Whole(line.number, line.offset, raw, fields)


def _incomplete(source: Source, line: Line) -> InvalidSource:
    try:
        check(line.raw)
    except BadRecordError as error:
        state = f"and it {error.reason}"
    else:
        state = "although it would read as a whole record"
    return InvalidSource(
        f"line {line.number} is an incomplete last record: no newline ends it, {state}",
        path=source.path,
        offset=line.offset,
        next_step=f"wait for its writer, or use {SALVAGE}",
    )


def _refusal(source: Source, line: Line, error: BadRecordError, *, first: bool) -> TreeringError:
    if error.depth is not None:
        return LimitExceeded(
            f"line {line.number} {error.reason}",
            limit=JSON_DEPTH_MAX,
            need=error.depth,
            path=source.path,
            offset=line.offset,
        )
    wholes = sum(piece.fields is not None for piece in take_apart(line.raw, ""))
    what, next_step = f"line {line.number} {error.reason}", f"{SALVAGE} takes the other records"
    if wholes > 1:
        what = f"line {line.number} holds {wholes} whole records instead of one"
        next_step = f"{SALVAGE} takes each of them"
    elif wholes:
        what += "; 1 whole record stands on it"
        next_step = f"{SALVAGE} takes it"
    elif first:
        what = f"no session header: {what}"
    return InvalidSource(what, path=source.path, offset=line.offset, next_step=next_step)


def salvaged_items(source: Source, found: Format) -> Iterator[Whole | Blank | LeftOut]:
    """Everything that is whole, in order, and what is left out between."""
    start, number = bom_length(source), 1
    if found == "json-array" and _holds_objects(source, start):
        elements = ArrayReader(source, start)
        for element in elements:
            place = (element.number, element.offset)
            if element.fields is not None:
                yield Whole(*place, element.raw, element.fields)
            else:
                yield LeftOut(*place, element.length, element.reason)
        start, number = elements.offset, elements.number
    for line in numbered_lines(source, start=start, number=number, skip_long=True):
        if line.length != len(line.raw):
            reason = f"is longer than a record can be ({LINE_BYTES_MAX} bytes)"
            yield LeftOut(line.number, line.offset, line.length, reason)
        elif is_blank(line.raw):
            yield Blank(line.raw.decode(), line.terminated)
        else:
            yield from _salvaged_line(line)


def _holds_objects(source: Source, offset: int) -> bool:
    """Whether a ``[`` opens an array of objects; a log line may begin with ``[2025-…]``."""
    head = source.read_at(offset, _PROBE_BYTES).lstrip(b" \t\r\n")
    return head[1:].lstrip(b" \t\r\n")[:1] in (b"{", b"]")


def _salvaged_line(line: Line) -> Iterator[Whole | LeftOut]:
    try:
        fields = check(line.raw)
    except BadRecordError as error:
        reason = error.reason
        if not line.terminated:
            reason = f"is an incomplete last record and {reason}"
    else:
        if fields.journalFrame == 1 and not isinstance(fields.type, str):
            reason = "is a JSON-framed journal record in a plain file"
            yield LeftOut(line.number, line.offset, line.length, reason)
        else:
            yield Whole(line.number, line.offset, line.raw, fields)
        return
    for piece in take_apart(line.raw, reason):
        offset, length = line.offset + piece.begin, piece.end - piece.begin
        if piece.fields is None:
            yield LeftOut(line.number, offset, length, piece.reason)
        else:
            raw = line.raw[piece.begin : piece.end]
            yield Whole(line.number, offset, raw, piece.fields, shared=True)
