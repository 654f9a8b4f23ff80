"""What every flow of Treering needs: a store on a simulated disk, and the promises about it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final

from treering.engine.errors import OutcomeUnknown, Poisoned, TreeringError, from_os_error
from treering.engine.home import Store, session_id_of
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import Disk
from treering.engine.journal.format import FILE_HEADER_BYTES, Kind, salt_of
from treering.engine.journal.history import Walk
from treering.engine.journal.opening import Opened, open_for_writing
from treering.engine.journal.reader import FileBytes, search
from treering.engine.journal.writer import JournalWriter
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.fuzz.explorer import Broken
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

STORE: Final = Store.at("/sim/home")
"""A store that is nowhere on the real system: its index lives in memory."""

SESSION_ID: Final = "s1"
PATH: Final = STORE.journal_path(SESSION_ID)

ADVISORY: Final = (".owner.json",)
"""Nothing is ever decided by the note that says who owns a session."""

EXISTS: Final = "exists"
"""The fact that the session was published, or must still be there."""


def entry(name: str, text: str = "", **more: object) -> bytes:
    """The bytes of an entry that is admitted as it is."""
    value = {
        "type": "custom",
        "id": name,
        "parentId": None,
        "timestamp": "2024-12-03T14:00:00.000Z",
        "customType": "flow",
        "data": text,
        **more,
    }
    return json.dumps(value, separators=(", ", ":")).encode()


def moved(leaf: str | None) -> Hashable:
    """The item of a durable move of the current position."""
    return ("leaf", leaf)


def make_ground(disk: Disk) -> None:
    """The folder in which the home of the store will be made."""
    disk.make_folder("/sim")


def make_session(disk: SimDisk, ledger: Ledger) -> None:
    """A published session with one entry, closed."""
    make_ground(disk)
    with Session.create("/w", home_dir=STORE.top, session_id=SESSION_ID, disk=disk) as session:
        session.append(entry("first"))
    ledger.begin([entry("first")])
    ledger.remember(EXISTS, True)


class World:
    """One owner of the session, its ledger, and the verbs that flows are made of."""

    def __init__(self, disk: Disk, ledger: Ledger, *, prefix: str = "n") -> None:
        self.disk = disk
        self.ledger = ledger
        self._prefix = prefix
        self.session: Session | None = None
        self._count = 0
        self._names: list[str] = []

    def own(self, durability: Any = "full", *, power_failed: bool = False) -> Session:
        """Open the session. What it holds from now on is what must be there.

        Unless the power failed before, that is everything that was acknowledged in any way.
        """
        self.session = Session.open(PATH, durability=durability, disk=self.disk)
        found = items_of(self.session.source, self.session.journal_id)
        self.ledger.observe(found, power_failed=power_failed)
        return self.session

    def make(self, durability: Any = "full") -> Session:
        """Create the session. Its maker knows all of its ids, and never syncs to look one up."""
        self.session = Session.create(
            "/w", home_dir=STORE.top, session_id=SESSION_ID, durability=durability, disk=self.disk
        )
        self.ledger.remember(EXISTS, True)
        return self.session

    def owned(self) -> Session:
        """The open session."""
        return self.session or self.own()

    def close(self) -> None:
        """Close it cleanly."""
        session, self.session = self.session, None
        if session is not None:
            session.close()
            self.ledger.settle()

    def die(self) -> None:
        """The process ends without a word; what it wrote stays in the cache."""
        session, self.session = self.session, None
        if session is not None:
            session._writer.owner.file.close()

    def attempting(self, *items: Hashable, atomic: bool = False) -> Any:
        """An attempt as the engine's errors have it."""
        durable = self.session is None or self.session._writer.durability == "full"
        return self.ledger.attempt(
            *items,
            atomic=atomic,
            durable=durable,
            unknown=(OutcomeUnknown,),
            refusals=(TreeringError,),
        )

    def fresh(self, text: str = "") -> bytes:
        """An entry that nobody has appended."""
        self._count += 1
        self._names.append(f"{self._prefix}{self._count}")
        return entry(self._names[-1], text)

    # Verbs

    def append(self, text: str = "") -> None:
        """One entry."""
        session, raw = self.owned(), self.fresh(text)
        with self.attempting(raw):
            session.append(raw)

    def large(self) -> None:
        """One entry over several sectors, compressed."""
        self.append("".join(f"{n * 2654435761 % 4294967296:08x}" for n in range(900)))

    def many(self, text: str = "m" * 200) -> None:
        """Three entries with one sync."""
        session, raws = self.owned(), [self.fresh(text) for _ in range(3)]
        with self.attempting(*raws):
            session.append_many(raws)

    def batch(self, text: str = "b" * 150) -> None:
        """Two entries, both or none."""
        session, raws = self.owned(), [self.fresh(text) for _ in range(2)]
        with self.attempting(*raws, atomic=True), session.batch() as batch:
            for raw in raws:
                batch.append(raw)

    def request(self) -> None:
        """A request record: it moves no position."""
        session, raw = self.owned(), entry(f"q{self._count}", type="request", request={})
        with self.attempting(raw):
            session.append(raw)

    def branch(self) -> None:
        """Back to the first entry."""
        session = self.owned()
        with self.attempting(moved("first")):
            session.branch_to("first")

    def reopen(self) -> None:
        """Close and open."""
        self.owned()
        self.close()
        self.own()

    def kill(self) -> None:
        """Die and open."""
        self.owned()
        self.die()
        self.own()

    def relaxed(self) -> None:
        """An entry whose acknowledgement does not wait for a sync."""
        if self.session is not None and self.session._writer.durability != "os":
            self.close()
        if self.session is None:
            self.own("os")
        self.append("r" * 100)

    def sync(self) -> None:
        """Make everything durable."""
        self.owned().sync()
        self.ledger.settle()

    def recover(self) -> None:
        """What a user does after an outcome that nobody knows."""
        session = self.owned()
        session.recover()
        self.ledger.observe(items_of(session.source, session.journal_id))


VERBS: Final[dict[str, Callable[[World], None]]] = {
    "append": World.append,
    "many": World.many,
    "batch": World.batch,
    "branch": World.branch,
    "reopen": World.reopen,
    "kill": World.kill,
    "relaxed": World.relaxed,
    "sync": World.sync,
}


def run_verbs(world: World, verbs: Sequence[Callable[[World], None]]) -> None:
    """One verb after the other, going on after errors as the documentation tells users to."""
    for verb in verbs:
        try:
            verb(world)
        except (OutcomeUnknown, Poisoned):
            world.recover()
    world.close()


def items_of(source: FileBytes, journal_id: bytes) -> list[Hashable]:
    """What a reader is shown: the bytes of entries and the moves of the position, in order."""
    walk = Walk(source, journal_id)
    found: list[Hashable] = []
    for frame, stored in walk.visible():
        payload = walk.history.shared.decoder.decode(frame, stored)
        if frame.kind == Kind.LEAF:
            leaf = control.decode_leaf(payload)
            if leaf is None:
                raise Broken(f"LEAF frame {frame.sequence} has the payload {payload!r}")
            found.append(moved(leaf.leaf))
        else:
            found.append(payload)
    return found


def open_journal(disk: Disk, path: str = PATH) -> tuple[Opened, list[Hashable]]:
    """Own the journal as the engine does, and read what it shows."""
    quarantine = STORE.quarantine_folder(session_id_of(path))
    opened = open_for_writing(disk, path, top=STORE.top, quarantine_folder=quarantine)
    try:
        size = opened.owner.file.stat().size
    except OSError as error:
        raise from_os_error(error, "look at the journal", path) from error
    source = FileBytes(opened.owner.file, path, size)
    return opened, items_of(source, opened.tail.journal_id)


def quarantined(disk: SimDisk, session_id: str = SESSION_ID) -> Iterator[str]:
    """Paths of what was kept for the session."""
    folder = STORE.quarantine_folder(session_id)
    if disk.exists(folder):
        for name in disk.list_folder(folder):
            yield f"{folder}/{name}"


def create_session(disk: Disk) -> None:
    """Make the session of most flows, and close it."""
    Session.create("/w", home_dir=STORE.top, session_id=SESSION_ID, disk=disk).close()


class SessionCheck:
    """Promises 1 to 3 about one session, after any crash."""

    def __init__(
        self,
        path: str = PATH,
        remake: Callable[[SimDisk], object] = create_session,
        remade: Sequence[Hashable] = (),
    ) -> None:
        self._path = path
        self._remake = remake
        """Does once more what was interrupted before the session was there."""
        self._remade = list(remade)
        """What the session holds then."""
        self._seen: set[int] = set()

    def __call__(self, disk: SimDisk, expectation: Expectation) -> None:
        """Raise Broken (or whatever the engine raised) when one does not hold."""
        if not disk.exists(self._path):
            if expectation.fact(EXISTS):
                raise Broken("the session is gone")
            self._remake(disk)
            _, found = open_journal(SimDisk(disk.volume.lost()), self._path)
            if found != self._remade:
                raise Broken(f"made once more it holds {_named(found)}")
            return
        before = disk.read_file(self._path)
        viewed = self._view(disk, before)
        opened, found = open_journal(disk, self._path)
        _compare(found, expectation)
        if viewed is not None and viewed != [item for item in found if isinstance(item, bytes)]:
            raise Broken(f"a view shows {len(viewed)} entries, its owner {_named(found)}")
        cut = _check_cut(disk, before, disk.read_file(self._path), opened)
        self._check_session(disk, found)
        _check_next_append(disk, opened, found, cut)

    def _view(self, disk: SimDisk, before: bytes) -> list[bytes] | None:
        """What a reader shows that owns nothing, changes nothing; of every fourth journal."""
        if zlib.crc32(before) % 4:
            return None
        changes: list[str] = []
        disk.observer = changes.append
        with SessionView.open(self._path, disk=disk) as view:
            shown = [one.raw for one in view.iter_entries()]
        disk.observer = None
        if changes:
            raise Broken(f"looking changed the disk: {changes[0]}")
        return shown

    def _check_session(self, disk: SimDisk, found: list[Hashable]) -> None:
        """The same through the front door; once for each outcome of recovery."""
        outcome = disk.read_file(self._path)
        key = hash((outcome, tuple(found)))
        if key in self._seen:
            return
        self._seen.add(key)
        again = SimDisk()
        for folder in ("/sim", STORE.top, STORE.sessions):
            again.make_folder(folder)
        again.create(self._path).pwrite(outcome, 0)
        again.volume.settle()
        with Session.open(self._path, disk=again) as session:
            shown = [one.raw for one in session.iter_entries()]
            if shown != [item for item in found if isinstance(item, bytes)]:
                raise Broken(f"a session shows {len(shown)} other entries than its journal")
            leaf = leaf_after(found)
            if session.leaf_id != leaf:
                raise Broken(f"the position is {session.leaf_id!r}, not {leaf!r}")
            raw = entry("through-the-front")
            session.append(raw)
            if session.read("through-the-front").raw != raw:
                raise Broken("the next entry does not read back")


def leaf_after(items: Sequence[Hashable]) -> str | None:
    """The position behind the last item that moves it."""
    for item in reversed(items):
        if isinstance(item, bytes):
            value = json.loads(item)
            if value["type"] == "request":
                continue
            name: str | None = value["id"]
            return name
        if isinstance(item, tuple) and item[0] == "leaf":
            leaf: str | None = item[1]
            return leaf
    return None


def _compare(found: list[Hashable], expectation: Expectation) -> None:
    if tuple(found) not in expectation.allowed():
        raise Broken(
            f"found {_named(found)}; acknowledged are {_named(expectation.acknowledged)},"
            f" in flight {[_named(attempt.items) for attempt in expectation.pending]}"
        )


def _named(items: Sequence[Hashable]) -> list[Hashable]:
    names: list[Hashable] = []
    for item in items:
        names.append(json.loads(item).get("id") if isinstance(item, bytes) else item)
    return names


def _check_cut(disk: SimDisk, before: bytes, after: bytes, opened: Opened) -> bytes:
    """Only a tail may be gone, and its bytes are in quarantine; returns them."""
    if before[: len(after)] != after:
        raise Broken("opening changed bytes of the journal")
    cut = before[len(after) :]
    if not cut:
        return cut
    kept = opened.report.quarantine
    if kept is None or disk.read_file(kept) != cut:
        raise Broken(f"{len(cut)} bytes were cut and are not in quarantine ({kept})")
    if opened.report.quarantined_bytes != len(cut):
        raise Broken(f"{len(cut)} bytes were cut, the report says otherwise: {opened.report}")
    _check_epoch(before, opened)
    return cut


def _check_epoch(before: bytes, opened: Opened) -> None:
    """The next epoch is a new one, though the last one may be among the bytes that were cut."""
    disk = SimDisk()
    file = disk.create("/before")
    file.pwrite(before, 0)
    source = FileBytes(file, "/before", len(before))
    for frame in search(source, salt_of(opened.tail.journal_id), FILE_HEADER_BYTES, 0):
        if frame.epoch >= opened.tail.epoch:
            raise Broken(f"epoch {opened.tail.epoch} is next; frame {frame.sequence} had it")


def _check_next_append(disk: SimDisk, opened: Opened, found: list[Hashable], cut: bytes) -> None:
    """The next append is whole and survives the worst crash after its acknowledgement."""
    raw = entry("next")
    JournalWriter(opened.owner, opened.tail).append([Record(Kind.ENTRY, raw)])
    worst = SimDisk(disk.volume.lost())
    kept = opened.report.quarantine
    if kept is not None and not (worst.exists(kept) and worst.read_file(kept) == cut):
        raise Broken("the journal was cut and its tail is not durable in quarantine")
    _, later = open_journal(worst, opened.owner.path)
    if later != [*found, raw]:
        raise Broken(f"after the next append and a crash: {_named(later)}, not {_named(found)}")
