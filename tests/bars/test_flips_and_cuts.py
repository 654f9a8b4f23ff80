"""One journal with everything in it, flipped at every bit and cut at every byte, through what users
have: fsck, opening, reading, repair. Nothing stays unseen, nothing good is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from bars_helpers import (
    ACTIVATE,
    PROVENANCE,
    RETAINED,
    SESSION,
    Journal,
    custom,
    journal_of,
    realistic,
)
from support import damage
from support.long_runs import LONG

from treering.engine import Damaged, NotAJournal, Session, SessionView, TreeringError, repair
from treering.fuzz import oracle
from treering.tools.fsck import Checked, check_session

pytestmark = pytest.mark.usefixtures("no_syncs")

KINDS = {
    "B": "interior",
    "C": "interior",
    "D": "lost",
    "E": "torn",
    "F": "header",
    "G": "foreign",
}


@pytest.fixture
def journal(quick_path: Path) -> Journal:
    return realistic(quick_path)


def put(journal: Journal, data: bytes) -> None:
    """These bytes are the journal now; nothing of earlier turns lies beside it."""
    home = journal.path.parent.parent
    for name in ("session-index", "session-artifacts"):
        if (home / name).exists():
            shutil.rmtree(home / name)
    journal.path.write_bytes(data)


def checked(journal: Journal, data: bytes) -> Checked:
    """What fsck says, which changes no byte."""
    result = check_session(str(journal.path), with_index=False)
    assert journal.path.read_bytes() == data, "fsck changed the journal"
    assert not any(finding.kind == "unreadable" for finding in result.findings), result
    return result


def seen(entries: Iterable[Any]) -> list[tuple[str, bytes, int]]:
    return [(entry.id, entry.raw, entry.flags) for entry in entries]


def all_of(journal: Journal) -> dict[str, tuple[str, bytes, int]]:
    """Id -> what a reader shows of it, from the whole journal."""
    put(journal, journal.data)
    with SessionView.open(journal.path) as view:
        return {entry.id: shown for entry in view.iter_entries() for shown in seen([entry])}


def survivors(journal: Journal, lost: set[int]) -> list[str]:
    """Ids that must be shown when these frames are lost."""
    activation = next(f.sequence for f in journal.frames if f.kind == ACTIVATE)
    hidden = journal.staged if activation in lost else set()
    return [journal.ids[n] for n in sorted(journal.ids) if n not in lost | hidden]


def append_and_look(journal: Journal, wanted: list[tuple[str, bytes, int]]) -> None:
    """It opens, shows exactly these entries, and the next append is whole."""
    with Session.open(journal.path) as session:
        assert seen(session.iter_entries()) == wanted
        session.append(custom("next"))
    assert oracle.judge(journal.path.read_bytes()).case == "A"
    with SessionView.open(journal.path) as view:
        assert seen(view.iter_entries())[: len(wanted)] == wanted
        assert view.has("next")
        assert view.report.case == "A"


def test_the_journal_under_test(journal: Journal) -> None:
    """It holds what the bar asks for: epochs, an import, a batch, compressed and retained frames,
    a label, a request and a move; fsck finds it clean."""
    assert {frame.epoch for frame in journal.frames} == {1, 2, 3, 4}
    flags = [journal.data[frame.offset + 6] for frame in journal.frames]
    assert any(flag & RETAINED for flag in flags)
    assert len(journal.staged) == 2
    assert any(journal.data[frame.offset + 5] for frame in journal.frames), "nothing is compressed"
    assert {SESSION, PROVENANCE, ACTIVATE, 6, 8} <= {frame.kind for frame in journal.frames}
    result = checked(journal, journal.data)
    assert result.ok
    assert result.findings == []
    assert (result.case, result.frames) == ("A", len(journal.frames))
    assert len(journal.data) < 5000


def flips_are_found(journal: Journal, bits: Iterable[int], *, judge: bool = True) -> None:
    for bit in bits:
        data = damage.flip(journal.data, bit)
        put(journal, data)
        result = checked(journal, data)
        assert not result.ok, f"fsck calls the journal clean with bit {bit} flipped"
        assert result.case in KINDS, bit
        if judge:
            assert result.case == oracle.judge(data).case, bit
        (verdict,) = [f for f in result.findings if f.kind in KINDS.values()]
        assert verdict.kind == KINDS[result.case], bit
        assert verdict.next, "a finding without a next step"
        assert verdict.offset is not None
        assert verdict.length is not None
        if result.case != "F":
            assert verdict.offset <= bit // 8 < verdict.offset + max(verdict.length, 1), (
                bit,
                verdict,
            )


def test_F99_fsck_finds_flips_everywhere(journal: Journal) -> None:
    """A bit of every third byte, and of all of the headers: fsck needs action, names the case that
    the oracle names, and its finding covers the byte."""
    places = set(range(0, len(journal.data), 3)) | set(range(128))
    places |= {frame.offset + d for frame in journal.frames for d in range(44)}
    flips_are_found(journal, (at * 8 + at % 8 for at in sorted(places)))


@LONG
def test_F99_fsck_finds_every_flipped_bit(journal: Journal) -> None:
    """The same for every bit of the journal (the oracle names the cases of a smaller one, every bit
    of it, in tests/journal)."""
    flips_are_found(journal, range(len(journal.data) * 8), judge=False)


def flips_are_repaired(journal: Journal, places: Iterable[int]) -> None:
    """After a flip at these bytes: refused and repaired with every other frame, or a torn tail that
    is cut and costs nothing that anything proved."""
    whole = all_of(journal)
    for at in places:
        data = damage.flip(journal.data, at * 8 + at % 8)
        put(journal, data)
        hit = {f.sequence for f in journal.frames if f.offset <= at < f.end}
        wanted = [whole[entry_id] for entry_id in survivors(journal, hit)]
        verdict = oracle.judge(data)
        if verdict.case == "E":
            before = [whole[i] for i in survivors(journal, hit) if i in whole]
            append_and_look(journal, before)
            continue
        with pytest.raises(Damaged) as caught:
            Session.open(journal.path)
        assert caught.value.report is not None
        assert caught.value.report.case == verdict.case
        with SessionView.open(journal.path, beyond_damage=True) as view:
            assert seen(view.iter_entries()) == wanted, at
        assert journal.path.read_bytes() == data, "reading changed the journal"
        result = repair(journal.path)
        assert result.done
        assert result.kept_aside is not None
        assert Path(result.kept_aside).read_bytes() == data
        after = check_session(str(journal.path), with_index=False)
        assert after.ok, (at, after)
        append_and_look(journal, wanted)


def test_F93_repair_after_a_flip_in_every_frame(journal: Journal) -> None:
    """In each frame its magic, kind, length, sequence, header check, payload, revision and last
    byte, and in the file header each field: repair brings back every other frame, exactly."""
    places = {0, 9, 11, 13, 20, 30, 43, 45, 100, 127}
    for frame in journal.frames:
        middle = (frame.offset + frame.end) // 2
        inside = (0, 4, 9, 17, 26, 30, 41)
        places |= {frame.offset + d for d in inside} | {middle, frame.end - 16, frame.end - 1}
    flips_are_repaired(journal, sorted(places))


@pytest.mark.slow
def test_F93_repair_after_flips_all_over(journal: Journal) -> None:
    """The same for every ninth byte of the journal."""
    flips_are_repaired(journal, range(0, len(journal.data), 9))


def cuts_are_named(journal: Journal, sizes: Iterable[int], *, append_every: int = 1) -> None:
    whole = all_of(journal)
    ends = {frame.end for frame in journal.frames}
    first_epoch_close = next(f.end for f in journal.frames if f.end >= journal.published)
    assert first_epoch_close == journal.published
    for size in sizes:
        data = damage.cut(journal.data, size)
        put(journal, data)
        result = checked(journal, data)
        assert result.case == oracle.judge(data).case, size
        left = {f.sequence for f in journal.frames if f.end <= size}
        lost = {f.sequence for f in journal.frames} - left
        wanted = [whole[entry_id] for entry_id in survivors(journal, lost)]
        if size >= journal.published:
            # Not more than an unacknowledged end is missing, as far as the bytes tell: an earlier
            # state at the edge of a frame, and a torn tail everywhere else.
            assert result.case == ("A" if size in ends else "E"), size
            assert result.ok == (size in ends), size
            with SessionView.open(journal.path) as view:
                assert seen(view.iter_entries()) == wanted, size
            if size % append_every == 0:
                append_and_look(journal, wanted)
            continue
        assert not result.ok, f"fsck calls {size} bytes a clean journal"
        assert result.case in ("B", "F", "G"), size
        with pytest.raises((Damaged, NotAJournal)):
            Session.open(journal.path)
        assert journal.path.read_bytes() == data
        try:
            repaired = repair(journal.path)
        except TreeringError as error:
            assert isinstance(error, (Damaged, NotAJournal))
            assert not left, f"{len(left)} whole frames, and no repair at {size}"
            assert journal.path.read_bytes() == data
            continue
        assert repaired.done
        if size % append_every == 0:
            append_and_look(journal, wanted)


def test_F01_F95_every_cut_is_named_or_is_an_earlier_state(journal: Journal) -> None:
    """Every edge of a frame and the bytes around it, and every 13th byte: fsck names the case or
    the journal is an earlier state of itself; after a cut of the tail the next append is whole;
    below the published length opening refuses and repair keeps all whole frames."""
    sizes = set(damage.edges(journal.frames)) | set(range(0, len(journal.data), 13))
    cuts_are_named(journal, sorted(sizes | set(range(110, 140)) - {len(journal.data)}))


@pytest.mark.slow
def test_F01_F95_every_cut(journal: Journal) -> None:
    """The same at every byte, with an append after every 16th cut."""
    cuts_are_named(journal, range(len(journal.data)), append_every=16)


def test_F95_no_cut_goes_unnoticed_beside_an_index(journal: Journal) -> None:
    """An index that was closed cleanly holds a watermark: a journal cut anywhere before it, also at
    the edge of a frame, is acknowledged data lost; fsck finds it, opening refuses, no byte
    changes."""
    with Session.open(journal.path) as session:
        session.append(custom("d1"))
    now = journal_of(journal.path)
    for size in range(journal.published, len(now.data), 13):
        now.path.write_bytes(now.data[:size])
        result = check_session(str(now.path), with_index=False)
        assert (result.case, result.ok) == ("D", False), size
        with pytest.raises(TreeringError):
            Session.open(now.path)
        assert now.path.read_bytes() == now.data[:size]
    for end in [f.end for f in now.frames if journal.published <= f.end < len(now.data)]:
        now.path.write_bytes(now.data[:end])
        assert check_session(str(now.path), with_index=False).case == "D"
    now.path.write_bytes(now.data)
    assert check_session(str(now.path), with_index=True).ok


def test_reading_changes_nothing(journal: Journal) -> None:
    """Views and exports of damaged journals change neither bytes, nor inode, nor time stamps."""
    for at in range(0, len(journal.data), 41):
        data = damage.flip(journal.data, at * 8)
        put(journal, data)
        os.utime(journal.path, (1, 1))
        before = journal.path.stat()
        for beyond in (False, True):
            try:
                with SessionView.open(journal.path, beyond_damage=beyond) as view:
                    list(view.iter_entries())
                    view.branch()
            except TreeringError:
                pass
        after = journal.path.stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        assert journal.path.read_bytes() == data
        assert sorted(os.listdir(journal.path.parent.parent)) == ["sessions"]
