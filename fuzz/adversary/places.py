"""Attacks on one place of the file: a bit, a sector, a page, a cut. Made from their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from treering.fuzz.adversary.attacks import BOTH, Attack
from treering.fuzz.adversary.scene import Target

PAGE: Final = 4096
SECTOR: Final = 512

_NAME: Final = re.compile(r"([a-z-]+):([0-9]+)(?:\.([0-7]))?\Z")


def flip(target: Target, offset: int, bit: int) -> None:
    """One bit is another one."""
    data = bytearray(target.read())
    data[offset] ^= 1 << bit
    target.overwrite(bytes(data))


def cut(target: Target, size: int) -> None:
    """The file ends there."""
    target.overwrite(target.read()[:size])


def zero(target: Target, number: int, unit: int) -> None:
    """A sector or page is zero."""
    _put(target, number * unit, bytes(unit))


def randomize(target: Target, number: int, unit: int) -> None:
    """A sector or page holds random bytes."""
    _put(target, number * unit, target.draw.randbytes(unit))


def swap(target: Target, number: int, unit: int) -> None:
    """A sector or page has changed places with another one."""
    data = target.read()
    other = (number + 1 + target.draw.randrange(len(data) // unit - 1)) % (len(data) // unit)
    mine, theirs = (data[n * unit : (n + 1) * unit] for n in (number, other))
    _put(target, number * unit, theirs)
    _put(target, other * unit, mine)


def put_back(target: Target, number: int, unit: int) -> None:
    """A sector or page is as it was at an earlier time: a write that never arrived."""
    _put(target, number * unit, target.older[number * unit : (number + 1) * unit])


def _put(target: Target, offset: int, data: bytes) -> None:
    with open(target.index, "r+b") as file:
        file.seek(offset)
        file.write(data)


_UNITS: Final[dict[str, tuple[Callable[..., None], int]]] = {
    "zero-sector": (zero, SECTOR),
    "random-sector": (randomize, SECTOR),
    "swap-sectors": (swap, SECTOR),
    "older-sector": (put_back, SECTOR),
    "zero-page": (zero, PAGE),
    "random-page": (randomize, PAGE),
    "swap-pages": (swap, PAGE),
    "older-page": (put_back, PAGE),
}

_VERIFIES: Final = frozenset(("zero-page", "swap-pages", "older-page"))
"""A page checksum covers neither the number nor the age of its page, and that of zeros is zero."""


def place_attack(name: str) -> Attack | None:
    """The attack of a name such as ``flip:4711.3``, ``cut:8192`` or ``zero-sector:5``."""
    match = _NAME.match(name)
    if match is None:
        return None
    kind, number, bit = match[1], int(match[2]), match[3]
    if kind == "flip" and bit is not None:
        return Attack(name, partial(flip, offset=number, bit=int(bit)), "One bit flipped.")
    if bit is not None:
        return None
    if kind == "cut":
        return Attack(name, partial(cut, size=number), "The file cut there.")
    if kind not in _UNITS:
        return None
    do, unit = _UNITS[kind]
    believed = BOTH if kind in _VERIFIES else ()
    about = (do.__doc__ or "").strip()
    return Attack(name, partial(do, number=number, unit=unit), about, believed)


def names_of_places(size: int) -> Iterator[str]:
    """Every sector and page of a file of that size in every way, and cuts at and around pages."""
    for kind, (_, unit) in _UNITS.items():
        for number in range(size // unit):
            yield f"{kind}:{number}"
    for page in range(0, size, PAGE):
        for nearby in (-1, 0, 1, SECTOR):
            if 0 <= page + nearby < size:
                yield f"cut:{page + nearby}"
