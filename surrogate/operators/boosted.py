"""`boosted-operators`: gradient-boosted trees on log(time / base), one booster per family and library.

The base is the roofline time plus the fixed cost of a call on that GPU under that library: small operators take the
call's cost whatever their size, and trees clamp outside the range they saw. On a GPU never measured the library's
median cost stands in.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.operators import OPERATORS
from surrogate.models.booster_file import native_booster
from surrogate.operators.columns import FAMILY_NAMES, design, family_of
from surrogate.operators.table import OperatorTable

CALL_QUANTILE = 0.02
"""This low quantile of a (GPU, library)'s times is its call's fixed cost; the least one alone may be a fluke."""
LABEL_COLUMNS = ("library", "kind", "variant")


class BoostedOperators:
    """One XGBoost booster per family and library; (library, kind, variant) is a categorical column.

    ``gamma``, the least gain of a split, keeps the boosters small enough to ship.
    """

    name: ClassVar[str] = "boosted-operators"
    handles_new_gpus: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "rounds": 250,
        "learning_rate": 0.1,
        "max_depth": 10,
        "min_child_weight": 3.0,
        "gamma": 0.05,
        "subsample": 0.8,
        "colsample_bynode": 0.6,
        "reg_lambda": 1.0,
        "max_bin": 256,
    }

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._boosters: dict[str, Any] = {}
        self._labels: dict[str, int] = {}
        self._call_us: dict[str, float] = {}

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Squared error on the log of the correction."""
        import xgboost

        fitted = type(self)(**self.params)
        frame = table.frame
        fitted._labels = {label: code for code, label in enumerate(sorted(set(labels(table))))}
        fitted._call_us = call_costs(frame["gpu"].to_numpy(), frame["library"].to_numpy(), table.time_us)
        settings = {key: value for key, value in self.params.items() if key != "rounds"}
        fixed = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "seed": seed,
            "verbosity": 0,
            "nthread": 1,
        }
        for key, rows in booster_rows(table).items():
            part = table.take(rows)
            x, base_us = fitted._design(part, key)
            data = xgboost.QuantileDMatrix(
                x,
                label=np.log(part.time_us / base_us),
                feature_types=["q"] * (x.shape[1] - 1) + ["c"],
                max_bin=self.params["max_bin"],
                enable_categorical=True,
                nthread=1,
            )
            fitted._boosters[key] = xgboost.train(
                {**settings, **fixed}, data, num_boost_round=self.params["rounds"]
            )
        return fitted

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times in µs, (rows,); NaN for a family and library that training did not hold together."""
        out = np.full(len(table), np.nan)
        for key, rows in booster_rows(table).items():
            if key in self._boosters:
                x, base_us = self._design(table.take(rows), key)
                out[rows] = base_us * np.exp(self._boosters[key].inplace_predict(x).astype(np.float64))
        return out

    @property
    def known(self) -> frozenset[str]:
        """``library|kind|variant`` of all that training held."""
        return frozenset(self._labels)

    def call_us(self, gpu: str, library: str) -> float:
        """Fixed cost of a call in µs: of the GPU and library, else of the library, else 0."""
        return self._call_us.get(f"{gpu}|{library}", self._call_us.get(f"|{library}", 0.0))

    def _design(self, part: OperatorTable, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(rows, columns + 1) with the label's code last (NaN where it is new), and the base (rows,) in µs."""
        x = np.empty((len(part), len(FAMILY_NAMES[key.partition("-")[0]]) + 1), dtype=np.float32)
        base_us = np.empty(len(part))
        for device, op, positions in part.groups():
            made = design(op, gpu(device))
            x[positions, :-1], base_us[positions] = made.x, made.roofline_us
        pairs = list(zip(part.frame["gpu"], part.frame["library"], strict=True))
        costs = {pair: self.call_us(*pair) for pair in set(pairs)}
        base_us += np.array([costs[pair] for pair in pairs])
        x[:, -1] = [self._labels.get(label, np.nan) for label in labels(part)]
        return x, base_us

    def save(self) -> dict[str, bytes]:
        """Boosters as UBJ, labels and calls' costs as JSON."""
        facts = {"labels": self._labels, "call_us": self._call_us}
        files = {f"{key}.ubj": bytes(booster.save_raw("ubj")) for key, booster in self._boosters.items()}
        return {**files, "facts.json": json.dumps(facts, sort_keys=True).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        facts = json.loads(files["facts.json"])
        model._labels, model._call_us = facts["labels"], facts["call_us"]
        for name, content in files.items():
            if name.endswith(".ubj"):
                key = name.removesuffix(".ubj")
                columns = len(FAMILY_NAMES[key.partition("-")[0]]) + 1
                model._boosters[key] = native_booster(content, columns)
        if not model._boosters:
            raise InputError("the operator bundle holds no booster; fit it again")
        return model


def labels(table: OperatorTable) -> np.ndarray:
    """(rows,) text: library, kind and variant."""
    return joined(table.frame, LABEL_COLUMNS).to_numpy()


def families(table: OperatorTable) -> np.ndarray:
    """(rows,) family of each row."""
    known = {kind: family_of(OPERATORS[kind]) for kind in table.frame["kind"].unique()}
    return table.frame["kind"].map(known).to_numpy(dtype=object)


def booster_rows(table: OperatorTable) -> dict[str, np.ndarray]:
    """``family-library`` → positions of its rows."""
    keys = families(table) + "-" + table.frame["library"].to_numpy(dtype=object)
    return {str(key): np.flatnonzero(keys == key) for key in np.unique(keys)}


def call_costs(gpus: np.ndarray, libraries: np.ndarray, time_us: np.ndarray) -> dict[str, float]:
    """``gpu|library`` → a low quantile of its times in µs; ``|library`` → the median of those over GPUs."""
    costs: dict[str, float] = {}
    for library in sorted(set(libraries)):
        of_library = libraries == library
        found = []
        for device in sorted(set(gpus[of_library])):
            cost = float(np.quantile(time_us[of_library & (gpus == device)], CALL_QUANTILE))
            costs[f"{device}|{library}"] = cost
            found.append(cost)
        costs[f"|{library}"] = float(np.median(found))
    return costs
