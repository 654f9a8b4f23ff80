"""Flows after which something is there whole or not at all: create, import, export, repair."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files
from typing import Any, Final

from treering.engine.errors import Damaged, TreeringError
from treering.engine.journal.disk import Disk
from treering.engine.session.repairing import repair
from treering.engine.session.session import Session
from treering.engine.transfer.exporting import export_jsonl, jsonl_lines
from treering.engine.transfer.importing import import_session
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.flows.world import (
    ADVISORY,
    EXISTS,
    PATH,
    SESSION_ID,
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

IMPORTED_PATH: Final = STORE.journal_path("seeded-1")
EXPORTED_PATH: Final = "/sim/exported.jsonl"
DAMAGED: Final = "damaged"
REPAIRED: Final = "repaired"
EXPORTED: Final = "exported"


def ground(disk: SimDisk, ledger: Ledger) -> None:
    """Nothing but the folder in which a store will be made."""
    del ledger
    make_ground(disk)


def create(disk: Any, ledger: Ledger, _: object) -> None:
    """A new session, and one entry in it."""
    world = World(disk, ledger)
    world.session = Session.create("/w", home_dir=STORE.top, session_id=SESSION_ID, disk=disk)
    ledger.remember(EXISTS, True)
    world.append()
    world.close()


def requests(disk: Any, ledger: Ledger, _: object) -> None:
    """Request records between entries."""
    world = World(disk, ledger)
    run_verbs(world, (World.append, World.request, World.append, World.request))


def _import(disk: Disk) -> list[bytes]:
    """Import a sample; the bytes of its entries."""
    with as_file(files("treering.tools") / "samples" / "tree-rings.jsonl") as source:
        import_session(source, cwd="/w", home_dir=STORE.top, disk=disk)
        return source.read_bytes().splitlines()[1:]


def importing(disk: Any, ledger: Ledger, _: object) -> None:
    """A small import."""
    sample = files("treering.tools") / "samples" / "tree-rings.jsonl"
    lines = sample.read_bytes().splitlines()[1:]
    with ledger.attempt(*lines, atomic=True, unknown=(TreeringError,)):
        _import(disk)
    ledger.remember(EXISTS, True)


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


def repairing(disk: Any, ledger: Ledger, _: object) -> None:
    """Repair, and go on with what came out."""
    repair(PATH, disk=disk)
    ledger.remember(REPAIRED, True)
    world = World(disk, ledger)
    world.append()
    world.close()


class RepairCheck:
    """The damaged journal as it was, or the repaired one whole with the old one kept."""

    def __init__(self) -> None:
        self._repaired = SessionCheck()

    def __call__(self, disk: SimDisk, expectation: Expectation) -> None:
        """Raise when it is neither, and when repairing (again) does not help."""
        if not disk.exists(PATH):
            raise Broken("the session is gone")
        damaged_bytes = expectation.fact(DAMAGED)
        if disk.read_file(PATH) == damaged_bytes:
            if expectation.fact(REPAIRED):
                raise Broken("the repair is undone")
            try:
                Session.open(PATH, disk=disk).close()
            except Damaged:
                repair(PATH, disk=disk)
            else:
                raise Broken("damage in the middle was not refused")
        if not any(disk.read_file(path) == damaged_bytes for path in quarantined(disk)):
            raise Broken("the damaged journal was not kept")
        self._repaired(disk, expectation)


def whole_flows() -> Iterator[Flow]:
    """All of them."""
    yield Flow("create", ground, create, SessionCheck(remake=create_session), ADVISORY)
    yield Flow("requests", make_session, requests, SessionCheck(), ADVISORY)
    yield Flow("import", ground, importing, SessionCheck(IMPORTED_PATH, _import), ADVISORY)
    yield Flow("export", make_session, exporting, check_export, ADVISORY)
    yield Flow("repair", damaged, repairing, RepairCheck(), ADVISORY)
