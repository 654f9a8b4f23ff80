"""Names and places: no id leaves the store, nothing is written where it must not be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.engine import environment, home
from treering.engine.errors import Invalid, InvalidId, NotFound, TreeringError, Unsupported

BAD_IDS = [
    "", ".", "..", "../x", "../../../../outside/pwned", "/abs", "a/b", "a\\b", "x\0y", "~", "~root",
    "CON", "con", "NUL.txt", "com1", "LPT9", "aux", "a" * 129, "a" * 300, "a\u202eb", "a\uff0fb",
    "caf\u00e9", "cafe\u0301", "a.", "a ", " a", "-a", "a-", ".a", "_a", "a..b", "a\n", "a\r\nb",
    "a\tb",
    "a:b", "a*", "a?", "a|b", "\ud800", "a\u2028b", "%2e%2e",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_IDS, ids=repr)
def test_F44_bad_session_ids_are_refused(name: str, tmp_path: Path) -> None:
    """An id that could leave the store, or mean two files, is InvalidId wherever it is used."""
    store = home.Store.at(str(tmp_path))
    for use in (
        home.check_session_id,
        store.journal_path,
        store.artifact_folder,
        store.quarantine_folder,
        store.owner_note,
    ):
        with pytest.raises(InvalidId) as caught:
            use(name)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@given(name=st.text(min_size=1, max_size=140))
def test_F44_every_accepted_id_stays_inside(name: str) -> None:
    """Whatever is accepted is one plain file name in the sessions folder."""
    store = home.Store("/top", "/top/sessions")
    try:
        path = store.journal_path(name)
    except InvalidId:
        return
    assert os.path.normpath(path) == path
    assert os.path.dirname(path) == "/top/sessions"
    assert home.session_id_of(path) == name
    assert name.isascii()


@pytest.mark.parametrize(
    "name", ["a", "A1", "0198c0de-1234", "a.b", "a_b", "a" * 128, "con1", "nulls"]
)
def test_good_session_ids(name: str) -> None:
    """Ordinary names and UUIDs are accepted as they are."""
    assert home.check_session_id(name) == name


def test_new_session_ids_are_accepted() -> None:
    """The ids that we make are ids that we take."""
    for _ in range(50):
        name = environment.new_session_id()
        assert home.check_session_id(name) == name


@pytest.mark.parametrize("root", [".prime", ".pi", ".prime-context"])
def test_protected_roots(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State of older products is never written to: directly, by a link, or by dots."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / root / "agent").mkdir(parents=True)
    os.symlink(tmp_path / root, tmp_path / "link")
    os.symlink(tmp_path / root / "agent" / "x.jsonl", tmp_path / "x.jsonl")
    (tmp_path / "other").mkdir()
    for path in (
        tmp_path / root,
        tmp_path / root / "agent" / "sessions",
        tmp_path / "link" / "agent",
        tmp_path / "x.jsonl",
        tmp_path / "other" / ".." / root / "x",
    ):
        with pytest.raises(Invalid):
            home.check_writable_place(str(path))
    home.check_writable_place(str(tmp_path / "other"))
    home.check_writable_place(str(tmp_path / (root + "x")))


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs", "fuse"]
)
def test_F111_remote_file_systems(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network or FUSE file system refuses writing unless asked for."""
    device = os.stat(tmp_path).st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw - {kind} server:/x rw"
    monkeypatch.setattr(environment, "mount_lines", lambda: ["garbage", "", line])
    monkeypatch.delenv("TREERING_ALLOW_REMOTE", raising=False)
    path = str(tmp_path / "not" / "there")
    with pytest.raises(Unsupported, match=kind):
        home.check_writable_place(path)
    home.check_writable_place(path, allow_remote=True)
    monkeypatch.setenv("TREERING_ALLOW_REMOTE", "1")
    home.check_writable_place(path)


def test_relative_homes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is an absolute place, from an argument or the environment."""
    for value in ("x", "./x", "../x"):
        with pytest.raises(Invalid):
            home.Store.at(value)
        with pytest.raises(Invalid):
            home.Store.at(session_dir=value)
        monkeypatch.setenv("BASE_CONTEXT_HOME", value)
        monkeypatch.delenv("BASE_CONTEXT_SESSION_DIR", raising=False)
        with pytest.raises(Invalid):
            home.Store.at()
    monkeypatch.setenv("BASE_CONTEXT_SESSION_DIR", str(tmp_path / "deep" / "sess"))
    store = home.Store.at()
    assert store.sessions == str(tmp_path / "deep" / "sess")
    assert store.index == str(tmp_path / "deep" / "session-index")
    assert store.artifacts == str(tmp_path / "deep" / "session-artifacts")


def test_control_characters_never_forge_a_line() -> None:
    """An error is one printable line, whatever the file is called or the message holds."""
    error: TreeringError = NotFound(
        "no\nsession\x1b[2J", path="/x/\n\x07\u202e.jsonl", next_step="go"
    )
    assert str(error).isprintable()
