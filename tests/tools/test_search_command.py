"""`treering search`: hits as a table and as JSON, filters, pages, and what is said beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools_helpers import fine, id_of, message, new_session, run

from treering.engine import Session


def test_hits_are_rows(home: Path) -> None:
    path = new_session(home, "the red apple", "a green one", session_id="s1")
    with Session.open(path) as session:
        session.append(message("an apple again", "assistant", timestamp=1))
    ran = fine("search", "apple", home=home)
    head, *rows = ran.lines[-3:]
    assert head.split() == ["session", "time", "role", "entry", "text"]
    assert [row.split()[0] for row in rows] == ["s1", "s1"]
    assert rows[0].endswith("an apple again")
    assert rows[1].endswith("the red apple")
    assert ran.stderr == ""
    assert "the red apple" in ran.lines[1], "the first message is a short field"


def test_hits_are_json(home: Path) -> None:
    path = new_session(home, "the red apple", "a green apple", session_id="s1")
    found = fine("search", "green apple", "--json", home=home).json
    (hit,) = found["hits"]
    assert hit | {"entry": "", "time": "", "timeMs": 0} == {
        "session": "s1", "path": path, "sequence": hit["sequence"], "entry": "", "kind": "message",
        "role": "user", "timeMs": 0, "time": "", "snippet": "a green apple", "match": [2, 7],
    }  # fmt: skip
    assert found["fields"] == found["problems"] == []
    assert found["cursor"] is None
    assert found["scanned"] is None


def test_filters_and_pages(home: Path) -> None:
    first = new_session(home, *(f"word {n}" for n in range(5)), session_id="first")
    with Session.create("/else", home_dir=str(home), session_id="second") as session:
        session.append(
            message("word five", "assistant") | {"timestamp": "2020-05-05T00:00:00.000Z"}
        )

    def texts(*words: str) -> list[str]:
        found = fine("search", "word", "--json", *words, home=home).json
        return [hit["snippet"] for hit in found["hits"]]

    assert len(texts()) == 6
    assert texts("--session", "fir")[-1] == "word 0"
    assert len(texts("--session", first)) == 5
    assert texts("--cwd", "/else") == texts("--role", "assistant") == ["word five"]
    assert texts("--until", "2020-05-06") == ["word five"]
    assert texts("--since", "2020-05-06T00:00:00Z", "--rank", "--limit", "1") != ["word five"]
    assert texts("--kind", "compaction") == []
    got: list[str] = []
    after: list[str] = []
    while True:
        found = fine("search", "word", "--json", "--limit", "4", *after, home=home).json
        got += [hit["snippet"] for hit in found["hits"]]
        if found["cursor"] is None:
            break
        after = ["--after", found["cursor"]]
    assert got == texts()
    said = fine("search", "word", "--limit", "1", home=home).stderr
    assert "--after n" in said


def test_what_is_worth_knowing_is_said(home: Path) -> None:
    new_session(home, "日本語", "++", session_id="s")
    (home / "sessions" / "bad.jsonl").write_bytes(b"garbage")
    ran = fine("search", "本", home=home)
    assert "日本語" in ran.out
    assert "2 texts were read one by one" in ran.stderr
    assert "bad: no journal header that verifies" in ran.stderr
    ran = fine("search", "nothing", home=home)
    assert ran.out == ""
    assert "nothing was found" in ran.stderr


def test_text_of_sessions_reaches_no_terminal_raw(home: Path) -> None:
    new_session(home, "evil \x1b]0;title\x07 word\nsecond line", session_id="s")
    ran = fine("search", "word", home=home)
    assert "\x1b" not in ran.out
    assert "\x1b" not in fine("search", "word", "--json", home=home).out
    assert "second line" in ran.lines[-1]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["search"], 2),
        (["search", "x", "--since", "yesterday"], 2),
        (["search", "x", "--limit", "0"], 2),
        (["search", ""], 1),
        (["search", "AND", "--raw"], 1),
        (["search", "x", "--after", "elsewhere"], 1),
        (["search", "x", "--session", "nobody"], 1),
        (["search", "本", "--rank"], 1),
    ],
)
def test_what_makes_no_sense_is_refused(home: Path, words: list[str], code: int) -> None:
    new_session(home, "x")
    ran = run(*words, home=home)
    assert ran.code == code
    assert ran.out == ""
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr) > 10


def test_deleted_words_are_not_found(home: Path) -> None:
    path = new_session(home, "secret word")
    assert "secret" in fine("search", "word", home=home).out
    fine("session", "delete", id_of(path), "--yes", home=home)
    assert fine("search", "word", home=home).out == ""
    for name in os.listdir(home / "session-index"):
        assert b"secret" not in (home / "session-index" / name).read_bytes()
    fine("session", "undelete", id_of(path), home=home)
    assert "secret" in fine("search", "word", home=home).out
