"""Forks and branch copies: what is in them, what is not, and that the source does not matter after."""

from __future__ import annotations

import errno
import json
import random
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from copy_helpers import copied, label, raw_entry, shown, store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_helpers import crash, custom, files_below, new, read_bytes, user, write_bytes
from support.long_runs import LONG

from treering.engine import (
    AcknowledgedDataLost,
    Closed,
    CopyLimits,
    Damaged,
    Invalid,
    InvalidSource,
    LimitExceeded,
    NotFound,
    Session,
    SessionView,
    SourceChanged,
    TreeringError,
    Unsupported,
    import_session,
    jsonl_lines,
    repair,
)
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import Kind
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.session.readmission import readmit
from treering.engine.session.reads import Reads
from treering.engine.transfer import importing
from treering.engine.transfer.copying import copy_branch, fork_session, prepare_fork
from treering.fuzz.faulty_disk import FaultyDisk

HEADER = (
    b'{"type":"session","version":3,"id":"src","timestamp":"2024-12-03T14:00:00.000Z","cwd":"/p"}'
)


def legacy(tmp_path: Path, *lines: bytes, end: bytes = b"\n", name: str = "old.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(b"\n".join((HEADER, *lines)) + end)
    return str(path)


def imported(tmp_path: Path, *lines: bytes) -> str:
    return import_session(legacy(tmp_path, *lines), cwd="/w", home_dir=store(tmp_path)).path


def sample(tmp_path: Path) -> Session:
    """Two branches, labels on both, a cleared label, a request, a name, a moved position."""
    session = new(tmp_path)
    for raw in (
        raw_entry("a", None),
        label("l1", "a", "a", "one", 1),
        raw_entry("b", "l1"),
        raw_entry("q", "b", "request"),
        label("l2", "b", "b", "two", 2),
        label("l3", "l2", "a", "one again", 3),
        raw_entry("c", "l3"),
        raw_entry("side", "a"),
        label("l4", "side", "side", "beside", 4),
        label("l5", "l4", "c", "seen from elsewhere", 5),
        label("l6", "l5", "b", None, 6),
    ):
        session.append(raw)
    session.set_name("sample")
    session.branch_to("c")
    return session


# Forks of journals


def test_a_fork_holds_the_whole_source(tmp_path: Path) -> None:
    """Content: whole file, all branches, labels as they are; cwd is the target's, the parent the
    source; the position is where the source stands, also where that is no last record.
    """
    with sample(tmp_path) as session:
        raws = [entry.raw for entry in session.iter_entries()]
        leaf, labels = session.leaf_id, {e.id: text for e, text in session.labels()}
        path, header = session.path, session.header_bytes()
    before = read_bytes(path)
    done = fork_session(path, "/target", home_dir=store(tmp_path))
    found = copied(done)
    assert found["raws"] == raws
    assert found["leaf"] == leaf == "c"
    assert found["labels"] == labels
    assert found["header"].cwd == "/target"
    assert found["header"].parent_session == path
    assert found["header"].rlm_depth == 0
    assert found["header"].version == 3
    assert found["header"].id == done.session_id != header
    assert done.entries == len(raws)
    assert done.source_format == "treering"
    facts, source_header = found["provenance"]
    assert source_header == header
    assert json.loads(facts)["byte_exact"] is False
    assert read_bytes(path) == before


def test_request_records_stay_request_records(tmp_path: Path) -> None:
    """A request does not move the position, in a fork as in its source."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        session.append({"type": "request", "id": "r", "request": {}})
        done = fork_session(session.path, "/t", home_dir=store(tmp_path))
    assert copied(done)["leaf"] == "a"
    with SessionView.open(done.path) as view:
        kinds = [frame.kind for frame, _ in view.examination.walk.scan.frames()]  # type: ignore[union-attr]
    assert Kind.REQUEST in kinds


def test_a_fork_is_a_session_of_its_own(tmp_path: Path) -> None:
    with sample(tmp_path) as session:
        first = fork_session(session.path, "/t", home_dir=store(tmp_path))
        second = fork_session(session.path, "/t", home_dir=store(tmp_path))
        session.append(custom("later"))
    assert first.session_id != second.session_id
    with Session.open(first.path) as fork:
        assert not fork.has("later")
        fork.append(custom("own"))
    with SessionView.open(second.path) as view:
        assert not view.has("own")


def test_a_fork_of_a_fork(tmp_path: Path) -> None:
    with sample(tmp_path) as session:
        raws = [entry.raw for entry in session.iter_entries()]
        first = fork_session(session.path, "/t", home_dir=store(tmp_path))
    second = copied(fork_session(first.path, "/t", home_dir=store(tmp_path)))
    assert second["raws"] == raws
    assert second["header"].parent_session == first.path


@pytest.mark.parametrize("compression", [True, False])
def test_large_forks_get_a_dictionary_of_their_own(tmp_path: Path, compression: bool) -> None:
    lines = [raw_entry(f"e{n}", None, data=f"ring {n % 37} " * 90) for n in range(900)]
    path = imported(tmp_path, *lines)
    assert len(read_bytes(path)) < importing.DICTIONARY_FROM_JSON_BYTES  # it is compressed
    with new(tmp_path, compression=False) as session:
        session.append_many([raw_entry(f"e{n}", None, data=f"{n} ring " * 90) for n in range(900)])
        raws = [entry.raw for entry in session.iter_entries()]
        plain = session.path
    done = fork_session(plain, "/t", home_dir=store(tmp_path), compression=compression)
    assert copied(done)["raws"] == raws
    size, before = len(read_bytes(done.path)), len(read_bytes(plain))
    assert size < before / 2 if compression else size > before * 0.99
    with SessionView.open(plain) as view:
        branch = copy_branch(view, "e3", home_dir=store(tmp_path), compression=compression)
        assert copied(branch)["raws"] == [raws[3]]
    assert copied(fork_session(path, "/t", home_dir=store(tmp_path)))["raws"] == lines


def test_retention_and_qualification_stay_with_their_frames(tmp_path: Path) -> None:
    """Existing retention is kept; a fork lowers nothing by itself, and lifts nothing."""
    flags = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09]
    with new(tmp_path) as session:
        records = []
        for number, flag in enumerate(flags):
            parent = f"e{number - 1}" if number else None
            records.append(Record(Kind.ENTRY, raw_entry(f"e{number}", parent), flag))
        readmit(session, records)
        session.append(label("l", "e5", "e1", "x", 1))
        assert [entry.flags for entry in session.iter_entries()] == [*flags, 0]
        fork = copied(fork_session(session.path, "/t", home_dir=store(tmp_path)))
        branch = copied(copy_branch(session, "e5"))
    assert fork["flags"] == branch["flags"] == [*flags, 0]


def test_child_usage_is_never_baked_in(tmp_path: Path) -> None:
    """Overlays apply at reading; the bytes of the assistant message and of the attribution stay."""
    usage = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3}
    assistant = {"role": "assistant", "content": [], "usage": usage}
    with new(tmp_path) as session:
        session.append({"type": "message", "id": "m", "message": assistant})
        session.append_child_usage_attribution("m", usage)
        raws = [entry.raw for entry in session.iter_entries()]
        total = session.usage()
        fork = fork_session(session.path, "/t", home_dir=store(tmp_path))
        branch = copy_branch(session, session.leaf_id)
    for done in (fork, branch):
        assert copied(done)["raws"] == raws
        with SessionView.open(done.path) as view:
            assert view.usage() == total


def test_git_state_is_kept(tmp_path: Path) -> None:
    """Git state entries are kept in every copy, where the existing system drops and re-links."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        session.append_git_state({"branch": "main"})
        session.append(custom("b"))
        raws = [entry.raw for entry in session.iter_entries()]
        assert copied(fork_session(session.path, "/t", home_dir=store(tmp_path)))["raws"] == raws
        assert copied(copy_branch(session, "b"))["raws"] == raws


def test_a_session_in_use_is_copied_as_it_is(tmp_path: Path) -> None:
    """What was acknowledged before the call is in the copy; each copy is a prefix of the source."""
    stop = threading.Event()
    acknowledged: list[str] = []
    with new(tmp_path) as session:
        acknowledged.append(session.append(custom()))

        def work() -> None:
            while not stop.wait(0.0005):
                acknowledged.append(session.append(custom(data="x" * 300)))

        writer = threading.Thread(target=work)
        writer.start()
        try:
            for _ in range(12):
                before = list(acknowledged)
                done = fork_session(session.path, "/t", home_dir=store(tmp_path))
                with SessionView.open(done.path) as view:
                    ids = [entry.id for entry in view.iter_entries()]
                assert len(ids) == done.entries >= len(before)
                assert ids[: len(before)] == before
                assert done.unproven <= 2
                branch = copy_branch(session, before[-1])
                with SessionView.open(branch.path) as view:
                    assert [entry.id for entry in view.branch()] == before
        finally:
            stop.set()
            writer.join()
    assert len(acknowledged) > 12


def test_an_open_batch_is_not_part_of_a_fork(tmp_path: Path) -> None:
    """A staged run that nothing activated stays invisible."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        with session.batch() as batch:
            batch.append(custom("b"))
            batch.append(custom("c"))
        data = read_bytes(session.path)
        with SessionView.open(session.path) as view:
            frames = [frame for frame, _ in view.examination.walk.scan.frames()]  # type: ignore[union-attr]
    activate = next(frame for frame in frames if frame.kind == Kind.EPOCH_ACTIVATE)
    cut = tmp_path / "cut" / "sessions" / "cut.jsonl"
    cut.parent.mkdir(parents=True)
    cut.write_bytes(data[: activate.offset])
    assert copied(fork_session(cut, "/t", home_dir=store(tmp_path)))["ids"] == ["a"]
    assert copied(fork_session(session.path, "/t", home_dir=store(tmp_path)))["ids"] == [*"abc"]


def test_an_incomplete_tail_is_ignored(tmp_path: Path) -> None:
    """A torn end is not part of a fork, and stays where it is."""
    session = new(tmp_path)
    session.append(custom("a"))
    crash(session)
    torn = read_bytes(session.path) + b"\xf7RG\x1dtorn"
    write_bytes(session.path, torn)
    done = fork_session(session.path, "/t", home_dir=store(tmp_path))
    assert copied(done)["ids"] == ["a"]
    assert done.ignored_bytes == 8
    with SessionView.open(session.path) as view:
        assert copied(copy_branch(view, "a"))["ids"] == ["a"]
    assert read_bytes(session.path) == torn


def test_a_damaged_source_is_refused(tmp_path: Path) -> None:
    """No copy hides damage; nothing is made, and the source stays as it is."""
    with sample(tmp_path) as session:
        path = session.path
    data = bytearray(read_bytes(path))
    data[data.index(b'"l1"')] ^= 1
    write_bytes(path, bytes(data))
    before = files_below(store(tmp_path))
    with pytest.raises(Damaged, match="repair"):
        fork_session(path, "/t", home_dir=store(tmp_path))
    with SessionView.open(path) as view:
        with pytest.raises(Damaged):
            copy_branch(view, "a")
        with pytest.raises(Damaged):
            prepare_fork(view, "c", "at")
    with SessionView.open(path, beyond_damage=True) as view, pytest.raises(Damaged):
        copy_branch(view, "c")
    assert files_below(store(tmp_path)) == before
    repair(path)
    assert "c" in copied(fork_session(path, "/t", home_dir=store(tmp_path)))["ids"]


def test_a_source_that_lost_acknowledged_data_is_refused(tmp_path: Path) -> None:
    """A watermark beside it proves the loss: the copy would look whole."""
    with new(tmp_path) as session:
        session.append(custom("a"))
    old = read_bytes(session.path)
    with Session.open(session.path) as session:
        session.append(custom("b"))
    write_bytes(session.path, old)
    with pytest.raises(AcknowledgedDataLost):
        fork_session(session.path, "/t", home_dir=store(tmp_path))
    with SessionView.open(session.path) as view, pytest.raises(AcknowledgedDataLost):
        copy_branch(view, "a")


def test_a_repaired_source_tells_of_its_gaps(tmp_path: Path) -> None:
    with sample(tmp_path) as session:
        path = session.path
    data = bytearray(read_bytes(path))
    data[data.index(b'"l1"')] ^= 1
    write_bytes(path, bytes(data))
    repair(path)
    facts, _ = copied(fork_session(path, "/t", home_dir=store(tmp_path)))["provenance"]
    assert json.loads(facts)["gaps"] == 1


def test_what_is_no_session_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "noise.jsonl").write_bytes(random.Random(3).randbytes(5000))
    (tmp_path / "folder.jsonl").mkdir()
    for name, kind in (
        ("none.jsonl", NotFound),
        ("empty.jsonl", InvalidSource),
        ("noise.jsonl", InvalidSource),
        ("folder.jsonl", TreeringError),
        ("nul\0.jsonl", Invalid),
    ):
        with pytest.raises(kind):
            fork_session(tmp_path / name, "/t", home_dir=store(tmp_path))
    assert not Path(store(tmp_path)).exists()


def test_a_source_that_changes_between_the_passes_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that cuts back what it wrote a moment ago: the copy is not published."""
    session = new(tmp_path)
    session.append(custom("a"))
    size = len(read_bytes(session.path))
    session.append(custom("b"))
    whole = importing.new_header

    def meanwhile(*arguments: Any) -> bytes:
        write_bytes(session.path, read_bytes(session.path)[:size])
        return whole(*arguments)

    monkeypatch.setattr(importing, "new_header", meanwhile)
    with pytest.raises(SourceChanged):
        fork_session(session.path, "/t", home_dir=store(tmp_path))
    names = [path.name for path in Path(store(tmp_path), "sessions").iterdir()]
    assert names == [Path(session.path).name]
    crash(session)


# Forks of legacy files


def test_a_legacy_fork_is_what_an_import_makes(tmp_path: Path) -> None:
    """Legacy lines are lowered; duplicate ids and second headers are kept; the bytes are exact."""
    lines = (raw_entry("a", None), HEADER, raw_entry("a", "a"), raw_entry("b", "a"))
    path = legacy(tmp_path, *lines)
    done = fork_session(path, "/t", home_dir=store(tmp_path))
    twin = shown(import_session(path, cwd="/t", home_dir=store(tmp_path)).path)
    found = copied(done)
    assert found["raws"] == twin["raws"] == list(lines)
    assert found["flags"] == twin["flags"] == [1] * 4
    assert found["ids"] == twin["ids"]
    assert found["provenance"] == twin["provenance"]
    assert found["header"].parent_session == path
    assert done.source_format == "legacy-jsonl"
    assert done.entries == 4
    with SessionView.open(done.path) as view:
        assert b"".join(jsonl_lines(view)) == read_bytes(path)


@pytest.mark.parametrize("tail", [b'{"type":"custom","id":"h', b'{"type":"custom"}', b"  "])
def test_a_legacy_fork_ignores_an_incomplete_last_line(tmp_path: Path, tail: bytes) -> None:
    """Import refuses an incomplete last record, a fork ignores it; also one that looks whole."""
    path = legacy(tmp_path, raw_entry("a", None), end=b"\n" + tail)
    done = fork_session(path, "/t", home_dir=store(tmp_path))
    assert copied(done)["ids"] == ["a"]
    assert done.ignored_bytes == len(tail)


def test_a_legacy_fork_upgrades_before_it_writes(tmp_path: Path) -> None:
    """Version 1 gets ids and links; odd versions are refused here too."""
    path = tmp_path / "v1.jsonl"
    header = b'{"type":"session","id":"v1","cwd":"/p"}\n'
    path.write_bytes(header + b'{"type":"custom","customType":"x"}\n' * 3)
    found = copied(fork_session(path, "/t", home_dir=store(tmp_path)))
    assert len(found["path"]) == 3
    for version in (b"0", b"4", b"1.5", b'"3"'):
        path.write_bytes(b'{"type":"session","version":%s,"id":"x"}\n' % version)
        with pytest.raises(Unsupported):
            fork_session(path, "/t", home_dir=store(tmp_path))
    path.write_bytes(header[:-1])
    with pytest.raises(InvalidSource):  # the only line is an incomplete one
        fork_session(path, "/t", home_dir=store(tmp_path))
    path.write_bytes(b'{"type":"custom"}\n')
    with pytest.raises(InvalidSource):
        fork_session(path, "/t", home_dir=store(tmp_path))


# Branch copies


def test_a_branch_copy_by_the_table(tmp_path: Path) -> None:
    """One path; no label entries of it, but the labels in force of its entries, set on any branch,
    at the end with new ids and their own time; what hung below a label hangs below the nearest
    entry that is kept; the position is the end of the path.
    """
    with sample(tmp_path) as session:
        done = copy_branch(session, "c")
        source = {entry.id: entry.raw for entry in session.iter_entries()}
        path = session.path
    found = copied(done)
    assert found["ids"][:3] == ["a", "b", "c"]
    assert found["raws"][:3] == [source["a"], raw_entry("b", "a"), raw_entry("c", "b")]
    assert found["path"] == ["a", "b", "c"]
    assert found["leaf"] == "c"
    assert found["labels"] == {"a": "one again", "c": "seen from elsewhere"}
    first, second = map(json.loads, found["raws"][3:])
    assert (first["parentId"], second["parentId"]) == ("c", first["id"])
    assert (first["timestamp"], first["targetId"]) == ("2024-12-03T15:00:00.003Z", "a")
    assert second["timestamp"] == "2024-12-03T15:00:00.005Z"
    assert not {first["id"], second["id"]} & set(source)
    assert found["header"].cwd == "/work"
    assert found["header"].parent_session == path
    assert (done.entries, done.labels, done.relinked) == (3, 2, 2)
    facts = json.loads(found["provenance"][0])
    assert (facts["format"], facts["leaf"], facts["ambiguous_ids"]) == ("treering", "c", False)


def test_labels_off_the_path_are_dropped(tmp_path: Path) -> None:
    """Labels: carried to a branch copy when their target is, else dropped; cleared ones too."""
    with sample(tmp_path) as session:
        found = copied(copy_branch(session, "side"))
    assert found["path"] == ["a", "side"]
    assert found["labels"] == {"a": "one again", "side": "beside"}


def test_a_path_that_ends_with_labels_ends_before_them(tmp_path: Path) -> None:
    with sample(tmp_path) as session:
        session.append(label("on-label", "c", "l1", "a label of a label", 9))
        session.append(label("last", "on-label", "q", "of a request", 9))
        found = copied(copy_branch(session, "last"))
        assert found["leaf"] == "c"
        assert found["labels"] == {"a": "one again", "c": "seen from elsewhere"}


def test_a_path_without_labels_is_copied_byte_for_byte(tmp_path: Path) -> None:
    """Nothing to re-link, nothing to carry: no frame but the entries is written."""
    with new(tmp_path) as session:
        ids = session.append_many([custom(data=n) for n in range(50)])
        raws = [entry.raw for entry in session.iter_entries()]
        done = copy_branch(session, ids[-1])
    assert copied(done)["raws"] == raws
    assert (done.relinked, done.labels) == (0, 0)
    with SessionView.open(done.path) as view:
        kinds = [frame.kind for frame, _ in view.examination.walk.scan.frames()]  # type: ignore[union-attr]
    assert Kind.LEAF not in kinds


def test_labels_above_the_first_kept_entry(tmp_path: Path) -> None:
    """A root that is a label is left out: the next entry becomes the root."""
    path = imported(
        tmp_path,
        label("l1", None, "b", "early", 1),
        label("l2", "l1", "b", "later", 2),
        raw_entry("a", "l2"),
        raw_entry("b", "a"),
        label("m1", "not-there", "x", "x", 1),
        raw_entry("m2", "m1"),
    )
    with SessionView.open(path) as view:
        found = copied(copy_branch(view, "b"))
        assert found["raws"][:2] == [raw_entry("a", None), raw_entry("b", "a")]
        assert found["labels"] == {"b": "later"}
        assert not found["unresolved"]
        found = copied(copy_branch(view, "m2"))
        assert found["raws"] == [
            raw_entry("m2", "not-there")
        ]  # still says that something is missing
        assert found["unresolved"] == ["m2"]
        nothing = copied(copy_branch(view, "l2"))
        assert (nothing["ids"], nothing["leaf"]) == ([], None)


def said(reads: Reads, leaf: str) -> list[bytes]:
    return [message.raw for message in reads.read_session_context(leaf).messages]


def test_a_compaction_keeps_what_it_kept(tmp_path: Path) -> None:
    """It may keep from a label on: then the copy keeps from the next entry on, which is the same."""
    with new(tmp_path) as session:
        session.append(user("hello", "u"))
        session.append(label("l", "u", "u", "x", 1))
        session.append(user("kept", "k"))
        session.append(
            raw_entry("s", "k", "compaction", summary="s", firstKeptEntryId="l", tokensBefore=1)
        )
        session.append(raw_entry("o", "s", "compaction", summary="s", firstKeptEntryId="k"))
        session.append(user("last", "z"))
        done = copy_branch(session, "s")
        full = copy_branch(session, "z")
        context, end = said(session, "s"), said(session, "z")
    found = copied(done)
    assert json.loads(found["raws"][2])["firstKeptEntryId"] == "k"
    assert found["raws"][2] == raw_entry(
        "s", "k", "compaction", summary="s", firstKeptEntryId="k", tokensBefore=1
    )
    with SessionView.open(done.path) as view:
        assert said(view, "s") == context
    with SessionView.open(full.path) as view:
        assert said(view, "z") == end


def test_second_headers_are_not_part_of_a_branch_copy(tmp_path: Path) -> None:
    """A second header is outside of the tree: on no path, and no place to copy up to."""
    path = imported(tmp_path, raw_entry("a", None), HEADER, raw_entry("b", "a"))
    with SessionView.open(path) as view:
        second = next(entry.id for entry in view.iter_entries() if entry.type == "session")
        assert copied(copy_branch(view, "b"))["ids"] == ["a", "b"]
        with pytest.raises(NotFound):
            copy_branch(view, second)
        with pytest.raises(Invalid):
            prepare_fork(view, second, "at")
    assert len(copied(fork_session(path, "/t", home_dir=store(tmp_path)))["ids"]) == 3


def test_entries_that_share_an_id_or_have_none(tmp_path: Path) -> None:
    """A path through them hangs together in the copy, by whatever ids they have there."""
    no_id = raw_entry("gone", "x").replace(b'"id":"gone",', b"")
    path = imported(
        tmp_path,
        raw_entry("x", None),  # 0
        label("k", "x", "x", "of the first", 1),
        raw_entry("x", "x", data=1),  # 2: a twin below it
        label("l", "x", "x", "of the twin", 1),
        raw_entry("y", "l"),
        no_id,  # below the twin
        no_id,
        raw_entry("x", "y", data=2),  # the last twin
        raw_entry("z", "x"),
    )
    with Session.open(path) as session:
        rows = list(session.iter_entries())
        below_none = session.append({**custom("under"), "parentId": rows[6].id})
        done = copy_branch(session, "z")
        found = copied(done)
        assert found["raws"][:5] == [
            raw_entry("x", None),
            raw_entry("x", "x", data=1),
            raw_entry("y", "x"),
            raw_entry("x", "y", data=2),
            raw_entry("z", "x"),
        ]
        assert len(found["path"]) == 5
        assert not found["unresolved"]
        assert list(found["labels"].values()) == ["of the twin"]
        assert done.labels_left_out == 1  # the twin has the name of the first one
        second = copied(copy_branch(session, below_none))
        assert len(second["path"]) == 4
        assert second["leaf"] == "under"
        ends_with_twin = copied(copy_branch(session, rows[7].id))
        assert len(ends_with_twin["path"]) == 4
        assert ends_with_twin["leaf"] == ends_with_twin["path"][-1]
        twin = copied(copy_branch(session, rows[2].id))
        assert list(twin["labels"].values()) == ["of the twin"]
        assert twin["leaf"] == twin["path"][-1] != "x"


def test_a_path_that_ends_with_a_request(tmp_path: Path) -> None:
    """Nothing of it moves the position by itself, so the copy says where it stands."""
    with new(tmp_path) as session:
        session.append(custom("a"))
        session.append({"type": "request", "id": "r", "request": {}})
        found = copied(copy_branch(session, "r"))
    assert (found["ids"], found["leaf"]) == (["a", "r"], "r")


def test_nothing_is_copied_from_before_any_entry(tmp_path: Path) -> None:
    with sample(tmp_path) as session:
        done = copy_branch(session, None)
        found = copied(done)
        assert (found["ids"], found["leaf"]) == ([], None)
        assert found["header"].parent_session == session.path
        with pytest.raises(NotFound):
            copy_branch(session, "nobody")


def test_a_copy_in_memory(tmp_path: Path) -> None:
    """A session without a file: its copy names no parent, and may have a file itself."""
    disk = MemoryDisk()
    disk.make_folder("/m")
    with Session.create("/work", home_dir="/m", disk=disk) as session:
        session.append(user("x", "x"))
        done = copy_branch(session, "x", disk=disk, session_file=None)
        kept = copy_branch(session, "x", home_dir=store(tmp_path), session_file=None)
        prepared = prepare_fork(session, "x", session_file=None)
        assert not prepared.source.persistent
    assert done.path.startswith("/m/")
    with Session.open(done.path, disk=disk) as copy:
        assert copy.header.parent_session is None
        assert [entry.id for entry in copy.branch()] == ["x"]
    assert copied(kept)["header"].parent_session is None


# Prepared forks


def test_fork_positions(tmp_path: Path) -> None:
    """`before` needs a message of the user and ends above it; `at` ends with any entry."""
    with new(tmp_path) as session:
        session.append(user("first", "u1"))
        session.append({"type": "message", "id": "r", "message": {"role": "assistant"}})
        session.append(user("second", "u2"))
        before = prepare_fork(session, "u2")
        assert before.selected_entry is not None
        assert before.selected_entry.id == "u2"
        assert (before.source.leaf_id, before.source.session_file) == ("r", session.path)
        assert before.entries == 2
        at = prepare_fork(session, "r", "at")
        empty = prepare_fork(session, "u1", "before")
        for entry_id in ("r", "nobody", ""):
            with pytest.raises(Invalid, match="cannot fork at"):
                prepare_fork(session, entry_id, "before")
        with pytest.raises(Invalid, match="cannot fork at"):
            prepare_fork(session, "nobody", "at")
        with pytest.raises(Invalid, match="'before' an entry"):
            prepare_fork(session, "r", "behind")  # type: ignore[arg-type]
        assert copied(before.create())["ids"] == ["u1", "r"]
        assert copied(at.create("/elsewhere"))["header"].cwd == "/elsewhere"
        nothing = copied(empty.create(session_id="chosen"))
        assert (nothing["ids"], nothing["leaf"], nothing["header"].id) == ([], None, "chosen")
        with pytest.raises(TreeringError, match="exists"):
            empty.create(session_id="chosen")
    with pytest.raises(Closed):
        at.create()


def test_later_changes_have_no_influence_on_a_prepared_fork(tmp_path: Path) -> None:
    """Entries, labels and moves that come between are not in the copy."""
    with sample(tmp_path) as session:
        prepared = prepare_fork(session, "c", "at")
        expected = copied(prepared.create())
        session.append(label("n1", "c", "a", "changed", 8))
        session.append(label("n2", "n1", "c", None, 8))
        session.append(label("n3", "n2", "b", "new", 8))
        session.branch_to("side")
        found = copied(prepared.create())
        assert (
            found["labels"] == expected["labels"] == {"a": "one again", "c": "seen from elsewhere"}
        )
        assert found["raws"][:3] == expected["raws"][:3]
        assert found["leaf"] == "c"
        session.recover()
        assert copied(prepared.create())["labels"] == expected["labels"]
        assert copied(copy_branch(session, "c"))["labels"] == {"a": "changed", "b": "new"}


def test_a_parent_that_arrives_later_has_no_influence(tmp_path: Path) -> None:
    """An entry whose parent was missing hangs deeper in the source now; the capture stays."""
    path = imported(tmp_path, *(raw_entry(f"e{n}", f"e{n - 1}" if n else "up") for n in range(9)))
    with Session.open(path) as session:
        prepared = prepare_fork(session, "e8", "at")
        session.append(raw_entry("top", None))
        session.append(raw_entry("up", "top"))
        assert session.depth("e8") == 10
        assert copied(prepared.create())["ids"] == [f"e{n}" for n in range(9)]
        assert len(copied(copy_branch(session, "e8"))["ids"]) == 11


# Depth of copies


def test_copies_keep_the_depth_of_their_source(tmp_path: Path) -> None:
    """Forks of any kind keep the source's depth, and do not add one; an option overrides."""
    header = HEADER.replace(b'"cwd"', b'"rlmDepth":3,"cwd"')
    path = tmp_path / "deep.jsonl"
    path.write_bytes(header + b"\n" + raw_entry("a", None) + b"\n")
    first = fork_session(path, "/t", home_dir=store(tmp_path))
    second = fork_session(first.path, "/t", home_dir=store(tmp_path))
    with Session.open(second.path) as session:
        third = copy_branch(session, "a")
        other = copy_branch(session, "a", rlm_depth=1)
        with pytest.raises(Invalid):
            copy_branch(session, "a", rlm_depth=-1)
    depths = [copied(one)["header"].rlm_depth for one in (first, second, third, other)]
    assert depths == [3, 3, 3, 1]


# Limits


def test_limits_of_a_fork(tmp_path: Path) -> None:
    """Exactly at a limit passes, one above is refused, and nothing is made by a refusal."""
    with sample(tmp_path) as session:
        entries = list(session.iter_entries())
        size = len(session.header_bytes()) + sum(len(entry.raw) for entry in entries)
    path = session.path
    before = files_below(store(tmp_path))
    for limits in (
        CopyLimits(len(entries) - 1, None),
        CopyLimits(None, size - 1),
        CopyLimits(0, 0),
        CopyLimits(None, 0),
    ):
        with pytest.raises(LimitExceeded, match="--no-limit"):
            fork_session(path, "/t", home_dir=store(tmp_path), limits=limits)
    assert files_below(store(tmp_path)) == before
    for lifted in (CopyLimits(len(entries), size), None):
        done = fork_session(path, "/t", home_dir=store(tmp_path), limits=lifted)
        assert done.entries == len(entries)


def test_limits_of_a_branch_copy(tmp_path: Path) -> None:
    """Entries that are copied and labels that are carried count, and the header's bytes."""
    with sample(tmp_path) as session:
        kept = [session.read(name).raw for name in ("a", "b", "c", "l3", "l5")]
        size = len(session.header_bytes()) + sum(map(len, kept))
        for limits in (CopyLimits(4, None), CopyLimits(None, size - 1), CopyLimits(1, None)):
            with pytest.raises(LimitExceeded):
                copy_branch(session, "c", limits=limits)
            with pytest.raises(LimitExceeded):
                prepare_fork(session, "c", "at", limits=limits)
        done = copy_branch(session, "c", limits=CopyLimits(5, size))
        assert (done.entries, done.labels) == (3, 2)
        with pytest.raises(LimitExceeded):
            copy_branch(session, None, limits=CopyLimits(None, 10))


def test_the_documented_limits_are_the_defaults(tmp_path: Path) -> None:
    """16,384 entries pass and one more is refused."""
    with new(tmp_path) as session:
        ids = session.append_many([{"type": "custom"}] * 16_384)
        path = session.path
        assert fork_session(path, "/t", home_dir=store(tmp_path)).entries == 16_384
        assert copy_branch(session, ids[-1]).entries == 16_384
        one_more = session.append({"type": "custom"})
        for call in (
            lambda: fork_session(path, "/t", home_dir=store(tmp_path)),
            lambda: copy_branch(session, one_more),
        ):
            with pytest.raises(LimitExceeded) as caught:
                call()
            assert (caught.value.limit, caught.value.need) == (16_384, 16_385)


@LONG
@pytest.mark.slow
def test_memory_of_a_fork_does_not_grow_with_the_session(tmp_path: Path) -> None:
    """200,000 entries in 80 MB: what Python holds at most is the buffers."""
    count = 200_000
    peaks = {}
    with new(tmp_path, durability="os") as session:
        for begin in range(0, count, 10_000):
            raws = [custom(data=[n, "y" * 300]) for n in range(begin, begin + 10_000)]
            leaf = session.append_many(raws)[-1]
        session.counts()
        for name, copy in (
            ("fork", lambda: fork_session(session.path, home_dir=store(tmp_path), limits=None)),
            ("branch", lambda: copy_branch(session, leaf, limits=None)),
        ):
            tracemalloc.start()
            done = copy()
            peaks[name] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert done.entries == count
        assert session.source.size > 80_000_000
    assert max(peaks.values()) < 36_000_000, peaks  # three writes of 8 MiB, and what is below them


# Any tree


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, int | None, int | None, str | None]]:
    """(kind, parent, label target, label) of up to 40 entries; parents come first."""
    found: list[tuple[str, int | None, int | None, str | None]] = []
    for at in range(draw(st.integers(1, 40))):
        parent = None if at == 0 else draw(st.integers(max(-1, at - 4), at - 1))
        parent = None if parent is not None and parent < 0 else parent
        if at and draw(st.integers(0, 2)) == 0:
            text = draw(st.sampled_from(["x", "é\u2028", '"quoted"', None, ""]))
            found.append(("label", parent, draw(st.integers(0, at - 1)), text))
        else:
            found.append(("custom", parent, None, None))
    return found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tree=trees(), data=st.data())
def test_any_path_of_any_tree(tmp_path_factory: Any, tree: list[Any], data: st.DataObject) -> None:
    """The copy's parent chain is whole and in order; bytes are equal where nothing was left out,
    and differ in the value of parentId only where something was; labels are the source's.
    """
    tmp_path = tmp_path_factory.mktemp("any")
    raws: list[bytes] = []
    in_force: dict[int, str] = {}
    for at, (kind, parent, target, text) in enumerate(tree):
        above = None if parent is None else f"e{parent}"
        if kind == "custom":
            raws.append(raw_entry(f"e{at}", above, data="é" * (at % 5)))
            continue
        raws.append(label(f"e{at}", above, f"e{target}", text, at))
        in_force.pop(target, None)
        if text:
            in_force[target] = text
    leaf = data.draw(st.integers(0, len(tree) - 1))
    path, at = [leaf], tree[leaf][1]
    while at is not None:
        path.insert(0, at)
        at = tree[at][1]
    kept = [one for one in path if tree[one][0] == "custom"]
    with Session.create("/w", home_dir=str(tmp_path)) as session:
        session.append_many(raws)
        done = copy_branch(session, f"e{leaf}")
    found = copied(done)
    expected, last = [], None
    for one in kept:
        whole = raws[one].replace(
            b'"parentId" : ' + json.dumps(_name(tree[one][1])).encode(),
            b'"parentId" : ' + json.dumps(_name(last)).encode(),
        )
        assert (whole == raws[one]) == (tree[one][1] == last)
        expected.append(whole)
        last = one
    assert found["raws"][: len(kept)] == expected
    assert found["path"] == [f"e{one}" for one in kept]
    assert found["leaf"] == _name(last)
    assert found["labels"] == {f"e{one}": in_force[one] for one in kept if one in in_force}
    assert len(found["raws"]) == len(kept) + len(found["labels"]) == len(kept) + done.labels
    assert not found["unresolved"]


def _name(at: int | None) -> str | None:
    return None if at is None else f"e{at}"


# Failing calls


@pytest.mark.parametrize("how", ["fork", "view"])
def test_every_call_that_fails_is_told_by_a_typed_error(tmp_path: Path, how: str) -> None:
    """An error at each call of the reading and the writing; never a copy that is there in part."""
    with sample(tmp_path) as session:
        path = session.path

    def copy(disk: FaultyDisk) -> str:
        if how == "fork":
            return fork_session(path, "/t", home_dir=store(tmp_path), disk=disk).path
        with SessionView.open(path, disk=disk) as view:
            return copy_branch(view, "c", home_dir=store(tmp_path), disk=disk).path

    counting = FaultyDisk()
    whole = copied_path(copy(counting))
    refused = 0
    for at in range(1, len(counting.log) + 1):
        faulty = FaultyDisk()
        faulty.fail(None, at=at, error=errno.EIO)
        try:
            found = copied_path(copy(faulty))
        except TreeringError:
            refused += 1
        else:
            assert found == whole
    assert refused > len(counting.log) // 2
    for left in Path(store(tmp_path), "sessions").glob("*.jsonl"):
        assert str(left) == path or copied_path(str(left)) == whole


def copied_path(path: str) -> list[bytes]:
    with SessionView.open(path) as view:
        return [entry.raw for entry in view.branch()]
