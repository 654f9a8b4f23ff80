"""SQLite indexes of sessions: derived from journals, disposable, never trusted about content.

This package knows rows, not frames or files of sessions. It imports nothing else of Treering,
gets every limit as an argument and raises :class:`IndexFault` and :class:`IndexBusy` only.
"""

from treering.index.faults import IndexBusy, IndexFault
from treering.index.rows import (
    Counts,
    Entry,
    Identity,
    Label,
    Leaf,
    LeafMove,
    Position,
    Row,
    Usage,
)
from treering.index.session_index import SessionIndex

__all__ = [
    "Counts",
    "Entry",
    "Identity",
    "IndexBusy",
    "IndexFault",
    "Label",
    "Leaf",
    "LeafMove",
    "Position",
    "Row",
    "SessionIndex",
    "Usage",
]
