"""`session delete`, `session undelete`, `session archive`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tools_helpers import fine, id_of, new_session, run

from treering.engine.errors import StorageError
from treering.engine.home import Store
from treering.engine.session.deleting import list_deleted, purge_deleted
from treering.engine.session.session import Session


def names(home: Path) -> set[str]:
    """Ids that the list shows."""
    return {row["id"] for row in fine("session", "list", "--json", home=home).json}


def test_delete_and_undelete(home: Path) -> None:
    """Delete prints the id, undelete the path; the hint between them can be pasted."""
    path = new_session(home, "hello", session_id="abc-1")
    new_session(home, "other", session_id="xyz-2")
    ran = fine("session", "delete", "abc", "--yes", home=home)
    assert ran.out == "abc-1\n"
    assert names(home) == {"xyz-2"}
    assert not Path(path).exists()
    hint = ran.stderr.partition("`")[2].partition("`")[0]
    assert hint == f"treering session undelete {path}"
    assert fine(*hint.split()[1:]).out == f"{path}\n"
    assert names(home) == {"abc-1", "xyz-2"}
    assert "hello" in fine("session", "show", "abc-1", home=home).out


def test_json_reports(home: Path) -> None:
    """The same for programs."""
    path = new_session(home, "hello", session_id="s1")
    fine("session", "name", "s1", "Greetings", home=home)
    deleted = fine("session", "delete", "s1", "--yes", "--json", home=home).json
    assert deleted["id"] == "s1"
    assert deleted["name"] == "Greetings"
    assert deleted["folder"] == str(home / "session-trash" / "s1")
    assert deleted["deleted"].endswith("Z")
    assert (deleted["purged"], deleted["underWay"]) == (None, None)
    assert fine("session", "undelete", "--json", home=home).json == [deleted]
    back = fine("session", "undelete", "s1", "--json", home=home).json
    assert back == {"path": path, "id": "s1"}


def test_the_list_of_deleted_sessions(home: Path) -> None:
    """Without SEL; names are escaped, what was purged says so, an unreadable time is no trouble."""
    ran = fine("session", "undelete", home=home)
    assert not ran.stdout
    assert "nothing was deleted" in ran.stderr
    for name in ("s1", "s2", "s3"):
        new_session(home, session_id=name)
        fine("session", "name", name, f"\x1b[31m{name} name", home=home)
        fine("session", "delete", name, "--yes", home=home)
    purge_deleted(Store.at(str(home)), "s2")
    tombstone = home / "session-trash" / "s3" / "tombstone.json"
    said = json.loads(tombstone.read_text())
    tombstone.write_text(json.dumps({**said, "deletedMs": 10**30}))
    assert fine("session", "undelete", home=home).code == 0
    tombstone.write_text(json.dumps({**said, "deletedMs": 10**17}))
    lines = fine("session", "undelete", home=home).lines
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    assert "\\x1b[31ms1 name" in next(line for line in lines if line.startswith("s1 "))
    assert "[purged]" in next(line for line in lines if line.startswith("s2 "))


def test_what_undelete_takes(home: Path) -> None:
    """Id, beginning, end, name, path, path of another store; ambiguity is told."""
    for name in ("ab-1", "ab-2"):
        path = new_session(home, session_id=name)
        fine("session", "name", name, f"called {name}", home=home)
        fine("session", "delete", path, "--yes", home=home)
    ran = run("session", "undelete", "ab", home=home)
    assert ran.code == 1
    assert "ab-1" in ran.stderr
    assert "ab-2" in ran.stderr
    for selector in ("ab-1", "1", "called ab-1", "ab-1.jsonl"):
        assert id_of(fine("session", "undelete", selector, home=home).out.strip()) == "ab-1"
        fine("session", "delete", "ab-1", "--yes", home=home)
    assert fine("session", "undelete", path).out == f"{path}\n"  # of no default store
    for selector in ("", "nothing", "../ab-1.jsonl", "x\0y"):
        ran = run("session", "undelete", selector, home=home)
        assert ran.code == 1, selector
        assert "Traceback" not in ran.stderr
    hint = run("session", "undelete", "nothing", home=home).stderr
    assert f"`treering session undelete --home {home}`" in hint


def test_nobody_is_deleted_without_a_word(home: Path) -> None:
    """Where there is nobody to ask, --yes is needed; a terminal is asked, and may say no."""
    path = new_session(home, "hello", session_id="s1")
    ran = run("session", "delete", "s1", home=home)
    assert ran.code == 2
    assert "--yes" in ran.stderr
    assert Path(path).exists()
    for answer, code, there in ((b"n\n", 1, True), (b"\x04", 130, True), (b"y\n", 0, False)):
        done = at_a_terminal(answer, "session", "delete", "s1", "--home", str(home))
        assert done.returncode == code, done
        assert b"Delete the session s1?" in done.stderr
        assert Path(path).exists() == there


def at_a_terminal(answer: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A command whose standard input is a terminal, at which somebody types this."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        return subprocess.run(
            [sys.executable, "-m", "treering.tools", *words],
            stdin=theirs,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_refusals(home: Path, tmp_path: Path) -> None:
    """In use: 3. No such session, a foreign file, a link: 1. Nothing is touched."""
    path = new_session(home, session_id="s1")
    with Session.open(path):
        ran = run("session", "delete", "s1", "--yes", home=home)
        assert ran.code == 3
        assert f"process {os.getpid()}" in ran.stderr
        assert run("session", "archive", "s1", home=home).code == 3
    foreign = home / "sessions" / "foreign.jsonl"
    foreign.write_text('{"type":"session"}\n')
    (tmp_path / "link.jsonl").symlink_to(path)
    for selector in ("foreign", "nothing", str(tmp_path / "link.jsonl"), "s1x"):
        ran = run("session", "delete", selector, "--yes", home=home)
        assert ran.code == 1, selector
        assert ran.stderr.count("\n") == 1
    assert foreign.exists()
    assert Path(path).exists()
    assert not (home / "session-trash").exists()


def test_a_damaged_session_can_be_deleted(home: Path) -> None:
    """It comes back as damaged as it was."""
    path = Path(new_session(home, "one", "two", "three", session_id="s1"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    fine("session", "delete", "s1", "--yes", home=home)
    fine("session", "undelete", "s1", home=home)
    assert path.read_bytes() == data


def test_an_interrupted_deletion_is_finished_by_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whatever session; what cannot be finished is told and stops nothing."""
    from treering.engine.session import deleting

    for name in ("s1", "s2", "s3"):
        new_session(home, session_id=name)

    def fails(*_: object) -> None:
        raise StorageError("no index may be removed")

    with monkeypatch.context() as patched:
        patched.setattr(deleting, "_remove_index", fails)
        for name in ("s1", "s2"):
            assert run("session", "delete", name, "--yes", home=home).code == 3
        assert names(home) == {"s3"}
        listed = fine("session", "undelete", home=home).out
        assert listed.count("[deleting]") == 2
        ran = run("session", "delete", "s3", "--yes", home=home)
        assert ran.code == 3
        assert ran.stderr.count("is not finished") == 2
    assert fine("session", "delete", "s1", "--yes", home=home).out == "s1\n"
    assert {one.id for one in list_deleted(Store.at(str(home))) if one.under_way is None} == {
        "s1",
        "s2",
        "s3",
    }
    assert run("session", "delete", "s1", "--yes", home=home).code == 1


def test_archive_and_back(home: Path) -> None:
    """Prints the new entry's id; nothing where nothing is to be done."""
    new_session(home, "x", session_id="s1")
    entry_id = fine("session", "archive", "s1", home=home).out.strip()
    assert fine("session", "show", "s1", "--entry", entry_id, home=home).json["state"] == {
        "status": "archived"
    }
    again = fine("session", "archive", "s1", home=home)
    assert not again.stdout
    assert "already" in again.stderr
    back = fine("session", "archive", "s1", "--undo", "--json", home=home).json
    assert back["session"] == "s1"
    assert back["archived"] is False
    assert back["entry"] not in (None, entry_id)
    again = fine("session", "archive", "s1", "--undo", home=home)
    assert "not archived" in again.stderr
