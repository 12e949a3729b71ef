"""`Calibrated`: a fitted model with corrections for devices, learned from a few measurements on each.

The correction of log time is a Gaussian process (`surrogate.models.times`): a few measurements correct the rows near
them. Source of its fit: Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equations 2.26 and 5.8.
The hyperparameters maximise the marginal likelihood times log-normal priors, which were chosen by leaving GPUs out. Few
rows cannot determine them. Then the process is a ridge regression with an offset, slopes, and the offset of every
library or mechanism. Outliers have smaller weights (Huber). The correction is scaled by the share that was best on rows
held out by shape.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels, label_folds
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.json_types import files_below, from_json_types, to_json_types
from surrogate.models.times import PRIORS, BoostedArrays, Correction, CorrectionInputs, correction_columns, covariance

FITTED_ROWS = 400
"""Maximum rows in the fit of the hyperparameters: the cost of the likelihood grows with their cube."""
MAX_ROWS = 3000
"""Maximum rows that condition the process. More rows are sampled."""
FEW_ROWS = 50
"""With fewer rows, only ridge regressions are fitted."""
RIDGE = {"common": 0.3, "linear": 0.1}
"""Standard deviations in log time of the ridge regressions."""
MAX_ERROR_RATIO = 0.95
"""A process with more parts is chosen if its mean error on held-out shapes is below this share of the other's."""
MIN_STANDARD_ERRORS = 1.65
"""Standard errors by which a correction must be better than none. It rejects 19 in 20 useless corrections."""
NEGLIGIBLE = 1e-9
"""Standard deviation of the parts that are switched off."""
NORMAL_MEDIAN = 0.6745
"""Median distance of a normal variable from its mean, in standard deviations."""
HUBER = 2.0
"""A row farther from the fit than this many standard deviations of the noise has a smaller weight."""
ROBUST_STEPS = 3
SHARES = np.linspace(0.0, 1.0, 5)
STEPS = 15
FOLDS = 5
_BASE = "base."


def fit_correction(rows: Rows, predicted_us: np.ndarray, seed: int = 0) -> tuple[Correction, np.ndarray, np.ndarray]:
    """Fit the correction of one device.

    Parameters
    ----------
    rows
        Ok rows of one device, of at least two shapes.
    predicted_us
        (rows,) times in µs of the base model.
    seed
        Seed of the folds and the samples.

    Returns
    -------
    correction
        The `Correction` on all rows.
    factor, deviation
        (rows,) log factors, and `Correction.deviation`, by corrections that did not see the row's shape.

    References
    ----------
    Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning"; Huber 1964, "Robust estimation of a location
    parameter".
    """
    codes = {str(name): code for code, name in enumerate(np.unique(rows.candidate))}
    units = tuple(rows.family.distance_units.values())
    x = rows.columns(correction_columns(rows.family))
    inputs = CorrectionInputs.of(x, rows.candidate, predicted_us, units=units, codes=codes)
    target = np.log(rows.time_us / predicted_us)
    label = fold_labels(shape_names(rows.frame, rows.family), FOLDS, seed)

    def conditioned(scales: Mapping[str, float], index: np.ndarray, share: float = 1.0) -> Correction:
        kept = index[_thinned(len(index), MAX_ROWS, seed)]
        part = inputs.take(kept)
        dual = share * _robust_dual(scales, part, target[kept])
        return Correction(scales=scales, inputs=part, weights=dual, units=units, candidates=codes)

    def cross_fitted(scales: Mapping[str, float], answer: Callable[..., np.ndarray]) -> np.ndarray:
        out = np.ones(len(rows))
        for inside, outside in label_folds(label):
            part = conditioned(scales, inside)
            out[outside] = answer(part, x[outside], rows.candidate[outside], predicted_us[outside])
        return out

    # Each process has more parts than the one before. It replaces that one if it is better on held-out shapes. The
    # first must be significantly better than no correction.
    options = _ridges(inputs, target)
    if len(inputs) >= FEW_ROWS:
        sample = _thinned(len(inputs), FITTED_ROWS, seed)
        options.append(_fitted_scales(inputs.take(sample), target[sample]))
    best, best_share, factor = options[0], 0.0, np.zeros(len(rows))
    for scales in options:
        holdout_factor = cross_fitted(scales, Correction.log_factor)
        share = min(SHARES, key=lambda share: np.abs(target - share * holdout_factor).mean())
        error, before = np.abs(target - share * holdout_factor), np.abs(target - factor)
        is_better = error.mean() < MAX_ERROR_RATIO * before.mean()
        if is_better and (best_share or _is_significant(before - error, rows.shape)):
            best, best_share, factor = scales, share, share * holdout_factor
    deviation = cross_fitted(best, Correction.deviation)
    return conditioned(best, np.arange(len(rows)), best_share), factor, deviation


def _is_significant(gain: np.ndarray, shape: np.ndarray) -> bool:
    """Return whether the mean ``gain`` (rows,) is significantly above 0. Rows of one ``shape`` are one observation."""
    of_shape = np.bincount(np.unique(shape, return_inverse=True)[1], gain - gain.mean())
    standard_error = np.sqrt((of_shape**2).sum() * len(of_shape) / (len(of_shape) - 1)) / len(gain)
    return bool(gain.mean() > MIN_STANDARD_ERRORS * standard_error)


def _ridges(inputs: CorrectionInputs, target: np.ndarray) -> list[dict[str, float]]:
    """Return the scales of ridge regressions, without and with an offset of each library or mechanism."""
    groups = [inputs.mechanism == code for code in np.unique(inputs.mechanism)]
    residual = np.concatenate([target[group] - np.median(target[group]) for group in groups])
    noise = max(PRIORS["noise"][0], float(np.median(np.abs(residual))) / NORMAL_MEDIAN)
    common = {**dict.fromkeys(PRIORS, NEGLIGIBLE), **RIDGE, "length": PRIORS["length"][0], "noise": noise}
    return [common, {**common, "mechanism": PRIORS["mechanism"][0]}]


def method(rows: int) -> str:
    """Return the name of the method that corrects a device with so many rows."""
    return "ridge regression" if rows < FEW_ROWS else "Gaussian process"


def _robust_dual(scales: Mapping[str, float], inputs: CorrectionInputs, target: np.ndarray) -> np.ndarray:
    """Return dual coefficients (rows,). The noise of a row grows with its distance from the fit (Huber 1964)."""
    from scipy.linalg import cho_solve

    weight = np.ones(len(target))
    dual = np.zeros(len(target))
    for _ in range(ROBUST_STEPS):
        dual = cho_solve(_factor(scales, inputs, weight), target)
        # The residual of the fit is the noise's share of the dual coefficients.
        residual = np.abs(dual) * scales["noise"] / weight
        weight = 1.0 / np.maximum(residual / HUBER, 1.0)
    return dual


def _factor(
    scales: Mapping[str, float], inputs: CorrectionInputs, weight: np.ndarray | float = 1.0
) -> tuple[np.ndarray, bool]:
    """Return scipy's Cholesky factor of the rows' covariance plus noise, which is divided by their ``weight``."""
    from scipy.linalg import cho_factor

    matrix = covariance(scales, inputs, inputs)
    matrix[np.diag_indices_from(matrix)] += scales["noise"] ** 2 / weight + 1e-10
    return cho_factor(matrix, lower=True)


def _fitted_scales(inputs: CorrectionInputs, target: np.ndarray) -> dict[str, float]:
    """Return the hyperparameters with the largest posterior density. The search starts at the priors' medians."""
    from scipy.linalg import LinAlgError, cho_solve
    from scipy.optimize import minimize

    names = list(PRIORS)
    centre = np.log([PRIORS[name][0] for name in names])
    spread = np.array([PRIORS[name][1] for name in names])

    def scales_at(point: np.ndarray) -> dict[str, float]:
        return dict(zip(names, np.exp(point).tolist(), strict=True))

    def loss(point: np.ndarray) -> float:
        scales = scales_at(point)
        try:
            factor = _factor(scales, inputs)
        except LinAlgError:
            return 1e6
        fit = 0.5 * target @ cho_solve(factor, target) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * (((point - centre) / spread) ** 2).sum())

    bounds = [(c - 4 * s, c + 4 * s) for c, s in zip(centre, spread, strict=True)]
    return scales_at(minimize(loss, centre, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS}).x)


def _thinned(count: int, maximum: int, seed: int) -> np.ndarray:
    """Return ascending positions: all, or ``maximum`` random ones."""
    if count <= maximum:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:maximum])


class Calibrated(TimeModel):
    """Multiply the times of ``base`` by the correction of their device. Other devices keep the base's times.

    `surrogate.calibrate` makes this model, not ``fit``.

    Parameters
    ----------
    base
        A fitted model.
    corrections
        Registry name of a device → its correction.

    Raises
    ------
    InputError
        On fitting.
    """

    name: ClassVar[str] = "calibrated"
    help: ClassVar[str] = "another model, corrected on a GPU by a few measurements there; `seer calibrate` makes it"
    tunable: ClassVar[bool] = False
    on_request: ClassVar[bool] = True
    storable: ClassVar[bool] = True

    def __init__(self, base: TimeModel, corrections: Mapping[str, Correction]) -> None:
        self.base = base
        self.corrections = corrections

    def __sklearn_is_fitted__(self) -> bool:
        return any(name.endswith("_") for name in vars(self.base))

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        raise InputError("`seer calibrate BUNDLE DATA` makes a calibrated model; first train another model")

    def _predict(self, rows: Rows) -> np.ndarray:
        times = self.base.predict(rows)
        devices = device_names(rows.frame)
        for device, correction in self.corrections.items():
            members = np.flatnonzero((devices == device) & np.isfinite(times))
            if len(members):
                x = rows.take(members).columns(correction_columns(rows.family))
                times[members] *= np.exp(correction.log_factor(x, rows.candidate[members], times[members]))
        return times

    def boosted_arrays(self) -> BoostedArrays | None:
        """Return the base's arrays with the corrections, or None if the base is not one ensemble of trees."""
        arrays = self.base.boosted_arrays()
        return arrays and replace(arrays, corrections=self.corrections)

    def to_files(self) -> dict[str, bytes]:
        """Return the base's files under ``base.``, and its name and the corrections as JSON."""
        files = {f"{_BASE}{name}": content for name, content in self.base.to_files().items()}
        content = {"base": self.base.name, "params": self.base.get_params(deep=False)}
        content["corrections"] = to_json_types(self.corrections)
        return {**files, "corrections.json": json.dumps(content).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, object], files: Mapping[str, bytes]) -> Self:
        """Return the model from the output of `to_files`."""
        from surrogate.models.registry import model_class

        content = json.loads(files["corrections.json"])
        corrections = from_json_types(Mapping[str, Correction], content["corrections"])
        return cls(model_class(content["base"]).from_files(content["params"], files_below(_BASE, files)), corrections)
