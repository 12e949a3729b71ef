"""`seer-time-only`: terms by hand, tiles, fallbacks, and its error on measured data."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import fold_of_names
from surrogate.dataset.store import read_dataset
from surrogate.features.algorithms import MECHANISM_CODE
from surrogate.features.gpu import gpu
from surrogate.features.roofline import mechanism_b_max
from surrogate.models.base import TimeModel
from surrogate.models.baselines import Roofline
from surrogate.models.json_types import from_json_types, to_json_types
from surrogate.models.seer.time_only import MechanismTerms, SeerTimeOnly, TileFit, mechanism_terms
from tests.tables import Table, checked

ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "FFT", "WINOGRAD", "WINOGRAD_NONFUSED")


@pytest.fixture(scope="module")
def measured(table: Table) -> Rows:
    """Return every algorithm on two GPUs, with noise."""
    return _with_tiling(table(24, batches=(1, 8, 32), algorithms=ALGORITHMS))


def _with_tiling(frame: pd.DataFrame) -> Rows:
    """Return the rows, plus FFT_TILING with the times of FFT."""
    tiling = frame[frame["algorithm"] == "FFT"].assign(algorithm="FFT_TILING")
    return checked(pd.concat([frame, tiling]))


def _first_row_terms(table: Table, algorithm: str, mechanism: str) -> tuple[MechanismTerms, pd.Series]:
    """Return the terms of the synthetic table's first row (1×16×7×7, 16 filters of 3×3, padded) at batch 128."""
    frame = table(1, batches=(128,), gpus=("TITAN Xp",), algorithms=(algorithm,))
    return mechanism_terms(checked(frame), MECHANISM_CODE[mechanism]), frame.iloc[0]


def test_gemm_terms_equal_the_hand_calculation(table: Table) -> None:
    """On a TITAN Xp, tile 64×128 makes ⌈128·49/64⌉·⌈16/128⌉ = 98 blocks; the depth is 9·16 = 144."""
    a, _ = _first_row_terms(table, "IMPLICIT_GEMM", "implicit_gemm")
    device, slots = gpu("TITAN Xp"), mechanism_b_max(gpu("TITAN Xp"), "implicit_gemm")[1]
    assert slots >= 98, "one wave, the last and only"
    instructions = 144 * 64 * 128 / 32 / (1e6 * device.fp32_tflops)
    np.testing.assert_allclose(a.terms[1][0][0], [slots * instructions, 1, 0], rtol=1e-6)
    moved = 98 * ((64 + 128) * 144 + 64 * 128) * 4 / 32 / (1e3 * device.dram_gbs)
    np.testing.assert_allclose(a.terms[1][1][0], [moved, 1, 0], rtol=1e-6)
    assert (a.bound[0], a.span[0], a.tile[0]) == (2, 0, -1)


def test_fft_terms_except_the_filters_scale_with_the_batch(table: Table) -> None:
    frame = table(1, batches=(64, 128), gpus=("TITAN Xp",), algorithms=("FFT",))
    half, full = mechanism_terms(checked(frame), MECHANISM_CODE["fft"]).terms[0][0]
    np.testing.assert_allclose(half[:4] * 2, full[:4])
    np.testing.assert_array_equal(half[4:], full[4:])
    assert full[3] == 1.0 and full[5] == 1.0


def test_fft_tiling_terms_count_the_tiles(table: Table) -> None:
    """56×56 outputs of 3×3 filters need ⌈56/30⌉² = 4 tiles."""
    frame = table(1, batches=(128,), algorithms=("FFT",)).assign(algorithm="FFT_TILING", h=56, w=56)
    assert mechanism_terms(checked(frame), MECHANISM_CODE["fft_tiling"]).terms[0][0][0, 3] == 4.0


def test_each_range_of_outputs_gets_its_best_tile() -> None:
    """Narrow rows have times of tile 0, wide rows times of tile 2."""
    random = np.random.default_rng(0)
    terms = tuple((np.column_stack([random.uniform(50, 100, 80), np.ones(80)]),) for _ in range(3))
    span = np.repeat([0, 3], 40)
    time_us = np.where(span == 0, terms[0][0] @ [2.0, 5.0], terms[2][0] @ [2.2, 1.0])
    a = MechanismTerms("implicit_gemm", 0 * span, span, 0 * span - 1, terms)
    fit = TileFit.fit(a, 0, np.arange(80), time_us)
    assert (fit.tile_of[0], fit.tile_of[3]) == (0, 2)
    np.testing.assert_allclose(fit.predict(a, 0, np.arange(80)), time_us)
    assert from_json_types(TileFit, to_json_types(fit)) == fit


def test_times_are_finite_and_positive_everywhere(measured: Rows, table: Table) -> None:
    fitted = SeerTimeOnly().fit(measured)
    strange = _with_tiling(
        table(20, batches=(1, 777), gpus=("Tesla K80", "A100-SXM4-40GB"), algorithms=ALGORITHMS, version="9")
    )
    for rows in (measured, strange):
        predicted = fitted.predict(rows)
        assert np.isfinite(predicted).all() and (predicted > 0).all()


def test_small_group_uses_the_fit_of_other_versions(table: Table) -> None:
    """Version 8.0 has four rows, fewer than eight, so version 7.6.3 predicts them."""
    old = table(24, batches=(1, 8), gpus=("Tesla T4",), algorithms=("IMPLICIT_GEMM",))
    few = old.iloc[:4].assign(library_version="8.0", time_us=1e6)
    shared = SeerTimeOnly(least_rows=8).fit(checked(pd.concat([old, few])))
    assert not any("|8.0|" in key for key in shared.fits_)
    separate = SeerTimeOnly(least_rows=2).fit(checked(pd.concat([old, few])))
    query = checked(few)
    assert np.median(separate.predict(query)) > 3 * np.median(shared.predict(query))


def _held_out_error(model: TimeModel, rows: Rows) -> float:
    """Return the median error of the time with a fifth of the shapes held out."""
    names = shape_names(rows.frame, rows.family)
    fold_of = fold_of_names(names, 5, 0)
    holdout = np.array([fold_of[name] == 0 for name in names])
    test = rows.take(holdout & rows.ok)
    predicted = model.fit(rows.take(~holdout)).predict(test)
    assert (predicted > 0).all()
    return float(np.median(np.abs(predicted / test.time_us - 1)))


def test_median_error_on_measured_held_out_shapes_is_below_20_percent(measurements: Path) -> None:
    """The rows are ungrouped fp32 forward convolutions of a Titan Xp."""
    frame = read_dataset(measurements / "cudnn_conv_per_algorithm.parquet").frame
    frame = frame[(frame["gpu"] == "TITAN Xp") & (frame["groups"] == 1) & (frame["dtype"] == "fp32")]
    rows = rows_of(frame[frame["direction"] == "fwd"].reset_index(drop=True))
    assert _held_out_error(SeerTimeOnly(), rows) < 0.2


def test_device_described_only_by_its_dataset_is_fitted(refused, measurements: Path) -> None:
    """The registry lacks this CPU, and the fits at least halve the roofline's error."""
    data = read_dataset(measurements / "cpu_reference.parquet")
    with refused("unknown"):
        gpu(*data.devices)
    rows = rows_of(data.frame, devices=data.devices)
    assert _held_out_error(SeerTimeOnly(), rows) < 0.3 < 0.6 < _held_out_error(Roofline(), rows)
