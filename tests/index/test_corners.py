"""Corners of an index: damaged rows at every lookup, files that cannot be moved or removed, builds
that fail, and what a process must not do with a connection of its parent."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from index_helpers import linear, load, position_after, row

from treering.index import (
    IndexBusy,
    IndexFault,
    SessionIndex,
    Usage,
    ancestry,
    files,
    handle,
    schema,
)
from treering.index.peek import peek


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A closed index of 300 rows, in a folder of its own."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "s.1.sqlite3"
    with SessionIndex.open(str(path), create=True) as index:
        index.bind(b"j" * 16, 1, 1)
        load(index, linear(300), [100])
    return path


def unchecked(path: Path, *statements: str) -> None:
    """Change rows as damage would: nothing refuses a value that does not belong there."""
    db = schema.connect(str(path), readonly=False)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    for statement in statements:
        db.execute(statement)
    db.close()


def of_any_type(path: Path, table: str, *statements: str) -> None:
    """Damage that puts values of other types than a column's (the page checksums stay right).

    An index that is open does not notice: the schema is looked at when it is opened.
    """
    db = schema.connect(str(path), readonly=False)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    text = db.execute("SELECT sql FROM sqlite_schema WHERE name=?", (table,)).get
    loose = re.sub(r"\) STRICT", ")", re.sub(r" STRICT, WITHOUT", " WITHOUT", text))
    loose = re.sub(r" (INTEGER(?! PRIMARY)|TEXT|BLOB|REAL)( NOT NULL)?", "", loose)
    version = db.pragma("schema_version")
    db.execute("PRAGMA writable_schema=ON")
    db.execute("UPDATE sqlite_schema SET sql=? WHERE name=?", (loose, table))
    db.execute(f"PRAGMA schema_version={version + 1}")
    db.close()
    unchecked(path, *statements)


# Damaged rows


@pytest.mark.parametrize(
    ("statement", "ask"),
    [
        ("DELETE FROM state", lambda index: index.identity()),
        ("DELETE FROM state", lambda index: index.counts()),
        ("DELETE FROM entry WHERE seq=150", lambda index: index.path(300)),
        ("UPDATE entry SET depth=70 WHERE seq=150", lambda index: index.ancestor_at_depth(150, 3)),
        ("DELETE FROM name", lambda index: index.entries(limit=5)),
        ("UPDATE entry SET parent=NULL WHERE seq=200", lambda index: index.path(300)),
    ],
)
def test_rows_that_are_gone_are_a_fault(
    good: Path, statement: str, ask: Callable[[SessionIndex], object]
) -> None:
    """Wherever an answer needs them; never a short answer."""
    unchecked(good, statement)
    with pytest.raises(IndexFault), SessionIndex.open(str(good)) as index:
        ask(index)


def test_rows_that_are_gone_are_a_fault_for_loading(good: Path) -> None:
    unchecked(good, "DELETE FROM entry WHERE seq=290")
    with SessionIndex.open(str(good)) as index, pytest.raises(IndexFault):
        index.apply(linear(10, 301), position_after(linear(10, 301)[-1]))
        assert index.path(310)


def test_no_more_than_the_limit_of_differences(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.1.sqlite3"
    with SessionIndex.open(str(other), create=True) as index:
        index.bind(b"k" * 16, 1, 1)
        load(index, linear(300), [100])
    with SessionIndex.open(str(good)) as one, SessionIndex.open(str(other)) as two:
        (line,) = one.differences(two)
        assert line.startswith("state ")
        assert "journal_id" in line or "6a6a6a" in line or "jjjj" in line
    unchecked(other, "UPDATE entry SET depth = depth + 1")
    with SessionIndex.open(str(good)) as one, SessionIndex.open(str(other)) as two:
        assert len(one.differences(two, limit=7)) == 7


def test_the_state_row_is_looked_at_before_rows_are_added(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        unchecked(good, "DELETE FROM state")
        with pytest.raises(IndexFault, match="state row is gone"):
            index.apply(linear(1, 301), position_after(row(301, "x")))


def test_a_state_row_of_wrong_types(good: Path) -> None:
    """Types are checked when rows are stored; damage asks nobody."""
    with SessionIndex.open(str(good)) as index:
        of_any_type(good, "state", "UPDATE state SET sequence='many', watermark=5, newest='x'")
        for ask in (index.position, index.watermark):
            with pytest.raises(IndexFault, match="wrong type"):
                ask()
    with pytest.raises(IndexFault, match="its state row is damaged"):
        peek(str(good))


def test_entries_of_wrong_types(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        of_any_type(
            good,
            "entry",
            "UPDATE entry SET id=x'00ff' WHERE seq=5",
            "UPDATE entry SET mark='x' WHERE seq=9",
            "UPDATE entry SET depth='deep' WHERE seq=20",
        )
        for ask in (
            lambda: index.by_sequence(5),
            lambda: index.by_sequence(9),
            lambda: index.path(20),
        ):
            with pytest.raises(IndexFault):
                ask()
        assert index.by_sequence(6) is not None


def test_kinds_of_wrong_types(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        of_any_type(good, "name", "UPDATE name SET kind=5")
        with pytest.raises(IndexFault, match="has the name"):
            index.by_sequence(5)


def test_keys_that_cannot_be_compared(good: Path) -> None:
    """Finding differences is the proof of an index: damage in a key ends it typed."""
    with SessionIndex.memory() as rebuilt, SessionIndex.open(str(good)) as index:
        load(rebuilt, linear(300), [100])
        of_any_type(good, "label_wait", "INSERT INTO label_wait VALUES(5, 'L', 1)")
        rebuilt.apply([row(301, "l", label=("waits", "L"))], position_after(row(301, "l")))
        with pytest.raises(IndexFault, match="wrong type"):
            index.differences(rebuilt)


# Ids and totals


def test_ids_that_nobody_can_have(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        for entry_id in ("", "nul\0", "\ud800", "y" * 513):
            assert index.by_id(entry_id) is None
            assert not index.has_id(entry_id)


def test_labels_of_ids_that_nobody_can_have_wait_for_nobody(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        index.apply([row(301, "l", label=("nul\0", "L"))], position_after(row(301, "l")))
        assert index.labels(limit=10) == []


def test_costs_that_no_float_can_hold(tmp_path: Path) -> None:
    """They are left out of the sum, and take no other figure along."""
    with SessionIndex.open(str(tmp_path / "s.1.sqlite3"), create=True) as index:
        costs: list[Any] = [0.5, 10**400, float("inf"), float("nan"), 0.25]
        rows = [
            row(n, f"e{n}", usage=("assistant", Usage(1, 1, 1, 1, 1, cost)), role="assistant")
            for n, cost in enumerate(costs, 1)
        ]
        load(index, list(rows))
        assert index.usage()["assistant"] == Usage(5, 5, 5, 5, 5, 0.75)


def test_more_kinds_than_are_remembered(tmp_path: Path) -> None:
    """Kinds come from files: there is no end to them, and each keeps its name and its count."""
    with SessionIndex.open(str(tmp_path / "s.1.sqlite3"), create=True) as index:
        load(index, [row(n, f"e{n}", kind=f"kind {n}", role=None) for n in range(1, 4301)], [1000])
        seen = [entry.kind for entry in index.entries(limit=5000)]
        assert seen == [f"kind {n}" for n in range(1, 4301)]
        again = index.by_sequence(1)
        assert again is not None
        assert again.kind == "kind 1"


def test_where_entries_jump() -> None:
    """Never past the root, never in place, and as the rule of the parents says."""
    assert ancestry.jump_depth(0) == 0
    for depth in range(1, 3000):
        parent = depth - 1
        wanted = (
            ancestry.jump_depth(ancestry.jump_depth(parent)) if ancestry.skips(depth) else parent
        )
        assert ancestry.jump_depth(depth) == wanted
    assert [ancestry.skips(2**n - 1) for n in range(2, 40)] == [True] * 38


# Builds


def test_a_build_that_is_none(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        with pytest.raises(IndexFault, match="not a build"):
            index.finish_build()
        index.self_check()
        assert index.position() is not None


def test_a_build_that_fails_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused from then on, and never published."""
    built = files.new_build_path(str(tmp_path), "s")
    with SessionIndex.build_into(built) as index:
        load(index, linear(10))
        index.self_check()
        monkeypatch.setattr(schema, "SECONDARY_INDEXES", ("CREATE INDEX nonsense ON nowhere(x)",))
        with pytest.raises(IndexFault, match="nowhere"):
            index.finish_build()
        with pytest.raises(IndexFault, match="its build failed"):
            index.entries(limit=1)
    assert files.current(str(tmp_path), "s") is None
    assert files.new_build_path(str(tmp_path), "s") == built


def test_a_build_in_no_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "s.build-0.tmp")
    with pytest.raises(IndexFault) as caught:
        SessionIndex.build_into(path)
    assert caught.value.missing
    assert not handle.is_open(path)


def test_a_build_over_something(tmp_path: Path) -> None:
    path = tmp_path / "s.build-0.tmp"
    path.write_bytes(b"somebody's")
    with pytest.raises(IndexFault):
        SessionIndex.build_into(str(path))
    assert path.read_bytes() == b"somebody's"
    assert not handle.is_open(str(path))


@pytest.mark.parametrize("building", [False, True])
def test_an_index_that_cannot_be_begun_leaves_no_half(
    tmp_path: Path, building: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise apsw.FullError("no space left")

    monkeypatch.setattr(schema, "create_schema", full)
    path = tmp_path / "s.1.sqlite3"
    with pytest.raises(IndexFault) as caught:
        if building:
            SessionIndex.build_into(str(path))
        else:
            SessionIndex.open(str(path), create=True)
    assert caught.value.full
    assert list(tmp_path.iterdir()) == []
    assert not handle.is_open(str(path))


def built_in(folder: Path) -> str:
    path = files.new_build_path(str(folder), "s")
    with SessionIndex.build_into(path) as index:
        load(index, linear(10))
        index.finish_build()
    return path


def test_a_build_with_something_beside_it_is_not_published(tmp_path: Path) -> None:
    built = built_in(tmp_path)
    Path(f"{built}-wal").write_bytes(b"x")
    with pytest.raises(IndexFault, match="not closed cleanly"):
        files.publish_build(built, str(tmp_path), "s")
    assert files.current(str(tmp_path), "s") is None


def test_a_number_that_somebody_else_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two owners publish at once: the later one takes the next number, and covers nothing."""
    built = built_in(tmp_path)
    real = os.link

    def raced(source: str, target: str, **more: Any) -> None:
        if not os.path.exists(tmp_path / "s.1.sqlite3"):
            (tmp_path / "s.1.sqlite3").write_bytes(b"theirs")
        real(source, target, **more)

    monkeypatch.setattr(os, "link", raced)
    assert files.publish_build(built, str(tmp_path), "s") == str(tmp_path / "s.2.sqlite3")
    assert (tmp_path / "s.1.sqlite3").read_bytes() == b"theirs"


def test_a_build_that_cannot_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = built_in(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(IndexFault) as caught:
        files.publish_build(built, str(tmp_path), "s")
    assert caught.value.full
    assert files.current(str(tmp_path), "s") is None


# Files


def refused(*_: object, **__: object) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_setting_aside_that_the_system_refuses(
    good: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, refused)
    with pytest.raises(IndexFault, match="Input/output error"):
        files.set_aside(str(good))


def test_a_folder_that_cannot_be_listed(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", refused)
    folder = str(good.parent)
    for ask in (
        lambda: files.current(folder, "s"),
        lambda: files.remove_all(folder, "s"),
        lambda: files.new_build_path(folder, "s"),
        lambda: files.set_aside(str(good)),
    ):
        with pytest.raises(IndexFault, match="Input/output error"):
            ask()


def test_what_keeps_an_index_from_being_removed(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(good.parent)
    with SessionIndex.open(str(good)), pytest.raises(IndexFault, match="still open"):
        files.remove_all(folder, "s")
    with pytest.raises(IndexFault, match="not the path of a generation"):
        files.remove_older(folder, "s", keep=str(good.parent / "s.sqlite3"))
    with SessionIndex.open(str(good)):
        files.remove_older(folder, "s", keep=str(good.parent / "s.2.sqlite3"))
    assert good.exists()
    full = good.parent / "s.2.sqlite3"
    full.mkdir()
    (full / "kept").write_bytes(b"")
    with pytest.raises(IndexFault, match="remove it by hand"):
        files.remove_all(folder, "s")
    monkeypatch.setattr(os, "rmdir", refused)
    with pytest.raises(IndexFault, match="Input/output error"):
        files.remove_all(folder, "s")
    assert (full / "kept").exists()
    monkeypatch.undo()
    shutil.rmtree(full)
    files.remove_all(folder, "s")
    assert os.listdir(folder) == []


def test_a_file_that_goes_away_while_it_is_removed(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else removes it at the same time: both are content."""
    real = os.unlink

    def twice(path: str) -> None:
        real(path)
        real(path)

    monkeypatch.setattr(os, "unlink", twice)
    files.remove_all(str(good.parent), "s")
    assert os.listdir(good.parent) == []


# Connections


def test_a_connection_of_another_process_is_refused(good: Path) -> None:
    """As a forked child finds it; the parent goes on."""
    index = SessionIndex.open(str(good))
    index._pid += 1
    for ask in (index.position, index.close, lambda: index.entries(limit=1)):
        with pytest.raises(IndexFault, match="before a fork"):
            ask()
    index._pid -= 1
    assert index.position() is not None
    index.close()
    index.close()
    with pytest.raises(IndexFault, match="closed"):
        index.position()


def test_what_a_child_keeps(good: Path) -> None:
    """After a fork nothing counts as open, and no connection is ever closed by the garbage."""
    with SessionIndex.open(str(good)) as index:
        kept = len(handle._kept)
        open_paths = dict(handle._open_paths)
        assert handle.is_open(str(good))
        handle._keep_in_child()
        try:
            assert not handle.is_open(str(good))
            assert index._db in handle._kept[kept:]
        finally:  # this process is no child: undo it
            import ctypes

            for db in handle._kept[kept:]:
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(db))
            del handle._kept[kept:]
            handle._open_paths.update(open_paths)
        assert index.position() is not None
    assert not handle.is_open(str(good))


def test_a_child_without_an_index_has_nothing_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    monkeypatch.setattr(handle, "_handles", weakref.WeakSet())
    kept = len(handle._kept)
    handle._keep_in_child()
    assert len(handle._kept) == kept


def test_a_connection_that_is_forgotten_is_closed(good: Path) -> None:
    import gc

    index = SessionIndex.open(str(good))
    assert handle.is_open(str(good))
    del index
    gc.collect()
    assert not handle.is_open(str(good))


class Unclosable:
    """A connection whose close fails, as it does while a statement runs in another thread."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db

    def close(self) -> None:
        self.db.close()
        raise apsw.BusyError("unable to close")


def test_an_error_of_closing_is_typed(good: Path) -> None:
    index = SessionIndex.open(str(good))
    index._db = Unclosable(index._db)  # type: ignore[assignment]
    with pytest.raises(IndexBusy, match="unable to close"):
        index.close()
    assert not handle.is_open(str(good))


def test_an_index_opened_for_reading_takes_no_row(good: Path) -> None:
    for readonly in (False, True):
        with SessionIndex.open(str(good), readonly=readonly) as index:
            assert index.readonly is readonly
    with SessionIndex.open(str(good), readonly=True) as index, pytest.raises(IndexFault):
        index.apply(linear(1, 301), position_after(row(301, "x")))


def test_one_snapshot_within_another_is_the_same(good: Path) -> None:
    with SessionIndex.open(str(good)) as index:
        with index.snapshot():
            before = index.counts()
            with SessionIndex.open(str(good)) as other:
                other.apply(linear(1, 301), position_after(row(301, "x")))
            with index.snapshot():
                assert index.counts() == before
            assert index.counts() == before
        assert index.counts()["entries"] == before["entries"] + 1


def test_a_snapshot_that_sqlite_has_ended(good: Path) -> None:
    """An error can end the transaction: leaving it is no second error."""
    with SessionIndex.open(str(good)) as index:
        with index.snapshot():
            index._db.execute("ROLLBACK")
        assert index.position() is not None


def test_a_file_that_is_read_only_for_sqlite(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite opens it all the same, for reading: an owner must not find out at its first row."""
    real = schema.connect
    monkeypatch.setattr(schema, "connect", lambda path, readonly: real(path, readonly=True))
    with pytest.raises(IndexFault, match="read-only"):
        SessionIndex.open(str(good))
    assert not handle.is_open(str(good))


def test_a_place_that_cannot_do_wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        """A connection of SQLite that keeps no log on disk."""

        def execute(self, statement: str) -> None:
            assert statement == "PRAGMA synchronous=NORMAL"

        def pragma(self, name: str, value: str) -> str:
            return "memory"

    with pytest.raises(apsw.SQLError, match="cannot do WAL"):
        schema.write_settings(Memory())  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["module", "extension", "loading"])
def test_an_apsw_without_checksums(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then pages have none; the default of the process stays what it was."""
    extra = pytest.importorskip("apsw.sqlite_extra")
    load_vfs = schema._load_checksum_vfs.__wrapped__
    before = apsw.vfs_names()
    if missing == "module":
        monkeypatch.setitem(__import__("sys").modules, "apsw.sqlite_extra", None)
        monkeypatch.delattr(apsw, "sqlite_extra", raising=False)
    elif missing == "extension":
        monkeypatch.setattr(extra, "has", lambda name: None)
    else:
        monkeypatch.setattr(apsw, "vfs_names", lambda: ["unix"])
        monkeypatch.setattr(extra, "has", lambda name: "extension")
        monkeypatch.setattr(extra, "load", refused)
    assert load_vfs() is False
    monkeypatch.undo()
    assert apsw.vfs_names() == before
