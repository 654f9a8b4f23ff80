"""What a fuzz target is: a property of any bytes, and how to make bytes worth trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Native = Callable[[bytes, int], bytes]
"""The mutator of the engine: some bytes, and how many it may return."""

Mutator = Callable[[bytes, int, int, Native], bytes]
"""Bytes, the most that it may return, a seed, and the engine's own mutator."""


class Broken(AssertionError):
    """An input for which a promise does not hold."""


@dataclass(frozen=True)
class Target:
    """One thing that takes bytes from outside, and what must hold for all of them."""

    check: Callable[[bytes], None]
    """Raises for an input that breaks a promise; whatever it lets escape is a finding as well."""

    modules: tuple[str, ...]
    """Modules whose branches guide the search. Fewer are faster: name those that see the bytes."""

    bytes_max: int = 4096
    """Longest input that the search makes (committed inputs may be longer)."""

    seconds_max: float = 10.0
    """Processor time that one input may take."""

    memory_bytes_max: int = 64 << 20
    """Memory that Python may allocate for one input."""

    tokens: tuple[bytes, ...] = ()
    """Byte strings that are put into inputs: what a blind search would not find."""

    mutate: Mutator | None = None
    """For formats with checksums: mutations that get past them. None leaves it to the engine."""


class Memory:
    """Bytes in memory as the captured bytes of a file."""

    def __init__(self, data: bytes, path: str = "memory/s1.jsonl") -> None:
        self.data = data
        self.path = path
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes, fewer only at the end."""
        return self.data[offset : offset + length]


def same(what: str, found: Any, expected: Any) -> None:
    """Raise :class:`Broken` unless both are equal."""
    if found != expected:
        raise Broken(f"{what}: found {found!r}, expected {expected!r}")


def dictionary_lines(tokens: Iterable[bytes]) -> str:
    """Tokens in the notation of libFuzzer's dictionary files."""
    return "".join(
        '"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in tokens if token
    )
