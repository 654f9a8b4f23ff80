"""Which entries an owner may qualify, and how: a table, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from treering.engine.errors import InvalidEntry
from treering.engine.journal.format import FLAG_QUALIFICATION_SHIFT, QUALIFICATIONS
from treering.engine.json_text import decode_or_none
from treering.engine.session.admission import Admitted, admit


class _Message(msgspec.Struct):
    role: str = ""


class _Rest(msgspec.Struct, rename="camel"):
    message: _Message | None = None
    native_origin: dict[str, Any] | None = None
    assistant: dict[str, Any] | None = None

    def role(self) -> str:
        return "" if self.message is None else self.message.role


_rests = msgspec.json.Decoder(_Rest)
_CUSTOM: Final = ("custom", "custom_message")

_ALLOWED: Final[dict[str, Callable[[str, _Rest], bool]]] = {
    "native-admission": lambda kind, rest: (
        (kind in _CUSTOM or rest.role() in ("user", "custom")) and rest.native_origin is not None
    ),
    "native-recovery": lambda kind, rest: kind in _CUSTOM or rest.role() == "toolResult",
    "native-tool-execution": lambda kind, rest: (
        (kind == "tool_intent" and rest.assistant is not None) or rest.role() == "toolResult"
    ),
}


def qualified_entry(entry: Mapping[str, Any], qualification: str) -> Admitted:
    """The entry with the flags of its qualification.

    Raises:
        InvalidEntry: the qualification is not for such entries, or not for callers.
    """
    allowed = _ALLOWED.get(qualification) if isinstance(qualification, str) else None
    if allowed is None:
        raise InvalidEntry(f"entries are qualified as one of {', '.join(_ALLOWED)}")
    if not isinstance(entry, Mapping):
        raise InvalidEntry("a qualified entry is a mapping")
    admitted = admit(entry)
    if admitted.parent_given:
        raise InvalidEntry("a qualified entry hangs below the position; it names no parent")
    rest = decode_or_none(_rests, admitted.rest)
    if rest is None or not allowed(admitted.kind, rest):
        raise InvalidEntry(f"{qualification} is not for this entry of kind {admitted.kind!r}")
    flags = QUALIFICATIONS.index(qualification) << FLAG_QUALIFICATION_SHIFT
    return admitted._replace(flags=flags)
