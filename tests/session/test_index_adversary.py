"""Promise 6: whatever happens to the index files, answers are those without an index, and appends
go on. What can be put in their place is tried by ``treering.fuzz.adversary``; here is the rest."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from session_helpers import (
    answers,
    custom,
    drop_index,
    index_differences,
    index_file,
    index_folder,
    new,
    read_bytes,
    user,
    view_answers,
    write_bytes,
)

from treering.engine import AcknowledgedDataLost, Session, SessionView
from treering.fuzz.adversary.attacks import ATTACKS
from treering.fuzz.adversary.scene import Target
from treering.index import IndexFault, SessionIndex, files


def filled(tmp_path: Path, **more: Any) -> str:
    """A closed session with a branch, labels, a compaction, a request, and a moved position."""
    with new(tmp_path, **more) as session:
        first = session.append(user("one", "a"))
        session.append_many([user(f"text {i}", f"m{i}") for i in range(30)])
        session.set_label("m3", "three")
        session.set_name("a name")
        session.append({"type": "compaction", "summary": "s", "firstKeptEntryId": "m5"})
        session.append({"type": "request", "id": "q1", "request": {"n": 1}})
        session.branch_to("m10")
        with session.batch() as batch:
            batch.append(custom("b1"))
            batch.append(custom("b2"))
        session.branch_to(first)
    return session.path


@pytest.mark.parametrize("what", ["main", "-wal", "-shm", "folder"])
def test_F112_files_deleted_between_operations(tmp_path: Path, what: str) -> None:
    """-shm, -wal, the file or the folder vanish between any two operations: history is complete."""
    path = filled(tmp_path)
    before = len(view_answers(path)["entries"])
    session = Session.open(path)
    for number in range(12):
        session.append(custom(f"n{number}"))
        if number % 3 == 0:
            if what == "folder":
                drop_index(path)
            else:
                for name in os.listdir(index_folder(path)):
                    tail = "sqlite3" if what == "main" else what
                    if name.endswith(tail):
                        os.unlink(os.path.join(index_folder(path), name))
        if number % 2:
            assert [e.id for e in session.branch(f"n{number}")][-2:] == [
                f"n{number - 1}",
                f"n{number}",
            ]
    session.close()
    right = view_answers(path)
    assert len(right["entries"]) == before + 12
    with Session.open(path) as again:
        assert answers(again) == right
    with Session.open(path) as again:
        assert again.index_faults == []
    assert index_differences(path) == []


def test_wal_overwritten_while_open(tmp_path: Path) -> None:
    """Garbage inside the -wal of an open index gives no wrong answer and no failed append."""
    path = filled(tmp_path)
    session = Session.open(path)
    session.append_many([user(f"w{i}", f"w{i}") for i in range(50)])
    session.read("w3")
    wal = index_file(path) + "-wal"
    size = os.path.getsize(wal)
    with open(wal, "r+b") as file:
        file.seek(32)
        file.write(random.Random(4).randbytes(max(size - 32, 4096)))
    session.append_many([user(f"y{i}", f"y{i}") for i in range(50)])
    assert answers(session) == view_answers(path)
    session.close()
    with Session.open(path) as again:
        assert answers(again) == view_answers(path)


def test_F105_older_index_with_newer_journal(tmp_path: Path) -> None:
    """An index put back from 100 appends ago catches up: same answers, nothing reported as lost."""
    path = filled(tmp_path)
    old = read_bytes(index_file(path))
    with Session.open(path) as session:
        session.append_many([user(f"later {i}", f"l{i}") for i in range(100)])
        session.branch_to("l50")
    write_bytes(index_file(path), old)
    right = view_answers(path)
    with Session.open(path) as session:
        assert session.report is not None
        assert session.report.case == "A"
        assert answers(session) == right
    assert index_differences(path) == []


@pytest.mark.parametrize("entries", [1, 5, 100])
def test_F105_newer_index_with_older_journal(tmp_path: Path, entries: int) -> None:
    """A journal put back from before the last appends is case D: acknowledged data is gone. Opening
    for writing refuses, with the report, and changes nothing; a view shows what is there."""
    path = filled(tmp_path)
    old = read_bytes(path)
    right = view_answers(path)
    with Session.open(path) as session:
        session.append_many([user(f"later {i}", f"l{i}") for i in range(entries)])
    write_bytes(path, old)
    with pytest.raises(AcknowledgedDataLost) as caught:
        Session.open(path)
    assert caught.value.report is not None
    assert caught.value.report.case == "D"
    assert "accept-loss" in str(caught.value)
    assert read_bytes(path) == old
    with SessionView.open(path) as view:
        assert view.report.case == "D"
        assert answers(view) == right


def test_a_watermark_survives_set_aside_never_falsely(tmp_path: Path) -> None:
    """An index that is set aside and rebuilt never causes a false case D: 20 opens, each with the
    index spoiled in some way and a torn tail on the journal, all open."""
    path = filled(tmp_path)
    draw = random.Random(11)
    for number in range(20):
        with Session.open(path) as session:
            session.append(custom(f"t{number}"))
        size = os.path.getsize(path)
        with open(path, "ab") as file:
            file.write(draw.randbytes(draw.randrange(1, 500)))
        name = draw.choice(["empty", "half", "text", "many-flips", "missing"])
        ATTACKS[name].do(Target(index_file(path), str(tmp_path)))
        with Session.open(path) as session:
            assert session.report is not None
            assert session.report.case == "E"
            assert session.report.bad_offset == size
            assert session.has(f"t{number}")


LOCKER = """
import sys, time, apsw
db = apsw.Connection(sys.argv[1]); db.set_busy_timeout(3000)
for line in sys.argv[2].split(";"): db.execute(line)
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    "how",
    [
        "BEGIN IMMEDIATE;UPDATE state SET entries=entries",
        "PRAGMA locking_mode=EXCLUSIVE;BEGIN EXCLUSIVE;UPDATE state SET entries=entries",
    ],
    ids=["write-lock", "exclusive"],
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_index_locked_by_another_process(tmp_path: Path, how: str, when: str) -> None:
    """Another process holds the index's lock for seconds: no append takes 0.2 s, reads are
    right."""
    path = filled(tmp_path)
    session = Session.open(path) if when == "while" else None
    if session is not None and "EXCLUSIVE" in how:
        # An open WAL database cannot be had exclusively; the plain write lock is the other case.
        session.close()
        session = None
    locker = subprocess.Popen(
        [sys.executable, "-c", LOCKER, index_file(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert locker.stdin is not None
    assert locker.stdout is not None
    try:
        assert locker.stdout.readline() == "locked\n"
        if session is None:
            session = Session.open(path)
        slowest = 0.0
        for number in range(25):
            start = time.monotonic()
            session.append(custom(data=number))
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.03)
        assert slowest < 0.2
        assert answers(session) == view_answers(path)
    finally:
        locker.stdin.close()
        locker.wait(10)
        locker.stdout.close()
    session.close()
    right = view_answers(path)
    with Session.open(path) as again:
        assert answers(again) == right
    with Session.open(path) as again:
        assert again.index_faults == []
    assert index_differences(path) == []


@pytest.mark.parametrize("full", [True, False])
def test_disk_full_for_the_index_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Rows cannot be added (disk full, or an I/O error): appends and answers go on; when there is
    room again the index is whole at the next open."""
    path = filled(tmp_path)
    apply = SessionIndex.apply

    def no_room(self: SessionIndex, *args: Any, **more: Any) -> None:
        if self.file != ":memory:":
            raise IndexFault(self.file, "no room", full=full)
        apply(self, *args, **more)

    monkeypatch.setattr(SessionIndex, "apply", no_room)
    for attempt in range(2):
        with Session.open(path) as session:
            session.append_many([custom(f"f{attempt}-{i}") for i in range(10)])
            assert answers(session) == view_answers(path)
            session.append(custom(f"g{attempt}"))
    monkeypatch.undo()
    right = view_answers(path)
    with Session.open(path) as session:
        assert answers(session) == right
    with Session.open(path) as session:
        assert session.index_faults == []
    assert index_differences(path) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("where", ["mkdir", "open", "listdir", "rename"])
def test_the_index_folder_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, where: str
) -> None:
    """Any error of the system on the index folder stays inside: reads and appends go on."""
    path = filled(tmp_path)
    right = view_answers(path)
    drop_index(path)

    def refuse(*args: Any, **more: Any) -> Any:
        raise OSError(error, os.strerror(error))

    class Refusing:
        """The os module, as the index package sees it."""

        def __getattr__(self, name: str) -> Any:
            return refuse if name == where else getattr(os, name)

    from treering.index import schema

    monkeypatch.setattr(files, "os", Refusing())
    monkeypatch.setattr(schema, "os", Refusing())
    with Session.open(path) as session:
        assert answers(session) == right
        session.append(custom("more"))
        assert session.has("more")
        time.sleep(0.05)
    monkeypatch.undo()
    with Session.open(path) as session:
        assert session.has("more")


def test_memory_index_is_not_for_ever(tmp_path: Path) -> None:
    """An owner that fell back to memory gives its journal a file index again at a later open, and
    generated ids stay unique in between."""
    path = filled(tmp_path)
    shutil.rmtree(index_folder(path))
    write_bytes(index_folder(path), b"")
    with Session.open(path) as session:
        ids = session.append_many([custom() for _ in range(300)])
        assert len(set(ids)) == 300
    os.unlink(index_folder(path))
    with Session.open(path) as session:
        assert answers(session) == view_answers(path)
        assert session.index_faults == []
    assert index_differences(path) == []


def test_leaf_without_an_index_is_the_leaf_with_one(tmp_path: Path) -> None:
    """Above a MiB the leaf is found from the last frames when there is no index: the same leaf,
    also when the last frames are labels, requests, LEAF frames, batches, or twins."""
    session = new(tmp_path, compression=False)
    session.append(user("x" * 1_200_000, "big"))
    path = session.path

    def compare() -> None:
        with Session.open(path) as with_index:
            right = (with_index.leaf_id, [e.id for e in with_index.branch()])
        drop_index(path)
        with Session.open(path) as without:
            assert (without.leaf_id, [e.id for e in without.branch()]) == right
        assert view_answers(path)["leaf"] == right[0]

    session.close()
    compare()
    for step in (
        lambda s: s.append({"type": "request", "id": "q", "request": 1}),
        lambda s: s.set_label("big", "L"),
        lambda s: s.branch_to(None),
        lambda s: s.append_many([{"type": "request", "request": i} for i in range(40)]),
        lambda s: s.append(custom("c")),
        lambda s: s.branch_to("big"),
        lambda s: s.branch_to("c"),
    ):
        with Session.open(path) as session:
            step(session)
        compare()
    with Session.open(path) as session, session.batch() as batch:
        batch.append(custom("in-batch"))
        batch.append({"type": "request", "request": 2})
    compare()


def test_labels_of_names_in_any_order_equal_a_rebuild(tmp_path: Path) -> None:
    """Rows applied a few at a time by background passes equal a rebuild."""
    draw = random.Random(3)
    with new(tmp_path) as session:
        ids: list[str] = []
        for number in range(200):
            ids.append(session.append(custom(f"e{number}")))
            if number % 7 == 0:
                session.set_label(draw.choice(ids), draw.choice(["a", "b", None]))
            if number % 5 == 0:
                session.branch_to(draw.choice(ids))
            if number % 11 == 0:
                session.read(draw.choice(ids))
    assert index_differences(session.path) == []
