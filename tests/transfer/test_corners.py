"""Corners of sources: what changes, fails or ends while it is read."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
from transfer.legacy_helpers import MemorySource

from treering.engine import Session
from treering.engine.errors import InvalidSource, SourceChanged, StorageError
from treering.engine.transfer import records
from treering.engine.transfer.exporting import export_jsonl, jsonl_lines
from treering.engine.transfer.records import Hashed, Line, LocalSource, numbered_lines
from treering.fuzz.faulty_disk import FaultyDisk


def test_a_source_that_is_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain file to ``stat``, a FIFO once it is open: it is refused, and let go."""
    plain, fifo = tmp_path / "plain", tmp_path / "fifo"
    plain.write_bytes(b"{}\n")
    os.mkfifo(fifo)
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path: real(plain))
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(InvalidSource, match="a FIFO"):
        LocalSource(fifo)
    if before is not None:
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_source_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"{}\n")

    def failing(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with LocalSource(path) as source:
        monkeypatch.setattr(os, "pread", failing)
        with pytest.raises(StorageError, match="Input/output error") as caught:
            source.read_at(0, 3)
    assert caught.value.path == str(path)


def test_a_source_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "source"
    path.write_bytes(bytes(range(100)))
    real = os.pread
    with LocalSource(path) as source:
        monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 7), at))
        assert source.read_at(10, 1000) == bytes(range(10, 100))
        assert source.read_at(100, 10) == b""


@pytest.mark.parametrize("skip_long", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 5, 100])
def test_lines_that_are_too_long(
    skip_long: bool, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped they come with their length and without their bytes, wherever the chunks end; else
    the first of them is the last line."""
    monkeypatch.setattr(records, "LINE_BYTES_MAX", 10)
    long, short = b"x" * 25, b"y" * 10
    source = MemorySource(short + b"\n" + long + b"\n" + short + b"\n" + long)
    found = list(numbered_lines(source, chunk_bytes, skip_long=skip_long))
    assert found[0] == Line(1, 0, short, terminated=True, length=10)
    if skip_long:
        assert found[1:] == [
            Line(2, 11, b"", terminated=True, length=25),
            Line(3, 37, short, terminated=True, length=10),
            Line(4, 48, b"", terminated=False, length=25),
        ]
    else:
        (last,) = found[1:]
        assert (last.number, last.offset, last.raw) == (2, 11, b"")
        assert 10 < last.length <= 25


class Short(MemorySource):
    """A source that says nothing when it ends early."""

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[:1000][offset : offset + length]


def test_the_digest_is_over_everything() -> None:
    """Also over what nobody has read when it ends; a source that ends early is told."""
    data = bytes(range(256)) * 10
    digest = hashlib.sha256()
    hashed = Hashed(MemorySource(data), digest.update)
    assert hashed.read_at(0, 100) == data[:100]
    assert hashed.read_at(50, 100) == data[50:150]
    hashed.finish()
    hashed.finish()
    assert digest.digest() == hashlib.sha256(data).digest()
    hashed = Hashed(Short(data), digest.update)
    with pytest.raises(SourceChanged, match="became shorter") as caught:
        hashed.finish()
    assert caught.value.offset == 1000


@pytest.mark.parametrize("fails", ["sync_folder", "unlink"])
def test_the_end_of_an_export_that_the_system_refuses(tmp_path: Path, fails: str) -> None:
    """The file is there whole under its name: an unsynced name is told, a leftover is not."""
    with Session.create("/w", home_dir=str(tmp_path / "home")) as session:
        session.append({"type": "custom", "id": "a"})
        wanted = b"".join(jsonl_lines(session))
        target = tmp_path / "export.jsonl"
        disk = FaultyDisk()
        disk.fail(fails)
        if fails == "unlink":
            assert export_jsonl(session, str(target), disk=disk) == len(wanted)
        else:
            with pytest.raises(StorageError, match="it is visible now"):
                export_jsonl(session, str(target), disk=disk)
    assert target.read_bytes() == wanted
