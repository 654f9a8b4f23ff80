"""Flows of copies: a fork, a clone and a branch copy, each there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final
from unittest import mock

from treering.engine import environment
from treering.engine.errors import TreeringError
from treering.engine.journal.disk import Disk
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.engine.transfer.copying import copy_branch, fork_session
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.flows.world import (
    ADVISORY,
    EXISTS,
    PATH,
    SESSION_ID,
    STORE,
    SessionCheck,
    entry,
    make_ground,
    moved,
)
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

COPY_PATH: Final = STORE.journal_path("seeded-1")
SOURCE: Final = "source"

_LABELS: Final = ("aaaa0001", "aaaa0002")
"""The ids that new labels get in every run: states must not differ by them."""


def _label(name: str, parent: str, target: str, text: str) -> bytes:
    return entry(name, type="label", parentId=parent, targetId=target, label=text)


_ENTRIES: Final = (
    entry("a"),
    _label("l1", "a", "a", "one"),
    entry("b", "t" * 700, parentId="l1"),
    _label("l2", "b", "b", "two"),
    entry("c", "u" * 300, parentId="l2"),
    entry("q", type="request", request={}, parentId="c"),
    entry("side", parentId="a"),
)
"""Two branches; labels on the path to ``c``."""

_PATH: Final = (
    entry("a"),
    entry("b", "t" * 700, parentId="a"),
    entry("c", "u" * 300, parentId="b"),
    _label(_LABELS[0], "c", "a", "one"),
    _label(_LABELS[1], _LABELS[0], "b", "two"),
    moved("c"),
)
"""What a copy of that path holds."""


class Copying:
    """A copy of a session of two branches. Its source is closed, or in use, and never changed."""

    def __init__(self, copy: Callable[[Disk], object], expected: Sequence[Hashable]) -> None:
        self._copy = copy
        self._expected = list(expected)
        self._check = SessionCheck(COPY_PATH, self.once, expected)

    def prepare(self, disk: SimDisk, ledger: Ledger) -> None:
        """The source, closed. The ledger is about the copy."""
        make_ground(disk)
        with Session.create("/w", home_dir=STORE.top, session_id=SESSION_ID, disk=disk) as session:
            session.append_many(_ENTRIES)
            session.branch_to("c")
        ledger.begin([])
        ledger.remember(SOURCE, disk.read_file(PATH))

    def once(self, disk: Disk) -> None:
        """Make the copy."""
        with mock.patch.object(environment, "short_entry_ids", lambda n: list(_LABELS[:n])):
            self._copy(disk)

    def run(self, disk: Any, ledger: Ledger, _: object) -> None:
        """Tell the ledger. An error may come from the sync of a name that is there already."""
        with ledger.attempt(*self._expected, atomic=True, unknown=(TreeringError,)):
            self.once(disk)
        ledger.remember(EXISTS, True)

    def check(self, disk: SimDisk, expectation: Expectation) -> None:
        """The source begins as it was; the copy is whole, or can be made."""
        source = expectation.fact(SOURCE)
        assert isinstance(source, bytes)
        if disk.read_file(PATH)[: len(source)] != source:
            raise Broken("the copy changed its source")
        self._check(disk, expectation)

    def flow(self, name: str) -> Flow:
        """The flow of this copy."""
        return Flow(name, self.prepare, self.run, self.check, ADVISORY)


def _fork(disk: Disk) -> None:
    fork_session(PATH, "/w", home_dir=STORE.top, disk=disk)


def _clone(disk: Disk) -> None:
    with SessionView.open(PATH, disk=disk) as view:
        copy_branch(view, view.leaf_id, home_dir=STORE.top, disk=disk)


def _branch(disk: Disk) -> None:
    """From the owner of the source, who has just opened it and writes nothing."""
    with Session.open(PATH, disk=disk) as session:
        copy_branch(session, "c", home_dir=STORE.top, disk=disk)


def copying_flows() -> Iterator[Flow]:
    """All of them."""
    yield Copying(_fork, [*_ENTRIES, moved("c")]).flow("fork")
    yield Copying(_clone, _PATH).flow("clone")
    yield Copying(_branch, _PATH).flow("branch-copy")
