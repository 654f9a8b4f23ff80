"""A naive model of the session index, random rows, and a journal made of rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from treering.index import LeafMove, Position, Row, SessionIndex, Usage

Rows = list[Row | LeafMove]


def row(sequence: int, own: str | None, parent: str | None = None, **other: Any) -> Row:
    """A row with plausible values for everything not given."""
    content = other.pop("content", f"{sequence}")
    values: dict[str, Any] = {
        "kind": "message",
        "role": "user",
        "timestamp_ms": 1_700_000_000_000 + sequence,
        "offset": 128 + 1000 * sequence,
        "stored": 500,
        "raw": 700,
        "revision": xxh3_128_digest(f"{sequence} {own} {parent}".encode("utf-8", "surrogatepass")),
        "flags": 0,
        "content_hash": xxh3_128_digest(content.encode()),
        "tree": True,
        "moves_leaf": True,
        "label": None,
        "usage": None,
    }
    values.update(other)
    return Row(sequence=sequence, id=own, parent_id=parent, **values)


def position_after(item: Row | LeafMove) -> Position:
    """The position when this is the last frame."""
    n = item.sequence
    return Position(n, 1000 * n + 900, n.to_bytes(16, "little"))


def load(index: SessionIndex, rows: Rows, chunks: Iterable[int] = ()) -> SessionIndex:
    """Apply rows in chunks of the given sizes (again and again), or all at once."""
    sizes = itertools.cycle(chunks or [len(rows) or 1])
    left = iter(rows)
    while chunk := list(itertools.islice(left, next(sizes))):
        index.apply(chunk, position_after(chunk[-1]))
    return index


def linear(count: int, start: int = 1) -> Rows:
    """A single branch of messages with 8-hex ids."""
    return [
        row(n, eight(n), eight(n - 1) if n > 1 else None, role=("user", "assistant")[n % 2])
        for n in range(start, start + count)
    ]


def eight(n: int) -> str:
    """A spread-out id of 8 hex digits."""
    return f"{n * 2654435761 % 2**32:08x}"


USABLE_ODD = ["a", "b", "c", "d", "e", "f", "é", "x" * 512]
UNUSABLE = ["", "nul\0", "\ud800", "y" * 513]


def random_rows(rnd: random.Random, count: int) -> Rows:
    """Rows in which everything that is rare in life is common."""
    ids = rnd.sample(USABLE_ODD, rnd.randint(2, len(USABLE_ODD))) + [str(n) for n in range(count)]
    ids = ids[: rnd.choice([3, rnd.randint(3, len(ids))])]
    contents = ["same", "other"]
    seen_derived: list[str] = []
    rows: Rows = []
    sequence = 0
    for _ in range(count):
        sequence += rnd.choice([1, 1, 1, 2, 5])
        if rnd.random() < 0.1:
            leaf = rnd.choice([None, "nowhere", "\ud800", *ids, *seen_derived])
            rows.append(LeafMove(sequence, leaf))
            continue
        content = rnd.choice(contents)
        key = xxh3_128_digest(content.encode())
        seen_derived.append(xxh3_128_hexdigest(key + rnd.randrange(3).to_bytes(4, "little")))
        rows.append(
            row(
                sequence,
                rnd.choice([None, *UNUSABLE, *ids, *ids, *ids, *ids, rnd.choice(seen_derived)]),
                rnd.choice([None, "", "\ud800", *ids, *ids]),
                content=content,
                kind=rnd.choice(["message", "label", "compaction", "", "\ud800k", "k" * 300]),
                role=rnd.choice([None, "user", "assistant", "toolResult", "r\0"]),
                timestamp_ms=rnd.choice([None, 5, -5, 2**63, 2**70, 1_700_000_000_000 + sequence]),
                raw=rnd.choice([500, 700]),
                flags=rnd.randrange(10),
                tree=rnd.random() > 0.1,
                moves_leaf=rnd.random() > 0.3,
                label=rnd.choice(
                    [None, None, (rnd.choice(["zz", *ids]), rnd.choice([None, "", "L", "\ud800"]))]
                ),
                usage=rnd.choice(
                    [
                        None,
                        ("assistant", Usage(1, 2, 3, 4, 10, rnd.random())),
                        ("child", Usage(2**63, -1, 2**62, 2**62, 0, float("nan"))),
                        ("summary", Usage(1, 1, 1, 1, 1, rnd.choice([1e308, -0.5]))),
                    ]
                ),
                about=rnd.choice([None, None, None, "\ud800", "", rnd.choice(ids)]),
            )
        )
    return rows


def shuffled_tree(rnd: random.Random, count: int) -> Rows:
    """A deep tree in a more or less random order, some of it bent into cycles."""
    parents = [rnd.randrange(max(0, n - 3), n) if n else None for n in range(count)]
    for _ in range(rnd.choice([0, 0, count // 10])):
        parents[rnd.randrange(count)] = rnd.randrange(count)
    order = list(range(count))
    for _ in range(rnd.choice([0, count // 8, count * 3])):
        one, two = rnd.randrange(count), rnd.randrange(count)
        order[one], order[two] = order[two], order[one]
    if rnd.random() < 0.3:
        order.reverse()
    kinds = ["message", "message", "compaction"]
    return [
        row(
            at,
            f"n{n}",
            None if parents[n] is None else f"n{parents[n]}",
            kind=kinds[n % 3],
            label=(f"n{rnd.randrange(count)}", rnd.choice(["L", "M", ""])) if n % 9 == 0 else None,
        )
        for at, n in enumerate(order, 1)
    ]


def usable(text: str | None) -> bool:
    """The rule, written another way."""
    if not text or len(text) > 512 or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Model:
    """The rules of content, slow and plain: everything is recomputed from whole lists."""

    def __init__(self, rows: Rows) -> None:
        self.rows: dict[int, Row] = {}
        self.address: dict[int, str] = {}
        self.parent: dict[int, int | None] = {}
        self.reason: dict[int, str | None] = {}
        self.labels: dict[int, tuple[str, int]] = {}
        self.leaf: tuple[bool, int | None] = (False, None)
        self.unknown_leaf_moves = 0
        self._used: dict[bytes, int] = {}
        self._waiting_labels: dict[str, tuple[str, int] | None] = {}
        for item in rows:
            if isinstance(item, LeafMove):
                self._move(item)
            else:
                self._add(item)

    def holder(self, own: str | None) -> int | None:
        found = [s for s, r in self.rows.items() if r.tree and r.id == own and usable(own)]
        found = found or [s for s, r in self.rows.items() if r.tree and self.address[s] == own]
        return max(found, default=None)

    def ancestors(self, sequence: int) -> list[int]:
        """From an entry up to its root."""
        up = [sequence]
        while (parent := self.parent[up[-1]]) is not None:
            up.append(parent)
        return up

    def _add(self, item: Row) -> None:
        sequence = item.sequence
        taken = set(self.address.values())
        if item.tree and usable(item.id) and item.id not in taken:
            assert item.id is not None
            self.address[sequence] = item.id
        else:
            n = self._used.get(item.content_hash, 0)
            while True:
                address = xxh3_128_hexdigest(item.content_hash + n.to_bytes(4, "little"))
                n += 1
                if address not in taken:
                    break
            self._used[item.content_hash] = n
            self.address[sequence] = address
        parent = reason = None
        if item.tree and item.parent_id:
            parent = self.holder(item.parent_id)
            if parent is None:
                own = usable(item.id) and item.id == item.parent_id
                reason = "cycle" if own else "missing"
        target = self.holder(item.label[0]) if item.label else None
        first = item.tree and usable(item.id)
        self.rows[sequence] = item
        self.parent[sequence], self.reason[sequence] = parent, reason
        if first:
            self._arrived(item.id, sequence)
        if item.tree and item.moves_leaf:
            self.leaf = (True, sequence)
        if item.label:
            self._label(item.label, target, sequence)

    def _arrived(self, own: str | None, sequence: int) -> None:
        above = self.ancestors(sequence)
        for waiting, why in self.reason.items():
            if why == "missing" and self.rows[waiting].parent_id == own:
                if waiting in above:
                    self.reason[waiting] = "cycle"
                else:
                    self.parent[waiting], self.reason[waiting] = sequence, None
        label = self._waiting_labels.pop(own or "", None)
        if label is not None:
            self.labels[sequence] = label

    def _label(self, label: tuple[str, str | None], target: int | None, sequence: int) -> None:
        name, text = label
        value = (text.encode("utf-8", "backslashreplace").decode(), sequence) if text else None
        if target is None:
            if usable(name):
                self._waiting_labels[name] = value
        elif value is None:
            self.labels.pop(target, None)
        else:
            self.labels[target] = value

    def _move(self, item: LeafMove) -> None:
        if item.leaf is None:
            self.leaf = (True, None)
            return
        by_address = {address: s for s, address in self.address.items()}
        found = by_address.get(item.leaf)
        if found is None or not self.rows[found].tree:
            self.unknown_leaf_moves += 1
        else:
            self.leaf = (True, found)


def pages(read: Any, size: int) -> Iterator[Any]:
    """All of a list that is paged by ``after``, whose items start with a sequence."""
    after = 0
    while page := read(after=after, limit=size):
        yield from page
        after = page[-1][0]
