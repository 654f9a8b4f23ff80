"""Import and export through the store: whole or nothing, byte for byte, every entry marked."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from copy_helpers import killed_imports
from session_helpers import (
    answers,
    custom,
    files_below,
    index_differences,
    read_bytes,
    view_answers,
)

from treering.engine import (
    Conflict,
    CopyLimits,
    ImportResult,
    Invalid,
    InvalidId,
    InvalidSource,
    LimitExceeded,
    NotFound,
    Session,
    SessionView,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
    export_jsonl,
    import_session,
    jsonl_lines,
    preview_import,
)
from treering.fuzz.faulty_disk import FaultyDisk

HEADER = (
    b'{"type":"session","version":3,"id":"src","timestamp":"2024-12-03T14:00:00.000Z","cwd":"/p"}\n'
)


def corpus() -> Path:
    """Where the real files are."""
    given = os.environ.get("TREERING_CORPUS")
    folder = Path(given) if given else Path(__file__).parents[3] / "shared" / "corpus"
    if not (folder / "INDEX.tsv").exists():
        pytest.skip(f"no corpus at {folder}: set TREERING_CORPUS")
    return folder


def corpus_file(number: str) -> Path:
    return next(corpus().glob(f"{number}-*.jsonl"))


def line(entry_id: str | None, parent: str | None = None, **more: Any) -> bytes:
    value: dict[str, Any] = {"type": "message"}
    if entry_id is not None:
        value["id"] = entry_id
    value["parentId"] = parent
    value["message"] = {"role": "user", "content": f"text of {entry_id}"}
    return json.dumps({**value, **more}).encode() + b"\n"


def source(tmp_path: Path, *lines: bytes, name: str = "source.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(b"".join(lines))
    return str(path)


def brought_in(tmp_path: Path, path: str | Path, **more: Any) -> ImportResult:
    return import_session(str(path), home_dir=str(tmp_path / "home"), cwd="/work", **more)


def exported(path: str) -> bytes:
    with SessionView.open(path) as view:
        return b"".join(jsonl_lines(view))


def journals(tmp_path: Path) -> list[str]:
    folder = tmp_path / "home" / "sessions"
    return sorted(os.listdir(folder)) if folder.exists() else []


BYTE_EXACT = ["11", "33", "34", "35", "50", "51", "53", "58", "61", "62"]
UPGRADED = {"03": 1002, "04": 1018, "07": 7}
REFUSED = ["01", "46", "55", "56", "59"]


@pytest.mark.parametrize("number", BYTE_EXACT)
def test_corpus_comes_back_byte_for_byte(tmp_path: Path, number: str) -> None:
    """A v3 file exports to the same bytes; every entry is marked retained; the owner and a view
    answer alike, with the index and without; what is appended follows the source's bytes."""
    file = corpus_file(number)
    data = file.read_bytes()
    preview = preview_import(file, home_dir=str(tmp_path / "home"), cwd="/work")
    assert not (tmp_path / "home").exists(), "a preview made something"
    result = brought_in(tmp_path, file)
    assert result.preview == preview
    assert result.preview.byte_exact
    assert exported(result.path) == data
    lines = [piece for piece in data.split(b"\n") if piece.strip()]
    with SessionView.open(result.path) as view:
        entries = list(view.iter_entries())
        assert [e.raw for e in entries] == lines[1:]
        assert len({e.id for e in entries}) == len(entries)
        assert all(e.retention == "retained-import" for e in entries)
        assert all(view.retention(e.id) == "retained-import" for e in entries)
        assert view.counts()["entries"] == preview.prepared_entry_count == len(lines) - 1
        right = answers(view)
    with Session.open(result.path) as session:
        assert answers(session) == right
        header = json.loads(session.header_bytes())
        assert header["cwd"] == "/work"
        assert header["parentSession"] == str(file)
        before = [e.id for e in session.branch()]
        new_id = session.append(custom())
        assert session.retention(new_id) is None
        appended = session.read(new_id)
        if before:
            assert [e.id for e in session.branch()] == [*before, new_id], "detached (S19)"
            assert appended.unresolved is None
    out = exported(result.path)
    assert out[: len(data)] == data
    assert out[len(data) :] == appended.raw + b"\n"
    assert index_differences(result.path) == []


@pytest.mark.parametrize("number", UPGRADED)
def test_corpus_upgrades_are_the_same_every_time(tmp_path: Path, number: str) -> None:
    """Older files: all entries, the same ids in each import, a v3 header in the export, which
    imports
    again to the same entries."""
    file = corpus_file(number)
    first, second = brought_in(tmp_path, file), brought_in(tmp_path, file)
    assert first.session_id != second.session_id
    assert first.preview.prepared_entry_count == UPGRADED[number]
    one, two = view_answers(first.path), view_answers(second.path)
    assert [e[1:5] for e in one["entries"]] == [e[1:5] for e in two["entries"]]
    assert one["branch"] == two["branch"]
    assert len(one["entries"]) == UPGRADED[number]
    out = exported(first.path)
    assert json.loads(out.split(b"\n", 1)[0])["version"] == 3
    target = tmp_path / "again.jsonl"
    with SessionView.open(first.path) as view:
        assert export_jsonl(view, target) == len(out)
    third = brought_in(tmp_path, target)
    assert [e[2] for e in view_answers(third.path)["entries"]] == [e[2] for e in one["entries"]]


@pytest.mark.parametrize("number", REFUSED)
def test_corpus_refusals_leave_nothing(tmp_path: Path, number: str) -> None:
    """A refused source leaves no session, no temporary file, no artifact."""
    file = corpus_file(number)
    (tmp_path / "home").mkdir()
    for call in (preview_import, import_session):
        with pytest.raises(InvalidSource) as caught:
            call(file, home_dir=str(tmp_path / "home"), cwd="/work")
        assert file.name in str(caught.value)
    assert files_below(str(tmp_path / "home")) == {}


SALVAGED = {"01": (463, 0), "46": (9, 1), "55": (4, 1), "56": (2, 1), "59": (2, 0)}


@pytest.mark.parametrize("number", SALVAGED)
def test_corpus_salvage_counts(tmp_path: Path, number: str) -> None:
    """Salvage takes every whole record, says what it left out, and keeps those bytes."""
    file = corpus_file(number)
    result = brought_in(tmp_path, file, salvage=True)
    entries, left_out = SALVAGED[number]
    found = view_answers(result.path)
    assert len(found["entries"]) == result.preview.prepared_entry_count
    if number == "01":
        assert result.preview.lines_taken_apart
        assert len(found["entries"]) >= entries - 2
    else:
        assert len(found["entries"]) == entries
    assert not result.preview.byte_exact
    assert bool(result.preview.left_out) == bool(left_out) or number == "01"
    if result.preview.left_out:
        assert result.quarantine is not None
        data = file.read_bytes()
        wanted = b"".join(
            data[p["offset"] : p["offset"] + p["bytes"]] for p in result.preview.left_out
        )
        assert read_bytes(result.quarantine) == wanted
    for call in (answers,):
        with Session.open(result.path) as session:
            assert call(session) == found
            session.append(custom("on"))
    export_of = exported(result.path)
    assert export_of.count(b"\n") == len(found["entries"]) + 2


def test_blank_lines_and_what_is_appended(tmp_path: Path) -> None:
    """BOM, blank lines anywhere, CRs and an unterminated blank end come back; entries appended
    after
    the import follow all of it, one line each."""
    for number, tail in enumerate((b"", b"\n\n", b"\r\n \t\n", b"   ", b"\n \t")):
        data = b"\xef\xbb\xbf\n" + HEADER + b"\n \n" + line("a") + b"\r\n" + line("b", "a") + tail
        result = brought_in(tmp_path, source(tmp_path, data, name=f"s{number}.jsonl"))
        assert exported(result.path) == data
        with Session.open(result.path) as session:
            session.append_many([custom("x"), custom("y")])
            raws = [session.read(i).raw for i in ("x", "y")]
        out = exported(result.path)
        assert out.startswith(data)
        lines = [json.loads(piece) for piece in out[3:].split(b"\n") if piece.strip()]
        assert [v.get("id") for v in lines] == ["src", "a", "b", "x", "y"]
        assert out.endswith(b"\n".join(raws) + b"\n")


def test_F23_a_prefix_written_twice(tmp_path: Path) -> None:
    """Header and entries stand twice, then more: one session header; no record is lost, all are
    addressable, and the export is the source."""
    body = [line("a"), line("b", "a"), line("c", "b")]
    path = source(tmp_path, HEADER, *body, HEADER, *body, line("d", "c"))
    result = brought_in(tmp_path, path)
    assert result.preview.oddities
    with Session.open(result.path) as session:
        entries = list(session.iter_entries())
        assert len({e.id for e in entries}) == len(entries) == 8
        assert session.counts()["unresolved"] == 0
        assert session.leaf_id == "d"
        roots = [e.id for e in session.children(None)]
        assert "a" in roots
        new_id = session.append(custom())
        assert session.branch()[-1].id == new_id
        assert session.branch()[-2].id == "d"
    assert exported(result.path).startswith(read_bytes(path))


def test_F24_hundreds_of_entries_share_one_id(tmp_path: Path) -> None:
    """274 different entries with one id: all kept, the derived ids are the same on each run,
    each own
    id stays data, each entry can be read, labelled, branched to and continued, or is refused by
    name."""
    lines = [line("same", "same" if i else None, n=i) for i in range(274)]
    path = source(tmp_path, HEADER, *lines)
    first, second = brought_in(tmp_path, path), brought_in(tmp_path, path)
    found = [view_answers(r.path) for r in (first, second)]
    assert [e[1] for e in found[0]["entries"]] == [e[1] for e in found[1]["entries"]]
    ids = [e[1] for e in found[0]["entries"]]
    assert len(set(ids)) == 274
    assert exported(first.path) == read_bytes(path)
    with Session.open(first.path) as session:
        leaf = session.leaf_id
        assert leaf == ids[-1]
        length = len(session.branch())
        child = session.append(custom())
        assert session.parent(child) is not None
        assert session.parent(child).id == leaf  # type: ignore[union-attr]
        assert len(session.branch()) == length + 1
        for entry_id in (ids[0], ids[5], ids[-1]):
            assert json.loads(session.read(entry_id).raw)["id"] == "same"
            try:
                session.set_label(entry_id, f"label of {entry_id}")
                assert session.label(entry_id) == f"label of {entry_id}"
                session.branch_to(entry_id)
                under = session.append(custom())
            except TreeringError as refused:
                assert entry_id in str(refused)
                continue
            assert session.parent(under).id == entry_id  # type: ignore[union-attr]
            assert session.branch()[-2].id == entry_id
    with Session.open(first.path) as session:
        assert answers(session) == view_answers(first.path)
    assert index_differences(first.path) == []


def test_F21_cycles_end(tmp_path: Path) -> None:
    """Cycles through duplicate ids, self-parents, and a cycle of 10,000: every walk ends, each
    entry
    once, the cycle is marked, and appending goes on."""
    long = [line(f"n{i}", f"n{(i + 1) % 10_000}") for i in range(10_000)]
    for number, lines in enumerate(
        (
            [line("a"), line("b", "a"), line("a", "b")],
            [line("s", "s")],
            [line("x", "y"), line("y", "x")],
            long,
        )
    ):
        path = source(tmp_path, HEADER, *lines, name=f"c{number}.jsonl")
        result = brought_in(tmp_path, path)
        with Session.open(result.path) as session:
            seen: list[str] = []
            todo: list[str | None] = [None]
            while todo and len(lines) < 100:
                for child in session.children(todo.pop()):
                    seen.append(child.id)
                    todo.append(child.id)
            if len(lines) < 100:
                assert sorted(seen) == sorted(e.id for e in session.iter_entries())
            assert len(session.branch()) <= len(lines)
            assert len(list(session.iter_entries())) == len(lines)
            marked = [e for e in session.iter_entries() if e.unresolved]
            assert number == 0 or any(e.unresolved == "cycle" for e in marked)
            session.append(custom("on"))
            assert session.branch()[-1].id == "on"
        assert exported(result.path).startswith(read_bytes(path))
        assert index_differences(result.path) == []


def test_F17_F18_islands(tmp_path: Path) -> None:
    """Two islands and 22 missing parents: all entries are there, the breaks are marked, not
    silent."""
    lines = [line(f"a{i}", f"a{i - 1}" if i else None) for i in range(50)]
    lines += [line(f"b{i}", f"b{i - 1}" if i else "lost") for i in range(50)]
    result = brought_in(tmp_path, source(tmp_path, HEADER, *lines))
    with Session.open(result.path) as session:
        assert len(list(session.iter_entries())) == 100
        path = session.branch()
        assert [e.id for e in path] == [f"b{i}" for i in range(50)]
        assert path[0].unresolved == "missing"
        assert session.counts()["unresolved"] == 1
        with pytest.raises(NotFound):
            session.append(custom(parentId="lost"))


def test_F19_metadata_at_the_end(tmp_path: Path) -> None:
    """Children of bookkeeping kinds hang from each message: the path has all messages."""
    lines = []
    for i in range(100):
        lines.append(line(f"m{i}", f"m{i - 1}" if i else None))
        for k in range(3):
            lines.append(
                json.dumps(
                    {"type": "custom", "id": f"m{i}-{k}", "parentId": f"m{i}", "customType": "x"}
                ).encode()
                + b"\n"
            )
    result = brought_in(tmp_path, source(tmp_path, HEADER, *lines))
    with Session.open(result.path) as session:
        assert sum(e.type == "message" for e in session.branch()) == 100


def test_parents_outside_the_tree_are_refused(tmp_path: Path) -> None:
    """S22: a second header is kept and exported but is no parent, label target, or position."""
    second = b'{"type":"session","version":3,"id":"second"}\n'
    result = brought_in(tmp_path, source(tmp_path, HEADER, line("a"), second, line("b", "a")))
    with Session.open(result.path) as session:
        assert len(session.entries()) == 3
        assert [e.id for e in session.branch()] == ["a", "b"]
        for call in (
            lambda: session.append(custom(parentId="second")),
            lambda: session.set_label("second", "x"),
            lambda: session.branch_to("second"),
        ):
            with pytest.raises(TreeringError):
                call()
        assert session.counts()["unresolved"] == 0


def test_the_leaf_of_twins_does_not_depend_on_the_index(tmp_path: Path) -> None:
    """S21: above a MiB, the last entry repeats an id or has none: the same leaf and branch with an
    index, without, and in a view."""
    import shutil

    draw = random.Random(1)
    for number, last in enumerate((line("first", "m29", n=2), line(None, "m29"))):
        lines = [line("first", None, x=draw.randbytes(40_000).hex())]
        for i in range(30):
            lines.append(
                line(f"m{i}", f"m{i - 1}" if i else "first", x=draw.randbytes(40_000).hex())
            )
        result = brought_in(
            tmp_path, source(tmp_path, HEADER, *lines, last, name=f"t{number}.jsonl")
        )
        assert os.path.getsize(result.path) > 1_100_000
        found = []
        for drop in (True, False):
            if drop:
                shutil.rmtree(tmp_path / "home" / "session-index", ignore_errors=True)
            with Session.open(result.path) as session:
                found.append((session.leaf_id, [e.id for e in session.branch()]))
        view = view_answers(result.path)
        found.append((view["leaf"], view["branch"]))
        assert found[0] == found[1] == found[2]
        assert len(found[0][1]) == 32


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("change", ["edit", "shrink", "grow"])
def test_a_source_that_changes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, at: int
) -> None:
    """The source is edited, cut or appended to between the passes: an edit or cut is SourceChanged
    and nothing is left; what is appended later does not exist for the import."""
    path = source(tmp_path, HEADER, *[line(f"m{i}", x="y" * 300) for i in range(50)])
    data = read_bytes(path)
    (tmp_path / "home").mkdir()
    from treering.engine.transfer import importing

    prepare = importing.prepare

    def changed(*args: Any, **more: Any) -> Any:
        edited = bytearray(data)
        place = {1: len(HEADER) + 60, 2: len(data) // 2, 3: len(data) - 40}[at]
        if change == "edit":
            edited[edited.index(b"y", place - 60)] = ord("z")
        elif change == "shrink":
            del edited[place:]
        else:
            edited += line("later")
        Path(path).write_bytes(bytes(edited))
        return prepare(*args, **more)

    monkeypatch.setattr(importing, "prepare", changed)
    if change == "grow":
        result = brought_in(tmp_path, path)
        assert len(view_answers(result.path)["entries"]) == 50
        assert exported(result.path) == data
        return
    with pytest.raises(SourceChanged):
        brought_in(tmp_path, path)
    assert journals(tmp_path) == []
    assert not (tmp_path / "home" / "session-artifacts").exists()


def test_F62_an_import_killed_at_any_moment_shows_nothing_or_all(tmp_path: Path) -> None:
    """SIGKILL at random: no session, or the whole one; what is left is a hidden temporary file that
    the next creation sweeps once it is old."""
    draw = random.Random(3)
    lines = [
        line(f"m{i}", f"m{i - 1}" if i else None, x=draw.randbytes(300).hex())
        for i in range(16_000)
    ]
    killed_imports(tmp_path, source(tmp_path, HEADER, *lines), 16_000)


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_every_disk_call_of_an_import(
    tmp_path: Path, error: int, salvage: bool
) -> None:
    """A typed error; no session, or the whole one when only the last sync of its folder failed; no
    descriptor, no temporary file, no orphaned quarantine is left."""
    torn = b'{"type":"message","id":"torn' if salvage else b""
    path = source(tmp_path, HEADER, line("a"), line("b", "a"), torn)
    at = 0
    while True:
        at += 1
        home = tmp_path / f"h{at}"
        disk = FaultyDisk()
        rule = disk.fail(at=at, error=error)
        try:
            import_session(path, home_dir=str(home), cwd="/w", disk=disk, salvage=salvage)
        except (StorageFull, StorageError):
            pass
        assert disk.open_files == 0, f"at call {at}"
        names = os.listdir(home / "sessions") if (home / "sessions").exists() else []
        shown = [n for n in names if not n.startswith(".")]
        for name in shown:
            assert len(view_answers(str(home / "sessions" / name))["entries"]) == 2
        if not shown and rule.fired and "unlink" not in [op.name for op in disk.log[-1:]]:
            left = [p for p in files_below(str(home)) if "import-left-out" in p]
            assert left == [], f"an orphan in quarantine at call {at}"
        if not rule.fired:
            break
    assert at > 15


def test_F44_ids_and_paths_that_could_leave_the_store(tmp_path: Path) -> None:
    """Every odd id or path gets a typed error from create, open, view, import and export;
    nothing is
    made anywhere (S10)."""
    home = tmp_path / "home"
    Session.create(home_dir=str(home), cwd="/", session_id="good").close()
    odd = [
        "", ".", "..", "../x", "/abs", "a/b", "a\\b", "x\0y", "~", "CON", "con.jsonl", "lpt1",
        "n" * 300,
        "a\u202eb", "a\uff0fb", "e\u0301", "\u00e9", "dot.", "space ", " x", "-x", "_x", "a..b",
        "x\n",
        "\udcff", "a:b", "a*b", "x\x7f",
    ]  # fmt: skip
    before = files_below(str(tmp_path))
    for name in odd:
        with pytest.raises(InvalidId):
            Session.create(home_dir=str(home), cwd="/", session_id=name)
    assert files_below(str(tmp_path)).keys() == before.keys()
    for name in [*odd, "a" * 5000]:
        for call in (
            lambda n: Session.open(f"{home}/sessions/{n}.jsonl"),
            lambda n: SessionView.open(f"{home}/sessions/{n}.jsonl"),
            lambda n: Session.open(n),
            lambda n: import_session(n, home_dir=str(home)),
            lambda n: preview_import(n, home_dir=str(home)),
        ):
            with pytest.raises(TreeringError):
                call(name)
    for bad in ("x\0y", "/tmp/" + "n" * 5000, "/nowhere/at/all/x"):
        with SessionView.open(f"{home}/sessions/good.jsonl") as view:
            with pytest.raises(TreeringError):
                export_jsonl(view, bad)
        if not bad.startswith("/nowhere"):
            with pytest.raises(TreeringError):
                Session.create(home_dir="/" + bad.strip("/"), cwd="/")
    with pytest.raises(Invalid):
        Session.create(home_dir="relative/path", cwd="/")
    assert files_below(str(tmp_path)).keys() == before.keys()


@pytest.mark.parametrize("where", ["cwd", "parent", "source"])
def test_names_that_are_no_utf8(tmp_path: Path, where: str) -> None:
    """S11: working folders and source files may have names that are not UTF-8: taken or refused
    with a
    typed error, never a traceback."""
    name = os.fsdecode(b"odd-\xff")
    try:
        if where == "source":
            path = source(tmp_path, HEADER, line("a"), name=name + ".jsonl")
            result = brought_in(tmp_path, path)
            assert len(view_answers(result.path)["entries"]) == 1
        else:
            more = {"cwd": f"/{name}"} if where == "cwd" else {"parent_session": f"/{name}"}
            with Session.create(home_dir=str(tmp_path / "home"), **{"cwd": "/", **more}) as session:
                session.append(custom())
                assert session.header.id == session.id
    except TreeringError:
        assert journals(tmp_path) == []


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_F42_modes(tmp_path: Path, umask: int) -> None:
    """Under any umask every file that is ever made is 0600 and every folder 0700, also exports,
    quarantine, notes, index files and what a repair keeps."""
    old = os.umask(umask)
    try:
        home = tmp_path / "home"
        session = Session.create(home_dir=str(home), cwd="/")
        ids = session.append_many([custom() for _ in range(3)])
        session.read(ids[0])
        check_modes(home)
        target = tmp_path / "home" / "out.jsonl"
        export_jsonl(session, target)
        session.close()
        with open(session.path, "ab") as file:
            file.write(b"torn")
        with Session.open(session.path) as again:
            assert again.report is not None
            assert again.report.quarantine is not None
            again.read(ids[0])
            check_modes(home)
        torn = source(tmp_path, HEADER, line("a"), b"{torn")
        brought_in(tmp_path, torn, salvage=True)
        data = bytearray(read_bytes(session.path))
        data[600] ^= 1
        with open(session.path, "wb") as file:
            file.write(data)
        from treering.engine import Store
        from treering.engine.journal.disk import LOCAL_DISK
        from treering.engine.journal.repair import repair

        assert repair(LOCAL_DISK, session.path, store=Store.of_journal(session.path)).done
        check_modes(home)
        check_modes(home.parent, only=home)
    finally:
        os.umask(old)


def check_modes(folder: Path, only: Path | None = None) -> None:
    for path, (mode, _, _) in files_below(str(folder)).items():
        if only is not None and path != str(only):
            continue
        wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
        assert mode & 0o777 == wanted, f"{path}: {mode & 0o777:o}"


TRACED = """
import os, sys
os.umask(0)
from treering.engine import Session, import_session, export_jsonl
home = sys.argv[1]
os.stat("/marker-begin") if os.path.exists("/marker-begin") else None
s = Session.create(home_dir=home, cwd="/")
ids = s.append_many([{"type": "custom"} for _ in range(3)])
s.read(ids[0])
export_jsonl(s, home + "/out.jsonl")
s.close()
import_session(sys.argv[2], home_dir=home, cwd="/", salvage=True)
Session.open(s.path).close()
"""


def test_F42_F121_in_the_system_calls(tmp_path: Path) -> None:
    """strace: nothing in the store is ever created with a wider mode than 0600/0700 (no window
    until
    a chmod), and after each new name its folder is synced (journals, exports)."""
    import shutil

    if shutil.which("strace") is None:
        pytest.skip("no strace")
    path = source(tmp_path, HEADER, line("a"), b"{torn")
    log = tmp_path / "trace"
    home = str(tmp_path / "home")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    calls = "openat,open,creat,mkdir,mkdirat,fsync,fdatasync,link,linkat,rename,renameat,renameat2"
    done = subprocess.run(
        ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(log), sys.executable, "-c",
        TRACED, home, path],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "PTRACE" in done.stderr or not log.exists():
        pytest.skip("strace is not allowed here")
    assert done.returncode == 0, done.stderr
    lines = [x for x in log.read_text().splitlines() if home in x and " = -1 " not in x]
    made = [x for x in lines if "O_CREAT" in x or "mkdir" in x]
    assert len(made) > 10
    for text in made:
        if "mkdir" in text:
            assert "0700" in text, text
        else:
            assert "0600" in text, text
    for target in (home + "/out.jsonl",):
        at = next(n for n, x in enumerate(lines) if "link" in x and target in x)
        assert any("sync(" in x and f"<{home}>" in x for x in lines[at:]), (
            "the folder of the export was not synced (S18)"
        )
    for at, text in enumerate(lines):
        if "link" in text and "/sessions/" in text and ".new" in text:
            before = [x for x in lines[:at] if "sync(" in x and ".new>" in x]
            after = [x for x in lines[at:] if "sync(" in x and f"<{home}/sessions>" in x]
            assert before, "published before its bytes were synced"
            assert after, "the name was not synced"


def test_export_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that exists, damage in the middle, no space: typed, no partial file, nothing
    replaced."""
    with Session.create(home_dir=str(tmp_path / "home"), cwd="/") as session:
        session.append_many([custom(f"e{i}", data="x" * 100) for i in range(20)])
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "there").write_bytes(b"mine")
    with SessionView.open(session.path) as view:
        with pytest.raises(Conflict):
            export_jsonl(view, folder / "there")
        assert (folder / "there").read_bytes() == b"mine"
        size = export_jsonl(view, folder / "new")
        assert (folder / "new").stat().st_size == size
        data = bytearray(read_bytes(session.path))
        at = bytes(data).index(b'"e10"')
        data[at + 2] ^= 1
        with open(session.path, "r+b") as file:
            file.write(data)
        with pytest.raises(TreeringError):
            export_jsonl(view, folder / "damaged")
    assert sorted(os.listdir(folder)) == ["new", "there"]


def test_export_of_a_branch(tmp_path: Path) -> None:
    """Only the path to the current position, below the session's own header."""
    with Session.create(home_dir=str(tmp_path / "home"), cwd="/") as session:
        session.append_many([custom("a"), custom("b"), custom("c")])
        session.branch_to("a")
        session.append(custom("d"))
        lines = b"".join(jsonl_lines(session, branch=True)).split(b"\n")
        assert [json.loads(x)["id"] for x in lines if x] == [session.id, "a", "d"]


@pytest.mark.parametrize(
    "text",
    ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"],
    ids=ascii,
)
def test_F68_separators_of_other_kinds_split_nothing(tmp_path: Path, text: str) -> None:
    """Only LF ends a record; where JSON allows the character raw it comes back raw."""
    raw = json.dumps(
        {"type": "message", "id": "a", "parentId": None, "t": f"x{text}y"},
        ensure_ascii=ord(text) < 32,
    )
    result = brought_in(tmp_path, source(tmp_path, HEADER, raw.encode() + b"\n"))
    with SessionView.open(result.path) as view:
        assert [e.raw for e in view.entries()] == [raw.encode()]


@pytest.mark.parametrize("text", ['"cut\\ud83c"', '"a\\ud83cb"', '{"\\ud83c":1}'])
def test_F69_lone_surrogates_in_a_source(tmp_path: Path, text: str) -> None:
    """A record with an escaped lone surrogate is kept raw, read, exported; it harms no other."""
    raw = b'{"type":"custom","id":"a","parentId":null,"data":%s}' % text.encode()
    path = source(tmp_path, HEADER, raw + b"\n", line("b", "a"))
    result = brought_in(tmp_path, path)
    with Session.open(result.path) as session:
        assert session.read("a").raw == raw
        session.read("a").decode()
        assert [e.id for e in session.branch()] == ["a", "b"]
    assert exported(result.path) == read_bytes(path)


def test_limits_refuse_whole(tmp_path: Path) -> None:
    """16,385 entries are over the default: refused with limit and need, nothing made; None
    lifts it."""
    path = source(tmp_path, HEADER, *[line(f"m{i}") for i in range(50)])
    with pytest.raises(LimitExceeded) as caught:
        brought_in(tmp_path, path, limits=CopyLimits(entries=49))
    assert caught.value.limit == 49
    assert not (tmp_path / "home").exists()
    with pytest.raises(LimitExceeded):
        brought_in(tmp_path, path, limits=CopyLimits(json_bytes=1000))
    assert len(view_answers(brought_in(tmp_path, path, limits=None).path)["entries"]) == 50


def test_a_forged_mark_in_a_source_is_data(tmp_path: Path) -> None:
    """Retention comes from the frame: members that look like marks stay data, and entries
    appended to
    an import are unmarked, whatever they hold."""
    raw = line("a", None, retention="native", requestOutput={"x": 1})
    result = brought_in(tmp_path, source(tmp_path, HEADER, raw))
    with Session.open(result.path) as session:
        assert session.retention("a") == "retained-import"
        assert session.read("a").qualification is None
        session.append(custom("b", retention="retained-import"))
        assert session.retention("b") is None
