"""The case table of the format page, written down a second time, slowly and without the engine.

``judge`` is what a right reader must say about any bytes. It shares no code with the engine: an
error has to be made twice to stay unseen.
"""

from __future__ import annotations

import json
import re
import struct
from typing import NamedTuple

import xxhash

FRAME_MAGIC = b"\xf7RG\x1d"


class Found(NamedTuple):
    """One verified frame."""

    offset: int
    end: int
    kind: int
    sequence: int
    epoch: int
    unsynced: int
    revision: bytes


class Verdict(NamedTuple):
    """The case, where the history ends, its frames, and good frames behind."""

    case: str
    offset: int
    expected: int
    frames: list[Found]
    beyond: list[Found]
    journal_id: bytes | None


def _frame(data: bytes, at: int, journal_id: bytes) -> tuple[Found, bytes] | None:
    if data[at : at + 4] != FRAME_MAGIC or len(data) - at < 60:
        return None
    salt = int.from_bytes(journal_id[:8], "little")
    (_, kind, _, _, stored, _, seq, epoch, unsynced, previous, check) = struct.unpack_from(
        "<4sBBHIIQII8sI", data, at
    )
    if check != xxhash.xxh32(data[at : at + 40], seed=salt & 0xFFFFFFFF).intdigest():
        return None
    if stored > 64 << 20 or at + 60 + stored > len(data):
        return None
    end = at + 60 + stored
    revision = data[end - 16 : end]
    if xxhash.xxh3_128(data[at : end - 16], seed=salt).digest() != revision:
        return None
    return Found(at, end, kind, seq, epoch, unsynced, revision), previous


def chain(data: bytes, journal_id: bytes, start: int = 128) -> tuple[list[Found], int]:
    """The frames that follow each other from ``start``, and where they end."""
    frames: list[Found] = []
    at, previous, epoch = start, bytes(8), 0
    while (got := _frame(data, at, journal_id)) is not None:
        found, its_previous = got
        fits = found.sequence == len(frames) and its_previous == previous
        if not fits or found.epoch < epoch or (found.epoch > epoch and found.kind != 3):
            break
        frames.append(found)
        at, previous, epoch = found.end, found.revision[:8], found.epoch
    return frames, at


def _search(data: bytes, journal_id: bytes, start: int, least: int) -> list[Found]:
    found: list[Found] = []
    at = data.find(FRAME_MAGIC, start)
    while at >= 0:
        got = _frame(data, at, journal_id)
        if got is not None and got[0].sequence >= least:
            found.append(got[0])
            at = data.find(FRAME_MAGIC, got[0].end)
        else:
            at = data.find(FRAME_MAGIC, at + 1)
    return found


def _self_named_ids(data: bytes) -> set[bytes]:
    ids: set[bytes] = set()
    for match in re.finditer(re.escape(FRAME_MAGIC), data):
        at = match.start()
        if len(data) - at < 60 or data[at + 4] not in (3, 5) or data[at + 5] != 0:
            continue
        stored = int.from_bytes(data[at + 8 : at + 12], "little")
        try:
            # The frame must verify under what it names, so bad UTF-8 in other members is no matter.
            text = data[at + 44 : at + 44 + stored].decode("utf-8", "replace")
            named = json.loads(text, parse_constant=_no_constant)["journal"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if not isinstance(named, str) or re.fullmatch("[0-9a-f]{32}", named) is None:
            continue
        journal_id = bytes.fromhex(named)
        if _frame(data, at, journal_id) is not None:
            ids.add(journal_id)
    return ids


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def judge(data: bytes, watermark: bytes | None = None) -> Verdict:
    """The verdict about these bytes."""
    header = data[:128]
    good = (
        len(header) == 128
        and header[:8] == b"\x89TRNG\r\n\x1a"
        and header[10:12] == b"\x80\0"
        and xxhash.xxh3_128(header[:112]).digest() == header[112:]
    )
    if good:
        journal_id = header[28:44]
        published = int.from_bytes(header[44:52], "little")
        if published == 0:
            return Verdict("G", 0, 0, [], [], journal_id)
        frames, offset = chain(data, journal_id)
        if frames or _search(data, journal_id, 128, 0):
            return _judge_chain(data, (frames, offset), watermark)
    ids = _self_named_ids(data)
    if good:
        ids.add(header[28:44])
    covers = {one: sum(f.end - f.offset for f in _search(data, one, 0, 0)) for one in ids}
    best = max(covers, key=lambda one: covers[one], default=None)
    if best is None or not covers[best]:
        magic = data[:8] == b"\x89TRNG\r\n\x1a" or FRAME_MAGIC in data
        return Verdict("F" if magic else "G", 0, 0, [], [], None)
    frames, offset = chain(data, best)
    if not frames:
        offset = 0
    beyond = [] if offset == len(data) else _search(data, best, offset, len(frames))
    return Verdict("F", offset, len(frames), frames, beyond, best)


def _judge_chain(data: bytes, history: tuple[list[Found], int], watermark: bytes | None) -> Verdict:
    frames, offset = history
    journal_id, published = data[28:44], int.from_bytes(data[44:52], "little")
    expected = len(frames)
    whole = offset == len(data)
    beyond = [] if whole else _search(data, journal_id, offset, expected)
    if offset < published:
        case = "B"
    elif any(frame.sequence - frame.unsynced > expected for frame in beyond):
        case = "C"
    elif _breaks(watermark, journal_id, frames):
        case = "D"
    else:
        case = "A" if whole else "E"
    return Verdict(case, offset, expected, frames, beyond, journal_id)


def _breaks(watermark: bytes | None, journal_id: bytes, frames: list[Found]) -> bool:
    if watermark is None or len(watermark) != 64 or watermark[:16] != journal_id:
        return False
    if xxhash.xxh3_128(watermark[:48]).digest() != watermark[48:]:
        return False
    end = int.from_bytes(watermark[24:32], "little")
    return not any(f.end == end and f.revision == watermark[32:48] for f in frames)


def proven_end(verdict: Verdict, published: int) -> int:
    """Up to where the frames of an undamaged journal are proven durable, from the bytes alone."""
    below = max((f.sequence - f.unsynced for f in verdict.frames), default=0)
    ends = [f.end for f in verdict.frames if f.sequence < below]
    return max([published, *ends])


def json_depth(text: bytes) -> int:
    """How deep brackets nest in JSON text, read byte by byte."""
    depth = deepest = 0
    inside = escaped = False
    for byte in text:
        if escaped:
            escaped = False
        elif inside:
            escaped, inside = byte == 0x5C, byte != 0x22
        elif byte == 0x22:
            inside = True
        else:
            depth += (byte in b"{[") - (byte in b"}]")
            deepest = max(deepest, depth)
    return deepest
