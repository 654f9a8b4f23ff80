"""Entries of a path in a new session: what is left out is bridged, everything else stays as it is.

An entry whose parent is left out hangs below the nearest one that is kept: the value of its
``parentId`` is replaced. A compaction that keeps from an entry on that is left out keeps from the
next one on, which is the same. Every other byte stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from treering.engine.errors import Unsupported
from treering.engine.journal.format import Frame, Kind
from treering.engine.json_text import members, text_of
from treering.engine.session.facts import facts_of, usable_entry_id
from treering.engine.session.filling import row_of
from treering.index import Position, SessionIndex

_NO_DIGEST: Final = bytes(16)


def json_text(text: str | None) -> bytes:
    """A string, or null, as JSON."""
    return msgspec.json.encode(text)


def with_members(raw: bytes, edits: Mapping[str, bytes]) -> bytes:
    """The object with these values in place of its own; every other byte of it stays.

    A member that occurs several times gets the value each time; a new one follows the others.
    """
    begin, segments, end = members(raw)
    parts: list[bytes] = []
    for segment in segments:
        value = edits.get(segment.name)
        if value is None:
            parts.append(raw[segment.begin : segment.end])
        else:
            before, after = segment.value_begin, segment.value_end
            parts.append(raw[segment.begin : before] + value + raw[after : segment.end])
    there = {segment.name for segment in segments}
    parts += [b"%s:%s" % (json_text(n), v) for n, v in edits.items() if n not in there]
    return raw[: begin + 1] + b",".join(parts) + raw[end:]


def value_of(raw: bytes, name: str) -> bytes:
    """The JSON of a member, the last one of that name; ``null`` when there is none."""
    found = b"null"
    for segment in members(raw)[1]:
        if segment.name == name:
            found = raw[segment.value_begin : segment.value_end]
    return found


class Names:
    """What ids mean in the new session. Every entry of the source has an id of its own."""

    def add(self, raw: bytes, entry_id: str) -> str:
        """An entry was written; a handle for it."""
        del raw
        return entry_id

    def is_meant(self, name: str | None, handle: str) -> bool:
        """Whether an entry written now would find that one by this name."""
        return name == handle

    def name_of(self, handle: str) -> str | None:
        """A name by which an entry written now finds that one; None when there is none."""
        return handle

    def address_of(self, handle: str) -> str:
        """The id that addresses it."""
        return handle


class AmbiguousNames(Names):
    """The same where entries share an id or have none: an index of the new session, in memory."""

    def __init__(self) -> None:
        self._index = SessionIndex.memory()
        self._last = 0

    def add(self, raw: bytes, entry_id: str) -> str:
        """See :meth:`Names.add`."""
        del entry_id
        self._last += 1
        size = len(raw)
        frame = Frame(0, Kind.ENTRY, 0, 0, size, size, self._last, 1, 0, _NO_DIGEST[:8], _NO_DIGEST)
        self._index.apply([row_of(frame, raw)], Position(self._last, 0, _NO_DIGEST))
        return str(self._last)

    def is_meant(self, name: str | None, handle: str) -> bool:
        """See :meth:`Names.is_meant`."""
        return name is not None and self._index.holder(name) == int(handle)

    def name_of(self, handle: str) -> str | None:
        """See :meth:`Names.name_of`."""
        found = self._index.by_sequence(int(handle))
        assert found is not None
        return next((n for n in (found.own_id, found.id) if self.is_meant(n, handle)), None)

    def address_of(self, handle: str) -> str:
        """See :meth:`Names.address_of`."""
        found = self._index.by_sequence(int(handle))
        assert found is not None
        return found.id


class Chain:
    """The entries of one path, root first, each below the one before it that is kept."""

    def __init__(self, names: Names, path: str) -> None:
        self._names = names
        self._path = path
        self._left_out_root: bytes | None = None
        self._left_out: list[str] = []
        self._instead: dict[str, str] = {}
        self.last: str | None = None
        """Handle of the last entry that is kept."""
        self.relinked = 0
        """Entries that were changed for what is left out."""

    def leave_out(self, raw: bytes, entry_id: str) -> None:
        """This entry is not copied. What it names above itself is what those below it name."""
        self._left_out.append(entry_id)
        if self.last is None and self._left_out_root is None:
            self._left_out_root = value_of(raw, "parentId")

    def keep(self, raw: bytes, entry_id: str) -> bytes:
        """The bytes to write for the next entry."""
        facts = facts_of(raw)
        edits = self._parent_for(raw, facts.parent_id)
        if facts.kind == "compaction" and self._instead:
            kept = text_of(value_of(raw, "firstKeptEntryId"))
            if isinstance(kept, str) and kept in self._instead:
                edits["firstKeptEntryId"] = json_text(self._instead[kept])
        written = with_members(raw, edits) if edits else raw
        self.relinked += bool(edits)
        self.last = self._names.add(written, entry_id)
        if self._left_out:
            address = self._names.address_of(self.last)
            self._instead.update(dict.fromkeys(self._left_out, address))
            self._left_out.clear()
        return written

    def append(self, raw: bytes, entry_id: str, **edits: bytes) -> bytes:
        """The bytes of an entry that is new: with that id, below the last one."""
        values = {"id": json_text(entry_id), "parentId": json_text(self._name()), **edits}
        written = with_members(raw, values)
        self.last = self._names.add(written, entry_id)
        return written

    def _parent_for(self, raw: bytes, parent_id: str | None) -> dict[str, bytes]:
        """The parent that the entry must name, where it does not."""
        if self.last is not None:
            if self._names.is_meant(parent_id, self.last):
                return {}
            return {"parentId": json_text(self._name())}
        if self._left_out_root is None or value_of(raw, "parentId") == self._left_out_root:
            return {}  # the first entry of the path names what it names
        return {"parentId": self._left_out_root}

    def _name(self) -> str | None:
        if self.last is None:
            return None
        name = self._names.name_of(self.last)
        if name is None or not usable_entry_id(name):
            raise Unsupported(
                "two entries of the path cannot be told apart by their ids in a copy",
                path=self._path,
                next_step="fork the whole session",
            )
        return name
