"""Session: the synchronous core, one owner.

Promises. An append returns when its entries are durable (``durability="full"``), in order, exactly
as given; leaf and metadata move only then. The index is brought up in the background and by reads;
it never delays or fails an append. One lock guards the session: its methods may be called from
any thread. After ``fork()`` the child's handle refuses use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from treering.engine import environment, home
from treering.engine.errors import (
    Ambiguous,
    Closed,
    Conflict,
    Invalid,
    NotFound,
    OutcomeUnknown,
    TreeringError,
)
from treering.engine.journal import control
from treering.engine.journal.disk import LOCAL_DISK, Disk, make_folders
from treering.engine.journal.format import FRAME_HEADER_BYTES, Frame, Kind, salt_of
from treering.engine.journal.opening import Opened, Tail, open_for_writing
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.publish import NewJournal
from treering.engine.journal.reader import GrowingBytes, frame_at
from treering.engine.journal.recovery import Report
from treering.engine.journal.shared import SharedFrames
from treering.engine.journal.writer import Durability, JournalWriter, Record
from treering.engine.session.admission import Admitted, EntryInput, admit
from treering.engine.session.entries import SessionInfoEntry
from treering.engine.session.facts import facts_of, usable_entry_id
from treering.engine.session.housekeeping import Housekeeper
from treering.engine.session.indexing import Indexer
from treering.engine.session.pending import Pending
from treering.engine.session.plan import Batch, Plan
from treering.engine.session.reads import Reads
from treering.engine.session.view import SessionView
from treering.engine.transfer.legacy_json import clean
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")

HEADER_VERSION: Final = 3
_ID_TRIES: Final = 100


@dataclass(frozen=True)
class Parts:
    """An owned journal and what goes with it."""

    disk: Disk
    store: home.Store
    owner: Ownership
    tail: Tail
    indexer: Indexer
    durability: Durability
    compression: bool
    opened: Opened | None
    """None for a journal that was just created."""


def open_parts(path: str, disk: Disk, durability: Durability, compression: bool) -> Parts:
    """Lock, decide, recover: see :func:`open_for_writing` for what it raises."""
    home.check_writable_place(path)
    store = home.Store.of_journal(path)
    session_id = home.session_id_of(path)
    indexer = Indexer(store.index, session_id)
    try:
        opened = open_for_writing(
            disk,
            path,
            top=store.top,
            quarantine_folder=store.quarantine_folder(session_id),
            note_path=_note_path(disk, store, session_id),
            hint=indexer.hint,
        )
    except BaseException:
        indexer.close()
        raise
    return Parts(disk, store, opened.owner, opened.tail, indexer, durability, compression, opened)


class Session(Reads):
    """One owned session. Make it with :meth:`create` or :meth:`open`; close it when done."""

    def __init__(self, parts: Parts) -> None:
        self._lock = threading.RLock()
        self._begin(parts)

    def _begin(self, parts: Parts) -> None:
        """Take over an owned journal: at first, and again by :meth:`recover`."""
        tail, owner = parts.tail, parts.owner
        self._parts = parts
        self.path = owner.path
        self.store = parts.store
        self.report = None if parts.opened is None else parts.opened.report
        self.journal_id = tail.journal_id
        self._salt = salt_of(tail.journal_id)
        self._writer = JournalWriter(
            owner, tail, durability=parts.durability, compression=parts.compression
        )
        writer = self._writer
        self.source = GrowingBytes(owner.file, owner.path, lambda: writer.size)
        self._shared = SharedFrames(self.source, tail.journal_id)
        self._indexer = parts.indexer
        self._leaf_id: str | None = None
        self._pending = Pending(complete=parts.opened is None)
        self._ambiguous_ids = False
        self._closed = False
        self._indexer.attach(
            self.source, tail.journal_id, owner.identity, self._shared, writer.encoded_watermark
        )
        self._housekeeper = Housekeeper(self._index_in_background, writer.sync)
        if parts.opened is not None:
            self._take_up(parts.opened)

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
        durability: Durability = "full",
        compression: bool = True,
        disk: Disk = LOCAL_DISK,
    ) -> Self:
        """A new session, published whole: its header is durable when this returns.

        Raises:
            Conflict: a session of that id exists.
            InvalidId: the id cannot be a file name.
            StorageFull, StorageError, ReadOnly, Unsupported: the place cannot hold a journal.
        """
        _check_durability(durability)
        store = home.Store.at(home_dir, session_dir)
        session_id = home.check_session_id(session_id or environment.new_session_id())
        header: dict[str, object] = {
            "type": "session",
            "version": HEADER_VERSION,
            "id": session_id,
            "timestamp": environment.iso_time(environment.now_ms()),
            "cwd": clean(cwd if cwd is not None else os.getcwd()),
        }
        if parent_session is not None:
            header["parentSession"] = clean(parent_session)
        path = store.journal_path(session_id)
        home.check_writable_place(path)
        new = NewJournal(
            disk, store.sessions, session_id, purpose="create", top=store.top, compression=compression
        )
        try:
            new.add([Record(Kind.SESSION, msgspec.json.encode(header))])
            owner, tail = new.publish(path, _note_path(disk, store, session_id))
        except BaseException:
            new.abandon()
            raise
        indexer = Indexer(store.index, session_id)
        return cls(Parts(disk, store, owner, tail, indexer, durability, compression, None))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        compression: bool = True,
        disk: Disk = LOCAL_DISK,
    ) -> Self:
        """Own an existing session. A torn tail is quarantined and cut; see :attr:`report`.

        Raises:
            NotFound: no such file (opening never creates).
            NotAJournal: another format; for plain JSONL the error names ``import``.
            Owned: somebody else has it.
            Damaged, AcknowledgedDataLost: refused, nothing changed; the report is attached.
            Unsupported: a newer version, or a file system that cannot keep a journal.
        """
        _check_durability(durability)
        parts = open_parts(home.journal_file(path), disk, durability, compression)
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
        """Find the leaf, and the newest ids, without waiting for a long index build."""
        assert opened.examination.walk is not None
        history = opened.examination.walk.history
        self._ambiguous_ids = self._imported_with_ambiguous_ids()
        if self._ambiguous_ids or self._indexer.resumes_quickly(self.source.size):
            self._indexer.cover(self._synced_size())
            self._leaf_id = self._indexed_leaf()
            return
        for frame in reversed(history.leaf_candidates):
            leaf = self._leaf_of(frame)
            if leaf is not _NOT_A_LEAF:
                assert leaf is None or isinstance(leaf, str)
                self._leaf_id = leaf
                break
        else:
            if history.leaf_candidates or not opened.examination.from_header:
                self._leaf_id = self._indexed_leaf()
        self._housekeeper.wake()

    def _imported_with_ambiguous_ids(self) -> bool:
        """Whether an import brought entries without an id of their own, or with a taken one.

        Then only the index can tell what an id means. Entries that we append always have one.
        """
        provenance = self.provenance()
        return provenance is not None and b'"ambiguous_ids":false' not in provenance[0]

    def _leaf_of(self, frame: Frame) -> object:
        """The leaf that a frame sets; ``_NOT_A_LEAF`` when it sets none."""
        found = frame_at(self.source, self._salt, frame.offset)
        if found is None:
            return _NOT_A_LEAF
        payload = self._shared.decoder.decode(frame, found[1][FRAME_HEADER_BYTES:])
        if frame.kind == Kind.LEAF:
            moved = control.decode_leaf(payload)
            return _NOT_A_LEAF if moved is None else moved.leaf
        facts = facts_of(payload)
        if not facts.moves_leaf:
            return _NOT_A_LEAF
        # The last entry with an id is what that id means for a child that comes after it.
        return facts.id if usable_entry_id(facts.id) else self._indexed_leaf()

    def _indexed_leaf(self) -> str | None:
        sequence = self.ask(lambda index: index.leaf()).sequence
        if sequence is None:
            return None
        found = self.ask(lambda index: index.by_sequence(sequence))
        return None if found is None else found.id

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

    def readmit(self, records: Iterable[Record]) -> list[str]:
        """Append frames that were in this journal before, from quarantine, as one batch.

        Bytes and flags (retention, qualification) stay as they were; entries that are present
        are skipped. Returns the ids that were appended.

        Raises:
            InvalidEntry: a payload is no entry.
            Conflict: an id is taken by other content.
        """
        admitted = [(admit(record.payload), record.flags) for record in records]
        self._check_open()
        with self._lock:
            self._check_open()
            fresh = [(entry, flags) for entry, flags in admitted if not self._has_same(entry)]
            plan = Plan(self, [entry for entry, _ in fresh])
            plan.records = [
                Record(record.kind, record.payload, flags)
                for record, (_, flags) in zip(plan.records, fresh, strict=True)
            ]
            self._store_plan(plan, atomic=True)
            return plan.new_ids

    def _has_same(self, entry: Admitted) -> bool:
        assert entry.id is not None
        if not self.exists(entry.id):
            return False
        if self.read(entry.id).raw != entry.raw:
            raise Conflict(f"entry id {entry.id!r} is taken by another entry", path=self.path)
        return True

    def branch_to(self, entry_id: str | None) -> None:
        """Move the current position, durably; None is the position before any entry.

        Raises:
            NotFound: no entry has that id.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            if entry_id is not None:
                self.require_in_tree(entry_id, "the entry")
            payload = control.encode(control.Leaf(entry_id))
            self._write([Record(Kind.LEAF, payload)], (), atomic=False)
            self._leaf_id = entry_id

    def set_name(self, name: str) -> str:
        """Append a session_info entry with this display name (blank clears it)."""
        return self.append(SessionInfoEntry(name=name.strip()))

    def set_label(self, entry_id: str, label: str | None) -> str:
        """Append a label entry; None clears. The entry must exist."""
        return self.append({"type": "label", "targetId": entry_id, "label": label or None})

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
        self._store_plan(plan, atomic=atomic)
        return plan.ids

    def _store_plan(self, plan: Plan, *, atomic: bool) -> None:
        if plan.records:
            try:
                frames = self._write(plan.records, tuple(plan.new_ids), atomic=atomic)
                self._pending.note(plan.new_ids, frames)
                self._leaf_id = plan.leaf
            except TreeringError:
                raise
            except BaseException:
                # Ctrl-C behind the write: the entries are stored and this object does not know.
                self._writer.poison("an append was interrupted")
                raise

    def _write(
        self, records: list[Record], ids: tuple[str, ...], *, atomic: bool
    ) -> list[Frame]:
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

    def fresh_ids(self, count: int) -> list[str]:
        """Ids that nobody has: 8 hex digits, or UUIDs when nobody can say so at once."""
        found: list[str] = []
        for _ in range(_ID_TRIES):
            wanted = count - len(found)
            if wanted <= 0:
                return found
            tried = environment.short_entry_ids(wanted)
            taken, complete = self._pending.among(tried)
            indexed = set() if complete else self._indexer.any_known(tried)
            if indexed is None:
                break
            seen = taken.union(indexed, found)
            for entry_id in tried:
                if entry_id not in seen:
                    seen.add(entry_id)
                    found.append(entry_id)
        return found + [environment.long_entry_id() for _ in range(count - len(found))]

    def require_in_tree(self, entry_id: str, what: str) -> None:
        """Make sure that a new entry can refer to ``entry_id``, and means it.

        Raises:
            NotFound: no entry of the tree has that id.
            Ambiguous: another entry with the same id of its own came later.
        """
        if self._pending.has(entry_id):
            return
        found = self.ask(lambda index: index.by_id(entry_id))
        if found is None or not found.tree:
            raise NotFound(f"{what} {entry_id!r} is not there", path=self.path)
        if not self._ambiguous_ids:
            return
        meant = self.ask(lambda index: index.holder(entry_id))
        if meant is not None and meant != found.sequence:
            raise Ambiguous(
                f"several entries have the id {entry_id!r}; a new one would belong to the last",
                next_step="refer to the last of them by its derived id",
            )

    def exists(self, entry_id: str) -> bool:
        """Whether an id is taken; waits for the index when it must."""
        known = self._pending.knows(entry_id)
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
            self._housekeeper.stop()
            self._indexer.close()
            self._writer.owner.release()
            self._closed = True
            parts = self._parts
            fresh = open_parts(self.path, parts.disk, parts.durability, parts.compression)
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
            self._housekeeper.stop()
            try:
                if self._writer.owner.is_open and self._writer.poisoned is None:
                    self._writer.close(before_release=self._last_index_pass)
                else:
                    self._writer.owner.release()
            finally:
                self._indexer.close()

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
        housekeeper = getattr(self, "_housekeeper", None)
        if housekeeper is not None:
            housekeeper.forget()

    # Parts

    def ask(self, question: Callable[[SessionIndex], _Answer]) -> _Answer:
        self._check_open()
        return self._indexer.ask(question, self._synced_size())

    def _synced_size(self) -> int:
        """Size that the index may cover; with ``durability="os"`` a read makes it everything."""
        if self._writer.dirty and self._writer.poisoned is None:
            with self._lock:
                self._writer.sync()
        return self._writer.synced_size

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the session is closed", path=self.path)
        self._writer.owner.check()

    def _index_in_background(self) -> None:
        size = self._writer.synced_size
        self._indexer.cover(size)
        if self._indexer.covered_size >= size:
            self._pending.drop_below(size)


_NOT_A_LEAF: Final = object()


def _check_durability(durability: str) -> None:
    if durability not in ("full", "os"):
        raise Invalid(f"durability is 'full' or 'os', not {durability!r}")


def _note_path(disk: Disk, store: home.Store, session_id: str) -> str | None:
    """Where the owner's note goes; None when its folder cannot be made (it is advisory)."""
    try:
        _folder_for_notes(disk, store)
    except OSError:
        return None
    return store.owner_note(session_id)


def _folder_for_notes(disk: Disk, store: home.Store) -> None:
    try:
        disk.stat(store.index)
    except FileNotFoundError:
        make_folders(disk, store.index, store.top)
