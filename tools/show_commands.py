"""Commands that only look: list, show, tree, export, info, resume. They own and write nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.home import Store
    from treering.engine.session.view import SessionView
    from treering.tools.trees import Line

_FILTERS = ("default", "no-tools", "user-only", "labeled-only", "all")


@click.command("list")
@click.option("--search", default="", metavar="Q", help='Words, "phrases" or re:EXPRESSION.')
@click.option("--named", is_flag=True, help="Only sessions with a name.")
@click.option("--damaged", is_flag=True, help="Only what is not ok.")
@click.option("--cwd", metavar="DIR", help="Only sessions of this working directory.")
@click.option("--limit", type=int, metavar="N", help="A page of at most N rows (1 to 64).")
@click.option("--cursor", metavar="C", help="The page that another one named.")
@home_option
@json_option
def list_sessions(
    search: str,
    named: bool,
    damaged: bool,
    cwd: str | None,
    limit: int | None,
    cursor: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """List the sessions of the store, newest activity first.

    A file that is no session, or cannot be read, is a row with the reason. With an option that
    selects, one page: children below their parents, and how to get the next page.
    """
    from treering.engine.session.listing import iter_sessions, newest_first, session_names
    from treering.tools.listing import as_json_row, list_page, show_rows
    from treering.tools.output import say_json, warn, with_progress

    store = store_at(home)
    if search or named or damaged or cwd is not None or limit is not None or cursor is not None:
        from treering.engine.session.pages import PAGE_ROWS_MAX, PageQuery

        most = PAGE_ROWS_MAX if limit is None else limit
        query = PageQuery(text=search, named=named, damaged=damaged, cwd=cwd, limit=most)
        list_page(store, query, cursor, as_json=as_json)
        return
    total = len(session_names(store))
    rows = newest_first(with_progress(iter_sessions(store), "reading sessions", total))
    if as_json:
        say_json([as_json_row(row) for row in rows])
        return
    if not rows:
        warn(f"no sessions in {store.sessions}; `treering session new` makes one")
        return
    show_rows(rows)


@click.command()
@click.argument("sel")
@click.option("--entry", "entry_id", metavar="ID", help="One entry: its id or the beginning of it.")
@click.option("--raw", is_flag=True, help="The stored bytes, one entry a line.")
@home_option
def show(sel: str, entry_id: str | None, raw: bool, home: str | None) -> None:
    """Show the header and the current branch of a session, or one entry as JSON."""
    from treering.tools.output import escape_json, say, write_bytes
    from treering.tools.resolving import resolve, resolve_entry
    from treering.tools.viewing import looking_at

    with looking_at(resolve(store_at(home), sel)) as view:
        if entry_id is None:
            _show_raw(view) if raw else _show_lines(view)
            return
        entry = view.read(resolve_entry(view, entry_id))
        if raw:
            write_bytes(entry.raw + b"\n")
        else:
            say(escape_json(_pretty(entry.raw)))


def _pretty(raw: bytes) -> str:
    """Indented JSON with every number spelled as stored."""
    import json

    import msgspec

    try:
        return msgspec.json.format(raw, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return json.dumps(json.loads(raw), indent=2)  # it takes escaped lone surrogates
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "backslashreplace")


def _show_raw(view: SessionView) -> None:
    from treering.tools.output import write_bytes

    write_bytes(view.header_bytes() + b"\n")
    start = 0
    while page := view.branch(start=start, limit=512):
        for entry in page:
            write_bytes(entry.raw + b"\n")
        start += len(page)


def _show_lines(view: SessionView) -> None:
    from treering.tools.output import one_line, pad, say_clipped
    from treering.tools.showing import describe
    from treering.tools.viewing import branch_pages

    for name, value in _head(view).items():
        say_clipped(f"{name:<9}{one_line(value)}")
    say_clipped("")
    for page in branch_pages(view):
        for entry_id, entry in page:
            role, text = describe(entry)
            marks = _marks(entry.unresolved, unproven=entry.unproven) if entry is not None else ""
            head = f"{pad(one_line(entry_id), 8)}  {pad(one_line(role), 11)}"
            say_clipped(f"{head}  {marks}{one_line(text)}")


def _head(view: SessionView) -> dict[str, str]:
    from treering.engine.errors import TreeringError
    from treering.tools.output import counted

    head = {"session": view.id}
    try:
        header = view.header
        head["cwd"], head["created"] = header.cwd or "", header.timestamp or ""
    except TreeringError as error:
        head["header"] = f"[{error.what}]"
    try:
        head["name"] = view.name or ""
    except TreeringError as error:
        head["name"] = f"[{error.what}]"
    counts = view.counts()
    head["entries"] = f"{counts['entries']}, {counted(counts['messages'], 'message')}"
    head["leaf"] = view.leaf_id or "before any entry"
    return {name: value for name, value in head.items() if value}


def _marks(unresolved: str | None, *, unproven: bool = False) -> str:
    reasons = {"missing": "[its parent is missing] ", "cycle": "[its parents form a cycle] "}
    mark = "" if unresolved is None else reasons.get(unresolved, f"[{unresolved}] ")
    return mark + ("[not proven durable] " if unproven else "")


@click.command()
@click.argument("sel")
@click.option(
    "--filter",
    "mode",
    type=click.Choice(_FILTERS),
    help="Which entries [default: treeFilterMode of <home>/settings.json, or default].",
)
@click.option("--search", metavar="Q", default="", help="Only entries with all these words.")
@home_option
@json_option
def tree(sel: str, mode: Any, search: str, home: str | None, as_json: bool) -> None:
    """Show the tree of a session, the active branch first; * marks the path to the position."""
    from treering.tools.output import say_json, warn
    from treering.tools.resolving import resolve
    from treering.tools.settings import tree_filter
    from treering.tools.trees import lines_of, tree_of
    from treering.tools.viewing import looking_at

    store = store_at(home)
    mode = mode or tree_filter(store)
    with looking_at(resolve(store, sel)) as view:
        found = tree_of(view, search)
        lines = lines_of(found, mode)
        if as_json:
            say_json(
                {
                    "session": view.id,
                    "filter": mode,
                    "leaf": view.leaf_id,
                    "entries": [_line_json(line) for line in lines],
                }
            )
            return
        for line in lines:
            say_line(line)
        hidden = found.entries - len(lines)
        if not found.entries:
            warn("no entries yet")
        elif not lines:
            warn(
                f"the filter {mode} shows none of {found.entries} entries; --filter all shows more"
            )
        elif hidden and mode != "all":
            warn(f"{hidden} of {found.entries} entries are hidden by the filter {mode}")


def _line_json(line: Line) -> dict[str, Any]:
    node = line.node
    return {
        "id": node.id,
        "parent": line.parent,
        "depth": line.indent,
        "kind": node.kind,
        "role": node.role,
        "text": node.entry.text,
        "label": line.label,
        "leaf": line.leaf,
        "active": node.active,
        "unresolved": line.unresolved,
    }


_INDENTS_MAX = 16


def say_line(line: Line) -> None:
    """One line of a tree, clipped to the terminal."""
    from treering.tools.output import clip, columns, one_line, say_clipped

    node = line.node
    deep = "" if line.indent <= _INDENTS_MAX else f"({line.indent}) "
    twig = {"": "", "more": "├ ", "last": "└ "}[line.branch]
    label = "" if line.label is None else f"  [{clip(line.label, 40)}]"
    tail = f"{label}  {one_line(node.id)}{'  <- here' if line.leaf else ''}"
    head = f"{'* ' if node.active else '  '}{'  ' * min(line.indent, _INDENTS_MAX)}{deep}{twig}"
    said = node.entry
    text = f"{head}{one_line(said.shown_as)}: {_marks(line.unresolved)}{said.text}"
    # The id and the label must survive a narrow terminal: they are what one acts on.
    say_clipped(clip(text, max(20, columns() - len(tail))) + tail)


@click.command()
@click.argument("sel")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl"]),
    default="jsonl",
    show_default=True,
    help="What to write.",
)
@click.option("--branch", is_flag=True, help="Only the path to the current position.")
@click.option("-o", "--output", metavar="FILE", help="A new file, instead of standard output.")
@home_option
def export(sel: str, form: str, branch: bool, output: str | None, home: str | None) -> None:
    """Write a session as JSONL; an import of version 3 comes out byte for byte.

    The file appears under its name only when it is whole, and never replaces one.
    """
    from treering.engine.errors import Invalid
    from treering.engine.transfer.exporting import export_jsonl, jsonl_lines
    from treering.tools.output import flush, write_bytes
    from treering.tools.resolving import resolve
    from treering.tools.viewing import looking_at

    del form  # the only one for now
    if output is not None and (not output or "\0" in output):
        raise Invalid("no file can have this name", next_step="name another one")
    with looking_at(resolve(store_at(home), sel)) as view:
        if output is not None and output != "-":
            export_jsonl(view, output, branch=branch)
            return
        for piece in jsonl_lines(view, branch=branch):
            write_bytes(piece)
        flush()


@click.command()
@click.argument("sel")
@home_option
@json_option
def info(sel: str, home: str | None, as_json: bool) -> None:
    """Figures and state of one session."""
    from treering.tools.information import information_of, lines_for_people
    from treering.tools.output import say_clipped, say_json
    from treering.tools.resolving import resolve
    from treering.tools.viewing import looking_at

    store = store_at(home)
    with looking_at(resolve(store, sel)) as view:
        found = information_of(view, store)
    if as_json:
        say_json(found)
        return
    for line in lines_for_people(found):
        say_clipped(line)


class _WithPrompt(click.Command):
    """Takes what stands behind `--` as a prompt, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Say so."""
        return [*super().collect_usage_pieces(ctx), "[-- PROMPT]"]


@click.command(cls=_WithPrompt)
@click.argument("sel", required=False)
@click.option(
    "--continue",
    "recent",
    is_flag=True,
    help="The session of the current folder with the newest user or assistant message.",
)
@home_option
@json_option
@click.pass_obj
def resume(
    prompt: list[str], sel: str | None, recent: bool, home: str | None, as_json: bool
) -> None:
    """Print the path that a frontend should open; with --json also id, cwd and the PROMPT.

    The session is SEL, or with --continue the most recent one.
    """
    from treering.engine.errors import TreeringError
    from treering.tools.output import say_json, say_path
    from treering.tools.resolving import resolve
    from treering.tools.viewing import looking_at

    if (sel is None) != recent:
        raise click.UsageError("name a session, or say --continue")
    store = store_at(home)
    with looking_at(_most_recent(store) if sel is None else resolve(store, sel)) as view:
        path, session_id = view.path, view.id
        try:
            cwd = view.header.cwd
        except TreeringError:
            cwd = None  # a lost header was reported when the view was opened
    if not as_json:
        say_path(path)
        return
    say_json({"path": path, "id": session_id, "cwd": cwd, "prompt": " ".join(prompt) or None})


def _most_recent(store: Store) -> str:
    from treering.engine.errors import NotFound
    from treering.engine.session.listing import most_recent
    from treering.tools.resolving import this_folder

    folder = this_folder()
    path = most_recent(store, folder)
    if path is None:
        raise NotFound(
            f"no session of this folder in {store.sessions}",
            path=folder,
            next_step="`treering session new` makes one; `treering session list` shows all",
        )
    return path
