"""Lines of the session's newer modules that no scenario takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from manager_helpers import assistant, on_loop, user
from session_helpers import new

from treering.engine import Invalid, NotFound, Session
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.session.capture import Capture, ReadLimits
from treering.engine.session.manager import SessionManager


def test_the_verbs_of_a_session(tmp_path: Path) -> None:
    """Scripts have what tasks have: attributions and summaries, with the same answers."""
    with new(tmp_path) as session:
        first = session.append_message(user())
        usage = {"input": 5, "totalTokens": 5, "cost": {"total": 1}}
        targets = [session.append_message(assistant(usage=usage)) for _ in range(2)]
        for target in (*targets, targets[0]):
            session.append_child_usage_attribution(target, {"input": 1}, origin="spawn_task")
        given = session.append_child_usage_attribution(targets[1], {"input": 1}, {"input": 99})
        assert b'"input":99' in session.read(given).raw
        last = session.append_child_usage_attribution(targets[0], {"input": 1})
        assert b'"input":8' in session.read(last).raw
        with pytest.raises(NotFound):
            session.append_child_usage_attribution(first, {"input": 1})
        summary = session.branch_with_summary(first, "left")
        assert session.read(summary).parent_id == first
        assert session.durability == "full"
        assert session.poisoned is None


@pytest.mark.parametrize("limit", [0, -1, True, "5"])
def test_limits_that_are_none(tmp_path: Path, limit: object) -> None:
    """A limit is a positive whole number, or None."""
    with new(tmp_path) as session:
        session.append_message(user())
        capture = Capture.current(session, session_file=session.path, session_id=session.id)
        with pytest.raises(Invalid):
            capture.entries(ReadLimits(limit))  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            capture.page(limit=limit)  # type: ignore[arg-type]


def test_labels_of_a_capture_whatever_comes_later(tmp_path: Path) -> None:
    """Set, cleared and set again before and after; unknown entries have none."""
    with new(tmp_path) as session:
        ids = [session.append_message(user(str(n))) for n in range(3)]
        session.set_label(ids[0], "one")
        session.set_label(ids[1], "two")
        session.set_label(ids[1], None)
        capture = Capture.current(session, session_file=session.path, session_id=session.id)
        assert [capture.label(entry_id) for entry_id in ids] == ["one", None, None]
        for entry_id in ids:
            session.set_label(entry_id, "later")
        late = session.append_message(user("late"))
        assert [capture.label(entry_id) for entry_id in ids] == ["one", None, None]
        assert capture.label(late) is None
        assert capture.get(late) is None
        assert [entry.id for entry in capture.iter_entries()][:3] == ids
        with pytest.raises(NotFound):
            capture.context(late, None, None)
        with pytest.raises(NotFound):
            capture.branch(late)
        with pytest.raises(NotFound):
            capture.retention(late)
        assert [one.id for one in capture.load(capture.path_rows(ids[2]))] == ids


def test_a_capture_before_any_entry(tmp_path: Path) -> None:
    """Nothing to page, to search or to walk."""
    with new(tmp_path) as session:
        capture = Capture.current(session, session_file=None, session_id=session.id)
        session.append_message(user())
        assert capture.leaf() is None
        assert capture.page(branch=True) == []
        assert capture.search("hi", branch=True) == []
        assert capture.search("hi") == []
        assert capture.branch(None) == []
        assert not capture.source.persistent


def test_files_in_memory_grow_and_shrink_as_on_a_disk() -> None:
    """Gaps are zeros, cuts stay cut, names are those of one folder."""
    disk = MemoryDisk()
    disk.make_folder("/a")
    file = disk.create("/a/f")
    file.pwrite(b"x", 3)
    assert file.pread(10, 0) == b"\0\0\0x"
    file.truncate(6)
    assert file.pread(10, 3) == b"x\0\0"
    file.truncate(1)
    file.fsync()
    file.fdatasync()
    disk.sync_folder("/a")
    found = disk.stat("/a/f")
    assert (found.size, found.mtime_ns, found.is_regular, found.is_folder) == (1, 0, True, False)
    assert disk.stat("/a").is_folder
    assert file.try_lock()
    assert not disk.open("/a/f").try_lock()
    file.close()
    assert disk.open("/a/f").try_lock()
    disk.link("/a/f", "/a/g")
    disk.rename("/a/g", "/a/h")
    disk.unlink("/a/f")
    assert disk.list_folder("/a") == ["h"]
    for call in (lambda: disk.open("/a"), lambda: disk.unlink("/a")):
        with pytest.raises(IsADirectoryError):
            call()
    with pytest.raises(NotADirectoryError):
        disk.create("/a/h/i")
    with pytest.raises(FileExistsError):
        disk.create("/a/h")


@on_loop
async def test_a_lost_header_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    """A view of a damaged session works without it."""
    with Session.create("/w", home_dir=str(tmp_path / "home")) as session:
        header = session.header_bytes()
        session.append_message(user())
        path = session.path
    with open(path, "r+b") as file:
        data = file.read()
        file.seek(data.index(header) + 3)
        file.write(b"#")
    async with await SessionManager.open_read_only(path) as view:
        with pytest.raises(Exception, match="header"):
            view.get_header()
        assert view.get_session_name() is None
