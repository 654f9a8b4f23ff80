"""How many tokens the context at a position has, as the model's provider last counted them.

The figure is that of the last answer on the path: what it read and what it wrote is the context
now. Behind a compaction nobody has counted until the next answer, and answers that failed or were
broken off state no usable figure. What children used is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType

from treering.engine.errors import NotFound
from treering.engine.session.context import Tree
from treering.engine.session.context_rules import parts, plain, text_in
from treering.engine.session.entry import Entry
from treering.engine.session.reads import Reads
from treering.index import Entry as Indexed

_ROWS_FIRST: Final = 16
_ROWS_MAX: Final = 1024

_FAILED: Final = frozenset(("error", "aborted"))
_PARTS: Final = ("input", "output", "cacheRead", "cacheWrite")


class ContextUsage(NamedTuple):
    """Tokens of the context, and the assistant message that states them."""

    tokens: int
    entry_id: str
    sequence: int


def read_context_usage(
    reads: Reads, leaf_id: str | None | UnsetType = UNSET
) -> ContextUsage | None:
    """The usage at the current position of a session or view, or at an entry.

    None is unknown: before any answer, and behind a compaction until the next one. Reads one body
    as a rule: the last answer's.

    Raises:
        NotFound: no entry has that id.
    """
    named = reads.leaf_id if leaf_id is UNSET else leaf_id
    if named is None:
        return None
    leaf = reads.ask(lambda index: index.by_id(named))
    if leaf is None:
        raise NotFound(f"no entry {named!r}", path=reads.path)
    for row in _answers_upwards(reads, leaf):
        found = usage_of(reads.read(row.id))
        if found is not None:
            return found
    return None


def _answers_upwards(reads: Reads, leaf: Indexed) -> Iterator[Indexed]:
    """The assistant messages on the path behind the nearest compaction, nearest first."""
    compaction = reads.ask(lambda index: index.latest_on_path("compaction", leaf.sequence))
    top = 0 if compaction is None else compaction.depth + 1
    end, count = leaf.depth + 1, _ROWS_FIRST
    while end > top:
        start = max(top, end - count)
        for row in reversed(_path_rows(reads, leaf.sequence, start, end)):
            if row.kind == "message" and row.role == "assistant":
                yield row
        end, count = start, min(2 * count, _ROWS_MAX)


def _path_rows(reads: Reads, leaf: int, start: int, end: int) -> list[Indexed]:
    return reads.ask(lambda index: index.path(leaf, from_depth=start, limit=end - start))


def build_context_usage(
    entries: Sequence[Entry], leaf_id: str | None | UnsetType = UNSET
) -> ContextUsage | None:
    """The usage at an entry of a list that holds a whole session; see ``build_session_context``."""
    return None if leaf_id is None else _last_usage(reversed(Tree(entries).path(leaf_id)))


def _last_usage(path_upwards: Iterable[Entry]) -> ContextUsage | None:
    for entry in path_upwards:
        if entry.type == "compaction":
            return None
        found = usage_of(entry) if entry.type == "message" and entry.role == "assistant" else None
        if found is not None:
            return found
    return None


def usage_of(answer: Entry) -> ContextUsage | None:
    """What an assistant message states of the context; None when it failed or states nothing."""
    message = parts(parts(answer.raw).get("message", b""))
    usage = plain(message.get("usage", b"null"))
    if text_in(message, "stopReason") in _FAILED or not isinstance(usage, dict):
        return None
    tokens = _tokens(usage.get("totalTokens")) or sum(_tokens(usage.get(name)) for name in _PARTS)
    return ContextUsage(tokens, answer.id, answer.sequence) if tokens > 0 else None


def _tokens(value: Any) -> int:
    """A count of a file; what cannot be one counts nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**62:
        return 0
    return int(value)
