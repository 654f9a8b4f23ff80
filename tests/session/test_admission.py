"""What cannot be stored is refused with a typed error before a byte is written."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from session_helpers import custom, new

from treering.engine import InvalidEntry, InvalidId, LimitExceeded, TreeringError
from treering.engine.limits import PAYLOAD_BYTES_MAX

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass
class Plain:
    x: Any
    baseContextEpoch: Any = None  # noqa: N815


class Struct(msgspec.Struct):
    x: Any


class Key(enum.Enum):
    ID = "id"
    FORGED = "requestOutput"
    TYPE = "type"


class StrKey(str, enum.Enum):
    FORGED = "plannerRequest"


class IntThing(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (NAN, "$.data"),
        ({"a": [1, {"b": -INF}]}, "$.data.a[1].b"),
        ((1, INF), "$.data[1]"),
        (Struct(NAN), "$.data.x"),
        ([None, {"k": NAN}], "$.data[1].k"),
    ],
)
def test_F124_nan_and_infinity_are_refused_with_their_path(
    tmp_path: Path, value: Any, where: str
) -> None:
    """NaN and Infinity are never stored, least of all as null; the error says where."""
    session = new(tmp_path)
    size = session._writer.size
    with pytest.raises(InvalidEntry) as caught:
        session.append(custom(data=value))
    assert where in str(caught.value)
    assert session._writer.size == size
    session.close()


@pytest.mark.parametrize(
    "value",
    [
        {NAN},
        frozenset((1.0, INF)),
        Plain(NAN),
        [Plain([Plain(-INF)])],
        collections.deque([NAN]),
        collections.UserDict({"a": NAN}),
        {NAN: 1},
        {"a": {INF: 1}},
        {1: NAN},
        {"x": ({"y"}, {3: {NAN}})},
    ],
    ids=repr,
)
def test_F124_nan_hides_nowhere(tmp_path: Path, value: Any) -> None:
    """S05: in sets, dataclasses, keys and other containers too: refused, or stored as it is."""
    session = new(tmp_path)
    try:
        entry_id = session.append(custom(data=value))
    except TreeringError:
        assert session.entries() == []
    else:
        assert b"null" not in session.read(entry_id).raw.replace(b'"parentId":null', b"")
    session.close()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"custom","id":"a","x":NaN}',
        b'{"type":"custom","id":"a","x":-Infinity}',
        b'{"type":"custom","id":"a","x":1,}',
        b'{"type":"custom","id":"a"}{"type":"custom","id":"b"}',
        b'{"type":"custom","id":"a"} x',
        b'\xef\xbb\xbf{"type":"custom","id":"a"}',
        b'{"type":"custom","id":"a","x":"\xff"}',
        b'{"type":"custom","id":"a","x":"\xed\xa0\x80"}',
        b'{"type":"custom","id":"a","x":"\\ud800"}',
        b'{"type":"custom","id":"a","\\udfff":1}',
        b'{"type":"custom",\n"id":"a"}',
        b'{"type":"custom","id":"a","x":"a\nb"}',
        b'{"type":"custom","id":"a","x":"a\x00b"}',
        b'{"type":"custom","id":"a"',
        b'["custom"]',
        b"null",
        b"",
        b"   ",
        b'{"id":"a"}',
        b'{"type":"custom"}',
        b'{"type":5,"id":"a"}',
        b'{"type":"custom","id":5}',
        b'{"type":"custom","id":""}',
        b'{"type":"custom","id":"a\\u0000"}',
        b'{"type":"","id":"a"}',
        b'{"type":"session","id":"a"}',
        b'{"type":"custom","id":"a","x":01}',
        b'{"type":"custom","id":"' + b"x" * 513 + b'"}',
        b"\x89TRNG\r\n\x1a",
    ],
    ids=lambda raw: repr(raw)[:40],
)
def test_bytes_that_are_no_entry(tmp_path: Path, raw: bytes) -> None:
    """Exact bytes are checked as strictly as an import; nothing is written."""
    session = new(tmp_path)
    size = session._writer.size
    with pytest.raises((InvalidEntry, InvalidId)):
        session.append(raw)
    assert session._writer.size == size
    session.close()


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"type": None},
        {"type": 3},
        {"type": "session"},
        {"type": "custom", "id": 3},
        {"type": "custom", "id": ""},
        {"type": "custom", "id": "x" * 513},
        {"type": "custom", "id": "a\0b"},
        {"type": "custom", "id": "\ud800"},
        {"type": "custom", "parentId": 3},
        {"type": "custom", "parentId": "\ud800"},
        {"type": "custom", "timestamp": 3},
        {"type": "custom", "timestamp": "\udfff"},
        {"type": "\ud800"},
        {"type": "custom", "data": "\ud800"},
        {"type": "custom", "data": {"\ud800": 1}},
        {"type": "custom", "data": ["ok", "a\udc00"]},
        {"type": "custom", "data": object()},
        {"type": "custom", "data": lambda: 1},
        {"type": "custom", "data": 1j},
        {"type": "custom", "data": {(1, 2): 3}},
        "text",
        5,
        None,
        [("type", "custom")],
    ],
    ids=lambda entry: ascii(entry)[:40],
)
def test_values_that_are_no_entry(tmp_path: Path, entry: Any) -> None:
    """A typed error says what is wrong; nothing is written."""
    session = new(tmp_path)
    size = session._writer.size
    with pytest.raises((InvalidEntry, InvalidId)) as caught:
        session.append(entry)
    if isinstance(entry, dict) and isinstance(entry.get("data"), list):
        assert "$.data[1]" in str(caught.value)
    assert session._writer.size == size
    session.close()


@pytest.mark.parametrize(
    "entry",
    [
        custom(requestOutput={}),
        custom(requestOutputs=None),
        custom(plannerRequest=1),
        custom(details={"baseContextEpoch": 1}),
        b'{"type":"custom","id":"a","requestOutput":1}',
        b'{"type":"custom","id":"a","request\\u004futput":1}',
        b'{"type":"custom","id":"a","details":{"base\\u0043ontextEpoch":1}}',
        b'{"type":"custom","id":"a","details":{"x":{}, "baseContextEpoch":null}}',
        {"type": "custom", Key.FORGED: 1},
        {"type": "custom", StrKey.FORGED: 1},
        custom(details=Plain(1, 2)),
        custom(details=msgspec.Raw(b'{"baseContextEpoch":1}')),
        custom(details=collections.UserDict({"baseContextEpoch": 1})),
    ],
    ids=lambda entry: repr(entry)[:60],
)
def test_forged_members_are_refused(tmp_path: Path, entry: Any) -> None:
    """Members that only the engine writes cannot be handed in, however they are spelt (S07)."""
    session = new(tmp_path)
    with pytest.raises(InvalidEntry):
        session.append(entry)
    assert session.entries() == []
    session.close()


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "custom", Key.ID: "other"},
        {"type": "custom", Key.TYPE: "label"},
        {"type": "custom", "data": msgspec.Raw(b"nope\n}")},
        {"type": "custom", "data": msgspec.Raw(b'1,"id":"forged"')},
        {"type": "custom", "data": msgspec.Raw(b'"\xff"')},
        {"type": "custom", 1: 2, "1": 3},
        {"type": "custom", "data": IntThing.ONE},
        {"type": "custom", "data": {1: 2}},
        {"type": "custom", "data": b"bytes"},
    ],
    ids=lambda entry: repr(entry)[:60],
)
def test_what_is_acknowledged_can_be_read(tmp_path: Path, entry: Any) -> None:
    """S06: whatever a mapping holds, an acknowledged entry is one JSON object on one line, has
    the id
    that was returned, and each member once."""
    session = new(tmp_path)
    try:
        entry_id = session.append(entry)
    except TreeringError:
        assert session.entries() == []
    else:
        raw = session.read(entry_id).raw
        assert b"\n" not in raw
        pairs = json.loads(raw, object_pairs_hook=lambda pairs: pairs)
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names))
        assert dict(pairs)["id"] == entry_id
        assert dict(pairs)["type"] == "custom"
    session.close()


def test_key_order_is_kept(tmp_path: Path) -> None:
    """Members come out in the order in which they went in, at every level."""
    session = new(tmp_path)
    data = {"z": 1, "a": {"y": 1, "b": [{"q": 1, "c": 2}]}, "m": 0}
    raw = session.read(session.append({"zz": 1, "type": "custom", "data": data, "aa": 2})).raw
    assert raw.endswith(b'"zz":1,"data":{"z":1,"a":{"y":1,"b":[{"q":1,"c":2}]},"m":0},"aa":2}')
    session.close()


def test_the_size_limit_is_exact(tmp_path: Path) -> None:
    """64 MiB of bytes fit into a frame; one byte more is refused before anything is written."""
    session = new(tmp_path)
    head, tail = b'{"type":"custom","id":"big","x":"', b'"}'
    fits = head + b"x" * (PAYLOAD_BYTES_MAX - len(head) - len(tail)) + tail
    size = session._writer.size
    with pytest.raises(LimitExceeded) as caught:
        session.append(fits[:-2] + b'x"}')
    assert caught.value.limit == PAYLOAD_BYTES_MAX
    assert caught.value.need == PAYLOAD_BYTES_MAX + 1
    with pytest.raises(LimitExceeded):
        session.append(custom(data="x" * PAYLOAD_BYTES_MAX))
    assert session._writer.size == size
    assert session.append(fits) == "big"
    assert session.read("big").raw == fits
    session.close()


def nested(depth: int) -> Any:
    """A value with so many lists inside each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def at_depth(frames: int, call: Any) -> Any:
    """Call from that many frames below."""
    return call() if frames <= 0 else at_depth(frames - 1, call)


def given_as(form: str, depth: int) -> Any:
    """An entry; ``depth`` counts its own object."""
    if form == "bytes":
        inside = b"[" * (depth - 1) + b"]" * (depth - 1)
        return b'{"type":"custom","id":"d","x":' + inside + b"}"
    return {"type": "custom", "id": "d", "x": nested(depth - 1)}


def verdict_of(session: Any, given: Any, depth: int) -> str:
    """ok, or the name of the typed error."""
    try:
        session.append(given)
    except TreeringError as error:
        return type(error).__name__
    assert session.read("d").raw.count(b"[") == depth - 1
    return "ok"


@pytest.mark.parametrize("place", ["top", "deep", "small stack"])
@pytest.mark.parametrize("form", ["bytes", "mapping"])
@pytest.mark.parametrize(
    ("depth", "wanted"),
    [
        (127, "ok"),
        (128, "ok"),
        (129, "LimitExceeded"),
        (1100, "LimitExceeded"),
        (100_000, "LimitExceeded"),
    ],
)
def test_F126_nesting_has_the_same_verdict_everywhere(
    tmp_path: Path, place: str, form: str, depth: int, wanted: str
) -> None:
    """128 levels are taken and 129 refused, from call depth 0, from call depth 800, and in a thread
    with a stack of 256 KB; other entries stay readable."""
    session = new(tmp_path)
    session.append(custom("before"))
    # Made and freed here: CPython 3.13 itself overruns 256 KB when it frees 100,000 nested lists.
    given = given_as(form, depth)
    if place == "top":
        found = verdict_of(session, given, depth)
    elif place == "deep":
        here = 0
        frame: Any = sys._getframe()
        while frame is not None:
            here, frame = here + 1, frame.f_back
        found = at_depth(800 - here, lambda: verdict_of(session, given, depth))
    else:
        results: list[str] = []
        old = threading.stack_size(256 * 1024)
        try:
            thread = threading.Thread(
                target=lambda: results.append(verdict_of(session, given, depth))
            )
            thread.start()
            thread.join()
        finally:
            threading.stack_size(old)
        found = results[0] if results else "died"
    assert found == wanted
    assert session.has("before")
    session.close()


def test_recursive_values_end(tmp_path: Path) -> None:
    """A value that contains itself is refused, not followed."""
    session = new(tmp_path)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises((InvalidEntry, LimitExceeded)):
        session.append(custom(data=loop))
    around: dict[str, Any] = {"nan": NAN}
    around["self"] = around
    with pytest.raises((InvalidEntry, LimitExceeded)):
        session.append(custom(data=around))
    session.close()
