"""What a system call log must show: nothing is acknowledged before it is durable.

A file in the page cache looks the same whether its sync succeeded or not, so what a store holds
afterwards cannot prove this; the order of the calls can. A write counts as durable when a sync
that began after it succeeded, and no sync of the same file failed in between: after a failed one
a later success proves nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from treering.fuzz.syscalls.tracing import Call

_EPOCH_CLOSE: Final = '"\\367RG\\35\\5\\'
"""How the log shows the beginning of an EPOCH_CLOSE frame: its loss costs nobody an entry."""

_OFFSET: Final = re.compile(r", (\d+), (\d+)\Z")
_SIZE: Final = re.compile(r", (\d+)\Z")
_QUOTED: Final = re.compile(r'"(/[^"]*)"')
_UNCERTAIN: Final = ("OutcomeUnknown", "Poisoned")


@dataclass
class _Span:
    start: int
    end: int
    failed: bool = False
    closing: bool = False
    cut: bool = False

    def outside(self, other: _Span) -> list[_Span]:
        """What is left of it when ``other`` is written over it."""
        if self.cut:
            return [] if other.start <= self.start <= other.end else [self]
        left = replace(self, end=min(self.end, other.start))
        right = replace(self, start=max(self.start, other.end))
        return [part for part in (left, right) if part.start < part.end]


@dataclass
class Ledger:
    """What is not durable at one moment of the log."""

    sessions: str
    spans: dict[str, list[_Span]] = field(default_factory=dict)
    names: dict[str, bool] = field(default_factory=dict)
    """Folder with a name that no sync covers -> whether a sync of it failed meanwhile."""
    renamed: dict[str, str] = field(default_factory=dict)
    """A descriptor keeps the name that its file had."""

    def journals(self, *, but_closing: bool = False) -> list[str]:
        """What of journals is not durable, in words."""
        found = []
        for path, spans in self.spans.items():
            if os.path.dirname(path) != self.sessions:
                continue
            for span in spans:
                if but_closing and span.closing:
                    continue
                what = "a cut at" if span.cut else f"{span.end - span.start} bytes at"
                why = "after a failed sync" if span.failed else "without a sync"
                found.append(f"{what} {span.start} of {os.path.basename(path)} ({why})")
        return found

    def take(self, call: Call) -> Iterator[str]:
        """Follow one call; yields what it breaks."""
        paths = call.paths
        if not paths or call.interrupted:
            return
        path, ok = (
            self.renamed.get(paths[0], paths[0]),
            call.result is not None and call.result >= 0,
        )
        if call.name == "pwrite64" and ok:
            self._written(path, call)
        elif call.name in ("fsync", "fdatasync"):
            self._synced(path, ok=ok)
        elif call.name == "ftruncate" and ok:
            yield from self._cut(path, call)
        elif call.name in ("linkat", "link", "rename", "renameat", "renameat2") and ok:
            # Not the folder that the call starts from.
            source, target = _QUOTED.findall(call.text)[-2:]
            yield from self._moved(call.name, source, target)
            yield from self._named(call.name, source, target)
        elif call.name in ("unlink", "unlinkat") and ok:
            yield from self._removed(_QUOTED.findall(call.text)[-1])
        elif (
            call.name == "openat" and ok and "O_CREAT" in call.text and paths[-1].endswith(".tail")
        ):
            self.names[os.path.dirname(paths[-1])] = False

    def _written(self, path: str, call: Call) -> None:
        found = _OFFSET.search(call.text)
        if found is None or call.result is None:
            return
        start = int(found[2])
        new = _Span(start, start + call.result, closing=_EPOCH_CLOSE in call.text)
        kept = [part for span in self.spans.get(path, []) for part in span.outside(new)]
        self.spans[path] = [*kept, new]

    def _synced(self, path: str, *, ok: bool) -> None:
        if ok:
            self.spans[path] = [span for span in self.spans.get(path, []) if span.failed]
            if self.names.get(path) is False:
                del self.names[path]
            return
        for span in self.spans.get(path, []):
            span.failed = True
        if path in self.names:
            self.names[path] = True

    def _cut(self, path: str, call: Call) -> Iterator[str]:
        found = _SIZE.search(call.text)
        if found is None:
            return
        size = int(found[1])
        kept = [span for span in self.spans.get(path, []) if span.start < size]
        self.spans[path] = [*kept, _Span(size, size, cut=True)]
        if os.path.dirname(path) == self.sessions:
            unsafe = [p for p, spans in self.spans.items() if p.endswith(".tail") and spans]
            unsafe += [folder for folder in self.names if folder.endswith("/quarantine")]
            for place in unsafe:
                yield f"the journal was cut before {os.path.basename(place)} was durable"

    def _named(self, how: str, source: str, target: str) -> Iterator[str]:
        if os.path.dirname(target) != self.sessions or not target.endswith(".jsonl"):
            return
        if source.endswith(".new"):
            for span in self.spans.get(source, []):
                yield f"{how} published {span.end - span.start} bytes at {span.start}, not durable"
        self.names[self.sessions] = self.names.get(self.sessions, False)
        self.renamed[source] = target
        self.spans[target] = self.spans.pop(source, [])

    def _in_trash(self, path: str) -> bool:
        return path.startswith(os.path.join(os.path.dirname(self.sessions), "session-trash", ""))

    def _moved(self, how: str, source: str, target: str) -> Iterator[str]:
        """A name in the trash: a tombstone, or something that is moved there or back."""
        inside = [self._in_trash(path) for path in (source, target)]
        if not any(inside):
            return
        if not all(inside):
            for folder in self.names:
                yield (
                    f"{os.path.basename(source)} was moved before the names in"
                    f" {os.path.basename(folder)} were durable"
                )
        if source.endswith(".new") and self.spans.get(source):
            yield f"{how} gave a tombstone its name whose bytes were not durable"
        for path in (target,) if "link" in how else (source, target):
            folder = os.path.dirname(path)
            self.names[folder] = self.names.get(folder, False)

    def _removed(self, path: str) -> Iterator[str]:
        """A name of a journal or a tombstone is gone."""
        folder = os.path.dirname(path)
        if not self._in_trash(path) and (folder != self.sessions or not path.endswith(".jsonl")):
            return
        if path.endswith(".jsonl"):
            for other in self.names:
                yield (
                    f"a name of the journal was removed before the names in"
                    f" {os.path.basename(other)} were durable"
                )
        if not path.endswith(".new"):
            self.names[folder] = self.names.get(folder, False)


def _told(call: Call) -> tuple[str, list[str]] | None:
    """A line of an acknowledgement log: its first word, and the rest."""
    if call.name != "write" or not call.text.startswith("1<"):
        return None
    found = re.search(r', "((?:[^"\\]|\\.)*)"', call.text)
    words = [] if found is None else found[1].removesuffix("\\n").split()
    return (words[0], words[1:]) if words else None


def lies(calls: list[Call], sessions: str, *, status: int, script: str | None) -> list[str]:
    """Everything that was told too early. ``script`` None: a command, whose exit code 0 tells."""
    ledger, broken = Ledger(sessions), list[str]()
    lazily = False
    for call in calls:
        broken += ledger.take(call)
        told = None if script is None else _told(call)
        if told is None:
            continue
        word, (op, *rest) = told[0], [*told[1], ""]
        if word == "ACK" and op == "open-os":
            lazily = True
        unsure = ledger.journals(but_closing=op in ("close", "recover", "open", "open-os"))
        unsure += [f"the names in {folder}" for folder in ledger.names]
        if word == "ACK" and (not lazily or op in ("sync", "close")):
            broken += [f"{op} {' '.join(rest)}was acknowledged with {what}" for what in unsure]
        if word == "FAIL" and not lazily and not any(name in " ".join(rest) for name in _UNCERTAIN):
            if op in ("one", "many", "batch", "branch"):
                broken += [f"{op} was refused with {what}" for what in unsure]
    if script is None and status == 0:
        unsure = ledger.journals(but_closing=True)
        unsure += [f"the names in {folder}" for folder in ledger.names]
        broken += [f"the command succeeded with {what}" for what in unsure]
    return broken
