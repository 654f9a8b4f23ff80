"""`session import`: new sessions from files of other systems, each whole or not at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import click

from treering.tools.options import home_option, json_option

if TYPE_CHECKING:
    from treering.engine.transfer.importing import ImportPreview, ImportResult

LEFT_OUT_SHOWN: Final = 10


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--preview", is_flag=True, help="Only say what would be imported; creates nothing.")
@click.option("--salvage", is_flag=True, help="Take what is whole of a damaged file.")
@click.option("--no-limit", is_flag=True, help="Lift the limits on entries and bytes.")
@click.option(
    "--cwd", metavar="DIR", help="Working directory of the new session [default: this one]."
)
@home_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    *,
    files: tuple[str, ...],
    preview: bool,
    salvage: bool,
    no_limit: bool,
    cwd: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """Import session files; prints only the path of each new session.

    A file is JSONL, plain or of Base Context's frames, or a journal of another store.
    What is odd about a file, and what a salvage left out, goes to standard error. After a refusal
    the next file is taken; the exit code tells.
    """
    from treering.engine.transfer.importing import import_session, preview_import
    from treering.engine.transfer.legacy_model import CopyLimits
    from treering.tools.output import with_progress

    options: dict[str, Any] = {
        "cwd": cwd,
        "home_dir": home,
        "salvage": salvage,
        "limits": None if no_limit else CopyLimits(),
    }
    run = _Run(as_json=as_json)
    for file in with_progress(files, "importing", len(files), printing=not as_json):
        if preview:
            run.preview(file, lambda file=file: preview_import(file, **options))
        else:
            run.take(file, lambda file=file: import_session(file, **options))
    run.finish(one=len(files) == 1 and preview)
    context.exit(run.exit_code(len(files)))


class _Run:
    """One call of the command: what came of each file."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._found: list[dict[str, Any]] = []
        self._codes: list[int] = []

    def preview(self, file: str, read: Any) -> None:
        """Say what a file holds."""
        from treering.tools.output import say, say_json

        found = self._try(file, read)
        if found is None:
            return
        facts = preview_json(found)
        if self._as_json:
            self._found.append(facts)
            return
        say_json(facts)
        say(
            "This preview created nothing and reserved nothing: a later import reads the source"
            " again and can fail."
        )

    def take(self, file: str, read: Any) -> None:
        """Import a file and print the new path."""
        result: ImportResult | None = self._try(file, read)
        if result is None:
            return
        try:
            self._report(file, result)
        except OSError as error:
            from treering.tools.output import warn_not_reported

            warn_not_reported(f"session imported to {result.path}", error)
            self._codes.append(1)

    def _try(self, file: str, read: Any) -> Any:
        from treering.engine.errors import TreeringError, from_os_error
        from treering.tools.output import warn

        try:
            return read()
        except OSError as error:
            refusal: TreeringError = from_os_error(error, "import", file)
            refusal.__cause__ = error
        except TreeringError as error:
            refusal = error
        named = "" if refusal.path is not None else f"{file}: "
        warn(f"error: {named}{refusal}")
        self._codes.append(refusal.exit_code)
        if self._as_json:
            self._found.append({"source": file, "error": str(refusal)})
        return None

    def _report(self, file: str, result: ImportResult) -> None:
        from treering.tools.output import say_path, warn

        for line in remarks(result.preview):
            warn(f"{file}: {line}")
        if result.quarantine is not None:
            warn(f"{file}: the bytes left out are kept in {result.quarantine}")
        if not self._as_json:
            say_path(result.path)
            return
        self._found.append(
            {
                "source": file,
                "path": result.path,
                "id": result.session_id,
                "entries": result.preview.prepared_entry_count,
                "oddities": result.preview.oddities,
                "leftOut": result.preview.left_out,
                "linesTakenApart": result.preview.lines_taken_apart,
                "quarantine": result.quarantine,
            }
        )

    def finish(self, *, one: bool) -> None:
        """Print what was collected for ``--json``: one preview as an object, else a list."""
        from treering.tools.output import reporting, say_json

        if not self._as_json or (one and not self._found):
            return
        made = [found["path"] for found in self._found if "path" in found]
        with (
            reporting(f"session imported to {', '.join(made)}")
            if made
            else contextlib.nullcontext()
        ):
            say_json(self._found[0] if one else self._found)

    def exit_code(self, files: int) -> int:
        """0; the code of the only refusal; 1 when several files were given and not all went in."""
        if not self._codes:
            return 0
        return self._codes[0] if files == 1 or set(self._codes) == {3} else 1


def preview_json(found: ImportPreview) -> dict[str, Any]:
    """The documented members, then what is found odd."""
    return {
        "sourcePath": found.source_path,
        "sourceFormat": found.source_format,
        "inputVersion": found.input_version,
        "entriesRead": found.entries_read,
        "sourceJsonBytes": found.source_json_bytes,
        "preparedEntryCount": found.prepared_entry_count,
        "targetCwd": found.target_cwd,
        "targetDirectory": found.target_directory,
        "retention": found.retention,
        "sourceHeader": found.source_header,
        "gitState": found.git_state,
        "capture": found.capture,
        "destinationCreated": found.destination_created,
        "destinationCreationAndIndexing": found.destination_creation_and_indexing,
        "canonicalEpochActivation": found.canonical_epoch_activation,
        "referenceReplayCoverage": found.reference_replay_coverage,
        "laterImport": found.later_import,
        "oddities": found.oddities,
        "leftOut": found.left_out,
        "linesTakenApart": found.lines_taken_apart,
    }


def remarks(found: ImportPreview) -> list[str]:
    """Short lines about what is odd and what was left out."""
    lines = []
    if found.oddities:
        named = ", ".join(f"{key.replace('_', ' ')} {n}" for key, n in found.oddities.items())
        lines.append(f"odd: {named}")
    if found.lines_taken_apart:
        numbers = ", ".join(map(str, found.lines_taken_apart[:LEFT_OUT_SHOWN]))
        lines.append(f"lines that held several records, taken apart: {numbers}")
    for piece in found.left_out[:LEFT_OUT_SHOWN]:
        where = f"line {piece['line']}, {piece['bytes']} bytes at {piece['offset']}"
        lines.append(f"left out: {where}: {piece['why']}")
    more = len(found.left_out) - LEFT_OUT_SHOWN
    if more > 0:
        lines.append(f"left out: {more} more pieces")
    return lines
