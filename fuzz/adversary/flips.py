"""Every bit of a small index, flipped one at a time, as fast as sessions open and close.

Each flip is looked at by a view and by an owner, who is asked everything; every so often the
whole trial follows: asked again, appends, the next owners, fsck. The file itself is put back
between flips under its own inode, because an index knows the file that it was written into.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from treering.engine import Session, SessionView
from treering.fuzz.adversary.answers import answers_of, few_answers_of, fewest_answers_of
from treering.fuzz.adversary.samples import Sample
from treering.fuzz.adversary.scene import Scene, write
from treering.fuzz.adversary.trial import (
    BROKEN,
    HARMLESS,
    LEFT,
    PromiseBroken,
    Result,
    append_some,
    fsck_is_content,
    mend,
    outcome_of,
    promised,
    reopen,
    require,
    same_answers,
)

WHOLE_TRIAL_EVERY: Final = 61
"""Every so many flips everything is asked, and appends and later owners are tried too. A prime:
all places inside a page come up."""


@dataclass
class Flipped:
    """What became of a range of flips."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[Result] = field(default_factory=list)


class FlipBench:
    """A scene whose index is flipped and put back, again and again."""

    def __init__(self, folder: str, sample: Sample, other: Sample, seed: int) -> None:
        if os.path.exists(folder):
            shutil.rmtree(folder)
        os.makedirs(folder)
        self._scene = Scene(folder, sample, other, seed)
        self._sample = sample
        self._index = self._scene.target.index
        self._content = self._scene.target.read()
        self._folder = os.path.dirname(self._index)
        self._spare = os.path.join(self._scene.target.scratch, "spare")
        os.link(self._index, self._spare)  # keeps the inode when the name is moved or removed

    @property
    def bits(self) -> int:
        """How many flips there are."""
        return len(self._content) * 8

    def run(self, places: Iterable[int], *, whole_every: int = WHOLE_TRIAL_EVERY) -> Flipped:
        """Flip bits, each by itself. The first eighth of all numbers is a bit of every byte."""
        found = Flipped()
        for place in places:
            turn, offset = divmod(place, len(self._content))
            bit = (turn + offset) % 8
            try:
                outcome = self._flip(offset, bit, whole=place % whole_every == 0)
            except PromiseBroken as broken:
                name = f"{self._sample.name}/flip:{offset}.{bit}/before"
                found.broken.append(Result(name, BROKEN, str(broken)))
                outcome = BROKEN
            found.outcomes[outcome] += 1
            self._put_back()
        return found

    def close(self) -> None:
        """Remove the scene."""
        self._scene.remove()

    def _flip(self, offset: int, bit: int, *, whole: bool) -> str:
        path, right = self._scene.path, self._sample.right
        with open(self._index, "r+b", buffering=0) as file:
            file.seek(offset)
            file.write(bytes((self._content[offset] ^ (1 << bit),)))
        ask = answers_of if whole else few_answers_of
        ask_less = answers_of if whole else fewest_answers_of
        with promised("a view opens"), SessionView.open(path) as view:
            same_answers(view, right, "the view", ask_less)
        with promised("the session opens"):
            session = Session.open(path)
        with session:
            same_answers(session, right, "the owner", ask)
            outcome = outcome_of(session)
            if outcome != HARMLESS or whole:
                same_answers(session, right, "the owner, asked again,", ask_less)
            appended = append_some(session, "f") if whole else []
        journal = Path(path).read_bytes()
        require(journal.startswith(self._sample.journal), "the handling changed the journal")
        if not whole:
            require(len(journal) == len(self._sample.journal), "the journal grew by itself")
            return outcome
        return self._look_on(outcome, appended)

    def _look_on(self, outcome: str, appended: list[str]) -> str:
        """What was appended is there without the index, and the next owners are right."""
        path = self._scene.path
        with (
            promised("a view without an index opens"),
            SessionView.open(self._scene.without_index()) as view,
        ):
            right = answers_of(view)
        there = {entry.id for entry in right["entries"]}
        require(there.issuperset(appended), "an acknowledged entry is gone")
        with promised("the session opens again"), Session.open(path) as session:
            same_answers(session, right, "the next owner")
        if not fsck_is_content(path):
            require(outcome == HARMLESS, "fsck finds the index wrong after its handling")
            outcome = LEFT
            mend(path)
        reopen(path, right)
        return outcome

    def _put_back(self) -> None:
        """The same file, of the same inode, with the same bytes; no other generation."""
        session_id = self._sample.session_id
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(session_id + ".") and not name.endswith(".json"):
                os.unlink(path)
        os.link(self._spare, self._index)
        if self._scene.target.read() != self._content:
            self._scene.target.overwrite(self._content)
        if os.path.getsize(self._scene.path) != len(self._sample.journal):
            write(self._scene.path, self._sample.journal)
