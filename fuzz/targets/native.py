"""Journals of JSON frames: exactly the frames that a second reading of the format accepts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, NoReturn

from treering.engine.errors import TreeringError
from treering.engine.transfer.legacy import CopyLimits, analyse, prepare
from treering.engine.transfer.legacy_read import Blank, LeftOut, Whole
from treering.engine.transfer.native_jsonl import native_items
from treering.fuzz.oracle import json_depth
from treering.fuzz.targets.target import Broken, Memory, Native, Target, same

_DEPTH_MAX: Final = 128
_SEQUENCE_END: Final = 2**53 - 1
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_BEFORE: Final = ["journalFrame", "sequence", "previousChecksum"]
_BEHIND: Final = ["payload", "checksum"]
_MARKS: Final = {
    "retention": {"retained-import": 1},
    "qualification": {
        "native-admission": 2,
        "native-recovery": 4,
        "native-context-epoch": 6,
        "native-tool-execution": 8,
    },
}


class Frame(NamedTuple):
    """A frame that verifies by itself."""

    sequence: int
    previous: str | None
    flags: int
    payload: bytes
    checksum: str


def check(data: bytes) -> None:
    """Strict stops where the chain stops; a salvage takes every line that is a frame; what is
    analysed and prepared is what was read."""
    lines = data.split(b"\n")
    frames = [by_hand(line) for line in lines[:-1]] + [None]
    _strict(data, frames if lines[-1] else frames[:-1])
    _salvage(data, lines, frames)
    for salvage in (False, True):
        _whole(data, salvage=salvage)


def by_hand(line: bytes) -> Frame | None:
    """The frame on a line, without its LF: built again from what its JSON says, and compared."""
    try:
        pairs = _parsed(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, _Object):
        return None
    names, values = [name for name, _ in pairs], dict(pairs)
    marks = [name for name in _MARKS if name in values]
    if names != [*_BEFORE, *marks, *_BEHIND] or not isinstance(values["checksum"], str):
        return None
    sequence, previous = str(values["sequence"]), values["previousChecksum"]
    if not (sequence.isdecimal() and str(int(sequence[:17])) == sequence):
        return None
    number = int(sequence)
    if previous is not None and not (isinstance(previous, str) and _HEX.fullmatch(previous)):
        return None
    if number >= _SEQUENCE_END or (number == 0) != (previous is None):
        return None
    if any(not isinstance(values[m], str) or values[m] not in _MARKS[m] for m in marks):
        return None
    before = "null" if previous is None else f'"{previous}"'
    prefix = f'{{"journalFrame":1,"sequence":{number},"previousChecksum":{before}'
    prefix += "".join(f',"{mark}":"{values[mark]}"' for mark in marks) + ',"payload":'
    suffix = f',"checksum":"{values["checksum"]}"}}'
    start, end = len(prefix), len(line) - len(suffix.encode("utf-8", "replace"))
    payload = line[start:end]
    if line != prefix.encode() + payload + suffix.encode("utf-8", "replace"):
        return None
    stated = hashlib.sha256(line[:end] + b"}").hexdigest()
    if stated != values["checksum"] or not _is_record(payload):
        return None
    flags = sum(_MARKS[mark][values[mark]] for mark in marks)
    return Frame(number, previous, flags, payload, stated)


class _Object(list[tuple[str, Any]]):
    """Members as they stand there, repeated ones too."""


def _parsed(text: str) -> Any:
    def refused(constant: str) -> NoReturn:
        raise ValueError(constant)

    return json.loads(
        text, object_pairs_hook=_Object, parse_int=str, parse_float=str, parse_constant=refused
    )


def _is_record(payload: bytes) -> bool:
    """Whether it is an object by itself, nested no deeper than an entry can be."""
    try:
        if not isinstance(_parsed(payload.decode()), _Object):
            return False
    except (ValueError, RecursionError):
        return False
    return json_depth(payload) <= _DEPTH_MAX


def _found(item: Whole) -> tuple[Any, ...]:
    if item.frame is None:
        raise Broken("a frame without what its frame says")
    return item.frame.sequence, item.frame.flags, item.raw, item.frame.revision


def _expected(frame: Frame) -> tuple[Any, ...]:
    return frame.sequence, frame.flags, frame.payload, frame.checksum


def _strict(data: bytes, frames: list[Frame | None]) -> None:
    expected: list[tuple[Any, ...]] = []
    previous = None
    for frame in frames:
        if frame is None or frame.sequence != len(expected) or frame.previous != previous:
            break
        expected.append(_expected(frame))
        previous = frame.checksum
    found: list[tuple[Any, ...]] = []
    refusal: TreeringError | None = None
    try:
        for item in native_items(Memory(data), salvage=False):
            if not isinstance(item, Whole):
                raise Broken(f"the strict reading gives {item}")
            found.append(_found(item))
    except TreeringError as error:
        refusal = error
    same("frames", found, expected)
    if len(expected) == len(frames):
        same("refusal of a whole journal", refusal, None)
    elif refusal is None or f"line {len(found) + 1} " not in str(refusal):
        raise Broken(f"line {len(found) + 1} is no next frame, and the refusal is {refusal}")
    else:
        offset = sum(len(line) + 1 for line in data.split(b"\n")[: len(found)])
        same("offset of the refusal", refusal.offset, offset)


def _salvage(data: bytes, lines: list[bytes], frames: list[Frame | None]) -> None:
    """Every line is taken, left out or blank, in order."""
    items = native_items(Memory(data), salvage=True)
    offset = 0
    for number, (line, frame) in enumerate(zip(lines, frames, strict=True), 1):
        if number < len(lines) or line:
            item = next(items, None)
            if frame is not None:
                taken = _found(item) if isinstance(item, Whole) else item
                same(f"line {number}", taken, _expected(frame))
            elif not line.strip(b" \t\r"):
                same(f"line {number}", item, Blank(line.decode(), number < len(lines)))
            elif not isinstance(item, LeftOut):
                raise Broken(f"line {number} is no frame, and became {item}")
            else:
                place = (item.line, item.offset, item.length)
                same("place of what is left out", place, (number, offset, len(line)))
        offset += len(line) + 1
    same("end", next(items, None), None)


def _whole(data: bytes, *, salvage: bool) -> None:
    """Through analysis and preparation: typed errors only, and every frame once."""
    source = Memory(data)
    try:
        analysis = analyse(source, limits=CopyLimits(), salvage=salvage)
    except TreeringError as error:
        if not str(error):
            raise Broken("a refusal without a reason") from error
        return
    entries = list(prepare(source, analysis))
    same("number of entries", len(entries), analysis.entry_count)
    if analysis.format != "native-frames":
        return
    if analysis.byte_exact:
        raise Broken("no export gives frames back, and this one says so")
    frames = [frame for line in data.split(b"\n")[:-1] if (frame := by_hand(line)) is not None]
    if analysis.header_position is not None:
        del frames[analysis.header_position]
    flags = [None if entry.frame is None else entry.frame.flags for entry in entries]
    same("marks", flags, [frame.flags for frame in frames])
    if analysis.effective_version == 3:
        same("entries", [entry.raw for entry in entries], [frame.payload for frame in frames])


# Mutations

_PLACE: Final = re.compile(rb'"sequence":[^,]*,"previousChecksum":(?:"[^"]*"|[^,]*)')
_SEAL: Final = b',"checksum":"'


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Half of the time lines or parts of one, and then mostly checksums and the chain anew."""
    seed = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    lines = data.splitlines(keepends=True)
    if seed >> 63 or not lines:
        return native(data, size_max)
    how, anew, choice = seed >> 20 & 7, seed >> 23 & 3, seed >> 25
    at, choice = choice % len(lines), choice // len(lines)
    other, line = choice % len(lines), lines[at]
    if how == 0:
        lines.insert(other, line)
    elif how == 1:
        del lines[at]
    elif how == 2:
        lines[at], lines[other] = lines[other], line
    elif how == 3:
        lines[at] = line[: choice % (len(line) + 1)]
    elif how == 4:
        marks = [f',"{name}":"{value}"' for name, values in _MARKS.items() for value in values]
        mark = marks[choice % len(marks)].encode()
        lines[at] = line.replace(mark, b"") if mark in line else _before(line, b',"payload"', mark)
    else:
        begin = line.find(b'"payload":') + 10 if how != 5 else 0
        end = line.rfind(_SEAL) if how != 5 else line.find(b'"payload":')
        end = max(begin, end)
        lines[at] = line[:begin] + native(line[begin:end], end - begin + 24) + line[end:]
    if anew == 1:
        lines = [_sealed(one) for one in lines]
    elif anew > 1:
        lines = _chained(lines)
    return b"".join(lines)[:size_max]


def _before(line: bytes, place: bytes, piece: bytes) -> bytes:
    head, found, tail = line.partition(place)
    return head + piece + found + tail if found else line


def _sealed(line: bytes) -> bytes:
    body, found, tail = line.rpartition(_SEAL)
    if not found:
        return line
    checksum = hashlib.sha256(body + b"}").hexdigest().encode()
    return body + _SEAL + checksum + b'"}' + (b"\n" if tail.endswith(b"\n") else b"")


def framed(payloads: Iterable[bytes]) -> list[bytes]:
    """A journal of these payloads, line by line."""
    before = b'{"journalFrame":1,"sequence":0,"previousChecksum":null,"payload":'
    return _chained(before + one + _SEAL + b'"}\n' for one in payloads)


def _chained(lines: Iterable[bytes]) -> list[bytes]:
    made: list[bytes] = []
    previous = b"null"
    for line in lines:
        place = b'"sequence":%d,"previousChecksum":%s' % (len(made), previous)
        made.append(_sealed(place.join(_PLACE.split(line, maxsplit=1))))
        previous = b'"%s"' % made[-1].rpartition(_SEAL)[2][:64]
    return made


TARGET: Final = Target(
    check,
    modules=(
        "treering.engine.json_text",
        "treering.engine.transfer.legacy",
        "treering.engine.transfer.legacy_scan",
        "treering.engine.transfer.native_jsonl",
        "treering.engine.transfer.records",
    ),
    bytes_max=2048,
    seconds_max=5.0,
    memory_bytes_max=32 << 20,
    tokens=(
        b'{"journalFrame":1,"sequence":',
        b',"previousChecksum":null',
        b',"retention":"retained-import"',
        *(f',"qualification":"{name}"'.encode() for name in _MARKS["qualification"]),
        b',"payload":',
        _SEAL,
        b'{"type":"session","version":3,"id":"s"}',
        b'"version":',
        b'{"type":"request"}',
        b'{"type":"compaction","firstKeptEntryIndex":1}',
        b"\\ud800",
        b"\xef\xbb\xbf",
        b"NaN",
        b"1e400",
        b"\r\n",
    ),
    mutate=mutate,
)
