"""The model context at a position of a session: messages and settings, from the path to it.

The rules. Settings (thinking level, service tier, model) are the nearest on the whole path; an
assistant message says a model as a model change does. Messages come from ``message``,
``custom_message`` and ``branch_summary`` entries (the last with a summary that is not empty); no
other kind is shown. With a compaction on the path the nearest one counts: its summary comes first,
then what it kept (from ``firstKeptEntryId`` on; nothing, when that is not above it), then what
follows it. Results in one run of tool results stand in the order of the calls, however they ended.
The newest aggregate of child usage takes the place of a message's own usage; what is stored stays.

Bytes are not reformatted: a message is the slice of its entry, with its numbers as they were
spelled and members that nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from treering.engine.json_text import BadRecordError, decode_or_none, members, text_of
from treering.engine.session.entry import Entry
from treering.engine.session.facts import timestamp_ms

SHOWN_KINDS: Final = frozenset(("message", "custom_message", "branch_summary"))
"""Kinds that become messages, besides the nearest compaction."""

CHILD_USAGE: Final = "child_usage_attributed"

THINKING_LEVEL: Final = "off"
SERVICE_TIER: Final = "default"
"""What holds while nothing on the path says otherwise."""

_CUSTOM_MEMBERS: Final = ("customType", "content", "display", "details")


class ContextMessage(NamedTuple):
    """One message: its JSON, and the entry that it comes from."""

    raw: bytes
    role: str | None
    """As the message says it, known or not; None when it says none."""
    entry_id: str
    sequence: int

    def decode(self) -> Any:
        """The message as dicts, lists and scalars."""
        return plain(self.raw)


class ContextModel(NamedTuple):
    """The model in use. An assistant message of an older file may name only one of the two."""

    provider: str | None
    model_id: str | None


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is shown at a position, and the settings that hold there."""

    messages: tuple[ContextMessage, ...] = ()
    thinking_level: str = THINKING_LEVEL
    service_tier: str = SERVICE_TIER
    model: ContextModel | None = None
    """None when nothing on the path names one."""

    def to_list(self) -> list[Any]:
        """The messages as dicts, in order."""
        return [message.decode() for message in self.messages]


# From the entries of a path


def messages_of(
    compaction: Entry | None, kept: Iterable[Entry], after: Iterable[Entry]
) -> list[ContextMessage]:
    """The messages in the order that a model gets them."""
    retained = [message for entry in kept if (message := _message(entry)) is not None]
    follow = [message for entry in after if (message := _message(entry)) is not None]
    summary = [] if compaction is None else [_summary(compaction, len(retained))]
    messages = summary + retained + follow
    order_tool_results(messages)
    return messages


def _message(entry: Entry) -> ContextMessage | None:
    """What the entry shows to a model, if anything."""
    found = parts(entry.raw)
    kind = text_in(found, "type")
    if kind == "message":
        raw = found.get("message", b"")
        if not raw.startswith(b"{"):
            return None
        return ContextMessage(raw, text_in(parts(raw), "role"), entry.id, entry.sequence)
    if kind == "custom_message":
        return _made(entry, "custom", _as_stored(found, *_CUSTOM_MEMBERS), found)
    if kind == "branch_summary" and text_in(found, "summary"):
        return _made(entry, "branchSummary", _as_stored(found, "summary", "fromId"), found)
    return None


def _as_stored(found: dict[str, bytes], *names: str) -> list[tuple[str, bytes]]:
    return [(name, found[name]) for name in names if name in found]


def _summary(entry: Entry, retained: int) -> ContextMessage:
    """The message of a compaction; ``retained`` lets a reader show it behind what was kept."""
    found = parts(entry.raw)
    stated = _as_stored(found, "summary", "tokensBefore")
    stated.append(("retainedMessageCount", b"%d" % retained))
    stated += _as_stored(found, "customInstructions")
    return _made(entry, "compactionSummary", stated, found)


def _made(
    entry: Entry, role: str, stated: list[tuple[str, bytes]], found: dict[str, bytes]
) -> ContextMessage:
    """A message of an entry that holds none: its members as they are stored, and its time."""
    time = timestamp_ms(text_in(found, "timestamp"))
    stated.append(("timestamp", b"null" if time is None else b"%d" % time))
    told = b"".join(b',"%s":%s' % (name.encode(), value) for name, value in stated)
    raw = b'{"role":"%s"%s}' % (role.encode(), told)
    return ContextMessage(raw, role, entry.id, entry.sequence)


def order_tool_results(messages: list[ContextMessage]) -> None:
    """Put each run of tool results into the order of the calls of the assistant message above.

    Tools end in any order; providers want one order, and replays the same one. Results of other
    calls follow those.
    """
    answer: ContextMessage | None = None
    at = 0
    while at < len(messages):
        end = at + 1
        if messages[at].role == "assistant":
            answer = messages[at]
        elif messages[at].role == "toolResult" and answer is not None:
            while end < len(messages) and messages[end].role == "toolResult":
                end += 1
            if end - at > 1:
                calls = _calls(answer)
                last = len(calls)
                run = messages[at:end]
                run.sort(key=lambda result: calls.get(_called(result), last))
                messages[at:end] = run
        at = end


def _calls(answer: ContextMessage) -> dict[str | None, int]:
    """Id -> place of the tool calls of an assistant message."""
    content = plain(parts(answer.raw).get("content", b"null"))
    blocks = content if isinstance(content, list) else []
    calls = [block for block in blocks if isinstance(block, dict) and _is_call(block)]
    return {block["id"]: place for place, block in enumerate(calls)}


def _is_call(block: dict[str, Any]) -> bool:
    return block.get("type") == "toolCall" and isinstance(block.get("id"), str)


def _called(result: ContextMessage) -> str | None:
    return text_in(parts(result.raw), "toolCallId")


def model_of(found: dict[str, bytes], model: str) -> ContextModel | None:
    """The model that members state; ``model`` is how its id is called there."""
    stated = ContextModel(text_in(found, "provider"), text_in(found, model))
    return None if stated == (None, None) else stated


def model_of_message(raw: bytes) -> ContextModel | None:
    """The model that an assistant message states."""
    return model_of(parts(raw), "model")


def aggregate_of(raw: bytes) -> tuple[str, bytes] | None:
    """The target and the aggregate of an attribution; None when it states no aggregate."""
    found = parts(raw)
    target, usage = text_in(found, "targetId"), found.get("aggregateUsage", b"")
    return (target, usage) if target is not None and usage.startswith(b"{") else None


def with_aggregates(
    messages: Iterable[ContextMessage], aggregates: dict[int, bytes]
) -> Iterator[ContextMessage]:
    """The messages, with the aggregates (by sequence) as usage of the assistant messages."""
    for message in messages:
        usage = aggregates.get(message.sequence)
        if usage is None or message.role != "assistant":
            yield message
        else:
            yield message._replace(raw=_with_usage(message.raw, usage))


def _with_usage(raw: bytes, usage: bytes) -> bytes:
    """The message with another usage; every other byte stays."""
    _, segments, end = members(raw)
    own = [segment for segment in segments if segment.name == "usage"]
    if own:  # of members with one name the last counts
        return raw[: own[-1].value_begin] + usage + raw[own[-1].value_end :]
    return raw[:end] + b',"usage":' + usage + raw[end:]


# JSON

_OBJECTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUES: Final = msgspec.json.Decoder()


def parts(raw: bytes) -> dict[str, bytes]:
    """The members of an object as they are spelled; none for anything else."""
    found = decode_or_none(_OBJECTS, raw)
    if found is not None:
        return {name: bytes(value) for name, value in found.items()}
    try:  # lone surrogates are legal JSON text, and no decoder of UTF-8 takes them
        return {s.name: raw[s.value_begin : s.value_end] for s in members(raw)[1]}
    except BadRecordError:
        return {}


def plain(raw: bytes) -> Any:
    """A JSON value as dicts, lists and scalars."""
    try:
        return _VALUES.decode(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return json.loads(raw)  # numbers beyond a double, and lone surrogates


def text_in(found: dict[str, bytes], name: str) -> str | None:
    """A member that is a string."""
    value = text_of(found.get(name, b"null"))
    return value if isinstance(value, str) else None
