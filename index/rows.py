"""Rows that go into a session index, and the answers that come out of it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypedDict

ID_CHARS_MAX: Final = 512
"""Characters of an own id that can address an entry; a longer one stays data of the journal."""

INT_MAX: Final = 2**63 - 1
"""Largest integer that SQLite stores."""


class Usage(NamedTuple):
    """Token figures of one entry, or their totals. ``cost`` is in the journal's own currency."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    total_tokens: int
    cost: float


class Row(NamedTuple):
    """One ENTRY or REQUEST frame that became visible, in journal order."""

    sequence: int
    id: str | None
    """Own id in the payload; None if missing or not a string."""
    parent_id: str | None
    """None or "" is a true root."""
    kind: str
    """Payload "type", "" when absent."""
    role: str | None
    """Role of the message, for kind "message"."""
    timestamp_ms: int | None
    offset: int
    """File offset of the frame, bytes."""
    stored: int
    """Stored payload length, bytes."""
    raw: int
    """Decoded payload length, bytes."""
    revision: bytes
    """Digest of the frame, 16 bytes."""
    flags: int
    """Bit 0 retained-import, bits 1..3 qualification 0..4."""
    content_hash: bytes
    """XXH3-128 of the payload, 16 bytes (for derived ids)."""
    tree: bool
    """False for an entry outside the tree (a second header): no parent, no child, never leaf."""
    moves_leaf: bool
    label: tuple[str, str | None] | None
    """Label entries: (target id, label); None or "" clears."""
    usage: tuple[str, Usage] | None
    """(category, figures); categories are 'assistant', 'summary' and 'child'."""
    about: str | None = None
    """Attributions of child usage: the id that they name as their target."""


class LeafMove(NamedTuple):
    """A LEAF frame: the leaf becomes the entry of that id; None is "before any entry"."""

    sequence: int
    leaf: str | None


class Position(NamedTuple):
    """The last indexed frame: its sequence, an offset in the journal (bytes), its revision.

    Only kept and given back: whether the offset is where the frame starts or ends is the caller's.
    """

    sequence: int
    offset: int
    revision: bytes


class Identity(NamedTuple):
    """The journal an index belongs to."""

    journal_id: bytes
    device: int
    inode: int


class Leaf(NamedTuple):
    """The current leaf. ``moved`` is False while nothing has ever set one."""

    moved: bool
    sequence: int | None
    """None is "before any entry"."""


class Label(NamedTuple):
    """The label that holds for an entry."""

    target: int
    label: str
    entry: int
    """Sequence of the label entry that set it."""
    timestamp_ms: int | None
    """Of the label entry."""


class Entry(NamedTuple):
    """What is known of an indexed entry. Offsets and lengths in bytes."""

    sequence: int
    id: str
    """The id that addresses it: its own, or the derived one."""
    own_id: str | None
    """Its own id, only when that differs from ``id``."""
    parent: int | None
    depth: int
    """0 for a root (true, unresolved, or outside the tree)."""
    kind: str
    role: str | None
    timestamp_ms: int | None
    offset: int
    stored: int
    raw: int
    revision: bytes
    flags: int
    unresolved: Literal["missing", "cycle"] | None
    tree: bool


class Counts(TypedDict):
    """Numbers of rows, kept by delta."""

    entries: int
    kinds: dict[str, int]
    messages: int
    unresolved: int
    missing: int
    cycles: int
    derived: int
    outside: int
    unknown_leaf_moves: int


# An entry's `mark`: the row's flags, its state in the tree, and whether its id is derived.
FLAGS: Final = 0x0F
STATE: Final = 0x70
MISSING: Final = 0x10
CYCLE: Final = 0x20
OUTSIDE: Final = 0x30
DIRTY: Final = 0x40
"""Healed, depths below it not yet recomputed: only inside a transaction, or during a build."""
DERIVED: Final = 0x80


def usable_id(text: str) -> bool:
    """Whether a string can be an id here: 1..512 characters, valid UTF-8, no NUL."""
    if not isinstance(text, str) or not 0 < len(text) <= ID_CHARS_MAX or "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def storable(text: str) -> str:
    """The string with lone surrogates and NULs escaped: what SQLite can keep and give back."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
