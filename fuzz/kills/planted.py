"""Faults to plant in the processes under test, each of a kind that programs really have.

A harness that never fails proves nothing: each of these must be found within a few rounds. They
are planted in the children only; who judges is as it should be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from treering.engine.errors import Owned
from treering.engine.home import Store
from treering.engine.journal import disk, opening, ownership, publish
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import Disk, LocalFile, make_folders
from treering.engine.journal.format import Frame, Kind
from treering.engine.journal.framing import State
from treering.engine.journal.history import Walk
from treering.engine.journal.ownership import Ownership
from treering.engine.journal.publish import NewJournal
from treering.engine.journal.writer import JournalWriter
from treering.engine.session import deleting, filling, indexing, trash
from treering.engine.session.filling import position_of
from treering.engine.session.trash import Tombstone
from treering.engine.transfer.journal_source import KEPT_FLAGS, JournalSource
from treering.index import Position, SessionIndex


def _put(owner: object, name: str, replacement: object) -> None:
    setattr(owner, name, replacement)


def acknowledge_before_write() -> None:
    """An append returns at once; what it handed in is written with the next one."""
    held: list[bytes] = []

    def commit(self: JournalWriter, pieces: list[bytes], state: State) -> None:
        flush(self)
        held.extend(pieces)
        self._state, self._epoch_is_open = state, True

    def flush(self: JournalWriter) -> None:
        if held:
            earlier = b"".join(held)
            held.clear()
            self._file.pwrite(earlier, self._state.offset - len(earlier))

    def sync(self: JournalWriter) -> None:
        flush(self)
        synced(self)

    synced = JournalWriter._sync
    _put(JournalWriter, "_commit", commit)
    _put(JournalWriter, "_sync", sync)
    _put(JournalWriter, "_check_unchanged", lambda self: None)


def batch_without_staging() -> None:
    """A batch is a loop of appends."""

    def append_batch(self: JournalWriter, records: Sequence[Record]) -> tuple[list[Frame], Frame]:
        frames = [self.append([record])[0] for record in records]
        return frames, frames[-1]

    _put(JournalWriter, "append_batch", append_batch)


def position_before_rows() -> None:
    """The index notes how far it is, and then adds the rows, each in its own transaction."""

    def fill(index: SessionIndex, walk: Any, **more: Any) -> bool:
        if more.get("watermark") is not None:
            index.set_watermark(more["watermark"])
        pending = [row for row, _ in filling.rows_of(walk)]
        if walk.history.settled is None:
            return True
        last, before = position_of(walk.history.settled), index.position()
        at = before and before.sequence
        if pending:
            set_position(index, last)
        for row in pending:
            index._db.execute("BEGIN IMMEDIATE")
            index._db.execute("UPDATE state SET sequence=?", (at,))
            index._loader.apply([row], last, None)
            index._db.execute("COMMIT")
            at = row.sequence
            time.sleep(0.001)  # it is polite: others want to run
        index._reader.forget()
        return True

    def set_position(index: SessionIndex, position: Position) -> None:
        index._db.execute("UPDATE state SET sequence=?, offset=?, revision=?", tuple(position))

    _put(indexing, "fill", fill)


def lock_file() -> None:
    """Owning is a file beside the journal, which an owner removes when it is done."""

    def acquire(
        cls: type[Ownership], held: Disk, path: str, note_path: str | None = None
    ) -> Ownership:
        try:
            os.close(os.open(path + ".lock", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise Owned("another process owns the session", path=path) from None
        file = ownership.open_regular(held, path, write=True)
        return cls(held, path, file, file.stat().identity, note_path)

    release = Ownership.release

    def released(self: Ownership) -> None:
        if self._open and os.path.exists(self.path + ".lock"):
            os.unlink(self.path + ".lock")
        release(self)

    _put(Ownership, "acquire", classmethod(acquire))
    _put(Ownership, "release", released)


def lock_ignored() -> None:
    """Whoever asks for the lock gets it."""
    _put(LocalFile, "try_lock", lambda self: True)


def fork_keeps_lock() -> None:
    """A forked process keeps its copy of the locked descriptor."""

    def keep(file: Any) -> Any:
        return file

    _put(ownership, "close_in_child", keep)
    _put(publish, "close_in_child", keep)


def name_before_content() -> None:
    """A new journal has its name from the start, and is written there."""
    add = NewJournal.add

    def early(self: NewJournal, records: Any) -> None:
        add(self, records)
        path = os.path.join(
            self._folder, os.path.basename(self.temporary)[1:].rsplit(".", 2)[0] + ".jsonl"
        )
        if not os.path.exists(path):
            self._flush()
            os.link(self.temporary, path)

    def link(_: disk.LocalDisk, source: str, target: str) -> None:
        if not os.path.exists(target):
            os.link(source, target)

    _put(NewJournal, "add", early)
    _put(disk.LocalDisk, "link", link)


def repair_in_place() -> None:
    """A repair writes the new journal over the old one."""

    def replace(self: NewJournal, path: str, aside: str) -> Any:
        self._seal()
        make_folders(self._disk, os.path.dirname(aside), self._top)
        with open(path, "rb") as old, open(aside, "wb") as kept:
            kept.write(old.read())
        with open(self.temporary, "rb") as new, open(path, "r+b") as target:
            target.truncate(0)
            while data := new.read(512):
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
        os.unlink(self.temporary)
        owner, tail = self._handed_over(path, None)
        return owner, tail, aside

    _put(NewJournal, "replace", replace)


def cut_before_quarantine() -> None:
    """A torn tail is cut first, and then put aside."""

    def quarantine_and_cut(
        held: Disk, file: Any, found: Any, report: Any, tail: Any, folder: str, top: str
    ) -> None:
        del tail
        start, end = found.place.offset, found.source.size
        torn = file.pread(end - start, start)
        file.truncate(start)
        file.fdatasync()
        make_folders(held, folder, top)
        report.quarantine = os.path.join(folder, f"{start}.tail")
        with open(report.quarantine, "wb") as kept:
            kept.write(torn)
            os.fsync(kept.fileno())

    _put(opening, "_quarantine_and_cut", quarantine_and_cut)


def branch_not_written() -> None:
    """Moving to another entry is only remembered, until the next append."""
    append = JournalWriter.append
    moves: list[Record] = []

    def appended(self: JournalWriter, records: Sequence[Record]) -> list[Frame]:
        if all(record.kind == Kind.LEAF for record in records):
            moves[:] = records
            return []
        together = [*moves, *records]
        moves.clear()
        return append(self, together)[-len(records) :]

    _put(JournalWriter, "append", appended)


def copy_of_what_is_proven() -> None:
    """A copy leaves out the newest entries, which nothing has proven durable yet."""

    def records(self: JournalSource) -> Iterator[Record]:
        walk = Walk(self._source, self._journal_id, shared=self._shared)
        for frame, stored in walk.visible():
            if frame.sequence < self._proven_below:
                payload = self._shared.decoder.decode(frame, stored)
                yield Record(frame.kind, payload, frame.flags & KEPT_FLAGS)

    _put(JournalSource, "records", records)


def tombstone_at_the_end() -> None:
    """A deletion is noted when it is done."""
    held: dict[str, tuple[Store, Tombstone]] = {}
    write, rename = trash.write_tombstone, trash.rename_tombstone

    def written(held_disk: Disk, store: Store, path: str, tombstone: Tombstone) -> None:
        if path.endswith(".deleting"):
            held[path] = store, tombstone
        else:
            write(held_disk, store, path, tombstone)

    def renamed(held_disk: Disk, source: str, target: str) -> None:
        if source not in held:
            rename(held_disk, source, target)
            return
        store, tombstone = held.pop(source)
        write(held_disk, store, target, tombstone)

    _put(deleting, "write_tombstone", written)
    _put(deleting, "rename_tombstone", renamed)


PLANTS: Final[dict[str, tuple[Callable[[], None], tuple[str, ...]]]] = {
    "acknowledge-before-write": (acknowledge_before_write, ("writer",)),
    "tasks-told-before-write": (acknowledge_before_write, ("tasks",)),
    "batch-without-staging": (batch_without_staging, ("large",)),
    "branch-not-written": (branch_not_written, ("writer",)),
    "position-before-rows": (position_before_rows, ("writer",)),
    "lock-file": (lock_file, ("writer",)),
    "lock-ignored": (lock_ignored, ("rivals",)),
    "fork-keeps-lock": (fork_keeps_lock, ("forked",)),
    "name-before-content": (name_before_content, ("importer",)),
    "copy-of-what-is-proven": (copy_of_what_is_proven, ("copier",)),
    "deleted-beside-its-owner": (lock_ignored, ("deleter",)),
    "tombstone-at-the-end": (tombstone_at_the_end, ("deleter",)),
    "repair-in-place": (repair_in_place, ("repairer",)),
    "cut-before-quarantine": (cut_before_quarantine, ("recoverer",)),
}
"""The fault, and the actors whose rounds have to find it."""


def plant(name: str) -> None:
    """Put a fault into this process."""
    PLANTS[name][0]()
