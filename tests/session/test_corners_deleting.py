"""Corners of deletion: one verb cut short and another one next, refusals, and bad places."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from session_helpers import custom, new, read_bytes, write_bytes

from treering.engine import (
    Conflict,
    NotFound,
    ReadOnly,
    Session,
    SessionView,
    StorageError,
    Unsupported,
    delete_session,
    finish_deletions,
    list_deleted,
    purge_deleted,
    undelete_session,
)
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.format import FORMAT_VERSION, digest_of
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.session.deleting import bring_back_missing, finish_deletion
from treering.engine.session.listing import session_names
from treering.engine.session.trash import (
    Places,
    check_not_deleted,
    hidden_ids,
    ids_under_way,
    move_journal,
)
from treering.fuzz.faulty_disk import FaultyDisk

VERBS: dict[str, Callable[[Places, Disk], object]] = {
    "delete": lambda places, disk: delete_session(places.journal, disk=disk),
    "undelete": lambda places, disk: undelete_session(places.store, "s1", disk=disk),
    "purge": lambda places, disk: purge_deleted(places.store, "s1", disk=disk),
}


def made(tmp_path: Path) -> Places:
    """A closed session with one artifact."""
    with new(tmp_path, session_id="s1") as session:
        session.append(custom("one"))
        folder = Path(session.artifact_folder)
        places = Places(session.store, "s1")
    folder.mkdir(parents=True)
    (folder / "tool.log").write_text("output")
    return places


def begun(tmp_path: Path, verb: str) -> tuple[Places, bytes]:
    """A session with which something was begun, and no more: the first move fails."""
    places = made(tmp_path)
    before = read_bytes(places.journal)
    if verb != "delete":
        delete_session(places.journal)
    disk = FaultyDisk()
    # What comes next is the first thing that happens behind the tombstone.
    name, path = {
        "delete": ("link", "/journal"),
        "undelete": ("rename", "/session-artifacts/"),
        "purge": ("unlink", "/artifacts"),
    }[verb]
    disk.fail(name, path=path, times=1 << 30)
    with pytest.raises(StorageError, match="goes on"):
        VERBS[verb](places, disk)
    assert list(ids_under_way(LOCAL_DISK, places.store)) == ["s1"]
    return places, before


@pytest.mark.parametrize(
    ("first", "then", "end"),
    [
        ("delete", "delete", "deleted"),
        ("delete", "undelete", "there"),
        ("delete", "purge", "purged"),
        ("undelete", "delete", "deleted"),
        ("undelete", "undelete", "there"),
        ("undelete", "purge", None),
        ("purge", "undelete", None),
        ("purge", "purge", "purged"),
    ],
)
def test_one_verb_is_cut_short_and_another_comes(
    tmp_path: Path, first: str, then: str, end: str | None
) -> None:
    """Deletion and restoration turn round; a purge that was begun is not taken back."""
    places, before = begun(tmp_path, first)
    if end is None:
        with pytest.raises(NotFound):
            VERBS[then](places, LOCAL_DISK)
        end = "there" if first == "undelete" else "purged"
    else:
        VERBS[then](places, LOCAL_DISK)
    assert ids_under_way(LOCAL_DISK, places.store) == {}
    if end == "there":
        assert read_bytes(places.journal) == before
        assert os.path.exists(f"{places.artifacts}/tool.log")
        assert list_deleted(places.store) == []
        return
    (one,) = list_deleted(places.store)
    assert not os.path.exists(places.journal)
    assert (one.purged_ms is None) == (end == "deleted")
    if end == "deleted":
        assert read_bytes(places.trashed_journals[0]) == before
    else:
        assert os.listdir(places.folder) == ["tombstone.json"]


def test_a_purge_that_was_begun_and_a_session_of_that_id(tmp_path: Path) -> None:
    """A journal that was put back by hand is deleted after the old bytes are gone."""
    places, before = begun(tmp_path, "purge")
    write_bytes(places.journal, before)
    delete_session(places.journal)
    (one,) = list_deleted(places.store)
    assert one.purged_ms is None
    assert read_bytes(places.trashed_journals[0]) == before


def test_opening_goes_on_with_a_restoration(tmp_path: Path) -> None:
    """Who opens it to write finds it back; who only looks changes nothing."""
    places, _ = begun(tmp_path, "undelete")
    with pytest.raises(NotFound):
        SessionView.open(places.journal)
    with Session.open(places.journal) as session:
        assert session.counts()["entries"] == 1
    assert list_deleted(places.store) == []


def test_a_restoration_counts_more_than_a_deletion(tmp_path: Path) -> None:
    """Two names of the tombstone can survive a crash; an owner has the session then."""
    places = made(tmp_path)
    os.makedirs(places.store.trash)
    for verb in ("restoring", "deleting"):
        write_bytes(f"{places.store.trash}/.s1.{verb}", b'{"id":"s1"}')
    assert hidden_ids(places.store) == set()
    with Session.open(places.journal) as session:
        session.append(custom("two"))
    assert finish_deletions(places.store).done == ("s1",)
    assert os.listdir(places.store.trash) == []
    assert session_names(places.store) == ["s1"]


def test_what_is_missing_and_was_never_deleted(tmp_path: Path) -> None:
    """Nothing to finish, nothing to purge, nothing to bring back."""
    places = made(tmp_path)
    finish_deletion(places.store, "s1")
    for act in (purge_deleted, undelete_session):
        with pytest.raises(NotFound, match="no deleted session"):
            act(places.store, "s2")
    assert not bring_back_missing(places.store, "s2")
    assert not bring_back_missing(places.store, "s1")
    delete_session(places.journal)
    finish_deletion(places.store, "s1")
    with pytest.raises(NotFound, match="undelete"):
        bring_back_missing(places.store, "s1")
    purge_deleted(places.store, "s1")
    with pytest.raises(NotFound, match="deleted and purged"):
        Session.open(places.journal)


def test_a_deletion_that_cannot_note_that_it_begins(tmp_path: Path) -> None:
    """Nothing is done, also beside a trash folder that was there; what is left is swept later."""
    places = made(tmp_path)
    delete_session(places.journal)
    purge_deleted(places.store, "s1")
    with new(tmp_path, session_id="other") as session:
        other = Places(session.store, "other")
    os.mkdir(other.folder)
    disk = FaultyDisk()
    disk.fail("rename", error=errno.EROFS)
    disk.fail("unlink", error=errno.EROFS, path=".new", times=1 << 30)
    with pytest.raises(ReadOnly):
        delete_session(other.journal, disk=disk)
    assert session_names(other.store) == ["other"]
    assert os.path.isdir(other.folder)
    (left,) = (name for name in os.listdir(other.store.trash) if name.endswith(".new"))
    os.utime(f"{other.store.trash}/{left}", (0, 0))
    delete_session(other.journal)
    assert left not in os.listdir(other.store.trash)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """What somebody put where the journal goes is not overwritten; aside, the deletion goes on."""
    places, before = begun(tmp_path, "delete")
    write_bytes(places.trashed_journals[0], b"mine")
    with pytest.raises(Conflict, match="in the way"):
        delete_session(places.journal)
    assert read_bytes(places.trashed_journals[0]) == b"mine"
    assert read_bytes(places.journal) == before
    os.unlink(places.trashed_journals[0])
    delete_session(places.journal)
    assert read_bytes(places.trashed_journals[0]) == before


def test_no_device_takes_the_journal(tmp_path: Path) -> None:
    """An error of the system, and the journal keeps its name."""
    places = made(tmp_path)
    os.makedirs(places.folder)
    disk = FaultyDisk()
    disk.fail("link", error=errno.EXDEV, times=1 << 30)
    with pytest.raises(OSError, match="cross-device"):
        move_journal(disk, (places.journal,), places.trashed_journals)
    assert os.path.exists(places.journal)


def test_a_session_of_a_newer_release_is_deleted(tmp_path: Path) -> None:
    """Its header says that it is a journal; nothing else of it has to be understood."""
    places = made(tmp_path)
    data = bytearray(read_bytes(places.journal))
    data[8:10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    data[112:128] = digest_of(bytes(data[:112]))
    write_bytes(places.journal, bytes(data))
    with pytest.raises(Unsupported):
        Session.open(places.journal)
    assert delete_session(places.journal).name is None
    undelete_session(places.store, "s1")
    assert read_bytes(places.journal) == bytes(data)


def test_a_trash_that_cannot_be_listed_hides_nothing(tmp_path: Path) -> None:
    """Sessions stay in the list; what looks into the trash says why it cannot."""
    places = made(tmp_path)
    write_bytes(places.store.trash, b"a file")
    assert hidden_ids(places.store) == set()
    assert session_names(places.store) == ["s1"]
    disk = FaultyDisk()
    disk.fail("list_folder", times=1 << 30)
    assert hidden_ids(places.store, disk) == set()
    with pytest.raises(StorageError, match="list the trash"):
        list_deleted(places.store, disk=disk)
    disk.fail("stat", times=1 << 30)
    with pytest.raises(StorageError, match="look into the trash"):
        check_not_deleted(disk, places.store, "s1")
    check_not_deleted(MemoryDisk(), places.store, "s1")  # nothing is deleted there
