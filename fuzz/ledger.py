"""What must be there after a crash, and what may be: acknowledgements, and attempts in flight.

A flow tells the ledger of every attempt before it makes it and of its outcome after. Whatever is
acknowledged must be there; of what was in flight, a prefix may be; nothing else ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple


class Attempt(NamedTuple):
    """Items that were handed in together: a prefix of them may be there, or all or none."""

    items: tuple[Hashable, ...]
    atomic: bool
    returned: bool = False
    """Whether it was acknowledged without a promise of durability: only a power failure, not the
    end of the process, may take it away."""


class Expectation(NamedTuple):
    """What a crash at one moment may leave."""

    acknowledged: tuple[Hashable, ...]
    pending: tuple[Attempt, ...]
    facts: tuple[tuple[str, Hashable], ...]
    """Whatever else the flow wants to be remembered, by name."""

    def fact(self, name: str) -> Hashable:
        """A remembered fact, None where there is none."""
        return dict(self.facts).get(name)

    def after_death(self) -> Expectation:
        """The same when only the process ended: what it wrote is there, whoever synced it."""
        last = max((at for at, one in enumerate(self.pending, 1) if one.returned), default=0)
        there = tuple(item for one in self.pending[:last] for item in one.items)
        return Expectation(self.acknowledged + there, self.pending[last:], self.facts)

    def allowed(self) -> set[tuple[Hashable, ...]]:
        """Every sequence of items that may be found."""
        whole = self.acknowledged
        found = {whole}
        for attempt in self.pending:
            if not attempt.atomic:
                found |= {whole + attempt.items[:n] for n in range(len(attempt.items))}
            whole += attempt.items
            found.add(whole)
        return found


class Ledger:
    """The record that a flow keeps outside of what it tests."""

    def __init__(self) -> None:
        self._acknowledged: tuple[Hashable, ...] = ()
        self._pending: list[Attempt] = []
        self._facts: dict[str, Hashable] = {}

    @property
    def expectation(self) -> Expectation:
        """What must and may be found after a crash now."""
        return Expectation(
            self._acknowledged, tuple(self._pending), tuple(sorted(self._facts.items()))
        )

    @contextlib.contextmanager
    def attempt(
        self,
        *items: Hashable,
        atomic: bool = False,
        durable: bool = True,
        refusals: tuple[type[BaseException], ...] = (),
        unknown: tuple[type[BaseException], ...] = (BaseException,),
    ) -> Iterator[None]:
        """The block makes the attempt. Leaving it acknowledges the items.

        Args:
            items: what is handed in.
            atomic: whether all or none of them must be there.
            durable: False where the acknowledgement does not promise durability.
            refusals: errors that promise that nothing was stored.
            unknown: errors (looked at first) after which nobody knows.
        """
        self._pending.append(Attempt(tuple(items), atomic))
        try:
            yield
        except unknown:
            raise
        except refusals:
            self._pending.pop()
            raise
        if durable:
            self.settle()
        else:
            self._pending[-1] = self._pending[-1]._replace(returned=True)

    def begin(self, found: Sequence[Hashable]) -> None:
        """What is durable before the flow starts."""
        self._acknowledged = tuple(found)

    def resume(self, expectation: Expectation) -> None:
        """Go on after a power failure at which this was expected."""
        self._acknowledged, pending, facts = expectation
        self._pending = [attempt._replace(returned=False) for attempt in pending]
        self._facts = dict(facts)

    def settle(self) -> None:
        """Everything that was handed in is acknowledged as durable."""
        for attempt in self._pending:
            self._acknowledged += attempt.items
        self._pending.clear()

    def observe(self, found: Sequence[Hashable], *, power_failed: bool = True) -> None:
        """A recovery decided what is there: from now on exactly this must be.

        Args:
            found: what it shows.
            power_failed: False where only a process can have ended since the last attempt.

        Raises:
            AssertionError: it is nothing that may be there.
        """
        expected = self.expectation if power_failed else self.expectation.after_death()
        assert tuple(found) in expected.allowed(), f"{found!r} may not be there"
        self._acknowledged = tuple(found)
        self._pending.clear()

    def remember(self, name: str, value: Hashable) -> None:
        """Note a fact for the check."""
        self._facts[name] = value
