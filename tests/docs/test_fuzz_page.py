"""``docs/fuzz.md``: its example runs, its commands exist, its numbers are those of the code."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click
import pytest

from docs.pages import DOCS, REPOSITORY, blocks, section
from treering.fuzz.__main__ import fuzz
from treering.fuzz.crash_states import EXHAUSTIVE_MAX
from treering.fuzz.error_injection import ERRORS, MORE_ERRORS
from treering.fuzz.toylog import MISTAKES

PAGE = DOCS / "fuzz.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks(PAGE, "python"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def commands() -> list[str]:
    pages = (PAGE, REPOSITORY / "README.md")
    lines = "\n".join(block for page in pages for block in blocks(page, "sh")).splitlines()
    ours = [line for line in lines if line.startswith("python -m treering.fuzz ")]
    return [line for line in ours if "…" not in line]  # names of files that only a finding has


@pytest.mark.parametrize("line", commands())
def test_every_command_line_can_be_parsed(line: str) -> None:
    """The options exist and take what is written; nothing is run."""
    words = shlex.split(line.partition("#")[0])[3:]
    context = click.Context(fuzz, info_name="fuzz")
    command = fuzz
    while isinstance(command, click.Group) and words:
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{line}: no command {name}"
        command = found  # type: ignore[assignment]
    command.make_context(name, words, parent=context)


def test_every_command_has_help_and_is_on_the_page() -> None:
    context = click.Context(fuzz)
    names = fuzz.list_commands(context)
    assert set(names) == set(fuzz.lazy), "a command is named whose module is not there"
    for name in names:
        command = fuzz.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str()
        assert f"python -m treering.fuzz {name}" in TEXT


def test_numbers_and_names_are_those_of_the_code() -> None:
    assert f"{EXHAUSTIVE_MAX:,}" in section(PAGE, "## The explorer")
    assert len(MISTAKES) == 4  # "four mistakes"
    for name in (*ERRORS, *MORE_ERRORS):
        assert name in section(PAGE, "## Error injection")
