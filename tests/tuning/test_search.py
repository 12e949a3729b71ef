"""The sequential search on invented kernels: proposals, prior knowledge, failures and the fastest configuration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.tuning.search import Search

GRID = np.array([*product((16.0, 32, 64, 128, 256), (1, 2, 4, 8, 16), (1, 2, 4), (0, 1))])


def times(place: float = 0.0) -> np.ndarray:
    x, y, unroll, flag = np.log2(GRID[:, 0]) - 6, np.log2(GRID[:, 1]) - 2, np.log2(GRID[:, 2]), GRID[:, 3]
    return 100 * np.exp(0.2 * (x + y - place) ** 2 + 0.1 * (x - place) ** 2 + 0.1 * unroll + 0.2 * flag * (x > 0))


def scores(time_us: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(time_us), 1 - time_us.min() / time_us, 1.0)


def run_search(search: Search, time_us: np.ndarray, evaluations: int) -> list[int]:
    """Measure up to ``evaluations`` proposed configurations and return their indices."""
    order = []
    while len(order) < evaluations and len(indices := search.ask(1)):
        index = int(indices[0])
        search.tell(index, float(time_us[index]) if np.isfinite(time_us[index]) else None)
        order.append(index)
    return order


def warm(target: np.ndarray, others: np.ndarray, **more: np.ndarray) -> Search:
    return Search(GRID, prior=others.mean(axis=0), others=others, **more)


OTHERS = np.array([scores(times(place)) for place in (-1.0, 0.0, 1.5)])


@given(st.integers(0, 3), st.lists(st.integers(1, 7), min_size=1, max_size=6), st.booleans(), st.booleans())
@settings(max_examples=12, deadline=None)
def test_no_configuration_is_proposed_twice(seed: int, counts: list[int], has_prior: bool, answers_late: bool) -> None:
    """This holds with and without measurements between the proposals, and for failures."""
    more = {"prior": OTHERS.mean(axis=0), "others": OTHERS} if has_prior else {}
    search = Search(GRID, **more, seed=seed)
    proposed: list[int] = []
    for count in counts:
        indices = search.ask(count).tolist()
        assert len(indices) == count
        proposed += indices
        for index in [] if answers_late else indices:
            search.tell(index, None if index % 3 == 0 else times()[index])
    assert len(set(proposed)) == len(proposed)


@pytest.mark.parametrize("has_prior", [True, False])
def test_every_configuration_is_proposed(has_prior: bool) -> None:
    few = GRID[:40]
    search = Search(few, prior=OTHERS[0, :40] if has_prior else None)
    assert sorted(run_search(search, times()[:40], 1000)) == list(range(40))
    assert len(search.ask(3)) == 0
    assert search.best == (int(np.argmin(times()[:40])), times()[:40].min())


def test_the_search_starts_with_the_prior_and_corrects_it() -> None:
    truth = times(0.5)
    order = run_search(warm(truth, OTHERS), truth, 15)
    assert order[0] == int(np.argmin(OTHERS.mean(axis=0)))
    assert truth[order].min() <= 1.02 * truth.min()


def test_a_cold_start_beats_random_search() -> None:
    truth = times(0.5)
    searched, random = [], []
    for seed in range(3):
        searched.append(truth[run_search(Search(GRID, seed=seed), truth, 25)].min())
        random.append(truth[np.random.default_rng(seed).permutation(len(truth))[:25]].min())
    assert np.mean(searched) <= 1.03 * truth.min() and np.mean(searched) <= np.mean(random)


def test_incomplete_prior_knowledge_helps() -> None:
    """The knowledge is a prior without other problems, terms with gaps, or other problems with gaps."""
    terms = np.log(times())[:, None].astype(np.float32)
    terms[::7] = np.nan
    incomplete = OTHERS.copy()
    incomplete[0, ::3] = incomplete[1, :50] = np.nan
    others = Search(GRID, prior=np.nanmean(incomplete, axis=0), others=incomplete)
    searches = {12: Search(GRID, prior=scores(times(0.3))), 20: Search(GRID, terms=terms), 15: others}
    for evaluations, search in searches.items():
        assert times()[run_search(search, times(), evaluations)].min() <= 1.03 * times().min()


def test_failing_configurations_are_avoided() -> None:
    """The search proposes few failing configurations after it saw some, or if failures are predicted."""
    truth = np.where(GRID[:, 0] * GRID[:, 1] > 256, np.inf, times(-1.5))
    order = run_search(Search(GRID), truth, 50)
    assert np.isinf(truth[order[10:]]).mean() < 0.6 * np.isinf(truth).mean()
    failure = np.where(np.isinf(truth), 0.9, 0.0)
    order = run_search(Search(GRID, prior=scores(times(-1.0)), failure=failure), truth, 20)
    assert np.isinf(truth[order]).sum() <= 4


def test_a_batch_contains_different_configurations() -> None:
    """A batch of ten is about as good as the ten best of the prior, and has no duplicates."""
    search = warm(times(), OTHERS)
    batch = search.ask(10)
    best_of_prior = np.argsort(OTHERS.mean(axis=0))[:10]
    assert times(0.5)[batch].min() <= 1.1 * times(0.5)[best_of_prior].min()
    assert len(np.unique(GRID[batch], axis=0)) == 10


@pytest.mark.parametrize("has_prior", [True, False])
def test_the_seed_determines_the_order(has_prior: bool) -> None:
    prior = OTHERS[0] if has_prior else None
    first, second = (run_search(Search(GRID, prior=prior, seed=4), times(), 25) for _ in range(2))
    assert first == second


def test_a_space_of_one_configuration_is_searched() -> None:
    search = Search(GRID[:1])
    assert search.best is None and search.ask(2).tolist() == [0]
    search.tell(0, None)
    assert search.best is None and not len(search.ask())


def test_earlier_measurements_may_be_added() -> None:
    """An interrupted search adds times of configurations that it did not propose."""
    search = Search(GRID)
    for index in range(0, 60, 2):
        search.tell(index, times()[index])
    assert search.best == (int(2 * np.argmin(times()[:60:2])), times()[:60:2].min())
    assert not set(search.ask(20).tolist()) & set(range(0, 60, 2))
