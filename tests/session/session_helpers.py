"""What the session tests share: stores, answers of a session, a comparison with a rebuilt index."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from treering.engine import Session, SessionView, TreeringError
from treering.engine.home import Store
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import decode_file_header
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.shared import SharedFrames
from treering.engine.session import filling
from treering.engine.session.reads import Reads
from treering.index import SessionIndex, files


def custom(entry_id: str | None = None, **more: Any) -> dict[str, Any]:
    """A small entry."""
    entry: dict[str, Any] = {"type": "custom", "customType": "test", **more}
    if entry_id is not None:
        entry["id"] = entry_id
    return entry


def user(text: str, entry_id: str | None = None, **more: Any) -> dict[str, Any]:
    """A user message."""
    message = {"role": "user", "content": text}
    entry: dict[str, Any] = {"type": "message", "message": message, **more}
    if entry_id is not None:
        entry["id"] = entry_id
    return entry


def new(tmp_path: Path, **more: Any) -> Session:
    """A new session in the store of this test."""
    more.setdefault("cwd", "/work")
    return Session.create(home_dir=str(tmp_path / "home"), **more)


def index_folder(path: str) -> str:
    """Where the index of a journal is."""
    return Store.of_journal(path).index


def drop_index(path: str) -> None:
    """No derived file is left."""
    shutil.rmtree(index_folder(path), ignore_errors=True)


def index_file(path: str) -> str:
    """The current index file of a journal."""
    session_id = os.path.basename(path).removesuffix(".jsonl")
    current = files.current(index_folder(path), session_id)
    assert current is not None
    return current


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write_bytes(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def answers(reads: Reads, *, tree: bool = True) -> dict[str, Any]:
    """Everything that a session answers, in a form that can be compared."""
    every = [
        (e.sequence, e.id, e.raw, e.flags, e.unresolved, e.revision) for e in reads.iter_entries()
    ]
    found: dict[str, Any] = {
        "entries": every,
        "leaf": reads.leaf_id,
        "branch": [e.id for e in reads.branch()],
        "labels": [(e.id, text) for e, text in reads.labels()],
        "counts": reads.counts(),
        "kinds": reads.kinds(),
        "name": reads.name,
        "header": reads.header_bytes(),
        "usage": reads.ask(lambda index: index.usage()),
    }
    if tree:
        found["roots"] = [e.id for e in reads.children(None)]
        found["children"] = {e[1]: [c.id for c in reads.children(e[1])] for e in every[:200]}
        found["depths"] = [reads.depth(e[1]) for e in every[:200]]
    return found


def view_answers(path: str) -> dict[str, Any]:
    """The answers of a read-only view, which uses no index file."""
    with SessionView.open(path) as view:
        return answers(view)


def index_differences(path: str, *, may_be_missing: bool = False) -> list[str]:
    """How the index file differs from one built anew from the journal (nobody may own it)."""
    session_id = os.path.basename(path).removesuffix(".jsonl")
    if may_be_missing and files.current(index_folder(path), session_id) is None:
        return []
    file = LOCAL_DISK.open(path)
    try:
        source = FileBytes(file, path, file.stat().size)
        header = decode_file_header(source.read_at(0, 128), path)
        assert header is not None
        shared = SharedFrames(source, header.journal_id)
        built, _ = filling.memory_index(source, header.journal_id, shared)
        with SessionIndex.open(index_file(path)) as stored, built:
            position = stored.position()
            assert position is not None
            fresh = built.position()
            assert fresh is not None
            assert position.sequence == fresh.sequence, "the index is behind after a clean close"
            return stored.differences(built)
    finally:
        file.close()


def files_below(folder: str) -> dict[str, tuple[int, int, bytes | None]]:
    """Path -> (mode, inode, bytes) of everything below a folder."""
    found: dict[str, tuple[int, int, bytes | None]] = {}
    for where, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(where, name)
            status = os.lstat(path)
            plain = os.path.isfile(path) and not os.path.islink(path)
            found[path] = (status.st_mode, status.st_ino, read_bytes(path) if plain else None)
    return found


def crash(session: Session) -> None:
    """What is left when the owner dies: descriptor closed, no EPOCH_CLOSE, no index pass."""
    session._housekeeper.stop()
    session._indexer.close()
    session._writer.owner.file.close()
    session._closed = True


@contextmanager
def typed_only(*allowed: type[TreeringError]) -> Iterator[list[TreeringError]]:
    """Only typed errors may come out; the list holds the one that came."""
    got: list[TreeringError] = []
    try:
        yield got
    except TreeringError as error:
        assert not allowed or isinstance(error, allowed), repr(error)
        assert str(error)
        got.append(error)


def raises_typed(*kinds: type[TreeringError]) -> Any:
    """Short for pytest.raises over typed errors."""
    return pytest.raises(kinds or (TreeringError,))
