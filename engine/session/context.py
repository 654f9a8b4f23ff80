"""Reading the model context: from a session's index, or from entries in memory.

The rules are in :mod:`treering.engine.session.context_rules`. From an index only the bodies are
read that are shown, and those that say a setting; the index knows where they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from treering.engine.errors import LimitExceeded
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session.context_rules import (
    CHILD_USAGE,
    SERVICE_TIER,
    SHOWN_KINDS,
    THINKING_LEVEL,
    ContextMessage,
    ContextModel,
    SessionContext,
    aggregate_of,
    messages_of,
    model_of,
    model_of_message,
    parts,
    text_in,
    with_aggregates,
)
from treering.engine.session.entry import Entry
from treering.engine.session.facts import facts_of, usable_entry_id
from treering.index import Entry as Indexed
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")

_PAGE_ROWS: Final = PAGE_ENTRIES * 4


class Ask(Protocol):
    """How a session or view answers questions about its index."""

    def __call__(self, question: Callable[[SessionIndex], _Answer], /) -> _Answer:
        """The answer of an index that covers everything."""
        ...


Load = Callable[[Sequence[Indexed]], list[Entry]]
"""How a session or view gives the entries of index rows."""


# From a session's index


def read_context(
    ask: Ask,
    load: Load,
    leaf: Indexed | None,
    *,
    max_entries: int | None = None,
    max_source_bytes: int | None = None,
    up_to: int | None = None,
) -> SessionContext:
    """The context at an indexed entry; see ``Reads.read_session_context``."""
    if leaf is None:
        return SessionContext()
    reader = _IndexedPath(ask, load, leaf.sequence, max_entries, max_source_bytes)
    compaction = ask(lambda index: index.latest_on_path("compaction", leaf.sequence))
    if compaction is None:
        shown = messages_of(None, (), reader.between(0, leaf.depth))
    else:
        entry = load([compaction])[0]
        first = reader.kept_from(compaction, text_in(parts(entry.raw), "firstKeptEntryId"))
        kept: Iterable[Entry] = ()
        if first is not None:
            kept = reader.between(first, compaction.depth - 1)
        shown = messages_of(entry, kept, reader.between(compaction.depth + 1, leaf.depth))
    level, tier, model = reader.settings({message.sequence: message for message in shown})
    return SessionContext(
        messages=tuple(with_aggregates(shown, reader.aggregates(shown, up_to))),
        thinking_level=level,
        service_tier=tier,
        model=model,
    )


class _IndexedPath:
    """The path to a leaf, of which only what is asked for is read."""

    def __init__(
        self,
        ask: Ask,
        load: Load,
        leaf: int,
        max_entries: int | None,
        max_source_bytes: int | None,
    ) -> None:
        self._ask = ask
        self._load = load
        self._leaf = leaf
        self._max_entries = max_entries
        self._max_source_bytes = max_source_bytes
        self._entries = self._bytes = 0
        self._imported = False

    def between(self, first: int, last: int) -> Iterator[Entry]:
        """The entries that are shown between two depths, both included."""
        for start in range(first, last + 1, _PAGE_ROWS):
            limit = min(_PAGE_ROWS, last + 1 - start)
            rows = [row for row in self._rows(self._leaf, start, limit) if row.kind in SHOWN_KINDS]
            self._count(rows)
            for entry in self._load(rows):
                self._imported |= entry.retention is not None
                yield entry

    def _rows(self, leaf: int, start: int, limit: int) -> list[Indexed]:
        return self._ask(lambda index: index.path(leaf, from_depth=start, limit=limit))

    def _count(self, rows: Sequence[Indexed]) -> None:
        self._entries += len(rows)
        self._bytes += sum(row.raw for row in rows)
        for what, need, limit in (
            ("entries", self._entries, self._max_entries),
            ("bytes", self._bytes, self._max_source_bytes),
        ):
            if limit is not None and need > limit:
                raise LimitExceeded(
                    f"the context needs {need} {what} or more; the limit is {limit}",
                    limit=limit,
                    need=need,
                )

    def kept_from(self, compaction: Indexed, first_kept: str | None) -> int | None:
        """The depth from which a compaction keeps; None when it keeps nothing."""
        if first_kept is None:
            return None
        found, holder, is_above = self._ask(lambda index: _look_up(index, first_kept, compaction))
        if holder is not None and (found is None or found.sequence != holder):
            return self._first_of_several(compaction, first_kept)
        return found.depth if found is not None and is_above else None

    def _first_of_several(self, compaction: Indexed, own_id: str) -> int | None:
        """An import brought several entries with this id: the first on the path is meant."""
        for start in range(0, compaction.depth, _PAGE_ROWS):
            limit = min(_PAGE_ROWS, compaction.depth - start)
            for row in self._rows(compaction.sequence, start, limit):
                if own_id in (row.id, row.own_id):
                    return row.depth
        return None

    def settings(self, shown: dict[int, ContextMessage]) -> tuple[str, str, ContextModel | None]:
        """Thinking level, service tier and model: each the nearest on the whole path."""
        leaf = self._leaf
        level, tier, change, answer = self._ask(
            lambda index: (
                index.latest_on_path("thinking_level_change", leaf),
                index.latest_on_path("service_tier_change", leaf),
                index.latest_on_path("model_change", leaf),
                index.latest_on_path("message", leaf, role="assistant"),
            )
        )
        model = None
        if answer is not None and (change is None or change.depth < answer.depth):
            message = shown.get(answer.sequence)
            model = model_of_message(
                self._parts_of(answer).get("message", b"") if message is None else message.raw
            )
        elif change is not None:
            model = model_of(self._parts_of(change), "modelId")
        return (
            text_in(self._parts_of(level), "thinkingLevel") or THINKING_LEVEL,
            text_in(self._parts_of(tier), "serviceTier") or SERVICE_TIER,
            model,
        )

    def _parts_of(self, row: Indexed | None) -> dict[str, bytes]:
        return {} if row is None else parts(self._load([row])[0].raw)

    def aggregates(
        self, shown: Sequence[ContextMessage], up_to: int | None = None
    ) -> dict[int, bytes]:
        """Sequence -> the newest aggregate of child usage, of the assistant messages shown.

        An attribution follows its target, except in a file that somebody wrote by hand: so older
        ones are read only for messages that an import brought.
        """
        answers = [message for message in shown if message.role == "assistant"]
        if not answers:
            return {}
        oldest = -1 if self._imported else min(message.sequence for message in answers)
        wanted = {message.sequence for message in answers}
        found: dict[str, bytes] = {}
        targets: dict[int, bytes] = {}
        before = None if up_to is None else up_to + 1
        while rows := self._attributions(oldest, before):
            for entry in reversed(self._load(rows[::-1])):
                stated = aggregate_of(entry.raw)
                if stated is None or stated[0] in found:
                    continue
                found[stated[0]] = stated[1]
                target = self._holder(stated[0])
                if target in wanted:
                    targets[target] = stated[1]
            if len(targets) == len(wanted):
                break
            before = rows[-1].sequence
        return targets

    def _attributions(self, after: int, before: int | None) -> list[Indexed]:
        return self._ask(
            lambda index: index.by_kind(
                CHILD_USAGE, after=after, before=before, newest_first=True, limit=PAGE_ENTRIES
            )
        )

    def _holder(self, own_id: str) -> int | None:
        return self._ask(lambda index: index.holder(own_id))


def _look_up(
    index: SessionIndex, entry_id: str, below: Indexed
) -> tuple[Indexed | None, int | None, bool]:
    """The entry of an id, the newest that has the id as its own, whether the first is above."""
    found = index.by_id(entry_id)
    is_above = found is not None and index.is_ancestor(found.sequence, below.sequence)
    return found, index.holder(entry_id), is_above


# From entries in memory


def build_session_context(
    entries: Sequence[Entry], leaf_id: str | None | UnsetType = UNSET
) -> SessionContext:
    """The context at an entry of a list that holds a whole session, by the same rules.

    An unknown id, or none, means the last entry; None is the position before any entry. Where
    entries share an id, the newest is meant: to a child and an attribution by what came before.
    """
    if leaf_id is None:
        return SessionContext()
    tree = Tree(entries)
    path = tree.path(leaf_id)
    level, tier, model = THINKING_LEVEL, SERVICE_TIER, None
    compaction: int | None = None
    for depth, entry in enumerate(path):
        found = parts(entry.raw)
        kind = text_in(found, "type")
        if kind == "thinking_level_change":
            level = text_in(found, "thinkingLevel") or THINKING_LEVEL
        elif kind == "service_tier_change":
            tier = text_in(found, "serviceTier") or SERVICE_TIER
        elif kind == "model_change":
            model = model_of(found, "modelId")
        elif kind == "message" and entry.role == "assistant":
            model = model_of_message(found.get("message", b""))
        elif kind == "compaction":
            compaction = depth
    if compaction is None:
        shown = messages_of(None, (), path)
    else:
        first_kept = text_in(parts(path[compaction].raw), "firstKeptEntryId")
        kept = itertools.dropwhile(
            lambda entry: first_kept not in (entry.id, entry_id(entry)), path[:compaction]
        )
        shown = messages_of(path[compaction], kept, path[compaction + 1 :])
    return SessionContext(
        messages=tuple(with_aggregates(shown, tree.aggregates())),
        thinking_level=level,
        service_tier=tier,
        model=model,
    )


def entry_id(entry: Entry) -> str | None:
    """The id that an entry states and can be named by."""
    own = facts_of(entry.raw).id
    return own if usable_entry_id(own) else None


class Tree:
    """Entries in memory, and which hangs below which: as an index resolves parents."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._parents: list[int | None] = [None] * len(entries)
        self._holders: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        waiting: dict[str, list[int]] = {}
        for at, entry in enumerate(entries):
            self._addresses[entry.id] = at
            facts = facts_of(entry.raw)
            if not facts.tree:
                continue
            if facts.parent_id and facts.parent_id in self._holders:
                self._parents[at] = self._holders[facts.parent_id]
            elif facts.parent_id:
                waiting.setdefault(facts.parent_id, []).append(at)
            own = facts.id if usable_entry_id(facts.id) else None
            if own != entry.id:
                self._holders.setdefault(entry.id, at)
            if own is not None:
                self._holders[own] = at
                self._adopt(at, waiting.pop(own, []))

    def _adopt(self, parent: int, children: list[int]) -> None:
        """Parents that come after their children; one that would close a circle is none."""
        root = parent
        while (above := self._parents[root]) is not None:
            root = above
        for child in children:
            if child != root:
                self._parents[child] = parent

    def path(self, leaf_id: str | UnsetType) -> list[Entry]:
        """The entries from the root to an entry; an unknown id, or none, means the last entry."""
        at: int | None = None
        if leaf_id is not UNSET:
            at = self._addresses.get(leaf_id, self._holders.get(leaf_id))
        if at is None and self._entries:
            at = len(self._entries) - 1
        found: list[Entry] = []
        while at is not None:
            found.append(self._entries[at])
            at = self._parents[at]
        return found[::-1]

    def aggregates(self) -> dict[int, bytes]:
        """Sequence -> the newest aggregate of child usage."""
        found = {}
        for entry in self._entries:
            stated = aggregate_of(entry.raw) if entry.type == CHILD_USAGE else None
            if stated is not None and stated[0] in self._holders:
                found[self._entries[self._holders[stated[0]]].sequence] = stated[1]
        return found
