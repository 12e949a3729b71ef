"""SEER's FFT and FFT_TILING: times of whole calls, without counters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.seer import formulas
from surrogate.models.seer.fit import FormFit
from surrogate.models.seer.sizes import Sizes

BUCKETS = (16, 32, 64, 128, 256)
"""Widths that FFT has a transform for, each with a fit of its own."""
ALGORITHMS = ("FFT", "FFT_TILING")
ALL_WIDTHS = 0


@dataclass(frozen=True, slots=True)
class FftFit:
    """Width bucket (FFT_TILING: one for all) → coefficients. ``batch``: that of the training rows; SEER has no
    batch term, so other batches are scaled in proportion.
    """

    algorithm: str
    fits: Mapping[int, FormFit]
    batch: float

    @classmethod
    def fit(cls, algorithm: str, sizes: Sizes, time_us: np.ndarray) -> "FftFit":
        """From the feasible ok rows (at least one)."""
        batch = float(np.median(sizes.batch))
        bucket = buckets(algorithm, sizes)
        scaled = time_us * batch / sizes.batch
        fits = {
            int(one): FormFit.of(_terms(algorithm, sizes.take(bucket == one)), scaled[bucket == one])
            for one in np.unique(bucket)
        }
        return cls(algorithm, fits, batch)

    def predict_us(self, sizes: Sizes) -> np.ndarray:
        """Time in µs (rows,); NaN in a width bucket that training did not hold."""
        bucket = buckets(self.algorithm, sizes)
        time_us = np.full(len(bucket), np.nan)
        for one, fit in self.fits.items():
            mine = bucket == one
            time_us[mine] = fit.predict(_terms(self.algorithm, sizes.take(mine)), int(mine.sum()))
        return time_us * sizes.batch / self.batch

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        fits = {str(bucket): fit.to_json() for bucket, fit in self.fits.items()}
        return {"algorithm": self.algorithm, "fits": fits, "batch": self.batch}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FftFit":
        """What `to_json` returned."""
        fits = {int(bucket): FormFit.from_json(fit) for bucket, fit in data["fits"].items()}
        return cls(data["algorithm"], fits, data["batch"])


def buckets(algorithm: str, sizes: Sizes) -> np.ndarray:
    """(rows,) the least of `BUCKETS` that holds each width; FFT_TILING: one for all."""
    if algorithm == "FFT_TILING":
        return np.full(len(sizes.width), ALL_WIDTHS)
    return np.array(BUCKETS)[np.searchsorted(BUCKETS, sizes.width).clip(max=len(BUCKETS) - 1)]


def _terms(algorithm: str, s: Sizes) -> formulas.Terms:
    if algorithm == "FFT_TILING":
        return formulas.fft_tiling_terms(s.channels, s.outputs, s.out_width, s.filter_width)
    return formulas.fft_terms(s.channels, s.outputs)
