"""What a user sees when something is wrong: through the real command, one line and exit code 1 or
3, and bytes that stay as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bars_helpers import COMMAND, SOURCE, command, custom, picture, refused
from support.stores import without_catalogue

from treering.engine import Session
from treering.fuzz import oracle
from treering.fuzz.syscalls import limits, mounts
from treering.fuzz.syscalls.command import command as syscalls
from treering.fuzz.syscalls.flows import FLOWS
from treering.fuzz.syscalls.runs import Bench, Figures, UnavailableError
from treering.fuzz.syscalls.tracing import Fault
from treering.tools.entry import main


@pytest.fixture
def store(home: Path) -> Path:
    """A store with one good session, ``good``."""
    with Session.create(cwd="/w", home_dir=str(home), session_id="good") as session:
        session.append(custom("a1"))
        session.append(custom("a2"))
    return home


def a_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def half_a_header(path: Path) -> None:
    good = path.with_name("good.jsonl").read_bytes()
    path.write_bytes(good[:100])


def a_newer_version(path: Path) -> None:
    from xxhash import xxh3_128_digest

    good = path.with_name("good.jsonl").read_bytes()
    header = good[:8] + b"\x63\x00" + good[10:112]
    path.write_bytes(header + xxh3_128_digest(header) + good[128:])


THINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory": (a_directory, "directory"),
    "FIFO": (os.mkfifo, "not a plain file"),
    "0-byte": (lambda path: path.write_bytes(b""), "empty"),
    "NULs": (lambda path: path.write_bytes(bytes(9000)), "not a journal"),
    "picture": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(90)), "not a journal"),
    "plain JSONL": (lambda path: path.write_bytes(SOURCE), "session import"),
    "link loop": (a_loop, "x.jsonl"),
    "half a header": (half_a_header, "x.jsonl"),
    "newer version": (a_newer_version, "version 99"),
}


@pytest.mark.parametrize("thing", THINGS)
def test_F33_things_that_are_no_journal(store: Path, thing: str) -> None:
    """Whatever has the name of a journal: looking and writing are one line and 1 or 3, fsck needs
    action, repair refuses, nothing hangs, and nothing in the store changes."""
    make, says = THINGS[thing]
    make(store / "sessions" / "x.jsonl")
    before = picture(store)
    refused(command("session", "show", "x", "--home", store), 1, 3, says=says)
    refused(command("session", "name", "x", "new", "--home", store), 1, 3, says=says)
    refused(command("repair", "x", "--home", store), 1, 3)
    checked = command("fsck", "x", "--home", store)
    assert checked.returncode in (1, 3)
    assert b"x: " in checked.stdout
    assert not checked.stderr
    assert picture(store) == before


def test_every_command_refuses_in_one_line(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The full product of things and commands, in this process: 1 or 3, at most one line of error,
    no internal error, no byte changed; the good session is listed and read as ever."""
    for number, (make, _) in enumerate(THINGS.values()):
        make(store / "sessions" / f"x{number}.jsonl")
    (store / "sessions" / "x.jsonl").write_bytes(b"")
    before = picture(store)
    commands = [
        ["session", "show", "{}"],
        ["session", "tree", "{}"],
        ["session", "info", "{}"],
        ["session", "export", "{}"],
        ["session", "export", "{}", "--branch"],
        ["session", "name", "{}", "n"],
        ["session", "label", "{}", "a1", "l"],
        ["session", "branch", "{}", "a1"],
        ["resume", "{}"],
        ["dump", "{}"],
        ["repair", "{}"],
        ["repair", "{}", "--dry-run"],
        ["repair", "{}", "--accept-loss"],
        ["repair", "{}", "--readmit"],
        ["reindex", "{}"],
        ["fsck", "{}", "--index"],
    ]
    for words in commands:
        for number in range(len(THINGS)):
            where = (words, list(THINGS)[number])
            code = main([w.format(f"x{number}") for w in words] + ["--home", str(store)])
            out, err = capfd.readouterr()
            if words[0] == "dump" and code == 0:
                assert out, where  # it prints what verifies, also of damaged files
                continue
            assert code in (1, 3), (where, code, out, err)
            assert err.count("\n") <= 1, (where, err)
            assert err.startswith("treering: ") or (words[0] == "fsck" and not err), (where, err)
            assert "internal error" not in err, (where, err)
    assert picture(store) == before
    assert main(["session", "show", "good", "--home", str(store)]) == 0
    assert main(["session", "list", "--home", str(store)]) == 0
    out, err = capfd.readouterr()
    assert "good" in out
    assert err == ""


@pytest.mark.parametrize(
    "selector", ["../x", "../sessions/good", "/etc/passwd", "a/../../x", "..", "", "x\n", "nothing"]
)
def test_F44_selectors_that_lead_out(store: Path, tmp_path: Path, selector: str) -> None:
    """Ids like ../x: refused in one line for reading, writing and repair; nothing appears outside of
    the store (and in it no more than the catalogue, in which names are looked up)."""
    before = without_catalogue(picture(tmp_path))
    for words in (["session", "show"], ["repair"]):
        refused(command(*words, "--home", store, "--", selector), 1, 3)
    refused(command("session", "name", "--home", store, "--", selector, "n"), 1, 3)
    assert without_catalogue(picture(tmp_path)) == before


def test_F73_two_processes_one_owner(store: Path) -> None:
    """The second process is refused in one line that names the first; looking goes on; SIGKILL of
    the first frees the session, also while a child that it forked is alive."""
    program = (
        "import os, sys, time\n"
        "from treering.engine import Session\n"
        "session = Session.open(sys.argv[1])\n"
        "session.append({'type': 'custom', 'id': 'owned'})\n"
        "child = os.fork()\n"
        "if child == 0:\n    os.close(1); time.sleep(30); os._exit(0)\n"
        "print(child, flush=True)\n"
        "time.sleep(30)\n"
    )
    path = store / "sessions" / "good.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        try:
            before = path.read_bytes()
            line = refused(command("session", "name", "good", "n", "--home", store), 3)
            assert str(owner.pid) in line
            assert str(owner.pid) in refused(command("repair", "good", "--home", store), 3)
            assert b"owned" in command("session", "export", "good", "--home", store).stdout
            assert path.read_bytes() == before
            owner.kill()
            owner.wait(10)
            os.kill(child, 0)  # it lives
            done = command("session", "name", "good", "n", "--home", store)
            assert (done.returncode, done.stderr) == (0, b"")
        finally:
            owner.kill()
            os.kill(child, 9)
    assert b'"owned"' in path.read_bytes()
    assert oracle.judge(path.read_bytes()).case == "A"


# A disk that refuses: through the search of ``treering.fuzz``, which checks after each
# refusal: one line, the exit code, nothing left, the next command works, fsck and the index agree


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


@pytest.mark.parametrize("more", [0, 1, 43, 323, 324, 400])
def test_F07_file_size_limit(bench: Bench, more: int) -> None:
    """RLIMIT_FSIZE in the middle of an append (EFBIG): one line, 3, the journal as before, and the
    next command works."""
    figures = Figures()
    assert limits.run(bench, FLOWS["name"], Fault("fsize", more, "limit"), figures) == []
    assert figures.codes == {"3": 1}


@pytest.mark.parametrize("more", [0, 1, 2, 4])
def test_no_descriptors_left(bench: Bench, more: int) -> None:
    """RLIMIT_NOFILE: EMFILE at the first file, or one after it (without an index it may do): told in
    one line, nothing left, and the next command works."""
    figures = Figures()
    assert limits.run(bench, FLOWS["name"], Fault("nofile", more, "limit"), figures) == []
    assert more or figures.codes == {"3": 1}


def at_each(capfd: pytest.CaptureFixture[str], flow: str, call: str, error: str) -> dict[str, int]:
    """The error once at each such call on a journal, in turn: what the exit codes were."""
    words = ["--flow", flow, "--call", call, "--error", error, "--on", ".jsonl", "--once", "--json"]
    code = main(words, command=syscalls)
    found = json.loads(capfd.readouterr().out)
    if found["skipped"]:
        pytest.skip(found["skipped"][0])
    assert found["failures"] == []
    assert code == 0
    return found["flows"][flow]["codes"]


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_F07_no_space_at_every_write(capfd: pytest.CaptureFixture[str], error: str) -> None:
    """ENOSPC (EIO) from the system call itself, at each write of an append in turn: one line, 3, the
    journal as before. A write that fails when all is acknowledged (the clean end) harms nothing."""
    assert at_each(capfd, "name", "pwrite64", error) == {"3": 1, "0": 1}


@pytest.mark.parametrize(("call", "codes"), [("fdatasync", {"3": 1, "0": 1}), ("fsync", {"3": 1})])
def test_F120_a_sync_that_fails(
    capfd: pytest.CaptureFixture[str], call: str, codes: dict[str, int]
) -> None:
    """EIO from each sync of the journal in turn: never a success that is none. The next command
    works and loses nothing. Only one of them decides about an acknowledgement: that one is told."""
    assert at_each(capfd, "name", call, "EIO") == codes


def on_a_file_system(name: str, tmp_path: Path) -> None:
    try:
        assert mounts.check(name, str(tmp_path / "mounted")) == []
    except UnavailableError as error:
        pytest.skip(str(error))


def test_F08_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file system of 600 KB is filled by appends: what was acknowledged is there, refusals are one
    line and 3, nothing is left of them, looking works, and with space all goes on."""
    on_a_file_system("full", tmp_path)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_report_that_nobody_can_be_given(home: Path, unbuffered: str) -> None:
    """Neither output nor error can be written: the exit code says that something was done."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "session", "new", "--home", str(home)],
            stdout=full,
            stderr=full,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert done.returncode == 1
    assert len(list((home / "sessions").iterdir())) == 1


# A folder that refuses


def test_a_read_only_folder(tmp_path: Path) -> None:
    """A store that we may read and not write: looking and checking work, writing is one line and 1
    or 3, and nothing changes."""
    on_a_file_system("read-only", tmp_path)
