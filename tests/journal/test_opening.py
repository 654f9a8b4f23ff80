"""Opening for writing when reads fail, space is short, the index lies, or the file moves."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import build, damage

from treering.engine.errors import (
    Damaged,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
    Unsupported,
)
from treering.engine.journal.format import salt_of
from treering.engine.journal.history import Walk
from treering.engine.journal.opening import Hint
from treering.engine.journal.reader import FileBytes, read_frame
from treering.fuzz import oracle
from treering.fuzz.faulty_disk import FaultyDisk, Op, quick_disk

GOLDEN = (Path(__file__).resolve().parents[1] / "data/golden-epochs.jsonl").read_bytes()
JOURNAL_ID = GOLDEN[28:44]
FRAMES = oracle.judge(GOLDEN).frames
TORN = GOLDEN[:-20]
TORN_AT = FRAMES[-1].offset
TORN_SHOWN = [row for row in build.visible(GOLDEN, JOURNAL_ID) if row[0] < FRAMES[-1].sequence]


@pytest.fixture
def store(tmp_path: Path) -> build.Store:
    return build.make_store(tmp_path)


def kept(store: build.Store) -> list[bytes]:
    if not os.path.isdir(store.quarantine):
        return []
    return [
        build.get(os.path.join(store.quarantine, name)) for name in os.listdir(store.quarantine)
    ]


def nothing_lost(store: build.Store, data: bytes) -> None:
    """Every byte is still in the journal, or wiped and cut and then whole in quarantine."""
    now = build.get(store.path())
    if now == data:
        return
    assert data[TORN_AT:] in kept(store)
    assert now[:TORN_AT] == data[:TORN_AT]
    assert now[TORN_AT:] in (b"", bytes(len(data) - TORN_AT))


def opens_whole_afterwards(store: build.Store, disk: FaultyDisk) -> None:
    disk.heal()
    writer = build.writer_of(build.reopen(store, disk=disk))
    writer.append([build.entry("next")])
    writer.close()
    shown = build.visible(build.get(store.path()), JOURNAL_ID)
    assert shown[: len(TORN_SHOWN)] == TORN_SHOWN
    assert b'"next"' in shown[-1][2]


@pytest.mark.parametrize("data", [GOLDEN, TORN], ids=["case_A", "case_E"])
@pytest.mark.parametrize("error", [errno.EIO, errno.EINTR, errno.ESTALE])
def test_F96_read_error_at_every_read(error: int, data: bytes, store: build.Store) -> None:
    """A read that fails while opening is an error of the machine: typed, never damage, never a cut;
    the bytes stay, and the next open is complete."""
    fired = 0
    for at in range(1, 60):
        shutil.rmtree(store.quarantine, ignore_errors=True)
        build.put(store, data)
        disk = quick_disk()
        rule = disk.fail("pread", at=at, error=error)
        try:
            build.reopen(store, disk=disk).owner.release()
        except StorageError:
            assert rule.fired
            assert build.get(store.path()) == data
        assert disk.open_files == 0
        nothing_lost(store, data)
        opens_whole_afterwards(store, disk)
        fired += rule.fired
        if not rule.fired:
            break
    assert fired >= 2


@pytest.mark.parametrize("data", [GOLDEN, TORN], ids=["case_A", "case_E"])
@pytest.mark.parametrize("left", [0, 1, 20])
def test_F96_short_read_at_every_read(left: int, data: bytes, store: build.Store) -> None:
    """A read that returns fewer bytes than there are (none, one, some): an error or the whole
    truth; never a cut of bytes that are not whole in quarantine."""
    build.put(store, data)
    disk = quick_disk()
    build.reopen(store, disk=disk).owner.release()
    reads = len([op for op in disk.log if op.name == "pread"])
    for at in range(1, reads + 1):
        shutil.rmtree(store.quarantine, ignore_errors=True)
        build.put(store, data)
        disk = quick_disk()
        seen = 0

        def short(path: str, found: bytes, offset: int) -> bytes:
            nonlocal seen
            seen += 1
            return found[:left] if seen == at else found

        disk.on_pread = short
        try:
            opened = build.reopen(store, disk=disk)
        except TreeringError:
            assert build.get(store.path()) == data
        else:
            assert opened.report.quarantined_bytes == len(data) - len(build.get(store.path()))
            opened.owner.release()
        assert disk.open_files == 0
        nothing_lost(store, data)
        opens_whole_afterwards(store, disk)
    assert reads >= 2


@pytest.mark.parametrize(
    "error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS]
)
def test_failure_at_every_operation_of_a_recovery(error: int, store: build.Store) -> None:
    """Whatever operation of an open with quarantine and cut fails: typed, no descriptor left, no
    byte lost, nothing cut that is not whole in quarantine, and the next open goes through."""
    fired = 0
    for at in range(1, 120):
        shutil.rmtree(os.path.join(store.top, "session-artifacts"), ignore_errors=True)
        build.put(store, TORN)
        disk = quick_disk()
        rule = disk.fail(None, at=at, error=error)
        try:
            build.reopen(store, disk=disk, note=True).owner.release()
        except TreeringError:
            assert rule.fired
        assert disk.open_files == 0
        nothing_lost(store, TORN)
        opens_whole_afterwards(store, disk)
        fired += rule.fired
        if not rule.fired:
            break
    assert fired > 20


@pytest.mark.parametrize("room", [0, 1, 7, 50])
def test_no_space_for_the_quarantine(room: int, store: build.Store) -> None:
    """ENOSPC while the torn bytes are saved: StorageFull, the journal untouched; with space it goes
    on, and the half copy of the first try is not taken for a whole one."""
    build.put(store, TORN)
    disk = quick_disk()
    disk.quota = room
    assert room < len(TORN) - TORN_AT
    for _ in range(2):
        with pytest.raises(StorageFull):
            build.reopen(store, disk=disk)
        assert build.get(store.path()) == TORN
        disk.quota = room
    disk.heal()
    opened = build.reopen(store, disk=disk)
    opened.owner.release()
    assert TORN[TORN_AT:] in kept(store)
    assert opened.report.quarantine is not None
    assert build.get(opened.report.quarantine) == TORN[TORN_AT:]


def test_case_E_order_of_operations(store: build.Store) -> None:
    """The file, its folder and all above are synced before the scan; the copy, its folder and all
    above before the journal is touched; unproven frames are rewritten and synced before the cut;
    the torn bytes are wiped and that is synced, then they are cut, and the cut is synced."""
    build.put(store, TORN)
    disk = quick_disk()
    build.reopen(store, disk=disk).owner.release()
    log = disk.take()
    at = {
        name: [i for i, op in enumerate(log) if op.name == name] for name in {op.name for op in log}
    }
    journal = store.path()
    first_read = at["pread"][0]
    assert [i for i in at["fsync"] if i < first_read and log[i].path == journal]
    early = {log[i].path for i in at["sync_folder"] if i < first_read}
    assert {store.sessions, store.top} <= early
    (create,) = [i for i in at["create"] if log[i].path.endswith(".tail")]
    copied = [i for i in at["fsync"] if log[i].path == log[create].path]
    touched = [i for i in at["pwrite"] + at["truncate"] if log[i].path == journal]
    assert create < copied[0] < min(touched)
    folders = {log[i].path for i in at["sync_folder"] if copied[0] < i < min(touched)}
    folder = store.quarantine
    while folder != os.path.dirname(store.top):
        assert folder in folders
        folder = os.path.dirname(folder)
    (cut,) = at["truncate"]
    assert log[cut].first == TORN_AT
    rewritten = {
        byte
        for i in at["pwrite"]
        if log[i].path == journal and i < cut
        for byte in range(log[i].first, log[i].first + log[i].second)
    }
    proven = oracle.proven_end(oracle.judge(TORN), int.from_bytes(TORN[44:52], "little"))
    assert set(range(proven, TORN_AT)) <= rewritten
    assert set(range(TORN_AT, len(TORN))) <= rewritten
    wipe = min(i for i in at["pwrite"] if log[i].first >= TORN_AT and log[i].path == journal)
    assert any(copied[0] < i < wipe for i in at["fdatasync"] if log[i].path == journal)
    last_write = max(i for i in at["pwrite"] if log[i].path == journal)
    assert any(last_write < i < cut for i in at["fdatasync"] + at["fsync"])
    assert any(i > cut for i in at["fdatasync"] if log[i].path == journal)


def test_case_E_cached_pages_of_a_failed_sync(store: build.Store) -> None:
    """Frames that verified in the scan and read differently at the rewrite (evicted pages): nothing
    is written over them and nothing is cut as if they were there."""
    build.put(store, TORN)
    disk = quick_disk()
    start = FRAMES[-2].offset
    scanned = []

    def lie(path: str, found: bytes, offset: int) -> bytes:
        if not path.endswith(".jsonl"):
            return found
        if offset == 128 or (offset < 128 and len(found) > 128):
            scanned.append(offset)
        if scanned and offset <= start < offset + len(found) and len(scanned) > 1:
            return damage.zero(found, start - offset, 30)
        return found

    def second_pass(op: Op) -> None:
        if op.name == "create" and op.path.endswith(".tail"):
            scanned.extend((0, 0))

    disk.on_pread, disk.before = lie, second_pass
    try:
        build.reopen(store, disk=disk).owner.release()
    except TreeringError:
        assert build.get(store.path()) == TORN
    else:
        assert build.get(store.path()) == TORN[:TORN_AT]


HINTS = {
    "the last frame": lambda: FRAMES[-1],
    "the first frame": lambda: FRAMES[0],
    "EPOCH_CLOSE": lambda: next(f for f in FRAMES if f.kind == 5),
    "the first STAGED frame": lambda: FRAMES[9],
    "the second STAGED frame": lambda: FRAMES[10],
    "EPOCH_ACTIVATE": lambda: FRAMES[11],
    "EPOCH_OPEN": lambda: FRAMES[13],
}


@pytest.mark.parametrize("name", HINTS)
def test_index_at_any_frame_gives_the_same_answer(name: str, store: build.Store) -> None:
    """Wherever the index stands, an open comes to the same tail as one without it."""
    frame = HINTS[name]()
    build.put(store, GOLDEN)
    plain = build.reopen(store, disk=quick_disk())
    plain.owner.release()
    hint = Hint(JOURNAL_ID, frame.sequence, frame.offset, frame.revision, None)
    hinted = build.reopen(store, disk=quick_disk(), hint=hint)
    hinted.owner.release()
    assert hinted.report.case == "A"
    assert hinted.tail.place == plain.tail.place
    assert hinted.tail.epoch == plain.tail.epoch
    assert hinted.report.proven_below <= plain.report.proven_below


WRONG_HINTS: dict[str, dict[str, Any]] = {
    "negative offset": {"offset": -5},
    "offset in the header": {"offset": 0},
    "offset at the end": {"offset": len(GOLDEN)},
    "offset behind the end": {"offset": 2**40},
    "offset 2^63": {"offset": 2**63},
    "offset -2^63": {"offset": -(2**63)},
    "offset 2^70": {"offset": 2**70},
    "not a frame": {"offset": FRAMES[3].offset + 1},
    "other sequence": {"sequence": 99},
    "negative sequence": {"sequence": -1},
    "other revision": {"revision": bytes(16)},
    "short revision": {"revision": b""},
    "other journal": {"journal_id": build.OTHER_ID},
    "empty id": {"journal_id": b""},
    "short watermark": {"watermark": b"x"},
    "zero watermark": {"watermark": bytes(64)},
    "random watermark": {"watermark": bytes(range(64))},
}


@pytest.mark.parametrize("name", WRONG_HINTS)
@pytest.mark.parametrize("case", ["A", "E", "F"])
def test_F105_wrong_index_changes_no_answer(name: str, case: str, store: build.Store) -> None:
    """No state of the index changes the verdict, the tail or the bytes, or stops an open."""
    data = {"A": GOLDEN, "E": TORN, "F": damage.zero(GOLDEN, 0, 128)}[case]
    build.put(store, data)
    at = FRAMES[8]
    right = Hint(JOURNAL_ID, at.sequence, at.offset, at.revision, None)
    hint = dataclasses.replace(right, **WRONG_HINTS[name])
    if case == "F":
        with pytest.raises(TreeringError) as caught:
            build.reopen(store, disk=quick_disk(), hint=hint)
        assert type(caught.value).__name__ == "Damaged"
        assert build.get(store.path()) == data
        return
    opened = build.reopen(store, disk=quick_disk(), hint=hint)
    opened.owner.release()
    assert opened.report.case == case
    assert opened.tail.place.offset == (len(GOLDEN) if case == "A" else TORN_AT)


def test_index_behind_a_frame_that_is_not_understood(store: build.Store) -> None:
    """A required kind that we do not know refuses writing also when the index stands behind it (an
    index may be the work of a newer release)."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(77, b"what")
    at = maker.entry("behind")
    maker.close()
    build.put(store, maker.whole())
    with pytest.raises(Unsupported):
        build.reopen(store)
    hint = Hint(build.ID, at.sequence, at.offset, at.revision, None)
    with pytest.raises(Unsupported):
        build.reopen(store, hint=hint)


def test_damage_before_the_index_position_is_not_widened(store: build.Store) -> None:
    """A scan that starts behind the damage says A (it promises no more) or finds it; a torn tail is
    never cut on such a scan: any other verdict is made from the header."""
    at = FRAMES[8]
    hint = Hint(JOURNAL_ID, at.sequence, at.offset, at.revision, None)
    damaged = damage.flip(TORN, (FRAMES[4].offset + 60) * 8)
    build.put(store, damaged)
    with pytest.raises(TreeringError):
        build.reopen(store, hint=hint)
    assert build.get(store.path()) == damaged


class Changing(build.Memory):
    """Bytes that are different from the n-th read on."""

    def __init__(self, data: bytes, later: bytes, reads: int) -> None:
        super().__init__(data)
        self.later, self.reads = later, reads

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            self.data = self.later
        return super().read_at(offset, length)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_batch_that_changes_while_it_is_read_is_an_error(which: int) -> None:
    """A staged run is read again when it is activated; bytes that changed meanwhile raise. They
    never make the batch shorter."""
    maker = build.Maker().started()
    maker.open()
    batch = maker.batch("a", "b", "c")
    maker.entry("d")
    data = maker.whole()
    later = damage.flip(data, (batch[which].offset + 50) * 8)
    walk = Walk(Changing(data, later, 1), build.ID)
    with pytest.raises(TreeringError):
        list(walk.visible())


@pytest.mark.parametrize(
    ("offset", "length"),
    [(-5, 100), (-(2**63), 100), (0, 0), (128, -1), (128, 2**40), (2**63, 100), (2**70, 2**70)],
)
def test_index_row_that_points_nowhere_is_damaged(
    offset: int, length: int, store: build.Store
) -> None:
    """Whatever place an index row names, reading there is Damaged (the index is rebuilt), never an
    error of the machine."""
    build.put(store, GOLDEN)
    file = quick_disk().open(store.path())
    source = FileBytes(file, store.path(), len(GOLDEN))
    with pytest.raises(Damaged):
        read_frame(source, salt_of(JOURNAL_ID), offset, length, bytes(16))
    file.close()


@pytest.mark.parametrize("what", ["file", "dangling link", "loop"])
def test_quarantine_that_cannot_be_made(what: str, store: build.Store) -> None:
    """When the quarantine folder cannot be made nothing is cut: a typed error, same bytes."""
    build.put(store, TORN)
    folder = os.path.dirname(store.quarantine)
    os.makedirs(os.path.dirname(folder))
    if what == "file":
        with open(folder, "wb"):
            pass
    else:
        os.symlink(folder if what == "loop" else folder + "x", folder)
    with pytest.raises(TreeringError):
        build.reopen(store)
    assert build.get(store.path()) == TORN


def test_F30_old_bytes_are_a_prefix_for_ever(store: build.Store) -> None:
    """Opening, appending, batches, crashes and recoveries never change a byte that was there."""
    build.put(store, GOLDEN)
    disk = quick_disk()
    before = GOLDEN
    for turn in range(5):
        writer = build.writer_of(
            build.reopen(store, disk=disk), durability="os" if turn % 2 else "full"
        )
        writer.append([build.entry(f"t{turn}")])
        writer.append_batch([build.entry(f"u{turn}")])
        size = writer.size
        if turn % 3:
            writer.close()
        else:
            build.crash(writer)
        now = build.get(store.path())
        assert now.startswith(before)
        before = now[:size]
        with open(store.path(), "ab") as file:
            file.write(b"torn" * turn)


def test_F58_no_descriptor_is_left(store: build.Store) -> None:
    """Opens that end well, refused, or in the middle of an error leave no descriptor behind."""
    gc.collect()  # what earlier tests left is not counted
    count = len(os.listdir("/proc/self/fd"))
    for turn in range(60):
        data = (GOLDEN, TORN, GOLDEN[:600], b"", damage.zero(GOLDEN, 0, 50))[turn % 5]
        build.put(store, data)
        disk = quick_disk()
        if turn % 7 == 0:
            disk.fail(None, at=turn // 3 + 1)
        with contextlib.suppress(TreeringError):
            build.writer_of(build.reopen(store, disk=disk, note=True)).close()
        assert disk.open_files == 0
    assert len(os.listdir("/proc/self/fd")) == count


def test_file_that_shrinks_while_it_is_opened(store: build.Store) -> None:
    """Somebody cuts the file between our look at its size and the scan: not damage."""
    build.put(store, GOLDEN)
    disk = quick_disk()
    cut = []

    def shrink(op: Op) -> None:
        if op.name == "pread" and op.path == store.path() and not cut:
            cut.append(1)
            os.truncate(store.path(), 900)

    disk.before = shrink
    with pytest.raises(SourceChanged):
        build.reopen(store, disk=disk)
    assert build.get(store.path()) == GOLDEN[:900]


def test_F101_reader_sees_the_new_bytes_after_a_cut_back(store: build.Store) -> None:
    """A reader that was open while an append was cut back and another of the same size took its
    place reads the other."""
    disk = quick_disk()
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    reader = disk.open(store.path())
    disk.quota = 50
    with pytest.raises(StorageFull):
        writer.append([build.entry("xxxx")])
    disk.heal()
    (frame,) = writer.append([build.entry("yyyy")])
    assert b"yyyy" in reader.pread(frame.end - frame.offset, frame.offset)
    reader.close()
