"""Gaussian processes on the terms: interpolation, sharing between devices, and the blend with trees."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.dataset.checks import normalise
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.blend import Blend
from surrogate.models.boosted import BoostedTerms
from surrogate.models.columns import roofline_base_us
from surrogate.models.covariance import Covariance
from surrogate.models.gaussian import GaussianTerms
from surrogate.models.places import places, spread

Table = Callable[..., pd.DataFrame]
FEW = {"trees.rounds": 30, "trees.learning_rate": 0.2, "trees.max_depth": 4, "trees.nthread": 1}


def _rows(frame: pd.DataFrame) -> Rows:
    return rows_of(normalise(frame, "test"))


def test_learns_the_correction(table: Table) -> None:
    rows = _rows(table(16, batches=(1, 2, 4, 8, 16, 32), noise=0.0))
    predicted = GaussianTerms().fit(rows).predict_us(rows)
    assert np.median(np.abs(predicted / rows.time_us - 1)[rows.ok]) < 0.05


def test_few_rows_are_interpolated_as_the_textbook_formula_does(table: Table) -> None:
    rows = _rows(table(6, noise=0.0))
    one = rows.take(rows.ok & (rows.frame["algorithm"] == "FFT").to_numpy())
    model = GaussianTerms(inducing=len(one))
    predicted = model.fit(one).predict_us(one)
    place, device = places(one), np.unique(device_names(one.frame).astype(str), return_inverse=True)[1]
    kernel = model.covariance.matrix(place, device, place, device)
    base = roofline_base_us(one)
    target = np.log(one.time_us / base)
    noise = model.params["noise"]
    exact = kernel @ np.linalg.solve(kernel + noise * np.eye(len(one)), target - target.mean())
    np.testing.assert_allclose(np.log(predicted / base), target.mean() + exact, atol=1e-3)


def test_fewer_points_than_rows_still_serve(table: Table) -> None:
    rows = _rows(table(16, batches=(1, 2, 4, 8), noise=0.0))
    predicted = GaussianTerms(inducing=24).fit(rows).predict_us(rows)
    assert np.median(np.abs(predicted / rows.time_us - 1)[rows.ok]) < 0.2


def test_saved_and_loaded_it_predicts_the_same(table: Table) -> None:
    rows = _rows(table(6))
    fitted = GaussianTerms().fit(rows)
    again = GaussianTerms.load(fitted.params, fitted.save())
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))


def test_no_process_for_what_was_hardly_seen(table: Table) -> None:
    rows = _rows(table(6))
    rare = (rows.frame["algorithm"] == "FFT").to_numpy()
    fitted = GaussianTerms().fit(rows.take(~rare))
    assert np.isnan(fitted.predict_us(rows)[rare]).all()
    with pytest.raises(InputError, match="at least 8 ok rows"):
        GaussianTerms().fit(rows.take(np.arange(3)))


def test_the_blend_lies_between_its_parts_and_falls_back_to_the_trees(table: Table) -> None:
    rows = _rows(table(8))
    rare = (rows.frame["algorithm"] == "FFT").to_numpy()
    train = rows.take(~rare | (np.cumsum(rare) <= 4))
    blend = Blend(**FEW).fit(train)
    trees, process, both = (m.predict_us(rows) for m in (blend.trees, blend.process, blend))
    assert np.isnan(process[rare]).all()
    np.testing.assert_array_equal(both[rare], trees[rare])
    low, high = np.minimum(trees, process)[~rare], np.maximum(trees, process)[~rare]
    assert ((low <= both[~rare] * (1 + 1e-12)) & (both[~rare] <= high * (1 + 1e-12))).all()
    again = Blend.load(blend.params, blend.save())
    np.testing.assert_array_equal(again.predict_us(rows), both)


def test_the_blend_leaves_an_unseen_device_to_its_trees(table: Table) -> None:
    blend = Blend(**FEW).fit(_rows(table(8)))
    elsewhere = _rows(table(8).assign(gpu="Tesla K80"))
    np.testing.assert_array_equal(blend.predict_us(elsewhere), blend.trees.predict_us(elsewhere))


def test_the_blend_without_a_process_share_is_the_trees(table: Table) -> None:
    rows = _rows(table(6))
    own = {key.removeprefix("trees."): value for key, value in FEW.items()}
    blend = Blend(**FEW, process_share=0.0).fit(rows, seed=2)
    np.testing.assert_allclose(
        blend.predict_us(rows), BoostedTerms(**own).fit(rows, seed=2).predict_us(rows), rtol=1e-12
    )


def test_the_blend_is_searched_under_prefixed_names() -> None:
    optuna = pytest.importorskip("optuna")
    space = Blend.space(optuna.trial.FixedTrial(dict(Blend().params)))
    assert space and set(space) <= set(Blend().params)
    assert {name.split(".")[0] for name in space} == {"process_share", "trees", "process"}


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 5))
def test_points_are_distinct_and_cover_every_device(count: int, rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    place, owner = draw.normal(0, 0.01, (rows, 3)), draw.integers(0, 3, rows)
    chosen = spread(place, owner, count, seed)
    assert len(set(chosen)) == len(chosen) == min(count, rows)
    if count >= 3:
        assert set(owner[chosen]) == set(owner)


@given(st.floats(0.5, 20), st.floats(0.1, 1), st.integers(2, 25), st.integers(0, 9))
def test_the_covariance_is_one(length: float, shared: float, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    place, device = draw.normal(0, 5, (count, 4)), draw.integers(0, 3, count)
    covariance = Covariance(length, 0.3, 0.05, 0.02, shared)
    matrix = covariance.matrix(place, device, place, device)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9 * np.trace(matrix)
    np.testing.assert_allclose(np.diag(matrix), 0.35 + 1 + 0.02 * (place**2).sum(axis=1), rtol=1e-6)


def test_the_smooth_part_is_the_matern_formula_at_both_lengths() -> None:
    distance = np.linspace(0, 30, 200)
    found = Covariance(4.0, 0.3, 0.05, 0.02, 0.7).smooth(distance**2)
    long, short = (np.sqrt(3) * distance / length for length in (4.0, 1.0))
    expected = 0.3 * (1 + long) * np.exp(-long) + 0.05 * (1 + short) * np.exp(-short)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert (np.diff(found) < 0).all()
