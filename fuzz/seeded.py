"""The same clock, randomness and names in every run: what makes a state reproducible."""

from __future__ import annotations

import os
import random
from types import TracebackType
from typing import Any, Final, Self

from treering.engine import environment
from treering.engine.journal import framing, ownership
from treering.engine.session.housekeeping import Housekeeper

START_MS: Final = 1_700_000_000_000


class SeededEnvironment:
    """Inside, the engine's clock, randomness, host and process number depend on the seed only.

    The clock moves on by a millisecond each time that it is read. No background thread is started:
    what it would do, a flow does at a moment of its own choice. For one thread at a time.
    """

    def __init__(self, seed: int) -> None:
        self._saved: list[tuple[Any, str, Any]] = []
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Begin anew with another seed."""
        self._draw = random.Random(seed)
        self._now_ms = START_MS + seed % 1000 * 86_400_000
        self._sessions = 0

    def __enter__(self) -> Self:
        for name, value in {
            "now_ms": self._tick,
            "random_bytes": lambda count: bytes(self._draw.randbytes(count)),
            "new_session_id": self._session_id,
            "short_entry_ids": lambda n: [f"{self._draw.getrandbits(32):08x}" for _ in range(n)],
            "long_entry_id": lambda: f"{self._draw.getrandbits(128):032x}",
            "host_name": lambda: "host",
            "boot_id": lambda: "boot",
            "process_started_ms": lambda: START_MS,
        }.items():
            self._replace(environment, name, value)
        process = _Process()
        self._replace(framing, "os", process)
        self._replace(ownership, "os", process)
        self._replace(Housekeeper, "_start", lambda _: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self._saved.clear()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _session_id(self) -> str:
        self._sessions += 1
        return f"seeded-{self._sessions}"

    def _tick(self) -> int:
        self._now_ms += 1
        return self._now_ms


class _Process:
    """The module ``os`` with a fixed process number: its digits are bytes of a journal."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    @staticmethod
    def getpid() -> int:
        """A number with which no owner is checked."""
        return 4242
