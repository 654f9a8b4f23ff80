"""Frames that other frames need for decoding (DICTIONARY, BLOB), found when asked for."""

from __future__ import annotations

from treering.engine.errors import Damaged, Undecodable
from treering.engine.journal.format import (
    FRAME_HEADER_BYTES,
    SEQUENCE_MAX,
    Frame,
    Kind,
    misunderstood,
    salt_of,
)
from treering.engine.journal.payload import PayloadDecoder, dictionary_id
from treering.engine.journal.reader import Bytes, Place, Scan, read_frame


class SharedFrames:
    """The directory of one journal's dictionaries and blobs, and the decoder that uses it.

    It fills itself by a verified scan the first time that something unknown is asked for, so that
    a journal without shared frames never pays for it.
    """

    def __init__(self, source: Bytes, journal_id: bytes) -> None:
        self._source = source
        self._salt = salt_of(journal_id)
        self._scanned = Place.start()
        self._dictionaries: dict[int, dict[int, Frame]] = {}
        self._blobs: dict[int, Frame] = {}
        self.decoder = PayloadDecoder(self._fetch_dictionary, self._fetch_blob)

    def note_blob(self, frame: Frame) -> None:
        """Remember a BLOB, unless it breaks a rule (spliced, staged, too large)."""
        if misunderstood(frame) is None:
            self._blobs[frame.sequence] = frame

    def note_dictionary(self, frame: Frame, payload: bytes) -> str | None:
        """Remember a DICTIONARY; why it breaks a rule, if it does."""
        why = misunderstood(frame)
        if why is not None:
            return why
        number = dictionary_id(payload)
        if number == 0:
            return "DICTIONARY without an id"
        copies = self._dictionaries.setdefault(number, {})
        # Equality is transitive: one comparison, with the first copy.
        first = next(iter(copies.values()), None)
        if first is not None and first.sequence != frame.sequence:
            if self.payload_of(first) != payload:
                return f"DICTIONARY {number} with other bytes than before"
        copies[frame.sequence] = frame
        return None

    def payload_of(self, frame: Frame) -> bytes:
        """The decoded payload of a frame whose header is known.

        Raises:
            Damaged: the frame does not verify any more.
            Undecodable: its payload cannot be produced.
        """
        length = frame.end - frame.offset
        _, stored = read_frame(self._source, self._salt, frame.offset, length, frame.revision)
        return self.decoder.decode(frame, stored)

    def _scan_to(self, before: int) -> None:
        scan = Scan(self._source, self._salt, self._scanned)
        for frame, body in scan.frames():
            if frame.sequence >= before:
                return
            self._scanned = Place.behind(frame)
            if frame.kind == Kind.BLOB:
                self.note_blob(frame)
            elif frame.kind == Kind.DICTIONARY and misunderstood(frame) is None:
                try:
                    payload = self.decoder.decode(frame, body[FRAME_HEADER_BYTES:])
                    self.note_dictionary(frame, payload)
                except Undecodable:
                    continue  # one that is lost must not take a good one along

    def _fetch_dictionary(self, number: int) -> bytes:
        """Any copy serves, also one that comes later: that is what the second copy is for."""
        if number not in self._dictionaries:
            self._scan_to(SEQUENCE_MAX)
        for frame in self._dictionaries.get(number, {}).values():
            try:
                return self.payload_of(frame)
            except (Damaged, Undecodable):
                continue  # another copy may do
        raise Undecodable(f"DICTIONARY {number} is not there", path=self._source.path)

    def _fetch_blob(self, sequence: int, before: int) -> bytes:
        if sequence < before and sequence not in self._blobs:
            self._scan_to(before)
        frame = self._blobs.get(sequence)
        if frame is None or sequence >= before:
            raise Undecodable(f"BLOB {sequence} is not there", path=self._source.path)
        return self.payload_of(frame)
