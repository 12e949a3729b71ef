"""`blended-operators`: boosted trees and a neural network on the same columns, mixed per library, kind and variant.

Trees win where measurements are many and times have steps; the network where shapes are few and times are smooth. The
share of each is chosen on training shapes held back from both, then both are fitted on everything.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.splits import fold_of_names
from surrogate.operators.baselines.mlp import OperatorMlp
from surrogate.operators.boosted import BoostedOperators, booster_rows, labels
from surrogate.operators.table import OperatorTable

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the network in the log time that are tried."""
HELD_FOLDS = 3
"""Folds by training shape, held back in turn to choose the shares."""


@dataclass(frozen=True)
class CrossFit:
    """(rows,) predictions in µs of rows whose shape neither part saw; NaN where a part said nothing."""

    trees_us: np.ndarray
    network_us: np.ndarray

    def shares(self, table: OperatorTable, least_rows: int, least_gain: float) -> dict[str, float]:
        """``library|kind|variant`` → the network's share with the least median log error.

        0 where it takes less than ``least_gain`` off the trees' error: a network must earn its place in a bundle.
        """
        with np.errstate(invalid="ignore"):
            trees, network = (np.log(part / table.time_us) for part in (self.trees_us, self.network_us))
        usable = np.isfinite(trees) & np.isfinite(network)
        found, named = {}, labels(table)
        for label in np.unique(named):
            mine = usable & (named == label)
            if mine.sum() >= least_rows:
                errors = [np.median(np.abs((1 - s) * trees[mine] + s * network[mine])) for s in SHARES]
                best = int(np.argmin(errors))
                found[str(label)] = SHARES[best] if errors[best] < (1 - least_gain) * errors[0] else 0.0
        return found

    def blended_us(self, table: OperatorTable, shares: Mapping[str, float]) -> np.ndarray:
        """(rows,) the blend of both; the trees alone where the network said nothing."""
        return mixed_us(self.trees_us, self.network_us, labels(table), shares)


def mixed_us(
    trees_us: np.ndarray, network_us: np.ndarray, named: np.ndarray, shares: Mapping[str, float]
) -> np.ndarray:
    """exp((1 − share)·log trees + share·log network), (rows,); the trees where the network said nothing."""
    share_of = {label: shares.get(label, 0.0) for label in np.unique(named)}
    share = np.array([share_of[label] for label in named])
    share = np.where(np.isfinite(network_us), share, 0.0)
    log_network = np.log(np.where(np.isfinite(network_us), network_us, 1.0))
    return np.exp((1 - share) * np.log(trees_us) + share * log_network)


def cross_fit(
    table: OperatorTable, *, seed: int = 0, progress: Callable[[int], None] | None = None
) -> CrossFit:
    """Both parts fitted `HELD_FOLDS` times on all shapes but one fold's, and asked for that fold's rows."""
    names = table.shape_names()
    fold_of = fold_of_names(names, HELD_FOLDS, seed + 1)
    fold = np.array([fold_of[name] for name in names])
    trees, network = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for held in range(HELD_FOLDS):
        if progress:
            progress(held)
        inside, outside = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
        if len(inside) and len(outside):
            train, test = table.take(inside), table.take(outside)
            trees[outside] = BoostedOperators().fit(train, seed=seed).predict_us(test)
            network[outside] = OperatorMlp().fit(train, seed=seed).predict_us(test)
    return CrossFit(trees, network)


class BlendedOperators:
    """log time = (1 − share)·trees + share·network; share 0 for what too few rows were held back of."""

    name: ClassVar[str] = "blended-operators"
    handles_new_gpus: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {"least_rows": 20, "least_gain": 0.1}

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self.trees = BoostedOperators()
        self.network = OperatorMlp()
        self.shares: dict[str, float] = {}

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Shares on held-back shapes, then trees on all rows, and the networks that have a share."""
        return self.fit_with(table, cross_fit(table, seed=seed), seed=seed)

    def fit_with(self, table: OperatorTable, held: "CrossFit", *, seed: int = 0) -> Self:
        """The same where the predictions of held-back rows are known."""
        fitted = type(self)(**self.params)
        fitted.shares = held.shares(table, **self.params)
        fitted.trees = BoostedOperators().fit(table, seed=seed)
        used = np.array([fitted.shares.get(label, 0.0) > 0 for label in labels(table)])
        wanted = [rows for rows in booster_rows(table).values() if used[rows].any()]
        if wanted:
            fitted.network = OperatorMlp().fit(table.take(np.sort(np.concatenate(wanted))), seed=seed)
        return fitted

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times in µs, (rows,); NaN for a family and library that training did not hold together."""
        named = labels(table)
        network = np.full(len(table), np.nan)
        asked = np.flatnonzero([self.shares.get(label, 0.0) > 0 for label in named])
        if len(asked):
            network[asked] = self.network.predict_us(table.take(asked))
        return mixed_us(self.trees.predict_us(table), network, named, self.shares)

    @property
    def known(self) -> frozenset[str]:
        """``library|kind|variant`` of all that training held."""
        return self.trees.known

    def call_us(self, gpu: str, library: str) -> float:
        """Fixed cost of a call in µs; see `BoostedOperators.call_us`."""
        return self.trees.call_us(gpu, library)

    def save(self) -> dict[str, bytes]:
        """Boosters as UBJ, the rest as JSON."""
        return {
            **self.trees.save(),
            "network.json": self.network.to_json(),
            "shares.json": json.dumps(self.shares, sort_keys=True).encode(),
        }

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        model.trees = BoostedOperators.load({}, files)
        model.network = OperatorMlp.from_json(files["network.json"])
        model.shares = json.loads(files["shares.json"])
        return model
