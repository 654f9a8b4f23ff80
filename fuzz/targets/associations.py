"""Request associations of any lines: the report of a second reading of the rules, or the refusal.

The rules are written down here once more, as slowly as they can be said: over decoded records,
every record looked at for every output. It shares no code with the engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

from treering.engine.associations.members import entry_of
from treering.engine.associations.raw import read_lines
from treering.engine.errors import TreeringError
from treering.engine.session.facts import facts_of
from treering.fuzz.oracle import json_depth
from treering.fuzz.targets.legacy import mutate
from treering.fuzz.targets.target import Broken, Memory, Target, same

_DEPTH_MAX: Final = 128
_BLANK: Final = b" \t\r"
_DIGITS_MAX: Final = 4000
_REFINEMENT: Final = "prime-agent.refinement"
_EPOCH: Final = "native-context-epoch"
_DETAILS: Final = {"history": "compaction", "turn-prefix": "compaction-turn-prefix"}
_SOURCE: Final = {"sessionId", "leafId", "sourceSequence", "persistent"}


class Record(NamedTuple):
    """A decoded record (any JSON value) and what its frame lets it be."""

    entry: Any
    original: bool
    compaction_original: bool


def check(data: bytes) -> None:
    """Report or refusal are those of the second reading; what counts is found by an index too."""
    records, bad = by_hand(data)
    found: Any = None
    refusal: TreeringError | None = None
    try:
        found = read_lines(Memory(data)).report()
    except TreeringError as error:
        refusal = error
    if bad is not None:
        if refusal is None or not str(refusal):
            raise Broken(f"no refusal of the line at {bad}")
        same("offset of the refusal", refusal.offset, bad)
    elif refusal is not None:
        raise Broken(f"whole lines are refused: {refusal}")
    else:
        # As text: True, 1 and 1.0 are equal, and are not the same.
        same("report", _text(found), _text(expected_report(records)))
    for line in data.split(b"\n"):
        _is_found_by_an_index(line)


def _is_found_by_an_index(raw: bytes) -> None:
    entry = entry_of(raw)
    if entry is None:
        return
    facts = facts_of(raw)
    same("kind", facts.kind, entry["type"])
    if entry["type"] == "message":
        same("role", facts.role, "assistant")


def _text(report: Any) -> str:
    return json.dumps(report, allow_nan=False)


def by_hand(data: bytes) -> tuple[list[Record], int | None]:
    """The records of lines, and the offset of the line that ends the reading, if one does."""
    records: list[Record] = []
    offset = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        terminated = number < len(lines)
        if line.strip(_BLANK):
            try:
                records.append(_record(_parsed(line), terminated=terminated))
            except (ValueError, RecursionError):
                return records, offset if terminated else None
        offset += len(line) + 1
    return records, None


def _record(line: Any, *, terminated: bool) -> Record:
    if not isinstance(line, dict):
        raise ValueError("not an object")  # noqa: TRY004 (as what is no JSON)
    frame = line.get("journalFrame")
    if isinstance(frame, bool) or not isinstance(frame, int) or frame != 1:
        return Record(line, original=False, compaction_original=False)
    bare = terminated and "retention" not in line
    mark = line.get("qualification", ...)
    return Record(
        line.get("payload"),
        original=bare and mark is ...,
        compaction_original=bare and (mark is ... or mark == _EPOCH),
    )


def _parsed(line: bytes) -> Any:
    if json_depth(line) > _DEPTH_MAX:
        raise ValueError("too deep")

    def refused(constant: str) -> NoReturn:
        raise ValueError(constant)

    def integer(text: str) -> float:
        return int(text) if len(text) <= _DIGITS_MAX else math.inf

    return json.loads(line.decode(), parse_int=integer, parse_constant=refused)


# The rules


def expected_report(records: Sequence[Record]) -> dict[str, Any] | None:
    """The four reports; None without a header."""
    records = [one for one in records if isinstance(one.entry, dict)]
    headers = [one for one in records if one.entry.get("type") == "session"]
    if not headers:
        return None
    rules = _Rules(records, headers[-1])
    return {
        "assistant_request_associations": [
            rules.output(one, "assistant_entry_id", "requestOutput", "main")
            for one in records
            if one.entry.get("type") == "message"
            and isinstance(one.entry.get("message"), dict)
            and one.entry["message"].get("role") == "assistant"
        ],
        "compaction_request_associations": [
            {"compaction_entry_id": _echo(one), "recorded_requests": rules.parts(one)}
            for one in records
            if one.entry.get("type") == "compaction"
        ],
        "branch_summary_request_associations": [
            rules.output(
                one, "branch_summary_entry_id", "requestOutput", "summary", "branch", _is_own(one)
            )
            for one in records
            if one.entry.get("type") == "branch_summary"
        ],
        "refinement_planner_associations": [
            rules.output(
                one, "refinement_entry_id", "plannerRequest", "refine", "plan", _is_planned(one)
            )
            for one in records
            if one.entry.get("type") == "custom" and one.entry.get("customType") == _REFINEMENT
        ],
    }


class _Rules:
    def __init__(self, records: Sequence[Record], header: Record) -> None:
        self._records = records
        self._header = header

    def output(
        self,
        one: Record,
        name: str,
        member: str,
        purpose: str,
        detail: str | None = None,
        eligible: bool = True,
    ) -> dict[str, Any]:
        """The element of an entry that has one link."""
        found = None
        if eligible and one.original:
            found = self._match(one, one.entry.get(member), purpose, detail)
        return {name: _echo(one), "recorded_request": found}

    def parts(self, one: Record) -> list[dict[str, Any]] | None:
        """What is recorded of a compaction."""
        listed = one.entry.get("requestOutputs")
        eligible = one.compaction_original and _is_own(one) and _is_text(one.entry.get("id"))
        if not eligible or not isinstance(listed, list):
            return None
        found = []
        for element in listed:
            part = element.get("part") if isinstance(element, dict) else None
            if isinstance(part, str) and part in _DETAILS:
                matched = self._match(one, element, "summary", _DETAILS[part])
                found.append({"part": part, "recorded_request": matched})
        return found or None

    def _match(self, one: Record, link: Any, purpose: str, detail: str | None) -> Any:
        if not self._header.original or not _is_text(one.entry.get("id")):
            return None
        if not isinstance(link, dict) or not _is_text(link.get("operationId")):
            return None
        attempts, source = link.get("attemptIds"), link.get("source")
        if not isinstance(attempts, list) or not attempts or not all(map(_is_text, attempts)):
            return None
        if any(attempts.count(each) > 1 for each in attempts) or not _is_source(source):
            return None
        if not _same(self._header.entry.get("id"), link["source"]["sessionId"]):
            return None
        if not all(self._is_recorded(each, link, purpose, detail) for each in attempts):
            return None
        return {"operationId": link["operationId"], "attemptIds": attempts, "source": source}

    def _is_recorded(self, attempt: str, link: Any, purpose: str, detail: str | None) -> bool:
        events = [
            each.entry["request"]
            for each in self._records
            if _counts(each) and each.entry["request"]["attemptId"] == attempt
        ]
        return bool(events) and all(
            _same(each.get("operationId"), link["operationId"])
            and _same(each.get("source"), link["source"])
            and _same(each.get("purpose"), purpose)
            and (detail is None or _same(each.get("purposeDetail"), detail))
            for each in events
        )


def _counts(one: Record) -> bool:
    event = one.entry.get("request")
    if one.entry.get("type") != "request" or not one.original or not isinstance(event, dict):
        return False
    receipt = event.get("receipt")
    whole = isinstance(receipt, dict) and isinstance(receipt.get("usage"), dict)
    kind = event.get("type")
    known = kind == "attempt_admitted" or (kind == "attempt_settled" and whole)
    return known and _is_text(event.get("attemptId"))


def _is_own(one: Record) -> bool:
    return "fromHook" not in one.entry or one.entry["fromHook"] is False


def _is_planned(one: Record) -> bool:
    data = one.entry.get("data")
    return isinstance(data, dict) and "rollbackOf" not in data


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_source(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if not set(value) >= _SOURCE or not set(value) <= _SOURCE | {"sessionFile"}:
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


def _echo(one: Record) -> Any:
    entry_id = one.entry.get("id")
    try:
        json.dumps(entry_id, allow_nan=False)
    except ValueError:
        return None
    return entry_id


TARGET: Final = Target(
    check,
    modules=(
        "treering.engine.associations.matching",
        "treering.engine.associations.members",
        "treering.engine.associations.raw",
        "treering.engine.json_text",
    ),
    bytes_max=4096,
    seconds_max=5.0,
    memory_bytes_max=32 << 20,
    tokens=(
        b'{"journalFrame":1,"payload":',
        b'"retention":null',
        b'"qualification":"native-context-epoch"',
        b'{"type":"session","id":"s"}',
        b'"type":"request"',
        b'"request":{"type":"attempt_admitted","attemptId":"a"',
        b'"type":"attempt_settled"',
        b'"receipt":{"usage":{}}',
        b'"message":{"role":"assistant"}',
        b'"type":"compaction"',
        b'"type":"branch_summary"',
        b'"customType":"prime-agent.refinement"',
        b'"requestOutput":{"operationId":"o","attemptIds":["a"],"source":',
        b'"requestOutputs":[{"part":"history"',
        b'"part":"turn-prefix"',
        b'"plannerRequest":',
        b'"rollbackOf":',
        b'"fromHook":false',
        b'{"sessionId":"s","leafId":null,"sourceSequence":0,"persistent":true}',
        b'"sessionFile":"f"',
        b'"purpose":"main"',
        b'"purposeDetail":"compaction"',
        b"1.0",
        b"1e400",
        b"\\ud800",
        b"NaN",
        b"\xef\xbb\xbf",
        b"}\n{",
    ),
    mutate=mutate,
)
