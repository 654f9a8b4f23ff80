"""Running the command line in this process or in one of its own, and stores to run it on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.stores import picture  # noqa: F401 (for the tests beside)

from treering.engine.session.session import Session
from treering.tools.entry import main

CORPUS = Path(os.environ.get("TREERING_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus")
needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}; set TREERING_CORPUS to its folder"
)
SAMPLES = Path(__file__).parents[2] / "tools" / "samples"


@dataclass
class Ran:
    """What a command did."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def run(*arguments: str | Path, home: Path | None = None) -> Ran:
    """A command in this process."""
    words = [str(word) for word in arguments]
    if home is not None:
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = ["--home", str(home)]
    with CliRunner().isolation() as (stdout, stderr, _):
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        return Ran(code, stdout.getvalue(), stderr.getvalue().decode("utf-8", "replace"))


def fine(*arguments: str | Path, home: Path | None = None) -> Ran:
    """A command that must end with 0."""
    ran = run(*arguments, home=home)
    assert ran.code == 0, ran
    return ran


def process(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "treering.tools", *map(str, arguments)],
        capture_output=True,
        timeout=60,
        check=False,
        **more,
    )


def message(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    """An entry that says something."""
    inner: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text}]}
    return {"type": "message", "message": inner | more}


def new_session(home: Path, *texts: str, session_id: str | None = None) -> str:
    """A session with user messages; returns its path."""
    with Session.create("/work", home_dir=str(home), session_id=session_id) as session:
        for text in texts:
            session.append(message(text))
        return session.path


def id_of(path: str) -> str:
    return Path(path).stem


def imported(home: Path, file: Path, *options: str) -> str:
    """The path of a session imported from a file."""
    return fine("session", "import", *options, file, home=home).out.strip()
