"""`fsck`: every finding is named with its place and the next command, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.build import BLOB, ENTRY, STAGED, Maker, compact
from support.stores import damaged_store
from tools_helpers import Ran, fine, message, new_session, picture, process, run

from treering.engine.errors import StorageError
from treering.engine.session.session import Session
from treering.index import schema
from treering.tools import findings
from treering.tools import fsck as tools_fsck

VECTORS = Path(
    os.environ.get("TREERING_VECTORS") or Path(__file__).resolve().parents[3] / "shared/vectors"
)
RECORD = ["schema", "session", "path", "case", "ok", "findings", "index", "modes"]
FINDING = ["kind", "file", "offset", "length", "what", "next"]
MODE = ["mode", "action", "kept", "lostBytes", "leftOut"]
MODES = ["strict", "tail", "prefix", "salvage"]
WITHOUT_PLACE = {"index", "limit", "missing", "name", "unreadable", "unsupported"}
"""Kinds about a file as a whole that could not be read through, or that has rows and no bytes."""


def fsck(path: str | Path, *options: str) -> tuple[Ran, dict[str, Any]]:
    """The result for one session, as JSON; the text form must agree about the exit code."""
    ran = run("fsck", path, "--json", *options)
    (record,) = ran.json
    check_schema(record)
    text = run("fsck", path, *options)
    assert text.code == ran.code
    assert len(text.lines) == len(record["findings"]) + bool(record["modes"]) + 1
    return ran, record


def check_schema(record: dict[str, Any]) -> None:
    """Version 1 of the JSON report: names, order, and what may be null."""
    assert list(record) == RECORD
    assert record["schema"] == 1
    assert list(record["index"]) == ["state", "differences"]
    for finding in record["findings"]:
        assert list(finding) == FINDING
        assert finding["kind"] in findings.NOTES | findings.ACTIONS
        assert (finding["next"] is None) == (finding["kind"] in findings.NOTES)
        assert finding["file"].startswith("/")
        if finding["offset"] is None or finding["length"] is None:
            summed = finding["what"].endswith("more of this kind")
            mark = finding["what"].startswith("a watermark")
            odd = finding["kind"] == "foreign" and not os.path.isfile(record["path"])
            assert finding["kind"] in WITHOUT_PLACE or summed or mark or odd, finding
    assert [mode["mode"] for mode in record["modes"]] in ([], MODES)
    for mode in record["modes"]:
        assert list(mode) == MODE
        assert mode["action"] in ("nothing", "refuse", "cut", "rebuild")
        numbers = [mode["kept"], mode["lostBytes"], mode["leftOut"]]
        assert all((n is None) == (mode["action"] in ("nothing", "refuse")) for n in numbers)


def put(home: Path, maker: Maker | bytes, name: str = "s") -> Path:
    path = home / "sessions" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(maker if isinstance(maker, bytes) else maker.whole())
    return path


def kinds(record: dict[str, Any]) -> list[str]:
    return [finding["kind"] for finding in record["findings"]]


def flip(path: str | Path, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


class TestCases:
    def test_a(self, home: Path) -> None:
        """A clean session: no finding, exit 0."""
        ran, record = fsck(new_session(home, "a", "b"))
        assert ran.code == 0
        assert record["case"] == "A"
        assert record["ok"] is True
        assert record["findings"] == []
        assert record["index"] == {"state": "not checked", "differences": []}

    def test_b(self, home: Path) -> None:
        """Damage below the published length, and a file that ends below it."""
        path = new_session(home, "a")
        flip(path, 500)
        ran, record = fsck(path)
        assert (ran.code, record["case"]) == (1, "B")
        first = record["findings"][0]
        assert first["kind"] == "interior"
        assert first["offset"] <= 500 < first["offset"] + first["length"]
        assert first["file"] == path
        assert first["next"] == f"treering repair {path}"
        short = put(home, Path(new_session(home)).read_bytes()[:453], "short")
        _, record = fsck(short)
        assert record["case"] == "B"
        assert record["findings"][0]["length"] > 0

    def test_c_and_all_gaps(self, home: Path) -> None:
        """Damage that a later frame proves: every damaged run of bytes is a finding."""
        path = Path(new_session(home, "one-one", "two-two", "three", "four-four", "five"))
        data = path.read_bytes()
        for text in (b"two-two", b"four-four"):
            flip(path, data.index(text))
        ran, record = fsck(path)
        assert (ran.code, record["case"]) == (1, "C")
        gaps = [f for f in record["findings"] if f["kind"] == "interior"]
        assert len(gaps) == 2
        for gap, text in zip(gaps, (b"two-two", b"four-four"), strict=True):
            assert gap["offset"] < data.index(text) < gap["offset"] + gap["length"]

    def test_d(self, home: Path) -> None:
        """A rollback that only the watermark of the index knows of, also without --index."""
        path = new_session(home, "a")
        old = Path(path).read_bytes()
        with Session.open(path) as session:
            session.append(message("acknowledged"))
        Path(path).write_bytes(old)
        ran, record = fsck(path)
        assert (ran.code, record["case"]) == (1, "D")
        assert record["findings"][0]["kind"] == "lost"
        assert "--accept-loss" in record["findings"][0]["next"]

    def test_e(self, home: Path) -> None:
        """A torn tail: exit 1, and what the next open does about it."""
        path = new_session(home, "a")
        size = os.path.getsize(path)
        with open(path, "ab") as file:
            file.write(b"torn")
        ran, record = fsck(path)
        assert (ran.code, record["case"]) == (1, "E")
        assert record["findings"][0] == {
            "kind": "torn",
            "file": path,
            "offset": size,
            "length": 4,
            "what": record["findings"][0]["what"],
            "next": f"treering repair {path} --mode tail",
        }

    def test_e_beside_an_owner(self, home: Path) -> None:
        """While somebody uses the session an incomplete end is no verdict."""
        path = new_session(home, "a")
        with Session.open(path) as session:
            with open(path, "ab") as file:
                file.write(b"half")
            ran, record = fsck(path)
            os.truncate(path, os.path.getsize(path) - 4)
            session.append(message("b"))
        assert ran.code == 0
        assert {"unfinished", "owner"} <= set(kinds(record))

    def test_f(self, home: Path) -> None:
        """A damaged header is damage, not another format."""
        path = new_session(home, "a")
        flip(path, 40)
        ran, record = fsck(path)
        assert (ran.code, record["case"]) == (1, "F")
        assert record["findings"][0]["kind"] == "header"
        assert "repair" in record["findings"][0]["next"]

    def test_g(self, home: Path) -> None:
        """What is no journal says what it is; JSONL, plain or of frames, names the import."""
        folder = home / "sessions"
        strangers = {"empty": b"", "plain": b'{"type":"session"}\n', "zero": bytes(500)}
        strangers["frames"] = b'{"journalFrame":1,"sequence":0}\n'
        for name, content in strangers.items():
            ran, record = fsck(put(home, content, name))
            assert (ran.code, record["case"], kinds(record)) == (1, "G", ["foreign"])
        for name in ("plain", "frames"):
            assert "session import" in fsck(folder / f"{name}.jsonl")[1]["findings"][0]["next"]
        (folder / "dir.jsonl").mkdir()
        os.mkfifo(folder / "fifo.jsonl")
        for name in ("dir", "fifo"):
            assert fsck(folder / f"{name}.jsonl")[1]["case"] == "G"


@pytest.mark.skipif(not VECTORS.is_dir(), reason=f"no vectors in {VECTORS}")
@pytest.mark.parametrize("name", sorted(path.stem for path in VECTORS.glob("*.json")))
def test_vectors(name: str, home: Path) -> None:
    """fsck agrees with the vectors of an independent implementation."""
    wanted = json.loads((VECTORS / f"{name}.json").read_bytes())
    path = put(home, (VECTORS / f"{name}.bin").read_bytes(), name)
    ran, record = fsck(path)
    assert record["case"] == wanted["case"]
    if wanted["case"] in ("B", "C", "E"):
        assert record["findings"][0]["offset"] == wanted["bad_offset"]
    named = [f for f in record["findings"] if f["kind"] == "not-understood"]
    assert len(named) == len(wanted.get("not_understood", []))
    abandoned = [f for f in record["findings"] if f["kind"] == "abandoned"]
    assert bool(abandoned) == bool(wanted.get("abandoned"))
    assert ran.code == int(wanted["case"] != "A" or bool(named))


class TestPayloads:
    def test_undecodable(self, home: Path) -> None:
        """A frame that verifies and cannot be decoded is found, also where nothing shows it."""
        maker = Maker()
        maker.started()
        maker.open()
        maker.frame(ENTRY, b"not zstd", codec=1, raw=100)
        maker.frame(BLOB, b"no zstd either", codec=1, raw=100)
        maker.frame(ENTRY, b"staged", codec=1, raw=100, flags=STAGED)
        maker.close()
        ran, record = fsck(put(home, maker))
        assert ran.code == 1
        assert kinds(record).count("undecodable") == 3
        assert "abandoned" in kinds(record)

    def test_not_json(self, home: Path) -> None:
        """Entries that are no JSON objects: each is a finding with its reason."""
        maker = Maker()
        maker.started()
        maker.open()
        deep = b'{"a":' * 200 + b"1" + b"}" * 200
        for payload in (b"", b"[1]", b'{"a":', b'{"a":NaN}', b"\xff", deep):
            maker.frame(ENTRY, payload)
        maker.close()
        ran, record = fsck(put(home, maker))
        assert ran.code == 1
        assert kinds(record) == ["not-json"] * 6

    def test_many_findings_are_counted(self, home: Path) -> None:
        """A hostile file cannot make the report as long as itself."""
        maker = Maker()
        maker.started()
        maker.open()
        body = []
        for _ in range(1_200):
            maker.frame(ENTRY, b"x")
            body.append(maker.body)
            maker.body = b""
            maker.frames.clear()
        maker.body = b"".join(body)
        _, record = fsck(put(home, maker))
        assert kinds(record).count("not-json") == 1_001
        assert any("200 more" in finding["what"] for finding in record["findings"])

    def test_session_header(self, home: Path) -> None:
        """A SESSION frame whose payload is no header."""
        maker = Maker()
        maker.open()
        maker.frame(1, compact({"type": "session"}))
        maker.close()
        maker.publish()
        ran, record = fsck(put(home, maker))
        assert ran.code == 1
        assert kinds(record) == ["session-header"]


class TestNotes:
    def test_leftovers_and_notes(self, home: Path) -> None:
        """Temporary files, a stale note, unproven frames: told, and no reason for exit 1."""
        path = new_session(home, "a", session_id="s")
        sessions = home / "sessions"
        (sessions / ".s.0123abcd.new").write_bytes(b"unfinished")
        (sessions / ".gone.0123abcd.new").write_bytes(b"unfinished")
        note = {"pid": 2**22 + 1, "host": "elsewhere", "boot": "b", "started": 1, "since": 1}
        (home / "session-index" / "s.owner.json").write_text(json.dumps(note))
        ran, record = fsck(path)
        assert ran.code == 0
        assert sorted(kinds(record)) == ["leftover", "owner"]
        every = fine("fsck", "--all", "--json", home=home).json
        assert [found["session"] for found in every] == ["s", "gone"]
        assert every[1]["case"] is None

    def test_after_a_crash(self, home: Path) -> None:
        """The last frames of a session that was not closed are said to be unproven."""
        path = Path(new_session(home, "a"))
        copy = home / "sessions" / "copy.jsonl"
        with Session.open(path) as session:
            session.append(message("b"))
            shutil.copy(path, copy)
        ran, record = fsck(copy)
        assert ran.code == 0
        assert kinds(record) == ["unproven"]

    def test_repaired_file(self, home: Path) -> None:
        """GAP frames tell of an earlier repair for ever, and need no action."""
        path = new_session(home, "one-one", "two-two", "three")
        flip(path, Path(path).read_bytes().index(b"two-two"))
        fine("repair", path)
        ran, record = fsck(path)
        assert ran.code == 0
        assert kinds(record) == ["gap"]


class TestIndex:
    def indexed(self, home: Path) -> tuple[str, Path]:
        path = new_session(home, "a", "b", "c")
        (index,) = (home / "session-index").glob("*.sqlite3")
        return path, index

    def change(self, index: Path, statement: str) -> None:
        with schema.connect(str(index), readonly=False) as db:
            db.execute(statement)
        db.close()

    def test_states(self, home: Path) -> None:
        """Equal; absent, which is fine; behind, which heals itself."""
        path, index = self.indexed(home)
        assert fsck(path, "--index")[1]["index"] == {"state": "equal", "differences": []}
        kept = index.read_bytes()
        inode = index.stat().st_ino
        with Session.open(path) as session:
            session.append(message("d"))
        index.write_bytes(kept)
        assert index.stat().st_ino == inode
        ran, record = fsck(path, "--index")
        assert (ran.code, record["index"]["state"]) == (0, "behind")
        index.unlink()
        ran, record = fsck(path, "--index")
        assert (ran.code, record["index"]["state"]) == (0, "absent")

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE entry SET depth = depth + 1 WHERE seq = (SELECT max(seq) FROM entry)",
            "UPDATE entry SET revision = randomblob(16)",
            "UPDATE entry SET parent = NULL",
            "UPDATE state SET leaf = NULL",
            "INSERT INTO label VALUES((SELECT min(seq) FROM entry), 'x', 1)",
            "UPDATE state SET journal_id = randomblob(16)",
            "UPDATE state SET sequence = sequence - 1",
        ],
    )
    def test_wrong_rows(self, statement: str, home: Path) -> None:
        """Any wrong row is found, and the next command makes it right."""
        path, index = self.indexed(home)
        self.change(index, statement)
        ran, record = fsck(path, "--index")
        assert (ran.code, record["index"]["state"]) == (1, "differs")
        assert record["index"]["differences"]
        assert kinds(record) == ["index"]
        assert record["findings"][0]["file"] == str(index)
        assert record["findings"][0]["next"] == f"treering reindex {path}"
        fine("reindex", path)
        assert fsck(path, "--index")[1]["index"]["state"] == "equal"

    @pytest.mark.parametrize("content", [b"", b"junk" * 99, "directory", "flip", "copy", "fifo"])
    def test_unusable_files(self, content: bytes | str, home: Path, tmp_path: Path) -> None:
        """Whatever has the name of the index is reported, not a traceback, and left alone."""
        path, index = self.indexed(home)
        data = index.read_bytes()
        index.rename(tmp_path / "elsewhere")  # alive, so that its inode is not given out again
        if content == "directory":
            index.mkdir()
        elif content == "fifo":
            os.mkfifo(index)
        elif content == "flip":
            index.write_bytes(data[:9000] + bytes([data[9000] ^ 1]) + data[9001:])
        else:
            index.write_bytes(data if content == "copy" else content)  # type: ignore[arg-type]
        before = picture(home)
        ran, record = fsck(path, "--index")
        assert picture(home) == before
        assert ran.code == 1
        assert record["index"]["state"] in ("unusable", "differs")

    def test_wal_beside(self, home: Path) -> None:
        """An index whose owner died with rows in the -wal is compared with them, untouched."""
        import subprocess
        import sys

        path, index = self.indexed(home)
        code = (
            "import os, sys\n"
            "from treering.engine.session.session import Session\n"
            "s = Session.open(sys.argv[1])\n"
            "s.append({'type': 'custom'}); s.counts(); os._exit(9)\n"
        )
        assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 9
        assert Path(f"{index}-wal").stat().st_size > 0
        before = picture(home)
        ran, record = fsck(path, "--index")
        assert ran.code == 0, record
        assert record["index"]["state"] == "equal"
        assert picture(home) == before

    def test_in_use(self, home: Path) -> None:
        """The index of a session in use moves while we look: it is not compared."""
        path, _ = self.indexed(home)
        with Session.open(path) as session:
            session.append(message("d"))
            ran, record = fsck(path, "--index")
        assert ran.code == 0
        assert record["index"]["state"] == "in use, not compared"


class TestMany:
    def test_jobs(self, home: Path) -> None:
        """Processes give the same answer as none, in the same order."""
        for number in range(6):
            new_session(home, "a", session_id=f"s{number}")
        flip(home / "sessions/s3.jsonl", 500)
        (home / "sessions/plain.jsonl").write_text("{}")
        alone = run("fsck", "--json", "--index", home=home)
        done = process("fsck", "--json", "--index", "--jobs", "3", "--home", home)
        assert alone.code == done.returncode == 1
        assert json.loads(done.stdout) == alone.json
        assert [r["session"] for r in alone.json if not r["ok"]] == ["plain", "s3"]

    def test_empty_store(self, home: Path) -> None:
        """Nothing to check is fine; a store that is not there is not (a mistyped name)."""
        assert run("fsck", "--json", home=home / "nowhere").code == 1
        home.mkdir(exist_ok=True)
        assert fine("fsck", "--json", home=home).json == []

    def test_leftovers_of_nobody(self, home: Path) -> None:
        """A temporary journal whose session does not exist is a record of its own; no line sums
        it up."""
        new_session(home, "a", session_id="s")
        (home / "sessions" / ".gone.0123abcd.new").write_bytes(b"unfinished")
        records = fine("fsck", "--json", home=home).json
        assert [record["session"] for record in records] == ["s", "gone"]
        for record in records:
            check_schema(record)
        assert len(fine("fsck", home=home).lines) == 2


class TestExitCodes:
    """0 fine, 1 something needs action, 3 only what could not be looked at; of several sessions
    1 goes before 3, and 3 before 0."""

    @pytest.fixture
    def codes(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
        """The exit code for sessions in these states, by names that say the state."""
        for name in ("clean", "noted", "damaged", "refused"):
            new_session(home, "one-one", "two-two", "three", session_id=name)
        (home / "sessions" / ".noted.0123abcd.new").write_bytes(b"unfinished")
        damaged = home / "sessions" / "damaged.jsonl"
        flip(damaged, damaged.read_bytes().index(b"two-two"))
        opened = tools_fsck.open_regular

        def open_or_refuse(disk: Any, path: str, *, write: bool) -> Any:
            if path.endswith("refused.jsonl"):
                raise StorageError("cannot open the journal: Permission denied", path=path)
            return opened(disk, path, write=write)

        monkeypatch.setattr(tools_fsck, "open_regular", open_or_refuse)

        def codes(*names: str) -> int:
            text, as_json = (run("fsck", *names, *more, home=home) for more in ([], ["--json"]))
            assert text.code == as_json.code
            assert text.stderr == as_json.stderr == ""
            assert [record["session"] for record in as_json.json] == list(names)
            return text.code

        return codes

    @pytest.mark.parametrize(
        ("names", "code"),
        [
            (["clean"], 0),
            (["noted"], 0),
            (["clean", "noted"], 0),
            (["damaged"], 1),
            (["clean", "damaged"], 1),
            (["refused"], 3),
            (["clean", "refused"], 3),
            (["refused", "damaged"], 1),
            (["damaged", "refused", "clean", "noted"], 1),
        ],
        ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
    )
    def test_of_sessions(self, names: list[str], code: int, codes: Callable[..., int]) -> None:
        """The order of the sessions plays no part."""
        assert codes(*names) == code
        assert codes(*reversed(names)) == code

    def test_of_a_selector_that_names_nothing(self, home: Path) -> None:
        """One of them unknown: nothing is checked, one line, exit 1."""
        new_session(home, "a", session_id="s")
        ran = run("fsck", "s", "nothing", home=home)
        assert (ran.code, ran.out) == (1, "")
        assert ran.stderr.count("\n") == 1

    def test_usage(self) -> None:
        """2 is for the command line alone."""
        assert run("fsck", "x", "--all").code == 2
        assert run("fsck", "--jobs", "0").code == 2


class TestSchema:
    def test_of_every_state(self, tmp_path: Path) -> None:
        """Version 1, member by member, on a store with every kind of trouble."""
        records = run("fsck", "--index", "--json", home=damaged_store(tmp_path / "home")).json
        assert len(records) > 30
        kinds_seen = set()
        for record in records:
            check_schema(record)
            kinds_seen |= set(kinds(record))
            for finding in record["findings"]:
                assert os.path.lexists(finding["file"])
        assert kinds_seen >= findings.ACTIONS - {"unreadable"}
        assert kinds_seen >= findings.NOTES - {"unfinished"}

    def test_findings_cannot_be_made_wrong(self) -> None:
        """An unknown kind, a note with a command, an action without one: mistakes of ours."""
        for kind, step in (("unknown", None), ("gap", "treering x"), ("torn", None)):
            with pytest.raises(AssertionError):
                findings.Finding(kind, "/f", "what", next=step)
