"""Kinds of faults of the index and of whole stores that no other test is named after."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from bars_helpers import SOURCE, command, custom
from session_helpers import answers, crash, drop_index, index_differences, index_file, view_answers
from support import damage

from treering.engine import Session, SessionView
from treering.fuzz import oracle
from treering.index import IndexFault, SessionIndex, schema
from treering.tools.entry import main
from treering.tools.fsck import check_session


def filled(home: Path, name: str, count: int = 20) -> str:
    with Session.create(cwd="/w", home_dir=str(home), session_id=name) as session:
        for number in range(count):
            session.append(custom(f"e{number}", data="x" * 50))
        session.set_label("e3", "three")
    return session.path


def change_rows(path: str, *statements: str) -> None:
    """Change rows of an index file by a connection that keeps its page checksums right."""
    db = schema.connect(path, readonly=False)
    for statement in statements:
        db.execute(statement)
    db.close()


def fsck(home: Path, name: str) -> Any:
    return check_session(str(home / "sessions" / f"{name}.jsonl"), with_index=True)


def test_F51_rows_that_are_missing_are_found_and_come_back(home: Path) -> None:
    """Half of the rows of an index are deleted: the check says so, reindex brings them back, and
    nothing of the journal is touched."""
    path = filled(home, "s")
    journal = Path(path).read_bytes()
    change_rows(index_file(path), "DELETE FROM entry WHERE seq % 2 = 0")
    checked = fsck(home, "s")
    assert not checked.ok
    assert checked.index.state in ("differs", "unusable")
    assert any(finding.next == f"treering reindex {path}" for finding in checked.findings)
    assert main(["reindex", "s", "--home", str(home)]) == 0
    assert fsck(home, "s").ok
    assert index_differences(path) == []
    assert Path(path).read_bytes() == journal
    with Session.open(path) as session:
        assert answers(session) == view_answers(path)


def test_F51_the_newest_rows_are_missing(home: Path) -> None:
    """Rows at the end are deleted and the position with them: the next open fills them in."""
    path = filled(home, "s")
    old = Path(index_file(path)).read_bytes()
    inode = os.stat(index_file(path)).st_ino
    with Session.open(path) as session:
        session.append_many([custom(f"l{number}") for number in range(30)])
    Path(index_file(path)).write_bytes(old)
    assert os.stat(index_file(path)).st_ino == inode
    assert fsck(home, "s").index.state == "behind"
    with Session.open(path) as session:
        assert session.has("l29")
        assert answers(session) == view_answers(path)
    assert fsck(home, "s").index.state == "equal"


def test_F51_a_journal_under_a_second_name(home: Path) -> None:
    """A copy of a journal under another name, with and without a copy of its index: two sessions of
    the same entries, both listed, each with an index of its own; appends to one never reach the
    other; the copied index is used or replaced, and never gives a wrong answer."""
    path = filled(home, "one")
    for name in ("two", "three"):
        shutil.copy(path, home / "sessions" / f"{name}.jsonl")
    shutil.copy(index_file(path), home / "session-index" / "three.1.sqlite3")
    right = view_answers(path)
    for name in ("two", "three"):
        other = str(home / "sessions" / f"{name}.jsonl")
        with Session.open(other) as session:
            assert answers(session) == right
            session.append(custom(f"only-{name}"))
        with Session.open(path) as session:
            assert answers(session) == right
            assert not session.has(f"only-{name}")
        assert index_differences(other) == []
        assert fsck(home, name).ok
    assert fsck(home, "one").ok
    assert sorted(p.stem for p in (home / "sessions").glob("*.jsonl")) == ["one", "three", "two"]


HAMMER = """
import sys, time, apsw
from treering.index import SessionIndex
path, seconds, mark = sys.argv[1], float(sys.argv[2]), sys.argv[3].encode()[:1] * 64
writes = 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    with SessionIndex.open(path, busy_timeout_ms=20_000) as index:
        for _ in range(40):
            assert index.position() is not None
            index.counts()
            index.set_watermark(mark)
            writes += 1
        try:
            index._db.wal_checkpoint(mode=0)
        except apsw.BusyError:
            pass  # somebody else is at it
print(writes)
"""


def hammer(path: str, processes: int, seconds: float) -> list[int]:
    """Writes of several processes that read, write and checkpoint one index."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, path, str(seconds), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    counts = []
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
        counts.append(int(out))
    return counts


def test_F57_an_old_sqlite_stops_no_append(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the floor no index file is opened, changed or moved: sessions answer and append without
    one, and say why; with a newer library the index is taken up again."""
    path = filled(home, "s")
    right = view_answers(path)
    index = index_file(path)
    before = Path(index).read_bytes()
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(IndexFault, match=r"3\.51\.3"):
        SessionIndex.open(index)
    assert view_answers(path) == right
    with Session.open(path) as session:
        assert answers(session) == right
        session.append(custom("old"))
        assert session.read("old").id == "old"
        assert any("3.51.3" in fault for fault in session.index_faults)
    assert os.listdir(os.path.dirname(index)) == [os.path.basename(index)]
    assert Path(index).read_bytes() == before
    monkeypatch.undo()
    with Session.open(path) as session:
        assert answers(session) == view_answers(path)
        assert session.index_faults == []
    assert index_differences(path) == []


def test_F57_F117_processes_that_read_write_and_checkpoint(home: Path) -> None:
    """Four processes read, then write, then checkpoint one index for seconds: nobody is told that it
    is busy (a write never begins as a read), and the database is whole."""
    path = filled(home, "s", 200)
    index = index_file(path)
    counts = hammer(index, 4, 2.0)
    assert min(counts) > 0
    db = schema.connect(index, readonly=False)
    assert db.pragma("integrity_check") == "ok"
    db.close()
    assert index_differences(path) == []


@pytest.mark.slow
def test_F57_F117_for_longer(home: Path) -> None:
    """The same for TREERING_HAMMER_S seconds (default 6)."""
    path = filled(home, "s", 2000)
    seconds = float(os.environ.get("TREERING_HAMMER_S", "6"))
    assert min(hammer(index_file(path), 4, seconds)) > 0
    assert index_differences(path) == []


def test_F117_an_owner_beside_readers_of_its_index(home: Path) -> None:
    """An owner reads and appends in turn while another process looks into its index all the time:
    no error reaches it, and no append takes a second."""
    path = filled(home, "s")
    looker = (
        "import sys, time, apsw\n"
        "print('go', flush=True)\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end:\n"
        "    db = apsw.Connection(sys.argv[1]); db.set_busy_timeout(50)\n"
        "    try:\n"
        "        with db:\n"
        "            db.execute('SELECT count(*) FROM entry').fetchall(); time.sleep(0.02)\n"
        "    except apsw.BusyError: pass\n"
        "    db.close()\n"
    )
    with Session.open(path) as session:
        session.counts()
        with subprocess.Popen(
            [sys.executable, "-c", looker, index_file(path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"go\n"
            number = 0
            while process.poll() is None:
                last = session.append(custom(f"n{number}"))
                assert session.read(last).id == f"n{number}"
                assert session.counts()["entries"] == 22 + number
                number += 1
        assert session.index_faults == []
    assert number > 10
    assert index_differences(path) == []


def test_F64_bad_files_end_no_import(home: Path, tmp_path: Path) -> None:
    """60 files, of which one is truncated, one a loop of links and one a directory: 57 sessions, three
    refusals of one line that name their file, exit code 1."""
    files = []
    for number in range(60):
        file = tmp_path / f"legacy-{number:02}.jsonl"
        file.write_bytes(SOURCE)
        files.append(file)
    files[15].write_bytes(SOURCE[:-40])
    files[40].unlink()
    files[40].symlink_to(files[40].name)
    files[50].unlink()
    files[50].mkdir()
    done = command("session", "import", *files, "--home", home)
    assert done.returncode == 1
    paths = done.stdout.decode().split()
    assert len(paths) == len(set(paths)) == 57
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 3, lines
    for bad, line in zip((15, 40, 50), lines, strict=True):
        assert line.startswith("treering: error: ")
        assert files[bad].name in line
    assert "line 3" in lines[0] or "record 3" in lines[0], lines[0]
    assert sorted(paths) == sorted(map(str, (home / "sessions").glob("*.jsonl")))
    assert command("fsck", "--all", "--index", "--home", home).returncode == 0


@pytest.mark.parametrize("count", [1, 3])
def test_F78_a_piece_in_the_middle_is_missing(home: Path, count: int) -> None:
    """Frames in the middle are gone without a trace of their bytes: fsck names the gap, reading
    shows what stands before, with what stands behind on request; repair keeps both and says what is
    missing; the next append goes behind the last."""
    path = filled(home, "s", 12)
    drop_index(path)
    data = Path(path).read_bytes()
    frames = [f for f in oracle.judge(data).frames if f.kind == 2]
    first, last = frames[5], frames[5 + count - 1]
    Path(path).write_bytes(damage.remove(data, first.offset, last.end - first.offset))
    checked = fsck(home, "s")
    assert (checked.case, checked.ok) == ("C", False)
    assert any(f.offset == first.offset for f in checked.findings)
    with SessionView.open(path) as view:
        assert [e.id for e in view.iter_entries()] == [f"e{n}" for n in range(5)]
    with SessionView.open(path, beyond_damage=True) as view:
        shown = [e.id for e in view.iter_entries()][:-1]
        assert shown == [f"e{n}" for n in range(12) if not 5 <= n < 5 + count]
        assert len(view.gaps) == 1
    done = command("repair", "s", "--json", "--home", home)
    assert done.returncode == 0, done
    (gap_told,) = json.loads(done.stdout)["gaps"]
    assert (gap_told["first"], gap_told["last"]) == (first.sequence, last.sequence)
    with Session.open(path) as session:
        session.append(custom("next"))
        assert [e.id for e in session.iter_entries()][-1] == "next"
        assert [e.id for e in session.iter_entries()][:-2] == shown


@pytest.mark.parametrize("times", [1, 2, 3])
def test_F84_an_index_never_moves_on_past_what_it_failed_to_take(
    home: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Taking rows fails (fault, full disk, or an error of the database) once, twice, or three times:
    answers stay right, the position moves only with the rows, and the next pass takes them."""
    for number, fault in enumerate(
        (IndexFault("x", "injected"), IndexFault("x", "full", full=True), None)
    ):
        path = filled(home, f"s{number}")
        right = SessionIndex.apply
        left = times

        def fails(self: SessionIndex, *args: Any, fault: Any = fault, **more: Any) -> Any:
            nonlocal left
            if left > 0 and self.file != ":memory:":
                left -= 1
                if fault is None:
                    self._db.interrupt()
                    raise IndexFault(self.file, "IOError: disk I/O error")
                raise fault
            return right(self, *args, **more)

        monkeypatch.setattr(SessionIndex, "apply", fails)
        session = Session.open(path)
        for entry in range(5):
            session.append(custom(f"n{entry}"))
            assert session.read(f"n{entry}").id == f"n{entry}"
            assert session.branch()[-1].id == f"n{entry}"
        assert left < times, "nothing failed"
        crash(session)
        monkeypatch.undo()
        with Session.open(path) as session:
            assert answers(session) == view_answers(path)
            session.append(custom("after"))
        assert index_differences(path) == []


def foreign_database(folder: Path) -> Path:
    """A database of somebody else, with a -wal that holds newer pages than its file."""
    path = folder / "foreign.sqlite3"
    program = (
        "import os, sys, apsw\n"
        "db = apsw.Connection(sys.argv[1]); db.pragma('journal_mode', 'wal')\n"
        "db.pragma('wal_autocheckpoint', 0); db.execute('CREATE TABLE foreign_rows(x)')\n"
        "db.execute(\"INSERT INTO foreign_rows VALUES('of somebody else')\")\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    return path


@pytest.mark.parametrize("index_there", [True, False])
def test_F113_a_foreign_wal_beside_an_index(
    home: Path, tmp_path: Path, *, index_there: bool
) -> None:
    """The -wal and -shm of another database lie at the name of the index, or of the next one: a
    rebuild has the new content, the old sidecars are gone, and opening gives right answers."""
    path = filled(home, "s")
    right = view_answers(path)
    index = Path(index_file(path))
    foreign = foreign_database(tmp_path)
    if not index_there:
        index.unlink()
    for target in (index, index.with_name("s.2.sqlite3")):
        for tail in ("-wal", "-shm"):
            shutil.copy(f"{foreign}{tail}", f"{target}{tail}")
    for command_words in (["session", "show", "s"], ["reindex", "s"]):
        assert main([*command_words, "--home", str(home)]) == 0
    assert fsck(home, "s").index.state == "equal"
    left = b"".join(p.read_bytes() for p in index.parent.iterdir() if ".bad-" not in p.name)
    assert b"of somebody else" not in left
    with Session.open(path) as session:
        assert answers(session) == right
        session.append(custom("on"))
    assert index_differences(path) == []


def test_F114_a_copy_without_the_wal(home: Path, tmp_path: Path) -> None:
    """An owner dies with rows in the -wal that were never checkpointed; the store is copied with
    nothing but journals and main files: the copy lists and answers the newest entry."""
    path = filled(home, "s")
    program = (
        "import os, sys\nfrom treering.engine import Session\n"
        "s = Session.open(sys.argv[1])\n"
        "s.append({'type': 'message', 'id': 'newest', 'message': {'role': 'user',"
        " 'content': 'the newest text'}})\n"
        "s.counts(); os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=False)
    assert os.path.getsize(index_file(path) + "-wal") > 0
    copy = tmp_path / "copy"
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    copied = str(copy / "sessions" / "s.jsonl")
    shown = command("session", "show", "s", "--home", copy)
    assert b"the newest text" in shown.stdout, shown
    exported = command("session", "export", "s", "--home", copy)
    assert b"the newest text" in exported.stdout
    with Session.open(copied) as session:
        assert session.leaf_id == "newest"
        assert session.has("newest")
        assert answers(session) == view_answers(copied)
    assert index_differences(copied) == []
    assert command("fsck", "s", "--index", "--home", copy).returncode == 0
