"""Usage of children that is folded into an assistant message of their parent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from treering.engine.errors import NotFound
from treering.engine.json_text import decode_or_none
from treering.engine.session.admission import EntryInput
from treering.engine.session.entry import Entry
from treering.engine.session.reads import Reads
from treering.engine.session.verbs import child_attribution
from treering.index import Entry as Indexed

_FIGURES: Final = ("input", "output", "cacheRead", "cacheWrite")
_PAGE: Final = 16
_COSTS: Final = (*_FIGURES, "total")


class _Message(msgspec.Struct):
    usage: dict[str, Any] | None = None


class _Target(msgspec.Struct):
    message: _Message


class _Attribution(msgspec.Struct, rename="camel"):
    aggregate_usage: dict[str, Any] | None = None


_targets = msgspec.json.Decoder(_Target)
_attributions = msgspec.json.Decoder(_Attribution)


def attribution(
    reads: Reads, target_id: str, child_usage: Any, aggregate_usage: Any, origin: str | None
) -> tuple[EntryInput, Any]:
    """The entry that attributes usage of a child, and its aggregate.

    Without ``aggregate_usage`` the child's figures are added to the previous aggregate, or to the
    message's own usage.

    Raises:
        InvalidEntry: an origin that is not documented.
        NotFound: the target is not there, or is no assistant message.
    """
    target = reads.read(target_id) if reads.has(target_id) else None
    if target is None or target.type != "message" or target.role != "assistant":
        raise NotFound(f"no assistant message {target_id!r}", path=reads.path)
    if aggregate_usage is None:
        aggregate_usage = _summed(reads, target, target_id, child_usage)
    return child_attribution(target_id, child_usage, aggregate_usage, origin), aggregate_usage


def _summed(reads: Reads, target: Entry, target_id: str, child_usage: Any) -> dict[str, Any]:
    """The usage of an assistant message with what its children used, this one included.

    ``totalTokens`` stays the message's own: children do not grow the context of their parent.
    """
    before = _last_aggregate(reads, target_id)
    if before is None:
        found = decode_or_none(_targets, target.raw)
        before = {} if found is None else found.message.usage or {}
    added: dict[str, Any] = msgspec.to_builtins(child_usage, str_keys=True)
    result = {name: _number(before, name) + _number(added, name) for name in _FIGURES}
    result["totalTokens"] = _number(before, "totalTokens")
    costs = _costs(before), _costs(added)
    result["cost"] = {name: sum(_number(cost, name) for cost in costs) for name in _COSTS}
    return result


def attributions(
    reads: Reads, target_id: str, *, before: int | None = None, page: int = _PAGE
) -> Iterator[Entry]:
    """The attributions to an entry of that id, newest first, before a sequence."""

    def rows(before: int | None) -> list[Indexed]:
        return reads.ask(lambda index: index.about(target_id, before=before, limit=page))

    while found := rows(before):
        for entry in reads._load(found):
            if entry._facts.about == target_id:  # the index says where to look, never what is there
                yield entry
        before = found[-1].sequence


def _last_aggregate(reads: Reads, target_id: str) -> dict[str, Any] | None:
    for entry in attributions(reads, target_id):
        found = decode_or_none(_attributions, entry.raw)
        if found is not None and found.aggregate_usage:
            return found.aggregate_usage
    return None


def _costs(usage: dict[str, Any]) -> dict[str, Any]:
    cost = usage.get("cost")
    return cost if isinstance(cost, dict) else {}


def _number(values: dict[str, Any], name: str) -> Any:
    value = values.get(name, 0)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
