"""Links from what a model's answer became to the request that it came from.

A link is a token of this process, made only from requests whose records were all written. It is
used once, by the append of the entry that the answer became, and only while the session stands
where it stood: after a move of the position to another branch, a recovery or a change of owner it
is stale. Nothing in an entry that a caller hands in can claim what a token proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from treering.engine.errors import Conflict, Invalid, OutcomeUnknown, TreeringError
from treering.engine.json_text import decode_or_none
from treering.engine.session.admission import Admitted, admit
from treering.engine.session.capture import SourceRef
from treering.engine.session.link_slots import BRANCH, MAIN, PARTS, PLANNER, REFINEMENT, Slot
from treering.engine.session.plan import Appended, append_one
from treering.engine.session.session import Session

_MAKE: Final = object()


class Origin(NamedTuple):
    """Where the requests of a link were captured."""

    session: Session
    selections: int
    source: SourceRef


class OutputLink:
    """Proof that requests were recorded; made by ``Operation.output_link``, used once."""

    __slots__ = ("_body", "_detail", "_linked", "_origin", "_purpose", "_used")

    def __init__(
        self, make: object, origin: Origin, body: dict[str, Any], purpose: str, detail: str | None
    ) -> None:
        if make is not _MAKE:
            raise TypeError("links are made by operations")
        self._origin = origin
        self._body = body
        self._used = False
        self._purpose = purpose
        self._detail = detail
        self._linked: str | None = None

    @property
    def purpose(self) -> str:
        """What its requests were for."""
        return self._purpose

    @property
    def detail(self) -> str | None:
        """What they were for in detail."""
        return self._detail

    @property
    def attempt_ids(self) -> tuple[str, ...]:
        """The attempts that it names."""
        return tuple(self._body["attemptIds"])

    @property
    def linked_entry_id(self) -> str | None:
        """The entry that carries it. None while none does: an append with a stale link, or with
        one that was used, is the same append without it."""
        return self._linked

    def __copy__(self) -> NoReturn:
        raise TypeError("a link cannot be copied")

    def __deepcopy__(self, _: object) -> NoReturn:
        raise TypeError("a link cannot be copied")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a link does not outlive its process")


def make_link(
    origin: Origin, operation_id: str, attempt_ids: Sequence[str], purpose: str, detail: str | None
) -> OutputLink:
    """For operations alone."""
    body = {
        "operationId": operation_id,
        "attemptIds": list(attempt_ids),
        "source": origin.source.as_json(),
    }
    return OutputLink(_MAKE, origin, body, purpose, detail)


def check_fits(link: object, slot: Slot) -> OutputLink:
    """The link, when its requests were made for what the slot is.

    Raises:
        Invalid: it is no link, or one of another purpose; nothing was written.
    """
    if not isinstance(link, OutputLink):
        raise Invalid(f"a link is what Operation.output_link gives, not {type(link).__name__}")
    right = link.purpose == slot.purpose and slot.detail in (None, link.detail)
    if not right:
        purpose = "/".join(filter(None, (link.purpose, link.detail)))
        raise Invalid(f"{slot.name} has no place for the link of a request for {purpose}")
    return link


def _is_current(link: OutputLink, session: Session) -> bool:
    origin = link._origin
    return (
        not link._used
        and origin.session is session
        and origin.selections == session.moment().selections
    )


@contextmanager
def _spent(links: Sequence[OutputLink]) -> Iterator[None]:
    """The block appends; the links are used up, unless nothing was stored."""
    for link in links:
        link._used = True
    try:
        yield
    except OutcomeUnknown:
        raise
    except TreeringError:
        for link in links:
            link._used = False
        raise


class LinkedEntry:
    """One append with a link: made before its turn, decided at it."""

    def __init__(self, plain: Admitted, member: str, link: OutputLink) -> None:
        self._link = link
        self._plain = plain
        self._linked = _with_member(plain, member, link._body)

    def append(self, session: Session) -> Appended:
        """In the writer's turn: with the link, or without it when it is stale."""
        session.hold()
        try:
            link = self._link
            if not _is_current(link, session):
                return append_one(session, self._plain)
            with _spent([link]):
                added = append_one(session, self._linked)
            link._linked = added.id
            return added
        finally:
            session.let_go()


def _with_member(entry: Admitted, name: str, value: Any) -> Admitted:
    """The entry with one member more, which only the engine writes."""
    member = b',"%s":' % name.encode() + msgspec.json.encode(value)
    return entry._replace(rest=entry.rest[:-1] + member + b"}")


def linked_message(message: Any, link: object) -> LinkedEntry:
    """An assistant message with the link of the main request that it answers.

    Raises:
        Invalid: no message of an assistant, or a link that does not fit.
    """
    plain = admit({"type": "message", "message": message})
    found = decode_or_none(_roles, plain.rest)
    if found is None or found.message.role != "assistant":
        raise Invalid("only a message of the assistant can carry a link")
    return LinkedEntry(plain, "requestOutput", check_fits(link, MAIN))


def linked_branch_summary(entry: dict[str, Any], link: object) -> LinkedEntry:
    """A branch summary with the link of the request that wrote it.

    Raises:
        Invalid: it comes from a hook, or the link does not fit.
    """
    _check_no_hook(entry)
    return LinkedEntry(admit(entry), "requestOutput", check_fits(link, BRANCH))


def linked_refinement(result: Any, link: object) -> LinkedEntry:
    """The result of a refinement with the link of its planner's request.

    Raises:
        Invalid: it is a rollback, or the link does not fit.
    """
    plain = admit(refinement(result))
    found = decode_or_none(_refinements, plain.rest)
    if found is None or "rollbackOf" in found.data:
        raise Invalid("only the result of a planner can carry a link, not a rollback")
    return LinkedEntry(plain, "plannerRequest", check_fits(link, PLANNER))


def refinement(result: Any) -> dict[str, Any]:
    """The entry of ``append_refinement``."""
    return {"type": "custom", "customType": REFINEMENT, "data": result}


class LinkedCompaction:
    """A compaction with the links of its parts. There is no compaction without them: when the
    session is not where it was captured any more, nothing is written."""

    def __init__(
        self,
        entry: dict[str, Any],
        links: Sequence[tuple[str, object]],
        *,
        origin: Origin | None = None,
        flags: int = 0,
    ) -> None:
        """``origin`` and ``flags`` are those of a context epoch."""
        if links:
            _check_no_hook(entry)
        # Now, whole: what the caller does to its objects afterwards has no effect.
        admitted = admit(entry, verified=origin is not None)
        self._entry = admitted._replace(flags=flags)
        self._origins = [] if origin is None else [origin]
        self._links: list[tuple[str, OutputLink]] = []
        for pair in links or ():
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
                raise Invalid(f"links are pairs of a part and a link, not {pair!r}")
            part, link = pair
            if part not in PARTS:
                raise Invalid(f"a part is one of {', '.join(PARTS)}, not {part!r}")
            if any(link is other for _, other in self._links):
                raise Invalid("a link is used once")
            self._links.append((part, check_fits(link, PARTS[part])))
        self._origins += [link._origin for _, link in self._links]
        if any(one != self._origins[0] for one in self._origins):
            raise Invalid("the links of one compaction come from one capture")

    def check(self, session: Session) -> None:
        """Raise Conflict unless the session stands where this was captured."""
        for origin in self._origins[:1]:
            here, leaf = origin.session is session, origin.source.leaf_id
            if not here or session.moment()[::2] != (leaf, origin.selections):
                raise Conflict(
                    "the session is not where this compaction was captured",
                    path=session.path,
                    next_step="capture it again",
                )

    def append(self, session: Session) -> Appended:
        """In the writer's turn.

        Raises:
            Conflict: the position, branch or owner is not that of the capture; nothing was
                written.
        """
        session.hold()
        try:
            self.check(session)
            links = [(part, link) for part, link in self._links if not link._used]
            outputs = [{**link._body, "part": part} for part, link in links]
            entry = self._entry
            if outputs:
                entry = _with_member(entry, "requestOutputs", outputs)
            with _spent([link for _, link in links]):
                added = append_one(session, entry)
            for _, link in links:
                link._linked = added.id
            return added
        finally:
            session.let_go()


def _check_no_hook(entry: dict[str, Any]) -> None:
    if entry.get("fromHook"):
        raise Invalid("a summary that comes from a hook has no link")


class _Role(msgspec.Struct):
    role: str


class _Message(msgspec.Struct):
    message: _Role


class _Refinement(msgspec.Struct):
    data: dict[str, msgspec.Raw]


_roles = msgspec.json.Decoder(_Message)
_refinements = msgspec.json.Decoder(_Refinement)
