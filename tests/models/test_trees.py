"""Trees as arrays: to the bit what XGBoost computes, missing values, categories and thresholds included."""

from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.models.trees import CHUNK_ROWS, BoostedTimes, Trees

CODES = [0.0, 1.0, 2.0, 3.0, 4.0, float("nan")]


def _booster(categorical: bool = True, **params: Any) -> xgboost.Booster:
    """Four numbers and a category with a strong effect of its own; a tenth of the values missing."""
    random = np.random.default_rng(3)
    x = random.normal(size=(600, 5)).astype(np.float32)
    x[:, 4] = random.integers(0, 5, 600)
    y = x[:, 0] * np.where(x[:, 4] % 2 == 1, 2.0, -1.0) + np.abs(x[:, 1]) + 0.1 * x[:, 4]
    x[random.random(x.shape) < 0.1] = np.nan
    types = ["q"] * 4 + ["c" if categorical else "q"]
    data = xgboost.DMatrix(x, label=y, feature_types=types, enable_categorical=True)
    return xgboost.train({"max_depth": 5, "nthread": 1, "verbosity": 0, **params}, data, num_boost_round=25)


@pytest.fixture(scope="module")
def booster() -> xgboost.Booster:
    return _booster()


@pytest.fixture(scope="module")
def trees(booster: xgboost.Booster) -> Trees:
    return Trees.from_bytes(Trees.from_booster(booster.save_raw("json")).to_bytes())


def _boundary_rows(trees: Trees, count: int, seed: int) -> np.ndarray:
    """Thresholds, the floats next to them, and missing values."""
    random = np.random.default_rng(seed)
    x = np.empty((count, 4), dtype=np.float32)
    for column in range(4):
        at = random.choice(trees.value[(trees.feature == column) & (trees.left >= 0)], count)
        side = random.choice(np.array([-np.inf, np.inf], dtype=np.float32), count)
        x[:, column] = np.where(random.random(count) < 0.5, at, np.nextafter(at, side))
    x[random.random(x.shape) < 0.05] = np.nan
    return x


@pytest.mark.parametrize("rows", [1, 7, CHUNK_ROWS + 1, 200])
def test_the_forest_is_xgboost_to_the_bit(booster: xgboost.Booster, trees: Trees, rows: int) -> None:
    forest = trees.specialise([0, 1, 2, 3], {}, CODES)
    numbers = _boundary_rows(trees, rows, seed=rows)
    index = np.random.default_rng(rows).integers(0, len(CODES), rows)
    whole = np.column_stack([numbers, np.float32(CODES)[index]])
    wanted = booster.inplace_predict(whole)
    x = np.hstack([numbers, forest.patterns[index]])
    np.testing.assert_array_equal(forest.predict(x), wanted)
    np.testing.assert_array_equal(forest.trees().booster(x.shape[1]).inplace_predict(x), wanted)
    np.testing.assert_array_equal(trees.booster(5).inplace_predict(whole), wanted)


@settings(max_examples=40)
@given(
    st.sets(st.integers(0, 3)),
    st.lists(st.floats(-2, 2, width=32) | st.just(float("nan")), min_size=4, max_size=4),
    st.sampled_from(CODES),
)
def test_cutting_out_constants_changes_nothing(
    booster: xgboost.Booster, trees: Trees, fixed: set[int], values: list[float], code: float
) -> None:
    varying = [column for column in (3, 1, 0, 2) if column not in fixed]  # in any order
    forest = trees.specialise([-1, *varying], {column: values[column] for column in fixed}, [code])
    assert forest.patterns.shape == (1, 0)
    row = np.float32([*values, code])
    x = np.concatenate([np.zeros((1, 1), dtype=np.float32), row[None, varying]], axis=1)
    assert forest.predict(x)[0] == booster.inplace_predict(row[None])[0]


def test_all_constant_is_a_number(booster: xgboost.Booster, trees: Trees) -> None:
    forest = trees.specialise([], dict(enumerate([0.5, -0.5, 1.0, 0.0])), [2.0])
    assert forest.depth == 0
    wanted = booster.inplace_predict(np.float32([[0.5, -0.5, 1.0, 0.0, 2.0]]))
    assert forest.predict(np.zeros((1, 0), dtype=np.float32))[0] == wanted[0]


def test_without_categories() -> None:
    booster = _booster(categorical=False)
    trees = Trees.from_booster(booster.save_raw("json"))
    x = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    np.testing.assert_array_equal(trees.specialise(range(5), {}).predict(x), booster.inplace_predict(x))


def test_a_column_that_is_neither_varying_nor_constant_is_refused(trees: Trees) -> None:
    with pytest.raises(ValueError, match="neither"):
        trees.specialise([0, 1, 2], {}, CODES)


def test_children_that_lead_back_are_refused(trees: Trees) -> None:
    left = trees.left.copy()
    left[0] = 0
    arrays = [getattr(trees, name) for name in trees.__slots__]
    arrays[2] = left
    with pytest.raises(InputError, match="damaged"):
        Trees.from_bytes(Trees(*arrays).to_bytes())


def test_a_model_s_facts_survive_the_disk(trees: Trees) -> None:
    times = BoostedTimes(trees, ("a", "b"), {"x": 0}, 0.5, {"t4|lib": 3.0, "|lib": 2.0})
    again = BoostedTimes.from_files(times.to_files())
    assert (again.columns, again.codes, again.own_weight) == (("a", "b"), {"x": 0}, 0.5)
    assert [again.call_cost_us(g, lib) for g, lib in (("t4", "lib"), ("k80", "lib"), ("t4", "no"))] == [
        3,
        2,
        0,
    ]
