"""Rows about writing: one durable append, an unsynced one, a hundred per call."""

from __future__ import annotations

import functools
import gc
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Final

import apsw
import msgspec

from treering.engine import Session
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import Kind
from treering.engine.journal.framing import Durability
from treering.engine.journal.writer import JournalWriter
from treering.tools.bench_data import Bench, Generator, Shape
from treering.tools.bench_measure import (
    Figure,
    Peer,
    alone,
    in_turns,
    median_ratio,
    seconds,
    times_us,
)

APPEND_BYTES: Final = 1_200
MANY: Final = 100

_SQLITE: Final = "SQLite WAL FULL, unique ids"
_CREATE: Final = """CREATE TABLE entry(
  seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, parent TEXT, raw BLOB NOT NULL
) STRICT"""


class Entries:
    """An endless supply of messages of 1.2 KB, as a caller has them and as bytes."""

    def __init__(self) -> None:
        self._make = Generator(Shape(0, APPEND_BYTES))
        self._number = 0

    def _next_number(self) -> int:
        self._number += 1
        return self._number + (self._number // 999)  # labels name other entries: leave them out

    def members(self) -> dict[str, Any]:
        """The next one as a caller has it."""
        while True:
            members = self._make.members(self._next_number())
            if members["type"] == "message":
                return members

    def many(self, count: int) -> list[dict[str, Any]]:
        """So many of them."""
        return [self.members() for _ in range(count)]

    def raw(self) -> bytes:
        """The bytes of the next one."""
        return self._make.entry(self._next_number())

    def whole(self) -> dict[str, Any]:
        """The next one with id, parent and time."""
        return self._make.whole(self._next_number())


class RawFile:
    """``pwrite`` and ``fdatasync``: what a durable append costs without any engine."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._offset = 0

    def append(self, data: bytes) -> None:
        """One durable append."""
        self._offset += os.pwrite(self._descriptor, data, self._offset)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def append_one(bench: Bench, rounds: int, count: int) -> Iterator[Figure]:
    """Writer and session against raw write and sync.

    The sides take turns append by append: a file system that somebody else keeps busy has phases
    of a second or more in which every sync takes ten times as long, longer than a round.
    """
    entries = Entries()
    raw = RawFile(bench.fresh("raw"))
    owner, tail = bench.new_journal()
    writer = JournalWriter(owner, tail)
    session = Session.create(home_dir=bench.fresh("home"))
    found: list[list[float]] = [[], [], []]
    try:
        for _ in range(rounds):
            calls: list[list[Callable[[], object]]] = [
                _each(raw.append, [entries.raw() for _ in range(count)]),
                _each(writer.append, [_records(entries.raw()) for _ in range(count)]),
                _each(session.append, [entries.members() for _ in range(count)]),
            ]
            for figures, times in zip(found, in_turns(calls), strict=True):
                figures.append(statistics.median(times))
    finally:
        session.close()
        writer.close()
        raw.close()
    peer = Peer("pwrite+fdatasync", statistics.median(found[0]))
    what = f"one durable append of 1.2 KB, {count} a round, sides in turns"
    for row, name, ours in (
        ("append-writer", "JournalWriter", found[1]),
        ("append-session", "Session", found[2]),
    ):
        value, ratio = statistics.median(ours), median_ratio(ours, found[0])
        yield Figure(row, f"{name}: {what}", value, "us", ratio, peer, rounds)


def append_os(bench: Bench, rounds: int, count: int) -> Iterator[Figure]:
    """Acknowledged in the page cache, synced in the background."""
    entries = Entries()
    durability: Durability = "os"
    with Session.create(home_dir=bench.fresh("home"), durability=durability) as session:

        def write() -> float:
            data = [entries.members() for _ in range(count)]
            return statistics.median(times_us(_each(session.append, data)))

        what = f'Session: append of 1.2 KB with durability="os", {count} a round'
        yield alone("append-os", what, "us", rounds, write)


class _Sqlite:
    """A table of the same entries. Ids are unique, as a session's are, so there is an index."""

    def __init__(self, path: str) -> None:
        self._db = apsw.Connection(path)
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "FULL")
        self._db.execute(_CREATE)

    def append(self, entries: list[dict[str, Any]]) -> None:
        rows = [(e["id"], e["parentId"], msgspec.json.encode(e)) for e in entries]
        with self._db:
            self._db.executemany("INSERT INTO entry(id, parent, raw) VALUES(?,?,?)", rows)

    def close(self) -> None:
        self._db.close()


def append_many(bench: Bench, rounds: int, calls: int) -> Iterator[Figure]:
    """A hundred entries per call; every side encodes mappings itself.

    The peers are handed ids, parents and times, which the session makes itself. Between the turns
    the session's index is brought up, so that its background thread takes nothing from the peers;
    ``append-many-indexed`` counts that time too, as SQLite's own index is counted.
    """
    entries = Entries()
    session = Session.create(home_dir=bench.fresh("home"))
    sqlite, raw = _Sqlite(bench.fresh("peer.sqlite3")), RawFile(bench.fresh("peer.jsonl"))
    rates: list[list[float]] = [[], [], [], []]
    try:
        for _ in range(rounds):
            times = _round_of_many(session, sqlite, raw, entries, calls)
            for rate, time_us in zip(rates, times, strict=True):
                rate.append(calls * MANY * 1e6 / time_us)
    finally:
        session.close()
        sqlite.close()
        raw.close()
    ours, indexed, in_sqlite, in_lines = rates
    what = f"Session.append_many, {MANY} entries of 1.2 KB a call, {calls} calls a round"
    more = f"{what}, and the index brought up"
    for row, name, said, figures, theirs in (
        ("append-many-sqlite", _SQLITE, what, ours, in_sqlite),
        ("append-many-jsonl", "JSONL write+fdatasync", what, ours, in_lines),
        ("append-many-indexed", _SQLITE, more, indexed, in_sqlite),
    ):
        peer = Peer(name, statistics.median(theirs))
        ratio, value = median_ratio(figures, theirs), statistics.median(figures)
        yield Figure(row, said, value, "entries/s", ratio, peer, rounds)


_lines = msgspec.json.Encoder().encode_lines


def _round_of_many(
    session: Session, sqlite: _Sqlite, raw: RawFile, entries: Entries, calls: int
) -> tuple[float, float, float, float]:
    """The time of the calls of each side; the session's without and with its index, us."""
    members = [entries.many(MANY) for _ in range(calls)]
    gc.collect()
    ours = sum(times_us(_each(session.append_many, members)))
    indexing = seconds(lambda: session.ask(lambda index: index.position())) * 1e6
    whole = [[entries.whole() for _ in range(MANY)] for _ in range(calls)]
    gc.collect()
    in_sqlite = sum(times_us(_each(sqlite.append, whole)))
    gc.collect()
    in_lines = sum(times_us(_each(lambda data: raw.append(_lines(data)), whole)))
    return ours, ours + indexing, in_sqlite, in_lines


def _records(raw: bytes) -> tuple[Record, ...]:
    return (Record(Kind.ENTRY, raw),)


def _each(call: Callable[[Any], object], arguments: list[Any]) -> list[Callable[[], object]]:
    return [functools.partial(call, argument) for argument in arguments]
