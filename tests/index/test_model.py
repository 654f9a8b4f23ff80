"""The index against a naive model, and against itself in other chunks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import load, random_rows, shuffled_tree
from model_checks import assert_equals_model

from treering.index import SessionIndex, ancestry, compare, loading, totals

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
