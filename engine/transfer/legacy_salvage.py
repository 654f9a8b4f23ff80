"""Whole records in damaged lines.

Three faults of real files are undone: two records on one line (an append lost its newline), a
whole record behind a torn one (an append after a crash was fused to the torn tail), and elements
of a JSON array, closed or not. A piece is only taken when it verifies by itself; everything else
is left out, with the reason, and can be read from the source at the offset that is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from treering.engine.json_text import (
    BadRecordError,
    Fields,
    check,
    members,
    object_end,
)
from treering.engine.limits import JSON_DEPTH_MAX, MIB, SCAN_CHUNK_BYTES
from treering.engine.transfer.legacy_tree import KNOWN_KINDS
from treering.engine.transfer.records import LINE_BYTES_MAX, Source

SCAN_FACTOR: Final = 4
SCAN_BYTES: Final = 16 * MIB
"""Bounds a search for records on one line, which is quadratic for a line made for it: at most
``SCAN_FACTOR`` times its length and ``SCAN_BYTES`` are scanned, then the rest is left out."""

_START: Final = re.compile(rb'\{[ \t\r]*"type"[ \t\r]*:')
_SPACE_OR_NUL: Final = re.compile(rb"[ \t\r\0]*+")
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_TOKENS: Final = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+"|[{}\[\]"]')
_ENTRY_MEMBERS: Final = frozenset({"timestamp", "parentId"})


class Piece(NamedTuple):
    """A part of a line: a whole record (``fields``), or what is left out and why."""

    begin: int
    end: int
    fields: Fields | None
    reason: str


def take_apart(raw: bytes, reason: str) -> Iterator[Piece]:
    """The pieces of a line that is not one whole record, for the given reason."""
    budget = [SCAN_FACTOR * len(raw) + SCAN_BYTES]
    at = 0
    while True:
        begin = at
        at = _end(_SPACE_OR_NUL, raw, at)
        if 0 in raw[begin:at]:
            yield Piece(begin, at, None, "is filled with NUL bytes")
        if at == len(raw):
            return
        piece = _whole(raw, at, budget) if raw[at] == 0x7B else None
        if piece is None:
            resumed = _next_record(raw, at + 1, budget)
            why = reason if at == 0 else _why(raw[at:resumed])
            piece = Piece(at, resumed, None, why)
        yield piece
        at = piece.end


def _end(pattern: re.Pattern[bytes], raw: bytes, at: int) -> int:
    match = pattern.match(raw, at)
    assert match is not None
    return match.end()


def _whole(raw: bytes, begin: int, budget: list[int]) -> Piece | None:
    if budget[0] <= 0:
        return None
    end = object_end(raw, begin)
    budget[0] -= (end if end > 0 else len(raw)) - begin
    if end < 0:
        return None
    try:
        return Piece(begin, end, check(raw[begin:end]), "")
    except BadRecordError:
        return None


def _next_record(raw: bytes, begin: int, budget: list[int]) -> int:
    """Where a whole record begins behind something torn; the end of the line if nowhere.

    It must look like an entry, and only the line's end, NULs or a further record may follow: an
    object inside a torn record is followed by a comma or a bracket.
    """
    for match in _START.finditer(raw, begin):
        piece = _whole(raw, match.start(), budget)
        if piece is None or piece.fields is None:
            continue
        after = _end(_SPACE_OR_NUL, raw, piece.end)
        if (after == len(raw) or raw[after] == 0x7B) and _is_entry(raw, piece, piece.fields):
            return piece.begin
    return len(raw)


def _is_entry(raw: bytes, piece: Piece, fields: Fields) -> bool:
    """Whether the object is more than a content block or an argument of the torn record.

    A record torn right behind such an object looks as if a whole one followed. Entries have a
    type that is known, or else the members that every writer gives them.
    """
    if not isinstance(fields.type, str):
        return False
    if fields.type == "session" or fields.type in KNOWN_KINDS:
        return True
    names = {s.name for s in members(raw[piece.begin : piece.end])[1]}
    return not names.isdisjoint(_ENTRY_MEMBERS)


def _why(piece: bytes) -> str:
    try:
        check(piece)
    except BadRecordError as error:
        return error.reason
    return "stands behind a torn record and may be a part of it"


class Element(NamedTuple):
    """An object of an array. Newlines between its tokens became spaces: an entry is one line."""

    number: int
    offset: int
    length: int
    raw: bytes
    fields: Fields | None
    reason: str


class ArrayReader:
    """The elements of a JSON array, streamed; memory is one element and one chunk.

    After the iteration, ``offset`` and ``number`` say where lines go on: behind the array, or at
    the element at which it stopped being one.
    """

    def __init__(self, source: Source, offset: int) -> None:
        self._source = source
        self._buffer = b""
        self._at = 0
        self.offset = offset
        self.number = 1

    def __iter__(self) -> Iterator[Element]:
        self._skip_space()
        self._drop(1)
        while True:
            self._skip_space()
            first = self._buffer[self._at : self._at + 1]
            if first == b",":
                self._drop(1)
            elif first == b"{":
                length = self._object_length()
                if length < 0:
                    return
                yield self._element(length)
                self._drop(length)
            else:
                if first == b"]":
                    self._drop(1)
                    self._skip_space()
                return

    def _more(self, wanted: int) -> bool:
        """Read on, and forget what was dropped: done per chunk, because it copies."""
        data = self._source.read_at(self.offset + len(self._buffer) - self._at, wanted)
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        return bool(data)

    def _skip_space(self) -> None:
        while True:
            end = _end(_SPACE, self._buffer, self._at)
            done = end < len(self._buffer)
            self._drop(end - self._at)
            if done or not self._more(SCAN_CHUNK_BYTES):
                return

    def _drop(self, count: int) -> None:
        self.number += self._buffer.count(b"\n", self._at, self._at + count)
        self.offset += count
        self._at += count

    def _object_length(self) -> int:
        """Bytes of the object at this place; -1 when it never closes, or not within limits.

        A raw newline inside a string ends the search: JSON has none, so the array is torn there.
        """
        depth = done = 0
        while True:
            for match in _TOKENS.finditer(self._buffer, self._at + done):
                token = match[0]
                if token == b'"':  # may go on in the next chunk: look at it again then
                    break
                done = match.end() - self._at
                if token in (b"{", b"["):
                    depth += 1
                elif token in (b"}", b"]"):
                    depth -= 1
                    if depth == 0:
                        return done
                if depth > JSON_DEPTH_MAX:
                    return -1
            quote = self._buffer.find(b'"', self._at + done)
            torn = quote >= 0 and self._buffer.find(b"\n", quote) >= 0
            if torn or len(self._buffer) - self._at > LINE_BYTES_MAX:
                return -1
            if not self._more(max(SCAN_CHUNK_BYTES, len(self._buffer))):
                return -1

    def _element(self, length: int) -> Element:
        raw = self._buffer[self._at : self._at + length].replace(b"\n", b" ")
        try:
            fields = check(raw)
        except BadRecordError as error:
            return Element(self.number, self.offset, length, raw, None, error.reason)
        if length > LINE_BYTES_MAX:
            return Element(self.number, self.offset, length, raw, None, "is too long")
        return Element(self.number, self.offset, length, raw, fields, "")
