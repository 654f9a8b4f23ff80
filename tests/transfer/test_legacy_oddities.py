"""Oddities of a source are kept, counted on its own ids, and reported."""

from __future__ import annotations

from typing import Any

import pytest
from transfer.legacy_helpers import chain, dump, header, jsonl, look, message, read

from treering.engine.transfer.legacy_tree import is_earlier


def oddities(*entries: bytes, **changes: Any) -> dict[str, int]:
    return look(jsonl(header(**changes), *entries)).oddities


def test_an_ordinary_session_has_none() -> None:
    """No count, no key."""
    assert oddities(*chain(20)) == {}


def test_F21_cycles_end_and_are_counted() -> None:
    """A duplicate id that closes a cycle, a self-parent, and one of 10,000 entries."""
    a, b = message("a", None), message("b", "a")
    assert oddities(a, b, message("a", "b")) == {"cycles": 1, "duplicate_ids": 1}
    assert oddities(message("s", "s")) == {"cycles": 1, "forward_parents": 1, "self_parents": 1}
    ring = [message(f"r{n}", f"r{(n + 1) % 10_000}") for n in range(10_000)]
    assert oddities(*ring) == {"cycles": 1, "forward_parents": 9_999}
    two = [
        message("p", "q"),
        message("q", "p"),
        message("x", "y"),
        message("y", "x"),
        message("z", "x"),
    ]
    assert oddities(*two)["cycles"] == 2


def test_parents() -> None:
    """Missing (the header's id names no entry), later in the file, and several roots."""
    assert oddities(message("a", "nobody"), message("b", "s-1")) == {"missing_parents": 2}
    assert oddities(message("a", "b"), message("b", None)) == {"forward_parents": 1}
    assert oddities(message("a", None), message("b", None)) == {"multiple_roots": 2}


def test_counts_are_of_source_ids_in_old_versions_too() -> None:
    """An upgrade gives every entry a parent; the report is about the file that came."""
    assert oddities(message("a", "gone"), message("a", "a"), version=1) == {
        "cycles": 1,
        "duplicate_ids": 1,
        "missing_parents": 1,
        "self_parents": 1,
    }
    assert oddities(message(None, None), version=1) == {"entries_without_id": 1}


def test_F23_a_prefix_written_twice() -> None:
    """The second header is outside the tree; copies are counted and nothing is dropped."""
    records = [header(), *chain(3), header(), *chain(3), message("z", "e2")]
    analysis, entries = read(jsonl(*records))
    assert entries == records[1:]
    assert analysis.oddities == {
        "duplicate_ids": 3,
        "duplicate_records": 4,
        "multiple_roots": 2,
        "second_headers": 1,
    }


def assistant(entry_id: str, *calls: str) -> bytes:
    content = [{"type": "text", "text": "t"}, *({"type": "toolCall", "id": c} for c in calls)]
    return message(entry_id, None, message={"role": "assistant", "content": content})


def result(entry_id: str, call: str) -> bytes:
    return message(entry_id, None, message={"role": "toolResult", "toolCallId": call})


@pytest.mark.parametrize(
    ("entries", "open_calls"),
    [
        ([assistant("a", "1")], 1),
        ([assistant("a", "1", "2", "3"), result("b", "2")], 2),
        ([assistant("a", "1"), result("b", "1")], 0),
        ([assistant("a", "1"), message("u", None)], 0),
        ([assistant("a", "1"), result("b", "1"), assistant("c", "2")], 1),
    ],
)
def test_F71_open_tool_calls(entries: list[bytes], open_calls: int) -> None:
    """Calls at the end that no result answered."""
    assert oddities(*entries).get("open_tool_calls", 0) == open_calls


def test_other_counts() -> None:
    """Unknown kinds, long ids, and times that go back."""
    assert oddities(dump({"type": "leaf", "id": "l"}))["unknown_types"] == 1
    assert oddities(message("x" * 513, None))["long_ids"] == 1
    back = [message("a", None, timestamp="2026-01-02T00:00:00Z"), message("b", "a")]
    assert oddities(*back) == {"timestamps_going_back": 1}


def test_instants_are_compared_and_not_their_spelling() -> None:
    """Text order is wrong where the precision or the zone differs."""
    assert not is_earlier("2026-01-01T00:00:02.500Z", "2026-01-01T00:00:02Z")
    assert is_earlier("2026-01-01T00:00:02Z", "2026-01-01T00:00:02.500Z")
    assert is_earlier("2026-01-01T01:00:00+02:00", "2026-01-01T00:00:00Z")
    assert not is_earlier("yesterday", "2026-01-01T00:00:00Z")
    assert not is_earlier("2026-01-01", "2025-12-31T00:00:00Z")
