"""Checking one session: its journal, every payload in it, what lies beside it, and its index.

Read-only through and through: no lock is taken, no byte and no time stamp of the store changes.
Findings say where, what and what next; some are notes that need no action. Each session is
checked by itself and the result is plain data, so that sessions can be checked in processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from treering.engine import commands
from treering.engine.environment import iso_time
from treering.engine.errors import TreeringError
from treering.engine.home import Store, check_session_id
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.format import FILE_HEADER_BYTES, Frame, Kind, salt_of
from treering.engine.journal.opening import Hint
from treering.engine.journal.ownership import open_regular
from treering.engine.journal.publish import TEMPORARY_SUFFIX
from treering.engine.journal.reader import FileBytes
from treering.engine.journal.recovery import Examination, examine
from treering.engine.journal.repair import outcomes
from treering.engine.journal.repair_modes import is_for_newer_release
from treering.engine.journal.salvage import Salvage, decoded
from treering.engine.journal.shared import SharedFrames
from treering.engine.json_text import BadRecordError, check
from treering.engine.session.entries import decode_header
from treering.engine.session.filling import stated_id
from treering.index import IndexFault, files
from treering.tools import next_steps
from treering.tools.findings import Checked, Counter, Finding
from treering.tools.fsck_index import check_index
from treering.tools.viewing import hint_of, is_alive, name_of, owner_note

__all__ = ["Checked", "Finding", "check_session", "leftover", "temporaries"]

_KINDS_OF_CASES: Final = {
    "B": "interior",
    "C": "interior",
    "D": "lost",
    "E": "torn",
    "F": "header",
    "G": "foreign",
}

_JSON_KINDS: Final = frozenset((Kind.ENTRY, Kind.REQUEST))


def check_session(path: str, *, with_index: bool) -> Checked:
    """Check one session. Never raises for anything that a file can hold."""
    name = name_of(path)
    store = Store.of_journal(path)
    result = Checked(name, path)
    try:
        _check(result, path, store, with_index=with_index)
    except (TreeringError, OSError) as error:
        _note_failure(result, error)
    except (MemoryError, RecursionError) as error:
        _note_failure(result, error)
    result.findings += _beside(store, path, name)
    return result


def _check(result: Checked, path: str, store: Store, *, with_index: bool) -> None:
    try:
        check_session_id(result.session)
    except TreeringError as error:
        then = next_steps.for_name(path, result.session)
        result.findings.append(Finding("name", path, error.what, next=then))
        return
    file = open_regular(LOCAL_DISK, path, write=False)
    try:
        # The watermark is taken before the size, so that it cannot know of more than we look at.
        hint = hint_of(store, result.session, stated_id(file, path))
        source = FileBytes(file, path, file.stat().size)
        result.size = source.size
        in_use = _in_use(store, path)
        found = _examine(source, hint)
        result.case = found.case
        _take_verdict(result, found, in_use=in_use)
        if found.case == "G" or found.journal_id is None:
            return
        _Payloads(result, found).check()
        _take_history(result, found, hint, store)
        if not result.ok:
            modes = outcomes(found)
            useful = found.case != "A" or any(mode.action != "nothing" for mode in modes)
            result.modes = modes if useful else []
        if with_index:
            result.index = check_index(store, result.session, found, in_use=in_use)
            if result.index.state in ("differs", "unusable"):
                # Believed when a second look sees it too: an owner may have come (and gone) after
                # the journal was captured, and the index covers more, or was being checkpointed.
                in_use = _in_use(store, path) or file.stat().size != source.size
                result.index = check_index(store, result.session, found, in_use=in_use)
            _take_index(result, found, store)
    finally:
        file.close()


def _examine(source: FileBytes, hint: Hint | None) -> Examination:
    """Examine without owning: damage is believed only when a second look sees it too."""
    watermark = None if hint is None else hint.watermark
    ids = () if hint is None else (hint.journal_id,)
    found = examine(source, watermark=watermark, known_ids=ids)
    if found.case in ("B", "C", "D"):
        return examine(source, watermark=watermark, known_ids=ids)
    return found


def _note_failure(result: Checked, error: BaseException) -> None:
    if isinstance(error, TreeringError):
        what = error.what if error.next_step is None else f"{error.what}; {error.next_step}"
    elif isinstance(error, OSError):
        what = error.strerror or str(error)
    else:
        what = f"{type(error).__name__}: there was not enough memory to check it"
    kind, then = next_steps.for_failure(result.path, error)
    if kind == "foreign":
        result.case = "G"
    result.could_not_run = kind == "unreadable"
    offset = error.offset if isinstance(error, TreeringError) else None
    result.findings.append(Finding(kind, result.path, what, offset, None, then))


def _in_use(store: Store, path: str) -> bool:
    note = owner_note(store, path)
    return note is not None and is_alive(note)


def _take_verdict(result: Checked, found: Examination, *, in_use: bool) -> None:
    """The findings that the case itself makes, one for every run of bytes that is lost."""
    report = found.report()
    result.frames = report.frames
    if found.case == "A":
        return
    what = report.verdict + (f" ({report.reason})" if report.reason else "")
    kind = _KINDS_OF_CASES[found.case]
    if found.case == "G" or found.journal_id is None:
        then = report.next_step or next_steps.for_stranger(result.path, report.reason)
        result.findings.append(Finding(kind, result.path, what, 0, found.source.size, then))
        return
    if found.case == "E" and in_use:
        kind, what = "unfinished", "unfinished or torn: the session is in use"
    step = None if kind == "unfinished" else report.next_step
    if found.beyond_count:
        what += f"; {found.beyond_count} good frames beyond"
    if found.case == "D":
        what += "; look for a newer copy first"
    offset, length = _extent(found)
    result.findings.append(Finding(kind, result.path, what, offset, length, step))


def _extent(found: Examination) -> tuple[int, int]:
    """Where the first damage is, and how long it is."""
    offset = found.place.offset
    beyond = found.beyond[0].offset if found.beyond else found.source.size
    length = max(0, beyond - offset)
    if found.case == "B" and length == 0:
        length = max(0, found.published_length - offset)
    if found.case == "D" and length == 0 and found.watermark is not None:
        length = max(0, found.watermark.end_offset - offset)
    if found.case == "F" and found.place.sequence and length == 0:
        return 0, FILE_HEADER_BYTES
    return offset, length


class _Payloads:
    """Looks into every payload, also those that nothing shows, and names odd frames on the way."""

    def __init__(self, result: Checked, found: Examination) -> None:
        assert found.journal_id is not None
        assert found.walk is not None
        self._result = result
        self._found = found
        self._journal_id = found.journal_id
        self._history = found.walk.history
        self._counter = Counter(result)
        self._dump = commands.command("dump", commands.selector(result.path))
        self._read = self._dump

    def check(self) -> None:
        """Add the findings."""
        history = self._history
        problems = {problem.sequence: problem.why for problem in history.problems}
        abandoned = _Abandoned(set(history.abandoned), self._counter, self._result.path)
        source = self._found.source
        shared = SharedFrames(source, self._journal_id)
        if self._has_header(shared):
            self._read = next_steps.for_export(self._result.path, self._result.session)
        for frame, payload in decoded(source, salt_of(self._journal_id), shared):
            abandoned.see(frame)
            if frame.sequence in problems:
                what = f"frame {frame.sequence} is not understood: {problems[frame.sequence]}"
                self._add(frame, "not-understood", f"{what}; writing is refused", self._read)
            if isinstance(payload, TreeringError):
                self._add(frame, "undecodable", payload.what, self._without_payload())
            elif payload is not None:
                self._look_into(frame, payload)
        abandoned.finish()
        self._result.entries = max(0, self._result.entries - history.abandoned_count)
        unlisted = history.problem_count - len(history.problems)
        self._counter.add_unlisted("not-understood", unlisted)
        if self._found.case in ("B", "C", "D", "F"):
            self._check_beyond()
        self._counter.finish()

    def _has_header(self, shared: SharedFrames) -> bool:
        """Whether there is a session header: without one nothing can be exported."""
        frame = self._history.session
        try:
            return frame is not None and decode_header(shared.payload_of(frame)) is not None
        except TreeringError:
            return False

    def _add(self, frame: Frame, kind: str, what: str, then: str) -> None:
        self._counter.add(_at(self._result, frame, kind, what, then))

    def _without_payload(self) -> str:
        if self._found.case in ("A", "E") and is_for_newer_release(self._found):
            return self._read
        return commands.repairing(self._result.path, "--mode", "salvage")

    def _look_into(self, frame: Frame, payload: bytes) -> None:
        if frame.kind in _JSON_KINDS:
            self._result.entries += 1
            try:
                check(payload)
            except BadRecordError as error:
                what = f"the entry at sequence {frame.sequence} {error.reason}"
                self._add(frame, "not-json", what, self._dump)
        elif frame.kind == Kind.SESSION and decode_header(payload) is None:
            what = "the session header is not as documented"
            self._add(frame, "session-header", what, self._dump)

    def _check_beyond(self) -> None:
        """The gaps behind the first one, and what cannot be decoded between them."""
        path, found = self._result.path, self._found
        salvage = Salvage(found, SharedFrames(found.source, self._journal_id))
        for _ in salvage.items():
            pass
        step = found.report().next_step
        for gap in salvage.gaps[1:]:
            lost = f"frame {gap.first}" if gap.last == gap.first else f"frames from {gap.first}"
            if gap.last is not None and gap.last > gap.first:
                lost += f" to {gap.last}"
            more = "more bytes that do not verify" if gap.bytes else "the end is gone, too"
            what = f"{more} ({lost})"
            self._counter.add(Finding("interior", path, what, gap.offset, gap.bytes, step))
        for frame in salvage.undecodable:
            if frame.sequence >= found.place.sequence:
                what = f"frame {frame.sequence} behind the damage cannot be decoded"
                self._add(frame, "undecodable", what, self._without_payload())
        if salvage.unknown:
            first, last = salvage.unknown[0], salvage.unknown[-1]
            what = f"{len(salvage.unknown)} staged frames whose activation may be lost"
            then = commands.repairing(path, "--mode", "salvage", "--keep-unknown")
            length = last.end - first.offset
            self._counter.add(Finding("activation-unknown", path, what, first.offset, length, then))


class _Abandoned:
    """Gathers abandoned staged frames that follow each other into one note."""

    def __init__(self, sequences: set[int], counter: Counter, path: str) -> None:
        self._sequences = sequences
        self._counter = counter
        self._path = path
        self._run: list[Frame] = []

    def see(self, frame: Frame) -> None:
        """Take the next frame of the journal."""
        if frame.sequence in self._sequences:
            self._run.append(frame)
        elif self._run:
            self.finish()

    def finish(self) -> None:
        """The run ends here."""
        run, self._run = self._run, []
        if run:
            what = f"{len(run)} staged frames that were never activated, from frame"
            what += f" {run[0].sequence}"
            offset, length = run[0].offset, run[-1].end - run[0].offset
            self._counter.add(Finding("abandoned", self._path, what, offset, length))


def _at(result: Checked, frame: Frame, kind: str, what: str, then: str | None = None) -> Finding:
    return Finding(kind, result.path, what, frame.offset, frame.end - frame.offset, then)


def _take_history(result: Checked, found: Examination, hint: Hint | None, store: Store) -> None:
    """What the history of verified frames holds besides entries."""
    assert found.walk is not None
    history = found.walk.history
    for frame, gap in history.gaps:
        lost = f"{gap.bytes} bytes at {gap.offset} of the old file"
        if not gap.bytes:
            lost = f"what had followed the first {gap.offset} bytes of the old file"
        what = f"an earlier repair could not keep {lost}"
        result.findings.append(_at(result, frame, "gap", what))
    last = history.last
    if found.case == "A" and last is not None and last.kind != Kind.EPOCH_CLOSE:
        unproven = last.sequence + 1 - found.proven_below
        if unproven > 0:
            what = f"the last {unproven} frames are not proven durable (no clean close followed)"
            start = FILE_HEADER_BYTES if found.proven is None else found.proven.end
            length = found.place.offset - start
            result.findings.append(Finding("unproven", result.path, what, start, length))
    ours = hint is not None and hint.journal_id == found.journal_id
    if ours and hint is not None and hint.watermark is not None and found.watermark is None:
        what = "a watermark that does not verify; ignored"
        result.findings.append(Finding("leftover", _index_file(result, store), what))


def _take_index(result: Checked, found: Examination, store: Store) -> None:
    if result.index.state not in ("differs", "unusable"):
        return
    shown = "; ".join(result.index.differences[:3])
    more = len(result.index.differences) - 3
    what = f"the index {result.index.state}: {shown}"
    if more > 0:
        what += f" and {more} more"
    file = _index_file(result, store)
    if found.case not in ("A", "E"):
        then = found.report().next_step  # which builds the index anew, too
    elif os.path.isdir(file):
        then = commands.aside(file)
    else:
        then = commands.command("reindex", commands.selector(result.path))
    result.findings.append(Finding("index", file, what, next=then))


def _index_file(result: Checked, store: Store) -> str:
    try:
        return files.current(store.index, result.session) or store.index
    except IndexFault:
        return store.index


def _beside(store: Store, path: str, name: str) -> Iterator[Finding]:
    """The owner's note, and temporary files of the session."""
    note = owner_note(store, path)
    if note is not None:
        who = f"process {note.pid} on {note.host} since {iso_time(note.since)}"
        gone = f"a note says {who}; it is not running here"
        what = f"in use by {who}" if is_alive(note) else gone
        yield _whole("owner", store.owner_note(name), what)
    for temporary in temporaries(store):
        if temporary[0] == name:
            yield leftover(temporary[1])


def _whole(kind: str, file: str, what: str) -> Finding:
    """A note about a whole file."""
    try:
        size = os.stat(file).st_size
    except OSError:
        return Finding(kind, file, what)  # gone meanwhile
    return Finding(kind, file, what, 0, size)


def leftover(path: str) -> Finding:
    """The finding about a temporary journal."""
    what = "an unfinished journal, of now or of an interrupted command; it is swept an hour later"
    return _whole("leftover", path, what)


def temporaries(store: Store) -> list[tuple[str, str]]:
    """(session, path) of every temporary journal in the store."""
    try:
        names = os.listdir(store.sessions)
    except OSError:
        return []
    found = []
    for name in sorted(names):
        if name.startswith(".") and name.endswith(TEMPORARY_SUFFIX):
            session = name[1 : -len(TEMPORARY_SUFFIX)].rpartition(".")[0]
            found.append((session, os.path.join(store.sessions, name)))
    return found
