"""Many tasks append through a SessionManager until the process is killed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from treering.engine import SessionManager

SIZES = (0, 40, 700, 5_000)


def entry_of(round_number: int, task: int, number: int) -> dict[str, Any]:
    """What a task appends as its n-th entry; the parent is where the session stands then."""
    text = f"{task}.{number}-" * (SIZES[(task + number) % len(SIZES)] // 4)
    name = f"r{round_number}-{task}-{number}"
    return {"type": "custom", "id": name, "customType": "tasks", "data": text}


async def append_with_tasks(request: dict[str, Any], say: Any) -> None:
    """Append until killed; each acknowledgement is told as it comes."""
    manager = await SessionManager.open(request["path"], durability=request["durability"])
    say(f"OPEN {json.dumps(manager.get_leaf_id())}")

    async def task(name: int) -> None:
        for number in range(request["most"]):
            entry_id = await manager.append(entry_of(request["round"], name, number))
            say(f"ACK {entry_id}")

    await asyncio.gather(*(task(name) for name in range(request["tasks"])))
    await manager.close()
