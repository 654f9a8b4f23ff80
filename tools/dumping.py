"""Frames of a journal as plain objects, with the gaps between them where it is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treering.engine.errors import TreeringError
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import (
    CODEC_SPLICED_BIT,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    KNOWN_KINDS,
    QUALIFICATIONS,
    Frame,
    Kind,
    decode_file_header,
    salt_of,
)
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import Bytes, FileBytes, Scan, frame_at, search
from treering.engine.journal.recovery import examine
from treering.engine.journal.shared import SharedFrames
from treering.tools.viewing import hint_of, name_of

_CODECS = ("raw", "zstd", "zstd-dictionary")


def dump_journal(path: str, *, payloads: bool) -> Iterator[dict[str, Any]]:
    """The file header, every frame that verifies, and every gap, in the order of the file.

    Raises:
        NotAJournal, Damaged: no journal id is found, so no frame can be verified.
    """
    hint = hint_of(Store.of_journal(path), name_of(path))
    file = open_regular(LOCAL_DISK, path, write=False)
    try:
        source = FileBytes(file, path, file.stat().size)
        found = examine(source, known_ids=() if hint is None else (hint.journal_id,))
        if found.case == "G" or found.journal_id is None:
            raise found.refusal()
        yield _file_header(source)
        shared = SharedFrames(source, found.journal_id)
        for item in _frames_and_gaps(source, salt_of(found.journal_id)):
            if isinstance(item, dict):
                yield item
            else:
                yield _frame(*item, shared, payloads=payloads)
    finally:
        file.close()


def _file_header(source: Bytes) -> dict[str, Any]:
    header = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), source.path)
    line: dict[str, Any] = {"offset": 0, "kind": "FILE_HEADER", "verifies": header is not None}
    if header is not None:
        line |= {
            "version": header.version,
            "required": header.required,
            "optional": header.optional,
            "created": header.created_ms,
            "journal": header.journal_id.hex(),
            "publishedLength": header.published_length,
        }
    return line


def _frames_and_gaps(source: Bytes, salt: int) -> Iterator[tuple[Frame, bytes] | dict[str, Any]]:
    scan = Scan(source, salt)
    yield from scan.frames()
    assert scan.stop is not None
    if scan.stop.reason is None:
        return
    offset, sequence, why = scan.stop.place.offset, scan.stop.place.sequence, scan.stop.reason
    for frame in search(source, salt, offset, 0):
        if frame.offset > offset:
            yield _gap(offset, frame.offset, why)
        body = frame_at(source, salt, frame.offset)
        if body is not None:
            yield body
        offset, sequence, why = frame.end, frame.sequence + 1, f"no frame {sequence} follows"
    if offset < source.size:
        yield _gap(offset, source.size, why)


def _gap(start: int, end: int, why: str) -> dict[str, Any]:
    return {"offset": start, "kind": "UNREADABLE", "bytes": end - start, "why": why}


def _frame(frame: Frame, body: bytes, shared: SharedFrames, *, payloads: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "offset": frame.offset,
        "kind": Kind(frame.kind).name if frame.kind in KNOWN_KINDS else f"kind {frame.kind}",
        "codec": _codec(frame.codec),
        "flags": _flags(frame),
        "stored": frame.stored,
        "raw": frame.raw,
        "sequence": frame.sequence,
        "epoch": frame.epoch,
        "unsynced": frame.unsynced,
        "previous": frame.previous.hex(),
        "revision": frame.revision.hex(),
    }
    stored = body[FRAME_HEADER_BYTES:]
    if frame.kind == Kind.BLOB:
        shared.note_blob(frame)
    if not payloads and frame.kind != Kind.DICTIONARY:
        return line
    try:
        payload = shared.decoder.decode(frame, stored)
    except TreeringError as error:
        return line | {"undecodable": error.what}
    if frame.kind == Kind.DICTIONARY:
        shared.note_dictionary(frame, payload)
    return line | _payload(payload) if payloads else line


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payloadHex": payload.hex()}


def _codec(codec: int) -> str:
    base = codec & ~CODEC_SPLICED_BIT
    name = _CODECS[base] if base < len(_CODECS) else f"codec {base}"
    return f"{name}+spliced" if codec & CODEC_SPLICED_BIT else name


def _flags(frame: Frame) -> list[str]:
    names = ["retained-import"] if frame.retained else []
    if frame.staged:
        names.append("staged")
    number = frame.qualification
    if number:
        known = QUALIFICATIONS[number] if number < len(QUALIFICATIONS) else None
        names.append(known or f"qualification {number}")
    unknown = frame.flags & ~0x1F
    return [*names, f"unknown {unknown:#06x}"] if unknown else names
