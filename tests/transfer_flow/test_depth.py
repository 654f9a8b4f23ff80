"""The depth of sessions: of new ones, and of existing ones that do not record it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from session_helpers import files_below

from treering.engine import Invalid, Session
from treering.engine.transfer.depth import (
    DEPTH_MAX,
    PARENTS_MAX,
    depth_of_new,
    depth_of_source,
    read_header,
)

VARIABLE = "BASE_CONTEXT_RLM_DEPTH"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def file_of(folder: Path, name: str, **members: Any) -> Path:
    """A legacy session with such a header."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    header = {"type": "session", "version": 3, "id": name, **members}
    path.write_text(json.dumps(header) + "\n")
    return path


def read_depth(path: Path) -> int:
    header = read_header(str(path))
    assert header is not None
    return depth_of_source(header, str(path))


def test_a_new_session_takes_its_depth_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Depth, env: a non-negative decimal integer, else an error; default 0; empty is absent."""
    assert depth_of_new() == 0
    for text, depth in (("", 0), ("0", 0), ("7", 7), ("007", 7), (str(DEPTH_MAX), DEPTH_MAX)):
        monkeypatch.setenv(VARIABLE, text)
        assert depth_of_new() == depth
    for text in ("-1", "1.0", "x", " 1", "1e3", "²", str(DEPTH_MAX + 1), "9" * 5000):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(Invalid, match=VARIABLE):
            depth_of_new()


def test_an_explicit_depth_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Depth, explicit."""
    monkeypatch.setenv(VARIABLE, "5")
    parent = file_of(tmp_path, "p", rlmDepth=2)
    assert depth_of_new(parent, explicit=9) == 9
    for wrong in (-1, True, 1.5, "1", DEPTH_MAX + 1):
        with pytest.raises(Invalid):
            depth_of_new(explicit=wrong)  # type: ignore[arg-type]


def test_a_child_is_one_deeper_than_its_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Depth, parent+1; unknown when the parent is unreadable or has none, or +1 would be unsafe."""
    monkeypatch.setenv(VARIABLE, "5")
    assert depth_of_new(file_of(tmp_path, "p", rlmDepth=2)) == 3
    assert depth_of_new(file_of(tmp_path, "q", rlmDepth=DEPTH_MAX)) is None
    for value in (None, -1, 1.0, "2", 2**60, [1]):
        assert depth_of_new(file_of(tmp_path, "q", rlmDepth=value)) is None
    assert depth_of_new(file_of(tmp_path, "q")) is None
    assert depth_of_new(tmp_path / "missing.jsonl") is None
    assert depth_of_new(tmp_path) is None
    with pytest.raises(Invalid):
        depth_of_new("nul\0")


def test_headers_of_every_kind_are_read(tmp_path: Path) -> None:
    """Journals, plain lines behind a BOM and blank lines, JSON frames; what has none gives None."""
    with Session.create("/w", home_dir=str(tmp_path)) as session:
        assert read_header(session.path) == session.header_bytes()
        data = bytearray(Path(session.path).read_bytes())
    data[260] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    assert read_header(str(tmp_path / "damaged")) is None
    header = b'{"type":"session","id":"x","rlmDepth":4}'
    lines = {
        "plain": b"\xef\xbb\xbf \n\n" + header + b"\n{",
        "no-end": header,
        "frames": b'{"journalFrame":1,"sequence":0,"payload":' + header + b"}\n",
    }
    for name, content in lines.items():
        (tmp_path / name).write_bytes(content)
        assert read_header(str(tmp_path / name)) == header
    others = (b"", b"\n", b"{", b'{"type":"custom"}\n', b"[]\n", b"\xff\n", b'{"journalFrame":1}\n')
    for content in others:
        (tmp_path / "other").write_bytes(content)
        assert read_header(str(tmp_path / "other")) is None, content


def test_a_recorded_depth_is_the_depth(tmp_path: Path) -> None:
    parent = file_of(tmp_path, "p", rlmDepth=2)
    assert read_depth(file_of(tmp_path / "sub-0123abcd", "c", rlmDepth=0)) == 0
    assert read_depth(parent) == 2


def test_the_depth_of_a_legacy_session_comes_from_its_path_and_parents(tmp_path: Path) -> None:
    """Depth, legacy path inference, relative parents: one deeper in folders sub-<8 hex>, however
    many; else as deep as the parent. Nothing is written back.
    """
    top = file_of(tmp_path, "top")
    beside = file_of(tmp_path, "beside", parentSession="top.jsonl")
    below = file_of(tmp_path / "sub-0123abcd", "below", parentSession="../top.jsonl")
    deeper = file_of(tmp_path / "sub-0123abcd" / "sub-89abcdef", "deeper", parentSession=str(below))
    odd = file_of(tmp_path / "sub-0123ABCD", "odd", parentSession=str(below))
    old = file_of(tmp_path / "sub-00000000", "old", branchedFrom="../top.jsonl")
    both = file_of(
        tmp_path / "sub-1111aaaa", "both", parentSession=str(file_of(tmp_path, "d", rlmDepth=6))
    )
    before = files_below(str(tmp_path))
    depths = [read_depth(path) for path in (top, beside, below, deeper, odd, old, both)]
    assert depths == [0, 0, 1, 2, 1, 1, 7]
    assert files_below(str(tmp_path)) == before


def test_a_chain_that_cannot_be_read_leaves_the_path(tmp_path: Path) -> None:
    """Depth, unreadable parent, cycles: then the folders sub-<8 hex> are counted."""
    folder = tmp_path / "sub-0123abcd" / "sub-89abcdef"
    assert read_depth(file_of(folder, "lost", parentSession="/not/there.jsonl")) == 2
    assert read_depth(file_of(tmp_path, "lost", parentSession="nul\0")) == 0
    one = file_of(folder, "one", parentSession="two.jsonl")
    two = file_of(folder, "two", parentSession="one.jsonl")
    assert read_depth(one) == read_depth(two) == 3  # from the last of them: 2, and 1 more
    own = file_of(tmp_path, "own", parentSession="own.jsonl")
    assert read_depth(own) == 0
    linked = tmp_path / "linked.jsonl"
    linked.symlink_to(own)
    assert read_depth(file_of(tmp_path, "via", parentSession="linked.jsonl")) == 0


def test_a_long_chain_ends(tmp_path: Path) -> None:
    previous = file_of(tmp_path, "s0", rlmDepth=3)
    for number in range(1, PARENTS_MAX + 10):
        previous = file_of(tmp_path, f"s{number}", parentSession=previous.name)
        if number == 50:
            assert read_depth(previous) == 3
    assert read_depth(previous) == 0
