"""From what a person types to a full-text query: words, phrases, prefixes; never syntax of FTS5.

``red apple`` finds texts with both words, ``"red apple"`` the phrase, ``app*`` words that begin so.
Everything else is text. What the word index cannot find (scripts without spaces between words, and
terms without a letter or digit) is looked for in the texts themselves.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, NamedTuple

# Scripts that are written without spaces: a run of them is one word of the index.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u30ff"
    "\u3100-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U00020000-\U0003ffff]"
)
_PIECE: Final = re.compile(r'"([^"]*)(?:"(\*)?|\Z)|([^\s"]+)')
_WORD: Final = re.compile(r"[^\W_]+")


class Term(NamedTuple):
    """One thing that a text must hold."""

    text: str
    prefix: bool
    scanned: bool
    """Whether it is looked for in the texts: the word index cannot find it."""


class Query(NamedTuple):
    """A query that was understood."""

    match: str | None
    """For FTS5; None when no term is of words."""
    scanned: tuple[str, ...]
    """Folded texts to look for in the texts themselves."""
    terms: tuple[Term, ...]


def parse(text: str) -> Query:
    """Understand a query. Without any term it matches nothing."""
    terms: list[Term] = []
    for quoted, star, word in _PIECE.findall(text.replace("\0", " ")):
        said = word or quoted.strip()
        prefix = bool(star) or (len(word) > 1 and word.endswith("*"))
        said = said.rstrip("*") if word and prefix else said
        if said:
            terms.append(Term(said, prefix, _is_scanned(said)))
    words = [term for term in terms if not term.scanned]
    return Query(
        " AND ".join(map(_match_of, words)) or None,
        tuple(fold(term.text) for term in terms if term.scanned),
        tuple(terms),
    )


def quoted(text: str) -> str:
    """A text as a string of FTS5: nothing in it is syntax."""
    return '"' + text.replace('"', '""').replace("\0", " ") + '"'


def _match_of(term: Term) -> str:
    return quoted(term.text) + (" *" if term.prefix else "")


def _is_scanned(text: str) -> bool:
    return _UNSPACED.search(text) is not None or _WORD.search(text) is None


def fold(text: str) -> str:
    """The text for comparing: case and accents do not count. As long as before."""
    return text.lower() if text.isascii() else "".join(map(_fold_char, text))


@lru_cache(maxsize=4096)
def _fold_char(char: str) -> str:
    bare = unicodedata.normalize("NFD", char)[0]
    lower = bare.lower()
    return lower if len(lower) == 1 else bare


def find(terms: tuple[Term, ...], text: str) -> tuple[int, int] | None:
    """Where the first of the terms stands in a text that was found: (begin, end)."""
    folded = fold(text)
    best: tuple[int, int] | None = None
    for term in terms:
        place = _place_of(term, folded)
        if place is not None and (best is None or place < best):
            best = place
    return best


def _place_of(term: Term, folded: str) -> tuple[int, int] | None:
    said = fold(term.text)
    if term.scanned:
        at = folded.find(said)
        return None if at < 0 else (at, at + len(said))
    words = map(re.escape, _WORD.findall(said))
    end = "" if term.prefix else r"(?![^\W_])"
    found = re.search(r"(?<![^\W_])" + r"[\W_]+".join(words) + end, folded)
    return None if found is None else found.span()
