"""What must hold after a run, looked at without strace and without any fault."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from treering.engine import Damaged, Session, TreeringError, delete_session, repair
from treering.fuzz.syscalls import moves, rules, stores
from treering.fuzz.syscalls.flows import After, Flow, Ran, Seen, Told, told
from treering.fuzz.syscalls.stores import Before, Place
from treering.fuzz.syscalls.tracing import Call, Fault
from treering.tools.fsck import check_session

_SAID_UNKNOWN: Final = (
    b"unknown",
    b"it is visible now",
    b"it is in its place now",
    b"are appended again",
)
"""Words of the messages that leave open whether something was done."""

_LASTING: Final = re.compile(
    r"home(/sessions(/[\w-]+\.jsonl)?"
    r"|/session-trash(/good(/journal\.jsonl|/tombstone\.json|/artifacts(/tool\.log)?)?)?"
    r"|/session-index(/[\w-]+\.\d+\.sqlite3(\.bad-\d+)?(-wal|-shm|-journal)?"
    r"|/[\w-]+\.owner\.json)?"
    r"|/session-artifacts(/[\w-]+(/tool\.log|/quarantine(/\d+-[0-9a-f]{16}(\.\d+)?\.tail"
    r"|/before-repair-\d+-\d+\.jsonl)?)?)?"
    r")?|source\.jsonl|out\.jsonl"
)
"""Files and folders that documentation names as lasting."""

_SWEPT: Final = re.compile(r"home/(sessions|session-trash)/\.[\w-]+\.[0-9a-f]{8}\.new")
"""Journals and tombstones under construction: a later creation or deletion sweeps them away."""

_UNDER_WAY: Final = re.compile(r"home/session-trash/\.good\.(deleting|restoring)")
"""What says that a deletion or restoration goes on."""


class Verdict:
    """Collects what is wrong."""

    def __init__(self, flow: Flow, place: Place, before: Before, ran: Ran, fault: Fault) -> None:
        self.flow, self.place, self.before = flow, place, before
        self.ran, self.fault = ran, fault
        self.killed = ran.status == -9
        self.wrong: list[str] = []
        self.after = After()
        self.swept_later: list[str] = []
        self.healed = False
        """Whether an index could not be used before the store was opened."""

    def judge(self, calls: list[Call]) -> list[str]:
        """Everything; the store is used up by it."""
        self.wrong += self._ending()
        if calls:
            self.wrong += rules.lies(
                calls, self.place.sessions, status=self.ran.status, script=self.flow.script
            )
        self.wrong += self._bytes()
        self.wrong += self._leftovers()
        if self.flow.ends is not None:
            self.wrong += moves.settle(self.place, self.flow.ends, self.ran)
        self.wrong += self._before_opening()
        for name in session_names(self.place):
            self.wrong += self._open(name)
        self.wrong += self._effect()
        for name in session_names(self.place):
            self.wrong += self._go_on(name)
        if self.swept_later:
            self.wrong += self._sweep()
        return self.wrong

    def _ending(self) -> Iterator[str]:
        """Exit code and message as documented."""
        status, out, err = self.ran
        if self.killed:
            if self.fault.error != "KILL":
                yield "it was killed"
            return
        if status not in (0, 1, 3):
            yield f"exit code {status}"
        for text in (out, err):
            if b"Traceback" in text or b"internal error" in text:
                yield f"it broke: {text[-300:]!r}"
        if self.flow.script is not None:
            if err:
                yield f"standard error of a script: {err[-300:]!r}"
            return
        lines = err.splitlines()
        if status == 0:
            # Facts beside the success, an index that could not be built for one.
            for line in lines:
                if not line.startswith(b"treering: ") or line.startswith(b"treering: error: "):
                    yield f"success with a complaint: {line!r}"
        if status in (1, 3):
            told_on_stdout = self.flow.words is not None and self.flow.name == "fsck" and out
            if len(lines) != 1 and not (told_on_stdout and not lines):
                yield f"exit code {status} with {len(lines)} lines: {err[-300:]!r}"
            elif lines and not lines[0].startswith(b"treering: "):
                yield f"exit code {status}: {lines[0]!r}"

    def _bytes(self) -> Iterator[str]:
        """Bytes that were durable before are there, in place."""
        if not self.before.journal:
            return
        if self.flow.ends is not None:
            yield from moves.check_bytes(self.place, self.before)
            return
        try:
            with open(self.place.journal, "rb") as file:
                data = file.read()
        except OSError as error:
            yield f"the journal is gone: {error}"
            return
        if self.flow.reads_only and data != self.before.journal:
            yield "a command that reads changed the journal"
        if not self.flow.settles and not data.startswith(self.before.journal[: self.before.kept]):
            yield "acknowledged bytes of the journal changed"

    def _leftovers(self) -> Iterator[str]:
        """No file but those that last, and those that are swept later."""
        unlinks = self.killed or self.fault.call in ("unlink", "unlinkat")
        for folder, folders, files in os.walk(self.place.root):
            for name in (*folders, *files):
                path = os.path.relpath(os.path.join(folder, name), self.place.root)
                if _LASTING.fullmatch(path):
                    continue
                if unlinks and _SWEPT.fullmatch(path):
                    self.swept_later.append(os.path.join(folder, name))
                    continue
                if self.ran.status != 0 and self.flow.ends and _UNDER_WAY.fullmatch(path):
                    continue
                if unlinks and re.fullmatch(r"out\.jsonl\.[0-9a-f]{8}\.part", path):
                    continue
                yield f"left behind: {path}"

    def _before_opening(self) -> Iterator[str]:
        """``fsck`` finds nothing that needs action, but what the next opening puts right by itself:
        a torn tail, and an index that cannot be used (never one that says something else)."""
        for name in session_names(self.place):
            checked = check_session(path_of(self.place, name), with_index=True)
            for finding in checked.findings:
                was = name == stores.SESSION_ID and checked.case == self.before.case != "A"
                if finding.kind == "index" and checked.index.state == "unusable":
                    self.healed = True
                    continue
                if finding.kind == "torn" and not self._may_be_torn():
                    yield f"{finding.length} bytes of what was refused are left in {name}"
                if finding.needs_action and finding.kind != "torn" and not was:
                    yield f"fsck of {name}: {finding.kind}: {finding.what}"

    def _may_be_torn(self) -> bool:
        unsaid = (b"OutcomeUnknown", b"Poisoned", *_SAID_UNKNOWN)
        said = self.ran.out + self.ran.err
        return self.killed or self.before.case == "E" or any(word in said for word in unsaid)

    def _open(self, name: str) -> Iterator[str]:
        path = path_of(self.place, name)
        try:
            with Session.open(path) as session:
                report = session.report
                self.after.sessions[name] = Seen(
                    [found.raw for found in session.entries()],
                    session.leaf_id,
                    0 if report is None else report.quarantined_bytes,
                )
        except Damaged as error:
            if not (self.flow.settles and name == stores.SESSION_ID):
                yield f"{name} does not open: {error}"
        except TreeringError as error:
            yield f"{name} does not open: {type(error).__name__}: {error}"

    def _effect(self) -> Iterator[str]:
        if self.flow.script is not None:
            yield from self._lines(told(self.ran.out, killed=self.killed))
            return
        good = self.after.good
        if good is not None and not self.flow.settles:
            if good.raws[: len(self.before.raws)] != self.before.raws:
                yield "entries that were there before are not"
        if self.flow.ends is not None:
            if good is not None and (good.raws, good.leaf) != (self.before.raws, self.before.leaf):
                yield "the session that came back is another one"
            return
        if self.flow.reads_only:
            return
        assert self.flow.effect is not None
        done = self.flow.effect(self.place, self.before, self.ran, self.after)
        if self.ran.status == 0 and not done:
            yield "it said that it was done, and it is not"
        if self.ran.status in (1, 3) and not any(t in self.ran.err for t in _SAID_UNKNOWN):
            if self._is_changed():
                yield f"it said that it failed, and something is done: {self.ran.err!r}"
        if self.killed and not done and self._is_changed():
            yield "it was killed, and something is done in part"

    def _is_changed(self) -> bool:
        """Whether anything is visible that was not there before."""
        good = self.after.good
        if set(self.after.sessions) - {stores.SESSION_ID} or os.path.exists(self.place.export):
            return True
        if self.flow.settles:
            return good is not None
        return good is not None and (good.raws, good.leaf) != (self.before.raws, self.before.leaf)

    def _lines(self, said: Told) -> Iterator[str]:
        """The acknowledgement log of a script against what is there."""
        good = self.after.good
        raws = [] if good is None else good.raws
        if raws[: len(self.before.raws)] != self.before.raws:
            yield "entries that were there before are not"
        here = [_id_of(raw) for raw in raws[len(self.before.raws) :]]
        for one in said.acknowledged:
            if here.count(one) != 1:
                yield f"{one} was acknowledged and is there {here.count(one)} times"
        for one in here:
            if one in said.refused:
                yield f"{one} was refused and is there"
            elif one not in said.acknowledged and one not in said.unknown:
                yield f"{one} was never told of and is there"
        known = [one for one in here if one in said.acknowledged]
        if known != [one for one in said.acknowledged if one in here]:
            yield f"the order is {here}"
        if ("b1" in here) != ("b2" in here):
            yield "half a batch is there"
        if good is not None and said.leaf is not None and good.leaf != said.leaf:
            yield f"the position is {good.leaf}, acknowledged was {said.leaf}"

    def _sweep(self) -> Iterator[str]:
        """What a later creation sweeps away is gone after it, when it is old enough."""
        for path in self.swept_later:
            os.utime(path, (0, 0))
        with Session.create(cwd="/w", home_dir=self.place.home) as session:
            made = session.path
        delete_session(made)
        for path in self.swept_later:
            if os.path.exists(path):
                yield f"never swept: {os.path.basename(path)}"

    def _go_on(self, name: str) -> Iterator[str]:
        """The next append is whole, and then all is clean."""
        path = path_of(self.place, name)
        try:
            if self.flow.settles and name not in self.after.sessions:
                repair(path)
            with Session.open(path) as session:
                before = [found.raw for found in session.entries()]
                added = session.append(stores.entry("after"))
            with Session.open_read_only(path) as view:
                after = [found.raw for found in view.entries()]
            if after[:-1] != before or _id_of(after[-1]) != added:
                yield f"the next append to {name} is not whole"
        except TreeringError as error:
            yield f"{name} does not go on: {type(error).__name__}: {error}"
            return
        checked = check_session(path, with_index=True)
        for finding in checked.findings:
            if finding.needs_action:
                yield f"fsck of {name} at the end: {finding.kind}: {finding.what}"


def session_names(place: Place) -> list[str]:
    """The sessions of a place, by their files."""
    try:
        names = os.listdir(place.sessions)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))


def path_of(place: Place, name: str) -> str:
    """The journal of a session."""
    return os.path.join(place.sessions, f"{name}.jsonl")


def _id_of(raw: bytes) -> str:
    found = re.search(rb'"id":"([^"]*)"', raw)
    return "" if found is None else found[1].decode()
