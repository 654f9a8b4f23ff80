"""Archive and drafts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from session_helpers import custom, new, read_bytes, user

from treering.engine import Conflict, Owned, Session
from treering.engine.session.lifecycle import archive_session, is_draft, unarchive_session
from treering.engine.session.metadata import Metadata, read_metadata


def state_of(path: str) -> str | None:
    with Session.open(path) as session:
        return read_metadata(session).state


def test_archive_and_back(tmp_path: Path) -> None:
    """One session_state entry each, by a temporary owner; nothing where nothing is to be done."""
    with new(tmp_path) as session:
        session.append(user("x"))
        path = session.path
    assert unarchive_session(path) is None
    first = archive_session(path)
    assert state_of(path) == "archived"
    assert archive_session(path) is None
    second = unarchive_session(path)
    assert state_of(path) == "active"
    with Session.open(path) as session:
        assert [entry.id for entry in session.by_kind("session_state")] == [first, second]


def test_the_id_is_looked_at_first(tmp_path: Path) -> None:
    """Archiving another session than the caller means writes nothing."""
    with new(tmp_path, session_id="s1") as session:
        path = session.path
    assert archive_session(path, session_id="s1") is not None
    before = read_bytes(path)
    with pytest.raises(Conflict, match="not 's2'"):
        unarchive_session(path, session_id="s2")
    assert state_of(path) == "archived"
    assert read_bytes(path)[: len(before)] == before


def test_a_live_owner_archives_for_itself(tmp_path: Path) -> None:
    """Through another handle it is refused."""
    with new(tmp_path) as session:
        with pytest.raises(Owned):
            archive_session(session.path)
        session.append_session_state("archived")
        assert read_metadata(session).state == "archived"


def test_a_draft_has_nothing_that_anybody_would_miss() -> None:
    """No messages, no user content, no schedules, no clients, not busy, not subagent: all six."""
    values = itertools.product((0, 1), (False, True), (0, 2), (0, 3), (False, True), (False, True))
    drafts = 0
    for messages, written, schedules, clients, busy, subagent in values:
        found = is_draft(
            Metadata(has_user_content=written),
            messages=messages,
            schedules=schedules,
            clients=clients,
            busy=busy,
            subagent=subagent,
        )
        nothing = not any((messages, written, schedules, clients, busy, subagent))
        assert found == nothing
        drafts += found
    assert drafts == 1
    assert is_draft(Metadata(), messages=0)


def test_a_draft_by_what_a_frontend_writes(tmp_path: Path) -> None:
    """The defaults that are written at creation are no content; anything more is."""
    with new(tmp_path) as session:
        session.append_model_change("p", "m")
        session.append_thinking_level_change("low")
        session.append_session_state("active")
        counts = session.counts()
        assert is_draft(read_metadata(session), messages=counts["messages"])
        session.append(custom())
        assert not is_draft(read_metadata(session), messages=counts["messages"])
