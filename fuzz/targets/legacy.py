"""Legacy JSONL: refused with a typed error, or taken with every byte accounted for."""

from __future__ import annotations

from typing import Final

import xxhash

from treering.engine.errors import TreeringError
from treering.engine.json_text import BadRecordError
from treering.engine.json_text import check as check_record
from treering.engine.transfer.legacy import (
    Analysis,
    CopyLimits,
    analyse,
    detect,
    prepare,
    rebuild,
)
from treering.engine.transfer.legacy_read import Blank, LeftOut, Whole, salvaged_items
from treering.fuzz.targets.target import Broken, Memory, Native, Target, same

_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"


def check(data: bytes) -> None:
    """Both readings of the file: what they take, what they leave out, and the way back."""
    strict = _read(data, salvage=False)
    salvaged = _read(data, salvage=True)
    if detect(Memory(data)) == "native-frames":
        return  # of these the target ``native`` knows what is in them
    if strict is not None:
        _exactly(data, *strict)
        if salvaged is None:
            raise Broken("salvage refuses what the strict reading takes")
        same("pieces left out of a whole file", salvaged[0].left_out, [])
        same("entries of a salvage of a whole file", salvaged[1], strict[1])
    if salvaged is not None:
        _every_byte(data, salvaged[0])


def _read(data: bytes, *, salvage: bool) -> tuple[Analysis, list[bytes]] | None:
    source = Memory(data, "memory.jsonl")
    try:
        analysis = analyse(source, limits=CopyLimits(), salvage=salvage)
        entries = list(prepare(source, analysis))
    except TreeringError as error:
        if not str(error):
            raise Broken("a refusal without a reason") from error
        return None
    same("digest", analysis.digest, xxhash.xxh3_128(data).hexdigest())
    same("number of entries", len(entries), analysis.entry_count)
    for entry in entries:
        try:
            fields = check_record(entry.raw)
        except BadRecordError as error:
            raise Broken(f"line {entry.line} became a record that {error.reason}") from None
        if b"\n" in entry.raw:
            raise Broken(f"line {entry.line} became more than one line")
        same("kind", entry.kind, fields.kind)
    return analysis, [entry.raw for entry in entries]


def _exactly(data: bytes, analysis: Analysis, entries: list[bytes]) -> None:
    if analysis.byte_exact:
        back = rebuild(analysis.header_raw, entries, analysis.blank_lines, analysis.bom)
        same("the file rebuilt", b"".join(back), data)
    elif analysis.effective_version == 3:
        raise Broken("a whole file of version 3 is not byte exact")


def _every_byte(data: bytes, analysis: Analysis) -> None:
    """Records and pieces left out stand in the source as told; between them is only space."""
    done = len(_BOM) if data.startswith(_BOM) else 0
    filler = _SPACE + (b"[],]" if analysis.format == "json-array" else b"")
    left_out: list[LeftOut] = []
    records = 0
    for item in salvaged_items(Memory(data, "memory.jsonl"), analysis.format):
        if isinstance(item, Blank):
            continue
        length = len(item.raw) if isinstance(item, Whole) else item.length
        if item.offset < done or length <= 0 or item.offset + length > len(data):
            raise Broken(f"{item} overlaps what ends at {done}, or is not in the file")
        between = data[done : item.offset]
        if between.strip(filler):
            raise Broken(f"bytes {done} to {item.offset} are neither taken nor left out")
        if isinstance(item, Whole):
            records += 1
            same("record", item.raw, data[item.offset : item.offset + length])
        else:
            left_out.append(item)
        done = item.offset + length
    if data[done:].strip(filler):
        raise Broken(f"the bytes from {done} on are neither taken nor left out")
    same("pieces left out", left_out, analysis.left_out)
    same("number of records", records, analysis.record_count)


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Half of the time whole lines: repeated, dropped, exchanged, fused, torn."""
    seed = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    if seed >> 63:
        return native(data, size_max)
    lines = data.splitlines(keepends=True)
    if not lines:
        return native(data, size_max)
    how, choice = seed >> 20 & 7, seed >> 23
    at, choice = choice % len(lines), choice // len(lines)
    other = choice % len(lines)
    line = lines[at]
    if how == 0:
        lines.insert(other, line)
    elif how == 1:
        del lines[at]
    elif how == 2:
        lines[at], lines[other] = lines[other], line
    elif how == 3:
        lines[at] = line.rstrip(b"\n")
    elif how == 4:
        lines[at] = line[: choice % (len(line) + 1)] + lines[other]
    elif how == 5:
        lines[at] = b"\0" * (choice % 40) + line
    elif how == 6:
        lines[at] = (b"", b"\r\n", b" \n", _BOM, b"[", b"]", b",", b"\n")[choice & 7] + line
    else:
        lines[at] = native(line, len(line) + 32)
    return b"".join(lines)[:size_max]


TARGET: Final = Target(
    check,
    modules=(
        "treering.engine.json_text",
        "treering.engine.transfer.legacy",
        "treering.engine.transfer.legacy_read",
        "treering.engine.transfer.legacy_salvage",
        "treering.engine.transfer.legacy_scan",
        "treering.engine.transfer.legacy_tree",
        "treering.engine.transfer.records",
        "treering.engine.transfer.upgrade",
    ),
    bytes_max=2048,
    seconds_max=5.0,
    memory_bytes_max=32 << 20,
    tokens=(
        _BOM,
        b'{"type":"session","version":3,"id":"s"}\n',
        b'"type":"message"',
        b'"type":"session"',
        b'"type":"compaction"',
        b'"type":"label"',
        b'"id":',
        b'"parentId":',
        b'"timestamp":',
        b'"version":',
        b'"firstKeptEntryId":',
        b'"firstKeptEntryIndex":',
        b'"targetId":',
        b'"message":{"role":"user"}',
        b'"hookMessage"',
        b'{"journalFrame":1,',
        b"\\ud800",
        b"\\udc00",
        b"NaN",
        b"null",
        b"},\n{",
    ),
    mutate=mutate,
)
