"""What a SessionManager does with branches: moving in the tree, and copies of paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, UnsetType

from treering.engine.errors import Conflict, Invalid
from treering.engine.session.admission import admit
from treering.engine.session.manager_making import ManagerMaking, copy_in_memory
from treering.engine.session.manager_parts import Moved, Source, Threads, moved, only_wait
from treering.engine.session.navigation import (
    NO_OPTIONS,
    Navigation,
    NavigationOptions,
    navigate,
)
from treering.engine.session.output_links import OutputLink, linked_branch_summary
from treering.engine.session.plan import append_one
from treering.engine.session.session import Session
from treering.engine.session.verbs import branch_summary
from treering.engine.transfer.copying import (
    CopyResult,
    ForkPosition,
    PreparedFork,
    copy_branch,
    prepare_fork,
)
from treering.engine.transfer.legacy_model import CopyLimits


class ManagerBranches(ManagerMaking):
    """Half of :class:`~treering.engine.session.manager.SessionManager`."""

    _threads: Threads

    if TYPE_CHECKING:  # what the other halves have

        def _selected(self) -> Source:
            """The source that is selected now."""

        async def _do(self, work: Callable[[Session], Any], source: Source | None = None) -> Any:
            """Run work in the writer's thread."""

        async def _select(self, make: Callable[[], Source]) -> None:
            """Select a source that is made in a thread."""

        async def set_session_file(self, path: str | os.PathLike[str]) -> None:
            """Select another session."""

        async def flush_now(self) -> None:
            """Wait for everything that was queued."""

    # Moving

    async def branch_to(self, entry_id: str | None) -> None:
        """Move the position, durably, behind everything queued before. None: before any entry.

        Raises:
            NotFound: no entry has that id; the position stays.
        """
        await self._branch_to(entry_id, UNSET)

    async def _branch_to(
        self,
        entry_id: str | None,
        expected_leaf: str | None | UnsetType,
        source: Source | None = None,
    ) -> None:
        def work(session: Session) -> Moved:
            check_leaf(session, expected_leaf)
            session.branch_to(entry_id)
            return moved(session, None)

        await self._do(work, source)

    async def _append_there(
        self,
        entry: dict[str, Any],
        expected_leaf: str | None | UnsetType,
        source: Source | None = None,
        link: OutputLink | None = None,
    ) -> str:
        append = (
            partial(append_one, entry=admit(entry))
            if link is None
            else linked_branch_summary(entry, link).append
        )

        def work(session: Session) -> Moved:
            check_leaf(session, expected_leaf)
            added = append(session)
            return moved(session, added.id, added.raw)

        found: str = await self._do(work, source)
        return found

    async def navigate_tree(
        self, target_id: str, options: NavigationOptions = NO_OPTIONS
    ) -> Navigation:
        """Go to an entry, with a summary of the branch that is left if it is asked for.

        The summary is made by ``options.summariser``, a callable of the caller's. Raises as
        :func:`navigate`; then nothing was written.
        """
        source = self._selected()
        source.pin()
        try:
            return await navigate(
                source.reads, _Moves(self, source), target_id, options, run=self._threads.run
            )
        finally:
            source.unpin()

    # Copies

    async def create_branched_session(
        self,
        leaf_id: str,
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    ) -> str | None:
        """Copy the path to an entry into a new session, select that, and return its file.

        The copy of a session in memory is in memory, and has no file (None).

        Raises as :func:`copy_branch`; then the old session stays selected. Raises as
        :meth:`open` when the copy cannot be selected; a note of the error says where it is.
        """
        if (source := self._selected()).in_memory:
            await self.flush_now()
            await self._select(lambda: copy_in_memory(source, leaf_id, limits=limits))
            return None
        copy = await self._copied(leaf_id, limits)
        try:
            await self.set_session_file(copy.path)
        except BaseException as error:
            error.add_note(f"the copy is complete and can be opened: {copy.path}")
            raise
        return copy.path

    async def fork_branch(
        self,
        leaf_id: str | None,
        *,
        session_dir: str | None = None,
        rlm_depth: int | None = None,
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    ) -> Self:
        """Copy the path to an entry into a new session and own that; this one stays selected.

        The copy of a session in memory is in memory too, unless ``session_dir`` is named.
        """
        if (source := self._selected()).in_memory and session_dir is None:
            await self.flush_now()
            made: Source = await self._threads.run(
                lambda: copy_in_memory(source, leaf_id, limits=limits, rlm_depth=rlm_depth),
                pinned=source,
            )
            return type(self)(made)
        copy = await self._copied(leaf_id, limits, session_dir=session_dir, rlm_depth=rlm_depth)
        return await self.open(copy.path)

    async def clone(
        self,
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    ) -> Self:
        """Copy the current branch into a new session and own that; this one stays selected.

        Raises:
            Invalid: there is nothing to clone yet.
        """
        leaf_id = self._selected().leaf_id
        if leaf_id is None:
            raise Invalid("there is nothing to clone yet", path=self._selected().reads.path)
        return await self.fork_branch(leaf_id, limits=limits)

    async def prepare_fork(
        self,
        entry_id: str,
        position: ForkPosition = "before",
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
    ) -> PreparedFork:
        """Capture now what a fork at an entry copies; its ``create`` blocks: use a thread.

        Raises as :func:`prepare_fork`.
        """
        await self.flush_now()
        source = self._selected()
        file = source.file
        found: PreparedFork = await self._threads.run(
            lambda: prepare_fork(
                source.reads, entry_id, position, limits=limits, session_file=file
            ),
            pinned=source,
        )
        return found

    async def _copied(
        self, leaf_id: str | None, limits: CopyLimits | None, **more: Any
    ) -> CopyResult:
        await self.flush_now()
        source = self._selected()
        file = source.file
        found: CopyResult = await self._threads.run(
            lambda: copy_branch(source.reads, leaf_id, limits=limits, session_file=file, **more),
            pinned=source,
        )
        return found


class _Moves:
    """One source of the manager as :func:`navigate` sees it: no other one is written to."""

    def __init__(self, manager: ManagerBranches, source: Source) -> None:
        self._manager = manager
        self._source = source

    async def leaf_id(self) -> str | None:
        await self._manager._do(only_wait, self._source)
        return self._source.leaf_id

    async def branch_to(self, entry_id: str | None, *, expected_leaf: str | None) -> None:
        await self._manager._branch_to(entry_id, expected_leaf, self._source)

    async def branch_with_summary(
        self,
        entry_id: str | None,
        summary: str,
        *,
        details: Any,
        from_hook: bool | None,
        usage: Any,
        expected_leaf: str | None,
        link: OutputLink | None,
    ) -> str:
        entry = branch_summary(entry_id, summary, details, from_hook=from_hook, usage=usage)
        return await self._manager._append_there(entry, expected_leaf, self._source, link)

    async def set_label(self, entry_id: str, label: str) -> str:
        entry = {"type": "label", "targetId": entry_id, "label": label}
        return await self._manager._append_there(entry, UNSET, self._source)


def check_leaf(session: Session, expected: str | None | UnsetType) -> None:
    """Raise Conflict unless the position is the expected one, if one is."""
    if expected is not UNSET and session.leaf_id != expected:
        raise Conflict("the session changed during navigation", path=session.path)
