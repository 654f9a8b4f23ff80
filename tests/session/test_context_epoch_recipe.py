"""The table of recipe versions: a smallest accepted example of each row, and what each refuses."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treering.engine import InvalidContextEpoch, LimitExceeded
from treering.engine.limits import CONTEXT_EPOCH_BYTES_MAX, CONTEXT_EPOCH_VIEWS_MAX
from treering.engine.session.context_epoch_recipe import Recipe, decode_recipe

MOMENT = {"sessionId": "s", "leafId": "b", "sourceSequence": 9, "persistent": True}
CONTRACT = {
    "api": "a",
    "provider": "p",
    "route": "r",
    "model": "m",
    "replayContract": "complete-context",
}
GROUPS = [
    {
        "assistantEntryId": "a",
        "calls": [
            {
                "executionId": "x",
                "intent": {"id": "x:intent", "sequence": 4, "revision": "0"},
                "outcome": "outcome_unknown",
            }
        ],
    }
]


def view(kind: str = "message", **more: Any) -> dict[str, Any]:
    ref = {
        "entryId": "a",
        "sequence": 3,
        "kind": kind,
        "locator": {"path": "/p", "offset": 1, "length": 2},
        "revision": "0",
    }
    return {"source": MOMENT, "ref": ref, "sourceRevision": '["0"]', **more}


SKILLS = [{"name": "n", "view": view("custom")}]


def recipe(version: int, /, **more: Any) -> dict[str, Any]:
    """The smallest of a version, changed; ... takes a member away."""
    found: dict[str, Any] = {
        "version": version,
        "renderer": f"native-canonical-epoch/{version}",
        "source": MOMENT,
        "representation": "{}",
        "views": [],
        "literalTailId": "b",
    }
    if version == 5:
        found |= {"representation": None, "mode": "on", "policyOnly": True}
    if version == 6:
        found |= {
            "publicWindow": True,
            "replayContract": "message-groups",
            "toolContinuations": GROUPS,
        }
    found |= more
    return {name: value for name, value in found.items() if value is not ...}


SEVEN = {"renderer": "native-canonical-epoch/7", "selectedSkills": SKILLS}
SUMMARY = {"includeSummary": True, "representation": None}


def continued(kind: str) -> dict[str, Any]:
    return {"continuation": {"kind": kind, "publicTailThrough": MOMENT}}


ACCEPTED: dict[str, dict[str, Any]] = {
    "1": recipe(1),
    "2": recipe(2),
    "2 with a summary": recipe(2, **SUMMARY),
    "3": recipe(3),
    "3 with everything": recipe(
        3,
        publicWindow=True,
        views=[view(rendering="public-history/1")],
        **continued("harness-summary"),
        **SUMMARY,
    ),
    "4": recipe(4),
    "4 with a summary": recipe(4, **SUMMARY),
    "4 portable": recipe(4, publicWindow=True, **continued("portable-checkpoint")),
    "4 with skills": recipe(4, **SEVEN),
    "5": recipe(5),
    "5 off": recipe(5, mode="off"),
    "5 with a contract": recipe(5, requestContract=CONTRACT),
    "5 pending": recipe(5, mode="off", pendingRequestContract=True),
    "5 with skills": recipe(5, **SEVEN),
    "6": recipe(6),
    "6 rendered": recipe(6, views=[view(rendering="public-tool-continuation/1")]),
    "6 with skills": recipe(6, **SEVEN),
    "any with what is opaque": recipe(
        1, replayContract="complete-context", resourceRevision="", taskFrame={"x": [1, {}]}
    ),
    "a compaction": recipe(1, views=[view("compaction", retainedMessageCount=0)]),
    "a moment with a file": recipe(1, source=MOMENT | {"sessionFile": "/f"}),
    "a moment before any entry": recipe(1, source=MOMENT | {"leafId": None}),
}

REFUSED: dict[str, dict[str, Any]] = {
    "0": recipe(1, version=0),
    "7": recipe(4, version=7, renderer="native-canonical-epoch/7"),
    "true": recipe(1, version=True),
    "1.0": recipe(1, version=1.0),
    "no version": recipe(1, version=...),
    "another renderer": recipe(1, renderer="native-canonical-epoch/2"),
    "an unknown renderer": recipe(1, renderer="else"),
    "1 with a summary": recipe(1, **SUMMARY),
    "1 with a summary and a representation": recipe(1, includeSummary=True),
    "1 without a representation": recipe(1, representation=None),
    "1 with a window": recipe(1, publicWindow=True),
    "1 continued": recipe(1, **continued("harness-summary")),
    "1 rendered": recipe(1, views=[view(rendering="public-history/1")]),
    "2 without representation and summary": recipe(2, representation=None),
    "2 with representation and summary": recipe(2, includeSummary=True),
    "2 with a window": recipe(2, publicWindow=True),
    "2 rendered": recipe(2, views=[view(rendering="public-history/1")]),
    "3 portable": recipe(3, **continued("portable-checkpoint")),
    "3 with skills": recipe(3, **SEVEN),
    "3 with tools rendered": recipe(3, views=[view(rendering="public-tool-continuation/1")]),
    "4 with skills and renderer 4": recipe(4, selectedSkills=SKILLS),
    "4 with renderer 7 and no skills": recipe(4, renderer="native-canonical-epoch/7"),
    "4 with no skill in the list": recipe(4, **SEVEN | {"selectedSkills": []}),
    "4 with a name twice": recipe(4, **SEVEN | {"selectedSkills": SKILLS * 2}),
    "4 with an empty name": recipe(
        4, **SEVEN | {"selectedSkills": [{"name": "", "view": view("custom")}]}
    ),
    "4 with a message as skill": recipe(
        4, **SEVEN | {"selectedSkills": [{"name": "n", "view": view()}]}
    ),
    "4 with a mode": recipe(4, mode="on"),
    "4 as a policy": recipe(4, policyOnly=True),
    "4 with a contract": recipe(4, requestContract=CONTRACT),
    "4 with groups": recipe(4, toolContinuations=GROUPS),
    "4 with tools rendered": recipe(4, views=[view(rendering="public-tool-continuation/1")]),
    "4 with an unknown continuation": recipe(4, **continued("else")),
    "5 without a mode": recipe(5, mode=...),
    "5 with another mode": recipe(5, mode="maybe"),
    "5 that is no policy": recipe(5, policyOnly=...),
    "5 with a false policy": recipe(5, policyOnly=False),
    "5 with a representation": recipe(5, representation="{}"),
    "5 with a summary": recipe(5, includeSummary=True),
    "5 pending and on": recipe(5, pendingRequestContract=True),
    "5 with both contracts": recipe(
        5, mode="off", pendingRequestContract=True, requestContract=CONTRACT
    ),
    "5 pending false": recipe(5, mode="off", pendingRequestContract=False),
    "6 without groups": recipe(6, toolContinuations=...),
    "6 with no group": recipe(6, toolContinuations=[]),
    "6 with a group of nothing": recipe(6, toolContinuations=[GROUPS[0] | {"calls": []}]),
    "6 without a window": recipe(6, publicWindow=...),
    "6 with another contract": recipe(6, replayContract="complete-context"),
    "6 without a representation": recipe(6, **SUMMARY),
    "6 with an unknown outcome": recipe(
        6,
        toolContinuations=[
            GROUPS[0] | {"calls": [GROUPS[0]["calls"][0] | {"outcome": "done"}]}  # type: ignore[index]
        ],
    ),
    "a false flag": recipe(4, publicWindow=False),
    "an unknown member": recipe(4, more=1),
    "an unknown replay contract": recipe(4, replayContract="else"),
    "a task frame that is no object": recipe(4, taskFrame=[]),
    "a contract with an empty string": recipe(5, requestContract=CONTRACT | {"route": ""}),
    "a contract without its model": recipe(5, requestContract=CONTRACT | {"model": ""}),
    "a contract with more": recipe(5, requestContract=CONTRACT | {"more": 1}),
    "a count of a message": recipe(1, views=[view(retainedMessageCount=1)]),
    "a compaction without its count": recipe(1, views=[view("compaction")]),
    "a compaction that is rendered": recipe(
        3, views=[view("compaction", retainedMessageCount=1, rendering="public-history/1")]
    ),
    "a negative count": recipe(1, views=[view("compaction", retainedMessageCount=-1)]),
    "a view of state": recipe(1, views=[view("custom")]),
    "a view of another kind": recipe(1, views=[view("label")]),
    "a moment with more": recipe(1, source=MOMENT | {"more": 1}),
    "a moment with a sequence of another type": recipe(1, source=MOMENT | {"sourceSequence": True}),
    "a moment without a position": recipe(
        1, source={name: value for name, value in MOMENT.items() if name != "leafId"}
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_rows_that_are_accepted(name: str) -> None:
    raw = json.dumps(ACCEPTED[name]).encode()
    found = decode_recipe(raw)
    assert isinstance(found, Recipe)
    assert json.loads(found.encoded()) == ACCEPTED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidContextEpoch):
        decode_recipe(json.dumps(REFUSED[name]).encode())


def test_limits() -> None:
    """Views and bytes: at the limit and one beyond."""
    few = view()
    many = recipe(1, views=[few] * CONTEXT_EPOCH_VIEWS_MAX)
    decode_recipe(json.dumps(many).encode())
    many["views"].append(few)
    with pytest.raises(LimitExceeded):
        decode_recipe(json.dumps(many).encode())
    empty = len(json.dumps(recipe(1, resourceRevision="")))
    room = CONTEXT_EPOCH_BYTES_MAX - empty
    decode_recipe(json.dumps(recipe(1, resourceRevision="x" * room)).encode())
    with pytest.raises(LimitExceeded):
        decode_recipe(json.dumps(recipe(1, resourceRevision="x" * (room + 1))).encode())


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"{}", b'"x"', b"\xff", b"{" * 500, b"[" * 500, b"nul"]
)
def test_what_is_no_recipe(raw: bytes) -> None:
    with pytest.raises(InvalidContextEpoch):
        decode_recipe(raw)


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([[]]),
    st.sampled_from([MOMENT, CONTRACT, GROUPS, SKILLS, [view()]]),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, member in items:
        found += _places(member, (*path, key))
    return found


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_field_of_any_type(data: st.DataObject) -> None:
    """Wrong, missing, additional, huge: a recipe, or the typed error; never anything else."""
    value = json.loads(json.dumps(ACCEPTED[data.draw(st.sampled_from(sorted(ACCEPTED)))]))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_places(value)))
        holder = value
        for step in place[:-1]:
            holder = holder[step]
        action = data.draw(st.sampled_from(["change", "remove", "add"]))
        if action == "add" and isinstance(holder, dict):
            holder[data.draw(st.text(max_size=5))] = copy.deepcopy(data.draw(_values))
        elif action == "remove":
            del holder[place[-1]]
        else:
            holder[place[-1]] = copy.deepcopy(data.draw(_values))
        if not _places(value):
            break
    try:
        found = decode_recipe(json.dumps(value).encode())
    except (InvalidContextEpoch, LimitExceeded):
        return
    assert json.loads(found.encoded()) == value
