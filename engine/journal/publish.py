"""Making a new journal: built under a temporary name, published whole, or not at all.

Order: frames, sync, EPOCH_CLOSE, sync, ``published length`` in the header, sync, and only then
the name (never overwriting one), followed by syncs of the folder and of every folder up to the
store's top. A crash before the name leaves a temporary file that the next creation sweeps away.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from treering.engine import environment
from treering.engine.errors import Conflict, from_os_error
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import Disk, make_folders, sync_folders, write_all
from treering.engine.journal.format import (
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    FileHeader,
    Frame,
    Kind,
    encode_file_header,
)
from treering.engine.journal.framing import FrameBuilder, State, epoch_open_payload
from treering.engine.journal.opening import Tail
from treering.engine.journal.ownership import Ownership, close_in_child
from treering.engine.journal.payload import COMPRESS_BULK_FROM_BYTES, Dictionary
from treering.engine.journal.reader import Place
from treering.engine.limits import WRITE_BYTES_MAX

TEMPORARY_SUFFIX: Final = ".new"
DICTIONARY_COPY_DISTANCE_BYTES: Final = 1024 * 1024
_GROUP_BYTES: Final = 1024 * 1024
_STALE_AFTER_NS: Final = 3600 * 1_000_000_000


class NewJournal:
    """A journal under construction. Use :meth:`publish` or :meth:`abandon`, exactly once.

    Memory stays bounded by one write (8 MiB) and the largest payload, however long the journal.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        session_id: str,
        *,
        purpose: control.Purpose,
        top: str,
        compression: bool = True,
    ) -> None:
        self.journal_id = environment.random_bytes(16)
        self._disk = disk
        self._folder = folder
        self._top = top
        self._created_ms = environment.now_ms()
        self._builder = FrameBuilder(
            self.journal_id, compress_from=COMPRESS_BULK_FROM_BYTES if compression else None
        )
        self._state = State(FILE_HEADER_BYTES, 0, 1, bytes(16), 0, 0)
        self._pieces: list[bytes] = []
        self._pending = 0
        self._last: Frame | None = None
        self._dictionary: Dictionary | None = None
        self._copy_due = 0
        self._written = FILE_HEADER_BYTES
        self.temporary = os.path.join(
            folder, f".{session_id}.{self.journal_id.hex()[:8]}{TEMPORARY_SUFFIX}"
        )
        try:
            make_folders(disk, folder, top)
            sweep_stale(disk, folder)
            self._file = close_in_child(disk.create(self.temporary))
        except OSError as error:
            raise from_os_error(error, "create the journal", folder) from error
        try:
            if not self._file.try_lock():
                raise Conflict("another process has locked the new file", path=self.temporary)
            self._identity = self._file.stat().identity
            write_all(self._file, encode_file_header(self._header(0)), 0)
            self.add(
                [Record(Kind.EPOCH_OPEN, epoch_open_payload(self.journal_id, 1, purpose, "full"))]
            )
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise from_os_error(error, "create the journal", folder) from error
            raise

    def _header(self, published_length: int) -> FileHeader:
        return FileHeader(
            FORMAT_VERSION,
            FILE_HEADER_BYTES,
            0,
            0,
            self._created_ms,
            self.journal_id,
            published_length,
        )

    def add_dictionary(self, dictionary: Dictionary) -> None:
        """Write a dictionary, and use it for what follows.

        Its second copy comes 1 MiB later, or at the end of a shorter journal: one bit lost in the
        only copy would cost every entry that needs it.
        """
        self.add([Record(Kind.DICTIONARY, dictionary.payload)])
        self._builder.use(dictionary)
        self._dictionary = dictionary
        self._copy_due = self._state.offset + DICTIONARY_COPY_DISTANCE_BYTES

    def _add_copy(self) -> None:
        dictionary, self._dictionary = self._dictionary, None
        if dictionary is not None:
            self.add([Record(Kind.DICTIONARY, dictionary.payload)])

    def add(
        self,
        records: Iterable[Record],
        seen: Callable[[list[Record], list[Frame]], None] | None = None,
    ) -> None:
        """Append frames to the new journal; ``seen`` is told each group with its frames.

        Raises:
            StorageFull, StorageError: the caller abandons the journal.
        """
        for group in _groups(records):
            pieces, frames, self._state = self._builder.build(group, self._state)
            self._last = frames[-1]
            if seen is not None:
                seen(group, frames)
            self._pieces += pieces
            self._pending += sum(map(len, pieces))
            if self._pending >= WRITE_BYTES_MAX:
                self._flush()
            if self._dictionary is not None and self._state.offset >= self._copy_due:
                self._add_copy()

    def _flush(self) -> None:
        data = b"".join(self._pieces)
        self._pieces, self._pending = [], 0
        try:
            write_all(self._file, data, self._written)
        except OSError as error:
            raise from_os_error(error, "write the new journal", self._folder) from error
        self._written += len(data)

    def _seal(self) -> None:
        """Close the epoch and write the published length; everything is durable afterwards."""
        self._add_copy()
        self._flush()
        try:
            self._file.fdatasync()
            self._state = self._state._replace(synced_below=self._state.sequence)
            closed = control.EpochClose(self.journal_id.hex(), 1, self._state.epoch_frames)
            self.add([Record(Kind.EPOCH_CLOSE, control.encode(closed))])
            self._flush()
            self._file.fdatasync()
            write_all(self._file, encode_file_header(self._header(self._written)), 0)
            self._file.fsync()
        except OSError as error:
            raise from_os_error(error, "sync the new journal", self._folder) from error

    def publish(self, path: str, note_path: str | None = None) -> tuple[Ownership, Tail]:
        """Give the journal its name and keep owning it.

        Raises:
            Conflict: the name is taken.
            StorageFull, StorageError: nothing is visible under the name, unless the error came
                from the last folder sync, which says so.
        """
        self._seal()
        try:
            self._disk.link(self.temporary, path)
        except FileExistsError as error:
            raise Conflict("a session of that id exists already", path=path) from error
        except OSError as error:
            raise from_os_error(error, "give the new journal its name", path) from error
        self._name_durably(path)
        return self._handed_over(path, note_path)

    def replace(self, path: str, aside: str) -> tuple[Ownership, Tail, str]:
        """Take the place of ``path``, whose file keeps living under the name that is returned.

        The caller owns the old journal and keeps owning it until this returns.
        """
        self._seal()
        try:
            make_folders(self._disk, os.path.dirname(aside), self._top)
            try:
                self._disk.link(path, aside)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM):
                    raise
                # The sessions folder is a device of its own: the old journal stays on it.
                aside = os.path.join(self._folder, f".{os.path.basename(aside)}")
                self._disk.link(path, aside)
            sync_folders(self._disk, os.path.dirname(aside), self._top)
            self._disk.rename(self.temporary, path)
        except OSError as error:
            raise from_os_error(error, "put the new journal in its place", path) from error
        try:
            sync_folders(self._disk, self._folder, self._top)
        except OSError as error:
            raise from_os_error(
                error, "make the name of the new journal durable (it is in its place now)", path
            ) from error
        owner, tail = self._handed_over(path, None)
        return owner, tail, aside

    def _name_durably(self, path: str) -> None:
        try:
            sync_folders(self._disk, self._folder, self._top)
            self._disk.unlink(self.temporary)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise from_os_error(
                error, "make the name of the new journal durable (it is visible now)", path
            ) from error

    def _handed_over(self, path: str, note_path: str | None) -> tuple[Ownership, Tail]:
        state = self._state
        owner = Ownership.of_new(self._disk, path, self._file, self._identity, note_path)
        place = Place(state.offset, state.sequence, state.epoch, state.revision[:8])
        assert self._last is not None
        tail = Tail(self.journal_id, place, state.revision, state.epoch + 1, self._last)
        return owner, tail

    def abandon(self) -> None:
        """Remove the temporary file; what was published stays. Idempotent."""
        self._file.close()
        try:
            self._disk.unlink(self.temporary)
        except OSError:
            pass  # swept by a later creation


def _groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records in groups of about 1 MiB: building one by one costs more than the frames."""
    group: list[Record] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record.payload)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def sweep_stale(disk: Disk, folder: str) -> list[str]:
    """Remove temporary journals that nobody holds any more and that are over an hour old."""
    removed: list[str] = []
    for name in disk.list_folder(folder):
        if not (name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)):
            continue
        path = os.path.join(folder, name)
        try:
            age_ns = environment.now_ms() * 1_000_000 - disk.stat(path).mtime_ns
            if age_ns < _STALE_AFTER_NS:
                continue
            file = disk.open(path, write=True)
            try:
                if file.stat().is_regular and file.try_lock():
                    disk.unlink(path)
                    removed.append(path)
            finally:
                file.close()
        except OSError:
            continue  # somebody else's file, or gone: not ours to judge
    return removed
