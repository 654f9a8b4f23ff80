"""Flows after which something is there whole or not at all: create, import, export, repair."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final
from unittest import mock

from treering.engine.errors import Damaged, TreeringError, from_os_error
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import Disk, write_all
from treering.engine.journal.format import Kind
from treering.engine.journal.repair_modes import RepairMode
from treering.engine.session.readmission import readmit
from treering.engine.session.repairing import repair
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.engine.transfer import importing
from treering.engine.transfer.exporting import export_jsonl, jsonl_lines
from treering.engine.transfer.records import LocalSource
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.flows.world import (
    ADVISORY,
    EXISTS,
    PATH,
    STORE,
    SessionCheck,
    World,
    create_session,
    entry,
    make_ground,
    make_session,
    quarantined,
    run_verbs,
)
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.targets.native import framed

IMPORTED_PATH: Final = STORE.journal_path("seeded-1")
EXPORTED_PATH: Final = "/sim/exported.jsonl"
DAMAGED: Final = "damaged"
REPAIRED: Final = "repaired"
EXPORTED: Final = "exported"
LEFT_OUT: Final = "left out"
KEPT: Final = "kept"

_SOURCE_PATH: Final = "/imported/source.jsonl"
"""The path that an import notes, whatever the real one is: states must not differ by it."""

_HALF: Final = b'{"type":"custom","id":"half'
"""A line that a salvage leaves out."""


def ground(disk: SimDisk, ledger: Ledger) -> None:
    """Nothing but the folder in which a store will be made."""
    del ledger
    make_ground(disk)


def create(disk: Any, ledger: Ledger, _: object) -> None:
    """A new session, and one entry in it."""
    world = World(disk, ledger)
    world.make()
    world.append()
    world.close()


def relaxed_for_long(disk: Any, ledger: Ledger, _: object) -> None:
    """Many writes that no sync covers, and an owner that dies without one."""
    world = World(disk, ledger)
    world.make("os")
    for verb in (World.append, World.batch, World.large, World.append, World.sync, World.many):
        verb(world)
    world.append()
    world.kill()
    world.append()
    world.close()


def noted(disk: Any, ledger: Ledger, _: object) -> None:
    """Two owners, one after the other, whose notes can be lost, kept and torn."""
    run_verbs(World(disk, ledger), (World.append, World.kill, World.append))


def requests(disk: Any, ledger: Ledger, _: object) -> None:
    """Request records between entries."""
    world = World(disk, ledger)
    run_verbs(world, (World.append, World.request, World.append, World.request))


def readmitting(disk: Any, ledger: Ledger, _: object) -> None:
    """Entries of a cut tail are taken back, all or none."""
    world = World(disk, ledger)
    world.own()
    raws = [entry("back1"), entry("back2", parentId="back1")]
    assert world.session is not None
    with world.attempting(*raws, atomic=True):
        readmit(world.session, [Record(Kind.ENTRY, raw) for raw in raws])
    world.append()
    world.close()


@contextlib.contextmanager
def _source(lines: Sequence[bytes]) -> Iterator[str]:
    """A file to import, outside of the simulated disk. Its path is the same in every run."""

    def opened(path: str) -> LocalSource:
        source = LocalSource(path)
        source.path = _SOURCE_PATH
        return source

    with (
        tempfile.NamedTemporaryFile(suffix=".jsonl") as file,
        mock.patch.object(importing, "LocalSource", opened),
    ):
        file.write(b"".join(lines))
        file.flush()
        yield file.name


class Importing:
    """An import, which is there whole or not at all."""

    def __init__(
        self,
        entries: int,
        *,
        salvage: bool = False,
        dictionary: bool = False,
        native: bool = False,
    ) -> None:
        header = b'{"type":"session","version":3,"id":"old","timestamp":"2024-12-03T14:00:00.000Z"}'
        self.entries = [entry(f"i{n}", f"number {n * n} " * (n % 7)) for n in range(entries)]
        records = [header, *self.entries]
        self._lines = framed(records) if native else [record + b"\n" for record in records]
        if salvage:
            self._lines[2:2] = [_HALF + b"\n"]
        self._salvage = salvage
        self._dictionary_from = 1 if dictionary else 1 << 40

    def once(self, disk: Disk) -> str | None:
        """Do it; where the bytes are that were left out."""
        with (
            _source(self._lines) as path,
            mock.patch.object(importing, "DICTIONARY_FROM_JSON_BYTES", self._dictionary_from),
        ):
            done = importing.import_session(
                path, cwd="/w", home_dir=STORE.top, salvage=self._salvage, disk=disk
            )
        return done.quarantine

    def run(self, disk: Any, ledger: Ledger, _: object) -> None:
        """Tell the ledger. An error may come from the sync of a name that is there already."""
        with ledger.attempt(*self.entries, atomic=True, unknown=(TreeringError,)):
            left_out = self.once(disk)
        ledger.remember(EXISTS, True)
        ledger.remember(LEFT_OUT, left_out)

    def flow(self, name: str) -> Flow:
        """The flow of this import."""
        session = SessionCheck(IMPORTED_PATH, self.once, self.entries)

        def check(disk: SimDisk, expectation: Expectation) -> None:
            kept = expectation.fact(LEFT_OUT)
            if isinstance(kept, str) and _HALF not in disk.read_file(kept):
                raise Broken(f"what an import left out is {disk.read_file(kept)!r}")
            session(disk, expectation)

        return Flow(name, ground, self.run, check, ADVISORY)


def exporting(disk: Any, ledger: Ledger, _: object) -> None:
    """An export into a file that is there whole or not at all."""
    with Session.open(PATH, disk=disk) as session:
        export_jsonl(session, EXPORTED_PATH, disk=disk)
    ledger.remember(EXPORTED, True)


def check_export(disk: SimDisk, expectation: Expectation) -> None:
    """The file is whole where it is; the session is what it was."""
    if disk.exists(EXPORTED_PATH):
        with Session.open(PATH, disk=disk) as session:
            whole = b"".join(jsonl_lines(session))
        if disk.read_file(EXPORTED_PATH) != whole:
            raise Broken(f"half an export: {len(disk.read_file(EXPORTED_PATH))} bytes")
    elif expectation.fact(EXPORTED):
        raise Broken("the export is gone")
    SessionCheck()(disk, expectation)


def damaged(disk: SimDisk, ledger: Ledger) -> None:
    """A session with one bit flipped in the middle."""
    make_session(disk, ledger)
    world = World(disk, ledger)
    for _ in range(3):
        world.append("d" * 40)
    world.close()
    data = bytearray(disk.read_file(PATH))
    at = data.index(b'"n1"')
    data[at] ^= 1
    disk.open(PATH, write=True).pwrite(bytes(data), 0)
    items = ledger.expectation.acknowledged
    ledger.begin([item for item in items if item != entry("n1", "d" * 40)])
    ledger.remember(DAMAGED, bytes(data))


class Repairing:
    """Repair, and go on with what came out."""

    def __init__(self, mode: RepairMode) -> None:
        self._mode: RepairMode = mode
        self._repaired = SessionCheck()

    def prepare(self, disk: SimDisk, ledger: Ledger) -> None:
        """Damage in the middle; in mode ``prefix`` only what is before it will be there."""
        damaged(disk, ledger)
        if self._mode == "prefix":
            ledger.begin([entry("first")])

    def run(self, disk: Any, ledger: Ledger, _: object) -> None:
        """Repair once."""
        repair(PATH, mode=self._mode, disk=disk)
        ledger.remember(REPAIRED, True)
        world = World(disk, ledger, prefix="later")
        world.append()
        world.close()

    def run_unsynced(self, disk: Any, ledger: Ledger, _: object) -> None:
        """The last writer died in a write: the damaged journal ends in bytes that no sync covers.

        Once repaired these are what is kept aside, too, and must be there after a crash.
        """
        try:
            file = disk.open(PATH, write=True)
            size = file.stat().size
            write_all(file, b"torn" * 300, size)
            whole = file.pread(size + 1200, 0)
            file.close()
        except OSError as error:
            raise from_os_error(error, "write what no sync covers", PATH) from error
        repair(PATH, mode=self._mode, disk=disk)
        ledger.remember(KEPT, whole)

    def check_unsynced(self, disk: SimDisk, expectation: Expectation) -> None:
        """All of the damaged journal is kept."""
        kept = expectation.fact(KEPT)
        if kept is not None and not any(disk.read_file(p) == kept for p in quarantined(disk)):
            raise Broken("the damaged journal is not kept whole")
        with SessionView.open(PATH, disk=disk) as view:
            entries = sum(1 for _ in view.iter_entries())
        if entries < 1:
            raise Broken("no entry is left")

    def check(self, disk: SimDisk, expectation: Expectation) -> None:
        """The damaged journal as it was, or the repaired one whole with the old one kept."""
        if not disk.exists(PATH):
            raise Broken("the session is gone")
        damaged_bytes = expectation.fact(DAMAGED)
        if disk.read_file(PATH) == damaged_bytes:
            if expectation.fact(REPAIRED):
                raise Broken("the repair is undone")
            try:
                Session.open(PATH, disk=disk).close()
            except Damaged:
                repair(PATH, mode=self._mode, disk=disk)
            else:
                raise Broken("damage in the middle was not refused")
        if not any(disk.read_file(path) == damaged_bytes for path in quarantined(disk)):
            raise Broken("the damaged journal was not kept")
        self._repaired(disk, expectation)


def whole_flows() -> Iterator[Flow]:
    """All of them."""
    yield Flow("create", ground, create, SessionCheck(remake=create_session), ADVISORY)
    yield Flow("relaxed-for-long", ground, relaxed_for_long, SessionCheck(), ADVISORY)
    # The note that says who owns a session decides nothing, whatever is left of it.
    yield Flow("noted", make_session, noted, SessionCheck())
    yield Flow("requests", make_session, requests, SessionCheck(), ADVISORY)
    yield Flow("readmit", make_session, readmitting, SessionCheck(), ADVISORY)
    yield Importing(6).flow("import")
    yield Importing(5, salvage=True).flow("import-salvage")
    yield Importing(420, dictionary=True).flow("import-dictionary")
    yield Importing(6, native=True).flow("import-native")
    yield Flow("export", make_session, exporting, check_export, ADVISORY)
    modes: tuple[RepairMode, ...] = ("salvage", "prefix")
    for mode in modes:
        repairing = Repairing(mode)
        yield Flow(f"repair-{mode}", repairing.prepare, repairing.run, repairing.check, ADVISORY)
        yield Flow(
            f"repair-{mode}-unsynced",
            repairing.prepare,
            repairing.run_unsynced,
            repairing.check_unsynced,
            ADVISORY,
        )
