"""Every next command that `fsck` can print is run as it stands, in a shell, and helps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.stores import add_session, damaged_store, flip_byte, picture, without_syncs
from tools_helpers import run

from treering.engine.errors import Damaged, StorageError
from treering.engine.session.session import Session
from treering.tools import findings, fsck

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash to paste commands into")


@pytest.fixture(autouse=True)
def _no_device_syncs() -> Iterator[None]:
    with without_syncs():
        yield


class Shell(NamedTuple):
    """A person's shell: `treering` is found, and no store is selected by the environment."""

    folder: Path

    def paste(self, command: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command as it was printed."""
        assert BASH is not None
        kept = {key: value for key, value in os.environ.items() if "BASE_CONTEXT" not in key}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            [BASH, "-c", command],
            cwd=self.folder,
            env={**kept, "PATH": path, "HOME": str(self.folder / "nobody"), **more},
            capture_output=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    folder = tmp_path / "shell"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "treering"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m treering.tools "$@"\n')
    program.chmod(0o755)
    return Shell(folder)


def checked(home: Path, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("fsck", "--index", "--json", *words, home=home).json
    return found


def acting(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in record["findings"] if finding["next"] is not None]


def commands_of(record: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(finding["next"] for finding in acting(record)))


def rounds(tmp_path: Path) -> Iterator[tuple[Path, list[tuple[dict[str, Any], str]]]]:
    """Stores, each with commands for different sessions, until every command has had its turn."""
    turn, more = 0, True
    while more:
        home = damaged_store(tmp_path / f"home{turn}")
        todo = [(record, commands_of(record)) for record in checked(home)]
        yield home, [(record, found[turn]) for record, found in todo if len(found) > turn]
        turn += 1
        more = any(len(found) > turn for _, found in todo)


def test_every_next_command_helps(tmp_path: Path, shell: Shell) -> None:
    """On a store with every kind of trouble: afterwards the finding is gone, or what can be had of
    the session is there. Between them all kinds come up, so that none is left untried."""
    kinds = set()
    for home, todo in rounds(tmp_path):
        for record, command in todo:
            meant = [finding for finding in acting(record) if finding["next"] == command]
            kinds |= {finding["kind"] for finding in meant}
            done = shell.paste(command)
            assert done.returncode == 0, (command, done)
            helped(home, record, meant, command, done.stdout, shell)
    assert kinds == findings.ACTIONS - {"unreadable"}, "those have tests of their own"


def helped(
    home: Path,
    record: dict[str, Any],
    meant: list[dict[str, Any]],
    command: str,
    out: bytes,
    shell: Shell,
) -> None:
    """Whether a command did what its finding needs."""
    words = command.split()
    if words[:2] == ["treering", "dump"]:
        offsets = {line.get("offset") for line in map(json.loads, out.splitlines())}
        assert {finding["offset"] for finding in meant} <= offsets
    elif words[1:3] == ["session", "export"]:
        lines = (shell.folder / words[-1]).read_bytes().splitlines()
        assert json.loads(lines[0])["type"] == "session"
        assert [json.loads(line)["id"] for line in lines[1:]] == ["base"]
    elif words[1] == "--version":
        assert b"treering" in out, "which release this is: a newer one is needed"
    else:
        now = {found["session"]: found for found in checked(home)}
        if words[0] == "mv" or "mv" in words:
            assert record["session"] not in now
        else:
            left = now[record["session"]]
            assert left["ok"], (command, left)
    if words[:3] == ["treering", "session", "import"]:
        assert Path(out.decode().strip()).is_file()
        assert checked(home, Path(out.decode().strip()).stem)[0]["ok"]
    if "--keep-unknown" in words:
        shown = run("session", "info", record["path"], "--json").json
        assert shown["entries"] == 3, "the batch of two is kept"
    if words[-1] == "salvage" and record["session"] == "d-gap":
        assert run("session", "info", record["path"], "--json").json["entries"] == 5


def test_what_is_set_aside_is_whole(tmp_path: Path, shell: Shell) -> None:
    """`mv -n`: the bytes are there under the other name, and nothing is overwritten."""
    home = damaged_store(tmp_path / "home")
    path = home / "sessions" / "zeros.jsonl"
    (command,) = commands_of(checked(home, "zeros")[0])
    shell.paste(command)
    kept = Path(f"{path}.aside")
    assert kept.read_bytes() == bytes(500)
    path.write_bytes(b"another")
    shell.paste(command)
    assert kept.read_bytes() == bytes(500)
    assert path.read_bytes() == b"another"


@pytest.mark.parametrize("name", ["plain", "with blank and 'quote'", "$HOME `id` \\", "lf\nü\x1b"])
def test_any_folder_can_be_pasted(name: str, tmp_path: Path, shell: Shell) -> None:
    """Whatever the folder is called, the command in the text and in the JSON reach the session."""
    for number, as_json in enumerate((True, False)):
        home = tmp_path / f"{number}{name}"
        path = add_session(home, "s")
        flip_byte(path, 500)
        if as_json:
            command = checked(home)[0]["findings"][0]["next"]
        else:
            line = run("fsck", home=home).lines[0]
            command = line.partition("; next: ")[2]
        assert shell.paste(command).returncode == 0, command
        assert checked(home)[0]["ok"]


def test_ids_where_they_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store that commands use anyway, a session is named by its id."""
    home = tmp_path / "home"
    path = add_session(home, "s")
    flip_byte(path, 500)
    monkeypatch.setenv("BASE_CONTEXT_HOME", str(home))
    (record,) = run("fsck", "--json").json
    assert record["findings"][0]["next"] == "treering repair s"
    monkeypatch.delenv("BASE_CONTEXT_HOME")
    monkeypatch.setenv("BASE_CONTEXT_SESSION_DIR", str(home / "sessions"))
    (record,) = run("fsck", "--json").json
    assert record["findings"][0]["next"] == "treering repair s"


def test_files_of_others_are_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file outside any store, or in the folder of an older product, is somebody else's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = tmp_path / "log.jsonl"
    older = tmp_path / ".pi" / "sessions" / "x.jsonl"
    older.parent.mkdir(parents=True)
    for path in (elsewhere, older):
        path.write_text('{"type":"session"}\n')
        (record,) = run("fsck", path, "--json").json
        assert record["findings"][0]["next"] == f"treering session import {path}"
        path.write_text("text\n")
        (record,) = run("fsck", path, "--json").json
        assert record["findings"][0]["next"] == "treering session list"


class TestUnreadable:
    """The system refuses: exit code 3, and a command that gets at the file, or tries again."""

    def test_no_permission(self, shell: Shell) -> None:
        """A file that its owner may not read: chmod, and the session is checked."""
        if os.geteuid() == 0:
            pytest.skip("root reads files of mode 000; see the next test")
        home = shell.folder / "home"
        path = add_session(home, "s")
        path.chmod(0)
        ran = run("fsck", "--json", home=home)
        assert ran.code == 3
        ((finding,),) = [record["findings"] for record in ran.json]
        assert finding["kind"] == "unreadable"
        assert finding["next"] == f"chmod u+rw -- {path}"
        assert shell.paste(finding["next"]).returncode == 0
        assert checked(home)[0]["ok"]

    def test_no_permission_for_another_user(self) -> None:
        """The same for a process of another user, its own file and a file of root."""
        if os.geteuid() != 0:
            pytest.skip("only root can be somebody else")
        nobody = 65534
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            own, foreign = add_session(home, "own"), add_session(home, "root")
            run("fsck", "--json", home=home)  # imports what another user might not be able to
            own.chmod(0)
            for place in (Path(folder), *Path(folder).rglob("*")):
                if place != foreign:
                    os.chown(place, nobody, nobody)
            os.seteuid(nobody)
            try:
                ran = run("fsck", "--json", home=home)
            finally:
                os.seteuid(0)
            assert ran.code == 3, ran
            nexts = [record["findings"][0]["next"] for record in ran.json]
            assert nexts == [f"chmod u+rw -- {own}", f'sudo chown -- "$(id -un)" {foreign}']
            subprocess.run(["sh", "-c", nexts[0]], user=nobody, check=True)
            subprocess.run(["sh", "-c", nexts[1].removeprefix("sudo ")], check=True)
            os.seteuid(nobody)
            try:
                assert run("fsck", own).code == 0
            finally:
                os.seteuid(0)

    @pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
    def test_a_passing_error(
        self, error: BaseException, home: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
    ) -> None:
        """A read that fails: `fsck` again, which tells a moment's trouble from a lasting one."""
        path = add_session(home, "s")

        def failing(*words: Any, **more: Any) -> Any:
            if isinstance(error, OSError):
                raise StorageError("cannot read the journal: it failed", path=str(path)) from error
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(fsck, "open_regular", failing)
            before = picture(home)
            ran = run("fsck", "--json", home=home)
            assert picture(home) == before
        assert ran.code == 3
        ((finding,),) = [record["findings"] for record in ran.json]
        assert finding["kind"] == "unreadable"
        assert finding["next"] == f"treering fsck {path}"
        assert shell.paste(finding["next"]).returncode == 0


def test_next_commands_of_errors_work_too(tmp_path: Path, shell: Shell) -> None:
    """The error line of a refused open names the same command as `fsck`."""
    home = damaged_store(tmp_path / "home")
    for name in ("b", "c", "f"):  # an index that covers the damage hides it from an open
        for index in (home / "session-index").glob(f"{name}.*"):
            index.unlink()
    for name in ("b", "c", "d", "d-gap", "f"):
        ran = run("session", "name", name, "x", home=home)
        assert ran.code == 1
        (command,) = re.findall(r"; next: (treering [^;]*)$", ran.stderr.strip())
        assert command == commands_of(checked(home, name)[0])[0]
        assert shell.paste(command).returncode == 0
        assert run("session", "name", name, "x", home=home).code == 0


def test_damage_that_an_index_hides_is_met_by_reading(tmp_path: Path, shell: Shell) -> None:
    """Opening with an index looks only behind it; whoever reads the bad bytes is told to check,
    and the check names the repair."""
    path = add_session(tmp_path / "home", "s")
    flip_byte(path, path.read_bytes().index(b"two-two"))
    with Session.open(path) as session:
        for read in (session.entries, session.iter_entries):
            with pytest.raises(Damaged) as caught:
                list(read())
            command = str(caught.value).rpartition("; next: ")[2]
            assert command == f"treering fsck {path}"
    done = shell.paste(command)
    assert done.returncode == 1
    assert f"next: treering repair {path}\n".encode() in done.stdout


def test_a_cut_tail_names_how_to_take_entries_back(tmp_path: Path, shell: Shell) -> None:
    """Whatever command cut it says so; pasted, the whole entries are there again."""
    home = damaged_store(tmp_path / "home")
    path = home / "sessions" / "torn-whole.jsonl"
    ran = run("session", "name", path, "x")
    (command,) = re.findall(r"`(treering [^`]*)` brings", ran.stderr)
    assert shell.paste(command).returncode == 0
    assert run("session", "info", path, "--json").json["entries"] == 6, "three, the name, two"
