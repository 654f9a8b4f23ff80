"""Errors, kills and limits in the real program: that the search finds what is planted, that its
rules know an early acknowledgement, and that the engine holds where it was sampled."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from treering.fuzz.syscalls import mounts, rules, tracing
from treering.fuzz.syscalls.command import command
from treering.fuzz.syscalls.flows import FLOWS, told
from treering.fuzz.syscalls.plants import PLANTS
from treering.fuzz.syscalls.runs import UnavailableError
from treering.fuzz.syscalls.tracing import Fault
from treering.tools.entry import main


def search(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Run the command; skips, with the reason, where the system does not let it."""
    code = main([*words, "--json"], command=command)
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    found = json.loads(out)
    if code == 3:
        pytest.skip("; ".join(found["skipped"]))
    return code, found


def holds(capfd: pytest.CaptureFixture[str], *words: str, least: int) -> dict[str, Any]:
    """Nothing is found, and enough was tried for that to mean something."""
    code, found = search(capfd, *words)
    assert found["failures"] == []
    assert code == 0
    assert found["runs"] >= least
    assert found["missed"] <= found["runs"] // 10
    return found


# Samples of the long run


@pytest.mark.slow
def test_errors_at_system_calls(capfd: pytest.CaptureFixture[str]) -> None:
    """Every flow, a sample of all errors at all of its calls, once and persistent."""
    found = holds(capfd, "--every", "1801", least=15)
    assert set(found["flows"]) == set(FLOWS)
    assert all(flow["calls"] > 30 for flow in found["flows"].values())


@pytest.mark.slow
def test_kills_at_system_calls(capfd: pytest.CaptureFixture[str]) -> None:
    """SIGKILL just before a system call: the store opens, whole or as before."""
    flows = [f"--flow={n}" for n in ("new", "import", "repair", "appends", "opens-torn")]
    holds(capfd, "--kill", "--every", "53", *flows, least=20)


@pytest.mark.slow
def test_limits_of_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    """Real short writes (RLIMIT_FSIZE) and no descriptors left (RLIMIT_NOFILE)."""
    flows = [f"--flow={name}" for name in ("appends", "import", "repair", "opens-torn")]
    holds(capfd, "--limits", "--every", "151", *flows, least=25)


def test_the_real_executable(capfd: pytest.CaptureFixture[str]) -> None:
    """From a cold start, as users run it: the errors that decide about one append."""
    code, found = search(
        capfd, "--cold", "--flow", "name", "--call", "fdatasync", "--error", "EIO", "--once"
    )
    assert (code, found["failures"]) == (0, [])
    assert (
        found["flows"]["name"]["codes"].get("3") == 1
    )  # one of them is told, the others harm nothing


@pytest.mark.parametrize("name", sorted(set(mounts.CHECKS) - {"full", "read-only"}))
def test_file_systems(tmp_path: Path, name: str) -> None:
    """No space for a quarantine; folders that are read-only; a whole store that becomes so. (The
    full one and the read-only one are rows of the error table.)"""
    try:
        assert mounts.check(name, str(tmp_path / name)) == []
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "full-quarantine"])
def test_F08_a_full_ext4(tmp_path: Path, name: str) -> None:
    """On a loop device: its blocks are given out late, so a sync can be what finds no space."""
    try:
        assert mounts.check(name, str(tmp_path / name), "ext4") == []
    except UnavailableError as error:
        pytest.skip(str(error))


# What was found once


@pytest.mark.parametrize(
    "words",
    [
        ["--flow=new", "--call=close", "--error=EIO", "--persistent", "--every=4"],
        ["--flow=import", "--call=close", "--error=EIO", "--persistent"],
        ["--flow=export", "--call=fsync", "--error=EDQUOT"],
        ["--flow=repair", "--call=fsync", "--error=EDQUOT", "--once"],
        ["--flow=name", "--call=pread64", "--error=EIO", "--persistent", "--every=3"],
        ["--flow=readmit", "--call=pread64", "--error=EIO", "--once", "--every=2"],
        ["--flow=list", "--call=pread64", "--error=EIO", "--once"],
        ["--flow=recovers", "--call=fdatasync", "--error=EDQUOT", "--once"],
    ],
    ids=lambda words: " ".join(words[:2]).replace("--", ""),
)
@pytest.mark.slow
def test_what_is_done_is_not_called_failed(
    capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """An error of close, of a sync of the folder, of a look behind an acknowledgement: each once
    said that something had failed which was done, or that a session is damaged which is not."""
    holds(capfd, *words, least=2)


# The search itself


PLANTED = [
    ("sync-skipped", "appends", ["--call=fdatasync", "--at=1", "--error=EINTR"]),
    ("failed-sync-ignored", "appends", ["--call=fdatasync", "--at=1", "--error=EIO"]),
    ("failed-sync-repeated", "appends", ["--call=fdatasync", "--at=1", "--error=EIO"]),
    ("failed-write-left-behind", "appends", ["--call=fsize", "--at=100"]),
    (
        "cut-of-failed-write-not-synced",
        "appends",
        ["--call=pwrite64", "--on=good.jsonl", "--error=ENOSPC", "--once"],
    ),
    ("name-not-synced", "creates", ["--call=close", "--at=1", "--error=EIO"]),
    ("quarantine-not-synced", "opens-torn", ["--call=fdatasync", "--at=1", "--error=EINTR"]),
    ("folder-sync-ignored", "new", ["--call=fsync", "--error=EIO", "--once"]),
    (
        "write-error-ignored",
        "appends",
        ["--call=pwrite64", "--on=good.jsonl", "--error=EIO", "--once"],
    ),
    ("unknown-told-as-refused", "appends", ["--call=fdatasync", "--at=1", "--error=EIO"]),
    ("temporary-file-left", "new", ["--call=fdatasync", "--at=1", "--error=EIO"]),
    ("tombstone-not-synced", "delete", ["--call=rename", "--at=1", "--error=EROFS"]),
    ("close-error-told", "new", ["--call=close", "--error=EIO", "--persistent", "--every=5"]),
]


@pytest.mark.parametrize(("plant", "flow", "words"), PLANTED, ids=[p[0] for p in PLANTED])
def test_planted_faults_are_found(
    capfd: pytest.CaptureFixture[str], plant: str, flow: str, words: list[str]
) -> None:
    """With the fault in the engine it is found, and the line that is printed shows it again."""
    assert plant in PLANTS
    code, found = search(capfd, "--flow", flow, "--plant", plant, *words)
    assert code == 1
    assert found["failures"]
    if plant == "unknown-told-as-refused":
        again = shlex.split(found["failures"][-1]["again"])
        assert again[:4] == ["python", "-m", "treering.fuzz", "syscalls"]
        code, found = search(capfd, *again[4:])
        assert code == 1
        assert found["failures"]


def test_without_strace_it_is_skipped_with_the_reason(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "program", lambda: None)
    assert main(["--flow", "new"], command=command) == 3
    out, _ = capfd.readouterr()
    assert "skipped: new: strace is not installed" in out


@pytest.mark.parametrize(
    "words", [["--error", "EWHAT"], ["--flow", "none"], ["--cold", "--limits"], ["--every", "0"]]
)
def test_usage(capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(words, command=command) == 2
    assert "error: " in capfd.readouterr().err


# The log


LOG = """\
10 openat(AT_FDCWD</x>, "/r/home/a", O_RDONLY|O_CLOEXEC) = 3</r/home/a>
10 pread64(3</r/home/a>, "x) = 1\\"/r/b", 16, 0) = 16
10 fsync(3</r/home/a> <unfinished ...>
11 fsync(4</elsewhere>) = 0
10 <... fsync resumed>) = -1 EIO (Input/output error) (INJECTED)
10 write(1<pipe:[1]>, "/r/home/a\\n", 10) = 10
10 pwrite64(3</r/home/a>(deleted), "y", 1, 7) = -1 EINTR (Interrupted system call) (INJECTED)
10 fsync(3</r/home/a>) = ?
10 +++ killed by SIGKILL +++
"""


def test_a_log_is_read() -> None:
    calls = tracing.parse(LOG)
    assert [(c.thread, c.name, c.number, c.result, c.injected) for c in calls] == [
        (0, "openat", 1, 3, False),
        (0, "pread64", 1, 16, False),
        (0, "fsync", 1, -1, True),
        (1, "fsync", 1, 0, False),
        (0, "write", 1, 10, False),
        (0, "pwrite64", 1, -1, True),
        (0, "fsync", 2, None, False),
    ]
    assert [c.interrupted for c in calls] == [False] * 5 + [True, False]
    points = tracing.store_calls(calls, "/r")
    assert {point.path for point in points} == {"/r/home/a"}
    assert [(point.fault, point.when) for point in points] == [
        (Fault("openat", 1, ""), 1),
        (Fault("pread64", 1, ""), 1),
        (Fault("fsync", 1, ""), 1),
        (Fault("pwrite64", 1, ""), 1),
        (Fault("fsync", 2, ""), 2),
    ]


def test_what_strace_is_told() -> None:
    assert Fault("fsync", 2, "EIO").spec(5) == "inject=fsync:error=EIO:when=5"
    assert Fault("fsync", 2, "EIO", persistent=True).spec(5) == "inject=fsync:error=EIO:when=5+"
    assert Fault("fsync", 2, "EINTR", persistent=True).spec(5).endswith("when=5..14")
    assert Fault("fsync", 2, "KILL").spec(5) == "inject=fsync:signal=KILL:when=5"


def write(offset: int, size: int, data: str = "frame", path: str = "/s/a.jsonl") -> str:
    return f'1 pwrite64(3<{path}>, "{data}", {size}, {offset}) = {size}'


def sync(result: str = "0", path: str = "/s/a.jsonl") -> str:
    return f"1 fdatasync(3<{path}>) = {result}"


def say(line: str) -> str:
    return f'1 write(1<pipe:[1]>, "{line}\\n", 9) = 9'


FAILED = "-1 EIO (Input/output error) (INJECTED)"
CLOSING = "\\\\367RG\\\\35\\\\5\\\\0".replace("\\\\", "\\")
LINKED = '1 linkat(AT_FDCWD</x>, "/s/.a.00.new", AT_FDCWD</x>, "/s/a.jsonl", 0) = 0'
CUT = "1 ftruncate(3</s/a.jsonl>, 200) = 0"
BEGUN = '1 rename("/session-trash/.a.00.new", "/session-trash/.a.deleting") = 0'
BEGUN_DURABLE = "1 fsync(4</session-trash>) = 0"
TRASHED = '1 link("/s/a.jsonl", "/session-trash/a/journal.jsonl") = 0'
TRASHED_DURABLE = "1 fsync(4</session-trash/a>) = 0"
GONE = '1 unlink("/s/a.jsonl") = 0'
QUARANTINED = '1 openat(AT_FDCWD</x>, "/q/quarantine/1-0.tail", O_RDWR|O_CREAT|O_EXCL, 0600) = 5'


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([write(0, 100), sync(), say("ACK one a")], 0),
        ([write(0, 100), say("ACK one a"), sync()], 1),
        ([sync(), write(0, 100), say("ACK one a")], 1),
        # A later success proves nothing; written again it does, in pieces, too.
        ([write(0, 100), sync(FAILED), sync(), say("ACK one a")], 1),
        ([write(0, 100), sync(FAILED), write(0, 60), write(60, 40), sync(), say("ACK one a")], 0),
        ([write(0, 100), sync(FAILED), write(0, 60), sync(), say("ACK one a")], 1),
        ([write(0, 100), sync("-1 EINTR (x) (INJECTED)"), sync(), say("ACK one a")], 0),
        # Refused: the cut has to be durable.
        ([write(0, 300), CUT, say("FAIL one a: StorageFull: x")], 2),
        ([write(200, 300), CUT, sync(), say("FAIL one a: StorageFull: x")], 0),
        ([write(200, 300), CUT, say("FAIL one a: StorageFull: x")], 1),
        ([write(200, 300), CUT, say("FAIL one a: OutcomeUnknown: x")], 0),
        # The clean end may be lost.
        ([write(0, 9), sync(), write(9, 9, CLOSING), sync(FAILED), say("ACK close")], 0),
        ([write(0, 9), sync(FAILED), write(9, 9, CLOSING), sync(), say("ACK close")], 1),
        # Names.
        ([LINKED, say("ACK create")], 1),
        ([LINKED, "1 fsync(4</s>) = 0", say("ACK create")], 0),
        ([LINKED, f"1 fsync(4</s>) = {FAILED}", "1 fsync(4</s>) = 0", say("ACK create")], 1),
        ([write(0, 9, path="/s/.a.00.new"), LINKED], 1),
        # One file under two names: its descriptor keeps the first.
        (
            [
                LINKED,
                "1 fsync(4</s>) = 0",
                write(0, 9, path="/s/.a.00.new"),
                sync(FAILED),
                write(0, 9),
                sync(),
                say("ACK recover"),
            ],
            0,
        ),
        # Quarantine.
        ([QUARANTINED, CUT], 1),
        ([QUARANTINED, "1 fsync(4</q/quarantine>) = 0", CUT], 0),
        ([write(0, 9, path="/q/quarantine/1-0.tail"), CUT], 1),
        # A deletion: the tombstone first, then the new name, then the old one.
        ([BEGUN, BEGUN_DURABLE, TRASHED, TRASHED_DURABLE, GONE], 0),
        ([BEGUN, TRASHED, BEGUN_DURABLE, TRASHED_DURABLE, GONE], 1),
        ([BEGUN, BEGUN_DURABLE, TRASHED, GONE, TRASHED_DURABLE], 1),
        ([BEGUN, BEGUN_DURABLE, TRASHED, TRASHED_DURABLE, GONE, say("ACK close")], 1),
        ([write(0, 9, path="/session-trash/.a.00.new"), BEGUN], 1),
        # In durability="os" only a sync and the end promise anything.
        ([say("ACK open-os"), write(0, 9), say("ACK one a"), sync(), say("ACK sync")], 0),
        ([say("ACK open-os"), write(0, 9), say("ACK one a"), say("ACK sync"), sync()], 1),
    ],
)
def test_early_acknowledgements_are_known(lines: list[str], wrong: int) -> None:
    """Whatever is told before it is durable breaks a rule, and nothing else does."""
    calls = tracing.parse("\n".join(lines))
    assert len(rules.lies(calls, "/s", status=0, script="appends")) == wrong


def test_a_command_tells_by_its_exit_code() -> None:
    calls = tracing.parse(write(0, 100))
    assert rules.lies(calls, "/s", status=0, script=None)
    assert not rules.lies(calls, "/s", status=3, script=None)


def test_the_lines_of_an_owner() -> None:
    out = (
        b"BEGIN one a1\nACK one a1\nBEGIN many m1 m2 m3\nFAIL many m1 m2 m3: StorageFull: no\n"
        b"BEGIN batch b1 b2\nFAIL batch b1 b2: OutcomeUnknown: no\nFOUND b1\nBEGIN one a2\n"
    )
    found = told(out, killed=True)
    assert found.acknowledged == ["a1", "b1"]
    assert found.refused == ["m1", "m2", "m3", "b2"]
    assert found.unknown == ["a2"]
    assert found.leaf is None
