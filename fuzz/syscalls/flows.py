"""The flows: real commands and small programs, and what has to come of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from treering.fuzz.syscalls import stores
from treering.fuzz.syscalls.owner import SCRIPTS
from treering.fuzz.syscalls.stores import Before, Place

NAME: Final = "a new name"
LABEL: Final = "a new label"


class Seen(NamedTuple):
    """A session as it is after the run, opened without any fault."""

    raws: list[bytes]
    leaf: str | None
    cut: int
    """Bytes that opening moved to quarantine."""


@dataclass
class After:
    """The store after a run; sessions that could not be opened are missing."""

    sessions: dict[str, Seen] = field(default_factory=dict)

    @property
    def good(self) -> Seen | None:
        """The session that was there before."""
        return self.sessions.get(stores.SESSION_ID)


class Ran(NamedTuple):
    """How the process ended and what it said."""

    status: int
    out: bytes
    err: bytes


Judge = Callable[[Place, Before, Ran, After], bool]
"""Whether the effect of the flow is there."""


@dataclass(frozen=True)
class Flow:
    """One command line or script."""

    name: str
    store: Callable[[Place], Before]
    words: Callable[[Place], list[str]] | None
    effect: Judge | None = None
    """None: it only reads (or its lines say what it did)."""
    script: str | None = None
    reads_only: bool = False
    spares: bytes | None = None
    """Words that an answer has when it tells of what could not be read, with exit code 0."""
    settles: bool = False
    """It changes the old journal: what must stay is judged by the entries."""
    ends: str | None = None
    """It moves the session: where it is when that is done, ``there`` or ``deleted``."""

    def command(self, place: Place) -> list[str]:
        """What follows ``treering``."""
        assert self.words is not None
        return [*self.words(place), "--home", place.home]


def _new_raws(before: Before, after: After) -> list[bytes]:
    return [] if after.good is None else after.good.raws[len(before.raws) :]


def _another(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
    others = [name for name in after.sessions if name != stores.SESSION_ID]
    if ran.status == 0 and len(others) == 1:
        path = os.path.join(place.sessions, f"{others[0]}.jsonl")
        return ran.out.decode().strip() == path
    return len(others) == 1


def _copied(place: Place, before: Before, ran: Ran, after: After) -> bool:
    """Everything that the old session has."""
    if not _another(place, before, ran, after):
        return False
    (seen,) = (s for name, s in after.sessions.items() if name != stores.SESSION_ID)
    return (seen.raws, seen.leaf) == (before.raws, before.leaf)


def _cloned(place: Place, before: Before, ran: Ran, after: After) -> bool:
    """The path without the label in it, which comes behind it."""
    if not _another(place, before, ran, after):
        return False
    (seen,) = (s for name, s in after.sessions.items() if name != stores.SESSION_ID)
    kept = [json.loads(raw) for raw in before.raws]
    (label,) = (one for one in kept if one["type"] == "label")
    kept.remove(label)
    kept[-1]["parentId"] = kept[-2]["id"]
    *found, carried = map(json.loads, seen.raws)
    said = (carried["type"], carried["targetId"], carried["label"])
    return (found, seen.leaf, said) == (kept, before.leaf, ("label", "e1", stores.LABEL))


def _imported(place: Place, before: Before, ran: Ran, after: After) -> bool:
    if not _another(place, before, ran, after):
        return False
    (seen,) = (s for name, s in after.sessions.items() if name != stores.SESSION_ID)
    return seen.raws == stores.SOURCE.splitlines()[1:]


def _appended(text: str) -> Judge:
    def judge(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
        new = _new_raws(before, after)
        return len(new) == 1 and f'"{text}"'.encode() in new[0]

    return judge


def _moved(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
    return after.good is not None and after.good.leaf == "e1"


def _exported(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
    if not os.path.exists(place.export):
        return False
    with open(place.export, "rb") as file:
        return file.read().splitlines()[1:] == before.raws


def _repaired(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
    return after.good is not None and after.good.raws == before.raws[1:]


def _cut(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
    return after.good is not None and after.good.cut == 0


def _indexed(place: Place, before: Before, ran: Ran, after: After) -> bool:  # noqa: ARG001
    folder = os.path.join(place.home, "session-index")
    return os.path.isdir(folder) and any(n.endswith(".sqlite3") for n in os.listdir(folder))


def _looking(name: str, *words: str, spares: bytes | None = None) -> Flow:
    return Flow(name, stores.good, lambda _: list(words), reads_only=True, spares=spares)


def _all() -> Iterator[Flow]:
    good = stores.SESSION_ID
    yield Flow("new", stores.good, lambda _: ["session", "new"], _another)
    yield Flow("import", stores.good, lambda at: ["session", "import", at.source], _imported)
    yield Flow("name", stores.good, lambda _: ["session", "name", good, NAME], _appended(NAME))
    yield Flow(
        "label", stores.good, lambda _: ["session", "label", good, "e2", LABEL], _appended(LABEL)
    )
    yield Flow("branch", stores.good, lambda _: ["session", "branch", good, "e1"], _moved)
    yield Flow(
        "export", stores.good, lambda at: ["session", "export", good, "-o", at.export], _exported
    )
    yield Flow("repair", stores.damaged, lambda _: ["repair", good], _repaired, settles=True)
    yield Flow("repair-torn", stores.torn, lambda _: ["repair", good], _cut)
    yield Flow(
        "readmit",
        stores.tail_in_quarantine,
        lambda _: ["repair", good, "--readmit"],
        _appended("found"),
    )
    yield Flow("reindex", stores.good, lambda _: ["reindex", good], _indexed)
    yield Flow("fork", stores.labelled, lambda _: ["session", "fork", good], _copied)
    yield Flow("clone", stores.labelled, lambda _: ["session", "clone", good], _cloned)
    yield Flow(
        "delete",
        stores.with_artifact,
        lambda _: ["session", "delete", good, "--yes"],
        ends="deleted",
    )
    yield Flow("undelete", stores.deleted, lambda _: ["session", "undelete", good], ends="there")
    yield _looking("fsck", "fsck", "--index")
    yield _looking("show", "session", "show", good, spares=b"[cannot read ")
    yield _looking("tree", "session", "tree", good)
    yield _looking("list", "session", "list", spares=b"[unreadable]")
    yield Flow("appends", stores.good, None, script="appends")
    yield Flow("recovers", stores.good, None, script="recovers")
    yield Flow("background", stores.good, None, script="background")
    yield Flow("creates", stores.none, None, script="creates")
    yield Flow("opens-torn", stores.torn, None, script="opens")
    yield Flow("opens-uncertain", stores.uncertain, None, script="opens")


FLOWS: Final[dict[str, Flow]] = {flow.name: flow for flow in _all()}


class Told(NamedTuple):
    """What a script acknowledged, refused, and was unsure about."""

    acknowledged: list[str]
    refused: list[str]
    unknown: list[str]
    leaf: str | None
    """Where the last acknowledged operation left the position; None when that is unknown."""


def told(out: bytes, *, killed: bool) -> Told:
    """Read the lines of a script."""
    steps = {step.words: step for steps in SCRIPTS.values() for step in steps}
    acknowledged: list[str] = []
    refused: list[str] = []
    unknown: list[str] = []
    leaf: str | None = None
    begun: list[str] = []
    for line in out.decode("utf-8", "replace").splitlines():
        word, _, rest = line.partition(" ")
        name, _, why = rest.partition(": ")
        step = steps.get(name)
        if word == "FOUND":
            here = rest.split()
            refused += [one for one in unknown if one not in here]
            acknowledged += [one for one in unknown if one in here]
            unknown = []
        if step is None or step.op in ("open", "open-os", "create", "recover", "sync", "close"):
            continue
        ids = [] if step.op == "branch" else list(step.ids)
        if word == "BEGIN":
            begun = ids
            leaf = leaf if step.op == "space" else None
        elif word == "ACK" and step.ids:
            acknowledged += ids
            leaf, begun = step.ids[-1], []
        elif word == "FAIL":
            (unknown if why.startswith("OutcomeUnknown") else refused).extend(ids)
            begun = []
    if killed:
        unknown += begun
    return Told(acknowledged, refused, unknown, leaf)
