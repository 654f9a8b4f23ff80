"""Options that commands share. Imports click only."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from treering.engine.home import Store

_Command = TypeVar("_Command", bound=Callable[..., Any])


def home_option(command: _Command) -> _Command:
    """``--home DIR``."""
    return click.option(
        "--home",
        metavar="DIR",
        callback=_absolute,
        help="Home of the store [default: BASE_CONTEXT_HOME, or ~/.base-context].",
    )(command)


def json_option(command: _Command) -> _Command:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Report as JSON.")(command)


def jobs_option(command: _Command) -> _Command:
    """``--jobs N``."""
    return click.option(
        "--jobs",
        type=click.IntRange(min=1, max=256),
        default=1,
        show_default=True,
        metavar="N",
        help="Processes that share the work.",
    )(command)


def _absolute(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context
    if value is None:
        return None
    if not value or "\0" in value:
        raise click.BadParameter("a folder is needed", param=parameter)
    return os.path.abspath(os.path.expanduser(value))


def store_at(home: str | None) -> Store:
    """The store that option and environment select."""
    from treering.engine.home import Store

    return Store.at(home)
