"""Sessions with links in three forms, and what every reader must report of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from support.build import ENTRY, REQUEST, RETAINED, SESSION, Maker, Store, put
from support.native_writer import QUALIFICATIONS, Row, journal

from treering import SessionView, request_associations
from treering.fuzz.targets.associations import Record, expected_report

SID = "0197f2a0-0000-7000-8000-00000000000a"
REFINEMENT = "prime-agent.refinement"
EPOCH = "native-context-epoch"


class Piece(NamedTuple):
    """An entry (any JSON value) and the marks of its frame."""

    entry: Any
    retained: bool = False
    qualification: str | None = None


def header(session_id: Any = SID, **more: Any) -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": session_id, "cwd": "/w", **more}


def source(**changes: Any) -> dict[str, Any]:
    """A source; ``...`` leaves a member out."""
    members = {
        "sessionId": SID,
        "sessionFile": "/recorded/s.jsonl",
        "leafId": None,
        "sourceSequence": 0,
        "persistent": True,
        **changes,
    }
    return {name: value for name, value in members.items() if value is not ...}


def link(*attempts: Any, **changes: Any) -> dict[str, Any]:
    """A link to these attempts (``a`` if none is named) of operation ``o``."""
    members = {
        "operationId": "o",
        "attemptIds": list(attempts or ("a",)),
        "source": source(),
        **changes,
    }
    return {name: value for name, value in members.items() if value is not ...}


def event(kind: str = "attempt_admitted", attempt: Any = "a", **changes: Any) -> dict[str, Any]:
    """A request record."""
    proof = {"descriptor": {}} if kind == "attempt_admitted" else {"receipt": {"usage": {}}}
    members = {
        "type": kind,
        "attemptId": attempt,
        "operationId": "o",
        "source": source(),
        "purpose": "main",
        **proof,
        **changes,
    }
    members = {name: value for name, value in members.items() if value is not ...}
    return {
        "type": "request",
        "id": f"{attempt}:{kind}",
        "parentId": None,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "request": members,
    }


def both(attempt: Any = "a", **changes: Any) -> list[dict[str, Any]]:
    """An admission and its settlement."""
    return [event(kind, attempt, **changes) for kind in ("attempt_admitted", "attempt_settled")]


def _entry(kind: str, entry_id: Any, members: dict[str, Any]) -> dict[str, Any]:
    found = {"type": kind, "id": entry_id, "parentId": None, **members}
    return {name: value for name, value in found.items() if value is not ...}


def assistant(output: Any = ..., entry_id: Any = "m", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
    return _entry("message", entry_id, {"message": message, "requestOutput": output, **more})


def compaction(outputs: Any = ..., entry_id: Any = "c", **more: Any) -> dict[str, Any]:
    return _entry("compaction", entry_id, {"summary": "s", "requestOutputs": outputs, **more})


def part(name: Any, *attempts: Any, **changes: Any) -> dict[str, Any]:
    return {"part": name, **link(*attempts, **changes)}


def branch_summary(output: Any = ..., entry_id: Any = "b", **more: Any) -> dict[str, Any]:
    return _entry("branch_summary", entry_id, {"summary": "s", "requestOutput": output, **more})


def refinement(planner: Any = ..., entry_id: Any = "r", **more: Any) -> dict[str, Any]:
    members = {"customType": REFINEMENT, "data": {"edits": []}, "plannerRequest": planner}
    return _entry("custom", entry_id, {**members, **more})


# The three forms


def pieces_of(entries: list[Any]) -> list[Piece]:
    return [one if isinstance(one, Piece) else Piece(one) for one in entries]


def json_frames(entries: list[Any]) -> bytes:
    """A journal of Base Context."""
    return journal(
        Row(json.dumps(one.entry), "retained-import" if one.retained else None, one.qualification)
        for one in pieces_of(entries)
    )


def plain_lines(entries: list[Any]) -> bytes:
    return b"".join(json.dumps(one.entry).encode() + b"\n" for one in pieces_of(entries))


def our_journal(entries: list[Any]) -> bytes:
    """A journal of ours, made by hand; its first entry is the header."""
    maker = Maker()
    maker.open()
    for number, one in enumerate(pieces_of(entries)):
        payload = json.dumps(one.entry).encode()
        request = isinstance(one.entry, dict) and one.entry.get("type") == "request"
        kind = SESSION if number == 0 else REQUEST if request else ENTRY
        maker.frame(kind, payload, flags=flags_of(one))
        if number == 0:
            maker.close()
            maker.publish()
            maker.open()
    maker.close()
    return maker.whole()


def flags_of(one: Piece) -> int:
    number = 0 if one.qualification is None else 1 + QUALIFICATIONS.index(one.qualification)
    return (RETAINED if one.retained else 0) | number << 1


def oracle(entries: list[Any]) -> dict[str, Any]:
    """The reports as the rules say them, slowly."""
    records = [
        Record(
            one.entry,
            original=not one.retained and one.qualification is None,
            compaction_original=not one.retained and one.qualification in (None, EPOCH),
        )
        for one in pieces_of(entries)
    ]
    found = expected_report(records)
    assert found is not None
    return found


def reports_of(store: Store, entries: list[Any]) -> dict[str, Any]:
    """The reports of a session; every reader and the rules must say the same."""
    expected = oracle(entries)
    framed = Path(store.top, "framed.jsonl")
    framed.write_bytes(json_frames(entries))
    path = put(store, our_journal(entries))
    with SessionView.open(path) as view:
        for found in map(request_associations, (framed, path, view)):
            # As text too: True, 1 and 1.0 are equal, and are not the same.
            assert found == expected
            assert json.dumps(found) == json.dumps(expected)
    return expected
