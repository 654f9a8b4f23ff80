"""Corners of bytes: frames within frames, odd control payloads, dictionaries, short reads."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support import build, damage

from treering.engine.errors import Conflict, Invalid, StorageError, Undecodable
from treering.engine.journal import disk as disk_module
from treering.engine.journal import payload as payload_module
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK, LocalFile, make_folders, sync_folders
from treering.engine.journal.format import Frame
from treering.engine.journal.history import Walk
from treering.engine.journal.payload import Dictionary, PayloadDecoder, encode_splice
from treering.engine.journal.publish import _GROUP_BYTES, NewJournal, _groups
from treering.engine.journal.reader import search
from treering.engine.journal.shared import SharedFrames
from treering.fuzz.faulty_disk import FaultyDisk, Op


def dictionary(seed: int = 5, dict_id: int = 777) -> bytes:
    words = random.Random(seed)
    samples = [
        b" ".join(words.choice([b"alpha", b"beta", b"gamma", b"delta"]) for _ in range(40))
        for _ in range(300)
    ]
    trained: bytes = zstandard.train_dictionary(2048, samples, dict_id=dict_id).as_bytes()
    return trained


def packed(payload: bytes, trained: bytes) -> bytes:
    return zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(trained), write_checksum=True, write_dict_id=True
    ).compress(payload)


WORDS = b"alpha beta gamma delta alpha alpha beta gamma " * 4


# Frames that are found behind damage


def test_a_frame_within_a_found_frame_is_no_frame() -> None:
    """A payload may hold the bytes of a whole frame of the same journal: it is a payload."""
    inner = build.Maker(first_sequence=90)
    hidden = inner.entry("hidden")
    maker = build.Maker().started()
    maker.open()
    bad = maker.entry("bad")
    maker.sync()
    outer = maker.frame(build.ENTRY, inner.body)
    after = maker.entry("after")
    data = damage.flip(maker.whole(), (bad.offset + 50) * 8)
    source = build.Memory(data)
    inside = outer.offset + 44
    assert data[inside : inside + hidden.end - hidden.offset] == inner.body
    assert next(search(source, maker.salt, inside, 0)).sequence == 90
    found = list(search(source, maker.salt, bad.offset, 0))
    assert [frame.sequence for frame in found] == [outer.sequence, after.sequence]
    examined = build.look(data)
    assert (examined.case, examined.beyond_count) == ("C", 2)


# Control payloads that say nothing, or something else than their frame


def problems(maker: build.Maker) -> list[str]:
    walk = Walk(build.Memory(maker.whole()), build.ID)
    for _ in walk.visible():
        pass
    walk.history.finish()
    return [problem.why for problem in walk.history.problems]


def test_an_epoch_that_says_nothing() -> None:
    maker = build.Maker().started()
    maker.sync().frame(build.EPOCH_OPEN, b"[]", epoch=2)
    maker.entry("a")
    assert problems(maker) == ["EPOCH_OPEN payload"]


@pytest.mark.parametrize(
    "named",
    [{"journal": build.OTHER_ID.hex(), "epoch": 2}, {"journal": build.ID.hex(), "epoch": 1}],
)
def test_an_epoch_close_of_something_else(named: dict[str, Any]) -> None:
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    maker.sync().frame(build.EPOCH_CLOSE, build.compact(named | {"frames": 2}))
    assert problems(maker) == ["EPOCH_CLOSE of another journal or epoch"]


def test_a_leaf_that_cannot_be_decoded_is_named_and_not_shown() -> None:
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.LEAF, b"no zstd at all", codec=1, raw=100)
    maker.entry("a")
    walk = Walk(build.Memory(maker.whole()), build.ID)
    assert [frame.kind for frame, _ in walk.visible()] == [build.ENTRY]
    (problem,) = walk.history.problems
    assert problem.sequence == maker.frames[-2].sequence
    assert "cannot be decoded" in problem.why


def test_a_staged_leaf_that_cannot_be_decoded_is_not_shown_with_its_batch() -> None:
    maker = build.Maker().started()
    maker.open()
    first = maker.frame(build.LEAF, b"no zstd at all", codec=1, raw=100, flags=build.STAGED)
    last = maker.entry("a", flags=build.STAGED)
    maker.activate(first.sequence, last.sequence, last.revision)
    shown = build.visible(maker.whole())
    assert [(sequence, kind) for sequence, kind, _ in shown] == [(last.sequence, build.ENTRY)]


def test_staged_frames_before_the_ones_that_are_named_stay_invisible() -> None:
    """An EPOCH_ACTIVATE may name only the end of a staged run."""
    maker = build.Maker().started()
    maker.open()
    left = maker.entry("left", flags=build.STAGED)
    taken = maker.entry("taken", flags=build.STAGED)
    maker.activate(taken.sequence, taken.sequence, taken.revision)
    assert [sequence for sequence, _, _ in build.visible(maker.whole())] == [taken.sequence]
    assert build.look(maker.whole()).report().abandoned == [left.sequence]


@pytest.mark.parametrize("kind", [build.GAP, build.LEAF])
def test_what_nobody_could_read_is_not_written(tmp_path: Path, kind: int) -> None:
    writer = build.create(build.make_store(tmp_path))
    before = build.get(writer.owner.path)
    with pytest.raises(Invalid, match="payload that nobody could read"):
        writer.append([Record(kind, b"{}")])
    assert build.get(writer.owner.path) == before
    writer.close()


# Dictionaries


def test_a_dictionary_needs_samples() -> None:
    assert Dictionary.train([b"x"]) is None


def test_what_a_dictionary_does_not_help_is_stored_as_it_is() -> None:
    noise = random.Random(3).randbytes(500)
    assert Dictionary(dictionary()).compress(noise) == (0, noise)
    codec, stored = Dictionary(dictionary()).compress(WORDS)
    assert codec == 2
    assert len(stored) < len(WORDS)


def with_two_copies() -> tuple[build.Maker, build.Made, build.Made]:
    maker = build.Maker().started()
    maker.open()
    copies = [maker.frame(build.DICTIONARY, dictionary()) for _ in range(2)]
    maker.frame(build.ENTRY, packed(WORDS, dictionary()), codec=2, raw=len(WORDS))
    return maker, copies[0], copies[1]


def test_a_copy_that_breaks_while_it_is_known_does_not_take_the_other_along() -> None:
    """Both copies were seen whole; then the first one goes bad on disk, then the other one."""
    maker, first, second = with_two_copies()
    source = build.Memory(maker.whole())
    walk = Walk(source, build.ID)
    ((frame, stored),) = walk.visible()
    shared = walk.history.shared
    source.data = damage.zero(source.data, first.offset + 60, 8)
    assert shared.decoder.decode(frame, stored) == WORDS
    source.data = damage.zero(source.data, second.offset + 60, 8)
    fresh = SharedFrames(source, build.ID)
    with pytest.raises(Undecodable, match="DICTIONARY 777 is not there"):
        fresh.decoder.decode(frame, stored)


def test_a_dictionary_that_breaks_a_rule_is_not_used() -> None:
    maker = build.Maker().started()
    maker.open()
    maker.frame(build.DICTIONARY, dictionary(), flags=build.STAGED)
    maker.frame(build.ENTRY, packed(WORDS, dictionary()), codec=2, raw=len(WORDS))
    source = build.Memory(maker.whole())
    walk = Walk(source, build.ID)
    ((entry, stored),) = walk.visible()
    shared = SharedFrames(source, build.ID)
    made = maker.frames[-2]
    frame = Frame(made.offset, *made[2:12])
    assert shared.note_dictionary(frame, dictionary()) == "STAGED on DICTIONARY"
    with pytest.raises(Undecodable, match="is not there"):
        shared.decoder.decode(entry, stored)


def test_more_dictionaries_than_a_thread_keeps_ready() -> None:
    """Decoding goes on with each of them, also with the first one again."""
    trained = {number: dictionary(dict_id=number) for number in range(900, 912)}
    assert len(trained) > payload_module._PREPARED_MAX
    decoder = PayloadDecoder(trained.__getitem__, lambda number, before: b"")
    for number in [*trained, *trained]:
        stored = packed(WORDS, trained[number])
        frame = Frame(500, 2, 2, 0, len(stored), len(WORDS), 9, 1, 0, bytes(8), bytes(16))
        assert decoder.decode(frame, stored) == WORDS


# Splices


def test_a_splice_that_saves_nothing_is_refused() -> None:
    """Else a payload could name itself bigger for ever."""
    stored = encode_splice(b"text", [])
    frame = Frame(500, 2, 0x80, 0, len(stored), len(stored), 9, 1, 0, bytes(8), bytes(16))
    decoder = PayloadDecoder(lambda number: b"", lambda number, before: b"")
    with pytest.raises(Undecodable, match="not shorter"):
        decoder.decode(frame, stored)


def test_a_payload_that_names_too_many_bytes_of_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes each of many BLOBs: small on disk, and as much work as all of them."""
    monkeypatch.setattr(payload_module, "BLOB_BYTES_PER_PAYLOAD_MAX", 2500)
    blobs = {number: bytes(1000) for number in (3, 4, 5)}
    for count, fine in ((2, True), (3, False)):
        stored = encode_splice(b"text", [(0, number, 50, 0) for number in list(blobs)[:count]])
        raw = 4 + 50 * count
        frame = Frame(500, 2, 0x80, 0, len(stored), raw, 9, 1, 0, bytes(8), bytes(16))
        decoder = PayloadDecoder(lambda number: b"", lambda number, before: blobs[number])
        if fine:
            assert decoder.decode(frame, stored) == bytes(100) + b"text"
        else:
            with pytest.raises(Undecodable, match="too many bytes"):
                decoder.decode(frame, stored)


# Publishing


def test_a_new_file_that_somebody_has_locked_is_left_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sweeps may look at a file between its creation and its lock."""
    store = build.make_store(tmp_path)
    monkeypatch.setattr(LocalFile, "try_lock", lambda self: False)
    with pytest.raises(Conflict, match="has locked the new file"):
        NewJournal(LOCAL_DISK, store.sessions, "s1", purpose="create", top=store.top)
    assert os.listdir(store.sessions) == []


def test_a_group_that_is_exactly_full_loses_nothing() -> None:
    records = [Record(build.ENTRY, bytes(_GROUP_BYTES)) for _ in range(2)]
    assert list(_groups(records)) == [[records[0]], [records[1]]]


# The local file system


def test_a_read_that_comes_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems return less than was asked for; only the end of the file is the end."""
    path = tmp_path / "f"
    path.write_bytes(bytes(range(200)))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 7), at))
    file = LOCAL_DISK.open(str(path))
    try:
        assert file.pread(100, 50) == bytes(range(50, 150))
        assert file.pread(100, 150) == bytes(range(150, 200))
    finally:
        file.close()


def test_a_lock_that_the_system_refuses_is_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOLCK is an error of the machine: nobody is accused of owning the session."""
    store = build.make_store(tmp_path)
    build.create(store).close()

    def refused(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(StorageError, match="No locks available"):
        build.reopen(store)


def test_a_file_where_a_folder_belongs(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        make_folders(LOCAL_DISK, str(tmp_path / "a"), str(tmp_path))
    assert (tmp_path / "a").read_bytes() == b""


def test_folders_outside_of_the_store_are_synced_alone(tmp_path: Path) -> None:
    disk = FaultyDisk()
    for name in ("home", "elsewhere"):
        (tmp_path / name).mkdir()
    sync_folders(disk, str(tmp_path / "elsewhere"), str(tmp_path / "home"))
    assert disk.take() == [Op("sync_folder", str(tmp_path / "elsewhere"))]


def test_macos_syncs_go_through_the_cache_of_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system has F_FULLFSYNC every sync uses it: a plain one promises less there."""
    asked: list[int] = []
    monkeypatch.setattr(disk_module, "_FULL_FSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, what: asked.append(what))
    file = LOCAL_DISK.create(str(tmp_path / "f"))
    try:
        file.fsync()
        file.fdatasync()
    finally:
        file.close()
    assert asked == [51, 51]
