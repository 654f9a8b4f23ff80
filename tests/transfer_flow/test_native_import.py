"""Imports and forks of journals, of JSON frames and our own: what comes along, what is lowered, and
that a refusal leaves nothing. Numbers in docstrings name the scenarios of epochs and links."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from copy_helpers import copied, killed_imports, shown, store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_helpers import crash, custom, files_below, new, read_bytes, write_bytes
from support.native_writer import (
    HEADER,
    QUALIFICATIONS,
    Row,
    dump,
    framed,
    header,
    journal,
    message,
    request,
)

from treering.engine import (
    AcknowledgedDataLost,
    CopyLimits,
    Damaged,
    InvalidSource,
    LimitExceeded,
    NotFound,
    Session,
    SessionManager,
    SessionView,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
    Unsupported,
    import_session,
    jsonl_lines,
    preview_import,
    repair,
)
from treering.engine.home import Store
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import FLAG_RETAINED, Kind
from treering.engine.journal.format import QUALIFICATIONS as FLAGS
from treering.engine.journal.publish import NewJournal
from treering.engine.session.readmission import readmit
from treering.engine.transfer import importing
from treering.engine.transfer.copying import fork_session
from treering.fuzz.faulty_disk import FaultyDisk
from treering.tools.entry import main

GIT = dump({"type": "git_state", "id": "g", "parentId": "a", "git": {"commit": "1"}})
ROWS = (
    HEADER,
    Row(message("a", None), None, "native-admission"),
    GIT,
    Row(message("b", "g", nativeOrigin={"verb": "x"}), "retained-import", "native-recovery"),
    Row(dump({"type": "tool_intent", "id": "t", "parentId": "b"}), None, "native-tool-execution"),
    message("side", "a"),
    dump({"type": "label", "id": "l", "parentId": "t", "targetId": "a", "label": "first"}),
    request("q", "l"),
)
"""Two branches and every kind of mark; the newest entry of the tree is ``l``."""

RAWS = [Row(row).payload.encode() if isinstance(row, str) else row.payload.encode() for row in ROWS]
MARKS = ["native-admission", None, "native-recovery", "native-tool-execution", None, None, None]
RETAINED = [False, False, True, False, False, False, False]


def flags(*, lowered: bool) -> list[int]:
    return [
        FLAGS.index(mark) << 1 | (FLAG_RETAINED if retained or lowered else 0)
        for mark, retained in zip(MARKS, RETAINED, strict=True)
    ]


def file(tmp_path: Path, data: bytes, name: str = "native.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def native(tmp_path: Path, *rows: Row | str) -> str:
    return file(tmp_path, journal(rows or ROWS))


def own(tmp_path: Path) -> str:
    """The same entries in a journal of ours, in a store of its own; it stands at ``side``."""
    with Session.create("/old/place", home_dir=str(tmp_path / "other")) as session:
        records = [
            Record(Kind.REQUEST if b'"request"' in raw else Kind.ENTRY, raw, flag)
            for raw, flag in zip(RAWS[1:], flags(lowered=False), strict=True)
        ]
        readmit(session, records)
        session.branch_to("side")
        return session.path


MAKERS = pytest.mark.parametrize("make", [native, own])


def brought_in(tmp_path: Path, path: str, **more: Any) -> dict[str, Any]:
    return shown(import_session(path, cwd="/w", home_dir=store(tmp_path), **more).path)


def refuse(tmp_path: Path, path: str, kind: type[TreeringError], **more: Any) -> TreeringError:
    """Preview and import refuse alike, and nothing is there afterwards that was not before."""
    before = {folder: files_below(str(tmp_path / folder)) for folder in ("other", "home")}
    said = set()
    for call in (preview_import, import_session):
        with pytest.raises(TreeringError) as caught:
            call(path, cwd="/w", home_dir=store(tmp_path), **more)
        assert type(caught.value) is kind, caught.value
        said.add(str(caught.value))
    assert len(said) == 1
    assert before == {folder: files_below(str(tmp_path / folder)) for folder in before}
    return caught.value


# What comes along


def test_22_an_import_lowers_every_entry(tmp_path: Path) -> None:
    """22: the same ids, parents, bytes; every copied entry is a retained import and keeps its
    qualification beside that; the header is new and names the source, whose own header is kept;
    the position is the last entry that is no request."""
    path = native(tmp_path)
    found = brought_in(tmp_path, path)
    assert found["raws"] == RAWS[1:]
    assert found["ids"] == ["a", "g", "b", "t", "side", "l", "q"]
    assert found["flags"] == flags(lowered=True)
    assert found["leaf"] == "l"
    assert found["path"] == ["a", "g", "b", "t", "l"]
    assert found["labels"] == {"a": "first"}
    assert found["unresolved"] == []
    assert found["header"].cwd == "/w"
    assert found["header"].parent_session == path
    assert found["header"].rlm_depth == 2
    assert found["header"].id != json.loads(HEADER)["id"]
    facts, source_header = found["provenance"]
    assert source_header == HEADER.encode()
    facts = json.loads(facts)
    assert (facts["format"], facts["version"], facts["byte_exact"]) == ("native-frames", 3, False)
    assert not facts["ambiguous_ids"]
    assert read_bytes(path) == journal(ROWS)


def test_22_an_import_of_our_own(tmp_path: Path) -> None:
    """The same for a journal of ours; the moves of its position come along."""
    path = own(tmp_path)
    before = files_below(str(tmp_path / "other"))
    found = brought_in(tmp_path, path)
    assert found["raws"] == RAWS[1:]
    assert found["flags"] == flags(lowered=True)
    assert (found["leaf"], found["path"]) == ("side", ["a", "side"])
    assert found["labels"] == {"a": "first"}
    assert found["header"].parent_session == path
    facts, source_header = found["provenance"]
    assert json.loads(facts)["format"] == "treering"
    assert json.loads(source_header)["cwd"] == "/old/place"
    assert files_below(str(tmp_path / "other")) == before


def test_a_fork_keeps_every_mark(tmp_path: Path) -> None:
    """Retention and qualification of each entry are unchanged, whatever the journal is."""
    for make in (native, own):
        path = make(tmp_path)
        done = fork_session(path, "/t", home_dir=store(tmp_path))
        found = copied(done)
        assert found["raws"] == RAWS[1:]
        assert found["flags"] == flags(lowered=False)
        assert found["leaf"] == ("l" if make is native else "side")
        assert found["header"].parent_session == path
        assert done.source_format == ("native-framed" if make is native else "treering")
        assert done.entries == 7


@MAKERS
def test_26_what_was_lowered_stays_lowered(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """26: a plain fork of a retained session keeps it so, and so do a fork of that and a branch."""
    path = import_session(make(tmp_path), cwd="/w", home_dir=store(tmp_path)).path
    for _ in range(2):
        path = fork_session(path, "/t", home_dir=store(tmp_path)).path
        assert shown(path)["flags"] == flags(lowered=True)
    with Session.open(path) as session:
        session.append(custom("fresh"))
    with SessionView.open(import_session(path, home_dir=store(tmp_path)).path) as view:
        assert view.retention("fresh") == "retained-import"


@MAKERS
def test_50_retention_is_told(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """50: none for a native entry, the value for an import, and an unknown id is told apart from
    both; after reopening, and after the index was built anew."""
    path = import_session(make(tmp_path), cwd="/w", home_dir=store(tmp_path)).path
    with Session.open(path) as session:
        session.append(custom("fresh", retention="retained-import"))
    for rebuilt in (False, True):
        if rebuilt:
            shutil.rmtree(tmp_path / "home" / "session-index")
        for opened in (Session.open, SessionView.open):
            with opened(path) as reads:
                assert reads.retention("a") == "retained-import"
                assert reads.read("a").qualification == "native-admission"
                assert reads.retention("fresh") is None
                assert reads.read("fresh").qualification is None
                with pytest.raises(NotFound):
                    reads.retention("unknown")


@MAKERS
def test_31_a_preview_creates_nothing(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """31: all of it is counted, nothing is made, and what only an import can tell is not assessed.
    The import that follows finds the same."""
    path = make(tmp_path)
    before = files_below(str(tmp_path))
    found = preview_import(path, cwd="/w", home_dir=store(tmp_path))
    assert files_below(str(tmp_path)) == before
    assert found.source_format == ("native-framed" if make is native else "treering")
    assert (found.source_path, found.input_version) == (path, 3)
    assert (found.entries_read, found.prepared_entry_count) == (8, 7)
    if make is native:
        assert found.source_json_bytes == sum(map(len, RAWS))
    assert found.target_directory == str(tmp_path / "home" / "sessions")
    assert (found.retention, found.source_header) == ("retained-import", "replace")
    assert found.git_state == "kept"
    assert found.canonical_epoch_activation == "not-assessed"
    assert found.destination_creation_and_indexing == "not-assessed"
    assert found.reference_replay_coverage == "not-assessed"
    assert not found.destination_created
    assert not found.byte_exact
    done = import_session(path, cwd="/w", home_dir=store(tmp_path))
    assert done.preview == found


@MAKERS
def test_the_command_line(
    tmp_path: Path, make: Callable[[Path], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Preview, import, fork and export by their commands."""
    path, home = make(tmp_path), store(tmp_path)
    assert main(["session", "import", "--preview", "--json", path, "--home", home]) == 0
    preview = json.loads(capfd.readouterr().out)
    assert preview["canonicalEpochActivation"] == "not-assessed"
    assert preview["sourceFormat"] == ("native-framed" if make is native else "treering")
    assert not Path(home).exists()
    assert main(["session", "import", path, "--home", home]) == 0
    made = capfd.readouterr().out.strip()
    assert shown(made)["flags"] == flags(lowered=True)
    assert main(["session", "fork", path, "--home", home]) == 0
    assert shown(capfd.readouterr().out.strip())["flags"] == flags(lowered=False)
    assert main(["session", "export", made, "--home", home]) == 0
    assert capfd.readouterr().out.encode().split(b"\n")[1:-1] == RAWS[1:]
    write_bytes(path, read_bytes(path)[:-1])
    assert main(["session", "import", path, "--home", home]) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert path in said


@MAKERS
def test_the_managers_methods(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """The asynchronous ones do the same."""
    path, home = make(tmp_path), store(tmp_path)

    async def use() -> None:
        found = await SessionManager.preview_retained_import(path, "/w", home_dir=home)
        assert found == preview_import(path, cwd="/w", home_dir=home)
        async with await SessionManager.import_retained_from(path, "/w", home_dir=home) as manager:
            assert await manager.read_entry_retention("t") == "retained-import"
            await manager.append_custom_entry("x")
        async with await SessionManager.fork_from(path, "/w", home_dir=home) as manager:
            assert await manager.read_entry_retention("t") is None

    asyncio.run(use())


@MAKERS
def test_an_export_holds_the_payloads(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """Bytes as they stood in the frames, below the new header; imported again as plain lines they
    are the same entries. Lines appended since follow."""
    path = import_session(make(tmp_path), cwd="/w", home_dir=store(tmp_path)).path
    with Session.open(path) as session:
        session.append(custom("more"))
        more = session.read("more").raw
    with SessionView.open(path) as view:
        out = b"".join(jsonl_lines(view))
        assert out.split(b"\n") == [view.header_bytes(), *RAWS[1:], more, b""]
    again = brought_in(tmp_path, file(tmp_path, out, "plain.jsonl"))
    assert again["raws"] == [*RAWS[1:], more]


def test_corpus_journal_of_frames(tmp_path: Path) -> None:
    """A journal that nobody here wrote."""
    folder = Path(
        os.environ.get("TREERING_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus"
    )
    found = sorted(folder.glob("63-*.jsonl"))
    if not found:
        pytest.skip(f"no corpus at {folder}: set TREERING_CORPUS")
    lines = [json.loads(line) for line in found[0].read_bytes().splitlines()]
    made = brought_in(tmp_path, str(found[0]))
    assert [json.loads(raw) for raw in made["raws"]] == [line["payload"] for line in lines[1:]]
    marks = [FLAGS.index(line.get("qualification")) << 1 | FLAG_RETAINED for line in lines[1:]]
    assert made["flags"] == marks


def test_versions_1_and_2_in_frames(tmp_path: Path) -> None:
    """They are upgraded as plain lines are; marks stay with their entries."""
    rows = [Row(dump({"type": "custom", "n": n}), None, QUALIFICATIONS[n]) for n in range(4)]
    found = brought_in(tmp_path, native(tmp_path, header(version=...), *rows))
    assert len(found["path"]) == 4
    assert found["flags"] == [n + 1 << 1 | FLAG_RETAINED for n in range(4)]
    again = brought_in(tmp_path, native(tmp_path, header(version=...), *rows))
    assert again["raws"] == found["raws"]
    old = message("m", None).replace('"role":"user"', '"role":"hookMessage"')
    found = brought_in(tmp_path, native(tmp_path, header(version=2), old))
    assert b'"role":"custom"' in found["raws"][0]


def test_odd_trees_in_frames(tmp_path: Path) -> None:
    """Duplicate ids, missing parents, cycles, second headers and entries without an id are kept,
    counted and told, as those of plain lines are."""
    rows = [
        HEADER, message("a", "lost"), message("a", "a"), dump({"type": "custom"}), header(id="2"),
        message("x", "y"), message("y", "x"), "{}",
    ]  # fmt: skip
    preview = preview_import(native(tmp_path, *rows))
    plain = preview_import(file(tmp_path, "\n".join([*rows, ""]).encode(), "plain.jsonl"))
    assert preview.oddities == plain.oddities
    assert preview.oddities["second_headers"] == 1
    one, other = (
        brought_in(tmp_path, native(tmp_path, *rows)),
        brought_in(tmp_path, str(tmp_path / "plain.jsonl")),
    )
    assert one["raws"] == other["raws"]
    assert one["ids"] == other["ids"]
    assert one["leaf"] == other["leaf"]
    ours = import_session(native(tmp_path, *rows), cwd="/w", home_dir=str(tmp_path / "third")).path
    assert preview_import(ours).oddities == plain.oddities
    assert brought_in(tmp_path, ours)["ids"] == one["ids"]


_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)
_rows = st.lists(
    st.tuples(
        st.sampled_from(["custom", "message", "request", "git_state"]),
        st.integers(0, 20),
        _texts,
        st.booleans(),
        st.sampled_from([None, *QUALIFICATIONS]),
    ),
    max_size=15,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=_rows)
def test_any_journal_comes_and_goes(tmp_path_factory: Any, rows: list[Any]) -> None:
    """JSON frames forked into a journal of ours, that imported, and what is exported imported once
    more: the same entries and positions each time; marks as the fork and the import say."""
    tmp_path = tmp_path_factory.mktemp("any")
    written: list[Row] = []
    for at, (kind, parent, text, retained, mark) in enumerate(rows):
        above = f"e{parent % at}" if at and parent else None
        raw = dump({"type": kind, "id": f"e{at}", "parentId": above, "text": text})
        written.append(Row(raw, "retained-import" if retained else None, mark))
    raws = [row.payload.encode() for row in written]
    kept = [
        FLAGS.index(row.qualification) << 1 | (FLAG_RETAINED if row.retention else 0)
        for row in written
    ]
    path = native(tmp_path, HEADER, *written)
    forked = copied(fork := fork_session(path, "/t", home_dir=store(tmp_path)))
    lowered = brought_in(tmp_path, fork.path)
    direct = brought_in(tmp_path, path)
    assert forked["raws"] == lowered["raws"] == direct["raws"] == raws
    assert forked["flags"] == kept
    assert lowered["flags"] == direct["flags"] == [flag | FLAG_RETAINED for flag in kept]
    assert forked["leaf"] == lowered["leaf"] == direct["leaf"]
    assert forked["path"] == lowered["path"] == direct["path"]


# Ends and limits


def test_28_an_incomplete_end(tmp_path: Path) -> None:
    """28: an import refuses a journal that ends within a frame before there is a destination; a
    fork takes the complete frames and says what it left out, at whatever byte it ends."""
    data = journal(ROWS)
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    draw = random.Random(5)
    sizes = {*ends, *(end - 1 for end in ends), *draw.sample(range(ends[0], len(data)), 60)}
    for size in sorted(sizes):
        whole = [end for end in ends if end <= size]
        path = file(tmp_path, data[:size])
        if not whole:
            with pytest.raises(InvalidSource):
                fork_session(path, "/t", home_dir=store(tmp_path))
            continue
        done = fork_session(path, "/t", home_dir=store(tmp_path))
        assert copied(done)["raws"] == RAWS[1 : len(whole)]
        assert done.ignored_bytes == size - whole[-1]
        if size != whole[-1]:
            assert "incomplete last frame" in str(refuse(tmp_path, path, InvalidSource))
        shutil.rmtree(store(tmp_path))


def test_28_an_incomplete_end_of_our_own(tmp_path: Path) -> None:
    """28: the same for a journal of ours that a dead owner left half written."""
    session = new(tmp_path)
    session.append(custom("a"))
    crash(session)
    path = session.path
    assert brought_in(tmp_path, path)["ids"] == ["a"]
    write_bytes(path, read_bytes(path) + b"\xf7RG\x1dtorn")
    error = refuse(tmp_path, path, InvalidSource)
    assert "8 bytes" in str(error)
    assert "fork" in str(error)
    assert copied(fork_session(path, "/t", home_dir=store(tmp_path)))["ids"] == ["a"]


def test_28_a_source_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """28: the captured size only; what its writer adds between the two readings does not exist."""
    path = native(tmp_path)
    checksum = journal(ROWS)[-67:-3].decode()
    whole = importing.new_header

    def meanwhile(*arguments: Any) -> bytes:
        more = framed(message("later", "l"), len(ROWS), checksum)[0].encode() + b"\n"
        write_bytes(path, read_bytes(path) + more)
        return whole(*arguments)

    monkeypatch.setattr(importing, "new_header", meanwhile)
    assert brought_in(tmp_path, path)["raws"] == RAWS[1:]
    monkeypatch.undo()
    assert brought_in(tmp_path, path)["raws"] == [*RAWS[1:], message("later", "l").encode()]


def test_a_session_in_use_can_be_imported(tmp_path: Path) -> None:
    """Its owner goes on; the import is what was there."""
    with Session.create("/w", home_dir=str(tmp_path / "other")) as session:
        session.append(custom("a"))
        found = import_session(session.path, cwd="/w", home_dir=store(tmp_path)).path
        session.append(custom("b"))
    assert shown(found)["ids"] == ["a"]


@MAKERS
def test_29_limits_in_the_flow(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """29: at the limit it passes, one beyond it refuses whole; header bytes count; None lifts."""
    path = make(tmp_path)
    size = preview_import(path).source_json_bytes
    for name, limit in (("entries", 7), ("json_bytes", size)):
        assert len(brought_in(tmp_path, path, limits=CopyLimits(**{name: limit}))["ids"]) == 7
        less = CopyLimits(**{name: limit - 1})
        error = refuse(tmp_path, path, LimitExceeded, limits=less)
        assert isinstance(error, LimitExceeded)
        assert (error.limit, error.need) == (limit - 1, limit)
        assert len(brought_in(tmp_path, path, limits=None)["ids"]) == 7
        with pytest.raises(LimitExceeded):
            fork_session(path, home_dir=store(tmp_path), limits=less)


# Refusals


@pytest.mark.parametrize("how", ["flip", "cut", "repeat", "exchange", "mark", "plain", "blank"])
def test_broken_frames_make_nothing(tmp_path: Path, how: str) -> None:
    """Import, preview and fork refuse; a salvage takes the frames that verify and keeps the rest."""
    lines = journal(ROWS).splitlines(keepends=True)
    broken = {
        "flip": [*lines[:3], lines[3].replace(b"message", b"massage"), *lines[4:]],
        "cut": [*lines[:3], *lines[4:]],
        "repeat": [*lines[:4], *lines[3:]],
        "exchange": [*lines[:3], lines[4], lines[3], *lines[5:]],
        "mark": [*lines[:3], lines[3].replace(b',"retention":"retained-import"', b""), *lines[4:]],
        "plain": [*lines[:3], RAWS[3] + b"\n", *lines[4:]],
        "blank": [*lines[:3], b"\n", *lines[3:]],
    }[how]
    path = file(tmp_path, b"".join(broken))
    error = refuse(tmp_path, path, InvalidSource)
    assert "line " in str(error)
    assert error.offset is not None
    assert "--salvage" in str(error)
    with pytest.raises(InvalidSource):
        fork_session(path, home_dir=store(tmp_path))
    assert files_below(store(tmp_path)) == {}
    done = import_session(path, cwd="/w", home_dir=store(tmp_path), salvage=True)
    assert set(shown(done.path)["raws"]) >= {raw for n, raw in enumerate(RAWS[1:], 1) if n != 3}
    if how in ("flip", "mark", "plain"):
        assert done.quarantine is not None
        assert read_bytes(done.quarantine) == broken[3][:-1]


def test_unknown_marks_make_nothing(tmp_path: Path) -> None:
    path = native(tmp_path, HEADER, Row(message("a", None), None, "native-future"))
    assert "newer release" in str(refuse(tmp_path, path, Unsupported))


def test_damage_of_our_own_names_the_next_step(tmp_path: Path) -> None:
    """Bits flipped, acknowledged data lost, the first bytes gone, nothing left: refused by kind,
    with and without salvage; repaired it can be imported."""
    path = own(tmp_path)
    whole = read_bytes(path)
    data = bytearray(whole)
    data[data.index(b'"side"')] ^= 1
    write_bytes(path, bytes(data))
    for salvage in (False, True):
        assert "repair" in str(refuse(tmp_path, path, Damaged, salvage=salvage))
    write_bytes(path, b"\0" * 64 + whole[64:])
    refuse(tmp_path, path, Damaged)
    write_bytes(path, bytes(data))
    repair(path)
    assert "l" in brought_in(tmp_path, path)["ids"]
    nothing = file(tmp_path, whole[:8] + bytes(500), "nothing.jsonl")
    assert "restore a copy" in str(refuse(tmp_path, nothing, Damaged))
    there = Store.at(str(tmp_path / "third"))
    begun = NewJournal(LOCAL_DISK, there.sessions, "s", purpose="create", top=there.top)
    begun.add([Record(Kind.SESSION, HEADER.encode())])
    assert "never published" in str(refuse(tmp_path, begun.temporary, InvalidSource))
    begun.abandon()
    with Session.open(path) as session:
        session.append(custom("last"))
        before = read_bytes(path)
        session.append(custom("lost"))
    write_bytes(path, before)
    refuse(tmp_path, path, AcknowledgedDataLost)


def test_flips_and_cuts_of_our_own(tmp_path: Path) -> None:
    """A bit of every third byte, and every length of the last part: refused with a typed error, or,
    where the end is missing behind a whole frame, fewer entries."""
    path = own(tmp_path)
    shutil.rmtree(tmp_path / "other" / "session-index")  # it would tell what was acknowledged
    whole = read_bytes(path)
    taken = []
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        cut = [whole[:at]] if at > len(whole) - 600 else []
        for data in [bytes(flipped)] * (at % 3 == 0) + cut:
            write_bytes(path, data)
            try:
                found = preview_import(path, cwd="/w", home_dir=store(tmp_path))
            except TreeringError as error:
                assert "\n" not in str(error)
                continue
            taken.append((at, len(data), found.prepared_entry_count))
    assert all(count <= 7 for _, _, count in taken)
    assert all(size < len(whole) for _, size, _ in taken), "a flipped bit was taken"
    assert 0 < len({size for _, size, _ in taken}) == len(taken) < 20
    assert not Path(store(tmp_path)).exists()


@pytest.mark.parametrize("version", ["1", "2", "4"])
def test_a_journal_of_ours_with_another_session_version(tmp_path: Path, version: str) -> None:
    """Nobody wrote one: an upgrade would change ids that its positions name."""
    other = Store.at(str(tmp_path / "other"))
    made = NewJournal(LOCAL_DISK, other.sessions, "odd", purpose="create", top=other.top)
    head = header(version=int(version), id="odd").encode()
    made.add([Record(Kind.SESSION, head), Record(Kind.ENTRY, message("a", None).encode())])
    owner, _ = made.publish(other.journal_path("odd"))
    owner.release()
    error = refuse(tmp_path, other.journal_path("odd"), Unsupported)
    assert f"session version {version}" in str(error)


@MAKERS
def test_a_source_that_changes_makes_nothing(
    tmp_path: Path, make: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit and a cut between the readings."""
    path = make(tmp_path)
    data = read_bytes(path)
    whole = importing.new_header
    for change in (
        data.replace(b'"side"', b'"sjde"'),
        data[: data.rindex(b'"first"')],
        data[: data.index(b'"side"')],
    ):

        def meanwhile(*arguments: Any, change: bytes = change) -> bytes:
            write_bytes(path, change)
            return whole(*arguments)

        write_bytes(path, data)
        with monkeypatch.context() as patch:
            patch.setattr(importing, "new_header", meanwhile)
            with pytest.raises(SourceChanged):
                import_session(path, cwd="/w", home_dir=store(tmp_path))
        assert os.listdir(tmp_path / "home" / "sessions") == []


# Interruptions


@MAKERS
def test_an_import_killed_at_any_moment(tmp_path: Path, make: Callable[[Path], str]) -> None:
    """Nothing, or all of it."""
    draw = random.Random(7)
    texts = [draw.randbytes(200).hex() for _ in range(12_000)]
    rows = [message(f"m{n}", f"m{n - 1}" if n else None, text) for n, text in enumerate(texts)]
    path = native(tmp_path, HEADER, *rows)
    if make is own:
        there = str(tmp_path / "other")
        path = fork_session(path, "/w", home_dir=there, limits=None).path
    killed_imports(tmp_path, path, 12_000)


@MAKERS
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_every_disk_call(
    tmp_path: Path, error: int, make: Callable[[Path], str]
) -> None:
    """A typed error and no session, or the whole one when only the sync of its name failed."""
    path = make(tmp_path)
    at = 0
    while True:
        at += 1
        home = tmp_path / f"h{at}"
        disk = FaultyDisk()
        rule = disk.fail(at=at, error=error)
        try:
            import_session(path, home_dir=str(home), cwd="/w", disk=disk)
        except (StorageFull, StorageError):
            assert rule.fired
        assert disk.open_files == 0, f"at call {at}"
        names = os.listdir(home / "sessions") if (home / "sessions").exists() else []
        for name in (name for name in names if not name.startswith(".")):
            assert shown(str(home / "sessions" / name))["raws"] == RAWS[1:]
        if not rule.fired:
            break
    assert at > 15
