"""What a session promises in ordinary use, across reopening, with and without its index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from session_helpers import answers, custom, drop_index, index_differences, new, user, view_answers

from treering.engine import (
    Closed,
    Conflict,
    InvalidEntry,
    InvalidId,
    NotFound,
    Owned,
    ReadOnly,
    Session,
    SessionView,
    TreeringError,
    UnknownEntry,
)
from treering.engine.session.entries import (
    AgentStatusEntry,
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    LabelEntry,
    MessageEntry,
    ModelChangeEntry,
    SessionInfoEntry,
    TextContent,
    ThinkingLevelChangeEntry,
    UserMessage,
)


def reopened(session: Session, *, without_index: bool = False) -> Session:
    """Close and open again."""
    session.close()
    if without_index:
        drop_index(session.path)
    return Session.open(session.path)


def test_create_makes_a_whole_session(tmp_path: Path) -> None:
    """A new session has its header at once, no entry, no position; a second one of the id is
    refused and changes nothing."""
    session = new(tmp_path, session_id="abc", parent_session="/other/p.jsonl")
    assert session.id == "abc"
    assert session.header.cwd == "/work"
    assert session.header.version == 3
    assert session.header.parent_session == "/other/p.jsonl"
    assert session.leaf_id is None
    assert session.leaf() is None
    assert session.branch() == []
    assert session.entries() == []
    with pytest.raises(Conflict):
        new(tmp_path, session_id="abc")
    session.append(custom("x"))
    session.close()
    with Session.open(session.path) as again:
        assert again.header.cwd == "/work"
        assert again.has("x")


def test_opening_and_closing_changes_nothing(tmp_path: Path) -> None:
    """An owner that appends nothing leaves the journal's bytes alone."""
    session = new(tmp_path)
    session.append(custom("x"))
    session.close()
    before = Path(session.path).read_bytes()
    for _ in range(3):
        with Session.open(session.path) as again:
            answers(again)
    assert Path(session.path).read_bytes() == before


TYPED = [
    MessageEntry(message=UserMessage(content=[TextContent(text="hi")])),
    MessageEntry(message=UserMessage(content="plain")),
    ThinkingLevelChangeEntry(thinking_level="high"),
    ModelChangeEntry(provider="p", model_id="m"),
    CompactionEntry(summary="s", tokens_before=5),
    BranchSummaryEntry(summary="b", from_id="root"),
    CustomEntry(custom_type="c", data={"k": [1, None, "x"]}),
    SessionInfoEntry(name="n"),
    AgentStatusEntry(status={"verdict": "idle"}),
]


@pytest.mark.parametrize("entry", TYPED, ids=lambda e: e.type)
def test_typed_entries_come_back_typed(tmp_path: Path, entry: Any) -> None:
    """A typed entry is stored with id, parentId and timestamp, and decodes to the same."""
    session = new(tmp_path)
    first = session.append(custom())
    entry_id = session.append(entry)
    session = reopened(session)
    stored = session.read(entry_id)
    assert stored.type == entry.type
    assert stored.parent_id == first
    assert stored.timestamp_ms is not None
    decoded = stored.decode()
    assert type(decoded) is type(entry)
    for name in type(entry).__struct_fields__:
        if name not in ("id", "parent_id", "timestamp"):
            assert getattr(decoded, name) == getattr(entry, name)
    members = json.loads(stored.raw)
    assert list(members)[:4] == ["type", "id", "parentId", "timestamp"]
    session.close()


def test_raw_bytes_are_exact(tmp_path: Path) -> None:
    """Spacing, key order, number spellings, escapes, U+2028 and a CR come back byte for byte (F122,
    F68)."""
    raws = [
        b'{ "id" : "r1","type":"custom", "n":[1E2,-0,1.10,12345678901234567890123,1e-400]}',
        '{"type":"custom","id":"r2","parentId":"r1","t":"\u2028\u2029\x85\u00e9\\u0041\\n"}'.encode(),
        b'{"type":"custom","id":"r3","parentId":"r2","z":1,"a":{"y":1,"x":2}}\r',
        b'\t{"type":"custom","id":"r4","parentId":null} ',
        b'{"type":"some_future_kind","id":"r5","parentId":"r4","unknown":{"deep":[{}]}}',
        b'{"type":"custom","id":"r6","parentId":"r4","d":1,"d":2}',
    ]
    session = new(tmp_path)
    assert session.append_many(raws) == ["r1", "r2", "r3", "r4", "r5", "r6"]
    for without in (False, True):
        session = reopened(session, without_index=without)
        assert [entry.raw for entry in session.entries()] == raws
        assert session.read("r5").type == "some_future_kind"
        assert isinstance(session.read("r5").decode(), UnknownEntry)
        assert [e.id for e in session.children(None)] == ["r1", "r4"]
        assert session.leaf_id == "r6"
    session.close()


@pytest.mark.parametrize(
    "number",
    [2**53 + 1, 2**63 - 1, 2**63, 2**64, 19933688932870350000, -(2**63) - 1, 10**100],
)
def test_F122_big_integers_are_exact(tmp_path: Path, number: int) -> None:
    """Integers of any size survive, as values in a mapping and as spelling in bytes, also after a
    rebuild of the index, wherever they stand (usage totals, timestamps)."""
    session = new(tmp_path)
    usage = {"input": number, "output": 1, "totalTokens": number, "cost": {"total": 1}}
    message = {"role": "assistant", "content": [], "usage": usage, "timestamp": number}
    given = b'{"type":"message","id":"raw","parentId":null,"timestamp":%d,"n":%d}' % (
        number,
        number,
    )
    if number < 2**64 and number >= -(2**63):
        session.append({"type": "message", "id": "m", "message": message})
    session.append(given)
    for without in (False, True):
        session = reopened(session, without_index=without)
        assert session.read("raw").raw == given
        if session.has("m"):
            assert json.loads(session.read("m").raw)["message"] == message
    session.close()
    assert index_differences(session.path) == []


def test_append_many_chains_and_is_in_order(tmp_path: Path) -> None:
    """Entries appended together hang below each other unless they say otherwise."""
    session = new(tmp_path)
    ids = session.append_many([custom("a"), custom(), custom("c", parentId="a"), custom()])
    assert session.leaf_id == ids[3]
    assert [session.read(i).parent_id for i in ids] == [None, "a", "a", "c"]
    assert [e.id for e in session.branch()] == ["a", "c", ids[3]]
    assert session.append_many([]) == []
    session.close()


def test_append_many_refuses_before_it_writes(tmp_path: Path) -> None:
    """One bad entry in a call: nothing of the call is stored, in append_many and in a batch."""
    session = new(tmp_path)
    session.append(custom("a"))
    before = session._writer.size
    for bad in (custom("b", parentId="nobody"), {"type": ""}, custom("\0"), custom(x=float("nan"))):
        with pytest.raises(TreeringError):
            session.append_many([custom(), bad, custom()])
    with pytest.raises(NotFound), session.batch() as batch:
        batch.append(custom("in1"))
        batch.append(custom("in2", parentId="nobody"))
    assert session._writer.size == before
    assert session.leaf_id == "a"
    assert [e.id for e in session.entries()] == ["a"]
    session.close()


def test_batch_is_one_piece(tmp_path: Path) -> None:
    """A batch shows its entries together, gives its ids, chains them, and is dropped by an
    exception."""
    session = new(tmp_path)
    with session.batch() as batch:
        batch.append(custom("a"))
        batch.append(custom())
        assert session.entries() == []
    assert batch.ids[0] == "a"
    assert [e.id for e in session.branch()] == batch.ids
    with pytest.raises(ValueError, match="stop"), session.batch() as dropped:
        dropped.append(custom("never"))
        raise ValueError("stop")
    assert not session.has("never")
    with pytest.raises(Closed):
        batch.append(custom())
    with session.batch() as empty:
        pass
    assert empty.ids == []
    session = reopened(session)
    assert [e.id for e in session.entries()] == batch.ids
    session.close()


def test_a_batch_object_cannot_repeat_itself(tmp_path: Path) -> None:
    """Entering the same batch again never writes its first entries again, nor dropped ones
    (S15)."""
    session = new(tmp_path)
    batch = session.batch()
    with batch:
        batch.append(custom())
    try:
        with batch:
            batch.append(custom())
    except TreeringError:
        pass
    assert len(session.entries()) <= 2
    dropped = session.batch()
    with pytest.raises(ValueError, match="x"), dropped:
        dropped.append(custom("dropped"))
        raise ValueError("x")
    try:
        with dropped:
            dropped.append(custom("kept"))
    except TreeringError:
        pass
    assert not session.has("dropped")
    session.close()


def test_position_is_durable(tmp_path: Path) -> None:
    """branch_to survives reopening with and without an index, and after a crash; the next append
    hangs below it."""
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b"), custom("c")])
    for target in ("a", None, "b"):
        session.branch_to(target)
        for without in (False, True):
            session = reopened(session, without_index=without)
            assert session.leaf_id == target
        assert view_answers(session.path)["leaf"] == target
    child = session.append(custom())
    assert session.read(child).parent_id == "b"
    with pytest.raises(NotFound):
        session.branch_to("nobody")
    assert session.leaf_id == child
    session.close()


def test_requests_never_move_the_position(tmp_path: Path) -> None:
    """A request is in the tree but not a position that appends follow, alone, in a list, in a
    batch."""
    session = new(tmp_path)
    session.append(custom("a"))
    session.append({"type": "request", "id": "q1", "request": {}})
    assert session.leaf_id == "a"
    session.append_many(
        [{"type": "request", "id": "q2"}, custom("b"), {"type": "request", "id": "q3"}]
    )
    assert session.leaf_id == "b"
    with session.batch() as batch:
        batch.append({"type": "request", "id": "q4"})
    assert session.leaf_id == "b"
    for without in (False, True):
        session = reopened(session, without_index=without)
        assert session.leaf_id == "b"
        assert [e.id for e in session.branch()] == ["a", "b"]
        assert [e.id for e in session.by_kind("request")] == ["q1", "q2", "q3", "q4"]
        assert session.read("q1").parent_id == "a"
    session.close()


def test_labels_names_kinds_and_pages(tmp_path: Path) -> None:
    """The last label wins, None and "" clear, unknown targets are refused; names and pages
    likewise."""
    session = new(tmp_path)
    ids = session.append_many([user(f"t{i}") for i in range(600)])
    session.set_label(ids[1], "one")
    session.set_label(ids[1], "two")
    session.set_label(ids[2], "x")
    session.set_label(ids[2], None)
    session.append(LabelEntry(target_id=ids[3], label="typed"))
    with pytest.raises(NotFound):
        session.set_label("nobody", "x")
    with pytest.raises(InvalidEntry):
        session.append({"type": "label", "label": "x"})
    for without in (False, True):
        session = reopened(session, without_index=without)
        assert session.label(ids[1]) == "two"
        assert session.label(ids[2]) is None
        assert [(e.id, t) for e, t in session.labels()] == [(ids[1], "two"), (ids[3], "typed")]
        assert [(e.id, t) for e, t in session.labels(limit=1)] == [(ids[1], "two")]
    session.set_name("  first ")
    assert session.name == "first"
    session.set_name(" ")
    assert session.name is None
    pages: list[str] = []
    after = 0
    while page := session.entries(after=after, limit=7):
        pages += [e.id for e in page]
        after = page[-1].sequence
    assert pages[:600] == ids
    path: list[str] = []
    while piece := session.branch(ids[-1], start=len(path), limit=11):
        path += [e.id for e in piece]
    assert path == ids
    assert session.kinds()["message"] == 600
    newest = session.by_kind("message", newest_first=True, limit=2)
    assert [e.id for e in newest] == ids[:-3:-1]
    assert session.depth(ids[10]) == 10
    assert session.parent(ids[0]) is None
    session.close()


def test_children_pages(tmp_path: Path) -> None:
    """All children of one entry, in order, whatever the page size."""
    session = new(tmp_path)
    root = session.append(custom("root"))
    kids = [session.append(custom(parentId=root)) for _ in range(25)]
    found: list[str] = []
    after = 0
    while page := session.children(root, after=after, limit=4):
        found += [e.id for e in page]
        after = page[-1].sequence
    assert found == kids
    session.close()


def test_retention_has_three_answers(tmp_path: Path) -> None:
    """Unknown raises; an own entry is unmarked (None)."""
    session = new(tmp_path)
    session.append(custom("a"))
    assert session.retention("a") is None
    with pytest.raises(NotFound):
        session.retention("nobody")
    session.close()


@pytest.mark.parametrize("reopen", ["same", "reopened", "without index"])
@pytest.mark.parametrize("form", ["mapping", "bytes"])
def test_repeating_an_append_is_a_no_op(tmp_path: Path, reopen: str, form: str) -> None:
    """The same id and content again: no new frame, the id comes back, the position stays; other
    content is a conflict and writes nothing."""
    session = new(tmp_path)
    session.append(custom("first"))
    entry: Any = custom("x", data={"a": 1, "n": None})
    if form == "bytes":
        entry = b'{"type":"custom", "id":"x","parentId":"first","n":1.50}'
    session.append(entry)
    session.append(custom("y"))
    if reopen != "same":
        session = reopened(session, without_index=reopen == "without index")
    size = session._writer.size
    assert session.append(entry) == "x"
    assert session.append_many([entry]) == ["x"]
    with session.batch() as batch:
        batch.append(entry)
    assert batch.ids == ["x"]
    assert session.leaf_id == "y"
    others: list[Any] = [custom("x"), custom("x", data={"a": 2, "n": None})]
    others.append(b'{"type":"custom","id":"x","parentId":"first","n":1.5}')
    others.append({"type": "request", "id": "x", "data": {"a": 1, "n": None}})
    for other in others:
        with pytest.raises(Conflict):
            session.append(other)
    with pytest.raises(Conflict):
        session.append_many([custom("new"), custom("new", data=2)])
    assert session._writer.size == size
    session.close()


def test_F17_unknown_parents_are_refused(tmp_path: Path) -> None:
    """A parent that is not there is refused before anything is written; an explicit one is used."""
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b")])
    for bad in ("nobody", "A", ""):
        with pytest.raises((NotFound, InvalidEntry, InvalidId)):
            session.append(custom("c", parentId=bad))
        with pytest.raises((NotFound, InvalidEntry, InvalidId)):
            session.append(b'{"type":"custom","id":"c","parentId":"%s"}' % bad.encode())
    with pytest.raises((NotFound, InvalidEntry, Conflict)):
        session.append(custom("self", parentId="self"))
    with pytest.raises((NotFound, InvalidEntry, Conflict)):
        session.append(b'{"type":"custom","id":"self","parentId":"self"}')
    with pytest.raises(NotFound):
        session.append_many([custom("p", parentId="q"), custom("q")])
    session.append(custom("c", parentId="a"))
    assert session.counts()["unresolved"] == 0
    session.close()


def test_compaction_keeps_only_an_ancestor(tmp_path: Path) -> None:
    """firstKeptEntryId must be on the path of the compaction: indexed, pending, and within one
    call."""
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b"), custom("c")])
    session.append(custom("side", parentId="a"))
    session.branch_to("c")

    def compaction(kept: str, **more: Any) -> dict[str, Any]:
        return {"type": "compaction", "summary": "s", "firstKeptEntryId": kept, **more}

    for kept in ("side", "nobody"):
        with pytest.raises(NotFound):
            session.append(compaction(kept))
    session.append(compaction("b"))
    session = reopened(session)
    with pytest.raises(NotFound):
        session.append(compaction("side"))
    session.append(compaction("a"))
    session.append(compaction("c", parentId="c"))
    with pytest.raises(NotFound):
        session.append(compaction("c", parentId="b"))
    with pytest.raises(NotFound):
        session.append(compaction("a", parentId=None))
    session.append_many([custom("n1"), compaction("n1"), compaction("n1")])
    with pytest.raises(NotFound):
        session.append_many([custom("n2", parentId="a"), compaction("n1")])
    with pytest.raises((NotFound, InvalidEntry)):
        session.append(compaction("self", id="self"))
    session.close()


def test_F103_clocks_that_jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is the order of appends whatever the clock says; nothing is refused."""
    from treering.engine import environment

    now = environment.now_ms()
    session = new(tmp_path)
    for moment in (now, now + 31_536_000_000_000, now - 86_400_000, 0, now):
        monkeypatch.setattr(environment, "now_ms", lambda moment=moment: moment)
        session.append(custom(f"at{len(session.entries())}"))
        session = reopened(session)
    assert [e.id for e in session.branch()] == [f"at{i}" for i in range(5)]
    session.close()


def test_a_view_writes_nothing(tmp_path: Path) -> None:
    """A view answers as the owner, refuses appends, works while the session is owned, and after
    close refuses with Closed."""
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b")])
    session.branch_to("a")
    with SessionView.open(session.path) as view:
        assert answers(view) == answers(session)
        with pytest.raises(ReadOnly):
            view.append(custom())
        assert not any(entry.unproven for entry in view.entries()[:1])
    with pytest.raises(Closed):
        view.entries()
    with pytest.raises(Closed):
        view.header  # noqa: B018
    session.close()


def test_everything_is_closed_after_close(tmp_path: Path) -> None:
    """After close every call says Closed; close again is harmless (S13)."""
    session = new(tmp_path)
    session.append(custom("a"))
    session.close()
    session.close()
    calls: list[Any] = [
        lambda: session.append(custom()),
        lambda: session.append_many([custom()]),
        lambda: session.batch().__enter__(),
        lambda: session.branch_to(None),
        lambda: session.set_name("x"),
        lambda: session.set_label("a", "x"),
        lambda: session.sync(),
        lambda: session.recover(),
        lambda: session.read("a"),
        lambda: session.has("a"),
        lambda: session.exists("a"),
        lambda: session.leaf(),
        lambda: session.entries(),
        lambda: list(session.iter_entries()),
        lambda: session.branch(),
        lambda: session.children(None),
        lambda: session.labels(),
        lambda: session.counts(),
        lambda: session.name,
        lambda: session.header,
        lambda: session.header_bytes(),
        lambda: session.provenance(),
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()


def test_a_second_owner_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """The lock holds between two handles of one process as well, also through a link."""
    import os

    session = new(tmp_path)
    with pytest.raises(Owned) as caught:
        Session.open(session.path)
    assert caught.value.holder_pid == os.getpid()
    link = str(tmp_path / "link.jsonl")
    os.symlink(session.path, link)
    with pytest.raises(Owned):
        Session.open(link)
    session.append(custom("a"))
    session.close()
    with Session.open(link) as again:
        assert again.has("a")


def test_pages_do_not_hold_all_bytes(tmp_path: Path) -> None:
    """F34, F36: going through large entries holds some of them, not a page of a thousand."""
    import tracemalloc

    session = new(tmp_path)
    for _ in range(10):
        session.append_many([user("x" * 1_000_000) for _ in range(20)])
    session = reopened(session)
    tracemalloc.start()
    count = sum(1 for _ in session.iter_entries())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 200
    assert peak < 100_000_000
    session.close()


def test_F34_a_bad_page_argument_is_the_callers_fault(tmp_path: Path) -> None:
    """S08, S09: limits and cursors that are no sensible numbers give a typed error or an empty
    page,
    and never cost the index."""
    session = new(tmp_path)
    session.append_many([custom("a"), custom("b")])
    right = answers(session)
    for value in (-1, 2**63, 2**64, -(2**70), None, "x", 1.5, b"1"):
        for call in (
            lambda v: session.entries(limit=v),
            lambda v: session.entries(after=v),
            lambda v: session.branch(start=v),
            lambda v: session.branch(limit=v),
            lambda v: session.children(None, limit=v),
            lambda v: session.children("a", after=v),
            lambda v: session.labels(limit=v),
            lambda v: session.labels(after=v),
            lambda v: session.by_kind("custom", limit=v),
            lambda v: session.by_kind("custom", after=v),
            lambda v: session.by_kind("custom", before=v),
            lambda v: list(session.iter_entries(after=v)),
        ):
            try:
                call(value)
            except (TreeringError, TypeError):
                pass
    for text in ("\ud800", "\0", "x" * 100_000):
        assert session.by_kind(text) == []
        assert session.by_kind("custom", role=text) == []
        assert not session.has(text)
        with pytest.raises((NotFound, InvalidId)):
            session.read(text)
        with pytest.raises((NotFound, InvalidId)):
            session.branch_to(text)
    assert session.index_faults == []
    assert answers(session) == right
    session.close()
