"""``docs/api.md``: its examples run, its table is true."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import treering
from docs.pages import DOCS, blocks, table

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
    isPersisted close prepareFork forkBranch appendToolInvocation appendToolExchange navigateTree
    materializeSourceHistory getTree getLabel getSessionState getLatestAgentStatus hasUserContent
    getCompactionCount onPersist flushNow recover assistant_request_associations
    compaction_request_associations branch_summary_request_associations
    refinement_planner_associations
    """,
)
"""The names of the two documents, so that none can drop out of the table."""


def rows() -> list[list[str]]:
    return table(PAGE, "documented", "here", "call")


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
def test_every_call_of_the_table(row: list[str], tmp_path: Path) -> None:
    """The name is there, and the call that is shown for it does what it says without an error."""
    here, call = row[1].strip("`"), row[2].strip("`")
    assert _exists(here)
    assert here.split(".")[-1] in call
    asyncio.run(_made(call, tmp_path))


async def _made(call: str, tmp_path: Path) -> None:
    """Make one call of the table in the surroundings that the page describes."""
    home, legacy = str(tmp_path / "home"), tmp_path / "legacy.jsonl"
    legacy.write_text(
        '{"type":"session","version":3,"id":"old","cwd":"/w"}\n'
        '{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"x"}}\n'
    )
    manager = await treering.SessionManager.create("/w", home_dir=home)
    messages = [
        {"role": role, "content": [{"type": "text", "text": "x"}]}
        for role in ("user", "assistant") * 2
    ]
    ids = [await manager.append_message(message) for message in messages]
    other = await manager.fork_branch(ids[-1])
    path = other.get_session_file()
    await other.close()
    assert path is not None
    view = await treering.SessionManager.open_read_only(path)

    async def read(history: Any) -> Any:
        return await history.page()

    names = {**vars(treering), **{name: getattr(treering, name) for name in treering.__dir__()}}
    names |= {"manager": manager, "view": view, "ids": ids, "path": path, "home": home}
    names |= {"legacy": legacy, "read": read}
    code = compile(call, "docs/api.md", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    answer = eval(code, names)
    if inspect.isawaitable(answer):
        answer = await answer
    if isinstance(answer, treering.SessionManager):
        await answer.close()
    for opened in (manager, view):
        await opened.close()


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


def test_errors_of_the_table_are_public() -> None:
    for cell, *_ in table(PAGE, "error", "what is known"):
        for name in re.findall(r"`(\w+)`", cell):
            assert issubclass(getattr(treering, name), treering.TreeringError), name
