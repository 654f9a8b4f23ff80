"""What a session is to lists: archived or active, a draft or more."""

from __future__ import annotations

import os

from treering.engine.errors import Conflict
from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.session.metadata import Metadata, read_metadata
from treering.engine.session.session import Session


def archive_session(
    path: str | os.PathLike[str],
    *,
    archived: bool = True,
    session_id: str | None = None,
    disk: Disk = LOCAL_DISK,
) -> str | None:
    """Archive a session, or take it back (``archived=False``), owning it for that moment.

    Args:
        path: the journal.
        archived: what it is to be.
        session_id: the id that the caller means; it must be that of the header.
        disk: the file system.

    Returns:
        The id of the new entry; None when nothing was to be done.

    Raises:
        Conflict: the file holds another session; nothing was written.
        Owned, and whatever :meth:`Session.open` and :meth:`Session.append` raise.
    """
    with Session.open(path, disk=disk) as session:
        return mark_archived(session, archived=archived, session_id=session_id)


def mark_archived(
    session: Session, *, archived: bool = True, session_id: str | None = None
) -> str | None:
    """:func:`archive_session` for a session that is owned already."""
    if session_id is not None and session.header.id != session_id:
        raise Conflict(
            f"the file holds the session {session.header.id!r}, not {session_id!r}",
            path=session.path,
        )
    if (read_metadata(session).state == "archived") == archived:
        return None
    return session.append_session_state("archived" if archived else "active")


def unarchive_session(
    path: str | os.PathLike[str], *, session_id: str | None = None, disk: Disk = LOCAL_DISK
) -> str | None:
    """Make an archived session active again: see :func:`archive_session`."""
    return archive_session(path, archived=False, session_id=session_id, disk=disk)


def is_draft(
    metadata: Metadata,
    *,
    messages: int,
    schedules: int = 0,
    clients: int = 0,
    busy: bool = False,
    subagent: bool = False,
) -> bool:
    """Whether a session that is about to be closed holds nothing that anybody would miss.

    A frontend deletes such a session at closing. Nothing here reads or deletes anything: the
    caller says what only it knows.

    Args:
        metadata: of the session; :attr:`Metadata.has_user_content` must be False.
        messages: how many messages it holds, of whatever role.
        schedules: active or paused schedules bound to it.
        clients: clients that are attached to it.
        busy: whether something is running in it.
        subagent: whether another session made it for itself.
    """
    nothing_in_it = messages == 0 and not metadata.has_user_content
    nobody_at_it = schedules == 0 and clients == 0 and not busy and not subagent
    return nothing_in_it and nobody_at_it
