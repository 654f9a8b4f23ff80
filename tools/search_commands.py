"""`search`: entries of all sessions, by what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.home import Store
    from treering.engine.search import SearchHit, SearchPage


def _time(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    from treering.engine.session.facts import timestamp_ms

    del context
    found = timestamp_ms(value)
    if found is None and value is not None:
        what = f"{value!r} is no date; write 2026-01-31, or 2026-01-31T12:00:00Z"
        raise click.BadParameter(what, param=parameter)
    return found


@click.command()
@click.argument("query")
@click.option("--session", "sel", metavar="SEL", help="Only this session.")
@click.option("--cwd", metavar="DIR", help="Only sessions of this working directory.")
@click.option(
    "--role", "roles", multiple=True, help="Only messages of it: user, assistant, toolResult, ..."
)
@click.option("--kind", "kinds", multiple=True, help="Only entries of it: message, compaction, ...")
@click.option("--since", callback=_time, metavar="DATE", help="Only entries from then on (UTC).")
@click.option("--until", callback=_time, metavar="DATE", help="Only entries before then (UTC).")
@click.option("--rank", is_flag=True, help="Best first, of the newest 20,000; else newest first.")
@click.option("--raw", is_flag=True, help="QUERY is in the syntax of SQLite's FTS5.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Hits of a page."
)
@click.option("--after", metavar="CURSOR", help="Go on behind a page.")
@home_option
@json_option
def command(
    query: str,
    sel: str | None,
    cwd: str | None,
    roles: tuple[str, ...],
    kinds: tuple[str, ...],
    since: int | None,
    until: int | None,
    rank: bool,
    raw: bool,
    limit: int,
    after: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """Search the text of all sessions: messages, tool calls and results, summaries.

    An entry must hold all words of QUERY. "two words" in quotes is a phrase, wor* a beginning; case
    and accents do not count. Names, first messages, paths and labels are found by any part of them.
    """
    from treering.engine.home import session_id_of
    from treering.engine.search import search_sessions
    from treering.tools.output import say_json
    from treering.tools.resolving import resolve

    store = store_at(home)
    if sel is not None:
        path = resolve(store, sel)
        store = store.of_journal(path)
    page = search_sessions(
        store,
        query,
        session_ids=None if sel is None else [session_id_of(path)],
        cwd=cwd,
        roles=roles or None,
        kinds=kinds or None,
        since_ms=since,
        until_ms=until,
        rank=rank,
        raw=raw,
        limit=limit,
        after=after,
    )
    if as_json:
        say_json(_as_json(page))
        return
    _show(page, store)


def _show(page: SearchPage, store: Store) -> None:
    from treering.tools.output import counted, one_line, table, warn

    if page.fields:
        rows = [
            (one_line(match.session_id), match.field, one_line(match.text)) for match in page.fields
        ]
        table(("session", "field", "text"), rows, (36, 8, 0))
    if page.hits:
        table(
            ("session", "time", "role", "entry", "text"), map(_cells, page.hits), (36, 16, 11, 8, 0)
        )
    if not page.hits and not page.fields:
        more = "" if page.cursor is None else " yet"
        warn(f"nothing was found in {store.sessions}{more}")
    if page.scanned is not None:
        texts = counted(page.scanned, "text")
        warn(f"such a query is not looked up: {texts} were read one by one, the newest first")
    for session_id, reason in page.problems:
        warn(f"{session_id}: {reason}" if session_id else reason)
    if page.cursor is not None:
        warn(f"there may be more: the same with --after {page.cursor}")


def _cells(hit: SearchHit) -> tuple[str, str, str, str, str]:
    from treering.tools.output import one_line

    return (
        one_line(hit.session_id),
        (_iso(hit.time_ms) or "")[:16].replace("T", " "),
        one_line(hit.role or hit.kind),
        one_line(hit.entry_id or str(hit.sequence)),
        one_line(hit.snippet),
    )


def _as_json(page: SearchPage) -> dict[str, Any]:
    """The documented members, in camelCase."""
    hits = [
        {
            "session": hit.session_id,
            "path": hit.path,
            "sequence": hit.sequence,
            "entry": hit.entry_id,
            "kind": hit.kind,
            "role": hit.role,
            "timeMs": hit.time_ms,
            "time": _iso(hit.time_ms),
            "snippet": hit.snippet,
            "match": hit.match,
        }
        for hit in page.hits
    ]
    fields = [
        {"session": one.session_id, "path": one.path, "field": one.field, "text": one.text}
        for one in page.fields
    ]
    problems = [{"session": session or None, "reason": why} for session, why in page.problems]
    return {
        "hits": hits,
        "fields": fields,
        "cursor": page.cursor,
        "scanned": page.scanned,
        "problems": problems,
    }


def _iso(ms: int | None) -> str | None:
    from treering.engine.environment import iso_time

    try:
        return None if ms is None else iso_time(ms)
    except (ValueError, OverflowError, OSError):
        return None
