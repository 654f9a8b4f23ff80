"""Session: the synchronous core, one owner.

Promises. An append returns when its entries are durable (``durability="full"``), in order, exactly
as given; leaf and metadata move only then. The index is brought up in the background and by reads;
it never delays or fails an append. One lock guards the session: its methods may be called from
any thread. After ``fork()`` the child's handle refuses use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from treering.engine import home
from treering.engine.errors import (
    Closed,
    OutcomeUnknown,
    StorageError,
    TreeringError,
)
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.format import Frame, Kind, salt_of
from treering.engine.journal.framing import Durability
from treering.engine.journal.opening import Opened, OpenMode
from treering.engine.journal.reader import GrowingBytes
from treering.engine.journal.recovery import Report
from treering.engine.journal.shared import SharedFrames
from treering.engine.journal.writer import JournalWriter
from treering.engine.session.admission import Admitted, EntryInput, admit
from treering.engine.session.appending import SessionVerbs
from treering.engine.session.entry import Entry
from treering.engine.session.fresh_ids import FreshIds
from treering.engine.session.housekeeping import Housekeeper
from treering.engine.session.parts import Parts, create_parts, open_parts
from treering.engine.session.pending import Pending
from treering.engine.session.plan import Batch, Moment, Plan, require_in_tree
from treering.engine.session.resuming import has_ambiguous_ids, indexed_leaf, leaf_at_opening
from treering.engine.session.view import SessionView
from treering.index import Entry as Indexed
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")


class Session(SessionVerbs):
    """One owned session. Make it with :meth:`create` or :meth:`open`; close it when done."""

    def __init__(self, parts: Parts) -> None:
        self._lock = threading.RLock()
        self._selections = 0
        self._begin(parts)

    def _begin(self, parts: Parts) -> None:
        """Take over an owned journal: at first, and again by :meth:`recover`."""
        tail, owner = parts.tail, parts.owner
        self._parts = parts
        self.path = owner.path
        self.store = parts.store
        self.report = None if parts.opened is None else parts.opened.report
        self.journal_id = tail.journal_id
        self.salt = salt_of(tail.journal_id)
        self._writer = JournalWriter(
            owner, tail, durability=parts.durability, compression=parts.compression
        )
        writer = self._writer
        self.source = GrowingBytes(owner.file, owner.path, lambda: writer.size)
        self.shared = SharedFrames(self.source, tail.journal_id)
        self._indexer = parts.indexer
        self._leaf_id: str | None = None
        self.pending = Pending(complete=parts.opened is None)
        self._ambiguous_ids = False
        self.fresh_ids = FreshIds(self.pending, parts.indexer)
        self._closed = False
        self._indexer.attach(
            self.source, tail.journal_id, owner.identity, self.shared, writer.encoded_watermark
        )
        self._housekeeper = Housekeeper(self._index_in_background, writer.sync)
        if parts.opened is not None:
            try:
                self._take_up(parts.opened)
            except OutcomeUnknown as error:
                # Nobody has appended: it is the old frames that could not be made sure of.
                raise StorageError(str(writer.poisoned), path=self.path) from error

    # Making and opening

    @classmethod
    def create(
        cls,
        cwd: str | None = None,
        *,
        home_dir: str | None = None,
        session_dir: str | None = None,
        session_id: str | None = None,
        parent_session: str | None = None,
        rlm_depth: int | None = None,
        durability: Durability = "full",
        compression: bool = True,
        disk: Disk = LOCAL_DISK,
    ) -> Self:
        """A new session, published whole: its header is durable when this returns. Its depth is
        ``rlm_depth``, one more than that of ``parent_session``, or BASE_CONTEXT_RLM_DEPTH (0).

        Raises:
            Conflict: a session of that id exists.
            InvalidId: the id cannot be a file name.
            StorageFull, StorageError, ReadOnly, Unsupported: the place cannot hold a journal.
        """
        return cls(
            create_parts(
                home.Store.at(home_dir, session_dir),
                disk,
                session_id=session_id,
                cwd=cwd,
                parent_session=parent_session,
                rlm_depth=rlm_depth,
                durability=durability,
                compression=compression,
            )
        )

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: OpenMode = "tail",
        durability: Durability = "full",
        compression: bool = True,
        disk: Disk = LOCAL_DISK,
    ) -> Self:
        """Own an existing session. A torn tail is quarantined and cut; see :attr:`report`.

        ``mode="strict"`` refuses a torn tail too, for frontends that let a person decide first.
        It is about what is found at opening: :meth:`recover` cuts what this owner left behind.

        Raises:
            NotFound: no such file (opening never creates).
            NotAJournal: another format; for plain JSONL the error names ``import``.
            Owned: somebody else has it.
            Damaged, AcknowledgedDataLost: refused, nothing changed; the report is attached.
            Unsupported: a newer version, or a file system that cannot keep a journal.
        """
        parts = open_parts(
            home.journal_file(path),
            disk,
            mode=mode,
            durability=durability,
            compression=compression,
        )
        try:
            return cls(parts)
        except BaseException:
            parts.indexer.close()
            parts.owner.release()
            raise

    @classmethod
    def open_read_only(
        cls,
        path: str | os.PathLike[str],
        *,
        beyond_damage: bool = False,
        disk: Disk = LOCAL_DISK,
    ) -> SessionView:
        """A view that owns and changes nothing: see :meth:`SessionView.open`."""
        return SessionView.open(path, beyond_damage=beyond_damage, disk=disk)

    def _take_up(self, opened: Opened) -> None:
        """Find the current position without waiting for a long index build."""
        self._ambiguous_ids = has_ambiguous_ids(self)
        if self._ambiguous_ids or self._indexer.resumes_quickly(self.source.size):
            self._indexer.cover(self._synced_size())
            self._leaf_id = indexed_leaf(self)
        else:
            self._leaf_id = leaf_at_opening(self, opened.examination)
            self._housekeeper.wake()

    # State

    @property
    def id(self) -> str:
        """The session id: the name of its file."""
        return home.session_id_of(self.path)

    @property
    def leaf_id(self) -> str | None:
        """The current position; None is the position before any entry."""
        return self._leaf_id

    @property
    def durability(self) -> Durability:
        """When an append returns: ``full`` after the sync, ``os`` after the write."""
        return self._parts.durability

    @property
    def poisoned(self) -> str | None:
        """Why every append is refused until :meth:`recover`; None while all is well."""
        return self._writer.poisoned

    @property
    def artifact_folder(self) -> str:
        """The folder that the session owns for its files (made when something needs it)."""
        return self.store.artifact_folder(self.id)

    @property
    def ambiguous_ids(self) -> bool:
        """Whether an import brought entries that share an id, or have none."""
        return self._ambiguous_ids

    @property
    def index_faults(self) -> list[str]:
        """What was wrong with index files since opening; answers were right all the same."""
        return list(self._indexer.faults)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    # Appending

    def append(self, entry: EntryInput) -> str:
        """Append one entry below the current position; returns its id when it is durable.

        A mapping or typed entry gets what it lacks: id, parentId (the current position) and
        timestamp. Bytes are stored exactly. Appending an id again with the same content is a
        no-op that returns the id.

        Raises:
            InvalidEntry, InvalidId, LimitExceeded: nothing was written.
            NotFound: it names a parent, a label target or a kept entry that is not there.
            Conflict: the id is taken by other content.
            StorageFull, StorageError, SourceChanged: nothing was stored.
            OutcomeUnknown: see its ``entry_ids``; :meth:`recover`, then look them up.
        """
        return self.append_many((entry,))[0]

    def append_many(self, entries: Iterable[EntryInput]) -> list[str]:
        """Append entries one below the other with one sync; not atomic (see :meth:`batch`).

        A crash can leave a prefix of them. Raises as :meth:`append`; then none is acknowledged.
        """
        admitted = [admit(entry) for entry in entries]
        self._check_open()
        with self._lock:
            self._check_open()
            return self.store_admitted(admitted, atomic=False)

    def batch(self) -> Batch:
        """Entries that become visible together, or not at all: ``with session.batch() as b: ...``.

        The batch holds the session until it ends; leaving the block writes it, an exception
        inside drops it.
        """
        return Batch(self)

    def branch_to(self, entry_id: str | None) -> None:
        """Move the current position, durably; None is the position before any entry.

        Raises:
            NotFound: no entry has that id.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            if entry_id is not None:
                require_in_tree(self, entry_id, "the entry")
            payload = control.encode(control.Leaf(entry_id))
            self._write([Record(Kind.LEAF, payload)], (), atomic=False)
            self._selections += entry_id != self._leaf_id
            self._leaf_id = entry_id

    def moment(self) -> Moment:
        """What holds now, behind every write before."""
        with self._lock:
            return Moment(self._leaf_id, self._writer.next_sequence - 1, self._selections)

    def hold(self) -> None:
        """Take the session for a batch: other threads wait."""
        self._check_open()
        self._lock.acquire()
        try:
            self._check_open()
        except BaseException:
            self._lock.release()
            raise

    def let_go(self) -> None:
        """End :meth:`hold`."""
        self._lock.release()

    def sync(self) -> None:
        """Make everything acknowledged durable (only ``durability="os"`` leaves something)."""
        self._check_open()
        with self._lock:
            self._check_open()
            self._writer.sync()

    def store_admitted(self, admitted: list[Admitted], *, atomic: bool) -> list[str]:
        """Plan and write entries that were checked; the caller holds the session."""
        plan = Plan(self, admitted)
        self.store_plan(plan, atomic=atomic)
        return plan.ids

    def store_plan(self, plan: Plan, *, atomic: bool) -> None:
        """Write what was planned; the caller holds the session."""
        if plan.records:
            try:
                frames = self._write(plan.records, tuple(plan.new_ids), atomic=atomic)
                plan.frames = frames
                self.pending.note(plan.new_ids, frames)
                self._leaf_id = plan.leaf
                self._selections += plan.moves
            except TreeringError:
                raise
            except BaseException:
                # Ctrl-C behind the write: the entries are stored and this object does not know.
                self._writer.poison("an append was interrupted")
                raise

    def _write(self, records: list[Record], ids: tuple[str, ...], *, atomic: bool) -> list[Frame]:
        try:
            if atomic:
                frames, _ = self._writer.append_batch(records)
            else:
                frames = self._writer.append(records)
        except OutcomeUnknown as error:
            error.entry_ids = ids
            raise
        self._housekeeper.appended(len(frames))
        return frames

    def exists(self, entry_id: str) -> bool:
        """Whether an id is taken; waits for the index when it must."""
        self._check_open()
        known = self.pending.knows(entry_id)
        return self.ask(lambda index: index.has_id(entry_id)) if known is None else known

    # Recovery and closing

    def recover(self) -> Report:
        """After :class:`OutcomeUnknown`: open the journal anew, as after a crash.

        What had reached the device stays, a torn tail goes to quarantine; afterwards look the
        entries up. Nothing is written again by itself.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            return self._reopen()

    def _reopen(self) -> Report:
        self._closed = True  # first: who meets it waits for the lock, and then looks again
        self._stop_background()
        self._selections += 1
        self._indexer.close()
        self._writer.owner.release()
        parts = self._parts
        fresh = open_parts(
            self.path,
            parts.disk,
            durability=parts.durability,
            compression=parts.compression,
        )
        try:
            self._begin(fresh)
        except BaseException:
            fresh.indexer.close()
            fresh.owner.release()
            raise
        assert self.report is not None
        return self.report

    def close(self) -> None:
        """End the epoch, bring the index up, release the lock. Idempotent.

        Raises:
            OutcomeUnknown, SourceChanged: the end could not be written; the session is closed
                all the same, and everything acknowledged before stays.
        """
        if self._closed or not self._writer.owner.is_open:
            # Also in a forked child: the parent's lock and thread are not this process's.
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._stop_background()
            try:
                if self._writer.owner.is_open and self._writer.poisoned is None:
                    self._writer.close(before_release=self._last_index_pass)
                else:
                    self._writer.owner.release()
            finally:
                self._indexer.close()

    def _stop_background(self) -> None:
        self._indexer.interrupt()
        self._housekeeper.stop()
        self._indexer.resume()

    def _last_index_pass(self) -> None:
        if not self._indexer.resumes_quickly(self.source.size):
            return  # the next owner goes on in the background
        try:
            self._indexer.cover(self._writer.synced_size)
        except TreeringError:
            pass  # the journal is whole and closed; its index can be caught up at any time

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except TreeringError:
            if error is None:
                raise

    def __del__(self) -> None:
        # Not in a forked child: another thread of the parent may have held the lock for ever.
        housekeeper = getattr(self, "_housekeeper", None)
        if housekeeper is not None and self._writer.owner.is_open:
            housekeeper.forget()

    def ask(self, question: Callable[[SessionIndex], _Answer]) -> _Answer:
        """See :meth:`Reads.ask`."""
        self._check_open()
        indexer = self._indexer
        try:
            return indexer.ask(question, self._synced_size())
        except TreeringError:
            # close() or recover() in another thread took the file or the index away.
            self._check_open()
            if indexer is self._indexer:
                raise
            return self._indexer.ask(question, self._synced_size())

    def _load(self, rows: Sequence[Indexed]) -> list[Entry]:
        source = self.source
        try:
            return super()._load(rows)
        except TreeringError:
            # close() or recover() in another thread took the file away under this read.
            self._check_open()
            if source is self.source:
                raise
            return super()._load(rows)

    def _index_is_distrusted(self, why: str) -> bool:
        self._indexer.distrust(why)
        return True

    def _synced_size(self) -> int:
        """Size that the index may cover; with ``durability="os"`` a read makes it everything."""
        if self._writer.dirty and self._writer.poisoned is None:
            with self._lock:
                self._writer.sync()
        return self._writer.synced_size

    def _check_open(self) -> None:
        owner = self._writer.owner
        owner.check_process()
        if self._closed or not owner.is_open:
            with self._lock:  # recover() in another thread gives this session new parts
                if self._closed:
                    raise Closed("the session is closed", path=self.path)
                self._writer.owner.check()

    def _index_in_background(self) -> None:
        size = self._writer.synced_size
        self._indexer.cover_politely(size)
        if self._indexer.covered_size >= size:
            self.pending.drop_below(size)
