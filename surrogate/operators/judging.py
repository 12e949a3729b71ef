"""Operator models on held-out rows: by shape or by GPU, judged by `surrogate.evaluation.judge`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.splits import fold_of_names
from surrogate.evaluation.judge import time_errors
from surrogate.features.errors import InputError
from surrogate.operators.models import OPERATOR_MODELS, operator_model
from surrogate.operators.table import OperatorTable

SPLITS = ("shape", "gpu")


@dataclass(frozen=True)
class HeldOut:
    """``predicted_us``: model → (rows,) times of rows that its fit never saw; ``fold`` (rows,) names the round."""

    table: OperatorTable
    by: str
    fold: np.ndarray
    predicted_us: dict[str, np.ndarray]

    def rows(self, *groups: str) -> pd.DataFrame:
        """Errors per group (columns of the table: library, kind, gpu) and model.

        Columns: the groups, model, n (rows with a prediction), coverage (their share), shapes, then `TimeErrors`. A
        model that predicts nothing in a group has n = 0 there.
        """
        shapes = self.table.shape_names()
        keys = list(groups) or [lambda _: "all"]
        records: list[dict[str, Any]] = []
        for key, index in self.table.frame.reset_index(drop=True).groupby(keys).indices.items():
            index = np.asarray(index)
            named = dict(zip(groups, key if isinstance(key, tuple) else (key,), strict=bool(groups)))
            for model, predicted in self.predicted_us.items():
                errors = asdict(time_errors(predicted[index], self.table.time_us[index]))
                usable = index[np.isfinite(predicted[index])]
                records.append(
                    {
                        **named,
                        "model": model,
                        "coverage": len(usable) / len(index),
                        "shapes": len(set(shapes[usable])),
                    }
                    | errors
                )
        return pd.DataFrame(records)

    def against(self, reference: str, *groups: str) -> pd.DataFrame:
        """`rows`, with ``reference_median_ape`` and ``reference_p90_ape``: another model's errors on the same rows."""
        keys = [*groups, "model"]
        records = []
        for model, predicted in self.predicted_us.items():
            same = np.where(np.isfinite(predicted), self.predicted_us[reference], np.nan)
            part = HeldOut(self.table, self.by, self.fold, {model: same}).rows(*groups)
            records.append(part[[*keys, "median_ape", "p90_ape"]])
        renamed = {"median_ape": "reference_median_ape", "p90_ape": "reference_p90_ape"}
        return self.rows(*groups).merge(pd.concat(records).rename(columns=renamed), on=keys)


def hold_out(
    table: OperatorTable,
    *,
    by: str = "shape",
    folds: int = 5,
    seed: int = 0,
    models: Sequence[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> HeldOut:
    """Cross-validate ``models`` (all, where none is named) on the same rows.

    ``by`` shape: whole shapes without their batch, over every kind, GPU and dtype; gpu: each GPU in turn, where models
    that need its own measurements are left out. Raises `InputError` for an unknown split, or too few shapes or GPUs.
    """
    names = tuple(models) or tuple(OPERATOR_MODELS)
    classes = {name: operator_model(name) for name in names}
    label, rounds = _labels(table, by, folds, seed)
    if by == "gpu":
        classes = {name: cls for name, cls in classes.items() if cls.handles_new_gpus}
    predicted = {name: np.full(len(table), np.nan) for name in classes}
    total, done = len(rounds) * len(classes), 0
    for fold in rounds:
        inside, outside = np.flatnonzero(label != fold), np.flatnonzero(label == fold)
        train, test = table.take(inside), table.take(outside)
        for name, cls in classes.items():
            if progress:
                progress(done, total, f"{name}, fold {fold}")
            predicted[name][outside] = cls().fit(train, seed=seed).predict_us(test)
            done += 1
    return HeldOut(table, by, label, predicted)


def _labels(table: OperatorTable, by: str, folds: int, seed: int) -> tuple[np.ndarray, list[Any]]:
    if by not in SPLITS:
        raise InputError(f"split {by!r} is unknown; known: {', '.join(SPLITS)}")
    if by == "gpu":
        label = table.frame["gpu"].to_numpy(dtype=object)
    else:
        names = table.shape_names()
        fold_of = fold_of_names(names, folds, seed)
        label = np.array([fold_of[name] for name in names])
    rounds = sorted(set(label.tolist()))
    if len(rounds) < 2:
        raise InputError(f"{table.name}: one {by} alone; a split by {by} needs at least 2")
    return label, rounds
