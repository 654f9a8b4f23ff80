"""One trial: an attack on the index of one sample, and what must hold afterwards.

After every attack, made before a session is opened or behind the back of its owner: owner and view
answer as without any index, also when asked again; the journal has not changed; appends succeed
at once and are there afterwards; nothing but the documented outcome is raised; the index is whole
again, or fsck says what is wrong with it and reindexing mends it; no part of a bad file stays in
the way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from treering.engine import AcknowledgedDataLost, Session, SessionView, TreeringError
from treering.engine.session.reads import Reads
from treering.fuzz.adversary.answers import Answers, answers_of, difference
from treering.fuzz.adversary.attacks import Attack, When
from treering.fuzz.adversary.samples import Sample
from treering.fuzz.adversary.scene import Scene
from treering.index import files
from treering.tools.fsck import check_session
from treering.tools.reindex import reindex_session

HARMLESS: Final = "harmless"
SET_ASIDE: Final = "set aside"
IN_MEMORY: Final = "in memory"
REFUSED: Final = "refused"
BELIEVED: Final = "believed"
LEFT: Final = "left to fsck"
"""Answers are right, and only fsck reads the page that is bad."""
BROKEN: Final = "broken"
APPENDS: Final = 5
GOOD_STATES: Final = ("equal", "behind", "absent")
"""What fsck may say of an index that nobody needs to mend."""


class PromiseBroken(Exception):
    """What was promised and did not hold."""


@dataclass(frozen=True)
class Result:
    """How one trial ended."""

    trial: str
    outcome: str
    broken: str | None = None
    """The promise that did not hold; None when all did."""


@contextmanager
def promised(what: str) -> Iterator[None]:
    """Any exception inside, but a broken promise, breaks this one."""
    try:
        yield
    except PromiseBroken:
        raise
    except Exception as error:
        raise PromiseBroken(f"{what}: {type(error).__name__}: {error}") from error


def require(condition: object, what: str) -> None:
    """Raise PromiseBroken unless the condition holds."""
    if not condition:
        raise PromiseBroken(what)


def same_answers(
    reads: Reads, right: Answers, who: str, ask: Callable[[Reads], Answers] = answers_of
) -> None:
    """Raise PromiseBroken when any answer to what is asked is another one, or an error."""
    with promised(f"{who} answers"):
        found = ask(reads)
    expected = right if ask is answers_of else {question: right[question] for question in found}
    different = difference(expected, found)
    require(different is None, f"{who} answers otherwise: {different}")


def run_trial(
    folder: str, attack: Attack, sample: Sample, other: Sample, when: When, seed: int
) -> Result:
    """Make a scene, attack it, and look whether everything promised holds."""
    name = f"{sample.name}/{attack.name}/{when}"
    if os.path.exists(folder):
        shutil.rmtree(folder)
    os.makedirs(folder)
    scene = Scene(folder, sample, other, seed)
    try:
        outcome = (_before if when == "before" else _while)(scene, attack)
    except PromiseBroken as broken:
        return Result(name, BROKEN, str(broken))
    finally:
        scene.remove()
    return Result(name, outcome)


def _before(scene: Scene, attack: Attack) -> str:
    """The files were attacked while nobody had the session open."""
    right, journal = scene.sample.right, scene.sample.journal
    attack.do(scene.target)
    if attack.loses:
        return _refusal(scene)
    with promised("a view opens"), SessionView.open(scene.path) as view:
        same_answers(view, right, "the view")
    require(Path(scene.path).read_bytes() == journal, "a view changed the journal")
    with promised("the session opens"):
        session = Session.open(scene.path)
    with session:
        outcome = _outcome_of(session, right, believable="before" in attack.believed)
        if outcome != BELIEVED:
            same_answers(session, right, "the owner, asked again,")
        require(Path(scene.path).read_bytes() == journal, "the handling changed the journal")
        appended = append_some(session, "a")
    return _afterwards(scene, attack, "before", outcome, appended)


def _while(scene: Scene, attack: Attack) -> str:
    """The files were attacked behind the back of an owner that goes on."""
    with promised("the session opens"):
        session = Session.open(scene.path)
    with session:
        same_answers(session, scene.sample.right, "the owner before the attack")
        appended = append_some(session, "b")
        with promised("reading what was appended"):
            session.read(appended[-1])
        if attack.sidecars:
            remove_sidecars(scene.target.index)
        attack.do(scene.target)
        appended += append_some(session, "c")
        require_journal(scene)
        right = truth(scene)
        outcome = _outcome_of(session, right, believable="while" in attack.believed)
        if outcome != BELIEVED:
            same_answers(session, right, "the owner, asked again,")
        with promised("a view opens beside the owner"), SessionView.open(scene.path) as view:
            same_answers(view, right, "the view beside the owner")
        appended += append_some(session, "d")
        noticed = bool(session.index_faults)
    return _afterwards(scene, attack, "while", outcome, appended, noticed=noticed)


def _refusal(scene: Scene) -> str:
    """The one verdict that an index may bring about: it proves that acknowledged data is gone."""
    cut = scene.sample.journal[: scene.sample.earlier]
    for attempt in ("opening", "opening again"):
        try:
            Session.open(scene.path).close()
        except AcknowledgedDataLost as refusal:
            require(refusal.report is not None and refusal.report.case == "D", f"{attempt}: case D")
        else:
            raise PromiseBroken(f"{attempt} hides that acknowledged entries are gone")
    require(Path(scene.path).read_bytes() == cut, "the refusal changed the journal")
    right = truth(scene)
    with promised("a view opens"), SessionView.open(scene.path) as view:
        require(view.report.case == "D", "the view does not say what is gone")
        same_answers(view, right, "the view")
    return REFUSED


def _outcome_of(session: Session, right: Answers, *, believable: bool) -> str:
    try:
        same_answers(session, right, "the owner")
    except PromiseBroken as broken:
        if believable and (broken.__cause__ is None or isinstance(broken.__cause__, TreeringError)):
            return BELIEVED
        raise
    return outcome_of(session)


def outcome_of(session: Session) -> str:
    """What became of the index file of an open session, by its own words."""
    if not session.index_faults:
        return HARMLESS
    folder, session_id = session.store.index, session.id
    with promised("the folder of the index can be listed"):
        usable = files.current(folder, session_id)
    return SET_ASIDE if usable is not None and os.path.isfile(usable) else IN_MEMORY


def append_some(session: Session, prefix: str) -> list[str]:
    """Append a few entries; returns their ids."""
    ids = [f"{prefix}{number}" for number in range(APPENDS)]
    for entry_id in ids:
        with promised("an append succeeds"):
            session.append({"type": "custom", "customType": "test", "id": entry_id})
    return ids


def require_journal(scene: Scene) -> None:
    """The journal begins as it was: only what was appended has been added."""
    with open(scene.path, "rb") as file:
        start = file.read(len(scene.sample.journal))
    require(start == scene.sample.journal, "the handling changed the journal")


def truth(scene: Scene) -> Answers:
    """What a view of a copy answers that has no index beside it."""
    copy = scene.without_index()
    with promised("a view without an index opens"), SessionView.open(copy) as view:
        return answers_of(view)


def _afterwards(
    scene: Scene,
    attack: Attack,
    when: When,
    outcome: str,
    appended: list[str],
    *,
    noticed: bool = False,
) -> str:
    """Everything is there, the next owner is right, and the index is or can be made whole.

    ``noticed`` says that the owner set the index aside after it had believed wrong rows.
    """
    require_journal(scene)
    right = truth(scene)
    there = {entry.id for entry in right["entries"]}
    require(there.issuperset(appended), "an acknowledged entry is gone")
    if attack.blocks:
        scene.leave_folder_usable()
    believable = when in attack.believed
    told = not fsck_is_content(scene.path)
    with promised("the session opens again"):
        session = Session.open(scene.path)
    with session:
        again = _outcome_of(session, right, believable=believable)
    if BELIEVED in (outcome, again):
        require(told or noticed, "wrong rows are believed and fsck says nothing")
        outcome = BELIEVED
    if not fsck_is_content(scene.path):
        outcome = LEFT if outcome == HARMLESS else outcome
        require(outcome in (LEFT, BELIEVED), "fsck finds the index wrong after its handling")
        mend(scene.path)
    reopen(scene.path, right)
    if outcome == SET_ASIDE and when == "before":
        require_tidy(scene.target.index)
    return outcome


def reopen(path: str, right: Answers) -> None:
    """Own the session again; answers are right, and nothing is found wrong with its index."""
    with promised("the session opens again"):
        session = Session.open(path)
    with session:
        same_answers(session, right, "the next owner")
        faults = session.index_faults
    require(not faults, f"the index is found wrong again and again: {faults}")


def fsck_is_content(path: str) -> bool:
    """Whether fsck finds nothing in the index that somebody must mend."""
    with promised("fsck runs"):
        checked = check_session(path, with_index=True)
    return checked.index.state in GOOD_STATES


def mend(path: str) -> None:
    """Rebuild the index, as fsck says, and check it again."""
    with promised("reindexing runs"):
        mended = reindex_session(path)
    require(mended.error is None, f"reindexing: {mended.error}")
    again = check_session(path, with_index=True).index
    require(again.state == "equal", f"after reindexing fsck says {again.state}")


def require_tidy(attacked: str) -> None:
    """Nothing of a bad set stays under its name, where a later file could adopt it."""
    for tail in ("-wal", "-shm", "-journal"):
        left = os.path.lexists(attacked + tail) and not os.path.lexists(attacked)
        require(not left, f"the {tail} of a file that was set aside stays")


def remove_sidecars(path: str) -> None:
    """Unlink the -wal and -shm of a database."""
    for tail in ("-wal", "-shm"):
        if os.path.lexists(path + tail):
            os.unlink(path + tail)
