"""Scenes around one owner: it writes until it is killed, stopped, forked, raced for, or ends."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from treering.engine import Session
from treering.fuzz.kills.blows import Blow, Exactly, Moment, strike
from treering.fuzz.kills.crew import Actor, Crew
from treering.fuzz.kills.oracle import AT_ONCE_S, Book, Told, judge_onlookers, require
from treering.fuzz.kills.story import ALL_HOWS, Story

ONLOOKERS: Final = ("reader", "lister", "checker", "reindexer")
"""Processes that may run beside a writer."""

AFTER_ACK_S: Final = 0.004
"""About as long as one or two calls of a writer take."""


@dataclass
class Figures:
    """What a run has done so far."""

    rounds: int = 0
    acknowledged: int = 0
    """Entries and moves that were acknowledged by processes that then died."""
    in_flight: int = 0
    """Entries that were stored although their acknowledgement was never heard."""
    exact: dict[str, int] = field(default_factory=dict)
    """Kills at exactly chosen system calls, by ``actor@call``."""
    looks: int = 0
    """What readers, listings and checks beside a living owner reported."""


@dataclass
class Stage:
    """Where a scene plays."""

    crew: Crew
    home: str
    seed: str
    """Of this store: every draw of a round follows from it and the round's number."""
    onlookers: Sequence[str] = ()
    figures: Figures = field(default_factory=Figures)

    def draw(self, round_number: int) -> random.Random:
        """The draws of one round."""
        return random.Random(f"{self.seed}/{round_number}")


class Scene:
    """A store, and rounds in it, each ending with what must hold. Not for use by itself."""

    within_s = 0.03
    """Random moments lie within this time."""
    words: tuple[str, ...] = ("READY",)
    """Random moments count from one of these words of the process."""
    rounds_max = 1 << 30
    """Rounds in one store."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.crew = stage.crew
        self.played = 0
        """The number of the last round."""

    def blow(self, draw: random.Random) -> Blow:
        """A random moment."""
        word = draw.choice(self.words)
        if word == "ACK":  # a busy machine makes a process slow: some moments count what it did
            return Moment(draw.random() * AFTER_ACK_S, word, draw.randint(1, 12))
        # Commands that take twenty milliseconds take two hundred on a busy machine.
        return Moment(draw.random() * self.within_s * draw.choice((1, 1, 1, 4)), word)

    def play(self, number: int, blow: Blow | None = None) -> bool:
        """Play one round; whether somebody was killed."""
        self.crew.forget()
        self.stage.figures.rounds += 1
        self.played = number
        return self.round(number, blow)

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """What happens in a round, and what must hold afterwards."""
        raise AssertionError(f"subclasses play round {number} with {blow}")

    def start(self, role: str, blow: Blow, **request: Any) -> Actor:
        """Start a process that is going to be struck."""
        return self.crew.start(role, traced=isinstance(blow, Exactly), **request)


class Owning(Scene):
    """Scenes over one session."""

    hows: tuple[str, ...] = ALL_HOWS
    large = 8_000
    durabilities: tuple[str, ...] = ("full", "full", "os")
    compressions: tuple[bool, ...] = (True, False)
    entries_before = 0
    index_deleted = 0.2
    """How often the index is deleted before the session is opened again."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._draw = random.Random(stage.seed)
        self.durability = self._draw.choice(self.durabilities)
        self.compression = self._draw.choice(self.compressions)
        self.make_session()

    def make_session(self) -> None:
        """A new session, closed, and the book of it."""
        draw = self._draw
        with Session.create("/work", home_dir=self.stage.home) as session:
            self.path = session.path
            texts = [f"{draw.getrandbits(64):016x}" * 20 for _ in range(self.entries_before)]
            session.append_many([{"type": "custom", "data": text} for text in texts])
        self.book = Book(self.path)
        with Session.open_read_only(self.path) as view:
            self.book.entries = [entry._replace(unproven=False) for entry in view.iter_entries()]
            self.book.leaf = view.leaf_id

    def request(self, number: int, **more: Any) -> dict[str, Any]:
        """What a writer needs to know."""
        return {
            "path": self.path,
            "seed": self.stage.seed,
            "round": number,
            "hows": self.hows,
            "large": self.large,
            "durability": self.durability,
            "compression": self.compression,
            **more,
        }

    def told(self, writer: Actor, number: int, hows: tuple[str, ...] | None = None) -> Told:
        """What the writer did, by its acknowledgements; made anew for each use."""
        story = Story(
            self.stage.seed, number, self.book.leaf, hows=hows or self.hows, large=self.large
        )
        return Told.by(writer, story)

    def judge(self, draw: random.Random, told: Told | None) -> None:
        """What must hold, with the index deleted in between, now and then."""
        if told is not None:
            self.stage.figures.acknowledged += len(told.acknowledged)
        before = self.book.in_flight
        delete_index = draw.random() < self.index_deleted
        append, twice = draw.random() < 0.5, draw.random() < 0.3
        self.book.judge(told, delete_index=delete_index, append=append, twice=twice)
        self.stage.figures.in_flight += self.book.in_flight - before


class Writing(Owning):
    """A writer is killed; others look on, and are killed too."""

    hows = (*ALL_HOWS, "reopen")
    words = ("READY", "OPEN", "OPEN", "ACK", "ACK", "ACK", "ACK")

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw, crew = self.stage.draw(number), self.crew
        random_blow = self.blow(draw)
        exact = isinstance(blow, Exactly)
        chosen = [] if exact else draw.sample(self.stage.onlookers, self._count(draw))
        others = [crew.start(role, path=self.path, home=self.stage.home) for role in sorted(chosen)]
        more: dict[str, Any] = {"patient": "reindexer" in chosen}
        if exact:
            more |= {"stop": 12, "large": self.large}
        blow = blow or random_blow
        writer = self.start("writer", blow, **self.request(number, **more))
        killed = strike(crew, writer, blow)
        crew.pause(draw.random() * 0.02 if others else 0)
        crew.kill(*others)
        told, again = self.told(writer, number), self.told(writer, number)
        old = len(self.book.entries)
        self.judge(draw, told)
        figures = self.stage.figures
        figures.looks += judge_onlookers(crew.history, writer, again, self.book, old)
        return killed

    def _count(self, draw: random.Random) -> int:
        return min(draw.choice((0, 1, 1, 2)), len(self.stage.onlookers))


class LargeBatches(Owning):
    """Batches of several writes (over 8 MiB) are whole or absent, wherever the kill comes."""

    hows = ("batch",)
    words = ("OPEN",)
    large = 1_500_000
    compressions = (False,)
    within_s = 0.25
    rounds_max = 5
    index_deleted = 0.0

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw = self.stage.draw(number)
        random_blow = self.blow(draw)
        blow = blow or random_blow
        writer = self.start("writer", blow, **self.request(number, stop=12))
        killed = strike(self.crew, writer, blow)
        self.judge(draw, self.told(writer, number))
        return killed


class Reindexing(Owning):
    """Building the index anew is killed: the journal is as it was, the next open builds it."""

    entries_before = 400
    within_s = 0.06

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw = self.stage.draw(number)
        random_blow = self.blow(draw)
        blow = blow or random_blow
        times = 1 if isinstance(blow, Exactly) else 1 << 30
        actor = self.start("reindexer", blow, path=self.path, times=times)
        killed = strike(self.crew, actor, blow)
        require("skipped" not in actor.rests("REINDEXED"), "reindex says that it is owned")
        self.judge(draw, None)
        return killed


class Stopping(Owning):
    """A stopped owner keeps its session: others are refused at once, readers read; it goes on."""

    words = ("READY", "ACK")

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw, crew = self.stage.draw(number), self.crew
        blow = blow or self.blow(draw)
        writer = crew.start("writer", **self.request(number))
        crew.until(lambda: writer.has_said("OPEN"), "the writer")
        crew.pause(draw.random() * self.within_s)
        crew.signal(writer, "SIGSTOP")
        crew.until(lambda: writer.has_said("STOPPED"), "the stopped writer")
        before = len(writer.rests("ACK"))
        rivals = self._look_on(draw, number)
        for rival in rivals:
            self._refused(rival, writer)
        if draw.random() < 0.7:
            crew.signal(writer, "SIGCONT")
            crew.until(lambda: len(writer.rests("ACK")) > before + 2, "the writer to go on")
            strike(crew, writer, blow)
        crew.kill(writer)
        told, again = self.told(writer, number), self.told(writer, number)
        old = len(self.book.entries)
        self.judge(draw, told)
        figures = self.stage.figures
        figures.looks += judge_onlookers(crew.history, writer, again, self.book, old)
        return True

    def _look_on(self, draw: random.Random, number: int) -> list[Actor]:
        crew, at = self.crew, time.monotonic()
        rivals = [crew.start("rival", **self.request(number, at=at)) for _ in range(2)]
        onlookers = [
            crew.start(role, path=self.path, home=self.stage.home, times=1)
            for role in draw.sample(("reader", "lister", "checker"), 1)
        ]
        ended = [*rivals, *onlookers]
        crew.until(lambda: all(one.status is not None for one in ended), "those beside it", 10)
        return rivals

    @staticmethod
    def _refused(rival: Actor, owner: Actor) -> None:
        require(rival.has_said("OWNED"), "a second process owns what a stopped one owns")
        took_ms, _, holder = rival.rests("OWNED")[0].partition(" ")
        require(int(took_ms) < AT_ONCE_S * 1000, f"the refusal took {took_ms} ms")
        require(holder == str(owner.pid), f"the refusal names {holder}, not {owner.pid}")


class Forking(Owning):
    """A process that a killed owner left behind, forked or spawned, keeps no lock."""

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw, crew = self.stage.draw(number), self.crew
        blow = blow or Moment(draw.random() * 0.01)
        assert isinstance(blow, Moment)
        how = draw.choice(("fork", "fork", "spawn"))
        more = {"fork_at": draw.randint(0, 6), "fork_how": how, "outlive_s": 2.0}
        writer = crew.start("writer", **self.request(number, **more))
        crew.until(lambda: writer.has_said("LEFT"), "the process that is left behind")
        if how == "fork":
            _, _, found = writer.rests("LEFT")[0].partition(" ")
            require(found == "Closed", f"the handle of a forked process gave {found}")
        crew.pause(blow.seconds)
        crew.kill(writer)
        self.judge(draw, self.told(writer, number))
        return True


class Racing(Owning):
    """Many try to own it at one moment: exactly one does, all others are refused at once."""

    rivals = 6

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        del blow  # the winner is killed when all have told
        draw, crew = self.stage.draw(number), self.crew
        at = time.monotonic() + 0.01 + 0.004 * self.rivals
        if draw.random() < 0.3:
            self._around_a_death(draw, number, at)
            return True
        rivals = [crew.start("rival", **self.request(number, at=at)) for _ in range(self.rivals)]
        crew.until(
            lambda: all(one.has_said("OWNED") or one.has_said("ACK") for one in rivals), "the race"
        )
        winners = [one for one in rivals if one.has_said("OPEN")]
        require(len(winners) == 1, f"{len(winners)} of {self.rivals} own the session")
        refused = [one for one in rivals if one not in winners]
        for one in refused:
            took_ms, _, _ = one.rests("OWNED")[0].partition(" ")
            require(int(took_ms) < AT_ONCE_S * 1000, f"the refusal took {took_ms} ms")
        crew.until(lambda: all(one.status is not None for one in refused), "the refused to end")
        crew.kill(*winners)
        self.judge(draw, self.told(winners[0], number, ("one",)))
        return True

    def _around_a_death(self, draw: random.Random, number: int, at: float) -> None:
        """The race takes place while the owner dies: at most one wins it."""
        crew = self.crew
        owner = crew.start("writer", **self.request(number))
        crew.until(lambda: owner.has_said("OPEN"), "the writer")
        rivals = [
            crew.start("rival", **self.request(number, at=at, only_open=True))
            for _ in range(self.rivals)
        ]
        crew.pause(max(0.0, at - time.monotonic() + (draw.random() - 0.5) * 0.004))
        crew.signal(owner, "SIGKILL")
        crew.until(
            lambda: all(one.has_said("OWNED") or one.has_said("OPEN") for one in rivals), "the race"
        )
        require(sum(one.has_said("OPEN") for one in rivals) <= 1, "two own the session")
        winners = [one for one in rivals if one.has_said("OPEN")]
        refused = [one for one in rivals if one not in winners]
        crew.until(lambda: all(one.status is not None for one in refused), "the refused to end")
        crew.kill(owner, *winners)
        self.judge(draw, self.told(owner, number))


class Ending(Owning):
    """Ends that close nothing: all that was acknowledged is there."""

    ends = ("os._exit", "exit", "exception", "SIGHUP", "SIGTERM", "SIGINT", "SIGKILL")

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        del blow  # it ends by itself
        draw, crew = self.stage.draw(number), self.crew
        more = {"stop": draw.randint(1, 25), "end": draw.choice(self.ends), "lag_s": 1.0}
        writer = crew.start("writer", **self.request(number, **more))
        if more["end"] in ("exception", "SIGINT"):
            crew.may_fail.add(writer.slot)
        crew.until(lambda: writer.status is not None, "the end")
        require(len(writer.rests("ACK")) == more["stop"], "it ended before its end")
        told = self.told(writer, number)
        self.judge(draw, told)
        return writer.status == -9
