"""`session associations`."""

from __future__ import annotations

from pathlib import Path

import pytest
from associations.helpers import (
    assistant,
    both,
    branch_summary,
    compaction,
    header,
    json_frames,
    link,
    our_journal,
    part,
    refinement,
    source,
)
from support.build import make_store, put
from tools_helpers import fine, run

from treering.engine import Session, request_associations

ENTRIES = [
    header(),
    *both(source=source(leafId="left\x1b")),
    *both("h", purpose="summary", purposeDetail="compaction"),
    *both("b", purpose="summary", purposeDetail="branch"),
    assistant(link(source=source(leafId="left\x1b"))),
    assistant(entry_id="m\x1b2"),
    compaction([part("history", "h"), part("turn-prefix", "h")]),
    compaction(entry_id="c2"),
    branch_summary(link("b")),
    refinement(),
]


@pytest.fixture(params=["framed", "ours"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "ours":
        return put(make_store(tmp_path), our_journal(ENTRIES))
    framed = tmp_path / "framed.jsonl"
    framed.write_bytes(json_frames(ENTRIES))
    return str(framed)


def test_one_line_for_each_output(path: str) -> None:
    ran = fine("session", "associations", path)
    assert [" ".join(line.split()) for line in ran.lines] == [
        r"assistant m operation o, 1 attempt, from left\x1b",
        r"assistant m\x1b2 unknown",
        "compaction c history: operation o, 1 attempt, from the start; turn-prefix: unknown",
        "compaction c2 unknown",
        "branch summary b operation o, 1 attempt, from the start",
        "refinement r unknown",
    ]
    assert not ran.stderr


def test_json_is_the_report(path: str) -> None:
    found = fine("session", "associations", path, "--json").json
    assert found == request_associations(path)
    assert fine("session", "associations", path, "--json", "--verify").json == found


def test_a_session_is_named_as_elsewhere(tmp_path: Path) -> None:
    with Session.create("/w", home_dir=str(tmp_path)) as session:
        named = session.id
        entry_id = session.append_message({"role": "assistant", "content": []})
    ran = fine("session", "associations", named[:12], home=tmp_path)
    assert ran.lines == [f"assistant       {entry_id}  unknown"]
    assert run("session", "associations", "nothing", home=tmp_path).code == 1


def test_refusals_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    data = json_frames(ENTRIES)
    for changed, options in (
        (b"not JSON\n", ()),
        (b"", ()),
        (data.replace(b"\n", b"\n{\n", 1), ()),
        (data.replace(b'"hi"', b'"ho"'), ("--verify",)),
        (our_journal(ENTRIES)[:300], ()),
    ):
        path.write_bytes(changed)
        ran = run("session", "associations", path, *options)
        assert (ran.code, ran.out, len(ran.stderr.splitlines())) == (1, "", 1), changed[:40]
    assert run("session", "associations", tmp_path / "missing.jsonl").code == 1
    assert run("session", "associations").code == 2
