"""The Gaussian processes of a fitted model, made ready for one setting: a few candidates on one device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.covariance import TREND_SHARED, Covariance
from surrogate.models.places import COLUMNS, SCALES

CHUNK = 192
"""Rows per block of the covariance matrix: it stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class HotProcess:
    """``project`` (varying columns, axes) and ``offset`` (axes,) turn a hot row into its place; per candidate:

    ``points`` (candidates, m, axes) with their squared lengths ``squares`` (candidates, m), ``smooth`` weights
    (candidates, m) in which the device's share is counted, ``slope`` (candidates, axes) and ``level`` (candidates,) of
    the trend. A candidate without a process has level NaN.
    """

    covariance: Covariance
    project: np.ndarray
    offset: np.ndarray
    points: np.ndarray
    squares: np.ndarray
    smooth: np.ndarray
    slope: np.ndarray
    level: np.ndarray

    def each(self, x: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
        """Log corrections (rows,) of row i for the candidate ``wanted[i]``; ``x`` (rows, varying columns …)."""
        place = self._places(x)
        index = np.asarray(wanted)
        squares = np.matmul(self.points[index], place[:, :, None])[:, :, 0]
        squares *= -2.0
        squares += self.squares[index]
        squares += np.einsum("ij,ij->i", place, place)[:, None]
        smooth = np.einsum("ij,ij->i", self.covariance.smooth(squares), self.smooth[index])
        return self.level[index] + np.einsum("ij,ij->i", place, self.slope[index]) + smooth

    def all(self, x: np.ndarray, candidate: int) -> np.ndarray:
        """Log corrections (rows,) of many rows for one candidate."""
        out = np.empty(len(x))
        doubled, own = -2.0 * self.points[candidate].T, self.squares[candidate]
        for start in range(0, len(x), CHUNK):
            place = self._places(x[start : start + CHUNK])
            squares = place @ doubled
            squares += own
            squares += np.einsum("ij,ij->i", place, place)[:, None]
            smooth = self.covariance.smooth(squares) @ self.smooth[candidate]
            out[start : start + CHUNK] = smooth + place @ self.slope[candidate]
        return out + self.level[candidate]

    def _places(self, x: np.ndarray) -> np.ndarray:
        """Single precision: logarithms of sizes, measured from ``offset``, lose nothing that a time would show."""
        return x[:, : len(self.project)] @ self.project + self.offset


def hot_process(
    model: Any, device: str, names: Sequence[str], varying: Sequence[str], constant: Mapping[str, float]
) -> HotProcess:
    """A fitted `GaussianTerms` for the candidates ``names`` on the GPU ``device`` (its registry name).

    ``varying`` are the leading columns of a hot row; ``constant`` holds every other feature's value.
    """
    place_of = {name: place for place, name in enumerate(varying)}
    project, offset = np.zeros((len(varying), SCALES.shape[1])), np.zeros(SCALES.shape[1])
    for name, scales in zip(COLUMNS, SCALES, strict=True):
        if name in place_of:
            project[place_of[name]] += scales
        else:
            offset += np.float32(constant[name]) * scales
    covariance, code = model.covariance, model.devices.get(device, -1)
    known = [model.processes.get(name) for name in names]
    count = max((len(one.points) for one in known if one), default=1)
    shape = (len(names), count)
    points, smooth = np.zeros((*shape, SCALES.shape[1])), np.zeros(shape)
    slope, level = np.zeros((len(names), SCALES.shape[1])), np.full(len(names), np.nan)
    for i, one in enumerate(known):
        if one is None:
            continue
        same, m = one.device == code, len(one.points)
        points[i, :m] = one.points
        smooth[i, :m] = one.weights * np.where(same, 1.0, covariance.shared)
        trend = one.weights * np.where(same, 1.0, TREND_SHARED)
        slope[i] = covariance.trend_variance * (trend @ one.points.astype(np.float64))
        level[i] = one.mean + trend.sum()
    centre = points.reshape(-1, points.shape[2]).mean(axis=0)  # near zero, single precision is finest
    level += slope @ centre
    points -= centre
    offset -= centre
    squares = np.einsum("ijk,ijk->ij", points, points)
    return HotProcess(
        covariance,
        project.astype(np.float32),
        offset.astype(np.float32),
        points.astype(np.float32),
        squares.astype(np.float32),
        smooth.astype(np.float32),
        slope,
        level,
    )
