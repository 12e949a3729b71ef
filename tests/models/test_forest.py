"""`forest`: scikit-learn's forest, kept as plain arrays."""

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.columns import candidate_names, select
from surrogate.models.forest import COLUMNS, Forest

Table = Callable[..., pd.DataFrame]


@pytest.fixture(scope="module")
def rows(table: Table) -> Rows:
    return rows_of(normalise(table(20, batches=(1, 4, 16)), "test"))


@pytest.fixture(scope="module")
def fitted(rows: Rows) -> Forest:
    return Forest(trees=8).fit(rows, seed=3)


def test_it_is_scikit_learns_forest_on_log_time(rows: Rows, fitted: Forest) -> None:
    mine = rows.take((rows.frame["algorithm"] == "IMPLICIT_GEMM").to_numpy() & rows.ok)
    settings = {name: fitted.params[name] for name in ("min_samples_leaf", "max_features", "max_depth")}
    forest = RandomForestRegressor(n_estimators=8, random_state=3, **settings)
    expected = forest.fit(select(mine, COLUMNS), np.log(mine.time_us)).predict(select(mine, COLUMNS))
    np.testing.assert_allclose(np.log(fitted.predict_us(mine)), expected, rtol=1e-12)


def test_it_learns(rows: Rows, fitted: Forest) -> None:
    error = np.abs(np.log(fitted.predict_us(rows)[rows.ok] / rows.time_us[rows.ok]))
    assert np.median(error) < 0.15


def test_predictions_lie_within_the_measured_times(rows: Rows, fitted: Forest) -> None:
    """A mean of leaves cannot leave their range, whatever the problem."""
    far = rows_of(rows.frame.assign(n=4096))
    predicted = fitted.predict_us(far)
    assert np.nanmin(rows.time_us) <= predicted.min() and predicted.max() <= np.nanmax(rows.time_us)


def test_saved_as_json_it_predicts_the_same(rows: Rows, fitted: Forest) -> None:
    files = fitted.save()
    assert set(json.loads(files["trees.json"])) == set(candidate_names(rows.take(rows.ok)))
    again = Forest.load(fitted.params, files)
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))


def test_the_seed_decides(rows: Rows, fitted: Forest) -> None:
    np.testing.assert_array_equal(Forest(trees=8).fit(rows, seed=3).predict_us(rows), fitted.predict_us(rows))
    assert (Forest(trees=8).fit(rows, seed=4).predict_us(rows) != fitted.predict_us(rows)).any()


def test_an_unknown_algorithm_has_no_time(rows: Rows, fitted: Forest) -> None:
    assert np.isnan(fitted.predict_us(rows_of(rows.frame.assign(algorithm="GEMM")))).all()


def test_without_times_there_is_nothing_to_fit(rows: Rows) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        Forest().fit(rows_of(rows.frame.assign(status="failed", time_us=np.nan)))
