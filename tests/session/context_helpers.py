"""What the tests of the model context share: the rules once more over dicts, and JSON as JavaScript."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from treering.engine import import_session
from treering.engine.session.context import build_session_context
from treering.engine.session.context_rules import SessionContext
from treering.engine.session.context_usage import build_context_usage, read_context_usage
from treering.engine.session.facts import timestamp_ms
from treering.engine.session.reads import Reads

Json = dict[str, Any]

HEADER: Json = {"type": "session", "version": 3, "id": "s-1", "timestamp": "2026-01-01T00:00:00Z"}


def write_jsonl(path: Path, lines: Sequence[Json | bytes], header: Json | None = None) -> Path:
    """A legacy file of these entries, exact bytes where bytes are given."""
    records = [
        line if isinstance(line, bytes) else dump(line) for line in (header or HEADER, *lines)
    ]
    path.write_bytes(b"".join(record + b"\n" for record in records))
    return path


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def imported(folder: Path, lines: Sequence[Json | bytes], **more: Any) -> str:
    """The path of a session that was imported from these entries."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_jsonl(folder / "source.jsonl", lines)
    return import_session(source, home_dir=str(folder / "home"), **more).path


def same_both_ways(reads: Reads, leaf_id: str | None | UnsetType = UNSET) -> SessionContext:
    """The context at a position; the index and the list of all entries must agree about it."""
    found = reads.read_session_context(leaf_id)
    entries = list(reads.iter_entries())
    named = reads.leaf_id if leaf_id is UNSET else leaf_id
    assert found == build_session_context(entries, named)
    assert read_context_usage(reads, leaf_id) == build_context_usage(entries, named)
    return found


def js_text(value: Any) -> str:
    """The value as ``JSON.stringify`` of JavaScript spells it."""
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{js_text(name)}:{js_text(part)}" for name, part in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(js_text, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _js_number(float(value))
    return json.dumps(value, ensure_ascii=False)


def _js_number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    if -7 < int(exponent) < 0:
        sign, digits = ("-", digits[1:]) if value < 0 else ("", digits)
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits.replace('.', '')}"
    return f"{digits}e{int(exponent):+d}"


def context_of(entries: Sequence[Json], leaf_id: str | None) -> Json:
    """The context by the documented rules, over dicts: ids are unique, and nothing is a circle."""
    by_id = {entry["id"]: entry for entry in entries}
    path: list[Json] = []
    at = by_id[leaf_id] if leaf_id is not None else None
    while at is not None:
        path.insert(0, at)
        at = by_id.get(at.get("parentId") or "")
    level, tier, model, cut = "off", "default", None, None
    for place, entry in enumerate(path):
        kind = entry["type"]
        if kind == "thinking_level_change":
            level = entry["thinkingLevel"]
        elif kind == "service_tier_change":
            tier = entry["serviceTier"]
        elif kind == "model_change":
            model = (entry["provider"], entry["modelId"])
        elif kind == "message" and entry["message"]["role"] == "assistant":
            model = (entry["message"].get("provider"), entry["message"].get("model"))
        elif kind == "compaction":
            cut = place
    usage = {e["targetId"]: e["aggregateUsage"] for e in entries if "aggregateUsage" in e}
    if cut is None:
        messages = _shown(path, usage)
    else:
        ids = [entry["id"] for entry in path[:cut]]
        kept = path[cut].get("firstKeptEntryId")
        retained = _shown(path[ids.index(kept) : cut] if kept in ids else [], usage)
        messages = [_summary(path[cut], len(retained)), *retained, *_shown(path[cut + 1 :], usage)]
    _in_call_order(messages)
    model = None if model == (None, None) else model
    return {"messages": messages, "level": level, "tier": tier, "model": model}


def _shown(entries: Sequence[Json], usage: dict[str, Json]) -> list[Json]:
    found = []
    for entry in entries:
        time = {"timestamp": timestamp_ms(entry.get("timestamp"))}
        if entry["type"] == "message":
            message = dict(entry["message"])
            if message["role"] == "assistant" and entry["id"] in usage:
                message["usage"] = usage[entry["id"]]
            found.append(message)
        elif entry["type"] == "custom_message":
            names = ("customType", "content", "display", "details")
            found.append({"role": "custom"} | {n: entry[n] for n in names if n in entry} | time)
        elif entry["type"] == "branch_summary" and entry["summary"]:
            names = ("summary", "fromId")
            found.append({"role": "branchSummary"} | {n: entry[n] for n in names} | time)
    return found


def _summary(entry: Json, retained: int) -> Json:
    found = {"role": "compactionSummary", "summary": entry["summary"]}
    found |= {"tokensBefore": entry["tokensBefore"], "retainedMessageCount": retained}
    if "customInstructions" in entry:
        found["customInstructions"] = entry["customInstructions"]
    return found | {"timestamp": timestamp_ms(entry["timestamp"])}


def _in_call_order(messages: list[Json]) -> None:
    calls: list[str] = []
    start = 0
    while start < len(messages):
        end = start + 1
        if messages[start]["role"] == "assistant":
            calls = [b["id"] for b in messages[start]["content"] if b["type"] == "toolCall"]
        elif messages[start]["role"] == "toolResult":
            while end < len(messages) and messages[end]["role"] == "toolResult":
                end += 1
            messages[start:end] = sorted(
                messages[start:end],
                key=lambda r: calls.index(r["toolCallId"]) if r["toolCallId"] in calls else 99,
            )
        start = end
