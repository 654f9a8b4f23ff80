"""What recorded requests used: a reduction of a session's request records, and of nothing else.

An attempt that was admitted and not settled has spent nobody knows how much; a receipt without a
figure does not say zero. Records that a copy or an import brought along belong to the session that
their source names. Probes that only counted tokens are no requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from treering.engine import home
from treering.engine.json_text import decode_or_none
from treering.engine.limits import PAGE_ENTRIES
from treering.engine.session.reads import Reads, pieces
from treering.engine.session.requests import ADMITTED, SETTLED
from treering.index import Entry as Indexed

_FIGURES: Final = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
_PROBE: Final = ("native-control", "input-token-count")


@dataclass
class RequestUsage:
    """Figures of attempts; tokens are sums of what receipts state."""

    attempts: int = 0
    unsettled: int = 0
    """Admitted, and never settled: their use is not known."""
    unstated: int = 0
    """Settled without a figure."""
    tokens: dict[str, int] = field(default_factory=dict)
    """``input``, ``output``, ``cacheRead``, ``cacheWrite`` and ``totalTokens``, where stated."""

    def add(self, receipt: dict[str, Any] | None) -> None:
        """Count one attempt; None was never settled."""
        self.attempts += 1
        if receipt is None:
            self.unsettled += 1
            return
        usage = receipt.get("usage")
        stated = usage if isinstance(usage, dict) else {}
        known: dict[str, int] = {
            name: stated[name] for name in _FIGURES if _is_count(stated.get(name))
        }
        self.unstated += not known
        for name, value in known.items():
            self.tokens[name] = self.tokens.get(name, 0) + value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class _Source(msgspec.Struct, rename="camel"):
    session_id: str


class _Event(msgspec.Struct, rename="camel"):
    type: str
    attempt_id: str
    source: _Source
    purpose: str = ""
    purpose_detail: Any = None
    receipt: Any = None


class _Record(msgspec.Struct):
    request: _Event


_records = msgspec.json.Decoder(_Record)


def request_usage(reads: Reads) -> dict[str, RequestUsage]:
    """The use of the session's own requests, by purpose; a malformed record counts for nothing.

    Memory grows with the attempts.
    """
    attempts: dict[str, tuple[str, dict[str, Any] | None]] = {}
    own = home.session_id_of(reads.path)
    for event in _events(reads):
        if event.source.session_id != own or (event.purpose, event.purpose_detail) == _PROBE:
            continue
        if event.type == SETTLED:  # the last one counts
            receipt = event.receipt if isinstance(event.receipt, dict) else {}
            usage = receipt.get("usage")  # the rest of a receipt can be large
            stated = usage if isinstance(usage, dict) else {}
            figures = {name: stated[name] for name in _FIGURES if name in stated}
            attempts[event.attempt_id] = (event.purpose, {"usage": figures})
        elif event.type == ADMITTED:
            attempts.setdefault(event.attempt_id, (event.purpose, None))
    found: dict[str, RequestUsage] = {}
    for purpose, settled in attempts.values():
        found.setdefault(purpose, RequestUsage()).add(settled)
    return found


def _events(reads: Reads) -> Iterator[_Event]:
    """The events in order; about 8 MiB of records are held."""

    def page(after: int) -> list[Indexed]:
        return reads.ask(lambda index: index.by_kind("request", after=after, limit=PAGE_ENTRIES))

    after = 0
    while rows := page(after):
        after = rows[-1].sequence
        for piece in pieces(rows):
            for entry in reads._load(piece):
                record = decode_or_none(_records, entry.raw)
                if record is not None and entry.retention is None:
                    yield record.request
