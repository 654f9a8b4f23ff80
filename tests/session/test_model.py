"""A state machine: whatever is done to a session, it answers as a plain dictionary would."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)
from session_helpers import answers, crash, drop_index, index_differences, read_bytes, write_bytes

from treering.engine import Conflict, NotFound, Session, SessionView
from treering.engine.session import housekeeping

texts = st.text(max_size=30) | st.integers(4000, 9000).map(lambda n: "long " * (n // 5))
kinds = st.sampled_from(["message", "custom", "request", "session_info", "compaction"])


class Model:
    """Entries by id in order, the position, labels."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.leaf: str | None = None
        self.labels: dict[str, str] = {}

    def add(self, entry: dict[str, Any]) -> None:
        self.entries[entry["id"]] = entry
        if entry["type"] != "request":
            self.leaf = entry["id"]
        if entry["type"] == "label":
            if entry.get("label"):
                self.labels[entry["targetId"]] = entry["label"]
            else:
                self.labels.pop(entry["targetId"], None)

    def path(self, leaf: str | None) -> list[str]:
        found = []
        while leaf is not None:
            found.append(leaf)
            leaf = self.entries[leaf]["parentId"]
        return found[::-1]

    def copy(self) -> Model:
        made = Model()
        made.entries, made.leaf, made.labels = dict(self.entries), self.leaf, dict(self.labels)
        return made


class SessionMachine(RuleBasedStateMachine):
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="treering-model-")
        self.model = Model()
        self.count = 0

    @initialize(durability=st.sampled_from(["full", "os"]), compression=st.booleans())
    def create(self, durability: Any, compression: bool) -> None:
        self.more: dict[str, Any] = {"durability": durability, "compression": compression}
        self.session = Session.create(home_dir=f"{self.folder}/home", cwd="/", **self.more)
        self.path = self.session.path

    def made(self, kind: str, text: str, parent: str | None) -> dict[str, Any]:
        self.count += 1
        entry: dict[str, Any] = {"type": kind, "id": f"e{self.count}", "parentId": parent}
        if kind == "message":
            entry["message"] = {"role": "user", "content": text}
        elif kind == "session_info":
            entry["name"] = text
        elif kind == "compaction":
            entry["summary"] = text
            path = self.model.path(parent)
            if path:
                entry["firstKeptEntryId"] = path[len(text) % len(path)]
        else:
            entry["data"] = text
        return entry

    @rule(target=ids, kind=kinds, text=texts, where=st.none() | ids)
    def append(self, kind: str, text: str, where: str | None) -> str:
        parent = where if where in self.model.entries else self.model.leaf
        entry = self.made(kind, text, parent)
        given = dict(entry)
        if parent == self.model.leaf:
            del given["parentId"]
        assert self.session.append(given) == entry["id"]
        self.model.add(entry)
        return str(entry["id"])

    @rule(
        target=ids,
        items=st.lists(st.tuples(kinds, texts), min_size=1, max_size=5),
        how=st.sampled_from(["many", "batch"]),
    )
    def together(self, items: list[tuple[str, str]], how: str) -> Any:
        before = self.model.copy()
        entries = []
        for kind, text in items:
            entries.append(self.made(kind, text, self.model.leaf))
            self.model.add(entries[-1])
        self.model = before
        if how == "many":
            assert self.session.append_many(entries) == [e["id"] for e in entries]
        else:
            with self.session.batch() as batch:
                for entry in entries:
                    batch.append(entry)
            assert batch.ids == [e["id"] for e in entries]
        for entry in entries:
            self.model.add(entry)
        return multiple(*[e["id"] for e in entries])

    @rule(target_id=ids, label=st.none() | st.text(min_size=1, max_size=5))
    def label(self, target_id: str, label: str | None) -> None:
        if target_id not in self.model.entries:
            with pytest.raises(NotFound):
                self.session.set_label(target_id, label)
            return
        made = self.session.set_label(target_id, label)
        self.model.add(
            {
                "type": "label",
                "id": made,
                "parentId": self.model.leaf,
                "targetId": target_id,
                "label": label,
            }
        )

    @rule(where=st.none() | ids)
    def branch_to(self, where: str | None) -> None:
        if where is not None and where not in self.model.entries:
            with pytest.raises(NotFound):
                self.session.branch_to(where)
            return
        self.session.branch_to(where)
        self.model.leaf = where

    @rule(again=ids)
    def repeat(self, again: str) -> None:
        if again not in self.model.entries:
            return
        size = self.session._writer.size
        raw = self.session.read(again).raw
        assert self.session.append(raw) == again
        with pytest.raises(Conflict):
            self.session.append({"type": "custom", "id": again, "other": 1})
        assert self.session._writer.size == size

    @rule(drop=st.booleans())
    def reopen(self, drop: bool) -> None:
        self.session.close()
        assert index_differences(self.path, may_be_missing=True) == []
        if drop:
            drop_index(self.path)
        self.session = Session.open(self.path, **self.more)
        assert self.session.report is not None
        assert self.session.report.case == "A"

    @rule(tail=st.binary(max_size=200), drop=st.booleans(), entry=texts, cut=st.floats(0, 1))
    def crash_in_an_append(self, tail: bytes, drop: bool, entry: str, cut: float) -> None:
        """The owner dies; of one more append that nobody acknowledged only a part is there."""
        crash(self.session)
        acknowledged = read_bytes(self.path)
        other = f"{self.folder}/other"
        shutil.rmtree(other, ignore_errors=True)
        os.makedirs(f"{other}/sessions")
        copy = f"{other}/sessions/{os.path.basename(self.path)}"
        write_bytes(copy, acknowledged)
        with Session.open(copy, **self.more) as more:
            more.append({"type": "custom", "id": "never", "data": entry})
            longer = read_bytes(copy)
        # Cut inside of what came after, but never behind the first frame that would be whole.
        first = len(acknowledged) + 44
        part = longer[len(acknowledged) : len(acknowledged) + int(cut * 44)]
        assert len(acknowledged) + len(part) <= first
        write_bytes(self.path, acknowledged + part + (tail if tail[:4] != b"\xf7RG\x1d" else b""))
        if drop:
            drop_index(self.path)
        self.session = Session.open(self.path, **self.more)
        assert self.session.report is not None
        assert self.session.report.case in ("A", "E")
        assert os.path.getsize(self.path) == len(acknowledged)

    @rule()
    def recover(self) -> None:
        self.session.recover()

    @rule()
    def drop_index_while_open(self) -> None:
        drop_index(self.path)

    @rule()
    def a_view_agrees(self) -> None:
        with SessionView.open(self.path) as view:
            assert answers(view) == answers(self.session)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "session"):
            return
        model, session = self.model, self.session
        assert session.leaf_id == model.leaf
        assert [e.id for e in session.branch()] == model.path(model.leaf)

    def teardown(self) -> None:
        if hasattr(self, "session"):
            model, session = self.model, self.session
            assert [e.id for e in session.iter_entries()] == list(model.entries)
            for entry_id, entry in model.entries.items():
                assert session.read(entry_id).parent_id == entry["parentId"]
            assert {e.id: t for e, t in session.labels()} == model.labels
            assert session.counts()["unresolved"] == 0
            session.close()
            with SessionView.open(self.path) as view:
                assert view.leaf_id == model.leaf
                assert [e.id for e in view.iter_entries()] == list(model.entries)
            assert index_differences(self.path, may_be_missing=True) == []
        shutil.rmtree(self.folder, ignore_errors=True)


def machine(examples: int, steps: int) -> Any:
    made = SessionMachine.TestCase
    made.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return made


TestSessionModel = machine(int(os.environ.get("TREERING_MODEL_EXAMPLES", "60")), 25)


@pytest.fixture(autouse=True)
def _quick_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background pass comes in between often."""
    monkeypatch.setattr(housekeeping, "INDEX_LAG_S", 0.002)
