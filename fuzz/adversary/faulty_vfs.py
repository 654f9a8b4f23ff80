"""A VFS below SQLite's checksums whose n-th call fails: once, or from then on.

It takes the place of the system's VFS, and the checksum VFS is loaded anew above it, so a fault
reaches the engine as a fault of the system would. Shared memory has no methods in APSW: for it the
system calls are replaced that the system's VFS makes for a ``-shm``.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import apsw

from treering.index import schema

NAME: Final = "treering-faulty"

_IOERR: Final = {
    "xOpen": apsw.SQLITE_IOERR,
    "xRead": apsw.SQLITE_IOERR_READ,
    "xWrite": apsw.SQLITE_IOERR_WRITE,
    "xSync": apsw.SQLITE_IOERR_FSYNC,
    "xTruncate": apsw.SQLITE_IOERR_TRUNCATE,
    "xFileSize": apsw.SQLITE_IOERR_FSTAT,
    "xLock": apsw.SQLITE_IOERR_LOCK,
    "xUnlock": apsw.SQLITE_IOERR_UNLOCK,
    "xFileControl": apsw.SQLITE_IOERR,
    "xClose": apsw.SQLITE_IOERR_CLOSE,
    "xDelete": apsw.SQLITE_IOERR_DELETE,
    "xAccess": apsw.SQLITE_IOERR_ACCESS,
    "xFullPathname": apsw.SQLITE_IOERR,
}
_CODES: Final = {
    "full": apsw.SQLITE_FULL,
    "busy": apsw.SQLITE_BUSY,
    "cantopen": apsw.SQLITE_CANTOPEN,
    "readonly": apsw.SQLITE_READONLY,
}
SHORT: Final = "short"
"""A read or write of only the first half. It is made at the system call: to SQLite a short xRead
means the end of the file, which it fills with zeros, and that is what cutting the file is for."""

FAILURES: Final[dict[str, tuple[str, ...]]] = {
    "xOpen": ("ioerr", "cantopen", "full"),
    "xRead": ("ioerr",),
    "xWrite": ("ioerr", "full", "readonly"),
    "xSync": ("ioerr", "full"),
    "xTruncate": ("ioerr", "full"),
    "xFileSize": ("ioerr",),
    "xLock": ("ioerr", "busy"),
    "xUnlock": ("ioerr",),
    "xFileControl": ("ioerr",),
    "xClose": ("ioerr",),
    "xDelete": ("ioerr",),
    "xAccess": ("ioerr",),
    "xFullPathname": ("ioerr", "cantopen"),
    "shm-open": ("EACCES", "EMFILE", "ENOSPC"),
    "shm-write": ("ENOSPC", "EIO"),
    "shm-map": ("ENOMEM", "EACCES"),
    "shm-lock": ("EIO", "EAGAIN", "ENOLCK"),
    "sys-read": (SHORT,),
    "sys-write": (SHORT,),
}
"""Every call of SQLite's that can fail, and how each is made to fail."""


@dataclass
class Plan:
    """Counts calls; the ``at``-th of one name fails, and with ``forever`` all later ones too."""

    call: str = ""
    how: str = ""
    at: int = 0
    forever: bool = False
    fired: int = 0

    def __post_init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def arm(self, call: str, how: str, at: int, *, forever: bool) -> None:
        """From now on count anew, and fail."""
        self.seen.clear()
        self.call, self.how, self.at, self.forever, self.fired = call, how, at, forever, 0

    def disarm(self) -> None:
        """Fail no more."""
        self.call = ""

    def fires(self, call: str) -> bool:
        """Count a call; whether it fails."""
        self.seen[call] += 1
        if call != self.call:
            return False
        now = self.seen[call]
        fires = now == self.at or (self.forever and now > self.at)
        self.fired += fires
        return fires

    def meet(self, call: str) -> None:
        """Count a call; raise when it fails."""
        if self.fires(call):
            code = _IOERR[call] if self.how == "ioerr" else _CODES[self.how]
            raise apsw.exception_for(code)


class FaultyVFS(apsw.VFS):
    """Passes everything on to the VFS below, or fails as planned."""

    def __init__(self, below: str, plan: Plan) -> None:
        self._below = below
        self._plan = plan
        super().__init__(NAME, below)

    def excepthook(self, kind: Any, error: Any, trace: Any) -> bool:
        """Our own errors are handled: SQLite ignores some of them, such as of closing."""
        del kind, trace
        return isinstance(error, apsw.Error)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's name)
        """A file that can fail."""
        self._plan.meet("xOpen")
        return FaultyFile(self._below, name, flags, self._plan)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802 (SQLite's interface)
        """May fail."""
        self._plan.meet("xDelete")
        super().xDelete(name, sync)

    def xAccess(self, name: str, flags: int) -> bool:  # noqa: N802
        """May fail."""
        self._plan.meet("xAccess")
        return super().xAccess(name, flags)

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        """May fail."""
        self._plan.meet("xFullPathname")
        return super().xFullPathname(name)


class FaultyFile(apsw.VFSFile):
    """A file that passes everything on, or fails as planned."""

    def __init__(self, below: str, name: Any, flags: list[int], plan: Plan) -> None:
        self._plan = plan
        super().__init__(below, name, flags)

    def excepthook(self, kind: Any, error: Any, trace: Any) -> bool:
        """As above."""
        del kind, trace
        return isinstance(error, apsw.Error)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        """May fail."""
        self._plan.meet("xRead")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """May fail."""
        self._plan.meet("xWrite")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        """May fail."""
        self._plan.meet("xSync")
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        """May fail."""
        self._plan.meet("xTruncate")
        super().xTruncate(size)

    def xFileSize(self) -> int:  # noqa: N802
        """May fail."""
        self._plan.meet("xFileSize")
        return super().xFileSize()

    def xLock(self, level: int) -> None:  # noqa: N802
        """May fail."""
        self._plan.meet("xLock")
        super().xLock(level)

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """May fail."""
        self._plan.meet("xUnlock")
        super().xUnlock(level)

    def xFileControl(self, operation: int, pointer: int) -> bool:  # noqa: N802
        """May fail."""
        self._plan.meet("xFileControl")
        return super().xFileControl(operation, pointer)

    def xClose(self) -> None:  # noqa: N802
        """May fail, after it is done."""
        super().xClose()
        self._plan.meet("xClose")


def is_system_call(call: str) -> bool:
    """Whether a name of ``FAILURES`` stands for system calls."""
    return call.startswith(("shm-", "sys-"))


@contextmanager
def installed(plan: Plan, *, system_calls: bool) -> Iterator[None]:
    """Every index that is opened inside goes through the faulty VFS.

    System calls are replaced when asked for, and then no method may fail: an exception would be
    waiting in Python while SQLite goes on to make system calls.
    """
    below = apsw.vfs_names()[0]
    forget_checksums()
    vfs = FaultyVFS(below, plan)
    apsw.set_default_vfs(NAME)
    try:
        schema.checksum_vfs()
        with _replaced_system_calls(below, plan) if system_calls else nullcontext():
            yield
    finally:
        apsw.set_default_vfs(below)
        forget_checksums()
        vfs.unregister()
        schema.checksum_vfs()


def forget_checksums() -> None:
    """Let the engine load the checksum VFS again: it goes above what is then the default."""
    if schema.CHECKSUM_VFS in apsw.vfs_names():
        apsw.unregister_vfs(schema.CHECKSUM_VFS)
    schema._load_checksum_vfs.cache_clear()


# System calls of the unix VFS, on a file whose name ends in -shm and on the others.

_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "open": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "close": (ctypes.c_int, ctypes.c_int),
    "fcntl": (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p),
    "pread64": (
        ctypes.c_ssize_t,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int64,
    ),
    "pwrite64": (
        ctypes.c_ssize_t,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int64,
    ),
    "mmap": (
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ),
}


def why_no_system_calls() -> str | None:
    """Why the system calls cannot be replaced here; None when they can."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine not in ("Linux x86_64", "Linux aarch64"):
        return f"system calls are replaced on Linux only (this is {machine})"
    return None


@contextmanager
def _replaced_system_calls(below: str, plan: Plan) -> Iterator[None]:
    if why_no_system_calls() is not None:
        yield
        return
    base = apsw.VFS("treering-system-calls", below)
    shared: set[int] = set()
    kept = []
    for name, signature in _SIGNATURES.items():
        prototype = ctypes.CFUNCTYPE(*signature, use_errno=True)
        pointer = base.xGetSystemCall(name)
        if pointer is None:
            continue
        callback = prototype(_replacement(name, prototype(pointer), shared, plan))
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        base.xSetSystemCall(name, address)
        kept.append((name, callback))
    try:
        yield
    finally:
        for name, _ in kept:
            base.xSetSystemCall(name, 0)  # 0: the original again
        base.unregister()


def _replacement(
    name: str, original: Callable[..., Any], shared: set[int], plan: Plan
) -> Callable[..., Any]:
    def failed(call: str) -> bool:
        fires = plan.fires(call)
        if fires:
            ctypes.set_errno(getattr(errno, plan.how))
        return fires

    def open_(path: bytes, flags: int, mode: int) -> int:
        if not path.endswith(b"-shm"):
            return int(original(path, flags, mode))
        if failed("shm-open"):
            return -1
        descriptor = int(original(path, flags, mode))
        shared.add(descriptor)
        return descriptor

    def close(descriptor: int) -> int:
        shared.discard(descriptor)
        return int(original(descriptor))

    def fcntl(descriptor: int, command: int, argument: int | None) -> int:
        if descriptor in shared and failed("shm-lock"):
            return -1
        return int(original(descriptor, command, argument))

    def pread64(descriptor: int, data: int | None, size: int, offset: int) -> int:
        if descriptor not in shared and plan.fires("sys-read"):
            size = max(1, size // 2)
        return int(original(descriptor, data, size, offset))

    def pwrite64(descriptor: int, data: int | None, size: int, offset: int) -> int:
        if descriptor in shared:
            if failed("shm-write"):
                return -1
        elif plan.fires("sys-write"):
            size = max(1, size // 2)
        return int(original(descriptor, data, size, offset))

    def mmap(*arguments: Any) -> int | None:
        if arguments[4] in shared and failed("shm-map"):
            return _MAP_FAILED
        found: int | None = original(*arguments)
        return found

    calls: dict[str, Callable[..., Any]] = {
        "open": open_,
        "close": close,
        "fcntl": fcntl,
        "pread64": pread64,
        "pwrite64": pwrite64,
        "mmap": mmap,
    }
    return calls[name]
