"""Sources in memory, and small ways to write and read legacy files in tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from treering.engine.errors import SourceChanged
from treering.engine.transfer.legacy import Analysis, CopyLimits, analyse, prepare, rebuild

HEADER = {"type": "session", "version": 3, "id": "s-1", "timestamp": "2026-01-01T00:00:00.000Z"}


@dataclass
class MemorySource:
    """A source whose bytes a test may change between two readings."""

    data: bytes
    path: str = "memory.jsonl"

    def __post_init__(self) -> None:
        self.size = len(self.data)

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if end > len(self.data):
            raise SourceChanged("shrank", path=self.path)
        return self.data[offset:end]


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def header(**changes: Any) -> bytes:
    """A version 3 header; a member given as ``...`` is left out."""
    return dump({k: v for k, v in (HEADER | changes).items() if v is not ...})


def message(entry_id: str | None, parent: str | None, text: str = "hi", **more: Any) -> bytes:
    """A user message; an id of None is left out together with the parent."""
    entry: dict[str, Any] = {"type": "message"}
    if entry_id is not None:
        entry |= {"id": entry_id, "parentId": parent}
    entry["timestamp"] = "2026-01-01T00:00:01.000Z"
    entry["message"] = {"role": "user", "content": text}
    return dump(entry | more)


def chain(count: int) -> list[bytes]:
    return [message(f"e{n}", f"e{n - 1}" if n else None, f"text {n}") for n in range(count)]


def jsonl(*records: bytes) -> bytes:
    return b"".join(record + b"\n" for record in records)


def look(data: bytes, *, salvage: bool = False) -> Analysis:
    return analyse(MemorySource(data), limits=CopyLimits(), salvage=salvage)


def read(data: bytes, *, salvage: bool = False) -> tuple[Analysis, list[bytes]]:
    """The analysis and the entries to be stored."""
    source = MemorySource(data)
    analysis = analyse(source, limits=None, salvage=salvage)
    return analysis, [prepared.raw for prepared in prepare(source, analysis)]


def rebuilt(data: bytes) -> bytes:
    analysis, entries = read(data)
    assert analysis.byte_exact
    return b"".join(rebuild(analysis.header_raw, entries, analysis.blank_lines, analysis.bom))
