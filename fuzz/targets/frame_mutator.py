"""Mutations of frames that get past their checksums.

A blind mutation of a checksummed frame is only ever seen by the comparison of the checksum. Here
half of all mutations are made blindly; the other half change fields, payloads and the order of
frames, and then write header checks, digests and the chain anew, often with one frame left wrong.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from treering.fuzz.targets.target import Native

ID: Final = bytes.fromhex("0102030405060708090a0b0c0d0e0f10")
"""The journal id under which checksums are written anew."""

SALT: Final = int.from_bytes(ID[:8], "little")
MAGIC: Final = b"\xf7RG\x1d"

_SEED: Final = SALT & 0xFFFFFFFF
_ENVELOPE: Final = 60
_EPOCH_OPEN: Final = 3
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_WRONGS: Final = 6
"""The ways of getting one frame wrong, of the 16 ways of writing a stream anew."""

_FIELDS: Final = ((4, 1), (5, 1), (6, 2), (8, 4), (12, 4), (16, 8), (24, 4), (28, 4), (32, 8))
_NUMBERS: Final = (
    0, 1, 2, 3, 4, 5, 6, 9, 10, 16, 17, 127, 128, 129, 255, 2**16 - 1, 2**24, 64 << 20,
    (64 << 20) + 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
_KINDS: Final = bytes((*range(12), 127, 128, 131, 255))


def mutate_frames(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Half of the time a blind mutation, half of the time one whose checksums are right again."""
    seed = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    if seed >> 63:
        return native(data, size_max)
    choice = seed >> 20
    if choice & 3 == 0:
        data = native(data, size_max)
        pieces = data.split(MAGIC)
    else:
        pieces = data.split(MAGIC)
        _change(pieces, choice >> 2)
    return repaired(pieces, seed >> 3 & 0xFFFF)[:size_max]


def _change(pieces: list[bytes], choice: int) -> None:
    """One change to the frames; ``pieces[0]`` is what stands before the first of them."""
    if len(pieces) < 2:
        return
    how, choice = choice & 7, choice >> 3
    count = len(pieces) - 1
    at, choice = 1 + choice % count, choice // count
    other, choice = 1 + choice % count, choice // count
    piece = pieces[at]
    if how <= 2:
        start, length = _FIELDS[choice % len(_FIELDS)]
        number = _NUMBERS[choice // 16 % len(_NUMBERS)] & (1 << 8 * length) - 1
        start -= 4  # the magic is not in the piece
        pieces[at] = piece[:start] + number.to_bytes(length, "little") + piece[start + length :]
    elif how == 3:
        pieces[at] = bytes((_KINDS[choice & 15],)) + piece[1:]
    elif how == 4:
        if choice & 1:
            pieces.insert(other, piece)
        else:
            del pieces[at]
    elif how == 5:
        pieces[at], pieces[other] = pieces[other], piece
    elif how == 6:  # a frame in the payload of another
        pieces[at] = piece[:40] + MAGIC + pieces[other] + piece[40:]
    else:
        length = choice % 64
        pieces[at] = piece[:40] + piece[40:-16][length:] + bytes(choice & 3) + piece[-16:]


def repaired(pieces: list[bytes], choice: int) -> bytes:
    """The frames with right lengths, numbers, links and checksums; often with one of them wrong.

    ``choice`` says which frame gets what wrong: its stored length, sequence, link, epoch, header
    check or digest.
    """
    wrong = choice & 15
    odd = 1 + (choice >> 4) % max(1, len(pieces) - 1) if wrong < _WRONGS else 0
    flipped = 1 << (choice >> 10 & 31)
    out = [pieces[0]]
    previous, sequence, epoch = bytes(8), 0, 0
    for number, rest in enumerate(pieces[1:], 1):
        piece = MAGIC + rest
        if len(piece) < _ENVELOPE:
            out.append(piece)
            continue
        how = wrong if number == odd else _WRONGS
        found = _U32.unpack_from(piece, 24)[0]
        if how == 3:
            found = epoch ^ (1 if choice & 1 << 15 else flipped)
        elif found != epoch and (found < epoch or piece[4] != _EPOCH_OPEN):
            found = epoch
        head = (
            piece[:8]
            + _U32.pack(len(piece) - _ENVELOPE ^ (flipped if how == 0 else 0))
            + piece[12:16]
            + _U64.pack(sequence ^ (flipped if how == 1 else 0))
            + _U32.pack(found)
            + piece[28:32]
            + (previous if how != 2 else piece[32:39] + b"\1")
        )
        check = xxhash.xxh32_intdigest(head, _SEED) ^ (how == 4)
        body = head + _U32.pack(check) + piece[44:-16]
        revision = xxhash.xxh3_128_digest(body, SALT) if how != 5 else piece[-15:] + b"\1"
        out += (body, revision)
        previous, epoch = revision[:8], found
        sequence += 1
    return b"".join(out)
