"""The documented appends of an owned session that have to look something up first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.engine.session.admission import EntryInput
from treering.engine.session.attribution import attribution
from treering.engine.session.reads import Reads
from treering.engine.session.verbs import AppendVerbs, branch_summary


class SessionVerbs(AppendVerbs[str], Reads):
    """What :class:`Session` offers beside :meth:`append`. Not for use by itself."""

    if TYPE_CHECKING:

        def append(self, entry: EntryInput) -> str:
            """Append one entry."""

    def _append_entry(self, entry: EntryInput) -> str:
        return self.append(entry)

    def set_name(self, name: str) -> str:
        """Append a session_info entry with this display name (blank clears it)."""
        return self.append_session_info(name)

    def set_label(self, entry_id: str, label: str | None) -> str:
        """Append a label entry; None clears. The entry must exist."""
        return self.append({"type": "label", "targetId": entry_id, "label": label or None})

    def append_child_usage_attribution(
        self,
        target_id: str,
        child_usage: Any,
        aggregate_usage: Any = None,
        origin: str | None = None,
    ) -> str:
        """Usage of a child, folded into an assistant message of its parent.

        Without ``aggregate_usage`` the child's figures are added to the previous aggregate, or to
        the message's own usage.

        Raises:
            NotFound: the target is not there, or is no assistant message.
        """
        return self.append(attribution(self, target_id, child_usage, aggregate_usage, origin)[0])

    def branch_with_summary(
        self,
        entry_id: str | None,
        summary: str,
        details: Any = None,
        *,
        from_hook: bool | None = None,
        usage: Any = None,
    ) -> str:
        """Go on below an entry (None: before any), with a summary of what is left.

        Raises:
            NotFound: the entry is not there.
        """
        return self.append(
            branch_summary(entry_id, summary, details, from_hook=from_hook, usage=usage)
        )
