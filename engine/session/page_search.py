"""Which rows of the catalogue a search means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final

from treering.engine.errors import Invalid, LimitExceeded
from treering.engine.home import JOURNAL_SUFFIX, Store
from treering.engine.limits import KIB
from treering.engine.session.catalogue import info_of
from treering.index.catalogue import SessionRow

SEARCH_CHARS_MAX: Final = 8 * KIB
SKIPPED_MAX: Final = 25
"""Characters that a word may skip in an id, a name or a path and still be found there."""

Matcher = Callable[[Store, SessionRow, str], bool]

_WORDS: Final = re.compile(r'"([^"]*)"|(\S+)')


def matcher_of(text: str) -> Matcher | None:
    """What decides whether a row is meant; None when all are.

    Words, and "quoted phrases", must all be there, in whatever case: in the ids, the name, the
    messages (the first 64 Ki characters), the agent's summary, the directories and paths. A word
    that is nowhere is also found where its letters stand in order in id, name or directory.
    ``re:`` makes the rest a regular expression.

    Raises:
        Invalid: an empty or wrong regular expression.
        LimitExceeded: too long.
    """
    if len(text) > SEARCH_CHARS_MAX:
        raise LimitExceeded("the search is too long", limit=SEARCH_CHARS_MAX, need=len(text))
    if not text.strip():
        return None
    if text.startswith("re:"):
        return _by_expression(text[3:].strip())
    words: list[tuple[str, bool]] = []
    if text.count('"') % 2:
        words = [(word.casefold(), False) for word in text.split()]
    else:
        for quoted, word in _WORDS.findall(text):
            words.append((quoted.casefold(), True) if not word else (word.casefold(), False))

    def matches(store: Store, row: SessionRow, body: str) -> bool:
        whole = _joined(store, row, body).casefold()
        missing = [(word, exact) for word, exact in words if word not in whole]
        if not missing:
            return True
        if any(exact for _, exact in missing):
            return False
        short = [one.casefold() for one in (row.id, row.name, row.cwd) if one]
        return all(any(is_near(word, one) for one in short) for word, _ in missing)

    return matches


def _by_expression(expression: str) -> Matcher:
    if not expression:
        raise Invalid("an empty regular expression finds nothing")
    try:
        search = re.compile(expression, re.IGNORECASE).search
    except (re.error, RecursionError, OverflowError) as error:
        raise Invalid(f"not a regular expression: {error}") from error
    return lambda store, row, body: search(_joined(store, row, body)) is not None


def _joined(store: Store, row: SessionRow, body: str) -> str:
    status = info_of(store, row).agent_status if row.agent_status else None
    summary = None if status is None else status.get("summary")
    parts = (
        row.id,
        row.name,
        row.first_text,
        body,
        summary if isinstance(summary, str) else None,
        row.cwd,
        os.path.join(store.sessions, row.id + JOURNAL_SUFFIX),
        row.parent_path,
    )
    return "\n".join(part for part in parts if part)


def is_near(word: str, text: str) -> bool:
    """Whether the letters of the word stand in the text in order, with few others between."""
    start = text.find(word[0]) if word else -1
    while start >= 0:
        at = start
        for letter in word[1:]:
            at = text.find(letter, at + 1, start + len(word) + SKIPPED_MAX)
            if at < 0:
                break
        else:
            return True
        start = text.find(word[0], start + 1)
    return False
