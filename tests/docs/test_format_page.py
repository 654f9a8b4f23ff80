"""``docs/journal-format.md`` says what the engine does: numbers, example, reader."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from docs import format_example
from docs.pages import DOCS, blocks, section, table
from treering import Session, SessionView, Unsupported
from treering.engine import home, limits
from treering.engine.journal import control, payload, recovery
from treering.engine.journal import format as fmt

PAGE = DOCS / "journal-format.md"


def cells_of(layout: struct.Struct) -> list[tuple[int, int]]:
    """(offset, size) of every field of a struct, integers and byte strings alike."""
    cells = []
    at = 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout.format.lstrip("<")):
        repeat = 1 if code == "s" else int(count or 1)
        for _ in range(repeat):
            size = struct.calcsize(f"<{count if code == 's' else ''}{code}")
            cells.append((at, size))
            at += size
    return cells


def page_cells(heading: str) -> list[tuple[int, int, str]]:
    rows = []
    for line in section(PAGE, heading).splitlines():
        found = re.match(r"\| (\d+) \| (\d+) \| (.*?) \|", line)
        if found:
            rows.append((int(found[1]), int(found[2]), found[3]))
    return rows


def test_file_header_table_is_the_struct_of_the_engine() -> None:
    """Every offset and size of the table, the digest last."""
    want = [
        *cells_of(fmt._FILE_HEADER),
        (fmt.FILE_HEADER_BYTES - fmt.DIGEST_BYTES, fmt.DIGEST_BYTES),
    ]
    assert [row[:2] for row in page_cells("### File header")] == want


def test_frame_table_is_the_struct_of_the_engine() -> None:
    """The frame header, up to the first table of the section that has other columns."""
    rows = [row for row in page_cells("## Frame") if row[2] in _FRAME_FIELDS]
    assert [row[2] for row in rows] == list(_FRAME_FIELDS)
    assert [row[:2] for row in rows] == cells_of(fmt._FRAME_HEADER)


_FRAME_FIELDS = (
    "magic",
    "kind",
    "codec",
    "flags",
    "stored length",
    "raw length",
    "sequence",
    "epoch",
    "unsynced",
    "previous",
    "header check",
)


def test_watermark_table_is_the_struct_of_the_engine() -> None:
    want = [*cells_of(fmt._WATERMARK), (fmt.WATERMARK_BYTES - fmt.DIGEST_BYTES, fmt.DIGEST_BYTES)]
    assert [row[:2] for row in page_cells("## What a frame proves")] == want


def test_splice_table_is_the_struct_of_the_engine() -> None:
    rows = table(PAGE, "field", "size", "meaning")
    assert rows[0][:2] == ["count", str(payload._U16.size)]
    assert [int(row[1]) for row in rows[1:]] == [size for _, size in cells_of(payload._PIECE)]
    assert f"pieces of {payload._PIECE.size} bytes" in PAGE.read_text()


def test_magics() -> None:
    values = {row[2]: row[3] for row in table(PAGE, "offset", "size", "field", "value")}
    assert bytes.fromhex(re.findall(r"`([0-9A-F ]+)`", values["magic"])[0]) == fmt.FILE_MAGIC
    meanings = {row[2]: row[3] for row in table(PAGE, "offset", "size", "field", "meaning")}
    assert bytes.fromhex(re.findall(r"`([0-9A-F ]+)`", meanings["magic"])[0]) == fmt.FRAME_MAGIC
    assert values["format version"] == str(fmt.FORMAT_VERSION)
    assert values["header length"] == str(fmt.FILE_HEADER_BYTES)


def test_limits_table() -> None:
    """Each row is a constant of format.py or limits.py, and has its value."""
    rows = table(PAGE, "constant", "value")
    assert len(rows) == 13
    for name, value, _ in rows:
        constant = name.strip("`")
        source = limits if hasattr(limits, constant) else fmt
        assert getattr(source, constant) == int(value), constant


def test_kinds_table() -> None:
    rows = table(PAGE, "kind", "name", "payload")
    assert {int(row[0]): row[1] for row in rows} == {int(kind): kind.name for kind in fmt.Kind}
    assert fmt.OPTIONAL_KIND_BIT == 1 << 7


def test_codec_and_flag_tables() -> None:
    codecs = [int(row[0]) for row in table(PAGE, "codec", "stored payload")]
    assert codecs == [fmt.CODEC_RAW, fmt.CODEC_ZSTD, fmt.CODEC_ZSTD_DICTIONARY]
    assert fmt.CODEC_SPLICED_BIT == 1 << 7
    flags = table(PAGE, "bits", "mask", "meaning")
    masks = [int(row[1], 16) for row in flags]
    assert masks == [fmt.FLAG_RETAINED, fmt.FLAG_QUALIFICATION_MASK, fmt.FLAG_STAGED]
    assert sum(masks) == fmt.FLAGS_KNOWN
    spelt = re.findall(r"(\d) ([a-z-]+)", flags[1][2])
    assert [(int(number), name) for number, name in spelt] == [
        (number, name or "none") for number, name in enumerate(fmt.QUALIFICATIONS)
    ]
    stageable = re.search(r"STAGED on a kind other than (.*?) is a problem", _flat())
    assert stageable is not None
    names = set(re.findall(r"[A-Z]+", stageable[1]))
    assert names == {kind.name for kind in fmt.STAGEABLE_KINDS}


def _flat() -> str:
    return " ".join(PAGE.read_text().split())


def test_control_payloads_have_the_members_of_the_page() -> None:
    rows = {row[1]: row[2] for row in table(PAGE, "kind", "name", "payload")}
    for name, struct_type in (
        ("EPOCH_ACTIVATE", control.EpochActivate),
        ("EPOCH_CLOSE", control.EpochClose),
        ("LEAF", control.Leaf),
        ("GAP", control.Gap),
    ):
        named = re.search(r"\{(.*?)\}", rows[name])
        assert named is not None
        assert tuple(named[1].split(", ")) == struct_type.__struct_fields__
    opened = _flat().split("- EPOCH_OPEN: ")[1].split("- EPOCH_ACTIVATE: ")[0]
    for field in (*control.EpochOpen.__struct_fields__, *control.WriterInfo.__struct_fields__):
        assert f"`{field}`" in opened, field
    for purpose in ("create", "append", "import", "fork", "repair", "repack", "full", "os"):
        assert f"`{purpose}`" in opened
    assert not control.REQUIRES_KNOWN, "the page says that version 1 knows no name"


def test_case_table_has_the_cases_and_verdicts_of_recovery() -> None:
    rows = table(PAGE, "case", "finding", "verdict")
    assert [row[0] for row in rows] == list("ABCDEFG")
    for row in rows:
        assert recovery.VERDICTS[row[0]].startswith(row[2]), row[0]
    assert "tested in the order **G, F, B, C, D, A, E**" in PAGE.read_text()
    assert "order G, F, B, C, D, A, E" in (recovery.__doc__ or "")


def test_session_ids_of_the_page() -> None:
    longest = limits.SESSION_ID_CHARS_MAX
    assert f"has 1 to {longest} characters" in _flat()
    home.check_session_id("a" * longest)
    home.check_session_id("a.b_c-D")
    for bad in ("a" * (longest + 1), "", ".a", "a-", "a..b", "con", "a/b", "é"):
        with pytest.raises(Exception, match="session id"):
            home.check_session_id(bad)


# The worked example


@pytest.fixture
def example() -> bytes:
    (dump,) = blocks(PAGE, "hex")
    return format_example.parse(dump)


def test_the_dump_is_what_the_engine_writes(tmp_path: Path, example: bytes) -> None:
    """One create, one append, one close, byte for byte; notes and offsets of the dump included."""
    data = format_example.make(tmp_path)
    assert data == example
    (dump,) = blocks(PAGE, "hex")
    assert dump == format_example.draw(data)


def test_the_engine_reads_the_dump(tmp_path: Path, example: bytes) -> None:
    path = tmp_path / "sessions" / "example.jsonl"
    path.parent.mkdir()
    path.write_bytes(example)
    with SessionView.open(path) as view:
        assert view.report.case == "A"
        assert view.report.frames == 6
        assert [entry.raw for entry in view.iter_entries()] == [format_example.ENTRY]
        assert view.header.id == "example"
        assert view.header.cwd == "/project"
        assert view.leaf_id == "a1b2c3d4"
        assert view.journal_id == format_example.JOURNAL_ID
    assert path.read_bytes() == example
    with Session.open(path) as session:
        assert session.append({"type": "custom", "customType": "x"})


def test_every_byte_of_the_example_counts(example: bytes) -> None:
    """A page with any wrong bit is noticed: no flip leaves a clean journal."""
    assert _examined(example).case == "A"
    for at in range(len(example)):
        for bit in range(8):
            flipped = bytes((example[at] ^ 1 << bit,))
            try:
                case = _examined(example[:at] + flipped + example[at + 1 :]).case
            except Unsupported:
                raise AssertionError(f"byte {at} bit {bit} reads as a newer release") from None
            assert case != "A", f"byte {at} bit {bit}"


class Captured:
    """Bytes in memory, as the engine reads a captured file."""

    path = "example.jsonl"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


def _examined(data: bytes) -> recovery.Examination:
    return recovery.examine(Captured(data))


def test_digests_of_the_example_by_the_words_of_the_page(example: bytes) -> None:
    """Seeds and byte orders as the table of digests says, without any code of the engine."""
    assert xxhash.xxh3_128(example[:112], seed=0).digest() == example[112:128]
    assert xxhash.xxh3_128(example[:112], seed=0).hexdigest() == example[112:128].hex()
    salt = int.from_bytes(example[28:36], "little")
    at, previous, sequence = 128, bytes(8), 0
    while at < len(example):
        stored = int.from_bytes(example[at + 8 : at + 12], "little")
        end = at + 44 + stored
        check = xxhash.xxh32(example[at : at + 40], seed=salt % 2**32).intdigest()
        assert example[at + 40 : at + 44] == check.to_bytes(4, "little")
        assert xxhash.xxh3_128(example[at:end], seed=salt).digest() == example[end : end + 16]
        assert example[at + 32 : at + 40] == previous
        assert int.from_bytes(example[at + 16 : at + 24], "little") == sequence
        previous, sequence, at = example[end : end + 8], sequence + 1, end + 16
    assert sequence == 6


def test_a_dump_with_a_hole_is_refused() -> None:
    (dump,) = blocks(PAGE, "hex")
    lines = dump.splitlines()
    with pytest.raises(AssertionError, match="is due"):
        format_example.parse("\n".join(lines[:5] + lines[6:]))


# The small reader


@pytest.fixture
def reader() -> Any:
    (source,) = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    exec(compile(source, "journal-format.md", "exec"), names)
    return names["read_journal"]


def test_the_reader_reads_the_example(reader: Any, example: bytes) -> None:
    shown, offset, why = reader(example)
    assert shown == [format_example.ENTRY]
    assert (offset, why) == (len(example), None)


def test_the_reader_agrees_with_the_engine(reader: Any, tmp_path: Path) -> None:
    """Compressed payloads, several epochs, batches, requests and leaf moves."""
    with Session.create("/project", session_dir=str(tmp_path / "sessions")) as session:
        path = session.path
        first = session.append(_message("x" * 5000))
        with session.batch() as batch:
            batch.append(_message("two"))
            batch.append(_message("three" * 200))
        session.branch_to(first)
    with Session.open(path) as session:
        session.append_many([_message("four"), {"type": "request", "n": 1}, _message("five")])
        want = [entry.raw for entry in session.iter_entries() if entry.type != "request"]
    data = Path(path).read_bytes()
    shown, offset, why = reader(data)
    assert shown == want
    assert len(shown) == 5
    assert (offset, why) == (len(data), None)


def test_the_reader_stops_where_the_engine_stops(reader: Any, example: bytes) -> None:
    """Cut at every byte behind the header: same offset, and 'interior' exactly in case B."""
    compared = 0
    for size in range(128, len(example) + 1):
        data = example[:size]
        _, offset, why = reader(data)
        found = _examined(data)
        if found.case in ("F", "G"):
            continue  # cut before the first frame is whole: nothing to agree about
        compared += 1
        assert offset == found.place.offset, size
        assert (why is None) == (found.case == "A"), size
        assert bool(why and why.startswith("interior")) == (found.case == "B"), size
    assert compared > len(example) // 2


@pytest.mark.parametrize(
    ("kind", "epoch", "fits"),
    [
        (fmt.Kind.ENTRY, 2, True),
        (fmt.Kind.ENTRY, 3, False),
        (fmt.Kind.ENTRY, 1, False),
        (fmt.Kind.EPOCH_OPEN, 3, True),
        (fmt.Kind.EPOCH_OPEN, 9, True),
        (fmt.Kind.EPOCH_OPEN, 1, False),
    ],
)
def test_the_reader_and_the_engine_agree_about_epochs(
    reader: Any, example: bytes, kind: fmt.Kind, epoch: int, *, fits: bool
) -> None:
    """A frame of another epoch does not continue the history, unless it opens a higher one."""
    before = _examined(example)
    frame, _ = fmt.encode_frame(
        kind=kind,
        codec=0,
        flags=0,
        payload=b"{}",
        raw=2,
        sequence=before.place.sequence,
        epoch=epoch,
        unsynced=0,
        previous=before.place.previous,
        salt=fmt.salt_of(format_example.JOURNAL_ID),
    )
    longer = example + frame
    _, offset, why = reader(longer)
    assert offset == _examined(longer).place.offset == len(longer if fits else example)
    assert (why is None) == fits


def _message(text: str) -> dict[str, object]:
    return {"type": "message", "message": {"role": "user", "content": text}}


def test_a_frame_of_the_reader_needs_no_more_than_the_page(example: bytes) -> None:
    """The payloads of the example's control frames decode to what the page says they hold."""
    opened = control.decode_open(example[0x80 + 44 : 0x80 + 44 + 230])
    assert opened is not None
    assert opened.journal == format_example.JOURNAL_ID.hex()
    assert (opened.epoch, opened.purpose, opened.durability) == (1, "create", "full")
    assert msgspec.json.encode(opened) == example[0x80 + 44 : 0x80 + 44 + 230]
