"""The tour, and session files from the world through the whole command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tools_helpers import CORPUS, fine, needs_corpus, run

REFUSED = ("01", "46", "55", "56", "59")
EXACT = ("11", "33", "34", "35", "50", "51", "53", "58", "61", "62")


def test_quickstart_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tour ends with 0, explains every step, and removes its store."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = fine("quickstart")
    assert sum(line.startswith("# ") for line in ran.lines) >= 6
    assert not ran.stderr
    assert "index equal" in ran.out
    assert list(tmp_path.glob("treering-*")) == []


def test_quickstart_keeps(tmp_path: Path) -> None:
    """--keep leaves a store that the other commands take; an existing folder is refused."""
    folder = tmp_path / "kept"
    fine("quickstart", "--keep", folder)
    assert len(fine("session", "list", "--json", home=folder).json) == 2
    assert run("quickstart", "--keep", folder).code == 2


def test_quickstart_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that did not work ends the tour with an error."""
    from treering.tools import fsck

    real = fsck.check_session

    def wrong(path: str, *, with_index: bool) -> fsck.Checked:
        found = real(path, with_index=with_index)
        found.index.state = "differs"
        return found

    monkeypatch.setattr(fsck, "check_session", wrong)
    ran = run("quickstart")
    assert ran.code == 1
    assert "did not work" in ran.stderr


@needs_corpus
def test_corpus(home: Path) -> None:
    """Every file imports or is refused for a stated reason; version 3 comes out byte for byte;
    indexes are right, also when they were removed and built again."""
    files = sorted(CORPUS.glob("*.jsonl"))
    if not files:
        pytest.skip(f"no files in {CORPUS}")
    for file in files:
        number = file.name[:2]
        ran = run("session", "import", file, home=home)
        if number in REFUSED:
            assert ran.code == 1
            assert ran.stderr.count("error: ") == 1
            ran = fine("session", "import", "--salvage", file, home=home)
        path = ran.out.strip()
        if number in EXACT:
            assert fine("session", "export", path).stdout == file.read_bytes(), file.name
        fine("session", "tree", path, "--filter", "all")
        fine("session", "show", path)
    listed = fine("session", "list", "--json", home=home).json
    assert len(listed) == len(list((home / "sessions").glob("*.jsonl")))
    assert all(row["status"] == "ok" for row in listed)
    fine("reindex", "--all", home=home)
    for _ in range(2):
        checked = fine("fsck", "--all", "--index", "--json", home=home).json
        assert {record["index"]["state"] for record in checked} == {"equal"}
        shutil.rmtree(home / "session-index")
        fine("reindex", "--all", home=home)
