"""`seer-paper` on rows generated from known coefficients, variants, classes and bounds."""

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.columns import ROW_KEY
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.seer import physics as formulas
from surrogate.models.seer.kernels import gemm_p_tile, with_kernel_metrics
from surrogate.models.seer.paper import SeerPaper
from surrogate.models.seer.physics import Sizes, launched_blocks, sizes_of
from tests.known import cases, known_answers
from tests.models.test_seer_metrics import SETTING

ANSWERS = known_answers(__file__)

GPU = "TITAN Xp"
TITAN_XP_B_MAX = ANSWERS["titan_xp_b_max"]
"""Algorithm → tile → blocks that a Titan Xp holds at once."""
COUNTED = tuple(TITAN_XP_B_MAX)
CLASS_PCT = ((90.0, 90.0), (70.0, 80.0), (30.0, 30.0))
TIME = ((2e-9, 3.0), (4e-7, 20.0), (3e-7, 5e-10, 15.0, 6e-7))
"""By class the coefficients of its time form, in µs; multiplied by `factor` of the algorithm, tile and filter."""
EVALUATIONS = 6


def weighted_sum(coefficients: Sequence[float], terms: formulas.Terms) -> Any:
    return sum(coefficient * term for coefficient, term in zip(coefficients, terms, strict=True))


def grid(algorithm: str) -> pd.DataFrame:
    """Square problems of one algorithm, N = 64 or 128."""
    winograd = algorithm.startswith("WINOGRAD")
    widths = (3, 5) if algorithm == "WINOGRAD_NONFUSED" else (3,) if winograd else (1, 3, 5)
    strides = (1,) if winograd or algorithm.startswith("FFT") else (1, 2)
    records = [
        dict(zip(SIZE_COLUMNS, (n, c, w, w, k, r, r, 0, 0, u, u, 1, 1, 1), strict=True))
        for n, c, w, k, r, u in product(
            (64, 128), (16, 64, 256), (14, 28, 60, 120), (32, 64, 96, 256, 320), widths, strides
        )
    ]
    return pd.DataFrame(records).assign(**SETTING | {"gpu": GPU}, algorithm=algorithm, status="ok")


def tile_of(algorithm: str, s: Sizes) -> np.ndarray:
    """Tiles by rules that axis-parallel cuts can tell (and GEMM-P's own)."""
    tiles = np.array(list(TITAN_XP_B_MAX[algorithm]))
    if algorithm == "IMPLICIT_PRECOMP_GEMM":
        return tiles[gemm_p_tile(s.outputs)]
    if len(tiles) == 2:
        return tiles[(s.outputs > 96).astype(int)]
    return tiles[np.where(s.width <= 14, 0, np.where(s.outputs <= 64, 1, 2))]


def factor(algorithm: str, tile: str, filter_width: int) -> float:
    """Makes every variant's coefficients its own (non-fused Winograd's: per filter width too)."""
    return 1 + COUNTED.index(algorithm) + len(tile) / 7 + filter_width * (algorithm == "WINOGRAD_NONFUSED")


def kernels_of(frame: pd.DataFrame, algorithm: str) -> tuple[pd.DataFrame, np.ndarray]:
    """(kernel table, time of the whole call in µs) of one algorithm's grid."""
    whole, key = sizes_of(frame), frame[list(ROW_KEY)]
    winograd = algorithm.startswith("WINOGRAD")
    parts, extra, tiles = [], np.zeros(len(frame)), tile_of(algorithm, whole)
    for tile, width in product(np.unique(tiles), np.unique(whole.filter_width)):
        here = np.flatnonzero((tiles == tile) & (whole.filter_width == width))
        s = Sizes(*(column[here] for column in whole))
        scale, b_max = factor(algorithm, tile, width), TITAN_XP_B_MAX[algorithm][tile]
        blocks = launched_blocks(algorithm, tile, s)
        depth = s.channels * (1 if winograd else s.filter_width**2)
        reads = scale * (0.25 + 0.5 * (s.width >= 28) + 0.125 * (s.outputs > 64)) * depth
        writes = scale * (16.0 + 8 * (s.outputs > 32))
        counted = formulas.gemm_instruction_terms(s.channels, s.filter_width)
        counted = formulas.winograd_instruction_terms(s.channels) if winograd else counted
        instructions = weighted_sum((32 * scale, 100.0), counted)
        w = formulas.waves(blocks, b_max)
        forms = (
            formulas.compute_terms(w, b_max, instructions),
            formulas.memory_terms(w, b_max, reads, writes),
            formulas.under_utilised_terms(w, b_max, instructions, reads, writes),
        )
        bound = np.where(s.channels >= 256, 0, np.where(s.width >= 60, 1, 2))
        fp32_pct, dram_pct = np.array(CLASS_PCT)[bound].T
        parts.append(
            key.iloc[here].assign(
                kernel_index=0,
                kernel_name="algo",
                tile=tile,
                blocks=blocks,
                b_max=b_max,
                waves=w.count,
                time_us=scale * np.choose(bound, list(map(weighted_sum, TIME, forms))),
                fp32_instructions=instructions * blocks,
                dram_read_transactions=reads * blocks,
                dram_write_transactions=writes * blocks,
                fp32_utilization_pct=fp32_pct,
                dram_utilization_pct=dram_pct,
            )
        )
        extra[here] = extra_us(algorithm, s, scale)
    main = pd.concat(parts).sort_index()
    if not extra.any():
        return main, main["time_us"].to_numpy()
    other = key.assign(kernel_index=1, kernel_name="algo_pre", tile="", time_us=extra)
    return pd.concat([main, other], ignore_index=True), main["time_us"].to_numpy() + extra


def extra_us(algorithm: str, s: Sizes, scale: float) -> np.ndarray | float:
    """Time of the kernels before and after the main one."""
    if algorithm == "GEMM":
        return weighted_sum((2e-6, 3e-4, 7.0), formulas.im2col_terms(s))
    if algorithm == "WINOGRAD_NONFUSED":
        return weighted_sum([scale * c for c in (1e-5, 1e-6, 2e-5, 9.0)], formulas.transform_terms(s))
    return 0.0


def fft_us(algorithm: str, s: Sizes) -> np.ndarray:
    """FFT by width bucket, FFT_TILING; in proportion to the batch."""
    if algorithm == "FFT_TILING":
        terms = formulas.fft_tiling_terms(s.channels, s.outputs, s.out_width, s.filter_width)
        return weighted_sum((0.5, 0.02, 0.3, 40.0), terms) * s.batch / 128
    bucket = np.select([s.width <= 16, s.width <= 32, s.width <= 64], [1.0, 2.0, 4.0], 8.0)
    return weighted_sum((0.5, 0.02, 0.3, 40.0), formulas.fft_terms(s.channels, s.outputs)) * bucket * s.batch / 128


@pytest.fixture(scope="module")
def world() -> tuple[pd.DataFrame, pd.DataFrame]:
    """(dataset rows, kernel table) of all seven algorithms."""
    frames, kernels = [], []
    for algorithm in COUNTED:
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
def fitted(world: tuple[pd.DataFrame, pd.DataFrame]) -> SeerPaper:
    return SeerPaper(evaluations=EVALUATIONS).fit(rows_of(with_kernel_metrics(*world)))


@pytest.fixture(scope="module")
def rows(world: tuple[pd.DataFrame, pd.DataFrame]) -> Rows:
    """The same problems, without any counter."""
    return rows_of(world[0])


@pytest.mark.parametrize("algorithm", [*COUNTED, "FFT", "FFT_TILING"])
def test_recovers_what_it_was_fitted_on(fitted: SeerPaper, rows: Rows, algorithm: str) -> None:
    """From the problem alone: variant, blocks, class, instructions, DRAM transactions, waves, time, extra kernels."""
    mine = rows.take((rows.frame["algorithm"] == algorithm).to_numpy())
    np.testing.assert_allclose(fitted.predict(mine), mine.time_us, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["GEMM", "WINOGRAD_NONFUSED"])
def test_with_a_known_launch_the_main_kernel_alone_is_timed(fitted, world, algorithm):
    rows = rows_of(with_kernel_metrics(*world))
    mine = rows.take((rows.frame["algorithm"] == algorithm).to_numpy())
    known = SeerPaper.from_files(fitted.get_params() | {"known_launch": True}, fitted.to_files())
    np.testing.assert_allclose(known.predict(mine), mine.frame["main_kernel_us"], rtol=1e-6)
    assert (mine.frame["main_kernel_us"] < mine.time_us).all()


def test_the_published_blocks_double_those_of_wide_tiles_alone(fitted: SeerPaper, rows: Rows) -> None:
    """Twice the blocks take as many waves, and by the class's form up to twice the time."""
    mine = rows.take((rows.frame["algorithm"] == "WINOGRAD_NONFUSED").to_numpy())
    wide = tile_of("WINOGRAD_NONFUSED", sizes_of(mine.frame)) == "128x128"
    published = SeerPaper.from_files(fitted.get_params() | {"published_blocks": True}, fitted.to_files())
    ratio = published.predict(mine) / fitted.predict(mine)
    assert wide.any() and (ratio[~wide] == 1).all() and ((ratio[wide] > 1) & (ratio[wide] <= 2)).all()


def test_classes_come_back_and_fft_has_none(fitted: SeerPaper, rows: Rows) -> None:
    frame = rows.frame
    wide = np.where(frame["c"] >= 256, 0, np.where(frame["w"] >= 60, 1, 2))
    tiled = np.where(frame["c"] >= 64, 0, 2)
    known = np.select([frame["algorithm"] == "FFT", frame["algorithm"] == "FFT_TILING"], [-1, tiled], wide)
    np.testing.assert_array_equal(fitted.bound(frame), known)


@pytest.mark.slow
def test_recovers_rows_that_it_has_not_seen(world: tuple[pd.DataFrame, pd.DataFrame], rows: Rows) -> None:
    """A tenth of the grid held out: trees find the very cuts, for rules that lie between grid values."""
    holdout = np.random.default_rng(0).random(len(rows)) < 0.1
    train = rows_of(with_kernel_metrics(*world)).take(~holdout)
    test = rows.take(holdout)
    ratio = SeerPaper(evaluations=EVALUATIONS).fit(train).predict(test) / test.time_us
    np.testing.assert_allclose(ratio, 1.0, rtol=1e-6)


def test_saves_and_loads(fitted: SeerPaper, rows: Rows) -> None:
    files = fitted.to_files()
    json.loads(files["seer.json"])
    again = SeerPaper.from_files(fitted.get_params(), files)
    np.testing.assert_array_equal(again.predict(rows), fitted.predict(rows))


@cases(__file__)
def test_outside_its_domain_it_says_nothing(fitted: SeerPaper, rows: Rows, changes: dict[str, Any]) -> None:
    frame = rows.frame[rows.frame["algorithm"] == "GEMM"].iloc[:5].reset_index(drop=True)
    assert np.isfinite(fitted.predict(rows_of(frame))).all()
    assert np.isnan(fitted.predict(rows_of(frame.assign(**changes)))).all()


@cases(__file__)
def test_infeasible_rows_get_no_time(fitted: SeerPaper, rows: Rows, algorithm: str, changes: dict[str, Any]) -> None:
    frame = rows.frame.iloc[:3].assign(algorithm=algorithm, **changes).reset_index(drop=True)
    assert np.isnan(fitted.predict(rows_of(frame))).all()


def test_a_table_without_kernels_is_refused(refused, rows: Rows) -> None:
    with refused("lacks blocks, b_max, fp32_instructions, ", "kernels.parquet"):
        SeerPaper().fit(rows)


def test_missing_counters_are_named(refused, world: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """A counter that no row has; and two that no row has together."""
    frame, kernels = world
    bare = with_kernel_metrics(frame, kernels.drop(columns="fp32_instructions"))
    with refused("the table lacks fp32_instructions; count them with nvprof or ncu"):
        SeerPaper(evaluations=2).fit(rows_of(bare))
    full = with_kernel_metrics(frame, kernels)
    half = np.arange(len(full)) < len(full) // 2
    parted = full.assign(b_max=full["b_max"].where(half), blocks=full["blocks"].where(~half))
    with refused("no ok row has all of blocks, b_max, "):
        SeerPaper(evaluations=2).fit(rows_of(parted))
