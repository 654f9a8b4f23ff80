"""SessionManager: order, acknowledgement, cancellation, metadata, captured reads, switching."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import Gate, Make, assistant, on_loop, user

from treering.engine import (
    Closed,
    Conflict,
    InvalidEntry,
    LimitExceeded,
    NotFound,
    ReadOnly,
    Session,
    SessionView,
    Unsupported,
)
from treering.engine.session.capture import ReadLimits
from treering.engine.session.manager import SessionManager
from treering.engine.session.write_queue import WriteQueue


@pytest.fixture(params=["file", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes managers that behave alike, with and without a file."""
    if request.param == "memory":
        return lambda: SessionManager.in_memory("/w")
    return lambda: SessionManager.create("/w", home_dir=str(tmp_path / "home"))


# Appending


@on_loop
async def test_every_append_makes_the_documented_entry_below_the_one_before(make: Make) -> None:
    """Tree: parent chain for each append kind, leaf after each."""
    async with await make() as manager:
        first = await manager.append_message(user())
        calls: list[tuple[str, Any]] = [
            ("message", manager.append_message(assistant())),
            ("thinking_level_change", manager.append_thinking_level_change("high")),
            ("service_tier_change", manager.append_service_tier_change("priority")),
            ("model_change", manager.append_model_change("p", "m2")),
            ("compaction", manager.append_compaction("S", first, 5, {"readFiles": []})),
            ("custom", manager.append_custom_entry("mine", {"n": 1})),
            ("custom_message", manager.append_custom_message_entry("mine", "t", display=True)),
            ("session_info", manager.append_session_info("  Name ")),
            ("session_state", manager.append_session_state("archived")),
            ("agent_status", manager.append_agent_status({"summary": "busy"})),
            ("git_state", manager.append_git_state({"branch": "main"})),
            ("label", manager.append_label_change(first, "L")),
            (
                "tool_intent",
                manager.append_tool_invocation("e1", {"toolName": "t"}, {"entryId": first}),
            ),
            ("message", manager.append_tool_exchange("e1", {"role": "toolResult"}, {})),
        ]
        before = first
        for kind, call in calls:
            entry_id = await call
            found = await manager.read_entry(entry_id)
            assert found is not None
            assert (found.type, found.parent_id) == (kind, before)
            assert manager.get_leaf_id() == entry_id
            before = entry_id
        assert manager.get_session_name() == "Name"
        assert manager.get_session_state() == "archived"
        assert manager.get_latest_agent_status() == {"summary": "busy"}
        assert manager.get_git_state() == {"branch": "main"}
        assert manager.get_compaction_count() == 1
        assert len(await manager.read_branch()) == 1 + len(calls)


@on_loop
async def test_appends_that_nobody_awaited_yet_chain_in_the_order_of_the_calls(make: Make) -> None:
    """Parents are taken at the turn, not at the call."""
    async with await make() as manager:
        ids = await asyncio.gather(*(manager.append_message(user(str(n))) for n in range(200)))
        path = await manager.read_branch()
        assert [entry.id for entry in path] == list(ids)
        assert [entry.parent_id for entry in path[1:]] == list(ids[:-1])


@on_loop
async def test_what_the_caller_does_to_the_object_later_has_no_effect(make: Make) -> None:
    """The entry is a snapshot of the moment of the call, also while the queue is held up."""
    async with await make() as manager:
        gate = await Gate(manager).closed()
        message = user("before")
        waiting = asyncio.ensure_future(manager.append_message(message))
        await asyncio.sleep(0)
        message["content"] = "after"
        await gate.open()
        found = await manager.read_entry(await waiting)
        assert found is not None
        assert b"before" in found.raw


@on_loop
async def test_one_bad_entry_among_many_is_refused_alone(make: Make) -> None:
    """What waits together is written together; a refusal is for its own caller."""
    async with await make() as manager:
        gate = await Gate(manager).closed()
        calls = [
            manager.append_message(user("a")),
            manager.append_label_change("nobody", "L"),
            manager.append_compaction("S", "nobody", None),
            manager.append({"type": "custom", "customType": "x", "id": "own"}),
            manager.append({"type": "custom", "customType": "y", "id": "own"}),
            manager.append({"type": "custom", "customType": "x", "id": "own"}),
            manager.append_message(user("b")),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        await gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = [answer if isinstance(answer, str) else type(answer) for answer in answers]
        assert kinds[1:3] == [NotFound, NotFound]
        assert kinds[3:6] == ["own", Conflict, "own"]
        path = [entry.id for entry in await manager.read_branch()]
        assert path == [answers[0], "own", answers[6]]


@on_loop
async def test_refused_before_anything_is_queued(make: Make) -> None:
    """Bad values never reach the writer."""
    async with await make() as manager:
        with pytest.raises(InvalidEntry):
            await manager.append_message({"role": "user", "content": float("nan")})
        with pytest.raises(InvalidEntry):
            await manager.append_thinking_level_change(3)  # type: ignore[arg-type]
        with pytest.raises(InvalidEntry):
            await manager.append({"type": "message", "requestOutput": {}})
        with pytest.raises(InvalidEntry):
            await manager.append_child_usage_attribution("x", {}, None, "nowhere")
        assert manager.get_leaf_id() is None
        assert await manager.read_entries() == []


@on_loop
async def test_position_and_metadata_move_at_the_acknowledgement_then_listeners(make: Make) -> None:
    """A frontend never shows what is not stored, and hears before the caller goes on."""
    async with await make() as manager:
        heard: list[tuple[str | None, str | None, str | None]] = []
        end = manager.on_persist(
            lambda path: heard.append((path, manager.get_leaf_id(), manager.get_session_name()))
        )
        gate = await Gate(manager).closed()
        waiting = asyncio.ensure_future(manager.append_session_info("N"))
        await asyncio.sleep(0.01)
        assert (manager.get_leaf_id(), manager.get_session_name()) == (None, None)
        await gate.open()
        entry_id = await waiting
        assert heard == [(manager.get_session_file(), entry_id, "N")]
        end()
        end()
        await manager.append_message(user())
        assert len(heard) == 1


@on_loop
async def test_a_listener_that_fails_fails_no_append(make: Make) -> None:
    """Its error goes to the exception handler of the loop; later listeners are still told."""
    seen: list[Any] = []
    heard: list[str | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    def fail(_: str | None) -> None:
        raise ValueError("a mistake")

    async with await make() as manager:
        manager.on_persist(fail)
        manager.on_persist(heard.append)
        await manager.append_message(user())
    assert len(heard) == 1
    assert [str(context["exception"]) for context in seen] == ["a mistake"]


@on_loop
async def test_cancelled_before_its_turn_nothing_is_written(make: Make) -> None:
    """A task that is cancelled while its entry waits leaves no trace; its neighbours stay."""
    async with await make() as manager:
        gate = await Gate(manager).closed()
        tasks = [asyncio.ensure_future(manager.append_message(user(str(n)))) for n in range(10)]
        await asyncio.sleep(0.01)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        await gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        kept = [answer for answer in answers if isinstance(answer, str)]
        assert len(kept) == 5
        assert [entry.id for entry in await manager.read_branch()] == kept


@on_loop
async def test_cancelled_after_its_turn_it_is_written_whole(make: Make) -> None:
    """What the writer has taken is stored, whatever becomes of the task; the queue goes on."""
    async with await make() as manager:
        gate = Gate(manager)
        task = asyncio.ensure_future(manager.append_message(user("kept")))
        await gate.closed()
        blocked = threading.Event()
        session = manager._source.reads
        assert isinstance(session, Session)
        write = session._writer._write

        def slow(pieces: list[bytes]) -> None:
            blocked.wait()
            write(pieces)

        session._writer._write = slow  # type: ignore[method-assign]
        opening = asyncio.ensure_future(gate.open())
        await asyncio.sleep(0.05)
        task.cancel()
        blocked.set()
        await opening
        with pytest.raises(asyncio.CancelledError):
            await task
        await manager.flush_now()
        assert [b"kept" in entry.raw for entry in await manager.read_entries()] == [True]
        assert manager.get_leaf_id() is not None


@on_loop
async def test_a_full_queue_lets_tasks_wait_in_their_order(make: Make) -> None:
    """Back-pressure is waiting, first come first served; nothing is refused, nothing overtakes."""
    async with await make() as manager:
        queue = manager._queue
        assert queue is not None
        queue._bytes_max = 3000
        gate = await Gate(manager).closed()
        tasks = [
            asyncio.ensure_future(manager.append_message(user("x" * (1000 if n % 3 else 5000))))
            for n in range(30)
        ]
        await asyncio.sleep(0.01)
        assert len(queue._waiting) > 25
        tasks[7].cancel()
        tasks[29].cancel()
        await gate.open()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        kept = [answer for answer in answers if isinstance(answer, str)]
        assert len(kept) == 28
        assert [entry.id for entry in await manager.read_branch()] == kept
        assert (queue._bytes, queue.unfinished) == (0, 0)


@on_loop
async def test_64_tasks_keep_their_own_order(make: Make) -> None:
    """Every acknowledged entry is there, and those of one task stand in its order."""
    async with await make() as manager:

        async def task(name: int) -> list[str]:
            return [await manager.append_message(user(f"{name}:{n}")) for n in range(20)]

        found = await asyncio.gather(*(task(name) for name in range(64)))
        place = {entry.id: n for n, entry in enumerate(await manager.read_branch())}
        assert len(place) == 64 * 20
        for ids in found:
            places = [place[entry_id] for entry_id in ids]
            assert places == sorted(places)


# Branches and summaries


@on_loop
async def test_branches(make: Make) -> None:
    """branchTo, unknown ids, null, and a summary below an entry or before any."""
    async with await make() as manager:
        first = await manager.append_message(user("1"))
        second = await manager.append_message(assistant())
        await manager.branch_to(first)
        assert manager.get_leaf_id() == first
        with pytest.raises(NotFound):
            await manager.branch_to("nobody")
        assert manager.get_leaf_id() == first
        summary = await manager.branch_with_summary(second, "left", {"readFiles": []})
        found = await manager.read_entry(summary)
        assert found is not None
        assert found.parent_id == second
        assert b'"fromId":"%s"' % second.encode() in found.raw
        assert manager.get_leaf_id() == summary
        root = await manager.branch_with_summary(None, "left")
        found = await manager.read_entry(root)
        assert found is not None
        assert (found.parent_id, b'"fromId":"root"' in found.raw) == (None, True)
        with pytest.raises(NotFound):
            await manager.branch_with_summary("nobody", "x")
        await manager.branch_to(None)
        assert manager.get_leaf_id() is None
        assert await manager.read_leaf_entry() is None


@on_loop
async def test_status_and_git_state_are_those_of_the_path(make: Make) -> None:
    """Git state: per branch; a move of the position reads them anew; names are of the whole."""
    async with await make() as manager:
        first = await manager.append_message(user("1"))
        await manager.append_git_state({"branch": "one"})
        await manager.append_agent_status({"summary": "a"})
        await manager.append_session_info("N")
        await manager.append_compaction("S", None, None)
        await manager.branch_to(first)
        assert manager.get_git_state() is None
        assert manager.get_latest_agent_status() is None
        assert (manager.get_session_name(), manager.get_compaction_count()) == ("N", 1)
        await manager.append_git_state({"branch": "two"})
        assert manager.get_git_state() == {"branch": "two"}


@on_loop
async def test_usage_of_children(make: Make) -> None:
    """Without an aggregate the child's figures are added; totalTokens stays the message's own."""
    async with await make() as manager:
        own = {"input": 10, "output": 5, "totalTokens": 15, "cost": {"total": 0.5}}
        asked = await manager.append_message(user())
        target = await manager.append_message(assistant(usage=own))
        child = {"input": 1, "output": 2, "totalTokens": 3, "cost": {"total": 0.25}}
        _, first = await manager.append_child_usage_attribution_with_aggregate(target, child)
        assert (first["input"], first["output"], first["totalTokens"]) == (11, 7, 15)
        assert first["cost"]["total"] == 0.75
        both = [manager.append_child_usage_attribution(target, child) for _ in range(2)]
        ids = await asyncio.gather(*both)
        last = await manager.read_entry(ids[1])
        assert last is not None
        assert b'"input":13' in last.raw
        for wrong in (asked, "nobody"):
            with pytest.raises(NotFound):
                await manager.append_child_usage_attribution(wrong, child)


# Metadata


PREFIX = ("append_model_change", "append_thinking_level_change", "append_service_tier_change")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((), False),
        ((0,), False),
        ((0, 1, 2), False),
        ((1, 2), False),
        ((0, 2), False),
        ((1, 0), True),
        ((0, 0), True),
        ((0, 1, 2, 1), True),
        ((0, "status"), False),
        ((0, "status", 1), False),
        (("message",), True),
        ((0, 1, "label"), True),
    ],
)
@on_loop
async def test_user_content_is_more_than_the_defaults_of_a_new_session(
    tmp_path: Path, calls: tuple[int | str, ...], expected: bool
) -> None:
    """hasUserContent prefix rule matrix, kept up and read anew."""
    async with await SessionManager.create("/w", home_dir=str(tmp_path / "home")) as manager:
        first = ""
        for call in calls:
            if call == "status":
                await manager.append_agent_status({"summary": "s"})
            elif call == "message":
                await manager.append_message(user())
            elif call == "label":
                await manager.append_label_change(first, "L")
            else:
                arguments = ("p", "m") if call == 0 else ("x",)
                first = await getattr(manager, PREFIX[int(call)])(*arguments)
        assert manager.has_user_content() is expected
        path = manager.get_session_file()
    assert path is not None
    async with await SessionManager.open_read_only(path) as view:
        assert view.has_user_content() is expected


@on_loop
async def test_states_read_as_documented(make: Make) -> None:
    """State: legacy sleep and hidden, unknown newest -> earlier valid."""
    async with await make() as manager:
        assert manager.get_session_state() is None
        for given, shown in (
            ("sleep", "archived"),
            ("crash", "crash"),
            ("hidden", "archived"),
            ("active", "active"),
            ("strange", "active"),
        ):
            await manager.append_session_state(given)
            assert manager.get_session_state() == shown
        await manager.append_session_info("  ")
        assert manager.get_session_name() is None


@on_loop
async def test_metadata_is_there_again_after_opening(tmp_path: Path) -> None:
    """Position, name, state, status, counts come from the journal, not from this object."""
    async with await SessionManager.create("/w", home_dir=str(tmp_path / "home")) as manager:
        first = await manager.append_message(user())
        await manager.append_session_info("N")
        await manager.append_session_state("archived")
        await manager.append_session_state("strange")
        await manager.append_agent_status({"summary": "s"})
        await manager.append_compaction("S", first, 3)
        path, leaf = manager.get_session_file(), manager.get_leaf_id()
        facts = manager.get_header(), manager.get_cwd(), manager.get_session_id()
    assert path is not None
    for opening in (SessionManager.open, SessionManager.open_read_only):
        async with await opening(path) as again:
            assert again.get_leaf_id() == leaf
            assert again.get_session_name() == "N"
            assert again.get_session_state() == "archived"
            assert again.get_latest_agent_status() == {"summary": "s"}
            assert again.get_compaction_count() == 1
            assert (again.get_header(), again.get_cwd(), again.get_session_id()) == facts
            assert again.get_session_dir() == os.path.dirname(path)
            assert again.is_persisted()
            artifacts = again.get_session_artifact_dir()
            assert artifacts == str(tmp_path / "home/session-artifacts" / facts[2])


# Reads


@on_loop
async def test_a_captured_read_never_sees_later_appends(make: Make) -> None:
    """Appends, labels and moves during the callback are invisible to it."""
    async with await make() as manager:
        first = await manager.append_message(user("one"))
        await manager.append_label_change(first, "old")
        leaf = manager.get_leaf_id()

        async def read(history: Any) -> None:
            await manager.append_label_change(first, "new")
            late = await manager.append_message(user("two"))
            await manager.branch_to(first)
            assert history.source.leaf_id == leaf
            assert await history.get(late) is None
            assert await history.label(first) == "old"
            assert [entry.id async for entry in history.iterate_entries()] == [first, leaf]
            assert len(await history.page()) == 2
            assert await history.search("two") == []
            assert [entry.id for entry in await history.search("ONE")] == [first]
            assert [entry.id for entry in await history.parent_path()] == [first, leaf]
            whole = await history.materialize(ReadLimits())
            assert len(whole.entries) == 2
            with pytest.raises(LimitExceeded):
                await history.page(limit=65)
            with pytest.raises(LimitExceeded):
                await history.search("x", limit=17)
            kept.append(history)

        kept: list[Any] = []
        await manager.read_source_history(read)
        await manager.append_message(user("three"))
        await manager.read_branch_history(_nothing)
        with pytest.raises(Closed):
            await kept[0].page()
        assert await manager.read_label(first) == "new"


async def _nothing(_: Any) -> None:
    return None


@on_loop
async def test_limits_refuse_whole_and_exactly(make: Make) -> None:
    """Exactly at the limit passes, one more fails; what paths share counts once."""
    async with await make() as manager:
        ids = [await manager.append_message(user(str(n))) for n in range(5)]
        await manager.branch_to(ids[1])
        other = await manager.append_message(user("other"))
        assert len(await manager.read_entries(ReadLimits(6))) == 6
        with pytest.raises(LimitExceeded) as caught:
            await manager.read_entries(ReadLimits(5))
        assert caught.value.limit == 5
        found = await manager.read_branches([ids[4], other, None], ReadLimits(6))
        assert [len(path) for path in found.branches] == [5, 3, 0]
        assert found.branches[0][0] is found.branches[1][0]
        with pytest.raises(LimitExceeded):
            await manager.read_branches([ids[4], other], ReadLimits(5))
        size = found.source_bytes
        assert (
            len((await manager.read_branches([ids[4], other], ReadLimits(6, size))).branches) == 2
        )
        with pytest.raises(LimitExceeded):
            await manager.read_branches([ids[4], other], ReadLimits(6, size - 1))
        with pytest.raises(LimitExceeded):
            await manager.read_entry(ids[0], 10)
        whole = await manager.materialize_source_history(ReadLimits())
        path = await manager.materialize_parent_path_history(ids[4], ReadLimits())
        assert (len(whole.entries), len(path.entries)) == (6, 5)
        assert path.source_bytes < whole.source_bytes == size


@on_loop
async def test_reads_of_what_is_not_there(make: Make) -> None:
    """Unknown ids: None, or a typed error where a path or a mark was asked for."""
    async with await make() as manager:
        first = await manager.append_message(user())
        assert await manager.read_entry("nobody") is None
        assert await manager.read_label("nobody") is None
        assert await manager.read_label(first) is None
        assert await manager.read_entry_retention(first) is None
        with pytest.raises(NotFound):
            await manager.read_entry_retention("nobody")
        with pytest.raises(NotFound):
            await manager.read_branch("nobody")
        assert await manager.read_branch(None) == []
        assert len(await manager.read_entries_page()) == 1
        assert len(await manager.read_branch_page()) == 1
        assert len(await manager.read_children_page(None)) == 1
        assert await manager.read_labels_page() == []


# Resident reads


@on_loop
async def test_synchronous_reads_need_a_resident_view(tmp_path: Path) -> None:
    """On an owned session each refuses and names the call to await; a view and memory answer."""
    async with await SessionManager.create("/w", home_dir=str(tmp_path / "home")) as manager:
        first = await manager.append_message(user())
        path = manager.get_session_file()
        for call, instead in (
            (lambda: manager.get_entry(first), "read_entry"),
            (manager.get_leaf_entry, "read_leaf_entry"),
            (manager.get_entries, "read_entries"),
            (manager.get_branch, "read_branch"),
            (lambda: manager.get_children(None), "read_children_page"),
            (lambda: manager.get_label(first), "read_label"),
            (lambda: manager.get_entry_retention(first), "read_entry_retention"),
            (lambda: manager.branch(first), "branch_to"),
            (manager.reset_leaf, "branch_to"),
        ):
            with pytest.raises(Unsupported, match=instead):
                call()
    assert path is not None
    async with await SessionManager.open_read_only(path) as view:
        assert [entry.id for entry in view.get_entries()] == [first]
        for refused in (lambda: view.branch(first), view.reset_leaf):
            with pytest.raises(ReadOnly):
                refused()


@on_loop
async def test_resident_reads_of_a_session_in_memory() -> None:
    """getEntry, getBranch, getChildren, getLabel, branch, resetLeaf."""
    async with await SessionManager.in_memory("/w", "/named") as manager:
        assert (manager.get_session_file(), manager.get_session_dir()) == (None, "/named")
        assert (manager.is_persisted(), manager.get_session_artifact_dir()) == (False, None)
        assert not manager.supports_captured_history_reads()
        assert manager.get_leaf_entry() is None
        ids = [await manager.append_message(user(str(n))) for n in range(300)]
        await manager.append_git_state({"branch": "main"})
        assert manager.get_entry("nobody") is None
        assert [entry.id for entry in manager.get_branch(ids[2])] == ids[:3]
        assert manager.get_branch(None) == []
        assert len(manager.get_branch()) == 301
        manager.branch(ids[0])
        assert (manager.get_leaf_id(), manager.get_git_state()) == (ids[0], None)
        twins = [await manager.append_label_change(ids[0], "L") for _ in range(2)]
        manager.branch(ids[0])
        third = await manager.append_message(user())
        assert [entry.id for entry in manager.get_children(ids[0])] == [ids[1], twins[0], third]
        assert manager.get_label(ids[0]) == "L"
        assert manager.get_label("nobody") is None
        assert manager.get_entry_retention(third) is None
        manager.reset_leaf()
        assert manager.get_leaf_id() is None
        assert [entry.parent_id for entry in manager.get_children(None)] == [None]
        waiting = asyncio.ensure_future(manager.append_message(user()))
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            manager.branch(ids[0])
        await waiting


# Views, switching, closing


@on_loop
async def test_a_view_reads_and_changes_nothing(tmp_path: Path) -> None:
    """Every mutation of a read-only view is refused by name; two views beside an owner work."""
    async with await SessionManager.create("/w", home_dir=str(tmp_path / "home")) as manager:
        await manager.append_message(user())
        path = manager.get_session_file()
        assert path is not None
        async with await SessionManager.open_read_only(path) as view:
            assert len(await view.read_entries()) == 1
            assert not view.supports_captured_history_reads()
            for call in (
                view.append_message(user()),
                view.branch_to(None),
                view.branch_with_summary(None, "s"),
                view.append_child_usage_attribution("x", {}),
                view.new_session(),
                view.recover(),
            ):
                with pytest.raises(ReadOnly):
                    await call
        assert manager.supports_captured_history_reads()


@on_loop
async def test_a_switch_keeps_captures_of_the_old_session(make: Make) -> None:
    """The old source stays open until the read that pins it has ended, and is closed then."""
    async with await make() as manager:
        await manager.append_message(user("old"))
        old = manager._source
        id_before, path_before = manager.get_session_id(), manager.get_session_file()

        async def read(history: Any) -> int:
            path = await manager.new_session(parent_session="/p.jsonl")
            assert path == manager.get_session_file() != path_before or old.in_memory
            assert manager.get_session_id() != id_before
            assert manager.get_leaf_id() is None
            await manager.append_message(user("new"))
            await asyncio.sleep(0.05)
            assert not old.reads._closed
            return len((await history.materialize(ReadLimits())).entries)

        assert await manager.read_branch_history(read) == 1
        assert [b"new" in entry.raw for entry in await manager.read_entries()] == [True]
    assert old.reads._closed


@on_loop
async def test_another_file_is_selected(tmp_path: Path) -> None:
    """setSessionFile: the open one is only flushed; a failure leaves the old one selected."""
    home = str(tmp_path / "home")
    with Session.create("/other", home_dir=home, session_id="other") as session:
        session.append_message(user("there"))
        path = session.path
    async with await SessionManager.create("/w", home_dir=home) as manager:
        await manager.append_message(user())
        own = manager.get_session_file()
        assert own is not None
        await manager.set_session_file(own)
        with pytest.raises(NotFound):
            await manager.set_session_file(str(tmp_path / "home/sessions/none.jsonl"))
        assert manager.get_session_file() == own
        await manager.append_message(user())
        await manager.set_session_file(path)
        assert (manager.get_session_id(), manager.get_cwd()) == ("other", "/other")
        assert len(await manager.read_entries()) == 1
        with Session.open(own) as free:
            assert len(free.entries()) == 2


@on_loop
async def test_close_drains_and_is_idempotent(make: Make) -> None:
    """Everything that was queued is acknowledged; afterwards every call refuses."""
    manager = await make()
    tasks = [asyncio.ensure_future(manager.append_message(user(str(n)))) for n in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(manager.close(), manager.close())
    assert len(set(await asyncio.gather(*tasks))) == 50
    await manager.close()
    for call in (
        manager.append_message(user()),
        manager.read_entries(),
        manager.branch_to(None),
        manager.flush_now(),
        manager.new_session(),
    ):
        with pytest.raises(Closed):
            await call


@on_loop
async def test_a_new_owner_follows_a_closed_manager(tmp_path: Path) -> None:
    """Closing gives the lock back and leaves a clean end."""
    async with await SessionManager.create("/w", home_dir=str(tmp_path / "home")) as manager:
        await manager.append_message(user())
        path = manager.get_session_file()
    assert path is not None
    with SessionView.open(path) as view:
        assert view.report.case == "A"
    with Session.open(path) as session:
        assert len(session.entries()) == 1


@on_loop
async def test_a_mistake_in_the_writer_is_told_to_who_waits() -> None:
    """No task waits for ever because the runner failed in a way that nobody foresaw."""

    def run(jobs: list[Any]) -> None:
        raise ZeroDivisionError(len(jobs))

    queue = WriteQueue(run, lambda jobs: None)
    with pytest.raises(ZeroDivisionError):
        await queue.run("work")
    await queue.end()
    with pytest.raises(Closed):
        await queue.run("work")


@on_loop
async def test_an_import_is_owned_and_a_preview_creates_nothing(tmp_path: Path) -> None:
    """importRetainedFrom, previewRetainedImport: every entry is marked, what the source claims of
    its own life is history; a preview creates nothing, not even the folder of the store."""
    source = tmp_path / "old.jsonl"
    source.write_text(
        '{"type":"session","version":3,"id":"old","cwd":"/w"}\n'
        '{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"x"}}\n'
        '{"type":"session_state","id":"b","parentId":"a","state":{"status":"archived"}}\n'
    )
    home = str(tmp_path / "home")
    preview = await SessionManager.preview_retained_import(source, "/new", home_dir=home)
    assert (preview.prepared_entry_count, os.path.exists(home)) == (2, False)
    async with await SessionManager.import_retained_from(source, "/new", home_dir=home) as manager:
        assert (manager.get_cwd(), manager.get_leaf_id()) == ("/new", "b")
        assert await manager.read_entry_retention("a") == "retained-import"
        # What the source claimed of its own life is history; this session is a new one.
        assert manager.get_session_state() is None
        await manager.append_session_state("archived")
        assert manager.get_session_state() == "archived"
