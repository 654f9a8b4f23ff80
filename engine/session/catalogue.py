"""The catalogue of a store: which rows it has, which are of the files as they are now.

A row is used only while the stamp of its files is the one that it was read under. Whatever is wrong
with the catalogue (missing, garbage, locked, not to be written) costs another look at the journals,
and never an answer.
"""

from __future__ import annotations

import json
import os
import struct
from types import TracebackType
from typing import Any, Final, Self

from treering.engine import home
from treering.engine.errors import StorageError, TreeringError
from treering.engine.home import JOURNAL_SUFFIX, Store
from treering.engine.session.listing_cache import Stamp
from treering.engine.session.session_info import SessionInfo, Status
from treering.index import IndexBusy, IndexFault, Usage, files
from treering.index.catalogue import NAME, Catalogue, SessionRow, open_current

HALF_DELETED: Final = "half-deleted"

ROWS_PER_TRANSACTION: Final = 256
"""Rows that were read are written so often: a kill repeats no more than this."""

_STAT: Final = struct.Struct("<QQqqq")
_STATUSES: Final[dict[str, Status]] = {
    "ok": "ok",
    "damaged": "damaged",
    "foreign": "foreign",
    "unsupported": "unsupported",
    "unreadable": "unreadable",
    HALF_DELETED: "half-deleted",
}


class Remembered:
    """What the catalogue knows, for one look at all sessions of a store; a context manager.

    What was read anew is written by the way and at the end; nothing is kept open in between.
    """

    def __init__(
        self,
        store: Store,
        names: list[str],
        half_deleted: list[str],
        *,
        texts: bool,
        catalogue: Catalogue | None = None,
    ) -> None:
        """``names`` and ``half_deleted`` are all sessions that are there; rows of others go.

        With ``catalogue``, that one is used and stays open.
        """
        self._store = store
        self._there = {*names, *half_deleted}
        self._half_deleted = half_deleted
        self._given = catalogue
        self._usable = True
        self._put: dict[str, tuple[SessionRow, str | None]] = {}
        self._rows: dict[str, SessionRow] = {}
        self._texts: dict[str, str] = {}
        self._load(texts=texts)

    @property
    def keeps_texts(self) -> bool:
        """Whether the texts of messages are worth reading."""
        return self._usable

    def is_current(self, name: str, stamp: Stamp, *, texts: bool) -> bool:
        """Whether the row is of the files in this state, and has the texts that are asked for."""
        row = self._rows.get(name)
        return (
            row is not None
            and row.settled
            and row.stamp == packed(stamp)
            and (row.has_text or not texts)
        )

    def name_of(self, name: str) -> str | None:
        """The display name of a session by its row."""
        return self._rows[name].name

    def get(self, name: str, stamp: Stamp, *, texts: bool) -> SessionInfo | None:
        """The row of a session, if it is of the files in this state."""
        if not self.is_current(name, stamp, texts=texts):
            return None
        try:
            text = self._texts.get(name, "") if texts else None
            return info_of(self._store, self._rows[name], text)
        except IndexFault:
            return None

    def put(self, info: SessionInfo, stamp: Stamp | None, *, settled: bool) -> None:
        """What was just read of a session."""
        if not self._usable:
            return
        row = row_of(self._store, info, stamp, settled=settled)
        if row == self._rows.get(info.id):
            return
        self._put[info.id] = row, info.all_messages_text
        if len(self._put) >= ROWS_PER_TRANSACTION:
            self._write([])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._usable:
            return
        for name in self._half_deleted:
            # Nothing of what it said: it is deleted, only not finished.
            info = SessionInfo(
                path=os.path.join(self._store.sessions, name + JOURNAL_SUFFIX),
                id=name,
                status="half-deleted",
                reason="its deletion was begun and not finished",
            )
            self.put(info, None, settled=False)
        gone = [name for name in self._rows if name not in self._there]
        if self._put or gone:
            self._write(gone)

    def _load(self, *, texts: bool) -> None:
        try:
            if self._given is not None:
                self._read_all(self._given, texts=texts)
            elif files.current(self._store.index, NAME) is not None:
                with open_current(self._store.index) as catalogue:
                    self._read_all(catalogue, texts=texts)
        except (IndexFault, IndexBusy):
            self._usable = False

    def _read_all(self, catalogue: Catalogue, *, texts: bool) -> None:
        self._rows = catalogue.rows()
        if texts:
            self._texts = dict(catalogue.texts())

    def _write(self, gone: list[str]) -> None:
        put, self._put = list(self._put.values()), {}
        try:
            if self._given is not None:
                self._given.write(put, gone)
                return
            home.check_writable_place(self._store.index)
            with open_current(self._store.index) as catalogue:
                catalogue.write(put, gone)
        except (IndexFault, IndexBusy, TreeringError):
            self._usable = False  # the next list reads them again


def open_catalogue(store: Store) -> Catalogue:
    """The catalogue of a store, or one in memory where there can be none."""
    try:
        home.check_writable_place(store.index)
        return open_current(store.index)
    except (IndexFault, IndexBusy, TreeringError):
        return Catalogue.memory()


def forget_row(store: Store, session_id: str) -> None:
    """Remove what the catalogue knows of a session that is deleted, words and all.

    Where that cannot be done, or bad copies are about, all files of the catalogue go: the next list
    makes it anew.

    Raises:
        StorageError: some of it is left; again.
    """
    try:
        path = files.current(store.index, NAME)
        if not _is_forgotten(store, path, session_id):
            files.remove_all(store.index, NAME)
    except (IndexFault, IndexBusy, OSError) as error:
        raise StorageError(
            f"its words could not be removed from the catalogue: {error}",
            path=store.index,
            next_step="`session delete` of it again, or finish_deletions, goes on",
        ) from error


def _is_forgotten(store: Store, path: str | None, session_id: str) -> bool:
    try:
        there = [name for name in os.listdir(store.index) if name.startswith(f"{NAME}.")]
    except (FileNotFoundError, NotADirectoryError):
        return True
    if path is None or any(".bad-" in name for name in there):
        return not there
    try:
        with Catalogue.open(path) as catalogue:
            return catalogue.forget(session_id)
    except (IndexFault, IndexBusy):
        return False


def packed(stamp: Stamp) -> bytes:
    """A stamp as the catalogue keeps it."""
    return b"".join(b"\0" if part is None else b"\1" + _STAT.pack(*part) for part in stamp)


def row_of(store: Store, info: SessionInfo, stamp: Stamp | None, *, settled: bool) -> SessionRow:
    """The row of what was read under a stamp."""
    try:
        status = None if info.agent_status is None else json.dumps(info.agent_status)
        usage = None if info.usage is None else json.dumps(info.usage)
    except (ValueError, RecursionError):  # a number of more digits than Python converts
        status = usage = None
        settled = False
    return SessionRow(
        id=info.id,
        stamp=None if stamp is None else packed(stamp),
        settled=settled,
        status=info.status,
        reason=info.reason,
        cwd=info.cwd,
        name=info.name,
        state=info.state,
        parent_path=info.parent_session_path,
        parent=_parent_id(store, info.parent_session_path),
        depth=info.rlm_depth,
        created=info.created,
        last_message=info.last_message,
        messages=info.message_count,
        entries=info.entry_count,
        first_text=info.first_user_text,
        agent_status=status,
        usage=usage,
        active=info.modified,
        title=(info.name or info.first_user_text or "").casefold()[:100],
        has_text=info.all_messages_text is not None or info.status not in ("ok", "damaged"),
    )


def info_of(store: Store, row: SessionRow, text: str | None = None) -> SessionInfo:
    """The reverse of :func:`row_of`.

    Raises:
        IndexFault: the row cannot have come from there.
    """
    try:
        return _info_of(store, row, text)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise IndexFault(NAME, f"a row that nobody wrote: {error!r}") from error


def _info_of(store: Store, row: SessionRow, text: str | None) -> SessionInfo:
    opens = row.status in ("ok", "damaged")
    usage = None if row.usage is None else json.loads(row.usage)
    return SessionInfo(
        path=os.path.join(store.sessions, row.id + JOURNAL_SUFFIX),
        id=row.id,
        status=_STATUSES[row.status],
        reason=row.reason,
        cwd=row.cwd,
        name=row.name,
        state=row.state,
        parent_session_path=row.parent_path,
        rlm_depth=row.depth,
        created=row.created,
        last_message=row.last_message,
        message_count=row.messages,
        entry_count=row.entries,
        first_user_text=row.first_text,
        all_messages_text=text if opens else None,
        agent_status=_members(row.agent_status),
        usage=None if usage is None else Usage(*usage),
    )


def _members(text: str | None) -> dict[str, Any] | None:
    found = None if text is None else json.loads(text)
    return found if isinstance(found, dict) else None


def _parent_id(store: Store, path: str | None) -> str | None:
    """The id of a parent in the same store, by the path that the header states."""
    if path is None or not os.path.isabs(path) or not path.endswith(JOURNAL_SUFFIX):
        return None
    folder, name = os.path.split(os.path.normpath(path))
    if folder != store.sessions:
        try:
            if os.path.realpath(folder) != os.path.realpath(store.sessions):
                return None
        except (OSError, ValueError):
            return None  # no system takes such a path
    return name.removesuffix(JOURNAL_SUFFIX)
