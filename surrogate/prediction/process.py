"""The Gaussian processes of a fitted model, made ready for one setting: a few candidates on one device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surrogate.models.covariance import TREND_SHARED, Covariance
from surrogate.models.places import COLUMNS, SCALES

CHUNK = 24
"""Rows per block of the covariance matrix: its temporaries stay in a core's cache."""
KEPT_PARTS = 16
"""Sets of candidates whose arrays are kept side by side; others are put together when asked for."""
Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""``factors``, ``weights``, ``slope`` and ``trees_share`` of some candidates."""


@dataclass(frozen=True, slots=True)
class HotProcess:
    """``project`` (varying columns, axes + 2) and ``offset`` (axes + 2,) turn a hot row into its place on the axes

    along which problems of the setting differ.

    A place is in units of the covariance's length, from the points' centre, with a one and the squared length of both
    behind it: its product with ``factors`` (candidates, axes + 2, m) is the squared distance to every point.
    ``weights`` (candidates, m, 1) are the points', ``slope`` (candidates, axes + 2) the trend's, its level behind the
    axes; both are multiplied by the process's share in the answer, 0 for a candidate that has none. ``trees_share``
    (candidates,) is the rest.
    """

    covariance: Covariance
    project: np.ndarray
    offset: np.ndarray
    factors: np.ndarray
    weights: np.ndarray
    slope: np.ndarray
    trees_share: np.ndarray
    _parts: dict[tuple[int, ...], Part] = field(default_factory=dict, repr=False, compare=False)

    def blend(self, by_trees: np.ndarray, x: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
        """Log corrections (rows,), the trees' and the process's, of row i for the candidate ``wanted[i]``.

        ``x`` (rows, varying columns …).
        """
        factors, weights, slope, trees_share = self._part(tuple(wanted))
        place = self._places(x)
        smooth = np.matmul(self.covariance.smooth_of_scaled(np.matmul(place[:, None], factors)), weights)
        return by_trees * trees_share + np.add.reduce(place * slope, axis=1) + smooth[:, 0, 0]

    def blend_all(self, by_trees: np.ndarray, x: np.ndarray, candidate: int) -> np.ndarray:
        """`blend` of many rows for one candidate."""
        trees_share = self.trees_share[candidate]
        if trees_share == 1.0:
            return by_trees
        out = np.empty(len(x))
        factors, weights, slope = self.factors[candidate], self.weights[candidate], self.slope[candidate]
        for start in range(0, len(x), CHUNK):
            place = self._places(x[start : start + CHUNK])
            smooth = self.covariance.smooth_of_scaled(place @ factors) @ weights
            out[start : start + CHUNK] = smooth[:, 0] + place @ slope
        out += by_trees * trees_share
        return out

    def _places(self, x: np.ndarray) -> np.ndarray:
        """Single precision: logarithms of sizes, measured from the centre, lose nothing that a time would show."""
        place = x[:, : len(self.project)].dot(self.project)
        place += self.offset
        place[:, -1] = np.add.reduce(place * place, axis=1)
        return place

    def _part(self, wanted: tuple[int, ...]) -> Part:
        found = self._parts.get(wanted)
        if found is None:
            first, last = wanted[0], wanted[-1] + 1
            whole = wanted == tuple(range(first, last))
            at: Any = slice(first, last) if whole else list(wanted)  # neighbours need no copy
            found = self.factors[at], self.weights[at], self.slope[at], self.trees_share[at]
            if whole or len(self._parts) < KEPT_PARTS:
                self._parts[wanted] = found
        return found


def hot_process(
    model: Any,
    share: float,
    device: str,
    names: Sequence[str],
    varying: Sequence[str],
    constant: Mapping[str, float],
) -> HotProcess:
    """A fitted `GaussianTerms` for the candidates ``names`` on the GPU ``device`` (its registry name).

    ``share`` is its weight in the answer; ``varying`` are the leading columns of a hot row, ``constant`` holds every
    other feature's value.
    """
    covariance, code = model.covariance, model.devices.get(device, -1)
    known = [model.processes.get(name) for name in names]
    count = max((len(one.points) for one in known if one), default=1)
    axes = SCALES.shape[1]
    points, weights = np.zeros((len(names), count, axes)), np.zeros((len(names), count))
    slope, level = np.zeros((len(names), axes)), np.zeros(len(names))
    for i, one in enumerate(known):
        if one is None:
            continue
        same, m = one.device == code, len(one.points)
        points[i, :m] = one.points
        weights[i, :m] = one.weights * np.where(same, 1.0, covariance.shared)
        trend = one.weights * np.where(same, 1.0, TREND_SHARED)
        slope[i] = covariance.trend_variance * (trend @ one.points.astype(np.float64))
        level[i] = one.mean + trend.sum()
    project, offset = _projection(varying, constant)
    centre = points.reshape(-1, axes).mean(axis=0)  # near zero, single precision is finest
    level += slope @ centre
    points, offset = points - centre, offset - centre
    live = project.any(axis=0)  # along the other axes a point's distance is the same for every problem
    level += slope[:, ~live] @ offset[~live]
    fixed = np.square((points[..., ~live] - offset[~live]) * covariance.scale).sum(axis=2)
    scaled = (points[..., live] * covariance.scale).astype(np.float32).astype(np.float64)
    factors = np.empty((len(names), int(live.sum()) + 2, count), dtype=np.float32)
    factors[:, :-2] = -2.0 * scaled.transpose(0, 2, 1)
    factors[:, -2] = np.square(scaled).sum(axis=2) + fixed - 1.0  # what a place's own one adds to its square
    factors[:, -1] = 1.0
    own_share = np.array([share if one else 0.0 for one in known])
    trend = np.zeros((len(names), factors.shape[1]))
    trend[:, :-2] = slope[:, live] / covariance.scale
    trend[:, -2] = level
    return HotProcess(
        covariance,
        np.pad(project[:, live] * covariance.scale, ((0, 0), (0, 2))).astype(np.float32),
        np.append(offset[live] * covariance.scale, (1.0, 0.0)).astype(np.float32),
        factors,
        (own_share[:, None] * weights)[:, :, None].astype(np.float32),
        own_share[:, None] * trend,
        1.0 - own_share,
    )


def _projection(varying: Sequence[str], constant: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """(varying columns, axes) and (axes,): what a place takes from a row, and from what no problem changes."""
    place_of = {name: place for place, name in enumerate(varying)}
    project, offset = np.zeros((len(varying), SCALES.shape[1])), np.zeros(SCALES.shape[1])
    for name, scales in zip(COLUMNS, SCALES, strict=True):
        if name in place_of:
            project[place_of[name]] += scales
        else:
            offset += np.float32(constant[name]) * scales
    return project, offset
