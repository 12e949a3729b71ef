"""Tests of sources that are derived from another source's times, with known answers."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from surrogate.prediction.sources.similar_gpu import AverageRankSource, FastestSource
from surrogate.prediction.sources.source import Mixed, Source, Times


@dataclass(frozen=True, slots=True)
class FakeSource(Source):
    """A source with fixed times (problems, candidates); a problem's size is its row."""

    times_us: Any

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        return Times(self.times_us[sizes[problem_of_row, 0], candidate_of_row], np.zeros(len(candidate_of_row)))


CONTEXT: Any = SimpleNamespace(candidates="abcd")
MODEL = FakeSource(CONTEXT, np.array([[4.0, 2.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]]))
BOTH = np.indices((2, 4)).reshape(2, -1)


def test_an_average_rank_assigns_the_models_times_by_rank() -> None:
    """A candidate without a rank comes last; an excluded candidate keeps its time."""
    costs = np.array([0.1, np.nan, 0.0, 0.2])
    competes = np.array([[True, True, True, False], [True, True, True, True]])
    rules: Any = SimpleNamespace(allowed=lambda sizes: competes[sizes[:, 0]])
    source = AverageRankSource(CONTEXT, MODEL, rules, np.ones(4, dtype=bool), costs)
    times_us = source.times(np.array([[0], [1]]), *BOTH).time_us
    np.testing.assert_allclose(times_us[:4], [3.0, 4.0, 2.0, 1.0], rtol=1e-8)
    np.testing.assert_allclose(times_us[4:], 5.0, rtol=1e-8)
    assert np.argsort(times_us[4:]).tolist() == [2, 0, 3, 1]  # equal times are also ordered by rank
    alone = source.times(np.array([[0], [0]]), np.array([0]), np.array([2]))
    assert alone.time_us.tolist() == times_us[2:3].tolist()


def test_the_fastest_candidate_takes_the_measured_time_of_the_fastest() -> None:
    """On a GPU with half the roofline time of the donor, 6 µs become 3 µs. The second problem is outside."""

    def context(gpu: str, roofline_us: float) -> Any:
        terms = SimpleNamespace(roofline_us=np.full(2, roofline_us))
        setting = SimpleNamespace(gpu=gpu, problem=lambda sizes: sizes)
        return SimpleNamespace(candidates="abcd", setting=setting, formula=SimpleNamespace(problem=lambda _: terms))

    rows = SimpleNamespace(
        time_us=np.full(2, 6.0), half_width=np.full(2, 0.24), in_domain=np.array([True, False]), candidate=np.zeros(2)
    )
    rules: Any = SimpleNamespace(allowed=lambda sizes: np.array([[True, True, True, False]] * 2))
    donor = context("donor", 2.0)
    fastest: Any = SimpleNamespace(
        answers=lambda *_: rows, source=SimpleNamespace(context=donor), setting=donor.setting
    )
    own = context("own", 1.0)
    source = FastestSource(own, FakeSource(own, MODEL.times_us), rules, np.ones(4, dtype=bool), fastest)
    found = source.times(np.array([[0], [1]]), *BOTH)
    assert found.time_us.tolist() == [6.0, 3.0, 4.5, 1.5, 5.0, 5.0, 5.0, 5.0]
    assert found.source_name == "similar-gpu"
    np.testing.assert_allclose(found.half_width, [np.nan, 0.3, *[np.nan] * 6])  # hypot(0.24, 0.18)


def test_a_mixed_source_uses_the_fastest_source_that_covers_a_candidate() -> None:
    other = FakeSource(CONTEXT, -MODEL.times_us)
    covers = np.array([[False, True, True, True], [True, False, False, True]])
    mixed = Mixed(CONTEXT, (MODEL, other), covers)
    assert mixed.times(np.array([[0], [1]]), *BOTH).time_us.tolist() == [-4.0, 2.0, 3.0, -1.0, -5.0, 5.0, 5.0, -5.0]
