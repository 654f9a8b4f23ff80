"""Edges of reading: where a scan stops, limits at and one above, searches across chunks, the hash
budget, and the captured end of a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import xxhash
from support import build, damage
from support.build import FRAME_MAGIC, ID, Made, Maker, Memory

from treering.engine.errors import LimitExceeded, SourceChanged, StorageError
from treering.engine.journal.format import salt_of
from treering.engine.journal.reader import (
    FileBytes,
    GrowingBytes,
    HashBudget,
    Place,
    Scan,
    Stop,
    frame_at,
    magic_offsets,
    search,
    whole_frame,
)
from treering.fuzz.faulty_disk import FaultyDisk, Op

SALT = salt_of(ID)
READER = "treering.engine.journal.reader"


def behind(frame: Made) -> Place:
    return Place(frame.end, frame.sequence + 1, frame.epoch, frame.revision[:8])


def stop_of(data: bytes) -> Stop:
    scan = Scan(Memory(data), SALT)
    for _ in scan.frames():
        pass
    assert scan.stop is not None
    return scan.stop


# Where a scan stops, and the reason word for word


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"magic": b"\xf7RG\x1e"}, "no frame magic"),
        ({"salt": 1}, "header check"),
        ({"stored": 64 * 2**20 + 1}, "stored length 67108865"),
        ({"stored": 12}, "cut short"),
        ({"stored": 10}, "digest"),
        ({"sequence": 9}, "sequence 9 instead of 5"),
        ({"previous": b"12345678"}, "digest of the previous frame"),
        ({"epoch": 3}, "epoch 3 after 2"),
        ({"epoch": 1}, "epoch 1 after 2"),
    ],
)
def test_why_and_where_a_scan_stops(change: dict[str, Any], reason: str) -> None:
    made = Maker().started()
    made.open()
    good = made.entry("a")
    made.frame(build.ENTRY, b"bad payload", **change)
    assert stop_of(made.whole()) == Stop(behind(good), reason)


def test_a_scan_of_a_cut_file_stops_before_the_cut_frame() -> None:
    """At the end of a frame there is no reason; anywhere within it is cut short."""
    made = Maker().started()
    before, last = made.frames[-2:]
    data = made.whole()
    assert stop_of(data) == Stop(behind(last), None)
    assert stop_of(data[: before.end]) == Stop(behind(before), None)
    for size in range(before.end + 1, last.end):
        assert stop_of(data[:size]) == Stop(behind(before), "cut short")


def test_a_scan_has_not_stopped_while_it_goes_on() -> None:
    made = Maker().started()
    scan = Scan(Memory(made.whole()), SALT)
    frames = scan.frames()
    assert scan.stop is None
    next(frames)
    assert scan.stop is None
    assert len(list(frames)) == 2
    assert scan.stop == Stop(behind(made.frames[-1]), None)


def test_an_empty_frame_alone_is_scanned() -> None:
    """60 bytes, as few as a frame can have."""
    made = Maker()
    only = made.frame(build.ENTRY, b"")
    assert stop_of(made.whole()) == Stop(behind(only), None)


# Frames by themselves


def test_a_payload_of_the_limit_is_read_and_one_above_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{READER}.PAYLOAD_BYTES_MAX", 100)
    made = Maker()
    good = made.frame(build.BLOB, bytes(100))
    above = made.frame(build.BLOB, bytes(101))
    data = made.whole()
    assert stop_of(data) == Stop(behind(good), "stored length 101")
    assert [frame.offset for frame in search(Memory(data), SALT, 0, 0)] == [good.offset]
    for frame, found in ((good, True), (above, False)):
        assert (frame_at(Memory(data), SALT, frame.offset) is not None) is found
        whole = whole_frame(data[frame.offset : frame.end], frame.offset, SALT)
        assert (whole is not None) is found


def test_magic_and_header_check_must_hold_whatever_the_digest_says() -> None:
    made = Maker()
    made.frame(build.ENTRY, b"{}", magic=b"\xf7RG\x1e")
    assert whole_frame(made.body, 0, SALT) is None
    made = Maker()
    made.frame(build.ENTRY, b"{}")
    assert whole_frame(made.body, 0, SALT) is not None
    body = damage.flip(made.body, 40 * 8)[:-16]
    wrong_check = body + xxhash.xxh3_128(body, seed=SALT).digest()
    assert whole_frame(wrong_check, 0, SALT) is None


# Searches in chunks


@pytest.mark.parametrize("before", range(130))
def test_a_frame_is_found_across_every_edge_of_a_chunk(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header may end with a chunk or cross into the next; its end is the end of the file."""
    monkeypatch.setattr(f"{READER}.SCAN_CHUNK_BYTES", 64)
    made = Maker()
    made.frame(build.ENTRY, b"")
    source = Memory(bytes(before) + made.body)
    assert [frame.offset for frame in search(source, SALT, 0, 0)] == [before]


@pytest.mark.parametrize("before", range(200))
def test_a_magic_is_found_once_across_every_edge_of_a_chunk(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as the last four bytes of the file."""
    monkeypatch.setattr(f"{READER}.SCAN_CHUNK_BYTES", 64)
    for after in (0, 1, 100):
        source = Memory(bytes(before) + FRAME_MAGIC + bytes(after))
        assert list(islice(magic_offsets(source, 0), 5)) == [before]


# The hash budget


@pytest.mark.parametrize(("size", "limit"), [(0, 32_768), (4096, 32_768), (4097, 32_776)])
def test_the_budget_may_be_spent_to_its_limit(size: int, limit: int) -> None:
    budget = HashBudget(Memory(bytes(size), "some/s1.jsonl"))
    assert budget.limit == limit
    budget.spend(limit - 1, 7)
    budget.spend(1, 8)
    with pytest.raises(LimitExceeded) as caught:
        budget.spend(1, 9)
    error = caught.value
    assert error.what == f"the search for frames would hash more than {limit} bytes"
    assert (error.limit, error.path, error.offset) == (limit, "some/s1.jsonl", 9)


def hostile(kind: int, beyond: int) -> bytes:
    """A hundred envelopes that all claim to end ``beyond`` bytes behind the end of the file."""
    made = Maker()
    for left in range(99, -1, -1):
        made.frame(kind, b"", stored=left * build.ENVELOPE + beyond)
    return made.body


def look_for_ids(data: bytes) -> object:
    return build.look(data).reason


def look_for_frames(data: bytes) -> object:
    return list(search(Memory(data), SALT, 0, 0))


@pytest.mark.parametrize(
    ("kind", "read"), [(build.EPOCH_OPEN, look_for_ids), (build.ENTRY, look_for_frames)]
)
def test_where_the_budget_ends(kind: int, read: Callable[[bytes], object]) -> None:
    """Eight claims of 6,000, 5,940, ... bytes fit into 48,000, the ninth does not."""
    with pytest.raises(LimitExceeded) as caught:
        read(hostile(kind, 0))
    assert (caught.value.limit, caught.value.offset) == (48_000, 8 * build.ENVELOPE)


def test_what_claims_to_end_behind_the_file_costs_nothing() -> None:
    for beyond in (1, 60_000):
        assert look_for_frames(hostile(build.ENTRY, beyond)) == []
        said = look_for_ids(hostile(build.EPOCH_OPEN, beyond))
        assert said == "no frame verifies and no journal id is found: restore a copy"


# Files


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "s1.jsonl"
    path.write_bytes(b"0123456789")
    return str(path)


def test_a_file_is_read_up_to_its_captured_size(path: str) -> None:
    """At and behind the captured end there is nothing, and the file is not even asked."""
    disk = FaultyDisk()
    source = FileBytes(disk.open(path), path, 8)
    shorter = source.captured(5)
    disk.take()
    assert (source.read_at(7, 5), source.read_at(0, 9)) == (b"7", b"01234567")
    assert (shorter.read_at(4, 5), shorter.size, shorter.path) == (b"4", 5, path)
    assert disk.take() == [Op("pread", path, *at) for at in ((7, 1), (0, 8), (4, 1))]
    assert (source.read_at(8, 1), source.read_at(99, 1), source.read_at(-1, 3)) == (b"", b"", b"")
    assert shorter.read_at(5, 1) == b""
    assert disk.take() == []


def test_a_file_that_grows_is_read_as_far_as_it_is_written(path: str) -> None:
    disk = FaultyDisk()
    size = 4
    source = GrowingBytes(disk.open(path), path, lambda: size)
    assert (source.size, source.read_at(2, 9), source.path) == (4, b"23", path)
    size = 10
    assert (source.size, source.read_at(2, 9)) == (10, b"23456789")


def test_a_read_that_fails_says_what_and_where(path: str) -> None:
    disk = FaultyDisk()
    source = FileBytes(disk.open(path), path, 10)
    disk.fail("pread", error=errno.EIO)
    with pytest.raises(StorageError) as caught:
        source.read_at(3, 4)
    reason = os.strerror(errno.EIO)
    assert caught.value.what == f"cannot read 4 bytes at offset 3: {reason}"
    assert caught.value.path == path


def test_a_file_that_shrinks_says_where_it_ends(path: str) -> None:
    source = FileBytes(FaultyDisk().open(path), path, 10)
    os.truncate(path, 6)
    assert source.read_at(2, 4) == b"2345"
    with pytest.raises(SourceChanged) as caught:
        source.read_at(2, 5)
    assert caught.value.what == "the file shrank below 10 bytes while it was read"
    assert (caught.value.path, caught.value.offset) == (path, 6)
