"""``strace``: what a process asked of the system, and making one of these calls fail."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from typing import Final, NamedTuple

FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "openat": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS", "EMFILE"),
    "pwrite64": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"),
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"),
    "ftruncate": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"),
    "link": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "linkat": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "rename": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "renameat": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "renameat2": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "unlink": ("EIO", "EROFS"),
    "unlinkat": ("EIO", "EROFS"),
    "rmdir": ("EIO", "EROFS"),
    "mkdir": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "mkdirat": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "flock": ("EIO", "EINTR"),
    "fcntl": ("EIO", "EINTR"),
    "pread64": ("EIO", "EINTR"),
    "read": ("EIO", "EINTR"),
    "fstat": ("EIO",),
    "newfstatat": ("EIO",),
    "getdents64": ("EIO",),
    "close": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
}
"""The calls that can touch a store, and the errors that the manuals name for each."""

ERRORS: Final = ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS", "EMFILE")
INTERRUPTIONS: Final = 10
"""EINTR is tried again by design, so that a persistent one would be an endless loop of ours: it
comes this many times in a row."""

_ALWAYS: Final = (
    "openat",
    "pwrite64",
    "write",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
)
"""What the rules of durability look at, traced in every run."""

_WITH_DATA: Final = frozenset(("read", "pread64", "write", "pwrite64"))

_CALL: Final = re.compile(r"(\d+)\s+(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))", re.DOTALL)
_RESULT: Final = re.compile(r"\)\s+=\s+(-?\d+|\?)(.*)\Z", re.DOTALL)
_DESCRIPTOR: Final = re.compile(r"\A\d+<(/[^>]*)>")
_PATHS: Final = re.compile(r'[<"](/[^>"]*)[>"]')


class Fault(NamedTuple):
    """The ``at``-th call of this name that touches the store fails, or kills the process."""

    call: str
    at: int
    error: str
    persistent: bool = False

    def spec(self, when: int) -> str:
        """For ``strace -e``; ``when`` counts all calls of the name in the thread."""
        many = ""
        if self.persistent:
            many = f"..{when + INTERRUPTIONS - 1}" if self.error == "EINTR" else "+"
        what = "signal=KILL" if self.error == "KILL" else f"error={self.error}"
        return f"inject={self.call}:{what}:when={when}{many}"

    @property
    def words(self) -> list[str]:
        """The options that ask for exactly this fault."""
        words = ["--call", self.call, "--at", str(self.at), "--error", self.error]
        return [*words, "--persistent"] if self.persistent else words


class Call(NamedTuple):
    """One call, as the log has it."""

    thread: int
    """0 for the first, then by appearance."""
    name: str
    number: int
    """Among the calls of its name in its thread, from 1."""
    text: str
    """The arguments, with paths of descriptors."""
    result: int | None
    """None when it never returned."""
    injected: bool
    interrupted: bool = False
    """It ended with EINTR: nothing happened, and it is made again."""

    @property
    def paths(self) -> list[str]:
        """Every absolute path in the arguments."""
        return _PATHS.findall(self.text)

    def place_in(self, root: str) -> str | None:
        """The path below ``root`` that it is about, if there is one. Data does not count."""
        paths = _DESCRIPTOR.findall(self.text) if self.name in _WITH_DATA else self.paths
        inside = (path for path in reversed(paths) if path == root or path.startswith(root + "/"))
        return next(inside, None)


def program() -> str | None:
    """Where strace is; None when it is not installed."""
    return shutil.which("strace")


def options(
    log: str, *, calls: tuple[str, ...] | None = None, inject: str | None = None
) -> list[str]:
    """The command line up to the program. ``calls`` None traces everything that can fail."""
    names = FAULTS if calls is None else dict.fromkeys((*_ALWAYS, *calls))
    traced = ",".join(f"?{name}" for name in names)
    words = [program() or "strace", "-f", "-y", "-s", "160", "-o", log, "-e", f"trace={traced}"]
    return words if inject is None else [*words, "-e", inject]


def parse(text: str) -> list[Call]:
    """The calls of a log, in the order in which they began."""
    calls: list[Call] = []
    threads: dict[str, int] = {}
    numbers: Counter[tuple[int, str]] = Counter()
    open_calls: dict[tuple[int, str], int] = {}
    for line in text.splitlines():
        found = _CALL.match(line)
        if found is None:
            continue
        pid, name, rest, resumed, more = found.groups()
        thread = threads.setdefault(pid, len(threads))
        if resumed is not None:
            at = open_calls.pop((thread, resumed), None)
            if at is not None:
                calls[at] = _finished(calls[at], calls[at].text + more)
            continue
        numbers[thread, name] += 1
        call = Call(thread, name, numbers[thread, name], rest, None, injected=False)
        if rest.endswith("<unfinished ...>"):
            open_calls[thread, name] = len(calls)
            calls.append(call._replace(text=rest.removesuffix("<unfinished ...>")))
        else:
            calls.append(_finished(call, rest))
    return calls


def _finished(call: Call, text: str) -> Call:
    # The last one: an argument may hold ") = " itself.
    at = text.rfind(") = ")
    found = None if at < 0 else _RESULT.match(re.sub(r"\s+", " ", text[at:]))
    if found is None:
        at = text.rfind(")")
        found = None if at < 0 else _RESULT.match(text[at:])
    if found is None:
        return call._replace(text=text)
    result = None if found[1] == "?" else int(found[1])
    return call._replace(
        text=text[:at],
        result=result,
        injected="(INJECTED)" in found[2],
        interrupted=found[2].startswith(" EINTR"),
    )


class Point(NamedTuple):
    """A place in a flow where a call on the store can fail."""

    fault: Fault
    """Without an error yet."""
    when: int
    """What strace counts: all calls of the name in the thread."""
    path: str


def store_calls(calls: list[Call], root: str) -> list[Point]:
    """Every point of a log, in order."""
    numbers: Counter[str] = Counter()
    found: dict[tuple[str, int], Point] = {}
    for call in calls:
        path = call.place_in(root) if call.name in FAULTS else None
        if path is not None:
            if (call.name, call.number) in found:
                continue  # of another thread: both fail in the same run
            numbers[call.name] += 1
            fault = Fault(call.name, numbers[call.name], "")
            found[call.name, call.number] = Point(fault, call.number, path)
    return list(found.values())
