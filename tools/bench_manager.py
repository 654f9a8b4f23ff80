"""Rows about SessionManager: appends, many tasks, pauses of the event loop, reads."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from treering.engine import Session, SessionManager
from treering.engine.session.capture import NO_LIMITS
from treering.tools.bench_append import Entries, RawFile
from treering.tools.bench_data import (
    LABEL_EVERY,
    LARGE_BYTES,
    SEED,
    Bench,
    Shape,
    entry_id,
    texts_of,
)
from treering.tools.bench_measure import (
    TURN_CALLS,
    Figure,
    Peer,
    median_ratio,
    now_ns,
    percentile,
    times_us,
)
from treering.tools.bench_reads import PAGE_READS, PATH_ENTRIES
from treering.tools.bench_scan import SIZE_ENTRIES, drop_index, warm_up

TASKS: Final = 64
TICK_S: Final = 0.001
BUSY_S: Final = 0.5
BUSY_THREADS: Final = 2
LARGE_ENTRY_BYTES: Final = 1 << 20
LARGE_PAUSE_S: Final = 0.05
"""Between two large entries: they are there, and do not fill the disk."""

_Call = Callable[[], Awaitable[object]]


async def _times_us(calls: Iterable[_Call]) -> list[float]:
    """How long each call took, one after another, microseconds."""
    found: list[float] = []
    for call in calls:
        start = now_ns()
        await call()
        found.append((now_ns() - start) / 1000)
    return found


async def _settle(manager: SessionManager) -> None:
    """Bring the index up, so that its background thread takes nothing from the next side."""
    await manager.read_entries_page(limit=1)


# Appends


def append_one(bench: Bench, rounds: int, count: int) -> Iterator[Figure]:
    """One task, one durable append after another, against raw write and sync."""
    found = asyncio.run(_append_one(bench, rounds, count))
    raw, ours = found
    peer = Peer("pwrite+fdatasync", statistics.median(raw))
    what = f"SessionManager: one durable append of 1.2 KB, {count} a round, sides in turns"
    value = statistics.median(ours)
    yield Figure("append-manager", what, value, "us", median_ratio(ours, raw), peer, rounds)


async def _append_one(bench: Bench, rounds: int, count: int) -> tuple[list[float], list[float]]:
    entries, raw = Entries(), RawFile(bench.fresh("raw"))
    found: tuple[list[float], list[float]] = ([], [])
    try:
        async with await SessionManager.create("/bench", home_dir=bench.fresh("home")) as manager:
            for _ in range(rounds):
                gc.collect()
                theirs: list[float] = []
                ours: list[float] = []
                for start in range(0, count, TURN_CALLS):
                    turn = range(min(TURN_CALLS, count - start))
                    data = [entries.raw() for _ in turn]
                    theirs += times_us([functools.partial(raw.append, one) for one in data])
                    members = [entries.members() for _ in turn]
                    ours += await _times_us(
                        [functools.partial(manager.append, one) for one in members]
                    )
                found[0].append(statistics.median(theirs))
                found[1].append(statistics.median(ours))
    finally:
        raw.close()
    return found


def tasks(bench: Bench, rounds: int, count: int) -> Iterator[Figure]:
    """Many tasks at once against one task: what waits together shares a sync."""
    each = max(1, count // 10)
    one, many = asyncio.run(_tasks(bench, rounds, count, each))
    peer = Peer("one task", statistics.median(one))
    what = f"SessionManager: {TASKS} tasks, {each} durable appends of 1.2 KB each a round"
    value, ratio = statistics.median(many), median_ratio(many, one)
    yield Figure("tasks-64", what, value, "entries/s", ratio, peer, rounds)


async def _tasks(
    bench: Bench, rounds: int, count: int, each: int
) -> tuple[list[float], list[float]]:
    entries = Entries()
    one: list[float] = []
    many: list[float] = []
    async with await SessionManager.create("/bench", home_dir=bench.fresh("home")) as manager:
        for _ in range(rounds):
            for rates, writers, share in ((one, 1, count), (many, TASKS, each)):
                work = [entries.many(share) for _ in range(writers)]
                await _settle(manager)
                gc.collect()
                start = now_ns()
                await asyncio.gather(*(_append_all(manager, members) for members in work))
                rates.append(writers * share * 1e9 / (now_ns() - start))
    return one, many


async def _append_all(manager: SessionManager, members: Iterable[dict[str, Any]]) -> None:
    for one in members:
        await manager.append(one)


# Pauses of the event loop


class Tick(NamedTuple):
    """One turn of a timer of the event loop, milliseconds."""

    late: float
    computed: float
    """By all threads of this program meanwhile: the rest of a long pause is the machine's."""


class _Pauses(NamedTuple):
    """Of one round, milliseconds."""

    p999: float
    longest: float
    computed: float
    """The most within one tick."""


def _pauses(ticks: list[Tick]) -> _Pauses:
    late = [tick.late for tick in ticks]
    return _Pauses(percentile(late, 99.9), max(late), max(tick.computed for tick in ticks))


@asynccontextmanager
async def ticking() -> AsyncIterator[list[Tick]]:
    """How late each tick of the event loop comes."""
    ticks: list[Tick] = []

    async def tick() -> None:
        while True:
            start, computed = now_ns(), time.process_time_ns()
            await asyncio.sleep(TICK_S)
            computed = time.process_time_ns() - computed
            ticks.append(Tick((now_ns() - start) / 1e6 - TICK_S * 1e3, computed / 1e6))

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield ticks
        await asyncio.sleep(2 * TICK_S)  # what was late at the end counts too
    finally:
        ticker.cancel()


async def _busy() -> _Pauses:
    """What any program gets that has threads which compute."""
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(100))

    threads = [threading.Thread(target=compute) for _ in range(BUSY_THREADS)]
    for thread in threads:
        thread.start()
    try:
        async with ticking() as ticks:
            await asyncio.sleep(BUSY_S)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return _pauses(ticks)


def pauses(bench: Bench, rounds: int, entries: int, count: int) -> Iterator[Figure]:
    """How late the event loop comes to its timers, beside one with busy threads."""
    large, branch = bench.session(Shape(entries)), Shape(min(entries, SIZE_ENTRIES))
    read = bench.session(branch)
    warm_up(read)
    each = max(1, count // 8)

    async def run() -> list[list[_Pauses]]:
        found: list[list[_Pauses]] = [[], [], [], []]
        for _ in range(rounds):
            for side, measured in enumerate(
                (
                    _busy(),
                    _pauses_of_build(bench, large),
                    _pauses_of_tasks(bench, each),
                    _pauses_of_reading(read),
                )
            ):
                gc.collect()
                found[side].append(await measured)
        return found

    busy, build, many, reading = asyncio.run(run())
    warm_up(large)
    beside = (
        f"event loop, {TASKS} tasks append 1.2 KB and one 1 MiB now and then, beside"
        f" a cold index build of {entries:,} entries"
    )
    of_tasks = f"event loop, {TASKS} tasks append {each} entries of 1.2 KB each: longest pause"
    of_read = f"event loop, a branch of {branch.entries:,} entries is read whole: longest pause"
    for row, what, ours, longest in (
        ("pause-p999", f"{beside}: pauses, p99.9", build, False),
        ("pause-max", f"{beside}: longest pause", build, True),
        ("pause-tasks", of_tasks, many, True),
        ("pause-read", of_read, reading, True),
    ):
        figures = [one.longest if longest else one.p999 for one in ours]
        theirs = [one.longest if longest else one.p999 for one in busy]
        peer = Peer(f"event loop, {BUSY_THREADS} threads compute", statistics.median(theirs))
        ratio, value = median_ratio(figures, theirs), statistics.median(figures)
        computed = statistics.median(one.computed for one in ours)
        said = f"{what} (this program computed at most {computed:.0f} ms in one)"
        yield Figure(row, said, value, "ms", ratio, peer, rounds)


async def _pauses_of_build(bench: Bench, path: str) -> _Pauses:
    """The index is built for a first question, while all of the tasks append elsewhere."""
    drop_index(path)
    entries, texts = Entries(), texts_of(LARGE_BYTES - 260)
    text = "".join(texts[number] for number in range(LARGE_ENTRY_BYTES // len(texts[0])))
    members = entries.many(TASKS)
    large = {"type": "message", "message": {"role": "user", "content": text}}

    async def append(manager: SessionManager, one: dict[str, Any], pause_s: float) -> None:
        while True:
            await manager.append(one)
            await asyncio.sleep(pause_s)

    async with await SessionManager.create("/bench", home_dir=bench.fresh("home")) as manager:
        gc.collect()
        async with ticking() as ticks:
            writers = [asyncio.create_task(append(manager, one, 0)) for one in members]
            writers.append(asyncio.create_task(append(manager, large, LARGE_PAUSE_S)))
            async with await SessionManager.open(path) as beside:
                await _settle(beside)
            for writer in writers:
                writer.cancel()
            ended = await asyncio.gather(*writers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
    return _pauses(ticks)


async def _pauses_of_tasks(bench: Bench, each: int) -> _Pauses:
    entries = Entries()
    work = [entries.many(each) for _ in range(TASKS)]
    async with await SessionManager.create("/bench", home_dir=bench.fresh("home")) as manager:
        gc.collect()
        async with ticking() as ticks:
            await asyncio.gather(*(_append_all(manager, members) for members in work))
    return _pauses(ticks)


async def _pauses_of_reading(path: str) -> _Pauses:
    async with await SessionManager.open(path) as manager:
        gc.collect()
        async with ticking() as ticks:
            found = await manager.read_branch(limits=NO_LIMITS)
    assert found
    return _pauses(ticks)


# Reads


def reads(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """What a frontend asks for: a whole path, its end, children, a label; awaited one by one."""
    short = Shape(min(entries, PATH_ENTRIES))
    rate = asyncio.run(_path_rate(_warm(bench, short), rounds))
    what = f"SessionManager.read_branch of {short.entries:,} entries, whole, raw"
    yield Figure("path-manager", what, rate, "entries/s", None, None, rounds)
    names = ("last 100 of the path", "children of a random entry", "label of an entry")
    times = asyncio.run(_page_times_us(_warm(bench, Shape(entries)), rounds, entries))
    for row, name, value in zip(("last-100", "children", "label"), names, times, strict=True):
        what = f"SessionManager: {name}, {entries:,} entries, {PAGE_READS} a round"
        yield Figure(f"{row}-manager", what, value, "us", None, None, rounds)


def _warm(bench: Bench, shape: Shape) -> str:
    path = bench.session(shape)
    warm_up(path)
    return path


async def _path_rate(path: str, rounds: int) -> float:
    rates: list[float] = []
    async with await SessionManager.open(path) as manager:
        await manager.read_branch()
        for _ in range(rounds):
            gc.collect()
            start = now_ns()
            count = len(await manager.read_branch())
            rates.append(count * 1e9 / (now_ns() - start))
    return statistics.median(rates)


async def _page_times_us(path: str, rounds: int, entries: int) -> list[float]:
    """The median times of each read, in turns."""
    with Session.open(path) as session:
        assert session.leaf_id is not None
        depth = session.depth(session.leaf_id)
    pick = random.Random(SEED)  # noqa: S311 (the same reads every run)
    labels = max(1, entries // LABEL_EVERY)
    async with await SessionManager.open(path) as manager:

        def last() -> Awaitable[object]:
            return manager.read_branch_page(start=max(0, depth - 99))

        def children() -> Awaitable[object]:
            return manager.read_children_page(entry_id(pick.randrange(entries)))

        def label() -> Awaitable[object]:
            number = (pick.randrange(labels) + 1) * LABEL_EVERY - 1
            return manager.read_label(entry_id(min(number, entries - 1) // 2))

        calls: tuple[_Call, ...] = (last, children, label)
        found: list[list[float]] = [[] for _ in calls]
        for call in calls:
            await _times_us([call] * PAGE_READS)
        for _ in range(rounds):
            for call, figures in zip(calls, found, strict=True):
                gc.collect()
                figures.append(statistics.median(await _times_us([call] * PAGE_READS)))
    return [statistics.median(figures) for figures in found]
