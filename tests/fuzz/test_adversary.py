"""The index adversary finds nothing, and finds what is planted for it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from treering.engine.errors import Invalid
from treering.engine.journal import disk
from treering.engine.journal.reader import frame_at
from treering.engine.session import indexing
from treering.engine.session.indexing import Indexer
from treering.fuzz.__main__ import fuzz
from treering.fuzz.adversary import samples
from treering.fuzz.adversary.answers import difference
from treering.fuzz.adversary.attacks import ATTACKS, BOTH
from treering.fuzz.adversary.fault_trials import NOT_REACHED, fault_of
from treering.fuzz.adversary.faulty_vfs import FAILURES, Plan, installed, why_no_system_calls
from treering.fuzz.adversary.flips import FlipBench
from treering.fuzz.adversary.places import names_of_places, place_attack
from treering.fuzz.adversary.runs import (
    Bench,
    Job,
    Summary,
    fault_trials,
    flip_jobs,
    make_bench,
    named_trials,
    parse,
    place_trials,
    run_jobs,
)
from treering.fuzz.adversary.scene import Scene
from treering.fuzz.adversary.trial import (
    BROKEN,
    HARMLESS,
    LEFT,
    SET_ASIDE,
    PromiseBroken,
    Result,
    reopen,
)
from treering.index import IndexFault, SessionIndex, files, schema
from treering.tools.entry import main

SEED = 1

needs_checksums = pytest.mark.skipif(
    not schema.checksum_vfs(), reason="this APSW has no cksumvfs: flips cannot all be caught"
)


@pytest.fixture(autouse=True)
def _no_device_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_fsync", lambda descriptor: None)
    monkeypatch.setattr(disk, "_fdatasync", lambda descriptor: None)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """All samples, made once."""
    return make_bench(str(tmp_path_factory.mktemp("adversary")), SEED)


def run_all(bench: Bench, trials: list[str]) -> Counter[str]:
    """Run trials; none of them may be broken."""
    results = [bench.trial(trial) for trial in trials]
    broken = [result for result in results if result.outcome == BROKEN]
    assert not broken
    return Counter(result.outcome for result in results)


def each_attack() -> Any:
    """Every attack at every moment, each on one of the samples in turn."""
    names = list(samples.RECIPES)
    moments = [
        (attack, when)
        for attack in ATTACKS.values()
        for when in (("before",) if attack.only_before else BOTH)
    ]
    return pytest.mark.parametrize(
        "trial",
        [
            f"{names[number % len(names)]}/{attack.name}/{when}"
            for number, (attack, when) in enumerate(moments)
        ],
    )


@each_attack()
def test_F50_any_index_file_gives_the_same_answers(bench: Bench, trial: str) -> None:
    """Whatever is put in the place of an index, before an owner opens or behind its back."""
    result = bench.trial(trial)
    assert result.broken is None


def test_places_of_the_file(bench: Bench) -> None:
    """Sectors and pages zeroed, exchanged, of random bytes, of another time; the file cut."""
    outcomes = run_all(bench, place_trials(bench, 25, SEED))
    assert outcomes[SET_ASIDE] > 3
    assert outcomes[HARMLESS] > 3


@needs_checksums
def test_flips(bench: Bench) -> None:
    """A sample of all bits: caught, or in bytes that no answer needs."""
    flips = bench.flip_bench()
    (job,) = flip_jobs(flips.bits, 200, SEED)
    flipped = flips.run(job.flips, whole_every=10)
    assert not flipped.broken
    assert set(flipped.outcomes) <= {HARMLESS, SET_ASIDE, LEFT}
    assert flipped.outcomes[SET_ASIDE] > 100


def test_faults_of_calls(bench: Bench) -> None:
    """Each kind of call that SQLite makes for an index fails, some in every way."""
    draw = random.Random(SEED)
    kinds: dict[str, list[str]] = {}
    for trial in fault_trials(bench, None, SEED):
        call = trial.split("/")[1].partition("-")[0]
        kinds.setdefault(call, []).append(trial)
    # Shared memory that stays locked makes SQLite sleep for seconds: that is for the long run.
    slow = ("EAGAIN-forever", "EIO-forever", "ENOLCK-forever", "busy-forever")
    trials = [
        trial
        for of_call in kinds.values()
        for trial in draw.sample([one for one in of_call if not any(s in one for s in slow)], 2)
    ]
    outcomes = run_all(bench, trials)
    assert outcomes[NOT_REACHED] < len(trials) // 4
    assert outcomes[SET_ASIDE] > 3


def test_every_call_is_made_and_can_fail(bench: Bench) -> None:
    """A call that no trial makes would be tested by nothing."""
    calls = bench.calls("before")
    replaced = why_no_system_calls() is None
    assert {call for call in FAILURES if replaced or call.startswith("x")} <= set(calls)


# What the adversary must find


def planted(bench: Bench, trial: str) -> str:
    """The promise that a trial finds broken."""
    result = bench.trial(trial)
    assert result.broken is not None, f"{trial}: {result.outcome}"
    return result.broken


def test_planted_no_checksums(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without page checksums flipped bits are answered as if they were right."""
    monkeypatch.setattr(schema, "checksum_vfs", lambda: False)
    plain, other = bench.samples["plain"], bench.samples["branched"]
    flips = FlipBench(str(tmp_path / "flips"), plain, other, SEED)
    # Rows begin at the end of a page; the first page holds the schema.
    rows = [at for at in range(4096, flips.bits // 8) if at % 4096 > 3800]
    places = random.Random(SEED).sample(rows, 200)
    flipped = flips.run(places, whole_every=1 << 30)
    assert any("answers otherwise" in str(result.broken) for result in flipped.broken)


def test_planted_position_not_verified(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position is believed without the revision of the frame that it names."""

    def believe(self: Indexer, position: Any) -> Any:
        assert self._source is not None
        salt = indexing.salt_of(self._journal_id)
        found = frame_at(self._source, salt, position.offset)
        return None if found is None else found[0]

    monkeypatch.setattr(Indexer, "_frame_of", believe)
    assert "answers otherwise" in planted(bench, "plain/position-elsewhere/before")


def test_planted_sidecars_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad file is moved away without its -wal."""
    monkeypatch.setattr(files, "SIDECARS", ())
    assert "stays" in planted(bench, "plain/sidecar-directories/before")


def test_planted_newest_row_not_verified(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete-looking file is taken although its newest rows are gone."""
    monkeypatch.setattr(schema, "check", lambda db, path, *, file_inode: None)
    assert "answers otherwise" in planted(bench, "plain/last-rows-lost/before")


def test_planted_no_catch_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that is behind answers without being brought up."""

    cover = Indexer._cover

    def as_it_is(self: Indexer, size: int) -> None:
        cover(self, 0 if self._index is not None else size)
        self.covered_size = size

    monkeypatch.setattr(Indexer, "_cover", as_it_is)
    assert "answers otherwise" in planted(bench, "plain/older/before")


def test_planted_empty_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder the index in memory is used before it is filled."""
    monkeypatch.setattr(indexing, "fill", lambda index, walk, **more: True)
    assert planted(bench, "plain/folder-is-a-file/before")


def test_planted_no_new_generation(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad index is never replaced: every owner goes on in memory."""

    def refuse(folder: str, session_id: str) -> str:
        raise IndexFault(folder, f"no new generation for {session_id}")

    plain, other = bench.samples["plain"], bench.samples["branched"]
    folder = os.path.join(bench.folder, "no-new-generation")
    os.makedirs(folder)
    scene = Scene(folder, plain, other, SEED)
    monkeypatch.setattr(indexing.files, "next_path", refuse)
    ATTACKS["unfinished"].do(scene.target)
    with pytest.raises(PromiseBroken, match="again and again"):
        reopen(scene.path, plain.right)
    scene.remove()


def unhandled(self: Indexer, question: Callable[[SessionIndex], Any], size: int) -> Any:
    """An index that is asked without anybody minding its faults."""
    return question(self._covering(size))


@pytest.mark.parametrize("name", ["random-page:{}/before", "xRead-ioerr-once:{}/before"])
def test_planted_faults_come_out(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A fault of the index reaches the reader of a session."""
    monkeypatch.setattr(Indexer, "_ask", unhandled)
    found = (bench.trial(f"plain/{name.format(number)}").broken for number in range(14, 1, -1))
    assert any("IndexFault" in str(broken) for broken in found)


def test_planted_wrong_journal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting aside an index touches the journal."""
    set_aside = Indexer._set_aside

    def clumsy(self: Indexer, fault: IndexFault) -> None:
        set_aside(self, fault)
        assert self._source is not None
        with open(self._source.path, "ab") as file:
            file.write(b"x")

    monkeypatch.setattr(Indexer, "_set_aside", clumsy)
    assert planted(bench, "plain/bound-to-another-journal/before")


# The kit itself


def test_answers_differ_where_they_differ(bench: Bench) -> None:
    """The first question with another answer is named; the same answers are no difference."""
    right = bench.samples["branched"].right
    assert difference(right, dict(right)) is None
    assert "leaf" in str(difference(right, {**right, "leaf": "other"}))
    assert "not asked" in str(difference(right, {**right, "more": 1}))


def test_samples_are_what_they_are_for(bench: Bench) -> None:
    """Each sample has what it was made for."""
    right = {name: sample.right for name, sample in bench.samples.items()}
    assert right["imported"]["counts"]["missing"] == 1
    assert right["imported"]["counts"]["cycles"] > 0
    assert right["imported"]["counts"]["derived"] > 0
    assert max(len(text) for _, text in right["branched"]["labels"]) > 8192
    assert right["branched"]["latest compaction"] is None  # of another branch
    assert right["branched"]["kind compaction"]
    raws = {entry.id: entry.raw for entry in right["packed"]["entries"]}
    assert samples._BLOB in raws["e001"]
    assert "never-1" not in {entry.id for entry in right["abandoned"]["entries"]}
    for sample in bench.samples.values():
        assert 0 < sample.earlier < sample.middle < len(sample.journal)


def test_names_of_trials() -> None:
    """A name stands for one trial; what is none is refused with what is wrong."""
    for name in ("plain/empty/before", "plain/flip:4711.3/while", "plain/xSync-full-once:2/before"):
        sample, cause, when = parse(name)
        assert f"{sample}/{cause.name}/{when}" == name
    for name in (
        "plain/nothing/before",
        "plain/empty/after",
        "plain/ahead/while",
        "plain/flip:1/before",
        "plain/cut:1.3/before",
        "plain/unknown:1/before",
        "plain/xSync-short-once:2/before",
        "empty",
    ):
        with pytest.raises(Invalid):
            parse(name)
    assert len(named_trials(["empty"], ["a", "b"])) == 4
    assert named_trials(["b/hot*/while"], ["a", "b"])
    assert named_trials(["cut:5"], ["plain"]) == ["plain/cut:5/before", "plain/cut:5/while"]
    with pytest.raises(Invalid):
        named_trials(["nothing-such"], ["plain"])
    assert len(set(named_trials([], ["plain"]))) == 2 * len(ATTACKS) - 1


def test_flips_are_all_bits_once() -> None:
    """All jobs together flip each bit once, and the first eighth a bit of every byte."""
    bits = 8 * 3 * 4096
    flips = [place for job in flip_jobs(bits, None, SEED) for place in job.flips]
    assert sorted(flips) == list(range(bits))
    first = flips[: bits // 8]
    assert sorted(place % (bits // 8) for place in first) == list(range(bits // 8))
    assert sum(len(job.flips) for job in flip_jobs(bits, 1_234, SEED)) == 1_234


def test_places_cover_the_file() -> None:
    """Every sector and page in every way, each name that of an attack."""
    names = list(names_of_places(2 * 4096))
    assert len(names) == len(set(names))
    assert {name for name in names if place_attack(name) is None} == set()
    assert sum(name.startswith("zero-sector:") for name in names) == 16
    assert "cut:4096" in names


def test_the_vfs_of_the_process_is_put_back() -> None:
    """After a faulty VFS the process has its own again, with checksums above it."""
    before = set(apsw.vfs_names()), apsw.vfs_names()[0]
    plan = Plan()
    with installed(plan, system_calls=True):
        assert apsw.vfs_names()[0] not in before[0]
    assert (set(apsw.vfs_names()), apsw.vfs_names()[0]) == before
    assert fault_of("xRead-ioerr-once:3") is not None


def test_a_process_that_dies_is_a_finding(tmp_path: Path, bench: Bench) -> None:
    """A trial that never ends, or kills its process, is told with its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treering.fuzz.adversary.runs._work", _die)
        found = [
            r
            for results, _ in run_jobs(bench, [Job("plain/empty/before")], processes=2)
            for r in results
        ]
    assert found[-1].outcome == BROKEN


def _die(job: Job) -> Any:
    del job
    os._exit(9)


# The command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard output of ``treering.fuzz index``."""
    code = main(["index", *arguments], command=fuzz)
    return code, capsys.readouterr().out


@needs_checksums
def test_command_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with all figures; exit code 0."""
    code, out = run(capsys, "--attack", "empty", "--flips", "20", "--places", "2", "--json")
    assert code == 0
    figures = json.loads(out)
    assert figures["trials"] == 12
    assert figures["flips"]["done"] == 20
    assert figures["flips"]["of"] > 100_000
    assert figures["broken"] == []


def test_command_tells_what_it_finds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding has a line that runs it again; exit code 1."""
    monkeypatch.setattr(schema, "check", lambda db, path, *, file_inode: None)
    code, out = run(capsys, "--attack", "plain/last-rows-lost/before")
    assert code == 1
    assert "--attack 'plain/last-rows-lost/before' --seed 0" in out


def test_command_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown attack is a mistake of the caller; the list names the known ones."""
    assert run(capsys, "--attack", "nothing-such")[0] == 2
    assert run(capsys, "--flips", "some")[0] == 2
    code, out = run(capsys, "--list")
    assert code == 0
    assert all(name in out for name in ATTACKS)


def test_summary_counts() -> None:
    """Figures by outcome and by attack."""
    summary = Summary(7)
    summary.add([Result(f"plain/cut:{n}/before", HARMLESS) for n in range(3)])
    summary.add([Result("plain/cut:9/while", BROKEN, "why")])
    assert summary.trials == 4
    assert summary.attacks == {"cut": Counter({HARMLESS: 3, BROKEN: 1})}
    assert summary.as_json()["broken"][0]["reproduce"].endswith("'plain/cut:9/while' --seed 7")
