"""Known faults, planted into the engine one at a time: the explorer has to find each of them.

A test of the tester. Every fault is one that storage code has had somewhere; each is a patch that
is taken out again when its context ends.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from treering.engine.journal import control, history, opening, publish, reader, recovery, writer
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import sync_folders, write_all
from treering.engine.journal.format import (
    FLAG_STAGED,
    Kind,
    Watermark,
    digest_of,
    encode_file_header,
)
from treering.engine.journal.framing import FrameBuilder
from treering.engine.session import session
from treering.engine.transfer import exporting


@dataclass(frozen=True)
class Fault:
    """A fault, and the flows in which it shows (shell patterns)."""

    name: str
    about: str
    flows: tuple[str, ...]
    plant: Callable[[], contextlib.AbstractContextManager[Any]]


FAULTS: dict[str, Fault] = {}


def fault(
    *flows: str,
) -> Callable[[Callable[[], contextlib.AbstractContextManager[Any]]], Callable[[], Any]]:
    """Register a function that plants a fault; its docstring says what it is."""

    def register(
        plant: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> Callable[[], Any]:
        name = plant.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, (plant.__doc__ or "").strip(), flows, plant)
        return plant

    return register


# Acknowledging


@fault("append", "many")
def sync_skipped() -> Any:
    """An append is acknowledged without a sync."""
    return mock.patch.object(writer.JournalWriter, "_sync", lambda self: self._note_synced())


@fault("append", "batch")
def sync_before_write() -> Any:
    """The sync comes before the write it should cover."""
    write = writer.JournalWriter._write

    def early(self: Any, pieces: list[bytes]) -> None:
        self._file.fdatasync()
        write(self, pieces)

    return all_of(
        mock.patch.object(writer.JournalWriter, "_write", early),
        mock.patch.object(
            writer.JournalWriter, "_sync", lambda self, state=None: self._note_synced(state)
        ),
    )


@fault("relaxed*", "many+relaxed*", "many")
def after_sync_set_early() -> Any:
    """Every frame claims that all before it are durable."""
    build = FrameBuilder.build

    def claiming(self: Any, records: Any, state: Any, *, extra_flags: int = 0) -> Any:
        pieces: list[bytes] = []
        frames: list[Any] = []
        for record in records:
            state = state._replace(synced_below=state.sequence)
            more, made, state = build(self, [record], state, extra_flags=extra_flags)
            pieces += more
            frames += made
        return pieces, frames, state

    return mock.patch.object(FrameBuilder, "build", claiming)


@fault("failed-sync:*")
def failed_sync_ignored() -> Any:
    """A failed sync is taken for a good one."""

    def careless(self: Any) -> None:
        state = self._state
        with contextlib.suppress(OSError):
            self._file.fdatasync()
        self._note_synced(state)

    return mock.patch.object(writer.JournalWriter, "_sync", careless)


@fault("failed-sync:*")
def failed_sync_repeated() -> Any:
    """A failed sync is tried again, and the second answer believed."""

    def stubborn(self: Any) -> None:
        state = self._state
        try:
            self._file.fdatasync()
        except OSError:
            self._file.fdatasync()
        self._note_synced(state)

    return mock.patch.object(writer.JournalWriter, "_sync", stubborn)


@fault("no-space:*")
def failed_write_left_behind() -> Any:
    """What a failed write left in the file stays there."""
    return mock.patch.object(writer.JournalWriter, "_cut_back", return_value=None)


@fault("no-space:*")
def cut_of_failed_write_not_synced() -> Any:
    """A failed write is cut off, and the cut is not made durable."""

    def lazy(self: Any, cause: OSError) -> None:
        del cause
        self._file.truncate(self._state.offset)

    return mock.patch.object(writer.JournalWriter, "_cut_back", lazy)


@fault("batch*")
def batch_without_staging() -> Any:
    """A batch is written as plain frames."""

    def plain(self: Any, records: Any) -> Any:
        with self._lock:
            frames = self.append(records)
            return frames, frames[-1]

    return mock.patch.object(writer.JournalWriter, "append_batch", plain)


# Publishing


@fault("create", "import")
def name_not_synced() -> Any:
    """A new journal's name is not synced."""

    def careless(self: Any, path: str) -> None:
        del path
        self._disk.unlink(self.temporary)

    return mock.patch.object(publish.NewJournal, "_name_durably", careless)


@fault("create", "import")
def named_before_whole() -> Any:
    """The journal gets its name before it is durable."""
    publishing = publish.NewJournal.publish

    def early(self: Any, path: str, note_path: str | None = None) -> Any:
        self._flush()
        self._disk.link(self.temporary, path)
        self._disk.sync_folder(self._folder)
        self._disk.unlink(path)
        return publishing(self, path, note_path)

    return mock.patch.object(publish.NewJournal, "publish", early)


@fault("create", "import")
def published_length_first() -> Any:
    """The header says that bytes are durable before any sync, and one sync covers all."""

    def seal(self: Any) -> None:
        self._add_copy()
        closed = control.EpochClose(self.journal_id.hex(), 1, self._state.epoch_frames)
        self.add([Record(Kind.EPOCH_CLOSE, control.encode(closed))])
        self._flush()
        write_all(self._file, encode_file_header(self._header(self._written)), 0)

    return mock.patch.object(publish.NewJournal, "_seal", seal)


@fault("repair-*")
def repair_keeps_nothing() -> Any:
    """A repaired journal replaces the damaged one, which is not linked aside."""

    def replace(self: Any, path: str, aside: str) -> Any:
        self._seal()
        self._disk.rename(self.temporary, path)
        sync_folders(self._disk, self._folder, self._top)
        owner, tail = self._handed_over(path, None)
        return owner, tail, aside

    return mock.patch.object(publish.NewJournal, "replace", replace)


@fault("repair-*")
def aside_not_synced() -> Any:
    """The damaged journal's second name is not durable when its first goes to another."""
    return _without_names_in_quarantine(publish)


@fault("export")
def export_not_synced() -> Any:
    """An export gets its name before its bytes are durable."""
    write_pieces = exporting._write_pieces

    def unsynced(file: Any, pieces: Any) -> int:
        size = write_pieces(file, pieces)
        file.fsync = lambda: None
        return size

    return mock.patch.object(exporting, "_write_pieces", unsynced)


# Recovering


@fault("recover:*", "relaxed*")
def cut_without_quarantine() -> Any:
    """A torn tail is cut and not kept."""

    def cut(disk: Any, file: Any, found: Any, report: Any, tail: Any, *_: str) -> None:
        del disk, report
        opening.rewrite_unproven(file, found.source.path, tail)
        file.truncate(found.place.offset)
        file.fdatasync()

    return mock.patch.object(opening, "_quarantine_and_cut", cut)


@fault("recover:*")
def cut_before_quarantine() -> Any:
    """A torn tail is cut first and kept afterwards."""
    quarantine = opening._quarantine_and_cut

    def hasty(disk: Any, file: Any, found: Any, *rest: Any) -> None:
        offset, size = found.place.offset, found.source.size
        tail = file.pread(size - offset, offset)
        file.truncate(offset)
        file.fdatasync()
        write_all(file, tail, offset)
        quarantine(disk, file, found, *rest)

    return mock.patch.object(opening, "_quarantine_and_cut", hasty)


@fault("recover:*")
def quarantine_not_synced() -> Any:
    """The copy of a torn tail is not durable when the tail is cut."""
    copy_out = opening._copy_out

    def careless(disk: Any, *rest: Any) -> str:
        return copy_out(_Unsynced(disk), *rest)

    return mock.patch.object(opening, "_copy_out", careless)


@fault("recover:*")
def quarantine_name_not_synced() -> Any:
    """The copy of a torn tail has no durable name when the tail is cut."""
    return _without_names_in_quarantine(opening)


@fault("recover:*", "append", "relaxed*")
def tail_not_cut() -> Any:
    """Appending goes on behind the last good frame; what lies beyond stays."""
    return mock.patch.object(opening, "_quarantine_and_cut", return_value=None)


@fault("failed-sync:*")
def cache_trusted() -> Any:
    """Frames that nothing proves durable are not written again before new ones follow."""

    def trusting(file: Any, path: str, tail: Any) -> None:
        del path, tail
        file.fdatasync()

    return all_of(
        mock.patch.object(opening, "rewrite_unproven", trusting),
        mock.patch.object(writer, "rewrite_unproven", trusting),
    )


# Reading


@fault("append", "many", "batch")
def length_trusted() -> Any:
    """A frame is taken as whole when it is long enough; its digest is not compared."""
    return mock.patch.object(reader, "digest_of", lambda body, salt: _Same(digest_of(body, salt)))


@fault("batch*")
def staged_frames_shown() -> Any:
    """Frames of a batch are shown before they are activated."""
    feed = history.History.feed

    def eager(self: Any, frame: Any, body: bytes) -> Any:
        shown = feed(self, frame, body)
        if frame.flags & FLAG_STAGED:
            return frame
        return None if isinstance(shown, history.Activated) else shown

    return mock.patch.object(history.History, "feed", eager)


@fault("relaxed*", "many+append", "append+many", "reopen+append")
def any_frame_behind_is_damage() -> Any:
    """A good frame behind a bad one is taken for a proof that the bad one was durable."""
    search_beyond = recovery._search_beyond

    def suspicious(found: Any, salt: int, start: int, sequence_min: int) -> None:
        search_beyond(found, salt, start, sequence_min)
        if found.beyond_count:
            found.proven_by_beyond = sequence_min + 1

    return mock.patch.object(recovery, "_search_beyond", suspicious)


# Indexing


@fault("index-relaxed")
def index_and_watermark_ahead() -> Any:
    """The index and its watermark take up what no sync covers yet."""

    def early(self: Any) -> bytes:
        state = self._state
        mark = Watermark(self.journal_id, state.sequence - 1, state.offset, state.revision)
        return mark.encode()

    return all_of(
        mock.patch.object(writer.JournalWriter, "encoded_watermark", early),
        mock.patch.object(session.Session, "_synced_size", lambda self: self._writer.size),
    )


def _without_names_in_quarantine(module: Any) -> contextlib.AbstractContextManager[None]:
    """Folders of quarantine are neither synced nor made durably by a module."""

    def selective(disk: Any, path: str, top: str) -> None:
        if "quarantine" not in path:
            sync_folders(disk, path, top)

    return all_of(
        mock.patch.object(module, "sync_folders", selective),
        mock.patch.object(module, "make_folders", make_folders_unsynced),
    )


class _Same(bytes):
    """Bytes that are equal to any."""

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = bytes.__hash__


class _Unsynced:
    """A disk whose new files cannot be synced, and say that they are."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def create(self, path: str) -> Any:
        """A new file with a sync that does nothing."""
        file = self._disk.create(path)
        file.fsync = lambda: None
        return file


def make_folders_unsynced(disk: Any, path: str, top: str) -> None:
    """Makes folders as the engine does, and syncs none."""
    del top
    missing = []
    while True:
        try:
            disk.stat(path)
            break
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        missing.append(path)
        path = path.rpartition("/")[0]
    for folder in reversed(missing):
        disk.make_folder(folder)


@contextlib.contextmanager
def all_of(*patches: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Several patches as one."""
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
