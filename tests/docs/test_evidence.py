"""``tests/EVIDENCE.md`` names tests that exist.

``PYTHONPATH=tests python tests/docs/test_evidence.py`` fills its table of faults: a test belongs to
a fault when its name holds the number of the fault (``test_F01_...``), or its docstring.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from docs.pages import REPOSITORY, table

PAGE = REPOSITORY / "tests" / "EVIDENCE.md"
HEAD = ("fault", "what happens", "shown by")
LATER_HEAD = ("fault", "what happens", "comes with")

FAULTS = {
    "F01": "the last record is cut at any byte",
    "F02": "damage in the middle is taken for the end",
    "F04": "the end is zero bytes; a damaged session vanishes from the list",
    "F05": "an append lands on the fragment of a torn tail",
    "F07": "a failed write leaves its half behind",
    "F08": "after a full disk nothing is stored any more, silently",
    "F10": "acknowledged before it is durable",
    "F11": "appends of several processes interleave",
    "F13": "two writers give out the same numbers",
    "F15": "one bad session makes the whole store unusable",
    "F17": "an entry names a parent that was never there",
    "F18": "what hangs below a missing parent is not shown",
    "F19": "entries of bookkeeping make the wrong leaf",
    "F21": "parents form a cycle; a walk never ends",
    "F23": "the beginning of a file is in it twice",
    "F24": "many entries have one id",
    "F29": "older entries are changed in place",
    "F30": "opening rewrites the file and loses history",
    "F31": "a file that cannot be read is taken for an empty one",
    "F33": "a file of zero bytes, or of a header alone",
    "F34": "opening needs the whole file in memory",
    "F36": "one huge record",
    "F42": "files that others can read",
    "F44": "an id leads out of the store",
    "F46": "a rename replaces a symbolic link",
    "F50": "index files are damaged; history seems gone",
    "F51": "rows of the index are missing",
    "F57": "an SQLite with a known fault in its WAL",
    "F58": "handles leak",
    "F62": "half of a session is there after an interruption",
    "F64": "one bad file ends an import of many",
    "F66": "a file of a newer format is opened and written",
    "F68": "characters other than LF split records",
    "F69": "half a surrogate pair",
    "F71": "a tool call without its result",
    "F72": "acknowledged entries live in memory until the end",
    "F73": "the lock of a dead process stays; a stopped one gives no message",
    "F75": "each append rewrites the file",
    "F77": "counters outgrow their width",
    "F78": "a piece in the middle is missing",
    "F79": "a member of an unexpected type makes an entry unusable",
    "F81": "a JSON array that was cut",
    "F84": "an index moves on past what it failed to take",
    "F87": "the first record is missing, or a BOM is before it",
    "F90": "sectors of a record are torn or zero",
    "F91": "a wild length",
    "F93": "repair destroys what was good",
    "F95": "a cut at the edge of a record leaves a hole that nobody sees",
    "F96": "a read error is taken for damage",
    "F98": "a short write",
    "F99": "an end of the right length with wrong bytes",
    "F101": "a reader shows bytes that were cut and written again",
    "F103": "the clock jumps",
    "F105": "index and journal of different moments",
    "F107": "recovery stops at the first damage, or its output does not verify",
    "F109": "the index is behind after a kill",
    "F110": "a copy made while somebody writes",
    "F111": "file systems whose locks and syncs differ",
    "F112": "parts of the index vanish between operations",
    "F113": "a stale WAL beside a new index",
    "F114": "an index copied without its WAL",
    "F116": "closing a file of the index drops its locks",
    "F117": "reading and then writing in one transaction is refused at once",
    "F118": "one connection used by several threads",
    "F119": "a forked child uses or drops what is its parent's",
    "F120": "a failed sync is ignored or repeated",
    "F121": "names are not synced with their files",
    "F122": "integers beyond 64 bits",
    "F124": "NaN and Infinity",
    "F126": "deep nesting",
    "F128": "bytes that are not UTF-8 in a skipped member",
    "F129": "compression objects shared by threads",
    "F130": "several compressed frames in one payload",
    "F131": "a compressed frame without its size",
    "F132": "a small compressed frame that would fill the memory",
    "F134": "a flipped bit inside compressed bytes",
    "F135": "another major version of the hash library",
}
"""What users of such stores met, as far as it concerns journals, ids, imports and indexes."""

LATER = {
    "F26": ("a fork leaves out entries that others hang from", "forks"),
    "F28": ("a fork is counted twice", "forks, and search over sessions"),
    "F37": ("images fill the log", "images kept apart from entries"),
    "F38": ("a list reads every file whole", "the catalogue"),
    "F39": ("a list opens every session", "the catalogue"),
    "F41": ("the time of the file is taken for the last use", "the catalogue"),
    "F48": ("two projects get one folder", "the catalogue, which keeps projects apart"),
    "F53": ("rows point at files that are gone", "the catalogue"),
    "F55": ("only the tables of the search are damaged", "search"),
    "F56": ("a fault of the search stops writing", "search"),
    "F60": ("deleting leaves most of it behind", "deletion"),
    "F61": ("what was deleted comes back", "deletion"),
    "F85": ("what people type is taken for query syntax", "search"),
}
"""Kinds about parts that are not there yet, and the part that they come with."""

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NUMBER = re.compile(r"(?<![A-Za-z0-9])F\d{2,3}(?!\d)")


def named_after_faults() -> dict[str, list[str]]:
    """Fault -> ``file::test`` of every test that is named after it, or whose docstring names it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        place = path.relative_to(REPOSITORY / "tests").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, _NAMED):
                continue
            if not node.name.startswith(("test_", "Test")):
                continue
            named = {fault.upper() for fault in re.findall(r"_([Ff]\d{2,3})(?!\d)", node.name)}
            named |= set(_NUMBER.findall(ast.get_docstring(node) or ""))
            for fault in named:
                found[fault].append(f"{place}::{node.name}")
    return found


def every_test() -> set[str]:
    """``file::test`` of all tests, those in classes among them."""
    found = set()
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        place = path.relative_to(REPOSITORY / "tests").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [n.name for n in ast.walk(tree) if isinstance(n, _NAMED)]
        found |= {f"{place}::{name}" for name in names if name.startswith(("test_", "Test"))}
    return found


def rows() -> list[str]:
    found = named_after_faults()
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|---|"]
    for fault, what in FAULTS.items():
        tests = ", ".join(f"`{test}`" for test in found.get(fault, ())) or "pending"
        lines.append(f"| {fault} | {what} | {tests} |")
    return lines


def test_every_fault_has_one_row() -> None:
    listed = table(PAGE, *HEAD)
    assert [(row[0], row[1]) for row in listed] == list(FAULTS.items())


def test_every_fault_is_shown_by_a_test() -> None:
    """A kind that is listed has a test that is named after it: `pending` is for others."""
    found = named_after_faults()
    assert [fault for fault in FAULTS if fault not in found] == []
    for row in table(PAGE, *HEAD):
        assert re.findall(r"`([^`]+)`", row[2]), row[0]


def test_kinds_that_come_later_are_listed() -> None:
    listed = table(PAGE, *LATER_HEAD)
    assert [tuple(row) for row in listed] == [(f, *facts) for f, facts in LATER.items()]


def test_tests_that_are_named_exist() -> None:
    found = {test for tests in named_after_faults().values() for test in tests}
    for row in table(PAGE, *HEAD):
        for test in re.findall(r"`([^`]+)`", row[2]):
            assert test in found, f"{row[0]}: {test}"
    every = every_test()
    for test in re.findall(r"`([\w/]+\.py::\w+)`", PAGE.read_text(encoding="utf-8")):
        assert test in every, test
    for path in re.findall(r"tests/[\w./]+", PAGE.read_text(encoding="utf-8")):
        assert (REPOSITORY / path).exists(), path


def test_faults_that_tests_are_named_after_are_in_the_table() -> None:
    assert set(named_after_faults()) - set(LATER) <= set(FAULTS)


def filled_in(text: str) -> str:
    """The page with its tables of faults made anew; all else stays."""
    later = [f"| {' | '.join(LATER_HEAD)} |", "|---|---|---|"]
    later += [f"| {fault} | {what} | {part} |" for fault, (what, part) in LATER.items()]
    for head, lines in ((HEAD, rows()), (LATER_HEAD, later)):
        begin = text.index(f"| {' | '.join(head)} |")
        end = text.find("\n\n", begin)
        text = text[:begin] + "\n".join(lines) + (text[end:] if end >= 0 else "\n")
    return text


if __name__ == "__main__":
    Path(PAGE).write_text(filled_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
