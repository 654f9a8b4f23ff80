"""A captured moment of an owned session, and what may be written from it.

A capture pins its session: after the manager moved on to another one, records still go where they
belong. Everything that is read through it is clipped to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from treering.engine import environment
from treering.engine.errors import Closed, Conflict, InvalidEntry
from treering.engine.session.capture import Capture, SourceRef
from treering.engine.session.context_epoch_making import (
    Choice,
    ContextEpochAck,
    ContextEpochCandidate,
    activation,
    prepare,
    unchanged,
)
from treering.engine.session.manager_parts import Source, Stored, Threads
from treering.engine.session.manager_reads import CapturedHistory
from treering.engine.session.output_links import Origin, OutputLink, make_link
from treering.engine.session.plan import Moment, append_one
from treering.engine.session.qualified import qualified_entry
from treering.engine.session.requests import (
    ADMITTED,
    PURPOSES,
    SETTLED,
    Purpose,
    request_record,
    store_request,
)
from treering.engine.session.session import Session


class Writes(Protocol):
    """How a capture writes through its manager."""

    def __call__(self, work: Callable[[Session], Any], source: Source) -> Awaitable[Any]:
        """Do work in the writer's turn of a source."""


class CapturedSource:
    """One moment of an owned session: ``async with manager.capture() as captured``."""

    def __init__(
        self, threads: Threads, held: Source, moment: Moment, *, write: Writes, write_late: Writes
    ) -> None:
        """``write`` refuses when another session is selected, ``write_late`` does not."""
        session = held.reads
        assert isinstance(session, Session)
        self._threads = threads
        self._held = held
        self._write = write
        self._write_late = write_late
        self._ended = False
        self._read: list[Capture] = []
        file = held.file
        self.source = SourceRef(session.id, file, moment.leaf_id, moment.sequence, file is not None)
        """The moment: everything that was acknowledged before it, nothing later."""
        self._origin = Origin(session, moment.selections, self.source)

    def end(self) -> None:
        """Nothing can be read or written through it any more."""
        self._ended = True
        for capture in self._read:
            capture.end()

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("the capture has ended", path=self._held.reads.path)

    def history(self, scope: str = "branch") -> CapturedHistory:
        """Reads of the captured ``branch``, or of the whole ``source``."""
        self._check_open()
        if scope not in ("branch", "source"):
            raise InvalidEntry(f"a scope is branch or source, not {scope!r}")
        capture = Capture(self._held.reads, self.source)
        self._read.append(capture)
        return CapturedHistory(self._threads, self._held, capture, scope)

    # Requests

    async def admit(self, event: Mapping[str, Any]) -> str:
        """Record that a request is about to be sent; durable when this returns.

        Returns the id of the record, ``<attemptId>:attempt_admitted``. The same event again is a
        no-op. It moves no position.

        Raises:
            InvalidEntry, LimitExceeded: nothing was written, and the session goes on.
            Conflict: this attempt was admitted with another event.
            Others: as :meth:`Session.append`.
        """
        return await self._record(event, ADMITTED)

    async def settle(self, event: Mapping[str, Any]) -> str:
        """Record how a request ended; see :meth:`admit`."""
        return await self._record(event, SETTLED)

    async def _record(self, event: Mapping[str, Any], kind: str) -> str:
        self._check_open()
        if not isinstance(event, Mapping) or event.get("type", kind) != kind:
            raise InvalidEntry(f"a request event of this kind has the type {kind}")
        record = request_record({"type": kind, **event}, self.source)

        def work(session: Session) -> Stored:
            added = store_request(session, record)
            return Stored(added.id, added.raw)

        stored: str = await self._write_late(work, self._held)
        return stored

    def operation(
        self,
        purpose: Purpose,
        detail: str | None = None,
        *,
        operation_id: str | None = None,
        **common: Any,
    ) -> Operation:
        """Requests that are made for one answer; ``common`` are members of all their events
        (``owner``, ``modelContract``, ``contextEpoch``, ...).

        Raises:
            InvalidEntry: a purpose that is not documented.
        """
        self._check_open()
        return Operation(self, purpose, detail, operation_id, common)

    # Qualified entries

    async def append_qualified(self, entry: Mapping[str, Any], qualification: str) -> str:
        """Append an entry whose frame says which of the owner's own verbs wrote it.

        ``native-admission``: messages of the user, custom messages and state, with the
        ``nativeOrigin`` of a submitted action. ``native-recovery``: results of tools, custom
        messages and state. ``native-tool-execution``: a ``tool_intent`` with its ``assistant``,
        and results of tools.

        The payload cannot say it, whatever it holds. Context epochs are qualified by
        :meth:`activate_context_epoch` alone.

        Raises:
            InvalidEntry: another qualification, or an entry that it is not for.
            Conflict: the session has another owner or branch than when it was captured; nothing
                was written.
            Others: as :meth:`Session.append`.
        """
        self._check_open()
        admitted = qualified_entry(entry, qualification)
        origin = self._origin

        def work(session: Session) -> Stored:
            session.hold()
            try:
                if session.moment().selections != origin.selections:
                    raise Conflict("the session is not where it was captured", path=session.path)
                added = append_one(session, admitted)
            finally:
                session.let_go()
            return Stored(added.id, added.raw, added.id)

        stored: str = await self._write(work, self._held)
        return stored

    # Context epochs

    async def prepare_context_epoch(
        self,
        view_ids: Sequence[str],
        *,
        version: int = 4,
        tail_id: str | None = None,
        renderings: Mapping[str, str] | None = None,
        skills: Mapping[str, str] | None = None,
        **recipe: Any,
    ) -> ContextEpochCandidate:
        """Choose what the model is shown from now on; reads, and writes nothing.

        Args:
            view_ids: entries of the captured branch, in the order in which they are shown.
            version: 1 to 6; it decides which members of the recipe are allowed and needed.
            tail_id: the first entry that stays literal; without a summary it is the chosen entry
                that was written last, and need not be named.
            renderings: how single views are shown, by entry id.
            skills: entry ids of pinned instruction bodies, by their names.
            recipe: the other members of a recipe: ``representation``, ``include_summary``,
                ``replay_contract``, ``public_window``, ``continuation``, ``tool_continuations``,
                ``task_frame``, ``resource_revision``, ``mode``, ``policy_only``,
                ``request_contract``, ``pending_request_contract``.

        Raises:
            InvalidContextEpoch: not a row of the table of versions, or an entry that cannot be
                shown; names the rule.
            LimitExceeded: more than 16,384 views, or more than 16 MiB of recipe.
        """
        self._check_open()
        choice = Choice.of(view_ids, tail_id, renderings, skills)
        reads, members = self._held.reads, {"version": version, **recipe}

        def prepared() -> ContextEpochCandidate:
            recipe = prepare(reads, self._origin, choice, members)
            return ContextEpochCandidate(self._origin, recipe, unchanged(reads, recipe))

        found: ContextEpochCandidate = await self._threads.run(prepared, pinned=self._held)
        return found

    async def activate_context_epoch(
        self,
        candidate: ContextEpochCandidate,
        tokens_before: float | None = None,
        *,
        summary: str | None = None,
        details: Mapping[str, Any] | None = None,
        custom_instructions: str | None = None,
        usage: Any = None,
        links: Sequence[tuple[str, OutputLink]] = (),
    ) -> ContextEpochAck:
        """Make a candidate the context: one qualified compaction, durable when this returns.

        When the active epoch shows the same already (``candidate.unchanged``), that one is given
        and nothing is written.

        Raises:
            Conflict: the session is not where it was captured (owner, branch or position), another
                one is selected, or the candidate comes from another capture; nothing was written.
            InvalidContextEpoch: summary or tokens are not what the recipe says.
            Others: as :meth:`Session.append`.
        """
        self._check_open()
        prepared = activation(
            candidate,
            self._origin,
            tokens_before=tokens_before,
            summary=summary,
            details=details,
            custom_instructions=custom_instructions,
            usage=usage,
            links=links,
        )

        def work(session: Session) -> Stored:
            if candidate.unchanged is not None:
                prepared.check(session)
                return Stored(candidate.unchanged, None)
            added = prepared.append(session)
            frame = added.frame
            assert frame is not None
            ack = ContextEpochAck(added.id, frame.sequence, frame.revision.hex())
            return Stored(ack, added.raw, added.id)

        done: ContextEpochAck = await self._write(work, self._held)
        return done


class Operation:
    """The attempts of one operation, each recorded before it is sent and after it ended."""

    def __init__(
        self,
        captured: CapturedSource,
        purpose: Purpose,
        detail: str | None,
        operation_id: str | None,
        common: dict[str, Any],
    ) -> None:
        if purpose not in PURPOSES:
            raise InvalidEntry(f"the purpose is one of {', '.join(PURPOSES)}, not {purpose!r}")
        self._captured = captured
        self.purpose = purpose
        self.detail = detail
        self.id = environment.long_entry_id() if operation_id is None else operation_id
        self._common = common
        self._link: OutputLink | None = None
        self._times: dict[tuple[str, str], int] = {}
        self._open: dict[str, bool] = {}
        """Attempts in order, and whether one of their records is still missing."""

    async def admit(
        self, descriptor: Mapping[str, Any], *, attempt_id: str | None = None, **more: Any
    ) -> str:
        """Record an attempt before it is sent; returns its id (a fresh one by default).

        Raises as :meth:`CapturedSource.admit`; then it must not be sent.
        """
        if attempt_id is None:
            attempt_id = environment.long_entry_id()
        event = self._event(ADMITTED, attempt_id, **more, descriptor=descriptor)
        self._open[attempt_id] = True
        await self._captured.admit(event)
        return attempt_id

    async def settle(self, attempt_id: str, receipt: Mapping[str, Any], **more: Any) -> None:
        """Record how an attempt ended. Raises as :meth:`CapturedSource.settle`."""
        if not isinstance(attempt_id, str) or attempt_id not in self._open:
            raise Conflict(f"attempt {attempt_id!r} was not admitted by this operation")
        event = self._event(SETTLED, attempt_id, **more, receipt=receipt)
        await self._captured.settle(event)
        self._open[attempt_id] = False

    def output_link(self) -> OutputLink | None:
        """The proof of these requests, for the entry that their answer becomes.

        None in memory: such a session has no links.

        Raises:
            Conflict: nothing was requested, or a record of an attempt was not written.
        """
        self._captured._check_open()
        missing = [attempt for attempt, is_open in self._open.items() if is_open]
        if missing or not self._open:
            raise Conflict(
                f"attempt {missing[0]!r} is not settled" if missing else "nothing was requested"
            )
        if not self._captured.source.persistent:
            return None
        if self._link is None or self._link.attempt_ids != tuple(self._open):
            self._link = make_link(
                self._captured._origin, self.id, list(self._open), self.purpose, self.detail
            )
        return self._link

    def _event(self, kind: str, attempt_id: str, **own: Any) -> dict[str, Any]:
        """The event. The same call again is the same event: its time is that of the first."""
        if not isinstance(attempt_id, str):
            raise InvalidEntry(f"the id of an attempt is a string, not {attempt_id!r}")
        now = self._times.setdefault((kind, attempt_id), environment.now_ms())
        detail = {} if self.detail is None else {"purposeDetail": self.detail}
        return {
            "timestamp": now,
            **self._common,
            **own,
            "operationId": self.id,
            "attemptId": attempt_id,
            "purpose": self.purpose,
            **detail,
        }


async def written_directly(work: Callable[[Session], Stored], source: Source) -> Any:
    """Do work on a session that is not selected any more; it stays open meanwhile."""
    session = source.reads
    assert isinstance(session, Session)
    source.pin()
    done = asyncio.ensure_future(asyncio.to_thread(work, session))
    done.add_done_callback(lambda _: source.unpin())
    return (await asyncio.shield(done)).answer
