"""What lists and frontends show of a session without reading its history.

Name and lifecycle: the newest valid entry of the whole session. Agent status and repository state:
the nearest on the path to the current position. What an import brought is history: its lifecycle
and status claims are not taken for this session's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from treering.engine.errors import Damaged
from treering.engine.json_text import decode_or_none
from treering.engine.session.entry import Entry
from treering.engine.session.facts import facts_of
from treering.engine.session.reads import Reads
from treering.index import Entry as Row
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")

_STATES: Final = {
    "active": "active",
    "archived": "archived",
    "crash": "crash",
    "sleep": "archived",
    "hidden": "archived",
}
"""Recorded state to the one that is shown."""

_DEFAULTS: Final = ("model_change", "thinking_level_change", "service_tier_change")
"""What a frontend writes when it makes a session, in this order; no sign of a user."""

_USER_KINDS: Final = frozenset(
    (
        *_DEFAULTS,
        "message",
        "custom_message",
        "custom",
        "session_info",
        "label",
        "compaction",
        "branch_summary",
        "tool_intent",
        "request",
    )
)


class _Name(msgspec.Struct):
    name: str | None = None


class _State(msgspec.Struct):
    status: str


class _StateEntry(msgspec.Struct):
    state: _State


class _Status(msgspec.Struct):
    status: dict[str, Any]


class _Git(msgspec.Struct):
    git: dict[str, Any]


_names = msgspec.json.Decoder(_Name)
_states = msgspec.json.Decoder(_StateEntry)
_statuses = msgspec.json.Decoder(_Status)
_gits = msgspec.json.Decoder(_Git)


@dataclass
class Metadata:
    """Kept up by :meth:`note` at each acknowledgement."""

    name: str | None = None
    state: str | None = None
    """``active``, ``archived`` or ``crash``; None while nothing said so."""
    agent_status: dict[str, Any] | None = None
    git_state: dict[str, Any] | None = None
    compaction_count: int = 0
    has_user_content: bool = False
    _defaults_seen: list[int] = field(default_factory=list)

    def note(self, raw: bytes) -> None:
        """An entry was acknowledged below the current position."""
        kind = facts_of(raw).kind
        if not self.has_user_content and kind in _USER_KINDS:
            self._note_content(kind)
        if kind == "compaction":
            self.compaction_count += 1
        elif kind == "session_info":
            self.name = _name_in(raw)
        elif kind == "session_state":
            self.state = _state_in(raw) or self.state
        elif kind == "agent_status":
            found = decode_or_none(_statuses, raw)
            self.agent_status = self.agent_status if found is None else found.status
        elif kind == "git_state":
            git = decode_or_none(_gits, raw)
            self.git_state = self.git_state if git is None else git.git

    def _note_content(self, kind: str) -> None:
        """More than the defaults, each at most once and in their order, is from a user."""
        place = _DEFAULTS.index(kind) if kind in _DEFAULTS else -1
        if place < 0 or (self._defaults_seen and place <= self._defaults_seen[-1]):
            self.has_user_content = True
        else:
            self._defaults_seen.append(place)


def read_metadata(reads: Reads) -> Metadata:
    """The metadata of a session or view as it is now.

    An entry that does not verify any more says nothing here; reading it tells of the damage.
    """
    found = Metadata()
    kinds = reads.kinds()
    found.compaction_count = kinds.get("compaction", 0)
    found.name = _or_none(lambda: reads.name)
    found.state = _or_none(lambda: _state_of(reads))
    read_path_metadata(reads, found)
    _read_content(reads, found, kinds)
    return found


def _state_of(reads: Reads) -> str | None:
    states = (_own_state(entry) for entry in reads.newest_of_kind("session_state", page=16))
    return next((state for state in states if state is not None), None)


def _read_content(reads: Reads, found: Metadata, kinds: dict[str, int]) -> None:
    content = sum(count for kind, count in kinds.items() if kind in _USER_KINDS)
    if content > len(_DEFAULTS) or content > sum(kinds.get(kind, 0) for kind in _DEFAULTS):
        found.has_user_content = True
        return
    places = sorted((row.sequence, kind) for kind in _DEFAULTS for row in reads.ask(_rows_of(kind)))
    for _, kind in places:
        if not found.has_user_content:
            found._note_content(kind)


def _rows_of(kind: str) -> Callable[[SessionIndex], list[Row]]:
    return lambda index: index.by_kind(kind, limit=len(_DEFAULTS) + 1)


def read_path_metadata(reads: Reads, found: Metadata) -> None:
    """Agent status and repository state of the current position; to be read anew when it moves."""
    found.agent_status = _or_none(lambda: _nearest(reads, "agent_status", _status_in))
    found.git_state = _or_none(lambda: _nearest(reads, "git_state", _git_in))


def _nearest(
    reads: Reads, kind: str, read: Callable[[Entry], dict[str, Any] | None]
) -> dict[str, Any] | None:
    """The nearest valid one on the path to the current position."""
    leaf_id = reads.leaf_id
    while leaf_id is not None:
        entry = reads.latest_on_branch(kind, leaf_id)
        if entry is None:
            return None
        value = read(entry)
        if value is not None:
            return value
        above = reads.parent(entry.id)
        leaf_id = None if above is None else above.id
    return None


def _status_in(entry: Entry) -> dict[str, Any] | None:
    found = None if entry.retention is not None else decode_or_none(_statuses, entry.raw)
    return None if found is None else found.status


def _git_in(entry: Entry) -> dict[str, Any] | None:
    found = decode_or_none(_gits, entry.raw)
    return None if found is None else found.git


def _or_none(question: Callable[[], _Answer | None]) -> _Answer | None:
    try:
        return question()
    except Damaged:
        return None


def _own_state(entry: Entry) -> str | None:
    return None if entry.retention is not None else _state_in(entry.raw)


def _state_in(raw: bytes) -> str | None:
    found = decode_or_none(_states, raw)
    return None if found is None else _STATES.get(found.state.status)


def _name_in(raw: bytes) -> str | None:
    found = decode_or_none(_names, raw)
    return None if found is None else (found.name or "").strip() or None
