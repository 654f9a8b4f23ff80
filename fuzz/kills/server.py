"""The processes that get killed. A server forks one warm child for each request.

Starting an interpreter and importing the engine costs more than a round; a forked child of a
process that has both costs a few milliseconds. One pipe carries what all children say, each line
in one write: its order is an order of events, seen from outside of every process under test.

Run as ``python -m treering.fuzz.kills.server [PLANT]``; requests come as JSON lines on stdin.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

STOP_SIGNAL = signal.SIGUSR1
"""What a child that is going to be traced waits for."""


class Server:
    """Children by process id, each with the slot by which its requester knows it."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, [STOP_SIGNAL])
        self._buffer = b""

    def serve(self) -> dict[str, Any] | None:
        """Serve until stdin ends; in a child, the request that it has to work on."""
        while True:
            ready, _, _ = select.select([0, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if 0 not in ready:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                self.end()
                return None
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                request = self._take(json.loads(line))
                if request is not None:
                    return request

    def _take(self, request: dict[str, Any]) -> dict[str, Any] | None:
        slot = request["slot"]
        if "signal" in request:
            # Only here, where children are also reaped, is their process id certain to be theirs.
            for pid, its_slot in self.slots.items():
                if its_slot == slot:
                    os.kill(pid, getattr(signal, request["signal"]))
            return None
        pid = os.fork()
        if pid == 0:
            self._become_child()
            return request
        self.slots[pid] = slot
        _say(slot, f"PID {pid}")
        return None

    def _become_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake)
        os.close(self._woken)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def _reap(self) -> None:
        while self.slots:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                _say(self.slots[pid], "STOPPED")
                continue
            _say(self.slots.pop(pid), f"DEAD {os.waitstatus_to_exitcode(status)}")

    def end(self) -> None:
        """End every child, stopped ones too: nothing outlives a harness that went away."""
        for pid in self.slots:
            os.kill(pid, signal.SIGKILL)
        for pid in self.slots:
            os.waitpid(pid, 0)


def _say(slot: int, text: str) -> None:
    os.write(1, f"{slot} {text}\n".encode())


def main() -> None:
    """Serve; a child does what it was asked for."""
    from treering.fuzz.kills import planted, roles

    if len(sys.argv) > 1:
        planted.plant(sys.argv[1])
    server = Server()
    try:
        request = server.serve()
    except BrokenPipeError:  # nobody listens any more
        server.end()
        return
    if request is not None:
        roles.play(request)
        os._exit(0)  # quicker than ending the interpreter, which some roles do on purpose


if __name__ == "__main__":
    main()
