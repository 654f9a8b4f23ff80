"""Generations, publishing, setting aside."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from index_helpers import linear, load

from treering.index import IndexFault, SessionIndex, files


def build(folder: Path, session_id: str = "s", count: int = 5) -> str:
    path = files.new_build_path(str(folder), session_id)
    with SessionIndex.build_into(path) as index:
        load(index, linear(count))
        index.finish_build()
    return files.publish_build(path, str(folder), session_id)


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_no_folder_no_index(tmp_path: Path) -> None:
    """Asking for the current index needs no folder; making one says what is in the way."""
    assert files.current(str(tmp_path / "none"), "s") is None
    (tmp_path / "file").touch()
    assert files.current(str(tmp_path / "file"), "s") is None
    with pytest.raises(IndexFault):
        SessionIndex.open(files.next_path(str(tmp_path / "file"), "s"), create=True)
    with pytest.raises(IndexFault):
        files.new_build_path(str(tmp_path / "file"), "s")


def test_a_published_build_is_current_and_whole(tmp_path: Path) -> None:
    """A build has no generation name before it is published, and is complete then."""
    path = files.new_build_path(str(tmp_path), "s")
    with SessionIndex.build_into(path) as index:
        load(index, linear(5))
        assert files.current(str(tmp_path), "s") is None
        with pytest.raises(IndexFault, match="still open"):
            files.publish_build(path, str(tmp_path), "s")
        index.finish_build()
    published = files.publish_build(path, str(tmp_path), "s")
    assert names(tmp_path) == {"s.1.sqlite3"}
    assert files.current(str(tmp_path), "s") == published
    with SessionIndex.open(published) as index:
        assert index.counts()["entries"] == 5


def test_generations_count_up_and_never_overwrite(tmp_path: Path) -> None:
    """The next generation has the next number; the numbers are compared as numbers."""
    for _ in range(11):
        last = build(tmp_path)
    assert last.endswith("s.11.sqlite3")
    assert files.current(str(tmp_path), "s") == last
    files.remove_older(str(tmp_path), "s", keep=last)
    assert names(tmp_path) == {"s.11.sqlite3"}


def test_a_huge_generation_is_followed_by_a_larger_one(tmp_path: Path) -> None:
    """Whatever number somebody puts there, the next build is current."""
    (tmp_path / f"s.{'9' * 30}.sqlite3").touch()
    assert build(tmp_path) == files.current(str(tmp_path), "s")


def test_sessions_whose_ids_look_alike_are_not_mixed(tmp_path: Path) -> None:
    """An id that is the prefix of another, or looks like a generation, is a session of its own."""
    build(tmp_path, "a")
    build(tmp_path, "a.7.sqlite3")
    build(tmp_path, "ab")
    files.remove_all(str(tmp_path), "a")
    assert names(tmp_path) == {"a.7.sqlite3.1.sqlite3", "ab.1.sqlite3"}
    assert files.current(str(tmp_path), "a") is None


def test_a_number_with_a_stale_wal_is_not_used_again(tmp_path: Path) -> None:
    """What SQLite would replay over a new file must not lie beside it."""
    (tmp_path / "s.4.sqlite3-wal").write_bytes(b"stale")
    assert build(tmp_path).endswith("s.5.sqlite3")
    with pytest.raises(IndexFault, match="stale -wal"):
        SessionIndex.open(str(tmp_path / "s.4.sqlite3"), create=True)


def test_set_aside_keeps_the_last_bad_set(tmp_path: Path) -> None:
    """Database, -wal and -shm move together; an older bad set goes."""
    for generation in ("1", "2"):
        for tail in ("", "-wal", "-shm"):
            (tmp_path / f"s.{generation}.sqlite3{tail}").write_text(generation + tail)
    files.set_aside(str(tmp_path / "s.1.sqlite3"))
    bad = files.set_aside(str(tmp_path / "s.2.sqlite3"))
    assert bad == str(tmp_path / "s.2.sqlite3.bad-2")
    assert names(tmp_path) == {f"s.2.sqlite3.bad-2{tail}" for tail in ("", "-wal", "-shm")}
    assert Path(f"{bad}-wal").read_text() == "2-wal"
    assert files.set_aside(str(tmp_path / "s.2.sqlite3")) is None
    assert files.next_path(str(tmp_path), "s").endswith("s.3.sqlite3")
    files.remove_all(str(tmp_path), "s")
    assert names(tmp_path) == set()


def test_set_aside_refuses_while_we_have_it_open(tmp_path: Path) -> None:
    """A file is not moved away below one of our own connections, however the path is written."""
    path = build(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with (
        SessionIndex.open(str(link / "s.1.sqlite3")),
        pytest.raises(IndexFault, match="still open"),
    ):
        files.set_aside(path)
    assert files.set_aside(path) is not None


@pytest.mark.parametrize("kind", ["directory", "full directory", "fifo", "symlink", "socketless"])
def test_whatever_has_the_name_is_refused_and_set_aside(tmp_path: Path, kind: str) -> None:
    """A directory, a FIFO or a link at the path is a fault at open (no waiting) and moves away."""
    path = tmp_path / "s.1.sqlite3"
    if kind.endswith("directory"):
        path.mkdir()
        if kind.startswith("full"):
            (path / "keep").write_text("me")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "symlink":
        path.symlink_to(build(tmp_path, "other"))
    else:
        path.symlink_to("dangling")
    assert files.current(str(tmp_path), "s") == str(path)
    with pytest.raises(IndexFault):
        SessionIndex.open(str(path), create=True)
    bad = files.set_aside(str(path))
    assert bad is not None
    assert os.path.lexists(bad)
    assert build(tmp_path).endswith("s.2.sqlite3")
    files.set_aside(str(tmp_path / "s.2.sqlite3"))
    kept = os.path.lexists(bad)
    assert kept == (kind == "full directory")  # somebody's files are not ours to delete


def test_left_over_builds_go(tmp_path: Path) -> None:
    """What a killed build left is removed by the next one, unless it is open here."""
    first = files.new_build_path(str(tmp_path), "s")
    with SessionIndex.build_into(first):
        second = files.new_build_path(str(tmp_path), "s")
        assert second != first
        assert os.path.exists(first)
    assert files.new_build_path(str(tmp_path), "s") == first
    assert names(tmp_path) == set()


def test_an_unfinished_build_is_refused(tmp_path: Path) -> None:
    """A build that got a generation name without being finished is a fault at open."""
    path = files.new_build_path(str(tmp_path), "s")
    with SessionIndex.build_into(path) as index:
        load(index, linear(5))
    with pytest.raises(IndexFault):
        SessionIndex.open(files.publish_build(path, str(tmp_path), "s"))


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Files are 0600 and folders 0700 under umask 000, sidecars included."""
    before = os.umask(0)
    try:
        folder = tmp_path / "index"
        files.ensure_folder(str(folder))
        build(folder)
        with SessionIndex.open(files.next_path(str(folder), "s"), create=True) as index:
            load(index, linear(5))
            found = {n: stat.S_IMODE(os.stat(folder / n).st_mode) for n in os.listdir(folder)}
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert set(found) == {"s.1.sqlite3"} | {f"s.2.sqlite3{t}" for t in ("", "-wal", "-shm")}
    assert set(found.values()) == {0o600}


def test_the_mode_does_not_depend_on_a_strict_umask_either(tmp_path: Path) -> None:
    """Under umask 777 the file can still be used."""
    before = os.umask(0o777)
    try:
        with SessionIndex.open(str(tmp_path / "s.1.sqlite3"), create=True) as index:
            load(index, linear(5))
    finally:
        os.umask(before)
