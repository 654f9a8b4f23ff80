"""The ``treering`` command: runs one command and turns whatever happens into an exit code.

0 fine, 1 damage or refusal found and reported, 2 usage, 3 could not run, 130 interrupted, 141 the
reader of our output went away (as the shell says it of other tools). No traceback reaches a user.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

import click

from treering.tools.cli import treering
from treering.tools.output import escape

EXIT_USAGE: Final = 2
EXIT_COULD_NOT_RUN: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_READER_GONE: Final = 141


def main(arguments: Sequence[str] | None = None, *, command: click.Command = treering) -> int:
    """Run the command line, or that of another command; returns the exit code."""
    code = 0
    try:
        _open_standard_streams()
        _never_fail_to_print()
        code = _run(command, list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        _forget(sys.stdout)
        return EXIT_READER_GONE
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except OSError as error:  # of the first open or the last flush; the rest has been told already
        _forget(sys.stdout)
        return code or _fail(error)
    finally:
        if sys.stderr is not None:
            try:
                sys.stderr.flush()
            except (OSError, ValueError):
                _forget(sys.stderr)  # what nobody can be told must not change the exit code
    return code


def _run(command: click.Command, arguments: list[str]) -> int:
    try:
        with command.make_context(command.name, arguments) as context:
            command.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        _show_usage(error)
        return EXIT_USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (the last line of defence: one line, never a traceback)
        return _fail(error)
    return 0


def _show_usage(error: click.UsageError) -> None:
    if error.ctx is not None and not isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_usage(), err=True)
        click.echo(f"Try '{error.ctx.command_path} --help' for help.", err=True)
        _complain(error.format_message())
    else:
        click.echo(error.format_message(), err=True)


def _fail(error: BaseException) -> int:
    """One line about an error, and its exit code."""
    if isinstance(error, (OSError, MemoryError, RecursionError)):
        # These come from the machine: importing more to describe them could fail in its turn.
        if isinstance(error, OSError):
            named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            _complain(f"{named}{error.strerror or error}")
        else:
            _complain("out of memory" if isinstance(error, MemoryError) else "nested too deeply")
        return EXIT_COULD_NOT_RUN
    if os.environ.get("TREERING_TRACEBACK"):
        raise error
    from treering.engine.errors import TreeringError

    if isinstance(error, TreeringError):
        _complain(str(error))
        return error.exit_code
    from treering.index import IndexBusy, IndexFault

    if isinstance(error, (IndexFault, IndexBusy)):
        _complain(f"{error}; `treering reindex` builds it anew")
        return EXIT_COULD_NOT_RUN
    _complain(
        f"internal error, {type(error).__name__}: {error}"
        " (please report it; TREERING_TRACEBACK=1 shows where)"
    )
    return EXIT_COULD_NOT_RUN


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens; the exit code still tells
        click.echo(f"treering: error: {escape(message)}", err=True)


def _open_standard_streams() -> None:
    """Give closed standard descriptors something harmless.

    Otherwise the next file that is opened, a journal perhaps, becomes number 1 or 2, and whatever
    a library prints goes into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for the whole run)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _never_fail_to_print() -> None:
    # A terminal in another encoding must not turn a session's text into a traceback.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget(stream: TextIO) -> None:
    """Keep the interpreter from flushing into a closed pipe or a full disk when it ends."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    except (OSError, ValueError):
        pass  # it is no file of the system's
