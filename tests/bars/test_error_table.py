"""What a user sees when something is wrong: through the real command, one line and exit code 1 or
3, and bytes that stay as they were."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bars_helpers import COMMAND, SOURCE, command, custom, picture, refused, traced

from treering.engine import Session
from treering.fuzz import oracle
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
    the store."""
    before = picture(tmp_path)
    for words in (["session", "show"], ["repair"]):
        refused(command(*words, "--home", store, "--", selector), 1, 3)
    refused(command("session", "name", "--home", store, "--", selector, "n"), 1, 3)
    assert picture(tmp_path) == before


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


# A disk that refuses


def state_after(
    path: Path, before: bytes, name: str, done: subprocess.CompletedProcess[bytes]
) -> None:
    """All old bytes are there; nothing is left of an append that was refused, and one that was
    acknowledged is no failure."""
    now = path.read_bytes()
    assert now.startswith(before)
    assert oracle.judge(now).case == "A"
    assert (done.returncode == 0) == (f'"{name}"'.encode() in now), (done, "told otherwise")
    if done.returncode:
        assert now == before, "a refused append left bytes behind"


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("more", [0, 1, 43, 323, 324, 400])
def test_F07_file_size_limit(store: Path, more: int) -> None:
    """RLIMIT_FSIZE in the middle of an append (EFBIG): one line, 3, the journal as before, and the
    next command works."""
    path = store / "sessions" / "good.jsonl"
    shutil.rmtree(store / "session-index")
    before = path.read_bytes()
    limit = str(len(before) + more)
    limited = [sys.executable, "-c", LIMITED, limit]
    done = command("session", "name", "good", "a name", "--home", store, prefix=limited)
    refused(done, 3)
    state_after(path, before, "a name", done)
    assert command("session", "name", "good", "again", "--home", store).returncode == 0
    assert command("fsck", "good", "--index", "--home", store).returncode == 0


def injected(store: Path, log: Path, fault: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A command in whose process system calls on the journal fail."""
    path = store / "sessions" / "good.jsonl"
    options = ["-qq", "-P", str(path), "-e", f"inject={fault}"]
    return traced(log, options, [*COMMAND, *words, "--home", str(store)])


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_F07_no_space_at_every_write(store: Path, tmp_path: Path, error: str) -> None:
    """ENOSPC (EIO) from the system call itself, at each write of an append in turn: one line, 3, the
    journal as before. A write that fails when all is acknowledged (the clean end) harms nothing."""
    path = store / "sessions" / "good.jsonl"
    log = tmp_path / "trace"
    failed = 0
    for at in range(1, 9):
        before = path.read_bytes()
        done = injected(
            store, log, f"pwrite64:error={error}:when={at}", "session", "name", "good", f"n{at}"
        )
        if b"INJECTED" not in log.read_bytes():
            break
        if done.returncode:
            refused(done, 3)
            failed += 1
        state_after(path, before, f"n{at}", done)
        checked = command("fsck", "good", "--index", "--home", store)
        assert checked.returncode == 0, checked
    else:
        pytest.fail("more writes than an append can need")
    assert failed >= 1


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_F120_a_sync_that_fails(store: Path, tmp_path: Path, call: str) -> None:
    """EIO from each sync of the journal in turn: never a success that is none. The next command
    works and loses nothing."""
    path = store / "sessions" / "good.jsonl"
    log = tmp_path / "trace"
    seen = failed = 0
    for at in range(1, 7):
        before = path.read_bytes()
        done = injected(
            store, log, f"{call}:error=EIO:when={at}", "session", "name", "good", f"n{at}"
        )
        if b"INJECTED" not in log.read_bytes():
            break
        seen += 1
        assert path.read_bytes().startswith(before)
        if done.returncode:
            failed += 1
            line = refused(done, 3, says="unknown" if call == "fdatasync" else "sync")
            assert "nothing was stored" not in line
        again = command("session", "name", "good", f"after{at}", "--home", store)
        assert (again.returncode, again.stderr) == (0, b"")
        assert f"after{at}".encode() in path.read_bytes()
        assert command("fsck", "good", "--index", "--home", store).returncode == 0
    if call == "fdatasync":
        assert seen >= 1
        # Only one of them decides about an acknowledgement: that one is told, the others harm nothing.
        assert failed == 1


FULL = """
import os, subprocess, sys
from treering.engine import Session, StorageFull
folder, command = sys.argv[1], sys.argv[2:]
home = folder + "/home"
def run(*words):
    return subprocess.run([*command, *words, "--home", home], capture_output=True, check=False)
with open(folder + "/ballast", "wb") as ballast:
    ballast.write(bytes(400_000))
session = Session.create(cwd="/w", home_dir=home, session_id="s")
acknowledged = []
try:
    while True:
        number = len(acknowledged)
        session.append({"type": "custom", "id": f"e{number}", "data": os.urandom(700).hex()})
        acknowledged.append(f"e{number}")
except StorageFull:
    pass
session.close()
with open(folder + "/rest", "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(512))
    except OSError:
        pass
path = home + "/sessions/s.jsonl"
before = open(path, "rb").read()
slack = -len(before) % 4096
big = run("session", "name", "s", os.urandom(slack + 4096).hex())
assert big.returncode == 3, big
assert big.stderr.startswith(b"treering: error: ") and b"Traceback" not in big.stderr, big
assert open(path, "rb").read() == before
made = run("session", "new")
assert made.returncode == 3 and made.stderr.count(b"\\n") == 1, made
assert os.listdir(home + "/sessions") == ["s.jsonl"], os.listdir(home + "/sessions")
looked = run("session", "export", "s")
assert looked.returncode == 0 and looked.stderr == b"", looked
assert all(f'"{one}"'.encode() in looked.stdout for one in acknowledged)
os.unlink(folder + "/rest"); os.unlink(folder + "/ballast")
after = run("session", "name", "s", "there is space")
assert after.returncode == 0, after
checked = run("fsck", "--index")
assert checked.returncode == 0, checked
assert len(acknowledged) > 10
print("held")
"""


def test_F08_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file system of 600 KB is filled by appends: what was acknowledged is there, refusals are one
    line and 3, nothing is left of them, looking works, and with space all goes on."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    folder = tmp_path / "full"
    folder.mkdir()
    mount = 'mount -t tmpfs -o size=600k none "$0" || exit 77; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, folder, sys.executable, "-c", FULL, folder, *COMMAND],
        capture_output=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 77 or b"unshare" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.stdout == b"held\n", done.stderr.decode()


# A folder that refuses


def test_a_read_only_folder(home: Path, tmp_path: Path) -> None:
    """A store that we may read and not write: looking and checking work, writing is one line and 1
    or 3, and nothing changes."""
    with Session.create(cwd="/w", home_dir=str(home), session_id="good") as session:
        session.append(custom("a1"))
    more: dict[str, list[str]] = {}
    if os.geteuid() == 0:
        # Root may write everywhere but on a file system that is mounted read-only.
        bound = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; exec "$@"'
        more = {"prefix": ["unshare", "-m", "sh", "-c", bound, str(home)]}
        if shutil.which("unshare") is None or command("--version", **more).returncode != 0:
            pytest.skip("mounting is not allowed here")
    else:
        for path in [home, *home.rglob("*")]:
            path.chmod(0o500 if path.is_dir() else 0o400)
    source = tmp_path / "source.jsonl"
    source.write_bytes(SOURCE)
    before = picture(home)
    for words in (["session", "list"], ["session", "show", "good"], ["fsck", "--index"]):
        done = command(*words, "--home", home, **more)
        assert (done.returncode, done.stderr) == (0, b""), done
    for words in (
        ["session", "new"],
        ["session", "name", "good", "n"],
        ["session", "branch", "good", "a1"],
        ["session", "import", str(source)],
        ["repair", "good"],
        ["reindex", "good"],
    ):
        done = command(*words, "--home", home, **more)
        if words == ["repair", "good"] and done.returncode == 0:
            assert b"nothing to repair" in done.stdout
            continue
        assert done.returncode in (1, 3), done
        assert done.stderr.count(b"\n") == 1, done
        assert done.stderr.startswith(b"treering: "), done
        assert b"internal error" not in done.stderr
    assert picture(home) == before
    for path in [home, *home.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
