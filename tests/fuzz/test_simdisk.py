"""The simulated disk: like the real one while the power is on, and every legal state after."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treering.engine.journal.disk import LOCAL_DISK, Disk, write_all
from treering.fuzz.crash_states import (
    PAGE_SECTORS,
    CrashPoint,
    Unit,
    choice_of,
    choices,
    number_of,
    total,
)
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import SECTOR_BYTES, Image, SyncFailure


def states(disk: SimDisk) -> list[Image]:
    """Every state that a crash now can leave."""
    point = CrashPoint.of(disk.volume, 0, "now", None, torn=1)
    units = point.units()
    built = (point.build(units, choice_of(units, number)) for number in range(total(units)))
    return [image for image in built if image is not None]


def contents(disk: SimDisk, path: str) -> set[bytes | None]:
    """What the path may hold after a crash; None where it may be gone."""
    found: set[bytes | None] = set()
    for image in states(disk):
        found.add(SimDisk(image).read_file(path) if SimDisk(image).exists(path) else None)
    return found


def ready(data: bytes = b"") -> tuple[SimDisk, Any]:
    """A disk with one durable file, and the file."""
    disk = SimDisk()
    file = disk.create("/f")
    write_all(file, data, 0)
    disk.volume.settle()
    return disk, file


def test_what_is_synced_survives_whatever_happens() -> None:
    disk, file = ready(b"old")
    file.pwrite(b"new!", 0)
    file.fdatasync()
    assert contents(disk, "/f") == {b"new!"}


def test_an_unsynced_overwrite_is_lost_kept_or_torn() -> None:
    disk, file = ready(b"aaaaaaaa")
    file.pwrite(b"bbbb", 2)
    found = contents(disk, "/f")
    assert {b"aaaaaaaa", b"aabbbbaa"} <= found
    (torn,) = found - {b"aaaaaaaa", b"aabbbbaa"}
    assert torn is not None
    assert torn[:2] == b"aa"
    assert torn[6:] == b"aa"  # no byte outside of the write's own range changes
    assert set(torn[2:6]) == set(b"ab")


def test_sectors_of_one_write_survive_each_by_itself() -> None:
    disk, file = ready(b"a" * 3 * SECTOR_BYTES)
    file.pwrite(b"b" * 3 * SECTOR_BYTES, 0)
    whole = {
        tuple(data[at : at + 1] for at in range(0, len(data), SECTOR_BYTES))
        for data in contents(disk, "/f")
        if data is not None
        and all(len(set(data[at : at + SECTOR_BYTES])) == 1 for at in range(0, len(data), 512))
    }
    assert len(whole) == 8


def test_two_writes_are_reordered() -> None:
    disk, file = ready(b"a" * 2 * SECTOR_BYTES)
    file.pwrite(b"1" * SECTOR_BYTES, 0)
    file.pwrite(b"2" * SECTOR_BYTES, SECTOR_BYTES)
    assert b"a" * SECTOR_BYTES + b"2" * SECTOR_BYTES in contents(disk, "/f")


def test_an_unsynced_extension_may_be_zeros_garbage_or_of_any_size() -> None:
    disk, file = ready(b"x" * SECTOR_BYTES)
    file.pwrite(b"y" * 1000, SECTOR_BYTES)
    found = contents(disk, "/f")
    sizes = {len(data) for data in found if data is not None}
    assert sizes == {SECTOR_BYTES, 2 * SECTOR_BYTES, SECTOR_BYTES + 1000}
    assert b"x" * SECTOR_BYTES + bytes(1000) in found
    whole = [data for data in found if data is not None and len(data) == SECTOR_BYTES + 1000]
    assert any(data[SECTOR_BYTES : 2 * SECTOR_BYTES].strip(b"y\0") for data in whole), "no garbage"


def test_what_was_cut_off_shows_again_where_the_file_grows_over_it() -> None:
    disk, file = ready(b"first|" + b"second" * 200)
    file.truncate(6)
    file.fdatasync()
    assert contents(disk, "/f") == {b"first|"}  # not while the file ends before it
    file.pwrite(b"3" * 1206, 6)
    found = contents(disk, "/f")
    assert b"first|" + b"second" * 200 + bytes(6) in found
    assert b"first|" + b"second" * 84 + b"se" + b"3" * 700 in found  # one sector of it


def test_what_was_wiped_before_it_was_cut_off_never_shows_again() -> None:
    disk, file = ready(b"first|" + b"second" * 200)
    file.pwrite(bytes(1200), 6)
    file.fdatasync()
    file.truncate(6)
    file.fdatasync()
    file.pwrite(b"3" * 1206, 6)
    assert not any(b"second" in data for data in contents(disk, "/f") if data is not None)


def test_a_wipe_that_only_the_cache_saw_wipes_nothing() -> None:
    disk, file = ready(b"first|" + b"second" * 200)
    file.pwrite(bytes(1200), 6)
    file.truncate(6)
    file.fdatasync()
    file.pwrite(b"3" * 1206, 6)
    assert any(b"second" in data for data in contents(disk, "/f") if data is not None)


def test_what_is_written_over_a_cut_and_synced_ends_it() -> None:
    disk, file = ready(b"first|" + b"second" * 200)
    file.truncate(6)
    file.pwrite(b"3" * 1300, 6)
    file.fdatasync()
    assert contents(disk, "/f") == {b"first|" + b"3" * 1300}
    file.truncate(6)
    file.fdatasync()
    file.pwrite(b"4" * 1300, 6)
    assert not any(b"second" in data for data in contents(disk, "/f") if data is not None)


def test_a_cut_and_what_is_written_over_it_may_both_be_lost() -> None:
    disk, file = ready(b"first|torn")
    file.truncate(6)
    file.pwrite(b"2nd|", 6)
    found = contents(disk, "/f")
    assert {b"first|torn", b"first|2nd|"} <= found
    assert b"first|" in found  # cut, and the write lost


def test_names_are_durable_only_with_their_folder() -> None:
    disk = SimDisk()
    disk.make_folder("/d")
    disk.sync_folder("/")
    file = disk.create("/d/f")
    write_all(file, b"data", 0)
    file.fsync()
    assert contents(disk, "/d/f") == {None, b"data"}
    disk.sync_folder("/d")
    assert contents(disk, "/d/f") == {b"data"}


def test_a_folder_whose_name_is_lost_takes_what_is_in_it_along() -> None:
    disk = SimDisk()
    disk.make_folder("/d")
    file = disk.create("/d/f")
    file.fsync()
    disk.sync_folder("/d")
    assert contents(disk, "/d/f") == {None, b""}
    disk.sync_folder("/")
    assert contents(disk, "/d/f") == {b""}


def test_the_note_of_an_owner_differs_in_no_state_but_is_there() -> None:
    disk = SimDisk()
    write_all(disk.create("/s.note"), b"durable", 0)
    disk.volume.settle()
    write_all(disk.open("/s.note", write=True), b"changed", 0)
    disk.unlink("/s.note")
    point = CrashPoint.of(disk.volume, 0, "now", None, torn=1, advisory=(".note",))
    assert point.units() == []
    image = point.build([], [])
    assert image is not None
    assert SimDisk(image).read_file("/s.note") == b"durable"


def test_link_and_unlink_are_reordered() -> None:
    disk, _ = ready(b"x")
    disk.link("/f", "/g")
    disk.unlink("/f")
    left = {tuple(path for path, _ in image.paths()) for image in states(disk)}
    assert left == {(), ("/f",), ("/g",), ("/f", "/g")}


@pytest.mark.parametrize("synced", [None, "/from", "/to"])
def test_a_rename_never_loses_the_file(synced: str | None) -> None:
    disk = SimDisk()
    disk.make_folder("/from")
    disk.make_folder("/to")
    write_all(disk.create("/from/f"), b"new", 0)
    write_all(disk.create("/to/f"), b"old", 0)
    disk.volume.settle()
    disk.rename("/from/f", "/to/f")
    if synced is not None:
        disk.sync_folder(synced)
    left = set()
    for image in states(disk):
        after = SimDisk(image)
        left.add((after.exists("/from/f"), after.read_file("/to/f")))
    moved, both, before = (False, b"new"), (True, b"new"), (True, b"old")
    assert left == {None: {before, both, moved}, "/from": {moved}, "/to": {both, moved}}[synced]


def test_a_rename_within_one_folder_is_durable_with_it() -> None:
    disk, _ = ready(b"x")
    disk.rename("/f", "/g")
    assert {SimDisk(image).exists("/f") for image in states(disk)} == {True, False}
    assert all(SimDisk(i).exists("/f") or SimDisk(i).exists("/g") for i in states(disk))
    disk.sync_folder("/")
    assert [tuple(path for path, _ in image.paths()) for image in states(disk)] == [("/g",)]


@pytest.mark.parametrize("synced", [None, "/from", "/to"])
def test_a_renamed_folder_has_one_of_its_names(synced: str | None) -> None:
    """Never both, never none; what is in it goes with it. One side synced settles the other."""
    disk = SimDisk()
    for folder in ("/from", "/to", "/from/d"):
        disk.make_folder(folder)
    write_all(disk.create("/from/d/f"), b"data", 0)
    disk.volume.settle()
    disk.rename("/from/d", "/to/e")
    if synced is not None:
        disk.sync_folder(synced)
    left = set()
    for image in states(disk):
        after = SimDisk(image)
        left.add((after.exists("/from/d/f"), after.exists("/to/e/f")))
    before, moved = (True, False), (False, True)
    assert left == ({before, moved} if synced is None else {moved})


@pytest.mark.parametrize("synced", [(), ("/to",), ("/from",), ("/to", "/from")])
def test_a_folder_that_is_moved_there_and_back_is_never_gone(synced: tuple[str, ...]) -> None:
    """Its way back is one more rename; each side synced says how far it came."""
    disk = SimDisk()
    for folder in ("/from", "/to", "/from/d"):
        disk.make_folder(folder)
    disk.volume.settle()
    disk.rename("/from/d", "/to/d")
    disk.rename("/to/d", "/from/d")
    for folder in synced:
        disk.sync_folder(folder)
    left = set()
    for image in states(disk):
        after = SimDisk(image)
        left.add((after.exists("/from/d"), after.exists("/to/d")))
    assert left == ({(True, False)} if synced else {(True, False), (False, True)})


def test_a_removed_folder_may_be_back() -> None:
    """Removing it is a name of the folder that it was in; only an empty one can be removed."""
    disk = SimDisk()
    disk.make_folder("/d")
    disk.create("/d/f")
    disk.volume.settle()
    with pytest.raises(OSError, match="not empty"):
        disk.remove_folder("/d")
    disk.unlink("/d/f")
    disk.remove_folder("/d")
    left = {tuple(path for path, _ in image.paths()) for image in states(disk)}
    assert left == {(), ("/d",), ("/d", "/d/f")}
    disk.sync_folder("/")
    assert {tuple(image.paths()) for image in states(disk)} == {()}


def fail_a_sync(model: SyncFailure) -> tuple[SimDisk, Any]:
    disk, file = ready(b"a" * SECTOR_BYTES)
    disk.sync_failure = model
    file.pwrite(b"b" * 4, 0)
    file.fail_sync()
    return disk, file


def test_dropped_pages_stay_lost_though_the_next_sync_succeeds() -> None:
    disk, file = fail_a_sync("dropped")
    file.fdatasync()
    assert file.pread(4, 0) == b"bbbb"
    assert {b"aaaa", b"bbbb"} <= {data[:4] for data in contents(disk, "/f") if data is not None}
    disk.volume.file("/f").evict()
    assert file.pread(4, 0) == b"aaaa"


def test_dropped_pages_that_are_written_again_are_durable() -> None:
    disk, file = fail_a_sync("dropped")
    file.pwrite(b"bbbb", 0)
    file.fdatasync()
    assert {data[:4] for data in contents(disk, "/f") if data is not None} == {b"bbbb"}


def test_kept_pages_are_written_by_the_next_sync() -> None:
    disk, file = fail_a_sync("kept")
    assert len(contents(disk, "/f")) > 1
    file.fdatasync()
    assert {data[:4] for data in contents(disk, "/f") if data is not None} == {b"bbbb"}


def test_reverted_pages_show_the_old_bytes() -> None:
    disk, file = fail_a_sync("reverted")
    assert file.pread(4, 0) == b"aaaa"
    assert contents(disk, "/f") == {b"a" * SECTOR_BYTES}


def test_a_failed_sync_of_an_extension_that_is_written_again() -> None:
    """What recovery does: the same bytes in place, then a sync that does not grow the file."""
    disk, file = ready(b"")
    file.pwrite(b"frame", 0)
    file.fail_sync()
    file.pwrite(b"frame", 0)
    file.fdatasync()
    assert contents(disk, "/f") == {b"frame"}


# Like the real one


PATHS = ("/a", "/b", "/d", "/d/a", "/d/b", "/e/x")


def apply(disk: Disk, top: str, files: list[Any], step: tuple[Any, ...]) -> object:
    """One operation and what it gives: a value, or the number of its error."""
    name, *arguments = step
    paths = [top + one if isinstance(one, str) and one[:1] == "/" else one for one in arguments]
    try:
        if name in ("open", "create"):
            file = disk.open(paths[0], write=paths[1]) if name == "open" else disk.create(paths[0])
            files.append(file)
            return None
        if name.startswith("file_"):
            if not files:
                return None
            file = files[paths[0] % len(files)]
            if name == "file_close":
                files.remove(file)
            found = getattr(file, name[5:])(*paths[1:])
            if name == "file_stat":
                return (found.is_regular, found.size if found.is_regular else 0)
            return found
        if name == "stat":
            found = disk.stat(paths[0])
            return (found.is_folder, found.is_regular, found.size if found.is_regular else 0)
        return getattr(disk, name)(*paths)
    except OSError as error:
        return type(error).__name__, error.errno


PATH = st.sampled_from(PATHS)
FOLDER_VERBS = ("unlink", "make_folder", "remove_folder", "list_folder", "sync_folder")
STEPS = st.one_of(
    st.tuples(st.just("open"), PATH, st.booleans()),
    st.tuples(st.just("create"), PATH),
    st.tuples(st.just("stat"), PATH),
    st.tuples(st.sampled_from(FOLDER_VERBS), PATH),
    st.tuples(st.sampled_from(("link", "rename")), PATH, PATH),
    st.tuples(
        st.just("file_pwrite"),
        st.integers(0, 5),
        st.binary(max_size=700),
        st.integers(0, 1500),
    ),
    st.tuples(st.just("file_pread"), st.integers(0, 5), st.integers(0, 900), st.integers(0, 1500)),
    st.tuples(st.just("file_truncate"), st.integers(0, 5), st.integers(0, 1500)),
    st.tuples(st.sampled_from(("file_fdatasync", "file_stat", "file_close")), st.integers(0, 5)),
    st.tuples(st.just("file_try_lock"), st.integers(0, 5)),
)


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_it_answers_as_the_local_disk_does(
    steps: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = str(tmp_path_factory.mktemp("local"))
    simulated = SimDisk()
    simulated.make_folder("/top")
    local_files: list[Any] = []
    simulated_files: list[Any] = []
    with contextlib.ExitStack() as stack:
        for step in steps:
            real = apply(LOCAL_DISK, top, local_files, step)
            got = apply(simulated, "/top", simulated_files, step)
            assert got == real, step
        for file in (*local_files, *simulated_files):
            stack.callback(file.close)
        for path in PATHS:
            if simulated.exists("/top" + path) and os.path.isfile(top + path):
                assert simulated.read_file("/top" + path) == Path(top + path).read_bytes()
            assert simulated.exists("/top" + path) == os.path.exists(top + path)


@settings(max_examples=100, deadline=None)
@given(options=st.lists(st.integers(2, 5), max_size=8), seed=st.integers(0, 1000))
def test_numbers_and_choices_are_the_same_thing(options: list[int], seed: int) -> None:
    units = [Unit(1, at, count) for at, count in enumerate(options)]
    draw = random.Random(seed)
    choice = [draw.randrange(unit.options) for unit in units]
    assert choice_of(units, number_of(units, choice)) == choice
    drawn = list(choices(units, random.Random(seed), 64))
    assert len(set(drawn)) == len(drawn) == min(64, total(units))
    assert all(0 <= number < total(units) for number in drawn)
    assert drawn == list(choices(units, random.Random(seed), 64))
    assert {0, total(units) - 1} <= set(drawn)


def test_files_and_pages_are_lost_and_kept_as_a_whole() -> None:
    """A database mixes pages of different ages, hardly ever halves of them."""
    units = [Unit(node, at, 3) for node in (1, 2) for at in range(4 * PAGE_SECTORS)]
    drawn = [choice_of(units, n) for n in choices(units, random.Random(0), 128)]
    whole = [PAGE_SECTORS * [fate] for fate in (0, 2)]
    pages = [
        [choice[at : at + PAGE_SECTORS] in whole for at in range(0, len(units), PAGE_SECTORS)]
        for choice in drawn
    ]
    assert sum(map(all, pages)) > 20
    half = len(units) // 2
    assert [0] * half + [2] * half in drawn
    assert [2] * half + [0] * half in drawn
    assert sum(1 in choice for choice in drawn) > 16
