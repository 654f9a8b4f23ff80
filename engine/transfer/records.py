"""Legacy JSONL as bytes: a source with one captured size, and the lines in it.

Only LF splits. ``str.splitlines`` also splits at U+2028, U+0085, VT and FF, which are ordinary
characters inside JSON strings; other readers lost sessions over that.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from treering.engine.errors import InvalidSource, LimitExceeded, SourceChanged, from_os_error
from treering.engine.limits import PAYLOAD_BYTES_MAX, SCAN_CHUNK_BYTES

LINE_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
"""Largest line: a record that cannot become the payload of one frame is not read at all."""

BOM: Final = b"\xef\xbb\xbf"
BLANK_BYTES: Final = b" \t\r"
"""JSON's white space without LF: a line of nothing else holds no record."""


class Source(Protocol):
    """One opened file and the size it had then; bytes added later do not exist for the reader."""

    @property
    def path(self) -> str:
        """Name for messages."""

    @property
    def size(self) -> int:
        """Captured size in bytes."""

    def read_at(self, offset: int, length: int) -> bytes:
        """The bytes there; short only at the captured end. Raises SourceChanged if it shrank."""


class Line(NamedTuple):
    """One line, without its LF. ``raw`` is empty and ``length`` is not when it was too long."""

    number: int
    offset: int
    raw: bytes
    terminated: bool
    length: int


class Record(NamedTuple):
    """One record: 1-based line number, offset in the source, exact bytes (a CR is kept)."""

    number: int
    offset: int
    raw: bytes


class LocalSource:
    """A regular file, opened read-only once. Symbolic links are followed; nothing is locked.

    A FIFO, socket, device or directory is refused with :class:`InvalidSource` and never waited
    for: ``stat`` looks before the open (opening a device can have effects of its own), and
    ``fstat`` again after it, because the name may have been replaced in between.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._descriptor = -1
        try:
            _require_regular(os.stat(self.path), self.path)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            self._descriptor = os.open(self.path, flags)
            status = os.fstat(self._descriptor)
        except OSError as error:
            self.close()
            raise from_os_error(error, "open the source", self.path) from error
        except ValueError as error:
            raise InvalidSource("the name cannot be a path", path=self.path) from error
        try:
            _require_regular(status, self.path)
        except InvalidSource:
            self.close()
            raise
        self.size = status.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Read within the captured size, with as many ``pread`` calls as it takes."""
        assert offset >= 0
        assert length >= 0
        wanted = min(length, max(0, self.size - offset))
        parts: list[bytes] = []
        while wanted > 0:
            try:
                part = os.pread(self._descriptor, wanted, offset)
            except OSError as error:
                raise from_os_error(error, "read the source", self.path) from error
            if not part:
                raise SourceChanged(
                    f"the source is shorter than the {self.size} bytes it had when it was opened",
                    path=self.path,
                    offset=offset,
                    next_step="import again when nothing writes to it",
                )
            parts.append(part)
            offset += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the descriptor; calling it again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # It was only read: an error from here would call an import failed that is done.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_FILE_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def _require_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for test, name in _FILE_KINDS if test(status.st_mode)), "not a file")
    raise InvalidSource(f"the source is {kind}; only a regular file can be read", path=path)


def is_blank(raw: bytes) -> bool:
    """Whether the line holds no record: empty, or only space, tab and CR."""
    return raw[:1] != b"{" and not raw.strip(BLANK_BYTES)


def lines(source: Source, chunk_bytes: int = SCAN_CHUNK_BYTES) -> Iterator[tuple[int, bytes, bool]]:
    """Every line as (offset, bytes without the LF, whether an LF ended it).

    Memory is one line and one chunk. A line over ``LINE_BYTES_MAX`` raises
    :class:`LimitExceeded` with its offset as soon as that many bytes of it were seen.
    """
    for line in numbered_lines(source, chunk_bytes):
        if line.length != len(line.raw):
            raise line_too_long(source, line)
        yield line.offset, line.raw, line.terminated


def line_too_long(source: Source, line: Line) -> LimitExceeded:
    """The refusal of a line that cannot be one payload."""
    return LimitExceeded(
        f"line {line.number} is longer than a record can be ({LINE_BYTES_MAX} bytes)",
        limit=LINE_BYTES_MAX,
        need=line.length,
        path=source.path,
        offset=line.offset,
    )


def numbered_lines(
    source: Source,
    chunk_bytes: int = SCAN_CHUNK_BYTES,
    *,
    start: int = 0,
    number: int = 1,
    skip_long: bool = False,
    bytes_max: int | None = None,
) -> Iterator[Line]:
    """The lines from ``start`` on, counted from ``number``.

    A line of more than ``bytes_max`` (``LINE_BYTES_MAX`` by default) is too long. It comes with
    ``raw`` empty and ``length`` set; without ``skip_long`` it comes as soon as it is known to be
    too long (``length`` is then a lower bound) and is the last.
    """
    assert chunk_bytes > 0
    bytes_max = LINE_BYTES_MAX if bytes_max is None else bytes_max
    parts: list[bytes] = []
    held = 0  # bytes of the current line that came from earlier chunks, kept or not
    begin = position = start
    while position < source.size:
        chunk = source.read_at(position, chunk_bytes)
        position += len(chunk)
        pieces = chunk.split(b"\n")
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            held += len(piece)
            if held > bytes_max:
                parts.clear()
            elif piece:
                parts.append(piece)
            if last:
                break
            raw = b"" if held > bytes_max else _joined(parts)
            yield Line(number, begin, raw, terminated=True, length=held)
            if held > bytes_max and not skip_long:
                return
            begin, number, held = begin + held + 1, number + 1, 0
            parts = []
        if held > bytes_max and not skip_long:
            yield Line(number, begin, b"", terminated=False, length=held)
            return
    if held:
        raw = b"" if held > bytes_max else _joined(parts)
        yield Line(number, begin, raw, terminated=False, length=held)


def _joined(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Hashed:
    """A source that digests what is read from it, in order, each byte once.

    Reads may overlap (a reader that goes back a little), but must not leave holes.
    """

    def __init__(self, source: Source, update: Callable[[bytes], object]) -> None:
        self._source = source
        self._update = update
        self.path = source.path
        self.size = source.size
        self.digested = 0

    def read_at(self, offset: int, length: int) -> bytes:
        """Read, and digest the part that is new."""
        data = self._source.read_at(offset, length)
        assert offset <= self.digested
        if offset == self.digested:
            self._update(data)
        elif offset + len(data) > self.digested:
            self._update(data[self.digested - offset :])
        self.digested = max(self.digested, offset + len(data))
        return data

    def finish(self) -> None:
        """Digest the rest, so that the digest is always over all captured bytes."""
        while self.digested < self.size:
            before = self.digested
            self.read_at(before, SCAN_CHUNK_BYTES)
            if self.digested == before:
                raise SourceChanged("the source became shorter", path=self.path, offset=before)
