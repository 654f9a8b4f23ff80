"""Wrong files in the place of an index: damaged, foreign, of another kind, in the way.

An attack changes files beside a journal, never the journal. Where rows are changed and their page
checksums with them, only a comparison with a rebuild can tell: see ``Attack.believed``.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import apsw

from treering.fuzz.adversary.scene import Target, write
from treering.index import files, schema

Do = Callable[[Target], object]
When = Literal["before", "while"]
"""Before a session is opened, or while its owner has it open."""

WHILE: Final[tuple[When, ...]] = ("while",)
BOTH: Final[tuple[When, ...]] = ("before", "while")


@dataclass(frozen=True)
class Attack:
    """One way to make the files of an index wrong."""

    name: str
    do: Do
    about: str
    believed: tuple[When, ...] = ()
    """When its rows may be believed, because every page of them verifies, until fsck compares."""
    loses: bool = False
    """Whether the journal is put back too: acknowledged entries are gone and opening refuses."""
    blocks: bool = False
    """Whether no index file can be made until a person clears the way."""
    sidecars: bool = False
    """Whether it needs the place of ``-wal`` and ``-shm``, so that those in use go first."""
    only_before: bool = False
    """Whether it makes no sense while an owner has the file open."""


ATTACKS: Final[dict[str, Attack]] = {}
"""By name. Filled by this module and those that are imported for it."""


def attack(
    *,
    believed: tuple[When, ...] = (),
    loses: bool = False,
    blocks: bool = False,
    sidecars: bool = False,
    only_before: bool = False,
) -> Callable[[Do], Do]:
    """Register a function as the attack of its name; its docstring says what it does."""

    def register(do: Do) -> Do:
        name = do.__name__.replace("_", "-")
        about = (do.__doc__ or "").strip().partition("\n")[0]
        ATTACKS[name] = Attack(name, do, about, believed, loses, blocks, sidecars, only_before)
        return do

    return register


def database(path: str) -> apsw.Connection:
    """A connection as the engine opens it, so that what is written verifies."""
    vfs = schema.CHECKSUM_VFS if schema.checksum_vfs() else None
    db = apsw.Connection(path, vfs=vfs)
    db.set_busy_timeout(2_000)
    return db


def run_sql(path: str, sql: str) -> None:
    """Change a database behind the engine's back."""
    db = database(path)
    try:
        db.execute(sql)
    finally:
        db.close()


# Not there, or not what it was


@attack()
def missing(target: Target) -> None:
    """The file is gone."""
    os.unlink(target.index)


@attack()
def all_missing(target: Target) -> None:
    """The whole folder is gone."""
    shutil.rmtree(target.folder)


@attack()
def empty(target: Target) -> None:
    """0 bytes, which is a valid database."""
    target.overwrite(b"")


@attack()
def header_only(target: Target) -> None:
    """Cut behind the database header."""
    target.overwrite(target.read()[:100])


@attack()
def first_page_only(target: Target) -> None:
    """Cut behind the first page."""
    target.overwrite(target.read()[:4096])


@attack()
def half(target: Target) -> None:
    """Cut in the middle."""
    data = target.read()
    target.overwrite(data[: len(data) // 2])


@attack()
def zeros(target: Target) -> None:
    """As long as it was, all zero."""
    target.overwrite(bytes(len(target.read())))


@attack()
def garbage(target: Target) -> None:
    """Random bytes."""
    target.overwrite(target.draw.randbytes(60_000))


@attack()
def garbage_behind_header(target: Target) -> None:
    """A database header, and random bytes behind it."""
    target.overwrite(target.read()[:100] + target.draw.randbytes(60_000))


@attack()
def text(target: Target) -> None:
    """A text."""
    target.overwrite(b"this is no database\n" * 400)


@attack()
def many_flips(target: Target) -> None:
    """200 bits flipped."""
    data = bytearray(target.read())
    for _ in range(200):
        data[target.draw.randrange(100, len(data))] ^= 1 << target.draw.randrange(8)
    target.overwrite(bytes(data))


@attack()
def twice(target: Target) -> None:
    """The file two times, one behind the other."""
    target.overwrite(target.read() * 2)


@attack()
def longer(target: Target) -> None:
    """Random bytes behind its end."""
    target.overwrite(target.read() + target.draw.randbytes(10_000))


# Another kind of thing


@attack()
def directory(target: Target) -> None:
    """A directory with something in it."""
    os.unlink(target.index)
    os.mkdir(target.index)
    write(os.path.join(target.index, "inside"), b"x")


@attack()
def fifo(target: Target) -> None:
    """A FIFO, which would make a reader wait for ever."""
    os.unlink(target.index)
    os.mkfifo(target.index)


@attack()
def unix_socket(target: Target) -> None:
    """A socket."""
    os.unlink(target.index)
    at = os.open(target.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            # The path of a socket has little room; a folder descriptor makes it short.
            made.bind(f"/proc/self/fd/{at}/{os.path.basename(target.index)}")
    finally:
        os.close(at)


@attack()
def dangling_link(target: Target) -> None:
    """A symbolic link to nothing."""
    os.unlink(target.index)
    os.symlink("/nowhere/at/all", target.index)


@attack()
def link_elsewhere(target: Target) -> None:
    """A symbolic link to the very file, moved elsewhere."""
    moved = os.path.join(target.scratch, "elsewhere.sqlite3")
    shutil.move(target.index, moved)
    os.symlink(moved, target.index)


@attack()
def link_to_itself(target: Target) -> None:
    """A symbolic link to itself."""
    os.unlink(target.index)
    os.symlink(os.path.basename(target.index), target.index)


@attack()
def hard_link(target: Target) -> None:
    """A second name of the file, outside the store."""
    os.link(target.index, os.path.join(target.scratch, "second-name"))


@attack(blocks=True)
def read_only(target: Target) -> None:
    """A file and folder that may not be written (which stops nobody who is root)."""
    os.chmod(target.index, 0o400)
    os.chmod(target.folder, 0o500)


@attack(blocks=True)
def folder_is_a_file(target: Target) -> None:
    """A file in the place of the folder."""
    shutil.rmtree(target.folder)
    write(target.folder, b"not a folder")


@attack(blocks=True)
def folder_is_a_dangling_link(target: Target) -> None:
    """A link to nothing in the place of the folder."""
    shutil.rmtree(target.folder)
    os.symlink("/nowhere/at/all", target.folder)


# Another database


@attack()
def other_tables(target: Target) -> None:
    """A database with one table of somebody else's."""
    os.unlink(target.index)
    run_sql(target.index, "CREATE TABLE t(x); INSERT INTO t VALUES(1)")


@attack()
def other_index(target: Target) -> None:
    """One index of a table is missing."""
    run_sql(target.index, "DROP INDEX entry_kind")


@attack()
def other_application(target: Target) -> None:
    """Another application id in the same tables."""
    run_sql(target.index, "PRAGMA application_id=0x46726564")


@attack()
def newer_version(target: Target) -> None:
    """A schema version of the future."""
    run_sql(target.index, "PRAGMA user_version=99")


@attack()
def older_version(target: Target) -> None:
    """A schema version of the past."""
    run_sql(target.index, "PRAGMA user_version=0")


@attack()
def no_state(target: Target) -> None:
    """The state row is gone."""
    run_sql(target.index, "DELETE FROM state")


@attack(believed=WHILE)
def last_rows_lost(target: Target) -> None:
    """The newest entries are gone, in a file that verifies."""
    run_sql(target.index, "DELETE FROM entry WHERE seq > (SELECT max(seq) - 3 FROM entry)")


@attack()
def unfinished(target: Target) -> None:
    """A build that never ended."""
    run_sql(target.index, "UPDATE state SET complete=0")


@attack()
def odd_state(target: Target) -> None:
    """A state row of types that nobody expects."""
    os.unlink(target.index)
    names = "journal_id, device, inode, sequence, offset, revision, watermark"
    run_sql(
        target.index,
        f"PRAGMA application_id={schema.APPLICATION_ID}; PRAGMA user_version=1;"
        f"CREATE TABLE state({names});"
        "INSERT INTO state VALUES('text', 'x', 2.5, 'seq', x'00', 7, 'mark')",
    )


@attack()
def other_session(target: Target) -> None:
    """The index of another session, copied."""
    assert target.other is not None
    copied = shutil.copy(target.other(), os.path.join(target.scratch, "copy"))
    os.replace(copied, target.index)


@attack(believed=WHILE)
def other_session_in_place(target: Target) -> None:
    """The index of another session, made to look as if it were written into this file."""
    assert target.other is not None
    copied = shutil.copy(target.other(), os.path.join(target.scratch, "copy"))
    inode = os.stat(target.index).st_ino
    run_sql(copied, f"UPDATE state SET file_inode={inode}")
    with open(copied, "rb") as file:
        target.overwrite(file.read())


@attack()
def other_store(target: Target) -> None:
    """The index of this very session in another store: the same bytes in another file."""
    copied = shutil.copy(target.index, os.path.join(target.scratch, "copy"))
    os.replace(copied, target.index)


# Other generations


@attack()
def huge_generation(target: Target) -> None:
    """An empty file with the highest number."""
    name = f"{target.session_id}.999999999999999999{files.SUFFIX}"
    write(os.path.join(target.folder, name), b"")


@attack()
def older_generation_beside(target: Target) -> None:
    """A generation with a lower number beside it."""
    os.rename(target.index, _generation(target, 7))
    write(target.index, target.older)


@attack()
def older_generation_on_top(target: Target) -> None:
    """An older state with a higher number."""
    write(_generation(target, 2), target.older)


@attack()
def leftovers(target: Target) -> None:
    """Builds and bad copies that somebody left: files, folders, sidecars without a database."""
    for name in ("build-0.tmp", "build-1.tmp-wal", "3.sqlite3-wal", "1.sqlite3.bad-1"):
        write(os.path.join(target.folder, f"{target.session_id}.{name}"), b"left over")
    os.mkdir(os.path.join(target.folder, f"{target.session_id}.build-2.tmp"))


def _generation(target: Target, number: int) -> str:
    return os.path.join(target.folder, f"{target.session_id}.{number}{files.SUFFIX}")
