"""A state machine over SessionManager: tasks, cancellation, branches and switches against a dict."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_helpers import drop_index

from treering.engine import Conflict, ContextEpochAck, NotFound, OutputLink, SessionView
from treering.engine.session.manager import SessionManager
from treering.engine.session.reads import Reads

texts = st.text(max_size=20)


class Model:
    """One session: entries in order, position, labels, name."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.leaf: str | None = None
        self.labels: dict[str, str] = {}
        self.name: str | None = None

    def add(self, entry: dict[str, Any]) -> None:
        """An entry that the session shows, as it shows it."""
        self.entries[entry["id"]] = entry
        if entry["type"] != "request":
            self.leaf = entry["id"]
        if entry["type"] == "label":
            self.labels[entry["targetId"]] = entry.get("label", "")
        if entry["type"] == "session_info":
            self.name = entry["name"].strip() or None

    def shows(self, entry_id: str) -> bool:
        """Whether it can be the view of a context epoch, and its tail."""
        return self.entries[entry_id]["type"] in ("message", "branch_summary")

    def path(self, leaf: str | None) -> list[str]:
        """Ids from the root to an entry."""
        found = []
        while leaf is not None:
            found.append(leaf)
            leaf = self.entries[leaf]["parentId"]
        return found[::-1]


class ManagerMachine(RuleBasedStateMachine):
    """Two sessions of one store, and one manager that selects either."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="treering-manager-")
        self.loop = asyncio.new_event_loop()
        self.models: dict[str, Model] = {}
        self.count = 0

    def run(self, awaitable: Any) -> Any:
        """The answer of something to await."""
        return self.loop.run_until_complete(awaitable)

    @initialize()
    def create(self) -> None:
        self.manager = self.run(SessionManager.create("/w", home_dir=f"{self.folder}/home"))
        self.select()

    def select(self) -> None:
        """Note which session is selected now."""
        path = self.manager.get_session_file()
        assert path is not None
        self.path = path
        self.model = self.models.setdefault(path, Model())

    def any_id(self, place: int) -> str | None:
        """Some entry of the session, if it has any."""
        ids = list(self.model.entries)
        return ids[place % len(ids)] if ids else None

    def call(self, kind: str, text: str, place: int) -> Any:
        """One of the documented appends, ready to be awaited."""
        target = self.any_id(place)
        manager = self.manager
        if kind == "label" and target is not None:
            return manager.append_label_change(target, text or None)
        if kind == "compaction" and self.model.leaf is not None:
            path = self.model.path(self.model.leaf)
            return manager.append_compaction(text, path[place % len(path)], place)
        if kind == "info":
            return manager.append_session_info(text)
        if kind == "request":
            self.count += 1
            return manager.append({"type": "request", "id": f"q{self.count}", "request": {}})
        if kind == "custom":
            return manager.append_custom_entry(text, {"n": place})
        return manager.append_message({"role": "user", "content": text})

    def learn(self, entry_id: str) -> None:
        """Take an acknowledged entry into the model, after checking where it hangs."""
        found = self.run(self.manager.read_entry(entry_id))
        assert found is not None
        self.model.add(json.loads(found.raw))

    @rule(
        kind=st.sampled_from(["message", "custom", "label", "compaction", "info", "request"]),
        text=texts,
        place=st.integers(0, 1000),
    )
    def append(self, kind: str, text: str, place: int) -> None:
        before = self.model.leaf
        entry_id = self.run(self.call(kind, text, place))
        self.learn(entry_id)
        assert self.model.entries[entry_id]["parentId"] == before

    @rule(
        jobs=st.lists(
            st.lists(st.tuples(st.sampled_from(["message", "custom", "request"]), texts)),
            min_size=2,
            max_size=5,
        ),
        cancelled=st.sets(st.integers(0, 4)),
    )
    def tasks(self, jobs: list[list[tuple[str, str]]], cancelled: set[int]) -> None:
        done: list[list[str]] = [[] for _ in jobs]
        order: list[str] = []

        async def one(number: int) -> None:
            for kind, text in jobs[number]:
                entry_id = await self.call(kind, f"{number}:{text}", number)
                done[number].append(entry_id)
                order.append(entry_id)

        async def all_of_them() -> None:
            running = [asyncio.ensure_future(one(number)) for number in range(len(jobs))]
            await asyncio.sleep(0)
            for number in cancelled & set(range(len(jobs))):
                running[number].cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.manager.flush_now()

        self.run(all_of_them())
        # A cancelled one may be stored all the same, if the writer had taken it: by itself, whole.
        shown = self.run(self.manager.read_entries())
        new = [entry for entry in shown if entry.id not in self.model.entries]
        assert len(new) - len(order) in range(len(cancelled) + 1)
        stored = [entry.id for entry in new]
        for ids in done:
            places = [stored.index(entry_id) for entry_id in ids]
            assert places == sorted(places)
        for entry in new:
            value = json.loads(entry.raw)
            assert value["parentId"] == self.model.leaf
            self.model.add(value)

    @rule(place=st.integers(0, 1000), nothing=st.booleans())
    def branch(self, place: int, nothing: bool) -> None:
        target = None if nothing else self.any_id(place)
        self.run(self.manager.branch_to(target))
        self.model.leaf = target

    @rule(place=st.integers(0, 1000), text=texts)
    def summary(self, place: int, text: str) -> None:
        target = self.any_id(place)
        self.learn(self.run(self.manager.branch_with_summary(target, text)))

    @rule()
    def refused(self) -> None:
        for call in (
            self.manager.branch_to("nobody"),
            self.manager.append_label_change("nobody", "x"),
            self.manager.branch_with_summary("nobody", "x"),
        ):
            with pytest.raises(NotFound):
                self.run(call)
        taken = self.any_id(3)
        if taken is not None:
            with pytest.raises(Conflict):
                self.run(self.manager.append({"type": "custom", "customType": "!", "id": taken}))

    @rule()
    @precondition(lambda self: len(self.models) < 4)
    def new_session(self) -> None:
        self.run(self.manager.new_session(parent_session=self.path))
        assert self.manager.get_header().parent_session == self.path
        self.select()

    @rule(place=st.integers(0, 3))
    def switch(self, place: int) -> None:
        paths = list(self.models)
        self.run(self.manager.set_session_file(paths[place % len(paths)]))
        self.select()

    @rule(without_index=st.booleans())
    def reopen(self, without_index: bool) -> None:
        self.run(self.manager.close())
        if without_index:
            drop_index(self.path)
        self.manager = self.run(SessionManager.open(self.path))

    @rule(text=texts)
    def captured(self, text: str) -> None:
        before = list(self.model.entries)
        ids: list[str] = []

        async def read(history: Any) -> list[str]:
            ids.append(await self.call("message", text, 0))
            return [entry.id async for entry in history.iterate_entries()]

        assert self.run(self.manager.read_source_history(read)) == before
        self.learn(ids[0])

    @rule(moves=st.sampled_from(["nothing", "append", "jump", "switch"]))
    def request(self, moves: str) -> None:
        """A recorded request and its answer: linked unless the position jumped or the session is
        another one."""
        held = self.path

        async def ask() -> tuple[str, OutputLink | None]:
            async with self.manager.capture() as captured:
                operation = captured.operation("main")
                attempt = await operation.admit({})
                if moves == "append":
                    await self.call("message", "between", 0)
                if moves == "jump":
                    await self.manager.branch_to(None)
                if moves == "switch":
                    await self.manager.new_session()
                await operation.settle(attempt, {"usage": {}})
                return attempt, operation.output_link()

        moved = self.model.leaf is not None
        attempt, link = self.run(ask())
        self.learn_from(held, attempt)
        if moves == "switch":
            self.select()
        elif moves == "jump":
            self.model.leaf = None
        answer = self.run(
            self.manager.append_message({"role": "assistant", "content": []}, link=link)
        )
        stale = moves == "switch" or (moves == "jump" and moved)
        assert link is not None
        assert link.linked_entry_id == (None if stale else answer)
        self.learn(answer)

    @rule(place=st.integers(0, 1000), meanwhile=st.booleans())
    def context_epoch(self, place: int, meanwhile: bool) -> None:
        """Activated where it was captured, refused when anything came in between."""
        path = [i for i in self.model.path(self.model.leaf) if self.model.shows(i)]
        if not path:
            return
        views = path[place % len(path) :]

        async def activate() -> ContextEpochAck:
            async with self.manager.capture() as captured:
                candidate = await captured.prepare_context_epoch(views, representation="r")
                if meanwhile:
                    await self.call("message", "meanwhile", 0)
                return await captured.activate_context_epoch(candidate, 1)

        if meanwhile:
            with pytest.raises(Conflict):
                self.run(activate())
            self.learn_new()
            return
        ack = self.run(activate())
        found = self.run(self.manager.read_active_context_epoch())
        assert found.entry_id == ack.entry_id
        if ack.reused:
            return
        self.learn(ack.entry_id)
        assert [view.ref.entry_id for view in found.recipe.views] == views[:-1]

    def learn_new(self) -> None:
        """Take everything into the model that it does not know."""
        for entry in self.run(self.manager.read_entries()):
            if entry.id not in self.model.entries:
                self.model.add(json.loads(entry.raw))

    def learn_from(self, path: str, attempt: str) -> None:
        """The same from a session's file, which has the records of this attempt."""
        model = self.models[path]
        with SessionView.open(path) as view:
            for entry in view.iter_entries():
                if entry.id not in model.entries:
                    model.add(json.loads(entry.raw))
        assert {f"{attempt}:attempt_admitted", f"{attempt}:attempt_settled"} <= set(model.entries)

    @rule()
    def a_view_beside_it(self) -> None:
        with SessionView.open(self.path) as view:
            self.check(view)
        view_of = self.run(SessionManager.open_read_only(self.path))
        assert view_of.get_session_name() == self.model.name
        assert view_of.get_leaf_id() == self.model.leaf
        self.run(view_of.close())

    def check(self, reads: Reads) -> None:
        """A reader answers as the model does."""
        assert [entry.id for entry in reads.iter_entries()] == list(self.model.entries)
        assert reads.leaf_id == self.model.leaf
        assert [entry.id for entry in reads.iter_branch()] == self.model.path(self.model.leaf)

    @invariant()
    def answers(self) -> None:
        if not self.models:
            return
        manager, model = self.manager, self.model
        assert manager.get_leaf_id() == model.leaf
        assert manager.get_session_name() == model.name
        path = self.run(manager.read_branch())
        assert [entry.id for entry in path] == model.path(model.leaf)
        assert [json.loads(entry.raw) for entry in path] == [model.entries[e.id] for e in path]
        entry_id = self.any_id(7)
        if entry_id is not None:
            assert self.run(manager.read_label(entry_id)) == (model.labels.get(entry_id) or None)

    def teardown(self) -> None:
        if self.models:
            self.run(self.manager.close())
            for path, model in self.models.items():
                with SessionView.open(path) as view:
                    self.model = model
                    self.check(view)
        self.loop.close()
        shutil.rmtree(self.folder)


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
class TestManagerForLonger(ManagerMachine.TestCase):  # type: ignore[misc]
    """Thousands of steps."""

    settings = settings(
        max_examples=60,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
