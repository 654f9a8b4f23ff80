"""Commands that only look change no byte, no time stamp and no name of the store."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tools_helpers import SAMPLES, fine, imported, new_session, picture, run

LOOKING: list[list[str]] = [
    ["session", "list"],
    ["session", "list", "--json"],
    ["session", "show"],
    ["session", "show", "--raw"],
    ["session", "tree"],
    ["session", "info"],
    ["session", "export"],
    ["resume"],
    ["dump"],
    ["fsck"],
    ["fsck", "--index"],
    ["repair", "--dry-run"],
    ["repair", "--readmit", "--dry-run"],
]


@pytest.fixture
def store(home: Path) -> Path:
    """Clean, imported, torn, damaged (B, C, D, F) and foreign sessions, with and without index."""
    imported(home, SAMPLES / "tree-rings.jsonl")
    for name in ("clean", "torn", "b", "c", "f", "no-index"):
        new_session(home, "one", "two-two", "three", session_id=name)
    folder = home / "sessions"
    with (folder / "torn.jsonl").open("ab") as file:
        file.write(b"torn")
    for name, at in (("b", 300), ("f", 30)):
        data = bytearray((folder / f"{name}.jsonl").read_bytes())
        data[at] ^= 1
        (folder / f"{name}.jsonl").write_bytes(data)
    data = bytearray((folder / "c.jsonl").read_bytes())
    data[data.index(b"two-two")] ^= 1
    (folder / "c.jsonl").write_bytes(data)
    old = (folder / "clean.jsonl").read_bytes()
    (folder / "d.jsonl").write_bytes(old)
    fine("session", "name", "d", "later", home=home)
    (folder / "d.jsonl").write_bytes(old)
    for index in (home / "session-index").glob("no-index.*"):
        index.unlink()
    (home / "session-index" / "c.1.sqlite3").write_bytes(b"garbage")
    (folder / "plain.jsonl").write_text('{"type":"session","version":3,"id":"p"}\n')
    (folder / "empty.jsonl").write_bytes(b"")
    return home


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_looking_changes_nothing(words: list[str], store: Path) -> None:
    """On every session of a store with every kind of trouble."""
    before = picture(store)
    names = (
        [None]
        if words[:2] == ["session", "list"]
        else [path.stem for path in sorted((store / "sessions").glob("*.jsonl"))]
    )
    for name in names:
        ran = run(*words, *([] if name is None else [name]), home=store)
        assert ran.code in (0, 1), ran
        assert "Traceback" not in ran.stderr
        if ran.code == 1 and words[0] != "fsck":
            assert ran.stderr.startswith("treering: ")
    assert picture(store) == before


def test_a_store_that_cannot_be_written(store: Path) -> None:
    """A read-only store can be looked at; changing it is one error line."""
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        fine("session", "list", home=store)
        fine("session", "show", "clean", home=store)
        fine("fsck", "clean", "--index", home=store)
        if os.geteuid() != 0:
            assert run("session", "new", home=store).code == 3
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_damaged_sessions_show_their_beginning(store: Path) -> None:
    """What comes before the damage is shown, with one warning: the case and the next command."""
    for name, case in (("c", "C"), ("d", "D"), ("torn", "E"), ("f", "F")):
        ran = fine("session", "show", name, home=store)
        assert "one" in ran.out
        assert f"case {case}" in ran.stderr
        assert ran.stderr.count("\n") == 1
        assert "next" in ran.stderr


def test_random_files_never_give_a_traceback(home: Path) -> None:
    """Random damage of a session, a few hundred times, through every command that looks."""
    pick = random.Random(7)
    path = Path(new_session(home, "one", "two " * 200, "three", session_id="s"))
    good = path.read_bytes()
    for turn in range(120):
        data = bytearray(good)
        for _ in range(pick.choice((1, 1, 2, 5))):
            at = pick.randrange(len(data))
            action = pick.randrange(4)
            if action == 0:
                data[at] = pick.randrange(256)
            elif action == 1:
                del data[at : at + pick.randrange(1, 200)]
            elif action == 2:
                data[at:at] = pick.randbytes(pick.randrange(1, 100))
            else:
                data[at : at + 64] = bytes(64)
        path.write_bytes(data)
        words = LOOKING[turn % len(LOOKING)]
        ran = run(*words, *([] if words[:2] == ["session", "list"] else ["s"]), home=home)
        assert ran.code in (0, 1), (turn, ran)
        assert "internal error" not in ran.stderr, (turn, ran)
