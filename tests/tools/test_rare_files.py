"""Files that hardly occur, through every command: lost headers, strange kinds, newer versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.build import BLOB, DICTIONARY, ENTRY, STAGED, Maker, compact, file_header
from tools_helpers import fine, id_of, imported, new_session, run


def put(home: Path, data: bytes, name: str = "s") -> str:
    path = home / "sessions" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def test_lost_session_header(home: Path) -> None:
    """A SESSION frame that cannot be decoded: the entries are shown, the header is said to be
    unusable, and the others of the store are listed."""
    maker = Maker()
    maker.open()
    maker.frame(1, b"not zstd", codec=1, raw=100)
    maker.entry("a")
    maker.close()
    maker.publish()
    path = put(home, maker.whole())
    new_session(home, "hello", session_id="other")
    shown = fine("session", "show", path)
    assert "header" in shown.out
    assert shown.lines[-1].startswith("a ")
    found = fine("session", "info", path, "--json").json
    assert (found["cwd"], found["created"], found["entries"]) == (None, None, 1)
    fine("session", "info", path)
    assert fine("resume", path, "--json").json["cwd"] is None
    assert run("session", "export", path).code == 1
    rows = {row["id"]: row["status"] for row in fine("session", "list", "--json", home=home).json}
    assert rows == {"s": "damaged", "other": "ok"}
    assert "undecodable" in {f["kind"] for f in run("fsck", path, "--json").json[0]["findings"]}


def test_every_kind_is_dumped(home: Path) -> None:
    """Frames of all kinds, known or not, decodable or not, are lines."""
    maker = Maker()
    maker.started()
    maker.open()
    maker.frame(BLOB, b"\xff\x00")
    maker.frame(DICTIONARY, b"no dictionary")
    maker.frame(200, b"an optional kind")
    maker.frame(ENTRY, b"{}", codec=0x81, raw=100)
    maker.frame(ENTRY, compact({"type": "x", "id": "m"}), flags=STAGED | 0x01 | 0x04)
    maker.frame(ENTRY, b"{}", flags=0x800E)
    maker.close()
    lines = [json.loads(line) for line in fine("dump", put(home, maker.whole())).lines][5:]
    assert [line["kind"] for line in lines[:3]] == ["BLOB", "DICTIONARY", "kind 200"]
    assert lines[0]["payloadHex"] == "ff00"
    assert lines[3]["codec"] == "zstd+spliced"
    assert "undecodable" in lines[3]
    assert lines[4]["flags"] == ["retained-import", "staged", "native-recovery"]
    assert lines[5]["flags"] == ["qualification 7", "unknown 0x8000"]


def test_newer_version(home: Path) -> None:
    """A journal of a newer format version: unsupported everywhere, damaged nowhere."""
    maker = Maker()
    maker.started()
    path = put(home, file_header(published=maker.end, version=2) + maker.body)
    (row,) = fine("session", "list", "--json", home=home).json
    assert row["status"] == "unsupported"
    (record,) = run("fsck", path, "--json").json
    assert [finding["kind"] for finding in record["findings"]] == ["unsupported"]
    for words in (["session", "show"], ["session", "name"], ["repair"], ["dump"]):
        ran = run(*words, path, *(["n"] if words[-1] == "name" else []))
        assert ran.code == 1
        assert "newer release" in ran.stderr


def test_header_and_nothing_else(home: Path) -> None:
    """The file magic and no id: damaged, id unknown; never another format."""
    path = put(home, b"\x89TRNG\r\n\x1a" + bytes(300))
    (record,) = run("fsck", path, "--json").json
    assert record["case"] == "F"
    for words in (["session", "show"], ["dump"], ["repair"], ["resume"], ["session", "info"]):
        ran = run(*words, path)
        assert ran.code == 1, words
        assert ran.stderr.count("\n") == 1


def test_staged_frames_around_a_gap(home: Path) -> None:
    """A batch whose activation may lie in damaged bytes: fsck names it, repair keeps it on request,
    and says what of a batch is lost."""
    for name, keep in (("dropped", []), ("kept", ["--keep-unknown"])):
        maker = Maker()
        maker.started()
        maker.open()
        maker.batch("a", "b")
        maker.close()
        maker.open()
        staged = maker.batch("c", "d")
        maker.close()
        data = bytearray(maker.whole())
        first = maker.frames[4]
        data[first.offset + 50] ^= 1  # of the first batch one entry is lost
        activation = staged[-1].end
        data[activation + 50] ^= 1
        path = put(home, bytes(data), name)
        (record,) = run("fsck", path, "--json").json
        assert "activation-unknown" in {finding["kind"] for finding in record["findings"]}
        ran = fine("repair", path, *keep)
        assert "of a batch of which others are lost" in ran.out
        assert "whose activation may be lost" in ran.out
        entries = fine("session", "info", path, "--json").json["entries"]
        assert entries == (3 if keep else 1)


def test_lone_surrogates(home: Path, tmp_path: Path) -> None:
    """Escaped lone surrogates in an import are shown and come out as they went in."""
    source = tmp_path / "s.jsonl"
    source.write_text(
        '{"type":"session","version":3,"id":"s"}\n'
        '{"type":"message","id":"u","parentId":null,'
        '"message":{"role":"user","content":"\\ud800 half"}}\n'
    )
    path = imported(home, source)
    assert "\\ud800 half" in fine("session", "show", path).out
    assert "\\ud800 half" in fine("session", "show", path, "--entry", "u").out
    fine("session", "tree", path, "--json")
    fine("session", "list", home=home)
    assert fine("session", "export", path).stdout == source.read_bytes()


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    """A home that is a file, or below one: could not run, one line, for every writing command."""
    file = tmp_path / "file"
    file.write_text("x")
    source = tmp_path / "s.jsonl"
    source.write_text('{"type":"session","version":3,"id":"s"}\n')
    for words in (["session", "new"], ["session", "import", source]):
        for home in (file, file / "below"):
            ran = run(*words, home=home)
            assert ran.code == 3, ran
            assert ran.stderr.count("\n") == 1
    assert run("quickstart", "--keep", file / "below").code == 3
    assert file.read_text() == "x"


@pytest.mark.parametrize("kind", ["directory", "file", "dangling"])
def test_index_folder_of_every_kind(kind: str, home: Path) -> None:
    """Whatever lies where the index folder or an index should be, sessions can be looked at."""
    path = new_session(home, "hello", session_id="s")
    folder = home / "session-index"
    for index in folder.iterdir():
        index.unlink()
    if kind == "directory":
        (folder / "s.1.sqlite3").mkdir()
        (folder / "s.1.sqlite3" / "content").write_text("x")
    else:
        folder.rmdir()
        folder.write_text("x") if kind == "file" else folder.symlink_to("/nowhere")
    for words in (["session", "show"], ["session", "info"], ["fsck"], ["fsck", "--index"]):
        ran = run(*words, path)
        assert ran.code in (0, 1), ran
        assert "internal error" not in ran.stderr
    assert fine("session", "name", id_of(path), "still works", home=home).code == 0
    assert run("reindex", path).code in (0, 3)
