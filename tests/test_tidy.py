"""House rules that no linter knows: directions of imports, sizes, leftovers, dead files."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS = ("index", "engine", "tools", "fuzz")
"""From the bottom up: a layer imports only from itself and the layers before it."""

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

LONG_FUNCTIONS = {
    # The hot loop of opening, checking and indexing: a call per frame, or one more attribute
    # look-up, costs a tenth of the scan.
    "engine/journal/reader.py": {"Scan.frames"},
}

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "engine").is_dir(), reason="the sources are not beside the tests"
)


class Module(NamedTuple):
    """One source file."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    @property
    def layer(self) -> str:
        return self.path.relative_to(REPOSITORY).parts[0]

    @property
    def imports(self) -> set[str]:
        """Every name that it imports from this project, dotted, members included."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.place}:{node.lineno}: relative import"
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return {name for name in found if name.partition(".")[0] == "treering"}


def read_module(path: Path, text: str | None = None) -> Module:
    source = path.read_text(encoding="utf-8") if text is None else text
    return Module(path, module_name(path), source, ast.parse(source))


def module_name(path: Path) -> str:
    parts = list(path.relative_to(REPOSITORY).with_suffix("").parts)
    if parts[:2] == ["engine", "_root"]:
        parts = parts[2:]
    if parts and parts[-1] == "__init__":
        parts.pop()
    return ".".join(("treering", *parts))


MODULES = [
    read_module(path)
    for layer in LAYERS
    for path in sorted((REPOSITORY / layer).rglob("*.py"))
    if (REPOSITORY / layer).is_dir()
]


def each_module() -> Any:
    return pytest.mark.parametrize("module", MODULES, ids=lambda module: module.place)


def bad(text: str, place: str = "engine/session/made_up.py") -> Module:
    """A module with a fault, for showing that a check finds it."""
    return read_module(REPOSITORY / place, text)


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 40
    assert {module.layer for module in MODULES} == set(LAYERS)


# Directions


def wrong_imports(module: Module) -> set[str]:
    allowed = LAYERS[: LAYERS.index(module.layer) + 1]
    wrong = set()
    for name in module.imports:
        parts = name.split(".")
        if name == "treering.__version__":
            if module.layer == "index":
                wrong.add(name)
        elif parts[1:2] and parts[1] in LAYERS:
            if parts[1] not in allowed:
                wrong.add(name)
        else:
            wrong.add(name)  # the root loads the engine: our own modules name what they mean
        if module.place.startswith("engine/journal/") and parts[1:3] in (
            ["engine", "session"],
            ["engine", "transfer"],
        ):
            wrong.add(name)
    return wrong


@each_module()
def test_imports_point_down(module: Module) -> None:
    """fuzz -> tools -> engine -> index; the journal knows neither sessions nor transfers."""
    if module.name == "treering":
        pytest.skip("the root is the door to the engine")
    assert not wrong_imports(module)


def test_wrong_imports_are_found() -> None:
    assert wrong_imports(bad("import treering.engine.errors\n", "index/made_up.py"))
    assert wrong_imports(bad("from treering.tools import cli\n"))
    assert wrong_imports(bad("from treering import Session\n"))
    assert wrong_imports(
        bad("def f():\n  from treering.engine.session import x\n", "engine/journal/x.py")
    )
    assert not wrong_imports(bad("from treering.index import SessionIndex\n"))
    with pytest.raises(AssertionError, match="relative"):
        wrong_imports(bad("from . import entry\n"))


def hidden_inputs(module: Module) -> set[str]:
    """Clock, randomness and environment, read elsewhere than in their one place."""
    found = set()
    for node in ast.walk(module.tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and node.attr in _HIDDEN_MEMBERS:
            found.add(node.attr)
        found |= _HIDDEN_MODULES.intersection(names)
    return found


_HIDDEN_MODULES = frozenset(("random", "secrets", "socket", "time", "uuid"))
_HIDDEN_MEMBERS = frozenset(("environ", "getenv", "urandom", "now", "utcnow"))


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.layer in ("index", "engine")],
    ids=lambda module: module.place,
)
def test_clock_randomness_and_environment_have_one_place(module: Module) -> None:
    if module.place == "engine/environment.py":
        assert hidden_inputs(module) >= {"time", "secrets", "environ"}
    else:
        assert not hidden_inputs(module)


# Sizes


class Function(NamedTuple):
    name: str
    lines: int


def functions(tree: ast.Module) -> Iterator[Function]:
    def walk(node: ast.AST, prefix: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield Function(prefix + child.name, (child.end_lineno or 0) - child.lineno + 1)
            inner = f"{prefix}{child.name}." if _has_body(child) else prefix
            yield from walk(child, inner)

    return walk(tree, "")


def _has_body(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


@each_module()
def test_functions_are_short(module: Module) -> None:
    """Longer ones are named above with the reason, and only as long as they are."""
    long = {found.name for found in functions(module.tree) if found.lines > FUNCTION_LINES_MAX}
    assert long == LONG_FUNCTIONS.get(module.place, set())


def test_long_functions_are_found() -> None:
    text = "class A:\n  def f(self):\n    def g():\n" + "      x = 1\n" * FUNCTION_LINES_MAX
    assert {found.name for found in functions(ast.parse(text)) if found.lines > 70} == {
        "A.f",
        "A.f.g",
    }


@each_module()
def test_files_are_short(module: Module) -> None:
    assert module.text.count("\n") <= FILE_LINES_MAX


# Leftovers


_LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplemented(Error)?\b")


def leftovers(module: Module) -> list[str]:
    """Notes to oneself, stubs, and exceptions that nobody hears of."""
    found = [
        f"{module.place}:{number}: {line.strip()}"
        for number, line in enumerate(module.text.splitlines(), 1)
        if _LEFTOVER.search(line)
    ]
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        where = f"{module.place}:{node.lineno}"
        if node.type is None:
            found.append(f"{where}: bare except")
        elif _catches_all(node.type) and not _does_something(node):
            found.append(f"{where}: swallows every exception")
    return found


def _does_something(handler: ast.ExceptHandler) -> bool:
    """Whether it raises, calls something, or tells what it caught."""
    return any(
        isinstance(part, (ast.Raise, ast.Call))
        or (isinstance(part, ast.Name) and part.id == handler.name)
        for body in handler.body
        for part in ast.walk(body)
    )


def _catches_all(caught: ast.expr) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in names
    )


@each_module()
def test_nothing_is_left_over(module: Module) -> None:
    assert not leftovers(module)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # TODO later\n",
        "def f():\n  raise NotImplementedError\n",
        "try:\n  f()\nexcept:\n  raise\n",
        "try:\n  f()\nexcept Exception:\n  pass\n",
        "try:\n  f()\nexcept (OSError, BaseException):\n  x = 1\n",
    ],
)
def test_leftovers_are_found(text: str) -> None:
    assert leftovers(bad(text))


@each_module()
def test_every_module_says_what_it_is(module: Module) -> None:
    """An empty ``__init__.py`` only marks a package."""
    if module.text.strip():
        assert ast.get_docstring(module.tree), module.place


# Files


def named_modules(module: Module) -> set[str]:
    """What a module imports, and what it names in a string for a later import."""
    named = set(module.imports)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named |= set(re.findall(r"\Atreering(?:\.\w+)+", node.value))
    return named


def test_no_module_is_dead() -> None:
    """Every module is imported by another one, named for a lazy import, or an entry point.

    The kit is made for tests: theirs count as its users.
    """
    project = _pyproject()
    alive = {place.partition(":")[0] for place in project["project"]["scripts"].values()}
    users = [read_module(path) for path in sorted((REPOSITORY / "tests").rglob("*.py"))]
    tests = {name for user in users for name in user.imports if name.startswith("treering.fuzz.")}
    alive |= {name.rpartition(".")[0] for name in tests} | tests
    for module in MODULES:
        for name in named_modules(module) - {module.name}:
            parts = name.split(".")
            alive |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    dead = {
        module.place
        for module in MODULES
        if module.name not in alive and module.path.name not in ("__init__.py", "__main__.py")
    }
    assert not dead


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def test_listed_packages_are_those_of_the_tree() -> None:
    """A package that the list misses works where it is edited, and is absent from the wheel."""
    listed = _pyproject()["tool"]["setuptools"]["packages"]
    there = {
        module_name(path)
        for layer in LAYERS
        for path in (REPOSITORY / layer).rglob("__init__.py")
        if "__pycache__" not in path.parts
    }
    assert len(set(listed)) == len(listed)
    assert set(listed) == there
    for module in MODULES:
        assert (module.path.parent / "__init__.py").exists(), f"{module.place} is in no package"
