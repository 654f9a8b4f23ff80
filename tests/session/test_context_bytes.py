"""What building a context reads of the journal: the bodies that it shows, and no others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.long_runs import LONG

from treering.engine import Session
from treering.engine.home import Store
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import ENVELOPE_BYTES, Kind
from treering.engine.session.context import build_session_context
from treering.engine.session.context_usage import read_context_usage
from treering.fuzz.faulty_disk import FaultyDisk
from treering.index import Entry as Indexed
from treering.tools.bench_data import publish, session_header

SETTINGS = ("thinking_level_change", "service_tier_change", "model_change")


class Plan(NamedTuple):
    """A session of so many entries: settings first, one compaction, a branch behind it."""

    entries: int
    kept: int
    compaction: int
    leaf: int
    """From here on the entries are another branch."""


def entry_of(number: int, plan: Plan) -> dict[str, Any]:
    """Messages mostly; one in 50 a large entry that is never shown, one in 200 an attribution."""
    parent = number - 1 if number != plan.leaf + 1 else plan.leaf - 10
    entry: dict[str, Any] = {"id": f"e{number}", "parentId": f"e{parent}" if number else None}
    entry["timestamp"] = "2026-01-02T03:04:05.678Z"
    if number < len(SETTINGS):
        values = {"thinkingLevel": "high", "serviceTier": "flex", "provider": "p", "modelId": "m"}
        return {"type": SETTINGS[number]} | entry | values
    if number == plan.compaction:
        kept = {"firstKeptEntryId": f"e{plan.kept}", "summary": "so far", "tokensBefore": 1}
        return {"type": "compaction"} | entry | kept
    if number % 200 == 150:
        usage = {"input": number, "totalTokens": 7}
        more = {"targetId": f"e{number - 1}", "childUsage": usage, "aggregateUsage": usage}
        return {"type": "child_usage_attributed"} | entry | more
    if number % 50 == 25:
        return {"type": "custom"} | entry | {"customType": "state", "data": "x" * 20_000}
    role = ("user", "assistant", "toolResult")[number % 3]
    message: dict[str, Any] = {"role": role, "content": f"{role} {number} " + "text " * 40}
    if role == "assistant":
        message |= {"content": [{"type": "text", "text": message["content"]}], "stopReason": "stop"}
        message |= {"usage": {"input": number, "totalTokens": number}}
    return {"type": "message"} | entry | {"message": message}


def build(folder: Path, plan: Plan) -> str:
    """The journal of it, as native appends would have left it; returns its path."""

    def records() -> Iterator[Record]:
        yield Record(Kind.SESSION, json.dumps(session_header()).encode())
        for number in range(plan.entries):
            yield Record(Kind.ENTRY, json.dumps(entry_of(number, plan)).encode())

    owner, _ = publish(Store.at(str(folder)), "counted", records(), compression=False)
    owner.release()
    return owner.path


class Reading(NamedTuple):
    """What a question read of the journal: (offset, bytes) of each read, and how long it took."""

    ranges: list[tuple[int, int]]
    seconds: float

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.ranges)


class Counted:
    """A session on a disk that writes down what is read."""

    def __init__(self, path: str) -> None:
        self.disk = FaultyDisk()
        self.session = Session.open(path, disk=self.disk)
        self.session.leaf()  # the index is up from here on

    def ask(self, question: Any) -> tuple[Any, Reading]:
        self.disk.take()
        begun = time.perf_counter()
        found = question(self.session)
        seconds = time.perf_counter() - begun
        ranges = [(op.first, op.second) for op in self.disk.take() if op.name == "pread"]
        return found, Reading(ranges, seconds)

    def rows(self, first: int, count: int) -> list[Indexed]:
        """The index rows of the entries with these numbers."""
        found = self.session.ask(lambda index: index.by_id(f"e{first}"))
        assert found is not None
        after = found.sequence - 1
        return self.session.ask(lambda index: index.entries(after=after, limit=count))


def size_of(row: Indexed) -> int:
    return ENVELOPE_BYTES + row.stored


def frames_read(reading: Reading, rows: list[Indexed]) -> Iterator[Indexed]:
    """The entries whose frames lie whole in what was read."""
    for row in rows:
        end = row.offset + size_of(row)
        if any(begin <= row.offset and end <= begin + size for begin, size in reading.ranges):
            yield row


def check(counted: Counted, plan: Plan, *, every_frame: bool) -> Reading:
    """The context of the branch with the compaction."""
    leaf = f"e{plan.leaf}"
    context, reading = counted.ask(lambda session: session.read_session_context(leaf))
    shown = [message.sequence for message in context.messages]
    assert len(shown) > 0.9 * (plan.leaf - plan.kept)
    assert (context.thinking_level, context.service_tier) == ("high", "flex")
    said = counted.rows(0, len(SETTINGS))
    path = counted.rows(plan.kept, plan.leaf - plan.kept + 1)
    top = said[-1].offset + size_of(said[-1])
    for begin, size in reading.ranges:
        assert begin >= path[0].offset or begin + size <= top, "a body above what is kept was read"
    newer = counted.session.ask(
        lambda index: index.by_kind("child_usage_attributed", after=shown[1], limit=plan.entries)
    )
    needed = [row for row in path if row.kind != "custom"] + newer + said + path[-1:]
    assert reading.bytes <= sum(map(size_of, needed))
    if every_frame:
        read = list(frames_read(reading, counted.rows(0, plan.entries)))
        assert len(read) >= len(shown)
        assert "custom" not in {row.kind for row in read}
        assert [row.kind for row in read if row.sequence < path[0].sequence] == list(SETTINGS)[:2]
    return reading


def test_a_context_reads_only_what_it_shows(tmp_path: Path) -> None:
    """20,000 entries: not one body above what is kept, none of large entries that are not shown."""
    plan = Plan(20_000, kept=14_900, compaction=15_000, leaf=15_100)
    counted = Counted(build(tmp_path, plan))
    with counted.session:
        reading = check(counted, plan, every_frame=True)
        assert reading.bytes < 200_000
        entries = list(counted.session.iter_entries())
        found = counted.session.read_session_context(f"e{plan.leaf}")
        assert found == build_session_context(entries, f"e{plan.leaf}")
        usage, asked = counted.ask(lambda session: read_context_usage(session, f"e{plan.leaf}"))
        assert usage is not None
        assert usage.entry_id == f"e{plan.leaf - (plan.leaf - 1) % 3}"
        assert asked.bytes < 1_000


def test_a_position_above_the_compaction(tmp_path: Path) -> None:
    """The whole path is shown, so it is read: once, in page-sized runs."""
    plan = Plan(20_000, kept=14_900, compaction=15_000, leaf=15_100)
    counted = Counted(build(tmp_path, plan))
    with counted.session:
        found, reading = counted.ask(lambda session: session.read_session_context("e14999"))
        assert found.messages[0].entry_id == "e3"
        assert reading.bytes < sum(map(size_of, counted.rows(0, plan.entries))) / 2
        assert len(reading.ranges) < 800


@LONG
@pytest.mark.slow
def test_a_context_in_a_million_entries(tmp_path: Path) -> None:
    """The same where the path is 900,000 entries long; prints the figures."""
    plan = Plan(1_000_000, kept=899_000, compaction=899_900, leaf=900_000)
    counted = Counted(build(tmp_path, plan))
    with counted.session:
        reading = check(counted, plan, every_frame=False)
        _, again = counted.ask(lambda session: session.read_session_context(f"e{plan.leaf}"))
        usage, asked = counted.ask(lambda session: read_context_usage(session, f"e{plan.leaf}"))
        assert usage is not None
        print(
            f"\ncontext of {plan.leaf - plan.kept} entries: {reading.bytes} bytes in"
            f" {len(reading.ranges)} reads, {reading.seconds * 1000:.1f} ms, again"
            f" {again.seconds * 1000:.1f} ms; usage: {asked.bytes} bytes, {asked.seconds * 1000:.1f} ms"
        )
        assert reading.bytes < 2_000_000
        assert asked.bytes < 1_000
