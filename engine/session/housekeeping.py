"""The one background thread of an owned session: index catch-up, and syncs for durability "os"."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable

from treering.engine import environment
from treering.engine.errors import TreeringError
from treering.engine.limits import INDEX_IDLE_S, INDEX_LAG_FRAMES, INDEX_LAG_S


class Housekeeper:
    """Started by the first append; ends with :meth:`stop`, or when the session is forgotten.

    Its work must not fail an append: errors of the index do not surface, and a failed sync
    poisons the writer, which then tells the next caller itself.
    """

    def __init__(self, index: Callable[[], None], sync: Callable[[], None]) -> None:
        # Bound methods would keep the session alive for ever through this thread.
        self._index = weakref.WeakMethod(index)
        self._sync = weakref.WeakMethod(sync)
        self._wakeup = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._frames = 0
        self._due = 0.0
        self._now = False
        self._last_append = 0.0

    def appended(self, frames: int) -> None:
        """Frames were acknowledged."""
        if 0 < self._frames < INDEX_LAG_FRAMES:
            # Between two passes: no lock. A count that is lost to a race comes with the next one.
            self._last_append = environment.monotonic_s()
            self._frames += frames
            return
        with self._wakeup:
            self._last_append = environment.monotonic_s()
            if self._frames == 0:
                self._due = self._last_append + INDEX_LAG_S
                if self._thread is not None:
                    self._wakeup.notify()
            self._frames += frames
            if self._frames >= INDEX_LAG_FRAMES:
                self._now = True
                self._wakeup.notify()
            self._start()

    def wake(self) -> None:
        """There is something to index at once (an opened session without an index)."""
        with self._wakeup:
            self._frames += 1
            self._now = True
            self._start()
            self._wakeup.notify()

    def forget(self) -> None:
        """End the thread without waiting for it."""
        if sys.is_finalizing():
            # The interpreter ends: the thread is frozen for good, perhaps in here with the lock.
            return
        with self._wakeup:
            self._stopped = True
            self._wakeup.notify()

    def stop(self) -> None:
        """End the thread; waits for the piece of work it is in, unless called from itself."""
        self.forget()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(
                target=self._run, name="treering-housekeeper", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while self._wait():
            sync, index = self._sync(), self._index()
            if sync is None or index is None:
                return
            try:
                sync()
                if self._take():
                    index()
            except TreeringError:
                # The next append or read meets it in its own thread; until then there is no work.
                with self._wakeup:
                    self._now = False
                    self._frames = 0
            except BaseException:
                with self._wakeup:
                    self._thread = None  # a mistake of ours ends this thread, not the next one
                raise
            del sync, index

    def _wait(self) -> bool:
        """Sleep until there is work; False when it is time to end."""
        with self._wakeup:
            while not self._stopped and not self._now:
                left = self._due - environment.monotonic_s() if self._frames else None
                if left is not None and left <= 0:
                    break
                self._wakeup.wait(left)
            return not self._stopped

    def _take(self) -> bool:
        """Whether to index now: when asked to, when there is a lot, or when nobody appends.

        Indexing beside a busy writer slows both (one interpreter lock), so it waits for a pause.
        """
        with self._wakeup:
            now = environment.monotonic_s()
            if self._now or now - self._last_append >= INDEX_IDLE_S:
                self._now = False
                self._frames = 0
                return True
            self._due = now + INDEX_LAG_S
            return False
