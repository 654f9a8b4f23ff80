"""Further known faults: those that show only to a second owner, in the cache, or in an index.

Most of them need the process to end while the machine goes on, or a sync that fails at opening.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import xxhash

from treering.engine.journal import control, opening, publish, recovery, writer
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import sync_folders, write_all
from treering.engine.journal.format import Kind, Watermark
from treering.engine.journal.ownership import Ownership
from treering.engine.session import resuming, session
from treering.engine.session.indexing import Indexer
from treering.engine.transfer import importing
from treering.fuzz.planted import FAULTS, Fault, all_of, fault, make_folders_unsynced
from treering.index import schema

KNOWN_FAULTS: Final[dict[str, Fault]] = FAULTS
"""All of them, those of :mod:`~treering.fuzz.planted` included."""

# Acknowledging


@fault("relaxed+kill")
def relaxed_append_buffered() -> Any:
    """In ``os`` durability an append stays in the process until the next sync."""
    sync, held = writer.JournalWriter._sync, "_held"

    def lazy(self: Any, pieces: list[bytes], state: Any) -> None:
        if self.durability == "full":
            self._write(pieces)
        else:
            offset = self._state.offset
            self.__dict__.setdefault(held, []).append((offset, b"".join(pieces)))
        self._state = state
        self._epoch_is_open = True
        if self.durability == "full":
            sync(self)

    def flush(self: Any) -> None:
        for offset, data in self.__dict__.pop(held, []):
            write_all(self._file, data, offset)
        sync(self)

    return all_of(
        mock.patch.object(writer.JournalWriter, "_commit", lazy),
        mock.patch.object(writer.JournalWriter, "_sync", flush),
        mock.patch.object(writer.JournalWriter, "_check_unchanged", return_value=None),
    )


@fault("relaxed")
def end_claims_what_it_does_not_know() -> Any:
    """EPOCH_CLOSE says that all before it is durable, and one sync covers both."""

    def close(self: Any) -> None:
        self._note_synced()
        closed = control.EpochClose(
            self.journal_id.hex(), self._state.epoch, self._state.epoch_frames
        )
        record = Record(Kind.EPOCH_CLOSE, control.encode(closed))
        pieces, _, state = self._builder.build([record], self._state)
        self._write(pieces)
        self._state = state
        self._sync()

    return mock.patch.object(writer.JournalWriter, "_close_epoch", close)


@fault("no-space:*:unsynced")
def cut_of_failed_write_too_far() -> Any:
    """A failed write is cut off at the last synced byte: what was acknowledged since goes along."""

    def cut(self: Any, cause: OSError) -> None:
        del cause
        self._file.truncate(self._synced[1])
        self._file.fdatasync()
        self._note_synced()

    return mock.patch.object(writer.JournalWriter, "_cut_back", cut)


def _cut_unwiped(file: Any, size: int) -> None:
    file.truncate(size)
    file.fdatasync()


@fault("retried:*")
def failed_write_not_wiped() -> Any:
    """A failed write is cut off, and what it left on the device can show again."""
    return mock.patch.object(writer, "cut_off", _cut_unwiped)


@fault("retried:*")
def failed_write_wiped_in_the_cache() -> Any:
    """A failed write is wiped and cut off before the wiping has reached the device."""

    def hasty(file: Any, size: int) -> None:
        write_all(file, bytes(file.stat().size - size), size)
        _cut_unwiped(file, size)

    return mock.patch.object(writer, "cut_off", hasty)


@fault("recover-straddling")
def torn_tail_not_wiped() -> Any:
    """A torn tail is cut off, and what it left on the device can show again."""
    return mock.patch.object(opening, "cut_off", _cut_unwiped)


@fault("failed-sync:*")
def not_poisoned() -> Any:
    """After a failed sync the writer goes on."""
    return mock.patch.object(writer.JournalWriter, "poison", return_value=None)


# Publishing


@fault("create", "import")
def folders_above_not_synced() -> Any:
    """Of a new journal only its own folder is synced, not those above that were made for it."""

    def one(disk: Any, path: str, top: str) -> None:
        del top
        disk.sync_folder(path)

    return all_of(
        mock.patch.object(publish, "sync_folders", one),
        mock.patch.object(publish, "make_folders", make_folders_unsynced),
    )


@fault("import-salvage")
def left_out_cut_short() -> Any:
    """What an import leaves out is kept in part."""

    def part(file: Any, data: bytes, offset: int) -> None:
        write_all(file, data[:3], offset)

    return mock.patch.object(importing, "write_all", part)


@fault("repair-*-unsynced")
def bytes_kept_aside_not_synced() -> Any:
    """A damaged journal is put aside as the cache shows it, which nobody has synced."""
    acquire = Ownership.acquire

    def unsynced(disk: Any, path: str, note_path: str | None = None) -> Any:
        owner = acquire(disk, path, note_path)
        owner.file.fsync = lambda: None  # type: ignore[method-assign]
        return owner

    return mock.patch.object(Ownership, "acquire", unsynced)


# Opening


@fault("killed:create:1[4-9]")
def found_name_taken_for_durable() -> Any:
    """Opening does not sync the folder: whoever made the journal will have done that."""

    def selective(disk: Any, path: str, top: str) -> None:
        if "quarantine" in path:
            sync_folders(disk, path, top)

    return mock.patch.object(opening, "sync_folders", selective)


@fault("failed-opening:[12]:*")
def sync_taken_for_proof() -> Any:
    """Opening syncs the file, and takes everything that it reads for durable."""
    tail_of = opening._tail_of

    def proven(found: Any) -> Any:
        return replace(tail_of(found), proven=found.walk.history.last)

    return mock.patch.object(opening, "_tail_of", proven)


@fault("failed-opening:[12]:*")
def cut_taken_for_proof() -> Any:
    """The sync of a cut counts for the frames before it, which were not written again."""
    return mock.patch.object(opening, "rewrite_unproven", return_value=None)


@fault("killed:recover:1[6-9]")
def copy_taken_for_durable() -> Any:
    """A whole copy in quarantine is not written and synced again: an earlier opening made it."""
    copy_out = opening._copy_out

    def trusting(disk: Any, file: Any, start: int, end: int, folder: str, top: str) -> str:
        digest = xxhash.xxh3_64(file.pread(end - start, start)).hexdigest()
        target = os.path.join(folder, f"{start}-{digest}.tail")
        try:
            if opening._is_copy(disk, target, end - start, digest):
                return target
        except FileNotFoundError:
            pass
        return copy_out(disk, file, start, end, folder, top)

    return mock.patch.object(opening, "_copy_out", trusting)


@fault("recover:append:[0-3]")
def copy_overwritten() -> Any:
    """The quarantine has one file for each offset: the next tail there replaces the last."""

    def replacing(disk: Any, file: Any, start: int, end: int, folder: str, top: str) -> str:
        target = os.path.join(folder, f"{start}.tail")
        try:
            copy = disk.create(target)
        except FileExistsError:
            copy = disk.open(target, write=True)
        write_all(copy, file.pread(end - start, start), 0)
        copy.truncate(end - start)
        copy.fsync()
        copy.close()
        sync_folders(disk, folder, top)
        return target

    return mock.patch.object(opening, "_copy_out", replacing)


@fault("append")
def epoch_used_twice() -> Any:
    """The epochs of frames that are cut off are forgotten."""
    search_beyond = recovery._search_beyond

    def forgetful(found: Any, *rest: Any) -> None:
        epoch = found.epoch_max
        search_beyond(found, *rest)
        found.epoch_max = epoch

    return mock.patch.object(recovery, "_search_beyond", forgetful)


@fault("readmit")
def readmitted_in_parts() -> Any:
    """Entries are taken back one after the other."""
    store_plan = session.Session.store_plan

    def plainly(self: Any, plan: Any, *, atomic: bool) -> None:
        del atomic
        store_plan(self, plan, atomic=False)

    return mock.patch.object(session.Session, "store_plan", plainly)


# Indexing


@fault("index-catch-up")
def index_position_trusted() -> Any:
    """The current position is the one that the index knows, however far it lags behind."""

    def early(self: Any, opened: Any) -> None:
        self._ambiguous_ids = False
        indexer = self._indexer
        if indexer._index is None:
            self._leaf_id = resuming.leaf_at_opening(self, opened.examination)
            return
        with mock.patch.object(Indexer, "_cover", return_value=None):
            indexer.covered_size = 1 << 60
            self._leaf_id = resuming.indexed_leaf(self)
            indexer.covered_size = 0

    return mock.patch.object(session.Session, "_take_up", early)


@fault("index-catch-up")
def index_never_synced() -> Any:
    """Checkpoints are not synced: pages of different ages come together."""
    configure, settings = schema.configure, schema.write_settings

    def configured(db: Any, **options: Any) -> None:
        configure(db, **options)
        db.execute("PRAGMA synchronous=OFF")

    def written(db: Any) -> None:
        settings(db)
        db.execute("PRAGMA synchronous=OFF")

    return all_of(
        mock.patch.object(schema, "configure", configured),
        mock.patch.object(schema, "write_settings", written),
    )


@fault("index-relaxed")
def index_watermark_ahead() -> Any:
    """The background leaves a watermark for what no sync covers yet."""

    def early(self: Any) -> bytes:
        state = self._state
        mark = Watermark(self.journal_id, state.sequence - 1, state.offset, state.revision)
        return mark.encode()

    return mock.patch.object(writer.JournalWriter, "encoded_watermark", early)
