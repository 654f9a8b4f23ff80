"""Rows of an index that name whole frames with revisions that they do not have."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest
from session_helpers import custom, new

from treering.engine import Damaged, Session
from treering.index import schema


def forge(folder: str, statement: str) -> None:
    (name,) = [name for name in os.listdir(folder) if name.endswith(".sqlite3")]
    vfs = schema.CHECKSUM_VFS if schema.checksum_vfs() else None
    with apsw.Connection(os.path.join(folder, name), vfs=vfs) as db:
        db.execute(statement)


@pytest.mark.parametrize("which", ["seq=(SELECT max(seq) FROM entry)", "1"])
def test_the_index_is_set_aside_and_the_entry_is_read(tmp_path: Path, which: str) -> None:
    """The journal is whole: it is not called damaged, and the answer is right at once."""
    with new(tmp_path) as session:
        ids = [session.append(custom(f"a{n}")) for n in range(5)]
        raws = [entry.raw for entry in session.iter_entries()]
        path, folder = session.path, session.store.index
    with Session.open(path) as session:
        session.read(ids[0])
        forge(folder, f"UPDATE entry SET revision=zeroblob(16) WHERE {which}")
        assert session.read(ids[-1]).raw == raws[-1]
        assert any("revision" in fault for fault in session.index_faults)
        assert [entry.raw for entry in session.iter_entries()] == raws
        assert [entry.raw for entry in session.branch()] == raws


def test_a_frame_that_is_damaged_is_still_damage(tmp_path: Path) -> None:
    """The index is right then, and stays."""
    with new(tmp_path) as session:
        ids = [session.append(custom(f"a{n}")) for n in range(3)]
        entry = session.read(ids[1])
        with open(session.path, "r+b") as file:
            data = file.read()
            file.seek(data.index(entry.raw) + 5)
            file.write(b"\xff")
        with pytest.raises(Damaged, match="does not verify"):
            session.read(ids[1])
        assert session.index_faults == []
