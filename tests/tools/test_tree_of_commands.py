"""The command tree: every command has help, and what is listed is what there is."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from tools_helpers import fine, run

from treering.tools.cli import LazyGroup, treering

DOCUMENTED = (
    "quickstart",
    "session new",
    "session import",
    "session fork",
    "session clone",
    "session list",
    "session show",
    "session tree",
    "session context",
    "session usage",
    "session associations",
    "session name",
    "session label",
    "session branch",
    "session archive",
    "session delete",
    "session undelete",
    "session export",
    "session info",
    "resume",
    "fsck",
    "repair",
    "reindex",
    "dump",
    "search",
    "schedule list",
    "schedule resume",
    "migrate",
)


def walk(group: LazyGroup, trail: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, LazyGroup):
            yield from walk(command, (*trail, name))
        else:
            yield " ".join((*trail, name)), command


COMMANDS = dict(walk(treering))


def test_every_documented_command_is_there() -> None:
    """The commands of the design page that this release has are all reachable."""
    assert set(DOCUMENTED) <= set(COMMANDS)
    assert set(COMMANDS) - set(DOCUMENTED) <= {"bench"}


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_every_command_has_help(name: str) -> None:
    """`--help` ends with 0 and says something; so does every option."""
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, (name, parameter.name)
    ran = fine(*name.split(), "--help")
    assert command.help.splitlines()[0].split()[0] in ran.out
    assert not ran.stderr


def test_lists_have_a_line_for_every_command() -> None:
    """The lists of commands (made without importing them) name and describe each of them."""
    for group in ((), ("session",), ("schedule",)):
        out = fine(*group, "--help").out
        for name in DOCUMENTED:
            words = tuple(name.split())
            if words[:-1] == group:
                line = next(line for line in out.splitlines() if line.split()[:1] == [words[-1]])
                assert len(line.split()) > 2, line


def test_home_everywhere() -> None:
    """Every command takes --home, but for those that make a store of their own."""
    for name in DOCUMENTED:
        if name not in ("quickstart", "migrate"):
            assert "home" in {parameter.name for parameter in COMMANDS[name].params}, name


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["session", "nonsense"],
        ["session", "show"],
        ["session", "new", "--colour"],
        ["session", "new", "extra"],
        ["session", "list", "extra"],
        ["session", "import"],
        ["session", "fork"],
        ["session", "fork", "x", "--at", "a", "--before", "b"],
        ["session", "clone"],
        ["session", "tree", "x", "--filter", "none"],
        ["session", "export", "x", "--format", "pdf"],
        ["session", "branch", "x"],
        ["session", "delete"],
        ["session", "undelete", "x", "y"],
        ["fsck", "--jobs", "0"],
        ["fsck", "x", "--all"],
        ["reindex"],
        ["repair", "x", "--accept-loss", "--readmit"],
        ["repair", "x", "--journal-id", "12"],
        ["repair", "x", "--journal-id", "g" * 32],
        ["dump"],
        ["resume"],
        ["schedule", "list"],
        ["schedule", "list", "--offline", "extra"],
        ["schedule", "resume"],
        ["migrate"],
        ["migrate", "--dry-run"],
        ["migrate", "--from-prime-agent", "x"],
        ["migrate", "--from-prime-agent", "x", "--from-prime-agent", "y", "--dry-run"],
        ["migrate", "--from-prime-agent", "x", "--destination", "a", "--destination", "b"],
        ["migrate", "--from-prime-agent", "x", "--dry-run", "extra"],
        ["migrate", "--from-prime-agent", "", "--dry-run"],
        ["--home"],
        ["session", "list", "--home", ""],
    ],
)
def test_usage_errors(words: list[str]) -> None:
    """What cannot be a command ends with 2 and one error line, and prints nothing else."""
    ran = run(*words)
    assert ran.code == 2
    assert not ran.stdout
    assert "Traceback" not in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("treering: error: ")


def test_version() -> None:
    """The version is that of the package."""
    from treering import __version__

    assert fine("--version").out == f"treering {__version__}\n"
