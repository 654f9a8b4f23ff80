"""A whole store under fsck: any files in its places, an answer about each, nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import struct
from typing import Final

from treering.engine.home import Store
from treering.engine.journal.publish import TEMPORARY_SUFFIX
from treering.engine.session.listing import path_in, session_names
from treering.fuzz.oracle import judge
from treering.fuzz.targets import journal
from treering.fuzz.targets.frame_mutator import MAGIC
from treering.fuzz.targets.scratch import scratch
from treering.fuzz.targets.target import Broken, Native, Target, same
from treering.tools.fsck import Checked, check_session

PLACES: Final = (
    "sessions/a.jsonl",
    "sessions/b.jsonl",
    "sessions/not an id.jsonl",
    f"sessions/.a.0badcafe{TEMPORARY_SUFFIX}",
    "session-index/a.1.sqlite3",
    "session-index/a.1.sqlite3-wal",
    "session-index/a.2.sqlite3",
    "session-index/a.owner.json",
    "session-artifacts/a/quarantine/x.tail",
)
"""Where the files of an input go: each is one byte (the place), two of length, and its bytes."""

_LENGTH: Final = struct.Struct("<BH")
_Picture = dict[str, tuple[int, int, int, int, bytes]]


def parts_of(data: bytes) -> list[tuple[int, bytes]]:
    """The files of an input, as (place, bytes)."""
    parts = []
    at = 0
    while len(data) - at >= _LENGTH.size:
        place, length = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append((place % len(PLACES), data[at : at + length]))
        at += length
    return parts


def joined(parts: list[tuple[int, bytes]]) -> bytes:
    """The reverse of :func:`parts_of`."""
    return b"".join(_LENGTH.pack(place, len(part)) + part for place, part in parts)


def check(data: bytes) -> None:
    """Two checks of every session say the same and leave every byte and time stamp alone."""
    home = scratch("store")
    store = Store.at(home)
    files = dict(parts_of(data))
    for place, part in files.items():
        path = os.path.join(home, PLACES[place])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(part)
    try:
        before = _picture(home)
        for name in session_names(store):
            path = path_in(store, name)
            first = check_session(path, with_index=True)
            _is_answer(first)
            same("second answer", check_session(path, with_index=True).as_json(), first.as_json())
        same("files of the store", _picture(home), before)
        if set(files) == {0}:
            _is_right(files[0], check_session(path_in(store, "a"), with_index=False))
    finally:
        for name in os.listdir(home):
            shutil.rmtree(os.path.join(home, name))


def _is_answer(found: Checked) -> None:
    """It can be printed, in both forms, and does not call a store unreadable that is readable."""
    json.dumps(found.as_json())
    if not found.summary().isprintable() and found.session.isprintable():
        raise Broken(f"the summary {found.summary()!r} cannot be printed")
    if found.could_not_run:
        raise Broken(f"nothing is wrong with the system: {found.findings}")
    if found.case is None and found.ok:
        raise Broken("clean without a verdict")


def _is_right(data: bytes, found: Checked) -> None:
    """The case is the oracle's, unless a version, a feature or a limit stands before it."""
    case = judge(data).case
    if found.case is None and (data[8:16] != b"\x01\0\x80\0" + bytes(4) or MAGIC in data):
        return
    same("case", found.case, case)
    if found.ok and case != "A":
        raise Broken(f"fsck is content with case {case}")


def _picture(home: str) -> _Picture:
    picture: _Picture = {}
    for folder, _, names in os.walk(home):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            status = os.lstat(path)
            content = b""
            if path != folder:
                with open(path, "rb") as file:
                    content = file.read()
            numbers = (status.st_mode, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            picture[path] = (*numbers, content)
    return picture


def mutate(data: bytes, size_max: int, seed: int, native: Native) -> bytes:
    """One file of the store as its own target makes it, or the whole input blindly."""
    choice = seed * 0x9E3779B97F4A7C15 >> 17 & 0xFFFF
    parts = parts_of(data)
    if choice & 7 == 0 or not parts:
        return native(data, size_max)
    at = (choice >> 3) % len(parts)
    place, part = parts[at]
    most = min(0xFFFF, size_max - len(data) + len(part))
    if choice & 7 == 1:
        parts.insert(at, ((place + choice) % len(PLACES), part[: max(0, size_max - len(data))]))
    elif most > 0:
        change = journal.mutate if place < 4 and choice & 7 > 2 else None
        part = native(part, most) if change is None else change(part, most, seed, native)
        parts[at] = (place, part[:0xFFFF])
    return joined(parts)[:size_max]


TARGET: Final = Target(
    check,
    modules=(
        "treering.engine.journal.ownership",
        "treering.engine.journal.recovery",
        "treering.engine.journal.salvage",
        "treering.tools.fsck",
        "treering.tools.fsck_index",
        "treering.tools.resolving",
        "treering.tools.viewing",
    ),
    bytes_max=4096,
    seconds_max=10.0,
    memory_bytes_max=64 << 20,
    tokens=(
        *journal.TARGET.tokens,
        b"SQLite format 3\0",
        b'{"pid":1,"host":"h","boot":"b","since":1}',
        b"\x37\x7f\x06\x82",
    ),
    mutate=mutate,
)
