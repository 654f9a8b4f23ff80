"""The model context of random trees: by index, from a list, and by the rules over dicts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from context_helpers import Json, context_of, dump, imported, same_both_ways
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_helpers import new

from treering.engine import SessionView

_IDS = st.integers(0, 29).map(lambda number: f"e{number}")
_FEW_IDS = st.integers(0, 6).map(lambda number: f"e{number}")
_KINDS = (
    *(
        "user",
        "assistant",
        "toolResult",
        "oracle",
        "custom_message",
        "branch_summary",
        "compaction",
    ),
    *("thinking_level_change", "service_tier_change", "model_change", "child_usage_attributed"),
    *("label", "custom", "session_info", "future"),
)
_CALLS = st.lists(st.sampled_from(("c1", "c2", "c3")), unique=True)


@st.composite
def members(draw: st.DrawFn, place: int, ids: st.SearchStrategy[str] = _IDS) -> Json:
    """The members of one entry besides id and parent."""
    kind = draw(st.sampled_from(_KINDS))
    entry: Json = {"type": kind, "timestamp": f"2026-01-01T00:00:00.{place:03d}Z"}
    text = f"{kind} {place}"
    if kind in ("user", "oracle"):
        entry |= {"type": "message", "message": {"role": kind, "content": text}}
    elif kind == "assistant":
        calls = [{"type": "toolCall", "id": call} for call in draw(_CALLS)]
        message = {"role": kind, "content": [{"type": "text", "text": text}, *calls]}
        message |= draw(st.sampled_from(({}, {"provider": text}, {"provider": "p", "model": text})))
        usage = {"totalTokens": draw(st.integers(0, 3)), "stopReason": "stop"}
        message |= draw(
            st.sampled_from(({}, {"usage": usage}, {"usage": usage, "stopReason": "error"}))
        )
        entry |= {"type": "message", "message": message}
    elif kind == "toolResult":
        call = draw(st.sampled_from(("c1", "c2", "c3", "c4")))
        entry |= {"type": "message", "message": {"role": kind, "toolCallId": call, "content": text}}
    elif kind == "custom_message":
        entry |= {"customType": "t", "content": text, "display": draw(st.booleans())}
    elif kind == "branch_summary":
        entry |= {"fromId": "root", "summary": draw(st.sampled_from(("", text)))}
    elif kind == "compaction":
        entry |= {"summary": text, "tokensBefore": draw(st.sampled_from((None, 5)))}
        entry |= draw(st.sampled_from(({}, {"customInstructions": "short"})))
        entry |= {"firstKeptEntryId": draw(ids)}
    elif kind == "child_usage_attributed":
        entry |= {"targetId": draw(ids), "aggregateUsage": {"input": place}}
    elif kind == "label":
        entry |= {"targetId": draw(ids), "label": text}
    else:
        entry |= {"thinkingLevel": text, "serviceTier": text, "provider": text, "modelId": text}
    return entry


@st.composite
def trees(draw: st.DrawFn, *, twins: bool) -> list[Json]:
    """Mostly chains, with branches, parents that come later, and parents that never come."""
    count = draw(st.integers(1, 30))
    entries = []
    for place in range(count):
        parent = draw(
            st.one_of(
                st.just(f"e{place - 1}"),
                st.just(f"e{place - 1}"),
                st.just(f"e{place - 1}"),
                _FEW_IDS if twins else st.integers(0, max(0, place - 1)).map(lambda n: f"e{n}"),
                st.sampled_from((None, "", "lost")),
            )
        )
        own = {"id": f"e{place}"}
        if twins and draw(st.booleans()):
            own = draw(st.one_of(st.just({}), _FEW_IDS.map(lambda shared: {"id": shared})))
        entries.append(
            own | {"parentId": parent} | draw(members(place, _FEW_IDS if twins else _IDS))
        )
    return entries if twins else draw(st.one_of(st.just(entries), st.permutations(entries)))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=trees(twins=False))
def test_random_trees_by_the_rules(entries: list[Json]) -> None:
    """Every position of a random tree: as the rules over dicts say, by index and from the list."""
    with tempfile.TemporaryDirectory() as folder:
        with SessionView.open(imported(Path(folder), entries)) as view:
            for leaf_id in (None, *(entry["id"] for entry in entries)):
                found = same_both_ways(view, leaf_id)
                expected = context_of(_without_self_parents(entries), leaf_id)
                assert found.to_list() == expected["messages"]
                assert (found.thinking_level, found.service_tier) == (
                    expected["level"],
                    expected["tier"],
                )
                assert found.model == expected["model"]


def _without_self_parents(entries: list[Json]) -> list[Json]:
    return [e | {"parentId": None} if e["parentId"] == e["id"] else e for e in entries]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=trees(twins=True))
def test_random_trees_with_odd_ids_and_circles(entries: list[Json]) -> None:
    """Ids that several have, or that are not there: both ways agree at every position, and end."""
    with tempfile.TemporaryDirectory() as folder:
        with SessionView.open(imported(Path(folder), entries)) as view:
            for entry in view.entries():
                same_both_ways(view, entry.id)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_sessions_by_appending(data: st.DataObject) -> None:
    """The same for a session that grows by appends and moves of the position."""
    with tempfile.TemporaryDirectory() as folder, new(Path(folder)) as session:
        entries: list[Json] = []
        for place in range(data.draw(st.integers(1, 25))):
            entry = {"id": f"e{place}", "parentId": session.leaf_id} | data.draw(members(place))
            above = [e.id for e in session.branch()]
            if "firstKeptEntryId" in entry:
                entry["firstKeptEntryId"] = data.draw(st.sampled_from(above or [None]))
            if "targetId" in entry:
                if not entries:
                    continue
                entry["targetId"] = data.draw(st.sampled_from([e["id"] for e in entries]))
            if entry["type"] == "child_usage_attributed":
                entry["childUsage"] = {}
            session.append(dump(entry))
            entries.append(entry)
            found = same_both_ways(session)
            expected = context_of(entries, session.leaf_id)
            assert found.to_list() == expected["messages"], json.dumps(entries)
            if data.draw(st.integers(0, 3)) == 0:
                session.branch_to(data.draw(st.sampled_from([None, *(e["id"] for e in entries)])))
        same_both_ways(session)
