"""The README's tour shows what really happens; its set-up commands are those of CI.

``PYTHONPATH=tests python tests/docs/test_tour.py`` puts the output of today into the page.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

import treering.tools
from docs.pages import REPOSITORY, blocks, section

README = REPOSITORY / "README.md"
CLONE = "/home/ada/treering"
"""What the page calls the folder in which the tour is run."""


class Step(NamedTuple):
    """A command of the tour and what it printed, both streams."""

    command: str
    output: str


def steps_of(block: str) -> list[Step]:
    """``$ command`` lines, continued by ``> ``, each with the lines below it."""
    steps: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], ""))
        elif line.startswith("> "):
            steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", "")
        else:
            steps[-1] = Step(steps[-1].command, f"{steps[-1].output}{line}\n")
    return steps


def run(steps: list[Step], folder: Path) -> list[Step]:
    """The same commands in one shell, in a folder that looks like the clone."""
    (folder / "tools").mkdir()
    samples = Path(treering.tools.__file__).parent / "samples"
    shutil.copytree(samples, folder / "tools" / "samples")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    mark = "@@ end of a step @@"
    script = "exec 2>&1\n" + "".join(f"{step.command}\necho '{mark}'\n" for step in steps)
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    outputs = done.stdout.replace(str(folder), CLONE).split(f"{mark}\n")
    assert len(outputs) == len(steps) + 1, done.stdout
    return [Step(step.command, output) for step, output in zip(steps, outputs, strict=False)]


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def comparable(output: str) -> str:
    """Output without what differs from run to run: ids, times, sizes, places in the file."""
    output = _ID.sub("SESSION", output)
    output = re.sub(r"\b(?!a00000)[0-9a-f]{8}\b", "ENTRY", output)
    output = re.sub(r"\d{4}-\d\d-\d\d[T ][0-9:.]+Z?", "TIME", output)
    output = re.sub(r"before-repair-\d+", "before-repair-MS", output)
    output = re.sub(r"\d+(\.\d+)? (kB|bytes)", "SIZE", output)
    output = re.sub(r"\b(at|offset) \d+", r"\1 PLACE", output)
    return re.sub(r" {2,}|-{2,}", "  ", output)


def test_the_tour_shows_what_happens(tmp_path: Path) -> None:
    """Every command of the tour prints what the page says, but for ids, times, sizes and places."""
    shown = [step for block in blocks(README, "console") for step in steps_of(block)]
    assert len(shown) > 8
    for want, got in zip(shown, run(shown, tmp_path), strict=True):
        assert comparable(got.output) == comparable(want.output), want.command


def test_differences_of_the_tour_would_be_noticed() -> None:
    """What is not compared is little: any other word, number or line counts."""
    line = "01a22d85-d929-759b-89b3-8a24e41656ad: clean (case A, 18 frames, 14 entries, 5.3 kB)\n"
    assert comparable(line) == "SESSION: clean (case A, 18 frames, 14 entries, SIZE)\n"
    assert comparable(line) != comparable(line.replace("14 entries", "13 entries"))
    assert comparable(line) != comparable(line.replace("case A", "case E"))
    assert comparable("a0000008\n") == "a0000008\n"


def test_the_python_example_runs(tmp_path: Path) -> None:
    """In the default store of a user who has none yet."""
    (program,) = blocks(README, "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["message", "custom", "label"]
    assert len(list((tmp_path / ".base-context" / "sessions").glob("*.jsonl"))) == 1


def commands() -> list[str]:
    return [line for line in blocks(README, "sh")[0].splitlines() if line]


def test_two_commands_do_the_set_up() -> None:
    """On the first screen: three sentences, then one command to look and one to test."""
    text = README.read_text(encoding="utf-8")
    first = text.split("\n\n")[1]
    assert len(re.findall(r"[.!?](?=\s)", first + " ")) == 3
    assert text[: text.index("```sh")].count("\n") < 20
    look, test = commands()
    assert look.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert look.endswith("&& .venv/bin/treering quickstart")
    assert test.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert "[test]" in test
    assert "pytest" in test


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """Literally, on a line of its own: what CI proves is what a reader is told to do."""
    script = REPOSITORY / ".ci" / "run"
    if not script.exists():
        pytest.skip("the CI script is not beside the tests")
    lines = script.read_text(encoding="utf-8").splitlines()
    assert commands()[1] in lines
    assert script.stat().st_mode & 0o111 == 0o111
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines


def test_the_readme_is_short_and_names_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") < 200
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in text
    assert section(README, "## Measured")


def captured() -> str:
    """The README with what its tour prints now."""
    text = README.read_text(encoding="utf-8")
    shown = blocks(README, "console")
    with tempfile.TemporaryDirectory() as name:
        got = iter(run([step for block in shown for step in steps_of(block)], Path(name)))
    for block in shown:
        lines = []
        for step in [next(got) for _ in steps_of(block)]:
            lines.append("$ " + step.command.replace("\n", "\n> ") + "\n" + step.output)
        text = text.replace(block, "".join(lines))
    return text


if __name__ == "__main__":
    README.write_text(captured(), encoding="utf-8")
