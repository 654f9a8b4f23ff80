"""What an entry says, as text: for lists, searches, editors and summaries.

Tolerant: members of unexpected types read as absent, and whatever an entry holds, it gets a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from treering.engine.json_text import depth_over_limit
from treering.engine.session.entry import Entry

TEXT_CHARS_MAX: Final = 2_000
"""Characters of one member in a description."""

_EVERY_ENTRY_HAS: Final = frozenset(("type", "id", "parentId", "timestamp"))


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


def describe(entry: Entry) -> tuple[str, str]:
    """(role or kind, text) of an entry, unescaped; long members are cut."""
    members = members_of(entry.raw)
    kind = clipped(members.get("type")) or "?"
    if kind == "message":
        return _message(members.get("message"))
    describer = _KINDS.get(kind)
    if describer is None:
        rest = {key: value for key, value in members.items() if key not in _EVERY_ENTRY_HAS}
        return kind, json_text(rest) if rest else ""
    return kind, describer(members)


def has_text(content: Any) -> bool:
    """Whether a message's content has any text that is not blank."""
    if isinstance(content, str):
        return bool(content.strip())
    return any(text.strip() for text in _blocks(content))


def whole_text(content: Any) -> str:
    """The text of a content exactly as it was written: its text blocks joined by nothing."""
    return content if isinstance(content, str) else "".join(_blocks(content))


def image_count(content: Any) -> int:
    """How many images a content has."""
    if not isinstance(content, list):
        return 0
    return sum(1 for block in content if isinstance(block, dict) and block.get("type") == "image")


def _blocks(content: Any) -> list[str]:
    if not isinstance(content, list):
        return []
    return [
        block["text"]
        for block in content
        if isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    ]


def _short_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(text[:TEXT_CHARS_MAX] for text in _blocks(content))


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict):
        return "message", ""
    role = clipped(message.get("role")) or "message"
    content = message.get("content")
    text = _short_text(content)
    if role == "assistant":
        return role, text if text.strip() else _without_text(message, content)
    if role == "toolResult":
        failed = "failed: " if message.get("isError") is True else ""
        return role, f"{clipped(message.get('toolName'))}: {failed}{text}"
    if role == "bashExecution":
        return role, f"$ {clipped(message.get('command'))}"
    if role in ("branchSummary", "compactionSummary"):
        return role, clipped(message.get("summary"))
    images = image_count(content)
    if images:
        text += " [image]" if images == 1 else f" [{images} images]"
    return role, text


def _without_text(message: dict[str, Any], content: Any) -> str:
    calls = [
        f"{clipped(block.get('name'))}({json_text(block.get('arguments'))})"
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "toolCall"
    ]
    if calls:
        return "calls " + ", ".join(calls)
    error = clipped(message.get("errorMessage"))
    stop = clipped(message.get("stopReason"))
    return f"({error})" if error else f"({stop})" if stop not in ("", "stop") else "(no content)"


def _compaction(members: dict[str, Any]) -> str:
    before: Any = members.get("tokensBefore")
    try:
        tokens = f"{before / 1000:.0f}k tokens"
    except (TypeError, OverflowError):  # absent, no number, or more than a float can hold
        tokens = "tokens unknown"
    return f"[{tokens}] {clipped(members.get('summary'))}"


def _label(members: dict[str, Any]) -> str:
    label, target = clipped(members.get("label")), clipped(members.get("targetId"))
    return f"{label} -> {target}" if label else f"cleared -> {target}"


def _custom_message(members: dict[str, Any]) -> str:
    return f"{clipped(members.get('customType'))}: {_short_text(members.get('content'))}"


def _member(*names: str) -> Callable[[dict[str, Any]], str]:
    def describe_member(members: dict[str, Any]) -> str:
        value: Any = members
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, str) else "" if value is None else json_text(value)

    return describe_member


_KINDS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "compaction": _compaction,
    "branch_summary": _member("summary"),
    "custom_message": _custom_message,
    "custom": _member("customType"),
    "label": _label,
    "model_change": lambda m: f"{clipped(m.get('provider'))}/{clipped(m.get('modelId'))}",
    "thinking_level_change": _member("thinkingLevel"),
    "service_tier_change": _member("serviceTier"),
    "session_info": _member("name"),
    "session_state": _member("state", "status"),
    "agent_status": _member("status", "summary"),
    "git_state": _member("git"),
    "child_usage_attributed": _member("targetId"),
    "session": lambda m: f"a second header, outside the tree: {clipped(m.get('id'))}",
}


def clipped(value: Any) -> str:
    """The beginning of a string; nothing of any other value."""
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else ""


def json_text(value: Any) -> str:
    """The beginning of a value as JSON; ``...`` for one that cannot be written."""
    try:
        return json.dumps(value, ensure_ascii=False)[:TEXT_CHARS_MAX]
    except (ValueError, RecursionError):
        return "..."


_NO_TEXT: Final = frozenset(("id", "parentId", "timestamp", "type", "targetId", "firstKeptEntryId"))


def all_texts(raw: bytes) -> str:
    """Every text in an entry but what names and dates it, for a search."""
    found: list[str] = []
    stack: list[Any] = [value for name, value in members_of(raw).items() if name not in _NO_TEXT]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return "\n".join(found)
