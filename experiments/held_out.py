"""Predictions of rows that training did not hold, by any models, under any split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import folds
from surrogate.dataset.store import Dataset
from surrogate.evaluation.rounds import fit_beside
from surrogate.features.errors import InputError
from surrogate.models import MODELS, Model, Support

Tick = Callable[[str], None]


@dataclass(frozen=True)
class Predictions:
    """Held-out predictions over ``rows``; arrays (rows,).

    ``time_us`` model → µs (ranks for a model that only ranks), NaN where the row was not tested or the model does not
    apply; ``allowed``: the algorithm is expected to run; ``tested``; ``reasons`` model → why it has no prediction.
    """

    rows: Rows
    candidates: str
    time_us: Mapping[str, np.ndarray]
    allowed: np.ndarray
    tested: np.ndarray
    reasons: Mapping[str, str]


def candidate_rows(parts: Sequence[Dataset], candidate: str = "algorithm") -> Rows:
    """The rows of several datasets, one after another, with their features; of each algorithm its fastest solver."""
    frames = [candidate_frame(part, candidate) for part in parts]
    devices = {name: gpu for part in parts for name, gpu in part.devices.items()}
    return rows_of(pd.concat(frames, ignore_index=True), devices)


def fit_predict(
    train: Rows, test: Rows, models: Sequence[str], seed: int, tick: Tick
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Model → predictions of ``test`` (rows,); and for each model that cannot learn from ``train`` the reason."""
    predicted, reasons, fitted = {}, {}, dict[str, Model]()
    for name in models:
        tick(name)
        try:
            fitted[name] = fit_beside(MODELS[name](), train, seed, fitted)
            predicted[name] = fitted[name].predict_us(test)
        except InputError as error:
            reasons[name] = str(error)
    return predicted, reasons


def predict_rounds(
    rows: Rows,
    candidates: str,
    rounds: Sequence[tuple[np.ndarray, np.ndarray]],
    models: Sequence[str],
    seed: int,
    tick: Tick,
) -> Predictions:
    """Every round is (train, test) positions in ``rows``; a row tested twice keeps the later prediction."""
    time_us = {name: np.full(len(rows), np.nan) for name in models}
    allowed, tested = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    reasons: dict[str, str] = {}
    for inside, outside in rounds:
        train, test = rows.take(inside), rows.take(outside)
        if not train.ok.any() or not len(test):
            continue
        predicted, refused = fit_predict(train, test, [m for m in models if m not in reasons], seed, tick)
        reasons |= refused
        for name, values in predicted.items():
            time_us[name][outside] = values
        allowed[outside] = Support.fit(train).supported(test)
        tested[outside] = True
    kept = {name: values for name, values in time_us.items() if name not in reasons}
    return Predictions(rows, candidates, kept, allowed, tested, reasons)


def cross_validate(
    data: Dataset,
    models: Sequence[str],
    *,
    by: str = "shape",
    count: int,
    seed: int,
    also: Sequence[Dataset] = (),
    candidate: str = "algorithm",
    tick: Tick,
) -> Predictions:
    """Folds as `surrogate.dataset.splits.folds` makes them; ``also`` only trains. Predictions cover ``data`` alone."""
    rows = candidate_rows([data, *also], candidate)
    length = len(candidate_frame(data, candidate))
    rounds = folds(by, rows.frame.iloc[:length], rows.frame.iloc[length:], count, seed)
    whole = predict_rounds(rows, data.candidates, [(f.train, f.test) for f in rounds], models, seed, tick)
    return part_of(whole, np.arange(length))


def part_of(predictions: Predictions, index: np.ndarray) -> Predictions:
    """The predictions of some rows (positions)."""
    return Predictions(
        predictions.rows.take(index),
        predictions.candidates,
        {name: values[index] for name, values in predictions.time_us.items()},
        predictions.allowed[index],
        predictions.tested[index],
        predictions.reasons,
    )
