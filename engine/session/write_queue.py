"""One thread that writes for many tasks: what waits together is written with one sync.

Tasks put jobs in; the thread takes all that wait, runs them in order and hands the answers back to
the event loop in one go. A job that was not taken yet can be withdrawn; one that was taken ends,
whatever becomes of the task. The queue is bounded by bytes: who finds it full waits, first come
first served.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from treering.engine.errors import Closed
from treering.engine.limits import QUEUE_BYTES_MAX

JOB_BYTES: Final = 512
"""What a job counts beside the bytes of its entry."""


class Job:
    """One thing to do, and where its answer goes."""

    __slots__ = ("answer", "future", "size", "withdrawn", "work")

    def __init__(self, work: Any, size: int, future: asyncio.Future[Any]) -> None:
        self.work = work
        """What the runner understands."""
        self.size = size + JOB_BYTES
        self.future = future
        self.withdrawn = False
        self.answer: Any = None
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
        name: str = "treering-writer",
    ) -> None:
        self._run = run
        self._deliver = deliver
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._wakeup = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._bytes = 0
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def unfinished(self) -> int:
        """Jobs without an answer yet."""
        return self._unfinished + len(self._waiting)

    async def run(self, work: Any, size: int = 0) -> Any:
        """Put a job in and wait for its answer.

        Raises:
            Closed: the queue has ended.
            asyncio.CancelledError: withdrawn if the thread had not taken it; else it is done,
                and nobody is told.
        """
        job = Job(work, size, self._loop.create_future())
        await self._enter(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    async def _enter(self, job: Job) -> None:
        self._check_open()
        if self._waiting or not self._has_room(job.size):
            await self._wait_for_room(job.size)
        else:
            self._bytes += job.size
        if self._ended:
            self._bytes -= job.size
            self._check_open()
        self._unfinished += 1
        self._idle.clear()
        with self._wakeup:
            self._jobs.append(job)
            self._wakeup.notify()

    async def _wait_for_room(self, size: int) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(one for one in self._waiting if one[0] is not turn)
            else:
                self._bytes -= size  # the turn had come already
            self._let_in()
            raise

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("the session is closed")

    def _has_room(self, size: int) -> bool:
        """A job larger than the whole queue is let in when nothing else is there."""
        return not self._bytes or self._bytes + size <= self._bytes_max

    def _let_in(self) -> None:
        """Give those that wait their turn, in order, while there is room; it is kept for them."""
        while self._waiting:
            turn, size = self._waiting[0]
            if not turn.done() and not self._has_room(size):
                return
            self._waiting.popleft()
            if not turn.done():
                self._bytes += size
                turn.set_result(None)

    def _withdraw(self, job: Job) -> None:
        with self._wakeup:
            try:
                self._jobs.remove(job)
            except ValueError:
                return  # it was taken
        job.withdrawn = True
        self._finish([job])

    def _finish(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._bytes -= job.size
        self._unfinished -= len(jobs)
        self._let_in()
        if not self._unfinished:
            self._idle.set()

    async def drain(self) -> None:
        """Wait until everything that was put in has its answer."""
        while self.unfinished:
            await self._idle.wait()
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Drain, and end the thread. Idempotent."""
        await self.drain()
        self._ended = True
        with self._wakeup:
            self._wakeup.notify()
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while True:
            with self._wakeup:
                while not self._jobs and not self._ended:
                    self._wakeup.wait()
                jobs = list(self._jobs)
                self._jobs.clear()
            if not jobs:
                return
            try:
                self._run(jobs)
            except BaseException as error:  # noqa: BLE001 (whoever waits is told)
                for job in jobs:
                    job.answer = error if job.answer is None else job.answer
            try:
                self._loop.call_soon_threadsafe(self._hand_back, jobs)
            except RuntimeError:
                return  # the loop was closed under us: nobody waits for the answers any more

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
