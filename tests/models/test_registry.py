"""The registry of models is complete: what one lacks is told, with the file to touch."""

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
    """What tests use by name: identifiers that are not merely imported, and texts inside of test functions."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__).resolve():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tests else set()
            names |= {str(n.value) for test in tests for n in ast.walk(test) if isinstance(n, ast.Constant)}
    return frozenset(names)


@each_model
def test_it_says_what_it_is_in_one_line(model: ModelDeclaration) -> None:
    assert 0 < len(model.help) <= 100 and model.help.isprintable(), f"{_file(model)}: give {model.cls} a line of `help`"


@each_model
def test_what_is_read_from_the_source_is_what_the_class_says(model: ModelDeclaration) -> None:
    cls = model.load()
    assert issubclass(cls, TimeModel) and model_class(model.name) is cls
    for flag in ("name", "help", "predicts_time", "storable", "on_request"):
        assert getattr(cls, flag) == getattr(model, flag), f"{_file(model)}: write `{flag}` into {model.cls} as a value"
    assert (model.name in MODELS) is not model.on_request


@each_model
def test_a_test_exercises_it_by_name(model: ModelDeclaration) -> None:
    file = f"tests/models/test_{model.home.rpartition('.')[2]}.py"
    assert {model.cls, model.name} & _names_in_tests(), f"{file}: write a test of {model.cls} with a known answer"


@each_model
def test_it_says_what_a_search_may_set(model: ModelDeclaration) -> None:
    """A search tries its defaults first, so these lie inside the ranges."""
    cls = model.load()
    words = f"{_file(model)}: annotate what a search may set (`SearchRange`), or give {model.cls} `tunable = False`"
    drawn = cls.space(_Drawn()) if cls.tunable else {}
    assert bool(drawn) is cls.tunable, words
    if drawn:
        assert cls.space(optuna.trial.FixedTrial(cls().get_params())) == {
            name: cls().get_params()[name] for name in drawn
        }


class _Drawn(optuna.trial.FixedTrial):
    """Any value at all."""

    def __init__(self) -> None:
        super().__init__({})

    def _suggest(self, name: str, distribution: optuna.distributions.BaseDistribution) -> object:
        return 0


def test_an_unknown_name_is_told_the_nearest() -> None:
    assert DEFAULT_MODEL in MODELS and set(MODELS) < set(DECLARED)
    with pytest.raises(InputError, match=DEFAULT_MODEL):
        model_class(DEFAULT_MODEL[:-1])


def test_a_range_of_whole_numbers_draws_whole_numbers() -> None:
    trial = optuna.trial.FixedTrial({"trees": 30, "share": 0.5})
    assert SearchRange(20, 120, log=True).suggested(trial, "trees") == 30
    assert SearchRange(0.0, 1.0).suggested(trial, "share") == 0.5
