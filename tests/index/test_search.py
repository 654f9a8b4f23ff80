"""The search index: found is what a naive search over all texts finds; removed is gone."""

from __future__ import annotations

import random
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treering.index import IndexFault, Position, SessionIndex
from treering.index.search import SearchIndex
from treering.index.search_query import find, fold, parse
from treering.index.search_rows import (
    ID_MAX,
    Feed,
    Field,
    FieldHit,
    Filters,
    Hit,
    QueryRefused,
    Text,
)

NOTHING = Filters()


def feed(session: str, texts: list[Text], *fields: Field) -> Feed:
    at = Position(texts[-1].sequence if texts else 0, 0, b"r")
    return Feed(session, b"j" * 16, at, b"s", "/w", None, texts, fields)


def said(sequence: int, text: str, *, time: int | None = None, role: str | None = "user") -> Text:
    return Text(sequence, sequence * 100, "message", role, time, text)


def words_of(text: str) -> list[str]:
    """What unicode61 makes of a text: letters and digits, without case and accents."""
    bare = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", bare.lower())


def found(index: SearchIndex, query: str, filters: Filters = NOTHING, **more: Any) -> list[Any]:
    match = parse(query).match
    assert match is not None
    hits = index.newest(match, filters, limit=more.pop("limit", 1000), **more)
    return [(hit.session_id, hit.sequence) for hit in hits]


# Queries


@pytest.mark.parametrize(
    ("query", "match", "scanned"),
    [
        ("red apple", '"red" AND "apple"', ()),
        ('"red apple" x', '"red apple" AND "x"', ()),
        ("app*", '"app" *', ()),
        ('"red app"*', '"red app" *', ()),
        ("a OR b", '"a" AND "OR" AND "b"', ()),
        ("NOT NEAR(a, b)", '"NOT" AND "NEAR(a," AND "b)"', ()),
        ('un"closed phrase', '"un" AND "closed phrase"', ()),
        ("text:x", '"text:x"', ()),
        ("^a -b", '"^a" AND "-b"', ()),
        ("++", None, ("++",)),
        ("日本 Red", '"Red"', ("日本",)),
        ("   ", None, ()),
        ('""', None, ()),
        ("*", None, ("*",)),
        ("a\0b", '"a" AND "b"', ()),
    ],
)
def test_a_query_is_words_phrases_and_beginnings(
    query: str, match: str | None, scanned: tuple[str, ...]
) -> None:
    understood = parse(query)
    assert (understood.match, understood.scanned) == (match, scanned)


@pytest.fixture(scope="module")
def shared() -> Iterator[SearchIndex]:
    with SearchIndex.memory() as index:
        index.feed([feed("s", [said(1, 'OR AND NOT NEAR "quoted" a* text:x'), said(2, "b")])])
        yield index


@settings(max_examples=300, deadline=None)
@given(query=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_query_is_syntax(shared: SearchIndex, query: str) -> None:
    """Whatever is typed: FTS5 takes it."""
    match = parse(query).match
    if match is not None:
        shared.newest(match, NOTHING, limit=5)
        shared.ranked(match, NOTHING, among=10, limit=5)


@pytest.mark.parametrize("query", ["AND", "a OR", '"open', "(", "other:x", "NEAR(", "a ^", "*"])
def test_a_raw_query_is_refused_by_a_typed_error(shared: SearchIndex, query: str) -> None:
    with pytest.raises(QueryRefused):
        shared.newest(query, NOTHING, limit=5, raw=True)
    with pytest.raises(QueryRefused):
        shared.ranked(query, NOTHING, among=5, limit=5, raw=True)
    assert found(shared, "b") == [("s", 2)]


def test_a_match_is_found_in_the_text() -> None:
    assert find(parse("apple").terms, "pineapple, ÄPPLE!") == (11, 16)
    assert find(parse('"red apple"').terms, "a red, apple") == (2, 12)
    assert find(parse("ber*").terms, "a number, a Berg") == (12, 15)
    assert find(parse("本語").terms, "日本語") == (1, 3)
    assert find(parse("nothing").terms, "else") is None
    assert fold("ÄÖéİß") == "aoeiß"


# Against a naive search

WORDS = ["red", "Red", "äpple", "apple", "pie", "x1", "under_score", "re"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
ENTRIES = st.tuples(
    TEXTS, st.none() | st.integers(-5, 4_000), st.sampled_from(["user", "assistant", None])
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "feed", "forget", "retire"]),
        st.sampled_from(["a", "b", "c"]),
        st.lists(ENTRIES, max_size=6),
    ),
    max_size=8,
)
QUERIES = ["red", "apple pie", '"red apple"', "app*", '"pie re"*', "under", "x1 red", "re", "none"]


def holds(query: str, text: str) -> bool:
    words = words_of(text)
    for term in parse(query).terms:
        wanted = words_of(term.text)
        starts = range(len(words) - len(wanted) + 1)
        last = len(wanted) - 1
        if not any(
            words[at : at + last] == wanted[:last]
            and (
                words[at + last].startswith(wanted[last])
                if term.prefix
                else words[at + last] == wanted[last]
            )
            for at in starts
        ):
            return False
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 4_000), st.integers(1, 4))
def test_it_finds_what_a_naive_search_finds(steps: list[Any], since: int, limit: int) -> None:
    index, texts = SearchIndex.memory(), dict[str, dict[int, Text]]()
    dead, sequence = set[str](), 0
    with index:
        for what, session, entries in steps:
            known = texts.setdefault(session, {})
            if what == "feed":
                new = []
                for text, time, role in entries:
                    sequence += 1
                    new.append(said(sequence, text, time=time, role=role))
                index.feed([feed(session, new)])
                known.update((text.sequence, text) for text in new)
            elif what == "retire":
                index.retire(session)
                if known:
                    dead.add(session)
                known.clear()
            else:
                gone = index.forget(session, lambda hit: texts[hit.session_id][hit.sequence].text)
                assert gone == (session not in dead)
                if gone:
                    known.clear()
        numbers = {name: fed.number for name, fed in index.sessions().items()}
        every = [(name, text) for name, known in texts.items() for text in known.values()]
        for query in QUERIES:
            matching = [(name, text) for name, text in every if holds(query, text.text)]
            expected = {(name, text.sequence) for name, text in matching}
            assert set(found(index, query)) == expected
            assert len(found(index, query)) == len(expected)
            users = Filters(roles=["user"], since_ms=since)
            assert set(found(index, query, users)) == {
                (name, text.sequence)
                for name, text in matching
                if text.role == "user" and text.time_ms is not None and text.time_ms >= since
            }
            until = Filters([numbers["a"]] if "a" in numbers else [], until_ms=since)
            assert set(found(index, query, until)) == {
                (name, text.sequence)
                for name, text in matching
                if name == "a" and text.time_ms is not None and text.time_ms < since
            }
            check_pages(index, query, limit, among_live=not dead)
        index.self_check()


def check_pages(index: SearchIndex, query: str, limit: int, *, among_live: bool) -> None:
    """Pages are the whole, in order; ranked pages too, in theirs."""
    match = parse(query).match
    assert match is not None
    whole = index.newest(match, NOTHING, limit=1000)
    assert [hit.id for hit in whole] == sorted((hit.id for hit in whole), reverse=True)
    pages: list[Hit] = []
    before = ID_MAX
    while page := index.newest(match, NOTHING, before=before, limit=limit):
        pages += page
        before = page[-1].id
    assert pages == whole
    ranked = index.ranked(match, NOTHING, among=1000, limit=1000)
    assert sorted(ranked) == sorted(whole)
    skipped = [
        hit
        for skip in range(0, len(whole), limit)
        for hit in index.ranked(match, NOTHING, among=1000, skip=skip, limit=limit)
    ]
    assert skipped == ranked
    newest = {hit.id for hit in index.ranked(match, NOTHING, among=2, limit=1000)}
    best = {hit.id for hit in whole[:2]}
    assert newest == best if among_live else newest <= best  # the dead count, and are not shown


def test_the_newest_comes_first_whatever_was_fed_when() -> None:
    with SearchIndex.memory() as index:
        index.feed([feed("new", [said(1, "x", time=9_000)])])
        index.feed(
            [feed("old", [said(1, "x", time=1_000), said(2, "x"), said(3, "x", time=9_500)])]
        )
        hits = [("old", 3), ("new", 1), ("old", 2), ("old", 1)]
        assert found(index, "x") == hits


def test_more_texts_than_numbers_in_one_millisecond() -> None:
    with SearchIndex.memory() as index:
        for start in (0, 700, 1400):
            index.feed([feed("s", [said(n, "x", time=7) for n in range(start, start + 700)])])
        index.feed([feed("t", [said(1, "x", time=5)])])
        hits = found(index, "x", limit=5000)
        assert hits == [*(("s", n) for n in reversed(range(2100))), ("t", 1)]


def test_the_best_comes_first_where_asked() -> None:
    with SearchIndex.memory() as index:
        texts = ["pie", "pie and much else that says nothing of it at all", "pie pie pie"]
        index.feed([feed("s", [said(n, text, time=n) for n, text in enumerate(texts)])])
        ranked = index.ranked("pie", NOTHING, among=10, limit=10)
        assert [hit.sequence for hit in ranked] == [2, 0, 1]


# Short fields


def test_short_fields_are_found_by_any_part() -> None:
    with SearchIndex.memory() as index:
        index.feed(
            [
                feed(
                    "s", [], Field("name", 0, "Grüße, 日本語"), Field("first", 0, "one", keep=True)
                ),
                feed("t", [], Field("name", 0, "other"), Field("path", 0, '/home/"odd" path')),
            ]
        )
        every = ["name", "first", "path"]

        def names(part: str, sessions: list[int] | None = None) -> list[str]:
            return [hit.text for hit in index.fields(part, every, sessions, limit=10)]

        assert names("ruß") == ["Grüße, 日本語"]
        assert names("GRU") == ["Grüße, 日本語"]
        assert names("本") == ["Grüße, 日本語"]
        assert names("O") == ['/home/"odd" path', "other", "one"]
        assert names('"odd"') == ['/home/"odd" path']
        assert names("the", [index.sessions()["s"].number]) == []
        assert names("the", []) == names("zz") == []
        index.feed(
            [feed("s", [], Field("name", 0, "renamed"), Field("first", 0, "two", keep=True))]
        )
        assert names("ruß") == names("two") == []
        assert index.fields("ren", ["name"], None, limit=1) == [FieldHit("s", "name", 0, "renamed")]
        index.feed([feed("s", [], Field("name", 0, None))])
        assert names("renamed") == []
        index.retire("t")
        assert names("other") == []
        index.self_check()


# Removing


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_not_a_byte_of_forgotten_words_is_left(tmp_path: Path) -> None:
    """In the main file, between its cells, or in the -wal. (Words that share their beginning are
    stored without it, so what is looked for comes after beginnings that differ.)"""
    drawn = random.Random(4)
    plain = ["".join(drawn.choices("abcdefgh", k=7)) for _ in range(3_000)]
    secret = [word[:5] + "zqzq" + word[5:] for word in plain]
    texts = {
        (name, n): " ".join(drawn.choices(secret if name == "gone" else plain, k=12))
        for n in range(1_000)
        for name in ("kept", "gone")
    }
    path = tmp_path / "search_.1.sqlite3"
    with SearchIndex.open(str(path), create=True) as index:
        for start in range(0, 1_000, 250):
            for name in ("kept", "gone"):
                part = [said(n, texts[name, n], time=n * 7) for n in range(start, start + 250)]
                index.feed([feed(name, part, Field("name", 0, f"the {name} name"))])
        assert bytes_of(tmp_path).count(b"zqzq") > 3_000
        word = texts["kept", 5].split()[0]
        before = found(index, word)
        assert index.forget("gone", lambda hit: texts[hit.session_id, hit.sequence])
        assert b"zqzq" not in bytes_of(tmp_path)
        assert b"gone" not in bytes_of(tmp_path)
        assert index.forget("gone", lambda _: None)  # there is nothing of it any more
        assert found(index, word) == before
        index.self_check()
    assert b"zqzq" not in bytes_of(tmp_path)
    assert word.encode()[-3:] in bytes_of(tmp_path)


def test_nothing_is_forgotten_by_halves(tmp_path: Path) -> None:
    with SearchIndex.open(str(tmp_path / "search_.1.sqlite3"), create=True) as index:
        index.feed([feed("s", [said(n, f"word{n}", time=n) for n in range(5)])])
        assert not index.forget(
            "s", lambda hit: "other" if hit.sequence == 3 else f"word{hit.sequence}"
        )
        assert not index.forget("s", lambda _: None)
        assert [found(index, f"word{n}") for n in range(5)] == [[("s", n)] for n in range(5)]
        index.self_check()
        with pytest.raises(ZeroDivisionError):
            index.forget("s", lambda _: str(1 // 0))
        assert index.counts() == (5, 0)
        index.retire("s")
        assert index.counts() == (0, 5)
        assert not index.forget("s", lambda hit: f"word{hit.sequence}")


def test_a_reader_that_stays_is_told(tmp_path: Path) -> None:
    """Its snapshot keeps the -wal, and the words in it."""
    path = str(tmp_path / "search_.1.sqlite3")
    with SearchIndex.open(path, create=True, busy_timeout_ms=50) as index:
        index.feed([feed("s", [said(1, "secret")])])
        with SearchIndex.open(path, readonly=True) as reader, reader.snapshot():
            assert found(reader, "secret") == [("s", 1)]
            assert not index.forget("s", lambda _: "secret")
            assert found(reader, "secret") == [("s", 1)]
        assert found(index, "secret") == []


# Files


def made(path: Path) -> Path:
    with SearchIndex.open(str(path), create=True) as index:
        index.feed([feed("s", [said(1, "word")])])
    return path


def test_a_good_file_opens_again(tmp_path: Path) -> None:
    path = made(tmp_path / "search_.1.sqlite3")
    assert path.stat().st_mode & 0o777 == 0o600
    with SearchIndex.open(str(path), readonly=True) as index:
        assert found(index, "word") == [("s", 1)]
        assert index.sessions()["s"].position == Position(1, 0, b"r")
        with pytest.raises(IndexFault):
            index.feed([feed("s", [said(2, "more")])])


def spoil(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "garbage":
        path.write_bytes(random.Random(1).randbytes(8_192))
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5_000])
    elif how == "copy":
        shutil.copy(path, path.with_suffix(".copy"))
        path.unlink()
        path.with_suffix(".copy").rename(path)
    elif how == "session":
        path.unlink()
        SessionIndex.open(str(path), create=True).close()
    else:
        db = apsw.Connection(str(path))
        db.execute(how)
        db.close()


@pytest.mark.parametrize(
    "how",
    [
        "missing", "empty", "garbage", "folder", "cut", "copy", "session",
        "PRAGMA user_version=0", "PRAGMA user_version=99", "PRAGMA application_id=7",
        "DROP TABLE field", "DELETE FROM state",
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(tmp_path: Path, how: str) -> None:
    path = made(tmp_path / "search_.1.sqlite3")
    spoil(path, how)
    with pytest.raises(IndexFault):
        SearchIndex.open(str(path))
