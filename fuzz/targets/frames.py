"""The scanner over any stream of frames, against a second reading of the format page."""

from __future__ import annotations

from typing import Final

from treering.engine.journal.reader import Place, Scan
from treering.fuzz.oracle import chain
from treering.fuzz.targets.frame_mutator import ID, MAGIC, SALT, mutate_frames
from treering.fuzz.targets.target import Broken, Memory, Target

_START: Final = Place(0, 0, 0, bytes(8))
_CHUNKS: Final = (60, 61, 97, 160, 333, 1 << 20)


def check(data: bytes) -> None:
    """The scan accepts the frames that the oracle accepts, byte for byte, and stops where it does.

    The input is what follows a file header, under a fixed journal id. How much is read at a time
    differs from input to input: it must make no difference.
    """
    scan = Scan(Memory(data), SALT, _START, chunk_bytes=_CHUNKS[len(data) % len(_CHUNKS)])
    expected, end = chain(data, ID, 0)
    number = 0
    for frame, body in scan.frames():
        if number >= len(expected):
            raise Broken(f"the scan accepts a frame at {frame.offset}, the oracle does not")
        offset, behind, kind, sequence, epoch, unsynced, revision = expected[number]
        if (
            frame.offset != offset
            or frame.kind != kind
            or frame.sequence != sequence
            or frame.epoch != epoch
            or frame.unsynced != unsynced
            or frame.revision != revision
            or frame.end != behind
            or body != data[offset : behind - 16]
        ):
            raise Broken(f"the scan reads {frame}, the oracle {expected[number]}")
        number += 1
    stop = scan.stop
    if number != len(expected) or stop is None:
        raise Broken(f"the scan accepts {number} frames, the oracle {len(expected)}")
    if stop.place.offset != end or stop.place.sequence != number:
        raise Broken(f"the scan stops at {stop.place}, the oracle at {end}")
    if (stop.reason is None) != (end == len(data)):
        raise Broken(f"the scan ends with the reason {stop.reason!r} at {end} of {len(data)}")


TARGET: Final = Target(
    check,
    modules=("treering.engine.journal.reader",),
    bytes_max=768,
    seconds_max=2.0,
    memory_bytes_max=4 << 20,
    tokens=(MAGIC, ID, ID.hex().encode()),
    mutate=mutate_frames,
)
