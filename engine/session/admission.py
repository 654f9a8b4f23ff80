"""What callers hand in becomes bytes that can be stored, or a typed error before anything is.

Accepted: a mapping, a typed entry, or the exact bytes of one JSON object. What JSON cannot hold
(NaN, Infinity, lone surrogates, over-deep nesting) is refused with the path inside the value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from treering.engine.errors import InvalidEntry, InvalidId, LimitExceeded
from treering.engine.json_text import BadRecordError, check
from treering.engine.limits import ENTRY_ID_CHARS_MAX, JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX
from treering.engine.session.entries import EntryBase

EntryInput = Mapping[str, Any] | EntryBase | bytes

_FORGEABLE: Final = frozenset(("requestOutput", "requestOutputs", "plannerRequest"))
"""Members that only the engine's own verbs may write."""


class References(msgspec.Struct, rename="camel"):
    """Members that name other entries and are checked before writing."""

    target_id: str | None = None
    first_kept_entry_id: str | None = None


class _Head(msgspec.Struct, rename="camel", gc=False):
    type: str
    id: str
    parent_id: str | None
    timestamp: str


class Admitted(NamedTuple):
    """An entry that can be stored as soon as its place is known.

    ``rest`` is the JSON of the members besides type, id, parentId and timestamp; for exact bytes
    ``raw`` is what is stored.
    """

    kind: str
    rest: bytes
    raw: bytes | None
    id: str | None
    parent_given: bool
    parent: str | None
    timestamp: str | None
    references: References | None
    flags: int = 0
    """Of the frame: how the engine qualifies the entry."""

    @property
    def is_request(self) -> bool:
        """Request records do not move the leaf; they have a frame kind of their own."""
        return self.kind == "request"

    def payload(self, entry_id: str, parent: str | None, timestamp: str) -> bytes:
        """The bytes to store."""
        if self.raw is not None:
            return self.raw
        head = _encode(_Head(self.kind, entry_id, parent, timestamp))
        payload = head if self.rest == b"{}" else head[:-1] + b"," + self.rest[1:]
        check_payload_size(len(payload))
        return payload


_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_FINITE: Final = frozenset((str, int, bool, type(None)))
_encode = msgspec.json.encode
_references = msgspec.json.Decoder(References)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def admit(entry: EntryInput, *, verified: bool = False) -> Admitted:
    """Check one entry.

    ``verified`` says that the engine itself wrote the entry, or that exact bytes come from a
    verified frame of the same journal: then members that only the engine writes are true.

    Raises:
        InvalidEntry: it cannot be stored as it is; says where in the value.
        LimitExceeded: larger than a frame, or nested deeper than 128.
    """
    if isinstance(entry, (bytes, bytearray, memoryview)):
        return _admit_bytes(bytes(entry), verified=verified)
    if isinstance(entry, (EntryBase, Mapping)):
        return _admit_members(_plain(entry), verified=verified)
    raise InvalidEntry(f"an entry is a mapping, a typed entry or bytes, not {type(entry).__name__}")


def _plain(entry: EntryBase | Mapping[str, Any]) -> dict[str, Any]:
    """The entry as dicts, lists and scalars with string keys: what is checked is what is stored."""
    value = dict(entry) if isinstance(entry, Mapping) else entry
    _check_depth(value)
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except RecursionError:
        raise _too_deep(None) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidEntry(f"the entry is not JSON: {error}") from None
    assert isinstance(plain, dict)
    return plain


def _admit_members(values: dict[str, Any], *, verified: bool) -> Admitted:
    kind = values.pop("type", None)
    if not isinstance(kind, str) or not kind:
        raise InvalidEntry("an entry needs a type")
    entry_id = values.pop("id", None)
    if entry_id is not None:
        check_entry_id(entry_id)
    parent_given = "parentId" in values
    parent = values.pop("parentId", None)
    if parent is not None and not isinstance(parent, str):
        raise InvalidEntry("parentId must be a string or null")
    timestamp = values.pop("timestamp", None)
    if timestamp is not None and not isinstance(timestamp, str):
        raise InvalidEntry("timestamp must be an ISO string")
    _check_kind(kind)
    if not verified:
        _check_forged(values, values.get("details"))
        if kind == "request":
            _check_no_event(values.get("request"))
    rest = _encode_checked(values)
    for text in (kind, parent, timestamp):
        if text is not None and not text.isascii():
            _encode_checked(text)
    references = _references_in(rest) if kind in _REFERRING else None
    return Admitted(kind, rest, None, entry_id, parent_given, parent, timestamp, references)


def _admit_bytes(raw: bytes, *, verified: bool) -> Admitted:
    check_payload_size(len(raw))
    if b"\n" in raw:
        raise InvalidEntry("the bytes of an entry must be one line (no LF outside strings)")
    try:
        found = check(raw)
    except BadRecordError as error:
        if error.depth is not None:
            raise LimitExceeded(
                f"the entry {error.reason}", limit=JSON_DEPTH_MAX, need=error.depth
            ) from None
        raise InvalidEntry(f"the entry {error.reason}") from None
    if found.lone_surrogates:
        raise InvalidEntry("the entry holds lone surrogates, which no UTF-8 text can")
    if not isinstance(found.type, str) or not found.type or not isinstance(found.id, str):
        raise InvalidEntry("exact bytes need a type and an id of their own")
    check_entry_id(found.id)
    parent = found.parentId if isinstance(found.parentId, str) else None
    _check_kind(found.type)
    if not verified:
        members = _members.decode(raw)
        _check_forged(members, _object_in(members, "details"))
        if found.type == "request":
            _check_no_event(_object_in(members, "request"))
    references = _references_in(raw) if found.type in _REFERRING else None
    timestamp = found.timestamp if isinstance(found.timestamp, str) else None
    return Admitted(
        found.type,
        raw,
        raw,
        found.id,
        parent_given=True,
        parent=parent,
        timestamp=timestamp,
        references=references,
    )


_REFERRING: Final = frozenset(("label", "compaction", "child_usage_attributed"))


def check_entry_id(entry_id: object) -> str:
    """The id, when entries may be addressed by it.

    Raises:
        InvalidId: not a string of 1 to 512 characters without NUL and lone surrogates.
    """
    if not isinstance(entry_id, str) or not 0 < len(entry_id) <= ENTRY_ID_CHARS_MAX:
        raise InvalidId(f"an entry id is a string of 1 to {ENTRY_ID_CHARS_MAX} characters")
    if "\0" in entry_id or any("\ud800" <= c <= "\udfff" for c in entry_id):
        raise InvalidId("an entry id holds no NUL and no lone surrogate")
    return entry_id


def check_payload_size(size: int) -> None:
    """Raise LimitExceeded when a payload does not fit into a frame."""
    if size > PAYLOAD_BYTES_MAX:
        raise LimitExceeded(
            f"the entry has {size} bytes; a frame holds {PAYLOAD_BYTES_MAX}",
            limit=PAYLOAD_BYTES_MAX,
            need=size,
        )


def _check_kind(kind: str) -> None:
    if kind == "session":
        raise InvalidEntry(
            "a session header is written when the session is created, never appended"
        )


def _check_forged(members: Mapping[str, object], details: object) -> None:
    if not _FORGEABLE.isdisjoint(members):
        name = min(_FORGEABLE.intersection(members))
        raise InvalidEntry(f"{name} is written by the engine only, where it is true")
    if isinstance(details, Mapping) and "baseContextEpoch" in details:
        raise InvalidEntry(
            "details.baseContextEpoch is written by the engine only, where it is true"
        )


def _check_no_event(request: object) -> None:
    """A record of an attempt speaks for or against links: it comes from a capture."""
    if isinstance(request, Mapping) and "attemptId" in request:
        raise InvalidEntry(
            "records of requests are written by a capture (admit, settle), not appended"
        )


def _object_in(members: Mapping[str, msgspec.Raw], name: str) -> object:
    raw = members.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None


def _references_in(raw: bytes) -> References:
    try:
        return _references.decode(raw)
    except msgspec.MsgspecError as error:
        raise InvalidEntry(f"a reference is not an entry id: {error}") from None


def _encode_checked(value: object) -> bytes:
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:
        raise InvalidEntry(f"lone surrogate at {_find(value, _is_surrogate)}") from None
    except RecursionError:
        raise _too_deep(None) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidEntry(f"the entry is not JSON: {error}") from None
    # msgspec writes NaN and Infinity as null, silently; only then is the value looked through.
    if b"null" in encoded and _holds_not_finite(value):
        where = _find(value, _is_not_finite)
        raise InvalidEntry(f"NaN or Infinity at {where}; JSON has no such number")
    return encoded


def _check_depth(value: object) -> None:
    """Measure the nesting of containers without recursion, before anything recurses over them.

    The verdict is the same on every stack, and a thread with a small one is not overrun.
    """
    stack: list[Iterator[object]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            if type(item) in _SCALARS:
                continue
            members = item.values() if isinstance(item, dict) else _members_of(item)
            if members is None:
                continue
            if len(stack) > JSON_DEPTH_MAX:
                raise _too_deep(len(stack))
            if members:
                stack.append(iter(members))
                break
        else:
            stack.pop()


def _members_of(item: object) -> Collection[object] | None:
    """What is inside a container (but a dict) that can be stored; None for anything else."""
    if isinstance(item, (list, tuple, set, frozenset)):
        return item
    kind: Any = type(item)
    if isinstance(item, msgspec.Struct):
        names: Sequence[str] = kind.__struct_fields__
    elif hasattr(kind, "__dataclass_fields__"):
        names = kind.__dataclass_fields__
    elif hasattr(kind, "__attrs_attrs__"):
        names = [attribute.name for attribute in kind.__attrs_attrs__]
    else:
        return None
    return [getattr(item, name, None) for name in names]


def _too_deep(depth: int | None) -> LimitExceeded:
    return LimitExceeded(
        f"the entry nests deeper than {JSON_DEPTH_MAX}", limit=JSON_DEPTH_MAX, need=depth
    )


def _holds_not_finite(value: object) -> bool:
    """Whether :func:`_find` would find such a number; without the path, which takes long."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack += [member for member in item.values() if type(member) not in _FINITE]
        elif isinstance(item, (list, tuple)):
            stack += [member for member in item if type(member) not in _FINITE]
        elif _is_not_finite(item):
            return True
    return False


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_surrogate(value: object) -> bool:
    return isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)


def _find(value: object, wanted: Any) -> str | None:
    """The path of the first member that ``wanted`` accepts, without recursion."""
    stack: list[tuple[str, object]] = [("$", value)]
    while stack:
        path, item = stack.pop()
        if wanted(item):
            return path
        if isinstance(item, Mapping):
            for key, member in item.items():
                if wanted(key):
                    return f"a key of {path}"
                stack.append((f"{path}.{key}", member))
        elif isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
            stack += [(f"{path}[{i}]", member) for i, member in enumerate(item)]
    return None
