"""Bytes damaged on purpose. Everything returns new bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Span(Protocol):
    """Anything with a place in the file."""

    @property
    def offset(self) -> int: ...
    @property
    def end(self) -> int: ...


def cut(data: bytes, size: int) -> bytes:
    """Only the first ``size`` bytes."""
    return data[:size]


def flip(data: bytes, bit: int) -> bytes:
    """One bit the other way."""
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def zero(data: bytes, start: int, length: int) -> bytes:
    """A block of zeros in place."""
    length = min(length, len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def overwrite(data: bytes, at: int, new: bytes) -> bytes:
    """Other bytes in place."""
    return data[:at] + new + data[at + len(new) :]


def insert(data: bytes, at: int, new: bytes) -> bytes:
    """Bytes that were not there."""
    return data[:at] + new + data[at:]


def remove(data: bytes, start: int, length: int) -> bytes:
    """Bytes that are not there any more."""
    return data[:start] + data[start + length :]


def drop_frame(data: bytes, frame: Span) -> bytes:
    """Without one frame."""
    return data[: frame.offset] + data[frame.end :]


def double_frame(data: bytes, frame: Span) -> bytes:
    """One frame twice."""
    return data[: frame.end] + data[frame.offset :]


def swap_frames(data: bytes, first: Span, second: Span) -> bytes:
    """Two neighbours in the wrong order."""
    return (
        data[: first.offset]
        + data[second.offset : second.end]
        + data[first.offset : first.end]
        + data[second.end :]
    )


def edges(frames: Sequence[Span]) -> list[int]:
    """Every frame boundary and the bytes around it."""
    places = {frame.offset + d for frame in frames for d in (-1, 0, 1)}
    places |= {frame.end + d for frame in frames for d in (-1, 0)}
    return sorted(places)
