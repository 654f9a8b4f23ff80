"""Links as a manager writes them, read back by every reader, wherever the files are."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from associations.helpers import REFINEMENT

from treering import (
    Session,
    SessionManager,
    SessionView,
    aggregate_associations,
    request_associations,
)
from treering.engine.associations.matching import ID_NAMES

MAIN, COMPACTION, BRANCH, PLANNER = ID_NAMES
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}


async def asked(captured: Any, purpose: str, detail: str | None = None) -> Any:
    operation = captured.operation(purpose, detail)
    for _ in range(2):
        attempt = await operation.admit({"api": "x"})
        await operation.settle(attempt, {"outcome": "completed", "usage": {"input": 1}})
    link = operation.output_link()
    assert link is not None
    return link


async def write(manager: SessionManager) -> None:
    """One output of each kind with its link, and one of each without."""
    first = await manager.append_message({"role": "user", "content": "hello"})
    async with manager.capture() as captured:
        await manager.append_message(ANSWER, link=await asked(captured, "main"))
    async with manager.capture() as captured:
        parts = [("history", await asked(captured, "summary", "compaction"))]
        parts.append(("turn-prefix", await asked(captured, "summary", "compaction-turn-prefix")))
        await manager.append_compaction("s", first, 9, links=parts)
    async with manager.capture() as captured:
        link = await asked(captured, "refine", "plan")
        await manager.append_refinement({"edits": []}, link=link)
    async with manager.capture() as captured:
        link = await asked(captured, "summary", "branch")
        await manager.branch_with_summary(first, "left", link=link)
    await manager.append_message(ANSWER)
    await manager.append_compaction("s", first, 9)
    await manager.append_refinement({"edits": []})
    await manager.branch_with_summary(first, "left")


def on(path: Path, work: Callable[[SessionManager], Awaitable[None]]) -> str:
    async def run() -> str:
        async with await SessionManager.create("/w", home_dir=str(path)) as manager:
            await work(manager)
            file = manager.get_session_file()
            assert file is not None
            return file

    return asyncio.run(run())


def known(report: dict[str, Any]) -> dict[str, list[bool]]:
    """Which outputs, parts of them included, have a link."""
    none = [{"recorded_request": None}]
    parts = [part for one in report[COMPACTION] for part in one["recorded_requests"] or none]
    return {
        name: [one["recorded_request"] is not None for one in elements]
        for name, elements in {**report, COMPACTION: parts}.items()
    }


LINKED = {
    MAIN: [True, False],
    COMPACTION: [True, True, False],
    BRANCH: [True, False],
    PLANNER: [True, False],
}


def test_what_a_manager_writes_is_matched(tmp_path: Path) -> None:
    """37, 39, 40, 41: by every reader, and the link is the one that was made."""
    path = on(tmp_path, write)
    report = request_associations(path)
    assert known(report) == LINKED
    with SessionView.open(path) as view:
        assert request_associations(view) == report
        answer = view.by_kind("message", role="assistant")[0]
        assert report[MAIN][0]["assistant_entry_id"] == answer.id
        left = report[BRANCH][0]["recorded_request"]["source"]
        # The input of the summary is where the branch was left, not where the summary stands.
        refined = view.read(left["leafId"])
        assert refined.type == "custom"
        assert REFINEMENT.encode() in refined.raw
    with Session.open(path) as session:
        assert request_associations(session) == report


def test_a_store_that_moved_keeps_its_links(tmp_path: Path) -> None:
    """38: what a source says of its file is information."""
    path = on(tmp_path / "first", write)
    moved = tmp_path / "second"
    shutil.move(tmp_path / "first", moved)
    again = str(moved / "sessions" / Path(path).name)
    assert known(request_associations(again)) == LINKED
    assert [one["path"] for one in aggregate_associations([again])[MAIN]] == [again]


def test_copies_of_it_say_nothing(tmp_path: Path) -> None:
    """37: forks, branch copies and imports keep the links as data; none is true of them."""
    path = on(tmp_path, write)

    async def copies() -> list[str]:
        found = []
        home = str(tmp_path / "copies")
        for make in (SessionManager.fork_from, SessionManager.import_retained_from):
            async with await make(path, "/w", home_dir=home) as manager:
                found.append(str(manager.get_session_file()))
        async with await SessionManager.open(path) as manager:
            leaf = manager.get_leaf_id()
            assert leaf is not None
            async with await manager.fork_branch(leaf) as other:
                found.append(str(other.get_session_file()))
        return found

    for copy in asyncio.run(copies()):
        report = request_associations(copy)
        assert any(report.values())
        assert not any(any(links) for links in known(report).values()), copy
        with SessionView.open(copy) as view:
            assert request_associations(view) == report


def test_stale_links_are_no_links(tmp_path: Path) -> None:
    """46: an answer that came after a jump to another branch is stored without one."""

    async def work(manager: SessionManager) -> None:
        first = await manager.append_message({"role": "user", "content": "hello"})
        await manager.append_message(ANSWER)
        async with manager.capture() as captured:
            link = await asked(captured, "main")
            await manager.branch_to(first)
            await manager.append_message(ANSWER, link=link)

    assert known(request_associations(on(tmp_path, work)))[MAIN] == [False, False]
