"""The readers: every form, damage and hostile bytes, and that all of them say the same."""

from __future__ import annotations

import errno
import json
import os
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
    json_frames,
    link,
    oracle,
    our_journal,
    part,
    plain_lines,
    refinement,
    reports_of,
    source,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build import ENTRY, HEADER_BYTES, REQUEST, SESSION, Maker, make_store, put
from support.native_writer import QUALIFICATIONS, sealed

from treering import (
    AcknowledgedDataLost,
    Damaged,
    InvalidSource,
    LimitExceeded,
    NotFound,
    Session,
    SessionView,
    StorageError,
    TreeringError,
    Unsupported,
    aggregate_associations,
    fork_session,
    import_session,
    request_associations,
)
from treering.engine.associations.matching import ID_NAMES, Matcher
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.session.admission import admit

MAIN = "assistant_request_associations"
WHOLE = [header(), *both(), assistant(link())]
LINK = {"operationId": "o", "attemptIds": ["a"], "source": source()}
MATCHED = {MAIN: [{"assistant_entry_id": "m", "recorded_request": LINK}]}
NULL = {MAIN: [{"assistant_entry_id": "m", "recorded_request": None}]}


def alone(found: dict[str, Any]) -> dict[str, Any]:
    """The report without what is empty in it."""
    assert list(found) == list(ID_NAMES)
    return {name: elements for name, elements in found.items() if elements}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# Forms


def test_plain_lines_are_never_originals(tmp_path: Path) -> None:
    """37: neither are plain lines among frames."""
    path = write(tmp_path / "plain.jsonl", plain_lines(WHOLE))
    assert alone(request_associations(path)) == NULL
    assert alone(request_associations(str(path), verify=True)) == NULL
    lines = json_frames(WHOLE).splitlines(keepends=True)
    plain = plain_lines(WHOLE).splitlines(keepends=True)
    for at in range(4):
        mixed = [*lines[:at], plain[at], *lines[at + 1 :]]
        found = alone(request_associations(write(path, b"".join(mixed))))
        # One of two records of the attempt is enough.
        assert found == (NULL if at in (0, 3) else MATCHED)


def test_a_byte_copy_elsewhere(tmp_path: Path) -> None:
    """38: an archived copy matches: the file that a source names is not the one that is read."""
    store = make_store(tmp_path)
    kept = put(store, our_journal(WHOLE))
    for data in (json_frames(WHOLE), Path(kept).read_bytes()):
        (tmp_path / "archive").mkdir(exist_ok=True)
        path = write(tmp_path / "archive" / "copy.bak", data)
        assert alone(request_associations(path)) == MATCHED


def test_forks_and_imports_say_nothing(tmp_path: Path) -> None:
    """37: copies keep the bytes of links and records, and match no more."""
    home = str(tmp_path / "home")
    first = write(tmp_path / "first.jsonl", json_frames(WHOLE))
    store = make_store(tmp_path / "ours")
    ours = put(store, our_journal(WHOLE))
    copies = [import_session(path, cwd="/w", home_dir=home).path for path in (first, ours)]
    copies.append(fork_session(ours, "/w", home_dir=home).path)
    for path in copies:
        with Session.open(path) as session:
            assert json.loads(session.read("m").raw)["requestOutput"] == link()
            assert alone(request_associations(session)) == NULL
        assert alone(request_associations(path)) == NULL


def test_an_owned_session(tmp_path: Path) -> None:
    """From the index of an owner, also while the session grows."""
    with Session.create("/w", home_dir=str(tmp_path)) as session:
        own = source(sessionId=session.id)
        entries = [*both(source=own), assistant(link(source=own)), assistant(entry_id="m2")]
        for number, entry in enumerate(entries, 1):
            session.store_admitted([admit(json.dumps(entry).encode(), verified=True)], atomic=False)
            expected = oracle([header(session.id), *entries[:number]])
            assert request_associations(session) == expected
            assert request_associations(session.path) == expected
    assert request_associations(session.path)[MAIN][0]["recorded_request"] is not None


def test_batches_count_when_they_are_activated(tmp_path: Path) -> None:
    maker = Maker().started()
    maker.open()
    payloads = [json.dumps(entry).encode() for entry in WHOLE]
    request, settled, output = payloads[1:]
    staged = [
        maker.frame(kind, payload, flags=0x10)
        for kind, payload in ((REQUEST, request), (REQUEST, settled), (ENTRY, output))
    ]
    store = make_store(tmp_path)
    path = put(store, maker.whole())
    assert not any(request_associations(path).values())
    maker.activate(staged[0].sequence, staged[-1].sequence, staged[-1].revision)
    path = put(store, maker.whole())
    assert alone(request_associations(path)) == NULL  # the header of this journal is another's
    with SessionView.open(path) as view:
        assert alone(request_associations(view)) == NULL


def test_the_spelling_of_json_does_not_matter(tmp_path: Path) -> None:
    """Escapes, white space, CR, members that stand twice (the last counts), other members."""
    lines = plain_lines(WHOLE).decode().splitlines()
    lines[3] = (
        ' {"\\u0074ype" : "me\\u0073sage", "id":0, "id":"m", "more":[{"type":"request"}, "é"],'
        '"message":{"role":"user","role":"assistant"},'
        f'"requestOutput":{json.dumps(link())[:-1]},"note":1e999}} }}\r'
    )
    text = "".join(
        sealed(
            f'{{"journalFrame":1,"sequence":{n},"previousChecksum":null,"payload":{line}'.rstrip(
                "\r"
            )
        )[0]
        + "\r\n"
        for n, line in enumerate(lines)
    )
    path = write(tmp_path / "spelled.jsonl", text.encode())
    assert alone(request_associations(path)) == MATCHED
    with pytest.raises(InvalidSource, match="line 1 "):
        request_associations(path, verify=True)


@pytest.mark.parametrize(
    ("inside", "original", "epoch"),
    [
        ("", True, True),
        (',"retention":null', False, False),
        (',"retention":"x"', False, False),
        (',"qualification":null', False, False),
        (f',"qualification":"{EPOCH}"', False, True),
        (f',"qualification":["{EPOCH}"]', False, False),
        (',"qualification":"native-admission"', False, False),
    ],
)
def test_members_of_frames_count_by_being_there(
    tmp_path: Path, inside: str, original: bool, epoch: bool
) -> None:
    entries = [
        header(),
        event(),
        event(attempt="h", purpose="summary", purposeDetail="compaction"),
        assistant(link()),
        compaction([part("history", "h")]),
    ]
    lines = json_frames(entries).decode().splitlines(keepends=True)
    for at in (3, 4):
        lines[at] = lines[at].replace(',"payload"', f'{inside},"payload"', 1)
    found = request_associations(write(tmp_path / "f.jsonl", "".join(lines).encode()))
    assert (found[MAIN][0]["recorded_request"] is not None) == original
    outputs = found["compaction_request_associations"][0]["recorded_requests"]
    assert (outputs is not None) == epoch


@pytest.mark.parametrize("number", ["true", "1.0", "2", '"1"', "null", "[1]"])
def test_frames_are_those_of_the_integer_1(tmp_path: Path, number: str) -> None:
    text = json_frames(WHOLE).decode().replace('"journalFrame":1', f'"journalFrame":{number}')
    with pytest.raises(InvalidSource, match="no session header"):
        request_associations(write(tmp_path / "f.jsonl", text.encode()))


# Ends, damage, what is no session


def test_torn_ends(tmp_path: Path) -> None:
    """A torn end is left out at every byte; a frame without its newline is no original."""
    whole = json_frames(WHOLE)
    last = whole.rindex(b"\n", 0, -1) + 1
    path = tmp_path / "torn.jsonl"
    for end in range(last, len(whole) + 1):
        found = alone(request_associations(write(path, whole[:end])))
        assert found == (MATCHED if end == len(whole) else NULL if end == len(whole) - 1 else {})
        assert alone(request_associations(path, verify=True)) == found
    for torn in (b"\0" * 600, b"\xff", b'{"journalFrame":1', b"[" * 200):
        assert alone(request_associations(write(path, whole + torn))) == MATCHED
        assert alone(request_associations(path, verify=True)) == MATCHED


def test_torn_ends_of_our_journals(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    whole = our_journal(WHOLE)
    for torn in (b"\0" * 100, b"x", whole[HEADER_BYTES : HEADER_BYTES + 30]):
        path = put(store, whole + torn)
        assert alone(request_associations(path)) == MATCHED
        with SessionView.open(path) as view:
            assert alone(request_associations(view)) == MATCHED


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{", "line 2 is not JSON"),
        (b'{"a":"\xff"}', "line 2 is not UTF-8"),
        (b'{"a":NaN}', "NaN"),
        (b"\0\0", "NUL"),
        (b"5", "line 2 is a number"),
        (b"[" * 200 + b"]" * 200, "nests 200 deep"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "nests 200 deep"),
    ],
)
def test_lines_that_end_a_report(tmp_path: Path, line: bytes, why: str) -> None:
    """What cannot be read may speak against a match; the error says how far it got."""
    first, rest = json_frames(WHOLE).split(b"\n", 1)
    path = write(tmp_path / "bad.jsonl", b"\n".join([first, line, rest]))
    with pytest.raises(InvalidSource, match=why) as refused:
        request_associations(path)
    assert refused.value.offset == len(first) + 1
    assert refused.value.path == str(path)


def test_a_line_longer_than_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treering.engine.associations.raw.FRAME_BYTES_MAX", 2000)
    path = write(tmp_path / "long.jsonl", json_frames([*WHOLE, {"type": "x", "text": "y" * 2000}]))
    with pytest.raises(LimitExceeded, match="line 5"):
        request_associations(path)


def test_blank_lines_are_nothing(tmp_path: Path) -> None:
    data = json_frames(WHOLE).replace(b"\n", b"\n \r\n\n")
    assert alone(request_associations(write(tmp_path / "b.jsonl", data))) == MATCHED


def test_payloads_that_are_no_objects(tmp_path: Path) -> None:
    for value in (None, 5, [], "session", True):
        entries = [header(), value, *WHOLE[1:]]
        path = write(tmp_path / "p.jsonl", json_frames(entries))
        assert alone(request_associations(path)) == MATCHED
    data = json_frames(WHOLE) + b'{"journalFrame":1}\n'
    assert alone(request_associations(write(path, data))) == MATCHED


def test_verifying(tmp_path: Path) -> None:
    """Checksums do not matter to the reports; asked for, every frame and the chain must hold."""
    data = json_frames(WHOLE)
    path = write(tmp_path / "v.jsonl", data)
    assert alone(request_associations(path, verify=True)) == MATCHED
    lines = data.splitlines(keepends=True)
    changed = data.replace(b'"hi"', b'"ho"')
    for other in (
        changed,
        b"".join(lines[:1] + lines[2:]),
        b"".join([*lines[:2], lines[1], *lines[2:]]),
    ):
        assert alone(request_associations(write(path, other))) == MATCHED
        with pytest.raises(InvalidSource, match="line "):
            request_associations(path, verify=True)


def test_damage_is_no_report(tmp_path: Path) -> None:
    """A journal that lost something may have lost what speaks against a match."""
    store = make_store(tmp_path)
    whole = our_journal(WHOLE)
    for at in (HEADER_BYTES + 70, len(whole) // 2, 40):
        data = bytearray(whole)
        data[at] ^= 1
        path = put(store, bytes(data))
        with pytest.raises(Damaged):
            request_associations(path)
        try:
            with SessionView.open(path, beyond_damage=True) as view, pytest.raises(TreeringError):
                request_associations(view)
        except TreeringError:
            pass  # nothing of it can be seen
    path = put(store, whole[:20])
    with pytest.raises(TreeringError):
        request_associations(path)


def test_lost_data_is_no_report(tmp_path: Path) -> None:
    with Session.create("/w", home_dir=str(tmp_path)) as session:
        path = session.path
        size = os.path.getsize(path)
        session.append({"type": "custom", "customType": "x"})
    os.truncate(path, size)
    with pytest.raises(AcknowledgedDataLost):
        request_associations(path)


def test_what_is_not_understood_is_no_report(tmp_path: Path) -> None:
    maker = Maker().started()
    maker.open()
    maker.frame(99, b"{}")
    maker.close()
    path = put(make_store(tmp_path), maker.whole())
    with pytest.raises(Unsupported, match="not understood"):
        request_associations(path)
    with SessionView.open(path) as view, pytest.raises(Unsupported, match="not understood"):
        request_associations(view)


def test_optional_frames_are_passed_over(tmp_path: Path) -> None:
    maker = Maker()
    maker.open()
    maker.frame(SESSION, json.dumps(header()).encode())
    maker.close()
    maker.publish()
    maker.open()
    for kind, entry in ((REQUEST, event()), (ENTRY, assistant(link()))):
        maker.frame(200, b"anything")
        maker.frame(kind, json.dumps(entry).encode())
    path = put(make_store(tmp_path), maker.whole())
    assert alone(request_associations(path)) == MATCHED


@pytest.mark.parametrize("codec", [1, 2])
def test_payloads_that_cannot_be_produced(tmp_path: Path, codec: int) -> None:
    """They may be outputs, or records of one that has a link: neither reader leaves them out."""
    for kind in (ENTRY, REQUEST):
        maker = Maker().started()
        maker.open()
        maker.frame(ENTRY, json.dumps(assistant(link())).encode())
        maker.frame(kind, b"not zstd", codec=codec, raw=100)
        path = put(make_store(tmp_path / f"{kind}"), maker.whole())
        with pytest.raises(Damaged):
            request_associations(path)
        with SessionView.open(path) as view, pytest.raises(Damaged):
            request_associations(view)


def test_payloads_that_are_no_entries(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for payload in (
        b"",
        b"5",
        b"{",
        b'{"type":"request"',
        b"\xff",
        b'{"type":"message","a":"\xff"}',
    ):
        for kind in (ENTRY, REQUEST):
            maker = Maker()
            maker.open()
            maker.frame(SESSION, json.dumps(header()).encode())
            maker.close()
            maker.publish()
            maker.open()
            maker.frame(kind, payload)
            maker.frame(REQUEST, json.dumps(event()).encode())
            maker.frame(ENTRY, json.dumps(assistant(link())).encode())
            path = put(store, maker.whole())
            assert alone(request_associations(path)) == MATCHED
            with SessionView.open(path) as view:
                assert alone(request_associations(view)) == MATCHED


def test_what_is_no_session(tmp_path: Path) -> None:
    for data in (b"", b"\n\n", plain_lines(WHOLE[1:]), json_frames([{"type": "x"}]), b"{}\n", b"{"):
        with pytest.raises(InvalidSource, match="no session header"):
            request_associations(write(tmp_path / "n.jsonl", data))
    for data in (b"[]\n", b"\x28\xb5\x2f\xfd\n", b"hello\n"):
        with pytest.raises(InvalidSource, match="line 1"):
            request_associations(write(tmp_path / "n.jsonl", data))
    for data in (b"\x89TRNG\r\n\x1a", our_journal(WHOLE)[:HEADER_BYTES]):
        with pytest.raises(Damaged):
            request_associations(write(tmp_path / "n.jsonl", data))
    with pytest.raises(InvalidSource, match="directory"):
        request_associations(tmp_path)
    with pytest.raises(NotFound):
        request_associations(tmp_path / "missing.jsonl")
    with pytest.raises(TreeringError):
        request_associations("a\0b")


# Aggregates


def test_aggregates(tmp_path: Path) -> None:
    """One element for each session; later files replace earlier ones, but for plain ones."""

    def file(name: str, data: bytes, seconds: int) -> Path:
        path = write(tmp_path / name, data)
        os.utime(path, (seconds, seconds))
        return path

    other = header("other")
    paths = [
        file("late-plain", plain_lines(WHOLE), 50),
        file("late", json_frames([*WHOLE, assistant(entry_id="m2")]), 40),
        file("early", json_frames(WHOLE[:1]), 10),
        file("other", plain_lines([other, assistant()]), 20),
        file("other-later", plain_lines([other, assistant(entry_id="n")]), 30),
        file("none", b"", 35),
        file("no-id", plain_lines([header(None)]), 1),
        file("no-id-2", plain_lines([header("")]), 2),
    ]
    found = aggregate_associations(paths)
    assert list(found) == list(ID_NAMES)
    for elements in found.values():
        assert [(one["session_id"], Path(one["path"]).name) for one in elements] == [
            (None, "no-id"),
            (None, "no-id-2"),
            (SID, "late"),
            ("other", "other-later"),
        ]
    assert found[MAIN][2]["associations"] == request_associations(tmp_path / "late")[MAIN]
    assert [one["assistant_entry_id"] for one in found[MAIN][3]["associations"]] == ["n"]
    assert aggregate_associations([]) == {name: [] for name in ID_NAMES}
    ours = file("ours", our_journal(WHOLE), 60)
    assert aggregate_associations([*paths, ours])[MAIN][2]["path"] == str(ours)


def test_aggregates_fail_as_their_files_do(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", json_frames(WHOLE))
    bad = write(tmp_path / "bad.jsonl", json_frames(WHOLE).replace(b"{", b"(", 1))
    with pytest.raises(InvalidSource, match="line 1"):
        aggregate_associations([good, bad])
    with pytest.raises(NotFound):
        aggregate_associations([good, tmp_path / "missing"])
    with pytest.raises(InvalidSource):
        aggregate_associations(["a\0b"])


# Anything


def _linked() -> list[dict[str, Any]]:
    """An output of each kind that matches."""
    return [
        *both("a"),
        assistant(link("a")),
        *both("h", purpose="summary", purposeDetail="compaction"),
        *both("t", purpose="summary", purposeDetail="compaction-turn-prefix"),
        compaction([part("history", "h"), part("turn-prefix", "t")], fromHook=False),
        *both("b", purpose="summary", purposeDetail="branch"),
        branch_summary(link("b")),
        *both("p", purpose="refine", purposeDetail="plan"),
        refinement(link("p")),
        assistant(link("a", "b"), entry_id="m2"),
    ]


_SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 1.0, 0.0, 1.5, 2**53, 2**64, 10**30, "", "a", "b", "o", "\ud800"])
    | st.sampled_from([SID, "main", "summary", "branch", "assistant", "session", "request", "ä"])
)
_NAMES = st.sampled_from(["sessionId", "leafId", "usage", "part", "retention", "fromHook", "x"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container inside a value with a key of it, or with a new one."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            found += [(one, name) for name in [*one, "more"]]
            todo += one.values()
        elif isinstance(one, list):
            found += [(one, at) for at in range(len(one))]
            todo += one
    return found


def _spoil(data: st.DataObject, entry: Any) -> None:
    """Change one member, take it away, or give it a twin of another name."""
    places = _places(entry)
    if not places:
        return
    inside, key = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        inside[key] = data.draw(_VALUES)
    elif isinstance(inside, list):
        inside.append(inside[key])
    elif inside.pop(key, None) is None:
        inside[data.draw(_NAMES)] = data.draw(_SCALARS)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_readers_and_rules_agree(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Raw and indexed readers, frames of both kinds, and the rules said slowly: the same.

    Sessions where everything matches, in any order, with a few things spoilt.
    """
    pieces = [Piece(entry) for entry in data.draw(st.permutations(_linked()))]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(pieces)))
        pieces.insert(at, Piece(data.draw(_VALUES | st.sampled_from([header(), header("x")]))))
    pieces.insert(0, Piece(header()))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(pieces) - 1))
        how = data.draw(st.integers(0, 7))
        if how == 0:
            pieces[at] = pieces[at]._replace(retained=True)
        elif how == 1:
            mark = data.draw(st.sampled_from(QUALIFICATIONS))
            pieces[at] = pieces[at]._replace(qualification=mark)
        elif at > 0:
            _spoil(data, pieces[at].entry)
    reports_of(make_store(tmp_path_factory.mktemp("any")), pieces)


def test_what_is_spoilt_would_match() -> None:
    """The property above begins with matches, not with nulls."""
    found = oracle([header(), *_linked()])
    for name, elements in found.items():
        parts = [one for each in elements for one in each.get("recorded_requests", [each])]
        nulls = [one for one in parts if one["recorded_request"] is None]
        assert [one.get("assistant_entry_id") for one in nulls] == (["m2"] if name == MAIN else [])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_hostile_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes changed anywhere: a report or a typed error, and nothing else."""
    whole = data.draw(st.sampled_from([json_frames(WHOLE), plain_lines(WHOLE), our_journal(WHOLE)]))
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    path = tmp_path_factory.mktemp("any") / "h.jsonl"
    path.write_bytes(changed)
    for verify in (False, True):
        try:
            json.dumps(request_associations(path, verify=verify), allow_nan=False)
        except TreeringError as error:
            assert str(error)


@pytest.mark.parametrize("size", [100, 20_000])
def test_huge_and_deep_fields(tmp_path: Path, size: int) -> None:
    """Null, never an error of the interpreter."""
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    values = ["y" * size, ["z"] * size, {str(n): n for n in range(size)}, deep, 10 ** (size // 5)]
    store = make_store(tmp_path)
    for value in values:
        entries = [header()]
        for name in ("operationId", "attemptIds", "source"):
            entries.append(assistant(link(**{name: value}), entry_id=name))
        entries += [assistant(value, entry_id="all"), compaction(value), event(attempt="x")]
        entries += [event(**{name: value}) for name in ("operationId", "source", "attemptId")]
        entries += [compaction([part(value)]), {"type": "request", "id": "q", "request": value}]
        found = reports_of(store, entries)
        assert all(one["recorded_request"] is None for one in found[MAIN])


def test_numbers_that_nobody_can_hold(tmp_path: Path) -> None:
    """JSON has them; as ids they are unknown, elsewhere they fit nothing."""
    for number in ("1e999", "-1e999", "9" * 5000):
        for name in ('"id": "m"', '"sourceSequence": 0', '"operationId": "o"'):
            lines = json_frames(WHOLE).decode().splitlines(keepends=True)
            assert name in lines[3]
            member = name.partition(":")[0]
            lines[3] = lines[3].replace(name, f"{member}: {number}")
            path = write(tmp_path / "n.jsonl", "".join(lines).encode())
            (element,) = request_associations(path)[MAIN]
            assert element["recorded_request"] is None
            assert element["assistant_entry_id"] == (None if "id" in name[:4] else "m")


# Corners


def test_verifying_what_has_few_newlines(tmp_path: Path) -> None:
    """A torn end longer than what is read at once; a torn file without any newline."""
    path = write(tmp_path / "t.jsonl", json_frames(WHOLE) + b'{"journalFrame":1' + b"x" * 3_000_000)
    assert alone(request_associations(path, verify=True)) == MATCHED
    path.write_bytes(json_frames([header()])[:-1])
    assert not any(request_associations(path, verify=True).values())


def test_entries_of_other_kinds_mean_nothing_to_a_matcher() -> None:
    matcher = Matcher()
    others = ({"type": "label"}, {"type": "custom", "customType": "x"}, {"type": ["message"]}, {})
    for entry in (header(), *others, {"type": "message", "message": {"role": "user"}}):
        matcher.take(entry, original=True, compaction_original=True)
    assert alone(matcher.report() or {}) == {}


def test_a_header_that_is_lost_under_a_view(tmp_path: Path) -> None:
    path = put(make_store(tmp_path), our_journal(WHOLE))
    with SessionView.open(path) as view:
        with open(path, "r+b") as file:
            file.seek(HEADER_BYTES + 70)
            file.write(bytes(400))
        with pytest.raises(Damaged, match="header is lost"):
            request_associations(view)


def test_a_file_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(make_store(tmp_path), our_journal(WHOLE))
    broken = OSError(errno.EIO, "Input/output error")

    class Unwilling(type(LOCAL_DISK)):  # type: ignore[misc]
        def open(self, path: str, *, write: bool = False) -> Any:
            file = super().open(path, write=write)
            looked = file.stat()
            stats = iter([looked])

            def stat() -> Any:
                found = next(stats, None)
                if found is None:
                    raise broken
                return found

            file.stat = stat
            return file

    monkeypatch.setattr("treering.engine.associations.raw.LOCAL_DISK", Unwilling())
    with pytest.raises(StorageError, match="look at the session"):
        request_associations(path)
