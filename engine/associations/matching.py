"""Which recorded requests belong to what a model put into a session: collect, then match. Pure.

An output (a message of the assistant, a compaction, a branch summary, a refinement) can carry a
link that names the attempts of its request. The link is reported when everything about it fits:
header, entry and request records are originals, and each of these attempts was recorded for this
operation, from this source, for this purpose. Everything else is null, which means unknown, and
never that a request was rejected or that an output has none.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from treering.engine.session.link_slots import BRANCH, MAIN, PARTS, PLANNER, REFINEMENT, Slot

Report = dict[str, list[dict[str, Any]]]
"""The four reports by their names."""

ASSISTANT: Final = "assistant_request_associations"
COMPACTION: Final = "compaction_request_associations"
BRANCH_SUMMARY: Final = "branch_summary_request_associations"
REFINEMENT_PLANNER: Final = "refinement_planner_associations"

ID_NAMES: Final = {
    ASSISTANT: "assistant_entry_id",
    COMPACTION: "compaction_entry_id",
    BRANCH_SUMMARY: "branch_summary_entry_id",
    REFINEMENT_PLANNER: "refinement_entry_id",
}
"""The reports, and how each calls the id of its entries."""


_SOURCE_MEMBERS: Final = frozenset(("sessionId", "leafId", "sourceSequence", "persistent"))


class _Source(NamedTuple):
    """A valid source that was persistent. Equal ones are equal JSON: the types are fixed."""

    session_id: str
    leaf_id: str | None
    sequence: int
    file: str | None


class _Event(NamedTuple):
    """What all records of one attempt agree on; a detail of None fits no need of a detail."""

    operation_id: str
    source: _Source
    purpose: str
    detail: str | None


class _Link(NamedTuple):
    operation_id: str
    attempt_ids: list[str]
    source: _Source
    source_as_written: dict[str, Any]


class Header(NamedTuple):
    """The last session record."""

    id: str | None
    """None when it has none that is a string with something in it."""
    original: bool
    native: bool
    """Whether it stands in a frame."""


class Matcher:
    """Feed it the entries of one session in order, then ask for the report.

    Memory grows with the number of outputs, and of attempts (by about 500 bytes each).
    """

    def __init__(self) -> None:
        self.header: Header | None = None
        self._outputs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in ID_NAMES}
        self._events: dict[str, _Event | None] = {}
        self._only: set[str] | None = None

    def take(
        self,
        entry: dict[str, Any],
        *,
        original: bool,
        compaction_original: bool,
        native: bool = True,
    ) -> None:
        """The next entry, decoded (members that do not matter here may be left out).

        ``original``: its frame was neither imported nor qualified. ``compaction_original``: not
        imported, and qualified as nothing or as a context epoch. ``native``: it has a frame.
        """
        kind = entry.get("type")
        if kind == "session":
            self.header = Header(_text_of(entry, "id"), original, native)
        elif kind == "request":
            if original:
                self._take_event(entry.get("request"))
        elif kind == "message":
            message = entry.get("message")
            if isinstance(message, dict) and message.get("role") == "assistant":
                self._take_output(ASSISTANT, entry, "requestOutput", eligible=original)
        elif kind == "branch_summary":
            eligible = original and _no_hook(entry)
            self._take_output(BRANCH_SUMMARY, entry, "requestOutput", eligible=eligible)
        elif kind == "compaction":
            self._take_compaction(entry, eligible=compaction_original and _no_hook(entry))
        elif kind == "custom" and entry.get("customType") == REFINEMENT:
            data = entry.get("data")
            planned = isinstance(data, dict) and "rollbackOf" not in data
            self._take_output(
                REFINEMENT_PLANNER, entry, "plannerRequest", eligible=original and planned
            )

    def take_only_named(self) -> bool:
        """From now on, of request records keep those that outputs so far name; are there any?"""
        self._only = {
            attempt
            for outputs in self._outputs.values()
            for link in _links_of(outputs)
            for attempt in link.attempt_ids
        }
        return bool(self._only)

    def report(self) -> Report | None:
        """The four reports; None without a header."""
        if self.header is None:
            return None
        report: Report = {
            name: [
                {ID_NAMES[name]: entry_id, "recorded_request": self._matched(link, need)}
                for entry_id, link in self._outputs[name]
            ]
            for name, need in (
                (ASSISTANT, MAIN),
                (BRANCH_SUMMARY, BRANCH),
                (REFINEMENT_PLANNER, PLANNER),
            )
        }
        report[COMPACTION] = [
            {
                ID_NAMES[COMPACTION]: entry_id,
                "recorded_requests": parts
                and [
                    {"part": part, "recorded_request": self._matched(link, PARTS[part])}
                    for part, link in parts
                ],
            }
            for entry_id, parts in self._outputs[COMPACTION]
        ]
        return {name: report[name] for name in ID_NAMES}

    def _take_output(
        self, name: str, entry: dict[str, Any], member: str, *, eligible: bool
    ) -> None:
        link = None
        if eligible and _text_of(entry, "id") is not None:
            link = _link_of(entry.get(member))
        self._outputs[name].append((_echo(entry.get("id")), link))

    def _take_compaction(self, entry: dict[str, Any], *, eligible: bool) -> None:
        parts: list[tuple[str, _Link | None]] = []
        listed = entry.get("requestOutputs")
        if eligible and _text_of(entry, "id") is not None and isinstance(listed, list):
            for element in listed:
                part = element.get("part") if isinstance(element, dict) else None
                if isinstance(part, str) and part in PARTS:
                    parts.append((part, _link_of(element)))
        self._outputs[COMPACTION].append((_echo(entry.get("id")), parts or None))

    def _take_event(self, event: object) -> None:
        if not isinstance(event, dict):
            return
        attempt_id = _text_of(event, "attemptId")
        if attempt_id is None or not _is_whole(event):
            return
        if self._only is not None and attempt_id not in self._only:
            return
        found = _event_of(event)
        if attempt_id in self._events:
            found = _agreed(self._events[attempt_id], found)
        self._events[attempt_id] = found

    def _matched(self, link: _Link | None, need: Slot) -> dict[str, Any] | None:
        header = self.header
        assert header is not None
        if link is None or not header.original or link.source.session_id != header.id:
            return None
        for attempt_id in link.attempt_ids:
            event = self._events.get(attempt_id)
            if (
                event is None
                or event.operation_id != link.operation_id
                or event.source != link.source
                or event.purpose != need.purpose
                or need.detail not in (None, event.detail)
            ):
                return None
        return {
            "operationId": link.operation_id,
            "attemptIds": list(link.attempt_ids),
            "source": dict(link.source_as_written),
        }


def _links_of(outputs: list[tuple[Any, Any]]) -> list[_Link]:
    found: list[_Link] = []
    for _, linked in outputs:
        if isinstance(linked, _Link):
            found.append(linked)
        elif linked is not None:
            found += [link for _, link in linked if link is not None]
    return found


def _is_whole(event: dict[str, Any]) -> bool:
    """Whether a record counts: an admission, or a settlement with a receipt that has usage."""
    kind = event.get("type")
    if kind == "attempt_settled":
        receipt = event.get("receipt")
        return isinstance(receipt, dict) and isinstance(receipt.get("usage"), dict)
    return kind == "attempt_admitted"


def _event_of(event: dict[str, Any]) -> _Event | None:
    """None for one that no link can agree with."""
    operation_id, source = _text_of(event, "operationId"), _source_of(event.get("source"))
    purpose = event.get("purpose")
    if operation_id is None or source is None or not isinstance(purpose, str):
        return None
    detail = event.get("purposeDetail")
    return _Event(operation_id, source, purpose, detail if isinstance(detail, str) else None)


def _agreed(one: _Event | None, other: _Event | None) -> _Event | None:
    if one is None or other is None or one[:3] != other[:3]:
        return None
    return one if one.detail == other.detail else one._replace(detail=None)


def _link_of(value: object) -> _Link | None:
    if not isinstance(value, dict):
        return None
    operation_id, source = _text_of(value, "operationId"), _source_of(value.get("source"))
    attempts = value.get("attemptIds")
    if operation_id is None or source is None or not isinstance(attempts, list) or not attempts:
        return None
    if not all(isinstance(attempt, str) and attempt for attempt in attempts):
        return None
    if len(set(attempts)) != len(attempts):
        return None
    return _Link(operation_id, attempts, source, value["source"])


def _source_of(value: object) -> _Source | None:
    """The source, when each member has its type and no other member is there."""
    if not isinstance(value, dict) or not value.keys() >= _SOURCE_MEMBERS:
        return None
    session_id, leaf_id = value["sessionId"], value["leafId"]
    sequence, file = value["sourceSequence"], value.get("sessionFile")
    if len(value) != len(_SOURCE_MEMBERS) + ("sessionFile" in value):
        return None
    if not isinstance(session_id, str) or not session_id or value["persistent"] is not True:
        return None
    if type(sequence) is not int or sequence < 0 or not isinstance(leaf_id, str | None):
        return None
    if not isinstance(file, str) and "sessionFile" in value:
        return None
    return _Source(session_id, leaf_id, sequence, file)


def _text_of(members: dict[str, Any], name: str) -> str | None:
    """A string with something in it; anything else is as if it were missing."""
    value = members.get(name)
    return value if isinstance(value, str) and value else None


def _no_hook(entry: dict[str, Any]) -> bool:
    return entry.get("fromHook", False) is False


def _echo(entry_id: object) -> object:
    """The id as it was read, unless JSON has no word for it (a number beyond all machines)."""
    if entry_id is None or isinstance(entry_id, str):
        return entry_id
    try:
        json.dumps(entry_id, allow_nan=False)
    except ValueError:
        return None
    return entry_id
