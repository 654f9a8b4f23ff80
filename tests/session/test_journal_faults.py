"""Torn tails, hostile frames, odd files and slow systems, seen through a session."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from session_helpers import (
    answers,
    crash,
    custom,
    drop_index,
    files_below,
    new,
    read_bytes,
    user,
    view_answers,
    write_bytes,
)
from support.build import Maker

from treering.engine import (
    Damaged,
    NotAJournal,
    Session,
    SessionView,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
    Undecodable,
    jsonl_lines,
)
from treering.fuzz.faulty_disk import FaultyDisk


def test_F01_cut_at_every_byte_of_the_last_entry(tmp_path: Path) -> None:
    """Cut anywhere inside the last entry: all others are there, the report names offset and
    bytes, the
    bytes are in quarantine, the next append survives a reopen. Views change nothing."""
    session = new(tmp_path)
    session.append_many([user(f"t{i}", f"m{i}") for i in range(20)])
    before = session._writer.size
    session.append(user("the last one", "last"))
    crash(session)
    whole = read_bytes(session.path)
    drop_index(session.path)
    for size in range(before + 1, len(whole)):
        write_bytes(session.path, whole[:size])
        with SessionView.open(session.path) as view:
            assert view.report.case == "E"
            assert len(view.entries()) == 20
        assert os.path.getsize(session.path) == size
        with Session.open(session.path) as again:
            report = again.report
            assert report is not None
            assert (report.case, report.bad_offset) == ("E", before)
            assert report.quarantined_bytes == size - before
            assert report.quarantine is not None
            assert read_bytes(report.quarantine) == whole[before:size]
            assert len(again.entries()) == 20
            again.append(custom("next"))
        with Session.open(session.path) as again:
            assert [e.id for e in again.entries()][-2:] == ["m19", "next"]
        drop_index(session.path)  # its watermark would rightly call the next cut case D


def test_F05_crashes_and_appends_in_turn(tmp_path: Path) -> None:
    """Ten torn tails, ten appends: only the torn records are missing, nothing is welded."""
    session = new(tmp_path)
    session.append(custom("first"))
    draw = random.Random(1)
    for number in range(10):
        crash(session)
        with open(session.path, "ab") as file:
            file.write(draw.randbytes(draw.randrange(1, 300)))
        before = read_bytes(session.path)
        assert len(view_answers(session.path)["entries"]) == number + 1
        assert read_bytes(session.path) == before
        session = Session.open(session.path)
        session.append(custom(f"n{number}"))
    session.close()
    with Session.open(session.path) as again:
        assert [e.id for e in again.branch()] == ["first", *[f"n{i}" for i in range(10)]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\xef\xbb\xbf",
        bytes(9000),
        b'{"type":"session"}\n',
        os.urandom(4096),
        b"\x89TRNG\r\n\x1a",
    ],
    ids=["0 bytes", "newline", "BOM", "zeros", "jsonl", "random", "magic"],
)
def test_F33_files_that_are_no_journals(tmp_path: Path, data: bytes) -> None:
    """Open refusals: empty and garbage left byte-identical. A typed error, the same for owner and
    view; nothing is made beside it but empty folders."""
    session = new(tmp_path)
    session.close()
    write_bytes(session.path, data)
    drop_index(session.path)
    for call in (Session.open, SessionView.open):
        with pytest.raises((NotAJournal, Damaged)):
            call(session.path)
    assert read_bytes(session.path) == data
    kept = [v for v in files_below(str(tmp_path / "home")).values() if v[2] is not None]
    assert len(kept) == 1
    write_bytes(session.path, b"")
    os.unlink(session.path)
    os.mkfifo(session.path)
    for call in (Session.open, SessionView.open):
        with pytest.raises(NotAJournal):
            call(session.path)
    os.unlink(session.path)
    os.mkdir(session.path)
    for call in (Session.open, SessionView.open):
        with pytest.raises(NotAJournal):
            call(session.path)


def test_F29_F30_old_bytes_never_change(tmp_path: Path) -> None:
    """Whatever is appended, old bytes are a prefix of the file; compacting twice and going back
    before
    the first shows the old entries as they were."""
    session = new(tmp_path)
    session.append_many([user(f"t{i}", f"m{i}") for i in range(30)])
    old = [e.raw for e in session.branch()]
    for number in range(2):
        before = read_bytes(session.path)
        session.append({"type": "compaction", "summary": "s", "firstKeptEntryId": "m20"})
        session.set_label("m3", f"l{number}")
        session.close()
        session = Session.open(session.path)
        session.append(custom())
        assert read_bytes(session.path).startswith(before)
    session.branch_to("m29")
    assert [e.raw for e in session.branch()] == old
    session.close()


@pytest.mark.parametrize("most", [1, 7, 100])
def test_F98_short_writes(tmp_path: Path, most: int) -> None:
    """Writes that store a few bytes at a time: every entry is whole; no progress is an error."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    disk.write_at_most = most
    session.append_many([custom("a", data="x" * 300), custom("b")])
    with session.batch() as batch:
        batch.append(custom("c"))
    disk.heal()
    disk.zero_progress = True
    with pytest.raises((StorageError, StorageFull)):
        session.append(custom("d"))
    disk.heal()
    session.append(custom("e"))
    session.close()
    assert [e[1] for e in view_answers(session.path)["entries"]] == ["a", "b", "c", "e"]


def test_F96_read_errors_are_not_damage(tmp_path: Path) -> None:
    """EIO, or a file that suddenly is shorter, at each read of an open: it raises, no byte
    changes, the
    next open is complete."""
    session = new(tmp_path)
    session.append_many([custom(f"e{i}") for i in range(5)])
    crash(session)
    for torn in (b"", b"torn"):
        data = read_bytes(session.path)[: session._writer.size] + torn
        for short in (False, True):
            at = 0
            while True:
                at += 1
                write_bytes(session.path, data)
                drop_index(session.path)
                disk = FaultyDisk()
                seen = 0
                fired = False

                def read(
                    path: str, got: bytes, offset: int, at: int = at, short: bool = short
                ) -> bytes:
                    nonlocal seen, fired
                    seen += 1
                    if seen == at:
                        fired = True
                        if short:
                            return got[:-1]
                        raise OSError(5, "EIO")
                    return got

                disk.on_pread = read
                try:
                    Session.open(session.path, disk=disk).close()
                    failed = False
                except (StorageError, SourceChanged):
                    failed = True
                if failed:
                    assert (
                        read_bytes(session.path)[: session._writer.size]
                        == data[: session._writer.size]
                    )
                disk.heal()
                with Session.open(session.path) as again:
                    assert [e.id for e in again.entries()] == [f"e{i}" for i in range(5)]
                if not fired:
                    break
            assert at > 3


def test_F101_a_reader_never_shows_another_entry_in_the_old_place(tmp_path: Path) -> None:
    """A view sees an entry that is then cut off again (no space) and another of the same size
    takes its
    place: the view raises or says the first, never the second under the first's name."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk, compression=False)
    session.append(custom("a"))
    views: list[SessionView] = []

    def look(op: Any) -> None:
        if op.name == "truncate":
            views.append(SessionView.open(session.path))

    x, y = custom("x1", data="x" * 100), custom("y1", data="y" * 100)
    disk.before = look
    disk.quota = 350
    with pytest.raises(StorageFull):
        session.append_many([x, custom("z", data="z" * 1000)])
    disk.before = None
    disk.heal()
    view = views[0]
    assert view.has("x1")
    session.append(y)
    for call in (
        lambda: view.read("x1"),
        lambda: list(view.iter_entries())[-1],
        lambda: view.branch()[-1],
    ):
        try:
            entry = call()
        except (Damaged, SourceChanged):
            continue
        assert b"y1" not in entry.raw
        assert entry.id != "x1" or b"x1" in entry.raw
    view.close()
    session.close()


def test_F46_a_store_behind_a_link(tmp_path: Path) -> None:
    """The root is a link to another folder: it stays one, and the data is in the target."""
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "home")
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b")])
    session.read("a")
    session.close()
    drop_index(session.path)
    with Session.open(
        str(tmp_path / "home" / "sessions" / os.path.basename(session.path))
    ) as again:
        assert again.has("b")
    assert os.path.islink(tmp_path / "home")
    assert (tmp_path / "real" / "sessions").is_dir()


def test_F75_an_append_writes_what_it_adds(tmp_path: Path) -> None:
    """Bytes written grow with the entries only: under twice the payload, and as fast at the end."""
    disk = FaultyDisk()
    session = new(tmp_path, disk=disk)
    disk.take()
    times = []
    for number in range(3000):
        start = time.perf_counter()
        session.append(custom(data=f"{number}" + "x" * 600))
        times.append(time.perf_counter() - start)
    written = sum(op.second for op in disk.take() if op.name == "pwrite")
    assert written < 2 * 3000 * 750
    first, last = sorted(times[:500])[250], sorted(times[-500:])[250]
    assert last < 4 * first
    session.close()


def test_iteration_shows_one_moment(tmp_path: Path) -> None:
    """S34: what is appended while an iteration or an export runs is not part of it, so it ends."""
    session = new(tmp_path)
    session.append_many([custom(f"e{i}") for i in range(10)])
    for pieces in (session.iter_entries(), jsonl_lines(session)):
        next(pieces)
        there = session.counts()["entries"]
        count = 1
        for _ in pieces:
            count += 1
            session.append_many([custom() for _ in range(20)])
            assert count <= there + 1
        assert count in (there, there + 1)
    session.close()


@pytest.mark.timeout(30)
def test_F110_exports_beside_a_writer_are_prefixes(tmp_path: Path) -> None:
    """Exports made while another thread appends: each is a prefix of the final state, in whole
    lines."""
    session = new(tmp_path)
    session.append(custom("first"))
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.002):
            session.append_many([custom(), custom()])
            with session.batch() as batch:
                batch.append(custom())
                batch.append(custom())
            time.sleep(0.002)  # each export reads everything: an unbounded writer outruns them

    thread = threading.Thread(target=write)
    thread.start()
    try:
        copies = []
        for number in range(30):
            if number % 2:
                copies.append(b"".join(jsonl_lines(session)))
            else:
                with SessionView.open(session.path) as view:
                    copies.append(b"".join(jsonl_lines(view)))
    finally:
        stop.set()
        thread.join()
    final = b"".join(jsonl_lines(session))
    for copy in copies:
        assert final.startswith(copy)
        assert copy.endswith(b"\n")
    session.close()


def test_F128_F79_entries_that_are_not_as_documented(tmp_path: Path) -> None:
    """Frames of another writer hold no JSON, invalid UTF-8, other types: all are kept and shown
    the same
    by owner and view, with and without an index; the rest of the session works."""
    session = new(tmp_path)
    session.close()
    maker = Maker().started()
    maker.open()
    payloads = [
        b'{"type":"message","id":"ok","parentId":null}',
        b"no json at all",
        b'{"type":"custom","id":"u","parentId":"ok","x":"\xff\xfe"}',
        b'{"type":5,"id":"t","parentId":"ok"}',
        b'{"type":"message","id":["x"],"parentId":{"y":1},"timestamp":5,"message":7}',
        b'{"type":"label","id":"l","parentId":"ok","targetId":9,"label":{}}',
        b'{"type":"session_info","id":"n","parentId":"ok","name":{"a":1}}',
        b'{"type":"message","id":"us","parentId":"ok","message":{"role":"assistant","usage":{"input":"270"}}}',
        b"[" * 100_000,
        b"",
        b'{"type":"custom","id":"end","parentId":"ok"}',
    ]
    for payload in payloads:
        maker.frame(2, payload)
    write_bytes(session.path, maker.whole())
    right = view_answers(session.path)
    assert [e[2] for e in right["entries"]] == payloads
    for _ in range(2):
        with Session.open(session.path) as again:
            assert answers(again) == right
            for entry in again.iter_entries():
                entry.decode()
                assert entry.type is not None
            assert again.leaf_id == "end"
            assert again.name is None
    with Session.open(session.path) as again:
        again.append(custom("on"))
        assert [e.id for e in again.branch()] == ["ok", "end", "on"]


@pytest.mark.parametrize("size", [100, 1_300_000])
def test_an_entry_that_cannot_be_decoded_harms_no_other(tmp_path: Path, size: int) -> None:
    """The last entry's zstd is bad (its frame verifies): the session opens with and without an
    index,
    the entry is Undecodable by name, all others are read, and appends go on."""
    session = new(tmp_path)
    session.close()
    maker = Maker().started()
    maker.open()
    maker.frame(2, b'{"type":"custom","id":"a","parentId":null,"x":"%s"}' % (b"x" * size))
    maker.frame(2, b"\x28\xb5\x2f\xfdgarbage", codec=1, raw=500)
    write_bytes(session.path, maker.whole())
    found = []
    for drop in (True, False):
        if drop:
            drop_index(session.path)
        with Session.open(session.path) as again:
            rows = again.ask(lambda index: index.entries(after=0, limit=10))
            found.append((again.leaf_id, [row.id for row in rows]))
            assert again.read("a").id == "a"
            with pytest.raises(Undecodable):
                again.read(rows[1].id)
    assert found[0] == found[1]
    with SessionView.open(session.path) as view:
        assert view.leaf_id == found[0][0]
    with Session.open(session.path) as again:
        again.append(custom("on"))
        assert again.read("on").id == "on"
        assert [e.id for e in again.branch()] == ["a", "on"]


def test_sessions_in_other_folders(tmp_path: Path) -> None:
    """session_dir alone, paths with spaces, quotes, percent and question marks: all works, and
    stays
    inside (the index opens by a URI in views)."""
    for name in ("with space", "per%41cent", "quo'te\"", "que?stion#x", "\u00e9\u4e2d"):
        folder = tmp_path / name / "sessions"
        with Session.create(session_dir=str(folder), cwd="/") as session:
            session.append(custom("a"))
            session.set_label("a", "x")
        with SessionView.open(session.path) as view:
            assert view.report.case == "A"
            right = answers(view)
        with Session.open(session.path) as session:
            assert answers(session) == right
            assert session.index_faults == []
        size = os.path.getsize(session.path)
        with Session.open(session.path) as session:
            session.append(custom("b"))
        os.truncate(session.path, size)
        with SessionView.open(session.path) as view:
            assert view.report.case == "D", f"the view did not find the watermark below {name!r}"


def test_errors_say_where_and_what_next(tmp_path: Path) -> None:
    """Messages are one line, name the file, and survive names with control characters."""
    bad = tmp_path / "x\ny\x1b[31m.jsonl"
    bad.write_bytes(b"")
    for call in (Session.open, SessionView.open):
        with pytest.raises(TreeringError) as caught:
            call(str(bad))
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
