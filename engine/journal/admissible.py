"""What a writer may append: nothing that our own reader would refuse to go on behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from treering.engine.errors import Invalid
from treering.engine.journal import control
from treering.engine.journal.format import (
    FLAG_QUALIFICATION_SHIFT,
    KNOWN_KINDS,
    OPTIONAL_KIND_BIT,
    QUALIFICATIONS,
    STAGEABLE_KINDS,
    Kind,
)
from treering.engine.journal.payload import dictionary_id


class Record(NamedTuple):
    """What to append: a kind, a payload, and the flags of its frame (without STAGED)."""

    kind: int
    payload: bytes
    flags: int = 0


_APPENDABLE: Final = STAGEABLE_KINDS | {Kind.DICTIONARY, Kind.BLOB, Kind.GAP}
_FLAGS_END: Final = len(QUALIFICATIONS) << FLAG_QUALIFICATION_SHIFT


def check_records(records: Iterable[Record], *, batch: bool) -> None:
    """Refuse records that would make the journal read-only for ever.

    Raises:
        Invalid: a flag, kind or control payload that no reader accepts there; nothing was written.
    """
    for kind, payload, flags in records:
        if not 0 <= flags < _FLAGS_END:
            raise Invalid(f"a frame with flags {flags:#x} would not be understood")
        if kind == Kind.ENTRY:
            continue
        why = _unfit(kind, payload, batch=batch)
        if why is not None:
            raise Invalid(why)


def _unfit(kind: int, payload: bytes, *, batch: bool) -> str | None:
    if kind not in KNOWN_KINDS:
        if batch or not OPTIONAL_KIND_BIT <= kind < 256:
            return f"kind {kind} would not be understood"
        return None
    name = Kind(kind).name
    if kind not in _APPENDABLE:
        return f"{name} is written by the writer itself"
    if batch and kind not in STAGEABLE_KINDS:
        return f"{name} cannot be part of a batch"
    if kind == Kind.LEAF and control.decode_leaf(payload) is None:
        return "a LEAF payload that nobody could read"
    if kind == Kind.GAP and control.decode_gap(payload) is None:
        return "a GAP payload that nobody could read"
    if kind == Kind.DICTIONARY and not dictionary_id(payload):
        return "a DICTIONARY without an id"
    return None
