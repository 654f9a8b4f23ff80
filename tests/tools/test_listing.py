"""`session list`: every file is a row, whatever it holds."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tools_helpers import fine, message, new_session, run

from treering.engine.session.session import Session

KEYS = [
    "id",
    "path",
    "status",
    "reason",
    "name",
    "firstMessage",
    "messages",
    "entries",
    "cwd",
    "created",
    "parentSession",
    "lastActivityMs",
    "lastActivity",
    "state",
    "rlmDepth",
    "agentStatus",
    "usage",
]


def test_bad_sessions_hide_nobody_f15(home: Path) -> None:
    """F15: of 50 sessions one is random bytes, one a folder, one unreadable: 50 rows, 3 flagged,
    and the others still open."""
    folder = home / "sessions"
    one = new_session(home, "a message", session_id="s00")
    for number in range(1, 47):
        shutil.copyfile(one, folder / f"s{number:02d}.jsonl")
    (folder / "random.jsonl").write_bytes(random.Random(15).randbytes(20_000))
    (folder / "folder.jsonl").mkdir()
    unreadable = folder / "unreadable.jsonl"
    unreadable.write_bytes((folder / "s00.jsonl").read_bytes())
    unreadable.chmod(0)
    rows = fine("session", "list", "--json", home=home).json
    assert len(rows) == 50
    flagged = {row["id"]: row["status"] for row in rows if row["status"] != "ok"}
    assert flagged.pop("random") == "foreign"
    assert flagged.pop("folder") == "foreign"
    if os.geteuid() == 0:
        pytest.skip("root reads files of mode 000: the unreadable one was listed as a session")
    assert flagged == {"unreadable": "unreadable"}


def test_kinds_of_strangers(home: Path) -> None:
    """Empty files, other formats, FIFOs, dangling links, odd names: each a row with its reason."""
    new_session(home, "hello", session_id="good")
    folder = home / "sessions"
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "plain.jsonl").write_text('{"type":"session","version":3,"id":"x"}\n')
    (folder / "frames.jsonl").write_text('{"journalFrame":1,"sequence":0}\n')
    os.mkfifo(folder / "fifo.jsonl")
    (folder / "dangling.jsonl").symlink_to("/nowhere")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "-bad name\n.jsonl").write_bytes(b"")
    (folder / "notes.txt").write_text("not listed")
    (folder / ".hidden.new").write_text("not listed")
    rows = {row["id"]: row for row in fine("session", "list", "--json", home=home).json}
    assert len(rows) == 8
    assert rows["good"]["status"] == "ok"
    assert "empty" in rows["empty"]["reason"]
    assert "session import" in rows["plain"]["reason"]
    assert "JSON frames" in rows["frames"]["reason"]
    assert "session import" in rows["frames"]["reason"]
    assert "FIFO" in rows["fifo"]["reason"] or "plain file" in rows["fifo"]["reason"]
    for name in ("dangling", "loop", "-bad name\n"):
        assert rows[name]["status"] != "ok"
        assert rows[name]["reason"]
    out = fine("session", "list", home=home)
    assert len(out.lines) == 9
    assert "hello" in out.out


def test_damaged_sessions_are_rows(home: Path) -> None:
    """A damaged session is listed with what can be read of it, and its case."""
    path = Path(new_session(home, "first words", "more words", session_id="d"))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"more words")
    data[at] ^= 1
    path.write_bytes(data)
    (row,) = fine("session", "list", "--json", home=home).json
    assert row["status"] == "damaged"
    assert "case C" in row["reason"]
    assert row["firstMessage"] == "first words"
    assert "[damaged]" in fine("session", "list", home=home).out


def test_keys_and_order(home: Path) -> None:
    """Stable members; newest activity first; activity is the last user or assistant message."""
    times = {"old": "2024-01-01T00:00:00.000Z", "new": "2025-01-01T00:00:00.000Z"}
    for name, time in times.items():
        with Session.create("/w", home_dir=str(home), session_id=name) as session:
            session.append(message("hi") | {"timestamp": time})
            session.append({"type": "custom", "timestamp": "2029-01-01T00:00:00.000Z"})
    rows = fine("session", "list", "--json", home=home).json
    assert [row["id"] for row in rows] == ["new", "old"]
    assert [row["lastActivity"] for row in rows] == [times["new"], times["old"]]
    assert list(rows[0]) == KEYS


def test_no_sessions(home: Path) -> None:
    """An empty store is an empty list, not an error; a store that is a file is one line."""
    assert fine("session", "list", "--json", home=home).json == []
    assert "session new" in fine("session", "list", home=home).stderr
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file")
    ran = run("session", "list", home=home)
    assert ran.code == 3
    assert ran.stderr.count("\n") == 1


def test_pages(home: Path) -> None:
    """With --limit, a page: children below their parents, totals, and the cursors around it."""
    times = [f"2024-01-0{day}T00:00:00.000Z" for day in range(1, 6)]
    for number, time in enumerate(times):
        with Session.create("/w", home_dir=str(home), session_id=f"s{number}") as session:
            session.append(message("hi") | {"timestamp": time})
    words = ["session", "list", "--limit", "2"]
    page = fine(*words, "--json", home=home).json
    assert [row["id"] for row in page["sessions"]] == ["s4", "s3"]
    assert list(page["sessions"][0]) == [*KEYS, "context", "clipped"]
    assert (page["total"], page["position"], page["previous"]) == (5, 0, None)
    again = fine(*words, "--cursor", page["next"], "--json", home=home).json
    assert [row["id"] for row in again["sessions"]] == ["s2", "s1"]
    back = fine(*words, "--cursor", again["previous"], home=home)
    assert [line.split()[0] for line in back.lines[1:]] == ["s4", "s3"]
    assert f"--cursor {page['next']}" in back.stderr
    assert "(5 in all)" in back.stderr
    other = fine(*words, "--search", "hi", "--cursor", page["next"], home=home)
    assert "first page" in other.stderr
    for wrong in (["--limit", "0"], ["--cursor", "x"], ["--search", "re:("]):
        assert run("session", "list", *wrong, home=home).code == 1


def test_lists_that_select(home: Path) -> None:
    """Search, names, damage and working directory."""
    new_session(home, "apples", session_id="a")
    new_session(home, "pears", session_id="b")
    fine("session", "name", "b", "Fruit", home=home)
    (home / "sessions" / "bad.jsonl").write_bytes(b"x")

    def ids(*words: str) -> list[str]:
        page = fine("session", "list", *words, "--json", home=home).json
        return [row["id"] for row in page["sessions"]]

    assert ids("--search", "apples") == ["a"]
    assert ids("--search", '"fruit"') == ["b"]
    assert ids("--named") == ["b"]
    assert ids("--damaged") == ["bad"]
    assert ids("--cwd", "/nowhere") == []
    assert "session list" in fine("session", "list", "--search", "nothing", home=home).stderr
