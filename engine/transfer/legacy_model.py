"""What an analysis of a legacy source says, and the limits it keeps to."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from treering.engine.errors import Invalid
from treering.engine.limits import COMPLETE_READ_BYTES, COMPLETE_READ_ENTRIES, MIB
from treering.engine.transfer.legacy_read import Format, FrameFacts, LeftOut

BLANK_RUNS_MAX: Final = 65_536
BLANK_TEXT_BYTES_MAX: Final = 1 * MIB
"""Blank lines that are noted with their place: they are to fit one PROVENANCE payload."""

HEADER_BYTES_MAX: Final = 16 * MIB
"""Largest header: it is kept verbatim, with the blank lines' places, in one PROVENANCE payload."""

LEFT_OUT_MAX: Final = 65_536
"""Pieces left out by a salvage. A file with more is no session, and the list is in memory."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of one copy: entries after the header, and bytes of JSON with the header's.

    JSON bytes are those of the records: no LF, no blank line, no BOM. None lifts a limit.
    """

    entries: int | None = COMPLETE_READ_ENTRIES
    json_bytes: int | None = COMPLETE_READ_BYTES

    def __post_init__(self) -> None:
        for value in (self.entries, self.json_bytes):
            if value is not None and value < 0:
                raise Invalid(f"a copy limit cannot be negative: {value}")


class BlankRun(NamedTuple):
    """Equal lines without a record: how often, and before which record (the header is 0).

    ``times`` is 0 for a blank end of the file that no LF ends: it stands there once, without LF.
    """

    before: int
    text: str
    times: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says. Lone surrogates read as U+FFFD; ``Analysis.header_raw`` is exact.

    ``parent_session`` is also read from ``branchedFrom``, its name in version 1.
    """

    id: str
    cwd: str | None = None
    timestamp: str | None = None
    parent_session: str | None = None
    rlm_depth: int | None = None


@dataclass(slots=True)
class Analysis:
    """What pass 1 found. ``prepare`` needs it unchanged.

    ``version`` is as found (None for absent or null), ``effective_version`` what it is read as.
    ``oddities`` are counts on the source's own ids, before any upgrade; absent means none.
    ``taken_apart`` are the lines on which a salvage found several whole records.
    """

    format: Format
    salvage: bool
    captured_bytes: int
    bom: bool
    version: int | None = None
    effective_version: int = 3
    header_raw: bytes | None = None
    header: Header | None = None
    header_position: int | None = None
    """Place of the header among the records; not 0 when a salvage found it later."""
    context_epochs: bool = False
    """Whether a frame says that the engine wrote a context epoch there, itself."""
    digest: str = ""
    """XXH3-128 of the captured bytes, 32 hex digits."""
    entry_count: int = 0
    json_bytes: int = 0
    blank_lines: list[BlankRun] = field(default_factory=list)
    byte_exact: bool = False
    """Header, entries, blank lines and BOM rebuild the source byte for byte."""
    oddities: dict[str, int] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    taken_apart: list[int] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("q"), repr=False)
    """Version 1 only: the derived id of each record by position."""
    symbols: dict[str, int] = field(default_factory=dict, repr=False)
    first_seen: array[int] = field(default_factory=lambda: array("q"), repr=False)

    @property
    def record_count(self) -> int:
        """Entries, and the header if there is one."""
        return self.entry_count + (self.header_position is not None)


class Prepared(NamedTuple):
    """One entry as it is to be stored, and the line it came from.

    ``kind`` is the entry's type, empty when it has none; ``request`` says that it is a request
    record, which never becomes the leaf. ``frame`` is what a journal says of it beside its bytes.
    """

    raw: bytes
    line: int
    kind: str
    request: bool
    frame: FrameFacts | None = None
