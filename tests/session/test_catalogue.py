"""The catalogue of a store: what is read again, which rows it has, and that it is never needed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from session_helpers import user

from treering.engine import Session, Store, delete_session, home, undelete_session
from treering.engine.errors import Invalid, from_os_error
from treering.engine.journal.disk import Disk, File
from treering.engine.session import catalogue, listing, listing_cache
from treering.engine.session.listing import ids_named, list_sessions, most_recent, refresh
from treering.engine.session.listing_cache import InfoCache
from treering.engine.session.session_info import SessionInfo
from treering.engine.session.trash import Places
from treering.index import Usage, files
from treering.index.catalogue import NAME, SessionRow, open_current


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of this test, not made yet."""
    return Store.at(str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process remembers nothing; files that were written a moment ago count as at rest."""
    monkeypatch.setattr(listing_cache, "ENTRIES_MAX", 0)
    monkeypatch.setattr(listing, "_cache", InfoCache())
    monkeypatch.setattr(listing_cache, "SETTLED_AFTER_MS", -10_000)


def make(store: Store, name: str, *texts: str, cwd: str = "/work", **more: Any) -> str:
    """A session in which a user said these things; its path."""
    with Session.create(cwd, home_dir=store.top, session_id=name, **more) as session:
        for text in texts:
            session.append(user(text))
        return session.path


def rows(store: Store) -> dict[str, SessionRow]:
    """What the catalogue holds."""
    with open_current(store.index) as found:
        return found.rows()


def catalogue_file(store: Store) -> Path:
    current = files.current(store.index, NAME)
    assert current is not None
    return Path(current)


def test_only_what_moved_is_read(store: Store, opened: list[str]) -> None:
    """Rows of files that rest come from the catalogue, also in another process."""
    paths = [make(store, name, f"text of {name}") for name in ("a", "b", "c")]
    first = list_sessions(store, texts=True)
    assert opened == ["a", "b", "c"]
    assert list_sessions(store, texts=True) == first
    assert list_sessions(store, "/work") == list_sessions(store)
    assert most_recent(store, "/work") == first[0].path
    with Session.open(paths[1]) as session:
        session.append(user("more"))
    os.unlink(paths[2])
    opened.clear()
    assert {i.id: i.message_count for i in list_sessions(store)} == {"a": 1, "b": 2}
    assert opened == ["b"]
    assert set(rows(store)) == {"a", "b"}
    refresh(store)
    assert opened == ["b"]
    assert rows(store)["b"].first_text == "text of b"


def test_a_row_says_what_was_read(store: Store) -> None:
    """Every member survives the catalogue, numbers of any size and strange texts included."""
    whole = SessionInfo(
        path=os.path.join(store.sessions, "x.jsonl"),
        id="x",
        status="damaged",
        reason="case C",
        cwd="/w\udcff",
        name="N",
        state="archived",
        parent_session_path="/p.jsonl",
        rlm_depth=2,
        created=1,
        last_message=2,
        message_count=3,
        entry_count=4,
        first_user_text="f",
        all_messages_text="f g",
        agent_status={"n": 2**80, "f": 0.1, "t": "\ud800", "l": [None, True]},
        usage=Usage(2**70, 1, 0, 0, 1, 0.25),
    )
    bare = SessionInfo(path=os.path.join(store.sessions, "y.jsonl"), id="y")
    os.makedirs(store.index)
    with open_current(store.index) as found:
        for info in (whole, bare):
            row = catalogue.row_of(store, info, None, settled=True)
            found.write([(row, info.all_messages_text)])
        kept, texts = found.rows(), dict(found.texts())
    for info in (whole, bare):
        assert catalogue.info_of(store, kept[info.id], texts.get(info.id)) == info


def test_parents_in_the_store(store: Store, tmp_path: Path) -> None:
    """A parent is known by its path, by whatever name of the folder; those elsewhere are not."""
    path = make(store, "top")
    os.symlink(store.sessions, tmp_path / "alias")
    stated = {
        "plain": path,
        "alias": str(tmp_path / "alias/top.jsonl"),
        "else": "/nowhere/top.jsonl",
        "relative": "sessions/top.jsonl",
        "folder": store.sessions,
    }
    found = {
        name: catalogue.row_of(
            store,
            SessionInfo(path="", id=name, parent_session_path=parent),
            None,
            settled=True,
        ).parent
        for name, parent in stated.items()
    }
    assert found == {"plain": "top", "alias": "top", "else": None, "relative": None, "folder": None}


def test_bad_sessions_are_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 sessions one is random bytes, one a folder, one unreadable: 50 rows, 3 flagged."""
    one = make(store, "s00", "hello")
    folder = Path(store.sessions)
    for number in range(1, 47):
        shutil.copyfile(one, folder / f"s{number:02d}.jsonl")
    (folder / "random.jsonl").write_bytes(random.Random(15).randbytes(20_000))
    (folder / "folder.jsonl").mkdir()
    shutil.copyfile(one, folder / "unreadable.jsonl")
    real = listing.open_regular

    def refuse(disk: Disk, path: str, **more: Any) -> File:
        if path.endswith("unreadable.jsonl"):  # root can read every mode
            raise from_os_error(PermissionError(errno.EACCES, "refused"), "open", path)
        return real(disk, path, **more)

    monkeypatch.setattr(listing, "open_regular", refuse)
    refresh(store)
    found = rows(store)
    assert len(found) == 50
    flagged = {row.id: row.status for row in found.values() if row.status != "ok"}
    assert flagged == {"random": "foreign", "folder": "foreign", "unreadable": "unreadable"}
    assert all(row.reason for row in found.values() if row.status != "ok")
    assert {info.id for info in list_sessions(store)} == set(found)


def test_half_deleted_sessions_are_rows_without_words(store: Store) -> None:
    """No list shows them, the catalogue does, and nothing of what they said."""
    make(store, "a", "words")
    make(store, "b", "words")
    refresh(store)
    os.makedirs(store.trash)
    Path(Places(store, "a").under_way("deleting")).write_text("{}")
    assert [info.id for info in list_sessions(store)] == ["b"]
    row = rows(store)["a"]
    assert (row.status, row.first_text, row.messages) == ("half-deleted", None, 0)
    with open_current(store.index) as found:
        assert dict(found.texts()) == {"b": "words"}


def everything(store: Store) -> bytes:
    """All bytes of the catalogue's files."""
    return b"".join(p.read_bytes() for p in Path(store.index).glob(f"{NAME}.*") if p.is_file())


def test_a_deleted_session_is_forgotten(store: Store) -> None:
    """Its row and its words go with it, beside a reader too, and come back when it does."""
    path = make(store, "a", "swordfish")
    make(store, "b", "other")
    refresh(store)
    with open_current(store.index) as reader:
        assert b"swordfish" in everything(store)
        delete_session(path)
        assert b"swordfish" not in everything(store)
        assert set(reader.rows()) == {"b"}
    undelete_session(store, "a")
    refresh(store)
    assert set(rows(store)) == {"a", "b"}


@pytest.mark.parametrize("spoilt", [False, True])
def test_words_in_bad_copies_go_too(store: Store, spoilt: bool) -> None:
    """A catalogue in which a row cannot be removed, or that was set aside, is removed."""
    path = make(store, "a", "swordfish")
    refresh(store)
    current = catalogue_file(store)
    if spoilt:
        current.write_bytes(b"swordfish" * 5_000)
    else:
        shutil.copy(current, f"{current}.bad-1")
    delete_session(path)
    assert b"swordfish" not in everything(store)
    assert list_sessions(store) == []


def test_a_reader_in_the_way_of_forgetting(store: Store) -> None:
    """Another process reads an old state for too long: the files go, the next list makes new ones."""
    path = make(store, "a", "swordfish")
    refresh(store)
    program = (
        "import sys; from treering.index.catalogue import open_current\n"
        "with open_current(sys.argv[1]) as c, c.snapshot():\n"
        "    c.rows(); print(flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, store.index], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdout.readline()
        delete_session(path)
        assert b"swordfish" not in everything(store)
        reader.stdin.close()
    assert reader.returncode == 0


def _garbage(store: Store) -> None:
    catalogue_file(store).write_bytes(random.Random(1).randbytes(30_000))


def _directory(store: Store) -> None:
    path = catalogue_file(store)
    path.unlink()
    path.mkdir()


def _lost(store: Store) -> None:
    catalogue_file(store).unlink()


def _no_folder(store: Store) -> None:
    shutil.rmtree(store.index)


def _folder_is_a_file(store: Store) -> None:
    shutil.rmtree(store.index)
    Path(store.index).write_text("x")


BAD = {
    "garbage": _garbage,
    "directory": _directory,
    "lost": _lost,
    "no-folder": _no_folder,
    "folder-is-a-file": _folder_is_a_file,
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_a_bad_catalogue_costs_time_only(store: Store, spoil: Any) -> None:
    """The same answers, and where it can be it is there again."""
    for name in ("a", "b"):
        make(store, name, "hello")
    before = list_sessions(store, texts=True)
    spoil(store)
    for _ in range(2):
        assert list_sessions(store, texts=True) == before
    if os.path.isdir(store.index):
        assert set(rows(store)) == {"a", "b"}


def test_a_catalogue_that_is_younger_than_what_is_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process remembers comes into a new one; the texts are read for it."""
    monkeypatch.setattr(listing_cache, "ENTRIES_MAX", 256)
    for name in ("a", "b"):
        make(store, name, f"words of {name}")
    before = list_sessions(store)
    shutil.rmtree(store.index)
    os.mkdir(store.index)
    assert list_sessions(store) == before
    assert set(rows(store)) == {"a", "b"}
    refresh(store)
    with open_current(store.index) as found:
        assert dict(found.texts()) == {"a": "words of a", "b": "words of b"}


@pytest.mark.parametrize(
    "change", ["agent_status = '{'", "usage = '[1]'", "usage = '3'", "status = 'fine'"]
)
def test_rows_that_nobody_wrote(store: Store, change: str) -> None:
    """The journal is read instead."""
    path = make(store, "a", "hello")
    with Session.open(path) as session:
        session.append({"type": "agent_status", "status": {"summary": "x"}})
    before = list_sessions(store)
    with open_current(store.index) as found:
        found._db.execute(f"UPDATE session SET {change}")
    assert list_sessions(store) == before


def test_names(store: Store) -> None:
    """Names are looked up among rows, and in files that changed since."""
    path = make(store, "a")
    make(store, "b")
    refresh(store)
    assert ids_named(store, "x") == []
    with Session.open(path) as session:
        session.set_name("x")
    for _ in range(2):
        assert ids_named(store, "x") == ["a"]


def test_where_nothing_may_be_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No catalogue is made in the state of an older product."""
    make(store, "a", "hello")

    def refuse(path: str, **more: Any) -> None:
        raise Invalid("never written to", path=path)

    monkeypatch.setattr(home, "check_writable_place", refuse)
    assert [info.id for info in list_sessions(store)] == ["a"]
    assert files.current(store.index, NAME) is None
    with catalogue.open_catalogue(store) as found:
        assert found.file == ":memory:"


def test_an_empty_store_gets_none(store: Store) -> None:
    assert list_sessions(store) == []
    os.makedirs(store.sessions)
    assert list_sessions(store) == []
    assert not os.path.exists(store.index)


def test_a_locked_catalogue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process locks for too long is done without."""
    make(store, "a", "hello")
    refresh(store)
    make(store, "b", "hello")
    holder = open_current(store.index)
    holder._db.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(
        "treering.index.catalogue.Catalogue.open.__func__.__kwdefaults__",
        {"busy_timeout_ms": 1},
    )
    assert {info.id for info in list_sessions(store)} == {"a", "b"}
    assert len(list_sessions(store)) == 2
    holder._db.execute("ROLLBACK")
    holder.close()
    refresh(store)
    assert set(rows(store)) == {"a", "b"}


def test_a_killed_look_has_kept_what_it_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written by the way: the next look reads the rest."""
    monkeypatch.setattr(catalogue, "ROWS_PER_TRANSACTION", 2)
    for name in ("a", "b", "c", "d", "e"):
        make(store, name, "hello")
    monkeypatch.setattr(catalogue.Remembered, "__exit__", lambda *_: None)
    assert len(list(listing._looks(store, None, texts=False))) == 5
    assert set(rows(store)) == {"a", "b", "c", "d"}


WORKER = """
import sys
from treering.engine import Session, Store
from treering.engine.session.listing import list_sessions
store = Store.at(sys.argv[1])
for count in range(8):
    with Session.create("/w", home_dir=store.top, session_id=f"s{sys.argv[2]}-{count}") as session:
        session.append({"type": "message", "message": {"role": "user", "content": "x"}})
    found = {info.id for info in list_sessions(store)}
    assert {f"s{sys.argv[2]}-{n}" for n in range(count + 1)} <= found
"""


def test_several_processes(store: Store) -> None:
    """They make sessions and list at once; in the end the catalogue is what a new one would be."""
    make(store, "first", "x")
    work = [subprocess.Popen([sys.executable, "-c", WORKER, store.top, str(n)]) for n in range(3)]
    assert [process.wait(60) for process in work] == [0, 0, 0]
    refresh(store)
    found = rows(store)
    assert len(found) == 25
    for path in Path(store.index).glob(f"{NAME}.*"):
        path.unlink()
    refresh(store)
    assert rows(store) == found


MIXED = """
import random, sys, time
from treering.engine import PageQuery, Session, SessionPages, Store, TreeringError, delete_session
from treering.engine.session.listing import list_sessions
from treering.engine.session.resolving import resolve_session
store, seed = Store.at(sys.argv[1]), int(sys.argv[2])
draw = random.Random(seed)
until = time.monotonic() + 3
mine = []
count = 0
while time.monotonic() < until:
    work = draw.randrange(6)
    if work == 0 or not mine:
        name = f"s{seed}-{count}"
        count += 1
        with Session.create("/w", home_dir=store.top, session_id=name) as session:
            session.append({"type": "message", "message": {"role": "user", "content": name}})
        mine.append(name)
    elif work == 1:
        with Session.open(store.journal_path(draw.choice(mine))) as session:
            session.append({"type": "message", "message": {"role": "user", "content": "more"}})
    elif work == 2:
        delete_session(store.journal_path(mine.pop(draw.randrange(len(mine)))))
    elif work == 3:
        assert set(mine) <= {info.id for info in list_sessions(store)}
    elif work == 4:
        name = draw.choice(mine)
        assert resolve_session(store, name[:-1] + name[-1:]) == store.journal_path(name)
    else:
        query, shown = PageQuery(limit=5), []
        with SessionPages(store) as pages:
            pages.refresh()
            page = pages.page(query)
            shown += page.rows
            while page.next_cursor is not None:
                page = pages.page(query, page.next_cursor)
                shown = [*([] if page.reset else shown), *page.rows]
        found = [row.info.id for row in shown]
        assert len(set(found)) == len(found)
print(len(mine))
"""


def test_processes_that_list_append_and_delete(store: Store) -> None:
    """Each sees all of its own sessions all the time; in the end no row is wrong."""
    work = [
        subprocess.Popen(
            [sys.executable, "-c", MIXED, store.top, str(seed)], stdout=subprocess.PIPE
        )
        for seed in range(3)
    ]
    said = [process.communicate(timeout=60)[0] for process in work]
    assert [process.returncode for process in work] == [0, 0, 0]
    refresh(store)
    found = rows(store)
    assert len(found) == sum(map(int, said))
    for path in Path(store.index).glob(f"{NAME}.*"):
        path.unlink()
    refresh(store)
    assert rows(store) == found
