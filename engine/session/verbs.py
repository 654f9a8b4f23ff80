"""The documented appends, one method each: the same for scripts and for tasks.

A method only builds the entry; :class:`~treering.engine.session.session.Session` answers with the
id, :class:`~treering.engine.session.manager.SessionManager` with something to await.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from treering.engine.errors import InvalidEntry
from treering.engine.session.admission import EntryInput

Answer = TypeVar("Answer")

ATTRIBUTION_ORIGINS: Final = ("spawn_task", "agent_message", "direct_user")


class AppendVerbs(Generic[Answer]):
    """Every documented append of a session. Not for use by itself.

    All raise as :meth:`Session.append`, and give the id of the new entry.
    """

    def _append_entry(self, entry: EntryInput) -> Answer:
        """Append one entry."""
        raise AssertionError(f"subclasses append {type(entry)}")

    def append_message(self, message: Mapping[str, Any] | Any) -> Answer:
        """A message of the conversation: a mapping, or one of the typed messages."""
        return self._append_entry({"type": "message", "message": message})

    def append_thinking_level_change(self, level: str) -> Answer:
        """The user changed the reasoning level. Always written: callers leave out repetitions."""
        return self._append_entry(
            {"type": "thinking_level_change", "thinkingLevel": _text(level, "a thinking level")}
        )

    def append_service_tier_change(self, tier: str) -> Answer:
        """The user changed the provider's service tier."""
        return self._append_entry(
            {"type": "service_tier_change", "serviceTier": _text(tier, "a service tier")}
        )

    def append_model_change(self, provider: str, model_id: str) -> Answer:
        """The user switched models."""
        return self._append_entry(
            {
                "type": "model_change",
                "provider": _text(provider, "a provider"),
                "modelId": _text(model_id, "a model id"),
            }
        )

    def append_compaction(
        self,
        summary: str,
        first_kept_entry_id: str | None,
        tokens_before: int | None,
        details: Any = None,
        *,
        from_hook: bool | None = None,
        custom_instructions: str | None = None,
        usage: Any = None,
    ) -> Answer:
        """Earlier messages were summarised; those from ``first_kept_entry_id`` on are kept.

        Raises:
            NotFound: ``first_kept_entry_id`` is not on the path to the new entry.
        """
        return self._append_entry(
            compaction(
                summary,
                first_kept_entry_id,
                tokens_before,
                details=details,
                from_hook=from_hook,
                custom_instructions=custom_instructions,
                usage=usage,
            )
        )

    def append_custom_entry(self, custom_type: str, data: Any = None) -> Answer:
        """State of an extension; never in the model's context."""
        return self._append_entry(
            {"type": "custom", "customType": _text(custom_type, "a type"), **_given(data=data)}
        )

    def append_custom_message_entry(
        self, custom_type: str, content: Any, *, display: bool, details: Any = None
    ) -> Answer:
        """A message of an extension that takes part in the context."""
        return self._append_entry(
            {
                "type": "custom_message",
                "customType": _text(custom_type, "a type"),
                "content": content,
                "display": bool(display),
                **_given(details=details),
            }
        )

    def append_session_info(self, name: str) -> Answer:
        """The display name; a blank one clears it."""
        return self._append_entry({"type": "session_info", "name": _text(name, "a name").strip()})

    def append_session_state(self, state: Mapping[str, Any] | str) -> Answer:
        """Lifecycle: ``"active"`` or ``"archived"`` (or a mapping with ``status``)."""
        value = {"status": state} if isinstance(state, str) else dict(state)
        return self._append_entry({"type": "session_state", "state": value})

    def append_agent_status(self, status: Mapping[str, Any]) -> Answer:
        """What the agent is doing, for lists."""
        return self._append_entry({"type": "agent_status", "status": dict(status)})

    def append_git_state(self, git: Mapping[str, Any]) -> Answer:
        """The repository's state."""
        return self._append_entry({"type": "git_state", "git": dict(git)})

    def append_label_change(self, target_id: str, label: str | None) -> Answer:
        """Set the label of an entry; None or an empty one clears it.

        Raises:
            NotFound: the entry is not there.
        """
        return self._append_entry({"type": "label", "targetId": target_id, **_given(label=label)})

    def append_tool_invocation(
        self, execution_id: str, invocation: Mapping[str, Any], assistant: Mapping[str, Any]
    ) -> Answer:
        """A tool call that was admitted, written before its effect.

        Its id is ``<execution_id>:intent``. The same again is a no-op.

        Raises:
            Conflict: that execution was admitted with other content.
        """
        return self._append_entry(
            {
                "type": "tool_intent",
                "id": f"{_text(execution_id, 'an execution id')}:intent",
                "invocation": {**invocation, "executionId": execution_id},
                "assistant": dict(assistant),
            }
        )

    def append_tool_exchange(
        self, execution_id: str, message: Mapping[str, Any], execution: Mapping[str, Any]
    ) -> Answer:
        """The finalized result of a tool call; its id is ``execution_id``. The same again is a
        no-op.

        Raises:
            Conflict: that execution has another result.
        """
        return self._append_entry(
            {
                "type": "message",
                "id": _text(execution_id, "an execution id"),
                "message": dict(message),
                "execution": {**execution, "executionId": execution_id},
            }
        )


def branch_summary(
    entry_id: str | None,
    summary: str,
    details: Any = None,
    *,
    from_hook: bool | None = None,
    usage: Any = None,
) -> dict[str, Any]:
    """The entry of ``branch_with_summary``: below ``entry_id``, and not below the leaf."""
    return {
        "type": "branch_summary",
        "parentId": entry_id,
        "fromId": "root" if entry_id is None else entry_id,
        "summary": _text(summary, "a summary"),
        **_given(details=details, fromHook=from_hook, usage=usage),
    }


def compaction(
    summary: str,
    first_kept_entry_id: str | None,
    tokens_before: int | None,
    *,
    details: Any = None,
    from_hook: bool | None = None,
    custom_instructions: str | None = None,
    usage: Any = None,
) -> dict[str, Any]:
    """The entry of ``append_compaction``."""
    return {
        "type": "compaction",
        "summary": _text(summary, "a summary"),
        "firstKeptEntryId": first_kept_entry_id,
        "tokensBefore": tokens_before,
        **_given(
            details=details,
            fromHook=from_hook,
            customInstructions=custom_instructions,
            usage=usage,
        ),
    }


def child_attribution(
    target_id: str, child_usage: Any, aggregate_usage: Any, origin: str | None
) -> EntryInput:
    """The entry of ``append_child_usage_attribution``.

    Raises:
        InvalidEntry: an origin that is not documented.
    """
    if origin is not None and origin not in ATTRIBUTION_ORIGINS:
        raise InvalidEntry(f"an origin is one of {', '.join(ATTRIBUTION_ORIGINS)}, not {origin!r}")
    return {
        "type": "child_usage_attributed",
        "targetId": target_id,
        "childUsage": child_usage,
        "aggregateUsage": aggregate_usage,
        **_given(origin=origin),
    }


def _given(**members: Any) -> dict[str, Any]:
    """Members without those that are absent."""
    return {name: value for name, value in members.items() if value is not None and value != ""}


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidEntry(f"{what} is a string, not {type(value).__name__}")
    return value
