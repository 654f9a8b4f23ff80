"""What of a tree is visible (filters, search), what stays selected, and what a selection means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from treering.engine.json_text import clean
from treering.engine.session import texts
from treering.engine.session.entry import Entry
from treering.engine.session.reads import Reads
from treering.engine.session.tree import Tree, TreeNode, active_first

T = TypeVar("T")

Filter = Literal["default", "no-tools", "user-only", "labeled-only", "all"]
FILTERS: Final[tuple[Filter, ...]] = ("default", "no-tools", "user-only", "labeled-only", "all")
"""In the order in which a frontend cycles through them."""

BOOKKEEPING: Final = frozenset(
    (
        "label",
        "custom",
        "model_change",
        "thinking_level_change",
        "service_tier_change",
        "session_info",
        "child_usage_attributed",
        "session_state",
        "agent_status",
        "git_state",
        "session",
    )
)
"""Kinds that the filters ``default`` and ``no-tools`` hide."""


@dataclass(slots=True, eq=False)
class VisibleNode(Generic[T]):
    """One visible entry, below the nearest visible entry above it."""

    node: TreeNode[T]
    parent: VisibleNode[T] | None = field(repr=False)
    children: list[VisibleNode[T]] = field(default_factory=list, repr=False)
    """In the order of display."""


@dataclass(slots=True, eq=False, repr=False)
class VisibleTree(Generic[T]):
    """What of a tree is visible, in the order of display."""

    tree: Tree[T]
    rows: list[VisibleNode[T]]
    """Parents before children, the active branch before its siblings."""
    roots: list[VisibleNode[T]]
    _by_id: dict[str, VisibleNode[T]]

    def nearest(self, entry_id: str | None) -> VisibleNode[T] | None:
        """The entry itself if it is visible, else the nearest visible one above it."""
        node = self.tree.node(entry_id)
        while node is not None:
            found = self._by_id.get(node.id)
            if found is not None:
                return found
            node = None if node.parent_id is None else self.tree.nodes[node.parent_id]
        return None


def visible_tree(
    tree: Tree[T], mode: Filter, found: Callable[[TreeNode[T]], bool] | None = None
) -> VisibleTree[T]:
    """The part of a tree that a filter shows and a search finds (see :func:`finder`)."""
    view: VisibleTree[T] = VisibleTree(tree, [], [], {})
    stack: list[tuple[TreeNode[T], VisibleNode[T] | None]]
    stack = [(node, None) for node in active_first(tree.roots)]
    while stack:
        node, above = stack.pop()
        if is_shown(node, mode, tree.leaf_id) and (found is None or found(node)):
            visible = VisibleNode(node, above)
            (view.roots if above is None else above.children).append(visible)
            view.rows.append(visible)
            view._by_id[node.id] = visible
            above = visible
        stack += [(child, above) for child in active_first(node.children)]
    return view


def is_shown(node: TreeNode[Any], mode: Filter, leaf_id: str | None) -> bool:
    """Whether a filter shows an entry."""
    if node.silent and node.id != leaf_id:
        return False
    if mode == "all":
        return True
    if mode == "user-only":
        return node.kind == "message" and node.role == "user"
    if mode == "labeled-only":
        return node.label is not None
    if node.kind in BOOKKEEPING:
        return False
    return not (mode == "no-tools" and node.kind == "message" and node.role == "toolResult")


def finder(search: str) -> Callable[[TreeNode[Entry]], bool]:
    """Whether all words of a search occur in an entry's label, role or kind, and text."""
    words = search.lower().split()

    def found(node: TreeNode[Entry]) -> bool:
        if not words:
            return True
        left = words_missing(words, " ".join(texts.describe(node.entry)))
        return not words_missing(left, node.label or "")

    return found


def words_missing(words: list[str], text: str) -> list[str]:
    """Those of the (lower-cased) words that do not occur in a text."""
    lowered = text.lower()
    return [word for word in words if word not in lowered]


class Selection:
    """Which entry a list has selected, while its filter and its search change."""

    def __init__(self, entry_id: str | None) -> None:
        self.entry_id = entry_id
        """The selected entry; remembered while nothing is visible."""

    def follow(self, view: VisibleTree[T]) -> VisibleNode[T] | None:
        """Select the nearest visible entry at or above the selected one, else the last in the list.

        None while nothing is visible: the entry that was selected is found again when it is.
        """
        if not view.rows:
            return None
        found = view.nearest(self.entry_id) or view.rows[-1]
        self.entry_id = found.node.id
        return found


# What a selection means


class Selected(NamedTuple):
    """Where selecting an entry leads."""

    leaf_id: str | None
    """The new position; None is the position before any entry."""
    editor_text: str | None
    """What the editor is filled with; None leaves it empty."""


def selection_of(reads: Reads, entry: Entry) -> Selected:
    """Where selecting an entry leads.

    A message of the user and a custom_message are taken back for editing: the position before
    them and their text. Every other entry is gone on from.

    Raises:
        NotFound: no entry has that id.
    """
    text = editable_text(entry)
    if text is None:
        return Selected(entry.id, None)
    parent = reads.parent(entry.id)
    return Selected(None if parent is None else parent.id, text)


def editable_text(entry: Entry) -> str | None:
    """The text of an entry that is taken back for editing when it is selected; else None.

    Lone surrogates come out as U+FFFD: no editor could hand them in again.
    """
    if entry.type == "custom_message":
        return clean(texts.whole_text(texts.members_of(entry.raw).get("content")))
    if entry.type != "message" or entry.role != "user":
        return None
    message = texts.members_of(entry.raw).get("message")
    return clean(texts.whole_text(message.get("content") if isinstance(message, dict) else None))
