"""Flows of context epochs and request records: old or new, and never an epoch that is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

from treering.engine import home
from treering.engine.journal.disk import Disk
from treering.engine.session.capture import SourceRef
from treering.engine.session.context_epoch_making import (
    Choice,
    ContextEpochCandidate,
    activation,
    prepare,
)
from treering.engine.session.context_epochs import active_context_epoch
from treering.engine.session.output_links import Origin
from treering.engine.session.plan import Plan
from treering.engine.session.requests import request_record, store_request
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.engine.transfer.copying import fork_session
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.flows.world import (
    ADVISORY,
    EXISTS,
    PATH,
    STORE,
    SessionCheck,
    World,
    make_ground,
)
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

OLD: str = "the id of the epoch before"
"""A fact of the ledger."""


def _origin(session: Session) -> Origin:
    """This moment, as a capture of it has it."""
    moment = session.moment()
    source = SourceRef(session.id, session.path, moment.leaf_id, moment.sequence, persistent=True)
    return Origin(session, moment.selections, source)


def _told(world: World, act: Callable[[Session], Any]) -> Any:
    """Do it, and tell the ledger before what is written, which only the engine knows."""
    session = world.owned()
    store = session.store_plan

    def store_plan(plan: Plan, *, atomic: bool) -> None:
        with world.attempting(*(record.payload for record in plan.records), atomic=atomic):
            store(plan, atomic=atomic)

    with mock.patch.object(session, "store_plan", store_plan):
        return act(session)


def activate(world: World, views: Sequence[str]) -> str:
    """Make these entries the context; the id of the epoch."""

    def act(session: Session) -> str:
        origin = _origin(session)
        choice = Choice.of(views, None, None, None)
        recipe = prepare(session, origin, choice, {"version": 4, "representation": "{}"})
        prepared = activation(
            ContextEpochCandidate(origin, recipe, None),
            origin,
            tokens_before=7,
            summary=None,
            details=None,
            custom_instructions=None,
            usage=None,
            links=(),
        )
        return prepared.append(session).id

    found: str = _told(world, act)
    return found


def message(world: World, name: str) -> str:
    """A message of that id."""
    act = partial(
        Session.append,
        entry={"type": "message", "id": name, "message": {"role": "user", "content": name}},
    )
    found: str = _told(world, act)
    return found


def request(world: World, kind: str, **more: Any) -> None:
    """A record of a request, from this moment."""
    event = {
        "type": kind,
        "attemptId": "a1",
        "operationId": "o1",
        "purpose": "main",
        "timestamp": 1_700_000_000_000,
        **more,
    }

    def act(session: Session) -> None:
        store_request(session, request_record(event, _origin(session).source))

    _told(world, act)


def _prepare(disk: SimDisk, ledger: Ledger) -> None:
    """A session with three messages and an epoch over them, closed."""
    make_ground(disk)
    world = World(disk, ledger)
    world.make()
    for name in ("m1", "m2", "m3"):
        message(world, name)
    ledger.remember(OLD, activate(world, ["m1", "m3"]))
    world.close()


def _activating(disk: Any, ledger: Ledger, _: object) -> None:
    """Another epoch, with records of requests around it."""
    world = World(disk, ledger)
    world.own()
    message(world, "m4")
    request(world, "attempt_admitted", descriptor={})
    activate(world, ["m2", "m4"])
    request(world, "attempt_settled", receipt={"usage": {}})
    world.close()


class _EpochCheck:
    """The promises about the session, and that its context is one of the two, or a newer."""

    def __init__(self) -> None:
        self._check = SessionCheck()

    def __call__(self, disk: SimDisk, expectation: Expectation) -> None:
        with SessionView.open(PATH, disk=disk) as view:
            found = active_context_epoch(view, view.leaf_id)
            if found is None:
                raise Broken("the context epoch is gone")
            compactions = [entry.id for entry in view.iter_entries() if entry.type == "compaction"]
            if found.entry_id != compactions[-1] or compactions[0] != expectation.fact(OLD):
                raise Broken(f"the context is {found.entry_id}, the epochs are {compactions}")
        self._check(disk, expectation)


def _forked(disk: Any, ledger: Ledger, _: object) -> None:
    """A fork, whose epoch is rebuilt with it."""
    with ledger.attempt("the copy", atomic=True):
        fork_session(PATH, "/w", home_dir=STORE.top, disk=disk)
    ledger.remember(EXISTS, True)


def _check_forked(disk: SimDisk, expectation: Expectation) -> None:
    """A copy is not there, or has an epoch of its own that holds; the source is as it was."""
    copies = [path for path in _journals(disk) if path != PATH]
    if expectation.fact(EXISTS) and not copies:
        raise Broken("the copy is gone")
    for path in (PATH, *copies):
        with SessionView.open(path, disk=disk) as view:
            found = active_context_epoch(view, view.leaf_id)
            if found is None or found.recipe.source.session_id != home.session_id_of(path):
                raise Broken(f"{path} has no context epoch of its own")


def _journals(disk: Disk) -> list[str]:
    names = disk.list_folder(STORE.sessions)
    return [f"{STORE.sessions}/{name}" for name in sorted(names) if name.endswith(".jsonl")]


def _prepare_fork(disk: SimDisk, ledger: Ledger) -> None:
    _prepare(disk, Ledger())
    ledger.begin([])


def epoch_flows() -> Iterator[Flow]:
    """All of them."""
    yield Flow("context-epoch", _prepare, _activating, _EpochCheck(), ADVISORY)
    yield Flow("fork-context-epoch", _prepare_fork, _forked, _check_forked, ADVISORY)
