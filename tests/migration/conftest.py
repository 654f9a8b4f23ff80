"""Lets the tests here import their helpers from beside them, and spares the device.

Syncs of this process do nothing: tests of what a sync promises use a disk that fails them.
"""

import sys
from pathlib import Path

import pytest

from treering.engine.journal import disk

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tools")]


@pytest.fixture(autouse=True)
def _no_device_syncs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "_fsync", lambda descriptor: None)
    monkeypatch.setattr(disk, "_fdatasync", lambda descriptor: None)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("BASE_CONTEXT_HOME", str(tmp_path / "default-home"))
    monkeypatch.delenv("BASE_CONTEXT_SESSION_DIR", raising=False)
