"""Exported roots, as the documents lay them out, with secrets in every place that has some."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(os.environ.get("TREERING_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus")
needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}; set TREERING_CORPUS to its folder"
)

SECRET = "hunter2-sk-live"
"""In every value that must not show anywhere."""

WHOLE = (
    "03-real-v1-two-compactions-1003.jsonl",
    "04-real-v1-large-1019.jsonl",
    "07-fixture-child-usage-no-version.jsonl",
    "11-real-v3-small-33.jsonl",
    "33-fixture-openclaw-missing-parents.jsonl",
    "34-fixture-openclaw-schema-drift.jsonl",
    "35-fixture-omp-title-images.jsonl",
    "50-peergen-all-features.jsonl",
    "51-peergen-branched-session-orphaned-by-labels.jsonl",
    "53-peergen-duplicate-header-and-ids.jsonl",
    "58-peergen-fork-of-v1-no-ids.jsonl",
    "61-synthetic-cycle-duplicate-id.jsonl",
    "62-synthetic-self-parent-and-missing.jsonl",
)
"""Files of the corpus that an import takes; the last two have the same session id."""

REFUSED = (
    "01-real-v1-fused-records.jsonl",
    "46-fixture-unknown-types-bad-line.jsonl",
    "55-peergen-torn-then-append.jsonl",
    "56-peergen-torn-tail.jsonl",
    "59-peergen-headerless.jsonl",
    "63-synthetic-native-framed-journal.jsonl",
)


def session_lines(session_id: str, *texts: str, cwd: str = "/w", **header: Any) -> bytes:
    """A version 3 journal with a user message for each text."""
    first = {"type": "session", "version": 3, "id": session_id, "cwd": cwd} | header
    lines: list[dict[str, Any]] = [first]
    for number, text in enumerate(texts):
        parent = f"e{number - 1}" if number else None
        message = {"role": "user", "content": text}
        lines.append(
            {"type": "message", "id": f"e{number}", "parentId": parent, "message": message}
        )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def file_of(session_id: str) -> str:
    """The name of its journal: the old systems put a date before the id."""
    return f"2026-01-01T00-00-00-000Z_{session_id}.jsonl"


def job(job_id: str, session_id: str, **more: Any) -> dict[str, Any]:
    """A job that comes along, unless ``more`` says otherwise; None takes a member away."""
    made: dict[str, Any] = {
        "id": job_id,
        "status": "active",
        "activeSessionId": "old-runtime",
        "sessionId": session_id,
        "sessionFile": f"/home/someone/.prime/agent/sessions/{file_of(session_id)}",
        "cwd": "/job/cwd",
        "label": f"label {SECRET}",
        "prompt": f"prompt {SECRET}",
        "schedule": {"kind": "cron", "expression": "*/5 * * * *"},
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-02T00:00:00.000Z",
        "nextRunAt": "2026-01-03T00:00:00.000Z",
        "lastRunAt": "2026-01-02T00:00:00.000Z",
        "lastError": f"error {SECRET}",
        "runCount": 7,
        "unknownMember": SECRET,
    } | more
    return {name: value for name, value in made.items() if value is not None}


def schedules(*jobs: Any) -> bytes:
    """A schedule file, with a dispatch that was under way."""
    dispatch = {"id": "d", "jobId": "j", "claimedAt": "x", "scheduledFor": "y"}
    return json.dumps({"jobs": jobs, "dispatches": [dispatch]}).encode()


def small_root(folder: Path) -> Path:
    """Two sessions, settings, and a schedule in each kind of file."""
    root = folder / "export"
    (root / "sessions" / "--old-project--").mkdir(parents=True)
    (root / "sessions" / file_of("one")).write_bytes(session_lines("one", "first", "second"))
    (root / "sessions" / file_of("two")).write_bytes(
        session_lines("two", "other", cwd="/elsewhere", rlmDepth=0)
    )
    (root / "sessions" / "notes.txt").write_text(SECRET)
    (root / "settings.json").write_text(
        json.dumps(
            {
                "theme": "dark",
                "terminal": {"showImages": True, f"x{SECRET}": 1},
                f"apiKey{SECRET}": SECRET,
                "packages": ["npm:@scope/tool@1.2.3", f"https://u:{SECRET}@example.org/x.git"],
            }
        )
    )
    (root / "auth.json").write_text(json.dumps({"key": SECRET}))
    (root / "cron-jobs.json").write_bytes(
        schedules(job("c1", "one"), job("c2", "two", status="completed"))
    )
    artifacts = root / "session-artifacts" / "two"
    artifacts.mkdir(parents=True)
    beat = job("h1", "two", source="heartbeat", status="paused")
    (artifacts / "scheduled-jobs.json").write_bytes(schedules(beat))
    (artifacts / "tool.log").write_text(SECRET)
    return root


def corpus_root(folder: Path) -> Path:
    """The whole files of the corpus, as sessions of one root."""
    root = folder / "corpus-export"
    (root / "sessions").mkdir(parents=True)
    for name in WHOLE:
        shutil.copy(CORPUS / name, root / "sessions" / name)
    return root


def names_below(folder: Path) -> list[str]:
    """Every file and folder below, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
