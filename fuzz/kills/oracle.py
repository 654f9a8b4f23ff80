"""What must hold of a session after a kill, told from the acknowledgements alone.

Everything acknowledged is there, byte for byte and in order; what was in flight is there whole,
as a prefix (``append_many``) or not at all; nothing else is. The session opens without help, at
once, and takes the next append. What an index answers is what the journal answers without one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from treering.engine import Owned, Session, SessionView
from treering.engine.home import Store
from treering.engine.session.entry import Entry
from treering.engine.session.listing import session_info
from treering.engine.session.reads import Reads
from treering.fuzz.kills.crew import Actor, BrokenPromise, Said
from treering.fuzz.kills.roles import digest_of
from treering.fuzz.kills.story import Op, Story, item_of, items_of, raw_of
from treering.fuzz.ledger import Attempt, Expectation
from treering.tools.fsck import Checked, Finding, check_session

AT_ONCE_S: Final = 1.0
"""A refusal, or the end of a lock with its owner, takes no longer, on a busy machine either."""


def require(condition: object, what: str) -> None:
    """Raise BrokenPromise unless the condition holds."""
    if not condition:
        raise BrokenPromise(what)


class Told(NamedTuple):
    """What is known of a writer's round: its calls as a story, and what was acknowledged."""

    story: Story
    acknowledged: list[str | None]
    """For each acknowledged call the id of the label that it made, if it made one."""

    @classmethod
    def by(cls, actor: Actor, story: Story) -> Told:
        """From what a process said."""
        acks = []
        for at, rest in enumerate(actor.rests("ACK")):
            number, _, label = rest.partition(" ")
            require(int(number) == at, f"acknowledgement {number} instead of {at}")
            acks.append(json.loads(label))
        return cls(story, acks)


class Book:
    """What must be in one session, settled after every kill."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: list[Entry] = []
        """What was there when the last kill had been judged."""
        self.leaf: str | None = None
        self.labels: dict[str, str] = {}
        self.in_flight = 0
        """Entries that were there although nobody had heard of their acknowledgement."""

    def judge(
        self, told: Told | None, *, delete_index: bool, append: bool, twice: bool = True
    ) -> None:
        """Everything that must hold after a kill; afterwards the session is closed and clean.

        Args:
            told: what is known of the process that was killed; None if it appended nothing.
            delete_index: whether the index is lost, too, before the session is opened.
            append: whether to append something.
            twice: whether to check the closed session once more.
        """
        first = look(self.path, after_kill=True)
        with SessionView.open(self.path) as view:
            without_index = answers(view)
        if delete_index:
            shutil.rmtree(Store.of_journal(self.path).index, ignore_errors=True)
        with self._open() as session:
            require(session.report is not None and session.report.case in "AE", "not clean")
            self.take(session, told)
            require(answers(session) == without_index, "the index answers something else")
            unfilled = _UNFILLED_FAULTS.get(first.index.state)
            faults = [f for f in session.index_faults if unfilled is None or unfilled not in f]
            require(not faults, f"the index is faulty: {faults}")
            if append:
                self._append(session)
        if not twice:
            return
        checked = look(self.path)
        # Staged frames at the very end are not yet indexed: they might have been activated.
        states = ("equal",) if append else ("equal", "behind")
        require(checked.index.state in states, f"the index is {checked.index.state} after closing")

    def _open(self) -> Session:
        start = time.monotonic()
        try:
            session = Session.open(self.path)
        except Owned as refusal:
            raise BrokenPromise(f"the lock outlived its owner: {refusal}") from refusal
        took_s = time.monotonic() - start
        require(took_s < PATIENT_OPEN_S, f"opening took {took_s:.1f} s")
        return session

    def take(self, reads: Reads, told: Told | None) -> None:
        """Compare all that is there with what must be; what was in flight is settled now."""
        found = list(reads.iter_entries())
        old = len(self.entries)
        require(found[:old] == self.entries, "an entry that was there is missing or changed")
        new = found[old:]
        if told is None:
            require(not new, f"{len(new)} entries that nobody appended")
        else:
            self._take_new(new, reads, told)
        require(reads.leaf_id == self.leaf, f"the position is {reads.leaf_id}, not {self.leaf}")
        labels = {entry.id: text for entry, text in reads.labels(limit=1 << 20)}
        require(labels == self.labels, "the labels are not those that were set")
        self.entries = found
        above = {entry.id: entry.parent_id for entry in found}
        require(len(above) == len(found), "two entries have one id")
        path, at = [], self.leaf
        while at is not None:
            require(at in above, f"the parent {at} is not there")
            path.append(at)
            at = above[at]
        require([entry.id for entry in reads.branch()] == path[::-1], "another branch")

    def _take_new(self, new: list[Entry], reads: Reads, told: Told) -> None:
        story = told.story
        require(story.leaf == self.leaf, "the process began at another position")
        items: tuple[Any, ...] = ()
        ids: list[str] = []
        for label_id in told.acknowledged:
            op = story.next()
            items += items_of(op, story.leaf)
            ids += op.ids if label_id is None else [label_id]
            self._note(op, label_id)
            story.done(op, label_id)
        require([entry.id for entry in new[: len(ids)]] == ids, self._why(new, ids))
        before = story.leaf
        pending = story.next()
        attempt = Attempt(items_of(pending, before), pending.how == "batch")
        allowed = Expectation(items, (attempt,), ()).allowed()
        found = tuple(item_of(entry.raw) for entry in new)
        require(found in allowed, self._why(new, ids))
        extra = new[len(ids) :]
        self.in_flight += len(extra)
        self.leaf = extra[-1].id if extra else before
        if pending.how == "branch" and reads.leaf_id == pending.target:
            self.leaf = pending.target  # it may have been written, and nothing says so
        if extra and pending.how == "label":
            self._note(pending, extra[0].id)

    def _note(self, op: Op, label_id: str | None) -> None:
        if label_id is None or op.target is None:
            return
        self.labels.pop(op.target, None)
        if op.text is not None:
            self.labels[op.target] = op.text

    def _why(self, new: list[Entry], ids: list[str]) -> str:
        found = [entry.id for entry in new]
        lost = [entry_id for entry_id in ids if entry_id not in found]
        if lost:
            return f"acknowledged and not there: {', '.join(lost[:5])} ({len(lost)})"
        return (
            f"{len(ids)} entries acknowledged, {len(found)} there, or others than were appended:"
            f" behind {ids[-1:]} come {found[len(ids) :][:9]}"
        )

    def _append(self, session: Session) -> None:
        """The next append is whole."""
        entry_id = f"after-{len(self.entries)}"
        raw = raw_of(entry_id, session.leaf_id, "after")
        session.append(raw)
        entry = session.read(entry_id)
        require(entry.raw == raw, "the next append is not whole")
        self.entries.append(entry)
        self.leaf = entry_id


PATIENT_OPEN_S: Final = 10.0
"""A session of a kill round is small: opening one for longer is a hang."""

UNFILLED: Final = "application id 0x0, not a Treering index"
"""What is said of an index file whose maker died before it had put anything into it."""

_UNFILLED_FAULTS: Final = {"unusable": UNFILLED, "behind": "it belongs to another journal"}
"""By what ``fsck`` calls such an index: what an owner says when it sets it aside."""


def _goes_by_itself(finding: Finding) -> bool:
    """Whether a kill may leave this, for the next open to deal with."""
    return finding.kind == "torn" or (finding.kind == "index" and UNFILLED in finding.what)


def look(path: str, *, after_kill: bool = False, with_index: bool = True) -> Checked:
    """What ``fsck`` and ``session list`` must say of a session that nobody owns."""
    checked = check_session(path, with_index=with_index)
    wrong = [
        f"{finding.kind}: {finding.what}"
        for finding in checked.findings
        if finding.needs_action and not (after_kill and _goes_by_itself(finding))
    ]
    require(not wrong, f"fsck: {'; '.join(wrong)}")
    row = session_info(path)
    require(row.status == "ok", f"session list: {row.status}, {row.reason}")
    return checked


def answers(reads: Reads) -> dict[str, Any]:
    """What a session answers, in a form that can be compared."""
    entries = list(reads.iter_entries())
    return {
        "entries": [entry[:6] for entry in entries],
        "leaf": reads.leaf_id,
        "branch": [entry.id for entry in reads.branch()],
        "labels": [(entry.id, text) for entry, text in reads.labels()],
        "counts": reads.counts(),
        "kinds": reads.kinds(),
        "header": reads.header_bytes(),
        "roots": [entry.id for entry in reads.children(None)],
        "children": {e.id: [c.id for c in reads.children(e.id)] for e in entries[-40:]},
        "depths": [reads.depth(entry.id) for entry in entries[-40:]],
    }


def judge_onlookers(
    history: Sequence[Said], writer: Actor, told: Told, book: Book, old: int
) -> int:
    """Judge what readers, listings and checks saw beside a living owner; how many such looks.

    Args:
        history: all that was said in the round, in order.
        writer: who appended.
        told: a fresh copy of its story.
        book: the session after judging the kill.
        old: how many entries there were before the round.
    """
    counts = [old]
    for label_id in told.acknowledged:
        op = told.story.next()
        new = len(op.ids) if label_id is None else 1
        told.story.done(op, label_id)
        counts.append(counts[-1] + new)
    digests = digest_of(entry.raw for entry in book.entries)
    acknowledged = looks = 0
    least: dict[int, int] = {}
    for said in history:
        if said.slot == writer.slot and said.word == "ACK":
            acknowledged += 1
        elif said.word == "LOOK":
            least[said.slot] = counts[acknowledged]
        elif said.word in ("SAW", "LISTED", "CHECKED"):
            _judge_look(said, least[said.slot], digests, book.path)
            looks += 1
    return looks


def _judge_look(said: Said, least: int, digests: list[str], path: str) -> None:
    if said.word == "SAW":
        count, digest, case, counted = json.loads(said.rest)
        require(case in "AE", f"a reader saw case {case} beside a living owner")
        require(count == counted, f"a reader counted {counted} entries and got {count}")
        require(count < len(digests) and digest == digests[count], "a reader saw other entries")
    elif said.word == "LISTED":
        code, _, rest = said.rest.partition(" ")
        rows = {row[0]: row[1:] for row in json.loads(rest)}
        name = os.path.basename(path).removesuffix(".jsonl")
        require(code == "0" and name in rows, "session list does not list the session")
        status, count = rows[name]
        require(status == "ok", f"session list says {status} beside a living owner")
    else:
        case, count, wrong = json.loads(said.rest)
        require(not wrong, f"fsck beside a living owner: {'; '.join(wrong)}")
    require(least <= count, f"{said.word} {count} entries, {least} were acknowledged before")
    require(count < len(digests), f"{said.word} {count} entries, {len(digests) - 1} are there")
