"""Entries that callers hand in, as bytes or as mappings: stored as given, or refused."""

from __future__ import annotations

import json
from typing import Any, Final

from treering.engine.errors import InvalidEntry, TreeringError
from treering.engine.json_text import BadRecordError, members
from treering.engine.json_text import check as check_record
from treering.engine.session.admission import Admitted, admit
from treering.engine.session.facts import facts_of
from treering.fuzz.targets.target import Broken, Target, same


def check(data: bytes) -> None:
    """Bytes that are accepted are stored as they are; the standard parser reads the same facts."""
    value, strict = _parsed(data)
    try:
        admitted = admit(data)
    except TreeringError as error:
        _rightly_refused(value, data, error)
    else:
        if not strict or not isinstance(value, dict):
            raise Broken("bytes are accepted that are not one strict JSON object")
        same("bytes to store", admitted.payload("other", None, "now"), data)
        same("id", admitted.id, value.get("id"))
        same("kind", admitted.kind, value.get("type"))
        parent = value.get("parentId")
        same("parent", admitted.parent, parent if isinstance(parent, str) else None)
        _readable(data)
    if isinstance(value, dict):
        _as_mapping(value)


def _parsed(data: bytes) -> tuple[Any, bool]:
    """What the standard library makes of it, and whether it is strict JSON in UTF-8."""
    strict = True

    def constant(name: str) -> float:
        nonlocal strict
        strict = False
        return float(name)

    try:
        return json.loads(data.decode(), parse_constant=constant), strict
    except (ValueError, RecursionError):
        return None, False


def _rightly_refused(value: Any, data: bytes, error: TreeringError) -> None:
    """An entry of the plainest form must be accepted."""
    plain = (
        isinstance(value, dict)
        and set(value) <= {"type", "id", "parentId", "timestamp", "text"}
        and all(isinstance(text, str) and text.isascii() and text for text in value.values())
        and all(text.isprintable() and len(text) <= 512 for text in value.values())
        and {"type", "id"} <= set(value)
        and value["type"] not in ("session", "label", "compaction", "child_usage_attributed")
    )
    if plain and not set(b"\n\xef") & set(data):
        raise Broken(f"a plain entry is refused: {error}")


def _readable(data: bytes) -> None:
    """What was accepted can be read again: its facts for the index, its members one by one."""
    facts_of(data)
    try:
        opened, found, closed = members(data)
        fields = check_record(data)
    except BadRecordError as error:
        raise Broken(f"an accepted entry {error.reason}") from None
    pieces = [data[one.value_begin : one.value_end] for one in found]
    named = {one.name: json.loads(piece) for one, piece in zip(found, pieces, strict=True)}
    same("members", json.dumps(named), json.dumps(json.loads(data)))
    same("brackets", (data[opened : opened + 1], data[closed : closed + 1]), (b"{", b"}"))
    same("lone surrogates", fields.lone_surrogates, 0)


def _as_mapping(value: dict[str, Any]) -> None:
    """A mapping that is accepted becomes bytes that are accepted and hold the same members."""
    before = repr(value)
    try:
        admitted: Admitted = admit(value)
        payload = admitted.payload("made", "above", "2026-01-01T00:00:00.000Z")
    except TreeringError:
        return
    finally:
        same("the caller's own mapping", repr(value), before)
    again = admit(payload, verified=True)
    same("kind", again.kind, admitted.kind)
    same("id", again.id, "made")
    held = json.loads(payload)
    heads = ("id", "parentId", "timestamp")
    same(
        "members",
        {name: one for name, one in held.items() if name not in heads},
        {name: one for name, one in value.items() if name not in heads},
    )
    try:
        admit(payload)
    except InvalidEntry as error:
        raise Broken(f"an entry made of an accepted mapping is refused: {error}") from None


TARGET: Final = Target(
    check,
    modules=(
        "treering.engine.json_text",
        "treering.engine.session.admission",
        "treering.engine.session.facts",
    ),
    bytes_max=1024,
    seconds_max=2.0,
    memory_bytes_max=16 << 20,
    tokens=(
        b'"type":"',
        b'"id":"',
        b'"parentId":',
        b'"timestamp":"2026-01-01T00:00:00.000Z"',
        b'"message":{"role":"',
        b'"toolCallId":',
        b'"usage":{"input":1,"cost":{"total":1e3}}',
        b'"targetId":"',
        b'"firstKeptEntryId":',
        b'"details":{"baseContextEpoch":',
        b'"plannerRequest":',
        b'"label"',
        b'"compaction"',
        b'"session"',
        b'"request"',
        b"\\ud800",
        b"\\ud83d\\ude00",
        b"\\u0000",
        b"-Infinity",
        b"NaN",
        b"1e400",
        b"9223372036854775808",
        b"[[[[[[[[",
        b'{"a":' * 8,
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
)
