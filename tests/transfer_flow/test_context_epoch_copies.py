"""Context epochs of copied sessions: rebuilt with the copy, lowered, or refused with nothing made."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support import native_writer

from treering.engine import (
    InvalidContextEpoch,
    Session,
    SessionManager,
    Unsupported,
    fork_session,
    import_session,
    preview_import,
)
from treering.engine.session.admission import admit
from treering.engine.session.context_epochs import ActiveContextEpoch
from treering.engine.session.entry import CONTEXT_EPOCH_FLAGS
from treering.engine.transfer.legacy_model import CopyLimits

USER = {"role": "user", "content": "q", "timestamp": 1}
ANSWER = {"role": "assistant", "content": [], "usage": {"input": 1}}
ALL = {
    "representation": "{}",
    "replay_contract": "message-groups",
    "public_window": True,
    "resource_revision": "r",
    "task_frame": {"goal": "g"},
}


def home(tmp_path: Path) -> str:
    return str(tmp_path / "home")


async def talked(manager: SessionManager) -> list[str]:
    """Three turns, an attribution to the first answer, a label."""
    ids = []
    for _ in range(3):
        ids.append(await manager.append_message(USER))
        ids.append(await manager.append_message(ANSWER))
    await manager.append_child_usage_attribution(ids[1], {"input": 5})
    await manager.append_label_change(ids[0], "first")
    return ids


async def activated(manager: SessionManager, views: list[str], **recipe: Any) -> str:
    async with manager.capture() as captured:
        candidate = await captured.prepare_context_epoch(views, **(ALL | recipe))
        ack = await captured.activate_context_epoch(
            candidate, 50, details={"readFiles": ["f"]}, custom_instructions="c", usage={"input": 9}
        )
    return ack.entry_id


async def active(path: str) -> ActiveContextEpoch | None:
    async with await SessionManager.open_read_only(path) as view:
        return await view.read_active_context_epoch()


def made(tmp_path: Path, use: Callable[[SessionManager], Awaitable[Any]]) -> tuple[str, Any]:
    """The path of a new session, and what ``use`` returned of it."""

    async def run() -> tuple[str, Any]:
        async with await SessionManager.create("/w", home_dir=home(tmp_path)) as manager:
            path = manager.get_session_file()
            assert path is not None
            return path, await use(manager)

    return asyncio.run(run())


def entries(path: str) -> dict[str, Any]:
    with Session.open_read_only(path) as view:
        return {entry.id: entry for entry in view.iter_entries()}


async def one_epoch(manager: SessionManager) -> dict[str, Any]:
    ids = await talked(manager)
    epoch = await activated(manager, [ids[0], ids[1], ids[4]])
    await manager.append_message(USER)
    return {"ids": ids, "epoch": epoch}


def clone(path: str) -> str:
    async def run() -> str:
        async with await SessionManager.open(path) as manager, await manager.clone() as copy:
            found = copy.get_session_file()
            assert found is not None
            return found

    return asyncio.run(run())


ROUTES: dict[str, Callable[[str], str]] = {
    "fork": lambda path: fork_session(path, "/w", home_dir=_home_of(path)).path,
    "clone": clone,
    "import": lambda path: import_session(path, cwd="/w", home_dir=_home_of(path)).path,
}


def _home_of(path: str) -> str:
    return os.path.dirname(os.path.dirname(path))


@pytest.mark.parametrize("route", ROUTES)
def test_a_copy_has_the_epoch_rebuilt(tmp_path: Path, route: str) -> None:
    """Ids, parents and bodies stay; the rebuilt one is new, stands behind them, names the copy alone,
    and keeps what it may: a fork its replay contract and task frame, an import neither."""
    path, facts = made(tmp_path, one_epoch)
    before = asyncio.run(active(path))
    assert before is not None
    copy = ROUTES[route](path)
    found = asyncio.run(active(copy))
    assert found is not None
    source, copied = entries(path), entries(copy)
    assert found.entry_id not in source
    assert facts["epoch"] in copied
    kept = [one for one in source.values() if route != "clone" or one.type != "label"]
    for one in kept:
        twin = copied[one.id]
        if route != "clone":
            assert twin.raw == one.raw
        assert twin.qualification == one.qualification
        assert twin.retention == ("retained-import" if route == "import" else None)
    rebuilt = copied[found.entry_id]
    assert (rebuilt.retention, rebuilt.qualification) == (None, "native-context-epoch")
    value, old = json.loads(rebuilt.raw), json.loads(source[facts["epoch"]].raw)
    for name in ("summary", "firstKeptEntryId", "tokensBefore", "fromHook", "customInstructions"):
        assert value[name] == old[name]
    assert value["details"]["readFiles"] == ["f"]
    assert "usage" not in value
    assert json.loads(copied[facts["epoch"]].raw)["usage"] == {"input": 9}
    text = rebuilt.raw.decode()
    assert os.path.basename(path).removesuffix(".jsonl") not in text
    recipe = value["details"]["baseContextEpoch"]
    assert "publicWindow" not in recipe
    assert "resourceRevision" not in recipe
    assert ("replayContract" in recipe, "taskFrame" in recipe) == (route != "import",) * 2
    assert [view.ref.entry_id for view in found.recipe.views] == facts["ids"][:2]
    frozen = json.loads(found.recipe.views[1].source_revision)
    assert len(frozen) == len(json.loads(before.recipe.views[1].source_revision)) == 2
    with Session.open_read_only(copy) as view:
        assert view.leaf_id == found.entry_id


@pytest.mark.parametrize("route", ROUTES)
def test_a_copy_of_a_copy_stays_lowered(tmp_path: Path, route: str) -> None:
    path, _ = made(tmp_path, one_epoch)
    lowered = ROUTES["import"](path)
    again = asyncio.run(active(ROUTES[route](lowered)))
    assert again is not None
    assert again.recipe.replay_contract != "message-groups"


@pytest.mark.parametrize("route", ROUTES)
def test_policies_and_summaries_are_copied(tmp_path: Path, route: str) -> None:
    """A pending contract is no right of an import; a summary stays with its recipe."""

    async def use(manager: SessionManager) -> None:
        ids = await talked(manager)
        async with manager.capture() as captured:
            policy = await captured.prepare_context_epoch(
                [ids[0], ids[5]],
                version=5,
                mode="off",
                policy_only=True,
                pending_request_contract=True,
            )
            await captured.activate_context_epoch(policy)

    path, _ = made(tmp_path, use)
    found = asyncio.run(active(ROUTES[route](path)))
    assert found is not None
    assert found.mode == "off"
    assert (found.recipe.pending_request_contract is True) == (route != "import")

    async def summarised(manager: SessionManager) -> None:
        ids = await talked(manager)
        async with manager.capture() as captured:
            candidate = await captured.prepare_context_epoch(
                [], tail_id=ids[2], include_summary=True
            )
            await captured.activate_context_epoch(candidate, 7, summary="said")

    path, _ = made(tmp_path, summarised)
    found = asyncio.run(active(ROUTES[route](path)))
    assert found is not None
    assert (found.summary, found.recipe.representation) == ("said", None)


async def forge(manager: SessionManager, recipe: dict[str, Any], tail: str) -> None:
    """An epoch that the engine would have qualified, of any recipe."""
    value = {
        "type": "compaction",
        "summary": "",
        "firstKeptEntryId": tail,
        "tokensBefore": 1,
        "details": {"baseContextEpoch": recipe},
    }
    admitted = admit(value, verified=True)._replace(flags=CONTEXT_EPOCH_FLAGS)
    await manager._do(lambda session: session.store_admitted([admitted], atomic=False))


async def with_tools(manager: SessionManager) -> list[str]:
    ids = await talked(manager)
    async with manager.capture() as captured:
        intent = await captured.append_qualified(
            {"type": "tool_intent", "id": f"{ids[1]}:intent", "assistant": {"entryId": ids[1]}},
            "native-tool-execution",
        )
    row = await manager.read_entry(intent)
    assert row is not None
    record = {"id": intent, "sequence": row.sequence, "revision": row.revision.hex()}
    call = {"executionId": "x", "intent": record, "outcome": "outcome_unknown"}
    groups = [{"assistantEntryId": ids[1], "calls": [call]}]
    await activated(manager, [ids[0], ids[5]], version=6, tool_continuations=groups)
    return ids


@pytest.mark.parametrize("route", ROUTES)
def test_tool_continuations_cannot_be_copied(tmp_path: Path, route: str) -> None:
    """Version 6, selected: refused by every route, and nothing is made. On another branch, or behind
    a newer compaction, it does not matter. A preview does not assess it."""
    path, _ = made(tmp_path, with_tools)
    names = sorted(os.listdir(os.path.dirname(path)))
    assert (
        preview_import(path, home_dir=home(tmp_path)).canonical_epoch_activation == "not-assessed"
    )
    with pytest.raises(Unsupported, match="selected"):
        ROUTES[route](path)
    assert sorted(os.listdir(os.path.dirname(path))) == names

    async def elsewhere(manager: SessionManager) -> None:
        ids = await with_tools(manager)
        await manager.branch_to(ids[-1])

    async def behind(manager: SessionManager) -> None:
        ids = await with_tools(manager)
        await manager.append_compaction("s", ids[-1], 1)

    for use in (elsewhere, behind):
        path, _ = made(tmp_path, use)
        assert asyncio.run(active(ROUTES[route](path))) is None


@pytest.mark.parametrize("route", ROUTES)
def test_skills_are_forked_and_not_imported(tmp_path: Path, route: str) -> None:
    """They are proved by records that an import makes powerless."""

    async def use(manager: SessionManager) -> None:
        ids = await talked(manager)
        skill = admit({"type": "custom", "customType": "skill", "data": {}})._replace(flags=2 << 1)
        (skill_id,) = await manager._do(
            lambda session: session.store_admitted([skill], atomic=False)
        )
        await manager.recover()
        last = await manager.append_message(USER)
        await activated(manager, [ids[0], last], skills={"s": skill_id})

    path, _ = made(tmp_path, use)
    assert asyncio.run(active(path)) is not None
    if route == "import":
        with pytest.raises(Unsupported):
            ROUTES[route](path)
    else:
        found = asyncio.run(active(ROUTES[route](path)))
        assert found is not None
        assert found.recipe.renderer == "native-canonical-epoch/7"


@pytest.mark.parametrize("route", ROUTES)
def test_what_does_not_hold_in_the_source_is_not_copied(tmp_path: Path, route: str) -> None:
    """A recipe of another session, of another revision, of an entry that is not there."""

    async def use(manager: SessionManager) -> None:
        ids = await talked(manager)
        await activated(manager, [ids[0], ids[1], ids[4]])

    path, _ = made(tmp_path, use)
    good = asyncio.run(active(path))
    assert good is not None
    recipe = json.loads(good.recipe.encoded())
    for place, value in (
        (("source", "sessionId"), "0"),
        (("views", 0, "ref", "revision"), "0" * 32),
        (("views", 0, "ref", "locator", "offset"), 5),
        (("views", 1, "sourceRevision"), '["0"]'),
        (("views", 0, "ref", "entryId"), "nobody"),
        (("views", 0, "source", "persistent"), False),
        (("version",), 9),
    ):
        changed = json.loads(json.dumps(recipe))
        at = changed
        for step in place[:-1]:
            at = at[step]
        at[place[-1]] = value

        async def again(changed: Any = changed) -> None:
            async with await SessionManager.open(path) as manager:
                await manager.branch_to(good.entry_id)
                await forge(manager, changed, good.recipe.literal_tail_id)

        asyncio.run(again())
        names = sorted(os.listdir(os.path.dirname(path)))
        with pytest.raises(InvalidContextEpoch):
            ROUTES[route](path)
        assert sorted(os.listdir(os.path.dirname(path))) == names


@pytest.mark.parametrize("route", ROUTES)
def test_a_marker_that_is_not_qualified_is_data(tmp_path: Path, route: str) -> None:
    """It is copied as it is, and refused when it is read as an epoch."""

    async def use(manager: SessionManager) -> str:
        ids = await talked(manager)
        value = {
            "type": "compaction",
            "summary": "s",
            "firstKeptEntryId": ids[0],
            "tokensBefore": 1,
            "details": {"baseContextEpoch": {"version": 4}},
        }
        (done,) = await manager._do(
            lambda session: session.store_admitted([admit(value, verified=True)], atomic=False)
        )
        return str(done)

    path, marked = made(tmp_path, use)
    copy = ROUTES[route](path)
    assert marked in entries(copy)
    with pytest.raises(InvalidContextEpoch):
        asyncio.run(active(copy))


def test_a_session_in_memory_has_no_copied_epoch(tmp_path: Path) -> None:
    """Neither from a file nor from memory; nothing of the source changes."""

    async def run() -> None:
        async with await SessionManager.in_memory("/w") as manager:
            ids = await talked(manager)
            await activated(manager, [ids[0], ids[4]])
            assert await manager.read_active_context_epoch() is not None
            with pytest.raises(Unsupported):
                await manager.clone()

    asyncio.run(run())


def test_a_path_copy_leaves_out_what_is_not_on_the_path(tmp_path: Path) -> None:
    """An attribution of another branch is not part of the copy, nor of its frozen views; labels in
    force come along, and the rebuilt epoch stands behind them."""

    async def use(manager: SessionManager) -> list[str]:
        ids = await talked(manager)
        await manager.branch_to(ids[3])
        last = await manager.append_message(USER)
        await activated(manager, [ids[0], ids[1], last])
        return ids

    path, ids = made(tmp_path, use)
    before = asyncio.run(active(path))
    assert before is not None
    assert len(json.loads(before.recipe.views[1].source_revision)) == 2
    copy = ROUTES["clone"](path)
    found = asyncio.run(active(copy))
    assert found is not None
    assert len(json.loads(found.recipe.views[1].source_revision)) == 1
    with Session.open_read_only(copy) as view:
        assert view.label(ids[0]) == "first"
        assert view.leaf_id == found.entry_id


def test_limits_are_those_of_what_is_copied(tmp_path: Path) -> None:
    """The rebuilt compaction is no entry of the source: it counts in no limit."""
    path, _ = made(tmp_path, one_epoch)
    count = len(entries(path))
    limits = CopyLimits(count, None)
    assert fork_session(path, "/w", home_dir=home(tmp_path), limits=limits).entries == count


def framed(tmp_path: Path, **recipe: Any) -> str:
    """A journal of JSON frames whose position is a context epoch of its own making."""
    rows: list[native_writer.Row | str] = [native_writer.header()]
    rows.append(native_writer.message("a", None))
    rows.append(
        native_writer.dump(
            {
                "type": "message",
                "id": "b",
                "parentId": "a",
                "timestamp": "2026-01-01T00:00:01.000Z",
                "message": {"role": "assistant", "content": []},
            }
        )
    )
    rows.append(native_writer.request("r:attempt_admitted", "b"))
    rows.append(
        native_writer.dump(
            {
                "type": "child_usage_attributed",
                "id": "u",
                "parentId": "b",
                "timestamp": "2026-01-01T00:00:01.000Z",
                "targetId": "b",
                "childUsage": {},
                "aggregateUsage": {},
            }
        )
    )
    rows.append(native_writer.message("c", "u"))
    lines = native_writer.journal(rows).splitlines(keepends=True)
    revisions = [json.loads(line)["checksum"] for line in lines]
    header = json.loads(native_writer.header())
    moment = {
        "sessionId": header["id"],
        "sessionFile": "/where/it/was.jsonl",
        "leafId": "c",
        "sourceSequence": 5,
        "persistent": True,
    }

    def view(entry_id: str, at: int, *updates: int) -> dict[str, Any]:
        locator = {
            "path": "/where/it/was.jsonl",
            "offset": sum(map(len, lines[:at])),
            "length": len(lines[at]),
        }
        return {
            "source": moment,
            "ref": {
                "entryId": entry_id,
                "sequence": at,
                "kind": "message",
                "locator": locator,
                "revision": revisions[at],
                "authority": "unrecorded",
            },
            "sourceRevision": native_writer.dump([revisions[n] for n in (at, *updates)]),
        }

    whole = {
        "version": 4,
        "renderer": "native-canonical-epoch/4",
        "source": moment,
        "representation": "{}",
        "replayContract": "complete-context",
        "views": [view("a", 1), view("b", 2, 4)],
        "literalTailId": "c",
    } | recipe
    epoch = {
        "type": "compaction",
        "id": "e",
        "parentId": "c",
        "timestamp": "2026-01-01T00:00:01.000Z",
        "summary": "",
        "firstKeptEntryId": "c",
        "tokensBefore": 10,
        "details": {"baseContextEpoch": whole},
        "fromHook": False,
    }
    rows.append(native_writer.Row(native_writer.dump(epoch), None, "native-context-epoch"))
    path = tmp_path / "framed.jsonl"
    path.write_bytes(native_writer.journal(rows))
    return str(path)


@pytest.mark.parametrize("route", ["fork", "import"])
def test_epochs_of_journals_of_json_frames(tmp_path: Path, route: str) -> None:
    """Verified against their frames, and rebuilt in ours: other places and revisions, same views."""
    source = framed(tmp_path)
    make: Any = fork_session if route == "fork" else import_session
    copy = make(source, home_dir=home(tmp_path)).path
    found = asyncio.run(active(copy))
    assert found is not None
    assert [view.ref.entry_id for view in found.recipe.views] == ["a", "b"]
    assert len(json.loads(found.recipe.views[1].source_revision)) == 2
    assert (found.recipe.replay_contract == "complete-context") == (route == "fork")
    retained = entries(copy)["a"].retention
    assert retained == (None if route == "fork" else "retained-import")
    stored = sorted(os.listdir(os.path.dirname(copy)))
    other = {"sessionId": "0", "leafId": "c", "sourceSequence": 5, "persistent": True}
    changes: list[dict[str, Any]] = [{"source": other}, {"literalTailId": "nobody"}]
    for recipe in changes:
        with pytest.raises(InvalidContextEpoch):
            make(framed(tmp_path, **recipe), home_dir=home(tmp_path))
    assert sorted(os.listdir(os.path.dirname(copy))) == stored


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(recipe: dict[str, Any]) -> None:
        at: Any = recipe
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return change


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "another tail": changed("literalTailId", to="a"),
    "a view twice": lambda recipe: recipe["views"].append(recipe["views"][0]),
    "a view in the tail": changed("literalTailId", to="b"),
    "a moment before the view": changed("views", 1, "source", "sourceSequence", to=1),
    "a moment before any entry": changed("views", 0, "source", "leafId", to=None),
    "a moment at nobody": changed("views", 0, "source", "leafId", to="nobody"),
    "another kind": changed("views", 0, "ref", "kind", to="custom_message"),
    "captured elsewhere": changed("source", "leafId", to="u"),
    "captured before any entry": changed("source", "leafId", to=None),
    "captured later": changed("source", "sourceSequence", to=10**9),
    "captured before the journal": changed("source", "sourceSequence", to=-1),
    "a summary that is not there": lambda recipe: recipe.update(
        includeSummary=True, representation=None
    ),
    "updates that were not": changed(
        "views", 1, "sourceRevision", to=native_writer.dump(["0", "1"])
    ),
    "another length": changed("views", 0, "ref", "locator", "length", to=1),
    "a window beyond the journal": lambda recipe: recipe.update(
        continuation={
            "kind": "portable-checkpoint",
            "publicTailThrough": recipe["source"] | {"sourceSequence": 99},
        }
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_no_copy_says_more_than_its_source(tmp_path: Path, name: str) -> None:
    """What a reader of the source would refuse is not laundered by a fork or an import, and no copy
    is made that its own reader refuses. A salvage leaves the epoch as data."""
    good = framed(tmp_path)
    (line,) = [one for one in Path(good).read_text().splitlines() if '"id":"e"' in one]
    recipe = json.loads(line)["payload"]["details"]["baseContextEpoch"]
    recipe["source"], recipe["views"] = (
        dict(recipe["source"]),
        json.loads(json.dumps(recipe["views"])),
    )
    FORGED[name](recipe)
    source = framed(tmp_path, **recipe)
    for make in (fork_session, import_session):
        with pytest.raises(InvalidContextEpoch) as caught:
            make(source, home_dir=home(tmp_path))
        assert caught.value.next_step is not None
    assert not os.path.exists(tmp_path / "home/sessions") or not [
        one for one in os.listdir(tmp_path / "home/sessions") if one.endswith(".jsonl")
    ]
    saved = import_session(source, home_dir=home(tmp_path), salvage=True).path
    assert "e" in entries(saved)
    with pytest.raises(InvalidContextEpoch):
        asyncio.run(active(saved))


def test_numbers_beside_a_recipe_stay_as_they_are_spelled(tmp_path: Path) -> None:
    """Also those that no decoder takes."""
    source = Path(framed(tmp_path))
    rows = []
    for one in source.read_text().splitlines():
        frame = json.loads(one)
        payload = one.partition(',"payload":')[2].rpartition(',"checksum":')[0]
        if frame["payload"].get("id") == "e":
            payload = payload.replace('"details":{', '"details":{"n":1e999,"m":1.50,')
        rows.append(native_writer.Row(payload, None, frame.get("qualification")))
    source.write_bytes(native_writer.journal(rows))
    copy = fork_session(str(source), home_dir=home(tmp_path)).path
    found = asyncio.run(active(copy))
    assert found is not None
    assert b'"n":1e999,"m":1.50' in entries(copy)[found.entry_id].raw
