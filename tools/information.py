"""What `session info` reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from treering.engine.environment import iso_time
from treering.engine.errors import TreeringError
from treering.engine.home import Store
from treering.engine.session.view import SessionView
from treering.index import files
from treering.tools.output import counted, one_line, size_text
from treering.tools.viewing import all_rows, hint_of, live_owner


def information_of(view: SessionView, store: Store) -> dict[str, Any]:
    """Everything as one JSON object with stable members."""
    report = view.report
    counts = view.counts()
    try:
        header = view.header
    except TreeringError:
        header = None
    try:
        name = view.name
    except TreeringError:
        name = None
    stored = raw = 0
    for page in all_rows(view):
        stored += sum(row.stored for row in page)
        raw += sum(row.raw for row in page)
    # A session given by its path belongs to the store that it lies in, whatever --home says.
    store = Store.of_journal(view.path)
    owner = live_owner(store, view.path)
    return {
        "path": view.path,
        "id": view.id,
        "cwd": None if header is None else header.cwd,
        "name": name,
        "parentSession": None if header is None else header.parent_session,
        "created": None if header is None else header.timestamp,
        "entries": counts["entries"],
        "kinds": view.kinds(),
        "messages": counts["messages"],
        "unresolved": counts["unresolved"],
        "leaf": view.leaf_id,
        "journalBytes": report.size,
        "storedBytes": stored,
        "rawBytes": raw,
        "compressionRatio": round(stored / raw, 4) if raw else None,
        "frames": report.frames,
        "epochs": view.examination.epoch_max,
        "journalId": report.journal_id,
        "case": report.case,
        "verdict": report.verdict,
        "reason": report.reason,
        "provenance": _provenance(view),
        "index": index_state(view, store),
        "owner": None
        if owner is None
        else {"pid": owner.pid, "host": owner.host, "since": iso_time(owner.since)},
    }


def _provenance(view: SessionView) -> dict[str, Any] | None:
    try:
        found = view.provenance()
        facts = None if found is None else json.loads(found[0])
    except (TreeringError, ValueError, RecursionError):
        return {"unreadable": True}
    if not isinstance(facts, dict):
        return None
    return {
        "format": facts.get("format"),
        "version": facts.get("version"),
        "capturedBytes": facts.get("captured_bytes"),
        "byteExact": facts.get("byte_exact"),
        "oddities": facts.get("oddities") or {},
        "salvaged": facts.get("salvaged"),
    }


def index_state(view: SessionView, store: Store) -> str:
    """absent, current, behind, unusable, or another journal's; as its main file tells."""
    try:
        if files.current(store.index, view.id) is None:
            return "absent"
        hint = hint_of(store, view.id)
    except Exception as error:  # noqa: BLE001 (IndexFault and whatever a strange folder raises)
        return f"unusable: {error}"
    if hint is None:
        return "unusable"
    if hint.journal_id != view.journal_id:
        return "of another journal"
    walk = view.examination.walk
    last = None if walk is None else walk.history.last
    return "current" if last is not None and hint.sequence >= last.sequence else "behind"


_PLAIN = (
    ("path", "path"),
    ("id", "id"),
    ("name", "name"),
    ("cwd", "cwd"),
    ("created", "created"),
    ("parent", "parentSession"),
    ("leaf", "leaf"),
    ("journal id", "journalId"),
)


def lines_for_people(found: dict[str, Any]) -> Iterator[str]:
    """The same as lines, escaped."""
    for label, key in _PLAIN:
        if found[key]:
            yield f"{label:<12}{one_line(str(found[key]))}"
    kinds = ", ".join(f"{n} {one_line(kind) or '?'}" for kind, n in found["kinds"].items() if n)
    yield f"{'entries':<12}{found['entries']}{f' ({kinds})' if kinds else ''}"
    if found["unresolved"]:
        what = "entries whose parent is missing or in a cycle"
        yield f"{'unresolved':<12}{found['unresolved']} {what}"
    ratio = found["compressionRatio"]
    packed = "" if ratio is None else f", entries stored in {ratio:.0%} of their size"
    figures = f"{found['frames']} frames, {counted(found['epochs'], 'epoch')}"
    yield f"{'journal':<12}{size_text(found['journalBytes'])}, {figures}{packed}"
    reason = f" ({one_line(found['reason'])})" if found["reason"] else ""
    yield f"{'state':<12}case {found['case']}, {found['verdict']}{reason}"
    yield f"{'index':<12}{one_line(found['index'])}"
    origin = found["provenance"]
    if origin is not None:
        oddities = ", ".join(f"{one_line(k)} {v}" for k, v in origin.get("oddities", {}).items())
        yield (
            f"{'imported':<12}from {one_line(str(origin.get('format')))}, version"
            f" {origin.get('version')}{f'; {oddities}' if oddities else ''}"
        )
    if found["owner"] is not None:
        yield f"{'in use':<12}by process {found['owner']['pid']} since {found['owner']['since']}"
