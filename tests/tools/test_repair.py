"""`repair`, `reindex` and `dump`: what they do to damaged sessions, and what they say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.build import BLOB, ENTRY, STAGED, Maker, compact
from tools_helpers import fine, id_of, message, new_session, picture, run

from treering.engine.journal.payload import encode_splice
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView


def flip(path: str | Path, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


def texts(path: str) -> list[str]:
    with SessionView.open(path) as view:
        return [json.loads(entry.raw)["message"]["content"][0]["text"] for entry in view.entries()]


def last_frame(path: str) -> int:
    offset: int = json.loads(fine("dump", "--frames", path).lines[-1])["offset"]
    return offset


def drop_indexes(home: Path) -> None:
    for index in (home / "session-index").iterdir():
        index.unlink()


class TestRepair:
    def test_nothing_to_repair(self, home: Path) -> None:
        """A clean session stays as it is."""
        path = new_session(home, "a")
        before = Path(path).read_bytes()
        assert fine("repair", path).out == "nothing to repair\n"
        assert Path(path).read_bytes() == before

    def test_interior_damage(self, home: Path) -> None:
        """What verifies is kept, the gap is told, the damaged file lies beside; fsck is content."""
        path = new_session(home, "one-one", "two-two", "three")
        flip(path, Path(path).read_bytes().index(b"two-two"))
        damaged = Path(path).read_bytes()
        before = picture(home)
        ran = fine("repair", path, "--dry-run")
        assert "would keep 2 entries" in ran.out
        assert picture(home) == before
        ran = fine("repair", path)
        assert "kept 2 entries" in ran.out
        assert "lost: " in ran.out
        kept = ran.out.split("is kept: ")[1].strip()
        assert Path(kept).read_bytes() == damaged
        assert texts(path) == ["one-one", "three"]
        fine("fsck", path, "--index")

    def test_accept_loss(self, home: Path) -> None:
        """Acknowledged data that is gone is only given up when asked for."""
        path = new_session(home, "a")
        old = Path(path).read_bytes()
        with Session.open(path) as session:
            session.append(message("acknowledged"))
        Path(path).write_bytes(old)
        ran = run("repair", path)
        assert ran.code == 1
        assert "--accept-loss" in ran.stderr
        assert Path(path).read_bytes() == old
        found = fine("repair", path, "--accept-loss", "--json").json
        assert list(found) == [
            "schema",
            "path",
            "case",
            "verdict",
            "mode",
            "action",
            "done",
            "kept",
            "gaps",
            "activationUnknown",
            "batchSurvivors",
            "undecodable",
            "misunderstood",
            "headerMade",
            "keptAside",
        ]
        assert (found["case"], found["kept"], found["done"]) == ("D", 1, True)
        assert fine("fsck", path).code == 0

    def test_exit_codes(self, home: Path) -> None:
        """0 done, nothing to do, or only asked; 1 refused; 2 usage; 3 in use. A dry run that would
        be refused is refused in the same words."""
        path = new_session(home, "one-one", "two-two", "three")
        assert run("repair", path).code == 0
        flip(path, Path(path).read_bytes().index(b"two-two"))
        drop_indexes(home)
        for mode in ("strict", "tail"):
            dry = run("repair", path, "--mode", mode, "--dry-run")
            ran = run("repair", path, "--mode", mode)
            assert (dry.code, ran.code) == (1, 1)
            assert dry.stderr == ran.stderr
            assert dry.out == ran.out == ""
        assert run("repair", path, "--dry-run").code == 0
        assert run("repair", "nothing", home=home).code == 1
        assert run("repair", path, "--mode", "x").code == 2
        assert run("repair", path).code == 0
        with Session.open(path):
            assert run("repair", path).code == 3
            assert run("repair", path, "--json").out == ""

    def test_header_by_journal_id(self, home: Path) -> None:
        """A damaged header is repaired; the id can be named."""
        path = new_session(home, "a")
        with SessionView.open(path) as view:
            journal_id = view.journal_id.hex()
        flip(path, 40)
        fine("repair", path, "--journal-id", journal_id)
        assert texts(path) == ["a"]

    def test_foreign_and_owned(self, home: Path) -> None:
        """Another format and a session in use are refused, with the code of the reason."""
        path = new_session(home, "a")
        plain = home / "sessions" / "plain.jsonl"
        plain.write_text("{}\n")
        assert run("repair", plain).code == 1
        with Session.open(path):
            assert run("repair", path).code == 3
        assert plain.read_text() == "{}\n"

    def test_older_products_are_protected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is written below the state of an older product."""
        monkeypatch.setenv("HOME", str(tmp_path))
        home = tmp_path / ".pi"
        for words in (["session", "new"], ["session", "import", __file__]):
            ran = run(*words, home=home)
            assert ran.code == 1
        assert not home.exists()


class TestTornTail:
    def torn(self, home: Path, tail: bytes = b"torn") -> str:
        path = new_session(home, "a")
        with open(path, "ab") as file:
            file.write(tail)
        return path

    def test_cut(self, home: Path) -> None:
        """Case E: the bytes go to quarantine, the journal goes on; --dry-run only says so."""
        path = self.torn(home)
        before = picture(home)
        assert "would be moved" in fine("repair", path, "--dry-run").out
        assert picture(home) == before
        out = fine("repair", path).out
        kept = out.split("was moved to ")[1].split(" and cut off")[0]
        assert Path(kept).read_bytes() == b"torn"
        assert fine("fsck", path).code == 0

    def test_any_writing_command_tells(self, home: Path) -> None:
        """Whoever opens the session says what it did with the tail."""
        assert "torn tail of 4 B" in fine("session", "name", self.torn(home), "x").stderr


class TestReadmit:
    def cut(self, home: Path, *texts_: str, keep: int) -> tuple[str, bytes]:
        """A session whose last appends were damaged at their very start, so that they count as a
        torn tail; its index is gone, so that nothing proves them acknowledged."""
        path = new_session(home, "base", session_id="s")
        size = os.path.getsize(path)
        with Session.open(path) as session, session.batch() as batch:
            for text in texts_:
                batch.append(message(text))
        data = Path(path).read_bytes()[: last_frame(path)]  # without EPOCH_CLOSE, which is proof
        tail = data[size:]
        Path(path).write_bytes(data[:size] + bytes(keep) + tail[keep:])
        drop_indexes(home)
        return path, tail

    def test_entries_come_back(self, home: Path) -> None:
        """Whole frames of a quarantined batch are appended again, once, with the same bytes."""
        path, _ = self.cut(home, "x1", "x2", keep=100)
        assert run("fsck", path, "--json").json[0]["case"] == "E"
        assert texts(path) == ["base"]
        ran = fine("repair", path, "--readmit")
        assert "appended 2 entries of 1 quarantined tail" in ran.out
        assert texts(path) == ["base", "x1", "x2"]
        again = fine("repair", path, "--readmit", "--json").json
        assert list(again) == [
            "schema",
            "path",
            "done",
            "files",
            "frames",
            "readmitted",
            "present",
            "left",
            "leafKept",
        ]
        assert (again["readmitted"], again["present"]) == ([], 2)
        fine("fsck", path, "--index")

    def test_dry_run(self, home: Path) -> None:
        """--dry-run says what would come back and changes nothing."""
        path, _ = self.cut(home, "x1", keep=100)
        fine("repair", path)
        before = picture(home)
        assert "would append 1 entry" in fine("repair", path, "--readmit", "--dry-run").out
        assert picture(home) == before

    def test_position_stays_when_work_went_on(self, home: Path) -> None:
        """Entries appended since keep the position; what comes back is beside them."""
        path, _ = self.cut(home, "x1", keep=100)
        with Session.open(path) as session:
            session.append(message("went on"))
        ran = fine("repair", path, "--readmit", "--json")
        assert ran.json["leafKept"] is True
        with SessionView.open(path) as view:
            leaf = view.leaf()
            assert leaf is not None
            assert b"went on" in leaf.raw
        assert texts(path) == ["base", "went on", "x1"]

    def test_staged_without_activation_stay(self, home: Path) -> None:
        """A batch whose EPOCH_ACTIVATE is lost was never acknowledged: it stays in quarantine."""
        path = new_session(home, "base", session_id="s")
        size = os.path.getsize(path)
        with Session.open(path) as session, session.batch() as batch:
            batch.append(message("never"))
        data = Path(path).read_bytes()
        lost = data.index(b'"revision"')
        Path(path).write_bytes(data[:size] + bytes(50) + data[size + 50 : lost])
        drop_indexes(home)
        ran = fine("repair", path, "--readmit")
        assert "appended 0 entries" in ran.out
        assert "staged frame" in ran.stderr
        assert texts(path) == ["base"]

    def test_batch_across_the_cut(self, home: Path) -> None:
        """A batch whose first frames stayed in the journal comes back whole, or not at all."""
        for lost in (False, True):
            maker = Maker()
            maker.started()
            maker.open()
            staged = [maker.entry(name, flags=STAGED) for name in ("b1", "b2", "b3")]
            maker.activate(staged[0].sequence, staged[-1].sequence, staged[-1].revision)
            name = f"s{int(lost)}"
            path = home / "sessions" / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(maker.whole()[: staged[0].end])
            folder = home / "session-artifacts" / name / "quarantine"
            folder.mkdir(parents=True)
            tail = bytearray(maker.whole()[staged[0].end :])
            if lost:
                tail[60] ^= 1
            (folder / f"{staged[0].end}-{'0' * 16}.tail").write_bytes(tail)
            found = fine("repair", path, "--readmit", "--json").json
            assert found["readmitted"] == ([] if lost else ["b1", "b2", "b3"])
            assert bool(found["left"]) is lost

    def test_what_cannot_come_back_is_listed(self, home: Path) -> None:
        """Entries below lost ones, marked ones and undecodable ones stay, each with a reason;
        BLOBs of the tail itself are resolved."""
        maker = Maker()
        maker.started()
        maker.open()
        maker.entry("base")
        start = maker.end
        shared = b"shared text " * 20
        blob = maker.frame(BLOB, shared)
        good = {"type": "custom", "id": "spliced", "parentId": "base", "data": shared.decode()}
        at = compact(good).index(shared)
        for name, sequence in (("spliced", blob.sequence), ("dangles", 1)):
            whole = compact(good | {"id": name})
            pieces = encode_splice(whole.replace(shared, b""), [(at, sequence, len(shared), 0)])
            maker.frame(ENTRY, pieces, codec=0x80, raw=len(whole))
        maker.frame(ENTRY, compact({"type": "custom", "id": "q"}), flags=0x0E)
        maker.frame(ENTRY, compact({"type": "message", "id": "base", "other": 1}))
        maker.frame(ENTRY, compact({"type": "custom", "id": "o", "parentId": "lost"}))
        maker.frame(ENTRY, compact({"type": "custom", "id": "m", "parentId": "base"}), flags=1)
        maker.frame(ENTRY, compact({"type": "custom", "parentId": "base"}))
        maker.frame(ENTRY, compact({"type": "custom", "id": "fine", "parentId": "base"}))
        maker.frame(ENTRY, compact({"type": "custom", "id": "st"}), flags=STAGED)
        whole = maker.whole()
        path = home / "sessions" / "s.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(whole[:start])
        folder = home / "session-artifacts" / "s" / "quarantine"
        folder.mkdir(parents=True)
        (folder / f"{start}-{'0' * 16}.tail").write_bytes(whole[start:])
        (folder / "notes.txt").write_text("not a tail")
        found: dict[str, Any] = fine("repair", path, "--readmit", "--json").json
        assert found["readmitted"] == ["spliced", "m", "fine"]
        assert len(found["left"]) == 6
        with SessionView.open(path) as view:
            assert view.retention("m") == "retained-import"
            assert view.retention("fine") is None
        spliced = fine("session", "show", path, "--entry", "spliced", "--raw").stdout
        assert spliced == compact(good) + b"\n"
        fine("fsck", path)

    def test_nothing_in_quarantine(self, home: Path) -> None:
        """Without quarantined bytes it says so."""
        assert "no cut-off tail" in fine("repair", new_session(home, "a"), "--readmit").out

    def test_damaged_sessions_are_repaired_first(self, home: Path) -> None:
        """Case C is refused as for any open for writing, with the next command."""
        path = new_session(home, "one-one", "two-two", "three")
        flip(path, Path(path).read_bytes().index(b"two-two"))
        drop_indexes(home)  # with it, only what it does not cover is read
        ran = run("repair", path, "--readmit")
        assert ran.code == 1
        assert "treering repair" in ran.stderr


class TestReindex:
    def test_all(self, home: Path) -> None:
        """Old generations go, a new one is right; sessions in use are skipped with exit 3."""
        paths = [new_session(home, "a", "b", session_id=f"s{number}") for number in range(3)]
        index = home / "session-index"
        (index / "s0.1.sqlite3").write_bytes(b"garbage")
        (index / "s1.7.sqlite3.bad-1").write_bytes(b"old")
        ran = fine("reindex", "--all", home=home)
        assert len(ran.lines) == 3
        assert all("2 rows" in line and "rows/s" in line for line in ran.lines)
        assert {path.name for path in index.iterdir()} == {f"s{n}.1.sqlite3" for n in range(3)}
        fine("fsck", "--all", "--index", home=home)
        with Session.open(paths[1]):
            ran = run("reindex", "--all", "--json", home=home)
        assert ran.code == 3
        assert [found["skipped"] for found in ran.json] == [False, True, False]
        with Session.open(paths[1]):
            assert run("reindex", "s1", home=home).code == 3
        assert list(ran.json[0]) == [
            "schema",
            "session",
            "path",
            "rows",
            "seconds",
            "error",
            "skipped",
            "rowsPerSecond",
        ]

    def test_exit_codes(self, home: Path) -> None:
        """0 fine, 3 in use, 1 damaged; of several 1 goes before 3 and 3 before 0."""
        for name in ("clean", "used", "damaged"):
            new_session(home, "one-one", "two-two", session_id=name)
        damaged = home / "sessions" / "damaged.jsonl"
        flip(damaged, damaged.read_bytes().index(b"one-one"))
        for index in (home / "session-index").glob("damaged.*"):
            index.unlink()
        with Session.open(home / "sessions" / "used.jsonl"):
            for names, code in (
                (["clean"], 0),
                (["used"], 3),
                (["damaged"], 1),
                (["clean", "used"], 3),
                (["used", "damaged"], 1),
                (["damaged", "clean", "used"], 1),
            ):
                for words in (names, names[::-1]):
                    assert run("reindex", *words, home=home).code == code, words
                    assert run("reindex", *words, "--json", home=home).code == code, words
        assert run("reindex", home=home).code == 2

    def test_jobs(self, home: Path) -> None:
        """Processes share the work."""
        for number in range(4):
            new_session(home, "a", session_id=f"s{number}")
        assert len(fine("reindex", "--all", "--jobs", "2", home=home).lines) == 4
        fine("fsck", "--index", home=home)

    def test_never_hides_a_rollback(self, home: Path) -> None:
        """The watermark goes with the index: a journal that was rolled back is refused first."""
        path = new_session(home, "a")
        old = Path(path).read_bytes()
        with Session.open(path) as session:
            session.append(message("acknowledged"))
        Path(path).write_bytes(old)
        ran = run("reindex", path)
        assert ran.code == 1
        assert run("fsck", path, "--json").json[0]["case"] == "D"

    def test_strangers(self, home: Path) -> None:
        """Files that are no sessions are errors of their own and stop nobody else."""
        new_session(home, "a", session_id="good")
        (home / "sessions/plain.jsonl").write_text("{}")
        (home / "sessions/dir.jsonl").mkdir()
        ran = run("reindex", "--all", home=home)
        assert ran.code == 1
        assert len(ran.lines) == 1
        assert len(ran.stderr.splitlines()) == 2


class TestDump:
    def test_frames(self, home: Path) -> None:
        """The header and every frame, with payloads unless --frames."""
        path = new_session(home, "hello")
        lines = [json.loads(line) for line in fine("dump", path).lines]
        assert [line["kind"] for line in lines] == [
            "FILE_HEADER",
            "EPOCH_OPEN",
            "SESSION",
            "EPOCH_CLOSE",
            "EPOCH_OPEN",
            "ENTRY",
            "EPOCH_CLOSE",
        ]
        assert "hello" in lines[5]["payload"]
        for line in fine("dump", path, "--frames").lines[1:]:
            assert list(json.loads(line)) == [
                "offset",
                "kind",
                "codec",
                "flags",
                "stored",
                "raw",
                "sequence",
                "epoch",
                "unsynced",
                "previous",
                "revision",
            ]

    def test_damaged(self, home: Path) -> None:
        """Gaps are lines between the frames; together they cover the file."""
        path = new_session(home, "one-one", "two-two", "three")
        flip(path, Path(path).read_bytes().index(b"two-two"))
        with open(path, "ab") as file:
            file.write(b"end")
        ran = fine("dump", id_of(path), "--frames", home=home)
        lines = [json.loads(line) for line in ran.lines]
        at = 128
        for line in lines[1:]:
            assert line["offset"] == at
            at += line["bytes"] if line["kind"] == "UNREADABLE" else line["stored"] + 60
        assert at == os.path.getsize(path)
        assert [line["kind"] for line in lines].count("UNREADABLE") == 2

    def test_no_journal(self, home: Path) -> None:
        """Another format is refused."""
        path = home / "x.jsonl"
        home.mkdir()
        path.write_text("{}")
        assert run("dump", path).code == 1
