"""Spikes of measured times are removed from the grid; differences that a kernel explains remain."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate.models.grid import GpuTimes, Lines
from surrogate.models.interpolated import MIN_RISE, InterpolatedTerms, without_spikes
from tests.models.test_interpolated import KS, MS, NS, products
from tests.tables import checked

LINES = Lines.of([{"k": 1}, {"n": 1}, {"m": 1}], ["m", "n", "k"])
SIZES = np.stack([axis.ravel() for axis in np.meshgrid(MS, NS, KS, indexing="ij")], axis=1)
ROWS = len(SIZES)
INNER_ROWS = st.tuples(*[st.integers(1, 2)] * 3).map(lambda at: int(np.ravel_multi_index(at, (4, 4, 4))))


def part_of(*candidates: np.ndarray) -> GpuTimes:
    """Return a part with these values of all `SIZES` for each candidate."""
    codes = np.repeat(np.arange(len(candidates)), ROWS)
    return GpuTimes.of(codes, np.tile(SIZES, (len(candidates), 1)), np.concatenate(candidates))


def spikes_of(*candidates: np.ndarray) -> set[int]:
    """Return the positions of spikes in `part_of`; all candidates have one setting."""
    part = part_of(*candidates)
    kept = without_spikes(part, LINES, np.zeros(len(candidates), dtype=int))
    rows = [set(zip(grid.codes.tolist(), map(tuple, grid.sizes.tolist()), strict=True)) for grid in (part, kept)]
    position = {tuple(sizes): index for index, sizes in enumerate(SIZES.tolist())}
    return {code * ROWS + position[sizes] for code, sizes in rows[0] - rows[1]}


def with_spike(row: int, height: float) -> np.ndarray:
    """Return values that are smooth in the sizes except for one spike."""
    values = -0.05 * np.log2(SIZES).sum(axis=1)
    values[row] += height
    return values


@given(row=INNER_ROWS, height=st.floats(0.6, 2.0), seed=st.integers(0, 99))
def test_spike_of_a_single_candidate_is_removed(row: int, height: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.02, (2, ROWS))
    assert spikes_of(with_spike(row, height) + noise[0], with_spike(row, 0.0) + noise[1]) == {row}


@given(values=st.lists(st.floats(-MIN_RISE / 3, MIN_RISE / 3), min_size=2 * ROWS, max_size=2 * ROWS))
def test_noise_smaller_than_a_spike_is_kept(values: list[float]) -> None:
    assert not spikes_of(np.array(values[:ROWS]), np.array(values[ROWS:]))


@given(row=INNER_ROWS, height=st.floats(0.6, 2.0))
def test_spike_is_kept_if_shared_or_without_a_second_candidate(row: int, height: float) -> None:
    assert not spikes_of(with_spike(row, height), with_spike(row, height))
    assert not spikes_of(with_spike(row, height))


@given(row=INNER_ROWS, height=st.floats(0.6, 2.0), size=st.integers(0, 2))
def test_persistent_step_is_kept(row: int, height: float, size: int) -> None:
    larger = np.flatnonzero((SIZES[:, size] > SIZES[row, size]) & (np.delete(SIZES[row] == SIZES, size, 1).all(axis=1)))
    stepped = with_spike(row, height)
    stepped[larger] += height
    assert not spikes_of(stepped, with_spike(row, 0.0))


@given(row=INNER_ROWS, height=st.floats(0.6, 2.0), size=st.integers(0, 2))
def test_size_that_is_slow_for_all_problems_is_kept(row: int, height: float, size: int) -> None:
    slow = with_spike(row, 0.0) + height * (SIZES[:, size] == SIZES[row, size])
    assert not spikes_of(slow, with_spike(row, 0.0))


def test_spike_along_a_single_line_is_kept() -> None:
    part = part_of(with_spike(21, 1.0), with_spike(21, 0.0))
    assert len(without_spikes(part, Lines.of([{"m": 1}], ["m", "n", "k"]), np.zeros(2, dtype=int)).codes) == 2 * ROWS


@pytest.mark.parametrize("shared", [False, True])
def test_model_replaces_only_spikes_by_their_neighbours(shared: bool) -> None:
    smooth = products().frame
    spike = ((smooth["m"] == 64) & (smooth["n"] == 512) & (smooth["k"] == 1024)).to_numpy()
    slow = smooth.assign(time_us=smooth["time_us"] * np.where(spike, 4.0, 1.0))
    both = pd.concat([slow, (slow if shared else smooth).assign(algorithm="cublas")], ignore_index=True)
    rows = checked(both)
    ratio = InterpolatedTerms(rounds=60, max_leaves=16).fit(rows).predict(rows) / rows.time_us
    at_spike = (rows.frame["algorithm"] == "cutlass").to_numpy() & np.tile(spike, 2)
    np.testing.assert_allclose(ratio[~at_spike], 1.0, rtol=0.003)
    assert abs(ratio[at_spike] - 1.0) < 0.003 if shared else ratio[at_spike] < 0.5
