"""A session as it was at one moment: complete, bounded reads that later appends cannot change.

Complete reads return everything that was asked for, or refuse with :class:`LimitExceeded`; the
bodies are read only when the limits hold. Beside them :class:`Reads` has paged reads without a cap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, Self

from msgspec import UNSET, UnsetType

from treering.engine.errors import Closed, Damaged, Invalid, LimitExceeded, NotFound
from treering.engine.journal.format import ENVELOPE_BYTES
from treering.engine.limits import COMPLETE_READ_BYTES, COMPLETE_READ_ENTRIES, PAGE_ENTRIES
from treering.engine.session.context_rules import SessionContext
from treering.engine.session.entry import Entry, Retention
from treering.engine.session.reads import Reads, pieces
from treering.engine.session.texts import all_texts
from treering.index import Entry as Indexed
from treering.index import Label, SessionIndex

PAGE_MAX = 64
SEARCH_MAX = 16


class ReadLimits(NamedTuple):
    """Bounds of a complete read. None lifts one.

    ``source_bytes`` are those of the frames; an entry on several paths counts once.
    """

    entries: int | None = COMPLETE_READ_ENTRIES
    source_bytes: int | None = COMPLETE_READ_BYTES

    def check(self) -> None:
        """Raise Invalid unless both are positive whole numbers or None."""
        for value in self:
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                raise Invalid(f"a limit is a positive whole number or None, not {value!r}")


DEFAULT_LIMITS = ReadLimits()
NO_LIMITS = ReadLimits(None, None)


class SourceRef(NamedTuple):
    """Which moment of which session was captured.

    Moments are compared by session, position and sequence: ``session_file`` is information, and a
    store that was moved keeps what refers to it.
    """

    session_id: str
    session_file: str | None
    leaf_id: str | None
    source_sequence: int
    """Sequence of the last frame that belongs to it."""
    persistent: bool

    def as_json(self) -> dict[str, Any]:
        """The five documented members; a session in memory has no ``sessionFile``."""
        file = {} if self.session_file is None else {"sessionFile": self.session_file}
        return {
            "sessionId": self.session_id,
            **file,
            "leafId": self.leaf_id,
            "sourceSequence": self.source_sequence,
            "persistent": self.persistent,
        }


class Materialized(NamedTuple):
    """A captured history as a whole."""

    entries: list[Entry]
    source_bytes: int
    source: SourceRef


class Branches(NamedTuple):
    """Several paths of one capture; entries that they share are the same objects."""

    branches: list[list[Entry]]
    source_bytes: int
    source: SourceRef


class Capture:
    """What a session held at one moment. Ends with :meth:`end`; then every read refuses."""

    def __init__(self, reads: Reads, source: SourceRef) -> None:
        self._reads = reads
        self._ended = False
        self._leaf_depth: int | None = None
        """Of the position when it was first asked for."""
        self.source = source
        self.last = source.source_sequence

    @classmethod
    def current(cls, reads: Reads, *, session_file: str | None, session_id: str) -> Self:
        """What it holds at this moment."""
        leaf_id = reads.leaf_id
        position = reads.ask(lambda index: index.position())
        last = 0 if position is None else position.sequence
        persistent = session_file is not None
        found = cls(reads, SourceRef(session_id, session_file, leaf_id, last, persistent))
        leaf = None if leaf_id is None else reads.ask(lambda index: index.by_id(leaf_id))
        found._leaf_depth = None if leaf is None else leaf.depth
        return found

    def end(self) -> None:
        """Later reads of this capture refuse."""
        self._ended = True

    def _asked(self) -> Reads:
        if self._ended:
            raise Closed("the captured read has ended", path=self._reads.path)
        return self._reads

    # One entry

    def _row(self, entry_id: str) -> Indexed | None:
        found = self._asked().ask(lambda index: index.by_id(entry_id))
        return None if found is None or found.sequence > self.last else found

    def get(self, entry_id: str, max_source_bytes: int | None = None) -> Entry | None:
        """The entry of that id; None when it is not part of the capture."""
        limits = ReadLimits(1, max_source_bytes)
        limits.check()
        row = self._row(entry_id)
        return None if row is None else self._load([row], limits)[0]

    def leaf(self, max_source_bytes: int | None = None) -> Entry | None:
        """The entry at the captured position; None before any entry."""
        leaf_id = self.source.leaf_id
        return None if leaf_id is None else self.get(leaf_id, max_source_bytes)

    def retention(self, entry_id: str) -> Retention | None:
        """How the entry came in; None says that nothing is marked.

        Raises:
            NotFound: no entry of that id is part of the capture.
        """
        if self._row(entry_id) is None:
            raise self._missing(entry_id)
        return self._reads.retention(entry_id)

    def label(self, entry_id: str) -> str | None:
        """The label that the entry had then; None without one, and for an unknown entry."""
        last = self.last

        def look(index: SessionIndex) -> tuple[Indexed, Label | None, bool] | None:
            row = index.by_id(entry_id)
            if row is None or row.sequence > last:
                return None
            found = index.label(row.sequence)
            position = index.position()  # behind the label: nothing later can be in it unseen
            return row, found, position is not None and position.sequence > last

        known = self._asked().ask(look)
        if known is None:
            return None
        row, found, later = known
        if not later or (found is not None and found.entry <= last):
            return None if found is None else found.label
        return self._label_before(row)

    def _label_before(self, row: Indexed) -> str | None:
        """The last label entry up to the capture, looked for since a later one changed it."""
        own = row.own_id
        if own is not None and self._holder(own) != row.sequence:
            own = None  # a later entry has this id: labels that name it are not this one's
        for entry in self._asked().newest_of_kind("label", before=self.last + 1):
            label = entry._facts.label
            if label is None:
                continue
            if label[0] == row.id or (label[0] == own and entry.sequence > row.sequence):
                return label[1] or None
        return None

    def _holder(self, own_id: str) -> int | None:
        return self._reads.ask(lambda index: index.holder(own_id))

    @property
    def reads(self) -> Reads:
        """The session or view itself, for what does not depend on later appends."""
        return self._asked()

    def context(
        self, leaf_id: str | None | UnsetType, max_entries: int | None, max_bytes: int | None
    ) -> SessionContext:
        """The model context at the captured position, or at an entry."""
        leaf = self.source.leaf_id if leaf_id is UNSET else leaf_id
        if leaf is not None and self._row(leaf) is None:
            raise self._missing(leaf)
        return self._asked().read_session_context(
            leaf, max_entries=max_entries, max_source_bytes=max_bytes, up_to=self.last
        )

    # Whole histories

    def rows(self) -> Iterator[list[Indexed]]:
        """Index rows of all entries, in pages, in journal order."""
        after = 0
        while True:
            page = self._asked()._rows_after(after)
            kept = [row for row in page if row.sequence <= self.last]
            if kept:
                yield kept
            if len(kept) < len(page) or not page:
                return
            after = page[-1].sequence

    def entries(self, limits: ReadLimits = DEFAULT_LIMITS) -> list[Entry]:
        """Every entry, in journal order; the header is none."""
        return self.materialize_source(limits).entries

    def path_rows(self, entry_id: str | None) -> list[Indexed]:
        """Index rows of a path, root first.

        Raises:
            NotFound: no such entry, or the path does not reach a true root.
        """
        if entry_id is None:
            return []
        leaf = self._row(entry_id)
        if leaf is None:
            raise self._missing(entry_id)
        rows = self._asked().ask(lambda index: index.path(leaf.sequence))
        later = [at for at, row in enumerate(rows) if row.sequence > self.last]
        why = "missing" if later else rows[0].unresolved if rows else None
        if why is not None:
            top = rows[later[-1] + 1 if later else 0]
            raise NotFound(
                f"the path of {entry_id!r} is unresolved above entry {top.id!r}:"
                f" its parent is {'missing' if why == 'missing' else 'in a cycle'}",
                path=self._reads.path,
                next_step="paged reads (`branch`) show the part that is there",
            )
        return rows

    def branch(self, entry_id: str | None, limits: ReadLimits = DEFAULT_LIMITS) -> list[Entry]:
        """The whole path from the root to an entry; None is the position before any."""
        return self.branches([entry_id], limits).branches[0]

    def branches(
        self, entry_ids: Sequence[str | None], limits: ReadLimits = DEFAULT_LIMITS
    ) -> Branches:
        """Several whole paths; an entry that they share counts once in both limits."""
        limits.check()
        counted = Counted(limits, self._reads.path)
        paths = []
        wanted: dict[int, Indexed] = {}
        for entry_id in entry_ids:
            rows = self.path_rows(entry_id)
            counted.add([row for row in rows if row.sequence not in wanted])
            wanted.update((row.sequence, row) for row in rows)
            paths.append([row.sequence for row in rows])
        ordered = [wanted[sequence] for sequence in sorted(wanted)]
        loaded = {entry.sequence: entry for entry in self._loaded(ordered)}
        found = [[loaded[sequence] for sequence in path] for path in paths]
        return Branches(found, counted.bytes, self.source)

    def materialize_path(self, entry_id: str | None, limits: ReadLimits) -> Materialized:
        """The path to an entry as a whole."""
        found = self.branches([entry_id], limits)
        return Materialized(found.branches[0], found.source_bytes, self.source)

    def materialize_branch(self, limits: ReadLimits) -> Materialized:
        """The captured branch as a whole."""
        return self.materialize_path(self.source.leaf_id, limits)

    def materialize_source(self, limits: ReadLimits) -> Materialized:
        """The whole captured session."""
        limits.check()
        counted = Counted(limits, self._reads.path)
        rows: list[Indexed] = []
        for page in self.rows():
            counted.add(page)
            rows += page
        return Materialized(self._loaded(rows), counted.bytes, self.source)

    # Pages

    def _branch(self, after: int = 0) -> Iterator[Indexed]:
        """The captured branch behind one of its entries, with the requests that hang below it."""
        leaf = None if self.source.leaf_id is None else self._row(self.source.leaf_id)
        if leaf is None:
            return iter(())
        if self._leaf_depth is None:
            self._leaf_depth = leaf.depth
        # A parent that came later has put entries above the branch that are not part of it.
        first = leaf.depth - self._leaf_depth
        behind = self._asked().ask(lambda index: _behind(index, after))
        start = first if behind is None else max(first, behind.depth + 1)
        between = behind is not None and behind.sequence != after
        path = (row for row in self._path(leaf, start) if not between or row.sequence > after)
        return merge(path, self._requests(leaf, after), key=lambda row: row.sequence)

    def _path(self, leaf: Indexed, start: int) -> Iterator[Indexed]:
        for depth in range(start, leaf.depth + 1, PAGE_ENTRIES * 4):
            yield from self._asked()._path_rows(leaf.sequence, depth)

    def _requests(self, leaf: Indexed, after: int) -> Iterator[Indexed]:
        """Requests that hang below an entry of the path to ``leaf``, or below none."""

        def page(index: SessionIndex) -> list[tuple[Indexed, bool]]:
            rows = index.by_kind("request", after=at, before=self.last + 1, limit=PAGE_ENTRIES)
            return [
                (row, row.parent is None or index.is_ancestor(row.parent, leaf.sequence))
                for row in rows
            ]

        at = after
        while found := self._asked().ask(page):
            yield from (row for row, here in found if here)
            at = found[-1][0].sequence

    def page(self, after: int = 0, limit: int = PAGE_MAX, *, branch: bool = False) -> list[Entry]:
        """Entries behind a sequence in journal order, or on the branch, behind that entry.

        Raises:
            LimitExceeded: more than 64 were asked for.
        """
        _check_page(limit, PAGE_MAX)
        if branch:
            return self._loaded(list(islice(self._branch(after), limit)))
        page = self._asked().entries(after=after, limit=limit)
        return [entry for entry in page if entry.sequence <= self.last]

    def search(self, text: str, limit: int = SEARCH_MAX, *, branch: bool = False) -> list[Entry]:
        """The newest entries (of the branch) whose texts hold ``text``, whatever its case.

        Reads everything in order; memory holds about 8 MiB and what is found.

        Raises:
            LimitExceeded: more than 16 were asked for.
        """
        _check_page(limit, SEARCH_MAX)
        wanted = text.casefold()
        found: deque[Entry] = deque(maxlen=limit)
        for rows in _pages(self._branch()) if branch else self.rows():
            for piece in pieces(rows):
                found += (
                    entry
                    for entry in self._loaded(list(piece))
                    if wanted in all_texts(entry.raw).casefold()
                )
        return list(found)[::-1]

    def iter_entries(self) -> Iterator[Entry]:
        """All entries in journal order, with bounded memory."""
        for page in self.rows():
            for piece in pieces(page):
                yield from self._loaded(list(piece))

    def load(self, rows: Iterable[Indexed]) -> list[Entry]:
        """The entries of index rows of this capture."""
        return self._loaded(list(rows))

    def _load(self, rows: list[Indexed], limits: ReadLimits) -> list[Entry]:
        Counted(limits, self._reads.path).add(rows)
        return self._loaded(rows)

    def _loaded(self, rows: list[Indexed]) -> list[Entry]:
        loaded = self._asked()._load(rows)
        if len(loaded) != len(rows):
            raise Damaged("entries are gone that the index knows", path=self._reads.path)
        return loaded

    def _missing(self, entry_id: str) -> NotFound:
        return NotFound(f"no entry {entry_id!r}", path=self._reads.path)


class Counted:
    """What a complete read takes so far; refuses as soon as it is too much."""

    def __init__(
        self,
        limits: ReadLimits,
        path: str,
        *,
        what: str = "the read",
        next_step: str = "raise the limit, or read in pages",
    ) -> None:
        self._limits = limits
        self._path = path
        self._what = what
        self._next_step = next_step
        self.entries = 0
        self.bytes = 0

    def add(self, rows: Sequence[Indexed]) -> None:
        """Count the entries of index rows.

        Raises:
            LimitExceeded: they are more than the limits allow.
        """
        self.entries += len(rows)
        self.bytes += sum(ENVELOPE_BYTES + row.stored for row in rows)
        self._check("entries", self.entries, self._limits.entries)
        self._check("bytes", self.bytes, self._limits.source_bytes)

    def _check(self, what: str, need: int, limit: int | None) -> None:
        if limit is not None and need > limit:
            raise LimitExceeded(
                f"{self._what} takes {need} {what} or more; the limit is {limit}",
                limit=limit,
                need=need,
                path=self._path,
                next_step=self._next_step,
            )


def _behind(index: SessionIndex, after: int) -> Indexed | None:
    """The entry of a path that a page begins behind; that of a request is what it hangs below."""
    row = index.by_sequence(after) if after else None
    if row is not None and row.kind == "request":
        return None if row.parent is None else index.by_sequence(row.parent)
    return row


def _pages(rows: Iterator[Indexed]) -> Iterator[list[Indexed]]:
    while page := list(islice(rows, PAGE_ENTRIES)):
        yield page


def _check_page(limit: int, most: int) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise Invalid(f"expected a positive whole number, not {limit!r}")
    if limit > most:
        raise LimitExceeded(f"a page holds at most {most} entries", limit=most, need=limit)
