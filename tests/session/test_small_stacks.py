"""Deep nesting and small stacks: a decoder that runs out of stack ends the process, typed or not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from session_helpers import new
from support import build

from treering.engine import LimitExceeded, SessionView
from treering.engine.journal import control
from treering.engine.journal.admissible import Record
from treering.engine.journal.format import Kind
from treering.engine.json_text import decode_or_none
from treering.engine.session.entries import UnknownEntry, decode_entry, decode_header
from treering.engine.session.facts import UNREADABLE, facts_of
from treering.engine.session.texts import members_of
from treering.engine.transfer import exporting

IN_A_SMALL_STACK = """
import sys, threading
from treering.engine import LimitExceeded, Session, SessionView

def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value

# Freed by the main thread: CPython 3.13 itself overruns 256 KB when it frees such a list.
VALUES = [nested(300), nested(1100), nested(100_000), {"a": (nested(100_000),)}]

def read():
    with SessionView.open(sys.argv[1]) as view:
        found = view.entries()
        assert len(found) == 4, found
        [entry.decode() for entry in found]
        assert view.read("a").decode().type == "message"

def below(frames, call):
    below(frames - 1, call) if frames else call()

def run():
    read()
    below(800, read)
    with Session.open(sys.argv[1]) as session:
        for value in VALUES:
            try:
                session.append({"type": "custom", "customType": "t", "data": value})
            except LimitExceeded:
                continue
            raise AssertionError("taken")
        session.append({"type": "custom", "customType": "t", "id": "c"})
    print("fine")

threading.stack_size(256 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def deep(levels: int, head: bytes = b'{"type":"custom","id":"d","parentId":"a","x":') -> bytes:
    """An object of that many levels."""
    return head + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_F126_every_decoder_of_file_bytes_has_the_limit() -> None:
    """128 levels are decoded and 129 are not, whatever the bytes are taken for."""
    assert facts_of(deep(128)).kind == "custom"
    assert facts_of(deep(129)) is UNREADABLE
    assert not isinstance(decode_entry(deep(128, b'{"type":"custom","customType":"t","id":"d",'
        b'"parentId":null,"timestamp":"","x":')), UnknownEntry)  # fmt: skip
    refused = decode_entry(deep(129))
    assert isinstance(refused, UnknownEntry)
    assert refused.problem == "nests 129 deep"
    head = b'{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/","x":'
    assert decode_header(deep(128, head)) is not None
    assert decode_header(deep(129, head)) is None
    assert control.decode_leaf(deep(128, b'{"leaf":null,"x":')) is not None
    assert control.decode_leaf(deep(129, b'{"leaf":null,"x":')) is None
    facts = b'{"format":"jsonl","byte_exact":true,"blank_lines":[],"bom":false,"x":'
    assert decode_or_none(exporting._provenances, deep(129, facts)) is None
    assert members_of(deep(128))["id"] == "d"
    assert members_of(deep(129)) == {}


@dataclasses.dataclass
class Node:
    """A container that is neither a list nor a dict."""

    inside: Any


class Struct(msgspec.Struct):
    """Another."""

    inside: Any


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, Node, Struct],
    ids=["list", "tuple", "dict", "dataclass", "struct"],
)
def test_F126_containers_of_all_types_count(tmp_path: Path, wrap: Any) -> None:
    """The entry is the first level; 127 more are taken, and one more is refused."""
    value: Any = 1
    for _ in range(127):
        value = wrap(value)
    with new(tmp_path) as session:
        session.append({"type": "custom", "customType": "t", "id": "a", "data": value})
        with pytest.raises(LimitExceeded, match="128"):
            session.append({"type": "custom", "customType": "t", "data": wrap(value)})
        assert len(session.entries()) == 1


def test_F126_a_thread_with_a_small_stack(tmp_path: Path) -> None:
    """A journal of somebody else with nested entries, and such values from a caller."""
    store = build.make_store(tmp_path)
    writer = build.create(store)
    writer.append([build.entry("a")])
    for levels in (300, 1_100, 100_000):
        writer.append([Record(Kind.ENTRY, deep(levels))])
    writer.close()
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SMALL_STACK, store.path()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    with SessionView.open(store.path()) as view:
        assert view.has("c")
