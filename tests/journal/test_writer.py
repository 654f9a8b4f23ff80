"""Appending: what is acknowledged, in which order things happen, and what every failure leaves."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import build, damage

from treering.engine import environment
from treering.engine.errors import (
    Closed,
    LimitExceeded,
    OutcomeUnknown,
    Poisoned,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
)
from treering.engine.journal import framing
from treering.engine.journal import writer as writer_module
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import Frame
from treering.engine.journal.opening import Hint
from treering.engine.journal.reader import Place, Scan
from treering.engine.journal.writer import JournalWriter
from treering.fuzz import oracle
from treering.fuzz.faulty_disk import FOREVER, FaultyDisk, Op

FULL_ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk()
    disk.skip_syncs = True
    return disk


@pytest.fixture
def store(tmp_path: Path) -> build.Store:
    return build.make_store(tmp_path)


def data_ops(log: list[Op]) -> list[str]:
    names = ("pwrite", "truncate", "fdatasync", "fsync")
    return [op.name for op in log if op.name in names]


def frames_of(store: build.Store) -> list[oracle.Found]:
    verdict = oracle.judge(build.get(store.path()))
    assert verdict.case == "A"
    return verdict.frames


def names_shown(store: build.Store) -> list[str]:
    data = build.get(store.path())
    shown = build.visible(data, data[28:44])
    return [
        payload.split(b'"id":"')[1].split(b'"')[0].decode()
        for _, kind, payload in shown
        if kind == 2
    ]


def marked(writer: JournalWriter) -> int:
    mark = writer.watermark()
    assert mark is not None
    return mark.sequence


def test_one_write_one_sync_per_append(store: build.Store, disk: FaultyDisk) -> None:
    """An append of any number of frames is one pwrite at the planned offset and one fdatasync
    behind it; EPOCH_OPEN rides on the first."""
    writer = build.create(store, disk=disk)
    for number in range(5):
        disk.take()
        size = writer.size
        writer.append([build.entry(f"{number}-{n}") for n in range(number + 1)])
        ops = [op for op in disk.log if op.name in ("pwrite", "fdatasync", "truncate", "fsync")]
        assert [op.name for op in ops] == ["pwrite", "fdatasync"]
        assert (ops[0].first, ops[0].second) == (size, writer.size - size)
    writer.close()


def test_unsynced_counts_from_the_last_sync(store: build.Store, disk: FaultyDisk) -> None:
    """0 at the first frame behind a sync, then 1, 2, ...: it proves what that sync covered."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a"), build.entry("b")])
    writer.append([build.entry("c"), build.entry("d"), build.entry("e")])
    writer.close()
    assert [f.unsynced for f in frames_of(store)] == [0, 1, 0, 0, 1, 2, 0, 1, 2, 0]


def test_unsynced_runs_on_without_syncs(store: build.Store, disk: FaultyDisk) -> None:
    """With durability "os" nothing claims to be durable until a sync happened."""
    writer = build.create(store, disk=disk, durability="os")
    disk.take()
    writer.append([build.entry("a")])
    writer.append([build.entry("b")])
    assert data_ops(disk.take()) == ["pwrite", "pwrite"]
    assert writer.dirty
    assert marked(writer) == 2
    writer.sync()
    assert not writer.dirty
    assert marked(writer) == 5
    writer.append([build.entry("c")])
    assert writer.dirty
    disk.take()
    writer.close()
    assert data_ops(disk.take()) == ["fdatasync", "pwrite", "fdatasync"]
    assert [f.unsynced for f in frames_of(store)] == [0, 1, 0, 0, 1, 2, 0, 0]


def test_sync_when_clean_does_nothing(store: build.Store, disk: FaultyDisk) -> None:
    """A sync is not paid for twice."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    disk.take()
    writer.sync()
    assert data_ops(disk.take()) == []


@pytest.mark.parametrize("durability", ["full", "os"])
def test_opening_without_writing_leaves_the_bytes_alone(
    durability: writer_module.Durability, store: build.Store, disk: FaultyDisk
) -> None:
    """No EPOCH_OPEN, no EPOCH_CLOSE, no new bytes, however often it is opened and closed."""
    build.create(store, disk=disk).close()
    before = build.get(store.path())
    stat = os.stat(store.path())
    for _ in range(3):
        build.writer_of(build.reopen(store, disk=disk), durability=durability).close()
    assert build.get(store.path()) == before
    assert os.stat(store.path()).st_mtime_ns == stat.st_mtime_ns


def test_epochs_open_and_close(store: build.Store, disk: FaultyDisk) -> None:
    """Each owner that writes has one EPOCH_OPEN before and one EPOCH_CLOSE behind its frames."""
    build.create(store, disk=disk).close()
    for number in range(3):
        writer = build.writer_of(build.reopen(store, disk=disk))
        writer.append([build.entry(str(number))])
        writer.close()
    kinds = [(f.kind, f.epoch) for f in frames_of(store)]
    assert kinds[:3] == [(3, 1), (1, 1), (5, 1)]
    assert kinds[3:] == [(kind, epoch) for epoch in (2, 3, 4) for kind in (3, 2, 5)]
    assert build.reopen(store, disk=disk).report.problems == []


def test_close_is_idempotent_and_final(store: build.Store, disk: FaultyDisk) -> None:
    """Closing twice writes once; afterwards every use is Closed."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    writer.close()
    data = build.get(store.path())
    writer.close()
    assert build.get(store.path()) == data
    for use in (lambda: writer.append([build.entry("b")]), writer.sync):
        with pytest.raises(Closed):
            use()


@pytest.mark.parametrize("opened", [False, True], ids=["epoch not open", "epoch open"])
@pytest.mark.parametrize("how", ["append", "append_batch"])
def test_nothing_to_append_writes_nothing(
    how: str, opened: bool, store: build.Store, disk: FaultyDisk
) -> None:
    """An empty append or batch leaves the bytes alone (an empty batch may be refused as the
    caller's mistake); the journal stays usable."""
    writer = build.create(store, disk=disk)
    if opened:
        writer.append([build.entry("a")])
    before = build.get(store.path())
    with contextlib.suppress(TreeringError, AssertionError):
        getattr(writer, how)([])
    assert build.get(store.path()) == before
    writer.append([build.entry("b")])
    writer.close()
    build.reopen(store, disk=disk).owner.release()


def test_append_returns_the_frames_of_the_records(store: build.Store, disk: FaultyDisk) -> None:
    """The returned frames are those of the records, in order, as they are in the file."""
    writer = build.create(store, disk=disk)
    records = [build.entry("a"), Record(8, b"{}"), build.entry("c", "x" * 1000)]
    frames = writer.append(records)
    salt = int.from_bytes(writer.journal_id[:8], "little")
    scanned = [frame for frame, _ in Scan(build.Memory(build.get(store.path())), salt).frames()]
    assert frames == scanned[-3:]
    assert writer.size == frames[-1].end
    assert writer.next_sequence == frames[-1].sequence + 1


def test_payload_over_the_limit_is_refused_before_any_byte(
    store: build.Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload that no frame holds is LimitExceeded; nothing of the call is written (F36)."""
    monkeypatch.setattr(framing, "PAYLOAD_BYTES_MAX", 400)
    writer = build.create(store, [Record(1, b"{}")], disk=disk)
    before = build.get(store.path())
    writer.append([Record(2, b"x" * 400)])
    size = writer.size
    for call in (writer.append, writer.append_batch):
        with pytest.raises(LimitExceeded) as caught:
            call([build.entry("a"), Record(2, b"x" * 401)])
        assert (caught.value.limit, caught.value.need) == (400, 401)
    assert os.path.getsize(store.path()) == size > len(before)
    writer.append([Record(2, b"x")])


@pytest.mark.parametrize("batch", [False, True], ids=["append", "batch"])
def test_F07_partial_write_rolled_back(batch: bool, store: build.Store, disk: FaultyDisk) -> None:
    """ENOSPC after any number of bytes of a write: a typed error, the file back at its earlier end,
    and the next append on the same handle whole (F08: it stores again)."""
    writer = build.create(store, disk=disk)
    (first,) = writer.append([build.entry("first")])
    append = writer.append_batch if batch else writer.append
    before = build.get(store.path())
    records = [build.entry("a"), build.entry("b")]
    probe = FaultyDisk()
    probe.skip_syncs = True
    length = 2 * first.stored + 300
    done = 0
    for count in range(length):
        disk.quota = count
        try:
            append(records)
        except StorageFull:
            assert build.get(store.path()) == before, count
            assert writer.poisoned is None
            continue
        done = count
        break
    assert done > 100
    disk.heal()
    writer.append([build.entry("last")])
    writer.close()
    assert names_shown(store) == ["first", "a", "b", "last"]
    frames_of(store)


def test_F07_first_write_of_an_owner_rolled_back(store: build.Store, disk: FaultyDisk) -> None:
    """The same for the write that carries EPOCH_OPEN; the next try opens the epoch again."""
    writer = build.create(store, disk=disk)
    before = build.get(store.path())
    for count in range(0, 400, 7):
        disk.quota = count
        with pytest.raises(StorageFull):
            writer.append([build.entry("a", "x" * 200)])
        assert build.get(store.path()) == before
    disk.heal()
    writer.append([build.entry("b")])
    writer.close()
    assert [(f.kind, f.epoch) for f in frames_of(store)][3:] == [(3, 2), (2, 2), (5, 2)]


@pytest.mark.parametrize("error", [*FULL_ERRORS, errno.EIO, errno.EROFS, errno.EBADF])
def test_write_error_kinds(error: int, store: build.Store, disk: FaultyDisk) -> None:
    """Space, quota and size limits are StorageFull, the rest StorageError or ReadOnly; each is cut
    off: nothing of the call stays."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    disk.fail("pwrite", error=error)
    with pytest.raises(TreeringError) as caught:
        writer.append([build.entry("b")])
    assert isinstance(caught.value, StorageFull) == (error in FULL_ERRORS)
    assert build.get(store.path()) == before
    writer.append([build.entry("c")])
    assert names_shown(store) == ["a", "c"]


@pytest.mark.parametrize("at_most", [1, 7, 59])
def test_F98_short_writes_are_continued(at_most: int, store: build.Store, disk: FaultyDisk) -> None:
    """A write that stores part of its buffer is continued; the record is whole."""
    writer = build.create(store, disk=disk)
    disk.write_at_most = at_most
    writer.append([build.entry("a", "x" * 50)])
    writer.append_batch([build.entry("b"), build.entry("c")])
    writer.close()
    assert names_shown(store) == ["a", "b", "c"]


@pytest.mark.parametrize("short_by", [1, 2, 30])
def test_F98_nearly_whole_write(short_by: int, store: build.Store, disk: FaultyDisk) -> None:
    """The last bytes of a write alone are continued too."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    size = writer.size
    disk.write_at_most = 60 + len(build.entry("b").payload) - short_by
    writer.append([build.entry("b")])
    assert os.path.getsize(store.path()) == size + disk.write_at_most + short_by
    assert names_shown(store) == ["a", "b"]


def test_zero_progress_is_an_error(store: build.Store, disk: FaultyDisk) -> None:
    """A write that stores nothing and says so is an error, not an endless loop."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    disk.zero_progress = True
    with pytest.raises(StorageError):
        writer.append([build.entry("b")])
    disk.heal()
    assert build.get(store.path()) == before


def test_cut_back_is_synced_before_the_error(store: build.Store, disk: FaultyDisk) -> None:
    """A failed write is wiped, that is synced, it is truncated, the cut is synced, and only then the
    error is raised; the next frame has unsynced 0 (that sync covers all before it)."""
    writer = build.create(store, disk=disk, durability="os")
    writer.append([build.entry("a")])
    size = writer.size
    disk.take()
    disk.quota = 10
    disk.overwriting_needs_room = False
    with pytest.raises(StorageFull):
        writer.append([build.entry("b")])
    ops = [op for op in disk.take() if op.name in ("pwrite", "truncate", "fdatasync")]
    names = ["pwrite", "pwrite", "pwrite", "fdatasync", "truncate", "fdatasync"]
    assert [op.name for op in ops] == names
    assert (ops[2].first, ops[2].second) == (size, 10)
    assert ops[4].first == size
    disk.heal()
    (frame,) = writer.append([build.entry("c")])
    assert frame.unsynced == 0
    assert writer.synced_below == frame.sequence
    assert names_shown(store) == ["a", "c"]


def test_cut_back_without_room_to_overwrite(store: build.Store, disk: FaultyDisk) -> None:
    """A file system that copies what is overwritten may refuse to: cutting is what counts."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    disk.quota = 10
    with pytest.raises(StorageFull):
        writer.append([build.entry("b")])
    assert build.get(store.path()) == before
    disk.heal()
    writer.append([build.entry("c")])
    assert names_shown(store) == ["a", "c"]


@pytest.mark.parametrize("at", [1, 2])
def test_cut_back_wipes_with_an_error_of_the_device(
    at: int, store: build.Store, disk: FaultyDisk
) -> None:
    """A device that takes neither the frames nor the zeros: nobody knows, the writer stops."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    disk.write_at_most = 20
    rule = disk.fail("pwrite", at=at + 1, times=2)
    with pytest.raises(OutcomeUnknown):
        writer.append([build.entry("b")])
    assert rule.fired == 2
    with pytest.raises(Poisoned):
        writer.append([build.entry("c")])


@pytest.mark.parametrize("step", ["truncate", "fdatasync"])
def test_failing_cut_back_poisons(step: str, store: build.Store, disk: FaultyDisk) -> None:
    """When the cut cannot be made durable the outcome is unknown and the writer is poisoned: the
    torn bytes are not written over, not closed over, and the next open deals with them."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    disk.quota = 10
    disk.fail(step)
    with pytest.raises(OutcomeUnknown) as caught:
        writer.append([build.entry("b")])
    assert not isinstance(caught.value, Poisoned)
    disk.heal()
    after = build.get(store.path())
    for _ in range(2):
        with pytest.raises(Poisoned):
            writer.append([build.entry("c")])
        with pytest.raises(Poisoned):
            writer.sync()
    writer.close()
    assert build.get(store.path()) == after
    writer = build.writer_of(build.reopen(store, disk=disk))
    writer.append([build.entry("d")])
    writer.close()
    assert names_shown(store) == ["a", "d"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_F120_failing_sync_poisons_for_good(
    error: int, store: build.Store, disk: FaultyDisk
) -> None:
    """One failed sync: that append is OutcomeUnknown, every later use is Poisoned and touches
    nothing, though a retry would succeed; the watermark stays; close writes nothing."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    watermark = writer.watermark()
    disk.fail("fdatasync", error=error)
    with pytest.raises(OutcomeUnknown) as caught:
        writer.append([build.entry("b")])
    assert not isinstance(caught.value, Poisoned)
    data = build.get(store.path())
    disk.take()
    for call in (writer.append, writer.append_batch):
        with pytest.raises(Poisoned):
            call([build.entry("c")])
    with pytest.raises(Poisoned):
        writer.sync()
    writer.close()
    assert data_ops(disk.take()) == []
    assert build.get(store.path()) == data
    assert writer.watermark() == watermark


def test_F120_after_a_failed_sync_the_next_owner_writes_again(
    store: build.Store, disk: FaultyDisk
) -> None:
    """The frames of unknown outcome are written again in place and synced before anything that
    calls them durable: the page cache may show what the device does not have."""
    writer = build.create(store, disk=disk)
    (kept,) = writer.append([build.entry("a")])
    disk.fail("fdatasync")
    with pytest.raises(OutcomeUnknown):
        writer.append([build.entry("b")])
    writer.close()
    data = build.get(store.path())
    opened = build.reopen(store, disk=disk)
    writer = build.writer_of(opened)
    disk.take()
    writer.append([build.entry("c")])
    check_rewrite(disk.take(), kept.end, len(data))
    assert build.get(store.path())[: len(data)] == data


def check_rewrite(log: list[Op], start: int, end: int) -> None:
    """``start..end`` was written in place and synced before the first byte behind ``end``."""
    rewritten: set[int] = set()
    synced: set[int] = set()
    for op in log:
        if op.name == "pwrite" and op.first >= end:
            assert set(range(start, end)) <= synced
            return
        if op.name == "pwrite":
            assert op.first + op.second <= end
            rewritten |= set(range(op.first, op.first + op.second))
        elif op.name in ("fdatasync", "fsync"):
            synced |= rewritten
    pytest.fail("nothing was appended")


def os_crash(store: build.Store, disk: FaultyDisk) -> tuple[list[Frame], bytes, bytes]:
    """Three frames that nothing proves durable, the owner dead."""
    writer = build.create(store, disk=disk, durability="os")
    frames = [writer.append([build.entry(f"u{n}")])[0] for n in range(3)]
    build.crash(writer)
    return frames, build.get(store.path()), writer.journal_id


def test_unproven_frames_are_rewritten_before_the_first_append(
    store: build.Store, disk: FaultyDisk
) -> None:
    """After a crash, before anything is appended."""
    _, data, _ = os_crash(store, disk)
    published = int.from_bytes(data[44:52], "little")
    writer = build.writer_of(build.reopen(store, disk=disk))
    disk.take()
    writer.append([build.entry("x")])
    check_rewrite(disk.take(), published, len(data))
    writer.append([build.entry("y")])
    assert data_ops(disk.take()) == ["pwrite", "fdatasync"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_index_row_proves_nothing_durable(
    which: int, store: build.Store, disk: FaultyDisk
) -> None:
    """The index's verified position is where a scan may start; it is no proof that the frames
    before it are on the device: they are rewritten all the same."""
    frames, data, journal_id = os_crash(store, disk)
    published = int.from_bytes(data[44:52], "little")
    at = frames[which]
    hint = Hint(journal_id, at.sequence, at.offset, at.revision, None)
    opened = build.reopen(store, disk=disk, hint=hint)
    assert opened.report.proven_below <= 3
    writer = build.writer_of(opened)
    disk.take()
    writer.append([build.entry("x")])
    check_rewrite(disk.take(), published, len(data))


def test_a_watermark_saves_the_rewrite(store: build.Store, disk: FaultyDisk) -> None:
    """What a valid watermark covers was synced: it need not be written again."""
    frames, data, journal_id = os_crash(store, disk)
    at = frames[-1]
    mark = build.watermark(journal_id, at.sequence, at.end, at.revision)
    hint = Hint(journal_id, at.sequence, at.offset, at.revision, mark)
    writer = build.writer_of(build.reopen(store, disk=disk, hint=hint))
    disk.take()
    writer.append([build.entry("x")])
    assert data_ops(disk.take()) == ["pwrite", "fdatasync"]
    assert len(data) == at.end


def test_what_is_not_proven_is_not_called_synced(store: build.Store, disk: FaultyDisk) -> None:
    """A just opened writer calls synced only what is proven durable: a watermark over frames that
    the device may not have would turn a later power cut into "acknowledged data lost"."""
    os_crash(store, disk)
    opened = build.reopen(store, disk=disk)
    writer = build.writer_of(opened)
    assert writer.synced_below <= opened.report.proven_below
    assert marked(writer) < opened.report.proven_below
    writer.append([build.entry("x")])
    assert writer.synced_below == writer.next_sequence


@pytest.mark.parametrize("what", ["zeros", "flip"])
def test_the_rewrite_never_writes_what_it_did_not_verify(
    what: str, store: build.Store, disk: FaultyDisk
) -> None:
    """Between the scan and the first append the cached pages of a failed sync may be evicted, and
    reading again shows what the device has. That is never taken for the verified frames: the
    append either is whole in a clean journal, or is refused."""
    frames, data, _ = os_crash(store, disk)
    writer = build.writer_of(build.reopen(store, disk=disk))
    at = frames[1].offset
    bad = damage.zero(data, at, 30) if what == "zeros" else damage.flip(data, at * 8 + 400)
    build.put(store, bad)
    try:
        writer.append([build.entry("x")])
    except TreeringError:
        build.crash(writer)
        assert oracle.judge(build.get(store.path())).offset == at
    else:
        build.crash(writer)
        assert oracle.judge(build.get(store.path())).case == "A"


@pytest.mark.parametrize("name", ["pread", "pwrite", "fdatasync"])
def test_failing_rewrite_appends_nothing(name: str, store: build.Store, disk: FaultyDisk) -> None:
    """When the rewrite fails nothing is appended, the error is typed, and the next owner repeats
    the whole of it."""
    _, data, _ = os_crash(store, disk)
    published = int.from_bytes(data[44:52], "little")
    for at in (1, 2, 3):
        writer = build.writer_of(build.reopen(store, disk=disk))
        disk.fail(name, at=at)
        with pytest.raises(TreeringError) if at == 1 else pytest.MonkeyPatch.context():
            try:
                writer.append([build.entry("x")])
            except TreeringError:
                assert oracle.judge(build.get(store.path())[: len(data)]).case == "A"
                raise
            finally:
                disk.heal()
                build.crash(writer)
        if at == 1:
            assert build.get(store.path()) == data
            break
    writer = build.writer_of(build.reopen(store, disk=disk))
    disk.take()
    writer.append([build.entry("x")])
    check_rewrite(disk.take(), published, len(data))


CHANGES = ["grown", "shrunk", "last byte", "replaced", "deleted", "moved", "symlinked"]


def change(path: str, how: str) -> None:
    data = build.get(path)
    if how == "grown":
        with open(path, "ab") as file:
            file.write(b"x")
    elif how == "shrunk":
        os.truncate(path, len(data) - 1)
    elif how == "last byte":
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([data[-1] ^ 1]))
    elif how == "deleted":
        os.unlink(path)
    else:
        os.rename(path, path + ".moved")
        if how == "replaced":
            with open(path, "wb") as file:
                file.write(data)
        elif how == "symlinked":
            with open(path + ".other", "wb") as file:
                file.write(data)
            os.symlink(path + ".other", path)


@pytest.mark.parametrize("how", CHANGES)
def test_change_from_outside_is_seen_before_writing(
    how: str, store: build.Store, disk: FaultyDisk
) -> None:
    """A file that somebody grew, cut, edited at its end, replaced, moved or deleted: SourceChanged,
    and not a byte is written anywhere."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    change(store.path(), how)
    folder = {
        name: build.get(os.path.join(store.sessions, name)) for name in os.listdir(store.sessions)
    }
    disk.take()
    for call in (writer.append, writer.append_batch):
        with pytest.raises(SourceChanged):
            call([build.entry("b")])
    assert data_ops(disk.take()) == []
    after = {
        name: build.get(os.path.join(store.sessions, name)) for name in os.listdir(store.sessions)
    }
    assert after == folder
    build.crash(writer)


@pytest.mark.parametrize("how", ["grown", "replaced", "deleted", "shrunk"])
def test_change_during_the_sync_is_not_acknowledged(
    how: str, store: build.Store, disk: FaultyDisk
) -> None:
    """Path, inode and size are looked at again after the sync, before the acknowledgement."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    disk.after = lambda op: change(store.path(), how) if op.name == "fdatasync" else None
    with pytest.raises(OutcomeUnknown):
        writer.append([build.entry("b")])
    disk.after = None
    with pytest.raises(Poisoned):
        writer.append([build.entry("c")])
    build.crash(writer)


@pytest.mark.parametrize("name", ["stat", "pread"])
def test_failing_look_before_writing(name: str, store: build.Store, disk: FaultyDisk) -> None:
    """When path, size or last bytes cannot be looked at, nothing is written and the error is typed;
    the writer is not poisoned."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    disk.fail(name)
    with pytest.raises(StorageError):
        writer.append([build.entry("b")])
    assert build.get(store.path()) == before
    writer.append([build.entry("c")])
    assert names_shown(store) == ["a", "c"]


RLIMIT_CHILD = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from support import build
from treering.engine.errors import StorageFull
from treering.engine.journal.opening import open_for_writing
store = build.Store(*sys.argv[3:7])
writer = build.create(store)
writer.append([build.entry("a")])
size = writer.size
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[1]), hard))
try:
    writer.append([build.entry("b", "x" * 200)])
except StorageFull:
    pass
else:
    sys.exit("no StorageFull")
assert build.get(store.path()) == build.get(store.path())[:size], "not cut back"
try:
    writer.append([build.entry("b2", "x" * 200)])
except StorageFull:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.append([build.entry("c")])
writer.close()
"""


@pytest.mark.parametrize("room", [0, 1, 70, 250])
def test_real_EFBIG(room: int, store: build.Store) -> None:
    """The kernel's own file size limit in the middle of a write: StorageFull, cut back, and the
    same handle goes on when the limit is lifted (F08)."""
    run = subprocess.run(
        [sys.executable, "-c", RLIMIT_CHILD, str(room), str(Path(__file__).parents[1]),
         store.top, store.sessions, store.quarantine, store.note],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert names_shown(store) == ["a", "c"]


def batch_of(count: int) -> list[Record]:
    return [build.entry(f"b{n}", f"{n}" * 40) for n in range(count)]


def test_batch_is_whole_or_not_at_all_at_every_cut(store: build.Store, disk: FaultyDisk) -> None:
    """A batch cut at any byte shows none of its entries; whole, it shows all of them; afterwards an
    abandoned run stays invisible for ever."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("before")])
    size = writer.size
    frames, activate = writer.append_batch(batch_of(4))
    build.crash(writer)
    data = build.get(store.path())
    for end in range(size, len(data)):
        shown = build.visible(data[:end], data[28:44])
        assert len(shown) == 1, end
    assert len(build.visible(data, data[28:44])) == 5
    for end in (frames[0].end, frames[2].end + 5, activate.offset, activate.end - 1):
        build.put(store, data[:end])
        writer = build.writer_of(build.reopen(store, disk=disk))
        writer.append_batch([build.entry("later")])
        writer.close()
        assert names_shown(store) == ["before", "later"]


def test_batch_is_one_write_and_one_sync(store: build.Store, disk: FaultyDisk) -> None:
    """Its frames and its EPOCH_ACTIVATE share one write and one sync."""
    writer = build.create(store, disk=disk)
    disk.take()
    frames, activate = writer.append_batch(batch_of(3))
    assert data_ops(disk.take()) == ["pwrite", "fdatasync"]
    assert activate.sequence == frames[-1].sequence + 1
    assert [f.unsynced for f in [*frames, activate]] == [1, 2, 3, 4]
    assert all(frame.staged for frame in frames)
    assert not activate.staged


def test_large_batch_takes_several_writes_and_one_sync(
    store: build.Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch above the size of one write: several writes in order, one sync, unsynced runs on."""
    monkeypatch.setattr(writer_module, "WRITE_BYTES_MAX", 300)
    writer = build.create(store, disk=disk)
    disk.take()
    frames, _ = writer.append_batch(batch_of(9))
    ops = [op for op in disk.take() if op.name in ("pwrite", "fdatasync")]
    assert [op.name for op in ops[:-1]] == ["pwrite"] * (len(ops) - 1)
    assert len(ops) > 4
    assert ops[-1].name == "fdatasync"
    for one, two in itertools.pairwise(ops[:-1]):
        assert one.first + one.second == two.first
    assert [f.unsynced for f in frames] == list(range(1, 10))
    writer.close()
    assert len(names_shown(store)) == 9


@pytest.mark.parametrize("at", range(1, 8))
def test_large_batch_with_a_failing_write_leaves_nothing(
    at: int, store: build.Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a later write of a batch fails, the writes before it are cut off as well."""
    monkeypatch.setattr(writer_module, "WRITE_BYTES_MAX", 300)
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    disk.fail("pwrite", at=at, error=errno.ENOSPC)
    try:
        writer.append_batch(batch_of(9))
    except StorageFull:
        assert build.get(store.path()) == before
        disk.heal()
        writer.append([build.entry("c")])
        assert names_shown(store) == ["a", "c"]
    else:
        assert at > 5


def at_the_end(store: build.Store, disk: FaultyDisk, sequence: int) -> JournalWriter:
    """A writer whose next frame has this number (no journal gets there by itself in a test)."""
    writer = build.create(store, disk=disk)
    writer._state = writer._state._replace(sequence=sequence, synced_below=sequence)
    return writer


def test_sequence_ends_with_a_typed_error(store: build.Store, disk: FaultyDisk) -> None:
    """The last sequences are written right, the first beyond 2^63-1 is refused before any byte."""
    writer = at_the_end(store, disk, 2**63 - 8)
    frames: list[Frame] = []
    for _ in range(20):
        size = writer.size
        try:
            frames += writer.append([build.entry("a")])
        except LimitExceeded:
            assert os.path.getsize(store.path()) == size
            break
    else:
        pytest.fail("no limit")
    assert len(frames) >= 2
    assert all(f.sequence < 2**63 for f in frames)
    with pytest.raises(LimitExceeded):
        writer.append_batch([build.entry("a")])
    writer.close()
    source = build.Memory(build.get(store.path()))
    place = Place(frames[0].offset, frames[0].sequence, frames[0].epoch, frames[0].previous)
    scan = Scan(source, int.from_bytes(writer.journal_id[:8], "little"), place)
    found = [frame for frame, _ in scan.frames()]
    assert found[: len(frames)] == frames
    assert scan.stop is not None
    assert scan.stop.reason is None
    assert found[-1].sequence < 2**63


def test_epoch_ends_with_a_typed_error(store: build.Store, disk: FaultyDisk) -> None:
    """Epoch 2^32-1 is the last; the next owner opens and reads, and is refused when it writes."""
    maker = build.Maker().started()
    maker.open(2**32 - 2)
    maker.entry("a")
    build.put(store, maker.whole())
    writer = build.writer_of(build.reopen(store, disk=disk))
    (frame,) = writer.append([build.entry("b")])
    assert frame.epoch == 2**32 - 1
    writer.close()
    before = build.get(store.path())
    opened = build.reopen(store, disk=disk)
    assert opened.report.case == "A"
    writer = build.writer_of(opened)
    for call in (writer.append, writer.append_batch):
        with pytest.raises(LimitExceeded):
            call([build.entry("c")])
    assert build.get(store.path()) == before
    writer.close()
    assert build.get(store.path()) == before


def in_child(work: object, timeout_s: int = 5) -> int:
    """Run ``work`` in a forked child: its exit status; 99 when it hangs."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, lambda *_: os._exit(99))
            signal.alarm(timeout_s)
            work()  # type: ignore[operator]
        except Closed:
            os._exit(42)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_F119_forked_child_cannot_use_the_writer(store: build.Store, disk: FaultyDisk) -> None:
    """Every use in a forked child is Closed; its exit and close take nothing from the parent."""
    writer = build.create(store, disk=disk, note=True)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    assert in_child(lambda: writer.append([build.entry("b")])) == 42
    assert in_child(lambda: writer.append_batch([build.entry("b")])) == 42
    assert in_child(writer.sync) == 42
    assert in_child(writer.close) == 0
    assert build.get(store.path()) == before
    assert os.path.exists(store.note)
    with pytest.raises(TreeringError):
        build.reopen(store, disk=disk)
    writer.append([build.entry("c")])
    writer.close()
    assert names_shown(store) == ["a", "c"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("use", ["append", "close"])
def test_fork_while_another_thread_appends_does_not_hang_the_child(
    use: str, store: build.Store, disk: FaultyDisk
) -> None:
    """A child forked in the middle of an append gets the same refusal, not the parent's lock."""
    writer = build.create(store, disk=disk)
    inside, go = threading.Event(), threading.Event()

    def hold(op: Op) -> None:
        if op.name == "fdatasync":
            inside.set()
            go.wait(20)

    disk.before = hold
    thread = threading.Thread(target=lambda: writer.append([build.entry("a")]))
    thread.start()
    inside.wait(20)
    try:
        if use == "append":
            assert in_child(lambda: writer.append([build.entry("b")]), 2) == 42
        else:
            assert in_child(writer.close, 2) in (0, 42)
    finally:
        go.set()
        thread.join()
    assert names_shown(store) == ["a"]


def test_concurrent_appends_are_ordered_and_whole(store: build.Store, disk: FaultyDisk) -> None:
    """Many threads on one writer: every entry once, whole, each thread's in its order."""
    writer = build.create(store, disk=disk)

    def work(name: str) -> None:
        for number in range(30):
            if number % 5:
                writer.append([build.entry(f"{name}{number}")])
            else:
                writer.append_batch([build.entry(f"{name}{number}")])

    threads = [threading.Thread(target=work, args=(f"{n}-",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    shown = names_shown(store)
    assert len(shown) == len(set(shown)) == 180
    for n in range(6):
        assert [x for x in shown if x.startswith(f"{n}-")] == [f"{n}-{k}" for k in range(30)]


def test_F103_clock_jumps_change_no_order(
    store: build.Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock a thousand years ahead, back, and a day before: order is append order."""
    now = environment.now_ms()
    build.create(store, disk=disk).close()
    for number, shift in enumerate((0, 1000 * 365 * 86_400_000, -86_400_000, 0)):
        monkeypatch.setattr(environment, "now_ms", lambda shift=shift: now + shift)
        writer = build.writer_of(build.reopen(store, disk=disk, note=True))
        writer.append([build.entry(str(number))])
        writer.close()
    assert names_shown(store) == ["0", "1", "2", "3"]


def test_every_operation_of_an_append_may_fail(tmp_path: Path) -> None:
    """Whatever single operation of append, batch, sync or close fails: the error is typed, what was
    acknowledged before is there, and the journal opens again without help."""
    fired = 0
    for at in range(1, 200):
        store = build.make_store(tmp_path / str(at))
        disk = FaultyDisk()
        disk.skip_syncs = True
        writer = build.create(store, disk=disk)
        acknowledged: list[str] = []
        rule = disk.fail(None, at=at)
        for name in ("a", "b", "c"):
            try:
                if name == "b":
                    writer.append_batch([build.entry(name)])
                else:
                    writer.append([build.entry(name)])
                acknowledged.append(name)
            except TreeringError:
                pass
        with contextlib.suppress(TreeringError):
            writer.close()
        disk.heal()
        shown = names_shown(store) if oracle.judge(build.get(store.path())).case == "A" else None
        writer = build.writer_of(build.reopen(store, disk=disk))
        writer.append([build.entry("next")])
        writer.close()
        after = names_shown(store)
        assert [name for name in after if name in acknowledged] == acknowledged
        assert after[-1] == "next"
        assert shown is None or after == [*shown, "next"]
        assert disk.open_files == 0
        fired += rule.fired
        if not rule.fired:
            break
    assert fired > 15


def test_F10_no_acknowledgement_before_the_sync_returned(
    store: build.Store, disk: FaultyDisk
) -> None:
    """While the sync has not returned, append has not returned."""
    writer = build.create(store, disk=disk)
    inside, go, done = threading.Event(), threading.Event(), threading.Event()
    disk.before = lambda op: (inside.set(), go.wait(20)) if op.name == "fdatasync" else None  # type: ignore[func-returns-value,return-value,assignment]

    def work() -> None:
        writer.append([build.entry("a")])
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(20)
    assert not done.is_set()
    go.set()
    thread.join()
    assert done.is_set()


def test_watermark_of_a_journal_in_which_nothing_is_proven(
    store: build.Store, disk: FaultyDisk
) -> None:
    """A header that publishes less than one frame: the owner's watermark is one that verifies for
    nobody or for what is there, never an untyped error."""
    maker = build.Maker()
    maker.open()
    maker.session()
    maker.published = 1
    build.put(store, maker.whole())
    writer = build.writer_of(build.reopen(store, disk=disk))
    first = writer.watermark()
    assert build.look(maker.whole(), first.encode() if first else None).case == "A"
    writer.append([build.entry("a")])
    second = writer.watermark()
    assert second is not None
    assert build.look(build.get(store.path()), second.encode()).case == "A"


@pytest.mark.parametrize("when", ["before", "after"])
def test_interrupt_at_every_operation(when: str, tmp_path: Path) -> None:
    """Ctrl-C before or after any operation of an append: later appends store or are refused with a
    typed error, and everything acknowledged is there, in order, when it is opened again."""
    fired = 0
    for at in range(1, 100):
        store = build.make_store(tmp_path / str(at))
        disk = FaultyDisk()
        disk.skip_syncs = True
        writer = build.create(store, disk=disk)
        seen = []

        def stop(op: Op) -> None:
            seen.append(op)
            if len(seen) == at:
                raise KeyboardInterrupt

        setattr(disk, when, stop)
        acknowledged: list[str] = []
        for name in ("a", "b", "c", "d"):
            try:
                if name == "b":
                    writer.append_batch([build.entry(name)])
                else:
                    writer.append([build.entry(name)])
                acknowledged.append(name)
            except (KeyboardInterrupt, TreeringError):
                pass
        fired += len(seen) >= at
        build.crash(writer)
        writer = build.writer_of(build.reopen(store))
        writer.append([build.entry("next")])
        writer.close()
        shown = names_shown(store)
        assert [name for name in shown if name in acknowledged] == acknowledged
        assert shown[-1] == "next"
        assert shown == sorted(set(shown))
        if len(seen) < at:
            break
    assert fired > 5


REFUSED_RECORDS = {
    "STAGED by hand": Record(2, b"{}", build.STAGED),
    "unknown flag": Record(2, b"{}", 0x400),
    "qualification 5": Record(2, b"{}", 5 << 1),
    "second SESSION": Record(build.SESSION, b"{}"),
    "EPOCH_OPEN": Record(build.EPOCH_OPEN, b"{}"),
    "EPOCH_ACTIVATE": Record(build.EPOCH_ACTIVATE, b"{}"),
    "EPOCH_CLOSE": Record(build.EPOCH_CLOSE, b"{}"),
    "late PROVENANCE": Record(build.PROVENANCE, b"{}"),
    "DICTIONARY without an id": Record(build.DICTIONARY, b"no dictionary"),
    "LEAF that nobody parses": Record(build.LEAF, b'{"leaf":"' + b"x" * 70_000 + b'"}'),
}


@pytest.mark.parametrize("name", REFUSED_RECORDS)
@pytest.mark.parametrize("batch", [False, True], ids=["append", "batch"])
def test_no_record_that_a_reader_would_refuse(
    batch: bool, name: str, store: build.Store, disk: FaultyDisk
) -> None:
    """What our own reader does not accept is never written: it would make the session read-only
    for ever. The call is refused before any byte, and the journal stays writable."""
    writer = build.create(store, disk=disk)
    writer.append([build.entry("a")])
    before = build.get(store.path())
    append = writer.append_batch if batch else writer.append
    with pytest.raises((TreeringError, AssertionError)):
        append([build.entry("b"), REFUSED_RECORDS[name]])
    assert build.get(store.path()) == before
    writer.append([build.entry("c")])
    writer.close()
    build.reopen(store, disk=disk).owner.release()
    assert names_shown(store) == ["a", "c"]


def test_no_blob_in_a_batch(store: build.Store, disk: FaultyDisk) -> None:
    """Only ENTRY, LEAF and REQUEST may be STAGED."""
    writer = build.create(store, disk=disk)
    before = build.get(store.path())
    with pytest.raises((TreeringError, AssertionError)):
        writer.append_batch([Record(build.BLOB, b"blob"), build.entry("b")])
    assert build.get(store.path()) == before


def test_host_name_that_is_not_text(
    store: build.Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose name is no UTF-8 can still write journals and own them."""
    monkeypatch.setattr("socket.gethostname", lambda: "h\udcff\x00")
    environment.host_name.cache_clear()
    try:
        writer = build.create(store, disk=disk, note=True)
        writer.append([build.entry("a")])
        writer.close()
    finally:
        environment.host_name.cache_clear()
    assert names_shown(store) == ["a"]


@pytest.mark.slow
def test_payload_at_the_limit(store: build.Store, disk: FaultyDisk) -> None:
    """A payload of exactly 64 MiB that zstd cannot shorten is stored and read back; one byte more
    is refused before anything is written (F36)."""
    payload = os.urandom(64 * 2**20)
    writer = build.create(store, disk=disk)
    (frame,) = writer.append([Record(2, payload)])
    size = writer.size
    with pytest.raises(LimitExceeded):
        writer.append([Record(2, payload + b"x")])
    assert os.path.getsize(store.path()) == size
    writer.close()
    assert build.look_at(store.path()).case == "A"
    data = build.get(store.path())
    assert data[frame.offset + 44 : frame.end - 16] == payload


def test_enospc_for_ever_then_space(store: build.Store, disk: FaultyDisk) -> None:
    """Every append while the disk is full raises; none is lost silently; with space it stores."""
    writer = build.create(store, disk=disk)
    disk.fail("pwrite", error=errno.ENOSPC, times=FOREVER)
    for _ in range(20):
        with pytest.raises(StorageFull):
            writer.append([build.entry("x")])
    disk.heal()
    writer.append([build.entry("a")])
    writer.close()
    assert names_shown(store) == ["a"]
