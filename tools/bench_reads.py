"""Rows about reading an open session with a warm index: one entry, paths, pages, labels."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from treering.engine import Session
from treering.tools.bench_data import (
    LABEL_EVERY,
    SEED,
    Bench,
    Shape,
    entry_id,
    native_and_imported,
)
from treering.tools.bench_measure import (
    Figure,
    alone,
    interleaved,
    percentile,
    seconds,
    times_us,
)
from treering.tools.bench_scan import open_ms, warm_up

PATH_ENTRIES: Final = 10_000
BY_ID_READS: Final = 2_000
PAGE_READS: Final = 50


def by_id(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """Entries all over the session, read and verified."""
    path = _warm(bench, entries)
    with Session.open(path) as session:
        pick = random.Random(SEED)  # noqa: S311 (the same reads every run)

        def read() -> list[float]:
            ids = [entry_id(pick.randrange(entries)) for _ in range(BY_ID_READS)]
            return times_us([functools.partial(session.read, one) for one in ids])

        read()  # warm: the second round is measured
        found = [read() for _ in range(rounds)]
    what = f"Session.read of {BY_ID_READS} random ids a round, {entries:,} entries, warm"
    for percent in (50, 95):
        value = statistics.median(percentile(times, percent) for times in found)
        yield Figure(f"by-id-p{percent}", f"{what}, p{percent}", value, "us", None, None, rounds)


def path(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """The newest 10,000 entries of a path: raw bytes, and decoded to typed entries."""
    for suffix, shape in native_and_imported(entries):
        session_path = bench.session(shape)
        warm_up(session_path)
        with Session.open(session_path) as session:
            depth = session.depth(_leaf(session))
            count = min(PATH_ENTRIES, depth + 1)
            start = depth + 1 - count
            sides = [functools.partial(_path_rate, session, start, decode=d) for d in (False, True)]
            _, rates = interleaved(rounds, *sides)
        for name, rate in zip(("raw", "decoded"), rates, strict=True):
            what = f"the last {count:,} of a path in {shape.entries:,}, {name}; {shape.made}"
            yield Figure(f"path-{name}{suffix}", what, rate, "entries/s", None, None, rounds)


def _path_rate(session: Session, start: int, *, decode: bool) -> float:
    found: list[object] = []

    def run() -> None:
        branch = session.branch(start=start)
        found.extend(entry.decode() if decode else entry.raw for entry in branch)

    took = seconds(run)
    return len(found) / took


def pages(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """What a frontend asks for while somebody looks: a page of the path, children, a label."""
    with Session.open(_warm(bench, entries)) as session:
        depth = session.depth(_leaf(session))
        pick = random.Random(SEED)  # noqa: S311 (the same reads every run)
        labels = max(1, entries // LABEL_EVERY)

        def last() -> object:
            return session.branch(start=max(0, depth - 99))

        def children() -> object:
            return session.children(entry_id(pick.randrange(entries)))

        def label() -> object:
            number = (pick.randrange(labels) + 1) * LABEL_EVERY - 1
            return session.label(entry_id(min(number, entries - 1) // 2))

        def median_of(call: Callable[[], object]) -> Callable[[], float]:
            return lambda: statistics.median(times_us([call] * PAGE_READS))

        sides = [median_of(call) for call in (last, children, label)]
        for side in sides:
            side()
        _, values = interleaved(rounds, *sides)
    names = ("last 100 of the path", "children of a random entry", "label of an entry")
    for row, name, value in zip(("last-100", "children", "label"), names, values, strict=True):
        what = f"{name}, {entries:,} entries, {PAGE_READS} a round"
        yield Figure(row, what, value, "us", None, None, rounds)


def by_id_us(session_path: str, entries: int) -> float:
    """The median time of reading a random entry, for the curve."""
    pick = random.Random(SEED)  # noqa: S311 (the same reads every run)
    with Session.open(session_path) as session:
        ids = [entry_id(pick.randrange(entries)) for _ in range(2 * BY_ID_READS)]
        times = times_us([functools.partial(session.read, one) for one in ids])
    return statistics.median(times[BY_ID_READS:])


def page_us(session_path: str) -> float:
    """The median time of 100 entries in the middle of the path, for the curve."""
    with Session.open(session_path) as session:
        start = session.depth(_leaf(session)) // 2
        read = functools.partial(session.branch, start=start, limit=100)
        return statistics.median(times_us([read] * PAGE_READS))


def scale(bench: Bench, rounds: int, sizes: Sequence[int]) -> Iterator[Figure]:
    """The curve: what must not grow with the session, at growing sizes. Informs only."""
    for entries in sizes:
        found = _warm(bench, entries)
        measures: tuple[tuple[str, str, str, Callable[[], float]], ...] = (
            ("scale-open", "Session.open, warm", "ms", functools.partial(open_ms, found)),
            ("scale-by-id", "entry by id", "us", functools.partial(by_id_us, found, entries)),
            ("scale-page", "100 in mid-path", "us", functools.partial(page_us, found)),
        )
        for row, what, unit, measure in measures:
            yield alone(row, f"{what}, {entries:,} entries", unit, rounds, measure)


def _warm(bench: Bench, entries: int) -> str:
    session_path = bench.session(Shape(entries))
    warm_up(session_path)
    return session_path


def _leaf(session: Session) -> str:
    leaf = session.leaf_id
    assert leaf is not None
    return leaf
