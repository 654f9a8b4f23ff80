"""Lets the tests here import their helpers from beside them, and spares the device.

Syncs of this process do nothing (a killed process loses nothing that was written): tests of what a
sync promises use a disk of their own, which counts or fails them. Processes under test sync.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from treering.engine.journal import disk
from treering.engine.journal.disk import Disk, File
from treering.engine.session import listing

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _no_device_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_fsync", lambda descriptor: None)
    monkeypatch.setattr(disk, "_fdatasync", lambda descriptor: None)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the files that are read."""
    paths: list[str] = []
    real = listing.open_regular

    def open_(disk: Disk, path: str, **more: Any) -> File:
        paths.append(Path(path).stem)
        return real(disk, path, **more)

    monkeypatch.setattr(listing, "open_regular", open_)
    return paths
