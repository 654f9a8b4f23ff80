"""The real command, the whole picture of a store, and one journal with everything in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import stores

from treering.engine import Session, import_session
from treering.fuzz import oracle

ENTRY, ACTIVATE, LEAF, REQUEST, PROVENANCE, DICTIONARY, SESSION = 2, 4, 6, 8, 11, 7, 1
STAGED, RETAINED = 0x10, 0x01

INSTALLED = Path(sys.executable).with_name("treering")
COMMAND = [str(INSTALLED)] if INSTALLED.exists() else [sys.executable, "-m", "treering.tools"]
"""What users type; from the sources when nothing is installed beside this interpreter."""

STRACE = shutil.which("strace")


def command(*words: str | Path, prefix: list[str] | None = None, **more: Any) -> Any:
    """Run the real command in a process of its own."""
    more.setdefault("timeout", 60)
    return subprocess.run(
        [*(prefix or ()), *COMMAND, *map(str, words)], capture_output=True, check=False, **more
    )


def refused(done: Any, *codes: int, says: str = "") -> str:
    """It ended with one of the codes and exactly one line on standard error; returns that line."""
    stderr = done.stderr.decode()
    assert done.returncode in codes, (done.args, done.returncode, stderr, done.stdout[:500])
    assert stderr.startswith("treering: error: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr
    assert "internal error" not in stderr, stderr
    assert says in stderr, (says, stderr)
    return stderr


def picture(folder: Path) -> stores.Picture:
    """Every file and folder below; not the mtime of folders, see there: equal is untouched."""
    return stores.picture(folder, folder_times=False)


def traced(log: Path, options: list[str], arguments: list[str], **more: Any) -> Any:
    """Run something under strace; skips visibly where that is impossible."""
    if STRACE is None:
        pytest.skip("no strace")
    done = subprocess.run(
        [STRACE, "-f", "-o", str(log), *options, *arguments],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more.pop("env", {})},
        **more,
    )
    if b"ptrace" in done.stderr.lower() or not log.exists():
        pytest.skip("strace is not allowed here")
    return done


def custom(entry_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": "bar", "id": entry_id, **more}


SOURCE = stores.PLAIN
"""A version 3 file; its second entry is long enough to be stored compressed."""


class Journal(NamedTuple):
    """A journal, its bytes, its frames as an independent reader sees them, and its entries."""

    path: Path
    data: bytes
    frames: list[oracle.Found]
    ids: dict[int, str]
    """Sequence -> id of every ENTRY and REQUEST."""
    published: int

    @property
    def staged(self) -> set[int]:
        return {f.sequence for f in self.frames if self.data[f.offset + 6] & STAGED}


def id_in(data: bytes, frame: oracle.Found) -> str | None:
    """The id of an entry's frame, compressed or not."""
    import zstandard

    payload = data[frame.offset + 44 : frame.end - 16]
    if data[frame.offset + 5]:
        payload = zstandard.ZstdDecompressor().decompress(payload)
    return json.loads(payload).get("id")


def journal_of(path: Path) -> Journal:
    """Read a journal with the oracle alone."""
    data = path.read_bytes()
    frames = oracle.judge(data).frames
    ids = {f.sequence: str(id_in(data, f)) for f in frames if f.kind in (ENTRY, REQUEST)}
    return Journal(path, data, frames, ids, int.from_bytes(data[44:52], "little"))


def realistic(tmp_path: Path) -> Journal:
    """An import, then three epochs more: appends, a compressed entry, a batch, a label, a request,
    a moved position; closed. Without an index."""
    source = tmp_path / "source.jsonl"
    source.write_bytes(SOURCE)
    path = import_session(str(source), home_dir=str(tmp_path / "home"), cwd="/w").path
    with Session.open(path) as session:
        session.append(custom("a1"))
        session.append(custom("a2", data="rings of trees " * 8))
        session.append({"type": "request", "id": "q1", "request": {"n": 1}})
    with Session.open(path) as session:
        with session.batch() as batch:
            batch.append(custom("b1"))
            batch.append(custom("b2"))
        session.set_label("i1", "first")
        session.branch_to("a1")
    with Session.open(path) as session:
        session.append(custom("c1"))
    target = tmp_path / "home" / "sessions" / "s1.jsonl"
    Path(path).rename(target)
    shutil.rmtree(tmp_path / "home" / "session-index", ignore_errors=True)
    shutil.rmtree(tmp_path / "home" / "session-artifacts", ignore_errors=True)
    return journal_of(target)
