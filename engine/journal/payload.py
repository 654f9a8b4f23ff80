"""From stored bytes to payload and back: zstd, dictionaries, BLOB splicing.

A decoder never produces more than the raw length that the frame states, and must produce exactly
that. zstandard objects must not be shared between threads, so each thread has its own.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final

import zstandard

from treering.engine.errors import Undecodable
from treering.engine.journal.format import (
    CODEC_RAW,
    CODEC_SPLICED_BIT,
    CODEC_ZSTD,
    CODEC_ZSTD_DICTIONARY,
    Frame,
)
from treering.engine.limits import (
    BLOB_BYTES_PER_PAYLOAD_MAX,
    PAYLOAD_BYTES_MAX,
    ZSTD_WINDOW_BYTES_MAX,
)

DICTIONARY_BYTES: Final = 20 * 1024
"""Measured on real sessions of 1 to 3 MB: larger ones cost more than they save."""

COMPRESS_WITH_DICTIONARY_FROM_BYTES: Final = 64

COMPRESS_BULK_FROM_BYTES: Final = 256
"""Imports and repairs compress from here on: below it a zstd frame saves next to nothing."""

COMPRESS_APPEND_FROM_BYTES: Final = 4096
"""Live appends compress from here on. Most entries are smaller and stay readable at full speed
(measured: 10 us to compress 1.2 KB, 3 us at every read); most bytes are in larger ones."""

_LEVEL: Final = 1
_BULK_LEVEL: Final = 9
"""With a dictionary, for imports. Against level 1, real sessions of 1 to 2.4 MB get 9 to 11 %
smaller and imports take 14 % longer; level 15 would save 2 % more and take 60 % longer still."""
_PREPARED_MAX: Final = 8
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_FEED_BYTES: Final = 64
_PIECE: Final = struct.Struct("<IQII")
_U16: Final = struct.Struct("<H")


class _Prepared(threading.local):
    def __init__(self) -> None:
        self.by_number: dict[int, zstandard.ZstdDecompressor] = {}


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)


_per_thread = _PerThread()


def compress(payload: bytes) -> tuple[int, bytes]:
    """(codec, stored bytes): zstd where it saves bytes, raw where it does not."""
    packed = _per_thread.compressor.compress(payload)
    if len(packed) < len(payload):
        return CODEC_ZSTD, packed
    return CODEC_RAW, payload


class Dictionary:
    """A trained dictionary, for the payloads of one new journal. Use it from one thread."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        trained = zstandard.ZstdCompressionDict(payload)
        self._compressor = zstandard.ZstdCompressor(
            level=_BULK_LEVEL, dict_data=trained, write_checksum=True, write_dict_id=True
        )

    @classmethod
    def train(cls, samples: Sequence[bytes]) -> Dictionary | None:
        """A dictionary of 20 KiB for payloads like these; None when they are too few or too odd."""
        try:
            trained = zstandard.train_dictionary(DICTIONARY_BYTES, list(samples))
        except zstandard.ZstdError:
            return None
        payload = trained.as_bytes()
        return cls(payload) if dictionary_id(payload) else None

    def compress(self, payload: bytes) -> tuple[int, bytes]:
        """(codec, stored bytes): with the dictionary where it saves bytes, raw where not."""
        packed = self._compressor.compress(payload)
        if len(packed) < len(payload):
            return CODEC_ZSTD_DICTIONARY, packed
        return CODEC_RAW, payload


def dictionary_id(payload: bytes) -> int:
    """The id inside a trained zstd dictionary; 0 when the bytes are none."""
    return zstandard.ZstdCompressionDict(payload).dict_id() if len(payload) >= 8 else 0


def decompress_plain(stored: bytes, raw: int) -> bytes | None:
    """The usual codec 1 payload: one zstd frame that states its size and needs no dictionary.

    None when it is anything else; :meth:`PayloadDecoder.decode` then says what.
    """
    try:
        parameters = zstandard.get_frame_parameters(stored)
        if (
            parameters.content_size != raw
            or parameters.dict_id
            or parameters.window_size > ZSTD_WINDOW_BYTES_MAX
            or raw > PAYLOAD_BYTES_MAX
            or stored[:4] != _ZSTD_MAGIC
        ):
            return None
        payload = _per_thread.decompressor.decompress(
            stored, max_output_size=raw, allow_extra_data=False
        )
    except zstandard.ZstdError:
        return None
    return payload if len(payload) == raw else None


class PayloadDecoder:
    """Decodes the payloads of one journal.

    ``fetch_dictionary(id)`` and ``fetch_blob(sequence, before)`` return verified payload bytes of
    that journal, or raise :class:`Undecodable`. ``before`` is the sequence of the frame that asks:
    a reference may only name an earlier BLOB.
    """

    def __init__(
        self,
        fetch_dictionary: Callable[[int], bytes],
        fetch_blob: Callable[[int, int], bytes],
    ) -> None:
        self._fetch_dictionary = fetch_dictionary
        self._fetch_blob = fetch_blob
        self._prepared = _Prepared()

    def decode(self, frame: Frame, stored: bytes) -> bytes:
        """The payload of a verified frame.

        Raises:
            Undecodable: bad zstd, wrong length, or a lost DICTIONARY or BLOB.
        """
        codec = frame.codec
        if codec == CODEC_RAW:
            return stored
        if codec == CODEC_ZSTD:
            payload = decompress_plain(stored, frame.raw)
            if payload is not None:
                return payload
        if frame.raw > PAYLOAD_BYTES_MAX:
            raise _undecodable(frame, f"it would have {frame.raw} bytes")
        base = codec & ~CODEC_SPLICED_BIT
        spliced = bool(codec & CODEC_SPLICED_BIT)
        if base == CODEC_RAW:
            decoded = stored
        else:
            decoded = self._decompress(frame, stored, base, exact=not spliced)
        if not spliced:
            return decoded
        if len(decoded) >= frame.raw:
            raise _undecodable(frame, "the spliced text is not shorter than the payload")
        return self._splice(frame, decoded)

    def _decompress(self, frame: Frame, stored: bytes, base: int, *, exact: bool) -> bytes:
        if stored[:4] != _ZSTD_MAGIC:
            raise _undecodable(frame, "not one zstd frame")
        try:
            parameters = zstandard.get_frame_parameters(stored)
        except zstandard.ZstdError as error:
            raise _undecodable(frame, f"bad zstd frame: {error}") from error
        if parameters.window_size > ZSTD_WINDOW_BYTES_MAX:
            raise _undecodable(frame, f"zstd window of {parameters.window_size} bytes")
        limit = frame.raw if exact else frame.raw - 1
        size = parameters.content_size
        known = size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
        if known and (size > limit or (exact and size != frame.raw)):
            raise _undecodable(frame, f"the zstd frame states {size} bytes")
        if base == CODEC_ZSTD_DICTIONARY:
            if not parameters.dict_id or not parameters.has_checksum:
                raise _undecodable(frame, "codec 2 without dictionary id or checksum")
        elif parameters.dict_id:
            raise _undecodable(frame, "codec 1 with a dictionary id")
        try:
            decompressor = _per_thread.decompressor
            if base == CODEC_ZSTD_DICTIONARY:
                decompressor = self._with_dictionary(parameters.dict_id)
            if known:
                decoded = decompressor.decompress(
                    stored, max_output_size=limit, allow_extra_data=False
                )
            else:
                decoded = _decompress_fed(frame, decompressor, stored, limit)
        except zstandard.ZstdError as error:
            raise _undecodable(frame, f"bad zstd frame: {error}") from error
        if (known and len(decoded) != size) or (exact and len(decoded) != frame.raw):
            raise _undecodable(frame, f"decoded to {len(decoded)} bytes")
        return decoded

    def _with_dictionary(self, number: int) -> zstandard.ZstdDecompressor:
        """Preparing one costs ten times what using it costs, so each thread keeps a few."""
        prepared = self._prepared.by_number
        decompressor = prepared.get(number)
        if decompressor is None:
            trained = zstandard.ZstdCompressionDict(self._fetch_dictionary(number))
            decompressor = zstandard.ZstdDecompressor(
                dict_data=trained, max_window_size=ZSTD_WINDOW_BYTES_MAX
            )
            if len(prepared) >= _PREPARED_MAX:
                prepared.clear()
            prepared[number] = decompressor
        return decompressor

    def _splice(self, frame: Frame, decoded: bytes) -> bytes:
        """Insert pieces of BLOBs into the text, in order."""
        count = _U16.unpack_from(decoded)[0] if len(decoded) >= 2 else -1
        text_start = 2 + count * _PIECE.size
        if count < 0 or text_start > len(decoded):
            raise _undecodable(frame, "bad splice table")
        text = decoded[text_start:]
        table = [_PIECE.unpack_from(decoded, 2 + at * _PIECE.size) for at in range(count)]
        done, total = 0, len(text)
        for position, sequence, length, _ in table:
            total += length
            if not done <= position <= len(text) or total > frame.raw:
                raise _undecodable(frame, "bad splice table")
            if sequence >= frame.sequence:
                raise _undecodable(frame, f"a reference to the later frame {sequence}")
            done = position
        if total != frame.raw:
            raise _undecodable(frame, f"spliced to {total} bytes")
        pieces = self._pieces(frame, table)
        parts: list[bytes] = []
        done = 0
        for (position, _, _, _), piece in zip(table, pieces, strict=True):
            parts += (text[done:position], piece)
            done = position
        parts.append(text[done:])
        return b"".join(parts)

    def _pieces(self, frame: Frame, table: list[tuple[int, int, int, int]]) -> list[bytes]:
        """The piece of each table row. Each BLOB is fetched once, whatever names it how often."""
        pieces = [b""] * len(table)
        rows_of: dict[int, list[int]] = {}
        for at, row in enumerate(table):
            rows_of.setdefault(row[1], []).append(at)
        fetched = 0
        for sequence, rows in rows_of.items():
            blob = self._fetch_blob(sequence, frame.sequence)
            fetched += len(blob)
            if fetched > BLOB_BYTES_PER_PAYLOAD_MAX:
                raise _undecodable(frame, "it names too many bytes of BLOBs")
            for at in rows:
                _, _, length, offset = table[at]
                if offset + length > len(blob):
                    raise _undecodable(frame, f"a piece beyond the end of BLOB {sequence}")
                pieces[at] = blob[offset : offset + length]
        return pieces


def encode_splice(text: bytes, pieces: list[tuple[int, int, int, int]]) -> bytes:
    """The decoded form of a spliced payload: (position, BLOB sequence, length, offset) each."""
    table = b"".join(_PIECE.pack(*piece) for piece in pieces)
    return _U16.pack(len(pieces)) + table + text


def _decompress_fed(
    frame: Frame, decompressor: zstandard.ZstdDecompressor, stored: bytes, limit: int
) -> bytes:
    # A frame without a content size can claim any amount of output. Fed a few bytes at a time it
    # cannot produce more than some blocks (128 KiB each) before we look at the sum again.
    stream = decompressor.decompressobj()
    parts: list[bytes] = []
    total = 0
    for start in range(0, len(stored), _FEED_BYTES):
        if stream.eof:
            raise _undecodable(frame, "bytes behind the zstd frame")
        part = stream.decompress(stored[start : start + _FEED_BYTES])
        total += len(part)
        if total > limit:
            raise _undecodable(frame, f"decodes to more than {limit} bytes")
        parts.append(part)
    if not stream.eof or stream.unused_data:
        raise _undecodable(frame, "not one whole zstd frame")
    return b"".join(parts)


def _undecodable(frame: Frame, why: str) -> Undecodable:
    return Undecodable(f"frame {frame.sequence} cannot be decoded: {why}", offset=frame.offset)
