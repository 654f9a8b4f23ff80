"""Threads, forks and lifetimes: no wrong answer, no deadlock, nothing left behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from session_helpers import answers, custom, drop_index, index_differences, new, user, view_answers

from treering.engine import Closed, OutcomeUnknown, Owned, Session, TreeringError
from treering.engine.session import filling, housekeeping, indexing
from treering.engine.session import session as session_module
from treering.fuzz.faulty_disk import FaultyDisk


@pytest.fixture
def busy_housekeeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The background pass runs all the time, and threads change places often."""
    monkeypatch.setattr(housekeeping, "INDEX_LAG_S", 0.001)
    monkeypatch.setattr(housekeeping, "INDEX_LAG_FRAMES", 8)
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(old)


def run_all(jobs: list[Callable[[], Any]], seconds: float = 30) -> list[BaseException]:
    """Run in threads; their exceptions. A job that does not end is a deadlock."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], Any]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.01))
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return errors


@pytest.mark.usefixtures("busy_housekeeper")
@pytest.mark.parametrize("durability", ["full", "os"])
def test_F118_F129_eight_threads_on_one_session(tmp_path: Path, durability: str) -> None:
    """Four threads append in all ways, four read in all ways: no exception, each thread's
    entries in
    order, batches in one piece, compressed bytes equal, and the index equals a rebuild (S02,
    S03)."""
    session = new(tmp_path, durability=durability)
    session.append(user("root", "root"))
    stop = time.monotonic() + 3
    written: dict[int, list[tuple[str, str]]] = {n: [] for n in range(4)}

    def appender(number: int) -> None:
        draw = random.Random(number)
        count = 0
        while time.monotonic() < stop:
            texts = [f"{number} {count + i} " * draw.choice((1, 30, 900)) for i in range(3)]
            entries = [user(t, f"t{number}-{count + i}") for i, t in enumerate(texts)]
            count += 3
            how = draw.randrange(4)
            if how == 0:
                session.append_many(entries)
            elif how == 1:
                with session.batch() as batch:
                    for entry in entries:
                        batch.append(entry)
            else:
                for entry in entries:
                    session.append(entry)
            written[number] += [(e["id"], t) for e, t in zip(entries, texts, strict=True)]
            if draw.random() < 0.1:
                session.branch_to("root")
            if draw.random() < 0.05:
                session.set_label("root", f"l{count}")

    def reader(number: int) -> None:
        draw = random.Random(100 + number)
        while time.monotonic() < stop:
            own = list(written[number])
            if own:
                entry_id, text = draw.choice(own)
                assert session.read(entry_id).decode().message.content == text  # type: ignore[union-attr]
                assert session.exists(entry_id)
            session.by_kind("message", newest_first=True, limit=20)
            session.entries(limit=50)
            session.branch(limit=20)
            session.children("root", limit=30)
            session.labels()
            session.counts()

    jobs: list[Callable[[], Any]] = [lambda n=n: appender(n) for n in range(4)]
    jobs += [lambda n=n: reader(n) for n in range(4)]
    errors = run_all(jobs)
    assert errors == []
    assert session.index_faults == []
    found = {e.id: e for e in session.iter_entries()}
    for own in written.values():
        sequences = [found[i].sequence for i, _ in own]
        assert sequences == sorted(sequences)
    right = view_answers(session.path)
    assert answers(session) == right
    session.close()
    assert index_differences(session.path) == []


@pytest.mark.usefixtures("busy_housekeeper")
def test_an_explicit_id_is_stored_once_by_threads_that_race(tmp_path: Path) -> None:
    """S02: two threads append the same new id while the background drops ids: stored once."""
    session = new(tmp_path)
    stop = time.monotonic() + 2

    def racer(content: int) -> None:
        number = 0
        while time.monotonic() < stop:
            number += 1
            session.append(
                custom(f"same-{number}", parentId=None, data=1, timestamp="2024-01-01T00:00:00Z")
            )

    assert run_all([lambda: racer(1), lambda: racer(2), lambda: racer(3)]) == []
    ids = [e.id for e in session.iter_entries()]
    assert len(ids) == len(set(ids))
    assert session.counts().get("derived", 0) == 0
    session.close()


@pytest.mark.usefixtures("busy_housekeeper")
def test_close_while_others_append_and_read(tmp_path: Path) -> None:
    """Close at any moment: the others get Closed and nothing else; what they had acknowledged
    is there;
    close ends; no index file is made or held afterwards (S20)."""
    for round_number in range(25):
        session = new(tmp_path / str(round_number))
        session.append(custom("first"))
        acknowledged: list[str] = []
        go = threading.Event()

        def appender(
            session: Session = session,
            ids: list[str] = acknowledged,
            go: threading.Event = go,
        ) -> None:
            while True:
                ids.append(session.append(custom()))
                go.set()

        def reader(session: Session = session) -> None:
            while True:
                assert session.read("first").id == "first"
                assert session.exists("first")

        def batcher(session: Session = session) -> None:
            while True:
                with session.batch() as batch:
                    batch.append(custom())

        def closer(session: Session = session, go: threading.Event = go) -> None:
            go.wait(5)
            time.sleep(random.random() * 0.01)
            session.close()
            session.close()

        errors = run_all([appender, reader, reader, batcher, closer])
        assert all(isinstance(e, Closed) for e in errors), errors
        assert len(errors) == 4
        assert session._indexer._index is None
        with Session.open(session.path) as again:
            assert again.index_faults == []
            found = [e.id for e in again.iter_entries()]
        assert [i for i in found if i in set(acknowledged)] == acknowledged


def test_a_reader_that_close_overtakes_gets_closed(tmp_path: Path) -> None:
    """S20: a read that is under way when close() ends answers Closed; it never makes an index
    file of
    a session that it does not own any more, and never answers from half an index."""
    session = new(tmp_path)
    ids = session.append_many([custom() for _ in range(50)])
    inside, go = threading.Event(), threading.Event()
    synced_size = session._synced_size

    def slow() -> int:
        size = synced_size()
        inside.set()
        go.wait(10)
        return size

    session._synced_size = slow  # type: ignore[method-assign]
    results: list[Any] = []

    def read() -> None:
        try:
            results.append(session.read(ids[0]))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert inside.wait(10)
    del session.__dict__["_synced_size"]
    session.close()
    folder = tmp_path / "home" / "session-index"
    before = sorted(os.listdir(folder))
    go.set()
    thread.join(10)
    assert isinstance(results[0], Closed), results
    assert sorted(os.listdir(folder)) == before
    assert session._indexer._index is None


def test_close_during_a_long_catch_up_gives_no_half_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader is bringing up the index when another thread closes: the right answer or Closed."""
    with new(tmp_path) as session:
        ids = session.append_many([custom() for _ in range(3000)])
    drop_index(session.path)
    monkeypatch.setattr(indexing, "QUICK_BYTES", 10)
    monkeypatch.setattr(filling, "INDEX_TRANSACTION_ROWS", 50)
    for _ in range(6):
        drop_index(session.path)
        again = Session.open(session.path)
        results: list[Any] = []

        def read(again: Session = again, results: list[Any] = results) -> None:
            try:
                results.append(again.read(ids[-1]).id)
            except TreeringError as error:
                results.append(error)

        def close(again: Session = again) -> None:
            time.sleep(random.random() * 0.05)
            again.close()

        assert run_all([read, close]) == []
        assert results[0] == ids[-1] or isinstance(results[0], Closed), results


@pytest.mark.usefixtures("busy_housekeeper")
def test_recover_and_close_inside_of_everything(tmp_path: Path) -> None:
    """recover() while the background indexes, close and recover inside a batch, exceptions in
    batches, nested batches: no deadlock, typed errors only."""
    session = new(tmp_path)
    for number in range(30):
        session.append_many([custom() for _ in range(20)])
        session.recover()
        session.append(custom(f"r{number}"))
    assert session.has("r0")
    with session.batch() as batch:
        batch.append(custom("b0"))
        session.recover()
        batch.append(custom("b1"))
    assert batch.ids == ["b0", "b1"]
    with session.batch() as outer:
        outer.append(custom("o"))
        with session.batch() as inner:
            inner.append(custom("i"))
        session.append(custom("plain"))
    assert {session.read(i).id for i in ("o", "i", "plain")} == {"o", "i", "plain"}
    for _ in range(3):
        with pytest.raises(KeyError), session.batch() as batch:
            batch.append(custom())
            raise KeyError
    done = run_all([lambda: session.append(custom("other thread"))])
    assert done == []
    with pytest.raises(TreeringError), session.batch() as batch:
        batch.append(custom("never"))
        session.close()
    with Session.open(session.path) as again:
        assert not again.has("never")
        assert again.has("other thread")


@pytest.mark.usefixtures("busy_housekeeper")
def test_recover_while_others_read_and_append(tmp_path: Path) -> None:
    """recover() in one thread, appends and reads in others: typed errors at most, nothing lost."""
    session = new(tmp_path)
    session.append(custom("first"))
    stop = time.monotonic() + 2
    acknowledged: list[str] = []
    wrong: list[BaseException] = []

    def appender() -> None:
        while time.monotonic() < stop:
            acknowledged.append(session.append(custom()))

    def reader() -> None:
        while time.monotonic() < stop:
            try:
                assert session.read("first").id == "first"
                session.by_kind("custom", newest_first=True, limit=5)
            except TreeringError as error:
                wrong.append(error)

    def recoverer() -> None:
        while time.monotonic() < stop:
            session.recover()
            time.sleep(0.005)

    assert run_all([appender, appender, reader, recoverer]) == []
    assert wrong == []
    found = {e.id for e in session.iter_entries()}
    assert found.issuperset(acknowledged)
    session.close()


def test_recover_begins_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that saw an open session, whose parts then went, waits for the new ones (once in
    many runs it was told that the session is closed)."""
    session = new(tmp_path)
    released, go = threading.Event(), threading.Event()
    real = session_module.open_parts

    def open_parts(*args: Any, **more: Any) -> Any:
        released.set()
        assert go.wait(10)
        return real(*args, **more)

    class Looked(Session):
        @property
        def _closed(self) -> bool:
            seen: bool = self.__dict__["closed"]
            if threading.current_thread() is threading.main_thread() and not released.is_set():
                recovery.start()
                assert released.wait(10)
                threading.Timer(0.1, go.set).start()
            return seen

        @_closed.setter
        def _closed(self, value: bool) -> None:
            self.__dict__["closed"] = value

    recovery = threading.Thread(target=session.recover)
    session.__dict__["closed"] = session.__dict__.pop("_closed")
    session.__class__ = Looked
    monkeypatch.setattr(session_module, "open_parts", open_parts)
    entry_id = session.append(custom("meanwhile"))
    recovery.join(10)
    session.close()
    with Session.open(session.path) as again:
        assert again.has(entry_id)


def in_child(do: Callable[[], Any], seconds: int = 5) -> int | str:
    """Fork; the exit code of the child: 0 for no exception, 7 for Closed, 8 for others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has a handler of its own
        signal.alarm(seconds)
        code = 0
        try:
            do()
        except Closed:
            code = 7
        except BaseException:
            code = 8
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    return "hangs" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


CHILD_CALLS: dict[str, Callable[[Session], Any]] = {
    "append": lambda s: s.append(custom()),
    "append_many": lambda s: s.append_many([custom()]),
    "batch": lambda s: s.batch().__enter__(),
    "branch_to": lambda s: s.branch_to(None),
    "sync": lambda s: s.sync(),
    "recover": lambda s: s.recover(),
    "read": lambda s: s.read("a"),
    "entries": lambda s: s.entries(),
    "exists": lambda s: s.exists("a"),
    "header": lambda s: s.header,
}


@pytest.mark.parametrize("locked", [False, True], ids=["idle", "lock held at fork"])
@pytest.mark.parametrize("call", CHILD_CALLS)
def test_F119_a_forked_child_is_refused(tmp_path: Path, call: str, locked: bool) -> None:
    """Every call of a forked child says Closed, also when another thread held the session's
    lock when
    the fork happened (S04); the parent goes on undisturbed."""
    session = new(tmp_path)
    session.append(custom("a"))
    session.read("a")
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        with session.batch() as batch:
            batch.append(custom("held"))
            inside.set()
            go.wait(20)

    thread = threading.Thread(target=hold)
    if locked:
        thread.start()
        assert inside.wait(5)
    code = in_child(lambda: CHILD_CALLS[call](session))
    go.set()
    if locked:
        thread.join(10)
        assert session.has("held")
    assert code == 7
    session.append(custom("b"))
    session.close()
    assert view_answers(session.path)["leaf"] == "b"


@pytest.mark.parametrize("locked", [False, True], ids=["idle", "lock held at fork"])
def test_F119_closing_in_a_child_leaves_the_parent_alone(tmp_path: Path, locked: bool) -> None:
    """A child that closes, drops and exits disturbs nothing: the parent's lock, index and
    appends stay;
    a child can open the session by itself only after the parent closed it."""
    session = new(tmp_path)
    session.append(custom("a"))
    session.read("a")
    if locked:
        thread = threading.Thread(target=session.hold)
        thread.start()
        thread.join()

    def child() -> None:
        session.close()
        gc.collect()
        try:
            Session.open(session.path)
        except TreeringError:
            return
        raise AssertionError("the lock is gone")

    assert in_child(child) == 0
    if locked:
        return  # the thread that holds it has ended: nobody can give it back
    session.append(custom("b"))
    assert [e.id for e in session.entries()] == ["a", "b"]
    session.close()
    assert index_differences(session.path) == []
    assert in_child(lambda: Session.open(session.path).close()) == 0


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def wait_until_free(path: str) -> None:
    """A background pass may hold a lost session for a moment longer."""
    end = time.monotonic() + 2
    while True:
        gc.collect(0)
        try:
            Session.open(path).close()
        except Owned:
            assert time.monotonic() < end, "the lock is kept"
            time.sleep(0.005)
        else:
            return


def test_F58_open_and_close_leave_nothing_behind(tmp_path: Path) -> None:
    """A thousand openings, some ended by an exception, some by a failing disk, some by losing the
    object: no descriptor and no thread is left."""
    session = new(tmp_path)
    session.append(custom("a"))
    session.close()
    path = session.path
    Session.open(path).close()
    before, threads = descriptors(), threading.active_count()
    for number in range(1000):
        how = number % 5
        if how == 0:
            with Session.open(path) as again:
                again.append(custom())
        elif how == 1:
            with pytest.raises(KeyError), Session.open(path) as again:
                again.read("a")
                raise KeyError
        elif how == 2:
            Session.open(path).close()
        elif how == 3:
            disk = FaultyDisk()
            disk.fail(at=number % 23 + 1)
            try:
                Session.open(path, disk=disk).close()
            except TreeringError:
                pass
        else:
            lost = Session.open(path)
            lost.read("a")
            if number % 10 == 4:
                lost.append(custom())
            del lost
            wait_until_free(path)
    end = time.monotonic() + 3
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.02)
    assert threading.active_count() == threads
    assert descriptors() == before
    with Session.open(path) as again:
        again.append(custom("end"))


def test_a_forgotten_session_gives_its_lock_back(tmp_path: Path) -> None:
    """S01: a session that is garbage-collected without close frees lock, descriptors and thread."""
    session = new(tmp_path)
    session.append(custom("a"))
    path = session.path
    before = threading.active_count()
    del session
    wait_until_free(path)
    with Session.open(path) as again:
        assert again.has("a")
    end = time.monotonic() + 3
    while threading.active_count() >= before and time.monotonic() < end:
        time.sleep(0.02)
    assert threading.active_count() < before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_housekeeper_survives_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the background pass meets, it goes on afterwards: later appends are indexed."""
    monkeypatch.setattr(housekeeping, "INDEX_LAG_S", 0.005)
    session = new(tmp_path)
    session.append(custom("a"))
    cover = indexing.Indexer.cover
    for error in (
        OSError(28, "no space"),
        RuntimeError("odd"),
        ValueError("odd"),
        OutcomeUnknown("x"),
    ):

        def broken(self: Any, *args: Any, error: Exception = error, **more: Any) -> None:
            raise error

        monkeypatch.setattr(indexing.Indexer, "cover", broken)
        session.append(custom())
        time.sleep(0.05)
    monkeypatch.setattr(indexing.Indexer, "cover", cover)
    session.append(custom("z"))
    end = time.monotonic() + 3
    while session._indexer.covered_size < session._writer.synced_size:
        assert time.monotonic() < end, "the background thread is dead"
        time.sleep(0.02)
    session.close()
