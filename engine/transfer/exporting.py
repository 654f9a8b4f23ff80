"""Exporting a session as JSONL.

A strictly imported version 3 source comes back byte for byte (its own header, blank lines and
BOM included), followed by what was appended since. Anything else gets the session's own header.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from treering.engine import environment, home
from treering.engine.errors import Conflict, from_os_error
from treering.engine.journal.disk import LOCAL_DISK, Disk, File, write_all
from treering.engine.json_text import decode_or_none
from treering.engine.session.reads import Reads
from treering.engine.transfer.legacy import BlankRun, rebuild

_WRITE_BYTES: Final = 1024 * 1024


class _Provenance(msgspec.Struct):
    byte_exact: bool = False
    bom: bool = False
    blank_lines: list[tuple[int, str, int]] = []


_provenances = msgspec.json.Decoder(_Provenance)


def jsonl_lines(session: Reads, *, branch: bool = False) -> Iterator[bytes]:
    """The bytes of the export, in pieces.

    Args:
        session: an owned session or a view.
        branch: only the path to the current position, below the session's own header.

    Raises:
        Damaged: an entry does not verify; the pieces so far are no whole export.
    """
    if branch:
        yield session.header_bytes() + b"\n"
        for entry in session.iter_branch():
            yield entry.raw + b"\n"
        return
    entries = (entry.raw for entry in session.iter_entries())
    provenance = session.provenance()
    facts = None if provenance is None else decode_or_none(_provenances, provenance[0])
    if facts is not None and facts.byte_exact and provenance is not None:
        blanks = [BlankRun(*run) for run in facts.blank_lines]
        yield from rebuild(provenance[1], entries, blanks, facts.bom)
        return
    yield session.header_bytes() + b"\n"
    for raw in entries:
        yield raw + b"\n"


def export_jsonl(
    session: Reads,
    target: str | os.PathLike[str],
    *,
    branch: bool = False,
    disk: Disk = LOCAL_DISK,
) -> int:
    """Write the export to a new file (mode 0600); returns its bytes.

    The file appears under its name only when it is whole and durable, and never replaces one.

    Raises:
        Conflict: the name is taken.
        StorageFull, StorageError: nothing is left behind, unless the error came from the sync of
            the folder, which says so.
    """
    path = os.path.abspath(home.check_path(target))
    home.check_writable_place(path, allow_remote=True)
    temporary = f"{path}.{environment.random_bytes(4).hex()}.part"
    try:
        file = disk.create(temporary)
    except OSError as error:
        raise from_os_error(error, "write the export", path) from error
    try:
        try:
            size = _write_pieces(file, jsonl_lines(session, branch=branch))
            file.fsync()
        finally:
            file.close()
        disk.link(temporary, path)
        _name_durably(disk, path)
    except FileExistsError as error:
        raise Conflict(
            "the file exists already", path=path, next_step="name another one"
        ) from error
    except OSError as error:
        raise from_os_error(error, "write the export", path) from error
    finally:
        try:
            disk.unlink(temporary)
        except OSError:
            pass  # the link or the error above is what matters
    return size


def _name_durably(disk: Disk, path: str) -> None:
    try:
        disk.sync_folder(os.path.dirname(path))
    except OSError as error:
        raise from_os_error(
            error, "make the name of the export durable (it is visible now)", path
        ) from error


def _write_pieces(file: File, pieces: Iterable[bytes]) -> int:
    """Write the pieces one after the other, about 1 MiB at a time; returns the number of bytes."""
    size, waiting, group = 0, 0, []
    for piece in pieces:
        group.append(piece)
        waiting += len(piece)
        if waiting >= _WRITE_BYTES:
            write_all(file, b"".join(group), size)
            size, waiting, group = size + waiting, 0, []
    write_all(file, b"".join(group), size)
    return size + waiting
