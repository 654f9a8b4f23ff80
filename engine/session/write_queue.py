"""One thread that writes for many tasks: what waits together is written with one sync.

Tasks put jobs in; the thread takes all that wait, runs them in order and hands the answers back to
the event loop in one go. A job that was not taken yet can be withdrawn; one that was taken ends,
whatever becomes of the task. The queue is bounded by bytes: who finds it full waits, first come
first served.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from treering.engine.errors import Closed, Conflict
from treering.engine.limits import QUEUE_BYTES_MAX

JOB_BYTES: Final = 512
"""What a job counts beside the bytes of its entry."""


NOT_RUN: Final = object()
"""The answer of a job that has not run."""


class Job:
    """One thing to do, and where its answer goes."""

    __slots__ = ("answer", "future", "queued", "size", "taken", "withdrawn", "work")

    def __init__(self, work: Any, size: int, future: asyncio.Future[Any]) -> None:
        self.work = work
        """What the runner understands."""
        self.size = size + JOB_BYTES
        self.future = future
        self.queued = False
        """Whether there was room for it."""
        self.taken = False
        """Whether the thread has it: it cannot be withdrawn any more."""
        self.withdrawn = False
        self.answer: Any = NOT_RUN
        """Its result or exception, once it has run."""


Runner = Callable[[list[Job]], None]
"""Runs jobs in the thread and sets their ``answer``."""


class WriteQueue:
    """Belongs to one event loop: all methods but the runner are called there."""

    def __init__(
        self,
        run: Runner,
        deliver: Callable[[list[Job]], None],
        *,
        bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._run = run
        self._deliver = deliver
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._wakeup = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._bytes = 0
        self.unfinished = 0
        """Jobs without an answer yet, those that wait for room included."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="treering-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Any, size: int = 0) -> Any:
        """Put a job in and wait for its answer; it has its place before this first waits.

        Raises:
            Closed: the queue has ended, or belongs to the process before a fork.
            Conflict: it belongs to another event loop.
            asyncio.CancelledError: withdrawn if the thread had not taken it; else it is done,
                and nobody is told.
        """
        self._check_here()
        if self._ended:
            raise Closed("the session is closed")
        job = Job(work, size, self._loop.create_future())
        self.unfinished += 1
        self._idle.clear()
        if self._waiting or not self._has_room(job.size):
            self._waiting.append(job)
        else:
            self._put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    def _check_here(self) -> None:
        if self._pid != os.getpid():
            raise Closed("the session was opened before a fork; open it again here")
        if asyncio.get_running_loop() is not self._loop:
            raise Conflict(
                "a session manager belongs to the event loop that it was made in",
                next_step="make another one in this loop",
            )

    def _put(self, job: Job) -> None:
        self._bytes += job.size
        with self._wakeup:
            job.queued = True
            self._jobs.append(job)
            self._wakeup.notify()

    def _has_room(self, size: int) -> bool:
        """A job larger than the whole queue is let in when nothing else is there."""
        return not self._bytes or self._bytes + size <= self._bytes_max

    def _let_in(self) -> None:
        """Queue those that wait, in order, while there is room."""
        while self._waiting and (
            self._waiting[0].withdrawn or self._has_room(self._waiting[0].size)
        ):
            job = self._waiting.popleft()
            if not job.withdrawn:
                self._put(job)

    def _withdraw(self, job: Job) -> None:
        """Nobody waits for it: if it was not taken, it never will be."""
        with self._wakeup:
            if job.taken:
                return
            job.withdrawn = True
        job.work = None
        self._finish([job])

    def _finish(self, jobs: list[Job]) -> None:
        self._bytes -= sum(job.size for job in jobs if job.queued)
        self.unfinished -= len(jobs)
        self._let_in()
        if not self.unfinished:
            self._idle.set()

    async def drain(self) -> None:
        """Wait until everything that was put in has its answer."""
        self._check_here()
        while self.unfinished:
            await self._idle.wait()

    async def end(self) -> None:
        """Drain, and end the thread. Idempotent.

        From another event loop this ends only a queue whose own loop is closed.
        """
        if not self._loop.is_closed():
            await self.drain()
        self.abandon()
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def abandon(self) -> None:
        """End the thread behind what it has, without waiting for it."""
        if self._pid != os.getpid():
            return
        self._ended = True
        with self._wakeup:
            self._wakeup.notify()

    def _work(self) -> None:
        while True:
            with self._wakeup:
                while not self._jobs and not self._ended:
                    self._wakeup.wait()
                jobs = [job for job in self._jobs if not job.withdrawn]
                for job in jobs:
                    job.taken = True
                done = self._ended and not self._jobs
                self._jobs.clear()
            if done:
                return
            if jobs and not self._work_on(jobs):
                return

    def _work_on(self, jobs: list[Job]) -> bool:
        """Run jobs and hand their answers back; False when nobody is there to take them."""
        try:
            self._run(jobs)
        except BaseException as error:  # noqa: BLE001 (whoever waits is told)
            for job in jobs:
                job.answer = error if job.answer is NOT_RUN else job.answer
        try:
            self._loop.call_soon_threadsafe(self._hand_back, jobs)
        except RuntimeError:
            return False  # the loop was closed: nobody waits for the answers any more
        return True

    def _hand_back(self, jobs: list[Job]) -> None:
        try:
            self._deliver(jobs)
        finally:
            for job in jobs:
                if job.future.done():
                    continue
                if isinstance(job.answer, BaseException):
                    job.future.set_exception(job.answer)
                else:
                    job.future.set_result(job.answer)
            self._finish(jobs)
