"""One record as JSON text: is it whole and strict, and which few facts stand in it?

What msgspec 0.23 does was measured, because "it parses" is not enough here (F69, F126, F128):

* skipped values are checked for everything (NaN, ``01``, trailing commas) except UTF-8, so the
  bytes are checked as UTF-8 first;
* an escaped lone surrogate is refused anywhere. It is legal JSON text and occurs in real files,
  so the record is checked again with ``\\ufffd`` (as many bytes) in place of such escapes;
* nesting recurses, so depth is counted without recursion before anything is decoded.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Final, NamedTuple, TypeVar

from msgspec import UNSET, DecodeError, MsgspecError, Raw, Struct, UnsetType, ValidationError
from msgspec.json import Decoder

from treering.engine.limits import JSON_DEPTH_MAX, MIB

_Value = TypeVar("_Value")

STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_OPENING: Final = re.compile(rb"[ \t\r\n]*+\{")
_MEMBER: Final = re.compile(rb"[ \t\r\n]*+(" + STRING + rb")[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL)
_SCALAR: Final = re.compile(STRING + rb"|[^ \t\r\n,}]++", re.DOTALL)
_AFTER: Final = re.compile(rb"[ \t\r\n]*+[,}]")
_BRACKETS: Final = re.compile(STRING + rb'|[{}\[\]"]', re.DOTALL)
_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.",
    re.DOTALL,
)
_NOT_NUMBERS: Final = re.compile(STRING + rb"|-?Infinity\b|\bNaN\b", re.DOTALL)
_SURROGATE_MARK: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE: Final = b" \t\r\n"
_QUOTE, _CLOSE = b'"}'
_OPEN: Final = b"{["


class BadRecordError(Exception):
    """A line or piece that is not one whole record; ``depth`` is set when it nests too deep."""

    def __init__(self, reason: str, depth: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.depth = depth


class Message(Struct, gc=False):
    """The two members of a message that are looked at for every record."""

    role: str | UnsetType | None = UNSET
    toolCallId: str | UnsetType | None = UNSET  # noqa: N815 (the file's own spelling)


class Fields(Struct):
    """The facts of a record. A member of an unexpected type reads as UNSET and is counted."""

    type: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    parentId: str | UnsetType | None = UNSET  # noqa: N815
    timestamp: str | UnsetType | None = UNSET
    message: Message | UnsetType | None = UNSET
    journalFrame: int | UnsetType | None = UNSET  # noqa: N815
    drifted: int = 0
    lone_surrogates: int = 0

    @property
    def kind(self) -> str:
        """The type as text that can be encoded; empty when it is absent or no string."""
        return clean(self.type) if isinstance(self.type, str) else ""


class Segment(NamedTuple):
    """One member of an object: where it and its parts begin and end in the record's bytes.

    ``begin`` and ``end`` include the white space around it, but no comma.
    """

    name: str
    begin: int
    value_begin: int
    value_end: int
    end: int


class _Wire(Struct, gc=False):
    """What is decoded per record: `Fields` without the counts, which a file must not set."""

    type: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    parentId: str | UnsetType | None = UNSET  # noqa: N815
    timestamp: str | UnsetType | None = UNSET
    message: Message | UnsetType | None = UNSET
    journalFrame: int | UnsetType | None = UNSET  # noqa: N815


_FAST: Final = Decoder(_Wire)
_WHOLE: Final = Decoder(Raw)
_TEXT: Final = Decoder(str)


def clean(text: str) -> str:
    """The text with lone surrogates as U+FFFD: what is reported or indexed must be encodable."""
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def check(raw: bytes) -> Fields:
    """The facts of one whole record, or :class:`BadRecordError` with the reason.

    Guarantees for what it returns: UTF-8, nesting within ``JSON_DEPTH_MAX``, one JSON object and
    nothing after it, with no NaN or Infinity.
    """
    if not raw.isascii():
        _check_utf8(raw)
    deepest = depth_over_limit(raw)
    if deepest is not None:
        raise BadRecordError(f"nests {deepest} deep; the limit is {JSON_DEPTH_MAX}", deepest)
    try:
        wire = _FAST.decode(raw)
    except DecodeError as error:
        return _check_slowly(raw, error)
    return Fields(
        wire.type, wire.id, wire.parentId, wire.timestamp, wire.message, wire.journalFrame
    )


def _check_utf8(raw: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(raw), MIB):
        try:
            decoder.decode(raw[begin : begin + MIB], final=begin + MIB >= len(raw))
        except UnicodeDecodeError as error:
            raise BadRecordError(f"is not UTF-8 ({error.reason})") from None


def depth_over_limit(raw: bytes) -> int | None:
    """The nesting of a text that nests deeper than ``JSON_DEPTH_MAX``, else None.

    To be asked before bytes of a file are decoded: decoders recurse, a thread may have 512 KB of
    stack or less, and running out of it ends the process.
    """
    if raw.count(b"[") + raw.count(b"{") <= JSON_DEPTH_MAX:
        return None
    deepest = _deepest(raw)
    return deepest if deepest > JSON_DEPTH_MAX else None


def decode_or_none(decoder: Decoder[_Value], raw: bytes) -> _Value | None:
    """What the decoder makes of bytes of a file; None when they nest too deep or do not fit."""
    if depth_over_limit(raw) is not None:
        return None
    try:
        return decoder.decode(raw)
    except (MsgspecError, UnicodeError, RecursionError):
        return None


def _deepest(raw: bytes) -> int:
    """Count brackets outside strings. Up to the first fault of the text, strings are what a
    parser takes for strings, so no parser can recurse deeper than this count."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(raw):
        first = raw[match.start()]
        if first in _OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif first != _QUOTE:
            depth -= 1
    return deepest


def _check_slowly(raw: bytes, error: DecodeError) -> Fields:
    """A record that the fast decoder refused: drifted types and lone surrogates are accepted."""
    surrogates = 0
    text = raw
    if _SURROGATE_MARK.search(raw):
        text, surrogates = without_lone_surrogates(raw)
    if isinstance(error, ValidationError) or surrogates:
        try:
            _WHOLE.decode(text)
        except DecodeError as second:
            error = second
        else:
            if raw.lstrip(_SPACE)[:1] != b"{":
                raise BadRecordError(f"is {_value_name(raw)}, not an object")
            return _drifted_fields(raw, surrogates)
    raise BadRecordError(_what_is_wrong(text, error))


def without_lone_surrogates(raw: bytes) -> tuple[bytes, int]:
    r"""The text with ``\ufffd`` for each lone surrogate escape, and their number.

    The length stays, and the change is made in place: a substitution would hold every piece
    between two escapes, which is many times the size of a large record.
    """
    text = bytearray(raw)
    count = 0
    for match in _ESCAPES.finditer(raw):
        if match.end() - match.start() == 6:
            text[match.start() : match.end()] = rb"\ufffd"
            count += 1
    return bytes(text), count


def _value_name(raw: bytes) -> str:
    first = raw.lstrip(_SPACE)[:1]
    names = {b"[": "an array", b'"': "a string", b"n": "null", b"t": "true", b"f": "false"}
    return names.get(first, "a number")


def _what_is_wrong(raw: bytes, error: DecodeError) -> str:
    """Why the text is no JSON, in words that name the common faults of real files."""
    nuls = raw.count(0)
    if nuls:
        return "is filled with NUL bytes" if nuls == len(raw) else f"holds {nuls} NUL bytes"
    token = next((m[0] for m in _NOT_NUMBERS.finditer(raw) if m[0][:1] != b'"'), None)
    if token is not None and _is_whole(_with_numbers(raw)):
        return f"holds {token.decode()}, which is not JSON"
    return f"is not JSON ({str(error).removeprefix('JSON is malformed: ')})"


def _with_numbers(raw: bytes) -> bytes:
    """The text with a number for each NaN and Infinity, of the same length."""
    text = bytearray(raw)
    for match in _NOT_NUMBERS.finditer(raw):
        if raw[match.start()] != _QUOTE:
            text[match.start() : match.end()] = b"0".ljust(match.end() - match.start())
    return bytes(text)


def _is_whole(raw: bytes) -> bool:
    try:
        _WHOLE.decode(raw)
    except DecodeError:
        return False
    return True


def _drifted_fields(raw: bytes, surrogates: int) -> Fields:
    """The facts of valid JSON, member by member; ids keep their lone surrogates."""
    fields = Fields(lone_surrogates=surrogates)
    values = {s.name: raw[s.value_begin : s.value_end] for s in members(raw)[1]}
    for name in ("type", "id", "parentId", "timestamp"):
        if name in values:
            value = text_of(values[name])
            setattr(fields, name, value)
            fields.drifted += value is UNSET
    if values.get("journalFrame") == b"1":
        fields.journalFrame = 1
    message = values.get("message", b"")
    if message[:1] == b"{":
        inner = {s.name: message[s.value_begin : s.value_end] for s in members(message)[1]}
        role, call = (text_of(inner.get(n, b"null")) for n in ("role", "toolCallId"))
        fields.message = Message(role, call)
        fields.drifted += (role is UNSET) + (call is UNSET)
    elif message and message != b"null":
        fields.drifted += 1
    return fields


def text_of(value: bytes) -> str | UnsetType | None:
    """The string a JSON value spells (lone surrogates stay), None for null, else UNSET."""
    if value == b"null":
        return None
    if value[:1] != b'"':
        return UNSET
    try:
        return _TEXT.decode(value)
    except DecodeError:
        text = json.loads(value.decode())
        assert isinstance(text, str)
        return text


def object_end(raw: bytes, begin: int) -> int:
    """Where the value that opens at ``begin`` closes; -1 when it does not, or nests too deep.

    Lexical only (strings and brackets): the caller checks the piece it gets.
    """
    depth = 0
    for match in _BRACKETS.finditer(raw, begin):
        first = raw[match.start()]
        if first in _OPEN:
            depth += 1
            if depth > JSON_DEPTH_MAX:
                return -1
        elif first != _QUOTE:
            depth -= 1
            if depth <= 0:
                return match.end()
        elif match.end() - match.start() == 1:
            return -1
    return -1


def members(raw: bytes, begin: int = 0) -> tuple[int, list[Segment], int]:
    """The object that opens at or after ``begin``: its ``{``, its members, its ``}``.

    The text must be valid JSON; duplicate names come as often as they stand there.
    """
    found: list[Segment] = []
    opening = _OPENING.match(raw, begin)
    at = opened = -1 if opening is None else opening.end() - 1
    while opening is not None:
        at += 1
        member = _MEMBER.match(raw, at)
        if member is None:
            break
        value = member.end()
        if raw[value] in _OPEN:
            value_end = object_end(raw, value)
        else:
            scalar = _SCALAR.match(raw, value)
            value_end = -1 if scalar is None else scalar.end()
        after = _AFTER.match(raw, value_end) if value_end >= 0 else None
        if after is None:
            break
        begin, at = at, after.end() - 1
        found.append(Segment(str(text_of(member[1])), begin, value, value_end, at))
        if raw[at] == _CLOSE:
            return opened, found, at
    closing = _AFTER.match(raw, at) if opening is not None and not found else None
    if closing is None or raw[closing.end() - 1] != _CLOSE:
        raise BadRecordError("is not a whole object")
    return opened, [], closing.end() - 1
