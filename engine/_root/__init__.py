"""Treering: a storage engine for agent sessions.

The public names live in :mod:`treering.engine`; they are loaded on first use, so that
``import treering`` costs nothing and ``treering --version`` answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from treering.engine import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'treering' has no attribute {name!r}")
    engine = importlib.import_module("treering.engine")
    if name == "__all__":
        return list(engine.__all__)
    if name in engine.__all__:
        return getattr(engine, name)
    raise AttributeError(f"module 'treering' has no attribute {name!r}")


def __dir__() -> list[str]:
    engine = importlib.import_module("treering.engine")
    return sorted([*engine.__all__, "__version__"])
