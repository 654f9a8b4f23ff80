"""Who may write: one owner, whatever name leads to the file, for exactly as long as it lives."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import build

from treering.engine.errors import (
    Closed,
    NotAJournal,
    NotFound,
    Owned,
    SourceChanged,
    StorageError,
    TreeringError,
)
from treering.engine.journal.disk import LOCAL_DISK, make_folders
from treering.engine.journal.ownership import Ownership, read_note
from treering.engine.journal.publish import NewJournal
from treering.fuzz.faulty_disk import FaultyDisk, Op

TESTS = Path(__file__).resolve().parents[1]

CHILD = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from support import build
store = build.Store(*sys.argv[2:6])
writer = build.writer_of(build.reopen(store, note=True))
writer.append([build.entry("child")])
if sys.argv[6] == "fork":
    if os.fork() == 0:
        os.write(1, b"forked %d\\n" % os.getpid())
        time.sleep(60)
        os._exit(0)
os.write(1, b"owned %d\\n" % os.getpid())
sys.stdin.read()
if sys.argv[6] == "close":
    writer.close()
"""


@pytest.fixture
def store(tmp_path: Path) -> build.Store:
    store = build.make_store(tmp_path)
    build.create(store).close()
    return store


class Child:
    """A real process that owns the session."""

    def __init__(self, store: build.Store, how: str = "close") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(TESTS),
             store.top, store.sessions, store.quarantine, store.note, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.forked = 0
        assert self.process.stdout is not None
        for _ in range(2 if how == "fork" else 1):
            word, pid = self.process.stdout.readline().split()
            if word == "forked":
                self.forked = int(pid)
            else:
                assert int(pid) == self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def finish(self) -> None:
        if self.forked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.forked, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.finish()


def test_F73_second_opener_is_told_who(store: build.Store, children: list[Child]) -> None:
    """A second process is refused at once, with the pid and the time of the owner."""
    before_ms = time.time_ns() // 1_000_000 - 60_000
    children.append(Child(store))
    data = build.get(store.path())
    start = time.monotonic()
    with pytest.raises(Owned) as caught:
        build.reopen(store, note=True)
    assert time.monotonic() - start < 1
    assert caught.value.holder_pid == children[0].process.pid
    assert str(children[0].process.pid) in str(caught.value)
    assert caught.value.since_ms is not None
    assert before_ms < caught.value.since_ms <= time.time_ns() // 1_000_000
    assert build.get(store.path()) == data


def test_F73_second_handle_of_the_same_process_is_refused(store: build.Store) -> None:
    """The lock is between handles, not only between processes; closing frees it."""
    opened = build.reopen(store, note=True)
    with pytest.raises(Owned) as caught:
        build.reopen(store, note=True)
    assert caught.value.holder_pid == os.getpid()
    opened.owner.release()
    again = build.reopen(store, note=True)
    again.owner.release()
    assert not os.path.exists(store.note)


def test_F73_kill_frees_the_lock(store: build.Store, children: list[Child]) -> None:
    """SIGKILL of the owner: the next has it within a second; what was acknowledged is there."""
    children.append(Child(store))
    children[0].kill()
    start = time.monotonic()
    opened = build.reopen(store, note=True)
    assert time.monotonic() - start < 1
    assert b'"child"' in build.get(store.path())
    note = read_note(LOCAL_DISK, store.note)
    assert note is not None
    assert note.pid == os.getpid()
    opened.owner.release()


def test_F119_kill_frees_the_lock_though_a_forked_child_lives(
    store: build.Store, children: list[Child]
) -> None:
    """A child forked by the owner holds nothing: its descriptor was closed at the fork."""
    children.append(Child(store, "fork"))
    with pytest.raises(Owned):
        build.reopen(store)
    children[0].kill()
    os.kill(children[0].forked, 0)
    build.reopen(store).owner.release()


def test_F73_stopped_owner_is_clearly_busy(store: build.Store, children: list[Child]) -> None:
    """An owner that is only stopped still owns: refused at once, with its pid; it goes on later."""
    children.append(Child(store))
    process = children[0].process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(Owned) as caught:
            build.reopen(store, note=True)
        assert time.monotonic() - start < 1
        assert caught.value.holder_pid == process.pid
    finally:
        os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    build.reopen(store).owner.release()


def test_every_name_of_the_file_collides(store: build.Store) -> None:
    """A symlink, a symlinked folder and a hard link lead to the same lock, whichever is first."""
    path = store.path()
    os.symlink(path, store.path("alias"))
    os.link(path, store.path("hard"))
    os.symlink(store.sessions, os.path.join(store.top, "other"))
    names = [
        path,
        store.path("alias"),
        store.path("hard"),
        os.path.join(store.top, "other/s1.jsonl"),
    ]
    for first in names:
        owner = Ownership.acquire(LOCAL_DISK, first)
        for second in names:
            with pytest.raises(Owned):
                Ownership.acquire(LOCAL_DISK, second)
        owner.release()


def test_opening_through_a_symlink_keeps_it(store: build.Store) -> None:
    """F46: a symlinked journal stays a symlink and its target gets the frames."""
    alias = store.path("alias")
    os.symlink(store.path(), alias)
    writer = build.writer_of(build.reopen(store, session_id="alias"))
    writer.append([build.entry("through")])
    writer.close()
    assert os.path.islink(alias)
    assert b'"through"' in build.get(store.path())


def note(**fields: object) -> bytes:
    whole = {"pid": 1, "host": "h", "boot": "b", "started": 1, "since": 1}
    return json.dumps(whole | fields).encode()


NOTES = {
    "empty": b"",
    "garbage": b"\xff\xfe\x00garbage",
    "text": b"held by somebody",
    "other JSON": b"[1,2]",
    "half": note()[:-5],
    "deep": b"[" * 4000,
    "long": note(host="x" * 100_000),
    "since far ahead": note(since=10**17),
    "since beyond time": note(since=10**30),
    "since before time": note(since=-(10**18)),
    "since a float": note(since=1e300),
    "wild pid": note(pid=-(10**40)),
    "a forged line": note(host="x\ny\x1b[2J", boot="z"),
}


@pytest.mark.parametrize("name", NOTES)
def test_the_note_decides_nothing(name: str, store: build.Store) -> None:
    """Whatever the note says, or nothing: with the lock held the opener is refused as Owned, in one
    line; with the lock free it gets in."""
    opened = build.reopen(store)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    with open(store.note, "wb") as file:
        file.write(NOTES[name])
    with pytest.raises(Owned) as caught:
        build.reopen(store, note=True)
    assert str(caught.value).isprintable()
    del caught
    assert len(os.listdir("/proc/self/fd")) == files
    opened.owner.release()
    with open(store.note, "wb") as file:
        file.write(NOTES[name])
    build.reopen(store, note=True).owner.release()


@pytest.mark.parametrize("what", ["folder", "fifo", "symlink", "dangling", "no folder"])
def test_the_note_may_be_anything(what: str, store: build.Store) -> None:
    """A folder, FIFO or link in the place of the note, or no place at all, stops nobody, and a link
    is never written through."""
    target = os.path.join(store.top, "precious")
    with open(target, "w") as file:
        file.write("precious")
    if what == "folder":
        os.mkdir(store.note)
    elif what == "fifo":
        os.mkfifo(store.note)
    elif what == "symlink":
        os.symlink(target, store.note)
    elif what == "dangling":
        os.symlink(target + "x", store.note)
    else:
        os.rmdir(os.path.dirname(store.note))
    opened = build.reopen(store, note=True)
    with pytest.raises(Owned):
        build.reopen(store, note=True)
    opened.owner.release()
    assert build.get(target) == b"precious"
    assert not os.path.exists(target + "x")


@pytest.mark.parametrize("name", ["unlink", "create", "pwrite"])
@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_unwritable_note_stops_nothing(name: str, error: int, store: build.Store) -> None:
    """A full, read-only or forbidden index folder stops no owner."""
    disk = FaultyDisk()
    disk.fail(name, error=error, path="owner.json", times=10)
    opened = build.reopen(store, disk=disk, note=True)
    build.writer_of(opened).close()
    assert disk.open_files == 0


def test_inode_replaced_between_open_and_lock(store: build.Store) -> None:
    """The name was given to another file after we opened it: we own what the name leads to now."""
    disk = FaultyDisk()
    path = store.path()
    data = build.get(path)
    turns = []

    def replace(op: Op) -> None:
        if op.name == "try_lock" and not turns:
            turns.append(1)
            os.rename(path, path + ".old")
            with open(path, "wb") as file:
                file.write(data)

    disk.before = replace
    owner = Ownership.acquire(disk, path)
    assert owner.identity == (os.stat(path).st_dev, os.stat(path).st_ino)
    with pytest.raises(Owned):
        Ownership.acquire(LOCAL_DISK, path)
    Ownership.acquire(LOCAL_DISK, path + ".old").release()
    owner.release()
    assert disk.open_files == 0


def test_inode_replaced_again_and_again(store: build.Store) -> None:
    """A name that never holds still is a typed error, not an endless loop; no descriptor leaks."""
    disk = FaultyDisk()
    path = store.path()
    data = build.get(path)

    def replace(op: Op) -> None:
        if op.name == "try_lock":
            with open(path + ".new", "wb") as file:
                file.write(data)
            os.rename(path + ".new", path)

    disk.before = replace
    with pytest.raises(SourceChanged):
        Ownership.acquire(disk, path)
    assert disk.open_files == 0


def test_deleted_between_open_and_lock(store: build.Store) -> None:
    """A journal deleted after it was opened is not found."""
    disk = FaultyDisk()

    def delete(op: Op) -> None:
        if op.name == "try_lock" and os.path.exists(store.path()):
            os.unlink(store.path())

    disk.before = delete
    with pytest.raises((NotFound, SourceChanged)):
        Ownership.acquire(disk, store.path())
    assert disk.open_files == 0


@pytest.mark.parametrize("name", ["open", "fstat", "try_lock", "stat"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOLCK, errno.EMFILE, errno.EACCES])
def test_failing_acquire_is_typed_and_leaks_nothing(
    name: str, at: int, error: int, store: build.Store
) -> None:
    """Whatever system call of taking the lock fails: a typed error, the descriptor closed, the lock
    free."""
    disk = FaultyDisk()
    rule = disk.fail(name, at=at, error=error)
    try:
        owner = Ownership.acquire(disk, store.path())
    except TreeringError:
        assert rule.fired
        assert disk.open_files == 0
    else:
        assert not rule.fired
        owner.release()
    Ownership.acquire(LOCAL_DISK, store.path()).release()


def test_use_after_release_is_closed(store: build.Store) -> None:
    """Releasing is idempotent; afterwards the right is gone."""
    owner = Ownership.acquire(LOCAL_DISK, store.path())
    owner.check()
    owner.release()
    owner.release()
    assert not owner.is_open
    with pytest.raises(Closed):
        owner.check()


def test_case_G_directory(store: build.Store) -> None:
    """A directory is not a journal."""
    os.mkdir(store.path("d"))
    with pytest.raises(NotAJournal, match="directory"):
        build.reopen(store, session_id="d")


def test_case_G_fifo_does_not_block(store: build.Store) -> None:
    """A FIFO is refused at once, with or without somebody at its other end."""
    os.mkfifo(store.path("f"))
    start = time.monotonic()
    with pytest.raises(NotAJournal):
        build.reopen(store, session_id="f")
    other = os.open(store.path("f"), os.O_RDWR | os.O_NONBLOCK)
    with pytest.raises(NotAJournal):
        build.reopen(store, session_id="f")
    os.close(other)
    assert time.monotonic() - start < 1


def test_case_G_socket(store: build.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket is refused as no journal."""
    monkeypatch.chdir(store.sessions)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("k.jsonl")
        with pytest.raises(NotAJournal):
            build.reopen(store, session_id="k")


def test_case_G_device(store: build.Store) -> None:
    """A device behind a link is refused as no journal."""
    os.symlink("/dev/null", store.path("n"))
    with pytest.raises(NotAJournal):
        build.reopen(store, session_id="n")


def test_case_G_symlink_loop_and_dangling(store: build.Store) -> None:
    """A loop of links is no journal; a link to nothing is not found; nothing is created."""
    os.symlink(store.path("y"), store.path("x"))
    os.symlink(store.path("x"), store.path("y"))
    os.symlink(store.path("nowhere"), store.path("z"))
    with pytest.raises(NotAJournal):
        build.reopen(store, session_id="x")
    with pytest.raises(NotFound):
        build.reopen(store, session_id="z")
    with pytest.raises(NotFound):
        build.reopen(store, session_id="none")
    assert not os.path.lexists(store.path("nowhere"))
    assert not os.path.lexists(store.path("none"))


def test_path_through_a_file(store: build.Store) -> None:
    """A path that goes through a plain file is a typed refusal."""
    with pytest.raises(TreeringError):
        Ownership.acquire(LOCAL_DISK, store.path() + "/s2.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open a file of mode 000")
def test_F15_mode_000_is_a_typed_error(store: build.Store) -> None:
    """A file that may not be opened is StorageError, which says to look at owner and mode."""
    os.chmod(store.path(), 0)
    with pytest.raises(StorageError, match="mode"):
        build.reopen(store)


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"hello\n", b'{"type":"session"}\n' * 99, bytes(9999)]
)
def test_case_G_foreign_file_is_untouched(data: bytes, store: build.Store) -> None:
    """An empty file or one of another format is refused, unchanged, and its lock is free again."""
    path = build.put(store, data, "foreign")
    for _ in range(2):
        with pytest.raises(NotAJournal):
            build.reopen(store, session_id="foreign", note=True)
    assert build.get(path) == data
    assert not os.path.exists(store.note)


def test_F119_child_forked_while_a_journal_is_being_made(tmp_path: Path) -> None:
    """A process forked during a creation holds no lock of the session once its maker closed it."""
    store = build.make_store(tmp_path)
    new = NewJournal(LOCAL_DISK, store.sessions, "s1", purpose="create", top=store.top)
    new.add([build.SESSION_RECORD])
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        owner, _ = new.publish(store.path())
        owner.release()
        build.reopen(store).owner.release()
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


def test_F119_a_copy_of_the_descriptor_keeps_no_lock(tmp_path: Path) -> None:
    """A child between fork and exec has the descriptor; the lock goes when its owner gives it back."""
    store = build.make_store(tmp_path)
    build.create(store).close()
    owner = build.reopen(store).owner
    copy = os.dup(owner.file._descriptor)
    try:
        owner.release()
        build.reopen(store).owner.release()
    finally:
        os.close(copy)


def test_relative_folders_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders below a relative path are made or refused; never an endless walk upwards."""
    monkeypatch.chdir(tmp_path)
    disk = FaultyDisk()

    def stop(op: Op) -> None:
        if len(disk.log) > 200:
            raise RuntimeError("endless")

    disk.before = stop
    try:
        make_folders(disk, "a/b/c", "a")
    except (OSError, TreeringError):
        return
    assert (tmp_path / "a/b/c").is_dir()


def test_one_winner_of_many(store: build.Store) -> None:
    """N processes race for one session, again and again: exactly one has it at any time."""
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from support import build\n"
        "from treering.engine.errors import Owned\n"
        "store = build.Store(*sys.argv[2:6])\n"
        "won = 0\n"
        "end = time.monotonic() + 1.5\n"
        "while time.monotonic() < end:\n"
        "    try: writer = build.writer_of(build.reopen(store, note=True))\n"
        "    except Owned: continue\n"
        "    writer.append([build.entry(sys.argv[6] + '-' + str(won))]); writer.close(); won += 1\n"
        "print(won)\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(TESTS), store.top, store.sessions, store.quarantine,
             store.note, f"p{number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]  # fmt: skip
    won = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4
    data = build.get(store.path())
    assert build.look(data).case == "A"
    shown = [payload for _, _, payload in build.visible(data, data[28:44])]
    assert len(shown) == len(set(shown)) == sum(won) > 0
