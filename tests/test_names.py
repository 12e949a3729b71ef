"""Tests of the product's names: unique class names, no words without a meaning in the field, numpydoc sections."""

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.test_structure import ROOT, sources

FORBIDDEN = re.compile(
    "alike|asked|beside|beyond|chooser|crossed|dealt|earnest|elsewhere|fate|growth|guide|habit|held|hopeless|judged"
    "|known|laws?|least|lender|lends|lent|looked|most|named|own_share|own_weight|plain|prepared|said|said_once|settle"
    "|shown|siblings?|spec|specification|stand_ins?|strays|ticks|told|unfit|untold|wanted|whole"
)
"""Words without a meaning in the field. An identifier names what it holds or does."""
STORED = {"bundle/bundle.py": {"least_us"}}
"""File → names that a stored file fixes, although they contain such a word."""


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


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert len(places) > 300
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_identifier_is_a_forbidden_word() -> None:
    found = []
    count = 0
    for path, tree in sources().items():
        for line, name in defined_names(tree):
            count += 1
            if FORBIDDEN.fullmatch(name.strip("_").lower()) and name not in STORED.get(path, ()):
                found.append(f"{path}:{line} {name}")
    assert count > 10_000
    assert not found, "\n".join(found)


def public_objects() -> Iterator[tuple[str, object]]:
    """Yield path and object of every public name of a package: the names in its ``__init__.pyi``."""
    for stub in sorted((ROOT / "surrogate").rglob("__init__.pyi")):
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        for name in re.findall(r"\b(\w+) as \1\b", stub.read_text(encoding="utf-8")):
            value = getattr(importlib.import_module(package), name)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield f"{package}.{name}", value


def missing_sections(value: object) -> list[str]:
    """Return the numpydoc sections that a public function or class lacks."""
    text = inspect.getdoc(value) or ""
    if not inspect.isfunction(value):
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        return [] if is_error or re.search(r"^(Parameters|Attributes)\n-", text, re.MULTILINE) else ["Attributes"]
    signature = inspect.signature(value)
    needed = ["Parameters"] * bool(signature.parameters)
    needed += ["Returns|Yields"] * (not re.search(r"^None$|Iterator\[None\]$", str(signature.return_annotation)))
    return [name for name in needed if not re.search(rf"^({name})\n-", text, re.MULTILINE)]


def test_public_names_have_numpydoc_sections() -> None:
    objects = dict(public_objects())
    assert len(objects) > 90
    found = {path: sections for path, value in objects.items() if (sections := missing_sections(value))}
    assert not found
