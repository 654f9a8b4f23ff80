"""Repair keeps everything that still verifies, keeps the old file, and is whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from session_helpers import (
    answers,
    custom,
    drop_index,
    files_below,
    new,
    read_bytes,
    user,
    write_bytes,
)
from support.damage import drop_frame, zero

from treering.engine import (
    Conflict,
    Damaged,
    NotAJournal,
    RepairResult,
    Session,
    SessionView,
    Store,
    TreeringError,
    Unsupported,
)
from treering.engine import repair as repair_session
from treering.engine.journal.disk import LOCAL_DISK, File
from treering.engine.journal.repair import repair
from treering.fuzz.faulty_disk import FaultyDisk
from treering.fuzz.oracle import Found, judge

SESSION, ENTRY, ACTIVATE, LEAF, REQUEST = 1, 2, 4, 6, 8


def made(tmp_path: Path) -> tuple[str, bytes]:
    """A journal of two epochs with entries of all sorts, closed; its bytes. No index."""
    with new(tmp_path, session_id="s1") as session:
        session.append_many([user(f"text {i}", f"m{i}") for i in range(4)])
        session.append({"type": "request", "id": "q1", "request": {"n": 1}})
        session.set_label("m1", "label")
        with session.batch() as batch:
            batch.append(custom("b1"))
            batch.append(custom("b2"))
            batch.append(custom("b3"))
        session.append(user("long " * 2000, "long"))
    with Session.open(session.path) as session:
        session.append(custom("e2"))
        session.branch_to("m2")
        session.append(custom("last"))
    drop_index(session.path)
    return session.path, read_bytes(session.path)


def run(path: str, **more: Any) -> RepairResult:
    return repair(LOCAL_DISK, path, store=Store.of_journal(path), **more)


def id_of(data: bytes, frame: Found) -> str | None:
    """The id of an entry's frame, compressed or not."""
    import zstandard

    payload = data[frame.offset + 44 : frame.end - 16]
    if data[frame.offset + 5]:
        payload = zstandard.ZstdDecompressor().decompress(payload)
    return json.loads(payload).get("id")


def entry_ids(data: bytes) -> dict[int, str]:
    """Sequence -> id of all ENTRY and REQUEST frames."""
    return {
        frame.sequence: str(id_of(data, frame))
        for frame in judge(data).frames
        if frame.kind in (ENTRY, REQUEST)
    }


def check_repaired(path: str, damaged: bytes, result: RepairResult, wanted: list[str]) -> None:
    """It verifies clean, holds what it should, takes appends, and the old file is kept exactly."""
    assert result.done
    assert result.kept_aside is not None
    assert read_bytes(result.kept_aside) == damaged
    assert "/session-artifacts/s1/quarantine/" in result.kept_aside
    verdict = judge(read_bytes(path))
    assert verdict.case == "A"
    assert os.stat(path).st_mode & 0o777 == 0o600
    drop_index(path)
    with Session.open(path) as session:
        assert session.report is not None
        assert session.report.case == "A"
        assert session.report.problems == []
        found = [entry.id for entry in session.iter_entries()]
        assert found == wanted
        session.append(custom("after-repair"))
        assert session.leaf_id == "after-repair"
    again = run(path)
    assert not again.done, "there is nothing to repair any more"
    assert again.case == "A"


def frames_of_fixture() -> list[int]:
    return list(range(21))


@pytest.mark.parametrize("how", ["flip", "zero", "drop"])
def test_F02_F93_F107_damage_at_every_frame(tmp_path: Path, how: str) -> None:
    """Each frame in turn is damaged: opening for writing refuses (or cuts a torn tail that nothing
    proves), a view beyond damage shows all the rest with one gap, repair keeps every other frame,
    its output verifies clean, and the old file is kept byte for byte."""
    path, good = made(tmp_path)
    frames = judge(good).frames
    ids = entry_ids(good)
    staged = {f.sequence for f in frames if good[f.offset + 6] & 0x10}
    for frame in frames:
        if how == "flip":
            at = (frame.offset + frame.end) // 2
            data = good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]
        elif how == "zero":
            data = zero(good, frame.offset, frame.end - frame.offset)
        else:
            data = drop_frame(good, frame)
        shutil.rmtree(tmp_path / "home" / "session-artifacts", ignore_errors=True)
        drop_index(path)
        write_bytes(path, data)
        verdict = judge(data)
        wanted = [ids[n] for n in sorted(ids) if n != frame.sequence]
        if frame.kind == ACTIVATE:
            wanted = [ids[n] for n in sorted(ids) if n not in staged]
        with SessionView.open(path, beyond_damage=True) as view:
            assert [e.id for e in view.iter_entries()] == wanted
            if verdict.case not in ("A", "E"):
                assert len(view.gaps) == 1
        with SessionView.open(path) as view:
            assert [e.id for e in view.iter_entries()] == wanted[: len(view.entries())]
        assert read_bytes(path) == data
        if verdict.case in ("A", "E"):
            assert not run(path).done
            continue
        with pytest.raises(Damaged) as caught:
            Session.open(path)
        assert caught.value.report is not None
        assert caught.value.report.case == verdict.case
        assert "repair" in str(caught.value)
        before = files_below(str(tmp_path / "home"))
        dry = run(path, dry_run=True)
        assert files_below(str(tmp_path / "home")) == before, "a dry run changed something"
        assert not dry.done
        result = run(path)
        assert (result.kept, result.gaps) == (dry.kept, dry.gaps)
        if frame.kind == SESSION:
            assert result.header_made
        if frame.kind == ACTIVATE:
            assert sorted(result.activation_unknown) == sorted(staged)
        elif frame.sequence in staged:
            assert sorted(result.batch_survivors) == sorted(staged - {frame.sequence})
        check_repaired(path, data, result, wanted)


def test_F31_header_damage(tmp_path: Path) -> None:
    """The file header is garbage, zero, or the front of the file is gone: never overwritten, never
    taken for empty; repair brings all frames back that stand whole."""
    path, good = made(tmp_path)
    first = judge(good).frames[1]
    ids = list(entry_ids(good).values())
    for data in (
        os.urandom(128) + good[128:],
        bytes(128) + good[128:],
        good[:30] + b"\xff" + good[31:],
        good[10:],
        good[128:],
        good[first.offset - 20 :],
        b"garbage in front" * 20 + good,
    ):
        shutil.rmtree(tmp_path / "home" / "session-artifacts", ignore_errors=True)
        drop_index(path)
        write_bytes(path, data)
        with pytest.raises((Damaged, NotAJournal)):
            Session.open(path)
        assert read_bytes(path) == data
        result = run(path)
        assert not result.header_made, "the SESSION frame is whole (S23)"
        check_repaired(path, data, result, ids)


def test_header_is_kept_and_position_and_labels_too(tmp_path: Path) -> None:
    """Retention marks, labels, the position, the session header and its parent come through."""
    path, good = made(tmp_path)
    with SessionView.open(path) as view:
        right = answers(view)
    victim = next(f for f in judge(good).frames if id_of_or_none(good, f) == "m3")
    data = zero(good, victim.offset, 60)
    write_bytes(path, data)
    run(path)
    with SessionView.open(path) as view:
        found = answers(view)
    assert found["header"] == right["header"]
    assert found["leaf"] == right["leaf"] == "last"
    assert found["branch"] == right["branch"]
    assert found["labels"] == right["labels"]
    by_id = {e[1]: e for e in found["entries"]}
    for entry in right["entries"]:
        if entry[1] != "m3":
            assert by_id[entry[1]][2] == entry[2]


def id_of_or_none(data: bytes, frame: Found) -> str | None:
    return id_of(data, frame) if frame.kind in (ENTRY, REQUEST) else None


def test_keep_unknown_shows_what_may_have_been_activated(tmp_path: Path) -> None:
    """The EPOCH_ACTIVATE is lost: the batch is left out and listed; with keep_unknown it is
    kept."""
    path, good = made(tmp_path)
    frame = next(f for f in judge(good).frames if f.kind == ACTIVATE)
    data = zero(good, frame.offset, 50)
    for keep in (False, True):
        write_bytes(path, data)
        result = run(path, keep_unknown=keep)
        assert len(result.activation_unknown) == 3
        with SessionView.open(path) as view:
            assert [view.has(i) for i in ("b1", "b2", "b3")] == [keep] * 3


def test_accept_loss_keeps_the_prefix_only_when_asked(tmp_path: Path) -> None:
    """Case D: acknowledged entries are gone. Repair refuses and names the flag; with it a new
    journal
    of a new id holds the prefix and says what is missing; the old bytes are kept."""
    path, _ = made(tmp_path)
    with Session.open(path) as session:
        session.append(custom("x1"))
    short = read_bytes(path)
    with Session.open(path) as session:
        session.append(custom("x2"))
        old_id = session.journal_id

    def hint(_file: File) -> tuple[bytes | None, list[bytes]]:
        from treering.engine.session.filling import peek_hint

        found = peek_hint(Store.of_journal(path).index, "s1")
        assert found is not None
        return found.watermark, [found.journal_id]

    write_bytes(path, short)
    with pytest.raises(Conflict, match="loss"):
        run(path, hint=hint)
    assert read_bytes(path) == short
    result = run(path, hint=hint, mode="prefix")
    assert result.done
    assert result.kept_aside is not None
    assert read_bytes(result.kept_aside) == short
    with Session.open(path) as session:
        assert session.journal_id != old_id
        assert session.has("x1")
        assert not session.has("x2")
        assert session.index_faults == [] or "another journal" in session.index_faults[0]
        session.append(custom("on"))
    with Session.open(path) as session:
        assert session.has("on")


def test_accept_loss_of_interior_damage(tmp_path: Path) -> None:
    """accept_loss keeps only what stands before the damage."""
    path, good = made(tmp_path)
    victim = next(f for f in judge(good).frames if id_of_or_none(good, f) == "m3")
    write_bytes(path, zero(good, victim.offset, 50))
    result = run(path, mode="prefix")
    assert result.done
    with Session.open(path) as session:
        assert [e.id for e in session.entries()] == ["m0", "m1", "m2"]
        session.append(custom("on"))


def test_inserted_bytes_and_doubled_frames(tmp_path: Path) -> None:
    """Bytes that were not there, or a frame that stands twice, cost no entry; the output
    verifies."""
    path, good = made(tmp_path)
    ids = list(entry_ids(good).values())
    for frame in judge(good).frames[1:-1:2]:
        for extra in (b"junk", good[frame.offset : frame.end], b"\xf7RG\x1d" * 5):
            data = good[: frame.end] + extra + good[frame.end :]
            if judge(data).case in ("A", "E"):
                continue
            shutil.rmtree(tmp_path / "home" / "session-artifacts", ignore_errors=True)
            write_bytes(path, data)
            check_repaired(path, data, run(path), ids)


def test_what_needs_no_repair_is_left_alone(tmp_path: Path) -> None:
    """Clean, torn, foreign, empty files: unchanged, nothing made; an owned one is refused."""
    path, good = made(tmp_path)
    for data in (good, good[:-5]):
        write_bytes(path, data)
        assert not run(path).done
        assert read_bytes(path) == data
    for data in (b"", b"plain text\n", bytes(500), b'{"type":"session"}\n'):
        write_bytes(path, data)
        with pytest.raises(NotAJournal):
            run(path)
        assert read_bytes(path) == data
    write_bytes(path, good)
    with Session.open(path), pytest.raises(TreeringError):
        run(path)
    assert not os.path.exists(tmp_path / "home" / "session-artifacts" / "s1" / "quarantine" / "x")


# Crashes and errors in the middle

SITUATIONS = [
    ("salvage", "C"),
    ("tail", "E"),
    pytest.param("prefix", "C", marks=pytest.mark.slow),
    pytest.param("salvage", "E", marks=pytest.mark.slow),
]


def situation(tmp_path: Path, case: str) -> tuple[str, bytes, int]:
    """A journal with a damaged entry in the middle (C), or at the start of its last batch (E); its
    bytes, and where the damage is."""
    path, good = made(tmp_path)
    frames = judge(good).frames
    if case == "C":
        victim = next(f for f in frames if id_of_or_none(good, f) == "m2")
        return path, zero(good, victim.offset, 60), victim.offset
    with Session.open(path) as session:
        session.append_many([custom("x1"), custom("x2"), custom("x3")])
        data = read_bytes(path)  # without EPOCH_CLOSE, which would be proof
    drop_index(path)
    victim = next(f for f in judge(data).frames if id_of_or_none(data, f) == "x1")
    return path, zero(data, victim.offset, 60), victim.offset


def start_again(tmp_path: Path, path: str, data: bytes) -> None:
    """The damaged journal alone: no index, nothing in quarantine, nothing half made."""
    shutil.rmtree(tmp_path / "home" / "session-artifacts", ignore_errors=True)
    for name in os.listdir(os.path.dirname(path)):
        os.unlink(os.path.join(os.path.dirname(path), name))
    drop_index(path)
    write_bytes(path, data)


def check_after_a_failure(tmp_path: Path, path: str, mode: Any, data: bytes, bad: int) -> None:
    """Nothing was changed, or all was done (a torn tail at least wiped) and every byte is kept in
    quarantine; and repairing (again) ends in a session that goes on, with nothing left to do and
    nothing half made."""
    now = read_bytes(path)
    wiped = data[:bad] + bytes(len(data) - bad)
    if now != data:
        kept = [value[2] for name, value in files_below(str(tmp_path / "home")).items()]
        is_cut = now in (data[:bad], wiped)
        assert (data[bad:] if is_cut else data) in kept
        assert judge(now).case == ("E" if now == wiped else "A")
    result = repair_session(path, mode=mode)
    assert result.done == (now in (data, wiped))
    quarantine = tmp_path / "home" / "session-artifacts" / "s1" / "quarantine"
    kept = [read_bytes(str(file)) for file in quarantine.iterdir()]
    assert (data[bad:] if result.action == "cut" or now == data[:bad] else data) in kept
    kept = [part for part in kept if part != wiped[bad:]]
    # A copy that was interrupted stays beside the whole one, as the beginning of the same bytes.
    assert all(data.startswith(part) or data[bad:].startswith(part) for part in kept)
    settled = read_bytes(path)
    again = repair_session(path, mode=mode)
    assert (again.action, again.done) == ("nothing", False)
    assert read_bytes(path) == settled
    with Session.open(path) as session:
        assert [session.has(i) for i in ("m1", "m2", "last")] == wanted_of(mode, data, bad)
        session.append(custom("on"))


def wanted_of(mode: str, data: bytes, bad: int) -> list[bool]:
    is_torn = b'"x3"' in data
    return [True, is_torn, is_torn or mode == "salvage"]


@pytest.mark.parametrize(("mode", "case"), SITUATIONS)
def test_an_error_at_every_disk_call_of_repair(tmp_path: Path, mode: Any, case: str) -> None:
    """A repair that fails leaves the damaged file or the repaired one under the name, the old
    bytes in both cases, no descriptor, and can be run again."""
    path, data, bad = situation(tmp_path, case)
    at, failed = 0, 0
    while True:
        at += 1
        start_again(tmp_path, path, data)
        disk = FaultyDisk()
        rule = disk.fail(at=at)
        try:
            repair_session(path, mode=mode, disk=disk)
        except TreeringError as error:
            assert error.path is not None, "an error says where"
            failed += 1
        assert disk.open_files == 0, f"at call {at}"
        check_after_a_failure(tmp_path, path, mode, data, bad)
        if not rule.fired:
            break
    assert at > 20
    assert failed > 10


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "case"), SITUATIONS)
def test_repair_killed_at_every_moment(tmp_path: Path, mode: Any, case: str) -> None:
    """SIGKILL before each operation on a file: the damaged file or the repaired one is under the
    name, the old bytes are kept, nobody holds a lock, and the next repair ends the work."""
    path, data, bad = situation(tmp_path, case)
    stop_at, status = 0, -1
    while status:
        stop_at += 1
        start_again(tmp_path, path, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            disk = FaultyDisk()

            def die(op: Any, disk: FaultyDisk = disk, stop_at: int = stop_at) -> None:
                if len(disk.log) >= stop_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(10)

            disk.before = die
            try:
                repair_session(path, mode=mode, disk=disk)
            finally:
                os._exit(0)
        status = os.waitpid(pid, 0)[1]
        check_after_a_failure(tmp_path, path, mode, data, bad)
    assert stop_at > 20


def test_F87_views_of_a_lost_head(tmp_path: Path) -> None:
    """SESSION is lost: a view shows every entry, and says Damaged only for the header."""
    path, good = made(tmp_path)
    write_bytes(path, drop_frame(good, judge(good).frames[1]))
    with SessionView.open(path, beyond_damage=True) as view:
        assert len(view.entries()) == len(entry_ids(good))
        with pytest.raises(Damaged):
            view.header  # noqa: B018
        assert view.report.case in ("B", "C")


def test_F66_an_unknown_required_thing_is_not_repaired_away(tmp_path: Path) -> None:
    """A journal of a newer version is refused by all, bytes unchanged."""
    from support.build import Maker

    maker = Maker().started()
    maker.open()
    maker.frame(0x55, b"{}")
    data = maker.whole()
    path, _ = made(tmp_path)
    write_bytes(path, data)
    with pytest.raises(Unsupported):
        Session.open(path)
    assert not run(path).done
    with SessionView.open(path) as view:
        assert view.report.problem_count == 1
    newer = maker.whole(version=99)
    write_bytes(path, newer)
    for call in (lambda: Session.open(path), lambda: run(path), lambda: SessionView.open(path)):
        with pytest.raises(Unsupported):
            call()
    assert read_bytes(path) == newer
