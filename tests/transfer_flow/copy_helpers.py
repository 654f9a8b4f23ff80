"""What the tests of copies share: sources, and what is in a copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from session_helpers import index_differences, view_answers

from treering.engine import Session
from treering.engine.transfer.copying import CopyResult


def store(tmp_path: Path) -> str:
    return str(tmp_path / "home")


def raw_entry(entry_id: str, parent: str | None, kind: str = "custom", **more: Any) -> bytes:
    """Exact bytes with spellings that no encoder would choose."""
    head = f'{{ "type":"{kind}" ,"id":"{entry_id}",\t"parentId" : {json.dumps(parent)} ,'
    rest = {"timestamp": "2024-12-03T14:00:00.000Z", "customType": "t", **more}
    return (head + json.dumps(rest)[1:-1] + ',"n":1.50e0,"n":[1.0,1E3]}').encode()


def label(entry_id: str, parent: str | None, target: str, text: str | None, time: int) -> bytes:
    more: dict[str, Any] = {"targetId": target} | ({} if text is None else {"label": text})
    more["timestamp"] = f"2024-12-03T15:00:00.{time:03d}Z"
    return raw_entry(entry_id, parent, "label", **more)


def shown(path: str) -> dict[str, Any]:
    """What a copy holds: an owner, its index, and a view agree about it."""
    with Session.open(path) as session:
        assert session.report is not None
        assert session.report.case == "A"
        entries = list(session.iter_entries())
        found = {
            "raws": [entry.raw for entry in entries],
            "ids": [entry.id for entry in entries],
            "flags": [entry.flags for entry in entries],
            "path": [entry.id for entry in session.branch()],
            "leaf": session.leaf_id,
            "labels": {entry.id: text for entry, text in session.labels(limit=10_000)},
            "unresolved": [entry.id for entry in entries if entry.unresolved],
            "header": session.header,
            "provenance": session.provenance(),
        }
        assert not session.index_faults
    assert index_differences(path) == []
    assert view_answers(path)["leaf"] == found["leaf"]
    return found


def copied(result: CopyResult) -> dict[str, Any]:
    return shown(result.path)
