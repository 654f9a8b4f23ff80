"""Entries without a usable id of their own are parents and label targets by their derived id."""

from __future__ import annotations

import random

import pytest
from index_helpers import Model, load, random_rows
from model_checks import assert_equals_model

from treering.index import LeafMove, Row, SessionIndex


def with_derived_references(rnd: random.Random, count: int) -> list[Row | LeafMove]:
    """Random rows of which some parents and labels name earlier entries by derived id."""
    rows: list[Row | LeafMove] = []
    for made in random_rows(rnd, count):
        row = made
        model = Model(rows)
        derived = [a for s, a in model.address.items() if model.rows[s].id != a]
        if isinstance(row, Row) and derived and rnd.random() < 0.5:
            if row.label is not None:
                row = row._replace(label=(rnd.choice(derived), row.label[1]))
            else:
                row = row._replace(parent_id=rnd.choice(derived))
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_derived_ids_can_be_referred_to(seed: int) -> None:
    """A child or label that names a derived id hangs below that entry, in any chunking."""
    rnd = random.Random(seed)
    rows = with_derived_references(rnd, 40)
    with SessionIndex.memory() as whole, SessionIndex.memory() as pieces:
        load(whole, rows)
        load(pieces, rows, [1, 3, 2])
        assert pieces.differences(whole) == []
        assert_equals_model(whole, rows)


def test_the_last_entry_of_a_file_without_ids_can_be_continued() -> None:
    """What is appended below an entry without an id is on one path with it."""
    rows = [row for row in random_rows(random.Random(0), 1) if isinstance(row, Row)]
    first = rows[0]._replace(sequence=3, id=None, parent_id=None, tree=True, moves_leaf=True)
    with SessionIndex.memory() as index:
        load(index, [first])
        address = index.by_sequence(3)
        assert address is not None
        child = first._replace(sequence=4, id="child", parent_id=address.id, offset=999)
        load(index, [child])
        assert [entry.sequence for entry in index.path(4)] == [3, 4]
