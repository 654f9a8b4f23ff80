"""Reading journals for a search: everything behind what was fed, and single frames again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from treering.engine.errors import Damaged, NotAJournal, Undecodable, from_os_error
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Frame,
    Kind,
    decode_file_header,
    salt_of,
)
from treering.engine.journal.history import Walk
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import FileBytes, frame_at
from treering.engine.journal.shared import SharedFrames
from treering.engine.search.texts import Said, said, short
from treering.engine.session.entries import decode_header
from treering.engine.session.filling import position_of
from treering.engine.transfer.depth import read_header
from treering.index import Position
from treering.index.search_rows import Fed, Feed, Field, Hit, Text, digest_of

SLICE_TEXTS: Final = 5_000
SLICE_CHARS: Final = 8 * 1024 * 1024
"""Texts of one transaction: they are held in memory, and the lock for their time."""

_HARMLESS: Final = "cut short"
"""Why a scan ends at a torn tail, or at what an owner is writing now."""


class Journal:
    """An open journal, read only."""

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            NotAJournal, NotFound, StorageError, Unsupported: it cannot be read.
        """
        self.path = path
        self._file = open_regular(LOCAL_DISK, path, write=False)
        try:
            size = self._file.stat().size
            self.source = FileBytes(self._file, path, size)
            header = decode_file_header(self.source.read_at(0, FILE_HEADER_BYTES), path)
            if header is None:
                raise NotAJournal("no journal header that verifies", path=path)
            self.journal_id = header.journal_id
            self.shared = SharedFrames(self.source, self.journal_id)
        except OSError as error:
            self._file.close()
            raise from_os_error(error, "look at the session", path) from error
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def frame_of(self, position: Position) -> Frame | None:
        """The frame of a position; None when it is not of this journal."""
        found = frame_at(self.source, salt_of(self.journal_id), position.offset)
        if found is None or found[0].revision != position.revision:
            return None
        return found[0] if found[0].sequence == position.sequence else None

    def said_at(self, hit: Hit) -> Said | None:
        """What the entry of a hit says; None when that is not there any more as it was fed."""
        found = frame_at(self.source, salt_of(self.journal_id), hit.offset)
        if found is None or found[0].sequence != hit.sequence:
            return None
        raw = self.payload(found[0], found[1][FRAME_HEADER_BYTES:])
        what = None if raw is None else said(raw)
        return what if what is not None and digest_of(what.text) == hit.digest else None

    def payload(self, frame: Frame, stored: bytes) -> bytes | None:
        """The payload of a verified frame; None when it is lost."""
        if not frame.codec:
            return stored
        try:
            return self.shared.decoder.decode(frame, stored)
        except (Undecodable, Damaged):
            return None


@dataclass
class Slice:
    """A part of a session's texts. ``anew``: what was fed of it before must go first."""

    feed: Feed
    expected: Position | None
    anew: bool
    inode: int
    chars: int


class _Pending:
    def __init__(self) -> None:
        self.texts: list[Text] = []
        self.fields: dict[tuple[str, int], Field] = {}
        self.chars = 0

    def note(self, frame: Frame, what: Said) -> None:
        if what.text:
            self.texts.append(
                Text(frame.sequence, frame.offset, what.kind, what.role, what.time_ms, what.text)
            )
            self.chars += len(what.text)
            if what.role == "user" and ("first", 0) not in self.fields:
                self.fields["first", 0] = Field("first", 0, short(what.text), keep=True)
        if what.name is not None:
            self.fields["name", 0] = Field("name", 0, short(what.name))
        if what.label is not None:
            target, label = what.label
            self.fields["label", target] = Field("label", target, label)

    @property
    def is_full(self) -> bool:
        return len(self.texts) >= SLICE_TEXTS or self.chars >= SLICE_CHARS


def slices(path: str, session_id: str, fed: Fed | None, stamp: bytes) -> Iterator[Slice]:
    """What is to be fed of a session whose stamp has changed; at least one slice.

    Raises:
        TreeringError: the journal cannot be read.
    """
    header = decode_header(read_header(path) or b"")
    cwd = None if header is None else header.cwd
    journal = Journal(path)
    try:
        behind = None
        if fed is not None and fed.position and fed.journal_id == journal.journal_id:
            behind = journal.frame_of(fed.position)
        anew = behind is None and fed is not None
        expected = None if fed is None else fed.position
        inode = os.stat(path).st_ino
        walk = Walk(journal.source, journal.journal_id, behind=behind, shared=journal.shared)
        pending = _Pending()
        if behind is None:
            places = " ".join(filter(None, (cwd, path)))
            pending.fields["path", 0] = Field("path", 0, short(places))
        for frame, stored in walk.visible():
            if frame.kind == Kind.ENTRY:
                raw = journal.payload(frame, stored)
                what = None if raw is None else said(raw)
                if what is not None:
                    pending.note(frame, what)
            settled = walk.history.settled
            if settled is frame and pending.is_full:
                at = position_of(frame)
                yield _slice(
                    journal, session_id, at, pending, (b"", cwd, None), expected, anew, inode
                )
                expected, anew, pending = at, False, _Pending()
        settled = walk.history.settled
        at_end = None if settled is None else position_of(settled)
        stop = walk.scan.stop
        trouble = None
        if stop is not None and stop.reason not in (None, _HARMLESS):
            trouble = f"not read beyond offset {stop.place.offset}: {stop.reason}"
        state = (stamp, cwd, trouble)
        yield _slice(journal, session_id, at_end, pending, state, expected, anew, inode)
    except OSError as error:
        raise from_os_error(error, "look at the session", path) from error
    finally:
        journal.close()


def _slice(
    journal: Journal,
    session_id: str,
    position: Position | None,
    pending: _Pending,
    state: tuple[bytes, str | None, str | None],
    expected: Position | None,
    anew: bool,  # noqa: FBT001
    inode: int,
) -> Slice:
    fields = tuple(pending.fields.values())
    feed = Feed(session_id, journal.journal_id, position, *state, pending.texts, fields)
    return Slice(feed, expected, anew, inode, pending.chars)
