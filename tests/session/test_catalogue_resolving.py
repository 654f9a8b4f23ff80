"""Selectors: what each may be, which comes first, what is said when none or several fit."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_helpers import raises_typed

from treering.engine import Session, Store, resolve_session
from treering.engine.errors import Ambiguous, Invalid, NotFound
from treering.engine.session.resolving import _EditsTo, choose, closest_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of this test, not made yet."""
    return Store.at(str(tmp_path / "home"))


def make(store: Store, session_id: str, name: str | None = None, cwd: str = "/w") -> str:
    with Session.create(cwd, home_dir=store.top, session_id=session_id) as session:
        if name is not None:
            session.set_name(name)
        return session.path


def test_what_comes_first(store: Store) -> None:
    """Path, exact id, exact name, beginning or end of an id."""
    paths = {
        "ab": make(store, "ab"),
        "ab-1": make(store, "ab-1", name="zz"),
        "zz-2": make(store, "zz-2", name="ab"),
        "q-zz": make(store, "q-zz", name="called this"),
    }
    for selector, meant in {
        "ab": "ab",
        "zz": "ab-1",
        "called this": "q-zz",
        "zz-": "zz-2",
        "-zz": "q-zz",
        "zz-2.jsonl": "zz-2",
        paths["ab"]: "ab",
    }.items():
        assert resolve_session(store, selector) == paths[meant], selector


def test_this_directory_before_all(store: Store, tmp_path: Path) -> None:
    """On every step; not before an earlier step."""
    here = str(tmp_path)
    make(store, "a-1", name="same")
    mine = make(store, "a-2", name="same", cwd=here)
    make(store, "a-3", name="a", cwd="/else")
    with raises_typed(Ambiguous) as caught:
        resolve_session(store, "same")
    assert caught.value.candidates == ("a-1", "a-2")
    assert resolve_session(store, "same", cwd=here) == mine
    assert resolve_session(store, "a-", cwd=here) == mine
    assert resolve_session(store, "a", cwd=here).endswith("a-3.jsonl")
    with raises_typed(Ambiguous):
        resolve_session(store, "a-", cwd="/nobody")


def test_none(store: Store) -> None:
    """Says which id may be meant."""
    make(store, "session-one")
    with raises_typed(NotFound) as caught:
        resolve_session(store, "sesion-one")
    assert "did you mean 'session-one'?" in str(caught.value)
    for selector in ("", "\0", "x" * 100_000):
        with raises_typed(Invalid):
            resolve_session(store, selector)
    with raises_typed(NotFound):
        resolve_session(store, os.path.join(store.sessions, "no.jsonl"))


def test_files_that_are_no_sessions_can_be_named(store: Store) -> None:
    """Whatever a row of a list says can be selected: what it is, is told by opening it."""
    make(store, "good")
    Path(store.sessions, "bad.jsonl").write_bytes(b"garbage")
    assert resolve_session(store, "ba") == os.path.join(store.sessions, "bad.jsonl")


def test_nothing_fits_an_empty_selector() -> None:
    assert choose("", ["a"], lambda: ["a"]) is None


FULL = "019a2b3c-4d5e-7f60-8a9b-0c1d2e3f4a5b"
OTHER = "019a2b3c-4d5e-7f61-9123-456789abcdef"


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        (FULL.replace("7f60", "7f06"), FULL),
        (FULL[:-1], FULL),
        (FULL + "0", FULL),
        ("0c1d2e3f4a5c", FULL),
        ("0c1d2e3fa5b", FULL),
        ("01923b3c-4d5e", None),  # both begin like this
        ("4567", None),
        ("cdee", OTHER),
        ("cde", None),
        ("zzzz", None),
    ],
)
def test_the_closest_id(selector: str, meant: str | None) -> None:
    """At least 4 characters, a fifth of them wrong at most; a tie suggests nothing."""
    assert closest_id(selector, [FULL, OTHER]) == meant


def edits(one: str, other: str) -> int:
    """Levenshtein, as it is written in books."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


@given(st.text("abc-", min_size=1, max_size=80), st.text("abc-d", max_size=80))
def test_edits(one: str, other: str) -> None:
    """Against an oracle, also of more characters than a machine word has bits."""
    assert _EditsTo(one)(other) == edits(one, other)


def test_the_closest_of_many() -> None:
    """Thousands of ids are compared in a moment (about half a second for 14,000)."""
    draw = random.Random(3)
    ids = [f"{draw.getrandbits(128):032x}" for _ in range(2_000)]
    typed = ids[77][:10] + "zz" + ids[77][12:]
    assert closest_id(typed, ids) == ids[77]
