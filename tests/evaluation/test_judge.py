"""Every metric against hand calculations."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.evaluation import judge

NAN = float("nan")


def test_time_errors_equal_the_hand_calculation() -> None:
    # Errors 0.1, 0.2, 0.5, 0.4: median 0.3, mean 0.3, p90 at rank 2.7: 0.4 + 0.7·0.1, rms √(0.46/4).
    errors = judge.time_errors(np.array([110.0, 80.0, 150.0, 60.0]), np.full(4, 100.0))
    assert errors.n == 4
    assert errors.median_ape == pytest.approx(0.3)
    assert errors.mape == pytest.approx(0.3)
    assert errors.p90_ape == pytest.approx(0.47)
    assert errors.rmspe == pytest.approx(math.sqrt(0.46 / 4))
    assert errors.gmae == pytest.approx((0.1 * 0.2 * 0.5 * 0.4) ** 0.25)
    assert math.isnan(errors.spearman)  # the measured times do not vary


def test_spearman_equals_the_hand_calculation() -> None:
    # Ranks 1 2 3 4 5 and 2 1 4 3 5: 1 − 6·4/(5·24) = 0.8.
    assert judge.time_errors(np.array([2.0, 1, 4, 3, 5]), np.array([1.0, 2, 3, 4, 5])).spearman == pytest.approx(0.8)
    # Ties share their mean rank: 1.5 1.5 3 against 1 2 3 is √3/2.
    assert judge.time_errors(np.array([1.0, 1, 2]), np.array([1.0, 2, 3])).spearman == pytest.approx(math.sqrt(3) / 2)


def test_exact_prediction_keeps_the_geometric_mean_above_zero() -> None:
    errors = judge.time_errors(np.array([100.0, 101.0]), np.array([100.0, 100.0]))
    assert errors.gmae == pytest.approx(math.sqrt(judge.GMAE_FLOOR * 0.01))
    assert errors.rmspe == pytest.approx(0.01 / math.sqrt(2))


def test_rows_without_both_times_are_ignored() -> None:
    errors = judge.time_errors(np.array([110.0, NAN, 5.0, np.inf]), np.array([100.0, 100.0, NAN, 1.0]))
    assert (errors.n, errors.mape) == (1, pytest.approx(0.1))
    nothing = judge.time_errors(np.array([NAN]), np.array([1.0]))
    assert nothing.n == 0 and math.isnan(nothing.mape) and math.isnan(nothing.spearman)


PROBLEM = np.array([0, 0, 0, 1, 1, 2, 2])
TIME = np.array([10.0, 20.0, 40.0, 6.0, 5.0, 8.0, NAN])
OK = np.isfinite(TIME)
THREE = judge.CandidateRows(PROBLEM, TIME, OK, np.array([0, 1, 2, 0, 1, 0, 1]))
ANY = np.ones(7, dtype=bool)


def test_picks_equal_the_hand_calculation() -> None:
    choice = judge.pick_lowest_scores(THREE, np.array([3.0, 1, 2, 1, 2, 1, 9]), ANY)
    assert choice.row.tolist() == [1, 3, 5]
    assert choice.slowdown == pytest.approx([2.0, 1.2, 1.0])
    # The second picks are row 2 (40 µs, not faster), row 4 (5 µs, the best) and row 6 (did not run).
    assert choice.top2_slowdown == pytest.approx([2.0, 1.0, 1.0])
    assert not choice.infeasible.any() and choice.chosen.all()


def test_ties_select_the_lowest_order() -> None:
    score = np.ones(7)
    assert judge.pick_lowest_scores(THREE, score, ANY).row.tolist() == [0, 3, 5]
    reversed_order = judge.CandidateRows(PROBLEM, TIME, OK, np.array([2, 1, 0, 1, 0, 1, 0]))
    assert judge.pick_lowest_scores(reversed_order, score, ANY).row.tolist() == [2, 4, 6]


def test_evaluate_picks_marks_missing_and_failed_picks_infeasible() -> None:
    choice = judge.evaluate_picks(THREE, np.array([1, -1, 6]), np.array([True, True, False]))
    assert choice.slowdown == pytest.approx([2.0, 6 / 5, 1.0])
    assert choice.infeasible.tolist() == [False, True, True]
    assert choice.chosen.tolist() == [True, True, False]


@st.composite
def _tables(draw: st.DrawFn) -> tuple[judge.CandidateRows, np.ndarray, np.ndarray]:
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=5))
    problem = np.repeat(np.arange(len(sizes)), sizes)
    rows = len(problem)
    ok = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    ok[np.searchsorted(problem, np.arange(len(sizes)))] = True  # each problem has at least one
    time = np.array(draw(st.lists(st.floats(1, 1e4), min_size=rows, max_size=rows)))
    score = np.array(draw(st.lists(st.floats(1, 1e4) | st.just(NAN), min_size=rows, max_size=rows)))
    allowed = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    order = np.concatenate([np.arange(size) for size in sizes])
    return judge.CandidateRows(problem, np.where(ok, time, NAN), ok, order), score, allowed


@given(_tables())
def test_choices_equal_a_loop_over_problems(table: tuple[judge.CandidateRows, np.ndarray, np.ndarray]) -> None:
    candidates, score, allowed = table
    choice = judge.pick_lowest_scores(candidates, score, allowed)
    assert candidates.count > 0
    for problem in range(candidates.count):
        rows = np.flatnonzero(candidates.problem == problem)
        finite = [i for i in rows if allowed[i] and np.isfinite(score[i])]
        ranked = sorted(finite, key=lambda i: (score[i], candidates.order[i]))
        times = [candidates.time_us[i] for i in rows if candidates.ok[i]]
        costs = [candidates.time_us[i] if candidates.ok[i] else max(times) for i in ranked[:2]] or [max(times)]
        assert choice.row[problem] == (ranked[0] if ranked else -1)
        assert choice.infeasible[problem] == (not ranked or not candidates.ok[ranked[0]])
        assert choice.slowdown[problem] == costs[0] / min(times)
        assert choice.top2_slowdown[problem] == min(costs) / min(times)
        assert choice.chosen[problem] == np.isfinite(score[rows]).any()
        assert 1 <= choice.top2_slowdown[problem] <= choice.slowdown[problem]


def test_macro_and_pooled_intervals_equal_the_hand_calculation() -> None:
    # Shape 0 has problems 1, 2, 3 (mean 2), shape 1 has 8: macro (2 + 8)/2, pooled 14/4.
    values, shape = np.array([1.0, 2.0, 3.0, 8.0]), np.array([0, 0, 0, 1])
    macro, pooled = (judge.shape_interval(values, shape, macro=macro, draws=200, seed=0) for macro in (True, False))
    assert (macro.mid, pooled.mid) == (5.0, 3.5)
    # Draws of two shapes: (0, 0), (0, 1), (1, 1): macro 2, 5, 8 and pooled 2, 3.5, 8 are the only values.
    assert (macro.low, macro.high) == (pooled.low, pooled.high) == (2.0, 8.0)


def test_median_difference_is_paired_by_shape() -> None:
    """Shapes differ much and models little; an unpaired interval would contain zero."""
    random = np.random.default_rng(0)
    shape = np.repeat(np.arange(60), 5)
    errors = random.uniform(0.05, 1.0, 60)[shape]
    interval = judge.median_difference(errors, errors + 0.02, shape, shape)
    assert interval.low <= interval.mid <= interval.high < 0
    assert interval.mid == pytest.approx(-0.02)
    twice = judge.median_difference(errors, np.tile(errors + 0.02, 2), shape, np.tile(shape, 2))
    assert twice.mid == pytest.approx(-0.02)  # another number of seeds
