"""From what a person types to one session: the one place where a selector means something.

A selector is a path (it contains a separator, or ends in ``.jsonl``), else the first of these that
fits anything: an exact id, an exact name, the beginning or the end of an id. Of several that fit,
the one of the caller's working directory is meant; when that leaves several, none is taken. A file
name is only ever taken from the folder's own listing, so no selector can lead out of the store by
accident.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from treering.engine.errors import Ambiguous, Invalid, NotFound, from_os_error
from treering.engine.home import JOURNAL_SUFFIX, Store, check_path
from treering.engine.session.listing import Folder, ids_named, is_of, path_in, session_names

CANDIDATES_SHOWN: Final = 8

MISTYPED_CHARS_MIN: Final = 4
"""Shorter selectors are near to too much."""

SELECTOR_CHARS_MAX: Final = 64 * 1024
"""A longer one is no name, and no id."""

_LISTING: Final = "`treering session list` shows what is there"


def resolve_session(store: Store, selector: str, *, cwd: str | None = None) -> str:
    """The path of the session that a selector names.

    Args:
        store: where; a path may lead elsewhere.
        selector: see above.
        cwd: the working directory whose sessions come first.

    Raises:
        Invalid: nothing can be named like this.
        NotFound: there is none; says how to list them, or which id may be meant.
        Ambiguous: several; lists them.
        StorageError: the store cannot be looked at.
    """
    if not selector or "\0" in selector or len(selector) > SELECTOR_CHARS_MAX:
        raise Invalid("an empty selector, a far too long one, or one with a NUL, names no session")
    if is_path(selector):
        return _existing(store, selector)
    names = session_names(store)

    def here(ids: list[str]) -> list[str]:
        if cwd is None:
            return []
        folder = Folder(cwd)
        return [one for one in ids if is_of(path_in(store, one), folder)]

    found = choose(selector, names, lambda: ids_named(store, selector), here=here)
    if found is not None:
        return path_in(store, found)
    closest = closest_id(selector, names)
    meant = "" if closest is None else f"did you mean {closest!r}? "
    raise NotFound(f"no session {selector!r} in {store.sessions}", next_step=f"{meant}{_LISTING}")


def is_path(selector: str) -> bool:
    """Whether a selector can only be a path."""
    return os.sep in selector or selector.endswith(JOURNAL_SUFFIX)


def choose(
    selector: str,
    ids: Sequence[str],
    named: Callable[[], list[str]],
    *,
    here: Callable[[list[str]], list[str]] | None = None,
    what: str = "sessions",
) -> str | None:
    """The id among these that a selector (no path) means; None when nothing fits.

    Args:
        selector: what was typed.
        ids: all that can be meant.
        named: the ids of those whose name is the selector; asked only when no id is.
        here: those of some that come first.
        what: what they are, for the error.

    Raises:
        Ambiguous: several fit equally well.
    """
    if not selector:
        return None
    if selector in ids:
        return selector
    fitting = named()
    if not fitting:
        fitting = [one for one in ids if one.startswith(selector) or one.endswith(selector)]
    if len(fitting) > 1 and here is not None:
        fitting = here(fitting) or fitting
    if len(fitting) > 1:
        raise Ambiguous(
            f"{selector!r} fits {len(fitting)} {what}: {some(fitting)}",
            candidates=tuple(fitting),
            next_step="type more of the id",
        )
    return fitting[0] if fitting else None


def closest_id(selector: str, ids: Iterable[str]) -> str | None:
    """The id that a mistyped one is meant to be; None when none is near, or several are.

    What was typed may also be the beginning or the end of an id. Near is at most one edit for five
    characters (and one for fewer).
    """
    length = len(selector)
    if length < MISTYPED_CHARS_MIN:
        return None
    most = max(1, length // 5)
    edits = _EditsTo(selector)
    least, nearest = most + 1, ""
    is_tie = False
    for one in ids:
        if len(one) < length - most:
            continue
        distance = min(map(edits, _parts(one, length)))
        if distance < least:
            least, nearest, is_tie = distance, one, False
        elif distance == least and one != nearest:
            is_tie = True
    return nearest if nearest and not is_tie else None


def _parts(one: str, length: int) -> set[str]:
    """The id, and its beginning and end of as many characters."""
    return {one, one[:length], one[-length:]}


class _EditsTo:
    """How many characters must be inserted, removed or replaced (Levenshtein; Myers' bits)."""

    def __init__(self, word: str) -> None:
        self._length = len(word)
        self._places: dict[str, int] = {}
        for at, char in enumerate(word):
            self._places[char] = self._places.get(char, 0) | 1 << at

    def __call__(self, other: str) -> int:
        mask = (1 << self._length) - 1
        last = 1 << (self._length - 1)
        more, fewer, distance = mask, 0, self._length
        for char in other:
            places = self._places.get(char, 0)
            down = places | fewer
            across = (((places & more) + more) ^ more) | places
            plus = fewer | ~(across | more) & mask
            minus = more & across
            if plus & last:
                distance += 1
            if minus & last:
                distance -= 1
            plus = plus << 1 | 1
            more = (minus << 1 | ~(down | plus)) & mask
            fewer = plus & down & mask
        return distance


def _existing(store: Store, selector: str) -> str:
    path = os.path.abspath(os.path.expanduser(check_path(selector)))
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # perhaps a name of the store, see below
    except OSError as error:
        raise from_os_error(error, "look at the session", path) from error
    else:
        return path
    if os.sep not in selector and selector.removesuffix(JOURNAL_SUFFIX) in session_names(store):
        return os.path.join(store.sessions, selector)
    raise NotFound(
        "no such file", path=selector, next_step="`treering session list` shows sessions"
    )


def some(names: Sequence[str]) -> str:
    """The first of these, and how many more there are."""
    shown = ", ".join(names[:CANDIDATES_SHOWN])
    more = len(names) - CANDIDATES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
