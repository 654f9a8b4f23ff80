"""A copied session's context epoch, rebuilt for the copy.

A recipe names moments, places and revisions of the session that it was made in, so a copied one
cannot be used as it is. When the epoch that is selected in the copy is one of the engine's own, it
is checked against the source and written anew behind the copied entries, before the copy has a
name: there is no copy with half of it. The copied compaction stays where it is, as what happened.

What a copy may not claim is left out: always ``publicWindow`` and ``resourceRevision``; for an
import also ``replayContract``, ``taskFrame`` and a pending contract. Recipes that prove tool
effects (version 6), and for imports those that pin skills, cannot be made again: refused.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from treering.engine import environment
from treering.engine.errors import InvalidContextEpoch, LimitExceeded, Unsupported
from treering.engine.journal.admissible import Record
from treering.engine.journal.control import decode_leaf
from treering.engine.journal.format import Frame, Kind
from treering.engine.journal.publish import NewJournal
from treering.engine.limits import INDEX_TRANSACTION_ROWS
from treering.engine.session.admission import check_payload_size
from treering.engine.session.context_epoch_recipe import (
    MARKER,
    Recipe,
    Snapshot,
    View,
    check_control,
    check_recipe,
)
from treering.engine.session.context_epoch_verifying import (
    At,
    Verification,
    entry_ref,
    frozen_revision,
)
from treering.engine.session.context_epochs import Body, recipe_of
from treering.engine.session.entry import CONTEXT_EPOCH_FLAGS, Entry, is_context_epoch
from treering.engine.session.facts import facts_of
from treering.engine.session.filling import row_of
from treering.engine.transfer.legacy_read import FrameFacts
from treering.engine.transfer.relinking import json_text, value_of, with_members
from treering.index import Entry as Indexed
from treering.index import LeafMove, Position, Row, SessionIndex

_Answer = TypeVar("_Answer")

CHILD_USAGE: Final = "child_usage_attributed"
_KEPT: Final = ("summary", "firstKeptEntryId", "tokensBefore", "fromHook", "customInstructions")
_TABLE_KINDS: Final = (Kind.ENTRY, Kind.REQUEST, Kind.LEAF)


class EpochSource(NamedTuple):
    """The session that is copied, and what its frames said."""

    session_ids: frozenset[str]
    """What the session is called, by its header and by its file."""
    path: str
    lowered: bool
    """Whether the copy is an import."""
    salvage: bool
    """Whether what does not hold is left out instead of refused."""
    again: Callable[[], Iterator[tuple[Record, FrameFacts | None]]]
    """The records once more, in the same order, each with its frame in the source (None for a
    record that only the copy has)."""
    verify: Callable[[], object] | None = None
    """Raises unless the epoch holds in the source, where that can be asked itself."""


class Target(NamedTuple):
    """The session that is made."""

    session_id: str
    path: str
    persistent: bool


class EpochRebuild:
    """Watches the frames of a copy, and says at the end what is to be written behind them."""

    def __init__(self, source: EpochSource, target: Target) -> None:
        self._source = source
        self._target = target
        self._index = SessionIndex.memory()
        self._ground = _CopyGround(self._index, target.session_id)
        self._file = os.path.basename(target.path)
        self._waiting: list[Row | LeafMove] = []
        self._last: Frame | None = None
        self._sequences = array("Q")
        """Of the records of the copy, in order."""

    def watch(self, records: list[Record], frames: list[Frame]) -> None:
        """Frames were made of these records."""
        for record, frame in zip(records, frames, strict=True):
            if frame.kind not in _TABLE_KINDS:
                continue
            self._last = frame
            self._sequences.append(frame.sequence)
            if frame.kind == Kind.LEAF:
                moved = decode_leaf(record.payload)
                assert moved is not None
                self._waiting.append(LeafMove(frame.sequence, moved.leaf))
            else:
                self._waiting.append(row_of(frame, record.payload))
            if len(self._waiting) >= INDEX_TRANSACTION_ROWS:
                self._index_waiting()

    def _index_waiting(self) -> None:
        if self._waiting:
            last = self._last
            assert last is not None
            self._index.apply(self._waiting, Position(last.sequence, last.offset, last.revision))
            self._waiting = []

    def close(self) -> None:
        """Let the memory go."""
        self._index.close()

    def record(self) -> Record | None:
        """The compaction that makes the selected epoch one of the copy; None without one.

        Raises:
            Unsupported: it cannot be made again in this copy.
            InvalidContextEpoch, LimitExceeded: it does not hold in the source.
        """
        self._index_waiting()
        leaf = self._index.leaf().sequence
        if leaf is None:
            return None
        selected = self._index.latest_on_path("compaction", leaf)
        if selected is None:
            return None
        return self._rebuilt(leaf, selected)

    def _rebuilt(self, leaf: int, selected: Indexed) -> Record | None:
        """The record for the newest compaction of the copy, if it is a context epoch."""
        try:
            found = self._read(selected)
            if found is None:
                return None
            if self._refuses(found.recipe, selected):
                return None
            old = self._old_frames(found.recipe)
            self._check_control(found)
            if self._source.verify is not None:
                self._source.verify()
            _check_source(found, old, self._source.session_ids)
            rebuilt = self._recipe(found, leaf, old)
            check_recipe(rebuilt)
            place = At(rebuilt.source.leaf_id, rebuilt.source.source_sequence + 1, leaf)
            Verification(self._ground, rebuilt, place).check()
            return _record(found.raw, rebuilt)
        except (InvalidContextEpoch, LimitExceeded) as error:
            if self._source.salvage:
                return None  # it stays in the copy as what was written, and refuses when it is read
            raise InvalidContextEpoch(
                f"the context epoch {selected.id!r} that is selected does not hold: {error.what}",
                path=self._source.path,
                next_step="copy a path that ends before it, or compact anew before the copy;"
                " an import with --salvage leaves it as data",
            ) from error

    def _refuses(self, recipe: Recipe, selected: Indexed) -> bool:
        """Whether to leave it out, where it cannot be made again; else raise Unsupported."""
        why = None
        if recipe.version == 6:
            why = "it proves what tools did in the session it was made in"
        elif self._source.lowered and recipe.selected_skills is not UNSET:
            why = "it pins skills, and what is imported proves none"
        elif not self._target.persistent:
            why = "a session in memory has none"
        if why is not None and not self._source.salvage:
            raise self._refused(selected, why)
        return why is not None

    def _refused(self, selected: Indexed, why: str) -> Unsupported:
        return Unsupported(
            f"the context epoch {selected.id!r} that is selected cannot be copied: {why}",
            path=self._source.path,
            next_step="copy a path that ends before it, or compact anew before the copy",
        )

    def _read(self, selected: Indexed) -> _Selected | None:
        """The recipe of a compaction, when the engine wrote it in the source."""
        place = bisect_right(self._sequences, selected.sequence) - 1
        for at, (record, frame) in enumerate(self._source.again()):
            if at == place:
                if frame is None or not is_context_epoch(frame.flags):
                    return None  # data of somebody else, which no reader takes for an epoch
                entry = Entry(record.payload, selected.id, selected.sequence, b"", record.flags)
                found = recipe_of(entry)
                if found is None:
                    return None
                return _Selected(*found, record.payload, frame)
        raise AssertionError("the second pass over the source is shorter than the first")

    def _old_frames(self, recipe: Recipe) -> _Old:
        """The source's frames of everything that the recipe shows, and all sequences."""
        wanted = {view.ref.sequence for view in _views(recipe)}
        names = {view.ref.entry_id for view in _views(recipe)}
        old = _Old({}, {}, array("Q"), array("Q"))
        for at, (record, frame) in enumerate(self._source.again()):
            if frame is None or record.kind == Kind.LEAF:
                continue
            old.before.append(frame.sequence)
            old.after.append(self._sequences[at])
            if frame.sequence in wanted:
                old.frames[frame.sequence] = frame
            if record.kind == Kind.ENTRY and CHILD_USAGE.encode() in record.payload:
                about = facts_of(record.payload).about
                if about in names:
                    old.updates.setdefault(about, []).append(frame)
        return old

    def _recipe(self, found: _Selected, leaf: int, old: _Old) -> Recipe:
        """The recipe of the copy."""
        recipe, last = found.recipe, self._last
        assert last is not None
        leaf_row = self._index.by_sequence(leaf)
        assert leaf_row is not None
        changes: dict[str, Any] = {
            "source": self._snapshot(leaf_row.id, last.sequence, file=self._target.path),
            "views": [self._view(view, old) for view in recipe.views],
            "literal_tail_id": self._tail(found),
            "public_window": UNSET,
            "resource_revision": UNSET,
        }
        if recipe.selected_skills is not UNSET:
            changes["selected_skills"] = [
                msgspec.structs.replace(skill, view=self._view(skill.view, old))
                for skill in recipe.selected_skills
            ]
        if recipe.continuation is not UNSET:
            through = self._moved(recipe.continuation.public_tail_through, old)
            changes["continuation"] = msgspec.structs.replace(
                recipe.continuation, public_tail_through=through
            )
        if self._source.lowered:
            changes |= dict.fromkeys(
                ("replay_contract", "task_frame", "pending_request_contract"), UNSET
            )
        return msgspec.structs.replace(recipe, **changes)

    def _check_control(self, found: _Selected) -> None:
        """What the compaction says. (A path copy may have linked it anew; its source is asked.)"""
        if self._source.verify is None:
            check_control(found.recipe, found.body.control)
            if found.body.parent_id != found.recipe.source.leaf_id:
                raise InvalidContextEpoch("it does not stand where it was captured")

    def _tail(self, found: _Selected) -> str:
        """The literal tail in the copy; of a path copy, what the tail was linked to anew."""
        for tail in (found.recipe.literal_tail_id, found.body.first_kept_entry_id):
            if tail is not None and self._index.by_id(tail) is not None:
                return tail
        raise InvalidContextEpoch(f"the literal tail {found.recipe.literal_tail_id!r} is not there")

    def _view(self, view: View, old: _Old) -> View:
        # By its sequence: an id that was derived may be another one in the copy.
        at = bisect_right(old.before, view.ref.sequence) - 1
        row = self._index.by_sequence(old.after[at])
        assert row is not None
        moment = self._moved(view.source, old)
        known = self._source.verify is not None
        if row.kind != view.ref.kind or not (
            known or _updates_hold(view, row, old.updates.get(view.ref.entry_id, []))
        ):
            raise InvalidContextEpoch(f"entry {view.ref.entry_id!r} is not what it was")
        return msgspec.structs.replace(
            view,
            source=moment,
            ref=entry_ref(row, row.flags, self._file),
            source_revision=frozen_revision(self._ground, row, moment.source_sequence),
        )

    def _moved(self, moment: Snapshot, old: _Old) -> Snapshot:
        """The moment of the copy that holds what the source held then."""
        count = bisect_right(old.before, moment.source_sequence)
        sequence = old.after[count - 1] if count else 0
        leaf = None if moment.leaf_id is None else self._index.by_id(moment.leaf_id)
        if leaf is None and moment.leaf_id is not None:
            if self._source.verify is None or not count:
                raise InvalidContextEpoch(f"the position {moment.leaf_id!r} is not there")
            # Left out of the copy (a label): a path holds nothing but what is above it.
            leaf = self._index.by_sequence(old.after[count - 1])
        return self._snapshot(None if leaf is None else leaf.id, sequence)

    def _snapshot(self, leaf_id: str | None, sequence: int, *, file: str | None = None) -> Snapshot:
        moment = Snapshot(self._target.session_id, leaf_id, sequence, persistent=True)
        if file is not None:
            moment.session_file = file
        return moment


class _CopyGround:
    """The copy as the ground of a recipe: its index was made from its own frames, just now."""

    def __init__(self, index: SessionIndex, session_id: str) -> None:
        self._index = index
        self.session_ids = frozenset((session_id,))

    def ask(self, question: Callable[[SessionIndex], _Answer]) -> _Answer:
        """See :class:`Ground`."""
        return question(self._index)

    def verified(self, rows: Sequence[Indexed]) -> Iterator[tuple[Indexed, int]]:
        """See :class:`Ground`."""
        return ((row, row.flags) for row in rows)

    def updates(self, row: Indexed, up_to: int) -> list[str]:
        """See :class:`Ground`."""
        found = self._index.about(row.id, before=up_to + 1, limit=1)
        return [update.revision.hex() for update in found]


def with_epoch(
    new: NewJournal,
    records: Callable[[], Iterator[Record]],
    source: EpochSource,
    target: Target,
) -> None:
    """Write the records into a new journal, and its context epoch behind them.

    Raises as :meth:`EpochRebuild.record`; the caller abandons the journal.
    """
    rebuild = EpochRebuild(source, target)
    try:
        new.add(records(), rebuild.watch)
        record = rebuild.record()
    finally:
        rebuild.close()
    if record is not None:
        new.add([record])


class _Selected(NamedTuple):
    """The selected epoch as the source has it."""

    recipe: Recipe
    body: Body
    raw: bytes
    frame: FrameFacts


class _Old(NamedTuple):
    """What the source said of the entries that a recipe names."""

    frames: dict[int, FrameFacts]
    """By their sequence there."""
    updates: dict[str, list[FrameFacts]]
    """Attributions by their target, in order."""
    before: array[int]
    """Sequences of the copied entries in the source, in order."""
    after: array[int]
    """And in the copy."""


def _views(recipe: Recipe) -> list[View]:
    skills = recipe.selected_skills
    return recipe.views + ([] if skills is UNSET else [skill.view for skill in skills])


def _check_source(found: _Selected, old: _Old, session_ids: frozenset[str]) -> None:
    """Raise unless the recipe holds in the session that it was made in, as far as only that can
    say it; what the copy can say is checked there."""
    recipe, own = found.recipe, found.recipe.source
    moments = [own, *(view.source for view in _views(recipe))]
    if recipe.continuation is not UNSET:
        moments.append(recipe.continuation.public_tail_through)
    for moment in moments:
        if moment.session_id not in session_ids or not moment.persistent:
            raise InvalidContextEpoch("it was made for another session")
        if not 0 <= moment.source_sequence <= own.source_sequence < found.frame.sequence:
            raise InvalidContextEpoch(f"sequence {moment.source_sequence} was not captured")
    for view in _views(recipe):
        ref, frame = view.ref, old.frames.get(view.ref.sequence)
        if frame is None:
            raise InvalidContextEpoch(f"entry {ref.entry_id!r} is not copied")
        place = (frame.revision, frame.offset, frame.length)
        if place != (ref.revision, ref.locator.offset, ref.locator.length):
            raise InvalidContextEpoch(f"entry {ref.entry_id!r} is not what it was")


def _updates_hold(view: View, row: Indexed, updates: list[FrameFacts]) -> bool:
    """Whether the frozen revisions are those of the source, as far as its kind is known here: what
    changes the results of tools is known to their own system alone."""
    own = view.ref.revision
    if row.kind == "compaction":
        return view.source_revision == own
    try:
        frozen = msgspec.json.decode(view.source_revision, type=list[str])
    except msgspec.MsgspecError:
        return False
    newest = [one.revision for one in updates if one.sequence <= view.source.source_sequence][-1:]
    if row.kind == "message" and row.role not in ("user", "assistant"):
        return frozen[:1] == [own]
    return frozen == [own, *newest]


def _record(raw: bytes, recipe: Recipe) -> Record:
    """The new compaction: as the copied one, with its own recipe, and without its usage."""
    details = with_members(value_of(raw, "details"), {MARKER: recipe.encoded()})
    now = environment.iso_time(environment.now_ms())
    head = {
        "type": "compaction",
        "id": environment.long_entry_id(),
        "parentId": recipe.source.leaf_id,
        "timestamp": now,
    }
    kept = {name: value_of(raw, name) for name in _KEPT if value_of(raw, name) != b"null"}
    kept["tokensBefore"] = value_of(raw, "tokensBefore")
    kept["firstKeptEntryId"] = json_text(recipe.literal_tail_id)
    payload = with_members(msgspec.json.encode(head), {**kept, "details": details})
    check_payload_size(len(payload))
    return Record(Kind.ENTRY, payload, CONTEXT_EPOCH_FLAGS)
