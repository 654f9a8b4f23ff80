"""A scene in which a session is deleted, brought back and purged, beside owners and others."""

from __future__ import annotations

import glob
import json
import os
import random
import shutil
from typing import Final

from treering.engine import (
    Conflict,
    DeletedSession,
    NotFound,
    Session,
    delete_session,
    finish_deletions,
    list_deleted,
    purge_deleted,
    undelete_session,
)
from treering.engine.home import Store, session_id_of
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.session.trash import Places, hidden_ids, ids_under_way
from treering.fuzz.kills.blows import Blow, Exactly, Moment, strike
from treering.fuzz.kills.crew import Actor
from treering.fuzz.kills.oracle import look, require
from treering.fuzz.kills.owners import Owning

ENDS: Final = {"delete": "deleted", "undelete": "there", "purge": "purged"}
"""What each verb makes of a session."""

ALL_VERBS: Final = ("delete", "undelete", "delete", "purge")
"""What is walked through when the call of the death is chosen."""

BESIDE: Final = ("nobody", "writer", "writer", "lister", "rival")
"""Who is at the session, too."""

AFTER_TRY_S: Final = 0.006
"""About as long as a deletion takes."""

_ARTIFACTS: Final = {"tool.log": b"output of a tool", "deep/er/note": b"n" * 700}


class Deleting(Owning):
    """The session is whole in one place, or purged, and what was begun goes on."""

    entries_before = 20
    words = ("READY", "TRY", "TRY", "TRY", "TRY")

    def make_session(self) -> None:
        """See :meth:`Owning.make_session`; it has artifacts."""
        super().make_session()
        self.store, name = Store.of_journal(self.path), session_id_of(self.path)
        self.places = Places(self.store, name)
        for inner, data in _ARTIFACTS.items():
            path = os.path.join(self.places.artifacts, inner)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)

    def blow(self, draw: random.Random) -> Blow:
        """See :meth:`Scene.blow`; most moments lie within one of the steps."""
        if draw.choice(self.words) == "TRY":
            seconds = draw.random() * AFTER_TRY_S * draw.choice((1, 1, 3, 8))
            return Moment(seconds, "TRY", draw.randint(1, 6))
        return super().blow(draw)

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw, crew = self.stage.draw(number), self.crew
        random_blow = self.blow(draw)
        blow = blow or random_blow
        exact = isinstance(blow, Exactly)
        beside = "nobody" if exact else draw.choice(BESIDE)
        other = self._start_beside(beside, draw, number)
        verbs = ALL_VERBS if exact else _verbs(draw)
        patient = beside in ("writer", "rival")
        deleter = self.start("deleter", blow, path=self.path, verbs=verbs, patient=patient)
        if other is not None and beside == "writer":
            self._go_on_beside(other, deleter, draw.choice((0, 4, 16)))
            crew.kill(other)
        killed = strike(crew, deleter, blow)
        if other is not None:
            crew.kill(other)
        deleters = [deleter, other] if other is not None and beside == "rival" else [deleter]
        refused = deleter.rests("REFUSED")
        require(beside == "rival" or not refused, f"refused without a reason: {refused}")
        if other is not None and beside == "lister":
            self._judge_lists(other)
        if beside == "writer":
            self._judge_owner()
        self._judge_place(draw, deleters)
        self._judge_session(draw, other if beside == "writer" else None, number)
        if exact:  # every round makes the same calls
            shutil.rmtree(self.store.trash, ignore_errors=True)
        return killed

    def _start_beside(self, who: str, draw: random.Random, number: int) -> Actor | None:
        crew = self.crew
        if who == "lister":
            return crew.start("lister", home=self.stage.home)
        if who == "rival":
            return crew.start("deleter", path=self.path, verbs=_verbs(draw), patient=True)
        if who == "nobody":
            return None
        writer = crew.start("writer", **self.request(number))
        crew.until(lambda: writer.has_said("OPEN"), "the writer")
        return writer

    def _go_on_beside(self, writer: Actor, deleter: Actor, calls: int) -> None:
        """The owner goes on for some calls while somebody tries to delete its session."""
        self.crew.until(lambda: deleter.has_said("TRY"), "the deleter")
        before = len(writer.rests("ACK"))
        self.crew.until(lambda: len(writer.rests("ACK")) >= before + calls, "the owner to go on")

    def _judge_lists(self, lister: Actor) -> None:
        """A list shows the session whole, or not at all once its deletion was begun."""
        begun = False
        for said in self.crew.history:
            if said.word == "TRY":
                begun = True
            elif said.slot == lister.slot and said.word == "LISTED":
                code, _, rest = said.rest.partition(" ")
                rows = [row[1:] for row in json.loads(rest) if row[0] == self.places.session_id]
                whole = [["ok", len(self.book.entries)]]
                require(code == "0", f"session list ended with {code}")
                require(rows == whole or (begun and not rows), f"session list shows {rows}")
                self.stage.figures.looks += 1

    def _judge_owner(self) -> None:
        """What somebody owns is not deleted: nothing is acknowledged in a deleted session."""
        words = [said.word for said in self.crew.history if said.word in ("DONE", "ACK")]
        first = words.index("DONE") if "DONE" in words else len(words)
        require("ACK" not in words[first:], "it was deleted while its owner went on")

    def _judge_place(self, draw: random.Random, deleters: list[Actor]) -> None:
        """At once, and after something that goes on with it."""
        allowed, pending = {"there"}, "delete"
        if len(deleters) == 1:
            done = deleters[0].rests("DONE")
            self.stage.figures.acknowledged += len(done)
            allowed = {ENDS[verb] for verb in done[-1:]} or allowed
        for actor in deleters:
            tried = actor.rests("TRY")
            pending = tried[-1] if tried else pending
            allowed |= {ENDS[verb] for verb in (tried if len(deleters) > 1 else tried[-1:])}
        if os.path.exists(self.path) and self.places.session_id not in hidden_ids(self.store):
            look(self.path, after_kill=True)
            self._require_artifacts(self.places.artifacts)
        if self.places.session_id not in ids_under_way(LOCAL_DISK, self.store):
            self._require_state(allowed)
        self._go_on(draw, pending, allowed)
        under_way = ids_under_way(LOCAL_DISK, self.store)
        require(not under_way, f"still under way: {under_way}")
        self._require_state(allowed)

    def _require_state(self, allowed: set[str]) -> None:
        found = self.state()
        require(found in allowed, f"the session is {found}, which is none of {sorted(allowed)}")

    def _go_on(self, draw: random.Random, pending: str, allowed: set[str]) -> None:
        """What the next process may do; narrows or widens where the session may be then."""
        how = draw.choice(("finish", "again", "other", "open"))
        try:
            if how == "open":
                Session.open(self.path).close()
                allowed.intersection_update({"there"})
            elif how != "finish":
                verb = pending if how == "again" else _OTHERS[pending]
                self._act(verb)
                allowed.clear()
                allowed.add(ENDS[verb])
        except (Conflict, NotFound):
            pass  # of what was done already, or had not been begun: the state says which
        left = finish_deletions(self.store).left
        require(not left, f"what was begun cannot be finished: {left}")

    def _act(self, verb: str) -> None:
        if verb == "delete":
            delete_session(self.path)
        elif verb == "undelete":
            undelete_session(self.store, self.places.session_id)
        else:
            purge_deleted(self.store, self.places.session_id)

    def state(self) -> str:
        """Where the session is; it must be whole, and nothing of it anywhere else."""
        places = self.places
        journal, artifacts = places.trashed_journals[0], places.trashed_artifacts[0]
        there = [path for path in (places.journal, places.artifacts) if os.path.exists(path)]
        trashed = [path for path in (journal, artifacts) if os.path.exists(path)]
        require(not (there and trashed), f"the session is in two places: {[*there, *trashed]}")
        if there:
            require(len(there) == 2, f"of the session there is only {there[0]}")
            self._require_artifacts(places.artifacts)
            require(not os.path.exists(places.tombstone), "a session that is there has a tombstone")
            return "there"
        # Not the note of an owner that was killed: the next one replaces it.
        index = f"{places.session_id}.*.sqlite3*"
        derived = glob.glob(os.path.join(self.store.index, index))
        require(not derived, f"of a deleted session there are {derived}")
        require(os.path.exists(places.tombstone), "the session is nowhere, without a tombstone")
        if not trashed:
            return "purged"
        require(len(trashed) == 2, f"of the deleted session there is only {trashed[0]}")
        self._require_artifacts(artifacts)
        return "deleted"

    @staticmethod
    def _require_artifacts(folder: str) -> None:
        for name, data in _ARTIFACTS.items():
            path = os.path.join(folder, name)
            require(os.path.exists(path), f"the artifact {name} is not in {folder}")
            with open(path, "rb") as file:
                require(file.read() == data, f"the artifact {name} is another one")

    def _judge_session(self, draw: random.Random, writer: Actor | None, number: int) -> None:
        """What is in it, brought back if need be; a purged one is followed by a new one."""
        found = self.state()
        if found == "purged":
            listed = self._listed()
            require(listed.purged_ms is not None, f"the trash lists {listed}")
            try:
                undelete_session(self.store, self.places.session_id)
            except NotFound:
                self.make_session()
                return
            require(False, "a purged session was brought back")
        if found == "deleted":
            listed = self._listed()
            require(listed.purged_ms is None, f"the trash lists {listed}")
            require(listed.deleted_ms is not None, "the tombstone does not say when")
            undelete_session(self.store, self.places.session_id)
            require(self.state() == "there", "it was brought back and is not there")
        self.judge(draw, None if writer is None else self.told(writer, number))

    def _listed(self) -> DeletedSession:
        mine = [one for one in list_deleted(self.store) if one.id == self.places.session_id]
        require(len(mine) == 1 and mine[0].under_way is None, f"the trash lists {mine}")
        return mine[0]


_OTHERS: Final = {"delete": "undelete", "undelete": "delete", "purge": "undelete"}


def _verbs(draw: random.Random) -> list[str]:
    """A session is deleted and brought back, some times; sometimes it is purged at the end."""
    return ["delete", "undelete"] * draw.randint(1, 4) + draw.choice(
        (["delete"], ["delete"], ["delete", "purge"])
    )
