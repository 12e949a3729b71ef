"""One group's fit in `seer-time-only`: coefficients per tile, and which tile runs in which range of K."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.least_squares import relative_fit, relative_loss
from surrogate.models.seer.analytical import OUTPUT_EDGES, Analytical

SPANS = len(OUTPUT_EDGES) + 1
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class TileFit:
    """``coefficients``: tile → coefficients; ``tile_of``: the tile of each K range."""

    coefficients: Mapping[int, tuple[float, ...]]
    tile_of: tuple[int, ...]

    @classmethod
    def fit(cls, a: Analytical, form: int, rows: np.ndarray, time_us: np.ndarray) -> "TileFit":
        """From the group's ``rows`` (positions in ``a``) and their times.

        Where a rule names the tiles, each tile is fitted on its rows. Elsewhere every tile is fitted on all rows, each
        K range takes the tile that fits it best, and both steps repeat on what each tile got, `ROUNDS` times. A tile
        with fewer than two rows for each coefficient keeps the fit over all rows.
        """
        candidates = [terms[form][rows] for terms in a.terms]
        span, named = a.span[rows], a.tile[rows]
        fits = pooled = [relative_fit(terms, time_us, nonnegative=True) for terms in candidates]
        tile_of = np.zeros(SPANS, dtype=int)
        for _ in range(ROUNDS):
            losses = [relative_loss(x, time_us, c) for x, c in zip(candidates, fits, strict=True)]
            sums = np.array([np.bincount(span, loss, minlength=SPANS) for loss in losses])
            # A range without rows takes what fits the whole group best.
            sums[:, np.bincount(span, minlength=SPANS) == 0] = sums.sum(axis=1, keepdims=True)
            tile_of = sums.argmin(axis=0)
            tile = np.where(named >= 0, named, tile_of[span])
            fits = [
                relative_fit(terms[tile == t], time_us[tile == t], nonnegative=True)
                if (tile == t).sum() >= 2 * terms.shape[1]
                else pooled[t]
                for t, terms in enumerate(candidates)
            ]
        return cls({t: tuple(fit.tolist()) for t, fit in enumerate(fits)}, tuple(tile_of.tolist()))

    def predict(self, a: Analytical, form: int, rows: np.ndarray) -> np.ndarray:
        """Times in µs of the ``rows`` (positions in ``a``), (rows,)."""
        tile = np.where(a.tile[rows] >= 0, a.tile[rows], np.array(self.tile_of)[a.span[rows]])
        time_us = np.empty(len(rows))
        for t in np.unique(tile):
            mine = tile == t
            time_us[mine] = a.terms[t][form][rows[mine]] @ np.array(self.coefficients[int(t)])
        return time_us

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "coefficients": {str(t): list(c) for t, c in self.coefficients.items()},
            "tile_of": list(self.tile_of),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TileFit":
        """What `to_json` returned."""
        return cls({int(t): tuple(c) for t, c in data["coefficients"].items()}, tuple(data["tile_of"]))
