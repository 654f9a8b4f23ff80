"""Lets the tests here import their helpers: `tests/tools` is no package, `tools` is the product."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of an empty store."""
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _no_other_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A forgotten --home must not find the store of whoever runs the tests.
    monkeypatch.setenv("BASE_CONTEXT_HOME", str(tmp_path / "default-home"))
    monkeypatch.delenv("BASE_CONTEXT_SESSION_DIR", raising=False)
    monkeypatch.delenv("TREERING_TRACEBACK", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
