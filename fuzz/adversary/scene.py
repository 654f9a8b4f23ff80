"""A place for one trial: a copy of a sample in a store of its own, with an index made there."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from treering.engine import Session
from treering.engine.home import Store
from treering.fuzz.adversary.samples import Sample
from treering.index import files


@dataclass
class Target:
    """What an attack gets: the file to attack, room for files of its own, and other material."""

    index: str
    """Path of the current index file."""
    scratch: str
    """An existing folder outside the store."""
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    other: Callable[[], str] | None = None
    """Makes the index of another session and returns its path."""
    older: bytes = b""
    """What the index file held at the earlier clean end of its journal."""
    older_wal: bytes = b""
    """A ``-wal`` of the same file from between the two ends."""
    journal: str = ""
    earlier: int = 0

    @property
    def folder(self) -> str:
        """The folder of the index file."""
        return os.path.dirname(self.index)

    @property
    def session_id(self) -> str:
        """The session that the index belongs to."""
        return os.path.basename(self.index).rsplit(".", 2)[0]

    def read(self) -> bytes:
        """The bytes of the index file."""
        return Path(self.index).read_bytes()

    def overwrite(self, data: bytes) -> None:
        """Give the index file, which keeps its inode, these bytes."""
        with open(self.index, "r+b") as file:
            file.write(data)
            file.truncate()


class Scene:
    """A store with one session. Its index grew with the journal, in one file."""

    def __init__(self, folder: str, sample: Sample, other: Sample, seed: int) -> None:
        self.sample = sample
        self.top = folder
        self.store = Store.at(os.path.join(folder, "home"))
        self.path = self.store.journal_path(sample.session_id)
        os.makedirs(self.store.sessions)
        scratch = os.path.join(folder, "scratch")
        os.makedirs(scratch)
        self._other = other
        write(self.path, b"")
        self._grow_to(sample.earlier)
        index = self.index_file()
        older = Path(index).read_bytes()
        wal = self._grow_to(sample.middle)
        self._grow_to(len(sample.journal))
        self.target = Target(
            index,
            scratch,
            random.Random(seed),
            self._make_other,
            older,
            wal,
            self.path,
            sample.earlier,
        )

    def _grow_to(self, size: int) -> bytes:
        """Let the journal be so long, bring the index up; returns what its ``-wal`` held."""
        with open(self.path, "r+b") as file:
            file.write(self.sample.journal[:size])
        with Session.open(self.path) as session:
            session.ask(lambda index: index.position())
            if session.index_faults:
                raise AssertionError(f"a scene begins with faults: {session.index_faults}")
            return Path(self.index_file() + "-wal").read_bytes()

    def index_file(self) -> str:
        """The current index file."""
        path = files.current(self.store.index, self.sample.session_id)
        if path is None:
            raise AssertionError("there is no index file")
        return path

    def _make_other(self) -> str:
        store = Store.at(os.path.join(self.top, "other"))
        path = store.journal_path(self._other.session_id)
        if not os.path.exists(path):
            os.makedirs(store.sessions)
            write(path, self._other.journal)
        with Session.open(path) as session:
            session.ask(lambda index: index.position())
        made = files.current(store.index, self._other.session_id)
        if made is None:
            raise AssertionError("the other session has no index file")
        return made

    def leave_folder_usable(self) -> None:
        """Undo what only a person can undo: a folder that is none, or may not be written."""
        folder = self.store.index
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                os.unlink(folder)
            else:
                os.chmod(folder, 0o700)

    def without_index(self) -> str:
        """A copy of the journal in a store without any index; returns its path."""
        store = Store.at(os.path.join(self.top, "bare"))
        os.makedirs(store.sessions, exist_ok=True)
        return shutil.copyfile(self.path, store.journal_path(self.sample.session_id))

    def remove(self) -> None:
        """Everything of it."""
        self.leave_folder_usable()
        shutil.rmtree(self.top)


def write(path: str, data: bytes) -> None:
    """Make these bytes the file."""
    Path(path).write_bytes(data)
