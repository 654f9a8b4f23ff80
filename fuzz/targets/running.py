"""Running a target: every committed input once, or a search in processes of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from treering.fuzz.targets.target import Target, dictionary_lines

CORPUS: Final = Path(__file__).parent / "corpus"

_CHILD: Final = "treering.fuzz.targets.child"
_HUNG_S: Final = 300
"""Real time after which an input is taken to hang. Processor time is bounded by each target, but a
machine with other work to do may take very long to give it."""

_PROCESS_MEMORY_MB: Final = 512
"""What the interpreter, the engine and the search itself may take, besides the target."""


def committed(name: str) -> list[Path]:
    """The inputs of a target that are part of this package."""
    folder = CORPUS / name
    return sorted(folder.iterdir()) if folder.is_dir() else []


def replay(target: Target, data: bytes) -> str | None:
    """Check one input; what is wrong about it, in one line, or None.

    Memory is what Python allocates at its highest, time is processor time: neither depends on what
    else the machine does.
    """
    tracemalloc.start()
    started = time.process_time()
    try:
        target.check(data)
    except Exception as error:  # whatever escapes is looked for
        return _one_line(error)
    finally:
        taken = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if taken > target.seconds_max:
        return f"it takes {taken:.1f} s of processor time; {target.seconds_max} s are allowed"
    if peak > target.memory_bytes_max:
        return f"it takes {peak} bytes of memory; {target.memory_bytes_max} are allowed"
    return None


def _one_line(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({os.path.basename(last.filename)}:{last.lineno})"


def can_search() -> bool:
    """Whether the engine of the searches is installed."""
    return importlib.util.find_spec("atheris") is not None


@dataclass(frozen=True)
class Search:
    """A search to be made. ``folder`` keeps what it learns, so that a later one goes on."""

    name: str
    place: str
    folder: Path
    seconds: float | None
    executions: int | None
    jobs: int
    seed: int | None


@dataclass
class Outcome:
    """What a search did and found."""

    executions: int = 0
    executions_so_far: int = 0
    seconds: float = 0.0
    seeds: list[int] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Logs of processes that ended with an error without a finding."""


def search(order: Search, target: Target) -> Outcome:
    """Search in ``order.jobs`` processes until all of them ended."""
    folder = order.folder
    for part in ("corpus", "findings", "logs", "counts"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    dictionary = folder / "dictionary"
    dictionary.write_text(dictionary_lines(target.tokens), encoding="ascii")
    first = len(list((folder / "counts").iterdir())) + 1
    before = set((folder / "findings").iterdir())
    outcome = Outcome()
    started = time.monotonic()
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    counters: list[Path] = []
    scratch = tempfile.TemporaryDirectory(prefix="treering-target-", ignore_cleanup_errors=True)
    try:
        for job in range(order.jobs):
            seed = first + job if order.seed is None else order.seed + job
            log = folder / "logs" / f"{first + job}.log"
            counters.append(folder / "counts" / str(first + job))
            arguments = _arguments(order, target, seed, job)
            running.append((_start(order.place, counters[-1], arguments, log, scratch.name), log))
            outcome.seeds.append(seed)
            outcome.logs.append(str(log))
        ends = [(process.wait(), log) for process, log in running]
    except BaseException:
        for process, _ in running:
            process.terminate()
            process.wait()
        raise
    finally:
        scratch.cleanup()
    outcome.seconds = time.monotonic() - started
    outcome.executions = sum(map(count_in, counters))
    outcome.executions_so_far = sum(map(count_in, (folder / "counts").iterdir()))
    outcome.findings = sorted(map(str, set((folder / "findings").iterdir()) - before))
    if not outcome.findings:
        outcome.failed = [str(log) for code, log in ends if code]
    return outcome


def count_in(counter: Path) -> int:
    """How many executions a process noted."""
    return int(counter.read_text(encoding="ascii") or "0") if counter.exists() else 0


def _start(
    place: str, counter: Path, arguments: list[str], log: Path, scratch: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", _CHILD, place, str(counter), *arguments]
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONHASHSEED": "0", "TMPDIR": scratch},
        )


def _arguments(order: Search, target: Target, seed: int, job: int) -> list[str]:
    folder = order.folder
    memory = _PROCESS_MEMORY_MB + 2 * (target.memory_bytes_max >> 20)
    arguments = [
        f"-seed={seed}",
        f"-max_len={target.bytes_max}",
        f"-timeout={_HUNG_S}",
        f"-rss_limit_mb={memory}",
        f"-artifact_prefix={folder}/findings/",
        # Small inputs alone would leave the scanner streams of one or two frames.
        "-reduce_inputs=0",
        "-print_final_stats=1",
    ]
    if target.tokens:
        arguments.append(f"-dict={folder}/dictionary")
    if order.executions is not None:
        share, rest = divmod(order.executions, order.jobs)
        arguments.append(f"-runs={share + (job < rest)}")
    if order.seconds is not None:
        arguments.append(f"-max_total_time={max(1, round(order.seconds))}")
    seeds = CORPUS / order.name
    return [*arguments, str(folder / "corpus"), *([str(seeds)] if seeds.is_dir() else [])]
