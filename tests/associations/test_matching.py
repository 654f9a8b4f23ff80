"""What is matched and what stays unknown, in every form of session, against the rules said slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from associations.helpers import (
    EPOCH,
    SID,
    Piece,
    assistant,
    both,
    branch_summary,
    compaction,
    event,
    header,
    link,
    part,
    pieces_of,
    refinement,
    reports_of,
    source,
)
from support.build import Store, make_store

MAIN = "assistant_request_associations"
COMPACTION = "compaction_request_associations"
BRANCH = "branch_summary_request_associations"
PLANNER = "refinement_planner_associations"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path)


def recorded(store: Store, entries: list[Any], name: str = MAIN) -> Any:
    """What is reported of the only output of a kind."""
    (element,) = reports_of(store, entries)[name]
    member = "recorded_requests" if name == COMPACTION else "recorded_request"
    return element[member]


def matches(store: Store, linked: Any, *events: Any) -> bool:
    return recorded(store, [header(), *(events or both()), assistant(linked)]) is not None


def test_a_whole_session(store: Store) -> None:
    """37: the four kinds of output, each matched with its request."""
    entries = [
        header(),
        *both("a"),
        assistant(link("a")),
        *both("h", purpose="summary", purposeDetail="compaction", operationId="k"),
        *both("t", purpose="summary", purposeDetail="compaction-turn-prefix", operationId="k"),
        compaction(
            [part("history", "h", operationId="k"), part("turn-prefix", "t", operationId="k")]
        ),
        *both("b", purpose="summary", purposeDetail="branch"),
        branch_summary(link("b")),
        *both("p", purpose="refine", purposeDetail="plan"),
        refinement(link("p")),
        assistant(entry_id="m2"),
    ]
    assert reports_of(store, entries) == {
        MAIN: [
            {
                "assistant_entry_id": "m",
                "recorded_request": {"operationId": "o", "attemptIds": ["a"], "source": source()},
            },
            {"assistant_entry_id": "m2", "recorded_request": None},
        ],
        COMPACTION: [
            {
                "compaction_entry_id": "c",
                "recorded_requests": [
                    {
                        "part": name,
                        "recorded_request": {
                            "operationId": "k",
                            "attemptIds": [attempt],
                            "source": source(),
                        },
                    }
                    for name, attempt in (("history", "h"), ("turn-prefix", "t"))
                ],
            }
        ],
        BRANCH: [
            {
                "branch_summary_entry_id": "b",
                "recorded_request": {"operationId": "o", "attemptIds": ["b"], "source": source()},
            }
        ],
        PLANNER: [
            {
                "refinement_entry_id": "r",
                "recorded_request": {"operationId": "o", "attemptIds": ["p"], "source": source()},
            }
        ],
    }


def test_marks_of_header_entry_and_records(store: Store) -> None:
    """37: a retained or qualified header, entry or record makes it unknown; the field stays."""
    entries = [header(), *both(), assistant(link())]
    assert recorded(store, entries) is not None
    for at in range(len(entries)):
        for mark in ({"retained": True}, {"qualification": EPOCH}):
            marked = pieces_of(entries)
            marked[at] = marked[at]._replace(**mark)
            # Of two records one that does not count leaves the other.
            assert (recorded(store, marked) is None) == (at in (0, 3)), (at, mark)
    assert recorded(store, [header(), Piece(event(), retained=True), assistant(link())]) is None


def test_a_copied_header_is_another_session(store: Store) -> None:
    """37: a fork keeps entries and records, its header names another session."""
    entries = [header("another"), *both(), assistant(link())]
    assert recorded(store, entries) is None


def test_compaction_parts(store: Store) -> None:
    """39: each part alone, order and repetition kept, unknown parts left out."""
    request = both("h", purpose="summary", purposeDetail="compaction")
    found = recorded(
        store,
        [
            header(),
            *request,
            compaction(
                [
                    part("turn-prefix", "h"),
                    part("history", "h"),
                    part("other", "h"),
                    part(["history"], "h"),
                    5,
                    {"part": "history"},
                    part("history", "h"),
                ]
            ),
        ],
        COMPACTION,
    )
    assert [one["part"] for one in found] == ["turn-prefix", "history", "history", "history"]
    assert [one["recorded_request"] is None for one in found] == [True, False, True, False]
    assert "part" not in found[1]["recorded_request"]


def test_compactions_of_epochs(store: Store) -> None:
    """39: a compaction that is qualified as a context epoch still counts, as anything else not."""
    request = both("h", purpose="summary", purposeDetail="compaction")
    entry = compaction([part("history", "h")])
    for qualification, eligible in ((None, True), (EPOCH, True), ("native-admission", False)):
        entries = [header(), *request, Piece(entry, qualification=qualification)]
        assert (recorded(store, entries, COMPACTION) is not None) == eligible
    assert recorded(store, [header(), *request, Piece(entry, retained=True)], COMPACTION) is None
    # The rest of an epoch's entry makes no difference; a header that is no original does.
    entries = [Piece(header(), retained=True), *request, entry]
    assert recorded(store, entries, COMPACTION) == [{"part": "history", "recorded_request": None}]


@pytest.mark.parametrize(
    "outputs", [..., None, {}, "history", [], [part("other")], [None], [{"part": None}]]
)
def test_compactions_without_known_parts(store: Store, outputs: Any) -> None:
    """39: null when there is no list with a known part in it."""
    assert recorded(store, [header(), *both(), compaction(outputs)], COMPACTION) is None


def test_a_branch_summary_has_its_input_as_source(store: Store) -> None:
    """40: the leaf that was left matches; the destination, put in its place, does not."""
    left = source(leafId="left", sourceSequence=7)
    request = both("b", purpose="summary", purposeDetail="branch", source=left)
    entry = branch_summary(link("b", source=left), fromId="there")
    assert recorded(store, [header(), *request, entry], BRANCH) is not None
    moved = branch_summary(link("b", source=left | {"leafId": "there"}), fromId="there")
    assert recorded(store, [header(), *request, moved], BRANCH) is None


def test_planners(store: Store) -> None:
    """41: a planned result matches, partly applied too; a rollback does not, nor data that is none."""
    request = both("p", purpose="refine", purposeDetail="plan")
    for data, expected in (
        ({"edits": [{"applied": True}, {"skipped": "conflict"}]}, True),
        ({}, True),
        ({"rollbackOf": "r0"}, False),
        ({"rollbackOf": None}, False),
        ([], False),
        (None, False),
        (..., False),
    ):
        entry = refinement(link("p"), data=data)
        assert (recorded(store, [header(), *request, entry], PLANNER) is not None) == expected
    review = both("p", purpose="refine", purposeDetail="auto-refine-review")
    assert recorded(store, [header(), *review, refinement(link("p"))], PLANNER) is None
    assert reports_of(store, [header(), refinement(link("p"), customType="x")])[PLANNER] == []


@pytest.mark.parametrize(
    ("value", "eligible"), [(..., True), (False, True), (True, False), (None, False), (0, False)]
)
def test_summaries_of_hooks(store: Store, value: Any, eligible: bool) -> None:
    """42: absent or exactly false counts as our own."""
    request = [
        *both("b", purpose="summary", purposeDetail="branch"),
        *both("h", purpose="summary", purposeDetail="compaction"),
    ]
    entries = [
        header(),
        *request,
        branch_summary(link("b"), fromHook=value),
        compaction([part("history", "h")], fromHook=value),
    ]
    found = reports_of(store, entries)
    assert (found[BRANCH][0]["recorded_request"] is not None) == eligible
    assert (found[COMPACTION][0]["recorded_requests"] is not None) == eligible


@pytest.mark.parametrize(
    "attempts",
    [[], ["a", "a"], ["a", 1], ["unknown"], ["a", "unknown"], [""], [None], "a", {}, None],
)
def test_attempts_that_do_not_fit(store: Store, attempts: Any) -> None:
    """43: empty, repeated, of another type, unknown."""
    assert not matches(store, link(attemptIds=attempts))


def test_attempts_that_are_not_listed(store: Store) -> None:
    """43: more attempts of the operation are allowed, and every listed one must be recorded."""
    events = [*both("a"), *both("b"), *both("c", purpose="summary")]
    assert matches(store, link("a"), *events)
    assert matches(store, link("b", "a"), *events)
    assert not matches(store, link("a", "c"), *events)


@pytest.mark.parametrize(
    "changed",
    [
        {"sourceSequence": True},
        {"sourceSequence": 1.0},
        {"sourceSequence": 0.0},
        {"sourceSequence": -1},
        {"sourceSequence": "0"},
        {"sourceSequence": None},
        {"sourceSequence": ...},
        {"persistent": 1},
        {"persistent": 1.0},
        {"persistent": "true"},
        {"persistent": False},
        {"persistent": None},
        {"persistent": ...},
        {"leafId": 0},
        {"leafId": False},
        {"leafId": ...},
        {"sessionId": ""},
        {"sessionId": None},
        {"sessionId": [SID]},
        {"sessionId": ...},
        {"sessionFile": None},
        {"sessionFile": 1},
        {"extra": None},
        {"SessionId": SID},
    ],
    ids=repr,
)
def test_types_of_a_source(store: Store, changed: dict[str, Any]) -> None:
    """44: one member of another type, one more, one less: unknown, on either or both sides."""
    wrong = source(**changed)
    assert not matches(store, link(source=wrong), *both(source=wrong))
    assert not matches(store, link(source=wrong))
    assert not matches(store, link(), *both(source=wrong))


def test_sources_that_are_equal(store: Store) -> None:
    """44: without a file, with large numbers, with members in another order."""
    for changed in ({"sessionFile": ...}, {"sourceSequence": 2**70}, {"leafId": ""}):
        same = source(**changed)
        assert matches(store, link(source=same), *both(source=same))
        assert not matches(store, link(source=same))
    assert matches(store, link(source=dict(reversed(source().items()))))


@pytest.mark.parametrize(
    "changed",
    [
        {"operationId": "other"},
        {"operationId": ""},
        {"operationId": None},
        {"operationId": ...},
        {"source": source(leafId="x")},
        {"source": None},
        {"source": ...},
        {"purpose": "summary"},
        {"purpose": None},
        {"purpose": ["main"]},
    ],
    ids=repr,
)
def test_records_that_disagree(store: Store, changed: dict[str, Any]) -> None:
    """45: one record of the attempt that says something else is enough, wherever it stands."""
    settled = event("attempt_settled", **changed)
    assert not matches(store, link(), event(), settled)
    assert not matches(store, link(), settled, event())
    assert not matches(store, link(), event(), settled, event("attempt_settled"))
    # Without a receipt it does not count.
    assert matches(store, link(), event(), event("attempt_settled", receipt=..., **changed))


def test_details_of_purposes(store: Store) -> None:
    """45: of a main request the detail is not looked at; of the others every record must have it."""
    assert matches(store, link(), event(purposeDetail="x"), event(purposeDetail=5))
    request = [
        event("attempt_admitted", "b", purpose="summary", purposeDetail="branch"),
        event("attempt_settled", "b", purpose="summary", purposeDetail=...),
    ]
    assert recorded(store, [header(), *request, branch_summary(link("b"))], BRANCH) is None
    assert recorded(store, [header(), *request[:1], branch_summary(link("b"))], BRANCH) is not None


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event()], True),
        ([event("attempt_settled")], True),
        ([event("attempt_settled", receipt={})], False),
        ([event("attempt_settled", receipt={"usage": []})], False),
        ([event("attempt_settled", receipt=[])], False),
        ([event("attempt_retried")], False),
        ([event("attempt_admitted") | {"request": None}], False),
        ([event("attempt_admitted") | {"request": [event()["request"]]}], False),
        ([event(attempt="")], False),
        ([event(attempt=None)], False),
        ([event(attempt=["a"])], False),
    ],
)
def test_records_that_count(store: Store, events: list[Any], expected: bool) -> None:
    """45: an admission alone is enough; a settlement needs its receipt with usage."""
    assert (recorded(store, [header(), *events, assistant(link())]) is not None) == expected


def test_order_does_not_matter(store: Store) -> None:
    """The request may come behind its output."""
    assert recorded(store, [header(), assistant(link()), *both()]) is not None


def test_the_last_header_counts(store: Store) -> None:
    entries = [header("another"), *both(), assistant(link()), header()]
    assert recorded(store, entries) is not None
    entries = [header(), *both(), assistant(link()), header("another")]
    assert recorded(store, entries) is None
    entries = [header(), *both(), assistant(link()), Piece(header(), retained=True)]
    assert recorded(store, entries) is None
    for nothing in ("", None, 5):
        assert recorded(store, [header(nothing), *both(), assistant(link())]) is None


@pytest.mark.parametrize("entry_id", ["", None, ..., 5, True, 1.5, ["m"], {"m": 1}, "\ud800"])
def test_ids_are_given_back_as_they_are(store: Store, entry_id: Any) -> None:
    entries = [header(), *both(), assistant(link(), entry_id=entry_id)]
    (element,) = reports_of(store, entries)[MAIN]
    assert element["assistant_entry_id"] == (None if entry_id is ... else entry_id)
    assert (element["recorded_request"] is None) == (entry_id != "\ud800")


@pytest.mark.parametrize("linked", [None, [], "o", 1, {}, link(operationId=""), link(source=[])])
def test_links_that_are_none(store: Store, linked: Any) -> None:
    assert not matches(store, linked)


def test_other_entries_have_no_element(store: Store) -> None:
    others = [
        {"type": "message", "id": "u", "message": {"role": "user"}, "requestOutput": link()},
        {"type": "message", "id": "u2", "message": "assistant"},
        {"type": "message", "id": "u3"},
        {"type": "custom", "id": "x", "customType": "y"},
        {"type": "label", "id": "l"},
        {"type": 5, "id": "n"},
        {"id": "t"},
        {},
    ]
    assert not any(reports_of(store, [header(), *others]).values())
