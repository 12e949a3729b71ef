"""How the packages depend on one another, and where a family of kernels may be named."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from surrogate.features.families import FAMILIES, FAMILY_OF_KIND, OPERATORS

ROOT = Path(__file__).resolve().parents[1]
ORDER = (
    "features",
    "dataset",
    "formats",
    "collect",
    "models",
    "uncertainty",
    "evaluation",
    "report",
    "bundle",
    "prediction",
    "tuning",
    "network",
    "trace",
    "cli",
)
"""A package imports only from packages before it."""
FAMILIES_ARE_THE_MATTER = (
    "features/",
    "formats/",
    "collect/",
    "models/seer/",
    "prediction/export",
    "network/dispatch",
    "network/language",
    "network/operators",
    "__init__.py",
)
"""The places that may name a family; everything else asks it."""

MAX_LEVELS = 10
"""Packages in the longest chain, of which each imports the next."""


@cache
def sources() -> dict[str, ast.Module]:
    """Path below `surrogate` → syntax tree; `bundled` holds data only."""
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
    """Every node outside an ``if TYPE_CHECKING`` block."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _runtime_nodes(node)


def _imported_modules(name: str) -> Iterator[str]:
    """The modules of ours that a file imports, as ``package.module`` below `surrogate`."""
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
    """The file that an import of ``module``, or of a ``name`` from it, needs; a package's lazy names have their own."""
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
    """The files of ours that a file imports when it runs, in functions, too."""
    for node in _runtime_nodes(sources()[name]):
        if isinstance(node, ast.Import):
            yield from (_file_of(alias.name[10:]) for alias in node.names if alias.name.startswith("surrogate."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("surrogate"):
            yield from (_file_of(str(node.module)[10:], alias.name) for alias in node.names)


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    """All that can be reached from ``start``, itself where a circle leads back."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        further = graph[waiting.pop()] - reached
        reached |= further
        waiting.extend(further)
    return reached


def test_no_files_of_a_package_import_one_another_in_a_circle() -> None:
    """Imports in functions count; those for type checkers alone do not."""
    inside = {
        name: {file for file in _imported_files(name) if file and file.partition("/")[0] == name.partition("/")[0]}
        for name in sources()
        if "/" in name
    }
    assert not {name for name in inside if name in _reached(name, inside)}


def test_the_packages_stand_on_few_levels() -> None:
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


def test_every_package_has_its_place() -> None:
    packages = {name.partition("/")[0] for name in sources() if "/" in name}
    assert packages == set(ORDER)
    assert {name for name in sources() if "/" not in name} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_packages_above_it(package: str) -> None:
    """In this order there can be no cycle between packages either."""
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
"""Kinds whose name is also a model's, an event's of a trace, or a function's; so are those of the pointwise family."""
KINDS = {kind for kind, family in FAMILY_OF_KIND.items() if family != "pointwise"}.union(FAMILIES) - OTHER_MEANINGS
OWN_NAMES = {cls.__name__ for cls in OPERATORS.values()} | {name.upper() for name in FAMILIES} | {"Conv", "ConvFamily"}


def _families_named(name: str) -> Iterator[str]:
    """A family or kind as a text, or its constant or problem class as an import."""
    for node in _runtime_nodes(sources()[name]):
        if isinstance(node, ast.Constant) and node.value in KINDS:
            yield f"surrogate/{name}:{node.lineno} says {node.value!r}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in OWN_NAMES and "features" in (node.module or ""):
                    yield f"surrogate/{name}:{node.lineno} imports {alias.name}"


def test_only_what_is_about_a_family_names_one() -> None:
    asking = [name for name in sources() if not name.startswith(FAMILIES_ARE_THE_MATTER)]
    named = [line for name in asking for line in _families_named(name)]
    assert not named, "\n".join(named)
