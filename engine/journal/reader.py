"""Reading frames: a verified sequential scan, a search behind damage, one frame by its offset.

The scan reads chunks with ``pread`` (faster than mmap in CPython, and a file that shrinks under
us gives an error instead of a signal). Nothing here repairs, and nothing here guesses: a scan
stops at the first byte that is not what must come next and says why; it never just ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from treering.engine import commands
from treering.engine.errors import Damaged, LimitExceeded, SourceChanged, from_os_error
from treering.engine.journal.disk import File
from treering.engine.journal.format import (
    DIGEST_BYTES,
    ENVELOPE_BYTES,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    Frame,
    Kind,
    digest_of,
    header_check_of,
    header_seed_of,
    unpack_frame_header,
)
from treering.engine.limits import PAYLOAD_BYTES_MAX, SCAN_CHUNK_BYTES, SEARCH_HASH_FACTOR


class Bytes(Protocol):
    """Random access to the captured bytes of one file."""

    path: str

    @property
    def size(self) -> int:
        """Captured size."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes, fewer only at the captured end."""
        ...


class FileBytes:
    """An open file up to a captured size; what is behind that size is never looked at."""

    def __init__(self, file: File, path: str, size: int) -> None:
        self._file = file
        self.path = path
        self._size = size

    @property
    def size(self) -> int:
        """Captured size."""
        return self._size

    def captured(self, size: int) -> FileBytes:
        """The same file up to another captured size."""
        return FileBytes(self._file, self.path, size)

    def read_at(self, offset: int, length: int) -> bytes:
        """See :class:`Bytes`. A read error is an error of the machine, never damage."""
        length = min(length, self.size - offset)
        if length <= 0 or offset < 0:
            return b""
        try:
            data = self._file.pread(length, offset)
        except OSError as error:
            raise from_os_error(
                error, f"read {length} bytes at offset {offset}", self.path
            ) from error
        if len(data) < length:
            raise SourceChanged(
                f"the file shrank below {self.size} bytes while it was read",
                path=self.path,
                offset=offset + len(data),
            )
        return data


class GrowingBytes(FileBytes):
    """A file that its owner appends to: the size is always what the writer has written."""

    def __init__(self, file: File, path: str, size_of: Callable[[], int]) -> None:
        super().__init__(file, path, 0)
        self._size_of = size_of

    @property
    def size(self) -> int:
        """Bytes that may be read now."""
        return self._size_of()


class Place(NamedTuple):
    """Where a scan stands: everything that the next frame must fit to."""

    offset: int
    sequence: int
    epoch: int
    previous: bytes

    @classmethod
    def start(cls) -> Place:
        """Directly behind the file header."""
        return cls(FILE_HEADER_BYTES, 0, 0, bytes(8))

    @classmethod
    def behind(cls, frame: Frame) -> Place:
        """Directly behind a verified frame."""
        return cls(frame.end, frame.sequence + 1, frame.epoch, frame.revision[:8])


@dataclass(frozen=True)
class Stop:
    """Why a scan ended. ``reason`` is None at an end of file exactly after a frame."""

    place: Place
    reason: str | None


class Scan:
    """One sequential pass over the frames of a journal.

    Iterate :meth:`frames`; afterwards :attr:`stop` says where and why it ended.
    """

    def __init__(
        self,
        source: Bytes,
        salt: int,
        place: Place | None = None,
        *,
        chunk_bytes: int = SCAN_CHUNK_BYTES,
    ) -> None:
        self._source = source
        self._salt = salt
        self._place = place or Place.start()
        self._chunk_bytes = chunk_bytes
        self.stop: Stop | None = None

    def frames(self) -> Iterator[tuple[Frame, bytes]]:
        """Verified frames in order, each with its header and payload bytes (``body``).

        The payload as stored is ``body[44:]``. One frame is in memory besides one chunk.
        """
        # This is the hot loop of opening, checking and indexing (see tests/test_tidy.py): names
        # are local, and the frame is built only after everything about it holds.
        source, salt, seed = self._source, self._salt, header_seed_of(self._salt)
        offset, sequence, epoch, previous = self._place
        size = source.size
        buffer, base = b"", offset
        reason: str | None = None
        new = tuple.__new__
        while True:
            at = offset - base
            if len(buffer) - at < ENVELOPE_BYTES:
                if size - offset < ENVELOPE_BYTES:
                    reason = None if offset == size else "cut short"
                    break
                buffer, base = source.read_at(offset, self._chunk_bytes), offset
                at = 0
            (
                magic,
                kind,
                codec,
                flags,
                stored,
                raw,
                found_sequence,
                found_epoch,
                unsynced,
                found_previous,
                check,
            ) = unpack_frame_header(buffer, at)
            if magic != FRAME_MAGIC:
                reason = "no frame magic"
                break
            if check != header_check_of(buffer[at : at + 40], seed):
                reason = "header check"
                break
            if stored > PAYLOAD_BYTES_MAX:
                reason = f"stored length {stored}"
                break
            end = at + FRAME_HEADER_BYTES + stored
            if len(buffer) < end + DIGEST_BYTES:
                if offset + ENVELOPE_BYTES + stored > size:
                    reason = "cut short"
                    break
                wanted = max(self._chunk_bytes, ENVELOPE_BYTES + stored)
                buffer, base = source.read_at(offset, wanted), offset
                at, end = 0, FRAME_HEADER_BYTES + stored
            body = buffer[at:end]
            revision = digest_of(body, salt)
            if buffer[end : end + DIGEST_BYTES] != revision:
                reason = "digest"
                break
            if found_sequence != sequence:
                reason = f"sequence {found_sequence} instead of {sequence}"
                break
            if found_previous != previous:
                reason = "digest of the previous frame"
                break
            if found_epoch != epoch and not (found_epoch > epoch and kind == Kind.EPOCH_OPEN):
                reason = f"epoch {found_epoch} after {epoch}"
                break
            yield (
                new(
                    Frame,
                    (
                        offset,
                        kind,
                        codec,
                        flags,
                        stored,
                        raw,
                        sequence,
                        found_epoch,
                        unsynced,
                        previous,
                        revision,
                    ),
                ),
                body,
            )
            epoch = found_epoch
            previous = revision[:8]
            sequence += 1
            offset += ENVELOPE_BYTES + stored
        self.stop = Stop(Place(offset, sequence, epoch, previous), reason)


def frame_at(source: Bytes, salt: int, offset: int) -> tuple[Frame, bytes] | None:
    """The frame at ``offset`` with its body when it verifies by itself, else None.

    Says nothing about the frame's place in the history: compare sequence and revision.
    """
    header = source.read_at(offset, FRAME_HEADER_BYTES)
    if len(header) < FRAME_HEADER_BYTES:
        return None
    stored = _checked_stored_length(header, salt)
    if stored is None or offset + ENVELOPE_BYTES + stored > source.size:
        return None
    data = header + source.read_at(offset + FRAME_HEADER_BYTES, stored + DIGEST_BYTES)
    return whole_frame(data, offset, salt)


def whole_frame(data: bytes, offset: int, salt: int) -> tuple[Frame, bytes] | None:
    """The frame that ``data`` is exactly, when header check and digest hold; else None."""
    if len(data) < ENVELOPE_BYTES:
        return None
    stored = _checked_stored_length(data[:FRAME_HEADER_BYTES], salt)
    if stored is None or len(data) != ENVELOPE_BYTES + stored:
        return None
    body = data[:-DIGEST_BYTES]
    revision = digest_of(body, salt)
    if revision != data[-DIGEST_BYTES:]:
        return None
    (_, kind, codec, flags, stored, raw, sequence, epoch, unsynced, previous, _) = (
        unpack_frame_header(body)
    )
    frame = Frame(
        offset, kind, codec, flags, stored, raw, sequence, epoch, unsynced, previous, revision
    )
    return frame, body


def _checked_stored_length(header: bytes, salt: int) -> int | None:
    fields = unpack_frame_header(header)
    if fields[0] != FRAME_MAGIC or fields[10] != header_check_of(header[:40], header_seed_of(salt)):
        return None
    stored: int = fields[4]
    return stored if stored <= PAYLOAD_BYTES_MAX else None


def read_frame(
    source: Bytes, salt: int, offset: int, length: int, revision: bytes
) -> tuple[Frame, bytes]:
    """The frame that an index row points at, verified; with its payload as stored.

    Raises:
        Damaged: the bytes there are not that frame any more.
    """
    found = whole_frame(source.read_at(offset, length), offset, salt)
    if found is None or found[0].revision != revision:
        raise Damaged(
            "the frame does not verify any more",
            path=source.path,
            offset=offset,
            next_step=f"next: {commands.checking(source.path)}",
        )
    return found[0], found[1][FRAME_HEADER_BYTES:]


def search(
    source: Bytes, salt: int, start: int, sequence_min: int, *, budget: HashBudget | None = None
) -> Iterator[Frame]:
    """Frames at or behind ``start`` that verify by themselves, with a sequence not below the least.

    Found frames do not overlap. Frames with a lower sequence (an old generation, a frame inside a
    payload) are skipped byte by byte.

    Raises:
        LimitExceeded: hostile headers made the search hash more than 8 times the file.
    """
    budget = budget or HashBudget(source)
    for offset in _checked_headers(source, salt, start):
        if offset < start:
            continue
        found = _found_at(source, salt, offset, budget)
        if found is not None and found.sequence >= sequence_min:
            yield found
            start = found.end


class HashBudget:
    """How many bytes searches over one file may still hash."""

    def __init__(self, source: Bytes) -> None:
        self._path = source.path
        self.limit: Final = SEARCH_HASH_FACTOR * max(source.size, 4096)
        self._spent = 0

    def spend(self, count: int, offset: int) -> None:
        """Account for hashing ``count`` bytes at ``offset``."""
        self._spent += count
        if self._spent > self.limit:
            raise LimitExceeded(
                f"the search for frames would hash more than {self.limit} bytes",
                limit=self.limit,
                path=self._path,
                offset=offset,
            )


def _found_at(source: Bytes, salt: int, offset: int, budget: HashBudget) -> Frame | None:
    """The frame whose header stands whole at ``offset``."""
    stored = _checked_stored_length(source.read_at(offset, FRAME_HEADER_BYTES), salt)
    if stored is None or offset + ENVELOPE_BYTES + stored > source.size:
        return None
    budget.spend(ENVELOPE_BYTES + stored, offset)
    found = whole_frame(source.read_at(offset, ENVELOPE_BYTES + stored), offset, salt)
    return None if found is None else found[0]


def _checked_headers(source: Bytes, salt: int, start: int) -> Iterator[int]:
    """Every place at or behind ``start`` where a frame header with a right header check stands."""
    overlap = FRAME_HEADER_BYTES - 1
    while source.size - start >= FRAME_HEADER_BYTES:
        chunk = source.read_at(start, SCAN_CHUNK_BYTES)
        at = chunk.find(FRAME_MAGIC)
        while 0 <= at <= len(chunk) - FRAME_HEADER_BYTES:
            if _checked_stored_length(chunk[at : at + FRAME_HEADER_BYTES], salt) is not None:
                yield start + at
            at = chunk.find(FRAME_MAGIC, at + 1)
        start += len(chunk) - overlap


def magic_offsets(source: Bytes, start: int) -> Iterator[int]:
    """Every place of the frame magic at or behind ``start``, in chunks that overlap by 3 bytes."""
    overlap = len(FRAME_MAGIC) - 1
    while start < source.size:
        chunk = source.read_at(start, SCAN_CHUNK_BYTES)
        at = chunk.find(FRAME_MAGIC)
        while at >= 0:
            yield start + at
            at = chunk.find(FRAME_MAGIC, at + 1)
        if len(chunk) <= overlap:
            return
        start += len(chunk) - overlap
