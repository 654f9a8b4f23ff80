"""Scenarios of ids, labels, repository states and navigation, through a manager that owns a file."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import assistant, file_of, ids, made, on_loop, user
from session_helpers import read_bytes

from treering.engine import Conflict, InvalidId, NotFound, Session
from treering.engine.session.manager import SessionManager
from treering.engine.session.navigation import NavigationOptions, SummaryRequest

# Ids


@on_loop
async def test_every_new_session_has_an_id_of_its_own_with_its_time(tmp_path: Path) -> None:
    """Ids: created, switched to, branched, cloned, forked, imported and in memory: each new session
    has a UUID of version 7, in its header and in its file name, and they sort by time."""
    home = str(tmp_path / "home")
    source = tmp_path / "old.jsonl"
    source.write_bytes(b'{"type":"session","version":3,"id":"not-taken-over","cwd":"/w"}\n')
    found: list[str] = []

    def note(manager: SessionManager) -> None:
        session_id = manager.get_session_id()
        assert manager.get_header().id == session_id
        path = manager.get_session_file()
        assert path is None or os.path.basename(path) == f"{session_id}.jsonl"
        found.append(session_id)

    async with await made(tmp_path) as manager:
        note(manager)
        path = file_of(manager)
        first = await manager.append_message(user())
        async with await manager.clone() as copy, await manager.fork_branch(first) as fork:
            note(copy)
            note(fork)
        prepared = await manager.prepare_fork(first, "at")
        async with await SessionManager.open((await asyncio.to_thread(prepared.create)).path) as it:
            note(it)
        await manager.create_branched_session(first)
        note(manager)
        await manager.new_session()
        note(manager)
    async with (
        await SessionManager.fork_from(path, "/w", home_dir=home) as forked,
        await SessionManager.import_retained_from(source, "/w", home_dir=home) as imported,
        await SessionManager.in_memory("/w") as memory,
    ):
        for one in (forked, imported, memory):
            note(one)
    assert len(set(found)) == 9
    assert {uuid.UUID(session_id).version for session_id in found} == {7}
    times = [uuid.UUID(session_id).int >> 80 for session_id in found]
    assert max(times) - min(times) < 600_000


@on_loop
async def test_ids_that_the_caller_chooses(tmp_path: Path) -> None:
    """Ids: a custom id is taken as it is; one that exists, also of a deleted or foreign file, is
    refused by creating and by switching, changes nothing, and leaves the selected session."""
    home = str(tmp_path / "home")
    async with await made(tmp_path, session_id="mine") as manager:
        assert (manager.get_session_id(), manager.get_header().id) == ("mine", "mine")
        await manager.append_message(user())
        path = file_of(manager)
        Path(home, "sessions/theirs.jsonl").write_text("a note")
        before = {
            name: read_bytes(os.path.join(home, "sessions", name)) for name in ("mine.jsonl",)
        }
        for taken in ("mine", "theirs"):
            with pytest.raises(Conflict, match=taken):
                await made(tmp_path, session_id=taken)
            with pytest.raises(Conflict, match=taken):
                await manager.new_session(session_id=taken)
        for wrong in ("", "../x", "a/b", "."):
            with pytest.raises(InvalidId):
                await manager.new_session(session_id=wrong)
        assert file_of(manager) == path
        assert read_bytes(path) == before["mine.jsonl"]
        assert sorted(os.listdir(os.path.dirname(path))) == ["mine.jsonl", "theirs.jsonl"]
        await manager.new_session(session_id="next")
        assert manager.get_session_id() == "next"


# Labels


@on_loop
async def test_labels_are_never_part_of_the_context(tmp_path: Path) -> None:
    """Labels: set, cleared, and on every kind of entry: the context is the same with and without,
    also behind a compaction; a label of an unknown target is refused and changes nothing."""
    async with await made(tmp_path) as manager, await SessionManager.in_memory("/w") as plain:
        for one in (manager, plain):
            for turn in range(3):
                await one.append({"type": "message", "id": f"q{turn}", "message": user(f"{turn}")})
                answer = {"type": "message", "id": f"a{turn}", "message": assistant(f"a {turn}")}
                await one.append(answer)
                if one is manager:
                    set_ = await one.append_label_change(f"a{turn}", "SECRET")
                    await one.append_label_change(set_, "label of a label")
                    await one.append_label_change(f"q{turn}", "gone")
                    await one.append_label_change(f"q{turn}", None)
            await one.append_compaction("sum", "q1", 9)
            await one.append_message(user("after"))
        context = (await manager.read_session_context()).to_list()
        assert b"SECRET" not in json.dumps(context).encode()

        def told(messages: list[Any]) -> list[Any]:
            return [{k: v for k, v in m.items() if k != "timestamp"} for m in messages]

        assert told(context) == told((await plain.read_session_context()).to_list())
        leaf, data = manager.get_leaf_id(), read_bytes(file_of(manager))
        with pytest.raises(NotFound, match="nobody"):
            await manager.append_label_change("nobody", "L")
        assert (manager.get_leaf_id(), read_bytes(file_of(manager))) == (leaf, data)
        tree = await manager.read_tree()
        assert [tree.nodes[name].label for name in ("q0", "a0", "a2")] == [None, "SECRET", "SECRET"]


@on_loop
async def test_labels_of_a_branch_copy(tmp_path: Path) -> None:
    """Labels: the branch copy carries those of its own entries, in force, wherever they were set;
    those of entries off the path are dropped, and what hung below a label is on the path still."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user("first"))
        await manager.append_label_change(first, "old")
        second = await manager.append_message(user("below a label"))
        await manager.branch_to(first)
        side = await manager.append_message(user("side"))
        await manager.append_label_change(side, "off the path")
        await manager.append_label_change(first, "new")
        await manager.append_label_change(second, "set elsewhere")
        await manager.create_branched_session(second)
        assert ids(await manager.read_branch()) == [first, second]
        labels = {one.id: label for one, label in await manager.read_labels_page()}
        assert labels == {first: "new", second: "set elsewhere"}
        assert await manager.read_label(side) is None
        assert manager.get_leaf_id() == second


# Repository states


@on_loop
async def test_a_repository_state_is_written_on_change_and_per_branch(tmp_path: Path) -> None:
    """Git state: who appends what `get_git_state` does not show yet writes one entry for each
    change on each branch, also after a move and after a reopening; every copy keeps them."""
    async with await made(tmp_path) as manager:

        async def record(branch: str) -> None:
            now = {"branch": branch, "head": "abc"}
            if manager.get_git_state() != now:
                await manager.append_git_state(now)

        root = await manager.append_message(user())
        for branch in ("main", "main", "topic", "topic", "main"):
            await record(branch)
        await manager.branch_to(root)
        assert manager.get_git_state() is None
        for branch in ("main", "main"):
            await record(branch)
        states = [one for one in await manager.read_entries() if one.type == "git_state"]
        assert [json.loads(one.raw)["git"]["branch"] for one in states] == [
            *("main", "topic", "main"),
            "main",
        ]
        path, leaf = file_of(manager), manager.get_leaf_id()
        assert leaf is not None
        async with await manager.fork_branch(leaf) as copy:
            assert copy.get_git_state() == {"branch": "main", "head": "abc"}
    async with await SessionManager.open(path) as manager:
        await record("main")
        assert manager.get_leaf_id() == leaf


# Navigation, on a session that is owned


async def tree_of(manager: SessionManager) -> dict[str, str]:
    """A question with two answers below; the position is at the end of the second branch."""
    found = {"q": await manager.append_message(user("question"))}
    found["a"] = await manager.append_message(assistant("answer"))
    found["custom"] = await manager.append_custom_message_entry("note", "a note", display=True)
    found["left"] = await manager.append_message(user("left"))
    found["end"] = await manager.append_message(assistant("end of left"))
    await manager.branch_to(found["a"])
    found["right"] = await manager.append_message(user("right"))
    return found


@on_loop
async def test_navigation_by_what_is_selected(tmp_path: Path) -> None:
    """Navigation: a custom message and a question are taken back, an answer is gone to, the root
    question leads before any entry, and the position itself is a no-op that writes nothing."""
    async with await made(tmp_path) as manager:
        at = await tree_of(manager)
        data = read_bytes(file_of(manager))
        found = await manager.navigate_tree(at["right"], NavigationOptions(label="none"))
        assert (found.cancelled, found.editor_text, manager.get_leaf_id()) == (
            *(False, None),
            at["right"],
        )
        assert read_bytes(file_of(manager)) == data
        for target, leaf, text in (
            ("custom", at["a"], "a note"),
            ("left", at["custom"], "left"),
            ("end", at["end"], None),
            ("a", at["a"], None),
            ("q", None, "question"),
            ("right", at["a"], "right"),
        ):
            found = await manager.navigate_tree(at[target])
            assert (found.editor_text, manager.get_leaf_id()) == (text, leaf)
            assert found.summary_entry_id is None
        assert len(await manager.read_entries()) == len(at)
        path = file_of(manager)
    with Session.open(path) as session:
        assert session.leaf_id == at["a"]


@pytest.mark.parametrize(
    ("target", "parent", "left"),
    [
        ("left", "custom", ["right"]),
        ("custom", "a", ["right"]),
        ("end", "end", ["right"]),
        ("q", None, ["answer", "right"]),
    ],
)
@on_loop
async def test_where_a_summary_hangs(
    tmp_path: Path, target: str, parent: str | None, left: list[str]
) -> None:
    """Navigation: between branches the summary hangs below the parent of a question that was taken
    back (nested), below an answer that was selected, or before any entry; instructions reach the
    summariser; the label goes on the summary; an abort leaves everything as it was."""
    async with await made(tmp_path) as manager:
        at = await tree_of(manager)
        asked: list[SummaryRequest] = []

        async def summarise(request: SummaryRequest) -> str:
            asked.append(request)
            return "what was tried"

        abort = asyncio.Event()
        abort.set()
        options = NavigationOptions(
            summarize=True, summariser=summarise, custom_instructions="look at files", label="S"
        )
        data, leaf = read_bytes(file_of(manager)), manager.get_leaf_id()
        found = await manager.navigate_tree(at[target], replace(options, abort=abort))
        assert (found.cancelled, found.aborted) == (True, True)
        assert (read_bytes(file_of(manager)), manager.get_leaf_id()) == (data, leaf)
        asked.clear()
        found = await manager.navigate_tree(at[target], options)
        assert found.summary_entry_id is not None
        summary = await manager.read_entry(found.summary_entry_id)
        assert summary is not None
        assert summary.parent_id == (None if parent is None else at[parent])
        assert await manager.read_label(summary.id) == "S"
        (request,) = asked
        assert "look at files" in request.instructions
        for text in ("question", "answer", "right", "end of left"):
            assert (text in request.conversation) == (text in left), text
