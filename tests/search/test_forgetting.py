"""Words of a deleted session are gone from every file of the search index, whatever its state."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from support.damage import flip

from treering.engine import (
    Session,
    StorageError,
    delete_session,
    finish_deletions,
    purge_deleted,
    undelete_session,
)
from treering.engine.home import Store
from treering.engine.search import feeding, forgetting, opening, search_sessions
from treering.engine.search.feeding import feed_store
from treering.index import IndexFault, files
from treering.index.search import SearchIndex
from treering.index.search_rows import FILE_NAME

SECRET = b"zqzq"


def store_with(tmp_path: Path) -> Store:
    """Two sessions; only ``gone`` has words with ``zqzq`` in them."""
    store = Store.at(str(tmp_path / "home"))
    drawn = random.Random(3)
    for name in ("kept", "gone"):
        with Session.create("/w", home_dir=store.top, session_id=name) as session:
            texts = []
            for _ in range(200):
                words = ["".join(drawn.choices("abcdef", k=7)) for _ in range(10)]
                if name == "gone":
                    words = [word[:5] + "zqzq" + word[5:] for word in words]
                texts.append("common " + " ".join(words))
            session.append_many([said(text) for text in texts])
            session.set_name(f"{name} zqzq" if name == "gone" else name)
    feed_store(store)
    return store


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "message": {"role": "user", "content": text}}


def left(store: Store) -> int:
    """How often the secret stands in files of the search index, bad copies included."""
    names = [name for name in os.listdir(store.index) if name.startswith(FILE_NAME)]
    return sum(Path(store.index, name).read_bytes().count(SECRET) for name in names)


def hits(store: Store) -> dict[str, int]:
    page = search_sessions(store, "common", limit=1000)
    found = [hit.session_id for hit in page.hits]
    return {name: found.count(name) for name in sorted(set(found))}


def test_a_deletion_removes_the_words(tmp_path: Path) -> None:
    store = store_with(tmp_path)
    assert left(store) > 500
    assert hits(store) == {"gone": 200, "kept": 200}
    path = files.current(store.index, FILE_NAME)
    delete_session(store.journal_path("gone"))
    assert left(store) == 0
    assert files.current(store.index, FILE_NAME) == path, "it was not made anew for it"
    assert hits(store) == {"kept": 200}
    purge_deleted(store, "gone")
    assert left(store) == 0


def test_what_is_brought_back_is_found_again(tmp_path: Path) -> None:
    store = store_with(tmp_path)
    delete_session(store.journal_path("gone"))
    undelete_session(store, "gone")
    assert hits(store) == {"gone": 200, "kept": 200}
    assert left(store) > 500
    delete_session(store.journal_path("gone"))
    assert left(store) == 0


def damage(store: Store, how: str) -> None:
    """States in which the texts, or the index, are not what they were."""
    journal = Path(store.journal_path("gone"))
    path = files.current(store.index, FILE_NAME)
    assert path is not None
    if how == "damaged journal":
        data = journal.read_bytes()
        journal.write_bytes(flip(data, (len(data) // 2) * 8))
    elif how == "retired":
        with SearchIndex.open(path) as index:
            index.retire("gone")
    elif how == "bad copy":
        os.chmod(path, 0o600)
        Path(path + ".bad-1").write_bytes(Path(path).read_bytes())
    elif how == "older generation":
        Path(store.index, f"{FILE_NAME}.7.sqlite3").write_bytes(Path(path).read_bytes())
    elif how == "bad index":
        data = bytearray(Path(path).read_bytes())
        data[100:4000] = bytes(3900)
        Path(path).write_bytes(data)
    else:
        assert how == "stray wal"
        Path(path + "-wal").write_bytes(b"zqzq" * 1000)


@pytest.mark.parametrize(
    "how",
    ["damaged journal", "retired", "bad copy", "older generation", "bad index", "stray wal"],
)
def test_where_the_texts_cannot_be_had_the_index_goes(tmp_path: Path, how: str) -> None:
    store = store_with(tmp_path)
    damage(store, how)
    assert left(store) > 100
    delete_session(store.journal_path("gone"))
    assert left(store) == 0
    assert hits(store) == {"kept": 200}
    assert left(store) == 0


def test_a_reader_in_another_process_does_not_keep_them(tmp_path: Path) -> None:
    """Its snapshot keeps the -wal: the names go away, and it reads on."""
    store = store_with(tmp_path)
    path = files.current(store.index, FILE_NAME)
    assert path is not None
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with SearchIndex.open(path, readonly=True) as index, index.snapshot():
                before = index.counts()
                os.write(ready[1], b"x")
                os.read(done[0], 1)
                code = 0 if index.counts() == before else 2
        finally:
            os._exit(code)
    assert os.read(ready[0], 1) == b"x"
    append_to_kept(store)  # rows in the -wal that the snapshot holds back
    feed_store(store)
    delete_session(store.journal_path("gone"))
    assert left(store) == 0
    os.write(done[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (*ready, *done):
        os.close(descriptor)
    assert hits(store) == {"kept": 201}


def append_to_kept(store: Store) -> None:
    with Session.open(store.journal_path("kept")) as session:
        session.append(said("common more"))


def test_what_could_not_be_removed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion is not complete before the words are gone."""
    store = store_with(tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise IndexFault("here", "not now")

    with monkeypatch.context() as patched:
        patched.setattr(opening, "locked", refuse)
        with pytest.raises(StorageError, match="words could not be removed"):
            delete_session(store.journal_path("gone"))
    assert left(store) > 500
    assert hits(store) == {"kept": 200}, "it is hidden all the same"
    assert finish_deletions(store).done == ("gone",)
    assert left(store) == 0


def test_nothing_is_fed_behind_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A feeder that has read the journal before it was moved puts nothing in afterwards."""
    store = store_with(tmp_path)
    with Session.open(store.journal_path("gone")) as session:
        session.append(said("common late abczqzqdef"))
    put = feeding._put

    def late(store: Store, batch: Any, born: Any) -> Any:
        monkeypatch.setattr(feeding, "_put", put)
        delete_session(store.journal_path("gone"))
        return put(store, batch, born)

    monkeypatch.setattr(feeding, "_put", late)
    feed_store(store)
    assert left(store) == 0
    assert hits(store) == {"kept": 200}


def test_a_store_without_a_search_index_gets_none(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path / "home"))
    with Session.create("/w", home_dir=store.top, session_id="s") as session:
        session.append(said("x"))
    delete_session(store.journal_path("s"))
    assert not [name for name in os.listdir(store.index) if name.startswith(FILE_NAME)]
    forgetting.forget_session(store, "other", ())
