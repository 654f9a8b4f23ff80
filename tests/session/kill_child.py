"""The process that the kill tests kill. Run as a server: it forks one warm child per request.

A child owns the session, appends deterministic groups, and writes one line per acknowledged group
to the pipe. What it must have written can be computed by anyone from (seed, round).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple


class Group(NamedTuple):
    """Entries that are handed in together."""

    how: str  # one, many, batch, branch
    texts: list[str]


def groups_of(seed: int, round_number: int, hows: list[str], large: int) -> Iterator[Group]:
    """What a round appends, in order; made as it is asked for."""
    draw = random.Random(f"{seed}-{round_number}")
    while True:
        how = draw.choice(hows)
        count = 1 if how in ("one", "branch") else draw.randint(1, 8)
        sizes = [draw.choice((0, 16, 48, 400, 3008, large)) for _ in range(count)]
        yield Group(how, [f"{draw.getrandbits(64):016x}" * (n // 16) for n in sizes])


def raw_of(round_number: int, number: int, parent: str | None, text: str) -> bytes:
    """The exact bytes of one entry."""
    value = {
        "type": "custom",
        "id": f"r{round_number}-{number}",
        "parentId": parent,
        "timestamp": "2024-12-03T14:00:00.000Z",
        "customType": "kill",
        "data": text,
    }
    return json.dumps(value, separators=(", ", ":")).encode()


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def work(request: dict[str, Any]) -> None:
    """Append until killed (or until the groups are used up)."""
    from treering.engine import Session
    from treering.engine.session import housekeeping

    housekeeping.INDEX_LAG_S = request.get("lag", 0.003)
    housekeeping.INDEX_LAG_FRAMES = 64
    session = Session.open(request["path"], durability=request.get("durability", "full"))
    if request.get("grandchild"):
        if os.fork() == 0:
            os.close(1)
            time.sleep(request["grandchild"])
            os._exit(0)
    round_number = request["round"]
    leaf = session.leaf_id
    say(f"OPEN {json.dumps(leaf)}")
    number = 0
    for at, group in enumerate(
        groups_of(request["seed"], round_number, request["hows"], request["large"])
    ):
        raws = []
        for text in group.texts:
            raws.append(raw_of(round_number, number, leaf, text))
            leaf = f"r{round_number}-{number}"
            number += 1
        if group.how == "batch":
            with session.batch() as batch:
                for raw in raws:
                    batch.append(raw)
        elif group.how == "many":
            session.append_many(raws)
        else:
            session.append(raws[0])
        say(f"ACK {at}")
        if number >= request.get("stop", 1 << 60):
            end(request)


def end(request: dict[str, Any]) -> None:
    """End without closing, in the way asked for."""
    how = request["end"]
    if how == "os._exit":
        os._exit(3)
    if how == "exception":
        raise ValueError("not caught")
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(30)


def serve() -> None:
    """One JSON request per line on stdin; the answers of each end with DEAD."""
    import treering.engine  # noqa: F401 (warm: the children find it loaded)

    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                work(request)
            except SystemExit:
                raise
            except BaseException as error:
                say(f"ERROR {error!r}")
                os._exit(1)
            os._exit(0)
        say(f"PID {child}")
        os.waitpid(child, 0)
        say("DEAD")


if __name__ == "__main__":
    serve()
