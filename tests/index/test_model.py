"""The index against a naive model, and against itself in other chunks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import Model, Rows, load, pages, random_rows, shuffled_tree

from treering.index import SessionIndex, ancestry, compare, loading, totals


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


def children_of(index: SessionIndex, parent: int | None):
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


SMALL = {
    (loading, "RECENT_ROWS"): [2, 9],
    (loading, "BATCH_ROWS"): [1, 3, 7],
    (ancestry, "UPDATE_ROWS"): [1, 3],
    (ancestry, "CACHED_NODES"): [1, 3],
    (totals, "NAMES_CACHED"): [1, 2],
    (compare, "PAGE_ROWS"): [1, 4],
}


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 60),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    tidy=st.booleans(),
)
def test_chunks_equal_one_load_equal_the_model(
    seed: int, count: int, chunks: list[int], tidy: bool
) -> None:
    """Rows applied in any chunks give the tables of one load, and both say what the model says.

    Also with tiny caches and batches, and when every cache is lost between two chunks.
    """
    rnd = random.Random(seed)
    rows = shuffled_tree(rnd, count) if tidy else random_rows(rnd, count)
    with SessionIndex.memory() as whole, SessionIndex.memory() as pieces:
        load(whole, rows)
        with pytest.MonkeyPatch.context() as patch:
            for (module, name), sizes in SMALL.items():
                patch.setattr(module, name, rnd.choice(sizes))
            left = list(rows)
            while left:
                size = rnd.choice(chunks)
                load(pieces, left[:size])
                del left[:size]
                if rnd.random() < 0.5:
                    pieces._loader.forget()
            assert pieces.differences(whole) == []
        assert_equals_model(pieces, rows)


@pytest.mark.parametrize("seed", range(12))
def test_a_build_equals_catching_up(tmp_path: Path, seed: int) -> None:
    """A build (indexes and depths made at its end) has the rows of an index that caught up."""
    rnd = random.Random(seed)
    rows = shuffled_tree(rnd, 300) if seed % 2 else random_rows(rnd, 60)
    with (
        SessionIndex.build_into(str(tmp_path / "b")) as build,
        SessionIndex.open(str(tmp_path / "w"), create=True) as caught_up,
    ):
        load(build, rows, [11])
        build.finish_build()
        load(caught_up, rows, [1, 3])
        assert build.differences(caught_up) == []
        assert_equals_model(build, rows)
