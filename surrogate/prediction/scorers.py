"""Who adds up the leaves: the numpy `Forest`, ONNX Runtime on that forest, or XGBoost on the model's own columns."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from surrogate.prediction.forest import Forest
from surrogate.prediction.onnx_forest import OnnxForest

CHECKED_ROWS = 512
FEW_ROWS = 256
"""Up to as many rows ONNX Runtime is the faster, and is checked; then numpy, which follows rows together."""


class Scorer(Protocol):
    """Scores (rows,) float32 of C-contiguous float32 ``x`` (rows, columns); ``index`` names each row's candidate."""

    def score(self, x: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class ForestScorer:
    """numpy, or ONNX Runtime behind the same method."""

    forest: Forest | OnnxForest

    def score(self, x: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """As `Scorer.score`."""
        del index
        return self.forest.predict(x)


@dataclass(slots=True)
class FastScorer:
    """ONNX Runtime for a few rows, made (by ``make``, which may decline) when they first come; numpy for more."""

    forest: Forest
    make: Callable[[], OnnxForest | None]
    _made: Forest | OnnxForest | None = None
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def score(self, x: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """As `Scorer.score`."""
        del index
        if len(x) > FEW_ROWS:
            return self.forest.predict(x)
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = self.make() or self.forest
        return self._made.predict(x)


@dataclass(frozen=True, slots=True)
class BoosterScorer:
    """XGBoost: ``template`` (candidates, columns) its constant columns; ``source`` column of x → ``target`` column."""

    booster: Any
    template: np.ndarray
    source: np.ndarray
    target: np.ndarray

    def score(self, x: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """As `Scorer.score`."""
        full = self.template[index]
        full[:, self.target] = x[:, self.source]
        return self.booster.inplace_predict(full)


def worst_difference(
    forest: Forest, template: np.ndarray, varying: int, fast: Scorer, exact: Scorer, seed: int = 0
) -> float:
    """Largest difference of two scorers over `CHECKED_ROWS` rows that lie on the splits' boundaries.

    Every value of the first ``varying`` columns is a threshold of its column, the float next to one, or missing;
    ``template`` (candidates, columns) brings the columns behind them.
    """
    random = np.random.default_rng(seed)
    index = random.integers(0, len(template), CHECKED_ROWS)
    x = template[index]
    inner = ~np.isnan(forest.threshold)
    for column in range(varying):
        known = forest.threshold[inner & (forest.feature == column)]
        if len(known):
            at = random.choice(known, CHECKED_ROWS)
            towards = random.choice(np.array([-np.inf, np.inf], dtype=np.float32), CHECKED_ROWS)
            moved = np.where(random.random(CHECKED_ROWS) < 0.5, at, np.nextafter(at, towards))
            x[:, column] = np.where(random.random(CHECKED_ROWS) < 0.03, np.float32(np.nan), moved)
    worst = 0.0
    few = [slice(start, start + 8) for start in range(0, CHECKED_ROWS - FEW_ROWS, 8)]
    for part in [
        *few,
        slice(CHECKED_ROWS - FEW_ROWS, CHECKED_ROWS),
    ]:  # one problem, and a network
        difference = np.abs(fast.score(x[part], index[part]) - exact.score(x[part], index[part]))
        worst = max(worst, float(difference.max()))
    return worst if np.isfinite(worst) else np.inf
