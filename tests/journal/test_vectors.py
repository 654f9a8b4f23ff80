"""Agreement with the vectors of an independent implementation of the format page."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import build

from treering.engine import errors
from treering.engine.journal.control import decode_leaf
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import Frame, Kind, decode_file_header
from treering.engine.journal.history import Walk
from treering.engine.journal.reader import Scan
from treering.fuzz import oracle

FOLDER = Path(
    os.environ.get("TREERING_VECTORS") or Path(__file__).resolve().parents[3] / "shared/vectors"
)
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

if not NAMES:
    pytest.skip(
        f"no vectors in {FOLDER}: set TREERING_VECTORS to their folder", allow_module_level=True
    )


@pytest.fixture(params=NAMES)
def vector(request: pytest.FixtureRequest) -> dict[str, Any]:
    found = json.loads((FOLDER / f"{request.param}.json").read_bytes())
    found["data"] = (FOLDER / f"{request.param}.bin").read_bytes()
    found["mark"] = bytes.fromhex(found["watermark"]) if found["watermark"] else None
    return found


def as_expected(frame: Frame) -> dict[str, Any]:
    known = frame.kind in list(Kind)
    return {
        "offset": frame.offset,
        "kind": frame.kind,
        "name": Kind(frame.kind).name if known else f"kind {frame.kind}",
        "codec": frame.codec,
        "flags": frame.flags,
        "stored": frame.stored,
        "raw": frame.raw,
        "sequence": frame.sequence,
        "epoch": frame.epoch,
        "unsynced": frame.unsynced,
        "previous": frame.previous.hex(),
        "revision": frame.revision.hex(),
    }


def test_file_is_the_one_described(vector: dict[str, Any]) -> None:
    """The vector's bytes are those that its description was made for."""
    assert len(vector["data"]) == vector["bytes"]
    assert hashlib.sha256(vector["data"]).hexdigest() == vector["sha256"]


def test_oracle_agrees(vector: dict[str, Any]) -> None:
    """Our own second reading of the case table agrees with the independent implementation."""
    verdict = oracle.judge(vector["data"], vector["mark"])
    assert verdict.case == vector["case"]
    if "frames" in vector:
        assert [f.offset for f in verdict.frames] == [f["offset"] for f in vector["frames"]]
        assert [f.offset for f in verdict.beyond] == [f["offset"] for f in vector["beyond"]]


def test_header(vector: dict[str, Any]) -> None:
    """Every field of the file header is read as described; another format has none."""
    header = decode_file_header(vector["data"][:128], "x")
    if "header" not in vector:
        assert header is None
        return
    assert header is not None
    assert {
        "version": header.version,
        "header_length": header.header_length,
        "required": header.required,
        "optional": header.optional,
        "created": header.created_ms,
        "journal_id": header.journal_id.hex(),
        "published_length": header.published_length,
    } == vector["header"]
    assert header.salt == vector["salt"]


def test_frames_and_case(vector: dict[str, Any]) -> None:
    """Case, offset of the damage, every frame before it and every good frame beyond it agree."""
    found = build.look(vector["data"], vector["mark"])
    assert found.case == vector["case"]
    report = found.report()
    assert report.case == vector["case"]
    if vector["case"] == "G":
        return
    assert report.bad_offset == vector["bad_offset"]
    assert report.expected_sequence == vector["next_sequence"]
    assert report.proven_below == vector["proven_below"]
    assert [as_expected(frame) for frame in found.beyond] == vector["beyond"]
    scan = Scan(build.Memory(vector["data"]), vector["salt"])
    assert [as_expected(frame) for frame, _ in scan.frames()] == vector["frames"]


def test_what_is_visible(vector: dict[str, Any]) -> None:
    """What a reader shows, in order, byte for byte; the leaf; what is abandoned; the requests."""
    if vector["case"] == "G":
        return
    journal_id = bytes.fromhex(vector["header"]["journal_id"])
    walk = Walk(build.Memory(vector["data"]), journal_id)
    entries, requests, leaf = [], [], None
    decode = walk.history.shared.decoder.decode
    for frame, stored in walk.visible():
        payload = decode(frame, stored)
        if frame.kind == Kind.REQUEST:
            requests.append(frame.sequence)
        elif frame.kind == Kind.LEAF:
            named = decode_leaf(payload)
            assert named is not None
            leaf = {"leaf_frame": named.leaf}
        else:
            entries.append({"sequence": frame.sequence, "payload": payload.decode()})
            leaf = frame.sequence
    walk.history.finish()
    assert entries == vector["visible"]
    assert requests == vector["requests"]
    assert leaf == vector["leaf"]
    assert walk.history.abandoned == vector["abandoned"]
    assert walk.history.abandoned_count == len(vector["abandoned"])
    assert [p.sequence for p in walk.history.problems] == vector["not_understood"]


def test_writer_open(vector: dict[str, Any], tmp_path: Path) -> None:
    """An open for writing does to a copy exactly what is described, and no more."""
    store = build.make_store(tmp_path)
    path = build.put(store, vector["data"])
    expected = vector["writer_open"]
    if expected["action"] == "refuse":
        with pytest.raises(getattr(errors, expected["error"])) as caught:
            build.reopen(store)
        assert type(caught.value).__name__ == expected["error"]
        assert build.get(path) == vector["data"]
        assert not os.path.exists(store.quarantine)
        return
    opened = build.reopen(store)
    size = expected["size_after_open"]
    assert build.get(path) == vector["data"][:size]
    assert opened.report.quarantined_bytes == expected["quarantined_bytes"]
    assert opened.report.quarantined_frames == expected["quarantined_whole_frames"]
    if expected["cut_at"] is None:
        assert opened.report.quarantine is None
        assert size == len(vector["data"])
    else:
        assert opened.report.quarantine is not None
        assert build.get(opened.report.quarantine) == vector["data"][expected["cut_at"] :]
    writer = build.writer_of(opened)
    writer.append([build.entry("next")])
    first = expected["first_frame_written_next"]
    salt = int.from_bytes(writer.journal_id[:8], "little")
    data = build.get(path)
    frames = [frame for frame, _ in Scan(build.Memory(data), salt).frames()]
    written = next(frame for frame in frames if frame.offset >= size)
    assert {key: as_expected(written)[key] for key in first} == first
    writer.close()
    again = build.reopen(store)
    assert again.report.case == "A"
    again.owner.release()


def test_reading_changes_nothing(vector: dict[str, Any], tmp_path: Path) -> None:
    """Examining a file of any case leaves it alone."""
    path = tmp_path / "s1.jsonl"
    path.write_bytes(vector["data"])
    file = LOCAL_DISK.open(str(path))
    before = os.stat(path)
    build.look_at(str(path), vector["mark"])
    file.close()
    after = os.stat(path)
    assert path.read_bytes() == vector["data"]
    assert before.st_mtime_ns == after.st_mtime_ns
