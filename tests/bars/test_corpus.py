"""Session files from the world through the real command: identical, upgraded, refused, salvaged."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from bars_helpers import command, picture

CORPUS = Path(os.environ.get("TREERING_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus")
pytestmark = pytest.mark.skipif(
    not (CORPUS / "INDEX.tsv").is_file(),
    reason=f"no corpus at {CORPUS}; set TREERING_CORPUS to its folder",
)

EXACT = ("11", "33", "34", "35", "50", "51", "53", "58", "61", "62")
UPGRADED = {"03": 1002, "04": 1018, "07": 7}
REFUSED = ("01", "46", "55", "56", "59")
SALVAGED = {"01": 463, "46": 9, "55": 4, "56": 2}
"""Entries: all 463 of the fused file, and all that is whole of the others (their headers aside)."""


class Imported(NamedTuple):
    home: Path
    paths: dict[str, str]


def file_of(number: str) -> Path:
    (found,) = CORPUS.glob(f"{number}-*.jsonl")
    return found


def bring_in(home: Path, numbers: tuple[str, ...], *options: str) -> dict[str, str]:
    """Number -> path of the new session."""
    files = [file_of(number) for number in numbers]
    done = command("session", "import", *options, *files, "--home", home)
    assert done.returncode == 0, done
    paths = done.stdout.decode().split()
    assert len(paths) == len(numbers)
    return dict(zip(numbers, paths, strict=True))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    """A store with every file that imports."""
    home = tmp_path_factory.mktemp("corpus") / "home"
    paths = bring_in(home, EXACT) | bring_in(home, tuple(UPGRADED))
    yield Imported(home, paths | bring_in(home, tuple(SALVAGED), "--salvage"))


def entries(home: Path, path: str) -> int:
    done = command("session", "info", path, "--json", "--home", home)
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    return int(found["entries"] if isinstance(found["entries"], int) else found["entries"]["all"])


def test_version_3_files_come_out_identical(imported: Imported, tmp_path: Path) -> None:
    """cmp of the source and what `session export` prints, and what it writes to a file."""
    for number in EXACT:
        target = tmp_path / f"{number}.jsonl"
        with target.open("wb") as out:
            done = command("session", "export", imported.paths[number], "--home", imported.home)
            out.write(done.stdout)
        assert done.returncode == 0, done
        assert filecmp.cmp(target, file_of(number), shallow=False), number


def test_old_files_have_all_their_entries(imported: Imported) -> None:
    """1002, 1018 and 7 entries, and an export of version 3."""
    for number, count in UPGRADED.items():
        assert entries(imported.home, imported.paths[number]) == count, number
        done = command("session", "export", imported.paths[number], "--home", imported.home)
        lines = done.stdout.splitlines()
        assert len(lines) == count + 1
        assert json.loads(lines[0])["version"] == 3


@pytest.mark.parametrize("number", REFUSED)
def test_damaged_files_are_refused_in_one_line(home: Path, number: str) -> None:
    """Without --salvage: exit code 1, one line that names the file and the record, no
    session."""
    home.mkdir()
    done = command("session", "import", file_of(number), "--home", home)
    line = done.stderr.decode()
    assert done.returncode == 1
    assert line.startswith("treering: error: ")
    assert line.count("\n") == 1
    assert file_of(number).name in line
    assert "line " in line, line
    assert done.stdout == b""
    assert list(picture(home)) == ["."], "something was left behind"


def test_salvage_takes_all_that_is_whole(imported: Imported) -> None:
    """463 entries of the file with fused records, and every whole record of the others."""
    found = {number: entries(imported.home, imported.paths[number]) for number in SALVAGED}
    assert found == SALVAGED


def test_indexes_are_right_and_may_vanish(imported: Imported) -> None:
    """fsck --index is clean after the imports, and with session-index/ deleted; after the sessions
    were used again every index is equal to a rebuild."""

    def states() -> set[str]:
        done = command("fsck", "--all", "--index", "--json", "--home", imported.home)
        assert done.returncode == 0, done
        checked = json.loads(done.stdout)
        assert len(checked) == len(imported.paths)
        assert all(record["ok"] for record in checked)
        return {record["index"]["state"] for record in checked}

    assert states() <= {"equal", "absent", "behind"}
    shutil.rmtree(imported.home / "session-index", ignore_errors=True)
    assert states() == {"absent"}
    done = command("reindex", "--all", "--home", imported.home)
    assert done.returncode == 0, done
    assert states() == {"equal"}
