"""A model's times in the order of a habit, where nothing like the GPU was measured."""

from dataclasses import dataclass

import numpy as np

from surrogate.prediction.engine import Engine
from surrogate.prediction.prepared import SupportRules


@dataclass(frozen=True, slots=True)
class HabitEngine(Engine):
    """The model's times of the candidates that compete for a problem, dealt out in the order of a habit.

    That goes by ``costs`` (candidates,), NaN where it knows nothing of a candidate, which then comes last; of the
    habit of another GPU these are 0 or NaN, and the times of its ``guide`` are added. Those of the ``choosable``
    (candidates,) compete that the ``rules`` allow; the others keep the model's times.
    """

    model: Engine
    costs: np.ndarray
    guide: Engine | None
    rules: SupportRules
    choosable: np.ndarray

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        # 1. All arrays are (problems, candidates).
        times_us, workspace = _every_candidate(self.model, sizes)
        competes = self.rules.allowed(sizes) & self.choosable & np.isfinite(times_us)
        costs = self.costs + (_every_candidate(self.guide, sizes)[0] if self.guide else np.zeros(times_us.shape))
        # 2. The habit's order of those that compete, and as many times, the least first; a hair apart, so that the
        #    order shows. What does not compete stands behind them in both.
        ordered = np.where(competes, np.nan_to_num(costs, nan=np.finfo(float).max), np.inf)
        rank = np.argsort(np.argsort(ordered, axis=1, kind="stable"), axis=1)
        in_order_us = np.sort(np.where(competes, times_us, np.inf), axis=1) * (1 + 1e-9 * np.arange(len(self.costs)))
        dealt_us = np.where(competes, np.take_along_axis(in_order_us, rank, axis=1), times_us)
        return dealt_us[problem, index], workspace[problem, index]


def _every_candidate(engine: Engine, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(problems, candidates) times in µs and workspaces in bytes of all the engine's candidates."""
    shape = len(sizes), len(engine.context.candidates)
    problem, index = (places.ravel() for places in np.indices(shape))
    times_us, workspace = engine.many(sizes, problem, index)
    return times_us.reshape(shape), workspace.reshape(shape)
