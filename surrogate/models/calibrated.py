"""`Calibrated`: a fitted model, and for each calibrated device a correction learned from a few measurements there.

The correction of log time is a Gaussian process (`surrogate.models.times`): it says what a few measurements tell
of the rows near them, and no more. Source of its fit: Rasmussen & Williams 2006, "Gaussian Processes for Machine
Learning", equations 2.26 and 5.8; the hyperparameters maximise the marginal likelihood times log-normal priors chosen
by leaving GPUs out. Few rows cannot tell them: there the process is a ridge regression, of an offset, slopes, and the
offset of every library or mechanism. Rows that stand out count less (Huber's weights), and of the correction stays the
share that was best on rows held out by shape.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.json_types import files_below, from_json_types, to_json_types
from surrogate.models.times import BoostedTimes, Correction, Inputs, correction_columns, covariance, inputs_of

PRIORS: dict[str, tuple[float, float]] = {
    "common": (0.30, 0.5),
    "linear": (0.10, 0.5),
    "smooth": (0.15, 0.5),
    "mechanism": (0.15, 0.5),
    "mechanism_smooth": (0.15, 0.5),
    "candidate": (0.15, 0.5),
    "candidate_smooth": (0.15, 0.5),
    "length": (1.5, 0.5),
    "noise": (0.10, 0.5),
}
"""Hyperparameter → (median, spread of its natural logarithm); standard deviations are in log time."""
FITTED_ROWS = 400
"""Rows on which the hyperparameters are fitted: their likelihood costs the cube of the rows."""
MAX_ROWS = 3000
"""Rows that condition the process; more are thinned at random."""
FEW_ROWS = 50
"""With fewer, ridge regressions under these standard deviations in log time; nothing else is learned."""
RIDGE = {"common": 0.3, "linear": 0.1}
GAIN = 0.95
"""Of the mean error on shapes held out, below which what tells more is taken."""
SURE = 1.65
"""Standard errors by which a correction must be better than none: 19 in 20 that change nothing are then left out."""
NOTHING = 1e-9
NORMAL_MEDIAN = 0.6745
"""The median distance of a normal variable from its mean, in standard deviations."""
HUBER = 2.0
"""Standard deviations of the noise from which on a row counts less."""
ROBUST_STEPS = 3
SHARES = np.linspace(0.0, 1.0, 5)
STEPS = 15
FOLDS = 5
_BASE = "base."


def fit_correction(rows: Rows, predicted_us: np.ndarray, seed: int = 0) -> tuple[Correction, np.ndarray]:
    """From ok rows of one device and the base model's times (rows,); at least two shapes are needed.

    Returned beside it: (rows,) log factors by corrections that never saw the row's shape.
    """
    codes = {str(name): code for code, name in enumerate(np.unique(rows.candidate))}
    units = tuple(rows.family.distance_units.values())
    x = rows.columns(correction_columns(rows.family))
    inputs = inputs_of(x, rows.candidate, predicted_us, units=units, codes=codes)
    target = np.log(rows.time_us / predicted_us)
    label = fold_labels(shape_names(rows.frame, rows.family), FOLDS, seed)

    def conditioned(scales: Mapping[str, float], index: np.ndarray, share: float = 1.0) -> Correction:
        sample = index[_thinned(len(index), MAX_ROWS, seed)]
        part = inputs.take(sample)
        dual = share * _robust_dual(scales, part, target[sample])
        return Correction(scales=scales, inputs=part, weights=dual, units=units, candidates=codes)

    def held_out(scales: Mapping[str, float]) -> np.ndarray:
        factor = np.empty(len(rows))
        for fold in np.unique(label):
            outside = np.flatnonzero(label == fold)
            part = conditioned(scales, np.flatnonzero(label != fold))
            factor[outside] = part.log_factor(x[outside], rows.candidate[outside], predicted_us[outside])
        return factor

    # Each process tells more than the one before it, and takes its place where that holds for shapes held out; the
    # first must be better than none by more than chance.
    options = _ridges(inputs, target)
    if len(inputs) >= FEW_ROWS:
        few = _thinned(len(inputs), FITTED_ROWS, seed)
        options.append(_fitted_scales(inputs.take(few), target[few]))
    best, best_share, factor = options[0], 0.0, np.zeros(len(rows))
    for scales in options:
        said = held_out(scales)
        share = min(SHARES, key=lambda share: np.abs(target - share * said).mean())
        error, before = np.abs(target - share * said), np.abs(target - factor)
        if error.mean() < GAIN * before.mean() and (best_share or _is_sure(before - error, rows.shape)):
            best, best_share, factor = scales, share, share * said
    return conditioned(best, np.arange(len(rows)), best_share), factor


def _is_sure(gain: np.ndarray, shape: np.ndarray) -> bool:
    """Whether the mean ``gain`` (rows,) is above 0 by more than chance, rows of a ``shape`` being one observation."""
    of_shape = np.bincount(np.unique(shape, return_inverse=True)[1], gain - gain.mean())
    chance = np.sqrt((of_shape**2).sum() * len(of_shape) / (len(of_shape) - 1)) / len(gain)
    return bool(gain.mean() > SURE * chance)


def _ridges(inputs: Inputs, target: np.ndarray) -> list[dict[str, float]]:
    """Scales of ridge regressions, without and with an offset of each library or mechanism."""
    groups = [inputs.mechanism == code for code in np.unique(inputs.mechanism)]
    left = np.concatenate([target[group] - np.median(target[group]) for group in groups])
    noise = max(PRIORS["noise"][0], float(np.median(np.abs(left))) / NORMAL_MEDIAN)
    common = {**dict.fromkeys(PRIORS, NOTHING), **RIDGE, "length": PRIORS["length"][0], "noise": noise}
    return [common, {**common, "mechanism": PRIORS["mechanism"][0]}]


def method(rows: int) -> str:
    """How so many rows correct a device."""
    return "ridge regression" if rows < FEW_ROWS else "Gaussian process"


def _robust_dual(scales: Mapping[str, float], inputs: Inputs, target: np.ndarray) -> np.ndarray:
    """(rows,) dual coefficients: noise grows with how far a row stands out from the fit to all (Huber 1964)."""
    from scipy.linalg import cho_solve

    weight = np.ones(len(target))
    dual = np.zeros(len(target))
    for _ in range(ROBUST_STEPS):
        dual = cho_solve(_factor(scales, inputs, weight), target)
        # What the fit leaves over is the noise's share of the dual coefficients.
        left = np.abs(dual) * scales["noise"] / weight
        weight = 1.0 / np.maximum(left / HUBER, 1.0)
    return dual


def _factor(scales: Mapping[str, float], inputs: Inputs, weight: np.ndarray | float = 1.0) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of the rows' covariance with noise, which their ``weight`` divides, as scipy has it."""
    from scipy.linalg import cho_factor

    matrix = covariance(scales, inputs, inputs)
    matrix[np.diag_indices_from(matrix)] += scales["noise"] ** 2 / weight + 1e-10
    return cho_factor(matrix, lower=True)


def _fitted_scales(inputs: Inputs, target: np.ndarray) -> dict[str, float]:
    """The hyperparameters of greatest posterior density, from the priors' medians."""
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
    best = minimize(loss, centre, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return scales_at(best.x)


def _thinned(count: int, maximum: int, seed: int) -> np.ndarray:
    """Positions: all, or ``maximum`` of them at random, in order."""
    if count <= maximum:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:maximum])


class Calibrated(TimeModel):
    """Times of ``base``, multiplied by the correction of their device; other devices' times are the base's own.

    It is made by `surrogate.calibrate`, not by ``fit``. ``corrections``: device's registry name → its correction.
    """

    name: ClassVar[str] = "calibrated"
    help: ClassVar[str] = "another model, corrected on a GPU by a few measurements there; `seer calibrate` makes it"
    tunable: ClassVar[bool] = False
    on_request: ClassVar[bool] = True
    storable: ClassVar[bool] = True

    def __init__(self, base: TimeModel, corrections: Mapping[str, Correction]) -> None:
        self.base = base
        self.corrections = corrections
        self.is_fitted_ = True

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        raise InputError("a calibrated model is made by `seer calibrate BUNDLE DATA`; train another, then calibrate it")

    def _predict(self, rows: Rows) -> np.ndarray:
        times = self.base.predict(rows)
        devices = device_names(rows.frame)
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
        content = {"base": self.base.name, "params": self.base.get_params(deep=False)}
        content["corrections"] = to_json_types(self.corrections)
        return {**files, "corrections.json": json.dumps(content).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, object], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        from surrogate.models.registry import model_class

        content = json.loads(files["corrections.json"])
        corrections = from_json_types(Mapping[str, Correction], content["corrections"])
        return cls(model_class(content["base"]).from_files(content["params"], files_below(_BASE, files)), corrections)
