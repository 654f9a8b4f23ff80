"""Entries that an owner qualifies, and what recorded requests used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from manager_helpers import assistant, file_of, made, on_loop, user

from treering.engine import (
    Conflict,
    InvalidEntry,
    RequestUsage,
    SessionManager,
    fork_session,
    import_session,
    request_usage,
)

ORIGIN = {"version": 1, "kind": "input", "actionId": "a", "recordId": "r"}
RESULT = {"role": "toolResult", "toolCallId": "c", "toolName": "t", "content": []}
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    ("native-admission", {"type": "message", "message": user(), "nativeOrigin": ORIGIN}),
    ("native-admission", {"type": "custom", "customType": "goal", "nativeOrigin": ORIGIN}),
    ("native-recovery", {"type": "message", "message": RESULT}),
    ("native-recovery", {"type": "custom", "customType": "skill"}),
    ("native-tool-execution", {"type": "tool_intent", "id": "x:intent", "assistant": {}}),
    ("native-tool-execution", {"type": "message", "id": "x", "message": RESULT}),
]
REFUSED: list[tuple[Any, Any]] = [
    ("native-admission", {"type": "message", "message": user()}),
    ("native-admission", {"type": "message", "message": assistant(), "nativeOrigin": ORIGIN}),
    ("native-admission", {"type": "message", "message": user(), "nativeOrigin": "me"}),
    ("native-recovery", {"type": "message", "message": user()}),
    ("native-tool-execution", {"type": "tool_intent", "id": "y:intent"}),
    ("native-tool-execution", {"type": "label", "targetId": "x"}),
    ("native-context-epoch", {"type": "compaction", "summary": ""}),
    ("native-else", {"type": "custom", "customType": "c"}),
    (None, {"type": "custom", "customType": "c"}),
    (["native-recovery"], {"type": "custom", "customType": "c"}),
    ("native-recovery", b'{"type":"custom","id":"b","parentId":null}'),
    ("native-recovery", {"type": "custom", "customType": "c", "requestOutput": {}}),
    ("native-recovery", {"type": "message", "message": 5}),
]


@on_loop
async def test_qualifications_survive_everything(tmp_path: Path) -> None:
    """Set by the verb alone; kept by reopening, an index that is made anew, copies and imports,
    which mark retention beside them."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        kept = {first: None}
        async with manager.capture() as captured:
            for qualification, entry in ALLOWED:
                kept[await captured.append_qualified(entry, qualification)] = qualification
        path = file_of(manager)
        async with await manager.clone() as copy:
            paths = [path, file_of(copy)]
    home = str(tmp_path / "home")
    paths.append(fork_session(path, "/w", home_dir=home).path)
    paths.append(import_session(path, cwd="/w", home_dir=home).path)
    for name in (tmp_path / "home/session-index").iterdir():
        name.unlink()
    for one in paths:
        async with await SessionManager.open(one) as manager:
            entries = await manager.read_entries()
            assert {entry.id: entry.qualification for entry in entries} == kept
            retained = "retained-import" if one == paths[-1] else None
            assert {await manager.read_entry_retention(entry.id) for entry in entries} == {retained}


@on_loop
async def test_what_cannot_be_qualified(tmp_path: Path) -> None:
    """Refused before anything is written; so is a capture that is not current any more."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        await manager.append_message(assistant())
        async with manager.capture() as captured:
            for qualification, entry in REFUSED:
                with pytest.raises(InvalidEntry):
                    await captured.append_qualified(entry, qualification)
            assert len(await manager.read_entries()) == 2
            await manager.append_message(user("on the same branch"))
            await captured.append_qualified(ALLOWED[3][1], "native-recovery")
            twin = {"type": "message", "id": "twin", "message": RESULT}
            await manager.append(twin)
            with pytest.raises(Conflict):
                await captured.append_qualified(twin, "native-recovery")
            mine = {**twin, "id": "mine"}
            await captured.append_qualified(mine, "native-recovery")
            await captured.append_qualified(mine, "native-recovery")
            await manager.append(mine)
            with pytest.raises(Conflict):
                await captured.append_qualified(mine, "native-tool-execution")
            with pytest.raises(InvalidEntry):
                await captured.append_qualified({**mine, "parentId": first}, "native-recovery")
            await manager.branch_to(first)
            with pytest.raises(Conflict):
                await captured.append_qualified(ALLOWED[3][1], "native-recovery")


@on_loop
async def test_what_requests_used(tmp_path: Path) -> None:
    """By purpose; unsettled is not known, a receipt without figures is not zero, probes are none."""
    async with await made(tmp_path) as manager:
        await manager.append_message(user())
        async with manager.capture() as captured:
            main = captured.operation("main")
            for usage in ({"input": 3, "output": 2}, {"input": 4, "totalTokens": 6}, {}, None):
                attempt = await main.admit({})
                receipt = {"outcome": "completed"} | ({} if usage is None else {"usage": usage})
                await main.settle(attempt, receipt)
            await main.admit({})
            probe = captured.operation("native-control", "input-token-count")
            await probe.settle(await probe.admit({}), {"usage": {"input": 1000}})
            odd = captured.operation("child")
            wrong = {"usage": {"input": True, "output": -1, "totalTokens": 1.5}}
            await odd.settle(await odd.admit({}), wrong)
        await manager.append({"type": "request", "id": "odd", "request": {"type": 5}})
        found = await manager.read_request_usage()
        tokens = {"input": 7, "output": 2, "totalTokens": 6}
        assert found == {
            "main": RequestUsage(attempts=5, unsettled=1, unstated=2, tokens=tokens),
            "child": RequestUsage(attempts=1, unstated=1),
        }
        path = file_of(manager)
    home = str(tmp_path / "home")
    for copy in (
        fork_session(path, "/w", home_dir=home).path,
        import_session(path, cwd="/w", home_dir=home).path,
    ):
        async with await SessionManager.open_read_only(copy) as view:
            assert await view.read_request_usage() == {}
            assert request_usage(view._selected().reads) == {}
