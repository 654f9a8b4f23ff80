"""The one place that reads the clock, randomness and the facts of this process and machine."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
import uuid
from datetime import UTC, datetime
from functools import cache, lru_cache


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Seconds of a clock that never goes back."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Give other threads the interpreter for a while."""
    time.sleep(seconds)


def iso_time(ms: int) -> str:
    """``2024-12-03T14:00:00.000Z``: the spelling that session entries use."""
    return f"{_iso_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=4)
def _iso_second(second: int) -> str:
    # Every entry of the same second shares it: formatting a date costs as much as an encoding.
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


def local_time(ms: int) -> datetime:
    """What the wall clock here shows at that moment, without a zone."""
    return datetime.fromtimestamp(ms / 1000)


def moment_of(local: datetime) -> int:
    """Unix milliseconds when the wall clock here shows that: the first time that it does, or as
    much later as the clock was put forward over it."""
    return round(local.replace(fold=0).timestamp() * 1000)


def random_bytes(count: int) -> bytes:
    """Random bytes, for journal ids."""
    return secrets.token_bytes(count)


def new_session_id() -> str:
    """A UUIDv7: 48 bits of Unix milliseconds, the rest random."""
    value = now_ms() << 80 | int.from_bytes(secrets.token_bytes(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return str(uuid.UUID(int=value))


def short_entry_ids(count: int) -> list[str]:
    """8 random hex digits each; the caller checks that nobody has them."""
    # Not os.urandom: uniqueness is checked, and a system call gives up the interpreter lock.
    digits = f"{random.getrandbits(32 * count):0{8 * count}x}"
    return [digits[at : at + 8] for at in range(0, 8 * count, 8)]


def long_entry_id() -> str:
    """A UUIDv4, for when nobody can check; also for requests."""
    return str(uuid.uuid4())


@cache
def host_name() -> str:
    """The name of this machine, for people."""
    return socket.gethostname().encode("utf-8", "replace").decode()


@cache
def boot_id() -> str:
    """Tells two boots of one machine apart; empty where the system has none."""
    return _read_line("/proc/sys/kernel/random/boot_id")


@cache
def _process_started_ms(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat", "rb") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return now_ms()
    return boot_s * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")


def process_started_ms() -> int:
    """When this process started, Unix ms (its first call, where the system does not say)."""
    return _process_started_ms(os.getpid())


def process_exists(pid: int) -> bool:
    """Whether a process of that number lives here now (it may be another one than before)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def variable(name: str) -> str | None:
    """An environment variable; an empty one counts as absent."""
    return os.environ.get(name) or None


def _read_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def mount_lines() -> list[str]:
    """The mount table of this process; empty where the system has none."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []
