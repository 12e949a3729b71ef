"""Support learned from statuses, and rules for candidates without statuses."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate import Conv, load
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import folds
from surrogate.dataset.store import read_dataset
from surrogate.features.families import CONV
from surrogate.features.families.gemm import Gemm
from surrogate.models import Support
from tests.tables import Table, checked

SOLVERS = [(1, "Gemm1x1"), (1, "Any"), (3, "Any")]


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


def test_a_candidate_is_refused_beyond_sizes_where_all_attempts_failed() -> None:
    rows = [
        {"m": m, "n": n, "k": 64, "algorithm": name, "time_us": 5.0 + m if name == "gemm" or m <= 64 else None}
        for m in (1, 8, 64, 256, 1024)
        for n in (64, 128)
        for name in ("gemm", "gemv")
    ]
    frame = normalise(pd.DataFrame(rows).assign(gpu="v100", library="cublas"), "test")
    support = Support.fit(rows_of(frame))
    family = rows_of(frame).family
    assert Support.from_json(support.to_json(), family) == support
    signature = next(iter(support.general))._replace(algorithm="gemv")
    sizes = Gemm(m=np.array([1, 64, 65, 4096]), n=128, k=64)
    refused, rule = support.limit_refusal("v100-sxm2-16gb", signature, sizes)
    assert (
        refused.tolist() == [False, False, True, True] and rule == "it ran with m up to 64; all attempts beyond failed"
    )
    for others in (("t4", signature), ("v100-sxm2-16gb", signature._replace(algorithm="gemm"))):
        assert not np.any(support.limit_refusal(*others, sizes)[0])


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
        supported = Support.fit(rows.take(fold.train)).supported(holdout)
        correct.append(supported == (holdout.frame["status"] == "ok").to_numpy())
    assert np.concatenate(correct).mean() >= 0.99


def test_solvers_run_only_problems_like_theirs(table: Table) -> None:
    """A solver of 1×1 filters is refused for other filters, measured or not."""
    frame = table(8, gpus=("mi100",), algorithms=("IMPLICIT_GEMM",)).assign(library="miopen", algorithm="GEMM")
    ones = dict.fromkeys(("dilation_h", "dilation_w", "groups", "stride_h", "stride_w", "time_us"), 1)
    frame = frame.assign(**ones, status="ok")
    shapes = [frame.assign(r=r, s=r, pad_h=r // 2, pad_w=r // 2, solver=name) for r, name in SOLVERS]
    support = Support.fit(checked(pd.concat(shapes).drop_duplicates(["n", "c", "h", "w", "k", "r", "solver"])))
    three = next(each for each in support.general if each.traits[:2] == (3, 3))
    seven = three._replace(traits=(7, 7, *three.traits[2:]))
    assert support.solver_refusal(three, "Any") is None is support.solver_refusal(seven, "Any")
    assert "run by this solver" in str(support.solver_refusal(three, "Gemm1x1"))
    assert "only other problems" in str(support.solver_refusal(seven, "Gemm1x1"))
    assert Support.from_json(support.to_json(), CONV) == support


def test_shipped_solvers_of_1x1_filters_are_not_picked_for_others() -> None:
    """MIOpen's table lists `GemmFwd1x1_0_1` for 1×1 filters only."""
    selection = load("mi300x").select(Conv(n=32, c=64, h=56, k=64, r=3, pad_h=1))
    names = [each.solver for each in selection.candidates]
    assert len(names) > 3 and not [name for name in names if name and "1x1" in name]
