"""What a list shows of a session, summed up in one pass over its journal. No index is built."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treering.engine.errors import Damaged, Undecodable
from treering.engine.journal.format import FLAG_RETAINED, Frame, Kind
from treering.engine.journal.history import Walk
from treering.engine.json_text import clean
from treering.engine.limits import KIB
from treering.engine.session.facts import facts_of
from treering.engine.session.metadata import Metadata
from treering.engine.session.texts import TEXT_CHARS_MAX, has_text, members_of, whole_text
from treering.index import Usage

ALL_TEXT_CHARS: Final = 64 * KIB
"""Characters of all messages that are kept of one session, when they are asked for."""

FIRST_TEXT_CHARS: Final = TEXT_CHARS_MAX
"""Characters of the first text of a user."""

_TIME_MAX: Final = 8.64e15
"""The largest Unix milliseconds that every reader of JSON takes for a time."""

_OWN_CLAIMS: Final = frozenset(("session_state", "agent_status"))
"""Claims that are history when an import brought them."""

_OWN_USAGE: Final = frozenset(("assistant", "summary"))


class _Message(msgspec.Struct):
    timestamp: Any = None


class _MessageEntry(msgspec.Struct):
    message: _Message


_decode = msgspec.json.Decoder(_MessageEntry).decode


class Summary:
    """Fed with every visible entry in journal order."""

    def __init__(self, *, texts: bool) -> None:
        self.entries = 0
        self.messages = 0
        self.last_message: int | None = None
        self.first_user_text: str | None = None
        self.texts: list[str] = []
        """What users and assistants wrote, up to a bound; nothing unless asked for."""
        self.metadata = Metadata()
        """Name, state and agent status: the last in the file."""
        self.usage: Usage | None = None
        self._texts_left = ALL_TEXT_CHARS if texts else 0

    def note(self, frame: Frame, payload: bytes | None) -> None:
        """The next entry; None is a payload that is lost."""
        self.entries += 1
        if payload is None or frame.kind == Kind.REQUEST:
            return
        facts = facts_of(payload)
        kind = facts.kind
        if kind == "message":
            self.messages += 1
            if facts.role in ("user", "assistant"):
                self._note_time(_time_of(payload), facts.timestamp_ms)
                if self._texts_left > 0 or (facts.role == "user" and self.first_user_text is None):
                    self._note_text(payload, by_user=facts.role == "user")
        elif kind == "session_info" or (kind in _OWN_CLAIMS and not frame.flags & FLAG_RETAINED):
            self.metadata.note(payload)
        if facts.usage is not None and facts.usage[0] in _OWN_USAGE:
            before, more = self.usage, facts.usage[1]
            self.usage = more if before is None else _sum(before, more)

    def _note_time(self, said: int | None, recorded: int | None) -> None:
        time = recorded if said is None else said
        if time is not None and (self.last_message is None or time > self.last_message):
            self.last_message = time

    def _note_text(self, payload: bytes, *, by_user: bool) -> None:
        message = members_of(payload).get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if not has_text(content):
            return
        text = clean(whole_text(content))
        if by_user and self.first_user_text is None:
            self.first_user_text = text[:FIRST_TEXT_CHARS]
        if self._texts_left > 0:
            self.texts.append(text[: self._texts_left])
            self._texts_left -= len(text) + 1  # a space between two


def summarise(walk: Walk, *, texts: bool = False) -> Summary:
    """Sum up the visible entries of a walk."""
    found = Summary(texts=texts)
    decode = walk.history.shared.decoder.decode
    for frame, stored in walk.visible():
        if frame.kind == Kind.LEAF:
            continue
        payload: bytes | None = stored
        if frame.codec:
            try:
                payload = decode(frame, stored)
            except (Undecodable, Damaged):
                payload = None  # as in an index: it counts, and says nothing
        found.note(frame, payload)
    return found


def _time_of(payload: bytes) -> int | None:
    """The time that a message states itself, in Unix milliseconds. (Its nesting was checked.)"""
    try:
        stated = _decode(payload).message.timestamp
    except (msgspec.MsgspecError, UnicodeError):  # escaped lone surrogates, which imports may hold
        message = members_of(payload).get("message")
        stated = message.get("timestamp") if isinstance(message, dict) else None
    if not isinstance(stated, (int, float)) or isinstance(stated, bool):
        return None
    return int(stated) if -_TIME_MAX <= stated <= _TIME_MAX else None


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input + other.input,
        one.output + other.output,
        one.cache_read + other.cache_read,
        one.cache_write + other.cache_write,
        one.total_tokens + other.total_tokens,
        one.cost + other.cost,
    )
