"""Measured times that are spikes stay out of the grid; whatever a kernel explains stays in it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.models.grid import GridPart, Lines
from surrogate.models.interpolated import MIN_RISE, InterpolatedTerms, without_spikes
from tests.models.test_interpolated import KS, MS, NS, products
from tests.tables import checked

LINES = Lines.of([{"k": 1}, {"n": 1}, {"m": 1}], ["m", "n", "k"])
SIZES = np.stack([axis.ravel() for axis in np.meshgrid(MS, NS, KS, indexing="ij")], axis=1)
EACH = len(SIZES)
inside = st.tuples(*[st.integers(1, 2)] * 3).map(lambda at: int(np.ravel_multi_index(at, (4, 4, 4))))


def part_of(*candidates: np.ndarray) -> GridPart:
    """A part whose candidates measured all `SIZES`, with these values."""
    codes = np.repeat(np.arange(len(candidates)), EACH)
    return GridPart.of(codes, np.tile(SIZES, (len(candidates), 1)), np.concatenate(candidates))


def left_out(*candidates: np.ndarray) -> set[int]:
    """The positions in `part_of` that are spikes; all candidates have one setting."""
    part = part_of(*candidates)
    kept = without_spikes(part, LINES, np.zeros(len(candidates), dtype=int))
    rows = [set(zip(each.codes.tolist(), map(tuple, each.sizes.tolist()), strict=True)) for each in (part, kept)]
    position = {tuple(sizes): index for index, sizes in enumerate(SIZES.tolist())}
    return {code * EACH + position[sizes] for code, sizes in rows[0] - rows[1]}


def planted(row: int, height: float) -> np.ndarray:
    """A smooth law with one spike."""
    values = -0.05 * np.log2(SIZES).sum(axis=1)
    values[row] += height
    return values


@given(row=inside, height=st.floats(0.6, 2.0), seed=st.integers(0, 99))
def test_a_spike_that_one_candidate_alone_has_is_left_out(row: int, height: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.02, (2, EACH))
    assert left_out(planted(row, height) + noise[0], planted(row, 0.0) + noise[1]) == {row}


@given(values=st.lists(st.floats(-MIN_RISE / 3, MIN_RISE / 3), min_size=2 * EACH, max_size=2 * EACH))
def test_times_that_scatter_less_than_a_spike_all_stay(values: list[float]) -> None:
    assert not left_out(np.array(values[:EACH]), np.array(values[EACH:]))


@given(row=inside, height=st.floats(0.6, 2.0))
def test_a_spike_that_another_candidate_shares_or_none_could_share_stays(row: int, height: float) -> None:
    assert not left_out(planted(row, height), planted(row, height))
    assert not left_out(planted(row, height))


@given(row=inside, height=st.floats(0.6, 2.0), size=st.integers(0, 2))
def test_a_step_that_persists_stays(row: int, height: float, size: int) -> None:
    larger = np.flatnonzero((SIZES[:, size] > SIZES[row, size]) & (np.delete(SIZES[row] == SIZES, size, 1).all(axis=1)))
    stepped = planted(row, height)
    stepped[larger] += height
    assert not left_out(stepped, planted(row, 0.0))


@given(row=inside, height=st.floats(0.6, 2.0), size=st.integers(0, 2))
def test_a_size_that_is_slow_at_other_problems_too_stays(row: int, height: float, size: int) -> None:
    slow = planted(row, 0.0) + height * (SIZES[:, size] == SIZES[row, size])
    assert not left_out(slow, planted(row, 0.0))


def test_along_one_line_no_spike_is_proven() -> None:
    part = part_of(planted(21, 1.0), planted(21, 0.0))
    assert len(without_spikes(part, Lines.of([{"m": 1}], ["m", "n", "k"]), np.zeros(2, dtype=int)).codes) == 2 * EACH


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_answers_a_spike_by_its_neighbours_and_all_else_as_measured(shared: bool) -> None:
    smooth = products().frame
    spike = ((smooth["m"] == 64) & (smooth["n"] == 512) & (smooth["k"] == 1024)).to_numpy()
    slow = smooth.assign(time_us=smooth["time_us"] * np.where(spike, 4.0, 1.0))
    both = pd.concat([slow, (slow if shared else smooth).assign(algorithm="cublas")], ignore_index=True)
    rows = checked(both)
    ratio = InterpolatedTerms(rounds=60, max_leaves=16).fit(rows).predict(rows) / rows.time_us
    here = (rows.frame["algorithm"] == "cutlass").to_numpy() & np.tile(spike, 2)
    np.testing.assert_allclose(ratio[~here], 1.0, rtol=0.003)
    assert abs(ratio[here] - 1.0) < 0.003 if shared else ratio[here] < 0.5
