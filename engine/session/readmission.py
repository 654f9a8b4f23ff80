"""Appending again what was cut off: frames from quarantine, with their bytes and flags."""

from __future__ import annotations

from collections.abc import Iterable

from treering.engine.errors import Conflict
from treering.engine.journal.admissible import Record
from treering.engine.session.admission import Admitted, admit
from treering.engine.session.plan import Plan
from treering.engine.session.session import Session


def readmit(session: Session, records: Iterable[Record]) -> list[str]:
    """Append frames that were in this journal before, as one batch.

    Bytes and flags (retention, qualification) stay as they were, also members that only the
    engine's own verbs write: the frames verified under this journal's salt. Entries that are
    present are skipped. Returns the ids that were appended.

    Raises:
        InvalidEntry: a payload is no entry.
        NotFound: an entry names another one that is not there.
        Conflict: an id is taken by other content.
    """
    admitted = [(admit(record.payload, verified=True), record.flags) for record in records]
    session.hold()
    try:
        fresh = [(entry, flags) for entry, flags in admitted if not _has_same(session, entry)]
        plan = Plan(session, [entry for entry, _ in fresh])
        plan.records = [
            Record(record.kind, record.payload, flags)
            for record, (_, flags) in zip(plan.records, fresh, strict=True)
        ]
        session.store_plan(plan, atomic=True)
        return plan.new_ids
    finally:
        session.let_go()


def _has_same(session: Session, entry: Admitted) -> bool:
    assert entry.id is not None
    if not session.exists(entry.id):
        return False
    if session.read(entry.id).raw != entry.raw:
        raise Conflict(f"entry id {entry.id!r} is taken by another entry", path=session.path)
    return True
