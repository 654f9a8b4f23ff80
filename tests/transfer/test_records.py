"""Sources and lines."""

from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfer.legacy_helpers import MemorySource

from treering.engine.errors import InvalidSource, LimitExceeded, NotFound, SourceChanged
from treering.engine.limits import MIB
from treering.engine.transfer.legacy import CopyLimits, analyse
from treering.engine.transfer.records import LINE_BYTES_MAX, LocalSource, lines


class Endless:
    """Terabytes of one byte, made when they are read."""

    path = "endless"
    size = 1 << 40

    def __init__(self) -> None:
        self.read_bytes = 0

    def read_at(self, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return b"x" * length


@given(st.binary(max_size=60), st.integers(1, 9))
def test_lines_rebuild_the_file(data: bytes, chunk_bytes: int) -> None:
    """Loader: streaming == buffered. Whatever the chunk size, the lines with their offsets are
    exactly the file split at LF."""
    out = b""
    for offset, raw, terminated in lines(MemorySource(data), chunk_bytes):
        assert offset == len(out)
        assert b"\n" not in raw
        assert terminated or raw
        out += raw + b"\n" * terminated
    assert out == data


def test_F68_only_lf_splits() -> None:
    """Loader: LF-only boundary. No other character that ``str.splitlines`` knows ends a line."""
    data = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj".encode()
    assert list(lines(MemorySource(data + b"\n"), 4)) == [(0, data, True)]


def test_F36_a_line_that_is_too_long_is_refused_without_reading_on() -> None:
    """An endless line raises with its offset, after the limit and not after the file."""
    source = Endless()
    with pytest.raises(LimitExceeded) as caught:
        list(lines(source, MIB))
    assert caught.value.offset == 0
    assert caught.value.limit == LINE_BYTES_MAX
    assert source.read_bytes <= LINE_BYTES_MAX + MIB


def test_memory_is_one_line_and_one_chunk() -> None:
    """Many lines are never held together."""
    source = MemorySource(b"y" * 999 + b"\n")
    source.data *= 20_000
    source.size = len(source.data)
    tracemalloc.start()
    try:
        assert sum(1 for _ in lines(source, 64 * 1024)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "device"])
def test_only_regular_files(tmp_path: Path, kind: str) -> None:
    """Anything else is refused by name, at once: a FIFO without a writer must not hang us."""
    path = tmp_path / "it"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    else:
        path = Path("/dev/null")
    with pytest.raises(InvalidSource, match=kind if kind != "fifo" else "FIFO"):
        LocalSource(path)


def test_names_that_are_no_file() -> None:
    """A missing file and a name with a NUL are typed errors."""
    with pytest.raises(NotFound):
        LocalSource("/nonexistent/x.jsonl")
    with pytest.raises(InvalidSource):
        LocalSource("a\0b")


def test_the_size_is_captured_once(tmp_path: Path) -> None:
    """Import/preview: shrinking source. Bytes appended after the open do not exist; a file that
    shrank is an error, not an end."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"one\n")
    link = tmp_path / "link"
    link.symlink_to(path)
    with LocalSource(link) as source:
        path.write_bytes(b"one\ntwo\n")
        assert list(lines(source, 100)) == [(0, b"one", True)]
        path.write_bytes(b"o")
        with pytest.raises(SourceChanged):
            list(lines(source, 100))
        with pytest.raises(SourceChanged):
            analyse(source, limits=CopyLimits())
    source.close()
