"""SessionManager when something goes wrong: cancelled ends, damage, other loops, forgotten ones."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import Gate, assistant, file_of, made, on_loop, user

from treering.engine import Closed, Conflict, NotFound, OutcomeUnknown, Session, StorageFull
from treering.engine.session.manager import SessionManager
from treering.engine.session.navigation import NavigationOptions


def all_free(tmp_path: Path) -> int:
    """Every session of the store can be owned; how many there are."""
    folder = tmp_path / "home/sessions"
    names = sorted(folder.glob("*.jsonl"))
    for name in names:
        Session.open(name).close()
    return len(names)


async def soon(condition: Any) -> None:
    """Wait until something holds."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")


# The queue


@on_loop
async def test_what_waits_for_room_keeps_its_place(tmp_path: Path) -> None:
    """A later call never overtakes an earlier one that has just been let in."""
    async with await made(tmp_path) as manager:
        assert manager._queue is not None
        manager._queue._bytes_max = 1000
        late: list[asyncio.Task[str]] = []

        def listen(_: str | None) -> None:
            if not late:
                late.append(asyncio.ensure_future(manager.append_message(user("late"))))

        manager.on_persist(listen)
        calls = [manager.append_message(user("x" * 900)) for _ in range(3)]
        ids = list(await asyncio.gather(*calls))
        ids.append(await late[0])
        assert [entry.id for entry in await manager.read_branch()] == ids


@on_loop
async def test_a_barrier_and_a_close_wait_for_what_waits_for_room(tmp_path: Path) -> None:
    """flush_now and close come behind everything that was handed in before them."""
    manager = await made(tmp_path)
    assert manager._queue is not None
    manager._queue._bytes_max = 1000
    tasks = [asyncio.ensure_future(manager.append_message(user("x" * 900))) for _ in range(6)]
    await asyncio.sleep(0)
    await manager.flush_now()
    assert all(task.done() for task in tasks)
    tasks = [asyncio.ensure_future(manager.append_message(user("x" * 900))) for _ in range(6)]
    await asyncio.sleep(0)
    await manager.close()
    assert len(set(await asyncio.gather(*tasks))) == 6


@on_loop
async def test_many_that_wait_are_cancelled_at_once(tmp_path: Path) -> None:
    """Thousands of cancelled tasks cost little, and nothing of them stays."""
    async with await made(tmp_path) as manager:
        queue = manager._queue
        assert queue is not None
        queue._bytes_max = 1000
        gate = await Gate(manager).closed()
        tasks = [asyncio.ensure_future(manager.append_message(user())) for _ in range(5000)]
        await asyncio.sleep(0)
        start = time.perf_counter()
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert time.perf_counter() - start < 2
        await gate.open()
        await manager.append_message(user())
        assert (queue.unfinished, queue._bytes, len(await manager.read_entries())) == (0, 0, 1)


@on_loop
async def test_a_mistake_in_one_job_is_told_to_its_caller_alone(tmp_path: Path) -> None:
    """Neighbours in the same grab are written and acknowledged."""
    async with await made(tmp_path) as manager:
        gate = await Gate(manager).closed()
        calls = [
            manager.append_message(user("a")),
            manager._do(lambda session: 1 // 0),
            manager.append_message(user("b")),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        await gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[1], ZeroDivisionError)
        path = [entry.id for entry in await manager.read_branch()]
        assert path == [answers[0], answers[2]]


@on_loop
async def test_a_repeat_is_answered_although_its_neighbour_found_no_room(tmp_path: Path) -> None:
    """What is durable stays acknowledged; only what is new was refused; errors are each one's."""
    async with await made(tmp_path) as manager:
        entry = {"type": "custom", "customType": "x", "id": "own"}
        await manager.append(entry)
        session = manager._source.reads
        assert isinstance(session, Session)
        write = session._writer._write

        def full(pieces: list[bytes]) -> None:
            session._writer._write = write  # type: ignore[method-assign]
            raise StorageFull("no space")

        gate = await Gate(manager).closed()
        calls = [manager.append_message(user()), manager.append(entry)]
        tasks = [asyncio.ensure_future(call) for call in [*calls, manager.append_message(user())]]
        await asyncio.sleep(0)
        session._writer._write = full  # type: ignore[method-assign]
        await gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], StorageFull)
        assert answers[1] == "own"
        assert isinstance(answers[2], StorageFull)
        assert answers[0] is not answers[2]


@on_loop
async def test_an_interrupted_write_is_unknown_and_says_of_what(tmp_path: Path) -> None:
    """No memory at the sync: each caller is told its own entry, which recovery then finds."""
    async with await made(tmp_path) as manager:
        session = manager._source.reads
        assert isinstance(session, Session)

        def fail() -> None:
            raise MemoryError

        gate = await Gate(manager).closed()
        tasks = [asyncio.ensure_future(manager.append_message(user(str(n)))) for n in range(2)]
        await asyncio.sleep(0)
        session._writer._sync = fail  # type: ignore[assignment,method-assign]
        await gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        ids = [answer.entry_ids for answer in answers if isinstance(answer, OutcomeUnknown)]
        assert [len(named) for named in ids] == [1, 1]
        await manager.recover()
        assert [entry.id for entry in await manager.read_entries()] == [ids[0][0], ids[1][0]]


# Ends and switches


@on_loop
async def test_a_cancelled_close_goes_on(tmp_path: Path) -> None:
    """A timeout at the end leaves no session owned; the next close waits for the same end."""
    manager = await made(tmp_path)
    gate = await Gate(manager).closed()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(manager.close(), 0.05)
    closing = asyncio.ensure_future(manager.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    await gate.open()
    await closing
    assert all_free(tmp_path) == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
@on_loop
async def test_close_beside_a_switch_leaves_nothing_owned(tmp_path: Path, turns: int) -> None:
    """Whoever comes first: afterwards no session of either is owned."""
    manager = await made(tmp_path)
    switch = asyncio.ensure_future(manager.new_session())
    for _ in range(turns):
        await asyncio.sleep(0.001)
    await manager.close()
    done = await asyncio.gather(switch, return_exceptions=True)
    assert isinstance(done[0], (str, Closed))
    assert all_free(tmp_path) in (1, 2)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
@on_loop
async def test_a_cancelled_switch_leaves_one_session_and_owns_no_other(
    tmp_path: Path, turns: int
) -> None:
    """The old one or the new one is selected, and works; closing frees everything."""
    manager = await made(tmp_path)
    switch = asyncio.ensure_future(manager.new_session())
    for _ in range(turns):
        await asyncio.sleep(0.001)
    switch.cancel()
    await asyncio.gather(switch, return_exceptions=True)
    entry_id = await manager.append_message(user())
    path = file_of(manager)
    await manager.close()
    with Session.open(path) as session:
        assert session.leaf_id == entry_id
    await asyncio.sleep(0.05)
    assert all_free(tmp_path) in (1, 2)


@on_loop
async def test_a_switch_without_a_thread_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread can be started: the old session stays selected, the new one is free."""
    async with await made(tmp_path) as manager:
        start, path = threading.Thread.start, file_of(manager)

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "treering-writer":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await manager.new_session()
        with pytest.raises(RuntimeError):
            await made(tmp_path)
        monkeypatch.undo()
        assert file_of(manager) == path
        entry_id = await manager.append_message(user())
        assert [entry.id for entry in await manager.read_entries()] == [entry_id]
    assert all_free(tmp_path) == 3


@on_loop
async def test_settings_of_a_session_go_on_in_the_next_one(tmp_path: Path) -> None:
    """Durability stays; in memory parent and depth are stated too."""
    async with await made(tmp_path, durability="os") as manager:
        await manager.new_session()
        session = manager._source.reads
        assert isinstance(session, Session)
        assert session.durability == "os"
    async with await SessionManager.in_memory("/w") as manager:
        await manager.new_session(parent_session="/p.jsonl", rlm_depth=3)
        header = manager.get_header()
        assert (header.parent_session, header.rlm_depth, header.cwd) == ("/p.jsonl", 3, "/w")


@on_loop
async def test_a_read_that_is_cancelled_holds_its_session_until_it_ends(tmp_path: Path) -> None:
    """Closing and recovering wait for the thread, not for the task."""
    async with await made(tmp_path) as manager:
        entered, leave = threading.Event(), threading.Event()

        def slow(_: Any) -> None:
            entered.set()
            leave.wait()

        reading = asyncio.ensure_future(manager._ask(slow))
        await asyncio.to_thread(entered.wait)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert manager._source.pins == 1
        with pytest.raises(Conflict):
            await manager.recover()
        leave.set()
        await soon(lambda: not manager._source.pins)
        await manager.recover()


# Damage


def damaged_status(tmp_path: Path) -> tuple[str, str]:
    """A session whose agent status is rotten; its path, and the entry above the status."""
    with Session.create("/w", home_dir=str(tmp_path / "home")) as session:
        first = session.append_message(user())
        status = session.read(session.append_agent_status({"summary": "rotten"}))
        session.append_message(assistant())
        path = session.path
    with open(path, "r+b") as file:
        data = file.read()
        file.seek(data.index(status.raw) + 5)
        file.write(b"#")
    return path, first


@on_loop
async def test_rot_in_bookkeeping_stops_neither_opening_nor_moving(tmp_path: Path) -> None:
    """What is durable is acknowledged, and the next entry hangs where the position is."""
    path, first = damaged_status(tmp_path)
    async with await SessionManager.open(path) as manager:
        assert manager.get_latest_agent_status() is None
        leaf = manager.get_leaf_id()
        await manager.branch_to(first)
        assert leaf is not None
        await manager.branch_to(leaf)
        summary = await manager.branch_with_summary(leaf, "s")
        assert manager.get_leaf_id() == summary
        entry_id = await manager.append_message(user())
        found = await manager.read_entry(entry_id)
        assert found is not None
        assert found.parent_id == summary


@on_loop
async def test_recovery_and_metadata_keep_their_order(tmp_path: Path) -> None:
    """What is acknowledged behind a recovery is counted once, and not forgotten."""
    async with await made(tmp_path) as manager:
        await manager.append_compaction("S", None, None)
        gate = await Gate(manager).closed()
        recovering = asyncio.ensure_future(manager.recover())
        await asyncio.sleep(0)
        tasks = [
            asyncio.ensure_future(manager.append_session_info("N")),
            asyncio.ensure_future(manager.append_compaction("S", None, None)),
        ]
        await asyncio.sleep(0)
        await gate.open()
        await asyncio.gather(recovering, *tasks)
        assert (manager.get_session_name(), manager.get_compaction_count()) == ("N", 2)
        assert manager.get_leaf_id() == await tasks[1]


@on_loop
async def test_an_entry_below_another_path_brings_the_status_of_that_path(tmp_path: Path) -> None:
    """An explicit parent moves the position to another branch, with its status."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        await manager.append_agent_status({"summary": "a"})
        calls = [
            manager.append({"type": "custom", "customType": "x", "parentId": first}),
            manager.append_custom_entry("y"),
        ]
        ids = await asyncio.gather(*calls)
        assert manager.get_latest_agent_status() is None
        assert manager.get_leaf_id() == ids[1]
        await manager.append({"type": "agent_status", "status": 5})
        assert manager.get_latest_agent_status() is None
        await manager.append_agent_status({"summary": "b"})
        last = await manager.append({"type": "agent_status", "status": 5})
        assert manager.get_latest_agent_status() == {"summary": "b"}
        await manager.branch_to(last)  # the same when it is read anew
        assert manager.get_latest_agent_status() == {"summary": "b"}


@on_loop
async def test_navigation_never_writes_into_another_session(tmp_path: Path) -> None:
    """The session is switched while the summary is made: Conflict, and the copy stays as it was."""
    async with await made(tmp_path) as manager:
        ids = [await manager.append_message(user(str(n))) for n in range(4)]

        async def summarise(_: Any) -> str:
            await manager.create_branched_session(ids[3])
            return "late"

        with pytest.raises(Conflict):
            await manager.navigate_tree(
                ids[0], NavigationOptions(summarize=True, summariser=summarise, label="L")
            )
        assert [entry.id for entry in await manager.read_entries()] == ids


# Other loops and processes, and forgotten managers


def test_another_loop_is_refused_and_may_close(tmp_path: Path) -> None:
    """Nothing is stored for a loop that could not be told; the session can still be let go."""

    async def begin() -> SessionManager:
        manager = await made(tmp_path)
        await manager.append_message(user())
        return manager

    async def end(manager: SessionManager) -> None:
        for call in (manager.append_message(user()), manager.flush_now()):
            with pytest.raises(Conflict):
                await call
        await manager.close()

    manager = asyncio.run(begin())
    path = file_of(manager)
    asyncio.run(end(manager))
    with Session.open(path) as session:
        assert len(session.entries()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_refused_at_once(tmp_path: Path) -> None:
    """It does not wait for a thread that it does not have."""

    async def test() -> None:
        async with await made(tmp_path) as manager:
            await manager.append_message(user())
            assert manager._queue is not None
            manager._queue._pid = -1  # as a child sees it
            for call in (manager.append_message(user()), manager.flush_now()):
                with pytest.raises(Closed):
                    await call
            manager._queue._pid = os.getpid()

    asyncio.run(test())


def test_a_forgotten_manager_lets_its_session_go(tmp_path: Path) -> None:
    """Nobody closed it, and its loop is over: the lock does not outlive it."""

    async def forget() -> str:
        manager = await made(tmp_path)
        await manager.append_message(user())
        return file_of(manager)

    path = asyncio.run(forget())
    for _ in range(200):
        gc.collect()
        if not any(thread.name == "treering-writer" for thread in threading.enumerate()):
            break
        time.sleep(0.01)
    gc.collect()
    with Session.open(path) as session:
        assert len(session.entries()) == 1


@on_loop
async def test_unknown_targets_of_attributions_are_refused_before_the_queue(tmp_path: Path) -> None:
    """Usage that is no mapping is the caller's mistake, and nobody else's."""
    async with await made(tmp_path) as manager:
        answer = await manager.append_message(assistant())
        with pytest.raises(Exception, match="mapping"):
            await manager.append_child_usage_attribution(answer, [1])
        with pytest.raises(NotFound):
            await manager.append_child_usage_attribution("nobody", {"input": 1})


# Captures


@on_loop
async def test_a_branch_scope_holds_the_branch_alone(tmp_path: Path) -> None:
    """page, search and iteration of readBranchHistory stay on the captured path."""
    async with await made(tmp_path) as manager:
        ids = [await manager.append_message(user(f"text {n}")) for n in range(100)]
        await manager.branch_to(ids[69])
        leaf = await manager.append_message(user("text end"))
        wanted = [*ids[:70], leaf]

        async def read(history: Any) -> None:
            await manager.append_message(user("text later"))
            assert [entry.id async for entry in history.iterate_entries()] == wanted
            first = await history.page()
            second = await history.page(first[-1].sequence)
            assert [entry.id for entry in first + second] == wanted
            found = await history.search("TEXT")
            assert [entry.id for entry in found] == wanted[:-17:-1]

        await manager.read_branch_history(read)


@on_loop
async def test_a_search_is_about_texts(tmp_path: Path) -> None:
    """Quotes, backslashes and line ends as they were said; names and dates of entries do not count."""
    async with await made(tmp_path) as manager:
        said = await manager.append_message(user('he said "hi" in C:\\dir\nand Straße'))

        async def read(history: Any) -> None:
            for text in ('said "hi"', "C:\\DIR\nand", "STRASSE"):
                assert [entry.id for entry in await history.search(text)] == [said]
            for text in ("parentId", said, "2026-", "nowhere"):
                assert await history.search(text) == []

        await manager.read_source_history(read)


@on_loop
async def test_a_captured_context_counts_no_later_usage(tmp_path: Path) -> None:
    """What children used after the capture is not in it."""
    async with await made(tmp_path) as manager:
        answer = await manager.append_message(assistant(usage={"input": 1, "totalTokens": 1}))
        gate = await Gate(manager).closed()
        await gate.open()
        async with manager._captured() as (_, capture):
            await manager.append_child_usage_attribution(answer, {"input": 41})
            found = capture.context(answer, None, None).to_list()
            assert found[0]["usage"]["input"] == 1
        now = await manager.read_session_context(answer)
        assert now.to_list()[0]["usage"]["input"] == 42
