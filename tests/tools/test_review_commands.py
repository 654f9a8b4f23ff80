"""What a last review found about commands: odd streams, odd folders, advice that leads nowhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tools_helpers import fine, id_of, message, new_session, picture, process, run

from treering.engine.session.session import Session

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
COMMAND = [sys.executable, "-m", "treering.tools"]


def source_file(tmp_path: Path) -> Path:
    """A small legacy file."""
    file = tmp_path / "source.jsonl"
    entry = message("hello") | {"id": "a", "parentId": None}
    file.write_text('{"type":"session","version":3,"id":"x"}\n' + json.dumps(entry) + "\n")
    return file


def with_closed(closed: str, *words: str | Path, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """A command whose standard streams are closed as a shell does it (``>&-``)."""
    script = f'exec "$@" {closed}'
    return subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        **more,
    )


# Standard streams


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_in_no_traceback(home: Path, closed: str) -> None:
    """U16: with a closed standard stream a command does its work and never shows a traceback."""
    path = new_session(home, "hello")
    for words, code in (
        (("session", "list", "--home", home), 0),
        (("--help",), 0),
        (("session", "show", "nothing", "--home", home), 1),
        (("session", "name", id_of(path), "a name", "--home", home), 0),
    ):
        done = with_closed(closed, *words)
        assert b"Traceback" not in done.stderr + done.stdout
        assert b"internal error" not in done.stderr
        assert done.returncode == code, (words, done)
    with Session.open(path) as session:
        assert session.name == "a name"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_journal_becomes_a_standard_stream(home: Path, tmp_path: Path, closed: str) -> None:
    """U16: what is printed never goes into a file that was opened meanwhile."""
    source = source_file(tmp_path)
    source.write_bytes(source.read_bytes() + b"no record\n")  # something to complain about
    assert (
        with_closed(closed, "session", "import", "--salvage", source, "--home", home).returncode
        == 0
    )
    (path,) = (home / "sessions").glob("*.jsonl")
    done = with_closed(closed, "session", "name", path.stem, "again", "--home", home)
    assert done.returncode == 0, done
    data = path.read_bytes()
    for printed in (str(path).encode(), b"treering:", b"left out"):
        assert printed not in data
    assert fine("fsck", "--index", home=home).stderr == ""


@needs_full
@pytest.mark.parametrize("unbuffered", [None, "1"])
def test_a_full_device_is_told_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str | None
) -> None:
    """U08: output that cannot be written is one line and 3, buffered or not."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if unbuffered:
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    path = new_session(home, "hello")
    with open("/dev/full", "wb") as full:
        for words in (
            ["session", "export", path],
            ["session", "list", "--home", str(home)],
            ["session", "show", path],
            ["--help"],
        ):
            done = subprocess.run(
                [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
            )
            assert done.returncode == 3, (words, done)
            assert done.stderr.count(b"\n") == 1, (words, done)
            assert b"No space left" in done.stderr


@needs_full
@pytest.mark.parametrize("unbuffered", [None, "1"])
@pytest.mark.parametrize("words", [["import", "SOURCE"], ["import", "SOURCE", "--json"], ["new"]])
def test_a_session_that_cannot_be_reported(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbuffered: str | None,
    words: list[str],
) -> None:
    """U08: both facts are told and the code is 1, buffered or not."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if unbuffered:
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    source = str(source_file(tmp_path))
    words = [source if word == "SOURCE" else word for word in words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "session", *words, "--home", home],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    (made,) = (home / "sessions").glob("*.jsonl")
    assert done.returncode == 1, done
    assert str(made).encode() in done.stderr
    assert b"could not be reported" in done.stderr
    assert b"Traceback" not in done.stderr


# Odd folders


def not_utf8(tmp_path: Path) -> bytes:
    """A store with one session in a folder whose name is no text."""
    home = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(home)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    made = command_at(home, "session", "import", str(source_file(tmp_path)))
    assert made.returncode == 0, made
    return home


def command_at(home: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *words, "--home", home], capture_output=True, timeout=60, check=False
    )


def id_in(home: bytes) -> str:
    (name,) = os.listdir(home + b"/sessions")
    return name.decode().removesuffix(".jsonl")


def test_a_home_that_is_not_utf8(tmp_path: Path) -> None:
    """U03: where SQLite takes no such path sessions work without an index, and that is told."""
    home = not_utf8(tmp_path)
    session_id = id_in(home)
    for words, codes in (
        (["session", "name", session_id, "a name"], (0,)),
        (["session", "list"], (0,)),
        (["session", "info", session_id], (0,)),
        (["fsck", "--index"], (0, 1)),
        (["reindex", session_id], (0, 3)),
    ):
        done = command_at(home, *words)
        assert b"Traceback" not in done.stderr, (words, done)
        assert b"internal error" not in done.stderr, (words, done)
        assert done.returncode in codes, (words, done)
    assert b"a name" in command_at(home, "session", "export", session_id).stdout


def test_a_home_that_is_not_utf8_gathers_no_files(tmp_path: Path) -> None:
    """U03, B03: an index that cannot be made is not tried under one name more every time."""
    home = not_utf8(tmp_path)
    session_id = id_in(home)
    counts = []
    for number in range(3):
        assert command_at(home, "session", "name", session_id, f"n{number}").returncode == 0
        counts.append(len(os.listdir(home + b"/session-index")))
    assert counts[-1] == counts[0]


def test_a_home_behind_a_symbolic_link(home: Path, tmp_path: Path) -> None:
    """U09: the index of a store is found equal whichever way leads to the store."""
    path = new_session(home, "hello")
    link = tmp_path / "link"
    link.symlink_to(home)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "home").symlink_to(link)
    for way in (home, link, inner / "home"):
        fine("session", "name", id_of(path), f"by {way.name}", home=way)
        ran = run("fsck", "--index", home=way)
        assert ran.code == 0, ran
        assert "unusable" not in ran.out + ran.stderr
        (checked,) = fine("fsck", "--index", "--json", home=way).json
        assert checked["index"]["state"] == "equal", checked


def test_a_selector_that_is_too_long(home: Path) -> None:
    """U04: a name that the system refuses to look up is an error of ours."""
    new_session(home, "hello")
    for words in (["session", "show"], ["session", "info"], ["fsck"], ["repair"]):
        for selector in ("x" * 5_000 + ".jsonl", "/" + "x" * 300, "/".join(["y" * 200] * 30)):
            ran = run(*words, selector, home=home)
            assert ran.code in (1, 3), ran
            assert "internal error" not in ran.stderr
            assert "Traceback" not in ran.stderr


def test_fsck_of_nothing_is_no_clean_bill(home: Path, tmp_path: Path) -> None:
    """U05: a mistyped home is no store; an empty one is said to be empty."""
    ran = run("fsck", home=tmp_path / "mistyped")
    assert ran.code == 1, ran
    assert "no such store" in ran.stderr
    home.mkdir()
    ran = run("fsck", home=home)
    assert ran.code == 0, ran
    assert "no sessions" in ran.stderr


def _unprivileged(words: Sequence[str]) -> list[str]:
    """The command, without root's right to pass over file modes."""
    if os.getuid():
        return list(words)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root without setpriv: modes do not bind")
    caps = "-dac_override,-dac_read_search"
    return [setpriv, f"--bounding-set={caps}", f"--inh-caps={caps}", *words]


def test_an_unreadable_index_folder_stops_no_look(home: Path) -> None:
    """U06: whatever the mode of the index folder, reading and exporting a session works."""
    path = new_session(home, "hello", "there")
    folder = home / "session-index"
    folder.chmod(0)
    try:
        for words, code in (
            (["session", "show", path], 0),
            (["session", "list"], 0),
            (["session", "info", path], 0),
            (["session", "export", path], 0),
            (["fsck"], 0),
        ):
            done = subprocess.run(
                [*_unprivileged([*COMMAND, *words]), "--home", str(home)],
                capture_output=True,
                timeout=60,
                check=False,
            )
            if b"setpriv" in done.stderr:
                pytest.skip(done.stderr.decode())
            assert b"Traceback" not in done.stderr, (words, done)
            assert done.returncode == code, (words, done)
        done = subprocess.run(
            [*_unprivileged([*COMMAND, "session", "name", path, "a name"])],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert b"internal error" not in done.stderr
    finally:
        folder.chmod(0o700)
    fine("fsck", "--index", home=home)


def test_a_file_that_cannot_be_looked_at(home: Path, tmp_path: Path) -> None:
    """U04: a path behind a closed door is told as that, and not as a file that is not there."""
    path = Path(new_session(home, "hello"))
    closed = tmp_path / "closed"
    closed.mkdir()
    moved = closed / path.name
    moved.write_bytes(path.read_bytes())
    closed.chmod(0)
    try:
        for words in (["session", "show"], ["session", "info"], ["fsck"]):
            done = subprocess.run(
                _unprivileged([*COMMAND, *words, str(moved), "--home", str(home)]),
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 3, (words, done)
            assert b"Permission denied" in done.stderr
            assert b"no such file" not in done.stderr
            assert done.stderr.count(b"\n") == 1
    finally:
        closed.chmod(0o700)


# Advice and reports


def test_an_empty_session_has_an_empty_tree(home: Path) -> None:
    """U07: an empty tree is said to be empty; no filter is blamed for it."""
    ran = fine("session", "tree", new_session(home))
    assert "no entries yet" in ran.stderr
    assert "filter" not in ran.stderr


@pytest.mark.parametrize("size", [8, 60, 127, 128, 150])
@pytest.mark.parametrize("options", [[], ["--accept-loss"], ["--journal-id", "00" * 16]])
def test_repair_never_recommends_itself(home: Path, size: int, options: list[str]) -> None:
    """U12: of what nothing can be read of, the advice is a copy, not the refused command again."""
    path = new_session(home, "hello")
    os.truncate(path, size)
    ran = run("repair", path, *options)
    assert ran.code == 1, ran
    assert "treering repair" not in ran.out + ran.stderr
    assert "restore a copy" in ran.out + ran.stderr
    checked = run("fsck", home=home)
    assert checked.code == 1
    assert "treering repair" not in checked.out + checked.stderr


def test_places_of_older_products(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U10: nothing is made or written below ~/.pi and its like, by no command."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))
    path = new_session(home, "hello")
    for older in (".pi", ".prime"):
        (user / older).mkdir()
    before = picture(user)
    for older in (".pi", ".prime"):
        assert run("quickstart", "--keep", user / older / "q").code in (1, 2)
        assert run("session", "export", path, "-o", user / older / "x.jsonl").code in (1, 2)
        assert run("session", "new", home=user / older / "store").code in (1, 2)
    assert picture(user) == before


def test_a_leftover_is_no_session(home: Path) -> None:
    """U13: a temporary file of a killed import is named, and not summed up as a clean session."""
    path = new_session(home, "hello")
    left = home / "sessions" / ".gone.0000.new"
    left.write_bytes(b"half")
    ran = run("fsck", home=home)
    summaries = [line for line in ran.lines if ": clean (" in line]
    assert len(summaries) == 1
    assert summaries[0].startswith(id_of(path))


def test_quickstart_ends_with_a_line_of_its_own(tmp_path: Path) -> None:
    """U20: no escape sequence is printed as text."""
    ran = fine("quickstart", "--keep", tmp_path / "kept")
    assert "\\n" not in ran.out
    assert "The store is kept" in ran.lines[-1]


def test_repair_names_who_owns_the_session(home: Path) -> None:
    """U14: repair of a session in use says which process has it; a dry run may look."""
    path = new_session(home, "hello")
    with Session.open(path):
        done = process("repair", path)
        assert done.returncode == 3
        assert f"process {os.getpid()} owns the session since".encode() in done.stderr
        before = picture(home)
        assert process("repair", path, "--dry-run").returncode == 0
        assert picture(home) == before
