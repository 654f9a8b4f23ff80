"""Round after round: which scene plays in which store, and what is told when one fails."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from treering.fuzz.kills.blows import CALLS, Exactly, why_no_strace
from treering.fuzz.kills.captures import Capturing
from treering.fuzz.kills.copies import Copying
from treering.fuzz.kills.crew import CouldNotRunError, Crew
from treering.fuzz.kills.deletions import Deleting
from treering.fuzz.kills.makers import Creating, Importing, Recovering, Repairing
from treering.fuzz.kills.owners import (
    ONLOOKERS,
    Ending,
    Figures,
    Forking,
    LargeBatches,
    Racing,
    Reindexing,
    Scene,
    Stage,
    Stopping,
    Writing,
)
from treering.fuzz.kills.tasking import Tasking

SCENES: Final[dict[str, tuple[type[Scene], int]]] = {
    "writer": (Writing, 6),
    "large": (LargeBatches, 1),
    "reindexer": (Reindexing, 1),
    "creator": (Creating, 1),
    "importer": (Importing, 1),
    "recoverer": (Recovering, 1),
    "repairer": (Repairing, 1),
    "stopped": (Stopping, 1),
    "forked": (Forking, 1),
    "rivals": (Racing, 1),
    "ends": (Ending, 1),
    "tasks": (Tasking, 2),
    "captures": (Capturing, 2),
    "copier": (Copying, 2),
    "deleter": (Deleting, 2),
}
"""Who is killed, and how many of the stores are about it."""

EXACT: Final = "exact"
_EXACT_ACTORS: Final = (
    "writer",
    "creator",
    "importer",
    "recoverer",
    "repairer",
    "reindexer",
    "copier",
    "deleter",
)
_EXACT_SHARE: Final = 2
EXACT_PAIRS: Final = tuple((actor, call) for call in CALLS for actor in _EXACT_ACTORS)
"""Each of these is walked through: killed at the first such call, the second, ... the last."""

ACTORS: Final = (*SCENES, EXACT, *(name for name in ONLOOKERS if name not in SCENES))
"""What ``--actors`` chooses from."""

_EXACT_CALLS_MAX: Final = 400


@dataclass(frozen=True)
class Settings:
    """What to run; two runs with the same draw the same."""

    rounds: int
    seed: int
    actors: Sequence[str] = ACTORS
    seconds: float | None = None
    per_store: int = 12
    first_store: int = 0
    folder: str = "."
    plant: str | None = None

    def command(self, store: int, rounds: int) -> str:
        """The command line that plays one store again."""
        parts = ["python", "-m", "treering.fuzz", "kill", "--seed", str(self.seed)]
        parts += ["--first-store", str(store), "--rounds", str(rounds)]
        parts += ["--per-store", str(self.per_store), "--actors", ",".join(self.actors)]
        if self.plant is not None:
            parts += ["--plant", self.plant]
        return shlex.join(parts)


@dataclass
class Failure:
    """A broken promise."""

    what: str
    scene: str
    store: int
    round: int
    command: str
    folder: str


@dataclass
class Summary:
    """What a run did and found."""

    seed: int
    stores: int = 0
    kills: int = 0
    kills_by_scene: dict[str, int] = field(default_factory=dict)
    kills_by_role: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    figures: Figures = field(default_factory=Figures)
    walked: dict[str, int] = field(default_factory=dict)
    """By ``actor@call``: how many such calls there are, each of which was a moment of death."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What was not done, and why."""
    failure: Failure | None = None

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        figures, failure = self.figures, self.failure
        return {
            "seed": self.seed,
            "rounds": figures.rounds,
            "stores": self.stores,
            "kills": self.kills,
            "killsByScene": dict(sorted(self.kills_by_scene.items())),
            "killsByRole": dict(sorted(self.kills_by_role.items())),
            "killsAtExactCalls": sum(figures.exact.values()),
            "callsWalked": dict(sorted(self.walked.items())),
            "acknowledged": figures.acknowledged,
            "inFlightThere": figures.in_flight,
            "looks": figures.looks,
            "lost": 0 if failure is None else None,
            "seconds": round(self.seconds, 1),
            "skipped": self.skipped,
            "failure": None if failure is None else vars(failure),
        }


def schedule_of(actors: Sequence[str]) -> list[str]:
    """The scenes of successive stores, repeated when it ends."""
    found = []
    for name, (_, share) in SCENES.items():
        found += [name] * (share if name in actors else 0)
    return found + [EXACT] * (_EXACT_SHARE if EXACT in actors else 0)


class Run:
    """One run of the harness."""

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self.summary = Summary(settings.seed)
        self._start = time.monotonic()
        actors = list(settings.actors)
        if EXACT in actors and (why := why_no_strace()) is not None:
            self.summary.skipped[EXACT] = why
            actors.remove(EXACT)
        self._schedule = schedule_of(actors)
        self._onlookers = [name for name in ONLOOKERS if name in actors]

    def play(self) -> Summary:
        """Play until the rounds or the time are used up, or a promise is broken."""
        settings, summary = self._settings, self.summary
        errors = os.path.join(settings.folder, "stderr.txt")
        with Crew(plant=settings.plant, errors_path=errors) as crew:
            store = settings.first_store
            while self._schedule and self._goes_on():
                self._play_store(crew, store)
                summary.stores += 1
                if summary.failure is not None:
                    break
                store += 1
            summary.kills_by_role = dict(crew.killed)
        summary.seconds = time.monotonic() - self._start
        return summary

    def _goes_on(self) -> bool:
        settings = self._settings
        in_time = settings.seconds is None or time.monotonic() - self._start < settings.seconds
        return in_time and self.summary.figures.rounds < settings.rounds

    def _play_store(self, crew: Crew, store: int) -> None:
        settings, summary = self._settings, self.summary
        name, call = self._part(store)
        title = name if call is None else f"{name}@{call}"
        folder = os.path.join(settings.folder, f"store-{store}")
        os.mkdir(folder)
        seed, home = f"{settings.seed}-{store}", os.path.join(folder, "home")
        killed_before, scene = crew.killed.total(), None
        try:
            scene = SCENES[name][0](Stage(crew, home, seed, self._onlookers, summary.figures))
            self._play_scene(scene, call, title)
        except CouldNotRunError:
            raise
        except Exception as error:
            played = 0 if scene is None else scene.played
            command = settings.command(store, max(played, 1))
            what = f"{type(error).__name__}: {error}"
            summary.failure = Failure(what, title, store, played, command, folder)
        killed = crew.killed.total() - killed_before
        summary.kills += killed
        if call is None:
            summary.kills_by_scene[name] = summary.kills_by_scene.get(name, 0) + killed
        else:
            exact = summary.figures.exact
            exact[title] = exact.get(title, 0) + killed
        if summary.failure is None:
            shutil.rmtree(folder)
            assert scene is not None
            self._tell(f"store {store}: {title}, {scene.played} rounds, {killed} kills")

    def _part(self, store: int) -> tuple[str, str | None]:
        """Which scene a store is about; for kills at chosen calls also which call."""
        lap, at = divmod(store, len(self._schedule))
        name = self._schedule[at]
        if name != EXACT:
            return name, None
        visit = lap * _EXACT_SHARE + at - self._schedule.index(EXACT)
        return EXACT_PAIRS[visit % len(EXACT_PAIRS)]

    def _play_scene(self, scene: Scene, call: str | None, title: str) -> None:
        if call is not None:
            calls, to_the_end = walk(scene, call, _EXACT_CALLS_MAX, self._goes_on)
            if to_the_end:
                self.summary.walked[title] = calls
            return
        for number in range(1, 1 + min(self._settings.per_store, scene.rounds_max)):
            if not self._goes_on():
                break
            scene.play(number)


def walk(
    scene: Scene, call: str, most: int, goes_on: Callable[[], bool] = lambda: True
) -> tuple[int, bool]:
    """Kill at the first call of that kind, the second, and so on.

    Returns how many there are, and whether the last one was reached.
    """
    for when in range(1, most + 1):
        if not goes_on():
            return when - 1, False
        if not scene.play(when, Exactly(call, when)):
            return when - 1, True
    return most, False


def new_seed() -> int:
    """A seed for a run that was given none."""
    return random.SystemRandom().randrange(1, 1_000_000)
