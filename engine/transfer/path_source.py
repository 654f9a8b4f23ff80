"""One root-to-leaf path of a session as the source of a copy, as it is at one moment.

Entries never change and never move, so a leaf is enough to find its path again; the labels that
are in force are noted at once. What the source appends later has no influence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from treering.engine import environment
from treering.engine.errors import NotFound, SourceChanged
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import ENVELOPE_BYTES, Kind
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session.context_epochs import active_context_epoch, session_names
from treering.engine.session.entry import Entry, is_context_epoch
from treering.engine.session.facts import facts_of
from treering.engine.session.reads import Reads, pieces
from treering.engine.session.view import SessionView
from treering.engine.transfer.context_epoch_copy import EpochSource
from treering.engine.transfer.journal_source import KEPT_FLAGS, check_limit, refuse_unfit
from treering.engine.transfer.legacy_model import CopyLimits
from treering.engine.transfer.legacy_read import FrameFacts
from treering.engine.transfer.relinking import AmbiguousNames, Chain, Names, json_text
from treering.index import Entry as Indexed
from treering.index import SessionIndex

LABEL: Final = "label"

_ROWS: Final = 4 * PAGE_ENTRIES
_ID_TRIES: Final = 100


class _Carried(NamedTuple):
    """A label in force: the entry that has it, and the entry that set it."""

    target: Indexed
    setter: Indexed


class PathSource:
    """A captured path. It can be read while its session or view is open."""

    def __init__(self, reads: Reads, leaf_id: str | None, limits: CopyLimits | None) -> None:
        refuse_unfit_view(reads)
        self.path = reads.path
        self.header = reads.header_bytes()
        """The session header as stored."""
        self._reads = reads
        self._leaf: Indexed | None = None
        self._labels: list[_Carried] = []
        self._ambiguous = False
        self._last_sequence = 0
        self._has_epochs = False
        reads.ask(lambda index: self._capture(index, leaf_id))
        self.entries = 0
        """Entries that are kept, without new labels."""
        self.json_bytes = len(self.header) + sum(one.setter.raw for one in self._labels)
        self._count(limits or CopyLimits(None, None))

    def _capture(self, index: SessionIndex, leaf_id: str | None) -> None:
        position = index.position()
        self._last_sequence = 0 if position is None else position.sequence
        if leaf_id is None:
            return
        leaf = index.by_id(leaf_id)
        if leaf is None or not leaf.tree:
            raise NotFound(f"no entry {leaf_id!r} to copy up to", path=self.path)
        self._leaf = leaf
        self._ambiguous = index.counts()["derived"] > 0
        self._labels = list(_labels_above(index, leaf.sequence))

    @property
    def last_sequence(self) -> int:
        """Sequence of the last frame that the session held at the moment of the capture."""
        return self._last_sequence

    @property
    def labels(self) -> int:
        """Labels to be carried over."""
        return len(self._labels)

    def _count(self, limits: CopyLimits) -> None:
        labels = len(self._labels)
        check_limit(limits.json_bytes, self.json_bytes, "bytes of JSON", self.path)
        check_limit(limits.entries, labels, "entries", self.path)
        for row in self._rows():
            if row.kind != LABEL:
                self._has_epochs |= is_context_epoch(row.flags)
                self.entries += 1
                self.json_bytes += row.raw
                check_limit(limits.entries, self.entries + labels, "entries", self.path)
                check_limit(limits.json_bytes, self.json_bytes, "bytes of JSON", self.path)

    def _rows(self) -> Iterator[Indexed]:
        for page in self._pages():
            yield from page

    def _pages(self) -> Iterator[list[Indexed]]:
        """The index rows of the path, root first."""
        captured = self._leaf
        if captured is None:
            return
        for start in range(0, captured.depth + 1, _ROWS):
            yield self._reads.ask(partial(self._page, captured=captured, start=start))

    def _page(self, index: SessionIndex, captured: Indexed, start: int) -> list[Indexed]:
        leaf = index.by_sequence(captured.sequence)
        if leaf is None or leaf.revision != captured.revision:
            raise SourceChanged(
                "the session does not hold any more what was to be copied", path=self.path
            )
        # An entry whose parent was missing may have got one since: it is not part of the capture.
        above = leaf.depth - captured.depth
        count = min(_ROWS, captured.depth + 1 - start)
        return index.path(leaf.sequence, from_depth=above + start, limit=count)

    def _kept(self) -> Iterator[tuple[Indexed, Entry]]:
        """Every entry of the path with its row; memory holds about 8 MiB of them."""
        for page in self._pages():
            for piece in pieces(page):
                yield from zip(piece, self._reads._load(piece), strict=True)

    def raws(self) -> Iterator[bytes]:
        """The entries of the path that are kept, as they are in the source."""
        return (entry.raw for row, entry in self._kept() if row.kind != LABEL)

    def provenance(self) -> dict[str, object]:
        """Where the copy comes from. The digest is that of the last frame of the path."""
        leaf = self._leaf
        return {
            "format": "treering",
            "journal": self._reads.journal_id.hex(),
            "leaf": None if leaf is None else leaf.id,
            "last_sequence": None if leaf is None else leaf.sequence,
            "digest": None if leaf is None else leaf.revision.hex(),
            "byte_exact": False,
            "ambiguous_ids": self._ambiguous,
        }

    def copy(self) -> PathCopy:
        """One pass over it."""
        return PathCopy(self)

    def epochs(self) -> EpochSource | None:
        """What a copy needs for its context epoch; None when there is none to look for."""
        if not self._has_epochs:
            return None

        def again() -> Iterator[tuple[Record, FrameFacts | None]]:
            return self.copy().traced()

        leaf = self._leaf
        return EpochSource(
            session_names(self.path, self.header),
            self.path,
            lowered=False,
            salvage=False,
            again=again,
            verify=lambda: active_context_epoch(self._reads, None if leaf is None else leaf.id),
        )


def refuse_unfit_view(reads: Reads) -> None:
    """Refuse a view of a session that is damaged or not understood.

    Raises:
        Damaged, AcknowledgedDataLost, Unsupported: it is.
    """
    if isinstance(reads, SessionView):
        refuse_unfit(reads.examination)


class PathCopy:
    """The records of one copy of a path, and what became of it."""

    def __init__(self, source: PathSource) -> None:
        self._source = source
        self._names = AmbiguousNames() if source._ambiguous else Names()
        self._chain = Chain(self._names, source.path)
        self.labels = 0
        self.labels_left_out = 0
        self.unproven = 0

    @property
    def relinked(self) -> int:
        """Entries that were changed for what is left out."""
        return self._chain.relinked

    def records(self) -> Iterator[Record]:
        """Entries of the path, the labels, and the position where the last record is not it."""
        return (record for record, _ in self.traced())

    def traced(self) -> Iterator[tuple[Record, FrameFacts | None]]:
        """The same, each with the frame that it came from, if it did."""
        source, chain = self._source, self._chain
        targets = dict.fromkeys((one.target.sequence for one in source._labels), "")
        moves = True
        for row, entry in source._kept():
            if row.kind == LABEL:
                chain.leave_out(entry.raw, entry.id)
                continue
            raw = chain.keep(entry.raw, entry.id)
            self.unproven += entry.unproven
            request = row.kind == "request"
            moves = not request and facts_of(raw).moves_leaf
            kind, flags = Kind.REQUEST if request else Kind.ENTRY, entry.flags & KEPT_FLAGS
            length = ENVELOPE_BYTES + row.stored
            frame = FrameFacts(row.sequence, row.revision.hex(), flags, row.offset, length)
            yield Record(kind, raw, flags), frame
            if row.sequence in targets:
                assert chain.last is not None
                targets[row.sequence] = chain.last
        end = chain.last
        for record in self._carried(targets):
            yield record, None
        if end is not None and (self.labels or not moves):
            leaf = control.Leaf(self._names.address_of(end))
            yield Record(Kind.LEAF, control.encode(leaf)), None

    def _carried(self, targets: dict[int, str]) -> Iterator[Record]:
        """The labels as new entries, with the bytes and the time of those that set them."""
        reads = self._source._reads
        ids = _fresh_ids(reads, len(self._source._labels))
        for (target, setter), entry_id in zip(self._source._labels, ids, strict=True):
            handle = targets[target.sequence]
            entry = reads._load([setter])[0]
            label = facts_of(entry.raw).label
            if label is None or not self._names.is_meant(label[0], handle):
                name = self._names.name_of(handle)
                if name is None:
                    self.labels_left_out += 1
                    continue
                edits = {"targetId": json_text(name)}
            else:
                edits = {}
            raw = self._chain.append(entry.raw, entry_id, **edits)
            self.labels += 1
            yield Record(Kind.ENTRY, raw, entry.flags & KEPT_FLAGS)


def _labels_above(index: SessionIndex, leaf: int) -> Iterator[_Carried]:
    """Labels in force of the entries on the path to a leaf, but of those that are left out."""
    after = 0
    while page := index.labels(after=after, limit=PAGE_ENTRIES):
        after = page[-1].target
        for label in page:
            if not index.is_ancestor(label.target, leaf):
                continue
            target, setter = index.by_sequence(label.target), index.by_sequence(label.entry)
            if target is not None and setter is not None and target.kind != LABEL:
                yield _Carried(target, setter)


def _fresh_ids(reads: Reads, count: int) -> Iterable[str]:
    """Ids that no entry of the source has: 8 hex digits each, or UUIDs where none are found."""
    found: dict[str, None] = {}
    for _ in range(_ID_TRIES):
        if len(found) >= count:
            break
        tried = environment.short_entry_ids(count - len(found))
        taken = reads.ask(partial(_taken, tried=tried))
        found.update((one, None) for one in tried if one not in taken)
    return [*found, *(environment.long_entry_id() for _ in range(count - len(found)))]


def _taken(index: SessionIndex, tried: list[str]) -> dict[str, Indexed]:
    return index.by_ids(tried)
