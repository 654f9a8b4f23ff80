"""One owner: refused with the holder's pid, exactly one winner, a stopped owner still owns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from session_helpers import custom, new

from treering.engine import Owned, Session, SessionView

OWNER = """
import sys, os
from treering.engine import Session
session = Session.open(sys.argv[1])
session.append({"type": "custom", "customType": "child", "id": sys.argv[2]})
print("owned", flush=True)
sys.stdin.readline()
"""

RACER = """
import sys, time
from treering.engine import Session, Owned
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
for number in range(rounds):
    end = time.monotonic() + 30
    while True:
        try:
            session = Session.open(path)
            break
        except Owned as error:
            assert time.monotonic() < end
            time.sleep(0.002)
    session.append_many(
        [{"type": "custom", "id": f"{name}-{number}-{i}", "data": "x" * i * 400} for i in range(5)]
    )
    session.close()
print("done", flush=True)
"""

WINNER = """
import sys
from treering.engine import Session, Owned
sys.stdin.readline()
try:
    session = Session.open(sys.argv[1])
except Owned as error:
    print("refused", error.holder_pid, flush=True)
else:
    print("won", flush=True)
    sys.stdin.readline()
"""


def start(script: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    process.wait(20)


def test_F73_a_live_or_stopped_owner_is_named_and_a_dead_one_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """While the owner lives, also while it is stopped, an opener is told its pid at once; after
    SIGKILL the next opener has the session within a second."""
    session = new(tmp_path)
    path = session.path
    session.close()
    owner = start(OWNER, path, "c1")
    assert owner.stdout is not None
    assert owner.stdout.readline() == "owned\n"
    for stop in (False, True):
        if stop:
            os.kill(owner.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(Owned) as caught:
            Session.open(path)
        assert time.monotonic() - begin < 1
        assert caught.value.holder_pid == owner.pid
        assert str(owner.pid) in str(caught.value)
        assert caught.value.since_ms is not None
        with SessionView.open(path) as view:
            assert view.has("c1")
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    begin = time.monotonic()
    with Session.open(path) as again:
        assert time.monotonic() - begin < 1
        assert again.has("c1")
        again.append(custom("after"))
    end(owner)


def test_F11_F13_processes_take_turns(tmp_path: Path) -> None:
    """Processes that fight for one session: every entry is there once, each writer's order is kept,
    sequences rise, nothing is welded."""
    session = new(tmp_path)
    path = session.path
    session.close()
    rounds = 6
    racers = [start(RACER, path, f"p{i}", str(rounds)) for i in range(4)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "done\n"
        end(racer)
    with Session.open(path) as again:
        entries = list(again.iter_entries())
        assert len(entries) == 4 * rounds * 5
        for name in range(4):
            own = [e.id for e in entries if e.id.startswith(f"p{name}-")]
            assert own == [f"p{name}-{r}-{i}" for r in range(rounds) for i in range(5)]
        assert [e.id for e in again.branch()] == [e.id for e in entries]
        sequences = [e.sequence for e in entries]
        assert sequences == sorted(set(sequences))


def test_exactly_one_of_many_openers_wins(tmp_path: Path) -> None:
    """Six processes open at once, three times: one wins each time, the others name a pid or say
    that it is owned."""
    session = new(tmp_path)
    path = session.path
    session.close()
    for _ in range(3):
        openers = [start(WINNER, path) for _ in range(6)]
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write("go\n")
            opener.stdin.flush()
        answers = []
        for opener in openers:
            assert opener.stdout is not None
            answers.append(opener.stdout.readline().split())
        for opener in openers:
            end(opener)
        assert [a[0] for a in answers].count("won") == 1, answers
        winner = next(o.pid for o, a in zip(openers, answers, strict=True) if a[0] == "won")
        assert all(a[1] in (str(winner), "None") for a in answers if a[0] == "refused"), answers
    with Session.open(path) as again:
        again.append(custom("x"))
