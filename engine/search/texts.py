"""What of an entry a search finds: the whole text of messages and summaries, and short fields."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple

from treering.engine.json_text import clean
from treering.engine.session.facts import SUMMARY_KINDS, timestamp_ms
from treering.engine.session.texts import members_of, whole_text

FIELD_CHARS_MAX: Final = 500
"""Of a name, label, path or first message."""

_MEMBERS: Final = ("text", "thinking", "name")
"""Members of content blocks that hold text."""


class Said(NamedTuple):
    """What an entry says."""

    kind: str
    role: str | None
    time_ms: int | None
    text: str
    id: str | None
    name: str | None
    """Of an entry that names the session."""
    label: tuple[int, str | None] | None
    """Of an entry that labels: a number for the target, and the label; None clears."""


def said(raw: bytes) -> Said | None:
    """What an entry says to a search; None when that is nothing. Never an error."""
    members = members_of(raw)
    kind = members.get("type")
    if not isinstance(kind, str):
        return None
    role, parts, name, label = None, [], None, None
    if kind == "message":
        message = members.get("message")
        if not isinstance(message, dict):
            return None
        role = _string(message.get("role"))
        parts = _of_message(message)
    elif kind in SUMMARY_KINDS:
        parts = [members.get("summary")]
    elif kind == "custom_message":
        parts = _of_content(members.get("content"))
    elif kind == "session_info":
        name = clean(_string(members.get("name")) or "")[:FIELD_CHARS_MAX]
    elif kind == "label":
        label = _label(members)
    text = clean("\n".join(part for part in parts if isinstance(part, str) and part))
    text = text.replace("\0", " ")  # ends a text for SQLite
    if not text and name is None and label is None:
        return None
    time_ms = timestamp_ms(_string(members.get("timestamp")))
    return Said(clean(kind), _clean(role), time_ms, text, _string(members.get("id")), name, label)


def short(text: str) -> str:
    """The beginning of a text, as a field holds it."""
    return " ".join(text[: FIELD_CHARS_MAX * 2].split())[:FIELD_CHARS_MAX]


def _of_message(message: dict[str, Any]) -> list[Any]:
    content = _of_content(message.get("content"))
    role = message.get("role")
    if role == "toolResult":
        return [message.get("toolName"), *content]
    if role == "bashExecution":
        return [message.get("command"), message.get("output")]
    if role in ("branchSummary", "compactionSummary"):
        return [message.get("summary")]
    return content


def _of_content(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [whole_text(content)]
    parts: list[Any] = []
    for block in content:
        if isinstance(block, dict):
            parts += [block.get(member) for member in _MEMBERS]
            if block.get("type") == "toolCall":
                parts += _strings(block.get("arguments"))
    return parts


def _strings(value: Any) -> list[str]:
    """All strings in a value, in order. (Its nesting was checked.)"""
    found: list[str] = []
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            stack += reversed(value.values())
        elif isinstance(value, list):
            stack += reversed(value)
    return found


def _label(members: dict[str, Any]) -> tuple[int, str | None] | None:
    target = _string(members.get("targetId"))
    if target is None:
        return None
    digest = blake2b(target.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    label = _string(members.get("label"))
    return int.from_bytes(digest), None if not label else clean(label)[:FIELD_CHARS_MAX]


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _clean(text: str | None) -> str | None:
    return None if text is None else clean(text)
