"""What reaches a terminal: escaped, clipped, and progress only where somebody watches.

Text of sessions comes from models and tools. Printed raw it could move the cursor, rename the
window or write to the clipboard (OSC 52), so every character that is not printable is escaped.
Nothing here imports the engine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click

WIDTH_WITHOUT_TERMINAL: Final = 120
PROGRESS_AFTER_S: Final = 1.0
_TIMES: Final = ("k", "M", "G", "T")

_Item = TypeVar("_Item")


def escape(text: str) -> str:
    """The text on one line, with everything that is not printable as a backslash escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def one_line(text: str, *, most: int = 2_000) -> str:
    """A preview: white space of any kind as single spaces, the rest escaped.

    Only the first ``most`` characters are looked at, so that a 60 MB text costs nothing.
    """
    return escape(" ".join(text[:most].split()))


def escape_json(text: str) -> str:
    """JSON text for a terminal: unprintable characters as ``\\uXXXX``, which is the same JSON.

    They can only stand inside strings there (but for LF, which is left alone).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escaped(c) for c in text)


def _json_escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def columns() -> int:
    """Columns of the terminal; 120 where there is none."""
    return max(20, shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns)


def cells(text: str) -> int:
    """Columns that a printable text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(char: str) -> int:
    if char < "\u0300":
        return 1
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, most: int) -> str:
    """The text in at most ``most`` columns, with an ellipsis where something is missing."""
    if cells(text) <= most:
        return text
    if most > 0 and text.isascii():
        return text[: most - 1] + "…"
    ends = itertools.accumulate(map(_width, text))
    count = sum(1 for _ in itertools.takewhile(lambda end: end < most, ends))
    return text[:count] + "…" if most > 0 else ""


def pad(text: str, width: int) -> str:
    """The text with blanks up to ``width`` columns."""
    return text + " " * max(0, width - cells(text))


def say(text: str = "") -> None:
    """A line on stdout. The caller has escaped what comes from sessions."""
    click.echo(text)


def say_clipped(text: str) -> None:
    """A line on stdout, clipped to the terminal."""
    click.echo(clip(text, columns()).rstrip())


def say_path(path: str) -> None:
    """A path on stdout: exact for programs, escaped on a terminal."""
    if sys.stdout.isatty():
        say(escape(path))
    else:
        write_bytes(os.fsencode(path) + b"\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """A JSON value on stdout, indented; ASCII only, so that nothing in it can reach a terminal."""
    click.echo(json.dumps(value, indent=2))


def warn(text: str) -> None:
    """A line on stderr, escaped."""
    click.echo(f"treering: {escape(text)}", err=True)


def write_bytes(data: bytes) -> None:
    """Exact bytes on stdout; on a terminal what is not printable is escaped as in JSON."""
    if sys.stdout.isatty():
        click.echo(escape_json(data.decode("utf-8", "backslashreplace")), nl=False)
        return
    sys.stdout.buffer.write(data)


def warn_not_reported(done: str, error: OSError) -> None:
    """Two facts, kept apart: something was done, and its report could not be printed."""
    with contextlib.suppress(OSError):  # nobody listens at all; the exit code still tells
        warn(f"{done}; this could not be reported: {error.strerror}")


@contextlib.contextmanager
def reporting(done: str) -> Iterator[None]:
    """What is printed inside tells of something that was done.

    If it cannot be printed, both facts are said and the command ends with exit code 1: whoever only
    reads of a failure repeats the command, and has it done twice.
    """
    try:
        yield
        flush()
    except OSError as error:
        warn_not_reported(done, error)
        raise click.exceptions.Exit(1) from error


def flush() -> None:
    """Make sure that what was written is out, or raise here and not at the end."""
    sys.stdout.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]) -> None:
    """Rows in columns of at most these widths; 0 takes what is left of the line."""
    kept = [tuple(row) for row in rows]
    shown = [
        min(most, max([cells(head[i]), *(cells(row[i]) for row in kept)])) if most else 0
        for i, most in enumerate(widths)
    ]
    left = max(10, columns() - sum(shown) - 2 * (len(shown) - 1))
    flexible = max(1, shown.count(0))
    shown = [width or left // flexible for width in shown]
    for row in (tuple(head), *kept):
        fitted = (pad(clip(text, width), width) for text, width in zip(row, shown, strict=True))
        say_clipped("  ".join(fitted))


def size_text(count: float) -> str:
    """Bytes for people: 1.2 kB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in _TIMES[:-1]:
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}B"
    return f"{count / 1000:.1f} {_TIMES[-1]}B"


def counted(number: int, what: str, plural: str | None = None) -> str:
    """``1 entry``, ``2 entries``."""
    return f"{number} {what if number == 1 else plural or what + 's'}"


def with_progress(
    items: Iterable[_Item], what: str, total: int, *, printing: bool = False
) -> Iterator[_Item]:
    """Pass items through; after a second of it show a bar on stderr, if that is a terminal.

    ``printing`` says that the caller prints a line for each: on a terminal that is progress enough.
    """
    if not sys.stderr.isatty() or (printing and sys.stdout.isatty()):
        yield from items
        return
    started = time.monotonic()
    progress: Any = None
    task: Any = None
    done = 0
    try:
        for item in items:
            yield item
            done += 1
            if progress is None and done < total and time.monotonic() - started >= PROGRESS_AFTER_S:
                progress, task = _bar(what, total)
            if progress is not None:
                progress.update(task, completed=done)
    finally:
        if progress is not None:
            progress.stop()


def _bar(what: str, total: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import Progress

    # Without the last two rich would send what we print on stdout to stderr meanwhile.
    progress = Progress(
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )
    task = progress.add_task(what, total=total)
    progress.start()
    return progress, task
