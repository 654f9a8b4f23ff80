"""The rows of `session list`: one for every file, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from treering.engine.environment import iso_time
from treering.engine.errors import NotAJournal, TreeringError, Unsupported
from treering.engine.home import Store, check_session_id
from treering.engine.session.facts import timestamp_ms
from treering.engine.session.view import SessionView
from treering.tools import showing
from treering.tools.output import one_line
from treering.tools.resolving import path_in, session_names
from treering.tools.viewing import read_or_none

FIRST_MESSAGE_CHARS = 200


@dataclass
class SessionRow:
    """One session, or one file that should have been one."""

    id: str
    path: str
    status: str = "ok"
    """ok, damaged, foreign, unsupported or unreadable."""
    reason: str | None = None
    name: str | None = None
    first_message: str | None = None
    messages: int = 0
    entries: int = 0
    cwd: str | None = None
    created: str | None = None
    parent_session: str | None = None
    last_activity_ms: int | None = None
    """Time of the last user or assistant message; never the file's."""

    @property
    def last_activity(self) -> str | None:
        """The same as an ISO time."""
        return _iso(self.last_activity_ms)

    def as_json(self) -> dict[str, Any]:
        """The documented members, in camelCase."""
        members = asdict(self)
        members["last_activity"] = self.last_activity
        return {_camel(key): value for key, value in members.items()}


def rows_of(store: Store) -> Iterator[SessionRow]:
    """A row per file in the store, in the order of names. One bad file never hides another."""
    for name in session_names(store):
        yield row_of(path_in(store, name), name)


def newest_first(rows: list[SessionRow]) -> list[SessionRow]:
    """By last activity (an empty session: by creation); what tells no time comes last."""
    return sorted(
        rows,
        key=lambda row: (
            -(row.last_activity_ms or timestamp_ms(row.created) or -(1 << 62)),
            row.id,
        ),
    )


def row_of(path: str, name: str) -> SessionRow:
    """The row of one file."""
    row = SessionRow(name, path)
    try:
        check_session_id(name)
        with SessionView.open(path) as view:
            report = view.report
            if report.case != "A":
                row.status = "ok" if report.case == "E" else "damaged"
                row.reason = f"case {report.case}: {report.verdict}"
            _fill(row, view)
    except NotAJournal as error:
        row.status, row.reason = "foreign", error.what
    except TreeringError as error:
        row.status, row.reason = _status_of(error), error.what
    except (OSError, MemoryError) as error:
        row.status, row.reason = "unreadable", str(error) or "out of memory"
    return row


def _status_of(error: TreeringError) -> str:
    # What the system refuses says nothing about the session.
    if error.exit_code == 3:
        return "unreadable"
    return "unsupported" if isinstance(error, Unsupported) else "damaged"


def _fill(row: SessionRow, view: SessionView) -> None:
    counts = view.counts()
    row.messages, row.entries = counts["messages"], counts["entries"]
    try:
        header = view.header
    except TreeringError as error:
        if row.status == "ok":
            row.status, row.reason = _status_of(error), error.what
    else:
        row.cwd, row.created = header.cwd, header.timestamp
        row.parent_session = header.parent_session
    newest = [
        found[0].timestamp_ms
        for role in ("user", "assistant")
        if (found := view.ask(_newest(role)))
    ]
    row.last_activity_ms = max((time for time in newest if time is not None), default=None)
    first = view.ask(lambda index: index.by_kind("message", role="user", limit=1))
    if first:
        _, text = showing.describe(read_or_none(view, first[0].id))
        row.first_message = " ".join(text[: FIRST_MESSAGE_CHARS * 4].split())[:FIRST_MESSAGE_CHARS]
    try:
        row.name = view.name
    except TreeringError:
        row.name = None  # an unreadable name is found by fsck; the session is listed all the same


def _newest(role: str) -> Any:
    return lambda index: index.by_kind("message", role=role, newest_first=True, limit=1)


def _iso(ms: int | None) -> str | None:
    try:
        return None if ms is None else iso_time(ms)
    except (ValueError, OverflowError, OSError):
        return None


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def cells_of(row: SessionRow) -> tuple[str, str, str, str, str]:
    """The row as texts for a table: escaped, each on one line."""
    when = (row.last_activity or row.created or "")[:16].replace("T", " ")
    if row.status != "ok":
        what = f"[{row.status}] {row.reason}"
    else:
        nothing = "(no messages)" if row.messages == 0 else "(no user message)"
        what = row.name or row.first_message or row.reason or nothing
    return (
        one_line(row.id),
        one_line(when),
        str(row.messages) if row.status in ("ok", "damaged") else "-",
        one_line(what),
        one_line(row.cwd or ""),
    )
