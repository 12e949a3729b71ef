"""A Gaussian process over log corrections: what a few measurements say about the rows near them, and no more.

Its covariance sums what may differ on a new device: everything alike (common), a trend in the terms (linear), problems
like one another (smooth); and for each family of algorithms and each candidate an offset and a smooth part of its own.
Source: Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equations 2.25, 2.26, 5.8; the
hyperparameters maximise the marginal likelihood times log-normal priors chosen by leaving GPUs out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

PRIORS: dict[str, tuple[float, float]] = {
    "common": (0.30, 0.5), "linear": (0.10, 0.5), "smooth": (0.15, 0.5),
    "family": (0.15, 0.5), "family_smooth": (0.15, 0.5),
    "candidate": (0.15, 0.5), "candidate_smooth": (0.15, 0.5),
    "length": (1.5, 0.5), "noise": (0.10, 0.5),
}  # fmt: skip
"""Hyperparameter → (median, spread of its natural logarithm); standard deviations are in log time."""
FITTED_ROWS = 400
"""Rows on which the hyperparameters are fitted: their likelihood costs the cube of the rows."""
MOST_ROWS = 3000
"""Rows that condition the process; more are thinned at random."""
STEPS = 15
CHUNK = 4096


@dataclass(frozen=True)
class Inputs:
    """Rows as the process sees them: ``terms`` (rows, terms) scaled, ``family`` and ``candidate`` codes (rows,)."""

    terms: np.ndarray
    family: np.ndarray
    candidate: np.ndarray

    def __len__(self) -> int:
        return len(self.terms)

    def take(self, index: np.ndarray) -> "Inputs":
        """The rows at these positions."""
        return Inputs(self.terms[index], self.family[index], self.candidate[index])


@dataclass(frozen=True)
class Residual:
    """A process conditioned on ``inputs``; ``weights`` (rows,) are its dual coefficients."""

    scales: Mapping[str, float]
    inputs: Inputs
    weights: np.ndarray

    @classmethod
    def fit(
        cls,
        inputs: Inputs,
        log_correction: np.ndarray,
        seed: int = 0,
        scales: Mapping[str, float] | None = None,
    ) -> Self:
        """Condition on corrections (rows,); hyperparameters are fitted unless ``scales`` gives them."""
        from scipy.linalg import cho_factor, cho_solve

        kept = _thinned(len(inputs), MOST_ROWS, seed)
        inputs, target = inputs.take(kept), log_correction[kept]
        if scales is None:
            few = _thinned(len(inputs), FITTED_ROWS, seed)
            scales = _fitted_scales(inputs.take(few), target[few])
        covariance = _with_noise(kernel(scales, inputs, inputs), scales)
        return cls(dict(scales), inputs, cho_solve(cho_factor(covariance, lower=True), target))

    def predict(self, inputs: Inputs) -> np.ndarray:
        """Expected log correction (rows,): near zero far from everything measured."""
        out = np.empty(len(inputs))
        for start in range(0, len(inputs), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(inputs)))
            out[part] = kernel(self.scales, inputs.take(part), self.inputs) @ self.weights
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "scales": dict(self.scales),
            "terms": self.inputs.terms.tolist(),
            "family": self.inputs.family.tolist(),
            "candidate": self.inputs.candidate.tolist(),
            "weights": self.weights.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        inputs = Inputs(np.array(values["terms"]), np.array(values["family"]), np.array(values["candidate"]))
        return cls(values["scales"], inputs, np.array(values["weights"]))


def kernel(scales: Mapping[str, float], a: Inputs, b: Inputs) -> np.ndarray:
    """Covariance (rows of a, rows of b) of log corrections, noise left out."""
    cross = a.terms @ b.terms.T
    squares = (a.terms**2).sum(1)[:, None] + (b.terms**2).sum(1)[None, :] - 2 * cross
    near = np.exp(-0.5 * np.maximum(squares, 0.0) / scales["length"] ** 2)
    total = (
        scales["common"] ** 2
        + scales["linear"] ** 2 / a.terms.shape[1] * cross
        + scales["smooth"] ** 2 * near
    )
    for name in ("family", "candidate"):
        same = getattr(a, name)[:, None] == getattr(b, name)[None, :]
        total += same * (scales[name] ** 2 + scales[f"{name}_smooth"] ** 2 * near)
    return total


def _with_noise(covariance: np.ndarray, scales: Mapping[str, float]) -> np.ndarray:
    covariance[np.diag_indices_from(covariance)] += scales["noise"] ** 2 + 1e-10
    return covariance


def _fitted_scales(inputs: Inputs, target: np.ndarray) -> dict[str, float]:
    """The hyperparameters of greatest posterior density, from the priors' medians."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve
    from scipy.optimize import minimize

    names = list(PRIORS)
    centre = np.log([PRIORS[name][0] for name in names])
    spread = np.array([PRIORS[name][1] for name in names])

    def scales_at(point: np.ndarray) -> dict[str, float]:
        return dict(zip(names, np.exp(point).tolist(), strict=True))

    def loss(point: np.ndarray) -> float:
        scales = scales_at(point)
        try:
            factor = cho_factor(_with_noise(kernel(scales, inputs, inputs), scales), lower=True)
        except LinAlgError:
            return 1e6
        fit = 0.5 * target @ cho_solve(factor, target) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * (((point - centre) / spread) ** 2).sum())

    bounds = [(c - 4 * s, c + 4 * s) for c, s in zip(centre, spread, strict=True)]
    found = minimize(loss, centre, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return scales_at(found.x)


def _thinned(count: int, most: int, seed: int) -> np.ndarray:
    """Positions: all, or ``most`` of them at random, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])
