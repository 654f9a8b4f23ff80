"""Decoding payloads: exactly the raw length, never more, the same as another decoder says."""

from __future__ import annotations

import functools
import struct
from typing import Final

import zstandard

from treering.engine.errors import TreeringError, Undecodable
from treering.engine.journal.format import KNOWN_KINDS, Frame, misunderstood
from treering.engine.journal.payload import PayloadDecoder, dictionary_id
from treering.fuzz.targets.target import Broken, Native, Target, same

HEAD: Final = struct.Struct("<BBIB")
"""An input: codec, kind, raw length, sequence; then the payload as stored."""

BLOBS: Final = {1: b"", 2: b"a blob of some bytes ", 3: bytes(range(256)) * 16}
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SPLICED: Final = 0x80


@functools.cache
def dictionary() -> bytes:
    """A trained dictionary, the same in every process."""
    words = ("message", "toolResult", "assistant", "content", "timestamp", "parentId", "usage")
    samples: list[bytes | bytearray | memoryview] = [
        b'{"type":"%s","id":"%08x","text":"%s"}' % (
            words[n % 7].encode(), n * 2654435761 % 2**32, words[n * 3 % 7].encode() * (n % 5)
        )
        for n in range(400)
    ]  # fmt: skip
    return zstandard.train_dictionary(1024, samples, dict_id=77).as_bytes()


def _fetch_dictionary(number: int) -> bytes:
    if number != dictionary_id(dictionary()):
        raise Undecodable(f"DICTIONARY {number} is not there")
    return dictionary()


def _fetch_blob(sequence: int, before: int) -> bytes:
    if sequence >= before or sequence not in BLOBS:
        raise Undecodable(f"BLOB {sequence} is not there")
    return BLOBS[sequence]


_decoder: Final = PayloadDecoder(_fetch_dictionary, _fetch_blob)


def check(data: bytes) -> None:
    """What is decoded has the raw length, and is what zstandard's streaming reader makes of it."""
    if len(data) < HEAD.size:
        return
    codec, kind, raw, sequence = HEAD.unpack_from(data)
    stored = data[HEAD.size :]
    frame = Frame(0, kind, codec, 0, len(stored), raw, sequence, 1, 0, bytes(8), bytes(16))
    if kind not in KNOWN_KINDS or misunderstood(frame) is not None:
        return  # such a frame is never decoded
    try:
        payload = _decoder.decode(frame, stored)
    except TreeringError as error:
        if codec == 0:
            raise Broken(f"a raw payload is refused: {error}") from None
        _rightly_refused(codec, raw, stored)
        return
    same("length", len(payload), raw)
    decoded = _read(codec, stored, raw)
    if codec & _SPLICED:
        decoded = _spliced(decoded)
    same("payload", payload, decoded)


def _read(codec: int, stored: bytes, most: int) -> bytes:
    """The decoded bytes, by another interface of the library than the engine uses."""
    base = codec & ~_SPLICED
    if base == 0:
        return stored
    trained = zstandard.ZstdCompressionDict(dictionary()) if base == 2 else None
    context = zstandard.ZstdDecompressor(dict_data=trained, max_window_size=64 << 20)
    with context.stream_reader(stored, read_across_frames=False) as reader:
        return reader.read(most + 1)


def _rightly_refused(codec: int, raw: int, stored: bytes) -> None:
    """A plain zstd frame that another interface reads to exactly the raw length is accepted."""
    if codec != 1 or stored[:4] != _ZSTD or raw > 1 << 20:
        return
    try:
        parameters = zstandard.get_frame_parameters(stored)
        context = zstandard.ZstdDecompressor(max_window_size=64 << 20)
        stream = context.decompressobj()
        decoded = stream.decompress(stored)
    except (zstandard.ZstdError, MemoryError):
        return
    stated = parameters.content_size in (raw, zstandard.CONTENTSIZE_UNKNOWN)
    if stream.eof and not stream.unused_data and len(decoded) == raw and stated:
        if not parameters.dict_id and parameters.window_size <= 64 << 20:
            raise Broken(f"a good zstd frame of {raw} bytes is refused")


def _spliced(decoded: bytes) -> bytes:
    """The splice rule of the format page, written down a second time."""
    (count,) = struct.unpack_from("<H", decoded)
    text, out, done = decoded[2 + 20 * count :], b"", 0
    for number in range(count):
        position, sequence, length, offset = struct.unpack_from("<IQII", decoded, 2 + 20 * number)
        piece = BLOBS[sequence][offset : offset + length]
        if len(piece) != length or not done <= position <= len(text):
            raise Broken(f"piece {number} is outside of its BLOB or of the text")
        out += text[done:position] + piece
        done = position
    return out + text[done:]


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Half of the time the decoded bytes are mutated and compressed again."""
    choice = seed * 0x9E3779B97F4A7C15 >> 13 & 0xFFFF
    if choice & 1 or len(data) < HEAD.size:
        return native(data, size_max)
    codec, kind, raw, sequence = HEAD.unpack_from(data)
    try:
        decoded = _read(codec, data[HEAD.size :], 1 << 16)
    except (zstandard.ZstdError, MemoryError):
        return native(data, size_max)
    decoded = native(decoded, 1 << 16)
    codec = (0, 1, 1, 2, 0x80, 0x81, 0x82, 0x81)[choice >> 1 & 7]
    length = len(decoded) + (0, 0, 0, 0, 1, -1, 1 << 20, raw)[choice >> 4 & 7]
    if codec & _SPLICED:
        length = _length_of_splice(decoded) + (choice >> 4 & 7 == 5)
    stored = decoded
    if codec & ~_SPLICED:
        base = codec & ~_SPLICED
        trained = zstandard.ZstdCompressionDict(dictionary()) if base == 2 else None
        stored = zstandard.ZstdCompressor(
            level=1 + (choice >> 7 & 7),
            dict_data=trained,
            write_checksum=base == 2 or bool(choice & 1 << 10),
            write_content_size=bool(choice & 3 << 11),
        ).compress(decoded)
    if choice >> 13 == 0:
        stored = native(stored, size_max)
    return (HEAD.pack(codec, kind, length & 0xFFFFFFFF, sequence) + stored)[:size_max]


def _length_of_splice(decoded: bytes) -> int:
    count = int.from_bytes(decoded[:2], "little")
    rows = (decoded[2 + 20 * n : 22 + 20 * n] for n in range(min(count, len(decoded) // 20)))
    lengths = (int.from_bytes(row[12:16], "little") for row in rows)
    return max(0, len(decoded) - 2 - 20 * count) + sum(lengths)


TARGET: Final = Target(
    check,
    modules=("treering.engine.journal.format", "treering.engine.journal.payload"),
    bytes_max=1024,
    seconds_max=5.0,
    memory_bytes_max=160 << 20,
    tokens=(_ZSTD, b"\x50\x2a\x4d\x18", struct.pack("<HIQII", 1, 0, 2, 5, 1)),
    mutate=mutate,
)
