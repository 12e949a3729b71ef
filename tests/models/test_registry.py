"""The registry of models is complete; a failure names the file to change."""

import ast
from functools import cache
from pathlib import Path

import optuna
import pytest

from surrogate.features.errors import InputError
from surrogate.models import MODELS, TimeModel, model_class
from surrogate.models.base import SearchRange
from surrogate.models.registry import DECLARED, DEFAULT_MODEL, ModelDeclaration

ROOT = Path(__file__).resolve().parents[2]
each_model = pytest.mark.parametrize("model", DECLARED.values(), ids=DECLARED)


def _file(model: ModelDeclaration) -> str:
    return f"{model.home.replace('.', '/')}.py"


@cache
def _names_in_tests() -> frozenset[str]:
    """Return the names that tests use: identifiers that are not merely imported, and texts inside test functions."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__).resolve():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tests else set()
            names |= {str(n.value) for test in tests for n in ast.walk(test) if isinstance(n, ast.Constant)}
    return frozenset(names)


@each_model
def test_model_has_one_line_of_help(model: ModelDeclaration) -> None:
    assert 0 < len(model.help) <= 100 and model.help.isprintable(), f"{_file(model)}: give {model.cls} a line of `help`"


@each_model
def test_declaration_read_from_the_source_equals_the_class(model: ModelDeclaration) -> None:
    cls = model.load()
    assert issubclass(cls, TimeModel) and model_class(model.name) is cls
    for flag in ("name", "help", "predicts_time", "storable", "on_request"):
        assert getattr(cls, flag) == getattr(model, flag), f"{_file(model)}: write `{flag}` into {model.cls} as a value"
    assert (model.name in MODELS) is not model.on_request


@each_model
def test_model_is_named_in_a_test(model: ModelDeclaration) -> None:
    file = f"tests/models/test_{model.home.rpartition('.')[2]}.py"
    assert {model.cls, model.name} & _names_in_tests(), f"{file}: write a test of {model.cls} with a known answer"


@each_model
def test_search_ranges_contain_the_defaults(model: ModelDeclaration) -> None:
    """A search tries the defaults first."""
    cls = model.load()
    words = f"{_file(model)}: annotate what a search may set (`SearchRange`), or give {model.cls} `tunable = False`"
    drawn = cls.space(TrialOfZeros()) if cls.tunable else {}
    assert bool(drawn) is cls.tunable, words
    if drawn:
        stored = cls().get_params()
        assert cls.space(optuna.trial.FixedTrial(stored)) == {name: stored[name] for name in drawn}


class TrialOfZeros(optuna.trial.FixedTrial):
    """Suggest zero for every parameter."""

    def __init__(self) -> None:
        super().__init__({})

    def _suggest(self, name: str, distribution: optuna.distributions.BaseDistribution) -> object:
        return 0


def test_error_for_an_unknown_model_suggests_the_nearest_name() -> None:
    assert DEFAULT_MODEL in MODELS and set(MODELS) < set(DECLARED)
    with pytest.raises(InputError, match=DEFAULT_MODEL):
        model_class(DEFAULT_MODEL[:-1])


def test_integer_range_suggests_integers() -> None:
    trial = optuna.trial.FixedTrial({"trees": 30, "share": 0.5})
    assert SearchRange(20, 120, log=True).suggested(trial, "trees") == 30
    assert SearchRange(0.0, 1.0).suggested(trial, "share") == 0.5
