"""What a SessionManager holds: one source (a session or view), its pins, and its metadata."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from treering.engine.errors import Damaged, TreeringError
from treering.engine.session.admission import Admitted
from treering.engine.session.entries import SessionHeader
from treering.engine.session.metadata import Metadata, read_metadata, read_path_metadata
from treering.engine.session.plan import Appended, append_group
from treering.engine.session.reads import Reads
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.engine.session.write_queue import Job

GROUP_MAX = 4096
"""Entries that are written with one sync at most."""


class Source:
    """An open session or view. It is closed when nobody selects it and no read pins it."""

    def __init__(self, reads: Session | SessionView, *, in_memory: bool = False) -> None:
        self.reads = reads
        self.in_memory = in_memory
        self.owned = isinstance(reads, Session)
        try:
            self._header = _header_of(reads)
            self.metadata: Metadata = read_metadata(reads)
            self.leaf_id = reads.leaf_id
        except BaseException:
            reads.close()
            raise
        self.pins = 0
        self._free = asyncio.Event()
        self._free.set()

    @property
    def header(self) -> SessionHeader:
        """The session header.

        Raises:
            Damaged: it is lost.
        """
        if isinstance(self._header, Damaged):
            raise copy.copy(self._header)
        return self._header

    @property
    def file(self) -> str | None:
        """The journal; None in memory."""
        return None if self.in_memory else self.reads.path

    def read_path(self) -> None:
        """Read anew what depends on the position."""
        read_path_metadata(self.reads, self.metadata)

    def pin(self) -> None:
        """A read has begun."""
        self.pins += 1
        self._free.clear()

    def unpin(self) -> None:
        """It has ended."""
        self.pins -= 1
        if not self.pins:
            self._free.set()

    async def unpinned(self) -> None:
        """Wait until no read needs this source."""
        while self.pins:
            await self._free.wait()


class Moved(NamedTuple):
    """The answer of work that moved the position to another path."""

    answer: Any
    leaf_id: str | None
    agent_status: dict[str, Any] | None
    git_state: dict[str, Any] | None
    raw: bytes | None = None
    """The entry that was appended, if one was."""


class Stored(NamedTuple):
    """The answer of work that appended below the position, or beside the tree."""

    answer: Any
    raw: bytes | None
    """The new entry; None when it was there before."""
    leaf_id: str | None | UnsetType = UNSET
    """The position now; absent when it did not move."""


class Recovered(NamedTuple):
    """The answer of a recovery: everything may be otherwise than before."""

    answer: Any
    leaf_id: str | None
    metadata: Metadata


def moved(session: Session, answer: Any, raw: bytes | None = None) -> Moved:
    """What holds at the new position; to be called in the writer's thread.

    What happened is durable by now: a status that cannot be read is none, and no error.
    """
    found = Metadata()
    with contextlib.suppress(TreeringError):
        read_path_metadata(session, found)
    return Moved(answer, session.leaf_id, found.agent_status, found.git_state, raw)


def only_wait(_: Session) -> None:
    """Work that only waits for its turn."""


def run_jobs(session: Session, jobs: list[Job]) -> None:
    """Do the work of jobs in order; appends that stand together share a sync."""
    at = 0
    while at < len(jobs):
        group = _group(jobs, at)
        if group:
            _append(session, group)
            at += len(group)
        else:
            jobs[at].answer = _call(session, jobs[at])
            at += 1


def _append(session: Session, group: list[Job]) -> None:
    leaf, jumped, last = session.leaf_id, False, None
    try:
        answers: list[Any] = list(append_group(session, [job.work for job in group]))
    except Exception as error:  # noqa: BLE001 (a mistake of ours is told to these callers alone)
        answers = [copy.copy(error) for _ in group]
    for job, answer in zip(group, answers, strict=True):
        job.answer = answer
        if isinstance(answer, Appended) and answer.raw is not None and not job.work.is_request:
            jumped = jumped or (job.work.parent_given and job.work.parent != leaf)
            leaf, last = answer.id, job
    if jumped and last is not None:
        last.answer = moved(session, last.answer.id, last.answer.raw)


def _group(jobs: list[Job], start: int) -> list[Job]:
    """Appends from ``start`` on that can be planned together: no own id occurs twice."""
    group: list[Job] = []
    own: set[str] = set()
    for job in jobs[start : start + GROUP_MAX]:
        if not isinstance(job.work, Admitted) or job.work.id in own:
            break
        if job.work.id is not None:
            own.add(job.work.id)
        group.append(job)
    return group


def _call(session: Session, job: Job) -> Any:
    try:
        return job.work(session)
    except Exception as error:  # noqa: BLE001 (told to its caller alone, whatever it is)
        return error


def note_answers(source: Source, jobs: list[Job]) -> int:
    """Move leaf and metadata for what was acknowledged; how many entries are new."""
    count = 0
    for job in jobs:
        answer = job.answer
        if isinstance(answer, Recovered):
            source.leaf_id, source.metadata = answer.leaf_id, answer.metadata
            job.answer = answer.answer
        elif isinstance(answer, Moved):
            if answer.raw is not None:
                count += 1
                source.metadata.note(answer.raw)
            source.leaf_id = answer.leaf_id
            source.metadata.agent_status = answer.agent_status
            source.metadata.git_state = answer.git_state
            job.answer = answer.answer
        elif isinstance(answer, Stored):
            if answer.raw is not None:
                count += 1
                source.metadata.note(answer.raw)
                if answer.leaf_id is not UNSET:
                    source.leaf_id = answer.leaf_id
            job.answer = answer.answer
        elif isinstance(answer, Appended):
            if answer.raw is not None:
                count += 1
                source.metadata.note(answer.raw)
                if not job.work.is_request:
                    source.leaf_id = answer.id
            job.answer = answer.id
    return count


def _header_of(reads: Reads) -> SessionHeader | Damaged:
    try:
        return reads.header
    except Damaged as error:
        return error


class Threads:
    """The thread that reads of one manager run on; started by the first read."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "treering-reader")

    async def run(self, work: Any, *arguments: Any, pinned: Source | None = None) -> Any:
        """The result of a function, without blocking the event loop.

        ``pinned`` stays open until the function has ended, also when the task is cancelled.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if pinned is not None:
            pinned.pin()
        try:
            done = self._pool.submit(_do, loop, answer, pinned, work, arguments)
        except BaseException:
            if pinned is not None:
                pinned.unpin()
            raise
        try:
            return await answer
        except asyncio.CancelledError:
            if done.cancel() and pinned is not None:
                pinned.unpin()  # it has not begun, and never will
            raise

    def end(self) -> None:
        """No further work."""
        self._pool.shutdown(wait=False)


def _do(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[Any],
    pinned: Source | None,
    work: Any,
    arguments: tuple[Any, ...],
) -> None:
    """Work in the reader's thread."""
    handed: tuple[Any, ...]
    try:
        handed = (answer, pinned, work(*arguments), None)
    except BaseException as error:  # noqa: BLE001 (whoever waits is told)
        handed = (answer, pinned, None, error)
    # One call for everything: each lets the loop in, and has to wait for it.
    with contextlib.suppress(RuntimeError):  # a loop that was closed waits for nothing
        loop.call_soon_threadsafe(_hand_back, *handed)
    del answer, handed  # an error knows this frame: no circle


def _hand_back(
    answer: asyncio.Future[Any], pinned: Source | None, result: Any, error: BaseException | None
) -> None:
    if pinned is not None:
        pinned.unpin()
    if answer.done():
        return  # the task was cancelled meanwhile: nobody waits
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
