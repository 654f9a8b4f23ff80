"""An error at a call that SQLite makes of its VFS for an index, and what must hold then.

A trial is named as attacks are, ``plain/xWrite-full-once:12/before``: the call, how it fails, once
or from then on (``forever``), the how-manieth call it is, and whether counting begins before the
session is opened or while its owner has it open.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from treering.engine import Session, SessionView
from treering.fuzz.adversary.answers import answers_of, few_answers_of
from treering.fuzz.adversary.attacks import When
from treering.fuzz.adversary.faulty_vfs import (
    FAILURES,
    Plan,
    installed,
    is_system_call,
    why_no_system_calls,
)
from treering.fuzz.adversary.samples import Sample
from treering.fuzz.adversary.scene import Scene
from treering.fuzz.adversary.trial import (
    BROKEN,
    HARMLESS,
    PromiseBroken,
    Result,
    append_some,
    fsck_is_content,
    outcome_of,
    promised,
    reopen,
    require,
    require_journal,
    same_answers,
    truth,
)

NOT_REACHED: Final = "not reached"
"""There were fewer such calls than that."""

_NAME: Final = re.compile(
    r"(x[A-Z][A-Za-z]+|(?:shm|sys)-[a-z]+)-([A-Za-z]+)-(once|forever):([0-9]+)\Z"
)


class Fault(NamedTuple):
    """One call that fails."""

    call: str
    how: str
    forever: bool
    at: int

    @property
    def name(self) -> str:
        """As in the name of a trial."""
        return f"{self.call}-{self.how}-{'forever' if self.forever else 'once'}:{self.at}"


def fault_of(name: str) -> Fault | None:
    """The fault of a name; None when it is none."""
    match = _NAME.match(name)
    if match is None or match[2] not in FAILURES.get(match[1], ()):
        return None
    return Fault(match[1], match[2], match[3] == "forever", int(match[4]))


def count_calls(folder: str, sample: Sample, other: Sample, when: When) -> Counter[str]:
    """How often each call is made in a trial in which nothing fails."""
    plan = Plan()
    result = _run(folder, plan, Fault("", "", forever=False, at=0), sample, other, when)
    if result not in (HARMLESS, NOT_REACHED):
        raise AssertionError(f"a trial without a fault ended as {result!r}")
    return plan.seen


def names_of_faults(calls: Counter[str], when: When, sample: str) -> Iterator[str]:
    """Every call that was made, failing in every way, once and from then on."""
    for call, hows in FAILURES.items():
        for at in range(1, calls[call] + 1):
            for how in hows:
                for forever in (False, True):
                    yield f"{sample}/{Fault(call, how, forever, at).name}/{when}"


def run_fault_trial(folder: str, fault: Fault, sample: Sample, other: Sample, when: When) -> Result:
    """Make a scene, let the call fail, and look whether everything promised holds."""
    name = f"{sample.name}/{fault.name}/{when}"
    if is_system_call(fault.call) and (why := why_no_system_calls()) is not None:
        return Result(name, f"skipped: {why}")
    try:
        return Result(name, _run(folder, Plan(), fault, sample, other, when))
    except PromiseBroken as broken:
        return Result(name, BROKEN, str(broken))


def _run(folder: str, plan: Plan, fault: Fault, sample: Sample, other: Sample, when: When) -> str:
    if os.path.exists(folder):
        shutil.rmtree(folder)
    os.makedirs(folder)
    scene = Scene(folder, sample, other, 0)
    try:
        replaced = not fault.call or is_system_call(fault.call)
        with installed(plan, system_calls=replaced):
            if when == "before":
                _arm(plan, fault)
            outcome, appended = _faulty_owner(scene, plan, fault, when)
            fired = plan.fired
            plan.disarm()
        _afterwards(scene, outcome, appended)
    finally:
        scene.remove()
    return outcome if fired else NOT_REACHED


def _arm(plan: Plan, fault: Fault) -> None:
    plan.arm(fault.call, fault.how, fault.at, forever=fault.forever)


def _faulty_owner(scene: Scene, plan: Plan, fault: Fault, when: When) -> tuple[str, list[str]]:
    """An owner, and a view beside it, while the call fails; what came of it, and new ids."""
    right = scene.sample.right
    with promised("the session opens"):
        session = Session.open(scene.path)
    with session:
        same_answers(session, right, "the owner", few_answers_of)
        appended = append_some(session, "b")
        if when == "while":
            _arm(plan, fault)
        with promised("a view opens beside the owner"), SessionView.open(scene.path) as view:
            right = answers_of(view)
        require({one.id for one in right["entries"]}.issuperset(appended), "an append is not seen")
        same_answers(session, right, "the owner")
        same_answers(session, right, "the owner, asked again,", few_answers_of)
        appended += append_some(session, "c")
        with promised("reading what was appended"):
            session.read(appended[-1])
        outcome = outcome_of(session)
    return outcome, appended


def _afterwards(scene: Scene, outcome: str, appended: list[str]) -> None:
    """The calls succeed again: everything is there, and the index is whole."""
    require_journal(scene)
    right = truth(scene)
    there = {entry.id for entry in right["entries"]}
    require(there.issuperset(appended), "an acknowledged entry is gone")
    with promised("the session opens again"), Session.open(scene.path) as session:
        same_answers(session, right, "the next owner")
    reopen(scene.path, right)
    require(fsck_is_content(scene.path), f"fsck finds the index wrong ({outcome})")
