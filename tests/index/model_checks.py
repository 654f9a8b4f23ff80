"""What an index must answer, asked of the index and of the naive model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from index_helpers import Model, Rows, pages

from treering.index import SessionIndex
from treering.index.rows import usable_id


def assert_equals_model(index: SessionIndex, rows: Rows) -> None:
    model = Model(rows)
    entries = list(pages(index.entries, 7))
    assert [entry.sequence for entry in entries] == list(model.rows)
    for entry in entries:
        sequence = entry.sequence
        item = model.rows[sequence]
        up = model.ancestors(sequence)
        assert entry.id == model.address[sequence]
        assert entry.parent == model.parent[sequence]
        assert entry.unresolved == model.reason[sequence]
        assert entry.depth == len(up) - 1
        assert (entry.tree, entry.flags, entry.raw) == (item.tree, item.flags, item.raw)
        assert [e.sequence for e in index.path(sequence)] == up[::-1]
        for depth, ancestor in enumerate(up[::-1]):
            assert index.ancestor_at_depth(sequence, depth) == ancestor
            assert index.is_ancestor(ancestor, sequence)
        assert index.by_id(entry.id) == entry
        children = [s for s, parent in model.parent.items() if parent == sequence]
        assert [e.sequence for e in pages(children_of(index, sequence), 2)] == sorted(children)
        assert index.child_count(sequence) == len(children)
        label = index.label(sequence)
        assert (label and (label.label, label.entry)) == model.labels.get(sequence)
    roots = [s for s, parent in model.parent.items() if parent is None and model.rows[s].tree]
    assert [e.sequence for e in pages(children_of(index, None), 3)] == roots
    assert index.child_count(None) == len(roots)
    assert index.leaf() == model.leaf
    assert [e.target for e in pages(index.labels, 2)] == sorted(model.labels)
    unresolved = [s for s, why in model.reason.items() if why]
    assert [e.sequence for e in pages(index.unresolved, 2)] == unresolved
    counts = index.counts()
    assert counts["unresolved"] == len(unresolved)
    assert counts["entries"] == len(model.rows)
    assert counts["unknown_leaf_moves"] == model.unknown_leaf_moves
    assert counts["outside"] == sum(not item.tree for item in model.rows.values())
    assert counts["derived"] == sum(
        not item.tree or item.id != model.address[s] for s, item in model.rows.items()
    )
    nearest_of_kinds(index, model)


def children_of(index: SessionIndex, parent: int | None) -> Callable[[Any, int], Any]:
    return lambda after, limit: index.children(parent, after=after, limit=limit)


def nearest_of_kinds(index: SessionIndex, model: Model) -> None:
    for kind in ("message", "compaction", "label"):
        for leaf in list(model.rows)[-3:]:
            found = [s for s in model.ancestors(leaf) if model.rows[s].kind == kind]
            latest = index.latest_on_path(kind, leaf)
            assert (latest and latest.sequence) == (found[0] if found else None)
        of_kind = [s for s, item in model.rows.items() if item.kind == kind]
        newest = index.by_kind(kind, newest_first=True, limit=1000)
        assert [e.sequence for e in newest] == of_kind[::-1]
    for target in {item.about for item in model.rows.values() if item.about}:
        named = [s for s, item in model.rows.items() if item.about == target]
        named = named if usable_id(target) else []
        assert [e.sequence for e in index.about(target, limit=1000)] == named[::-1]
        if named:
            older = index.about(target, before=named[-1], limit=1)
            assert [e.sequence for e in older] == named[-2:-1]
