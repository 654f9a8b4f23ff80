"""The catalogue file: rows, order, generations, several processes, every kind of bad file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from treering.index import IndexFault, files, schema
from treering.index.catalogue import (
    _ORDER,
    NAME,
    SNAPSHOTS_MAX,
    Catalogue,
    SessionRow,
    open_current,
)


def row(session_id: str, **more: Any) -> SessionRow:
    """A row of an ordinary session."""
    plain = SessionRow(
        id=session_id,
        stamp=b"\x00\x01",
        settled=True,
        status="ok",
        reason=None,
        cwd="/w",
        name=None,
        state=None,
        parent_path=None,
        parent=None,
        depth=0,
        created=5,
        last_message=7,
        messages=1,
        entries=2,
        first_text="hello",
        agent_status='{"summary":"x"}',
        usage=None,
        active=7,
        title="",
        has_text=False,
    )
    return plain._replace(**more)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """An empty one."""
    with open_current(str(tmp_path)) as found:
        yield found


def ids(catalogue: Catalogue) -> list[str]:
    places = catalogue.order()
    rows = catalogue.rows_of(place.number for place in places)
    return [rows[place.number].id for place in places]


def test_rows_come_back_as_they_were(catalogue: Catalogue, tmp_path: Path) -> None:
    """Every value, also texts that are no UTF-8; across closing and opening."""
    strange = row("od\udcffd", cwd="/\ud800", reason="\x00", stamp=None, settled=False, depth=2**53)
    empty = row("none", **dict.fromkeys(("cwd", "depth", "created", "active")))
    catalogue.write([(strange, "words"), (empty, None), (row("a"), None)])
    catalogue.close()
    with open_current(str(tmp_path)) as again:
        assert again.rows() == {"od\udcffd": strange, "none": empty, "a": row("a")}
        assert dict(again.texts()) == {"od\udcffd": "words"}
        assert dict(again.texts(["a", "od\udcffd"])) == {"od\udcffd": "words"}
        assert set(again.cwds()) == {"/\ud800", "/w"}
        numbers = again.numbers(["od\udcffd", "a", "nobody"])
        assert set(numbers) == {"od\udcffd", "a"}
        assert again.numbers_of_cwds(["/w"]) == {numbers["a"]}
        assert again.rows_of([*numbers.values(), 99])[numbers["a"]] == row("a")


def test_the_newest_row_wins_and_keeps_its_number(catalogue: Catalogue) -> None:
    """A row is replaced in its place, its text too; a number of a removed one is not used again."""
    catalogue.write([(row("a", has_text=True), "old words")])
    before, sequence = catalogue.numbers(["a"]), catalogue.sequence()
    catalogue.write([(row("a", messages=3), None)])
    assert catalogue.numbers(["a"]) == before
    assert catalogue.sequence() > sequence
    assert catalogue.rows() == {"a": row("a", messages=3)}
    assert list(catalogue.texts()) == []
    catalogue.write([], gone=["a", "nobody"])
    assert catalogue.rows() == {}
    catalogue.write([(row("b"), None)])
    assert catalogue.numbers(["b"])["b"] > before["a"]


def test_order(catalogue: Catalogue) -> None:
    """Empty ones last, newest activity, newest creation, title, id; with the parents' numbers."""
    rows = [
        row("empty", messages=0, active=99),
        row("never", active=None),
        row("b", title="t"),
        row("a", title="t"),
        row("s", title="s"),
        row("later", created=6),
        row("child", active=9, parent="a"),
        row("orphan", active=10, parent="nobody"),
    ]
    catalogue.write((one, None) for one in rows)
    assert ids(catalogue) == ["orphan", "child", "later", "s", "a", "b", "never", "empty"]
    parents = {place.number: place.parent for place in catalogue.order()}
    numbers = catalogue.numbers(["child", "a", "orphan"])
    assert parents[numbers["child"]] == numbers["a"]
    assert parents[numbers["orphan"]] is None


def test_the_order_needs_no_sorting(catalogue: Catalogue) -> None:
    """An index has it: a page of many sessions must not sort them first."""
    plan = catalogue._db.execute(f"EXPLAIN QUERY PLAN {_ORDER}").fetchall()
    steps = [step[3] for step in plan]
    assert steps[0] == "SCAN a USING COVERING INDEX session_order"
    assert not [step for step in steps if "TEMP B-TREE" in step]


def test_snapshots(catalogue: Catalogue) -> None:
    """The newest orders are kept, and no more."""
    numbers = [catalogue.keep_snapshot(b"i", bytes([n])) for n in range(SNAPSHOTS_MAX + 2)]
    kept = [catalogue.snapshot_of(number) for number in numbers]
    assert kept[:2] == [None, None]
    assert kept[2:] == [(b"i", bytes([n])) for n in range(2, SNAPSHOTS_MAX + 2)]


def test_a_write_that_fails_changes_nothing(catalogue: Catalogue) -> None:
    """All of it or nothing."""
    catalogue.write([(row("a"), None)])

    def rows() -> Iterator[tuple[SessionRow, None]]:
        yield row("b"), None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.write(rows(), gone=["a"])
    with pytest.raises(IndexFault):
        catalogue.write([(row("c", messages="many"), None)])
    assert list(catalogue.rows()) == ["a"]


def test_words_that_are_removed_are_gone(tmp_path: Path) -> None:
    """No file holds them any more."""
    with open_current(str(tmp_path)) as catalogue:
        catalogue.write([(row(f"s{n}", first_text="x" * 50), "y" * 900) for n in range(50)])
        catalogue.write([(row("secret", first_text="swordfish"), "swordfish " * 2_000)])
    assert b"swordfish" in everything(tmp_path)
    with open_current(str(tmp_path)) as catalogue:
        catalogue.write([], gone=["secret"])
    assert b"swordfish" not in everything(tmp_path)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


# Files


def test_it_is_nobodys_index(tmp_path: Path) -> None:
    """A session of the same name has its own files: the name is no session id."""
    open_current(str(tmp_path)).close()
    assert os.listdir(tmp_path) == [f"{NAME}.1.sqlite3"]
    assert files.current(str(tmp_path), "catalogue") is None
    assert os.stat(tmp_path / f"{NAME}.1.sqlite3").st_mode & 0o777 == 0o600


def _other_version(path: Path) -> None:
    db = apsw.Connection(str(path), vfs="cksmvfs" if schema.checksum_vfs() else None)
    db.execute("PRAGMA user_version=7")
    db.close()


def _other_kind(path: Path) -> None:
    path.unlink()
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE x(y)")
    db.close()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _copied(path: Path) -> None:
    data = path.read_bytes()
    path.rename(f"{path}.kept")  # its inode must not be given again
    path.write_bytes(data)


BAD = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(os.urandom(20_000)),
    "truncated": lambda path: os.truncate(path, 5_000),
    "directory": _directory,
    "fifo": _fifo,
    "version": _other_version,
    "kind": _other_kind,
    "copied": _copied,
}


@pytest.mark.parametrize("make_bad", BAD.values(), ids=BAD)
def test_a_bad_file_is_set_aside_once(tmp_path: Path, make_bad: Any) -> None:
    """Another one takes its place, with the next number; the bad one is kept beside it."""
    with open_current(str(tmp_path)) as catalogue:
        catalogue.write([(row("a"), None)])
    make_bad(tmp_path / f"{NAME}.1.sqlite3")
    for _ in range(2):
        with open_current(str(tmp_path)) as catalogue:
            assert catalogue.rows() == {}
        assert (tmp_path / f"{NAME}.1.sqlite3.bad-1").exists()
        assert files.current(str(tmp_path), NAME) == str(tmp_path / f"{NAME}.2.sqlite3")


def test_a_lost_file_is_made_again(tmp_path: Path) -> None:
    open_current(str(tmp_path)).close()
    (tmp_path / f"{NAME}.1.sqlite3").unlink()
    with open_current(str(tmp_path)) as catalogue:
        assert catalogue.rows() == {}


def test_no_place_for_it(tmp_path: Path) -> None:
    """A fault, never another error."""
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/below", "none/below"):
        with pytest.raises(IndexFault):
            open_current(str(tmp_path / place))


def test_in_memory() -> None:
    with Catalogue.memory() as catalogue:
        catalogue.write([(row("a"), "text")])
        assert ids(catalogue) == ["a"]


def test_leftovers_of_the_dead_are_swept(tmp_path: Path) -> None:
    """Of those that live they are left alone."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getpid(), os.getppid(), 10**30):
        (tmp_path / f"{NAME}.build-{pid}.tmp").write_bytes(b"x")
    open_current(str(tmp_path)).close()
    left = {f"{NAME}.build-{os.getppid()}.tmp", f"{NAME}.1.sqlite3"}
    assert set(os.listdir(tmp_path)) == left


def test_a_wal_of_an_earlier_time(tmp_path: Path) -> None:
    """It takes nothing back: the file is set aside with it."""
    folder, kept = tmp_path / "f", tmp_path / "kept"
    with open_current(str(folder.parent / "f")) as catalogue:
        catalogue.write([(row("a", messages=1), None)])
        shutil.copytree(folder, kept)
        catalogue.write([(row("a", messages=2), None)])
    shutil.copy(kept / f"{NAME}.1.sqlite3-wal", folder)
    with open_current(str(folder)) as catalogue:
        assert catalogue.rows() in ({}, {"a": row("a", messages=2)})


WORKER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_catalogue import row
from treering.index.catalogue import open_current
for count in range(20):
    with open_current(sys.argv[1]) as catalogue:
        catalogue.write([(row(f"{sys.argv[3]}-{count}"), "t"), (row("shared"), None)])
"""


def test_several_processes(tmp_path: Path) -> None:
    """They make it, open it and write at once: no row is lost, and one file is current."""
    here = os.path.dirname(__file__)
    work = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), here, str(n)])
        for n in range(3)
    ]
    assert [process.wait(60) for process in work] == [0, 0, 0]
    with open_current(str(tmp_path)) as catalogue:
        found = catalogue.rows()
    assert {f"{n}-{count}" for n in range(3) for count in range(20)} | {"shared"} == set(found)
    assert not [name for name in os.listdir(tmp_path) if "bad" in name or "build" in name]


def test_whoever_is_slow_to_make_one_takes_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process made it, and filled it, between the look and the making."""
    folder = str(tmp_path / "f")
    real = files.publish_build

    def late(built: str, *arguments: str, **more: str) -> str:
        monkeypatch.setattr(files, "publish_build", real)
        script = f"import sys; sys.argv[1:] = [{folder!r}, {os.path.dirname(__file__)!r}, 'first']"
        subprocess.run([sys.executable, "-c", script + WORKER], check=True)
        return real(built, *arguments, **more)

    monkeypatch.setattr(files, "publish_build", late)
    with open_current(folder) as catalogue:
        assert "first-19" in catalogue.rows()
    assert [name for name in os.listdir(folder) if name.endswith(".sqlite3")] == [
        f"{NAME}.1.sqlite3"
    ]
