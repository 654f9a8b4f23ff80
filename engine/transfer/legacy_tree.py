"""What is odd about a source's tree and records: counted on source ids, before any upgrade.

Oddities are kept and reported, never repaired here. Memory is a few integers per entry and one
string per distinct id.
"""

from __future__ import annotations

from array import array
from collections import Counter
from datetime import UTC, datetime
from typing import Final

import msgspec
import xxhash

from treering.engine.json_text import Fields, Message
from treering.engine.limits import ENTRY_ID_CHARS_MAX

KNOWN_KINDS: Final = frozenset(
    {
        "agent_status",
        "branch_summary",
        "child_usage_attributed",
        "compaction",
        "custom",
        "custom_message",
        "git_state",
        "label",
        "message",
        "model_change",
        "request",
        "service_tier_change",
        "session_info",
        "session_state",
        "thinking_level_change",
        "tool_intent",
    }
)

_NONE: Final = -1
_OTHER: Final = -2  # a number, a list: some value that names no entry


class _Block(msgspec.Struct, gc=False):
    type: msgspec.Raw = msgspec.Raw(b"null")
    id: msgspec.Raw = msgspec.Raw(b"null")


class _Blocks(msgspec.Struct, gc=False):
    content: list[_Block]


class _Calls(msgspec.Struct, gc=False):
    message: _Blocks


_CALLS: Final = msgspec.json.Decoder(_Calls)


class Oddities:
    """Counts over the entries of one source; :meth:`finish` adds what needs all of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.symbols: dict[str, int] = {}
        """A small number for each id or parent id that occurs."""
        self.first_seen = array("q")
        """Per symbol the record position of the first entry with that id; -1 for none."""
        self._last_parent = array("q")
        self._forward: list[tuple[int, int]] = []
        self._parents = array("q")
        self._places = array("q")
        self._digests: set[int] = set()
        self._roots = 0
        self._newest = ""
        self._open_calls: set[str] = set()

    def symbol(self, name: str) -> int:
        """The number of this id."""
        symbol = self.symbols.setdefault(name, len(self.symbols))
        if symbol == len(self.first_seen):
            self.first_seen.append(-1)
            self._last_parent.append(_OTHER)
        return symbol

    def note_bytes(self, raw: bytes, fields: Fields) -> None:
        """Facts of any record, the header and second headers included."""
        digest = xxhash.xxh3_64_intdigest(raw)
        if digest in self._digests:
            self.counts["duplicate_records"] += 1
        self._digests.add(digest)
        if raw[-1:] == b"\r":
            self.counts["crlf_lines"] += 1
        if fields.lone_surrogates:
            self.counts["lone_surrogates"] += fields.lone_surrogates
        if fields.drifted:
            self.counts["wrong_types"] += fields.drifted

    def note_entry(self, position: int, raw: bytes, fields: Fields) -> None:
        """Facts of an entry of the tree at this record position."""
        kind = fields.type
        if kind == "message" and isinstance(fields.message, Message):
            self._note_message(raw, fields.message)
        elif not isinstance(kind, str):
            self.counts["entries_without_type"] += 1
        elif kind not in KNOWN_KINDS:
            self.counts["unknown_types"] += 1
        parent = _OTHER
        if fields.parentId is None:
            parent = _NONE
        elif isinstance(fields.parentId, str):
            parent = self.symbol(fields.parentId)
        self._note_place(position, fields, parent)
        if isinstance(fields.timestamp, str):
            self._note_time(fields.timestamp)

    def _note_place(self, position: int, fields: Fields, parent: int) -> None:
        if parent >= 0:
            self._parents.append(parent)
            self._places.append(position)
        if not isinstance(fields.id, str):
            self.counts["entries_without_id"] += 1
            return
        if len(fields.id) > ENTRY_ID_CHARS_MAX:
            self.counts["long_ids"] += 1
        own = self.symbol(fields.id)
        if self.first_seen[own] >= 0:
            self.counts["duplicate_ids"] += 1
        else:
            self.first_seen[own] = position
        self._last_parent[own] = parent
        if parent < 0:
            self._roots += 1
        elif parent == own:
            self.counts["self_parents"] += 1

    def _note_time(self, timestamp: str) -> None:
        if is_earlier(timestamp, self._newest):
            self.counts["timestamps_going_back"] += 1
        self._newest = timestamp

    def _note_message(self, raw: bytes, message: Message) -> None:
        """Follow tool calls (F71): what no result answered before the next user message or the
        end of the file is open, and only the last stretch can still be open for a resume."""
        if message.role == "user":
            self._open_calls.clear()
        elif message.role == "toolResult" and isinstance(message.toolCallId, str):
            self._open_calls.discard(message.toolCallId)
        elif message.role == "assistant" and b'"toolCall"' in raw:
            try:
                blocks = _CALLS.decode(raw).message.content
            except msgspec.DecodeError:  # content of another shape, or a lone surrogate
                return
            calls = (bytes(b.id) for b in blocks if bytes(b.type) == b'"toolCall"')
            self._open_calls.update(c[1:-1].decode() for c in calls if c[:1] == b'"')

    def finish(self) -> dict[str, int]:
        """All counts; what did not occur is absent."""
        for parent, position in zip(self._parents, self._places, strict=True):
            first = self.first_seen[parent]
            if first < 0:
                self.counts["missing_parents"] += 1
            elif first >= position:
                self.counts["forward_parents"] += 1
        if self._roots > 1:
            self.counts["multiple_roots"] = self._roots
        self.counts["cycles"] = self._cycles()
        self.counts["open_tool_calls"] = len(self._open_calls)
        return {name: count for name, count in sorted(self.counts.items()) if count}

    def _cycles(self) -> int:
        """Cycles in the tree as its readers see it: of several entries with one id the last one
        counts. Each walk stops where an earlier walk has been, so this is linear."""
        walked_in = array("q", [-1]) * len(self.first_seen)
        cycles = 0
        for start in range(len(self.first_seen)):
            node = start
            while node >= 0 and walked_in[node] < 0:
                walked_in[node] = start
                node = self._last_parent[node]
            if node >= 0 and walked_in[node] == start:
                cycles += 1
        return cycles


def is_earlier(timestamp: str, previous: str) -> bool:
    """Whether the first instant lies before the second; False when one of them is no instant.

    Text of equal length in UTC compares as it stands; ``…02.500Z`` and ``…02Z`` do not.
    """
    if timestamp[-1:] == previous[-1:] == "Z" and len(timestamp) == len(previous):
        return timestamp < previous
    one, other = _instant(timestamp), _instant(previous)
    return one is not None and other is not None and one < other


def _instant(timestamp: str) -> datetime | None:
    try:
        instant = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
