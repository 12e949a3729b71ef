"""How much a run spends: quick or full, which seed, which models."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from surrogate.dataset.problems import shape_names
from surrogate.dataset.splits import fold_of_names
from surrogate.dataset.store import Dataset
from surrogate.features.families import CONV, Family
from surrogate.models import MODELS, TimeModel


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

    def named(self, *wanted: str) -> dict[str, TimeModel]:
        """Name → unfitted model, in the registry's order: those of ``wanted`` that exist, or all of them."""
        return {
            name: seeded(MODELS[name], self.seed)
            for name in MODELS
            if (not wanted or name in wanted) and (self.models is None or name in self.models)
        }

    def timed(self, *wanted: str) -> dict[str, TimeModel]:
        """Those of `named` that predict times."""
        return {name: model for name, model in self.named(*wanted).items() if model.predicts_time}

    def sample(self, data: Dataset, shapes: int | None = None) -> Dataset:
        """`sampled` convolutions of a dataset."""
        return data.with_frame(self.sampled(data.frame, CONV, shapes))

    def sampled(self, frame: pd.DataFrame, kind: Family, shapes: int | None = None) -> pd.DataFrame:
        """Whole shapes of a family's table, drawn by a seeded hash: at most ``shapes`` of them.

        In a quick run also at most ``quick_shapes``; all where neither limits them.
        """
        limits = [limit for limit in (shapes, self.quick_shapes if self.quick else None) if limit is not None]
        names = shape_names(frame, kind)
        distinct = len(set(names))
        if not limits or distinct <= min(limits):
            return frame
        place = fold_of_names(names, distinct, self.seed)
        return frame[np.array([place[name] < min(limits) for name in names])]


def seeded(cls: type[TimeModel], seed: int) -> TimeModel:
    """An unfitted model of that class with its stored settings; one that draws nothing has no seed."""
    model = cls()
    return model.set_params(random_state=seed) if "random_state" in model.get_params() else model
