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

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from treering.engine import environment
from treering.engine.errors import InvalidContextEpoch, TreeringError, Unsupported
from treering.engine.journal.admissible import Record
from treering.engine.journal.control import decode_leaf
from treering.engine.journal.format import (
    Frame,
    Kind,
)
from treering.engine.journal.publish import NewJournal
from treering.engine.limits import INDEX_TRANSACTION_ROWS
from treering.engine.session.admission import admit
from treering.engine.session.context_epoch_recipe import (
    MARKER,
    Recipe,
    Snapshot,
    View,
    check_recipe,
)
from treering.engine.session.context_epochs import entry_ref, recipe_of
from treering.engine.session.entry import CONTEXT_EPOCH_FLAGS, Entry, is_context_epoch
from treering.engine.session.facts import facts_of
from treering.engine.session.filling import row_of
from treering.engine.transfer.legacy_read import FrameFacts
from treering.index import Entry as Indexed
from treering.index import LeafMove, Position, Row, SessionIndex

CHILD_USAGE: Final = "child_usage_attributed"
_KEPT: Final = (
    "summary",
    "firstKeptEntryId",
    "tokensBefore",
    "fromHook",
    "customInstructions",
)
_TABLE_KINDS: Final = (Kind.ENTRY, Kind.REQUEST, Kind.LEAF)


class EpochSource(NamedTuple):
    """The session that is copied, and what its frames said."""

    session_id: str
    path: str
    lowered: bool
    """Whether the copy is an import."""
    again: Callable[[], Iterator[tuple[Record, FrameFacts | None]]]
    """The records once more, in the same order, each with its frame in the source (None for a
    record that only the copy has)."""


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
        found = self._read(selected)
        if found is None:
            return None
        recipe, raw = found
        if recipe.version == 6:
            raise self._refused(selected, "it proves what tools did in the session it was made in")
        if self._source.lowered and recipe.selected_skills is not UNSET:
            raise self._refused(selected, "it pins skills, and what is imported proves none")
        if not self._target.persistent:
            raise self._refused(selected, "a session in memory has none")
        try:
            old = self._old_frames(recipe)
            _check_source(recipe, old, self._source.session_id, selected.id)
            rebuilt = self._recipe(recipe, leaf, old)
            check_recipe(rebuilt)
        except TreeringError as error:
            error.path = error.path or self._source.path
            raise
        return _record(raw, rebuilt)

    def _refused(self, selected: Indexed, why: str) -> Unsupported:
        return Unsupported(
            f"the context epoch {selected.id!r} that is selected cannot be copied: {why}",
            path=self._source.path,
            next_step="copy a path that ends before it, or compact anew before the copy",
        )

    def _read(self, selected: Indexed) -> tuple[Recipe, bytes] | None:
        """The recipe of a compaction, when the engine wrote it in the source."""
        place = bisect_right(self._sequences, selected.sequence) - 1
        for at, (record, frame) in enumerate(self._source.again()):
            if at == place:
                if frame is None or not is_context_epoch(frame.flags):
                    return None  # data of somebody else, which no reader takes for an epoch
                entry = Entry(record.payload, selected.id, selected.sequence, b"", record.flags)
                found = recipe_of(entry)
                return None if found is None else (found[0], record.payload)
        raise AssertionError("the second pass over the source is shorter than the first")

    def _old_frames(self, recipe: Recipe) -> _Old:
        """The source's frames of everything that the recipe names, and all sequences."""
        names = {view.ref.entry_id for view in _views(recipe)}
        rows = self._index.by_ids(sorted(names))
        wanted = {row.sequence: row.id for row in rows.values()}
        old = _Old({}, {}, array("Q"), array("Q"))
        for at, (record, frame) in enumerate(self._source.again()):
            if frame is None or record.kind == Kind.LEAF:
                continue
            sequence = self._sequences[at]
            old.before.append(frame.sequence)
            old.after.append(sequence)
            name = wanted.get(sequence)
            if name is not None:
                old.frames[name] = frame
            if record.kind == Kind.ENTRY and CHILD_USAGE.encode() in record.payload:
                about = facts_of(record.payload).about
                if about in names:
                    old.updates.setdefault(about, []).append(frame)
        return old

    def _recipe(self, recipe: Recipe, leaf: int, old: _Old) -> Recipe:
        """The recipe of the copy."""
        last = self._last
        assert last is not None
        leaf_row = self._index.by_sequence(leaf)
        assert leaf_row is not None
        if self._index.by_id(recipe.literal_tail_id) is None:
            raise InvalidContextEpoch(f"the literal tail {recipe.literal_tail_id!r} is not copied")
        changes: dict[str, Any] = {
            "source": self._snapshot(leaf_row.id, last.sequence),
            "views": [self._view(view, old) for view in recipe.views],
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

    def _view(self, view: View, old: _Old) -> View:
        row = self._index.by_id(view.ref.entry_id)
        if row is None:
            raise InvalidContextEpoch(f"the view {view.ref.entry_id!r} is not copied")
        moment = self._moved(view.source, old)
        revision = row.revision.hex()
        if row.kind != "compaction":
            updates = []
            if row.kind == "message" and row.role == "assistant":
                updates = self._index.about(row.id, before=moment.source_sequence + 1, limit=1)
            frozen = [revision, *(update.revision.hex() for update in updates)]
            revision = msgspec.json.encode(frozen).decode()
        return msgspec.structs.replace(
            view,
            source=moment,
            ref=entry_ref(row, row.flags, self._target.path),
            source_revision=revision,
        )

    def _moved(self, moment: Snapshot, old: _Old) -> Snapshot:
        """The moment of the copy that holds what the source held then."""
        count = bisect_right(old.before, moment.source_sequence)
        sequence = old.after[count - 1] if count else 0
        leaf = None if moment.leaf_id is None else self._index.by_id(moment.leaf_id)
        if leaf is None and moment.leaf_id is not None and count:
            # Left out of the copy (a label): a path holds nothing but what is above it.
            leaf = self._index.by_sequence(old.after[count - 1])
        return self._snapshot(None if leaf is None else leaf.id, sequence)

    def _snapshot(self, leaf_id: str | None, sequence: int) -> Snapshot:
        target = self._target
        return Snapshot(
            target.session_id, leaf_id, sequence, persistent=True, session_file=target.path
        )


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


class _Old(NamedTuple):
    """What the source said of the entries that a recipe names."""

    frames: dict[str, FrameFacts]
    updates: dict[str, list[FrameFacts]]
    """Attributions by their target, in order."""
    before: array[int]
    """Sequences of the copied entries in the source, in order."""
    after: array[int]
    """And in the copy."""


def _views(recipe: Recipe) -> list[View]:
    skills = recipe.selected_skills
    return recipe.views + ([] if skills is UNSET else [skill.view for skill in skills])


def _check_source(recipe: Recipe, old: _Old, session_id: str, epoch_id: str) -> None:
    """Raise unless the recipe holds in the session that it was made in."""
    moments = [recipe.source, *(view.source for view in _views(recipe))]
    if recipe.continuation is not UNSET:
        moments.append(recipe.continuation.public_tail_through)
    for moment in moments:
        if moment.session_id != session_id or not moment.persistent:
            raise InvalidContextEpoch(f"epoch {epoch_id!r} was made for another session")
    for view in _views(recipe):
        ref, frame = view.ref, old.frames.get(view.ref.entry_id)
        if frame is None:
            raise InvalidContextEpoch(f"epoch {epoch_id!r} shows {ref.entry_id!r}, not copied")
        place = (frame.sequence, frame.revision, frame.offset, frame.length)
        stated = (ref.sequence, ref.revision, ref.locator.offset, ref.locator.length)
        if place != stated or not _holds(view, frame, old.updates.get(ref.entry_id, [])):
            raise InvalidContextEpoch(f"epoch {epoch_id!r} shows {ref.entry_id!r} as it is not")


def _holds(view: View, frame: FrameFacts, updates: list[FrameFacts]) -> bool:
    """Whether the frozen revisions are those of the source, as far as its kind is known here."""
    if view.ref.kind == "compaction":
        return view.source_revision == frame.revision
    try:
        frozen = msgspec.json.decode(view.source_revision, type=list[str])
    except msgspec.MsgspecError:
        return False
    newest = [one.revision for one in updates if one.sequence <= view.source.source_sequence][-1:]
    return frozen[:1] == [frame.revision] and (not newest or frozen[1:] == newest)


def _record(raw: bytes, recipe: Recipe) -> Record:
    """The new compaction: as the copied one, with its own recipe, and without its usage."""
    value: dict[str, Any] = msgspec.json.decode(raw)
    details = {**value["details"], MARKER: msgspec.json.decode(recipe.encoded())}
    kept: dict[str, Any] = {
        name: value[name]
        for name in (
            "summary",
            "firstKeptEntryId",
            "tokensBefore",
            "fromHook",
            "customInstructions",
        )
        if name in value
    }
    entry = admit({"type": "compaction", **kept, "details": details}, verified=True)
    now = environment.iso_time(environment.now_ms())
    payload = entry.payload(environment.long_entry_id(), recipe.source.leaf_id, now)
    return Record(Kind.ENTRY, payload, CONTEXT_EPOCH_FLAGS)
