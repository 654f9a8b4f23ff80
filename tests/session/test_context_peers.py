"""The contexts that three versions of other systems build of the corpus, beside ours.

What they made is recorded: counts, roles, settings, and the SHA-256 of ``JSON.stringify`` of their
messages, so equal digests are equal messages. They differ from each other in one member: only one
of them says ``retainedMessageCount``. Every other difference is a fault of theirs, and named here.

One of them can be run, too: where node and its package are, both build the contexts of the corpus
and of random trees, and every message is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from context_helpers import Json, imported, js_text, write_jsonl
from support.long_runs import LONG

from treering.engine import InvalidSource, SessionView, import_session
from treering.engine.session.context_rules import SessionContext

CORPUS = Path(os.environ.get("TREERING_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus")
needs_corpus = pytest.mark.skipif(
    not (CORPUS / "INDEX.tsv").is_file(),
    reason=f"no corpus at {CORPUS}; set TREERING_CORPUS to its folder",
)

PEERS = ("pi-0.73.1", "pi-1.6.0", "prime-agent")
COUNTS_RETAINED = "prime-agent"

THE_SAME = ("03", "04", "11", "33", "34", "50", "51", "53", "56", "58", "62", "46")
"""Files whose context is the same in every respect, message by message."""

NO_MODEL = ("07", "35")
"""Files whose last assistant message names no model. Theirs is then an object without members,
ours is None; everything else is the same (07: see test_usage_of_children)."""


class Ours(NamedTuple):
    context: SessionContext
    messages: list[Json]
    salvaged: bool


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ours]:
    """Number of the corpus file -> our context of it."""
    home = str(tmp_path_factory.mktemp("peers") / "home")
    found = {}
    for file in sorted(CORPUS.glob("*.jsonl")):
        salvage = False
        try:
            path = import_session(file, home_dir=home).path
        except InvalidSource:
            salvage = True
            path = import_session(file, home_dir=home, salvage=True).path
        with SessionView.open(path) as view:
            context = view.read_session_context()
        found[file.name[:2]] = Ours(context, context.to_list(), salvage)
    return found


def theirs(peer: str, number: str) -> Json:
    """What a peer made of a corpus file."""
    results = json.loads((CORPUS / "peer-results" / f"{peer}.json").read_text())
    (found,) = (made for name, made in results.items() if name.startswith(f"{number}-"))
    assert isinstance(found, dict)
    return found


def digest(messages: Iterable[Json]) -> str:
    return hashlib.sha256(js_text(list(messages)).encode()).hexdigest()


def as_peer(peer: str, messages: list[Json]) -> list[Json]:
    """Without the one member that only one of them has."""
    if peer == COUNTS_RETAINED:
        return messages
    return [{k: v for k, v in m.items() if k != "retainedMessageCount"} for m in messages]


def model_of(context: SessionContext) -> Json | None:
    if context.model is None:
        return None
    stated = {"provider": context.model.provider, "modelId": context.model.model_id}
    return {name: value for name, value in stated.items() if value is not None}


def summary(messages: list[Json], context: SessionContext) -> Json:
    """Ours, in the form of the records."""
    roles = [message["role"] for message in messages]
    ends = {"first": roles[0], "last": roles[-1]} if roles else {}
    return {
        "n": len(roles),
        "roles": dict(Counter(roles)),
        "thinking": context.thinking_level,
    } | ends


def assert_same(peer: str, number: str, messages: list[Json], context: SessionContext) -> None:
    their = theirs(peer, number)["context"]
    got = {name: value for name, value in their.items() if name not in ("model", "sha256")}
    assert summary(messages, context) == got, (peer, number)
    assert digest(as_peer(peer, messages)) == their["sha256"], (peer, number)


@needs_corpus
@pytest.mark.parametrize("peer", PEERS)
def test_the_same_contexts(ours: dict[str, Ours], peer: str) -> None:
    """Twelve files: count, roles, ends, level, model, and every message."""
    for number in THE_SAME:
        found = ours[number]
        assert_same(peer, number, found.messages, found.context)
        assert model_of(found.context) == theirs(peer, number)["context"]["model"], number


@needs_corpus
@pytest.mark.parametrize("peer", PEERS)
def test_a_model_that_nobody_names(ours: dict[str, Ours], peer: str) -> None:
    """Fault of theirs: an assistant message without a model gives them a model without a name."""
    for number in NO_MODEL:
        their = theirs(peer, number).get("context")
        if their is None:
            assert (peer, number) == (COUNTS_RETAINED, "07")  # the next test
            continue
        assert their["model"] == {}
        assert ours[number].context.model is None
    assert_same(peer, "35", ours["35"].messages, ours["35"].context)


@needs_corpus
def test_usage_of_children(ours: dict[str, Ours]) -> None:
    """Fault of theirs: two do not know child usage; the third fails at an aggregate that is partial.

    But for the usage the messages are the same.
    """
    assert theirs("prime-agent", "07")["open"].startswith("THROWS TypeError")
    found = ours["07"]
    source = next(CORPUS.glob("07-*.jsonl")).read_text().splitlines()
    stored = [line["message"] for line in map(json.loads, source) if line["type"] == "message"]
    assert found.messages != stored
    assert [m | {"usage": None} for m in found.messages] == [m | {"usage": None} for m in stored]
    for peer in ("pi-0.73.1", "pi-1.6.0"):
        assert_same(peer, "07", stored, found.context)


@needs_corpus
@pytest.mark.parametrize("peer", PEERS)
def test_two_records_on_one_line(ours: dict[str, Ours], peer: str) -> None:
    """Fault of theirs: of file 01 they lose both records of line 440, two messages of the context."""
    found = ours["01"]
    assert found.salvaged
    line = next(CORPUS.glob("01-*.jsonl")).read_bytes().splitlines()[439]
    middle = line.index(b"}{") + 1
    lost = [json.loads(record)["message"] for record in (line[:middle], line[middle:])]
    known = [message for message in found.messages if message not in lost]
    assert len(known) == len(found.messages) - 2
    known[0] = known[0] | {"retainedMessageCount": known[0]["retainedMessageCount"] - 2}
    assert_same(peer, "01", known, found.context)


@needs_corpus
@pytest.mark.parametrize("peer", PEERS)
def test_a_record_behind_a_torn_one(ours: dict[str, Ours], peer: str) -> None:
    """Fault of theirs: in file 55 they lose the record that was appended to a torn line, and with it
    everything above: one message is left. Ours is the whole conversation, and ends the same."""
    found = ours["55"]
    assert found.salvaged
    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
    assert_same(peer, "55", found.messages[-1:], found.context)


@needs_corpus
def test_files_that_they_destroy_or_do_not_end_with(ours: dict[str, Ours]) -> None:
    """Faults of theirs: a file without a header, or in the framed format of another system, is
    cut to an empty session by two of them; circles of parents (61) hang or crash all three."""
    assert [message["role"] for message in ours["59"].messages] == ["user", "assistant"]
    assert ours["63"].messages
    for number in ("59", "63"):
        for peer in ("pi-0.73.1", "prime-agent"):
            assert theirs(peer, number)["context"]["n"] == 0
            assert theirs(peer, number)["rewritten"]
        assert theirs("pi-1.6.0", number)["open"].startswith("THROWS")
    assert ours["61"].messages
    for peer in PEERS:
        assert theirs(peer, "61")["open"].startswith(("HANGS", "CRASHES"))


@needs_corpus
def test_every_file_is_accounted_for(ours: dict[str, Ours]) -> None:
    """Each corpus file stands in one of the tests above."""
    named = {*THE_SAME, *NO_MODEL, "01", "55", "59", "61", "63"}
    assert {file.name[:2] for file in CORPUS.glob("*.jsonl")} == named
    assert named == ours.keys()


# The real one

PACKAGE = "@mariozechner/pi-coding-agent"
VERSION = "0.73.1"

_SCRIPT = """
import { createHash } from "node:crypto";
import { copyFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildSessionContext, SessionManager } from "%s";
for (const file of process.argv.slice(2)) {
  const folder = mkdtempSync(join(tmpdir(), "peer-"));
  const copy = join(folder, "copy.jsonl");
  copyFileSync(file, copy);
  const entries = SessionManager.open(copy, folder).getEntries();
  const step = Math.ceil(entries.length / 40);
  const contexts = [];
  for (let at = entries.length - 1; at >= 0; at -= step) {
    const context = buildSessionContext(entries, entries[at].id);
    const digests = context.messages.map((message) =>
      createHash("sha256").update(JSON.stringify(message)).digest("hex"));
    contexts.push({ at, digests, level: context.thinkingLevel, model: context.model });
  }
  console.log(JSON.stringify(contexts));
}
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a script that runs the other system's own code."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not here")
    folder = tmp_path_factory.mktemp("peer")
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
    try:
        done = subprocess.run(
            [*install, f"{PACKAGE}@{VERSION}"],
            check=False,
            capture_output=True,
            timeout=200,
            text=True,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{PACKAGE} could not be had in 200 s")
    if done.returncode != 0:
        pytest.skip(f"{PACKAGE} could not be had: {done.stderr.strip()[-200:]}")
    (folder / "contexts.mjs").write_text(_SCRIPT % PACKAGE)
    yield folder


def run_peer(folder: Path, files: list[Path]) -> list[list[Json]]:
    """Per file, the contexts that it builds at the last entry and, evenly, at 39 or all others."""
    done = subprocess.run(
        ["node", "contexts.mjs", *files],
        check=False,
        cwd=folder,
        capture_output=True,
        timeout=200,
        env=os.environ | {"TMPDIR": str(folder), "PI_CODING_AGENT_DIR": str(folder / "agent")},
    )
    assert done.returncode == 0, done.stderr[-500:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_contexts(path: str, made: list[Json], where: object) -> int:
    """Message by message at those entries; returns how many were compared."""
    count = 0
    with SessionView.open(path) as view:
        ids = [entry.id for entry in view.iter_entries()]
        assert made[0]["at"] == len(ids) - 1, where
        for their in made:
            context = view.read_session_context(ids[their["at"]])
            ours = as_peer("pi-0.73.1", context.to_list())
            digests = [hashlib.sha256(js_text(message).encode()).hexdigest() for message in ours]
            assert digests == their["digests"], (where, their["at"], ours)
            assert context.thinking_level == their["level"], (where, their["at"])
            assert (model_of(context) or {}) == (their["model"] or {}), (where, their["at"])
            count += len(ours)
    return count


@LONG
@pytest.mark.slow
@needs_corpus
def test_against_the_peer_itself_on_the_corpus(peer: Path, tmp_path: Path) -> None:
    """At up to 40 entries of each file that it can read whole and without hanging."""
    files = [
        next(CORPUS.glob(f"{n}-*.jsonl")) for n in ("03", "04", "11", "33", "34", "35", "50", "51")
    ]
    compared = 0
    for file, made in zip(files, run_peer(peer, files), strict=True):
        path = import_session(file, home_dir=str(tmp_path)).path
        compared += assert_contexts(path, made, file.name)
    assert compared > 25_000


@LONG
@pytest.mark.slow
def test_against_the_peer_itself_on_random_trees(peer: Path, tmp_path: Path) -> None:
    """200 seeded trees with branches, compactions, labels, orphans, parents that come later."""
    trees = [random_tree(random.Random(seed)) for seed in range(200)]
    files = [write_jsonl(tmp_path / f"{seed}.jsonl", tree) for seed, tree in enumerate(trees)]
    compared = 0
    for seed, made in enumerate(run_peer(peer, files)):
        path = imported(tmp_path / f"our-{seed}", trees[seed])
        compared += assert_contexts(path, made, f"random_tree(random.Random({seed}))")
    assert compared > 10_000


def random_tree(pick: random.Random) -> list[Json]:
    """Entries of every kind that this peer knows."""
    count = pick.randrange(1, 60)
    entries = []
    for place in range(count):
        parent: Any = f"e{place - 1}" if place else None
        if pick.random() < 0.15:
            parent = pick.choice([None, "lost", *(f"e{n}" for n in range(place))])
        entry = {"id": f"e{place}", "parentId": parent}
        entry["timestamp"] = f"2026-01-01T00:00:{place:02d}.000Z"
        entries.append(_members(pick, place, count) | entry)
    if pick.random() < 0.3:
        pick.shuffle(entries)
    return entries


_KINDS = (
    *("user", "assistant", "assistant", "toolResult", "bashExecution", "custom_message", "label"),
    *("branch_summary", "compaction", "thinking_level_change", "model_change", "session_info"),
)


def _members(pick: random.Random, place: int, count: int) -> Json:
    kind = pick.choice(_KINDS)
    text = f"{kind} {place} \u00e9\U0001f332"
    if kind in ("user", "bashExecution", "assistant", "toolResult"):
        message: Json = {"role": kind, "content": text, "n": [0.1, 1e-7, 1.5e300, 10**15, -2.0]}
        if kind == "assistant":
            message |= {"provider": f"p{place}", "model": f"m{place}"}
            message["content"] = [{"type": "toolCall", "id": "c1"}]
        if kind == "toolResult":
            message["toolCallId"] = "c1"
        return {"type": "message", "message": message}
    other = pick.randrange(count)
    return {"type": kind} | {
        "custom_message": {"customType": "t", "content": text, "display": place % 2 == 0},
        "label": {"targetId": f"e{other}", "label": text},
        "branch_summary": {"fromId": "root", "summary": pick.choice(("", text))},
        "compaction": {"summary": text, "firstKeptEntryId": f"e{other}", "tokensBefore": place},
        "thinking_level_change": {"thinkingLevel": text},
        "model_change": {"provider": "x", "modelId": text},
        "session_info": {"name": text},
    }[kind]
