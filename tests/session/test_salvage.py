"""What a salvage takes, what it says of the rest, and what is durable before a journal is replaced."""

from __future__ import annotations

import json
import random
import shutil
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from session_helpers import new, read_bytes, user, write_bytes
from support import build

from treering.engine import (
    Conflict,
    Damaged,
    RepairResult,
    Session,
    SessionView,
    StorageError,
    Store,
    import_session,
    repair,
)
from treering.engine.journal.disk import LOCAL_DISK, File
from treering.engine.journal.payload import encode_splice
from treering.engine.journal.repair import repair as repair_journal
from treering.engine.journal.salvage import Lost, _longest_rise
from treering.engine.session.filling import stated_id
from treering.fuzz.faulty_disk import FaultyDisk
from treering.fuzz.oracle import judge
from treering.tools.fsck import check_session


def put(tmp_path: Path, data: bytes) -> str:
    return build.put(build.make_store(tmp_path), data)


def ids(path: str) -> list[str]:
    with SessionView.open(path) as view:
        return [entry.id for entry in view.iter_entries()]


def marked(path: str, mark: bytes, **more: Any) -> RepairResult:
    """Repair beside an index that remembers a watermark."""
    store = Store.of_journal(path)
    return repair_journal(LOCAL_DISK, path, store=store, hint=lambda _: (mark, [build.ID]), **more)


@pytest.mark.parametrize("mode", [None, "prefix"])
def test_an_import_that_ends_early_has_lost_its_end(tmp_path: Path, mode: Any) -> None:
    """Case B, cut exactly behind a frame: no byte is bad, and entries are gone all the same. A GAP
    says so, and nothing is byte-exact any more."""
    source = tmp_path / "source.jsonl"
    header = {"type": "session", "version": 3, "id": "x", "timestamp": "2025-01-01T00:00:00.000Z"}
    lines = [header | {"cwd": "/"}]
    for number in range(4):
        parent = f"e{number - 1}" if number else None
        entry = user(f"text {number}", f"e{number}", parentId=parent)
        lines.append(entry | {"timestamp": header["timestamp"]})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = import_session(source, home_dir=str(tmp_path / "home")).path
    data = read_bytes(path)
    frames = judge(data).frames
    last = next(frame for frame in reversed(frames) if frame.kind == build.ENTRY)
    write_bytes(path, data[: last.offset])
    with SessionView.open(path, beyond_damage=True) as view:
        assert view.gaps == [(last.offset, 0)]
    result = repair(path, mode=mode)
    assert result.gaps == [Lost(last.offset, 0, last.sequence, None)]
    assert ids(path) == ["e0", "e1", "e2"]
    with SessionView.open(path) as view:
        assert view.examination.walk is not None
        assert len(view.examination.walk.history.gaps) == 1
        provenance = view.provenance()
    assert provenance is not None
    assert json.loads(provenance[0])["byte_exact"] is False


def test_acknowledged_data_that_is_gone_leaves_a_gap(tmp_path: Path) -> None:
    """Case D, cut exactly behind a frame, salvaged: a GAP says that there was more."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    end = maker.end
    maker.sync().entry("b")
    path = put(tmp_path, maker.whole()[:end])
    result = marked(path, maker.mark(), mode="salvage")
    assert (result.case, result.done) == ("D", True)
    assert result.gaps == [Lost(end, 0, 5, None)]
    assert ids(path) == ["a"]


def test_a_batch_at_an_end_that_is_lost_is_unknown(tmp_path: Path) -> None:
    """Case D, cut between a batch and its EPOCH_ACTIVATE, which was durable: not abandoned."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    maker.batch("b1", "b2")
    path = put(tmp_path, maker.whole()[: maker.frames[-1].offset])
    result = marked(path, maker.mark(), mode="salvage", keep_unknown=True)
    assert result.activation_unknown == [5, 6]
    assert ids(path) == ["a", "b1", "b2"]


def test_damage_with_the_end_gone_too_has_two_gaps(tmp_path: Path) -> None:
    """Case C, and a watermark beyond the end of the file: both losses are said. One that lies
    within the file adds none."""
    maker = build.Maker().started()
    maker.open()
    bad = maker.entry("a")
    maker.sync().entry("b")
    end = maker.end
    within = maker.mark()
    maker.sync().entry("c")
    data = bytearray(maker.whole()[:end])
    data[bad.offset + 50] ^= 1
    for mark, gaps in (
        (within, [Lost(bad.offset, bad.end - bad.offset, 4, 4)]),
        (maker.mark(), [Lost(bad.offset, bad.end - bad.offset, 4, 4), Lost(end, 0, 6, None)]),
    ):
        home = tmp_path / str(len(gaps))
        home.mkdir()
        path = put(home, bytes(data))
        result = marked(path, mark)
        assert (result.case, result.gaps) == ("C", gaps)


def test_a_block_at_a_wrong_place_costs_what_it_covers(tmp_path: Path) -> None:
    """Frames of the end, written over earlier ones: those verify and rise, and must not make the
    salvage pass over everything between."""
    maker = build.Maker().started()
    maker.open()
    for number in range(60):
        maker.sync().entry(f"e{number:02d}")
    first, last = maker.frames[10], maker.frames[50]
    size = 3 * (last.end - last.offset)
    data = bytearray(maker.whole())
    data[first.offset : first.offset + size] = data[last.offset : last.offset + size]
    path = put(tmp_path, bytes(data))
    result = repair(path)
    assert result.gaps == [Lost(first.offset, size, 10, 12)]
    assert ids(path) == [f"e{number:02d}" for number in range(60) if not 6 <= number <= 8]


def test_the_longest_rise() -> None:
    """Compared with trying all; of equal numbers the first is taken."""
    assert _longest_rise([]) == b""
    assert _longest_rise([5, 5]) == b"\1\0"
    assert _longest_rise([1, 2, 3, 1, 2, 3]) == b"\1\1\1\0\0\0"
    chance = random.Random(7)
    for _ in range(200):
        numbers = [chance.randrange(8) for _ in range(chance.randrange(8))]
        flags = _longest_rise(numbers)
        taken = [number for number, flag in zip(numbers, flags, strict=True) if flag]
        assert all(before < after for before, after in pairwise(taken))
        longer = combinations(numbers, len(taken) + 1)
        assert not any(all(a < b for a, b in pairwise(some)) for some in longer)


def test_a_prefix_names_what_it_leaves_out(tmp_path: Path) -> None:
    """Frames of a newer release before the damage are not carried over, and the result says so."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    maker.frame(99, b"newer")
    bad = maker.entry("b")
    maker.sync().entry("c")
    data = bytearray(maker.whole())
    data[bad.offset + 50] ^= 1
    path = put(tmp_path, bytes(data))
    for mode in ("salvage", "prefix"):
        result = repair(path, mode=mode, dry_run=True)
        assert (result.misunderstood, result.left_out) == ([5], 1)


@pytest.mark.parametrize("shape", [{}, {"codec": 5, "raw": 4000}, {"flags": 0x8000}])
def test_frames_that_readers_may_skip_are_not_dropped_in_silence(
    tmp_path: Path, shape: dict[str, int]
) -> None:
    """Optional frames before and behind the damage: a new journal lacks them, and it is said."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    before = maker.frame(200, b"odd", **shape)
    bad = maker.entry("b")
    behind = maker.frame(255, b"odd", **shape)
    maker.sync().entry("c")
    data = bytearray(maker.whole())
    data[bad.offset + 50] ^= 1
    path = put(tmp_path, bytes(data))
    result = repair(path, mode="prefix", dry_run=True)
    assert (result.misunderstood, result.left_out) == ([before.sequence], 1)
    result = repair(path, mode="salvage")
    assert (result.misunderstood, result.left_out) == ([before.sequence, behind.sequence], 2)
    assert ids(path) == ["a", "c"]


def test_a_prefix_names_the_batch_whose_activation_it_lost(tmp_path: Path) -> None:
    """Its EPOCH_ACTIVATE does not verify; a batch abandoned long before is not meant."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("gone", flags=build.STAGED)
    maker.entry("a")
    maker.batch("b1", "b2")
    staged = [frame.sequence for frame in maker.frames[-3:-1]]
    bad = maker.frames[-1]
    maker.sync().entry("c")
    data = bytearray(maker.whole())
    data[bad.offset + 50] ^= 1
    path = put(tmp_path, bytes(data))
    result = repair(path, mode="prefix")
    assert (result.activation_unknown, result.left_out) == (staged, 2)
    assert ids(path) == ["a"]


def test_a_torn_tail_of_a_newer_release_names_no_repair(tmp_path: Path) -> None:
    """No mode may cut it, so a strict refusal sends nobody there."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(99, b"newer")
    path = put(tmp_path, maker.whole() + b"torn")
    for refused in (lambda: Session.open(path, mode="strict"), lambda: repair(path, mode="strict")):
        with pytest.raises(Damaged) as caught:
            refused()
        assert caught.value.next_step == f"next: treering dump {path}"


def test_a_read_that_fails_is_no_lost_payload(tmp_path: Path) -> None:
    """A clean journal with a BLOB: whichever read fails, it is never salvaged into a new one, and
    never called undecodable."""
    maker = build.Maker().started()
    maker.open()
    blob = maker.frame(build.BLOB, b"shared text " * 10)
    text = b'{"type":"message","id":"a","text":""}'
    pieces = [(len(text) - 2, blob.sequence, blob.raw, 0)]
    maker.frame(build.ENTRY, encode_splice(text, pieces), codec=128, raw=len(text) + blob.raw)
    maker.close()
    path = put(tmp_path, maker.whole())
    at, failed = 0, 0
    while True:
        at += 1
        disk = FaultyDisk()
        rule = disk.fail("pread", at=at, path=path)
        try:
            result = repair(path, mode="salvage", disk=disk)
        except StorageError:
            failed += 1
        else:
            assert result.action == "nothing", f"at read {at}"
        if not rule.fired:
            break
    assert failed == at - 1 > 3


def test_the_old_bytes_are_durable_before_they_are_replaced(tmp_path: Path) -> None:
    """What a dead writer never synced is kept aside durably, too: the old file is synced before
    it gets its second name."""
    with new(tmp_path, session_id="s1", compression=False) as session:
        session.append(user("UNIQUE", "a"))
        session.append(user("other", "b"))
    path = session.path
    data = read_bytes(path)
    write_bytes(path, data.replace(b"UNIQUE", b"uniquE"))
    disk = FaultyDisk()
    assert repair(path, disk=disk).done
    done = [(op.name, op.path) for op in disk.log]
    names = [name for name, _ in done]
    assert ("fsync", path) in done[: names.index("link")]
    bad = data.replace(b"UNIQUE", b"uniquE")
    write_bytes(path, bad)
    disk = FaultyDisk()
    disk.fail("fsync", path=path)
    with pytest.raises(StorageError):
        repair(path, disk=disk)
    assert read_bytes(path) == bad


@pytest.mark.parametrize("first_owner", [True, False])
def test_what_a_crashed_owner_knew_is_seen(tmp_path: Path, first_owner: bool) -> None:
    """The newest watermark stands in the -wal of a crashed owner's index: a journal that was rolled
    back since is case D for views, fsck and repair, as for the next owner, and stays it."""
    home = tmp_path / "home"
    session = new(tmp_path, session_id="s1")
    session.append(user("text", "a"))
    session.entries()
    if not first_owner:
        session.close()
        session = Session.open(session.path)
        session.append(user("text", "b"))
    path = session.path
    short = read_bytes(path)
    session.append(user("text", "c"))
    session.entries()
    shutil.copytree(home / "session-index", tmp_path / "index-of-the-crash")
    session.close()
    shutil.rmtree(home / "session-index")
    shutil.copytree(tmp_path / "index-of-the-crash", home / "session-index")
    write_bytes(path, short)
    assert list((home / "session-index").glob("*-wal"))
    with SessionView.open(path) as view:
        assert view.report.case == "D"
    assert check_session(path, with_index=False).case == "D"
    for dry_run in (True, False):
        with pytest.raises(Conflict):
            repair(path, dry_run=dry_run)
    assert repair(path, mode="prefix").done
    with Session.open(path) as session:
        assert session.has("a")
        assert not session.has("c")


def test_a_dry_run_beside_an_owner_sees_no_loss(tmp_path: Path) -> None:
    """The watermark is asked for before the size: what is appended in between is not missing."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    end = maker.end
    maker.sync().entry("b")
    path = put(tmp_path, maker.whole()[:end])

    def hint(_file: File) -> tuple[bytes | None, list[bytes]]:
        write_bytes(path, maker.whole())
        return maker.mark(), []

    result = repair_journal(LOCAL_DISK, path, store=Store.of_journal(path), hint=hint, dry_run=True)
    assert result.case == "A"


@pytest.mark.parametrize("data", [b"", b"short", bytes(200), b"x" * 40])
def test_a_header_without_an_id_states_none(tmp_path: Path, data: bytes) -> None:
    """Bytes that would be found all over a -wal are not searched there."""
    file = LOCAL_DISK.open(put(tmp_path, data))
    assert stated_id(file, "s1") is None
    file.close()
