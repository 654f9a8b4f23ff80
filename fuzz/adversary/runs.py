"""A run of the adversary: which trials, in which processes, and what came of them."""

from __future__ import annotations

import faulthandler
import fnmatch
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from treering.engine.errors import Invalid
from treering.fuzz.adversary import other_times  # noqa: F401 (it registers attacks)
from treering.fuzz.adversary.attacks import ATTACKS, BOTH, Attack, When
from treering.fuzz.adversary.fault_trials import (
    Fault,
    count_calls,
    fault_of,
    names_of_faults,
    run_fault_trial,
)
from treering.fuzz.adversary.flips import FlipBench
from treering.fuzz.adversary.places import names_of_places, place_attack
from treering.fuzz.adversary.samples import Sample, make_samples
from treering.fuzz.adversary.scene import Scene
from treering.fuzz.adversary.trial import BROKEN, Result, run_trial

FLIPS_PER_JOB: Final = 512
JOB_TIMEOUT_S: Final = 300
"""A job that takes so long hangs: its process ends with a traceback of where."""

PLACES_SAMPLES: Final = ("branched", "plain")
"""Whose files are attacked place by place: one has pages that only a long label fills."""

FLIPPED_SAMPLE: Final = "plain"
FAULTED_SAMPLE: Final = "plain"


@dataclass(frozen=True)
class Job:
    """One trial by its name, or bits to flip by their numbers."""

    trial: str = ""
    flips: Sequence[int] = ()


@dataclass
class Summary:
    """What a run found."""

    seed: int
    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    attacks: dict[str, Counter[str]] = field(default_factory=dict)
    flips: int = 0
    flips_of: int = 0
    flip_outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[Result] = field(default_factory=list)

    def add(self, results: Iterable[Result]) -> None:
        """Count trials."""
        for result in results:
            self.trials += 1
            self.outcomes[result.outcome] += 1
            kind = result.trial.split("/")[1].partition(":")[0]
            self.attacks.setdefault(kind, Counter())[result.outcome] += 1
            if result.broken is not None:
                self.broken.append(result)

    def add_flips(self, outcomes: Counter[str], broken: list[Result]) -> None:
        """Count flips."""
        self.flips += outcomes.total()
        self.flip_outcomes += outcomes
        self.broken += broken

    def reproduce(self, result: Result) -> str:
        """The command that runs one trial again."""
        return f"python -m treering.fuzz index --attack '{result.trial}' --seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        return {
            "seed": self.seed,
            "trials": self.trials,
            "outcomes": dict(self.outcomes),
            "attacks": {name: dict(counts) for name, counts in sorted(self.attacks.items())},
            "flips": {
                "done": self.flips,
                "of": self.flips_of,
                "outcomes": dict(self.flip_outcomes),
            },
            "broken": [
                {
                    "trial": result.trial,
                    "what": result.broken,
                    "reproduce": self.reproduce(result),
                }
                for result in self.broken
            ],
        }


class Bench:
    """The samples, and a folder to try things in. One in every process."""

    def __init__(self, folder: str, samples: Sequence[Sample], seed: int) -> None:
        self.folder = folder
        self.samples = {sample.name: sample for sample in samples}
        self.seed = seed
        self._flips: FlipBench | None = None

    def other_than(self, name: str) -> Sample:
        """Another sample: the next one, and the first behind the last."""
        names = list(self.samples)
        return self.samples[names[(names.index(name) + 1) % len(names)]]

    def run(self, job: Job) -> tuple[list[Result], Counter[str]]:
        """Results of trials that are worth naming, and counted flips."""
        if job.trial:
            return [self.trial(job.trial)], Counter()
        flipped = self.flip_bench().run(job.flips)
        return flipped.broken, flipped.outcomes

    def trial(self, name: str) -> Result:
        """Run one trial: SAMPLE/ATTACK/WHEN.

        Raises:
            Invalid: there is no such trial.
        """
        sample_name, cause, when = parse(name)
        sample = self.samples.get(sample_name)
        if sample is None:
            raise Invalid(f"no sample {sample_name!r}; there are {', '.join(self.samples)}")
        other = self.other_than(sample_name)
        folder = os.path.join(self.folder, f"trial-{os.getpid()}")
        if isinstance(cause, Fault):
            return run_fault_trial(folder, cause, sample, other, when)
        seed = random.Random(f"{self.seed} {name}").getrandbits(32)
        return run_trial(folder, cause, sample, other, when, seed)

    def flip_bench(self) -> FlipBench:
        """Where bits are flipped: made once."""
        if self._flips is None:
            folder = os.path.join(self.folder, f"flips-{os.getpid()}")
            sample = self.samples[FLIPPED_SAMPLE]
            self._flips = FlipBench(folder, sample, self.other_than(sample.name), self.seed)
        return self._flips

    def index_bytes(self, name: str) -> int:
        """Size of the index of a sample."""
        folder = os.path.join(self.folder, f"size-{os.getpid()}")
        os.makedirs(folder)
        scene = Scene(folder, self.samples[name], self.other_than(name), self.seed)
        try:
            return os.path.getsize(scene.target.index)
        finally:
            scene.remove()

    def calls(self, when: When) -> Counter[str]:
        """What SQLite calls in a trial without a fault."""
        folder = os.path.join(self.folder, f"count-{os.getpid()}")
        sample = self.samples[FAULTED_SAMPLE]
        return count_calls(folder, sample, self.other_than(FAULTED_SAMPLE), when)


def parse(name: str) -> tuple[str, Attack | Fault, When]:
    """Sample, attack or fault, and moment of a trial's name.

    Raises:
        Invalid: there is no such attack or moment.
    """
    sample, _, rest = name.partition("/")
    cause_name, _, when = rest.rpartition("/")
    cause = ATTACKS.get(cause_name) or place_attack(cause_name) or fault_of(cause_name)
    if cause is None:
        raise Invalid(f"no attack {cause_name!r} (in {name!r})")
    if when == "before":
        return sample, cause, "before"
    if when == "while" and not (isinstance(cause, Attack) and cause.only_before):
        return sample, cause, "while"
    raise Invalid(f"no moment {when!r} for {cause_name!r}: before or while")


def named_trials(patterns: Sequence[str], samples: Sequence[str]) -> list[str]:
    """Trials of attacks by name, of all attacks, or those whose names match a pattern.

    Raises:
        Invalid: nothing has that name.
    """
    every = [
        f"{sample}/{attack.name}/{when}"
        for attack in ATTACKS.values()
        for sample in samples
        for when in (("before",) if attack.only_before else BOTH)
    ]
    if not patterns:
        return every
    chosen: list[str] = []
    for pattern in patterns:
        if pattern.count("/") == 2 and "*" not in pattern:
            parse(pattern)
            found = [pattern]
        elif place_attack(pattern) is not None or fault_of(pattern) is not None:
            found = [f"{FLIPPED_SAMPLE}/{pattern}/{when}" for when in BOTH]
        else:
            found = [
                name
                for name in every
                if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name.split("/")[1], pattern)
            ]
        if not found:
            raise Invalid(
                f"no attack {pattern!r}", next_step="the section of docs/fuzz.md names them"
            )
        chosen += found
    return list(dict.fromkeys(chosen))


def place_trials(bench: Bench, count: int | None, seed: int) -> list[str]:
    """All attacks on places, or so many of them."""
    every = [
        f"{sample}/{place}/{when}"
        for sample in PLACES_SAMPLES
        for place in names_of_places(bench.index_bytes(sample))
        for when in BOTH
    ]
    if count is None or count >= len(every):
        return every
    return random.Random(f"{seed} places").sample(every, count)


def fault_trials(bench: Bench, count: int | None, seed: int) -> list[str]:
    """All faults of all calls, or so many: some of each kind of call before more of one."""
    every = [
        name for when in BOTH for name in names_of_faults(bench.calls(when), when, FAULTED_SAMPLE)
    ]
    if count is None or count >= len(every):
        return every
    draw = random.Random(f"{seed} faults")
    draw.shuffle(every)
    kinds: dict[str, list[str]] = {}
    for name in every:
        kinds.setdefault(name.partition(":")[0], []).append(name)
    in_turn = itertools.zip_longest(*kinds.values())
    return [name for names in in_turn for name in names if name is not None][:count]


def flip_jobs(bits: int, count: int | None, seed: int) -> list[Job]:
    """Jobs that flip all bits, or so many of them.

    Each is spread over the whole file, and the first eighth of all takes a bit of every byte:
    a run that is ended early has looked everywhere.
    """
    if count is not None and count < bits:
        chosen = random.Random(f"{seed} flips").sample(range(bits), count)
        pieces = range(0, count, FLIPS_PER_JOB)
        return [Job(flips=tuple(chosen[at : at + FLIPS_PER_JOB])) for at in pieces]
    size = bits // 8
    step = -(-size // FLIPS_PER_JOB)
    turns = [range(size * turn, size * (turn + 1)) for turn in range(8)]
    return [Job(flips=turn[start::step]) for turn in turns for start in range(step)]


# Processes

_bench: Bench | None = None


def _begin(folder: str, samples: Sequence[Sample], seed: int) -> None:
    global _bench  # noqa: PLW0603 (what a worker process keeps between its jobs)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bench = Bench(folder, samples, seed)


def _work(job: Job) -> tuple[list[Result], Counter[str]]:
    assert _bench is not None
    note = os.path.join(_bench.folder, f"{os.getpid()}.current")
    Path(note).write_text(job.trial or f"flips from {job.flips[0]}", encoding="utf-8")
    faulthandler.dump_traceback_later(JOB_TIMEOUT_S, exit=True)
    try:
        return _bench.run(job)
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_jobs(
    bench: Bench, jobs: Sequence[Job], *, processes: int
) -> Iterator[tuple[list[Result], Counter[str]]]:
    """The results of the jobs, in order. A process that dies is a result too, and the last."""
    if processes == 1:
        yield from map(bench.run, jobs)
        return
    executor = ProcessPoolExecutor(
        processes,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(bench.folder, tuple(bench.samples.values()), bench.seed),
    )
    try:
        yield from executor.map(_work, jobs)
    except BrokenExecutor:
        at = [note.read_text("utf-8") for note in Path(bench.folder).glob("*.current")]
        what = f"a process hung or died in one of: {'; '.join(sorted(at))}"
        yield [Result("?/process/?", BROKEN, what)], Counter()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def make_bench(folder: str, seed: int) -> Bench:
    """Samples and room for trials in a folder that exists."""
    return Bench(folder, make_samples(os.path.join(folder, "samples")), seed)
