"""A scene in which a process is killed that records requests, links answers and makes epochs."""

from __future__ import annotations

import json

from treering.engine import (
    Session,
    SessionView,
    active_context_epoch,
    request_associations,
)
from treering.engine.session.entry import Entry
from treering.fuzz.kills.blows import Blow, strike
from treering.fuzz.kills.oracle import require
from treering.fuzz.kills.owners import Owning


class Capturing(Owning):
    """What was acknowledged is there and says what it said: links match, the newest epoch holds."""

    words = ("READY", "OPEN", "ACK", "ACK", "ACK", "EPOCH")
    most = 60

    def round(self, number: int, blow: Blow | None = None) -> bool:
        """See :meth:`Scene.round`."""
        draw = self.stage.draw(number)
        random_blow = self.blow(draw)
        blow = blow or random_blow
        process = self.start("captures", blow, **self.request(number, most=self.most))
        killed = strike(self.crew, process, blow)
        acknowledged = process.rests("ACK")
        with Session.open_read_only(self.path) as view:
            found = [entry._replace(unproven=False) for entry in view.iter_entries()]
            self._check_epoch(view, found, process.rests("EPOCH"))
        self._check_links(process.rests("LINKED"))
        self._take(found, acknowledged)
        self.stage.figures.acknowledged += len(acknowledged)
        self.judge(draw, None)
        return killed

    def _check_epoch(self, view: SessionView, found: list[Entry], told: list[str]) -> None:
        """The newest compaction is the active epoch, and is one that was told or was being made."""
        compactions = [entry.id for entry in found if entry.type == "compaction"]
        epoch = active_context_epoch(view, view.leaf_id)
        active = None if epoch is None else epoch.entry_id
        require(active == (compactions[-1] if compactions else None), f"the epoch is {active}")
        new = compactions[max(0, len(compactions) - len(told) - 1) :]
        require(set(told) <= set(new), "an epoch that was told is not there")

    def _check_links(self, told: list[str]) -> None:
        reports = request_associations(self.path)["assistant_request_associations"]
        known = {one["assistant_entry_id"]: one["recorded_request"] for one in reports}
        lost = [entry_id for entry_id in told if known.get(entry_id) is None]
        require(not lost, f"links that were told do not match: {lost[:5]}")

    def _take(self, found: list[Entry], told: list[str]) -> None:
        """Judge what is new; from now on it is what must be there."""
        book = self.book
        old = len(book.entries)
        require(found[:old] == book.entries, "an entry that was there is missing or changed")
        new = [entry.id for entry in found[old:]]
        require(new[: len(told)] == told, "what was told is not there, or not in its order")
        require(len(new) - len(told) <= 1, f"{len(new)} entries are stored, {len(told)} were told")
        for entry in found[old:]:
            value = json.loads(entry.raw)
            require(value["parentId"] == book.leaf, f"{entry.id} hangs below another entry")
            if entry.type != "request":
                book.leaf = entry.id
        book.in_flight += len(new) - len(told)
        book.entries = found
        self.count = 0
