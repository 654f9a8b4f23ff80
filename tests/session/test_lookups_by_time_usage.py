"""Lookups by time, usage totals, and what a branch inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from treering.engine import NotFound, Session, SessionView


def usage(tokens: int, cost: float) -> dict[str, object]:
    zero = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    return {**zero, "output": tokens, "totalTokens": tokens, "cost": {**zero, "total": cost}}


def assistant(tokens: int, cost: float, **more: object) -> dict[str, object]:
    message = {"role": "assistant", "content": [], "usage": usage(tokens, cost)}
    return {"type": "message", "message": message, **more}


def test_usage_is_summed_by_category_over_all_branches(tmp_path: Path) -> None:
    """Answers, summaries and children are totalled apart, the same with and without an index."""
    with Session.create(session_dir=str(tmp_path / "sessions"), cwd="/") as session:
        first = session.append(assistant(10, 0.5))
        session.branch_to(None)
        session.append(assistant(5, 0.25))
        session.append({"type": "compaction", "summary": "s", "usage": usage(3, 0.125)})
        child = {"type": "child_usage_attributed", "targetId": first, "childUsage": usage(7, 1.0)}
        session.append(child)
        totals = session.usage()
        assert {name: (t.total_tokens, t.cost) for name, t in totals.items()} == {
            "assistant": (15, 0.75),
            "summary": (3, 0.125),
            "child": (7, 1.0),
        }
        path = session.path
    with SessionView.open(path) as view:
        assert view.usage() == totals


def test_a_time_range_is_half_open_and_in_journal_order(tmp_path: Path) -> None:
    """Entries of a range come in the order they were written, whatever their clocks said."""
    times = ["2026-01-01T00:00:02.000Z", "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:03.000Z"]
    with Session.create(session_dir=str(tmp_path / "sessions"), cwd="/") as session:
        ids = [session.append({"type": "custom", "customType": "c", "timestamp": t}) for t in times]
        start = 1767225601000
        assert [e.id for e in session.by_time(start, start + 2000)] == ids[:2]
        assert [e.id for e in session.by_time(start, start + 2001)] == ids
        assert session.by_time(start + 5000, start + 9000) == []


def test_a_branch_inherits_the_nearest_entry_of_a_kind(tmp_path: Path) -> None:
    """The newest model change on the path counts, not one on another branch."""
    with Session.create(session_dir=str(tmp_path / "sessions"), cwd="/") as session:
        root = session.append({"type": "custom", "customType": "root"})
        change = {"type": "model_change", "provider": "p", "modelId": "one"}
        one = session.append(change)
        session.branch_to(root)
        session.append({**change, "modelId": "two"})
        leaf = session.append({"type": "custom", "customType": "leaf"})
        found = session.latest_on_branch("model_change")
        assert found is not None
        assert b'"two"' in found.raw
        kept = session.latest_on_branch("model_change", one)
        assert kept is not None
        assert kept.id == one
        assert session.latest_on_branch("compaction", leaf) is None
        with pytest.raises(NotFound):
            session.latest_on_branch("model_change", "nobody")
