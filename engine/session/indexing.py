"""Keeping a session's index up with its journal, and asking it questions.

The index is derived. Whatever is wrong with its files, answers stay right (a bad file is set
aside and rebuilt; if that fails the index lives in memory) and no append ever waits for it: this
object has its own lock, and the append path only uses :meth:`Indexer.any_known`, which never
waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from treering.engine import environment
from treering.engine.errors import Closed
from treering.engine.journal.format import Frame, salt_of
from treering.engine.journal.history import Walk
from treering.engine.journal.opening import Hint
from treering.engine.journal.reader import FileBytes, frame_at
from treering.engine.journal.shared import SharedFrames
from treering.engine.limits import (
    INDEX_CACHE_KIB,
    INDEX_SLICE_PAUSE_S,
)
from treering.engine.session.filling import fill
from treering.index import IndexBusy, IndexFault, Position, SessionIndex, files
from treering.index.peek import peek

_Answer = TypeVar("_Answer")

OWNER_BUSY_MS: Final = 250
"""How long an owner waits for a lock on its index before it goes on in memory."""

BULK_BUILD_BYTES: Final = 4 * 1024 * 1024
"""A journal of at least this size gets its first index by the fast, unresumable way."""

QUICK_BYTES: Final = 1024 * 1024
"""An index this far behind its journal is brought up at once, at opening and closing."""


class _Interrupted(Exception):
    """A first build was asked to end; what it made so far is no index."""


class Indexer:
    """The index of one owned session."""

    def __init__(self, folder: str | None, session_id: str) -> None:
        """``folder`` is that of the index files; None keeps the index in memory."""
        self._folder = folder
        self._session_id = session_id
        self._lock = threading.RLock()
        self._id_lock = threading.Lock()
        self._index: SessionIndex | None = None
        self._ids: SessionIndex | None = None
        self._path: str | None = None
        self._source: FileBytes | None = None
        self._journal_id = b""
        self._identity = (0, 0)
        self._shared: SharedFrames | None = None
        self._watermark: Callable[[], bytes | None] | None = None
        self._stop = threading.Event()
        self._closed = False
        self._polite = False
        self._waiting = 0
        self._count_lock = threading.Lock()
        self.covered_size = 0
        self.faults: list[str] = []
        """What was wrong with index files, in order; answers were right all the same."""

    def hint(self) -> Hint | None:
        """What an index file remembers of the journal; called once, when the journal is locked."""
        with self._lock:
            try:
                self._open_current()
                index = self._index
                if index is None:
                    return None
                identity, position = index.identity(), index.position()
                if identity is None:
                    return None
                if position is None:  # a watermark alone still tells what was acknowledged
                    return Hint(identity.journal_id, 0, 0, b"", index.watermark())
                return Hint(
                    identity.journal_id,
                    position.sequence,
                    position.offset,
                    position.revision,
                    index.watermark(),
                )
            except IndexFault as fault:
                hint = self._watermark_of_bad_file()
                self._set_aside(fault)
                return hint
            except IndexBusy as busy:
                self.faults.append(str(busy))
                self._close_files()
                return None

    def _watermark_of_bad_file(self) -> Hint | None:
        """An index that cannot be used may still know what was acknowledged."""
        try:
            state = None if self._path is None else peek(self._path)
        except (IndexFault, IndexBusy):
            return None
        if state is None:
            return None
        return Hint(state[0].journal_id, 0, 0, b"", state[2])  # the watermark verifies itself

    def attach(
        self,
        source: FileBytes,
        journal_id: bytes,
        identity: tuple[int, int],
        shared: SharedFrames,
        watermark: Callable[[], bytes | None],
    ) -> None:
        """The journal is open: from now on the index may be brought up to it."""
        with self._lock:
            self._source = source
            self._journal_id = journal_id
            self._identity = identity
            self._shared = shared
            self._watermark = watermark
            if self._index is not None and not self._belongs(self._index):
                self._set_aside(IndexFault(self._path or "", "it belongs to another journal"))

    def _belongs(self, index: SessionIndex) -> bool:
        try:
            bound, position = index.identity(), index.position()
            if bound is None or bound.journal_id != self._journal_id:
                return False
            if position is not None and self._frame_of(position) is None:
                return False
            if (bound.device, bound.inode) != self._identity:
                index.bind(self._journal_id, *self._identity)  # the store was moved or restored
        except (IndexFault, IndexBusy):
            return False
        return True

    def _frame_of(self, position: Position) -> Frame | None:
        assert self._source is not None
        found = frame_at(self._source, salt_of(self._journal_id), position.offset)
        if found is None or found[0].revision != position.revision:
            return None
        return found[0] if found[0].sequence == position.sequence else None

    def resumes_quickly(self, size: int) -> bool:
        """Whether :meth:`cover` would take milliseconds only."""
        with self._lock:
            if self._index is None:
                return size <= QUICK_BYTES
            try:
                position = self._index.position()
            except (IndexFault, IndexBusy):
                return False
            return size - (0 if position is None else position.offset) <= QUICK_BYTES

    def cover_politely(self, size: int) -> None:
        """:meth:`cover` from the background: rests often, unless somebody waits for the index."""
        self._polite = True
        try:
            self.cover(size, hurry=False)
        finally:
            self._polite = False

    @contextlib.contextmanager
    def _hurrying(self) -> Iterator[None]:
        """While somebody is in here the background does not rest."""
        with self._count_lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._waiting -= 1

    def _rest(self) -> None:
        if self._polite and not self._waiting:
            environment.sleep(INDEX_SLICE_PAUSE_S)

    def cover(self, size: int, *, hurry: bool = True) -> None:
        """Bring the index up to the journal's first ``size`` bytes (all of them synced).

        Raises:
            StorageError: the journal could not be read. Faults of the index itself never surface.
        """
        with self._hurrying() if hurry else contextlib.nullcontext(), self._lock:
            self._cover(size)

    def _cover(self, size: int) -> None:
        self._check_open()
        if self._index is not None and self.covered_size >= size:
            return
        try:
            self._catch_up(size)
        except _Interrupted:
            return
        except IndexFault as fault:
            self._set_aside(fault)
            try:
                self._catch_up(size)
            except (IndexFault, IndexBusy) as second:
                self._go_to_memory(second, size)
        except IndexBusy as busy:
            self._go_to_memory(busy, size)

    def ask(self, question: Callable[[SessionIndex], _Answer], size: int) -> _Answer:
        """The answer of an index that covers the journal's first ``size`` bytes."""
        with self._hurrying():
            return self._ask(question, size)

    def _ask(self, question: Callable[[SessionIndex], _Answer], size: int) -> _Answer:
        with self._lock:
            try:
                return question(self._covering(size))
            except IndexFault as fault:
                self._set_aside(fault)
            except IndexBusy as busy:
                self._go_to_memory(busy, size)
            try:
                return question(self._covering(size))
            except (IndexFault, IndexBusy) as second:
                self._go_to_memory(second, size)
                return question(self._covering(size))

    def _covering(self, size: int) -> SessionIndex:
        self.cover(size)
        if self._index is None or self.covered_size < size:
            raise Closed("the session was closed meanwhile")  # an answer would be a partial one
        return self._index

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the session is closed")

    def any_known(self, ids: list[str]) -> set[str] | None:
        """Which ids the indexed part of the journal has; None when nobody can say at once."""
        if self._folder is None:
            return self._known_in_memory(ids)
        if not self._id_lock.acquire(blocking=False):
            return None
        try:
            index = self._ids
            if index is None:
                return None
            if len(ids) == 1:
                return set(ids) if index.has_id(ids[0]) else set()
            return set(index.by_ids(ids))
        except (IndexFault, IndexBusy):
            return None
        finally:
            self._id_lock.release()

    def _known_in_memory(self, ids: list[str]) -> set[str] | None:
        """The same for a session that is nowhere but in memory: its index is never far behind."""
        with self._lock:
            return None if self._index is None else set(self._index.by_ids(ids))

    def interrupt(self) -> None:
        """Make a catch-up in another thread end soon; a first build starts anew later."""
        self._stop.set()

    def resume(self) -> None:
        """Allow catching up again, after the other thread has ended."""
        self._stop.clear()

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._stop.set()
        with self._lock:
            self._closed = True
            self._close_files()

    def _catch_up(self, size: int) -> None:
        assert self._source is not None
        assert self._watermark is not None
        if self._index is None:
            self._create(size)
        index = self._index
        assert index is not None
        position = index.position()
        behind = None if position is None else self._frame_of(position)
        if position is not None and behind is None:
            raise IndexFault(self._path or "", "its position is not a frame of this journal")
        walk = self._walk(size, behind)
        if fill(index, walk, stop=self._stop, watermark=self._watermark(), rest=self._rest):
            self.covered_size = size
            self._open_ids()

    def _walk(self, size: int, behind: Frame | None) -> Walk:
        assert self._source is not None
        captured = self._source.captured(size)
        return Walk(captured, self._journal_id, behind=behind, shared=self._shared)

    def _create(self, size: int) -> None:
        """A first index, or a new generation after a bad one."""
        if self._folder is None:
            self._index = SessionIndex.memory()
            self._index.bind(self._journal_id, *self._identity)
            return
        try:
            files.ensure_folder(self._folder)
        except OSError as error:
            raise IndexFault(self._folder, str(error)) from error
        if self._polite or size < BULK_BUILD_BYTES:
            # In the background the first index, too, grows in transactions: owners that live for
            # a moment only each do a part of it. The fast way would start anew every time.
            path = files.next_path(self._folder, self._session_id)
            self._index = SessionIndex.open(
                path, create=True, busy_timeout_ms=OWNER_BUSY_MS, cache_kib=INDEX_CACHE_KIB
            )
            self._path = path
            self._index.bind(self._journal_id, *self._identity)
            return
        built = files.new_build_path(self._folder, self._session_id)
        with SessionIndex.build_into(built, cache_kib=INDEX_CACHE_KIB) as building:
            building.bind(self._journal_id, *self._identity)
            if not fill(building, self._walk(size, None), stop=self._stop, rest=self._rest):
                raise _Interrupted
            building.finish_build()
        path = files.publish_build(built, self._folder, self._session_id)
        self._index = SessionIndex.open(
            path, busy_timeout_ms=OWNER_BUSY_MS, cache_kib=INDEX_CACHE_KIB
        )
        self._path = path
        files.remove_older(self._folder, self._session_id, keep=path)

    def _open_current(self) -> None:
        if self._folder is None:
            return
        path = files.current(self._folder, self._session_id)
        if path is None:
            return
        self._path = path
        self._index = SessionIndex.open(
            path, busy_timeout_ms=OWNER_BUSY_MS, cache_kib=INDEX_CACHE_KIB
        )

    def _open_ids(self) -> None:
        """A second connection for id checks: in WAL mode no writer ever makes it wait."""
        if self._ids is None and self._path is not None:
            with self._id_lock:
                self._ids = SessionIndex.open(
                    self._path, readonly=True, busy_timeout_ms=0, cache_kib=1024
                )

    def _set_aside(self, fault: IndexFault) -> None:
        self.faults.append(str(fault))
        path = self._path
        self._close_files()
        if path is None or fault.full or fault.library:
            return
        try:
            files.set_aside(path)
        except IndexFault as second:
            self.faults.append(str(second))

    def distrust(self, why: str) -> None:
        """Set the index aside: an answer of it was found wrong. The next question builds anew."""
        with self._lock:
            self._set_aside(IndexFault(self._path or "", why))

    def _close_files(self) -> None:
        with self._id_lock:
            ids, self._ids = self._ids, None
            if ids is not None:
                _close(ids)
        index, self._index = self._index, None
        if index is not None:
            _close(index)
        self._path = None
        self.covered_size = 0

    def _go_to_memory(self, reason: IndexFault | IndexBusy, size: int) -> None:
        self.faults.append(str(reason))
        self._close_files()
        assert self._source is not None
        assert self._shared is not None
        index = SessionIndex.memory()
        fill(index, self._walk(size, None))
        self._index = index
        self.covered_size = size


def _close(index: SessionIndex) -> None:
    try:
        index.close()
    except (IndexFault, IndexBusy):
        pass  # nothing of it is needed any more
