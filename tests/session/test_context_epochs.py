"""Context epochs: prepared without a write, activated by compare-and-swap, verified when read."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from manager_helpers import assistant, file_of, made, on_loop, owned, user

from treering.engine import (
    Closed,
    Conflict,
    Invalid,
    InvalidContextEpoch,
    InvalidEntry,
    LimitExceeded,
    NotFound,
    Session,
    SessionManager,
    StorageFull,
)
from treering.engine.session.admission import admit
from treering.engine.session.captured import CapturedSource
from treering.engine.session.context_epoch_making import ContextEpochAck
from treering.engine.session.context_epochs import ActiveContextEpoch, active_context_epoch
from treering.engine.session.entry import CONTEXT_EPOCH_FLAGS


async def talked(manager: SessionManager, turns: int = 4) -> list[str]:
    ids = []
    for turn in range(turns):
        ids.append(await manager.append_message(user(f"question {turn}")))
        ids.append(await manager.append_message(assistant(f"answer {turn}")))
    return ids


async def activated(
    manager: SessionManager, views: list[str], tokens: int | None = 100, **recipe: Any
) -> ContextEpochAck:
    async with manager.capture() as captured:
        candidate = await captured.prepare_context_epoch(
            views, **({"representation": "{}"} | recipe)
        )
        return await captured.activate_context_epoch(candidate, tokens)


async def active(manager: SessionManager, **more: Any) -> ActiveContextEpoch:
    found = await manager.read_active_context_epoch(**more)
    assert found is not None
    return found


def compactions(manager: SessionManager) -> int:
    return manager.get_compaction_count()


@on_loop
async def test_preparing_writes_nothing_and_activating_one_compaction(tmp_path: Path) -> None:
    """One qualified compaction, which is the position; it comes after what was captured."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        size = os.path.getsize(file_of(manager))
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch([ids[0], ids[5]], representation="r")
            assert os.path.getsize(file_of(manager)) == size
            ack = await captured.activate_context_epoch(
                candidate,
                12.5,
                details={"readFiles": []},
                custom_instructions="c",
                usage={"input": 1},
            )
        assert manager.get_leaf_id() == ack.entry_id
        assert compactions(manager) == 1
        entry = await manager.read_entry(ack.entry_id)
        assert entry is not None
        assert entry.qualification == "native-context-epoch"
        assert entry.retention is None
        assert (entry.sequence, entry.revision.hex()) == (ack.sequence, ack.revision)
        value = json.loads(entry.raw)
        assert (value["summary"], value["firstKeptEntryId"], value["tokensBefore"]) == (
            "",
            ids[5],
            12.5,
        )
        assert value["fromHook"] is False
        assert (value["customInstructions"], value["usage"]) == ("c", {"input": 1})
        recipe = value["details"]["baseContextEpoch"]
        assert recipe["source"] == captured.source.as_json()
        assert (recipe["version"], recipe["renderer"]) == (4, "native-canonical-epoch/4")
        assert [view["ref"]["entryId"] for view in recipe["views"]] == [ids[0]]
        assert captured.source.source_sequence < ack.sequence
        found = await active(manager)
        assert found.entry_id == ack.entry_id
        assert found.mode == "on"


@on_loop
async def test_it_is_the_same_after_reopening_moving_and_without_an_index(tmp_path: Path) -> None:
    """Closed and opened, from a view, with the index deleted, and in a store that was moved."""
    manager = await made(tmp_path)
    ids = await talked(manager)
    await activated(manager, [ids[1], ids[0], ids[6]])
    await manager.append_message(user("after"))
    before, path = await active(manager), file_of(manager)
    assert [view.ref.entry_id for view in before.recipe.views] == [ids[1], ids[0]]
    await manager.close()
    for step in ("open", "index", "moved"):
        if step == "index":
            for name in os.listdir(tmp_path / "home/session-index"):
                os.unlink(tmp_path / "home/session-index" / name)
        if step == "moved":
            os.rename(tmp_path / "home", tmp_path / "elsewhere")
            path = path.replace("/home/", "/elsewhere/")
        async with await SessionManager.open(path) as again:
            assert await active(again) == before
        async with await SessionManager.open_read_only(path) as view:
            assert await active(view) == before


@on_loop
async def test_an_append_meanwhile_refuses_and_a_request_record_does_not(tmp_path: Path) -> None:
    """The position stays at the new message, and no compaction is written; request records move
    nothing."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(ids[:3], representation="r")
            late = await manager.append_message(user("late"))
            with pytest.raises(Conflict):
                await captured.activate_context_epoch(candidate, 1)
        assert manager.get_leaf_id() == late
        assert compactions(manager) == 0
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(ids[:3], representation="r")
            operation = captured.operation("main")
            attempt = await operation.admit({"api": "x"})
            await operation.settle(attempt, {"outcome": "completed"})
            ack = await captured.activate_context_epoch(candidate, 1)
        assert (await active(manager)).entry_id == ack.entry_id


@on_loop
async def test_a_jump_and_back_a_recovery_and_another_session_refuse(tmp_path: Path) -> None:
    """Although the position is the captured one again."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)

        async def jump(captured: CapturedSource) -> None:
            await manager.branch_to(ids[0])
            await manager.branch_to(ids[-1])

        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(ids[:3], representation="r")
            await jump(captured)
            with pytest.raises(Conflict):
                await captured.activate_context_epoch(candidate, 1)
        async with manager.capture() as captured:
            with pytest.raises(Conflict, match="another capture"):
                await captured.activate_context_epoch(candidate, 1)
            candidate = await captured.prepare_context_epoch(ids[:3], representation="r")
            await manager.new_session()
            with pytest.raises(Conflict):
                await captured.activate_context_epoch(candidate, 1)
            with pytest.raises(Conflict):
                await captured.append_qualified(
                    {"type": "custom", "customType": "c"}, "native-recovery"
                )
        with pytest.raises(Closed):
            await captured.activate_context_epoch(candidate, 1)


@on_loop
async def test_of_two_activations_from_one_capture_the_second_refuses(tmp_path: Path) -> None:
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        async with manager.capture() as captured:
            one = await captured.prepare_context_epoch(ids[:3], representation="r")
            results = await asyncio.gather(
                *(captured.activate_context_epoch(one, 1) for _ in range(3)), return_exceptions=True
            )
        assert sorted(type(result).__name__ for result in results) == [
            "Conflict",
            "Conflict",
            "ContextEpochAck",
        ]
        assert compactions(manager) == 1


@on_loop
async def test_what_cannot_be_chosen_is_refused(tmp_path: Path) -> None:
    """Unknown and repeated entries, those of another branch or written after the capture, kinds that
    show nothing, views inside the literal tail, a tail that is not the newest."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        await manager.branch_to(ids[1])
        mine = await manager.append_message(user("other branch"))
        hidden = await manager.append_custom_entry("c")
        leaf = await manager.append_message(user("leaf"))
        async with manager.capture() as captured:
            late = await manager.append_message(user("late"))
            for views, more in [
                ([ids[0], "nobody"], {}),
                ([ids[0], ids[0], leaf], {}),
                ([ids[0], ids[5]], {}),
                ([ids[0], late], {}),
                ([ids[0], hidden, leaf], {}),
                ([], {}),
                ([ids[0], mine, leaf], {"tail_id": mine}),
                ([ids[0]], {"tail_id": leaf}),
                ([ids[0]], {"include_summary": True, "representation": None}),
                ([ids[0], leaf], {"renderings": {"nobody": "public-history/1"}}),
                ([ids[0], leaf], {"renderings": {ids[0]: "else"}}),
                ([ids[0], leaf], {"unknown_member": 1}),
                ([ids[0], leaf], {"task_frame": []}),
                ([ids[0], leaf], {"task_frame": {"x": object()}}),
                ([ids[0], leaf], {"version": 7}),
                ([ids[0], leaf], {"version": True}),
            ]:
                with pytest.raises(InvalidContextEpoch):
                    await captured.prepare_context_epoch(views, **({"representation": "r"} | more))
            with pytest.raises(LimitExceeded):
                await captured.prepare_context_epoch(
                    [ids[0], leaf], representation="r" * (17 << 20)
                )


@on_loop
async def test_what_would_be_refused_when_read_is_refused_before(tmp_path: Path) -> None:
    """The same rules for both: moments of other sessions, skills that nobody recorded, tools without
    records, arguments of any type."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        custom = await manager.append_custom_entry("skill")
        leaf = await manager.append_message(user())
        async with manager.capture() as captured:
            own = captured.source.as_json()

            def through(**change: Any) -> dict[str, Any]:
                moment = {**own, **change}
                return {"continuation": {"kind": "harness-summary", "publicTailThrough": moment}}

            record = {"id": "nobody", "sequence": 1, "revision": "0"}
            call = {"executionId": "x", "intent": record, "outcome": "completed"}
            wrong: list[dict[str, Any]] = [
                {"skills": {"s": custom}},
                {"skills": [1]},
                {"renderings": [1]},
                {"tail_id": []},
                {"source": own},
                {"views": []},
                through(sessionId="0"),
                through(sourceSequence=10**9),
                through(leafId="nobody"),
                {
                    "version": 6,
                    "public_window": True,
                    "replay_contract": "message-groups",
                    "tool_continuations": [{"assistantEntryId": ids[1], "calls": [call]}],
                },
                {"task_frame": {"x": float("nan")}},
                {"task_frame": {"x": json.loads("[" * 140 + "]" * 140)}},
                {"resource_revision": "\ud800"},
            ]
            for more in wrong:
                with pytest.raises(InvalidContextEpoch):
                    await captured.prepare_context_epoch(
                        [ids[0], leaf], **({"representation": "r"} | more)
                    )
            for views in (None, 5, [[]], [None]):
                with pytest.raises(InvalidContextEpoch):
                    await captured.prepare_context_epoch(views, representation="r")  # type: ignore[arg-type]
            await captured.prepare_context_epoch(
                iter([ids[0], leaf]),  # type: ignore[arg-type]
                representation="r",
                **through(),
            )
            candidate = await captured.prepare_context_epoch([ids[0], leaf], representation="r")
            for tokens in ("12", True, {"a": 1}, [1], float("nan"), float("inf")):
                with pytest.raises(InvalidContextEpoch):
                    await captured.activate_context_epoch(candidate, tokens)  # type: ignore[arg-type]
            with pytest.raises(Invalid):
                await captured.activate_context_epoch(None, 1)  # type: ignore[arg-type]
            assert compactions(manager) == 0


@on_loop
async def test_the_tail_is_what_was_written_last(tmp_path: Path) -> None:
    """Results of tools that ended in the reverse order: the one with the highest sequence."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        await activated(manager, [ids[6], ids[2], ids[4]])
        found = await active(manager)
        assert found.recipe.literal_tail_id == ids[6]
        assert [view.ref.entry_id for view in found.recipe.views] == [ids[2], ids[4]]


@on_loop
async def test_summaries_and_policies(tmp_path: Path) -> None:
    """A summary is there exactly when the recipe includes one; a policy measures nothing."""
    async with await made(tmp_path) as manager:
        first = await manager.append_custom_entry("c")
        async with manager.capture() as captured:
            policy = await captured.prepare_context_epoch(
                [], version=5, mode="off", policy_only=True, pending_request_contract=True
            )
            for arguments in ({"tokens_before": 5}, {"summary": "s"}):
                with pytest.raises(InvalidContextEpoch):
                    await captured.activate_context_epoch(policy, **arguments)
            await captured.activate_context_epoch(policy)
        found = await active(manager)
        assert (found.mode, found.recipe.literal_tail_id) == ("off", first)
        ids = await talked(manager)
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(
                [ids[0]], tail_id=ids[4], include_summary=True
            )
            with pytest.raises(InvalidContextEpoch):
                await captured.activate_context_epoch(candidate, 9)
            with pytest.raises(Invalid):
                await captured.activate_context_epoch(
                    candidate, 9, summary="s", details={"baseContextEpoch": {}}
                )
            with pytest.raises(InvalidEntry):
                await captured.activate_context_epoch(candidate, 9, summary="s", details={"x": 1j})
            await captured.activate_context_epoch(candidate, 9, summary="what was said")
        found = await active(manager)
        assert (found.summary, found.tokens_before) == ("what was said", 9)
        assert found.recipe.representation is None
        async with manager.capture() as captured:
            plain = await captured.prepare_context_epoch([ids[0], ids[5]], representation="r")
            with pytest.raises(InvalidContextEpoch):
                await captured.activate_context_epoch(plain, 9, summary="s")


@on_loop
async def test_an_epoch_that_shows_the_same_is_used_again(tmp_path: Path) -> None:
    """Nothing is written while the choice and its terms are those of the active one, with what came
    behind it; a dropped entry, other terms or another branch make a new one."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        first = await activated(manager, [ids[0], ids[5], ids[6], ids[7]])
        assert not first.reused
        size = os.path.getsize(file_of(manager))
        shown = [ids[0], ids[5], ids[6], ids[7]]
        again = await activated(manager, shown)
        assert again == first._replace(reused=True)
        assert os.path.getsize(file_of(manager)) == size
        late = await manager.append_message(user("late"))
        again = await activated(manager, [*shown, late])
        assert again == first._replace(reused=True)
        assert manager.get_leaf_id() == late
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch([*shown, late], representation="{}")
            assert candidate.unchanged == again
            await manager.append_message(user("later still"))
            with pytest.raises(Conflict):
                await captured.activate_context_epoch(candidate, 1)
        now = [*shown, late, manager.get_leaf_id()]
        for choice, terms in (
            (now[1:], {}),
            (now, {"representation": "other"}),
            (now, {"replay_contract": "complete-context"}),
            (now, {"task_frame": {"x": 1}}),
            (now, {"version": 3}),
        ):
            await manager.branch_to(now[-1])
            assert not (await activated(manager, choice, **terms)).reused  # type: ignore[arg-type]
        await manager.branch_to(first.entry_id)
        await activated(manager, shown, renderings={ids[0]: "public-history/1"})
        found = await active(manager)
        assert found.recipe.views[0].rendering == "public-history/1"
        await manager.append_child_usage_attribution(ids[5], {"input": 1})
        assert not (await activated(manager, shown, renderings={ids[0]: "public-history/1"})).reused
        await manager.branch_to(ids[-1])
        assert not (await activated(manager, shown)).reused


@on_loop
async def test_links_of_an_epoch(tmp_path: Path) -> None:
    """Its compaction carries the links of its parts, and is qualified all the same."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        async with manager.capture() as captured:
            operation = captured.operation("summary", "compaction")
            await operation.settle(await operation.admit({}), {})
            link = operation.output_link()
            assert link is not None
            candidate = await captured.prepare_context_epoch(
                [], tail_id=ids[3], include_summary=True
            )
            ack = await captured.activate_context_epoch(
                candidate, 5, summary="s", links=[("history", link)]
            )
        assert link.linked_entry_id == ack.entry_id
        entry = await manager.read_entry(ack.entry_id)
        assert entry is not None
        assert json.loads(entry.raw)["requestOutputs"][0]["part"] == "history"
        assert entry.qualification == "native-context-epoch"
        await active(manager)


@on_loop
async def test_ordinary_compactions_are_none(tmp_path: Path) -> None:
    """Before any entry, without a compaction, behind an ordinary one; an unknown position."""
    async with await made(tmp_path) as manager:
        assert await manager.read_active_context_epoch() is None
        ids = await talked(manager)
        assert await manager.read_active_context_epoch() is None
        ack = await activated(manager, ids[:3])
        await manager.append_compaction("s", ids[3], 5, {"readFiles": []})
        assert await manager.read_active_context_epoch() is None
        assert (await active(manager, leaf_id=ack.entry_id)).entry_id == ack.entry_id
        assert await manager.read_active_context_epoch(ids[-1]) is None
        assert await manager.read_active_context_epoch(None) is None
        with pytest.raises(NotFound):
            await manager.read_active_context_epoch("nobody")


@on_loop
async def test_a_refused_activation_leaves_the_old_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        before = await activated(manager, ids[:3])
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(ids[:5], representation="r")

            def full(*_: Any, **__: Any) -> None:
                raise StorageFull("no space")

            with monkeypatch.context() as patch:
                patch.setattr(owned(manager)._writer, "append", full)
                with pytest.raises(StorageFull):
                    await captured.activate_context_epoch(candidate, 1)
            assert (await active(manager)).entry_id == before.entry_id
            after = await captured.activate_context_epoch(candidate, 1)
        assert (await active(manager)).entry_id == after.entry_id


@on_loop
async def test_usage_of_children_is_frozen(tmp_path: Path) -> None:
    """An attribution before the capture is part of the view; a later one changes nothing."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        await manager.append_child_usage_attribution(ids[1], {"input": 1})
        newest = await manager.append_child_usage_attribution(ids[1], {"input": 1})
        entry = await manager.read_entry(newest)
        assert entry is not None
        await activated(manager, [ids[0], ids[1], ids[6]])
        await manager.append_child_usage_attribution(ids[1], {"input": 1})
        revisions = json.loads((await active(manager)).recipe.views[1].source_revision)
        assert revisions[1:] == [entry.revision.hex()]


@on_loop
async def test_views_of_compactions_count_what_they_kept(tmp_path: Path) -> None:
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        summary = await manager.append_compaction("s", ids[5], 7)
        tail = await manager.append_message(user("then"))
        await activated(manager, [summary, ids[5], tail])
        view = (await active(manager)).recipe.views[0]
        assert (view.ref.kind, view.retained_message_count) == ("compaction", 3)
        assert view.source_revision == view.ref.revision


@on_loop
async def test_requests_say_which_epoch_they_used(tmp_path: Path) -> None:
    """It is there for readers before anything is sent. The request that made it was captured before
    it, one that uses it again after; both of its records name it, and a restart finds the same."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        path = file_of(manager)
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(ids[:3], representation="r")
            ack = await captured.activate_context_epoch(candidate, 1)
            with Session.open_read_only(path) as view:
                seen = active_context_epoch(view, view.leaf_id)
            assert seen is not None
            assert seen.entry_id == ack.entry_id
            used = {"sessionId": manager.get_session_id(), "entryId": ack.entry_id}
            operation = captured.operation("main", contextEpoch=used)
            attempt = await operation.admit({"api": "x"})
            await operation.settle(attempt, {"outcome": "completed"})
        assert captured.source.leaf_id != ack.entry_id
        assert captured.source.source_sequence < ack.sequence
        for kind in ("admitted", "settled"):
            record = await manager.read_entry(f"{attempt}:attempt_{kind}")
            assert record is not None
            assert json.loads(record.raw)["request"]["contextEpoch"] == used
        async with manager.capture() as captured:
            assert captured.source.leaf_id == ack.entry_id
            assert captured.source.source_sequence > ack.sequence
        assert (await active(manager)).entry_id == ack.entry_id


@on_loop
async def test_an_error_behind_the_acknowledgement_changes_nothing(tmp_path: Path) -> None:
    """The caller has the id of the epoch, whatever a listener does with the news."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        def fail(_: str | None) -> None:
            raise RuntimeError("cannot adopt")

        forget = manager.on_persist(fail)
        ack = await activated(manager, ids[:3])
        forget()
        assert told
        assert (await active(manager)).entry_id == ack.entry_id
        assert compactions(manager) == 1


@on_loop
async def test_what_tools_did_is_proved_by_records(tmp_path: Path) -> None:
    """Version 6: an intent whose result never came stays of unknown outcome after a restart; records
    that are not what the recipe says refuse."""
    manager = await made(tmp_path)
    ids = await talked(manager)
    async with manager.capture() as captured:
        intent = await captured.append_qualified(
            {"type": "tool_intent", "id": "x:intent", "assistant": {"entryId": ids[1]}},
            "native-tool-execution",
        )
    row = await manager.read_entry(intent)
    assert row is not None
    record = {"id": intent, "sequence": row.sequence, "revision": row.revision.hex()}
    call: dict[str, Any] = {"executionId": "x", "intent": record, "outcome": "outcome_unknown"}
    groups = [{"assistantEntryId": ids[1], "calls": [call]}]
    tools: dict[str, Any] = {
        "version": 6,
        "public_window": True,
        "replay_contract": "message-groups",
        "tool_continuations": groups,
    }
    last = await manager.append_message(user())
    await activated(manager, [ids[0], last], **tools)
    before, path = await active(manager), file_of(manager)
    await manager.close()
    async with await SessionManager.open(path) as again:
        assert await active(again) == before
        assert msgspec.to_builtins(before.recipe.tool_continuations) == groups
        for change in (
            {"intent": record | {"revision": "0" * 32}},
            {"intent": record | {"sequence": 1}},
            {"intent": record | {"id": "nobody"}},
            {"result": record | {"id": "nobody"}},
        ):
            await again.branch_to(before.entry_id)
            changed = [{"assistantEntryId": ids[1], "calls": [call | change]}]
            await forged(again, setter("toolContinuations", to=changed))
            with pytest.raises(InvalidContextEpoch):
                await again.read_active_context_epoch()
        await again.branch_to(before.entry_id)
        await forged(
            again,
            setter("toolContinuations", to=[{"assistantEntryId": "nobody", "calls": [call]}]),
        )
        with pytest.raises(InvalidContextEpoch):
            await again.read_active_context_epoch()


# What stands in a journal and is none


async def forged(manager: SessionManager, change: Any, *, flags: int = CONTEXT_EPOCH_FLAGS) -> None:
    """Write the recipe of an epoch again, changed, as nobody but the engine could."""
    found = await active(manager)
    entry = await manager.read_entry(found.entry_id)
    assert entry is not None
    value = json.loads(entry.raw)
    async with manager.capture() as captured:
        recipe = value["details"]["baseContextEpoch"]
        recipe["source"] = captured.source.as_json()
        for name in ("id", "parentId", "timestamp"):
            del value[name]
        change(value, recipe)
    admitted = admit(value, verified=True)._replace(flags=flags)
    await manager._do(lambda session: session.store_admitted([admitted], atomic=False))
    await manager.recover()


def setter(*path: Any, to: Any) -> Any:
    def change(_: Any, recipe: Any) -> None:
        at = recipe
        for step in path[:-1]:
            at = at[step]
        if to is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = to

    return change


VIEW = ("views", 0)
CHANGES = {
    "another session": setter("source", "sessionId", to="0"),
    "another position": setter("source", "leafId", to=None),
    "a later sequence": setter("source", "sourceSequence", to=10**9),
    "a snapshot of another session": setter(*VIEW, "source", "sessionId", to="0"),
    "a snapshot in memory": setter(*VIEW, "source", "persistent", to=False),
    "a snapshot beyond the capture": setter(*VIEW, "source", "sourceSequence", to=10**9),
    "a snapshot below zero": setter(*VIEW, "source", "sourceSequence", to=-1),
    "a snapshot before its position": setter(*VIEW, "source", "sourceSequence", to=3),
    "a snapshot before any entry": setter(*VIEW, "source", "leafId", to=None),
    "a snapshot of nobody": setter(*VIEW, "source", "leafId", to="nobody"),
    "an entry of nobody": setter(*VIEW, "ref", "entryId", to="nobody"),
    "another sequence": setter(*VIEW, "ref", "sequence", to=1),
    "another kind": setter(*VIEW, "ref", "kind", to="custom_message"),
    "another revision": setter(*VIEW, "ref", "revision", to="0" * 32),
    "another place": setter(*VIEW, "ref", "locator", "offset", to=1),
    "another length": setter(*VIEW, "ref", "locator", "length", to=1),
    "another qualification": setter(*VIEW, "ref", "qualification", to="native-admission"),
    "a retention": setter(*VIEW, "ref", "retention", to="retained-import"),
    "another frozen revision": setter(*VIEW, "sourceRevision", to='["0"]'),
    "a frozen revision that is no list": setter(*VIEW, "sourceRevision", to="0"),
    "a count of a message": setter(*VIEW, "retainedMessageCount", to=1),
    "another tail": setter("literalTailId", to="nobody"),
    "a continuation of another session": setter(
        "continuation",
        to={
            "kind": "harness-summary",
            "publicTailThrough": {
                "sessionId": "0",
                "leafId": None,
                "sourceSequence": 0,
                "persistent": True,
            },
        },
    ),
    "an unknown member": setter("more", to=1),
    "no views": setter("views", to=...),
    "a version of another type": setter("version", to=4.0),
    "no object": lambda value, _: value["details"].update(baseContextEpoch=None),
    "a deep one": setter("taskFrame", to={"x": json.loads("[" * 60 + "]" * 60)}),
    "twice the same view": lambda _, recipe: recipe["views"].append(recipe["views"][0]),
    "a summary that nobody included": lambda value, _: value.update(summary="s"),
    "another first entry": lambda value, _: value.update(firstKeptEntryId=None),
    "members of wrong types": lambda value, _: value.update(summary=5),
}


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "a deep one"])
@on_loop
async def test_a_recipe_that_does_not_hold_is_refused(tmp_path: Path, name: str) -> None:
    """Each field of a recipe that the engine qualified and that is not true: never passed over."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        await activated(manager, [ids[0], ids[1], ids[6]])
        await forged(manager, lambda *_: None)
        await active(manager)  # the same recipe, unchanged, holds
        await forged(manager, CHANGES[name])
        with pytest.raises(InvalidContextEpoch):
            await manager.read_active_context_epoch()
        await manager.read_session_context()  # what is not an epoch still is a compaction


@on_loop
async def test_a_recipe_that_is_not_qualified_is_refused(tmp_path: Path) -> None:
    """Neither without the frame's mark, nor with another one, nor from an import."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        await activated(manager, [ids[0], ids[1], ids[6]])
        for flags in (0, 1 << 1, CONTEXT_EPOCH_FLAGS | 1):
            await forged(manager, lambda *_: None, flags=flags)
            with pytest.raises(InvalidContextEpoch):
                await manager.read_active_context_epoch()
            await manager.branch_to(ids[-1])
            await activated(manager, [ids[0], ids[1], ids[6]])


@on_loop
async def test_a_view_of_another_branch_is_refused(tmp_path: Path) -> None:
    """Also when it is the frame that it says: the moment that it names was on another branch."""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        await manager.branch_to(ids[1])
        await manager.append_message(user("there"))
        await activated(manager, [ids[0], ids[1]])
        other = (await active(manager)).recipe.views[0]
        await manager.branch_to(ids[-1])
        await activated(manager, [ids[0], ids[1], ids[6]])
        await forged(manager, lambda _, recipe: recipe.update(views=[msgspec.to_builtins(other)]))
        with pytest.raises(InvalidContextEpoch, match="branch"):
            await manager.read_active_context_epoch()


@pytest.mark.slow
@on_loop
async def test_hundreds_of_epochs_do_not_slow_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active one takes the same entries and questions, however many there were."""
    async with await made(tmp_path) as manager:
        session, work = owned(manager), []
        load, ask = session._load, session.ask

        def loaded(rows: Any) -> Any:
            work.append(len(rows))
            return load(rows)

        def asked(question: Any) -> Any:
            work.append(0)
            return ask(question)

        found = []
        for count in range(300):
            ids = [await manager.append_message(user()), await manager.append_message(assistant())]
            await activated(manager, ids)
            if count in (5, 299):
                with monkeypatch.context() as patch:
                    patch.setattr(session, "_load", loaded)
                    patch.setattr(session, "ask", asked)
                    work.clear()
                    await active(manager)
                    found.append(list(work))
        assert found[0] == found[1]


@on_loop
async def test_every_cut_of_an_activation_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """The file cut at every place of the new epoch and of a request record behind it: it opens, and
    the context is one of the two. (Every byte with TREERING_LONG=1.)"""
    async with await made(tmp_path) as manager:
        ids = await talked(manager)
        old = await activated(manager, [ids[0], ids[4]])
        await manager.append_message(user())
        path = Path(file_of(manager))
        begin = path.stat().st_size
        new = await activated(manager, [ids[1], ids[5]])
        middle = path.stat().st_size
        async with manager.capture() as captured:
            await captured.operation("main").admit({"api": "x"})
        data = path.read_bytes()
    copy = tmp_path / "cut" / "sessions" / path.name
    copy.parent.mkdir(parents=True)
    step = 1 if "TREERING_LONG" in os.environ else 11
    ends = {*range(begin, len(data) + 1, step), middle - 1, middle, middle + 1, len(data)}
    for end in sorted(ends):
        copy.write_bytes(data[:end])
        with Session.open_read_only(copy) as view:
            found = active_context_epoch(view, view.leaf_id)
        assert found is not None
        assert found.entry_id == (new if end >= middle else old).entry_id
        if end % 3 == 0:
            with Session.open(copy) as session:
                assert active_context_epoch(session, session.leaf_id) == found
