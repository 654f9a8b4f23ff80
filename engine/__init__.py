"""The public API of Treering."""

from treering.engine.errors import (
    AcknowledgedDataLost,
    Ambiguous,
    Closed,
    Conflict,
    Damaged,
    Invalid,
    InvalidEntry,
    InvalidId,
    InvalidSource,
    LimitExceeded,
    NotAJournal,
    NotFound,
    OutcomeUnknown,
    Owned,
    Poisoned,
    ReadOnly,
    SourceChanged,
    StorageError,
    StorageFull,
    TreeringError,
    Undecodable,
    Unsupported,
)
from treering.engine.home import Store
from treering.engine.journal.recovery import Report
from treering.engine.journal.repair import RepairResult
from treering.engine.session.entries import SessionHeader, UnknownEntry
from treering.engine.session.entry import Entry
from treering.engine.session.plan import Batch
from treering.engine.session.repairing import repair
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.engine.transfer.exporting import export_jsonl, jsonl_lines
from treering.engine.transfer.importing import (
    ImportPreview,
    ImportResult,
    import_session,
    preview_import,
)
from treering.engine.transfer.legacy_model import CopyLimits

__all__ = [
    "AcknowledgedDataLost",
    "Ambiguous",
    "Batch",
    "Closed",
    "Conflict",
    "CopyLimits",
    "Damaged",
    "Entry",
    "ImportPreview",
    "ImportResult",
    "Invalid",
    "InvalidEntry",
    "InvalidId",
    "InvalidSource",
    "LimitExceeded",
    "NotAJournal",
    "NotFound",
    "OutcomeUnknown",
    "Owned",
    "Poisoned",
    "ReadOnly",
    "RepairResult",
    "Report",
    "Session",
    "SessionHeader",
    "SessionView",
    "SourceChanged",
    "StorageError",
    "StorageFull",
    "Store",
    "TreeringError",
    "Undecodable",
    "UnknownEntry",
    "Unsupported",
    "export_jsonl",
    "import_session",
    "jsonl_lines",
    "preview_import",
    "repair",
]
