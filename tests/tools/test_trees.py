"""The tree model: filters, what hangs below what, and trees that are no trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools_helpers import SAMPLES, fine, imported, new_session

from treering.engine.session.session import Session
from treering.engine.session.tree_view import FILTERS

SOURCE = SAMPLES / "tree-rings.jsonl"


def shown(path: str, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fine("session", "tree", path, "--json", *options).json["entries"]
    return found


def ids(path: str, *options: str) -> list[str]:
    return [entry["id"] for entry in shown(path, *options)]


def write(path: Path, *entries: dict[str, Any]) -> Path:
    lines = [{"type": "session", "version": 3, "id": "s"}, *entries]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def entry(
    entry_id: str, parent: str | None, kind: str = "message", /, **more: Any
) -> dict[str, Any]:
    body = {"type": kind, "id": entry_id, "parentId": parent}
    return body | (more or {"message": {"role": "user", "content": f"text {entry_id}"}})


def assistant(name: str, parent: str, stop: str | None, text: str = "") -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    inner = {"role": "assistant", "content": content, "stopReason": stop}
    return entry(name, parent, message=inner)


BOOKKEEPING: dict[str, dict[str, Any]] = {
    "label": {"targetId": "u", "label": "L"},
    "custom": {"customType": "x"},
    "model_change": {"provider": "p", "modelId": "m"},
    "thinking_level_change": {"thinkingLevel": "low"},
    "service_tier_change": {"serviceTier": "s"},
    "session_info": {"name": "n"},
    "child_usage_attributed": {"targetId": "u"},
    "session_state": {"state": {"status": "active"}},
    "agent_status": {"status": {"summary": "s"}},
    "git_state": {"git": {}},
}


@pytest.fixture
def all_kinds(home: Path, tmp_path: Path) -> str:
    entries = [entry("u", None)]
    for kind, members in BOOKKEEPING.items():
        entries.append(entry(kind, entries[-1]["id"], kind, **members))
    last = entries[-1]["id"]
    entries += [
        entry("tool_intent", last, "tool_intent", invocation={}),
        entry("tool", "tool_intent", message={"role": "toolResult", "toolName": "t"}),
        entry("bash", "tool", message={"role": "bashExecution", "command": "ls"}),
        entry("odd", "bash", "never_heard_of", stuff=[1]),
        entry("compaction", "odd", "compaction", summary="s", firstKeptEntryId="u", tokensBefore=1),
        assistant("answer", "compaction", "stop", "done"),
    ]
    return imported(home, write(tmp_path / "k.jsonl", *entries))


def test_filters(all_kinds: str) -> None:
    """Each mode shows what the table of filters says; children hang below the nearest shown."""
    rest = ["tool", "bash", "odd", "compaction", "answer"]
    assert ids(all_kinds) == ["u", *rest]
    assert ids(all_kinds, "--filter", "no-tools") == ["u", *rest[1:]]
    assert ids(all_kinds, "--filter", "user-only") == ["u"]
    assert ids(all_kinds, "--filter", "labeled-only") == ["u"]
    assert ids(all_kinds, "--filter", "all") == ["u", *BOOKKEEPING, *rest]
    parents = {found["id"]: found["parent"] for found in shown(all_kinds)}
    assert parents["tool"] == "u"


def test_silent_assistants(home: Path, tmp_path: Path) -> None:
    """An assistant message without text is hidden in every mode, but for the leaf and for one
    that stopped in an unusual way."""
    source = write(
        tmp_path / "a.jsonl",
        entry("u", None),
        assistant("calls", "u", "toolUse"),
        assistant("stops", "calls", "stop"),
        assistant("none", "stops", None),
        assistant("blank", "none", "stop", " \n"),
        assistant("fails", "blank", "error"),
        assistant("leaf", "fails", "stop"),
    )
    path = imported(home, source)
    for mode in ("default", "no-tools", "all"):
        assert ids(path, "--filter", mode) == ["u", "fails", "leaf"]
    fine("session", "branch", path, "u")
    assert ids(path, "--filter", "all") == ["u", "fails"]


def test_settings_choose_the_filter(all_kinds: str, home: Path) -> None:
    """treeFilterMode of settings.json is the default; nonsense there changes nothing."""
    settings = home / "settings.json"
    for text, mode in (
        ('{"treeFilterMode":"user-only"}', "user-only"),
        ('{"treeFilterMode":"nonsense"}', "default"),
        ("[" * 100_000, "default"),
        ("\x00", "default"),
    ):
        settings.write_text(text)
        ran = fine("session", "tree", Path(all_kinds).stem, "--json", home=home)
        assert ran.json["filter"] == mode


def test_keys(home: Path) -> None:
    """The members of `tree --json` are stable."""
    found = fine("session", "tree", imported(home, SOURCE), "--json").json
    assert list(found) == ["session", "filter", "leaf", "entries"]
    assert list(found["entries"][0]) == [
        "id",
        "parent",
        "depth",
        "kind",
        "role",
        "text",
        "label",
        "leaf",
        "active",
        "unresolved",
    ]


def test_sample_as_text(home: Path) -> None:
    """The active branch comes first and is marked; labels and the leaf are shown."""
    lines = fine("session", "tree", imported(home, SOURCE)).lines
    marked = [line for line in lines if line.startswith("*")]
    assert lines[: len(marked)] == marked
    assert lines[len(marked) - 1].endswith("a000000e  <- here")
    assert any(line.endswith("[averages]  a0000005") for line in lines)
    assert sum("├" in line or "└" in line for line in lines) == 2


def test_search(home: Path) -> None:
    """Only entries with all the words, wherever they stand in label, role and text."""
    path = imported(home, SOURCE)
    assert ids(path, "--search", "AVERAGES assistant") == ["a0000005"]
    assert ids(path, "--search", "年輪") == ["a0000009"]
    assert ids(path, "--search", "no such words") == []


def test_cycles_and_orphans_appear_once(home: Path, tmp_path: Path) -> None:
    """Every entry appears exactly once; what has no usable parent is marked."""
    source = write(
        tmp_path / "c.jsonl",
        entry("a", "c"),
        entry("b", "a"),
        entry("c", "b"),
        entry("self", "self"),
        entry("orphan", "nobody"),
        entry("early", "late"),
        entry("late", None),
    )
    path = imported(home, source)
    for mode in ("default", "all"):
        found = shown(path, "--filter", mode)
        assert sorted(e["id"] for e in found) == ["a", "b", "c", "early", "late", "orphan", "self"]
        marks = {e["id"]: e["unresolved"] for e in found if e["unresolved"]}
        assert marks["orphan"] == "missing"
        assert marks["self"] == "cycle"
        assert len([name for name in "abc" if marks.get(name) == "cycle"]) == 1
        order = [e["id"] for e in found]
        assert order.index("late") < order.index("early")
    out = fine("session", "tree", path).out
    assert "[its parent is missing]" in out
    assert "[its parents form a cycle]" in out


def test_deep_chain(home: Path, tmp_path: Path) -> None:
    """20,000 generations, a branch at each: no recursion, flat memory, one line each."""
    entries = [entry("e0", None)]
    for number in range(1, 10_000):
        entries.append(entry(f"e{number}", f"e{number - 1}"))
        entries.append(entry(f"s{number}", f"e{number - 1}"))
    path = imported(home, write(tmp_path / "deep.jsonl", *entries), "--no-limit")
    lines = fine("session", "tree", path).lines
    assert len(lines) == len(entries)
    assert max(map(len, lines)) <= 120
    assert all(line.rstrip("- <her").split()[-1][0] in "es" for line in lines)


def test_undecodable_entries_are_lines(home: Path) -> None:
    """An entry whose payload cannot be produced is a line that says so, among its neighbours."""
    from support.build import ENTRY, Maker, compact

    maker = Maker()
    maker.open()
    maker.session()
    first = {"type": "message", "id": "a", "parentId": None, "message": {"role": "user"}}
    maker.frame(ENTRY, compact(first))
    maker.frame(ENTRY, b"not zstd", codec=1, raw=100)
    maker.frame(ENTRY, compact(first | {"id": "b", "parentId": "a"}))
    maker.close()
    maker.publish()
    path = home / "sessions" / "s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(maker.whole())
    out = fine("session", "tree", path, "--filter", "all").out
    assert "cannot be read" in out
    assert len(out.splitlines()) == 3
    assert fine("session", "show", path).code == 0


def test_text_of_every_shape(home: Path) -> None:
    """Members of unexpected types are shown somehow, in every filter; never an error."""
    odd: list[Any] = [None, 1, "text", [], [None, 1, [], {}], {"a": {"b": []}}, True, [{"type": 1}]]
    path = new_session(home, "u")
    with Session.open(path) as session:
        for value in odd:
            for kind in ("message", "compaction", "custom_message", "model_change", "zzz", "label"):
                members = {"label": {"targetId": session.leaf_id}}.get(kind, {})
                session.append(
                    {"type": kind, "message": value, "summary": value, "content": value} | members
                )
            for role in ("user", "assistant", "toolResult", "bashExecution", "compactionSummary"):
                odd_members = dict.fromkeys(("content", "command", "summary", "stopReason"), value)
                session.append({"type": "message", "message": {"role": role} | odd_members})
    for mode in FILTERS:
        fine("session", "tree", path, "--filter", mode)
    fine("session", "show", path)
    fine("session", "list", home=home)
