"""Every sequence of up to three verbs, each a flow of its own (bounded exhaustive exploration)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from treering.fuzz.explorer import Flow
from treering.fuzz.flows.world import ADVISORY, VERBS, SessionCheck, World, make_session, run_verbs
from treering.fuzz.ledger import Ledger

LENGTH_MAX: Final = 3


def sequence_flow(verbs: Sequence[str]) -> Flow:
    """The flow that does these verbs to a session of one entry."""

    def run(disk: Any, ledger: Ledger, _: object) -> None:
        run_verbs(World(disk, ledger), [VERBS[verb] for verb in verbs])

    return Flow("+".join(verbs), make_session, run, SessionCheck(), ADVISORY)


def sequences(length_max: int = LENGTH_MAX) -> Iterator[Flow]:
    """All of them, the short ones first."""
    for length in range(1, length_max + 1):
        for verbs in itertools.product(VERBS, repeat=length):
            yield sequence_flow(verbs)
