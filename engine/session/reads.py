"""Reading a session: the same for owned sessions and for read-only views.

Structure comes from an index; bytes come from the journal, and each frame read through the index
is verified: the digest over the whole frame must be the revision that the index remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import UNSET, UnsetType

from treering.engine import commands
from treering.engine.errors import Damaged, Invalid, NotFound
from treering.engine.journal.format import (
    CODEC_ZSTD,
    ENVELOPE_BYTES,
    FILE_HEADER_BYTES,
    FLAG_QUALIFICATION_MASK,
    FLAG_RETAINED,
    FRAME_HEADER_BYTES,
    SEQUENCE_MAX,
    Frame,
    Kind,
    digest_of,
    unpack_frame_header,
)
from treering.engine.journal.payload import decompress_plain
from treering.engine.journal.reader import FileBytes, frame_at
from treering.engine.journal.shared import SharedFrames
from treering.engine.limits import MIB, PAGE_ENTRIES
from treering.engine.session.context import read_context
from treering.engine.session.context_rules import SessionContext
from treering.engine.session.entries import SessionHeader, SessionInfoEntry, decode_header
from treering.engine.session.entry import Entry, Retention
from treering.index import Entry as Indexed
from treering.index import SessionIndex, Usage

_Answer = TypeVar("_Answer")

_MARKS = FLAG_RETAINED | FLAG_QUALIFICATION_MASK

_READ_TOGETHER_BYTES: Final = 1 * MIB
_LOADED_BYTES: Final = 8 * MIB
_READ_GAP_BYTES: Final = 16 * 1024
"""Frames closer than this are read in one go: another call costs more than these bytes."""


class Reads:
    """What an owned session and a view have in common. Not for use by itself."""

    path: str
    source: FileBytes
    journal_id: bytes
    salt: int
    shared: SharedFrames

    def ask(self, question: Callable[[SessionIndex], _Answer]) -> _Answer:
        """The answer of an index that covers everything acknowledged."""
        raise AssertionError(f"subclasses answer {question}")

    def _check_open(self) -> None:
        """Raise Closed when the session or view was closed."""
        raise AssertionError("subclasses answer")

    def _unproven_from(self) -> int:
        """Sequences from here on are not proven durable; only views have such."""
        return 1 << 63

    @property
    def leaf_id(self) -> str | None:
        """The current position; None is the position before any entry."""
        raise AssertionError("subclasses answer")

    # One entry

    def read(self, entry_id: str) -> Entry:
        """The entry of that id.

        Raises:
            NotFound: no entry has it.
            Damaged: its frame does not verify any more.
        """
        found = self.ask(lambda index: index.by_id(entry_id))
        if found is None:
            raise NotFound(f"no entry {entry_id!r}", path=self.path)
        return self._load([found])[0]

    def has(self, entry_id: str) -> bool:
        """Whether an entry of that id exists."""
        return self.ask(lambda index: index.by_id(entry_id)) is not None

    def leaf(self) -> Entry | None:
        """The entry at the current position; None before any entry."""
        leaf_id = self.leaf_id
        return None if leaf_id is None else self.read(leaf_id)

    def retention(self, entry_id: str) -> Retention | None:
        """How the entry came in. An unknown id raises, an unmarked entry gives None.

        Raises:
            NotFound: no entry has that id.
        """
        return "retained-import" if self._indexed(entry_id).flags & FLAG_RETAINED else None

    def parent(self, entry_id: str) -> Entry | None:
        """The entry that it hangs below; None for a root, unresolved ones included."""
        parent = self._indexed(entry_id).parent
        return None if parent is None else self._by_sequence(parent)

    def _indexed(self, entry_id: str) -> Indexed:
        found = self.ask(lambda index: index.by_id(entry_id))
        if found is None:
            raise NotFound(f"no entry {entry_id!r}", path=self.path)
        return found

    def _by_sequence(self, sequence: int) -> Entry:
        found = self.ask(lambda index: index.by_sequence(sequence))
        if found is None:
            raise NotFound(f"no entry at sequence {sequence}", path=self.path)
        return self._load([found])[0]

    # Many entries

    def entries(self, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[Entry]:
        """A page of all entries in journal order, behind the sequence ``after``."""
        after, limit = _whole(after), _whole(limit)
        return self._load(self.ask(lambda index: index.entries(after=after, limit=limit)))

    def iter_entries(self, *, after: int = 0) -> Iterator[Entry]:
        """All entries in journal order; damage raises, it never just ends the iteration.

        What is appended after the start is not part of it. Memory holds a page of index rows and
        about 8 MiB of entries (or one, if it is larger).
        """
        after = _whole(after)
        position = self.ask(lambda index: index.position())
        last = 0 if position is None else position.sequence
        while after < last:
            page = self._rows_after(after)
            if not page:
                return
            for piece in pieces([row for row in page if row.sequence <= last]):
                yield from self._load(piece)
            after = page[-1].sequence

    def _rows_after(self, after: int) -> list[Indexed]:
        return self.ask(lambda index: index.entries(after=after, limit=PAGE_ENTRIES * 4))

    def branch(
        self, leaf_id: str | None = None, *, start: int = 0, limit: int | None = None
    ) -> list[Entry]:
        """The path from the root to an entry (the current position, if none is named).

        ``start`` and ``limit`` give a page of it by depth. A path that does not reach a true root
        begins with an entry whose :attr:`Entry.unresolved` says why.

        Raises:
            NotFound: no entry has that id.
        """
        start = _whole(start)
        limit = None if limit is None else _whole(limit)
        leaf_id = self.leaf_id if leaf_id is None else leaf_id
        if leaf_id is None:
            return []
        leaf = self._indexed(leaf_id)
        return self._load(
            self.ask(lambda index: index.path(leaf.sequence, from_depth=start, limit=limit))
        )

    def iter_branch(self, leaf_id: str | None = None) -> Iterator[Entry]:
        """:meth:`branch`, root first, in pages: memory holds about 8 MiB of entries."""
        leaf_id = self.leaf_id if leaf_id is None else leaf_id
        if leaf_id is None:
            return
        leaf = self._indexed(leaf_id)
        for start in range(0, leaf.depth + 1, PAGE_ENTRIES * 4):
            rows = self._path_rows(leaf.sequence, start)
            for piece in pieces(rows):
                yield from self._load(piece)

    def _path_rows(self, leaf: int, start: int) -> list[Indexed]:
        return self.ask(lambda index: index.path(leaf, from_depth=start, limit=PAGE_ENTRIES * 4))

    def depth(self, entry_id: str) -> int:
        """How many entries lie above it on its path."""
        return self._indexed(entry_id).depth

    def children(
        self, entry_id: str | None, *, after: int = 0, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """A page of the entries below an entry; None lists the roots, unresolved ones included."""
        after, limit = _whole(after), _whole(limit)
        parent = None if entry_id is None else self._indexed(entry_id).sequence
        return self._load(self.ask(lambda index: index.children(parent, after=after, limit=limit)))

    def by_kind(
        self,
        kind: str,
        *,
        role: str | None = None,
        after: int | None = None,
        before: int | None = None,
        newest_first: bool = False,
        limit: int = PAGE_ENTRIES,
    ) -> list[Entry]:
        """A page of the entries of a kind (and role), between two sequences (both exclusive)."""
        after = None if after is None else _whole(after)
        before = None if before is None else _whole(before)
        limit = _whole(limit)
        return self._load(
            self.ask(
                lambda index: index.by_kind(
                    kind,
                    role=role,
                    after=after,
                    before=before,
                    newest_first=newest_first,
                    limit=limit,
                )
            )
        )

    def newest_of_kind(
        self, kind: str, *, before: int | None = None, page: int = PAGE_ENTRIES
    ) -> Iterator[Entry]:
        """The entries of a kind, newest first, before a sequence; read ``page`` at a time."""
        while found := self.by_kind(kind, before=before, newest_first=True, limit=page):
            yield from found
            before = found[-1].sequence

    def by_time(
        self, start_ms: int, end_ms: int, *, after: int = 0, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """A page of the entries with start <= timestamp < end (Unix ms), in journal order.

        There is no index on time, and times need not follow the order of the journal: a scan of
        the index from the sequence ``after`` on, about 0.1 s a million entries.
        """
        after, limit = _whole(after), _whole(limit)
        return self._load(
            self.ask(lambda index: index.by_time(start_ms, end_ms, after=after, limit=limit))
        )

    def latest_on_branch(self, kind: str, leaf_id: str | None = None) -> Entry | None:
        """The entry of a kind that is nearest to an entry (the current position) on its path.

        Raises:
            NotFound: no entry has that id.
        """
        leaf_id = self.leaf_id if leaf_id is None else leaf_id
        if leaf_id is None:
            return None
        leaf = self._indexed(leaf_id).sequence
        found = self.ask(lambda index: index.latest_on_path(kind, leaf))
        return None if found is None else self._load([found])[0]

    def label(self, entry_id: str) -> str | None:
        """The label that an entry carries now."""
        sequence = self._indexed(entry_id).sequence
        found = self.ask(lambda index: index.label(sequence))
        return None if found is None else found.label

    def labels(self, *, after: int = 0, limit: int = PAGE_ENTRIES) -> list[tuple[Entry, str]]:
        """A page of the labelled entries with their labels."""
        after, limit = _whole(after), _whole(limit)
        found = self.ask(lambda index: index.labels(after=after, limit=limit))
        rows = self.ask(lambda index: [index.by_sequence(label.target) for label in found])
        loaded = self._load([row for row in rows if row is not None])
        texts = {label.target: label.label for label in found}
        return [(entry, texts[entry.sequence]) for entry in loaded]

    def counts(self) -> dict[str, int]:
        """Numbers of entries, messages, unresolved parents, derived ids, and so on."""
        counts = self.ask(lambda index: index.counts())
        return {key: value for key, value in counts.items() if isinstance(value, int)}

    def usage(self) -> dict[str, Usage]:
        """Token and cost totals by category: ``assistant``, ``summary`` and ``child``.

        As the entries say it, over all branches; what a child used is also in the aggregate of
        its parent when an import baked it in.
        """
        return self.ask(lambda index: index.usage())

    def kinds(self) -> dict[str, int]:
        """Number of entries of each kind."""
        return dict(self.ask(lambda index: index.counts())["kinds"])

    def read_session_context(
        self,
        leaf_id: str | None | UnsetType = UNSET,
        *,
        max_entries: int | None = None,
        max_source_bytes: int | None = None,
        up_to: int | None = None,
    ) -> SessionContext:
        """The model context at the current position, or at an entry; None is before any entry.

        Reads the bodies that it shows, and those that say a setting. The limits are about the
        entries that become messages and their decoded bytes; they are checked before a body is
        read. Usage that entries behind the sequence ``up_to`` attribute is left out.

        Raises:
            NotFound: no entry has that id.
            LimitExceeded: the context is larger than the caller wants.
        """
        self._check_open()
        leaf_id = self.leaf_id if leaf_id is UNSET else leaf_id
        leaf = None if leaf_id is None else self._indexed(leaf_id)
        return read_context(
            self.ask,
            self._load,
            leaf,
            max_entries=None if max_entries is None else _whole(max_entries),
            max_source_bytes=None if max_source_bytes is None else _whole(max_source_bytes),
            up_to=up_to,
        )

    # Metadata

    @property
    def name(self) -> str | None:
        """The display name: the newest one in the whole session decides, a blank one clears."""
        newest = self.by_kind("session_info", newest_first=True, limit=1)
        if not newest:
            return None
        decoded = newest[0].decode()
        text = decoded.name if isinstance(decoded, SessionInfoEntry) else None
        return (text or "").strip() or None

    def header_bytes(self) -> bytes:
        """The session header as stored.

        Raises:
            Damaged: the SESSION frame is lost.
        """
        self._check_open()
        first = frame_at(self.source, self.salt, FILE_HEADER_BYTES)
        found = None if first is None else frame_at(self.source, self.salt, first[0].end)
        if found is None or found[0].kind != Kind.SESSION:
            raise Damaged("the session header is lost", path=self.path)
        return self.shared.decoder.decode(found[0], found[1][FRAME_HEADER_BYTES:])

    @property
    def header(self) -> SessionHeader:
        """The session header."""
        decoded = decode_header(self.header_bytes())
        if decoded is None:
            raise Damaged("the session header is not as documented", path=self.path)
        return decoded

    def provenance(self) -> tuple[bytes, bytes] | None:
        """Where an import or copy came from: (JSON, the source's header); None if native."""
        self._check_open()
        offset = FILE_HEADER_BYTES
        for _ in range(2):
            found = frame_at(self.source, self.salt, offset)
            if found is None:
                return None
            offset = found[0].end
        found = frame_at(self.source, self.salt, offset)
        if found is None or found[0].kind != Kind.PROVENANCE:
            return None
        payload = self.shared.decoder.decode(found[0], found[1][FRAME_HEADER_BYTES:])
        facts, _, header = payload.partition(b"\0")
        return facts, header

    # Bytes

    def _load(self, rows: Sequence[Indexed]) -> list[Entry]:
        """The entries of index rows; rows that are wrong are looked up again in a new index."""
        try:
            return self._load_rows(rows)
        except _RowIsWrong as wrong:
            if not self._index_is_distrusted(wrong.why):
                raise Damaged(wrong.why, path=self.path, offset=wrong.row.offset) from None
        sequences = [row.sequence for row in rows]
        found = self.ask(lambda index: [index.by_sequence(sequence) for sequence in sequences])
        return self._load_rows([row for row in found if row is not None])

    def _index_is_distrusted(self, why: str) -> bool:
        """Set an index aside that was found wrong; False where there is no file to blame."""
        del why
        return False

    def _load_rows(self, rows: Sequence[Indexed]) -> list[Entry]:
        """Frames that lie close together are read in one go."""
        loaded: list[Entry] = []
        start = 0
        count = len(rows)
        while start < count:
            begin = rows[start].offset
            end = begin + ENVELOPE_BYTES + rows[start].stored
            stop = start + 1
            while stop < count:
                row = rows[stop]
                row_end = row.offset + ENVELOPE_BYTES + row.stored
                if not end <= row.offset <= end + _READ_GAP_BYTES:
                    break
                if row_end - begin > _READ_TOGETHER_BYTES:
                    break
                end = row_end
                stop += 1
            self._load_run(rows[start:stop], begin, end, loaded)
            start = stop
        return loaded

    def _load_run(self, rows: Sequence[Indexed], begin: int, end: int, loaded: list[Entry]) -> None:
        data = self.source.read_at(begin, end - begin)
        salt = self.salt
        unproven_from = self._unproven_from()
        for row in rows:
            at = row.offset - begin
            body = data[at : at + FRAME_HEADER_BYTES + row.stored]
            # One comparison proves everything: the revision is the digest over header and payload.
            if digest_of(body, salt) != row.revision:
                if frame_at(self.source, salt, row.offset) is not None:
                    raise _RowIsWrong(row)  # the frame is whole: it is not the journal's fault
                raise Damaged(
                    f"entry {row.id} does not verify any more",
                    path=self.path,
                    offset=row.offset,
                    next_step=f"next: {commands.checking(self.path)}",
                )
            if body[6] & _MARKS != row.flags:  # an entry is what its frame says
                raise _RowIsWrong(row)
            raw = body[FRAME_HEADER_BYTES:] if body[5] == 0 else self._decoded(row, body)
            loaded.append(
                Entry(
                    raw,
                    row.id,
                    row.sequence,
                    row.revision,
                    row.flags,
                    row.unresolved,
                    row.sequence >= unproven_from,
                )
            )

    def _decoded(self, row: Indexed, body: bytes) -> bytes:
        if body[5] == CODEC_ZSTD:
            payload = decompress_plain(body[FRAME_HEADER_BYTES:], row.raw)
            if payload is not None:
                return payload
        (_, kind, codec, flags, stored, raw, sequence, epoch, unsynced, previous, _) = (
            unpack_frame_header(body)
        )
        frame = Frame(
            row.offset,
            kind,
            codec,
            flags,
            stored,
            raw,
            sequence,
            epoch,
            unsynced,
            previous,
            row.revision,
        )
        return self.shared.decoder.decode(frame, body[FRAME_HEADER_BYTES:])


class _RowIsWrong(Exception):
    """An index row names a whole frame with another revision than it has."""

    def __init__(self, row: Indexed) -> None:
        self.row = row
        self.why = f"the index has another revision for the frame of entry {row.id}"
        super().__init__(self.why)


def pieces(rows: Sequence[Indexed]) -> Iterator[Sequence[Indexed]]:
    """Rows in pieces that are loaded together, bounded by their decoded bytes."""
    start = size = 0
    for at, row in enumerate(rows):
        if size + row.raw > _LOADED_BYTES and at > start:
            yield rows[start:at]
            start, size = at, 0
        size += row.raw
    if start < len(rows):
        yield rows[start:]


def _whole(value: int) -> int:
    """A count or sequence that the index can be asked with.

    Raises:
        Invalid: not an integer, or negative.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Invalid(f"expected a whole number, not {value!r}")
    return min(value, SEQUENCE_MAX)
