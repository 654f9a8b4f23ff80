"""What the bench works on: generated sessions, the same in every run, and where they lie.

Entries are made one after another from their number alone, so a million of them need no memory,
and a reader can ask for any id. Text is drawn from a fixed vocabulary with a realistic skew: a
single frame compresses about as well as one of a real session, never better for repetition
between frames (each is compressed by itself).
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from treering.engine import environment
from treering.engine.home import Store
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import Kind
from treering.engine.journal.opening import Tail
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.publish import NewJournal

Parents = Literal["chain", "random"]

SEED: Final = 20_241_203
LARGE_BYTES: Final = 1_300
SMALL_BYTES: Final = 630
MIXED_BYTES: Final = 0
"""As ``entry_bytes``: lengths spread as in real sessions."""

LABEL_EVERY: Final = 1_000
BRANCH_EVERY: Final = 257
BRANCH_BACK: Final = 7

_EPOCH_MS: Final = 1_733_234_400_000
_ID_MIX: Final = 2_654_435_761
"""Odd, so that i * MIX mod 2**32 gives every number once: ids without order, never twice."""

IMPORTED_ENTRIES_MAX: Final = 100_000
"""Rows about compressed sessions go no further: nothing in them grows with the session."""

_TEXTS: Final = 256
_SEPARATORS: Final = (" ", "\n", "\n    ", ", ", "")
_SEPARATOR_WEIGHTS: Final = (30, 3, 2, 2, 1)


class Shape(NamedTuple):
    """What a generated session looks like.

    Stored raw, as live appends leave entries of this size; imports compress them (``compression``).
    """

    entries: int
    entry_bytes: int = LARGE_BYTES
    parents: Parents = "chain"
    compression: bool = False

    @property
    def made(self) -> str:
        """How it came to be, for people."""
        return "compressed as by an import" if self.compression else "stored raw as by live appends"


def native_and_imported(entries: int) -> tuple[tuple[str, Shape], ...]:
    """Suffixes of rows that are measured on both, and the sessions. Targets are for the first."""
    imported = Shape(min(entries, IMPORTED_ENTRIES_MAX), compression=True)
    return ("", Shape(entries)), ("-imported", imported)


def entry_id(number: int) -> str:
    """The id of the entry with that number: 8 hex digits."""
    return f"{(number * _ID_MIX + SEED) & 0xFFFFFFFF:08x}"


def parent_of(number: int, parents: Parents) -> int | None:
    """The number of its parent. A chain has a short branch left behind now and then."""
    if number == 0:
        return None
    if parents == "random":
        return (number * 40_503 + (number >> 3) * 9_973 + SEED) % number
    return number - BRANCH_BACK if number % BRANCH_EVERY == BRANCH_BACK else number - 1


@functools.cache
def texts_of(length: int | None) -> Texts:
    """The pieces of that length, made once."""
    return Texts(length)


class Texts:
    """Pieces of text: prose, code and tool output; of about one length, or of mixed lengths."""

    def __init__(self, length: int | None) -> None:
        pick = random.Random(SEED + (length or 0))  # noqa: S311 (nothing secret; the same every run)
        words = _vocabulary(pick)
        weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(words))))
        self._pieces = [
            _piece(pick, words, weights, length or _mixed_length(pick)) for _ in range(_TEXTS)
        ]

    def __getitem__(self, number: int) -> str:
        return self._pieces[number * 131 % _TEXTS]


def _mixed_length(pick: random.Random) -> int:
    # As in real sessions: most texts short, some tool outputs of tens of kilobytes.
    return min(40_000, int(pick.lognormvariate(6.6, 1.2)) + 20)


def _vocabulary(pick: random.Random) -> list[str]:
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "er", "an")]
    words = ["".join(pick.choices(syllables, k=pick.choice((1, 1, 2, 2, 3)))) for _ in range(2_400)]
    names = [f"{a}_{b}" for a, b in zip(words[:300], words[300:600], strict=True)]
    code = ["def", "return", "self.", "import", "if", "else:", "for", "in", "=", "==", "()", "[0]"]
    return code + words + names + [f"src/{name}.py" for name in names[:80]]


def _piece(pick: random.Random, words: list[str], weights: list[float], length: int) -> str:
    text: list[str] = []
    size = 0
    while size < length:
        word = pick.choices(words, cum_weights=weights)[0]
        separator = pick.choices(_SEPARATORS, _SEPARATOR_WEIGHTS)[0] or f" {pick.random():.4f} "
        text += (word, separator)
        size += len(word) + len(separator)
    return "".join(text)[:length]


class Generator:
    """Entries of one shape by number."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        size = shape.entry_bytes
        self._texts = texts_of(None if size == MIXED_BYTES else max(16, size - 260))

    def members(self, number: int) -> dict[str, Any]:
        """One entry as a caller would append it: without id, parent and timestamp."""
        if number % LABEL_EVERY == LABEL_EVERY - 1:
            target = entry_id(number // 2)
            return {"type": "label", "targetId": target, "label": f"mark {number}"}
        return {"type": "message", "message": self._message(number)}

    def whole(self, number: int) -> dict[str, Any]:
        """The same with them."""
        parent = parent_of(number, self.shape.parents)
        members = self.members(number)
        head = {
            "type": members.pop("type"),
            "id": entry_id(number),
            "parentId": None if parent is None else entry_id(parent),
            "timestamp": environment.iso_time(_EPOCH_MS + number * 1_750),
        }
        return head | members

    def entry(self, number: int) -> bytes:
        """The bytes of one whole entry."""
        return msgspec.json.encode(self.whole(number))

    def records(self) -> Iterator[Record]:
        """The frames of the session, its header first."""
        yield _header_record()
        for number in range(self.shape.entries):
            yield Record(Kind.ENTRY, self.entry(number))

    def _message(self, number: int) -> dict[str, Any]:
        text = self._texts[number]
        time = _EPOCH_MS + number * 1_750
        turn = number % 5
        if turn == 0:
            return {"role": "user", "content": text, "timestamp": time}
        if turn in (2, 4):
            return {
                "role": "toolResult",
                "toolCallId": f"call_{number:x}",
                "toolName": "bash",
                "content": [{"type": "text", "text": text}],
                "isError": False,
                "timestamp": time,
            }
        usage = {"input": number % 9_000, "output": number % 700, "totalTokens": number % 9_700}
        return {
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": "bench",
            "usage": usage,
            "stopReason": "toolUse",
            "timestamp": time,
        }


def session_header() -> dict[str, Any]:
    """The header of a generated session."""
    return {"type": "session", "version": 3, "id": "bench", "cwd": "/bench"}


class Bench:
    """The temporary folder of one run, and the sessions that rows share in it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._sessions: dict[Shape, str] = {}
        self._made = 0

    def fresh(self, name: str) -> str:
        """A path that nobody has used yet."""
        self._made += 1
        return os.path.join(self.folder, f"{self._made}-{name}")

    def new_journal(self) -> tuple[Ownership, Tail]:
        """An empty journal, owned, for a writer."""
        store = Store.at(self.fresh("home"))
        return publish(store, "bench", iter((_header_record(),)), compression=True)

    def session(self, shape: Shape) -> str:
        """The path of a session of that shape, made when it is first asked for."""
        path = self._sessions.get(shape)
        if path is None:
            path = build_session(self.fresh("home"), shape)
            self._sessions[shape] = path
        return path


def _header_record() -> Record:
    return Record(Kind.SESSION, msgspec.json.encode(session_header()))


def build_session(home: str, shape: Shape) -> str:
    """Write a session of that shape below ``home``, as an import would, and let it go."""
    store = Store.at(home)
    records = Generator(shape).records()
    owner, _ = publish(store, "bench", records, compression=shape.compression)
    owner.release()
    return owner.path


def publish(
    store: Store, session_id: str, records: Iterator[Record], *, compression: bool
) -> tuple[Ownership, Tail]:
    """A journal of those records, published whole and still owned."""
    new = NewJournal(
        LOCAL_DISK,
        store.sessions,
        session_id,
        purpose="import",
        top=store.top,
        compression=compression,
    )
    try:
        new.add(records)
        return new.publish(store.journal_path(session_id))
    except BaseException:
        new.abandon()
        raise


def write_jsonl(path: str, shape: Shape) -> int:
    """The same entries as plain JSONL; returns its size."""
    make = Generator(shape)
    with open(path, "wb") as file:
        file.write(msgspec.json.encode(session_header()) + b"\n")
        for number in range(shape.entries):
            file.write(make.entry(number) + b"\n")
        return file.tell()
