"""Searching a store: what is found, shown, paged, filtered, and what states of files change it."""

from __future__ import annotations

import glob
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import flip

from treering.engine import Invalid, Session, repair
from treering.engine.home import Store
from treering.engine.search import SearchPage, feeding, opening, search_sessions, searching
from treering.engine.search.feeding import feed_store
from treering.engine.search.texts import said
from treering.index import IndexBusy, IndexFault, files
from treering.index.search import SearchIndex
from treering.index.search_rows import FILE_NAME


def message(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "message", "message": {"role": role, "content": content}, **more}


def store_of(tmp_path: Path) -> Store:
    return Store.at(str(tmp_path / "home"))


def make(store: Store, name: str, *entries: Any, cwd: str = "/w") -> str:
    with Session.create(cwd, home_dir=store.top, session_id=name) as session:
        for entry in entries:
            session.append(message(entry) if isinstance(entry, str) else entry)
        return session.path


def append(path: str, *texts: str) -> None:
    with Session.open(path) as session:
        for text in texts:
            session.append(message(text))


def shown(page: SearchPage) -> list[tuple[str, str]]:
    return [(hit.session_id, hit.snippet) for hit in page.hits]


def found(store: Store, query: str, **more: Any) -> list[tuple[str, str]]:
    page = search_sessions(store, query, **more)
    assert page.problems == ()
    return shown(page)


def index_path(store: Store) -> str:
    path = files.current(store.index, FILE_NAME)
    assert path is not None
    return path


# What is found


def test_an_entry_is_found_by_what_it_says(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    calls = {
        "type": "toolCall",
        "id": "c",
        "name": "grep",
        "arguments": {"deep": [{"x": "needle"}]},
    }
    thinking = {"type": "thinking", "thinking": "pondering", "signature": "sigsig"}
    with Session.create("/w", home_dir=store.top, session_id="s") as session:
        session.append(message("hello user"))
        session.append(
            {"type": "message", "message": {"role": "assistant", "content": [thinking, calls]}}
        )
        session.append(
            {"type": "message", "message": {"role": "toolResult", "toolName": "grep", "content": [
                {"type": "text", "text": "the result"}, {"type": "image", "data": "imagedata"}]}}
        )  # fmt: skip
        session.append(
            {
                "type": "message",
                "message": {"role": "bashExecution", "command": "ls", "output": "out.txt"},
            }
        )
        session.append({"type": "branch_summary", "summary": "summed up", "fromId": "x"})
        session.append({"type": "custom", "customType": "hidden", "data": "unsaid"})
    kinds = {
        query: [(hit.kind, hit.role) for hit in search_sessions(store, query).hits]
        for query in ("hello", "needle", "pondering", "result", "ls", "txt", "summed")
    }
    tool, bash = [("message", "toolResult")], [("message", "bashExecution")]
    assistant = [("message", "assistant")]
    assert kinds == {
        "hello": [("message", "user")], "needle": assistant, "pondering": assistant,
        "result": tool, "ls": bash, "txt": bash, "summed": [("branch_summary", None)],
    }  # fmt: skip
    assert [hit.role for hit in search_sessions(store, "grep").hits] == ["toolResult", "assistant"]
    for query in ("imagedata", "sigsig", "unsaid", "hidden"):
        assert found(store, query) == []


def test_a_hit_says_where_it_is(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    text = "x " * 300 + "the Äpple fell " + "y " * 300
    path = make(store, "s", message(text, id="e1", timestamp="2026-01-02T03:04:05.000Z"))
    (hit,) = search_sessions(store, '"apple fell"').hits
    assert (hit.session_id, hit.path, hit.entry_id) == ("s", path, "e1")
    assert hit.time_ms == 1_767_323_045_000
    assert len(hit.snippet) == searching.SNIPPET_CHARS
    assert hit.match is not None
    assert hit.snippet[slice(*hit.match)] == "Äpple fell"
    with Session.open(path) as session:
        assert session.read("e1").sequence == hit.sequence


def test_the_newest_comes_first_and_pages_go_on(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    times = list(range(10, 40))
    random.Random(1).shuffle(times)
    for name, part in (("a", times[:10]), ("b", times[10:20]), ("c", times[20:])):
        entries = [message(f"word {t}", timestamp=f"2026-01-01T00:00:{t}.000Z") for t in part]
        make(store, name, *entries)
    whole = [snippet for _, snippet in found(store, "word", limit=100)]
    assert whole == [f"word {t}" for t in range(39, 9, -1)]
    for rank in (False, True):
        got, after, first = [], None, True
        while first or after is not None:
            page = search_sessions(store, "word", limit=7, after=after, rank=rank)
            got += [hit.snippet for hit in page.hits]
            after = page.cursor
            if first:  # what comes meanwhile shifts no page
                append(store.journal_path("a"), "a newer word")
            first = False
        assert got == whole if not rank else sorted(got) == sorted(whole)
        whole.insert(0, "a newer word")


def test_filters(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (tmp_path / "w2").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "w2")
    make(store, "a", message("word a", timestamp="2026-01-01T00:00:00.000Z"))
    make(
        store, "b", message("word b", "assistant", timestamp="2026-01-02T00:00:00.000Z"),
        {"type": "compaction", "summary": "word c", "timestamp": "2026-01-03T00:00:00.000Z"},
        cwd=str(tmp_path / "w2"),
    )  # fmt: skip
    day = 86_400_000
    start = 1_767_225_600_000

    def texts(**more: Any) -> list[str]:
        return [snippet[-1] for _, snippet in found(store, "word", **more)]

    assert texts() == ["c", "b", "a"]
    assert texts(session_ids=["a"]) == ["a"]
    assert texts(session_ids=[]) == texts(session_ids=["none"]) == []
    assert texts(cwd=str(tmp_path / "link")) == ["c", "b"]
    assert texts(cwd="/w") == ["a"]
    assert texts(roles=["assistant"]) == ["b"]
    assert texts(roles=["user", "assistant"]) == ["b", "a"]
    assert texts(roles=[]) == texts(roles=["\ud800"]) == []
    assert texts(kinds=["compaction"]) == ["c"]
    assert texts(since_ms=start + day) == ["c", "b"]
    assert texts(until_ms=start + day) == ["a"]
    assert texts(since_ms=start + 1, until_ms=start + 2 * day) == ["b"]
    assert texts(since_ms=10**30) == texts(until_ms=-(10**30)) == []
    assert texts(rank=True, roles=["user"], since_ms=0) == ["a"]


def test_texts_without_words_are_scanned_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path)
    make(store, "s", *(f"日本語 {n}" if n % 10 == 3 else f"plain ++ {n}" for n in range(40)))
    page = search_sessions(store, "本語")
    assert shown(page) == [("s", f"日本語 {n}") for n in (33, 23, 13, 3)]
    assert page.scanned == 40
    assert page.cursor is None
    assert search_sessions(store, "本語 23").scanned == 1  # words leave less to scan
    assert len(found(store, "++", limit=100)) == 36
    monkeypatch.setattr(searching, "SCAN_ROWS_MAX", 15)
    pages, after = [], None
    while not pages or after is not None:
        page = search_sessions(store, "本", after=after)
        after = page.cursor
        pages.append([snippet for _, snippet in shown(page)])
    assert pages == [["日本語 33"], ["日本語 23", "日本語 13"], ["日本語 3"]]
    with pytest.raises(Invalid, match="ranked"):
        search_sessions(store, "本", rank=True)


def test_short_fields_are_found_by_any_part(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = make(store, "s", "Beginning here", "second", cwd="/some/where")
    with Session.open(path) as session:
        session.set_name("Unbelievable name")
        session.set_label(session.leaf_id, "milestone")

    def fields(query: str, **more: Any) -> list[tuple[str, str]]:
        page = search_sessions(store, query, **more)
        return [(match.field, match.text) for match in page.fields]

    assert fields("believ") == [("name", "Unbelievable name")]
    assert fields("eginn") == [("first", "Beginning here")]
    assert fields("lesto") == [("label", "milestone")]
    assert fields("me/whe") == [("path", f"/some/where {path}")]
    assert fields("secon") == fields("believ", roles=["user"]) == []
    with Session.open(path) as session:
        session.set_name("Other")
        session.append(message("third"))
    assert fields("believ") == []
    assert fields("the") == [("name", "Other")]


@pytest.mark.parametrize(
    ("query", "more"),
    [
        ("", {}), ("  \t\n", {}), ('""', {}), ("\0", {}), ("x" * 1001, {}), ("a " * 33, {}),
        ("\ud800", {}), (7, {}), ("a", {"limit": 0}), ("a", {"limit": 1001}), ("a", {"after": "x"}),
        ("a", {"after": "r5.1"}), ("a", {"after": "n5", "rank": True}), ("a", {"limit": "1"}),
        ("AND", {"raw": True}), ('"', {"raw": True}), ("a", {"cwd": "\0"}), ("a", {"after": "n-1"}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path: Path, query: Any, more: dict[str, Any]) -> None:
    store = store_of(tmp_path)
    make(store, "s", "a")
    with pytest.raises(Invalid):
        search_sessions(store, query, **more)
    assert found(store, "a") == [("s", "a")]
    assert index_path(store).endswith(f"{FILE_NAME}.1.sqlite3")


def test_syntax_only_on_request(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    make(store, "s", "red", "green", "red OR green")
    assert found(store, "red OR green") == [("s", "red OR green")]
    assert len(found(store, "red OR green", raw=True)) == 3
    assert found(store, "red NOT green", raw=True) == [("s", "red")]


def test_an_empty_store_has_nothing_and_gets_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert found(store, "word") == []
    assert not os.path.exists(store.top)


# Feeding

STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(["red", "apple", "äpple pie"]))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, size=st.integers(1, 3))
def test_fed_in_parts_it_finds_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: Any, size: int
) -> None:
    store = store_of(tmp_path_factory.mktemp("fed"))
    expected: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treering.engine.search.journals.SLICE_TEXTS", size)
        patched.setattr("treering.engine.search.feeding.SLICE_TEXTS", size)
        for name, texts in steps:
            if name not in expected:
                make(store, name)
            append(store.journal_path(name), *texts)
            expected.setdefault(name, []).extend(texts)
            for query, word in (("red", "red"), ("APPLE", "pple")):
                got = sorted(found(store, query, limit=1000))
                assert got == sorted(
                    (name, text)
                    for name, known in expected.items()
                    for text in known
                    if word in text
                )
    with SearchIndex.open(index_path(store)) as index:
        index.self_check()
        assert index.counts() == (sum(map(len, expected.values())), 0)


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path)
    paths = [make(store, name, *(f"word {name} {n}" for n in range(20))) for name in "ab"]
    monkeypatch.setattr("treering.engine.session.listing_cache.SETTLED_AFTER_MS", -(10**9))
    found(store, "word")
    fed: list[int] = []
    feed = SearchIndex.feed

    def counted(self: SearchIndex, feeds: Any, **more: Any) -> None:
        feeds = list(feeds)
        fed.extend(len(one.texts) for one in feeds)
        feed(self, feeds, **more)

    monkeypatch.setattr(SearchIndex, "feed", counted)
    found(store, "word")
    assert fed == []
    append(paths[0], "another word")
    assert len(found(store, "word", limit=100)) == 41
    assert fed == [1]


def test_a_batch_that_was_not_activated_is_not_found(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = make(store, "s", "before")
    with Session.open(path) as session:
        session.append_many([message("first of batch"), message("second of batch")])
        assert len(found(store, "batch")) == 2
    assert len(found(store, "batch")) == 2


def test_damage_of_one_session_stops_no_other(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    good = make(store, "good", "word good")
    bad = make(store, "bad", "word one", "word two", "word three")
    data = Path(bad).read_bytes()
    Path(bad).write_bytes(flip(data, data.index(b"word two") * 8))
    Path(store.sessions, "garbage.jsonl").write_bytes(os.urandom(500))
    Path(store.sessions, "folder.jsonl").mkdir()
    page = search_sessions(store, "word")
    assert sorted(shown(page)) == [("bad", "word one"), ("good", "word good")]
    assert [name for name, _ in page.problems] == ["bad", "folder", "garbage"]
    again = search_sessions(store, "word")
    assert again.problems == page.problems
    repair(bad)
    append(good, "word more")
    page = search_sessions(store, "word")
    assert sorted(shown(page)) == [
        ("bad", "word one"), ("bad", "word three"), ("good", "word good"), ("good", "word more"),
    ]  # fmt: skip
    assert [name for name, _ in page.problems] == ["folder", "garbage"]


def test_a_replaced_journal_is_fed_anew(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    one = make(store, "one", "word old", "more old")
    two = make(store, "two", "word new")
    assert len(found(store, "word")) == 2
    shutil.copy(two, tmp_path / "copy")
    os.replace(tmp_path / "copy", one)
    assert sorted(found(store, "word")) == [("one", "word new"), ("two", "word new")]
    assert found(store, "old") == []
    os.unlink(one)
    assert found(store, "word") == [("two", "word new")]
    with SearchIndex.open(index_path(store)) as index:
        assert index.counts() == (1, 3)


def test_too_many_dead_words_are_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treering.engine.search.feeding.DEAD_ROWS_KEPT", 2)
    store = store_of(tmp_path)
    one = make(store, "one", *(f"word {n}" for n in range(9)))
    two = make(store, "two", "word new")
    assert len(found(store, "word")) == 10
    shutil.copy(two, tmp_path / "copy")
    os.replace(tmp_path / "copy", one)
    assert sorted(found(store, "word")) == [("one", "word new"), ("two", "word new")]
    with SearchIndex.open(index_path(store)) as index:
        assert index.counts() == (2, 0)


def test_a_hit_that_does_not_verify_is_no_hit(tmp_path: Path) -> None:
    """A byte of a journal flipped, with size and time as before."""
    store = store_of(tmp_path)
    path = make(store, "s", "word one", "word two")
    time_ns = os.stat(path).st_mtime_ns
    assert len(found(store, "word")) == 2
    data = Path(path).read_bytes()
    Path(path).write_bytes(flip(data, data.index(b"word two") * 8))
    os.utime(path, ns=(time_ns, time_ns))
    page = search_sessions(store, "word")
    assert shown(page) == [("s", "word one")]
    assert [name for name, _ in page.problems] == ["s"]


# States of the file


def states() -> dict[str, Any]:
    def write(data: bytes) -> Any:
        return lambda path: Path(path).write_bytes(data)

    def folder(path: str) -> None:
        os.unlink(path)
        os.makedirs(os.path.join(path, "in"))

    def sql(statement: str) -> Any:
        def run(path: str) -> None:
            db = apsw.Connection(path)
            db.execute(statement)
            db.close()

        return run

    def noise(path: str) -> None:
        data = bytearray(Path(path).read_bytes())
        for at in range(8192, len(data), 97):
            data[at] ^= 0x55
        Path(path).write_bytes(data)

    return {
        "missing": os.unlink,
        "empty": write(b""),
        "garbage": write(b"garbage" * 2000),
        "cut": lambda path: os.truncate(path, 6000),
        "noise": noise,
        "folder": folder,
        "older": sql("PRAGMA user_version=0"),
        "read-only": lambda path: os.chmod(path, 0o400),
        "stale wal": lambda path: Path(path + "-wal").write_bytes(b"stale" * 1000),
    }


@pytest.mark.parametrize("state", states())
def test_no_state_of_the_file_changes_an_answer(tmp_path: Path, state: str) -> None:
    store = store_of(tmp_path)
    make(store, "s", *(f"word {n}" for n in range(50)))
    expected = found(store, "word", limit=100)
    for path in glob.glob(index_path(store) + "-*"):
        os.unlink(path)
    states()[state](index_path(store))
    assert found(store, "word", limit=100) == expected
    append(store.journal_path("s"), "word more")
    assert found(store, "word", limit=100) == [("s", "word more"), *expected]
    assert len(glob.glob(store.index + f"/{FILE_NAME}.*.bad-*")) <= 1


def test_without_a_folder_to_write_it_searches_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path)
    make(store, "s", "word one")

    def refuse(*_: Any, **__: Any) -> Any:
        raise IndexFault("here", "not allowed")

    monkeypatch.setattr(opening, "locked", refuse)
    assert found(store, "word") == [("s", "word one")]
    assert files.current(store.index, FILE_NAME) is None


def test_while_another_process_feeds_what_is_there_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path)
    path = make(store, "s", "word one")
    assert len(found(store, "word")) == 1
    append(path, "word two")
    monkeypatch.setattr("treering.engine.search.feeding.LOCK_TIMEOUT_S", 0.05)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        descriptor = os.open(os.path.join(store.index, opening.LOCK_NAME), os.O_RDWR)
        opening._lock(descriptor, "", 1)
        held.set()
        done.wait(10)
        os.close(descriptor)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        page = search_sessions(store, "word")
        assert shown(page) == [("s", "word one")]
        assert [name for name, _ in page.problems] == [""]
        with pytest.raises(IndexBusy):
            feed_store(store)
    finally:
        done.set()
        thread.join()
    assert len(found(store, "word")) == 2


@pytest.fixture(autouse=True)
def _gate_is_free() -> Iterator[None]:
    """Every test leaves the gate of this process open."""
    yield
    assert opening.gate.acquire(blocking=False)
    opening.gate.release()


def test_what_others_feed_meanwhile_is_fed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process fed the beginning of a session after this one had looked at the index."""
    store = store_of(tmp_path)
    make(store, "other", "word")
    found(store, "word")
    path = make(store, "s", "word one")
    put = feeding._put

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(feeding, "_put", put)
        data = Path(path).read_bytes()
        append(path, "word two")
        whole = Path(path).read_bytes()
        Path(path).write_bytes(data)
        assert len(search_sessions(store, "word").hits) == 2
        Path(path).write_bytes(whole)
        return put(*arguments)

    monkeypatch.setattr(feeding, "_put", late)
    assert len(found(store, "word")) == 3


def test_a_file_that_others_made_meanwhile_is_not_the_one_that_was_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removed the file, for a deletion, and fed a part into a new one."""
    store = store_of(tmp_path)
    for name in "abc":
        make(store, name, f"word {name}")
    feed = searching.feed_store

    def fed(of: Store) -> Any:
        monkeypatch.setattr(searching, "feed_store", feed)
        done = feed(of)
        files.remove_all(store.index, FILE_NAME)
        SearchIndex.open(files.next_path(store.index, FILE_NAME), create=True).close()
        return done

    monkeypatch.setattr(searching, "feed_store", fed)
    assert len(found(store, "word")) == 3


def test_threads_search_and_append_at_once(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for name in "abc":
        make(store, name, "word")
    errors: list[BaseException] = []

    def search() -> None:
        try:
            for _ in range(10):
                assert len(found(store, "word", limit=1000)) >= 3
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(20):
        append(store.journal_path("abc"[n % 3]), f"word {n}")
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(found(store, "word", limit=1000)) == 23


def test_a_session_may_be_called_as_the_file_is(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = make(store, "search", "word one")
    assert found(store, "word") == [("search", "word one")]
    with Session.open(path) as session:
        assert session.counts()
    assert found(store, "word") == [("search", "word one")]
    assert not glob.glob(store.index + "/*.bad-*")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = store_of(tmp_path_factory.mktemp("shelf"))
    make(store, "s", 'OR AND NOT NEAR "quoted" a* text:x', "日本 ++", "plain")
    found(store, "plain")
    return store


@settings(max_examples=120, deadline=None)
@given(query=st.text(max_size=30), raw=st.booleans(), rank=st.booleans())
def test_whatever_is_typed_gets_a_page_or_a_refusal(
    shelf: Store, query: str, raw: bool, rank: bool
) -> None:
    try:
        page = search_sessions(shelf, query, raw=raw, rank=rank)
    except Invalid as error:
        assert str(error)
    else:
        assert page.problems == ()
    assert index_path(shelf).endswith(f"{FILE_NAME}.1.sqlite3"), "no query spoils the file"


def test_more_sessions_than_files_that_are_open_at_once(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for n in range(70):
        make(store, f"s{n}", f"word {n}", f"word {n} again")
    open_before = len(os.listdir("/proc/self/fd"))
    assert len(found(store, "word", limit=200)) == 140
    assert len(found(store, "word", limit=200, rank=True)) == 140
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"type":"message","message":7}', None),
        (b'{"type":"message","message":{"role":5,"content":{"a":1}}}', None),
        (b'{"type":7}', None),
        (b"[1]", None),
        (b"not json", None),
        (b'{"type":"label","targetId":3,"label":"x"}', None),
        (b'{"type":"compaction","summary":["x"]}', None),
        (b'{"type":"message","message":{"content":["x",{"type":"text","text":4}]}}', None),
        (b'{"type":"message","message":{"content":"a\\u0000b \\ud800"}}', "a b \ufffd"),
        (b'{"type":"custom_message","content":"said"}', "said"),
        (b'{"type":"message","message":{"role":"branchSummary","summary":"sum"}}', "sum"),
        (
            (
                b'{"type":"custom_message","content":[{"type":"toolCall","name":"n","arguments":'
                b'{"b":["x",{"c":"y"}],"a":"z","n":1}}]}'
            ),
            "n\nx\ny\nz",
        ),
    ],
)
def test_whatever_an_entry_is_it_says_its_text_or_nothing(raw: bytes, text: str | None) -> None:
    what = said(raw)
    assert (None if what is None else what.text) == text
