"""The reads of a SessionManager: each captures its source, runs in a thread, and is whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from treering.engine.errors import NotFound
from treering.engine.session.capture import (
    DEFAULT_LIMITS,
    PAGE_MAX,
    SEARCH_MAX,
    Branches,
    Capture,
    Materialized,
    ReadLimits,
    SourceRef,
)
from treering.engine.session.context_epochs import ActiveContextEpoch, active_context_epoch
from treering.engine.session.context_rules import SessionContext
from treering.engine.session.context_usage import ContextUsage, read_context_usage
from treering.engine.session.entry import Entry, Retention
from treering.engine.session.manager_parts import Source, Threads
from treering.engine.session.reads import Reads
from treering.engine.session.request_usage import RequestUsage, request_usage
from treering.engine.session.tree import Tree, TreeNode, build_tree
from treering.index import SessionIndex

_Answer = TypeVar("_Answer")


class CapturedHistory:
    """A captured read scope, valid inside its callback. Later appends are invisible to it."""

    def __init__(self, threads: Threads, held: Source, capture: Capture, scope: str) -> None:
        self._threads = threads
        self._held = held
        self._capture = capture
        self.scope = scope
        """``branch`` or ``source``: what pages, searches and iterations go through."""
        self._branch = scope == "branch"
        self.source: SourceRef = capture.source

    async def get(self, entry_id: str, max_source_bytes: int | None = None) -> Entry | None:
        """See :meth:`Capture.get`; in a branch scope, None for an entry that is not on it."""
        return await self._run(self._get, entry_id, max_source_bytes)

    def _get(self, entry_id: str, max_source_bytes: int | None) -> Entry | None:
        if not self._in_scope(entry_id):
            return None
        return self._capture.get(entry_id, max_source_bytes)

    def _in_scope(self, entry_id: str) -> bool:
        """Whether the scope can hold such an entry: any, or those on the captured branch.

        A request record is on no branch; it goes with the entry that it hangs below.
        """
        reads, leaf_id = self._capture.reads, self.source.leaf_id
        if not self._branch:
            return True

        def asked(index: SessionIndex) -> bool:
            row = index.by_id(entry_id)
            leaf = None if leaf_id is None else index.by_id(leaf_id)
            if row is None:
                return False
            at = row.parent if row.kind == "request" else row.sequence
            return at is None or (leaf is not None and index.is_ancestor(at, leaf.sequence))

        return reads.ask(asked)

    async def label(self, entry_id: str) -> str | None:
        """See :meth:`Capture.label`."""
        return await self._run(self._capture.label, entry_id)

    async def page(self, after: int = 0, limit: int = PAGE_MAX) -> list[Entry]:
        """See :meth:`Capture.page`."""
        return await self._run(lambda: self._capture.page(after, limit, branch=self._branch))

    async def search(self, text: str, limit: int = SEARCH_MAX) -> list[Entry]:
        """See :meth:`Capture.search`."""
        return await self._run(lambda: self._capture.search(text, limit, branch=self._branch))

    async def parent_path(
        self, entry_id: str | None | UnsetType = UNSET, limits: ReadLimits = DEFAULT_LIMITS
    ) -> Any:
        """The whole path to an entry (the captured position, if none is named).

        Raises:
            NotFound: the scope has no such entry, or its path does not reach a root.
        """
        leaf = self.source.leaf_id if entry_id is UNSET else entry_id
        return await self._run(self._path, leaf, limits)

    def _path(self, leaf: str | None, limits: ReadLimits) -> list[Entry]:
        if leaf is not None and not self._in_scope(leaf):
            raise NotFound(
                f"no entry {leaf!r} on the captured branch",
                path=self._capture.reads.path,
                next_step="`read_source_history` reaches all branches",
            )
        return self._capture.branch(leaf, limits)

    async def materialize(self, limits: ReadLimits) -> Materialized:
        """All that the scope holds."""
        whole = self._capture.materialize_branch
        if self.scope == "source":
            whole = self._capture.materialize_source
        return await self._run(whole, limits)

    async def iterate_entries(self) -> AsyncIterator[Entry]:
        """All entries of the scope in order; memory holds a page of 64."""
        after = 0
        while page := await self.page(after):
            for entry in page:
                yield entry
            after = page[-1].sequence

    async def _run(self, work: Callable[..., _Answer], *arguments: Any) -> _Answer:
        answer: _Answer = await self._threads.run(work, *arguments, pinned=self._held)
        return answer


class ManagerReads:
    """The reading half of :class:`~treering.engine.session.manager.SessionManager`."""

    _threads: Threads

    def _selected(self) -> Source:
        """The source that is selected now."""
        raise AssertionError("subclasses answer")

    @asynccontextmanager
    async def _captured(self) -> AsyncIterator[tuple[Source, Capture]]:
        """The selected source as it is now, pinned while it is used."""
        source = self._selected()
        source.pin()
        try:
            capture = await self._threads.run(self._capture, source, pinned=source)
            try:
                yield source, capture
            finally:
                capture.end()
        finally:
            source.unpin()

    def _capture(self, source: Source) -> Capture:
        reads = source.reads
        return Capture.current(reads, session_file=source.file, session_id=reads.id)

    async def _ask(self, question: Callable[[Capture], _Answer]) -> _Answer:
        """The answer of this moment: captured and asked in one turn of the thread."""
        source = self._selected()

        def ask() -> _Answer:
            capture = self._capture(source)
            try:
                return question(capture)
            finally:
                capture.end()

        answer: _Answer = await self._threads.run(ask, pinned=source)
        return answer

    async def _paged(self, question: Callable[[Reads], _Answer]) -> _Answer:
        source = self._selected()
        answer: _Answer = await self._threads.run(question, source.reads, pinned=source)
        return answer

    # Whole or refused

    async def read_entry(self, entry_id: str, max_source_bytes: int | None = None) -> Entry | None:
        """The entry of that id, or None.

        Raises:
            LimitExceeded: its frame takes more than ``max_source_bytes``.
            Damaged: its frame does not verify any more.
        """
        return await self._ask(lambda capture: capture.get(entry_id, max_source_bytes))

    async def read_leaf_entry(self, max_source_bytes: int | None = None) -> Entry | None:
        """The entry at the current position; None before any entry."""
        return await self._ask(lambda capture: capture.leaf(max_source_bytes))

    async def read_entry_retention(self, entry_id: str) -> Retention | None:
        """How the entry came in: ``retained-import``, or None (which proves no authorship).

        Raises:
            NotFound: there is no such entry: a third answer.
        """
        return await self._ask(lambda capture: capture.retention(entry_id))

    async def read_label(self, entry_id: str) -> str | None:
        """The label that the entry has now; the last one in the whole session decides."""

        def look(index: SessionIndex) -> str | None:
            row = index.by_id(entry_id)
            found = None if row is None else index.label(row.sequence)
            return None if found is None else found.label

        # One question is one moment: nothing has to be captured for it.
        return await self._paged(lambda reads: reads.ask(look))

    async def read_entries(self, limits: ReadLimits = DEFAULT_LIMITS) -> list[Entry]:
        """All entries in journal order, without the header.

        Raises:
            LimitExceeded: there are more; nothing is clipped.
        """
        return await self._ask(lambda capture: capture.entries(limits))

    async def read_branch(
        self, from_id: str | None | UnsetType = UNSET, limits: ReadLimits = DEFAULT_LIMITS
    ) -> list[Entry]:
        """The whole path from the root to an entry (the current position, if none is named).

        None is the position before any entry, an empty path.

        Raises:
            NotFound: no such entry, or its path does not reach a root.
            LimitExceeded: it is longer.
        """
        return await self._ask(
            lambda capture: capture.branch(
                capture.source.leaf_id if from_id is UNSET else from_id, limits
            )
        )

    async def read_branches(
        self, leaf_ids: Sequence[str | None], limits: ReadLimits = DEFAULT_LIMITS
    ) -> Branches:
        """Several paths of one capture; what they share counts once and is the same object."""
        wanted = list(leaf_ids)
        return await self._ask(lambda capture: capture.branches(wanted, limits))

    async def read_tree(self, limits: ReadLimits = DEFAULT_LIMITS) -> Tree[Entry]:
        """The complete tree. Raises as :func:`build_tree`."""

        def answer(capture: Capture) -> Tree[Entry]:
            leaf_id = capture.source.leaf_id
            return build_tree(capture.reads, up_to=capture.last, leaf_id=leaf_id, limits=limits)

        return await self._ask(answer)

    async def read_flat_tree(self, limits: ReadLimits = DEFAULT_LIMITS) -> list[TreeNode[Entry]]:
        """The nodes of the complete tree in journal order."""
        return (await self.read_tree(limits)).flat()

    async def read_session_context(
        self,
        leaf_id: str | None | UnsetType = UNSET,
        *,
        max_entries: int | None = None,
        max_source_bytes: int | None = None,
    ) -> SessionContext:
        """What the model is given at the current position, or at an entry.

        Reads only what it shows. See :meth:`Reads.read_session_context`.
        """
        return await self._ask(
            lambda capture: capture.context(leaf_id, max_entries, max_source_bytes)
        )

    async def read_context_usage(
        self, leaf_id: str | None | UnsetType = UNSET
    ) -> ContextUsage | None:
        """Tokens of the context at the current position; None is unknown.

        It is unknown behind a compaction until the next answer. See :func:`read_context_usage`.
        """
        return await self._ask(
            lambda capture: read_context_usage(
                capture.reads, capture.source.leaf_id if leaf_id is UNSET else leaf_id
            )
        )

    async def materialize_branch_history(self, limits: ReadLimits) -> Materialized:
        """The current branch as a whole."""
        return await self._ask(lambda capture: capture.materialize_branch(limits))

    async def materialize_source_history(self, limits: ReadLimits) -> Materialized:
        """The session as a whole."""
        return await self._ask(lambda capture: capture.materialize_source(limits))

    async def materialize_parent_path_history(
        self, entry_id: str, limits: ReadLimits
    ) -> Materialized:
        """The path to one entry as a whole."""
        return await self._ask(lambda capture: capture.materialize_path(entry_id, limits))

    async def read_branch_history(
        self, read: Callable[[CapturedHistory], Awaitable[_Answer]]
    ) -> _Answer:
        """Call ``read`` with a capture of the current branch; its source stays open meanwhile."""
        async with self._captured() as (source, capture):
            return await read(CapturedHistory(self._threads, source, capture, "branch"))

    async def read_source_history(
        self, read: Callable[[CapturedHistory], Awaitable[_Answer]]
    ) -> _Answer:
        """Call ``read`` with a capture of the whole session; its source stays open meanwhile."""
        async with self._captured() as (source, capture):
            return await read(CapturedHistory(self._threads, source, capture, "source"))

    async def read_request_usage(self) -> dict[str, RequestUsage]:
        """See :func:`request_usage`."""
        return await self._paged(request_usage)

    async def read_active_context_epoch(
        self, leaf_id: str | None | UnsetType = UNSET
    ) -> ActiveContextEpoch | None:
        """See :func:`active_context_epoch`; at the current position, or at an entry."""
        source = self._selected()
        leaf = source.leaf_id if leaf_id is UNSET else leaf_id
        found: ActiveContextEpoch | None = await self._threads.run(
            active_context_epoch, source.reads, leaf, pinned=source
        )
        return found

    def supports_captured_history_reads(self) -> bool:
        """Whether captured reads of an owned session can be had (a view or memory has none)."""
        source = self._selected()
        return not source.in_memory and source.owned

    # Pages without a total cap

    async def read_entries_page(self, *, after: int = 0, limit: int = 256) -> list[Entry]:
        """See :meth:`Reads.entries`."""
        return await self._paged(lambda reads: reads.entries(after=after, limit=limit))

    async def read_branch_page(
        self, from_id: str | None = None, *, start: int = 0, limit: int = 256
    ) -> list[Entry]:
        """See :meth:`Reads.branch`: a page by depth."""
        return await self._paged(lambda reads: reads.branch(from_id, start=start, limit=limit))

    async def read_children_page(
        self, entry_id: str | None, *, after: int = 0, limit: int = 256
    ) -> list[Entry]:
        """See :meth:`Reads.children`."""
        return await self._paged(lambda reads: reads.children(entry_id, after=after, limit=limit))

    async def read_labels_page(
        self, *, after: int = 0, limit: int = 256
    ) -> list[tuple[Entry, str]]:
        """See :meth:`Reads.labels`."""
        return await self._paged(lambda reads: reads.labels(after=after, limit=limit))

    async def read_usage(self) -> Any:
        """See :meth:`Reads.usage`."""
        return await self._paged(lambda reads: reads.usage())
