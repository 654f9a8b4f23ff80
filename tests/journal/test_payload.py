"""From stored bytes to payload: exactly what the frame states, or a typed error; never more."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support import build, damage

from treering.engine.errors import TreeringError, Undecodable
from treering.engine.journal.format import Frame
from treering.engine.journal.history import Walk
from treering.engine.journal.payload import PayloadDecoder, compress, encode_splice
from treering.engine.limits import PAYLOAD_BYTES_MAX

TESTS = Path(__file__).resolve().parents[1]
TEXT = b"some text that compresses well, " * 20


def frame_of(codec: int, stored: bytes, raw: int, sequence: int = 9) -> Frame:
    return Frame(500, 2, codec, 0, len(stored), raw, sequence, 1, 0, bytes(8), bytes(16))


def nothing(number: int, before: int) -> bytes:
    raise Undecodable(f"{number} is not there")


PLAIN = PayloadDecoder(nothing, nothing)


def decode(codec: int, stored: bytes, raw: int) -> bytes:
    return PLAIN.decode(frame_of(codec, stored, raw), stored)


def without_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return stream.compress(data) + stream.flush()


def with_claimed_size(size: int) -> bytes:
    """A frame header that claims ``size`` bytes, and one tiny block."""
    block = struct.pack("<I", 1 | 0 << 1 | 1 << 3)[:3] + b"x"
    return b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", size) + block


@given(payload=st.binary(max_size=3000) | st.binary(max_size=40).map(lambda part: part * 200))
def test_compress_round_trip(payload: bytes) -> None:
    """What is compressed decodes to the same bytes; zstd is used only where it saves bytes."""
    codec, stored = compress(payload)
    assert codec in (0, 1)
    assert (stored == payload) if codec == 0 else (len(stored) < len(payload))
    assert decode(codec, stored, len(payload)) == payload


def test_one_zstd_frame_with_or_without_its_size() -> None:
    """F131: a frame that states no size decodes to exactly the raw length."""
    for stored in (zstandard.ZstdCompressor().compress(TEXT), without_size(TEXT)):
        assert decode(1, stored, len(TEXT)) == TEXT


@pytest.mark.parametrize("off", [-1, 1, -639, 10**6])
@pytest.mark.parametrize("sized", [True, False])
def test_other_raw_length_is_refused(off: int, sized: bool) -> None:
    """A payload that is shorter or longer than the frame states is never returned."""
    stored = zstandard.ZstdCompressor().compress(TEXT) if sized else without_size(TEXT)
    with pytest.raises(Undecodable):
        decode(1, stored, len(TEXT) + off)


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
GOOD = zstandard.ZstdCompressor().compress(TEXT)
BAD_ZSTD = {
    "empty": b"",
    "text": b"hello",
    "magic only": b"\x28\xb5\x2f\xfd",
    "cut by one": GOOD[:-1],
    "cut to half": GOOD[: len(GOOD) // 2],
    "two frames": GOOD + GOOD,
    "an empty frame behind": GOOD + zstandard.ZstdCompressor().compress(b""),
    "trailing byte": GOOD + b"\0",
    "trailing garbage": GOOD + b"garbage" * 30,
    "skippable first": SKIPPABLE + GOOD,
    "skippable behind": GOOD + SKIPPABLE,
    "skippable only": SKIPPABLE,
    "two frames, no size": without_size(TEXT) + without_size(TEXT),
    "half and half, no size": without_size(TEXT[:320]) + without_size(TEXT[320:]),
    "half and half": zstandard.ZstdCompressor().compress(TEXT[:320])
    + zstandard.ZstdCompressor().compress(TEXT[320:]),
    "trailing, no size": without_size(TEXT) + b"\0",
    "skippable behind, no size": without_size(TEXT) + SKIPPABLE,
    "cut, no size": without_size(TEXT)[:-1],
    "claims 2^60": with_claimed_size(2**60),
    "claims 2^63": with_claimed_size(2**63),
    "claims 2^64-2": with_claimed_size(2**64 - 2),
    "claims the right size": with_claimed_size(len(TEXT)),
    "legacy magic": b"\x27\xb5\x2f\xfd" + GOOD[4:],
}


@pytest.mark.parametrize("name", BAD_ZSTD)
def test_F130_not_exactly_one_frame_is_refused(name: str) -> None:
    """One zstd frame per payload and nothing before or behind it; anything else is Undecodable."""
    for codec in (1, 0x81):
        with pytest.raises(Undecodable):
            decode(codec, BAD_ZSTD[name], len(TEXT))


@settings(max_examples=200)
@given(data=st.binary(max_size=80), codec=st.integers(1, 255), raw=st.integers(0, 2**32 - 1))
def test_any_bytes_get_a_typed_answer(data: bytes, codec: int, raw: int) -> None:
    """No stored bytes get more than Undecodable, whatever codec and raw length the frame claims."""
    for stored in (data, b"\x28\xb5\x2f\xfd" + data):
        try:
            payload = decode(codec, stored, raw)
        except Undecodable:
            continue
        assert len(payload) == raw


def test_flipped_zstd_never_gives_another_length_or_error() -> None:
    """Every bit flip of stored bytes (a digest would have seen it first): typed, exact length."""
    for stored in (GOOD, without_size(TEXT)):
        for bit in range(len(stored) * 8):
            with contextlib.suppress(Undecodable):
                assert len(decode(1, damage.flip(stored, bit), len(TEXT))) == len(TEXT)


def test_window_over_64_MiB_is_refused() -> None:
    """A frame that wants a larger window than the format allows is refused before it gets it."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stored = stream.compress(TEXT) + stream.flush()
    assert zstandard.get_frame_parameters(stored).window_size == 2**27
    with pytest.raises(Undecodable, match="window"):
        decode(1, stored, len(TEXT))


BOMB = """
import resource, struct, sys, time
sys.path.insert(0, sys.argv[1])
import zstandard
from support import build
from treering.engine.errors import Undecodable
from treering.engine.journal.history import Walk

def no_size(count):
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    parts = [stream.compress(bytes(1 << 20)) for _ in range(count)] + [stream.flush()]
    return b"".join(parts)

def sized(count):
    stream = zstandard.ZstdCompressor(level=1).compressobj(size=count << 20)
    parts = [stream.compress(bytes(1 << 20)) for _ in range(count)] + [stream.flush()]
    return b"".join(parts)

gib = sized(1024)
assert zstandard.get_frame_parameters(gib).content_size == 1 << 30
claims = b"\\x28\\xb5\\x2f\\xfd" + bytes([0xE0]) + struct.pack("<Q", 2**60) + bytes(40)
bombs = {
    "sized, honest raw": (gib, 1 << 30),
    "sized, small raw": (gib, 50_000),
    "no size, honest raw": (no_size(1024), 1 << 30),
    "no size, small raw": (no_size(1024), 50_000),
    "claims 2^60": (claims, 50_000),
    "raw 2^32-1": (gib, 2**32 - 1),
}
limit = 400 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for name, (stored, raw) in bombs.items():
    for kind in (build.ENTRY, build.BLOB, build.LEAF, build.DICTIONARY, build.PROVENANCE):
        maker = build.Maker().started()
        maker.open()
        maker.entry("before")
        bomb = maker.frame(kind, stored, codec=1, raw=raw)
        piece = struct.pack("<H", 1) + struct.pack("<IQII", 0, bomb.sequence, 400, 0)
        maker.frame(build.ENTRY, piece, codec=0x80, raw=400)
        maker.entry("after")
        start = time.monotonic()
        walk = Walk(build.Memory(maker.whole()), build.ID)
        good = []
        for frame, stored_bytes in walk.visible():
            try:
                good.append(walk.history.shared.decoder.decode(frame, stored_bytes))
            except Undecodable:
                pass
        assert len(good) == 2, (name, kind)
        assert b"before" in good[0]
        assert b"after" in good[1]
        assert time.monotonic() - start < 3, (name, kind)
"""


def test_F132_bombs_are_refused_and_neighbours_stay_readable() -> None:
    """33 KB that would be 1 GiB, a size of 2^60, streams without a size, in frames of several
    kinds: Undecodable in no time, little memory, the others readable."""
    run = subprocess.run(
        [sys.executable, "-c", BOMB, str(TESTS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]


@cache
def dictionary() -> bytes:
    words = random.Random(5)
    samples = [
        b" ".join(words.choice([b"alpha", b"beta", b"gamma", b"delta"]) for _ in range(40))
        for _ in range(300)
    ]
    trained: bytes = zstandard.train_dictionary(2048, samples, dict_id=777).as_bytes()
    return trained


def with_id(number: int) -> bytes:
    return dictionary()[:4] + struct.pack("<I", number) + dictionary()[8:]


def packed(payload: bytes, trained: bytes, *, checksum: bool = True, number: bool = True) -> bytes:
    return zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(trained),
        write_checksum=checksum,
        write_dict_id=number,
    ).compress(payload)


WORDS = b"alpha beta gamma delta alpha alpha beta gamma " * 4


def journal_with(*frames: tuple[int, bytes, int, int]) -> build.Maker:
    maker = build.Maker().started()
    maker.open()
    for kind, payload, codec, raw in frames:
        maker.frame(kind, payload, codec=codec, raw=raw)
    maker.entry("after")
    return maker


def entries_of(maker: build.Maker) -> list[bytes | None]:
    """The payload of each entry; None where it is Undecodable."""
    walk = Walk(build.Memory(maker.whole()), build.ID)
    found: list[bytes | None] = []
    for frame, stored in walk.visible():
        try:
            found.append(walk.history.shared.decoder.decode(frame, stored))
        except Undecodable:
            found.append(None)
    return found


def test_dictionary_is_found_and_used() -> None:
    """Codec 2 with a DICTIONARY of this journal, written twice as it should be."""
    maker = journal_with(
        (build.DICTIONARY, dictionary(), 0, len(dictionary())),
        (build.ENTRY, packed(WORDS, dictionary()), 2, len(WORDS)),
        (build.DICTIONARY, dictionary(), 0, len(dictionary())),
        (build.ENTRY, packed(WORDS, dictionary()), 2, len(WORDS)),
    )
    assert entries_of(maker)[:2] == [WORDS, WORDS]
    assert build.look(maker.whole()).report().problems == []


def test_a_later_copy_of_a_dictionary_serves_too() -> None:
    """The second copy is there for the frames between the two, when the first one is lost."""
    lesson = (build.DICTIONARY, dictionary(), 0, len(dictionary()))
    entry = (build.ENTRY, packed(WORDS, dictionary()), 2, len(WORDS))
    assert entries_of(journal_with(entry, lesson))[0] == WORDS


@pytest.mark.parametrize(
    "name",
    ["other id", "none", "no checksum", "no dictionary id", "codec 1", "garbage",
     "not its dictionary"],
)  # fmt: skip
def test_dictionary_abuses_are_undecodable(name: str) -> None:
    """A lost, malformed or wrong dictionary, a frame without id or checksum: that entry is
    Undecodable, the ones around it are not."""
    lesson = (build.DICTIONARY, dictionary(), 0, len(dictionary()))
    entry = (build.ENTRY, packed(WORDS, dictionary()), 2, len(WORDS))
    if name == "other id":
        frames = [(build.DICTIONARY, with_id(778), 0, len(dictionary())), entry]
    elif name == "none":
        frames = [entry]
    elif name == "no checksum":
        stored = packed(WORDS, dictionary(), checksum=False)
        frames = [lesson, (build.ENTRY, stored, 2, len(WORDS))]
    elif name == "no dictionary id":
        stored = packed(WORDS, dictionary(), number=False)
        frames = [lesson, (build.ENTRY, stored, 2, len(WORDS))]
    elif name == "codec 1":
        frames = [lesson, (build.ENTRY, entry[1], 1, len(WORDS))]
    elif name == "garbage":
        junk = dictionary()[:8] + b"\xff" * 500
        frames = [(build.DICTIONARY, junk, 0, len(junk)), entry]
    else:
        other = dictionary()[:-600] + random.Random(1).randbytes(600)
        frames = [(build.DICTIONARY, other, 0, len(other)), entry]
    found = entries_of(journal_with(*frames))
    assert found[0] is None
    assert found[-1] == b'{"type":"message","id":"after"}'


def test_dictionary_of_the_same_id_and_other_bytes_is_named() -> None:
    """An id is unique in a journal: other bytes under it are a broken rule."""
    other = dictionary()[:-1] + bytes([dictionary()[-1] ^ 1])
    maker = journal_with(
        (build.DICTIONARY, dictionary(), 0, len(dictionary())),
        (build.DICTIONARY, other, 0, len(other)),
    )
    assert len(build.look(maker.whole()).report().problems) == 1


def test_a_broken_dictionary_does_not_take_the_good_one_along() -> None:
    """A DICTIONARY that cannot be decoded costs only its own users, also for a reader that starts
    in the middle of the file."""
    maker = journal_with(
        (build.DICTIONARY, GOOD[:-3], 1, len(TEXT)),
        (build.DICTIONARY, dictionary(), 0, len(dictionary())),
        (build.ENTRY, packed(WORDS, dictionary()), 2, len(WORDS)),
    )
    assert entries_of(maker)[0] == WORDS
    source = build.Memory(maker.whole())
    whole = [f for f, _ in Walk(source, build.ID).scan.frames()]
    behind = next(f for f in whole if f.kind == build.DICTIONARY and f.codec == 0)
    walk = Walk(source, build.ID, behind=behind)
    first = next(walk.visible())
    assert walk.history.shared.decoder.decode(*first) == WORDS


def test_chain_of_compressed_dictionaries_ends_typed() -> None:
    """Dictionaries compressed with dictionaries, a thousand deep: a typed answer, no recursion
    error, and the plain entries stay readable."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.DICTIONARY, with_id(1000))
    for number in range(1001, 2200):
        stored = packed(with_id(number), with_id(number - 1))
        maker.frame(build.DICTIONARY, stored, codec=2, raw=len(dictionary()))
        if number % 100 == 50:
            maker.frame(build.ENTRY, packed(WORDS, with_id(number)), codec=2, raw=len(WORDS))
    maker.entry("after")
    try:
        found = entries_of(maker)
    except TreeringError:
        return
    assert found[-1] == b'{"type":"message","id":"after"}'


class Counting(build.Memory):
    """Counts the bytes that are read."""

    total = 0

    def read_at(self, offset: int, length: int) -> bytes:
        data = super().read_at(offset, length)
        self.total += len(data)
        return data


def test_many_copies_of_a_dictionary_are_read_a_few_times() -> None:
    """N copies of one dictionary must not cost N*N reads."""
    maker = build.Maker().started()
    maker.open()
    for _ in range(200):
        maker.frame(build.DICTIONARY, dictionary())
    source = Counting(maker.whole())
    Walk(source, build.ID).run(lambda frame: None)
    assert source.total < 10 * source.size


BLOB_BYTES = bytes(range(256)) * 3


def spliced(text: bytes, pieces: list[tuple[int, int, int, int]], raw: int) -> build.Maker:
    maker = build.Maker().started()
    maker.open()
    blob = maker.frame(build.BLOB, BLOB_BYTES)
    assert blob.sequence == 4
    maker.frame(build.ENTRY, encode_splice(text, pieces), codec=0x80, raw=raw)
    maker.entry("after")
    return maker


@pytest.mark.parametrize("codec", [0x80, 0x81])
def test_splice_inserts_in_order(codec: int) -> None:
    """Pieces go where their position says, in order, also several at one place and at both ends."""
    pieces = [(0, 4, 3, 0), (2, 4, 4, 10), (2, 4, 200, 50), (5, 4, 768, 0)]
    expected = BLOB_BYTES[:3] + b"he" + BLOB_BYTES[10:14] + BLOB_BYTES[50:250] + b"llo" + BLOB_BYTES
    decoded = encode_splice(b"hello", pieces)
    stored = decoded if codec == 0x80 else zstandard.ZstdCompressor().compress(decoded)
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.BLOB, zstandard.ZstdCompressor().compress(BLOB_BYTES), codec=1, raw=768)
    maker.frame(build.ENTRY, stored, codec=codec, raw=len(expected))
    assert entries_of(maker) == [expected]
    assert build.look(maker.whole()).report().problems == []


def test_encode_splice_known_answer() -> None:
    """The table of the page: count, then 20 bytes a piece, then the text."""
    assert encode_splice(b"txt", [(1, 2, 3, 4)]).hex() == (
        "01000100000002000000000000000300000004000000747874"
    )


@given(
    text=st.binary(max_size=30),
    cuts=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 300), st.integers(0, 400)), max_size=6
    ),
)
def test_splice_round_trip(text: bytes, cuts: list[tuple[int, int, int]]) -> None:
    """Any right table gives the text with the pieces in it."""
    places = sorted(min(position, len(text)) for position, _, _ in cuts)
    pieces = [(at, 4, length, start) for at, (_, length, start) in zip(places, cuts, strict=True)]
    expected, done = b"", 0
    for at, _, length, start in pieces:
        expected += text[done:at] + BLOB_BYTES[start : start + length]
        done = at
    expected += text[done:]
    maker = spliced(text, pieces, len(expected))
    found = entries_of(maker)
    entry = encode_splice(text, pieces)
    if len(entry) < len(expected):
        assert found[0] == expected
    else:
        assert found == [b'{"type":"message","id":"after"}']


TABLE_ABUSES = {
    "empty": (b"", 500),
    "one byte": (b"\x01", 500),
    "count without pieces": (b"\x03\x00", 500),
    "count beyond the end": (b"\xff\xff" + bytes(100), 500),
    "piece cut short": (encode_splice(b"", [(0, 4, 400, 0)])[:-1], 400),
    "position beyond the text": (encode_splice(b"abc", [(4, 4, 400, 0)]), 403),
    "position 2^32-1": (encode_splice(b"abc", [(2**32 - 1, 4, 400, 0)]), 403),
    "position falls": (encode_splice(b"abc", [(2, 4, 200, 0), (1, 4, 200, 0)]), 403),
    "offset beyond the blob": (encode_splice(b"abc", [(0, 4, 400, 400)]), 403),
    "offset 2^32-1": (encode_splice(b"abc", [(0, 4, 400, 2**32 - 1)]), 403),
    "length beyond the blob": (encode_splice(b"abc", [(0, 4, 800, 0)]), 803),
    "length 2^32-1": (encode_splice(b"abc", [(0, 4, 2**32 - 1, 0)]), 403),
    "more than raw": (encode_splice(b"abc", [(0, 4, 401, 0)]), 403),
    "less than raw": (encode_splice(b"abc", [(0, 4, 399, 0)]), 403),
    "itself": (encode_splice(b"abc", [(0, 5, 400, 0)]), 403),
    "a later frame": (encode_splice(b"abc", [(0, 6, 400, 0)]), 403),
    "sequence 2^64-1": (encode_splice(b"abc", [(0, 2**64 - 1, 400, 0)]), 403),
    "a frame that is no BLOB": (encode_splice(b"abc", [(0, 1, 30, 0)]), 33),
    "a sequence that is not there": (encode_splice(b"abc", [(0, 3, 400, 0)]), 403),
}


@pytest.mark.parametrize("name", TABLE_ABUSES)
def test_splice_abuses_are_undecodable(name: str) -> None:
    """A splice table that says anything but what the page allows: that entry is Undecodable."""
    decoded, raw = TABLE_ABUSES[name]
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.BLOB, BLOB_BYTES)
    maker.frame(build.ENTRY, decoded, codec=0x80, raw=max(raw, len(decoded) + 1))
    maker.entry("after")
    assert entries_of(maker) == [None, b'{"type":"message","id":"after"}']


def test_splice_of_a_staged_blob_is_undecodable() -> None:
    """A reference names an unstaged BLOB."""
    maker = build.Maker().started()
    maker.open()
    blob = maker.frame(build.BLOB, BLOB_BYTES, flags=build.STAGED)
    stored = encode_splice(b"", [(0, blob.sequence, 100, 0)])
    maker.frame(build.ENTRY, stored, codec=0x80, raw=100)
    assert entries_of(maker) == [None]


def test_chain_of_spliced_blobs_ends_typed() -> None:
    """A BLOB is never spliced: a chain of them is refused, not followed to the end of the stack."""
    maker = build.Maker().started()
    maker.open()
    blob = maker.frame(build.BLOB, BLOB_BYTES)
    for _ in range(1500):
        stored = encode_splice(b"", [(0, blob.sequence, 100, 0)])
        blob = maker.frame(build.BLOB, stored, codec=0x80, raw=100)
    stored = encode_splice(b"", [(0, blob.sequence, 100, 0)])
    maker.frame(build.ENTRY, stored, codec=0x80, raw=100)
    maker.entry("after")
    assert entries_of(maker) == [None, b'{"type":"message","id":"after"}']


def test_lost_blob_costs_only_its_users() -> None:
    """Entries whose BLOB does not verify are Undecodable; the frames before it are readable."""
    maker = spliced(b"abc", [(0, 4, 400, 0)], 403)
    before = maker.whole()
    assert entries_of(maker)[0] == BLOB_BYTES[:400] + b"abc"
    source = build.Memory(before)
    walk = Walk(source, build.ID)
    frame, stored = next(walk.visible())
    source.data = damage.flip(before, (maker.frames[4].offset + 60) * 8)
    with pytest.raises(TreeringError):
        walk.history.shared.decoder.decode(frame, stored)


def test_many_pieces_of_one_blob_read_it_a_few_times() -> None:
    """A thousand pieces of one large BLOB must not read and verify it a thousand times (a hang made
    of a small file)."""
    maker = build.Maker().started()
    maker.open()
    blob = maker.frame(build.BLOB, random.Random(3).randbytes(100_000))
    pieces = [(0, blob.sequence, 100, n * 7) for n in range(1000)]
    stored = encode_splice(b"", pieces)
    maker.frame(build.ENTRY, stored, codec=0x80, raw=100_000)
    source = Counting(maker.whole())
    walk = Walk(source, build.ID)
    for frame, data in walk.visible():
        assert len(walk.history.shared.decoder.decode(frame, data)) == 100_000
    assert source.total < 20 * source.size


@pytest.mark.parametrize("raw", [PAYLOAD_BYTES_MAX + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("codec", [1, 2, 0x80, 0x81, 0x82])
def test_raw_over_64_MiB_is_refused_before_decoding(codec: int, raw: int) -> None:
    """The format's own limit is checked before anything is decoded."""
    with pytest.raises(Undecodable):
        decode(codec, GOOD, raw)


def test_F129_many_threads_decode(tmp_path: Path) -> None:
    """8 threads compress and decode through one decoder: no crash, all bytes equal."""
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.DICTIONARY, dictionary())
    blob = maker.frame(build.BLOB, BLOB_BYTES)
    cases = []
    for number in range(30):
        text = f"{number} ".encode() * (50 + number * 13)
        cases.append((1, zstandard.ZstdCompressor().compress(text), text))
        cases.append((1, without_size(text), text))
        cases.append((2, packed(WORDS * number + WORDS, dictionary()), WORDS * number + WORDS))
        splice = encode_splice(text[:5], [(5, blob.sequence, 700, number)])
        cases.append((0x80, splice, text[:5] + BLOB_BYTES[number : number + 700]))
    decoder = Walk(build.Memory(maker.whole()), build.ID).history.shared.decoder
    wrong: list[object] = []

    def work(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(1500):
            codec, stored, text = order.choice(cases)
            try:
                if decoder.decode(frame_of(codec, stored, len(text), 99), stored) != text:
                    wrong.append(text)
                again, packed_again = compress(text)
                if decoder.decode(frame_of(again, packed_again, len(text)), packed_again) != text:
                    wrong.append(text)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
