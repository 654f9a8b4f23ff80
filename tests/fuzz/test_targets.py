"""The fuzz targets: no committed input breaks a promise, and each target can be broken."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import build

from treering.engine.journal import payload as payload_module
from treering.engine.journal import reader
from treering.engine.journal.reader import Place
from treering.fuzz.__main__ import fuzz
from treering.fuzz.targets import child, frame_mutator, frames, journal, running
from treering.fuzz.targets.registry import TARGETS, load
from treering.fuzz.targets.running import Outcome, Search, committed, replay, search
from treering.fuzz.targets.target import Memory, Target, dictionary_lines
from treering.tools.entry import main

EACH = pytest.mark.parametrize("name", TARGETS)
CORPUS_BYTES_MAX = 300_000

needs_engine = pytest.mark.skipif(
    not running.can_search(), reason="searches need atheris, which is not installed"
)


def native(data: bytes, size_max: int, *, rnd: random.Random) -> bytes:
    """Some change, in place of the engine's own mutator."""
    changed = bytearray(data)
    for _ in range(rnd.randint(1, 3)):
        how = rnd.random()
        if how < 0.6 and changed:
            changed[rnd.randrange(len(changed))] = rnd.choice(
                (0, 1, 4, 127, 255, rnd.randrange(256))
            )
        elif how < 0.8:
            changed.insert(rnd.randint(0, len(changed)), rnd.randrange(256))
        elif changed:
            del changed[rnd.randrange(len(changed))]
    return bytes(changed[:size_max])


def mutated(name: str, seed: int, count: int) -> Any:
    """Inputs as a search makes them, from the committed ones, without its feedback."""
    target, rnd = load(name), random.Random(seed)
    inputs = [path.read_bytes() for path in committed(name)]

    def blind(data: bytes, size_max: int) -> bytes:
        return native(data, size_max, rnd=rnd)

    for _ in range(count):
        data = rnd.choice(inputs)
        for _ in range(rnd.randint(1, 2)):
            if target.mutate is None:
                data = blind(data, target.bytes_max)
            else:
                data = target.mutate(data, target.bytes_max, rnd.getrandbits(31), blind)
        yield data


def command(*words: str) -> tuple[int, str, str]:
    """``python -m treering.fuzz target``, in this process."""
    with CliRunner().isolation() as (out, err, _):
        code = main(["target", *words], command=fuzz)
        sys.stdout.flush()
        sys.stderr.flush()
        return code, out.getvalue().decode(), err.getvalue().decode()


# What is committed


@EACH
def test_the_corpus_is_replayed(name: str) -> None:
    """Every committed input, within the target's own time and memory."""
    inputs = committed(name)
    assert len(inputs) >= 8
    target = load(name)
    wrong = {path.name: replay(target, path.read_bytes()) for path in inputs}
    assert {one: why for one, why in wrong.items() if why is not None} == {}


def test_the_corpora_are_small() -> None:
    sizes = [path.stat().st_size for name in TARGETS for path in committed(name)]
    assert sum(sizes) < CORPUS_BYTES_MAX
    folders = {path.name for path in running.CORPUS.iterdir()}
    assert folders == set(TARGETS), "a corpus without a target"


def test_the_seeds_are_what_their_maker_makes() -> None:
    """Compressed ones may differ with the library's version; their names may not."""
    place = Path(__file__).with_name("make_corpus.py")
    spec = importlib.util.spec_from_file_location("make_corpus", place)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert set(made.SEEDS) == set(TARGETS)
    for name, make in made.SEEDS.items():
        seeds = {f"seed-{seed}": data for seed, data in make().items()}
        held = {p.name: p.read_bytes() for p in committed(name) if p.name.startswith("seed-")}
        assert set(held) == set(seeds)
        if name != "payload":
            assert held == seeds


# Targets can fail


class Planted:
    """A module's source with one line changed."""

    def __init__(self, module: Any, old: str, new: str) -> None:
        source = inspect.getsource(module)
        assert source.count(old) == 1, old
        self.names: dict[str, Any] = {"__name__": module.__name__}
        exec(compile(source.replace(old, new), module.__file__, "exec"), self.names)


SCANNER_FAULTS = {
    "the chain is not compared": ("if found_previous != previous:", "if False:"),
    "sequences are not compared": ("if found_sequence != sequence:", "if False:"),
    "an epoch may go back": ("found_epoch > epoch and kind", "found_epoch != epoch and kind"),
    "the digest is compared in part": (
        "if buffer[end : end + DIGEST_BYTES] != revision:",
        "if buffer[end : end + 4] != revision[:4]:",
    ),
    "the header check is not compared": (
        "if check != header_check_of(buffer[at : at + 40], seed):",
        "if False:",
    ),
    "a refill is too short": (
        "wanted = max(self._chunk_bytes, ENVELOPE_BYTES + stored)",
        "wanted = max(self._chunk_bytes, FRAME_HEADER_BYTES + stored)",
    ),
    "an empty frame at the end is cut off": (
        "if size - offset < ENVELOPE_BYTES:",
        "if size - offset <= ENVELOPE_BYTES:",
    ),
}


@pytest.mark.parametrize("fault", SCANNER_FAULTS)
def test_a_fault_of_the_scanner_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By few mutations, and by none of them without the fault."""
    inputs = list(mutated("frames", 7, 6000))
    for data in inputs:
        frames.check(data)
    planted = Planted(reader, *SCANNER_FAULTS[fault])
    monkeypatch.setattr(frames, "Scan", planted.names["Scan"])
    assert any(replay(frames.TARGET, data) is not None for data in inputs)


def _longer(*_: object) -> bytes:
    return b"{}"


FAULTS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "frames": (
        "treering.fuzz.targets.frames",
        "chain",
        lambda real: lambda *words: (real(*words)[0][:2], real(*words)[1]),
    ),
    "journal": (
        "treering.engine.journal.recovery",
        "_search_beyond",
        lambda real: lambda found, salt, offset, sequence: real(found, salt, offset, sequence + 2),
    ),
    "header": (
        "treering.engine.journal.format",
        "digest_of",
        lambda real: lambda data, *salt: real(data[:-20] + bytes(20), *salt),
    ),
    "payload": (
        "treering.engine.journal.payload",
        "decompress_plain",
        lambda real: lambda stored, raw: real(stored, raw) and real(stored, raw)[:-1],
    ),
    "legacy": (
        "treering.engine.transfer.legacy_read",
        "take_apart",
        lambda real: lambda raw, reason: list(real(raw, reason))[1:],
    ),
    "native": (
        "treering.fuzz.targets.native",
        "native_items",
        lambda real: lambda source, **more: list(real(source, **more))[1:],
    ),
    "associations": (
        "treering.engine.associations.matching",
        "_agreed",
        lambda real: lambda one, other: one,
    ),
    "entry": (
        "treering.fuzz.targets.entry",
        "admit",
        lambda real: (
            lambda data, **more: real(data.strip() if isinstance(data, bytes) else data, **more)
        ),
    ),
    "selectors": (
        "treering.fuzz.targets.selectors",
        "resolve",
        lambda real: lambda store, text: store.sessions + "/" + text if text else real(store, text),
    ),
    "store": (
        "treering.fuzz.targets.store",
        "check_session",
        lambda real: lambda path, **more: (Path(path).touch(), real(path, **more))[1],
    ),
    "index": (
        "treering.fuzz.targets.index",
        "peek",
        lambda real: lambda path: (real(path), Path(path + ".copy").write_bytes(b""))[0],
    ),
}


@EACH
def test_every_target_can_be_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault is found by the committed inputs, and reported with the way to see it."""
    place, member, change = FAULTS[name]
    module = importlib.import_module(place)
    monkeypatch.setattr(module, member, change(getattr(module, member)))
    code, out, _ = command("replay", name)
    assert code == 1
    assert f"python -m treering.fuzz target replay {name} --input " in out


def test_too_much_time_or_memory_is_a_finding() -> None:
    def slow(_: bytes) -> None:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    def large(data: bytes) -> None:
        assert bytes(2_000_000 + len(data))

    patient = Target(slow, modules=())
    assert replay(patient, b"") is None
    assert "processor time" in str(replay(dataclasses.replace(patient, seconds_max=0.01), b""))
    roomy = Target(large, modules=())
    assert replay(roomy, b"") is None
    assert "memory" in str(replay(dataclasses.replace(roomy, memory_bytes_max=1_000_000), b""))


def test_a_length_beyond_the_file_costs_a_search_nothing() -> None:
    """Found by a search: a lost file header and one wrong bit made a small journal unreadable."""
    maker = build.Maker().started()
    data = bytearray(bytes(128) + maker.body)
    data[128 + 9] ^= 0x80  # the stored length of the first frame is 32 KiB more than the file has
    found = build.look(bytes(data))
    assert found.case == "F"
    assert found.journal_id == build.ID
    assert len(found.beyond) == len(maker.frames) - 1


# Mutations


def test_half_of_the_mutations_of_frames_get_past_the_checksums() -> None:
    """The scan stops for every reason that there is, and often behind several frames."""
    reasons: Counter[str] = Counter()
    depths: Counter[int] = Counter()
    for data in mutated("frames", 3, 6000):
        scan = reader.Scan(Memory(data), frame_mutator.SALT, Place(0, 0, 0, bytes(8)))
        depths[len(list(scan.frames()))] += 1
        assert scan.stop is not None
        words = (scan.stop.reason or "end").split()
        reasons[" ".join(words[:2]) if words[0] in ("digest", "stored") else words[0]] += 1
    assert set(reasons) == {
        "end", "cut", "no", "header", "digest", "digest of", "stored length", "sequence", "epoch",
    }  # fmt: skip
    assert sum(count for depth, count in depths.items() if depth >= 3) > 1000
    assert reasons["end"] > 500


def test_mutations_depend_on_their_seed_alone() -> None:
    for name in TARGETS:
        assert list(mutated(name, 5, 50)) == list(mutated(name, 5, 50))
        assert len(set(mutated(name, 5, 50))) > 20


def test_repaired_headers_verify() -> None:
    """Most journals that are made have a header that is read: else only case F would be tried."""
    read = sum(
        data[8:16] == b"\x01\0\x80\0" + bytes(4) and data[:8] == journal.FILE_MAGIC
        for data in mutated("journal", 11, 400)
    )
    assert read > 200


# The commands


def test_list_names_every_target() -> None:
    code, out, _ = command("list", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == list(TARGETS)
    assert all(row["inputs"] and row["what"] for row in rows)
    assert len(command("list")[1].splitlines()) == len(TARGETS)


def test_replay_of_one_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding of a search is seen again with the command that is printed for it."""
    path = tmp_path / "crash with a space"
    path.write_bytes(b"\0\x02\x04\0\0\0\x09" + b"abcd")
    words = ("replay", "payload", "--input", str(path))
    assert command(*words)[:2] == (0, "1 inputs, 0 findings\n")
    monkeypatch.setattr(payload_module.PayloadDecoder, "decode", _longer)
    code, out, _ = command(*words, "--json")
    found = json.loads(out)
    assert (code, found["inputs"]) == (1, 1)
    assert found["findings"][0]["input"] == str(path)
    assert "Broken: length: found 2, expected 4" in found["findings"][0]["what"]
    code, out, _ = command(*words)
    assert f"--input '{path}'" in out
    assert command("replay", "--input", str(path))[0] == 2
    assert command("replay", "nothing")[0] == 2


def test_without_atheris(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays need none; a search says in one line what it needs."""
    monkeypatch.setitem(sys.modules, "atheris", None)
    code, out, err = command("run", "frames")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert "treering[fuzz]" in err
    script = (
        "import sys; sys.modules['atheris'] = None\n"
        "from treering.fuzz.__main__ import fuzz, main\n"
        "sys.exit(main(['target', 'replay', 'header'], command=fuzz))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_dictionaries_are_written_as_the_engine_reads_them() -> None:
    assert dictionary_lines([b'a"\\\xff\0', b""]) == '"\\x61\\x22\\x5c\\xff\\x00"\n'


def test_the_functions_of_a_module_are_its_own() -> None:
    """Methods and properties too, and nothing that it only imports."""
    found = {function.__qualname__ for function in child.functions_of(reader)}
    assert {"Scan.frames", "search", "FileBytes.size", "Place.behind"} <= found
    assert all(function.__module__ == reader.__name__ for function in child.functions_of(reader))


# Searches


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    """Two seconds of every target, some beside each other."""
    top = tmp_path_factory.mktemp("searches")
    with ThreadPoolExecutor(3) as pool:
        yield {
            name: pool.submit(
                search, Search(name, TARGETS[name].place, top / name, 2, None, 1, None), load(name)
            )
            for name in TARGETS
        }


@needs_engine
@pytest.mark.slow
@EACH
def test_a_short_search_finds_nothing(name: str, searches: dict[str, Future[Outcome]]) -> None:
    outcome = searches[name].result()
    assert (outcome.findings, outcome.failed) == ([], [])
    assert outcome.executions == outcome.executions_so_far > len(committed(name))


@needs_engine
@pytest.mark.slow
def test_run_says_what_it_did(tmp_path: Path) -> None:
    """Executions are counted exactly, over all runs in a folder."""
    words = ("run", "header", "--executions", "1500", "--folder", str(tmp_path))
    code, out, _ = command(*words, "--jobs", "2", "--json")
    found = json.loads(out)
    assert (code, found["executions"], found["seeds"]) == (0, 1500, [1, 2])
    code, out, _ = command(*words)
    assert code == 0
    assert out.startswith("header: 1500 executions in ")
    assert " 3000 so far in this folder, seeds 3, 0 findings" in out


PLANTED = """
from treering.fuzz.targets.target import Target

def check(data):
    if data[:3] == b"BUG":
        raise KeyError("planted")

TARGET = Target(check, modules=(__name__,), bytes_max=8)
"""


@needs_engine
@pytest.mark.slow
def test_a_search_finds_a_planted_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guided by branches; its input and its executions are kept, and a second run goes on."""
    (tmp_path / "planted_target.py").write_text(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    target = importlib.import_module("planted_target").TARGET
    assert isinstance(target, Target)
    folder = tmp_path / "folder"
    order = Search("planted", "planted_target:TARGET", folder, None, 1000, 1, None)
    harmless = search(dataclasses.replace(order, seed=4), dataclasses.replace(target, bytes_max=2))
    assert (harmless.executions, harmless.findings, harmless.failed) == (1000, [], [])
    longer = dataclasses.replace(order, executions=2_000_000, seconds=20)
    outcome = search(longer, target)
    assert outcome.seeds == [2]
    (finding,) = outcome.findings
    assert Path(finding).read_bytes()[:3] == b"BUG"
    assert 0 < outcome.executions < 2_000_000
    assert outcome.executions_so_far == 1000 + outcome.executions
    assert "KeyError" in str(replay(target, Path(finding).read_bytes()))


@needs_engine
def test_a_search_that_cannot_start_is_no_success(tmp_path: Path) -> None:
    """A process that fails for another reason than a finding is reported with its log."""
    order = Search("x", "treering.fuzz.no_such_module:TARGET", tmp_path, None, 10, 1, None)
    outcome = search(order, load("header"))
    assert outcome.findings == []
    assert outcome.failed == outcome.logs
    assert "no_such_module" in Path(outcome.failed[0]).read_text()
