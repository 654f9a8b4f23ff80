"""A conversation with recorded requests, linked answers and context epochs, until it is killed."""

from __future__ import annotations

import json
from typing import Any

from treering.engine import SessionManager

EPOCH_EVERY = 3
"""Turns from one context epoch to the next."""


async def converse(request: dict[str, Any], say: Any) -> None:
    """Turns of a conversation; each acknowledgement is told as it comes."""
    manager = await SessionManager.open(request["path"], durability=request["durability"])
    say(f"OPEN {json.dumps(manager.get_leaf_id())}")
    shown: list[str] = []
    for turn in range(request["most"]):
        question = await manager.append_message({"role": "user", "content": f"{turn}"})
        say(f"ACK {question}")
        async with manager.capture() as captured:
            operation = captured.operation("main")
            attempt = await operation.admit({"api": "x"})
            say(f"ACK {attempt}:attempt_admitted")
            await operation.settle(attempt, {"outcome": "completed", "usage": {"input": turn}})
            say(f"ACK {attempt}:attempt_settled")
            answer = await manager.append_message(
                {"role": "assistant", "content": []}, link=operation.output_link()
            )
            say(f"ACK {answer}")
            say(f"LINKED {answer}")
        shown = [*shown[-20:], question, answer]
        if turn % EPOCH_EVERY == EPOCH_EVERY - 1:
            async with manager.capture() as captured:
                candidate = await captured.prepare_context_epoch(shown, representation="{}")
                ack = await captured.activate_context_epoch(candidate, turn)
            say(f"ACK {ack.entry_id}")
            say(f"EPOCH {ack.entry_id}")
            shown = []
    await manager.close()
