"""Real processes that die at any moment: what was acknowledged is there, whole and in order."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kill_child import groups_of, raw_of
from session_helpers import drop_index, index_differences, new, view_answers

from treering.engine import Session


class Killer:
    """A forking server and what its children said."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._buffer = b""

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()

    def _line(self, timeout_s: float) -> str | None:
        assert self.process.stdout is not None
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            if not ready:
                return None
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the server died"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def run(self, request: dict[str, Any], kill_after_s: float | None) -> tuple[int, str | None]:
        """(acknowledged groups, the leaf that the child opened with); the child is dead."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        pid, acks, leaf, opened = 0, 0, None, False
        deadline: float | None = None
        while True:
            wait = 60.0 if deadline is None else max(deadline - time.monotonic(), 0)
            line = self._line(wait)
            if line is None:
                assert deadline is not None, "the child hangs"
                os.kill(pid, signal.SIGKILL)
                deadline = None
                continue
            word, _, rest = line.partition(" ")
            if word == "PID":
                pid = int(rest)
            elif word == "OPEN":
                leaf, opened = json.loads(rest), True
                if kill_after_s is not None:
                    deadline = time.monotonic() + kill_after_s
            elif word == "ACK":
                assert int(rest) == acks
                acks += 1
            elif word == "DEAD":
                assert opened, "the child died before it had opened the session"
                return acks, leaf
            else:
                assert word != "ERROR" or request.get("end") == "exception", line


@pytest.fixture
def killer() -> Iterator[Killer]:
    made = Killer()
    yield made
    made.close()


class Ledger:
    """What must be in the session."""

    def __init__(self, seed: int, hows: list[str], large: int) -> None:
        self.seed, self.hows, self.large = seed, hows, large
        self.raws: list[bytes] = []
        self.after = 0
        self.extra_frames = 0

    def check(self, session: Session, round_number: int, acks: int, leaf: str | None) -> None:
        """The new entries are the acknowledged groups, and at most the one that was under way."""
        new_entries = list(session.iter_entries(after=self.after))
        found = [entry.raw for entry in new_entries]
        expected: list[bytes] = []
        number, at_end, how = 0, 0, ""
        for at, group in enumerate(groups_of(self.seed, round_number, self.hows, self.large)):
            if at == acks:
                at_end = len(expected)
            if at > acks:
                break
            how = group.how
            for text in group.texts:
                expected.append(raw_of(round_number, number, leaf, text))
                leaf = f"r{round_number}-{number}"
                number += 1
        assert found[:at_end] == expected[:at_end], "an acknowledged entry is missing or changed"
        extra = found[at_end:]
        assert extra == expected[at_end : at_end + len(extra)], "an entry that nobody appended"
        under_way = len(expected) - at_end
        if how == "batch":
            assert len(extra) in (0, under_way), "half a batch is visible"
        self.extra_frames += len(extra)
        self.raws += found
        if new_entries:
            self.after = new_entries[-1].sequence

    def append_whole(self, session: Session, round_number: int) -> None:
        """The next append is whole."""
        raw = raw_of(round_number, 900_000, session.leaf_id, "after")
        session.append(raw)
        self.raws.append(raw)
        entry = session.read(f"r{round_number}-900000")
        assert entry.raw == raw
        self.after = entry.sequence


def rounds(
    killer: Killer,
    session: Session,
    *,
    seed: int,
    count: int,
    hows: list[str],
    durability: str = "full",
    large: int = 20_000,
    delete_index: bool = True,
    within_s: float = 0.03,
    **more: Any,
) -> Ledger:
    """Kill ``count`` children at random moments, and check after each."""
    draw = random.Random(seed)
    ledger = Ledger(seed, hows, large)
    path = session.path
    session.close()
    for number in range(count):
        request = {
            "path": path,
            "seed": seed,
            "round": number,
            "hows": hows,
            "large": large,
            "durability": durability,
            **more,
        }
        acks, leaf = killer.run(request, draw.random() * within_s)
        if delete_index and draw.random() < 0.2:
            drop_index(path)
        with Session.open(path) as again:
            assert again.report is not None
            assert again.report.case in ("A", "E")
            ledger.check(again, number, acks, leaf)
            if draw.random() < 0.5:
                ledger.append_whole(again, number)
        if draw.random() < 0.1:
            assert index_differences(path) == [], f"round {number}: the index is not the journal"
    with Session.open(path) as again:
        assert [entry.raw for entry in again.iter_entries()] == ledger.raws
    assert index_differences(path) == []
    return ledger


def test_F109_kills_at_random_moments_lose_nothing_acknowledged(
    tmp_path: Path, killer: Killer
) -> None:
    """Over 200 SIGKILLs under all ways of appending: every acknowledged entry is there, byte for
    byte, in order; batches are whole or absent; the next append is whole; the index equals a
    rebuild, with and without its folder deleted in between."""
    ledger = rounds(
        killer, new(tmp_path), seed=1, count=200, hows=["one", "many", "batch", "batch"]
    )
    assert len(ledger.raws) > 300


def test_kills_with_durability_os(tmp_path: Path, killer: Killer) -> None:
    """SIGKILL takes nothing that was written: in mode "os" too all that was acknowledged is
    there."""
    rounds(
        killer,
        new(tmp_path, durability="os"),
        seed=2,
        count=40,
        hows=["one", "many", "batch"],
        durability="os",
        within_s=0.02,
    )


def test_kills_in_large_batches(tmp_path: Path, killer: Killer) -> None:
    """A batch of several writes (over 8 MiB) is whole or absent, wherever the kill comes."""
    rounds(
        killer,
        new(tmp_path),
        seed=3,
        count=12,
        hows=["batch"],
        large=1_500_000,
        within_s=0.25,
        delete_index=False,
    )


def test_kill_leaves_no_lock_although_a_forked_child_lives(tmp_path: Path, killer: Killer) -> None:
    """A forked child that outlives the owner does not keep the lock (F73, F119): a new owner gets
    it within a second."""
    session = new(tmp_path)
    path = session.path
    session.close()
    for number in range(4):
        request = {
            "path": path,
            "seed": 4,
            "round": number,
            "hows": ["one"],
            "large": 10,
            "grandchild": 4,
        }
        killer.run(request, 0.01)
        start = time.monotonic()
        with Session.open(path) as again:
            assert time.monotonic() - start < 1
            again.append({"type": "custom", "customType": "after"})


@pytest.mark.parametrize("end", ["os._exit", "exception", "SIGHUP", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("durability", ["full", "os"])
def test_F72_ends_without_close(tmp_path: Path, killer: Killer, end: str, durability: str) -> None:
    """100 entries are acknowledged and the process ends in some way at once: 100 are on disk."""
    session = new(tmp_path, durability=durability)
    path = session.path
    session.close()
    request = {
        "path": path,
        "seed": 5,
        "round": 0,
        "hows": ["one"],
        "large": 100,
        "stop": 100,
        "end": end,
        "durability": durability,
        "lag": 1.0,
    }
    acks, _ = killer.run(request, None)
    assert acks == 100
    assert len(view_answers(path)["entries"]) == 100
    with Session.open(path) as again:
        assert len(list(again.iter_entries())) == 100
        again.append({"type": "custom", "customType": "after"})


@pytest.mark.slow
def test_kills_long(tmp_path: Path, killer: Killer) -> None:
    """The same for TREERING_KILLS rounds (default 300), with another seed each time it is asked."""
    count = int(os.environ.get("TREERING_KILLS", "300"))
    seed = int(os.environ.get("TREERING_SEED", "77"))
    rounds(killer, new(tmp_path), seed=seed, count=count, hows=["one", "many", "batch"])
