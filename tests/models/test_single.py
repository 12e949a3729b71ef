"""`always-best-single` on a table small enough to rank by hand."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.models.single import AlwaysBestSingle

Table = Callable[..., pd.DataFrame]
NAMES = ("IMPLICIT_GEMM", "FFT", "WINOGRAD")


def _rows(table: Table, times: list[list[float]], gpu: str = "Tesla T4") -> Rows:
    """One problem per list; NaN marks an algorithm that did not run."""
    frame = table(len(times), batches=(1,), gpus=(gpu,), algorithms=NAMES)
    flat = np.array(times).ravel()
    status = np.where(np.isnan(flat), "not_supported", "ok")
    return rows_of(normalise(frame.assign(time_us=flat, status=status), "test"))


def test_costs_by_hand(table: Table) -> None:
    # Slowdowns: 1, 4, 2 / 1, 1, – : Winograd is missing in the second, where the slowest is 1, log 0.
    rows = _rows(table, [[10, 40, 20], [30, 30, np.nan]])
    cost = AlwaysBestSingle().fit(rows).predict_us(rows)
    assert cost[:3] == pytest.approx([0, np.log(4) / 2, np.log(2) / 2])
    assert cost.tolist()[:3] == cost.tolist()[3:]


def test_what_cannot_run_counts_as_the_slowest(table: Table) -> None:
    # Winograd is best where it runs (once), yet counts as 4 in the two others.
    rows = _rows(table, [[10, 40, 9], [10, 40, np.nan], [10, 40, np.nan]])
    cost = AlwaysBestSingle().fit(rows).predict_us(rows)[:3]
    expected = [np.log(10 / 9) / 3, (np.log(40 / 9) + 2 * np.log(4)) / 3, 2 * np.log(4) / 3]
    assert cost == pytest.approx(expected)


def test_each_gpu_has_its_own_ranks_and_a_new_one_the_overall(table: Table) -> None:
    t4, xp = _rows(table, [[10, 20, 40]]), _rows(table, [[40, 20, 10]], "TITAN Xp")
    both = rows_of(pd.concat([t4.frame, xp.frame], ignore_index=True))
    model = AlwaysBestSingle().fit(both)
    assert np.argsort(model.predict_us(t4)).tolist() == [0, 1, 2]
    assert np.argsort(model.predict_us(xp)).tolist() == [2, 1, 0]
    new = model.predict_us(_rows(table, [[1, 1, 1]], "TITAN V"))
    assert new == pytest.approx([np.log(4) / 2, np.log(2), np.log(4) / 2])


def test_an_unseen_algorithm_is_nan(table: Table) -> None:
    model = AlwaysBestSingle().fit(_rows(table, [[1, 2, 3]]))
    other = rows_of(normalise(table(1, batches=(1,), gpus=("Tesla T4",), algorithms=("GEMM", "FFT")), "test"))
    assert np.isnan(model.predict_us(other)).tolist() == [True, False]


def test_solvers_are_ranked_where_the_table_has_them(table: Table) -> None:
    frame = table(1, batches=(1,), gpus=("Tesla T4",), algorithms=("GEMM",))
    both = pd.concat(
        [frame.assign(solver="a", time_us=9.0), frame.assign(solver="b", time_us=3.0)], ignore_index=True
    )
    rows = rows_of(normalise(both, "test"))
    assert AlwaysBestSingle().fit(rows).predict_us(rows) == pytest.approx([np.log(3), 0])


def test_saved_and_loaded_it_is_the_same_and_fitting_leaves_the_first_alone(table: Table) -> None:
    rows = _rows(table, [[10, 40, 20], [30, 31, np.nan]])
    model = AlwaysBestSingle()
    fitted = model.fit(rows)
    assert model._cost == {} and not AlwaysBestSingle.predicts_time
    again = AlwaysBestSingle.load(fitted.params, fitted.save())
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))


def test_nothing_to_learn_from(table: Table) -> None:
    with pytest.raises(InputError, match="at least one ok row"):
        AlwaysBestSingle().fit(_rows(table, [[np.nan] * 3]))
