"""Scenes around commands that make or replace a journal: there whole, or not there at all."""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import Any

from treering.engine import Session, SessionView
from treering.engine.home import Store
from treering.fuzz.kills.blows import Blow, Exactly, strike
from treering.fuzz.kills.crew import Actor
from treering.fuzz.kills.oracle import Book, Told, look, require
from treering.fuzz.kills.owners import Scene, Stage
from treering.fuzz.kills.story import ALL_HOWS, Story, raw_of

ENTRIES = 40
"""Entries of the sessions that get damaged, and of the file that gets imported."""


def visible(home: str) -> set[str]:
    """The sessions of a store, by what a listing of its folder shows."""
    names = os.listdir(os.path.join(home, "sessions"))
    return {name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl")}


def raws_in(path: str) -> list[bytes]:
    """The entries, read without an index."""
    with SessionView.open(path) as view:
        return [entry.raw for entry in view.iter_entries()]


def goes_on(path: str, raws: list[bytes]) -> None:
    """It opens without help, has these entries, and the next append is whole."""
    with Session.open(path) as session:
        require([entry.raw for entry in session.iter_entries()] == raws, "other entries")
        more = raw_of("goes-on", session.leaf_id, "after")
        session.append(more)
        require(session.read("goes-on").raw == more, "the next append is not whole")
    look(path)
    require(raws_in(path) == [*raws, more], "other entries after closing")


class Creating(Scene):
    """Sessions are created: each is there with its header, or its name is free."""

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw, home = self.stage.draw(number), self.stage.home
        random_blow = self.blow(draw)
        blow = blow or random_blow
        count = 2 if isinstance(blow, Exactly) else 50
        names = [f"s{number}-{at}" for at in range(count)]
        raw = raw_of("first", None, "x" * draw.choice((0, 100, 30_000)))
        actor = self.start("creator", blow, home=home, names=names, raw=raw.decode())
        killed = strike(self.crew, actor, blow)
        there = visible(home) if os.path.isdir(os.path.join(home, "sessions")) else set()
        tried, made = actor.rests("TRY"), set(actor.rests("MADE"))
        acknowledged = set(actor.rests("ACK"))
        self.stage.figures.acknowledged += len(acknowledged)
        require(made <= there, f"made and not there: {made - there}")
        require(there <= set(tried), f"nobody made {there - set(tried)}")
        for name in tried[-2:]:  # the ones before were closed
            self._judge(name, raw, made=name in made, acknowledged=name in acknowledged)
        shutil.rmtree(home, ignore_errors=True)
        return killed

    def _judge(self, name: str, raw: bytes, *, made: bool, acknowledged: bool) -> None:
        store = Store.at(self.stage.home)
        path = store.journal_path(name)
        if not os.path.exists(path):
            require(not made, f"{name} was made and is not there")
            Session.create("/work", home_dir=self.stage.home, session_id=name).close()
        look(path, after_kill=True)
        found = raws_in(path)
        require(found == [raw] or (found == [] and not acknowledged), f"{name}: other entries")
        goes_on(path, found)


class Importing(Scene):
    """A file is imported: the session is there with every entry, or no session is."""

    within_s = 0.12

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        draw = random.Random(stage.seed)
        header = {"type": "session", "version": 3, "id": "old", "cwd": "/old",
                  "timestamp": "2024-12-03T14:00:00.000Z"}  # fmt: skip
        ids = [f"{number:08x}" for number in range(draw.choice((ENTRIES, 3_000)))]
        self.raws = [
            raw_of(entry_id, ids[at - 1] if at else None, f"{draw.getrandbits(64):016x}" * 12)
            for at, entry_id in enumerate(ids)
        ]
        self.source = f"{stage.home}-source.jsonl"
        with open(self.source, "wb") as file:
            file.write(b"\n".join([json.dumps(header).encode(), *self.raws, b""]))

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        home = self.stage.home
        blow = blow or self.blow(self.stage.draw(number))
        times = 1 if isinstance(blow, Exactly) else 1 << 30
        actor = self.start("importer", blow, home=home, source=self.source, times=times)
        killed = strike(self.crew, actor, blow)
        there = visible(home) if os.path.isdir(os.path.join(home, "sessions")) else set()
        made = set(actor.rests("MADE"))
        require(made <= there, f"imported and not there: {made - there}")
        require(len(there - made) <= 1, f"nobody imported {there - made}")
        store = Store.at(home)
        for name in sorted(there - made) + sorted(made)[-1:]:
            path = store.journal_path(name)
            look(path, after_kill=True)
            require(raws_in(path) == self.raws, "a part of an import is visible")
            goes_on(path, self.raws)
        shutil.rmtree(home, ignore_errors=True)
        return killed


class _Damaged(Scene):
    """A session in a state that needs something done, put back for each round."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        draw = random.Random(stage.seed)
        self.raws: list[bytes] = []
        with Session.create(
            "/work", home_dir=stage.home, session_id="damaged", compression=False
        ) as session:
            self.path = session.path
            for number in range(ENTRIES):
                text = f"{draw.getrandbits(64):016x}" * draw.choice((1, 10, 200))
                self.raws.append(raw_of(f"e{number}", session.leaf_id, text))
                session.append(self.raws[-1])
            with open(self.path, "rb") as file:
                whole = file.read()
        self.sessions, self.whole = os.path.dirname(self.path), whole

    def put_back(self, data: bytes) -> None:
        """The store holds this journal and nothing else."""
        shutil.rmtree(self.stage.home)
        os.makedirs(self.sessions, mode=0o700)
        with open(self.path, "xb") as file:
            os.chmod(self.path, 0o600)
            file.write(data)

    def set_aside(self) -> list[bytes]:
        """The files in quarantine."""
        folder = Store.of_journal(self.path).quarantine_folder("damaged")
        found = []
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            with open(os.path.join(folder, name), "rb") as file:
                found.append(file.read())
        return found

    def journal(self) -> bytes:
        """The journal as it is now."""
        with open(self.path, "rb") as file:
            return file.read()


class Recovering(_Damaged):
    """A torn tail is cut by an owner that is killed: the tail is in the journal or set aside."""

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw = self.stage.draw(number)
        random_blow = self.blow(draw)
        blow = blow or random_blow
        last = self.whole.rindex(b"\xf7RG\x1d")
        torn = self.whole[last : draw.randint(last + 1, len(self.whole) - 1)]
        self.put_back(self.whole[:last] + torn)
        book = Book(self.path)
        with SessionView.open(self.path) as view:
            book.entries = [entry._replace(unproven=False) for entry in view.iter_entries()]
            book.leaf = view.leaf_id
        require([e.raw for e in book.entries] == self.raws[:-1], "a torn tail costs more than it")
        plan: dict[str, Any] = {"hows": ALL_HOWS, "large": 3000}
        story = Story(self.stage.seed, number, book.leaf, **plan)
        request = {"path": self.path, "seed": self.stage.seed, "round": number, "stop": 2}
        writer = self.start("writer", blow, **request, **plan)
        killed = strike(self.crew, writer, blow)
        uncut = self.journal()[last:] == torn
        require(uncut or torn in self.set_aside(), "the torn tail was cut and is nowhere")
        told = Told.by(writer, story)
        self.stage.figures.acknowledged += len(told.acknowledged)
        book.judge(told, delete_index=draw.random() < 0.2, append=True)
        require(torn in self.set_aside(), "the torn tail is not in quarantine")
        return killed


class Repairing(_Damaged):
    """A repair is killed: the journal is the damaged or the repaired one, the damaged one kept."""

    within_s = 0.06

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        draw = random.Random(f"{stage.seed}-damage")
        lost = draw.randrange(5, ENTRIES - 5)
        data = bytearray(self.whole)
        at = data.index(f'"id":"e{lost}"'.encode())
        data[at + draw.randrange(20)] ^= 1 << draw.randrange(8)
        self.damaged = bytes(data)
        self.kept = self.raws[:lost] + self.raws[lost + 1 :]

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        blow = blow or self.blow(self.stage.draw(number))
        self.put_back(self.damaged)
        request: dict[str, Any] = {"path": self.path, "home": self.stage.home}
        actor = self.start("repairer", blow, **request)
        killed = strike(self.crew, actor, blow)
        require(visible(self.stage.home) == {"damaged"}, "repair made or lost a session")
        repaired = self.journal() != self.damaged
        require(repaired or killed, "repair ended and did nothing")
        if not repaired:
            self._once_more(request)
        require(self.damaged in self.set_aside(), "the damaged journal was not kept")
        # Its index may still be that of the damaged journal, which the next open notices.
        look(self.path, with_index=False)
        require(raws_in(self.path) == self.kept, "repair kept other entries")
        goes_on(self.path, self.kept)
        return killed

    def _once_more(self, request: dict[str, Any]) -> Actor:
        actor = self.crew.start("repairer", **request)
        self.crew.until(lambda: actor.status is not None, "the second repair")
        require(actor.rests("REPAIRED")[:1] != [], "the second repair ended without a word")
        code, _, text = actor.rests("REPAIRED")[0].partition(" ")
        require(code == "0", f"the second repair ended with {code}: {text}")
        require(self.journal() != self.damaged, "the second repair did nothing")
        return actor
