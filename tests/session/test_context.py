"""The model context: the documented scenarios, and its rules one by one.

Every context here is built twice, through the index and from the list of all entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from context_helpers import Json, imported
from context_helpers import same_both_ways as at
from msgspec import UNSET
from session_helpers import custom, new, user

from treering.engine import Closed, LimitExceeded, NotFound, Session, SessionView
from treering.engine.session.context import build_session_context
from treering.engine.session.context_rules import ContextModel, SessionContext, parts
from treering.engine.session.context_usage import (
    ContextUsage,
    build_context_usage,
    read_context_usage,
)

TIME = "2026-01-02T03:04:05.678Z"
TIME_MS = 1_767_323_045_678


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with new(tmp_path) as session:
        yield session


def texts(context: SessionContext) -> list[Any]:
    """Of each message what it says, in short."""
    return [m.get("summary", m.get("content")) for m in context.to_list()]


def said(text: str, entry_id: str, role: str = "user", **more: Any) -> Json:
    """A message of anybody."""
    message = {"role": role, "content": text} | more
    return {"type": "message", "id": entry_id, "timestamp": TIME, "message": message}


def answer(text: str, entry_id: str, *calls: str, **more: Any) -> Json:
    """An assistant message with text and tool calls."""
    content: list[Json] = [{"type": "text", "text": text}]
    content += [{"type": "toolCall", "id": call, "name": "bash", "arguments": {}} for call in calls]
    message = {"role": "assistant", "content": content, "provider": "anthropic", "model": "opus"}
    return {"type": "message", "id": entry_id, "timestamp": TIME, "message": message | more}


def result(call: str, entry_id: str) -> Json:
    """What a tool answered to that call."""
    return said(f"result of {call}", entry_id, "toolResult", toolCallId=call, isError=False)


def compaction(entry_id: str, first_kept: str | None, summary: str = "so far", **more: Any) -> Json:
    entry = {"type": "compaction", "id": entry_id, "timestamp": TIME, "summary": summary}
    kept = {} if first_kept is None else {"firstKeptEntryId": first_kept}
    return entry | kept | {"tokensBefore": 50_000} | more


def attribution(target: str, total: int, entry_id: str) -> Json:
    usage = {"input": total, "totalTokens": 7}
    kind = {"type": "child_usage_attributed", "id": entry_id, "timestamp": TIME}
    return kind | {"targetId": target, "childUsage": usage, "aggregateUsage": usage}


def chained(*entries: Json) -> list[Json]:
    """Each below the one before it."""
    ids = [None, *(entry["id"] for entry in entries)]
    return [{"parentId": parent} | entry for parent, entry in zip(ids, entries, strict=False)]


# The scenarios


def test_no_entries(session: Session) -> None:
    """Context builder: empty. No messages, level off, tier default, no model."""
    assert at(session) == SessionContext()
    assert at(session, None) == SessionContext()
    found = SessionContext()
    assert (found.messages, found.thinking_level, found.service_tier) == ((), "off", "default")
    assert found.model is None
    assert found.to_list() == []
    assert build_session_context([]) == build_session_context([], "gone") == found


def test_one_message(session: Session) -> None:
    """Context builder: single. One user message is the whole context."""
    entry_id = session.append(user("hello"))
    (message,) = at(session).messages
    assert message.decode() == {"role": "user", "content": "hello"}
    assert (message.role, message.entry_id) == ("user", entry_id)
    assert message.sequence == session.read(entry_id).sequence


def test_conversation(session: Session) -> None:
    """Context builder: conversation. Turns stand in order; before any entry there are none."""
    session.append_many([said("a", "1"), answer("b", "2"), said("c", "3"), answer("d", "4")])
    found = at(session)
    assert [message.role for message in found.messages] == ["user", "assistant"] * 2
    assert [message.entry_id for message in found.messages] == ["1", "2", "3", "4"]
    assert at(session, None) == SessionContext()


def test_thinking_level(session: Session) -> None:
    """Context builder: thinking tracking. The nearest change on the path; it is no message."""
    session.append_many([said("a", "1"), {"type": "thinking_level_change", "thinkingLevel": "low"}])
    session.append_many(
        [{"type": "thinking_level_change", "thinkingLevel": "high"}, said("b", "4")]
    )
    assert at(session).thinking_level == "high"
    assert at(session, "1").thinking_level == "off"
    assert texts(at(session)) == ["a", "b"]


def test_service_tier(session: Session) -> None:
    """Context builder: tier tracking, on the active branch only."""
    session.append_many(
        [said("a", "1"), {"type": "service_tier_change", "serviceTier": "priority"}]
    )
    assert at(session).service_tier == "priority"
    session.branch_to("1")
    assert at(session).service_tier == "default"


def test_model_from_an_answer_and_from_a_change(session: Session) -> None:
    """Context builder: model tracking (assistant vs change entry). The nearer of the two counts."""
    session.append_many([said("a", "1"), answer("b", "2")])
    assert at(session).model == ContextModel("anthropic", "opus")
    session.append({"type": "model_change", "id": "3", "provider": "openai", "modelId": "five"})
    assert at(session).model == ContextModel("openai", "five")
    session.append(answer("c", "4", provider="x", model="y", stopReason="error"))
    assert at(session).model == ContextModel("x", "y")
    assert at(session, "2").model == ContextModel("anthropic", "opus")


def test_summary_before_what_was_kept(session: Session) -> None:
    """Context builder: summary before kept. Then what follows the compaction."""
    session.append_many([said("a", "1"), answer("b", "2"), said("c", "3"), answer("d", "4")])
    session.append_many([compaction("5", "3"), said("e", "6")])
    found = at(session)
    assert found.to_list()[0] == {
        "role": "compactionSummary",
        "summary": "so far",
        "tokensBefore": 50_000,
        "retainedMessageCount": 2,
        "timestamp": TIME_MS,
    }
    assert [message.entry_id for message in found.messages] == ["5", "3", "4", "6"]


def test_keeping_from_the_first_entry(session: Session) -> None:
    """Context builder: keep from first. Everything above is kept."""
    session.append_many([said("a", "1"), said("b", "2"), compaction("3", "1")])
    assert texts(at(session)) == ["so far", "a", "b"]
    assert at(session).to_list()[0]["retainedMessageCount"] == 2


def test_custom_instructions(session: Session) -> None:
    """Context builder: customInstructions reach the message of the summary."""
    session.append_many([said("a", "1"), compaction("2", "1", customInstructions="only names")])
    assert at(session).to_list()[0]["customInstructions"] == "only names"


def test_the_newest_of_two_compactions(session: Session) -> None:
    """Context builder: two compactions, latest. The older one shows nothing, even where kept."""
    session.append_many([said("a", "1"), compaction("2", "1", "first"), said("b", "3")])
    session.append_many([compaction("4", "1", "second"), said("c", "5")])
    assert texts(at(session)) == ["second", "a", "b", "c"]
    assert texts(at(session, "3")) == ["first", "a", "b"]


def test_an_explicit_leaf(session: Session) -> None:
    """Context builder: explicit leaf. Either end of a fork, wherever the position is."""
    session.append_many([said("a", "1"), said("left", "2")])
    session.append(said("right", "3") | {"parentId": "1"})
    assert texts(at(session, "2")) == ["a", "left"]
    assert texts(at(session, "3")) == ["a", "right"] == texts(at(session))


def test_branch_summary_in_the_path(session: Session) -> None:
    """Context builder: branch summary in path, at its place; an empty one shows nothing."""
    session.append_many([said("a", "1"), said("left", "2")])
    session.branch_to("1")
    summary = {"type": "branch_summary", "id": "3", "timestamp": TIME, "fromId": "2"}
    session.append(summary | {"summary": "went left", "details": {"readFiles": []}})
    session.append(summary | {"id": "4", "summary": ""})
    session.append(said("b", "5"))
    assert at(session).to_list() == [
        {"role": "user", "content": "a"},
        {"role": "branchSummary", "summary": "went left", "fromId": "2", "timestamp": TIME_MS},
        {"role": "user", "content": "b"},
    ]


def test_branches_with_a_compaction_and_a_summary(session: Session) -> None:
    """Context builder: tree with branches and compaction. Two ends give two contexts."""
    session.append_many([said("a", "1"), answer("b", "2"), said("c", "3"), compaction("4", "2")])
    session.append(said("d", "5"))
    session.branch_to("2")
    session.append({"type": "branch_summary", "id": "6", "summary": "left", "fromId": "5"})
    session.append(said("e", "7"))
    assert [message.entry_id for message in at(session).messages] == ["1", "2", "6", "7"]
    assert [message.entry_id for message in at(session, "5").messages] == ["4", "2", "3", "5"]


def test_an_unknown_leaf(session: Session) -> None:
    """Context builder: unknown leaf, last entry. So for a list; a session says that it is not there."""
    session.append_many([said("a", "1"), said("b", "2")])
    entries = session.entries()
    last = session.read_session_context("2")
    assert build_session_context(entries, "gone") == build_session_context(entries) == last
    assert build_context_usage(entries, "gone") is None
    with pytest.raises(NotFound):
        session.read_session_context("gone")
    with pytest.raises(NotFound):
        read_context_usage(session, "gone")


def test_orphans(tmp_path: Path) -> None:
    """Context builder: orphan parents. A path that does not reach a root begins where it breaks."""
    lines = [
        said("a", "1"),
        said("b", "2") | {"parentId": "lost"},
        said("c", "3") | {"parentId": "2"},
    ]
    with Session.open(imported(tmp_path, lines)) as session:
        assert texts(at(session)) == ["b", "c"]
        assert session.branch()[0].unresolved == "missing"


# Rules


def test_what_is_never_shown(session: Session) -> None:
    """Bookkeeping, settings, extension state, unknown kinds: none of it is in the context."""
    session.append(said("a", "1"))
    session.append_many(
        [
            custom(),
            {"type": "label", "targetId": "1", "label": "here"},
            {"type": "session_info", "name": "named"},
            {"type": "session_state", "state": {"status": "active"}},
            {"type": "agent_status", "status": {"summary": "busy"}},
            {"type": "git_state", "git": {}},
            {"type": "tool_intent", "invocation": {"toolName": "bash"}},
            {"type": "unknown_future_kind", "message": {"role": "user", "content": "no"}},
        ]
    )
    session.append({"type": "request", "request": {"message": {"role": "user"}}})
    assert texts(at(session)) == ["a"]


def test_custom_messages(session: Session) -> None:
    """Messages of extensions take part, hidden ones too; their members stay as they were spelled."""
    head = b'{"type":"custom_message","id":"%d","parentId":null,"timestamp":"' + TIME.encode()
    more = b'","customType":"todo","content":[{"type":"text","text":"x"}],"display":false'
    session.append((head % 1) + more + b',"details":{"n": 1.0,"big":123456789012345678901}}')
    session.append((head % 2) + b'","customType":"todo","content":"plain","display":true}')
    first, second = at(session, "1").messages[0], at(session, "2").messages[0]
    assert first.raw == (
        b'{"role":"custom","customType":"todo","content":[{"type":"text","text":"x"}],'
        b'"display":false,"details":{"n": 1.0,"big":123456789012345678901},"timestamp":%d}'
        % TIME_MS
    )
    assert "details" not in second.decode()


def test_messages_keep_their_bytes(session: Session) -> None:
    """Numbers as they are spelled, unknown members, unknown roles, white space."""
    message = b'{ "role":"oracle", "n":[1.0,1e3,-0,12345678901234567890123],"more":{"a":null} }'
    session.append(b'{"type":"message","id":"1","parentId":null,"message": ' + message + b" }")
    (found,) = at(session).messages
    assert found.raw == message
    assert found.role == "oracle"
    assert found.decode()["n"] == [1.0, 1000.0, 0, 12345678901234567890123]


def test_odd_messages_of_old_files(tmp_path: Path) -> None:
    """Lone surrogates, numbers beyond a double, no role, no message, a message that is none."""
    lines = [
        b'{"type":"message","id":"1","parentId":null,"message":{"role":"user","content":"\\ud800"}}',
        b'{"type":"message","id":"2","parentId":"1","message":{"content":"who?","n":1e400}}',
        b'{"type":"message","id":"3","parentId":"2"}',
        b'{"type":"message","id":"4","parentId":"3","message":"text"}',
        b'{"type":"message","id":"5","parentId":"4","message":null}',
        b'{"type":"message","id":"6","parentId":"5","message":{"role":"a","role":"b"}}',
        b'{"type":"message","id":"7","parentId":"6","message":{"role":5,"content":[]}}',
        b'{"type":"branch_summary","id":"8","parentId":"7","summary":5}',
        b'{"type":"custom_message","id":"9","parentId":"8","content":"","timestamp":"never"}',
    ]
    with Session.open(imported(tmp_path, lines)) as session:
        found = at(session)
        assert [message.role for message in found.messages] == ["user", None, "b", None, "custom"]
        assert found.messages[0].decode()["content"] == "\ud800"
        assert found.messages[1].decode() == {"content": "who?", "n": float("inf")}
        assert found.messages[4].decode() == {"role": "custom", "content": "", "timestamp": None}


def test_odd_settings_of_old_files(tmp_path: Path) -> None:
    """A setting that states nothing usable is the default; a half-named model is half-known."""
    lines = chained(
        {"type": "thinking_level_change", "id": "1", "thinkingLevel": "low"},
        {"type": "thinking_level_change", "id": "2", "thinkingLevel": 5},
        {"type": "service_tier_change", "id": "3"},
        {"type": "model_change", "id": "4", "modelId": "five"},
        {"type": "message", "id": "5", "message": {"role": "assistant", "content": None}},
    )
    with Session.open(imported(tmp_path, lines)) as session:
        found = at(session)
        assert (found.thinking_level, found.service_tier) == ("off", "default")
        assert found.model is None
        assert at(session, "4").model == ContextModel(None, "five")


def test_settings_before_a_compaction_count(session: Session) -> None:
    """Context builder: a compaction cuts messages, not the settings that were made above it."""
    session.append({"type": "thinking_level_change", "id": "1", "thinkingLevel": "high"})
    session.append({"type": "service_tier_change", "id": "2", "serviceTier": "flex"})
    session.append_many([answer("a", "3"), said("b", "4"), compaction("5", "4")])
    found = at(session)
    assert (found.thinking_level, found.service_tier) == ("high", "flex")
    assert found.model == ContextModel("anthropic", "opus")
    assert texts(found) == ["so far", "b"]


def test_a_compaction_that_keeps_nothing(session: Session) -> None:
    """No first kept entry: the summary, and what follows. An empty summary is one, too."""
    session.append_many([said("a", "1"), compaction("2", None, ""), said("b", "3")])
    assert texts(at(session)) == ["", "b"]
    assert at(session).to_list()[0]["retainedMessageCount"] == 0


@pytest.mark.parametrize("kept", ["lost", "4", "5", "side"], ids=str)
def test_a_kept_entry_that_is_not_above(tmp_path: Path, kept: str) -> None:
    """Compaction boundaries of imports: missing, the compaction itself, below it, on another branch:
    nothing is kept."""
    lines = chained(said("a", "1"), said("b", "2"), said("c", "3"), compaction("4", kept))
    lines += [said("side", "side") | {"parentId": "2"}, said("d", "5") | {"parentId": "4"}]
    with Session.open(imported(tmp_path, lines)) as session:
        assert texts(at(session)) == ["so far", "d"]


def test_a_kept_entry_that_shows_nothing(session: Session) -> None:
    """Keeping from a label on: the messages behind it."""
    session.append_many(
        [said("a", "1"), {"type": "label", "id": "2", "targetId": "1", "label": "x"}]
    )
    session.append_many([said("b", "3"), compaction("4", "2")])
    assert texts(at(session)) == ["so far", "b"]
    session.append(compaction("5", "4", "again"))
    assert texts(at(session)) == ["again"]


def test_results_stand_in_the_order_of_the_calls(session: Session) -> None:
    """Replay order, not completion order; results that nobody asked for come last."""
    session.append_many([said("go", "1"), answer("calling", "2", "c1", "c2", "c3")])
    session.append_many(
        [result("c3", "3"), result("other", "4"), result("c1", "5"), result("c2", "6")]
    )
    session.append_many([answer("again", "7", "c4", "c1"), result("c1", "8"), result("c4", "9")])
    found = at(session)
    assert [m.entry_id for m in found.messages] == ["1", "2", "5", "6", "3", "4", "7", "9", "8"]


def test_a_run_of_results_ends_at_any_other_message(session: Session) -> None:
    """Something between two results stays between them; calls still order the second run."""
    session.append_many([answer("calling", "1", "c1", "c2", "c3"), result("c3", "2")])
    session.append_many([said("wait", "3"), result("c2", "4"), result("c1", "5"), custom("6")])
    assert [m.entry_id for m in at(session).messages] == ["1", "2", "3", "5", "4"]


def test_results_on_both_sides_of_a_compaction(session: Session) -> None:
    """The run is what a model gets: the compaction between two results is not in it."""
    session.append_many([said("go", "1"), answer("calling", "2", "c1", "c2"), result("c2", "3")])
    session.append_many([compaction("4", "2"), result("c1", "5")])
    found = at(session)
    assert [m.entry_id for m in found.messages] == ["4", "2", "5", "3"]
    assert found.to_list()[0]["retainedMessageCount"] == 2


def test_calls_of_old_files(tmp_path: Path) -> None:
    """Content that is null, blocks that are none, calls without an id: results stay as they are."""
    odd = {
        "role": "assistant",
        "content": [None, 5, {"type": "toolCall"}, {"type": "toolCall", "id": 1}],
    }
    lines = chained(
        {"type": "message", "id": "1", "message": {"role": "assistant", "content": None}},
        *(result("c2", "2"), result("c1", "3")),
        {"type": "message", "id": "4", "message": odd},
        *(result("c2", "5"), result("c1", "6")),
        {"type": "message", "id": "7", "message": {"role": "toolResult", "toolCallId": [1]}},
    )
    with Session.open(imported(tmp_path, lines)) as session:
        assert [m.entry_id for m in at(session).messages] == ["1", "2", "3", "4", "5", "6", "7"]


def test_usage_of_children_is_an_overlay(session: Session) -> None:
    """The last aggregate in the file stands in the message; what is stored is not touched."""
    session.append_many([said("a", "1"), answer("b", "2", usage={"input": 1, "totalTokens": 7})])
    stored = session.read("2").raw
    session.append(attribution("2", 10, "3"))
    session.append(said("c", "4"))
    session.branch_to("1")
    session.append(attribution("2", 20, "5"))
    found = at(session, "4")
    assert found.messages[1].decode()["usage"] == {"input": 20, "totalTokens": 7}
    assert session.read("2").raw == stored
    assert texts(found) == ["a", [{"type": "text", "text": "b"}], "c"]
    assert at(session, "5").to_list() == [{"role": "user", "content": "a"}]


def test_an_overlay_changes_nothing_but_usage(session: Session) -> None:
    """Bytes around it stay, of several members the last is replaced, a missing one is added."""
    raw = b'{ "role":"assistant","usage":1, "content":[], "usage" : {"input":1.0} ,"n":1e3}'
    session.append(b'{"type":"message","id":"1","parentId":null,"message":' + raw + b"}")
    session.append_many([answer("b", "2"), attribution("1", 5, "3"), attribution("2", 6, "4")])
    first, second = at(session).messages
    usage = b'{"input":5,"totalTokens":7}'
    assert first.raw == raw.replace(b'{"input":1.0}', usage)
    assert second.raw.endswith(b',"usage":' + usage.replace(b"5", b"6") + b"}")


def test_attributions_of_old_files(tmp_path: Path) -> None:
    """Before their target, of unknown targets, of other messages, without an aggregate."""
    lines = [attribution("2", 10, "0") | {"parentId": None}]
    lines += chained(said("a", "1"), answer("b", "2"), answer("c", "3"))
    lines += [attribution("gone", 1, "4"), attribution("1", 2, "5")]
    lines += [attribution("3", 3, "6"), attribution("3", 4, "7") | {"aggregateUsage": None}]
    with Session.open(imported(tmp_path, lines)) as session:
        first, second, third = at(session, "3").to_list()
        assert "usage" not in first
        assert (second["usage"]["input"], third["usage"]["input"]) == (10, 3)


def test_many_attributions(session: Session) -> None:
    """More than a page of them: the newest of each target."""
    session.append_many([answer(str(n), str(n)) for n in range(3)])
    session.append_many([attribution(str(n % 3), n, f"a{n}") for n in range(900)])
    usages = [m["usage"]["input"] for m in at(session).to_list()]
    assert usages == [897, 898, 899]


def test_ids_that_several_entries_have(tmp_path: Path) -> None:
    """A child hangs below the newest before it; the first of a path is the one that is kept."""
    lines = [
        said("first", "x"),
        said("a", "a") | {"parentId": "x"},
        said("second", "x") | {"parentId": "a"},
        said("b", "b") | {"parentId": "x"},
        compaction("c", "x") | {"parentId": "b"},
        said("third", "x") | {"parentId": "b"},
        compaction("d", "x") | {"parentId": "x"},
    ]
    with Session.open(imported(tmp_path, lines)) as session:
        assert texts(at(session, "b")) == ["first", "a", "second", "b"]
        assert texts(at(session, "c")) == ["so far", "first", "a", "second", "b"]
        assert texts(at(session)) == ["so far", "first", "a", "second", "b", "third"]
        later = session.branch("b")[2]
        session.branch_to("b")
        session.append(compaction("e", later.id))
        assert texts(at(session)) == ["so far", "second", "b"]
        session.branch_to(later.id)
        session.append(said("below it", "f"))
        assert texts(at(session)) == ["first", "a", "second", "below it"]


def test_the_kept_entry_is_not_the_first_with_its_id(tmp_path: Path) -> None:
    """The first is on another branch: the one on the path is kept from, by index and from a list."""
    lines = [said("elsewhere", "x"), *chained(said("a", "a"), said("b", "x"), said("c", "c"))]
    lines.append(compaction("d", "x") | {"parentId": "c"})
    with Session.open(imported(tmp_path, lines)) as session:
        assert texts(at(session)) == ["so far", "b", "c"]


def test_several_entries_with_an_id_of_which_none_is_above(tmp_path: Path) -> None:
    lines = [said("first", "x"), said("second", "x")]
    lines += chained(said("a", "a"), compaction("b", "x"), said("c", "c"))
    with Session.open(imported(tmp_path, lines)) as session:
        assert texts(at(session)) == ["so far", "c"]


def test_circles(tmp_path: Path) -> None:
    """Entries that are their own ancestors: the path ends where the circle was cut."""
    lines = [
        said("self", "s") | {"parentId": "s"},
        said("a", "a") | {"parentId": "b"},
        said("b", "b") | {"parentId": "a"},
        said("c", "c") | {"parentId": "b"},
    ]
    with Session.open(imported(tmp_path, lines)) as session:
        assert texts(at(session)) == ["a", "b", "c"]
        assert texts(at(session, "a")) == ["a"]
        assert texts(at(session, "s")) == ["self"]


def test_entries_outside_the_tree(tmp_path: Path) -> None:
    """A second header has no path but itself, and shows nothing."""
    lines = [said("a", "a"), {"type": "session", "id": "a", "version": 3}]
    with Session.open(imported(tmp_path, lines)) as session:
        header = session.entries()[1]
        assert at(session, header.id) == SessionContext()
        assert texts(at(session)) == ["a"]


# Reading


def test_a_view_gives_the_same(session: Session, tmp_path: Path) -> None:
    session.append_many([said("a", "1"), answer("b", "2"), compaction("3", "2"), said("c", "4")])
    found = at(session)
    with SessionView.open(session.path) as view:
        assert at(view) == found
        assert at(view, "1") == at(session, "1")


def test_limits_refuse_before_a_body_is_read(session: Session) -> None:
    """The whole context or none of it; exactly at the limit passes."""
    session.append_many([said("a", "1"), custom(), said("b", "2"), compaction("3", "2")])
    session.append_many([said("c", "4"), said("d" * 100, "5")])
    size = sum(len(session.read(name).raw) for name in ("2", "4", "5"))
    found = session.read_session_context(max_entries=3, max_source_bytes=size)
    assert found == at(session)
    for limits in ({"max_entries": 2}, {"max_source_bytes": size - 1}):
        with pytest.raises(LimitExceeded) as caught:
            session.read_session_context(**limits)
        assert caught.value.limit == next(iter(limits.values()))


def test_a_closed_session(session: Session) -> None:
    session.append(said("a", "1"))
    session.close()
    for leaf_id in (UNSET, None, "1"):
        with pytest.raises(Closed):
            session.read_session_context(leaf_id)


def test_a_long_path_comes_in_pages(session: Session) -> None:
    """More rows than are asked for at once, on both sides of the compaction."""
    session.append_many([said(str(n), str(n)) for n in range(1500)])
    session.append(compaction("c", "100"))
    session.append_many([said(str(n), str(n)) for n in range(1500, 3000)])
    assert texts(at(session)) == ["so far", *map(str, range(100, 3000))]


def test_members_of_what_is_no_object() -> None:
    for raw in (b"5", b"[]", b"", b"null", b"[" * 200):
        assert parts(raw) == {}


# Usage


def used(tokens: int, entry_id: str, **more: Any) -> Json:
    return answer(entry_id, entry_id, usage={"input": tokens, "totalTokens": tokens}, **more)


def test_context_usage_is_the_last_answers(session: Session) -> None:
    """Nobody has counted before the first answer; then the last one's figure counts."""
    session.append(said("a", "1"))
    at(session)
    assert read_context_usage(session) is None
    assert read_context_usage(session, None) is build_context_usage([], None) is None
    session.append_many([used(100, "2"), said("b", "3")])
    at(session)
    assert read_context_usage(session) == ContextUsage(100, "2", session.read("2").sequence)
    assert read_context_usage(session, "1") is None


def test_context_usage_behind_a_compaction(session: Session) -> None:
    """Unknown from a compaction until the next answer with usage."""
    session.append_many([used(100, "1"), compaction("2", "1"), said("b", "3")])
    at(session)
    assert read_context_usage(session) is None
    session.append_many([used(50, "4", stopReason="error"), used(60, "5", stopReason="aborted")])
    at(session)
    assert read_context_usage(session) is None
    session.append_many([used(40, "6"), answer("no usage", "7"), used(0, "8")])
    at(session)
    assert read_context_usage(session) == ContextUsage(40, "6", session.read("6").sequence)
    assert read_context_usage(session, "1") == ContextUsage(100, "1", session.read("1").sequence)


def test_context_usage_without_a_total(session: Session) -> None:
    """Its parts are added; what is no count is nothing; what children used is no part of it."""
    usage = {"input": 1, "output": 20, "cacheRead": 300, "cacheWrite": 4000, "cost": {"total": 9}}
    session.append_many([answer("a", "1", usage=usage), attribution("1", 10**6, "2")])
    at(session)
    found = read_context_usage(session)
    assert found is not None
    assert found.tokens == 4321
    odd = {"totalTokens": True, "input": "5", "output": 1e300, "cacheRead": -3, "cacheWrite": 7.0}
    session.append(answer("b", "3", usage=odd))
    at(session)
    found = read_context_usage(session)
    assert found is not None
    assert found.tokens == 7


def test_context_usage_far_up(session: Session) -> None:
    """The answer that counts lies more than one page of rows above."""
    session.append_many([used(100, "1"), *(said(str(n), f"u{n}") for n in range(3000))])
    at(session)
    assert read_context_usage(session) == ContextUsage(100, "1", session.read("1").sequence)
