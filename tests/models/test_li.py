"""`li-et-al`: exact where its law holds, per GPU and algorithm."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.li import LiEtAl

Table = Callable[..., pd.DataFrame]


def _rows(frame: pd.DataFrame) -> Rows:
    return rows_of(normalise(frame, "test"))


def test_its_own_law_comes_back(table: Table) -> None:
    """The invented times are launch + speed · FLOPs, each GPU and algorithm with its own speed."""
    rows = _rows(table(24, batches=(1, 8), noise=0.0))
    ungrouped = rows.take((rows.frame["groups"] == 1).to_numpy() & rows.ok)
    predicted = LiEtAl().fit(ungrouped).predict_us(ungrouped)
    np.testing.assert_allclose(predicted, ungrouped.time_us, rtol=1e-4)


def test_coefficients_are_never_negative_and_times_positive(table: Table) -> None:
    rows = _rows(table(24, noise=1.0))
    fitted = LiEtAl().fit(rows)
    assert min(min(c) for c in fitted._coefficients.values()) >= 0
    assert (fitted.predict_us(rows) > 0).all()


def test_a_new_gpu_is_scaled_by_its_peak(table: Table) -> None:
    """Efficiencies learned on the T4 serve the V100: about its peak's ratio (14.1–15.7 over 8.1 TFLOP/s) faster."""
    big = {"batches": (64,), "algorithms": ("IMPLICIT_GEMM",), "noise": 0.0}
    fitted = LiEtAl().fit(_rows(table(40, gpus=("Tesla T4",), **big)))
    mine = _rows(table(40, gpus=("Tesla T4",), **big))
    other = _rows(table(40, gpus=("Tesla V100-SXM2-16GB",), **big))
    speedup = fitted.predict_us(mine) / fitted.predict_us(other)
    largest = np.argmax(mine.time_us)
    assert 1.6 < speedup[largest] < 2.1


def test_a_gpu_with_few_rows_takes_the_common_fit(table: Table) -> None:
    many = table(24, gpus=("Tesla T4",), algorithms=("IMPLICIT_GEMM",))
    few = table(2, gpus=("TITAN Xp",), algorithms=("IMPLICIT_GEMM",))
    keys = LiEtAl(least_rows=8).fit(_rows(pd.concat([many, few])))._coefficients
    assert any("t4" in key for key in keys)
    assert not any("titan-xp" in key for key in keys)


def test_an_unknown_algorithm_has_no_time(table: Table) -> None:
    fitted = LiEtAl().fit(_rows(table(8, algorithms=("GEMM",))))
    assert np.isnan(fitted.predict_us(_rows(table(8, algorithms=("FFT",))))).all()


def test_saved_and_loaded_it_predicts_the_same(table: Table) -> None:
    rows = _rows(table(12))
    fitted = LiEtAl(least_rows=5).fit(rows)
    again = LiEtAl.load(fitted.params, fitted.save())
    assert again.params == {"least_rows": 5}
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))


def test_without_times_there_is_nothing_to_fit(table: Table) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        LiEtAl().fit(_rows(table(2).assign(status="failed", time_us=np.nan)))
