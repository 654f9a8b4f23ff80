"""The few settings of ``<home>/settings.json`` that the command line reads. Never an error."""

from __future__ import annotations

import json
import os
from typing import Final

from treering.engine.home import Store
from treering.engine.session.tree_view import FILTERS, Filter

SETTINGS_BYTES_MAX: Final = 1024 * 1024


def tree_filter(store: Store) -> Filter:
    """``treeFilterMode``; ``default`` when it is absent or none that we know."""
    try:
        descriptor = os.open(
            os.path.join(store.top, "settings.json"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
        with os.fdopen(descriptor, "rb") as file:
            settings = json.loads(file.read(SETTINGS_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return "default"
    chosen = settings.get("treeFilterMode") if isinstance(settings, dict) else None
    return next((mode for mode in FILTERS if mode == chosen), "default")
