"""`quickstart`: what Treering does, done once with two small sample sessions.

Every step is checked, so the tour is also a test of an installation: it ends with 0 only when each
step did what it says.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from treering.tools.trees import Line

SAMPLES = ("tree-rings.jsonl", "broad-beans-v1.jsonl")


@click.command("quickstart")
@click.option("--keep", metavar="DIR", help="Keep the store here; the folder must not exist yet.")
def command(keep: str | None) -> None:
    """A tour with two sample sessions: import, list, tree, check, export.

    It uses a store of its own, which is removed at the end.
    """
    with _home(keep) as home:
        _Tour(home).run()
    if keep is not None:
        from treering.tools.output import escape, say

        say()
        say(escape(f"The store is kept: treering session list --home {home}"))


@contextmanager
def _home(keep: str | None) -> Iterator[str]:
    if keep is None:
        folder = tempfile.mkdtemp(prefix="treering-quickstart-")
        try:
            yield os.path.realpath(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    from treering.engine.home import check_writable_place

    if not keep or "\0" in keep:
        raise click.UsageError("--keep needs the name of a new folder")
    folder = os.path.abspath(os.path.expanduser(keep))
    check_writable_place(folder)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        raise click.UsageError("--keep needs a new folder; this one exists") from None
    yield folder


class _Tour:
    """The steps, in order. Each raises when it did not work."""

    def __init__(self, home: str) -> None:
        from treering.engine.home import Store

        self.home = home
        self.store = Store.at(home)
        self.paths: list[str] = []

    def run(self) -> None:
        """All steps."""
        self._import()
        self._list()
        self._tree()
        self._append()
        self._check()
        self._export()

    def _step(self, command: str, explanation: str) -> None:
        from treering.tools.output import say

        say(f"\n$ treering {command}\n# {explanation}")

    def _import(self) -> None:
        from treering.engine.transfer.importing import import_session
        from treering.tools.output import escape, say

        self._step(
            f"session import {' '.join(SAMPLES)}",
            "two JSONL files, of version 3 and of version 1, become journals: whole or not at all",
        )
        for name in SAMPLES:
            result = import_session(_sample(name), home_dir=self.home)
            self.paths.append(result.path)
            say(escape(result.path))

    def _list(self) -> None:
        from treering.engine.session.listing import list_sessions
        from treering.tools.listing import cells_of
        from treering.tools.output import table

        self._step("session list", "every session of the store, newest activity first")
        rows = list_sessions(self.store)
        head = ("id", "last activity", "messages", "name or first message", "cwd")
        table(head, [cells_of(row) for row in rows], (36, 16, 8, 0, 30))
        _require([row.path for row in rows] == self.paths, "both sessions are listed")
        _require(all(row.status == "ok" for row in rows), "both sessions are well")

    def _tree(self) -> None:
        from treering.tools.show_commands import say_line
        from treering.tools.trees import lines_of, tree_of
        from treering.tools.viewing import looking_at

        self._step(
            "session tree ID", "a session is a tree: * marks the branch that the next entry goes on"
        )
        with looking_at(self.paths[0]) as view:
            lines: list[Line] = lines_of(tree_of(view), "default")
        for line in lines:
            say_line(line)
        _require(sum(line.leaf for line in lines) == 1, "the current position is shown")
        _require(any(line.branch for line in lines), "the branch is shown")

    def _append(self) -> None:
        from treering.tools.output import say
        from treering.tools.viewing import owning

        self._step(
            "session label ID ENTRY answer",
            "an append to the second session: durable when it returns",
        )
        with owning(self.paths[1]) as session:
            leaf = session.leaf_id
            assert leaf is not None
            say(session.set_label(leaf, "answer"))
            _require(session.label(leaf) == "answer", "the label is there")

    def _check(self) -> None:
        from treering.tools.fsck import check_session
        from treering.tools.output import escape, say
        from treering.tools.reindex import reindex_session

        self._step("reindex --all", "indexes are made from journals, and can always be made again")
        for path in self.paths:
            done = reindex_session(path)
            _require(done.error is None, f"the index is built ({done.error})")
            say(escape(f"{done.session}: {done.rows} rows"))
        self._step("fsck --all --index", "every frame verified, and each index proven row by row")
        for path in self.paths:
            checked = check_session(path, with_index=True)
            say(escape(checked.summary()))
            _require(checked.ok and checked.index.state == "equal", "journal and index are right")

    def _export(self) -> None:
        from treering.engine.transfer.exporting import jsonl_lines
        from treering.tools.output import counted, say
        from treering.tools.viewing import looking_at

        self._step(
            "session export ID --format jsonl", "an import of version 3 comes out byte for byte"
        )
        with looking_at(self.paths[0]) as view:
            exported = b"".join(jsonl_lines(view))
        with open(_sample(SAMPLES[0]), "rb") as file:
            _require(exported == file.read(), "the export is the file that was imported")
        say(f"{counted(len(exported), 'byte')}, the same as in {SAMPLES[0]}")


def _sample(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "samples", name)


def _require(holds: bool, what: str) -> None:
    from treering.engine.errors import Damaged

    if not holds:
        raise Damaged(f"quickstart: this did not work: {what}")
