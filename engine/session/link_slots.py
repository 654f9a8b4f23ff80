"""The places for links of requests, and which requests fit each: for writing and for reporting."""

from __future__ import annotations

from typing import Final, NamedTuple

REFINEMENT: Final = "prime-agent.refinement"
"""The ``customType`` of the entries that tell of a refinement."""


class Slot(NamedTuple):
    """A place for links, and what its requests must have been made for."""

    name: str
    purpose: str
    detail: str | None
    """None: whatever the detail is."""


MAIN: Final = Slot("an assistant message", "main", None)
BRANCH: Final = Slot("a branch summary", "summary", "branch")
PLANNER: Final = Slot("a refinement", "refine", "plan")
PARTS: Final = {
    "history": Slot("the history part", "summary", "compaction"),
    "turn-prefix": Slot("the turn-prefix part", "summary", "compaction-turn-prefix"),
}
