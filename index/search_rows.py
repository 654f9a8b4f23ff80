"""Tables and rows of the search index: what is fed to it, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import apsw

from treering.index import handle
from treering.index.faults import IndexFault
from treering.index.rows import Position

FILE_NAME: Final = "search_"
"""What the generations of it are called: no session has such an id."""

APPLICATION_ID: Final = 0x54524E53  # "TRNS"
SCHEMA_VERSION: Final = 1

ID_BITS: Final = 10
ID_MAX: Final = 2**62
MS_MAX: Final = 2**50
DIGEST_BYTES: Final = 8

TABLES: Final = (
    """CREATE TABLE state(
  one INTEGER PRIMARY KEY CHECK(one = 1), sequence INTEGER NOT NULL, file_inode INTEGER,
  born BLOB NOT NULL
) STRICT""",
    # dead: rows whose words are still there, of a journal that is not there any more.
    """CREATE TABLE session(
  num INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, journal_id BLOB NOT NULL,
  sequence INTEGER, offset INTEGER, revision BLOB, stamp BLOB NOT NULL, cwd TEXT, trouble TEXT,
  last_time INTEGER, dead INTEGER NOT NULL DEFAULT 0
) STRICT""",
    "CREATE TABLE name(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, role TEXT) STRICT",
    # A dead row has the session's number below zero: its id must not be used again.
    """CREATE TABLE row(
  id INTEGER PRIMARY KEY, session INTEGER NOT NULL, seq INTEGER NOT NULL, offset INTEGER NOT NULL,
  name INTEGER NOT NULL, time INTEGER, digest BLOB NOT NULL
) STRICT""",
    "CREATE INDEX row_session ON row(session)",
    """CREATE TABLE field(
  id INTEGER PRIMARY KEY, session INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL,
  text TEXT NOT NULL, UNIQUE(session, kind, number)
) STRICT""",
    """CREATE VIRTUAL TABLE words USING fts5(
  text, content='', tokenize='unicode61 remove_diacritics 2'
)""",
    """CREATE VIRTUAL TABLE shorts USING fts5(
  text, content='', tokenize='trigram remove_diacritics 1'
)""",
)

_SECURE: Final = tuple(
    f"INSERT INTO {table}({table}, rank) VALUES('secure-delete', 1)"
    for table in ("words", "shorts")
)


class QueryRefused(Exception):
    """A query in the syntax of FTS5 that FTS5 does not take."""


class Text(NamedTuple):
    """The text of one entry."""

    sequence: int
    offset: int
    kind: str
    role: str | None
    time_ms: int | None
    text: str


class Field(NamedTuple):
    """A short text that is found by any part of it. ``text`` None removes it."""

    kind: str
    number: int
    """Tells several of one kind apart."""
    text: str | None
    keep: bool = False
    """Whether one that is there already stays."""


class Feed(NamedTuple):
    """More of one session."""

    session_id: str
    journal_id: bytes
    position: Position | None
    stamp: bytes
    cwd: str | None
    trouble: str | None
    texts: Sequence[Text]
    fields: Sequence[Field]


class Fed(NamedTuple):
    """How far a session was fed."""

    number: int
    session_id: str
    journal_id: bytes
    position: Position | None
    stamp: bytes
    cwd: str | None
    trouble: str | None
    dead: int


class Filters(NamedTuple):
    """What hits must be; None asks nothing. Sessions are numbers."""

    sessions: Sequence[int] | None = None
    roles: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class Hit(NamedTuple):
    """A row that was found. What it says is in the journal."""

    id: int
    session_id: str
    sequence: int
    offset: int
    kind: str
    role: str | None
    time_ms: int | None
    digest: bytes


class FieldHit(NamedTuple):
    """A short text that was found."""

    session_id: str
    kind: str
    number: int
    text: str


def digest_of(text: str) -> bytes:
    """Tells whether a text is still the one that was fed."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def create(db: apsw.Connection, *, complete: bool, file_inode: int | None) -> None:
    """Make the tables in an empty database."""
    del complete  # every transaction leaves it whole
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    for statement in TABLES + _SECURE:
        db.execute(statement)
    db.execute("INSERT INTO state VALUES(1, 0, ?, randomblob(16))", (file_inode,))


def check(db: apsw.Connection, path: str, *, file_inode: int | None) -> None:
    """Refuse a database that is not a search index of this version."""
    application, version = db.pragma("application_id"), db.pragma("user_version")
    if application != APPLICATION_ID:
        raise IndexFault(path, f"application id {application:#x}, not a Treering search index")
    if version != SCHEMA_VERSION:
        raise IndexFault(path, f"schema version {version}, this program reads {SCHEMA_VERSION}")
    found = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if not found.issuperset(TABLES):
        raise IndexFault(path, "its tables are not those of a search index")
    if db.execute("SELECT file_inode FROM state").fetchall() != [(file_inode,)]:
        raise IndexFault(path, "its rows were written into another file (a stale -wal, or a copy)")


KIND: Final = handle.Kind(create, check)
