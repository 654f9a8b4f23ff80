"""What an examination tells: the whole report and refusal of every case, word for word; a scan that
goes on behind a remembered frame; a header that is another journal's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from support import build, damage
from support.build import ID, OTHER_ID, Maker, Memory, look

from treering.engine.errors import AcknowledgedDataLost, Damaged, NotAJournal
from treering.engine.journal.format import FileHeader, Frame, salt_of
from treering.engine.journal.history import Problem
from treering.engine.journal.reader import frame_at
from treering.engine.journal.recovery import Examination, Report, examine

PATH = "memory/s1.jsonl"


def journal() -> Maker:
    """Frames 0 to 2 are published; a, b and c (4 to 6) follow a sync each, d (7) does not."""
    made = Maker().started()
    made.open()
    for name in "abc":
        made.sync().entry(name)
    made.entry("d")
    return made


JOURNAL = journal()
WHOLE = JOURNAL.whole()
FRAMES = JOURNAL.frames
PUBLISHED = FRAMES[2].end
A, B, C, D = FRAMES[4:]
HEADERLESS = damage.zero(WHOLE, 0, 128)


def broken(made: build.Made) -> bytes:
    """The journal with one wrong bit in the payload of that frame."""
    return damage.flip(WHOLE, (made.offset + 46) * 8)


# Reports and refusals


class Told(NamedTuple):
    """Bytes, a watermark, and what is told of them."""

    data: bytes
    watermark: bytes | None
    report: Report
    what: str = ""
    next_step: str | None = None


def report(case: str, data: bytes, verdict: str, **more: object) -> Report:
    fields: dict[str, object] = {"journal_id": ID.hex()} | more
    return Report(PATH, case, len(data), verdict, **fields)  # type: ignore[arg-type]


def place(frames: int, offset: int | None) -> dict[str, int | None]:
    return {"expected_sequence": frames, "frames": frames, "bad_offset": offset}


INTERIOR = "interior damage: bytes that were durable when the journal was published do not verify"
LATER = "interior damage: a later frame proves that the bad bytes were durable"
LOST = "acknowledged data lost: a watermark knows more than the journal holds"
TORN = "torn tail: bytes that nothing proves to have been acknowledged"
GONE = "the frame at the watermark is gone or has other bytes"
NO_ID = "no frame verifies and no journal id is found: restore a copy"
ENDS_BELOW = f"the file ends below its published length {PUBLISHED}"

CUT_AT_FRAME = WHOLE[: FRAMES[1].end]
CUT_BEFORE_D = WHOLE[: D.offset]
CUT_IN_D = WHOLE[: D.end - 1]
NEVER_PUBLISHED = build.file_header(ID, 0) + JOURNAL.body
MAGIC_ONLY = bytes(200) + build.FRAME_MAGIC + bytes(200)

TOLD = {
    "clean": Told(WHOLE, None, report("A", WHOLE, "clean", proven_below=6, **place(8, None))),
    "ends below its published length": Told(
        CUT_AT_FRAME,
        None,
        report(
            "B",
            CUT_AT_FRAME,
            INTERIOR,
            reason=ENDS_BELOW,
            proven_below=2,
            **place(2, FRAMES[2].offset),
        ),
        f"{INTERIOR} ({ENDS_BELOW})",
        f"next: treering repair {PATH}",
    ),
    "bad below its published length": Told(
        broken(FRAMES[1]),
        None,
        report(
            "B",
            WHOLE,
            INTERIOR,
            reason="digest",
            proven_below=1,
            frames_beyond=6,
            **place(1, FRAMES[1].offset),
        ),
        f"{INTERIOR} (digest); 6 good frames beyond",
        f"next: treering repair {PATH}",
    ),
    "bad before a proof": Told(
        broken(A),
        None,
        report(
            "C",
            WHOLE,
            LATER,
            reason="digest",
            proven_below=3,
            frames_beyond=3,
            **place(4, A.offset),
        ),
        f"{LATER} (digest); 3 good frames beyond",
        f"next: treering repair {PATH}",
    ),
    "cut below the watermark": Told(
        CUT_BEFORE_D,
        JOURNAL.mark(),
        report("D", CUT_BEFORE_D, LOST, reason=GONE, proven_below=6, **place(7, D.offset)),
        f"{LOST} ({GONE})",
        f"next: treering repair {PATH} --accept-loss",
    ),
    "torn below the watermark": Told(
        CUT_IN_D,
        JOURNAL.mark(),
        report("D", CUT_IN_D, LOST, reason="cut short", proven_below=6, **place(7, D.offset)),
        f"{LOST} (cut short)",
        f"next: treering repair {PATH} --accept-loss",
    ),
    "torn": Told(
        CUT_IN_D,
        None,
        report("E", CUT_IN_D, TORN, reason="cut short", proven_below=6, **place(7, D.offset)),
        f"{TORN} (cut short)",
        f"next: treering repair {PATH} --mode tail",
    ),
    "no header": Told(
        HEADERLESS,
        None,
        report(
            "F",
            WHOLE,
            "damaged file header",
            reason="the file header does not verify",
            proven_below=6,
            **place(8, D.end),
        ),
        "damaged file header (the file header does not verify)",
        f"next: treering repair {PATH}",
    ),
    "no header and no id": Told(
        MAGIC_ONLY,
        None,
        report("F", MAGIC_ONLY, "damaged file header", reason=NO_ID, journal_id=None),
        f"damaged file header ({NO_ID})",
        f"next: mv -n -- {PATH} {PATH}.aside",
    ),
    "never published": Told(
        NEVER_PUBLISHED,
        None,
        report("G", NEVER_PUBLISHED, "not a journal", reason="it was never published"),
        "not a journal (it was never published)",
    ),
    "another format": Told(
        b"text\n",
        None,
        report("G", b"text\n", "not a journal", reason="no frame of a journal", journal_id=None),
        "not a journal (no frame of a journal)",
    ),
}
ERRORS = {"D": AcknowledgedDataLost, "G": NotAJournal}


@pytest.mark.parametrize("name", TOLD)
def test_the_whole_report(name: str) -> None:
    told = TOLD[name]
    assert look(told.data, told.watermark).report() == told.report


@pytest.mark.parametrize("name", [name for name, told in TOLD.items() if told.report.case != "A"])
def test_the_whole_refusal(name: str) -> None:
    told = TOLD[name]
    error = look(told.data, told.watermark).refusal()
    assert type(error) is ERRORS.get(told.report.case, Damaged)
    assert (error.what, error.path) == (told.what, PATH)
    assert (error.offset, error.next_step) == (told.report.bad_offset, told.next_step)
    if isinstance(error, Damaged):
        assert error.report == told.report


def test_a_report_counts_what_it_lists() -> None:
    made = Maker().started()
    made.open()
    left = made.entry("left", flags=build.STAGED)
    odd = made.frame(77, b"what is it")
    told = look(made.whole()).report()
    assert (told.abandoned, told.abandoned_count) == ([left.sequence], 1)
    assert told.problems == [Problem(odd.sequence, odd.offset, "kind 77")]
    assert told.problem_count == 1


def test_of_what_was_never_published_only_the_header_is_told() -> None:
    found = look(NEVER_PUBLISHED)
    assert found.header == FileHeader(1, 128, 0, 0, 1_700_000_000_123, ID, 0)
    assert (found.watermark, found.watermark_broken) == (None, False)
    assert (found.proven, found.proven_below, found.proven_by_beyond) == (None, 0, 0)
    assert (found.from_header, found.epoch_max) == (True, 0)


def test_the_last_frame_below_the_watermark_is_proven() -> None:
    found = look(WHOLE, JOURNAL.mark())
    assert found.proven is not None
    assert (found.proven.sequence, found.proven_below) == (D.sequence, D.sequence + 1)


# A scan that goes on behind a remembered frame


class Watched(Memory):
    """Bytes that remember where they were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.places: list[int] = []

    def read_at(self, offset: int, length: int) -> bytes:
        """See Memory."""
        self.places.append(offset)
        return super().read_at(offset, length)


def resumed(
    made: build.Made,
    data: bytes = WHOLE,
    watermark: bytes | None = None,
    known_ids: Iterable[bytes] = (),
) -> Examination:
    """Examine ``data``; the scan starts behind a frame that was verified before."""
    return examine(
        Memory(data), watermark=watermark, known_ids=known_ids, from_frame=remembered(made)
    )


def remembered(made: build.Made) -> Frame:
    found = frame_at(Memory(WHOLE), salt_of(ID), made.offset)
    assert found is not None
    return found[0]


def test_a_resumed_scan_reads_nothing_before_its_frame() -> None:
    source = Watched(WHOLE)
    found = examine(source, watermark=JOURNAL.mark(5), from_frame=remembered(B))
    assert source.places[0] == 0
    assert source.places[1:]
    assert min(source.places[1:]) == B.end
    assert (found.case, found.from_header, found.report().frames) == ("A", False, 8)
    assert (found.reason, found.epoch_max) == (None, 2)


def test_the_frame_that_a_scan_resumes_behind_is_proven() -> None:
    """By itself, and by the next one that follows a sync."""
    for made in (D, B):
        found = resumed(made)
        assert found.from_header is False
        assert found.proven == remembered(made)
        assert found.proven_below == made.sequence + 1


def other_bytes_at(made: build.Made) -> bytes:
    return build.watermark(ID, made.sequence, made.end, bytes(16))


@pytest.mark.parametrize(
    ("watermark", "case", "from_header", "proven"),
    [
        pytest.param(None, "A", False, B, id="none"),
        pytest.param(JOURNAL.mark(5), "A", False, B, id="at the frame"),
        pytest.param(JOURNAL.mark(7), "A", False, D, id="ahead"),
        pytest.param(JOURNAL.mark(4), "A", True, B, id="behind it"),
        pytest.param(other_bytes_at(B), "D", True, B, id="other bytes at the frame"),
        pytest.param(other_bytes_at(D), "D", True, B, id="other bytes ahead"),
    ],
)
def test_a_watermark_and_a_frame_to_resume_behind(
    watermark: bytes | None, case: str, from_header: bool, proven: build.Made
) -> None:
    """Only where the scan passes the watermark, clean, is its verdict the last word."""
    found = resumed(B, WHOLE, watermark)
    assert (found.case, found.from_header) == (case, from_header)
    assert found.proven is not None
    assert found.proven.sequence == proven.sequence


def test_a_torn_tail_is_decided_from_the_header() -> None:
    found = resumed(B, CUT_IN_D)
    assert (found.case, found.from_header) == ("E", True)


def test_a_watermark_goes_along_when_it_is_decided_from_the_header() -> None:
    found = resumed(B, CUT_IN_D, JOURNAL.mark())
    assert (found.case, found.from_header) == ("D", True)


def test_a_problem_is_looked_at_from_the_header() -> None:
    made = journal()
    made.frame(77, b"what is it")
    found = resumed(B, made.whole())
    assert (found.case, found.from_header) == ("A", True)
    assert found.report().problem_count == 1


def test_known_ids_go_along_when_it_is_decided_from_the_header() -> None:
    """The header is whole, but the frames have become those of another journal, without a name."""
    other = Maker(OTHER_ID, first_sequence=4, epoch=2)
    for _ in range(20):
        other.entry()
    data = build.file_header(ID, PUBLISHED) + other.body
    assert len(data) > B.end
    assert resumed(B, data).journal_id is None
    found = resumed(B, data, known_ids=[OTHER_ID])
    assert (found.case, found.journal_id) == ("F", OTHER_ID)


# A header that is another journal's


def test_the_header_of_another_journal_still_tells_how_long_the_file_was() -> None:
    found = look(build.file_header(OTHER_ID, 10_000) + JOURNAL.body, JOURNAL.mark())
    assert (found.case, found.journal_id) == ("F", ID)
    assert (found.published_length, found.end_is_lost) == (10_000, True)
    assert found.watermark is not None
    assert (found.watermark.sequence, found.proven_below) == (D.sequence, D.sequence + 1)
