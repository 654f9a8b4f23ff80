"""Strict reading: what is refused, in which words, and what is kept as it is."""

from __future__ import annotations

import bz2
import gzip
import threading
import tracemalloc
from typing import Any

import pytest
from transfer.legacy_helpers import (
    MemorySource,
    chain,
    header,
    jsonl,
    look,
    message,
    read,
    rebuilt,
)

from treering.engine.errors import (
    Invalid,
    InvalidSource,
    LimitExceeded,
    SourceChanged,
    TreeringError,
    Unsupported,
)
from treering.engine.limits import JSON_DEPTH_MAX, MIB
from treering.engine.transfer.legacy import CopyLimits, analyse, detect, prepare, rebuild

BOM = b"\xef\xbb\xbf"
E0 = message("e0", None)


def refusal(data: bytes, kind: type[TreeringError] = InvalidSource) -> str:
    """The one line of a refusal; it must come before anything was prepared."""
    with pytest.raises(TreeringError) as caught:
        look(data)
    assert type(caught.value) is kind, caught.value
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("memory.jsonl: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (jsonl(header(), E0), "jsonl"),
        (BOM + b"\r\n \n" + jsonl(header()), "jsonl"),
        (b'{"journalFrame":1,"sequence":0}\n', "native-frames"),
        (b' { "journalFrame" : 1 }\n', "native-frames"),
        (b'{"sequence":0,"journalFrame":1}\n', "native-frames"),
        (b'{"journalFrame":1.0}\n', "jsonl"),
        (b'{"journalFrame":true}\n', "jsonl"),
        (b'{"journalFrame":"1"}\n', "jsonl"),
        (b'{"journalFrame":10,"x":0}\n', "jsonl"),
        (b"\x89TRNG\r\n\x1a" + bytes(100), "treering"),
        (b"\x28\xb5\x2f\xfd" + bytes(9), "zstd"),
        (b"\x50\x2a\x4d\x18" + bytes(9), "zstd"),
        (gzip.compress(b"{}"), "gzip"),
        (bz2.compress(b"{}"), "bzip2"),
        (b"[{}]", "json-array"),
        (b"", "empty"),
        (b"\n \r\n", "empty"),
        (BOM, "empty"),
        (b"hello\n", "unknown"),
        (bytes(5000), "unknown"),
        (b" " * 200_000 + b"{}", "jsonl"),
    ],
)
def test_detect(data: bytes, expected: str) -> None:
    """A file is known by its first record, and a native frame only by the integer 1."""
    assert detect(MemorySource(data)) == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"journalFrame":1,"sequence":0}\n', "a frame without checksum, payload"),
        (b"\x89TRNG\r\n\x1a", "begins like a Treering journal"),
    ],
)
def test_journals_of_which_nothing_verifies(data: bytes, words: str) -> None:
    """The person learns what the file began as."""
    assert words in refusal(data)


def test_other_formats_are_refused_by_name() -> None:
    """The person learns what the file is."""
    assert "JSON array" in refusal(b"[{}]", Unsupported)


def test_F130_F131_F132_compressed_files_are_refused_by_name() -> None:
    """No first frame is read alone and nothing is expanded: decompressing is the caller's."""
    for start in (b"\x28\xb5\x2f\xfd", b"\x5f\x2a\x4d\x18"):
        assert "decompress it first" in refusal(start + bytes(100), Unsupported)


@pytest.mark.parametrize("data", [b"", b"\n", BOM, BOM + b"\r\n", b" \t\n\n"])
def test_F33_a_file_without_a_record_is_refused_as_empty(data: bytes) -> None:
    """Empty is an error of its own, in strict and in salvage."""
    assert "empty" in refusal(data)
    with pytest.raises(InvalidSource):
        look(data, salvage=True)


def test_F33_a_header_alone_is_a_session() -> None:
    """Zero entries are fine."""
    analysis, entries = read(jsonl(header()))
    assert (analysis.entry_count, entries) == (0, [])


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (E0, 'line 1 is "message"'),
        (b'{"type":"title","title":"x"}', 'line 1 is "title"'),
        (b"{}", "without a type"),
        (header(id=7), "id is no string"),
        (header(id=...), "id is no string"),
        (b"oops", "line 1 is not JSON"),
        (b"null", "line 1 is null, not an object"),
    ],
)
def test_F31_F87_a_file_without_a_header_is_refused(first: bytes, words: str) -> None:
    """The first record must be a session record; the message says what it is instead."""
    assert words in refusal(jsonl(first, header(), E0))
    assert "no session header" in refusal(jsonl(first, header(), E0))


@pytest.mark.parametrize(
    "version", ["0", "4", "99", "1.5", "3.0", "3e0", "-1", "true", '"3"', '"0.1.0"', "[]", "1e999"]
)
@pytest.mark.parametrize("salvage", [False, True])
def test_F66_versions_are_exact(version: str, salvage: bool) -> None:
    """Only absent, null, 1, 2 and 3 are read; another one is named, also by a salvage."""
    data = jsonl(b'{"type":"session","version":%s,"id":"a"}' % version.encode(), E0)
    with pytest.raises(Unsupported) as caught:
        look(data, salvage=salvage)
    assert f"session version {version} (" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "found", "effective"),
    [(..., None, 1), (None, None, 1), (1, 1, 1), (2, 2, 2), (3, 3, 3)],
)
def test_versions_that_are_read(version: Any, found: int | None, effective: int) -> None:
    """An absent version is told as absent and read as 1."""
    analysis = look(jsonl(header(version=version), E0))
    assert (analysis.version, analysis.effective_version) == (found, effective)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b'{"type":"x"', "is not JSON"),
        (b'{"type":"x",}', "is not JSON"),
        (b'{"type":"x","n":01}', "is not JSON"),
        (b"{'type':'x'}", "is not JSON"),
        (b'{"type":"x"} trailing', "1 whole record stands on it"),
        (b"null", "is null, not an object"),
        (b"42", "is a number, not an object"),
        (b'"x"', "is a string, not an object"),
        (b"[]", "is an array, not an object"),
        (b"true", "is true, not an object"),
        (b'{"type":"x","v":"\xff\xfe"}', "is not UTF-8"),
        (b'{"type":"x","\xed\xa0\x80":1}', "is not UTF-8"),
        (bytes(9000), "is filled with NUL bytes"),
        (b'{"type":"x"}' + bytes(9), "holds 9 NUL bytes"),
        (b"\x0b", "is not JSON"),
        (E0 + E0, "holds 2 whole records"),
        (E0 + b" " + E0 + E0 + b"\r", "holds 3 whole records"),
        (b'{"journalFrame":1,"payload":{}}', "JSON-framed"),
    ],
)
def test_F02_the_first_bad_record_is_named(bad: bytes, words: str) -> None:
    """Line, offset and reason in one line; nothing after it is taken for missing."""
    entries = chain(4)
    text = refusal(jsonl(header(), *entries[:2], bad, *entries[2:]))
    assert words in text
    assert "line 4 " in text
    assert f"(offset {len(jsonl(header(), *entries[:2]))})" in text


def test_fused_records_name_the_way_out() -> None:
    """Two records on one line: strict says how many, and what takes them."""
    assert "--salvage takes each of them" in refusal(jsonl(header(), E0 + message("e1", "e0")))


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "form", ['{"type":"x","v":%s}', '{"type":"x","v":[{"w":[1,%s]}]}', '{"type":%s}']
)
def test_F124_no_number_that_is_none(token: str, form: str) -> None:
    """Python and others write these tokens; they are not JSON, wherever they stand."""
    assert f"holds {token}, which is not JSON" in refusal(jsonl(header(), (form % token).encode()))


def test_F124_the_same_letters_in_strings_are_text() -> None:
    """Only tokens count."""
    read(jsonl(header(), b'{"type":"x","NaN":"Infinity -Infinity NaN \\" NaN"}'))


def test_F01_a_record_cut_anywhere_is_incomplete() -> None:
    """At every byte of the last record: refused, and told whether it would have parsed."""
    whole = jsonl(header(), *chain(3))
    last = message("z", "e2")
    for cut in range(1, len(last) + 1):
        text = refusal(whole + last[:cut])
        assert "line 5 is an incomplete last record" in text
        assert ("would read as a whole record" in text) == (cut == len(last))


def nested(depth: int) -> bytes:
    inner = depth - 1
    return b'{"type":"x","v":' + b"[" * inner + b"]" * inner + b"}"


def deep_recursion(levels: int, data: bytes) -> str:
    if levels:
        return deep_recursion(levels - 1, data)
    try:
        look(data)
    except TreeringError as error:
        return type(error).__name__
    return "ok"


@pytest.mark.parametrize(
    ("depth", "verdict"),
    [
        (JSON_DEPTH_MAX, "ok"),
        (JSON_DEPTH_MAX + 1, "LimitExceeded"),
        (1_100, "LimitExceeded"),
        (100_000, "LimitExceeded"),
    ],
)
def test_F126_nesting_has_one_verdict_everywhere(depth: int, verdict: str) -> None:
    """At the top, deep in a call stack and on a small stack: the limit decides, not the stack."""
    data = jsonl(header(), nested(depth))
    verdicts = [deep_recursion(0, data), deep_recursion(700, data)]
    size = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: verdicts.append(deep_recursion(0, data)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert verdicts == [verdict] * 3


def test_F126_brackets_in_strings_do_not_nest() -> None:
    """Depth counts structure only, and names the line."""
    read(jsonl(header(), b'{"type":"x","v":"' + b"[{" * 500 + b'\\"' + b"[" * 500 + b'"}'))
    read(jsonl(header(), b'{"type":"x","v":[' + b"{}," * 500 + b"[]]}"))
    assert "line 2 nests 129 deep" in refusal(jsonl(header(), nested(129)), LimitExceeded)
    refusal(jsonl(header(), b'{"type":"x","v":' + b'{"a":' * 9_000), LimitExceeded)


def test_limits_refuse_one_more_and_pass_the_exact_number() -> None:
    """16,384 entries after the header pass, one more refuses; None lifts it."""
    data = jsonl(header(), *[b"{}"] * 16_384)
    assert look(data).entry_count == 16_384
    with pytest.raises(LimitExceeded) as caught:
        look(data + b"{}\n")
    assert (caught.value.limit, caught.value.need) == (16_384, 16_385)
    assert analyse(MemorySource(data + b"{}\n"), limits=None).entry_count == 16_385


def test_json_bytes_count_records_only() -> None:
    """The header counts; LF, blank lines and the BOM do not."""
    data = BOM + jsonl(b"", header(), b"   ", E0)
    size = len(header()) + len(E0)
    assert analyse(MemorySource(data), limits=CopyLimits(None, size)).json_bytes == size
    with pytest.raises(LimitExceeded):
        analyse(MemorySource(data), limits=CopyLimits(None, size - 1))
    with pytest.raises(Invalid):
        CopyLimits(-1)


def test_F122_numbers_and_spelling_are_kept() -> None:
    """Big integers, huge floats, -0, duplicate members, spacing and escapes stay as they are."""
    spelled = (
        b' { "type" : "x", "n":[9007199254740993,18446744073709551616,-9223372036854775809,'
        b"1"
        + b"0" * 5000
        + b',1e400,-1E-400,-0,1.0,1.50,0e1],"k":1,"k":2,"\\u0041":"\\/\\u0000"}\t\r'
    )
    _, entries = read(jsonl(header(), spelled))
    assert entries == [spelled]


def test_F68_raw_separators_stay_in_their_record() -> None:
    """Characters that other readers split at are text of one record."""
    text = "\x7f\x85\u2028\u2029\u00a0\ufeff"
    record = message("a", None, text)
    analysis, entries = read(jsonl(header(), record))
    assert (analysis.entry_count, entries) == (1, [record])


@pytest.mark.parametrize(
    "text",
    [rb"end \ud83c", rb"\ud83c middle", rb"\udf89 low", rb"\ud83c\ud83c\udf89", rb"\uD83C\u0041"],
)
def test_F69_lone_surrogates_are_kept_and_counted(text: bytes) -> None:
    """In a value, a key or an id: the bytes stay, and the count tells the reader."""
    records = [
        b'{"type":"x","id":"a","v":"%s"}' % text,
        b'{"type":"x","id":"b","%s":0}' % text,
        b'{"type":"x","id":"%s"}' % text,
    ]
    analysis, entries = read(jsonl(header(), *records))
    assert entries == records
    assert analysis.oddities["lone_surrogates"] == 3
    assert rebuilt(jsonl(header(), *records)) == jsonl(header(), *records)


def test_F69_pairs_and_escaped_backslashes_are_no_lone_surrogates() -> None:
    """A pair is a character, and ``\\\\ud83c`` is six characters of text."""
    pair = b'{"type":"x","v":"\\ud83c\\udf89 \\\\ud83c"}'
    assert "lone_surrogates" not in look(jsonl(header(), pair)).oddities
    both = b'{"type":"x","v":"\\\\ud83c\\ud83c\\\\"}'
    assert look(jsonl(header(), both)).oddities["lone_surrogates"] == 1


def test_F79_records_of_other_shapes_are_kept() -> None:
    """Wrong types, missing members and unknown kinds are data; they are counted."""
    records = [
        b'{"type":7,"id":1,"parentId":[],"timestamp":270,"message":"no"}',
        b'{"type":"message","message":{"role":1,"toolCallId":{}}}',
        b'{"type":"future","id":"f","x":{}}',
        b"{}",
        b'{"type":null,"id":null,"message":null}',
    ]
    analysis, entries = read(jsonl(header(), *records))
    assert entries == records
    assert analysis.oddities["wrong_types"] == 7
    assert analysis.oddities["unknown_types"] == 1
    assert analysis.oddities["entries_without_type"] == 3
    assert analysis.oddities["entries_without_id"] == 4


def test_F128_invalid_utf8_has_one_verdict() -> None:
    """Invalid bytes are found in skipped values, keys, big records and at chunk borders alike."""
    for bad in (b'{"type":"x","skipped":{"a":["\xff\xfe"]}}', b'{"\xc0\x80":0}'):
        assert "is not UTF-8" in refusal(jsonl(header(), bad))
    border = b'{"v":"' + b"a" * (MIB - 7)
    read(jsonl(header(), border + "é".encode() + b'"}'))
    assert "is not UTF-8" in refusal(jsonl(header(), border + b"\xc3" + b'"}'))


def test_F36_a_giant_record_passes_whole() -> None:
    """12 MB in one record come back equal."""
    giant = message("a", None, "x" * (12 * MIB))
    _, entries = read(jsonl(header(), giant))
    assert entries == [giant]


def test_blank_lines_crs_and_bom_are_noted_with_their_place() -> None:
    """Nothing of the file is lost: where what stood is in the analysis, runs counted."""
    data = BOM + b"\n\n" + header() + b"\r\n\n\n \t\r\n" + E0 + b"\n\n"
    analysis = look(data)
    assert analysis.blank_lines == [(0, "", 2), (1, "", 2), (1, " \t\r", 1), (2, "", 1)]
    assert analysis.header_raw == header() + b"\r"
    assert analysis.oddities == {"blank_lines": 6, "bom": 1, "crlf_lines": 1}
    assert rebuilt(data) == data
    assert rebuilt(data + b" \r") == data + b" \r"
    source, entries = read(data)
    since = rebuild(source.header_raw, [*entries, E0], source.blank_lines, source.bom)
    assert b"".join(since) == data + E0 + b"\n"


def test_hostile_blank_lines_are_bounded() -> None:
    """Alternating blank lines cannot fill the memory: strict refuses, salvage reads on."""
    data = jsonl(header(), *[b" ", b""] * 33_000, E0)
    refusal(data, LimitExceeded)
    assert look(data, salvage=True).entry_count == 1
    for end in (b"", b"\n"):
        refusal(jsonl(header()) + b" " * (MIB + 1) + end, LimitExceeded)


def test_header_facts() -> None:
    """What the header says, with members of a wrong type read as absent."""
    facts = look(jsonl(header(cwd="/w", parentSession="p.jsonl", rlmDepth=2))).header
    assert facts is not None
    assert (facts.id, facts.cwd, facts.parent_session, facts.rlm_depth) == (
        "s-1",
        "/w",
        "p.jsonl",
        2,
    )
    for depth in (-1, 1.0, "2", 2**53, True, None):
        odd = look(jsonl(header(cwd=7, branchedFrom="old", rlmDepth=depth))).header
        assert odd is not None
        assert (odd.cwd, odd.parent_session, odd.rlm_depth) == (None, "old", None)


def test_a_giant_header_is_refused() -> None:
    """The header is kept verbatim beside other facts, in one payload."""
    refusal(jsonl(header(cwd="x" * (16 * MIB))), LimitExceeded)


def test_an_analysis_does_not_hold_the_file() -> None:
    """20 MB of records cost a fraction of that."""
    data = jsonl(header(), *[message(f"{n}", None, "x" * 900) for n in range(20_000)])
    tracemalloc.start()
    try:
        assert analyse(MemorySource(data), limits=None).entry_count == 20_000
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_request_records_are_marked() -> None:
    """The caller must not make a request the leaf."""
    source = MemorySource(
        jsonl(header(), b'{"type":"request","id":"r"}', E0, b'{"type":"\\ud800"}')
    )
    prepared = list(prepare(source, analyse(source, limits=None)))
    assert [(p.kind, p.request, p.line) for p in prepared] == [
        ("request", True, 2),
        ("message", False, 3),
        ("\ufffd", False, 4),
    ]


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_source_that_changed_is_refused(version: int, salvage: bool) -> None:
    """Any changed byte between the passes, and any cut, ends in SourceChanged and nothing else."""
    data = jsonl(header(version=version), b'{"type":"label","id":"q","targetId":"q"}', E0)
    for at in range(len(data)):
        source = MemorySource(data)
        analysis = analyse(source, limits=None, salvage=salvage)
        source.data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(SourceChanged):
            list(prepare(source, analysis))
        source.data = data[:at]
        with pytest.raises(SourceChanged):
            list(prepare(source, analysis))
    other = MemorySource(data + b"\n")
    with pytest.raises(SourceChanged):
        list(prepare(other, analysis))
