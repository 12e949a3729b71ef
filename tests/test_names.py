"""Names of the product: a class has one name, and no identifier is a word that the field does not use."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORBIDDEN = re.compile(
    "alike|asked|beside|beyond|chooser|crossed|dealt|earnest|elsewhere|fate|growth|guide|habit|held|hopeless|judged"
    "|known|laws?|least|lender|lends|lent|looked|most|named|own_share|own_weight|plain|prepared|said|said_once|settle"
    "|shown|siblings?|spec|specification|stand_ins?|strays|ticks|told|unfit|untold|wanted|whole"
)
"""Words without a meaning in the field. An identifier names what it holds or does."""
STORED = {"bundle/bundle.py": {"least_us"}}
"""File → names that a stored file fixes, although they contain such a word."""


def sources() -> dict[str, ast.Module]:
    """Path below the product's folders → its syntax tree."""
    folders = {"features/": ROOT / "features", "": ROOT / "surrogate"}
    return {
        prefix + path.relative_to(folder).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for prefix, folder in folders.items()
        for path in sorted(folder.rglob("*.py"))
        if folder.name == "features" or path.relative_to(folder).parts[0] != "features"
    }


SOURCES = sources()


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each class, function, parameter, variable and import alias that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert len(places) > 300
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_name_is_a_word_of_a_dialect() -> None:
    found = []
    count = 0
    for path, tree in SOURCES.items():
        for line, name in defined_names(tree):
            count += 1
            if FORBIDDEN.fullmatch(name.strip("_").lower()) and name not in STORED.get(path, ()):
                found.append(f"{path}:{line} {name}")
    assert count > 10_000
    assert not found, "\n".join(found)
