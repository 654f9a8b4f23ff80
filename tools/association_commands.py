"""`session associations`: which recorded requests belong to the outputs of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.associations.matching import Report


@click.command()
@click.argument("sel", metavar="SEL|FILE")
@click.option("--verify", is_flag=True, help="Verify the checksums of JSON frames too.")
@home_option
@json_option
def associations(sel: str, verify: bool, home: str | None, as_json: bool) -> None:
    """Show which recorded requests belong to the outputs of a session, or of a file.

    The file may be a journal, a journal of JSON frames, or plain JSONL. Unknown (null in JSON)
    never says that a request was rejected, or that nothing came of it.
    """
    from treering.engine.associations.reporting import request_associations
    from treering.tools.output import say_clipped, say_json
    from treering.tools.resolving import resolve

    report = request_associations(resolve(store_at(home), sel), verify=verify)
    if as_json:
        say_json(report)
        return
    for line in _lines(report):
        say_clipped(line)


def _lines(report: Report) -> list[str]:
    """One line for each output."""
    from treering.engine.associations.matching import COMPACTION, ID_NAMES
    from treering.tools.output import one_line, pad

    lines = []
    for name, elements in report.items():
        kind = ID_NAMES[name].removesuffix("_entry_id").replace("_", " ")
        for element in elements:
            if name == COMPACTION:
                parts = element["recorded_requests"] or []
                found = "; ".join(
                    f"{one['part']}: {_request(one['recorded_request'])}" for one in parts
                )
            else:
                found = _request(element["recorded_request"])
            entry_id = one_line(str(element[ID_NAMES[name]]))
            lines.append(f"{pad(kind, 14)}  {pad(entry_id, 8)}  {found or 'unknown'}")
    return lines


def _request(link: dict[str, Any] | None) -> str:
    from treering.tools.output import counted, one_line

    if link is None:
        return "unknown"
    source = link["source"]
    leaf = "the start" if source["leafId"] is None else one_line(source["leafId"])
    attempts = counted(len(link["attemptIds"]), "attempt")
    return f"operation {one_line(link['operationId'])}, {attempts}, from {leaf}"
