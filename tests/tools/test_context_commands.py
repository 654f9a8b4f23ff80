"""`session context` and `session usage`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools_helpers import fine, run

from treering.engine import Session


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A session with a compaction, a tool call and figures."""
    with Session.create("/w", home_dir=str(tmp_path / "home")) as session:
        first = session.append_message({"role": "user", "content": "first\x1b[2J question"})
        call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {}}
        usage = {"input": 7, "output": 3, "totalTokens": 10, "cost": {"total": 0.25}}
        answer: dict[str, Any] = {"role": "assistant", "provider": "p", "model": "m"}
        session.append_message({**answer, "content": [call], "usage": usage})
        session.append_thinking_level_change("high")
        session.append_compaction("what was", first, 10, usage=usage)
        session.append_message({"role": "bashExecution", "command": "ls", "output": "a"})
        return session.path


def test_context_lists_what_the_model_is_given(path: str) -> None:
    """Settings first, then the messages in order; nothing of theirs reaches the terminal."""
    ran = fine("session", "context", path)
    lines = ran.out.splitlines()
    assert lines[:2] == ["model p/m, thinking high,", "tier default; 4 messages"]
    texts = [line.split(None, 2)[1:] for line in lines[3:]]
    assert [role for role, _ in texts] == [
        "compactionSummary",
        "user",
        "assistant",
        "bashExecution",
    ]
    assert [text for _, text in texts][::2] == ["what was", "calls bash"]
    assert "\x1b" not in ran.out


def test_context_as_json_and_elsewhere(path: str) -> None:
    """--leaf names another entry, or the position before any."""
    found = json.loads(fine("session", "context", path, "--json").out)
    assert found["model"] == {"provider": "p", "modelId": "m"}
    assert [one["message"]["role"] for one in found["messages"]][:2] == [
        "compactionSummary",
        "user",
    ]
    first = found["messages"][1]["entryId"]
    one = json.loads(fine("session", "context", path, "--leaf", first[:4], "--json").out)
    assert (one["leafId"], len(one["messages"]), one["model"]) == (first, 1, None)
    none = json.loads(fine("session", "context", path, "--leaf", "root", "--json").out)
    assert (none["leafId"], none["messages"]) == (None, [])
    ran = run("session", "context", path, "--leaf", "zzz")
    assert (ran.code, len(ran.stderr.splitlines())) == (1, 1)


def test_usage_by_category(path: str) -> None:
    """Totals over all branches; behind a compaction nobody knows how large the context is."""
    found = json.loads(fine("session", "usage", path, "--json").out)
    assert found["assistant"] == {
        "input": 7,
        "output": 3,
        "cacheRead": 0,
        "cacheWrite": 0,
        "totalTokens": 10,
        "cost": 0.25,
    }
    assert (found["summary"]["totalTokens"], found["child"]) == (10, None)
    assert found["contextTokens"] is None
    out = fine("session", "usage", path).out
    assert "context: unknown" in out
    assert out.split().count("0.2500") == 2
    with Session.open(path) as session:
        usage = {"input": 1, "output": 1, "totalTokens": 42, "cost": {"total": 0}}
        session.append_message({"role": "assistant", "content": [], "usage": usage})
    assert "context: 42 tokens" in fine("session", "usage", path).out
