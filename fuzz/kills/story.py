"""What a writer does in one round, computed by the writer and, separately, by who judges it.

Everything follows from (seed, round), the position at the start and the ids that the session gave
to labels: the judge needs no word of the dead process beyond its acknowledgements.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

ALL_HOWS: Final = ("one", "one", "many", "many", "batch", "batch", "batch", "branch", "label")
"""The ways of changing a session, as often as they are chosen."""

_SMALL_SIZES: Final = (0, 16, 48, 400, 3008)


class Op(NamedTuple):
    """One call of a writer."""

    how: str
    """one, many, batch, branch, label or reopen."""
    ids: tuple[str, ...] = ()
    raws: tuple[bytes, ...] = ()
    target: str | None = None
    text: str | None = None


class Story:
    """The calls of one round, in order."""

    def __init__(
        self,
        seed: str,
        round_number: int,
        leaf: str | None,
        *,
        hows: Sequence[str],
        large: int,
    ) -> None:
        self._draw = random.Random(f"{seed}-{round_number}")
        self._prefix = f"r{round_number}-"
        self._hows, self._large = hows, large
        self._ids: list[str] = [] if leaf is None else [leaf]
        self._count = 0
        self.leaf = leaf

    def next(self) -> Op:
        """The next call; :meth:`done` takes it as made."""
        draw = self._draw
        how = draw.choice(self._hows)
        if how == "branch":
            return Op(how, target=draw.choice([None, *self._ids]))
        if how == "label" and self._ids:
            return Op(how, target=draw.choice(self._ids), text=draw.choice([None, "a", "b c"]))
        if how == "reopen":
            return Op(how)
        count = draw.randint(1, 8) if how in ("many", "batch") else 1
        ids, raws, parent = [], [], self.leaf
        for number in range(self._count, self._count + count):
            size = draw.choice((*_SMALL_SIZES, self._large))
            text = f"{draw.getrandbits(64):016x}" * (size // 16)
            ids.append(f"{self._prefix}{number}")
            raws.append(raw_of(ids[-1], parent, text))
            parent = ids[-1]
        return Op("one" if how == "label" else how, tuple(ids), tuple(raws))

    def done(self, op: Op, label_id: str | None = None) -> None:
        """The call has been made; ``label_id`` is what the session called a new label."""
        self._count += len(op.ids)
        if op.how == "branch":
            self.leaf = op.target
            return
        new = [*op.ids] if label_id is None else [label_id]
        self._ids = (self._ids + new)[-50:]
        self.leaf = new[-1] if new else self.leaf


def raw_of(entry_id: str, parent: str | None, text: str) -> bytes:
    """The exact bytes of one entry."""
    value = {
        "type": "custom",
        "id": entry_id,
        "parentId": parent,
        "timestamp": "2024-12-03T14:00:00.000Z",
        "customType": "kill",
        "data": text,
    }
    return json.dumps(value, separators=(", ", ":")).encode()


def items_of(op: Op, leaf: str | None) -> tuple[Hashable, ...]:
    """What the call puts into the session, in a form to compare with :func:`item_of`."""
    if op.how == "label":
        return (("label", leaf, op.target, op.text),)
    return op.raws


def item_of(raw: bytes) -> Hashable:
    """An entry that was found: its bytes, or of a label what its writer chose itself."""
    if b'"label"' in raw[:200]:
        found = json.loads(raw)
        if found.get("type") == "label" and set(found) <= _LABEL_MEMBERS:
            return ("label", found["parentId"], found["targetId"], found.get("label"))
    return raw


_LABEL_MEMBERS: Final = {"type", "id", "parentId", "timestamp", "targetId", "label"}
