"""Pages of sessions: order, hierarchy, limits, search, scope, cursors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_helpers import raises_typed, user

from treering.engine import Session, Store
from treering.engine.errors import Invalid, LimitExceeded
from treering.engine.session import pages as pages_module
from treering.engine.session.page_order import LiveRoster, ordered
from treering.engine.session.page_search import SEARCH_CHARS_MAX, is_near
from treering.engine.session.pages import (
    PAGE_BYTES_MAX,
    ROW_BYTES_MAX,
    PageQuery,
    SessionPage,
    SessionPages,
)
from treering.index import IndexFault
from treering.index.catalogue import SNAPSHOTS_MAX, Catalogue, SessionRow, open_current


def row(session_id: str, **more: Any) -> SessionRow:
    """A row of a session with one message."""
    defaults: dict[str, Any] = dict.fromkeys(SessionRow._fields)
    defaults |= {
        "settled": True,
        "status": "ok",
        "cwd": "/w",
        "created": 0,
        "active": 0,
        "messages": 1,
        "entries": 1,
        "title": "",
        "has_text": True,
    }
    return SessionRow(**(defaults | {"id": session_id} | more))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    found = Store.at(str(tmp_path / "home"))
    os.makedirs(found.sessions)
    os.makedirs(found.index)
    return found


def write(store: Store, *rows: SessionRow, gone: Iterable[str] = ()) -> None:
    with open_current(store.index) as catalogue:
        catalogue.write([(one, None) for one in rows], gone)


@pytest.fixture
def pages(store: Store) -> Iterator[SessionPages]:
    """Of the catalogue as it is: the journals of these rows are not there."""
    with SessionPages(store) as found:
        yield found


def ids(page: SessionPage) -> list[str]:
    """With the rows of context in brackets."""
    return [f"({r.info.id})" if r.context else r.info.id for r in page.rows]


def every(pages: SessionPages, query: PageQuery) -> list[SessionPage]:
    """All pages, forwards."""
    found = [pages.page(query)]
    while found[-1].next_cursor is not None:
        found.append(pages.page(query, found[-1].next_cursor))
    return found


def backwards(pages: SessionPages, query: PageQuery, last: SessionPage) -> list[SessionPage]:
    found = [last]
    while found[0].previous_cursor is not None:
        found.insert(0, pages.page(query, found[0].previous_cursor))
    return found


def primaries(found: list[SessionPage]) -> list[str]:
    return [r.info.id for page in found for r in page.rows if not r.context]


# Order


def test_order_without_a_roster(store: Store, pages: SessionPages) -> None:
    """Newest activity, newest creation, title, id; empty ones last; children below parents."""
    write(
        store,
        row("a", active=1),
        row("b", active=3),
        row("b1", active=9, parent="b"),
        row("b2", active=10, parent="b"),
        row("b21", active=1, parent="b2"),
        row("e", active=99, messages=0),
        row("c", active=1, created=1),
        row("lost", active=2, parent="nobody"),
    )
    assert ids(pages.page(PageQuery())) == ["b", "b2", "b21", "b1", "lost", "c", "a", "e"]


def test_the_roster(store: Store, pages: SessionPages) -> None:
    """Running, idle, the others; heartbeats, busy ones, the anchor, groups of siblings."""
    write(
        store,
        row("old", active=1),
        row("mid", active=2),
        row("new", active=3),
        row("run1", active=9, created=1),
        row("run2", active=8, created=2),
        row("idle", active=0),
        row("beat", active=0),
        row("busy", active=0),
        row("e1", active=50, messages=0),
        row("e2", active=2, created=-1, messages=0),
        *(row(f"k{n}", active=n, parent="new") for n in range(4)),
    )
    live = LiveRoster(
        running=frozenset(("run1", "run2")),
        idle=frozenset(("idle", "nobody")),
        heartbeats=frozenset(("beat", "idle")),
        busy=frozenset(("busy", "run1")),
        anchor="e2",
        groups={"k3": "x", "k2": "y", "k1": "x", "k0": "y"},
    )
    assert ids(pages.page(PageQuery(live=live))) == [
        *("run2", "run1", "idle", "beat", "busy"),
        *("new", "k3", "k1", "k2", "k0", "mid", "e2", "old", "e1"),
    ]


@pytest.mark.parametrize("circle", [("a",), ("a", "b"), ("a", "b", "c")])
def test_circles_of_parents(store: Store, pages: SessionPages, circle: tuple[str, ...]) -> None:
    """Every session is shown once."""
    write(
        store,
        row("plain"),
        row("below", parent="a"),
        *(row(one, parent=circle[at - 1]) for at, one in enumerate(circle)),
    )
    page = pages.page(PageQuery())
    assert sorted(ids(page)) == sorted(["plain", "below", *circle])
    assert sorted(primaries(every(pages, PageQuery(limit=1)))) == sorted(ids(page))


_SESSIONS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 11)),
        st.one_of(st.none(), st.integers(0, 3)),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from(("", "x", "\xe9")),
    ),
    max_size=12,
)
_SETS = st.frozensets(st.integers(0, 12).map(lambda n: f"s{n:02d}"), max_size=4)


@settings(max_examples=120, deadline=None)
@given(sessions=_SESSIONS, sets=st.tuples(_SETS, _SETS, _SETS, _SETS), anchor=st.integers(0, 14))
def test_the_order_against_an_oracle(
    sessions: list[tuple[Any, ...]], sets: tuple[frozenset[str], ...], anchor: int
) -> None:
    """As one sort by all the rules at once on every level, whatever the roster."""
    rows = {
        f"s{at:02d}": row(
            f"s{at:02d}",
            parent=None if parent is None or parent >= at else f"s{parent:02d}",
            active=active,
            created=created,
            messages=int(said),
            title=title,
        )
        for at, (parent, active, created, said, title) in enumerate(sessions)
    }
    running, idle, heartbeats, busy = sets
    live = LiveRoster(
        running=running, idle=idle, heartbeats=heartbeats, busy=busy, anchor=f"s{anchor:02d}"
    )

    def key(one: SessionRow) -> tuple[Any, ...]:
        section = 0 if one.id in running else 1 if one.id in idle else 2
        by_creation = (-(one.created or 0), one.title, one.id)
        empty = one.messages == 0 and one.id != live.anchor
        if section == 0:
            return section, empty, by_creation
        beats = section == 2 and one.id in heartbeats
        active = (one.active is None, -(one.active or 0))
        return section, empty, not beats, one.id not in busy, active, by_creation

    def below(parent: str | None) -> list[str]:
        level = sorted((one for one in rows.values() if one.parent == parent), key=key)
        return [i for one in level for i in (one.id, *below(one.id))]

    with Catalogue.memory() as catalogue:
        catalogue.write([(one, None) for one in rows.values()])
        numbers = {number: i for i, number in catalogue.numbers(rows).items()}
        assert [numbers[n] for n in ordered(catalogue, live)] == below(None)


# Limits


def test_pages_in_both_directions(store: Store, pages: SessionPages) -> None:
    """64 rows at most; forwards and backwards every session once; totals are exact."""
    write(store, *(row(f"s{n:03d}", active=1000 - n) for n in range(150)))
    query = PageQuery()
    forward = every(pages, query)
    assert [page.count for page in forward] == [64, 64, 22]
    assert [page.position for page in forward] == [0, 64, 128]
    assert {page.total for page in forward} == {150}
    assert primaries(forward) == [f"s{n:03d}" for n in range(150)]
    assert forward[0].previous_cursor is None
    back = backwards(pages, query, forward[-1])
    assert primaries(back) == primaries(forward)
    assert back[0].position == 0
    assert not any(page.reset for page in (*forward, *back))


def test_ancestors_count_and_are_marked(store: Store, pages: SessionPages) -> None:
    """Rows of context are within the limit, and never the ones that the query means."""
    rows = [row("top", active=5, cwd="/else"), row("mid", parent="top", cwd="/else")]
    rows += [row(f"k{n}", parent="mid", active=100 - n) for n in range(5)]
    write(store, *rows)
    query = PageQuery(cwd="/w", limit=4)
    found = every(pages, query)
    assert [ids(page) for page in found] == [
        ["(top)", "(mid)", "k0", "k1"],
        ["(top)", "(mid)", "k2", "k3"],
        ["(top)", "(mid)", "k4"],
    ]
    assert {page.total for page in found} == {5}
    assert primaries(backwards(pages, query, found[-1])) == [f"k{n}" for n in range(5)]
    whole = PageQuery(limit=4)
    assert [ids(page) for page in every(pages, whole)] == [
        ["top", "mid", "k0", "k1"],
        ["(top)", "(mid)", "k2", "k3"],
        ["(top)", "(mid)", "k4"],
    ]


def test_a_chain_longer_than_a_page(store: Store, pages: SessionPages) -> None:
    """The nearest ancestors come along, and the row says that there are more."""
    write(store, row("s0"), *(row(f"s{n}", parent=f"s{n - 1}") for n in range(1, 100)))
    found = every(pages, PageQuery())
    assert primaries(found) == [f"s{n}" for n in range(100)]
    assert max(len(page.rows) for page in found) == 64
    last = found[-1].rows
    assert [r.info.id for r in last] == [f"s{n}" for n in range(36, 100)]
    assert last[-1].orphaned


def test_a_page_is_at_most_a_mebibyte(store: Store, pages: SessionPages) -> None:
    """The rows are counted as JSON; one that is too large itself comes with less."""
    words = "\u20ac" * 30_000
    write(store, *(row(f"s{n:02d}", active=-n, name=words) for n in range(30)))
    write(store, row("z", active=-99, name="n" * 2 * ROW_BYTES_MAX, agent_status='{"a":1}'))
    found = every(pages, PageQuery())
    assert len(found) > 2
    for page in found:
        encoded = sum(len(msgspec.json.encode(asdict(r))) for r in page.rows)
        assert encoded <= PAGE_BYTES_MAX
    assert primaries(found) == [*(f"s{n:02d}" for n in range(30)), "z"]
    last = found[-1].rows[-1]
    assert last.clipped
    assert (len(last.info.name or ""), last.info.agent_status) == (1_000, None)


# Search and scope


def test_search(store: Store) -> None:
    """Before paging, over everything that a row knows; ancestors come along."""
    said = {"one": "The Quick fox", "two": "lazy DOG", "three": "quick brown"}
    parent = None
    for name, text in said.items():
        with Session.create(
            "/w", home_dir=store.top, session_id=name, parent_session=parent
        ) as session:
            session.append(user(text))
            parent = session.path
    with Session.open(os.path.join(store.sessions, "two.jsonl")) as session:
        session.set_name("Red Thing")
        session.append({"type": "agent_status", "status": {"summary": "is waiting"}})
    with SessionPages(store) as pages:
        pages.refresh()

        def search(text: str, **more: Any) -> list[str]:
            page = pages.page(PageQuery(text=text, **more))
            assert page.total == len([r for r in page.rows if not r.context])
            return ids(page)

        assert search("quick") == ["one", "(two)", "three"]
        assert search(" ") == ["one", "two", "three"]
        assert search('"quick fox"') == ["one"]
        assert search('fox "quick') == []
        assert search("fox quick") == ["one"]
        assert search("waiting lazy") == ["(one)", "two"]
        assert search("rdthng") == ["(one)", "two"]
        assert search('"rdthng"') == []
        assert search("re:qu.ck\\s+b") == ["(one)", "(two)", "three"]
        assert search("nobody") == []
        assert search("", named=True) == ["(one)", "two"]
        assert search("", damaged=True) == []
        assert search("", cwd="/w") == ["one", "two", "three"]
        assert search("", cwd="/x") == []
        for wrong in ("re:", "re:(", "re:  "):
            with raises_typed(Invalid):
                search(wrong)
        with raises_typed(LimitExceeded):
            search("x" * (SEARCH_CHARS_MAX + 1))


@pytest.mark.parametrize(
    ("word", "text", "near"),
    [
        ("abc", "a-b-c", True),
        ("abc", "a" + "-" * 25 + "bc", True),
        ("abc", "a" + "-" * 26 + "bc", False),
        ("abc", "a" + "-" * 60 + "abc", True),
        ("acb", "abc", False),
    ],
)
def test_letters_in_order(word: str, text: str, near: bool) -> None:
    assert is_near(word, text) == near


def test_arguments_that_are_none(pages: SessionPages) -> None:
    for query in (PageQuery(limit=0), PageQuery(limit=65), PageQuery(cwd="\0")):
        with raises_typed(Invalid):
            pages.page(query)
    for cursor in ("", "x", "1-2-3n", "1-0011223344556677-1x", "1-0011223344556677-1n\n"):
        with raises_typed(Invalid):
            pages.page(PageQuery(), cursor)


# Cursors


def test_cursors_hold_their_order(store: Store, pages: SessionPages) -> None:
    """While other sessions come, go and move, none is skipped or shown twice."""
    write(store, *(row(f"s{n:02d}", active=100 - n) for n in range(20)))
    query = PageQuery(limit=5)
    first = pages.page(query)
    write(store, row("newest", active=999), row("s12", active=998), gone=["s07"])
    rest = [first]
    while rest[-1].next_cursor is not None:
        with SessionPages(store) as others:  # another process can go on with it
            rest.append(others.page(query, rest[-1].next_cursor))
    assert primaries(rest) == [f"s{n:02d}" for n in range(20) if n != 7]
    assert {page.total for page in rest} == {20}
    assert ids(pages.page(query))[:2] == ["newest", "s12"]
    assert pages.page(query).total == 20


@pytest.mark.parametrize(
    "other",
    [
        PageQuery(limit=5, text="s"),
        PageQuery(limit=5, cwd="/w"),
        PageQuery(limit=5, live=LiveRoster(running=frozenset(("s03",)))),
        PageQuery(limit=5, live=LiveRoster(anchor="s03")),
        PageQuery(limit=5, live=LiveRoster(busy=frozenset(("s03",)))),
    ],
    ids=repr,
)
def test_other_inputs_reset_the_page(store: Store, pages: SessionPages, other: PageQuery) -> None:
    """What the order depends on changed: the first page, and it says so."""
    write(store, *(row(f"s{n:02d}", active=100 - n) for n in range(20)))
    first = pages.page(PageQuery(limit=5))
    page = pages.page(other, first.next_cursor)
    assert page.reset
    assert page.position == 0
    assert ids(page) == ids(pages.page(other))
    assert not pages.page(PageQuery(limit=5), first.next_cursor).reset


def test_forgotten_cursors_reset_the_page(store: Store, pages: SessionPages) -> None:
    """Old ones, and those of a catalogue that was lost."""
    rows = [row(f"s{n:02d}", active=100 - n) for n in range(20)]
    write(store, *rows)
    query = PageQuery(limit=5)
    first = pages.page(query)
    for _ in range(SNAPSHOTS_MAX):
        last = pages.page(query)
    assert pages.page(query, first.next_cursor).reset
    assert not pages.page(query, last.next_cursor).reset
    pages.close()
    shutil.rmtree(store.index)
    os.makedirs(store.index)
    write(store, *rows)
    with SessionPages(store) as others:
        others.page(query)
        assert others.page(query, first.next_cursor).reset
        assert others.page(query, last.next_cursor).reset


# Freshness, and a catalogue that fails


def test_rows_that_are_behind_say_so(store: Store) -> None:
    """A page comes from the catalogue at once; a refresh brings what changed."""
    with Session.create("/w", home_dir=store.top, session_id="a") as session:
        session.append(user("one"))
        path = session.path
    with SessionPages(store) as pages:
        assert ids(pages.page(PageQuery())) == []
        pages.refresh()
        (found,) = pages.page(PageQuery()).rows
        assert (found.info.message_count, found.behind) == (1, False)
        with Session.open(path) as session:
            session.append(user("two"))
        (found,) = pages.page(PageQuery()).rows
        assert (found.info.message_count, found.behind) == (1, True)
        pages.refresh()
        (found,) = pages.page(PageQuery()).rows
        assert (found.info.message_count, found.behind) == (2, False)


def test_a_catalogue_that_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journals are read, and the page is right."""
    for name in ("a", "b"):
        with Session.create("/w", home_dir=store.top, session_id=name) as session:
            session.append(user("one"))
    real = Catalogue.order

    def order(self: Catalogue) -> Any:
        if self.file != ":memory:":
            raise IndexFault(self.file, "made up")
        return real(self)

    monkeypatch.setattr(Catalogue, "order", order)
    with SessionPages(store) as pages:
        assert pages.page(PageQuery()).total == 2
        assert [page.count for page in every(pages, PageQuery(limit=1))] == [1, 1]


def test_a_store_without_a_place_for_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of what was read into memory."""
    with Session.create("/w", home_dir=store.top, session_id="a") as session:
        session.append(user("one"))
    monkeypatch.setattr(pages_module, "open_catalogue", lambda store: Catalogue.memory())
    with SessionPages(store) as pages:
        assert ids(pages.page(PageQuery(text="one"))) == ["a"]
