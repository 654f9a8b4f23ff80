"""The trash of a store: where deleted sessions lie, and what is under way in it.

    session-trash/<id>/journal.jsonl     the journal, as it was
    session-trash/<id>/artifacts         the artifact folder (or link), as it was
    session-trash/<id>/tombstone.json    id, time, name: says that the deletion is complete
    session-trash/.<id>.<verb>           the same file, while <verb> is under way

Where sessions or artifacts are devices of their own, they stay there as ``.<id>.trash``.

The tombstone is one small file whose name says where a session stands:

| name of the tombstone | journal and artifacts | next |
|---|---|---|
| none | in their places | nothing |
| ``.<id>.deleting`` | in their places or the trash, each whole | to the trash; ``tombstone.json`` |
| ``tombstone.json`` | in the trash, or purged | nothing |
| ``.<id>.restoring`` | in the trash or their places, each whole | to their places; none |
| ``.<id>.purging`` | in the trash, or partly removed | removed; ``tombstone.json`` |

It is written whole and durable before anything moves, so at any moment the name decides what a
crash leaves to be done. Two names of it can survive a crash; the first of ``restoring``,
``deleting``, ``purging`` counts. One listing of ``session-trash`` finds everything under way.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from treering.engine import commands, environment
from treering.engine.errors import Conflict, InvalidId, TreeringError, from_os_error
from treering.engine.home import JOURNAL_SUFFIX, Store, check_session_id
from treering.engine.journal.disk import LOCAL_DISK, Disk, put_whole
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.journal.publish import TEMPORARY_SUFFIX

Verb = Literal["restoring", "deleting", "purging"]
State = Literal["restoring", "deleting", "purging", "deleted"]

VERBS: Final[tuple[Verb, ...]] = ("restoring", "deleting", "purging")

_ASIDE: Final = ".trash"
_TOMBSTONE_BYTES_MAX: Final = 1 << 20
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR)
_IS_FOLDER: Final = (errno.EISDIR, errno.EPERM)
"""What systems say of an ``unlink`` of a folder."""


class Tombstone(msgspec.Struct, frozen=True, rename="camel"):
    """What is remembered of a deleted session. Times are Unix ms."""

    id: str
    deleted_ms: int | None = None
    name: str | None = None
    """The (beginning of the) display name, as far as it could be read; a purge forgets it."""
    purged_ms: int | None = None
    """When its bytes were removed."""


@dataclass(frozen=True)
class Places:
    """Every path that a session can have in its store and in the trash."""

    store: Store
    session_id: str

    @property
    def journal(self) -> str:
        """Where the journal of a session is that is not deleted."""
        return self.store.journal_path(self.session_id)

    @property
    def artifacts(self) -> str:
        """Where its artifacts are."""
        return self.store.artifact_folder(self.session_id)

    @property
    def folder(self) -> str:
        """The session's folder in the trash."""
        return self.store.trash_folder(self.session_id)

    @property
    def tombstone(self) -> str:
        """The name that says: deleted."""
        return os.path.join(self.folder, "tombstone.json")

    @property
    def trashed_journals(self) -> tuple[str, str]:
        """Where the journal of a deleted session can be; the first that the system allows."""
        return (
            os.path.join(self.folder, f"journal{JOURNAL_SUFFIX}"),
            os.path.join(self.store.sessions, f".{self.session_id}{_ASIDE}"),
        )

    @property
    def trashed_artifacts(self) -> tuple[str, str]:
        """Where the artifacts of a deleted session can be."""
        return (
            os.path.join(self.folder, "artifacts"),
            os.path.join(self.store.artifacts, f".{self.session_id}{_ASIDE}"),
        )

    def under_way(self, verb: Verb) -> str:
        """The name of the tombstone that says: this is under way."""
        return os.path.join(self.store.trash, f".{check_session_id(self.session_id)}.{verb}")


def exists(disk: Disk, path: str) -> bool:
    """Whether the path leads to something.

    Raises:
        OSError: nobody can tell.
    """
    try:
        disk.stat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    return True


def first_existing(disk: Disk, paths: Iterable[str]) -> str | None:
    """The first path that leads to something; raises as :func:`exists`."""
    return next((path for path in paths if exists(disk, path)), None)


def state_of(disk: Disk, places: Places) -> State | None:
    """Where the session stands by the name of its tombstone; raises as :func:`exists`."""
    for verb in VERBS:
        if exists(disk, places.under_way(verb)):
            return verb
    return "deleted" if exists(disk, places.tombstone) else None


def read_tombstone(disk: Disk, path: str, session_id: str) -> Tombstone:
    """What a tombstone says; only the id where it does not read. Its name is what decides."""
    try:
        file = disk.open(path)
        try:
            found = msgspec.json.decode(file.pread(_TOMBSTONE_BYTES_MAX, 0), type=Tombstone)
        finally:
            file.close()
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return Tombstone(session_id)
    return msgspec.structs.replace(found, id=session_id)


def write_tombstone(disk: Disk, store: Store, path: str, tombstone: Tombstone) -> None:
    """Put it under this name, whole; the caller makes the name durable.

    Raises:
        OSError: it has not got the name.
    """
    unique = environment.random_bytes(4).hex()
    temporary = os.path.join(store.trash, f".{tombstone.id}.{unique}{TEMPORARY_SUFFIX}")
    put_whole(disk, temporary, path, msgspec.json.encode(tombstone) + b"\n")


def move_journal(disk: Disk, sources: Iterable[str], targets: Iterable[str]) -> None:
    """Give the journal another name, over nothing, and take the old one away, both durably.

    Does what is left of it when it was begun before.

    Raises:
        Conflict: another file has the name.
        OSError: the system refused; the journal has one of the names, or both.
    """
    sources, targets = tuple(sources), tuple(targets)
    for source in sources:
        if exists(disk, source):
            target = _link(disk, source, targets)
            disk.sync_folder(os.path.dirname(target))
            disk.unlink(source)
    # Whoever moved it may have died before these.
    sync_those_there(disk, (*targets, *sources))


def _link(disk: Disk, source: str, targets: tuple[str, ...]) -> str:
    for target in targets:
        try:
            disk.link(source, target)
        except FileExistsError:
            pass  # perhaps by an earlier attempt, see below
        except OSError as error:
            if error.errno != errno.EXDEV or target == targets[-1]:
                raise
            continue  # a device of its own: it stays there under another name
        if disk.stat(target).identity != disk.stat(source).identity:
            raise Conflict(
                "another file is in the way",
                path=target,
                next_step=f"`{commands.aside(target)}` makes room",
            )
        return target
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def move_artifacts(disk: Disk, sources: Iterable[str], targets: Iterable[str]) -> None:
    """Rename the artifacts, a folder or a link as it is, durably; without any there is nothing.

    Raises:
        OSError: the system refused; they are where they were, or moved already.
    """
    sources, targets = tuple(sources), tuple(targets)
    for source in sources:
        for target in targets:
            try:
                disk.rename(source, target)
            except OSError as error:
                if error.errno in _NOT_THERE and not exists(disk, source):
                    break  # moved before, or there never were any
                if error.errno != errno.EXDEV or target == targets[-1]:
                    raise
            else:
                break
    sync_those_there(disk, (*targets, *sources))


def sync_those_there(disk: Disk, paths: Iterable[str]) -> None:
    """Make names durable: sync the folders of these paths that are there, each once."""
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        try:
            disk.sync_folder(folder)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise


def rename_tombstone(disk: Disk, source: str, target: str) -> None:
    """Rename a tombstone; the caller makes it durable.

    Renaming one name of a file over its other one does nothing, so the first is taken away.
    """
    disk.rename(source, target)
    remove_name(disk, source)


def remove_name(disk: Disk, path: str) -> None:
    """Remove a file's name if it is there."""
    try:
        disk.unlink(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise


def remove_tree(disk: Disk, path: str) -> None:
    """Remove whatever has the name, folders with what is in them. Links are never followed.

    Raises:
        OSError: some of it is left.
    """
    todo = [(path, False)]
    while todo:
        name, emptied = todo.pop()
        try:
            if emptied:
                disk.remove_folder(name)
            else:
                disk.unlink(name)
        except OSError as error:
            if error.errno in _NOT_THERE:
                continue
            if emptied or error.errno not in _IS_FOLDER:
                raise
            todo.append((name, True))
            todo += [(os.path.join(name, inner), False) for inner in disk.list_folder(name)]


def ids_under_way(disk: Disk, store: Store) -> dict[str, Verb]:
    """Sessions that something was begun with and is not done.

    Raises:
        StorageError: the trash is there and cannot be listed.
    """
    found: dict[str, Verb] = {}
    for name in _listed(disk, store):
        session_id, _, verb = name[1:].rpartition(".")
        for known in VERBS:
            if name.startswith(".") and verb == known and _is_id(session_id):
                first = found.get(session_id, known)
                found[session_id] = min(first, known, key=VERBS.index)
    return found


def hidden_ids(store: Store, disk: Disk = LOCAL_DISK) -> set[str]:
    """Sessions whose deletion was begun and is not done: no list shows them any more.

    Where the trash cannot be listed none is known: a bad trash hides no session.
    """
    try:
        under_way = ids_under_way(disk, store)
    except TreeringError:
        return set()
    return {name for name, verb in under_way.items() if verb == "deleting"}


def trashed_ids(disk: Disk, store: Store) -> Iterator[str]:
    """Ids of the folders in the trash; raises as :func:`ids_under_way`."""
    return (name for name in _listed(disk, store) if _is_id(name))


def check_not_deleted(disk: Disk, store: Store, session_id: str) -> None:
    """Refuse to make a session of an id that was deleted: nothing comes back by itself.

    Raises:
        Conflict: it was; names ``undelete``.
        StorageError: nobody can tell.
    """
    if isinstance(disk, MemoryDisk):
        return
    places = Places(store, session_id)
    try:
        state = state_of(disk, places)
    except OSError as error:
        raise from_os_error(error, "look into the trash", places.folder) from error
    if state is not None:
        purged = read_tombstone(disk, places.tombstone, session_id).purged_ms is not None
        back = "" if purged else f"`{undeleting(store, session_id)}` brings it back, or "
        raise Conflict(
            f"a session of the id {session_id} was deleted",
            path=places.folder,
            next_step=f"{back}take another id",
        )


def undeleting(store: Store, session_id: str) -> str:
    """The ``treering session undelete`` command for a session of this store."""
    path = store.journal_path(session_id)
    return commands.command("session", "undelete", commands.selector(path))


def _listed(disk: Disk, store: Store) -> list[str]:
    try:
        return disk.list_folder(store.trash)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return []
        raise from_os_error(error, "list the trash", store.trash) from error


def _is_id(name: str) -> bool:
    try:
        check_session_id(name)
    except InvalidId:
        return False
    return True
