"""Searching the whole text of all sessions of a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from treering.engine.errors import Invalid, StorageError, TreeringError
from treering.engine.home import Store
from treering.engine.json_text import clean
from treering.engine.search import opening
from treering.engine.search.feeding import (
    LOCK_TIMEOUT_S,
    ROUNDS,
    Troubles,
    feed_memory,
    feed_store,
)
from treering.engine.search.journals import Journal
from treering.engine.search.texts import Said
from treering.engine.session.listing import Folder, path_in
from treering.index import IndexBusy, IndexFault
from treering.index.search import SearchIndex
from treering.index.search_query import Query, find, fold, parse
from treering.index.search_rows import ID_MAX, Filters, Hit, QueryRefused

QUERY_CHARS_MAX: Final = 1_000
QUERY_TERMS_MAX: Final = 32
PAGE_HITS_MAX: Final = 1_000
RANKED_AMONG: Final = 20_000
"""A ranked search takes the best of so many of the newest hits."""

SCAN_ROWS_MAX: Final = 20_000
SCAN_CHARS_MAX: Final = 64 * 1024 * 1024
"""What one search reads of texts where words cannot be looked up; a cursor goes on."""

SNIPPET_CHARS: Final = 160
FIELDS: Final = ("name", "first", "path", "label")
FIELD_HITS_MAX: Final = 20
_CHUNK: Final = 256
_JOURNALS_OPEN_MAX: Final = 64

_CURSOR: Final = re.compile(r"([nr])([0-9]{1,19})(?:\.([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """An entry that was found. Times are Unix milliseconds."""

    session_id: str
    path: str
    sequence: int
    entry_id: str | None
    """The id that the entry itself states."""
    kind: str
    role: str | None
    time_ms: int | None
    snippet: str
    """A part of its text, read from the journal."""
    match: tuple[int, int] | None
    """Where a term stands in the snippet; None when it is not one stretch of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMatch:
    """A short text that holds the query somewhere, be it inside a word."""

    session_id: str
    path: str
    field: str
    """``name``, ``first`` (message of a user), ``path`` (and working directory) or ``label``."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """A page of hits."""

    hits: tuple[SearchHit, ...]
    cursor: str | None
    """Give it as ``after`` for the next page; None at the end."""
    fields: tuple[FieldMatch, ...]
    """On the first page: names, first messages, paths and labels."""
    scanned: int | None
    """How many texts were read one by one, as their words cannot be looked up (scripts without
    spaces, signs); None when none. Then a page may be short, or empty, and have a cursor."""
    problems: tuple[tuple[str, str], ...]
    """Session ids (empty for all), and what of them could not be searched, and why."""


def search_sessions(
    store: Store,
    query: str,
    *,
    session_ids: Sequence[str] | None = None,
    cwd: str | None = None,
    roles: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    rank: bool = False,
    raw: bool = False,
    limit: int = 20,
    after: str | None = None,
) -> SearchPage:
    """Find entries by what they say: messages of users, assistants and tools, and summaries.

    The index is brought up to the journals first. All words of the query must be in an entry;
    ``"two words"`` is a phrase, ``wor*`` a beginning. Case and accents do not count.

    Args:
        store: where.
        query: words, phrases, beginnings; with ``raw`` the syntax of FTS5.
        session_ids: only in these sessions.
        cwd: only in sessions of this working directory.
        roles: only messages of these roles.
        kinds: only entries of these kinds.
        since_ms: only entries from this time on; entries without a time are left out.
        until_ms: only entries before this time.
        rank: best first, of the newest 20,000 hits; else newest first.
        raw: hand the query to FTS5 as it is.
        limit: hits of a page, at most 1,000.
        after: the cursor of the page before, of the same query.

    Raises:
        Invalid: the query holds nothing to look for, is too long, or (raw) is no query; a bad
            cursor or limit.
        StorageError: the sessions cannot be listed.
    """
    asked = _asked(query, raw=raw)
    if not isinstance(limit, int) or not 0 < limit <= PAGE_HITS_MAX:
        raise Invalid(f"a page has 1 to {PAGE_HITS_MAX} hits, not {limit!r}")
    place = _place_of(after, rank=rank)
    if rank and asked.match is None:
        raise Invalid("only words can be ranked", next_step="search without ranking")
    folder = None if cwd is None else Folder(cwd)

    def ask(index: SearchIndex) -> SearchPage:
        wanted = _numbers(index, session_ids, folder)
        filters = Filters(wanted, _cleaned(roles), _cleaned(kinds), since_ms, until_ms)
        search = _Search(store, index, asked, filters, raw=raw)
        try:
            page = search.ranked(place, limit) if rank else search.newest(place, limit)
        finally:
            search.close()
        if after is not None or raw or filters[1:] != (None, None, None, None):
            return page
        return _with_fields(page, store, index, query, wanted)

    try:
        page, troubles = _answer(store, ask)
    except QueryRefused as error:
        raise Invalid(f"not a query of FTS5: {error}") from error
    return _with_problems(page, troubles)


def _numbers(
    index: SearchIndex, session_ids: Sequence[str] | None, folder: Folder | None
) -> list[int] | None:
    if session_ids is None and folder is None:
        return None
    return [
        fed.number
        for fed in index.sessions().values()
        if (session_ids is None or fed.session_id in session_ids)
        and (folder is None or folder.is_stated(fed.cwd))
    ]


def _cleaned(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [clean(name) for name in names]


class _Place(NamedTuple):
    """Where a page begins."""

    before: int
    skip: int


def _asked(query: str, *, raw: bool) -> Query:
    if not isinstance(query, str):
        raise Invalid(f"a query is a string, not {type(query).__name__}")
    if len(query) > QUERY_CHARS_MAX:
        raise Invalid(f"a query of {len(query)} characters (at most {QUERY_CHARS_MAX})")
    if any("\ud800" <= char <= "\udfff" for char in query):
        raise Invalid("the query holds half a character (a lone surrogate)")
    asked = parse(query)
    if not asked.terms:
        raise Invalid("the query holds nothing to look for")
    if raw:
        return Query(query.replace("\0", " "), (), asked.terms)
    if len(asked.terms) > QUERY_TERMS_MAX:
        raise Invalid(f"a query of {len(asked.terms)} terms (at most {QUERY_TERMS_MAX})")
    return asked


def _place_of(after: str | None, *, rank: bool) -> _Place:
    if after is None:
        return _Place(ID_MAX, 0)
    found = _CURSOR.fullmatch(after) if isinstance(after, str) else None
    if found is None or (found[1] == "r") != rank or (found[3] is not None) != rank:
        raise Invalid(f"{after!r} is no cursor of such a search")
    return _Place(min(int(found[2]), ID_MAX), int(found[3] or 0))


def _answer(store: Store, ask: Callable[[SearchIndex], SearchPage]) -> tuple[SearchPage, Troubles]:
    """The answer of the index, fed; of one made anew when it is bad; at last of one in memory."""
    bad = 0
    for _ in range(ROUNDS):
        try:
            try:
                born, troubles = feed_store(store)
                is_new = True
            except IndexBusy as busy:
                born, troubles = None, {"": f"what is new may be missing: {busy.reason}"}
                is_new = False
            with opening.gate:
                index = opening.open_to_read(store)
                if index is None and born is None and is_new:
                    break  # there is nothing to be searched
                if index is None:
                    continue
                with index:
                    if not is_new or index.born() == born:
                        return ask(index), troubles
        except IndexFault as fault:
            bad += 1
            if bad == 1 and not fault.full and not fault.library:
                _set_aside(store)
            else:
                break
        except IndexBusy:
            continue
    try:
        index, troubles = feed_memory(store)
        with index:
            return ask(index), troubles
    except (IndexFault, IndexBusy) as error:
        raise StorageError(f"cannot search: {error.reason}", path=store.index) from error


def _set_aside(store: Store) -> None:
    try:
        with opening.locked(store, timeout_s=LOCK_TIMEOUT_S):
            opening.set_aside(store)
    except (IndexFault, IndexBusy):
        return  # it stays; the answer comes from memory


class _Search:
    """One search in an open index."""

    def __init__(
        self, store: Store, index: SearchIndex, asked: Query, filters: Filters, *, raw: bool
    ) -> None:
        self._store = store
        self._index = index
        self._asked = asked
        self._filters = filters
        self._raw = raw
        self._journals: dict[str, Journal | None] = {}
        self._problems: dict[str, str] = {}

    def close(self) -> None:
        for journal in self._journals.values():
            if journal is not None:
                journal.close()

    def newest(self, place: _Place, limit: int) -> SearchPage:
        hits: list[SearchHit] = []
        scanned = chars = 0
        before, more = place.before, False
        for hit in self._rows(place.before, limit):
            if len(hits) == limit or scanned >= SCAN_ROWS_MAX or chars >= SCAN_CHARS_MAX:
                more = True
                break
            before = hit.id
            what = self._said(hit)
            if self._asked.scanned:
                scanned += 1
                chars += 0 if what is None else len(what.text)
            if what is not None and self._holds(what.text):
                hits.append(self._shown(hit, what))
        return self._page(hits, f"n{before}" if more else None, scanned)

    def _rows(self, before: int, limit: int) -> Iterator[Hit]:
        count = _CHUNK if self._asked.scanned else limit + 1
        while True:
            rows = self._index.newest(
                self._asked.match, self._filters, before=before, limit=count, raw=self._raw
            )
            yield from rows
            if len(rows) < count:
                return
            before = rows[-1].id

    def ranked(self, place: _Place, limit: int) -> SearchPage:
        assert self._asked.match is not None
        before = place.before
        if before == ID_MAX:  # what is fed meanwhile must not shift the pages
            top = self._index.newest(self._asked.match, Filters(), limit=1, raw=self._raw)
            before = top[0].id + 1 if top else 0
        hits: list[SearchHit] = []
        skip = place.skip
        while len(hits) < limit:
            rows = self._index.ranked(
                self._asked.match, self._filters, before=before, among=RANKED_AMONG, skip=skip,
                limit=limit + 1, raw=self._raw,
            )  # fmt: skip
            for hit in rows:
                if len(hits) == limit:
                    return self._page(hits, f"r{before}.{skip}", 0)
                skip += 1
                what = self._said(hit)
                if what is not None and self._holds(what.text):
                    hits.append(self._shown(hit, what))
            if len(rows) <= limit:
                return self._page(hits, None, 0)
        return self._page(hits, f"r{before}.{skip}", 0)

    def _page(self, hits: list[SearchHit], cursor: str | None, scanned: int) -> SearchPage:
        return SearchPage(
            hits=tuple(hits),
            cursor=cursor,
            fields=(),
            scanned=scanned if self._asked.scanned else None,
            problems=tuple(sorted(self._problems.items())),
        )

    def _holds(self, text: str) -> bool:
        if not self._asked.scanned:
            return True
        folded = fold(text)
        return all(part in folded for part in self._asked.scanned)

    def _said(self, hit: Hit) -> Said | None:
        """What the entry says, by the journal."""
        try:
            journal = self._journal(hit.session_id)
            what = None if journal is None else journal.said_at(hit)
        except TreeringError as error:
            self._problems[hit.session_id] = error.what
            return None
        if what is None:
            self._problems.setdefault(
                hit.session_id, f"the entry at sequence {hit.sequence} does not verify any more"
            )
        return what

    def _journal(self, session_id: str) -> Journal | None:
        if session_id not in self._journals:
            if len(self._journals) >= _JOURNALS_OPEN_MAX:
                oldest = self._journals.pop(next(iter(self._journals)))
                if oldest is not None:
                    oldest.close()
            try:
                self._journals[session_id] = Journal(path_in(self._store, session_id))
            except TreeringError as error:
                self._problems[session_id] = error.what
                self._journals[session_id] = None
        return self._journals[session_id]

    def _shown(self, hit: Hit, what: Said) -> SearchHit:
        snippet, match = snippet_of(what.text, self._asked)
        return SearchHit(
            session_id=hit.session_id,
            path=path_in(self._store, hit.session_id),
            sequence=hit.sequence,
            entry_id=what.id,
            kind=what.kind,
            role=what.role,
            time_ms=what.time_ms,
            snippet=snippet,
            match=match,
        )


def snippet_of(text: str, asked: Query) -> tuple[str, tuple[int, int] | None]:
    """The part of a text around its first match, and where in it that stands."""
    place = find(asked.terms, text)
    begin = 0 if place is None else max(0, place[0] - SNIPPET_CHARS // 3)
    snippet = text[begin : begin + SNIPPET_CHARS]
    if place is None:
        return snippet, None
    return snippet, (place[0] - begin, min(place[1] - begin, len(snippet)))


def _with_fields(
    page: SearchPage, store: Store, index: SearchIndex, query: str, sessions: list[int] | None
) -> SearchPage:
    part = query.strip().strip('"').rstrip("*").replace("\0", " ")
    found = index.fields(part, FIELDS, sessions, limit=FIELD_HITS_MAX) if part else []
    matches = (
        FieldMatch(
            session_id=hit.session_id,
            path=path_in(store, hit.session_id),
            field=hit.kind,
            text=hit.text,
        )
        for hit in found
    )
    return SearchPage(
        hits=page.hits, cursor=page.cursor, fields=tuple(matches), scanned=page.scanned,
        problems=page.problems,
    )  # fmt: skip


def _with_problems(page: SearchPage, troubles: Troubles) -> SearchPage:
    problems = {**dict(page.problems), **troubles}
    return SearchPage(
        hits=page.hits, cursor=page.cursor, fields=page.fields, scanned=page.scanned,
        problems=tuple(sorted(problems.items())),
    )  # fmt: skip
