"""Flows of the index: built, caught up, set aside; journal and index files lost in any mixture.

Whatever a crash leaves of the index, a session opens, answers as its journal alone would, and
goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any
from unittest import mock

from treering.engine.home import Store
from treering.engine.session import indexing
from treering.engine.session.session import Session
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.flows.world import (
    ADVISORY,
    EXISTS,
    SESSION_ID,
    entry,
    leaf_after,
    open_journal,
)
from treering.fuzz.index_mirror import Mirror, folders_of, mirrored
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

ENTRIES = 30
MADE = "made"
"""How many entries were acknowledged that the engine makes, so that no ledger knows their bytes."""


class IndexStage:
    """A mirrored store, entered once for the recording and all the checks of a flow."""

    def __init__(self) -> None:
        self._mirror: Mirror | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Where index files are mirrored."""
        if self._mirror is not None:
            yield
            return
        with mirrored() as mirror:
            self._mirror = mirror
            try:
                yield
            finally:
                self._mirror = None

    @property
    def mirror(self) -> Mirror:
        """The mirror of this stage."""
        assert self._mirror is not None, "the stage was not entered"
        return self._mirror

    @property
    def store(self) -> Store:
        """The store of the flow."""
        return Store.at(self.mirror.top)

    @property
    def path(self) -> str:
        """The journal."""
        return self.store.journal_path(SESSION_ID)

    def prepare(self, disk: SimDisk, ledger: Ledger) -> None:
        """A session of 30 entries in a small tree, with an index."""
        for folder in folders_of(self.mirror.top):
            disk.make_folder(folder)
        self.mirror.attach(disk)
        items: list[Hashable] = []
        with Session.create(
            "/w", home_dir=self.mirror.top, session_id=SESSION_ID, disk=disk
        ) as session:
            for number in range(ENTRIES):
                parent = None if number == 0 else f"e{(number - 1) // 2}"
                raw = entry(f"e{number}", "t" * (number * 7 % 90), parentId=parent)
                session.append(raw)
                items.append(raw)
        ledger.begin(items)
        ledger.remember(EXISTS, True)

    def prepare_bare(self, disk: SimDisk, ledger: Ledger) -> None:
        """The same without any index file."""
        self.prepare(disk, ledger)
        for name in disk.list_folder(self.mirror.index):
            disk.unlink(f"{self.mirror.index}/{name}")
        self.mirror.attach(disk)

    def prepare_bad(self, disk: SimDisk, ledger: Ledger) -> None:
        """The same with an index whose last page is garbage."""
        self.prepare(disk, ledger)
        for name in disk.list_folder(self.mirror.index):
            if name.endswith(".sqlite3"):
                node = disk.volume.file(f"{self.mirror.index}/{name}")
                node.write(b"\xa5" * 512, len(node.data) - 4096)
        self.mirror.attach(disk)

    # Runs

    def append_and_close(self, disk: Any, ledger: Ledger, _: object) -> None:
        """Open, append, look, close: the index follows in between and at the end."""
        session = Session.open(self.path, disk=disk)
        for number in range(4):
            raw = entry(f"x{number}", parentId="e3")
            with ledger.attempt(raw):
                session.append(raw)
            if number == 1:
                session.read("x1")
                session.children("e3")
        session.set_label("e5", "here")
        ledger.remember(MADE, 1)
        session.close()

    def build(self, disk: Any, ledger: Ledger, _: object) -> None:
        """A whole build into a new file, published, the older generations removed."""
        with mock.patch.object(indexing, "BULK_BUILD_BYTES", 1):
            session = Session.open(self.path, disk=disk)
            session.read("e7")
        raw = entry("x0", parentId="e3")
        with ledger.attempt(raw):
            session.append(raw)
        session.close()

    def relaxed(self, disk: Any, ledger: Ledger, _: object) -> None:
        """Acknowledged before it is synced; reads make it durable, and only then index it."""
        session = Session.open(self.path, durability="os", disk=disk)
        for number in range(3):
            raw = entry(f"x{number}", parentId="e3")
            with ledger.attempt(raw, durable=False):
                session.append(raw)
        session.read("x0")
        ledger.settle()
        raw = entry("x9", parentId="e3")
        with ledger.attempt(raw, durable=False):
            session.append(raw)
        session.sync()
        ledger.settle()
        session.set_name("late")  # an id of the engine's own: looking one up would sync
        assert session._writer.synced_size > session._indexer.covered_size, "nothing to index"
        assert session._writer.dirty, "there is nothing that a sync does not cover"
        # What the background does when an append comes between its sync and its pass.
        session._index_in_background()
        session.close()
        ledger.remember(MADE, 1)
        ledger.settle()

    # The check

    def check(self, disk: SimDisk, expectation: Expectation) -> None:
        """The answers with what is left of the index are those of the journal alone."""
        opened, items = open_journal(SimDisk(disk.volume.cached()), self.path)
        opened.owner.release()
        if tuple(items) not in _with_made(expectation, items):
            raise Broken(f"the journal holds {len(items)} items, which may not be")
        raws = [item for item in items if isinstance(item, bytes)]
        if expectation.fact(MADE) and not any(map(_is_made, raws)):
            raise Broken("the label or the name is gone")
        self.mirror.attach(disk)
        self._compare(disk, raws)
        self._compare(disk, [*raws, entry("next", parentId="e1")])

    def _compare(self, disk: SimDisk, raws: Sequence[bytes]) -> None:
        with Session.open(self.path, disk=disk) as session:
            shown = list(session.iter_entries())
            if [one.raw for one in shown] != list(raws):
                raise Broken(f"{len(shown)} entries are shown, not {len(raws)}")
            for one in shown[:: max(1, len(shown) // 6)]:
                assert one.id is not None
                if session.read(one.id).raw != one.raw:
                    raise Broken(f"entry {one.id} reads as another")
            children = [one.raw for one in session.children("e3")]
            if children != [raw for raw in raws if b'"parentId":"e3"' in raw]:
                raise Broken(f"{len(children)} children of e3")
            path = [one.raw for one in session.branch("e22")]
            if [one for one in raws if one in path] != path or len(path) != 5:
                raise Broken(f"a path of {len(path)} entries")
            if session.leaf_id != leaf_after(raws):
                raise Broken(f"the position is {session.leaf_id!r}, not {leaf_after(raws)!r}")
            if session.label("e5") != ("here" if any(map(_is_label, raws)) else None):
                raise Broken(f"the label of e5 is {session.label('e5')!r}")
            if session.counts()["entries"] != len(raws):
                raise Broken(f"the counts are {session.counts()} of {len(raws)} entries")
            if not any(b'"id":"next"' in raw for raw in raws):
                session.append(entry("next", parentId="e1"))


def _with_made(expectation: Expectation, items: Sequence[Hashable]) -> set[tuple[Hashable, ...]]:
    """What may be found: of what the engine makes the bytes are taken as found, at the end."""
    made = tuple(item for item in items if isinstance(item, bytes) and _is_made(item))
    allowed = expectation.allowed()
    return allowed | {(*found, *made) for found in allowed}


def _is_label(raw: bytes) -> bool:
    return b'"type":"label"' in raw


def _is_made(raw: bytes) -> bool:
    return _is_label(raw) or b'"type":"session_info"' in raw


def indexed_flows() -> Iterator[Flow]:
    """All of them, each on a stage of its own."""
    for name, prepare, run in (
        ("index-catch-up", IndexStage.prepare, IndexStage.append_and_close),
        ("index-first", IndexStage.prepare_bare, IndexStage.append_and_close),
        ("index-set-aside", IndexStage.prepare_bad, IndexStage.append_and_close),
        ("index-build", IndexStage.prepare_bare, IndexStage.build),
        ("index-relaxed", IndexStage.prepare, IndexStage.relaxed),
    ):
        yield _indexed(name, prepare, run)


def _indexed(
    name: str,
    prepare: Callable[[IndexStage, SimDisk, Ledger], None],
    run: Callable[[IndexStage, Any, Ledger, object], None],
) -> Flow:
    stage = IndexStage()
    return Flow(
        name,
        lambda disk, ledger: prepare(stage, disk, ledger),
        lambda disk, ledger, prepared: run(stage, disk, ledger, prepared),
        stage.check,
        ADVISORY,
        stage.entered,
    )
