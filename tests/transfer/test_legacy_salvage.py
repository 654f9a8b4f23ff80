"""Salvage: everything that is whole is taken, everything else is named."""

from __future__ import annotations

import random
import time

import pytest
from transfer.legacy_helpers import MemorySource, chain, dump, header, jsonl, look, message, read

from treering.engine.errors import InvalidSource, LimitExceeded, Unsupported
from treering.engine.limits import MIB
from treering.engine.transfer.legacy_salvage import take_apart
from treering.engine.transfer.records import LINE_BYTES_MAX

E0 = message("e0", None)
E1 = message("e1", "e0")
TORN = E0[:70]


def salvaged(data: bytes) -> tuple[list[bytes], list[bytes]]:
    """Entries taken, and the bytes left out, read from the source where the analysis says."""
    analysis, entries = read(data, salvage=True)
    assert not analysis.byte_exact
    assert analysis.entry_count == len(entries)
    for piece in analysis.left_out:
        assert data[: piece.offset].count(b"\n") + 1 == piece.line
        assert piece.reason
    return entries, [data[p.offset : p.offset + p.length] for p in analysis.left_out]


def test_a_whole_file_is_read_as_in_strict() -> None:
    """Salvage changes nothing about what is whole."""
    data = jsonl(header(), *chain(5), header())
    assert read(data)[1] == read(data, salvage=True)[1]
    assert look(data).oddities == look(data, salvage=True).oddities


def test_F01_a_torn_tail_costs_one_record() -> None:
    """300 records cut at every byte of the last: 299 come, the rest is left out by place."""
    whole = jsonl(header(), *chain(299))
    for cut in range(1, len(E1), 7):
        entries, left = salvaged(whole + E1[:cut])
        assert entries == chain(299)
        assert left == [E1[:cut]]
    assert salvaged(whole + E1) == ([*chain(299), E1], [])


@pytest.mark.parametrize(
    "bad",
    [
        b"garbage",
        b'{"type":"x","v":NaN}',
        b'{"type":"x","v":"\xff"}',
        b"null",
        b"[1]",
        b"{" * 300,
        b'{"journalFrame":1,"payload":{"type":"message"}}',
        bytes(9_000),
    ],
)
def test_F02_one_bad_line_costs_one_line(bad: bytes) -> None:
    """What follows a bad line is read; the bad line is named."""
    entries = chain(100)
    assert salvaged(jsonl(header(), *entries[:49], bad, *entries[50:])) == (
        entries[:49] + entries[50:],
        [bad],
    )


def test_F04_nul_runs_are_left_out() -> None:
    """The record before the NULs of a lost write is kept, and so is one behind them."""
    nuls = bytes(9_000)
    data = jsonl(header(), E0 + nuls, nuls + E1) + bytes(143_000)
    assert salvaged(data) == ([E0, E1], [nuls, nuls, bytes(143_000)])


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (E0 + E1, [E0, E1]),
        (E0 + b" \t" + E1 + E0, [E0, E1, E0]),
        (TORN + E1, [E1]),
        (TORN + E0[:40] + E1, [E1]),
        (TORN + E1 + E0[:50], [E1]),
        (E0 + TORN + E1, [E0, E1]),
        (E0 + b"}" + E1, [E0, E1]),
        (b'{"type":"x","v":NaN}' + E1, [E1]),
        (b"stderr noise " + E1 + E0, [E1, E0]),
        (E0 + b"rest", [E0]),
    ],
)
def test_fused_and_torn_lines_are_taken_apart(line: bytes, taken: list[bytes]) -> None:
    """Each whole record of the line is an entry; several of them are told by line number."""
    data = jsonl(header(), line, message("z", None))
    entries, _ = salvaged(data)
    assert entries == [*taken, message("z", None)]
    assert look(data, salvage=True).taken_apart == ([2] if len(taken) > 1 else [])


def test_a_record_behind_every_possible_tear() -> None:
    """Wherever the first record was torn, the one fused to it is found, and nothing is made up."""
    blocks = dump(
        {
            "type": "message",
            "id": "m",
            "parentId": None,
            "timestamp": "2026-01-01T00:00:00Z",
            "message": {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": 'quoted {"type":"x"} \\ text'},
                    {"type": "toolCall", "id": "c", "name": "n", "arguments": {"type": "y"}},
                    {"type": "image", "data": "QUJD"},
                ],
            },
        }
    )
    for cut in range(1, len(blocks)):
        assert salvaged(jsonl(header(), blocks[:cut] + E1))[0] == [E1]
        assert salvaged(jsonl(header(), blocks[:cut], E1))[0] == [E1]


def test_F31_F87_garbage_or_bom_before_the_header() -> None:
    """The header is found where it is; 100 records come back."""
    for first in (
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf\n",
        b"not json\n",
        b'{"type":\n',
        bytes(9) + b"\n",
    ):
        data = first + jsonl(header(), *chain(100))
        analysis = look(data, salvage=True)
        assert analysis.header_raw == header()
        assert salvaged(data)[0] == chain(100)


def test_a_title_line_before_the_header_is_an_entry() -> None:
    """A whole record in front of the header is kept; the header is still the header."""
    title = b'{"type":"title","title":"x"}'
    data = jsonl(title, header(), E0)
    assert salvaged(data) == ([title, E0], [])
    assert look(data, salvage=True).header_position == 1


def test_F87_a_lost_header() -> None:
    """All entries come; ids tell whether the file was of version 3 or 1."""
    analysis, entries = read(jsonl(*chain(3)), salvage=True)
    assert (analysis.header, analysis.version, analysis.effective_version) == (None, None, 3)
    assert entries == chain(3)
    analysis, entries = read(jsonl(message(None, None), message(None, None)), salvage=True)
    assert (analysis.version, analysis.effective_version) == (None, 1)
    assert len(entries) == 2
    assert all(b'"parentId":' in entry for entry in entries)


def test_F81_complete_elements_of_an_array_are_taken() -> None:
    """Closed or not, on one line or many; what is incomplete is left out by place."""
    a, b = b'{"id":"1","role":"user","content":"[\\"]"}', b'{"x":{"y":[{}]}}'
    torn = b'{"a":"b'
    assert salvaged(b"[" + a + b"," + b + b"," + torn) == ([a, b], [torn])
    assert salvaged(b"[" + a + b",\n " + b + b"]") == ([a, b], [])
    assert salvaged(b" \n[\n" + a + b",\n" + b + b"\n]\n\n") == ([a, b], [])
    entries, _ = salvaged(b'[{\n  "id":\t"1"\n},{"v":NaN},{}]\n')
    assert entries == [b'{   "id":\t"1" }', b"{}"]
    assert look(b"[" + a + b"]", salvage=True).format == "json-array"


def test_F81_a_torn_array_is_read_on_line_by_line() -> None:
    """A tear inside the array costs its element, not the rest of the file."""
    lines = [b"[", *(entry + b"," for entry in chain(4)), b"]"]
    lines[2] = lines[2][:60]
    entries, left = salvaged(jsonl(*lines))
    assert entries == [chain(4)[0], *chain(4)[2:]]
    assert lines[2] in left


def test_lines_behind_an_array() -> None:
    """An array on the first line does not hide the session that follows, nor does a log line."""
    for first in (b"[]", b"[2026-01-01] started", b'["x"'):
        data = jsonl(first, header(), E0)
        assert salvaged(data)[0] == [E0]
        assert look(data, salvage=True).header_raw == header()


def test_F36_array_elements_over_chunks() -> None:
    """Elements longer than a chunk come whole, and memory stays bounded by one of them."""
    big = dump({"type": "x", "id": "1", "v": 'ab"\\' * MIB})
    assert salvaged(b"[" + b",".join([big, b"{}", big]) + b"]") == ([big, b"{}", big], [])


def test_F36_a_line_that_is_too_long_is_left_out() -> None:
    """Its neighbours are read."""
    data = jsonl(header(), b"x" * (LINE_BYTES_MAX + 1), E0)
    entries, left = salvaged(data)
    assert entries == [E0]
    assert [len(piece) for piece in left] == [LINE_BYTES_MAX + 1]


@pytest.mark.parametrize(
    "unit", [b'{"type":', b'{"type":"', b'{"type":"{"type":1}', b'{"type":"x"', b'{"type":[', b"{"]
)
def test_a_line_made_for_searching_ends_soon(unit: bytes) -> None:
    """Starts of records without end cost a bounded search, not a quadratic one."""
    began = time.monotonic()
    list(take_apart(unit * (MIB // len(unit)), "torn"))
    assert time.monotonic() - began < 10


def test_nothing_whole_is_an_error() -> None:
    """A file of garbage does not become an empty session."""
    for data in (b"x\ny\n", bytes(100), b"[1,2]\n", b'{"type"', b"[]"):
        with pytest.raises(InvalidSource):
            look(data, salvage=True)


def test_what_a_salvage_does_not_read() -> None:
    """Other formats stay refused, and a file that is mostly garbage is no session."""
    with pytest.raises(Unsupported):
        look(b"\x28\xb5\x2f\xfd", salvage=True)
    for data in (b'{"journalFrame":1}\n', b"\x89TRNG\r\n\x1a"):
        with pytest.raises(InvalidSource):
            look(data, salvage=True)
    with pytest.raises(LimitExceeded):
        look(jsonl(header(), *[b"x"] * 70_000), salvage=True)


def test_every_byte_is_accounted_for() -> None:
    """Taken, left out or white space: no byte of a damaged file goes unmentioned."""
    rng = random.Random(5)
    good = jsonl(header(), *chain(6), b"", E0 + E1)
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at, length = rng.randrange(len(data)), rng.randint(0, 40)
            data[at : at + length] = rng.choice([b"", b"\0\0", b"\n", b'"', b"{", b'{"type":"x"}'])
        analysis, entries = read(bytes(data), salvage=True)
        left = sorted(
            [bytes(data[p.offset : p.offset + p.length]) for p in analysis.left_out]
            + ([analysis.header_raw] if analysis.header_raw else [])
            + (entries if analysis.effective_version == 3 else [])
        )
        if analysis.effective_version == 3:
            kept = sorted(byte for piece in left for byte in piece if byte not in b" \t\r\n")
            assert kept == sorted(byte for byte in data if byte not in b" \t\r\n")


def test_memory_source_is_a_source() -> None:
    """The helper behaves like a file at its end."""
    assert MemorySource(b"abc").read_at(2, 10) == b"c"
