"""What a list says of one session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from treering.index import Usage

NO_MESSAGES: Final = "(no messages)"

Status = Literal["ok", "damaged", "foreign", "unsupported", "unreadable", "half-deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One session, or one file that should have been one. Times are Unix milliseconds."""

    path: str
    id: str
    """What the file name states, also where that is no id."""
    status: Status = "ok"
    """``ok``: it opens. ``damaged``: what comes before the damage is counted. ``foreign``: not a
    journal of ours (legacy files too). ``unsupported``: of a newer release. ``unreadable``: the
    system refused, which says nothing about the session. ``half-deleted``: a deletion of it is not
    finished (pages only; lists do not show it)."""
    reason: str | None = None
    """Why it is not ok; of an ok session what its end looks like, if not clean."""
    cwd: str | None = None
    name: str | None = None
    """The newest display name in the whole session."""
    state: str | None = None
    """``active``, ``archived`` or ``crash``; None while nothing said so."""
    parent_session_path: str | None = None
    """As the header states it."""
    rlm_depth: int | None = None
    """Recorded, or projected from the parents; None when there is no header."""
    created: int | None = None
    """By the header."""
    last_message: int | None = None
    """The newest time of a user or assistant message: the message's own, else its entry's."""
    message_count: int = 0
    """All messages, those of tools included."""
    entry_count: int = 0
    first_user_text: str | None = None
    """The beginning of the first text that a user wrote."""
    all_messages_text: str | None = None
    """The beginning of what users and assistants wrote, for a search; None when not asked
    for, or when nothing can be read."""
    agent_status: dict[str, Any] | None = None
    """The last one in the file."""
    usage: Usage | None = None
    """What the session used itself, summaries included; what its children used is theirs."""

    @property
    def modified(self) -> int | None:
        """The last message, else the creation; None when nothing tells a time."""
        return self.created if self.last_message is None else self.last_message

    @property
    def first_message(self) -> str:
        """The first text of a user, or ``(no messages)``."""
        return self.first_user_text or NO_MESSAGES
