"""The JSON payloads of control frames: EPOCH_OPEN, EPOCH_ACTIVATE, EPOCH_CLOSE, LEAF, GAP."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeVar

import msgspec

from treering.engine.json_text import decode_or_none
from treering.engine.limits import CONTROL_PAYLOAD_BYTES_MAX

Purpose = Literal["create", "append", "import", "fork", "repair", "repack"]
Durability = Literal["full", "os"]

REQUIRES_KNOWN: Final[frozenset[str]] = frozenset()
"""Names that an EPOCH_OPEN may list in ``requires`` without this release refusing to write."""

_Payload = TypeVar("_Payload")

_HEX_ID = re.compile(r"[0-9a-f]{32}\Z")


class WriterInfo(msgspec.Struct, frozen=True):
    """Who wrote an epoch, for people and reports."""

    pid: int
    host: str
    boot: str
    started: int
    version: str


class EpochOpen(msgspec.Struct, frozen=True):
    """Payload of EPOCH_OPEN."""

    journal: str
    epoch: int
    purpose: str
    durability: str
    requires: list[str]
    uses: list[str]
    writer: WriterInfo
    opened: int


class EpochActivate(msgspec.Struct, frozen=True):
    """Payload of EPOCH_ACTIVATE."""

    first: int
    last: int
    revision: str


class EpochClose(msgspec.Struct, frozen=True):
    """Payload of EPOCH_CLOSE."""

    journal: str
    epoch: int
    frames: int


class Leaf(msgspec.Struct, frozen=True):
    """Payload of LEAF."""

    leaf: str | None


class Gap(msgspec.Struct, frozen=True):
    """Payload of GAP: what a repair could not carry over."""

    offset: int
    bytes: int
    first: int
    last: int | None


class _AnyEpoch(msgspec.Struct):
    journal: str


encode = msgspec.json.encode
_open = msgspec.json.Decoder(EpochOpen)
_activate = msgspec.json.Decoder(EpochActivate)
_close = msgspec.json.Decoder(EpochClose)
_leaf = msgspec.json.Decoder(Leaf)
_gap = msgspec.json.Decoder(Gap)
_any_epoch = msgspec.json.Decoder(_AnyEpoch)


def decode_open(payload: bytes) -> EpochOpen | None:
    """The payload, or None when it is not what the format page says."""
    return _decoded(_open, payload)


def decode_activate(payload: bytes) -> EpochActivate | None:
    """See :func:`decode_open`."""
    return _decoded(_activate, payload)


def decode_close(payload: bytes) -> EpochClose | None:
    """See :func:`decode_open`."""
    return _decoded(_close, payload)


def decode_leaf(payload: bytes) -> Leaf | None:
    """See :func:`decode_open`."""
    return _decoded(_leaf, payload)


def decode_gap(payload: bytes) -> Gap | None:
    """See :func:`decode_open`."""
    return _decoded(_gap, payload)


def journal_id_in(payload: bytes) -> bytes | None:
    """The journal id that an EPOCH payload repeats."""
    found = _decoded(_any_epoch, payload)
    if found is None or not _HEX_ID.match(found.journal):
        return None
    return bytes.fromhex(found.journal)


def _decoded(decoder: msgspec.json.Decoder[_Payload], payload: bytes) -> _Payload | None:
    if len(payload) > CONTROL_PAYLOAD_BYTES_MAX:
        return None
    return decode_or_none(decoder, payload)
