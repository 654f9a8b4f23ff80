"""Commands that a message names as the next step: whole, quoted, ready for a shell.

A session is named by its id only where that id leads to it without ``--home``; everywhere else by
its path, which always does.
"""

from __future__ import annotations

import os
import shlex

from treering.engine import home
from treering.engine.errors import TreeringError


def quoted(word: str) -> str:
    """One word for a POSIX shell; what is not printable as ``$'...'``, so that it survives copying.

    Bytes that are no UTF-8 (which stand in file names) come out as the bytes they are.
    """
    if word.isprintable():
        return shlex.quote(word)
    made = []
    for byte in os.fsencode(word):
        char = chr(byte)
        if char in "'\\":
            made.append("\\" + char)
        else:
            made.append(char if 32 <= byte < 127 else f"\\{byte:03o}")
    return f"$'{''.join(made)}'"


def command(*words: str) -> str:
    """A ``treering`` command of these words."""
    return " ".join(["treering", *map(quoted, words)])


def selector(path: str) -> str:
    """What names the session at ``path`` for any command: its id, or its path."""
    try:
        name = home.session_id_of(path)
        if home.Store.at().journal_path(name) == path:
            return name
    except TreeringError:
        pass  # no id, or no default store: the path it is
    return path


def aside(path: str) -> str:
    """The command that takes a file out of the way, and overwrites nothing."""
    return f"mv -n -- {quoted(path)} {quoted(path + '.aside')}"


def checking(path: str) -> str:
    """The ``treering fsck`` command for the journal at ``path``."""
    return command("fsck", selector(path))


def repairing(path: str, *options: str) -> str:
    """The ``treering repair`` command for the journal at ``path``."""
    return command("repair", selector(path), *options)
