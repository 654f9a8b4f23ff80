"""Rows that need a process of their own: memory, and the start of the command.

Run as a module (``python -m treering.tools.bench_process FOLDER ENTRIES PARENTS``) it is the
child of the memory rows: builds, opens and reads a session, and prints its peak.
"""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Final, cast

from treering.tools.bench_measure import Figure, Peer, interleaved, seconds

STARTS: Final = 20
PATH_PAGE: Final = 10_000

_START: Final = "import sys; from treering.tools.entry import main; sys.exit(main())"


def memory(folder: str, entries: int) -> Iterator[Figure]:
    """Peak resident memory of a process that builds, opens and reads a session."""
    for row, parents in (("memory", "chain"), ("memory-random", "random")):
        home = f"{folder}-{parents}"
        arguments = ["-m", "treering.tools.bench_process", home, str(entries), parents]
        answer = json.loads(_run(arguments).stdout)
        what = (
            f"peak memory: build, open, index and read {entries:,} entries, parents: {parents}"
            f" (after imports {answer['start']:.0f}, journal {answer['journal']:.0f},"
            f" index {answer['index']:.0f})"
        )
        yield Figure(row, what, answer["peak"], "MiB", None, None, 1)


def child(home: str, entries: int, parents: str) -> dict[str, float]:
    """What the child does, and its peak after each step, MiB."""
    from treering.engine import Session
    from treering.tools.bench_data import Parents, Shape, build_session
    from treering.tools.bench_scan import warm_up

    peaks = {"start": peak_mib()}
    shape = Shape(entries, parents=cast("Parents", parents))
    path = build_session(home, shape)
    peaks["journal"] = peak_mib()
    warm_up(path)
    peaks["index"] = peak_mib()
    with Session.open(path) as session:
        assert sum(1 for _ in session.iter_entries()) == entries
        leaf = session.leaf_id
        assert leaf is not None
        session.branch(start=max(0, session.depth(leaf) + 1 - PATH_PAGE))
    peaks["peak"] = peak_mib()
    return peaks


def peak_mib() -> float:
    """The largest resident size that this program has had.

    ``getrusage`` is not enough on Linux: its figure survives ``exec``, so that a child inherits
    the peak of the process that started it. ``VmHWM`` belongs to the program alone.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def start(starts: int) -> Iterator[Figure]:
    """The command against an interpreter that does nothing; best of the starts, in turns."""
    bare = ["-c", "pass"]
    for row, option in (("start-version", "--version"), ("start-help", "--help")):
        ours_of = functools.partial(_start_ms, ["-c", _START, option])
        found, _ = interleaved(starts, ours_of, functools.partial(_start_ms, bare))
        ours, theirs = min(found[0]), min(found[1])
        what = f"treering {option} over a bare interpreter, best of {starts}"
        peer = Peer("bare interpreter, whole", theirs)
        yield Figure(row, what, ours - theirs, "ms", ours / theirs, peer, starts)


def _start_ms(arguments: list[str]) -> float:
    return seconds(lambda: _run(arguments)) * 1000


def _run(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True)  # noqa: S603 (our own words)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(child(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
