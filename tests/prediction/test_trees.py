"""Trees from a booster's file: to the bit what XGBoost computes, missing values and boundaries included."""

from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.models.booster_file import UnsupportedTreesError
from surrogate.models.ubj import decode, encode
from surrogate.prediction.bulk import Bulk, booster_file
from surrogate.prediction.forest import CHUNK_ROWS
from surrogate.prediction.trees import Trees

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
    settings = {"max_depth": 5, "nthread": 1, "verbosity": 0, **params}
    return xgboost.train(settings, data, num_boost_round=25)


@pytest.fixture(scope="module")
def booster() -> xgboost.Booster:
    return _booster()


@pytest.fixture(scope="module")
def trees(booster: xgboost.Booster) -> Trees:
    return Trees.from_ubj(bytes(booster.save_raw("ubj")))


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
    assert trees.category_column == 4 and trees.members
    forest = trees.specialise([0, 1, 2, 3], {}, CODES)
    numbers = _boundary_rows(trees, rows, seed=rows)
    index = np.random.default_rng(rows).integers(0, len(CODES), rows)
    wanted = booster.inplace_predict(np.column_stack([numbers, np.float32(CODES)[index]]))
    found = forest.predict(np.hstack([numbers, forest.patterns[index]]))
    np.testing.assert_array_equal(found, wanted)


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
    forest = trees.specialise(varying, {column: values[column] for column in fixed}, [code])
    assert forest.patterns.shape == (1, 0)
    row = np.float32([*values, code])
    wanted = booster.inplace_predict(row[None])
    assert forest.predict(row[None, varying])[0] == wanted[0]


def test_all_constant_is_a_number(booster: xgboost.Booster, trees: Trees) -> None:
    forest = trees.specialise([], dict(enumerate([0.5, -0.5, 1.0, 0.0])), [2.0])
    assert forest.depth == 0 and len(forest.child) == len(forest.roots)
    wanted = booster.inplace_predict(np.float32([[0.5, -0.5, 1.0, 0.0, 2.0]]))
    assert forest.predict(np.zeros((1, 0), dtype=np.float32))[0] == wanted[0]


def test_a_numeric_code_varies_like_any_column() -> None:
    booster = _booster(categorical=False)
    trees = Trees.from_ubj(bytes(booster.save_raw("ubj")))
    assert trees.category_column is None
    x = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    np.testing.assert_array_equal(trees.specialise(range(5), {}).predict(x), booster.inplace_predict(x))


def test_a_specialised_forest_is_a_booster_again(booster: xgboost.Booster, trees: Trees) -> None:
    bulk = Bulk(trees, [0, 1, 2], {3: 0.25}, CODES)
    x = _boundary_rows(trees, 500, seed=1)
    x[:, 3] = 0.25
    for place, code in enumerate(CODES):
        wanted = booster.inplace_predict(np.column_stack([x, np.full(500, code, dtype=np.float32)]))
        np.testing.assert_array_equal(bulk.score(np.ascontiguousarray(x[:, :3]), place), wanted)


def test_bulk_pays_after_many_rows_only(trees: Trees) -> None:
    bulk = Bulk(trees, [0, 1, 2, 3], {}, CODES)
    assert not bulk.pays(0, 100)
    assert not bulk.pays(0, 5000)
    assert bulk.pays(0, 5000)
    assert not bulk.pays(1, 5000)
    assert not any(bulk.pays(2, 10) for _ in range(2000))


def test_a_column_that_is_neither_is_refused(trees: Trees) -> None:
    with pytest.raises(ValueError, match="neither varying nor constant"):
        trees.specialise([0, 1, 2], {}, CODES)


def test_boosters_that_are_more_than_a_sum_are_left_to_xgboost() -> None:
    cases = {
        "transforms": {"objective": "count:poisson"},
        "not a gbtree": {"booster": "dart"},
    }
    for words, params in cases.items():
        random = np.random.default_rng(0)
        data = xgboost.DMatrix(random.normal(size=(50, 2)), label=random.integers(0, 5, 50))
        booster = xgboost.train({"verbosity": 0, **params}, data, num_boost_round=2)
        with pytest.raises(UnsupportedTreesError, match=words):
            Trees.from_ubj(bytes(booster.save_raw("ubj")))


def test_children_that_lead_back_are_refused(trees: Trees) -> None:
    model = decode(booster_file(trees.specialise([0, 1, 2, 3], {}, [1.0]), 4))
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    tree["left_children"][0] = 0
    with pytest.raises(InputError, match="children do not fit"):
        Trees.from_ubj(encode(model))
