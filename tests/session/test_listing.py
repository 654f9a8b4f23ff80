"""Lists of sessions: what a row says, which files are rows, what is remembered, what is recent."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_helpers import crash, custom, drop_index, new, raises_typed, read_bytes, write_bytes
from support.build import SESSION, Maker, compact
from support.damage import flip
from support.stores import PLAIN, damaged_store, picture, without_catalogue

from treering.engine import (
    Invalid,
    NotAJournal,
    Session,
    SessionView,
    SourceChanged,
    StorageError,
    Store,
    TreeringError,
    Unsupported,
    import_session,
)
from treering.engine.session import listing, listing_cache, summing
from treering.engine.session.listing import (
    iter_sessions,
    list_sessions,
    most_recent,
    session_info,
)
from treering.engine.session.listing_cache import InfoCache, Stamp
from treering.engine.session.metadata import read_metadata
from treering.engine.session.session_info import NO_MESSAGES, SessionInfo
from treering.index import IndexFault, Usage, files

_EARLY = "2024-01-01T00:00:00.000Z"
_LATE = "2024-06-01T00:00:00.000Z"
_EARLY_MS = 1_704_067_200_000
_LATE_MS = 1_717_200_000_000


def said(text: Any, role: str = "user", *, at: int | None = None, **more: Any) -> dict[str, Any]:
    """A message with a text; ``at`` is its own time."""
    content = [{"type": "text", "text": text}]
    message: dict[str, Any] = {"role": role, "content": content}
    if at is not None:
        message["timestamp"] = at
    return {"type": "message", "message": message | more}


def used(tokens: int) -> dict[str, Any]:
    return {"input": tokens, "output": 1, "totalTokens": tokens + 1, "cost": {"total": 0.5}}


def state(status: Any) -> dict[str, Any]:
    return {"type": "session_state", "state": {"status": status}}


def agent(summary: str) -> dict[str, Any]:
    return {"type": "agent_status", "status": {"summary": summary, "taskState": "completed"}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of this test, not made yet."""
    return Store.at(str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> InfoCache[SessionInfo]:
    """What is remembered is this test's own, also of files that were written a moment ago."""
    fresh: InfoCache[SessionInfo] = InfoCache()
    monkeypatch.setattr(listing, "_cache", fresh)
    monkeypatch.setattr(listing_cache, "SETTLED_AFTER_MS", -10_000)
    return fresh


def make(store: Store, name: str, *entries: dict[str, Any], cwd: str = "/work") -> str:
    """A session with these entries; its path."""
    with Session.create(cwd, home_dir=store.top, session_id=name) as session:
        for entry in entries:
            session.append(entry)
        return session.path


def only(store: Store, **more: Any) -> SessionInfo:
    (info,) = list_sessions(store, **more)
    return info


def ids(infos: list[SessionInfo]) -> list[str]:
    return [info.id for info in infos]


# What a row says


def test_members(store: Store) -> None:
    """A row has everything that the documents name."""
    assistant = said("answer", "assistant", at=_LATE_MS, usage=used(10))
    path = make(
        store, "one", said("question", at=_EARLY_MS), assistant, custom(), state("archived")
    )
    with Session.open(path) as session:
        session.set_name(" Title ")
        created = listing.timestamp_ms(session.header.timestamp)
    assert only(store) == SessionInfo(
        path=path,
        id="one",
        status="ok",
        cwd="/work",
        name="Title",
        state="archived",
        rlm_depth=0,
        created=created,
        last_message=_LATE_MS,
        message_count=2,
        entry_count=5,
        first_user_text="question",
        usage=Usage(10, 1, 0, 0, 11, 0.5),
    )
    assert session_info(path) == only(store)


def test_modified_is_the_time_of_messages_only(store: Store) -> None:
    """Listing: modified time from messages only. Renames, labels, states and tools do not touch
    it, nor does the time of the file; the message's own time goes before its entry's."""
    tool = said("result", "toolResult", at=_LATE_MS + 5)
    path = make(
        store, "a", said("x", at=_EARLY_MS) | {"timestamp": _LATE}, tool, custom(timestamp=_LATE)
    )
    with Session.open(path) as session:
        session.set_name("renamed")
        session.append(state("active"))
        session.set_label(session.entries(limit=1)[0].id, "label")
    os.utime(path, (1, 1))
    assert only(store).modified == _EARLY_MS


@pytest.mark.parametrize("stated", [None, "soon", True, 1e300, [1]])
def test_a_message_without_a_time_has_that_of_its_entry(store: Store, stated: Any) -> None:
    """Listing: modified is message.timestamp where that is a number, else the entry's."""
    make(store, "a", said("x", timestamp=stated) | {"timestamp": _EARLY})
    assert only(store).modified == _EARLY_MS


def test_modified_is_the_newest_message_not_the_last(store: Store) -> None:
    """Listing: modified is the largest time of user and assistant messages."""
    make(store, "a", said("x", at=_LATE_MS), said("y", "assistant", at=_EARLY_MS))
    assert only(store).modified == _LATE_MS


def test_without_messages(store: Store) -> None:
    """Listing: without messages, modified is the creation and the first message says so. State:
    persisted without assistant messages."""
    make(store, "a", state("archived"))
    info = only(store)
    assert info.created is not None
    assert info.modified == info.created
    assert (info.first_message, info.message_count) == (NO_MESSAGES, 0)
    assert info.state == "archived"
    assert info.usage is None


def test_first_message_is_the_first_text_of_a_user(store: Store) -> None:
    """Listing: images, blank texts and other roles are no first message; a string is one."""
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    make(
        store,
        "a",
        said("before", "assistant"),
        {"type": "message", "message": {"role": "user", "content": [image]}},
        said(" \n"),
        {"type": "message", "message": {"role": "user", "content": "as a string"}},
        said("later"),
    )
    assert only(store).first_message == "as a string"
    assert only(store).message_count == 5


def test_oversized_rows(store: Store) -> None:
    """Listing: oversized rows (user row, tool row) count, tell their time, and are cut to a
    preview."""
    huge = "word " * 400_000
    make(
        store,
        "a",
        said(huge, at=_EARLY_MS),
        said(huge, "toolResult"),
        said(huge, "assistant", at=_LATE_MS),
    )
    info = only(store, texts=True)
    assert info.first_message == huge[: summing.FIRST_TEXT_CHARS]
    assert (info.message_count, info.modified) == (3, _LATE_MS)
    assert info.all_messages_text == huge[: summing.ALL_TEXT_CHARS]


def test_all_messages_text(store: Store) -> None:
    """Listing: the text of users and assistants, in order, only when it is asked for."""
    make(store, "a", said("one"), said("tool", "toolResult"), said("two", "assistant"), said("3"))
    assert only(store).all_messages_text is None
    assert only(store, texts=True).all_messages_text == "one two 3"
    assert only(store).all_messages_text is None


def test_the_bound_of_all_messages_text(store: Store) -> None:
    """The bound holds to the character; no space stands at the end for a text that has no room."""
    for left in (0, 1, 2):
        shutil.rmtree(store.top, ignore_errors=True)
        long = "x" * (summing.ALL_TEXT_CHARS - left)
        make(store, "a", said(long), said("yz"))
        assert (
            only(store, texts=True).all_messages_text
            == f"{long} yz"[: summing.ALL_TEXT_CHARS].rstrip()
        )


def test_last_agent_status_wins(store: Store) -> None:
    """Listing: agent status last wins, on whatever branch; one of another shape does not count."""
    path = make(store, "a", said("x"), agent("first"), agent("second"))
    with Session.open(path) as session:
        session.branch_to(session.entries(limit=1)[0].id)
        session.append(agent("third"))
        session.append({"type": "agent_status", "status": "not an object"})
        session.branch_to(session.entries(limit=1)[0].id)
    assert only(store).agent_status == {"summary": "third", "taskState": "completed"}


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (["active"], "active"),
        (["archived"], "archived"),
        (["crash"], "crash"),
        (["sleep"], "archived"),
        (["hidden"], "archived"),
        (["archived", "active"], "active"),
        (["archived", "on fire"], "archived"),
        (["archived", 7], "archived"),
        (["unknown"], None),
        ([], None),
    ],
)
def test_states(store: Store, recorded: list[Any], shown: str | None) -> None:
    """State: persisted and listed; legacy sleep and hidden; an unknown newest leaves the earlier
    valid one in force."""
    make(store, "a", *map(state, recorded))
    assert only(store).state == shown


def test_the_newest_name_wins_and_a_blank_one_clears(store: Store) -> None:
    """Listing: the name is the newest in the whole file, on whatever branch."""
    path = make(store, "a", said("x"))
    for name, shown in (("one", "one"), (" two ", "two"), (" ", None)):
        with Session.open(path) as session:
            session.branch_to(None)
            session.set_name(name)
        assert only(store).name == shown


def test_usage_is_the_sessions_own(store: Store) -> None:
    """Listing: usage is what assistants and summaries used, without that of children."""
    path = make(store, "a", said("x"), said("y", "assistant", usage=used(10)))
    with Session.open(path) as session:
        target = session.leaf_id
        session.append(
            {
                "type": "child_usage_attributed",
                "targetId": target,
                "childUsage": used(500),
                "aggregateUsage": used(510),
            }
        )
        summary = {"type": "compaction", "summary": "s", "firstKeptEntryId": target}
        session.append(summary | {"tokensBefore": 9, "usage": used(7)})
    assert only(store).usage == Usage(17, 2, 0, 0, 19, 1.0)


def test_claims_of_an_import_are_history(store: Store, tmp_path: Path) -> None:
    """Listing: an imported session is active and has no status of its own; its name, messages and
    times are its content."""
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "x", "cwd": "/p", "timestamp": _EARLY},
        said("old", at=_LATE_MS) | {"id": "a", "parentId": None},
        {"type": "session_info", "id": "b", "parentId": "a", "name": "Old"},
        state("archived") | {"id": "c", "parentId": "b"},
        agent("was busy") | {"id": "d", "parentId": "c"},
    ]
    source = tmp_path / "source.jsonl"
    source.write_bytes(b"".join(compact(line) + b"\n" for line in lines))
    path = import_session(str(source), home_dir=store.top).path
    info = only(store)
    assert (info.name, info.state, info.agent_status) == ("Old", None, None)
    assert (info.first_message, info.modified) == ("old", _LATE_MS)
    with Session.open(path) as session:
        session.append(state("crash"))
        session.append(agent("busy"))
    assert only(store).state == "crash"
    assert only(store).agent_status == agent("busy")["status"]


def test_lone_surrogates_of_an_import(store: Store, tmp_path: Path) -> None:
    """What no text can hold is replaced; the time of such a message counts all the same."""
    source = tmp_path / "source.jsonl"
    source.write_bytes(
        b'{"type":"session","version":3,"id":"x","cwd":"/p"}\n'
        b'{"type":"message","id":"a","parentId":null,"message":'
        b'{"role":"user","content":"x\\ud800y","timestamp":1717200000000}}\n'
    )
    import_session(str(source), home_dir=store.top)
    info = only(store, texts=True)
    assert info.first_message == info.all_messages_text == "x\ufffdy"
    assert info.modified == _LATE_MS


def headed(**header: Any) -> bytes:
    """A journal whose header has these members."""
    maker = Maker()
    maker.open()
    maker.frame(SESSION, compact({"type": "session", "version": 3, "id": "s", **header}))
    maker.close()
    return maker.publish().whole()


def test_parents_and_depth(store: Store) -> None:
    """Listing: the parent as the header states it. Depth: recorded, or projected from the parent,
    which is looked at anew every time."""
    os.makedirs(store.sessions)
    path = os.path.join(store.sessions, "child.jsonl")
    parent = os.path.join(store.sessions, "parent.jsonl")
    write_bytes(path, headed(parentSession="parent.jsonl"))
    write_bytes(parent, headed(rlmDepth=3))
    rows = {info.id: info for info in list_sessions(store)}
    assert rows["child"].parent_session_path == "parent.jsonl"
    assert (rows["child"].rlm_depth, rows["parent"].rlm_depth) == (3, 3)
    write_bytes(parent, headed(rlmDepth=4))
    assert [info.rlm_depth for info in list_sessions(store)] == [4, 4]
    os.unlink(parent)
    assert only(store).rlm_depth == 0
    write_bytes(path, headed(parentSession="parent.jsonl", rlmDepth=-1))
    assert only(store).rlm_depth == 0


# Which files are rows


def test_a_missing_folder_has_no_sessions(store: Store) -> None:
    """Listing: a missing directory gives an empty list, and nothing is made."""
    assert list_sessions(store) == list_sessions(store, "/work") == list(iter_sessions(store)) == []
    assert most_recent(store, "/work") is None
    assert not os.path.exists(store.top)


def test_a_folder_that_cannot_be_listed(store: Store) -> None:
    """That is an error, not an empty list."""
    os.makedirs(store.top)
    write_bytes(store.sessions, b"")
    with raises_typed(StorageError):
        list_sessions(store)


def test_newest_first(store: Store) -> None:
    """Listing: sorted by modified, newest first; what tells no time comes last."""
    make(store, "b", said("x", at=_EARLY_MS))
    make(store, "a", said("x", at=_LATE_MS))
    make(store, "c", said("x", at=_LATE_MS))
    write_bytes(os.path.join(store.sessions, "0.jsonl"), b"")
    write_bytes(os.path.join(store.sessions, "old.jsonl"), headed(timestamp="1969-01-01T00:00:00Z"))
    assert ids(list_sessions(store)) == ["a", "c", "b", "old", "0"]
    assert ids(list(iter_sessions(store))) == ["0", "a", "b", "c", "old"]


def test_sessions_of_a_working_directory(store: Store, tmp_path: Path) -> None:
    """Listing: cwd filter by resolved equality. Progress counts all files, sessions are told only
    when they match."""
    work = tmp_path / "work"
    (work / "below").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(work)
    stated = (work, link, f"{work}/below/..", f"{work}/", work / "below", "work", "", "/a\0b")
    for number, cwd in enumerate(stated):
        make(store, f"s{number}", said("x"), cwd=str(cwd))
    write_bytes(os.path.join(store.sessions, "bad.jsonl"), b"")
    shutil.copyfile(os.path.join(store.sessions, "s0.jsonl"), tmp_path / "copy")
    for asked in (work, link):
        told: list[str] = []
        progress: list[tuple[int, int]] = []
        found = list_sessions(
            store,
            str(asked),
            on_session=lambda info: told.append(info.id),
            on_progress=lambda *now: progress.append(now),
        )
        assert sorted(ids(found)) == told == ["s0", "s1", "s2", "s3"]
        assert progress == [(number, 9) for number in range(1, 10)]
    told = []
    list_sessions(store, on_session=lambda info: told.append(info.id))
    assert told == sorted(ids(list_sessions(store)))
    assert len(told) == 9


def test_the_bodies_of_other_directories_are_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filtered list costs the headers of the others."""
    make(store, "a", said("x"), cwd="/one")
    make(store, "b", said("x"), cwd="/two")
    examined: list[str] = []
    real = listing.examine_again

    def examine(source: Any, watermark: bytes | None) -> Any:
        examined.append(source.path)
        return real(source, watermark)

    monkeypatch.setattr(listing, "examine_again", examine)
    assert only(store, cwd="/one").id == "a"
    assert [Path(path).stem for path in examined] == ["a"]


def test_no_path_at_all(store: Store) -> None:
    """A working directory that no system takes is refused, not matched with nothing."""
    with raises_typed(Invalid):
        list_sessions(store, "/a\0b")


def test_legacy_files_are_foreign(store: Store) -> None:
    """Listing: a legacy file is a row of its working directory, and says how it is imported."""
    make(store, "ours", said("x"), cwd="/p")
    write_bytes(os.path.join(store.sessions, "legacy.jsonl"), PLAIN)
    rows = {info.id: info for info in list_sessions(store, "/p", texts=True)}
    assert rows["ours"].status == "ok"
    assert rows["legacy"].status == "foreign"
    assert "import" in (rows["legacy"].reason or "")


def status_of_view(path: str) -> str:
    """What opening a view makes of a file."""
    try:
        with SessionView.open(path) as view:
            if view.report.case not in ("A", "E"):
                return "damaged"
            view.header  # noqa: B018 (it raises when it is lost)
            return "ok"
    except NotAJournal:
        return "foreign"
    except Unsupported:
        return "unsupported"
    except TreeringError:
        return "damaged"


def test_a_store_in_every_state(tmp_path: Path) -> None:
    """Listing: one bad file hides no other one. Every row says what a view says, and looking
    changes nothing but the catalogue."""
    home = damaged_store(tmp_path / "home")
    store = Store.at(str(home))
    before = without_catalogue(picture(home))
    for _ in range(2):
        rows = {info.id: info for info in list_sessions(store)}
        assert len(rows) > 30
        for name, info in rows.items():
            expected = status_of_view(info.path)
            if name in ("nowhere", "odd name"):
                continue
            assert info.status == expected, info
            if info.status in ("ok", "damaged") and not name.startswith(("no-id", "limit")):
                with SessionView.open(info.path) as view:
                    counts = view.counts()
                    assert info.message_count == counts["messages"], name
                    assert info.entry_count == counts["entries"], name
        assert rows["nowhere"].status == "unreadable"
        assert rows["odd name"].status == "damaged"
        assert without_catalogue(picture(home)) == before
    assert {info.status for info in rows.values()} == {
        "ok", "damaged", "foreign", "unsupported", "unreadable",
    }  # fmt: skip


def test_the_same_with_and_without_an_index(store: Store) -> None:
    """Listing: an index makes no row say something else."""
    for number in range(3):
        make(store, f"s{number}", said("x"), said("y", "assistant"), agent("a"), state("active"))
    with_index = list_sessions(store)
    shutil.rmtree(store.index)
    assert list_sessions(store) == with_index


def test_acknowledged_data_that_is_gone(store: Store, cache: InfoCache[SessionInfo]) -> None:
    """A watermark in an index shows that a journal was rolled back; also one that comes later."""
    path = make(store, "a", said("one"))
    early = read_bytes(path)
    with Session.open(path) as session:
        session.append(said("two"))
    shutil.copytree(store.index, store.index + ".kept")
    write_bytes(path, early)
    info = only(store)
    assert (info.status, info.message_count) == ("damaged", 1)
    assert "case D" in (info.reason or "")
    drop_index(path)
    assert only(store).status == "ok"
    shutil.copytree(store.index + ".kept", store.index, dirs_exist_ok=True)
    assert only(store).status == "damaged"
    assert len(cache) == 1


def test_a_new_generation_takes_the_place_of_an_index(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watermark counts although the index that was listed is gone."""
    path = make(store, "a", said("one"))
    early = read_bytes(path)
    with Session.open(path) as session:
        session.append(said("two"))
    write_bytes(path, early)
    gone = os.path.join(store.index, "a.7.sqlite3")
    monkeypatch.setattr(listing.files, "all_current", lambda folder: {"a": gone})
    assert only(store).status == "damaged"


def test_a_link_into_another_store(store: Store, tmp_path: Path) -> None:
    """A linked session is what it is where it lies."""
    other = Store.at(str(tmp_path / "other"))
    path = make(other, "theirs", said("one"))
    early = read_bytes(path)
    with Session.open(path) as session:
        session.append(said("two"))
    make(store, "ours", said("x"))
    link = os.path.join(store.sessions, "linked.jsonl")
    os.symlink(path, link)
    rows = {info.id: info for info in list_sessions(store)}
    assert (rows["linked"].status, rows["linked"].message_count) == ("ok", 2)
    assert rows["linked"].path == link
    write_bytes(path, early)
    assert session_info(link).status == "damaged"


def test_a_crashed_owner(store: Store) -> None:
    """A session whose owner died, its end torn, is ok and says so."""
    session = new(Path(store.top).parent, session_id="a")
    session.append(said("x"))
    crash(session)
    with open(session.path, "ab") as file:
        file.write(b"torn")
    info = only(store)
    assert (info.status, info.message_count) == ("ok", 1)
    assert "case E" in (info.reason or "")


def test_beside_a_living_owner(store: Store) -> None:
    """A session in use is listed with what was acknowledged."""
    with Session.create("/w", home_dir=store.top) as session:
        for count in range(1, 4):
            session.append(said("x"))
            assert only(store).message_count == count
            assert only(store).status == "ok"


def test_a_session_that_goes_away_meanwhile(store: Store, opened: list[str]) -> None:
    """It is no row, and counts as progress."""
    for name in ("a", "b", "c"):
        make(store, name)
    progress: list[tuple[int, int]] = []

    def on_progress(loaded: int, total: int) -> None:
        progress.append((loaded, total))
        if loaded == 1:
            os.unlink(os.path.join(store.sessions, "b.jsonl"))

    assert sorted(ids(list_sessions(store, on_progress=on_progress))) == ["a", "c"]
    assert progress == [(1, 3), (2, 3), (3, 3)]
    info = session_info(os.path.join(store.sessions, "b.jsonl"))
    assert (info.id, info.status) == ("b", "unreadable")
    assert opened == ["a", "b", "c", "b"]


@pytest.mark.parametrize(("failures", "status"), [(1, "ok"), (2, "unreadable")])
def test_a_session_that_changes_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, failures: int, status: str
) -> None:
    """A file that is cut while it is read is read once more; it is never called damaged."""
    make(store, "a", said("x"))
    left = [failures]
    real = listing.examine_again

    def examine(source: Any, watermark: bytes | None) -> Any:
        if left[0]:
            left[0] -= 1
            raise SourceChanged("the file shrank")
        return real(source, watermark)

    monkeypatch.setattr(listing, "examine_again", examine)
    assert only(store).status == status
    assert only(store).status == "ok"  # that it could not be read is not remembered


def test_callbacks(store: Store) -> None:
    """What a callback raises ends the listing and comes out; the next one is not affected. They
    run in the thread that lists."""
    make(store, "a")
    make(store, "b")
    calls: list[Any] = []

    def refuse(*_: Any) -> None:
        calls.append(threading.current_thread())
        raise RuntimeError("enough")

    for callbacks in ({"on_session": refuse}, {"on_progress": refuse}):
        with pytest.raises(RuntimeError):
            list_sessions(store, **callbacks)  # type: ignore[arg-type]
    assert calls == [threading.current_thread()] * 2
    assert len(list_sessions(store)) == 2


def test_lists_from_many_threads(store: Store) -> None:
    """Worker threads may list at the same time."""
    for number in range(8):
        make(store, f"s{number}", said("x"))
    expected = list_sessions(store, texts=True)
    found: list[Any] = []

    def work() -> None:
        for _ in range(5):
            found.append(list_sessions(store, texts=True))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


# What is remembered


def test_files_that_do_not_change_are_read_once(store: Store, opened: list[str]) -> None:
    """A repeated list looks only at what changed."""
    paths = [make(store, name, said("x")) for name in ("a", "b", "c")]
    first = list_sessions(store)
    assert opened == ["a", "b", "c"]
    assert list_sessions(store) == first
    assert list_sessions(store, "/work") == first
    assert opened == ["a", "b", "c"]
    with Session.open(paths[1]) as session:
        session.append(said("y"))
    opened.clear()
    assert {info.id: info.message_count for info in list_sessions(store)} == {
        "a": 1, "b": 2, "c": 1,
    }  # fmt: skip
    assert opened == ["b"]


def test_damage_that_keeps_size_and_time(store: Store) -> None:
    """Bytes that were changed in place are noticed, although size and time were put back."""
    path = make(store, "a", said("some words"))
    assert only(store).status == "ok"
    status = os.stat(path)
    data = read_bytes(path)
    write_bytes(path, flip(data, 8 * data.index(b"some words")))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert only(store).status == "damaged"


def test_a_file_in_the_place_of_another_one(store: Store) -> None:
    """Another file of the same size and time is another session."""
    path = make(store, "a", said("one"))
    other = make(store, "b", said("two"))
    assert {info.first_message for info in list_sessions(store)} == {"one", "two"}
    status = os.stat(path)
    os.rename(other, path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    shutil.rmtree(store.index)
    assert only(store).first_message == "two"


def test_what_changed_a_moment_ago_is_not_remembered(
    store: Store, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of files tick: a second change in the same tick would not show."""
    monkeypatch.setattr(listing_cache, "SETTLED_AFTER_MS", 10_000)
    make(store, "a")
    list_sessions(store)
    list_sessions(store)
    assert opened == ["a", "a"]


@pytest.mark.parametrize(("catalogued", "expected"), [(True, (1, 1, 1, 1)), (False, (1, 2, 2, 2))])
def test_texts_are_read_when_they_are_asked_for_first(
    store: Store,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    catalogued: bool,
    expected: tuple[int, ...],
) -> None:
    """A row that was remembered without texts does not do for a search; one with texts does for
    both. A catalogue has them from the beginning."""
    make(store, "a", said("x"))
    if not catalogued:
        monkeypatch.setattr(files, "current", no_folder)
    for texts, reads in zip((False, True, True, False), expected, strict=True):
        assert only(store, texts=texts).all_messages_text == ("x" if texts else None)
        assert len(opened) == reads


def no_folder(folder: str, session_id: str) -> str | None:
    """What a folder says that cannot be looked at."""
    raise IndexFault(folder, "refused")


def test_callers_cannot_change_what_is_remembered(store: Store) -> None:
    """What a list gives is the caller's own."""
    make(store, "a", agent("busy"))
    for _ in range(2):
        status = only(store).agent_status
        assert status is not None
        assert status.pop("summary") == "busy"


def test_vanished_files_are_forgotten(store: Store, cache: InfoCache[SessionInfo]) -> None:
    """Listing: cache eviction removes entries of files that vanished from the directory, and of
    no other directory."""
    other = Store.at(store.top + "2")
    make(other, "z")
    list_sessions(other)
    for name in ("a", "b"):
        make(store, name)
    list_sessions(store)
    assert len(cache) == 3
    os.unlink(os.path.join(store.sessions, "a.jsonl"))
    list_sessions(store)
    assert len(cache) == 2
    shutil.rmtree(store.sessions)
    list_sessions(store)
    assert len(cache) == 1


_STAMP = Stamp((1, 2, 3, 0, 0), None, None)


def fill(cache: InfoCache[str], *names: str, chars: int = 1) -> None:
    cache.begin("/s", [f"/s/{name}" for name in names])
    for name in names:
        path = f"/s/{name}"
        if cache.get(path, _STAMP, texts=False) is None:
            cache.put(path, _STAMP, name, texts=False, chars=chars)


def known(cache: InfoCache[str], *names: str) -> list[str]:
    return [name for name in names if cache.get(f"/s/{name}", _STAMP, texts=False) is not None]


def test_rows_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing: 256 entries at most. A list of more files than that finds the first ones again."""
    assert listing_cache.ENTRIES_MAX == 256
    monkeypatch.setattr(listing_cache, "ENTRIES_MAX", 3)
    cache: InfoCache[str] = InfoCache()
    names = ("a", "b", "c", "d", "e")
    for _ in range(3):
        fill(cache, *names)
        assert known(cache, *names) == ["a", "b", "c"]
    cache.begin("/other", [])
    cache.get("/s/a", _STAMP, texts=False)
    cache.put("/other/x", _STAMP, "x", texts=False, chars=1)
    assert known(cache, *names) == ["a", "c"], "the one that was used longest ago goes"


def test_texts_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 Mi characters of texts at most; a row that is larger alone is not remembered."""
    assert listing_cache.CHARS_MAX == 4 * 1024 * 1024
    monkeypatch.setattr(listing_cache, "CHARS_MAX", 10)
    cache: InfoCache[str] = InfoCache()
    fill(cache, "a", "b", "c", chars=5)
    assert known(cache, "a", "b", "c") == ["a", "b"]
    fill(cache, "d", chars=11)
    assert len(cache) == 0
    fill(cache, "e", chars=10)
    assert known(cache, "e") == ["e"]


# What is recent


def test_the_most_recent_session_is_by_message(store: Store) -> None:
    """continueRecent and list agree: the last user or assistant message decides, not the time of
    the file; a session without messages counts from its creation."""
    late = make(store, "late", said("x", at=_LATE_MS))
    early = make(store, "early", said("x", at=_EARLY_MS))
    other = make(store, "other", said("x", at=_LATE_MS + 1), cwd="/elsewhere")
    os.utime(late, (1, 1))
    assert most_recent(store, "/work") == late
    assert most_recent(store, "/elsewhere") == other
    assert most_recent(store, "/nowhere") is None
    with Session.open(early) as session:
        session.set_name("touched last")
    assert most_recent(store, "/work") == late
    assert most_recent(store, "/work") == list_sessions(store, "/work")[0].path
    fresh = make(store, "fresh")
    assert most_recent(store, "/work") == fresh


def test_only_sessions_that_open_are_recent(store: Store) -> None:
    """continueRecent: invalid files are ignored, damaged and legacy ones too."""
    good = make(store, "good", said("x", at=_EARLY_MS))
    bad = make(store, "bad", said("some words", at=_LATE_MS))
    data = read_bytes(bad)
    write_bytes(bad, flip(data, 8 * data.index(b"some words")))
    write_bytes(os.path.join(store.sessions, "legacy.jsonl"), PLAIN.replace(b'"/p"', b'"/work"'))
    write_bytes(os.path.join(store.sessions, "empty.jsonl"), b"")
    rows = {info.id: info.status for info in list_sessions(store, "/work")}
    assert rows == {"good": "ok", "bad": "damaged", "legacy": "foreign"}
    assert most_recent(store, "/work") == good
    os.unlink(good)
    assert most_recent(store, "/work") is None


# Against an oracle


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
_TIMES = st.integers(0, 2**45)
_ENTRIES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda text, role, at, tokens: said(text, role, at=at, usage=used(tokens)),
        _TEXTS,
        st.sampled_from(("user", "assistant", "toolResult")),
        _TIMES,
        st.integers(0, 10**6),
    ),
    st.builds(state, st.sampled_from(("active", "archived", "sleep", "odd"))),
    st.builds(agent, _TEXTS),
    st.builds(lambda name: {"type": "session_info", "name": name}, _TEXTS),
    st.just(custom()),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_ENTRIES, max_size=12))
def test_rows_against_an_oracle(tmp_path_factory: Any, entries: list[dict[str, Any]]) -> None:
    """A row says what plain sums over the entries say, and what the reads of a view say."""
    store = Store.at(str(tmp_path_factory.mktemp("oracle") / "home"))
    path = make(store, "a", *entries)
    info = only(store, texts=True)
    messages = [entry["message"] for entry in entries if entry["type"] == "message"]
    spoken = [message for message in messages if message["role"] in ("user", "assistant")]
    texts = [(message["role"], message["content"][0]["text"]) for message in spoken]
    written = [(role, text) for role, text in texts if text.strip()]
    assert info.message_count == len(messages)
    assert info.last_message == max((m["timestamp"] for m in spoken), default=None)
    assert info.first_user_text == next((text for role, text in written if role == "user"), None)
    assert info.all_messages_text == " ".join(text for _, text in written)
    answers = [message for message in messages if message["role"] == "assistant"]
    total = sum(message["usage"]["input"] for message in answers)
    assert (info.usage.input if info.usage else None) == (total if answers else None)
    with SessionView.open(path) as view:
        said_by_view = read_metadata(view)
        assert (info.name, info.state) == (said_by_view.name, said_by_view.state)
        assert info.agent_status == said_by_view.agent_status
        assert info.entry_count == view.counts()["entries"]
