"""Imports of some size are compressed with a dictionary of their own."""

from __future__ import annotations

import json
import random
from pathlib import Path

from treering.engine import Session, SessionView, import_session, jsonl_lines, repair
from treering.engine.journal.format import Kind
from treering.engine.journal.reader import Scan


def make_source(path: Path, count: int = 1500) -> None:
    """A linear session of about 1 MB with repetitive words, as real ones have."""
    rnd = random.Random(7)
    words = [f"w{rnd.randrange(10**6)}" for _ in range(600)]
    lines = [{"type": "session", "version": 3, "id": "source", "cwd": "/"}]
    for number in range(count):
        text = " ".join(rnd.choices(words, k=90))
        lines.append(
            {
                "type": "message",
                "id": f"{number:08x}",
                "parentId": f"{number - 1:08x}" if number else None,
                "message": {"role": "user", "content": text},
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def frames_of(path: str) -> list:
    with SessionView.open(path) as view:
        return [frame for frame, _ in Scan(view.source, view.salt).frames()]


def test_a_large_import_has_a_dictionary_and_its_copy(tmp_path: Path) -> None:
    """Two copies of one dictionary, entries that use it, and the source comes back byte for byte."""
    make_source(tmp_path / "a.jsonl")
    done = import_session(tmp_path / "a.jsonl", session_dir=str(tmp_path / "home/sessions"))
    frames = frames_of(done.path)
    copies = [frame for frame in frames if frame.kind == Kind.DICTIONARY]
    assert len(copies) == 2
    assert sum(frame.codec == 2 for frame in frames) > 1000
    assert Path(done.path).stat().st_size < 0.7 * (tmp_path / "a.jsonl").stat().st_size
    with SessionView.open(done.path) as view:
        assert b"".join(jsonl_lines(view)) == (tmp_path / "a.jsonl").read_bytes()
    with Session.open(done.path) as session:
        session.append({"type": "custom", "customType": "after"})
        assert len(session.branch()) == 1501


def test_one_lost_copy_costs_no_entry(tmp_path: Path) -> None:
    """With either copy damaged, repair brings every entry back."""
    make_source(tmp_path / "a.jsonl")
    for which in (0, 1):
        home = tmp_path / f"home{which}"
        done = import_session(tmp_path / "a.jsonl", session_dir=str(home / "sessions"))
        copy = [frame for frame in frames_of(done.path) if frame.kind == Kind.DICTIONARY][which]
        data = bytearray(Path(done.path).read_bytes())
        data[copy.offset + 100] ^= 1
        Path(done.path).write_bytes(data)
        result = repair(done.path)
        assert result.done
        assert result.kept == 1500
        assert result.undecodable == []
        with SessionView.open(done.path) as view:
            assert len(list(view.iter_entries())) == 1500
