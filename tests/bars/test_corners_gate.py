"""The coverage command: what is missing counts, what is excused does not, nothing is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("coverage", reason="coverage is not installed (the dev extra)")

import coverage_gate as gate

PLACE = "tools/pool.py"


def found(lines: list[int], branches: list[list[int]]) -> dict[str, Any]:
    return {
        "missing_lines": lines,
        "missing_branches": branches,
        "summary": {"num_statements": 16, "num_branches": 4},
    }


def line_of(text: str) -> int:
    lines = (gate.REPOSITORY / PLACE).read_text().splitlines()
    return [line.strip() for line in lines].index(text) + 1


def test_what_is_missing_counts() -> None:
    assert gate.judge(PLACE, found([], [])).percent == 100.0
    judged = gate.judge(PLACE, found([7, 9], [[6, 7], [12, -3]]))
    assert judged.percent == 80.0
    assert judged.text() == f"{PLACE}: 80.0 % of 95 %: 7, 9, 12->exit"


def test_what_is_excused_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line, and the jumps from it and to it."""
    text = "executor.shutdown(wait=True, cancel_futures=True)"
    at = line_of(text)
    missing = found([at], [[at - 1, at], [at, at + 1]])
    assert gate.judge(PLACE, missing).percent == 85.0
    monkeypatch.setitem(gate.EXCEPTIONS, (PLACE, text), "a reason")
    assert gate.judge(PLACE, missing).percent == 100.0
    assert gate.stale_exceptions() == []
    monkeypatch.setitem(gate.EXCEPTIONS, (PLACE, "no such line"), "a reason")
    assert len(gate.stale_exceptions()) == 1


def test_files_of_the_highest_bar_exist() -> None:
    assert [place for place in gate.WHOLE if not (gate.REPOSITORY / place).is_file()] == []
    assert all(gate.EXCEPTIONS.values())
    for folder in gate.FOLDERS:
        assert (gate.REPOSITORY / "tests" / folder).exists()
    for name in gate.IN_PROCESSES:
        assert (gate.REPOSITORY / "tests" / "tools" / f"test_{name}.py").exists()


@pytest.mark.filterwarnings("ignore::coverage.exceptions.CoverageWarning")
def test_no_data_is_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(gate.REPOSITORY)
    assert gate.main([str(tmp_path / "nothing")]) == 2
    assert gate.main([]) == 2
    assert gate.main(["--measure"]) == 2
    (tmp_path / "other").write_bytes(b"no data file")
    assert gate.main([str(tmp_path / "other")]) == 2
    told = capsys.readouterr().out
    assert "nothing: No data to report" in told
    assert f"{tmp_path / 'other'}: " in told
