"""A scene in which copies are made of a session, also of one that an owner appends to."""

from __future__ import annotations

import glob
import json
import os
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from treering.engine import SessionView
from treering.engine.home import Store, session_id_of
from treering.engine.session.entry import Entry
from treering.fuzz.kills.blows import Blow, Exactly, Moment, strike
from treering.fuzz.kills.crew import Said
from treering.fuzz.kills.makers import goes_on, visible
from treering.fuzz.kills.oracle import Told, look, require
from treering.fuzz.kills.owners import Owning

AFTER_TRY_S: Final = 0.008
"""About as long as a copy takes."""


class Standing(NamedTuple):
    """A session between two changes."""

    held: int
    """Entries that it has."""
    leaf: str | None
    labels: dict[str, str]


class Made(NamedTuple):
    """A copy that was begun."""

    how: str
    least: int
    """The first standing that it can be of: the last one acknowledged before it was begun."""


def course_of(
    told: Told, start: Standing, entries: Sequence[Entry]
) -> tuple[list[Standing], list[int]]:
    """Everything that a session can have been in a round, in order.

    Also the place of each acknowledgement in it, with the start as the first.
    """
    story, course, places = told.story, [start], [0]
    for at in range(len(told.acknowledged) + 1):
        op, before = story.next(), course[-1]
        if op.how == "branch":
            course.append(before._replace(leaf=op.target))
        elif op.how == "label":
            assert op.target is not None
            labels = {target: text for target, text in before.labels.items() if target != op.target}
            labels |= {} if op.text is None else {op.target: op.text}
            leaf = [entry.id for entry in entries[before.held : before.held + 1]]
            course += [Standing(before.held + 1, one, labels) for one in leaf]
        else:
            counts = range(1, len(op.ids) + 1) if op.how != "batch" else [len(op.ids)]
            course += [Standing(before.held + n, op.ids[n - 1], before.labels) for n in counts]
        if at < len(told.acknowledged):
            story.done(op, told.acknowledged[at])
            places.append(len(course) - 1)
    return course, places


class Copying(Owning):
    """Each copy that is there is whole, and what its source was at a moment of the making."""

    entries_before = 30
    rounds_max = 6
    """Every round makes the session larger, and everything in it is compared."""
    words = ("READY", "TRY", "TRY", "TRY")

    def blow(self, draw: random.Random) -> Blow:
        """See :meth:`Scene.blow`; most moments lie within one of the first copies."""
        if draw.choice(self.words) == "TRY":
            return Moment(draw.random() * AFTER_TRY_S, "TRY", draw.randint(1, 4))
        return super().blow(draw)

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw, crew = self.stage.draw(number), self.crew
        random_blow = self.blow(draw)
        blow = blow or random_blow
        exact = isinstance(blow, Exactly)
        start = Standing(len(self.book.entries), self.book.leaf, dict(self.book.labels))
        writer = None
        if not exact and draw.random() < 0.8:
            writer = crew.start("writer", **self.request(number))
            crew.until(lambda: writer.has_said("OPEN"), "the writer")
        # Without a writer one of the copies is made by an owner.
        request: dict[str, Any] = {"path": self.path, "home": self.stage.home}
        request["hows"] = ("fork", "clone") if writer else ("fork", "clone", "branch")
        request["times"] = 3 if exact else 1 << 60
        copier = self.start("copier", blow, **request)
        if writer and draw.random() < 0.4:  # the copier goes on with what it left
            crew.pause(draw.random() * self.within_s)
            crew.kill(writer)
            before = len(copier.rests("COPIED"))
            crew.until(lambda: len(copier.rests("COPIED")) > before + 1, "a copy of what is left")
        killed = strike(crew, copier, blow)
        if writer:
            crew.pause(draw.random() * 0.005)
            crew.kill(writer)
        told, again = (
            (None, None)
            if writer is None
            else (self.told(writer, number), self.told(writer, number))
        )
        self.judge(draw, told)
        course, places = [start], [0]
        if again is not None:
            course, places = course_of(again, start, self.book.entries)
        self._judge_copies(self._copies(copier.slot, crew.history, places), course)
        return killed

    def _copies(
        self, slot: int, history: Sequence[Said], places: Sequence[int]
    ) -> dict[str, tuple[Made, bool]]:
        """The copies that are there: what is known of the making, and whether it ended."""
        there = visible(self.stage.home) - {session_id_of(self.path)}
        made: dict[str, tuple[Made, bool]] = {}
        acknowledged, begun = 0, None
        for said in history:
            if said.slot != slot:
                acknowledged += said.word == "ACK"
            elif said.word == "TRY":
                begun = Made(said.rest, places[acknowledged])
            elif said.word == "COPIED":
                assert begun is not None
                made[said.rest.split()[0]], begun = (begun, True), None
        self.stage.figures.acknowledged += len(made)
        require(set(made) <= there, f"copied and not there: {set(made) - there}")
        more = there - set(made)
        require(len(more) <= (begun is not None), f"nobody made {more}")
        for name in more:
            assert begun is not None
            made[name] = (begun, False)
            self.stage.figures.in_flight += 1
        return made

    def _judge_copies(self, copies: dict[str, tuple[Made, bool]], course: list[Standing]) -> None:
        self._by_id = {entry.id: entry for entry in self.book.entries}
        last = [name for name, (_, ended) in copies.items() if ended][-1:]
        for name, (made, ended) in copies.items():
            path = Store.of_journal(self.path).journal_path(name)
            look(path, after_kill=not ended)
            with SessionView.open(path) as view:
                raws = [entry.raw for entry in view.iter_entries()]
                labels = {entry.id: text for entry, text in view.labels(limit=1 << 20)}
                found = Standing(len(raws), view.leaf_id, labels)
                header = json.loads(view.header_bytes())
            require(header["parentSession"] == self.path, f"{name} is a copy of another session")
            same = self._is_fork if made.how == "fork" else self._is_branch
            require(
                any(same(raws, found, one) for one in course[made.least :]),
                f"a {made.how} holds {len(raws)} entries and stands at {found.leaf}: that was no"
                f" state of its source, which had {course[made.least].held} before it and"
                f" {course[-1].held} at the end",
            )
            if not ended or name in last:
                goes_on(path, raws)
            self._remove(path)

    def _is_fork(self, raws: list[bytes], found: Standing, source: Standing) -> bool:
        if found != source:
            return False
        return raws == [entry.raw for entry in self.book.entries[: source.held]]

    def _is_branch(self, raws: list[bytes], found: Standing, source: Standing) -> bool:
        """The path without its label entries, each below the one before it; the labels of it."""
        if found.leaf != self._end_of(source.leaf):
            return False
        kept, at = [], source.leaf
        while at is not None:
            entry = self._by_id[at]
            kept += [entry] if entry.type != "label" else []
            at = entry.parent_id
        kept.reverse()
        ids = [entry.id for entry in kept]
        labels = {target: text for target, text in source.labels.items() if target in ids}
        if found.labels != labels or len(raws) != len(kept) + len(labels):
            return False
        copied = [json.loads(raw) for raw in raws[: len(kept)]]
        wanted = [
            {**json.loads(entry.raw), "parentId": parent}
            for entry, parent in zip(kept, [None, *ids], strict=False)
        ]
        return copied == wanted

    def _end_of(self, leaf: str | None) -> str | None:
        """Where a copy of the path to an entry ends: above its last label entries."""
        while leaf is not None and self._by_id[leaf].type == "label":
            leaf = self._by_id[leaf].parent_id
        return leaf

    def _remove(self, path: str) -> None:
        store = Store.of_journal(path)
        os.unlink(path)
        for derived in glob.glob(os.path.join(store.index, f"{session_id_of(path)}.*")):
            os.unlink(derived)
