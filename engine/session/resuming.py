"""Where an opened session stands: its current position, before or with its index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treering.engine.errors import Damaged, Undecodable
from treering.engine.journal import control
from treering.engine.journal.format import FRAME_HEADER_BYTES, Frame, Kind
from treering.engine.journal.reader import frame_at
from treering.engine.journal.recovery import Examination
from treering.engine.session.facts import facts_of, usable_entry_id
from treering.engine.session.reads import Reads

_NOT_A_LEAF: Final = object()


def has_ambiguous_ids(session: Reads) -> bool:
    """Whether an import brought entries without an id of their own, or with a taken one.

    Then only the index can tell what an id means. Entries that we append always have one.
    """
    provenance = session.provenance()
    return provenance is not None and b'"ambiguous_ids":false' not in provenance[0]


def indexed_leaf(session: Reads) -> str | None:
    """The current position as the index has it."""
    sequence = session.ask(lambda index: index.leaf()).sequence
    if sequence is None:
        return None
    found = session.ask(lambda index: index.by_sequence(sequence))
    return None if found is None else found.id


def leaf_at_opening(session: Reads, found: Examination) -> str | None:
    """The current position from the last frames of the scan; the index only if they do not tell."""
    assert found.walk is not None
    history = found.walk.history
    for frame in reversed(history.leaf_candidates):
        leaf = _leaf_of(session, frame, history.leaf_candidates)
        if leaf is not _NOT_A_LEAF:
            assert leaf is None or isinstance(leaf, str)
            return leaf
    if history.leaf_candidates or not found.from_header:
        return indexed_leaf(session)
    return None


def _leaf_of(session: Reads, frame: Frame, recent: Iterable[Frame]) -> object:
    """The leaf that a frame sets; ``_NOT_A_LEAF`` when it sets none."""
    found = frame_at(session.source, session.salt, frame.offset)
    if found is None:
        return _NOT_A_LEAF
    try:
        payload = session.shared.decoder.decode(frame, found[1][FRAME_HEADER_BYTES:])
    except (Undecodable, Damaged):
        return _NOT_A_LEAF  # as in the index: what cannot be read is no position
    if frame.kind == Kind.LEAF:
        moved = control.decode_leaf(payload)
        if moved is None:
            return _NOT_A_LEAF
        # An entry that a repair lost can be named here: only one that was just seen is believed.
        if moved.leaf is None or moved.leaf in _ids_of(session, recent):
            return moved.leaf
        return indexed_leaf(session)
    facts = facts_of(payload)
    if not facts.moves_leaf:
        return _NOT_A_LEAF
    # The last entry with an id is what that id means for a child that comes after it.
    return facts.id if usable_entry_id(facts.id) else indexed_leaf(session)


def _ids_of(session: Reads, frames: Iterable[Frame]) -> set[str | None]:
    """Own ids of ENTRY frames."""
    ids: set[str | None] = set()
    for frame in frames:
        found = (
            None
            if frame.kind != Kind.ENTRY
            else frame_at(session.source, session.salt, frame.offset)
        )
        if found is None:
            continue
        try:
            payload = session.shared.decoder.decode(frame, found[1][FRAME_HEADER_BYTES:])
        except (Undecodable, Damaged):
            continue
        ids.add(facts_of(payload).id)
    return ids
