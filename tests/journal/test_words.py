"""What refusals say: where (path, offset), what, and what to do next, word for word where a person
or a program acts on it."""

from __future__ import annotations

import pytest
from support.build import DICTIONARY, ENTRY, EPOCH_CLOSE, ID, Maker, Memory, file_header, look

from treering.engine.errors import Damaged, Unsupported
from treering.engine.journal.format import Frame, decode_file_header, misunderstood, salt_of
from treering.engine.journal.reader import frame_at, read_frame
from treering.engine.limits import PAYLOAD_BYTES_MAX

PATH = "memory/s1.jsonl"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(64), "it begins with zero bytes"),
        (
            b'{"journalFrame":1,"x":2}\n',
            "it is a journal of JSON frames; `treering session import` takes that",
        ),
        (
            b'{"type":"session"}\n',
            "it looks like plain JSONL; `treering session import` takes that",
        ),
        (
            b'\xef\xbb\xbf \r\n\t{"type":"session"}\n',
            "it looks like plain JSONL; `treering session import` takes that",
        ),
        (b"SQLite format 3\0" + bytes(84), "it is a SQLite database"),
        (b" " * 63 + b"{", "it looks like plain JSONL; `treering session import` takes that"),
        (b" " * 64 + b"{", "no frame of a journal"),
        (b"X{", "no frame of a journal"),
        (b"X\0X", "no frame of a journal"),
        (b"sqlite format 3\0", "no frame of a journal"),
        (b'[{"journalFrame":', "no frame of a journal"),
        (b"", "the file is empty"),
    ],
)
def test_what_is_no_journal_is_named(data: bytes, said: str) -> None:
    found = look(data)
    assert (found.case, found.reason) == ("G", said)


def test_another_version_is_named_with_ours() -> None:
    with pytest.raises(Unsupported) as caught:
        decode_file_header(file_header(ID, 128, version=2), "some/path")
    assert caught.value.what == "journal format version 2; this release reads version 1"
    assert caught.value.path == "some/path"
    assert caught.value.next_step == "open it with a newer release"
    with pytest.raises(Unsupported):
        decode_file_header(file_header(ID, 128, version=2) + b"what follows", "some/path")


@pytest.mark.parametrize(
    ("required", "bits"), [(1, "0"), (1 << 31, "31"), (1 << 31 | 1 << 4 | 1, "0, 4, 31")]
)
def test_required_features_are_named_by_their_bits(required: int, bits: str) -> None:
    data = file_header(ID, 128, required=required)
    for read in (look, lambda data: decode_file_header(data, PATH)):
        with pytest.raises(Unsupported) as caught:
            read(data)
        assert caught.value.what == (
            f"the journal needs features that this release does not know (bits {bits})"
        )
        assert caught.value.path == PATH
        assert caught.value.next_step == "open it with a newer release"


def test_another_magic_is_no_header_whatever_its_digest_says() -> None:
    assert decode_file_header(file_header(ID, 128), PATH) is not None
    assert decode_file_header(file_header(ID, 128, magic=b"\x89TRNG\r\n\x1b"), PATH) is None


@pytest.mark.parametrize(
    ("kind", "codec", "raw", "said"),
    [
        (ENTRY, 2, 50, None),
        (ENTRY, 0x82, 50, None),
        (ENTRY, 3, 50, "codec 3"),
        (ENTRY, 1, PAYLOAD_BYTES_MAX, None),
        (ENTRY, 1, PAYLOAD_BYTES_MAX + 1, f"raw length {PAYLOAD_BYTES_MAX + 1}"),
        (ENTRY, 1, 40, "stored length 40 with raw length 40 and codec 1"),
        (DICTIONARY, 1, 50, None),
        (DICTIONARY, 2, 50, "a DICTIONARY that needs another one"),
        (DICTIONARY, 0x80, 50, "a spliced DICTIONARY"),
        (EPOCH_CLOSE, 1, 50, "codec 1 on EPOCH_CLOSE"),
    ],
)
def test_why_a_codec_is_not_understood(kind: int, codec: int, raw: int, said: str | None) -> None:
    frame = Frame(500, kind, codec, 0, 40, raw, 9, 1, 0, bytes(8), bytes(16))
    assert misunderstood(frame) == said


def test_a_frame_that_is_not_there_any_more_is_named() -> None:
    maker = Maker().started()
    frame = maker.frames[1]
    source = Memory(maker.whole(), "some/s1.jsonl")
    length = frame.end - frame.offset
    found, payload = read_frame(source, salt_of(ID), frame.offset, length, frame.revision)
    assert (found.offset, found.sequence, payload) == (frame.offset, 1, frame.payload)
    with pytest.raises(Damaged) as caught:
        read_frame(source, salt_of(ID), frame.offset, length, bytes(16))
    assert caught.value.what == "the frame does not verify any more"
    assert (caught.value.path, caught.value.offset) == ("some/s1.jsonl", frame.offset)
    assert caught.value.next_step is not None
    assert caught.value.next_step.startswith("next: treering fsck ")


def test_a_frame_at_an_offset_says_where_it_is() -> None:
    maker = Maker().started()
    source = Memory(maker.whole())
    for frame in maker.frames:
        found = frame_at(source, salt_of(ID), frame.offset)
        assert found is not None
        assert (found[0].offset, found[0].end) == (frame.offset, frame.end)
        assert frame_at(source, salt_of(ID), frame.offset + 1) is None
    whole = maker.whole()
    last = maker.frames[-1]
    for size in (last.end - 1, last.offset + 44, last.offset + 43):
        assert frame_at(Memory(whole[:size]), salt_of(ID), last.offset) is None
