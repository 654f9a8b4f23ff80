"""Reading the context epoch that is active at a position, and verifying all that it names.

The newest compaction on the path decides. When it has no recipe it is an ordinary one. When it has
one, its frame must be qualified and no import, the recipe must be in the table, and every entry
that it shows must be the frame it was: same id, sequence, place, revision, and the same records
that change how it is shown. Anything else is refused: nothing is passed over.

Where the journal's file was then is information. A session is known by its id, so a store that was
moved or restored keeps its epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from treering.engine import home
from treering.engine.errors import InvalidContextEpoch
from treering.engine.journal.format import (
    ENVELOPE_BYTES,
    FLAG_QUALIFICATION_MASK,
    FLAG_QUALIFICATION_SHIFT,
    FLAG_RETAINED,
    QUALIFICATIONS,
)
from treering.engine.json_text import decode_or_none
from treering.engine.session.attribution import attributions
from treering.engine.session.capture import SourceRef
from treering.engine.session.context_epoch_recipe import (
    MARKER,
    Control,
    EntryRef,
    Locator,
    Recipe,
    Record,
    Snapshot,
    View,
    check_control,
    decode_recipe,
)
from treering.engine.session.entry import Entry, is_context_epoch
from treering.engine.session.reads import Reads, pieces
from treering.index import Entry as Indexed
from treering.index import SessionIndex

VIEW_KINDS: Final = ("message", "custom_message", "branch_summary", "compaction")
SKILL_KINDS: Final = ("custom", "custom_message")


class ActiveContextEpoch(NamedTuple):
    """An accepted recipe, verified against the journal."""

    entry_id: str
    sequence: int
    revision: str
    """Of the frame, in hex."""
    recipe: Recipe
    summary: str
    tokens_before: int | float | None

    @property
    def mode(self) -> str:
        """``on``, or what a policy says."""
        return self.recipe.mode if isinstance(self.recipe.mode, str) else "on"


class _Body(msgspec.Struct, rename="camel"):
    summary: str = ""
    first_kept_entry_id: str | None = None
    tokens_before: int | float | None = None
    parent_id: str | None = None
    details: msgspec.Raw = msgspec.Raw(b"null")


class _Marked(msgspec.Struct):
    recipe: msgspec.Raw = msgspec.field(name=MARKER)


_bodies = msgspec.json.Decoder(_Body)
_marked = msgspec.json.Decoder(_Marked)


def active_context_epoch(reads: Reads, leaf_id: str | None) -> ActiveContextEpoch | None:
    """The context epoch at an entry, or None when the newest compaction there is an ordinary one.

    Raises:
        NotFound: no entry has that id.
        InvalidContextEpoch: the compaction says that it is one, and is none (any more).
        LimitExceeded: its recipe is larger than one may be.
    """
    if leaf_id is None:
        return None
    compaction = reads.latest_on_branch("compaction", leaf_id)
    if compaction is None:
        return None
    found = recipe_of(compaction)
    if found is None:
        return None
    recipe, body = found
    if not is_context_epoch(compaction.flags):
        raise _refused(reads, compaction, "it came with an import, or the engine did not write it")
    try:
        check_control(recipe, Control(body.summary, body.first_kept_entry_id, body.tokens_before))
        _Verification(reads, recipe, compaction, body.parent_id).check()
    except InvalidContextEpoch as error:
        raise _refused(reads, compaction, error.what) from None
    return ActiveContextEpoch(
        compaction.id,
        compaction.sequence,
        compaction.revision.hex(),
        recipe,
        body.summary,
        body.tokens_before,
    )


def recipe_of(compaction: Entry) -> tuple[Recipe, _Body] | None:
    """The recipe of a compaction; None for an ordinary one.

    Raises:
        InvalidContextEpoch, LimitExceeded: it says that it has one, which is wrong.
    """
    body = decode_or_none(_bodies, compaction.raw)
    if body is None:
        if b'"' + MARKER.encode() + b'"' in compaction.raw:
            raise InvalidContextEpoch(f"the members of compaction {compaction.id!r} are wrong")
        return None
    marked = decode_or_none(_marked, bytes(body.details))
    return None if marked is None else (decode_recipe(bytes(marked.recipe)), body)


def _refused(reads: Reads, entry: Entry, why: str) -> InvalidContextEpoch:
    return InvalidContextEpoch(
        f"compaction {entry.id!r} is no context epoch that can be used: {why}",
        path=reads.path,
        next_step="branch to an entry before it, or compact anew behind it",
    )


# References


def snapshot_of(source: SourceRef) -> Snapshot:
    """The moment as a recipe spells it."""
    return msgspec.convert(source.as_json(), Snapshot)


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


def frozen_revision(reads: Reads, row: Indexed, up_to: int) -> str:
    """The revision of an entry, with those of the records that changed how it is shown.

    A compaction has its own alone. For an assistant message the newest attribution of a child's
    usage up to a sequence counts.
    """
    own = row.revision.hex()
    if row.kind == "compaction":
        return own
    updates = [entry.revision.hex() for entry in updates_of(reads, row, up_to)]
    return msgspec.json.encode([own, *updates]).decode()


def updates_of(reads: Reads, row: Indexed, up_to: int) -> list[Entry]:
    """The records that change how an entry is shown."""
    if row.kind != "message" or row.role != "assistant":
        return []
    for entry in attributions(reads, row.id, before=up_to + 1):
        return [entry]
    return []


# Verification


class _Verification:
    """One recipe against the journal that holds it."""

    def __init__(self, reads: Reads, recipe: Recipe, holder: Entry, parent_id: str | None) -> None:
        self._reads = reads
        self._recipe = recipe
        self._holder = holder
        self._parent_id = parent_id
        self._id = home.session_id_of(reads.path)
        self._rows: dict[str, Indexed] = {}

    def check(self) -> None:
        """Raise InvalidContextEpoch for whatever is not as the recipe says."""
        recipe = self._recipe
        if recipe.source.session_id != self._id:
            raise InvalidContextEpoch("it was made for another session")
        if recipe.source.leaf_id != self._parent_id:
            raise InvalidContextEpoch("it does not stand where it was captured")
        if recipe.source.source_sequence >= self._holder.sequence:
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
        self._rows = self._reads.ask(lambda index: index.by_ids(wanted))

    def _row(self, entry_id: str, what: str) -> Indexed:
        row = self._rows.get(entry_id)
        if row is None or row.sequence > self._recipe.source.source_sequence:
            raise InvalidContextEpoch(f"{what} {entry_id!r} is not there")
        return row

    def _check_snapshots(self, tail: Indexed) -> None:
        """Each is a moment of this session on this branch, not after the capture."""
        own, leaves = self._recipe.source, {tail.sequence}
        for one in self._snapshots():
            if one.session_id != self._id or one.persistent is not own.persistent:
                raise InvalidContextEpoch("it names a moment of another session")
            if not 0 <= one.source_sequence <= own.source_sequence:
                raise InvalidContextEpoch(f"sequence {one.source_sequence} was not captured")
            if one.leaf_id is not None:
                row = self._row(one.leaf_id, "the position")
                if row.sequence > one.source_sequence:
                    raise InvalidContextEpoch(f"position {row.id!r} is later than its moment")
                leaves.add(row.sequence)
        self._check_path(leaves, self._holder.sequence)

    def _check_path(self, sequences: Iterable[int], leaf: int) -> None:
        """Each is on the path to ``leaf``."""
        wanted = sorted(sequences)

        def question(index: SessionIndex) -> int | None:
            return next((one for one in wanted if not index.is_ancestor(one, leaf)), None)

        outside = self._reads.ask(question)
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
        for piece in pieces(rows):
            for row, entry in zip(piece, self._reads._load(piece), strict=True):
                for view in views[row.sequence]:
                    self._check_ref(view, row, entry)
        for view in self._skills():
            if view.ref.qualification != "native-recovery" or view.ref.retention != UNSET:
                raise InvalidContextEpoch(
                    f"skill {view.ref.entry_id!r} was not recorded by the engine"
                )

    def _check_ref(self, view: View, row: Indexed, entry: Entry) -> None:
        now = entry_ref(row, entry.flags, view.ref.locator.path)
        now.authority = view.ref.authority  # said of the entry, not part of what it is
        up_to = view.source.source_sequence
        if view.ref != now or view.source_revision != frozen_revision(self._reads, row, up_to):
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
            wanted[group.assistant_entry_id] = None
            for call in group.calls:
                wanted[call.intent.id] = (call.intent.sequence, call.intent.revision)
                if isinstance(call.result, Record):
                    wanted[call.result.id] = (call.result.sequence, call.result.revision)
        rows = self._reads.ask(lambda index: index.by_ids(list(wanted)))
        for name, said in wanted.items():
            row = rows.get(name)
            if row is None or said not in (None, (row.sequence, row.revision.hex())):
                raise InvalidContextEpoch(f"the record {name!r} is not what it was")
            self._reads._load([row])  # verifies the frame
