"""`treering bench`: it runs, says everything it promises to say, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest
from click.testing import CliRunner, Result
from support.long_runs import LONG

from treering.tools import bench, bench_data, bench_manager, bench_measure
from treering.tools.bench import command

KEYS = {"row", "what", "value", "unit", "ratio", "peer", "must", "goal", "met", "rounds"}


def run(folder: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--dir", str(folder)])


class TestCommand:
    @LONG
    def test_every_row_is_measured_with_every_key(self, tmp_path, monkeypatch):
        """A tiny quick run gives each row once, with all keys, and removes its folder."""
        monkeypatch.setenv("TREERING_CORPUS", str(tmp_path / "none"))
        result = run(tmp_path, "--quick", "--json", "--entries", "300")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        promised = {name for names, _ in bench.GROUPS.values() for name in names}
        assert [row["row"] for row in found] == list(dict.fromkeys(row["row"] for row in found))
        assert {row["row"] for row in found} == promised - {"journal-size-corpus"}
        for row in found:
            assert set(row) == KEYS, row
            assert row["value"] > 0, row
            assert row["rounds"] >= 1, row
            assert row["what"], row
            assert (row["peer"] is None) == (row["ratio"] is None), row
            assert (row["met"] is None) == (row["must"] is None) == (row["goal"] is None), row
        assert os.listdir(tmp_path) == []

    def test_rows_select_by_name_and_by_group(self, tmp_path):
        """One row of a group, or all of it; a missed target is not an error."""
        result = run(tmp_path, "--quick", "--json", "--entries", "200", "--rows", "last-100,verify")
        assert result.exit_code == 0, result.output
        found = [row["row"] for row in json.loads(result.stdout)]
        assert found == ["verify", "verify-parse", "last-100"]
        assert os.listdir(tmp_path) == []

    def test_text_says_peer_limits_and_verdict(self, tmp_path):
        """People get the ratio, the figures, the peer, what is asked, and what is not there yet."""
        result = run(tmp_path, "--quick", "--entries", "200", "--rows", "append-writer,label")
        assert result.exit_code == 0, result.output
        assert "pwrite+fdatasync" in result.stdout
        assert "must <= 1.25x" in result.stdout
        assert "rounds: 3" in result.stdout
        assert "search" in result.stdout.splitlines()[-1]

    def test_scale_prints_the_curve(self, tmp_path):
        """Each size gives open, entry by id and path page, without a target."""
        result = run(tmp_path, "--quick", "--scale", "--json", "--entries", "300")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert [row["row"] for row in found] == ["scale-open", "scale-by-id", "scale-page"]
        assert {row["met"] for row in found} == {None}
        assert os.listdir(tmp_path) == []

    def test_unknown_row_is_a_usage_error(self, tmp_path):
        """The message lists the rows that there are."""
        result = run(tmp_path, "--rows", "nonsense")
        assert result.exit_code == 2
        assert "append-writer" in result.output

    def test_a_folder_that_is_not_there_is_exit_3(self, tmp_path):
        """It could not run, which is neither damage nor a missed target."""
        result = run(tmp_path / "absent", "--quick", "--rows", "label")
        assert result.exit_code == 3
        assert "could not run" in result.output


class TestMeasure:
    def test_ratio_is_the_median_within_rounds(self):
        """A slow round slows both sides and does not move the ratio."""
        assert bench_measure.median_ratio([10, 200, 12], [5, 100, 6]) == 2

    def test_sides_take_turns(self):
        """Every side makes all of its calls, a few at a time."""
        order: list[str] = []
        sides = [[lambda name=name: order.append(name)] * 3 for name in "ab"]
        times = bench_measure.in_turns(sides, turn=2)
        assert order == ["a", "a", "b", "b", "a", "b"]
        assert [len(side) for side in times] == [3, 3]

    def test_interleaved_runs_a_b_a_b(self):
        """Rounds alternate between the sides."""
        order: list[str] = []

        def side(name: str) -> float:
            order.append(name)
            return float(len(order))

        found, medians = bench_measure.interleaved(2, lambda: side("a"), lambda: side("b"))
        assert order == ["a", "b", "a", "b"]
        assert found == [[1, 3], [2, 4]]
        assert medians == [2, 3]

    @pytest.mark.parametrize(
        ("row", "figure", "met"),
        [("open-warm", 5.0, True), ("open-warm", 5.1, False), ("verify", 249_999.0, False)],
    )
    def test_met_follows_the_direction_of_the_target(self, row, figure, met):
        """Times may not be above, rates not below."""
        found = bench_measure.Figure(row, "", figure, "", None, None, 1)
        assert found.met is met


class TestManager:
    def test_the_rows_of_the_manager_are_measured(self, tmp_path):
        """One append, many tasks, reads: each with a figure and what is asked of it."""
        rows = "append-manager,tasks,manager-reads"
        result = run(tmp_path, "--quick", "--json", "--entries", "100", "--rows", rows)
        assert result.exit_code == 0, result.output
        found = {row["row"]: row for row in json.loads(result.stdout)}
        assert found["append-manager"]["peer"]["name"] == "pwrite+fdatasync"
        assert found["tasks-64"]["peer"]["name"] == "one task"
        assert found["tasks-64"]["ratio"] > 1
        for row in ("path-manager", "last-100-manager", "children-manager", "label-manager"):
            assert found[row]["value"] > 0
        assert {row["must"] is None for row in found.values()} == {False}

    def test_a_blocked_event_loop_is_a_pause(self):
        """What keeps the loop from its timers is counted, in milliseconds."""

        async def blocked() -> list[bench_manager.Tick]:
            async with bench_manager.ticking() as ticks:
                await asyncio.sleep(0.02)
                time.sleep(0.08)
            return ticks

        ticks = asyncio.run(blocked())
        assert len(ticks) >= 2
        longest = max(ticks)
        assert longest.late >= 75
        assert longest.computed < longest.late  # it slept: the time is not this program's


class TestTargets:
    def test_each_target_is_of_a_row(self):
        """No target is asked of a row that nobody measures; and hardly a row has none."""
        rows = {name for names, _ in bench.GROUPS.values() for name in names}
        assert set(bench_measure.TARGETS) <= rows
        assert {row for row in rows - set(bench_measure.TARGETS) if "imported" not in row} == {
            "append-many-indexed"
        }


class TestData:
    def test_the_same_in_every_run(self):
        """Entries depend on their number only."""
        shape = bench_data.Shape(10)
        make = bench_data.Generator(shape)
        assert make.entry(7) == bench_data.Generator(shape).entry(7)

    def test_ids_are_unique_and_parents_come_first(self):
        """Either kind of tree is whole: every parent is an earlier entry."""
        ids = {bench_data.entry_id(number) for number in range(50_000)}
        assert len(ids) == 50_000
        for parents in ("chain", "random"):
            assert bench_data.parent_of(0, parents) is None
            for number in range(1, 3_000):
                parent = bench_data.parent_of(number, parents)
                assert parent is not None
                assert 0 <= parent < number

    def test_entries_have_the_size_that_was_asked_for(self):
        """On average within five per cent: rows say 1.3 KB and mean it."""
        for size in (bench_data.LARGE_BYTES, bench_data.SMALL_BYTES):
            make = bench_data.Generator(bench_data.Shape(500, size))
            average = sum(len(make.entry(number)) for number in range(500)) / 500
            assert abs(average - size) < size * 0.05
