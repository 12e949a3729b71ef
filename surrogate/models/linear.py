"""`linear-dims` and `linear-terms`: ridge regression of log time, one fit per algorithm."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.columns import DIMS, TERMS, candidate_names, select

OVERALL = ""
"""Key of the fit over all rows, for an algorithm that training did not see."""


class _Linear:
    """log(time) = w · standardised columns + b, penalty α‖w‖², fitted per algorithm."""

    name: ClassVar[str]
    predicts_time: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]]
    DEFAULTS: ClassVar[dict[str, Any]] = {"alpha": 1.0}

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._fits: dict[str, dict[str, list[float]]] = {}

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """One ridge per algorithm and one over all of them."""
        del seed
        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError(f"{self.name} needs at least one ok row to learn from")
        x, y = self._design(ok), np.log(ok.time_us)
        names = candidate_names(ok)
        fitted = type(self)(**self.params)
        fitted._fits[OVERALL] = _ridge(x, y, self.params["alpha"])
        for name in np.unique(names):
            fitted._fits[str(name)] = _ridge(x[names == name], y[names == name], self.params["alpha"])
        return fitted

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,)."""
        x, names = self._design(rows), candidate_names(rows)
        out = np.empty(len(rows))
        for name in np.unique(names):
            mine = names == name
            fit = self._fits.get(str(name), self._fits[OVERALL])
            out[mine] = (x[mine] - fit["mean"]) / fit["scale"] @ np.array(fit["weights"]) + fit["intercept"][
                0
            ]
        return np.exp(np.clip(out, -20.0, 40.0))

    def _design(self, rows: Rows) -> np.ndarray:
        return select(rows, self.columns).astype(np.float64)

    def save(self) -> dict[str, bytes]:
        """Coefficients as JSON."""
        return {"coefficients.json": json.dumps(self._fits, sort_keys=True).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        model._fits = json.loads(files["coefficients.json"])
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """The penalty, log-uniform."""
        return {"alpha": trial.suggest_float("alpha", 1e-3, 1e3, log=True)}


class LinearDims(_Linear):
    """Ridge on the logarithms of the raw dimensions."""

    name: ClassVar[str] = "linear-dims"
    columns = DIMS


class LinearTerms(_Linear):
    """Ridge on the dimensions and the analytical terms."""

    name: ClassVar[str] = "linear-terms"
    columns = TERMS


def _ridge(x: np.ndarray, y: np.ndarray, alpha: float) -> dict[str, list[float]]:
    """Standardise, then solve the penalised least squares."""
    from sklearn.linear_model import Ridge

    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-9] = 1.0
    ridge = Ridge(alpha=alpha).fit((x - mean) / scale, y)
    return {
        "mean": mean.tolist(),
        "scale": scale.tolist(),
        "weights": np.asarray(ridge.coef_).tolist(),
        "intercept": [float(ridge.intercept_)],
    }
