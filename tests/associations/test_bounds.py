"""What a session of 100,000 entries costs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from associations.helpers import assistant, event, header, json_frames, link, source
from support.build import make_store

from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.publish import NewJournal

ENTRIES = 100_000
PROCESSOR_SECONDS_MAX = 6.0
"""Three times what is promised of a machine that does nothing else."""
MEMORY_MIB_MAX = 150

_PROGRAM = """
import json, sys, time
from treering import Session, request_associations

path, owned = sys.argv[1], sys.argv[2] == "owned"
session = Session.open(path) if owned else None
if session is not None:
    session.counts()
start = time.process_time()
report = request_associations(path if session is None else session)
seconds = time.process_time() - start
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) / 1024  # ru_maxrss would begin with that of pytest
outputs = report["assistant_request_associations"]
matched = sum(one["recorded_request"] is not None for one in outputs)
print(json.dumps([seconds, peak, len(outputs), matched]))
"""


def entries() -> Iterator[dict[str, Any]]:
    """Turns of two request records, an answer with its link, and the answer of a tool."""
    yield header()
    text = [{"type": "text", "text": "lorem ipsum dolor sit amet " * 40}]
    for turn in range(ENTRIES // 4):
        own = source(leafId=f"{turn:08x}", sourceSequence=4 * turn)
        more = {"operationId": f"operation-{turn:026d}", "source": own}
        attempt = f"attempt-{turn:028d}"
        yield event("attempt_admitted", attempt, **more)
        yield event("attempt_settled", attempt, **more)
        answer = {"role": "assistant", "content": text}
        yield assistant(link(attempt, **more), entry_id=f"m{turn}", message=answer)
        result = {"role": "toolResult", "toolCallId": "c", "content": text}
        yield {"type": "message", "id": f"t{turn}", "parentId": f"m{turn}", "message": result}


def journal_at(top: Path) -> str:
    store = make_store(top)
    new = NewJournal(
        LOCAL_DISK, store.sessions, "s1", purpose="create", top=store.top, compression=False
    )
    new.add(
        Record({"session": 1, "request": 8}.get(entry["type"], 2), json.dumps(entry).encode())
        for entry in entries()
    )
    owner, _ = new.publish(store.path())
    owner.release()
    return store.path()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["framed", "ours", "owned"])
def test_100_000_entries(tmp_path: Path, form: str) -> None:
    """In bounded time and memory, with every answer matched."""
    path = str(tmp_path / "framed.jsonl")
    if form == "framed":
        Path(path).write_bytes(json_frames(list(entries())))
    else:
        path = journal_at(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, path, form],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    seconds, peak, outputs, matched = json.loads(done.stdout)
    print(f"{form}: {seconds:.2f} s of processor time, peak {peak:.0f} MiB")
    assert outputs == matched == ENTRIES // 4
    assert seconds < PROCESSOR_SECONDS_MAX
    assert peak < MEMORY_MIB_MAX
