"""A program that owns a session: what it was told goes to standard output, line by line.

``BEGIN op ids``, then ``ACK op ids`` or ``FAIL op ids: Class: message``; ``FOUND ids`` after a
recovery says which of the uncertain entries are there. One script, one process: the lines are the
acknowledgement log of whoever makes its system calls fail.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from treering.engine import OutcomeUnknown, Session, TreeringError


class Step(NamedTuple):
    """One operation and the ids of its entries."""

    op: str
    ids: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As it stands in a line."""
        return " ".join((self.op, *self.ids))


SCRIPTS: Final[dict[str, tuple[Step, ...]]] = {
    "appends": (
        Step("open"),
        Step("one", ("a1",)),
        Step("many", ("m1", "m2", "m3")),
        Step("batch", ("b1", "b2")),
        Step("branch", ("a1",)),
        Step("one", ("a2",)),
        Step("close"),
    ),
    "recovers": (
        Step("open"),
        Step("one", ("a1",)),
        Step("recover"),
        Step("one", ("a2",)),
        Step("close"),
    ),
    "background": (
        Step("open-os"),
        Step("one", ("a1",)),
        Step("many", ("m1", "m2")),
        Step("sync"),
        Step("one", ("a2",)),
        Step("close"),
    ),
    "creates": (Step("create"), Step("one", ("a1",)), Step("close")),
    "opens": (Step("open"), Step("one", ("a1",)), Step("close")),
    "limited": (
        Step("open"),
        Step("one", ("a1",)),
        Step("space"),
        Step("many", ("m1", "m2")),
        Step("batch", ("b1", "b2")),
        Step("close"),
    ),
}
"""What each program does. ``space`` lifts the limit on the size of files."""


def entry(entry_id: str) -> dict[str, Any]:
    """The entry of that id: the same in every run, but for parent and time."""
    return {
        "type": "custom",
        "customType": "owner",
        "id": entry_id,
        "timestamp": "2024-12-03T14:00:00.000Z",
        "data": f"{entry_id} " * 4,
    }


def say(line: str) -> None:
    """One line, in one system call."""
    os.write(1, line.encode("utf-8", "backslashreplace") + b"\n")


class Owner:
    """Runs the steps of a script on one journal."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.session: Session | None = None
        self.uncertain: list[str] = []
        self.failed = 0

    def run(self, steps: tuple[Step, ...]) -> int:
        """All steps, whatever fails; 0 when nothing did, else 3."""
        for step in steps:
            if self.session is None and step.op not in ("open", "open-os", "create", "space"):
                say(f"SKIP {step.words}")
                continue
            unknown = self.attempt(step)
            if unknown and self.session is not None and step.op != "close":
                self.attempt(Step("recover"))
        return 3 if self.failed else 0

    def attempt(self, step: Step) -> bool:
        """One step; whether its outcome is unknown."""
        say(f"BEGIN {step.words}")
        try:
            self.do(step)
        except TreeringError as error:
            self.failed += 1
            say(f"FAIL {step.words}: {type(error).__name__}: {error}")
            if isinstance(error, OutcomeUnknown):
                self.uncertain += error.entry_ids
                return True
            if step.op == "recover":
                self.session = None
            return False
        say(f"ACK {step.words}")
        if step.op == "recover" and self.session is not None:
            self._look_up(self.session)
        return False

    def _look_up(self, session: Session) -> None:
        try:
            found = [one for one in self.uncertain if session.exists(one)]
        except TreeringError as error:
            say(f"FAIL look: {type(error).__name__}: {error}")
            return
        say(" ".join(("FOUND", *found)))

    def do(self, step: Step) -> None:
        """The step itself; raises what the engine raises."""
        if step.op in ("open", "open-os"):
            mode: Any = "os" if step.op == "open-os" else "full"
            self.session = Session.open(self.path, durability=mode)
        elif step.op == "create":
            folder, name = os.path.split(self.path)
            self.session = Session.create(
                cwd="/w", session_dir=folder, session_id=name.removesuffix(".jsonl")
            )
        elif step.op == "space":
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        else:
            assert self.session is not None
            _USES[step.op](self.session, step.ids)
            if step.op == "close":
                self.session = None


def _batch(session: Session, ids: tuple[str, ...]) -> None:
    with session.batch() as batch:
        for one in ids:
            batch.append(entry(one))


_USES: Final[dict[str, Callable[[Session, tuple[str, ...]], object]]] = {
    "one": lambda session, ids: session.append(entry(ids[0])),
    "many": lambda session, ids: session.append_many([entry(one) for one in ids]),
    "batch": _batch,
    "branch": lambda session, ids: session.branch_to(ids[0]),
    "recover": lambda session, _: session.recover(),
    "sync": lambda session, _: session.sync(),
    "close": lambda session, _: session.close(),
}


def own(script: str, path: str) -> int:
    """Run a script on the journal at ``path``."""
    return Owner(path).run(SCRIPTS[script])


if __name__ == "__main__":
    sys.exit(own(sys.argv[1], sys.argv[2]))
