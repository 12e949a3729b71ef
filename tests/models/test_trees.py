"""Trees as arrays: equal to XGBoost's sums to the bit, with missing values, categories and thresholds."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings, strategies as st

from surrogate.models.call_cost import CallKey, call_cost_us
from surrogate.models.times import BoostedArrays
from surrogate.models.trees import Trees


@pytest.fixture(scope="module")
def booster() -> xgboost.Booster:
    """Return trees of more than 64 leaves on four numbers and a code, with a tenth of the values missing."""
    random = np.random.default_rng(3)
    x = random.normal(size=(3000, 5)).astype(np.float32)
    x[:, 4] = random.integers(0, 5, len(x))
    y = x[:, 0] * np.where(x[:, 4] % 2 == 1, 2.0, -1.0) + np.abs(x[:, 1]) + 0.1 * x[:, 4]
    x[random.random(x.shape) < 0.1] = np.nan
    parameters = {"max_depth": 9, "max_leaves": 150, "grow_policy": "lossguide", "min_child_weight": 2}
    return xgboost.train({**parameters, "nthread": 1}, xgboost.DMatrix(x, label=y), num_boost_round=25)


@pytest.fixture(scope="module")
def trees(booster: xgboost.Booster) -> Trees:
    return Trees.from_bytes(Trees.from_booster(booster.save_raw("json")).to_bytes())


def _boundary_rows(trees: Trees, count: int, seed: int) -> np.ndarray:
    """Return rows of thresholds, the floats next to them, and missing values."""
    random = np.random.default_rng(seed)
    x = np.empty((count, 5), dtype=np.float32)
    for column in range(5):
        threshold = random.choice(trees.value[(trees.feature == column) & (trees.left >= 0)], count)
        side = random.choice(np.array([-np.inf, np.inf], dtype=np.float32), count)
        x[:, column] = np.where(random.random(count) < 0.5, threshold, np.nextafter(threshold, side))
    x[random.random(x.shape) < 0.05] = np.nan
    x[random.random(x.shape) < 0.05] = -np.nan
    return x


@pytest.mark.parametrize("rows", [1, 7, 200])
def test_sums_equal_xgboost_to_the_bit(booster: xgboost.Booster, trees: Trees, rows: int) -> None:
    x = _boundary_rows(trees, rows, seed=rows)
    for values in (x, np.nan_to_num(x), np.where(np.isnan(x), np.float32(np.inf), x)):
        np.testing.assert_array_equal(trees.sums(values), booster.inplace_predict(values))
        np.testing.assert_array_equal(trees.booster(5).inplace_predict(values), booster.inplace_predict(values))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sets(st.integers(0, 4)), st.lists(st.floats(-2, 2, width=32) | st.just(float("nan")), min_size=5, max_size=5))
def test_specialised_trees_predict_the_same(booster, trees, fixed, values):
    varying = [column for column in (3, 1, 4, 0, 2) if column not in fixed]  # in any order
    cut = trees.specialise([-1, *varying], {column: values[column] for column in fixed})
    row = np.float32([values])
    x = np.concatenate([np.zeros((1, 1), dtype=np.float32), row[:, varying]], axis=1)
    expected = booster.inplace_predict(row)
    assert cut.sums(x) == expected
    assert cut.booster(x.shape[1]).inplace_predict(x) == expected


def test_trees_with_all_columns_constant_have_one_node_each(booster: xgboost.Booster, trees: Trees) -> None:
    values = [0.5, -0.5, 1.0, 0.0, 2.0]
    cut = trees.specialise([-1], dict(enumerate(values)))
    assert len(cut.feature) == len(trees.roots)
    score = cut.sums(np.zeros((1, 1), dtype=np.float32))
    assert score == booster.inplace_predict(np.float32([values]))


def test_column_that_is_neither_varying_nor_constant_is_refused(trees: Trees) -> None:
    with pytest.raises(ValueError, match="neither"):
        trees.specialise([0, 1, 2, 3], {})


def test_cyclic_children_are_refused(refused, trees: Trees) -> None:
    left = trees.left.copy()
    left[0] = 0
    with refused("damaged"):
        Trees.from_bytes(replace(trees, left=left).to_bytes())


def test_boosted_times_survive_writing_and_reading(trees: Trees) -> None:
    call_us = {CallKey("t4", "lib"): 3.0, CallKey("", "lib"): 2.0}
    arrays = BoostedArrays(trees, ("a", "b", "c", "d"), {"x": 0}, algorithm_weight=0.5, call_us=call_us)
    assert json.loads(arrays.to_files()["times.json"])["call_us"] == {"t4|lib": 3.0, "|lib": 2.0}
    loaded = BoostedArrays.from_files(arrays.to_files())
    assert (loaded.columns, loaded.codes, loaded.algorithm_weight) == (("a", "b", "c", "d"), {"x": 0}, 0.5)
    costs = [call_cost_us(loaded.call_us, g, lib) for g, lib in (("t4", "lib"), ("k80", "lib"), ("t4", "no"))]
    assert costs == [3, 2, 0]
