"""The rows of `session list`, laid out: one for every file, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treering.engine.environment import iso_time
from treering.engine.session.session_info import NO_MESSAGES, SessionInfo
from treering.index import Usage
from treering.tools.output import one_line, say_json, table, warn

if TYPE_CHECKING:
    from treering.engine.home import Store
    from treering.engine.session.pages import PageQuery

FIRST_MESSAGE_CHARS = 200


def show_rows(rows: Iterable[SessionInfo]) -> None:
    """The table of a list."""
    head = ("id", "last activity", "messages", "name or first message", "cwd")
    table(head, [cells_of(row) for row in rows], (36, 16, 8, 0, 30))


def list_page(store: Store, query: PageQuery, cursor: str | None, *, as_json: bool) -> None:
    """One page of a list, of the sessions as they are now, and how to get those around it."""
    from treering.engine.session.pages import SessionPages

    with SessionPages(store) as pages:
        pages.refresh()
        page = pages.page(query, cursor)
    if as_json:
        marks = [{"context": row.context, "clipped": row.clipped} for row in page.rows]
        say_json(
            {
                "sessions": [
                    as_json_row(row.info) | mark for row, mark in zip(page.rows, marks, strict=True)
                ],
                "total": page.total,
                "position": page.position,
                "next": page.next_cursor,
                "previous": page.previous_cursor,
                "reset": page.reset,
            }
        )
        return
    if page.reset:
        warn("the cursor is of another list, or forgotten: this is the first page")
    if not page.rows:
        warn(f"nothing of that kind in {store.sessions}; `treering session list` shows all")
        return
    show_rows(row.info for row in page.rows)
    for name, found in (("next", page.next_cursor), ("previous", page.previous_cursor)):
        if found is not None:
            warn(f"{name} page: the same command with --cursor {found} ({page.total} in all)")


def as_json_row(info: SessionInfo) -> dict[str, Any]:
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
