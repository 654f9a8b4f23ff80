"""Deletion, undelete and purge: a session is whole in one place, or whole in the other."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from session_helpers import custom, files_below, new, read_bytes, typed_only, user, write_bytes
from support.stores import PLAIN, damaged_store, picture

from treering.engine import (
    Conflict,
    Invalid,
    InvalidId,
    NotAJournal,
    NotFound,
    Owned,
    Session,
    SessionView,
    SourceChanged,
    StorageError,
    Store,
    TreeringError,
    import_session,
)
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.session import deleting
from treering.engine.session.deleting import (
    delete_session,
    finish_deletion,
    finish_deletions,
    list_deleted,
    purge_deleted,
    undelete_session,
)
from treering.engine.session.listing import list_sessions, session_names
from treering.engine.session.manager import SessionManager
from treering.engine.session.trash import Places, hidden_ids
from treering.engine.transfer.copying import prepare_fork
from treering.fuzz.faulty_disk import SYNCS, WRITES, FaultyDisk, FaultyFile
from treering.fuzz.flows.interrupted import DyingDisk, Killed

WORD = "xylophonically"
"""A word that occurs nowhere else."""


def made(tmp_path: Path, session_id: str = "s1", *, name: str = "Greetings") -> Places:
    """A closed session with a name, an index, and artifacts with links among them."""
    with new(tmp_path, session_id=session_id) as session:
        session.append(user(f"say {WORD}"))
        session.set_name(name)
        folder = Path(session.artifact_folder)
        store = session.store
    (folder / "deep").mkdir(parents=True, mode=0o700)
    (folder / "deep" / "tool.log").write_text(f"output with {WORD}")
    (folder / "outside").symlink_to(tmp_path / "precious")
    (folder / "dangling").symlink_to("nowhere")
    (tmp_path / "precious").mkdir(exist_ok=True)
    (tmp_path / "precious" / "file").write_text("not ours")
    return Places(store, session_id)


def content(places: Places) -> tuple[bytes, dict[str, object]]:
    """The journal and the artifacts of a session that is there: bytes, modes, inodes."""
    return read_bytes(places.journal), _relative(places.artifacts)


def trashed(places: Places) -> tuple[bytes, dict[str, object]]:
    """The same of one in the trash."""
    return read_bytes(places.trashed_journals[0]), _relative(places.trashed_artifacts[0])


def _relative(folder: str) -> dict[str, object]:
    return {os.path.relpath(path, folder): found for path, found in files_below(folder).items()}


def with_word(folder: Path) -> list[str]:
    """Files below a folder in which the word stands."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and WORD.encode() in path.read_bytes()
    )


# One operation


def test_a_session_moves_whole_and_comes_back_as_it_was(tmp_path: Path) -> None:
    """Journal and artifacts together, byte for byte, the same inodes; links stay links."""
    places = made(tmp_path)
    before = content(places)
    deleted = delete_session(places.journal)
    assert (deleted.id, deleted.name, deleted.folder) == ("s1", "Greetings", places.folder)
    assert trashed(places) == before
    assert not os.path.lexists(places.journal)
    assert not os.path.lexists(places.artifacts)
    assert os.listdir(places.store.index) == []
    assert list_deleted(places.store) == [deleted]
    assert undelete_session(places.store, "s1") == places.journal
    assert content(places) == before
    assert os.listdir(places.store.trash) == []
    assert list_deleted(places.store) == []
    with Session.open(places.journal) as session:
        assert session.name == "Greetings"
        assert not session.index_faults
    assert (tmp_path / "precious" / "file").read_text() == "not ours"


def test_a_session_without_artifacts_or_index(tmp_path: Path) -> None:
    """Unreadable journal or not: what is not there is not missed, and nothing is made of it."""
    with new(tmp_path, session_id="bare") as session:
        places = Places(session.store, "bare")
    for name in os.listdir(places.store.index):
        os.unlink(os.path.join(places.store.index, name))
    delete_session(places.journal)
    assert sorted(os.listdir(places.folder)) == ["journal.jsonl", "tombstone.json"]
    undelete_session(places.store, "bare")
    assert not os.path.exists(places.artifacts)
    assert os.path.exists(places.journal)


def test_everything_in_the_trash_is_private(tmp_path: Path) -> None:
    """Folders 0700, files 0600, whatever the umask."""
    places = made(tmp_path)
    mask = os.umask(0)
    try:
        delete_session(places.journal)
    finally:
        os.umask(mask)
    for path in (places.store.trash, places.folder):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    for path in (places.tombstone, places.trashed_journals[0]):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_the_tombstone_is_a_small_json_file(tmp_path: Path) -> None:
    """Id, when, and the (beginning of the) name, for people and programs."""
    places = made(tmp_path, name="n" * 5000)
    deleted = delete_session(places.journal)
    said = json.loads(read_bytes(places.tombstone))
    assert said == {
        "id": "s1",
        "deletedMs": deleted.deleted_ms,
        "name": "n" * deleting.NAME_CHARS_MAX,
        "purgedMs": None,
    }


@pytest.mark.parametrize("alias", ["itself", "hard link"])
def test_a_live_owner_keeps_its_session(tmp_path: Path, alias: str) -> None:
    """Delete blocked by a live owner, also under another name of the file; artifacts untouched."""
    places = made(tmp_path)
    path = places.journal
    if alias == "hard link":
        path = places.store.journal_path("other")
        os.link(places.journal, path)
    with Session.open(places.journal) as session:
        before = content(places)
        with pytest.raises(Owned) as caught:
            delete_session(path)
        assert alias == "hard link" or caught.value.holder_pid == os.getpid()
        assert content(places) == before
        assert not os.path.exists(places.store.trash)
        session.append(custom("later"))
    if alias == "itself":
        delete_session(path)


def test_a_view_goes_on_showing_what_it_had(tmp_path: Path) -> None:
    """Who only looks neither keeps a session nor is disturbed."""
    places = made(tmp_path)
    with SessionView.open(places.journal) as view:
        delete_session(places.journal)
        purge_deleted(places.store, "s1")
        assert [entry.type for entry in view.iter_entries()] == ["message", "session_info"]


def test_two_deletions_at_once(tmp_path: Path) -> None:
    """One does it; the other is refused, or finds it done. Never an untyped error."""
    for turn in range(8):
        places = made(tmp_path, f"t{turn}")
        ends: list[object] = []
        barrier = threading.Barrier(3)

        def work(places: Places = places, ends: list[object] = ends, go: object = barrier) -> None:
            go.wait()  # type: ignore[attr-defined]
            try:
                ends.append(delete_session(places.journal))
            except (Owned, NotFound) as error:
                ends.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ends) == 3
        assert sum(not isinstance(end, TreeringError) for end in ends) >= 1
        assert sorted(os.listdir(places.folder)) == ["artifacts", "journal.jsonl", "tombstone.json"]


# What is deleted stays so


def test_nothing_comes_back_by_itself(tmp_path: Path) -> None:
    """Neither a list nor a reopening nor a new session of that id; the refusal names undelete."""
    places = made(tmp_path)
    delete_session(places.journal)
    assert session_names(places.store) == []
    with pytest.raises(NotFound, match="undelete"):
        Session.open(places.journal)
    with pytest.raises(NotFound, match="undelete"):
        delete_session(places.journal)
    with pytest.raises(Conflict, match="treering session undelete"):
        new(tmp_path, session_id="s1")
    with new(tmp_path) as other:
        entry_id = other.append(custom())
        prepared = prepare_fork(other, entry_id, "at")
        with pytest.raises(Conflict, match="treering session undelete"):
            prepared.create("/w", session_id="s1")
    purge_deleted(places.store, "s1")
    with pytest.raises(Conflict) as caught:
        new(tmp_path, session_id="s1")
    assert "undelete" not in str(caught.value)
    with new(tmp_path) as session:  # others do not mind
        assert session.id != "s1"


def test_f61_an_import_of_the_same_file_does_not_bring_it_back(tmp_path: Path) -> None:
    """Import a legacy file, delete the session, import again: a new session, the old one gone."""
    source = tmp_path / "source.jsonl"
    source.write_bytes(PLAIN)
    home = str(tmp_path / "home")
    first = import_session(str(source), home_dir=home, cwd="/w")
    delete_session(first.path)
    second = import_session(str(source), home_dir=home, cwd="/w")
    assert second.session_id != first.session_id
    assert [info.id for info in list_sessions(Store.at(home))] == [second.session_id]
    assert [one.id for one in list_deleted(Store.at(home))] == [first.session_id]


def test_f60_a_purge_leaves_no_word(tmp_path: Path) -> None:
    """After the deletion the word is in the trash only, after the purge nowhere."""
    places = made(tmp_path, name=f"about {WORD}")
    home = tmp_path / "home"
    delete_session(places.journal)
    assert {name.split("/")[0] for name in with_word(home)} == {"session-trash"}
    purge_deleted(places.store, "s1")
    assert with_word(home) == []
    assert sorted(os.listdir(places.folder)) == ["tombstone.json"]
    (purged,) = list_deleted(places.store)
    assert purged.name is None
    assert purged.purged_ms is not None
    purge_deleted(places.store, "s1")
    assert list_deleted(places.store) == [purged]
    with pytest.raises(NotFound, match="for good"):
        undelete_session(places.store, "s1")
    assert (tmp_path / "precious" / "file").read_text() == "not ours"


def test_a_purged_id_can_be_deleted_again(tmp_path: Path) -> None:
    """A journal that somebody put back by hand is a session; its deletion has its own time."""
    places = made(tmp_path)
    backup = read_bytes(places.journal)
    first = delete_session(places.journal)
    purge_deleted(places.store, "s1")
    write_bytes(places.journal, backup)
    with Session.open(places.journal) as session:
        assert session.name == "Greetings"
    assert session_names(places.store) == ["s1"]
    second = delete_session(places.journal)
    assert second.purged_ms is None
    assert second.deleted_ms is not None
    assert first.deleted_ms is not None
    assert second.deleted_ms >= first.deleted_ms
    assert read_bytes(undelete_session(places.store, "s1")) != b""


def test_two_sessions_of_one_id_are_never_mixed(tmp_path: Path) -> None:
    """A copy put back beside a deleted session: neither is overwritten by the other."""
    places = made(tmp_path)
    backup = read_bytes(places.journal)
    delete_session(places.journal)
    write_bytes(places.journal, backup)
    before = files_below(str(tmp_path / "home"))
    with pytest.raises(Conflict, match="in the trash"):
        delete_session(places.journal)
    with pytest.raises(Conflict, match="is there"):
        undelete_session(places.store, "s1")
    assert files_below(str(tmp_path / "home")).keys() == before.keys()
    os.unlink(places.journal)
    os.mkdir(places.artifacts)
    with pytest.raises(Conflict, match="artifacts"):
        undelete_session(places.store, "s1")
    os.rmdir(places.artifacts)
    undelete_session(places.store, "s1")


@pytest.mark.parametrize("gone", ["removed", "replaced", "deleted by force"])
def test_an_owner_whose_file_is_gone_does_not_make_it_again(tmp_path: Path, gone: str) -> None:
    """A Session or manager whose file was deleted must not recreate it on a later append."""
    session = new(tmp_path, session_id="s1")
    session.append(custom("one"))
    places = Places(session.store, "s1")
    if gone == "deleted by force":
        # What no deletion does: it would be refused the lock.
        os.makedirs(places.folder)
        os.rename(places.journal, places.trashed_journals[0])
    else:
        os.unlink(places.journal)
    if gone == "replaced":
        write_bytes(places.journal, b"another file")
    for _ in range(2):
        with pytest.raises(SourceChanged):
            session.append(custom())
    with typed_only(SourceChanged):
        session.close()
    assert os.path.exists(places.journal) == (gone == "replaced")
    if gone == "replaced":
        assert read_bytes(places.journal) == b"another file"


def test_a_manager_whose_file_is_gone_does_not_make_it_again(tmp_path: Path) -> None:
    """The same for tasks."""

    async def work() -> None:
        manager = await SessionManager.create("/w", home_dir=str(tmp_path / "home"))
        await manager.append_message({"role": "user", "content": "x"})
        path = manager.get_session_file()
        assert path is not None
        os.unlink(path)
        for _ in range(2):
            with pytest.raises(SourceChanged):
                await manager.append_message({"role": "user", "content": "y"})
        with typed_only(SourceChanged, NotFound):
            await manager.close()
        assert not os.path.exists(path)

    asyncio.run(work())


# What is refused


BAD_IDS = (
    "",
    ".",
    "..",
    "../x",
    "/abs",
    "a/b",
    "a\\b",
    "x\0y",
    "~",
    "CON",
    "x" * 300,
    "\u202e",
    "a.",
)


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
def test_f44_ids_that_leave_the_store(tmp_path: Path, bad: str) -> None:
    """Degenerate names, `.jsonl` among them, never name the artifact root or anything outside."""
    places = made(tmp_path)
    before = picture(tmp_path)
    for act in (undelete_session, purge_deleted, finish_deletion):
        with pytest.raises(InvalidId):
            act(places.store, bad)
    with pytest.raises((Invalid, NotFound)):
        delete_session(f"{places.store.sessions}/{bad}.jsonl")
    assert picture(tmp_path) == before


def test_a_file_named_only_by_its_ending(tmp_path: Path) -> None:
    """`.jsonl` has no id: it would be the artifact root."""
    places = made(tmp_path)
    path = f"{places.store.sessions}/.jsonl"
    os.link(places.journal, path)
    os.link(places.journal, f"{places.store.sessions}/noending")
    before = picture(tmp_path)
    with pytest.raises(InvalidId):
        delete_session(path)
    with pytest.raises(Invalid, match="jsonl"):
        delete_session(f"{places.store.sessions}/noending")
    assert picture(tmp_path) == before


def test_a_link_is_not_deleted_with_what_it_leads_to(tmp_path: Path) -> None:
    """A journal that is a symbolic link, to another store perhaps, is refused."""
    places = made(tmp_path)
    elsewhere = tmp_path / "elsewhere" / "sessions"
    elsewhere.mkdir(parents=True)
    (elsewhere / "s1.jsonl").symlink_to(places.journal)
    before = picture(tmp_path)
    with pytest.raises(Invalid, match="symbolic link"):
        delete_session(elsewhere / "s1.jsonl")
    assert picture(tmp_path) == before


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        b'{"journalFrame":1,"sequence":0}\n',
        b"",
        bytes(5000),
        b"SQLite format 3\0" + bytes(4096),
        b"anything else\n",
    ],
    ids=["jsonl", "framed", "empty", "zeros", "sqlite", "text"],
)
def test_files_of_other_systems_are_left_alone(tmp_path: Path, data: bytes) -> None:
    """What is no journal is refused, and not touched."""
    places = made(tmp_path)
    path = places.store.journal_path("foreign")
    write_bytes(path, data)
    before = picture(tmp_path, folder_times=False)
    with pytest.raises(NotAJournal):
        delete_session(path)
    assert picture(tmp_path, folder_times=False) == before


def test_a_folder_and_a_fifo_are_no_journals(tmp_path: Path) -> None:
    """Nor do they make a deletion wait."""
    places = made(tmp_path)
    os.mkdir(places.store.journal_path("folder"))
    os.mkfifo(places.store.journal_path("fifo"))
    for name in ("folder", "fifo"):
        with pytest.raises(NotAJournal):
            delete_session(places.store.journal_path(name))
    with pytest.raises(NotFound):
        delete_session(places.store.journal_path("nothing"))
    assert not os.path.exists(places.store.trash)


def test_every_damaged_session_can_be_deleted(tmp_path: Path) -> None:
    """It is moved, not read: whatever state it is in, it comes back with every byte."""
    home = damaged_store(tmp_path / "home")
    store = Store.at(str(home))
    moved, refused = set(), set()
    for path in sorted((home / "sessions").glob("*.jsonl")):
        before = picture(home, folder_times=False)
        try:
            delete_session(path)
        except (NotAJournal, Invalid, NotFound, Owned) as error:
            refused.add((path.stem, type(error).__name__))
            assert picture(home, folder_times=False) == before
            continue
        assert not path.exists()
        undelete_session(store, path.stem)
        after = picture(home, folder_times=False)
        kept = {n: v for n, v in before.items() if n.startswith(("sessions", "session-artifacts"))}
        for name, found in kept.items():
            if "/" in name:
                assert after[name] == found, name
        moved.add(path.stem)
    assert {"torn", "b", "c", "f", "f-front", "d-gap", "clean"} <= moved
    assert not {"NotFound", "Owned"} & {kind for _, kind in refused}


def test_a_purge_follows_no_link(tmp_path: Path) -> None:
    """The artifact folder itself a link, links in it, deep folders: only what is ours goes."""
    places = made(tmp_path)
    os.rename(places.artifacts, tmp_path / "kept")
    os.symlink(tmp_path / "kept", places.artifacts)
    before = picture(tmp_path / "kept")
    delete_session(places.journal)
    assert os.path.islink(places.trashed_artifacts[0])
    undelete_session(places.store, "s1")
    assert os.path.islink(places.artifacts)
    delete_session(places.journal)
    purge_deleted(places.store, "s1")
    assert picture(tmp_path / "kept") == before


def test_artifacts_that_are_a_link_to_nowhere_come_back(tmp_path: Path) -> None:
    """Also when the folder of all artifacts has gone meanwhile."""
    with new(tmp_path, session_id="s1") as session:
        places = Places(session.store, "s1")
    os.makedirs(places.store.artifacts)
    os.symlink("nowhere", places.artifacts)
    delete_session(places.journal)
    assert not os.path.lexists(places.artifacts)
    os.rmdir(places.store.artifacts)
    undelete_session(places.store, "s1")
    assert os.readlink(places.artifacts) == "nowhere"


def test_a_purge_of_deep_folders(tmp_path: Path) -> None:
    """However deep an artifact folder is, no recursion ends it."""
    with new(tmp_path, session_id="s1") as session:
        folder = Path(session.artifact_folder)
        places = Places(session.store, "s1")
    path = str(folder)
    os.makedirs(path)
    for _ in range(1500):
        path += "/d"
        os.mkdir(path)
    Path(path, "file").touch()
    delete_session(places.journal)
    purge_deleted(places.store, "s1")
    assert os.listdir(places.folder) == ["tombstone.json"]


# Trouble


def test_a_tombstone_that_does_not_read(tmp_path: Path) -> None:
    """Its name says what it is; the session comes back all the same. So does one without."""
    places = made(tmp_path)
    before = content(places)
    for damage in (b"", b"\xff", b'{"id":1}', b"[" * 100_000, None):
        delete_session(places.journal)
        if damage is None:
            os.unlink(places.tombstone)
        else:
            write_bytes(places.tombstone, damage)
        (one,) = list_deleted(places.store)
        assert (one.id, one.deleted_ms, one.name) == ("s1", None, None)
        undelete_session(places.store, "s1")
        assert content(places) == before


def test_strangers_in_the_trash(tmp_path: Path) -> None:
    """Files and folders that are not ours are neither listed nor touched."""
    places = made(tmp_path)
    delete_session(places.journal)
    for name in (".x.deleting.bak", "-bad-", ".deleting", "..deleting", ".new"):
        Path(places.store.trash, name).write_text("mine")
    os.mkdir(Path(places.store.trash, "empty"))
    assert [one.id for one in list_deleted(places.store)] == ["s1"]
    assert finish_deletions(places.store).left == ()
    Path(places.folder, "note").write_text("mine")
    undelete_session(places.store, "s1")
    assert Path(places.folder, "note").read_text() == "mine"
    assert list_deleted(places.store) == []
    assert len(os.listdir(places.store.trash)) == 7


def test_an_index_that_cannot_be_removed(tmp_path: Path) -> None:
    """The deletion goes on when it can; meanwhile no list shows the session."""
    places = made(tmp_path)
    folder = Path(places.store.index, "s1.9.sqlite3")
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(StorageError, match="by hand"):
        delete_session(places.journal)
    assert session_names(places.store) == []
    assert list_deleted(places.store)[0].under_way == "deleting"
    (left,) = finish_deletions(places.store).left
    assert left[0] == "s1"
    (folder / "mine").unlink()
    assert finish_deletions(places.store).done == ("s1",)
    assert list_deleted(places.store)[0].under_way is None
    assert os.listdir(places.store.index) == []


def test_one_that_cannot_be_finished_does_not_hide_others(tmp_path: Path) -> None:
    """Another process is at one of them; the other one is finished."""
    stuck, other = made(tmp_path, "stuck"), made(tmp_path, "other")
    for places in (stuck, other):
        _begin(places)
    with locked_elsewhere(stuck.journal):
        finished = finish_deletions(stuck.store)
    assert finished.done == ("other",)
    assert [session_id for session_id, _ in finished.left] == ["stuck"]
    assert isinstance(finished.left[0][1], Owned)
    assert finish_deletions(stuck.store).done == ("stuck",)


@contextmanager
def locked_elsewhere(path: str) -> Iterator[None]:
    """Another process has the lock of a journal."""
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield
        child.communicate()


def _begin(places: Places) -> None:
    """Leave a deletion behind that is only begun."""
    for at in range(1, 100):
        kill(at, lambda disk: delete_session(places.journal, disk=disk))
        if places.session_id in hidden_ids(places.store):
            return
    raise AssertionError("it never began")


class Dying(DyingDisk):
    """A dying disk over the local one."""

    def __init__(self, at: int) -> None:
        super().__init__(LOCAL_DISK, at)  # type: ignore[arg-type]
        self.opened: list[FaultyFile] = []

    def open(self, path: str, *, write: bool = False) -> FaultyFile:
        self.opened.append(super().open(path, write=write))
        return self.opened[-1]

    def create(self, path: str) -> FaultyFile:
        self.opened.append(super().create(path))
        return self.opened[-1]


def kill(at: int, act: Callable[[Disk], object]) -> None:
    """Kill what is done at its ``at``-th change. The system closes its files and drops its locks."""
    disk = Dying(at)
    with pytest.raises(Killed):
        act(disk)
    for file in disk.opened:
        file.close()


def test_a_list_shows_no_session_whose_deletion_was_begun(tmp_path: Path) -> None:
    """Its journal is still in its place then. Opening it finishes the deletion."""
    places = made(tmp_path)
    before = content(places)
    _begin(places)
    assert os.path.exists(places.journal)
    assert session_names(places.store) == []
    assert list_sessions(places.store) == []
    (one,) = list_deleted(places.store)
    assert one.under_way == "deleting"
    with pytest.raises(Conflict, match="undelete"):
        new(tmp_path, session_id="s1")
    with pytest.raises(NotFound, match="undelete"):
        Session.open(places.journal)
    assert trashed(places) == before
    undelete_session(places.store, "s1")
    assert content(places) == before


def test_devices_of_their_own(tmp_path: Path) -> None:
    """Where sessions or artifacts are mounts, they stay on them: aside, listed, back, purged."""
    places = made(tmp_path)
    before = content(places)
    disk = FaultyDisk()
    for name in ("link", "rename"):
        disk.fail(name, error=errno.EXDEV, times=1 << 30, path=f"{places.folder}/journal")
        disk.fail(name, error=errno.EXDEV, times=1 << 30, path=f"{places.folder}/artifacts")
    for _ in range(2):
        delete_session(places.journal, disk=disk)
        assert os.listdir(places.folder) == ["tombstone.json"]
        assert session_names(places.store) == []
        assert read_bytes(places.trashed_journals[1]) == before[0]
        undelete_session(places.store, "s1", disk=disk)
        assert content(places) == before
    delete_session(places.journal, disk=disk)
    purge_deleted(places.store, "s1", disk=disk)
    assert with_word(tmp_path / "home") == []
    assert os.listdir(places.store.sessions) == []


# Whatever interrupts it


OPERATIONS: dict[str, Callable[[Places, Disk], object]] = {
    "delete": lambda places, disk: delete_session(places.journal, disk=disk),
    "undelete": lambda places, disk: undelete_session(places.store, "s1", disk=disk),
    "purge": lambda places, disk: purge_deleted(places.store, "s1", disk=disk),
}

RESULT = {"delete": "deleted", "undelete": "there", "purge": "purged"}


def staged(tmp_path: Path, operation: str) -> tuple[Places, tuple[bytes, dict[str, object]]]:
    """A session that the operation can be done with."""
    places = made(tmp_path)
    before = content(places)
    if operation != "delete":
        delete_session(places.journal)
    return places, before


def where(places: Places, before: tuple[bytes, dict[str, object]]) -> str:
    """Where the session is; it must be whole there, with nothing of it anywhere else."""
    store = places.store
    below = [path for path, found in files_below(store.top).items() if found[2] is not None]
    outside = [path for path in below if not path.startswith((store.trash, store.index))]
    if os.path.exists(places.journal):
        assert content(places) == before
        assert not [p for p in below if p.startswith(store.trash) and not p.endswith(".new")]
        return "there"
    assert outside == []
    if os.path.exists(places.trashed_journals[0]):
        assert trashed(places) == before
        assert os.path.exists(places.tombstone)
        return "deleted"
    assert os.listdir(places.folder) == ["tombstone.json"]
    return "purged"


def changes_of(tmp_path: Path, operation: str) -> int:
    """How many operations of it change or sync something."""
    places, _ = staged(tmp_path, operation)
    disk = FaultyDisk()
    OPERATIONS[operation](places, disk)
    return sum(op.name in WRITES or op.name in SYNCS for op in disk.log)


@pytest.mark.parametrize("after", ["finish", "again", "open"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_f62_a_process_killed_at_any_operation(tmp_path: Path, operation: str, after: str) -> None:
    """Killed at each change: a list shows the session whole or not; what comes next finishes it."""
    changes = changes_of(tmp_path / "count", operation)
    assert changes > 12
    ends = set()
    for at in range(1, changes + 1):
        places, before = staged(tmp_path / str(at), operation)
        kill(at, lambda disk, places=places: OPERATIONS[operation](places, disk))  # type: ignore[misc]
        if session_names(places.store):
            assert content(places) == before
        if after == "again":
            try:
                OPERATIONS[operation](places, LOCAL_DISK)
            except (NotFound, Conflict):
                pass  # it was done, but for the last sync
            assert where(places, before) == RESULT[operation]
        elif after == "open":
            try:
                SessionView.open(places.journal).close()
                with Session.open(places.journal) as session:
                    assert session.name == "Greetings"
            except NotFound:
                pass
        assert finish_deletions(places.store).left == ()
        if after != "open" or not os.path.exists(places.journal):
            ends.add(where(places, before))
        assert hidden_ids(places.store) == set()
    assert RESULT[operation] in ends or after == "open"
    assert len(ends) == 2 or after != "finish"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_call_can_fail(tmp_path: Path, operation: str, number: int) -> None:
    """A typed error, and the session whole: at once when nothing had begun, else when finished."""
    places, _ = staged(tmp_path / "count", operation)
    counted = FaultyDisk()
    OPERATIONS[operation](places, counted)
    refused = 0
    for at in range(1, len(counted.log) + 1):
        places, before = staged(tmp_path / str(at), operation)
        disk = FaultyDisk()
        disk.fail(None, at=at, error=number)
        try:
            OPERATIONS[operation](places, disk)
        except TreeringError as error:
            assert str(error)
            refused += 1
        else:
            assert where(places, before) == RESULT[operation]
        assert disk.open_files == 0
        if session_names(places.store):
            assert content(places) == before
        assert finish_deletions(places.store).left == ()
        assert where(places, before) in (RESULT[operation], "there", "deleted")
    assert refused > len(counted.log) // 2
