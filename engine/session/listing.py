"""The sessions of a store as lists show them: a row for every file, whatever is wrong with it.

A row comes from one verified pass over the journal, so it says the same with and without an index,
and a damaged session never looks well. No index is built for it, none is read (only the watermark
that one remembers), and nothing is written but the catalogue, where rows are remembered for as long
as the file does not change; where none can be written, this process remembers some.

"Recent" is the last user or assistant message, everywhere; times of files do not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Final

from treering.engine import home
from treering.engine.errors import (
    Damaged,
    InvalidId,
    NotAJournal,
    NotFound,
    SourceChanged,
    TreeringError,
    Undecodable,
    Unsupported,
    from_os_error,
)
from treering.engine.home import JOURNAL_SUFFIX, Store
from treering.engine.journal.disk import LOCAL_DISK, File
from treering.engine.journal.format import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, Kind, salt_of
from treering.engine.journal.history import Walk
from treering.engine.journal.opening import Hint
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import FileBytes, frame_at
from treering.engine.journal.recovery import VERDICTS
from treering.engine.journal.shared import SharedFrames
from treering.engine.session.catalogue import Remembered
from treering.engine.session.entries import SessionHeader, decode_header
from treering.engine.session.facts import timestamp_ms
from treering.engine.session.filling import hint_of, peek_hint, stated_id
from treering.engine.session.listing_cache import InfoCache, Stamp, stamp_of
from treering.engine.session.session_info import SessionInfo, Status
from treering.engine.session.summing import ALL_TEXT_CHARS, Summary, summarise
from treering.engine.session.trash import hidden_ids
from treering.engine.session.view import examine_again
from treering.engine.transfer.depth import DEPTH_MAX, depth_of_source, read_header
from treering.index import IndexBusy, IndexFault, files
from treering.index.catalogue import Catalogue

_PARENTS: Final = re.compile(rb'"(?:parentSession|branchedFrom)"')
"""Members of a header that lead to the depth of a session which does not state its own."""

OnSession = Callable[[SessionInfo], None]
OnProgress = Callable[[int, int], None]


def list_sessions(
    store: Store,
    cwd: str | None = None,
    *,
    on_session: OnSession | None = None,
    on_progress: OnProgress | None = None,
    texts: bool = False,
) -> list[SessionInfo]:
    """The sessions of a store, newest activity first.

    Args:
        store: where; a missing folder has no sessions.
        cwd: only those of this working directory (links resolved). Files that tell no directory
            are in the list of all only.
        on_session: told each listed session as it is found, in the order of names.
        on_progress: told ``(loaded, total)`` after each file, listed or not.
        texts: whether to fill :attr:`SessionInfo.all_messages_text`.

    The callbacks run in the thread that calls this. Where that is a worker thread they must not
    touch an event loop but by ``call_soon_threadsafe``. What they raise ends the listing.

    Raises:
        Invalid: ``cwd`` cannot be a path.
        StorageError: the folder is there and cannot be listed.
    """
    found: list[SessionInfo] = []
    for loaded, total, info in _looks(store, cwd, texts=texts):
        if info is not None:
            found.append(info)
            if on_session is not None:
                on_session(info)
        if on_progress is not None:
            on_progress(loaded, total)
    return newest_first(found)


def iter_sessions(store: Store) -> Iterator[SessionInfo]:
    """All sessions of a store in the order of names, each read when it is asked for."""
    return (info for _, _, info in _looks(store, None, texts=False) if info is not None)


def newest_first(infos: Iterable[SessionInfo]) -> list[SessionInfo]:
    """By :attr:`SessionInfo.modified`; what tells no time comes last."""
    return sorted(infos, key=lambda info: (info.modified is None, -(info.modified or 0), info.id))


def most_recent(store: Store, cwd: str) -> str | None:
    """The path of the session of a working directory that was active last.

    None when there is none that is ok: damaged, foreign and legacy files are never taken.

    Raises:
        Invalid, StorageError: as :func:`list_sessions`.
    """
    usable = (info for info in list_sessions(store, cwd) if info.status == "ok")
    return next((info.path for info in usable), None)


def session_info(path: str) -> SessionInfo:
    """The row of one file; never an error because of what the file is."""
    path = os.path.abspath(path)
    name = os.path.basename(path).removesuffix(JOURNAL_SUFFIX)
    info = _Look(path, name, _folder_index(Store.of_journal(path)), None, None, texts=False).info()
    if info is None:
        return SessionInfo(path=path, id=name, status="unreadable", reason="no such file")
    return info


def session_names(store: Store) -> list[str]:
    """Ids that files of the store state by their names, sorted; whatever those files are.

    But for those whose deletion was begun and not finished: they are deleted.

    Raises:
        StorageError: the folder is there and cannot be listed.
    """
    return _names_of(store)[0]


def _names_of(store: Store) -> tuple[list[str], list[str]]:
    """(sessions, those whose deletion is not finished), sorted."""
    try:
        names = os.listdir(store.sessions)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise from_os_error(error, "list the sessions", store.sessions) from error
    stated = {
        name.removesuffix(JOURNAL_SUFFIX)
        for name in names
        if name.endswith(JOURNAL_SUFFIX) and not name.startswith(".")
    }
    hidden = hidden_ids(store)
    return sorted(stated - hidden), sorted(stated & hidden)


def path_in(store: Store, name: str) -> str:
    """The path of a listed name (it need not be an id that we would give)."""
    return os.path.join(store.sessions, name + JOURNAL_SUFFIX)


class Folder:
    """A working directory, to be compared with those that headers state. Links are resolved.

    Raises:
        Invalid: no system takes such a path.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(os.path.expanduser(home.check_path(path)))
        self._known: dict[str, bool] = {self._path: True}

    def is_stated(self, stated: str | None) -> bool:
        """Whether a header means this one. A relative directory means nothing here."""
        if stated is None or not os.path.isabs(stated):
            return False
        if stated not in self._known:
            try:
                self._known[stated] = os.path.realpath(stated) == self._path
            except (OSError, ValueError):
                self._known[stated] = False  # no system takes such a path
        return self._known[stated]


def is_of(path: str, folder: Folder) -> bool:
    """Whether a session states that working directory; only its header is read."""
    header = decode_header(read_header(path) or b"")
    return header is not None and folder.is_stated(header.cwd)


def refresh(store: Store, *, on_progress: OnProgress | None = None) -> None:
    """Bring the catalogue of a store up to date: only what moved is read.

    Raises:
        StorageError: the sessions folder is there and cannot be listed.
    """
    refresh_into(store, None, on_progress=on_progress)


def refresh_into(
    store: Store, catalogue: Catalogue | None, *, on_progress: OnProgress | None = None
) -> None:
    """The same with a catalogue that is open, perhaps in memory."""
    names, half_deleted = _names_of(store)
    with Remembered(store, names, half_deleted, texts=False, catalogue=catalogue) as rows:
        for loaded, _ in enumerate(_names_in(store, names, rows), 1):
            if on_progress is not None:
                on_progress(loaded, len(names))


def ids_named(store: Store, name: str) -> list[str]:
    """The ids of the sessions that have this display name, sorted.

    Raises:
        StorageError: the sessions folder is there and cannot be listed.
    """
    names, half_deleted = _names_of(store)
    with Remembered(store, names, half_deleted, texts=False) as rows:
        found = zip(names, _names_in(store, names, rows), strict=True)
        return [one for one, its_name in found if its_name == name]


def _names_in(store: Store, names: list[str], rows: Remembered) -> Iterator[str | None]:
    """The display name of each of these sessions; those that changed are read by the way."""
    indexes = _folder_index(store)
    texts = rows.keeps_texts
    for name in names:
        path = path_in(store, name)
        stamp = stamp_of(path, indexes.get(name))
        if stamp is not None and rows.is_current(name, stamp, texts=texts):
            yield rows.name_of(name)
            continue
        info = _Look(path, name, indexes, None, rows, texts=texts).info()
        yield None if info is None else info.name


def _looks(
    store: Store, cwd: str | None, *, texts: bool
) -> Iterator[tuple[int, int, SessionInfo | None]]:
    names, half_deleted = _names_of(store)
    folder = None if cwd is None else Folder(cwd)
    known = _folder_index(store)
    _cache.begin(store.sessions, [path_in(store, name) for name in names])
    with Remembered(store, names, half_deleted, texts=texts) as rows:
        for loaded, name in enumerate(names, 1):
            look = _Look(path_in(store, name), name, known, folder, rows, texts=texts)
            yield loaded, len(names), look.info()


def _folder_index(store: Store) -> dict[str, str]:
    """The index files of a store, which remember watermarks; one look at the folder for all."""
    try:
        return files.all_current(store.index)
    except (IndexFault, IndexBusy):
        return {}  # as for a view: whatever state the indexes are in, it stops no look at journals


_cache: Final = InfoCache[SessionInfo]()


class _Look:
    """A look at one file."""

    def __init__(
        self,
        path: str,
        name: str,
        indexes: dict[str, str],
        folder: Folder | None,
        rows: Remembered | None,
        *,
        texts: bool,
    ) -> None:
        self._path = path
        self._name = name
        self._indexes = indexes
        self._folder = folder
        self._rows = rows
        self._texts = texts
        # A catalogue keeps them for every later search: reading them again would cost more.
        self._reads_texts = texts or (rows is not None and rows.keeps_texts)
        self._keep = False
        """Whether the row can be remembered: the file rests, and nothing else is in it."""

    def info(self) -> SessionInfo | None:
        """The row; None when the file has gone, or is of another working directory."""
        stamp = stamp_of(self._path, self._indexes.get(self._name))
        known = None if stamp is None else self._known(stamp)
        if known is None:
            self._keep = stamp is not None and stamp.settled
            known = self._read(stamp)
        if known is None or not self._is_wanted(known.cwd):
            return None
        # Callers may change what they get.
        text = known.all_messages_text if self._texts else None
        status = deepcopy(known.agent_status)
        return replace(known, agent_status=status, all_messages_text=text)

    def _known(self, stamp: Stamp) -> SessionInfo | None:
        known = _cache.get(self._path, stamp, texts=self._texts)
        if self._rows is None:
            return known
        if known is None:
            return self._rows.get(self._name, stamp, texts=self._texts)
        if not self._rows.is_current(self._name, stamp, texts=self._texts):
            self._rows.put(known, stamp, settled=True)  # the catalogue is younger than this process
        return known

    def _is_wanted(self, cwd: str | None) -> bool:
        return self._folder is None or self._folder.is_stated(cwd)

    def _read(self, stamp: Stamp | None) -> SessionInfo | None:
        found = self._read_row()
        if found is None:
            return None
        # A system that refuses may say something else the next time.
        keep = self._keep and found.status != "unreadable"
        if self._rows is not None:
            self._rows.put(found, stamp, settled=keep)
        if stamp is not None and keep:
            kept = found if self._texts else replace(found, all_messages_text=None)
            _cache.put(self._path, stamp, kept, texts=self._texts, chars=_chars_of(kept))
        return found

    def _read_row(self) -> SessionInfo | None:
        try:
            home.check_session_id(self._name)
            return self._read_again()
        except NotAJournal as error:
            return self._foreign(error.what)
        except NotFound as error:
            if not os.path.lexists(self._path):
                return None
            return self._bad("unreadable", error.what)  # a link that leads nowhere
        except TreeringError as error:
            return self._bad(_status_of(error), error.what)
        except (OSError, MemoryError) as error:
            return self._bad("unreadable", str(error) or "out of memory")

    def _read_again(self) -> SessionInfo | None:
        """Read it; once more when it was cut or replaced while we looked."""
        try:
            return self._read_journal()
        except SourceChanged:
            return self._read_journal()

    def _read_journal(self) -> SessionInfo | None:
        path = home.journal_file(self._path)
        file = open_regular(LOCAL_DISK, path, write=False)
        try:
            stated = stated_id(file, path)
            if self._folder is not None and stated is not None:
                header = decode_header(_header_in(file, path, stated) or b"")
                if header is not None and not self._is_wanted(header.cwd):
                    return None
            # The watermark first, then the size: what an owner appends in between must not look
            # lost.
            watermark = self._watermark(path, stated)
            source = FileBytes(file, path, file.stat().size)
            found = examine_again(source, watermark)
            if found.case == "G" or found.journal_id is None:
                raise found.refusal()
            shared = SharedFrames(source, found.journal_id)
            walk = Walk(source.captured(found.place.offset), found.journal_id, shared=shared)
            info = self._row(summarise(walk, texts=self._reads_texts))
            if found.case != "A":
                status: Status = "ok" if found.case == "E" else "damaged"
                reason = f"case {found.case}: {VERDICTS[found.case]}"
                info = replace(info, status=status, reason=reason)
            return self._with_header(info, _header_in(file, path, found.journal_id), path)
        finally:
            file.close()

    def _watermark(self, path: str, stated: bytes | None) -> bytes | None:
        """What an index beside the journal remembers, untrusted."""
        hint: Hint | None = None
        if path == self._path:
            index = self._indexes.get(self._name)
            hint = None if index is None else hint_of(index, stated)
            if index is None or hint is not None or os.path.lexists(index):
                return None if hint is None else hint.watermark
        # A link into another store; or a newer index took the place of the one that was listed.
        try:
            name = home.session_id_of(path)
        except InvalidId:
            return None
        hint = peek_hint(Store.of_journal(path).index, name, stated)
        return None if hint is None else hint.watermark

    def _row(self, found: Summary) -> SessionInfo:
        said = found.metadata
        return SessionInfo(
            path=self._path,
            id=self._name,
            name=said.name,
            state=said.state,
            last_message=found.last_message,
            message_count=found.messages,
            entry_count=found.entries,
            first_user_text=found.first_user_text,
            all_messages_text=_joined(found.texts) if self._reads_texts else None,
            agent_status=said.agent_status,
            usage=found.usage,
        )

    def _with_header(self, info: SessionInfo, raw: bytes | None, path: str) -> SessionInfo:
        header = None if raw is None else decode_header(raw)
        if raw is not None and header is not None:
            depth = header.rlm_depth
            if depth is None or not 0 <= depth <= DEPTH_MAX:
                depth = 0
                if _PARENTS.search(raw):
                    depth, self._keep = depth_of_source(raw, path), False
            return replace(_placed(info, header), rlm_depth=depth)
        if info.status != "ok":
            return info
        what = "is lost" if raw is None else "is not as documented"
        return replace(info, status="damaged", reason=f"the session header {what}")

    def _foreign(self, reason: str) -> SessionInfo:
        """A legacy file still tells which working directory it is of."""
        info = self._bad("foreign", reason)
        header = decode_header(read_header(self._path) or b"")
        return info if header is None else _placed(info, header)

    def _bad(self, status: Status, reason: str) -> SessionInfo:
        return SessionInfo(path=self._path, id=self._name, status=status, reason=reason)


def _header_in(file: File, path: str, journal_id: bytes) -> bytes | None:
    """The session header; None when its frame does not verify, or cannot be decoded."""
    source = FileBytes(file, path, file.stat().size)
    salt = salt_of(journal_id)
    first = frame_at(source, salt, FILE_HEADER_BYTES)
    found = None if first is None else frame_at(source, salt, first[0].end)
    if found is None or found[0].kind != Kind.SESSION:
        return None
    decoder = SharedFrames(source, journal_id).decoder
    try:
        return decoder.decode(found[0], found[1][FRAME_HEADER_BYTES:])
    except (Undecodable, Damaged):
        return None


def _joined(texts: list[str]) -> str:
    return " ".join(texts)[:ALL_TEXT_CHARS]


def _placed(info: SessionInfo, header: SessionHeader) -> SessionInfo:
    return replace(
        info,
        cwd=header.cwd,
        created=timestamp_ms(header.timestamp),
        parent_session_path=header.parent_session,
    )


def _status_of(error: TreeringError) -> Status:
    # What the system refuses says nothing about the session, nor does a file that does not hold
    # still.
    if error.exit_code == 3 or isinstance(error, SourceChanged):
        return "unreadable"
    return "unsupported" if isinstance(error, Unsupported) else "damaged"


def _chars_of(info: SessionInfo) -> int:
    texts = (info.path, info.name, info.cwd, info.first_user_text, info.all_messages_text)
    return sum(len(text) for text in texts if text) + len(str(info.agent_status))
