"""The rooms of the package import only from rooms above them, in the order written here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
ORDER = (
    "features",
    *("lazy_names", "atomic", "staging", "checked_file", "bundled"),
    "formats",
    "collect",
    *("dataset", "problem_list"),
    *("models", "candidates"),
    *("judge", "uncertainty", "scorecard"),
    "report",
    "tune",
    "comparing",
    *("bundle_index", "bundle_check", "bundle"),
    *("serving", "predictor"),
    *("card", "training", "streaming", "calibration"),
    *("autotuning", "export"),
    "operators",
    "network",
    "trace",
    *("cli", "__main__"),
)
"""From the top down: ``features``, then the folders and single files of ``surrogate/``; its own file names them all."""


def _room(module: str) -> str:
    first, *rest = module.split(".")
    return rest[0] if first == "surrogate" and rest else first


def _files() -> list[Path]:
    every = [*PROJECT.glob("features/**/*.py"), *PROJECT.glob("surrogate/**/*.py")]
    return sorted(path for path in every if path != PROJECT / "surrogate" / "__init__.py")


def _imported(tree: ast.AST) -> Iterator[str]:
    """Every module that runs when the code does, absolute; what only type checkers read is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"line {node.lineno}: imports are absolute"
            if node.module == "surrogate":
                yield from (f"surrogate.{alias.name}" for alias in node.names)
            else:
                yield node.module
        yield from _imported(node)


def _upward(source: str, room: str) -> set[str]:
    """The rooms below ``room`` that its ``source`` imports, and what is no room of the package at all."""
    found = set()
    for module in _imported(ast.parse(source)):
        if module.split(".")[0] in ("surrogate", "features", "experiments", "tests"):
            other = _room(module)
            if other not in ORDER or ORDER.index(other) > ORDER.index(room):
                found.add(other)
    return found


def _place(path: Path) -> str:
    return _room(".".join(path.relative_to(PROJECT).with_suffix("").parts))


def test_rooms_import_only_from_rooms_above() -> None:
    found = {
        (path.relative_to(PROJECT).as_posix(), other)
        for path in _files()
        for other in _upward(path.read_text(encoding="utf-8"), _place(path))
    }
    assert sorted(found) == []


def test_every_room_has_its_place() -> None:
    assert sorted({_place(path) for path in _files()}) == sorted(ORDER)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from surrogate.cli.output import show", {"cli"}),
        ("def f():\n    from surrogate import bundle", {"bundle"}),
        ("import surrogate.trace.events", {"trace"}),
        ("from experiments.sources import Sources", {"experiments"}),
        ("if TYPE_CHECKING:\n    from surrogate.cli.output import show", set()),
        ("from surrogate.dataset.rows import Rows\nimport features.conv\nimport numpy", set()),
        ("from surrogate.models.forest import Forest", set()),
    ],
)
def test_the_rule_finds_what_breaks_it(source: str, found: set[str]) -> None:
    assert _upward(source, "models") == found
