"""What lookups answer, and that they go through indexes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from index_helpers import eight, linear, load, pages, position_after, random_rows, row

from treering.index import IndexFault, LeafMove, SessionIndex, Usage, ancestry
from treering.index.peek import peek


def test_every_depth_jumps_as_the_definition_says() -> None:
    """The table and both functions agree with skew-binary jump pointers built step by step."""
    jumps = [0]
    for depth in range(1, 70_000):
        parent = depth - 1
        jump = jumps[parent]
        skip = parent - jump == jump - jumps[jump]
        jumps.append(jumps[jump] if skip else parent)
        assert ancestry.jump_depth(depth) == jumps[depth]
        if depth > 2:
            assert ancestry.skips(depth) == (jumps[depth] != parent)
    for depth in (len(ancestry.SKIPS), 2**20 - 1, 2**20, 2**31 - 1, 10**12):
        assert ancestry.skips(depth) == (ancestry.jump_depth(depth) != depth - 1)


def test_a_long_path_is_read_in_pages() -> None:
    """Pages of a path by depth, from its root to its leaf, join to the whole path."""
    with SessionIndex.memory() as index:
        load(index, linear(5000), [700])
        whole = index.path(5000)
        assert [e.sequence for e in whole] == list(range(1, 5001))
        assert index.path(5000, from_depth=4990) == whole[4990:]
        assert index.path(5000, from_depth=1234, limit=17) == whole[1234:1251]
        assert index.path(5000, from_depth=4999, limit=17) == whole[4999:]
        assert index.path(5000, from_depth=5000) == []
        assert index.path(5000, limit=0) == []
        assert index.path(99_999) == []
        assert index.ancestor_at_depth(5000, 5000) is None
        assert not index.is_ancestor(5000, 4999)
        assert not index.is_ancestor(99_999, 5000)


def test_a_reversed_file_heals_whole() -> None:
    """Every parent after its child, in chunks and with branches: depths come out right."""
    count = 3000
    rows = [row(n, eight(n), eight(n + 1) if n < count else None) for n in range(1, count + 1)]
    with SessionIndex.memory() as index, SessionIndex.memory() as pieces:
        load(index, rows)
        load(pieces, rows, [250, 1, 999])
        assert index.differences(pieces) == []
        assert [e.sequence for e in index.path(1)] == list(range(count, 0, -1))
        assert index.counts()["unresolved"] == 0


def test_healing_costs_no_square() -> None:
    """Islands below islands, asked for their root again and again: statements grow linearly."""

    def statements(count: int) -> int:
        rows = [row(n, f"a{n}", f"a{n + 1}") for n in range(1, count)]
        for n in range(count, 2 * count):
            rows.append(row(2 * n, f"w{n}", f"b{n}"))
            rows.append(row(2 * n + 1, f"b{n}", "a1"))
        executed = 0

        def trace(*_: object) -> bool:
            nonlocal executed
            executed += 1
            return True

        with SessionIndex.memory() as index:
            index._db.exec_trace = trace
            load(index, rows)
        return executed

    assert statements(1600) < 2.5 * statements(800)


def test_islands_join_in_any_order() -> None:
    """Random permutations of one deep tree heal to the same depths."""
    count = 400
    parents = {
        n: None if n == 0 else random.Random(n).randrange(max(0, n - 4), n) for n in range(count)
    }
    depths = {0: 0}
    for n in range(1, count):
        depths[n] = depths[parents[n]] + 1  # type: ignore[index]
    for seed in range(6):
        order = random.Random(seed).sample(range(count), count)
        rows = [row(at, f"n{n}", f"n{parents[n]}" if n else None) for at, n in enumerate(order, 1)]
        with SessionIndex.memory() as index:
            load(index, rows, [1 + seed * 40])
            assert {e.id: e.depth for e in index.entries(limit=count)} == {
                f"n{n}": depth for n, depth in depths.items()
            }
            for entry in index.entries(limit=count):
                assert len(index.path(entry.sequence)) == entry.depth + 1


def test_times_kinds_and_usage() -> None:
    """By kind and time in journal order and in pages; totals by category."""
    figures = Usage(1, 2, 3, 4, 10, 0.1)
    rows = [
        row(
            n,
            f"e{n}",
            kind=("message", "compaction")[n % 3 == 0],
            role=None if n % 3 == 0 else ("user", "assistant")[n % 2],
            timestamp_ms=None if n == 5 else n * 10,
            usage=("assistant", figures),
        )
        for n in range(1, 31)
    ]
    with SessionIndex.memory() as index:
        load(index, rows, [4])
        assert [e.sequence for e in index.by_kind("compaction", limit=3)] == [3, 6, 9]
        newest = index.by_kind("compaction", newest_first=True, before=27, after=12, limit=9)
        assert [e.sequence for e in newest] == [24, 21, 18, 15]
        users = index.by_kind("message", role="user", limit=4)
        assert [e.sequence for e in users] == [2, 4, 8, 10]
        assert [e.sequence for e in index.by_kind("message", limit=4)] == [1, 2, 4, 5]
        assert index.by_kind("nothing", limit=4) == []
        assert [e.sequence for e in index.by_time(30, 80, limit=9)] == [3, 4, 6, 7]
        assert [e.sequence for e in index.by_time(30, 2**80, after=4, limit=2)] == [6, 7]
        total = 0.0
        for _ in range(30):
            total += 0.1
        assert index.usage() == {"assistant": Usage(30, 60, 90, 120, 300, total)}
        assert index.counts()["kinds"] == {"message": 20, "compaction": 10}
        assert set(index.by_ids(["e3", "none", "\ud800", "e4"])) == {"e3", "e4"}
        assert [e.sequence for e in pages(index.entries, 7)] == list(range(1, 31))


def test_newest_of_a_kind_on_a_path_among_many_elsewhere() -> None:
    """Thousands of candidates on other branches, or none at all, do not change the answer."""
    rows = [
        *linear(2000),
        *(row(n, f"c{n}", eight(1000), kind="compaction", role=None) for n in range(2001, 4001)),
    ]
    rows.append(row(4001, "leaf", eight(2000)))
    with SessionIndex.memory() as index:
        load(index, rows)
        assert index.latest_on_path("compaction", 4001) is None
        assert index.latest_on_path("compaction", 4000).sequence == 4000  # type: ignore[union-attr]
        assert index.latest_on_path("message", 4001, role="assistant").sequence == 1999  # type: ignore[union-attr]
        load(index, [row(4002, "x", "leaf", kind="compaction", role=None)])
        assert index.latest_on_path("compaction", 4002).sequence == 4002  # type: ignore[union-attr]
        assert index.latest_on_path("compaction", 4001) is None
        assert index.latest_on_path("compaction", 99_999) is None


def test_leaf_moves() -> None:
    """The leaf before anything, on an entry, before any entry, and after an unknown id."""
    with SessionIndex.memory() as index:
        assert index.leaf() == (False, None)
        load(index, [*linear(3), LeafMove(4, eight(2))])
        assert index.leaf() == (True, 2)
        load(index, [LeafMove(5, None), LeafMove(6, "unknown")])
        assert index.leaf() == (True, None)
        assert index.counts()["unknown_leaf_moves"] == 1


def test_identity_position_and_watermark_come_back(tmp_path: Path) -> None:
    """What was kept comes back after closing, also through a peek at the closed file."""
    path = str(tmp_path / "with%20odd?name#1.1.sqlite3")
    with SessionIndex.open(path, create=True) as index:
        assert index.identity() is None
        assert index.position() is None
        assert index.watermark() is None
        index.bind(b"j" * 16, 2**64 - 1, 2**63)
        index.apply(linear(3), position_after(row(3, "")), b"w" * 64)
    assert peek(path) == ((b"j" * 16, 2**64 - 1, 2**63), position_after(row(3, "")), b"w" * 64)
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path)]
    with SessionIndex.open(path, readonly=True) as index:
        assert index.identity() == (b"j" * 16, 2**64 - 1, 2**63)
        assert index.position() == position_after(row(3, ""))
        assert index.watermark() == b"w" * 64
        index.self_check()
    with pytest.raises(IndexFault) as caught:
        peek(str(tmp_path / "none"))
    assert caught.value.missing


def test_differences_name_table_key_and_values() -> None:
    """Rows that are missing, extra or different are each said, up to the limit."""
    with SessionIndex.memory() as one, SessionIndex.memory() as two:
        load(one, linear(10))
        load(two, linear(10))
        assert one.differences(two) == []
        two._db.execute("DELETE FROM entry WHERE seq=4")
        two._db.execute("UPDATE entry SET parent=1 WHERE seq=7")
        one._db.execute("INSERT INTO label VALUES(3, 'x', 3)")
        found = one.differences(two)
        assert len(found) == 3
        assert found[0].startswith("entry 4: here ('")
        assert found[1] == "entry 7: parent here 6, there 1"
        assert found[2] == "label 3: here ('x', 3), there no row"
        assert two.differences(one, limit=2)[0].startswith("entry 4: here no row")
        assert len(two.differences(one, limit=2)) == 2


def test_lookups_go_through_indexes() -> None:
    """No lookup that must be fast scans the entry table or sorts."""
    seen: dict[str, Any] = {}

    def trace(_cursor: object, sql: str, bindings: Any) -> bool:
        seen[sql] = bindings
        return True

    with SessionIndex.memory() as index:
        load(index, [*linear(50), row(51, "x", eight(3), kind="label", label=(eight(4), "L"))])
        index._db.exec_trace = trace
        index.by_id("x"), index.by_ids(["x"]), index.by_sequence(3), index.has_id("x")
        index.holder("x"), index.path(51), index.path(51, limit=3), index.is_ancestor(3, 51)
        index.children(3, limit=2), index.children(None, limit=2), index.child_count(3)
        index.label(4), index.labels(limit=2), index.by_kind("label", limit=2)
        index.by_kind("label", limit=2, newest_first=True), index.latest_on_path("label", 51)
        index.unresolved(limit=2), index.entries(limit=2)
        load(index, [row(52, "y", "x"), row(53, "y", "nowhere"), row(54, "nowhere")])
        index._db.exec_trace = None
        selects = {s: b for s, b in seen.items() if s.lstrip().startswith(("SELECT", "WITH"))}
        assert len(selects) > 25
        for sql, bindings in selects.items():
            rows = index._db.execute("EXPLAIN QUERY PLAN " + sql, bindings).fetchall()
            steps = "; ".join(detail for _, _, _, detail in rows)
            assert "SCAN entry" not in steps, (sql, steps)
            assert "TEMP B-TREE" not in steps or "e.own" in sql, (sql, steps)


def test_sizes_per_entry(tmp_path: Path) -> None:
    """An index of a linear session costs at most 110 bytes an entry."""
    path = tmp_path / "b"
    with SessionIndex.build_into(str(path)) as index:
        load(index, linear(30_000))
        index.finish_build()
    assert path.stat().st_size / 30_000 < 110


KILLED = """
import random, sys
sys.path.insert(0, {folder!r})
from index_helpers import load, random_rows
from treering.index import SessionIndex
rows = random_rows(random.Random(11), 6000)
with SessionIndex.open({path!r}, create=True) as index:
    print("go", flush=True)
    load(index, rows, [37, 400, 5])
"""


@pytest.mark.parametrize("delay_ms", [5, 40, 80, 160, 320])
def test_a_kill_at_any_moment_loses_only_rows_that_come_again(
    tmp_path: Path, delay_ms: int
) -> None:
    """SIGKILL while rows are applied: going on behind the position gives what a rebuild gives."""
    path = str(tmp_path / "s.1.sqlite3")
    program = KILLED.format(folder=os.path.dirname(__file__), path=path)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay_ms / 1000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    rows = random_rows(random.Random(11), 6000)
    with SessionIndex.open(path) as index, SessionIndex.memory() as rebuilt:
        position = index.position()
        behind = 0 if position is None else position.sequence
        load(index, [item for item in rows if item.sequence > behind], [1000])
        load(rebuilt, rows)
        assert index.differences(rebuilt) == []
