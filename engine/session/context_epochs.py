"""Reading the context epoch that is active at a position, and verifying all that it names.

The newest compaction on the path decides. When it has no recipe it is an ordinary one. When it has
one, its frame must be qualified and no import, the recipe must be in the table, and every entry
that it shows must be the frame it was: same id, sequence, place, revision, and the same records
that change how it is shown. Anything else is refused: nothing is passed over.

Where the journal's file was then is information. A session is known by its id, so a store that was
moved or restored keeps its epochs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from treering.engine import home
from treering.engine.errors import Damaged, InvalidContextEpoch
from treering.engine.json_text import decode_or_none
from treering.engine.session.attribution import attributions
from treering.engine.session.capture import SourceRef
from treering.engine.session.context_epoch_recipe import (
    MARKER,
    Control,
    Recipe,
    Snapshot,
    check_control,
    decode_recipe,
)
from treering.engine.session.context_epoch_verifying import At, Verification
from treering.engine.session.entries import decode_header
from treering.engine.session.entry import Entry, is_context_epoch
from treering.engine.session.reads import Reads, pieces
from treering.index import Entry as Indexed

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


class Body(msgspec.Struct, rename="camel"):
    """The members of a compaction that its recipe is about."""

    summary: str = ""
    first_kept_entry_id: str | None = None
    tokens_before: int | float | None = None
    parent_id: str | None = None
    details: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def control(self) -> Control:
        """What the recipe has to agree with."""
        return Control(self.summary, self.first_kept_entry_id, self.tokens_before)


class _Marked(msgspec.Struct):
    recipe: msgspec.Raw = msgspec.field(name=MARKER)


_bodies = msgspec.json.Decoder(Body)
_marked = msgspec.json.Decoder(_Marked)


def active_context_epoch(reads: Reads, leaf_id: str | None) -> ActiveContextEpoch | None:
    """The context epoch at an entry, or None when the newest compaction there is an ordinary one.

    Raises:
        NotFound: no entry has that id.
        InvalidContextEpoch: the compaction says that it is one, and is none (any more).
        LimitExceeded: its recipe is larger than one may be.
        Damaged: the journal is.
    """
    if leaf_id is None:
        return None
    compaction = reads.latest_on_branch("compaction", leaf_id)
    if compaction is None:
        return None
    try:
        found = recipe_of(compaction)
        if found is None:
            return None
        recipe, body = found
        if not is_context_epoch(compaction.flags):
            raise InvalidContextEpoch("it came with an import, or the engine did not write it")
        check_control(recipe, body.control)
        place = At(body.parent_id, compaction.sequence, compaction.sequence)
        Verification(ReadsGround(reads), recipe, place).check()
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


def body_of(compaction: Entry) -> Body | None:
    """The members of a compaction; None when they are of other types than documented."""
    return decode_or_none(_bodies, compaction.raw)


def recipe_of(compaction: Entry) -> tuple[Recipe, Body] | None:
    """The recipe of a compaction; None for an ordinary one.

    Raises:
        InvalidContextEpoch, LimitExceeded: it says that it has one, which is wrong.
    """
    body = body_of(compaction)
    if body is None:
        if is_context_epoch(compaction.flags) or b'"' + MARKER.encode() + b'"' in compaction.raw:
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


class ReadsGround:
    """A session or view as the ground of a recipe."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self.ask = reads.ask
        header = b""
        with contextlib.suppress(Damaged):
            header = reads.header_bytes()
        self.session_ids = session_names(reads.path, header)

    def verified(self, rows: Sequence[Indexed]) -> Iterator[tuple[Indexed, int]]:
        """See :class:`Ground`; about 8 MiB of entries are held."""
        for piece in pieces(rows):
            loaded = self._reads._load(piece)
            if len(loaded) != len(piece):
                raise InvalidContextEpoch("an entry that it names cannot be read")
            yield from ((row, entry.flags) for row, entry in zip(piece, loaded, strict=True))

    def updates(self, row: Indexed, up_to: int) -> list[str]:
        """See :class:`Ground`."""
        for entry in attributions(self._reads, row.id, before=up_to + 1, page=1):
            return [entry.revision.hex()]
        return []


def session_names(path: str, header: bytes) -> frozenset[str]:
    """What a session is called: by its file, and by its header, where that is readable."""
    found = decode_header(header)
    own = () if found is None or found.id is None else (found.id,)
    return frozenset((home.session_id_of(path), *own))


def snapshot_of(source: SourceRef) -> Snapshot:
    """The moment as a recipe spells it."""
    return msgspec.convert(source.as_json(), Snapshot)
