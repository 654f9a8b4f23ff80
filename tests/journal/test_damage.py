"""Damaged, torn and foreign bytes: each gets the case that the table says, and nothing is widened.

``treering.fuzz.oracle`` is a second, independent reading of the case table; every damaged file here is
judged by it and by the engine, and then opened for writing.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support import build, damage

from treering.engine.errors import (
    AcknowledgedDataLost,
    Damaged,
    NotAJournal,
    TreeringError,
    Unsupported,
)
from treering.engine.journal.reader import FileBytes
from treering.fuzz import oracle
from treering.fuzz.faulty_disk import quick_disk

DATA = (Path(__file__).resolve().parents[1] / "data/golden-epochs.jsonl").read_bytes()
WHOLE = oracle.judge(DATA)
FRAMES = WHOLE.frames
PUBLISHED = int.from_bytes(DATA[44:52], "little")
JOURNAL_ID = DATA[28:44]
PROVEN = oracle.proven_end(WHOLE, PUBLISHED)
SHOWN = build.visible(DATA, JOURNAL_ID)
ENDS = [frame.end for frame in FRAMES]


def mark(index: int) -> bytes:
    frame = FRAMES[index]
    return build.watermark(JOURNAL_ID, frame.sequence, frame.end, frame.revision)


def agree(data: bytes, watermark: bytes | None = None) -> oracle.Verdict:
    """The engine's verdict is the oracle's, in everything that a report says."""
    verdict = oracle.judge(data, watermark)
    found = build.look(data, watermark)
    assert found.case == verdict.case
    report = found.report()
    assert report.size == len(data)
    assert report.frames_beyond == len(verdict.beyond)
    assert [f.offset for f in found.beyond] == [f.offset for f in verdict.beyond]
    if found.stop is not None:
        assert report.expected_sequence == verdict.expected
        if verdict.case not in ("A", "F"):
            assert report.bad_offset == verdict.offset
    if verdict.case not in ("A", "E"):
        assert isinstance(found.refusal(), TreeringError)
    return verdict


ERRORS = {"B": Damaged, "C": Damaged, "D": AcknowledgedDataLost, "F": Damaged, "G": NotAJournal}


class Bench:
    """A store in which damaged files are opened for writing, one after another."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = build.make_store(tmp_path)
        self.disk = quick_disk()

    def open(self, data: bytes, watermark: bytes | None = None) -> oracle.Verdict:
        """Open for writing, check what was done to the bytes, append, reopen."""
        verdict = oracle.judge(data, watermark)
        path = build.put(self.store, data)
        shutil.rmtree(self.store.quarantine, ignore_errors=True)
        hint = None
        if watermark is not None:
            hint = build.Hint(watermark[:16], 0, 0, bytes(16), watermark)
        if verdict.case in ERRORS:
            with pytest.raises(ERRORS[verdict.case]) as caught:
                build.reopen(self.store, disk=self.disk, hint=hint)
            assert type(caught.value) is ERRORS[verdict.case]
            assert build.get(path) == data
            assert not os.path.exists(self.store.quarantine)
            return verdict
        opened = build.reopen(self.store, disk=self.disk, hint=hint)
        assert opened.report.case == verdict.case
        assert build.get(path) == data[: verdict.offset]
        cut = data[verdict.offset :]
        kept = os.listdir(self.store.quarantine) if os.path.isdir(self.store.quarantine) else []
        assert len(kept) == (1 if cut else 0)
        if cut:
            assert opened.report.quarantine is not None
            assert build.get(opened.report.quarantine) == cut
            assert opened.report.quarantined_bytes == len(cut)
            assert opened.report.quarantined_frames == len(verdict.beyond)
        writer = build.writer_of(opened)
        (new,) = writer.append([build.entry("new", "payload")])
        writer.close()
        whole = build.get(path)
        assert whole[: verdict.offset] == data[: verdict.offset]
        assert oracle.judge(whole).case == "A"
        assert any(f.revision == new.revision for f in oracle.judge(whole).frames)
        again = build.reopen(self.store, disk=self.disk)
        assert again.report.case == "A"
        again.owner.release()
        return verdict


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_journal_under_test() -> None:
    """Three epochs, a batch, retained and compressed frames, proven and unproven ones."""
    assert {frame.epoch for frame in FRAMES} == {1, 2, 3}
    assert PUBLISHED < PROVEN < len(DATA) <= 4096
    assert DATA.count(oracle.FRAME_MAGIC) == len(FRAMES)
    assert agree(DATA).case == "A"
    assert len(SHOWN) == 8


def test_case_A_clean(bench: Bench) -> None:
    """An end of file exactly after a frame is clean, whatever the last frame is."""
    for end in ENDS:
        if end >= PUBLISHED:
            assert bench.open(DATA[:end]).case == "A"


def expected_cut(size: int, watermark_end: int = 0) -> str:
    """The case table for a file that just ends at ``size``."""
    if size < 8:
        return "G"
    if size < ENDS[0]:
        return "F"
    if size < PUBLISHED:
        return "B"
    if size < watermark_end:
        return "D"
    return "A" if size in ENDS else "E"


@pytest.mark.parametrize("marked", [None, 8, 12, len(FRAMES) - 1])
def test_cut_at_every_byte_names_its_case(marked: int | None) -> None:
    """A file cut at any byte gets the case of the table; with a watermark, losses behind the
    published length that reach below it are case D."""
    watermark = None if marked is None else mark(marked)
    end = 0 if marked is None else FRAMES[marked].end
    for size in range(len(DATA) + 1):
        assert agree(DATA[:size], watermark).case == expected_cut(size, end), size


def test_cut_at_every_byte_is_an_earlier_state() -> None:
    """What is shown of a cut file is what the journal showed at the last whole frame before the
    cut: a prefix of the whole, the batch there whole or not at all."""
    states = {end: build.visible(DATA[:end], JOURNAL_ID) for end in ENDS}
    batch = [row for row in SHOWN if row[0] in (9, 10)]
    for size in range(PUBLISHED, len(DATA) + 1):
        shown = build.visible(DATA[:size], JOURNAL_ID)
        assert shown == states[max(end for end in ENDS if end <= size)]
        assert shown == SHOWN[: len(shown)]
        assert len([row for row in shown if row in batch]) in (0, len(batch))


def test_F01_some_cuts_then_append(bench: Bench) -> None:
    """After a cut anywhere, opening quarantines exactly the torn bytes and the next append is
    whole; refusals leave the bytes alone (every 23rd byte here; all of them in the slow test)."""
    for size in range(0, len(DATA) + 1, 23):
        assert bench.open(DATA[:size]).case == expected_cut(size)
        assert bench.open(DATA[:size], mark(12)).case == expected_cut(size, FRAMES[12].end)


@pytest.mark.slow
def test_F01_every_cut_then_append(bench: Bench) -> None:
    """As above, at every byte."""
    for size in range(len(DATA) + 1):
        assert bench.open(DATA[:size]).case == expected_cut(size)


def check_flip(bit: int) -> None:
    changed = damage.flip(DATA, bit)
    found = build.look(changed)
    assert found.case != "A", bit
    if bit < 128 * 8:
        assert found.case == "F"
        assert found.journal_id == JOURNAL_ID
        return
    at = bit >> 3
    hit = next(frame for frame in FRAMES if frame.offset <= at < frame.end)
    assert found.place.offset == hit.offset, bit
    assert found.place.sequence == hit.sequence
    if hit.end <= PUBLISHED:
        assert found.case == "B"
    else:
        assert found.case == ("C" if hit.end <= PROVEN else "E"), bit


@pytest.mark.parametrize("start", range(8))
def test_F99_flips_are_found(start: int) -> None:
    """No flipped bit is read as clean; it is located; what is proven durable is interior damage,
    never a torn tail (one bit of each byte here; every bit in the slow test)."""
    for byte in range(start, len(DATA), 8):
        check_flip(byte * 8 + (byte * 5 + start) % 8)


@pytest.mark.slow
def test_F99_every_flip_is_found() -> None:
    """Every bit of the file, one after another."""
    for bit in range(len(DATA) * 8):
        check_flip(bit)


@pytest.mark.slow
def test_F99_every_flip_agrees_with_the_oracle() -> None:
    """The whole verdict for one bit of every byte, with and without a watermark."""
    for byte in range(len(DATA)):
        agree(damage.flip(DATA, byte * 8 + byte % 8))
        agree(damage.flip(DATA, byte * 8 + (byte + 3) % 8), mark(len(FRAMES) - 1))


def test_F134_flip_in_a_compressed_payload_is_found() -> None:
    """zstd itself notices nothing of most flips; we notice all of them."""
    packed = next(f for f in FRAMES if f.kind == 2 and DATA[f.offset + 5] == 1)
    for bit in range(packed.offset * 8, packed.end * 8):
        assert build.look(damage.flip(DATA, bit)).place.offset == packed.offset


def test_flips_and_writer_opens(bench: Bench) -> None:
    """An open for writing of a flipped file never cuts what is proven durable."""
    for bit in range(3, len(DATA) * 8, 331):
        changed = damage.flip(DATA, bit)
        verdict = bench.open(changed)
        if verdict.case == "E":
            assert verdict.offset >= PROVEN
            assert len(build.get(bench.store.path())) >= PROVEN


def variants() -> Iterator[tuple[str, bytes]]:
    for i, frame in enumerate(FRAMES):
        yield f"drop-{i}", damage.drop_frame(DATA, frame)
        yield f"double-{i}", damage.double_frame(DATA, frame)
        if i + 1 < len(FRAMES):
            yield f"swap-{i}", damage.swap_frames(DATA, frame, FRAMES[i + 1])
        if i + 2 < len(FRAMES):
            yield f"swap-far-{i}", damage.swap_frames(DATA, frame, FRAMES[i + 1])
            yield (
                f"drop-two-{i}",
                damage.remove(DATA, frame.offset, FRAMES[i + 1].end - frame.offset),
            )
        yield f"repeat-at-end-{i}", DATA + DATA[frame.offset : frame.end]
    for at in damage.edges(FRAMES):
        for length in (1, 2, 59, 60, 128):
            yield f"insert-{length}-at-{at}", damage.insert(DATA, at, b"\xf7" * length)
            yield f"insert-zeros-{length}-at-{at}", damage.insert(DATA, at, bytes(length))
            yield f"remove-{length}-at-{at}", damage.remove(DATA, at, length)
    for block in (512, 4096):
        for at in range(0, len(DATA), 64):
            yield f"zero-{block}-at-{at}", damage.zero(DATA, at, block)
    for length in (1, 59, 60, 511, 4096):
        yield f"zero-tail-{length}", DATA + bytes(length)
        yield f"garbage-tail-{length}", DATA + random.Random(length).randbytes(length)
        yield f"magic-tail-{length}", DATA + (oracle.FRAME_MAGIC * length)[:length]


@cache
def all_variants() -> list[tuple[str, bytes]]:
    return list(variants())


def test_structural_damage_agrees_with_the_oracle() -> None:
    """Frames dropped, doubled, swapped; bytes inserted and removed around every boundary; blocks
    zeroed; every kind of tail: the verdict is the table's, and only E is what a writer may cut."""
    cases = set()
    for name, data in all_variants():
        verdict = agree(data)
        cases.add(verdict.case)
        if data != DATA and not DATA.startswith(data):
            assert verdict.case != "A", name
        if verdict.case == "E" and not name.startswith("zero-"):
            # A zeroed block can destroy the proof together with what it proves.
            assert verdict.offset >= PROVEN or name.startswith("remove-"), name
    assert cases == set("ABCEFG")


def test_structural_damage_and_writer_opens(bench: Bench) -> None:
    """The same files opened for writing (a sample; all in the slow test)."""
    for _, data in all_variants()[::9]:
        bench.open(data)


@pytest.mark.slow
def test_all_structural_damage_and_writer_opens(bench: Bench) -> None:
    """Every one of them opened for writing, without and with a watermark at the end."""
    for _, data in all_variants():
        bench.open(data)
        bench.open(data, mark(len(FRAMES) - 1))


def test_case_B_below_published(bench: Bench) -> None:
    """Below the published length nothing is ever a torn tail, even when nothing follows."""
    for frame in FRAMES:
        if frame.end > PUBLISHED:
            continue
        torn = damage.zero(DATA[:PUBLISHED], frame.offset + 50, 4)
        assert bench.open(torn).case == "B"
    assert bench.open(DATA[: PUBLISHED - 1]).case == "B"


def test_case_B_only_the_start_of_the_bad_frame_decides(bench: Bench) -> None:
    """A bad frame that starts at the published length is not below it."""
    first = next(frame for frame in FRAMES if frame.offset == PUBLISHED)
    assert bench.open(DATA[: first.end - 1]).case == "E"
    assert bench.open(damage.flip(DATA[: first.end], (first.offset + 50) * 8)).case == "E"


def test_case_C_needs_proof_beyond(bench: Bench) -> None:
    """A good frame beyond is damage only if it proves the bad one durable; one of the same write
    does not."""
    maker = build.Maker().started()
    maker.open()
    one = maker.entry("one")
    maker.entry("two")
    data = maker.whole()
    torn = damage.flip(data, (one.offset + 46) * 8)
    assert bench.open(torn).case == "E"
    maker.sync()
    maker.entry("three")
    torn = damage.flip(maker.whole(), (one.offset + 46) * 8)
    assert bench.open(torn).case == "C"


@pytest.mark.parametrize(("unsynced", "case"), [(0, "C"), (1, "C"), (2, "E"), (3, "E")])
def test_case_C_boundary_of_proof(unsynced: int, case: str) -> None:
    """Proof is ``sequence - unsynced`` strictly above the expected sequence."""
    maker = build.Maker().started()
    maker.open()
    bad = maker.entry("bad")
    maker.entry("between")
    maker.frame(build.ENTRY, b"{}", unsynced=unsynced)
    torn = damage.flip(maker.whole(), bad.offset * 8)
    assert agree(torn).case == case


def test_case_C_hostile_counters() -> None:
    """Sequences and unsynced counts at the ends of their fields neither crash nor hide damage."""
    for sequence, unsynced in ((2**64 - 1, 0), (2**63, 0), (2**64 - 1, 2**32 - 1), (4, 2**32 - 1)):
        maker = build.Maker().started()
        maker.open()
        bad = maker.entry("bad")
        maker.frame(build.ENTRY, b"{}", sequence=sequence, unsynced=unsynced)
        agree(damage.flip(maker.whole(), bad.offset * 8))
        agree(maker.whole())


def test_case_D_watermark(bench: Bench) -> None:
    """A valid watermark beyond the end, or of other bytes at its place, is loud and refuses; one
    that does not verify, or is of another journal, is ignored."""
    frame = FRAMES[-1]
    good = mark(len(FRAMES) - 1)
    assert bench.open(DATA, good).case == "A"
    assert bench.open(DATA[: frame.offset], good).case == "D"
    assert bench.open(DATA[:-1], good).case == "D"
    other = build.watermark(JOURNAL_ID, frame.sequence, frame.end, bytes(16))
    assert bench.open(DATA, other).case == "D"
    inside = build.watermark(JOURNAL_ID, frame.sequence, frame.end - 1, frame.revision)
    assert bench.open(DATA, inside).case == "D"
    huge = build.watermark(JOURNAL_ID, 2**64 - 1, 2**64 - 1, frame.revision)
    assert bench.open(DATA, huge).case == "D"
    assert bench.open(DATA[: frame.offset], damage.flip(good, 77)).case == "A"
    foreign = build.watermark(build.OTHER_ID, 99, 99999, bytes(16))
    assert bench.open(DATA[: frame.offset], foreign).case == "A"


def test_F95_cut_at_a_frame_boundary_is_seen_with_a_watermark(bench: Bench) -> None:
    """A file cut exactly after a frame looks clean by itself; the watermark tells."""
    for end in ENDS:
        if PUBLISHED <= end < len(DATA):
            assert bench.open(DATA[:end]).case == "A"
            assert bench.open(DATA[:end], mark(len(FRAMES) - 1)).case == "D"


def test_case_E_same_bytes_in_quarantine_are_not_kept_twice(bench: Bench) -> None:
    """An open that was interrupted after the quarantine copy finds that copy again."""
    torn = DATA[:-5]
    bench.open(torn)
    build.put(bench.store, torn)
    opened = build.reopen(bench.store, disk=bench.disk)
    opened.owner.release()
    assert len(os.listdir(bench.store.quarantine)) == 1
    # A copy that was cut short by a crash is not taken for a copy.
    (name,) = os.listdir(bench.store.quarantine)
    os.truncate(os.path.join(bench.store.quarantine, name), 3)
    build.put(bench.store, torn)
    opened = build.reopen(bench.store, disk=bench.disk)
    opened.owner.release()
    assert opened.report.quarantine is not None
    start = oracle.judge(torn).offset
    assert build.get(opened.report.quarantine) == torn[start:]


def test_case_E_epoch_is_above_the_cut_ones(bench: Bench) -> None:
    """The next epoch is above every epoch seen, those among the cut bytes included."""
    maker = build.Maker().started()
    maker.open(2)
    torn = maker.entry("torn")
    maker.open(9, unsynced=2)
    data = damage.flip(maker.whole(), torn.offset * 8)
    path = build.put(bench.store, data)
    writer = build.writer_of(build.reopen(bench.store, disk=bench.disk))
    (frame,) = writer.append([build.entry("x")])
    writer.close()
    assert frame.epoch == 10
    assert oracle.judge(build.get(path)).case == "A"


def test_case_F_header_damage_finds_the_id(bench: Bench) -> None:
    """A journal whose header is gone is damaged, not foreign; its id and frames are found."""
    for data in (
        damage.zero(DATA, 0, 128),
        damage.overwrite(DATA, 0, b"garbage"),
        build.file_header(build.OTHER_ID, 500) + DATA[128:],
        damage.insert(DATA, 0, b"\xef\xbb\xbf"),
        damage.insert(DATA, 50, b"\r"),
        damage.remove(DATA, 50, 1),
        damage.remove(DATA, 0, 128),
        damage.remove(DATA, 100, 40),
        DATA.replace(b"\r\n", b"\n"),
    ):
        verdict = agree(data)
        assert verdict.case == "F"
        found = build.look(data)
        assert found.journal_id == JOURNAL_ID
        bench.open(data)
        shown = verdict.expected + len(verdict.beyond)
        assert shown >= len(FRAMES) - (1 if len(data) < len(DATA) - 10 else 0)


def test_case_F_all_frames_are_found_when_header_bytes_are_missing() -> None:
    """With bytes lost from the header every frame moves down; the search starts at 0."""
    for count in (1, 5, 40, 128):
        found = build.look(damage.remove(DATA, 0, count))
        assert found.case == "F"
        assert [f.sequence for f in found.beyond] == list(range(len(FRAMES))), count


def test_case_F_id_named_by_the_watermark_only() -> None:
    """Without one good EPOCH frame, an id that the index or the user names is tried."""
    data = damage.zero(DATA, 0, 128)
    for frame in FRAMES:
        if frame.kind in (3, 5):
            data = damage.zero(data, frame.offset + 44, 8)
    assert build.look(data).case == "F"
    assert build.look(data).journal_id is None
    for found in (build.look(data, mark(5)), build.look(data, None, [JOURNAL_ID])):
        assert found.case == "F"
        assert found.journal_id == JOURNAL_ID
        assert found.beyond_count == len([f for f in FRAMES if f.kind not in (3, 5)])


def test_case_F_most_bytes_win() -> None:
    """Of two ids in one file, that whose frames cover most bytes is the journal's."""
    other = build.Maker(build.OTHER_ID).started().whole()
    data = damage.zero(DATA, 0, 128) + other
    assert build.look(data).journal_id == JOURNAL_ID
    data = damage.zero(other, 0, 128) + DATA
    assert build.look(data).journal_id == JOURNAL_ID


G_FILES = {
    "empty": b"",
    "newline": b"\n",
    "bom": b"\xef\xbb\xbf",
    "zeros": bytes(5000),
    "jsonl": b'{"type":"session","version":3}\n',
    "json frames": b'{"journalFrame":1,"sequence":0}\n',
    "sqlite": b"SQLite format 3\0" + bytes(100),
    "half a magic": b"\x89TRNG",
    "text": b"hello\n" * 100,
}


@pytest.mark.parametrize("name", G_FILES)
def test_case_G_not_a_journal(name: str, bench: Bench) -> None:
    """Zero bytes and other formats are refused as such, never overwritten (F33)."""
    assert agree(G_FILES[name]).case == "G"
    assert bench.open(G_FILES[name]).case == "G"


def test_case_G_never_published(bench: Bench) -> None:
    """A published length of 0 is a file that was never finished."""
    maker = build.Maker().started()
    maker.published = 0
    assert bench.open(maker.whole()).case == "G"


def test_F33_header_only_is_damage(bench: Bench) -> None:
    """A header and nothing else was never made by us: damaged, kept, refused."""
    assert bench.open(DATA[:128]).case == "F"


def test_F02_damage_in_the_middle_is_not_the_end() -> None:
    """One bad record of 100: 49 before it are read, 50 after it are found, nothing is silent."""
    maker = build.Maker().started()
    maker.open()
    for number in range(100):
        maker.sync()
        maker.entry(f"e{number}")
    bad = next(f for f in maker.frames if b'"e49"' in f.payload)
    for data in (
        damage.flip(maker.whole(), (bad.offset + 50) * 8),
        damage.remove(maker.whole(), bad.end - 5, 5),
        damage.overwrite(maker.whole(), bad.offset, b"{}".ljust(bad.end - bad.offset)),
    ):
        verdict = agree(data)
        assert verdict.case == "C"
        assert len(verdict.beyond) == 50
        assert len(build.visible(data)) == 49


def test_F04_zero_filled_tails(bench: Bench) -> None:
    """9 KB or 143 KB of zeros behind a good record: the good ones stay, append works."""
    for count in (9 * 1024, 143 * 1024):
        verdict = bench.open(DATA + bytes(count))
        assert (verdict.case, verdict.offset) == ("E", len(DATA))


def test_F05_ten_crashes_lose_only_the_torn_records(bench: Bench) -> None:
    """Torn tail, reopen, append, ten times: only the torn records are missing."""
    path = build.put(bench.store, DATA)
    for turn in range(10):
        writer = build.writer_of(build.reopen(bench.store, disk=bench.disk))
        writer.append([build.entry(f"keep{turn}")])
        size = writer.size
        writer.append([build.entry(f"torn{turn}")])
        build.crash(writer)
        os.truncate(path, size + 20 + turn)
    data = build.get(path)
    assert build.look(data).case == "E"
    text = b"".join(payload for _, _, payload in build.visible(data, JOURNAL_ID))
    assert [f'"keep{turn}"'.encode() in text for turn in range(10)] == [True] * 10
    assert b"torn" not in text
    assert build.get(path) == data


def test_F31_F87_lost_or_foreign_head_never_reads_as_empty(bench: Bench) -> None:
    """Garbage for a header, a lost first frame, a BOM: refused for writing, all found."""
    maker = build.Maker().started()
    maker.open()
    for number in range(100):
        maker.entry(f"e{number}")
    data = maker.whole()
    for changed in (
        b"garbage!" * 16 + data[128:],
        damage.drop_frame(data, maker.frames[0]),
        damage.drop_frame(data, maker.frames[1]),
        b"\xef\xbb\xbf" + data,
        b"\xef\xbb\xbf" + damage.drop_frame(data, maker.frames[0]),
    ):
        verdict = bench.open(changed)
        assert verdict.case in "BF"
        found = [f for f in verdict.frames + verdict.beyond if f.kind == build.ENTRY]
        assert len(found) == 100


def test_old_generation_tail(bench: Bench) -> None:
    """Frames of an older continuation behind the new one (blocks that resurface) are never taken
    for a continuation: they do not chain."""
    start = next(frame for frame in FRAMES if frame.offset == PUBLISHED)
    old = DATA
    store = bench.store
    build.put(store, DATA[: start.offset])
    writer = build.writer_of(build.reopen(store, disk=bench.disk))
    writer.append([build.entry("n")])
    build.crash(writer)
    new = build.get(store.path())
    for frame in FRAMES:
        if frame.offset >= start.offset:
            data = new + old[frame.offset :]
            verdict = agree(data)
            assert verdict.case in ("C", "E")
            assert verdict.offset == len(new)
            bench.open(data)
    mixed = new + old[len(new) :]
    assert agree(mixed).offset == len(new)


def test_foreign_frames_behind(bench: Bench) -> None:
    """Another journal's frames, whole or from the middle, are bytes like any others."""
    other = build.Maker(build.OTHER_ID).started()
    other.open()
    other.entry("foreign")
    other.sync()
    other.entry("foreign")
    for tail in (other.body, other.whole(), other.body[333:]):
        verdict = bench.open(DATA + tail)
        assert (verdict.case, verdict.offset, verdict.beyond) == ("E", len(DATA), [])


def test_frame_inside_a_payload(bench: Bench) -> None:
    """Frames (of this journal or another) inside a payload are payload: never found as history,
    whether their frame is whole, damaged, or torn."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("first")
    inner = maker.whole() + build.Maker(build.OTHER_ID).started().whole()
    maker.sync()
    outer = maker.frame(build.BLOB, inner)
    maker.sync()
    last = maker.entry("last")
    maker.sync()
    maker.entry("behind")
    data = maker.whole()
    assert agree(data).case == "A"
    for at in (outer.offset, outer.offset + 12, outer.offset + 45, outer.end - 1):
        verdict = agree(damage.flip(data, at * 8))
        assert verdict.case == "C"
        assert [f.offset for f in verdict.beyond] == [last.offset, last.end]
    torn = data[: outer.end - 1]
    verdict = bench.open(torn)
    assert (verdict.case, verdict.offset, verdict.beyond) == ("E", outer.offset, [])


WILD = [0, 1, 43, 2**16, 64 * 2**20, 64 * 2**20 + 1, 2**31, 2**32 - 1]


@pytest.mark.parametrize("forged", [False, True], ids=["flipped", "header-check-right"])
@pytest.mark.parametrize("length", WILD)
def test_F91_wild_length(length: int, forged: bool, bench: Bench) -> None:
    """A wild length field, in the last frame or in the middle, with a header check that is wrong or
    right: torn tail or located damage, and no big allocation."""
    for last in (True, False):
        maker = build.Maker().started()
        maker.open()
        maker.entry("good")
        maker.sync()
        wild = maker.frame(build.ENTRY, b"x" * 40, stored=length if forged else None)
        if not last:
            maker.sync()
            maker.entry("behind")
            maker.sync()
            maker.entry("proof")
        data = maker.whole()
        if not forged:
            data = damage.overwrite(data, wild.offset + 8, struct.pack("<I", length))
        path = build.put(bench.store, data)
        tracemalloc.start()
        try:
            found = build.look_at(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 * 2**20
        assert found.place.offset == wild.offset
        assert found.case == ("E" if last else "C")
        assert agree(data).case == found.case
        bench.open(data)


def test_F90_torn_sectors_of_the_last_record(bench: Bench) -> None:
    """Each 512-byte sector of a 4 KB last record zeroed in turn, alone and with 1 MB of zeros
    behind: the log ends before it, append works."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("before")
    maker.sync()
    last = maker.frame(build.ENTRY, random.Random(1).randbytes(4096))
    data = maker.whole()
    first = last.offset // 512 * 512
    for start in range(first, last.end, 512):
        begin = max(start, last.offset)
        torn = damage.zero(data, begin, start + 512 - begin)
        for tail in (b"", bytes(2**20)):
            verdict = bench.open(torn + tail)
            assert (verdict.case, verdict.offset) == ("E", last.offset)
            assert verdict.expected == last.sequence


def test_hash_budget_is_a_typed_refusal(bench: Bench) -> None:
    """Hostile headers that would make the search hash without end are refused, typed; the bytes
    stay, and it does not take long."""
    maker = build.Maker().started()
    maker.open()
    bad = maker.entry("bad")
    maker.sync()
    count = 600
    for number in range(count):
        left = (count - number - 1) * build.ENVELOPE
        maker.frame(build.ENTRY, b"", sequence=50 + number, stored=left)
    data = damage.flip(maker.whole(), bad.offset * 8)
    path = build.put(bench.store, data)
    with pytest.raises(TreeringError, match="hash"):
        build.look_at(path)
    with pytest.raises(TreeringError, match="hash"):
        build.reopen(bench.store, disk=bench.disk)
    assert build.get(path) == data


def test_F77_numbers_across_powers(bench: Bench) -> None:
    """A history of more than 10, 100, 1000 frames reads back in numeric order."""
    build.put(bench.store, DATA)
    writer = build.writer_of(build.reopen(bench.store, disk=bench.disk))
    for _ in range(12):
        writer.append([build.entry(f"{number}") for number in range(100)])
    writer.close()
    verdict = oracle.judge(build.get(bench.store.path()))
    assert verdict.case == "A"
    assert [f.sequence for f in verdict.frames] == list(range(verdict.expected))
    assert verdict.expected > 1200
    assert build.reopen(bench.store, disk=bench.disk).report.frames == verdict.expected


def test_F66_newer_version_on_disk_is_not_damage(bench: Bench) -> None:
    """Open refusals: future version. It is Unsupported, for reading and writing; not a byte
    changes."""
    for header in ({"version": 99}, {"required": 1 << 31}):
        maker = build.Maker().started()
        data = maker.whole(**header)
        path = build.put(bench.store, data)
        with pytest.raises(Unsupported):
            build.look_at(path)
        with pytest.raises(Unsupported):
            build.reopen(bench.store, disk=bench.disk)
        assert build.get(path) == data


def test_captured_size_is_never_passed(tmp_path: Path) -> None:
    """A reader never looks behind the size that it captured, whatever is appended meanwhile."""
    path = tmp_path / "s1.jsonl"
    for size in (PUBLISHED, ENDS[-2], len(DATA) - 7):
        path.write_bytes(DATA)
        file = quick_disk().open(str(path))
        source = FileBytes(file, str(path), size)
        from treering.engine.journal.recovery import examine

        assert examine(source).case == expected_cut(size)
        file.close()
