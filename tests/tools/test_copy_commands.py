"""`session fork` and `session clone`: new sessions on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools_helpers import SAMPLES, fine, id_of, imported, message, new_session, picture, run

from treering.engine.session.session import Session
from treering.engine.session.view import SessionView


def ids(path: str) -> list[str]:
    with SessionView.open(path) as view:
        return [entry.id for entry in view.iter_entries()]


@pytest.fixture
def talk(home: Path) -> str:
    """A session with a label on its path."""
    with Session.create("/work", home_dir=str(home), session_id="talk") as session:
        session.append(message("one") | {"id": "a"})
        session.set_label("a", "start")
        session.append(message("two", role="assistant") | {"id": "b"})
        session.append(message("three") | {"id": "c"})
        return session.path


def test_fork_prints_the_path_of_the_whole_copy(home: Path, talk: str, tmp_path: Path) -> None:
    """Everything is copied, for another working directory; only the new path is printed."""
    ran = fine("session", "fork", "talk", "--cwd", tmp_path / "there", home=home)
    (path,) = ran.lines
    assert not ran.stderr
    assert ids(path) == ids(talk)
    with SessionView.open(path) as view:
        assert view.header.cwd == str(tmp_path / "there")
        assert view.header.parent_session == talk
    fine("fsck", id_of(path), home=home)


def test_fork_works_here_by_default(
    home: Path, talk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del talk
    monkeypatch.chdir(tmp_path)
    with SessionView.open(fine("session", "fork", "talk", home=home).out.strip()) as view:
        assert view.header.cwd == str(tmp_path)


def test_fork_at_and_before_an_entry(home: Path, talk: str) -> None:
    """Only a path, for the session's own working directory; before a user message, or at any."""
    before = fine("session", "fork", "talk", "--before", "c", home=home).out.strip()
    at = fine("session", "fork", "talk", "--at", "c", home=home).out.strip()
    first = fine("session", "fork", "talk", "--before", "a", home=home).out.strip()
    assert ids(before)[:-1] == ["a", "b"]
    assert ids(at)[:-1] == ["a", "b", "c"]
    assert ids(first) == []
    with SessionView.open(at) as view:
        assert view.header.cwd == "/work"
        assert view.leaf_id == "c"
        assert view.label("a") == "start"
    for words, code in ((["--before", "b"], 1), (["--at", "nobody"], 1)):
        ran = run("session", "fork", "talk", *words, home=home)
        assert (ran.code, ran.out) == (code, "")
        assert len(ran.stderr.splitlines()) == 1
    assert talk


def test_clone_copies_the_current_branch(home: Path, talk: str) -> None:
    with Session.open(talk) as session:
        session.branch_to("b")
        path = fine("session", "clone", "talk", home=home).out.strip()  # it is in use
    with SessionView.open(path) as view:
        assert [entry.id for entry in view.branch()] == ["a", "b"]
        assert view.leaf_id == "b"
    other = fine("session", "clone", "talk", "--at", "c", "--cwd", "/else", home=home).out.strip()
    with SessionView.open(other) as view:
        assert (view.leaf_id, view.header.cwd) == ("c", "/else")


def test_nothing_to_clone(home: Path) -> None:
    new_session(home, session_id="fresh")
    ran = run("session", "clone", "fresh", home=home)
    assert (ran.code, ran.out) == (1, "")
    assert "nothing to clone" in ran.stderr


def test_json_reports(home: Path, talk: str) -> None:
    forked = fine("session", "fork", "talk", "--json", home=home).json
    cloned = fine("session", "clone", "talk", "--json", home=home).json
    assert list(forked) == list(cloned)
    assert (forked["entries"], forked["labels"], forked["relinked"]) == (4, 0, 0)
    assert (cloned["entries"], cloned["labels"], cloned["relinked"]) == (3, 1, 1)
    for found in (forked, cloned):
        assert found["source"] == talk
        assert found["id"] == id_of(found["path"])
        assert Path(found["path"]).exists()


def test_a_legacy_file_can_be_forked(home: Path, tmp_path: Path) -> None:
    """As an import takes it; of an unfinished last line the command tells."""
    sample = SAMPLES / "tree-rings.jsonl"
    path = fine("session", "fork", sample, home=home).out.strip()
    twin = imported(home, sample)
    assert ids(path) == ids(twin)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(sample.read_bytes() + b'{"type"')
    ran = fine("session", "fork", torn, home=home)
    assert "7 bytes of an unfinished or torn end" in ran.stderr
    assert ids(ran.out.strip()) == ids(twin)


@pytest.mark.parametrize(
    "words",
    [["fork"], ["fork", "--at", "b"], ["clone"], ["fork", "--before", "c"]],
    ids=" ".join,
)
def test_a_damaged_session_is_not_copied(home: Path, talk: str, words: list[str]) -> None:
    """The refusal names the repair; nothing is made, nothing is changed."""
    data = bytearray(Path(talk).read_bytes())
    data[data.index(b'"start"')] ^= 1
    Path(talk).write_bytes(data)
    before = picture(home)
    ran = run("session", words[0], "talk", *words[1:], home=home)
    assert (ran.code, ran.out) == (1, "")
    assert "treering repair" in ran.stderr
    assert picture(home) == before


def test_limits_can_be_lifted(home: Path) -> None:
    """16,384 entries are copied, more only when it is asked for; the refusal names the option."""
    with Session.create("/w", home_dir=str(home), session_id="long") as session:
        last = session.append_many([{"type": "custom"}] * 16_385)[-1]
    for words in (["fork", "long"], ["fork", "long", "--at", last], ["clone", "long"]):
        ran = run("session", *words, home=home)
        assert (ran.code, ran.out) == (1, "")
        assert "--no-limit" in ran.stderr
        lifted = fine("session", *words, "--no-limit", "--json", home=home).json
        assert lifted["entries"] == 16_385
    assert len(json.loads(fine("session", "list", "--json", home=home).out)) >= 1
