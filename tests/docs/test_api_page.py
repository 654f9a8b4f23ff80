"""``docs/api.md``: its examples run, its table is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import treering
from docs.pages import DOCS, blocks, table
from treering import Session, UnknownEntry

PAGE = DOCS / "api.md"

DOCUMENTED = re.findall(
    r"\w+",
    """
    create open openReadOnly continueRecent inMemory forkFrom importRetainedFrom
    previewRetainedImport list listAll newSession setSessionFile createBranchedSession
    appendMessage appendThinkingLevelChange appendServiceTierChange appendModelChange
    appendCompaction appendCustomEntry appendChildUsageAttribution appendSessionInfo
    appendSessionState appendAgentStatus appendGitState appendCustomMessageEntry
    appendLabelChange getLeafId readLeafEntry readEntry readBranch readBranches readTree
    readLabel branchTo branchWithSummary readEntries readEntryRetention
    materializeBranchHistory readBranchHistory readSourceHistory
    supportsCapturedHistoryReads buildSessionContext getEntry getBranch getEntries getHeader
    getSessionName getCwd getSessionDir getSessionId getSessionFile getSessionArtifactDir
    isPersisted close
    """,
)
"""The names of the two documents, so that none can drop out of the table."""


def rows() -> list[list[str]]:
    return table(PAGE, "documented", "here", "status")


def test_examples_run_in_order(tmp_path: Path) -> None:
    """In a process of their own, with an environment that points nowhere else, as a user has it."""
    program = "\n".join(blocks(PAGE, "python"))
    environment = {key: value for key, value in os.environ.items() if "BASE_CONTEXT" not in key}
    environment["HOME"] = str(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert not (tmp_path / "home").exists(), "an example wrote outside its folder"


def test_every_documented_name_has_one_row() -> None:
    names = [row[0].strip("`") for row in rows()]
    assert sorted(names) == sorted(DOCUMENTED)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].strip("`"))
def test_status_of_a_name(row: list[str]) -> None:
    """A name of today is there; a name for later is not, so that its row changes when it comes."""
    here, status = row[1].strip("`"), row[2]
    assert status in ("now", "not yet")
    assert _exists(here) == (status == "now"), f"{here} is said to be there {status}"


def _exists(dotted: str) -> bool:
    name, *members = dotted.split(".")
    if name not in treering.__dir__():
        return False
    found: Any = getattr(treering, name)
    for member in members:
        annotated = any(member in vars(base).get("__annotations__", {}) for base in found.__mro__)
        if not hasattr(found, member) and not annotated:
            return False
        found = getattr(found, member, None)
    return True


def test_a_missing_name_does_not_exist() -> None:
    """The check above can fail."""
    assert _exists("Session.create")
    assert _exists("Session.path")
    assert _exists("Store.sessions")
    assert not _exists("Session.nothing")
    assert not _exists("Nothing")


def test_entries_of_the_table_are_of_known_kinds(tmp_path: Path) -> None:
    """What the table says to append can be appended, and reads back as a typed entry."""
    notes = [re.findall(r"`(\{.*\})`", row[3])[0] for row in rows() if row[1] == "`Session.append`"]
    assert len(notes) == 11
    with Session.create("/p", session_dir=str(tmp_path / "sessions")) as session:
        target = session.append({"type": "message", "message": {"role": "user", "content": "x"}})
        for note in notes:
            entry = json.loads(note.replace('"ID"', json.dumps(target)))
            stored = session.read(session.append(entry))
            assert not isinstance(stored.decode(), UnknownEntry), note
            assert entry.items() <= json.loads(stored.raw).items()


def test_errors_of_the_table_are_public() -> None:
    for cell, *_ in table(PAGE, "error", "what is known"):
        for name in re.findall(r"`(\w+)`", cell):
            assert issubclass(getattr(treering, name), treering.TreeringError), name
