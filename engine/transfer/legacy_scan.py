"""Pass 1: from the items of a source to its analysis."""

from __future__ import annotations

import re
from typing import Final

from treering.engine.errors import InvalidSource, LimitExceeded, Unsupported
from treering.engine.json_text import clean, members, text_of
from treering.engine.session.entry import is_context_epoch
from treering.engine.transfer.legacy_model import (
    BLANK_RUNS_MAX,
    BLANK_TEXT_BYTES_MAX,
    HEADER_BYTES_MAX,
    LEFT_OUT_MAX,
    Analysis,
    BlankRun,
    CopyLimits,
    Header,
)
from treering.engine.transfer.legacy_read import JOURNALS, SALVAGE, Blank, LeftOut, Whole
from treering.engine.transfer.legacy_tree import Oddities
from treering.engine.transfer.records import LINE_BYTES_MAX
from treering.engine.transfer.upgrade import DerivedIds

UPGRADE_GROWTH_BYTES: Final = 1024
"""An upgrade of an ordinary record adds less than this (three ids and their member names)."""

_PROBED_ENTRIES: Final = 8
_DEPTH: Final = re.compile(rb"0|[1-9][0-9]{0,15}")
_DEPTH_MAX: Final = 2**53 - 1
_VERSIONS: Final = {b"1": 1, b"2": 2, b"3": 3}
_SHOWN_BYTES_MAX: Final = 40


class Scan:
    """One call of :meth:`take` per record, blank line or piece left out, then :meth:`finish`."""

    def __init__(self, path: str, analysis: Analysis, limits: CopyLimits) -> None:
        self._path = path
        self._unit = "frame" if analysis.format == "treering" else "line"
        self._analysis = analysis
        self._limits = limits
        self._oddities = Oddities()
        self._ids: DerivedIds | None = DerivedIds()
        self._position = 0
        self._probed = 0
        self._probe_has_ids = False
        self._blank_bytes = 0
        self._blank_count = 0
        self._blank_place: tuple[int, str] | None = None
        self._blank_times: list[int] = []
        self._shared_line = 0
        self._longest = LeftOut(0, 0, 0, "")
        self._next_sequence = 0

    def take(self, item: Whole | Blank | LeftOut) -> None:
        """The next item of the source."""
        if isinstance(item, Whole):
            self._record(item)
        elif isinstance(item, Blank):
            self._blank(item)
        elif len(self._analysis.left_out) < LEFT_OUT_MAX:
            self._analysis.left_out.append(item)
        else:
            raise LimitExceeded(
                f"more than {LEFT_OUT_MAX} pieces would be left out: this is no session file",
                limit=LEFT_OUT_MAX,
                path=self._path,
                offset=item.offset,
            )

    def _record(self, item: Whole) -> None:
        analysis = self._analysis
        if item.shared:
            self._note_shared(item.number)
        if item.frame is not None:
            self._note_sequence(item.frame.sequence)
            analysis.context_epochs |= is_context_epoch(item.frame.flags)
        analysis.json_bytes += len(item.raw)
        self._within(item, "bytes of JSON", self._limits.json_bytes, analysis.json_bytes)
        self._oddities.note_bytes(item.raw, item.fields)
        session = item.fields.type == "session"
        if analysis.header is not None or not self._take_header(item):
            analysis.entry_count += 1
            self._within(item, "entries", self._limits.entries, analysis.entry_count)
            if session:
                self._oddities.counts["second_headers"] += 1
            else:
                self._entry(item)
        if self._ids is not None and session:
            self._ids.add_session()
        elif self._ids is not None:
            self._ids.add(item.raw)
        self._position += 1

    def _entry(self, item: Whole) -> None:
        self._oddities.note_entry(self._position, item.raw, item.fields)
        if self._probed < _PROBED_ENTRIES:
            self._probed += 1
            self._probe_has_ids |= isinstance(item.fields.id, str)
        if len(item.raw) > self._longest.length:
            self._longest = LeftOut(item.number, item.offset, len(item.raw), "")

    def _note_sequence(self, sequence: int) -> None:
        """Frames that a salvage found behind others than their own predecessor."""
        if self._analysis.salvage and sequence != self._next_sequence:
            self._oddities.counts["chain_breaks"] += 1
        self._next_sequence = sequence + 1

    def _note_shared(self, number: int) -> None:
        taken = self._analysis.taken_apart
        if number == self._shared_line and taken[-1:] != [number]:
            taken.append(number)
        self._shared_line = number

    def _within(self, item: Whole, what: str, limit: int | None, need: int) -> None:
        if limit is not None and need > limit:
            raise LimitExceeded(
                f"{self._unit} {item.number} is beyond the limit of {limit} {what}",
                limit=limit,
                need=need,
                path=self._path,
                offset=item.offset,
                next_step="--no-limit lifts it",
            )

    def _take_header(self, item: Whole) -> bool:
        """Use the record as the header. Strict refuses what is none; salvage reads on."""
        analysis = self._analysis
        kind = item.fields.type
        if kind != "session" or not isinstance(item.fields.id, str):
            if analysis.salvage:
                return False
            what = "is a record without a type" if not isinstance(kind, str) else f'is "{kind}"'
            if kind == "session":
                what = "is a session record whose id is no string"
            raise InvalidSource(
                f"no session header: {self._unit} {item.number} {what}",
                path=self._path,
                offset=item.offset,
                next_step=f"{SALVAGE} takes the entries of a file without a header",
            )
        if len(item.raw) > HEADER_BYTES_MAX:
            raise LimitExceeded(
                f"{self._unit} {item.number}: the header is longer than {HEADER_BYTES_MAX} bytes",
                limit=HEADER_BYTES_MAX,
                need=len(item.raw),
                path=self._path,
                offset=item.offset,
            )
        segments = members(item.raw)[1]
        values = {s.name: item.raw[s.value_begin : s.value_end] for s in segments}
        analysis.version = self._version(item, values.get("version", b"null"))
        analysis.effective_version = analysis.version or 1
        analysis.header_raw = item.raw
        analysis.header_position = self._position
        analysis.header = header_facts(values)
        if analysis.effective_version > 1:
            self._ids = None
        return True

    def _version(self, item: Whole, value: bytes) -> int | None:
        if value == b"null":
            return None
        version = _VERSIONS.get(value)
        if version is None:
            shown = value[:_SHOWN_BYTES_MAX].decode("utf-8", "replace")
            raise Unsupported(
                f"{self._unit} {item.number}: session version {shown} (supported: absent, 1, 2, 3)",
                path=self._path,
                offset=item.offset,
            )
        return version

    def _blank(self, item: Blank) -> None:
        """Note where the line stands; in salvage the places only inform, so they may run out."""
        self._blank_count += 1
        times = int(item.terminated)
        if times and (self._position, item.text) == self._blank_place:
            self._blank_times[-1] += 1
            return
        runs = self._analysis.blank_lines
        self._blank_place = None
        self._blank_bytes += len(item.text)
        if len(runs) < BLANK_RUNS_MAX and self._blank_bytes <= BLANK_TEXT_BYTES_MAX:
            self._blank_place = (self._position, item.text)
            self._blank_times.append(times)
            runs.append(BlankRun(self._position, item.text, times))
        elif not self._analysis.salvage:
            raise LimitExceeded(
                f"more than {BLANK_RUNS_MAX} runs or {BLANK_TEXT_BYTES_MAX} bytes of blank lines",
                limit=BLANK_RUNS_MAX,
                path=self._path,
                next_step=f"remove them, or use {SALVAGE}",
            )

    def finish(self) -> None:
        """Everything that needs all records; refuses a file without a header or any record."""
        analysis, counts = self._analysis, self._oddities.counts
        if analysis.header is None:
            if not analysis.salvage:
                raise InvalidSource("no session header: no record", path=self._path)
            if analysis.entry_count == 0:
                raise InvalidSource("no whole record in it", path=self._path)
            analysis.effective_version = 3 if self._probe_has_ids else 1
        if analysis.effective_version == 1:
            self._keep_ids()
        analysis.blank_lines = [
            run._replace(times=times)
            for run, times in zip(analysis.blank_lines, self._blank_times, strict=True)
        ]
        counts["blank_lines"] = self._blank_count
        counts["bom"] = int(analysis.bom)
        analysis.oddities = self._oddities.finish()
        analysis.byte_exact = (
            analysis.effective_version == 3
            and not analysis.salvage
            and analysis.format not in JOURNALS
        )

    def _keep_ids(self) -> None:
        assert self._ids is not None
        if self._longest.length + UPGRADE_GROWTH_BYTES > LINE_BYTES_MAX:
            raise LimitExceeded(
                f"line {self._longest.line} leaves no room for the upgrade of its version",
                limit=LINE_BYTES_MAX,
                need=self._longest.length + UPGRADE_GROWTH_BYTES,
                path=self._path,
                offset=self._longest.offset,
            )
        self._analysis.ids = self._ids.by_position
        self._analysis.symbols = self._oddities.symbols
        self._analysis.first_seen = self._oddities.first_seen


def header_facts(values: dict[str, bytes]) -> Header:
    """What is used of a header, from the JSON of its members."""

    def text(name: str) -> str | None:
        value = text_of(values.get(name, b"null"))
        return clean(value) if isinstance(value, str) else None

    depth = values.get("rlmDepth", b"")
    is_depth = _DEPTH.fullmatch(depth) is not None and int(depth) <= _DEPTH_MAX
    return Header(
        id=text("id") or "",
        cwd=text("cwd"),
        timestamp=text("timestamp"),
        parent_session=text("parentSession") or text("branchedFrom"),
        rlm_depth=int(depth) if is_depth else None,
    )
