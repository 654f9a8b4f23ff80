"""The modes of `repair`: `fsck` foretells them, a dry run says the same, the repair does it, and a
second repair changes nothing. On a session in every state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.build import Maker
from support.stores import add_session, damaged_store, flip_byte, picture, said, without_syncs
from tools_helpers import Ran, fine, run

from treering.engine import (
    AcknowledgedDataLost,
    Conflict,
    Damaged,
    Invalid,
    NotAJournal,
    Session,
    Unsupported,
    repair,
)
from treering.engine.journal.repair_modes import REPAIR_MODES


@pytest.fixture(autouse=True)
def _no_device_syncs() -> Iterator[None]:
    with without_syncs():
        yield


CHOSEN = {"A": "tail", "B": "salvage", "C": "salvage", "E": "tail", "F": "salvage"}
"""What a repair without a mode does; D is a decision and G is none."""

TABLE = {
    "strict": {"B": "refuse", "C": "refuse", "D": "refuse", "E": "refuse", "F": "refuse"},
    "tail": {"B": "refuse", "C": "refuse", "D": "refuse", "E": "cut", "F": "refuse"},
    "prefix": {"B": "rebuild", "C": "rebuild", "D": "rebuild", "E": "cut", "F": "rebuild"},
    "salvage": {"B": "rebuild", "C": "rebuild", "D": "rebuild", "E": "rebuild", "F": "rebuild"},
}
NEWER = ("not-understood", "not-understood-torn", "header-undecodable")


def records(home: Path) -> dict[str, dict[str, Any]]:
    return {record["session"]: record for record in run("fsck", "--json", home=home).json}


def still(home: Path) -> Any:
    """The store, but for the advisory notes of owners: taking the lock sweeps a dead one's."""
    found = picture(home, folder_times=False)
    return {name: value for name, value in found.items() if not name.endswith(".owner.json")}


def kept_bytes(home: Path, name: str) -> list[bytes]:
    """Everything in quarantine."""
    folder = home / "session-artifacts" / name / "quarantine"
    return [path.read_bytes() for path in folder.iterdir()] if folder.is_dir() else []


def ids(path: str) -> list[str]:
    exported = fine("session", "export", path).stdout.splitlines()[1:]
    return [json.loads(line)["id"] for line in exported]


def foretold(record: dict[str, Any], mode: str) -> dict[str, Any] | None:
    """What fsck says of a mode; None where it says nothing."""
    found: dict[str, Any] | None = next((m for m in record["modes"] if m["mode"] == mode), None)
    return found


class TestEveryState:
    @pytest.mark.parametrize("mode", REPAIR_MODES)
    def test_a_mode_does_what_fsck_said(self, mode: str, tmp_path: Path) -> None:
        """Action, entries kept, bytes lost: fsck, dry run and repair agree; refusals change
        nothing; the old bytes are in quarantine; a second repair says that there is nothing."""
        home = damaged_store(tmp_path / "home")
        seen = set()
        for name, record in records(home).items():
            path = Path(record["path"])
            if not path.is_file() or name in ("gone", "odd name"):
                continue
            before, data = still(home), path.read_bytes()
            dry = run("repair", path, "--mode", mode, "--dry-run", "--json")
            assert still(home) == before
            done = run("repair", path, "--mode", mode, "--json")
            assert (dry.code, dry.stderr) == (done.code, done.stderr), name
            said_so = foretold(record, mode)
            if done.code:
                assert said_so is None or said_so["action"] == "refuse", (name, done)
                assert still(home) == before, name
                seen.add("refuse")
                continue
            action = done.json["action"]
            seen.add(action)
            assert dry.json | {"done": True, "keptAside": done.json["keptAside"]} == done.json | {
                "done": True
            }
            if said_so is None:
                assert action == "nothing", name
            else:
                assert said_so["action"] == action, name
            if action == "nothing":
                assert not done.json["done"]
                assert still(home) == before
                continue
            assert said_so is not None
            assert said_so["kept"] == done.json["kept"] == len(ids(str(path))), name
            assert said_so["lostBytes"] == sum(gap["bytes"] for gap in done.json["gaps"])
            left = ("undecodable", "misunderstood", "activationUnknown")
            assert said_so["leftOut"] == sum(len(done.json[kind]) for kind in left)
            tail = data[done.json["gaps"][0]["offset"] :] if action == "cut" else data
            assert tail in kept_bytes(home, name)
            assert run("fsck", path, "--json").json[0]["ok"]
            self.second_repair(home, path, mode)
        assert (
            seen
            == {
                "strict": {"nothing", "refuse"},
                "tail": {"nothing", "refuse", "cut"},
                "prefix": {"nothing", "refuse", "cut", "rebuild"},
                "salvage": {"nothing", "refuse", "rebuild"},
            }[mode]
        )

    def second_repair(self, home: Path, path: Path, mode: str) -> None:
        before = still(home)
        for words in (["--mode", mode], [], ["--accept-loss"], ["--mode", "strict"]):
            again = fine("repair", path, *words)
            assert again.out == "nothing to repair\n"
            found = fine("repair", path, *words, "--json").json
            assert (found["action"], found["done"], found["keptAside"]) == ("nothing", False, None)
        assert still(home) == before

    def test_the_table(self, tmp_path: Path) -> None:
        """Each case and mode, as documented; frames of a newer release are never cut or dropped
        from a whole history."""
        home = damaged_store(tmp_path / "home")
        cases = set()
        for name, record in records(home).items():
            if not record["modes"] or name in NEWER:
                continue
            case = record["case"]
            cases.add(case)
            for mode in REPAIR_MODES:
                found = foretold(record, mode)
                assert found is not None
                if case == "A":
                    wanted = "rebuild" if mode == "salvage" else "nothing"
                    assert name == "undecodable"
                else:
                    wanted = TABLE[mode][case]
                assert found["action"] == wanted, (name, mode)
        assert cases == set("ABCDEF")
        for name in NEWER:
            actions = {mode["action"] for mode in records(home)[name]["modes"]}
            assert actions <= {"nothing", "refuse"}

    def test_without_a_mode(self, tmp_path: Path) -> None:
        """What needs no decision is done, as the mode that stands for it would; the rest is
        refused, and the reason names what to do."""
        home = damaged_store(tmp_path / "home")
        done = 0
        for name, record in records(home).items():
            if not record["modes"] or name in NEWER or record["case"] == "A":
                continue
            ran = run("repair", record["path"], "--json")
            if record["case"] == "D":
                assert ran.code == 1
                assert "newer copy" in ran.stderr
                assert record["findings"][0]["next"] in ran.stderr
                continue
            wanted = foretold(record, CHOSEN[record["case"]])
            assert wanted is not None
            assert ran.json["mode"] == wanted["mode"]
            assert (ran.json["action"], ran.json["kept"]) == (wanted["action"], wanted["kept"])
            done += 1
        assert done >= 7

    def test_salvage_keeps_more(self, tmp_path: Path) -> None:
        """Whole frames behind the damage: prefix leaves them, salvage keeps them, also of a torn
        tail and of a journal that has lost acknowledged data."""
        for mode, kept in (("prefix", 3), ("salvage", 5)):
            home = damaged_store(tmp_path / mode)
            for name in ("torn-whole", "d-gap"):
                fine("repair", name, "--mode", mode, home=home)
                path = home / "sessions" / f"{name}.jsonl"
                assert len(ids(str(path))) == kept
                notes = run("fsck", path, "--json").json[0]["findings"]
                # The last frame of d-gap, an EPOCH_CLOSE, is gone, too: the watermark knows it.
                gaps = {"prefix": {"torn-whole": 0, "d-gap": 1}, "salvage": {"d-gap": 2}}
                assert [note["kind"] for note in notes] == ["gap"] * gaps[mode].get(name, 1)
                end = [note for note in notes if "what had followed" in note["what"]]
                assert len(end) == (mode == "salvage" and name == "d-gap")

    def test_what_a_repair_left_out_is_noted_in_the_journal(self, tmp_path: Path) -> None:
        """A frame that could not be decoded leaves a GAP, as one that did not verify does."""
        home = damaged_store(tmp_path / "home")
        (first, _) = [
            finding
            for finding in records(home)["undecodable"]["findings"]
            if finding["kind"] == "undecodable"
        ]
        fine("repair", "undecodable", "--mode", "salvage", home=home)
        (gap,) = records(home)["undecodable"]["findings"]
        assert gap["kind"] == "gap"
        assert f"{first['length']} bytes at {first['offset']}" in gap["what"]

    @pytest.mark.parametrize("mode", ["prefix", "salvage"])
    def test_a_gap_stands_where_the_loss_is(self, mode: Any, tmp_path: Path) -> None:
        """Between the entries that were its neighbours, for what cannot be decoded too."""
        maker = Maker().started()
        maker.open()
        maker.entry("a")
        maker.frame(2, b"not zstd", codec=1, raw=100)
        maker.entry("b")
        maker.sync()
        last = maker.entry("lost")
        maker.close()
        path = tmp_path / "sessions" / "s.jsonl"
        path.parent.mkdir()
        path.write_bytes(maker.whole())
        flip_byte(path, last.offset + 50)
        result = repair(path, mode=mode)
        assert result.undecodable == [5]
        kinds = [json.loads(line)["kind"] for line in fine("dump", "--frames", path).lines]
        assert kinds[3:-1] == ["ENTRY", "GAP", "ENTRY", "GAP"]


class TestWords:
    """The text is for people: what, where, what next."""

    def ran(self, tmp_path: Path, name: str, *words: str) -> Ran:
        return run("repair", name, *words, home=damaged_store(tmp_path / "home"))

    def test_strict_and_tail_refuse_in_one_line(self, tmp_path: Path) -> None:
        """With the case, the place and the command."""
        home = damaged_store(tmp_path / "home")
        for mode, name, step in (
            ("strict", "torn", "--mode tail"),
            ("strict", "c", "treering repair"),
            ("tail", "c", "treering repair"),
            ("tail", "d", "--accept-loss"),
        ):
            ran = run("repair", name, "--mode", mode, home=home)
            assert ran.code == 1
            assert ran.out == ""
            (line,) = ran.stderr.splitlines()
            assert line.startswith(f"treering: error: {home}/sessions/{name}.jsonl: ")
            assert "(offset " in line
            assert step in line.partition("; next: ")[2]

    def test_cut_and_rebuilt(self, tmp_path: Path) -> None:
        """What was done, what is missing, where the old bytes are, and how to get more."""
        ran = self.ran(tmp_path, "torn-whole")
        assert "a torn tail of 663 bytes was moved to " in ran.out
        assert "it holds 2 whole frames; `treering repair " in ran.out
        assert "--readmit` appends them again" in ran.out

    def test_options_that_exclude_each_other(self) -> None:
        """Two ways of saying the mode must agree; what a mode has no use for is a usage error."""
        for words in (
            ["--accept-loss", "--mode", "salvage"],
            ["--readmit", "--mode", "tail"],
            ["--keep-unknown", "--mode", "prefix"],
            ["--keep-unknown", "--accept-loss"],
            ["--mode", "everything"],
        ):
            assert run("repair", "x", *words).code == 2, words

    def test_accept_loss_is_prefix(self, tmp_path: Path) -> None:
        """Another name for the same mode, alone or with it."""
        found = [
            run("repair", name, *words, "--json", home=damaged_store(tmp_path / str(number))).json
            for number, (name, words) in enumerate(
                (
                    ("c", ["--accept-loss"]),
                    ("c", ["--mode", "prefix"]),
                    ("c", ["--accept-loss", "--mode", "prefix"]),
                )
            )
        ]
        assert {result["mode"] for result in found} == {"prefix"}
        assert len({(result["kept"], len(result["gaps"])) for result in found}) == 1


class TestFromPython:
    def test_wrong_modes(self, tmp_path: Path) -> None:
        """A mode that is none, or that an opener cannot have, is Invalid and says so."""
        path = add_session(tmp_path, "s")
        with pytest.raises(Invalid, match="strict, tail, prefix, salvage"):
            repair(path, mode="all")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="keep_unknown"):
            repair(path, mode="tail", keep_unknown=True)
        for mode in ("prefix", "salvage", "", None):
            with pytest.raises(Invalid, match="'strict' or 'tail'"):
                Session.open(path, mode=mode)  # type: ignore[arg-type]

    def test_refusals(self, tmp_path: Path) -> None:
        """Each is typed, and nothing changes."""
        home = damaged_store(tmp_path / "home")
        sessions = home / "sessions"
        before = still(home)
        for name, mode, kind in (
            ("c", "strict", Damaged),
            ("c", "tail", Damaged),
            ("d", "strict", AcknowledgedDataLost),
            ("d", "tail", AcknowledgedDataLost),
            ("d", None, Conflict),
            ("torn", "strict", Damaged),
            ("plain", "salvage", NotAJournal),
            ("not-understood-torn", "tail", Unsupported),
            ("not-understood-torn", "salvage", Unsupported),
            ("newer", "salvage", Unsupported),
        ):
            with pytest.raises(kind):
                repair(sessions / f"{name}.jsonl", mode=mode)  # type: ignore[arg-type]
        assert still(home) == before

    def test_a_torn_tail(self, tmp_path: Path) -> None:
        """`repair` cuts it, as opening would, and says where the bytes are."""
        home = damaged_store(tmp_path / "home")
        path = home / "sessions" / "torn.jsonl"
        plan = repair(path, dry_run=True)
        assert (plan.action, plan.done, plan.kept) == ("cut", False, 3)
        result = repair(path)
        assert result.done
        assert result.kept_aside is not None
        assert Path(result.kept_aside).read_bytes() == b"torn"
        assert repair(path).action == "nothing"


class TestStrictOpener:
    """`Session.open(mode="strict")`: a frontend lets a person decide about a torn tail."""

    def test_refuses_a_torn_tail(self, tmp_path: Path) -> None:
        """The error has the report and the command; not a byte moves; the command helps."""
        home = damaged_store(tmp_path / "home")
        path = home / "sessions" / "torn.jsonl"
        before = still(home)
        with pytest.raises(Damaged) as caught:
            Session.open(path, mode="strict")
        assert still(home) == before
        assert caught.value.report is not None
        assert (caught.value.report.case, caught.value.report.quarantine) == ("E", None)
        assert str(caught.value).endswith(f"next: treering repair {path} --mode tail")
        fine("repair", path, "--mode", "tail")
        with Session.open(path, mode="strict") as session:
            assert session.report is not None
            assert session.report.case == "A"
            session.append(said("on"))

    def test_is_like_any_other_otherwise(self, tmp_path: Path) -> None:
        """Clean sessions open, damaged ones are refused as ever, locks exclude."""
        home = damaged_store(tmp_path / "home")
        sessions = home / "sessions"
        for name in ("clean", "behind", "repaired"):
            with Session.open(sessions / f"{name}.jsonl", mode="strict") as session:
                session.append(said("on"))
        for index in (home / "session-index").glob("c.*"):
            index.unlink()
        for name, case in (("c", "C"), ("d", "D"), ("f", "F")):
            with pytest.raises(Damaged) as caught:
                Session.open(sessions / f"{name}.jsonl", mode="strict")
            assert caught.value.report is not None
            assert caught.value.report.case == case

    def test_recovers_from_its_own_failures(self, tmp_path: Path) -> None:
        """The end that this owner itself left half written is cut by recover(), as for others."""
        path = add_session(tmp_path, "s")
        with Session.open(path, mode="strict") as session:
            with path.open("ab") as file:
                file.write(b"half")  # as after a write that failed and could not be taken back
            session._writer.poison("a test")
            report = session.recover()
            assert report.case == "E"
            assert report.quarantined_bytes == 4
            session.append(said("on"))
        with Session.open(path, mode="strict") as session:
            assert session.counts()["entries"] == 4


def test_a_session_header_that_cannot_be_decoded(tmp_path: Path) -> None:
    """Keeping the beginning of a journal whose SESSION frame makes no sense makes a header."""
    maker = Maker()
    maker.open()
    maker.frame(1, b"not zstd", codec=1, raw=100)
    maker.close()
    maker.publish()
    maker.open()
    maker.entry("a")
    maker.entry("b")
    maker.close()
    path = tmp_path / "sessions" / "s.jsonl"
    path.parent.mkdir()
    path.write_bytes(maker.whole())
    flip_byte(path, maker.frames[-2].offset + 50)
    for mode in ("prefix", "salvage"):
        result = repair(path, mode=mode, dry_run=True)  # type: ignore[arg-type]
        assert result.action == "rebuild"
    assert repair(path, mode="prefix").header_made
    assert ids(str(path)) == ["a"]
