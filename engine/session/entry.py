"""One stored entry: its exact bytes, and views of them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from treering.engine.journal.format import (
    FLAG_QUALIFICATION_MASK,
    FLAG_QUALIFICATION_SHIFT,
    FLAG_RETAINED,
    QUALIFICATIONS,
)
from treering.engine.session.entries import KnownEntry, UnknownEntry, decode_entry
from treering.engine.session.facts import Facts, facts_of

Retention = Literal["retained-import"]

CONTEXT_EPOCH: Final = "native-context-epoch"
CONTEXT_EPOCH_FLAGS: Final = QUALIFICATIONS.index(CONTEXT_EPOCH) << FLAG_QUALIFICATION_SHIFT


def is_context_epoch(flags: int) -> bool:
    """Whether frame flags say that the engine wrote a context epoch here, itself."""
    return flags & (FLAG_QUALIFICATION_MASK | FLAG_RETAINED) == CONTEXT_EPOCH_FLAGS


class Entry(NamedTuple):
    """An entry as it is in the journal. ``raw`` are the bytes that came in."""

    raw: bytes
    id: str
    """The id that addresses it: its own, or a derived one where its own is missing or taken."""
    sequence: int
    revision: bytes
    flags: int
    unresolved: Literal["missing", "cycle"] | None = None
    """Why the entry has no parent although it names one."""
    unproven: bool = False
    """Whether nothing yet proves the entry durable (only in views of a session that is in use)."""

    @property
    def _facts(self) -> Facts:
        return facts_of(self.raw)

    @property
    def type(self) -> str:
        """The kind of entry, as in the file."""
        return self._facts.kind

    @property
    def parent_id(self) -> str | None:
        """The parent that the entry names; see :attr:`unresolved`."""
        return self._facts.parent_id

    @property
    def role(self) -> str | None:
        """The role, when it is a message."""
        return self._facts.role

    @property
    def timestamp_ms(self) -> int | None:
        """Unix ms; None when the entry has no usable timestamp."""
        return self._facts.timestamp_ms

    @property
    def retention(self) -> Retention | None:
        """``retained-import`` for imported entries. None establishes nothing about authorship."""
        return "retained-import" if self.flags & FLAG_RETAINED else None

    @property
    def qualification(self) -> str | None:
        """Which of the engine's own verbs wrote it, if one did."""
        return QUALIFICATIONS[(self.flags & FLAG_QUALIFICATION_MASK) >> FLAG_QUALIFICATION_SHIFT]

    def decode(self) -> KnownEntry | UnknownEntry:
        """The typed entry; :class:`UnknownEntry` for kinds and shapes that are not documented."""
        return decode_entry(self.raw)
