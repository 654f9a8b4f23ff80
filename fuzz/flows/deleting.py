"""Flows that delete sessions, bring them back and purge them: whole in one place, whatever happens.

A crash may leave a deletion half done on the disk. What a list shows at once must be whole all the
same, and whatever goes on with it must make it whole in one place or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, Final

from treering.engine.errors import Conflict, NotFound
from treering.engine.journal.disk import Disk
from treering.engine.session.deleting import (
    delete_session,
    finish_deletions,
    list_deleted,
    purge_deleted,
    undelete_session,
)
from treering.engine.session.session import Session
from treering.engine.session.trash import Places, hidden_ids
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.faulty_disk import SYNCS, WRITES, FaultyDisk
from treering.fuzz.flows.indexed import IndexStage
from treering.fuzz.flows.interrupted import DyingDisk, Killed
from treering.fuzz.flows.world import ADVISORY, PATH, SESSION_ID, STORE, SessionCheck, World
from treering.fuzz.flows.world import make_session as make_bare_session
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.seeded import SeededEnvironment
from treering.fuzz.simdisk import SimDisk
from treering.fuzz.volume import FileNode

STATE: Final = "state"
"""The fact that says where the session may be: ``there``, ``deleted``, ``purged``."""

JOURNAL: Final = "journal"
"""The fact that holds the bytes of the journal."""

_PLACES: Final = Places(STORE, SESSION_ID)

_ARTIFACTS: Final[dict[str, bytes]] = {
    "tool.log": b"output of a tool",
    "deep/er/note": b"n" * 700,
    "quarantine/1-0.tail": b"torn",
}

Step = Callable[[Disk, Ledger], None]


def make_session(disk: SimDisk, ledger: Ledger) -> None:
    """A closed session with artifacts."""
    make_bare_session(disk, ledger)
    for name, data in _ARTIFACTS.items():
        _make(disk, f"{_PLACES.artifacts}/{name}", data)
    ledger.remember(JOURNAL, disk.read_file(PATH))
    ledger.remember(STATE, ("there",))


def _make(disk: SimDisk, path: str, data: bytes) -> None:
    parts = path.split("/")
    for count in range(2, len(parts)):
        folder = "/".join(parts[:count])
        if not disk.exists(folder):
            disk.make_folder(folder)
    disk.create(path).pwrite(data, 0)


def _attempt(ledger: Ledger, state: str, act: Callable[[], object]) -> None:
    """From now on it may be in that state as well; when it returned, it must be."""
    before = ledger.expectation.fact(STATE)
    assert isinstance(before, tuple)
    ledger.remember(STATE, (*before, state))
    act()
    ledger.remember(STATE, (state,))


def delete(disk: Disk, ledger: Ledger) -> None:
    """Delete the session."""
    _attempt(ledger, "deleted", lambda: delete_session(PATH, disk=disk))


def undelete(disk: Disk, ledger: Ledger) -> None:
    """Bring it back."""
    _attempt(ledger, "there", lambda: undelete_session(STORE, SESSION_ID, disk=disk))


def purge(disk: Disk, ledger: Ledger) -> None:
    """Remove its bytes."""
    _attempt(ledger, "purged", lambda: purge_deleted(STORE, SESSION_ID, disk=disk))


def finish(disk: Disk, ledger: Ledger) -> None:
    """Finish what was begun; it decides nothing else."""
    del ledger
    finish_deletions(STORE, disk=disk)


def open_it(disk: Disk, ledger: Ledger) -> None:
    """Open it and append, where it is there; opening finishes what was begun."""
    try:
        session = Session.open(PATH, disk=disk)
    except NotFound:
        ledger.remember(STATE, ("deleted",))
        return
    ledger.remember(STATE, ("there",))
    ledger.remember(JOURNAL, None)  # from now on the ledger knows what is in it
    with session:
        world = World(disk, ledger, prefix="later")
        world.session = session
        world.append()


STEPS: Final[dict[str, Step]] = {
    "delete": delete,
    "undelete": undelete,
    "purge": purge,
    "finish": finish,
    "open": open_it,
}


class DeletionCheck:
    """The session is whole in one place, and goes on from there."""

    def __init__(self) -> None:
        self._session = SessionCheck()

    def __call__(self, disk: SimDisk, expectation: Expectation) -> None:
        """Raise when a promise is broken."""
        journal, allowed = expectation.fact(JOURNAL), expectation.fact(STATE)
        assert isinstance(allowed, tuple)
        if disk.exists(PATH) and SESSION_ID not in hidden_ids(STORE, disk):
            _check_whole(disk, journal, "shown by a list")
        finished = finish_deletions(STORE, disk=disk)
        if finished.left:
            raise Broken(f"what was begun cannot be finished: {finished.left}")
        # What another process left finished in the cache must not be undone by the next crash.
        for now in (SimDisk(disk.volume.lost()), disk) if finished.done else (disk,):
            found = _state(now, journal)
            if found not in allowed:
                raise Broken(f"the session is {found}, which is none of {allowed}")
        if found == "deleted":
            _check_deleted(disk)
            undelete_session(STORE, SESSION_ID, disk=disk)
            disk = SimDisk(disk.volume.lost())
            if _state(disk, journal) != "there":
                raise Broken("brought back, the session does not survive a crash")
        if found != "purged":
            self._session(disk, expectation)
            disk.drop_all_locks()
            _delete_for_good(disk)


def _delete_for_good(disk: SimDisk) -> None:
    """Once more, each acknowledgement followed by the worst crash."""
    delete_session(PATH, disk=disk)
    disk = SimDisk(disk.volume.lost())
    if _state(disk, None) != "deleted":
        raise Broken("deleted, the session does not stay so")
    purge_deleted(STORE, SESSION_ID, disk=disk)
    disk = SimDisk(disk.volume.lost())
    if _state(disk, None) != "purged":
        raise Broken("purged, the session does not stay so")


def _check_deleted(disk: SimDisk) -> None:
    (deleted,) = list_deleted(STORE, disk=disk)
    if (deleted.id, deleted.purged_ms, deleted.under_way) != (SESSION_ID, None, None):
        raise Broken(f"the trash lists {deleted}")
    if deleted.deleted_ms is None:
        raise Broken("the tombstone does not say when")
    try:
        Session.create("/w", home_dir=STORE.top, session_id=SESSION_ID, disk=disk)
    except Conflict:
        return
    raise Broken("a session of the deleted id was made")


def _state(disk: SimDisk, journal: Hashable) -> str:
    """Where the session is; it must be whole, and nothing of it anywhere else."""
    names = {name for name in _names(disk, STORE.top) if not name.endswith((".json", ".new"))}
    trashed = {name for name in names if name.startswith(STORE.trash)}
    places = (_PLACES.trashed_journals[0], _PLACES.trashed_artifacts[0])
    if disk.exists(PATH):
        if trashed:
            raise Broken(f"the session is there, and in the trash are {sorted(trashed)}")
        _check_whole(disk, journal, "there")
        return "there"
    if names - trashed:
        raise Broken(f"outside of the trash are {sorted(names - trashed)}")
    if not trashed:
        return "purged" if disk.exists(_PLACES.tombstone) else "nowhere"
    _check_whole(disk, journal, "deleted", *places)
    if not disk.exists(_PLACES.tombstone):
        raise Broken("there is no tombstone")
    return "deleted"


def _check_whole(
    disk: SimDisk,
    journal: Hashable,
    what: str,
    path: str = PATH,
    artifacts: str = _PLACES.artifacts,
) -> None:
    if journal is not None and disk.read_file(path) != journal:
        raise Broken(f"the journal that is {what} is another one")
    found = {
        name[len(artifacts) + 1 :]: disk.read_file(name)
        for name in (_names(disk, artifacts) if disk.exists(artifacts) else ())
    }
    found = {name: data for name, data in found.items() if name in _ARTIFACTS}
    if found != _ARTIFACTS:
        raise Broken(f"of the artifacts of the session that is {what} there are {sorted(found)}")


def _names(disk: SimDisk, folder: str) -> Iterator[str]:
    """Paths of all files below a folder."""
    for name in disk.list_folder(folder):
        path = f"{folder}/{name}"
        if isinstance(disk.volume.find(path), FileNode):
            yield path
        else:
            yield from _names(disk, path)


def _prepared(names: tuple[str, ...]) -> Callable[[SimDisk, Ledger], None]:
    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        make_session(disk, ledger)
        for name in names:
            STEPS[name](disk, ledger)

    return prepare


def deletion_flow(name: str, before: tuple[str, ...], steps: tuple[str, ...]) -> Flow:
    """The flow of some steps, after others that are durable."""

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        for step in steps:
            STEPS[step](disk, ledger)

    return Flow(name, _prepared(before), run, DeletionCheck(), ADVISORY)


FIRST: Final[dict[str, tuple[str, ...]]] = {
    "delete": (),
    "undelete": ("delete",),
    "purge": ("delete",),
}
"""What a process is killed in, and what was done before."""

NEXT: Final[dict[str, tuple[str, ...]]] = {
    "delete": ("finish", "delete", "undelete", "open"),
    "undelete": ("finish", "delete", "undelete", "open"),
    "purge": ("finish", "purge"),
}
"""What another one does then."""


@cache
def changes_of(first: str) -> int:
    """How many operations of a step change something or sync it."""
    disk, ledger = SimDisk(), Ledger()
    with SeededEnvironment(0):
        _prepared(FIRST[first])(disk, ledger)
        counted = FaultyDisk(disk)
        STEPS[first](counted, ledger)
    return sum(op.name in WRITES or op.name in SYNCS for op in counted.log)


def killed_deletion_flow(name: str) -> Flow:
    """``killed-delete:AT:NEXT``: a process dies at its AT-th change, the next one goes on.

    Raises:
        KeyError: there is none of that name.
    """
    kind, at, after = name.split(":")
    first = kind.removeprefix("killed-")
    if after not in NEXT[first]:
        raise KeyError(name)

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        try:
            STEPS[first](DyingDisk(disk, int(at)), ledger)
        except Killed:
            disk.drop_all_locks()
        try:
            STEPS[after](disk, ledger)
        except NotFound:
            pass  # to delete or bring back what the first one had not yet, or had already

    return Flow(name, _prepared(FIRST[first]), run, DeletionCheck(), ADVISORY)


class IndexedDeletion(IndexStage):
    """A deletion with index files that can be lost, kept, or come back."""

    def run(self, disk: Any, ledger: Ledger, _: object) -> None:
        """Delete a session with an index."""
        delete_session(self.path, disk=disk)
        ledger.remember(STATE, ("deleted",))

    def check_deleted(self, disk: SimDisk, expectation: Expectation) -> None:
        """What is deleted has no index, whatever crash comes next; what is not deleted is whole."""
        self.mirror.attach(disk)
        finished = finish_deletions(self.store, disk=disk)
        places = Places(self.store, SESSION_ID)
        if disk.exists(places.journal):
            if expectation.fact(STATE) or finished.done or finished.left:
                raise Broken(f"the session is there ({finished})")
        else:
            for now in (disk, SimDisk(disk.volume.lost())):
                left = [name for name in now.list_folder(self.mirror.index) if "sqlite" in name]
                if left or not now.exists(places.tombstone):
                    raise Broken(f"of the index of a deleted session there are {left}")
            undelete_session(self.store, SESSION_ID, disk=disk)
        self.check(disk, expectation)


def _indexed_deletion() -> Flow:
    stage = IndexedDeletion()
    return Flow(
        "index-delete", stage.prepare, stage.run, stage.check_deleted, ADVISORY, stage.entered
    )


def deleting_flows() -> Iterator[Flow]:
    """Those in which nothing is killed."""
    yield deletion_flow("delete", (), ("delete",))
    yield deletion_flow("undelete", ("delete",), ("undelete",))
    yield deletion_flow("purge", ("delete",), ("purge",))
    yield deletion_flow("delete-undelete", (), ("delete", "undelete", "delete"))
    yield _indexed_deletion()


def killed_deletion_flows() -> Iterator[Flow]:
    """Every change of a deletion, a restoration and a purge, and everything that can come next."""
    for first, following in NEXT.items():
        for at in range(1, changes_of(first) + 1):
            for after in following:
                yield killed_deletion_flow(f"killed-{first}:{at}:{after}")
