"""The tree of a session: building, filters, search, selection; against a slow plain oracle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_helpers import new
from support.long_runs import LONG
from tree_helpers import Item, assistant, chain, entry, label, stamp, tool, user, viewed

from treering.engine import Damaged, Entry, Invalid, LimitExceeded, NotFound, Session, SessionView
from treering.engine.session.capture import ReadLimits
from treering.engine.session.tree import Tree, TreeNode, build_tree
from treering.engine.session.tree_view import (
    BOOKKEEPING,
    FILTERS,
    Filter,
    Selected,
    Selection,
    finder,
    selection_of,
    visible_tree,
)

NO_LIMITS = ReadLimits(None, None)


def shape(nodes: list[TreeNode[Entry]]) -> list[Any]:
    """Nested lists of ids (only for shallow trees)."""
    return [[node.id, shape(node.children)] if node.children else node.id for node in nodes]


def visible(tree: Tree[Entry], mode: Filter = "default", search: str = "") -> list[str]:
    return [row.node.id for row in visible_tree(tree, mode, finder(search)).rows]


# Building


def test_the_empty_session(tmp_path: Path) -> None:
    """Tree: a session without entries has no roots."""
    with new(tmp_path) as session:
        tree = build_tree(session)
        assert (tree.roots, tree.flat(), tree.entries, tree.source_bytes) == ([], [], 0, 0)
        assert visible_tree(tree, "all").rows == []
        assert tree.node(None) is tree.node("x") is None


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("message", {"message": {"role": "user", "content": "hello"}}),
    ("message", {"message": {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}}),
    ("message", {"message": {"role": "toolResult", "toolCallId": "c", "content": []}}),
    ("message", {"message": {"role": "bashExecution", "command": "ls", "output": ""}}),
    ("thinking_level_change", {"thinkingLevel": "high"}),
    ("service_tier_change", {"serviceTier": "priority"}),
    ("model_change", {"provider": "p", "modelId": "m"}),
    ("compaction", {"summary": "s", "firstKeptEntryId": None, "tokensBefore": 1}),
    ("branch_summary", {"summary": "s", "fromId": "root"}),
    ("custom", {"customType": "x"}),
    ("custom_message", {"customType": "x", "content": "c", "display": True}),
    ("session_info", {"name": "n"}),
    ("session_state", {"state": {"status": "active"}}),
    ("agent_status", {"status": {"summary": "s"}}),
    ("git_state", {"git": {}}),
    ("never_heard_of", {"stuff": [1]}),
]


def test_parent_chain_and_leaf_for_each_append_kind(tmp_path: Path) -> None:
    """Tree: parent chain for each append kind, leaf after each."""
    with new(tmp_path) as session:
        ids: list[str] = []
        for kind, members in KINDS:
            ids.append(session.append({"type": kind, **members}))
            tree = build_tree(session)
            assert tree.leaf_id == ids[-1] == session.leaf_id
            assert [node.id for node in tree.flat()] == ids
            assert [node.parent_id for node in tree.flat()] == [None, *ids[:-1]]
            assert all(node.active for node in tree.flat())
            assert tree.nodes[ids[-1]].kind == kind
        target = session.append({"type": "label", "targetId": ids[0], "label": "L"})
        child = {"input": 1, "output": 1}
        session.append({"type": "child_usage_attributed", "targetId": ids[1], "childUsage": child})
        tree = build_tree(session)
        assert tree.nodes[target].parent_id == ids[-1]
        assert [node.entry.raw for node in tree.flat()] == [e.raw for e in session.iter_entries()]


def test_hidden_kinds_are_passed_over(tmp_path: Path) -> None:
    """Tree: tool_intent and request hidden; children re-parented past hidden ones."""
    items = [
        user("u", None),
        entry("i1", "u", "tool_intent"),
        entry("r1", "i1", "request"),
        tool("t", "r1"),
        entry("i0", None, "tool_intent"),
        user("root2", "i0"),
        entry("i2", "t", "tool_intent"),
        {"leaf": "i2"},
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        assert shape(tree.roots) == [["u", ["t"]], "root2"]
        assert tree.nodes["t"].parent_id == "u"
        assert tree.entries == 7
        # The position is at a hidden entry: the path to it is active all the same.
        assert [node.id for node in tree.flat() if node.active] == ["u", "t"]
        found = [tree.node(name) for name in ("i2", "r1", "i0")]
        assert [None if node is None else node.id for node in found] == ["t", "u", None]


def test_roots_in_file_order_and_children_by_time(tmp_path: Path) -> None:
    """Tree: roots, several branches; roots in file order, children by timestamp ascending."""
    items = [
        user("late", None, timestamp=stamp(9)),
        user("early", None, timestamp=stamp(1)),
        user("c", "early", timestamp=stamp(7)),
        user("none", "early"),
        user("b2", "early", timestamp=stamp(5)),
        user("b1", "early", timestamp=stamp(5)),
        user("a", "early", timestamp=stamp(3)),
        user("odd", "early", timestamp="yesterday"),
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        assert [node.id for node in tree.roots] == ["late", "early"]
        assert [node.id for node in tree.roots[1].children] == ["a", "b2", "b1", "c", "none", "odd"]
        assert [node.id for node in tree.flat()] == [item["id"] for item in items]


def test_orphans_and_cycles_appear_once_and_marked(tmp_path: Path) -> None:
    """Tree: missing-parent and self-parent entries become roots; longer cycles too, once each."""
    items = [
        user("a", "c"),
        user("b", "a"),
        user("c", "b"),
        user("self", "self"),
        user("orphan", "nobody"),
        user("early", "later"),
        user("later", None),
        {"type": "session", "id": "h2", "version": 3},
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        marks = {
            node.kind[:1] + node.id: node.unresolved for node in tree.flat() if node.unresolved
        }
        outside = next(node for node in tree.flat() if node.kind == "session")
        assert marks == {"ma": "cycle", "mself": "cycle", "morphan": "missing"} | {
            "s" + outside.id: "outside"
        }
        assert shape(tree.roots) == [["a", [["b", ["c"]]]], "self", "orphan", ["later", ["early"]],
                                     outside.id]  # fmt: skip
        for node in tree.flat():
            assert node.entry.unresolved == (None if node is outside else node.unresolved)


def test_below_a_hidden_orphan_the_mark_stays(tmp_path: Path) -> None:
    """Tree: what hangs below a hidden entry whose parent is missing is a root that says so."""
    items = [
        entry("lost", "nobody", "tool_intent"),
        tool("t", "lost"),
        entry("r", "x", "request"),
        user("x", "r"),
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        assert {node.id: node.unresolved for node in tree.roots} == {"t": "missing", "x": "cycle"}
        assert tree.nodes["t"].entry.unresolved is None  # its own parent is there


def test_branch_to_unknown(tmp_path: Path) -> None:
    """Tree: branch to unknown refuses, and the tree is as it was."""
    with new(tmp_path) as session:
        session.append(user("a", None))
        with pytest.raises(NotFound):
            session.branch_to("nobody")
        assert build_tree(session).leaf_id == "a"
        with pytest.raises(NotFound, match="nobody"):
            build_tree(session, leaf_id="nobody")


def test_a_summary_branch(tmp_path: Path) -> None:
    """Tree: a summary branch hangs at the new position and leads the active path."""
    with new(tmp_path) as session:
        for item in chain(user("u1", None), assistant("a1", None, "x"), user("u2", None)):
            session.append(item)
        summary = {"type": "branch_summary", "parentId": "a1", "fromId": "a1", "summary": "s"}
        made = session.append(summary)
        tree = build_tree(session)
        assert shape(tree.roots) == [["u1", [["a1", ["u2", made]]]]]
        assert visible(tree) == ["u1", "a1", made, "u2"]
        assert [node.id for node in tree.walk() if node.active] == ["u1", "a1", made]


def test_a_copied_path(tmp_path: Path) -> None:
    """Tree: the path of one branch, written as a session of its own, is a tree with one line."""
    with new(tmp_path) as session:
        for item in (user("a", None), user("b", "a"), user("x", "a"), user("c", "b")):
            session.append(item)
        path = [e.raw for e in session.branch("c")]
    with Session.create(home_dir=str(tmp_path / "copy")) as copy:
        copy.append_many(path)
        assert shape(build_tree(copy).roots) == [["a", [["b", ["c"]]]]]


def test_before_any_entry(tmp_path: Path) -> None:
    """Tree: with the position before any entry nothing is active."""
    with new(tmp_path) as session:
        session.append(user("a", None))
        session.branch_to(None)
        tree = build_tree(session)
        assert tree.leaf_id is None
        assert not tree.roots[0].active


def test_limits_refuse_whole(tmp_path: Path) -> None:
    """Limits: exactly at the limit passes, one more fails; hidden entries count; None lifts."""
    items = [*chain(*(user(f"e{n}", None) for n in range(1500))), entry("r", "e0", "request")]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        count, size = tree.entries, tree.source_bytes
        assert count == 1501
        build_tree(view, limits=ReadLimits(count, size))
        for limits in (ReadLimits(count - 1, None), ReadLimits(None, size - 1), ReadLimits(1, 1)):
            with pytest.raises(LimitExceeded) as caught:
                build_tree(view, limits=limits)
            assert caught.value.limit in limits
            assert caught.value.need is not None
            assert caught.value.need > caught.value.limit
        with pytest.raises(Invalid):
            build_tree(view, limits=ReadLimits(0, None))


def test_an_entry_that_cannot_be_produced(tmp_path: Path) -> None:
    """A complete tree is complete: damage raises, it hides no entry."""
    with new(tmp_path) as session:
        for item in chain(user("a", None), user("b", None)):
            session.append(item)
        path = session.path
    raw = bytearray(Path(path).read_bytes())
    with Session.open_read_only(path) as view:
        at = raw.index(b"text b")
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"X")
        with pytest.raises(Damaged, match="verify"):
            build_tree(view)


def wrong(view: SessionView, patch: pytest.MonkeyPatch, rows: dict[str, dict[str, Any]]) -> None:
    """An index that says other things of some entries."""
    real = view.ask

    def ask(question: Any) -> Any:
        found = real(question)
        if isinstance(found, list):
            return [row._replace(**rows.get(row.id, {})) for row in found]
        return found

    patch.setattr(view, "ask", ask)


def test_an_index_that_cannot_be_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a damaged index says, a tree ends, and no entry is left out in silence: circles of
    shown and of hidden entries, ancestors that are nowhere, entries that come and go."""
    items = [
        user("a", None),
        user("b", "a"),
        entry("i", "b", "tool_intent"),
        entry("j", "i", "tool_intent"),
        user("c", "j"),
    ]
    with viewed(tmp_path, items) as view:
        at = {e.id: e.sequence for e in view.iter_entries()}
        for rows in (
            {"a": {"parent": at["b"]}},
            {"i": {"parent": at["j"]}},
            {"c": {"parent": 1}},
            {"i": {"parent": 1}},
        ):
            with monkeypatch.context() as patch:
                wrong(view, patch, rows)
                with pytest.raises(Damaged, match="index cannot be right") as caught:
                    build_tree(view, leaf_id=None)
            assert "reindex" in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setattr(view, "entries", lambda **_: [])
            with pytest.raises(Damaged, match="index cannot be right"):
                build_tree(view)
        assert len(build_tree(view).flat()) == 3


# The bound


def test_a_bound_hides_everything_later(tmp_path: Path) -> None:
    """Captured reads never see later appends: entries, labels, positions, healed parents."""
    with new(tmp_path) as session:
        session.append(user("a", None))
        session.append(label("l1", "a", "a", "first"))
        leaf, bound = session.leaf_id, session.entries()[-1].sequence
        session.append(label("l2", "l1", "a", "second"))
        session.append(user("b", "a"))
        session.branch_to("a")
        tree = build_tree(session, up_to=bound, leaf_id=leaf)
        assert shape(tree.roots) == [["a", ["l1"]]]
        assert (tree.leaf_id, tree.up_to, tree.entries) == ("l1", bound, 2)
        assert tree.nodes["a"].label == "first"
        assert build_tree(session).nodes["a"].label == "second"
        with pytest.raises(NotFound):
            build_tree(session, up_to=bound, leaf_id="b")


def test_a_bound_before_a_parent_came(tmp_path: Path) -> None:
    """What waits for its parent is an orphan in a tree that ends before the parent, a cycle that
    is not closed yet is none, and labels of ids that nobody has yet wait."""
    items = [
        user("early", "later"),
        user("a", "b"),
        label("l", "early", "later", "L"),
        user("later", None),
        user("b", "a"),
    ]
    with viewed(tmp_path, items) as view:
        sequences = [e.sequence for e in view.iter_entries()]
        before = build_tree(view, up_to=sequences[2], leaf_id="l")
        assert {n.id: n.unresolved for n in before.roots} == {"early": "missing", "a": "missing"}
        assert before.nodes["early"].entry.unresolved == "missing"
        assert before.nodes["a"].entry.unresolved == "missing"
        after = build_tree(view)
        assert {n.id: n.unresolved for n in after.roots} == {"a": "cycle", "later": None}
        assert after.nodes["later"].label == "L"


# Labels


def test_labels_in_the_tree(tmp_path: Path) -> None:
    """Labels: set, clear, last wins, in tree; with the time of the label that holds."""
    items = [
        user("a", None),
        user("b", "a"),
        label("l1", "b", "a", "one", timestamp=stamp(1)),
        label("l2", "l1", "a", "two", timestamp=stamp(2)),
        label("l3", "l2", "b", "gone", timestamp=stamp(3)),
        label("l4", "l3", "b", None, timestamp=stamp(4)),
        label("l5", "l4", "nobody", "waits"),
        label("l6", "l5", "l1", "", timestamp=stamp(5)),
        label("l7", "l6", "l7", "of itself"),
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        found = {n.id: (n.label, n.label_timestamp_ms) for n in tree.flat() if n.label is not None}
        when = view.read("l2").timestamp_ms
        assert when is not None
        assert found == {"a": ("two", when)}
        assert visible(tree, "labeled-only") == ["a"]
        assert {e.id: text for e, text in view.labels()} == {"a": "two"}


def test_labels_of_entries_that_share_an_id(tmp_path: Path) -> None:
    """A label belongs to the newest entry of its id, in the tree as in the index."""
    items = [
        user("a", None),
        label("l1", "a", "a", "first"),
        user("a", None, "again"),
        label("l2", "a", "a", "second"),
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        found = {node.id: node.label for node in tree.flat() if node.label}
        assert found == {e.id: text for e, text in view.labels()}
        assert sorted(found.values()) == ["first", "second"]


# Filters, search, selection


def filter_items() -> list[Item]:
    """One entry of every kind that filters tell apart, in one line."""
    bookkeeping = [entry(kind, None, kind, targetId="u", label="L") for kind in sorted(BOOKKEEPING)
                   if kind != "session"]  # fmt: skip
    return chain(
        user("u", None),
        *bookkeeping,
        tool("tool", None),
        assistant("calls", None, stop="toolUse"),
        assistant("fails", None, stop="error"),
        entry("bash", None, "message", message={"role": "bashExecution", "command": "ls"}),
        entry("compaction", None, "compaction", summary="s"),
        entry("summary", None, "branch_summary", summary="s"),
        entry("note", None, "custom_message", customType="x", content="c"),
        entry("odd", None, "never_heard_of", role="user"),
        assistant("answer", None, "done"),
    )


def test_filter_modes(tmp_path: Path) -> None:
    """Filters: the table of the five modes, bookkeeping of state, status and git included."""
    rest = ["tool", "fails", "bash", "compaction", "summary", "note", "odd", "answer"]
    with viewed(tmp_path, filter_items()) as view:
        tree = build_tree(view)
        found = {mode: visible(tree, mode) for mode in FILTERS}
        assert found["default"] == ["u", *rest]
        assert found["no-tools"] == ["u", *rest[1:]]
        assert found["user-only"] == ["u"]
        assert found["labeled-only"] == ["u"]
        assert found["all"] == ["u", *sorted(BOOKKEEPING - {"session"}), *rest]
        row = visible_tree(tree, "user-only").rows[0]
        assert (row.parent, row.children) == (None, [])


@pytest.mark.parametrize("mode", ["default", "no-tools", "all"])
def test_assistants_without_text(tmp_path: Path, mode: Filter) -> None:
    """Filters: an assistant without text is hidden in every mode, unless it is the current leaf
    or stopped otherwise than by stop or toolUse."""
    items = chain(
        user("u", None),
        assistant("calls", None, stop="toolUse"),
        assistant("stops", None, stop="stop"),
        assistant("none", None, stop=None),
        assistant("blank", None, " \n"),
        assistant("length", None, stop="length"),
        assistant("error", None, stop="error"),
        assistant("aborted", None, stop="aborted"),
        entry("text", None, "message", message={"role": "assistant", "content": "said"}),
        entry(
            "odd", None, "message", message={"role": "assistant", "content": [1, {"type": "text"}]}
        ),
        entry(
            "odd2", None, "message", message={"role": "assistant", "content": 5, "stopReason": []}
        ),
        entry(
            "odd3", None, "message", message={"role": "assistant", "content": "x", "stopReason": 1}
        ),
        entry("half", None, "message", message={"role": "assistant", "content": "\ud800"}),
        assistant("leaf", None),
    )
    with viewed(tmp_path, items) as view:
        shown = ["u", "length", "error", "aborted", "text", "odd2", "odd3", "half"]
        assert visible(build_tree(view), mode) == [*shown, "leaf"]
        assert visible(build_tree(view, leaf_id="calls"), mode) == ["u", "calls", *shown[1:]]
        assert visible(build_tree(view, leaf_id=None), "labeled-only") == []


def test_the_active_branch_comes_first(tmp_path: Path) -> None:
    """Tree UI: the active branch is listed first, at every level; others keep their order."""
    items = [
        user("r1", None),
        user("r2", None),
        user("a", "r2", timestamp=stamp(1)),
        user("b", "r2", timestamp=stamp(2)),
        user("c", "r2", timestamp=stamp(3)),
        user("b1", "b", timestamp=stamp(4)),
        user("b2", "b", timestamp=stamp(5)),
        user("b3", "b2"),
        {"leaf": "b2"},
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        assert visible(tree) == ["r2", "b", "b2", "b3", "b1", "a", "c", "r1"]
        assert [n.id for n in tree.walk()] == visible(tree)
        # The structure itself stays in the order of time.
        assert [n.id for n in tree.roots] == ["r1", "r2"]
        assert [n.id for n in tree.nodes["r2"].children] == ["a", "b", "c"]


def test_children_of_hidden_entries_attach_to_the_nearest_visible(tmp_path: Path) -> None:
    """Tree UI: children of what a filter hides hang below the nearest visible ancestor."""
    items = [
        user("u1", None),
        assistant("a1", "u1", "x"),
        user("u2", "a1"),
        tool("t", "a1"),
        user("u3", "t"),
    ]
    with viewed(tmp_path, items) as view:
        shown = visible_tree(build_tree(view), "user-only")
        assert [root.node.id for root in shown.roots] == ["u1"]
        # The active branch leads to u3.
        assert [child.node.id for child in shown.roots[0].children] == ["u3", "u2"]
        assert all(row.parent is shown.roots[0] for row in shown.rows[1:])


def test_search(tmp_path: Path) -> None:
    """Tree UI: search = all lower-cased tokens contained in label and type-specific text."""
    items = [
        user("a", None, "The Quick brown fox"),
        assistant("b", "a", "a quick answer"),
        label("l", "b", "b", "Marked here"),
        entry("c", "l", "compaction", summary="Compacted QUICK things", tokensBefore=12000),
        entry("m", "c", "model_change", provider="acme", modelId="big"),
        user("long", "m", "x " * 5000 + "needle"),
    ]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        for search, found in (
            ("quick", ["a", "b", "c"]),
            ("QUICK fox", ["a"]),
            ("answer marked", ["b"]),
            ("assistant here quick", ["b"]),
            ("compaction 12k", ["c"]),
            ("needle", ["long"]),
            ("  ", ["a", "b", "c", "long"]),
            ("quick slow", []),
        ):
            assert visible(tree, "default", search) == found, search
        assert visible(tree, "all", "acme/big") == ["m"]
        assert visible(tree, "user-only", "quick") == ["a"]


def test_selection_moves_to_the_nearest_visible_ancestor(tmp_path: Path) -> None:
    """Tree UI: nearest visible ancestor when a filter hides what was selected."""
    with viewed(tmp_path, filter_items()) as view:
        tree = build_tree(view)
        for entry_id, mode, nearest in (
            ("answer", "default", "answer"),
            ("answer", "user-only", "u"),
            ("tool", "no-tools", "u"),
            ("git_state", "default", "u"),
            ("bash", "no-tools", "bash"),
        ):
            found = visible_tree(tree, mode).nearest(entry_id)
            assert found is not None
            assert found.node.id == nearest, (entry_id, mode)
        assert visible_tree(tree, "all").nearest(None) is None
        assert visible_tree(tree, "all").nearest("nobody") is None


def test_filter_round_trips(tmp_path: Path) -> None:
    """Tree UI: filter round trips: the selection stays where the narrower filter moved it."""
    items = chain(user("u1", None), assistant("a1", None, "x"), user("u2", None),
                  assistant("a2", None, "y"))  # fmt: skip
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        selection = Selection(tree.leaf_id)
        steps: list[tuple[Filter, str]] = [
            ("default", "a2"), ("user-only", "u2"), ("default", "u2"), ("all", "u2")
        ]  # fmt: skip
        for mode, expected in steps:
            found = selection.follow(visible_tree(tree, mode))
            assert found is not None
            assert (found.node.id, selection.entry_id) == (expected, expected)


def test_the_selection_survives_an_empty_filter(tmp_path: Path) -> None:
    """Tree UI: empty labelled filter: what was selected is remembered and found again."""
    items = chain(user("u1", None), assistant("a1", None, "x"), user("u2", None))
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        selection = Selection("a1")
        assert selection.follow(visible_tree(tree, "labeled-only")) is None
        assert selection.follow(visible_tree(tree, "default", finder("no such"))) is None
        found = selection.follow(visible_tree(tree, "default"))
        assert found is not None
        assert found.node.id == "a1"


def test_without_a_visible_ancestor_the_last_row_is_selected(tmp_path: Path) -> None:
    """Tree UI: nothing visible above the selected entry: the last row of the list."""
    items = [user("u1", None), assistant("a", None, "x"), user("u2", "a")]
    with viewed(tmp_path, items) as view:
        tree = build_tree(view)
        selection = Selection("a")
        found = selection.follow(visible_tree(tree, "user-only"))
        assert found is not None
        assert found.node.id == visible(tree, "user-only")[-1] == "u1"


def test_what_folding_needs(tmp_path: Path) -> None:
    """Tree UI: fold rules are a frontend's; the visible tree has what they go by: parents,
    children and branch points of what is visible, none of what is hidden."""
    items = [user("r", None), user("x", "r"), tool("t", "r"), user("y", "t"), user("z", "y")]
    with viewed(tmp_path, items) as view:
        shown = visible_tree(build_tree(view), "no-tools")
        root = shown.roots[0]
        assert [child.node.id for child in root.children] == ["y", "x"]
        assert [row.node.id for row in shown.rows if len(row.children) > 1] == ["r"]
        assert [row.node.id for row in shown.rows if row.children and row.parent] == ["y"]


def test_what_a_selection_means(tmp_path: Path) -> None:
    """Selection: user and custom message -> parent and text; others -> the entry; root user ->
    before any entry."""
    blocks = [{"type": "text", "text": "one "}, {"type": "image", "data": "", "mimeType": "x"},
              {"type": "text", "text": "two"}]  # fmt: skip
    items = [
        user("root", None, "the first prompt"),
        assistant("a", "root", "answer"),
        user("u", "a", blocks),
        entry("note", "u", "custom_message", customType="x", content="noted"),
        entry("custom role", "note", "message", message={"role": "custom", "content": "c"}),
        entry("c", "note", "compaction", summary="s"),
        tool("t", "c"),
        user("orphan", "nobody", "lost"),
        entry("odd", "t", "message", message={"role": "user", "content": {"no": "text"}}),
        user("surrogate", "t", "\ud800x"),
    ]
    expected = {
        "root": Selected(None, "the first prompt"),
        "a": Selected("a", None),
        "u": Selected("a", "one two"),
        "note": Selected("u", "noted"),
        "custom role": Selected("custom role", None),
        "c": Selected("c", None),
        "t": Selected("t", None),
        "orphan": Selected(None, "lost"),
        "odd": Selected("t", ""),
        "surrogate": Selected("t", "\ufffdx"),
    }
    with viewed(tmp_path, items) as view:
        assert {item["id"]: selection_of(view, view.read(item["id"])) for item in items} == expected


# Against an oracle


class Oracle:
    """The tree by the rules, slowly, over plain dicts; entries are named by their place."""

    def __init__(self, items: list[Item], leaf: int | None) -> None:
        self.items = items
        self.leaf = leaf
        self.parent: dict[int, int | None] = {}
        self.mark: dict[int, str] = {}
        self.labels: dict[int, str] = {}
        waiting: list[int] = []
        for at, item in enumerate(items):
            named, holder = item["parentId"], None
            if named:
                holder = self.newest(named, at)
                if holder is None:
                    waiting.append(at)
                    self.mark[at] = "missing"
            self.parent[at] = holder
            for child in [w for w in waiting if items[w]["parentId"] == item["id"]]:
                waiting.remove(child)
                if child == self.root(at):
                    self.mark[child] = "cycle"
            for child, _ in enumerate(items[: at + 1]):
                still = self.mark.get(child) == "missing" and child not in waiting
                if still:
                    self.parent[child] = at
                    del self.mark[child]
        self.set_labels()

    def newest(self, own: str, before: int) -> int | None:
        return max((j for j in range(before) if self.items[j]["id"] == own), default=None)

    def root(self, at: int) -> int:
        while (above := self.parent[at]) is not None:
            at = above
        return at

    def set_labels(self) -> None:
        waiting: dict[str, str] = {}
        for at, item in enumerate(self.items):
            target = None
            if item["type"] == "label":
                target = self.newest(item["targetId"], at)
            if item["id"] in waiting:
                self.labels[at] = waiting.pop(item["id"])
            if item["type"] != "label":
                continue
            text = item.get("label") or ""
            if target is None:
                waiting[item["targetId"]] = text
            else:
                self.labels[target] = text
        self.labels = {at: text for at, text in self.labels.items() if text}

    def hidden(self, at: int) -> bool:
        return self.items[at]["type"] in ("tool_intent", "request")

    def above(self, at: int) -> int | None:
        above = self.parent[at]
        while above is not None and self.hidden(above):
            above = self.parent[above]
        return above

    def mark_of(self, at: int) -> str | None:
        """Its own mark, or that of the hidden entries above it."""
        while self.parent[at] is not None and self.hidden(self.parent[at]):  # type: ignore[arg-type]
            at = self.parent[at]  # type: ignore[assignment]
        return self.mark.get(at)

    def children(self, of: int | None) -> list[int]:
        found = [at for at in self.parent if not self.hidden(at) and self.above(at) == of]
        if of is not None:
            found.sort(key=lambda at: (self.items[at].get("timestamp") or "9", at))
        return found

    def active(self) -> set[int]:
        path, at = set(), self.leaf
        while at is not None:
            path.add(at)
            at = self.parent[at]
        return path

    def walk(self, of: int | None = None) -> list[int]:
        active = self.active()
        siblings = sorted(self.children(of), key=lambda at: at not in active)
        return [found for at in siblings for found in (at, *self.walk(at))]

    def shows(self, at: int, mode: Filter) -> bool:
        item = self.items[at]
        message = item.get("message", {})
        role = message.get("role")
        if role == "assistant" and at != self.leaf:
            texts = [b["text"] for b in message["content"] if b["type"] == "text"]
            if not "".join(texts).strip() and message["stopReason"] in ("stop", "toolUse"):
                return False
        bookkeeping = item["type"] in BOOKKEEPING
        return {
            "all": True,
            "user-only": role == "user",
            "labeled-only": at in self.labels,
            "default": not bookkeeping,
            "no-tools": not bookkeeping and role != "toolResult",
        }[mode]


KINDS_DRAWN = ("user", "silent", "fails", "says", "tool", "intent", "request", "state", "label")


@st.composite
def items_of(draw: st.DrawFn) -> list[Item]:
    """Entries whose parents are earlier, later, missing, themselves; whose ids may be taken."""
    kinds = draw(st.lists(st.sampled_from((*KINDS_DRAWN, "label", "label")), max_size=12))
    ids = st.integers(0, len(kinds)).map(lambda n: f"e{n}")
    twins = draw(st.booleans())
    items: list[Item] = []
    for number, kind in enumerate(kinds):
        own = f"e{number}"
        if twins and draw(st.integers(0, 2)) == 0:
            own = draw(ids)
        parent = draw(ids)
        if items and draw(st.booleans()):
            parent = draw(st.sampled_from(items))["id"]
        item = made_of(kind, own, draw(st.sampled_from([parent, parent, parent, None])))
        if kind == "label":
            text = draw(st.sampled_from(["A", "B", None, ""]))
            item = label(own, item["parentId"], draw(ids), text)
        second = draw(st.none() | st.integers(0, 5))
        if second is not None:
            item["timestamp"] = stamp(second)
        item["n"] = number  # no two records are the same
        items.append(item)
    return items


def made_of(kind: str, own: str, parent: str | None) -> Item:
    if kind in ("silent", "fails", "says"):
        return assistant(
            own, parent, "words" * (kind == "says"), "error" if kind == "fails" else "stop"
        )
    if kind in ("user", "tool"):
        return user(own, parent) if kind == "user" else tool(own, parent)
    kinds = {"intent": "tool_intent", "state": "session_state"}
    return entry(own, parent, kinds.get(kind, kind))


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_trees_are_those_of_the_oracle(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Random trees (orphans, cycles, hidden kinds, twins, labels), whole and at every bound:
    structure, marks, labels, filters and nearest visible ancestors are the oracle's."""
    items = data.draw(items_of())
    bound = data.draw(st.integers(0, len(items)))
    leaf = data.draw(st.none() | st.integers(0, bound - 1) if bound else st.none())
    folder = tmp_path_factory.mktemp("t")
    with viewed(folder, items) as view:
        every = list(view.iter_entries())
        assert len(every) == len(items)
        up_to = every[bound - 1].sequence if bound else 0
        tree = build_tree(
            view, up_to=up_to, leaf_id=None if leaf is None else every[leaf].id, limits=NO_LIMITS
        )
    compare(tree, Oracle(items[:bound], leaf), [e.id for e in every[:bound]])


def compare(tree: Tree[Entry], oracle: Oracle, ids: list[str]) -> None:
    places = {entry_id: at for at, entry_id in enumerate(ids)}

    def named(at: int | None) -> str | None:
        return None if at is None else ids[at]

    shown = [at for at in range(len(ids)) if not oracle.hidden(at)]
    assert [node.id for node in tree.flat()] == [ids[at] for at in shown]
    assert tree.entries == len(ids)
    assert [node.id for node in tree.roots] == [ids[at] for at in oracle.children(None)]
    active = oracle.active()
    for at in shown:
        node = tree.nodes[ids[at]]
        assert node.parent_id == named(oracle.above(at))
        assert [child.id for child in node.children] == [ids[c] for c in oracle.children(at)]
        assert node.unresolved == oracle.mark_of(at)
        assert node.entry.unresolved == oracle.mark.get(at)
        assert node.label == oracle.labels.get(at)
        assert node.active == (at in active)
    order = oracle.walk()
    assert [node.id for node in tree.walk()] == [ids[at] for at in order]
    for mode in FILTERS:
        view = visible_tree(tree, mode)
        visible_now = {at for at in order if oracle.shows(at, mode)}
        assert [row.node.id for row in view.rows] == [ids[at] for at in order if at in visible_now]

        def nearest(at: int | None) -> int | None:
            while at is not None and at not in visible_now:
                at = oracle.parent[at]
            return at

        for at in range(len(ids)):
            row = view.nearest(ids[at])
            assert (None if row is None else row.node.id) == named(nearest(at))
        for row in view.rows:
            above = oracle.parent[places[row.node.id]]
            parent = None if row.parent is None else row.parent.node.id
            assert parent == named(nearest(above))
            assert [child.parent for child in row.children] == [row] * len(row.children)


# Size


def test_a_deep_chain(tmp_path: Path) -> None:
    """Tree: deep: 20,000 generations with hidden ones between, no recursion anywhere."""
    made = [
        entry(f"e{n}", None, "tool_intent") if n % 10 == 5 else user(f"e{n}", None)
        for n in range(20_000)
    ]
    with new(tmp_path) as session:
        session.append_many(chain(*made))
        tree = build_tree(session, limits=NO_LIMITS)
        assert len(tree.flat()) == 18_000
        assert len(visible_tree(tree, "user-only").rows) == 18_000
        found = visible_tree(tree, "labeled-only").nearest("e19999")
        assert found is None
        del tree


@LONG
@pytest.mark.slow
@pytest.mark.parametrize("deep", [True, False])
def test_200_000_entries_in_seconds(tmp_path: Path, deep: bool) -> None:
    """Tree: a tree of 200,000 entries within a few seconds; so are its filters."""
    count = 200_000
    made = [
        user(f"e{n}", (f"e{n - 1}" if deep else f"e{n // 5}") if n else None) for n in range(count)
    ]
    with new(tmp_path) as session:
        for start in range(0, count, 20_000):
            session.append_many(made[start : start + 20_000])
        session.has("e0")  # the index is there
        began = time.perf_counter()
        tree = build_tree(session, limits=NO_LIMITS)
        built = time.perf_counter() - began
        began = time.perf_counter()
        assert len(visible_tree(tree, "default").rows) == count
        filtered = time.perf_counter() - began
        began = time.perf_counter()
        assert len(visible_tree(tree, "default", finder("e19999")).rows) == 11
        searched = time.perf_counter() - began
        print(f"{built:.2f} s built, {filtered:.2f} s filtered, {searched:.2f} s searched")
        assert built < 15
        assert filtered < 5
