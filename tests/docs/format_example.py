"""Makes the journal of the worked example in ``docs/journal-format.md`` and draws it as a dump.

The engine itself makes it: one ``create``, one ``append``, one ``close``, with clock, randomness
and process facts held still. ``python tests/docs/format_example.py`` prints the dump, for pasting
into the page when the example is meant to change.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import treering
from treering.engine import environment
from treering.engine.journal import format as fmt

CREATED_MS = 1_733_234_400_000  # 2024-12-03T14:00:00Z
JOURNAL_ID = bytes(range(0xA0, 0xB0))
SESSION_ID = "example"
ENTRY = (
    b'{"type":"message","id":"a1b2c3d4","parentId":null,"timestamp":"2024-12-03T14:00:01.000Z",'
    b'"message":{"role":"user","content":"Hello"}}'
)

_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)(?:  |$)")


def make(folder: Path) -> bytes:
    """The bytes of the example journal, written by the engine below ``folder``."""
    held = {
        "now_ms": lambda: CREATED_MS,
        "random_bytes": lambda count: JOURNAL_ID[:count],
        "host_name": lambda: "host",
        "boot_id": lambda: "",
        "process_started_ms": lambda: CREATED_MS,
    }
    with (
        mock.patch.multiple(environment, **held),
        mock.patch.object(os, "getpid", return_value=4242),
        mock.patch.object(treering, "__version__", "0.1.0"),
    ):
        session = treering.Session.create(
            "/project", session_dir=str(folder / "sessions"), session_id=SESSION_ID
        )
        session.append(ENTRY)
        session.close()
    return (folder / "sessions" / f"{SESSION_ID}.jsonl").read_bytes()


def draw(data: bytes) -> str:
    """The dump: one line for each field, payloads in lines of 16 bytes."""
    lines = [
        f"{offset:04x}  {part.hex(' '):<47}  {note}".rstrip() for offset, part, note in _parts(data)
    ]
    return "\n".join(lines) + "\n"


def parse(dump: str) -> bytes:
    """The bytes of a dump; every line must start where the line before it ended."""
    data = b""
    for line in dump.splitlines():
        if not line.strip() or line.startswith("--"):
            continue
        found = _LINE.match(line)
        assert found is not None, f"no line of a dump: {line!r}"
        assert int(found[1], 16) == len(data), f"offset {found[1]} where {len(data):04x} is due"
        data += bytes.fromhex(found[2])
    return data


def _parts(data: bytes) -> Iterator[tuple[int, bytes, str]]:
    header = (
        (8, "magic"),
        (2, "format version 1"),
        (2, "header length 128"),
        (4, "required features: none"),
        (4, "optional features: none"),
        (8, f"created, {CREATED_MS} ms"),
        (16, "journal id"),
        (8, f"published length {int.from_bytes(data[44:52], 'little')}"),
        (60, "reserved"),
        (16, "digest of bytes 0..111, seed 0"),
    )
    offset = 0
    for size, note in header:
        yield from _rows(offset, data[offset : offset + size], note)
        offset += size
    while offset < len(data):
        fields = fmt.unpack_frame_header(data, offset)
        stored, raw = fields[4], fields[5]
        frame = (
            (4, f"frame magic ({fmt.Kind(fields[1]).name})"),
            (1, f"kind {fields[1]}"),
            (1, f"codec {fields[2]}"),
            (2, f"flags {fields[3]}"),
            (4, f"stored length {stored}"),
            (4, f"raw length {raw}"),
            (8, f"sequence {fields[6]}"),
            (4, f"epoch {fields[7]}"),
            (4, f"unsynced {fields[8]}: proves every sequence below {fields[6] - fields[8]}"),
            (8, "first half of the digest before" if fields[6] else "no frame before"),
            (4, "header check"),
            (stored, "payload"),
            (16, "digest: the revision of this frame"),
        )
        for size, note in frame:
            yield from _rows(offset, data[offset : offset + size], note)
            offset += size


def _rows(offset: int, part: bytes, note: str) -> Iterator[tuple[int, bytes, str]]:
    for at in range(0, len(part), 16):
        row = part[at : at + 16]
        text = note if at == 0 else ""
        if note == "payload":
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield offset + at, row, text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(draw(make(Path(name))), end="")
