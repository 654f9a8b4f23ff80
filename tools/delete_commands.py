"""`session delete`, `session undelete` and `session archive`: out of sight, and back."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.home import Store
    from treering.engine.session.deleting import DeletedSession


@click.command()
@click.argument("sel")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
@json_option
def delete(sel: str, yes: bool, home: str | None, as_json: bool) -> None:
    """Move a session and its artifacts into the trash of the store; prints its id.

    It must not be in use; a damaged one can be deleted too. `session undelete` brings it back.
    """
    from treering.engine.home import session_id_of
    from treering.engine.session.deleting import delete_session, list_deleted
    from treering.engine.session.trash import hidden_ids, undeleting
    from treering.tools.output import escape, reporting, say, say_json, warn
    from treering.tools.resolving import resolve

    store = store_at(home)
    begun = hidden_ids(store)
    if sel in begun.intersection(_finish(store)):  # this very one had been interrupted
        (done,) = (one for one in list_deleted(store) if one.id == sel)
    else:
        path = resolve(store, sel)
        if not yes:
            _ask(f"Delete the session {session_id_of(path)}?")
        done = delete_session(path)
        store = store.of_journal(path)
    with reporting(f"the session was deleted: {done.id}"):
        if as_json:
            say_json(_as_json(done))
        else:
            say(escape(done.id))
    warn(f"`{undeleting(store, done.id)}` brings it back")


def _ask(question: str) -> None:
    from treering.engine.errors import Invalid
    from treering.tools.output import escape

    if not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask; --yes deletes without asking")
    if not click.confirm(escape(question), err=True):
        raise Invalid("nothing was deleted")


@click.command()
@click.argument("sel", required=False)
@home_option
@json_option
def undelete(sel: str | None, home: str | None, as_json: bool) -> None:
    """Bring a deleted session back and print its path; without SEL list what was deleted.

    SEL is the id, its beginning or end, the name, or the path that the session had.
    """
    from treering.engine.session.deleting import list_deleted, undelete_session
    from treering.tools.output import reporting, say_json, say_path

    store = store_at(home)
    if sel is None:
        _list(list_deleted(store), store, as_json=as_json)
        return
    store, session_id = _named(store, sel)
    path = undelete_session(store, session_id)
    with reporting(f"the session is back: {path}"):
        if as_json:
            say_json({"path": path, "id": session_id})
        else:
            say_path(path)


def _named(store: Store, sel: str) -> tuple[Store, str]:
    """The store and the id that a selector means, among deleted sessions."""
    from treering.engine import commands
    from treering.engine.errors import NotFound
    from treering.engine.home import check_path, session_id_of
    from treering.engine.session.deleting import list_deleted
    from treering.engine.session.resolving import choose, is_path

    if is_path(sel):
        path = os.path.abspath(os.path.expanduser(check_path(sel)))
        if os.sep in sel:
            store = store.of_journal(path)
        return store, session_id_of(path)
    deleted = list_deleted(store)
    found = choose(
        sel,
        [one.id for one in deleted],
        lambda: [one.id for one in deleted if one.name == sel],
        what="deleted sessions",
    )
    if found is not None:
        return store, found
    at = () if commands.selector(store.journal_path("x")) == "x" else ("--home", store.top)
    raise NotFound(
        f"no deleted session {sel!r} in {store.trash}",
        next_step=f"`{commands.command('session', 'undelete', *at)}` lists what was deleted",
    )


def _list(deleted: list[DeletedSession], store: Store, *, as_json: bool) -> None:
    from treering.tools.output import one_line, say_json, table, warn

    if as_json:
        say_json([_as_json(one) for one in deleted])
        return
    if not deleted:
        warn(f"nothing was deleted in {store.sessions}")
        return
    rows = [
        (
            one_line(one.id),
            (_iso(one.deleted_ms) or "")[:16].replace("T", " "),
            one_line(_what(one)),
        )
        for one in deleted
    ]
    table(("id", "deleted", "name"), rows, (36, 16, 0))


def _what(one: DeletedSession) -> str:
    if one.under_way is not None:
        return f"[{one.under_way}] {one.name or ''}"
    return "[purged]" if one.purged_ms is not None else one.name or ""


def _as_json(one: DeletedSession) -> dict[str, Any]:
    return {
        "id": one.id,
        "folder": one.folder,
        "deleted": _iso(one.deleted_ms),
        "name": one.name,
        "purged": _iso(one.purged_ms),
        "underWay": one.under_way,
    }


def _iso(ms: int | None) -> str | None:
    from treering.engine.environment import iso_time

    try:
        return None if ms is None else iso_time(ms)
    except (ValueError, OverflowError, OSError):
        return None  # a tombstone that somebody wrote by hand


def _finish(store: Store) -> tuple[str, ...]:
    """Finish what was interrupted in this store; what cannot be is told, and stops nothing."""
    from treering.engine.session.deleting import finish_deletions
    from treering.tools.output import warn

    finished = finish_deletions(store)
    for session_id, error in finished.left:
        warn(f"what was begun with the deleted session {session_id} is not finished: {error}")
    return finished.done


@click.command()
@click.argument("sel")
@click.option("--undo", is_flag=True, help="Take an archived session back.")
@home_option
@json_option
def archive(sel: str, undo: bool, home: str | None, as_json: bool) -> None:
    """Archive a session: it stays as it is, and lists know it as archived.

    Prints the id of the new entry, if one was needed.
    """
    from treering.engine.session.lifecycle import mark_archived
    from treering.tools.output import escape, say, say_json, warn
    from treering.tools.resolving import resolve
    from treering.tools.viewing import owning

    with owning(resolve(store_at(home), sel)) as session:
        entry_id = mark_archived(session, archived=not undo)
        session_id = session.id
    if as_json:
        say_json({"session": session_id, "entry": entry_id, "archived": not undo})
    elif entry_id is None:
        warn(f"it is {'not archived' if undo else 'archived already'}")
    else:
        say(escape(entry_id))
