"""Links from entries to the requests that they came from: what gets one, and what does not."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import assistant, file_of, ids, made, on_loop, owned, user

from treering.engine import (
    Conflict,
    Invalid,
    InvalidEntry,
    NavigationOptions,
    SessionManager,
    StorageFull,
    SummaryRequest,
    SummaryResult,
)
from treering.engine.session.captured import CapturedSource, Operation
from treering.engine.session.output_links import OutputLink


async def asked(
    captured: CapturedSource, purpose: Any = "main", detail: str | None = None, attempts: int = 1
) -> Operation:
    """An operation with requests that were answered."""
    operation = captured.operation(purpose, detail)
    for _ in range(attempts):
        attempt = await operation.admit({"api": "x"})
        await operation.settle(attempt, {"outcome": "completed", "usage": {"input": 1}})
    return operation


async def link_of(captured: CapturedSource, *arguments: Any, **more: Any) -> OutputLink:
    link = (await asked(captured, *arguments, **more)).output_link()
    assert link is not None
    return link


async def stored(manager: SessionManager, entry_id: str) -> dict[str, Any]:
    entry = await manager.read_entry(entry_id)
    assert entry is not None
    assert entry.qualification is None
    found: dict[str, Any] = json.loads(entry.raw)
    return found


@on_loop
async def test_an_answer_carries_the_link_of_its_request(tmp_path: Path) -> None:
    """Operation, attempts in order and source stand beside the message, which stays as it was; the
    position may have moved on by appends."""
    async with await made(tmp_path) as manager:
        await manager.append_message(user())
        async with manager.capture() as captured:
            operation = await asked(captured, attempts=2)
            link = operation.output_link()
            assert link is not None
            assert link.linked_entry_id is None
            await manager.append_custom_entry("between")
            answer = await manager.append_message(assistant(), link=link)
        assert link.linked_entry_id == answer == manager.get_leaf_id()
        entry = await stored(manager, answer)
        assert entry["message"] == assistant()
        assert entry["requestOutput"] == {
            "operationId": operation.id,
            "attemptIds": list(operation._open),
            "source": captured.source.as_json(),
        }
        path, source = file_of(manager), captured.source
    async with await SessionManager.open(path) as manager:
        assert (await stored(manager, answer))["requestOutput"]["source"] == source.as_json()


@on_loop
async def test_a_link_is_used_once(tmp_path: Path) -> None:
    """A second append with it is the same append without it, and so is one in another session."""
    async with await made(tmp_path) as manager, await made(tmp_path) as other:
        async with manager.capture() as captured:
            link = await link_of(captured)
            elsewhere = await other.append_message(assistant(), link=link)
            assert link.linked_entry_id is None
            first = await manager.append_message(assistant(), link=link)
            second = await manager.append_message(assistant(), link=link)
        assert link.linked_entry_id == first
        assert "requestOutput" in await stored(manager, first)
        assert "requestOutput" not in await stored(manager, second)
        assert "requestOutput" not in await stored(other, elsewhere)


@on_loop
async def test_a_jump_to_another_branch_makes_links_stale(tmp_path: Path) -> None:
    """Also when the position came back; an append to the same branch does not."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        leaf = await manager.append_message(assistant())

        async def there_and_back() -> None:
            await manager.branch_to(first)
            await manager.branch_to(leaf)

        async def elsewhere() -> None:
            await manager.append({"type": "custom", "customType": "c", "parentId": first})

        async def switched() -> None:
            path = file_of(manager)
            await manager.new_session()
            await manager.set_session_file(path)

        for move in (there_and_back, elsewhere, manager.recover, switched):
            link = None
            async with manager.capture() as captured:
                operation = await asked(captured)
                link = operation.output_link()
                if move not in (manager.recover, switched):
                    await move()
            if move in (manager.recover, switched):
                await move()
            answer = await manager.append_message(assistant(), link=link)
            assert link is not None
            assert link.linked_entry_id is None
            assert "requestOutput" not in await stored(manager, answer)
            await manager.branch_to(leaf)
        async with manager.capture() as captured:
            link = await link_of(captured)
            await manager.branch_to(manager.get_leaf_id())  # stays where it is
            await manager.append_message(assistant(), link=link)
            assert link.linked_entry_id is not None


@on_loop
async def test_a_compaction_has_a_link_for_each_part(tmp_path: Path) -> None:
    """In the order that they were given in, each with its part; other members as ever."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            links = [
                ("history", await link_of(captured, "summary", "compaction")),
                ("turn-prefix", await link_of(captured, "summary", "compaction-turn-prefix")),
            ]
            done = await manager.append_compaction("sum", first, 7, {"d": 1}, links=links)
        entry = await stored(manager, done)
        assert [output["part"] for output in entry["requestOutputs"]] == ["history", "turn-prefix"]
        assert (entry["summary"], entry["tokensBefore"], entry["details"]) == ("sum", 7, {"d": 1})
        assert {link.linked_entry_id for _, link in links} == {done}
        async with manager.capture() as captured:
            used = links[0]
            fresh = ("turn-prefix", await link_of(captured, "summary", "compaction-turn-prefix"))
            with pytest.raises(Invalid, match="one capture"):
                await manager.append_compaction("s", first, 7, links=[used, fresh])
            alone = await manager.append_compaction("s", first, 7, links=[fresh])
        assert len((await stored(manager, alone))["requestOutputs"]) == 1


@on_loop
async def test_a_compaction_whose_position_moved_is_refused_whole(tmp_path: Path) -> None:
    """No compaction without its links is written in its place."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            links = [("history", await link_of(captured, "summary", "compaction"))]
            await manager.append_message(assistant())
            before = len(await manager.read_entries())
            with pytest.raises(Conflict):
                await manager.append_compaction("s", first, 1, links=links)
            assert len(await manager.read_entries()) == before
        async with await made(tmp_path) as other:
            with pytest.raises(Conflict):
                await other.append_compaction("s", None, 1, links=links)


@on_loop
async def test_a_branch_summary_has_the_link_of_the_branch_that_is_left(tmp_path: Path) -> None:
    """Its source is the abandoned position; parent and fromId are the destination."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        left = await manager.append_message(assistant())
        async with manager.capture() as captured:
            link = await link_of(captured, "summary", "branch")
            done = await manager.branch_with_summary(first, "was there", link=link)
        entry = await stored(manager, done)
        assert entry["requestOutput"]["source"]["leafId"] == left
        assert (entry["parentId"], entry["fromId"]) == (first, first)
        assert manager.get_leaf_id() == done
        async with manager.capture() as captured:
            link = await link_of(captured, "summary", "branch")
            done = await manager.branch_with_summary(None, "from the root", link=link)
        entry = await stored(manager, done)
        assert (entry["parentId"], entry["fromId"]) == (None, "root")
        assert link.linked_entry_id == done


@on_loop
async def test_a_summary_of_navigation_has_its_link(tmp_path: Path) -> None:
    """The summariser hands it over with its text; a link that does not fit writes nothing."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        await manager.append_message(assistant("words to be summarised"))

        def summariser(detail: str) -> Any:
            async def summarise(_: SummaryRequest) -> SummaryResult:
                async with manager.capture() as captured:
                    link = await link_of(captured, "summary", detail)
                return SummaryResult("what was said", link=link)

            return summarise

        leaf = manager.get_leaf_id()
        wrong = NavigationOptions(summarize=True, summariser=summariser("compaction"))
        with pytest.raises(Invalid):
            await manager.navigate_tree(first, wrong)
        assert manager.get_leaf_id() == leaf
        right = NavigationOptions(summarize=True, summariser=summariser("branch"))
        done = await manager.navigate_tree(first, right)
        assert done.summary_entry_id is not None
        entry = await stored(manager, done.summary_entry_id)
        assert entry["requestOutput"]["source"]["leafId"] == leaf


@on_loop
async def test_a_refinement_has_the_link_of_its_planner(tmp_path: Path) -> None:
    """Beside the data, never inside; a rollback has none."""
    async with await made(tmp_path) as manager:
        async with manager.capture() as captured:
            link = await link_of(captured, "refine", "plan")
            with pytest.raises(Invalid):
                await manager.append_refinement({"id": "r", "rollbackOf": None}, link=link)
            with pytest.raises(Invalid):
                await manager.append_refinement("text", link=link)
            done = await manager.append_refinement({"id": "r", "edits": []}, link=link)
        entry = await stored(manager, done)
        assert entry["data"] == {"id": "r", "edits": []}
        assert entry["customType"] == "prime-agent.refinement"
        assert entry["plannerRequest"]["source"] == captured.source.as_json()
        plain = await manager.append_refinement({"rollbackOf": "r"})
        assert "plannerRequest" not in await stored(manager, plain)


@on_loop
async def test_a_link_fits_its_purpose_only(tmp_path: Path) -> None:
    """Refused before anything is written, and still good for what it is made for."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            main = await link_of(captured, "main", "whatever")
            branch = await link_of(captured, "summary", "branch")
            history = await link_of(captured, "summary", "compaction")
            before = len(await manager.read_entries())
            for attempt in (
                manager.append_message(assistant(), link=branch),
                manager.append_message(user(), link=main),
                manager.append_message({"role": "assistant"}, link="link"),  # type: ignore[arg-type]
                manager.append_refinement({}, link=main),
                manager.branch_with_summary(first, "s", link=history),
                manager.branch_with_summary(first, "s", link=branch, from_hook=True),
                manager.append_compaction("s", first, 1, links=[("history", branch)]),
                manager.append_compaction("s", first, 1, links=[("turn-prefix", history)]),
                manager.append_compaction("s", first, 1, links=[("else", history)]),
                manager.append_compaction(
                    "s", first, 1, links=[("history", history)], from_hook=True
                ),
            ):
                with pytest.raises(Invalid):
                    await attempt
            assert len(await manager.read_entries()) == before
            await manager.append_message(assistant(), link=main)
            assert main.linked_entry_id is not None


@on_loop
async def test_links_cannot_be_made_up(tmp_path: Path) -> None:
    """Not by making, copying or storing one, and not by what an entry says."""
    async with await made(tmp_path) as manager:
        async with manager.capture() as captured:
            link = await link_of(captured)
        for forge in (
            lambda: OutputLink(object(), link._origin, {}, "main", None),
            lambda: copy.copy(link),
            lambda: copy.deepcopy(link),
            lambda: pickle.dumps(link),
        ):
            with pytest.raises(TypeError):
                forge()
        for member in ("requestOutput", "requestOutputs", "plannerRequest"):
            forged = {"type": "custom", "customType": "c", member: None}
            raw = b'{"type":"custom","id":"x","parentId":null,"%s":{}}' % member.encode()
            for entry in (forged, raw):
                with pytest.raises(InvalidEntry):
                    await manager.append(entry)  # type: ignore[arg-type]
        with pytest.raises(InvalidEntry):
            await manager.append_compaction("s", None, 1, {"baseContextEpoch": {}})
        event = {"type": "attempt_settled", "attemptId": "a", "operationId": "evil"}
        raw = b'{"type":"request","id":"x","parentId":null,"request":{"attemptId":"a"}}'
        for record in ({"type": "request", "id": "x", "request": event}, raw):
            with pytest.raises(InvalidEntry):
                await manager.append(record)  # type: ignore[arg-type]
        lookalike = {"type": "tool_intent", "qualification": "native-admission", "retention": "x"}
        done = await manager.append(lookalike)
        entry = await manager.read_entry(done)
        assert entry is not None
        assert (entry.qualification, entry.retention) == (None, None)


@on_loop
async def test_no_link_before_every_record_is_written(tmp_path: Path) -> None:
    """Nothing requested, an attempt without its end, an attempt of somebody else."""
    async with await made(tmp_path) as manager, manager.capture() as captured:
        operation = captured.operation("main", operation_id="mine")
        with pytest.raises(Conflict):
            operation.output_link()
        attempt = await operation.admit({}, attempt_id="a")
        with pytest.raises(Conflict):
            operation.output_link()
        with pytest.raises(InvalidEntry):
            await operation.settle(attempt, None)  # type: ignore[arg-type]
        with pytest.raises(Conflict):
            operation.output_link()
        with pytest.raises(Conflict):
            await operation.settle("b", {})
        await operation.settle(attempt, {})
        assert operation.output_link() is not None


@on_loop
async def test_a_refused_append_does_not_use_the_link_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was stored: the next try has it."""
    async with await made(tmp_path) as manager:
        async with manager.capture() as captured:
            link = await link_of(captured)
            with monkeypatch.context() as patch:

                def full(*_: Any, **__: Any) -> None:
                    raise StorageFull("no space")

                patch.setattr(owned(manager)._writer, "append", full)
                with pytest.raises(StorageFull):
                    await manager.append_message(assistant(), link=link)
            answer = await manager.append_message(assistant(), link=link)
        assert link.linked_entry_id == answer


@on_loop
async def test_copies_keep_links_as_data(tmp_path: Path) -> None:
    """A clone holds the bytes; its id is another one than the link's source names."""
    async with await made(tmp_path) as manager:
        async with manager.capture() as captured:
            answer = await manager.append_message(assistant(), link=await link_of(captured))
        original = await stored(manager, answer)
        async with await manager.clone() as copied:
            assert await stored(copied, answer) == original | {"parentId": original["parentId"]}
            assert copied.get_session_id() != original["requestOutput"]["source"]["sessionId"]
            assert ids(await copied.read_entries()) == [answer]


@on_loop
async def test_what_the_caller_changes_afterwards_is_not_stored(tmp_path: Path) -> None:
    """Details and usage of a compaction with links are those of the call."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            links = [("history", await link_of(captured, "summary", "compaction"))]
            details: dict[str, Any] = {"readFiles": []}
            waiting = manager.append_compaction("s", first, 1, details, usage=details, links=links)
            task = asyncio.ensure_future(waiting)
            await asyncio.sleep(0)
            details["baseContextEpoch"] = {"version": 4}
            done = await task
        entry = await stored(manager, done)
        assert entry["details"] == entry["usage"] == {"readFiles": []}
        assert await manager.read_active_context_epoch() is None


@on_loop
async def test_an_operation_has_one_link_and_names_its_own_attempts(tmp_path: Path) -> None:
    """Asked twice it gives the same one; members of an event cannot rename what was admitted; the
    same call again is the same event."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            operation = captured.operation("main")
            attempt = await operation.admit(
                {}, attemptId="other", operationId="o", purpose="refine"
            )
            await operation.admit({}, attempt_id=attempt, attemptId="x")
            await operation.settle(attempt, {})
            await operation.settle(attempt, {})
            link = operation.output_link()
            assert operation.output_link() is link
            await manager.append_message(assistant(), link=link)
            again = await manager.append_message(assistant(), link=operation.output_link())
            assert "requestOutput" not in await stored(manager, again)
            history = await link_of(captured, "summary", "compaction")
            pairs = [("history", history), ("history", history)]
            for links in (pairs, [1], [([], history)], ["ab"]):
                with pytest.raises(Invalid):
                    await manager.append_compaction("s", first, 1, links=links)  # type: ignore[arg-type]
            for name in ("purpose", "detail", "linked_entry_id"):
                with pytest.raises(AttributeError):
                    setattr(history, name, "main")
            for wrong in (["a"], 5):
                with pytest.raises((InvalidEntry, Conflict)):
                    await operation.admit({}, attempt_id=wrong)  # type: ignore[arg-type]
                with pytest.raises((InvalidEntry, Conflict)):
                    await operation.settle(wrong, {})  # type: ignore[arg-type]
        ids_found = ids(await manager.read_entries())
        assert f"{attempt}:attempt_admitted" in ids_found
        assert "other:attempt_admitted" not in ids_found
