"""SessionManager: the documented API for frontends, on asyncio.

One thread writes (group commit: what tasks append at the same time shares a sync), one thread
reads; the event loop never waits for a disk. Appends of one task keep their order; the parent of an
entry is the position at its turn. Position and metadata move at the acknowledgement, then listeners
are told, then the caller. A task that is cancelled before its entry is taken has written nothing.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from treering.engine.errors import Closed, Conflict, InvalidEntry, ReadOnly
from treering.engine.home import Store
from treering.engine.journal.recovery import Report
from treering.engine.session.admission import EntryInput, admit
from treering.engine.session.attribution import attribution
from treering.engine.session.entries import SessionHeader, Usage
from treering.engine.session.manager_links import ManagerLinks
from treering.engine.session.manager_making import source_in_memory
from treering.engine.session.manager_parts import (
    Moved,
    Recovered,
    Source,
    Threads,
    moved,
    note_answers,
    only_wait,
    run_jobs,
)
from treering.engine.session.manager_reads import ManagerReads
from treering.engine.session.metadata import read_metadata
from treering.engine.session.plan import append_one
from treering.engine.session.resident import ResidentReads
from treering.engine.session.session import Session
from treering.engine.session.verbs import child_attribution
from treering.engine.session.write_queue import Job, WriteQueue

PersistListener = Callable[[str | None], None]
"""Told the session file after each acknowledged append."""


class SessionManager(ManagerLinks, ManagerReads, ResidentReads):
    """One selected session. Make it with a static constructor; ``async with`` closes it."""

    def __init__(
        self, source: Source, *, session_dir: str | None = None, threads: Threads | None = None
    ) -> None:
        """For the constructors; needs a running event loop. It takes the source over."""
        self._source = source
        self._session_dir = session_dir
        self._threads = Threads() if threads is None else threads
        self._listeners: list[PersistListener] = []
        self._busy: str | None = None
        """What keeps mutations out at the moment: closing or switching."""
        self._switch = asyncio.Lock()
        self._retiring: list[tuple[Source, asyncio.Task[None]]] = []
        self._closing: asyncio.Task[None] | None = None
        self._held: list[WriteQueue] = []
        # Who forgets a manager holds its session no longer than the queue needs.
        weakref.finalize(self, _abandon, self._held)
        try:
            owned = isinstance(source.reads, Session)
            self._queue: WriteQueue | None = self._new_queue(source) if owned else None
        except BaseException:
            source.reads.close()
            raise

    # Switching and ending

    async def new_session(
        self,
        *,
        parent_session: str | None = None,
        session_id: str | None = None,
        rlm_depth: int | None = None,
    ) -> str | None:
        """Select a new session in the same place; what was captured of the old one stays valid.

        Nothing is copied from the parent. When it cannot be made the old one stays selected.
        """
        self._writing()
        old = self._source
        session = old.reads
        assert isinstance(session, Session)
        more: dict[str, Any] = {
            "session_id": session_id,
            "parent_session": parent_session,
            "rlm_depth": rlm_depth,
        }
        cwd = old.header.cwd

        def make() -> Source:
            if old.in_memory:
                return source_in_memory(cwd, **more)
            sessions, durability = session.store.sessions, session.durability
            return Source(Session.create(cwd, session_dir=sessions, durability=durability, **more))

        await self._select(make)
        return self.get_session_file()

    async def set_session_file(self, path: str | os.PathLike[str]) -> None:
        """Select another session; the path that is open already means only a flush."""
        self._writing()
        own, session = self.get_session_file(), self._source.reads
        if own is not None and os.path.realpath(path) == os.path.realpath(own):
            await self.flush_now()
            return
        assert isinstance(session, Session)
        durability = session.durability
        # What this manager has left and nobody reads any more is closing: that is waited for.
        closing = [
            task
            for source, task in self._retiring
            if not source.pins and source.file is not None
            if os.path.realpath(source.file) == os.path.realpath(path)
        ]
        await asyncio.gather(*closing, return_exceptions=True)
        await self._select(lambda: Source(Session.open(path, durability=durability)))

    async def _select(self, make: Callable[[], Source]) -> None:
        """Select a source that is made in a thread. The old one is closed when nobody reads it."""
        async with self._switch:
            self._writing()
            self._busy = "switching"
            try:
                if self._queue is not None:
                    await self._queue.drain()
                fresh = await _finished(asyncio.ensure_future(asyncio.to_thread(make)))
                if self._closing is not None:
                    await asyncio.to_thread(fresh.reads.close)
                    self._check_open()
                try:
                    queue = self._new_queue(fresh)
                except BaseException:
                    fresh.reads.close()
                    raise
                old, old_queue = self._source, self._queue
                self._source, self._queue = fresh, queue
                task = asyncio.create_task(_retire(old, old_queue))
                self._retiring.append((old, task))
            finally:
                if self._busy == "switching":
                    self._busy = None
            if not old.pins:
                await asyncio.wait({task})  # its errors are those of the old session: see close

    async def flush_now(self) -> None:
        """Wait until everything that was queued before is acknowledged or has failed."""
        self._check_open()
        if self._queue is not None:
            await self._queue.run(only_wait)

    async def recover(self) -> Report:
        """After :class:`OutcomeUnknown`: open the journal anew. See :meth:`Session.recover`.

        Raises:
            Conflict: captured reads are in progress.
        """
        source = self._source

        def work(session: Session) -> Recovered:
            if source.pins:
                raise Conflict("reads are in progress", path=session.path)
            report = session.recover()
            return Recovered(report, session.leaf_id, read_metadata(session))

        report: Report = await self._do(work)
        return report

    async def close(self) -> None:
        """Wait for queued writes and for reads, then let the session go. Idempotent.

        It goes on when the task that waits for it is cancelled; a later call waits for the end.

        Raises:
            OutcomeUnknown, SourceChanged: an end could not be written, of this session or of one
                that was selected before; they are closed, and everything acknowledged stays.
        """
        if self._closing is None:
            self._busy = "closed"
            self._closing = asyncio.create_task(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        async with self._switch:
            tasks = [task for _, task in self._retiring]
            tasks.append(asyncio.create_task(_retire(self._source, self._queue)))
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self._threads.end()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Writing

    def _new_queue(self, source: Source) -> WriteQueue:
        session, manager = source.reads, weakref.ref(self)
        assert isinstance(session, Session)

        def acknowledge(jobs: list[Job]) -> None:
            found = manager()
            if found is None:
                note_answers(source, jobs)
            else:
                found._acknowledge(source, jobs)

        queue = WriteQueue(lambda jobs: run_jobs(session, jobs), acknowledge)
        self._held[:] = [queue]
        return queue

    def _acknowledge(self, source: Source, jobs: list[Job]) -> None:
        count = note_answers(source, jobs)
        if not count:
            return
        path = source.file
        for listener in list(self._listeners) * count:
            try:
                listener(path)
            except Exception as error:  # noqa: BLE001 (it must not fail what is stored)
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a persist listener failed", "exception": error}
                )

    async def append(self, entry: EntryInput) -> str:
        """Append one entry; returns its id when it is durable. Raises as :meth:`Session.append`.

        What the caller does to the object afterwards has no effect.
        """
        admitted = admit(entry)
        queue = self._writing()
        found: str = await queue.run(admitted, len(admitted.rest))
        return found

    async def _append_entry(self, entry: EntryInput) -> str:
        return await self.append(entry)

    async def append_child_usage_attribution(
        self,
        target_id: str,
        child_usage: Any,
        aggregate_usage: Any = None,
        origin: str | None = None,
    ) -> str:
        """See :meth:`Session.append_child_usage_attribution`; computed at its turn."""
        found = await self.append_child_usage_attribution_with_aggregate(
            target_id, child_usage, aggregate_usage, origin
        )
        return found[0]

    async def append_child_usage_attribution_with_aggregate(
        self,
        target_id: str,
        child_usage: Any,
        aggregate_usage: Any = None,
        origin: str | None = None,
    ) -> tuple[str, Any]:
        """The same; returns the id and the aggregate that was stored."""
        if not isinstance(child_usage, (Mapping, Usage)):
            raise InvalidEntry(f"the usage of a child is a mapping, not {child_usage!r}")
        admit(child_attribution(target_id, child_usage, aggregate_usage, origin))

        def work(session: Session) -> Moved:
            entry, aggregate = attribution(session, target_id, child_usage, aggregate_usage, origin)
            added = append_one(session, admit(entry))
            return moved(session, (added.id, aggregate), added.raw)

        found: tuple[str, Any] = await self._do(work)
        return found

    def on_persist(self, listener: PersistListener) -> Callable[[], None]:
        """Call ``listener`` with the session file after each acknowledged append.

        Returns what ends that. An error of the listener goes to the loop's exception handler.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    async def _do(self, work: Callable[[Session], Any], source: Source | None = None) -> Any:
        queue = self._writing()
        if source is not None and source is not self._source:
            raise Conflict("another session was selected meanwhile", path=source.reads.path)
        return await queue.run(work)

    def _writing(self) -> WriteQueue:
        self._check_open()
        if self._busy is not None:
            raise Conflict(f"the session is {self._busy}", path=self._source.reads.path)
        if self._queue is None:
            raise ReadOnly(
                "a read-only view takes no changes",
                path=self._source.reads.path,
                next_step="open the session for writing",
            )
        return self._queue

    def _queue_of(self, source: Source) -> WriteQueue | None:
        free = self._closing is None and self._busy is None
        return self._queue if free and source is self._source else None

    def _check_open(self) -> None:
        if self._closing is not None:
            raise Closed("the session manager is closed", path=self._source.reads.path)

    def _selected(self) -> Source:
        self._check_open()
        return self._source

    # Metadata: synchronous, always there, never a read of the disk but for the header

    def get_leaf_id(self) -> str | None:
        """The current position; None is the position before any entry."""
        return self._source.leaf_id

    def get_session_id(self) -> str:
        """The session id."""
        return self._source.reads.id

    def get_session_file(self) -> str | None:
        """The journal; None in memory."""
        return self._source.file

    def get_session_dir(self) -> str | None:
        """The folder of the journal; in memory the one that was named, if any."""
        path = self.get_session_file()
        return self._session_dir if path is None else os.path.dirname(path)

    def get_session_artifact_dir(self) -> str | None:
        """The folder that the session owns for its files; None in memory."""
        path = self.get_session_file()
        return (
            None if path is None else Store.of_journal(path).artifact_folder(self.get_session_id())
        )

    def get_header(self) -> SessionHeader:
        """The session header."""
        return self._source.header

    def get_cwd(self) -> str | None:
        """The working directory that the header states."""
        return self._source.header.cwd

    def get_session_name(self) -> str | None:
        """The display name: the newest in the whole session; blank is none."""
        return self._source.metadata.name

    def get_session_state(self) -> str | None:
        """``active``, ``archived`` or ``crash``; None while nothing said so."""
        return self._source.metadata.state

    def get_latest_agent_status(self) -> dict[str, Any] | None:
        """The nearest agent status on the path to the current position."""
        return self._source.metadata.agent_status

    def get_git_state(self) -> dict[str, Any] | None:
        """The nearest repository state on the path to the current position."""
        return self._source.metadata.git_state

    def get_compaction_count(self) -> int:
        """Compactions in the whole session."""
        return self._source.metadata.compaction_count

    def has_user_content(self) -> bool:
        """Whether anything but the defaults of a new session and bookkeeping was appended."""
        return self._source.metadata.has_user_content

    def is_persisted(self) -> bool:
        """Whether the session is on disk."""
        return not self._source.in_memory


def _abandon(held: list[WriteQueue]) -> None:
    for queue in held:
        queue.abandon()


async def _finished(task: asyncio.Future[Source]) -> Source:
    """The result of a task that is not stopped half way; if nobody takes it, it is closed."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(
            lambda done: None if done.exception() is not None else done.result().reads.close()
        )
        raise


async def _retire(source: Source, queue: WriteQueue | None) -> None:
    """Drain the queue, wait for the reads, and close the session."""
    if queue is not None:
        await queue.end()
    await source.unpinned()
    await asyncio.to_thread(source.reads.close)
