# ruff: noqa: S608 (statements are made of our own constants; values are always bound)
"""The words of many sessions: full-text search. Derived from journals, disposable.

Texts themselves are not kept (the tables of FTS5 are contentless): who removes words must bring
the text again. A row's id is its time in milliseconds times 1024, and a number: so the newest hit
comes first without sorting, whatever was fed when.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self, cast

import apsw

from treering.index import handle
from treering.index.faults import IndexFault
from treering.index.handle import guarded
from treering.index.rows import Position
from treering.index.search_query import fold, quoted
from treering.index.search_rows import (
    ID_BITS,
    ID_MAX,
    KIND,
    MS_MAX,
    Fed,
    Feed,
    Field,
    FieldHit,
    Filters,
    Hit,
    QueryRefused,
    Text,
    create,
    digest_of,
)

_SESSIONS_LOOKED_UP: Final = 64

_SECURE: Final = "INSERT INTO words(words, rank) VALUES('secure-delete',"

_NOBODY: Final = -1
"""An id that no row has."""


class SearchIndex(handle.Handle):
    """One SQLite database about the words of many sessions.

    Promised: a call that changes something is one transaction; no exception but IndexFault (set the
    file aside, feed another), IndexBusy and QueryRefused comes out because of the file. Not
    promised: that what a hit names says so; who shows it reads the journal.
    """

    @classmethod
    def open(
        cls,
        path: str,
        *,
        readonly: bool = False,
        create: bool = False,
        busy_timeout_ms: int = 5_000,
        cache_kib: int = 32_768,
    ) -> Self:
        """Open a file, or with ``create`` make an empty one; see :meth:`SessionIndex.open`."""
        db, path = handle.open_file(
            path,
            readonly=readonly,
            create=create,
            busy_timeout_ms=busy_timeout_ms,
            cache_kib=cache_kib,
            kind=KIND,
        )
        return cls._of(db, path, readonly=readonly, registered=True)

    @classmethod
    def memory(cls) -> Self:
        """An empty one in memory."""
        db = apsw.Connection(":memory:")
        create(db, complete=True, file_inode=None)
        return cls._of(db, ":memory:", readonly=False, registered=False)

    @classmethod
    def _of(cls, db: apsw.Connection, path: str, *, readonly: bool, registered: bool) -> Self:
        found = cls(db, path, readonly=readonly, registered=registered)
        found._run("PRAGMA secure_delete=ON")
        return found

    # Feeding

    @guarded
    def sessions(self) -> dict[str, Fed]:
        """What was fed, by session id."""
        sql = "SELECT num, id, journal_id, sequence, offset, revision, stamp, cwd, trouble, dead"
        return {row[1]: _fed(row) for row in self._db.execute(f"{sql} FROM session")}

    @guarded
    def born(self) -> bytes:
        """Tells this file from every other, also of the same name: what was fed stays in it."""
        found = self._db.execute("SELECT born FROM state").get
        if not isinstance(found, bytes):
            raise IndexFault(self._path, "its state row is gone")
        return found

    @guarded
    def counts(self) -> tuple[int, int]:
        """How many texts can be found, and of how many the words are only dead weight."""
        live = self._db.execute("SELECT count(*) FROM row WHERE session > 0").get
        return live, self._db.execute("SELECT coalesce(sum(dead), 0) FROM session").get

    @guarded
    def feed(self, feeds: Iterable[Feed], *, anew: Iterable[str] = ()) -> None:
        """Add texts, replace fields and move positions, in one transaction.

        The sessions ``anew`` are retired first: nobody sees them without any text.
        """
        with self._change():
            for session_id in anew:
                self._retire(session_id)
            rows: list[tuple[int, int, Text]] = []
            taken: set[int] = set()
            for feed in feeds:
                number, last = self._number(feed)
                for text in feed.texts:
                    last = text.time_ms if text.time_ms is not None else last
                    rows.append((self._free_id(last, taken), number, text))
                self._set_fields(number, feed.fields)
                self._db.execute("UPDATE session SET last_time=? WHERE num=?", (last, number))
            rows.sort(key=lambda row: row[0])  # FTS5 flushes at every id that is lower
            names = {
                (kind, role): number
                for number, kind, role in self._db.execute("SELECT * FROM name")
            }
            self._db.executemany(
                "INSERT INTO row VALUES(?, ?, ?, ?, ?, ?, ?)",
                (
                    (row, number, text.sequence, text.offset, self._name(names, text), text.time_ms,
                     digest_of(text.text))
                    for row, number, text in rows
                ),
            )  # fmt: skip
            self._db.executemany(
                "INSERT INTO words(rowid, text) VALUES(?, ?)",
                ((row, text.text) for row, _, text in rows),
            )

    def _number(self, feed: Feed) -> tuple[int, int]:
        position = feed.position or (None, None, None)
        self._db.execute(
            "INSERT INTO session(id, journal_id, sequence, offset, revision, stamp, cwd, trouble)"
            " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT(id) DO UPDATE SET journal_id=?2,"
            " sequence=?3, offset=?4, revision=?5, stamp=?6, cwd=?7, trouble=?8",
            (feed.session_id, feed.journal_id, *position, feed.stamp, feed.cwd, feed.trouble),
        )
        sql = "SELECT num, coalesce(last_time, 0) FROM session WHERE id=?"
        found: Any = self._db.execute(sql, (feed.session_id,)).fetchone()
        return found[0], found[1]

    def _free_id(self, time_ms: int, taken: set[int]) -> int:
        base = min(max(time_ms, 0), MS_MAX) << ID_BITS
        sql = "SELECT max(id) FROM row WHERE id BETWEEN ? AND ?"
        while True:
            last = self._db.execute(sql, (base, base + 2**ID_BITS - 1)).get
            free = base if last is None else last + 1
            while free in taken:
                free += 1
            if free < base + 2**ID_BITS:
                taken.add(free)
                return free
            base += 2**ID_BITS  # more in one millisecond than there are numbers: the next one

    def _name(self, names: dict[tuple[str, str | None], int], text: Text) -> int:
        key = (text.kind, text.role)
        if key not in names:
            self._db.execute("INSERT INTO name(kind, role) VALUES(?, ?)", key)
            names[key] = self._db.last_insert_rowid()
        return names[key]

    def _set_fields(self, number: int, fields: Iterable[Field]) -> None:
        for field in fields:
            key = (number, field.kind, field.number)
            where = "session=? AND kind=? AND number=?"
            if field.keep and self._db.execute(f"SELECT 1 FROM field WHERE {where}", key).get:
                continue
            self._drop_fields(where, key)
            if field.text:
                sql = "INSERT INTO field(session, kind, number, text) VALUES(?, ?, ?, ?)"
                self._db.execute(sql, (*key, field.text))
                row = (self._db.last_insert_rowid(), field.text)
                self._db.execute("INSERT INTO shorts(rowid, text) VALUES(?, ?)", row)

    def _drop_fields(self, where: str, values: tuple[Any, ...]) -> None:
        for row in self._db.execute(f"SELECT id, text FROM field WHERE {where}", values).fetchall():
            delete = "INSERT INTO shorts(shorts, rowid, text) VALUES('delete', ?, ?)"
            self._db.execute(delete, row)
            self._db.execute("DELETE FROM field WHERE id=?", row[:1])

    # Removing

    @guarded
    def retire(self, session_id: str) -> None:
        """Make a session's texts unfindable, to be fed anew: its journal is another one now.

        Its words stay until :meth:`forget`, which then says that it cannot: nobody has the texts.
        """
        with self._change():
            self._retire(session_id)

    def _retire(self, session_id: str) -> None:
        number = self._db.execute("SELECT num FROM session WHERE id=?", (session_id,)).get
        if number is None:
            return
        self._db.execute("UPDATE row SET session=-session WHERE session=?", (number,))
        dead = self._db.changes()
        self._drop_fields("session=?", (number,))
        self._db.execute(
            "UPDATE session SET dead=dead+?, sequence=NULL, offset=NULL, revision=NULL,"
            " stamp=x'', last_time=NULL WHERE num=?",
            (dead, number),
        )

    @guarded
    def forget(self, session_id: str, text_of: Callable[[Hit], str | None]) -> bool:
        """Remove a session's words for good: no byte of them stays in the files.

        ``text_of`` gives the text that was fed. False, and nothing was changed, when one is not
        that any more, or when a reader keeps the ``-wal`` from being emptied: remove the files.
        """
        try:
            with self._change():
                sql = "SELECT num, dead FROM session WHERE id=?"
                found = self._db.execute(sql, (session_id,)).fetchone()
                if found is None:
                    return True
                number, dead = found
                if dead:
                    return False
                # Deleting at once what the merge below removes anyway takes far longer than it.
                self._db.execute(f"{_SECURE} 0)")
                sql = f"{_ROWS} WHERE r.session=? ORDER BY r.offset"
                for hit in map(Hit._make, self._db.execute(sql, (number,))):
                    text = text_of(hit)
                    if text is None or digest_of(text) != hit.digest:
                        raise _TextIsGone
                    delete = "INSERT INTO words(words, rowid, text) VALUES('delete', ?, ?)"
                    self._db.execute(delete, (hit.id, text))
                self._db.execute("DELETE FROM row WHERE session=?", (number,))
                self._drop_fields("session=?", (number,))
                self._db.execute("DELETE FROM session WHERE num=?", (number,))
                for table in ("words", "shorts"):
                    self._renew_terms(table)
                self._db.execute(f"{_SECURE} 1)")
        except _TextIsGone:
            return False
        return self._rewrite()

    def _renew_terms(self, table: str) -> None:
        # Whatever is deleted, the beginnings of words that once began a page stay as its name until
        # it is merged with others. A single segment is not merged: so there must be a second one.
        self._db.execute(f"INSERT INTO {table}(rowid, text) VALUES(?, 'xxx')", (_NOBODY,))
        self._db.execute(f"INSERT INTO {table}({table}) VALUES('optimize')")
        delete = f"INSERT INTO {table}({table}, rowid, text) VALUES('delete', ?, 'xxx')"
        self._db.execute(delete, (_NOBODY,))

    def _rewrite(self) -> bool:
        # Pages that were split or merged hold old cells between their ends, whatever SQLite is
        # told about deletion: only new pages are surely free of them.
        if self._path == ":memory:":
            return True
        self._db.execute("PRAGMA temp_store=FILE")  # a whole copy, which memory need not hold
        self._db.execute("VACUUM")
        self._db.execute("PRAGMA temp_store=MEMORY")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        try:
            return os.stat(self._path + "-wal").st_size == 0
        except FileNotFoundError:
            return True

    def _change(self) -> _Change:
        return _Change(self._db)

    # Searching

    @guarded
    def newest(
        self,
        match: str | None,
        filters: Filters,
        *,
        before: int = ID_MAX,
        limit: int,
        raw: bool = False,
    ) -> list[Hit]:
        """Hits with an id below ``before``, newest first; without ``match`` all rows."""
        ids = "r.id" if match is None else "words.rowid"
        where, values = self._where(filters, ids)
        source = f"{_ROWS} WHERE " if match is None else f"{_MATCHING} WHERE words MATCH ? AND "
        values = [*([] if match is None else [match]), before, *values, limit]
        sql = f"{source} {ids} < ?{where} ORDER BY {ids} DESC LIMIT ?"
        return self._matching(sql, values, raw=raw)

    @guarded
    def ranked(
        self,
        match: str,
        filters: Filters,
        *,
        before: int = ID_MAX,
        among: int,
        skip: int = 0,
        limit: int,
        raw: bool = False,
    ) -> list[Hit]:
        """The best of the newest ``among`` hits with an id below ``before``."""
        sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid < ? ORDER BY rowid DESC"
        try:
            least = self._db.execute(f"{sql} LIMIT 1 OFFSET ?", (match, before, among - 1)).get
        except apsw.SQLError as error:
            raise _refusal(error, raw=raw) from error
        where, values = self._where(filters, "words.rowid")
        sql = f"{_MATCHING} WHERE words MATCH ? AND words.rowid < ? AND words.rowid >= ?{where}"
        sql += " ORDER BY bm25(words), words.rowid DESC LIMIT ? OFFSET ?"
        return self._matching(sql, [match, before, least or 0, *values, limit, skip], raw=raw)

    def _where(self, filters: Filters, ids: str) -> tuple[str, list[Any]]:
        """Further conditions, and their values."""
        where, values = "", []
        if filters.since_ms is not None:
            # The first lets FTS5 stop, the second is exact.
            where += f" AND {ids} >= ? AND r.time >= ?"
            since = min(max(filters.since_ms, -MS_MAX), MS_MAX)
            values += [max(since, 0) << ID_BITS, since]
        if filters.until_ms is not None:
            where += " AND r.time < ?"
            values.append(min(max(filters.until_ms, -MS_MAX), MS_MAX))
        for column, wanted in (
            ("r.session", filters.sessions),
            ("n.role", filters.roles),
            ("n.kind", filters.kinds),
        ):
            if wanted is not None:
                where += f" AND {column} IN (SELECT value FROM carray(?))" if wanted else " AND 0"
                values += [_array(wanted)] if wanted else []
        if filters.sessions and len(filters.sessions) <= _SESSIONS_LOOKED_UP:
            # Where none of their rows is, FTS5 need not look.
            sql = "SELECT min(id), max(id) FROM row WHERE session=?"
            found: list[Any] = [
                self._db.execute(sql, (number,)).fetchone() for number in filters.sessions
            ]
            ends = [row for row in found if row[0] is not None] or [(0, -1)]
            where += f" AND {ids} >= ? AND {ids} <= ?"
            values += [min(low for low, _ in ends), max(high for _, high in ends)]
        return where, values

    def _matching(self, sql: str, values: Sequence[Any], *, raw: bool) -> list[Hit]:
        try:
            return self._hits(sql, values)
        except apsw.SQLError as error:
            raise _refusal(error, raw=raw) from error

    def _hits(self, sql: str, values: Sequence[Any]) -> list[Hit]:
        return list(map(Hit._make, self._db.execute(sql, tuple(values)).fetchall()))

    @guarded
    def fields(
        self, part: str, kinds: Sequence[str], sessions: Sequence[int] | None, *, limit: int
    ) -> list[FieldHit]:
        """Short texts that hold ``part`` anywhere, by session and kind; case does not count."""
        if not kinds or (sessions is not None and not sessions):
            return []
        where = " AND f.kind IN (SELECT value FROM carray(?))"
        values: list[Any] = [_array(kinds)]
        if sessions is not None:
            where += " AND f.session IN (SELECT value FROM carray(?))"
            values.append(_array(sessions))
        tail = "CROSS JOIN session s ON s.num = f.session WHERE"
        head = "SELECT s.id, f.kind, f.number, f.text FROM"
        folded = fold(part)
        if len(part) < 3 or not part.isascii():  # too short for trigrams, or folded otherwise
            sql = f"{head} field f {tail} 1{where} ORDER BY f.id DESC"
            rows = self._db.execute(sql, tuple(values))
            found = (FieldHit(*row) for row in rows if folded in fold(row[3]))
            return [hit for hit, _ in zip(found, range(limit), strict=False)]
        sql = f"{head} shorts CROSS JOIN field f ON f.id = shorts.rowid {tail}"
        sql += f" shorts MATCH ?{where} ORDER BY shorts.rowid DESC LIMIT ?"
        rows = self._db.execute(sql, (quoted(part), *values, limit))
        return [FieldHit(*row) for row in rows]

    @guarded
    def self_check(self) -> None:
        """Raise IndexFault when FTS5 finds its own tables inconsistent. Reads all of them."""
        for table in ("words", "shorts"):
            self._db.execute(f"INSERT INTO {table}({table}) VALUES('integrity-check')")


_NAMED: Final = (
    "SELECT r.id, s.id, r.seq, r.offset, n.kind, n.role, r.time, r.digest FROM {}"
    " CROSS JOIN session s ON s.num = r.session CROSS JOIN name n ON n.id = r.name"
)
_ROWS: Final = _NAMED.format("row r")
_MATCHING: Final = _NAMED.format("words CROSS JOIN row r ON r.id = words.rowid")


def _array(wanted: Sequence[int] | Sequence[str]) -> Any:
    """A table of these values."""
    if isinstance(wanted[0], int):
        return apsw.carray(array("q", cast("Sequence[int]", wanted)))
    return apsw.carray(tuple(cast("Sequence[str]", wanted)))


def _refusal(error: apsw.SQLError, *, raw: bool) -> Exception:
    return QueryRefused(str(error)) if raw else error


def _fed(row: tuple[Any, ...]) -> Fed:
    number, session_id, journal_id, sequence, offset, revision, stamp, cwd, trouble, dead = row
    position = None if sequence is None else Position(sequence, offset, revision)
    return Fed(number, session_id, journal_id, position, stamp, cwd, trouble, dead)


class _TextIsGone(Exception):
    """A text that was fed cannot be had any more."""


class _Change:
    """A transaction that counts itself."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            try:
                self._db.execute("UPDATE state SET sequence = sequence + 1")
                self._db.execute("COMMIT")
                return
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        if self._db.in_transaction:  # a full disk may have ended it already
            self._db.execute("ROLLBACK")
