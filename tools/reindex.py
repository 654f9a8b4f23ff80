"""Building the index of one session anew."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from treering.engine import environment
from treering.engine.errors import Owned, TreeringError
from treering.engine.home import Store, check_writable_place, session_id_of
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.ownership import Ownership
from treering.engine.session.session import Session
from treering.index import IndexBusy, IndexFault, files
from treering.tools.findings import SCHEMA
from treering.tools.viewing import name_of


@dataclass
class Reindexed:
    """What came of one session."""

    session: str
    path: str
    rows: int = 0
    seconds: float = 0.0
    error: str | None = None
    skipped: bool = False
    """Somebody else owns it."""
    exit_code: int = 0

    @property
    def rows_per_s(self) -> int:
        """Rows per second of building."""
        return int(self.rows / self.seconds) if self.seconds > 0 else 0

    def as_json(self) -> dict[str, Any]:
        """The documented object."""
        members = asdict(self)
        del members["exit_code"]
        return {"schema": SCHEMA} | members | {"rowsPerSecond": self.rows_per_s}


def reindex_session(path: str) -> Reindexed:
    """Remove a session's index files and build them from the journal. Errors are in the result."""
    result = Reindexed(name_of(path), path)
    try:
        _reindex(result, path)
    except TreeringError as error:
        result.error, result.exit_code = str(error), error.exit_code
        result.skipped = isinstance(error, Owned)
    except (IndexFault, IndexBusy, OSError) as error:
        result.error, result.exit_code = str(error), 3
    except (MemoryError, RecursionError) as error:
        result.error, result.exit_code = type(error).__name__, 3
    return result


def _reindex(result: Reindexed, path: str) -> None:
    store = Store.of_journal(path)
    session_id = session_id_of(path)
    check_writable_place(path)
    if files.current(store.index, session_id) is not None:
        # The old index holds the watermark. A journal that was rolled back is refused here, by
        # opening it with that watermark, and not accepted because the watermark was removed.
        Session.open(path).close()
    owner = Ownership.acquire(LOCAL_DISK, path)
    try:
        files.remove_all(store.index, session_id)
    finally:
        owner.release()
    started = environment.monotonic_s()
    with Session.open(path) as session:
        session.ask(lambda index: index.position())
        result.seconds = round(environment.monotonic_s() - started, 6)
        result.rows = session.counts()["entries"]
        if session.index_faults:
            result.error, result.exit_code = "; ".join(session.index_faults), 3
