"""Small journals: made by the engine, and made by hand, byte by byte, right or wrong on purpose.

The hand-made writer shares no code with the engine, so that both cannot be wrong together.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.framing import Durability
from treering.engine.journal.opening import Hint, Opened, open_for_writing
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.publish import NewJournal
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import Examination, examine
from treering.engine.journal.writer import JournalWriter

SESSION, ENTRY, EPOCH_OPEN, EPOCH_ACTIVATE, EPOCH_CLOSE, LEAF = 1, 2, 3, 4, 5, 6
DICTIONARY, REQUEST, GAP, BLOB, PROVENANCE = 7, 8, 9, 10, 11
RETAINED, STAGED = 0x01, 0x10
HEADER_BYTES = 128
ENVELOPE = 60
FRAME_MAGIC = b"\xf7RG\x1d"
ID = bytes.fromhex("0102030405060708090a0b0c0d0e0f10")
OTHER_ID = bytes.fromhex("a1a2a3a4a5a6a7a8a9aaabacadaeafb0")


class Made(NamedTuple):
    """One frame of a hand-made journal: where it is and what its header says."""

    offset: int
    end: int
    kind: int
    codec: int
    flags: int
    stored: int
    raw: int
    sequence: int
    epoch: int
    unsynced: int
    previous: bytes
    revision: bytes
    payload: bytes


def file_header(
    journal_id: bytes = ID,
    published: int = 0,
    *,
    version: int = 1,
    length: int = HEADER_BYTES,
    required: int = 0,
    optional: int = 0,
    created: int = 1_700_000_000_123,
    magic: bytes = b"\x89TRNG\r\n\x1a",
    reserved: bytes = bytes(60),
) -> bytes:
    """A file header whose digest is right whatever its fields say."""
    body = struct.pack(
        "<8sHHIIQ16sQ60s",
        magic,
        version,
        length,
        required,
        optional,
        created,
        journal_id,
        published,
        reserved,
    )
    return body + xxhash.xxh3_128(body).digest()


def watermark(journal_id: bytes, sequence: int, end: int, revision: bytes) -> bytes:
    """A watermark that verifies."""
    body = journal_id + struct.pack("<QQ", sequence, end) + revision
    return body + xxhash.xxh3_128(body).digest()


def compact(value: Any) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


class Maker:
    """A journal made by hand. Every field of a frame can be overridden."""

    def __init__(self, journal_id: bytes = ID, *, first_sequence: int = 0, epoch: int = 0) -> None:
        self.journal_id = journal_id
        self.salt = int.from_bytes(journal_id[:8], "little")
        self.frames: list[Made] = []
        self.body = b""
        self.published: int | None = None
        self.sequence = first_sequence
        self.epoch = epoch
        self.unsynced = 0
        self.previous = bytes(8)
        self.epoch_started_at = first_sequence

    @property
    def end(self) -> int:
        """Where the next frame goes."""
        return HEADER_BYTES + len(self.body)

    def whole(self, **header: Any) -> bytes:
        """The whole file."""
        published = self.end if self.published is None else self.published
        return file_header(self.journal_id, published, **header) + self.body

    def publish(self) -> Maker:
        """``published length`` is where we are now."""
        self.published = self.end
        return self

    def sync(self) -> Maker:
        """A sync completed: the next frame has unsynced 0."""
        self.unsynced = 0
        return self

    def frame(
        self,
        kind: int,
        payload: bytes = b"",
        *,
        codec: int = 0,
        flags: int = 0,
        raw: int | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
        unsynced: int | None = None,
        previous: bytes | None = None,
        stored: int | None = None,
        salt: int | None = None,
        magic: bytes = FRAME_MAGIC,
    ) -> Made:
        """Append one frame; ``payload`` is as stored. Returns it."""
        salt = self.salt if salt is None else salt
        sequence = self.sequence if sequence is None else sequence
        epoch = self.epoch if epoch is None else epoch
        unsynced = self.unsynced if unsynced is None else unsynced
        previous = self.previous if previous is None else previous
        stored = len(payload) if stored is None else stored
        raw = len(payload) if raw is None else raw
        head = struct.pack(
            "<4sBBHIIQII8s",
            magic,
            kind,
            codec,
            flags,
            stored,
            raw,
            sequence,
            epoch,
            unsynced,
            previous,
        )
        head += struct.pack("<I", xxhash.xxh32(head, seed=salt & 0xFFFFFFFF).intdigest())
        revision = xxhash.xxh3_128(head + payload, seed=salt).digest()
        made = Made(
            self.end,
            self.end + ENVELOPE + len(payload),
            kind,
            codec,
            flags,
            stored,
            raw,
            sequence,
            epoch,
            unsynced,
            previous,
            revision,
            payload,
        )
        self.body += head + payload + revision
        self.frames.append(made)
        self.sequence = sequence + 1
        self.epoch = epoch
        self.unsynced = unsynced + 1
        self.previous = revision[:8]
        return made

    def open(self, epoch: int | None = None, **more: Any) -> Made:
        """EPOCH_OPEN of the next epoch (or of ``epoch``), after a sync."""
        epoch = self.epoch + 1 if epoch is None else epoch
        fields = {
            "journal": self.journal_id.hex(),
            "epoch": epoch,
            "purpose": "create" if epoch == 1 else "append",
            "durability": "full",
            "requires": more.pop("requires", []),
            "uses": [],
            "writer": {"pid": 1, "host": "h", "boot": "b", "started": 1, "version": "0"},
            "opened": 1,
        }
        self.unsynced = 0
        self.epoch_started_at = self.sequence
        return self.frame(EPOCH_OPEN, compact(fields), epoch=epoch, **more)

    def session(self, **more: Any) -> Made:
        """The SESSION frame."""
        return self.frame(SESSION, b'{"type":"session","version":3,"id":"s"}', **more)

    def entry(self, name: str = "a", **more: Any) -> Made:
        """An ENTRY."""
        return self.frame(ENTRY, compact({"type": "message", "id": name}), **more)

    def activate(self, first: int, last: int, revision: bytes, **more: Any) -> Made:
        """EPOCH_ACTIVATE."""
        named = {"first": first, "last": last, "revision": revision.hex()}
        return self.frame(EPOCH_ACTIVATE, compact(named), **more)

    def batch(self, *names: str) -> list[Made]:
        """STAGED entries and their EPOCH_ACTIVATE."""
        staged = [self.entry(name, flags=STAGED) for name in names]
        self.activate(staged[0].sequence, staged[-1].sequence, staged[-1].revision)
        return staged

    def close(self, **more: Any) -> Made:
        """EPOCH_CLOSE, after a sync; the next frame follows its own sync."""
        named = {
            "journal": self.journal_id.hex(),
            "epoch": self.epoch,
            "frames": more.pop("frames", self.sequence - self.epoch_started_at),
        }
        self.unsynced = 0
        made = self.frame(EPOCH_CLOSE, compact(named), **more)
        self.unsynced = 0
        return made

    def started(self) -> Maker:
        """EPOCH_OPEN, SESSION, EPOCH_CLOSE, published: what every new file begins with."""
        self.open()
        self.session()
        self.close()
        return self.publish()

    def mark(self, index: int = -1) -> bytes:
        """The watermark of one of its frames."""
        frame = self.frames[index]
        return watermark(self.journal_id, frame.sequence, frame.end, frame.revision)


@dataclass
class Store:
    """The folders of one store in a test."""

    top: str
    sessions: str
    quarantine: str
    note: str

    def path(self, session_id: str = "s1") -> str:
        """Where that journal is."""
        return os.path.join(self.sessions, session_id + ".jsonl")


def make_store(tmp_path: Path) -> Store:
    """A store with existing folders."""
    top = str(tmp_path / "home")
    store = Store(
        top,
        os.path.join(top, "sessions"),
        os.path.join(top, "session-artifacts", "s1", "quarantine"),
        os.path.join(top, "session-index", "s1.owner.json"),
    )
    for folder in (store.sessions, os.path.dirname(store.note)):
        os.makedirs(folder, mode=0o700)
    return store


def entry(name: str, text: str = "") -> Record:
    """An ENTRY record."""
    return Record(ENTRY, compact({"type": "message", "id": name, "text": text}))


SESSION_RECORD = Record(SESSION, b'{"type":"session","version":3,"id":"s1"}')


def create(
    store: Store,
    records: Iterable[Record] = (SESSION_RECORD,),
    *,
    disk: Disk = LOCAL_DISK,
    session_id: str = "s1",
    durability: Durability = "full",
    compression: bool = True,
    note: bool = False,
) -> JournalWriter:
    """A published journal and its writer, which has written nothing yet (epoch 2 is not open)."""
    new = NewJournal(
        disk,
        store.sessions,
        session_id,
        purpose="create",
        top=store.top,
        compression=compression,
    )
    try:
        new.add(records)
        owner, tail = new.publish(store.path(session_id), store.note if note else None)
    except BaseException:
        new.abandon()
        raise
    return JournalWriter(owner, tail, durability=durability, compression=compression)


def reopen(
    store: Store,
    *,
    disk: Disk = LOCAL_DISK,
    session_id: str = "s1",
    hint: Hint | None = None,
    note: bool = False,
) -> Opened:
    """Open for writing, as an owner does."""
    return open_for_writing(
        disk,
        store.path(session_id),
        top=store.top,
        quarantine_folder=store.quarantine,
        note_path=store.note if note else None,
        hint=None if hint is None else lambda: hint,
    )


def writer_of(
    opened: Opened, *, durability: Durability = "full", compression: bool = True
) -> JournalWriter:
    """The writer of an opened journal."""
    return JournalWriter(opened.owner, opened.tail, durability=durability, compression=compression)


def crash(owned: JournalWriter | Ownership) -> None:
    """What is left when the owner dies: no EPOCH_CLOSE, no lock."""
    (owned.owner if isinstance(owned, JournalWriter) else owned).file.close()


def put(store: Store, data: bytes, session_id: str = "s1") -> str:
    """Make these bytes the journal of the session."""
    path = store.path(session_id)
    with open(path, "wb") as file:
        file.write(data)
    return path


def get(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


class Memory:
    """A source of bytes in memory."""

    def __init__(self, data: bytes, path: str = "memory/s1.jsonl") -> None:
        self.data = data
        self.path = path
        self.size = len(data)
        self.largest = 0

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes, fewer only at the end."""
        data = self.data[offset : offset + length]
        self.largest = max(self.largest, len(data))
        return data


def look(
    data: bytes, watermark: bytes | None = None, known_ids: Iterable[bytes] = ()
) -> Examination:
    """Examine bytes in memory."""
    return examine(Memory(data), watermark=watermark, known_ids=known_ids)


def look_at(path: str, watermark: bytes | None = None) -> Examination:
    """Examine a file."""
    file = LOCAL_DISK.open(path)
    try:
        return examine(FileBytes(file, path, file.stat().size), watermark=watermark)
    finally:
        file.close()


def visible(data: bytes, journal_id: bytes = ID) -> list[tuple[int, int, bytes]]:
    """(sequence, kind, decoded payload) of all that a reader shows, in order of appearance."""
    from treering.engine.journal.history import Walk

    walk = Walk(Memory(data), journal_id)
    return [
        (frame.sequence, frame.kind, walk.history.shared.decoder.decode(frame, stored))
        for frame, stored in walk.visible()
    ]
