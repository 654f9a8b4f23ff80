"""The harness's side of the server: starting processes, hearing what they say, ending them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

PATIENCE_S: Final = 30.0
"""A process that says nothing for so long, where something is due, hangs."""


class BrokenPromise(AssertionError):
    """What the killed processes left is not what was promised."""


class CouldNotRunError(RuntimeError):
    """The machinery of the harness failed: nothing is known about the promises."""


class Said(NamedTuple):
    """One line of a process."""

    slot: int
    word: str
    rest: str


class Actor:
    """One process under test, as it is seen from outside."""

    def __init__(self, slot: int, role: str) -> None:
        self.slot, self.role = slot, role
        self.pid = 0
        self.said: list[Said] = []
        self.status: int | None = None
        """Exit code, or minus the signal that ended it; None while it lives."""

    def rests(self, word: str) -> list[str]:
        """What it said with that word, in order."""
        return [said.rest for said in self.said if said.word == word]

    def has_said(self, word: str) -> bool:
        """Whether it said that word."""
        return any(said.word == word for said in self.said)


class Crew:
    """A server and the processes that it was asked for."""

    def __init__(self, *, plant: str | None = None, errors_path: str = os.devnull) -> None:
        self.history: list[Said] = []
        """All lines since :meth:`forget`, in the order in which they were written."""
        self.killed: Counter[str] = Counter()
        """By role, the processes that died of SIGKILL."""
        self._actors: dict[int, Actor] = {}
        self._slots = 0
        self._buffer = b""
        self.may_fail: set[int] = set()
        """Slots whose errors are expected."""
        with open(errors_path, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "treering.fuzz.kills.server", *([plant] if plant else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server, which ends what it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()  # a server that waits for room in the pipe would never end
        self._process.wait(PATIENCE_S)

    def forget(self) -> None:
        """A new round: nothing has been said."""
        self.history = []

    def start(self, role: str, **request: Any) -> Actor:
        """Start a process; it says READY before it does anything."""
        self._slots += 1
        actor = self._actors[self._slots] = Actor(self._slots, role)
        self._request({"slot": actor.slot, "role": role, **request})
        return actor

    def signal(self, actor: Actor, name: str) -> None:
        """Send it a signal; without effect when it is dead."""
        self._request({"slot": actor.slot, "signal": name})

    def kill(self, *actors: Actor) -> None:
        """SIGKILL, and wait until they are dead."""
        for actor in actors:
            self.signal(actor, "SIGKILL")
        self.until(lambda: all(actor.status is not None for actor in actors), "dead processes")

    def _request(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def pause(self, seconds: float, actor: Actor | None = None) -> None:
        """Listen for a while, or until a process is dead."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (actor is None or actor.status is None):
            self._listen(left)

    def until(
        self, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S
    ) -> None:
        """Listen until the condition holds.

        Raises:
            BrokenPromise: it does not within the time.
        """
        end = time.monotonic() + timeout_s
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                raise BrokenPromise(f"waited {timeout_s} s in vain for {what}")
            self._listen(left)

    def _listen(self, timeout_s: float) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            return
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if not data:
            raise CouldNotRunError(f"the server of the processes ended ({self._process.wait()})")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._hear(line.decode())

    def _hear(self, line: str) -> None:
        slot, word, rest = (*line.split(" ", 2), "")[:3]
        said = Said(int(slot), word, rest)
        actor = self._actors[said.slot]
        actor.said.append(said)
        self.history.append(said)
        if word == "PID":
            actor.pid = int(rest)
        elif word == "DEAD":
            actor.status = int(rest)
            if actor.status == -9:
                self.killed[actor.role] += 1
            del self._actors[said.slot]
        elif word == "ERROR" and said.slot not in self.may_fail:
            raise BrokenPromise(f"the {actor.role} failed: {rest}")
