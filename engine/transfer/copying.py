"""Copies of sessions: a whole one (fork), or one path of it (branch, clone), published whole.

A copy is a new session of its own. Entries keep their ids, and their bytes but for a parent that
was left out; every frame keeps what the source says of its retention and qualification. A fork
takes everything up to one captured end. A branch copy leaves out the label entries of its path and
carries the labels that are in force, as new entries behind it; its position is the path's end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from treering.engine import home
from treering.engine.errors import Invalid, NotFound
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.journal.ownership import open_regular
from treering.engine.limits import SCAN_CHUNK_BYTES
from treering.engine.session.capture import SourceRef
from treering.engine.session.entries import decode_header
from treering.engine.session.entry import Entry
from treering.engine.session.reads import Reads
from treering.engine.transfer import importing
from treering.engine.transfer.context_epoch_copy import EpochSource
from treering.engine.transfer.depth import check_depth, depth_of_source
from treering.engine.transfer.importing import Destination
from treering.engine.transfer.journal_source import JournalSource
from treering.engine.transfer.legacy import CopyLimits, analyse
from treering.engine.transfer.path_source import PathSource, refuse_unfit_view
from treering.engine.transfer.records import LocalSource


@dataclass
class CopyResult:
    """A finished copy; its session is closed."""

    path: str
    session_id: str
    source_path: str
    source_format: str
    """``treering``, ``native-framed`` (Base Context) or ``legacy-jsonl``."""
    entries: int
    """Entries of the copy, without the labels that were written anew."""
    labels: int = 0
    """Labels that were carried over by a branch copy (a fork has all entries, these too)."""
    relinked: int = 0
    """Entries that were changed because an entry above them was left out."""
    labels_left_out: int = 0
    """Labels whose target shares its id with a later entry of the path."""
    unproven: int = 0
    """Entries at the end of a session in use that nothing proved durable yet: its owner may have
    been writing them at that moment."""
    ignored_bytes: int = 0
    """Bytes of a torn or unfinished end of the source, which are not part of the copy."""


def fork_session(
    source_path: str | os.PathLike[str],
    target_cwd: str | None = None,
    *,
    home_dir: str | None = None,
    session_dir: str | None = None,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    compression: bool = True,
    disk: Disk = LOCAL_DISK,
) -> CopyResult:
    """Copy a whole session, all branches, into a new one. The source is only read.

    Of a session in use it takes what is there at the moment, up to the last whole frame. JSONL,
    plain or of Base Context's frames, is taken as an import takes it, without an incomplete last
    line; frames keep their retention and qualification, and plain lines are retained imports.

    Args:
        source_path: a journal, or a JSONL file.
        target_cwd: working directory of the new session; the current one by default.
        home_dir: the store's home; default as documented.
        session_dir: the sessions folder, instead of ``home_dir``.
        limits: entries and JSON bytes (the header's among them) of one copy; None lifts them, and
            memory stays bounded all the same (but for 200 bytes an entry when the session has a
            context epoch, which is rebuilt).
        compression: compress payloads where it saves bytes.
        disk: the file system of source and destination (JSONL files are always local).

    Raises:
        NotFound, InvalidSource, LimitExceeded: refused; no destination exists.
        Damaged, AcknowledgedDataLost: the source is damaged; repair it first.
        Unsupported: the source holds what this release does not understand.
        SourceChanged: the source changed meanwhile; no destination exists.
        StorageFull, StorageError: no destination exists.
    """
    store = home.Store.at(home_dir, session_dir)
    cwd = os.path.abspath(target_cwd) if target_cwd is not None else os.getcwd()
    named = os.path.abspath(home.check_path(source_path))
    path = home.journal_file(source_path)
    file = open_regular(disk, path, write=False)
    try:
        source = JournalSource.captured(file, path)
        if source is not None:
            source.check_limits(limits)
            depth = depth_of_source(source.header, path, disk=disk)
            to = Destination(store, cwd, named, depth, compression=compression, disk=disk)
            return _fork_journal(source, to)
    finally:
        file.close()
    return _fork_lines(named, store, cwd, limits, compression=compression, disk=disk)


ForkPosition = Literal["before", "at"]


class PreparedFork:
    """A path that was captured for a copy. What its session appends later has no influence.

    It can be used any number of times while that session (or view) is open.
    """

    def __init__(
        self,
        reads: Reads,
        leaf_id: str | None,
        *,
        limits: CopyLimits | None,
        session_file: str | None,
        selected_entry: Entry | None = None,
    ) -> None:
        self._reads = reads
        self._path = PathSource(reads, leaf_id, limits)
        self.selected_entry = selected_entry
        """The entry that the fork was asked for."""
        self.source = SourceRef(
            home.session_id_of(reads.path),
            session_file,
            leaf_id,
            self._path.last_sequence,
            session_file is not None,
        )

    @property
    def entries(self) -> int:
        """Entries that the copy will hold, with the labels that are carried over."""
        return self._path.entries + self._path.labels

    def create(
        self,
        cwd: str | None = None,
        *,
        home_dir: str | None = None,
        session_dir: str | None = None,
        session_id: str | None = None,
        rlm_depth: int | None = None,
        compression: bool = True,
        disk: Disk = LOCAL_DISK,
    ) -> CopyResult:
        """Make the new session, by default in the source's folder and for its working directory.

        Args:
            cwd: another working directory.
            home_dir: another store.
            session_dir: another sessions folder.
            session_id: its id; a fresh one by default.
            rlm_depth: its depth; that of the source by default.
            compression: compress payloads where it saves bytes.
            disk: the file system of the new session.

        Raises:
            Invalid: the session is in memory, and nothing says where the copy goes.
            Closed: the session or view was closed.
            Damaged, SourceChanged: an entry does not verify any more; no destination exists.
            Conflict: a session of that id exists.
            StorageFull, StorageError: no destination exists.
        """
        path, reads = self._path, self._reads
        elsewhere = home_dir is not None or session_dir is not None
        if self.source.session_file is None and not (elsewhere or isinstance(disk, MemoryDisk)):
            raise Invalid(
                "a session in memory has no folder that a copy could be in",
                next_step="name a session_dir",
            )
        store = home.Store.at(home_dir, session_dir) if elsewhere else _store_of(reads)
        depth = depth_of_source(path.header, reads.path) if rlm_depth is None else rlm_depth
        to = Destination(
            store,
            _cwd_of(path.header) if cwd is None else os.path.abspath(cwd),
            self.source.session_file,
            check_depth(depth),
            session_id,
            compression,
            disk,
        )
        large = path.json_bytes >= importing.DICTIONARY_FROM_JSON_BYTES
        copy = path.copy()
        samples = path.raws if large else None
        made, made_id = _publish(
            to, path.provenance(), path.header, samples, copy.records, path.epochs()
        )
        return CopyResult(
            made,
            made_id,
            reads.path,
            "treering",
            path.entries,
            labels=copy.labels,
            relinked=copy.relinked,
            labels_left_out=copy.labels_left_out,
            unproven=copy.unproven,
        )


def copy_branch(
    reads: Reads,
    leaf_id: str | None,
    cwd: str | None = None,
    *,
    home_dir: str | None = None,
    session_dir: str | None = None,
    session_id: str | None = None,
    rlm_depth: int | None = None,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    session_file: str | None | UnsetType = UNSET,
    compression: bool = True,
    disk: Disk = LOCAL_DISK,
) -> CopyResult:
    """Copy the path to an entry into a new session; None copies no entry.

    The new session stands where the path ends (before its last label entries, which are not
    copied). See :meth:`PreparedFork.create` for the arguments and :func:`prepare_fork` for the
    others.

    Raises:
        NotFound: no entry of the tree has that id.
        LimitExceeded: the path is beyond a limit; no destination exists.
        Damaged, AcknowledgedDataLost, Unsupported: a view of a session that is not whole.
        Others: as :meth:`PreparedFork.create`.
    """
    file = reads.path if session_file is UNSET else session_file
    return PreparedFork(reads, leaf_id, limits=limits, session_file=file).create(
        cwd,
        home_dir=home_dir,
        session_dir=session_dir,
        session_id=session_id,
        rlm_depth=rlm_depth,
        compression=compression,
        disk=disk,
    )


def prepare_fork(
    reads: Reads,
    entry_id: str,
    position: ForkPosition = "before",
    *,
    limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    session_file: str | None | UnsetType = UNSET,
) -> PreparedFork:
    """Capture what a fork at an entry would copy, now.

    Args:
        reads: an owned session, or a view of a whole one.
        entry_id: the entry that was selected.
        position: ``"before"`` ends above the entry, which must be a message of the user;
            ``"at"`` ends with it.
        limits: entries (new labels among them) and JSON bytes, the header's among them.
        session_file: what the copy names as its parent session; None for a session in memory.

    Raises:
        Invalid: no fork can be made at that entry.
        LimitExceeded: the path is beyond a limit.
        Damaged, AcknowledgedDataLost, Unsupported: a view of a session that is not whole.
    """
    if position not in get_args(ForkPosition):
        raise Invalid(f"a fork is made 'before' an entry or 'at' it, not {position!r}")
    refuse_unfit_view(reads)
    try:
        selected = reads.read(entry_id)
    except NotFound as error:
        raise _not_for_forking(entry_id, "there is none", reads) from error
    leaf_id: str | None = selected.id
    if position == "before":
        if selected.type != "message" or selected.role != "user":
            raise _not_for_forking(entry_id, "it is no message of the user", reads)
        parent = reads.parent(selected.id)
        leaf_id = None if parent is None else parent.id
    elif selected.type == "session":
        raise _not_for_forking(entry_id, "it is no part of the tree", reads)
    file = reads.path if session_file is UNSET else session_file
    return PreparedFork(reads, leaf_id, limits=limits, session_file=file, selected_entry=selected)


def _not_for_forking(entry_id: str, why: str, reads: Reads) -> Invalid:
    return Invalid(f"cannot fork at entry {entry_id!r}: {why}", path=reads.path)


def _store_of(reads: Reads) -> home.Store:
    return home.Store.of_journal(reads.path)


def _cwd_of(header: bytes) -> str:
    found = decode_header(header)
    return os.getcwd() if found is None or found.cwd is None else found.cwd


def _fork_journal(source: JournalSource, to: Destination) -> CopyResult:
    large = source.size >= importing.DICTIONARY_FROM_JSON_BYTES
    samples = source.samples if large else None
    path, session_id = _publish(
        to,
        source.provenance(),
        source.header,
        samples,
        source.records,
        source.epochs(lowered=False),
    )
    return CopyResult(
        path,
        session_id,
        source.path,
        "treering",
        source.entries,
        unproven=source.unproven,
        ignored_bytes=source.ignored_bytes,
    )


def _publish(
    to: Destination,
    facts: dict[str, object],
    source_header: bytes,
    samples: Callable[[], Iterable[bytes]] | None,
    records: Callable[[], Iterator[Record]],
    epochs: EpochSource | None,
) -> tuple[str, str]:
    """Make the new session; its path and id."""
    provenance = msgspec.json.encode(facts) + b"\0" + source_header
    made = importing.publish(to, "fork", provenance, samples, records, epochs)
    made.owner.release()
    return made.path, made.session_id


def _fork_lines(
    path: str,
    store: home.Store,
    cwd: str,
    limits: CopyLimits | None,
    *,
    compression: bool,
    disk: Disk,
) -> CopyResult:
    with LocalSource(path) as source:
        whole = _end_of_last_line(source)
        ignored, source.size = source.size - whole, whole
        analysis = analyse(source, limits=limits)
        analysis.byte_exact = analysis.byte_exact and not ignored
        depth = depth_of_source(analysis.header_raw or b"{}", path)
        to = Destination(store, cwd, source.path, depth, compression=compression, disk=disk)
        contents = importing.line_contents(source, analysis, lowered=False)
        done = importing.publish_contents(contents, to, "fork")
    return CopyResult(
        done.path,
        done.session_id,
        path,
        done.preview.source_format,
        analysis.entry_count,
        ignored_bytes=ignored,
    )


def _end_of_last_line(source: LocalSource) -> int:
    """Where the last line ends that has an end."""
    end = source.size
    while end > 0:
        begin = max(0, end - SCAN_CHUNK_BYTES)
        found = source.read_at(begin, end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
