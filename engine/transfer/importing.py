"""Importing legacy JSONL: preview, or a new session published whole.

Everything that can refuse does so in a first pass, before a destination exists. The second pass
streams the entries into a journal under a temporary name; it gets its own name only when the
digest over the source proved that both passes read the same bytes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from treering.engine import environment, home
from treering.engine.errors import from_os_error
from treering.engine.journal.admissible import Record
from treering.engine.journal.control import Purpose
from treering.engine.journal.disk import LOCAL_DISK, Disk, make_folders, sync_folders, write_all
from treering.engine.journal.format import FLAG_RETAINED, Kind
from treering.engine.journal.payload import Dictionary
from treering.engine.journal.publish import NewJournal
from treering.engine.json_text import clean
from treering.engine.transfer.legacy import Analysis, CopyLimits, analyse, prepare
from treering.engine.transfer.records import LocalSource

SESSION_VERSION = 3

DICTIONARY_FROM_JSON_BYTES: Final = 512 * 1024
"""Two copies of a dictionary are 32 KiB: below this they cost more than they save."""

_SAMPLES_MAX: Final = 2_000
_SAMPLE_BYTES_MAX: Final = 16 * 1024
_SAMPLES_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass
class ImportPreview:
    """What an import would take, and what is odd about the source. Nothing was created."""

    source_path: str
    source_format: str
    input_version: int | None
    entries_read: int
    source_json_bytes: int
    prepared_entry_count: int
    target_cwd: str
    target_directory: str
    byte_exact: bool
    retention: str = "retained-import"
    source_header: str = "replace"
    git_state: str = "kept"
    capture: str = "bounded-prefix-not-live-snapshot"
    destination_created: bool = False
    later_import: str = "rereads-source-and-can-fail"
    oddities: dict[str, int] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    lines_taken_apart: list[int] = field(default_factory=list)


@dataclass
class ImportResult:
    """A finished import."""

    path: str
    session_id: str
    preview: ImportPreview
    quarantine: str | None = None
    """Where a salvage put the bytes that it left out."""


def preview_import(
    source_path: str | os.PathLike[str],
    *,
    cwd: str | None = None,
    home_dir: str | None = None,
    session_dir: str | None = None,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    salvage: bool = False,
) -> ImportPreview:
    """Read the source as an import would, and say what it holds. Creates nothing.

    Raises as :func:`import_session`.
    """
    store = home.Store.at(home_dir, session_dir)
    with LocalSource(source_path) as source:
        analysis = analyse(source, limits=limits, salvage=salvage)
        return _preview(source.path, analysis, _cwd(cwd), store)


def import_session(
    source_path: str | os.PathLike[str],
    *,
    cwd: str | None = None,
    home_dir: str | None = None,
    session_dir: str | None = None,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    salvage: bool = False,
    compression: bool = True,
    disk: Disk = LOCAL_DISK,
) -> ImportResult:
    """Import a legacy session into a new one; every entry is marked as a retained import.

    Args:
        source_path: the file; it is opened once, read-only, up to one captured size.
        cwd: working directory of the new session; the current one by default.
        home_dir: the store's home; default as documented.
        session_dir: the sessions folder, instead of ``home_dir``.
        limits: entries and JSON bytes of one copy; None lifts them.
        salvage: take what is whole of a damaged source, and say what was left out.
        compression: compress payloads where it saves bytes.
        disk: the file system of the store.

    Raises:
        InvalidSource, Unsupported, LimitExceeded: refused; no destination exists.
        SourceChanged: the source changed between the passes; no destination exists.
        StorageFull, StorageError: no destination exists.
    """
    store = home.Store.at(home_dir, session_dir)
    with LocalSource(source_path) as source:
        analysis = analyse(source, limits=limits, salvage=salvage)
        return import_source(source, analysis, store, _cwd(cwd), compression=compression, disk=disk)


def import_source(
    source: LocalSource,
    analysis: Analysis,
    store: home.Store,
    cwd: str,
    *,
    purpose: Purpose = "import",
    depth: int | None = None,
    compression: bool = True,
    disk: Disk = LOCAL_DISK,
) -> ImportResult:
    """The second pass: publish what was analysed. Raises as :func:`import_session`.

    ``depth`` is that of the new session; None takes what the source's header states.
    """
    preview = _preview(source.path, analysis, cwd, store)
    session_id = environment.new_session_id()
    path = store.journal_path(session_id)
    home.check_writable_place(path)
    new = NewJournal(
        disk,
        store.sessions,
        session_id,
        purpose=purpose,
        top=store.top,
        compression=compression,
    )
    if depth is None and analysis.header is not None:
        depth = analysis.header.rlm_depth
    try:
        new.add(_head(analysis, new_header(session_id, cwd, source.path, depth)))
        dictionary = _dictionary(source, analysis) if compression else None
        if dictionary is not None:
            new.add_dictionary(dictionary)
        new.add(_entries(source, analysis))
        owner, _ = new.publish(path)
    except BaseException:
        new.abandon()
        raise
    try:
        quarantine = _keep_left_out(disk, store, session_id, source, analysis)
    finally:
        owner.release()
    return ImportResult(path, session_id, preview, quarantine)


def _cwd(cwd: str | None) -> str:
    return os.path.abspath(cwd) if cwd is not None else os.getcwd()


def _preview(path: str, analysis: Analysis, cwd: str, store: home.Store) -> ImportPreview:
    return ImportPreview(
        source_path=path,
        source_format="legacy-jsonl" if analysis.format == "jsonl" else analysis.format,
        input_version=analysis.version,
        entries_read=analysis.record_count,
        source_json_bytes=analysis.json_bytes,
        prepared_entry_count=analysis.entry_count,
        target_cwd=cwd,
        target_directory=store.sessions,
        byte_exact=analysis.byte_exact,
        oddities=dict(sorted(analysis.oddities.items())),
        left_out=[
            {"line": piece.line, "offset": piece.offset, "bytes": piece.length, "why": piece.reason}
            for piece in analysis.left_out
        ],
        lines_taken_apart=list(analysis.taken_apart),
    )


def new_header(session_id: str, cwd: str, parent_session: str | None, depth: int | None) -> bytes:
    """The header of a session that is made from another one, named by its path."""
    header: dict[str, object] = {
        "type": "session",
        "version": SESSION_VERSION,
        "id": session_id,
        "timestamp": environment.iso_time(environment.now_ms()),
        "cwd": clean(cwd),
    }
    if parent_session is not None:
        header["parentSession"] = clean(os.path.abspath(os.fsdecode(parent_session)))
    if depth is not None:
        header["rlmDepth"] = depth
    return _json(header)


def _head(analysis: Analysis, header: bytes) -> Iterator[Record]:
    yield Record(Kind.SESSION, header)
    yield Record(Kind.PROVENANCE, provenance_payload(analysis))


def provenance_payload(analysis: Analysis) -> bytes:
    """Where the entries came from, and what only the source's bytes hold (header, blank lines)."""
    facts: dict[str, object] = {
        "format": analysis.format,
        "version": analysis.version,
        "captured_bytes": analysis.captured_bytes,
        "digest": analysis.digest,
        "byte_exact": analysis.byte_exact,
        "ambiguous_ids": _ambiguous_ids(analysis),
    }
    if analysis.bom:
        facts["bom"] = True
    if analysis.blank_lines:
        facts["blank_lines"] = [list(run) for run in analysis.blank_lines]
    if analysis.oddities:
        facts["oddities"] = dict(sorted(analysis.oddities.items()))
    if analysis.salvage:
        facts["salvaged"] = {
            "left_out": len(analysis.left_out),
            "left_out_bytes": sum(piece.length for piece in analysis.left_out),
            "lines_taken_apart": analysis.taken_apart,
        }
    return _json(facts) + b"\0" + (analysis.header_raw or b"")


def _ambiguous_ids(analysis: Analysis) -> bool:
    """Whether some entries have no usable id of their own; an upgrade from version 1 gives them."""
    names = ("duplicate_ids", "entries_without_id", "long_ids", "wrong_types", "lone_surrogates")
    return analysis.effective_version > 1 and any(analysis.oddities.get(name) for name in names)


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _dictionary(source: LocalSource, analysis: Analysis) -> Dictionary | None:
    """A dictionary trained on the first entries, if the source is large enough to gain by it."""
    if analysis.json_bytes < DICTIONARY_FROM_JSON_BYTES:
        return None
    return trained_on(entry.raw for entry in prepare(source, analysis))


def trained_on(raws: Iterable[bytes]) -> Dictionary | None:
    """A dictionary for entries like the first of these; None when they are too few or too odd."""
    samples: list[bytes] = []
    size = 0
    for raw in itertools.islice(raws, _SAMPLES_MAX):
        samples.append(raw[:_SAMPLE_BYTES_MAX])
        size += len(samples[-1])
        if size >= _SAMPLES_BYTES_MAX:
            break
    return Dictionary.train(samples)


def _entries(source: LocalSource, analysis: Analysis) -> Iterator[Record]:
    for entry in prepare(source, analysis):
        kind = Kind.REQUEST if entry.request else Kind.ENTRY
        yield Record(kind, entry.raw, FLAG_RETAINED)


def _keep_left_out(
    disk: Disk, store: home.Store, session_id: str, source: LocalSource, analysis: Analysis
) -> str | None:
    """What a salvage left out, byte for byte, in the session's quarantine."""
    if not analysis.left_out:
        return None
    folder = store.quarantine_folder(session_id)
    path = os.path.join(folder, "import-left-out.bin")
    try:
        make_folders(disk, folder, store.top)
        file = disk.create(path)
        try:
            at = 0
            for piece in analysis.left_out:
                left = piece.length
                while left > 0:
                    data = source.read_at(piece.offset + piece.length - left, min(left, 1 << 20))
                    write_all(file, data, at)
                    at += len(data)
                    left -= len(data)
            file.fsync()
        finally:
            file.close()
        sync_folders(disk, folder, store.top)
    except OSError as error:
        raise from_os_error(error, "keep what was left out", path) from error
    return path
