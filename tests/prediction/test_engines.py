"""Engines that are made of another one's times: known answers."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from surrogate.prediction.engine import Engine
from surrogate.prediction.habit import HabitEngine


@dataclass(frozen=True, slots=True)
class Stated(Engine):
    """The times (problems, candidates) that a test states; a problem's size is its number."""

    times_us: Any

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.times_us[sizes[problem, 0], index], np.zeros(len(index))


def test_a_habit_deals_out_the_models_times_in_its_own_order() -> None:
    """What it does not know comes last; what does not compete keeps its time."""
    context: Any = SimpleNamespace(candidates="abcd")
    model = Stated(context, np.array([[4.0, 2.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]]))
    costs = np.array([0.1, np.nan, 0.0, 0.2])
    competes = np.array([[True, True, True, False], [True, True, True, True]])
    rules: Any = SimpleNamespace(allowed=lambda sizes: competes[sizes[:, 0]])
    habit = HabitEngine(context, model, costs, None, rules, np.ones(4, dtype=bool))
    problem, index = np.indices((2, 4)).reshape(2, -1)
    times_us, _ = habit.many(np.array([[0], [1]]), problem, index)
    np.testing.assert_allclose(times_us[:4], [3.0, 4.0, 2.0, 1.0], rtol=1e-8)
    np.testing.assert_allclose(times_us[4:], 5.0, rtol=1e-8)
    assert np.argsort(times_us[4:]).tolist() == [2, 0, 3, 1]  # equal times stand in that order, too
    alone, _ = habit.many(np.array([[0]]), np.array([0]), np.array([2]))
    assert alone.tolist() == times_us[2:3].tolist()
    other = Stated(context, np.array([[9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]]))
    by_other = HabitEngine(context, model, 0.0 * costs, other, rules, np.ones(4, dtype=bool))
    times_us, _ = by_other.many(np.array([[0]]), np.zeros(4, dtype=int), np.arange(4))
    np.testing.assert_allclose(times_us, [3.0, 4.0, 2.0, 1.0], rtol=1e-8)
