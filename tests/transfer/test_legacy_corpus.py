"""Session files from the world (not part of this repository)."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from treering.engine.errors import InvalidSource, TreeringError
from treering.engine.transfer.legacy import (
    Analysis,
    CopyLimits,
    Prepared,
    analyse,
    prepare,
    rebuild,
)
from treering.engine.transfer.records import LocalSource

CORPUS = Path(os.environ.get("TREERING_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus")
pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}; set TREERING_CORPUS to its folder"
)

EXACT = ("11", "33", "34", "35", "50", "51", "53", "58", "61", "62")
UPGRADED = {"03": 1002, "04": 1018, "07": 7}
REFUSED = {
    "01": (InvalidSource, "line 440 holds 2 whole records"),
    "46": (InvalidSource, "line 10 is not JSON"),
    "55": (InvalidSource, "line 4 is not JSON"),
    "56": (InvalidSource, "line 4 is an incomplete last record"),
    "59": (InvalidSource, 'no session header: line 1 is "message"'),
}
SALVAGED = {"01": (463, 0), "46": (9, 1), "55": (4, 1), "56": (2, 1), "59": (2, 0)}
ODDITY_NAMES = {
    "dup_ids": "duplicate_ids",
    "missing_parents": "missing_parents",
    "forward_parents": "forward_parents",
    "cycles": "cycles",
    "multiple_roots": "multiple_roots",
    "entries_without_id": "entries_without_id",
}


def path_of(number: str) -> Path:
    found = sorted(CORPUS.glob(f"{number}-*.jsonl"))
    if not found:
        pytest.skip(f"the corpus at {CORPUS} has no file {number}")
    return found[0]


def load(path: Path, *, salvage: bool = False) -> tuple[Analysis, list[Prepared]]:
    with LocalSource(path) as source:
        analysis = analyse(source, limits=CopyLimits(), salvage=salvage)
        entries = list(prepare(source, analysis))
        assert entries == list(prepare(source, analysis))
        assert analysis.entry_count == len(entries)
        return analysis, entries


@pytest.mark.parametrize("number", EXACT)
def test_version_3_files_come_back_byte_for_byte(number: str) -> None:
    """Import keeps enough to export the same file."""
    path = path_of(number)
    analysis, entries = load(path)
    assert analysis.byte_exact
    raws = [entry.raw for entry in entries]
    parts = rebuild(analysis.header_raw, raws, analysis.blank_lines, analysis.bom)
    assert b"".join(parts) == path.read_bytes()


@pytest.mark.parametrize("number", UPGRADED)
def test_old_files_are_upgraded(number: str) -> None:
    """Every entry gets an id, a chain, and changes in nothing else."""
    path = path_of(number)
    analysis, entries = load(path)
    assert (analysis.version, len(entries)) == (None, UPGRADED[number])
    parent = None
    for line, entry in zip(path.read_bytes().split(b"\n")[1:], entries, strict=False):
        old: dict[str, Any] = json.loads(line)
        new: dict[str, Any] = json.loads(entry.raw)
        assert new["parentId"] == parent
        parent = new["id"]
        changed = {
            "id",
            "parentId",
            "legacyId",
            "targetId",
            "firstKeptEntryId",
            "firstKeptEntryIndex",
        }
        assert {k: v for k, v in new.items() if k not in changed} == {
            k: v for k, v in old.items() if k not in changed
        }
        assert "firstKeptEntryIndex" not in new


def test_compactions_of_version_1_point_at_their_entries() -> None:
    """The index into all records becomes the id of that record."""
    path = path_of("03")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    _, entries = load(path)
    new = [json.loads(entry.raw) for entry in entries]
    compactions = [n for n, line in enumerate(lines) if line["type"] == "compaction"]
    assert len(compactions) == 2
    for place in compactions:
        index = lines[place]["firstKeptEntryIndex"]
        assert new[place - 1].get("firstKeptEntryId") == (new[index - 1]["id"] if index else None)


@pytest.mark.parametrize("number", REFUSED)
def test_damaged_files_are_refused_in_one_line(number: str) -> None:
    """The record and the reason are named."""
    kind, words = REFUSED[number]
    with pytest.raises(TreeringError) as caught:
        load(path_of(number))
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", SALVAGED)
def test_salvage_takes_all_that_is_whole(number: str) -> None:
    """As many entries as a person finds in the file."""
    analysis, entries = load(path_of(number), salvage=True)
    assert (len(entries), len(analysis.left_out)) == SALVAGED[number]


def test_both_records_of_the_fused_line_are_taken() -> None:
    """Other readers lose both."""
    analysis, entries = load(path_of("01"), salvage=True)
    assert analysis.taken_apart == [440]
    assert sum(entry.line == 440 for entry in entries) == 2


def test_counts_equal_the_index() -> None:
    """What the corpus' own index says about whole files is what an analysis counts.

    Its times that go back are not compared: it compares spellings, and ``02.500Z`` is not
    before ``02Z``.
    """
    with (CORPUS / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    compared = 0
    for row in rows:
        path = CORPUS / row["file"]
        if row["file"][:2] not in (*EXACT, *UPGRADED) or not path.exists():
            continue
        analysis, _ = load(path)
        notes = (note.split("=") for note in (row["oddities"] or "").split(" | "))
        noted = {note[0]: int(note[1].split("(")[0]) for note in notes if note[0] in ODDITY_NAMES}
        for theirs, ours in ODDITY_NAMES.items():
            assert analysis.oddities.get(ours, 0) == noted.get(theirs, 0), (row["file"], ours)
        assert analysis.record_count == int(row["lines"])
        compared += 1
    assert compared > 0
