"""What a last review found about repaired, imported and exported sessions."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from session_helpers import (
    answers,
    custom,
    drop_index,
    new,
    read_bytes,
    user,
    view_answers,
    write_bytes,
)
from support import build, damage

from treering.engine import (
    Conflict,
    Owned,
    Session,
    SessionView,
    SourceChanged,
    StorageFull,
    TreeringError,
    export_jsonl,
    import_session,
    jsonl_lines,
    repair,
)
from treering.engine.session import indexing
from treering.fuzz.faulty_disk import FaultyDisk, Op


def flip_at(path: str, text: bytes) -> bytes:
    """One bit of this text goes bad; what the file was before."""
    data = read_bytes(path)
    write_bytes(path, damage.flip(data, data.index(text) * 8))
    return data


def damaged(tmp_path: Path) -> tuple[str, bytes, bytes]:
    """A session whose first of two entries went bad: path, good bytes, bad bytes."""
    with new(tmp_path, session_id="s1", compression=False) as session:
        session.append(user("UNIQUE", "a"))
        session.append(user("other", "b"))
    good = flip_at(session.path, b"UNIQUE")
    return session.path, good, read_bytes(session.path)


def source_of(tmp_path: Path, *ids: str, blank_behind: int | None = None) -> Path:
    """A legacy file: a chain of messages, perhaps with a blank line in it."""
    lines = [
        '{"type":"session","version":3,"id":"x","timestamp":"2025-01-01T00:00:00.000Z","cwd":"/"}'
    ]
    parent = None
    for number, own in enumerate(ids):
        entry = user(f"UNIQ{number} " + "x" * 200, own, parentId=parent)
        lines.append(json.dumps(entry | {"timestamp": "2025-01-01T00:00:00.000Z"}))
        parent = own
        if number == blank_behind:
            lines.append("")
    file = tmp_path / "source.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def imported(tmp_path: Path, source: Path) -> str:
    return import_session(source, home_dir=str(tmp_path / "home"), compression=False).path


@pytest.fixture
def slow_first_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No journal is small enough to be indexed at opening."""
    monkeypatch.setattr(indexing, "QUICK_BYTES", 0)


def test_a_leaf_that_the_repair_lost_is_no_position(tmp_path: Path, slow_first_index: None) -> None:
    """R06: with and without an index, a repaired session stands at an entry that it has."""
    with new(tmp_path, compression=False) as session:
        first = session.append(user("A"))
        lost = session.append(user("B-UNIQUE"))
        session.append_many([user(f"text {n}") for n in range(40)])
        session.branch_to(lost)
    path = session.path
    flip_at(path, b"B-UNIQUE")
    assert repair(path).done
    right = view_answers(path)
    assert right["leaf"] not in (None, lost)
    for _ in range(2):  # without an index file, then with one
        with Session.open(path) as session:
            assert session.leaf_id == right["leaf"]
            assert [entry.id for entry in session.branch()] == right["branch"]
            assert session.has(first)
    with Session.open(path) as session:
        added = session.read(session.append(user("new")))
        assert json.loads(added.raw)["parentId"] == right["leaf"]
        assert added.unresolved is None


def test_a_leaf_frame_that_names_nothing(tmp_path: Path, slow_first_index: None) -> None:
    """R06: a foreign LEAF to an unknown id moves nothing, with or without an index."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    maker.frame(build.LEAF, b'{"leaf":"nowhere"}')
    maker.close()
    store = build.make_store(tmp_path)
    path = build.put(store, maker.whole())
    for _ in range(2):
        with Session.open(path) as session:
            assert session.leaf_id == "a"
            assert [entry.id for entry in session.branch()] == ["a"]


@pytest.mark.parametrize("options", [{}, {"mode": "prefix"}])
def test_a_repaired_import_claims_no_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    """R03: when entries are lost nothing says byte-exact, and no blank line is put anywhere."""
    path = imported(tmp_path, source_of(tmp_path, "e0", "e1", "e2", "e3", "e4", blank_behind=3))
    flip_at(path, b"UNIQ1")
    assert repair(path, **options).done
    with Session.open(path) as session:
        provenance = session.provenance()
        assert provenance is not None
        facts = json.loads(provenance[0])
        assert facts["byte_exact"] is False
        assert facts["repaired"] is True
        assert "blank_lines" not in facts
        lines = b"".join(jsonl_lines(session)).split(b"\n")
        kept = [entry.raw for entry in session.iter_entries()]
    assert lines[1:-1] == kept
    assert lines[-1] == b""
    ids = [json.loads(line)["id"] for line in kept]
    assert ids == (["e0"] if options else ["e0", "e2", "e3", "e4"])


def test_a_repair_that_loses_nothing_keeps_the_claim(tmp_path: Path) -> None:
    """R03: a damaged file header alone costs no entry: the source still comes back byte by byte."""
    source = source_of(tmp_path, "e0", "e1", "e2", blank_behind=1)
    path = imported(tmp_path, source)
    data = read_bytes(path)
    write_bytes(path, damage.flip(data, 60 * 8))  # the reserved bytes of the header
    result = repair(path)
    assert result.done
    assert result.gaps == []
    with Session.open(path) as session:
        exported = b"".join(jsonl_lines(session))
    assert exported.split(b"\n")[1:] == source.read_bytes().split(b"\n")[1:]


@pytest.mark.parametrize("with_loss", [False, True])
def test_twins_stay_known_when_provenance_is_lost(
    tmp_path: Path, slow_first_index: None, with_loss: bool
) -> None:
    """R07: without PROVENANCE, retained entries may share ids: only the index says what one means."""
    path = imported(tmp_path, source_of(tmp_path, "e0", "e1", "e2", "e3", "e0"))
    flip_at(path, b"captured_bytes")
    if with_loss:
        flip_at(path, b"UNIQ1")
    result = repair(path)
    assert result.done
    right = view_answers(path)
    assert len(right["branch"]) > 1
    for _ in range(2):
        with Session.open(path) as session:
            assert session.ambiguous_ids
            assert session.leaf_id == right["leaf"]
            assert [entry.id for entry in session.branch()] == right["branch"]
    with Session.open(path) as session:
        before = len(session.branch())
        session.append(custom("new"))
        assert len(session.branch()) == before + 1


def test_a_leaf_move_that_nobody_can_read_is_not_carried_over(tmp_path: Path) -> None:
    """R22: what a repair reports as done is a journal that can be written."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    odd = maker.frame(build.LEAF, b'{"leaf":5}')
    bad = maker.entry("bad")
    maker.sync()
    maker.entry("c")
    maker.close()
    store = build.make_store(tmp_path)
    path = build.put(store, damage.flip(maker.whole(), (bad.offset + 50) * 8))
    result = repair(path)
    assert result.done
    assert odd.sequence in result.misunderstood
    with Session.open(path) as session:
        session.append(custom("after"))
        assert [entry.id for entry in session.entries()] == ["a", "c", "after"]


@pytest.mark.parametrize("first", [0, 1])
def test_entries_where_none_can_be(tmp_path: Path, first: int) -> None:
    """R24: an ENTRY at sequence 0 or 1 is shown to nobody, and ends in no raw error."""
    maker = build.Maker()
    if first:
        bad = maker.open()
    else:
        bad = maker.frame(200, b"some bytes")
        maker.sequence = 0
        maker.previous = bytes(8)
    early = maker.entry("early", epoch=1)
    assert early.sequence == first
    maker.entry("second", epoch=1)
    maker.entry("third", epoch=1)
    store = build.make_store(tmp_path)
    for data in (
        maker.whole(),
        damage.flip(maker.whole(), (bad.offset + 50) * 8),
        damage.remove(maker.publish().whole(), bad.offset, bad.end - bad.offset),
    ):
        path = build.put(store, data)
        try:
            with SessionView.open(path, beyond_damage=True) as view:
                shown = {entry.sequence for entry in view.iter_entries()}
                assert not shown & {0, 1}
        except TreeringError as error:
            assert str(error)
        try:
            repair(path)
        except TreeringError as error:
            assert str(error)


def test_export_of_a_branch_holds_a_piece_at_a_time(tmp_path: Path) -> None:
    """R09: exporting a branch needs as little memory as exporting everything."""
    with new(tmp_path) as session:
        for _ in range(5):
            session.append_many([user("A" * 1_000_000) for _ in range(12)])
        expected = [entry.raw for entry in session.iter_entries()]
        total = sum(map(len, expected))
        del expected
        session.branch(limit=1)
        tracemalloc.start()
        try:
            size = export_jsonl(session, tmp_path / "branch.jsonl", branch=True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert size > total
        assert peak < total / 3
        lines = (tmp_path / "branch.jsonl").read_bytes().splitlines()
        assert lines[1:] == [entry.raw for entry in session.iter_branch()]


def test_a_long_branch_is_exported_in_order(tmp_path: Path) -> None:
    """R09: the pages of a branch make the same path as the branch at once, from one position."""
    with new(tmp_path) as session:
        session.append_many([custom(f"n{n}", n=n) for n in range(2_500)])
        session.branch_to("n1")
        session.append(custom("side"))
        session.branch_to("n2400")
        session.append(custom("end"))
        lines = list(jsonl_lines(session, branch=True))
        assert b"".join(lines[1:]) == b"".join(e.raw + b"\n" for e in session.branch())
        assert len(session.branch()) == 2_402


def test_a_stale_part_stops_no_export(tmp_path: Path) -> None:
    """R11: what a killed export left beside the target does not refuse the next one."""
    target = tmp_path / "out.jsonl"
    stale = tmp_path / f"out.jsonl.{os.getpid()}.part"
    stale.write_bytes(b"half")
    with new(tmp_path) as session:
        session.append(custom("a"))
        export_jsonl(session, target)
    assert target.read_bytes().count(b"\n") == 2
    assert stale.read_bytes() == b"half"


def test_two_exports_to_one_name(tmp_path: Path) -> None:
    """R11: one of them makes the file, the other finds the name taken; no part is left."""
    target = tmp_path / "out.jsonl"
    disk = FaultyDisk()

    def meanwhile(op: Op) -> None:
        if op.name == "fsync" and op.path.endswith(".part"):
            disk.before = None
            export_jsonl(session, target)

    with new(tmp_path) as session:
        session.append(custom("a"))
        disk.before = meanwhile
        with pytest.raises(Conflict, match="exists already"):
            export_jsonl(session, target, disk=disk)
        assert target.read_bytes() == b"".join(jsonl_lines(session))
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize("call", ["create", "pwrite", "fsync", "link"])
def test_an_export_that_fails_leaves_nothing(tmp_path: Path, call: str) -> None:
    """R11: neither the file nor a part of it, and the session goes on."""
    disk = FaultyDisk()
    disk.fail(call, error=errno.ENOSPC)
    with new(tmp_path) as session:
        session.append(custom("a"))
        with pytest.raises(StorageFull, match="write the export"):
            export_jsonl(session, tmp_path / "out.jsonl", disk=disk)
        assert not list(tmp_path.glob("out.jsonl*"))
        session.append(custom("b"))


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM])
def test_repair_where_quarantine_is_another_device(tmp_path: Path, error: int) -> None:
    """R12: the old journal stays on its own device, under a name that is no session's."""
    path, _, bad = damaged(tmp_path)
    disk = FaultyDisk()
    disk.fail("link", error=error, path="/quarantine/", times=99)
    result = repair(path, disk=disk)
    assert result.done
    aside = result.kept_aside
    assert aside is not None
    assert read_bytes(aside) == bad
    assert os.path.dirname(aside) == os.path.dirname(path)
    assert os.path.basename(aside).startswith(".")
    assert disk.open_files == 0
    with Session.open(path) as session:
        assert [entry.id for entry in session.entries()] == ["b"]


def test_a_backup_restored_beside_a_repair_is_not_replaced(tmp_path: Path) -> None:
    """R15: when the name leads to another file by then, the repair gives up and leaves it alone."""
    path, good, _ = damaged(tmp_path)
    disk = FaultyDisk()

    def restore(op: Op) -> None:
        if op.name == "create":
            disk.before = None
            write_bytes(path + ".restored", good)
            os.rename(path + ".restored", path)

    disk.before = restore
    with pytest.raises(SourceChanged):
        repair(path, disk=disk)
    assert disk.before is None
    assert read_bytes(path) == good
    assert disk.open_files == 0
    assert [name for name in os.listdir(os.path.dirname(path)) if name != "s1.jsonl"] == []


def test_a_refused_repair_names_the_owner(tmp_path: Path) -> None:
    """R04, B01, B06: repair says who owns the session; a dry run looks without asking."""
    path, _, bad = damaged(tmp_path)
    write_bytes(path, read_bytes(path))
    with new(tmp_path, session_id="live") as live:
        with pytest.raises(Owned, match=f"{os.getpid()}|this process"):
            repair(live.path)
        assert not repair(live.path, dry_run=True).done
    assert repair(path, dry_run=True).kept == 1
    assert read_bytes(path) == bad


def test_a_failed_salvage_leaves_no_folder(tmp_path: Path) -> None:
    """R19: where no session came to be, there are no artifacts of one."""
    source = source_of(tmp_path, "e0", "e1")
    source.write_bytes(source.read_bytes() + b"this is no record\n" + b'{"half":')
    home = tmp_path / "home"
    disk = FaultyDisk()
    disk.fail("link", path="sessions", error=errno.ENOSPC)
    with pytest.raises(TreeringError):
        import_session(source, home_dir=str(home), salvage=True, disk=disk)
    assert not list((home / "session-artifacts").glob("*"))
    assert not list((home / "sessions").glob("*"))
    done = import_session(source, home_dir=str(home), salvage=True)
    assert done.quarantine is not None
    assert b"this is no record" in read_bytes(done.quarantine)


def test_a_view_of_a_repaired_session_agrees(tmp_path: Path) -> None:
    """R06: owner and view of a repaired session give the same answers, also after the index."""
    path, _, _ = damaged(tmp_path)
    assert repair(path).done
    drop_index(path)
    right = view_answers(path)
    for _ in range(2):
        with Session.open(path) as session:
            assert answers(session) == right
