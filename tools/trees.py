"""The tree of a session as lines: which entries a filter shows, and what hangs below what.

Nothing here recurses: chains are as deep as sessions are long. Parents come from the index, which
has already cut cycles and named orphans; those are roots here, marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from treering.engine.session.view import SessionView
from treering.index import Label
from treering.tools import showing
from treering.tools.output import one_line
from treering.tools.viewing import all_rows, load

Filter = Literal["default", "no-tools", "user-only", "labeled-only", "all"]
FILTERS: Final[tuple[Filter, ...]] = ("default", "no-tools", "user-only", "labeled-only", "all")

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
"""Kinds that ``default`` hides."""

NEVER_SHOWN: Final = frozenset(("tool_intent", "request"))
_ORDINARY_STOPS: Final = (None, "", "stop", "toolUse")
_SEARCH_CHARS: Final = 200
_TEXT_CHARS: Final = 300


@dataclass(slots=True)
class Node:
    """One entry of the tree."""

    sequence: int
    id: str
    parent: int | None
    kind: str
    role: str | None
    shown_as: str
    text: str
    silent: bool
    """An assistant message without text that stopped ordinarily: only tool calls."""
    unresolved: str | None
    label: str | None = None
    leaf: bool = False
    active: bool = False
    """On the path to the current position."""


@dataclass(slots=True)
class Line:
    """One shown entry: its node, its nearest shown ancestor, and how it is indented."""

    node: Node
    parent: str | None
    indent: int
    branch: Literal["", "last", "more"]
    """Whether it is one of several children, and the last of them."""


def nodes_of(view: SessionView) -> dict[int, Node]:
    """Every entry of a session, by sequence, in journal order."""
    labels = _labels(view)
    nodes: dict[int, Node] = {}
    for page in all_rows(view):
        for row, entry in load(view, page):
            shown_as, text = showing.describe(entry)
            silent = row.role == "assistant" and entry is not None and _is_silent(entry.raw)
            nodes[row.sequence] = Node(
                row.sequence,
                row.id,
                row.parent if row.tree else None,
                row.kind,
                row.role,
                shown_as,
                one_line(text, most=_TEXT_CHARS),
                silent,
                row.unresolved if row.tree else "outside the tree",
                labels.get(row.sequence),
            )
    _mark_active(view, nodes)
    return nodes


def _labels(view: SessionView) -> dict[int, str]:
    labels: dict[int, str] = {}
    page = _labels_after(view, 0)
    while page:
        labels.update((label.target, one_line(label.label)) for label in page)
        page = _labels_after(view, page[-1].target)
    return labels


def _labels_after(view: SessionView, target: int) -> list[Label]:
    return view.ask(lambda index: index.labels(after=target, limit=1024))


def _is_silent(raw: bytes) -> bool:
    members = showing.members_of(raw)
    message = members.get("message")
    stop = message.get("stopReason") if isinstance(message, dict) else None
    return not showing.has_text(members) and stop in _ORDINARY_STOPS


def _mark_active(view: SessionView, nodes: dict[int, Node]) -> None:
    leaf = view.ask(lambda index: index.leaf()).sequence
    if leaf in nodes and leaf is not None:
        nodes[leaf].leaf = True
    at, steps = leaf, 0
    while at is not None and at in nodes and steps <= len(nodes):
        nodes[at].active = True
        at, steps = nodes[at].parent, steps + 1


def is_shown(node: Node, mode: Filter) -> bool:
    """Whether a filter shows an entry."""
    if node.kind in NEVER_SHOWN or (node.silent and not node.leaf):
        return False
    if mode == "all":
        return True
    if mode == "user-only":
        return node.kind == "message" and node.role == "user"
    if mode == "labeled-only":
        return node.label is not None
    if node.kind in BOOKKEEPING:
        return False
    return not (mode == "no-tools" and node.role == "toolResult")


def matches(node: Node, tokens: Iterable[str]) -> bool:
    """Whether every token (lower-cased) occurs in the entry's label, role or text."""
    text = " ".join((node.label or "", node.shown_as, node.text[:_SEARCH_CHARS])).lower()
    return all(token in text for token in tokens)


def lines_of(nodes: dict[int, Node], mode: Filter, search: str = "") -> list[Line]:
    """The shown entries as displayed: a parent before its children, the active branch first."""
    tokens = search.lower().split()
    shown = {
        sequence: node
        for sequence, node in nodes.items()
        if is_shown(node, mode) and matches(node, tokens)
    }
    above = _shown_ancestors(nodes, shown)
    children: dict[int | None, list[Node]] = {}
    for sequence, node in shown.items():
        children.setdefault(above[sequence], []).append(node)
    leads = _leading(nodes, shown)
    for siblings in children.values():
        siblings.sort(key=lambda node: (node.sequence not in leads, node.sequence))
    return list(_walk(children, shown, above))


def _shown_ancestors(nodes: dict[int, Node], shown: dict[int, Node]) -> dict[int, int | None]:
    """The nearest shown ancestor of every entry. Parents may come later in the file."""
    known: dict[int, int | None] = {}
    for start in nodes:
        trail: list[int] = []
        at: int | None = start
        seen: set[int] = set()
        while at is not None and at not in known and at in nodes and at not in seen:
            trail.append(at)
            seen.add(at)
            at = nodes[at].parent
        for sequence in reversed(trail):
            parent = nodes[sequence].parent
            if parent is None or parent not in nodes or (parent not in known and parent in seen):
                known[sequence] = None
            else:
                known[sequence] = parent if parent in shown else known.get(parent)
    return known


def _leading(nodes: dict[int, Node], shown: dict[int, Node]) -> set[int]:
    return {sequence for sequence in shown if nodes[sequence].active}


def _walk(
    children: dict[int | None, list[Node]], shown: dict[int, Node], above: dict[int, int | None]
) -> Iterator[Line]:
    """Depth first. Indented by one at a branch and for the generation after it, else flat."""
    roots = children.get(None, [])
    many_roots = len(roots) > 1
    stack: list[tuple[Node, int, bool, Literal["", "last", "more"]]] = [
        (root, 1 if many_roots else 0, many_roots, "") for root in reversed(roots)
    ]
    while stack:
        node, indent, just_branched, branch = stack.pop()
        parent = above[node.sequence]
        yield Line(
            node,
            None if parent is None else shown[parent].id,
            max(0, indent - 1) if many_roots else indent,
            branch,
        )
        below = children.get(node.sequence, [])
        branching = len(below) > 1
        deeper = indent + 1 if branching or (just_branched and indent > 0) else indent
        for place, child in enumerate(reversed(below)):
            mark: Literal["", "last", "more"] = (
                "" if not branching else "last" if place == 0 else "more"
            )
            stack.append((child, deeper, branching, mark))
