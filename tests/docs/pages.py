"""What the tests of the pages need: fenced blocks and tables of a Markdown file."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of that language, in order."""
    found = [
        text for name, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if name == language
    ]
    assert found, f"{page.name} has no {language} block"
    return found


def table(page: Path, *heads: str) -> list[list[str]]:
    """The rows of every table of the page whose header row begins with these heads."""
    rows: list[list[str]] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if tuple(cells[: len(heads)]) == heads:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            rows.append(cells)
    assert rows, f"{page.name} has no table that begins with {heads}"
    return rows


def section(page: Path, heading: str) -> str:
    """The text from a heading to the next one of the same or a higher level."""
    text = page.read_text(encoding="utf-8")
    level = len(heading) - len(heading.lstrip("#"))
    start = text.index(f"\n{heading}\n")
    following = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE)
    found = following.search(text, start + len(heading) + 2)
    return text[start : found.start() if found else len(text)]
