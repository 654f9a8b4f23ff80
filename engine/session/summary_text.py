"""The text that a branch summary is made from, and the text that it becomes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from treering.engine.json_text import clean
from treering.engine.session.facts import SUMMARY_KINDS
from treering.engine.session.texts import image_count, json_text, whole_text

CHARS_PER_TOKEN: Final = 4
IMAGE_CHARS: Final = 4_800
"""What an image counts for in an estimate."""

NOTHING_SAID: Final = "No content to summarize"
"""The summary of a branch on which nobody said anything."""

PREAMBLE: Final = (
    "Before this point the conversation went another way, which was then left. What happened there:"
)
"""Stands before a stored summary, so that a model knows what it reads."""

DEFAULT_INSTRUCTIONS: Final = """\
The conversation above is a branch that is being left; work goes on elsewhere, by someone who will
not see it. Write down what they need, briefly and exactly:

1. Goal: what the user wanted here.
2. Done: what was tried and what came of it, changes that remain included.
3. Decided: choices that were made, and why; constraints and preferences of the user.
4. Open: what is unfinished or did not work, and what would have come next.

Keep names of files, functions, commands and error messages as they stand there. Add nothing that
is not in the conversation, skip a point with nothing under it, and do not continue the work."""
"""What a summariser is asked for when the caller has no instructions of their own."""

_NOT_FOR_MODELS: Final = frozenset(
    (
        "session_slash_command",
        "session_slash_command_result",
        "compaction_outcome",
        "refinement_outcome",
    )
)
"""Custom messages that no model is shown."""

_READING: Final = frozenset(("read",))
_WRITING: Final = frozenset(("write", "edit"))


class Said(NamedTuple):
    """What an entry contributes: its text, and an estimate of its tokens."""

    text: str
    tokens: int


def instructed(custom: str | None, *, replace: bool) -> str:
    """The instructions of a request: the default ones, with a focus, or the caller's own."""
    focus = (custom or "").strip()
    if not focus:
        return DEFAULT_INSTRUCTIONS
    if replace:
        return focus
    return f"{DEFAULT_INSTRUCTIONS}\n\nPay particular attention to this: {focus}"


def composed(text: str, read_files: tuple[str, ...], modified_files: tuple[str, ...]) -> str:
    """A summary as it is stored: where it comes from, what it says, the files it is about."""
    parts = [PREAMBLE, text.strip()]
    for title, names in (("Files read:", read_files), ("Files changed:", modified_files)):
        if names:
            parts.append("\n".join((title, *(f"- {name}" for name in names))))
    return "\n\n".join(parts)


def said_in(members: dict[str, Any]) -> Said | None:
    """What an entry says in a conversation; None when it is not part of one.

    Results of tools are not: the calls, with the beginning of their arguments, tell what was done.
    """
    kind = members.get("type")
    if kind == "message":
        message = members.get("message")
        return _message(message) if isinstance(message, dict) else None
    if kind == "custom_message":
        return _custom(members)
    return _summary(members) if kind in SUMMARY_KINDS else None


def _message(message: dict[str, Any]) -> Said | None:
    role, content = message.get("role"), message.get("content")
    if role == "user":
        return _said("user", whole_text(content), image_count(content))
    if role == "assistant":
        return _assistant(content)
    if role == "bashExecution":
        if message.get("excludeFromContext") is True:
            return None
        command, output = _string(message.get("command")), _string(message.get("output"))
        return _said("user ran a command", f"$ {command}\n{output}".rstrip())
    if role == "custom":
        return _custom(message)
    if role in ("branchSummary", "compactionSummary"):
        return _summary(message)
    return None


def _assistant(content: Any) -> Said | None:
    parts = []
    for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text":
            parts.append(_string(block.get("text")))
        elif kind == "thinking":
            thought = _string(block.get("thinking"))
            parts.append(f"(thinking) {thought}" if thought.strip() else "")
        elif kind == "toolCall":
            call = f"{_string(block.get('name'))}({json_text(block.get('arguments'))})"
            parts.append(f"(calls) {call}")
    return _said("assistant", "\n".join(part for part in parts if part.strip()))


def _custom(holder: dict[str, Any]) -> Said | None:
    custom_type = holder.get("customType")
    if custom_type in _NOT_FOR_MODELS:
        return None
    content = holder.get("content")
    name = f"note of {custom_type}" if isinstance(custom_type, str) else "note"
    return _said(name, whole_text(content), image_count(content))


def _summary(holder: dict[str, Any]) -> Said | None:
    return _said("earlier summary", _string(holder.get("summary")))


def _said(speaker: str, text: str, images: int = 0) -> Said | None:
    if not text.strip() and not images:
        return None
    shown = text + (" [image]" * images)
    chars = len(text) + images * IMAGE_CHARS
    return Said(clean(f"[{speaker}]\n{shown.strip()}"), -(-chars // CHARS_PER_TOKEN))


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


class Files:
    """Which files a branch read and changed, from its tool calls and its earlier summaries."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._modified: set[str] = set()

    @property
    def read(self) -> tuple[str, ...]:
        """Files that were read and not changed, sorted."""
        return tuple(sorted(self._read - self._modified))

    @property
    def modified(self) -> tuple[str, ...]:
        """Files that were changed, sorted."""
        return tuple(sorted(self._modified))

    def add_summary(self, members: dict[str, Any]) -> None:
        """Take over the lists of an earlier summary, unless an extension made it."""
        if members.get("type") not in SUMMARY_KINDS:
            return
        details = members.get("details")
        if members.get("fromHook") is True or not isinstance(details, dict):
            return
        self._read.update(_names(details.get("readFiles")))
        self._modified.update(_names(details.get("modifiedFiles")))

    def add_calls(self, members: dict[str, Any]) -> None:
        """Take in the files that an assistant's tool calls name."""
        message = members.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, dict) or block.get("type") != "toolCall":
                continue
            arguments, name = block.get("arguments"), block.get("name")
            path = arguments.get("path") if isinstance(arguments, dict) else None
            if not isinstance(path, str) or not path or not isinstance(name, str):
                continue
            if name in _READING:
                self._read.add(clean(path))
            elif name in _WRITING:
                self._modified.add(clean(path))


def _names(value: Any) -> list[str]:
    if not isinstance(value, list):
        return []
    return [clean(name) for name in value if isinstance(name, str)]
