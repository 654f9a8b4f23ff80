"""Appending to a journal that this process owns.

Contract. ``append`` returns only after the frames are durable (``durability="full"``), or after
they are in the page cache (``"os"``; then a sync follows in the background). One call is one
write, one sync, many acknowledgements. A write that fails is cut off again, durably, before the
error is raised; when that cannot be done, or a sync fails, the outcome is unknown and the writer
is poisoned for good: no retry, no trust in the page cache.

Not relied on: that a failed sync can be repeated, that a size is durable with the data, that the
path still leads to the file that was opened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence

from treering.engine.errors import (
    FULL_ERRNOS,
    Invalid,
    LimitExceeded,
    OutcomeUnknown,
    Poisoned,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
    from_os_error,
)
from treering.engine.journal import control
from treering.engine.journal.admissible import Record, check_records
from treering.engine.journal.disk import cut_off, write_all
from treering.engine.journal.format import (
    DIGEST_BYTES,
    EPOCH_MAX,
    FILE_HEADER_BYTES,
    FLAG_STAGED,
    SEQUENCE_MAX,
    Frame,
    Kind,
    Watermark,
)
from treering.engine.journal.framing import Durability, FrameBuilder, State, epoch_open_payload
from treering.engine.journal.opening import Tail, rewrite_unproven
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.payload import COMPRESS_APPEND_FROM_BYTES
from treering.engine.limits import WRITE_BYTES_MAX


class JournalWriter:
    """The one writer of an owned journal. Its methods may be called from any thread."""

    def __init__(
        self,
        owner: Ownership,
        tail: Tail,
        *,
        durability: Durability = "full",
        compression: bool = True,
    ) -> None:
        self.owner = owner
        self.journal_id = tail.journal_id
        self.durability: Durability = durability
        self._path = owner.path
        self._file = owner.file
        self._builder = FrameBuilder(
            tail.journal_id, compress_from=COMPRESS_APPEND_FROM_BYTES if compression else None
        )
        self._tail: Tail | None = tail if tail.unproven is not None else None
        self._state = State(
            tail.place.offset,
            tail.place.sequence,
            tail.epoch,
            tail.last_revision,
            tail.place.sequence,
            0,
        )
        proven = tail.proven
        self._synced = (
            (0, FILE_HEADER_BYTES, bytes(DIGEST_BYTES))
            if proven is None
            else (proven.sequence + 1, proven.end, proven.revision)
        )
        self._epoch_is_open = False
        self._failure: str | None = None
        self._lock = threading.RLock()

    @property
    def size(self) -> int:
        """Length that is written; acknowledged, too, once the call that wrote it has returned."""
        return self._state.offset

    @property
    def next_sequence(self) -> int:
        """Sequence of the next frame."""
        return self._state.sequence

    @property
    def synced_size(self) -> int:
        """Length that a completed sync covers."""
        return self._synced[1]

    @property
    def synced_below(self) -> int:
        """Every sequence below is covered by a completed sync."""
        return self._synced[0]

    @property
    def dirty(self) -> bool:
        """Whether acknowledged frames wait for a sync (``durability="os"``)."""
        return self._synced[1] < self._state.offset

    @property
    def poisoned(self) -> str | None:
        """Why the writer refuses everything; None while it works."""
        return self._failure

    def watermark(self) -> Watermark | None:
        """The last frame that a completed sync covers; None while nothing is proven."""
        sequence, offset, revision = self._synced
        if sequence == 0:
            return None
        return Watermark(self.journal_id, sequence - 1, offset, revision)

    def encoded_watermark(self) -> bytes | None:
        """:meth:`watermark` as bytes."""
        mark = self.watermark()
        return None if mark is None else mark.encode()

    def append(self, records: Sequence[Record]) -> list[Frame]:
        """Append frames; they are acknowledged when this returns.

        Raises:
            StorageFull, StorageError: nothing of this call is in the journal.
            SourceChanged: the file was replaced or changed by somebody else; nothing was written.
            OutcomeUnknown: a sync failed or could not be undone; the writer is poisoned.
            Poisoned: it was poisoned before; nothing was written.
        """
        self.owner.check()  # before the lock: after a fork another thread may hold it for ever
        if not records:
            return []
        with self._lock:
            pieces, frames, state = self._prepare(records, extra_flags=0)
            self._commit(pieces, state)
            return frames[-len(records) :]

    def append_batch(self, records: Sequence[Record]) -> tuple[list[Frame], Frame]:
        """Append frames that become visible together, or not at all.

        Returns the frames and the EPOCH_ACTIVATE behind them. Raises as :meth:`append`.
        """
        self.owner.check()
        if not records:
            raise Invalid("an empty batch has nothing to activate", path=self._path)
        with self._lock:
            pieces, frames, state = self._prepare(records, extra_flags=FLAG_STAGED)
            staged = frames[-len(records) :]
            named = control.EpochActivate(
                staged[0].sequence, staged[-1].sequence, staged[-1].revision.hex()
            )
            activate = Record(Kind.EPOCH_ACTIVATE, control.encode(named))
            more, activated, state = self._builder.build([activate], state)
            self._commit(pieces + more, state)
            return staged, activated[0]

    def sync(self) -> None:
        """Make everything acknowledged durable (a no-op when it is).

        Raises:
            OutcomeUnknown: the sync failed; the writer is poisoned.
        """
        self.owner.check()
        with self._lock:
            self._check()
            if self._tail is not None:
                self._rewrite()
            if self.dirty:
                self._sync()

    def close(self, before_release: Callable[[], None] | None = None) -> None:
        """Write EPOCH_CLOSE if anything was written, and give the ownership back. Idempotent.

        ``before_release`` is called when everything is durable and the file is still owned.
        """
        if not self.owner.is_open:
            self.owner.release()
            return
        with self._lock:
            try:
                if self._epoch_is_open and self._failure is None:
                    self._close_epoch()
                if before_release is not None:
                    before_release()
            finally:
                self.owner.release()

    def _close_epoch(self) -> None:
        try:
            self._check_unchanged()
        except StorageError:
            # Nobody can say whether a clean end may be written behind what is there. It is not
            # needed, see below; what is acknowledged must not be called failed for it.
            if self.dirty:
                self._sync()
            return
        if self.dirty:
            self._sync()
        closed = control.EpochClose(
            self.journal_id.hex(), self._state.epoch, self._state.epoch_frames
        )
        record = Record(Kind.EPOCH_CLOSE, control.encode(closed))
        pieces, _, state = self._builder.build([record], self._state)
        try:
            self._write(pieces)
            self._state = state
            self._sync()
        except TreeringError:
            # Everything acknowledged is durable already. A missing or torn EPOCH_CLOSE costs the
            # next owner a look at the tail, and nobody an entry: no reason to call closing failed.
            return

    def _prepare(
        self, records: Sequence[Record], *, extra_flags: int
    ) -> tuple[list[bytes], list[Frame], State]:
        self._check()
        check_records(records, batch=bool(extra_flags))
        self._check_unchanged()
        self._check_ends(len(records))
        if self._epoch_is_open:
            return self._builder.build(records, self._state, extra_flags=extra_flags)
        if self._tail is not None:
            self._rewrite()
        payload = epoch_open_payload(self.journal_id, self._state.epoch, "append", self.durability)
        pieces, frames, state = self._builder.build([Record(Kind.EPOCH_OPEN, payload)], self._state)
        more, rest, state = self._builder.build(records, state, extra_flags=extra_flags)
        return pieces + more, frames + rest, state

    def _commit(self, pieces: list[bytes], state: State) -> None:
        try:
            self._write(pieces)
            self._state = state
            self._epoch_is_open = True
            if self.durability == "full":
                self._sync()
                self._check_after_sync()
        except TreeringError:
            raise  # each of them left the writer as it says
        except BaseException:
            # Ctrl-C or no memory between a write and its acknowledgement: nobody knows.
            self.poison("an append was interrupted")
            raise

    def _write(self, pieces: list[bytes]) -> None:
        """Write all pieces, in as few writes as allowed; on failure cut them off again."""
        offset = self._state.offset
        try:
            if len(pieces) == 1:
                write_all(self._file, pieces[0], offset)
                return
            for data in _joined(pieces):
                write_all(self._file, data, offset)
                offset += len(data)
        except OSError as error:
            self._cut_back(error)
            raise self._write_error(error) from error

    def _cut_back(self, cause: OSError) -> None:
        # The start of this call is never below the last synced byte: what an earlier call
        # acknowledged stays. The sync is part of the promise: a name for "not stored" must not
        # be followed by the frames coming back after a power cut.
        try:
            cut_off(self._file, self._state.offset)
        except OSError as error:
            self.poison(f"a write failed ({cause.strerror}) and could not be cut off again")
            raise self._unknown() from error
        self._note_synced()

    def _write_error(self, error: OSError) -> TreeringError:
        if error.errno in FULL_ERRNOS:
            return StorageFull(
                f"cannot append: {os.strerror(error.errno or 0)}; nothing was stored",
                path=self._path,
                next_step="free some space and append again",
            )
        return from_os_error(error, "append (nothing was stored)", self._path)

    def _sync(self) -> None:
        # A sync covers what was written before it started, whatever is written meanwhile.
        state = self._state
        try:
            self._file.fdatasync()
        except OSError as error:
            self.poison(f"a sync failed: {error.strerror or error}")
            raise self._unknown() from error
        self._note_synced(state)

    def _note_synced(self, state: State | None = None) -> None:
        state = state or self._state
        self._synced = (state.sequence, state.offset, state.revision)
        self._state = self._state._replace(synced_below=state.sequence)

    def _rewrite(self) -> None:
        assert self._tail is not None
        try:
            rewrite_unproven(self._file, self._path, self._tail)
        except (OSError, TreeringError) as error:
            self.poison(f"the last frames could not be written again: {error}")
            raise self._unknown() from error
        self._tail = None
        self._note_synced()

    def _check(self) -> None:
        self.owner.check()
        if self._failure is not None:
            raise Poisoned(
                f"the journal refuses writes since {self._failure}",
                path=self._path,
                next_step="recover the session, then look up the entries in question",
            )

    def _check_ends(self, count: int) -> None:
        if self._state.sequence + count + 2 > SEQUENCE_MAX:
            raise LimitExceeded(
                "the journal has no sequence numbers left", limit=SEQUENCE_MAX, path=self._path
            )
        if self._state.epoch > EPOCH_MAX:
            raise LimitExceeded(
                "the journal has no epoch numbers left", limit=EPOCH_MAX, path=self._path
            )

    def _check_unchanged(self) -> None:
        """Before a batch: same name, same size, same last bytes as we left them."""
        size = self.owner.check_name().size
        state = self._state
        try:
            last = self._file.pread(DIGEST_BYTES, state.offset - DIGEST_BYTES)
        except OSError as error:
            raise from_os_error(error, "look at the journal", self._path) from error
        if size != state.offset or last != state.revision:
            raise SourceChanged(
                f"somebody else changed the journal (size {size}, expected {state.offset});"
                " nothing was written",
                path=self._path,
                next_step="close the session and run fsck",
            )

    def _check_after_sync(self) -> None:
        try:
            size = self.owner.check_name().size
        except TreeringError as error:
            self.poison(f"the journal was replaced or removed: {error}")
            raise self._unknown() from error
        if size != self._state.offset:
            self.poison(f"somebody else changed the journal (size {size})")
            raise self._unknown()

    def poison(self, why: str) -> None:
        """Refuse everything from now on: the journal and what its caller knows may differ."""
        self._failure = why

    def _unknown(self) -> OutcomeUnknown:
        relaxed = self.durability == "os"
        doubtful = "all appends since the last sync" if relaxed else "the last append"
        return OutcomeUnknown(
            f"the outcome of {doubtful} is unknown: {self._failure}",
            path=self._path,
            next_step="recover the session, then look up the entries in question",
        )


def _joined(pieces: list[bytes]) -> Iterable[bytes]:
    """The pieces in writes of at most 8 MiB (or one frame, if that is larger)."""
    group: list[bytes] = []
    total = 0
    for piece in pieces:
        if total + len(piece) > WRITE_BYTES_MAX and group:
            yield b"".join(group)
            group, total = [], 0
        group.append(piece)
        total += len(piece)
    yield b"".join(group)
