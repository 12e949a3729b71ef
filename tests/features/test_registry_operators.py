"""Operators and families: every registry entry is complete, and its costs equal a known answer."""

import inspect
import re
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import surrogate.features.families as package
from surrogate.features.algorithms import ALGORITHMS, LIBRARIES, MECHANISM_ROWS
from surrogate.features.families import FAMILIES, OPERATORS, Families, parse_problem
from surrogate.features.families.operator import Operator, image_classes, register_operator
from surrogate.features.families.rowwise import Pointwise
from surrogate.features.gpu import gpu
from surrogate.features.problem import DIRECTIONS, STREAMED
from surrogate.features.terms import MECHANISM_TERMS

FOLDER = Path(package.__file__).parent
every_kind = pytest.mark.parametrize("kind", OPERATORS)
every_family = pytest.mark.parametrize("name", FAMILIES)


def where(cls: type) -> str:
    """Return the file of a class, or the TOML table with its row."""
    file = Path(inspect.getsourcefile(cls) or "")
    table = file.with_name(f"{getattr(cls, 'FAMILY', cls.kind)}.toml")
    has_row = table.is_file() and re.search(rf"(?m)^{cls.kind} = ", table.read_text(encoding="utf-8"))
    return f"features/families/{table.name if has_row else file.name}"


def _subclasses(cls: type[Operator]) -> set[type[Operator]]:
    return {cls, *(sub for child in cls.__subclasses__() for sub in _subclasses(child))}


def test_every_operator_class_is_registered() -> None:
    """A problem's text cannot name a class that is not registered."""
    found = {cls for cls in _subclasses(Operator) - {*OPERATORS.values()} if not cls.__subclasses__()}
    found = {cls for cls in found if re.match(rf"{package.__name__}(?!.*\.operator$)", cls.__module__)}
    found = {cls for cls in found if vars(sys.modules[cls.__module__]).get(cls.__name__) is cls}
    assert not {f"{where(cls)}: {cls.__name__} lacks @register_operator" for cls in found}


@every_kind
def test_costs_of_every_operator_equal_its_known_answer(kind: str) -> None:
    cls = OPERATORS[kind]
    answer = cls.KNOWN_ANSWER
    assert answer, f"{where(cls)}: {kind} lacks a known answer"
    problem = parse_problem(answer.problem)
    assert problem.kind == kind, f"{where(cls)}: the known answer of {kind} is {problem.kind}'s"
    costs = (problem.flops, problem.dram_bytes, problem.blocks)
    assert costs == (answer.flops, answer.dram_bytes, answer.blocks), f"{where(cls)}: {kind} costs {costs}"


@every_kind
def test_every_operator_has_a_docstring_and_a_family(kind: str) -> None:
    cls = OPERATORS[kind]
    assert cls.FAMILY in FAMILIES and kind in FAMILIES[cls.FAMILY].kinds, f"{where(cls)}: {kind} has no family"
    # Without a docstring a dataclass gets its signature.
    docstring = inspect.getdoc(cls) or ""
    assert docstring and not docstring.startswith(f"{cls.__name__}("), f"{where(cls)}: {kind} lacks a docstring"
    assert all(size.meaning for size in FAMILIES[cls.FAMILY].sizes), f"{where(cls)}: a size of {kind} has no meaning"


def test_related_operators_exist_and_have_the_same_sizes() -> None:
    """An operator names its gradients, its replacement in training, and its fallback kinds."""
    pairs = []
    for cls in OPERATORS.values():
        names = {*cls.GRADIENT, cls.WEIGHT_GRADIENT, cls.IN_TRAINING, *cls.FALLBACK_KINDS} - {STREAMED, ""}
        pairs += [(cls, name) for name in names]
    assert len(pairs) >= len(OPERATORS) / 2
    for cls, name in pairs:
        assert name in OPERATORS, f"{where(cls)}: {cls.kind} names {name}, which is no operator"
        assert OPERATORS[name].size_names() == cls.size_names(), f"{where(cls)}: {name} has other sizes than {cls.kind}"


def test_operator_without_known_answer_or_family_is_refused() -> None:
    cls = type("MadeUp", (Pointwise,), {"__slots__": (), "FAMILY": ""})
    with pytest.raises(TypeError, match="declares the FAMILY"):
        register_operator("made_up:n1", flops=0, dram_bytes=8, blocks=1)(cls)
    with pytest.raises(TypeError, match="missing 3 required"):
        register_operator("made_up:n1")(cls)  # pyright: ignore[reportCallIssue]
    assert "made_up" not in OPERATORS


def test_row_without_known_answer_or_of_a_registered_kind_is_refused() -> None:
    row = {"flops": 1, "accesses": 2, "meaning": "made up", "known_answer": [120, 960, 1]}
    with pytest.raises(TypeError, match=r"pointwise.toml: the row of operator made_up lacks known_answer"):
        image_classes(Pointwise, {"made_up": {key: row[key] for key in ("flops", "accesses", "meaning")}})
    with pytest.raises(TypeError, match="the kind 'relu' is Relu's"):
        image_classes(Pointwise, {"relu": row})


@every_family
def test_every_family_is_consistent(name: str) -> None:
    family = FAMILIES[name]
    file = where(next(iter(family.kinds.values())))
    columns = family.column_names
    sizes = set(family.size_names)
    assert family.name == name
    assert len(set(columns)) == len(columns), f"{file}: {name} names a column twice"
    of_sizes = {"batch": family.batch, "grid_sizes": family.grid_sizes, "lines": chain(*family.lines)}
    for declared_as, names in of_sizes.items():
        unknown = set(names) - sizes
        assert not unknown, f"{file}: {declared_as} of {name} names {unknown}, which is no size"
    for declared_as, names in {"dimension_names": family.dimension_names, "distances": family.distance_units}.items():
        unknown = set(names) - set(columns)
        assert not unknown, f"{file}: {declared_as} of {name} names {unknown}, which is no column"
    assert family.primary in family.groupings and set(family.candidate_key) <= {*family.settings, "algorithm"}, file


@every_family
def test_every_kind_gives_finite_columns_of_its_family(name: str) -> None:
    """A GPU of each vendor evaluates the known problem of every operator."""
    family = FAMILIES[name]
    operators = [cls for cls in family.kinds.values() if issubclass(cls, Operator)]
    problems = {cls: cls.KNOWN_ANSWER.problem for cls in operators if cls.KNOWN_ANSWER}
    assert problems or name == "conv"
    for cls, text in problems.items():
        problem = parse_problem(text)
        for device in map(gpu, ("v100", "h200", "mi210")):
            formula = family.formula(family.setting_of(problem), device)
            terms = formula.problem(problem)
            candidate_values, _ = formula.candidate(terms, "")
            values = (*terms.values, *candidate_values, *formula.constant)
            count = f"{where(cls)}: columns of {name} gives {len(values)} values for {len(family.column_names)} names"
            assert len(values) == len(family.column_names), count
            assert np.isfinite(values).all(), f"{where(cls)}: a column of {cls.kind} is not finite"
            assert terms.roofline_us >= 0


def test_no_kind_has_two_families() -> None:
    built_in = [family for family in FAMILIES.values() if FAMILIES.is_built_in(family.name)]
    kinds = [kind for family in built_in for kind in family.kinds]
    assert sorted(kinds) == sorted(filter(FAMILIES.is_built_in, FAMILIES.of_kind))
    assert {*kinds} == {"conv", *OPERATORS}
    with pytest.raises(TypeError, match="declared twice"):
        Families([*FAMILIES.values(), FAMILIES["gemm"]])


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_algorithm_has_a_complete_mechanism(library: str) -> None:
    table = "features/algorithms.toml"
    assert len(DIRECTIONS) == 3 and {algorithm.library for algorithm in ALGORITHMS} >= {*LIBRARIES} - {"reference"}
    for direction in DIRECTIONS:
        names = [each.name for each in ALGORITHMS if (each.library, each.direction) == (library, direction)]
        assert names or library == "reference"
        assert len(set(names)) == len(names), f"{table}: {library} {direction} names an algorithm twice"
    for algorithm in ALGORITHMS:
        assert algorithm.mechanism in MECHANISM_TERMS, f"{table}: {algorithm.name} has a mechanism without terms"
        row = MECHANISM_ROWS[algorithm.mechanism]
        assert len(row["tiles"]) == 3 and row["kernel"], f"features/mechanisms.toml: {algorithm.mechanism}"
