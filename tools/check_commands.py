"""Commands about the state of sessions: fsck, repair, reindex, dump."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treering.tools.options import home_option, jobs_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.home import Store
    from treering.engine.journal.repair_modes import RepairMode
    from treering.tools.findings import Checked


@click.command()
@click.argument("sel", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions (also when none is named).")
@click.option("--index", "with_index", is_flag=True, help="Also prove that the index is right.")
@jobs_option
@home_option
@json_option
@click.pass_context
def fsck(
    context: click.Context,
    *,
    sel: tuple[str, ...],
    everything: bool,
    with_index: bool,
    jobs: int,
    home: str | None,
    as_json: bool,
) -> None:
    """Check journals: every frame, every payload, and what lies beside them. Changes nothing.

    One line per finding and one per session. The exit code is 1 when something needs action.
    """
    from functools import partial

    from treering.tools.fsck import check_session
    from treering.tools.output import say_json, with_progress
    from treering.tools.pool import run_all

    store = store_at(home)
    paths = _chosen(store, sel, everything=everything or not sel)
    if not paths:
        _say_empty(store)
    work = partial(check_session, with_index=with_index)
    results = run_all(work, paths, jobs=jobs)
    checked: list[Checked] = []
    for result in with_progress(results, "checking", len(paths), printing=not as_json):
        checked.append(result)
        if not as_json:
            _say_checked(result)
    if not sel:
        for orphan in _orphans(store, {result.session for result in checked}):
            checked.append(orphan)
            if not as_json:
                _say_checked(orphan)
    if as_json:
        say_json([result.as_json() for result in checked])
    if any(not result.ok for result in checked):
        only_refused = all(result.ok or result.could_not_run for result in checked)
        context.exit(3 if only_refused else 1)


def _say_empty(store: Store) -> None:
    """A mistyped folder must not look like a clean one."""
    import os

    from treering.engine.errors import NotFound
    from treering.tools.output import warn

    if not os.path.isdir(store.top):
        raise NotFound("no such store", path=store.top)
    warn(f"no sessions in {store.sessions}")


def _chosen(store: Store, selectors: tuple[str, ...], *, everything: bool) -> list[str]:
    from treering.engine.session.listing import path_in, session_names
    from treering.tools.resolving import resolve

    if selectors and everything:
        raise click.UsageError("name sessions, or use --all, not both")
    if everything:
        return [path_in(store, name) for name in session_names(store)]
    return list(dict.fromkeys(resolve(store, selector) for selector in selectors))


def _orphans(store: Store, known: set[str]) -> list[Checked]:
    """Temporary journals whose session does not exist (yet, or any more)."""
    from treering.tools.findings import Checked
    from treering.tools.fsck import leftover, temporaries

    return [
        Checked(session, path, findings=[leftover(path)])
        for session, path in temporaries(store)
        if session not in known
    ]


def _say_checked(result: Checked) -> None:
    from treering.tools.output import escape, say

    for line in result.lines():
        say(escape(line))


def _journal_id(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> bytes | None:
    del context
    if value is None:
        return None
    try:
        journal_id = bytes.fromhex(value)
    except ValueError:
        journal_id = b""
    if len(journal_id) != 16 or len(value) != 32:
        raise click.BadParameter("32 hexadecimal digits", param=parameter)
    return journal_id


@click.command()
@click.argument("sel")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--mode",
    type=click.Choice(["strict", "tail", "prefix", "salvage"]),
    help="strict: refuse any damage. tail: only cut a torn tail. prefix: keep what is before the"
    " damage. salvage: keep all that verifies. [default: what needs no decision]",
)
@click.option("--accept-loss", is_flag=True, help="Another name for --mode prefix.")
@click.option(
    "--readmit", "readmit_tails", is_flag=True, help="Append whole entries of cut-off tails again."
)
@click.option(
    "--keep-unknown", is_flag=True, help="Keep staged entries whose activation may be lost."
)
@click.option(
    "--journal-id",
    metavar="HEX",
    callback=_journal_id,
    help="The id of a journal whose header is damaged.",
)
@home_option
@json_option
def repair(
    *,
    sel: str,
    dry_run: bool,
    mode: RepairMode | None,
    accept_loss: bool,
    readmit_tails: bool,
    keep_unknown: bool,
    journal_id: bytes | None,
    home: str | None,
    as_json: bool,
) -> None:
    """Make a damaged session usable again; the bytes that it had are kept beside.

    Without a mode a torn tail is cut, other damage is salvaged into a new journal that says where
    something is missing, and acknowledged data that is gone is not given up. A second repair
    changes nothing. `fsck` says what each mode would do.
    """
    from treering.tools import repairing
    from treering.tools.resolving import resolve

    if accept_loss and mode not in (None, "prefix"):
        raise click.UsageError(f"--accept-loss is --mode prefix, not {mode}")
    mode = "prefix" if accept_loss else mode
    if readmit_tails and (mode is not None or keep_unknown or journal_id is not None):
        raise click.UsageError("--readmit goes with --dry-run only")
    if keep_unknown and mode not in (None, "salvage"):
        raise click.UsageError("--keep-unknown goes with --mode salvage only")
    path = resolve(store_at(home), sel)
    if readmit_tails:
        repairing.readmit_session(path, dry_run=dry_run, as_json=as_json)
        return
    repairing.repair_session(
        path,
        mode=mode,
        dry_run=dry_run,
        keep_unknown=keep_unknown,
        journal_id=journal_id,
        as_json=as_json,
    )


@click.command()
@click.argument("sel", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions.")
@jobs_option
@home_option
@json_option
@click.pass_context
def reindex(
    context: click.Context,
    *,
    sel: tuple[str, ...],
    everything: bool,
    jobs: int,
    home: str | None,
    as_json: bool,
) -> None:
    """Remove indexes and build them anew from the journals. Sessions in use are skipped."""
    from treering.tools.output import escape, say, say_json, warn, with_progress
    from treering.tools.pool import run_all
    from treering.tools.reindex import reindex_session

    if not sel and not everything:
        raise click.UsageError("name sessions, or use --all")
    paths = _chosen(store_at(home), sel, everything=everything)
    done = []
    results = run_all(reindex_session, paths, jobs=jobs)
    for result in with_progress(results, "indexing", len(paths), printing=not as_json):
        done.append(result)
        if result.error is not None:
            warn(f"{result.session}: {'skipped: ' if result.skipped else ''}{result.error}")
        elif not as_json:
            say(
                escape(
                    f"{result.session}: {result.rows} rows in {result.seconds:.3f} s,"
                    f" {result.rows_per_s} rows/s"
                )
            )
    if as_json:
        say_json([result.as_json() for result in done])
    codes = {result.exit_code for result in done} - {0}
    if codes:
        context.exit(3 if codes == {3} else 1)


@click.command()
@click.argument("sel")
@click.option("--frames", is_flag=True, help="Without payloads.")
@home_option
def dump(sel: str, frames: bool, home: str | None) -> None:
    """Frames of a journal as JSON lines, for people debugging; works on damaged journals too."""
    import json

    from treering.tools.dumping import dump_journal
    from treering.tools.output import say
    from treering.tools.resolving import resolve

    for line in dump_journal(resolve(store_at(home), sel), payloads=not frames):
        say(json.dumps(line))
