"""`seer-paper` on rows generated from known coefficients, variants, classes and bounds."""

import json
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.columns import ROW_KEY
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.seer import physics as formulas
from surrogate.models.seer.paper import SeerPaper
from surrogate.models.seer.physics import Sizes, gemm_p_tile, launched_blocks, sizes_of, with_kernel_metrics
from tests.known import cases, known_answers
from tests.models.test_seer_formulas import weighted_sum
from tests.models.test_seer_metrics import SETTING

GPU = "TITAN Xp"
TITAN_XP_B_MAX = known_answers(__file__)["titan_xp_b_max"]
"""Resident blocks of a Titan Xp by algorithm and tile."""
WITH_COUNTERS = tuple(TITAN_XP_B_MAX)
CLASS_PCT = ((90.0, 90.0), (70.0, 80.0), (30.0, 30.0))
TIME = ((2e-9, 3.0), (4e-7, 20.0), (3e-7, 5e-10, 15.0, 6e-7))
"""Coefficients of each class's time form, in µs; `factor` of the algorithm, tile and filter multiplies them."""
EVALUATIONS = 6


def grid(algorithm: str) -> pd.DataFrame:
    """Return square problems of one algorithm with N = 64 or 128."""
    winograd = algorithm.startswith("WINOGRAD")
    widths = (3, 5) if algorithm == "WINOGRAD_NONFUSED" else (3,) if winograd else (1, 3, 5)
    strides = (1,) if winograd or algorithm.startswith("FFT") else (1, 2)
    drawn = product((64, 128), (16, 64, 256), (14, 28, 60, 120), (32, 64, 96, 256, 320), widths, strides)
    records = [(n, c, w, w, k, r, r, 0, 0, u, u, 1, 1, 1) for n, c, w, k, r, u in drawn]
    frame = pd.DataFrame(records, columns=list(SIZE_COLUMNS))
    return frame.assign(**SETTING | {"gpu": GPU}, algorithm=algorithm, status="ok")


def tile_of(algorithm: str, s: Sizes) -> np.ndarray:
    """Return tiles by rules that axis-parallel cuts can represent (GEMM-P by its own rule)."""
    tiles = np.array(list(TITAN_XP_B_MAX[algorithm]))
    if algorithm == "IMPLICIT_PRECOMP_GEMM":
        return tiles[gemm_p_tile(s.outputs)]
    if len(tiles) == 2:
        return tiles[(s.outputs > 96).astype(int)]
    return tiles[np.where(s.width <= 14, 0, np.where(s.outputs <= 64, 1, 2))]


def factor(algorithm: str, tile: str, filter_width: int) -> float:
    """Return a factor that makes every variant's coefficients unique (non-fused Winograd: for each filter width)."""
    return 1 + WITH_COUNTERS.index(algorithm) + len(tile) / 7 + filter_width * (algorithm == "WINOGRAD_NONFUSED")


def kernels_of(frame: pd.DataFrame, algorithm: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return (kernel table, time of the whole call in µs) for one algorithm's grid."""
    sizes, key = sizes_of(frame), frame[list(ROW_KEY)]
    winograd = algorithm.startswith("WINOGRAD")
    parts, extra, tiles = [], np.zeros(len(frame)), tile_of(algorithm, sizes)
    for tile, width in product(np.unique(tiles), np.unique(sizes.filter_width)):
        place = np.flatnonzero((tiles == tile) & (sizes.filter_width == width))
        s = Sizes(*(column[place] for column in sizes))
        scale, b_max = factor(algorithm, tile, width), TITAN_XP_B_MAX[algorithm][tile]
        blocks = launched_blocks(algorithm, tile, s)
        depth = s.channels * (1 if winograd else s.filter_width**2)
        reads = scale * (0.25 + 0.5 * (s.width >= 28) + 0.125 * (s.outputs > 64)) * depth
        writes = scale * (16.0 + 8 * (s.outputs > 32))
        instructions = weighted_sum((32 * scale, 100.0), formulas.instruction_terms(algorithm, s))
        w = formulas.waves(blocks, b_max)
        forms = [formulas.time_terms(form, w, b_max, instructions, reads, writes) for form in range(3)]
        bound = np.where(s.channels >= 256, 0, np.where(s.width >= 60, 1, 2))
        fp32_pct, dram_pct = np.array(CLASS_PCT)[bound].T
        time_us = scale * np.choose(bound, list(map(weighted_sum, TIME, forms)))
        counted = {"fp32_instructions": instructions, "dram_read_transactions": reads}
        counted = {name: values * blocks for name, values in (counted | {"dram_write_transactions": writes}).items()}
        counted |= {"fp32_utilization_pct": fp32_pct, "dram_utilization_pct": dram_pct, "time_us": time_us}
        launch = {"kernel_index": 0, "kernel_name": "algo", "tile": tile, "blocks": blocks, "b_max": b_max}
        parts.append(key.iloc[place].assign(**launch, waves=w.count, **counted))
        extra[place] = extra_us(algorithm, s, scale)
    main = pd.concat(parts).sort_index()
    if not extra.any():
        return main, main["time_us"].to_numpy()
    other = key.assign(kernel_index=1, kernel_name="algo_pre", tile="", time_us=extra)
    return pd.concat([main, other], ignore_index=True), main["time_us"].to_numpy() + extra


def extra_us(algorithm: str, s: Sizes, scale: float) -> np.ndarray | float:
    """Return the time of the kernels before and after the main kernel."""
    if algorithm == "GEMM":
        return weighted_sum((2e-6, 3e-4, 7.0), formulas.extra_terms(algorithm, s))
    if algorithm == "WINOGRAD_NONFUSED":
        return weighted_sum([scale * c for c in (1e-5, 1e-6, 2e-5, 9.0)], formulas.extra_terms(algorithm, s))
    return 0.0


def fft_us(algorithm: str, s: Sizes) -> np.ndarray:
    """Return FFT times by width bucket, or FFT_TILING times; both are proportional to the batch."""
    bucket = np.select([s.width <= 16, s.width <= 32, s.width <= 64], [1.0, 2.0, 4.0], 8.0)
    bucket = 1.0 if algorithm == "FFT_TILING" else bucket
    return weighted_sum((0.5, 0.02, 0.3, 40.0), formulas.fft_terms(algorithm, s)) * bucket * s.batch / 128


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (dataset rows, kernel table) of all seven algorithms."""
    frames, kernels = [], []
    for algorithm in WITH_COUNTERS:
        frame = grid(algorithm)
        table, time_us = kernels_of(frame, algorithm)
        frames.append(frame.assign(time_us=time_us))
        kernels.append(table)
    for algorithm in ("FFT", "FFT_TILING"):
        frame = grid(algorithm)
        s = sizes_of(frame)
        frames.append(frame.assign(time_us=fft_us(algorithm, s)))
        if algorithm == "FFT_TILING":
            classes = np.where(s.channels >= 64, 0, 2)
            kernels.append(frame[list(ROW_KEY)].assign(kernel_index=0, kernel_name="c", kernel_class=classes))
    return pd.concat(frames, ignore_index=True), pd.concat(kernels, ignore_index=True)


@pytest.fixture(scope="module")
def fitted(tables: tuple[pd.DataFrame, pd.DataFrame]) -> SeerPaper:
    return SeerPaper(evaluations=EVALUATIONS).fit(rows_of(with_kernel_metrics(*tables)))


@pytest.fixture(scope="module")
def rows(tables: tuple[pd.DataFrame, pd.DataFrame]) -> Rows:
    """Return the same problems without counters."""
    return rows_of(tables[0])


@pytest.mark.parametrize("algorithm", [*WITH_COUNTERS, "FFT", "FFT_TILING"])
def test_fit_recovers_its_training_times(fitted: SeerPaper, rows: Rows, algorithm: str) -> None:
    """The prediction uses only the problem: variant, class, counters and extra kernels are modelled."""
    of_algorithm = rows.take((rows.frame["algorithm"] == algorithm).to_numpy())
    np.testing.assert_allclose(fitted.predict(of_algorithm), of_algorithm.time_us, rtol=1e-6)


@cases(__file__)
def test_prediction_equals_the_hand_calculation(fitted, rows, sizes, time_us) -> None:
    """IMPLICIT_GEMM with N = 64, K = 96 and stride 1: tile 128×128, 120 resident blocks and factor 2."""
    of_problem = sizes | {"algorithm": "IMPLICIT_GEMM", "n": 64, "k": 96, "stride_w": 1}
    row = rows.take(np.logical_and.reduce([rows.frame[name] == value for name, value in of_problem.items()]))
    np.testing.assert_allclose(fitted.predict(row), [time_us], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["GEMM", "WINOGRAD_NONFUSED"])
def test_known_launch_gives_the_time_of_the_main_kernel(fitted, tables, algorithm):
    rows = rows_of(with_kernel_metrics(*tables))
    of_algorithm = rows.take((rows.frame["algorithm"] == algorithm).to_numpy())
    with_launch = SeerPaper.from_files(fitted.get_params() | {"known_launch": True}, fitted.to_files())
    np.testing.assert_allclose(with_launch.predict(of_algorithm), of_algorithm.frame["main_kernel_us"], rtol=1e-6)
    assert (of_algorithm.frame["main_kernel_us"] < of_algorithm.time_us).all()


def test_published_blocks_raise_only_the_times_of_wide_tiles(fitted: SeerPaper, rows: Rows) -> None:
    """The published formula doubles the blocks of wide tiles; the time grows by up to a factor of two."""
    of_algorithm = rows.take((rows.frame["algorithm"] == "WINOGRAD_NONFUSED").to_numpy())
    wide = tile_of("WINOGRAD_NONFUSED", sizes_of(of_algorithm.frame)) == "128x128"
    published = SeerPaper.from_files(fitted.get_params() | {"published_blocks": True}, fitted.to_files())
    ratio = published.predict(of_algorithm) / fitted.predict(of_algorithm)
    assert wide.any() and (ratio[~wide] == 1).all()
    assert ((ratio[wide] > 1) & (ratio[wide] <= 2)).all()


def test_fit_recovers_classes_and_fft_has_no_class(fitted: SeerPaper, rows: Rows) -> None:
    frame = rows.frame
    wide = np.where(frame["c"] >= 256, 0, np.where(frame["w"] >= 60, 1, 2))
    tiled = np.where(frame["c"] >= 64, 0, 2)
    expected = np.select([frame["algorithm"] == "FFT", frame["algorithm"] == "FFT_TILING"], [-1, tiled], wide)
    np.testing.assert_array_equal(fitted.bound(frame), expected)


@pytest.mark.slow
def test_fit_recovers_held_out_rows(tables: tuple[pd.DataFrame, pd.DataFrame], rows: Rows) -> None:
    """A tenth of the grid is held out. The rules lie between grid values, so the trees find exact cuts."""
    holdout = np.random.default_rng(0).random(len(rows)) < 0.1
    train = rows_of(with_kernel_metrics(*tables)).take(~holdout)
    test = rows.take(holdout)
    ratio = SeerPaper(evaluations=EVALUATIONS).fit(train).predict(test) / test.time_us
    np.testing.assert_allclose(ratio, 1.0, rtol=1e-6)


def test_model_survives_writing_and_reading(fitted: SeerPaper, rows: Rows) -> None:
    files = fitted.to_files()
    json.loads(files["seer.json"])
    loaded = SeerPaper.from_files(fitted.get_params(), files)
    np.testing.assert_array_equal(loaded.predict(rows), fitted.predict(rows))


@cases(__file__)
def test_rows_outside_the_domain_get_no_time(fitted: SeerPaper, rows: Rows, changes: dict[str, Any]) -> None:
    frame = rows.frame[rows.frame["algorithm"] == "GEMM"].iloc[:5].reset_index(drop=True)
    assert np.isfinite(fitted.predict(rows_of(frame))).all()
    assert np.isnan(fitted.predict(rows_of(frame.assign(**changes)))).all()


@cases(__file__)
def test_infeasible_rows_get_no_time(fitted: SeerPaper, rows: Rows, algorithm: str, changes: dict[str, Any]) -> None:
    frame = rows.frame.iloc[:3].assign(algorithm=algorithm, **changes).reset_index(drop=True)
    assert np.isnan(fitted.predict(rows_of(frame))).all()


def test_table_without_kernels_is_refused(refused, rows: Rows) -> None:
    with refused("lacks blocks, b_max, fp32_instructions, ", "kernels.parquet"):
        SeerPaper().fit(rows)


def test_error_names_missing_counters(refused, tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """First no row has one counter; then no row has two counters together."""
    frame, kernels = tables
    without_counter = with_kernel_metrics(frame, kernels.drop(columns="fp32_instructions"))
    with refused("the table lacks fp32_instructions; count them with nvprof or ncu"):
        SeerPaper(evaluations=2).fit(rows_of(without_counter))
    with_metrics = with_kernel_metrics(frame, kernels)
    half = np.arange(len(with_metrics)) < len(with_metrics) // 2
    separated = with_metrics.assign(b_max=with_metrics["b_max"].where(half), blocks=with_metrics["blocks"].where(~half))
    with refused("no ok row has all of blocks, b_max, "):
        SeerPaper(evaluations=2).fit(rows_of(separated))
