"""Entries as short lines for people. Tolerant: whatever an entry holds, it gets a line."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from treering.engine.json_text import depth_over_limit
from treering.engine.session.entry import Entry

TEXT_CHARS_MAX: Final = 2_000
_EVERY_ENTRY_HAS: Final = frozenset(("type", "id", "parentId", "timestamp"))
UNREADABLE: Final = "[its payload cannot be read; `treering fsck` says why]"


def members_of(raw: bytes) -> dict[str, Any]:
    """The members of an entry; empty when they cannot be had."""
    if depth_over_limit(raw) is not None:
        return {}
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            found = json.loads(raw)  # takes escaped lone surrogates, which imports may hold
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def describe(entry: Entry | None) -> tuple[str, str]:
    """(role or kind, text) of an entry, unescaped and unclipped."""
    if entry is None:
        return "?", UNREADABLE
    members = members_of(entry.raw)
    kind = _text(members.get("type")) or "?"
    if kind == "message":
        return _message(members.get("message"))
    describer = _KINDS.get(kind)
    if describer is None:
        rest = {key: value for key, value in members.items() if key not in _EVERY_ENTRY_HAS}
        return kind, _json(rest) if rest else ""
    return kind, describer(members)


def has_text(members: dict[str, Any]) -> bool:
    """Whether a message has any text that is not blank."""
    message = members.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return bool(text_of(content).strip())


def text_of(content: Any) -> str:
    """The text blocks of a content, one after the other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return " ".join(
        _text(block.get("text"))
        for block in content
        if isinstance(block, dict) and block.get("type") == "text"
    )


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict):
        return "message", ""
    role = _text(message.get("role")) or "message"
    content = message.get("content")
    text = text_of(content)
    if role == "assistant":
        return role, text if text.strip() else _without_text(message, content)
    if role == "toolResult":
        failed = "failed: " if message.get("isError") is True else ""
        return role, f"{_text(message.get('toolName'))}: {failed}{text}"
    if role == "bashExecution":
        return role, f"$ {_text(message.get('command'))}"
    if role in ("branchSummary", "compactionSummary"):
        return role, _text(message.get("summary"))
    images = _images(content)
    if images:
        text += " [image]" if images == 1 else f" [{images} images]"
    return role, text


def _without_text(message: dict[str, Any], content: Any) -> str:
    calls = [
        f"{_text(block.get('name'))}({_json(block.get('arguments'))})"
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "toolCall"
    ]
    if calls:
        return "calls " + ", ".join(calls)
    error = _text(message.get("errorMessage"))
    stop = _text(message.get("stopReason"))
    return f"({error})" if error else f"({stop})" if stop not in ("", "stop") else "(no content)"


def _images(content: Any) -> int:
    if not isinstance(content, list):
        return 0
    return sum(1 for block in content if isinstance(block, dict) and block.get("type") == "image")


def _compaction(members: dict[str, Any]) -> str:
    before = members.get("tokensBefore")
    tokens = f"{before / 1000:.0f}k tokens" if isinstance(before, int | float) else "tokens unknown"
    return f"[{tokens}] {_text(members.get('summary'))}"


def _label(members: dict[str, Any]) -> str:
    label, target = _text(members.get("label")), _text(members.get("targetId"))
    return f"{label} -> {target}" if label else f"cleared -> {target}"


def _custom_message(members: dict[str, Any]) -> str:
    return f"{_text(members.get('customType'))}: {text_of(members.get('content'))}"


def _member(*names: str) -> Any:
    def describe_members(members: dict[str, Any]) -> str:
        value: Any = members
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, str) else "" if value is None else _json(value)

    return describe_members


_KINDS: Final[dict[str, Any]] = {
    "compaction": _compaction,
    "branch_summary": _member("summary"),
    "custom_message": _custom_message,
    "custom": _member("customType"),
    "label": _label,
    "model_change": lambda m: f"{_text(m.get('provider'))}/{_text(m.get('modelId'))}",
    "thinking_level_change": _member("thinkingLevel"),
    "service_tier_change": _member("serviceTier"),
    "session_info": _member("name"),
    "session_state": _member("state", "status"),
    "agent_status": _member("status", "summary"),
    "git_state": _member("git"),
    "child_usage_attributed": _member("targetId"),
    "session": lambda m: f"a second header, outside the tree: {_text(m.get('id'))}",
}


def _text(value: Any) -> str:
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else ""


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)[:TEXT_CHARS_MAX]
    except (ValueError, RecursionError):
        return "..."
