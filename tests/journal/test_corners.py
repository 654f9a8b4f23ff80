"""Corners of ownership and closing that other tests pass only in another process, or by luck."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import build
from support.build import get

from treering.engine import environment
from treering.engine.errors import Closed, OutcomeUnknown, Owned
from treering.engine.journal import ownership
from treering.engine.journal.opening import Opened
from treering.fuzz.faulty_disk import FaultyDisk


@pytest.fixture
def store(tmp_path: Path) -> build.Store:
    store = build.make_store(tmp_path)
    build.create(store).close()
    return store


def test_a_handle_of_another_process_is_refused(store: build.Store) -> None:
    """As a forked child finds it: the number of the process that opened it is not its own."""
    opened: Opened = build.reopen(store)
    opened.owner._pid += 1
    with pytest.raises(Closed, match="before a fork"):
        opened.owner.check()
    assert not opened.owner.is_open
    opened.owner._pid -= 1
    opened.owner.check()
    opened.owner.release()


def test_a_child_closes_what_its_parent_has_locked(store: build.Store) -> None:
    """What runs in a child after a fork, here without one: its descriptors of journals are gone."""
    opened = build.reopen(store)
    ownership._drop_in_child()
    with pytest.raises(OSError, match="Bad file descriptor"):
        opened.owner.file.stat()
    assert not ownership._locked
    build.reopen(store).owner.release()  # it was the last descriptor: nobody holds the lock


def test_the_note_of_a_dead_owner_is_waited_out(
    store: build.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the new owner's lock and its note there is the old note: nobody dead is accused."""
    owner = build.reopen(store, note=True).owner
    note = ownership.read_note(FaultyDisk(), store.note)
    assert note is not None
    Path(store.note).write_bytes(msgspec.json.encode(msgspec.structs.replace(note, pid=2**31 - 1)))
    naps: list[float] = []
    monkeypatch.setattr(environment, "sleep", naps.append)
    with pytest.raises(Owned, match="another process owns the session") as caught:
        build.reopen(store, note=True)
    assert caught.value.holder_pid is None
    assert len(naps) > 1
    owner.release()


def test_a_note_that_comes_while_it_is_waited_for_is_told(
    store: build.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = build.reopen(store, note=True).owner
    alive = get(store.note)
    dead: dict[str, Any] = msgspec.json.decode(alive) | {"pid": 2**31 - 1}
    Path(store.note).write_bytes(msgspec.json.encode(dead))
    monkeypatch.setattr(environment, "sleep", lambda _: Path(store.note).write_bytes(alive))
    with pytest.raises(Owned, match=f"process {os.getpid()} owns the session"):
        build.reopen(store, note=True)
    owner.release()


def test_closing_syncs_what_is_due_even_where_it_cannot_look(store: build.Store) -> None:
    """No clean end is written behind bytes that could not be looked at; the entry is durable."""
    disk = FaultyDisk()
    writer = build.writer_of(build.reopen(store, disk=disk), durability="os")
    writer.append([build.entry("a")])
    before = get(store.path())
    disk.take()
    disk.fail("pread", error=errno.EIO)
    writer.close()
    names = [op.name for op in disk.take()]
    assert "fdatasync" in names
    assert "pwrite" not in names
    assert get(store.path()) == before
    assert build.look(before).case == "A"


def test_closing_says_when_what_is_due_cannot_be_synced(store: build.Store) -> None:
    """The entry was acknowledged without a sync: that it may be lost is not kept quiet."""
    disk = FaultyDisk()
    writer = build.writer_of(build.reopen(store, disk=disk), durability="os")
    writer.append([build.entry("a")])
    disk.fail(("pread", "fdatasync"), error=errno.EIO, times=2)
    with pytest.raises(OutcomeUnknown, match="a sync failed"):
        writer.close()
    assert not writer.owner.is_open


@pytest.mark.parametrize("since", [0, 253_402_300_799_999])
def test_the_times_of_a_note_can_be_written(store: build.Store, since: int) -> None:
    """A note with any other time is none: whoever shows one need not fear its time."""
    owner = build.reopen(store, note=True).owner
    note = ownership.read_note(FaultyDisk(), store.note)
    assert note is not None
    for time, believed in ((since, True), (-1, False), (253_402_300_800_000, False)):
        Path(store.note).write_bytes(msgspec.json.encode(msgspec.structs.replace(note, since=time)))
        found = ownership.read_note(FaultyDisk(), store.note)
        assert (found is not None) is believed
        assert not believed or environment.iso_time(time).endswith("Z")
    owner.release()
