"""Upgrades of entries from versions 1 and 2, spliced into the bytes they came as.

Only the members an upgrade defines are replaced, dropped or added; every other byte of the record
(number spellings, escapes, duplicate members, white space, a CR) stays. Existing systems give
random ids at every open, and re-write numbers; here the same file gives the same ids and bytes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Final

import xxhash

from treering.engine.json_text import Segment, members, text_of

NO_ID: Final = -1
"""In a list of ids by record position: a session record, which is outside the tree."""

_INTEGER: Final = re.compile(rb"-?[0-9]+")
_REFERENCES: Final = frozenset({"targetId", "firstKeptEntryId", "fromId"})
_HOOK_ROLE: Final = "hookMessage"


class DerivedIds:
    """Fresh ids of 8 hex digits, from the content and the position of each record."""

    def __init__(self) -> None:
        self.by_position = array("q")
        self._taken: set[int] = set()

    def add(self, raw: bytes) -> None:
        """The next record is an entry: XXH3-64 of its source bytes, seeded with its position.

        The upper half is the id. When an earlier entry has it, the next seed is tried.
        """
        seed = len(self.by_position)
        while (value := xxhash.xxh3_64_intdigest(raw, seed) >> 32) in self._taken:
            seed += 1
        self._taken.add(value)
        self.by_position.append(value)

    def add_session(self) -> None:
        """The next record is a session record."""
        self.by_position.append(NO_ID)


def hex_id(value: int) -> str:
    """An id as it is written."""
    return f"{value:08x}"


class IdMap:
    """Old id -> new id, for a reference from a given place.

    Where several entries had the old id, the nearest earlier one is meant, because a writer can
    only refer to what it has already written; else the first later one.
    """

    def __init__(self, ids: array[int], symbols: dict[str, int], first_seen: array[int]) -> None:
        self._ids = ids
        self._symbols = symbols
        self._latest = array("q", first_seen)

    def passed(self, old_id: str, position: int) -> None:
        """The reader has passed the entry with this old id."""
        symbol = self._symbols.get(old_id)
        if symbol is not None:  # else the source changed, which its digest will show
            self._latest[symbol] = position

    def resolve(self, old_id: str) -> str | None:
        """The new id, or None when no entry had the old one."""
        symbol = self._symbols.get(old_id)
        if symbol is None or self._latest[symbol] < 0:
            return None
        return hex_id(self._ids[self._latest[symbol]])


def upgrade_v1(
    raw: bytes,
    new_id: str,
    parent_id: str | None,
    resolve: Callable[[str], str | None],
    first_kept: Callable[[int], str | None],
) -> bytes:
    """The entry with its new id and parent, mapped references and, as data, its old id.

    ``first_kept`` gives the new id for a compaction's index, or None when it means nothing.
    Members that are new follow the others: id, parentId, firstKeptEntryId, legacyId.
    """
    begin, segments, end = members(raw)
    values = {s.name: raw[s.value_begin : s.value_end] for s in segments}
    edits: dict[str, bytes | None] = {"id": _quoted(new_id), "parentId": _quoted(parent_id)}
    index = values.get("firstKeptEntryIndex", b"")
    if text_of(values.get("type", b"null")) == "compaction" and _INTEGER.fullmatch(index):
        edits["firstKeptEntryIndex"] = None
        kept = first_kept(int(index)) if len(index) < 20 else None
        if kept is not None:
            edits["firstKeptEntryId"] = _quoted(kept)
    old_id = values.get("id", b"null")
    if old_id != b"null":
        name = "legacyId"
        while name in values:
            name += "_"
        edits[name] = old_id
    parts: list[bytes] = []
    for segment in segments:
        if segment.name in edits:
            value = edits[segment.name]
            if value is not None:
                parts.append(_with_value(raw, segment, value))
        else:
            parts.append(_unlisted(raw, segment, values, resolve))
    for name, value in edits.items():
        if name not in values and value is not None:
            parts.append(b'"%s":%s' % (name.encode(), value))
    return raw[: begin + 1] + b",".join(parts) + raw[end:]


def upgrade_v2(raw: bytes) -> bytes:
    """The entry with the one change of version 3: the message role hookMessage became custom."""
    if not _may_be_hook(raw):
        return raw
    begin, segments, end = members(raw)
    values = {s.name: raw[s.value_begin : s.value_end] for s in segments}
    parts = [_unlisted(raw, segment, values, None) for segment in segments]
    return raw[: begin + 1] + b",".join(parts) + raw[end:] if parts else raw


def _may_be_hook(raw: bytes) -> bool:
    """A quick no for nearly all records; a role may be spelled with escapes."""
    return b"hookMessage" in raw or b"\\u" in raw


def _quoted(text: str | None) -> bytes:
    return b"null" if text is None else b'"%s"' % text.encode()


def _with_value(raw: bytes, segment: Segment, value: bytes) -> bytes:
    return raw[segment.begin : segment.value_begin] + value + raw[segment.value_end : segment.end]


def _unlisted(
    raw: bytes,
    segment: Segment,
    values: dict[str, bytes],
    resolve: Callable[[str], str | None] | None,
) -> bytes:
    """A member that stays, with a reference or a hook role in it brought up to date."""
    value = raw[segment.value_begin : segment.value_end]
    if resolve is not None and segment.name in _REFERENCES:
        old = text_of(value)
        if isinstance(old, str) and not (segment.name == "fromId" and old == "root"):
            new = resolve(old)
            if new is not None:
                return _with_value(raw, segment, _quoted(new))
    elif (
        segment.name == "message"
        and value[:1] == b"{"
        and _may_be_hook(value)
        and text_of(values.get("type", b"null")) == "message"
    ):
        return _with_value(raw, segment, _without_hook_role(value))
    return raw[segment.begin : segment.end]


def _without_hook_role(message: bytes) -> bytes:
    begin, segments, end = members(message)
    if not any(s.name == "role" for s in segments):
        return message
    parts = []
    for segment in segments:
        value = message[segment.value_begin : segment.value_end]
        hook = segment.name == "role" and text_of(value) == _HOOK_ROLE
        part = _with_value(message, segment, b'"custom"') if hook else None
        parts.append(part or message[segment.begin : segment.end])
    return message[: begin + 1] + b",".join(parts) + message[end:]
