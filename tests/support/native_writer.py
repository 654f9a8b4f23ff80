"""Writes Base Context's journals of JSON frames, from the description of their format alone.

It shares no code with the reader that it tests: text is put together, hashed and chained here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

HEADER = (
    '{"type":"session","version":3,"id":"0197f2a0-0000-7000-8000-000000000001",'
    '"timestamp":"2026-01-01T00:00:00.000Z","cwd":"/old/place","rlmDepth":2,'
    '"git":{"commit":"c0ffee"}}'
)
QUALIFICATIONS = (
    "native-admission",
    "native-recovery",
    "native-context-epoch",
    "native-tool-execution",
)


class Row(NamedTuple):
    """A payload and the marks of its frame."""

    payload: str
    retention: str | None = None
    qualification: str | None = None


def framed(
    payload: str,
    sequence: int,
    previous: str | None,
    retention: str | None = None,
    qualification: str | None = None,
) -> tuple[str, str]:
    """One line without its LF, and its checksum."""
    before = "null" if previous is None else f'"{previous}"'
    text = f'{{"journalFrame":1,"sequence":{sequence},"previousChecksum":{before}'
    if retention is not None:
        text += f',"retention":"{retention}"'
    if qualification is not None:
        text += f',"qualification":"{qualification}"'
    return sealed(text + f',"payload":{payload}')


def sealed(body: str) -> tuple[str, str]:
    """A frame without its checksum and its end, with both; and the checksum."""
    checksum = hashlib.sha256((body + "}").encode()).hexdigest()
    return f'{body},"checksum":"{checksum}"}}', checksum


def journal(rows: Iterable[Row | str]) -> bytes:
    """A whole journal of these payloads, the first of which is to be the header."""
    previous: str | None = None
    lines = []
    for sequence, row in enumerate(rows):
        payload, retention, qualification = Row(row) if isinstance(row, str) else row
        line, previous = framed(payload, sequence, previous, retention, qualification)
        lines.append(line + "\n")
    return "".join(lines).encode()


def header(**changes: Any) -> str:
    """The header with other members; ``...`` leaves one out."""
    members = {**json.loads(HEADER), **changes}
    return dump({name: value for name, value in members.items() if value is not ...})


def message(entry_id: str, parent: str | None, text: str = "hi", **more: Any) -> str:
    """A message of the user."""
    entry = {
        "type": "message",
        "id": entry_id,
        "parentId": parent,
        "timestamp": "2026-01-01T00:00:01.000Z",
        "message": {"role": "user", "content": text},
    }
    return dump({**entry, **more})


def request(entry_id: str, parent: str | None) -> str:
    """A request record, which is no part of the tree."""
    return dump(
        {
            "type": "request",
            "id": entry_id,
            "parentId": parent,
            "timestamp": "2026-01-01T00:00:02.000Z",
            "request": {"type": "attempt_admitted", "attemptId": "a", "operationId": "o"},
        }
    )


def dump(value: Any) -> str:
    """JSON as their writer makes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
