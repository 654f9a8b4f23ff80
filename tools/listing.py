"""The rows of `session list`, laid out: one for every file, whatever is wrong with it."""

from __future__ import annotations

from typing import Any

from treering.engine.environment import iso_time
from treering.engine.session.session_info import NO_MESSAGES, SessionInfo
from treering.index import Usage
from treering.tools.output import one_line

FIRST_MESSAGE_CHARS = 200


def as_json(info: SessionInfo) -> dict[str, Any]:
    """The documented members, in camelCase."""
    return {
        "id": info.id,
        "path": info.path,
        "status": info.status,
        "reason": info.reason,
        "name": info.name,
        "firstMessage": _first_message(info),
        "messages": info.message_count,
        "entries": info.entry_count,
        "cwd": info.cwd,
        "created": _iso(info.created),
        "parentSession": info.parent_session_path,
        "lastActivityMs": info.last_message,
        "lastActivity": _iso(info.last_message),
        "state": info.state,
        "rlmDepth": info.rlm_depth,
        "agentStatus": info.agent_status,
        "usage": None if info.usage is None else usage_as_json(info.usage),
    }


def cells_of(info: SessionInfo) -> tuple[str, str, str, str, str]:
    """The row as texts for a table: escaped, each on one line."""
    when = (_iso(info.modified) or "")[:16].replace("T", " ")
    if info.status != "ok":
        what = f"[{info.status}] {info.reason}"
    else:
        nothing = NO_MESSAGES if info.message_count == 0 else "(no text of a user)"
        what = info.name or _first_message(info) or info.reason or nothing
    return (
        one_line(info.id),
        one_line(when),
        str(info.message_count) if info.status in ("ok", "damaged") else "-",
        one_line(what),
        one_line(info.cwd or ""),
    )


def _first_message(info: SessionInfo) -> str | None:
    text = info.first_user_text
    if text is None:
        return None
    return " ".join(text[: FIRST_MESSAGE_CHARS * 4].split())[:FIRST_MESSAGE_CHARS]


def usage_as_json(usage: Usage) -> dict[str, Any]:
    """Token figures under their documented names."""
    return {
        "input": usage.input,
        "output": usage.output,
        "cacheRead": usage.cache_read,
        "cacheWrite": usage.cache_write,
        "totalTokens": usage.total_tokens,
        "cost": usage.cost,
    }


def _iso(ms: int | None) -> str | None:
    try:
        return None if ms is None else iso_time(ms)
    except (ValueError, OverflowError, OSError):
        return None
