"""What an index needs to know of an entry, read from its bytes; never an error, whatever they are.

Entries were checked when they were admitted. This still meets other writers' frames and members
of unexpected types: what cannot be used reads as absent, and the entry stays addressable.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from treering.engine.json_text import BadRecordError, check, clean, decode_or_none, depth_over_limit
from treering.engine.limits import ENTRY_ID_CHARS_MAX
from treering.index import Usage

_TOKENS_MAX = 2**62

SUMMARY_KINDS = frozenset(("compaction", "branch_summary"))


class _Cost(msgspec.Struct, gc=False):
    total: float = 0.0


class _Usage(msgspec.Struct, rename="camel", gc=False):
    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total_tokens: float = 0
    cost: _Cost | None = None


class _Message(msgspec.Struct, gc=False):
    role: str | None = None
    usage: _Usage | None = None


class _Entry(msgspec.Struct, rename="camel", gc=False):
    type: str
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    message: _Message | None = None
    target_id: str | None = None
    label: str | None = None
    usage: _Usage | None = None
    child_usage: _Usage | None = None


class Facts(NamedTuple):
    """The members that structure and lookups need."""

    kind: str
    id: str | None
    parent_id: str | None
    timestamp_ms: int | None
    role: str | None
    label: tuple[str, str | None] | None
    usage: tuple[str, Usage] | None
    readable: bool = True
    about: str | None = None
    """Attributions of child usage: the id that they name as their target."""

    @property
    def tree(self) -> bool:
        """Whether the entry is part of the tree (a second header is not)."""
        return self.readable and self.kind != "session"

    @property
    def moves_leaf(self) -> bool:
        """Whether the entry becomes the leaf."""
        return self.readable and self.kind not in ("session", "request")


UNREADABLE = Facts("", None, None, None, None, None, None, readable=False)

_decode = msgspec.json.Decoder(_Entry).decode
_members = msgspec.json.Decoder(dict[str, Any])


def facts_of(raw: bytes) -> Facts:
    """The facts of one entry."""
    if depth_over_limit(raw) is not None:
        return UNREADABLE
    try:
        found = _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _facts_slowly(raw)
    kind = found.type
    role = None
    usage = None
    label = None
    if kind == "message":
        message = found.message
        if message is not None:
            role = message.role
            if role == "assistant" and message.usage is not None:
                usage = ("assistant", _figures(message.usage))
    elif kind == "label":
        if found.target_id is not None:
            label = (found.target_id, found.label)
    elif kind in SUMMARY_KINDS:
        if found.usage is not None:
            usage = ("summary", _figures(found.usage))
    about = None
    if kind == "child_usage_attributed":
        about = found.target_id
        if found.child_usage is not None:
            usage = ("child", _figures(found.child_usage))
    time = timestamp_ms(found.timestamp)
    return Facts(kind, found.id, found.parent_id, time, role, label, usage, about=about)


def _facts_slowly(raw: bytes) -> Facts:
    """The same for an entry with members of unexpected types or lone surrogates."""
    try:
        found = check(raw)
    except BadRecordError:
        return UNREADABLE
    kind = found.kind
    message = found.message
    role = message.role if isinstance(message, msgspec.Struct) else None
    own = found.id if isinstance(found.id, str) else None
    parent = found.parentId if isinstance(found.parentId, str) else None
    time = found.timestamp if isinstance(found.timestamp, str) else None
    members = decode_or_none(_members, raw) or {}
    label = about = None
    target = members.get("targetId")
    if kind == "child_usage_attributed" and isinstance(target, str):
        about = clean(target)
    if kind == "label" and isinstance(target, str):
        text = members.get("label")
        label = (target, text if isinstance(text, str) else None)
    return Facts(
        kind,
        own,
        parent,
        timestamp_ms(time),
        clean(role) if isinstance(role, str) else None,
        label,
        None,
        about=about,
    )


def usable_entry_id(text: str | None) -> bool:
    """Whether an entry can be addressed by this own id."""
    return text is not None and 0 < len(text) <= ENTRY_ID_CHARS_MAX and "\0" not in text


def timestamp_ms(text: str | None) -> int | None:
    """Unix ms of an ISO timestamp; None when it is none."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _figures(usage: _Usage) -> Usage:
    return Usage(
        _count(usage.input),
        _count(usage.output),
        _count(usage.cache_read),
        _count(usage.cache_write),
        _count(usage.total_tokens),
        0.0 if usage.cost is None else usage.cost.total,
    )


def _count(value: float) -> int:
    # Totals are 63-bit integers: a figure that would overflow them in a few entries is nonsense.
    return int(value) if -_TOKENS_MAX < value < _TOKENS_MAX else 0
