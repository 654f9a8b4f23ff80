"""The example of the guide: a small log, its flow, and the mistakes that such logs are made with.

A record is its length (4 bytes), its CRC-32 (4 bytes) and its bytes. Opening reads records up to
the first one that is not whole, and cuts the rest off.
"""

from __future__ import annotations

import os
import zlib
from typing import Final

from treering.engine.journal.disk import Disk, write_all
from treering.fuzz.explorer import Broken, Flow
from treering.fuzz.ledger import Expectation, Ledger
from treering.fuzz.simdisk import SimDisk

MISTAKES: Final = {
    "no sync": "a record is acknowledged while it is only in the cache",
    "no folder sync": "the name of a new log is not made durable",
    "no checksum": "a record counts as whole when it is long enough",
    "no cut": "records are appended behind a torn one",
}

PATH: Final = "/data/toy.log"


class ToyLog:
    """A log of records. ``mistake`` is one of MISTAKES, or nothing."""

    def __init__(self, disk: Disk, path: str, mistake: str = "") -> None:
        self._disk, self._mistake = disk, mistake
        try:
            self._file = disk.open(path, write=True)
        except FileNotFoundError:
            self._file = disk.create(path)
            if mistake != "no folder sync":
                disk.sync_folder(os.path.dirname(path))
        self.records: list[bytes] = []
        self._end = self._read()
        if mistake == "no cut":
            self._end = self._file.stat().size
        elif self._end < self._file.stat().size:
            self._file.truncate(self._end)
            self._sync()

    def _read(self) -> int:
        """Collect whole records; where they end."""
        data, at = self._file.pread(1 << 20, 0), 0
        while at + 8 <= len(data):
            length = int.from_bytes(data[at : at + 4], "little")
            record = data[at + 8 : at + 8 + length]
            check = zlib.crc32(data[at : at + 4] + record).to_bytes(4, "little")
            if len(record) < length or length == 0:
                break
            if check != data[at + 4 : at + 8] and self._mistake != "no checksum":
                break
            self.records.append(record)
            at += 8 + length
        return at

    def append(self, record: bytes) -> None:
        """Store one record, not empty; durable when this returns."""
        length = len(record).to_bytes(4, "little")
        data = length + zlib.crc32(length + record).to_bytes(4, "little") + record
        write_all(self._file, data, self._end)
        self._sync()
        self._end += len(data)
        self.records.append(record)

    def _sync(self) -> None:
        if self._mistake != "no sync":
            self._file.fdatasync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def toy_flow(mistake: str = "") -> Flow:
    """Make a log, append to it, and look at it after every crash."""

    def prepare(disk: SimDisk, ledger: Ledger) -> None:
        del ledger
        disk.make_folder("/data")

    def run(disk: Disk, ledger: Ledger, _: object) -> None:
        log = ToyLog(disk, PATH, mistake)
        for number in range(3):
            record = b"record %d " % number * 60
            with ledger.attempt(record):
                log.append(record)
        log.close()

    def check(disk: SimDisk, expectation: Expectation) -> None:
        log = ToyLog(disk, PATH, mistake)
        if tuple(log.records) not in expectation.allowed():
            raise Broken(f"{len(log.records)} records, of which some are lost or nobody's")
        log.append(b"next")
        log.close()
        again = ToyLog(disk, PATH, mistake)
        if again.records != log.records:
            raise Broken("the next record cannot be read")

    return Flow(f"toy {mistake}".strip(), prepare, run, check)
