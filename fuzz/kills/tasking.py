"""A scene in which a process with many tasks is killed."""

from __future__ import annotations

import json

from treering.engine import Session
from treering.engine.session.entry import Entry
from treering.fuzz.kills.blows import Blow, strike
from treering.fuzz.kills.oracle import require
from treering.fuzz.kills.owners import Owning
from treering.fuzz.kills.tasks import entry_of


class Tasking(Owning):
    """Of each task everything acknowledged is there, in its order, and at most one entry more."""

    words = ("READY", "OPEN", "ACK", "ACK", "ACK")
    most = 40

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw = self.stage.draw(number)
        random_blow = self.blow(draw)
        blow = blow or random_blow
        tasks = draw.choice((1, 3, 8, 64))
        request = self.request(number, tasks=tasks, most=self.most)
        process = self.start("tasks", blow, **request)
        killed = strike(self.crew, process, blow)
        with Session.open_read_only(self.path) as view:
            found = [entry._replace(unproven=False) for entry in view.iter_entries()]
        told = process.rests("ACK")
        self._take(number, found, told)
        self.stage.figures.acknowledged += len(told)
        self.judge(draw, None)
        return killed

    def _take(self, number: int, found: list[Entry], told: list[str]) -> None:
        """Judge what is new; from now on it is what must be there."""
        book = self.book
        old = len(book.entries)
        require(found[:old] == book.entries, "an entry that was there is missing or changed")
        done: dict[int, int] = {}
        for entry in found[old:]:
            value = json.loads(entry.raw)
            require(value["parentId"] == book.leaf, f"{entry.id} hangs below another entry")
            task = int(entry.id.split("-")[1])
            wanted = entry_of(number, task, done.get(task, 0))
            require(wanted.items() <= value.items(), f"{entry.id} is not {wanted['id']}")
            done[task] = done.get(task, 0) + 1
            book.leaf = entry.id
        there = {entry.id for entry in found[old:]}
        lost = [entry_id for entry_id in told if entry_id not in there]
        require(not lost, f"acknowledged and not there: {', '.join(lost[:5])} ({len(lost)})")
        for task, count in done.items():
            heard = sum(entry_id.split("-")[1] == str(task) for entry_id in told)
            require(count - heard <= 1, f"task {task} stored {count} entries, {heard} were told")
        book.in_flight += len(there) - len(told)
        book.entries = found
