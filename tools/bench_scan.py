"""Rows about whole journals: verification, index build, sizes, opening."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from treering.engine import Session
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import examine
from treering.tools.bench_data import (
    LARGE_BYTES,
    MIXED_BYTES,
    SMALL_BYTES,
    Bench,
    Shape,
    native_and_imported,
    write_jsonl,
)
from treering.tools.bench_measure import Figure, Peer, alone, compared, seconds

SIZE_ENTRIES: Final = 100_000
"""Entries of the rows that only compare sizes: bytes an entry hardly depend on their number."""


def json_parser() -> tuple[str, Callable[[bytes], object]]:
    """The fastest JSON parser that is installed, by name."""
    try:
        import orjson
    except ImportError:
        return "msgspec (orjson is not installed)", msgspec.json.decode
    return "orjson", orjson.loads


def examine_file(path: str) -> int:
    """Verify a whole journal; returns its frames. What fsck does, without the printing."""
    file = open_regular(LOCAL_DISK, path, write=False)
    try:
        found = examine(FileBytes(file, path, file.stat().size))
        assert found.case == "A", f"the bench's own journal reads as case {found.case}"
        return found.place.sequence
    finally:
        file.close()


def verify(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """Verification of everything against parsing the JSONL that holds the same entries."""
    path = bench.session(Shape(entries))
    lines = bench.fresh("verify.jsonl")
    write_jsonl(lines, Shape(entries))
    name, parse = json_parser()

    def verify_all() -> float:
        frames: list[int] = []
        took = seconds(lambda: frames.append(examine_file(path)))
        return frames[0] / took

    def parse_all() -> float:
        def run() -> None:
            with open(lines, "rb") as file:
                for line in file:
                    parse(line)

        return (entries + 1) / seconds(run)

    what = f"examine all of {entries:,} frames, entries of {LARGE_BYTES} B"
    both = compared(
        "verify-parse",
        what,
        "frames/s",
        rounds=rounds,
        ours=verify_all,
        peer_name=f"{name}, JSONL",
        theirs=parse_all,
    )
    os.unlink(lines)
    yield both._replace(row="verify", ratio=None, peer=None)
    yield both


def index_build(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """From no index to one that answers, in the session that owns the journal."""
    for suffix, shape in native_and_imported(entries):
        what = f"cold index build of {shape.entries:,} entries, {shape.made}, one core"
        build = functools.partial(_build_rate, bench.session(shape), shape.entries)
        yield alone(f"index-build{suffix}", what, "entries/s", rounds, build)


def _build_rate(path: str, entries: int) -> float:
    # The scan of opening has a row of its own; the build starts when it is done.
    drop_index(path)
    with Session.open(path) as session:
        return entries / seconds(lambda: session.ask(lambda index: index.counts()))


def index_size(bench: Bench, entries: int) -> Iterator[Figure]:
    """Index bytes against journal bytes, stored raw as the targets mean it."""
    entries = min(entries, SIZE_ENTRIES)
    for entry_bytes in (LARGE_BYTES, SMALL_BYTES):
        shape = Shape(entries, entry_bytes)
        path = bench.session(shape)
        warm_up(path)
        index, journal = index_bytes(path), os.path.getsize(path)
        packed = os.path.getsize(bench.session(shape._replace(compression=True)))
        what = (
            f"index of {entries:,} entries of {entry_bytes} B"
            f" ({index / packed:.3f}x of the journal with compression on)"
        )
        yield Figure(
            f"index-size-{entry_bytes}",
            what,
            index / entries,
            "B/entry",
            index / journal,
            Peer("journal, stored raw", journal / entries),
            1,
        )


def opening(bench: Bench, rounds: int, entries: int) -> Iterator[Figure]:
    """Opening for writing: with the index as a clean close leaves it, and without any."""
    path = bench.session(Shape(entries))
    warm_up(path)
    what = f"Session.open and leaf id, {entries:,} entries, "
    yield alone("open-warm", what + "warm index", "ms", max(rounds, 9), lambda: open_ms(path))

    def cold() -> float:
        drop_index(path)
        return open_ms(path)

    yield alone("open-cold", what + "no index: first answer", "ms", rounds, cold)
    drop_index(path)
    warm_up(path)


def open_ms(path: str) -> float:
    """Milliseconds until an opened session says where it stands; closing is not counted."""
    opened: list[Session] = []

    def run() -> None:
        opened.append(Session.open(path))
        assert opened[0].leaf_id is not None

    took = seconds(run)
    opened[0].close()
    return took * 1000


def warm_up(path: str) -> None:
    """Bring the index up to the journal, whatever it takes, and close it cleanly."""
    with Session.open(path) as session:
        session.ask(lambda index: index.counts())


def drop_index(path: str) -> None:
    """Remove everything derived."""
    shutil.rmtree(Store.of_journal(path).index, ignore_errors=True)


def index_bytes(path: str) -> int:
    """Bytes of the index files."""
    folder = Store.of_journal(path).index
    return sum(entry.stat().st_size for entry in os.scandir(folder) if ".sqlite3" in entry.name)


def journal_size(bench: Bench, corpus: str | None) -> Iterator[Figure]:
    """Journals with compression on against the JSONL that they came from."""
    folder = bench.fresh("size")
    os.makedirs(folder)
    lines = os.path.join(folder, "generated.jsonl")
    write_jsonl(lines, Shape(4_000, MIXED_BYTES))
    what = "journal with compression on, generated session text, entries of 0.2 to 40 KB"
    yield _size("journal-size", what, [lines], folder)
    large = _large_files(corpus)
    if large:
        what = f"the same, {len(large)} real masked sessions over 0.5 MB"
        yield _size("journal-size-corpus", what, large, folder)


def _large_files(corpus: str | None) -> list[str]:
    if corpus is None or not os.path.isdir(corpus):
        return []
    paths = [os.path.join(corpus, name) for name in sorted(os.listdir(corpus))]
    return [p for p in paths if p.endswith(".jsonl") and os.path.getsize(p) > 500_000]


def _size(row: str, what: str, sources: list[str], folder: str) -> Figure:
    from treering.engine import import_session

    journals = 0
    for number, source in enumerate(sources):
        home = os.path.join(folder, f"{row}-{number}")
        made = import_session(source, home_dir=home, limits=None, salvage=True)
        journals += os.path.getsize(made.path)
    total = sum(os.path.getsize(source) for source in sources)
    return Figure(row, what, journals / 1e6, "MB", journals / total, Peer("JSONL", total / 1e6), 1)
