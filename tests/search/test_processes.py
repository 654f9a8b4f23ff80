"""Several processes feed, search, append and delete at once: no error, no wrong answer at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from treering.engine import Session, list_deleted
from treering.engine.home import Store
from treering.engine.search import search_sessions
from treering.index import files
from treering.index.search import SearchIndex
from treering.index.search_rows import FILE_NAME

WORKER = """
import random, sys, time
from treering.engine import Session, delete_session
from treering.engine.home import Store
from treering.engine.journal import disk
from treering.engine.search import search_sessions

disk._fsync = disk._fdatasync = lambda descriptor: None
home, who, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
store, drawn, mine = Store.at(home), random.Random(who), []
end, rounds = time.monotonic() + seconds, 0
while time.monotonic() < end or rounds < 3:
    rounds += 1
    name = f"{who}-{rounds}"
    with Session.create("/w", home_dir=home, session_id=name) as session:
        mark = "gone" if rounds % 3 == 0 else "kept"
        said = [f"common {mark}{who}x{rounds} {n}" for n in range(drawn.randrange(1, 30))]
        session.append_many(
            [{"type": "message", "message": {"role": "user", "content": text}} for text in said])
    page = search_sessions(store, f"{mark}{who}x{rounds}", limit=100)
    if "" not in dict(page.problems):  # another process fed, and this one searched what was there
        assert sorted(hit.snippet for hit in page.hits) == sorted(said), (page, said)
    if mark == "gone":
        delete_session(store.journal_path(name))
        page = search_sessions(store, f"{mark}{who}x{rounds}", limit=100)
        assert page.hits == (), page
"""


def test_processes_at_once(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    store = Store.at(home)
    with Session.create("/w", home_dir=home, session_id="first") as session:
        session.append({"type": "message", "message": {"role": "user", "content": "common"}})
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, home, who, "2"], stderr=subprocess.PIPE, text=True
        )
        for who in "abc"
    ]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], errors
    assert len(list_deleted(store)) >= 3
    names = [name for name in os.listdir(store.index) if name.startswith(FILE_NAME)]
    assert all(b"gone" not in Path(store.index, name).read_bytes() for name in names)
    path = files.current(store.index, FILE_NAME)
    assert path is not None
    with SearchIndex.open(path) as index:
        index.self_check()
    before = search_sessions(store, "common", limit=1000)
    assert before.problems == ()
    shutil.rmtree(store.index)
    anew = search_sessions(store, "common", limit=1000)
    assert sorted(anew.hits, key=repr) == sorted(before.hits, key=repr)
    assert len(anew.hits) > 10
