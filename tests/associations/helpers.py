"""Sessions with links in three forms, and the reports as the rules say them, slowly.

The oracle shares no code with the engine: it goes through decoded frames again and again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from support.build import ENTRY, REQUEST, RETAINED, SESSION, Maker, Store, put
from support.native_writer import QUALIFICATIONS, Row, journal

from treering import SessionView, request_associations

SID = "0197f2a0-0000-7000-8000-00000000000a"
REFINEMENT = "prime-agent.refinement"
EPOCH = "native-context-epoch"
KEYS = {
    "assistant_request_associations": "assistant_entry_id",
    "compaction_request_associations": "compaction_entry_id",
    "branch_summary_request_associations": "branch_summary_entry_id",
    "refinement_planner_associations": "refinement_entry_id",
}


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


def reports_of(store: Store, entries: list[Any], *, ours: bool = True) -> dict[str, Any]:
    """The reports of a session; every reader and the oracle must say the same."""
    expected = oracle(entries)
    framed = Path(store.top, "framed.jsonl")
    framed.write_bytes(json_frames(entries))
    assert request_associations(framed) == expected
    if ours:
        path = put(store, our_journal(entries))
        assert request_associations(path) == expected
        with SessionView.open(path) as view:
            assert request_associations(view) == expected
    return expected


# The rules, said slowly


def oracle(entries: list[Any]) -> dict[str, Any]:
    pieces = pieces_of(entries)
    records = [one for one in pieces if isinstance(one.entry, dict)]
    head = [one for one in records if one.entry.get("type") == "session"][-1]
    report: dict[str, Any] = {name: [] for name in KEYS}
    for one in records:
        entry = one.entry
        kind = entry.get("type")
        message = entry.get("message")
        if kind == "message" and isinstance(message, dict) and message.get("role") == "assistant":
            found = _match(records, head, one, entry.get("requestOutput"), _bare(one), "main")
            _add(report, "assistant_request_associations", entry, found)
        elif kind == "branch_summary":
            found = _match(
                records,
                head,
                one,
                entry.get("requestOutput"),
                _bare(one) and _is_own(entry),
                "summary",
                "branch",
            )
            _add(report, "branch_summary_request_associations", entry, found)
        elif kind == "custom" and entry.get("customType") == REFINEMENT:
            data = entry.get("data")
            planned = isinstance(data, dict) and "rollbackOf" not in data
            found = _match(
                records,
                head,
                one,
                entry.get("plannerRequest"),
                _bare(one) and planned,
                "refine",
                "plan",
            )
            _add(report, "refinement_planner_associations", entry, found)
        elif kind == "compaction":
            parts = _parts(records, head, one)
            report["compaction_request_associations"].append(
                {"compaction_entry_id": entry.get("id"), "recorded_requests": parts}
            )
    return report


def _add(report: dict[str, Any], name: str, entry: Any, found: Any) -> None:
    report[name].append({KEYS[name]: entry.get("id"), "recorded_request": found})


def _parts(records: list[Piece], head: Piece, one: Piece) -> Any:
    eligible = not one.retained and one.qualification in (None, EPOCH) and _is_own(one.entry)
    listed = one.entry.get("requestOutputs")
    if not eligible or not isinstance(listed, list) or not _is_text(one.entry.get("id")):
        return None
    details = {"history": "compaction", "turn-prefix": "compaction-turn-prefix"}
    found = []
    for element in listed:
        if isinstance(element, dict):
            name = element.get("part")
            if isinstance(name, str) and name in details:
                matched = _match(records, head, one, element, True, "summary", details[name])
                found.append({"part": name, "recorded_request": matched})
    return found or None


def _match(
    records: list[Piece],
    head: Piece,
    one: Piece,
    linked: Any,
    eligible: bool,
    purpose: str,
    detail: str | None = None,
) -> Any:
    if not _bare(head) or not eligible or not _is_text(one.entry.get("id")):
        return None
    if not isinstance(linked, dict) or not _is_text(linked.get("operationId")):
        return None
    attempts, origin = linked.get("attemptIds"), linked.get("source")
    if not isinstance(attempts, list) or not attempts or not all(map(_is_text, attempts)):
        return None
    if any(attempts.count(each) > 1 for each in attempts) or not _is_source(origin):
        return None
    if not _is_text(head.entry.get("id")) or origin["sessionId"] != head.entry["id"]:
        return None
    for attempt in attempts:
        events = [
            each.entry["request"]
            for each in records
            if _counts(each) and each.entry["request"]["attemptId"] == attempt
        ]
        if not events:
            return None
        for each in events:
            if not _same(each.get("operationId"), linked["operationId"]):
                return None
            if not _same(each.get("source"), origin) or not _same(each.get("purpose"), purpose):
                return None
            if detail is not None and not _same(each.get("purposeDetail"), detail):
                return None
    return {"operationId": linked["operationId"], "attemptIds": attempts, "source": origin}


def _counts(one: Piece) -> bool:
    found = one.entry.get("request")
    if one.entry.get("type") != "request" or not _bare(one) or not isinstance(found, dict):
        return False
    if not _is_text(found.get("attemptId")):
        return False
    receipt = found.get("receipt")
    settled = isinstance(receipt, dict) and isinstance(receipt.get("usage"), dict)
    kind = found.get("type")
    return kind == "attempt_admitted" or (kind == "attempt_settled" and settled)


def _bare(one: Piece) -> bool:
    return not one.retained and one.qualification is None


def _is_own(entry: dict[str, Any]) -> bool:
    return "fromHook" not in entry or entry["fromHook"] is False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_source(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    needed = {"sessionId", "leafId", "sourceSequence", "persistent"}
    if not needed <= set(value) or not set(value) <= needed | {"sessionFile"}:
        return False
    number = value["sourceSequence"]
    return (
        _is_text(value["sessionId"])
        and value["persistent"] is True
        and isinstance(number, int)
        and not isinstance(number, bool)
        and number >= 0
        and (value["leafId"] is None or isinstance(value["leafId"], str))
        and isinstance(value.get("sessionFile", ""), str)
    )


def _same(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
