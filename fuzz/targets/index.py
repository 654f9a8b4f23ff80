"""The index opener over any bytes: an answer, or one of the index's two faults.

The input is laid over an index made here. Half of the mutations get past SQLite's page checksums,
which are written anew: what a file holds is not believed because a checksum fits.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from collections.abc import Iterator
from typing import Any, Final

from treering.fuzz.targets.scratch import scratch
from treering.fuzz.targets.target import Broken, Native, Target
from treering.index import (
    Identity,
    IndexBusy,
    IndexFault,
    LeafMove,
    Position,
    Row,
    SessionIndex,
    Usage,
)
from treering.index import schema as index_schema
from treering.index.peek import peek

WHOLE, PATCHES, WAL, PATCHES_REPAIRED = range(4)
"""First byte of an input: the file itself, patches, a ``-wal`` beside it, patches and checksums."""

TO_WRITE: Final = 4
"""Added to the first byte: opened for writing, and one more entry is added."""

PATCH: Final = struct.Struct("<HHB")
"""One patch: page (from 0), offset in the page, length; then its bytes."""

_PAGE: Final = 4096
_INODE: Final = 0x0102030405060708
"""Stands in the file for its inode, eight bytes wide, until it is known."""

_U32: Final = struct.Struct("<1024I")


@functools.cache
def image() -> bytes:
    """A closed index of entries of every kind, the same in every process."""
    path = os.path.join(scratch("image"), "made.1.sqlite3")
    index = SessionIndex.open(path, create=True)
    rows = list(_rows())
    index.apply(rows, Position(rows[-1].sequence, 9000, b"r" * 16), b"w" * 64)
    index.bind(b"j" * 16, 2**63, 2**40)
    index.close()
    db = index_schema.connect(path, readonly=False)
    db.execute("UPDATE state SET file_inode=?", (_INODE,))
    db.pragma("wal_checkpoint(TRUNCATE)")
    db.close()
    with open(path, "rb") as file:
        return file.read()


def _rows() -> Iterator[Row | LeafMove]:
    for sequence in range(2, 42):
        own: str | None = f"id-{sequence}"
        parent: str | None = f"id-{sequence - 1 - (sequence % 5 == 0)}" if sequence > 2 else None
        label = (f"id-{sequence - 3}", f"label {sequence}") if sequence % 7 == 0 else None
        usage = ("assistant", Usage(1, 2, 3, 4, 10, 0.5)) if sequence % 3 == 0 else None
        if sequence == 20:
            own = None
        elif sequence == 21:
            own = "id-19"
        elif sequence == 22:
            parent = "not there"
        yield Row(
            sequence, own, parent, ("message", "note", "label", "")[sequence % 4],
            ("user", "assistant", None)[sequence % 3], 1_700_000_000_000 + sequence,
            sequence * 200, 100, 120, bytes((sequence,)) * 16, 0, bytes((sequence,)) * 16,
            sequence != 30, sequence % 6 != 0, label, usage,
        )  # fmt: skip
    yield LeafMove(42, "id-40")


def check(data: bytes) -> None:
    """Opened for reading or for writing, every question has an answer or a fault."""
    first, rest = (data[0], data[1:]) if data else (WHOLE, b"")
    folder = scratch("index")
    path = os.path.join(folder, "s.1.sqlite3")
    try:
        _lay_out(path, first & 3, rest)
        with contextlib.suppress(IndexFault, IndexBusy):
            _is_plausible(peek(path))
        with contextlib.suppress(IndexFault, IndexBusy):
            _question(path, readonly=not first & TO_WRITE)
        strange = set(os.listdir(folder)) - {"s.1.sqlite3", "s.1.sqlite3-wal", "s.1.sqlite3-shm"}
        if strange:
            raise Broken(f"files appear beside the index: {sorted(strange)}")
    finally:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))


def _is_plausible(hint: tuple[Identity, Position | None, bytes | None] | None) -> None:
    """What a hint says is compared with bytes: it must be of the types that it states."""
    if hint is None:
        return
    identity, position, watermark = hint
    _types("identity", identity, (bytes, int, int))
    _types("watermark", (watermark,), (bytes | None,))
    if position is not None:
        _types("position", position, (int, int, bytes))


def _types(what: str, row: tuple[object, ...], types: tuple[Any, ...]) -> None:
    if not all(map(isinstance, row, types)):
        raise Broken(f"{what} of a wrong type: {row!r}")


def _lay_out(path: str, kind: int, rest: bytes) -> None:
    with open(path, "xb") as file:
        content = rest
        if kind != WHOLE:
            inode = os.fstat(file.fileno()).st_ino
            patches = rest if kind in (PATCHES, PATCHES_REPAIRED) else b""
            content = _patched(patches, inode, repair=kind == PATCHES_REPAIRED)
        file.write(content)
    if kind == WAL:
        with open(path + "-wal", "xb") as file:
            file.write(rest)


def _patched(patches: bytes, inode: int, *, repair: bool) -> bytes:
    made = bytearray(image())
    changed = set()
    at = 0
    while len(patches) - at >= PATCH.size:
        page, offset, length = PATCH.unpack_from(patches, at)
        at += PATCH.size
        page %= len(made) // _PAGE
        piece = patches[at : at + length]
        begin = page * _PAGE + offset % (_PAGE - len(piece))
        made[begin : begin + len(piece)] = piece
        changed.add(page)
        at += length
    place = made.find(_INODE.to_bytes(8, "big"))
    if place >= 0:
        made[place : place + 8] = inode.to_bytes(8, "big")
        _write_checksum(made, place // _PAGE, keep=place // _PAGE in changed and not repair)
    for page in changed if repair else ():
        _write_checksum(made, page)
    return bytes(made)


def _write_checksum(made: bytearray, page: int, *, keep: bool = False) -> None:
    """The checksum at a page's end; ``keep`` leaves a wrong one wrong."""
    begin = page * _PAGE
    first = second = 0
    words = _U32.unpack_from(made, begin)
    for at in range(0, 1022, 2):
        first = first + words[at] + second & 0xFFFFFFFF
        second = second + words[at + 1] + first & 0xFFFFFFFF
    struct.pack_into("<II", made, begin + _PAGE - 8, first ^ keep, second)


def _question(path: str, *, readonly: bool) -> None:
    index = SessionIndex.open(path, readonly=readonly, busy_timeout_ms=50)
    try:
        with contextlib.suppress(IndexFault, IndexBusy):
            identity = index.identity()
            if identity is not None:
                _is_plausible((identity, index.position(), index.watermark()))
            _types("leaf", index.leaf(), (int, int | None))
        with contextlib.suppress(IndexFault, IndexBusy):
            for entry in index.entries(limit=100):
                _types("entry", (entry.id, entry.kind), (str, str))
        for ask in _QUESTIONS:
            with contextlib.suppress(IndexFault, IndexBusy):
                ask(index)
        if not readonly:
            row = next(_rows())
            assert isinstance(row, Row)
            new = row._replace(sequence=50, id="new", parent_id="id-7")
            index.apply([new], Position(50, 9900, b"n" * 16))
            if index.by_id("new") is None and index.by_sequence(50) is None:
                raise Broken("an entry that was added is not there")
    finally:
        with contextlib.suppress(IndexFault, IndexBusy):
            index.close()


_QUESTIONS: Final = (
    SessionIndex.self_check,
    SessionIndex.counts,
    SessionIndex.usage,
    lambda index: index.entries(limit=100),
    lambda index: index.by_id("id-9"),
    lambda index: index.by_ids(["id-9", "id-20", "?"]),
    lambda index: index.has_id("id-19"),
    lambda index: index.holder("id-19"),
    lambda index: index.path(41, limit=100),
    lambda index: index.path(41, from_depth=9, limit=5),
    lambda index: index.ancestor_at_depth(41, 2),
    lambda index: index.is_ancestor(3, 41),
    lambda index: index.children(4, limit=100),
    lambda index: index.children(None, limit=100),
    lambda index: index.child_count(4),
    lambda index: index.child_count(None),
    lambda index: index.unresolved(limit=100),
    lambda index: index.label(4),
    lambda index: index.labels(limit=100),
    lambda index: index.by_kind("message", limit=100),
    lambda index: index.by_kind("note", role="user", limit=100, newest_first=True),
    lambda index: index.latest_on_path("label", 41),
    lambda index: index.by_time(0, 2**62, limit=100),
    lambda index: index.differences(index),
)


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """Mostly one more patch, or another one, at a place where the index holds something."""
    choice = seed * 0x9E3779B97F4A7C15 >> 13 & 0xFFFFFFFFFFFF
    if choice & 3 == 0 or not data or data[0] & 3 in (WHOLE, WAL):
        return native(data, size_max)
    choice >>= 2
    made = image()
    page = choice % (len(made) // _PAGE)
    used = [at for at in range(_PAGE - 8) if made[page * _PAGE + at]]
    offset = used[(choice >> 8) % len(used)] if used else choice >> 8 & 0xFFF
    length = 1 + (choice >> 20 & 7)
    begin = page * _PAGE + offset
    piece = native(made[begin : begin + length], length + 3)[: _PAGE - 8 - offset]
    kind = bytes(((PATCHES_REPAIRED if choice >> 24 & 7 else PATCHES) | choice >> 29 & TO_WRITE,))
    kept = data[1:] if choice >> 27 & 3 else b""
    return (kind + PATCH.pack(page, offset, len(piece)) + piece + kept)[:size_max]


TARGET: Final = Target(
    check,
    modules=(
        "treering.index.compare",
        "treering.index.handle",
        "treering.index.lookups",
        "treering.index.peek",
        "treering.index.schema",
        "treering.index.session_index",
        "treering.index.totals",
    ),
    bytes_max=512,
    seconds_max=10.0,
    memory_bytes_max=64 << 20,
    tokens=(b"SQLite format 3\0", b"\x37\x7f\x06\x82", b"GNRT", b"TRNG"),
    mutate=mutate,
)
