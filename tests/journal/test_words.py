"""What refusals say: where (path, offset), what, and what to do next, word for word where a person
or a program acts on it."""

from __future__ import annotations

import pytest
from support.build import ID, Maker, Memory, file_header, look

from treering.engine.errors import Damaged, Unsupported
from treering.engine.journal.format import decode_file_header, salt_of
from treering.engine.journal.reader import frame_at, read_frame


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(64), "it holds only zero bytes"),
        (b'{"journalFrame":1,"x":2}\n', "it is a journal of JSON frames"),
        (
            b'{"type":"session"}\n',
            "it looks like plain JSONL; `treering session import` takes that",
        ),
        (
            b'\xef\xbb\xbf \r\n\t{"type":"session"}\n',
            "it looks like plain JSONL; `treering session import` takes that",
        ),
        (b"SQLite format 3\0" + bytes(84), "it is a SQLite database"),
        (b"X{", "no frame of a journal"),
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
