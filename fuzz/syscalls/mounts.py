"""File systems of our own: really full, and turned read-only under an owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from treering.fuzz.syscalls.runs import UnavailableError


def _none(folder: str) -> list[str]:
    raise UnavailableError(f"not here: {folder}")


CHECKS: Final[dict[str, Callable[[str], list[str]]]] = {"full": _none}
