"""One row for every session of a store: what lists need, and the order in which they show it.

A row is derived from a journal and from nothing else, and keeps the stamp of the file that it was
read from: whoever compares stamps knows what to read again. Any process may write at any time, the
newest row wins, and a file that is lost, refused or busy costs time only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import apsw

from treering.index import files, handle, schema
from treering.index.faults import IndexFault, translate
from treering.index.handle import Handle, guarded

NAME: Final = "catalogue_"
"""What the files are called, in the place of a session id. It is none: no id ends like this."""

APPLICATION_ID: Final = 0x54524E43  # "TRNC"
SCHEMA_VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 1_000
CACHE_KIB: Final = 8 * 1024
SNAPSHOTS_MAX: Final = 16
"""Orders that are kept for cursors; the oldest one goes first."""

_TABLES: Final = (
    """CREATE TABLE state(
  one INTEGER PRIMARY KEY CHECK(one = 1), complete INTEGER NOT NULL, file_inode INTEGER,
  sequence INTEGER NOT NULL
) STRICT""",
    # Texts are TEXT, or a BLOB where they hold what UTF-8 cannot (names of files, old imports).
    # A number is never given twice: cursors hold them.
    """CREATE TABLE session(
  number INTEGER PRIMARY KEY AUTOINCREMENT, id ANY NOT NULL UNIQUE, stamp BLOB,
  settled INTEGER NOT NULL, status TEXT NOT NULL, reason ANY, cwd ANY, name ANY, state ANY,
  parent_path ANY, parent ANY, depth INTEGER, created INTEGER, last_message INTEGER,
  messages INTEGER NOT NULL, entries INTEGER NOT NULL, first_text ANY, agent_status ANY, usage ANY,
  active INTEGER, title ANY NOT NULL, has_text INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE text(number INTEGER PRIMARY KEY, body ANY NOT NULL) STRICT""",
    """CREATE TABLE snapshot(
  number INTEGER PRIMARY KEY AUTOINCREMENT, inputs BLOB NOT NULL, numbers BLOB NOT NULL
) STRICT""",
)

_INDEXES: Final = (
    """CREATE INDEX session_order ON session(
  messages = 0, active DESC, created DESC, title, id, number, parent
)""",
    "CREATE INDEX session_cwd ON session(cwd)",
    "CREATE INDEX session_name ON session(name) WHERE name IS NOT NULL",
)


class SessionRow(NamedTuple):
    """What is known of one session. Times are Unix milliseconds."""

    id: str
    stamp: bytes | None
    """The state of the files that it was read from."""
    settled: bool
    """Whether the next change of the files would show in their stamp."""
    status: str
    reason: str | None
    cwd: str | None
    name: str | None
    state: str | None
    parent_path: str | None
    parent: str | None
    """The id of the parent, when it is one of this store."""
    depth: int | None
    created: int | None
    last_message: int | None
    messages: int
    entries: int
    first_text: str | None
    agent_status: str | None
    """JSON."""
    usage: str | None
    """JSON."""
    active: int | None
    """The time by which it is ordered."""
    title: str
    """The text by which those of the same times are ordered."""
    has_text: bool
    """Whether the text of its messages was read."""


class Place(NamedTuple):
    """A session in the order of a list."""

    number: int
    parent: int | None
    """The number of the parent."""
    empty: int
    """Whether it has no messages."""


_COLUMNS: Final = ", ".join(SessionRow._fields)
_MARKS: Final = ", ".join("?" * len(SessionRow._fields))
_ROWS: Final = f"SELECT {_COLUMNS} FROM session"  # noqa: S608 (names of ours)
_ORDER: Final = (
    "SELECT a.number, CASE WHEN a.parent IS NOT NULL THEN"
    " (SELECT b.number FROM session b WHERE b.id = a.parent) END, a.messages = 0"
    " FROM session a ORDER BY a.messages = 0, a.active DESC, a.created DESC, a.title, a.id"
)
_UPSERT: Final = (
    f"INSERT INTO session({_COLUMNS}) VALUES({_MARKS}) ON CONFLICT(id) DO UPDATE SET "
    + ", ".join(f"{field} = excluded.{field}" for field in SessionRow._fields[1:])
    + " RETURNING number"
)


def _create(db: apsw.Connection, *, complete: bool, file_inode: int | None) -> None:
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    for statement in _TABLES + _INDEXES:
        db.execute(statement)
    db.execute("INSERT INTO state VALUES(1, ?, ?, 0)", (int(complete), file_inode))


def _check(db: apsw.Connection, path: str, *, file_inode: int | None) -> None:
    application, version = db.pragma("application_id"), db.pragma("user_version")
    if application != APPLICATION_ID:
        raise IndexFault(path, f"application id {application:#x}, not a Treering catalogue")
    if version != SCHEMA_VERSION:
        raise IndexFault(path, f"schema version {version}, this program reads {SCHEMA_VERSION}")
    found = [
        sql
        for (sql,) in db.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name <> 'sqlite_sequence'"
        )
    ]
    if sorted(found) != sorted(_TABLES + _INDEXES):
        raise IndexFault(path, "its tables are not those of a catalogue")
    state = db.execute("SELECT complete, file_inode FROM state").fetchall()
    if len(state) != 1 or state[0][0] != 1:
        raise IndexFault(path, "its state is not that of a whole catalogue")
    if file_inode is not None and state[0][1] != file_inode:
        raise IndexFault(path, "its rows were written into another file (a stale -wal, or a copy)")


KIND: Final = handle.Kind(_create, _check)


class Catalogue(Handle):
    """The rows of one store."""

    @classmethod
    def open(cls, path: str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Self:
        """Open a catalogue that exists, for reading and writing.

        Raises:
            IndexFault: missing, damaged, of another version, or not to be written.
            IndexBusy: locked for too long.
        """
        db, path = handle.open_file(
            path,
            readonly=False,
            create=False,
            busy_timeout_ms=busy_timeout_ms,
            cache_kib=CACHE_KIB,
            kind=KIND,
        )
        return cls._on(db, path)

    @classmethod
    def memory(cls) -> Self:
        """An empty one in memory: for a store whose folder cannot be written."""
        db = apsw.Connection(":memory:")
        schema.configure(db, busy_timeout_ms=0, cache_kib=CACHE_KIB)
        _create(db, complete=True, file_inode=None)
        return cls._on(db, ":memory:")

    @classmethod
    def _on(cls, db: apsw.Connection, path: str) -> Self:
        found = cls(db, path, readonly=False, registered=path != ":memory:")
        try:
            # What a session said must not stay in pages that nobody uses.
            db.execute("PRAGMA secure_delete=ON")
        except (apsw.Error, UnicodeError) as error:
            found.close()
            raise translate(path, error) from error
        return found

    @guarded
    def sequence(self) -> int:
        """Grows with every change of any process."""
        found = self._db.execute("SELECT sequence FROM state").get
        return found if isinstance(found, int) else 0

    @guarded
    def rows(self) -> dict[str, SessionRow]:
        """All rows, by id."""
        return {row.id: row for row in map(_row, self._db.execute(_ROWS))}

    @guarded
    def rows_of(self, numbers: Iterable[int] | None) -> dict[int, SessionRow]:
        """Rows by their number, None is all of them; those that have gone are missing."""
        if numbers is None:
            every = self._db.execute(f"SELECT number, {_COLUMNS} FROM session")  # noqa: S608
            return {values[0]: _row(values[1:]) for values in every}
        found = {}
        for number in numbers:
            for row in self._db.execute(f"{_ROWS} WHERE number = ?", (number,)):
                found[number] = _row(row)
        return found

    @guarded
    def texts(self, ids: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
        """(id, text of its messages) of those whose text was read; without ids of all."""
        query = "SELECT id, body FROM session JOIN text USING(number)"
        found: list[tuple[str, str]] = []
        if ids is None:
            found += ((_text(i), _text(body)) for i, body in self._db.execute(query))
        else:
            for one in ids:
                of_one = self._db.execute(f"{query} WHERE id = ?", (_value(one),))
                found += ((_text(i), _text(body)) for i, body in of_one)
        return iter(found)

    @guarded
    def cwds(self) -> list[str]:
        """Every working directory that a session states, once."""
        query = "SELECT DISTINCT cwd FROM session WHERE cwd IS NOT NULL"
        return [_text(cwd) for (cwd,) in self._db.execute(query)]

    @guarded
    def numbers(self, ids: Iterable[str]) -> dict[str, int]:
        """Numbers of rows by id."""
        found = {}
        for one in ids:
            for (number,) in self._db.execute(
                "SELECT number FROM session WHERE id = ?", (_value(one),)
            ):
                found[one] = number
        return found

    @guarded
    def numbers_of_cwds(self, cwds: Iterable[str]) -> set[int]:
        """Numbers of the sessions of any of these working directories."""
        found: set[int] = set()
        for cwd in cwds:
            query = "SELECT number FROM session WHERE cwd = ?"
            found.update(number for (number,) in self._db.execute(query, (_value(cwd),)))
        return found

    @guarded
    def order(self) -> list[Place]:
        """All sessions: empty ones last, then the newest first, created last first, title, id."""
        return list(map(Place._make, self._db.execute(_ORDER)))

    @guarded
    def write(
        self,
        put: Iterable[tuple[SessionRow, str | None]],
        gone: Iterable[str] = (),
    ) -> None:
        """Add or replace rows, with the text of their messages if it was read; remove others."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            for row, text in put:
                number = db.execute(_UPSERT, tuple(map(_value, row))).get
                db.execute("DELETE FROM text WHERE number = ?", (number,))
                if text:
                    db.execute("INSERT INTO text VALUES(?, ?)", (number, _value(text)))
            for one in gone:
                number = db.execute(
                    "DELETE FROM session WHERE id = ? RETURNING number", (_value(one),)
                ).get
                db.execute("DELETE FROM text WHERE number = ?", (number,))
            db.execute("UPDATE state SET sequence = sequence + 1")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    @guarded
    def forget(self, session_id: str) -> bool:
        """Remove a row, and its words from the files; False when a reader holds the ``-wal``."""
        self.write([], [session_id])
        ((busy, _, _),) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return busy == 0

    @guarded
    def keep_snapshot(self, inputs: bytes, numbers: bytes) -> int:
        """Keep an order for cursors; returns its number. The oldest ones are forgotten."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            query = "INSERT INTO snapshot(inputs, numbers) VALUES(?, ?) RETURNING number"
            number = db.execute(query, (inputs, numbers)).get
            assert isinstance(number, int)
            db.execute("DELETE FROM snapshot WHERE number <= ?", (number - SNAPSHOTS_MAX,))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return number

    @guarded
    def snapshot_of(self, number: int) -> tuple[bytes, bytes] | None:
        """(inputs, numbers) of an order that was kept."""
        query = "SELECT inputs, numbers FROM snapshot WHERE number = ?"
        for inputs, numbers in self._db.execute(query, (number,)):
            return inputs, numbers
        return None


def open_current(folder: str) -> Catalogue:
    """The catalogue of an index folder; made when there is none, or in the place of a bad one.

    Raises:
        IndexFault: there can be none here (a folder that cannot be written, no space, ...).
        IndexBusy: locked for too long.
    """
    with _making:
        path = files.current(folder, NAME)
        if path is not None:
            try:
                return Catalogue.open(path)
            except IndexFault as fault:
                if fault.full or fault.library:
                    raise
                if not fault.missing:
                    files.set_aside(path)
        # The name that is free now. A process that is slow does not put an empty one in the place
        # of what others have made and filled meanwhile.
        free = files.next_path(folder, NAME)
        newer = files.current(folder, NAME)
        made = _make(folder, free) if newer in (None, path) else newer
        try:
            return Catalogue.open(made)
        except IndexFault as fault:
            # Another process made one at the same time, and removed those before its own.
            path = files.current(folder, NAME)
            if not fault.missing or path is None:
                raise
            return Catalogue.open(path)


_making: Final = threading.Lock()


def _make(folder: str, free: str) -> str:
    """Publish an empty catalogue under a name that was free, or give the one that has it now;
    nobody sees a half-made one."""
    try:
        files.ensure_folder(folder)
        _sweep(folder)
    except OSError as error:
        raise translate(folder, error) from error
    built = os.path.join(folder, f"{NAME}.build-{os.getpid()}.tmp")
    try:
        db, path = handle.open_file(
            built, readonly=False, create=True, busy_timeout_ms=0, cache_kib=CACHE_KIB, kind=KIND
        )
        Handle(db, path, readonly=False, registered=True).close()
        path = files.publish_build(path, folder, NAME, only=free)
    except BaseException:
        for tail in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                os.unlink(built + tail)
        raise
    files.remove_older(folder, NAME, keep=path)
    return files.current(folder, NAME) or path


def _sweep(folder: str) -> None:
    """Remove what processes left behind that died while they made one, this one's number too."""
    start = f"{NAME}.build-"
    for name in os.listdir(folder):
        pid = name.removeprefix(start).partition(".")[0]
        if not name.startswith(start) or not pid.isdigit():
            continue
        if int(pid) == os.getpid() or not _lives(int(pid)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _value(value: Any) -> Any:
    """A value as SQLite can keep it: texts that are no UTF-8 as bytes."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
    return value


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


_STAMP: Final = SessionRow._fields.index("stamp")
_SETTLED: Final = SessionRow._fields.index("settled")
_HAS_TEXT: Final = SessionRow._fields.index("has_text")


def _row(values: tuple[Any, ...]) -> SessionRow:
    """The reverse of :func:`_value` for a row."""
    made = list(values)
    for at, value in enumerate(made):
        if isinstance(value, bytes) and at != _STAMP:
            made[at] = _text(value)
    made[_SETTLED], made[_HAS_TEXT] = bool(made[_SETTLED]), bool(made[_HAS_TEXT])
    return SessionRow._make(made)
