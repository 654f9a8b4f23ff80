"""The file header and the watermark: what verifies is what was written, field by field."""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from treering.engine.errors import Unsupported
from treering.engine.journal.format import (
    FileHeader,
    Watermark,
    decode_file_header,
    decode_watermark,
    encode_file_header,
)
from treering.fuzz.targets.target import Broken, Native, Target, same

_MAGIC: Final = b"\x89TRNG\r\n\x1a"
_FIELDS: Final = struct.Struct("<8sHHIIQ16sQ")
_MARK: Final = struct.Struct("<16sQQ16s")
_SEED: Final = b"\x01\0\x80\0" + bytes(8)


def check(data: bytes) -> None:
    """Only what verifies is read, all of it as it stands there; and all of it can be written."""
    head = data[:128]
    whole = len(head) == 128 and head[:8] == _MAGIC
    verifies = whole and xxhash.xxh3_128(head[:112]).digest() == head[112:]
    try:
        found = decode_file_header(data, "memory")
    except Unsupported:
        if not verifies or (head[8:10] == b"\x01\0" and head[12:16] == bytes(4)):
            raise Broken("a header is called newer that is not, or does not verify") from None
        return
    if found is None:
        if verifies and head[8:16] == _SEED[:8]:
            raise Broken("a header that verifies is not read")
    else:
        if not verifies:
            raise Broken("a header is read that does not verify")
        same("header", (_MAGIC, *found), _FIELDS.unpack_from(head))
        again = encode_file_header(found)
        same("header written again", again[:52], head[:52])
        if head[52:112] == bytes(60):
            same("digest written again", again, head)
    _round_trips(data)


def _round_trips(data: bytes) -> None:
    """Any fields can be written and read back; one wrong bit of them is seen."""
    raw = data[:56].ljust(56, b"\0")
    fields = _FIELDS.unpack_from(_MAGIC + _SEED[:4] + bytes(4) + raw[:36])
    header = FileHeader(*fields[1:])
    written = encode_file_header(header)
    same("header read back", decode_file_header(written, "memory"), header)
    bit = data[0] * 4 % 1024 if data else 0
    flipped = bytearray(written)
    flipped[bit >> 3] ^= 1 << (bit & 7)
    if decode_file_header(bytes(flipped), "memory") is not None:
        raise Broken(f"bit {bit} of a header can flip unseen")
    _watermarks(data, raw)


def _watermarks(data: bytes, raw: bytes) -> None:
    mark = Watermark._make(_MARK.unpack_from(raw))
    same("watermark read back", decode_watermark(mark.encode(), mark.journal_id), mark)
    other = bytes(16) if mark.journal_id != bytes(16) else b"\1" * 16
    same("watermark of another journal", decode_watermark(mark.encode(), other), None)
    found = decode_watermark(data, data[:16])
    verifies = len(data) == 64 and xxhash.xxh3_128(data[:48]).digest() == data[48:]
    same("whether a watermark is read", found is not None, verifies)


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Half of the time the digest is written anew, behind the header or behind a watermark."""
    data = native(data, size_max)
    choice = seed * 0x9E3779B97F4A7C15 >> 13 & 7
    if choice < 3:
        return data
    if choice == 3:
        body = data[:48].ljust(48, b"\0")
        return body + xxhash.xxh3_128_digest(body)
    body = data[:112].ljust(112, b"\0")
    if choice >= 5:
        body = _MAGIC + body[8:]
    if choice >= 6:
        body = body[:8] + _SEED + body[20:]
    return body + xxhash.xxh3_128_digest(body) + data[128:]


TARGET: Final = Target(
    check,
    modules=("treering.engine.journal.format",),
    bytes_max=160,
    seconds_max=1.0,
    memory_bytes_max=1 << 20,
    tokens=(_MAGIC, _SEED),
    mutate=mutate,
)
