"""Upgrades from versions 1 and 2."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from transfer.legacy_helpers import MemorySource, dump, header, jsonl, message, read

from treering.engine.errors import LimitExceeded
from treering.engine.transfer.legacy import analyse, prepare
from treering.engine.transfer.records import LINE_BYTES_MAX
from treering.engine.transfer.upgrade import DerivedIds


def upgraded(*entries: bytes, version: Any = ..., salvage: bool = False) -> list[dict[str, Any]]:
    data = jsonl(header(version=version), *entries)
    return [json.loads(raw) for raw in read(data, salvage=salvage)[1]]


def test_entries_become_one_chain() -> None:
    """Migration: version 1 gets ids and links. Fresh ids of 8 hex digits, each entry the child of
    the one before, the first a root."""
    out = upgraded(*[message(None, None)] * 4)
    ids = [entry["id"] for entry in out]
    assert len(set(ids)) == 4
    assert all(re.fullmatch("[0-9a-f]{8}", one) for one in ids)
    assert [entry["parentId"] for entry in out] == [None, *ids[:-1]]
    assert "legacyId" not in out[0]


@pytest.mark.parametrize("version", [..., None, 1])
def test_only_the_upgraded_members_change(version: Any) -> None:
    """Spelling, order, spacing, duplicate members and a CR stay; new members come last."""
    first = (
        b' {"type":"x" ,"n":[1.0,1E400,12345678901234567890],"k":1,"k":2,"u":"\\ud800\\/"  }\t\r'
    )
    second = b'{"parentId": "zz","type":"y","id" :\t7,"v":-0}'
    data = jsonl(header(version=version), first, second)
    a = b"%08x" % (xxhash.xxh3_64_intdigest(first, 1) >> 32)
    b = b"%08x" % (xxhash.xxh3_64_intdigest(second, 2) >> 32)
    assert read(data)[1] == [
        first.replace(b'/"  }', b'/"  ,"id":"' + a + b'","parentId":null}'),
        b'{"parentId": "' + a + b'","type":"y","id" :\t"' + b + b'","v":-0,"legacyId":7}',
    ]


def test_the_same_file_gives_the_same_ids() -> None:
    """Migration: idempotent. Ids depend on content and position only."""
    data = jsonl(header(version=1), *[message(None, None, str(n)) for n in range(50)])
    assert read(data) == read(data)
    other = read(jsonl(header(version=1, id="other"), *data.splitlines()[1:]))[1]
    assert read(data)[1] == other


def test_ids_that_collide_take_the_next_seed() -> None:
    """Two records whose hashes agree get different ids, the same ones on each run."""
    ids = DerivedIds()
    raw = b"x"
    taken = xxhash.xxh3_64_intdigest(raw, 0) >> 32
    ids._taken.add(taken)
    ids.add(raw)
    assert list(ids.by_position) == [xxhash.xxh3_64_intdigest(raw, 1) >> 32]


def test_F24_many_entries_with_one_id() -> None:
    """All 274 are kept with ids of their own; the old id stays as data."""
    out = upgraded(*[message("same", None, str(n)) for n in range(274)], version=1)
    assert len({entry["id"] for entry in out}) == 274
    assert {entry["legacyId"] for entry in out} == {"same"}
    data = jsonl(header(version=1), *[message("same", None, str(n)) for n in range(274)])
    assert analyse(MemorySource(data), limits=None).oddities["duplicate_ids"] == 273


def test_references_follow_their_entries() -> None:
    """targetId, firstKeptEntryId and fromId are mapped; root and unknown ids stay."""
    out = upgraded(
        message("a", None),
        dump({"type": "label", "targetId": "a"}),
        dump({"type": "branch_summary", "fromId": "a"}),
        dump({"type": "branch_summary", "fromId": "root"}),
        dump({"type": "compaction", "firstKeptEntryId": "a"}),
        dump({"type": "label", "targetId": "nobody"}),
        dump({"type": "label", "targetId": 5, "nested": {"targetId": "a"}}),
    )
    a = out[0]["id"]
    assert out[1]["targetId"] == out[2]["fromId"] == out[4]["firstKeptEntryId"] == a
    assert out[3]["fromId"] == "root"
    assert out[5]["targetId"] == "nobody"
    assert (out[6]["targetId"], out[6]["nested"]) == (5, {"targetId": "a"})


def test_a_reference_to_a_duplicate_id_means_the_nearest_earlier_one() -> None:
    """Else the first later one; an entry is not earlier than itself."""
    label = dump({"type": "label", "targetId": "d"})
    own = dump({"type": "label", "id": "d", "targetId": "d"})
    out = upgraded(label, message("d", None), label, own, label, message("d", None))
    ids = [entry["id"] for entry in out]
    assert out[0]["targetId"] == ids[1]
    assert out[2]["targetId"] == ids[1]
    assert out[3]["targetId"] == ids[1]
    assert out[4]["targetId"] == ids[3]


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        ("0", None),
        ("1", 0),
        ("2", 1),
        ("3", None),
        ("4", None),
        ("5", None),
        ("-1", None),
        ("9" * 40, None),
    ],
)
def test_first_kept_index_counts_all_records(index: str, kept: int | None) -> None:
    """Migration: firstKeptEntryIndex. The header is 0; only an earlier entry can be kept; the index
    goes away in any case."""
    compaction = b'{"type":"compaction","firstKeptEntryIndex":%s,"summary":"s"}' % index.encode()
    out = upgraded(message(None, None), message(None, None), compaction, message(None, None))
    assert "firstKeptEntryIndex" not in out[2]
    assert out[2].get("firstKeptEntryId") == (None if kept is None else out[kept]["id"])
    assert list(out[2])[:2] == ["type", "summary"]


@pytest.mark.parametrize("index", ["1.0", '"1"', "true", "null", "[1]", "1e0"])
def test_an_index_that_is_no_integer_stays(index: str) -> None:
    """What is no index is data."""
    compaction = b'{"type":"compaction","firstKeptEntryIndex":%s}' % index.encode()
    out = upgraded(message(None, None), compaction)
    assert "firstKeptEntryIndex" in out[1]
    assert "firstKeptEntryId" not in out[1]


def test_an_index_wins_over_an_id_and_other_types_keep_theirs() -> None:
    """A compaction with both is read by its index where that means something."""
    both = b'{"firstKeptEntryId":"b","type":"compaction","firstKeptEntryIndex":%d}'
    other = b'{"type":"custom","firstKeptEntryIndex":1}'
    out = upgraded(message("a", None), message("b", None), both % 1, both % 0, other)
    assert out[2]["firstKeptEntryId"] == out[0]["id"]
    assert out[3]["firstKeptEntryId"] == out[1]["id"]
    assert out[4]["firstKeptEntryIndex"] == 1


def test_first_kept_index_in_a_salvage() -> None:
    """Recovered records count, left-out ones do not, and a lost header was record 0."""
    one, two = message(None, None, "1"), message(None, None, "2")
    compaction = b'{"type":"compaction","firstKeptEntryIndex":2}'
    out = upgraded(one + two, b"garbage", compaction, salvage=True)
    assert out[2]["firstKeptEntryId"] == out[1]["id"]
    lost = [json.loads(r) for r in read(jsonl(one, two, compaction), salvage=True)[1]]
    assert lost[2]["firstKeptEntryId"] == lost[1]["id"]


def test_second_headers_stay_outside_the_chain() -> None:
    """Their bytes are kept, they get no id of an entry, and no index means them."""
    second = header(version=1)
    compaction = b'{"type":"compaction","firstKeptEntryIndex":2}'
    data = jsonl(header(version=1), message(None, None), second, message(None, None), compaction)
    raws = read(data)[1]
    assert raws[1] == second
    one, _, three, last = (json.loads(raw) for raw in raws)
    assert three["parentId"] == one["id"]
    assert "firstKeptEntryId" not in last


def test_version_2_keeps_ids_and_renames_one_role() -> None:
    """Migration: hookMessage. Only messages of that role change, however the role is spelled."""
    keep = [
        message("a", None, "hookMessage"),
        dump({"type": "custom", "id": "c", "message": {"role": "hookMessage"}}),
        b'{"type":"message","id":"d"}',
        b'{"type":"message","id":"e","message":{}}',
        b'{ "type":"compaction", "id":"f", "firstKeptEntryIndex":1 }',
    ]
    hook = b'{"type":"message", "id":"h","message":{ "role" : "hook\\u004dessage","n":1.0} }\r'
    _, entries = read(jsonl(header(version=2), *keep, hook))
    assert entries[:-1] == keep
    assert entries[-1] == hook.replace(b'"hook\\u004dessage"', b'"custom"')
    assert upgraded(hook, version=1)[0]["message"] == {"role": "custom", "n": 1.0}


def test_version_3_keeps_everything() -> None:
    """A hookMessage or an index in a version 3 file is data."""
    records = [dump({"type": "message", "message": {"role": "hookMessage"}})]
    records += [dump({"type": "compaction", "firstKeptEntryIndex": 0})]
    assert read(jsonl(header(), *records))[1] == records


def test_legacy_id_never_hides_a_member() -> None:
    """An entry that has such a member already keeps both."""
    out = upgraded(dump({"type": "x", "id": "old", "legacyId": "mine"}))
    assert (out[0]["legacyId"], out[0]["legacyId_"]) == ("mine", "old")


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_entries = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "compaction", "label", "session"]),
            "id": st.sampled_from(["a", "b", "c", None, 3]),
            "targetId": st.sampled_from(["a", "b", "zz"]),
            "firstKeptEntryIndex": st.integers(-1, 6),
            "message": st.fixed_dictionaries({"role": st.sampled_from(["hookMessage", "user"])}),
            "data": _values,
            "ключ": _values,
        },
    ),
    max_size=7,
)


@given(_entries, st.booleans(), st.sampled_from([(",", ":"), (" , ", "\t:  ")]))
def test_upgrade_against_a_model(
    entries: list[dict[str, Any]], ascii_only: bool, separators: tuple[str, str]
) -> None:
    """Spliced bytes decode to what an upgrade of decoded objects gives."""
    lines = [
        json.dumps(e, ensure_ascii=ascii_only, separators=separators).encode() for e in entries
    ]
    source = MemorySource(jsonl(header(version=1), *lines))
    analysis = analyse(source, limits=None)
    out = [json.loads(p.raw) for p in prepare(source, analysis)]
    ids = [
        None,
        *(
            None if e.get("type") == "session" else o["id"]
            for e, o in zip(entries, out, strict=True)
        ),
    ]
    parent = None
    for place, entry in enumerate(entries, 1):
        expected = dict(entry)
        if entry.get("type") != "session":
            expected |= {"id": ids[place], "parentId": parent}
            parent = ids[place]
            if entry.get("id") is not None:
                expected["legacyId"] = entry["id"]
            same = [
                n
                for n, e in enumerate(entries, 1)
                if e.get("id") == entry.get("targetId", ...) and e.get("type") != "session"
            ]
            if same:
                expected["targetId"] = ids[max((n for n in same if n < place), default=min(same))]
            if entry.get("type") == "compaction" and "firstKeptEntryIndex" in entry:
                index = expected.pop("firstKeptEntryIndex")
                if 0 < index < place and ids[index]:
                    expected["firstKeptEntryId"] = ids[index]
            if entry.get("type") == "message" and entry.get("message") == {"role": "hookMessage"}:
                expected["message"] = {"role": "custom"}
        assert out[place - 1] == expected


def test_a_record_without_room_for_its_upgrade_is_refused() -> None:
    """Decided before anything is written: version 3 takes the same record as it is."""
    giant = b'{"v":"' + b"x" * (LINE_BYTES_MAX - 500) + b'"}'
    assert analyse(MemorySource(jsonl(header(), giant)), limits=None).entry_count == 1
    with pytest.raises(LimitExceeded):
        analyse(MemorySource(jsonl(header(version=1), giant)), limits=None)
