"""Line and branch coverage against the bar, file by file; exit code 1 below it.

    python tests/coverage_gate.py DATA          judge a data file of coverage
    python tests/coverage_gate.py --measure DATA  run the tests first (about a quarter of an hour)

The bar: every line and branch of the files that everything else relies on (:data:`WHOLE`), and
:data:`REST_PERCENT` of every other file of engine, index and tools. What only bench runs is left
out. Branches that no test can take stand in :data:`EXCEPTIONS`, each by its text and with a reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import coverage

REPOSITORY: Final = Path(__file__).parents[1]
SOURCES: Final = ("engine", "index", "tools")
WHOLE: Final = frozenset(
    (
        "engine/journal/format.py",
        "engine/journal/reader.py",
        "engine/journal/writer.py",
        "engine/journal/recovery.py",
        "engine/journal/ownership.py",
        "tools/fsck.py",
        "tools/findings.py",
        "tools/fsck_index.py",
        "tools/next_steps.py",
    )
)
REST_PERCENT: Final = 95.0

EXCEPTIONS: Final[dict[tuple[str, str], str]] = {}
"""(file, text of the line) -> why no test takes it."""

FOLDERS: Final = (
    "journal",
    "index",
    "transfer",
    "transfer_flow",
    "session",
    "associations",
    "tools",
)
IN_PROCESSES: Final = ("entry", "review_commands", "terminal", "fsck", "corners")
"""Tests of tools that run commands in processes of their own, which are measured, too."""
START: Final = "not start_ and not vectors"
"""How fast a command starts, and what it imports, says nothing while it is measured."""


class Judged(NamedTuple):
    """One file: what is missing, and how much is covered."""

    place: str
    percent: float
    lines: list[int]
    jumps: list[tuple[int, int]]

    @property
    def wanted(self) -> float:
        return 100.0 if self.place in WHOLE else REST_PERCENT

    def text(self) -> str:
        lines = set(self.lines)
        jumps = [
            f"{at}->{to if to > 0 else 'exit'}"
            for at, to in self.jumps
            if at not in lines and to not in lines
        ]
        missing = ", ".join([*map(str, self.lines), *jumps])
        return f"{self.place}: {self.percent:.1f} % of {self.wanted:.0f} %: {missing}"


def judge(place: str, found: dict[str, Any]) -> Judged:
    """A file of coverage's JSON report, exceptions left out."""
    text = (REPOSITORY / place).read_text(encoding="utf-8").splitlines()
    excused = {at for at, line in enumerate(text, 1) if (place, line.strip()) in EXCEPTIONS}
    lines = [at for at in found["missing_lines"] if at not in excused]
    jumps = [
        (at, to) for at, to in found["missing_branches"] if at not in excused and to not in excused
    ]
    numbers = found["summary"]
    total = numbers["num_statements"] + numbers["num_branches"]
    percent = 100.0 * (total - len(lines) - len(jumps)) / total if total else 100.0
    return Judged(place, percent, lines, jumps)


def stale_exceptions() -> list[str]:
    """Exceptions whose line is not there any more."""
    found = []
    for place, line in EXCEPTIONS:
        path = REPOSITORY / place
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if line not in map(str.strip, text.splitlines()):
            found.append(f"{place}: no line {line!r}: the exception has no use any more")
    return found


def measure(data_file: str) -> bool:
    """Run the tests, folder by folder, into one data file; whether all of them passed."""
    passed = True
    with tempfile.TemporaryDirectory(prefix="treering-coverage-") as folder:
        settings = Path(folder) / "processes.toml"
        settings.write_text(
            "[tool.coverage.run]\nbranch = true\nparallel = true\n"
            f'source = {list(SOURCES)!r}\npatch = ["subprocess"]\n'
        )
        each = [(f"tests/{name}", [], []) for name in FOLDERS]
        each += [
            (f"tests/tools/test_{name}.py", ["-k", START], [f"--rcfile={settings}"])
            for name in IN_PROCESSES
        ]
        for tests, more, options in each:
            print(tests, flush=True)
            command = [sys.executable, "-m", "coverage", "run", "--parallel-mode", *options]
            pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
            ran = subprocess.run(
                [*command, *pytest, tests, *more],
                cwd=REPOSITORY,
                env=os.environ | {"COVERAGE_FILE": str(Path(folder) / "data")},
                check=False,
            )
            passed = passed and ran.returncode == 0
        combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--data-file={data_file}"]
        parts = sorted(map(str, Path(folder).glob("data.*")))
        combined = subprocess.run([*combine, *parts], cwd=REPOSITORY, check=False)
    return passed and combined.returncode == 0


def main(arguments: list[str]) -> int:
    """See above."""
    measuring = arguments[:1] == ["--measure"]
    names = arguments[measuring:]
    if len(names) != 1 or names[0].startswith("-"):
        print(__doc__)
        return 2
    data_file = os.path.abspath(names[0])
    passed = measure(data_file) if measuring else True
    os.chdir(REPOSITORY)  # paths in a data file may be relative
    with tempfile.TemporaryDirectory(prefix="treering-coverage-") as folder:
        measured = coverage.Coverage(data_file=data_file, config_file="pyproject.toml")
        report = os.path.join(folder, "report.json")
        try:
            measured.load()
            measured.json_report(outfile=report)
        except coverage.CoverageException as error:
            print(f"{data_file}: {error}")
            return 2
        files = json.loads(Path(report).read_bytes())["files"]
    judged = [judge(place, files[place]) for place in sorted(files) if "/bench" not in place]
    absent = {
        str(path.relative_to(REPOSITORY))
        for top in SOURCES
        for path in (REPOSITORY / top).rglob("*.py")
    }
    absent = {place for place in absent - set(files) if "/bench" not in place}
    below = [each for each in judged if each.percent < each.wanted]
    problems = [each.text() for each in below] + stale_exceptions()
    problems += [f"{place}: not in the data file" for place in sorted(absent)]
    print(*problems, sep="\n")
    print(
        f"{len(judged)} files, {len(below)} below the bar"
        f" ({len(WHOLE)} at 100 %, the others at {REST_PERCENT:.0f} %), {len(EXCEPTIONS)} exceptions"
    )
    if not passed:
        print("some tests failed: see above")
    return int(bool(problems) or not passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
