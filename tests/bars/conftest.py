"""Lets the tests here import their helpers from beside them, and keeps other stores out of reach."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "session"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of an empty store."""
    return tmp_path / "home"


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: for thousands of files whose durability is no matter."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="treering-bars-", dir=memory))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _no_other_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BASE_CONTEXT_HOME", str(tmp_path / "default-home"))
    monkeypatch.delenv("BASE_CONTEXT_SESSION_DIR", raising=False)
    monkeypatch.delenv("TREERING_TRACEBACK", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs of this process do nothing: for tests of what bytes mean, thousands of times."""
    from treering.engine.journal import disk

    monkeypatch.setattr(disk, "_fsync", lambda descriptor: None)
    monkeypatch.setattr(disk, "_fdatasync", lambda descriptor: None)
