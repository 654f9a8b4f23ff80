"""Copies of journals with frames that are not copied, and of one that is nameless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import build

from treering.engine import SessionView, SourceChanged, Unsupported, fork_session
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import Kind
from treering.engine.transfer.journal_source import JournalSource


def put(tmp_path: Path, maker: build.Maker, session_id: str = "s1") -> str:
    return build.put(build.make_store(tmp_path), maker.whole(), session_id)


def test_what_a_fork_leaves_out_is_counted(tmp_path: Path) -> None:
    """GAP frames of a repair, and optional frames of another release, are in PROVENANCE."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    gap = {"offset": 1, "bytes": 2, "first": 3, "last": None}
    maker.frame(Kind.GAP, build.compact(gap))
    maker.frame(200, b"odd")
    maker.entry("b")
    done = fork_session(put(tmp_path, maker), str(tmp_path), home_dir=str(tmp_path / "copies"))
    assert done.entries == 2
    with SessionView.open(done.path) as view:
        found = view.provenance()
        assert found is not None
        facts = json.loads(found[0])
        assert (facts["gaps"], facts["optional_frames_left_out"]) == (1, 1)
        assert [entry.id for entry in view.iter_entries()] == ["a", "b"]


def test_a_fork_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    """Its copy would hide a frame of a newer release."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(99, b"newer")
    with pytest.raises(Unsupported, match="not understood"):
        fork_session(put(tmp_path, maker), str(tmp_path), home_dir=str(tmp_path / "copies"))
    assert not (tmp_path / "copies").exists()


def test_a_source_that_changes_between_two_looks(tmp_path: Path) -> None:
    """What was captured does not read as it did: nothing is taken for a copy of it."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    path = put(tmp_path, maker)
    file = LOCAL_DISK.open(path, write=True)
    source = JournalSource.captured(file, path)
    assert source is not None
    file.pwrite(b"#", maker.frames[-1].offset + 50)
    with pytest.raises(SourceChanged):
        list(source.records())
    file.close()


def test_a_journal_whose_name_is_no_id_can_be_forked(tmp_path: Path) -> None:
    """No index belongs to such a name; the copy gets an id of its own."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    odd = tmp_path / "-odd name-.jsonl"
    odd.write_bytes(maker.whole())
    done = fork_session(odd, str(tmp_path), home_dir=str(tmp_path / "copies"))
    assert (done.entries, done.source_path) == (1, str(odd))
