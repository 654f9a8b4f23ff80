"""A store with a session in every state: clean, damaged in every way, foreign, left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.build import BLOB, ENTRY, ENVELOPE, STAGED, Maker, compact, file_header
from support.damage import flip
from treering.engine import Session, import_session, repair
from treering.engine.journal import disk

PLAIN = b"".join(
    json.dumps(value).encode() + b"\n"
    for value in (
        {"type": "session", "version": 3, "id": "src", "cwd": "/p"},
        {"type": "message", "id": "i1", "parentId": None,
         "message": {"role": "user", "content": "one"}},
        {"type": "message", "id": "i2", "parentId": "i1",
         "message": {"role": "user", "content": "tree rings " * 60}},
    )
)  # fmt: skip
"""A version 3 file; its second entry is long enough to be stored compressed."""

DRY_RUNS = [
    ["repair", "{}", "--dry-run", *more]
    for more in (
        [],
        ["--json"],
        *(["--mode", mode] for mode in ("strict", "tail", "prefix", "salvage")),
        ["--mode", "salvage", "--json"],
        ["--accept-loss"],
        ["--keep-unknown"],
        ["--journal-id", "00" * 16],
        ["--readmit"],
        ["--readmit", "--json"],
    )
]
"""Every way of only asking what a repair would do; ``{}`` is the session."""

_KILLED = (
    "import os, sys\nfrom treering.engine import Session\n"
    "s = Session.open(sys.argv[1]); s.append({'type': 'custom'}); s.counts(); os._exit(9)\n"
)


Picture = dict[str, tuple[int, int, int, int, bytes]]


def picture(folder: Path, *, folder_times: bool = True) -> Picture:
    """Every file and folder below, with mode, inode, size, mtime and content: equal is untouched.

    Whoever owns a session leaves a note for a moment: ``folder_times=False`` overlooks that.
    """
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns if folder_times or not path.is_dir() else 0,
            path.read_bytes() if plain else b"",
        )
    return found


def without_catalogue(found: Picture) -> Picture:
    """The same but for the catalogue, which lists bring up to date, and its folder's times."""
    kept = {name: value for name, value in found.items() if "/catalogue_." not in name}
    for name, value in kept.items():
        if name.endswith("session-index"):
            kept[name] = (*value[:2], 0, 0, value[4])
    return kept


def said(text: str) -> dict[str, Any]:
    """An entry that says something."""
    content = [{"type": "text", "text": text}]
    return {"type": "message", "message": {"role": "user", "content": content}}


def add_session(home: Path, name: str) -> Path:
    """A closed session of three entries, with its index."""
    with Session.create("/w", home_dir=str(home), session_id=name) as session:
        for text in ("one", "two-two", "three"):
            session.append(said(text))
        return Path(session.path)


def flip_byte(path: Path, at: int) -> None:
    """Flip one bit of the byte at ``at``."""
    path.write_bytes(flip(path.read_bytes(), at * 8))


def damaged_store(home: Path) -> Path:
    """Make the store; returns ``home``. The names say the state."""
    with without_syncs():
        return _damaged_store(home)


@contextmanager
def without_syncs() -> Iterator[None]:
    """Nothing that is made for a test has to survive a power failure."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "_fsync", lambda descriptor: None)
        patched.setattr(disk, "_fdatasync", lambda descriptor: None)
        yield


def _damaged_store(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    (home / "source").write_bytes(PLAIN)
    import_session(str(home / "source"), home_dir=str(home), cwd="/w")
    names = (
        "clean torn torn-whole b c f f-front no-index behind bad-index repaired wrong-index d-gap"
    )
    paths = {name: add_session(home, name) for name in names.split()}
    _damage_bytes(home, paths)
    _damage_indexes(home, paths)
    _add_odd_journals(home / "sessions")
    _add_strangers(home)
    return home


def _damage_bytes(home: Path, paths: dict[str, Path]) -> None:
    with paths["torn"].open("ab") as file:
        file.write(b"torn")
    flip_byte(paths["b"], 300)
    flip_byte(paths["f"], 30)
    paths["f-front"].write_bytes(paths["f-front"].read_bytes()[140:])
    for name in ("c", "repaired"):
        flip_byte(paths[name], paths[name].read_bytes().index(b"two-two"))
    repair(paths["repaired"])
    old = paths["clean"].read_bytes()
    rolled_back = home / "sessions" / "d.jsonl"
    rolled_back.write_bytes(old)
    with Session.open(rolled_back) as session:
        session.append(said("later"))
    rolled_back.write_bytes(old)
    # A last batch that is damaged at its start, without EPOCH_CLOSE, which would prove it.
    for name in ("torn-whole", "d-gap"):
        size = paths[name].stat().st_size
        with Session.open(paths[name]) as session:
            beside = said("x2") | {"parentId": session.leaf_id}  # not below the one that is lost
            session.append_many([said("x1"), beside, said("x3")])
            data = bytearray(paths[name].read_bytes())
        first = data.index(b"x1", size)
        data[first] ^= 1
        paths[name].write_bytes(data)
    for index in (home / "session-index").glob("torn-whole.*"):
        index.unlink()  # with it, its watermark would prove that they were acknowledged


def _damage_indexes(home: Path, paths: dict[str, Path]) -> None:
    from treering.index import schema

    folder = home / "session-index"
    for index in folder.glob("no-index.*"):
        index.unlink()
    (folder / "bad-index.1.sqlite3").write_bytes(b"garbage")
    (folder / "c.1.sqlite3").write_bytes(b"garbage")
    (wrong,) = folder.glob("wrong-index.*.sqlite3")
    db = schema.connect(str(wrong), readonly=False)
    db.execute("UPDATE entry SET depth = depth + 1")
    db.close()
    subprocess.run([sys.executable, "-c", _KILLED, paths["behind"]], check=False)
    assert list(folder.glob("behind.*-wal"))
    note = {"pid": 2**22 + 1, "host": "elsewhere", "boot": "b", "started": 1, "since": 1}
    (folder / "clean.owner.json").write_text(json.dumps(note))


def _started() -> Maker:
    maker = Maker().started()
    maker.open()
    maker.entry("base")
    return maker


def _put(sessions: Path, name: str, data: bytes) -> None:
    (sessions / f"{name}.jsonl").write_bytes(data)


def _add_odd_journals(sessions: Path) -> None:
    """Made by hand: states that the engine does not write."""
    maker = _started()
    maker.frame(ENTRY, b"not zstd", codec=1, raw=100)
    maker.frame(BLOB, b"no zstd either", codec=1, raw=100)
    maker.entry("abandoned", flags=STAGED)
    maker.close()
    _put(sessions, "undecodable", maker.whole())
    maker = _started()
    maker.frame(ENTRY, b'{"a":NaN}')
    maker.close()
    _put(sessions, "not-json", maker.whole())
    maker = Maker()
    maker.open()
    maker.frame(1, compact({"type": "session"}))
    maker.close()
    _put(sessions, "session-header", maker.publish().whole())
    maker = Maker()
    maker.open()
    maker.frame(1, b"not zstd", codec=1, raw=100)
    maker.entry("a")
    maker.close()
    _put(sessions, "header-undecodable", maker.publish().whole())
    _put(sessions, "unproven", _started().whole())
    maker = _started()
    maker.frame(0x55, b"{}")
    maker.close()
    _put(sessions, "not-understood", maker.whole())
    _put(sessions, "not-understood-torn", maker.whole() + b"torn")
    maker = _started()
    staged = maker.batch("c", "d")
    maker.close()
    data = bytearray(maker.whole())
    data[staged[-1].end + 50] ^= 1
    _put(sessions, "activation-unknown", bytes(data))
    maker = Maker().started()
    _put(sessions, "newer", file_header(published=maker.end, version=2) + maker.body)
    _put(sessions, "no-id", maker.whole()[:60])
    maker.open()
    bad = maker.entry("bad")
    maker.sync()
    for number in range(600):
        left = (600 - number - 1) * ENVELOPE
        maker.frame(ENTRY, b"", sequence=50 + number, stored=left)
    _put(sessions, "limit", flip(maker.whole(), bad.offset * 8))


def _add_strangers(home: Path) -> None:
    sessions = home / "sessions"
    _put(sessions, "plain", PLAIN)
    _put(sessions, "empty", b"")
    _put(sessions, "zeros", bytes(500))
    _put(sessions, "odd name", (sessions / "clean.jsonl").read_bytes())
    (sessions / "folder.jsonl").mkdir()
    os.mkfifo(sessions / "fifo.jsonl")
    (sessions / "nowhere.jsonl").symlink_to("not-there")
    (sessions / ".clean.0123abcd.new").write_bytes(b"unfinished")
    (sessions / ".gone.0123abcd.new").write_bytes(b"unfinished")
