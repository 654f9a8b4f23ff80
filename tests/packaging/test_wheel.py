"""The wheel holds what it should and nothing else, and imports as it should once installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import treering

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("engine", "fuzz", "index", "tools")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (REPOSITORY / "engine").is_dir(), reason="the sources are not beside the tests"
    ),
]


def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, from a copy: the sources stay clean, and a stale ``build/`` cannot leak in."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in SOURCES:
        shutil.copytree(
            REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy / name)
    where = ["-w", str(folder), str(copy)]
    built = run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *where], folder)
    if built.returncode:
        reason = (built.stderr.strip() or "no message").splitlines()[-1]
        if os.environ.get("CI"):
            raise AssertionError(f"the wheel cannot be built: {built.stderr}")
        pytest.skip(f"pip cannot build a wheel here: {reason}")
    (found,) = folder.glob("*.whl")
    return found


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def wanted_files(source: Path) -> set[str]:
    """Every module of every listed package, and the data files that the project names."""
    settings = project()["tool"]["setuptools"]
    wanted = set()
    for package in settings["packages"]:
        folder = source / package_folder(package, settings["package-dir"])
        place = package.replace(".", "/")
        wanted |= {f"{place}/{path.name}" for path in folder.glob("*.py")}
        for pattern in settings["package-data"].get(package, []):
            wanted |= {f"{place}/{path.relative_to(folder)}" for path in folder.glob(pattern)}
    return wanted


def package_folder(package: str, folders: dict[str, str]) -> str:
    """Where setuptools finds a package: the longest listed parent, and the rest below it."""
    if package in folders:
        return folders[package]
    parent, _, name = package.rpartition(".")
    return f"{package_folder(parent, folders)}/{name}"


def test_the_wheel_holds_the_listed_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(set(names)) == len(names)
    held = {name for name in names if ".dist-info/" not in name}
    assert held == wanted_files(wheel.parent / "source")
    assert "treering/py.typed" in held
    assert "treering/tools/entry.py" in held
    assert {Path(name).suffix for name in held if "/samples/" in name} == {".jsonl"}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        metadata = archive.read(files["METADATA"]).decode()
        scripts = archive.read(files["entry_points.txt"]).decode()
        tags = archive.read(files["WHEEL"]).decode()
    assert "\nName: treering\n" in metadata
    assert f"\nRequires-Python: {project()['project']['requires-python']}\n" in metadata
    for needed in project()["project"]["dependencies"]:
        assert f"\nRequires-Dist: {needed}\n" in metadata, needed
    assert "treering = treering.tools.entry:main" in scripts
    assert "Tag: py3-none-any" in tags
    assert "licenses/LICENSE" in files
    assert "\nDescription-Content-Type: text/markdown\n" in metadata


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel installed, and the dependencies of this one beside it."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    # A path file makes the dependencies visible behind the wheel; the path files of the other
    # folder, and so an editable treering, are not followed.
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    target = ["--target", str(packages), "--no-deps", "--no-compile", "--no-index"]
    done = run([sys.executable, "-m", "pip", "install", "-q", *target, str(wheel)], folder)
    assert done.returncode == 0, done.stderr
    return interpreter


@pytest.mark.parametrize("name", SOURCES)
def test_names_of_our_folders_stay_free(python: Path, tmp_path: Path, name: str) -> None:
    """``import engine`` finds nothing: those names belong to our users' own programs."""
    done = run([str(python), "-c", f"import {name}"], tmp_path)
    assert done.returncode == 1
    assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr


def test_the_installed_package_works(python: Path, tmp_path: Path) -> None:
    program = """
import importlib, os, pkgutil, treering
assert "site-packages" in treering.__file__, treering.__file__
for name in treering.__dir__():
    getattr(treering, name)
with treering.Session.create("/p", home_dir=os.path.abspath("store")) as session:
    entry = session.append({"type": "custom", "customType": "x"})
    path = session.path
with treering.SessionView.open(path) as view:
    assert view.leaf_id == entry
found = [module.name for module in pkgutil.walk_packages(treering.__path__, "treering.")]
assert len(found) > 40, found
for name in found:
    if not name.startswith(("treering.tools", "treering.fuzz")):
        importlib.import_module(name)
print(treering.__version__)
"""
    done = run([str(python), "-W", "error", "-c", program], tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == treering.__version__


def test_importing_the_root_costs_nothing(python: Path, tmp_path: Path) -> None:
    """``import treering`` loads no dependency; a public name does."""
    program = """
import sys, treering
before = set(sys.modules)
assert not {"apsw", "msgspec", "click", "rich", "treering.engine"} & before, before
treering.Session
assert {"apsw", "msgspec", "treering.engine"} <= set(sys.modules)
"""
    done = run([str(python), "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_starts(python: Path, tmp_path: Path) -> None:
    command = "import sys; from treering.tools.entry import main; sys.exit(main(['--version']))"
    done = run([str(python), "-c", command], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("treering ")


def test_an_unknown_name_of_the_root_is_an_attribute_error(python: Path, tmp_path: Path) -> None:
    done = run([str(python), "-c", "import treering; treering.Nothing"], tmp_path)
    assert "AttributeError: module 'treering' has no attribute 'Nothing'" in done.stderr
