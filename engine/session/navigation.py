"""Going to another place of the tree: where it leads, and what is remembered of the branch left.

Planning and collecting only read, and block; :func:`navigate` drives them for tasks. The summary
itself is made by a callable of the caller's: nothing here knows a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from treering.engine.errors import Conflict, Invalid, NotFound
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session import texts
from treering.engine.session.entry import Entry
from treering.engine.session.facts import SUMMARY_KINDS
from treering.engine.session.output_links import OutputLink
from treering.engine.session.reads import Reads
from treering.engine.session.summary_text import (
    NOTHING_SAID,
    Files,
    composed,
    instructed,
    said_in,
)
from treering.engine.session.tree_view import editable_text
from treering.index import Entry as Row
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")

RESERVED_TOKENS: Final = 16_384
"""Tokens of a context window that a summary request leaves for its prompt and its answer."""

SUMMARY_TOKENS_MAX: Final = 2_048
"""Tokens that a summary may take."""

_SUMMARY_SHARE: Final = 0.9
"""An earlier summary may exceed the budget while no more than this share of it is used."""


# Planning


@dataclass(frozen=True, slots=True)
class NavigationPlan:
    """Where a navigation leads from where: decided at one moment, and only read."""

    old_leaf: str | None
    target_id: str
    new_leaf: str | None
    """The position that it leads to; None is the one before any entry."""
    editor_text: str | None
    """What the editor is filled with; None leaves it empty."""
    common_ancestor: str | None
    """The deepest entry on both the old path and that of the target."""
    left_entries: int
    """Entries of the old path behind the common ancestor."""
    _from: int | None
    _until: int | None

    @property
    def moves(self) -> bool:
        """Whether there is anything to do: the target is another entry than the position."""
        return self.target_id != self.old_leaf


def plan_navigation(reads: Reads, old_leaf: str | None, target_id: str) -> NavigationPlan:
    """What going from ``old_leaf`` to an entry means; both paths are of one moment.

    Raises:
        NotFound: no entry of the tree has one of the ids.
    """

    def question(index: SessionIndex) -> tuple[Row, Row | None, Row | None, Row | None]:
        target = _in_tree(reads, index, target_id)
        old = None if old_leaf is None else _in_tree(reads, index, old_leaf)
        parent = None if target.parent is None else index.by_sequence(target.parent)
        return target, parent, old, None if old is None else _common(index, old, target)

    target, parent, old, common = reads.ask(question)
    text = None
    if target.kind in ("message", "custom_message"):
        text = editable_text(reads.read(target_id))
    left = 0
    if old is not None:
        left = old.depth + 1 if common is None else old.depth - common.depth
    new_leaf: str | None = target_id
    if text is not None:
        new_leaf = None if parent is None else parent.id
    return NavigationPlan(
        old_leaf,
        target_id,
        new_leaf,
        text,
        None if common is None else common.id,
        left,
        None if old is None else old.sequence,
        None if common is None else common.sequence,
    )


def _in_tree(reads: Reads, index: SessionIndex, entry_id: str) -> Row:
    found = index.by_id(entry_id)
    if found is None or not found.tree:
        raise NotFound(f"no entry {entry_id!r} in the tree", path=reads.path)
    return found


def _common(index: SessionIndex, one: Row, other: Row) -> Row | None:
    """The deepest entry that is on both paths. Paths that part never meet again."""
    low, high = 0, min(one.depth, other.depth) + 1
    found: int | None = None
    while low < high:
        depth = (low + high) // 2
        at = index.ancestor_at_depth(one.sequence, depth)
        if at is not None and at == index.ancestor_at_depth(other.sequence, depth):
            found, low = at, depth + 1
        else:
            high = depth
    return None if found is None else index.by_sequence(found)


def left_rows(reads: Reads, plan: NavigationPlan) -> Iterator[Row]:
    """Index rows of the old path behind the common ancestor, newest first, page by page."""
    at = plan._from
    while at is not None and at != plan._until:
        page = reads.ask(_page_up_from(reads, at))
        for row in reversed(page):
            if row.sequence == plan._until:
                return
            yield row
        at = page[0].parent


def _page_up_from(reads: Reads, sequence: int) -> Callable[[SessionIndex], list[Row]]:
    def question(index: SessionIndex) -> list[Row]:
        row = index.by_sequence(sequence)
        if row is None:  # never a path that just ends
            raise NotFound(f"no entry at sequence {sequence}", path=reads.path)
        start = max(0, row.depth - PAGE_ENTRIES + 1)
        return index.path(sequence, from_depth=start)

    return question


# What a summary is made from


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a summariser is given."""

    entries: tuple[Entry, ...]
    """The entries to summarise, oldest first."""
    conversation: str
    """The same as text."""
    instructions: str
    """What to do with it."""
    tokens: int
    """Estimate for the conversation: a quarter of its characters."""
    left_out: int
    """Entries of the branch that are older than what fitted into the budget."""
    read_files: tuple[str, ...]
    modified_files: tuple[str, ...]
    tokens_max: int = SUMMARY_TOKENS_MAX
    """Tokens that the summary may take."""

    @property
    def prompt(self) -> str:
        """Conversation and instructions as one text."""
        return f"<conversation>\n{self.conversation}\n</conversation>\n\n{self.instructions}"

    @property
    def details(self) -> dict[str, Any]:
        """The file lists, as a branch_summary entry has them."""
        return {"readFiles": list(self.read_files), "modifiedFiles": list(self.modified_files)}


def summary_budget(context_window_tokens: int) -> int:
    """Tokens of the conversation that fit a request to a model of that context window."""
    return max(1, context_window_tokens - RESERVED_TOKENS)


def prepare_summary(
    reads: Reads,
    plan: NavigationPlan,
    *,
    budget_tokens: int | None = None,
    custom_instructions: str | None = None,
    replace_instructions: bool = False,
) -> SummaryRequest:
    """Collect what is to be summarised of the branch that is left.

    Newest first, until the next entry would exceed the budget (None: everything). Results of tools
    are left out: the calls tell what was done. A summary is let in beyond the budget while less
    than nine tenths of it are used. Only the bodies that are shown are read, and those of the older
    summaries, for their file lists.

    Raises:
        Invalid: the budget is no positive whole number.
    """
    if budget_tokens is not None and (
        not isinstance(budget_tokens, int) or isinstance(budget_tokens, bool) or budget_tokens < 1
    ):
        raise Invalid(f"a budget is a positive whole number of tokens, not {budget_tokens!r}")
    picked: list[tuple[Entry, str]] = []
    files = Files()
    total = seen = 0
    for row in left_rows(reads, plan):
        seen += 1
        if row.kind not in _TELLING or row.role == "toolResult":
            continue
        entry = reads.read(row.id)
        members = texts.members_of(entry.raw)
        files.add_summary(members)
        said = said_in(members)
        if said is None:
            continue
        full = budget_tokens is not None and total + said.tokens > budget_tokens
        let_in = row.kind in SUMMARY_KINDS and total < _SUMMARY_SHARE * (budget_tokens or 0)
        if full and not let_in:
            seen -= 1
        else:
            files.add_calls(members)
            total += said.tokens
            picked.append((entry, said.text))
        if full:
            for older in _summaries_above(reads, plan, row.parent):
                files.add_summary(texts.members_of(reads.read(older.id).raw))
            break
    picked.reverse()
    return SummaryRequest(
        tuple(entry for entry, _ in picked),
        "\n\n".join(text for _, text in picked),
        instructed(custom_instructions, replace=replace_instructions),
        total,
        max(0, plan.left_entries - seen),
        files.read,
        files.modified,
    )


def _summaries_above(reads: Reads, plan: NavigationPlan, at: int | None) -> Iterator[Row]:
    """The summaries on the rest of the branch, without walking it."""
    for kind in sorted(SUMMARY_KINDS):
        below = at
        while below is not None:
            found = reads.ask(_summary_from(kind, below, plan._until))
            if found is None:
                break
            yield found
            below = found.parent


def _summary_from(
    kind: str, sequence: int, until: int | None
) -> Callable[[SessionIndex], Row | None]:
    def question(index: SessionIndex) -> Row | None:
        found = index.latest_on_path(kind, sequence)
        end = None if until is None else index.by_sequence(until)
        return found if found is not None and (end is None or found.depth > end.depth) else None

    return question


_TELLING: Final = frozenset(("message", "custom_message", *SUMMARY_KINDS))


# Driving


@dataclass(frozen=True, slots=True)
class SummaryResult:
    """What a summariser may give instead of the text alone."""

    text: str
    usage: Any = None
    """Tokens and cost of making it."""
    details: Any = None
    """Instead of the file lists."""
    verbatim: bool = False
    """Store the text as it is: without the sentence before it and the file lists behind it."""
    from_hook: bool | None = None
    """True for a summary that an extension made."""
    link: OutputLink | None = None
    """Of the request (``summary``, ``branch``) that wrote it."""


Summariser = Callable[[SummaryRequest], Awaitable[str | SummaryResult]]


@dataclass(frozen=True, slots=True)
class Navigation:
    """How a navigation ended."""

    editor_text: str | None = None
    """What the editor is filled with; None leaves it empty."""
    cancelled: bool = False
    """Nothing was written and the position is where it was."""
    aborted: bool = False
    """It was cancelled while it ran."""
    summary_entry_id: str | None = None


class Navigable(Protocol):
    """What :func:`navigate` needs of the session that it moves in.

    ``expected_leaf`` is where the position must be when the write has its turn; if it is not, the
    method raises Conflict and writes nothing.
    """

    async def leaf_id(self) -> str | None:
        """The current position."""

    async def branch_to(self, entry_id: str | None, *, expected_leaf: str | None) -> None:
        """Move the position, durably."""

    async def branch_with_summary(
        self,
        entry_id: str | None,
        summary: str,
        *,
        details: Any,
        from_hook: bool | None,
        usage: Any,
        expected_leaf: str | None,
        link: OutputLink | None,
    ) -> str:
        """Append a branch_summary below an entry and go there; returns its id."""

    async def set_label(self, entry_id: str, label: str) -> str:
        """Label an entry; returns the id of the label entry."""


class Runner(Protocol):
    """Runs a function that blocks where it does not block the event loop."""

    def __call__(self, work: Callable[[], _Answer], /) -> Awaitable[_Answer]:
        """The answer of the function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationOptions:
    """What is wanted besides the move itself."""

    summarize: bool = False
    """Whether the branch that is left is summarised at the new position."""
    summariser: Summariser | None = None
    custom_instructions: str | None = None
    """What the summary should look at in particular."""
    replace_instructions: bool = False
    """Whether these replace the default instructions, instead of adding to them."""
    budget_tokens: int | None = None
    """See :func:`summary_budget`; None is no bound."""
    label: str | None = None
    """For the summary entry, or for the target when there is none."""
    abort: asyncio.Event | None = field(default=None, compare=False)
    """Set it to end the navigation before it writes."""

    def check(self) -> None:
        """Raise Invalid for what cannot be done, before anything is."""
        if self.summarize and self.summariser is None:
            raise Invalid(
                "no summariser: a summary was asked for and there is nothing to make it",
                next_step="pass a summariser, or navigate without a summary",
            )
        for value, what in (
            (self.label, "a label"),
            (self.custom_instructions, "custom instructions"),
        ):
            if value is not None and not isinstance(value, str):
                raise Invalid(f"{what} is text, not {type(value).__name__}")


NO_OPTIONS: Final = NavigationOptions()


async def navigate(
    reads: Reads,
    session: Navigable,
    target_id: str,
    options: NavigationOptions = NO_OPTIONS,
    *,
    run: Runner = asyncio.to_thread,
) -> Navigation:
    """Go to an entry; with ``summarize``, leave a summary of the branch that is left there.

    A message of the user, or a custom_message, is taken back for editing: the position becomes its
    parent. An entry that is the position already is a no-op. When the task is cancelled, or
    ``abort`` is set, before the write, nothing is written.

    Raises:
        NotFound: no entry of the tree has that id.
        Invalid: options that do not fit, or a summariser that gave no text; nothing was written.
        Conflict: the position moved meanwhile; nothing was written.
    """
    old_leaf = await session.leaf_id()
    if old_leaf == target_id:
        return Navigation()
    options.check()
    plan = await run(lambda: plan_navigation(reads, old_leaf, target_id))
    made: SummaryResult | None = None
    try:
        if options.summarize and plan.left_entries:
            made = await _unless(options.abort, _summary_of(reads, plan, options, run))
    except _AbortedError:
        return Navigation(cancelled=True, aborted=True)
    if options.abort is not None and options.abort.is_set():
        return Navigation(cancelled=True, aborted=True)
    if await session.leaf_id() != old_leaf:
        raise Conflict("the session changed during navigation", path=reads.path)
    summary_id = None
    if made is None:
        await session.branch_to(plan.new_leaf, expected_leaf=old_leaf)
    else:
        summary_id = await session.branch_with_summary(
            plan.new_leaf,
            made.text,
            details=made.details,
            from_hook=made.from_hook,
            usage=made.usage,
            expected_leaf=old_leaf,
            link=made.link,
        )
    if options.label:
        await session.set_label(target_id if summary_id is None else summary_id, options.label)
    return Navigation(plan.editor_text, summary_entry_id=summary_id)


async def _summary_of(
    reads: Reads, plan: NavigationPlan, options: NavigationOptions, run: Runner
) -> SummaryResult:
    """The summary as it is stored."""
    request = await run(
        lambda: prepare_summary(
            reads,
            plan,
            budget_tokens=options.budget_tokens,
            custom_instructions=options.custom_instructions,
            replace_instructions=options.replace_instructions,
        )
    )
    if not request.entries:
        return SummaryResult(NOTHING_SAID, details=request.details)
    assert options.summariser is not None
    given = await options.summariser(request)
    found = SummaryResult(given) if isinstance(given, str) else given
    if not isinstance(found, SummaryResult) or not isinstance(found.text, str):
        raise Invalid(f"a summariser gives text or a SummaryResult, not {type(given).__name__}")
    if not found.text.strip():
        raise Invalid("the summariser gave an empty summary", path=reads.path)
    text = found.text
    if not found.verbatim:
        text = composed(text, request.read_files, request.modified_files)
    details = request.details if found.details is None else found.details
    return replace(found, text=text, details=details)


class _AbortedError(Exception):
    """The caller's flag was set, or the summariser was cancelled."""


async def _unless(abort: asyncio.Event | None, work: Awaitable[SummaryResult]) -> SummaryResult:
    """The result of the work, which is cancelled as soon as the flag is set."""
    task = asyncio.ensure_future(work)
    flag = None if abort is None else asyncio.ensure_future(abort.wait())
    try:
        await asyncio.wait(
            {task} if flag is None else {task, flag}, return_when=asyncio.FIRST_COMPLETED
        )
        if not task.done() or task.cancelled():
            raise _AbortedError
        return task.result()
    finally:
        if flag is not None:
            flag.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # what it said when it was cancelled is of no use to anybody
