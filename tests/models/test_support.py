"""Support learned from statuses, and rules for candidates without statuses."""

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


def test_without_statuses_the_rules_decide_support(table: Table) -> None:
    frame = table(4, gpus=("Tesla T4", "h200"))
    rows = _rows(frame)
    unfitted = Support.fit(_rows(frame.drop(columns="status")))
    assert unfitted == Support({}, {})
    # The synthetic table follows the documented rules, except that Hopper lacks fused Winograd.
    expected = (frame["status"] == "ok") & ~((frame["gpu"] == "h200") & (frame["algorithm"] == "WINOGRAD"))
    np.testing.assert_array_equal(unfitted.supported(rows), expected)


def test_own_statuses_override_rules_and_statuses_of_other_gpus(table: Table) -> None:
    frame = table(1, gpus=("Tesla T4", "TITAN Xp"), batches=(1, 2, 4))
    refused = (frame["gpu"] == "Tesla T4") & (frame["algorithm"] == "FFT")
    frame.loc[refused, "status"] = "not_supported"
    rows = _rows(frame)
    np.testing.assert_array_equal(Support.fit(rows).supported(rows), frame["status"] == "ok")


def test_unseen_gpu_follows_the_majority_of_measured_gpus(table: Table) -> None:
    frame = table(1, gpus=("Tesla T4", "TITAN Xp"), algorithms=("IMPLICIT_GEMM", "FFT"))
    frame.loc[frame["algorithm"] == "FFT", "status"] = "not_supported"
    unseen = _rows(table(1, gpus=("TITAN V",), algorithms=("IMPLICIT_GEMM", "FFT")))
    assert Support.fit(_rows(frame)).supported(unseen).tolist() == [True, False] * 2


def test_failures_and_workspace_limits_do_not_affect_support(table: Table) -> None:
    frame = table(4)
    with_failures = frame.copy()
    with_failures.loc[::3, "status"] = "failed"
    with_failures.loc[1::7, "status"] = "workspace_too_large"
    rows = _rows(frame)
    np.testing.assert_array_equal(Support.fit(_rows(with_failures)).supported(rows), frame["status"] == "ok")


def test_support_of_no_rows_is_empty(table: Table) -> None:
    rows = _rows(table(1))
    assert Support.fit(rows).supported(rows.take(np.array([], dtype=int))).tolist() == []


@pytest.mark.slow
def test_support_of_measured_held_out_shapes_is_predicted(measurements: Path) -> None:
    frame = read_dataset(measurements / "cudnn_conv_per_algorithm.parquet").frame
    frame = frame[(frame["direction"] == "fwd") & (frame["dtype"] == "fp32")].reset_index(drop=True)
    rows = rows_of(frame)
    correct = []
    for fold in folds("shape", CONV, frame, frame.iloc[:0], 5, 0)[:2]:
        holdout = rows.take(fold.test)
        correct.append(
            Support.fit(rows.take(fold.train)).supported(holdout) == (holdout.frame["status"] == "ok").to_numpy()
        )
    assert np.concatenate(correct).mean() >= 0.99
