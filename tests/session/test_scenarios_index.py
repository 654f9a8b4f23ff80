"""Scenarios of bounded, captured reads through the index: scopes, prefixes, budgets, lineages."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import assistant, file_of, ids, made, on_loop, owned
from manager_helpers import user as asked
from session_helpers import (
    answers,
    drop_index,
    index_differences,
    index_file,
    index_folder,
    read_bytes,
)
from tree_helpers import entry, user, write

from treering.engine import Conflict, Invalid, LimitExceeded, NotFound, Session
from treering.engine.session.capture import ReadLimits
from treering.engine.session.manager import SessionManager
from treering.engine.transfer.legacy_model import CopyLimits
from treering.fuzz.adversary.attacks import ATTACKS, Target
from treering.index import IndexFault, SessionIndex


async def forked(manager: SessionManager) -> tuple[list[str], list[str]]:
    """Two branches below a common question; the position is at the end of the second one."""
    root = await manager.append_message(asked("needle root"))
    left = [root]
    left += [await manager.append_message(asked(f"needle left {n}")) for n in range(3)]
    await manager.branch_to(root)
    right = [root]
    right += [await manager.append_message(asked(f"needle right {n}")) for n in range(3)]
    return left, right


async def walked(read: Callable[[Any], Any]) -> list[str]:
    """Ids of all pages of 5, each behind the last entry of the one before."""
    found: list[Any] = []
    while page := await read(found[-1].sequence if found else 0):
        found += page
    return ids(found)


# Scopes


@on_loop
async def test_ids_are_case_sensitive_and_of_one_session(tmp_path: Path) -> None:
    """Ids that differ in case are different entries; those of another session are not there; the
    same append again changes nothing, also in the index."""
    async with await made(tmp_path) as manager, await made(tmp_path) as other:
        small = {"type": "custom", "customType": "x", "id": "abc"}
        for one in (small, small | {"id": "ABC"}, small, small | {"id": "Abc"}, small):
            await manager.append(one)
        assert ids(await manager.read_entries()) == ["abc", "ABC", "Abc"]
        assert ids(await manager.read_branch("ABC")) == ["abc", "ABC"]
        foreign = await other.append_message(asked("elsewhere"))
        for unknown in ("aBC", foreign):
            assert await manager.read_entry(unknown) is None
            for call in (
                manager.read_branch(unknown),
                manager.branch_to(unknown),
                manager.append_label_change(unknown, "L"),
                manager.read_session_context(unknown),
                manager.materialize_parent_path_history(unknown, ReadLimits()),
            ):
                with pytest.raises(NotFound):
                    await call
        assert ids(await other.read_entries()) == [foreign]


@on_loop
async def test_a_branch_scope_hides_siblings(tmp_path: Path) -> None:
    """After a switch of branches the old branch is hidden from every read of the branch scope: get,
    page, search, iteration, parent path and materialising. The source scope reaches it."""
    async with await made(tmp_path) as manager:
        left, right = await forked(manager)

        async def branch(history: Any) -> None:
            for entry_id in left[1:]:
                assert await history.get(entry_id) is None
                with pytest.raises(NotFound):
                    await history.parent_path(entry_id)
            for n, entry_id in enumerate(right):
                assert (await history.get(entry_id)).id == entry_id
                assert ids(await history.parent_path(entry_id)) == right[: n + 1]
            assert ids(await history.page()) == right
            assert ids(await history.search("needle")) == right[::-1]
            assert [one.id async for one in history.iterate_entries()] == right
            assert ids((await history.materialize(ReadLimits())).entries) == right

        async def source(history: Any) -> None:
            every = left + right[1:]
            assert [(await history.get(entry_id)).id for entry_id in every] == every
            assert ids(await history.page()) == every
            assert ids(await history.search("needle")) == every[::-1]
            assert ids(await history.parent_path(left[-1])) == left
            assert ids((await history.materialize(ReadLimits())).entries) == every

        await manager.read_branch_history(branch)
        await manager.read_source_history(source)
        await manager.branch_to(left[-1])
        left, right = right, left
        await manager.read_branch_history(branch)


@on_loop
async def test_three_ways_to_materialise(tmp_path: Path) -> None:
    """Materialising the branch, the whole source, or the path to one entry: each its own entries,
    each counting its own bytes, all of the same moment."""
    async with await made(tmp_path) as manager:
        left, right = await forked(manager)
        branch = await manager.materialize_branch_history(ReadLimits())
        source = await manager.materialize_source_history(ReadLimits())
        path = await manager.materialize_parent_path_history(left[2], ReadLimits())
        assert ids(branch.entries) == right
        assert ids(source.entries) == left + right[1:]
        assert ids(path.entries) == left[:3]
        assert branch.source == source.source == path.source
        assert branch.source.leaf_id == right[-1]
        assert path.source_bytes < branch.source_bytes < source.source_bytes
        await manager.branch_to(None)
        assert (await manager.materialize_branch_history(ReadLimits())).entries == []


@on_loop
async def test_a_source_read_ends_at_its_moment(tmp_path: Path) -> None:
    """A whole-source read reaches all siblings of its moment and nothing later, whatever is
    appended, moved or selected while it runs; entries and answers later than it are unknown."""
    async with await made(tmp_path) as manager:
        left, right = await forked(manager)

        async def read(history: Any) -> None:
            late = await manager.append_message(asked("needle late"))
            await manager.branch_to(left[1])
            side = await manager.append_message(asked("needle side"))
            for entry_id in (late, side):
                assert await history.get(entry_id) is None
                with pytest.raises(NotFound):
                    await history.parent_path(entry_id)
            await manager.new_session()
            assert ids((await history.materialize(ReadLimits())).entries) == left + right[1:]
            assert history.source.leaf_id == right[-1]

        await manager.read_source_history(read)
        assert await manager.read_entries() == []


@on_loop
async def test_many_captures_stay_valid(tmp_path: Path) -> None:
    """Twenty captures of twenty moments are open at once; each goes on paging in its own moment,
    the first of them as well as the last."""
    async with await made(tmp_path) as manager, AsyncExitStack() as stack:
        captures = []
        for n in range(20):
            captures.append((await stack.enter_async_context(manager._captured()))[1])
            await asyncio.gather(*(manager.append_message(asked(f"{n}.{m}")) for m in range(9)))
        for n, capture in enumerate(captures):
            found: list[Any] = []
            while page := capture.page(found[-1].sequence if found else 0, 5):
                found += page
            assert len(found) == 9 * n
            assert capture.source.leaf_id == (found[-1].id if found else None)


@on_loop
async def test_requests_go_with_the_entry_they_hang_below(tmp_path: Path) -> None:
    """A branch scope can read a request whose parent is on the branch, none of a sibling, none that
    came later; the source scope reads all of its moment; no position is ever a request."""
    async with await made(tmp_path) as manager:
        left, right = await forked(manager)
        for name, at in (
            ("first", None),
            ("common", left[0]),
            ("left", left[1]),
            ("right", right[1]),
        ):
            await manager.append(entry(name, at, "request", request={}))
        assert manager.get_leaf_id() == right[-1]

        async def read(history: Any) -> list[str]:
            await manager.append(entry(f"late {history.scope}", right[1], "request", request={}))
            names = ("first", "common", "left", "right", f"late {history.scope}")
            return [name for name in names if await history.get(name) is not None]

        assert await manager.read_branch_history(read) == ["first", "common", "right"]
        every = ["first", "common", "left", "right"]
        assert await manager.read_source_history(read) == every
        await manager.branch_to(left[-1])
        assert await manager.read_branch_history(lambda h: h.get("right")) is None


# Pages


@on_loop
async def test_thirteen_messages_in_pages(tmp_path: Path) -> None:
    """Messages paged 5 at a time: each once, in order, by every paged read, and an end."""
    async with await made(tmp_path) as manager:
        wanted = [await manager.append_message(asked(str(n))) for n in range(13)]
        assert await walked(lambda at: manager.read_entries_page(after=at, limit=5)) == wanted
        found: list[str] = []
        while page := await manager.read_branch_page(start=len(found), limit=5):
            found += ids(page)
        assert found == wanted
        for read in (manager.read_branch_history, manager.read_source_history):
            assert await read(lambda h: walked(lambda at: h.page(at, 5))) == wanted
        await manager.branch_to(wanted[0])
        await manager.append_message(asked("second branch"))
        roots = [await manager.read_children_page(wanted[0], limit=1)]
        roots.append(await manager.read_children_page(wanted[0], after=roots[0][-1].sequence))
        assert [len(page) for page in roots] == [1, 1]


@on_loop
async def test_a_chain_of_130(tmp_path: Path) -> None:
    """A path of 130 generations is covered by pages whatever their size; starts that are no depth
    and sizes above the limit are refused, a start behind the end is an empty page."""
    async with await made(tmp_path) as manager:
        calls = (manager.append_message(asked(str(n))) for n in range(130))
        wanted = list(await asyncio.gather(*calls))
        for size in (1, 64, 129, 130, 131):
            found: list[str] = []
            while page := await manager.read_branch_page(start=len(found), limit=size):
                assert len(page) <= size
                found += ids(page)
            assert found == wanted
        for start in (-1, "x", 1.5):
            with pytest.raises(Invalid):
                await manager.read_branch_page(start=start)  # type: ignore[arg-type]
        assert await manager.read_branch_page(start=130) == []
        assert ids(await manager.read_branch_page(wanted[9], start=5)) == wanted[5:10]

        async def read(history: Any) -> None:
            assert await walked(lambda at: history.page(at, 64)) == wanted
            for limit, kind in ((65, LimitExceeded), (0, Invalid), (-1, Invalid), (True, Invalid)):
                with pytest.raises(kind):
                    await history.page(limit=limit)

        await manager.read_branch_history(read)


@on_loop
async def test_foreign_candidates_refuse_nothing(tmp_path: Path) -> None:
    """Hundreds of consecutive entries of another branch, with the searched word in each: pages,
    searches, nearest settings and materialising of the branch are neither refused nor cut short."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(asked("needle first"))
        await manager.append_model_change("p", "own")
        own = manager.get_leaf_id()
        foreign = []
        for n in range(300):
            foreign += [manager.append_message(asked(f"needle {n}"))]
            foreign += [manager.append_model_change("p", f"foreign {n}")]
        await asyncio.gather(*foreign)
        await manager.branch_to(own)
        last = await manager.append_message(asked("needle last"))
        wanted = [first, str(own), last]

        async def read(history: Any) -> None:
            assert ids(await history.page()) == wanted
            assert ids(await history.search("needle")) == [last, first]
            assert ids((await history.materialize(ReadLimits(3))).entries) == wanted

        await manager.read_branch_history(read)
        model = (await manager.read_session_context()).model
        assert model is not None
        assert model.model_id == "own"
        assert len(await manager.read_entries_page(limit=1000)) == 603


@on_loop
async def test_more_than_a_page_of_records_about_one_entry(tmp_path: Path) -> None:
    """Hundreds of labels and of child usages of one entry: the newest one holds, also where it
    stands on another branch; those of other kinds and shapes do not count."""
    async with await made(tmp_path) as manager:
        question = await manager.append_message(asked())
        usage = {"input": 1, "totalTokens": 9, "cost": {"total": 0}}
        answer = await manager.append_message(assistant(usage=usage))
        calls = [manager.append_label_change(answer, f"L{n}") for n in range(300)]
        calls += [manager.append_child_usage_attribution(answer, {"input": 1}) for _ in range(300)]
        await asyncio.gather(*calls)
        await manager.branch_to(question)
        await manager.append_label_change(answer, "elsewhere")
        await manager.append_child_usage_attribution(answer, {"input": 5})
        await manager.append_custom_entry("child_usage_attributed", {"targetId": answer})
        context = await manager.read_session_context(answer)
        assert context.to_list()[1]["usage"]["input"] == 306
        assert await manager.read_label(answer) == "elsewhere"
        assert [label for _, label in await manager.read_labels_page()] == ["elsewhere"]


# Budgets


@on_loop
async def test_every_budget_is_exact_and_refuses_whole(tmp_path: Path) -> None:
    """Entry and byte budgets of every complete read: exactly at the limit it passes whole, one less
    refuses with limit and need; what the caller does to an answer changes no later one."""
    async with await made(tmp_path) as manager:
        left, right = await forked(manager)

        async def history(limits: ReadLimits) -> Any:
            return await manager.read_source_history(lambda h: h.materialize(limits))

        async def parent_path(limits: ReadLimits) -> Any:
            return await manager.read_source_history(lambda h: h.parent_path(left[-1], limits))

        whole = await manager.materialize_source_history(ReadLimits())
        branch = await manager.materialize_branch_history(ReadLimits())
        reads: list[tuple[Callable[[ReadLimits], Any], int, int]] = [
            (manager.read_entries, 7, whole.source_bytes),
            (manager.read_tree, 7, whole.source_bytes),
            (manager.read_flat_tree, 7, whole.source_bytes),
            (manager.materialize_source_history, 7, whole.source_bytes),
            (history, 7, whole.source_bytes),
            (manager.materialize_branch_history, 4, branch.source_bytes),
            (lambda limits: manager.read_branch(limits=limits), 4, branch.source_bytes),
            (lambda limits: manager.read_branches([left[-1], right[-1]], limits), 7, 0),
            (parent_path, 4, 0),
            (lambda limits: manager.materialize_parent_path_history(left[-1], limits), 4, 0),
        ]
        for read, entries, size in reads:
            first = await read(ReadLimits(entries, size or None))
            for tight in [ReadLimits(entries - 1)] + [ReadLimits(None, size - 1)] * bool(size):
                with pytest.raises(LimitExceeded) as caught:
                    await read(tight)
                assert caught.value.need is not None
                assert caught.value.limit is not None
                assert caught.value.need > caught.value.limit
            found = getattr(first, "entries", first)
            if isinstance(found, list):
                found.clear()
                again = await read(ReadLimits(entries, size or None))
                assert getattr(again, "entries", again)
        one = await manager.read_entry(left[0])
        assert one is not None
        with pytest.raises(AttributeError):
            one.raw = b""  # type: ignore[misc]
        path = file_of(manager)
        with pytest.raises(LimitExceeded):
            await manager.fork_branch(left[-1], limits=CopyLimits(3))
        with pytest.raises(LimitExceeded):
            await SessionManager.fork_from(path, "/w", None, CopyLimits(6))
        assert len(os.listdir(os.path.dirname(path))) == 1


# Settings and facts of a path


@on_loop
async def test_the_latest_of_each_fact_skips_what_says_nothing(tmp_path: Path) -> None:
    """Model, level, tier, status and git state at a position are the nearest valid ones above it;
    malformed ones, those of other branches and invalid lifecycles are passed over, and after a
    reopening without an index the same ones are found."""
    async with await made(tmp_path) as manager:
        root = await manager.append_message(asked())
        await manager.append_model_change("p", "m1")
        await manager.append_thinking_level_change("low")
        await manager.append_service_tier_change("flex")
        await manager.append_agent_status({"summary": "s1"})
        await manager.append_git_state({"branch": "g1"})
        await manager.append_session_state("archived")
        for bad in (
            {"type": "agent_status", "status": "none"},
            {"type": "git_state", "git": 5},
            {"type": "session_state", "state": {"status": "on fire"}},
            {"type": "session_state"},
        ):
            await manager.append(bad)
        here = manager.get_leaf_id()
        await manager.branch_to(root)
        await manager.append_model_change("p", "m2")
        await manager.append_agent_status({"summary": "s2"})
        await manager.append_session_info("Name")
        await manager.branch_to(here)

        async def check(found: SessionManager) -> None:
            context = await found.read_session_context()
            assert context.model is not None
            assert (context.model.model_id, context.thinking_level) == ("m1", "low")
            assert context.service_tier == "flex"
            assert found.get_latest_agent_status() == {"summary": "s1"}
            assert found.get_git_state() == {"branch": "g1"}
            assert (found.get_session_state(), found.get_session_name()) == ("archived", "Name")

        await check(manager)
        path = file_of(manager)
    drop_index(path)
    async with await SessionManager.open(path) as again:
        await check(again)


@on_loop
async def test_before_any_entry_there_is_nothing(tmp_path: Path) -> None:
    """The position before any entry: empty path, context, branch scope and usage, while the whole
    source still has everything."""
    async with await made(tmp_path) as manager:
        left, right = await forked(manager)
        await manager.branch_to(None)
        assert await manager.read_branch() == []
        assert (await manager.read_session_context()).messages == ()
        assert await manager.read_context_usage() is None

        async def read(history: Any) -> None:
            assert await history.page() == await history.search("needle") == []
            assert await history.parent_path() == []
            assert await history.get(left[0]) is None

        await manager.read_branch_history(read)
        assert len(await manager.read_entries()) == len(left + right) - 1


# Lineages that do not hold together


@on_loop
async def test_broken_lineages_are_readable_and_not_paths(tmp_path: Path) -> None:
    """An orphan, a cycle, and an entry whose parent comes later: each can be read exactly, and is a
    node of the tree; a path is refused where it does not reach a root, and whole where a parent
    that came later completes it."""
    folder = tmp_path / "home/sessions"
    folder.mkdir(parents=True)
    path = write(
        folder / "s.jsonl",
        [
            user("root", None),
            user("early", "late"),
            user("below", "early"),
            user("orphan", "lost"),
            user("child", "orphan"),
            user("one", "two"),
            user("two", "one"),
            user("self", "self"),
            user("late", "root"),
        ],
    )
    for opening in (SessionManager.open, SessionManager.open_read_only):
        async with await opening(path) as manager:
            every = ids(await manager.read_entries())
            assert len(every) == 9
            for entry_id in every:
                found = await manager.read_entry(entry_id)
                assert found is not None
                assert found.decode().id == entry_id
            assert set((await manager.read_tree()).nodes) == set(every)
            assert ids(await manager.read_branch("below")) == ["root", "late", "early", "below"]
            for broken in ("orphan", "child", "one", "two", "self"):
                for call in (
                    manager.read_branch(broken),
                    manager.read_branches(["root", broken]),
                    manager.materialize_parent_path_history(broken, ReadLimits()),
                    manager.read_source_history(lambda h, at=broken: h.parent_path(at)),
                ):
                    with pytest.raises(NotFound, match="unresolved above"):
                        await call
                page = await manager.read_branch_page(broken)
                assert page[0].unresolved in ("missing", "cycle")
                assert page[-1].id == broken


@pytest.mark.parametrize("without_index", [False, True])
@on_loop
async def test_a_capture_before_the_parent_came(tmp_path: Path, without_index: bool) -> None:
    """What heals after the capture: the entry is there, its path is told as the moment had it or
    refused, never a path through an entry that the moment did not have."""
    folder = tmp_path / "home/sessions"
    folder.mkdir(parents=True)
    path = write(folder / "s.jsonl", [user("root", None), user("early", "late")])
    if without_index:
        drop_index(path)
    async with await SessionManager.open(path) as manager:

        async def read(history: Any) -> None:
            await manager.append(entry("late", "root", "custom", customType="x"))
            assert (await history.get("early")).id == "early"
            assert await history.get("late") is None
            try:
                found = ids(await history.parent_path("early"))
            except NotFound:
                found = []
            assert "late" not in found

        await manager.read_source_history(read)
        assert ids(await manager.read_branch("early")) == ["root", "late", "early"]


# The index itself


@on_loop
async def test_a_deleted_index_is_made_again(tmp_path: Path) -> None:
    """The index is deleted while the session is closed, or while it is open: the answers are the
    same, the journal's bytes are unchanged, and after the end it equals one that is built anew."""
    async with await made(tmp_path) as manager:
        await forked(manager)
        path = file_of(manager)
        wanted = answers(owned(manager))
    data = read_bytes(path)
    for when in ("closed", "open", "no folder"):
        if when == "closed":
            drop_index(path)
        async with await SessionManager.open(path) as manager:
            if when == "open":
                drop_index(path)
            if when == "no folder":
                drop_index(path)
                Path(index_folder(path)).write_text("a file in its place")
            assert await asyncio.to_thread(answers, owned(manager)) == wanted
        if when == "no folder":
            os.unlink(index_folder(path))
        assert read_bytes(path) == data
    Session.open(path).close()
    assert index_differences(path) == []


@on_loop
async def test_appends_do_not_need_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index fails at every row: appends are acknowledged, reads are right, labels, branches and
    repeats of an id are known; when it works again the file equals one that is built anew."""
    async with await made(tmp_path) as manager:
        left, _ = await forked(manager)
        path = file_of(manager)
        real = SessionIndex.apply

        def fail(index: SessionIndex, *arguments: Any, **more: Any) -> Any:
            if index.file != ":memory:" and index.file:
                raise IndexFault(index.file, "disk I/O error")
            return real(index, *arguments, **more)

        monkeypatch.setattr(SessionIndex, "apply", fail)
        own = {"type": "custom", "customType": "x", "id": "own"}
        for _ in range(2):
            await manager.append(own)
        with pytest.raises(Conflict):
            await manager.append(own | {"customType": "y"})
        await manager.append_label_change(left[-1], "L")
        assert await manager.read_label(left[-1]) == "L"
        await manager.branch_to(left[-1])
        last = await manager.append_message(asked("on"))
        assert ids(await manager.read_branch()) == [*left, last]
        assert len(await manager.read_entries()) == 10
        monkeypatch.undo()
    Session.open(path).close()
    assert index_differences(path) == []


@pytest.mark.parametrize("wrong", ["older-version", "newer-version", "other-tables", "foreign"])
@on_loop
async def test_an_index_that_is_not_this_ones_is_made_anew(tmp_path: Path, wrong: str) -> None:
    """An index of an older or newer schema, with other tables, or of another session lies in the
    place of this one's: the answers are the same, none is of the other session, the journal's bytes
    are unchanged, and the next index equals one that is built anew."""
    async with await made(tmp_path) as manager, await made(tmp_path) as other:
        await forked(manager)
        foreign = await other.append_message(asked("elsewhere"))
        path, theirs = file_of(manager), file_of(other)
        wanted = answers(owned(manager))
    for one in (path, theirs):
        Session.open(one).close()
    if wrong == "foreign":
        shutil.copyfile(index_file(theirs), index_file(path))
    else:
        ATTACKS[wrong].do(Target(index_file(path), str(tmp_path)))
    data = read_bytes(path)
    async with await SessionManager.open(path) as manager:
        assert await manager.read_entry(foreign) is None
        assert await asyncio.to_thread(answers, owned(manager)) == wanted
    assert read_bytes(path) == data
    Session.open(path).close()
    assert index_differences(path) == []
