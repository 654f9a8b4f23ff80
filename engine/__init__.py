"""The public API of Treering."""

from treering.engine.associations.reporting import aggregate_associations, request_associations
from treering.engine.errors import (
    AcknowledgedDataLost,
    Ambiguous,
    Closed,
    Conflict,
    Damaged,
    Invalid,
    InvalidContextEpoch,
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
from treering.engine.migration.migrating import MigrationResult, migrate_root
from treering.engine.migration.plan import MigrationPlan, plan_migration
from treering.engine.schedules.controls import Heartbeats, SessionSchedules
from treering.engine.schedules.file_store import Schedules, read_schedules
from treering.engine.schedules.job import ScheduledJob
from treering.engine.search.searching import FieldMatch, SearchHit, SearchPage, search_sessions
from treering.engine.session.capture import Branches, Materialized, ReadLimits, SourceRef
from treering.engine.session.captured import CapturedSource, Operation
from treering.engine.session.context import build_session_context
from treering.engine.session.context_epoch_making import ContextEpochAck, ContextEpochCandidate
from treering.engine.session.context_epochs import ActiveContextEpoch, active_context_epoch
from treering.engine.session.context_rules import ContextMessage, ContextModel, SessionContext
from treering.engine.session.context_usage import (
    ContextUsage,
    build_context_usage,
    read_context_usage,
)
from treering.engine.session.deleting import (
    DeletedSession,
    FinishedDeletions,
    delete_session,
    finish_deletions,
    list_deleted,
    purge_deleted,
    undelete_session,
)
from treering.engine.session.entries import SessionHeader, UnknownEntry
from treering.engine.session.entry import Entry
from treering.engine.session.lifecycle import archive_session, is_draft, unarchive_session
from treering.engine.session.listing import list_sessions, most_recent
from treering.engine.session.manager import SessionManager
from treering.engine.session.manager_reads import CapturedHistory
from treering.engine.session.navigation import (
    Navigation,
    NavigationOptions,
    SummaryRequest,
    SummaryResult,
    summary_budget,
)
from treering.engine.session.output_links import OutputLink
from treering.engine.session.page_order import LiveRoster
from treering.engine.session.pages import PageQuery, PageRow, SessionPage, SessionPages
from treering.engine.session.plan import Batch
from treering.engine.session.repairing import repair
from treering.engine.session.request_usage import RequestUsage, request_usage
from treering.engine.session.resolving import resolve_session
from treering.engine.session.session import Session
from treering.engine.session.session_info import SessionInfo
from treering.engine.session.tree import Tree, TreeNode, build_tree
from treering.engine.session.tree_view import Selection, VisibleTree, selection_of, visible_tree
from treering.engine.session.view import SessionView
from treering.engine.transfer.copying import (
    CopyResult,
    PreparedFork,
    copy_branch,
    fork_session,
    prepare_fork,
)
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
    "ActiveContextEpoch",
    "Ambiguous",
    "Batch",
    "Branches",
    "CapturedHistory",
    "CapturedSource",
    "Closed",
    "Conflict",
    "ContextEpochAck",
    "ContextEpochCandidate",
    "ContextMessage",
    "ContextModel",
    "ContextUsage",
    "CopyLimits",
    "CopyResult",
    "Damaged",
    "DeletedSession",
    "Entry",
    "FieldMatch",
    "FinishedDeletions",
    "Heartbeats",
    "ImportPreview",
    "ImportResult",
    "Invalid",
    "InvalidContextEpoch",
    "InvalidEntry",
    "InvalidId",
    "InvalidSource",
    "LimitExceeded",
    "LiveRoster",
    "Materialized",
    "MigrationPlan",
    "MigrationResult",
    "Navigation",
    "NavigationOptions",
    "NotAJournal",
    "NotFound",
    "Operation",
    "OutcomeUnknown",
    "OutputLink",
    "Owned",
    "PageQuery",
    "PageRow",
    "Poisoned",
    "PreparedFork",
    "ReadLimits",
    "ReadOnly",
    "RepairResult",
    "Report",
    "RequestUsage",
    "ScheduledJob",
    "Schedules",
    "SearchHit",
    "SearchPage",
    "Selection",
    "Session",
    "SessionContext",
    "SessionHeader",
    "SessionInfo",
    "SessionManager",
    "SessionPage",
    "SessionPages",
    "SessionSchedules",
    "SessionView",
    "SourceChanged",
    "SourceRef",
    "StorageError",
    "StorageFull",
    "Store",
    "SummaryRequest",
    "SummaryResult",
    "Tree",
    "TreeNode",
    "TreeringError",
    "Undecodable",
    "UnknownEntry",
    "Unsupported",
    "VisibleTree",
    "active_context_epoch",
    "aggregate_associations",
    "archive_session",
    "build_context_usage",
    "build_session_context",
    "build_tree",
    "copy_branch",
    "delete_session",
    "export_jsonl",
    "finish_deletions",
    "fork_session",
    "import_session",
    "is_draft",
    "jsonl_lines",
    "list_deleted",
    "list_sessions",
    "migrate_root",
    "most_recent",
    "plan_migration",
    "prepare_fork",
    "preview_import",
    "purge_deleted",
    "read_context_usage",
    "read_schedules",
    "repair",
    "request_associations",
    "request_usage",
    "resolve_session",
    "search_sessions",
    "selection_of",
    "summary_budget",
    "unarchive_session",
    "undelete_session",
    "visible_tree",
]
