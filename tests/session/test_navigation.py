"""Navigation: plans, what a branch summary is made from, and the driver, against fakes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_helpers import new
from support.long_runs import LONG
from test_tree import Oracle, items_of
from tree_helpers import assistant, chain, entry, tool, user, viewed

from treering.engine import Conflict, Invalid, NotFound, OutputLink, Session
from treering.engine.session.navigation import (
    RESERVED_TOKENS,
    Navigation,
    NavigationOptions,
    NavigationPlan,
    SummaryRequest,
    SummaryResult,
    left_rows,
    navigate,
    plan_navigation,
    prepare_summary,
    summary_budget,
)
from treering.engine.session.reads import Reads
from treering.engine.session.summary_text import DEFAULT_INSTRUCTIONS, PREAMBLE


def left_ids(reads: Reads, plan: NavigationPlan) -> list[str]:
    """Ids of the entries to summarise, oldest first."""
    return [row.id for row in left_rows(reads, plan)][::-1]


def two_branches() -> list[dict[str, Any]]:
    """u1 - a1 - u2 - a2 - u3 - a3 (the position), and a1 - v2 - b2."""
    return [
        *chain(
            user("u1", None, "first"),
            assistant("a1", None, "one"),
            user("u2", None, "second"),
            assistant("a2", None, "two"),
            user("u3", None, "third"),
            assistant("a3", None, "three"),
        ),
        user("v2", "a1", "other"),
        assistant("b2", "v2", "different"),
        {"leaf": "a3"},
    ]


# Plans


@pytest.mark.parametrize(
    ("old", "target", "leaf", "text", "common", "left"),
    [
        ("a3", "u3", "a2", "third", "u3", ["a3"]),
        ("a3", "a2", "a2", None, "a2", ["u3", "a3"]),
        ("a3", "u2", "a1", "second", "u2", ["a2", "u3", "a3"]),
        ("a3", "u1", None, "first", "u1", ["a1", "u2", "a2", "u3", "a3"]),
        ("a3", "b2", "b2", None, "a1", ["u2", "a2", "u3", "a3"]),
        ("a3", "v2", "a1", "other", "a1", ["u2", "a2", "u3", "a3"]),
        ("a1", "a3", "a3", None, "a1", []),
        ("b2", "a3", "a3", None, "a1", ["v2", "b2"]),
        (None, "a3", "a3", None, None, []),
        ("a3", "a3", "a3", None, "a3", []),
    ],
)
def test_plans(
    tmp_path: Path,
    old: str | None,
    target: str,
    leaf: str | None,
    text: str | None,
    common: str | None,
    left: list[str],
) -> None:
    """Navigation: user/assistant/root/no-op, between branches: where it leads, the editor's text,
    the deepest shared entry, and what lies behind it on the old path."""
    with viewed(tmp_path, two_branches()) as view:
        plan = plan_navigation(view, old, target)
        assert (plan.new_leaf, plan.editor_text, plan.common_ancestor) == (leaf, text, common)
        assert left_ids(view, plan) == left
        assert plan.left_entries == len(left)
        assert plan.moves == (old != target)


def test_a_custom_message_is_taken_back(tmp_path: Path) -> None:
    """Navigation: custom: a custom_message selected -> its parent and its text."""
    items = chain(user("u", None), entry("n", None, "custom_message", customType="x", content="it"),
                  assistant("a", None, "x"))  # fmt: skip
    with viewed(tmp_path, items) as view:
        plan = plan_navigation(view, "a", "n")
        assert (plan.new_leaf, plan.editor_text) == ("u", "it")


def test_trees_without_a_common_root(tmp_path: Path) -> None:
    """Between two roots nothing is shared: the whole old path is left."""
    items = [user("r1", None), user("x", "r1"), user("r2", None), assistant("y", "r2", "t")]
    with viewed(tmp_path, items) as view:
        plan = plan_navigation(view, "x", "y")
        assert (plan.common_ancestor, left_ids(view, plan)) == (None, ["r1", "x"])


def test_unknown_ids(tmp_path: Path) -> None:
    """Navigation: an unknown target (or position) is refused by name."""
    items = [*two_branches(), {"type": "session", "id": "second", "version": 3}]
    with viewed(tmp_path, items) as view:
        outside = next(e.id for e in view.iter_entries() if e.type == "session")
        for old, target, named in (
            ("a3", "nobody", "nobody"),
            ("gone", "a3", "gone"),
            ("a3", outside, outside),
        ):
            with pytest.raises(NotFound, match=named):
                plan_navigation(view, old, target)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_plans_are_those_of_the_oracle(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Random trees: the common ancestor is the deepest on both paths, what is left is the rest."""
    items = data.draw(items_of().filter(bool))
    places = st.integers(0, len(items) - 1)
    old, target = data.draw(places), data.draw(places)
    oracle = Oracle(items, None)

    def path(at: int | None) -> list[int]:
        found: list[int] = []
        while at is not None:
            found.insert(0, at)
            at = oracle.parent[at]
        return found

    with viewed(tmp_path_factory.mktemp("n"), items) as view:
        ids = [e.id for e in view.iter_entries()]
        plan = plan_navigation(view, ids[old], ids[target])
        shared = [at for at in path(old) if at in path(target)]
        assert plan.common_ancestor == (ids[shared[-1]] if shared else None)
        assert left_ids(view, plan) == [ids[at] for at in path(old) if at not in shared]
        taken_back = items[target].get("message", {}).get("role") == "user"
        above = oracle.parent[target]
        expected = ids[target] if not taken_back else None if above is None else ids[above]
        assert plan.new_leaf == expected


def test_a_long_branch_is_walked_in_pages(tmp_path: Path) -> None:
    """The path that is left is read page by page, up to the common ancestor and not beyond."""
    made = chain(*(user(f"e{n}", None) for n in range(1500)))
    with viewed(tmp_path, [*made, user("side", "e100")]) as view:
        plan = plan_navigation(view, "e1499", "side")
        assert left_ids(view, plan) == [f"e{n}" for n in range(101, 1500)]


def test_a_path_does_not_just_end(tmp_path: Path) -> None:
    """An index without an entry of the path that is left: an error, not half a summary."""
    with viewed(tmp_path, two_branches()) as view:
        plan = dataclasses.replace(plan_navigation(view, "a3", "b2"), _from=10_000)
        with pytest.raises(NotFound, match="10000"):
            left_ids(view, plan)


# What a summary is made from


def request_of(reads: Reads, old: str, target: str, **options: Any) -> SummaryRequest:
    return prepare_summary(reads, plan_navigation(reads, old, target), **options)


def test_what_is_in_a_request(tmp_path: Path) -> None:
    """Branch summary preparation: tool results are skipped, bookkeeping says nothing, commands
    that are kept from the model stay out; the rest is there in order."""
    image = [{"type": "image", "data": "", "mimeType": "image/png"}]
    thinking = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "so"},
        5,
        {"type": "?"},
    ]
    ran = {"role": "bashExecution", "command": "ls", "output": "a.txt\n"}
    items = chain(
        user("u1", None, "start"),
        assistant("a1", None, "doing", calls=[("bash", {"command": "make"})]),
        tool("t1", None, "a secret of the tool"),
        entry("m", None, "model_change", provider="p", modelId="m"),
        entry("ran", None, "message", message=ran),
        entry(
            "kept", None, "message", message={**ran, "output": "hush", "excludeFromContext": True}
        ),
        entry("n", None, "custom_message", customType="ext", content="a note"),
        entry("slash", None, "custom_message", customType="session_slash_command", content="/x"),
        entry("role", None, "message", message={"role": "custom", "content": "old note"}),
        entry("sum", None, "branch_summary", summary="went there"),
        entry("sum0", None, "branch_summary", summary=""),
        entry("old", None, "message", message={"role": "compactionSummary", "summary": "before"}),
        entry("think", None, "message", message={"role": "assistant", "content": thinking}),
        user("pic", None, image),
        entry("odd", None, "message", message={"role": "assistant", "content": None}),
        entry("odd2", None, "message", message=[]),
        entry("odd3", None, "message", message={"role": "never heard of"}),
        user("u2", None, "end"),
    )
    with viewed(tmp_path, [user("root", None), *_below("root", items)]) as view:
        request = request_of(view, "u2", "root")
        shown = ["u1", "a1", "ran", "n", "role", "sum", "old", "think", "pic", "u2"]
        assert [e.id for e in request.entries] == shown
        assert request.conversation == "\n\n".join(
            (
                "[user]\nstart",
                '[assistant]\ndoing\n(calls) bash({"command": "make"})',
                "[user ran a command]\n$ ls\na.txt",
                "[note of ext]\na note",
                "[note]\nold note",
                "[earlier summary]\nwent there",
                "[earlier summary]\nbefore",
                "[assistant]\n(thinking) hm\nso",
                "[user]\n[image]",
                "[user]\nend",
            )
        )
        assert request.left_out == 0
        assert 1200 < request.tokens < 1300  # the image counts for 1,200
        assert request.prompt.index("went there") < request.prompt.index(request.instructions)


def _below(parent: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items[0]["parentId"] = parent
    return items


def test_the_budget_takes_the_newest(tmp_path: Path) -> None:
    """Branch summary preparation: newest first, until the next would exceed the budget."""
    items = chain(user("root", None), *(user(f"e{n}", None, "x" * 40) for n in range(10)))
    with viewed(tmp_path, items) as view:
        for budget, count in ((10, 1), (39, 3), (40, 4), (100, 10), (None, 10), (9, 0)):
            request = request_of(view, "e9", "root", budget_tokens=budget)
            assert [e.id for e in request.entries] == [f"e{n}" for n in range(10 - count, 10)]
            assert request.tokens == count * 10
            assert request.left_out == 10 - count
        for nonsense in (0, -1, True, 1.5):
            with pytest.raises(Invalid):
                request_of(view, "e9", "root", budget_tokens=nonsense)


@pytest.mark.parametrize("kind", ["compaction", "branch_summary"])
def test_a_summary_is_let_in_beyond_the_budget(tmp_path: Path, kind: str) -> None:
    """Branch summary preparation: a compaction or branch summary that exceeds the budget is let
    in while under 90 % of it is used, and is the last."""
    items = chain(
        user("root", None),
        user("before", None, "x"),
        entry("s", None, kind, summary="y" * 4000),
        user("e0", None, "x" * 40),
        user("e1", None, "x" * 40),
    )
    with viewed(tmp_path, items) as view:
        below = request_of(view, "e1", "root", budget_tokens=23)
        assert [e.id for e in below.entries] == ["s", "e0", "e1"]
        assert below.left_out == 1
        above = request_of(view, "e1", "root", budget_tokens=22)
        assert [e.id for e in above.entries] == ["e0", "e1"]
        assert above.left_out == 2


def test_file_lists(tmp_path: Path) -> None:
    """File lists: of tool calls that are shown and of earlier summaries, those beyond the budget
    included; what was changed is not listed as read; what extensions noted is not ours."""
    details = {"readFiles": ["old_read", "both", 5], "modifiedFiles": ["old_changed"]}
    calls = [
        ("read", {"path": "both"}),
        ("read", {"path": "b"}),
        ("read", {"path": "a"}),
        ("edit", {"path": "both"}),
        ("write", {"path": "new\ud800"}),
        ("bash", {"path": "no"}),
        ("read", {"file": "no"}),
        ("read", None),
        ("read", {"path": ""}),
    ]
    hooked = {"readFiles": ["no"]}
    items = chain(
        user("root", None),
        entry(
            "s0",
            None,
            "compaction",
            summary="c",
            details={"readFiles": "x", "modifiedFiles": ["c"]},
        ),
        entry("s1", None, "branch_summary", summary="long " * 100, details=details),
        entry("s2", None, "branch_summary", summary="x", details=hooked, fromHook=True),
        assistant("far", None, "t" * 400, calls=[("write", {"path": "too far"})]),
        assistant("a", None, "t", calls=calls),
        entry("s3", None, "branch_summary", summary="", details={"readFiles": ["silent"]}),
    )
    with viewed(tmp_path, items) as view:
        request = request_of(view, "s3", "root", budget_tokens=150)
        assert [e.id for e in request.entries] == ["a"]
        assert request.read_files == ("a", "b", "old_read", "silent")
        assert request.modified_files == ("both", "c", "new\ufffd", "old_changed")
        assert request.details == {
            "readFiles": list(request.read_files),
            "modifiedFiles": list(request.modified_files),
        }
        # What lies above the common ancestor is not of this branch.
        assert request_of(view, "s3", "far", budget_tokens=1).modified_files == ()


def test_instructions(tmp_path: Path) -> None:
    """Navigation: custom instructions are added to the default ones, or replace them."""
    with viewed(tmp_path, two_branches()) as view:

        def instructions(**options: Any) -> str:
            return request_of(view, "a3", "b2", **options).instructions

        assert instructions() == DEFAULT_INSTRUCTIONS
        assert instructions(custom_instructions="  ") == DEFAULT_INSTRUCTIONS
        added = instructions(custom_instructions="the tests")
        assert added.startswith(DEFAULT_INSTRUCTIONS)
        assert added.endswith("the tests")
        assert instructions(custom_instructions="x", replace_instructions=True) == "x"
        assert instructions(replace_instructions=True) == DEFAULT_INSTRUCTIONS


def test_the_budget_of_a_window() -> None:
    """Branch summary preparation: the budget is the window less 16,384."""
    assert summary_budget(200_000) == 200_000 - RESERVED_TOKENS == 183_616
    assert summary_budget(1) == 1


# The driver


class Moving:
    """A session that can be navigated in: the adapter that a manager makes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.calls: list[str] = []
        self.before_write: Callable[[], None] = lambda: None

    async def leaf_id(self) -> str | None:
        return self.session.leaf_id

    def _take_turn(self, call: str, expected_leaf: str | None) -> None:
        self.before_write()
        if self.session.leaf_id != expected_leaf:
            raise Conflict("the session changed during navigation")
        self.calls.append(call)

    async def branch_to(self, entry_id: str | None, *, expected_leaf: str | None) -> None:
        self._take_turn("branch_to", expected_leaf)
        self.session.branch_to(entry_id)

    async def branch_with_summary(
        self,
        entry_id: str | None,
        summary: str,
        *,
        details: Any,
        from_hook: bool | None,
        usage: Any,
        expected_leaf: str | None,
        link: OutputLink | None,
    ) -> str:
        assert link is None
        self._take_turn("branch_with_summary", expected_leaf)
        made = {
            "type": "branch_summary",
            "parentId": entry_id,
            "fromId": entry_id or "root",
            "summary": summary,
            "details": details,
            **({} if from_hook is None else {"fromHook": from_hook}),
            **({} if usage is None else {"usage": usage}),
        }
        return self.session.append(made)

    async def set_label(self, entry_id: str, label: str) -> str:
        self.calls.append("set_label")
        return self.session.set_label(entry_id, label)


class Driver:
    """Runs navigations in a session, and remembers what the summariser was given."""

    def __init__(self, folder: Path) -> None:
        self.session = new(folder)
        for item in two_branches():
            if "type" in item:
                self.session.append(item)
        self.session.branch_to("a3")
        self.moving = Moving(self.session)
        self.requests: list[SummaryRequest] = []
        self.count = self.session.counts()["entries"]

    async def summarise(self, request: SummaryRequest) -> str | SummaryResult:
        self.requests.append(request)
        return " what happened \n"

    async def go(self, target: str, **options: Any) -> Navigation:
        options.setdefault("summariser", self.summarise)
        return await navigate(self.session, self.moving, target, NavigationOptions(**options))

    def run(self, target: str, **options: Any) -> Navigation:
        return asyncio.run(self.go(target, **options))

    def nothing_was_written(self) -> bool:
        return (
            not self.moving.calls
            and self.session.leaf_id == "a3"
            and self.session.counts()["entries"] == self.count
        )


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    made = Driver(tmp_path)
    with made.session:
        yield made


def test_without_a_summary(driver: Driver) -> None:
    """Navigation: user: the position becomes the parent, the text goes to the editor."""
    assert driver.run("u2") == Navigation(editor_text="second")
    assert driver.session.leaf_id == "a1"
    assert driver.moving.calls == ["branch_to"]
    assert driver.requests == []


def test_to_an_assistant(driver: Driver) -> None:
    """Navigation: assistant: the position becomes the entry, the editor stays empty."""
    assert driver.run("b2") == Navigation()
    assert driver.session.leaf_id == "b2"


def test_to_the_root(driver: Driver) -> None:
    """Navigation: root: the position is before any entry, the first prompt in the editor."""
    assert driver.run("u1") == Navigation(editor_text="first")
    assert driver.session.leaf_id is None


def test_to_where_it_is(driver: Driver) -> None:
    """Navigation: no-op: the target is the position; nothing is asked, labelled or written."""
    found = driver.run("a3", summarize=True, summariser=None, label="L")
    assert found == Navigation()
    assert driver.nothing_was_written()


def test_with_a_summary_at_a_nested_entry(driver: Driver) -> None:
    """Navigation: summary parent (nested): below the parent of the user message that was taken
    back; the text tells where it comes from, the position is the summary."""
    found = driver.run("v2", summarize=True)
    assert found.editor_text == "other"
    assert found.summary_entry_id == driver.session.leaf_id is not None
    made = driver.session.read(str(found.summary_entry_id)).decode()
    assert (made.parent_id, made.from_id) == ("a1", "a1")  # type: ignore[union-attr]
    assert made.summary == f"{PREAMBLE}\n\nwhat happened"  # type: ignore[union-attr]
    assert made.details == {"readFiles": [], "modifiedFiles": []}  # type: ignore[union-attr]
    (request,) = driver.requests
    assert [e.id for e in request.entries] == ["u2", "a2", "u3", "a3"]


def test_with_a_summary_at_the_selected_entry(driver: Driver) -> None:
    """Navigation: summary parent (selected): below the assistant message that was selected."""
    found = driver.run("b2", summarize=True)
    parent = driver.session.parent(str(found.summary_entry_id))
    assert parent is not None
    assert parent.id == "b2"


def test_with_a_summary_before_any_entry(driver: Driver) -> None:
    """Navigation: root with a summary: the summary is a root, and says so."""
    found = driver.run("u1", summarize=True)
    made = driver.session.read(str(found.summary_entry_id)).decode()
    assert (made.parent_id, made.from_id) == (None, "root")  # type: ignore[union-attr]
    assert driver.session.leaf_id == found.summary_entry_id


def test_a_summary_of_nothing_left(driver: Driver) -> None:
    """Navigation: further down the same branch nothing is left, so nothing is summarised."""
    driver.session.branch_to("a1")
    found = driver.run("a2", summarize=True)
    assert found == Navigation()
    assert driver.moving.calls == ["branch_to"]
    assert driver.requests == []


def test_nothing_to_summarise(driver: Driver) -> None:
    """Navigation: a branch on which nobody said anything: the literal, and no summariser asked."""
    driver.session.branch_to("a1")
    driver.session.append({"type": "custom", "customType": "x"})
    driver.session.append(tool("t", driver.session.leaf_id))
    found = driver.run("b2", summarize=True)
    made = driver.session.read(str(found.summary_entry_id)).decode()
    assert made.summary == "No content to summarize"  # type: ignore[union-attr]
    assert driver.requests == []


def test_the_files_are_in_text_and_details(driver: Driver) -> None:
    """File lists are collected into details and stand behind the text."""
    calls = [("read", {"path": "r.py"}), ("edit", {"path": "w.py"})]
    driver.session.append(assistant("c", "a3", "x", calls=calls))
    found = driver.run("b2", summarize=True)
    made = driver.session.read(str(found.summary_entry_id)).decode()
    assert made.details == {"readFiles": ["r.py"], "modifiedFiles": ["w.py"]}  # type: ignore[union-attr]
    lists = "Files read:\n- r.py\n\nFiles changed:\n- w.py"
    assert made.summary.endswith(f"what happened\n\n{lists}")  # type: ignore[union-attr]


def test_a_summariser_can_say_more(driver: Driver) -> None:
    """A SummaryResult brings usage and details of its own; verbatim text is stored as it is."""
    usage = {"input": 1, "output": 2}

    async def supplied(request: SummaryRequest) -> SummaryResult:
        return SummaryResult(" mine ", usage, {"own": 1}, verbatim=True, from_hook=True)

    found = driver.run("b2", summarize=True, summariser=supplied)
    made = driver.session.read(str(found.summary_entry_id)).decode()
    assert (made.summary, made.details, made.from_hook) == (" mine ", {"own": 1}, True)  # type: ignore[union-attr]
    assert driver.session.usage()["summary"].output == 2


def test_labels_go_to_the_target_or_to_the_summary(driver: Driver) -> None:
    """Navigation: without a summary the label goes on the target, with one on the summary."""
    driver.run("u2", label="back here")
    assert driver.session.label("u2") == "back here"
    driver.session.branch_to("a3")
    found = driver.run("b2", label="left", summarize=True)
    assert driver.session.label(str(found.summary_entry_id)) == "left"
    assert driver.session.label("b2") is None
    driver.session.branch_to("a3")
    driver.moving.calls.clear()
    driver.run("b2", label="")
    assert driver.moving.calls == ["branch_to"]


def test_focus_reaches_the_summariser(driver: Driver) -> None:
    """Navigation: custom instructions, added and replacing, arrive in the request."""
    driver.run("b2", summarize=True, custom_instructions="the tests", budget_tokens=2)
    driver.session.branch_to("a3")
    driver.run("b2", summarize=True, custom_instructions="only this", replace_instructions=True)
    assert [r.instructions.endswith(f) for r, f in zip(driver.requests, ("the tests", "only this"),
                                                      strict=True)] == [True, True]  # fmt: skip
    assert driver.requests[1].instructions == "only this"
    assert [e.id for e in driver.requests[0].entries] == ["a3"]


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_an_abort_writes_nothing(driver: Driver, when: str) -> None:
    """Navigation: abort: cancelled and aborted, the leaf unchanged, nothing written, whenever the
    flag is set before the write; the summariser is cancelled."""

    async def scenario() -> tuple[Navigation, list[str]]:
        abort, seen = asyncio.Event(), list[str]()

        async def summarise(request: SummaryRequest) -> str:
            try:
                if when == "during":
                    asyncio.get_running_loop().call_soon(abort.set)
                    await asyncio.sleep(60)
                abort.set()
                seen.append("answered")
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            return "text"

        if when == "before":
            abort.set()
        return await driver.go("b2", summarize=True, summariser=summarise, abort=abort), seen

    found, seen = asyncio.run(scenario())
    assert found == Navigation(cancelled=True, aborted=True)
    assert seen in {"before": ([], ["answered"]), "during": (["cancelled"],),
                    "after": (["answered"],)}[when]  # fmt: skip
    assert driver.nothing_was_written()


def test_an_abort_without_a_summary(driver: Driver) -> None:
    """Navigation: abort before a plain move: nothing moves."""

    async def scenario() -> Navigation:
        abort = asyncio.Event()
        abort.set()
        return await driver.go("b2", abort=abort, label="L")

    assert asyncio.run(scenario()) == Navigation(cancelled=True, aborted=True)
    assert driver.nothing_was_written()


def test_a_flag_that_nobody_sets(driver: Driver) -> None:
    """Navigation: an abort flag that stays down changes nothing."""

    async def scenario() -> Navigation:
        return await driver.go("b2", summarize=True, abort=asyncio.Event())

    assert asyncio.run(scenario()).summary_entry_id is not None


def test_a_cancelled_task_writes_nothing(driver: Driver) -> None:
    """Navigation: abort by cancelling the task: the summariser is cancelled, nothing written."""

    async def scenario() -> bool:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def summarise(request: SummaryRequest) -> str:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()
            return "late"

        task = asyncio.ensure_future(driver.go("b2", summarize=True, summariser=summarise))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return cancelled.is_set()

    assert asyncio.run(scenario())
    assert driver.nothing_was_written()


def test_a_summariser_that_gives_up(driver: Driver) -> None:
    """A summariser that is cancelled from elsewhere is an abort, one that fails is its error."""

    async def gives_up(request: SummaryRequest) -> str:
        raise asyncio.CancelledError

    async def fails(request: SummaryRequest) -> str:
        raise RuntimeError("no connection")

    found = driver.run("b2", summarize=True, summariser=gives_up)
    assert found == Navigation(cancelled=True, aborted=True)
    with pytest.raises(RuntimeError, match="no connection"):
        driver.run("b2", summarize=True, summariser=fails)
    assert driver.nothing_was_written()


def test_a_summariser_that_fails_when_it_is_aborted(driver: Driver) -> None:
    """What a summariser says when it is cancelled is nobody's error."""

    async def scenario() -> Navigation:
        abort = asyncio.Event()

        async def summarise(request: SummaryRequest) -> str:
            try:
                abort.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise RuntimeError("interrupted") from None
            return ""

        return await driver.go("b2", summarize=True, summariser=summarise, abort=abort)

    assert asyncio.run(scenario()).aborted
    assert driver.nothing_was_written()


@pytest.mark.parametrize("given", ["", " \n", None, 5, SummaryResult(""), SummaryResult(5)])  # type: ignore[arg-type]
def test_a_summariser_without_a_text(driver: Driver, given: Any) -> None:
    """A summariser that gives no text: a typed error, nothing written."""

    async def summarise(request: SummaryRequest) -> Any:
        return given

    with pytest.raises(Invalid, match="summar"):
        driver.run("b2", summarize=True, summariser=summarise)
    assert driver.nothing_was_written()


def test_options_that_do_not_fit(driver: Driver) -> None:
    """A summary without anything to make it, a label that is no text: refused before anything."""
    for options in (
        {"summarize": True, "summariser": None},
        {"label": 5},
        {"custom_instructions": ["x"]},
    ):
        with pytest.raises(Invalid):
            driver.run("b2", **options)
    with pytest.raises(NotFound):
        driver.run("nobody")
    with pytest.raises(Invalid, match="budget"):
        driver.run("b2", summarize=True, budget_tokens=0)
    assert driver.nothing_was_written()


def test_the_session_moved_meanwhile(driver: Driver) -> None:
    """Navigation: the position moved while the summary was made: Conflict, and nothing is written
    over what came."""

    async def summarise(request: SummaryRequest) -> str:
        driver.session.append(user("new", "a3", "meanwhile"))
        return "text"

    with pytest.raises(Conflict, match="the session changed during navigation"):
        driver.run("b2", summarize=True, summariser=summarise)
    assert driver.moving.calls == []
    assert driver.session.leaf_id == "new"


@pytest.mark.parametrize("summarize", [True, False])
def test_the_session_moved_just_before_the_write(driver: Driver, summarize: bool) -> None:
    """The last look is at the turn of the write itself: whoever came in between is not undone."""
    driver.moving.before_write = lambda: driver.session.branch_to("a1")
    with pytest.raises(Conflict, match="changed"):
        driver.run("b2", summarize=summarize)
    assert driver.moving.calls == []
    assert driver.session.leaf_id == "a1"


def test_blocking_work_runs_where_the_caller_says(driver: Driver) -> None:
    """Reads block: each goes through the runner of the caller."""
    ran: list[str] = []

    async def run(work: Callable[[], Any]) -> Any:
        ran.append("run")
        return work()

    async def scenario() -> Navigation:
        options = NavigationOptions(summarize=True, summariser=driver.summarise)
        return await navigate(driver.session, driver.moving, "b2", options, run=run)

    assert asyncio.run(scenario()).summary_entry_id is not None
    assert ran == ["run", "run"]


@LONG
@pytest.mark.slow
def test_leaving_a_branch_of_200_000_entries(tmp_path: Path) -> None:
    """Only what fits into the budget is read, however long the branch that is left is."""
    made = [user(f"e{n}", f"e{n - 1}" if n else None, "x" * 100) for n in range(200_000)]
    made[5] = entry("e5", "e4", "branch_summary", summary="s", details={"readFiles": ["deep"]})
    with new(tmp_path) as session:
        session.append_many(made)
        session.append(user("side", "e0"))
        loaded: list[str] = []
        read = session.read
        session.read = lambda entry_id: loaded.append(entry_id) or read(entry_id)  # type: ignore
        request = request_of(session, "e199999", "side", budget_tokens=2_500)
        assert len(request.entries) == 100
        assert request.read_files == ("deep",)
        assert request.left_out == 200_000 - 1 - 100
        assert len(loaded) < 110
