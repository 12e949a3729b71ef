"""How much a run spends: quick or full, which seed, which models."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.dataset.store import Dataset
from surrogate.models import MODELS


def _silent(text: str) -> None:
    del text


@dataclass(frozen=True, slots=True)
class Effort:
    """``seed`` decides folds, samples and fits; ``models`` limits the registry (None: all of it).

    ``tick`` is called with a text before every fit.
    """

    quick: bool = False
    seed: int = 0
    models: tuple[str, ...] | None = None
    tick: Callable[[str], None] = _silent
    quick_shapes: int = 900

    @property
    def folds(self) -> int:
        """Folds of a cross-validation."""
        return 3 if self.quick else 10

    def timed(self, *wanted: str) -> tuple[str, ...]:
        """Models that predict times, in the registry's order: those of ``wanted`` that exist, or all of them."""
        return tuple(name for name in self.named(*wanted) if MODELS[name].predicts_time)

    def named(self, *wanted: str) -> tuple[str, ...]:
        """Models of the registry, in its order: those of ``wanted`` that exist, or all of them."""
        return tuple(
            name
            for name in MODELS
            if (not wanted or name in wanted) and (self.models is None or name in self.models)
        )

    def sample(self, data: Dataset) -> Dataset:
        """All of ``data``, or in a quick run at most ``quick_shapes`` whole shapes, drawn by a seeded hash."""
        names = shape_names(data.frame)
        distinct = len(set(names))
        if not self.quick or distinct <= self.quick_shapes:
            return data
        place = fold_of_names(names, distinct, self.seed)
        kept = np.array([place[name] < self.quick_shapes for name in names])
        return data.with_frame(data.frame[kept])
