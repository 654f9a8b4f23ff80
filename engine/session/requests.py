"""Request records: what was asked of a model, before it was sent and after it was answered.

A record belongs to the captured moment that its request was made from: it hangs below that
position, moves none, and is hidden from the tree. Its id comes from the attempt, so the same record
again is a no-op. Facts that a model or provider states are kept as they are, never judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from treering.engine import environment
from treering.engine.errors import Conflict, InvalidEntry, LimitExceeded
from treering.engine.json_text import decode_or_none
from treering.engine.json_values import same_json
from treering.engine.limits import REQUEST_RECORD_BYTES_MAX
from treering.engine.session.admission import Admitted, admit, check_entry_id
from treering.engine.session.capture import SourceRef
from treering.engine.session.plan import Appended, append_one
from treering.engine.session.session import Session

Purpose = Literal["main", "summary", "refine", "learning", "child", "native-control", "other"]
PURPOSES: Final = get_args(Purpose)
ADMITTED: Final = "attempt_admitted"
SETTLED: Final = "attempt_settled"
_PROOF: Final = {ADMITTED: "descriptor", SETTLED: "receipt"}
"""The member that each kind of event needs."""
_TIME_MS_END: Final = 253_402_300_800_000
"""The year 10000, which the timestamps of entries cannot spell."""


class _Record(msgspec.Struct):
    request: dict[str, Any]


_records = msgspec.json.Decoder(_Record)


def request_record(event: Mapping[str, Any], source: SourceRef) -> Admitted:
    """The entry of an event that was captured at ``source``; an absent source is filled in.

    Raises:
        InvalidEntry: a documented member is missing or wrong, or the source is another one.
        LimitExceeded: the record is larger than 1 MiB - 1.
    """
    if not isinstance(event, Mapping):
        raise InvalidEntry(f"a request event is a mapping, not {type(event).__name__}")
    own = source.as_json()
    admitted = admit({"type": "request", "request": {"source": own, **event}}, verified=True)
    values = _records.decode(admitted.rest).request
    kind = values.get("type")
    if not isinstance(kind, str) or kind not in _PROOF:
        raise InvalidEntry(f"a request event is {ADMITTED} or {SETTLED}, not {kind!r}")
    if not isinstance(values.get(_PROOF[kind]), dict):
        raise InvalidEntry(f"{kind} needs the mapping {_PROOF[kind]!r}")
    for name in ("attemptId", "operationId"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise InvalidEntry(f"{name} is a string that is not empty, not {values.get(name)!r}")
    if values.get("purpose") not in PURPOSES:
        raise InvalidEntry(
            f"the purpose is one of {', '.join(PURPOSES)}, not {values.get('purpose')!r}"
        )
    if not same_json(values["source"], own):
        raise InvalidEntry("the source of a request event is that of its capture")
    entry_id, timestamp = f"{values['attemptId']}:{kind}", _iso(values.get("timestamp"))
    record = admitted._replace(
        id=check_entry_id(entry_id), parent_given=True, parent=source.leaf_id, timestamp=timestamp
    )
    size = len(record.payload(entry_id, source.leaf_id, timestamp))
    if size > REQUEST_RECORD_BYTES_MAX:
        raise LimitExceeded(
            f"the request record has {size} bytes; at most {REQUEST_RECORD_BYTES_MAX}",
            limit=REQUEST_RECORD_BYTES_MAX,
            need=size,
        )
    return record


def _iso(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if 0 <= value < _TIME_MS_END and value == int(value):
            return environment.iso_time(int(value))
    raise InvalidEntry(f"timestamp is in whole milliseconds since 1970, not {value!r}")


def store_request(session: Session, record: Admitted) -> Appended:
    """Write a record; durable when this returns. The same event again is a no-op.

    Raises:
        Conflict: that attempt has another event of this kind.
        Others: as :meth:`Session.append`.
    """
    assert record.id is not None
    session.hold()
    try:
        if session.exists(record.id):
            stored = decode_or_none(_records, session.read(record.id).raw)
            if stored is None or not same_json(
                stored.request, _records.decode(record.rest).request
            ):
                raise Conflict(
                    f"attempt {record.id!r} was recorded with another content", path=session.path
                )
            return Appended(record.id, None)
        return append_one(session, record)
    finally:
        session.let_go()
