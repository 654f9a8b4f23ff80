"""Runs commands in children of a process in which everything is imported already.

Starting an interpreter under ``strace`` costs ten times what a command costs. This server forks a
child for each request; the child waits until ``strace`` holds it, and only then begins. Requests
and answers are JSON, a line each.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

import click

from treering.fuzz.syscalls import owner, plants
from treering.tools import cli
from treering.tools.entry import main


def import_everything() -> None:
    """Import every command, and what commands import on demand."""
    groups: list[click.Group] = [cli.treering]
    while groups:
        group = groups.pop()
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                groups.append(command)
    import treering.engine.transfer.exporting
    import treering.tools.fsck
    import treering.tools.pool
    import treering.tools.readmit
    import treering.tools.reindex
    import treering.tools.repairing
    import treering.tools.resolving
    import treering.tools.show_commands
    import treering.tools.viewing  # noqa: F401


def child(request: dict[str, Any], ready: int, gate: int, said: tuple[int, int]) -> None:
    """What the forked child does; never returns."""
    code = 70
    try:
        for number, descriptor in enumerate(said, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        # The old ones remember what the descriptors of the server could do.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if request.get("plant"):
            plants.PLANTS[request["plant"]]().__enter__()  # for the life of this process
        # Not before all preparations are done: their calls would be counted, or made to fail.
        os.write(ready, b".")
        os.read(gate, 1)
        os.close(gate)
        _limit(request)
        if request.get("script"):
            code = owner.own(request["script"], request["path"])
        else:
            code = main(request["words"])
        sys.stdout.flush()
    except BaseException:
        # As an interpreter ends that nobody catches anything for.
        os.write(2, traceback.format_exc().encode())
        raise
    finally:
        os._exit(code)


def _limit(request: dict[str, Any]) -> None:
    if request.get("size_max") is not None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["size_max"], most))
    if request.get("descriptors") is not None:
        free = os.open("/", os.O_RDONLY)
        os.close(free)
        limit = free + int(request["descriptors"])
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def serve_one(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, attach, let go, wait."""
    reader, gate = os.pipe()
    is_ready, ready = os.pipe()
    # Pipes: a limit on the size of files would limit files. What a flow prints fits into them.
    out, err = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (gate, is_ready, out[0], err[0]):
            os.close(descriptor)
        child(request, ready, reader, (out[1], err[1]))
    for descriptor in (reader, ready, out[1], err[1]):
        os.close(descriptor)
    tracer: subprocess.Popen[bytes] | None = None
    try:
        os.read(is_ready, 1)
        if request.get("strace"):
            tracer = subprocess.Popen(
                [*request["strace"], "-p", str(pid)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if b"attached" not in said:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return {"error": said.decode("utf-8", "backslashreplace").strip()}
        os.write(gate, b".")
        answer = _wait(pid, request["timeout_s"])
        for name, (descriptor, _) in (("out", out), ("err", err)):
            with open(descriptor, "rb", closefd=False) as pipe:
                answer[name] = pipe.read().decode("latin-1")
        return answer
    finally:
        for descriptor in (gate, is_ready, out[0], err[0]):
            os.close(descriptor)
        if tracer is not None:
            tracer.wait(30)
            assert tracer.stderr is not None
            tracer.stderr.close()


def _wait(pid: int, timeout_s: float) -> dict[str, Any]:
    handle = os.pidfd_open(pid)
    started = time.monotonic()
    ready, _, _ = select.select([handle], [], [], timeout_s)
    os.close(handle)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "hung": not ready,
        "seconds": time.monotonic() - started,
    }


def serve() -> None:
    """Answer requests until standard input ends."""
    import_everything()
    for line in sys.stdin:
        answer = serve_one(json.loads(line))
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    serve()
