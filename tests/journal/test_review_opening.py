"""What a last review found below the session: quarantine copies, folders, and odd histories."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support import build, damage

from treering.engine.errors import (
    Invalid,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    Unsupported,
)
from treering.engine.journal import recovery
from treering.engine.journal.admissible import Record, check_records
from treering.fuzz import oracle
from treering.fuzz.faulty_disk import FaultyDisk, Op

GOLDEN = (Path(__file__).resolve().parents[1] / "data/golden-epochs.jsonl").read_bytes()
TORN = GOLDEN[:-20]
TORN_AT = oracle.judge(GOLDEN).frames[-1].offset


@pytest.fixture
def store(tmp_path: Path) -> build.Store:
    return build.make_store(tmp_path)


def test_a_copy_whose_sync_failed_is_written_again(store: build.Store) -> None:
    """R01: what the page cache shows of a copy proves nothing; it is written and synced anew."""
    build.put(store, TORN)
    disk = FaultyDisk()
    disk.fail("fsync", path=store.quarantine)
    disk.fail("unlink", path=store.quarantine, times=99)  # as if the process had died there
    with pytest.raises(StorageError):
        build.reopen(store, disk=disk)
    assert build.get(store.path()) == TORN
    (left,) = os.listdir(store.quarantine)
    assert build.get(os.path.join(store.quarantine, left)) == TORN[TORN_AT:]

    disk.heal()
    disk.take()
    build.crash(build.reopen(store, disk=disk).owner)
    log = disk.take()
    cut = next(n for n, op in enumerate(log) if op.name == "truncate" and op.path == store.path())
    before = log[:cut]
    fresh = {op.path for op in before if op.name == "pwrite" and store.quarantine in op.path}
    (copy,) = fresh
    written = sum(op.second for op in before if op.name == "pwrite" and op.path == copy)
    assert written == len(TORN) - TORN_AT
    last_write = max(n for n, op in enumerate(before) if op.name == "pwrite" and op.path == copy)
    synced = before.index(Op("fsync", copy), last_write)
    assert Op("sync_folder", store.quarantine) in before[synced:]
    assert build.get(copy) == TORN[TORN_AT:]


@pytest.mark.parametrize("operation", ["pwrite", "fsync"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_unfinished_copy_is_not_left(store: build.Store, operation: str, error: int) -> None:
    """U19: a copy that could not be finished goes; the next opening uses the documented name."""
    build.put(store, TORN)
    disk = FaultyDisk()
    disk.fail(operation, path=store.quarantine, error=error)
    with pytest.raises((StorageError, StorageFull)):
        build.reopen(store, disk=disk)
    assert os.listdir(store.quarantine) == []
    assert build.get(store.path()) == TORN
    build.crash(build.reopen(store).owner)
    (name,) = os.listdir(store.quarantine)
    assert name.startswith(f"{TORN_AT}-")
    assert name.count(".") == 1


def _above(store: build.Store, log: list[Op], before: str) -> bool:
    """Whether the folder above the store is synced before the first operation of that name."""
    end = next((n for n, op in enumerate(log) if op.name == before), len(log))
    return Op("sync_folder", os.path.dirname(store.top)) in log[:end]


def test_the_folder_above_home_is_synced(tmp_path: Path) -> None:
    """R27: the name of <home> may be a moment old: creating and opening sync where it lies."""
    disk = FaultyDisk()
    store = build.make_store(tmp_path)  # made by somebody else, not synced
    build.create(store, disk=disk).close()
    log = disk.take()
    assert Op("sync_folder", str(tmp_path)) in log
    opened = build.reopen(store, disk=disk)
    assert Op("sync_folder", str(tmp_path)) in disk.take()
    writer = build.writer_of(opened)
    writer.append([build.entry("a")])
    assert Op("sync_folder", str(tmp_path)) not in disk.take()  # once is enough
    writer.close()


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EIO])
def test_the_folder_above_home_may_be_foreign(tmp_path: Path, error: int) -> None:
    """R27: what may not be opened is left to its owner; a sync that fails is told."""
    store = build.make_store(tmp_path)
    build.create(store).close()
    disk = FaultyDisk()

    def refuse(op: Op) -> None:
        if op == Op("sync_folder", str(tmp_path)):
            raise OSError(error, os.strerror(error))

    disk.before = refuse
    if error == errno.EIO:
        with pytest.raises(StorageError):
            build.reopen(store, disk=disk)
    else:
        build.crash(build.reopen(store, disk=disk).owner)
    assert disk.open_files == 0


@pytest.mark.parametrize("with_frame", [False, True])
def test_a_journal_without_session_header_is_not_appended_to(
    store: build.Store, with_frame: bool
) -> None:
    """R23: writing behind a bare EPOCH_OPEN would make a journal that no reader takes."""
    maker = build.Maker()
    maker.open()
    data = maker.publish().whole()
    if with_frame:
        data += b"\0" * 30  # a torn tail behind it
    build.put(store, data)
    with pytest.raises(Unsupported, match="no session header"):
        build.reopen(store)
    assert build.get(store.path()) == data
    assert not os.path.exists(store.quarantine)


@pytest.mark.parametrize("kind", [0, 12, 77, 127, 256, 300, -1])
def test_a_kind_that_no_reader_ignores_is_not_written(store: build.Store, kind: int) -> None:
    """R18: an unknown kind without the optional bit would make the journal unwritable for ever."""
    with pytest.raises(Invalid):
        check_records([Record(kind, b"x")], batch=False)
    writer = build.create(store)
    before = build.get(store.path())
    with pytest.raises(Invalid):
        writer.append([Record(kind, b"x")])
    assert build.get(store.path()) == before
    writer.append([Record(200, b"may be ignored")])
    writer.close()
    opened = build.reopen(store)
    assert opened.report.case == "A"
    opened.owner.release()


def test_good_frames_behind_damage_are_counted_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """R05: whatever they prove, at most so many frames behind damage are held in memory."""
    monkeypatch.setattr(recovery, "BEYOND_KEPT", 3)
    maker = build.Maker().started()
    maker.open()
    bad = maker.entry("bad")
    for number in range(5):
        maker.entry(f"u{number}")  # prove nothing about the damage
    for number in range(40):
        maker.sync().entry(f"e{number}")
    data = damage.flip(maker.whole(), (bad.offset + 50) * 8)
    found = build.look(data)
    assert found.case == "C"  # decided by frames that are not kept
    assert len(found.beyond) == 3
    assert found.beyond_count == 45


@pytest.mark.parametrize(
    ("operation", "error"),
    [("pwrite", errno.ENOSPC), ("pwrite", errno.EIO), ("fdatasync", errno.EIO)],
)
def test_an_epoch_that_cannot_be_closed_is_no_failure(
    store: build.Store, operation: str, error: int
) -> None:
    """B02, R16: everything acknowledged is durable before EPOCH_CLOSE; closing does not fail."""
    disk = FaultyDisk()
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    rule = disk.fail(operation, error=error, times=99)
    writer.close()
    assert rule.fired
    assert disk.open_files == 0
    opened = build.reopen(store)
    shown = [
        payload
        for _, kind, payload in build.visible(build.get(store.path()), opened.tail.journal_id)
        if kind == build.ENTRY
    ]
    opened.owner.release()
    assert shown == [build.entry("a").payload]


def test_an_acknowledgement_that_was_still_to_sync_fails_the_close(store: build.Store) -> None:
    """B02: with durability "os" the last sync is not about EPOCH_CLOSE alone, and is told."""
    disk = FaultyDisk()
    writer = build.create(store, disk=disk, durability="os")
    writer.append([build.entry("a")])
    disk.fail("fdatasync", times=99)
    with pytest.raises(OutcomeUnknown):
        writer.close()
    assert disk.open_files == 0
