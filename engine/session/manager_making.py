"""The constructors of SessionManager. What takes time runs in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final, Self

from treering.engine.home import Store
from treering.engine.journal.framing import Durability
from treering.engine.journal.memory_disk import MemoryDisk
from treering.engine.journal.opening import OpenMode
from treering.engine.session.listing import (
    OnProgress,
    OnSession,
    list_sessions,
    most_recent,
)
from treering.engine.session.manager_parts import Source, Threads
from treering.engine.session.session import Session
from treering.engine.session.session_info import SessionInfo
from treering.engine.session.view import SessionView
from treering.engine.transfer.copying import copy_branch, fork_session
from treering.engine.transfer.importing import ImportPreview, import_session, preview_import
from treering.engine.transfer.legacy_model import CopyLimits

_MEMORY_HOME: Final = "/memory"


Sessions = list[SessionInfo]


class ManagerMaking:
    """The static half of :class:`~treering.engine.session.manager.SessionManager`."""

    def __init__(
        self, source: Source, *, session_dir: str | None = None, threads: Threads | None = None
    ) -> None:
        raise AssertionError(f"subclasses take {source}, {session_dir} and {threads}")

    @classmethod
    async def _over(cls, make: Callable[[], Source]) -> Self:
        """A manager of a source that is made in the thread that will read it: what the opening
        has used and given back is memory that the reads use again."""
        threads = Threads()
        try:
            return cls(await threads.run(make), threads=threads)
        except BaseException:
            threads.end()
            raise

    @classmethod
    async def create(
        cls,
        cwd: str | None = None,
        session_dir: str | None = None,
        *,
        session_id: str | None = None,
        parent_session: str | None = None,
        rlm_depth: int | None = None,
        home_dir: str | None = None,
        durability: Durability = "full",
    ) -> Self:
        """A new session, durable when this returns. Raises as :meth:`Session.create`."""

        def make() -> Source:
            return Source(
                Session.create(
                    cwd,
                    home_dir=home_dir,
                    session_dir=session_dir,
                    session_id=session_id,
                    parent_session=parent_session,
                    rlm_depth=rlm_depth,
                    durability=durability,
                )
            )

        return await cls._over(make)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: OpenMode = "tail",
        durability: Durability = "full",
    ) -> Self:
        """Own an existing session. Raises as :meth:`Session.open`; never creates one."""
        return await cls._over(lambda: Source(Session.open(path, mode=mode, durability=durability)))

    @classmethod
    async def open_read_only(cls, path: str | os.PathLike[str]) -> Self:
        """A view that owns and changes nothing. Raises as :meth:`SessionView.open`."""
        return await cls._over(lambda: Source(SessionView.open(path)))

    @classmethod
    async def in_memory(
        cls,
        cwd: str | None = None,
        session_dir: str | None = None,
        *,
        session_id: str | None = None,
    ) -> Self:
        """A session without a file; the same queue, ids and errors. It ends with the process."""

        source = await asyncio.to_thread(source_in_memory, cwd, session_id=session_id)
        return cls(source, session_dir=session_dir)

    @classmethod
    async def continue_recent(
        cls,
        cwd: str | None = None,
        session_dir: str | None = None,
        *,
        home_dir: str | None = None,
        durability: Durability = "full",
    ) -> Self:
        """Own the session of a working directory that was active last, or a new one.

        Active is the last message of user or assistant. Raises as :meth:`open`: a session that
        somebody else owns is not passed over.
        """
        cwd = os.getcwd() if cwd is None else cwd
        store = Store.at(home_dir, session_dir)
        path = await asyncio.to_thread(most_recent, store, cwd)
        if path is not None:
            return await cls.open(path, durability=durability)
        return await cls.create(cwd, session_dir, home_dir=home_dir, durability=durability)

    # Lists

    @staticmethod
    async def list(
        cwd: str | None = None,
        session_dir: str | None = None,
        *,
        home_dir: str | None = None,
        on_session: OnSession | None = None,
        on_progress: OnProgress | None = None,
    ) -> Sessions:
        """The sessions of a working directory, newest activity first; damaged ones are listed too.

        ``on_session`` is told each one, ``on_progress`` (loaded, total) after every file; both in
        the event loop, and before this returns. What they raise goes to its exception handler.
        """
        cwd = os.getcwd() if cwd is None else cwd
        return await _listed(Store.at(home_dir, session_dir), cwd, on_session, on_progress)

    @staticmethod
    async def list_all(
        session_dir: str | None = None,
        *,
        home_dir: str | None = None,
        on_session: OnSession | None = None,
        on_progress: OnProgress | None = None,
    ) -> Sessions:
        """All sessions of a store, as :meth:`list`."""
        return await _listed(Store.at(home_dir, session_dir), None, on_session, on_progress)

    # From other files

    @classmethod
    async def import_retained_from(
        cls,
        source_path: str | os.PathLike[str],
        target_cwd: str | None = None,
        session_dir: str | None = None,
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
        *,
        home_dir: str | None = None,
        salvage: bool = False,
    ) -> Self:
        """Import a session and own the new one. Raises as :func:`import_session`."""
        result = await asyncio.to_thread(
            import_session,
            source_path,
            cwd=target_cwd,
            home_dir=home_dir,
            session_dir=session_dir,
            limits=limits,
            salvage=salvage,
        )
        return await cls.open(result.path)

    @classmethod
    async def fork_from(
        cls,
        source_path: str | os.PathLike[str],
        target_cwd: str | None = None,
        session_dir: str | None = None,
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
        *,
        home_dir: str | None = None,
    ) -> Self:
        """Copy a whole session and own the new one. Raises as :func:`fork_session`."""
        result = await asyncio.to_thread(
            fork_session,
            source_path,
            target_cwd,
            home_dir=home_dir,
            session_dir=session_dir,
            limits=limits,
        )
        return await cls.open(result.path)

    @staticmethod
    async def preview_retained_import(
        source_path: str | os.PathLike[str],
        target_cwd: str | None = None,
        session_dir: str | None = None,
        limits: CopyLimits | None = CopyLimits(),  # noqa: B008 (immutable)
        *,
        home_dir: str | None = None,
        salvage: bool = False,
    ) -> ImportPreview:
        """What an import would find; creates nothing. Raises as :func:`preview_import`."""
        return await asyncio.to_thread(
            preview_import,
            source_path,
            cwd=target_cwd,
            home_dir=home_dir,
            session_dir=session_dir,
            limits=limits,
            salvage=salvage,
        )


async def _listed(
    store: Store, cwd: str | None, on_session: OnSession | None, on_progress: OnProgress | None
) -> Sessions:
    """List in a thread; the callbacks are called in this event loop, in order."""
    loop = asyncio.get_running_loop()

    def tell(callback: Callable[..., None]) -> Callable[..., None]:
        def told(*what: Any) -> None:
            loop.call_soon_threadsafe(callback, *what)

        return told

    return await asyncio.to_thread(
        list_sessions,
        store,
        cwd,
        on_session=None if on_session is None else tell(on_session),
        on_progress=None if on_progress is None else tell(on_progress),
    )


def source_in_memory(cwd: str | None, **more: Any) -> Source:
    """A session that is nowhere but in memory; ``more`` are arguments of :meth:`Session.create`."""
    disk = _disk_in_memory()
    session = Session.create(cwd, home_dir=_MEMORY_HOME, disk=disk, compression=False, **more)
    return Source(session, in_memory=True)


def copy_in_memory(source: Source, leaf_id: str | None, **more: Any) -> Source:
    """A path of a session in memory as another one; ``more`` are arguments of copy_branch."""
    disk = _disk_in_memory()
    copy = copy_branch(
        source.reads,
        leaf_id,
        home_dir=_MEMORY_HOME,
        session_file=None,
        compression=False,
        disk=disk,
        **more,
    )
    return Source(Session.open(copy.path, compression=False, disk=disk), in_memory=True)


def _disk_in_memory() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder(_MEMORY_HOME)
    return disk
