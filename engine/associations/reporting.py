"""Which recorded requests belong to the outputs of a session, of a file, of many files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from treering.engine.associations.indexed import read_session
from treering.engine.associations.matching import ID_NAMES, Report
from treering.engine.associations.raw import read_file
from treering.engine.errors import InvalidSource, from_os_error
from treering.engine.session.reads import Reads


def request_associations(
    session_or_path: Reads | str | os.PathLike[str], *, verify: bool = False
) -> Report:
    """The four reports about the outputs of a session and the requests that they came from.

    ``assistant_request_associations``, ``compaction_request_associations``,
    ``branch_summary_request_associations`` and ``refinement_planner_associations``: one element
    for each such entry, in order, with the recorded request or None. None is unknown: it is never
    a statement that a request was rejected, or that nothing came of it.

    Args:
        session_or_path: an open session or view; or a file, which is only read: a journal, a
            journal of Base Context's JSON frames, or plain JSONL (that is never an original).
        verify: verify the checksums of JSON frames too. Frames of ours always are.

    Raises:
        InvalidSource: no session header, or a line that is no JSON; says how far it was read.
        Damaged, Unsupported: it may hold more than can be read, which may speak against a match.
        NotFound, StorageError: the system refused.
    """
    if isinstance(session_or_path, Reads):
        path = session_or_path.path
        report = read_session(session_or_path).report()
    else:
        path = os.fspath(session_or_path)
        report = read_file(path, verify=verify).report()
    if report is None:
        raise InvalidSource("no session header, so there is nothing to report about", path=path)
    return report


class _Found(NamedTuple):
    path: str
    report: Report
    native: bool


def aggregate_associations(
    paths: Iterable[str | os.PathLike[str]], *, verify: bool = False
) -> Report:
    """The four reports over many files: in each one element for each session, in the same order.

    An element has ``session_id``, ``path`` and the session's ``associations``. Files are taken in
    the order of their modification; of several files of one session a later one with frames
    replaces those before it, and a later one without frames does not replace one with frames. A
    file without a header has no report.

    Raises:
        As :func:`request_associations` does for any of the files.
    """
    given = [os.fspath(path) for path in paths]
    ordered = sorted((_modified_ns(path), number, path) for number, path in enumerate(given))
    sessions: dict[tuple[str | None, str], _Found] = {}
    for _, _, path in ordered:
        matcher = read_file(path, verify=verify)
        report, header = matcher.report(), matcher.header
        if report is None or header is None:
            continue
        # A header without an id is like no other.
        key = (header.id, "" if header.id is not None else path)
        before = sessions.get(key)
        if before is None or header.native or not before.native:
            sessions[key] = _Found(path, report, header.native)
    return {
        name: [
            {"session_id": key[0], "path": found.path, "associations": found.report[name]}
            for key, found in sessions.items()
        ]
        for name in ID_NAMES
    }


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError as error:
        raise from_os_error(error, "look at the session", path) from error
    except ValueError as error:
        raise InvalidSource("the name cannot be a path", path=path) from error
