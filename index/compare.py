# ruff: noqa: S608 (statements are made of our own constants; values are always bound)
"""Row by row comparison of two indexes: the proof that one equals a rebuild."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

Fetch = Callable[[str], list[tuple[Any, ...]]]
"""Runs a query and returns its rows."""

PAGE_ROWS: Final = 4096

_STATE = (
    "one, sequence, offset, revision, leaf_moved, leaf, entries, newest, missing, cycles,"
    " derived, outside, twins, healed, label_waits, unknown_leaf_moves"
)
_IDENTITY = "one, journal_id, device, inode"

# Table, columns (the key first), literal form of the key.
TABLES: Final = (
    ("name", "id, kind, role, entries"),
    (
        "entry",
        "seq, id, own, parent, depth, jump, name, time, offset, stored, raw, revision, mark",
    ),
    ("loose", "seq, state, parent_id"),
    ("label", "target, label, entry"),
    ("label_wait", "target, label, entry"),
    ("about", "entry, target"),
    ("derived", "hash, count"),
    ("usage", "category, input, output, cache_read, cache_write, total_tokens, cost"),
)


def differences(ours: Fetch, theirs: Fetch, limit: int) -> list[str]:
    """Differences of all tables, at most ``limit``, as sentences with table, key and values."""
    found: list[str] = []
    for table, columns in (("state", _STATE), *TABLES):
        for line in _table(ours, theirs, table, columns):
            if len(found) >= limit:
                return found
            found.append(line)
    identities = [fetch(f"SELECT {_IDENTITY} FROM state") for fetch in (ours, theirs)]
    if all(rows and rows[0][1] is not None for rows in identities):
        found += _row("state", _IDENTITY.split(", "), identities[0][0], identities[1][0])
    return found[:limit]


def _table(ours: Fetch, theirs: Fetch, table: str, columns: str) -> Iterator[str]:
    names = columns.split(", ")
    left, right = _stream(ours, table, names), _stream(theirs, table, names)
    mine, other = next(left, None), next(right, None)
    while mine is not None or other is not None:
        if other is None or (mine is not None and mine[0] < other[0]):
            assert mine is not None
            yield f"{table} {mine[0]!r}: here {mine[1:]!r}, there no row"
            mine = next(left, None)
        elif mine is None or other[0] < mine[0]:
            yield f"{table} {other[0]!r}: here no row, there {other[1:]!r}"
            other = next(right, None)
        else:
            if mine != other:
                yield from _row(table, names, mine, other)
            mine, other = next(left, None), next(right, None)


def _row(
    table: str, names: list[str], mine: tuple[Any, ...], other: tuple[Any, ...]
) -> Iterator[str]:
    for name, here, there in zip(names, mine, other, strict=True):
        if here != there:
            yield f"{table} {mine[0]!r}: {name} here {here!r}, there {there!r}"


def _stream(fetch: Fetch, table: str, names: list[str]) -> Iterator[tuple[Any, ...]]:
    key = names[0]
    where = ""
    while True:
        rows = fetch(
            f"SELECT {', '.join(names)} FROM {table} {where} ORDER BY {key} LIMIT {PAGE_ROWS}"
        )
        yield from rows
        if len(rows) < PAGE_ROWS:
            return
        where = f"WHERE {key} > {_literal(rows[-1][0])}"


def _literal(value: int | str | bytes) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "CAST(x'" + value.encode().hex() + "' AS TEXT)"
    return str(value)
