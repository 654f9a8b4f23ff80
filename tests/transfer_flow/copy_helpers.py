"""What the tests of copies share: sources, and what is in a copy."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from session_helpers import index_differences, view_answers

from treering.engine import Session, SessionView
from treering.engine.transfer.copying import CopyResult


def store(tmp_path: Path) -> str:
    return str(tmp_path / "home")


def raw_entry(entry_id: str, parent: str | None, kind: str = "custom", **more: Any) -> bytes:
    """Exact bytes with spellings that no encoder would choose."""
    head = f'{{ "type":"{kind}" ,"id":"{entry_id}",\t"parentId" : {json.dumps(parent)} ,'
    rest = {"timestamp": "2024-12-03T14:00:00.000Z", "customType": "t", **more}
    return (head + json.dumps(rest)[1:-1] + ',"n":1.50e0,"n":[1.0,1E3]}').encode()


def label(entry_id: str, parent: str | None, target: str, text: str | None, time: int) -> bytes:
    more: dict[str, Any] = {"targetId": target} | ({} if text is None else {"label": text})
    more["timestamp"] = f"2024-12-03T15:00:00.{time:03d}Z"
    return raw_entry(entry_id, parent, "label", **more)


def shown(path: str) -> dict[str, Any]:
    """What a copy holds: an owner, its index, and a view agree about it."""
    with Session.open(path) as session:
        assert session.report is not None
        assert session.report.case == "A"
        entries = list(session.iter_entries())
        found = {
            "raws": [entry.raw for entry in entries],
            "ids": [entry.id for entry in entries],
            "flags": [entry.flags for entry in entries],
            "path": [entry.id for entry in session.branch()],
            "leaf": session.leaf_id,
            "labels": {entry.id: text for entry, text in session.labels(limit=10_000)},
            "unresolved": [entry.id for entry in entries if entry.unresolved],
            "header": session.header,
            "provenance": session.provenance(),
        }
        assert not session.index_faults
    assert index_differences(path) == []
    assert view_answers(path)["leaf"] == found["leaf"]
    return found


def copied(result: CopyResult) -> dict[str, Any]:
    return shown(result.path)


_IMPORTER = """
import sys
from treering.engine import import_session
print("go", flush=True)
import_session(sys.argv[1], home_dir=sys.argv[2], cwd="/w", limits=None)
"""


def killed_imports(tmp_path: Path, path: str, entries: int) -> None:
    """SIGKILL an import at random, six times: no session, or the whole one; what is left is a
    hidden temporary file that the next creation sweeps once it is old."""
    draw = random.Random(3)
    sessions = Path(store(tmp_path), "sessions")

    def names() -> list[str]:
        return sorted(os.listdir(sessions)) if sessions.exists() else []

    visible: set[str] = set()
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", _IMPORTER, path, store(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(draw.random() * 0.7)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        now = {name for name in names() if not name.startswith(".")}
        assert visible <= now
        assert len(now - visible) <= 1
        for name in now - visible:
            with SessionView.open(sessions / name) as view:
                assert view.counts()["entries"] == entries
        visible = now
    for name in names():
        if name.startswith("."):
            os.utime(sessions / name, (time.time() - 7200, time.time() - 7200))
    Session.create(home_dir=store(tmp_path), cwd="/").close()
    assert [name for name in names() if name.startswith(".")] == []
