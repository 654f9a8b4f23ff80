"""The recipe of a context epoch: which older entries a model is shown, and how. Data and rules.

A context epoch is a compaction whose frame the engine qualified and whose ``details`` hold a recipe
under ``baseContextEpoch``. (The epochs of a journal, one for each of its owners, are another
thing.) A recipe is read whole or refused: what is not in the table of versions is no recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treering.engine.errors import InvalidContextEpoch, LimitExceeded
from treering.engine.json_text import depth_over_limit
from treering.engine.limits import CONTEXT_EPOCH_BYTES_MAX, CONTEXT_EPOCH_VIEWS_MAX

MARKER: Final = "baseContextEpoch"

Replay = Literal["complete-context", "message-groups"]
RefKind = Literal["message", "custom_message", "branch_summary", "compaction"]
Outcome = Literal["outcome_unknown", "not_started", "completed", "failed"]
PUBLIC_HISTORY: Final = "public-history/1"
PUBLIC_TOOLS: Final = "public-tool-continuation/1"


class _Strict(Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Members are those of the table, and no others."""


class Snapshot(_Strict):
    """A moment of a session. Where the file was is information, not identity."""

    session_id: str
    leaf_id: str | None
    source_sequence: int
    persistent: bool
    session_file: str | UnsetType = UNSET


class Locator(_Strict):
    """Where a frame is: the file then, its offset, and its length with the envelope, in bytes."""

    path: str
    offset: int
    length: int


class EntryRef(_Strict):
    """One frame of the journal, by everything that identifies it."""

    entry_id: str
    sequence: int
    kind: RefKind | Literal["custom"]
    locator: Locator
    revision: str
    authority: Literal["user", "runtime", "assistant", "imported", "unrecorded"] | UnsetType = UNSET
    qualification: str | UnsetType = UNSET
    retention: str | UnsetType = UNSET


class View(_Strict):
    """An entry that is shown, frozen as it was at a moment; never a copy of its body."""

    source: Snapshot
    ref: EntryRef
    source_revision: str
    retained_message_count: int | UnsetType = UNSET
    rendering: Literal["public-history/1", "public-tool-continuation/1"] | UnsetType = UNSET


class Continuation(_Strict):
    """How far the public rendering goes."""

    kind: Literal["harness-summary", "portable-checkpoint"]
    public_tail_through: Snapshot


class Skill(_Strict):
    """A pinned version of a selected instruction body."""

    name: str
    view: View


class Record(_Strict):
    """A frame of a tool execution."""

    id: str
    sequence: int
    revision: str


class ToolCall(_Strict):
    """What is known of one call."""

    execution_id: str
    intent: Record
    outcome: Outcome
    result: Record | UnsetType = UNSET


class ToolGroup(_Strict):
    """The calls of one assistant message."""

    assistant_entry_id: str
    calls: list[ToolCall]


class Contract(_Strict):
    """What a request may rely on; opaque strings, none empty."""

    api: str
    provider: str
    route: str
    model: str
    replay_contract: Replay


class Recipe(_Strict):
    """A whole recipe. ``representation``, ``task_frame`` and ``resource_revision`` are opaque."""

    version: int
    renderer: str
    source: Snapshot
    representation: str | None
    views: list[View]
    literal_tail_id: str
    include_summary: bool | UnsetType = UNSET
    replay_contract: Replay | UnsetType = UNSET
    public_window: bool | UnsetType = UNSET
    continuation: Continuation | UnsetType = UNSET
    selected_skills: list[Skill] | UnsetType = UNSET
    tool_continuations: list[ToolGroup] | UnsetType = UNSET
    task_frame: dict[str, Any] | UnsetType = UNSET
    resource_revision: str | UnsetType = UNSET
    mode: Literal["on", "off"] | UnsetType = UNSET
    policy_only: bool | UnsetType = UNSET
    request_contract: Contract | UnsetType = UNSET
    pending_request_contract: bool | UnsetType = UNSET

    def encoded(self) -> bytes:
        """Its JSON.

        Raises:
            LimitExceeded: larger than a recipe may be.
        """
        try:
            encoded = msgspec.json.encode(self)
        except (UnicodeEncodeError, RecursionError) as error:
            raise InvalidContextEpoch(f"the recipe is not JSON: {error}") from None
        if len(encoded) > CONTEXT_EPOCH_BYTES_MAX:
            raise LimitExceeded(
                f"the recipe has {len(encoded)} bytes; at most {CONTEXT_EPOCH_BYTES_MAX}",
                limit=CONTEXT_EPOCH_BYTES_MAX,
                need=len(encoded),
            )
        return encoded


class Control(NamedTuple):
    """What a recipe may say of the compaction that carries it, and what it must."""

    summary: str
    first_kept_entry_id: str | None
    tokens_before: int | float | None


_recipes = msgspec.json.Decoder(Recipe)
_Rule = tuple[str, Callable[[Recipe], bool]]


def _absent(*names: str) -> Callable[[Recipe], bool]:
    return lambda recipe: all(getattr(recipe, name) is UNSET for name in names)


def _true_or_absent(name: str) -> Callable[[Recipe], bool]:
    return lambda recipe: getattr(recipe, name) in (UNSET, True)


def _is_tools(recipe: Recipe) -> bool:
    return recipe.version == 6


def _is_policy(recipe: Recipe) -> bool:
    return recipe.version == 5


def _renderings(recipe: Recipe) -> set[str]:
    return {view.rendering for view in _views(recipe) if view.rendering is not UNSET}


def _views(recipe: Recipe) -> list[View]:
    skills = recipe.selected_skills
    return recipe.views + ([] if skills is UNSET else [skill.view for skill in skills])


def _renderer_fits(recipe: Recipe) -> bool:
    plain = f"native-canonical-epoch/{recipe.version}"
    skills = "native-canonical-epoch/7" if 4 <= recipe.version <= 6 else plain
    return recipe.renderer in (plain, skills)


def _skills_fit(recipe: Recipe) -> bool:
    skills = recipe.selected_skills
    if recipe.renderer != "native-canonical-epoch/7":
        return skills is UNSET
    if skills is UNSET or not skills or not all(skill.name for skill in skills):
        return False
    return len({skill.name for skill in skills}) == len(skills) and all(
        skill.view.ref.kind in ("custom", "custom_message") for skill in skills
    )


def _representation_fits(recipe: Recipe) -> bool:
    if recipe.version == 1:
        return recipe.representation is not None
    if recipe.version == 5:
        return recipe.representation is None
    return (recipe.representation is None) == (recipe.include_summary is True)


def _contracts_fit(recipe: Recipe) -> bool:
    contract, pending = recipe.request_contract, recipe.pending_request_contract
    if contract is not UNSET and not all((contract.api, contract.provider, contract.route)):
        return False
    if contract is not UNSET and not contract.model:
        return False
    if pending is UNSET:
        return True
    return pending is True and recipe.mode == "off" and contract is UNSET


def _tools_fit(recipe: Recipe) -> bool:
    groups = recipe.tool_continuations
    if not _is_tools(recipe):
        return groups is UNSET
    if groups is UNSET or not groups or not all(group.calls for group in groups):
        return False
    return (
        recipe.public_window is True
        and recipe.replay_contract == "message-groups"
        and recipe.representation is not None
    )


def _policy_fits(recipe: Recipe) -> bool:
    if _is_policy(recipe):
        return recipe.mode is not UNSET and recipe.policy_only is True
    names = ("mode", "policy_only", "request_contract", "pending_request_contract")
    return _absent(*names)(recipe)


def _continuation_fits(recipe: Recipe) -> bool:
    if recipe.continuation is UNSET:
        return True
    portable = recipe.continuation.kind == "portable-checkpoint"
    return recipe.version >= (4 if portable else 3)


def _renderings_fit(recipe: Recipe) -> bool:
    found = _renderings(recipe)
    if recipe.version < 3:
        return not found
    return recipe.version == 6 or PUBLIC_TOOLS not in found


def _views_fit(recipe: Recipe) -> bool:
    for view in _views(recipe):
        if view.ref.kind == "compaction":
            count = view.retained_message_count
            if count is UNSET or count < 0 or view.rendering is not UNSET:
                return False
        elif view.retained_message_count is not UNSET:
            return False
    return all(view.ref.kind != "custom" for view in recipe.views)


_TABLE: Final[tuple[_Rule, ...]] = (
    ("the version is 1 to 6", lambda recipe: 1 <= recipe.version <= 6),
    ("the renderer is that of the version", _renderer_fits),
    ("flags are true or absent", _true_or_absent("include_summary")),
    ("flags are true or absent", _true_or_absent("public_window")),
    ("flags are true or absent", _true_or_absent("policy_only")),
    (
        "version 1 has no summary, version 5 neither",
        lambda recipe: recipe.version not in (1, 5) or recipe.include_summary is UNSET,
    ),
    (
        "a public window begins with version 3",
        lambda recipe: recipe.version >= 3 or recipe.public_window is UNSET,
    ),
    ("a continuation of that kind begins with a later version", _continuation_fits),
    ("a representation is there unless a summary or a policy stands for it", _representation_fits),
    ("a policy states its mode, and nothing else does", _policy_fits),
    ("contracts are whole, and one of them at most", _contracts_fit),
    ("tool continuations belong to version 6, with a window and message groups", _tools_fit),
    ("selected skills belong to renderer 7, with names of their own", _skills_fit),
    ("a rendering of that kind is not known to the version", _renderings_fit),
    ("only views of compactions count messages, and they are not rendered", _views_fit),
)


def check_recipe(recipe: Recipe) -> None:
    """Raise unless a recipe is a row of the table.

    Raises:
        InvalidContextEpoch: names the rule.
        LimitExceeded: more views than a recipe may have.
    """
    if len(recipe.views) > CONTEXT_EPOCH_VIEWS_MAX:
        raise LimitExceeded(
            f"a recipe of {len(recipe.views)} views; at most {CONTEXT_EPOCH_VIEWS_MAX}",
            limit=CONTEXT_EPOCH_VIEWS_MAX,
            need=len(recipe.views),
        )
    for rule, holds in _TABLE:
        if not holds(recipe):
            raise InvalidContextEpoch(f"not a recipe of version {recipe.version}: {rule}")


def check_control(recipe: Recipe, control: Control) -> None:
    """Raise unless the compaction that carries a recipe says what the recipe says.

    Raises:
        InvalidContextEpoch: tail, summary or token count contradict it.
    """
    if control.first_kept_entry_id != recipe.literal_tail_id:
        raise InvalidContextEpoch("the first kept entry is not the literal tail of the recipe")
    if bool(control.summary) != (recipe.include_summary is True):
        raise InvalidContextEpoch("a summary is there exactly when the recipe includes one")
    if _is_policy(recipe) and control.tokens_before is not None:
        raise InvalidContextEpoch("a policy measures no tokens")


def decode_recipe(raw: bytes) -> Recipe:
    """The recipe in JSON text.

    Raises:
        InvalidContextEpoch: it is none; says where.
        LimitExceeded: it is too large.
    """
    if len(raw) > CONTEXT_EPOCH_BYTES_MAX:
        raise LimitExceeded(
            f"the recipe has {len(raw)} bytes; at most {CONTEXT_EPOCH_BYTES_MAX}",
            limit=CONTEXT_EPOCH_BYTES_MAX,
            need=len(raw),
        )
    if depth_over_limit(raw) is not None:
        raise InvalidContextEpoch("the recipe nests too deep")
    try:
        recipe = _recipes.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidContextEpoch(f"the recipe of a context epoch is wrong: {error}") from None
    check_recipe(recipe)
    return recipe
