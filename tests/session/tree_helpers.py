"""Sessions for the tests of trees: journals of any entries, however wrong their parents are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.build import ENTRY, LEAF, REQUEST, Maker

from treering.engine import SessionView

BASE_MS = 1_700_000_000_000

Item = dict[str, Any]
"""An entry; ``{"leaf": id}`` alone is a move of the position."""


def stamp(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"


def user(entry_id: str, parent: str | None, text: Any = None, **more: Any) -> Item:
    message = {"role": "user", "content": f"text {entry_id}" if text is None else text}
    return entry(entry_id, parent, "message", message=message, **more)


def assistant(
    entry_id: str, parent: str | None, text: str = "", stop: str | None = "stop", **more: Any
) -> Item:
    blocks = [{"type": "text", "text": text}] if text else []
    calls = [
        {"type": "toolCall", "id": "c", "name": n, "arguments": a} for n, a in more.pop("calls", ())
    ]
    message = {"role": "assistant", "content": blocks + calls, "stopReason": stop}
    return entry(entry_id, parent, "message", message=message, **more)


def tool(entry_id: str, parent: str | None, text: str = "out", **more: Any) -> Item:
    content = [{"type": "text", "text": text}]
    message = {"role": "toolResult", "toolCallId": "c", "toolName": "t", "content": content}
    return entry(entry_id, parent, "message", message=message, **more)


def label(entry_id: str, parent: str | None, target: str, text: str | None, **more: Any) -> Item:
    said = {} if text is None else {"label": text}
    return entry(entry_id, parent, "label", targetId=target, **said, **more)


def entry(entry_id: str, parent: str | None, kind: str, /, **more: Any) -> Item:
    return {"type": kind, "id": entry_id, "parentId": parent, **more}


def chain(*made: Item) -> list[Item]:
    """Entries one below the other, whatever their parents are now."""
    above: str | None = None
    for item in made:
        item["parentId"] = above
        above = item["id"]
    return list(made)


def write(path: Path, items: Iterable[Item]) -> str:
    """A closed journal of these entries."""
    maker = Maker()
    maker.open()
    maker.session()
    for item in items:
        payload = json.dumps(item).encode()
        if list(item) == ["leaf"]:
            maker.frame(LEAF, payload)
        else:
            maker.frame(REQUEST if item["type"] == "request" else ENTRY, payload)
    maker.close()
    maker.publish()
    path.write_bytes(maker.whole())
    return str(path)


@contextmanager
def viewed(folder: Path, items: Iterable[Item]) -> Iterator[SessionView]:
    """A read-only view of a session of these entries."""
    with SessionView.open(write(folder / "s.jsonl", items)) as view:
        yield view
