"""Everything that a session or view answers, in a form that two of them can be compared by."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from treering.engine.errors import NotFound
from treering.engine.session.entry import Entry
from treering.engine.session.reads import Reads

Answers = dict[str, Any]

PAGE: Final = 3
"""Pages of paged answers: small, so that even a small session has several."""

PATHS_EVERY: Final = 5
"""A whole path is asked for every so many entries: it costs as much as all the rest together."""

UNKNOWN: Final = "no-such-entry"
KINDS: Final = (
    "message",
    "custom",
    "label",
    "compaction",
    "branch_summary",
    "session_info",
    "child_usage_attributed",
    "request",
)


class Shown(NamedTuple):
    """What a reader sees of an entry. (Whether it is proven durable is no answer of an index.)"""

    sequence: int
    id: str
    raw: bytes
    flags: int
    unresolved: str | None
    revision: bytes


def shown(entry: Entry) -> Shown:
    """The comparable part of an entry."""
    return Shown(entry.sequence, entry.id, entry.raw, entry.flags, entry.unresolved, entry.revision)


def answers_of(reads: Reads) -> Answers:
    """One of every question, about every entry.

    Raises whatever the session raises: a damaged answer is for the caller to judge.
    """
    every = [shown(entry) for entry in reads.iter_entries()]
    found: Answers = {
        "entries": every,
        "leaf": reads.leaf_id,
        "leaf entry": None if (leaf := reads.leaf()) is None else leaf.id,
        "branch": [entry.id for entry in reads.branch()],
        "roots": [entry.id for entry in reads.children(None)],
        "labels": _labels(reads),
        "counts": reads.counts(),
        "kinds": reads.kinds(),
        "usage": reads.usage(),
        "name": reads.name,
        "header": reads.header_bytes(),
        "provenance": reads.provenance(),
        "has unknown": reads.has(UNKNOWN),
        "read unknown": _refused(reads),
    }
    found.update(_lookups(reads, every))
    for number, one in enumerate(every):
        found[f"entry {one.id}"] = _about(reads, one.id)
        if number % PATHS_EVERY == 0:
            found[f"path of {one.id}"] = [entry.id for entry in reads.branch(one.id)]
    return found


def few_answers_of(reads: Reads) -> Answers:
    """Some of :func:`answers_of`, under the same names: what each table and index is for."""
    newest = reads.by_kind("message", role="user", newest_first=True, limit=PAGE)
    return {
        **fewest_answers_of(reads),
        "branch": [entry.id for entry in reads.branch()],
        "roots": [entry.id for entry in reads.children(None)],
        "kinds": reads.kinds(),
        "has unknown": reads.has(UNKNOWN),
        "newest user messages": [entry.id for entry in newest],
    }


def fewest_answers_of(reads: Reads) -> Answers:
    """Some of :func:`answers_of`, under the same names: a row of every table that has any."""
    labels = reads.labels()
    return {
        "entries": [shown(entry) for entry in reads.entries()],
        "leaf": reads.leaf_id,
        "labels": [(entry.id, text) for entry, text in labels],
        "counts": reads.counts(),
        "usage": reads.usage(),
    }


def _labels(reads: Reads) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    after = 0
    while page := reads.labels(after=after, limit=PAGE):
        found += [(entry.id, text) for entry, text in page]
        after = page[-1][0].sequence
    return found


def _refused(reads: Reads) -> str:
    try:
        return reads.read(UNKNOWN).id
    except NotFound:
        return "not found"


def _lookups(reads: Reads, every: list[Shown]) -> Answers:
    """By kind, time and depth, and what holds for the end of the current branch."""
    found: Answers = {}
    for kind in KINDS:
        found[f"kind {kind}"] = [entry.id for entry in reads.by_kind(kind)]
        latest = reads.latest_on_branch(kind)
        found[f"latest {kind}"] = None if latest is None else latest.id
    newest = reads.by_kind("message", role="user", newest_first=True, limit=PAGE)
    found["newest user messages"] = [entry.id for entry in newest]
    found["time"] = [entry.id for entry in reads.by_time(0, 2**62)]
    found["half of the time"] = [entry.id for entry in reads.by_time(0, 1_700_000_005_000)]
    middle = every[len(every) // 2].sequence if every else 0
    found["page"] = [entry.id for entry in reads.entries(after=middle, limit=PAGE)]
    found["page of branch"] = [entry.id for entry in reads.branch(start=1, limit=PAGE)]
    return found


def _about(reads: Reads, entry_id: str) -> tuple[Any, ...]:
    parent = reads.parent(entry_id)
    return (
        shown(reads.read(entry_id)).sequence,
        reads.has(entry_id),
        reads.depth(entry_id),
        None if parent is None else parent.id,
        [child.id for child in reads.children(entry_id)],
        reads.label(entry_id),
        reads.retention(entry_id),
    )


def difference(right: Answers, found: Answers) -> str | None:
    """The first question that got another answer; None when all are the same."""
    if found == right:
        return None
    for question in sorted({*right, *found}):
        ours, theirs = right.get(question, "(not asked)"), found.get(question, "(not asked)")
        if ours != theirs:
            return f"{question}: {theirs!r:.300}, without an index {ours!r:.300}"
    raise AssertionError("unequal answers without a difference")
