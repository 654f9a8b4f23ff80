"""Flows with frames that no session appends yet: dictionaries, blobs and what is spliced of them.

The format knows them; until the engine appends them, a writer of frames stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from treering.engine.errors import from_os_error
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import write_all
from treering.engine.journal.format import CODEC_RAW, Kind, encode_frame, salt_of
from treering.engine.journal.framing import FrameBuilder, State, epoch_open_payload
from treering.engine.journal.opening import Opened, rewrite_unproven
from treering.engine.journal.payload import Dictionary, encode_splice
from treering.fuzz.explorer import Flow
from treering.fuzz.flows.world import ADVISORY, SessionCheck, entry, make_session, open_journal
from treering.fuzz.ledger import Ledger

_SPLICED: Final = 0x80
_SHARED: Final = bytes(range(65, 91)) * 40


class FrameWriter:
    """Writes frames of any kind and codec behind an opened journal, one write and sync a call."""

    def __init__(self, opened: Opened) -> None:
        tail = opened.tail
        self._file = opened.owner.file
        self._salt = salt_of(tail.journal_id)
        self._state = State(
            tail.place.offset,
            tail.place.sequence,
            tail.epoch,
            tail.last_revision,
            tail.place.sequence,
            0,
        )
        self._path = opened.owner.path
        try:
            rewrite_unproven(self._file, self._path, tail)
        except OSError as error:
            raise from_os_error(error, "write the last frames again", self._path) from error
        builder = FrameBuilder(tail.journal_id, compress_from=None)
        payload = epoch_open_payload(tail.journal_id, tail.epoch, "append", "full")
        pieces, _, self._state = builder.build([Record(Kind.EPOCH_OPEN, payload)], self._state)
        self._waiting = pieces

    @property
    def next_sequence(self) -> int:
        """Sequence of the next frame."""
        return self._state.sequence

    def add(self, kind: int, stored: bytes, *, codec: int = CODEC_RAW, raw: int = -1) -> int:
        """A frame for the next write; returns its sequence."""
        offset, sequence, epoch, revision, synced_below, frames = self._state
        data, revision = encode_frame(
            kind,
            codec,
            0,
            stored,
            len(stored) if raw < 0 else raw,
            sequence,
            epoch,
            sequence - synced_below,
            revision[:8],
            self._salt,
        )
        self._waiting.append(data)
        offset += len(data)
        self._state = State(offset, sequence + 1, epoch, revision, synced_below, frames + 1)
        return sequence

    def write(self) -> None:
        """One write and one sync."""
        data = b"".join(self._waiting)
        self._waiting = []
        try:
            write_all(self._file, data, self._state.offset - len(data))
            self._file.fdatasync()
        except OSError as error:
            raise from_os_error(error, "write frames by hand", self._path) from error
        self._state = self._state._replace(synced_below=self._state.sequence)


def blobs(disk: Any, ledger: Ledger, _: object) -> None:
    """A blob, and entries that share its bytes."""
    opened, _items = open_journal(disk)
    writer = FrameWriter(opened)
    blob = writer.add(Kind.BLOB, _SHARED)
    writer.write()
    for name in ("x", "y"):
        text = entry(name)
        middle = len(text) - 2
        decoded = encode_splice(text, [(middle, blob, 400, 65), (middle, blob, 300, 97)])
        whole = text[:middle] + _SHARED[65:465] + _SHARED[97:397] + text[middle:]
        with ledger.attempt(whole):
            writer.add(Kind.ENTRY, decoded, codec=_SPLICED | CODEC_RAW, raw=len(whole))
            writer.write()
    opened.owner.release()


def dictionary(disk: Any, ledger: Ledger, _: object) -> None:
    """A dictionary, an entry that needs it, and its second copy."""
    trained = Dictionary.train([entry(f"s{n}", f"sample {n} " * 20) for n in range(400)])
    assert trained is not None
    opened, _items = open_journal(disk)
    writer = FrameWriter(opened)
    writer.add(Kind.DICTIONARY, trained.payload)
    writer.write()
    for name in ("x", "y"):
        raw = entry(name, "sample 7 " * 30)
        codec, stored = trained.compress(raw)
        with ledger.attempt(raw):
            writer.add(Kind.ENTRY, stored, codec=codec, raw=len(raw))
            writer.write()
    writer.add(Kind.DICTIONARY, trained.payload)
    writer.write()
    opened.owner.release()


def handmade_flows() -> Iterator[Flow]:
    """All of them."""
    for run in (blobs, dictionary):
        yield Flow(run.__name__, make_session, run, SessionCheck(), ADVISORY)
