"""Sources that are made of another one's times: known answers."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from surrogate.prediction.sources.similar_gpu import AverageRankSource
from surrogate.prediction.sources.source import Mixed, Source, Times


@dataclass(frozen=True, slots=True)
class Stated(Source):
    """The times (problems, candidates) that a test states; a problem's size is its number."""

    times_us: Any

    def times(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> Times:
        return Times(self.times_us[sizes[problem, 0], index], np.zeros(len(index)))


CONTEXT: Any = SimpleNamespace(candidates="abcd")
MODEL = Stated(CONTEXT, np.array([[4.0, 2.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]]))
BOTH = np.indices((2, 4)).reshape(2, -1)


def test_an_average_rank_assigns_the_models_times_in_its_own_order() -> None:
    """An unknown candidate comes last; a candidate that does not compete keeps its time."""
    costs = np.array([0.1, np.nan, 0.0, 0.2])
    competes = np.array([[True, True, True, False], [True, True, True, True]])
    rules: Any = SimpleNamespace(allowed=lambda sizes: competes[sizes[:, 0]])
    source = AverageRankSource(CONTEXT, MODEL, costs, rules, np.ones(4, dtype=bool))
    times_us = source.times(np.array([[0], [1]]), *BOTH).time_us
    np.testing.assert_allclose(times_us[:4], [3.0, 4.0, 2.0, 1.0], rtol=1e-8)
    np.testing.assert_allclose(times_us[4:], 5.0, rtol=1e-8)
    assert np.argsort(times_us[4:]).tolist() == [2, 0, 3, 1]  # equal times keep that order, too
    alone = source.times(np.array([[0]]), np.array([0]), np.array([2]))
    assert alone.time_us.tolist() == times_us[2:3].tolist()


def test_a_mixed_source_answers_by_the_first_that_covers_a_candidate() -> None:
    other = Stated(CONTEXT, -MODEL.times_us)
    mixed = Mixed(CONTEXT, other, MODEL, covers=np.array([True, False, False, True]))
    assert mixed.times(np.array([[0], [1]]), *BOTH).time_us.tolist() == [-4.0, 2.0, 3.0, -1.0, -5.0, 5.0, 5.0, -5.0]
