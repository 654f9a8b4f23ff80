"""JSONL sessions, versions absent and 1..3: analyse, then prepare what is to be stored.

Plain lines, or the JSON frames of a Base Context journal, whose payloads are such lines.

Two passes over one captured size. The first creates nothing: it decides whether the source is
accepted, counts, and derives ids. The second yields the entries; a digest over all captured bytes
proves at its end that both passes saw the same file. Both stream: memory is one record and a few
integers (and one string per distinct id) for each entry.

Strict is the default and refuses at the first record that is not whole. ``salvage`` takes every
whole record and says piece by piece what it left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from treering.engine.errors import InvalidSource, LimitExceeded, SourceChanged, Unsupported
from treering.engine.json_text import BadRecordError, check
from treering.engine.transfer.legacy_model import (
    Analysis,
    BlankRun,
    CopyLimits,
    Header,
    Prepared,
)
from treering.engine.transfer.legacy_read import (
    Blank,
    Format,
    FrameFacts,
    LeftOut,
    Whole,
    bom_length,
    detect,
    refuse_format,
    salvaged_items,
    strict_items,
)
from treering.engine.transfer.legacy_scan import Scan
from treering.engine.transfer.native_jsonl import native_items
from treering.engine.transfer.records import (
    BOM,
    LINE_BYTES_MAX,
    Hashed,
    Source,
    is_blank,
    numbered_lines,
)
from treering.engine.transfer.upgrade import NO_ID, IdMap, hex_id, upgrade_v1, upgrade_v2

__all__ = [
    "Analysis",
    "BlankRun",
    "CopyLimits",
    "Format",
    "Header",
    "LeftOut",
    "Prepared",
    "analyse",
    "detect",
    "prepare",
    "rebuild",
]


def analyse(source: Source, *, limits: CopyLimits | None, salvage: bool = False) -> Analysis:
    """Read the whole source once and say what it is, or raise why it is refused.

    Raises InvalidSource, Unsupported (a format or version), LimitExceeded or SourceChanged, each
    naming the record. ``limits`` None lifts the limits of a copy, not those of one record.
    """
    found = detect(source)
    refuse_format(source, found, salvage=salvage)
    if found not in ("json-array", "native-frames"):
        found = "jsonl"
    digest = xxhash.xxh3_128()
    hashed = Hashed(source, digest.update)
    analysis = Analysis(found, salvage, source.size, bom_length(source) > 0)
    scan = Scan(source.path, analysis, limits or CopyLimits(None, None))
    for item in items(hashed, found, salvage=salvage):
        scan.take(item)
    hashed.finish()
    analysis.digest = digest.hexdigest()
    scan.finish()
    return analysis


def items(source: Source, found: Format, *, salvage: bool) -> Iterator[Whole | Blank | LeftOut]:
    """What stands in a source of this format, in order, or the refusal of what is not whole."""
    if found == "native-frames":
        return native_items(source, salvage=salvage)
    return salvaged_items(source, found) if salvage else strict_items(source)


def prepare(source: Source, analysis: Analysis) -> Iterator[Prepared]:
    """The entries in order, as they are to be stored: second headers too, the header not.

    Raises SourceChanged when the bytes are not those of the analysis. That may show only after
    the last entry, so the caller publishes nothing before this iterator has ended.
    """
    digest = xxhash.xxh3_128()
    hashed = Hashed(source, digest.update)
    if source.size != analysis.captured_bytes:
        raise _changed(source)
    upgrade = _Upgrade(analysis)
    position = -1
    for position, record in enumerate(_records(hashed, analysis)):
        if position >= analysis.record_count:
            raise _changed(source)
        if position == analysis.header_position:
            continue
        raw = upgrade.entry(position, record)
        if len(raw) > LINE_BYTES_MAX:
            raise LimitExceeded(
                f"line {record.number} is too long after its upgrade",
                limit=LINE_BYTES_MAX,
                need=len(raw),
                path=source.path,
                offset=record.offset,
            )
        yield Prepared(raw, record.number, record.kind, record.kind == "request", record.frame)
    hashed.finish()
    if position + 1 != analysis.record_count or digest.hexdigest() != analysis.digest:
        raise _changed(source)


def rebuild(
    header_raw: bytes | None,
    entries: Iterable[bytes],
    blanks: Sequence[tuple[int, str, int]],
    bom: bool,  # noqa: FBT001 (the four parts of a file, in the order of the format)
) -> Iterator[bytes]:
    """The exact bytes of a source again, from what an import keeps of it; in pieces.

    For sources whose analysis says ``byte_exact``. Entries appended since may follow the source's
    own: they come after all of it, its last blank lines included.
    """
    if bom:
        yield BOM
    runs = iter(blanks)
    run = next(runs, None)
    index = -1
    for index, raw in enumerate(_with_header(header_raw, entries)):
        while run is not None and run[0] <= index:
            yield from _blank_lines(run)
            run = next(runs, None)
        yield raw
        yield b"\n"
    while run is not None:
        yield from _blank_lines(run)
        run = next(runs, None)


def _with_header(header_raw: bytes | None, entries: Iterable[bytes]) -> Iterator[bytes]:
    if header_raw is not None:
        yield header_raw
    yield from entries


def _blank_lines(run: tuple[int, str, int]) -> Iterator[bytes]:
    _, text, count = run
    line = text.encode()
    if count == 0:
        yield line
    step = max(1, 65_536 // (len(line) + 1))
    for done in range(0, count, step):
        yield (line + b"\n") * min(step, count - done)


class _Again(NamedTuple):
    """A record of pass 2; ``old_id`` only where an upgrade needs it."""

    number: int
    offset: int
    raw: bytes
    kind: str
    old_id: str | None
    frame: FrameFacts | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str


_KIND = msgspec.json.Decoder(_Kind)


def _records(source: Hashed, analysis: Analysis) -> Iterator[_Again]:
    """The same records as in pass 1, with no more decoding than their use takes."""
    if analysis.salvage or analysis.format == "native-frames":
        try:
            for item in items(source, analysis.format, salvage=analysis.salvage):
                if isinstance(item, Whole):
                    yield _again(item)
        except (InvalidSource, LimitExceeded, Unsupported) as error:  # it was accepted before
            raise _changed(source) from error
        return
    plain = analysis.effective_version == 3
    for line in numbered_lines(source, start=bom_length(source)):
        raw = line.raw
        if line.length != len(raw):
            raise _changed(source)
        if is_blank(raw):
            continue
        if plain:
            try:
                yield _Again(line.number, line.offset, raw, _KIND.decode(raw).type, None)
                continue
            except msgspec.DecodeError:  # no type, or a lone surrogate: look again
                pass
        try:
            fields = check(raw)
        except BadRecordError as error:
            raise _changed(source) from error
        yield _again(Whole(line.number, line.offset, raw, fields))


def _again(item: Whole) -> _Again:
    old_id = item.fields.id
    kind = item.fields.kind
    old_id = old_id if isinstance(old_id, str) else None
    return _Again(item.number, item.offset, item.raw, kind, old_id, item.frame)


def _changed(source: Source) -> SourceChanged:
    return SourceChanged(
        "the source changed between its two readings",
        path=source.path,
        next_step="import again when nothing writes to it",
    )


class _Upgrade:
    """The entry at each position in version 3; bytes that no upgrade touches stay as they are."""

    def __init__(self, analysis: Analysis) -> None:
        self._version = analysis.effective_version
        self._ids = analysis.ids
        # A writer of version 1 counted its header as record 0, also where it is lost now.
        self._index_shift = 0 if analysis.header_position is not None else 1
        self._map = IdMap(analysis.ids, analysis.symbols, analysis.first_seen)
        self._parent: str | None = None

    def entry(self, position: int, record: _Again) -> bytes:
        if self._version == 3 or record.kind == "session":
            return record.raw
        if self._version == 2:
            return upgrade_v2(record.raw)
        new_id = hex_id(self._ids[position])

        def first_kept(index: int) -> str | None:
            target = index - self._index_shift
            if 0 <= target < position and self._ids[target] != NO_ID:
                return hex_id(self._ids[target])
            return None

        raw = upgrade_v1(record.raw, new_id, self._parent, self._map.resolve, first_kept)
        self._parent = new_id
        if record.old_id is not None:
            self._map.passed(record.old_id, position)
        return raw
