"""Text of sessions cannot command the terminal, whichever command shows it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools_helpers import fine, message, run

from treering.engine.session.session import Session
from treering.tools import output

ATTACK = (
    "\x1b]0;title\x07 \x1b]52;c;aGk=\x07 \x1b[2J\x1b[31mred \x9b31m \x90q \x07\x08\x7f\r\n\t"
    "\u202egnp.exe \u2066x\u2069 \u200b \ufeff \u2028 \x00"
)
COMMANDS: list[list[str]] = [
    ["session", "list"],
    ["session", "list", "--json"],
    ["session", "show", "evil"],
    ["session", "show", "evil", "--entry", "id"],
    ["session", "tree", "evil", "--filter", "all"],
    ["session", "tree", "evil", "--json"],
    ["session", "info", "evil"],
    ["session", "info", "evil", "--json"],
    ["resume", "evil", "--json"],
    ["fsck", "evil"],
    ["dump", "evil"],
]
ON_A_TERMINAL: list[list[str]] = [
    ["session", "export", "evil"],
    ["session", "show", "evil", "--raw"],
    ["session", "show", "evil", "--entry", "id", "--raw"],
]


@pytest.fixture
def evil(home: Path) -> Path:
    attack = ATTACK.replace("\x00", "")
    with Session.create(attack, home_dir=str(home), session_id="evil") as session:
        session.append(message(ATTACK) | {"id": "id\x1b[31m"})
        session.append(message(ATTACK, role=ATTACK))
        session.append({"type": attack, "id": "id", "x": ATTACK})
        session.append({"type": "custom_message", "customType": ATTACK, "content": ATTACK})
        session.append({"type": "compaction", "summary": ATTACK, "tokensBefore": 1})
        session.set_label("id", attack)
        session.set_name(ATTACK)
    return home


def is_harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_control_character(words: list[str], evil: Path) -> None:
    """No control, format or separator character gets through, but for LF between lines."""
    ran = fine(*words, home=evil)
    assert is_harmless(ran.out), ran.out
    assert is_harmless(ran.stderr)


def test_errors(home: Path, tmp_path: Path) -> None:
    """Names of files and arguments are escaped in errors and warnings too."""
    name = tmp_path / "x\x1b[31m\nforged line.jsonl"
    name.write_text("{\x1b]0;t\x07}\n")
    for words in (["session", "import", name], ["fsck", name], ["session", "show", "\x1b[2J"]):
        ran = run(*words, home=home)
        assert ran.code == 1
        assert is_harmless(ran.stderr + ran.out)
        assert "\nforged" not in ran.stderr


@pytest.mark.parametrize("words", [COMMANDS[0], *ON_A_TERMINAL], ids=" ".join)
def test_on_a_terminal(words: list[str], evil: Path) -> None:
    """On a real terminal even the exact bytes of an export are escaped (as the same JSON)."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "treering.tools", *words, "--home", str(evil)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"COLUMNS": "100", "TERM": "xterm"},
    )
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 65_536):
            seen += chunk
    except OSError:
        pass  # the other side was closed
    os.close(master)
    assert child.wait(30) == 0
    assert is_harmless(seen.decode().replace("\r\n", "\n")), seen


def test_helpers() -> None:
    """Escaping keeps printable text as it is; clipping counts columns, not characters."""
    assert output.escape("a b é 年") == "a b é 年"
    assert output.escape("\x1b\n\udc80") == "\\x1b\\n\\udc80"
    assert output.escape_json('"\x9b😀\U000e0001"') == '"\\u009b😀\\udb40\\udc01"'
    assert output.one_line("  a\n\tb  ") == "a b"
    assert output.clip("年年年", 5) == "年年…"
    assert output.clip("abc", 3) == "abc"
    assert output.clip("abcd", 3) == "ab…"
    assert output.cells("e\u0301") == 1
    assert output.size_text(999) == "999 B"
    assert output.size_text(1_500_000) == "1.5 MB"


def test_progress_only_when_somebody_watches(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """No bar off a terminal; on one only when the work lasts, and on stderr."""
    assert list(output.with_progress([1, 2], "w", 2)) == [1, 2]
    monkeypatch.setattr(output, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for item in output.with_progress([1, 2, 3], "working", 3):
        output.say(str(item))
    assert capsys.readouterr().out == "1\n2\n3\n"
