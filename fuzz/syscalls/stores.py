"""The stores that flows begin with, made anew for each run, and what they hold."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from treering.engine import Session, delete_session

SESSION_ID: Final = "good"
SOURCE: Final = b"".join(
    json.dumps(value).encode() + b"\n"
    for value in (
        {"type": "session", "version": 3, "id": "src", "cwd": "/p"},
        *(
            {
                "type": "message",
                "id": f"i{n}",
                "parentId": f"i{n - 1}" if n else None,
                "message": {"role": "user", "content": "tree rings " * 10 * n},
            }
            for n in range(6)
        ),
    )
)
"""A version 3 file to import."""

LABEL: Final = "a label that is carried over"
ARTIFACT: Final = b"output of a tool"


class Place(NamedTuple):
    """The folder of one run. Only what is below ``root`` counts as the store's."""

    root: str

    @property
    def home(self) -> str:
        """The store."""
        return os.path.join(self.root, "home")

    @property
    def sessions(self) -> str:
        """The folder of the journals."""
        return os.path.join(self.home, "sessions")

    @property
    def journal(self) -> str:
        """The session that was there before."""
        return os.path.join(self.sessions, f"{SESSION_ID}.jsonl")

    @property
    def source(self) -> str:
        """What the import takes."""
        return os.path.join(self.root, "source.jsonl")

    @property
    def trash(self) -> str:
        """The folder of deleted sessions."""
        return os.path.join(self.home, "session-trash")

    @property
    def artifact(self) -> str:
        """A file of the session, beside its journal."""
        return os.path.join(self.home, "session-artifacts", SESSION_ID, "tool.log")

    @property
    def deleted_journal(self) -> str:
        """Where the journal is when it is deleted."""
        return os.path.join(self.trash, SESSION_ID, "journal.jsonl")

    @property
    def deleted_artifact(self) -> str:
        """Where that file is then."""
        return os.path.join(self.trash, SESSION_ID, "artifacts", "tool.log")

    @property
    def export(self) -> str:
        """What the export makes."""
        return os.path.join(self.root, "out.jsonl")


@dataclass
class Before:
    """What was acknowledged before the run."""

    journal: bytes
    raws: list[bytes]
    leaf: str | None
    case: str = "A"
    kept: int = 0
    """Bytes of the journal that must stay, whatever happens."""


def entry(entry_id: str, data: str = "") -> dict[str, Any]:
    """An entry of the store before the run."""
    return {
        "type": "custom",
        "customType": "store",
        "id": entry_id,
        "timestamp": "2024-12-03T14:00:00.000Z",
        "data": data,
    }


def _create(place: Place, **more: Any) -> Session:
    return Session.create(cwd="/w", home_dir=place.home, session_id=SESSION_ID, **more)


def content_of(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def good(place: Place) -> Before:
    """Three entries, closed, indexed."""
    with _create(place) as session:
        session.append_many([entry("e1"), entry("e2", "x" * 200), entry("e3")])
        return _seen(session)


def labelled(place: Place) -> Before:
    """The same, with a label between two entries."""
    with _create(place) as session:
        session.append_many([entry("e1"), entry("e2", "x" * 200)])
        session.set_label("e1", LABEL)
        session.append(entry("e3"))
        return _seen(session)


def with_artifact(place: Place) -> Before:
    """The same as :func:`good`, with a file of the session."""
    before = good(place)
    os.makedirs(os.path.dirname(place.artifact), mode=0o700)
    with open(place.artifact, "wb") as file:
        file.write(ARTIFACT)
    before.journal = content_of(place.journal)
    return before


def deleted(place: Place) -> Before:
    """That session, deleted."""
    before = with_artifact(place)
    delete_session(place.journal)
    return before


def _seen(session: Session) -> Before:
    return Before(b"", [found.raw for found in session.entries()], session.leaf_id)


def torn(place: Place) -> Before:
    """Half a frame behind a clean end."""
    before = good(place)
    before.kept = os.path.getsize(place.journal)
    frame = content_of(place.journal)[128:]
    with open(place.journal, "ab") as file:
        file.write(frame[:100])
    before.case = "E"
    return before


def uncertain(place: Place) -> Before:
    """Its owner died in the middle: no index, no clean end, frames that nothing proves durable."""
    with _dying(place) as session:
        session.append(entry("e1"))
        session.append_many([entry("e2", "x" * 200), entry("e3")])
        before = _seen(session)
    shutil.rmtree(os.path.join(place.home, "session-index"), ignore_errors=True)
    return before


class _dying:  # noqa: N801 (reads as what it is)
    """An owner in ``durability="os"`` that ends without closing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._copy = b""

    def __enter__(self) -> Session:
        self._session = _create(self._place, durability="os")
        return self._session

    def __exit__(self, *_: object) -> None:
        # What the dead would have left: the bytes before the clean end was written.
        data = content_of(self._place.journal)
        self._session.close()
        os.truncate(self._place.journal, len(data))


def damaged(place: Place) -> Before:
    """A byte of the first entry is wrong: case C."""
    before = good(place)
    data = bytearray(content_of(place.journal))
    at = data.index(b'"e1"')
    data[at] ^= 1
    with open(place.journal, "r+b") as file:
        file.write(data)
    shutil.rmtree(os.path.join(place.home, "session-index"), ignore_errors=True)
    before.case = "C"
    return before


def tail_in_quarantine(place: Place) -> Before:
    """A torn tail with a whole entry in it, cut off and kept."""
    with _dying(place) as session:
        session.append(entry("e1"))
        session.sync()
        session.append_many([{**entry(one), "parentId": "e1"} for one in ("lost", "found")])
    shutil.rmtree(os.path.join(place.home, "session-index"), ignore_errors=True)
    data = content_of(place.journal)
    with open(place.journal, "r+b") as file:
        file.seek(data.index(b'"lost"'))
        file.write(b'"lust"')
    with Session.open(place.journal) as session:
        return _seen(session)


def none(place: Place) -> Before:
    """An empty store."""
    os.makedirs(place.sessions, mode=0o700)
    return Before(b"", [], None)


def prepare(place: Place, make: Callable[[Place], Before]) -> Before:
    """Make the store of a run in an empty folder."""
    os.mkdir(place.root, 0o700)
    with open(place.source, "wb") as file:
        file.write(SOURCE)
    before = make(place)
    if os.path.exists(place.journal):
        before.journal = content_of(place.journal)
    before.kept = before.kept or len(before.journal)
    return before
