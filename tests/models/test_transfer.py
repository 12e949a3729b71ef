"""Transfer from measured to unmeasured problems, on synthetic kernels with a known best configuration."""

import numpy as np
import pytest

from surrogate.models import transfer as module
from surrogate.models.json_types import input_error_if_damaged
from surrogate.models.transfer import Prior, TransferState

GRID = np.array([(x, y, k) for x in (16, 32, 64, 128, 256) for y in (1, 2, 4, 8) for k in (0, 1, 2)], dtype=np.float64)
"""Configurations of two tile sizes and a code."""
NO_TERMS = np.zeros((len(GRID), 0), dtype=np.float32)


def times(place: float, level: float = 100.0) -> np.ndarray:
    """Return times of a kernel with a best tile that depends on the problem's place."""
    x, y, code = np.log2(GRID[:, 0]) - 4, np.log2(GRID[:, 1]), GRID[:, 2]
    return level * np.exp(0.3 * (x - 1 - place) ** 2 + 0.2 * (y - 1 - 0.5 * place) ** 2 + 0.1 * code)


def fitted(places: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0), time_us: np.ndarray | None = None) -> TransferState:
    table = np.array([times(place, 50 * (1 + place)) for place in places]) if time_us is None else time_us
    columns = np.array([[place, 7.0] for place in places], dtype=np.float32)
    return TransferState.fit(table, GRID, np.broadcast_to(NO_TERMS, (len(places), *NO_TERMS.shape)), columns)


def prior_of(transfer: TransferState, place: float, known: np.ndarray | None = None) -> Prior:
    known = np.arange(len(GRID)) if known is None else known
    column = np.array([place, 7.0], dtype=np.float32)
    return transfer.prior(column, GRID, NO_TERMS, known)


@pytest.fixture(scope="module")
def transfer() -> TransferState:
    return fitted()


@pytest.mark.parametrize("place", [0.2, 0.6, 1.4])
def test_first_pick_for_an_unmeasured_problem_is_within_10_percent(transfer: TransferState, place: float) -> None:
    prior = prior_of(transfer, place)
    assert times(place)[np.argmin(prior.score)] <= 1.1 * times(place).min()
    assert ((prior.score >= 0) & (prior.score <= 1) & (prior.failure == 0) & (prior.log_relative >= 0)).all()


def test_similar_problems_weigh_more() -> None:
    score = prior_of(fitted((0.0, 0.5, 1.0)), 2.0).score
    expected = np.array([1 - times(place).min() / times(place) for place in (0.0, 1.0)])
    assert np.abs(score - expected[1]).mean() < np.abs(score - expected[0]).mean()


def test_log_relative_correlates_with_log_times(transfer: TransferState) -> None:
    expected = np.log(times(0.5) / times(0.5).min())
    assert np.corrcoef(prior_of(transfer, 0.5).log_relative, expected)[0, 1] > 0.9


def test_new_configurations_follow_similar_ones(transfer: TransferState) -> None:
    prior = prior_of(transfer, 0.6, known=np.full(len(GRID), -1))
    assert times(0.6)[np.argmin(prior.score)] <= 1.3 * times(0.6).min()


def test_failing_configurations_get_high_scores() -> None:
    too_large = GRID[:, 0] * GRID[:, 1] > 512
    table = np.array([np.where(too_large, np.inf, times(place)) for place in (0.0, 0.5, 1.0)])
    prior = prior_of(fitted((0.0, 0.5, 1.0), table), 0.3)
    assert prior.failure[too_large].min() > 0.7 and prior.failure[~too_large].max() < 0.3
    assert prior.score[too_large].min() > 0.7 and np.isfinite(prior.log_relative).all()


def test_one_measured_problem_is_enough() -> None:
    prior = prior_of(fitted((0.5,)), 0.5)
    assert times(0.5)[np.argmin(prior.score)] <= 1.05 * times(0.5).min()


def test_problems_may_have_different_configurations() -> None:
    """Two problems measured the first half, the other two the second half with the best one."""
    random = np.random.default_rng(0)
    places = (0.0, 0.4, 0.8, 1.2)
    table = np.array([times(place) for place in places])
    is_first = random.random(len(GRID)) < 0.5
    table[:2, is_first] = np.nan
    table[2:, ~is_first] = np.nan
    prior = prior_of(fitted(places, table), 0.6)
    assert times(0.6)[np.argsort(prior.score)[:3]].min() <= 1.2 * times(0.6).min()


def test_problem_with_only_slow_configurations_does_not_prefer_them() -> None:
    """Three problems measured everything; the fourth measured only the slow half."""
    table = np.array([times(0.5)] * 4)
    slow = times(0.5) > np.median(times(0.5))
    table[3, ~slow] = np.nan
    score = prior_of(fitted((0.4, 0.5, 0.6, 0.5), table), 0.5).score
    assert score[slow].min() > score[~slow].min() + 0.2


def test_missing_columns_give_finite_scores(transfer: TransferState) -> None:
    assert np.isfinite(prior_of(transfer, np.nan).score).all()
    columns = np.array([[np.nan, 1.0], [np.nan, 2.0]], dtype=np.float32)
    terms = np.full((2, len(GRID), 1), np.nan, dtype=np.float32)
    without_columns = TransferState.fit(np.array([times(0.0), times(1.0)]), GRID, terms, columns)
    assert np.isfinite(without_columns.prior(columns[0], GRID, terms[0], np.arange(len(GRID))).score).all()


def test_terms_rank_new_configurations() -> None:
    """The time is proportional to the number of waves, which only the terms contain."""
    random = np.random.default_rng(1)
    waves = random.integers(1, 9, size=(4, len(GRID))).astype(np.float32)
    columns = np.zeros((4, 1), dtype=np.float32)
    transfer = TransferState.fit(100.0 * waves[:3], GRID, waves[:3, :, None], columns[:3])
    prior = transfer.prior(columns[3], GRID, waves[3][:, None], np.full(len(GRID), -1))
    assert waves[3][np.argmin(prior.score)] == waves[3].min()


def test_transfer_survives_writing_and_reading(refused, transfer: TransferState) -> None:
    files = transfer.to_files()
    assert all(isinstance(content, bytes) for content in files.values())
    loaded = prior_of(TransferState.from_files(files), 0.7)
    np.testing.assert_allclose(loaded.score, prior_of(transfer, 0.7).score, atol=1e-6)
    with refused(), input_error_if_damaged("transfer"):
        TransferState.from_files({name: content[:40] for name, content in files.items()})


def test_fit_is_deterministic() -> None:
    np.testing.assert_array_equal(prior_of(fitted(), 0.7).score, prior_of(fitted(), 0.7).score)


@pytest.mark.parametrize("sign", [-1, 1])
def test_last_digits_of_logarithms_change_no_answer(sign, transfer, monkeypatch) -> None:
    """With AVX-512, NumPy's logarithms in fp32 differ by one unit in the last place from those with AVX2."""
    design, places = module._design, (0.0, 0.5, 0.7)
    expected = [prior_of(transfer, place).score for place in places]
    shift = np.float32(sign * 2**-20)
    monkeypatch.setattr(module, "_design", lambda *parts: design(*parts) + shift)
    for place, score in zip(places, expected, strict=True):
        np.testing.assert_array_equal(prior_of(transfer, place).score, score)


def test_a_table_without_times_is_refused(refused) -> None:
    with refused("ran"):
        fitted((0.0, 1.0), np.full((2, len(GRID)), np.inf))
