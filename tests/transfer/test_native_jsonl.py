"""Journals of JSON frames: taken when every byte is as it must be, else refused by kind and place."""

from __future__ import annotations

import hashlib
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_writer import (
    HEADER,
    QUALIFICATIONS,
    Row,
    dump,
    framed,
    header,
    journal,
    message,
    request,
    sealed,
)
from transfer.legacy_helpers import MemorySource

from treering.engine.errors import (
    InvalidSource,
    LimitExceeded,
    SourceChanged,
    TreeringError,
    Unsupported,
)
from treering.engine.journal.format import FLAG_RETAINED
from treering.engine.journal.format import QUALIFICATIONS as FLAGS
from treering.engine.limits import JSON_DEPTH_MAX, MIB, PAYLOAD_BYTES_MAX
from treering.engine.transfer import native_jsonl
from treering.engine.transfer.legacy import Analysis, CopyLimits, analyse, prepare
from treering.engine.transfer.legacy_model import Prepared

A, B = message("a", None), message("b", "a")
SMALL = journal([HEADER, Row(A, None, "native-admission"), Row(B, "retained-import"), B])
LINES = SMALL.splitlines(keepends=True)
STARTS = [sum(map(len, LINES[:n])) for n in range(len(LINES) + 1)]


def look(data: bytes, *, salvage: bool = False) -> tuple[Analysis, list[Prepared]]:
    source = MemorySource(data)
    analysis = analyse(source, limits=CopyLimits(), salvage=salvage)
    return analysis, list(prepare(source, analysis))


def payloads(data: bytes, *, salvage: bool = False) -> list[str]:
    return [entry.raw.decode() for entry in look(data, salvage=salvage)[1]]


def refusal(data: bytes, kind: type[TreeringError] = InvalidSource) -> TreeringError:
    with pytest.raises(TreeringError) as caught:
        analyse(MemorySource(data), limits=CopyLimits())
    assert type(caught.value) is kind, caught.value
    assert "\n" not in str(caught.value)
    return caught.value


def flags(qualification: str | None = None, *, retained: bool = False) -> int:
    return FLAGS.index(qualification) << 1 | (FLAG_RETAINED if retained else 0)


# What is taken


def test_a_whole_journal() -> None:
    """Payloads verbatim, marks as flags, and of each frame its sequence and checksum."""
    analysis, entries = look(SMALL)
    assert analysis.format == "native-frames"
    assert (analysis.version, analysis.entry_count) == (3, 3)
    assert analysis.header_raw == HEADER.encode()
    assert analysis.json_bytes == sum(map(len, (HEADER, A, B, B)))
    assert not analysis.byte_exact
    assert [entry.raw.decode() for entry in entries] == [A, B, B]
    frames = [entry.frame for entry in entries]
    assert all(frame is not None for frame in frames)
    marks = [frame.flags for frame in frames if frame is not None]
    assert marks == [flags("native-admission"), flags(retained=True), 0]
    assert [frame.sequence for frame in frames if frame is not None] == [1, 2, 3]
    stated = [re.findall(rb'"checksum":"([0-9a-f]{64})"', line)[-1].decode() for line in LINES]
    assert [frame.revision for frame in frames if frame is not None] == stated[1:]


ODD_PAYLOADS = [
    '{"type":"custom","id":"x","parentId":null,"n":1e+03,"z":-0,"b":9007199254740993}',
    '{"type":"custom","id":"x","n":' + "9" * 5000 + "}",
    '{"type":"custom","n":1e400,"n":[1.0,1E3]}',
    ' {\t"type" : "custom" }\r',
    '{"type":"custom","s":"\\u0061\\ud800\\u2028\u2028\u2029\x7f\U0001f600"}',
    '{"journalFrame":1,"sequence":7,"previousChecksum":null,"payload":{},"checksum":"x"}',
    dump({"type": "custom", "s": framed(A, 1, "0" * 64)[0]}),
    '{"type":"custom","retention":"retained-import","qualification":"native-admission"}',
    "{}",
    '{"type":"custom","deep":' + "[" * (JSON_DEPTH_MAX - 1) + "]" * (JSON_DEPTH_MAX - 1) + "}",
]


@pytest.mark.parametrize("payload", ODD_PAYLOADS)
def test_payloads_stay_as_they_are(payload: str) -> None:
    """Number spellings, duplicate members, white space, escapes, look-alikes, deep nesting."""
    _, entries = look(journal([HEADER, payload, payload]))
    assert [entry.raw.decode() for entry in entries] == [payload] * 2
    assert all(entry.frame is not None and entry.frame.flags == 0 for entry in entries)


_text = st.text(
    st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc"]), max_size=20
)
_values: st.SearchStrategy[str] = st.one_of(
    st.sampled_from(["0", "-0", "1.50", "1E+2", "12345678901234567890", "true", "null", '"\\n"']),
    _text.map(lambda text: f'"{text}"'),
    st.lists(st.sampled_from(["1", "{}", '[" "]']), max_size=3).map(lambda v: f"[{', '.join(v)}]"),
)
_objects = st.lists(
    st.tuples(st.sampled_from(["id", "type", "parentId", "x", "payload", "checksum"]), _values),
    max_size=5,
).map(lambda pairs: "{" + ",".join(f'"{name}": {value}' for name, value in pairs) + "}")
_rows = st.builds(
    Row,
    _objects,
    st.sampled_from([None, "retained-import"]),
    st.sampled_from([None, *QUALIFICATIONS]),
)


@settings(max_examples=300)
@given(st.lists(_rows, max_size=12))
def test_round_trip(rows: list[Row]) -> None:
    """What the writer of the format makes is read as it was meant."""
    _, entries = look(journal([HEADER, *rows]))
    assert [entry.raw.decode() for entry in entries] == [row.payload for row in rows]
    found = [entry.frame.flags for entry in entries if entry.frame is not None]
    wanted = [flags(row.qualification, retained=row.retention is not None) for row in rows]
    assert found == wanted


def test_requests_are_told_apart() -> None:
    """They never become the leaf, so they are frames of another kind."""
    _, entries = look(journal([HEADER, A, request("q", "a")]))
    assert [entry.request for entry in entries] == [False, True]


@pytest.mark.parametrize(
    ("version", "found"), [(..., None), (None, None), (1, 1), (2, 2), (3, 3)], ids=str
)
def test_versions_that_are_taken(version: Any, found: int | None) -> None:
    """The rules of plain files hold for the header in a frame, upgrades too."""
    compaction = dump({"type": "compaction", "summary": "s", "firstKeptEntryIndex": 1})
    hook = message("m", None).replace('"role":"user"', '"role":"hookMessage"')
    data = journal([header(version=version), Row(hook, None, "native-admission"), compaction])
    analysis, entries = look(data)
    assert analysis.version == found
    raws = [entry.raw.decode() for entry in entries]
    assert ('"role":"custom"' in raws[0]) == (version in (..., None, 1, 2))
    assert ("firstKeptEntryIndex" in raws[1]) == (version in (2, 3))
    assert entries[0].frame is not None
    assert entries[0].frame.flags == flags("native-admission")
    assert look(data)[1] == entries


@pytest.mark.parametrize("version", ["4", "0", "3.0", '"3"', "true", "-1", "1e0", "99999999999"])
def test_versions_that_are_refused(version: str) -> None:
    """Exactly absent, 1, 2 and 3."""
    data = journal([HEADER.replace('"version":3', f'"version":{version}'), A])
    error = refusal(data, Unsupported)
    assert f"session version {version}" in str(error)
    assert error.offset == 0


# Damage


def test_every_flipped_bit_is_refused() -> None:
    """Whatever bit of a journal changes: an import refuses, with a typed error of one line. What is
    left of it for a salvage is less than all."""
    for at in range(len(SMALL)):
        for bit in range(8):
            data = bytearray(SMALL)
            data[at] ^= 1 << bit
            with pytest.raises(TreeringError) as caught:
                analyse(MemorySource(bytes(data)), limits=None)
            assert isinstance(caught.value, (InvalidSource, Unsupported)), (at, bit)
            assert "\n" not in str(caught.value)
            assert caught.value.offset is None or caught.value.offset <= at


def test_every_flipped_bit_costs_a_salvage_that_frame_alone() -> None:
    """All other frames are taken: each verifies by itself. (One flip that is an LF makes two lines,
    and one of an LF fuses two.)"""
    for at in range(STARTS[1], len(SMALL)):
        data = bytearray(SMALL)
        data[at] ^= 1 << at % 8
        if data[at] == 10 or SMALL[at] == 10:
            continue
        hit = next(n for n in range(4) if at < STARTS[n + 1])
        analysis, entries = look(bytes(data), salvage=True)
        wanted = [raw for n, raw in enumerate((A, B, B), 1) if n != hit]
        assert [entry.raw.decode() for entry in entries] == wanted
        (piece,) = analysis.left_out
        assert (piece.line, piece.offset) == (hit + 1, STARTS[hit])
        assert analysis.oddities.get("chain_breaks", 0) == (hit < 3)


def test_every_truncation() -> None:
    """A journal that ends within a frame is refused, one that ends behind a frame is shorter."""
    for size in range(len(SMALL)):
        if size in STARTS[1:]:
            assert len(payloads(SMALL[:size])) == STARTS.index(size) - 1
            continue
        error = refusal(SMALL[:size])
        if size >= 18:  # shorter ones show nothing yet of what they are
            line = sum(start <= size for start in STARTS)
            assert f"line {line} is an incomplete last frame" in str(error), size
            assert error.offset == STARTS[line - 1]


@pytest.mark.parametrize(
    ("order", "line", "words"),
    [
        ([0, 2, 3], 2, "states sequence 2 where 1 comes"),
        ([0, 1, 1, 2, 3], 3, "states sequence 1 where 2 comes"),
        ([0, 2, 1, 3], 2, "states sequence 2 where 1 comes"),
        ([1, 2], 1, "states sequence 1 where 0 comes"),
        ([0, 0, 1], 2, "states sequence 0 where 1 comes"),
    ],
)
def test_frames_missing_repeated_exchanged(order: list[int], line: int, words: str) -> None:
    """Each verifies by itself; the chain does not."""
    error = refusal(b"".join(LINES[n] for n in order))
    assert f"line {line} {words}" in str(error)
    assert error.offset == sum(len(LINES[n]) for n in order[: line - 1])
    assert "--salvage" in str(error)


def test_a_predecessor_of_another_journal() -> None:
    """The right sequence, and whole, but behind another frame."""
    other = journal([header(cwd="/other"), A]).splitlines(keepends=True)
    error = refusal(LINES[0] + other[1])
    assert "line 2 does not follow the frame before it" in str(error)
    null = framed(A, 1, None)[0].encode() + b"\n"
    assert "predecessor that cannot be" in str(refusal(LINES[0] + null))
    first = framed(HEADER, 0, "0" * 64)[0].encode() + b"\n"
    assert "predecessor that cannot be" in str(refusal(first))


# Spelling

_CHECKSUM_OF_0 = framed(HEADER, 0, None)[1]
GOOD = f'{{"journalFrame":1,"sequence":1,"previousChecksum":"{_CHECKSUM_OF_0}","payload":{A}'


def second(line: str | bytes) -> bytes:
    raw = line if isinstance(line, bytes) else line.encode()
    return LINES[0] + raw + b"\n"


def resealed(change: Callable[[str], str]) -> bytes:
    """The second frame of a journal, changed and then given the checksum of what it says now."""
    changed = change(GOOD)
    assert changed != GOOD
    return second(sealed(changed)[0])


def test_the_good_one_is_good() -> None:
    assert payloads(second(sealed(GOOD)[0])) == [A]


SPELLINGS: dict[str, Callable[[str], str]] = {
    "reordered": lambda t: t.replace(
        f'"sequence":1,"previousChecksum":"{_CHECKSUM_OF_0}"',
        f'"previousChecksum":"{_CHECKSUM_OF_0}","sequence":1',
    ),
    "qualification before retention": lambda t: t.replace(
        ',"payload"', ',"qualification":"native-admission","retention":"retained-import","payload"'
    ),
    "extra member": lambda t: t.replace(',"payload"', ',"extra":1,"payload"'),
    "extra behind the payload": lambda t: t + ',"extra":{}',
    "second payload": lambda t: t + ',"payload":{}',
    "second sequence": lambda t: t.replace('"sequence":1', '"sequence":1,"sequence":1'),
    "space": lambda t: t.replace('"sequence":1', '"sequence": 1'),
    "space in front": lambda t: " " + t,
    "sequence 1.0": lambda t: t.replace('"sequence":1', '"sequence":1.0'),
    "sequence 1e0": lambda t: t.replace('"sequence":1', '"sequence":1e0'),
    "sequence 01": lambda t: t.replace('"sequence":1', '"sequence":01'),
    "sequence text": lambda t: t.replace('"sequence":1', '"sequence":"1"'),
    "sequence of 5000 digits": lambda t: t.replace('"sequence":1', '"sequence":' + "1" * 5000),
    "journalFrame 1.0": lambda t: t.replace('"journalFrame":1', '"journalFrame":1.0'),
    "journalFrame true": lambda t: t.replace('"journalFrame":1', '"journalFrame":true'),
    "journalFrame text": lambda t: t.replace('"journalFrame":1', '"journalFrame":"1"'),
    "journalFrame 2": lambda t: t.replace('"journalFrame":1', '"journalFrame":2'),
    "escaped member": lambda t: t.replace('"sequence"', '"sequen\\u0063e"'),
    "upper-case predecessor": lambda t: t.replace(_CHECKSUM_OF_0, _CHECKSUM_OF_0.upper()),
    "short predecessor": lambda t: t.replace(_CHECKSUM_OF_0, _CHECKSUM_OF_0[1:]),
    "no payload": lambda t: t.replace('"payload"', '"payloaf"'),
    "empty payload": lambda t: t.replace(A, ""),
    "retention null": lambda t: t.replace(',"payload"', ',"retention":null,"payload"'),
    "qualification null": lambda t: t.replace(',"payload"', ',"qualification":null,"payload"'),
    "payload an array": lambda t: t.replace(A, "[1]"),
    "payload a number": lambda t: t.replace(A, "1"),
    "payload null": lambda t: t.replace(A, "null"),
    "payload not JSON": lambda t: t.replace(A, '{"type":"x",}'),
    "payload with NaN": lambda t: t.replace(A, '{"type":"x","n":NaN}'),
    "payload with Infinity": lambda t: t.replace(A, '{"type":"x","n":-Infinity}'),
    "payload twice": lambda t: t.replace(A, A + A),
    "payload cut": lambda t: t.replace(A, A[:-1]),
    "control character": lambda t: t.replace('"hi"', '"h\x01i"'),
    "NUL": lambda t: t.replace('"hi"', '"h\0i"'),
    "BOM before the payload": lambda t: t.replace(A, "\ufeff" + A),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings_are_refused(name: str) -> None:
    """Every one verifies by its checksum, and most say the same: none is what the writer makes."""
    error = refusal(resealed(SPELLINGS[name]))
    assert "line 2 " in str(error)
    assert error.offset == len(LINES[0])


SMUGGLED: dict[str, Callable[[str], str]] = {
    "behind": lambda line: line[:-1] + ',"x":1}',
    "checksum twice": lambda line: line[:-1] + ',"checksum":"' + "0" * 64 + '"}',
    "space behind": lambda line: line + " ",
    "CR": lambda line: line + "\r",
    "upper-case checksum": lambda line: line[:-66] + line[-66:].upper(),
    "short checksum": lambda line: line[:-10] + '"}',
    "no checksum": lambda line: line[: line.rindex(',"checksum"')] + "}",
    "two frames": lambda line: line + line,
    "text behind": lambda line: line + "x",
    "plain record": lambda line: A,
    "array": lambda line: f"[{line}]",
    "blank": lambda line: "",
    "space only": lambda line: " \t",
    "number": lambda line: "1",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_lines_that_are_no_frames(name: str) -> None:
    """Something behind the checksum, or instead of a frame."""
    error = refusal(second(SMUGGLED[name](sealed(GOOD)[0])))
    assert "line 2 " in str(error)
    assert error.offset == len(LINES[0])


def test_bytes_that_are_no_text() -> None:
    """Not UTF-8 in a payload or around it, with a checksum of just these bytes."""
    for at in (b'"hi"', b'"sequence"'):
        body = GOOD.encode().replace(at, at[:2] + b"\xff\xfe" + at[2:])
        digest = hashlib.sha256(body + b"}").hexdigest().encode()
        assert "UTF-8" in str(refusal(second(body + b',"checksum":"' + digest + b'"}')))
    body = GOOD.encode().replace(b'"hi"', b'"\xed\xa0\x80"')  # half a surrogate pair, raw
    digest = hashlib.sha256(body + b"}").hexdigest().encode()
    assert "UTF-8" in str(refusal(second(body + b',"checksum":"' + digest + b'"}')))


def test_a_byte_order_mark() -> None:
    """No frame begins with one, and it is not part of the format."""
    error = refusal(b"\xef\xbb\xbf" + SMALL)
    assert "line 1 begins with a byte order mark" in str(error)
    assert "line 1 is blank" in str(refusal(b"\n" + SMALL))
    assert "line 1 is not spelled" in str(refusal(b" " + SMALL))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("retention", "retained"),
        ("retention", "Retained-Import"),
        ("retention", ""),
        ("qualification", "native"),
        ("qualification", "native-admission "),
        ("qualification", ""),
    ],
)
def test_49_unknown_marks_are_refused(member: str, value: str) -> None:
    """Scenario 49: qualifier values outside the list refuse on reading; a flipped one breaks the
    checksum, which is said instead."""
    row = Row(A, **{member: value})
    error = refusal(journal([HEADER, row]), Unsupported)
    assert f"unknown {member}" in str(error)
    assert "newer release" in str(error)
    flipped = journal([HEADER, Row(A, "retained-import", "native-recovery")])
    for good, bad in ((b"retained-import", b"retained-impost"), (b"native-rec", b"native-reb")):
        assert "does not verify" in str(refusal(flipped.replace(good, bad, 1)))


def test_a_mark_taken_out_or_put_in() -> None:
    """Marks are under the checksum."""
    marked = Row(A, "retained-import", "native-recovery")
    data = journal([HEADER, marked])
    for part in (b',"retention":"retained-import"', b',"qualification":"native-recovery"'):
        assert "does not verify" in str(refusal(data.replace(part, b"")))
    bare = journal([HEADER, A])
    cut = bare.rindex(b',"payload"')
    forged = bare[:cut] + b',"qualification":"native-admission"' + bare[cut:]
    assert "does not verify" in str(refusal(forged))


def test_frames_begin_or_are_none() -> None:
    """A frame among plain lines, and a plain line among frames, are refused by their line."""
    plain = (HEADER + "\n" + A + "\n").encode()
    assert "line 3 is a JSON-framed journal record in a plain file" in str(
        refusal(plain + LINES[1])
    )
    assert "line 2 is no frame" in str(refusal(LINES[0] + A.encode() + b"\n"))
    assert 'line 1 is "message"' in str(refusal(journal([A, B])))
    assert "no session header" in str(refusal(journal(["{}"])))


# Limits


def test_29_limits_of_a_copy() -> None:
    """Scenario 29: entries and bytes at the limit and one beyond; the header's bytes count, what
    frames add does not."""
    rows = [HEADER, *[message(f"m{n}", None) for n in range(16_384)]]
    data = journal(rows)
    source = MemorySource(data)
    assert analyse(source, limits=CopyLimits()).entry_count == 16_384
    more = data + framed(A, 16_385, _last_checksum(data))[0].encode() + b"\n"
    with pytest.raises(LimitExceeded) as caught:
        analyse(MemorySource(more), limits=CopyLimits())
    assert (caught.value.limit, caught.value.need) == (16_384, 16_385)
    assert caught.value.offset == len(data)
    assert analyse(MemorySource(more), limits=None).entry_count == 16_385
    size = sum(map(len, rows))
    assert analyse(source, limits=CopyLimits(json_bytes=size)).json_bytes == size
    with pytest.raises(LimitExceeded) as caught:
        analyse(source, limits=CopyLimits(json_bytes=size - 1))
    assert (caught.value.limit, caught.value.need) == (size - 1, size)


def _last_checksum(data: bytes) -> str:
    return data[-67:-3].decode()


def test_64_mib_of_json_and_a_byte() -> None:
    """The default, with a header and one large record."""
    rest = 64 * MIB - len(HEADER) - len(message("a", None, ""))
    for extra in (0, 1):
        source = MemorySource(journal([HEADER, message("a", None, "x" * (rest + extra))]))
        if not extra:
            assert analyse(source, limits=CopyLimits()).json_bytes == 64 * MIB
            continue
        with pytest.raises(LimitExceeded) as caught:
            analyse(source, limits=CopyLimits())
        assert (caught.value.limit, caught.value.need) == (64 * MIB, 64 * MIB + 1)


def test_the_largest_record() -> None:
    """A payload of 64 MiB passes with both marks; one more byte is refused, and one that is much
    too long as soon as that shows."""
    fixed = len(message("a", None, ""))
    for extra, kind in ((0, None), (1, LimitExceeded), (400, LimitExceeded)):
        text = message("a", None, "x" * (PAYLOAD_BYTES_MAX - fixed + extra))
        data = journal([HEADER, Row(text, "retained-import", "native-context-epoch")])
        if kind is None:
            assert analyse(MemorySource(data), limits=None).entry_count == 1
            continue
        with pytest.raises(kind) as caught:
            analyse(MemorySource(data), limits=None)
        assert "line 2 is longer than a record can be" in str(caught.value)
        assert len(analyse(MemorySource(data), limits=None, salvage=True).left_out) == 1


def test_deep_nesting() -> None:
    """One level more than an entry can have, and very many, are refused without recursion."""
    for depth in (JSON_DEPTH_MAX, 100_000):
        payload = '{"type":"custom","deep":' + "[" * depth + "]" * depth + "}"
        error = refusal(journal([HEADER, payload]), LimitExceeded)
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.need) == (JSON_DEPTH_MAX, depth + 1)
        assert error.offset == len(LINES[0])


def test_memory_does_not_grow_with_the_journal() -> None:
    """40 MiB in records of 200 KiB: a few of them at a time."""
    data = journal([HEADER, *[message(f"m{n}", None, "x" * 200_000) for n in range(200)]])
    source = MemorySource(data)
    tracemalloc.start()
    analysis = analyse(source, limits=None)
    for _ in prepare(source, analysis):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MIB, peak


# Salvage, and sources that change


def test_a_salvage_takes_what_verifies() -> None:
    """Frames around a broken one, out of order and twice, and not the torn end. Nothing of the
    source is unaccounted for."""
    broken = LINES[1].replace(b'"hi"', b'"ho"')
    data = LINES[0] + broken + b"noise\n" + LINES[3] + LINES[2] + LINES[3] + LINES[1][:-1]
    analysis, entries = look(data, salvage=True)
    assert [entry.frame.sequence for entry in entries if entry.frame is not None] == [3, 2, 3]
    reasons = [(piece.line, piece.reason) for piece in analysis.left_out]
    assert [number for number, _ in reasons] == [2, 3, 7]
    assert "does not verify" in reasons[0][1]
    assert "is not JSON" in reasons[1][1]
    assert "incomplete last frame" in reasons[2][1]
    assert analysis.oddities["chain_breaks"] == 2
    taken = sum(len(LINES[n]) for n in (0, 3, 2, 3))
    newlines = len(analysis.left_out) - 1  # the torn end has none
    assert taken + sum(p.length for p in analysis.left_out) + newlines == len(data)


def test_a_salvage_without_a_header() -> None:
    """The entries are taken all the same, and a header further on is used."""
    analysis, entries = look(b"".join(LINES[1:]), salvage=True)
    assert analysis.header is None
    assert len(entries) == 3
    with pytest.raises(InvalidSource, match="no whole record"):
        look(LINES[0].replace(b"cwd", b"CWD"), salvage=True)


def test_a_source_that_changes_between_the_readings() -> None:
    """Edits, of which one is a whole journal of the same size, and a cut."""
    source = MemorySource(SMALL)
    analysis = analyse(source, limits=None)
    other = journal([HEADER, Row(A, None, "native-recovery"), Row(B, "retained-import"), B])
    for data in (SMALL.replace(b'"hi"', b'"ho"'), other.ljust(len(SMALL)), SMALL[:-300]):
        source.data = data
        with pytest.raises(SourceChanged):
            list(prepare(source, analysis))
    source.data = SMALL
    assert len(list(prepare(source, analysis))) == 3


def test_the_largest_envelope() -> None:
    """What a frame can put around a payload fits what is allowed for it."""
    line = framed("{}", native_jsonl.SEQUENCE_END, "0" * 64, "retained-import", QUALIFICATIONS[-1])
    assert len(line[0]) - 2 <= native_jsonl.FRAME_BYTES_MAX - PAYLOAD_BYTES_MAX
    with pytest.raises(InvalidSource):
        look((line[0] + "\n").encode(), salvage=True)
