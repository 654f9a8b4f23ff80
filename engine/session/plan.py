"""Planning what is appended together: ids, parents, references, and the bytes of each entry."""

from __future__ import annotations

import copy
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from treering.engine import environment
from treering.engine.errors import (
    Ambiguous,
    Closed,
    Conflict,
    InvalidEntry,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    TreeringError,
)
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import Frame, Kind
from treering.engine.json_text import decode_or_none
from treering.engine.limits import BATCH_BYTES_MAX
from treering.engine.session.admission import Admitted, EntryInput, References, admit
from treering.engine.session.facts import facts_of
from treering.index import SessionIndex

if TYPE_CHECKING:
    from treering.engine.session.session import Session


class Moment(NamedTuple):
    """A point between two writes of one owner."""

    leaf_id: str | None
    sequence: int
    """Of the last frame that was written."""
    selections: int
    """Grows whenever the position goes anywhere but below itself, and at a recovery."""


class Plan:
    """Ids, parents and bytes for entries that are appended together, decided under the lock."""

    def __init__(self, session: Session, admitted: list[Admitted], *, alone: bool = False) -> None:
        """With ``alone`` an entry that cannot be appended is left out; see :attr:`refused`."""
        self._session = session
        self._fresh = session.fresh_ids.take(sum(entry.id is None for entry in admitted))
        self.leaf = session.leaf_id
        self.moves = 0
        """How many entries stand below another one than the position before them."""
        self.ids: list[str] = []
        self.new_ids: list[str] = []
        self.records: list[Record] = []
        self._parents: dict[str, str | None] = {}
        self._now = environment.iso_time(environment.now_ms())
        self.frames: list[Frame] = []
        """What was written, once it is."""
        self.refused: dict[int, TreeringError] = {}
        """Why entries were left out, by their place."""
        for place, entry in enumerate(admitted):
            try:
                self._add(entry)
            except TreeringError as error:
                if not alone:
                    raise
                self.refused[place] = error

    def _add(self, entry: Admitted) -> None:
        if entry.id is not None and (entry.id in self._parents or self._session.exists(entry.id)):
            self._repeat(entry, entry.id)
            return
        parent = entry.parent if entry.parent_given else self.leaf
        if parent is not None and (entry.parent_given or self._session.ambiguous_ids):
            self._require(parent, "the parent")
        if entry.references is not None:
            self._check_references(entry.references, entry.kind, parent)
        entry_id = entry.id
        if entry_id is None:
            entry_id = self._fresh.pop()
        else:
            self._session.fresh_ids.give_up(entry_id)
        payload = entry.payload(entry_id, parent, entry.timestamp or self._now)
        request = entry.is_request
        kind = Kind.REQUEST if request else Kind.ENTRY
        self.records.append(Record(kind, payload, entry.flags))
        self.ids.append(entry_id)
        self.new_ids.append(entry_id)
        self._parents[entry_id] = parent
        if not request:
            self.moves += parent != self.leaf
            self.leaf = entry_id

    def _repeat(self, entry: Admitted, entry_id: str) -> None:
        """An id that exists: a no-op for the same content, else a conflict."""
        if entry_id in self._parents:
            raise Conflict(
                f"entry id {entry_id!r} occurs twice in one call", path=self._session.path
            )
        stored = self._session.read(entry_id)
        facts = facts_of(stored.raw)
        timestamp = entry.timestamp or _timestamp_in(stored.raw)
        parent = entry.parent if entry.parent_given else facts.parent_id
        qualified_otherwise = entry.flags and entry.flags != stored.flags
        if qualified_otherwise or entry.payload(entry_id, parent, timestamp) != stored.raw:
            raise Conflict(
                f"entry id {entry_id!r} is taken by another entry",
                path=self._session.path,
                next_step="append without an id, or with a new one",
            )
        self.ids.append(entry_id)

    def _require(self, entry_id: str, what: str) -> None:
        if entry_id in self._parents:
            return
        require_in_tree(self._session, entry_id, what)

    def _check_references(self, references: References, kind: str, parent: str | None) -> None:
        if kind == "compaction":
            kept = references.first_kept_entry_id
            if kept is not None and not self._is_above(kept, parent):
                raise NotFound(
                    f"firstKeptEntryId {kept!r} is not an ancestor of the compaction",
                    path=self._session.path,
                )
            return
        if references.target_id is None:
            raise InvalidEntry(f"a {kind} entry needs a targetId")
        self._require(references.target_id, "the target")

    def _is_above(self, ancestor: str, entry_id: str | None) -> bool:
        """Whether ``ancestor`` is on the path to ``entry_id`` (an entry is on its own path)."""
        while entry_id in self._parents:
            if entry_id == ancestor:
                return True
            entry_id = self._parents[entry_id]
        if entry_id is None or ancestor in self._parents:
            return False
        below = entry_id

        def answer(index: SessionIndex) -> bool:
            upper, lower = index.by_id(ancestor), index.by_id(below)
            if upper is None or lower is None:
                return False
            return index.is_ancestor(upper.sequence, lower.sequence)

        return self._session.ask(answer)


def require_in_tree(session: Session, entry_id: str, what: str) -> None:
    """Make sure that a new entry can refer to ``entry_id``, and means it.

    Raises:
        NotFound: no entry of the tree has that id.
        Ambiguous: another entry with the same id of its own came later.
    """
    if not isinstance(entry_id, str):
        raise NotFound(f"{what} {entry_id!r} is not there: ids are strings", path=session.path)
    if session.pending.has(entry_id):
        return
    found = session.ask(lambda index: index.by_id(entry_id))
    if found is None or not found.tree:
        raise NotFound(f"{what} {entry_id!r} is not there", path=session.path)
    if not session.ambiguous_ids:
        return
    meant = session.ask(lambda index: index.holder(entry_id))
    if meant is not None and meant != found.sequence:
        raise Ambiguous(
            f"several entries have the id {entry_id!r}; a new one would belong to the last",
            next_step="refer to the last by its derived id, or branch to another entry",
        )


class Appended(NamedTuple):
    """An acknowledged entry."""

    id: str
    raw: bytes | None
    """Its bytes; None when it was there before."""
    frame: Frame | None = None


def append_group(session: Session, admitted: list[Admitted]) -> list[Appended | TreeringError]:
    """Append entries of several callers with one sync; the answer to each, in order.

    One that cannot be appended is refused alone. No id of a caller's own may occur twice.
    """
    session.hold()
    failed: TreeringError | None = None
    try:
        plan = Plan(session, admitted, alone=True)
        try:
            session.store_plan(plan, atomic=False)
        except TreeringError as error:
            failed = error
        except Exception as error:
            if session.poisoned is None:
                raise
            failed = OutcomeUnknown(
                f"an append was interrupted: {error!r}",
                path=session.path,
                next_step="recover the session, then look up the entry",
            )
            failed.__cause__ = error
    finally:
        session.let_go()
    return _answers(plan, len(admitted), failed)


def append_one(session: Session, entry: Admitted) -> Appended:
    """Append one entry. Raises as :meth:`Session.append`."""
    (answer,) = append_group(session, [entry])
    if isinstance(answer, TreeringError):
        raise answer
    return answer


def _answers(
    plan: Plan, count: int, failed: TreeringError | None
) -> list[Appended | TreeringError]:
    """What each caller is told; what was there before stays, whatever became of the write."""
    raws = dict(zip(plan.new_ids, (record.payload for record in plan.records), strict=True))
    frames = dict(zip(plan.new_ids, plan.frames, strict=False))
    ids = iter(plan.ids)
    answers: list[Appended | TreeringError] = []
    for place in range(count):
        refused = plan.refused.get(place)
        if refused is not None:
            answers.append(refused)
            continue
        entry_id = next(ids)
        raw = raws.get(entry_id)
        if failed is None or raw is None:
            answers.append(Appended(entry_id, raw, frames.get(entry_id)))
        else:
            answers.append(_alone(failed, entry_id))
    return answers


def _alone(failed: TreeringError, entry_id: str) -> TreeringError:
    """An error of its own for one caller; an unknown outcome names only that caller's entry."""
    own = copy.copy(failed)
    if isinstance(own, OutcomeUnknown):
        own.entry_ids = (entry_id,)
        own.__cause__ = failed
    return own


class Batch:
    """Collects entries; written whole when the ``with`` block ends without an exception."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._admitted: list[Admitted] = []
        self._bytes = 0
        self._active = False
        self._used = False
        self.ids: list[str] = []
        """The ids of the entries, once the block has ended."""

    def append(self, entry: EntryInput) -> None:
        """Add an entry to the batch.

        Raises:
            InvalidEntry, LimitExceeded: the batch stays as it was.
        """
        if not self._active:
            raise Closed("the batch is not open; use it in a with block")
        admitted = admit(entry)
        size = self._bytes + len(admitted.rest)
        if size > BATCH_BYTES_MAX:
            raise LimitExceeded(
                f"a batch of {size} bytes; at most {BATCH_BYTES_MAX}",
                limit=BATCH_BYTES_MAX,
                need=size,
            )
        self._bytes = size
        self._admitted.append(admitted)

    def __enter__(self) -> Self:
        if self._used:
            raise Closed("a batch is used once; ask the session for another one")
        self._session.hold()
        self._used = True
        self._active = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._active = False
        try:
            if error is None and self._admitted:
                self.ids = self._session.store_admitted(self._admitted, atomic=True)
        finally:
            self._session.let_go()


class _Timestamp(msgspec.Struct):
    timestamp: str = ""


_timestamps = msgspec.json.Decoder(_Timestamp)


def _timestamp_in(raw: bytes) -> str:
    found = decode_or_none(_timestamps, raw)
    return "" if found is None else found.timestamp
