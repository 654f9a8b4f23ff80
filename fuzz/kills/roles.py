"""What each kind of process does until it is killed. Runs in a forked child of the server.

Every line goes out in one write as soon as what it says is true. A process says LOOK before it
looks: what was acknowledged in the pipe before that line has to be in what it sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import xxhash

from treering.engine import (
    Closed,
    Conflict,
    CopyResult,
    NotFound,
    Owned,
    Session,
    SessionView,
    copy_branch,
    delete_session,
    fork_session,
    import_session,
    purge_deleted,
    undelete_session,
)
from treering.engine.home import Store, session_id_of
from treering.engine.session import housekeeping
from treering.fuzz.kills.conversing import converse
from treering.fuzz.kills.server import STOP_SIGNAL
from treering.fuzz.kills.story import Op, Story
from treering.fuzz.kills.tasks import append_with_tasks
from treering.tools.entry import main as treering
from treering.tools.fsck import check_session
from treering.tools.reindex import reindex_session

_PR_SET_PTRACER: Final = 0x59616D61
_ANYBODY: Final = ctypes.c_ulong(-1)

PATIENT_S: Final = 10.0
"""How long a writer waits for a session that another process of its round may own."""

Request = dict[str, Any]
_Made = TypeVar("_Made")

_slot = 0


def say(text: str) -> None:
    """One line to the harness."""
    os.write(1, f"{_slot} {text}\n".encode())


def play(request: Request) -> None:
    """Do what the role does. Errors are told; how the process ends is part of some roles."""
    global _slot  # noqa: PLW0603 (one role per process)
    _slot = request["slot"]
    # A round is too short to wait for a second, or for a pause in appending.
    patience = {"LAG_S": request.get("lag_s", 0.003), "LAG_FRAMES": 64, "IDLE_S": 0.0}
    for name, value in patience.items():
        assert hasattr(housekeeping, f"INDEX_{name}")
        setattr(housekeeping, f"INDEX_{name}", value)
    if request.get("traced"):
        let_trace()
        say("READY")
        signal.sigwait([STOP_SIGNAL])
    else:
        say("READY")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [STOP_SIGNAL])
    try:
        ROLES[request["role"]](request)
    except SystemExit:
        raise
    except BaseException as error:
        say(f"ERROR {type(error).__name__}: {error}".replace("\n", " "))
        raise


def let_trace() -> None:
    """Allow any process of the user to trace this one, where the system restricts that."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)


def _open(request: Request, path: str) -> Session:
    durability = request.get("durability", "full")
    compression = request.get("compression", True)
    return _patiently(
        lambda: Session.open(path, durability=durability, compression=compression),
        patient=request.get("patient", False),
    )


def _patiently(act: Callable[[], _Made], *, patient: bool) -> _Made:
    """Do it; while another process owns the session try again, if patient."""
    end = time.monotonic() + PATIENT_S
    while True:
        try:
            return act()
        except Owned:
            if not patient or time.monotonic() > end:
                raise
            time.sleep(0.0005)


def _write(request: Request) -> None:
    """Change a session until killed, or until so many calls are made."""
    path = request["path"]
    session = _open(request, path)
    say(f"OPEN {json.dumps(session.leaf_id)}")
    story = Story(
        request["seed"],
        request["round"],
        session.leaf_id,
        hows=request["hows"],
        large=request["large"],
    )
    for at in itertools.count():
        if at == request.get("fork_at"):
            _fork(session, request)
        op = story.next()
        label_id = None
        if op.how == "reopen":
            session.close()
            session = _open(request, path)
            assert session.leaf_id == story.leaf, "another position after closing and opening"
        else:
            label_id = _perform(session, op)
        story.done(op, label_id)
        say(f"ACK {at} {json.dumps(label_id)}")
        if at + 1 == request.get("stop"):
            _end(session, request.get("end", "close"))


def _perform(session: Session, op: Op) -> str | None:
    if op.how == "batch":
        with session.batch() as batch:
            for raw in op.raws:
                batch.append(raw)
    elif op.how == "many":
        session.append_many(op.raws)
    elif op.how == "one":
        session.append(op.raws[0])
    elif op.how == "branch":
        session.branch_to(op.target)
    else:
        assert op.target is not None
        return session.set_label(op.target, op.text)
    return None


def _end(session: Session, how: str) -> None:
    """End: cleanly, or in one of the ways that close nothing."""
    if how == "close":
        session.close()
        sys.exit(0)
    if how == "exit":
        sys.exit(0)
    if how == "os._exit":
        os._exit(3)
    if how == "exception":
        raise ValueError("not caught")
    number = getattr(signal, how)
    if number != signal.SIGKILL:
        # In the background of a shell, or under nohup, some are ignored, and a child inherits that.
        normal = signal.default_int_handler if how == "SIGINT" else signal.SIG_DFL
        signal.signal(number, normal)
    os.kill(os.getpid(), number)
    time.sleep(60)


def _fork(session: Session, request: Request) -> None:
    """Leave a process behind that lives beside a killed owner, and must hold nothing of its."""
    seconds = request["outlive_s"]
    if request["fork_how"] == "spawn":
        command = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({seconds})"]
        left = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        say(f"LEFT {left.pid}")
        return
    if os.fork() != 0:
        return
    try:
        session.append({"type": "custom", "customType": "forked"})
        found = "an append"
    except Closed:
        found = "Closed"
    say(f"LEFT {os.getpid()} {found}")
    os.close(1)
    time.sleep(seconds)
    os._exit(0)


def _rival(request: Request) -> None:
    """Try to own the session at a given moment; the one who does appends once, and holds it."""
    # Asleep until shortly before, then awake: the rivals come within microseconds of each other.
    time.sleep(max(0.0, request["at"] - time.monotonic() - 0.002))
    while time.monotonic() < request["at"]:
        pass
    start = time.monotonic()
    try:
        session = Session.open(request["path"])
    except Owned as refusal:
        took_ms = int((time.monotonic() - start) * 1000)
        say(f"OWNED {took_ms} {refusal.holder_pid}")
        return
    say(f"OPEN {json.dumps(session.leaf_id)}")
    if request.get("only_open"):
        time.sleep(60)
    story = Story(
        request["seed"], request["round"], session.leaf_id, hows=("one",), large=request["large"]
    )
    _perform(session, story.next())
    say("ACK 0 null")
    time.sleep(60)


def digest_of(raws: Iterable[bytes]) -> list[str]:
    """The digests of every beginning of the entries, the empty one first."""
    state = xxhash.xxh3_128()
    found = [state.hexdigest()]
    for raw in raws:
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
        found.append(state.hexdigest())
    return found


def _read(request: Request) -> None:
    """Look at the session as a view, again and again."""
    for _ in range(request.get("times", 1 << 60)):
        say("LOOK")
        with SessionView.open(request["path"]) as view:
            digests = digest_of(entry.raw for entry in view.iter_entries())
            found = [len(digests) - 1, digests[-1], view.report.case, view.counts()["entries"]]
        say(f"SAW {json.dumps(found)}")


def _list(request: Request) -> None:
    """``treering session list``, again and again."""
    for _ in range(request.get("times", 1 << 60)):
        say("LOOK")
        code, text = _command("session", "list", "--home", request["home"], "--json")
        rows = [[row["id"], row["status"], row["entries"]] for row in json.loads(text)]
        say(f"LISTED {code} {json.dumps(rows)}")


def _check(request: Request) -> None:
    """``fsck``, again and again."""
    for _ in range(request.get("times", 1 << 60)):
        say("LOOK")
        checked = check_session(request["path"], with_index=True)
        found = [finding.what for finding in checked.findings if finding.needs_action]
        say(f"CHECKED {json.dumps([checked.case, checked.entries, found])}")


def _reindex(request: Request) -> None:
    """Build the index anew, again and again; refused while somebody owns the session."""
    for _ in range(request.get("times", 1 << 60)):
        say("TRY")
        done = reindex_session(request["path"])
        if done.error is not None and not done.skipped:
            raise RuntimeError(f"reindex: {done.error}")
        say("REINDEXED skipped" if done.skipped else f"REINDEXED {done.rows}")


def _create(request: Request) -> None:
    """Make sessions of given names, each with one entry."""
    for name in request["names"]:
        say(f"TRY {name}")
        session = Session.create("/work", home_dir=request["home"], session_id=name)
        say(f"MADE {name}")
        session.append(request["raw"].encode())
        say(f"ACK {name}")
        session.close()
        say(f"CLOSED {name}")


def _import(request: Request) -> None:
    """Import one file, again and again."""
    for _ in range(request.get("times", 1 << 60)):
        say("TRY")
        result = import_session(request["source"], cwd="/work", home_dir=request["home"])
        say(f"MADE {result.session_id}")


def _copy(request: Request) -> None:
    """Copy a session in one way after the other, again and again."""
    hows = itertools.cycle(request["hows"])
    for how in itertools.islice(hows, request.get("times", 1 << 60)):
        say(f"TRY {how}")
        done = _copied(how, request["path"], request["home"])
        say("SKIPPED" if done is None else f"COPIED {done.session_id} {done.entries}")


def _copied(how: str, path: str, home: str) -> CopyResult | None:
    """A whole session, the branch that a reader sees, or that of its own; None without any."""
    if how == "fork":
        return fork_session(path, "/work", home_dir=home)
    reads: Session | SessionView
    reads = SessionView.open(path) if how == "clone" else Session.open(path)
    with reads:
        return None if reads.leaf_id is None else copy_branch(reads, reads.leaf_id, home_dir=home)


def _delete(request: Request) -> None:
    """Delete a session, bring it back, purge it: one after the other."""
    path = request["path"]
    store, session_id = Store.of_journal(path), session_id_of(path)
    acts: dict[str, Callable[[], object]] = {
        "delete": lambda: delete_session(path),
        "undelete": lambda: undelete_session(store, session_id),
        "purge": lambda: purge_deleted(store, session_id),
    }
    for verb in request["verbs"]:
        say(f"TRY {verb}")
        try:
            _patiently(acts[verb], patient=request.get("patient", False))
        except (Conflict, NotFound, Owned) as refusal:
            say(f"REFUSED {verb} {type(refusal).__name__}: {refusal}".replace("\n", " "))
        else:
            say(f"DONE {verb}")


def _tasks(request: Request) -> None:
    """Many tasks of one manager append."""
    asyncio.run(append_with_tasks(request, say))


def _capture(request: Request) -> None:
    """One task that records requests, links answers and makes context epochs."""
    asyncio.run(converse(request, say))


def _repair(request: Request) -> None:
    """``treering repair``."""
    code, text = _command("repair", request["path"], "--home", request["home"], "--json")
    say(f"REPAIRED {code} {text}")


def _command(*arguments: str) -> tuple[int, str]:
    """The command's own entry, in this process: exit code and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = treering(arguments)
    return code, " ".join(printed.getvalue().split())


ROLES: Final[dict[str, Callable[[Request], None]]] = {
    "writer": _write,
    "rival": _rival,
    "reader": _read,
    "lister": _list,
    "checker": _check,
    "reindexer": _reindex,
    "creator": _create,
    "importer": _import,
    "repairer": _repair,
    "copier": _copy,
    "deleter": _delete,
    "tasks": _tasks,
    "captures": _capture,
}
"""By the names that requests use."""
