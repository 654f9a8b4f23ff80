"""Tables, settings and the opening of index databases.

Settings are made on our own connections only, never through APSW's process-wide hooks: the
process belongs to our users.
"""

from __future__ import annotations

import functools
import os
import stat
import threading
from typing import Final

import apsw

from treering.index.faults import IndexFault

SQLITE_FLOOR: Final = (3, 51, 3)
"""Below it, several processes that write and checkpoint can malform a database (WAL-reset bug)."""

APPLICATION_ID: Final = 0x54524E47  # "TRNG"
SCHEMA_VERSION: Final = 2

SORT_CACHE_KIB: Final = 8 * 1024
"""Cache while a build sorts rows for its indexes: bounds what is sorted in memory."""

JOURNAL_SIZE_LIMIT: Final = 32 * 1024 * 1024
CHECKSUM_VFS: Final = "cksmvfs"
CHECKSUM_BYTES: Final = 8

TABLES: Final = (
    # One row. The file's own inode unmasks a -wal that belongs to another file (see check()).
    """CREATE TABLE state(
  one INTEGER PRIMARY KEY CHECK(one = 1), complete INTEGER NOT NULL, file_inode INTEGER,
  journal_id BLOB, device INTEGER, inode INTEGER,
  sequence INTEGER, offset INTEGER, revision BLOB, watermark BLOB,
  leaf_moved INTEGER NOT NULL DEFAULT 0, leaf INTEGER,
  entries INTEGER NOT NULL DEFAULT 0, newest INTEGER, missing INTEGER NOT NULL DEFAULT 0,
  cycles INTEGER NOT NULL DEFAULT 0, derived INTEGER NOT NULL DEFAULT 0,
  outside INTEGER NOT NULL DEFAULT 0, twins INTEGER NOT NULL DEFAULT 0,
  healed INTEGER NOT NULL DEFAULT 0, label_waits INTEGER NOT NULL DEFAULT 0,
  unknown_leaf_moves INTEGER NOT NULL DEFAULT 0
) STRICT""",
    # Pairs of kind and role. Positive ids are in the kind index, the bulk is not.
    """CREATE TABLE name(
  id INTEGER PRIMARY KEY, kind TEXT NOT NULL, role TEXT, entries INTEGER NOT NULL
) STRICT""",
    # own: only of derived ids; raw: only when it differs from stored; name: 0 takes no byte.
    """CREATE TABLE entry(
  seq INTEGER PRIMARY KEY, id TEXT NOT NULL, own TEXT, parent INTEGER, depth INTEGER NOT NULL,
  jump INTEGER NOT NULL, name INTEGER NOT NULL, time INTEGER, offset INTEGER NOT NULL,
  stored INTEGER NOT NULL, raw INTEGER, revision BLOB NOT NULL, mark INTEGER NOT NULL
) STRICT""",
    # Entries whose parent is not there: waiting for parent_id, in a cycle, or just healed.
    """CREATE TABLE loose(
  seq INTEGER PRIMARY KEY, state INTEGER NOT NULL, parent_id TEXT
) STRICT""",
    """CREATE TABLE label(
  target INTEGER PRIMARY KEY, label TEXT NOT NULL, entry INTEGER NOT NULL
) STRICT""",
    """CREATE TABLE label_wait(
  target TEXT PRIMARY KEY, label TEXT NOT NULL, entry INTEGER NOT NULL
) STRICT, WITHOUT ROWID""",
    # Which entries add to another one, by the id that they name.
    """CREATE TABLE about(
  entry INTEGER PRIMARY KEY, target TEXT NOT NULL
) STRICT""",
    """CREATE TABLE derived(
  hash BLOB PRIMARY KEY, count INTEGER NOT NULL
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE usage(
  category TEXT PRIMARY KEY, input INTEGER NOT NULL, output INTEGER NOT NULL,
  cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL, total_tokens INTEGER NOT NULL,
  cost REAL NOT NULL
) STRICT, WITHOUT ROWID""",
)

LOADING_INDEXES: Final = (
    "CREATE UNIQUE INDEX entry_id ON entry(id)",
    "CREATE INDEX entry_own ON entry(own) WHERE own IS NOT NULL",
    "CREATE INDEX loose_parent ON loose(parent_id) WHERE parent_id IS NOT NULL",
    "CREATE INDEX name_kind ON name(kind, role)",
)
"""Needed while rows are added."""

SECONDARY_INDEXES: Final = (
    # Most entries follow their parent directly; only the others are worth an index entry
    # (saves 12 bytes and 1 us an entry). Lookups look at parent + 1 themselves.
    "CREATE INDEX entry_child ON entry(parent) WHERE parent IS NOT seq - 1",
    "CREATE INDEX entry_kind ON entry(name) WHERE name > 0",
    "CREATE INDEX about_target ON about(target)",
)
"""A build makes them at its end."""


def require_sqlite(version: str) -> None:
    """Refuse an SQLite older than the floor.

    Raises IndexFault with what to do; ``version`` is as in ``apsw.sqlite_lib_version()``.
    """
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < SQLITE_FLOOR:
        floor = ".".join(map(str, SQLITE_FLOOR))
        raise IndexFault(
            "(no file)",
            f"SQLite {version} is too old, {floor} or newer is needed (older ones can malform "
            f"a database that several processes use): upgrade apsw",
            library=True,
        )


_checksum_lock = threading.Lock()


@functools.cache
def _load_checksum_vfs() -> bool:
    try:
        from apsw import sqlite_extra  # noqa: PLC0415 (absent from some builds of APSW)
    except ImportError:
        return False
    if sqlite_extra.has("cksumvfs") != "extension":
        return False
    if CHECKSUM_VFS in apsw.vfs_names():
        return True
    default = apsw.vfs_names()[0]
    loader = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(loader, "cksumvfs")
    except (apsw.Error, OSError, sqlite_extra.NotAvailable):
        return False
    finally:
        # Loading makes it the default of the whole process, which is not ours to change.
        if apsw.vfs_names()[0] != default:
            apsw.set_default_vfs(default)
        loader.close()
    return CHECKSUM_VFS in apsw.vfs_names()


def checksum_vfs() -> bool:
    """Whether page checksums are available (SQLite's cksumvfs, loaded once per process)."""
    with _checksum_lock:
        return _load_checksum_vfs()


def resolved(path: str) -> str:
    """The path with its folder resolved: the file itself must not be a symbolic link."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def create_file(path: str) -> None:
    """Create the empty main file, 0600 whatever the umask; SQLite gives -wal and -shm its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.chmod(path, 0o600)


def require_file(path: str) -> None:
    """Refuse what is no regular file before SQLite opens it: it would wait for ever on a FIFO."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise IndexFault(path, "not a regular file")


def connect(path: str, *, readonly: bool) -> apsw.Connection:
    """Open a database file that exists. Settings are for :func:`configure`."""
    access = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    vfs = CHECKSUM_VFS if checksum_vfs() else None
    return apsw.Connection(path, flags=access | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs)


def connect_unlocked(path: str) -> apsw.Connection:
    """Open only the main file of a database, without locks, -wal and -shm; nothing is written."""
    path = resolved(path)
    for char, code in (("%", "%25"), ("?", "%3f"), ("#", "%23")):
        path = path.replace(char, code)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW
    vfs = CHECKSUM_VFS if checksum_vfs() else None
    return apsw.Connection(f"file:{path}?immutable=1", flags=flags, vfs=vfs)


def configure(db: apsw.Connection, *, busy_timeout_ms: int, cache_kib: int) -> None:
    """Settings of every connection of ours; reads nothing from the file."""
    db.set_busy_timeout(busy_timeout_ms)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    db.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
    db.execute("PRAGMA cell_size_check=ON")
    db.execute(f"PRAGMA cache_size=-{cache_kib:d}")
    db.execute("PRAGMA temp_store=MEMORY")
    db.execute("PRAGMA mmap_size=0")


def write_settings(db: apsw.Connection) -> None:
    """Settings of a connection that adds rows: WAL, synced at checkpoints only."""
    db.execute("PRAGMA synchronous=NORMAL")
    if db.pragma("journal_mode", "wal") != "wal":
        raise apsw.SQLError("this file system or VFS cannot do WAL")
    db.execute(f"PRAGMA journal_size_limit={JOURNAL_SIZE_LIMIT}")


def build_settings(db: apsw.Connection) -> None:
    """Settings of a build: nobody else sees the file, and it is thrown away if we die."""
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("PRAGMA journal_mode=OFF")
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA temp_store=FILE")  # sorting a million rows for an index takes 40 MiB


def create_schema(db: apsw.Connection, *, complete: bool, file_inode: int | None) -> None:
    """Make the tables in an empty database, within the caller's transaction."""
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    for statement in TABLES + LOADING_INDEXES + (SECONDARY_INDEXES if complete else ()):
        db.execute(statement)
    db.execute(
        "INSERT INTO state(one, complete, file_inode) VALUES(1, ?, ?)", (int(complete), file_inode)
    )


def reserve_checksums(db: apsw.Connection) -> None:
    """Reserve the bytes of the page checksums; must come before the first page is written."""
    if db.open_vfs == CHECKSUM_VFS:
        db.reserve_bytes("main", CHECKSUM_BYTES)


def check(db: apsw.Connection, path: str, *, file_inode: int | None) -> None:
    """Refuse a database that is not a complete session index of this version.

    With ``file_inode``, also one whose rows were written into another file: SQLite replays any
    ``-wal`` that lies beside a database, and what it replays passes every check of its own.
    """
    application, version = db.pragma("application_id"), db.pragma("user_version")
    if application != APPLICATION_ID:
        raise IndexFault(path, f"application id {application:#x}, not a Treering index")
    if version != SCHEMA_VERSION:
        raise IndexFault(path, f"schema version {version}, this program reads {SCHEMA_VERSION}")
    found = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")]
    if sorted(found) != sorted(TABLES + LOADING_INDEXES + SECONDARY_INDEXES):
        raise IndexFault(path, "its tables are not those of a session index")
    state = db.execute("SELECT complete, file_inode, newest, leaf FROM state").fetchall()
    if len(state) != 1 or state[0][0] != 1:
        raise IndexFault(path, "its build was never finished")
    _, inode, newest, _ = state[0]
    if file_inode is not None and inode != file_inode:
        raise IndexFault(path, "its rows were written into another file (a stale -wal, or a copy)")
    if db.execute("SELECT max(seq) FROM entry").get != newest:
        raise IndexFault(path, "its newest row is not the one its state names")
