"""Tests of the dependencies between packages, and of the modules that may name a family of kernels."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from surrogate.features.families import FAMILIES, FAMILY_OF_KIND, OPERATORS

ROOT = Path(__file__).resolve().parents[1]
ORDER = (
    *("features", "dataset", "formats", "collect", "models", "uncertainty", "evaluation", "report", "bundle"),
    *("prediction", "tuning", "network", "trace", "cli"),
)
"""A package imports only from packages before it."""
MAY_NAME_FAMILIES = (
    *("features/", "formats/", "collect/", "models/seer/", "prediction/export"),
    *("network/dispatch", "network/language", "network/operators", "network/parallel", "__init__.py"),
)
"""Modules that may name a family; other modules call the family's methods."""

MAX_LEVELS = 10
"""Maximum length of a chain of packages that import one another."""


@cache
def sources() -> dict[str, ast.Module]:
    """Return path below `surrogate` → syntax tree, without `bundled`, which has only data."""
    folders = {"": ROOT / "surrogate", "features/": ROOT / "features"}
    paths = {
        prefix + path.relative_to(folder).as_posix(): path
        for prefix, folder in folders.items()
        for path in sorted(folder.rglob("*.py"))
    }
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if not name.startswith("bundled/")
    }


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node outside ``if TYPE_CHECKING`` blocks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _runtime_nodes(node)


def _imported_modules(name: str) -> Iterator[str]:
    """Yield the project's modules that a file imports, as ``package.module`` below `surrogate`."""
    for node in _runtime_nodes(sources()[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name[10:] for alias in node.names if alias.name.startswith("surrogate."))
        elif isinstance(node, ast.ImportFrom) and node.level:
            inside = Path(name).parts[: -node.level]
            yield ".".join([*inside, node.module or ""])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("surrogate."):
            yield str(node.module)[10:]
        elif isinstance(node, ast.ImportFrom) and node.module == "surrogate":
            yield from (alias.name for alias in node.names)


def _file_of(module: str, name: str = "") -> str | None:
    """Return the file that defines ``module``, or ``name`` in it; a package's lazy names lead to their own file."""
    path = module.replace(".", "/")
    if f"{path}/{name}.py" in sources():
        return f"{path}/{name}.py"
    if f"{path}.py" in sources():
        return f"{path}.py"
    package = f"{path}/__init__.py"
    if package not in sources():
        return None
    for node in ast.walk(sources()[package]) if name else ():
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return _file_of(str(node.module).removeprefix("surrogate."), name)
    return package


def _imported_files(name: str) -> Iterator[str | None]:
    """Yield the project's files that a file imports at runtime, also inside functions."""
    for node in _runtime_nodes(sources()[name]):
        if isinstance(node, ast.Import):
            yield from (_file_of(alias.name[10:]) for alias in node.names if alias.name.startswith("surrogate."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("surrogate"):
            yield from (_file_of(str(node.module)[10:], alias.name) for alias in node.names)


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Return the nodes that can be reached from ``start``; it is included if it lies on a cycle."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        further = graph[waiting.pop()] - reached
        reached |= further
        waiting.extend(further)
    return reached


def test_no_package_has_an_import_cycle_between_its_files() -> None:
    """Imports in functions count; imports for type checkers do not."""
    inside = {
        name: {file for file in _imported_files(name) if file and file.partition("/")[0] == name.partition("/")[0]}
        for name in sources()
        if "/" in name
    }
    assert not {name for name in inside if name in _reached(name, inside)}


def test_the_longest_chain_of_packages_is_short() -> None:
    levels: dict[str, int] = {}
    for package in ORDER:
        below = {
            module.partition(".")[0]
            for name in sources()
            if name.startswith(f"{package}/")
            for module in _imported_modules(name)
        }
        levels[package] = 1 + max((levels[other] for other in below if other in levels), default=0)
    assert max(levels.values()) <= MAX_LEVELS, levels


def test_every_package_is_in_the_order() -> None:
    packages = {name.partition("/")[0] for name in sources() if "/" in name}
    assert packages == set(ORDER)
    assert {name for name in sources() if "/" not in name} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_packages_above_it(package: str) -> None:
    """Such an order excludes cycles between packages."""
    allowed = (*ORDER[: ORDER.index(package) + 1], "bundled")
    wrong = {
        (name, module)
        for name in sources()
        if name.startswith(f"{package}/")
        for module in _imported_modules(name)
        if module.partition(".")[0] not in allowed
    }
    assert not wrong


OTHER_MEANINGS = {"linear", "memcpy", "concat"}
"""Kinds whose name is also a model, a trace event or a function; pointwise kinds are excluded for the same reason."""
KINDS = {kind for kind, family in FAMILY_OF_KIND.items() if family != "pointwise"}.union(FAMILIES) - OTHER_MEANINGS
OWN_NAMES = {cls.__name__ for cls in OPERATORS.values()} | {name.upper() for name in FAMILIES} | {"Conv", "ConvFamily"}


def _family_mentions(name: str) -> Iterator[str]:
    """Yield places with a family or kind as a string, or with an import of its constant or problem class."""
    for node in _runtime_nodes(sources()[name]):
        if isinstance(node, ast.Constant) and node.value in KINDS:
            yield f"surrogate/{name}:{node.lineno} says {node.value!r}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in OWN_NAMES and "features" in (node.module or ""):
                    yield f"surrogate/{name}:{node.lineno} imports {alias.name}"


def test_only_listed_modules_name_a_family() -> None:
    others = [name for name in sources() if not name.startswith(MAY_NAME_FAMILIES)]
    found = [line for name in others for line in _family_mentions(name)]
    assert not found, "\n".join(found)
