"""Files of another time, and rows that were forged: what verifies and still is not now.

SQLite replays any ``-wal`` or ``-journal`` that lies beside a database, and page checksums cover
one page each. Pages of the very same file from another time therefore verify. What x
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import apsw

from treering.fuzz.adversary.attacks import BOTH, WHILE, attack, database, run_sql
from treering.fuzz.adversary.samples import frames_of
from treering.fuzz.adversary.scene import Target, write


@attack(believed=WHILE)
def older(target: Target) -> None:
    """The same file as it once was."""
    target.overwrite(target.older)


@attack(loses=True, only_before=True)
def ahead(target: Target) -> None:
    """The journal as it once was: its index proves that acknowledged entries are gone."""
    os.truncate(target.journal, target.earlier)


@attack()
def position_beyond_the_end(target: Target) -> None:
    """A position behind the end of the journal."""
    size = os.path.getsize(target.journal)
    run_sql(target.index, f"UPDATE state SET sequence=sequence+9, offset={size}")


@attack(believed=WHILE)
def position_elsewhere(target: Target) -> None:
    """A position on a frame with another revision; rows behind the true one are missing."""
    last = frames_of(target.journal)[-1]
    target.overwrite(target.older)
    run_sql(target.index, f"UPDATE state SET sequence={last.sequence}, offset={last.offset}")


@attack()
def watermark_of_garbage(target: Target) -> None:
    """64 bytes that are no watermark."""
    mark = target.draw.randbytes(64).hex()
    run_sql(target.index, f"UPDATE state SET watermark=x'{mark}'")


@attack()
def watermark_of_another_session(target: Target) -> None:
    """A watermark that verifies, of another journal."""
    assert target.other is not None
    db = database(target.other())
    mark = db.execute("SELECT watermark FROM state").get
    db.close()
    run_sql(target.index, f"UPDATE state SET watermark=x'{mark.hex()}'")


@attack()
def bound_to_another_journal(target: Target) -> None:
    """The right rows, said to be of another journal."""
    run_sql(target.index, f"UPDATE state SET journal_id=x'{'5a' * 16}'")


@attack()
def moved_store(target: Target) -> None:
    """The right rows, of a journal that had another inode: a store that was moved."""
    run_sql(target.index, "UPDATE state SET device=device+1, inode=inode+1")


@attack(believed=BOTH)
def forged_rows(target: Target) -> None:
    """Labels, parents, totals and the leaf changed by SQL: every checksum verifies."""
    run_sql(
        target.index,
        "UPDATE label SET label='forged';"
        "UPDATE usage SET input=input+1;"
        "UPDATE state SET entries=entries+1;"
        "UPDATE entry SET parent=(SELECT min(seq) FROM entry) WHERE seq=(SELECT max(seq)"
        " FROM entry WHERE parent IS NOT NULL)",
    )


@attack()
def forged_revisions(target: Target) -> None:
    """Revisions changed by SQL: no frame that is read verifies against them."""
    run_sql(target.index, "UPDATE entry SET revision=zeroblob(16)")


@attack(believed=BOTH)
def halves_of_two_times(target: Target) -> None:
    """The first half of the file from earlier, the second from now."""
    data = target.read()
    middle = min(len(data), len(target.older)) // 4096 // 2 * 4096
    target.overwrite(target.older[:middle] + data[middle:])


# Beside the database


@attack(sidecars=True)
def wal_of_another(target: Target) -> None:
    """The -wal and -shm of another database, full of rows."""
    made = os.path.join(target.scratch, "wal.sqlite3")
    shutil.copy(target.index, made)
    db = apsw.Connection(made)
    db.pragma("journal_mode", "wal")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("UPDATE state SET entries=1, leaf=NULL; DELETE FROM label; DELETE FROM entry")
    for tail in ("-wal", "-shm"):
        shutil.copy(made + tail, target.index + tail)
    db.close()


@attack(sidecars=True)
def own_older_wal(target: Target) -> None:
    """A -wal of this very file, from before its last rows: replayed, it mixes two times."""
    write(target.index + "-wal", target.older_wal)


@attack(sidecars=True, believed=WHILE)
def wal_cut_short(target: Target) -> None:
    """A -wal that ends inside a frame, beside an older file: what an unclean end can leave."""
    wal = _unclean_wal(target)
    write(target.index + "-wal", wal[: len(wal) - 2_000])


@attack(sidecars=True, believed=WHILE)
def wal_flipped(target: Target) -> None:
    """A -wal with flipped bits."""
    wal = bytearray(_unclean_wal(target))
    for _ in range(5):
        wal[target.draw.randrange(len(wal))] ^= 1 << target.draw.randrange(8)
    write(target.index + "-wal", bytes(wal))


@attack(sidecars=True, believed=WHILE)
def database_without_its_wal(target: Target) -> None:
    """An unclean end, and the -wal is lost: the file as it was before it."""
    _unclean_wal(target)


@attack(sidecars=True, believed=WHILE)
def wal_without_database(target: Target) -> None:
    """An unclean end, and the database is lost."""
    write(target.index + "-wal", _unclean_wal(target))
    os.unlink(target.index)


@attack(sidecars=True)
def random_sidecars(target: Target) -> None:
    """Random bytes as -wal, -shm and -journal."""
    for tail, size in (("-wal", 50_000), ("-shm", 32_768), ("-journal", 5_000)):
        write(target.index + tail, target.draw.randbytes(size))


@attack(sidecars=True)
def empty_sidecars(target: Target) -> None:
    """Empty files as -wal, -shm and -journal."""
    for tail in ("-wal", "-shm", "-journal"):
        write(target.index + tail, b"")


@attack()
def shm_of_garbage(target: Target) -> None:
    """Random bytes as -shm; in use, they are written over it (a mapping cannot lose its file)."""
    path = target.index + "-shm"
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.write(target.draw.randbytes(32_768))


@attack()
def shm_missing(target: Target) -> None:
    """No -shm."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target.index + "-shm")


@attack(sidecars=True)
def sidecar_directories(target: Target) -> None:
    """Folders as -wal and -shm."""
    os.mkdir(target.index + "-wal")
    os.mkdir(target.index + "-shm")


@attack(sidecars=True)
def sidecar_fifos(target: Target) -> None:
    """FIFOs as -wal and -shm."""
    os.mkfifo(target.index + "-wal")
    os.mkfifo(target.index + "-shm")


@attack(sidecars=True)
def sidecar_links(target: Target) -> None:
    """Symbolic links as -wal and -shm, to a file of somebody's."""
    victim = os.path.join(target.scratch, "victim")
    write(victim, b"")
    os.symlink(victim, target.index + "-wal")
    os.symlink(victim, target.index + "-shm")


@attack(sidecars=True)
def hot_journal_of_another(target: Target) -> None:
    """A rollback journal of another database, as a power failure would leave it."""
    made = os.path.join(target.scratch, "hot.sqlite3")
    db = database(made)
    db.execute("CREATE TABLE t(x); INSERT INTO t VALUES(randomblob(20000))")
    write(target.index + "-journal", _hot_journal(db, made, "UPDATE t SET x=randomblob(20000)"))


@attack(sidecars=True, believed=BOTH)
def hot_journal_of_an_older_time(target: Target) -> None:
    """A rollback journal with pages of this very file from an earlier time."""
    made = os.path.join(target.scratch, "hot.sqlite3")
    write(made, target.older)
    db = database(made)
    db.pragma("journal_mode", "delete")
    sql = "UPDATE state SET newest=0; UPDATE entry SET depth=0; UPDATE usage SET input=0"
    write(target.index + "-journal", _hot_journal(db, made, sql))


def _hot_journal(db: apsw.Connection, path: str, sql: str) -> bytes:
    """The journal of a transaction that wrote pages and did not end."""
    db.execute("PRAGMA cache_size=1; PRAGMA cache_spill=1; BEGIN IMMEDIATE")
    db.execute(sql)
    db.cache_flush()
    journal = Path(path + "-journal").read_bytes()
    db.execute("ROLLBACK")
    db.close()
    return journal


def _unclean_wal(target: Target) -> bytes:
    """Go back to the older file; returns the -wal with which its owner went on from there."""
    target.overwrite(target.older)
    return target.older_wal
