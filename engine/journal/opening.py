"""Opening a journal for writing: lock, sync, decide, and in case E quarantine and cut.

The order is what makes it safe. Nothing is cut before its bytes are durable somewhere else, and
the verified frames that nothing yet proves durable are written again in place before any cut or
append: after a predecessor's failed sync the page cache may show what the device does not have.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import xxhash

from treering.engine.errors import Unsupported, from_os_error
from treering.engine.journal.disk import (
    Disk,
    File,
    cut_off,
    make_folders,
    sync_folders,
    write_all,
)
from treering.engine.journal.format import (
    FILE_HEADER_BYTES,
    Frame,
    decode_file_header,
    decode_watermark,
    salt_of,
)
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.reader import FileBytes, Place, Scan, frame_at
from treering.engine.journal.recovery import Examination, Report, examine
from treering.engine.limits import SCAN_CHUNK_BYTES

OpenMode = Literal["strict", "tail"]
"""What an opener for writing does about a torn tail: refuse as for any damage, or cut it."""

OPEN_MODES: Final[tuple[OpenMode, ...]] = ("strict", "tail")


@dataclass(frozen=True)
class Hint:
    """What an index remembers of a journal. Untrusted: each part is verified before it is used.

    ``sequence``, ``offset`` (where the frame starts) and ``revision`` are those of the last frame
    that the index holds.
    """

    journal_id: bytes
    sequence: int
    offset: int
    revision: bytes
    watermark: bytes | None


@dataclass(frozen=True)
class Tail:
    """Where and how an owner goes on."""

    journal_id: bytes
    place: Place
    last_revision: bytes
    epoch: int
    proven: Frame | None
    """The last frame that something proves durable; None when nothing is proven."""

    @property
    def unproven(self) -> Place | None:
        """Where the frames begin that nothing proves durable; None when there are none."""
        place = Place.start() if self.proven is None else Place.behind(self.proven)
        return None if place.offset >= self.place.offset else place


@dataclass(frozen=True)
class Opened:
    """A journal that this process owns and may write."""

    owner: Ownership
    tail: Tail
    report: Report
    examination: Examination


def open_for_writing(
    disk: Disk,
    path: str,
    *,
    top: str,
    quarantine_folder: str,
    note_path: str | None = None,
    hint: Callable[[], Hint | None] | None = None,
    mode: OpenMode = "tail",
) -> Opened:
    """Own the journal and bring it into a state in which the next append is whole.

    ``hint`` is called once the journal is locked: only an owner may open the index for writing.

    Raises:
        Owned: somebody else has it.
        Damaged, AcknowledgedDataLost: cases B, C, D, F, with ``mode="strict"`` also E; nothing was
            changed.
        NotAJournal: case G.
        Unsupported: a verified frame or header that this release does not understand.
        StorageFull, StorageError, ReadOnly: the system refused; nothing was cut.
    """
    owner = Ownership.acquire(disk, path, note_path)
    try:
        try:
            owner.file.fsync()
            sync_folders(disk, os.path.dirname(path), top)
            size = owner.file.stat().size
        except OSError as error:
            raise from_os_error(error, "sync the journal", path) from error
        source = FileBytes(owner.file, path, size)
        known = hint() if hint is not None else None
        found = examine(
            source,
            watermark=known.watermark if known else None,
            known_ids=[known.journal_id] if known else (),
            from_frame=_hinted_frame(source, known),
        )
        if found.case not in (("A",) if mode == "strict" else ("A", "E")):
            raise found.refusal()
        refuse_misunderstood(found)
        assert found.walk is not None
        report = found.report()
        tail = _tail_of(found)
        if found.case == "E":
            _quarantine_and_cut(disk, owner.file, found, report, tail, quarantine_folder, top)
            # The cut was synced, and everything before it with it.
            tail = replace(tail, proven=found.walk.history.last)
        return Opened(owner, tail, report, found)
    except BaseException:
        owner.release()
        raise


def _hinted_frame(source: FileBytes, hint: Hint | None) -> Frame | None:
    """The last indexed frame, when it is still exactly where the index says, under this header."""
    if hint is None or not FILE_HEADER_BYTES <= hint.offset < source.size:
        return None
    header = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), source.path)
    if header is None or header.journal_id != hint.journal_id:
        return None
    found = frame_at(source, salt_of(hint.journal_id), hint.offset)
    if found is None or found[0].revision != hint.revision or found[0].sequence != hint.sequence:
        return None
    # An index row is no proof of durability; the watermark, which verifies itself, is.
    mark = decode_watermark(hint.watermark, hint.journal_id)
    if mark is None or mark.end_offset < found[0].end:
        return None
    return found[0]


def _tail_of(found: Examination) -> Tail:
    assert found.journal_id is not None
    assert found.walk is not None
    last = found.walk.history.last
    assert last is not None
    return Tail(
        journal_id=found.journal_id,
        place=found.place,
        last_revision=last.revision,
        epoch=found.epoch_max + 1,
        proven=found.proven,
    )


def refuse_misunderstood(found: Examination) -> None:
    """Refuse a history with frames that this release does not understand.

    Raises:
        Unsupported: names the first of them.
    """
    assert found.walk is not None
    history = found.walk.history
    if not history.problem_count:
        if found.place.sequence < 2:
            raise Unsupported("the journal has no session header", path=found.source.path)
        return
    first = history.problems[0]
    more = f" and {history.problem_count - 1} more" if history.problem_count > 1 else ""
    raise Unsupported(
        f"frame {first.sequence} is not understood: {first.why}{more}; writing is refused",
        path=found.source.path,
        offset=first.offset,
        next_step="open it with a newer release, or read-only",
    )


def rewrite_unproven(file: File, path: str, tail: Tail) -> None:
    """Write the frames that nothing proves durable again in place, byte for byte, and sync.

    They are verified once more while they are read: the page cache that showed them to the scan
    may have been dropped since, and what the device really has must not be made "proven".

    Raises:
        OSError: they could not be read as they were, or not be written; nothing may be appended.
    """
    place = tail.unproven
    if place is not None:
        source = FileBytes(file, path, tail.place.offset)
        scan = Scan(source, salt_of(tail.journal_id), place)
        for frame, body in scan.frames():
            write_all(file, body + frame.revision, frame.offset)
        assert scan.stop is not None
        if scan.stop.place != tail.place:
            raise OSError(errno.EIO, "the last frames do not read as they did when it was opened")
    file.fdatasync()


def _quarantine_and_cut(
    disk: Disk,
    file: File,
    found: Examination,
    report: Report,
    tail: Tail,
    folder: str,
    top: str,
) -> None:
    path = found.source.path
    offset, size = found.place.offset, found.source.size
    try:
        make_folders(disk, folder, top)
        report.quarantine = _copy_out(disk, file, offset, size, folder, top)
    except OSError as error:
        raise from_os_error(error, "save the torn tail before cutting it", path) from error
    report.quarantined_bytes = size - offset
    report.quarantined_frames = found.beyond_count
    try:
        rewrite_unproven(file, path, tail)
        cut_off(file, offset)
    except OSError as error:
        raise from_os_error(error, "cut the torn tail", path) from error


def _copy_out(disk: Disk, file: File, start: int, end: int, folder: str, top: str) -> str:
    """A durable copy of ``start..end``; a whole copy that an interrupted open left is reused."""
    state = xxhash.xxh3_64()
    for data in _chunks(file, start, end):
        state.update(data)
    name = f"{start}-{state.hexdigest()}"
    attempt = 0
    while True:
        target = os.path.join(folder, f"{name}.tail" if attempt == 0 else f"{name}.{attempt}.tail")
        made = True
        try:
            copy = disk.create(target)
        except FileExistsError:
            if not _is_copy(disk, target, end - start, state.hexdigest()):
                attempt += 1
                continue
            # Its sync may have failed then: what the page cache shows is written once more.
            copy, made = disk.open(target, write=True), False
        try:
            at = 0
            for data in _chunks(file, start, end):
                write_all(copy, data, at)
                at += len(data)
            copy.fsync()
        except OSError:
            if made:
                _forget_partial(disk, target)
            raise
        finally:
            copy.close()
        break
    sync_folders(disk, folder, top)
    return target


def _forget_partial(disk: Disk, target: str) -> None:
    """A copy that could not be finished is of no use; the journal still has its bytes."""
    try:
        disk.unlink(target)
    except OSError:
        pass  # the error that led here is the one to report


def _is_copy(disk: Disk, target: str, size: int, digest: str) -> bool:
    copy = disk.open(target)
    try:
        if copy.stat().size != size:
            return False
        state = xxhash.xxh3_64()
        for data in _chunks(copy, 0, size):
            state.update(data)
        return bool(state.hexdigest() == digest)
    finally:
        copy.close()


def _chunks(file: File, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = file.pread(min(SCAN_CHUNK_BYTES, end - start), start)
        if not data:
            raise OSError(errno.EIO, f"the file ended at {start} while it was copied")
        yield data
        start += len(data)
