"""The bytes of a journal, version 1: bytes in, bytes out, no I/O.

Normative page: ``docs/journal-format.md``. All integers are little-endian, all sizes are bytes,
digests are XXH3-128 in canonical (big-endian) byte order.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

import xxhash

from treering.engine.errors import Unsupported
from treering.engine.limits import PAYLOAD_BYTES_MAX

FILE_MAGIC: Final = b"\x89TRNG\r\n\x1a"
FRAME_MAGIC: Final = b"\xf7RG\x1d"
FORMAT_VERSION: Final = 1
FILE_HEADER_BYTES: Final = 128
FRAME_HEADER_BYTES: Final = 44
DIGEST_BYTES: Final = 16
ENVELOPE_BYTES: Final = FRAME_HEADER_BYTES + DIGEST_BYTES
WATERMARK_BYTES: Final = 64
JOURNAL_ID_BYTES: Final = 16
JOURNAL_ID_OFFSET: Final = 28
"""Where the journal id stands in the file header."""

SEQUENCE_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**32 - 1

REQUIRED_FEATURES_KNOWN: Final = 0

_FILE_HEADER: Final = struct.Struct("<8sHHIIQ16sQ60s")
_FRAME_HEADER: Final = struct.Struct("<4sBBHIIQII8sI")
_FRAME_HEADER_UNCHECKED: Final = struct.Struct("<4sBBHIIQII8s")
_U32: Final = struct.Struct("<I")
_WATERMARK: Final = struct.Struct("<16sQQ16s")

assert _FILE_HEADER.size == FILE_HEADER_BYTES - DIGEST_BYTES
assert _FRAME_HEADER.size == FRAME_HEADER_BYTES
assert _WATERMARK.size == WATERMARK_BYTES - DIGEST_BYTES

unpack_frame_header = _FRAME_HEADER.unpack_from
digest_of = xxhash.xxh3_128_digest
header_check_of = xxhash.xxh32_intdigest


class Kind(IntEnum):
    """What a frame holds. Bit 7 marks kinds that a reader may skip without knowing them."""

    SESSION = 1
    ENTRY = 2
    EPOCH_OPEN = 3
    EPOCH_ACTIVATE = 4
    EPOCH_CLOSE = 5
    LEAF = 6
    DICTIONARY = 7
    REQUEST = 8
    GAP = 9
    BLOB = 10
    PROVENANCE = 11


KNOWN_KINDS: Final = frozenset(int(kind) for kind in Kind)
OPTIONAL_KIND_BIT: Final = 0x80

CODEC_RAW: Final = 0
CODEC_ZSTD: Final = 1
CODEC_ZSTD_DICTIONARY: Final = 2
CODEC_SPLICED_BIT: Final = 0x80

FLAG_RETAINED: Final = 0x01
FLAG_QUALIFICATION_SHIFT: Final = 1
FLAG_QUALIFICATION_MASK: Final = 0x0E
FLAG_STAGED: Final = 0x10
FLAGS_KNOWN: Final = FLAG_RETAINED | FLAG_QUALIFICATION_MASK | FLAG_STAGED

QUALIFICATIONS: Final = (
    None,
    "native-admission",
    "native-recovery",
    "native-context-epoch",
    "native-tool-execution",
)

STAGEABLE_KINDS: Final = frozenset((Kind.ENTRY, Kind.LEAF, Kind.REQUEST))


class FileHeader(NamedTuple):
    """The first 128 bytes of a journal."""

    version: int
    header_length: int
    required: int
    optional: int
    created_ms: int
    journal_id: bytes
    published_length: int

    @property
    def salt(self) -> int:
        """Seed of every frame digest of this journal."""
        return salt_of(self.journal_id)


class Frame(NamedTuple):
    """The verified header of one frame, its place in the file, and its digest (*revision*)."""

    offset: int
    kind: int
    codec: int
    flags: int
    stored: int
    raw: int
    sequence: int
    epoch: int
    unsynced: int
    previous: bytes
    revision: bytes

    @property
    def end(self) -> int:
        """Offset of the first byte behind the frame."""
        return self.offset + ENVELOPE_BYTES + self.stored

    @property
    def retained(self) -> bool:
        """Whether the payload is a retained import."""
        return bool(self.flags & FLAG_RETAINED)

    @property
    def qualification(self) -> int:
        """Index into :data:`QUALIFICATIONS` (values above 4 are not understood)."""
        return (self.flags & FLAG_QUALIFICATION_MASK) >> FLAG_QUALIFICATION_SHIFT

    @property
    def staged(self) -> bool:
        """Whether the frame stays invisible until an EPOCH_ACTIVATE names it."""
        return bool(self.flags & FLAG_STAGED)

    @property
    def proves_below(self) -> int:
        """Every sequence below this one was durable when this frame was written."""
        return self.sequence - self.unsynced


class Watermark(NamedTuple):
    """The last frame that an owner saw synced, kept beside the journal."""

    journal_id: bytes
    sequence: int
    end_offset: int
    revision: bytes

    def encode(self) -> bytes:
        """64 bytes, the last 16 of them a digest of the rest."""
        body = _WATERMARK.pack(*self)
        return body + digest_of(body)


def decode_watermark(data: bytes | None, journal_id: bytes) -> Watermark | None:
    """The watermark, or None when it is absent, does not verify, or is another journal's."""
    if data is None or len(data) != WATERMARK_BYTES:
        return None
    if digest_of(data[:-DIGEST_BYTES]) != data[-DIGEST_BYTES:]:
        return None
    mark = Watermark._make(_WATERMARK.unpack_from(data))
    return mark if mark.journal_id == journal_id else None


def salt_of(journal_id: bytes) -> int:
    """The first 8 bytes of a journal id as the seed of its frame digests."""
    return int.from_bytes(journal_id[:8], "little")


def header_seed_of(salt: int) -> int:
    """The seed of the header check: the low 32 bits of the salt."""
    return salt & 0xFFFFFFFF


def encode_file_header(header: FileHeader) -> bytes:
    """The 128 bytes at the start of a journal."""
    body = _FILE_HEADER.pack(
        FILE_MAGIC,
        header.version,
        header.header_length,
        header.required,
        header.optional,
        header.created_ms,
        header.journal_id,
        header.published_length,
        bytes(60),
    )
    return body + digest_of(body)


def decode_file_header(data: bytes, path: str) -> FileHeader | None:
    """The header when it verifies; None when it is damaged, cut short or none at all.

    Raises:
        Unsupported: another version or an unknown required feature, in a header that verifies.
    """
    if data[:8] != FILE_MAGIC or len(data) < FILE_HEADER_BYTES:
        return None
    version = int.from_bytes(data[8:10], "little")
    length = int.from_bytes(data[10:12], "little")
    if version != FORMAT_VERSION:
        _refuse_other_version(data, version, path)
        return None
    if digest_of(data[:112]) != data[112:128] or length != FILE_HEADER_BYTES:
        return None
    (_, _, _, required, optional, created, journal_id, published, _) = _FILE_HEADER.unpack_from(
        data
    )
    unknown = required & ~REQUIRED_FEATURES_KNOWN
    if unknown:
        bits = ", ".join(str(bit) for bit in range(32) if unknown >> bit & 1)
        raise Unsupported(
            f"the journal needs features that this release does not know (bits {bits})",
            path=path,
            next_step="open it with a newer release",
        )
    return FileHeader(version, length, required, optional, created, journal_id, published)


def _refuse_other_version(data: bytes, version: int, path: str) -> None:
    # A flipped bit in the version field must read as damage, not as "a newer release": only a
    # header whose digest verifies speaks for itself.
    if digest_of(data[:112]) == data[112:128]:
        raise Unsupported(
            f"journal format version {version}; this release reads version {FORMAT_VERSION}",
            path=path,
            next_step="open it with a newer release",
        )


def encode_frame(
    kind: int,
    codec: int,
    flags: int,
    payload: bytes,
    raw: int,
    sequence: int,
    epoch: int,
    unsynced: int,
    previous: bytes,
    salt: int,
) -> tuple[bytes, bytes]:
    """One frame and its revision; the fields in the order of the format.

    ``payload`` is as stored, ``raw`` its length after decoding.
    """
    unchecked = _FRAME_HEADER_UNCHECKED.pack(
        FRAME_MAGIC, kind, codec, flags, len(payload), raw, sequence, epoch, unsynced, previous
    )
    body = unchecked + _U32.pack(header_check_of(unchecked, salt & 0xFFFFFFFF)) + payload
    revision = digest_of(body, salt)
    return body + revision, revision


def misunderstood(frame: Frame) -> str | None:
    """Why a verified frame must not be shown, judged by its header alone; None when it may be."""
    kind, codec, flags = frame.kind, frame.codec, frame.flags
    if kind not in KNOWN_KINDS:
        return None if kind & OPTIONAL_KIND_BIT else f"kind {kind}"
    if flags & ~FLAGS_KNOWN:
        return f"flags {flags:#06x}"
    if frame.qualification >= len(QUALIFICATIONS):
        return f"qualification {frame.qualification}"
    if flags & FLAG_STAGED and kind not in STAGEABLE_KINDS:
        return f"STAGED on {Kind(kind).name}"
    return _misunderstood_codec(kind, codec, frame.stored, frame.raw)


def _misunderstood_codec(kind: int, codec: int, stored: int, raw: int) -> str | None:
    base = codec & ~CODEC_SPLICED_BIT
    spliced = codec & CODEC_SPLICED_BIT
    if base > CODEC_ZSTD_DICTIONARY:
        return f"codec {codec}"
    if raw > PAYLOAD_BYTES_MAX:
        return f"raw length {raw}"
    if (stored != raw) if codec == CODEC_RAW else (stored >= raw):
        return f"stored length {stored} with raw length {raw} and codec {codec}"
    if codec and kind in (Kind.EPOCH_OPEN, Kind.EPOCH_CLOSE):
        return f"codec {codec} on {Kind(kind).name}"
    if spliced and kind in (Kind.BLOB, Kind.DICTIONARY):
        return f"a spliced {Kind(kind).name}"
    if kind == Kind.DICTIONARY and base == CODEC_ZSTD_DICTIONARY:
        return "a DICTIONARY that needs another one"
    return None
