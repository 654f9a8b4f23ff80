"""What a person types to name a session, an entry, a store: nothing leads where it must not."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from treering.engine.errors import Invalid, TreeringError
from treering.engine.home import Store, check_path, check_session_id, journal_file, session_id_of
from treering.engine.session.listing import session_names
from treering.engine.session.reads import Reads
from treering.fuzz.targets.scratch import scratch
from treering.fuzz.targets.target import Broken, Target, same
from treering.tools.resolving import resolve, resolve_entry

NAMES: Final = (
    "a",
    "ab",
    "abc",
    "abd",
    "2026-01-01T00-00-00_x",
    "Z.z",
    ".hidden",
    "ä",
    "a b",
    "-n",
)
"""Files of the store, also such that no id of ours could be named like."""

ENTRIES: Final = ("e1", "e10", "e2", "", "ä", "x" * 512, "e1\n")
_ID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_DEVICES: Final = frozenset(("con", "prn", "aux", "nul"))

_Result = TypeVar("_Result")


@functools.cache
def _store() -> Store:
    home = scratch("selectors")
    store = Store.at(home)
    os.mkdir(store.sessions)
    for name in NAMES:
        with open(os.path.join(store.sessions, name + ".jsonl"), "xb"):
            pass
    with open(os.path.join(home, "outside.jsonl"), "xb"):
        pass
    return store


class _Row:
    def __init__(self, sequence: int, name: str) -> None:
        self.sequence, self.id = sequence, name


class _Entries:
    """As much of a session as naming its entries takes."""

    path = "memory"

    def has(self, name: str) -> bool:
        """Whether an entry has exactly this id."""
        return name in ENTRIES

    def ask(self, question: Callable[[Any], _Result]) -> _Result:
        """Put a question to the index, which is this object too."""
        return question(self)

    def entries(self, *, after: int = 0, limit: int) -> list[_Row]:
        """Rows behind a sequence."""
        rows = [_Row(number, name) for number, name in enumerate(ENTRIES, 1)]
        return [row for row in rows if row.sequence > after][:limit]


def check(data: bytes) -> None:
    """As a selector, as an id, as a home and as an entry: the right one, or a typed error."""
    text = os.fsdecode(data)
    store = _store()
    _selector(store, text)
    _id(store, text)
    _home(text)
    try:
        found = resolve_entry(cast("Reads", _Entries()), text)
    except TreeringError:
        found = None
    fitting = [name for name in ENTRIES if text and name.startswith(text)]
    expected = text if text in ENTRIES else fitting[0] if len(fitting) == 1 else None
    same("entry", found, expected)


def _selector(store: Store, text: str) -> None:
    listed = [name for name in NAMES if not name.startswith(".")]
    same("sessions", session_names(store), sorted(listed))
    path: str | None = None
    with contextlib.chdir(store.top), contextlib.suppress(TreeringError):
        path = resolve(store, text)
    if "/" in text or text.endswith(".jsonl"):
        _path(store, text, path, listed)
        return
    fitting = [name for name in listed if text and (name.startswith(text) or name.endswith(text))]
    expected = text if text in listed else fitting[0] if len(fitting) == 1 else None
    if expected is not None:
        expected = os.path.join(store.sessions, expected + ".jsonl")
    same("session", path, expected)
    if path is not None and not os.path.samefile(os.path.dirname(path), store.sessions):
        raise Broken(f"{text!r} leads to {path}, outside of the store")


def _path(store: Store, text: str, path: str | None, listed: list[str]) -> None:
    """A path means that very file; a bare file name is one here, or else one of the store."""
    if path is None:
        return
    if not os.path.lexists(path):
        raise Broken(f"{text!r} leads to {path}, where nothing is")
    with contextlib.chdir(store.top):
        there = os.path.abspath(os.path.expanduser(text))
    if path != there:
        inside = "/" not in text and text.removesuffix(".jsonl") in listed
        if not inside or path != os.path.join(store.sessions, text):
            raise Broken(f"{text!r} leads to {path}")


def _id(store: Store, text: str) -> None:
    base = text.lower().partition(".")[0]
    device = base in _DEVICES or re.fullmatch("(com|lpt)[0-9]", base) is not None
    right = _ID.fullmatch(text) is not None and ".." not in text and not device
    try:
        same("id", check_session_id(text), text)
    except Invalid:
        if right:
            raise Broken(f"{text!r} is refused as an id") from None
        return
    if not right:
        raise Broken(f"{text!r} is taken as an id")
    for place, folder in (
        (store.journal_path(text), store.sessions),
        (store.artifact_folder(text), store.artifacts),
        (store.owner_note(text), store.index),
    ):
        same("folder", os.path.dirname(os.path.normpath(place)), folder)
    same("id of the file", session_id_of(store.journal_path(text)), text)


def _home(text: str) -> None:
    """A home is absolute, or refused; a path is taken when a system could take it."""
    try:
        taken = check_path(text)
    except Invalid:
        if "\0" not in text:
            raise Broken(f"{text!r} is refused as a path") from None
        return
    same("path", taken, text)
    if not os.path.isabs(journal_file(text)):
        raise Broken(f"the journal {text!r} has no absolute path")
    try:
        store = Store.at(text or "/", None)
    except Invalid:
        if text.startswith("/"):
            raise Broken(f"the absolute home {text!r} is refused") from None
        return
    for folder in (store.top, store.sessions, store.artifacts, store.index):
        if not os.path.isabs(folder) or ".." in folder.split("/"):
            raise Broken(f"the home {text!r} has the folder {folder!r}")


TARGET: Final = Target(
    check,
    modules=("treering.engine.home", "treering.tools.resolving"),
    bytes_max=256,
    seconds_max=2.0,
    memory_bytes_max=4 << 20,
    tokens=(
        b".jsonl",
        b"../",
        b"/",
        b"~",
        b"~root/",
        b"./outside.jsonl",
        b"sessions/",
        b"\0",
        b"..",
        b"con",
        b"lpt1.",
        b"e1",
        "ä".encode(),
        b"\xff",
        b"abd",
    ),
)
