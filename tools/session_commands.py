"""Commands that make or change one session: new, name, label, branch. They own it meanwhile."""

from __future__ import annotations

import click

from treering.tools.options import home_option, json_option, store_at


@click.command()
@click.option("--cwd", metavar="DIR", help="Working directory of the session [default: this one].")
@click.option("--name", "display_name", metavar="N", help="Display name.")
@home_option
@json_option
def new(cwd: str | None, display_name: str | None, home: str | None, as_json: bool) -> None:
    """Make a new session and print its path."""
    import os

    from treering.engine.errors import TreeringError
    from treering.engine.session.session import Session
    from treering.tools.output import reporting, say_json, say_path, warn

    if cwd is not None:
        cwd = os.path.abspath(os.path.expanduser(cwd))
    session = Session.create(cwd, home_dir=home)
    path, session_id = session.path, session.id
    try:
        with session:
            if display_name is not None and display_name.strip():
                session.set_name(display_name)
    except TreeringError:
        # Two facts: the session is there, and something about it failed.
        warn(f"the session was made: {path}; but its name was not set")
        raise
    with reporting(f"the session was made: {path}"):
        if as_json:
            say_json({"path": path, "id": session_id})
        else:
            say_path(path)


@click.command()
@click.argument("sel")
@click.argument("name")
@home_option
@json_option
def name(sel: str, name: str, home: str | None, as_json: bool) -> None:
    """Give a session a display name; a blank one clears it. Prints the id of the new entry."""
    from treering.tools.resolving import resolve
    from treering.tools.viewing import owning

    with owning(resolve(store_at(home), sel)) as session:
        entry_id = session.set_name(name)
        session_id = session.id
    _report(session_id, entry_id, as_json=as_json)


@click.command()
@click.argument("sel")
@click.argument("entry")
@click.argument("label", required=False)
@home_option
@json_option
def label(sel: str, entry: str, label: str | None, home: str | None, as_json: bool) -> None:
    """Label an entry; without LABEL its label is cleared. Prints the id of the new entry."""
    from treering.tools.resolving import resolve, resolve_entry
    from treering.tools.viewing import owning

    with owning(resolve(store_at(home), sel)) as session:
        entry_id = session.set_label(resolve_entry(session, entry), label)
        session_id = session.id
    _report(session_id, entry_id, as_json=as_json)


@click.command()
@click.argument("sel")
@click.argument("entry")
@home_option
@json_option
def branch(sel: str, entry: str, home: str | None, as_json: bool) -> None:
    """Move the current position to an entry, or before any entry (`root`). Prints where it is.

    What is appended next continues from there; nothing is removed.
    """
    from treering.tools.resolving import resolve, resolve_entry
    from treering.tools.viewing import owning

    with owning(resolve(store_at(home), sel)) as session:
        target = None if entry == "root" else resolve_entry(session, entry)
        session.branch_to(target)
        session_id = session.id
    _report(session_id, target, as_json=as_json)


def _report(session_id: str, entry_id: str | None, *, as_json: bool) -> None:
    from treering.tools.output import escape, say, say_json

    if as_json:
        say_json({"session": session_id, "entry": entry_id})
    else:
        say("root" if entry_id is None else escape(entry_id))
