"""`Calibrated`: a fitted model, and for each calibrated device a correction learned from a few measurements there.

The correction of log time is a Gaussian process (`surrogate.models.correction`): it says what a few measurements tell
of the rows near them, and no more. Source of its fit: Rasmussen & Williams 2006, "Gaussian Processes for Machine
Learning", equations 2.26 and 5.8; the hyperparameters maximise the marginal likelihood times log-normal priors chosen
by leaving GPUs out.
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
from surrogate.models.correction import Correction, Inputs, correction_columns, covariance, inputs_of
from surrogate.models.plain import from_plain, to_plain
from surrogate.models.times import BoostedTimes

PRIORS: dict[str, tuple[float, float]] = {
    "common": (0.30, 0.5), "linear": (0.10, 0.5), "smooth": (0.15, 0.5),
    "mechanism": (0.15, 0.5), "mechanism_smooth": (0.15, 0.5),
    "candidate": (0.15, 0.5), "candidate_smooth": (0.15, 0.5),
    "length": (1.5, 0.5), "noise": (0.10, 0.5),
}  # fmt: skip
"""Hyperparameter → (median, spread of its natural logarithm); standard deviations are in log time."""
FITTED_ROWS = 400
"""Rows on which the hyperparameters are fitted: their likelihood costs the cube of the rows."""
MOST_ROWS = 3000
"""Rows that condition the process; more are thinned at random."""
STEPS = 15
FOLDS = 5
_BASE = "base."


def fit_correction(rows: Rows, predicted_us: np.ndarray, seed: int = 0) -> tuple[Correction, np.ndarray]:
    """From ok rows of one device and the base model's times (rows,); at least two shapes are needed.

    Returned beside it: (rows,) log factors by corrections that never saw the row's shape.
    """
    from scipy.linalg import cho_solve

    codes = {str(name): code for code, name in enumerate(np.unique(rows.candidate))}
    units = tuple(rows.family.distance_units.values())
    x = rows.columns(correction_columns(rows.family))
    inputs = inputs_of(x, rows.candidate, predicted_us, units=units, codes=codes)
    target = np.log(rows.time_us / predicted_us)
    few = _thinned(len(inputs), FITTED_ROWS, seed)
    scales = _fitted_scales(inputs.take(few), target[few])

    def conditioned(index: np.ndarray) -> Correction:
        sample = index[_thinned(len(index), MOST_ROWS, seed)]
        part = inputs.take(sample)
        dual = cho_solve(_factor(scales, part), target[sample])
        return Correction(scales=scales, inputs=part, weights=dual, units=units, candidates=codes)

    label = fold_labels(shape_names(rows.frame, rows.family), FOLDS, seed)
    held_out = np.empty(len(rows))
    for fold in np.unique(label):
        outside = np.flatnonzero(label == fold)
        part = conditioned(np.flatnonzero(label != fold))
        held_out[outside] = part.log_factor(x[outside], rows.candidate[outside], predicted_us[outside])
    return conditioned(np.arange(len(rows))), held_out


def _factor(scales: Mapping[str, float], inputs: Inputs) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of the rows' covariance with noise, as scipy has it."""
    from scipy.linalg import cho_factor

    matrix = covariance(scales, inputs, inputs)
    matrix[np.diag_indices_from(matrix)] += scales["noise"] ** 2 + 1e-10
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
        content["corrections"] = to_plain(self.corrections)
        return {**files, "corrections.json": json.dumps(content).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, object], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        from surrogate.models.registry import model_class

        content = json.loads(files["corrections.json"])
        inner = {name.removeprefix(_BASE): data for name, data in files.items() if name.startswith(_BASE)}
        corrections = from_plain(Mapping[str, Correction], content["corrections"])
        return cls(model_class(content["base"]).from_files(content["params"], inner), corrections)
