"""Does a recipe hold? Everything that it names is compared with the journal that it is for.

The same rules for an epoch that is read, for one that is about to be written, and for one that is
rebuilt in a copy: what is written can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from treering.engine.errors import InvalidContextEpoch
from treering.engine.journal.format import (
    ENVELOPE_BYTES,
    FLAG_QUALIFICATION_MASK,
    FLAG_QUALIFICATION_SHIFT,
    FLAG_RETAINED,
    QUALIFICATIONS,
)
from treering.engine.session.context_epoch_recipe import (
    EntryRef,
    Locator,
    Recipe,
    Record,
    Snapshot,
    View,
)
from treering.index import Entry as Indexed
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")


class Ground(Protocol):
    """The journal of a session, as far as a recipe needs it."""

    session_ids: frozenset[str]
    """What the session may be called."""

    def ask(self, question: Callable[[SessionIndex], _Answer], /) -> _Answer:
        """See :meth:`Reads.ask`."""

    def verified(self, rows: Sequence[Indexed]) -> Iterator[tuple[Indexed, int]]:
        """The rows, each with the flags of its frame."""

    def updates(self, row: Indexed, up_to: int) -> list[str]:
        """The revisions of the records that change how an entry is shown, up to a sequence."""


def entry_ref(row: Indexed, flags: int, path: str) -> EntryRef:
    """Everything that identifies the frame of an entry."""
    kind: Any = row.kind
    ref = EntryRef(
        row.id,
        row.sequence,
        kind,
        Locator(path, row.offset, ENVELOPE_BYTES + row.stored),
        row.revision.hex(),
        authority=_authority(row, retained=bool(flags & FLAG_RETAINED)),
    )
    qualification = QUALIFICATIONS[(flags & FLAG_QUALIFICATION_MASK) >> FLAG_QUALIFICATION_SHIFT]
    if qualification is not None:
        ref.qualification = qualification
    if flags & FLAG_RETAINED:
        ref.retention = "retained-import"
    return ref


def _authority(row: Indexed, *, retained: bool) -> Any:
    if retained:
        return "imported"
    if row.kind != "message":
        return "runtime"
    return {"assistant": "assistant", "user": "unrecorded"}.get(row.role or "", "runtime")


def frozen_revision(ground: Ground, row: Indexed, up_to: int) -> str:
    """The revision of an entry, with those of the records that changed how it is shown.

    A compaction has its own alone. For an assistant message the newest attribution of a child's
    usage up to a sequence counts.
    """
    own = row.revision.hex()
    if row.kind == "compaction":
        return own
    updates: list[str] = []
    if row.kind == "message" and row.role == "assistant":
        updates = ground.updates(row, up_to)
    return msgspec.json.encode([own, *updates]).decode()


class Place(Protocol):
    """Where the compaction of a recipe stands, or would stand."""

    parent_id: str | None
    sequence: int
    """Its own: everything that it names comes before."""
    leaf: int
    """Sequence of the last entry of its path."""


class At:
    """See :class:`Place`."""

    def __init__(self, parent_id: str | None, sequence: int, leaf: int) -> None:
        self.parent_id = parent_id
        self.sequence = sequence
        self.leaf = leaf


class Verification:
    """One recipe against the journal that it is for."""

    def __init__(self, ground: Ground, recipe: Recipe, place: Place) -> None:
        self._ground = ground
        self._recipe = recipe
        self._place = place
        self._rows: dict[str, Indexed] = {}

    def check(self) -> None:
        """Raise InvalidContextEpoch for whatever is not as the recipe says."""
        recipe = self._recipe
        if recipe.source.session_id not in self._ground.session_ids:
            raise InvalidContextEpoch("it was made for another session")
        if recipe.source.leaf_id != self._place.parent_id:
            raise InvalidContextEpoch("it does not stand where it was captured")
        if recipe.source.source_sequence >= self._place.sequence:
            raise InvalidContextEpoch("it was captured after itself")
        self._look_up()
        tail = self._row(recipe.literal_tail_id, "the literal tail")
        self._check_snapshots(tail)
        self._check_refs()
        self._check_order(tail)
        self._check_tools()

    def _skills(self) -> list[View]:
        skills = self._recipe.selected_skills
        return [skill.view for skill in skills] if isinstance(skills, list) else []

    def _snapshots(self) -> Iterator[Snapshot]:
        yield self._recipe.source
        yield from (view.source for view in self._recipe.views)
        yield from (view.source for view in self._skills())
        if not isinstance(self._recipe.continuation, msgspec.UnsetType):
            yield self._recipe.continuation.public_tail_through

    def _look_up(self) -> None:
        """The index rows of every entry that is named, in one question."""
        names = {self._recipe.literal_tail_id}
        names |= {view.ref.entry_id for view in (*self._recipe.views, *self._skills())}
        names |= {one.leaf_id for one in self._snapshots() if one.leaf_id is not None}
        wanted = sorted(names)
        self._rows = self._ground.ask(lambda index: index.by_ids(wanted))

    def _row(self, entry_id: str, what: str) -> Indexed:
        row = self._rows.get(entry_id)
        if row is None or row.sequence > self._recipe.source.source_sequence:
            raise InvalidContextEpoch(f"{what} {entry_id!r} is not there")
        return row

    def _check_snapshots(self, tail: Indexed) -> None:
        """Each is a moment of this session on this branch, not after the capture."""
        own, leaves = self._recipe.source, {tail.sequence}
        for one in self._snapshots():
            if one.session_id != own.session_id or one.persistent is not own.persistent:
                raise InvalidContextEpoch("it names a moment of another session")
            if not 0 <= one.source_sequence <= own.source_sequence:
                raise InvalidContextEpoch(f"sequence {one.source_sequence} was not captured")
            if one.leaf_id is not None:
                row = self._row(one.leaf_id, "the position")
                if row.sequence > one.source_sequence:
                    raise InvalidContextEpoch(f"position {row.id!r} is later than its moment")
                leaves.add(row.sequence)
        self._check_path(leaves, self._place.leaf)

    def _check_path(self, sequences: Iterable[int], leaf: int) -> None:
        """Each is on the path to ``leaf``."""
        wanted = sorted(sequences)

        def question(index: SessionIndex) -> int | None:
            return next((one for one in wanted if not index.is_ancestor(one, leaf)), None)

        outside = self._ground.ask(question)
        if outside is not None:
            raise InvalidContextEpoch(f"frame {outside} is not on this branch")

    def _check_refs(self) -> None:
        """Every view is the frame that it was, on the branch that it was captured from."""
        views: dict[int, list[View]] = {}
        below: dict[int, set[int]] = {}
        for view in (*self._recipe.views, *self._skills()):
            row = self._row(view.ref.entry_id, "the entry")
            leaf = self._rows.get(view.source.leaf_id or "")
            if leaf is None or row.sequence > view.source.source_sequence:
                raise InvalidContextEpoch(f"entry {row.id!r} was not there when it was captured")
            views.setdefault(row.sequence, []).append(view)
            below.setdefault(leaf.sequence, set()).add(row.sequence)
        for leaf_sequence, sequences in below.items():
            self._check_path(sequences, leaf_sequence)
        rows = sorted(row for row in self._rows.values() if row.sequence in views)
        for row, flags in self._ground.verified(rows):
            for view in views[row.sequence]:
                self._check_ref(view, row, flags)
        for view in self._skills():
            if view.ref.qualification != "native-recovery" or isinstance(view.ref.retention, str):
                raise InvalidContextEpoch(
                    f"skill {view.ref.entry_id!r} was not recorded by the engine"
                )

    def _check_ref(self, view: View, row: Indexed, flags: int) -> None:
        now = entry_ref(row, flags, view.ref.locator.path)
        now.authority = view.ref.authority  # said of the entry, not part of what it is
        up_to = view.source.source_sequence
        if view.ref != now or view.source_revision != frozen_revision(self._ground, row, up_to):
            raise InvalidContextEpoch(f"entry {row.id!r} is not what it was")

    def _check_order(self, tail: Indexed) -> None:
        """No view twice, and none that the literal tail shows already."""
        seen: set[str] = set()
        for view in self._recipe.views:
            entry_id = view.ref.entry_id
            if entry_id in seen:
                raise InvalidContextEpoch(f"entry {entry_id!r} is shown twice")
            seen.add(entry_id)
            if self._rows[entry_id].depth >= tail.depth:
                raise InvalidContextEpoch(f"entry {entry_id!r} is in the literal tail already")

    def _check_tools(self) -> None:
        """The records of tool executions are there, and are what they were."""
        groups = self._recipe.tool_continuations
        if not isinstance(groups, list):
            return
        wanted: dict[str, tuple[int, str] | None] = {}
        for group in groups:
            wanted.setdefault(group.assistant_entry_id, None)
            for call in group.calls:
                wanted[call.intent.id] = (call.intent.sequence, call.intent.revision)
                if isinstance(call.result, Record):
                    wanted[call.result.id] = (call.result.sequence, call.result.revision)
        found = self._ground.ask(lambda index: index.by_ids(list(wanted)))
        for name, said in wanted.items():
            row = found.get(name)
            if row is None or said not in (None, (row.sequence, row.revision.hex())):
                raise InvalidContextEpoch(f"the record {name!r} is not what it was")
        for _ in self._ground.verified(sorted(found.values())):
            pass  # each frame was read, and is the one that its row says
