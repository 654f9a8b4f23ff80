"""From the bytes of a record to the few members that the reports look at.

Whatever else a record holds (texts, images, answers of tools) is checked as JSON and never built:
however large it is, it costs no memory.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from treering.engine.json_text import BadRecordError, check, depth_over_limit, members
from treering.engine.session.link_slots import REFINEMENT

_INTEGER_DIGITS_MAX: Final = 4_000
"""Longer integers become infinite: Python refuses to read them, and they are equal to nothing."""

_OPENING: Final = ord("{")


class Line(NamedTuple):
    """What one line of a JSONL file holds."""

    framed: bool
    """Whether it is one of Base Context's JSON frames."""
    bare: bool
    """Whether it is a frame without a member ``retention``; a null there counts as one."""
    qualification: object
    """What the frame says; UNSET without that member."""
    entry: dict[str, Any] | None
    """See :func:`entry_of`."""


class _Members(msgspec.Struct, rename="camel", gc=False):
    """One object: its ``type`` when that is a string, the rest as it stands there."""

    type: str = ""
    id: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET
    role: Raw | UnsetType = UNSET
    request: Raw | UnsetType = UNSET
    from_hook: Raw | UnsetType = UNSET
    request_output: Raw | UnsetType = UNSET
    request_outputs: Raw | UnsetType = UNSET
    planner_request: Raw | UnsetType = UNSET
    custom_type: Raw | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    rollback_of: Raw | UnsetType = UNSET
    journal_frame: Raw | UnsetType = UNSET
    retention: Raw | UnsetType = UNSET
    qualification: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET


_FIELDS: Final = dict(
    zip(_Members.__struct_encode_fields__, _Members.__struct_fields__, strict=True)
)
_fast = msgspec.json.Decoder(_Members).decode
_value = msgspec.json.Decoder().decode


def line_of(raw: bytes) -> Line:
    """What a line holds.

    Raises:
        BadRecordError: it is not UTF-8, not one JSON object, or nests too deep.
    """
    line = _members_of(raw)
    if line.journal_frame is UNSET or bytes(line.journal_frame) != b"1":
        return Line(framed=False, bare=False, qualification=UNSET, entry=_entry(line))
    return Line(
        framed=True,
        bare=line.retention is UNSET,
        qualification=_value_of(line.qualification),
        entry=_entry(_object(line.payload)),
    )


def entry_of(raw: bytes) -> dict[str, Any] | None:
    """Of an entry that matters to the reports, the members that matter; None for any other.

    Bytes that are no entry are none that matters.
    """
    try:
        return _entry(_members_of(raw))
    except BadRecordError:
        return None


def _entry(found: _Members | None) -> dict[str, Any] | None:
    if found is None:
        return None
    kind = found.type
    entry: dict[str, Any] = {"type": kind, "id": found.id}
    if kind == "message":
        message = _object(found.message)
        if message is None or _value_of(message.role) != "assistant":
            return None
        entry |= {"message": {"role": "assistant"}, "requestOutput": found.request_output}
    elif kind == "request":
        entry["request"] = found.request
    elif kind == "compaction":
        entry |= {"fromHook": found.from_hook, "requestOutputs": found.request_outputs}
    elif kind == "branch_summary":
        entry |= {"fromHook": found.from_hook, "requestOutput": found.request_output}
    elif kind == "custom":
        if _value_of(found.custom_type) != REFINEMENT:
            return None
        entry |= {"customType": REFINEMENT, "plannerRequest": found.planner_request}
        data = _object(found.data)
        if data is not None:
            entry["data"] = {} if data.rollback_of is UNSET else {"rollbackOf": None}
    elif kind != "session":
        return None
    return {
        name: _value_of(value) if isinstance(value, Raw) else value
        for name, value in entry.items()
        if value is not UNSET
    }


def _object(raw: Raw | UnsetType) -> _Members | None:
    """The members of an object inside a record that was checked; None when it is none."""
    if raw is UNSET or memoryview(raw)[0] != _OPENING:
        return None
    try:
        return _fast(raw)
    except msgspec.MsgspecError:
        return _slowly(bytes(raw))


def _members_of(raw: bytes) -> _Members:
    if not raw.isascii() or depth_over_limit(raw) is not None:
        check(raw)
    try:
        return _fast(raw)
    except msgspec.MsgspecError:
        check(raw)
        return _slowly(raw)


def _slowly(raw: bytes) -> _Members:
    """The members of an object that is valid, but holds what the fast decoder refuses."""
    found = _Members()
    for member in members(raw)[1]:
        field = _FIELDS.get(member.name)
        if field is None:
            continue
        value = Raw(raw[member.value_begin : member.value_end])
        if field == "type":
            kind = _value_of(value)
            found.type = kind if isinstance(kind, str) else ""
        else:
            setattr(found, field, value)
    return found


def _value_of(raw: Raw | UnsetType) -> Any:
    """A value of a record that was checked.

    Lone surrogates stay; numbers that no machine holds are infinite.
    """
    if raw is UNSET:
        return UNSET
    try:
        return _value(raw)
    except msgspec.MsgspecError:
        return json.loads(bytes(raw).decode(), parse_int=_integer)


def _integer(text: str) -> float:
    return int(text) if len(text) <= _INTEGER_DIGITS_MAX else math.inf
