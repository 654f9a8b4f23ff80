"""Which states of a volume a crash at one moment can leave, numbered.

A state is one choice for every unit: which version of a sector, which size of a file, which owner
of a name. Units are independent but for renames. The number of a state is its choices in mixed
radix, so that one number (with the flow and the moment) brings a state back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from treering.fuzz.volume import ROOT, SECTOR_BYTES, FileNode, Image, Rename, Volume, stale_sector

EXHAUSTIVE_MAX: Final = 1024
"""Up to so many states of one moment all are tried; beyond, this many are drawn."""

PAGE_SECTORS: Final = 8


_Option = TypeVar("_Option", int, bytes)


class Unit(NamedTuple):
    """One independent choice: a sector or the size (-1) of a file, or a name of a folder."""

    node: int
    key: int | str
    options: int


class FrozenFile(NamedTuple):
    """A file at one moment."""

    durable: bytes
    sizes: tuple[int, ...]
    sectors: tuple[tuple[int, tuple[bytes, ...]], ...]


class FrozenFolder(NamedTuple):
    """A folder at one moment."""

    durable: dict[str, int]
    versions: tuple[tuple[str, tuple[int | None, ...]], ...]


@dataclass(frozen=True)
class CrashPoint:
    """One moment of a flow: everything that may survive a crash then, and what must."""

    at: int
    what: str
    files: dict[int, FrozenFile]
    folders: dict[int, FrozenFolder]
    renames: tuple[Rename, ...]
    expectation: object

    @classmethod
    def of(
        cls,
        volume: Volume,
        at: int,
        what: str,
        expectation: object,
        *,
        torn: int,
        advisory: tuple[str, ...] = (),
    ) -> CrashPoint:
        """Freeze a volume.

        Args:
            volume: as it is now.
            at: number of the moment.
            what: the operation that was done last.
            expectation: what must hold after a crash now.
            torn: seeds where sectors are torn.
            advisory: ends of names of files that decide nothing: their changes are always lost.
        """
        folders = {
            number: FrozenFolder(
                dict(folder.durable),
                tuple(
                    (name, (folder.durable.get(name), *known))
                    for name, known in sorted(folder.versions.items())
                    if not name.endswith(advisory)
                ),
            )
            for number, folder in volume.folders.items()
        }
        named = {
            number
            for folder in folders.values()
            for name, number in folder.durable.items()
            if not name.endswith(advisory)
        }
        for folder in folders.values():
            named.update(n for _, options in folder.versions for n in options if n is not None)
        files = {n: _frozen(volume.files[n], torn) for n in sorted(named & volume.files.keys())}
        for folder in folders.values():  # of those that decide nothing, what is durable is there
            for number in set(folder.durable.values()) & (volume.files.keys() - named):
                data = volume.files[number].durable
                files[number] = FrozenFile(data, (len(data),), ())
        return cls(at, what, files, folders, tuple(volume.renames), expectation)

    def units(self) -> list[Unit]:
        """The choices, in a fixed order."""
        units = []
        for number, file in sorted(self.files.items()):
            if len(file.sizes) > 1:
                units.append(Unit(number, -1, len(file.sizes)))
            units += [Unit(number, index, len(options)) for index, options in file.sectors]
        for number, folder in sorted(self.folders.items()):
            units += [Unit(number, name, len(options)) for name, options in folder.versions]
        return units

    def build(self, units: list[Unit], choice: list[int]) -> Image | None:
        """The image of one choice; None where a rename would lose a file, or split a folder."""
        chosen = {(unit.node, unit.key): pick for unit, pick in zip(units, choice, strict=True)}
        for rename in self.renames:
            gone = chosen.get(rename.source, 0) >= rename.source_version
            there = chosen.get(rename.target, rename.target_version) >= rename.target_version
            if (gone and not there) or (rename.of_folder and there and not gone):
                return None
        folders = {number: self._names(number, chosen) for number in self.folders}
        files = {number: self._content(number, chosen) for number in self.files}
        return Image(files, _reachable(folders))

    def _names(self, number: int, chosen: dict[tuple[int, int | str], int]) -> dict[str, int]:
        folder = self.folders[number]
        names = dict(folder.durable)
        for name, options in folder.versions:
            owner = options[chosen[number, name]]
            if owner is None:
                names.pop(name, None)
            else:
                names[name] = owner
        return names

    def _content(self, number: int, chosen: dict[tuple[int, int | str], int]) -> bytes:
        file = self.files[number]
        size = file.sizes[chosen.get((number, -1), 0)]
        if not file.sectors and size == len(file.durable):
            return file.durable
        content = bytearray(file.durable[:size].ljust(size, b"\0"))
        for index, options in file.sectors:
            start = index * SECTOR_BYTES
            if start < size:
                room = min(SECTOR_BYTES, size - start)
                piece = options[chosen[number, index]].ljust(SECTOR_BYTES, b"\0")
                content[start : start + room] = piece[:room]
        return bytes(content)


def _frozen(file: FileNode, torn: int) -> FrozenFile:
    allocated = -(-len(file.durable) // SECTOR_BYTES)
    sectors = tuple(
        (index, _options(file, known, index, allocated, torn))
        for index, known in sorted(file.versions.items())
        if known
    )
    return FrozenFile(file.durable, tuple(_newest_last([len(file.durable), *file.sizes])), sectors)


def _options(
    file: FileNode, known: list[bytes], index: int, allocated: int, torn: int
) -> tuple[bytes, ...]:
    """Old, every later version, each of them torn at one place, and what the sector held before."""
    old, former = file.durable_sector(index), file.former_sectors(index)
    options = [old, *known]
    draw = random.Random(f"{torn}-{file.number}-{index}-{len(known)}")
    before = former[-1] if former else old
    for version in known:
        differing = [at for at, (a, b) in enumerate(zip(before, version, strict=False)) if a != b]
        low = differing[0] if differing else min(len(before), len(version))
        high = max(len(before), len(version))
        if high - low > 1:
            at = draw.randrange(low + 1, high)
            options.append(version[:at].ljust(at, b"\0") + before[at:])
        before = version
    options += former
    if index >= allocated:
        options.append(stale_sector(file.number, index))
    return tuple(_newest_last([*options, known[-1]]))


def _newest_last(options: list[_Option]) -> list[_Option]:
    """Each option once: the durable one first, the newest last, whatever is between between."""
    oldest, newest = options[0], options[-1]
    kept = [oldest]
    kept += [option for option in dict.fromkeys(options) if option not in (oldest, newest)]
    if newest != oldest:
        kept.append(newest)
    return kept


def _reachable(folders: dict[int, dict[str, int]]) -> dict[int, dict[str, int]]:
    """Only folders that a path leads to."""
    kept: dict[int, dict[str, int]] = {}
    todo = [ROOT]
    while todo:
        number = todo.pop()
        kept[number] = folders[number]
        todo += [child for child in folders[number].values() if child in folders]
    return kept


def number_of(units: list[Unit], choice: list[int]) -> int:
    """The number of a choice."""
    number = 0
    for unit, pick in zip(units, choice, strict=True):
        number = number * unit.options + pick
    return number


def choice_of(units: list[Unit], number: int) -> list[int]:
    """The choice of a number."""
    choice = []
    for unit in reversed(units):
        number, pick = divmod(number, unit.options)
        choice.append(pick)
    return choice[::-1]


def total(units: list[Unit]) -> int:
    """How many choices there are."""
    count = 1
    for unit in units:
        count *= unit.options
    return count


def choices(units: list[Unit], draw: random.Random, most: int = EXHAUSTIVE_MAX) -> Iterator[int]:
    """Numbers of states to try: all of them when they are few, else extremes and drawn ones.

    The extremes: all lost, all kept; a whole file, the names of a folder, a page of a file, one
    unit alone lost or kept. They take three quarters at most; the rest is drawn.
    """
    count = total(units)
    if count <= most:
        yield from range(count)
        return
    seen: set[int] = set()
    for choice in _candidates(units, draw, most):
        number = number_of(units, choice)
        if number not in seen:
            seen.add(number)
            yield number
        if len(seen) >= most:
            return


def _candidates(units: list[Unit], draw: random.Random, most: int) -> Iterator[list[int]]:
    lost = [0] * len(units)
    kept = [unit.options - 1 for unit in units]
    yield from (lost, kept)
    grouped = list(_grouped_extremes(units, lost, kept))
    yield from _some(grouped, draw, most // 4)
    yield from _some(list(_single_extremes(units, lost, kept)), draw, most // 2)
    while True:
        way = draw.choice((_alone, _of_page, _of_node))
        yield _drawn(units, draw, way)


def _some(found: list[list[int]], draw: random.Random, count: int) -> list[list[int]]:
    return found if len(found) <= count else draw.sample(found, count)


def _drawn(
    units: list[Unit], draw: random.Random, group_of: Callable[[Unit], Hashable]
) -> list[int]:
    """Units of a group share their fate; beside that, some are drawn by themselves."""
    share = draw.choice((0.1, 0.5, 0.9))
    strays = 0.5 if group_of is _alone else draw.choice((0.0, 0.0, 0.05))
    fates: dict[Hashable, bool] = {}
    choice = []
    for unit in units:
        group = group_of(unit)
        if group not in fates:
            fates[group] = draw.random() < share
        if draw.random() < strays:
            choice.append(draw.randrange(unit.options))
        else:
            choice.append(unit.options - 1 if fates[group] else 0)
    return choice


def _alone(unit: Unit) -> Hashable:
    return (unit.node, unit.key)


def _of_page(unit: Unit) -> Hashable:
    """Sectors of one page of 4 KiB: caches and databases write no less at a time."""
    return (unit.node, unit.key // PAGE_SECTORS if isinstance(unit.key, int) else unit.key)


def _of_node(unit: Unit) -> Hashable:
    return unit.node


def _grouped_extremes(units: list[Unit], lost: list[int], kept: list[int]) -> Iterator[list[int]]:
    for group_of in (_of_node, _of_page):
        groups: dict[Hashable, list[int]] = {}
        for at, unit in enumerate(units):
            groups.setdefault(group_of(unit), []).append(at)
        for members in groups.values():
            for base, other in ((lost, kept), (kept, lost)):
                choice = list(base)
                for at in members:
                    choice[at] = other[at]
                yield choice


def _single_extremes(units: list[Unit], lost: list[int], kept: list[int]) -> Iterator[list[int]]:
    for at, unit in enumerate(units):
        for pick in range(1, unit.options):
            yield [*lost[:at], pick, *lost[at + 1 :]]
        for pick in range(unit.options - 1):
            yield [*kept[:at], pick, *kept[at + 1 :]]
