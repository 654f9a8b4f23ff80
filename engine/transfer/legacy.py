"""Legacy JSONL sessions, versions absent and 1..3: analyse, then prepare what is to be stored.

Two passes over one captured size. The first creates nothing: it decides whether the source is
accepted, counts, and derives ids. The second yields the entries; a digest over all captured bytes
proves at its end that both passes saw the same file. Both stream: memory is one record and a few
integers per entry.

Strict is the default and refuses at the first record that is not whole. ``salvage`` takes every
whole record and says piece by piece what it left out.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import xxhash

from treering.engine.errors import (
    Invalid,
    InvalidSource,
    LimitExceeded,
    SourceChanged,
    TreeringError,
    Unsupported,
)
from treering.engine.limits import COMPLETE_READ_BYTES, COMPLETE_READ_ENTRIES, MIB
from treering.engine.transfer.legacy_json import BadRecordError, clean, members, text_of
from treering.engine.transfer.legacy_read import (
    SALVAGE,
    Blank,
    Format,
    LeftOut,
    Whole,
    bom_length,
    detect,
    refuse_format,
    salvaged_items,
    strict_items,
)
from treering.engine.transfer.legacy_tree import Oddities
from treering.engine.transfer.records import BOM, LINE_BYTES_MAX, Hashed, Source
from treering.engine.transfer.upgrade import NO_ID, DerivedIds, IdMap, hex_id, upgrade_v1, upgrade_v2

__all__ = [
    "Analysis",
    "BlankRun",
    "CopyLimits",
    "Header",
    "LeftOut",
    "Prepared",
    "analyse",
    "detect",
    "prepare",
    "rebuild",
]

UPGRADE_GROWTH_BYTES: Final = 1024
"""An upgrade adds less than this to a record (three ids and their member names)."""

BLANK_RUNS_MAX: Final = 65_536
BLANK_TEXT_BYTES_MAX: Final = 1 * MIB
"""Blank lines noted with their place: they go into one PROVENANCE payload."""

LEFT_OUT_MAX: Final = 65_536
"""Pieces left out by a salvage. A file with more is no session, and the list is held in memory."""

_HEADERLESS_PROBE_ENTRIES: Final = 8
_DEPTH: Final = re.compile(rb"0|[1-9][0-9]{0,15}")
_DEPTH_MAX: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of one copy: entries after the header, and JSON bytes with the header's."""

    entries: int | None = COMPLETE_READ_ENTRIES
    json_bytes: int | None = COMPLETE_READ_BYTES

    def __post_init__(self) -> None:
        for value in (self.entries, self.json_bytes):
            if value is not None and value < 0:
                raise Invalid(f"a copy limit cannot be negative: {value}")


class BlankRun(NamedTuple):
    """``count`` equal lines without a record, before the record of that index (header 0).

    ``count`` is 0 for the blank end of a file that no LF ends: it stands there once, without LF.
    """

    index: int
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says; lone surrogates read as U+FFFD. ``raw`` of the analysis is exact."""

    id: str
    cwd: str | None = None
    timestamp: str | None = None
    parent_session: str | None = None
    rlm_depth: int | None = None


class Prepared(NamedTuple):
    """One entry as it is to be stored, and the line it came from."""

    raw: bytes
    line: int
    kind: str
    request: bool


@dataclass(slots=True)
class Analysis:
    """What pass 1 found; :func:`prepare` needs it unchanged."""

    format: Format
    salvage: bool
    captured_bytes: int
    bom: bool
    version: int | None = None
    effective_version: int = 3
    header_raw: bytes | None = None
    header: Header | None = None
    digest: str = ""
    entry_count: int = 0
    json_bytes: int = 0
    blank_lines: list[BlankRun] = field(default_factory=list)
    byte_exact: bool = False
    oddities: dict[str, int] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    taken_apart: list[int] = field(default_factory=list)
    header_position: int | None = None
    ids: array[int] = field(default_factory=lambda: array("q"), repr=False)
    symbols: dict[str, int] = field(default_factory=dict, repr=False)
    first_seen: array[int] = field(default_factory=lambda: array("q"), repr=False)


def analyse(source: Source, *, limits: CopyLimits | None, salvage: bool = False) -> Analysis:
    """Read the whole source once and say what it is, or raise why it is refused.

    Raises InvalidSource, Unsupported (a format or version), LimitExceeded or SourceChanged, each
    naming the record. ``limits`` None lifts the limits of a copy, not those of one record.
    """
    found = detect(source)
    refuse_format(source, found, salvage=salvage)
    if found != "json-array":
        found = "jsonl"
    digest = xxhash.xxh3_128()
    hashed = Hashed(source, digest.update)
    analysis = Analysis(found, salvage, source.size, bom_length(source) > 0)
    scan = _Scan(source, analysis, limits or CopyLimits(None, None))
    for item in salvaged_items(hashed, found) if salvage else strict_items(hashed):
        scan.take(item)
    hashed.finish()
    analysis.digest = digest.hexdigest()
    scan.finish()
    return analysis


class _Scan:
    """Pass 1: one call per record, blank line or piece left out."""

    def __init__(self, source: Source, analysis: Analysis, limits: CopyLimits) -> None:
        self.source = source
        self.analysis = analysis
        self.entries_max = limits.entries
        self.bytes_max = limits.json_bytes
        self.oddities = Oddities()
        self.ids: DerivedIds | None = DerivedIds()
        self.position = 0
        self.probed = 0
        self.probe_has_ids = False
        self.blank_bytes = 0

    def take(self, item: Whole | Blank | LeftOut) -> None:
        if isinstance(item, Whole):
            self._record(item)
        elif isinstance(item, Blank):
            self._blank(item)
        else:
            self._left_out(item)

    def _record(self, item: Whole) -> None:
        analysis = self.analysis
        raw, fields = item.raw, item.fields
        analysis.json_bytes += len(raw)
        if self.bytes_max is not None and analysis.json_bytes > self.bytes_max:
            raise self._over(item, "bytes of JSON", self.bytes_max, analysis.json_bytes)
        session = fields.type == "session"
        if analysis.header is None and (session or not analysis.salvage):
            header = self._header(item)
            if header:
                self.position += 1
                return
        analysis.entry_count += 1
        if self.entries_max is not None and analysis.entry_count > self.entries_max:
            raise self._over(item, "entries", self.entries_max, analysis.entry_count)
        if item.shared and self._again_on(item.number):
            analysis.taken_apart.append(item.number)
        self.oddities.note_bytes(raw, fields)
        if session:
            self.oddities.counts["second_headers"] += 1
        else:
            self.oddities.note_entry(self.position, raw, fields)
            if self.probed < _HEADERLESS_PROBE_ENTRIES:
                self.probed += 1
                self.probe_has_ids |= isinstance(fields.id, str)
        self._derive(item, session=session)
        self.position += 1
