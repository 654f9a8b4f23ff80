# ruff: noqa: E402 (the helpers are found only after their folder is in sys.path)
"""Makes the golden journals of format version 1 beside this file. Run once; never again.

    python tests/data/make_golden.py

The bytes of a published format never change: when the engine no longer makes or reads these
files as they are, the engine is wrong. Existing files are never overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support import build

import treering
from treering.engine import environment
from treering.engine.journal import writer as writer_module
from treering.engine.journal.admissible import Record

LONG = "a long line that zstd makes short. " * 20


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """The same clock, randomness, machine and process every time."""
    ticks = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    seeds = iter(range(1, 1 << 30))

    def random_bytes(count: int) -> bytes:
        return hashlib.sha256(f"golden {next(seeds)}".encode()).digest()[:count]

    with (
        mock.patch.object(environment, "now_ms", side_effect=ticks),
        mock.patch.object(environment, "random_bytes", random_bytes),
        mock.patch.object(environment, "host_name", return_value="host"),
        mock.patch.object(environment, "boot_id", return_value="boot"),
        mock.patch.object(environment, "process_started_ms", return_value=1_699_999_999_000),
        mock.patch.object(os, "getpid", return_value=4242),
        mock.patch.object(treering, "__version__", "1.0.0"),
    ):
        yield


def fresh(store: build.Store) -> bytes:
    """Created, closed, nothing more."""
    build.create(store).close()
    return build.get(store.path())


def epochs(store: build.Store) -> bytes:
    """Three epochs: an import with retained and compressed entries, a batch, a crash at the end."""
    records = [
        build.SESSION_RECORD,
        Record(build.PROVENANCE, b'{"format":"pi","version":3}\0{"type":"session"}'),
        build.entry("i1")._replace(flags=build.RETAINED),
        build.entry("i2", LONG)._replace(flags=build.RETAINED),
    ]
    writer = build.create(store, records)
    writer.append([build.entry("a1"), build.entry("a2", LONG)._replace(flags=2)])
    writer.append_batch([build.entry("b1"), Record(build.LEAF, b'{"leaf":"a1"}')])
    writer.close()
    writer = build.writer_of(build.reopen(store))
    writer.append([Record(build.REQUEST, b'{"type":"request"}'), build.entry("c1")])
    build.crash(writer)
    return build.get(store.path())


def kinds(store: build.Store) -> bytes:
    """An unknown optional kind (skipped), then an unknown required one (writing is refused)."""
    writer = build.create(store)
    writer_module.check_records = lambda records, *, batch: None  # nothing of ours writes these
    writer.append([Record(200, b"skip"), build.entry("a1"), Record(77, b"what"), build.entry("a2")])
    writer.close()
    return build.get(store.path())


def batch(store: build.Store) -> bytes:
    """Nothing compressed: appends, a batch, LEAF, REQUEST, a clean close."""
    writer = build.create(store)
    writer.append([build.entry("a1"), build.entry("a2")._replace(flags=4)])
    writer.append_batch([build.entry("b1"), Record(build.REQUEST, b'{"type":"request"}')])
    writer.append([Record(build.LEAF, b'{"leaf":null}')])
    writer.close()
    return build.get(store.path())


RECIPES: dict[str, Callable[[build.Store], bytes]] = {
    "fresh": fresh,
    "batch": batch,
    "epochs": epochs,
    "kinds": kinds,
}


def make(name: str) -> bytes:
    """The bytes of one golden journal, made by the engine."""
    with tempfile.TemporaryDirectory() as folder, frozen():
        return RECIPES[name](build.make_store(Path(folder)))


def describe(data: bytes) -> dict[str, Any]:
    """What a reader finds in it."""
    found = build.look(data)
    assert found.header is not None
    assert found.walk is not None
    from treering.engine.journal.reader import Scan

    scan = Scan(build.Memory(data), found.header.salt)
    header = found.header._asdict() | {"journal_id": found.header.journal_id.hex()}
    return {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "case": found.case,
        "header": header,
        "frames": [
            frame._asdict() | {"previous": frame.previous.hex(), "revision": frame.revision.hex()}
            for frame, _ in scan.frames()
        ],
        "visible": [
            [sequence, kind, payload.decode()]
            for sequence, kind, payload in build.visible(data, found.header.journal_id)
        ],
        "proven_below": found.proven_below,
        "problems": [list(problem) for problem in found.walk.history.problems],
    }


def main() -> None:
    """Write what is not there yet."""
    for name in RECIPES:
        target = HERE / f"golden-{name}.jsonl"
        if target.exists():
            continue
        data = make(name)
        target.write_bytes(data)
        (HERE / f"golden-{name}.json").write_text(json.dumps(describe(data), indent=1) + "\n")


if __name__ == "__main__":
    main()
