"""`Calibrated`: a fitted model, and for each calibrated device a correction learned from a few measurements there.

The correction of log time is a Gaussian process: it says what a few measurements tell of the rows near them, and no
more. Its covariance sums what may differ on a new device: everything alike (common), a trend in the terms (linear),
problems like one another (smooth); and for each mechanism and each candidate an offset and a smooth part of its own.
Source: Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equations 2.25, 2.26, 5.8; the
hyperparameters maximise the marginal likelihood times log-normal priors chosen by leaving GPUs out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.base import TimeModel
from surrogate.models.plain import from_plain, to_plain
from surrogate.models.trees import BoostedTimes

PRIORS: dict[str, tuple[float, float]] = {
    "common": (0.30, 0.5), "linear": (0.10, 0.5), "smooth": (0.15, 0.5),
    "mechanism": (0.15, 0.5), "mechanism_smooth": (0.15, 0.5),
    "candidate": (0.15, 0.5), "candidate_smooth": (0.15, 0.5),
    "length": (1.5, 0.5), "noise": (0.10, 0.5),
}  # fmt: skip
"""Hyperparameter → (median, spread of its natural logarithm); standard deviations are in log time."""
PREDICTED_UNIT = 3.0
"""Doublings of the predicted time per unit of distance."""
FITTED_ROWS = 400
"""Rows on which the hyperparameters are fitted: their likelihood costs the cube of the rows."""
MOST_ROWS = 3000
"""Rows that condition the process; more are thinned at random."""
STEPS = 15
CHUNK = 4096
FOLDS = 5
_BASE = "base."


@dataclass(frozen=True)
class Inputs:
    """Rows as the process sees them: ``terms`` (rows, terms) scaled, ``mechanism`` and ``candidate`` codes (rows,)."""

    terms: np.ndarray
    mechanism: np.ndarray
    candidate: np.ndarray

    def __len__(self) -> int:
        return len(self.terms)

    def take(self, index: np.ndarray) -> "Inputs":
        """The rows at these positions."""
        return Inputs(self.terms[index], self.mechanism[index], self.candidate[index])


def correction_columns(family: Family) -> tuple[str, ...]:
    """Columns of `Rows.features` that a correction sees, before the predicted time; the mechanism's code is last."""
    mechanism = ("mechanism",) if "mechanism" in family.candidate_names else ()
    return (*family.distance_units, *mechanism)


@dataclass(frozen=True)
class Correction:
    """A process conditioned on ``inputs``: the log factor on a model's times for one device.

    ``scales`` are the hyperparameters, ``weights`` (rows,) the dual coefficients, ``units`` (columns,) the scales of
    the terms, ``candidates`` name → code.
    """

    scales: Mapping[str, float]
    inputs: Inputs
    weights: np.ndarray
    units: tuple[float, ...]
    candidates: Mapping[str, int]

    def log_factor(self, x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """(rows,) natural logarithm of what times are multiplied by: near zero far from everything measured.

        ``x`` (rows, columns) of `correction_columns`, ``names`` (rows,) of the candidates, ``predicted_us`` (rows,) the
        base model's times; NaN where those are.
        """
        inputs = inputs_of(x, names, predicted_us, self.units, self.candidates)
        factor = np.empty(len(x))
        for start in range(0, len(x), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(x)))
            factor[part] = covariance(self.scales, inputs.take(part), self.inputs) @ self.weights
        return factor


def inputs_of(
    x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray, units: tuple[float, ...], codes: Mapping[str, int]
) -> Inputs:
    """The rows as the process sees them; a candidate that was not measured shares nothing with the others (code −1)."""
    terms = np.column_stack([x[:, : len(units)].astype(np.float64) / units, np.log2(predicted_us) / PREDICTED_UNIT])
    mechanism = x[:, -1] if x.shape[1] > len(units) else np.zeros(len(x))
    candidate = np.array([codes.get(str(name), -1) for name in names], dtype=np.int64)
    return Inputs(terms, mechanism.astype(np.int64), candidate)


def covariance(scales: Mapping[str, float], a: Inputs, b: Inputs) -> np.ndarray:
    """Covariance (rows of a, rows of b) of log corrections, noise left out."""
    cross = a.terms @ b.terms.T
    squares = (a.terms**2).sum(1)[:, None] + (b.terms**2).sum(1)[None, :] - 2 * cross
    near = np.exp(-0.5 * np.maximum(squares, 0.0) / scales["length"] ** 2)
    total = scales["common"] ** 2 + scales["linear"] ** 2 / a.terms.shape[1] * cross + scales["smooth"] ** 2 * near
    for name in ("mechanism", "candidate"):
        same = getattr(a, name)[:, None] == getattr(b, name)[None, :]
        total += same * (scales[name] ** 2 + scales[f"{name}_smooth"] ** 2 * near)
    return total


def fit_correction(rows: Rows, predicted_us: np.ndarray, seed: int = 0) -> tuple[Correction, np.ndarray]:
    """From ok rows of one device and the base model's times (rows,); at least two shapes are needed.

    Returned beside it: (rows,) log factors by corrections that never saw the row's shape.
    """
    codes = {str(name): code for code, name in enumerate(np.unique(rows.candidate))}
    units = tuple(rows.family.distance_units.values())
    x = rows.columns(correction_columns(rows.family))
    inputs = inputs_of(x, rows.candidate, predicted_us, units, codes)
    target = np.log(rows.time_us / predicted_us)
    few = _thinned(len(inputs), FITTED_ROWS, seed)
    scales = _fitted_scales(inputs.take(few), target[few])

    def conditioned(index: np.ndarray) -> Correction:
        sample = index[_thinned(len(index), MOST_ROWS, seed)]
        part = inputs.take(sample)
        return Correction(scales, part, _dual(scales, part, target[sample]), units, codes)

    label, held_out = fold_labels(shape_names(rows.frame, rows.family), FOLDS, seed), np.empty(len(rows))
    for fold in np.unique(label):
        outside = np.flatnonzero(label == fold)
        part = conditioned(np.flatnonzero(label != fold))
        held_out[outside] = part.log_factor(x[outside], rows.candidate[outside], predicted_us[outside])
    return conditioned(np.arange(len(rows))), held_out


def _dual(scales: Mapping[str, float], inputs: Inputs, target: np.ndarray) -> np.ndarray:
    from scipy.linalg import cho_factor, cho_solve

    return cho_solve(cho_factor(_with_noise(covariance(scales, inputs, inputs), scales), lower=True), target)


def _with_noise(matrix: np.ndarray, scales: Mapping[str, float]) -> np.ndarray:
    matrix[np.diag_indices_from(matrix)] += scales["noise"] ** 2 + 1e-10
    return matrix


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
            factor = cho_factor(_with_noise(covariance(scales, inputs, inputs), scales), lower=True)
        except LinAlgError:
            return 1e6
        fit = 0.5 * target @ cho_solve(factor, target) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * (((point - centre) / spread) ** 2).sum())

    bounds = [(c - 4 * s, c + 4 * s) for c, s in zip(centre, spread, strict=True)]
    best = minimize(loss, centre, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return scales_at(best.x)


def _thinned(count: int, most: int, seed: int) -> np.ndarray:
    """Positions: all, or ``most`` of them at random, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


class Calibrated(TimeModel):
    """Times of ``base``, multiplied by the correction of their device; other devices' times are the base's own.

    It is made by `surrogate.calibrate`, not by ``fit``. ``corrections``: device's registry name → its correction.
    """

    name: ClassVar[str] = "calibrated"
    storable: ClassVar[bool] = True

    def __init__(self, base: TimeModel, corrections: Mapping[str, Correction]) -> None:
        self.base = base
        self.corrections = corrections
        self.is_fitted_ = True

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        raise InputError("a calibrated model is made by `seer calibrate BUNDLE DATA`; train another, then calibrate it")

    def _predict(self, rows: Rows) -> np.ndarray:
        times, devices = self.base.predict(rows), device_names(rows.frame)
        for device, correction in self.corrections.items():
            members = np.flatnonzero((devices == device) & np.isfinite(times))
            if len(members):
                x = rows.take(members).columns(correction_columns(rows.family))
                times[members] *= np.exp(correction.log_factor(x, rows.candidate[members], times[members]))
        return times

    def times(self) -> BoostedTimes | None:
        """The base's arrays with the corrections, None where the base is not one ensemble of trees."""
        times = self.base.times()
        return times and replace(times, corrections=self.corrections)

    def to_files(self) -> dict[str, bytes]:
        """The base's files under ``base.``, its name and the corrections as JSON."""
        files = {f"{_BASE}{name}": content for name, content in self.base.to_files().items()}
        content = {
            "base": self.base.name,
            "params": self.base.get_params(deep=False),
            "corrections": to_plain(self.corrections),
        }
        return {**files, "corrections.json": json.dumps(content).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        from surrogate.models import model_class

        content = json.loads(files["corrections.json"])
        inner = {name.removeprefix(_BASE): data for name, data in files.items() if name.startswith(_BASE)}
        corrections = from_plain(Mapping[str, Correction], content["corrections"])
        return cls(model_class(content["base"]).from_files(content["params"], inner), corrections)
