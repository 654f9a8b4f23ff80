"""``docs/operations.md``: every class, code, option, variable and finding it names is real."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import treering
from docs.pages import DOCS, REPOSITORY, table
from treering import AcknowledgedDataLost, Session, TreeringError
from treering.engine import home
from treering.engine.journal.opening import OPEN_MODES
from treering.engine.journal.repair_modes import REPAIR_MODES
from treering.tools import entry, findings

PAGE = DOCS / "operations.md"
TEXT = PAGE.read_text(encoding="utf-8")


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def error_classes() -> dict[str, type[TreeringError]]:
    found = {name: getattr(treering, name) for name in treering.__dir__()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, type)
        and issubclass(value, TreeringError)
        and value is not TreeringError
    }


def test_every_error_class_has_its_row_and_exit_code() -> None:
    listed = {
        name: int(code)
        for cell, code, _ in table(PAGE, "class", "exit code")
        for name in names_in(cell)
    }
    assert listed == {name: kind.exit_code for name, kind in error_classes().items()}


def test_exit_codes_are_those_of_the_command() -> None:
    codes = {int(row[0]) for row in table(PAGE, "code", "meaning")}
    assert codes == {
        0,
        1,
        entry.EXIT_USAGE,
        entry.EXIT_COULD_NOT_RUN,
        entry.EXIT_INTERRUPTED,
        entry.EXIT_READER_GONE,
    }


def test_every_variable_is_read_and_every_one_read_is_listed() -> None:
    listed = {name for row in table(PAGE, "variable", "meaning") for name in names_in(row[0])}
    used = set()
    for layer in ("engine", "tools", "index"):
        folder = Path(sys.modules["treering.engine"].__file__ or "").parent.parent / layer
        for path in folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            used |= set(re.findall(r"(?:variable\(|environ\.get\(|environ\[)\"(\w+)\"", text))
    ours = {name for name in used if name.startswith(("TREERING_", "BASE_CONTEXT_"))}
    assert listed <= ours, "a variable that nothing reads"
    assert ours - listed <= {"TREERING_CORPUS"}, "a variable that the page does not name"


def test_every_kind_of_finding_is_explained() -> None:
    """Those that need action are in the table; the notes are in the sentence behind it."""
    acting = {name for row in table(PAGE, "finding", "meaning") for name in names_in(row[0])}
    sentence = re.search(r"^(`owner`.*?) are notes", TEXT, re.MULTILINE | re.DOTALL)
    assert sentence is not None
    notes = set(names_in(sentence[1]))
    assert notes == findings.NOTES
    assert acting == findings.ACTIONS


def report(*words: str) -> object:
    done = subprocess.run(
        [sys.executable, "-m", "treering.tools", *words, "--json"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    return json.loads(done.stdout)


def members_after(start: str) -> list[str]:
    """The names in the sentence of the page that begins so, but for those in brackets."""
    sentence = re.search(rf"{re.escape(start)}: ([^.]*)\.", TEXT)
    assert sentence is not None, start
    return names_in(re.sub(r"\([^)]*\)", "", sentence[1]))


def test_json_reports_have_the_members_of_the_page(tmp_path: Path) -> None:
    """Names and order, of version 1, as the commands print them."""
    with Session.create("/p", home_dir=str(tmp_path)) as session:
        session.append(custom(1))
        path = Path(session.path)
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    (checked,) = report("fsck", str(path))  # type: ignore[misc]
    assert list(checked) == members_after("`fsck`")
    for key, head in (("findings", "finding"), ("modes", "mode")):
        rows = table(PAGE, f"member of a {head}", "value")
        assert list(checked[key][0]) == [name for row in rows for name in names_in(row[0])]
    assert list(checked["index"]) == ["state", "differences"]
    repaired = report("repair", str(path))
    assert isinstance(repaired, dict)
    assert list(repaired) == members_after("`repair`")
    assert list(repaired["gaps"][0]) == ["offset", "bytes", "first", "last"]
    assert list(report("repair", str(path), "--readmit")) == members_after("`repair --readmit`")  # type: ignore[call-overload]
    (indexed,) = report("reindex", str(path))  # type: ignore[misc]
    assert list(indexed) == members_after("`reindex`")
    assert {1} == {found["schema"] for found in (checked, repaired, indexed)}
    assert findings.SCHEMA == 1


def test_the_table_of_modes(tmp_path: Path) -> None:
    """The options and the API know exactly the modes of the page."""
    (*named, none) = [row[0] for row in table(PAGE, "mode", "A")]
    assert [names_in(cell)[0] for cell in named] == list(REPAIR_MODES)
    assert none == "none"
    openers = [row[5] for row in table(PAGE, "mode", "A") if "Session.open(path" in row[5]]
    assert len(openers) == len(OPEN_MODES)


def test_remote_file_systems_of_the_page_are_refused() -> None:
    spelt = {"NFS": "nfs", "CIFS": "cifs", "9p": "9p", "virtiofs": "virtiofs", "Ceph": "ceph"}
    spelt |= {"GlusterFS": "glusterfs", "AFS": "afs", "Lustre": "lustre"}
    line = next(line for line in TEXT.splitlines() if line.startswith("NFS, "))
    for name, kind in spelt.items():
        assert name in line
        assert kind in home._REMOTE_FILE_SYSTEMS
    for root in home._PROTECTED_ROOTS:
        assert f"`~/{root}`" in TEXT


COMMANDS = sorted(
    {
        *re.findall(r"`treering ((?:(?:session|schedule) )?[a-z]+)", TEXT),
        *re.findall(r"^ {4}treering ((?:(?:session|schedule) )?[a-z]+)", TEXT, re.MULTILINE),
    }
)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_their_options_exist(name: str) -> None:
    """Each command of the page answers `--help`, and knows the options the page gives it."""
    command = "import sys; from treering.tools.entry import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", command, *name.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in re.findall(rf"treering {name}\b([^`\n]*)", TEXT):
        for option in re.findall(r"--[a-z-]+", line.partition("  ")[0]):
            assert option in done.stdout, option
    if name == "repair":
        for row in table(PAGE, "option", "when"):
            assert row[0].strip("`").split()[0] in done.stdout


def test_links_lead_somewhere() -> None:
    for page in (*DOCS.glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


# What the page says about copies


def custom(number: int) -> dict[str, object]:
    return {"type": "custom", "customType": "n", "data": [number, "x" * 300]}


def test_f110_a_copy_of_a_session_in_use_holds_everything_acknowledged(tmp_path: Path) -> None:
    """Copies taken while an owner appends: each opens, whole up to some moment."""
    store = tmp_path / "store"
    acknowledged: list[str] = []
    stop = threading.Event()
    with Session.create("/p", home_dir=str(store)) as session:

        def work() -> None:
            while not stop.is_set():
                acknowledged.append(session.append(custom(len(acknowledged))))

        writer = threading.Thread(target=work)
        writer.start()
        try:
            for number in range(15):
                copy = tmp_path / f"copy{number}" / "sessions" / Path(session.path).name
                copy.parent.mkdir(parents=True)
                before = len(acknowledged)
                shutil.copyfile(session.path, copy)
                with Session.open(copy) as opened:
                    assert opened.report is not None
                    assert opened.report.case in ("A", "E")
                    ids = [entry.id for entry in opened.iter_entries()]
                assert len(ids) >= before
                assert ids == acknowledged[: len(ids)] or ids[:-1] == acknowledged[: len(ids) - 1]
        finally:
            stop.set()
            writer.join()
    assert acknowledged


def test_f105_an_older_journal_under_a_newer_index_is_case_d(tmp_path: Path) -> None:
    """A restored backup is noticed; without the index of the newer state it opens."""
    with Session.create("/p", home_dir=str(tmp_path)) as session:
        first = session.append(custom(1))
        path = Path(session.path)
    backup = path.read_bytes()
    with Session.open(path) as session:
        session.append(custom(2))
    path.write_bytes(backup)
    with pytest.raises(AcknowledgedDataLost) as caught:
        Session.open(path)
    assert "--accept-loss" in str(caught.value)
    assert path.read_bytes() == backup
    for index in (tmp_path / "session-index").glob(f"{path.stem}.*"):
        index.unlink()
    with Session.open(path) as session:
        assert session.leaf_id == first


def test_a_store_can_be_moved(tmp_path: Path) -> None:
    """Renamed: the index goes on. Copied: it is set aside and built again; answers stay right."""
    with Session.create("/p", home_dir=str(tmp_path / "old")) as session:
        entry_id = session.append(custom(1))
        name = Path(session.path).name
    (tmp_path / "old").rename(tmp_path / "renamed")
    with Session.open(tmp_path / "renamed" / "sessions" / name) as session:
        assert session.has(entry_id)
        assert not session.index_faults
        session.append(custom(2))
    shutil.copytree(tmp_path / "renamed", tmp_path / "copied")
    shutil.rmtree(tmp_path / "renamed")
    with Session.open(tmp_path / "copied" / "sessions" / name) as session:
        assert session.has(entry_id)
        session.append(custom(3))
        assert session.counts()["entries"] == 3
    assert list((tmp_path / "copied" / "session-index").glob(f"{Path(name).stem}.*.sqlite3"))
    with Session.open(tmp_path / "copied" / "sessions" / name) as session:
        assert not session.index_faults
