"""What a SessionManager does with captured moments: records of requests, and linked appends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from treering.engine.session.admission import EntryInput
from treering.engine.session.captured import CapturedSource, written_directly
from treering.engine.session.manager_branches import ManagerBranches
from treering.engine.session.manager_parts import Source, Stored
from treering.engine.session.output_links import (
    LinkedCompaction,
    LinkedEntry,
    OutputLink,
    linked_message,
    linked_refinement,
    refinement,
)
from treering.engine.session.plan import Moment
from treering.engine.session.session import Session
from treering.engine.session.verbs import AppendVerbs, branch_summary, compaction
from treering.engine.session.write_queue import WriteQueue


class ManagerLinks(AppendVerbs[Any], ManagerBranches):
    """Half of :class:`~treering.engine.session.manager.SessionManager`."""

    if TYPE_CHECKING:  # what the other halves have

        def _queue_of(self, source: Source) -> WriteQueue | None:
            """The queue of a source that is selected and takes writes."""

        async def append(self, entry: EntryInput) -> str:
            """Append one entry."""

    @asynccontextmanager
    async def capture(self) -> AsyncIterator[CapturedSource]:
        """This moment of the owned session, behind everything queued before.

        Inside the block it stays what it is, whatever is appended or selected meanwhile.

        Raises:
            ReadOnly: a view; its reads are captured by ``read_branch_history``.
        """
        source = self._selected()
        source.pin()
        try:
            moment: Moment = await self._do(Session.moment, source)
            captured = CapturedSource(
                self._threads, source, moment, write=self._do, write_late=self._written
            )
            try:
                yield captured
            finally:
                captured.end()
        finally:
            source.unpin()

    async def _written(self, work: Callable[[Session], Stored], source: Source) -> Any:
        queue = self._queue_of(source)
        if queue is None:
            return await written_directly(work, source)
        return await queue.run(work)

    async def append_message(
        self, message: Mapping[str, Any] | Any, *, link: OutputLink | None = None
    ) -> str:
        """A message of the conversation, with the link of the request that it answers.

        With a stale link it is the same append without one: ``link.linked_entry_id`` tells.

        Raises:
            Invalid: no link of a main request, or no message of the assistant.
        """
        if link is None:
            return await self.append({"type": "message", "message": message})
        return await self._append_linked(linked_message(message, link))

    async def append_refinement(self, result: Any, *, link: OutputLink | None = None) -> str:
        """The result of a refinement, with the link of its planner's request.

        Raises:
            Invalid: no link of a planner's request, or the result of a rollback.
        """
        if link is None:
            return await self.append(refinement(result))
        return await self._append_linked(linked_refinement(result, link))

    async def append_compaction(
        self,
        summary: str,
        first_kept_entry_id: str | None,
        tokens_before: int | None,
        details: Any = None,
        *,
        from_hook: bool | None = None,
        custom_instructions: str | None = None,
        usage: Any = None,
        links: Sequence[tuple[str, OutputLink]] = (),
    ) -> str:
        """See :meth:`AppendVerbs.append_compaction`; with links of its parts.

        ``links`` are pairs of a part (``history`` or ``turn-prefix``) and a link.

        Raises:
            Invalid: a part or link that does not fit, or a summary that comes from a hook.
            Conflict: the session is not where the links were captured; nothing was written.
        """
        arguments = (summary, first_kept_entry_id, tokens_before)
        more = {
            "details": details,
            "from_hook": from_hook,
            "custom_instructions": custom_instructions,
            "usage": usage,
        }
        if not links:
            found: str = await super().append_compaction(*arguments, **more)
            return found
        return await self._append_linked(LinkedCompaction(compaction(*arguments, **more), links))

    async def branch_with_summary(
        self,
        entry_id: str | None,
        summary: str,
        details: Any = None,
        *,
        from_hook: bool | None = None,
        usage: Any = None,
        expected_leaf: str | None | UnsetType = UNSET,
        link: OutputLink | None = None,
    ) -> str:
        """See :meth:`Session.branch_with_summary`; with the link of the request that wrote it.

        Raises:
            Conflict: the position is not ``expected_leaf`` when the entry has its turn.
            Invalid: no link of such a request, or a summary that comes from a hook.
        """
        entry = branch_summary(entry_id, summary, details, from_hook=from_hook, usage=usage)
        return await self._append_there(entry, expected_leaf, link=link)

    async def _append_linked(self, linked: LinkedEntry | LinkedCompaction) -> str:
        def work(session: Session) -> Stored:
            added = linked.append(session)
            return Stored(added.id, added.raw, added.id)

        found: str = await self._do(work)
        return found
