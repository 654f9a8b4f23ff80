"""SessionManager: tree, context, navigation with a summary, copies of branches."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import Gate, assistant, on_loop, user

from treering.engine import Conflict, Invalid, LimitExceeded, NotFound, Session, StorageError
from treering.engine.session.capture import ReadLimits
from treering.engine.session.manager import SessionManager
from treering.engine.session.navigation import NavigationOptions, SummaryRequest
from treering.engine.transfer.legacy_model import CopyLimits


async def conversation(manager: SessionManager, turns: int = 3) -> list[str]:
    """Questions and answers; the ids in order."""
    ids = []
    for turn in range(turns):
        ids.append(await manager.append_message(user(f"question {turn}")))
        ids.append(await manager.append_message(assistant(f"answer {turn}")))
    return ids


async def made(tmp_path: Path) -> SessionManager:
    return await SessionManager.create("/w", home_dir=str(tmp_path / "home"))


# Tree and context


@on_loop
async def test_a_tree_is_that_of_the_moment(tmp_path: Path) -> None:
    """readTree: whole or refused, later appends invisible, kinds that are never shown hidden."""
    async with await made(tmp_path) as manager:
        ids = await conversation(manager)
        await manager.append({"type": "request", "id": "q", "request": {}})
        await manager.branch_to(ids[0])
        await manager.append_label_change(ids[1], "L")
        gate = await Gate(manager).closed()
        waiting = asyncio.ensure_future(manager.append_message(user("later")))
        tree = await manager.read_tree()
        await gate.open()
        assert (await waiting) not in tree.nodes
        assert "q" not in tree.nodes
        assert tree.nodes[ids[1]].label == "L"
        assert [node.id for node in tree.nodes[ids[0]].children] == [ids[1], tree.leaf_id]
        assert len(await manager.read_flat_tree()) == 8
        with pytest.raises(LimitExceeded):
            await manager.read_tree(ReadLimits(8))


@on_loop
async def test_the_context_of_a_branch(tmp_path: Path) -> None:
    """readSessionContext: settings, kept range and summary; at another leaf; before any entry."""
    async with await made(tmp_path) as manager:
        assert (await manager.read_session_context()).messages == ()
        ids = await conversation(manager)
        await manager.append_thinking_level_change("high")
        await manager.append_compaction("SUM", ids[4], 100)
        await manager.append_message(user("after"))
        context = await manager.read_session_context()
        assert context.thinking_level == "high"
        assert [message["role"] for message in context.to_list()] == [
            "compactionSummary",
            "user",
            "assistant",
            "user",
        ]
        assert await manager.read_context_usage() is None
        usage = {"input": 3, "output": 2, "totalTokens": 5, "cost": {"total": 0}}
        await manager.append_message(assistant(usage=usage))
        found = await manager.read_context_usage()
        assert found is not None
        assert found.tokens == 5
        assert len((await manager.read_session_context(ids[1])).messages) == 2
        assert (await manager.read_session_context(None)).messages == ()
        with pytest.raises(NotFound):
            await manager.read_session_context("nobody")
        with pytest.raises(LimitExceeded):
            await manager.read_session_context(max_entries=2)


@on_loop
async def test_resident_tree_and_context() -> None:
    """getTree, getFlatTree and buildSessionContext of a session in memory."""
    async with await SessionManager.in_memory("/w") as manager:
        ids = await conversation(manager)
        assert len(manager.build_session_context().messages) == 6
        assert len(manager.build_session_context(ids[0]).messages) == 1
        assert [node.id for node in manager.get_flat_tree()] == ids
        assert manager.get_tree().leaf_id == ids[-1]


# Navigation


@on_loop
async def test_navigation_takes_a_question_back(tmp_path: Path) -> None:
    """User -> its parent and its text; the first one -> before any entry; others -> themselves."""
    async with await made(tmp_path) as manager:
        ids = await conversation(manager)
        found = await manager.navigate_tree(ids[2])
        assert (found.editor_text, manager.get_leaf_id()) == ("question 1", ids[1])
        found = await manager.navigate_tree(ids[5], NavigationOptions(label="here"))
        assert (found.editor_text, await manager.read_label(ids[5])) == (None, "here")
        found = await manager.navigate_tree(ids[0])
        assert (found.editor_text, manager.get_leaf_id()) == ("question 0", None)
        with pytest.raises(NotFound):
            await manager.navigate_tree("nobody")


@on_loop
async def test_navigation_leaves_a_summary(tmp_path: Path) -> None:
    """The summariser is the caller's; what it is given is the branch that is left."""
    async with await made(tmp_path) as manager:
        ids = await conversation(manager)
        asked: list[SummaryRequest] = []

        async def summarise(request: SummaryRequest) -> str:
            asked.append(request)
            return "what we tried"

        options = NavigationOptions(
            summarize=True, summariser=summarise, custom_instructions="files", label="S"
        )
        found = await manager.navigate_tree(ids[1], options)
        assert found.summary_entry_id is not None
        summary = await manager.read_entry(found.summary_entry_id)
        assert summary is not None
        assert (summary.type, summary.parent_id) == ("branch_summary", ids[1])
        assert b"what we tried" in summary.raw
        assert await manager.read_label(summary.id) == "S"
        assert len(asked) == 1
        roles = [message["role"] for message in (await manager.read_session_context()).to_list()]
        assert roles == ["user", "assistant", "branchSummary"]


@on_loop
async def test_an_aborted_or_outrun_navigation_writes_nothing(tmp_path: Path) -> None:
    """abort -> cancelled and aborted; source moved meanwhile -> Conflict; the leaf stays."""
    async with await made(tmp_path) as manager:
        ids = await conversation(manager)
        abort = asyncio.Event()

        async def never(_: Any) -> str:
            abort.set()
            await asyncio.sleep(60)
            raise AssertionError("not cancelled")

        options = NavigationOptions(summarize=True, summariser=never, abort=abort)
        found = await manager.navigate_tree(ids[1], options)
        assert (found.cancelled, found.aborted, manager.get_leaf_id()) == (True, True, ids[-1])

        async def outrun(_: Any) -> str:
            await manager.append_message(user("meanwhile"))
            return "late"

        before = len(await manager.read_entries())
        with pytest.raises(Conflict):
            await manager.navigate_tree(
                ids[1], NavigationOptions(summarize=True, summariser=outrun)
            )
        assert len(await manager.read_entries()) == before + 1
        with pytest.raises(Conflict):
            await manager.branch_with_summary(ids[0], "x", expected_leaf=ids[0])
        assert manager.get_leaf_id() not in ids


# Copies


@on_loop
async def test_a_branched_session_is_selected(tmp_path: Path) -> None:
    """createBranchedSession: the path alone, the old session whole and free again."""
    async with await made(tmp_path) as manager:
        ids = await conversation(manager)
        old = manager.get_session_file()
        assert old is not None
        with pytest.raises(NotFound):
            await manager.create_branched_session("nobody")
        with pytest.raises(LimitExceeded):
            await manager.create_branched_session(ids[3], CopyLimits(3))
        assert manager.get_session_file() == old
        path = await manager.create_branched_session(ids[3])
        assert path == manager.get_session_file() != old
        assert [entry.id for entry in await manager.read_branch()] == ids[:4]
        assert manager.get_header().parent_session == old
        await manager.append_message(user("on"))
    with Session.open(old) as session:
        assert [entry.id for entry in session.branch()] == ids


@on_loop
async def test_forks_and_clones_leave_this_session_selected(tmp_path: Path) -> None:
    """forkBranch, clone, forkFrom; nothing to clone yet."""
    async with await made(tmp_path) as manager:
        with pytest.raises(Invalid):
            await manager.clone()
        ids = await conversation(manager)
        path = manager.get_session_file()
        assert path is not None
        async with await manager.fork_branch(None) as empty, await manager.clone() as clone:
            assert await empty.read_entries() == []
            assert [entry.id for entry in await clone.read_entries()] == ids
            assert len({empty.get_session_id(), clone.get_session_id(), path}) == 3
        home = str(tmp_path / "home")
        async with await SessionManager.fork_from(path, "/other", home_dir=home) as fork:
            assert (fork.get_cwd(), fork.get_header().parent_session) == ("/other", path)
            assert [entry.id for entry in await fork.read_entries()] == ids
        assert manager.get_session_file() == path


@on_loop
async def test_a_prepared_fork_is_of_the_moment(tmp_path: Path) -> None:
    """prepareFork: later changes of the source have no influence; before needs a question."""
    async with await made(tmp_path) as manager:
        ids = await conversation(manager)
        with pytest.raises(Invalid):
            await manager.prepare_fork(ids[1])
        prepared = await manager.prepare_fork(ids[2])
        assert prepared.selected_entry is not None
        await manager.append_label_change(ids[0], "later")
        copy = await asyncio.to_thread(prepared.create)
        async with await SessionManager.open(copy.path) as fork:
            assert [entry.id for entry in await fork.read_entries()] == ids[:2]
            assert await fork.read_label(ids[0]) is None


@on_loop
async def test_copies_of_a_session_in_memory(tmp_path: Path) -> None:
    """They are in memory too, or in the folder that is named; without a parent either way."""
    async with await SessionManager.in_memory("/w") as manager:
        ids = await conversation(manager)
        prepared = await manager.prepare_fork(ids[-1], "at")
        with pytest.raises(Invalid, match="in memory"):
            prepared.create()
        async with await manager.clone() as copy:
            assert copy.get_session_file() is None
            assert copy.get_session_id() != manager.get_session_id()
            assert copy.get_header().cwd == "/w"
            assert [entry.id for entry in await copy.read_entries()] == ids
            await copy.append_message(user("only there"))
        assert [entry.id for entry in await manager.read_entries()] == ids
        folder = str(tmp_path / "home/sessions")
        async with await manager.fork_branch(ids[-1], session_dir=folder) as copy:
            path = copy.get_session_file()
            assert path is not None
            assert os.path.dirname(path) == folder
            assert copy.get_header().parent_session is None
            assert [entry.id for entry in await copy.read_entries()] == ids
        before = manager.get_session_id()
        assert await manager.create_branched_session(ids[1]) is None
        assert manager.get_session_id() != before
        assert manager.get_leaf_id() == ids[1]
        assert [entry.id for entry in await manager.read_entries()] == ids[:2]
        with pytest.raises(NotFound):
            await manager.create_branched_session("nobody")
        assert manager.get_leaf_id() == ids[1]
        assert not os.path.exists("/memory")


@on_loop
async def test_a_copy_that_cannot_be_selected_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old session stays selected; the error says where the copy is, which can be opened."""
    async with await SessionManager.create("/w", home_dir=str(tmp_path / "home")) as manager:
        ids = await conversation(manager)
        before = manager.get_session_file()

        async def refuse(path: object) -> None:
            raise StorageError("no descriptor is free", path=str(path))

        monkeypatch.setattr(manager, "set_session_file", refuse)
        with pytest.raises(StorageError) as caught:
            await manager.create_branched_session(ids[-1])
        assert manager.get_session_file() == before
        (note,) = caught.value.__notes__
        async with await SessionManager.open(note.rpartition(": ")[2]) as copy:
            assert copy.get_leaf_id() == ids[-1]


# Lists


@on_loop
async def test_lists_and_the_recent_one(tmp_path: Path) -> None:
    """list filters, listAll does not; callbacks come in the loop; continueRecent goes on or makes."""
    home = str(tmp_path / "home")
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    assert await SessionManager.list(here, home_dir=home) == []
    paths = []
    for cwd in (here, there, here):
        async with await SessionManager.create(cwd, home_dir=home) as manager:
            message = user() | {"timestamp": 1_700_000_000_000 + len(paths)}
            await manager.append_message(message)
            paths.append(manager.get_session_file())
    sessions: list[str] = []
    progress: list[tuple[int, int]] = []
    found = await SessionManager.list(
        here,
        home_dir=home,
        on_session=lambda info: sessions.append(info.path),
        on_progress=lambda loaded, total: progress.append((loaded, total)),
    )
    assert [info.path for info in found] == [paths[2], paths[0]]
    assert sorted(sessions) == sorted([str(paths[0]), str(paths[2])])
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert len(await SessionManager.list_all(home_dir=home)) == 3
    async with await SessionManager.continue_recent(here, home_dir=home) as manager:
        assert manager.get_session_file() == paths[2]
    async with await SessionManager.continue_recent(str(tmp_path), home_dir=home) as manager:
        assert manager.get_session_file() not in paths
        assert manager.get_cwd() == str(tmp_path)


@on_loop
async def test_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth: explicit, parent + 1, environment, none where the parent cannot be read."""
    home = str(tmp_path / "home")
    async with await SessionManager.create("/w", home_dir=home) as manager:
        assert manager.get_header().rlm_depth == 0
        path = manager.get_session_file()
        await manager.new_session(parent_session=path)
        assert manager.get_header().rlm_depth == 1
        await manager.new_session(parent_session=manager.get_session_file())
        assert manager.get_header().rlm_depth == 2
        await manager.new_session(parent_session=str(tmp_path / "none.jsonl"))
        assert manager.get_header().rlm_depth is None
        await manager.new_session(rlm_depth=7)
        copied = manager.get_session_file()
        async with await manager.fork_branch(None) as copy:
            assert copy.get_header().rlm_depth == 7  # a copy stands where its source does
            assert copy.get_header().parent_session == copied
        monkeypatch.setenv("BASE_CONTEXT_RLM_DEPTH", "3")
        await manager.new_session()
        assert manager.get_header().rlm_depth == 3
        monkeypatch.setenv("BASE_CONTEXT_RLM_DEPTH", "-1")
        before = manager.get_session_file()
        with pytest.raises(Invalid):
            await manager.new_session()
        assert manager.get_session_file() == before
        await manager.append_message(user())
