"""Pages of the sessions of a store: searched, scoped, in the order of the agents view.

A page holds at most 64 rows and 1 MiB of JSON, the ancestors that its rows need included. A cursor
stands for a snapshot of the ordered sessions: none is skipped or shown twice because others change
meanwhile, and what a row says is always of now. When what the order depends on is not what it was
(the search, the scope, the live roster), a cursor leads to the first page again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Final, Self, TypeVar

from treering.engine import environment
from treering.engine.errors import Invalid
from treering.engine.home import Store
from treering.engine.limits import KIB, MIB
from treering.engine.session import listing
from treering.engine.session.catalogue import info_of, open_catalogue, packed
from treering.engine.session.listing_cache import stamp_of
from treering.engine.session.page_order import LiveRoster, ordered
from treering.engine.session.page_search import matcher_of
from treering.engine.session.session_info import SessionInfo
from treering.index import IndexBusy, IndexFault, files
from treering.index.catalogue import Catalogue, SessionRow

PAGE_ROWS_MAX: Final = 64
PAGE_BYTES_MAX: Final = MIB
ROW_BYTES_MAX: Final = 256 * KIB
"""A row of more JSON comes without its agent status and with the beginnings of its texts."""

CLIPPED_CHARS: Final = 1_000
_NONCE_BYTES: Final = 8
_CURSOR: Final = re.compile(r"([0-9]{1,15})-([0-9a-f]{16})-([0-9]{1,15})([np])\Z")

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """Which sessions, in which order."""

    text: str = ""
    """Words and "quoted phrases" that all must be found; ``re:`` before a regular expression."""
    cwd: str | None = None
    """Only sessions of this working directory (links resolved)."""
    named: bool = False
    """Only sessions with a name."""
    damaged: bool = False
    """Only sessions that are not ok."""
    limit: int = PAGE_ROWS_MAX
    """Rows of a page, ancestors included: 1 to 64."""
    live: LiveRoster = field(default_factory=LiveRoster)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """One session on a page."""

    info: SessionInfo
    context: bool = False
    """It is here only because a row below it needs it, and does not count."""
    behind: bool = False
    """The files have changed since the row was read."""
    clipped: bool = False
    """The row is too large: without agent status, and with the beginnings of its texts."""
    orphaned: bool = False
    """It has ancestors above that the page had no room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """A page, and how to get the ones around it."""

    rows: tuple[PageRow, ...]
    total: int
    """All sessions that the query means, when the snapshot was taken; exact."""
    position: int
    """How many of them come before this page."""
    count: int
    """How many of them the page went through (some may have been deleted since)."""
    next_cursor: str | None = None
    previous_cursor: str | None = None
    reset: bool = False
    """The cursor was of other inputs, or is forgotten: this is the first page."""


class SessionPages:
    """Gives pages of a store; a context manager. Not for several threads at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalogue = open_catalogue(store)
        if self._catalogue.file == ":memory:":
            self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the catalogue."""
        self._catalogue.close()

    def refresh(self) -> None:
        """Read the sessions that changed; pages come from what was read last.

        Raises:
            StorageError: the sessions folder is there and cannot be listed.
        """
        listing.refresh_into(self._store, self._catalogue)

    def page(self, query: PageQuery, cursor: str | None = None) -> SessionPage:
        """The first page of a query, or the one that a cursor stands for.

        Raises:
            Invalid: the search, the scope, the limit or the cursor is none.
            StorageError: the sessions folder cannot be listed (only where the catalogue is lost).
        """
        if not 1 <= query.limit <= PAGE_ROWS_MAX:
            raise Invalid(f"a page has 1 to {PAGE_ROWS_MAX} rows, not {query.limit}")
        place = None if cursor is None else _place_of(cursor)
        digest = _digest_of(query)
        return self._ask(lambda: self._page(query, digest, place))

    def _ask(self, question: Callable[[], _Found]) -> _Found:
        """Ask the catalogue; when it fails, one in memory that is read from the journals."""
        try:
            return question()
        except (IndexFault, IndexBusy):
            if self._catalogue.file == ":memory:":
                raise
            failed, self._catalogue = self._catalogue, Catalogue.memory()
        try:
            failed.close()
        except (IndexFault, IndexBusy):
            pass  # it failed before; its files are set aside when they are opened the next time
        self.refresh()
        return question()

    def _page(
        self, query: PageQuery, digest: bytes, place: tuple[int, bytes, int, bool] | None
    ) -> SessionPage:
        if place is not None:
            number, nonce, position, forward = place
            kept = self._catalogue.snapshot_of(number)
            if kept is not None and kept[0] == nonce + digest and len(kept[1]) % 8 == 0:
                numbers = array("q", kept[1])
                snapshot = f"{number}-{nonce.hex()}"
                return self._cut(query, numbers, min(position, len(numbers)), forward, snapshot)
        numbers = array("q", self._ordered(query))
        page = self._cut(query, numbers, 0, forward=True, snapshot="")
        if page.count < len(numbers):
            nonce = environment.random_bytes(_NONCE_BYTES)
            number = self._catalogue.keep_snapshot(nonce + digest, numbers.tobytes())
            page = replace(page, next_cursor=f"{number}-{nonce.hex()}-{page.count}n")
        return replace(page, reset=place is not None)

    def _ordered(self, query: PageQuery) -> list[int]:
        matches = matcher_of(query.text)
        folder = None if query.cwd is None else listing.Folder(query.cwd)
        order = ordered(self._catalogue, query.live)
        if folder is not None:
            stated = [cwd for cwd in self._catalogue.cwds() if folder.is_stated(cwd)]
            scope = self._catalogue.numbers_of_cwds(stated)
            order = [number for number in order if number in scope]
        if matches is None and not query.named and not query.damaged:
            return order
        texts = {} if matches is None else dict(self._catalogue.texts())
        kept = []
        rows = self._catalogue.rows_of(None)
        for number in order:
            row = rows.get(number)
            if row is None:
                continue  # deleted by another process a moment ago
            if (query.named and row.name is None) or (query.damaged and row.status == "ok"):
                continue
            if matches is None or matches(self._store, row, texts.get(row.id, "")):
                kept.append(number)
        return kept

    def _cut(
        self,
        query: PageQuery,
        numbers: Sequence[int],
        position: int,
        forward: bool,  # noqa: FBT001
        snapshot: str,
    ) -> SessionPage:
        """The page from, or before, a position of a snapshot."""
        page = _Filling(self._catalogue, self._store, query.limit)
        at = position
        while 0 <= (at if forward else at - 1) < len(numbers):
            if not page.add(numbers[at if forward else at - 1]):
                break
            at += 1 if forward else -1
        start, end = min(at, position), max(at, position)
        if not snapshot:
            return SessionPage(
                rows=page.rows(numbers[start:end]), total=len(numbers), position=start, count=end
            )
        return SessionPage(
            rows=page.rows(numbers[start:end]),
            total=len(numbers),
            position=start,
            count=end - start,
            next_cursor=f"{snapshot}-{end}n" if end < len(numbers) else None,
            previous_cursor=f"{snapshot}-{start}p" if start > 0 else None,
        )


class _Filling:
    """Fills a page with sessions and the ancestors that they need, until one does not fit."""

    def __init__(self, catalogue: Catalogue, store: Store, limit: int) -> None:
        self._catalogue = catalogue
        self._store = store
        self._limit = limit
        self._indexes = _indexes_of(store)
        self._known: dict[int, SessionRow | None] = {}
        self._parents: dict[int, int | None] = {}
        self._taken: dict[int, PageRow] = {}
        self._orphans: set[int] = set()
        self._bytes = 0

    def add(self, number: int) -> bool:
        """Take a session with its ancestors; False when they do not fit any more."""
        if self._row(number) is None:
            return True  # deleted since the snapshot was taken
        chain = [number]
        while (above := self._parent(chain[-1])) is not None and above not in chain:
            if len(chain) >= self._limit:
                self._orphans.add(number)
                break
            chain.append(above)
        made = {one: self._made(one) for one in chain if one not in self._taken}
        size = sum(_bytes_of(row) for row in made.values())
        fits = len(self._taken) + len(made) <= self._limit and self._bytes + size <= PAGE_BYTES_MAX
        if not fits and self._taken:
            return False
        if not fits:  # alone it must: with the nearest of its ancestors
            self._orphans.add(number)
            while len(made) > self._limit or size > PAGE_BYTES_MAX:
                size -= _bytes_of(made.pop(next(reversed(made))))
        self._taken |= made
        self._bytes += size
        return True

    def rows(self, primaries: Sequence[int]) -> tuple[PageRow, ...]:
        """The rows in order: ancestors that do not count stand before the first that needs them."""
        own = set(primaries)
        found: dict[int, PageRow] = {}
        for number in primaries:
            if number not in self._taken:
                continue
            chain = [number]
            while (above := self._parent(chain[-1])) in self._taken and above not in chain:
                assert above is not None
                chain.append(above)
            for one in reversed(chain):
                row = replace(self._taken[one], context=one not in own)
                found.setdefault(one, replace(row, orphaned=one in self._orphans))
        return tuple(found.values())

    def _row(self, number: int) -> SessionRow | None:
        if number not in self._known:
            self._known[number] = self._catalogue.rows_of([number]).get(number)
        return self._known[number]

    def _parent(self, number: int) -> int | None:
        if number not in self._parents:
            row = self._row(number)
            parent = None if row is None else row.parent
            above = {} if parent is None else self._catalogue.numbers([parent])
            self._parents[number] = None if parent is None else above.get(parent)
        return self._parents[number]

    def _made(self, number: int) -> PageRow:
        row = self._row(number)
        assert row is not None
        info = info_of(self._store, row)
        stamp = stamp_of(info.path, self._indexes.get(info.id))
        behind = row.stamp != (None if stamp is None else packed(stamp))
        made = PageRow(info=info, behind=behind and info.status != "half-deleted")
        return made if _bytes_of(made) <= ROW_BYTES_MAX else _clipped(made)


def _indexes_of(store: Store) -> dict[str, str]:
    try:
        return files.all_current(store.index)
    except (IndexFault, IndexBusy):
        return {}


def _bytes_of(row: PageRow) -> int:
    return len(json.dumps(asdict(row), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _clipped(row: PageRow) -> PageRow:
    info = row.info

    def begin(text: str | None) -> str | None:
        return None if text is None else text[:CLIPPED_CHARS]

    return replace(
        row,
        clipped=True,
        info=replace(
            info,
            reason=begin(info.reason),
            cwd=begin(info.cwd),
            name=begin(info.name),
            parent_session_path=begin(info.parent_session_path),
            first_user_text=begin(info.first_user_text),
            agent_status=None,
        ),
    )


def _digest_of(query: PageQuery) -> bytes:
    live = query.live
    cwd = None if query.cwd is None else os.path.abspath(query.cwd)
    sets = [sorted(one) for one in (live.running, live.idle, live.heartbeats, live.busy)]
    inputs = [query.text, cwd, query.named, query.damaged, sets, live.anchor]
    text = json.dumps([*inputs, sorted(live.groups.items())])
    return hashlib.sha256(text.encode()).digest()[:16]


def _place_of(cursor: str) -> tuple[int, bytes, int, bool]:
    found = _CURSOR.match(cursor)
    if found is None:
        raise Invalid(f"{cursor!r} is no cursor", next_step="take the one that a page names")
    return int(found[1]), bytes.fromhex(found[2]), int(found[3]), found[4] == "n"
