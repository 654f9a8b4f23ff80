"""Commands on sessions: making, importing, changing, showing, exporting."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.stores import without_catalogue
from tools_helpers import SAMPLES, fine, id_of, imported, message, new_session, picture, run

from treering.engine.session.session import Session
from treering.engine.session.view import SessionView

TREE = SAMPLES / "tree-rings.jsonl"
BEANS = SAMPLES / "broad-beans-v1.jsonl"


class TestNew:
    def test_prints_the_path(self, home: Path) -> None:
        """A new session's path is all that is printed, and opens."""
        ran = fine("session", "new", "--cwd", "/somewhere", "--name", " N ", home=home)
        (path,) = ran.lines
        assert not ran.stderr
        with SessionView.open(path) as view:
            assert (view.header.cwd, view.name) == ("/somewhere", "N")
        assert path.startswith(str(home / "sessions"))

    def test_environment_selects_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """BASE_CONTEXT_SESSION_DIR and BASE_CONTEXT_HOME select the store; --home wins."""
        monkeypatch.setenv("BASE_CONTEXT_HOME", str(tmp_path / "h"))
        assert fine("session", "new").out.startswith(str(tmp_path / "h/sessions/"))
        monkeypatch.setenv("BASE_CONTEXT_SESSION_DIR", str(tmp_path / "d/s"))
        assert fine("session", "new").out.startswith(str(tmp_path / "d/s/"))
        assert fine("session", "new", home=tmp_path / "o").out.startswith(str(tmp_path / "o"))
        monkeypatch.setenv("BASE_CONTEXT_SESSION_DIR", "relative")
        assert run("session", "new").code == 1

    def test_json(self, home: Path) -> None:
        """--json gives path and id."""
        made = fine("session", "new", "--json", home=home).json
        assert set(made) == {"path", "id"}
        assert id_of(made["path"]) == made["id"]


class TestImport:
    def test_prints_only_new_paths(self, home: Path) -> None:
        """Each new path on a line of its own; what is odd goes to stderr."""
        ran = fine("session", "import", TREE, BEANS, home=home)
        assert len(ran.lines) == 2
        assert all(Path(line).is_file() for line in ran.lines)
        assert "entries without id 5" in ran.stderr

    def test_goes_on_after_a_refusal(self, home: Path, tmp_path: Path) -> None:
        """A refused file does not stop the next; the exit code is 1, and one line says why."""
        bad = tmp_path / "bad.jsonl"
        bad.write_text("{nonsense\n")
        ran = run("session", "import", TREE, bad, tmp_path / "none.jsonl", BEANS, home=home)
        assert ran.code == 1
        assert len(ran.lines) == 2
        errors = [line for line in ran.stderr.splitlines() if ": error: " in line]
        assert len(errors) == 2
        assert str(bad) in errors[0]
        assert "none.jsonl" in errors[1]
        assert len(list((home / "sessions").iterdir())) == 2

    def test_salvage(self, home: Path, tmp_path: Path) -> None:
        """--salvage takes what is whole and says what it left out and where that is."""
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(TREE.read_bytes()[:-20])
        assert run("session", "import", torn, home=home).code == 1
        ran = fine("session", "import", "--salvage", torn, home=home)
        assert "left out: line 15" in ran.stderr
        kept = ran.stderr.split("kept in ")[1].strip()
        assert Path(kept).read_bytes() == TREE.read_bytes().splitlines()[-1][:-19]

    def test_limit(self, home: Path, tmp_path: Path) -> None:
        """A file over the limit is refused whole, --no-limit takes it."""
        large = tmp_path / "large.jsonl"
        lines = ['{"type":"session","version":3,"id":"s"}']
        lines += [f'{{"type":"custom","id":"e{i}","parentId":null}}' for i in range(16_385)]
        large.write_text("\n".join(lines) + "\n")
        ran = run("session", "import", large, home=home)
        assert ran.code == 1
        assert not ran.stdout
        fine("session", "import", "--no-limit", large, home=home)

    def test_preview(self, home: Path) -> None:
        """The documented members, in order, one explanatory line, and nothing created."""
        ran = fine("session", "import", "--preview", BEANS, home=home)
        text, _, line = ran.out.rstrip("\n").rpartition("\n")
        assert "created nothing" in line
        assert list(json.loads(text)) == [
            "sourcePath",
            "sourceFormat",
            "inputVersion",
            "entriesRead",
            "sourceJsonBytes",
            "preparedEntryCount",
            "targetCwd",
            "targetDirectory",
            "retention",
            "sourceHeader",
            "gitState",
            "capture",
            "destinationCreated",
            "destinationCreationAndIndexing",
            "canonicalEpochActivation",
            "referenceReplayCoverage",
            "laterImport",
            "oddities",
            "leftOut",
            "linesTakenApart",
        ]
        as_json = fine("session", "import", "--preview", "--json", BEANS, home=home)
        assert as_json.json == json.loads(text)
        assert not home.exists()

    def test_json(self, home: Path, tmp_path: Path) -> None:
        """--json is a list with an object per file, refusals included."""
        ran = run("session", "import", "--json", TREE, tmp_path / "none", home=home)
        assert ran.code == 1
        taken, refused = ran.json
        assert list(taken) == [
            "source",
            "path",
            "id",
            "entries",
            "oddities",
            "leftOut",
            "linesTakenApart",
            "quarantine",
        ]
        assert list(refused) == ["source", "error"]


class TestChanges:
    def test_name(self, home: Path) -> None:
        """A name is shown; a blank one clears it."""
        path = new_session(home, "a")
        fine("session", "name", id_of(path), " Better ", home=home)
        assert fine("session", "info", path, "--json").json["name"] == "Better"
        fine("session", "name", path, "")
        assert fine("session", "info", path, "--json").json["name"] is None

    def test_label(self, home: Path) -> None:
        """A label is set and cleared, on an entry named by the beginning of its id."""
        path = imported(home, TREE)
        made = fine("session", "label", path, "a000000e", "L").out.strip()
        tree = fine("session", "tree", path, "--json").json["entries"]
        assert {e["id"]: e["label"] for e in tree if e["label"]} == {
            "a0000005": "averages",
            "a000000e": "L",
        }
        fine("session", "label", path, made[:7], "on the label")
        fine("session", "label", path, "a000000e")
        assert "a000000e" not in {
            e["id"] for e in fine("session", "tree", path, "--json").json["entries"] if e["label"]
        }

    def test_branch(self, home: Path) -> None:
        """The position moves, durably; `root` is before any entry."""
        path = imported(home, TREE)
        assert fine("session", "branch", path, "a0000008").out == "a0000008\n"
        assert fine("session", "info", path, "--json").json["leaf"] == "a0000008"
        with Session.open(path) as session:
            below = session.append(message("on the other branch"))
            parent = session.parent(below)
            assert parent is not None
            assert parent.id == "a0000008"
        assert fine("session", "branch", path, "root", "--json").json["entry"] is None
        assert fine("session", "info", path, "--json").json["leaf"] is None

    @pytest.mark.parametrize("entry", ["zzz", "a00000", "", "\ud800", "a\nb"])
    def test_unknown_or_ambiguous_entries(self, entry: str, home: Path) -> None:
        """An entry that is not there, or a beginning of several ids, changes nothing."""
        path = imported(home, TREE)
        before = Path(path).read_bytes()
        for words in (["label", path, entry, "x"], ["branch", path, entry]):
            ran = run("session", *words)
            assert ran.code == 1
            assert ran.stderr.count("\n") == 1
        assert Path(path).read_bytes() == before


class TestShow:
    def test_lines(self, home: Path) -> None:
        """A header, then one line for each entry of the current branch."""
        out = fine("session", "show", imported(home, TREE)).lines
        blank = out.index("")
        assert {line.split()[0] for line in out[:blank]} >= {"session", "cwd", "name", "leaf"}
        branch = [line.split()[0] for line in out[blank + 1 :]]
        assert branch[0] == "a0000001"
        assert branch[-1] == "a000000e"
        assert "a0000008" not in branch

    def test_entry(self, home: Path) -> None:
        """--entry shows JSON with numbers as stored; --raw the exact bytes and an LF."""
        path = imported(home, TREE)
        lines = TREE.read_bytes().splitlines(keepends=True)
        (source,) = [line for line in lines if b'"id":"a0000009"' in line]
        assert fine("session", "show", path, "--entry", "a0000009", "--raw").stdout == source
        shown = fine("session", "show", path, "--entry", "a0000009")
        assert shown.json == json.loads(source)
        assert len(shown.lines) > 5

    def test_numbers_survive(self, home: Path, tmp_path: Path) -> None:
        """Numbers that no double holds are shown as they are stored."""
        source = tmp_path / "n.jsonl"
        source.write_text(
            '{"type":"session","version":3,"id":"s"}\n'
            '{"type":"custom","id":"n","parentId":null,"data":[1.50e3,12345678901234567890123]}\n'
        )
        out = fine("session", "show", imported(home, source), "--entry", "n").out
        assert "1.50e3" in out
        assert "12345678901234567890123" in out

    def test_raw_branch(self, home: Path) -> None:
        """--raw without --entry gives the header and the branch, byte for byte."""
        path = imported(home, TREE)
        lines = fine("session", "show", path, "--raw").stdout.splitlines()
        assert json.loads(lines[0])["type"] == "session"
        source = TREE.read_bytes().splitlines()
        assert lines[1:] == [line for line in source[1:] if line in lines]
        assert len(lines) == 13

    def test_info_keys(self, home: Path) -> None:
        """The members of `info --json` are stable."""
        found = fine("session", "info", imported(home, TREE), "--json").json
        assert list(found) == [
            "path",
            "id",
            "cwd",
            "name",
            "parentSession",
            "created",
            "entries",
            "kinds",
            "messages",
            "unresolved",
            "leaf",
            "journalBytes",
            "storedBytes",
            "rawBytes",
            "compressionRatio",
            "frames",
            "epochs",
            "journalId",
            "case",
            "verdict",
            "reason",
            "provenance",
            "index",
            "owner",
        ]
        assert list(found["provenance"]) == [
            "format",
            "version",
            "capturedBytes",
            "byteExact",
            "oddities",
            "salvaged",
        ]
        assert found["entries"] == 14
        assert found["messages"] == 10
        assert found["index"] == "absent"

    def test_info_knows_the_index(self, home: Path) -> None:
        """The state of the index is told: current, behind, unusable."""
        path = imported(home, TREE)
        fine("reindex", path)
        assert fine("session", "info", path, "--json").json["index"] == "current"
        (index,) = (home / "session-index").glob("*.sqlite3")
        index.write_bytes(b"nonsense")
        assert fine("session", "info", path, "--json").json["index"].startswith("unusable")

    def test_in_use(self, home: Path) -> None:
        """A session in use is shown without disturbing its owner."""
        path = new_session(home, "a")
        with Session.open(path) as session:
            session.append(message("b"))
            found = fine("session", "info", path, "--json").json
            assert found["owner"]["pid"] == os.getpid()
            assert found["messages"] == 2
            assert "not proven durable" in fine("session", "show", path).out
            session.append(message("c"))


class TestExport:
    def test_byte_for_byte(self, home: Path, tmp_path: Path) -> None:
        """An import of version 3 comes out as it came in, on stdout and in a file."""
        path = imported(home, TREE)
        assert fine("session", "export", path).stdout == TREE.read_bytes()
        target = tmp_path / "out.jsonl"
        ran = fine("session", "export", path, "--format", "jsonl", "-o", target)
        assert not ran.stdout
        assert target.read_bytes() == TREE.read_bytes()
        assert run("session", "export", path, "-o", target).code == 1
        assert target.read_bytes() == TREE.read_bytes()

    def test_branch(self, home: Path) -> None:
        """--branch writes the path to the position only."""
        path = imported(home, TREE)
        out = fine("session", "export", path, "--branch").stdout
        assert b"a0000008" not in out
        assert b"a000000e" in out

    def test_upgraded(self, home: Path) -> None:
        """A version 1 source is exported with a version 3 header and can be imported again."""
        out = fine("session", "export", imported(home, BEANS)).stdout.splitlines()
        assert json.loads(out[0])["version"] == 3
        assert len(out) == len(BEANS.read_bytes().splitlines())


class TestResume:
    def test_path(self, home: Path) -> None:
        """Selectors: `--` prompt. The path alone, or an object with the prompt behind it, which is never
        taken for a selector."""
        path = new_session(home, "a")
        assert fine("resume", id_of(path)[:20], home=home).out == path + "\n"
        found = fine("resume", id_of(path), "--json", "--", "go", "-on", home=home).json
        assert found == {"path": path, "id": id_of(path), "cwd": "/work", "prompt": "go -on"}

    def test_continue(self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """--continue is the session of this folder with the newest message, wherever files were
        touched last; what stands behind `--` is the prompt."""
        monkeypatch.chdir(tmp_path)
        paths = {}
        for name, cwd, at in (("a", tmp_path, 2), ("b", tmp_path, 1), ("c", "/else", 3)):
            with Session.create(str(cwd), home_dir=str(home), session_id=name) as session:
                session.append(message("hi", timestamp=at))
            paths[name] = session.path
        fine("session", "name", "b", "touched last", home=home)
        assert fine("resume", "--continue", home=home).out == paths["a"] + "\n"
        for prompt in (["go", "--on"], ["--continue"], ["x", "--", "y"]):
            found = fine("resume", "--continue", "--json", "--", *prompt, home=home).json
            assert (found["id"], found["prompt"]) == ("a", " ".join(prompt))
        monkeypatch.chdir("/")
        ran = run("resume", "--continue", home=home)
        assert ran.code == 1
        assert "session new" in ran.stderr
        assert not ran.stdout

    def test_continue_without_a_folder(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A current folder that was removed is one error line."""
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        ran = run("resume", "--continue", home=home)
        assert ran.code == 1
        assert ran.stderr.count("\n") == 1
        assert "current folder" in ran.stderr

    def test_one_of_both(self, home: Path) -> None:
        """A session or --continue, not both, not neither; a prompt alone names no session."""
        new_session(home, session_id="a")
        for words in (["a", "--continue"], ["--", "prompt"], ["a", "b"]):
            assert run("resume", *words, home=home).code == 2, words

    def test_nothing_to_open(self, home: Path) -> None:
        """What a frontend could not open is refused, with the command that helps."""
        folder = home / "sessions"
        folder.mkdir(parents=True)
        (folder / "plain.jsonl").write_bytes(TREE.read_bytes())
        ran = run("resume", "plain", home=home)
        assert ran.code == 1
        assert "session import" in ran.stderr
        assert not ran.stdout


class TestSelectors:
    def test_ways_to_name_a_session(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Path, file name, exact id, and the beginning of one id."""
        path = new_session(home, session_id="alpha")
        new_session(home, session_id="alphabet")
        new_session(home, session_id="beta")
        monkeypatch.chdir(home / "sessions")
        for selector in (path, "./alpha.jsonl", "alpha.jsonl", "alpha", "../sessions/alpha.jsonl"):
            assert fine("resume", selector, home=home).out == path + "\n", selector
        monkeypatch.chdir("/")
        assert fine("resume", "alpha.jsonl", home=home).out == path + "\n"
        assert fine("resume", "be", home=home).out.endswith("beta.jsonl\n")

    def test_the_end_of_an_id_or_a_name(self, home: Path) -> None:
        """The end of one id, and the name of one session."""
        new_session(home, session_id="one-12ab")
        path = new_session(home, session_id="two-34cd")
        fine("session", "name", "cd", "Fix the build", home=home)
        fine("session", "name", "ab", "34", home=home)
        for selector in ("34cd", "cd", "Fix the build"):
            assert fine("resume", selector, home=home).out == path + "\n", selector
        assert fine("resume", "34", home=home).out.endswith("one-12ab.jsonl\n")
        fine("session", "name", "ab", "Fix the build", home=home)
        ran = run("resume", "Fix the build", home=home)
        assert ran.code == 1
        assert "one-12ab, two-34cd" in ran.stderr

    def test_this_folder_before_others(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of several that fit, the one of the current folder is meant; an exact id before all."""
        for name, cwd in (("ab1", "/else"), ("ab2", tmp_path), ("a", "/else"), ("x-ab", "/else")):
            Session.create(str(cwd), home_dir=str(home), session_id=name).close()
        monkeypatch.chdir(tmp_path)
        assert fine("resume", "ab", home=home).out.endswith("/ab2.jsonl\n")
        assert fine("resume", "a", home=home).out.endswith("/a.jsonl\n")
        Session.create(str(tmp_path), home_dir=str(home), session_id="ab3").close()
        ran = run("resume", "ab", home=home)
        assert ran.code == 1
        assert "fits 2 sessions: ab2, ab3" in ran.stderr
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert "ab1, ab2, ab3, x-ab" in run("resume", "ab", home=home).stderr

    @pytest.mark.parametrize(
        ("selector", "meant"),
        [
            ("sesion-one", "session-one"),
            ("session-onee", "session-one"),
            ("sessoin-one", "session-one"),
            ("sassian-ane", None),
            ("session-twp", None),
            ("abcd", None),
            ("abx", None),
            ("abcx", "abc"),
        ],
    )
    def test_a_mistyped_id(self, home: Path, selector: str, meant: str | None) -> None:
        """An invalid id gives the closest one: of 4 characters or more, at most a fifth of them
        wrong, and no other one as near."""
        for name in ("session-one", "session-twa", "session-two", "abc"):
            new_session(home, session_id=name)
        if selector == "abcd":
            new_session(home, session_id="abce")
        ran = run("resume", selector, home=home)
        assert ran.code == 1
        assert (f"did you mean '{meant}'?" in ran.stderr) == (meant is not None)
        assert ("did you mean" in ran.stderr) == (meant is not None)
        assert "session list" in ran.stderr

    def test_ambiguous(self, home: Path) -> None:
        """Selectors: ambiguity. Several candidates are listed, and none is taken."""
        for name in ("x1", "x2", "x3"):
            new_session(home, session_id=name)
        ran = run("session", "name", "x", "new", home=home)
        assert ran.code == 1
        assert "x1, x2, x3" in ran.stderr

    @pytest.mark.parametrize(
        "selector",
        [
            *("../x", "..", ".", "/", "", "~", "nothing", "a/../../b", "%s", "*"),
            *("\0", "x\0y/z", "\ud800", "x" * 9999),
        ],
    )
    @pytest.mark.parametrize("command", ["session show", "session name", "fsck", "repair", "dump"])
    def test_hostile(self, selector: str, command: str, home: Path, tmp_path: Path) -> None:
        """No selector is more than an error line, and nothing is made or changed anywhere (but the
        catalogue, in which names are looked up)."""
        (tmp_path / "x.jsonl").write_text("outside")
        new_session(home, "inside", session_id="inside")
        before = without_catalogue(picture(tmp_path))
        words = [selector, "n"] if command == "session name" else [selector]
        ran = run(*command.split(), *words, home=home)
        assert ran.code in (1, 3), ran
        assert "Traceback" not in ran.stderr
        assert without_catalogue(picture(tmp_path)) == before
