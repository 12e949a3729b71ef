"""The grid of measured times, and the model that interpolates in it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate.dataset.rows import Rows
from surrogate.models.grid import MULTIPLIER, GpuTimes, Lines, MeasuredRows, distinct_rows
from surrogate.models.interpolated import InterpolatedTerms
from tests.tables import checked, every

MS, NS, KS = (16, 64, 256, 1024), (256, 512, 1024, 2048), (512, 1024, 2048, 4096)


def products(ms=MS, ns=NS, ks=KS, gpu: str = "h100-sxm") -> Rows:
    """Return bf16 matrix products with times that are smooth in the sizes but not in the terms alone."""
    rows = every(m=ms, n=ns, k=ks)
    time_us = 4 + 2e-6 * (rows["m"] * rows["n"] * rows["k"]) ** 0.8 + 1e-5 * rows["n"] * rows["k"] ** 0.9
    setting = {"operator": "gemm", "dtype": "bf16", "math": "default", "variant": ""}
    kernel = {"library": "vllm", "library_version": "0.24.0", "algorithm": "cutlass"}
    return checked(rows.assign(family="gemm", gpu=gpu, batch=1, time_us=time_us, status="ok", **setting, **kernel))


@pytest.fixture(scope="module")
def fitted() -> InterpolatedTerms:
    return InterpolatedTerms(rounds=60, max_leaves=16).fit(products())


def measured(values: np.ndarray) -> MeasuredRows:
    """Return the rows of `products` with these values."""
    rows = products()
    part = GpuTimes.of(np.zeros(len(rows), dtype=int), sizes_of(rows), values)
    return part.measured(Lines.of(rows.family.lines, rows.family.size_names), [1])


def sizes_of(rows: Rows) -> np.ndarray:
    return rows.frame[list(rows.family.size_names)].to_numpy()


def keys_of(grid: MeasuredRows, rows: Rows) -> np.ndarray:
    return grid.lines.keys(np.zeros(len(rows), dtype=int), sizes_of(rows))


def test_values_between_two_points_are_linear_in_log_size() -> None:
    rows, query = products(), products(ns=(700,))
    grid = measured(np.log2(rows.frame["n"].to_numpy()) * 0.5 - np.log2(rows.frame["k"].to_numpy()) * 0.25)
    found, gaps = grid.between(keys_of(grid, query)[:, 1:])
    by_k, by_n = found[:, 0], found[:, 1]
    expected = np.log2(700) * 0.5 - np.log2(query.frame["k"]) * 0.25
    np.testing.assert_allclose(by_n, expected, atol=0.005)
    assert np.isnan(by_k).all()  # no measured product has n = 700
    down, up = np.log2(700 / 512), np.log2(1024 / 700)
    np.testing.assert_allclose(gaps[:, 1], 2 * down * up / (down + up), atol=0.01)


def test_row_is_never_its_own_neighbour() -> None:
    inner = (products().frame["n"] == 512).to_numpy()
    grid = measured(np.where(inner, 1.0, 0.0))
    keys = keys_of(grid, products())
    by_n = grid.between(keys[:, 1:])[0][:, 1]
    assert (by_n[inner] == 0.0).all() and (grid.at(keys[:, 0])[inner] == 1.0).all()


def test_line_may_change_several_sizes_together() -> None:
    sizes = np.array([[1, 32], [2, 16], [4, 8], [4, 16]])
    keys = Lines.of([{"batch": 1, "heads": -1}], ["batch", "heads"]).keys(np.zeros(4, dtype=int), sizes)
    lines = (keys[:, 1] >> np.uint64(16)).tolist()
    assert lines[0] == lines[1] == lines[2] != lines[3]


@given(st.sets(st.tuples(*[st.integers(0, 2**17)] * 3), min_size=2, max_size=300))
def test_different_problems_have_different_keys(problems: set[tuple[int, ...]]) -> None:
    code, *sizes = np.array(sorted(problems)).T
    keys = Lines.of([], ["m", "n"]).keys(code, np.stack(sizes, axis=1))
    assert len(np.unique(keys)) == len(problems)


def test_measured_problem_gets_its_measured_time(fitted) -> None:
    rows = products()
    np.testing.assert_allclose(fitted.predict(rows), rows.time_us, rtol=0.003)


def test_unmeasured_shapes_and_batches_are_within_15_percent(fitted) -> None:
    for rows in (products(ns=(768,)), products(ms=(40, 500)), products(ms=(128,), ks=(3000,))):
        assert np.median(np.abs(fitted.predict(rows) / rows.time_us - 1)) < 0.15


@pytest.mark.parametrize("rows", [products(gpu="b200"), products(ns=(256 * 64,), ks=(8192,)), products(ms=(1 << 20,))])
def test_distant_problems_get_the_prediction_of_the_terms(fitted, rows: Rows) -> None:
    np.testing.assert_allclose(fitted.predict(rows), fitted.terms_.predict(rows), rtol=1e-6)


def test_candidate_measured_on_another_gpu_gets_the_prediction_of_the_terms() -> None:
    both = pd.concat([products().frame, products(gpu="b200").frame.assign(algorithm="cute")], ignore_index=True)
    fitted = InterpolatedTerms(rounds=20, max_leaves=8).fit(checked(both))
    unmeasured = checked(products().frame.assign(algorithm="cute"))
    np.testing.assert_allclose(fitted.predict(unmeasured), fitted.terms_.predict(unmeasured), rtol=1e-6)


@pytest.mark.parametrize("multiplier", [MULTIPLIER, np.uint64(0)])  # with 0, all rows have one hash
def test_distinct_rows_are_those_of_numpy(multiplier: np.uint64, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surrogate.models.grid.MULTIPLIER", multiplier)
    rows = np.random.default_rng(0).integers(0, 4, (1000, 3))
    first, number = distinct_rows(rows)
    assert len(first) == len(np.unique(rows, axis=0)) == 64
    assert (rows[first][number] == rows).all()
