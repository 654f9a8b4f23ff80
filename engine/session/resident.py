"""Synchronous reads of whole histories: for sessions in memory and for read-only views only.

On an owned session on disk they would block the event loop for as long as a disk likes; each then
names the call to await instead.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from treering.engine.errors import Conflict, ReadOnly, Unsupported
from treering.engine.session.capture import NO_LIMITS
from treering.engine.session.context_rules import SessionContext
from treering.engine.session.entry import Entry, Retention
from treering.engine.session.manager_parts import Source
from treering.engine.session.reads import Reads
from treering.engine.session.session import Session
from treering.engine.session.tree import Tree, TreeNode, build_tree
from treering.engine.session.write_queue import WriteQueue


class ResidentReads:
    """The synchronous body getters of :class:`~treering.engine.session.manager.SessionManager`."""

    _queue: WriteQueue | None

    def _selected(self) -> Source:
        """The source that is selected now."""
        raise AssertionError("subclasses answer")

    def _resident(self, instead: str) -> Reads:
        source = self._selected()
        if source.owned and not source.in_memory:
            raise Unsupported(
                "synchronous history reads need a resident view (in memory, or read-only)",
                path=source.reads.path,
                next_step=f"use `await manager.{instead}`",
            )
        return source.reads

    def get_entry(self, entry_id: str) -> Entry | None:
        """The entry of that id, or None."""
        reads = self._resident("read_entry(entry_id)")
        return reads.read(entry_id) if reads.has(entry_id) else None

    def get_leaf_entry(self) -> Entry | None:
        """The entry at the current position."""
        self._resident("read_leaf_entry()")
        leaf_id = self._selected().leaf_id
        return None if leaf_id is None else self.get_entry(leaf_id)

    def get_entries(self) -> list[Entry]:
        """All entries in journal order, without the header."""
        return list(self._resident("read_entries()").iter_entries())

    def get_branch(self, from_id: str | None | UnsetType = UNSET) -> list[Entry]:
        """The path to an entry, from the root or from where its parents are lost; [] for None.

        Raises:
            NotFound: no such entry.
        """
        reads = self._resident("read_branch()")
        leaf_id = self._selected().leaf_id if from_id is UNSET else from_id
        return [] if leaf_id is None else list(reads.iter_branch(leaf_id))

    def get_children(self, entry_id: str | None) -> list[Entry]:
        """The entries below an entry; None gives the roots."""
        reads = self._resident("read_children_page(entry_id)")
        found: list[Entry] = []
        while page := reads.children(entry_id, after=found[-1].sequence if found else 0):
            found += page
        return found

    def get_tree(self) -> Tree[Entry]:
        """The complete tree."""
        return build_tree(
            self._resident("read_tree()"), leaf_id=self._selected().leaf_id, limits=NO_LIMITS
        )

    def get_flat_tree(self) -> list[TreeNode[Entry]]:
        """The nodes of the tree in journal order."""
        return self.get_tree().flat()

    def build_session_context(self, leaf_id: str | None | UnsetType = UNSET) -> SessionContext:
        """The model context at the current position, or at an entry."""
        reads = self._resident("read_session_context()")
        leaf = self._selected().leaf_id if leaf_id is UNSET else leaf_id
        return reads.read_session_context(leaf)

    def get_label(self, entry_id: str) -> str | None:
        """The label that an entry has; None also for an unknown one."""
        reads = self._resident("read_label(entry_id)")
        return reads.label(entry_id) if reads.has(entry_id) else None

    def get_entry_retention(self, entry_id: str) -> Retention | None:
        """How the entry came in.

        Raises:
            NotFound: no such entry.
        """
        return self._resident("read_entry_retention(entry_id)").retention(entry_id)

    def branch(self, entry_id: str) -> None:
        """Move the position of a session in memory.

        Raises:
            NotFound: no entry has that id.
            Conflict: appends are on their way.
            ReadOnly: it is a view.
        """
        self._move(entry_id)

    def reset_leaf(self) -> None:
        """The position before any entry; raises as :meth:`branch`."""
        self._move(None)

    def _move(self, entry_id: str | None) -> None:
        session = self._resident("branch_to(entry_id)")
        if not isinstance(session, Session):
            raise ReadOnly("a read-only view keeps its position", path=session.path)
        if self._queue is not None and self._queue.unfinished:
            raise Conflict("appends are on their way: await flush_now() first", path=session.path)
        session.branch_to(entry_id)
        source = self._selected()
        source.leaf_id = session.leaf_id
        source.read_path()
