"""Corners of `repair --readmit`: what quarantined bytes can hold besides whole entries."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.build import BLOB, DICTIONARY, ENTRY, REQUEST, STAGED, Made, Maker, compact
from tools_helpers import fine, run

from treering.engine.errors import Conflict, OutcomeUnknown, StorageError
from treering.engine.journal.payload import encode_splice
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.tools import readmit


def started() -> Maker:
    maker = Maker().started()
    maker.open()
    maker.entry("base")
    return maker


def custom(name: str, parent: str | None = "base", **more: Any) -> bytes:
    return compact({"type": "custom", "id": name, "parentId": parent, **more})


def put(home: Path, whole: bytes, start: int, *tails: bytes) -> str:
    """A journal that was cut at ``start``, and what lies in quarantine (else the bytes cut off)."""
    path = home / "sessions" / "s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[:start])
    folder = home / "session-artifacts" / "s" / "quarantine"
    folder.mkdir(parents=True)
    for number, tail in enumerate(tails or (whole[start:],)):
        (folder / f"{start}-{number:016x}.tail").write_bytes(tail)
    return str(path)


def readmitted(path: str) -> dict[str, Any]:
    found: dict[str, Any] = fine("repair", path, "--readmit", "--json").json
    fine("fsck", path)
    return found


def ids(path: str) -> list[str]:
    with SessionView.open(path) as view:
        return [entry.id for entry in view.iter_entries()]


def dictionary(dict_id: int) -> bytes:
    words = random.Random(dict_id)
    samples = [
        b" ".join(words.choice([b"alpha", b"beta", b"gamma"]) for _ in range(40))
        for _ in range(300)
    ]
    trained: bytes = zstandard.train_dictionary(2048, samples, dict_id=dict_id).as_bytes()
    return trained


def packed(maker: Maker, payload: bytes, trained: bytes) -> None:
    compressor = zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(trained), write_checksum=True, write_dict_id=True
    )
    maker.frame(ENTRY, compressor.compress(payload), codec=2, raw=len(payload))


def test_dictionaries_of_both_parts(home: Path) -> None:
    """What stayed and what was cut off have one each; a third one is nowhere."""
    text = "alpha beta gamma " * 20
    ours, theirs, nobodys = (dictionary(number) for number in (901, 902, 903))
    maker = started()
    maker.frame(DICTIONARY, ours)
    start = maker.end
    packed(maker, custom("x", data=text), ours)
    maker.frame(DICTIONARY, theirs)
    packed(maker, custom("y", data=text), theirs)
    packed(maker, custom("z", data=text), nobodys)
    path = put(home, maker.whole(), start)
    found = readmitted(path)
    assert found["readmitted"] == ["x", "y"]
    (left,) = found["left"]
    assert "DICTIONARY 903 is not there" in left


def test_blobs_of_the_part_that_stayed(home: Path) -> None:
    """Between other BLOBs; and none is taken from behind the cut in the journal of today."""
    maker = started()
    shared = b"shared text " * 20
    maker.frame(BLOB, b"another one")
    blob = maker.frame(BLOB, shared)
    start = maker.end
    for name, sequence in (("x", blob.sequence), ("lost", 1)):
        whole = custom(name, data=shared.decode())
        at = whole.index(shared)
        pieces = encode_splice(whole.replace(shared, b""), [(at, sequence, len(shared), 0)])
        maker.frame(ENTRY, pieces, codec=0x80, raw=len(whole))
    path = put(home, maker.whole(), start)
    with Session.open(path) as session:  # the session has gone on behind the cut
        session.append({"type": "custom", "id": "went-on"})
    found = readmitted(path)
    assert (found["readmitted"], found["leafKept"]) == (["x"], True)
    assert "BLOB 1 is not there" in found["left"][0]
    assert ids(path) == ["base", "went-on", "x"]
    told = fine("repair", path, "--readmit").out
    assert "1 entry there already" in told


def test_the_position_that_is_kept_is_told(home: Path) -> None:
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("x"))
    path = put(home, maker.whole(), start)
    with Session.open(path) as session:
        session.append({"type": "custom", "id": "went-on"})
    out = fine("repair", path, "--readmit").out
    assert "the current position stays: the session had gone on elsewhere" in out


def test_a_position_before_any_entry_is_above_nothing(home: Path) -> None:
    """A request comes back and moves no position."""
    maker = started()
    start = maker.end
    maker.frame(REQUEST, custom("r", None).replace(b'"custom"', b'"request"'))
    path = put(home, maker.whole(), start)
    with Session.open(path) as session:
        session.branch_to(None)
    found = readmitted(path)
    assert (found["readmitted"], found["leafKept"]) == (["r"], False)
    with SessionView.open(path) as view:
        assert view.leaf_id is None


def batch_of(maker: Maker, *payloads: bytes) -> list[Made]:
    staged = [maker.frame(ENTRY, payload, flags=STAGED) for payload in payloads]
    maker.activate(staged[0].sequence, staged[-1].sequence, staged[-1].revision)
    return staged


@pytest.mark.parametrize("payload", [b"not json", b"[]"])
def test_a_batch_whose_activation_says_nothing(home: Path, payload: bytes) -> None:
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("x"), flags=STAGED)
    maker.frame(4, payload)
    found = readmitted(put(home, maker.whole(), start))
    assert found["readmitted"] == []
    assert found["left"] == ["1 staged frames whose batch is not whole, or was never activated"]


def test_a_batch_whose_activation_cannot_be_decoded(home: Path) -> None:
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("x"), flags=STAGED)
    maker.frame(4, b"no zstd at all", codec=1, raw=100)
    found = readmitted(put(home, maker.whole(), start))
    assert found["readmitted"] == []
    assert "staged frames" in found["left"][0]


def test_a_batch_of_which_one_entry_is_hindered_stays(home: Path) -> None:
    """All of it or nothing; what lies in two tails comes back once."""
    maker = started()
    start = maker.end
    batch_of(maker, custom("fine"), custom("below-lost", "lost"))
    batch_of(maker, custom("other"), custom("more", "other"))
    whole = maker.whole()
    path = put(home, whole, start, whole[start:], whole[start:])
    found = readmitted(path)
    assert found["readmitted"] == ["other", "more"]
    assert found["left"].count("1 entries of the same batch") == 2
    assert any("'lost', which is not there" in why for why in found["left"])


def test_a_kind_of_frame_that_would_change(home: Path) -> None:
    """A request in an ENTRY frame, and an entry in a REQUEST frame: no writer of ours made them."""
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("r").replace(b'"custom"', b'"request"'))
    maker.frame(REQUEST, custom("e"))
    found = readmitted(put(home, maker.whole(), start))
    assert found["readmitted"] == []
    assert [why.rpartition(": ")[2] for why in found["left"]] == [
        "its kind of frame would change"
    ] * 2


@pytest.mark.parametrize("call", ["listdir", "pread"])
def test_what_the_system_refuses_leaves_nothing_out(
    home: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3 and nothing appended: a refused read says nothing about an entry."""
    maker = started()
    start = maker.end
    batch_of(maker, custom("x"), custom("y", "x"))
    path = put(home, maker.whole(), start)
    before = ids(path)

    def refused(*_: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if call == "listdir":
        monkeypatch.setattr(readmit.os, "listdir", refused)
    else:
        real = readmit.frame_at

        def frame_at(source: Any, salt: int, offset: int) -> Any:
            if source.path.endswith(".tail"):
                raise StorageError("read the quarantine: Input/output error", path=source.path)
            return real(source, salt, offset)

        monkeypatch.setattr(readmit, "frame_at", frame_at)
    ran = run("repair", path, "--readmit")
    assert ran.code == 3
    assert "Input/output error" in ran.stderr
    monkeypatch.undo()
    assert ids(path) == before
    assert readmitted(path)["readmitted"] == ["x", "y"]


def test_a_refused_read_of_one_entry(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same when the entry stands alone, outside of a batch."""
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("x"))
    path = put(home, maker.whole(), start)
    with SessionView.open(path) as view:
        assert readmit.plan(view, view_store(view))[0].readmitted == ["x"]

    def refused(source: Any, salt: int, offset: int) -> Any:
        raise StorageError("refused", path=source.path)

    monkeypatch.setattr(readmit, "frame_at", refused)
    with SessionView.open(path) as view, pytest.raises(StorageError, match="refused"):
        readmit.plan(view, view_store(view))


def view_store(view: SessionView) -> Any:
    from treering.engine.home import Store

    return Store.of_journal(view.path)


def test_an_entry_that_breaks_while_it_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found whole, and not whole a moment later: it stays, with the reason."""
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("x"))
    path = put(home, maker.whole(), start)
    monkeypatch.setattr(readmit, "frame_at", lambda source, salt, offset: None)
    found = fine("repair", path, "--readmit", "--dry-run", "--json").json
    assert found["readmitted"] == []
    assert "does not verify any more" in found["left"][0]


def test_two_facts_when_the_position_cannot_be_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads of a failure alone would believe that nothing was appended."""
    maker = started()
    start = maker.end
    maker.frame(ENTRY, custom("x"))
    path = put(home, maker.whole(), start)
    with Session.open(path) as session:
        session.append({"type": "custom", "id": "went-on"})

    def failing(self: Session, entry_id: str | None) -> None:
        raise OutcomeUnknown("a sync failed")

    monkeypatch.setattr(Session, "branch_to", failing)
    ran = run("repair", path, "--readmit")
    assert ran.code != 0
    assert "appended again, but not the position kept: a sync failed" in ran.stderr
    monkeypatch.undo()
    assert ids(path) == ["base", "went-on", "x"]


def test_what_is_above_what(home: Path) -> None:
    maker = started()
    path = put(home, maker.whole(), maker.end)
    with Session.open(path) as session:
        session.append({"type": "custom", "id": "below"})
        assert readmit._is_above(session, "base")
        assert readmit._is_above(session, "below")
        with pytest.raises(Conflict, match="cannot be found"):
            readmit._is_above(session, "nobody")
        session.branch_to("base")
        assert not readmit._is_above(session, "below")
        session.branch_to(None)
        assert not readmit._is_above(session, "base")
