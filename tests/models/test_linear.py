"""Ridge regressions: exact where the truth is linear, by algorithm, saved without loss."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.linear import LinearDims, LinearTerms

Table = Callable[..., pd.DataFrame]
KINDS = [LinearDims, LinearTerms]


def _rows(frame: pd.DataFrame) -> Rows:
    return rows_of(normalise(frame, "test"))


@pytest.fixture
def power_law(table: Table) -> pd.DataFrame:
    """Times that are a power law of the sizes, another one for each algorithm: linear in the logarithms."""
    frame = table(16, batches=(1, 2, 8, 32))
    power = frame["algorithm"].map(
        {"IMPLICIT_GEMM": 1.0, "IMPLICIT_PRECOMP_GEMM": 0.8, "FFT": 0.5, "WINOGRAD": 0.9}
    )
    time_us = 3.0 * frame["n"] ** power * frame["c"] ** 0.7 * np.where(frame["gpu"] == "Tesla T4", 2.0, 1.0)
    return frame.assign(time_us=time_us.where(frame["status"] == "ok"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_power_law_is_found_again(power_law: pd.DataFrame, kind: type[LinearDims]) -> None:
    rows = _rows(power_law)
    fitted = kind(alpha=1e-6).fit(rows)
    predicted = fitted.predict_us(rows)
    np.testing.assert_allclose(predicted[rows.ok], rows.time_us[rows.ok], rtol=1e-3)
    assert (predicted > 0).all() and np.isfinite(predicted).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_heavy_penalty_leaves_each_algorithms_geometric_mean(
    power_law: pd.DataFrame, kind: type[LinearDims]
) -> None:
    rows = _rows(power_law)
    predicted = kind(alpha=1e12).fit(rows).predict_us(rows)
    for name, part in power_law[rows.ok].groupby("algorithm"):
        mine = (power_law["algorithm"] == name).to_numpy()
        np.testing.assert_allclose(predicted[mine], np.exp(np.log(part["time_us"]).mean()), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_predicts_the_same_bits(power_law: pd.DataFrame, kind: type[LinearDims]) -> None:
    rows = _rows(power_law)
    fitted = kind(alpha=0.5).fit(rows)
    again = kind.load(fitted.params, fitted.save())
    assert again.params == {"alpha": 0.5}
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_fitting_changes_neither_the_model_nor_the_rows(
    power_law: pd.DataFrame, kind: type[LinearDims]
) -> None:
    rows = _rows(power_law)
    features, frame = rows.features.copy(), rows.frame.copy(deep=True)
    model = kind()
    first = model.fit(rows)
    assert model._fits == {} and first is not model
    np.testing.assert_array_equal(rows.features, features)
    pd.testing.assert_frame_equal(rows.frame, frame)
    np.testing.assert_array_equal(model.fit(rows).predict_us(rows), first.predict_us(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_algorithms_and_gpus_get_the_overall_fit(
    table: Table, power_law: pd.DataFrame, kind: type[LinearDims]
) -> None:
    fitted = kind().fit(_rows(power_law))
    new = _rows(table(3, gpus=("TITAN V",), algorithms=("GEMM", "IMPLICIT_GEMM")))
    predicted = fitted.predict_us(new)
    assert np.isfinite(predicted).all() and (predicted > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_did_not_run_are_not_learned_from(power_law: pd.DataFrame, kind: type[LinearDims]) -> None:
    lies = power_law.assign(time_us=power_law["time_us"].fillna(1e9))
    rows = _rows(power_law)
    np.testing.assert_array_equal(kind().fit(_rows(lies)).predict_us(rows), kind().fit(rows).predict_us(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_learn_from(table: Table, kind: type[LinearDims]) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        kind().fit(_rows(table(1).assign(status="failed")))


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_is_enough_and_no_row_can_be_asked(table: Table, kind: type[LinearDims]) -> None:
    rows = _rows(table(1))
    fitted = kind().fit(rows.take(np.array([0])))
    assert fitted.predict_us(rows)[0] == pytest.approx(rows.time_us[0])
    assert len(fitted.predict_us(rows.take(np.array([], dtype=int)))) == 0
