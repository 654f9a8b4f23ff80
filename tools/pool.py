"""The same work for many sessions, here or in processes of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from treering.engine.errors import StorageError

_Result = TypeVar("_Result")


def run_all(
    work: Callable[[str], _Result], paths: Sequence[str], *, jobs: int
) -> Iterator[_Result]:
    """The results in the order of the paths. ``work`` returns its errors, it never raises them
    (not every exception survives the way between two processes).

    Raises:
        StorageError: a worker process died.
    """
    if jobs == 1 or len(paths) < 2:
        yield from map(work, paths)
        return
    # Not fork: a forked child inherits locks and SQLite connections that it must not use.
    executor = ProcessPoolExecutor(
        min(jobs, len(paths)), mp_context=get_context("spawn"), initializer=_ignore_interrupts
    )
    try:
        yield from executor.map(work, paths)
    except BrokenExecutor as error:
        raise StorageError("a worker process died", next_step="try again with --jobs 1") from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    # The command itself is interrupted and ends its workers; they would only print tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
