"""Commands that only look change no byte, no time stamp and no name of the store."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.stores import DRY_RUNS, damaged_store, without_catalogue
from tools_helpers import fine, new_session, picture, run

LOOKING: list[list[str]] = [
    ["session", "show", "{}"],
    ["session", "show", "{}", "--raw"],
    ["session", "tree", "{}"],
    ["session", "info", "{}"],
    ["session", "associations", "{}"],
    ["session", "export", "{}"],
    ["resume", "{}"],
    ["dump", "{}"],
    ["fsck", "{}"],
    ["fsck", "{}", "--index"],
    ["fsck", "{}", "--index", "--json"],
    ["fsck", "--all", "--index", "--json"],
    *DRY_RUNS,
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions in every state; the tests here only look at them."""
    return damaged_store(tmp_path_factory.mktemp("untouched") / "home")


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_looking_changes_nothing(words: list[str], store: Path) -> None:
    """On every session of a store with every kind of trouble."""
    before = picture(store)
    names = [path.stem for path in sorted((store / "sessions").glob("*.jsonl"))]
    assert len(names) > 30
    for name in names if "{}" in words else [""]:
        ran = run(*(word.format(name) for word in words), home=store)
        assert ran.code in (0, 1), ran
        assert "Traceback" not in ran.stderr
        if ran.code == 1 and words[0] != "fsck":
            assert ran.stderr.startswith("treering: ")
    assert picture(store) == before


@pytest.mark.parametrize("more", [[], ["--json"]], ids=str)
def test_lists_change_nothing_but_the_catalogue(more: list[str], store: Path) -> None:
    """A list brings the catalogue up to date, which is derived; no other byte or name."""
    before = without_catalogue(picture(store))
    for _ in range(2):
        fine("session", "list", *more, home=store)
        assert without_catalogue(picture(store)) == before


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
    for turn in range(240):
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
        ran = run(*(word.format("s") for word in words), home=home)
        assert ran.code in (0, 1), (turn, ran)
        assert "internal error" not in ran.stderr, (turn, ran)
