"""The tree of a session as lines: how what a filter shows is indented."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from treering.engine.session.capture import ReadLimits
from treering.engine.session.entry import Entry
from treering.engine.session.tree import Grower, Tree, TreeNode
from treering.engine.session.tree_view import Filter, VisibleNode, visible_tree, words_missing
from treering.engine.session.view import SessionView
from treering.index import Entry as IndexRow
from treering.tools import showing
from treering.tools.output import one_line
from treering.tools.viewing import load

_TEXT_CHARS = 300


class Shown(NamedTuple):
    """What is shown of an entry, and the words of the search that are not in its text."""

    shown_as: str
    """Its role or kind."""
    text: str
    words_left: tuple[str, ...]


Node = TreeNode[Shown]


@dataclass(slots=True)
class Line:
    """One shown entry: its node, its nearest shown ancestor, and how it is indented."""

    node: Node
    parent: str | None
    indent: int
    branch: Literal["", "last", "more"]
    """Whether it is one of several children, and the last of them."""
    leaf: bool

    @property
    def label(self) -> str | None:
        """The label that it carries, on one line."""
        return None if self.node.label is None else one_line(self.node.label)

    @property
    def unresolved(self) -> str | None:
        """Why it is a root although it names a parent."""
        return "outside the tree" if self.node.unresolved == "outside" else self.node.unresolved


def tree_of(view: SessionView, search: str = "") -> Tree[Shown]:
    """The whole tree of a session, without the entries themselves: only what lines show."""
    words = search.lower().split()

    def shown(_: IndexRow, entry: Entry | None) -> Shown:
        shown_as, text = showing.describe(entry)
        left = words_missing(words, f"{shown_as} {text}") if words else ()
        return Shown(shown_as, one_line(text, most=_TEXT_CHARS), tuple(left))

    def loaded(rows: list[IndexRow]) -> Iterator[Entry | None]:
        return (entry for _, entry in load(view, rows))

    return Grower(view, loaded, shown, ReadLimits(None, None)).grow()


def lines_of(tree: Tree[Shown], mode: Filter) -> list[Line]:
    """What a filter and the search of the tree show, as displayed."""
    visible = visible_tree(tree, mode, _is_found)
    return list(_walk(visible.roots, tree.leaf_id))


def _is_found(node: Node) -> bool:
    left = node.entry.words_left
    return not left or not words_missing(list(left), node.label or "")


def _walk(roots: list[VisibleNode[Shown]], leaf_id: str | None) -> Iterator[Line]:
    """Depth first. Indented by one at a branch and for the generation after it, else flat."""
    many_roots = len(roots) > 1
    stack: list[tuple[VisibleNode[Shown], int, bool, Literal["", "last", "more"]]] = [
        (root, 1 if many_roots else 0, many_roots, "") for root in reversed(roots)
    ]
    while stack:
        row, indent, just_branched, branch = stack.pop()
        yield Line(
            row.node,
            None if row.parent is None else row.parent.node.id,
            max(0, indent - 1) if many_roots else indent,
            branch,
            row.node.id == leaf_id,
        )
        branching = len(row.children) > 1
        deeper = indent + 1 if branching or (just_branched and indent > 0) else indent
        for place, child in enumerate(reversed(row.children)):
            mark: Literal["", "last", "more"] = (
                "" if not branching else "last" if place == 0 else "more"
            )
            stack.append((child, deeper, branching, mark))
