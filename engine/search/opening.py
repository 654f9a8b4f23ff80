"""The file of the search index of a store: opened, made, set aside, and who may change it.

Whoever changes it holds an exclusive ``flock`` on ``session-index/search.lock``; within a process
also the gate, which readers take too: no file is removed that is open here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Final

from treering.engine import environment
from treering.engine.home import Store
from treering.index import IndexBusy, IndexFault, files
from treering.index.faults import translate
from treering.index.search import SearchIndex
from treering.index.search_rows import FILE_NAME

LOCK_NAME: Final = "search.lock"
_POLL_S: Final = 0.01

gate = threading.RLock()
"""Of this process: one thread at a time has the files of search indexes open."""


def _renew_gate() -> None:
    global gate  # noqa: PLW0603 (another thread may have held it during the fork)
    gate = threading.RLock()


os.register_at_fork(after_in_child=_renew_gate)


@contextlib.contextmanager
def locked(store: Store, *, timeout_s: float) -> Iterator[None]:
    """The right to change the search index of a store.

    Raises:
        IndexBusy: another process has it for longer than the timeout.
        IndexFault: the folder cannot be written.
    """
    path = os.path.join(store.index, LOCK_NAME)
    with gate:
        try:
            files.ensure_folder(store.index)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise translate(path, error) from error
        try:
            _lock(descriptor, path, timeout_s)
            yield
        finally:
            os.close(descriptor)


def _lock(descriptor: int, path: str, timeout_s: float) -> None:
    deadline = environment.monotonic_s() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if environment.monotonic_s() >= deadline:
                raise IndexBusy(path, "another process is changing the search index") from error
            environment.sleep(_POLL_S)
        except OSError as error:
            raise translate(path, error) from error
        else:
            return


def open_to_change(store: Store) -> SearchIndex:
    """The search index, made when there is none, and once in the place of a bad one. Locked.

    Raises:
        IndexBusy, IndexFault: it can be neither opened nor made.
    """
    path = files.current(store.index, FILE_NAME)
    if path is not None:
        try:
            return SearchIndex.open(path)
        except IndexFault as fault:
            if fault.full or fault.library:
                raise
            files.set_aside(path)
    return SearchIndex.open(files.next_path(store.index, FILE_NAME), create=True)


def open_to_read(store: Store) -> SearchIndex | None:
    """The search index; None when there is none. The gate is held.

    Raises:
        IndexBusy, IndexFault: it cannot be read.
    """
    path = files.current(store.index, FILE_NAME)
    return None if path is None else SearchIndex.open(path, readonly=True)


def set_aside(store: Store) -> None:
    """Set a file aside that cannot be used. Locked."""
    path = files.current(store.index, FILE_NAME)
    if path is not None:
        files.set_aside(path)
