"""The system calls of commands that only look: none of them writes, renames, removes or opens for
writing anything in the store; and nobody but SQLite opens an index that is in use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from bars_helpers import COMMAND, command, custom, traced
from support.stores import DRY_RUNS, damaged_store, picture, without_catalogue

from treering.engine import Session

LISTS = [
    ["session", "list"],
    ["session", "list", "--json"],
]
LOOKING = [
    ["session", "show", "{}"],
    ["session", "show", "{}", "--raw"],
    ["session", "tree", "{}"],
    ["session", "info", "{}"],
    ["session", "associations", "{}"],
    ["session", "export", "{}"],
    ["session", "export", "{}", "--branch"],
    ["session", "import", "--preview", "{source}"],
    ["resume", "{}"],
    ["dump", "{}"],
    ["dump", "{}", "--frames"],
    ["fsck", "{}"],
    ["fsck", "{}", "--index"],
    ["fsck", "{}", "--index", "--json"],
    ["fsck", "--all", "--index"],
    ["fsck", "--all", "--index", "--json"],
    *DRY_RUNS,
]
LOOK = """
import os, sys
sys.stdout = open(os.devnull, "w")
sys.stderr = open(sys.argv[2], "w")
from treering.tools.entry import main
for line in open(sys.argv[1]):
    main(line.rstrip("\\n").split("\\t"))
"""

CHANGES = (
    "write,pwrite64,writev,pwritev,pwritev2,truncate,ftruncate,fallocate,rename,renameat,renameat2,"
    "unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,"
    "fchmodat,chown,fchown,lchown,fchownat,utime,utimes,utimensat,futimesat,setxattr,fsetxattr,"
    "lsetxattr,removexattr,copy_file_range,sendfile,splice,open,openat,openat2,creat,flock"
)
INTO_THE_FIRST = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile")
OPENS = ("open", "openat", "openat2", "creat")


def changes(log: Path, folder: Path) -> list[str]:
    """The traced calls that change something below the folder, or could."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        call = re.match(r"\d+\s+(\w+)\(", line)
        if call is None or str(folder) not in line:
            continue
        if call[1] in OPENS:
            if not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND", line):
                continue
        elif call[1] in INTO_THE_FIRST and f"<{folder}" not in line.split(",")[0]:
            continue  # the path is in what is written to a terminal, or what is copied from
        found.append(line)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Sessions in every state, with and without an index, and one that its owner left behind."""
    return damaged_store(tmp_path / "home")


def look(store: Path, tmp_path: Path, commands: list[list[str]]) -> list[str]:
    """Run commands for every session under strace; the calls that could change the store."""
    names = [path.stem for path in sorted((store / "sessions").glob("*.jsonl"))]
    lines = []
    for words in commands:
        for name in names if "{}" in words else names[:1]:
            filled = [word.format(name, source=store / "source") for word in words]
            lines.append("\t".join([*filled, "--home", str(store)]))
    todo = tmp_path / "todo"
    todo.write_text("\n".join(lines) + "\n")
    before = without_catalogue(picture(store))
    log = tmp_path / "trace"
    errors = tmp_path / "errors"
    done = traced(
        log,
        ["-y", "-e", f"trace={CHANGES}"],
        [sys.executable, "-c", LOOK, str(todo), str(errors)],
    )
    assert done.returncode == 0, done.stderr
    assert "internal error" not in errors.read_text()
    assert log.read_text(errors="replace").count(f"{store}/sessions/") > len(lines)
    assert without_catalogue(picture(store)) == before
    return changes(log, store)


def test_looking_makes_no_call_that_changes_the_store(store: Path, tmp_path: Path) -> None:
    """strace of every reading command on a session of every kind, `repair --dry-run` in every mode
    among them: no write, rename, unlink, mkdir, chmod, time stamp, lock, or open for writing below
    the store; and the picture is the same, folders and their times included."""
    before = picture(store)
    assert look(store, tmp_path, LOOKING) == []
    assert picture(store) == before


def test_a_list_changes_only_the_catalogue(store: Path, tmp_path: Path) -> None:
    """The same of lists: every call that changes something is about the catalogue's own files, or
    makes the names of its folder durable."""
    found = look(store, tmp_path, LISTS)
    index = f"{store}/session-index"
    assert found, "a list keeps what it read"
    others = [line for line in found if f"{index}/catalogue_." not in line]
    assert [line for line in others if not line.endswith("= -1 EEXIST (File exists)")] == []


def test_fsck_in_processes_makes_no_such_call_either(store: Path, tmp_path: Path) -> None:
    """The real `treering fsck --all --index --jobs 2`, with its workers."""
    before = picture(store)
    log = tmp_path / "trace"
    done = traced(
        log,
        ["-y", "-e", f"trace={CHANGES}"],
        [*COMMAND, "fsck", "--all", "--index", "--jobs", "2", "--home", str(store)],
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == b""
    assert f"{store}/sessions/".encode() in log.read_bytes()
    assert changes(log, store) == []
    assert picture(store) == before


def test_the_trace_would_show_a_change(store: Path, tmp_path: Path) -> None:
    """The same look at a command that writes finds its calls: the tests above can fail."""
    log = tmp_path / "trace"
    words = ["session", "name", "clean", "n", "--home", str(store)]
    traced(log, ["-y", "-e", f"trace={CHANGES}"], [*COMMAND, *words])
    names = {line.split("(")[0].split()[1] for line in changes(log, store)}
    assert {"openat", "pwrite64"} <= names


OWNER = """
import os, sys, threading
opened = []
busy = False
def look(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, bytes)):
        return
    if isinstance(arguments[2], int) and arguments[2] & os.O_EXCL:
        return  # a file that is being made: no other descriptor of it has a lock to lose
    path = os.fsdecode(arguments[0])
    if ".sqlite3" in path or ".build-" in path:
        base = path
        for tail in ("-wal", "-shm", "-journal"):
            base = base.removesuffix(tail)
        from treering.index.handle import is_open
        from treering.index.schema import resolved
        if is_open(resolved(base)):
            opened.append(path)
sys.addaudithook(look)
from treering.engine import Session, SessionView, export_jsonl
from treering.engine.session import housekeeping
from treering.tools.entry import main
housekeeping.INDEX_LAG_S = 0.01
path, home = sys.argv[1], sys.argv[2]
quiet = open(os.devnull, "w")
session = Session.open(path)
session.append({"type": "custom", "id": "o1"})
session.counts()
out, sys.stdout = sys.stdout, quiet
index = session._indexer._index
index._db.execute("BEGIN IMMEDIATE")
index._db.execute("UPDATE state SET label_waits = label_waits")
for words in (
    ["fsck", "--all", "--index"], ["session", "list"], ["session", "info", "s"], ["dump", "s"],
    ["session", "export", "s"], ["session", "tree", "s"], ["repair", "s", "--dry-run"],
    ["session", "name", "s", "x"], ["reindex", "s"],
):
    main([*words, "--home", home])
with SessionView.open(path) as view:
    export_jsonl(view, home + "/export.jsonl")
sys.stdout = out
print("look", flush=True)
sys.stdin.readline()
index._db.execute("COMMIT")
for number in range(50):
    session.append({"type": "custom"})
    session.leaf()
session.recover()
session.counts()
session.close()
print(opened, flush=True)
"""

WRITER = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(100)
try:
    db.execute("BEGIN IMMEDIATE")
    print("the lock was lost")
except apsw.BusyError:
    print("busy")
"""


def test_F116_only_sqlite_opens_an_index_in_use(home: Path) -> None:
    """While an owner is inside a write transaction of its index, checking, listing, exporting and
    repairing in the same process open neither the index nor its -wal or -shm (closing one would
    drop the lock): another process is still told that it is locked."""
    with Session.create(cwd="/w", home_dir=str(home), session_id="s") as session:
        session.append(custom("a"))
    (index,) = (home / "session-index").glob("s.*.sqlite3")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, session.path, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == "look\n"
        other = subprocess.run(
            [sys.executable, "-c", WRITER, index], capture_output=True, text=True, check=False
        )
        owner.stdin.write("\n")
        owner.stdin.flush()
        opened = owner.stdout.readline()
    assert other.stdout == "busy\n", other
    assert opened == "[]\n"
    assert owner.returncode == 0
    done = command("fsck", "s", "--index", "--home", home)
    assert done.returncode == 0, done
