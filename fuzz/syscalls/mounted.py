"""What is checked inside a mount namespace of our own; run by :mod:`treering.fuzz.syscalls.mounts`.

``python -m treering.fuzz.syscalls.mounted NAME FOLDER`` prints what broke, a JSON string a line.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from treering.engine import Session, StorageFull, TreeringError
from treering.fuzz.syscalls import stores
from treering.fuzz.syscalls.checks import path_of, session_names
from treering.fuzz.syscalls.stores import Place
from treering.tools.fsck import check_session

_PAGE_BYTES: Final = 4096


def command(place: Place, *words: str) -> subprocess.CompletedProcess[bytes]:
    """The real command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "treering.tools", *words, "--home", place.home],
        capture_output=True,
        check=False,
        timeout=60,
    )


def refused(done: subprocess.CompletedProcess[bytes], *codes: int) -> Iterator[str]:
    """One line, and one of these exit codes."""
    what = " ".join(done.args[3:])
    if done.returncode not in codes:
        yield f"{what}: exit code {done.returncode}: {done.stderr[-300:]!r}"
    if done.returncode and done.stderr.count(b"\n") != 1:
        yield f"{what}: not one line: {done.stderr[-300:]!r}"
    if done.returncode and not done.stderr.startswith(b"treering: "):
        yield f"{what}: {done.stderr[-300:]!r}"
    if b"internal error" in done.stderr or b"Traceback" in done.stderr:
        yield f"{what}: {done.stderr[-300:]!r}"


def works(done: subprocess.CompletedProcess[bytes]) -> Iterator[str]:
    """Exit code 0, without a word of complaint."""
    if done.returncode or done.stderr:
        what = " ".join(done.args[3:])
        yield f"{what}: exit code {done.returncode}: {done.stderr[-300:]!r}"


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _fill(path: str) -> None:
    """Use up the last block."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(512))
        except OSError:
            return


def _free(place: Place, *names: str) -> None:
    """Remove files. Some file systems give their blocks out again only when they were synced."""
    for name in names:
        os.unlink(os.path.join(place.root, name))
    subprocess.run(["sync", "-f", place.root], check=False)


def full(place: Place) -> Iterator[str]:
    """Filled by appends of one owner; freed; the same owner goes on; the same with commands."""
    draw = random.Random(1)
    with open(place.source, "wb") as source:
        source.write(stores.SOURCE)
    with open(os.path.join(place.root, "ballast"), "wb") as ballast:
        ballast.write(bytes(400_000))
    session = Session.create(cwd="/w", home_dir=place.home, session_id=stores.SESSION_ID)
    acknowledged: list[str] = []
    try:
        while True:
            one = f"e{len(acknowledged)}"
            session.append(stores.entry(one, draw.randbytes(700).hex()))
            acknowledged.append(one)
    except StorageFull:
        pass
    if len(acknowledged) < 10:
        yield f"only {len(acknowledged)} entries fitted"
    _fill(os.path.join(place.root, "rest"))
    try:
        session.append(stores.entry("more", draw.randbytes(2 * _PAGE_BYTES).hex()))
        yield "an append without space was acknowledged"
    except StorageFull:
        pass
    _free(place, "ballast")
    acknowledged.append(session.append(stores.entry("freed", draw.randbytes(700).hex())))
    session.close()
    _fill(os.path.join(place.root, "ballast"))
    yield from _full_commands(place, acknowledged, draw)


def _full_commands(place: Place, acknowledged: list[str], draw: random.Random) -> Iterator[str]:
    before = _read(place.journal)
    slack = -len(before) % _PAGE_BYTES
    good = stores.SESSION_ID
    yield from refused(
        command(place, "session", "name", good, draw.randbytes(slack + 4096).hex()), 3
    )
    if _read(place.journal) != before:
        yield "a refused command left bytes in the journal"
    there = [f"{good}.jsonl"]
    for words in (["session", "new"], ["session", "import", place.source]):
        done = command(place, *words)
        if done.returncode == 0:  # some file systems find a block for a small file all the same
            there.append(os.path.basename(done.stdout.decode().strip()))
        else:
            yield from refused(done, 3)
    if sorted(os.listdir(place.sessions)) != sorted(there):
        yield f"left behind: {os.listdir(place.sessions)}"
    looked = command(place, "session", "export", good)
    yield from works(looked)
    missing = [one for one in acknowledged if f'"id":"{one}"'.encode() not in looked.stdout]
    if missing or b'"more"' in looked.stdout:
        yield f"acknowledged and not there: {missing}"
    _free(place, "rest", "ballast")
    for words in (["session", "name", good, "there is space"], ["session", "new"]):
        done = command(place, *words)
        if done.returncode:
            yield from works(done)
    yield from works(command(place, "fsck", "--index"))


def full_quarantine(place: Place) -> Iterator[str]:
    """No space for the copy of a torn tail: refused, and nothing is cut; with space it goes on."""
    before = stores.prepare(place._replace(root=os.path.join(place.root, "in")), stores.good)
    place = place._replace(root=os.path.join(place.root, "in"))
    with open(place.journal, "ab") as file:
        file.write(before.journal[128:] * 6)
        file.write(b"half")
    torn = _read(place.journal)
    shutil.rmtree(os.path.join(place.home, "session-index"), ignore_errors=True)
    rest = os.path.join(place.root, "rest")
    _fill(rest)
    done = command(place, "session", "name", stores.SESSION_ID, "n")
    yield from refused(done, 3)
    if _read(place.journal) != torn:
        yield "a torn tail was cut without a copy of it"
    _free(place, "rest")
    done = command(place, "session", "name", stores.SESSION_ID, "n")
    if done.returncode:
        yield from refused(done, 0)
    yield from _clean(place)


def read_only(place: Place) -> Iterator[str]:
    """The whole store: looking works, writing is one line and 1 or 3, nothing changes."""
    before = stores.prepare(place._replace(root=os.path.join(place.root, "in")), stores.good)
    place = place._replace(root=os.path.join(place.root, "in"))
    files = _all_files(place.home)
    _forbid(place.home)
    good = stores.SESSION_ID
    for words in (
        ["session", "list"],
        ["session", "show", good],
        ["session", "export", good],
        ["fsck", "--index"],
    ):
        yield from works(command(place, *words))
    for words in (
        ["session", "new"],
        ["session", "name", good, "n"],
        ["session", "label", good, "e1", "l"],
        ["session", "branch", good, "e1"],
        ["session", "import", place.source],
        ["reindex", good],
    ):
        yield from refused(command(place, *words), 1, 3)
    if _all_files(place.home) != files or _read(place.journal) != before.journal:
        yield "something changed"
    _allow(place.home)
    yield from works(command(place, "session", "name", good, "n"))
    yield from _clean(place)


def read_only_folders(place: Place) -> Iterator[str]:
    """One folder after the other: only what has to be in it is refused."""
    for name, refuses in (
        ("sessions", True),
        ("session-index", False),
        ("session-artifacts", True),
    ):
        inner = place._replace(root=os.path.join(place.root, name))
        before = stores.prepare(inner, stores.torn)
        folder = os.path.join(inner.home, name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _forbid(folder)
        done = command(inner, "session", "name", stores.SESSION_ID, "n")
        if refuses:
            yield from refused(done, 1, 3)
            if _read(inner.journal) != before.journal:
                yield f"{name} read-only: the journal changed"
        elif done.returncode or b'"n"' not in _read(inner.journal):
            yield f"{name} read-only: {done.stderr[-300:]!r}"
        _allow(folder)
        done = command(inner, "session", "name", stores.SESSION_ID, "again")
        if done.returncode:
            yield from works(done)
        yield from _clean(inner)


def remounted(place: Place) -> Iterator[str]:
    """Turned read-only under an owner (when the system lets us, else after its death)."""
    stores.good(place)
    pid = os.fork()
    if pid == 0:
        session = Session.open(place.journal)
        session.append(stores.entry("owned"))
        os.kill(os.getpid(), signal.SIGSTOP)
        code = 1
        try:
            session.append(stores.entry("late"))
        except TreeringError:
            code = 0
        os._exit(code)
    os.waitpid(pid, os.WUNTRACED)
    under_owner = _remount(place.root, "ro")
    if under_owner:
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status):
            yield "an append to a read-only file system was acknowledged"
    else:
        # The kernel refuses while a file is open for writing; only errors of a device do it.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not _remount(place.root, "ro"):
            sys.exit(77)
    before = _read(place.journal)
    looked = command(place, "session", "export", stores.SESSION_ID)
    yield from works(looked)
    if b'"owned"' not in looked.stdout or b'"late"' in looked.stdout:
        yield "the read-only store shows something else than was acknowledged"
    yield from refused(command(place, "session", "name", stores.SESSION_ID, "n"), 3)
    if _read(place.journal) != before:
        yield "the journal changed"
    _remount(place.root, "rw")
    yield from works(command(place, "session", "name", stores.SESSION_ID, "n"))
    yield from _clean(place)


def _remount(folder: str, how: str) -> bool:
    return _mount("-o", f"remount,bind,{how}", folder)


def _forbid(folder: str) -> None:
    """Nobody may write below ``folder``. Root may everywhere but on what is mounted read-only."""
    if os.geteuid() == 0:
        if not (_mount("--bind", folder, folder) and _remount(folder, "ro")):
            sys.exit(77)
        return
    _set_modes(folder, 0o500, 0o400)


def _allow(folder: str) -> None:
    if os.geteuid() == 0:
        _remount(folder, "rw")
        return
    _set_modes(folder, 0o700, 0o600)


def _set_modes(top: str, folders: int, files: int) -> None:
    os.chmod(top, 0o700)
    for folder, below, names in list(os.walk(top)):
        for name in names:
            os.chmod(os.path.join(folder, name), files)
        for name in below:
            os.chmod(os.path.join(folder, name), 0o700)
    for folder, _, _ in list(os.walk(top)):
        os.chmod(folder, folders)


def _all_files(folder: str) -> list[Any]:
    found = []
    for top, _, files in sorted(os.walk(folder)):
        found += [(os.path.join(top, name), _read(os.path.join(top, name))) for name in files]
    return sorted(found)


def _clean(place: Place) -> Iterator[str]:
    for name in session_names(place):
        checked = check_session(path_of(place, name), with_index=True)
        yield from (f"fsck: {f.kind}: {f.what}" for f in checked.findings if f.needs_action)


CHECKS: Final[dict[str, Callable[[Place], Iterator[str]]]] = {
    "full": full,
    "full-quarantine": full_quarantine,
    "read-only": read_only,
    "read-only-folders": read_only_folders,
    "remounted": remounted,
}
"""Each on a small file system of its own that is mounted at the folder of the place."""

WITHOUT_MOUNT: Final = frozenset(("read-only", "read-only-folders"))
"""Those that somebody else than root can have by modes of files."""

if __name__ == "__main__":
    _place = Place(sys.argv[2])
    for _wrong in (*CHECKS[sys.argv[1]](_place), None):
        sys.stdout.write(json.dumps(_wrong) + "\n")
