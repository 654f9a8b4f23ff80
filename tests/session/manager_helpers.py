"""What the tests of SessionManager share."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from treering.engine import Entry, Session
from treering.engine.session.manager import SessionManager

Make = Callable[[], Awaitable[SessionManager]]


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def made(tmp_path: Path, **more: Any) -> SessionManager:
    """A new session in the store of this test."""
    return await SessionManager.create("/w", home_dir=str(tmp_path / "home"), **more)


def file_of(manager: SessionManager) -> str:
    """Its journal, which it has."""
    path = manager.get_session_file()
    assert path is not None
    return path


def owned(manager: SessionManager) -> Session:
    """The session that it owns."""
    session = manager._source.reads
    assert isinstance(session, Session)
    return session


def ids(entries: Iterable[Entry]) -> list[str]:
    """Their ids, in order."""
    return [entry.id for entry in entries]


def user(text: str = "hi") -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text, "timestamp": 1}


def assistant(text: str = "yes", **more: Any) -> dict[str, Any]:
    """An answer."""
    content = [{"type": "text", "text": text}]
    return {"role": "assistant", "content": content, "provider": "p", "model": "m"} | more


class Gate:
    """Holds the writer's thread until it is opened."""

    def __init__(self, manager: SessionManager) -> None:
        self._open = threading.Event()
        self.entered = threading.Event()
        self._job = asyncio.ensure_future(manager._do(self._wait))

    def _wait(self, _: Session) -> None:
        self.entered.set()
        self._open.wait()

    async def closed(self) -> Gate:
        """Once the thread stands here."""
        await asyncio.to_thread(self.entered.wait)
        return self

    async def open(self) -> None:
        """Let it go on."""
        self._open.set()
        await self._job
