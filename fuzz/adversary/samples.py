"""Small sessions to put wrong indexes beside, and what each answers without any index."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from treering.engine import Session, SessionView, import_session
from treering.engine.environment import iso_time
from treering.engine.home import Store, session_id_of
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import (
    CODEC_RAW,
    CODEC_SPLICED_BIT,
    FILE_HEADER_BYTES,
    FLAG_RETAINED,
    Frame,
    Kind,
    decode_file_header,
)
from treering.engine.journal.payload import Dictionary, encode_splice
from treering.engine.journal.publish import NewJournal
from treering.engine.journal.reader import FileBytes, Scan
from treering.fuzz.adversary.answers import Answers, answers_of

CWD: Final = "/work"
_START_MS: Final = 1_700_000_000_000
_BLOB: Final = b"what many entries quote at length, stored once. " * 20
_QUOTE: Final = b"@quote@"

Entry = dict[str, Any]
Made = tuple[str, tuple[int, int]]
"""The path of a finished journal, and its sizes at two earlier clean ends."""


@dataclass(frozen=True)
class Sample:
    """One session: its journal, a place where it once ended cleanly, and its answers."""

    name: str
    session_id: str
    journal: bytes
    earlier: int
    """Bytes of the journal at an earlier clean end."""
    middle: int
    """Bytes of the journal at a clean end one user message later."""
    right: Answers
    """What a view answers that never had an index."""


class Entries:
    """Entries with fixed ids and times, so that a sample has the same shape every time."""

    def __init__(self) -> None:
        self._count = 0

    def _entry(self, kind: str, **members: Any) -> Entry:
        self._count += 1
        members.setdefault("id", f"e{self._count:03}")
        stamp = iso_time(_START_MS + self._count * 1000)
        return {"type": kind, "timestamp": stamp, **members}

    def user(self, text: str, **more: Any) -> Entry:
        """A user message."""
        return self._entry("message", message={"role": "user", "content": text}, **more)

    def assistant(self, text: str, **more: Any) -> Entry:
        """An assistant message with figures."""
        usage = {"input": 100, "output": 20 + self._count, "totalTokens": 120 + self._count}
        message = {"role": "assistant", "content": text, "usage": {**usage, "cost": {"total": 0.5}}}
        return self._entry("message", message=message, **more)

    def of(self, kind: str, **members: Any) -> Entry:
        """Any other entry."""
        return self._entry(kind, **members)

    def talk(self, turns: int, text: str = "some text") -> list[Entry]:
        """Messages of user and assistant in turn."""
        return [
            (self.assistant if number % 2 else self.user)(f"{text} {number}")
            for number in range(turns)
        ]


def make_samples(folder: str, names: Iterable[str] | None = None) -> list[Sample]:
    """Make the samples, or those of the names, below an empty folder."""
    chosen = list(RECIPES) if names is None else list(names)
    return [_make(name, os.path.join(folder, name)) for name in chosen]


def _make(name: str, home: str) -> Sample:
    os.makedirs(home)
    path, (earlier, middle) = RECIPES[name](home)
    journal = Path(path).read_bytes()
    right = answers_without(home, path, journal)
    return Sample(name, session_id_of(path), journal, earlier, middle, right)


def answers_without(home: str, path: str, journal: bytes) -> Answers:
    """The answers of a view and of an owner, neither of which has, or can have, an index.

    Raises AssertionError if they differ: then there is nothing to hold the others against.
    """
    bare = Store.at(os.path.join(home, "bare"))
    copy = bare.journal_path(session_id_of(path))
    os.makedirs(bare.sessions)
    Path(copy).write_bytes(journal)
    Path(bare.index).write_bytes(b"no folder, so no index")
    with SessionView.open(copy) as view:
        right = answers_of(view)
    with Session.open(copy) as session:
        if answers_of(session) != right:
            raise AssertionError("owner and view differ without any index")
        if not session.index_faults:
            raise AssertionError("an owner without a folder for its index did not say so")
    return right


def _plain(home: str) -> Made:
    """The smallest: one branch, a label."""
    make = Entries()
    with _new(home) as session:
        session.append_many(make.talk(3))
    ends = _ends(session.path, make)
    with Session.open(session.path) as session:
        session.append_many(make.talk(2))
        session.append(make.of("label", targetId="e002", label="two"))
    return session.path, ends


def _branched(home: str) -> Made:
    """Branches, labels that move and one that fills pages of its own, compaction, a batch."""
    make = Entries()
    label = partial(make.of, "label")
    with _new(home) as session:
        session.append_many(make.talk(24))
        session.append(label(targetId="e003", label="three"))
        session.append(label(targetId="e005", label="to be cleared"))
        session.append(label(targetId="e007", label="a long label, " * 700))
        session.branch_to("e010")
        session.append(make.user("another way", id="long-" + "x" * 400))
        session.append(make.of("session_info", name="the first name"))
        session.append(make.of("compaction", summary="s", firstKeptEntryId="e008"))
    ends = _ends(session.path, make)
    with Session.open(session.path) as session:
        session.append_many(make.talk(80, "later"))
        session.append(label(targetId="e003", label="three again"))
        session.append(label(targetId="e005", label=None))
        session.append(make.of("session_info", name="the second name"))
        session.append(make.of("request", request={"n": 1}))
        session.branch_to("e020")
        with session.batch() as batch:
            batch.append(make.of("custom", customType="test", data=1))
            batch.append(make.of("branch_summary", fromId="e020", summary="of a branch"))
        session.append(make.of("child_usage_attributed", targetId="e004", childUsage={"input": 7}))
        session.branch_to("e012")
    return session.path, ends


def _imported(home: str) -> Made:
    """Parents that are missing, later, in a cycle or the entry itself; ids twice and absent."""
    make = Entries()
    user = partial(make.user, "imported")
    lines: list[Entry] = [
        {"type": "session", "version": 3, "id": "s-1", "cwd": CWD, "timestamp": iso_time(1)},
        user(id="a", parentId=None),
        user(id="b", parentId="a"),
        user(id="c", parentId="nobody"),
        user(id="d", parentId="later"),
        user(id="later", parentId="b"),
        user(id="self", parentId="self"),
        user(id="r1", parentId="r2"),
        user(id="r2", parentId="r1"),
        user(id="b", parentId="d"),
        user(id=None, parentId="b"),
        make.of("label", id="l", parentId="a", targetId="b", label="which b"),
        make.of("label", id="m", parentId="a", targetId="not there", label="waits"),
        *(
            make.assistant("tail", id=f"t{n}", parentId=f"t{n - 1}" if n else "later")
            for n in range(9)
        ),
    ]
    for line in lines:
        if line.get("id", "") is None:
            del line["id"]
    source = os.path.join(home, "source.jsonl")
    Path(source).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    path = import_session(source, cwd=CWD, home_dir=home).path
    ends = _ends(path, make)
    with Session.open(path) as session:
        session.append_many(make.talk(4))
        session.append(make.of("label", targetId="t3", label="behind the import"))
    return path, ends


def _abandoned(home: str) -> Made:
    """A batch whose owner died before its activation, and a new epoch behind it."""
    make = Entries()
    with _new(home) as session:
        session.append_many(make.talk(6))
    ends = _ends(session.path, make)
    with Session.open(session.path) as session:
        session.append_many(make.talk(2))
        with session.batch() as batch:
            batch.append(make.of("custom", customType="test", id="never-1"))
            batch.append(make.user("never shown", id="never-2"))
        journal = Path(session.path).read_bytes()
    cut = Store.at(os.path.join(home, "cut"))
    path = cut.journal_path(session.id)
    os.makedirs(cut.sessions)
    Path(path).write_bytes(journal)
    os.truncate(path, _last_of_kind(path, Kind.EPOCH_ACTIVATE))
    with Session.open(path) as session:
        if session.has("never-1") or session.has("never-2"):
            raise AssertionError("a batch without its activation is shown")
        session.append_many(make.talk(3))
        session.append(make.of("label", targetId="e002", label="two"))
    return path, ends


def _packed(home: str) -> Made:
    """Payloads compressed with a dictionary, spliced from a BLOB, and plain."""
    draw = random.Random(7)
    words = ["treering", "journal", "frame", "epoch", "index", "entry", "label", "branch"]
    make = Entries()
    texts = [" ".join(draw.choices(words, k=60)) for _ in range(400)]
    trained = Dictionary.train([_dump(Entries().user(text)) for text in texts])
    if trained is None:
        raise AssertionError("no dictionary could be trained")
    store = Store.at(home)
    new = NewJournal(
        LOCAL_DISK, store.sessions, "packed", purpose="import", top=store.top, compression=True
    )
    header = {"type": "session", "version": 3, "id": "packed", "cwd": CWD, "timestamp": iso_time(1)}
    new.add([Record(Kind.SESSION, _dump(header)), Record(Kind.BLOB, _BLOB)])
    new.add_dictionary(_Splicing(trained.payload))
    parent: str | None = None
    for number, text in enumerate(texts[:14]):
        said = f"{text} {_QUOTE.decode()}" if number % 3 == 0 else text
        entry = make.user(said, parentId=parent)
        payload = _dump(entry).replace(_QUOTE, _BLOB)
        new.add([Record(Kind.ENTRY, payload, FLAG_RETAINED if number % 2 else 0)])
        parent = entry["id"]
    path = store.journal_path("packed")
    owner, _ = new.publish(path)
    owner.release()
    ends = _ends(path, make)
    with Session.open(path) as session:
        session.append(make.assistant("a long answer that zstd makes short. " * 200))
        session.append_many(make.talk(3))
        session.append(make.of("label", targetId="e004", label="four"))
    return path, ends


class _Splicing(Dictionary):
    """A dictionary that takes what a BLOB holds out of a payload. The engine only reads such."""

    def compress(self, payload: bytes) -> tuple[int, bytes]:
        """(codec, stored bytes)."""
        at = payload.find(_BLOB)
        if at < 0:
            return super().compress(payload)
        text = payload[:at] + payload[at + len(_BLOB) :]
        blob_sequence = 2  # behind EPOCH_OPEN and SESSION
        table = [(at, blob_sequence, len(_BLOB), 0)]
        return CODEC_RAW | CODEC_SPLICED_BIT, encode_splice(text, table)


def _ends(path: str, make: Entries) -> tuple[int, int]:
    """The size now, and after one more message that adds to no totals but those of entries."""
    earlier = os.path.getsize(path)
    with Session.open(path) as session:
        session.append(make.user("in the middle"))
    return earlier, os.path.getsize(path)


def _new(home: str) -> Session:
    return Session.create(CWD, home_dir=home)


def _dump(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode()


def frames_of(path: str) -> list[Frame]:
    """All frames of a journal that nobody is writing."""
    file = LOCAL_DISK.open(path)
    try:
        source = FileBytes(file, path, file.stat().size)
        header = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), path)
        if header is None:
            raise AssertionError(f"{path} has no file header that verifies")
        return [frame for frame, _ in Scan(source, header.salt).frames()]
    finally:
        file.close()


def _last_of_kind(path: str, kind: Kind) -> int:
    return max(frame.offset for frame in frames_of(path) if frame.kind == kind)


RECIPES: Final[dict[str, Callable[[str], Made]]] = {
    "plain": _plain,
    "branched": _branched,
    "imported": _imported,
    "abandoned": _abandoned,
    "packed": _packed,
}
