"""Running flows: once to see their calls, then once for every fault."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from treering.fuzz.syscalls import tracing
from treering.fuzz.syscalls.checks import Verdict
from treering.fuzz.syscalls.flows import Flow, Ran
from treering.fuzz.syscalls.stores import Before, Place, prepare
from treering.fuzz.syscalls.tracing import Call, Fault, Point

TIMEOUT_S: Final = 30.0
_HUNG: Final = b"Traceback: it hung, and was killed"
_CHANGING: Final = re.compile(rb"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\d+(\.\d)? k?B\b| +\d+ s\b")


class UnavailableError(Exception):
    """This system does not let us do it; the message says why."""


@dataclass
class Failure:
    """A promise that a fault broke."""

    flow: str
    fault: list[str]
    wrong: list[str]


@dataclass
class Figures:
    """What was run on one flow."""

    calls: int = 0
    runs: int = 0
    missed: int = 0
    """Runs in which the call did not come."""
    healed: int = 0
    """Runs that left an index which could not be used, until the next opening replaced it."""
    codes: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


class Limits(NamedTuple):
    """Limits of the process, instead of an injected error."""

    size_max: int | None = None
    descriptors: int | None = None


class Bench:
    """Runs one flow after the other, each in a folder of its own."""

    def __init__(self, *, cold: bool = False, plant: str | None = None) -> None:
        self.cold, self.plant = cold, plant
        memory = "/dev/shm"
        usable = os.path.isdir(memory) and os.access(memory, os.W_OK)
        self.folder = tempfile.mkdtemp(prefix="treering-syscalls-", dir=memory if usable else None)
        self._server: subprocess.Popen[bytes] | None = None
        self._number = 0
        self.seen: list[Call] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait(30)
            assert self._server.stdout is not None
            self._server.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A new place, gone afterwards. Its path is equally long each time: sizes stay equal."""
        self._number += 1
        root = os.path.join(self.folder, f"{self._number:08}")
        try:
            yield Place(root)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def run(
        self,
        flow: Flow,
        place: Place,
        strace: list[str] | None = None,
        limits: Limits | None = None,
    ) -> Ran:
        """The flow in a process, traced or not."""
        return (
            self._run_cold(flow, place, strace)
            if self.cold
            else self._run_warm(flow, place, strace, limits)
        )

    def _run_cold(self, flow: Flow, place: Place, strace: list[str] | None) -> Ran:
        words = [sys.executable, "-m"]
        if flow.script is not None:
            words += ["treering.fuzz.syscalls.owner", flow.script, place.journal]
        else:
            words += ["treering.tools", *flow.command(place)]
        if strace is not None:
            # The filter spares all other calls a stop, but knows no injected signals.
            quick = [] if any(":signal=" in word for word in strace) else ["--seccomp-bpf"]
            words = [strace[0], *quick, *strace[1:], *words]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return Ran(-9, b"", _HUNG)
        # strace ends as the process did, by a signal of its own.
        return Ran(done.returncode, done.stdout, done.stderr)

    def _run_warm(
        self, flow: Flow, place: Place, strace: list[str] | None, limits: Limits | None
    ) -> Ran:
        request: dict[str, Any] = {
            "plant": self.plant,
            "strace": strace,
            "timeout_s": TIMEOUT_S,
            **({} if limits is None else limits._asdict()),
        }
        if flow.script is not None:
            request |= {"script": flow.script, "path": place.journal}
        else:
            request["words"] = flow.command(place)
        answer = self._ask(request)
        if "error" in answer:
            raise UnavailableError(f"strace cannot attach: {answer['error']}")
        err = answer["err"].encode("latin-1") + (_HUNG if answer["hung"] else b"")
        return Ran(answer["status"], answer["out"].encode("latin-1"), err)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "treering.fuzz.syscalls.warm"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise UnavailableError("the process that runs the flows has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def traced(
        self, flow: Flow, place: Place, fault: Fault | None = None, when: int = 0
    ) -> tuple[Ran, list[Call]]:
        """The flow under strace, with a fault or without."""
        if tracing.program() is None:
            raise UnavailableError("strace is not installed")
        log = os.path.join(self.folder, "log")
        if os.path.exists(log):
            os.unlink(log)
        if fault is None:
            strace = tracing.options(log)
        else:
            strace = tracing.options(log, calls=(fault.call,), inject=fault.spec(when))
        ran = self.run(flow, place, strace)
        if not os.path.exists(log) or b"strace: " in ran.err:
            raise UnavailableError(f"strace does not run here: {ran.err[-200:]!r}")
        return ran, tracing.parse(_content(log).decode("utf-8", "backslashreplace"))


@dataclass
class Profile:
    """A flow without faults: its calls on the store, and what it printed."""

    points: list[Point]
    output: bytes
    wrong: list[str]


def profile(bench: Bench, flow: Flow) -> Profile:
    """Count the calls of a flow; the run must be right by itself."""
    with bench.place() as place:
        before = prepare(place, flow.store)
        ran, calls = bench.traced(flow, place)
        points = tracing.store_calls(calls, place.root)
        verdict = Verdict(flow, place, before, ran, Fault("none", 0, "none"))
        wrong = verdict.judge(calls)
        if ran.status != 0:
            wrong.append(f"without any fault: exit code {ran.status}: {ran.err[-300:]!r}")
        return Profile(points, _without(place, ran.out), wrong)


def _without(place: Place, out: bytes) -> bytes:
    """Output with what changes from run to run taken out: the place, times, rounded sizes."""
    return _CHANGING.sub(b"*", out.replace(place.root.encode(), b"ROOT"))


def inject(
    bench: Bench, flow: Flow, found: Profile, fault: Fault, when: int, figures: Figures
) -> list[str]:
    """One run with one fault; what it broke."""
    with bench.place() as place:
        before = prepare(place, flow.store)
        ran, calls = bench.traced(flow, place, fault, when)
        figures.runs += 1
        hit = ran.status == -9 if fault.error == "KILL" else any(call.injected for call in calls)
        if not hit:
            figures.missed += 1
        figures.codes[str(ran.status)] = figures.codes.get(str(ran.status), 0) + 1
        return settle(flow, place, before, ran, fault, calls, found.output, figures)


def settle(
    flow: Flow,
    place: Place,
    before: Before,
    ran: Ran,
    fault: Fault,
    calls: list[Call],
    output: bytes,
    figures: Figures,
) -> list[str]:
    """Judge a run and note what it broke."""
    verdict = Verdict(flow, place, before, ran, fault)
    wrong = verdict.judge(calls)
    figures.healed += verdict.healed
    spared = flow.spares is not None and flow.spares in ran.out
    if flow.reads_only and ran.status == 0 and not spared and _without(place, ran.out) != output:
        wrong.append(f"exit code 0 and another answer: {ran.out[:300]!r}")
    if wrong:
        figures.failures.append(Failure(flow.name, fault.words, wrong))
    return wrong


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
