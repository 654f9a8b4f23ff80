"""One connection to one index database: opening, closing, guards, translation of errors."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import apsw

from treering.index import schema
from treering.index.faults import IndexBusy, IndexFault, translate

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="Handle")


def guarded(
    method: Callable[Concatenate[H, P], T],
) -> Callable[Concatenate[H, P], T]:
    """A method that never lets an exception of SQLite out, nor touches SQLite after a fork."""

    @functools.wraps(method)
    def call(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.require_usable()
        try:
            return method(self, *args, **kwargs)
        except (apsw.Error, UnicodeError) as error:
            raise translate(self.file, error) from error

    return call


class Handle:
    """A connection, its path and what must hold before it is used.

    A handle may be used from any thread, but by one at a time: the caller serialises. After a
    fork the child's copy refuses every call, and is never closed: closing would let the child
    checkpoint and delete files that its parent is using.
    """

    def __init__(self, db: apsw.Connection, path: str, *, readonly: bool, registered: bool) -> None:
        self._db = db
        self._path = path
        self._readonly = readonly
        self._registered = registered
        self._pid = os.getpid()
        self._broken: str | None = None
        self._closed = False
        _handles.add(self)

    @property
    def file(self) -> str:
        """Path of the database file, or ":memory:"."""
        return self._path

    @property
    def readonly(self) -> bool:
        """Whether rows can only be read through this handle."""
        return self._readonly

    def require_usable(self) -> None:
        """Raise IndexFault in a forked child, after close(), and after a build that failed."""
        if os.getpid() != self._pid:
            raise IndexFault(self._path, "opened before a fork")
        if self._broken is not None:
            raise IndexFault(self._path, self._broken)

    def close(self) -> None:
        """Close the connection; again is harmless. In a forked child it raises IndexFault."""
        if os.getpid() != self._pid:
            raise IndexFault(self._path, "opened before a fork")
        if self._closed:
            return
        self._closed = True
        self._broken = "closed"
        if self._registered:
            unregister(self._path)
        try:
            self._db.close()
        except apsw.Error as error:
            raise translate(self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._pid:
            with contextlib.suppress(IndexFault, IndexBusy):
                self.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All lookups inside see one state of the database. Keep it short: a snapshot that stays
        open keeps the -wal from being emptied.
        """
        self.require_usable()
        if self._db.in_transaction:
            yield
            return
        self._run("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._run("COMMIT")

    @guarded
    def _run(self, statement: str) -> None:
        self._db.execute(statement)


class _Create(Protocol):
    def __call__(self, db: apsw.Connection, *, complete: bool, file_inode: int | None) -> None: ...


class _Check(Protocol):
    def __call__(self, db: apsw.Connection, path: str, *, file_inode: int | None) -> None: ...


class Kind(NamedTuple):
    """A kind of database: how its tables are made, and how a file is refused that is none.

    All kinds have a table ``state`` of one row whose ``sequence`` grows with every change.
    """

    create: _Create
    check: _Check


def _session_tables(db: apsw.Connection, *, complete: bool, file_inode: int | None) -> None:
    # Looked up when it is called: tests let it fail.
    schema.create_schema(db, complete=complete, file_inode=file_inode)


def _session_check(db: apsw.Connection, path: str, *, file_inode: int | None) -> None:
    schema.check(db, path, file_inode=file_inode)


SESSION: Final = Kind(_session_tables, _session_check)


def open_file(
    path: str,
    *,
    readonly: bool,
    create: bool,
    busy_timeout_ms: int,
    cache_kib: int,
    kind: Kind = SESSION,
) -> tuple[apsw.Connection, str]:
    """Open, or create, and check one database file."""
    schema.require_sqlite(apsw.sqlite_lib_version())
    path = schema.resolved(path)
    register(path)
    try:
        if create and not readonly and not os.path.lexists(path):
            db = _new_file(path, busy_timeout_ms, cache_kib, kind, building=False)
        else:
            db = _old_file(path, readonly, busy_timeout_ms, cache_kib, kind)
    except BaseException as error:
        unregister(path)
        if isinstance(error, (apsw.Error, UnicodeError, OSError)):
            raise translate(path, error) from error
        raise
    return db, path


def open_build(path: str, *, busy_timeout_ms: int, cache_kib: int) -> tuple[apsw.Connection, str]:
    """Create a database file for a build; its transaction stays open until the build ends."""
    schema.require_sqlite(apsw.sqlite_lib_version())
    path = schema.resolved(path)
    register(path)
    try:
        db = _new_file(path, busy_timeout_ms, cache_kib, SESSION, building=True)
    except BaseException as error:
        unregister(path)
        if isinstance(error, (apsw.Error, UnicodeError, OSError)):
            raise translate(path, error) from error
        raise
    return db, path


def _old_file(
    path: str,
    readonly: bool,  # noqa: FBT001
    busy_timeout_ms: int,
    cache_kib: int,
    kind: Kind,
) -> apsw.Connection:
    schema.require_file(path)
    least = None if readonly else _sequence_without_wal(path)
    db = schema.connect(path, readonly=readonly)
    try:
        schema.configure(db, busy_timeout_ms=busy_timeout_ms, cache_kib=cache_kib)
        if db.readonly("main") and not readonly:
            raise IndexFault(path, "the file is read-only")
        kind.check(db, path, file_inode=signed(os.lstat(path).st_ino))
        if least is not None and (db.execute("SELECT sequence FROM state").get or 0) < least:
            # Closing would write the old time over the file, and what it knows of its own: the
            # newest watermark.
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            raise IndexFault(path, "a -wal from before its last rows lies beside it")
        if not readonly:
            schema.write_settings(db)
    except BaseException:
        db.close()
        raise
    return db


def _sequence_without_wal(path: str) -> int | None:
    """The last indexed frame by the main file alone, when there is a -wal that could take it back.

    A -wal holds what comes after the main file. One of the same file from an earlier time (a
    backup that was written over it) would be replayed all the same, and mix two times.
    """
    try:
        if not os.stat(path + "-wal").st_size or _open_paths[path] > 1:
            return None  # in use here: another descriptor must not be closed, for its locks
        db = schema.connect_unlocked(path)
        try:
            found = db.execute("SELECT sequence FROM state").get
        finally:
            db.close()
    except (apsw.Error, OSError, UnicodeError):
        return None  # whatever is wrong with it, opening it tells
    return found if isinstance(found, int) else None


def _new_file(
    path: str, busy_timeout_ms: int, cache_kib: int, kind: Kind, *, building: bool
) -> apsw.Connection:
    for suffix in ("-wal", "-shm", "-journal"):
        if os.path.lexists(path + suffix):
            raise IndexFault(path, f"a stale {suffix} lies beside it: set it aside first")
    schema.create_file(path)
    db: apsw.Connection | None = None
    try:
        db = schema.connect(path, readonly=False)
        schema.configure(db, busy_timeout_ms=busy_timeout_ms, cache_kib=cache_kib)
        schema.reserve_checksums(db)
        if building:
            schema.build_settings(db)
        else:
            schema.write_settings(db)
        db.execute("BEGIN IMMEDIATE")
        inode = signed(os.lstat(path).st_ino)
        kind.create(db, complete=not building, file_inode=inode)
        # cksumvfs adds checksums only after it has seen page 1, which a long transaction would
        # write last, behind pages that had to leave the cache: so commit before there are any.
        db.execute("COMMIT")
        if building:
            db.execute("BEGIN IMMEDIATE")
    except BaseException:
        if db is not None:
            db.close()
        for suffix in ("", "-wal", "-shm", "-journal"):  # half made by us a moment ago: nobody's
            with contextlib.suppress(OSError):
                os.unlink(path + suffix)
        raise
    return db


def open_memory() -> apsw.Connection:
    """A complete, empty index in memory (of any SQLite: the floor is about files)."""
    db = apsw.Connection(":memory:")
    schema.configure(db, busy_timeout_ms=0, cache_kib=1024)
    schema.create_schema(db, complete=True, file_inode=None)
    return db


def signed(number: int) -> int:
    """A 64-bit number (device, inode) as the signed integer that SQLite can keep."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


def unsigned(number: int) -> int:
    """The reverse of :func:`signed`."""
    return number & (2**64 - 1)


# Which files this process has open: they must not be moved, nor opened by other means (closing
# any descriptor of a file drops all of the process's POSIX locks on it).

_open_lock = threading.Lock()
_open_paths: Counter[str] = Counter()


def register(path: str) -> None:
    """Note that a resolved path is open in this process."""
    with _open_lock:
        _open_paths[path] += 1


def unregister(path: str) -> None:
    """Undo one :func:`register`."""
    with _open_lock:
        _open_paths[path] -= 1
        if _open_paths[path] <= 0:
            del _open_paths[path]


def is_open(path: str) -> bool:
    """Whether a connection of this process is open on a resolved path."""
    with _open_lock:
        return path in _open_paths


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_kept: list[Any] = []


def _keep_in_child() -> None:
    # A connection that is garbage collected is closed. One reference too many, never given
    # back, keeps the child from closing its parent's database even while it exits.
    global _open_lock  # noqa: PLW0603 (another thread may have held it during the fork)
    _open_lock = threading.Lock()
    _open_paths.clear()
    handles = list(_handles)
    if not handles:
        return
    import ctypes  # noqa: PLC0415 (10 ms that no command should pay at its start)

    for handle in handles:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle._db))
        _kept.append(handle._db)


os.register_at_fork(after_in_child=_keep_in_child)
