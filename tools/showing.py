"""Entries as short lines for people: also those whose payload is lost."""

from __future__ import annotations

from typing import Final

from treering.engine.session import texts
from treering.engine.session.entry import Entry

UNREADABLE: Final = "[its payload cannot be read; `treering fsck` says why]"


def describe(entry: Entry | None) -> tuple[str, str]:
    """(role or kind, text) of an entry, unescaped."""
    return ("?", UNREADABLE) if entry is None else texts.describe(entry)
