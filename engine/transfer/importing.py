"""Importing sessions: preview, or a new session published whole.

A source is JSONL (plain, or the JSON frames of a Base Context journal) or a journal of ours.
Everything that can refuse does so in a first pass, before a destination exists. The second pass
streams the entries into a journal under a temporary name; it gets its own name only when the
digest over the source proved that both passes read the same bytes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from treering.engine import environment, home
from treering.engine.errors import InvalidSource, from_os_error
from treering.engine.journal.admissible import Record
from treering.engine.journal.control import Purpose
from treering.engine.journal.disk import LOCAL_DISK, Disk, make_folders, sync_folders, write_all
from treering.engine.journal.format import FLAG_RETAINED, Kind
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.journal.ownership import Ownership, open_regular
from treering.engine.journal.payload import Dictionary
from treering.engine.journal.publish import NewJournal
from treering.engine.json_text import clean
from treering.engine.session.trash import check_not_deleted
from treering.engine.transfer.context_epoch_copy import EpochSource, Target, with_epoch
from treering.engine.transfer.journal_source import JournalSource
from treering.engine.transfer.legacy import Analysis, CopyLimits, analyse, detect, prepare
from treering.engine.transfer.legacy_read import FrameFacts
from treering.engine.transfer.records import LocalSource

SESSION_VERSION = 3

DICTIONARY_FROM_JSON_BYTES: Final = 512 * 1024
"""Two copies of a dictionary are 32 KiB: below this they cost more than they save."""

_SAMPLES_MAX: Final = 2_000
_SAMPLE_BYTES_MAX: Final = 16 * 1024
_SAMPLES_BYTES_MAX: Final = 2 * 1024 * 1024

_FORMAT_NAMES: Final = {"jsonl": "legacy-jsonl", "native-frames": "native-framed"}


@dataclass
class ImportPreview:
    """What an import would take, and what is odd about the source. Nothing was created."""

    source_path: str
    source_format: str
    """``legacy-jsonl``, ``native-framed`` (Base Context), ``treering``, or ``json-array``."""
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
    destination_creation_and_indexing: str = "not-assessed"
    canonical_epoch_activation: str = "not-assessed"
    reference_replay_coverage: str = "not-assessed"
    later_import: str = "rereads-source-and-can-fail"
    oddities: dict[str, int] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    lines_taken_apart: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Destination:
    """Where a new session goes and what its header says."""

    store: home.Store
    cwd: str
    parent_session: str | None
    depth: int | None
    session_id: str | None = None
    compression: bool = True
    disk: Disk = LOCAL_DISK


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
    with _contents(source_path, limits, salvage=salvage) as contents:
        return _preview(contents, _cwd(cwd), store)


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
    """Import a session into a new one; every entry is marked as a retained import.

    Args:
        source_path: legacy JSONL, a journal of Base Context's JSON frames, or a journal of ours;
            it is read up to one captured size, and only from the local file system.
        cwd: working directory of the new session; the current one by default.
        home_dir: the store's home; default as documented.
        session_dir: the sessions folder, instead of ``home_dir``.
        limits: entries and JSON bytes of one copy; None lifts them.
        salvage: take what is whole of a damaged source, and say what was left out. (A damaged
            journal of ours is refused all the same: repair it first.)
        compression: compress payloads where it saves bytes.
        disk: the file system of the store.

    Raises:
        InvalidSource, Unsupported, LimitExceeded: refused; no destination exists.
        Damaged, AcknowledgedDataLost: a journal of ours that is; no destination exists.
        SourceChanged: the source changed between the passes; no destination exists.
        StorageFull, StorageError: no destination exists.
    """
    store = home.Store.at(home_dir, session_dir)
    with _contents(source_path, limits, salvage=salvage) as contents:
        header = contents.analysis.header
        depth = None if header is None else header.rlm_depth
        to = Destination(store, _cwd(cwd), contents.path, depth, compression=compression, disk=disk)
        return publish_contents(contents, to, "import")


class Contents(NamedTuple):
    """A source that was accepted. Its two iterators read it again."""

    path: str
    analysis: Analysis
    provenance: bytes
    samples: Callable[[], Iterable[bytes]]
    """Entries to train a dictionary on."""
    records: Callable[[], Iterator[Record]]
    read_at: Callable[[int, int], bytes]
    epochs: EpochSource | None = None


@contextmanager
def _contents(
    source_path: str | os.PathLike[str], limits: CopyLimits | None, *, salvage: bool
) -> Iterator[Contents]:
    """The source of an import, open. Everything in it is lowered."""
    with LocalSource(source_path) as source:
        if detect(source) in ("treering", "unknown"):
            file = open_regular(LOCAL_DISK, home.journal_file(source_path), write=False)
            try:
                journal = JournalSource.captured(file, os.fspath(source_path))
                if journal is not None:
                    yield _journal_contents(journal, limits)
                    return
            finally:
                file.close()
        analysis = analyse(source, limits=limits, salvage=salvage)
        yield line_contents(source, analysis, lowered=True)


def line_contents(source: LocalSource, analysis: Analysis, *, lowered: bool) -> Contents:
    """Lines, plain or framed. Plain ones are always lowered: nothing says what they are."""

    def records() -> Iterator[Record]:
        for entry in prepare(source, analysis):
            kind = Kind.REQUEST if entry.request else Kind.ENTRY
            if entry.frame is None:
                flags = FLAG_RETAINED
            else:
                flags = entry.frame.flags | (FLAG_RETAINED if lowered else 0)
            yield Record(kind, entry.raw, flags)

    def again() -> Iterator[tuple[Record, FrameFacts | None]]:
        yield from zip(records(), (entry.frame for entry in prepare(source, analysis)), strict=True)

    epochs = None
    if analysis.context_epochs:
        header = analysis.header
        names = () if header is None or header.id is None else (header.id,)
        epochs = EpochSource(frozenset(names), source.path, lowered, analysis.salvage, again)
    return Contents(
        source.path,
        analysis,
        provenance_payload(analysis),
        lambda: (entry.raw for entry in prepare(source, analysis)),
        records,
        source.read_at,
        epochs,
    )


def _journal_contents(source: JournalSource, limits: CopyLimits | None) -> Contents:
    """A journal of ours. Its end must be whole, as that of every source of an import."""
    if source.ignored_bytes:
        raise InvalidSource(
            f"the journal ends in {source.ignored_bytes} bytes that are no whole frame",
            path=source.path,
            offset=source.size,
            next_step="import again when nothing writes to it; a fork leaves them out",
        )
    analysis = source.analyse(limits)

    def records() -> Iterator[Record]:
        for record in source.records():
            lowered = 0 if record.kind == Kind.LEAF else FLAG_RETAINED
            yield record._replace(flags=record.flags | lowered)

    return Contents(
        source.path,
        analysis,
        _json(source.provenance()) + b"\0" + source.header,
        source.samples,
        records,
        source.read_at,
        source.epochs(lowered=True),
    )


def publish_contents(contents: Contents, to: Destination, purpose: Purpose) -> ImportResult:
    """The second pass: publish what was analysed, and keep what a salvage left out.

    Raises as :func:`import_session`.
    """
    preview = _preview(contents, to.cwd, to.store)
    large = contents.analysis.json_bytes >= DICTIONARY_FROM_JSON_BYTES
    samples = contents.samples if large else None
    path, session_id, owner = publish(
        to, purpose, contents.provenance, samples, contents.records, contents.epochs
    )
    try:
        quarantine = _keep_left_out(to, session_id, contents)
    finally:
        owner.release()
    return ImportResult(path, session_id, preview, quarantine)


class Published(NamedTuple):
    """A new session that has its name; the caller releases it."""

    path: str
    session_id: str
    owner: Ownership


def publish(
    to: Destination,
    purpose: Purpose,
    provenance: bytes,
    samples: Callable[[], Iterable[bytes]] | None,
    records: Callable[[], Iterator[Record]],
    epochs: EpochSource | None = None,
) -> Published:
    """Build the new session and give it its name.

    ``samples`` are entries for a dictionary, None where it would not pay; ``epochs`` is there when
    a context epoch may have to be made again.
    """
    session_id = to.session_id or environment.new_session_id()
    path = to.store.journal_path(session_id)
    if to.session_id is not None:
        check_not_deleted(to.disk, to.store, session_id)
    if not isinstance(to.disk, MemoryDisk):
        home.check_writable_place(path)
    header = new_header(session_id, to.cwd, to.parent_session, to.depth)
    new = NewJournal(
        to.disk,
        to.store.sessions,
        session_id,
        purpose=purpose,
        top=to.store.top,
        compression=to.compression,
    )
    try:
        new.add([Record(Kind.SESSION, header), Record(Kind.PROVENANCE, provenance)])
        dictionary = None
        if samples is not None and to.compression:
            dictionary = trained_on(samples())
        if dictionary is not None:
            new.add_dictionary(dictionary)
        if epochs is None:
            new.add(records())
        else:
            persistent = not isinstance(to.disk, MemoryDisk)
            with_epoch(new, records, epochs, Target(session_id, path, persistent))
        owner, _ = new.publish(path)
    except BaseException:
        new.abandon()
        raise
    return Published(path, session_id, owner)


def _cwd(cwd: str | None) -> str:
    return os.path.abspath(cwd) if cwd is not None else os.getcwd()


def _preview(contents: Contents, cwd: str, store: home.Store) -> ImportPreview:
    analysis = contents.analysis
    return ImportPreview(
        source_path=contents.path,
        source_format=_FORMAT_NAMES.get(analysis.format, analysis.format),
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


def _keep_left_out(to: Destination, session_id: str, contents: Contents) -> str | None:
    """What a salvage left out, byte for byte, in the session's quarantine."""
    if not contents.analysis.left_out:
        return None
    disk, store = to.disk, to.store
    folder = store.quarantine_folder(session_id)
    path = os.path.join(folder, "import-left-out.bin")
    try:
        make_folders(disk, folder, store.top)
        file = disk.create(path)
        try:
            at = 0
            for piece in contents.analysis.left_out:
                left = piece.length
                while left > 0:
                    data = contents.read_at(piece.offset + piece.length - left, min(left, 1 << 20))
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
