"""How deep a session lies below a first one: recorded in its header, or read from where it is.

Sessions of older systems do not record it. Their depth is then only projected, from the chain of
parent sessions and from folders ``sub-<8 hex digits>``; nothing is written back to them.
"""

from __future__ import annotations

import os
import re
from typing import Final

from treering.engine import environment, home
from treering.engine.errors import Invalid, TreeringError
from treering.engine.journal.disk import LOCAL_DISK, Disk, File
from treering.engine.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Kind,
    decode_file_header,
    salt_of,
)
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.reader import FileBytes, frame_at
from treering.engine.journal.shared import SharedFrames
from treering.engine.json_text import BadRecordError, check, members
from treering.engine.transfer.legacy_model import HEADER_BYTES_MAX, Header
from treering.engine.transfer.legacy_read import bom_length
from treering.engine.transfer.legacy_scan import header_facts
from treering.engine.transfer.records import is_blank, numbered_lines

DEPTH_MAX: Final = 2**53 - 1
"""The largest whole number that every reader of JSON keeps."""

PARENTS_MAX: Final = 1_000
"""Parents that are followed; a longer chain reads as one that cannot be read."""

_DECIMAL: Final = re.compile(r"[0-9]+", re.ASCII)
_SUB_FOLDER: Final = re.compile(r"sub-[0-9a-f]{8}")


def depth_of_new(
    parent_session: str | os.PathLike[str] | None = None,
    *,
    explicit: int | None = None,
    disk: Disk = LOCAL_DISK,
) -> int | None:
    """The depth of a new session that copies nothing.

    What is given wins; then one more than the parent's header states; without a parent that of
    ``BASE_CONTEXT_RLM_DEPTH``, else 0. None: the parent does not tell, or none can be counted on.

    Raises:
        Invalid: what is given, or the variable, is no whole number from 0.
    """
    if explicit is not None:
        return check_depth(explicit)
    if parent_session is not None:
        header = read_header(os.path.abspath(home.check_path(parent_session)), disk=disk)
        depth = None if header is None else _facts(header).rlm_depth
        return None if depth is None or depth >= DEPTH_MAX else depth + 1
    text = environment.variable("BASE_CONTEXT_RLM_DEPTH")
    if text is None:
        return 0
    if not _DECIMAL.fullmatch(text) or len(text.lstrip("0")) > 16 or int(text) > DEPTH_MAX:
        raise Invalid(f"BASE_CONTEXT_RLM_DEPTH is a whole number from 0, not {text!r}")
    return int(text)


def check_depth(depth: int) -> int:
    """The depth, if it is one.

    Raises:
        Invalid: it is no whole number from 0.
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= DEPTH_MAX:
        raise Invalid(f"a depth is a whole number from 0 to {DEPTH_MAX}, not {depth!r}")
    return depth


def depth_of_source(header: bytes, path: str, *, disk: Disk = LOCAL_DISK) -> int:
    """The depth of an existing session, from its header and, where that is silent, its parents.

    Relative names of parents are meant from the folder of the session that has them.
    """
    folders: list[str] = []
    seen = {os.path.realpath(path)}
    depth: int | None = None
    while True:
        facts = _facts(header)
        depth = facts.rlm_depth
        if depth is not None or facts.parent_session is None:
            break
        folders.append(os.path.dirname(path))
        path = os.path.join(folders[-1], facts.parent_session)
        real = os.path.realpath(path) if "\0" not in path else ""
        found = None
        if real and real not in seen and len(folders) < PARENTS_MAX:
            found = read_header(path, disk=disk)
        if found is None:
            return _below(folders, None)
        seen.add(real)
        header = found
    return _below(folders, depth or 0)


def _below(folders: list[str], depth: int | None) -> int:
    """The depth below a chain of sessions in these folders, of which the last is the first."""
    for folder in reversed(folders):
        subs = 0
        while _SUB_FOLDER.fullmatch(os.path.basename(folder)):
            folder, subs = os.path.dirname(folder), subs + 1  # noqa: PLW2901
        depth = subs if depth is None else depth + (subs > 0)
    return min(depth or 0, DEPTH_MAX)


def _facts(header: bytes) -> Header:
    try:
        segments = members(header)[1]
    except BadRecordError:
        return Header("")
    return header_facts({s.name: header[s.value_begin : s.value_end] for s in segments})


def read_header(path: str, *, disk: Disk = LOCAL_DISK) -> bytes | None:
    """The header of a session file of any kind; None for whatever has none that can be read."""
    try:
        file = open_regular(disk, path, write=False)
    except (TreeringError, OSError, ValueError):
        return None
    try:
        return _header_in(file, path)
    except (TreeringError, OSError, BadRecordError):
        return None
    finally:
        file.close()


def _header_in(file: File, path: str) -> bytes | None:
    source = FileBytes(file, path, file.stat().size)
    head = decode_file_header(source.read_at(0, FILE_HEADER_BYTES), path)
    if head is not None:
        salt = salt_of(head.journal_id)
        first = frame_at(source, salt, FILE_HEADER_BYTES)
        found = None if first is None else frame_at(source, salt, first[0].end)
        if found is None or found[0].kind != Kind.SESSION:
            return None
        shared = SharedFrames(source, head.journal_id)
        return shared.decoder.decode(found[0], found[1][FRAME_HEADER_BYTES:])
    begin = source.captured(min(source.size, HEADER_BYTES_MAX))
    for line in numbered_lines(begin, start=bom_length(begin)):
        if is_blank(line.raw):
            continue
        raw = _in_frame(line.raw)
        return raw if check(raw).type == "session" else None
    return None


def _in_frame(raw: bytes) -> bytes:
    """The payload of a line of a journal of JSON frames; the line itself when it is none."""
    if check(raw).journalFrame != 1:
        return raw
    for segment in members(raw)[1]:
        if segment.name == "payload":
            return raw[segment.value_begin : segment.value_end]
    return raw
