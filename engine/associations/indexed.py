"""The reports of an open session or view, from its index: outputs first, then their requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treering.engine.associations.matching import Matcher
from treering.engine.associations.raw import refuse_doubtful, session_frame, take_stored
from treering.engine.errors import Damaged
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session.entry import Entry
from treering.engine.session.reads import Reads, pieces
from treering.engine.session.view import SessionView
from treering.index import Entry as Indexed

_ROWS: Final = 4 * PAGE_ENTRIES

_OUTPUTS: Final = (
    ("message", "assistant"),
    ("compaction", None),
    ("branch_summary", None),
    ("custom", None),
    ("", None),
)
"""Kinds and roles. Of a kind without a name are entries that cannot be decoded: they raise."""


def read_session(reads: Reads) -> Matcher:
    """Everything that the reports of a session need, as it is now.

    Memory is 8 MiB of entries besides, or one, if it is larger.

    Raises:
        Damaged, Unsupported: a view that may not show everything.
        Damaged, Undecodable: an entry does not verify any more, or has no readable content.
    """
    if isinstance(reads, SessionView):
        refuse_doubtful(reads.examination)
    position = reads.ask(lambda index: index.position())
    end = 0 if position is None else position.sequence + 1
    matcher = Matcher()
    _take_header(matcher, reads, end)
    for kind, role in _OUTPUTS:
        for entry in _entries(reads, kind, role, end):
            take_stored(matcher, entry.raw, entry.flags)
    if matcher.take_only_named():
        for entry in _entries(reads, "request", None, end):
            take_stored(matcher, entry.raw, entry.flags)
    return matcher


def _take_header(matcher: Matcher, reads: Reads, end: int) -> None:
    """The newest session record: the header of the journal, or a later one among the entries."""
    found = session_frame(reads.source, reads.salt)
    if found is None:
        raise Damaged("the session header is lost", path=reads.path)
    frame, stored = found
    take_stored(matcher, reads.shared.decoder.decode(frame, stored), frame.flags)
    for entry in _entries(reads, "session", None, end):
        take_stored(matcher, entry.raw, entry.flags)


def _entries(reads: Reads, kind: str, role: str | None, end: int) -> Iterator[Entry]:
    """The entries of a kind up to a sequence, in order."""
    after = 0

    def page() -> list[Indexed]:
        return reads.ask(
            lambda index: index.by_kind(kind, role=role, after=after, before=end, limit=_ROWS)
        )

    while rows := page():
        for piece in pieces(rows):
            yield from reads._load(piece)
        after = rows[-1].sequence
