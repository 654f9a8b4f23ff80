"""durability="os": acknowledged after the write, synced soon after, and honest about it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from session_helpers import crash, custom, drop_index, index_file, new, read_bytes

from treering.engine import Invalid, OutcomeUnknown, Poisoned, Session, SessionView
from treering.engine.session import housekeeping
from treering.fuzz.faulty_disk import FaultyDisk
from treering.index import SessionIndex


def syncs(disk: FaultyDisk) -> int:
    return sum(op.name == "fdatasync" for op in disk.take())


def test_an_append_does_not_wait_for_a_sync_and_a_sync_follows(tmp_path: Path) -> None:
    """Appends and a lone branch_to return unsynced; within some seconds the background has synced
    them (S16); sync() is at once, and a no-op when nothing is dirty."""
    disk = FaultyDisk()
    session = new(tmp_path, durability="os", disk=disk)
    disk.take()
    session.append_many([custom("a"), custom("b")])
    assert syncs(disk) == 0
    assert session._writer.dirty
    session.sync()
    assert syncs(disk) == 1
    session.sync()
    assert syncs(disk) == 0
    for call in (lambda: session.append(custom()), lambda: session.branch_to("a")):
        call()
        assert session._writer.dirty
        end = time.monotonic() + 4
        while session._writer.dirty:
            assert time.monotonic() < end, "never synced in the background"
            time.sleep(0.05)
    session.close()


def test_the_index_is_never_ahead_of_what_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner dies and the machine loses everything unsynced: the journal, cut at its synced
    length, opens without a false case D, at every moment of a run with reads and passes in
    between."""
    monkeypatch.setattr(housekeeping, "INDEX_LAG_S", 0.002)
    session = new(tmp_path, durability="os")
    path = session.path
    for number in range(25):
        for i in range(number % 4 + 1):
            session.append(custom(f"e{number}-{i}", data="x" * 50))
        if number % 3 == 0:
            session.read(f"e{number}-0")
        if number % 5 == 0:
            session.branch_to(f"e{number}-0")
            time.sleep(0.004)
        if number % 7 == 0:
            with session.batch() as batch:
                batch.append(custom(f"b{number}"))
        session._housekeeper.stop()
        synced = session._writer.synced_size
        synced_ids = [e.id for e in SessionView.open(path).iter_entries()]
        crash(session)
        os.truncate(path, synced)
        with Session.open(path) as again:
            assert again.report is not None
            assert again.report.case == "A"
            left = [e.id for e in again.iter_entries()]
            assert left == synced_ids[: len(left)]
        if number % 6 == 5:
            drop_index(path)
        session = Session.open(path, durability="os")
    session.close()


def test_the_watermark_covers_synced_frames_only(tmp_path: Path) -> None:
    """What is remembered beside the journal names the last synced frame, never a later one."""
    session = new(tmp_path, durability="os")
    session.append(custom("a"))
    session.read("a")
    synced = session._writer.synced_size
    session.append_many([custom() for _ in range(10)])
    session._index_in_background()
    crash(session)
    with SessionIndex.open(index_file(session.path), readonly=True) as index:
        mark = index.watermark()
        position = index.position()
    assert mark is not None
    assert int.from_bytes(mark[24:32], "little") <= synced
    assert position is not None
    assert position.offset < synced


def test_a_failed_background_sync_reaches_the_caller(tmp_path: Path) -> None:
    """When the background sync fails the next append says so; acknowledged frames that reached the
    device stay, recover() goes on."""
    disk = FaultyDisk()
    session = new(tmp_path, durability="os", disk=disk)
    session.append(custom("a"))
    session.sync()
    disk.fail("fdatasync")
    session.append(custom("b"))
    with pytest.raises(OutcomeUnknown, match="all appends since the last sync is unknown"):
        session.sync()
    with pytest.raises(Poisoned):
        session.append(custom("c"))
    session.recover()
    assert session.has("a")
    session.append(custom("d"))
    session.close()


def test_close_proves_everything(tmp_path: Path) -> None:
    """After a clean close nothing is unproven for a view, with EPOCH_CLOSE behind a sync."""
    disk = FaultyDisk()
    session = new(tmp_path, durability="os", disk=disk)
    session.append_many([custom("a"), custom("b")])
    disk.take()
    session.close()
    names = [op.name for op in disk.take()]
    writes = [at for at, name in enumerate(names) if name == "pwrite"]
    assert names.index("fdatasync") < writes[-1], "EPOCH_CLOSE was not behind a sync"
    assert "fdatasync" in names[writes[-1] :]
    with SessionView.open(session.path) as view:
        assert not any(entry.unproven for entry in view.entries())


def test_a_live_os_session_is_seen_unproven(tmp_path: Path) -> None:
    """A view beside a live owner marks what no sync covers, and shows the synced rest unmarked."""
    session = new(tmp_path, durability="os")
    session.append(custom("a"))
    session.sync()
    session.append(custom("b"))
    session.append(custom("c"))
    with SessionView.open(session.path) as view:
        marks = {e.id: e.unproven for e in view.entries()}
    assert marks["c"]
    assert not marks["a"]
    session.close()
    assert len(read_bytes(session.path)) > 0


@pytest.mark.parametrize("durability", ["Full", "fsync", "", None, 1])
def test_a_misspelt_durability_is_refused(tmp_path: Path, durability: object) -> None:
    """S12: a value that is none never means "no sync"."""
    with pytest.raises((Invalid, ValueError, TypeError)):
        new(tmp_path, durability=durability)
    session = new(tmp_path)
    session.close()
    with pytest.raises((Invalid, ValueError, TypeError)):
        Session.open(session.path, durability=durability)  # type: ignore[arg-type]
    Session.open(session.path).close()
