"""What a last review found about owned sessions: threads, forks, closing, odd arguments, indexes."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from session_helpers import (
    answers,
    crash,
    custom,
    index_differences,
    index_file,
    index_folder,
    new,
    read_bytes,
    user,
    write_bytes,
)
from support import damage

from treering.engine import (
    AcknowledgedDataLost,
    Closed,
    OutcomeUnknown,
    Owned,
    Session,
    SessionView,
    StorageError,
    TreeringError,
    export_jsonl,
    import_session,
    preview_import,
    repair,
)
from treering.engine.session import filling, housekeeping, indexing
from treering.engine.session import session as session_module
from treering.engine.session.housekeeping import Housekeeper
from treering.fuzz.faulty_disk import FaultyDisk
from treering.fuzz.oracle import judge
from treering.index import IndexBusy, IndexFault, SessionIndex, files, schema


def in_child(work: Callable[[], str], *, seconds: int = 10) -> str:
    """What a forked child says; "killed by N" when it hangs."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has a handler of its own
        signal.alarm(seconds)
        try:
            said = work()
        except BaseException:
            said = traceback.format_exc()
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return said if os.WIFEXITED(status) else f"killed by {os.WTERMSIG(status)}"


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Give other threads that long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


# The background thread


@pytest.mark.parametrize("durability", ["full", "os"])
def test_no_spinning_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    """R02: a poisoned session costs nothing while it waits to be closed."""
    monkeypatch.setattr(housekeeping, "INDEX_LAG_S", 0.05)
    rounds = 0
    real = Housekeeper._wait

    def counted(self: Housekeeper) -> bool:
        nonlocal rounds
        rounds += 1
        return real(self)

    monkeypatch.setattr(Housekeeper, "_wait", counted)
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk, durability=durability)
    session.append(custom("a"))
    disk.fail("fdatasync", times=1 << 40)
    if durability == "full":
        with pytest.raises(OutcomeUnknown):
            session.append(custom("b"))
    wait_until(lambda: rounds > 1)
    time.sleep(0.3)
    assert rounds < 20
    session.close()


# Views


def test_a_view_serves_threads_one_by_one(tmp_path: Path) -> None:
    """R17: a view may be used from any thread; its one connection never is by two at a time."""
    with new(tmp_path) as session:
        session.append_many([user(f"text {n}", f"m{n}") for n in range(300)])
    inside, most = 0, 0
    failed: list[BaseException] = []
    with SessionView.open(session.path) as view:
        right = answers(view, tree=False)

        def slowly(index: SessionIndex) -> object:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            time.sleep(0.001)
            inside -= 1
            return index.counts()

        def ask() -> None:
            try:
                for _ in range(5):
                    view.ask(slowly)
                    assert answers(view, tree=False) == right
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert most == 1


@pytest.mark.parametrize("fault", [IndexFault("i", "gone bad"), IndexBusy("i", "locked")])
def test_a_fault_of_a_views_index_is_typed(tmp_path: Path, fault: Exception) -> None:
    """R17: what the index in memory cannot do is told as an error of ours."""
    with new(tmp_path) as session:
        session.append(custom("a"))

    def fail(index: SessionIndex) -> None:
        raise fault

    with SessionView.open(session.path) as view:
        with pytest.raises(StorageError) as raised:
            view.ask(fail)
        assert raised.value.__cause__ is fault
        assert view.read("a").id == "a"


@pytest.mark.parametrize("locked", [False, True], ids=["idle", "lock held at fork"])
def test_a_view_in_a_forked_child(tmp_path: Path, locked: bool) -> None:
    """R28: every question in a forked child is Closed at once; the parent's view goes on."""
    with new(tmp_path) as session:
        session.append(custom("a"))
    with SessionView.open(session.path) as view:
        questions: list[Callable[[], object]] = [
            lambda: view.read("a"),
            view.branch,
            view.labels,
            view.counts,
            lambda: view.has("a"),
            lambda: list(view.iter_entries()),
        ]

        def all_questions() -> str:
            said = []
            for question in questions:
                try:
                    question()
                    said.append("answered")
                except Closed:
                    said.append("closed")
            return ",".join(said)

        if locked:
            view._lock.acquire()
        try:
            said = in_child(all_questions)
        finally:
            if locked:
                view._lock.release()
        assert said == ",".join(["closed"] * len(questions))
        assert view.read("a").id == "a"


def test_a_forked_child_forgets_a_session(tmp_path: Path) -> None:
    """R10: collecting a parent's session in a child takes no lock that another thread held."""
    sessions = [new(tmp_path)]
    sessions[0].append(custom("a"))
    lock = sessions[0]._housekeeper._wakeup
    held, go = threading.Event(), threading.Event()

    def holder() -> None:
        with lock:
            held.set()
            go.wait(30)

    thread = threading.Thread(target=holder)
    thread.start()
    held.wait(30)

    def forget() -> str:
        sessions.clear()
        gc.collect()
        return "forgotten"

    try:
        assert in_child(forget, seconds=4) == "forgotten"
    finally:
        go.set()
        thread.join()
    sessions[0].close()


class Watched(Session):
    """Calls :attr:`at_look` when somebody looks whether the session is closed."""

    at_look: Callable[[], None] | None = None

    @property
    def _closed(self) -> bool:
        at_look, self.at_look = self.at_look, None
        if at_look is not None:
            at_look()
        return self.__dict__.get("is closed", False)

    @_closed.setter
    def _closed(self, value: bool) -> None:
        self.__dict__["is closed"] = value


def test_a_read_that_meets_recover_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B07: a reader that sees the moment between the old parts and the new ones is not refused."""
    session = Watched.create("/work", home_dir=str(tmp_path / "home"))
    session.append(custom("a"))
    real = session_module.open_parts

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.05)
        return real(*arguments, **more)

    monkeypatch.setattr(session_module, "open_parts", slow)
    recovery = threading.Thread(target=session.recover)

    def meanwhile() -> None:
        recovery.start()
        wait_until(lambda: session.__dict__["is closed"])

    session.at_look = meanwhile
    assert session.read("a").id == "a"
    recovery.join()
    assert session.read("a").id == "a"
    session.close()
    with pytest.raises(Closed):
        session.read("a")


# Closing


@pytest.mark.parametrize(
    ("operation", "error"), [("pwrite", errno.ENOSPC), ("fdatasync", errno.EIO)]
)
def test_closing_on_a_full_disk_is_no_failure(tmp_path: Path, operation: str, error: int) -> None:
    """B02, R16: everything was acknowledged: close() says nothing, and everything is there."""
    disk = FaultyDisk()
    with new(tmp_path, disk=disk) as session:
        session.append(custom("a"))
        session.set_name("a name")
        rule = disk.fail(operation, error=error, times=1 << 40)
    assert rule.fired
    assert disk.open_files == 0
    with Session.open(session.path) as again:
        assert again.name == "a name"
        assert again.has("a")
        again.append(custom("b"))


# Odd notes and arguments


@pytest.mark.parametrize("pid", [2**31, 10**18, 10**30, 0, -1])
def test_an_owner_note_with_an_odd_pid(tmp_path: Path, pid: int) -> None:
    """R14: whatever a note says, the refused opener gets Owned, and leaves no descriptor."""
    with new(tmp_path, session_id="s1") as session:
        note = os.path.join(index_folder(session.path), "s1.owner.json")
        said = json.loads(read_bytes(note))
        write_bytes(note, json.dumps(said | {"pid": pid}).encode())
        before = len(os.listdir("/dev/fd"))
        for opener in (Session.open, repair):
            with pytest.raises(Owned, match="another process owns the session"):
                opener(session.path)
        assert len(os.listdir("/dev/fd")) <= before


ODD_PATHS = ["\ud800", "a\0b", "x" * 5_000, "/dev/null/\udfff/s.jsonl"]


@pytest.mark.parametrize("path", ODD_PATHS, ids=["surrogate", "NUL", "long", "deep surrogate"])
def test_odd_paths_are_refused_by_type(tmp_path: Path, path: str) -> None:
    """R08: a path that no system takes is an error of ours wherever a path is taken."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        for call in (
            lambda: Session.open(path),
            lambda: SessionView.open(path),
            lambda: repair(path),
            lambda: export_jsonl(session, path),
            lambda: import_session(path, home_dir=str(tmp_path / "home")),
            lambda: preview_import(path),
            lambda: Session.create(home_dir="/proc/" + path),
            lambda: Session.create(session_dir="/proc/" + path),
        ):
            with pytest.raises(TreeringError):
                call()


@pytest.mark.parametrize("value", [None, 5, 1.5, b"a", (), True], ids=repr)
def test_odd_ids_are_refused_by_type(tmp_path: Path, value: Any) -> None:
    """R13: an id that is no string names nothing, and is an error of ours."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        for read in (session.read, session.retention, session.label, session.depth):
            with pytest.raises(TreeringError):
                read(value)
        assert not session.has(value)
        with pytest.raises(TreeringError):
            session.set_name(value)
        if value is not None:
            for call in (
                session.branch_to,
                session.children,
                lambda id_: Session.create(home_dir=str(tmp_path / "other"), session_id=id_),
            ):
                with pytest.raises(TreeringError):
                    call(value)
        assert session.leaf_id == "a"
        assert len(session.entries()) == 1


@pytest.mark.parametrize("value", [[], {}], ids=repr)
def test_ids_without_a_hash_are_refused_by_type(tmp_path: Path, value: Any) -> None:
    """R13: also a position that cannot be hashed names nothing."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        with pytest.raises(TreeringError):
            session.branch_to(value)


# The index


def marked_only(tmp_path: Path) -> str:
    """A session whose last entry is cut off; its index has a watermark and no position yet."""
    session = new(tmp_path, session_id="s1")
    session.append_many([custom(f"e{n}") for n in range(5)])
    mark = session._writer.encoded_watermark()
    assert mark is not None
    journal_id, identity = session.journal_id, session._writer.owner.identity
    crash(session)
    folder = index_folder(session.path)
    files.ensure_folder(folder)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    with SessionIndex.open(files.next_path(folder, "s1"), create=True) as index:
        index.bind(journal_id, *identity)
        index.set_watermark(mark)
        assert index.position() is None
    data = read_bytes(session.path)
    write_bytes(session.path, data[: judge(data).frames[-1].offset])
    return session.path


def test_a_watermark_alone_tells_of_a_lost_tail(tmp_path: Path) -> None:
    """R20: an index that was killed before its first rows still knows what was acknowledged."""
    path = marked_only(tmp_path)
    before = read_bytes(path)
    with pytest.raises(AcknowledgedDataLost) as raised:
        Session.open(path)
    assert raised.value.report is not None
    assert raised.value.report.case == "D"
    assert read_bytes(path) == before


def test_a_watermark_alone_tells_a_view_and_a_repair(tmp_path: Path) -> None:
    """R20: views, fsck and repair look at the same watermark and come to the same verdict."""
    path = marked_only(tmp_path)
    with SessionView.open(path) as view:
        assert view.report.case == "D"
    assert repair(path, mode="prefix", dry_run=True).case == "D"


def test_short_lived_owners_finish_the_first_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U29: every owner does a part of the first index, however short it lives."""
    with new(tmp_path, session_id="s1") as session:
        session.append_many([custom(f"e{n}") for n in range(80)])
    path, folder = session.path, index_folder(session.path)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    monkeypatch.setattr(indexing, "QUICK_BYTES", 0)
    monkeypatch.setattr(indexing, "BULK_BUILD_BYTES", 0)
    monkeypatch.setattr(indexing, "INDEX_SLICE_PAUSE_S", 0.04)
    monkeypatch.setattr(filling, "INDEX_SLICE_ROWS", 8)
    monkeypatch.setattr(filling, "INDEX_TRANSACTION_ROWS", 8)

    def reached() -> int:
        current = files.current(folder, "s1")
        if current is None:
            return 0
        with SessionIndex.open(current, readonly=True) as index:
            position = index.position()
            return 0 if position is None else position.sequence

    last = judge(read_bytes(path)).frames[-1].sequence
    seen = [0]
    while seen[-1] < last:
        started = threading.Event()
        real = filling.fill

        def told(*arguments: Any, _now: threading.Event = started, **more: Any) -> bool:
            _now.set()
            return real(*arguments, **more)

        monkeypatch.setattr(indexing, "fill", told)
        with Session.open(path):
            assert started.wait(5)
        monkeypatch.setattr(indexing, "fill", real)
        seen.append(reached())
        assert seen[-1] > seen[-2], seen
    assert len(seen) > 2  # several owners were needed
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
    assert index_differences(path) == []


def test_a_full_disk_leaves_no_half_made_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B03: a generation that could not be made is not there; with space the next one is made."""
    real = schema.create_schema

    def full(db: apsw.Connection, *, complete: bool, file_inode: int | None) -> None:
        real(db, complete=complete, file_inode=file_inode)
        if file_inode is not None:
            raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(schema, "create_schema", full)
    with new(tmp_path, session_id="s1") as made:
        path = made.path
    for number in range(3):
        with Session.open(path) as session:
            session.append(custom(f"e{number}"))
            assert len(session.entries()) == number + 1
            assert session.index_faults
        assert [n for n in os.listdir(index_folder(path)) if "sqlite3" in n] == []
    monkeypatch.undo()
    with Session.open(path) as session:
        assert len(session.entries()) == 3
        assert session.index_faults == []
    assert os.path.basename(index_file(path)) == "s1.1.sqlite3"
    assert index_differences(path) == []


def test_an_old_sqlite_moves_no_healthy_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B05: no index file is opened or moved by a SQLite below the floor; nothing else changes."""
    with new(tmp_path, session_id="s1") as session:
        session.append(custom("a"))
        assert session.has("a")
    folder = index_folder(session.path)
    before = {name: read_bytes(os.path.join(folder, name)) for name in os.listdir(folder)}
    assert "s1.1.sqlite3" in before
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with SessionView.open(session.path) as view:
        assert view.read("a").id == "a"
    with Session.open(session.path) as again:
        again.append(custom("b"))
        assert [entry.id for entry in again.entries()] == ["a", "b"]
        assert any("too old" in fault for fault in again.index_faults)
    with new(tmp_path, session_id="s2") as other:
        other.append(custom("c"))
        assert other.read("c").id == "c"
    assert {n: read_bytes(os.path.join(folder, n)) for n in os.listdir(folder)} == before


def test_a_bad_watermark_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """R20: a watermark that does not verify, beside no position, says nothing."""
    path = marked_only(tmp_path)
    with SessionIndex.open(index_file(path)) as index:
        mark = index.watermark()
        assert mark is not None
        index.set_watermark(damage.flip(mark, 100))
    with Session.open(path) as session:
        assert len(session.entries()) == 4
