"""The system refuses somewhere: typed errors, nothing acknowledged is lost, the next open is
whole."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from session_helpers import answers, crash, custom, new, read_bytes, view_answers

from treering.engine import (
    Conflict,
    OutcomeUnknown,
    Poisoned,
    Session,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
)
from treering.fuzz.faulty_disk import FOREVER, FaultyDisk


def count_ops(do: Callable[[FaultyDisk], None]) -> int:
    """How many disk operations an action takes."""
    disk = FaultyDisk()
    do(disk)
    return len(disk.log)


ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)


def ids_of(path: str) -> list[str]:
    return [entry[1] for entry in view_answers(path)["entries"]]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_F07_F08_no_space_at_every_byte_of_an_append(tmp_path: Path, error: int) -> None:
    """n bytes are stored, then there is no space, for every n: StorageFull, the journal ends
    where it
    did, the error comes again while there is no space, and the same handle goes on afterwards."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    session.append(custom("first"))
    before = read_bytes(session.path)
    disk.quota_error = error
    room = 0
    while True:
        disk.quota = room
        try:
            session.append(custom("x"))
            break
        except StorageFull as full:
            assert str(full)
        assert read_bytes(session.path) == before
        disk.quota = 0
        with pytest.raises(StorageFull):
            session.append_many([custom(), custom()])
        with pytest.raises(StorageFull):
            session.branch_to(None)
        assert session.leaf_id == "first"
        room += 1
    assert room > 100
    disk.quota = None
    session.append(custom("y"))
    session.close()
    assert ids_of(session.path) == ["first", "x", "y"]


def test_F08_no_space_at_every_byte_of_a_batch(tmp_path: Path) -> None:
    """The same for an atomic batch: nothing of it is visible, the session goes on."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    session.append(custom("first"))
    before = read_bytes(session.path)
    room = 0
    while True:
        disk.quota = room
        try:
            with session.batch() as batch:
                batch.append(custom("b1"))
                batch.append(custom("b2"))
            break
        except StorageFull:
            assert read_bytes(session.path) == before
            assert not session.exists("b1")
        room += 13
    disk.quota = None
    session.close()
    assert ids_of(session.path) == ["first", "b1", "b2"]


@pytest.mark.parametrize("how", ["one", "many", "batch", "branch"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_F120_a_failed_sync_is_never_papered_over(tmp_path: Path, how: str, error: int) -> None:
    """fdatasync fails once: OutcomeUnknown with the ids; every later append is refused
    (Poisoned) and
    reads still work; recover() makes the session usable and says by lookup what is there; appending
    the same entries again is a no-op or stores them, never twice."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    session.append_many([custom("a"), custom("b")])
    entries = [custom("x", data=1), custom("y", data=2)]

    def append() -> None:
        if how == "one":
            session.append(entries[0])
        elif how == "many":
            session.append_many(entries)
        elif how == "branch":
            session.branch_to("a")
        else:
            with session.batch() as batch:
                for entry in entries:
                    batch.append(entry)

    disk.fail("fdatasync", error=error)
    with pytest.raises(OutcomeUnknown) as caught:
        append()
    wanted = {"one": ("x",), "branch": ()}.get(how, ("x", "y"))
    assert caught.value.entry_ids == wanted
    assert session.leaf_id == "b"
    for call in (lambda: session.append(custom()), lambda: session.branch_to(None)):
        with pytest.raises(Poisoned):
            call()
    assert [e.id for e in session.branch("b")] == ["a", "b"]
    report = session.recover()
    assert report.case in ("A", "E")
    there = [session.has(i) for i in wanted]
    assert len(set(there)) <= 1 or how == "many"
    if how != "branch":
        append()
    found = [e.id for e in session.entries()]
    assert sorted(found) == sorted({"a", "b", *wanted})
    session.append(custom("end"))
    session.close()
    assert view_answers(session.path)["leaf"] == "end"


def test_F120_the_bytes_are_not_trusted_after_a_failed_sync(tmp_path: Path) -> None:
    """After a failed sync recover() writes the unproven frames again before anything is
    appended."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    session.append(custom("a"))
    disk.fail("fdatasync")
    with pytest.raises(OutcomeUnknown):
        session.append(custom("x"))
    size = os.path.getsize(session.path)
    disk.take()
    session.recover()
    session.append(custom("y"))
    ops = [op for op in disk.take() if op.name in ("pwrite", "fdatasync")]
    new_frames = next(n for n, op in enumerate(ops) if op.name == "pwrite" and op.first == size)
    again = [n for n, op in enumerate(ops) if op.name == "pwrite" and 0 < op.first < size]
    assert again, "the unproven frames were not written again"
    assert "fdatasync" in [op.name for op in ops[again[-1] : new_frames]]
    assert session.has("x")
    session.close()


def test_F10_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path) -> None:
    """Each append returns only after an fdatasync that started behind its write."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    for call in (
        lambda: session.append(custom()),
        lambda: session.append_many([custom(), custom()]),
        lambda: session.branch_to(None),
        lambda: session.set_name("x"),
    ):
        disk.take()
        call()
        names = [op.name for op in disk.take()]
        assert "pwrite" in names
        assert "fdatasync" in names[len(names) - 1 - names[::-1].index("pwrite") :]
    session.close()


def acknowledged_survive(path: str, acknowledged: list[str]) -> None:
    """Everything acknowledged is there in order; the session opens and takes an append."""
    with Session.open(path) as again:
        found = [entry.id for entry in again.iter_entries()]
        assert [i for i in found if i in acknowledged] == acknowledged
        again.append(custom("whole"))
    assert ids_of(path)[-1] == "whole"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("forever", [False, True])
def test_an_error_at_every_disk_call_of_a_life(tmp_path: Path, error: int, forever: bool) -> None:
    """open, append, batch, branch_to, close with the n-th disk call failing, once or from then on,
    for every n: only typed errors, nothing acknowledged is lost, and the next open is whole."""

    def life(path: str, disk: FaultyDisk, acknowledged: list[str]) -> None:
        session = Session.open(path, disk=disk)
        try:
            acknowledged.append(session.append(custom("a1")))
            acknowledged += session.append_many([custom("a2"), custom("a3")])
            with session.batch() as batch:
                batch.append(custom("b1"))
                batch.append(custom("b2"))
            acknowledged += batch.ids
            session.branch_to("a1")
            session.read("a2")
            acknowledged.append(session.append(custom("a4")))
        finally:
            session.close()

    first = new(tmp_path)
    first.append(custom("old"))
    crash(first)
    pristine = read_bytes(first.path)
    total = count_ops(lambda disk: life(first.path, disk, []))
    assert total > 30
    for at in range(1, total + 3):
        Path(first.path).write_bytes(pristine + b"torn")
        for name in os.listdir(tmp_path / "home" / "session-index"):
            os.unlink(tmp_path / "home" / "session-index" / name)
        disk = FaultyDisk()
        disk.fail(at=at, error=error, times=FOREVER if forever else 1)
        acknowledged = ["old"]
        try:
            life(first.path, disk, acknowledged)
        except TreeringError as failed:
            assert str(failed)
        except BaseException as raw:
            raise AssertionError(f"raw {raw!r} at call {at}") from raw
        assert disk.open_files == 0, f"a descriptor is left open at call {at}"
        disk.heal()
        acknowledged_survive(first.path, acknowledged)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_at_every_disk_call_of_create(tmp_path: Path, error: int) -> None:
    """A create that fails leaves no session, or a whole one (when the last folder sync failed); no
    descriptor stays open, and the same id can be had afterwards."""
    total = count_ops(lambda disk: new(tmp_path / "count", disk=disk).close())
    for at in range(1, total + 1):
        folder = tmp_path / f"n{at}"
        disk = FaultyDisk()
        disk.fail(at=at, error=error)
        try:
            new(folder, disk=disk, session_id="s").close()
        except TreeringError:
            pass
        assert disk.open_files == 0, f"at call {at}"
        disk.heal()
        path = folder / "home" / "sessions" / "s.jsonl"
        try:
            new(folder, session_id="s").close()
        except Conflict:
            assert view_answers(str(path))["entries"] == []
        with Session.open(path) as again:
            again.append(custom("x"))
        left = [n for n in os.listdir(path.parent) if n != "s.jsonl" and not n.endswith(".new")]
        assert left == []


@pytest.mark.parametrize("error", [errno.EIO])
def test_an_error_at_every_disk_call_of_recover(tmp_path: Path, error: int) -> None:
    """recover() that fails says so with a typed error; the entries acknowledged before are there at
    the next open, and no descriptor or lock stays behind."""

    def broken(disk: FaultyDisk, folder: Path) -> Session:
        session = new(folder, disk=disk)
        session.append(custom("a"))
        disk.fail("fdatasync", error=errno.EIO)
        with pytest.raises(OutcomeUnknown):
            session.append(custom("x"))
        disk.heal()
        disk.take()
        return session

    disk = FaultyDisk()
    session = broken(disk, tmp_path / "count")
    session.recover()
    total = len(disk.take())
    session.close()
    for at in range(1, total + 1):
        disk = FaultyDisk()
        session = broken(disk, tmp_path / f"n{at}")
        disk.fail(at=at, error=error)
        try:
            session.recover()
            session.append(custom("more"))
        except TreeringError:
            pass
        disk.heal()
        session.close()
        assert disk.open_files == 0, f"at call {at}"
        acknowledged_survive(session.path, ["a"])


@pytest.mark.parametrize("change", ["deleted", "moved", "replaced", "grown", "shrunk", "edited"])
def test_the_journal_is_changed_by_somebody_else(tmp_path: Path, change: str) -> None:
    """Nothing is written to a journal that was moved, replaced or changed behind our back: a typed
    error, the bytes stay as they are, and close() ends."""
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b")])
    path = session.path
    data = read_bytes(path)
    if change == "deleted":
        os.unlink(path)
    elif change == "moved":
        os.rename(path, path + ".moved")
    elif change == "replaced":
        Path(path + ".new").write_bytes(data)
        os.rename(path + ".new", path)
    elif change == "grown":
        Path(path).write_bytes(data + b"x")
    elif change == "shrunk":
        os.truncate(path, len(data) - 1)
    else:
        # Noticed by the time of change, of which file systems keep ticks of up to 10 ms.
        time.sleep(0.05)
        with open(path, "r+b") as file:
            file.seek(len(data) - 3)
            file.write(b"\xff")
    after = read_bytes(path) if os.path.exists(path) else None
    for _ in range(2):
        with pytest.raises((SourceChanged, StorageError)):
            session.append(custom("c"))
    with pytest.raises((SourceChanged, StorageError)), session.batch() as batch:
        batch.append(custom("d"))
    try:
        session.close()
    except (SourceChanged, StorageError):
        pass
    assert session.closed
    assert (read_bytes(path) if os.path.exists(path) else None) == after
    new(tmp_path, session_id="other").close()


class Stop(BaseException):
    """Comes at any moment, like Ctrl-C."""


@pytest.mark.parametrize("fresh", [True, False])
def test_F72_an_interrupted_append_lies_to_nobody(tmp_path: Path, fresh: bool) -> None:
    """S24: an exception that is no error (Ctrl-C) at each disk call of an append: afterwards the
    session works, or refuses with Poisoned until recover(); acknowledged entries stay, exists() and
    the journal agree, and no append is stored twice."""
    for when in ("before", "after"):
        at = 0
        while True:
            at += 1
            disk = FaultyDisk()
            session = new(tmp_path / f"{when}{at}{fresh}", disk=disk)
            session.append(custom("a"))
            if not fresh:
                path = session.path
                session.close()
                session = Session.open(path, disk=disk)
            seen = 0

            def hook(op: Any, at: int = at, disk: FaultyDisk = disk) -> None:
                nonlocal seen
                seen += 1
                if seen == at:
                    disk.before = disk.after = None
                    raise Stop

            setattr(disk, when, hook)
            try:
                session.append(custom("x"))
                stopped = False
            except Stop:
                stopped = True
            disk.before = disk.after = None
            if not stopped:
                session.close()
                break
            try:
                session.append(custom("y"))
            except Poisoned:
                session.recover()
                session.append(custom("y"))
            assert session.exists("x") == session.has("x")
            session.append(
                custom("x", parentId=session.read("x").parent_id)
                if session.has("x")
                else custom("x")
            )
            assert [e.id for e in session.entries()].count("x") == 1
            right = answers(session)
            session.close()
            assert view_answers(session.path)["entries"] == right["entries"]
        assert at > 1
