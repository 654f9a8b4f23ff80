"""Whole journals: the verdict about any bytes, against the oracle of the case table."""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from treering.engine.errors import LimitExceeded, TreeringError, Unsupported
from treering.engine.journal.reader import frame_at
from treering.engine.journal.recovery import Examination, examine
from treering.fuzz.oracle import Verdict, judge
from treering.fuzz.targets.frame_mutator import ID, MAGIC, mutate_frames
from treering.fuzz.targets.target import Broken, Memory, Native, Target, same

FILE_MAGIC: Final = b"\x89TRNG\r\n\x1a"

_PUBLISHED: Final = struct.Struct("<Q")
_MARK: Final = struct.Struct("<16sQQ16s")


def check(data: bytes) -> None:
    """The case, the end of the history, its frames and those beyond are the oracle's.

    Three watermarks take turns: none, one that the journal holds, one that knows of more.
    """
    bare = judge(data)
    watermark = _watermark(bare, len(data))
    expected = bare if watermark is None else judge(data, watermark)
    try:
        found = examine(Memory(data), watermark=watermark)
    except Unsupported:
        if data[8:12] == b"\x01\0\x80\0" and data[12:16] == bytes(4):
            raise Broken("a known version without required features is refused") from None
        return
    except LimitExceeded:
        if data.count(MAGIC) < 9:  # every byte is hashed at most once for each of them
            raise Broken("the search for frames gives up on a harmless file") from None
        return
    _agree(data, found, expected)
    if found.case == "A" and expected.frames:
        _resume(data, watermark, found, expected)


def _watermark(bare: Verdict, size: int) -> bytes | None:
    if size % 3 == 0 or not bare.frames or bare.journal_id is None:
        return None
    frame = bare.frames[size // 3 % len(bare.frames)]
    end = frame.end + (size % 3 == 2)
    body = _MARK.pack(bare.journal_id, frame.sequence, end, frame.revision)
    return body + xxhash.xxh3_128_digest(body)


def _agree(data: bytes, found: Examination, expected: Verdict) -> None:
    same("case", found.case, expected.case)
    report = found.report()
    same("size", report.size, len(data))
    same("frames beyond", [f.offset for f in found.beyond], [f.offset for f in expected.beyond])
    same("number of frames beyond", report.frames_beyond, len(expected.beyond))
    if found.stop is not None:
        same("expected sequence", report.expected_sequence, expected.expected)
        if expected.case not in ("A", "F"):
            same("offset", report.bad_offset, expected.offset)
    if expected.case not in ("A", "E") and not isinstance(found.refusal(), TreeringError):
        raise Broken("the refusal is no typed error")
    if expected.case in ("A", "B", "C", "D", "E"):
        same("journal id", found.journal_id, expected.journal_id)


def _resume(data: bytes, watermark: bytes | None, found: Examination, expected: Verdict) -> None:
    """A scan that goes on behind a proven frame says the same as one from the header."""
    assert found.journal_id is not None
    salt = int.from_bytes(found.journal_id[:8], "little")
    place = expected.frames[len(data) % len(expected.frames)]
    at = frame_at(Memory(data), salt, place.offset)
    if at is None:
        raise Broken(f"no frame at {place.offset}, where the scan found one")
    again = examine(Memory(data), watermark=watermark, from_frame=at[0])
    same("case behind a proven frame", again.case, found.case)
    same("end behind a proven frame", again.place, found.place)


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Frames as the scanner's target makes them, behind a file header that mostly verifies."""
    data = mutate_frames(data, size_max, seed, native)
    choice = seed * 0x9E3779B97F4A7C15 >> 13 & 63
    if choice < 16 or len(data) < 128:
        return data
    head = data[:112]
    if choice < 48:
        head = FILE_MAGIC + b"\x01\0\x80\0" + bytes(8) + head[20:28] + ID + head[44:]
    if choice >= 32:
        published = (128, len(data), choice * 16, 1)[choice & 3]
        head = head[:44] + _PUBLISHED.pack(published) + head[52:]
    return head + xxhash.xxh3_128_digest(head) + data[128:]


TARGET: Final = Target(
    check,
    modules=(
        "treering.engine.journal.control",
        "treering.engine.journal.format",
        "treering.engine.journal.history",
        "treering.engine.journal.reader",
        "treering.engine.journal.recovery",
        "treering.engine.journal.shared",
    ),
    bytes_max=2048,
    seconds_max=5.0,
    memory_bytes_max=8 << 20,
    tokens=(
        MAGIC,
        FILE_MAGIC,
        ID,
        ID.hex().encode(),
        b'{"journal":"',
        b'{"leaf":null}',
        b'{"first":1,"last":1,"revision":"',
        b'"requires":["x"]',
    ),
    mutate=mutate,
)
