"""Numbering, chaining and encoding frames. Pure: nothing here does I/O."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from treering.engine import environment
from treering.engine.errors import LimitExceeded
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import CODEC_RAW, Frame, Kind, encode_frame, salt_of
from treering.engine.journal.payload import (
    COMPRESS_WITH_DICTIONARY_FROM_BYTES,
    Dictionary,
    compress,
)
from treering.engine.limits import PAYLOAD_BYTES_MAX

Durability = control.Durability

NEVER = PAYLOAD_BYTES_MAX + 1


class FrameBuilder:
    """Numbers, chains and encodes frames. Pure: the state moves only when the caller says so."""

    def __init__(self, journal_id: bytes, *, compress_from: int | None) -> None:
        self.journal_id = journal_id
        self._salt = salt_of(journal_id)
        self._compress_from = NEVER if compress_from is None else compress_from
        self._compress = compress

    def use(self, dictionary: Dictionary) -> None:
        """Compress with this dictionary from now on; it is in the journal."""
        self._compress = dictionary.compress
        self._compress_from = COMPRESS_WITH_DICTIONARY_FROM_BYTES

    def build(
        self, records: Iterable[Record], state: State, *, extra_flags: int = 0
    ) -> tuple[list[bytes], list[Frame], State]:
        """The encoded frames, their headers, and the state behind them."""
        offset, sequence, epoch, revision, synced_below, epoch_frames = state
        salt, compress_from = self._salt, self._compress_from
        new = tuple.__new__
        pieces: list[bytes] = []
        frames: list[Frame] = []
        for kind, payload, flags in records:
            raw = len(payload)
            if raw > PAYLOAD_BYTES_MAX:
                raise LimitExceeded(
                    f"a payload of {raw} bytes; a frame holds {PAYLOAD_BYTES_MAX}",
                    limit=PAYLOAD_BYTES_MAX,
                    need=raw,
                )
            codec, stored = CODEC_RAW, payload
            if raw >= compress_from and kind in _COMPRESSIBLE:
                codec, stored = self._compress(payload)
            previous = revision[:8]
            all_flags = flags | extra_flags
            unsynced = sequence - synced_below
            data, revision = encode_frame(
                kind, codec, all_flags, stored, raw, sequence, epoch, unsynced, previous, salt
            )
            pieces.append(data)
            size = len(stored)
            frames.append(
                new(
                    Frame,
                    (
                        offset,
                        kind,
                        codec,
                        all_flags,
                        size,
                        raw,
                        sequence,
                        epoch,
                        unsynced,
                        previous,
                        revision,
                    ),
                )
            )
            offset += len(data)
            sequence += 1
            epoch_frames += 1
        return pieces, frames, State(offset, sequence, epoch, revision, synced_below, epoch_frames)


class State(NamedTuple):
    """Where the next frame goes."""

    offset: int
    sequence: int
    epoch: int
    revision: bytes
    synced_below: int
    epoch_frames: int


_COMPRESSIBLE = frozenset((Kind.ENTRY, Kind.REQUEST, Kind.PROVENANCE))


def epoch_open_payload(
    journal_id: bytes, epoch: int, purpose: control.Purpose, durability: Durability
) -> bytes:
    """The payload of an EPOCH_OPEN written by this process now."""
    from treering import __version__  # noqa: PLC0415 (the root loads the engine, not before)

    return control.encode(
        control.EpochOpen(
            journal=journal_id.hex(),
            epoch=epoch,
            purpose=purpose,
            durability=durability,
            requires=[],
            uses=[],
            writer=control.WriterInfo(
                pid=os.getpid(),
                host=environment.host_name(),
                boot=environment.boot_id(),
                started=environment.process_started_ms(),
                version=__version__,
            ),
            opened=environment.now_ms(),
        )
    )
