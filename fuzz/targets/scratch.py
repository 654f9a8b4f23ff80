"""A folder of one's own for targets that need files, removed when the process ends."""

from __future__ import annotations

import functools
import os
import tempfile


@functools.cache
def scratch(name: str) -> str:
    """An empty folder, the same for the whole process; below ``TMPDIR``, best a memory disk.

    A search ends without giving its process a chance to tidy up: the command that started it
    removes what is left.
    """
    folder = os.path.join(_whole().name, name)
    os.mkdir(folder, 0o700)
    return folder


@functools.cache
def _whole() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="treering-target-")
