"""The bytes of format version 1: every field, every refusal, and files that never change."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import build, damage

from treering.engine.errors import Unsupported
from treering.engine.journal import control
from treering.engine.journal.format import (
    FRAME_MAGIC,
    FileHeader,
    Watermark,
    decode_file_header,
    decode_watermark,
    encode_file_header,
    encode_frame,
)
from treering.engine.journal.reader import Scan, frame_at, whole_frame

DATA = Path(__file__).resolve().parents[1] / "data"
U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
IDS = st.binary(min_size=16, max_size=16)


def golden_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden", DATA / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOLDEN = sorted(path.stem.removeprefix("golden-") for path in DATA.glob("golden-*.json"))


def test_golden_files_exist() -> None:
    """The four golden journals are part of the tree (the tests below are not empty)."""
    assert GOLDEN == ["batch", "epochs", "fresh", "kinds"]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_never_change(name: str) -> None:
    """A published file of version 1 is the same bytes for ever."""
    expected = json.loads((DATA / f"golden-{name}.json").read_bytes())
    data = (DATA / f"golden-{name}.jsonl").read_bytes()
    assert hashlib.sha256(data).hexdigest() == expected["sha256"]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_is_read_as_expected(name: str) -> None:
    """Every release reads the golden journals as the first one did."""
    expected = json.loads((DATA / f"golden-{name}.json").read_bytes())
    data = (DATA / f"golden-{name}.jsonl").read_bytes()
    assert json.loads(json.dumps(golden_maker().describe(data))) == expected


@pytest.mark.parametrize("name", ["fresh", "batch"])
def test_golden_is_made_the_same_way(name: str) -> None:
    """With the same clock and randomness the engine makes the same bytes (no zstd here)."""
    assert golden_maker().make(name) == (DATA / f"golden-{name}.jsonl").read_bytes()


@given(required=st.just(0), optional=U32, created=U64, journal_id=IDS, published=U64)
def test_file_header_round_trip(
    required: int, optional: int, created: int, journal_id: bytes, published: int
) -> None:
    """A header is read back as it was written, is 128 bytes, and unknown optional bits pass."""
    header = FileHeader(1, 128, required, optional, created, journal_id, published)
    data = encode_file_header(header)
    assert len(data) == 128
    assert data == build.file_header(journal_id, published, optional=optional, created=created)
    assert decode_file_header(data, "x") == header
    assert decode_file_header(data + b"more", "x") == header


def test_file_header_known_answer() -> None:
    """The header of the page, byte for byte."""
    data = encode_file_header(FileHeader(1, 128, 0, 0, 0x0102030405060708, build.ID, 611))
    assert data[:52].hex() == (
        "8954524e470d0a1a0100800000000000000000000807060504030201"
        "0102030405060708090a0b0c0d0e0f106302000000000000"
    )
    assert data[52:112] == bytes(60)
    assert data[112:].hex() == "74d9de32bb0ce4c30ad852dc8dca70d6"


@pytest.mark.parametrize("bit", range(128 * 8))
def test_file_header_any_flip_is_damage(bit: int) -> None:
    """One wrong bit anywhere in the header never reads as a header, nor as a newer version."""
    assert decode_file_header(damage.flip(build.file_header(published=500), bit), "x") is None


@pytest.mark.parametrize("size", range(128))
def test_file_header_cut_short(size: int) -> None:
    """A header that is not whole is none."""
    assert decode_file_header(build.file_header(published=500)[:size], "x") is None


@pytest.mark.parametrize("version", [0, 2, 99, 65535])
def test_F66_other_version_is_unsupported(version: int) -> None:
    """A header of another version that verifies is refused, naming the version."""
    with pytest.raises(Unsupported, match=f"version {version}"):
        decode_file_header(build.file_header(published=500, version=version), "x")


@pytest.mark.parametrize("bit", range(32))
def test_F66_required_feature_is_named(bit: int) -> None:
    """A required feature that we do not know is refused, naming its bit."""
    with pytest.raises(Unsupported, match=rf"\b{bit}\b"):
        decode_file_header(build.file_header(published=500, required=1 << bit), "x")


def test_header_of_other_length_is_no_header() -> None:
    """Version 1 has a header of 128 bytes and nothing else."""
    assert decode_file_header(build.file_header(published=500, length=256), "x") is None


FRAMES = st.fixed_dictionaries(
    {
        "kind": st.integers(0, 255),
        "codec": st.integers(0, 255),
        "flags": U16,
        "payload": st.binary(max_size=200),
        "raw": U32,
        "sequence": U64,
        "epoch": U32,
        "unsynced": U32,
        "previous": st.binary(min_size=8, max_size=8),
    }
)


@given(fields=FRAMES, journal_id=IDS)
def test_frame_round_trip(fields: dict[str, Any], journal_id: bytes) -> None:
    """Any frame is written as the page says and read back with every field, by its offset alone."""
    salt = int.from_bytes(journal_id[:8], "little")
    data, revision = encode_frame(salt=salt, **fields)
    payload = fields.pop("payload")
    made = build.Maker(journal_id)
    expected = made.frame(payload=payload, **fields)
    assert data == made.body
    assert revision == expected.revision
    found = whole_frame(data, 128, salt)
    assert found is not None
    frame, body = found
    assert body[44:] == payload
    assert frame.stored == len(payload)
    for name, value in fields.items():
        assert getattr(frame, name) == value
    assert (frame.offset, frame.end, frame.revision) == (128, expected.end, revision)
    at = frame_at(build.Memory(bytes(7) + data), salt, 7)
    assert at is not None
    assert at[0] == frame._replace(offset=7)


@given(fields=FRAMES, journal_id=IDS, other=IDS)
def test_frame_of_another_journal_never_verifies(
    fields: dict[str, Any], journal_id: bytes, other: bytes
) -> None:
    """The salt keeps a frame of another journal from passing as one of this."""
    salt = int.from_bytes(journal_id[:8], "little")
    other_salt = int.from_bytes(other[:8], "little")
    data, _ = encode_frame(salt=salt, **fields)
    assert (whole_frame(data, 0, other_salt) is not None) == (salt == other_salt)


def test_frame_known_answer() -> None:
    """One frame, byte for byte."""
    data, revision = encode_frame(
        kind=2,
        codec=0,
        flags=3,
        payload=b"{}",
        raw=2,
        sequence=5,
        epoch=2,
        unsynced=1,
        previous=bytes(range(8)),
        salt=int.from_bytes(build.ID[:8], "little"),
    )
    assert data.hex() == "".join(
        [
            "f752471d02000300020000000200000005000000000000000200000001000000000102030405",
            "06074224cbe67b7d6c2ef5695fc58d5a734c02f5c88e9579",
        ]
    )
    assert revision == data[-16:]


@settings(max_examples=20)
@given(payload=st.binary(max_size=40))
def test_F99_every_bit_of_a_frame_is_covered(payload: bytes) -> None:
    """No bit of a frame can flip unseen, in header, payload or digest."""
    maker = build.Maker()
    maker.entry("x")
    maker.frame(build.ENTRY, payload)
    last = maker.frames[-1]
    data = maker.body[last.offset - 128 :]
    assert whole_frame(data, 0, maker.salt) is not None
    for bit in range(len(data) * 8):
        assert whole_frame(damage.flip(data, bit), 0, maker.salt) is None


@pytest.mark.parametrize("size", [0, 1, 4, 43, 44, 59])
def test_frame_cut_short_is_none(size: int) -> None:
    """Fewer bytes than an envelope are no frame."""
    maker = build.Maker()
    maker.frame(build.ENTRY, b"")
    assert whole_frame(maker.body[:size], 0, maker.salt) is None
    assert frame_at(build.Memory(maker.body[:size]), maker.salt, 0) is None


def test_frame_with_bytes_behind_is_not_whole() -> None:
    """The length that an index remembers must be exactly the frame's."""
    maker = build.Maker()
    maker.entry()
    assert whole_frame(maker.body + b"x", 0, maker.salt) is None


@given(journal_id=IDS, sequence=U64, end=U64, revision=st.binary(min_size=16, max_size=16))
def test_watermark_round_trip(journal_id: bytes, sequence: int, end: int, revision: bytes) -> None:
    """A watermark is 64 bytes and is read back; of another journal it is ignored."""
    mark = Watermark(journal_id, sequence, end, revision)
    data = mark.encode()
    assert data == build.watermark(journal_id, sequence, end, revision)
    assert len(data) == 64
    assert decode_watermark(data, journal_id) == mark
    other = bytes([journal_id[0] ^ 1]) + journal_id[1:]
    assert decode_watermark(data, other) is None


def test_watermark_flip_is_ignored() -> None:
    """A watermark with any wrong bit, or of any other length, counts as absent."""
    data = Watermark(build.ID, 5, 700, bytes(16)).encode()
    for bit in range(len(data) * 8):
        assert decode_watermark(damage.flip(data, bit), build.ID) is None
    for size in range(64):
        assert decode_watermark(data[:size], build.ID) is None
    assert decode_watermark(data + b"x", build.ID) is None
    assert decode_watermark(None, build.ID) is None


def test_empty_payload_is_a_frame() -> None:
    """A payload of no bytes is 60 bytes of envelope, and the scan goes on behind it."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.ENTRY, b"")
    maker.entry("b")
    assert build.look(maker.whole()).case == "A"
    assert [row[0] for row in build.visible(maker.whole())] == [4, 5]


@pytest.mark.parametrize("chunk", [60, 61, 64, 100, 127, 4096])
def test_scan_does_not_depend_on_chunks(chunk: int) -> None:
    """The same frames whatever the size of a read (a header or payload may cross every edge)."""
    maker = build.Maker().started()
    maker.open()
    for size in (0, 1, 3, 17, 59, 60, 61, 200):
        maker.frame(build.ENTRY, b"p" * size)
    source = build.Memory(maker.whole())
    scan = Scan(source, maker.salt, chunk_bytes=chunk)
    got = [(frame.offset, frame.revision, body[44:]) for frame, body in scan.frames()]
    assert got == [(f.offset, f.revision, f.payload) for f in maker.frames]
    assert scan.stop is not None
    assert scan.stop.reason is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sequence": 9}, "sequence"),
        ({"previous": b"12345678"}, "previous"),
        ({"epoch": 3}, "epoch"),
        ({"epoch": 1}, "epoch"),
        ({"salt": 1}, "header check"),
        ({"magic": b"\xf7RG\x1e"}, "magic"),
        ({"stored": 64 * 2**20 + 1}, "stored length"),
        ({"stored": 1000}, "cut short"),
        ({"stored": 1}, "digest"),
    ],
)
def test_scan_stops_where_the_history_breaks(change: dict[str, Any], why: str) -> None:
    """A scan stops exactly at the first frame that is not what must come next, and says why."""
    maker = build.Maker().started()
    maker.open()
    good = maker.entry("a")
    maker.frame(build.ENTRY, b"bad payload", **change)
    scan = Scan(build.Memory(maker.whole()), maker.salt)
    assert [frame.sequence for frame, _ in scan.frames()] == [0, 1, 2, 3, 4]
    assert scan.stop is not None
    assert scan.stop.place.offset == good.end
    assert why in (scan.stop.reason or "")


NOT_UNDERSTOOD = {
    "required kind": {"kind": 77},
    "kind 0": {"kind": 0},
    "codec 3": {"codec": 3, "raw": 50},
    "codec 0x83": {"codec": 0x83, "raw": 50},
    "raw shorter than stored": {"raw": 3},
    "raw longer, codec 0": {"raw": 50},
    "zstd not smaller": {"codec": 1},
    "splice not smaller": {"codec": 0x80},
    "raw over 64 MiB": {"codec": 1, "raw": 64 * 2**20 + 1},
    "qualification 5": {"flags": 5 << 1},
    "qualification 7": {"flags": 7 << 1},
    "flag bit 5": {"flags": 0x20},
    "flag bit 15": {"flags": 0x8000},
    "staged BLOB": {"kind": build.BLOB, "flags": build.STAGED},
    "staged EPOCH_ACTIVATE": {"kind": build.EPOCH_ACTIVATE, "flags": build.STAGED},
    "second SESSION": {"kind": build.SESSION},
    "late PROVENANCE": {"kind": build.PROVENANCE},
    "spliced BLOB": {"kind": build.BLOB, "codec": 0x80, "raw": 50},
    "bad LEAF": {"kind": build.LEAF},
    "bad GAP": {"kind": build.GAP},
    "bad EPOCH_CLOSE": {"kind": build.EPOCH_CLOSE},
    "bad EPOCH_ACTIVATE": {"kind": build.EPOCH_ACTIVATE},
    "DICTIONARY without an id": {"kind": build.DICTIONARY},
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_not_understood_is_no_damage(name: str, tmp_path: Path) -> None:
    """A verified frame that is not understood is named and not shown; the rest is; case A; writing
    is refused as Unsupported; the bytes stay."""
    maker = build.Maker().started()
    maker.open()
    maker.entry("before")
    fields = {"kind": build.ENTRY} | NOT_UNDERSTOOD[name]
    odd = maker.frame(payload=b"what is it", **fields)
    if fields["kind"] == build.EPOCH_CLOSE:
        maker.open()
    after = maker.entry("after")
    data = maker.whole()
    found = build.look(data)
    assert found.case == "A"
    assert found.walk is not None
    assert [p.sequence for p in found.walk.history.problems] == [odd.sequence]
    assert [row[0] for row in build.visible(data)] == [4, after.sequence]
    store = build.make_store(tmp_path)
    path = build.put(store, data)
    with pytest.raises(Unsupported) as caught:
        build.reopen(store)
    assert caught.value.offset == odd.offset
    assert build.get(path) == data


OPTIONAL_SHAPES = {
    "plain": {},
    "its own codec": {"codec": 5, "raw": 4000},
    "its own flags": {"flags": 0x8000},
    "zstd that is none": {"codec": 1, "raw": 4000},
    "empty": {"payload": b""},
    "kind 255": {"kind": 255},
    "kind 128": {"kind": 128},
}


@pytest.mark.parametrize("name", OPTIONAL_SHAPES)
def test_optional_kind_is_skipped_whatever_it_holds(name: str, tmp_path: Path) -> None:
    """An unknown kind with bit 7 is skipped without being decoded; writing goes on."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(**({"kind": 200, "payload": b"odd"} | OPTIONAL_SHAPES[name]))
    maker.entry("after")
    found = build.look(maker.whole())
    assert found.walk is not None
    assert found.walk.history.problems == []
    assert [row[0] for row in build.visible(maker.whole())] == [5]
    store = build.make_store(tmp_path)
    build.put(store, maker.whole())
    build.reopen(store).owner.release()


def test_optional_kind_in_a_staged_run_is_never_shown() -> None:
    """Readers show ENTRY, LEAF and REQUEST: an activation does not make anything else visible."""
    maker = build.Maker().started()
    maker.open()
    first = maker.entry("a", flags=build.STAGED)
    last = maker.frame(200, b"x", flags=build.STAGED)
    maker.activate(first.sequence, last.sequence, last.revision)
    assert {kind for _, kind, _ in build.visible(maker.whole())} <= {2, 6, 8}


def test_requires_is_named_and_refuses_writing(tmp_path: Path) -> None:
    """An EPOCH_OPEN that requires what we do not know refuses writing, by name."""
    maker = build.Maker().started()
    maker.open(requires=["teleport"])
    maker.entry("a")
    store = build.make_store(tmp_path)
    build.put(store, maker.whole())
    with pytest.raises(Unsupported, match="teleport"):
        build.reopen(store)
    assert [row[0] for row in build.visible(maker.whole())] == [4]


def broken_rules() -> dict[str, build.Maker]:
    made: dict[str, build.Maker] = {}
    for name in (
        "first frame is no EPOCH_OPEN",
        "no SESSION",
        "EPOCH_OPEN inside its epoch",
        "ENTRY after EPOCH_CLOSE",
        "EPOCH_CLOSE counts wrong",
        "EPOCH_OPEN of another journal",
        "first epoch is not 1",
        "codec on EPOCH_CLOSE",
    ):
        maker = build.Maker()
        if name.startswith("first frame"):
            maker.entry("x", epoch=0)
            maker.session()
        elif name == "no SESSION":
            maker.open()
            maker.entry("x")
        else:
            maker.open(5 if name == "first epoch is not 1" else 1)
            maker.session()
            if name == "EPOCH_OPEN inside its epoch":
                maker.open(1)
            elif name == "ENTRY after EPOCH_CLOSE":
                maker.close()
                maker.entry("x")
            elif name == "EPOCH_CLOSE counts wrong":
                maker.close(frames=7)
            elif name == "EPOCH_OPEN of another journal":
                maker.journal_id, keep = build.OTHER_ID, maker.journal_id
                maker.open(2)
                maker.journal_id = keep
            elif name == "codec on EPOCH_CLOSE":
                maker.frame(build.EPOCH_CLOSE, b"zz", codec=1, raw=70)
        made[name] = maker.publish()
    return made


BROKEN = broken_rules()


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_reported_and_refuses_writing(name: str, tmp_path: Path) -> None:
    """A history that verifies but breaks a rule is case A, named, and not written to."""
    data = BROKEN[name].whole()
    found = build.look(data)
    assert found.case == "A"
    assert found.walk is not None
    assert found.walk.history.problem_count >= 1
    store = build.make_store(tmp_path)
    path = build.put(store, data)
    with pytest.raises(Unsupported):
        build.reopen(store)
    assert build.get(path) == data


def activation_abuses() -> dict[str, build.Maker]:
    made: dict[str, build.Maker] = {}
    for name in (
        "nothing staged",
        "first before the run",
        "first behind last",
        "last is not the one before",
        "other revision",
        "an unstaged frame between",
        "negative first",
        "float first",
        "over an epoch change",
    ):
        maker = build.Maker().started()
        maker.open()
        maker.entry("z")
        if name == "nothing staged":
            maker.activate(4, 4, maker.frames[-1].revision)
        else:
            one = maker.entry("s1", flags=build.STAGED)
            if name == "an unstaged frame between":
                maker.entry("plain")
            if name == "over an epoch change":
                maker.open(flags=build.STAGED)
            two = maker.entry("s2", flags=build.STAGED)
            first, last, revision = one.sequence, two.sequence, two.revision
            if name == "first before the run":
                first -= 1
            elif name == "first behind last":
                first = last + 1
            elif name == "last is not the one before":
                last -= 1
                revision = one.revision
            elif name == "other revision":
                revision = one.revision
            if name in ("negative first", "float first"):
                named = {"first": -1 if name[0] == "n" else 5.5, "last": last}
                maker.frame(4, build.compact(named | {"revision": revision.hex()}))
            else:
                maker.activate(first, last, revision)
        made[name] = maker
    return made


ABUSES = activation_abuses()


@pytest.mark.parametrize("name", ABUSES)
def test_wrong_activation_activates_nothing(name: str) -> None:
    """An EPOCH_ACTIVATE must name what was staged before it in its epoch; else it shows nothing."""
    data = ABUSES[name].whole()
    shown = [payload for _, _, payload in build.visible(data)]
    assert not [payload for payload in shown if b'"s1"' in payload or b'"s2"' in payload]
    found = build.look(data)
    assert found.case == "A"
    assert found.walk is not None
    assert found.walk.history.problem_count >= 1


@pytest.mark.parametrize("count", [3, 1005])
def test_misunderstood_staged_frames_are_never_shown(count: int) -> None:
    """However many frames of a run are not understood (more than are listed): none is shown."""
    maker = build.Maker().started()
    maker.open()
    staged = [maker.entry("bad", flags=build.STAGED | 0x400) for _ in range(count)]
    good = maker.entry("good", flags=build.STAGED)
    maker.activate(staged[0].sequence, good.sequence, good.revision)
    assert [row[0] for row in build.visible(maker.whole())] == [good.sequence]


CONTROL_JUNK = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b'{"leaf":',
    b'{"leaf":1}',
    b'{"leaf":NaN}',
    b'{"leaf":"\\ud800"}',
    b'{"leaf":"' + b"x" * (64 * 1024) + b'"}',
    b"[" * 60_000,
    b'{"journal":"zz"}',
    b'{"journal":"' + b"A" * 32 + b'"}',
    b'{"first":1e400,"last":2,"revision":""}',
    b'{"journal":' + b"9" * 60_000 + b"}",
]


@pytest.mark.parametrize("payload", CONTROL_JUNK, ids=lambda p: repr(p[:16]))
def test_control_payload_junk_is_refused_quietly(payload: bytes) -> None:
    """No bytes in a control frame get more than "not what the page says" (F126: no recursion)."""
    decoders = (
        control.decode_open,
        control.decode_activate,
        control.decode_close,
        control.decode_leaf,
        control.decode_gap,
        control.journal_id_in,
    )
    assert [decoder(payload) for decoder in decoders] == [None] * len(decoders)


def test_magic_cannot_occur_in_utf8() -> None:
    """The first byte of the frame magic is no byte of any UTF-8 text."""
    with pytest.raises(UnicodeDecodeError):
        FRAME_MAGIC.decode()
    assert FRAME_MAGIC[0] >= 0xF5
