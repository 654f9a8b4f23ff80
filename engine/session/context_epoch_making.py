"""Making context epochs: a candidate is prepared from a capture, and activated by compare-and-swap.

Preparing reads and writes nothing. Activating writes one compaction, if the session still stands
where it was captured: same owner, same branch, same position. Request records that came in between
do not matter. When it refuses, nothing was written and the old context holds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from treering.engine.errors import (
    Conflict,
    Invalid,
    InvalidContextEpoch,
    LimitExceeded,
    TreeringError,
)
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session.admission import admit
from treering.engine.session.context_epoch_recipe import (
    MARKER,
    Control,
    Recipe,
    Skill,
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
from treering.engine.session.context_epochs import (
    SKILL_KINDS,
    VIEW_KINDS,
    ReadsGround,
    active_context_epoch,
    body_of,
    snapshot_of,
)
from treering.engine.session.context_rules import SHOWN_KINDS
from treering.engine.session.entry import CONTEXT_EPOCH_FLAGS, Entry
from treering.engine.session.output_links import LinkedCompaction, Origin, OutputLink
from treering.engine.session.reads import Reads, pieces
from treering.engine.session.verbs import compaction
from treering.index import Entry as Indexed
from treering.index import SessionIndex

_PAGE: Final = PAGE_ENTRIES * 4
_TERMS: Final = (
    "version",
    "renderer",
    "representation",
    "include_summary",
    "replay_contract",
    "public_window",
    "continuation",
    "tool_continuations",
    "task_frame",
    "resource_revision",
    "mode",
    "policy_only",
    "request_contract",
    "pending_request_contract",
)
"""Members of a recipe that say under which terms its entries are shown."""


class ContextEpochAck(NamedTuple):
    """An activated context epoch: durable, and the newest one at the position."""

    entry_id: str
    sequence: int
    revision: str
    """Of the frame, in hex."""
    reused: bool = False
    """Whether it was there before, and shows the same: then nothing was written."""


class ContextEpochCandidate:
    """What would become a context epoch; nothing was written for it yet."""

    __slots__ = ("_encoded", "_origin", "_unchanged")

    def __init__(self, origin: Origin, recipe: Recipe, unchanged: ContextEpochAck | None) -> None:
        self._origin = origin
        self._encoded = recipe.encoded()
        self._unchanged = unchanged

    @property
    def unchanged(self) -> ContextEpochAck | None:
        """The active epoch, when it shows the same already: activating writes nothing then."""
        return self._unchanged

    @property
    def recipe(self) -> Recipe:
        """A copy of its recipe."""
        return msgspec.json.decode(self._encoded, type=Recipe)


class Choice(NamedTuple):
    """Which entries a context shows; the rest of the arguments of ``prepare_context_epoch``."""

    view_ids: list[str]
    tail_id: str | None
    renderings: dict[str, str]
    skills: dict[str, str]

    @classmethod
    def of(cls, view_ids: Any, tail_id: Any, renderings: Any, skills: Any) -> Choice:
        """The arguments as they are now, with their types checked.

        Raises:
            InvalidContextEpoch: one is of another type.
        """
        try:
            named = {
                "view_ids": list(view_ids),
                "tail_id": tail_id,
                "renderings": dict(renderings or {}),
                "skills": dict(skills or {}),
            }
            return msgspec.convert(list(named.values()), Choice)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise InvalidContextEpoch(f"not a choice of entries: {error}") from None


def prepare(reads: Reads, origin: Origin, choice: Choice, recipe: dict[str, Any]) -> Recipe:
    """The recipe of a choice; ``recipe`` has the other members, by their names here.

    Raises:
        InvalidContextEpoch: the choice or a member is not allowed; names the rule.
        LimitExceeded: too many views, or too large.
    """
    given_twice = [name for name in _CHOSEN if name in recipe]
    if given_twice:
        raise InvalidContextEpoch(f"{given_twice[0]} follows from the choice of entries")
    moment = snapshot_of(origin.source)
    rows = _chosen(reads, moment, [*choice.view_ids, *choice.skills.values()])
    tail = _tail(reads, moment, choice, rows, recipe)
    named = [rows[entry_id] for entry_id in choice.view_ids if entry_id != tail.id]
    for row in named:
        if row.kind not in VIEW_KINDS:
            raise InvalidContextEpoch(f"entry {row.id!r} of kind {row.kind!r} cannot be a view")
    views = _views(reads, moment, [*named, *(rows[one] for one in choice.skills.values())])
    for entry_id, rendering in choice.renderings.items():
        if entry_id not in views:
            raise InvalidContextEpoch(f"a rendering of {entry_id!r}, which is no view")
        views[entry_id].rendering = rendering  # type: ignore[assignment] # checked when it is built
    skills = [Skill(name, views[entry_id]) for name, entry_id in choice.skills.items()]
    given = {name: value for name, value in recipe.items() if value is not None}
    if skills:
        given["selected_skills"] = skills
    version = given.pop("version")
    renderer = "native-canonical-epoch/7" if skills else f"native-canonical-epoch/{version}"
    built = _built(
        version=version,
        renderer=renderer,
        source=moment,
        representation=given.pop("representation", None),
        views=[views[row.id] for row in named],
        literal_tail_id=tail.id,
        **given,
    )
    check_recipe(built)
    leaf = _leaf(reads, moment)
    # What is written can be read: the same rules.
    place = At(moment.leaf_id, moment.source_sequence + 1, leaf.sequence)
    Verification(ReadsGround(reads), built, place).check()
    return built


def unchanged(reads: Reads, recipe: Recipe) -> ContextEpochAck | None:
    """The active epoch where a recipe was captured, if it shows the same under the same terms."""
    leaf_id = recipe.source.leaf_id
    try:
        active = active_context_epoch(reads, leaf_id)
    except (InvalidContextEpoch, LimitExceeded):
        return None
    if active is None or leaf_id is None or recipe.include_summary is True:
        return None
    before = active.recipe
    if any(getattr(before, name) != getattr(recipe, name) for name in _TERMS):
        return None
    if _skills(before) != _skills(recipe):
        return None
    if _shown(reads, before, leaf_id) != _shown(reads, recipe, leaf_id):
        return None
    # A frozen view is not what it was when its usage was attributed anew meanwhile.
    rows = reads.ask(lambda index: index.by_ids([view.ref.entry_id for view in before.views]))
    ground, now = ReadsGround(reads), recipe.source.source_sequence
    for view in before.views:
        if view.source_revision != frozen_revision(ground, rows[view.ref.entry_id], now):
            return None
    return ContextEpochAck(active.entry_id, active.sequence, active.revision, reused=True)


def _skills(recipe: Recipe) -> list[tuple[str, str, str]]:
    skills = recipe.selected_skills if isinstance(recipe.selected_skills, list) else []
    return [(one.name, one.view.ref.entry_id, one.view.source_revision) for one in skills]


def _shown(reads: Reads, recipe: Recipe, leaf_id: str) -> list[tuple[str, Any]]:
    """The entries that a recipe shows at a position, in their order, and how."""
    leaf = reads.ask(lambda index: index.by_id(leaf_id))
    tail = reads.ask(lambda index: index.by_id(recipe.literal_tail_id))
    assert leaf is not None
    assert tail is not None
    shown: list[tuple[str, Any]] = [(view.ref.entry_id, view.rendering) for view in recipe.views]
    for depth in range(tail.depth, leaf.depth + 1, _PAGE):
        rows = reads._path_rows(leaf.sequence, depth)
        literal = (row for row in rows if row.kind in VIEW_KINDS and row.kind != "compaction")
        shown += [(row.id, UNSET) for row in literal]
    return shown


_CHOSEN: Final = ("source", "views", "literal_tail_id", "renderer", "selected_skills")
"""Members that follow from the choice."""


def _built(**members: Any) -> Recipe:
    """The recipe, with the types of all members checked."""
    try:
        plain = msgspec.to_builtins(Recipe(**members))
        built = msgspec.convert(plain, Recipe)
        admit({"type": "compaction", "details": plain})  # refuses what JSON cannot hold, and depth
    except TreeringError as error:
        raise InvalidContextEpoch(f"not a recipe: {error.what}") from None
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidContextEpoch(f"not a recipe: {error}") from None
    return built


def _chosen(reads: Reads, moment: Snapshot, entry_ids: Sequence[str]) -> dict[str, Indexed]:
    """The rows of entries, which are on the captured branch, each named once."""
    if len(set(entry_ids)) != len(entry_ids):
        raise InvalidContextEpoch("an entry is chosen twice")
    wanted = list(entry_ids)
    rows = reads.ask(lambda index: index.by_ids(wanted))
    leaf = _leaf(reads, moment)

    def is_there(index: SessionIndex, entry_id: str) -> bool:
        row = rows.get(entry_id)
        captured = row is not None and row.sequence <= moment.source_sequence
        return captured and index.is_ancestor(rows[entry_id].sequence, leaf.sequence)

    outside = reads.ask(
        lambda index: next((one for one in wanted if not is_there(index, one)), None)
    )
    if outside is not None:
        raise InvalidContextEpoch(f"entry {outside!r} is not on the captured branch")
    return rows


def _leaf(reads: Reads, moment: Snapshot) -> Indexed:
    leaf_id = moment.leaf_id
    leaf = None if leaf_id is None else reads.ask(lambda index: index.by_id(leaf_id))
    if leaf is None:
        raise InvalidContextEpoch("nothing is there that a context could show")
    return leaf


def _is_above(reads: Reads, row: Indexed, leaf: Indexed) -> bool:
    return reads.ask(lambda index: index.is_ancestor(row.sequence, leaf.sequence))


def _tail(
    reads: Reads,
    moment: Snapshot,
    choice: Choice,
    rows: dict[str, Indexed],
    recipe: Mapping[str, Any],
) -> Indexed:
    """The first entry that stays literal.

    Without a summary it is the chosen entry that was written last (not the one that is shown last:
    results of tools come in any order), with one the cut that the caller names.
    """
    if choice.tail_id is not None:
        if not recipe.get("include_summary") and choice.tail_id not in choice.view_ids:
            raise InvalidContextEpoch("the literal tail is one of the chosen entries")
        found = rows.get(choice.tail_id) or _chosen(reads, moment, [choice.tail_id])[choice.tail_id]
    if recipe.get("include_summary"):
        if choice.tail_id is None:
            raise InvalidContextEpoch("a summary needs the entry that it ends before")
        return found
    chosen = [rows[one] for one in choice.view_ids if rows[one].kind != "compaction"]
    newest = max(chosen, default=None, key=lambda row: row.sequence)
    if newest is None and recipe.get("version") == 5:
        newest = _leaf(reads, moment)
    if newest is None:
        raise InvalidContextEpoch("no chosen entry can be the literal tail")
    if choice.tail_id not in (None, newest.id):
        raise InvalidContextEpoch("the literal tail is the chosen entry that was written last")
    return newest


def _views(reads: Reads, moment: Snapshot, rows: Sequence[Indexed]) -> dict[str, View]:
    """A view of each row, frozen at the moment. Where the file is says the recipe, once."""
    views: dict[str, View] = {}
    ground, source = ReadsGround(reads), msgspec.structs.replace(moment, session_file=UNSET)
    file = os.path.basename(reads.path)
    for piece in pieces(sorted(rows)):
        for row, entry in zip(piece, reads._load(piece), strict=True):
            if row.kind not in (*VIEW_KINDS, *SKILL_KINDS):
                raise InvalidContextEpoch(f"entry {row.id!r} of kind {row.kind!r} cannot be shown")
            frozen = frozen_revision(ground, row, moment.source_sequence)
            view = View(source, entry_ref(row, entry.flags, file), frozen)
            if row.kind == "compaction":
                view.retained_message_count = _kept(reads, row, entry)
            views[row.id] = view
    return views


def _kept(reads: Reads, row: Indexed, entry: Entry) -> int:
    """How many messages a compaction kept: what is shown from its first entry up to it."""
    body = body_of(entry)
    first_id = None if body is None else body.first_kept_entry_id
    first = None if first_id is None else reads.ask(lambda index: index.by_id(first_id))
    if first is None or not _is_above(reads, first, row):
        return 0
    count = 0
    for depth in range(first.depth, row.depth, _PAGE):
        page = reads._path_rows(row.sequence, depth)
        count += sum(one.kind in SHOWN_KINDS for one in page if one.depth < row.depth)
    return count


def activation(
    candidate: ContextEpochCandidate,
    origin: Origin,
    *,
    tokens_before: int | float | None,
    summary: str | None,
    details: Mapping[str, Any] | None,
    custom_instructions: str | None,
    usage: Any,
    links: Sequence[tuple[str, OutputLink]],
) -> LinkedCompaction:
    """The compaction that makes a candidate the context.

    Raises:
        Conflict: the candidate comes from another capture.
        Invalid: details with a recipe of their own.
        InvalidContextEpoch: summary or tokens are not what the recipe says.
    """
    if not isinstance(candidate, ContextEpochCandidate):
        raise Invalid("a candidate is what prepare_context_epoch gives")
    if candidate._origin != origin:
        raise Conflict("the candidate was prepared from another capture")
    if details is not None and (not isinstance(details, Mapping) or MARKER in details):
        raise Invalid(f"details are a mapping without {MARKER}")
    if tokens_before is not None and (
        isinstance(tokens_before, bool)
        or not isinstance(tokens_before, (int, float))
        or (isinstance(tokens_before, float) and not math.isfinite(tokens_before))
    ):
        raise InvalidContextEpoch(f"tokens are a number or None, not {tokens_before!r}")
    recipe = candidate.recipe
    check_control(recipe, Control(summary or "", recipe.literal_tail_id, tokens_before))
    entry = compaction(
        summary or "",
        recipe.literal_tail_id,
        tokens_before,  # type: ignore[arg-type] # a number of tokens may be an estimate
        from_hook=False,
        custom_instructions=custom_instructions,
        usage=usage,
    )
    own = {} if details is None else dict(details)
    admit({**entry, "details": own})
    entry["details"] = {**own, MARKER: msgspec.json.decode(candidate._encoded)}
    return LinkedCompaction(entry, links, origin=origin, flags=CONTEXT_EPOCH_FLAGS)
