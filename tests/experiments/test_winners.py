"""Tiles of cuDNN's 3×3 kernels against the grids that were launched, and a drift that was planted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.drift import fit_drift, places_in_file, without_drift
from experiments.held_out import candidate_rows
from experiments.sources import FILES
from experiments.winners_3x3 import mixed
from experiments.winners_classes import class_terms, classify
from experiments.winners_terms import (
    SGEMM_TILES,
    WINOGRAD_TILES,
    Size,
    nonfused,
    precomp,
    tile_terms,
    winograd,
)
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset
from surrogate.models.boosted import BoostedTerms

ONE_SM = np.ones(1)


def _size(n: int, c: int, h: int, k: int) -> Size:
    return {name: np.array([float(v)]) for name, v in (("n", n), ("c", c), ("h", h), ("w", h), ("k", k))}


def _blocks(terms: tuple[np.ndarray, ...], tile: int) -> float:
    return float(np.exp2(terms[2][tile, 0]))


def test_gemm_classes_launch_these_grids() -> None:
    assert _blocks(
        nonfused(_size(55, 1701, 5, 569), ONE_SM, 4), SGEMM_TILES.index((128, 128))
    ) == pytest.approx(360)
    found = _blocks(precomp(_size(31, 13, 22, 1242), ONE_SM), SGEMM_TILES.index((128, 64)))
    assert found == pytest.approx(118 * 20)


def test_grids_of_the_whole_table(measurements: Path) -> None:
    """Every launch whose kernel name tells the tile has exactly the blocks that the formula counts."""
    frame = pd.read_parquet(measurements / FILES["winners"][0])
    for tile in WINOGRAD_TILES:
        name = "tile" + "".join(map(str, tile))
        mine = frame[frame["main_kernel"].str.contains(name) & (frame["algorithm_guess"] == "WINOGRAD")]
        size = {key: mine[key].to_numpy(dtype=float) for key in ("n", "c", "h", "w", "k")}
        blocks = np.exp2(winograd(size, np.ones(len(mine)))[2][WINOGRAD_TILES.index(tile)])
        launched = mine["grid_x"] * mine["grid_y"] * mine["grid_z"]
        assert (np.abs(blocks - launched) < 0.5).mean() > 0.99, name


def test_the_busiest_sm_never_does_less_than_the_average() -> None:
    rng = np.random.default_rng(0)
    size = {name: rng.integers(1, 300, 50).astype(float) for name in ("n", "c", "h", "w", "k")}
    sms = np.full(50, 80.0)
    for terms in (winograd(size, sms), nonfused(size, sms, 4), precomp(size, sms)):
        assert (terms[0] >= terms[1] - 1e-9).all()
    assert np.isfinite(tile_terms(pd.DataFrame(size), sms)).all()


def test_a_planted_drift_is_found_and_taken_out(table: Callable[..., pd.DataFrame]) -> None:
    frame = table(80, gpus=("Tesla T4", "TITAN Xp"), batches=(1, 2, 4, 8), noise=0.01)
    frame = frame[frame["status"] == "ok"].sample(frac=1.0, random_state=0).reset_index(drop=True)
    frame["time_us"] = 400.0 + frame["time_us"].clip(upper=2000.0)
    place = places_in_file(frame["gpu"].to_numpy())
    planted = {"Tesla T4": 300.0, "TITAN Xp": 0.0}
    shifted = frame.assign(time_us=frame["time_us"] + place * frame["gpu"].map(planted))
    model = BoostedTerms(rounds=60, learning_rate=0.2)
    rows = rows_of(normalise(shifted, "test"))
    found = fit_drift(rows, place, model, seed=0)
    assert found["Tesla T4"] == pytest.approx(300.0, abs=150.0)  # the model's own errors: ± 100 µs over seeds
    assert abs(found["TITAN Xp"]) < 150.0
    np.testing.assert_allclose(without_drift(rows, place, planted).time_us, frame["time_us"], rtol=1e-9)


def test_places_run_from_first_to_last_row_of_each_gpu() -> None:
    place = places_in_file(np.array(["a", "b", "a", "a", "c"], dtype=object))
    np.testing.assert_allclose(place, [-0.5, 0.0, 0.0, 0.5, 0.0])


def test_mixture_by_hand() -> None:
    times = np.array([[10.0, 1000.0], [10.0, np.nan]])
    np.testing.assert_allclose(mixed(times, np.array([[0.5, 0.5], [0.5, 0.5]])), [100.0, 10.0])


def test_class_terms_hold_every_class(table: Callable[..., pd.DataFrame]) -> None:
    """Two rows of one problem differ in their own terms, not in those of all classes side by side."""
    data = Dataset(table(3, gpus=("Tesla T4",), batches=(1,)))
    rows = candidate_rows([data])
    design = class_terms(rows, data, ["FFT", "IMPLICIT_GEMM"])
    same = np.flatnonzero(rows.problem == rows.problem[0])
    assert (rows.features[same[0]] != rows.features[same[2]]).any()
    np.testing.assert_array_equal(design[same[0]], design[same[2]])


def test_classes_that_training_lacks_have_no_probability() -> None:
    rng = np.random.default_rng(0)
    design = rng.normal(size=(60, 3)).astype(np.float32)
    label = np.where(design[:, 0] > 0, 3, 1)
    share = classify(design, label, design, 5, seed=0)
    assert (share.argmax(axis=1) == label).mean() > 0.9
    np.testing.assert_array_equal(share[:, [0, 2, 4]], 0.0)
    np.testing.assert_array_equal(classify(design, np.full(60, 2), design, 5, seed=0)[:, 2], 1.0)
