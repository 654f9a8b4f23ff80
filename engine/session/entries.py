"""Typed session entries: the header, the sixteen kinds, the messages.

Shapes are those of the session-format document. A struct is a view: the bytes of an entry are
stored and given back as they came, so members that a struct does not name survive in ``raw``.
Members that are absent in older files are optional here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from treering.engine.json_text import decode_or_none, depth_over_limit


class _Struct(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    pass


class TextContent(_Struct, kw_only=True, tag_field="type", tag="text"):
    """Plain text."""

    text: str


class ImageContent(_Struct, kw_only=True, tag_field="type", tag="image"):
    """An image, base64."""

    data: str
    mime_type: str


class ThinkingContent(_Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The model's reasoning."""

    thinking: str


class ToolCall(_Struct, kw_only=True, tag_field="type", tag="toolCall"):
    """A call that the model asks for. ``arguments`` can be null or cut short in real files."""

    id: str
    name: str
    arguments: Any = None


UserContent = TextContent | ImageContent
AssistantContent = TextContent | ThinkingContent | ToolCall


class UsageCost(_Struct, kw_only=True):
    """Cost in the provider's currency."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total: float = 0


class Usage(_Struct, kw_only=True):
    """Tokens and cost of one answer."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: UsageCost = msgspec.field(default_factory=UsageCost)


class UserMessage(_Struct, kw_only=True, tag_field="role", tag="user"):
    """What the user said."""

    content: str | list[UserContent]
    timestamp: float | None = None


class AssistantMessage(_Struct, kw_only=True, tag_field="role", tag="assistant"):
    """What the model said."""

    content: list[AssistantContent] | None
    api: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error_message: str | None = None
    timestamp: float | None = None


class ToolResultMessage(_Struct, kw_only=True, tag_field="role", tag="toolResult"):
    """What a tool answered."""

    tool_call_id: str
    tool_name: str | None = None
    content: str | list[UserContent] | None = None
    details: Any = None
    is_error: bool = False
    timestamp: float | None = None


class BashExecutionMessage(_Struct, kw_only=True, tag_field="role", tag="bashExecution"):
    """A command that the user ran."""

    command: str
    output: str = ""
    exit_code: int | None = None
    cancelled: bool = False
    truncated: bool = False
    full_output_path: str | None = None
    exclude_from_context: bool = False
    timestamp: float | None = None


class CustomMessage(_Struct, kw_only=True, tag_field="role", tag="custom"):
    """A message of an extension."""

    custom_type: str | None = None
    content: str | list[UserContent] = ""
    display: bool = False
    details: Any = None
    timestamp: float | None = None


class BranchSummaryMessage(_Struct, kw_only=True, tag_field="role", tag="branchSummary"):
    """A summary of a branch that was left."""

    summary: str
    from_id: str | None = None
    timestamp: float | None = None


class CompactionSummaryMessage(_Struct, kw_only=True, tag_field="role", tag="compactionSummary"):
    """A summary of earlier messages."""

    summary: str
    tokens_before: int | None = None
    timestamp: float | None = None


AgentMessage = (
    UserMessage
    | AssistantMessage
    | ToolResultMessage
    | BashExecutionMessage
    | CustomMessage
    | BranchSummaryMessage
    | CompactionSummaryMessage
)


class SessionHeader(_Struct, kw_only=True, tag_field="type", tag="session"):
    """Metadata of a session; not part of the tree."""

    id: str
    timestamp: str | None = None
    cwd: str | None = None
    version: int | None = None
    parent_session: str | None = None
    rlm_depth: int | None = None
    git: Any = None


class EntryBase(_Struct, kw_only=True):
    """What every entry has. Unset members are filled in by the append."""

    id: str | UnsetType = UNSET
    parent_id: str | None | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET

    kind: ClassVar[str] = ""

    @property
    def type(self) -> str:
        """The entry's kind, as in the file."""
        tag = self.__struct_config__.tag
        return tag if isinstance(tag, str) else self.kind


class MessageEntry(EntryBase, kw_only=True, tag_field="type", tag="message"):
    """A message of the conversation."""

    message: AgentMessage


class ToolIntentEntry(EntryBase, kw_only=True, tag_field="type", tag="tool_intent"):
    """A tool call that was admitted, written before its effect."""

    invocation: Any = None
    assistant: Any = None


class RequestEntry(EntryBase, kw_only=True, tag_field="type", tag="request"):
    """A request record; it does not move the leaf."""

    request: Any = None


class ThinkingLevelChangeEntry(
    EntryBase, kw_only=True, tag_field="type", tag="thinking_level_change"
):
    """The user changed the reasoning level."""

    thinking_level: str


class ServiceTierChangeEntry(EntryBase, kw_only=True, tag_field="type", tag="service_tier_change"):
    """The user changed the provider's service tier."""

    service_tier: str


class ModelChangeEntry(EntryBase, kw_only=True, tag_field="type", tag="model_change"):
    """The user switched models."""

    provider: str
    model_id: str


class CompactionEntry(EntryBase, kw_only=True, tag_field="type", tag="compaction"):
    """Earlier messages were summarised."""

    summary: str
    first_kept_entry_id: str | None = None
    tokens_before: int | None = None
    details: Any = None
    from_hook: bool | None = None
    custom_instructions: str | None = None
    usage: Usage | None = None


class BranchSummaryEntry(EntryBase, kw_only=True, tag_field="type", tag="branch_summary"):
    """A branch was left, with a summary."""

    summary: str
    from_id: str | None = None
    details: Any = None
    from_hook: bool | None = None
    usage: Usage | None = None


class CustomEntry(EntryBase, kw_only=True, tag_field="type", tag="custom"):
    """State of an extension; never in the model's context."""

    custom_type: str
    data: Any = None


class ChildUsageAttributionEntry(
    EntryBase, kw_only=True, tag_field="type", tag="child_usage_attributed"
):
    """Usage of a child, folded into an assistant message."""

    target_id: str
    child_usage: Usage
    aggregate_usage: Usage | None = None
    origin: str | None = None


class CustomMessageEntry(EntryBase, kw_only=True, tag_field="type", tag="custom_message"):
    """A message of an extension that takes part in the context."""

    custom_type: str
    content: str | list[UserContent]
    display: bool = False
    details: Any = None


class LabelEntry(EntryBase, kw_only=True, tag_field="type", tag="label"):
    """A bookmark on an entry; without ``label`` it clears one."""

    target_id: str
    label: str | None = None


class SessionInfoEntry(EntryBase, kw_only=True, tag_field="type", tag="session_info"):
    """The display name."""

    name: str | None = None


class SessionStateEntry(EntryBase, kw_only=True, tag_field="type", tag="session_state"):
    """Lifecycle: active, archived, or the older crash, sleep and hidden."""

    state: Any = None


class AgentStatusEntry(EntryBase, kw_only=True, tag_field="type", tag="agent_status"):
    """What the agent is doing, for lists."""

    status: Any = None


class GitStateEntry(EntryBase, kw_only=True, tag_field="type", tag="git_state"):
    """The repository's state."""

    git: Any = None


KnownEntry = (
    MessageEntry
    | ToolIntentEntry
    | RequestEntry
    | ThinkingLevelChangeEntry
    | ServiceTierChangeEntry
    | ModelChangeEntry
    | CompactionEntry
    | BranchSummaryEntry
    | CustomEntry
    | ChildUsageAttributionEntry
    | CustomMessageEntry
    | LabelEntry
    | SessionInfoEntry
    | SessionStateEntry
    | AgentStatusEntry
    | GitStateEntry
)


class UnknownEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a kind that we do not know, or whose members are not as documented.

    It is kept, shown and exported like any other. ``problem`` says why it is not typed.
    """

    type: str
    problem: str
    raw: bytes


class _Kind(msgspec.Struct):
    type: str = ""


_known = msgspec.json.Decoder(KnownEntry)
_kinds = msgspec.json.Decoder(_Kind)
_header = msgspec.json.Decoder(SessionHeader)


def decode_entry(raw: bytes) -> KnownEntry | UnknownEntry:
    """The typed entry, or :class:`UnknownEntry`; never an error for bytes that were admitted."""
    depth = depth_over_limit(raw)
    if depth is not None:
        return UnknownEntry(type="", problem=f"nests {depth} deep", raw=raw)
    try:
        return _known.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return UnknownEntry(type=_kind_of(raw), problem=str(error), raw=raw)


def _kind_of(raw: bytes) -> str:
    found = decode_or_none(_kinds, raw)
    return "" if found is None else found.type


def decode_header(raw: bytes) -> SessionHeader | None:
    """The typed header, or None when its members are not as documented."""
    return decode_or_none(_header, raw)
