"""Support learned from statuses, with rules where nothing like it was seen."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import folds
from surrogate.dataset.store import read_dataset
from surrogate.features.families import CONV
from surrogate.models import Support
from tests.tables import checked

Table = Callable[..., pd.DataFrame]


def _rows(frame: pd.DataFrame) -> Rows:
    if "status" in frame:
        return checked(frame)
    return rows_of(normalise(frame.assign(status="ok", time_us=1.0), "test").drop(columns=["status", "time_us"]))


def test_without_any_status_the_rules_decide(table: Table) -> None:
    frame = table(4, gpus=("Tesla T4", "h200"))
    rows = _rows(frame)
    unfitted = Support.fit(_rows(frame.drop(columns="status")))
    assert unfitted == Support({}, {})
    # The invented table follows the documented rules, but for fused Winograd, gone on Hopper.
    expected = (frame["status"] == "ok") & ~((frame["gpu"] == "h200") & (frame["algorithm"] == "WINOGRAD"))
    np.testing.assert_array_equal(unfitted.supported(rows), expected)


def test_statuses_win_over_rules(table: Table) -> None:
    frame = table(4, gpus=("Tesla T4",))
    frame.loc[frame["algorithm"] == "IMPLICIT_GEMM", "status"] = "not_supported"
    rows = _rows(frame)
    learned = Support.fit(rows).supported(rows)
    np.testing.assert_array_equal(learned, frame["status"] == "ok")


def test_a_gpus_own_statuses_win_over_those_of_others(table: Table) -> None:
    frame = table(1, gpus=("Tesla T4", "TITAN Xp"), batches=(1, 2, 4))
    odd = (frame["gpu"] == "Tesla T4") & (frame["algorithm"] == "FFT")
    frame.loc[odd, "status"] = "not_supported"
    rows = _rows(frame)
    np.testing.assert_array_equal(Support.fit(rows).supported(rows), frame["status"] == "ok")


def test_another_gpu_borrows_the_majority_of_those_seen(table: Table) -> None:
    frame = table(1, gpus=("Tesla T4", "TITAN Xp"), algorithms=("IMPLICIT_GEMM", "FFT"))
    frame.loc[frame["algorithm"] == "FFT", "status"] = "not_supported"
    other = _rows(table(1, gpus=("TITAN V",), algorithms=("IMPLICIT_GEMM", "FFT")))
    assert Support.fit(_rows(frame)).supported(other).tolist() == [True, False] * 2


def test_failures_and_workspace_limits_say_nothing_about_support(table: Table) -> None:
    frame = table(4)
    troubled = frame.copy()
    troubled.loc[::3, "status"] = "failed"
    troubled.loc[1::7, "status"] = "workspace_too_large"
    rows = _rows(frame)
    np.testing.assert_array_equal(Support.fit(_rows(troubled)).supported(rows), frame["status"] == "ok")


def test_saved_and_loaded(table: Table) -> None:
    rows = _rows(table(6))
    fitted = Support.fit(rows)
    again = Support.from_json(fitted.to_json(), rows.family)
    assert again == fitted and again.to_json() == fitted.to_json()
    np.testing.assert_array_equal(again.supported(rows), fitted.supported(rows))


def test_no_row_can_be_asked(table: Table) -> None:
    rows = _rows(table(1))
    assert Support.fit(rows).supported(rows.take(np.array([], dtype=int))).tolist() == []


@pytest.mark.slow
def test_held_out_shapes_of_measured_data_are_foretold(measurements: Path) -> None:
    frame = read_dataset(measurements / "cudnn_conv_per_algorithm.parquet").frame
    frame = frame[(frame["direction"] == "fwd") & (frame["dtype"] == "fp32")].reset_index(drop=True)
    rows = rows_of(frame)
    right = []
    for fold in folds("shape", CONV, frame, frame.iloc[:0], 5, 0)[:2]:
        holdout = rows.take(fold.test)
        right.append(
            Support.fit(rows.take(fold.train)).supported(holdout) == (holdout.frame["status"] == "ok").to_numpy()
        )
    assert np.concatenate(right).mean() >= 0.99


def test_rules_of_a_gpu_come_before_statuses_of_others(table: Table) -> None:
    """Fused Winograd ran on the T4 and is gone on Hopper, whatever ran elsewhere."""
    fitted = Support.fit(_rows(table(4, gpus=("Tesla T4",))))
    query = table(4, gpus=("h200",))
    gone = (query["algorithm"] == "WINOGRAD").to_numpy()
    assert not fitted.supported(_rows(query))[gone].any()
    np.testing.assert_array_equal(fitted.supported(_rows(query))[~gone], (query["status"] == "ok").to_numpy()[~gone])
