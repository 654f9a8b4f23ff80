"""Corners of a session: an index that fails at any question, ids that are hard to find, positions
that cannot be read, and facts of the machine that are not there."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from session_helpers import (
    custom,
    drop_index,
    index_differences,
    index_file,
    index_folder,
    new,
    user,
)
from support import build, damage

import treering
from treering import engine
from treering.engine import (
    Closed,
    Conflict,
    Damaged,
    Invalid,
    InvalidEntry,
    LimitExceeded,
    NotFound,
    Session,
    SessionView,
    commands,
    environment,
    home,
)
from treering.engine.journal.admissible import Record
from treering.engine.json_text import BadRecordError, check, members
from treering.engine.session import filling, indexing
from treering.engine.session.facts import facts_of, timestamp_ms
from treering.engine.session.fresh_ids import FreshIds
from treering.engine.session.housekeeping import Housekeeper
from treering.engine.session.readmission import readmit
from treering.engine.session.reads import Reads
from treering.index import IndexBusy, IndexFault, SessionIndex, files


def put(tmp_path: Path, maker: build.Maker) -> str:
    return build.put(build.make_store(tmp_path), maker.whole())


def started() -> build.Maker:
    maker = build.Maker().started()
    maker.open()
    return maker


# The door


def test_the_root_is_the_engine() -> None:
    assert treering.Session is engine.Session
    assert list(treering.__all__) == list(engine.__all__)
    assert {"Session", "__version__"} <= set(dir(treering))
    for name in ("no_such_name", "_private"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(treering, name)


# The machine


def test_paths_of_any_bytes_are_one_word_for_a_shell() -> None:
    assert commands.quoted("a'b\\c\n") == r"$'a\'b\\c\012'"
    assert commands.quoted("a\udcff") == r"$'a\377'"


def test_a_selector_without_a_default_store_is_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE_CONTEXT_HOME", "not/absolute")
    monkeypatch.delenv("BASE_CONTEXT_SESSION_DIR", raising=False)
    assert commands.selector("/x/sessions/s.jsonl") == "/x/sessions/s.jsonl"


def refuse(*_: object, **__: object) -> Any:
    raise PermissionError("not for you")


def test_facts_that_a_system_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc there is an answer all the same; of a stranger's process only that it lives."""
    real = {
        "started": environment._process_started_ms.__wrapped__(os.getpid()),
        "boot": environment.boot_id.__wrapped__(),
    }
    assert real["boot"] != ""
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(environment, "now_ms", lambda: 12345)
    assert environment._process_started_ms.__wrapped__(os.getpid()) == 12345
    assert real["started"] != 12345
    assert environment.boot_id.__wrapped__() == ""
    assert environment.mount_lines() == []
    monkeypatch.setattr(os, "kill", refuse)
    assert environment.process_exists(1)


def test_a_file_system_that_nobody_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is unknown then, and taken for a local one: nothing is refused for a guess."""
    assert home.file_system_of(str(tmp_path / "not" / "there")) != "unknown"
    monkeypatch.setattr(environment, "mount_lines", list)
    assert home.file_system_of(str(tmp_path)) == "unknown"
    monkeypatch.setattr(os, "stat", refuse)
    assert home.file_system_of(str(tmp_path)) == "unknown"


# Text


@pytest.mark.parametrize("raw", [b"[1]", b'{"a":1', b'{"a"', b'{"a":[1}', b"{1}"])
def test_what_is_no_whole_object_has_no_members(raw: bytes) -> None:
    with pytest.raises(BadRecordError, match="is not a whole object"):
        members(raw)


def test_members_of_objects() -> None:
    assert members(b" { } ") == (1, [], 3)
    found = members(b'{"a" : [1, {}], "b":2}')[1]
    assert [segment.name for segment in found] == ["a", "b"]


def test_a_record_of_another_journal_is_known_in_spite_of_odd_text() -> None:
    found = check(b'{"journalFrame":1,"type":"\\ud800"}')
    assert (found.journalFrame, found.lone_surrogates) == (1, 1)


# Admission


@pytest.mark.parametrize("details", [b"[1]", b'"text"', b"null", b'{"mine":1}'])
def test_details_of_any_shape_are_kept(tmp_path: Path, details: bytes) -> None:
    """Only the one member that the engine writes itself is refused."""
    raw = b'{"type":"custom","id":"a","parentId":null,"details":' + details + b"}"
    with new(tmp_path) as session:
        assert session.append(raw) == "a"
        assert session.read("a").raw == raw
        forged = raw.replace(details, b'{"baseContextEpoch":1}').replace(b'"a"', b'"b"')
        with pytest.raises(InvalidEntry, match="baseContextEpoch"):
            session.append(forged)


def test_a_reference_that_is_no_id(tmp_path: Path) -> None:
    with new(tmp_path) as session:
        with pytest.raises(InvalidEntry, match="a reference is not an entry id"):
            session.append({"type": "label", "targetId": 5})
        assert session.counts()["entries"] == 0


class Attrs:
    """As the attrs package marks its classes."""

    __attrs_attrs__ = (SimpleNamespace(name="inside"),)

    def __init__(self, inside: object) -> None:
        self.inside = inside


def test_nesting_is_measured_in_any_container(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with new(tmp_path) as session:
        with pytest.raises(LimitExceeded, match="deeper than"):
            session.append(custom(x=Attrs(deep)))
        with pytest.raises(InvalidEntry, match="is not JSON"):
            session.append(custom(x=object()))


# Facts


def test_facts_of_odd_entries() -> None:
    assert timestamp_ms("2024-12-03T14:00:00") == timestamp_ms("2024-12-03T14:00:00Z")
    for text in ("not a time", "", "0001-01-01T00:00:00+14:00", None):
        assert timestamp_ms(text) in (None, -62135647200000)
    assert timestamp_ms("not a time") is None
    assert facts_of(b'{"type":"label","label":"x"}').label is None
    assert facts_of(b'{"type":"label","targetId":"a"}').label == ("a", None)


def test_an_entry_says_what_it_is(tmp_path: Path) -> None:
    with new(tmp_path) as session:
        session.append(user("hello", "a"))
        session.append(custom("b"))
        session.append(custom("c"))
        entries = list(session.iter_entries())
        assert [entry.role for entry in entries] == ["user", None, None]
        assert [entry.parent_id for entry in entries] == [None, "a", "b"]
        assert all(entry.qualification is None for entry in entries)
        assert session.artifact_folder == session.store.artifact_folder(session.id)


# Fresh ids


class Known:
    """What a session has, as the pool asks for it."""

    def __init__(self, taken: set[str], indexed: set[str] | None = None) -> None:
        self.taken, self.indexed = taken, indexed

    def among(self, ids: list[str]) -> tuple[set[str], bool]:
        return self.taken & set(ids), False

    def any_known(self, ids: list[str]) -> set[str] | None:
        return None if self.indexed is None else self.indexed & set(ids)


def pool(monkeypatch: pytest.MonkeyPatch, known: Known, tries: Callable[[int], list[str]]) -> Any:
    monkeypatch.setattr(environment, "short_entry_ids", tries)
    return FreshIds(known, known)  # type: ignore[arg-type]


def test_fresh_ids_are_nobodys_and_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However unlucky the draw: taken ones, indexed ones and repeated ones are drawn again."""
    drawn = iter(range(10_000))
    known = Known({f"{n:08x}" for n in range(0, 40, 3)}, {f"{n:08x}" for n in range(0, 40, 4)})

    def tries(count: int) -> list[str]:
        return [f"{next(drawn) // 2:08x}" for _ in range(count)]  # each one twice

    fresh = pool(monkeypatch, known, tries)
    first = fresh.take(3)
    given_up = fresh._pool[-1]
    fresh.give_up(given_up)
    fresh.give_up("not in the pool")
    ids = first + fresh.take(200)
    assert len(set(ids)) == 203
    assert given_up not in ids
    assert not set(ids) & (known.taken | (known.indexed or set()))
    assert all(re.fullmatch("[0-9a-f]{8}", entry_id) for entry_id in ids)


@pytest.mark.parametrize("indexed", [None, {"00000001"}])
def test_ids_that_nobody_can_check_are_long(
    monkeypatch: pytest.MonkeyPatch, indexed: set[str] | None
) -> None:
    """Nobody can say at once what is taken, or all that is drawn is taken."""
    fresh = pool(monkeypatch, Known(set(), indexed), lambda count: ["00000001"] * count)
    ids = fresh.take(2)
    assert len(set(ids)) == 2
    assert all(len(entry_id) == 36 for entry_id in ids)


def test_no_append_waits_for_the_index(tmp_path: Path) -> None:
    """While the index is busy elsewhere, or fails, new ids are long ones."""
    with new(tmp_path) as session:
        session.append(custom("a"))
    with Session.open(session.path) as session:
        session.read("a")
        with session._indexer._id_lock:
            assert session._indexer.any_known(["a"]) is None
            assert len(session.append(custom())) == 36
        assert session._indexer.any_known(["a"]) == {"a"}
        assert session._indexer.any_known(["nobody"]) == set()
        assert session._indexer.any_known(["a", "b"]) == {"a"}


def test_ids_that_cannot_be_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new(tmp_path) as session:
        session.append(custom("a"))
    with Session.open(session.path) as session:
        session.read("a")

        def failing(self: SessionIndex, ids: object) -> Any:
            raise IndexFault("x", "is bad")

        monkeypatch.setattr(SessionIndex, "by_ids", failing)
        monkeypatch.setattr(SessionIndex, "has_id", failing)
        assert session._indexer.any_known(["a"]) is None
        assert len(session.append(custom())) == 36
        monkeypatch.undo()
        assert session.counts()["entries"] == 2


# An index that fails


def failing_first(times: int, error: Exception) -> Callable[[SessionIndex], int]:
    left = [error] * times

    def question(index: SessionIndex) -> int:
        if left:
            raise left.pop()
        return index.counts()["entries"]

    return question


@pytest.mark.parametrize("error", [IndexFault("x", "is bad"), IndexBusy("x", "is busy")])
@pytest.mark.parametrize("times", [1, 2])
def test_a_question_that_fails_is_asked_again(tmp_path: Path, error: Exception, times: int) -> None:
    """Of a new index, and at last of one in memory: the answer is right, the fault is kept."""
    with new(tmp_path) as session:
        session.append_many([custom(f"e{n}") for n in range(5)])
        session.counts()
        assert session.ask(failing_first(times, error)) == 5
        assert session.index_faults == [str(error)] * times
        session.append(custom("more"))
        assert session.counts()["entries"] == 6
    with Session.open(session.path) as session:
        assert session.counts()["entries"] == 6
        assert session.index_faults == []
    assert index_differences(session.path) == []


def test_a_fault_that_does_not_end_is_told(tmp_path: Path) -> None:
    with new(tmp_path) as session:
        session.append(custom("a"))
        with pytest.raises(IndexFault):
            session.ask(failing_first(100, IndexFault("x", "is bad")))
        assert session.counts()["entries"] == 1


def test_an_index_that_belongs_to_nobody_yet(tmp_path: Path) -> None:
    """Made and not bound, as by an owner that died at once: not this journal's, and replaced."""
    with new(tmp_path) as session:
        session.append(custom("a"))
    drop_index(session.path)
    files.ensure_folder(index_folder(session.path))
    path = files.next_path(index_folder(session.path), session.id)
    with SessionIndex.open(path, create=True):
        pass
    with Session.open(session.path) as session:
        assert session.counts()["entries"] == 1
        assert any("belongs to another journal" in fault for fault in session.index_faults)
    assert index_differences(session.path) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_journal_that_was_restored_keeps_its_index(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another inode, the same journal: the index is told so. One that cannot be told is replaced."""
    with new(tmp_path) as session:
        session.append_many([custom(f"e{n}") for n in range(5)])
    path = session.path
    shutil.copy(path, tmp_path / "backup")
    os.replace(tmp_path / "backup", path)
    before = index_file(path)
    if fails:
        real, calls = SessionIndex.bind, []

        def bind(self: SessionIndex, *identity: Any) -> None:
            calls.append(identity)
            if len(calls) == 1:
                raise IndexFault(before, "is bad")
            real(self, *identity)

        monkeypatch.setattr(SessionIndex, "bind", bind)
    with Session.open(path) as session:
        assert session.counts()["entries"] == 5
        assert bool(session.index_faults) is fails
    assert (index_file(path) == before) is not fails
    with SessionIndex.open(index_file(path)) as index:
        identity = index.identity()
    assert identity is not None
    assert identity.inode == os.stat(path).st_ino
    assert index_differences(path) == []


def test_a_position_that_is_no_frame(tmp_path: Path) -> None:
    """The newest row is of another journal, or of another time: the index is made anew, whether
    it was so before the session was opened or becomes so while it is open."""
    with new(tmp_path) as session:
        session.append_many([custom(f"e{n}") for n in range(5)])
    forged = "UPDATE state SET revision=zeroblob(16)"
    with SessionIndex.open(index_file(session.path)) as index:
        index._db.execute(forged)
    with Session.open(session.path) as session:
        assert session.counts()["entries"] == 5
        assert any("another journal" in fault for fault in session.index_faults)
        index = session._indexer._index
        assert index is not None
        index._db.execute(forged)
        session.append(custom("more"))
        assert session.counts()["entries"] == 6
        assert any("not a frame of this journal" in fault for fault in session.index_faults)
    assert index_differences(session.path) == []


def test_an_index_that_cannot_even_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays where it is, a new one or the memory answers; both faults are told."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        session.counts()

        def stuck(path: str) -> str:
            raise IndexFault(path, "cannot be moved")

        def unclosable(self: SessionIndex) -> None:
            real_close(self)
            raise IndexFault("x", "cannot be closed")

        real_close = SessionIndex.close
        monkeypatch.setattr(files, "set_aside", stuck)
        monkeypatch.setattr(SessionIndex, "close", unclosable)
        assert session.ask(failing_first(1, IndexFault("x", "is bad"))) == 1
        monkeypatch.undo()
        assert [fault.partition(": ")[2] for fault in session.index_faults] == [
            "is bad",
            "cannot be moved",
        ]


def test_whether_an_index_is_far_behind_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot say is not waited for at the end; the journal is whole all the same."""
    session = new(tmp_path)
    session.append(custom("a"))
    session.counts()

    def failing(self: SessionIndex) -> Any:
        raise IndexFault("x", "is bad")

    monkeypatch.setattr(SessionIndex, "position", failing)
    assert not session._indexer.resumes_quickly(0)
    session.close()
    monkeypatch.undo()
    with Session.open(session.path) as session:
        assert session.counts()["entries"] == 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_first_index_in_one_go(
    tmp_path: Path, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It appears when it is whole; one that was interrupted is made anew."""
    with new(tmp_path) as session:
        session.append_many([custom(f"e{n}") for n in range(40)])
    drop_index(session.path)
    monkeypatch.setattr(indexing, "BULK_BUILD_BYTES", 0)
    monkeypatch.setattr(indexing, "QUICK_BYTES", -1)
    monkeypatch.setattr(filling, "INDEX_SLICE_ROWS", 8)
    monkeypatch.setattr(filling, "INDEX_TRANSACTION_ROWS", 8)
    with Session.open(session.path) as session:
        indexer = session._indexer
        session._housekeeper.stop()
        drop_index(session.path)
        indexer._close_files()
        if interrupted:
            indexer.interrupt()
            indexer.cover(session.source.size)
            assert files.current(index_folder(session.path), session.id) is None
            indexer.resume()
        assert session.counts()["entries"] == 40
        assert session.index_faults == []
    names = os.listdir(index_folder(session.path))
    assert [name for name in names if name.endswith(".sqlite3")] == [f"{session.id}.1.sqlite3"]
    assert not [name for name in names if ".tmp" in name or "build" in name]
    assert index_differences(session.path) == []


# Positions


def position_without_an_index(path: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """As after an opening that does not wait for a long index build; the view must agree."""
    with monkeypatch.context() as patched:
        patched.setattr(indexing, "QUICK_BYTES", -1)
        with Session.open(path) as session:
            leaf = session.leaf_id
    with SessionView.open(path) as view:
        assert view.leaf_id == leaf
    return leaf


def test_the_position_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, started())
    assert position_without_an_index(path, monkeypatch) is None
    with SessionView.open(path) as view:
        assert list(view.iter_branch()) == []
        assert view.branch() == []
        assert view.leaf() is None
        assert view.latest_on_branch("message") is None


@pytest.mark.parametrize(
    ("payload", "more"),
    [
        (b'{"a":NaN}', {}),
        (b"no zstd at all", {"codec": 1, "raw": 100}),
        (b'{"type":"session","id":"x"}', {}),
        (b'{"type":"request","id":"x"}', {}),
    ],
)
def test_what_cannot_be_a_position_is_passed_over(
    tmp_path: Path, payload: bytes, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = started()
    maker.entry("a")
    maker.frame(build.ENTRY, payload, **more)
    assert position_without_an_index(put(tmp_path, maker), monkeypatch) == "a"


def test_only_such_entries_leave_the_position_to_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = started()
    maker.frame(build.ENTRY, b'{"a":NaN}')
    assert position_without_an_index(put(tmp_path, maker), monkeypatch) is None


@pytest.mark.parametrize(("leaf", "wanted"), [("a", "a"), (None, None), ("gone", "b")])
def test_a_position_that_was_set(
    tmp_path: Path, leaf: str | None, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an entry that cannot be read. An entry that is not there is no position."""
    maker = started()
    maker.entry("a")
    maker.frame(build.ENTRY, b"no zstd at all", codec=1, raw=100)
    maker.entry("b")
    maker.frame(build.LEAF, build.compact({"leaf": leaf}))
    assert position_without_an_index(put(tmp_path, maker), monkeypatch) == wanted


# Reading and closing


def test_pages_of_large_entries_are_loaded_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from treering.engine.session import reads

    monkeypatch.setattr(reads, "_LOADED_BYTES", 300)
    with new(tmp_path) as session:
        ids = [session.append(user("x" * 200, f"e{n}")) for n in range(5)]
        assert [entry.id for entry in session.iter_branch()] == ids
        assert [entry.id for entry in session.iter_entries()] == ids
        with pytest.raises(Invalid, match="whole number"):
            session.entries(limit=-1)


def test_an_entry_that_the_index_has_lost(tmp_path: Path) -> None:
    with new(tmp_path) as session:
        session.append(custom("a"))
        with pytest.raises(NotFound, match="no entry at sequence 99"):
            session._by_sequence(99)


def test_what_answers_is_a_session_or_a_view() -> None:
    bare = Reads()
    for use in (lambda: bare.ask(lambda index: 1), bare._check_open, lambda: bare.leaf_id):
        with pytest.raises(AssertionError, match="subclasses"):
            use()


def test_an_error_of_closing_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is the one that a caller must see; alone, that of closing is raised."""

    def refused(self: Session) -> None:
        raise Damaged("closing failed")

    for inside, wanted in ((ZeroDivisionError, ZeroDivisionError), (None, Damaged)):
        session = new(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Session, "close", refused)
            with pytest.raises(wanted), session:
                if inside is not None:
                    raise inside
        session.close()


def test_a_read_that_fails_is_not_repeated_for_nothing(tmp_path: Path) -> None:
    """Nobody has taken the file away: the error is the answer."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        entry = session.read("a")
        with open(session.path, "r+b") as file:
            file.seek(Path(session.path).read_bytes().index(entry.raw))
            file.write(b"x")
        with pytest.raises(Damaged, match="does not verify"):
            session.read("a")


# Readmission


def test_readmission_of_what_is_there(tmp_path: Path) -> None:
    """The same bytes are there already; other bytes under the same id are a conflict."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        raw = session.read("a").raw
        before = session.source.size
        assert readmit(session, [Record(build.ENTRY, raw)]) == []
        with pytest.raises(Conflict, match="'a' is taken by another entry"):
            readmit(session, [Record(build.ENTRY, raw.replace(b"test", b"else"))])
        assert session.source.size == before
        fresh = raw.replace(b'"id":"a"', b'"id":"b"')
        assert readmit(session, [Record(build.ENTRY, raw), Record(build.ENTRY, fresh)]) == ["b"]
        assert session.read("b").raw == fresh


# The background thread


class Work:
    """What a housekeeper does, in a test's hands."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.indexed = threading.Event()

    def sync(self) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def index(self) -> None:
        self.indexed.set()


def test_a_typed_error_of_background_work_ends_no_thread() -> None:
    work = Work(Damaged("the index cannot be made"), None)
    housekeeper = Housekeeper(work.index, work.sync)
    try:
        housekeeper.wake()
        thread = housekeeper._thread
        deadline = environment.monotonic_s() + 30
        while work.errors and environment.monotonic_s() < deadline:
            housekeeper.wake()
            environment.sleep(0.002)
        assert work.indexed.wait(30)
        assert housekeeper._thread is thread
    finally:
        housekeeper.stop()


def test_a_mistake_in_background_work_ends_one_thread_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is shown as any error of a thread is; the next append finds a new thread."""
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: seen.append(what.exc_type))
    work = Work(ZeroDivisionError(), None)
    housekeeper = Housekeeper(work.index, work.sync)
    try:
        housekeeper.wake()
        first = housekeeper._thread
        if first is not None:  # else it has ended already
            first.join(30)
        assert seen == [ZeroDivisionError]
        assert housekeeper._thread is None
        housekeeper.wake()
        assert work.indexed.wait(30)
    finally:
        housekeeper.stop()


def test_a_thread_ends_with_what_it_works_for() -> None:
    work = Work()
    housekeeper = Housekeeper(work.index, work.sync)
    with housekeeper._wakeup:  # it cannot look yet
        housekeeper.wake()
        thread = housekeeper._thread
        del work
        gc.collect()
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_nothing_is_waited_for_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are frozen then, perhaps with the lock in their hands."""
    work = Work()
    housekeeper = Housekeeper(work.index, work.sync)
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    with housekeeper._wakeup:
        other = threading.Thread(target=housekeeper.forget)
        other.start()
        other.join(30)
        assert not other.is_alive()
    monkeypatch.undo()
    housekeeper.stop()
    housekeeper.wake()
    assert housekeeper._thread is None


# Views


def test_a_view_of_another_process_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, started())
    with SessionView.open(path) as view:
        view._pid += 1
        for use in (view.counts, view.entries, view.provenance):
            with pytest.raises(Closed, match="before a fork"):
                use()
        view._pid -= 1
        assert view.counts()["entries"] == 0


def test_damage_that_a_second_look_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer was caught in the middle: the view shows what is there a moment later."""
    from treering.engine.session import view as views

    maker = started()
    maker.entry("a")
    bad = maker.entry("b")
    maker.close()
    path = put(tmp_path, maker)
    whole = maker.whole()
    Path(path).write_bytes(damage.flip(whole, (bad.offset + 50) * 8))
    real = views.examine
    cases: list[str] = []

    def looked(*arguments: Any, **more: Any) -> Any:
        found = real(*arguments, **more)
        cases.append(found.case)
        with open(path, "r+b") as file:
            file.write(whole)
        return found

    monkeypatch.setattr(views, "examine", looked)
    with SessionView.open(path) as view:
        assert view.report.case == "A"
        assert [entry.id for entry in view.iter_entries()] == ["a", "b"]
    assert cases == ["C", "A"]


def test_frames_that_make_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that no index takes are damage of the journal, and its file is let go."""
    from treering.engine.session import view as views

    def refused(*_: object, **__: object) -> Any:
        raise IndexFault(":memory:", "rows out of order")

    path = put(tmp_path, started())
    monkeypatch.setattr(views, "memory_index", refused)
    with pytest.raises(Damaged, match="make no session: rows out of order"):
        SessionView.open(path)


def test_frames_that_go_away_are_no_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole when the journal was scanned, gone a moment later: the index is asked instead."""
    from treering.engine.session import resuming

    maker = started()
    maker.entry("a")
    maker.frame(build.LEAF, build.compact({"leaf": "a"}))
    path = put(tmp_path, maker)
    monkeypatch.setattr(resuming, "frame_at", lambda source, salt, offset: None)
    assert position_without_an_index(path, monkeypatch) == "a"
