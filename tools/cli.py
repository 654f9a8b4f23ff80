"""The command tree, and nothing else.

Commands are named here with their one line of help and imported when they are used: `--help` and
`--version` must answer at once, and importing the engine takes longer than all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final, NamedTuple

import click

from treering import __version__


class Lazy(NamedTuple):
    """Where a command is, ``module:name``, and its line in the list of commands."""

    place: str
    help: str


class LazyGroup(click.Group):
    """A group that imports the module of a command when that command is used."""

    def __init__(self, *args: Any, lazy: dict[str, Lazy], **more: Any) -> None:
        super().__init__(*args, **more)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's interface)
        """Names in the order of the table; a command whose module is not there has none."""
        return [name for name, lazy in self.lazy.items() if _is_there(lazy)]

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 (click's interface)
        cmd_name: str,
    ) -> click.Command | None:
        """The command, imported now."""
        lazy = self.lazy.get(cmd_name)
        if lazy is None or not _is_there(lazy):
            return None
        module, _, name = lazy.place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone."""
        rows = [(name, self.lazy[name].help) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _is_there(lazy: Lazy) -> bool:
    return importlib.util.find_spec(lazy.place.partition(":")[0]) is not None


_SESSION: Final = {
    "new": Lazy("treering.tools.session_commands:new", "Make a new session and print its path."),
    "import": Lazy(
        "treering.tools.import_command:command", "Import sessions; prints the new paths."
    ),
    "fork": Lazy("treering.tools.copy_commands:fork", "Copy a session into a new one."),
    "clone": Lazy("treering.tools.copy_commands:clone", "Copy the current branch into a new one."),
    "list": Lazy("treering.tools.show_commands:list_sessions", "List the sessions of the store."),
    "show": Lazy("treering.tools.show_commands:show", "Show the current branch, or one entry."),
    "tree": Lazy("treering.tools.show_commands:tree", "Show the tree of a session."),
    "context": Lazy("treering.tools.context_commands:context", "Show what a model is given."),
    "usage": Lazy("treering.tools.context_commands:usage", "Show tokens, cost and context size."),
    "associations": Lazy(
        "treering.tools.association_commands:associations", "Show which requests outputs came from."
    ),
    "name": Lazy("treering.tools.session_commands:name", "Give a session a display name."),
    "label": Lazy("treering.tools.session_commands:label", "Label an entry, or clear its label."),
    "branch": Lazy("treering.tools.session_commands:branch", "Move the current position."),
    "archive": Lazy(
        "treering.tools.delete_commands:archive", "Archive a session, or take it back."
    ),
    "delete": Lazy("treering.tools.delete_commands:delete", "Move a session into the trash."),
    "undelete": Lazy("treering.tools.delete_commands:undelete", "Bring a deleted session back."),
    "export": Lazy("treering.tools.show_commands:export", "Write a session as JSONL."),
    "info": Lazy("treering.tools.show_commands:info", "Figures and state of one session."),
}

session = LazyGroup(
    "session",
    lazy=_SESSION,
    help="Make, import, look at and change sessions.",
)

_SCHEDULE: Final = {
    "list": Lazy("treering.tools.schedule_commands:list_jobs", "List scheduled prompts."),
    "resume": Lazy("treering.tools.schedule_commands:resume", "Make a paused job active again."),
}

schedule = LazyGroup("schedule", lazy=_SCHEDULE, help="Scheduled prompts of the sessions.")

_COMMANDS: Final = {
    "quickstart": Lazy("treering.tools.quickstart:command", "A tour with two sample sessions."),
    "session": Lazy("treering.tools.cli:session", "Make, import, look at and change sessions."),
    "search": Lazy("treering.tools.search_commands:command", "Search the text of all sessions."),
    "resume": Lazy("treering.tools.show_commands:resume", "Print the path a frontend should open."),
    "fsck": Lazy("treering.tools.check_commands:fsck", "Check journals and indexes; only reads."),
    "repair": Lazy("treering.tools.check_commands:repair", "Make a damaged session usable again."),
    "reindex": Lazy("treering.tools.check_commands:reindex", "Build indexes anew."),
    "schedule": Lazy("treering.tools.cli:schedule", "Scheduled prompts of the sessions."),
    "migrate": Lazy(
        "treering.tools.migrate_command:migrate", "Import an exported root into a new home."
    ),
    "dump": Lazy("treering.tools.check_commands:dump", "Frames of a journal as JSON lines."),
    "bench": Lazy("treering.tools.bench:command", "Measure this machine, beside its peers."),
}

treering = LazyGroup(
    "treering",
    lazy=_COMMANDS,
    help="Treering stores agent sessions in journals that survive crashes, and indexes them.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "A session is named by its path, its id, the beginning or end of its id, or its name. Exit"
        " codes: 0 fine, 1 damage or refusal reported, 2 usage, 3 could not run, 130 interrupted."
    ),
)
treering = click.version_option(__version__, prog_name="treering", message="%(prog)s %(version)s")(
    treering
)
