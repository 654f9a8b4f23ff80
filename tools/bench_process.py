"""Rows that need a process of their own: memory, and the start of the command.

Run as a module (``python -m treering.tools.bench_process FOLDER ENTRIES PARENTS``) it is the
child of the memory rows: builds, opens and reads a session, and prints its peak. With ``manager``
for the parents, a SessionManager opens what an earlier child built there, without its index.
"""

from __future__ import annotations

import asyncio
import functools
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from treering.tools.bench_measure import Figure, Peer, interleaved, seconds

if TYPE_CHECKING:
    from treering.engine.session.manager_reads import CapturedHistory

STARTS: Final = 20
PATH_PAGE: Final = 10_000
APPENDS: Final = 1_000

_START: Final = "import sys; from treering.tools.entry import main; sys.exit(main())"


def memory(folder: str, entries: int) -> Iterator[Figure]:
    """Peak resident memory of a process that builds, opens and reads a session."""
    for row, parents in (("memory", "chain"), ("memory-random", "random")):
        answer = _child(f"{folder}-{parents}", entries, parents)
        what = (
            f"peak memory: build, open, index and read {entries:,} entries, parents: {parents}"
            f" (after imports {answer['start']:.0f}, journal {answer['journal']:.0f},"
            f" index {answer['index']:.0f})"
        )
        yield Figure(row, what, answer["peak"], "MiB", None, None, 1)
    answer = _child(f"{folder}-chain", entries, "manager")
    what = (
        f"peak memory: SessionManager of {entries:,} entries, index build, reads"
        f" (after imports {answer['start']:.0f}, index {answer['index']:.0f},"
        f" {APPENDS:,} appends at once {answer['appends']:.0f}, all entries"
        f" {answer['entries']:.0f}, then {PATH_PAGE:,} of a path)"
    )
    yield Figure("memory-manager", what, answer["peak"], "MiB", None, None, 1)


def _child(home: str, entries: int, work: str) -> dict[str, float]:
    arguments = ["-m", "treering.tools.bench_process", home, str(entries), work]
    answer: dict[str, float] = json.loads(_run(arguments).stdout)
    return answer


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


async def child_of_manager(home: str, entries: int) -> dict[str, float]:
    """The same for a SessionManager that owns the session and has no index to begin with."""
    from treering.engine import SessionManager
    from treering.engine.home import Store
    from treering.tools.bench_scan import drop_index

    peaks = {"start": peak_mib()}
    path = Store.at(home).journal_path("bench")
    drop_index(path)
    async with await SessionManager.open(path) as manager:
        assert len(await manager.read_entries_page(limit=1)) == 1
        peaks["index"] = peak_mib()
        message = {"role": "user", "content": "x" * 1_000}
        await asyncio.gather(*(manager.append_message(message) for _ in range(APPENDS)))
        peaks["appends"] = peak_mib()

        async def count(history: CapturedHistory) -> int:
            found = 0
            async for _ in history.iterate_entries():
                found += 1
            return found

        assert await manager.read_source_history(count) == entries + APPENDS
        peaks["entries"] = peak_mib()
        await manager.read_branch_page(start=max(0, entries - PATH_PAGE), limit=PATH_PAGE)
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


def main(home: str, entries: int, work: str) -> dict[str, float]:
    """What the child of that name does."""
    if work == "manager":
        return asyncio.run(child_of_manager(home, entries))
    return child(home, entries, work)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
