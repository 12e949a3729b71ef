"""One group's fit in `seer-time-only`: coefficients per tile, and which tile runs in which range of K."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.seer.analytical import OUTPUT_EDGES, Analytical
from surrogate.models.seer.fit import relative_fit, relative_loss

SPANS = len(OUTPUT_EDGES) + 1


@dataclass(frozen=True, slots=True)
class TileFit:
    """``coefficients``: tile → coefficients; ``tile_of``: the tile of each K range."""

    coefficients: Mapping[int, tuple[float, ...]]
    tile_of: tuple[int, ...]

    @classmethod
    def fit(cls, a: Analytical, form: int, rows: np.ndarray, time_us: np.ndarray) -> "TileFit":
        """From the group's ``rows`` (positions in ``a``) and their times.

        Where a rule names the tiles, each tile is fitted on its rows. Elsewhere every tile is fitted on all rows, each K
        range keeps the tile that fits it best, and the kept tiles are fitted again on their own ranges.
        """
        candidates = [terms[form][rows] for terms in a.terms]
        span, named = a.span[rows], a.tile[rows]
        pooled = [relative_fit(terms, time_us, nonnegative=True) for terms in candidates]
        losses = [relative_loss(x, time_us, c) for x, c in zip(candidates, pooled, strict=True)]
        best = int(np.argmin([loss.sum() for loss in losses]))
        tile_of = [
            int(np.argmin([loss[span == s].sum() for loss in losses])) if (span == s).any() else best
            for s in range(SPANS)
        ]
        tile = np.where(named >= 0, named, np.array(tile_of)[span])
        coefficients = {}
        for t, terms in enumerate(candidates):
            # Too few rows for a tile of its own: the fit over all rows of the group, with that tile's terms.
            own = tile == t
            enough = own.sum() >= 2 * terms.shape[1]
            found = relative_fit(terms[own], time_us[own], nonnegative=True) if enough else pooled[t]
            coefficients[t] = tuple(found.tolist())
        return cls(coefficients, tuple(tile_of))

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
        return {"coefficients": {str(t): list(c) for t, c in self.coefficients.items()}, "tile_of": list(self.tile_of)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TileFit":
        """What `to_json` returned."""
        return cls({int(t): tuple(c) for t, c in data["coefficients"].items()}, tuple(data["tile_of"]))
