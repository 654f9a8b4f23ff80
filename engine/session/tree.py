"""The tree of a session: what hangs below what, which labels hold, which path is active.

Nothing here recurses: chains are as deep as sessions are long. Parents come from the index, which
has cut cycles and named orphans; those are roots here, marked, so that every entry appears exactly
once. Everything can be bounded by a sequence: what came after it (entries, labels, parents that
were waited for) is then as if it had never been, whenever the tree is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from treering.engine import commands
from treering.engine.errors import Damaged, NotFound
from treering.engine.json_text import decode_or_none
from treering.engine.session import texts
from treering.engine.session.capture import DEFAULT_LIMITS, Counted, ReadLimits
from treering.engine.session.entry import Entry
from treering.engine.session.facts import facts_of
from treering.engine.session.reads import Reads
from treering.index import Entry as Row

T = TypeVar("T")

NEVER_SHOWN: Final = frozenset(("tool_intent", "request"))
"""Kinds that no tree has; what hangs below them hangs below the entry above them."""

Unresolved = Literal["missing", "cycle", "outside"]

_ORDINARY_STOPS: Final = (None, "", "stop", "toolUse")


@dataclass(slots=True, eq=False)
class TreeNode(Generic[T]):
    """One entry of a tree, and what hangs below it."""

    entry: T
    """The entry; what the caller made of it, in a tree that was grown with something else."""
    id: str
    sequence: int
    kind: str
    role: str | None
    timestamp_ms: int | None
    silent: bool
    """An assistant message without text that stopped ordinarily: only tool calls."""
    unresolved: Unresolved | None
    """Why it is a root although it, or a hidden entry above it, names a parent.

    ``outside`` is an entry that is no part of the tree (a second header).
    """
    parent_id: str | None = None
    """The entry that it hangs below here: the nearest one above it of a kind that is shown."""
    label: str | None = None
    label_timestamp_ms: int | None = None
    """When the label was set, Unix ms."""
    active: bool = False
    """On the path to the current position."""
    children: list[TreeNode[T]] = field(default_factory=list, repr=False)
    """By time, oldest first; those of one time, and those without one (last), as in the file."""


@dataclass(slots=True, eq=False, repr=False)
class Tree(Generic[T]):
    """A whole tree, as it was at one sequence."""

    nodes: dict[str, TreeNode[T]]
    """Every node by its id, in the order of the file."""
    roots: list[TreeNode[T]]
    """In the order of the file, unresolved ones included."""
    leaf_id: str | None
    up_to: int
    """Sequence that the tree reaches to."""
    entries: int
    """Number of entries, those of kinds that are never shown included."""
    source_bytes: int
    """Bytes of the frames of those entries."""
    _hidden: dict[str, str | None]
    """Entries of kinds that are never shown, with the nearest node above each."""

    def flat(self) -> list[TreeNode[T]]:
        """All nodes in the order of the file."""
        return list(self.nodes.values())

    def node(self, entry_id: str | None) -> TreeNode[T] | None:
        """The node of an entry; of one that is never shown, the nearest node above it."""
        if entry_id is None:
            return None
        found = self.nodes.get(entry_id)
        if found is None:
            above = self._hidden.get(entry_id)
            found = None if above is None else self.nodes[above]
        return found

    def walk(self) -> Iterator[TreeNode[T]]:
        """Every node, parents before children, the active branch before its siblings."""
        stack = active_first(self.roots)
        while stack:
            node = stack.pop()
            yield node
            stack += active_first(node.children)


def active_first(siblings: list[TreeNode[T]]) -> list[TreeNode[T]]:
    """Siblings for a stack: what is shown first is last."""
    ordered = siblings[::-1]
    if len(ordered) > 1:
        ordered.sort(key=lambda node: node.active)
    return ordered


# Building


def build_tree(
    reads: Reads,
    *,
    up_to: int | None = None,
    leaf_id: str | UnsetType | None = UNSET,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> Tree[Entry]:
    """The complete tree of a session, or of what it was at the sequence ``up_to``.

    A bounded tree takes the position of then as ``leaf_id``. Limits count the entries of all
    kinds, those that no tree has included.

    Raises:
        Invalid: the limits are no limits.
        LimitExceeded: the tree is larger; nothing is clipped.
        NotFound: ``leaf_id`` is no entry of that tree.
        Damaged: an entry does not verify any more, or its payload cannot be produced.
    """

    def load(rows: list[Row]) -> list[Entry]:
        found = reads.entries(after=rows[0].sequence - 1, limit=len(rows))
        if [entry.sequence for entry in found] != [row.sequence for row in rows]:
            raise _wrong_index(reads, "it lists other entries than before")
        return found

    def keep(_: Row, entry: Entry | None) -> Entry:
        assert entry is not None
        return entry

    limits.check()
    grower = Grower(reads, load, keep, limits)
    tree = grower.grow(up_to=up_to, leaf_id=leaf_id)
    for entry_id, mark in grower.came_later.items():
        node = tree.nodes.get(entry_id)
        if node is not None:
            node.entry = node.entry._replace(unresolved=mark)
    return tree


class Grower(Generic[T]):
    """Makes one tree of what ``make`` gives for each entry; used once.

    ``load`` gives the entries of a page of index rows, in their order, None for one that cannot be
    had. Memory holds one page of entries, and what is made of them.
    """

    def __init__(
        self,
        reads: Reads,
        load: Callable[[list[Row]], Iterable[Entry | None]],
        make: Callable[[Row, Entry | None], T],
        limits: ReadLimits,
    ) -> None:
        self._reads = reads
        self._load = load
        self._make = make
        self._counted = Counted(
            limits,
            reads.path,
            what="the tree",
            next_step="raise the limit, or read children page by page",
        )
        self._shown: dict[int, TreeNode[T]] = {}
        self._hidden: dict[int, str] = {}
        self._parents: dict[int, int | None] = {}
        """Of shown entries and hidden ones, by sequence."""
        self._marks: dict[int, Unresolved] = {}
        self._cycles: list[tuple[Row, str | None]] = []
        self._labels = _Labels()
        self.came_later: dict[str, Literal["missing"]] = {}
        """Entries whose parent, or whose cycle, only came behind the bound."""

    def grow(self, *, up_to: int | None = None, leaf_id: str | UnsetType | None = UNSET) -> Tree[T]:
        """The tree: see :func:`build_tree`."""
        if isinstance(leaf_id, UnsetType):
            leaf_id = self._reads.leaf_id  # before the bound is taken: so it lies within
        position = self._reads.ask(lambda index: index.position())
        reached = 0 if position is None else position.sequence
        up_to = reached if up_to is None else min(up_to, reached)
        self._read(up_to)
        self._settle_cycles()
        hidden = {self._hidden[at]: self._above(at) for at in self._hidden}
        roots = self._link()
        tree = Tree(
            {node.id: node for node in self._shown.values()},
            roots,
            leaf_id,
            up_to,
            self._counted.entries,
            self._counted.bytes,
            {key: None if at is None else self._shown[at].id for key, at in hidden.items()},
        )
        self._mark_active(tree)
        if sum(1 for _ in tree.walk()) != len(tree.nodes):
            raise _wrong_index(self._reads, "its parents go round in a circle")
        return tree

    def _read(self, up_to: int) -> None:
        after = 0
        while after < up_to:
            page = self._reads._rows_after(after)
            rows = [row for row in page if row.sequence <= up_to]
            if not rows:
                return
            self._counted.add(rows)
            for row, entry in zip(rows, self._load(rows), strict=True):
                self._add(row, entry, up_to)
            after = rows[-1].sequence

    def _add(self, row: Row, entry: Entry | None, up_to: int) -> None:
        mark: Unresolved | None = row.unresolved if row.tree else "outside"
        parent = row.parent
        if parent is not None and parent > up_to:
            parent, mark = None, "missing"
            self.came_later[row.id] = "missing"
        self._parents[row.sequence] = parent
        if mark is not None:
            self._marks[row.sequence] = mark
            if mark == "cycle":
                self._cycles.append((row, None if entry is None else entry.parent_id))
        self._labels.add(row, entry)
        if row.kind in NEVER_SHOWN:
            self._hidden[row.sequence] = row.id
            return
        self._shown[row.sequence] = TreeNode(
            self._make(row, entry),
            row.id,
            row.sequence,
            row.kind,
            row.role,
            row.timestamp_ms,
            row.role == "assistant" and entry is not None and is_silent(entry),
            mark,
        )

    def _settle_cycles(self) -> None:
        """A cycle that was closed behind the bound is an orphan before it."""
        for row, named in self._cycles:
            if named is not None and named not in self._labels.holders:
                self._marks[row.sequence] = "missing"
                self.came_later[row.id] = "missing"

    def _above(self, at: int) -> int | None:
        """The nearest shown entry above one, leaving each hidden one on the way pointing there.

        The mark of a hidden root goes to the entries below it.
        """
        trail = [at]
        parent = self._parents[at]
        while parent is not None and parent in self._hidden and len(trail) <= len(self._hidden):
            trail.append(parent)
            parent = self._parents[parent]
        if parent is not None and parent not in self._shown:
            raise _wrong_index(self._reads, f"entry {at} has no ancestor at {parent}")
        mark = None if parent is not None else self._marks.get(trail[-1])
        for sequence in trail:
            self._parents[sequence] = parent
            if mark is not None:
                self._marks[sequence] = mark
        return parent

    def _link(self) -> list[TreeNode[T]]:
        roots: list[TreeNode[T]] = []
        several: dict[int, TreeNode[T]] = {}
        for sequence, node in self._shown.items():
            above = self._above(sequence)
            node.unresolved = self._marks.get(sequence)
            label = self._labels.found.get(node.id)
            if label is not None:
                node.label, node.label_timestamp_ms = label
            if above is None:
                roots.append(node)
                continue
            parent = self._shown[above]
            node.parent_id = parent.id
            parent.children.append(node)
            if len(parent.children) == 2:
                several[above] = parent
        for parent in several.values():
            parent.children.sort(key=_time)
        return roots

    def _mark_active(self, tree: Tree[T]) -> None:
        leaf_id = tree.leaf_id
        if leaf_id is not None and leaf_id not in tree.nodes and leaf_id not in tree._hidden:
            raise NotFound(f"no entry {leaf_id!r} in the tree", path=self._reads.path)
        at = tree.node(leaf_id)
        while at is not None and not at.active:
            at.active = True
            at = None if at.parent_id is None else tree.nodes[at.parent_id]


def _time(node: TreeNode[Any]) -> float:
    return math.inf if node.timestamp_ms is None else node.timestamp_ms


def _wrong_index(reads: Reads, why: str) -> Damaged:
    return Damaged(
        f"the index cannot be right: {why}",
        path=reads.path,
        next_step=f"next: {commands.command('reindex', commands.selector(reads.path))}",
    )


class _Labels:
    """The labels in force after the entries so far, by the rules of the index."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, int | None]] = {}
        self.holders: dict[str, str] = {}
        """What an id means to an entry that comes now: the id of the newest that has it."""
        self._waiting: dict[str, tuple[str, int | None]] = {}

    def add(self, row: Row, entry: Entry | None) -> None:
        """Take in the next entry."""
        label = None if entry is None or row.kind != "label" else facts_of(entry.raw).label
        target = None if label is None else self.holders.get(label[0])
        if row.tree:
            own = row.own_id or row.id
            self.holders.setdefault(row.id, row.id)
            self.holders[own] = row.id
            if self._waiting and own in self._waiting:
                self.found[row.id] = self._waiting.pop(own)
        if label is None:
            return
        text = (label[1] or "").encode("utf-8", "backslashreplace").decode()
        where, key = (self._waiting, label[0]) if target is None else (self.found, target)
        if text:
            where[key] = (text, row.timestamp_ms)
        else:
            where.pop(key, None)


class _Block(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None


class _Spoken(msgspec.Struct, rename="camel", gc=False):
    content: str | list[_Block] | None = None
    stop_reason: str | None = None


class _Assistant(msgspec.Struct, gc=False):
    message: _Spoken | None = None


_assistants: Final = msgspec.json.Decoder(_Assistant)


def is_silent(entry: Entry) -> bool:
    """Whether an assistant's message has no text and stopped as usual: it only calls tools."""
    found = decode_or_none(_assistants, entry.raw)
    if found is not None and found.message is not None:
        spoken = found.message
        if spoken.stop_reason not in _ORDINARY_STOPS:
            return False
        if isinstance(spoken.content, str):
            return not spoken.content.strip()
        return not any(
            block.type == "text" and block.text is not None and block.text.strip()
            for block in spoken.content or ()
        )
    message = texts.members_of(entry.raw).get("message")  # members of unexpected types
    said = message if isinstance(message, dict) else {}
    return said.get("stopReason") in _ORDINARY_STOPS and not texts.has_text(said.get("content"))
