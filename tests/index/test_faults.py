"""Bad files, damaged bytes, forks, old libraries: always a typed fault, never a wrong answer."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from index_helpers import eight, linear, load, position_after, random_rows, row

from treering.fuzz.adversary.attacks import ATTACKS
from treering.fuzz.adversary.scene import Target
from treering.index import IndexBusy, IndexFault, SessionIndex, files, schema
from treering.index.peek import peek


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A closed index of 300 rows, half of them a checkpoint ago."""
    path = tmp_path / "s.1.sqlite3"
    with SessionIndex.open(str(path), create=True) as index:
        load(index, linear(300), [100])
    return path


BAD = (
    "missing",
    "empty",
    "half",
    "header-only",
    "garbage",
    "text",
    "other-tables",
    "newer-version",
    "other-index",
    "no-state",
    "last-rows-lost",
)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_a_fault(good: Path, tmp_path: Path, kind: str, readonly: bool) -> None:
    """Every kind of bad file is an IndexFault with its path, at open or at the first reading."""
    ATTACKS[kind].do(Target(str(good), str(tmp_path)))
    with (
        pytest.raises(IndexFault) as caught,
        SessionIndex.open(str(good), readonly=readonly) as index,
    ):
        index.entries(limit=1000)
    assert caught.value.path == str(good)
    assert caught.value.missing == (kind == "missing")
    assert not caught.value.full
    try:
        peek(str(good))
    except IndexFault as fault:
        assert fault.path == str(good)
    assert (files.set_aside(str(good)) is None) == (kind == "missing")


def page_of(path: Path, name: str) -> int:
    """Where the root page of a table or index begins."""
    db = apsw.Connection(str(path), vfs="cksmvfs" if schema.checksum_vfs() else None)
    page = db.execute("SELECT rootpage FROM sqlite_schema WHERE name=?", (name,)).get
    db.close()
    assert isinstance(page, int)
    return (page - 1) * 4096


def exchange(path: Path, first: str, second: str) -> None:
    """Two pages change places: page checksums do not cover the number of the page."""
    data = bytearray(path.read_bytes())
    one, two = page_of(path, first), page_of(path, second)
    data[one : one + 4096], data[two : two + 4096] = (
        data[two : two + 4096],
        data[one : one + 4096],
    )
    path.write_bytes(data)


def test_a_page_of_another_table_is_a_fault_of_a_peek(good: Path) -> None:
    """Several state rows, from a misplaced page, are a fault and nothing else."""
    exchange(good, "state", "name")
    with pytest.raises(IndexFault, match="several state rows"):
        peek(str(good))
    with pytest.raises(IndexFault):
        SessionIndex.open(str(good))


def test_a_stale_page_of_an_index_is_a_difference(good: Path) -> None:
    """The tables equal a rebuild, but a page of an index is that of an earlier time."""
    with SessionIndex.memory() as rebuilt:
        load(rebuilt, linear(300), [100])
        load(rebuilt, [row(301, "new", kind="compaction")])
        kinds = page_of(good, "entry_kind")
        stale = good.read_bytes()[kinds : kinds + 4096]
        with SessionIndex.open(str(good)) as index:
            load(index, [row(301, "new", kind="compaction")])
            assert index.differences(rebuilt) == []
        data = bytearray(good.read_bytes())
        assert data[kinds : kinds + 4096] != stale
        data[kinds : kinds + 4096] = stale
        good.write_bytes(data)
        with SessionIndex.open(str(good)) as index:
            assert index.by_kind("compaction", limit=9) == []
            assert any("entry_kind" in line for line in index.differences(rebuilt))


def test_a_foreign_wal_is_a_fault(good: Path, tmp_path: Path) -> None:
    """A -wal of another index beside a file would be replayed over it: noticed at open."""
    other = tmp_path / "other.sqlite3"
    copy = tmp_path / "stale-wal"
    with SessionIndex.open(str(other), create=True) as index:
        load(index, [row(n, f"other{n}") for n in range(1, 400)], [100])
        shutil.copy(f"{other}-wal", copy)
    shutil.copy(copy, f"{good}-wal")
    with pytest.raises(IndexFault):
        SessionIndex.open(str(good))
    bad = files.set_aside(str(good))
    assert not os.path.exists(f"{good}-wal")
    assert bad is not None


def test_a_wal_of_an_earlier_time_is_refused_and_not_replayed(good: Path, tmp_path: Path) -> None:
    """A -wal of the same file that a backup brought back: a fault, and the file still knows the
    newest watermark, by which lost entries are noticed."""
    with SessionIndex.open(str(good)) as index:
        index.bind(b"j" * 16, 1, 1)
        index.set_watermark(b"o" * 64)
        load(index, [row(301, "older")])
        shutil.copy(f"{good}-wal", tmp_path / "older-wal")
    with SessionIndex.open(str(good)) as index:
        index.set_watermark(b"n" * 64)
        load(index, [row(302, "newer")])
    shutil.copy(tmp_path / "older-wal", f"{good}-wal")
    data = good.read_bytes()
    with pytest.raises(IndexFault, match="from before its last rows"):
        SessionIndex.open(str(good))
    assert good.read_bytes() == data
    found = peek(str(good))
    assert found is not None
    assert found[2] == b"n" * 64


@pytest.mark.skipif(os.getuid() != 0, reason="must become a user who may not write")
def test_a_file_that_cannot_be_written_is_a_fault(good: Path) -> None:
    """Read-only for us: a fault when opened for writing, all answers when opened for reading."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = shutil.copy(good, folder)
        os.chmod(path, 0o444)
        program = f"""
import os
from treering.index import IndexFault, SessionIndex, schema
schema.checksum_vfs()
os.setuid(65534)
try:
    SessionIndex.open({path!r})
except IndexFault as fault:
    print(fault.reason)
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert "read-only" in done.stdout or "readonly" in done.stdout


def answers(index: SessionIndex) -> list[object]:
    """One of everything."""
    leaf = index.leaf()
    last = leaf.sequence or 1
    return [
        index.position(),
        index.identity(),
        index.watermark(),
        leaf,
        index.entries(limit=1000),
        index.path(last),
        index.path(last, from_depth=3, limit=5),
        [index.children(parent, limit=100) for parent in (None, 1, 2, 9)],
        [index.child_count(parent) for parent in (None, 1, 2, 9)],
        index.labels(limit=100),
        index.counts(),
        index.usage(),
        index.unresolved(limit=100),
        [index.by_kind(kind, limit=100) for kind in ("message", "compaction", "label", "")],
        [index.latest_on_path(kind, last) for kind in ("message", "compaction", "label")],
        index.by_time(0, 2**62, limit=100),
        [index.by_id(key) for key in ("a", "b", eight(3))],
        [index.has_id(key) for key in ("a", "zz", eight(3))],
        [index.is_ancestor(n, last) for n in (1, 5, 9)],
    ]


def small_index(path: Path) -> list[object]:
    with SessionIndex.open(str(path), create=True) as index:
        index.bind(b"j" * 16, 2**64 - 1, 7)
        load(index, random_rows(random.Random(5), 40), [10])
        index.set_watermark(b"w" * 64)
        return answers(index)


def flips(size: int, every: int) -> Iterator[tuple[int, int]]:
    rnd = random.Random(3)
    return (
        (rnd.randrange(start, min(size, start + every)), 1 << rnd.randrange(8))
        for start in range(0, size, every)
    )


def test_without_checksums_damage_is_a_typed_fault_or_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where page checksums are missing, damage still never raises anything else, nor hangs."""
    monkeypatch.setattr(schema, "checksum_vfs", lambda: False)
    path = tmp_path / "s.1.sqlite3"
    small_index(path)
    content = path.read_bytes()
    for place, bit in flips(len(content), 97):
        damaged = bytearray(content)
        damaged[place] ^= bit
        path.write_bytes(damaged)
        try:
            with SessionIndex.open(str(path)) as index:
                answers(index)
                index.apply(
                    [row(1000, "a", "b"), row(1001, "zz", "a")], position_after(row(1001, ""))
                )
                answers(index)
        except IndexFault:
            pass
        for tail in ("-wal", "-shm"):
            Path(f"{path}{tail}").unlink(missing_ok=True)


def test_the_default_vfs_of_the_process_stays(good: Path) -> None:
    """Loading the checksum VFS does not make it the default of our users' own connections."""
    assert apsw.vfs_names()[0] != schema.CHECKSUM_VFS


def test_a_forked_child_cannot_use_an_index(good: Path) -> None:
    """Every call in a child is a fault; neither its calls nor its exit disturb the parent."""
    program = f"""
import os, sys
from treering.index import *
index = SessionIndex.open({str(good)!r})
child = os.fork()
if not child:
    refused = 0
    for call in (index.leaf, index.position, index.close, index.counts, lambda: index.by_id("x"),
                 lambda: index.differences(index)):
        try:
            call()
        except IndexFault as fault:
            refused += "fork" in str(fault)
    del index
    sys.exit(refused)
_, status = os.waitpid(child, 0)
index.set_watermark(b"w" * 64)
print(os.waitstatus_to_exitcode(status), sorted(os.listdir({str(good.parent)!r})))
index.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    sidecars = [f"{good.name}{tail}" for tail in ("", "-shm", "-wal")]
    assert done.stdout.strip() == f"6 {sidecars}"


def test_a_closed_index_refuses(good: Path) -> None:
    """After close() every call is a fault, and close() again is harmless."""
    index = SessionIndex.open(str(good))
    index.close()
    index.close()
    with pytest.raises(IndexFault, match="closed"):
        index.leaf()


def test_a_lock_that_lasts_is_busy_and_no_fault(good: Path) -> None:
    """Another writer is IndexBusy after the busy timeout, at once for readers of nothing."""
    holder = apsw.Connection(str(good), vfs="cksmvfs" if schema.checksum_vfs() else None)
    with SessionIndex.open(str(good), busy_timeout_ms=10) as index:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(IndexBusy):
            index.apply([], position_after(row(301, "")))
        assert index.leaf().sequence == 300
        holder.execute("ROLLBACK")
        index.apply([], position_after(row(301, "")))
    holder.close()


def test_a_full_disk_is_said(good: Path) -> None:
    """No room: a fault that says so, the rows that are there stay right."""
    with SessionIndex.open(str(good)) as index:
        index._db.execute("PRAGMA max_page_count=1")
        with pytest.raises(IndexFault) as caught:
            load(index, linear(5000, start=301))
        assert caught.value.full
        assert index.leaf().sequence == 300


@pytest.mark.parametrize("version", ["3.51.2", "3.50.9", "3.7.17", "2.8"])
def test_an_old_sqlite_is_refused(version: str) -> None:
    """Below the floor: refused with both versions and what to do."""
    with pytest.raises(IndexFault, match=rf"{version}.*3\.51\.3.*upgrade"):
        schema.require_sqlite(version)


@pytest.mark.parametrize(
    "version", ["3.51.3", "3.51.10", "3.52.0", "4.0.0", apsw.sqlite_lib_version()]
)
def test_a_new_enough_sqlite_is_taken(version: str) -> None:
    """Versions are compared as numbers."""
    schema.require_sqlite(version)
    schema.require_sqlite(apsw.sqlite_lib_version())


def test_rows_out_of_order_are_refused_and_change_nothing(good: Path) -> None:
    """A row at or before the stored position, or behind a later one, adds nothing at all."""
    with SessionIndex.open(str(good)) as index:
        for sequences in ([300], [301, 301], [302, 301], [301, 2**63]):
            rows = [row(n, f"new{n}") for n in sequences]
            with pytest.raises(IndexFault, match="out of order"):
                index.apply(rows, position_after(rows[-1]))
        with pytest.raises(IndexFault, match="before row"):
            index.apply([row(305, "new")], position_after(row(304, "")))
        assert index.counts()["entries"] == 300
        load(index, linear(10, start=301))
        assert index.path(310)[-1].depth == 309


def test_an_exception_of_the_rows_passes_through(good: Path) -> None:
    """The caller's own exception comes out as it is, and nothing is added."""

    def rows() -> Iterator[object]:
        yield row(301, "new")
        raise KeyError("the journal")

    with SessionIndex.open(str(good)) as index:
        with pytest.raises(KeyError):
            index.apply(rows(), position_after(row(301, "")))  # type: ignore[arg-type]
        assert not index.has_id("new")
        load(index, linear(1, start=301))


def test_a_build_that_failed_is_over(tmp_path: Path) -> None:
    """A build has no way back: after an exception every call is a fault."""
    with SessionIndex.build_into(str(tmp_path / "b")) as index:
        load(index, linear(5))
        with pytest.raises(IndexFault):
            load(index, linear(5))
        with pytest.raises(IndexFault, match="build failed"):
            index.finish_build()


def test_no_descriptors_leak(good: Path) -> None:
    """Many opens, good and bad, end with as many descriptors as at the start."""
    SessionIndex.open(str(good)).close()
    before = len(os.listdir("/proc/self/fd"))
    for n in range(50):
        with SessionIndex.open(str(good)) as index:
            index.leaf()
        bad = good.parent / "bad.1.sqlite3"
        bad.write_bytes(b"x" * 5000 * (n % 2))
        with pytest.raises(IndexFault):
            SessionIndex.open(str(bad))
    assert len(os.listdir("/proc/self/fd")) == before
