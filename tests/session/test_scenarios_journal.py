"""Scenarios of durability, refusal and loading, seen through a manager: what is on disk, what is shown."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manager_helpers import Gate, assistant, file_of, ids, made, on_loop, owned, user
from session_helpers import files_below, index_differences, read_bytes, write_bytes

from treering.engine import (
    Conflict,
    Damaged,
    Invalid,
    InvalidSource,
    LimitExceeded,
    NotAJournal,
    NotFound,
    OutcomeUnknown,
    Owned,
    Poisoned,
    Session,
    SessionView,
    SourceChanged,
    StorageFull,
    TreeringError,
    Unsupported,
    copy_branch,
    export_jsonl,
    fork_session,
    import_session,
    preview_import,
    repair,
)
from treering.engine.journal import disk
from treering.engine.session.capture import ReadLimits
from treering.engine.session.manager import SessionManager
from treering.engine.session.navigation import NavigationOptions


async def shown(manager: SessionManager) -> dict[str, Any]:
    """Everything that a frontend can see of a session."""
    tree = await manager.read_tree()
    context = await manager.read_session_context()
    return {
        "leaf": manager.get_leaf_id(),
        "name": manager.get_session_name(),
        "state": manager.get_session_state(),
        "status": manager.get_latest_agent_status(),
        "git": manager.get_git_state(),
        "compactions": manager.get_compaction_count(),
        "content": manager.has_user_content(),
        "entries": ids(await manager.read_entries()),
        "branch": ids(await manager.read_branch()),
        "tree": {node.id: node.label for node in tree.flat()},
        "context": [(m.role, m.entry_id) for m in context.messages],
        "level": context.thinking_level,
        "usage": await manager.read_usage(),
        "labels": [label for _, label in await manager.read_labels_page()],
    }


def writes(manager: SessionManager, first: str, answer: str) -> list[Callable[[], Any]]:
    """One call of each kind that would change what is shown."""
    usage = {"input": 5, "totalTokens": 5}
    return [
        lambda: manager.append_message(user("unseen")),
        lambda: manager.append_session_info("unseen"),
        lambda: manager.append_session_state("archived"),
        lambda: manager.append_agent_status({"summary": "unseen"}),
        lambda: manager.append_git_state({"branch": "unseen"}),
        lambda: manager.append_label_change(first, "unseen"),
        lambda: manager.append_compaction("unseen", first, 5),
        lambda: manager.append_thinking_level_change("xhigh"),
        lambda: manager.append_child_usage_attribution(answer, usage),
        lambda: manager.branch_with_summary(first, "unseen"),
        lambda: manager.branch_to(first),
        lambda: manager.navigate_tree(first, NavigationOptions(label="unseen")),
    ]


async def talked(manager: SessionManager) -> tuple[str, str]:
    """A question and its answer."""
    question = await manager.append_message(user("question"))
    return question, await manager.append_message(assistant("answer"))


# Acknowledged is durable; what is not acknowledged is not shown


@on_loop
async def test_the_barrier_returns_when_everything_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flush: what the user said is synced before any assistant has answered, and before the flush
    returns."""
    synced: list[int] = []
    monkeypatch.setattr(disk, "_fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    async with await made(tmp_path) as manager:
        tasks = [asyncio.ensure_future(manager.append_message(user(f"q{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        await manager.flush_now()
        assert all(task.done() for task in tasks)
        assert synced[-1] == os.path.getsize(file_of(manager))
        with SessionView.open(file_of(manager)) as view:
            assert ids(view.iter_entries()) == [task.result() for task in tasks]


@on_loop
async def test_a_rejected_append_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer rejects an append, of whatever kind: the bytes and all that is shown stay as they
    were, nobody is told of anything, and the next append works."""
    async with await made(tmp_path) as manager:
        first, answer = await talked(manager)
        heard: list[str | None] = []
        manager.on_persist(heard.append)
        before, data = await shown(manager), read_bytes(file_of(manager))

        def full(pieces: list[bytes]) -> None:
            raise StorageFull("no space")

        monkeypatch.setattr(owned(manager)._writer, "_write", full)
        for call in writes(manager, first, answer):
            with pytest.raises(StorageFull):
                await call()
            assert await shown(manager) == before
        assert read_bytes(file_of(manager)) == data
        assert heard == []
        monkeypatch.undo()
        assert manager.get_leaf_id() == answer
        last = await manager.append_message(user("on"))
        assert ids(await manager.read_branch()) == [first, answer, last]
        assert len(heard) == 1


@on_loop
async def test_a_lost_acknowledgement_is_told_and_not_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement is lost: the record may be on disk, the caller gets an error that names
    it, nothing shows it, later appends touch no byte; recovery finds it and erases nothing."""
    async with await made(tmp_path) as manager:
        first, answer = await talked(manager)
        before = await shown(manager)
        heard: list[str | None] = []
        manager.on_persist(heard.append)

        def fail(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(disk, "_fdatasync", fail)
        with pytest.raises(OutcomeUnknown) as caught:
            await manager.append_session_info("perhaps")
        (lost,) = caught.value.entry_ids
        data = read_bytes(file_of(manager))
        assert b"perhaps" in data
        for call in writes(manager, first, answer):
            with pytest.raises(Poisoned):
                await call()
        assert await shown(manager) == before
        assert (heard, read_bytes(file_of(manager))) == ([], data)
        monkeypatch.setattr(disk, "_fdatasync", lambda _: None)
        await manager.recover()
        assert ids(await manager.read_entries()) == [first, answer, lost]
        assert (manager.get_leaf_id(), manager.get_session_name()) == (lost, "perhaps")
        assert read_bytes(file_of(manager)).startswith(data)
        last = await manager.append_message(user("on"))
        assert (await manager.read_branch())[-2:][0].id == lost
        assert manager.get_leaf_id() == last


@on_loop
async def test_what_waits_for_its_acknowledgement_is_not_shown(tmp_path: Path) -> None:
    """Derived facts (name, state, labels, usage, tree, context, position) do not appear before the
    entry that they come from is acknowledged."""
    async with await made(tmp_path) as manager:
        first, answer = await talked(manager)
        before = await shown(manager)
        gate = await Gate(manager).closed()
        tasks = [asyncio.ensure_future(call()) for call in writes(manager, first, answer)[:-1]]
        await asyncio.sleep(0.01)
        assert await shown(manager) == before
        await gate.open()
        await asyncio.gather(*tasks)
        after = await shown(manager)
        named = "leaf name state compactions entries branch tree context usage labels"
        assert [name for name in named.split() if after[name] == before[name]] == []
        assert (after["leaf"], after["name"], after["state"]) == (first, "unseen", "archived")


@on_loop
async def test_the_acknowledged_prefix_is_never_rewritten(tmp_path: Path) -> None:
    """Across flushes, moves, switches and reopenings old bytes stay a prefix of the file, and the
    parent chain hangs together."""
    manager = await made(tmp_path)
    path, wanted, data = file_of(manager), [], b""
    for n in range(12):
        wanted.append(await manager.append_message(user(str(n))))
        if n % 3 == 0:
            await manager.flush_now()
        if n % 4 == 0:
            await manager.append({"type": "request", "request": {}})
        if n % 5 == 0:
            await manager.close()
            manager = await SessionManager.open(path)
        now = read_bytes(path)
        assert now[128:].startswith(data)
        data = now[128:]
    assert ids(await manager.read_branch()) == wanted
    path_entries = await manager.read_branch()
    assert [entry.parent_id for entry in path_entries] == [None, *wanted[:-1]]
    await manager.close()


@on_loop
async def test_appends_keep_inode_mode_and_owner(tmp_path: Path) -> None:
    """Inode, mode, user and group of the journal are those that it had, whatever is appended; a
    mode that somebody gave it stays."""
    async with await made(tmp_path) as manager:
        path = file_of(manager)
        os.chmod(path, 0o640)

        def facts() -> tuple[int, ...]:
            found = os.stat(path)
            mode = stat.S_IMODE(found.st_mode)
            return found.st_ino, mode, found.st_uid, found.st_gid, found.st_nlink

        before = facts()
        first, answer = await talked(manager)
        for call in writes(manager, first, answer):
            await call()
        assert facts() == before
        assert before[1] == 0o640
    async with await SessionManager.open(path) as again:
        await again.append_message(user())
        assert facts() == before


# Owners and names


@on_loop
async def test_a_second_manager_is_refused(tmp_path: Path) -> None:
    """A second manager of the same file is refused, by opening and by switching to it; the first
    one goes on, and a refused switch leaves the second one with what it had."""
    async with await made(tmp_path) as manager, await made(tmp_path) as other:
        await talked(manager)
        own = file_of(other)
        with pytest.raises(Owned) as caught:
            await SessionManager.open(file_of(manager))
        assert caught.value.holder_pid == os.getpid()
        with pytest.raises(Owned):
            await other.set_session_file(file_of(manager))
        assert file_of(other) == own
        await other.append_message(user("other"))
        last = await manager.append_message(user("first"))
        assert manager.get_leaf_id() == last
        assert len(await manager.read_entries()) == 3


@on_loop
async def test_a_link_opens_what_it_leads_to(tmp_path: Path) -> None:
    """A symbolic link opens its target and stays a link, the mode stays; a legacy file behind one
    is refused and not migrated."""
    async with await made(tmp_path) as manager:
        await talked(manager)
        path = file_of(manager)
    os.chmod(path, 0o640)
    link = str(tmp_path / "link.jsonl")
    os.symlink(path, link)
    async with await SessionManager.open(link) as manager:
        last = await manager.append_message(user("through the link"))
    assert os.readlink(link) == path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    with Session.open(path) as session:
        assert session.leaf_id == last
    legacy = tmp_path / "legacy"
    legacy.write_bytes(b'{"type":"session","version":3,"id":"s","cwd":"/w"}\n')
    os.unlink(link)
    os.symlink(legacy, link)
    data, names = read_bytes(link), sorted(os.listdir(tmp_path))
    for opening in (SessionManager.open, SessionManager.open_read_only):
        with pytest.raises(TreeringError, match="import"):
            await opening(link)
    assert (read_bytes(link), sorted(os.listdir(tmp_path))) == (data, names)


@on_loop
async def test_a_session_in_memory_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ephemeral: appends, copies, switches and navigation of a session in memory make no file."""
    monkeypatch.setenv("BASE_CONTEXT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with await SessionManager.in_memory(str(tmp_path)) as manager:
        first, answer = await talked(manager)
        for call in writes(manager, first, answer):
            await call()
        async with await manager.clone() as copy:
            await copy.append_message(user())
        await manager.create_branched_session(answer)
        await manager.new_session()
        await manager.append_message(user())
        await manager.flush_now()
        assert manager.get_session_file() is None
    assert list(tmp_path.iterdir()) == []


@on_loop
async def test_bytes_of_a_stranger_behind_the_end(tmp_path: Path) -> None:
    """Torn bytes of somebody else appear behind the end: an append is refused and writes nothing,
    a strict reopening leaves them and refuses; recovery brings exactly the earlier bytes back, and
    appends work."""
    manager = await made(tmp_path)
    first, answer = await talked(manager)
    path = file_of(manager)
    data = read_bytes(path)
    torn = data + data[-40:-10]
    write_bytes(path, torn)
    for _ in range(2):
        with pytest.raises(SourceChanged):
            await manager.append_message(user("refused"))
        assert read_bytes(path) == torn
    assert manager.get_leaf_id() == answer
    await manager.recover()
    assert read_bytes(path) == data
    kept = [value[2] for value in files_below(str(tmp_path / "home")).values()]
    assert any(found is not None and torn[len(data) :] in found for found in kept)
    last = await manager.append_message(user("on"))
    assert ids(await manager.read_branch()) == [first, answer, last]
    await manager.close()
    data = read_bytes(path)
    write_bytes(path, data + b"torn")
    with pytest.raises(Damaged):
        await SessionManager.open(path, mode="strict")
    assert read_bytes(path) == data + b"torn"
    async with await SessionManager.open(path) as manager:
        assert read_bytes(path) == data
        await manager.append_message(user("on"))


@on_loop
async def test_a_name_that_leads_into_a_protected_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's name becomes a link into the state of an older product while it is owned:
    appends, a return to it by switching, and closing write nothing there; the target is intact."""
    monkeypatch.setenv("HOME", str(tmp_path))
    protected = tmp_path / ".pi/agent/sessions"
    protected.mkdir(parents=True)
    manager = await made(tmp_path)
    first, answer = await talked(manager)
    path = file_of(manager)
    target = protected / "target.jsonl"
    target.write_bytes(read_bytes(path))
    os.rename(path, path + ".moved")
    os.symlink(target, path)
    before = files_below(str(tmp_path / ".pi"))
    for call in writes(manager, first, answer):
        with pytest.raises(SourceChanged):
            await call()
    with pytest.raises(TreeringError):
        await manager.recover()
    async with await made(tmp_path) as other:
        with pytest.raises(Invalid):
            await other.set_session_file(path)
    with pytest.raises(Invalid):
        await SessionManager.open(str(target))
    try:
        await manager.close()
    except SourceChanged:
        pass
    assert files_below(str(tmp_path / ".pi")) == before
    assert os.readlink(path) == str(target)
    with SessionView.open(path + ".moved") as view:
        assert ids(view.iter_entries()) == [first, answer]


# Switching and closing


@on_loop
async def test_what_was_queued_lands_in_the_session_of_its_call(tmp_path: Path) -> None:
    """Late settlement: entries that were handed in before a switch are stored in the old file,
    and not in the new one, although their callers are told afterwards."""
    async with await made(tmp_path) as manager:
        old = file_of(manager)
        gate = await Gate(manager).closed()
        tasks = [asyncio.ensure_future(manager.append_message(user(str(n)))) for n in range(20)]
        switch = asyncio.ensure_future(manager.new_session())
        await asyncio.sleep(0.01)
        with pytest.raises(Conflict):
            await manager.append_message(user("between two sessions"))
        await gate.open()
        assert await switch == file_of(manager) != old
        wanted = await asyncio.gather(*tasks)
        assert await manager.read_entries() == []
        with Session.open(old) as session:
            assert ids(session.iter_entries()) == wanted


@on_loop
async def test_closing_waits_for_a_captured_read(tmp_path: Path) -> None:
    """A captured read that is running is waited for by the end, and answers to its last page."""
    manager = await made(tmp_path)
    wanted = [await manager.append_message(user(str(n))) for n in range(150)]
    entered, leave = asyncio.Event(), asyncio.Event()

    async def read(history: Any) -> list[str]:
        first = await history.page()
        entered.set()
        await leave.wait()
        rest = [entry.id async for entry in history.iterate_entries()]
        return [entry.id for entry in first] + rest[len(first) :]

    reading = asyncio.ensure_future(manager.read_source_history(read))
    await entered.wait()
    closing = asyncio.ensure_future(manager.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    leave.set()
    assert await reading == wanted
    await closing


# Tools


def call(name: str) -> dict[str, Any]:
    return {"type": "toolCall", "id": name, "name": "bash", "arguments": {}}


def result(name: str, text: str = "done") -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": name, "toolName": "bash", "content": content}


@on_loop
async def test_an_intent_is_durable_before_the_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tool execution: the intent is synced when the call returns, before the effect; after a crash
    in between it is there without a result, and nothing is invented."""
    synced: list[int] = []
    monkeypatch.setattr(disk, "_fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    async with await made(tmp_path) as manager:
        asked = await manager.append_message(assistant(content=[call("c1")]))
        intent = await manager.append_tool_invocation(
            "x1", {"toolName": "bash", "toolCallId": "c1"}, {"entryId": asked}
        )
        assert intent == "x1:intent"
        assert synced[-1] == os.path.getsize(file_of(manager))
        with SessionView.open(file_of(manager)) as view:
            assert ids(view.branch()) == [asked, intent]
            stored = json.loads(view.read(intent).raw)
            assert stored["invocation"]["executionId"] == "x1"
            assert [m.role for m in view.read_session_context().messages] == ["assistant"]


@on_loop
async def test_results_settle_in_any_order_and_once(tmp_path: Path) -> None:
    """Tool execution: results that complete out of order are replayed in the order of the calls;
    the same intent or result again is a no-op, another one under the same id a conflict."""
    async with await made(tmp_path) as manager:
        asked = await manager.append_message(assistant(content=[call("c1"), call("c2")]))
        for name in ("1", "2"):
            await manager.append_tool_invocation(
                f"x{name}", {"toolCallId": f"c{name}"}, {"entryId": asked}
            )
        await manager.append_tool_exchange("x2", result("c2"), {"status": "completed"})
        await manager.append_tool_exchange("x1", result("c1"), {"status": "completed"})
        leaf, data = manager.get_leaf_id(), read_bytes(file_of(manager))
        for _ in range(2):
            again = manager.append_tool_exchange("x2", result("c2"), {"status": "completed"})
            assert await again == "x2"
            same = manager.append_tool_invocation("x1", {"toolCallId": "c1"}, {"entryId": asked})
            assert await same == "x1:intent"
        for other in (
            manager.append_tool_exchange("x2", result("c2", "else"), {"status": "completed"}),
            manager.append_tool_exchange("x2", result("c2"), {"status": "failed"}),
            manager.append_tool_invocation("x1", {"toolCallId": "c9"}, {"entryId": asked}),
        ):
            with pytest.raises(Conflict):
                await other
        assert (manager.get_leaf_id(), read_bytes(file_of(manager))) == (leaf, data)
        context = await manager.read_session_context()
        assert [m.get("toolCallId") for m in context.to_list()] == [None, "c1", "c2"]
        shown_ids = [node.id for node in await manager.read_flat_tree()]
        assert shown_ids == [asked, "x2", "x1"]
        path = file_of(manager)
    async with await SessionManager.open(path) as again_owned:
        repeated = again_owned.append_tool_exchange("x1", result("c1"), {"status": "completed"})
        assert await repeated == "x1"
        assert len(await again_owned.read_entries()) == 5


@on_loop
async def test_a_result_without_an_intent_is_stored_alone(tmp_path: Path) -> None:
    """Tool execution, missing intent: the result of a tool that was never started is stored, and no
    intent is made up for it."""
    async with await made(tmp_path) as manager:
        asked = await manager.append_message(assistant(content=[call("c1")]))
        message = result("c1", "never started") | {"isError": True}
        await manager.append_tool_exchange("x1", message, {"status": "not-started"})
        assert ids(await manager.read_entries()) == [asked, "x1"]
        assert await manager.read_entry("x1:intent") is None
        assert [e.type for e in await manager.read_entries()] == ["message", "message"]


@on_loop
async def test_an_oversized_request_is_refused_before_any_byte(tmp_path: Path) -> None:
    """A request event that no frame can hold is refused whole; the session goes on."""
    async with await made(tmp_path) as manager:
        before = read_bytes(file_of(manager))
        huge = {"type": "request", "request": {"text": "x" * (64 * 2**20)}}
        with pytest.raises(LimitExceeded):
            await manager.append(huge)
        assert read_bytes(file_of(manager)) == before
        await manager.append({"type": "request", "request": {"text": "x"}})
        assert manager.get_leaf_id() is None


# Loading


@on_loop
async def test_the_loop_goes_on_while_large_records_are_loaded(tmp_path: Path) -> None:
    """Records of 5 MB and 2 MB come back whole from a session and from a legacy file; opening,
    reading, importing and listing yield to the event loop all the while."""
    texts = ["a" * 5_000_000, "b" * 2_000_000, "\u2028" * 600_000]
    source = tmp_path / "legacy.jsonl"
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": "s", "cwd": "/w"}]
    for n, text in enumerate(texts):
        parent = f"e{n - 1}" if n else None
        lines.append({"type": "message", "id": f"e{n}", "parentId": parent, "message": user(text)})
    source.write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines), "utf-8")
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def yielding(work: Any) -> Any:
        before = turns
        answer = await work
        assert turns > before, "the event loop stood still"
        return answer

    home = str(tmp_path / "home")
    ticking = asyncio.ensure_future(tick())
    manager = await yielding(SessionManager.import_retained_from(source, "/w", home_dir=home))
    path = file_of(manager)
    await manager.close()
    for opening in (SessionManager.open, SessionManager.open_read_only):
        async with await yielding(opening(path)) as opened:
            entries = await yielding(opened.read_entries())
            found = [json.loads(entry.raw)["message"]["content"] for entry in entries]
            assert found == texts
    (info,) = await yielding(SessionManager.list_all(home_dir=home))
    assert info.message_count == 3
    ticking.cancel()


BAD = b'{"type":"message","id":"b"\n'
SOURCES = {
    "CRLF, blank, bad, unterminated": (
        b'{"type":"session","version":3,"id":"s","cwd":"/w"}\r\n\r\n'
        b'{"type":"message","id":"a","parentId":null,"message":{"role":"user"}}\r\n'
        + BAD
        + b'{"type":"message","id":"c","parentId":"a"}'
    ),
    "bad in the middle": b'{"type":"session","version":3,"id":"s"}\n' + BAD + b'{"type":"x"}\n',
    "no header": b'{"type":"message","id":"a","parentId":null}\n',
    "a header of no session": b'{"type":"session","version":3}\n',
    "a future version": b'{"type":"session","version":4,"id":"s"}\n',
    "empty": b"",
    "only blank": b"\r\n\n",
    "a torn header": b'{"type":"session","ver',
    "garbage": bytes(range(256)) * 20,
}


@pytest.mark.parametrize("kind", SOURCES)
@on_loop
async def test_refused_files_stay_as_they_are(tmp_path: Path, kind: str) -> None:
    """Rejected opens, imports, previews and forks of empty, headerless, malformed and future files:
    however often, no byte changes, no header is put in, no session is made of it, and none of the
    two loaders (whole or salvaging) skips in silence what the other one refuses."""
    home = tmp_path / "home"
    (home / "sessions").mkdir(parents=True)
    path = str(home / "sessions/s.jsonl")
    write_bytes(path, SOURCES[kind])
    refusals = (InvalidSource, NotAJournal, Damaged, Unsupported)
    for _ in range(3):
        for opening in (SessionManager.open, SessionManager.open_read_only):
            with pytest.raises(refusals):
                await opening(path)
        for call in (
            lambda: preview_import(path, home_dir=str(home)),
            lambda: import_session(path, home_dir=str(home)),
            lambda: fork_session(path, "/w", home_dir=str(home)),
        ):
            with pytest.raises(refusals):
                call()
        assert len(await SessionManager.list_all(home_dir=str(home))) == 1
        files = {name: v[2] for name, v in files_below(str(home)).items() if v[2] is not None}
        own = {name: data for name, data in files.items() if "/catalogue_." not in name}
        assert own == {path: SOURCES[kind]}  # a list keeps its rows, and nothing else
    with pytest.raises(NotFound):
        await SessionManager.open(str(home / "sessions/none.jsonl"))
    assert not os.path.exists(home / "sessions/none.jsonl")


# Retention


FORGED = (
    b'{"type":"message","id":"a","parentId":null,"nativeOrigin":{"verb":"admission"},'
    b'"retention":"none","qualification":"native-admission","flags":8,'
    b'"message":{"role":"user","content":"x","n":[1.0,1e3,-0,12345678901234567890123]}}'
)


@on_loop
async def test_forged_provenance_is_data_wherever_it_goes(tmp_path: Path) -> None:
    """Provenance that an imported line claims stays a claim: through reading, materialising, views,
    branch copies, forks, repair, and export and import again the bytes (number spellings included)
    are those of the source, every entry keeps its mark, and none is qualified."""
    source, home = tmp_path / "old.jsonl", str(tmp_path / "home")
    header = b'{"type":"session","version":3,"id":"s","cwd":"/w"}\n'
    second = FORGED.replace(b'"id":"a","parentId":null', b'"id":"b","parentId":"a"')
    source.write_bytes(header + FORGED + b"\n" + second + b"\n")
    path = import_session(source, home_dir=home).path
    with SessionView.open(path) as view:
        branch = copy_branch(view, "b", home_dir=home).path
        export_jsonl(view, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == source.read_bytes()
    fork = fork_session(path, "/w", home_dir=home).path
    again = import_session(tmp_path / "again.jsonl", home_dir=home).path
    damaged = fork_session(path, "/w", home_dir=home).path
    data = bytearray(read_bytes(damaged))
    data[100] ^= 1
    write_bytes(damaged, bytes(data))
    assert repair(damaged).done
    for copy in (path, branch, fork, again, damaged):
        async with await SessionManager.open(copy) as manager:
            own = await manager.append_message(user() | {"retention": "retained-import"})
            for entry in (await manager.materialize_source_history(ReadLimits())).entries[:2]:
                assert entry.raw == (FORGED if entry.id == "a" else second)
                assert (entry.retention, entry.qualification) == ("retained-import", None)
                assert await manager.read_entry_retention(entry.id) == "retained-import"
            assert await manager.read_entry_retention(own) is None
        assert index_differences(copy) == []
