"""Opening sessions for the commands: read-only for reports, owned for changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from treering.engine import commands
from treering.engine.errors import TreeringError
from treering.engine.home import Store, check_session_id
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.opening import Hint
from treering.engine.journal.ownership import OwnerNote, read_note
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session.entry import Entry
from treering.engine.session.filling import peek_hint
from treering.engine.session.reads import Reads
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.index import Entry as IndexRow
from treering.tools.output import size_text, warn


@contextmanager
def looking_at(path: str) -> Iterator[SessionView]:
    """A read-only view. Of a damaged session it shows what comes before the damage, and says so.

    Raises:
        TreeringError: nothing of the session can be read.
    """
    with SessionView.open(path) as view:
        problem = trouble(view)
        if problem is not None:
            warn(problem)
        yield view


def trouble(view: SessionView) -> str | None:
    """One line about a view that does not show everything; None when all is well."""
    report = view.report
    if report.case == "A":
        return None
    reason = f" ({report.reason})" if report.reason else ""
    then = f"; next: {report.next_step}" if report.next_step else ""
    if report.case == "E":
        note = live_owner(Store.of_journal(view.path), view.path)
        if note is not None:
            return (
                f"case E, unfinished or torn at offset {report.bad_offset}: process {note.pid} is"
                " using the session; what is complete is shown"
            )
    return (
        f"case {report.case}, {report.verdict}{reason} at offset {report.bad_offset};"
        f" showing the {report.frames} frames before it{then}"
    )


@contextmanager
def owning(path: str) -> Iterator[Session]:
    """An owned session; what opening it did, or found wrong with its index, goes to stderr."""
    with Session.open(path) as session:
        report = session.report
        if report is not None and report.quarantine is not None:
            warn(
                f"a torn tail of {size_text(report.quarantined_bytes)}"
                f" ({report.quarantined_frames} whole frames) was moved to {report.quarantine};"
                f" `{commands.repairing(path, '--readmit')}` brings whole entries back"
            )
        yield session
        for fault in session.index_faults:
            warn(f"{fault} (set aside; answers come from the journal)")


def hint_of(store: Store, session_id: str, journal_id: bytes | None = None) -> Hint | None:
    """What an index remembers of a journal; nothing is written."""
    try:
        check_session_id(session_id)
    except TreeringError:
        return None
    return peek_hint(store.index, session_id, journal_id)


def live_owner(store: Store, path: str) -> OwnerNote | None:
    """Who is using the session, as far as the advisory note tells."""
    note = owner_note(store, path)
    return note if note is not None and is_alive(note) else None


def owner_note(store: Store, path: str) -> OwnerNote | None:
    """The note beside the index, whether its writer still lives or not."""
    try:
        note_path = store.owner_note(name_of(path))
    except TreeringError:
        return None
    return read_note(LOCAL_DISK, note_path)


def is_alive(note: OwnerNote) -> bool:
    """Whether the process of a note is one that lives here now."""
    from treering.engine import environment

    here = note.host == environment.host_name() and note.boot == environment.boot_id()
    return here and environment.process_exists(note.pid)


def name_of(path: str) -> str:
    """The id that a journal's file name states, right or wrong."""
    return path.rpartition("/")[2].removesuffix(".jsonl")


def load(view: SessionView, rows: list[IndexRow]) -> Iterator[tuple[IndexRow, Entry | None]]:
    """The entries of a page of index rows; None for one whose payload cannot be produced.

    One unreadable entry must not hide its neighbours, so a page that fails is read one by one.
    """
    if not rows:
        return
    try:
        entries = {
            entry.sequence: entry
            for entry in view.entries(after=rows[0].sequence - 1, limit=len(rows))
        }
        if all(row.sequence in entries for row in rows):
            yield from ((row, entries[row.sequence]) for row in rows)
            return
    except TreeringError:
        pass
    for row in rows:
        yield row, read_or_none(view, row.id)


def read_or_none(view: SessionView, entry_id: str) -> Entry | None:
    """The entry, or None when its payload cannot be produced."""
    try:
        return view.read(entry_id)
    except TreeringError:
        return None


def rows_after(session: Reads, after: int, limit: int = PAGE_ENTRIES * 4) -> list[IndexRow]:
    """A page of index rows, in journal order, behind a sequence."""
    return session.ask(lambda index: index.entries(after=after, limit=limit))


def all_rows(session: Reads) -> Iterator[list[IndexRow]]:
    """Pages of every index row, in journal order."""
    rows = rows_after(session, 0)
    while rows:
        yield rows
        rows = rows_after(session, rows[-1].sequence)


def branch_pages(view: SessionView) -> Iterator[list[tuple[str, Entry | None]]]:
    """Pages of the path from the root to the current position: ids with their entries."""
    leaf_id = view.leaf_id
    leaf = None if leaf_id is None else view.ask(lambda index: index.by_id(leaf_id))
    depth = 0
    while leaf is not None and depth <= leaf.depth:
        page = _branch_page(view, leaf.sequence, depth)
        if not page:
            return
        yield page
        depth += len(page)


def _branch_page(view: SessionView, leaf: int, depth: int) -> list[tuple[str, Entry | None]]:
    limit = PAGE_ENTRIES * 2
    try:
        return [(entry.id, entry) for entry in view.branch(start=depth, limit=limit)]
    except TreeringError:
        rows = view.ask(lambda index: index.path(leaf, from_depth=depth, limit=limit))
        return [(row.id, read_or_none(view, row.id)) for row in rows]
