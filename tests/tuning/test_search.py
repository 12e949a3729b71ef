"""The sequential search: what it may never do, and that it finds what is there, on invented kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.tuning.search import Search

GRID = np.array(
    [(x, y, u, k) for x in (16, 32, 64, 128, 256) for y in (1, 2, 4, 8, 16) for u in (1, 2, 4) for k in (0, 1)],
    dtype=np.float64,
)


def times(place: float = 0.0) -> np.ndarray:
    x, y, unroll, flag = np.log2(GRID[:, 0]) - 6, np.log2(GRID[:, 1]) - 2, np.log2(GRID[:, 2]), GRID[:, 3]
    return 100 * np.exp(0.2 * (x + y - place) ** 2 + 0.1 * (x - place) ** 2 + 0.1 * unroll + 0.2 * flag * (x > 0))


def scores(time_us: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(time_us), 1 - time_us.min() / time_us, 1.0)


def played(search: Search, time_us: np.ndarray, evaluations: int) -> list[int]:
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
def test_nothing_is_asked_twice(seed: int, counts: list[int], has_prior: bool, answers_late: bool) -> None:
    """Whether measurements come in between or not, and whether they fail or not."""
    more = {"prior": OTHERS.mean(axis=0), "others": OTHERS} if has_prior else {}
    search = Search(GRID, **more, seed=seed)
    everything: list[int] = []
    for count in counts:
        indices = search.ask(count).tolist()
        assert len(indices) == count
        everything += indices
        for index in [] if answers_late else indices:
            search.tell(index, None if index % 3 == 0 else times()[index])
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("has_prior", [True, False])
def test_all_are_asked_at_last(has_prior: bool) -> None:
    few = GRID[:40]
    search = Search(few, prior=OTHERS[0, :40] if has_prior else None)
    order = played(search, times()[:40], 1000)
    assert sorted(order) == list(range(40))
    assert len(search.ask(3)) == 0
    assert search.best == (int(np.argmin(times()[:40])), times()[:40].min())


def test_the_prior_is_followed_first_and_left_where_it_is_wrong() -> None:
    truth = times(0.5)
    search = warm(truth, OTHERS)
    order = played(search, truth, 15)
    assert order[0] == int(np.argmin(OTHERS.mean(axis=0)))
    assert truth[order].min() <= 1.02 * truth.min()


def test_a_cold_start_beats_chance() -> None:
    truth = times(0.5)
    reached, by_chance = [], []
    for seed in range(3):
        reached.append(truth[played(Search(GRID, seed=seed), truth, 25)].min())
        by_chance.append(truth[np.random.default_rng(seed).permutation(len(truth))[:25]].min())
    assert np.mean(reached) <= 1.03 * truth.min() and np.mean(reached) <= np.mean(by_chance)


def test_what_is_known_helps_though_some_of_it_is_missing() -> None:
    """A prior without other problems; terms; other problems with holes."""
    terms = np.log(times())[:, None].astype(np.float32)
    terms[::7] = np.nan
    holes = OTHERS.copy()
    holes[0, ::3] = holes[1, :50] = np.nan
    searches = (
        (12, Search(GRID, prior=scores(times(0.3)))),
        (20, Search(GRID, terms=terms)),
        (15, Search(GRID, prior=np.nanmean(holes, axis=0), others=holes)),
    )
    for evaluations, search in searches:
        assert times()[played(search, times(), evaluations)].min() <= 1.03 * times().min()


def test_failures_are_avoided() -> None:
    """Two fifths of the space fail: few of them are asked for, once some were seen or where they are foreseen."""
    truth = np.where(GRID[:, 0] * GRID[:, 1] > 256, np.inf, times(-1.5))
    order = played(Search(GRID), truth, 50)
    assert np.isinf(truth[order[10:]]).mean() < 0.6 * np.isinf(truth).mean()
    foreseen = np.where(np.isinf(truth), 0.9, 0.0)
    known = played(Search(GRID, prior=scores(times(-1.0)), failure=foreseen), truth, 20)
    assert np.isinf(truth[known]).sum() <= 4


def test_a_batch_is_spread() -> None:
    """Ten at once: no worse than the ten that the prior likes best, and not all alike."""
    search = warm(times(), OTHERS)
    batch = search.ask(10)
    listed = np.argsort(OTHERS.mean(axis=0))[:10]
    assert times(0.5)[batch].min() <= 1.1 * times(0.5)[listed].min()
    assert len(np.unique(GRID[batch], axis=0)) == 10


@pytest.mark.parametrize("has_prior", [True, False])
def test_the_seed_decides_everything(has_prior: bool) -> None:
    first, second = (
        played(Search(GRID, prior=OTHERS[0] if has_prior else None, seed=4), times(), 25) for _ in range(2)
    )
    assert first == second


def test_one_configuration() -> None:
    search = Search(GRID[:1])
    assert search.best is None and search.ask(2).tolist() == [0]
    search.tell(0, None)
    assert search.best is None and not len(search.ask())


def test_what_was_measured_before_may_be_told() -> None:
    """A time of a configuration that was not asked for: an interrupted search goes on."""
    search = Search(GRID)
    for index in range(0, 60, 2):
        search.tell(index, times()[index])
    assert search.best == (int(2 * np.argmin(times()[:60:2])), times()[:60:2].min())
    assert not set(search.ask(20).tolist()) & set(range(0, 60, 2))


def test_times_are_checked(refused) -> None:
    for index, time_us in ((0, -1.0), (0, float("nan")), (len(GRID), 1.0)):
        with refused():
            Search(GRID).tell(index, time_us)
