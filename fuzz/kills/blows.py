"""When a process is struck: at a moment drawn at random, or exactly at one of its system calls.

``strace`` attaches to the waiting process and injects the signal: the process dies on entering the
chosen call, which is not made any more. So the k-th call of a kind is the moment before it and,
with k + 1, the moment after it.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from typing import Final, NamedTuple

from treering.fuzz.kills.crew import PATIENCE_S, Actor, CouldNotRunError, Crew
from treering.fuzz.kills.server import STOP_SIGNAL

CALLS: Final = {
    "openat": "openat",
    "flock": "flock",
    "pwrite64": "pwrite64",
    "fdatasync": "fdatasync",
    "fsync": "fsync",
    "ftruncate": "ftruncate",
    "mkdir": "?mkdir,mkdirat",
    "link": "?link,linkat",
    "rename": "?rename,renameat,renameat2",
    "unlink": "?unlink,unlinkat",
    "rmdir": "?rmdir,unlinkat",
    "write": "write",
}
"""Calls by the names used here, each with the set of strace (``write`` acknowledges)."""


class Moment(NamedTuple):
    """So long after the process said a word for so many times."""

    seconds: float
    word: str = "READY"
    times: int = 1


class Exactly(NamedTuple):
    """On entering the call of that kind for this time (counted from 1, for each thread)."""

    call: str
    when: int


Blow = Moment | Exactly


_TRACED: Final = """
import time
from treering.fuzz.kills.roles import let_trace
let_trace()
print("ready", flush=True)
time.sleep(60)
"""


def why_no_strace() -> str | None:
    """Why processes cannot be killed exactly at a system call here; None when they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.Popen([sys.executable, "-c", _TRACED], stdout=subprocess.PIPE)
    assert probe.stdout is not None
    try:
        probe.stdout.readline()
        with _Tracer(probe.pid, Exactly("write", 1)):
            probe.kill()
    except CouldNotRunError as error:
        return str(error)
    finally:
        probe.kill()
        probe.wait()
        probe.stdout.close()
    return None


def strike(crew: Crew, actor: Actor, blow: Blow) -> bool:
    """Let the process run into the blow; whether it was killed (and did not end before)."""
    if isinstance(blow, Moment):
        crew.until(
            lambda: len(actor.rests(blow.word)) >= blow.times or actor.status is not None,
            f"the {actor.role}",
        )
        crew.pause(blow.seconds, actor)
        crew.kill(actor)
        return actor.status == -9
    # Two processes say so, in any order.
    crew.until(lambda: actor.pid and actor.has_said("READY"), f"the {actor.role}")
    with _Tracer(actor.pid, blow):
        crew.signal(actor, STOP_SIGNAL.name)
        crew.until(lambda: actor.status is not None, f"the end of the {actor.role}")
    return actor.status == -9


class _Tracer:
    """One strace, attached before the process goes on; it ends with the process."""

    def __init__(self, pid: int, blow: Exactly) -> None:
        calls = CALLS[blow.call]
        inject = f"inject={calls}:signal=KILL:when={blow.when}"
        program = shutil.which("strace") or "strace"
        command = [program, "-f", "-p", str(pid), "-e", f"trace={calls}", "-e", inject]
        self._process = subprocess.Popen(
            [*command, "-o", os.devnull], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._process.stderr is not None
        ready, _, _ = select.select([self._process.stderr], [], [], PATIENCE_S)
        line = self._process.stderr.readline() if ready else b"(silence)"
        if b"attached" not in line:
            self._end()
            raise CouldNotRunError(f"strace did not attach: {line.decode().strip()}")

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stderr is not None
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()
