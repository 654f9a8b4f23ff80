"""Request records: written from a captured moment, once, beside the tree."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manager_helpers import assistant, file_of, ids, made, on_loop, owned, user

from treering.engine import (
    CapturedHistory,
    Closed,
    Conflict,
    Invalid,
    InvalidEntry,
    LimitExceeded,
    OutcomeUnknown,
    Poisoned,
    ReadOnly,
    SessionManager,
)
from treering.engine.json_values import same_json
from treering.engine.limits import REQUEST_RECORD_BYTES_MAX


def admitted(attempt: str = "a1", **more: Any) -> dict[str, Any]:
    return {
        "type": "attempt_admitted",
        "operationId": "op",
        "attemptId": attempt,
        "purpose": "main",
        "timestamp": 1_700_000_000_123,
        "descriptor": {"api": "x", "ordinal": 0},
    } | more


def settled(attempt: str = "a1", **more: Any) -> dict[str, Any]:
    event = admitted(attempt, type="attempt_settled", receipt={"outcome": "completed", "usage": {}})
    del event["descriptor"]
    return event | more


@on_loop
async def test_a_record_stands_beside_the_tree(tmp_path: Path) -> None:
    """Durable, below the captured position, hidden from tree and branch; the leaf stays."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            later = await manager.append_message(assistant())
            assert await captured.admit(admitted()) == "a1:attempt_admitted"
            assert manager.get_leaf_id() == later
            await captured.settle(settled())
        entries = await manager.read_entries()
        assert ids(entries) == [first, later, "a1:attempt_admitted", "a1:attempt_settled"]
        record = json.loads(entries[2].raw)
        assert record["parentId"] == first
        assert record["timestamp"] == "2023-11-14T22:13:20.123Z"
        assert record["request"]["source"] == captured.source.as_json()
        assert captured.source.leaf_id == first
        assert "a1:attempt_admitted" not in (await manager.read_tree()).nodes
        assert ids(await manager.read_branch()) == [first, later]
        path = file_of(manager)
    async with await SessionManager.open(path) as manager:
        assert manager.get_leaf_id() == later
        found = await manager.read_entry("a1:attempt_settled")
        assert found is not None
        assert found.type == "request"


@on_loop
async def test_late_records_go_to_the_captured_session(tmp_path: Path) -> None:
    """After the manager moved on, a settlement lands in the old session; neither position moves;
    the same settlement again is a no-op."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        old = file_of(manager)
        async with manager.capture() as captured:
            await captured.admit(admitted())
            await manager.new_session()
            await manager.append_message(user("new"))
            leaf = manager.get_leaf_id()
            await captured.settle(settled())
            await captured.settle(settled())
            assert manager.get_leaf_id() == leaf
            assert len(await manager.read_entries()) == 1
    async with await SessionManager.open(old) as again:
        assert again.get_leaf_id() == first
        assert ids(await again.read_entries())[1:] == [
            "a1:attempt_admitted",
            "a1:attempt_settled",
        ]


@on_loop
async def test_a_close_waits_for_captures(tmp_path: Path) -> None:
    """While a capture is held, its records still land; nothing else does."""
    manager = await made(tmp_path)
    await manager.append_message(user())
    path = file_of(manager)
    async with manager.capture() as captured:
        closing = asyncio.ensure_future(manager.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        await captured.admit(admitted())
        with pytest.raises(Closed):
            await manager.append_message(user())
    await closing
    async with await SessionManager.open(path) as again:
        assert len(await again.read_entries()) == 2


@on_loop
async def test_the_same_event_again_is_a_no_op_and_another_one_a_conflict(tmp_path: Path) -> None:
    """Equal whatever the order of keys; types count."""
    async with await made(tmp_path) as manager:
        async with manager.capture() as captured:
            await captured.admit(admitted(x={"a": 1, "b": 2}))
            await captured.admit(dict(reversed(admitted(x={"b": 2, "a": 1}).items())))
            for other in ({"x": {"a": 1.0, "b": 2}}, {"x": {"a": True, "b": 2}}, {}):
                with pytest.raises(Conflict):
                    await captured.admit(admitted(**other))
        assert len(await manager.read_entries()) == 1


@on_loop
async def test_what_is_no_event_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Each documented member missing or of a wrong type; a source that is not the capture's."""
    async with await made(tmp_path) as manager:
        await manager.append_message(user())
        size = os.path.getsize(file_of(manager))
        async with manager.capture() as captured:
            own = captured.source.as_json()
            changes: list[dict[str, Any]] = [
                {"attemptId": None},
                {"attemptId": ""},
                {"attemptId": 3},
                {"operationId": ""},
                {"purpose": "else"},
                {"purpose": ["main"]},
                {"descriptor": None},
                {"descriptor": []},
                {"timestamp": "now"},
                {"timestamp": 1.5},
                {"timestamp": True},
                {"timestamp": -1},
                {"timestamp": 10**18},
                {"timestamp": float("nan")},
                {"type": "attempt_settled"},
                {"type": "else"},
                {"source": own | {"sourceSequence": float(own["sourceSequence"])}},
                {"source": own | {"leafId": None}},
                {"source": own | {"extra": 1}},
                {"source": None},
                {"attemptId": "x" * 600},
                {"x": object()},
                {"x": "\ud800"},
            ]
            for change in changes:
                with pytest.raises(Invalid):
                    await captured.admit(admitted(**change))
            for wrong in (None, [], "event"):
                with pytest.raises(InvalidEntry):
                    await captured.admit(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidEntry):
                captured.operation("none")  # type: ignore[arg-type]
            assert os.path.getsize(file_of(manager)) == size
            await captured.admit(admitted(source=own))


@on_loop
async def test_the_size_of_a_record_is_limited(tmp_path: Path) -> None:
    """At the limit it is written, beyond it refused; the session goes on."""
    async with await made(tmp_path) as manager, manager.capture() as captured:
        await captured.admit(admitted("probe", pad=""))
        entry = await manager.read_entry("probe:attempt_admitted")
        assert entry is not None
        room = REQUEST_RECORD_BYTES_MAX - len(entry.raw)
        with pytest.raises(LimitExceeded) as caught:
            await captured.admit(admitted("other", pad="x" * (room + 1)))
        assert caught.value.need == REQUEST_RECORD_BYTES_MAX + 1
        await captured.admit(admitted("whole", pad="x" * room))
        await manager.append_message(user())


@on_loop
async def test_records_from_a_view_and_in_memory(tmp_path: Path) -> None:
    """A view captures nothing that could be written; a session in memory stores records."""
    async with await made(tmp_path) as manager:
        path = file_of(manager)
    async with await SessionManager.open_read_only(path) as view:
        with pytest.raises(ReadOnly):
            async with view.capture():
                pass
    async with await SessionManager.in_memory("/w") as memory, memory.capture() as captured:
        operation = captured.operation("main")
        attempt = await operation.admit({"api": "x"})
        await operation.settle(attempt, {"outcome": "failed"})
        stored = json.loads((await memory.read_entries())[0].raw)["request"]
        assert stored["source"]["persistent"] is False
        assert "sessionFile" not in stored["source"]
        assert operation.output_link() is None


@on_loop
async def test_a_branch_scope_has_the_requests_below_its_entries(tmp_path: Path) -> None:
    """In order of the journal, on every page, found by search; those of other branches and of later
    moments are not there."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            await captured.admit(admitted("of-first"))
        other = await manager.append_message(assistant("other branch"))
        async with manager.capture() as captured:
            await captured.admit(admitted("of-other"))
        await manager.branch_to(first)
        async with manager.capture() as captured:
            await captured.settle(settled("of-first"))
        second = await manager.append_message(assistant("this branch"))
        expected = [first, "of-first:attempt_admitted", "of-first:attempt_settled", second]

        async def read(history: CapturedHistory) -> None:
            async with manager.capture() as later:
                await later.admit(admitted("later"))
            await manager.append_message(user("later"))
            assert ids(await history.page()) == expected
            for start, entry_id in enumerate(expected):
                entry = await history.get(entry_id)
                assert entry is not None
                assert ids(await history.page(entry.sequence, 2)) == expected[start + 1 : start + 3]
            assert [entry.id async for entry in history.iterate_entries()] == expected
            assert ids(await history.search("this branch")) == [second]
            assert ids(await history.search("other branch")) == []
            assert await history.get(other) is None

        await manager.read_branch_history(read)


@on_loop
async def test_a_capture_ends_with_its_block(tmp_path: Path) -> None:
    """Then it reads and writes nothing."""
    async with await made(tmp_path) as manager:
        first = await manager.append_message(user())
        async with manager.capture() as captured:
            operation = captured.operation("main")
            await manager.append_message(user("later"))
            history = captured.history()
            assert ids(await history.page()) == [first]
            assert ids(await captured.history("source").page()) == [first]
            with pytest.raises(InvalidEntry):
                captured.history("else")
        with pytest.raises(Closed):
            await captured.admit(admitted())
        with pytest.raises(Closed):
            await operation.admit({})
        with pytest.raises(Closed):
            operation.output_link()
        with pytest.raises(Closed):
            captured.history()
        with pytest.raises(Closed):
            await history.page()


@on_loop
async def test_a_record_of_unknown_outcome_stops_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later append is refused until recover(), which decides; then the same event is a no-op
    or is written."""
    async with await made(tmp_path) as manager:
        await manager.append_message(user())
        async with manager.capture() as captured:
            session = owned(manager)

            def fail() -> None:
                raise OSError(5, "I/O error")

            with monkeypatch.context() as patch:
                patch.setattr(session._writer._file, "fdatasync", fail)
                with pytest.raises(OutcomeUnknown) as caught:
                    await captured.admit(admitted())
            assert caught.value.entry_ids == ("a1:attempt_admitted",)
            for append in (lambda: captured.admit(admitted("a2")), manager.append_message(user())):
                with pytest.raises(Poisoned):
                    await (append() if callable(append) else append)
        await manager.recover()
        async with manager.capture() as captured:
            await captured.admit(admitted(source=captured.source.as_json(), attemptId="a3"))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_json, _json)
def test_equal_json_is_equal_in_its_types(left: Any, right: Any) -> None:
    """As texts with sorted keys are; NaN equals nothing."""

    def text(value: Any) -> str:
        return json.dumps(value, sort_keys=True)

    for one, other in ((left, right), (left, json.loads(json.dumps(left)))):
        expected = text(one) == text(other) and "NaN" not in text(one)
        if "-0.0" not in text(one) + text(other):
            assert same_json(one, other) is expected
