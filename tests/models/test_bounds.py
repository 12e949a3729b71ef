"""Bounds of censored candidates: which are made, with which time, and where nothing is known."""

from dataclasses import replace

import numpy as np
import pandas as pd

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.models.bounds import bound_rows, unlisted

SIZES = {
    "c": 64, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "stride_h": 1, "stride_w": 1,
    "dilation_h": 1, "dilation_w": 1, "groups": 1,
}  # fmt: skip
CUDNN = {"gpu": "Tesla T4", "library": "cudnn", "library_version": "7.6.3"}
MIOPEN = {"gpu": "AMD Instinct MI210", "library": "miopen", "library_version": "find-db v2"}
FIXED = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}


def _rows(records: list[dict], where: dict) -> Rows:
    frame = pd.DataFrame([{**where, **FIXED, **SIZES, "status": "ok", **record} for record in records])
    return rows_of(normalise(frame, "test"))


def _cudnn(n: int, times: dict[str, float], **sizes: int) -> list[dict]:
    return [{"n": n, "algorithm": name, "time_us": time, **sizes} for name, time in times.items()]


def _listed(n: int, solvers: dict[str, float]) -> list[dict]:
    return [
        {"n": n, "algorithm": name.split("/")[0], "solver": name.split("/")[1], "time_us": time}
        for name, time in solvers.items()
    ]


FULL = _cudnn(1, {"IMPLICIT_GEMM": 30.0, "GEMM": 40.0, "WINOGRAD": 20.0, "FFT": 90.0})


def test_a_partial_problem_bounds_the_others_by_its_best() -> None:
    found = unlisted(_rows([*FULL, *_cudnn(8, {"WINOGRAD": 100.0, "IMPLICIT_GEMM": 150.0})], CUDNN))
    assert sorted(found["algorithm"]) == ["FFT", "GEMM"]
    assert set(found["time_us"]) == {100.0}
    assert set(found["n"]) == {8}


def test_support_is_respected() -> None:
    """Winograd and FFT cannot stride, so they are no candidates that took longer."""
    strided = _cudnn(8, {"IMPLICIT_GEMM": 100.0}, stride_h=2, stride_w=2)
    assert set(unlisted(_rows([*FULL, *strided], CUDNN))["algorithm"]) == {"GEMM"}


def test_a_problem_tried_in_full_bounds_nothing() -> None:
    tried = [
        *_cudnn(8, {"WINOGRAD": 100.0}),
        {"n": 8, "algorithm": "GEMM", "status": "failed", "time_us": np.nan},
    ]
    assert unlisted(_rows([*FULL, *tried], CUDNN)).empty
    assert bound_rows(_rows(FULL, CUDNN)) is None


def test_other_devices_candidates_are_not_borrowed() -> None:
    elsewhere = [{**row, "gpu": "TITAN Xp"} for row in _cudnn(8, {"WINOGRAD": 100.0})]
    assert unlisted(_rows([*FULL, *elsewhere], CUDNN)).empty


def test_a_device_that_no_registry_knows_is_left_out() -> None:
    rows = _rows([*FULL, *_cudnn(8, {"WINOGRAD": 100.0})], CUDNN)
    renamed = replace(rows, frame=rows.frame.assign(gpu="My own GPU"))
    assert unlisted(renamed).empty


def test_a_full_list_of_solvers_bounds_by_its_slowest_and_a_short_one_not() -> None:
    names = ["Direct/A", "Direct/B", "GEMM/G", "Winograd/W", "ImplicitGEMM/I"]
    first = _listed(1, dict(zip(names, (1.0, 2.0, 3.0, 4.0), strict=False)))
    second = _listed(8, dict(zip(names[1:], (50.0, 30.0, 40.0, 10.0), strict=False)))
    short = _listed(16, {"Direct/A": 70.0})
    found = unlisted(_rows([*first, *second, *short], MIOPEN))
    told = {
        (n, solver): time
        for n, solver, time in zip(*(found[c].tolist() for c in ("n", "solver", "time_us")), strict=True)
    }
    assert told == {(1, "I"): 4.0, (8, "A"): 50.0}


def test_a_complete_device_bounds_nothing() -> None:
    """Navi21's find-db keeps the best solver of every algorithm."""
    rows = [*_listed(1, {"Direct/A": 1.0, "GEMM/G": 2.0}), *_listed(8, {"GEMM/G": 2.0})]
    assert unlisted(_rows(rows, MIOPEN | {"gpu": "navi21"})).empty


def test_rows_carry_features_of_their_own() -> None:
    found = bound_rows(_rows([*FULL, *_cudnn(8, {"WINOGRAD": 100.0})], CUDNN))
    assert found is not None
    assert len(found) == 3
    assert found.ok.all()
    assert np.isfinite(found.features).all()
    np.testing.assert_allclose(found.column("log2_n"), 3.0)
