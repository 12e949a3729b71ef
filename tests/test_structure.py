"""How the packages depend on one another, and where a family of kernels may be named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from surrogate.features.families import FAMILIES, FAMILY_OF_KIND
from surrogate.features.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[1]
ORDER = (
    "features", "dataset", "formats", "collect", "models", "uncertainty", "evaluation", "report", "bundle",
    "prediction", "network", "trace", "cli",
)  # fmt: skip
"""A package imports only from packages before it."""
FAMILIES_ARE_THE_MATTER = (
    "features/", "formats/", "collect/", "models/seer/", "prediction/export", "network/call", "network/language",
    "network/work", "__init__.py",
)  # fmt: skip
"""The places that may name a family; everything else asks it."""

NOT_YET = {("evaluation/comparison.py", "report.summary")}
"""(file, module): imports against the order that are known."""
NAMED_NOT_YET = {
    "dataset/columns.py", "dataset/problem_list.py",
    "network/network.py",
    "network/predict.py", "network/read.py", "network/training.py", "trace/calls.py", "trace/iteration/times.py",
    "trace/whatif/hardware.py",
}  # fmt: skip
"""Files that name a family and should ask it; a file that no longer does leaves this list."""


def _sources() -> dict[str, ast.Module]:
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


SOURCES = _sources()


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node outside an ``if TYPE_CHECKING`` block."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _runtime_nodes(node)


def _imported_modules(name: str) -> Iterator[str]:
    """The modules of ours that a file imports, as ``package.module`` below `surrogate`."""
    for node in _runtime_nodes(SOURCES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name[10:] for alias in node.names if alias.name.startswith("surrogate."))
        elif isinstance(node, ast.ImportFrom) and node.level:
            inside = Path(name).parts[: -node.level]
            yield ".".join([*inside, node.module or ""])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("surrogate."):
            yield str(node.module)[10:]
        elif isinstance(node, ast.ImportFrom) and node.module == "surrogate":
            yield from (alias.name for alias in node.names)


def test_every_package_has_its_place() -> None:
    packages = {name.partition("/")[0] for name in SOURCES if "/" in name}
    assert packages == set(ORDER)
    assert {name for name in SOURCES if "/" not in name} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_packages_above_it(package: str) -> None:
    """In this order there can be no cycle between packages either."""
    allowed = (*ORDER[: ORDER.index(package) + 1], "bundled")
    wrong = {
        (name, module)
        for name in SOURCES
        if name.startswith(f"{package}/")
        for module in _imported_modules(name)
        if module.partition(".")[0] not in allowed
    }
    assert wrong == {(name, module) for name, module in NOT_YET if name.startswith(f"{package}/")}


OTHER_MEANINGS = {"linear", "memcpy", "concat"}
"""Kinds whose name is also a model's, an event's of a trace, or a function's; so are those of the pointwise family."""
KINDS = {kind for kind, family in FAMILY_OF_KIND.items() if family != "pointwise"}.union(FAMILIES) - OTHER_MEANINGS
OWN_NAMES = {cls.__name__ for cls in OPERATORS.values()} | {name.upper() for name in FAMILIES} | {"Conv", "ConvFamily"}


def _families_named(name: str) -> Iterator[str]:
    """A family or kind as a text, or its constant or problem class as an import."""
    for node in _runtime_nodes(SOURCES[name]):
        if isinstance(node, ast.Constant) and node.value in KINDS:
            yield f"surrogate/{name}:{node.lineno} says {node.value!r}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in OWN_NAMES and "features" in (node.module or ""):
                    yield f"surrogate/{name}:{node.lineno} imports {alias.name}"


def test_only_what_is_about_a_family_names_one() -> None:
    asking = [name for name in SOURCES if not name.startswith(FAMILIES_ARE_THE_MATTER)]
    named = {name: list(_families_named(name)) for name in asking}
    new = [line for name, lines in named.items() if name not in NAMED_NOT_YET for line in lines]
    assert not new, "\n".join(new)
    assert {name for name, lines in named.items() if lines} == NAMED_NOT_YET
