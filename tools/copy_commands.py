"""`session fork` and `session clone`: new sessions from a session, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.session.view import SessionView
    from treering.engine.transfer.copying import CopyResult

_no_limit = click.option("--no-limit", is_flag=True, help="Lift the limits on entries and bytes.")


@click.command()
@click.argument("sel")
@click.option("--before", metavar="ENTRY", help="Only the path that ends above a user message.")
@click.option("--at", metavar="ENTRY", help="Only the path that ends with an entry.")
@click.option(
    "--cwd",
    metavar="DIR",
    help="Working directory of the new session [default: this one; of a path the session's].",
)
@_no_limit
@home_option
@json_option
def fork(
    sel: str,
    before: str | None,
    at: str | None,
    cwd: str | None,
    no_limit: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Copy a session into a new one; prints only its path. The session may be in use.

    Without --before and --at everything is copied, all branches. SEL may also be a JSONL file.
    """
    if before is not None and at is not None:
        raise click.UsageError("--before and --at exclude each other")
    from treering.engine.transfer.copying import fork_session, prepare_fork
    from treering.tools.resolving import resolve, resolve_entry

    store = store_at(home)
    path = resolve(store, sel)
    options = _limits(no_limit)
    entry = at if before is None else before
    if entry is None:
        _make(
            lambda: fork_session(path, _folder(cwd), session_dir=store.sessions, **options), as_json
        )
        return
    with _whole(path) as view:
        entry_id = resolve_entry(view, entry)
        prepared = prepare_fork(view, entry_id, "before" if at is None else "at", **options)
        _make(lambda: prepared.create(_folder(cwd), session_dir=store.sessions), as_json)


@click.command()
@click.argument("sel")
@click.option("--at", metavar="ENTRY", help="Another end than the current position.")
@click.option(
    "--cwd",
    metavar="DIR",
    help="Working directory of the new session [default: that of the session].",
)
@_no_limit
@home_option
@json_option
def clone(
    sel: str, at: str | None, cwd: str | None, no_limit: bool, home: str | None, as_json: bool
) -> None:
    """Copy the current branch of a session into a new one; prints only its path.

    The session may be in use. Labels that are in force come along.
    """
    from treering.engine.errors import Invalid
    from treering.engine.transfer.copying import copy_branch
    from treering.tools.resolving import resolve, resolve_entry

    store = store_at(home)
    with _whole(resolve(store, sel)) as view:
        leaf = view.leaf_id if at is None else resolve_entry(view, at)
        if leaf is None:
            raise Invalid("there is nothing to clone yet", path=view.path)
        options = {"session_dir": store.sessions, **_limits(no_limit)}
        _make(lambda: copy_branch(view, leaf, _folder(cwd), **options), as_json)


@contextmanager
def _whole(path: str) -> Iterator[SessionView]:
    """A view of a session that can be copied: one that is damaged is refused here."""
    from treering.engine.session.view import SessionView
    from treering.engine.transfer.journal_source import refuse_unfit

    with SessionView.open(path) as view:
        refuse_unfit(view.examination)
        yield view


def _limits(no_limit: bool) -> dict[str, Any]:
    return {"limits": None} if no_limit else {}


def _folder(cwd: str | None) -> str | None:
    import os

    return None if cwd is None else os.path.abspath(os.path.expanduser(cwd))


def _make(copy: Callable[[], CopyResult], as_json: bool) -> None:
    from treering.tools.output import counted, reporting, say_json, say_path, warn

    done = copy()
    if done.ignored_bytes:
        warn(
            f"{done.source_path}: {counted(done.ignored_bytes, 'byte')} of an unfinished or torn"
            " end are not part of the copy"
        )
    if done.labels_left_out:
        warn(
            f"{done.source_path}: {counted(done.labels_left_out, 'label')} could not be carried"
            " over: a later entry has the same id"
        )
    with reporting(f"the session was made: {done.path}"):
        if not as_json:
            say_path(done.path)
            return
        say_json(
            {
                "path": done.path,
                "id": done.session_id,
                "source": done.source_path,
                "sourceFormat": done.source_format,
                "entries": done.entries,
                "labels": done.labels,
                "relinked": done.relinked,
                "labelsLeftOut": done.labels_left_out,
                "unproven": done.unproven,
                "ignoredBytes": done.ignored_bytes,
            }
        )
