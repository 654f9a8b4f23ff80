"""Any bytes: only typed errors, one verdict, and an exact way back."""

from __future__ import annotations

import contextlib
import json
from typing import Any, NoReturn

from hypothesis import example, given, settings
from hypothesis import strategies as st
from transfer.legacy_helpers import MemorySource, chain, header, jsonl, message, read, rebuilt

from treering.engine.errors import TreeringError
from treering.engine.json_text import BadRecordError, check, members, object_end
from treering.engine.transfer.legacy import CopyLimits, analyse, detect, prepare
from treering.engine.transfer.legacy_read import Blank, LeftOut, Whole, salvaged_items

BOM = b"\xef\xbb\xbf"

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
_blank = st.text(" \t\r", max_size=3)


@st.composite
def _record(draw: st.DrawFn, base: dict[str, Any]) -> bytes:
    value = base | draw(st.dictionaries(st.text(max_size=6), _json, max_size=3)) | base
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (" , ", ": ")])),
    )
    return (draw(_blank) + text + draw(_blank)).encode("utf-8", "surrogatepass")


@st.composite
def _file(draw: st.DrawFn) -> bytes:
    """A whole version 3 file: blank lines anywhere, CRs, spacing, a BOM, a blank end."""
    first = draw(_record({"type": "session", "version": 3, "id": "s"}))
    kinds = st.sampled_from([{"type": "message", "id": "a"}, {}, {"type": "session"}])
    rest = draw(st.lists(kinds.flatmap(_record) | _blank.map(str.encode), max_size=8))
    blanks = draw(st.lists(_blank.map(str.encode), max_size=3))
    return (
        draw(st.sampled_from([b"", BOM]))
        + jsonl(*blanks, first, *rest)
        + draw(_blank.map(str.encode))
    )


@given(_file())
def test_a_version_3_file_comes_back_byte_for_byte(data: bytes) -> None:
    """Header, entries, blank lines and BOM rebuild exactly what was read."""
    assert rebuilt(data) == data


@given(_file())
def test_salvage_of_a_whole_file_takes_the_same(data: bytes) -> None:
    """Nothing is left out of a file that strict accepts."""
    strict, salvage = read(data), read(data, salvage=True)
    assert salvage[1] == strict[1]
    assert salvage[0].left_out == []
    assert salvage[0].digest == strict[0].digest


def only_typed_errors(data: bytes) -> None:
    for salvage in (False, True):
        source = MemorySource(data)
        detect(source)
        with contextlib.suppress(TreeringError):
            analysis = analyse(source, limits=CopyLimits(), salvage=salvage)
            entries = list(prepare(source, analysis))
            assert len(entries) == analysis.entry_count
            for entry in entries:
                assert b"\n" not in entry.raw
                check(entry.raw)
                entry.kind.encode()


@settings(max_examples=300)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf[")
@example(b'{"type":"session","id":"a"}\n{"type":"compaction","firstKeptEntryIndex":-0}\n')
def test_arbitrary_bytes_give_typed_errors_only(data: bytes) -> None:
    """No traceback, whatever the file; and what is accepted is whole."""
    only_typed_errors(data)


_tokens = st.sampled_from(
    [
        b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"\r", b" ", b"\0", b"\xff",
        b'"type"', b'"session"', b'"id"', b'"version"', b"1", b"3", b"NaN", b"null", b"\\ud800",
        b'{"type":', b'{"type":"session","id":"a","version":1}', b'"parentId"', b"\xc3\xa9",
        b'{"type":"message","id":"b","parentId":null}', b'"journalFrame":1', BOM, b"-0",
        b'"firstKeptEntryIndex"', b"\\u0061", b"1e400",
    ]
)  # fmt: skip


@settings(max_examples=500)
@given(st.lists(_tokens, max_size=30).map(b"".join))
def test_bytes_that_look_like_sessions_give_typed_errors_only(data: bytes) -> None:
    """Arbitrary arrangements of what real files are made of."""
    only_typed_errors(data)


@settings(max_examples=200)
@given(st.data())
def test_damaged_sessions_give_typed_errors_only(data: st.DataObject) -> None:
    """A real file with pieces cut out, doubled and overwritten."""
    text = jsonl(
        header(version=data.draw(st.sampled_from([1, 2, 3]))), *chain(4), message("x", "e1")
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 50)))
        text = (
            text[:at]
            + data.draw(_tokens | st.binary(max_size=4) | st.just(text[at:end] * 2))
            + text[end:]
        )
    only_typed_errors(text)


@settings(max_examples=300)
@given(st.lists(_tokens, max_size=30).map(b"".join))
def test_salvage_accounts_for_every_byte(data: bytes) -> None:
    """Items are in order, do not overlap, and only white space (or an array's signs) is between."""
    source = MemorySource(data)
    found = detect(source)
    if found in ("empty", "native-frames"):
        return
    at = len(BOM) if data.startswith(BOM) else 0
    signs = b" \t\r\n" + (b"[]," if found == "json-array" else b"")
    for item in salvaged_items(source, found):
        if isinstance(item, Blank):
            continue
        assert isinstance(item, Whole | LeftOut)
        assert at <= item.offset
        assert not data[at : item.offset].strip(signs)
        length = len(item.raw) if isinstance(item, Whole) else item.length
        if isinstance(item, Whole):
            assert data[item.offset : item.offset + length].replace(b"\n", b" ") == item.raw
        at = item.offset + length
    assert not data[at:].strip(signs)


def _refuse(token: str) -> NoReturn:
    raise ValueError(token)


def _reference_accepts(raw: bytes) -> bool:
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse, parse_int=str, parse_float=str)
    except ValueError:
        return False
    return isinstance(value, dict)


@settings(max_examples=500)
@given(
    st.lists(
        _tokens | st.sampled_from([b"0", b"01", b".", b"e", b"-", b"\t", b"true", b"\\n"]),
        max_size=12,
    )
    .map(b"".join)
    .map(lambda inner: b'{"v":' + inner + b"}")
    | st.binary(max_size=12)
    | _json.map(lambda value: json.dumps({"v": value}).encode())
)
def test_check_agrees_with_another_parser(raw: bytes) -> None:
    """Strict JSON objects only, as the standard library reads them without its extensions."""
    try:
        check(raw)
        accepted = True
    except BadRecordError:
        accepted = False
    assert accepted == _reference_accepts(raw)


@given(
    st.dictionaries(st.text(max_size=6), _json, max_size=5),
    st.sampled_from([(",", ":"), (" , ", " :\t")]),
)
def test_members_are_found_in_the_bytes(value: dict[str, Any], separators: tuple[str, str]) -> None:
    """Names, values and the end of an object are where a parser sees them."""
    raw = json.dumps(value, separators=separators).encode() + b" \r"
    begin, found, end = members(raw)
    assert {s.name: json.loads(raw[s.value_begin : s.value_end]) for s in found} == value
    assert json.loads(raw[begin : end + 1]) == value
    assert object_end(raw, begin) == end + 1
