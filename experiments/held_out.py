"""Predictions of held-out rows by any models, under any split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from surrogate import Dataset, InputError
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import folds
from surrogate.features.families import CONV
from surrogate.models import Support, TimeModel, model_frame
from surrogate.models.base import duplicate

Tick = Callable[[str], None]
Round = tuple[np.ndarray, np.ndarray]
"""Positions of the training rows and of the test rows."""


@dataclass(frozen=True)
class Predictions:
    """Held-out predictions of ``rows``; arrays are (rows,).

    - ``time_us``: model → µs, or ranks if the model only ranks. NaN if the row was not tested or the model does not
      apply.
    - ``allowed``: True if the algorithm is expected to run.
    - ``tested``: True if the row was in a test set.
    - ``reasons``: model → why it has no prediction.
    """

    rows: Rows
    candidates: str
    time_us: Mapping[str, np.ndarray]
    allowed: np.ndarray
    tested: np.ndarray
    reasons: Mapping[str, str]

    def take(self, index: np.ndarray) -> "Predictions":
        """Return the predictions of the rows at these positions."""
        times = {name: values[index] for name, values in self.time_us.items()}
        rows, allowed, tested = self.rows.take(index), self.allowed[index], self.tested[index]
        return replace(self, rows=rows, time_us=times, allowed=allowed, tested=tested)


def candidate_rows(parts: Sequence[Dataset]) -> Rows:
    """Return the convolutions of several datasets, concatenated. Each algorithm has its fastest solver only."""
    frames = [model_frame(part) for part in parts]
    devices = {name: gpu for part in parts for name, gpu in part.devices.items()}
    return rows_of(pd.concat(frames, ignore_index=True), CONV, devices)


def rounds_by(by: str, rows: Rows, count: int, seed: int, main_rows: int | None = None) -> list[Round]:
    """Return the rounds of `surrogate.dataset.splits.folds`.

    Rows from position ``main_rows`` on (None: no row) are used for training only.
    """
    also = rows.frame.iloc[len(rows) if main_rows is None else main_rows :]
    rounds = folds(by, rows.family, rows.frame.iloc[:main_rows], also, count, seed)
    return [(fold.train, fold.test) for fold in rounds]


def fit_predict(
    train: Rows, test: Rows, models: Mapping[str, TimeModel], tick: Tick
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return label → predictions of ``test`` (rows,), and model → reason if it cannot be fitted on ``train``."""
    predicted, reasons = {}, {}
    for label, model in models.items():
        tick(label)
        try:
            predicted[label] = duplicate(model).fit(train).predict(test)
        except InputError as error:
            reasons[label] = str(error)
    return predicted, reasons


def predict_rounds(
    rows: Rows, candidates: str, rounds: Sequence[Round], models: Mapping[str, TimeModel], tick: Tick
) -> Predictions:
    """Fit clones of the models in every round and return the predictions. A row tested twice keeps the later
    prediction."""
    time_us = {label: np.full(len(rows), np.nan) for label in models}
    allowed, tested = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    reasons: dict[str, str] = {}
    for inside, outside in rounds:
        train, test = rows.take(inside), rows.take(outside)
        if not train.ok.any() or not len(test):
            continue
        left = {label: model for label, model in models.items() if label not in reasons}
        predicted, refused = fit_predict(train, test, left, tick)
        reasons |= refused
        for label, values in predicted.items():
            time_us[label][outside] = values
        allowed[outside] = Support.fit(train).supported(test)
        tested[outside] = True
    complete = {label: values for label, values in time_us.items() if label not in reasons}
    return Predictions(rows, candidates, complete, allowed, tested, reasons)


def cross_validate(
    data: Dataset,
    models: Mapping[str, TimeModel],
    *,
    by: str = "shape",
    count: int,
    seed: int,
    also: Sequence[Dataset] = (),
    tick: Tick,
) -> Predictions:
    """Return the predictions of ``data`` in the folds of `surrogate.dataset.splits.folds`.

    The datasets ``also`` are used for training only.
    """
    rows = candidate_rows([data, *also])
    main_rows = len(model_frame(data))
    rounds = rounds_by(by, rows, count, seed, main_rows)
    return predict_rounds(rows, data.candidates, rounds, models, tick).take(np.arange(main_rows))
