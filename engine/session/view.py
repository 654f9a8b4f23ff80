"""Read-only views: no lock, no index file, not one byte changed.

A view captures the size once and holds its index in memory. Frames that nothing yet proves durable
are shown marked: another process may be writing them at this moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from treering.engine import home
from treering.engine.errors import Closed, Damaged, ReadOnly, StorageError, from_os_error
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.format import salt_of
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import Examination, Report, examine
from treering.engine.journal.salvage import Salvage
from treering.engine.journal.shared import SharedFrames
from treering.engine.session.filling import fill_salvaged, memory_index, remembered_watermark
from treering.engine.session.reads import Reads
from treering.index import IndexBusy, IndexFault, SessionIndex

_Answer = TypeVar("_Answer")


class SessionView(Reads):
    """A read-only view of a session as it was when it was opened."""

    def __init__(self, path: str, disk: Disk, *, beyond_damage: bool) -> None:
        self.path = path
        self._closed = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._file = open_regular(disk, path, write=False)
        try:
            # The watermark first, then the size: what an owner appends in between must not look
            # lost.
            watermark = remembered_watermark(path, self._file)
            try:
                size = self._file.stat().size
            except OSError as error:
                raise from_os_error(error, "look at the session", path) from error
            self.source = FileBytes(self._file, path, size)
            self.examination = examine_again(self.source, watermark)
            self.report: Report = self.examination.report()
            if self.examination.case == "G" or self.examination.journal_id is None:
                raise self.examination.refusal()
            self.journal_id = self.examination.journal_id
            self.salt = salt_of(self.journal_id)
            self.shared = SharedFrames(self.source, self.journal_id)
            self.gaps: list[tuple[int, int]] = []
            """(offset, bytes) of what could not be read, when ``beyond_damage`` was asked for."""
            try:
                self._index = self._build(beyond_damage=beyond_damage)
            except IndexFault as fault:
                raise Damaged(f"its frames make no session: {fault.reason}", path=path) from fault
            self._leaf_id = self._find_leaf()
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        beyond_damage: bool = False,
        disk: Disk = LOCAL_DISK,
    ) -> Self:
        """Look at a session without owning it.

        Of a damaged journal the frames before the damage are shown; with ``beyond_damage`` also
        those that verify behind it. See :attr:`report` for what was found.

        Raises:
            NotFound, NotAJournal, StorageError, Unsupported: as for opening.
            Damaged: nothing of the journal can be read.
        """
        return cls(home.journal_file(path), disk, beyond_damage=beyond_damage)

    def _build(self, *, beyond_damage: bool) -> SessionIndex:
        if beyond_damage and self.examination.case in ("B", "C", "D", "E", "F"):
            salvage = Salvage(self.examination, self.shared)
            index = fill_salvaged(salvage)
            self.gaps = [(gap.offset, gap.bytes) for gap in salvage.gaps]
            return index
        index, _ = memory_index(self.source.captured(self._end()), self.journal_id, self.shared)
        return index

    def _end(self) -> int:
        return self.examination.place.offset

    def _find_leaf(self) -> str | None:
        sequence = self._index.leaf().sequence
        found = None if sequence is None else self._index.by_sequence(sequence)
        return None if found is None else found.id

    def _unproven_from(self) -> int:
        return self.examination.proven_below

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the view is closed", path=self.path)
        if self._pid != os.getpid():
            raise Closed("the view was opened before a fork; open it again here", path=self.path)

    def ask(self, question: Callable[[SessionIndex], _Answer]) -> _Answer:
        """See :meth:`Reads.ask`."""
        self._check_open()
        with self._lock:
            try:
                return question(self._index)
            except (IndexFault, IndexBusy) as fault:
                raise StorageError(
                    f"the view cannot answer: {fault.reason}", path=self.path
                ) from fault

    @property
    def id(self) -> str:
        """The session id: the name of its file."""
        return home.session_id_of(self.path)

    @property
    def leaf_id(self) -> str | None:
        """The current position; None is the position before any entry."""
        return self._leaf_id

    def append(self, entry: object) -> str:
        """Always refuses: a view writes nothing.

        Raises:
            ReadOnly: always.
        """
        what = f"a read-only view takes no {type(entry).__name__}"
        raise ReadOnly(what, path=self.path, next_step="open the session for writing")

    def close(self) -> None:
        """Let the file go. Idempotent."""
        self._closed = True
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def examine_again(source: FileBytes, watermark: bytes | None = None) -> Examination:
    """Examine without owning: damage is believed only when a second look sees it too.

    A reader beside a live owner can catch a write half done; before it says B, C or D it reads
    again from the start of the bad frame.
    """
    found = examine(source, watermark=watermark)
    if found.case in ("B", "C", "D"):
        second = examine(source, watermark=watermark)
        if second.case == found.case and second.place == found.place:
            return found
        return second
    return found
